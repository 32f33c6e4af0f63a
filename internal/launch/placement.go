package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mkrun/mkrun/internal/count"
	"github.com/mkrun/mkrun/internal/keeper"
	pb "github.com/mkrun/mkrun/internal/session/sessionpb"
	"github.com/mkrun/mkrun/internal/topology"
)

// The values of --bind: to which CPUs ranks are bound.
const (
	BindAuto = "auto" // to those near its GPU, on nodes with GPUs; else not
	BindNone = "none"
	BindNUMA = "numa" // to the NUMA node of its GPU; without GPUs the ranks are spread over the NUMA nodes
	BindCore = "core" // as numa, and ranks of one NUMA node share its cores out
)

// Binds are the values of --bind.
var Binds = []string{BindAuto, BindNone, BindNUMA, BindCore}

// ParseBind checks a value of --bind.
func ParseBind(s string) (string, error) {
	if !slices.Contains(Binds, s) {
		return "", fmt.Errorf("--bind %s: known are %s", s, strings.Join(Binds, ", "))
	}
	return s, nil
}

// CheckGPUs refuses a value of --gpus that names GPUs in no form that CUDA knows, or that no program could use.
func CheckGPUs(list string, isolate bool) error {
	if list == "" {
		return nil
	}
	instances := 0
	for part := range strings.SplitSeq(list, ",") {
		part = strings.TrimSpace(part)
		if n, err := strconv.Atoi(part); err == nil && n >= 0 {
			continue
		}
		if strings.HasPrefix(part, "MIG-") {
			instances++
		} else if !strings.HasPrefix(part, "GPU-") {
			return fmt.Errorf("--gpus %s: %q is neither a number nor a UUID that begins with GPU- or MIG-", list, part)
		}
	}
	if instances > 1 && !isolate {
		return fmt.Errorf("--gpus %s: a process can use only one MIG instance; --gpu-isolate gives each rank its own", list)
	}
	return nil
}

// lookLimit bounds how long a node may look at itself: a driver that hangs must not hang the job.
const lookLimit = 15 * time.Second

// gpuFiles are there where an NVIDIA driver has found GPUs.
const gpuFiles = "/dev/nvidia[0-9]*"

// hasGPUs reports whether it is worth asking the driver.
func hasGPUs() bool {
	found, err := filepath.Glob(gpuFiles)
	return err == nil && len(found) > 0
}

// look describes this node.
func look(ctx context.Context) (*topology.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	type result struct {
		node *topology.Node
		err  error
	}
	done := make(chan result, 1)
	go func() {
		node, err := topology.Live(ctx, topology.LiveOptions{})
		done <- result{node, err}
	}()
	select {
	case r := <-done:
		return r.node, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the node did not describe itself within %v", lookLimit)
	}
}

// looks reports whether the places of ranks depend on what the node is.
func looks(bind string, gpusAsked bool) bool {
	switch bind {
	case "", BindNone:
		return gpusAsked
	case BindAuto:
		return gpusAsked || hasGPUs()
	}
	return true
}

// seat is where a rank goes.
type seat struct {
	cpus    topology.CPUSet // none: not bound
	gpu     string          // as CUDA names it; "": none
	why     string
	visible string // to be its CUDA_VISIBLE_DEVICES, with --gpu-isolate
	nics    []string
	nicRule string          // why these
	rdma    []string        // their names as RDMA devices
	rails   []int32         // their numbers; nil: not known
	proxy   topology.CPUSet // where the thread that drives them runs; none: anywhere
}

