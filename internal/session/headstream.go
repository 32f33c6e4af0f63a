package session

import (
	"errors"
	"fmt"

	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// hear acts on a message of an agent that reports to the head, or on one that it passes on.
func (h *Head) hear(a *agentConn, m *pb.FromAgent) error {
	if m.Origin == 0 {
		return h.handle(a, m)
	}
	node := int(m.Origin) - 1
	if child, ok := h.cfg.tree.toward(theHead, node); !ok || child != a.node || node == a.node {
		return fmt.Errorf("it passes on a word of node %d, which does not report to it", node)
	}
	if hello := m.GetHello(); hello != nil {
		return h.helloThrough(a, node, m)
	}
	if away := m.GetTurnedAway(); away != nil {
		h.refused(away.Hello, away.From, away.Reason)
		return nil
	}
	b := h.agent(node)
	if b == nil || b.via != a {
		return fmt.Errorf("it passes on a word of node %d, which has not said hello", node)
	}
	if gone := m.GetGone(); gone != nil {
		if b.end() && gone.InOrder {
			h.left(b)
		} else {
			h.lost(b, gone.Reason)
		}
		return nil
	}
	return h.handle(b, m)
}

// helloThrough admits an agent that another one has let in.
func (h *Head) helloThrough(a *agentConn, node int, m *pb.FromAgent) error {
	hello := m.GetHello()
	reason := h.examine(hello, Identity{RoleAgent, node}, h.cfg.tree.Parent(node))
	var b *agentConn
	if reason == "" {
		b, reason = h.enter(&agentConn{node: node, incarnation: hello.Incarnation, host: hello.Hostname, via: a, watch: a.watch})
	}
	if reason == "" {
		return h.handle(b, m)
	}
	h.refused(hello, fmt.Sprintf("node %d", a.node), reason)
	refusal := &pb.Refusal{Reason: reason, Protocol: h.cfg.protocol, Build: h.cfg.build}
	return a.post(&pb.ToAgent{To: toNode(node), Kind: &pb.ToAgent_Refusal{Refusal: refusal}}, 0)
}

func (h *Head) agent(node int) *agentConn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.agents[node]
}

// left tells the owner that an agent went in order.
func (h *Head) left(a *agentConn) {
	h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation, Left: true}, nil)
	h.lostBelow(a)
}

// lost tells the owner of an agent that went otherwise, and of those that were reached through it.
func (h *Head) lost(a *agentConn, reason string) {
	h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation, Lost: &AgentLostError{Node: a.node, Host: a.host, Reason: reason, Broke: a.broke}}, nil)
	h.lostBelow(a)
}

func (h *Head) lostBelow(a *agentConn) {
	h.mu.Lock()
	var below []*agentConn
	for _, b := range h.agents {
		if b == nil || !b.expect(nil) {
			continue
		}
		if _, under := h.cfg.tree.toward(a.node, b.node); under {
			below = append(below, b)
		}
	}
	h.mu.Unlock()
	for _, b := range below {
		b.end()
		h.emit(HeadEvent{Node: b.node, Incarnation: b.incarnation, Lost: &AgentLostError{
			Node: b.node, Host: b.host, Reason: fmt.Sprintf("node %d (%s), to which it reported, is gone", a.node, a.host)}}, nil)
	}
}

// refused tells the owner who was not let in.
func (h *Head) refused(hello *pb.Hello, from, reason string) {
	ev := HeadEvent{Node: -1, Incarnation: hello.GetIncarnation(), Refused: &Refusal{Hello: hello, From: from, Reason: reason}}
	if hello != nil && hello.Node >= 0 && int(hello.Node) < h.cfg.tree.Nodes {
		ev.Node = int(hello.Node)
	}
	h.emit(ev, nil)
}

// handle acts on one message of an agent.
func (h *Head) handle(a *agentConn, m *pb.FromAgent) error {
	switch m.Kind.(type) {
	case *pb.FromAgent_Heartbeat:
		return nil
	case nil: // of a newer build: messages of the same protocol version may be ignored
		return nil
	case *pb.FromAgent_Gone, *pb.FromAgent_TurnedAway:
		return errors.New("it speaks of its own end")
	}
	if ofRanks(m) && m.Generation != h.generation() {
		h.log.Debug("dropped what an agent said about ranks of another generation", "node", a.node, "generation", m.Generation)
		return nil
	}
	switch k := m.Kind.(type) {
	case *pb.FromAgent_Put:
		return h.put(a, k.Put)
	case *pb.FromAgent_Fence:
		return h.enterFence(a, k.Fence)
	case *pb.FromAgent_Barrier:
		return h.enterBarrier(a, k.Barrier)
	}
	if rank, ok := rankOf(m); ok {
		if err := h.owns(a, rank); err != nil {
			return err
		}
	}
	if member := m.GetMember(); member != nil && (member.Node < 0 || int(member.Node) >= h.cfg.tree.Nodes) {
		return fmt.Errorf("an opinion of node %d in a job of %d nodes", member.Node, h.cfg.tree.Nodes)
	}
	h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation, Message: m}, a.watch)
	if x := m.GetRankExited(); x != nil {
		h.mu.Lock()
		h.exited[x.Rank] = true
		h.mu.Unlock()
		h.abandon(a)
	}
	return nil
}

