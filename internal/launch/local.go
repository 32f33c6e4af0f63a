package launch

import (
	"context"
	"fmt"
	"io"
	"os/exec"

	"github.com/mkrun/mkrun/internal/session"
)

// localStarter starts agents as children of the launcher.
type localStarter struct {
	log io.Writer // for what agents log; may be nil
}

func (s localStarter) start(_ context.Context, cfg AgentConfig, secret session.Secret) (*agentProcess, error) {
	cmd := exec.Command(selfBinary, AgentCommand)
	cmd.Args[0] = "mkrun" // for the eyes of people
	a, err := launchProcess(cmd, nil, s.log, explainLocal)
	if err != nil {
		return nil, fmt.Errorf("starting the agent of node %d: %w", cfg.Node, err)
	}
	if err := cfg.write(a.stdin, secret); err != nil {
		a.kill()
		<-a.done
		return nil, err
	}
	return a, nil
}

func explainLocal(end error, said string) string {
	text := "its process ended"
	if end != nil {
		text += ": " + end.Error()
	}
	if said != "" {
		text += "; it said: " + said
	}
	return text
}
