package keeper

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/mkrun/mkrun/internal/watchdog"
)

// A process that was stopped closes no socket, so agent and keeper also expect a word of each other now and then: the
// agent asks, the keeper answers. One that is silent for too long counts as dead, unless it is at work.

// agentSilence is how long a keeper waits for its agent, which waits for the keeper for the given time: the agent goes
// first, as it has somebody to tell.
func agentSilence(silence time.Duration) time.Duration { return silence + silence/2 }

// watchKeeper begins to ask the keeper whether it lives, and kills it when it does not answer. The returned function ends that.
func (g *Group) watchKeeper() (end func()) {
	if g.spec.Silence <= 0 {
		return func() {}
	}
	pid := g.keeper.cmd.Process.Pid
	g.watch = watchdog.NewLenient(g.spec.Silence, g.spec.Heartbeat, EffortOf(pid).Works, func() {
		text := fmt.Sprintf("it said nothing for %v%s, so it was killed", g.spec.Silence, condition(pid))
		g.silent.Store(&text)
		_ = g.keeper.cmd.Process.Kill() // the error would be that it has ended
	})
	over, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		tick := time.NewTicker(g.spec.Heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
				g.send(command{Kind: cmdAsk})
			}
		}
	}()
	return func() {
		g.watch.Stop()
		close(over)
		<-asked
	}
}

// heard notes that the keeper said something.
func (g *Group) heard() {
	if g.watch != nil {
		g.watch.Alive()
	}
}

// suspend lets silence not count from a SIGTSTP to a SIGCONT: who stops the ranks may stop more.
func suspend(w *watchdog.Watchdog, sig syscall.Signal) {
	switch {
	case w == nil:
	case sig == syscall.SIGTSTP:
		w.Pause()
	case sig == syscall.SIGCONT:
		w.Resume()
	}
}

// watchAgent tells k.silent when the agent says nothing any more. It may return nil.
func (k *keeper) watchAgent(l launch) *watchdog.Watchdog {
	if l.Silence <= 0 {
		return nil
	}
	agent := os.Getppid()
	return watchdog.NewLenient(agentSilence(l.Silence), l.Heartbeat, EffortOf(agent).Works, func() { close(k.silent) })
}

// condition says what keeps a process from answering, as far as the process table tells.
func condition(pid int) string {
	p, _ := readProcess(pid)
	switch p.State {
	case 'T':
		return ", as somebody stopped it (SIGSTOP)"
	case 't':
		return ", as a debugger stopped it"
	case 'D':
		return ", as it hangs in the kernel"
	}
	return ""
}

// givenUp reports whether a keeper is replaced that should have ended `late` ago: when it is stopped, or does nothing. One
// that works gets as much time again, thrice: on a busy machine many processes take long to kill.
func givenUp(stopped bool, late, patience time.Duration, works func() bool) bool {
	return stopped || late >= 3*patience || late >= 0 && !works()
}