// abandon asks for the job's end if a rank has ended that others wait for: they would do so for ever.
func (h *Head) abandon(a *agentConn) {
	h.mu.Lock()
	var request *pb.AbortRequest
	for _, c := range []*collective{h.store.fence, h.barrier} {
		for rank, exited := range h.exited {
			if request == nil && exited && c.awaits(rank) {
				request = &pb.AbortRequest{Rank: int32(rank), ExitStatus: abandonedStatus, Certain: true,
					Reason: "ended, and others wait for it, as MPI programs and operators do for all ranks when they start"}
			}
		}
	}
	h.mu.Unlock()
	if request != nil {
		h.emit(HeadEvent{Node: h.world.nodeOf(request.Rank), Incarnation: a.incarnation,
			Message: &pb.FromAgent{Generation: h.generation(), Kind: &pb.FromAgent_Abort{Abort: request}}}, a.watch)
	}
}

// abandonedStatus is mkrun's where a rank ended well and left others waiting.
const abandonedStatus = 125

// generation is that of the ranks.
func (h *Head) generation() uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.current
}

// ofRanks reports whether a message is about ranks, and so belongs to a generation.
func ofRanks(m *pb.FromAgent) bool {
	switch m.Kind.(type) {
	case *pb.FromAgent_Put, *pb.FromAgent_Fence, *pb.FromAgent_Barrier, *pb.FromAgent_NodeDone, *pb.FromAgent_StdinTaken, *pb.FromAgent_Abort:
		return true
	}
	_, about := rankOf(m)
	return about
}

// rankOf is the rank that a message speaks for, if any.
func rankOf(m *pb.FromAgent) (int32, bool) {
	switch k := m.Kind.(type) {
	case *pb.FromAgent_RankStarted:
		return k.RankStarted.GetRank(), true
	case *pb.FromAgent_RankExited:
		return k.RankExited.GetRank(), true
	case *pb.FromAgent_Output:
		return k.Output.GetRank(), true
	case *pb.FromAgent_Report:
		return k.Report.GetRank(), true
	case *pb.FromAgent_Attached:
		return k.Attached.GetRank(), true
	case *pb.FromAgent_Abort:
		return k.Abort.GetRank(), k.Abort.GetRank() != -1
	}
	return 0, false
}

func (h *Head) owns(a *agentConn, rank int32) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ownsLocked(a, rank)
}

func (h *Head) ownsLocked(a *agentConn, rank int32) error {
	if !h.world.owns(a.node, rank) {
		return fmt.Errorf("node %d speaks for rank %d, which is not its own", a.node, rank)
	}
	return nil
}

func (h *Head) put(a *agentConn, p *pb.Put) error {
	h.mu.Lock()
	err := h.ownsLocked(a, p.GetFrom())
	if err == nil {
		err = h.store.put(p)
	}
	h.mu.Unlock()
	if errors.Is(err, errStoreFull) {
		h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation,
			Message: &pb.FromAgent{Generation: h.generation(), Kind: &pb.FromAgent_Abort{Abort: &pb.AbortRequest{Rank: p.From, Reason: err.Error()}}}}, a.watch)
		return nil
	}
	return err
}

func (h *Head) enterFence(a *agentConn, f *pb.FenceEnter) error {
	err := h.passFence(a, f)
	if err == nil {
		h.abandon(a)
	}
	return err
}

// passFence notes that a rank entered, and hands out what was put if it was the last.
func (h *Head) passFence(a *agentConn, f *pb.FenceEnter) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.ownsLocked(a, f.GetRank()); err != nil {
		return err
	}
	out, err := h.store.enter(f)
	if err != nil {
		return err
	}
	for node, messages := range out {
		for _, m := range messages {
			m.Generation = h.current
			if peer := h.agents[node]; peer != nil {
				_ = peer.post(m, 0) // the store's limit bounds these; a lost agent is an event of its own
			}
		}
	}
	return nil
}

func (h *Head) enterBarrier(a *agentConn, b *pb.BarrierEnter) error {
	done, err := h.passBarrier(a, b)
	if done {
		h.broadcast(&pb.ToAgent{Generation: h.generation(), Kind: &pb.ToAgent_BarrierDone{BarrierDone: &pb.BarrierDone{Seq: b.Seq}}}, 0)
		h.emit(HeadEvent{Node: a.node, Incarnation: a.incarnation, Barrier: b.Seq}, a.watch)
	}
	if err == nil {
		h.abandon(a)
	}
	return err
}

// passBarrier notes that a rank entered, and lets all go if it was the last.
func (h *Head) passBarrier(a *agentConn, b *pb.BarrierEnter) (done bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.ownsLocked(a, b.GetRank()); err != nil {
		return false, err
	}
	done, err = h.barrier.enter(b.Rank, b.Seq)
	if err != nil || !done {
		return false, err
	}
	return true, nil
}
