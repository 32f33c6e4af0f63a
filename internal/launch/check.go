package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mkrun/mkrun/internal/doctor"
	"github.com/mkrun/mkrun/internal/keeper"
	"github.com/mkrun/mkrun/internal/ports"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
)

// checkRequest is what a node is asked before any rank is started: first to look at itself and to open a port, then to
// send packets to the ports of others.
type checkRequest struct {
	Look *checkLook   `json:"look,omitempty"`
	Echo []echoTarget `json:"echo,omitempty"`
}

type checkLook struct {
	Ports   ports.Range `json:"ports"`          // to take packets on
	Argv    []text      `json:"argv,omitempty"` // of the ranks; none for operators
	Env     []text      `json:"env"`
	Dir     text        `json:"dir"`
	Output  text        `json:"output,omitempty"` // --output-dir
	Address string      `json:"address"`          // of the node
	Nonce   []byte      `json:"nonce"`            // that packets begin with
	Ranks   int         `json:"ranks"`            // of the node
	Visible string      `json:"visible"`          // their CUDA_VISIBLE_DEVICES, as far as the job sets it
	Session bool        `json:"session"`          // they are an operator's
}

type echoTarget struct {
	Node    int    `json:"node"`
	Address string `json:"address"` // host:port
}

// checkReport is a node's answer.
type checkReport struct {
	Findings []doctor.Finding `json:"findings,omitempty"`
	Driver   string           `json:"driver,omitempty"`
	GPUs     []string         `json:"gpus,omitempty"`    // their names
	Machine  []byte           `json:"machine,omitempty"` // its topology, packed
	Echo     string           `json:"echo,omitempty"`    // where packets are sent back, host:port
	Echoes   []echoResult     `json:"echoes,omitempty"`
}

type echoResult struct {
	Node int     `json:"node"`
	MS   float64 `json:"ms"`            // there and back
	Why  string  `json:"why,omitempty"` // nothing came back
}

const (
	nonceSize  = 16
	echoTries  = 5
	echoWait   = 200 * time.Millisecond // before the next try,
	echoLast   = time.Second            // and after the last: a busy machine sends back late what it will
	echoAtOnce = 16
)

// checkFree is what a folder for output should have left; a full one costs files, not the job. Tests ask for more than there is.
var checkFree uint64 = 64 << 20

// checkHere finds what would keep ranks of this host from being started, before any agent is; what may only cost output is told.
func (j *Job) checkHere(tell func(string)) error {
	if err := j.checkOpenFiles(); err != nil {
		return err
	}
	for node, h := range j.Hosts {
		if h.remote() {
			continue
		}
		if info, err := os.Stat(j.Dir); err != nil || !info.IsDir() {
			return fmt.Errorf("%s (node %d): there is no working directory %q", h.Name, node, j.Dir)
		}
		if j.OutputDir != "" {
			var few *fewBytesError
			if err := checkWritable(j.OutputDir); errors.As(err, &few) && !j.Preflight {
				tell(fmt.Sprintf("%s (node %d): %v; when they are used up, files end there and the job goes on", h.Name, node, few))
			} else if err != nil {
				return fmt.Errorf("%s (node %d): %w", h.Name, node, err)
			}
		}
		return nil
	}
	return nil
}

// checker is an agent's part in the checks.
type checker struct {
	nonce []byte
	port  net.PacketConn
}

// answer does what a Preflight asks.
func (c *checker) answer(ctx context.Context, m *pb.Preflight, inherit bool) ([]byte, error) {
	var q checkRequest
	if err := json.Unmarshal(m.GetJson(), &q); err != nil {
		return nil, fmt.Errorf("the parent broke the protocol: checks that cannot be read: %w", err)
	}
	var r checkReport
	if q.Look != nil {
		r = c.look(ctx, q.Look, inherit)
	}
	r.Echoes = c.echo(ctx, q.Echo)
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encoding what the checks found: %w", err)
	}
	return text, nil
}

