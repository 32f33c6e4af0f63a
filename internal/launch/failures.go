package launch

import (
	"fmt"
	"sync"
)

// failures are what the last tries at nodes came to that are tried again, and how far the present ones are.
type failures struct {
	mu    sync.Mutex
	all   map[int]error
	tried map[int]*agentProcess
}

// lastFailure is what went wrong with a node that is still tried; nil if nothing did.
func (f *failures) lastFailure(node int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.tried[node]; a != nil {
		if text := a.unready(); text != "" {
			return fmt.Errorf("what was started there is not mkrun, or not yet%s", text)
		}
	}
	return f.all[node]
}

// began notes a process by which a node is tried.
func (f *failures) began(node int, a *agentProcess) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tried == nil {
		f.tried = map[int]*agentProcess{}
	}
	f.tried[node] = a
}

func (f *failures) note(node int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[int]error{}
	}
	f.all[node] = err
}