// place finds GPUs and CPUs for the ranks of this node, and puts them into their specifications. Binding is best effort:
// what cannot be done is said in a notice. GPUs that were asked for and are not there are an error.
func (c *crew) place(ranks []keeper.RankSpec) error {
	start := c.start
	asked := start.GetGpus() != "" || start.GetGpuIsolate()
	binds, wantsNICs := looks(start.GetBind(), asked), c.wantsNICs()
	if !binds && !wantsNICs {
		return nil
	}
	node, err := c.look()
	if err != nil {
		if asked {
			return err
		}
		if !binds {
			c.notice(fmt.Sprintf("which NICs are near the ranks is not known: %v", err))
			return nil
		}
		c.notice(fmt.Sprintf("ranks are not bound: %v", err))
		return nil
	}
	visible := make([]string, len(ranks))
	sessions := make([]bool, len(ranks))
	for i, r := range ranks {
		visible[i] = lookupEnv(r.Env, visibleDevices)
		sessions[i] = start.GetRanks()[i].GetSession()
	}
	seats, notices, err := seatRanks(node, start, visible, sessions)
	if err != nil {
		return err
	}
	c.seats = seats
	c.server.TellNetworks(networks(start, seats))
	for i, s := range seats {
		ranks[i].CPUs = s.cpus
		if len(s.nics) > 0 {
			ranks[i].Env = overlay(ranks[i].Env, []string{EnvNICs + "=" + strings.Join(s.nics, ",")})
		}
		if s.visible != "" {
			ranks[i].Env = overlay(ranks[i].Env, []string{visibleDevices + "=" + s.visible})
		}
	}
	for _, n := range notices {
		c.notice(n)
	}
	for _, h := range holdersOf(node, seats, procFiles) {
		c.notice(h.text() + ": " + h.action())
	}
	return nil
}

// seatRanks decides where the ranks of a node go; visible are their CUDA_VISIBLE_DEVICES, sessions tells operators'
// ranks, which find their GPUs themselves, from programs that take the GPU with the number of their local rank.
func seatRanks(node *topology.Node, start *pb.Start, visible []string, sessions []bool) ([]seat, []string, error) {
	seats := make([]seat, len(visible))
	var notices []string
	groups := map[string][]int{}
	var order []string
	for i, v := range visible {
		if v == "" && !sessions[i] {
			v = allGPUs(node)
		}
		if groups[v] == nil {
			order = append(order, v)
		}
		groups[v] = append(groups[v], i)
	}
	eval := topology.NewEval(node)
	for _, v := range order {
		places, err := placesOf(eval, start, groups[v], v)
		if err != nil {
			if start.GetGpus() != "" || start.GetGpuIsolate() {
				return nil, nil, err
			}
			notices = append(notices, fmt.Sprintf("ranks are not bound: %v", err))
			continue
		}
		for k, i := range groups[v] {
			p := places[k]
			s := &seats[i]
			s.gpu, s.why = p.Device, p.Bind
			s.nicsOf(node, &p)
			if p.GPU < 0 {
				s.gpu = ""
			}
			if start.GetGpuIsolate() {
				if s.gpu == "" {
					return nil, nil, errors.New("--gpu-isolate: this node has no GPU to give to a rank")
				}
				s.visible = s.gpu
			}
			switch b := start.GetBind(); {
			case b == BindNUMA, b == BindCore, b == BindAuto && p.GPU >= 0:
				if s.cpus, err = topology.ParseCPUList(p.CPUs); err != nil || len(s.cpus) == 0 {
					notices = append(notices, fmt.Sprintf("local rank %d is not bound: %s", start.GetRanks()[i].GetLocalRank(), p.Bind))
				}
			default:
				s.why = "not bound"
			}
		}
	}
	if start.GetBind() == BindCore {
		notices = append(notices, shareCores(seats, siblings)...)
	}
	if devices := start.GetNetDevices(); devices != "" {
		for i := range seats {
			seats[i].nicsNamed(node, devices)
		}
	}
	placeProxies(eval, seats)
	return seats, notices, nil
}

// placesOf are the places of the ranks (numbers within start) that see the same GPUs. Those for which a GPU was chosen
// have that one, the others that of their place among them.
func placesOf(eval *topology.Eval, start *pb.Start, ranks []int, visible string) ([]topology.RankPlace, error) {
	chosen := 0
	for _, i := range ranks {
		chosen = max(chosen, int(start.GetRanks()[i].GetGpu()))
	}
	if chosen == 0 {
		return eval.LocalPlaces(len(ranks), visible)
	}
	byGPU, err := eval.LocalPlaces(strings.Count(visible, ",")+1, visible)
	if err != nil {
		return nil, err
	}
	places := make([]topology.RankPlace, len(ranks))
	for k, i := range ranks {
		gpu := int(start.GetRanks()[i].GetGpu())
		if gpu == 0 || gpu > len(byGPU) {
			return nil, fmt.Errorf("rank %d has GPU %d of %d", start.GetRanks()[i].GetRank(), gpu-1, len(byGPU))
		}
		places[k] = byGPU[gpu-1]
	}
	return places, nil
}

