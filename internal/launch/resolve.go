package launch

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mkrun/mkrun/internal/hosts"
)

// Reach is how agents are started.
type Reach string

// The ways to start agents. Auto starts them as children on this host, over ssh on others.
const (
	ReachAuto     Reach = "auto"
	ReachLocal    Reach = "local"
	ReachSSH      Reach = "ssh"
	ReachSrun     Reach = "srun"     // by Slurm, inside one of its jobs
	ReachStanding Reach = "standing" // they wait already
	ReachJoin     Reach = "join"     // they come by themselves: the same command was started on each node
)

// Reaches are the values of --agent.
var Reaches = []string{string(ReachAuto), string(ReachLocal), string(ReachSSH), string(ReachSrun), string(ReachStanding)}

// ParseReach reads the value of --agent.
func ParseReach(s string) (Reach, error) {
	if slices.Contains(Reaches, s) {
		return Reach(s), nil
	}
	return "", fmt.Errorf("--agent %q: known are %s", s, strings.Join(Reaches, ", "))
}

// lookupLimit bounds the look-up of all names. A name that is not known here may still mean something to ssh.
const lookupLimit = 3 * time.Second

// Resolve finds out which of the hosts are this one, and what addresses the others have.
func Resolve(ctx context.Context, list []hosts.Host, reach Reach) ([]Host, error) {
	own, err := ownAddresses()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	out := make([]Host, len(list))
	var wg sync.WaitGroup
	atOnce := make(chan struct{}, sshAtOnce)
	for i, h := range list {
		wg.Go(func() {
			atOnce <- struct{}{}
			defer func() { <-atOnce }()
			out[i] = Host{Name: h.Name, Devices: h.Devices}
			if reach != ReachJoin { // those say themselves where they are
				out[i].Candidates = lookup(ctx, h.Name)
			}
			out[i].By = reach
			if reach == ReachAuto {
				out[i].By = ReachLocal
				if h.User != "" || !isOwn(out[i].Candidates, own) {
					out[i].By = ReachSSH
				}
			}
			if out[i].By == ReachSSH {
				out[i].Target, out[i].User = h.Target(), h.User
			}
			if len(out[i].Candidates) > 0 {
				out[i].Address = out[i].Candidates[0]
			}
		})
	}
	wg.Wait()
	if !slices.ContainsFunc(out, Host.remote) {
		for i := range out { // all are this host: what they say stays in it
			out[i].Address = "127.0.0.1"
		}
	}
	return out, nil
}

func lookup(ctx context.Context, name string) []string {
	if addr, err := netip.ParseAddr(name); err == nil {
		return []string{addr.Unmap().String()}
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return nil
	}
	var found []string
	for _, a := range addrs {
		if text := a.Unmap().String(); !slices.Contains(found, text) {
			found = append(found, text)
		}
	}
	return found
}

// isOwn reports whether all of some addresses are this host's.
func isOwn(candidates []string, own []ownAddress) bool {
	for _, text := range candidates {
		addr, err := netip.ParseAddr(text)
		if err != nil || !slices.ContainsFunc(own, func(o ownAddress) bool { return o.addr == addr || addr.IsLoopback() }) {
			return false
		}
	}
	return len(candidates) > 0
}
