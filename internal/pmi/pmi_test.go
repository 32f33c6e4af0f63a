package pmi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/mkrun/mkrun/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestMapping(t *testing.T) {
	cyclic := make([]int, 4096) // ranks 0 .. 4095 over 64 nodes in turns
	for rank := range cyclic {
		cyclic[rank] = rank % 64
	}
	uneven := make([]int, 0, 5000) // nodes with one and two ranks in no order that repeats
	for node := range 2000 {
		uneven = append(uneven, node)
		if node*node%7 < 3 {
			uneven = append(uneven, node)
		}
	}
	for _, tt := range []struct {
		nodes []int
		want  string
	}{
		{[]int{0}, "(vector,(0,1,1))"},
		{[]int{0, 0, 1, 1, 2, 2}, "(vector,(0,3,2))"},
		{[]int{0, 0, 1}, "(vector,(0,1,2),(1,1,1))"},
		{[]int{0, 1, 0, 1, 0, 1}, "(vector,(0,2,1))"},
		{[]int{0, 1, 2, 0, 1}, "(vector,(0,3,1),(0,2,1))"},
		{[]int{1, 1, 0, 0}, "(vector,(1,1,2),(0,1,2))"},
		{cyclic, "(vector,(0,64,1))"},
		{uneven, ""},
	} {
		if got := Mapping(tt.nodes); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.nodes, got, tt.want)
		}
	}
}

// meeting joins ranks in one process.
type meeting struct {
	mu   sync.Mutex
	cond *sync.Cond
	size int
	in   [][]byte
	done map[int][][]byte // by round
}

func newMeeting(size int) *meeting {
	m := &meeting{size: size, done: map[int][][]byte{}}
	m.cond = sync.NewCond(&m.mu)
	return m
}

type member struct {
	m     *meeting
	round int
}

func (x *member) Fence(_ context.Context, own []byte) error {
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	x.round++
	if x.m.in = append(x.m.in, own); len(x.m.in) == x.m.size {
		x.m.done[x.round], x.m.in = x.m.in, nil
		x.m.cond.Broadcast()
	}
	for x.m.done[x.round] == nil {
		x.m.cond.Wait()
	}
	return nil
}

func (x *member) Common(each func([]byte)) {
	for _, blob := range x.m.done[x.round] {
		each(blob)
	}
}

// client is a program's end.
type client struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Reader
}

func (c client) ask(request, want string) {
	c.t.Helper()
	if _, err := fmt.Fprintln(c.conn, request); err != nil {
		c.t.Error(err)
		return
	}
	if answer, err := c.lines.ReadString('\n'); err != nil || strings.TrimSuffix(answer, "\n") != want {
		c.t.Errorf("%s: %q, %v; want %q", request, answer, err, want)
	}
}

// serve starts a rank's session and returns its program's end, and what Serve returns.
func serve(t *testing.T, n *Node, x Exchange) (client, <-chan error) {
	t.Helper()
	theirs, ours := net.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- n.Serve(t.Context(), ours, func() (Exchange, error) { return x, nil })
		_ = ours.Close()
	}()
	t.Cleanup(func() { _ = theirs.Close() })
	return client{t, theirs, bufio.NewReader(theirs)}, done
}

func TestKeysOfAllRanksAfterABarrier(t *testing.T) {
	const ranks = 5
	m := newMeeting(ranks)
	nodes := []*Node{NewNode("job", ranks, "(vector,(0,1,3),(1,1,2))"), NewNode("job", ranks, "(vector,(0,1,3),(1,1,2))")}
	var wg sync.WaitGroup
	for rank := range ranks {
		c, done := serve(t, nodes[rank/3], &member{m: m})
		wg.Go(func() {
			c.ask("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
			c.ask("cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024")
			c.ask("cmd=get_my_kvsname", "cmd=my_kvsname kvsname=job")
			c.ask("cmd=get_universe_size", "cmd=universe_size size=5")
			c.ask("cmd=get kvsname=job key=PMI_process_mapping", "cmd=get_result rc=0 msg=success value=(vector,(0,1,3),(1,1,2))")
			for round := range 3 {
				c.ask(fmt.Sprintf("cmd=put kvsname=job key=r%d-%d value=v%d=x", round, rank, rank*10), "cmd=put_result rc=0 msg=success")
				c.ask("cmd=barrier_in", "cmd=barrier_out")
				for of := range ranks {
					c.ask(fmt.Sprintf("cmd=get kvsname=job key=r%d-%d", round, of), fmt.Sprintf("cmd=get_result rc=0 msg=success value=v%d=x", of*10))
				}
			}
			c.ask("cmd=get kvsname=job key=none", "cmd=get_result rc=-1 msg=key_none_not_found")
			c.ask("cmd=finalize", "cmd=finalize_ack")
			_ = c.conn.Close()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestRefused(t *testing.T) {
	c, done := serve(t, NewNode("job", 1, ""), &member{m: newMeeting(1)})
	c.ask("cmd=init pmi_version=2 pmi_subversion=0", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1")
	c.ask("cmd=put kvsname=other key=a value=b", "cmd=put_result rc=-1 msg=kvs_other_not_found")
	c.ask("cmd=put kvsname=job key="+strings.Repeat("k", 65)+" value=b", "cmd=put_result rc=-1 msg=key_or_value_too_long")
	c.ask("cmd=put kvsname=job key=k value="+strings.Repeat("v", 1025), "cmd=put_result rc=-1 msg=key_or_value_too_long")
	c.ask("cmd=get kvsname=job key=PMI_process_mapping", "cmd=get_result rc=-1 msg=key_PMI_process_mapping_not_found")
	c.ask("cmd=publish_name service=s port=p", "cmd=publish_result rc=-1 msg=not_supported")
	c.ask("mcmd=spawn\nnprocs=1\nexecname=x\nendcmd", "cmd=spawn_result rc=-1 msg=mkrun_starts_no_further_processes")
	if _, err := fmt.Fprintln(c.conn, "cmd=abort exitcode=7"); err != nil {
		t.Fatal(err)
	}
	var abort *AbortError
	if err := <-done; !errors.As(err, &abort) || abort.Status != 7 || !strings.Contains(abort.Error(), "MPI_Abort with 7") {
		t.Errorf("%v, want an abort with status 7", err)
	}
}

func FuzzRequests(f *testing.F) {
	f.Add("cmd=init pmi_version=1 pmi_subversion=1\ncmd=put kvsname=job key=a value=b\ncmd=barrier_in\ncmd=get kvsname=job key=a\n")
	f.Add("mcmd=spawn\nendcmd\ncmd=abort exitcode=-1\n")
	f.Add(strings.Repeat("x", maxLine+1))
	f.Fuzz(func(t *testing.T, text string) {
		n := NewNode("job", 1, "")
		err := n.Serve(t.Context(), readWriter{strings.NewReader(text), &strings.Builder{}}, func() (Exchange, error) { return &member{m: newMeeting(1)}, nil })
		if err == nil && strings.Contains(text, "cmd=abort\n") && !strings.Contains(text, "mcmd=") {
			t.Error("an abort was not seen")
		}
	})
}

type readWriter struct {
	*strings.Reader
	out *strings.Builder
}

func (rw readWriter) Write(p []byte) (int, error) { return rw.out.Write(p) }