// look examines this node.
func (c *checker) look(ctx context.Context, q *checkLook, inherit bool) checkReport {
	var r checkReport
	bad := func(code string, severity doctor.Severity, action, format string, args ...any) {
		r.Findings = append(r.Findings, doctor.Finding{Code: code, Severity: severity, Text: fmt.Sprintf(format, args...), Action: action})
	}
	if err := keeper.RaiseLimits(); err != nil { // as the ranks will have it
		bad("limit-memlock", doctor.Warn, "", "%v", err)
	}
	seen := doctor.Look(ctx)
	for _, f := range seen.Findings {
		if f.Code == "limit-nofile" { // this process's own was raised by the Go runtime
			f = filesOfRanks(ctx)
		}
		if f.Code == "gpu" && f.Severity == doctor.Warn && !gpuOnBus(pciDevices) {
			f.Severity, f.Text, f.Action = doctor.OK, "no NVIDIA GPU", ""
		}
		r.Findings = append(r.Findings, f)
	}
	r.Driver = seen.Driver
	for _, g := range seen.GPUs {
		r.GPUs = append(r.GPUs, g.Name)
	}
	env, dir := convert[string](q.Env), string(q.Dir)
	if inherit {
		env = overlay(BaseEnv(os.Environ()), env)
		if q.Visible == "" {
			q.Visible = lookupEnv(env, visibleDevices)
		}
	}
	machine, err := look(ctx)
	if err == nil {
		r.Findings = append(r.Findings, heldGPUs(machine, q)...)
		r.Machine, err = machine.Pack()
	}
	if err != nil {
		bad("topology", doctor.Warn, "", "not compared with the other nodes: %v", err)
	}
	if len(q.Argv) > 0 {
		if err := keeper.CheckProgram(convert[string](q.Argv), env, dir); err != nil {
			bad("program", doctor.Fail, "", "%v", err)
		}
	} else if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		bad("wdir", doctor.Fail, "make it, or name another with --wdir", "there is no working directory %q", dir)
	}
	if q.Output != "" {
		if err := checkWritable(string(q.Output)); err != nil {
			bad("output-dir", doctor.Fail, "name another folder with --output-dir, or make room", "%v", err)
		}
	}
	var conn net.PacketConn
	err = q.Ports.Try(func(port int) (err error) {
		conn, err = new(net.ListenConfig).ListenPacket(ctx, "udp", net.JoinHostPort(q.Address, strconv.Itoa(port)))
		return err
	})
	if err != nil {
		bad("udp", doctor.Warn, "", "no UDP port can be opened: %v", err)
		return r
	}
	c.nonce, c.port, r.Echo = q.Nonce, conn, conn.LocalAddr().String()
	go sendBack(conn, q.Nonce)
	return r
}

// fewFiles is a limit of open files that a rank with many peers and threads of input reaches.
const fewFiles = 1024

// filesOfRanks looks at the limit of open files that ranks will have, which a child of this process has.
func filesOfRanks(ctx context.Context) doctor.Finding {
	out, err := exec.CommandContext(ctx, "/bin/sh", "-c", "ulimit -Sn; ulimit -Hn").Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) != 2 {
		return doctor.Finding{Code: "limit-nofile", Severity: doctor.Warn, Text: "the limit of open files could not be asked for"}
	}
	f := doctor.Finding{Code: "limit-nofile", Severity: doctor.OK, Text: "ranks may open " + fields[0] + " files"}
	if n, err := strconv.Atoi(fields[0]); err == nil && n < fewFiles {
		f.Severity = doctor.Warn
		f.Action = fmt.Sprintf("%s; the hard limit is %s", keeper.FilesAdvice(fewFiles), fields[1])
	}
	return f
}

// pciDevices is where the kernel lists what is on the PCI bus.
const pciDevices = "/sys/bus/pci/devices"

// gpuOnBus reports whether the machine has an NVIDIA GPU at all, whatever its driver says.
func gpuOnBus(devices string) bool {
	const nvidia, display = "0x10de", "0x03" // vendor; class of display controllers, 3D ones included
	vendors, _ := filepath.Glob(filepath.Join(devices, "*", "vendor"))
	for _, v := range vendors {
		vendor, err := os.ReadFile(v)
		class, err2 := os.ReadFile(filepath.Join(filepath.Dir(v), "class"))
		if err == nil && err2 == nil && strings.TrimSpace(string(vendor)) == nvidia && strings.HasPrefix(string(class), display) {
			return true
		}
	}
	return false
}

