// Package pmi answers the requests by which MPI programs built with MPICH or its descendants (Intel MPI, MVAPICH) find
// each other: the wire protocol of PMI version 1.1, one line of key=value pairs for each request and answer, over a
// socket whose number the program finds in PMI_FD.
//
// Every rank puts keys into one space, all meet in a barrier, and after it every rank can get every key. Starting
// further processes and publishing names are refused, as PMI lets a process manager do.
package pmi

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
)

// Limits of what a program may say, told to it by get_maxes.
const (
	maxSpaceName = 256
	maxKey       = 64
	maxValue     = 1024
	maxLine      = 4 << 10
	maxPuts      = 1 << 20 // bytes that a rank may put between two barriers
)

// Exchange meets all ranks of the job.
type Exchange interface {
	// Fence gives what this rank has put since the last one to all, and returns when every rank has called it.
	Fence(ctx context.Context, own []byte) error
	// Common gives to each what every rank put before the last fence.
	Common(each func(blob []byte))
}

// Node is what the ranks of one node share: the keys of all ranks.
type Node struct {
	job     string
	size    int
	mapping string

	mu    sync.Mutex
	keys  map[string]string
	round int // fences whose keys are in keys
}

// NewNode makes the space of a job's node; size is the job's ranks, mapping as Mapping makes it.
func NewNode(job string, size int, mapping string) *Node {
	return &Node{job: job, size: size, mapping: mapping, keys: map[string]string{}}
}

// Mapping writes which rank is on which node, given by rank, as PMI_process_mapping: in blocks of (first node, nodes,
// ranks on each); the list is repeated until it has all ranks. It is "" if it would be too long; programs then find out
// by themselves.
func Mapping(nodes []int) string {
	type block struct{ first, nodes, ranks int }
	var blocks []block
	for i := 0; i < len(nodes); {
		j := i
		for j < len(nodes) && nodes[j] == nodes[i] {
			j++
		}
		if last := len(blocks) - 1; last >= 0 && blocks[last].ranks == j-i && blocks[last].first+blocks[last].nodes == nodes[i] {
			blocks[last].nodes++
		} else {
			blocks = append(blocks, block{nodes[i], 1, j - i})
		}
		i = j
	}
	for period := 1; period < len(blocks); period++ {
		repeats := len(blocks)%period == 0
		for i := period; repeats && i < len(blocks); i++ {
			repeats = blocks[i] == blocks[i-period]
		}
		if repeats {
			blocks = blocks[:period]
		}
	}
	var b strings.Builder
	b.WriteString("(vector")
	for _, k := range blocks {
		fmt.Fprintf(&b, ",(%d,%d,%d)", k.first, k.nodes, k.ranks)
	}
	b.WriteString(")")
	if b.Len() >= maxValue {
		return ""
	}
	return b.String()
}

// AbortError is a program's wish to end the whole job, with the status and words that it gave.
type AbortError struct {
	Status  int
	Message string
}

func (e *AbortError) Error() string { return e.Message }

// ErrUnfinished is an MPI program that ended, or closed its end, after MPI_Init without MPI_Finalize. Others may wait for it.
var ErrUnfinished = errors.New("ended without MPI_Finalize, for which the others may wait")

// Serve answers one rank until it closes its end (nil, or ErrUnfinished) or breaks the protocol. exchange is asked for at the first
// request: a rank that makes none is no MPI program and takes part in nothing.
func (n *Node) Serve(ctx context.Context, conn io.ReadWriter, exchange func() (Exchange, error)) error {
	s := &session{node: n, ctx: ctx, out: conn}
	lines := bufio.NewReaderSize(conn, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			if s.begun && !s.finished {
				return ErrUnfinished
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading a PMI request: %w", err)
		}
		if s.exchange == nil {
			if s.exchange, err = exchange(); err != nil {
				return err
			}
		}
		if err := s.handle(strings.TrimSuffix(string(line), "\n")); err != nil {
			return err
		}
	}
}

// session is one rank's.
type session struct {
	node     *Node
	ctx      context.Context
	out      io.Writer
	exchange Exchange
	puts     []byte // encoded, since the last barrier
	round    int
	begun    bool   // init came
	finished bool   // finalize came
	multi    string // the command of a request of several lines, until its end
}

