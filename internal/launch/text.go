package launch

import "encoding/json"

// text is a string that may hold any bytes, as arguments, environments and file names do: in JSON it is base64.
type text string

func (t text) MarshalJSON() ([]byte, error) { return json.Marshal([]byte(t)) }

func (t *text) UnmarshalJSON(data []byte) error {
	var b []byte
	if err := json.Unmarshal(data, &b); err != nil {
		return err
	}
	*t = text(b)
	return nil
}

// convert makes a list of strings of one kind into one of another.
func convert[To, From ~string | ~[]byte](list []From) []To {
	if list == nil {
		return nil
	}
	out := make([]To, len(list))
	for i, s := range list {
		out[i] = To(s)
	}
	return out
}