// checkWritable reports why no files can be written in a folder, which may have to be made; a *fewBytesError if not many bytes.
func checkWritable(dir string) error {
	there := dir
	for {
		if _, err := os.Stat(there); err == nil || there == filepath.Dir(there) {
			break
		}
		there = filepath.Dir(there)
	}
	if info, err := os.Stat(there); err != nil || !info.IsDir() {
		return fmt.Errorf("--output-dir %s: %s is no folder", dir, there)
	}
	if err := unix.Access(there, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("--output-dir %s: %s cannot be written: %w", dir, there, err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(there, &fs); err != nil {
		return fmt.Errorf("--output-dir %s: asking for the space in %s: %w", dir, there, err)
	}
	if fs.Blocks == 0 { // it counts none: memory without a limit, or something like /proc, where root may write everything
		return checkMakesFiles(dir, there)
	}
	if fs.Bavail*uint64(fs.Bsize) < checkFree {
		return &fewBytesError{dir, fs.Bavail * uint64(fs.Bsize)}
	}
	return nil
}

// fewBytesError says that an output directory can be written, but has not much room.
type fewBytesError struct {
	dir   string
	bytes uint64
}

func (e *fewBytesError) Error() string {
	return fmt.Sprintf("--output-dir %s: only %d KiB are free there (%d MiB or more are asked for)", e.dir, e.bytes>>10, checkFree>>20)
}

// checkMakesFiles reports whether something can be made in a folder, for an output directory.
func checkMakesFiles(dir, there string) error {
	probe, err := os.MkdirTemp(there, ".mkrun-*")
	if err != nil {
		return fmt.Errorf("--output-dir %s: no files can be made in %s: %w", dir, there, err)
	}
	if err := os.Remove(probe); err != nil {
		return fmt.Errorf("--output-dir %s: %w", dir, err)
	}
	return nil
}

// sendBack returns packets of the job's own checks to where they came from, until the port is closed.
func sendBack(conn net.PacketConn, nonce []byte) {
	packet := make([]byte, 64)
	for {
		n, from, err := conn.ReadFrom(packet)
		if err != nil {
			return
		}
		if n == len(nonce)+1 && slices.Equal(packet[:len(nonce)], nonce) {
			_, _ = conn.WriteTo(packet[:n], from) // the sender tries again
		}
	}
}

// echo sends packets to other nodes and waits for them to come back.
func (c *checker) echo(ctx context.Context, targets []echoTarget) []echoResult {
	results := make([]echoResult, len(targets))
	slots := make(chan struct{}, echoAtOnce)
	done := make(chan struct{})
	for i, target := range targets {
		go func() {
			slots <- struct{}{}
			results[i] = c.echoOne(ctx, target)
			<-slots
			done <- struct{}{}
		}()
	}
	for range targets {
		<-done
	}
	return results
}

func (c *checker) echoOne(ctx context.Context, target echoTarget) echoResult {
	r := echoResult{Node: target.Node}
	conn, err := new(net.Dialer).DialContext(ctx, "udp", target.Address)
	if err != nil {
		r.Why = err.Error()
		return r
	}
	defer func() { _ = conn.Close() }()
	back := make([]byte, 64)
	var sent [echoTries]time.Time
	for try := range sent {
		sent[try] = time.Now()
		if _, err := conn.Write(append(slices.Clone(c.nonce), byte(try))); err != nil {
			r.Why = err.Error()
		}
		wait := echoWait
		if try == echoTries-1 {
			wait = echoLast
		}
		_ = conn.SetReadDeadline(sent[try].Add(wait))
		for {
			n, err := conn.Read(back)
			if err != nil {
				break
			}
			if last := n - 1; last == len(c.nonce) && slices.Equal(back[:last], c.nonce) && int(back[last]) <= try { // also an earlier one
				return echoResult{Node: target.Node, MS: float64(time.Since(sent[back[last]]).Microseconds()) / 1000}
			}
		}
	}
	if r.Why == "" {
		r.Why = fmt.Sprintf("none of %d packets came back within %v", echoTries, time.Since(sent[0]).Round(100*time.Millisecond))
	}
	return r
}

// close ends the sending back.
func (c *checker) close() {
	if c.port != nil {
		_ = c.port.Close()
	}
}