func (s *session) handle(line string) error {
	if s.multi != "" { // of a request that is refused, whatever it says
		if line != "endcmd" {
			return nil
		}
		s.multi = ""
		return s.answer("cmd=spawn_result rc=-1 msg=mkrun_starts_no_further_processes")
	}
	q := parse(line)
	switch q["cmd"] {
	case "init":
		if q["pmi_version"] != "1" {
			return s.answer("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1")
		}
		s.begun = true
		return s.answer("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0")
	case "get_maxes":
		return s.answer("cmd=maxes kvsname_max=%d keylen_max=%d vallen_max=%d", maxSpaceName, maxKey, maxValue)
	case "get_appnum":
		return s.answer("cmd=appnum appnum=0")
	case "get_universe_size":
		return s.answer("cmd=universe_size size=%d", s.node.size)
	case "get_my_kvsname":
		return s.answer("cmd=my_kvsname kvsname=%s", s.node.job)
	case "put":
		return s.put(q)
	case "get":
		return s.get(q)
	case "barrier_in":
		return s.barrier()
	case "finalize":
		s.finished = true
		return s.answer("cmd=finalize_ack")
	case "abort":
		status, err := strconv.Atoi(q["exitcode"])
		if err != nil || status == 0 {
			status = 1
		}
		return &AbortError{status & 0xff, "called MPI_Abort with " + strconv.Itoa(status) + suffix(q["error_msg"])}
	case "publish_name":
		return s.answer("cmd=publish_result rc=-1 msg=not_supported")
	case "unpublish_name":
		return s.answer("cmd=unpublish_result rc=-1 msg=not_supported")
	case "lookup_name":
		return s.answer("cmd=lookup_result rc=-1 msg=not_supported")
	}
	if q["mcmd"] != "" {
		s.multi = q["mcmd"]
		return nil
	}
	return fmt.Errorf("PMI request %.100q is not of version 1.1", line)
}

func suffix(message string) string {
	if message == "" {
		return ""
	}
	return ": " + message
}

// parse reads key=value pairs between blanks; neither may have blanks in it.
func parse(line string) map[string]string {
	pairs := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(word, "=")
		pairs[key] = value
	}
	return pairs
}

func (s *session) answer(format string, args ...any) error {
	if _, err := fmt.Fprintf(s.out, format+"\n", args...); err != nil {
		return fmt.Errorf("answering a PMI request: %w", err)
	}
	return nil
}

func (s *session) put(q map[string]string) error {
	key, value := q["key"], q["value"]
	switch {
	case q["kvsname"] != s.node.job:
		return s.answer("cmd=put_result rc=-1 msg=kvs_%s_not_found", q["kvsname"])
	case key == "" || len(key) > maxKey || len(value) > maxValue:
		return s.answer("cmd=put_result rc=-1 msg=key_or_value_too_long")
	case len(s.puts)+len(key)+len(value) > maxPuts:
		return s.answer("cmd=put_result rc=-1 msg=too_much_before_a_barrier")
	}
	s.puts = appendText(appendText(s.puts, key), value)
	return s.answer("cmd=put_result rc=0 msg=success")
}

func (s *session) get(q map[string]string) error {
	if q["kvsname"] != s.node.job {
		return s.answer("cmd=get_result rc=-1 msg=kvs_%s_not_found", q["kvsname"])
	}
	value, found := s.node.lookup(q["key"])
	if !found {
		return s.answer("cmd=get_result rc=-1 msg=key_%s_not_found", q["key"])
	}
	return s.answer("cmd=get_result rc=0 msg=success value=%s", value)
}

func (s *session) barrier() error {
	if err := s.exchange.Fence(s.ctx, s.puts); err != nil {
		return err
	}
	s.puts = nil
	s.round++
	if err := s.node.merge(s.round, s.exchange); err != nil {
		return err
	}
	return s.answer("cmd=barrier_out")
}

func (n *Node) lookup(key string) (string, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if key == "PMI_process_mapping" {
		return n.mapping, n.mapping != ""
	}
	value, found := n.keys[key]
	return value, found
}

// merge adds what all ranks have put in a round, once for all of the node's.
func (n *Node) merge(round int, x Exchange) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.round >= round {
		return nil
	}
	n.round = round
	var bad error
	x.Common(func(blob []byte) {
		for len(blob) > 0 && bad == nil {
			var key, value string
			var ok, ok2 bool
			key, blob, ok = cutText(blob)
			value, blob, ok2 = cutText(blob)
			if !ok || !ok2 {
				bad = errors.New("what another node's ranks put cannot be read")
				return
			}
			n.keys[key] = value
		}
	})
	return bad
}

func appendText(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

func cutText(b []byte) (text string, rest []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return "", nil, false
	}
	return string(b[n : n+int(size)]), b[n+int(size):], true
}
