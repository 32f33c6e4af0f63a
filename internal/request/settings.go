package request

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mkrun/mkrun/internal/config"
	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/plan"
)

// Query is what the configuration is asked for this request, on an engine ("cpu" or "cuda") and a fabric ("" for
// one node). The layer is what a named shape is, with its source; "" if sizes were given.
func (r Request) Query(engineName, fabric string) (q config.Query, layer string, err error) {
	if err := r.World.Validate(); err != nil {
		return q, "", err
	}
	shape, layer, err := r.shape()
	if err != nil {
		return q, "", err
	}
	dtype, err := engine.ParseDType(r.DType)
	if err != nil {
		return q, "", fmt.Errorf("--dtype: %w", err)
	}
	ppn := 0
	for _, n := range r.World.PPN {
		ppn = max(ppn, n)
	}
	return config.Query{
		Engine: engineName, DType: dtype.String(), M: shape.M, N: shape.N, K: shape.K,
		Nodes: r.World.Nodes(), PPN: ppn, Fabric: fabric,
	}, layer, nil
}

// shape takes the sizes from the flags or from a named layer.
func (r Request) shape() (s plan.Shape, description string, err error) {
	s = plan.Shape{M: r.M, N: r.N, K: r.K}
	if r.Layer == "" {
		if r.Tokens != 0 {
			return s, "", errors.New("--tokens is the M of a named layer: give --shape with it, or --m instead")
		}
		for _, d := range []struct {
			flag string
			size int64
		}{{"--m", s.M}, {"--n", s.N}, {"--k", s.K}} {
			if d.size == 0 {
				return s, "", fmt.Errorf("%s is missing: give --m, --n and --k (each at least 1), or --shape NAME --tokens M", d.flag)
			}
		}
		return s, "", nil
	}
	if r.N != 0 || r.K != 0 {
		return s, "", errors.New("--shape says what N and K are: leave out --n and --k")
	}
	if r.M != 0 && r.Tokens != 0 {
		return s, "", errors.New("--tokens and --m are the same for a named layer: give one")
	}
	shapes, err := config.LoadShapes()
	if err != nil {
		return s, "", err
	}
	layer, err := shapes.Resolve(r.Layer)
	if err != nil {
		return s, "", err
	}
	if err := layer.For(r.Operator); err != nil {
		return s, "", err
	}
	s.N, s.K = layer.N, layer.K
	if s.M = max(r.Tokens, r.M); s.M == 0 {
		return s, "", fmt.Errorf("--shape %s needs --tokens: the rows of the product", r.Layer)
	}
	description = fmt.Sprintf("%v: %s (%s)", layer, layer.Formula, layer.Source)
	if layer.TP != r.World.Size() {
		description += fmt.Sprintf("; note: a layer split over %d ranks, run on %d", layer.TP, r.World.Size())
	}
	return s, description, nil
}

// settings remembers which of them the command line took from the configuration.
type settings struct{ flags []string }

// pick is the value of a setting: what its flag says, else what is configured, else what otherwise is used.
func (s *settings) pick(flag string, given, configured, otherwise int) int {
	switch {
	case given != 0 && configured != 0 && given != configured:
		s.flags = append(s.flags, fmt.Sprintf("%s %d (configured: %d)", flag, given, configured))
	case given != 0:
		s.flags = append(s.flags, fmt.Sprintf("%s %d", flag, given))
	case configured != 0:
		return configured
	default:
		return otherwise
	}
	return given
}

// pickWord is pick for settings that are words.
func (s *settings) pickWord(flag, given, configured string) string {
	switch {
	case given == "":
		return configured
	case configured != "" && given != configured:
		s.flags = append(s.flags, fmt.Sprintf("%s %s (configured: %s)", flag, given, configured))
	default:
		s.flags = append(s.flags, flag+" "+given)
	}
	return given
}

// overrides says which flags go before what the source of the settings says, "" if none.
func (s *settings) overrides() string {
	if len(s.flags) == 0 {
		return ""
	}
	return ", overridden by " + strings.Join(s.flags, ", ")
}
