//go:build !cgo

package measure

import (
	"errors"

	"github.com/mkrun/mkrun/internal/topology"
)

func open(string) (topology.Meter, error) {
	return nil, errors.New("this mkrun was built without cgo (CGO_ENABLED=0) and cannot measure: build it with CGO_ENABLED=1 and a C compiler")
}
