package rendezvous

import (
	"bytes"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"time"
)

// Strangers who send garbage, too much, or nothing to gossip's ports cost little and stop nobody: what does not begin
// with the job's label is not read on.
func TestHostileBytes(t *testing.T) {
	g := start(t, config(0, 2))
	noise := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(noise)
	attacks := map[string][]byte{
		"noise": noise, "zeros": make([]byte, 1<<20), "one byte": {9}, "nothing": nil,
		"encrypted state of 16 MiB": append([]byte{10, 1, 0, 0, 0}, noise...),
		"another job's label":       append([]byte("\x0c\x05other\x0a\x01\x00\x00\x00"), noise...),
		"a label without an end":    append([]byte{12, 255}, noise[:100]...),
		"state in the clear":        append([]byte{6, 0x83}, noise...),
		"compressed":                append([]byte{9}, bytes.Repeat([]byte{0}, 1<<19)...),
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	const each = 8
	var open []net.Conn
	for name, data := range attacks {
		for range each {
			conn, err := net.Dial("tcp", g.Address())
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			open = append(open, conn)
			_ = conn.SetWriteDeadline(time.Now().Add(2 * time.Second))
			_, _ = conn.Write(data)
		}
		udp, err := net.Dial("udp", g.Address())
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			_, _ = udp.Write(data[:min(len(data), 1400)])
		}
		_ = udp.Close()
	}
	other := start(t, config(1, 2)) // a member still gets in
	if _, err := other.Join(t.Context(), []string{g.Address()}); err != nil {
		t.Error(err)
	}
	until(t, g, "node 1", sees(1, true))
	grown := heap() - before
	for range 20 { // memberlist reads each packet into 64 KiB of its own, which are garbage at once: what stays counts
		grown = min(grown, heap()-before)
	}
	runtime.KeepAlive(attacks)
	if most := int64(len(open)) * 32 << 10; grown > most {
		t.Errorf("%d strangers hold %d KiB; the most is %d", len(open), grown>>10, most>>10)
	} else {
		t.Logf("%d strangers hold %d KiB", len(open), grown>>10)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
}
