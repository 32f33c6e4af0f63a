package cpu

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/engine"
	"github.com/mkrun/mkrun/internal/mknet"
)

// NetTCP is the backend that needs no library: TCP connections of this package.
const NetTCP = "tcp"

// chosenNet is what carries bytes between nodes, and why.
type chosenNet struct {
	backend, why string
	job          uint64
}

// offer says which backends a rank could use. All ranks make the same choice from all offers.
type offer struct {
	Nonce  uint64            `json:"nonce"`
	Usable map[string]string `json:"usable"` // by name: what it would use
	Why    map[string]string `json:"why"`    // by name: why not
}

// chooseNet settles with all ranks what carries bytes between nodes: the backend asked for, which all must have; or, for
// "auto", the first of the preferred that all have, else TCP.
func (in *instance) chooseNet(ctx context.Context) (chosenNet, error) {
	asked := in.cfg.Net.Backend
	if in.cfg.Plan.World.Nodes() == 1 || asked == "" || asked == NetTCP {
		return chosenNet{backend: NetTCP, why: "asked for"}, nil
	}
	if asked == "auto" && in.cfg.Net.Emulates() {
		return chosenNet{backend: NetTCP, why: "an emulated link was asked for"}, nil
	}
	candidates := []string{asked}
	if asked == "auto" {
		candidates = mknet.Preferred
	}
	mine := offerOf(candidates, in.usable)
	offers, err := in.exchangeOffers(ctx, mine)
	if err != nil {
		return chosenNet{}, err
	}
	return settle(in.cfg.Net, candidates, offers)
}

// usable tells what a backend would use here. NICs that are near and cannot be used, as where a container has only some,
// give way to all that can.
func (in *instance) usable(name string) (string, error) {
	o, err := mknet.OptionsFor(in.cfg, name, 0)
	if err != nil {
		return "", err
	}
	look := func() (string, error) {
		return ask(in.patience(), "is loaded or looks for devices", func() (string, error) { return mknet.Usable(o) })
	}
	text, err := look()
	if err == nil || o.RDMA.Devices == "" || in.cfg.Net.Devices != "" {
		return text, err
	}
	refused := err
	o.RDMA.Devices, o.Rails = "", ""
	if text, err = look(); err != nil {
		return "", err
	}
	in.cfg.NICs.Devices, in.cfg.NICs.Rails = nil, nil
	in.cfg.NICs.Rule = fmt.Sprintf("all that can be used, since those near the rank cannot: %v", refused)
	return text, nil
}

// loadLimit is how long a network library may take, at least, until it has answered: some look for devices over
// a network. With a --wait-timeout of more than twice as long, "auto" goes on without it before anyone gives up.
const loadLimit = 10 * time.Second

// ask calls into a network library. One that does not answer is left alone: nothing can end its call but the end of the
// process.
func ask[T any](limit time.Duration, doing string, call func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := call()
		answers <- answer{value, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-timer.C:
		var none T
		return none, fmt.Errorf("its library did not answer within %v: it hangs while it %s", limit, doing)
	}
}

// patience is how long a rank waits for an answer of a network library.
func (in *instance) patience() time.Duration { return max(in.cfg.WaitTimeout/2, loadLimit) }

// offerOf asks for each candidate whether it can be used here.
func offerOf(candidates []string, usable func(name string) (string, error)) offer {
	o := offer{Nonce: rand.Uint64(), Usable: map[string]string{}, Why: map[string]string{}}
	for _, name := range candidates {
		if text, err := usable(name); err != nil {
			o.Why[name] = err.Error()
		} else {
			o.Usable[name] = text
		}
	}
	return o
}

func (in *instance) exchangeOffers(ctx context.Context, mine offer) ([]offer, error) {
	boot := in.cfg.Bootstrap
	blob, err := json.Marshal(mine)
	if err != nil {
		return nil, err
	}
	if err := boot.Put(ctx, engine.Everyone, blob); err != nil {
		return nil, fmt.Errorf("publishing the networks that can be used: %w", err)
	}
	if err := boot.Fence(ctx); err != nil {
		return nil, fmt.Errorf("waiting for the networks that all ranks can use: %w", err)
	}
	offers := make([]offer, in.cfg.Plan.World.Size())
	for rank := range offers {
		common, _, err := boot.Get(ctx, rank)
		if err != nil {
			return nil, fmt.Errorf("networks of rank %d: %w", rank, err)
		}
		if err := json.Unmarshal(common, &offers[rank]); err != nil {
			return nil, fmt.Errorf("networks of rank %d: %w", rank, err)
		}
	}
	return offers, nil
}

// reason is why a network is not taken: a rank that has none of it.
type reason struct {
	name string
	rank int
	why  string
}

// tell puts reasons in a line; networks that the same rank lacks for the same reason share it.
func tell(reasons []reason) string {
	var parts []string
	for i, r := range reasons {
		if i > 0 && r.rank == reasons[i-1].rank && r.why == reasons[i-1].why {
			continue
		}
		names := r.name
		for _, next := range reasons[i+1:] {
			if next.rank != r.rank || next.why != r.why {
				break
			}
			names += ", " + next.name
		}
		parts = append(parts, fmt.Sprintf("no %s at rank %d: %s", names, r.rank, r.why))
	}
	return strings.Join(parts, "; ")
}

// settle chooses from all ranks' offers. Who names NICs does not want TCP.
func settle(net engine.Net, candidates []string, offers []offer) (chosenNet, error) {
	asked := net.Backend
	nonces := make([]uint64, len(offers))
	for rank, o := range offers {
		nonces[rank] = o.Nonce
	}
	var reasons []reason
	for _, name := range candidates {
		without := slices.IndexFunc(offers, func(o offer) bool { _, has := o.Usable[name]; return !has })
		if without < 0 {
			why := "all ranks have it"
			if name == asked {
				why = "asked for"
			}
			return chosenNet{backend: name, why: why, job: jobOf(nonces)}, nil
		}
		reasons = append(reasons, reason{name, without, offers[without].Why[name]})
	}
	reason := tell(reasons)
	switch {
	case asked != "auto":
		return chosenNet{}, fmt.Errorf("--net %s: %s", asked, reason)
	case net.Devices != "":
		return chosenNet{}, fmt.Errorf("--net-devices %s: no network has them on all ranks: %s", net.Devices, reason)
	}
	return chosenNet{backend: NetTCP, why: reason}, nil
}
