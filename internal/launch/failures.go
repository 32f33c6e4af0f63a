package launch

import "sync"

// failures are what the last tries at nodes came to that are tried again.
type failures struct {
	mu  sync.Mutex
	all map[int]error
}

// lastFailure is what went wrong with a node that is still tried; nil if nothing did.
func (f *failures) lastFailure(node int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all[node]
}

func (f *failures) note(node int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[int]error{}
	}
	f.all[node] = err
}
