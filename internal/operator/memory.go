package operator

import "fmt"

// MemoryNeed is the number of bytes that a rank's run takes beside its engine: the operands in the making, the
// output that is looked at, and, with a check, the reference's operand in fp32.
func (s RunSpec) MemoryNeed(rank int) (int64, error) {
	k, err := lookup(s.Operator)
	if err != nil {
		return 0, err
	}
	var need int64
	add := func(rows, cols, elem int64) {
		if rows > 0 && cols > 0 && need >= 0 {
			if overflows(rows, cols) || rows*cols > (1<<62)/elem {
				need = -1
				return
			}
			need += rows * cols * elem
		}
	}
	for _, in := range k.inputs {
		from, to := in.rows(s, rank)
		add(to-from, s.Shape.Of(in.cols), s.DType.Size())
	}
	m, n := k.size(s, rank)
	add(m, n, s.DType.Size())
	if s.Check {
		add(n, s.Shape.K, s.DType.Size()+4)
	}
	if need < 0 {
		return 0, fmt.Errorf("shape M=%d N=%d K=%d: the operands of a rank have more bytes than 64-bit sizes can count", s.Shape.M, s.Shape.N, s.Shape.K)
	}
	return need, nil
}
