package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// Dump writes the whole plan as one JSON document with stable keys: kinds and dims are words, and each rank's
// queues stand under the names of their roles. Under "prediction" stands what the plan is predicted to take, null if
// that is nil. json.Unmarshal into a Plan reads it back.
func (p *Plan) Dump(w io.Writer, prediction any) error {
	doc := struct {
		*Plan
		Prediction any `json:"prediction"`
	}{p, prediction}
	if err := json.NewEncoder(w).Encode(doc); err != nil {
		return fmt.Errorf("writing the plan: %w", err)
	}
	return nil
}

// MarshalJSON writes {"queues":{"compute":[...],"intra":[...],...}}.
func (r RankPlan) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`{"queues":{`)
	for role, queue := range r.Queues {
		if role > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:", Role(role))
		if queue == nil {
			queue = []Task{}
		}
		text, err := json.Marshal(queue)
		if err != nil {
			return nil, err
		}
		b.Write(text)
	}
	b.WriteString("}}")
	return b.Bytes(), nil
}

// UnmarshalJSON reads what MarshalJSON writes; an unknown role is an error.
func (r *RankPlan) UnmarshalJSON(text []byte) error {
	var raw struct {
		Queues map[string][]Task `json:"queues"`
	}
	if err := json.Unmarshal(text, &raw); err != nil {
		return err
	}
	*r = RankPlan{}
	for name, queue := range raw.Queues {
		var role Role
		if err := enumUnmarshal("role", &role, roleNames[:], []byte(name)); err != nil {
			return err
		}
		r.Queues[role] = queue
	}
	return nil
}
