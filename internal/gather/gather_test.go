package gather

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"strings"
	"testing"

	"github.com/mkrun/mkrun/internal/launch"
	"github.com/mkrun/mkrun/internal/topology"
)

func TestDescribeAndNodes(t *testing.T) {
	job := &launch.Job{Hosts: []launch.Host{{Name: "a"}, {Name: "b"}, {Name: "a"}}}
	if err := Prepare(job, Request{Options: topology.LiveOptions{NoNVML: true}}); err != nil {
		t.Fatal(err)
	}
	record, err := Describe(t.Context(), job.Run, launch.Place{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := Nodes(job, [][]byte{record, record, record})
	if err != nil {
		t.Fatal(err)
	}
	here, err := topology.Live(t.Context(), topology.LiveOptions{NoNVML: true})
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"a", "b", "a#2"} {
		if nodes[i].Host != name {
			t.Errorf("node %d is called %s, want %s", i, nodes[i].Host, name)
		}
		nodes[i].Host = here.Host
		got, want := asJSON(t, nodes[i]), asJSON(t, here)
		if got != want {
			t.Errorf("node %d came as\n%s\nand was\n%s", i, got, want)
		}
	}
}

func asJSON(t *testing.T, n *topology.Node) string {
	t.Helper()
	b, err := json.Marshal(n)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestNodesRefuses(t *testing.T) {
	packed := func(text string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		if _, err := z.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	job := &launch.Job{Hosts: []launch.Host{{Name: "far"}}}
	for name, tt := range map[string]struct {
		reports [][]byte
		want    string
	}{
		"none":         {nil, "0 reports of 1 nodes"},
		"empty":        {[][]byte{nil}, "far"},
		"no gzip":      {[][]byte{[]byte("{}")}, "far"},
		"no JSON":      {[][]byte{packed("hello")}, "far"},
		"bad pointers": {[][]byte{packed(`{"gpus":[{"pci":7}]}`)}, "pci 7 is not an entry"},
		"a bomb":       {[][]byte{packed(strings.Repeat(" ", 64<<20+1))}, "too long"},
	} {
		if nodes, err := Nodes(job, tt.reports); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %v; want %q", name, nodes, err, tt.want)
		}
	}
	if _, err := Describe(t.Context(), []byte("x"), launch.Place{}, nil); err == nil {
		t.Error("a request that cannot be read was answered")
	}
}
