package cuda

// Error is what a function of the data plane refused or failed with.
type Error struct {
	Code Code
	Text string
}

func (e *Error) Error() string { return e.Text }

// Code says of which kind an Error is: mk_code of cuda/include/mkernel.h.
type Code int32

// The codes.
const (
	CodeArgument    Code = 1 // the caller's values cannot work
	CodeUnsupported Code = 2 // this machine, driver or build cannot do it
	CodeDriver      Code = 3 // CUDA refused
	CodeBootstrap   Code = 4 // the ranks could not find one another
	CodeMemory      Code = 5
	CodeAborted     Code = 6 // a wait timed out on some rank
)
