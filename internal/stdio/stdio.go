// Package stdio carries the output of ranks: it cuts byte streams into whole lines where they are read
// (Pump, Tail) and writes the lines of many ranks to one terminal or file without mixing them (Mux).
// It also holds the one mapping of ends of processes to exit statuses.
package stdio

// Stream is one of a rank's two outputs. The values are the descriptor numbers and those of the
// control protocol.
type Stream int32

const (
	Stdout Stream = 1
	Stderr Stream = 2
)

func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}
