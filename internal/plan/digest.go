package plan

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
)

// Digest tells plans apart: equal for two plans only if all ranks do the same in both, and both say the same of their
// results and their traffic. A plan that is not valid has one, too, unless it has kinds without a name; it takes longer.
func (p *Plan) Digest() ([]byte, error) {
	h := sha256.New()
	if p.validate() != nil {
		if err := json.NewEncoder(h).Encode(p); err != nil {
			return nil, fmt.Errorf("digest of the plan: %w", err)
		}
		return h.Sum(nil), nil
	}
	for rank := range p.Ranks {
		image, err := p.encodeRank(rank)
		if err != nil {
			return nil, fmt.Errorf("digest of the plan: %w", err)
		}
		_, _ = h.Write(image) // a hash takes everything
	}
	// What images leave out.
	if err := json.NewEncoder(h).Encode([]any{p.Flags, p.Results, p.Declared}); err != nil {
		return nil, fmt.Errorf("digest of the plan: %w", err)
	}
	return h.Sum(nil), nil
}