// CountGPUs is how many GPUs, or MIG instances, programs see on this machine, of those that list names as --gpus does;
// "" stands for CUDA_VISIBLE_DEVICES.
func CountGPUs(ctx context.Context, list string) (int, error) {
	node, err := look(ctx)
	if err != nil {
		return 0, err
	}
	return countGPUs(node, list, os.Getenv(visibleDevices))
}

func countGPUs(node *topology.Node, list, visible string) (int, error) {
	if list == "" {
		list = visible
	}
	if list == "" {
		list = allGPUs(node)
	}
	order, problem := topology.ResolveVisible(list, node.GPUs)
	switch {
	case problem != "":
		return 0, errors.New(problem)
	case len(order) == 0:
		return 0, errors.New("this machine has no GPU that may be used")
	}
	return len(order), nil
}

// allGPUs names the GPUs that programs see without CUDA_VISIBLE_DEVICES, in their order there; "-1" if there are none.
func allGPUs(node *topology.Node) string {
	var numbers []string
	for _, g := range node.GPUs {
		if !g.Hidden {
			numbers = append(numbers, strconv.Itoa(g.Index))
		}
	}
	if numbers == nil {
		return "-1"
	}
	return strings.Join(numbers, ",")
}

// shareCores gives each of the ranks that were to share CPUs its own part of their cores.
func shareCores(seats []seat, siblings func(cpu int) topology.CPUSet) (notices []string) {
	groups := map[string][]int{}
	for i, s := range seats {
		if len(s.cpus) > 0 {
			groups[s.cpus.String()] = append(groups[s.cpus.String()], i)
		}
	}
	for list, members := range groups {
		cores := coresOf(seats[members[0]].cpus, siblings)
		if len(cores) < len(members) {
			notices = append(notices, fmt.Sprintf("%d ranks on CPUs %s with %s: each may use all of them", len(members), list, count.Of(len(cores), "core")))
			continue
		}
		for k, i := range members {
			own := cores[k*len(cores)/len(members) : (k+1)*len(cores)/len(members)]
			seats[i].cpus = slices.Sorted(slices.Values(slices.Concat(own...)))
			seats[i].why += fmt.Sprintf(", %d of their %s", len(own), count.Of(len(cores), "core"))
		}
	}
	slices.Sort(notices)
	return notices
}

// coresOf groups CPUs that are threads of one core.
func coresOf(cpus topology.CPUSet, siblings func(cpu int) topology.CPUSet) []topology.CPUSet {
	var cores []topology.CPUSet
	seen := map[int]bool{}
	for _, cpu := range cpus {
		if seen[cpu] {
			continue
		}
		seen[cpu] = true
		core := topology.CPUSet{cpu}
		for _, other := range siblings(cpu) {
			if !seen[other] && slices.Contains(cpus, other) {
				seen[other] = true
				core = append(core, other)
			}
		}
		cores = append(cores, core)
	}
	return cores
}

// siblings are the threads of a CPU's core.
func siblings(cpu int) topology.CPUSet {
	data, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	if err != nil {
		return topology.CPUSet{cpu}
	}
	set, err := topology.ParseCPUList(string(data))
	if err != nil {
		return topology.CPUSet{cpu}
	}
	return set
}

// lookupEnv is the value of a name, of several settings the last; "" if there is none.
func lookupEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return ""
}

// text says where a rank was put.
func (s seat) text() string {
	var words []string
	if len(s.cpus) > 0 {
		words = append(words, "CPUs "+s.cpus.String()+" ("+s.why+")")
	} else {
		words = append(words, "not bound to CPUs")
	}
	if s.gpu != "" {
		words = append(words, "GPU "+s.gpu)
	}
	if len(s.nics) > 0 {
		words = append(words, nicText(s.nics, s.nicRule, s.proxy.String()))
	}
	return strings.Join(words, ", ")
}
