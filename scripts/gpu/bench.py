"""Times ag_gemm and the plain GEMM against what a PyTorch user would call, in one run and one loop.

One process per GPU. Every iteration: device-side barrier of the ranks, event, the call, event. All variants of a shape
take turns in rounds, so that heat and clocks are shared fairly; operands rotate over more than three times the L2.
A figure is the median of all iterations of a rank, the slower rank of the two. Data are normal random numbers.

    bench.py gemm|ag|copy [--shapes M,N,K[:KEY=VALUE ...] ...] [--vs nccl asynctp] [--configs 'KEY=A,B KEY=C' ...] [--rounds R] [--iterations I] [--queued MCYCLES] [--seconds S] [--json FILE]
"""
import ctypes
import json
import math
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # noqa: F401, registers the fused operators
import torch.multiprocessing as mp

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import mkernel as mk  # noqa: E402
from options import parse  # noqa: E402

L2_BYTES = 60 << 20


class Rank:
    def __init__(self, rank, world, options):
        self.rank, self.world, self.options = rank, world, options
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[options.dtype]
        torch.cuda.set_device(rank)
        self.host = dist.new_group(backend="gloo")
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.library = mk.Library(options.library)
        self.plan_alone = mk.plan_of(0, 1, 1, folder=options.plan_alone)
        self.context = self.alone = None
        self.open_contexts(0, 0, 1)

    def open_contexts(self, max_m, max_k, chunks):
        folder = self.options.plans and os.path.join(self.options.plans, f"c{chunks}")
        self.plan = mk.plan_of(self.rank, self.options.nodes, self.world // self.options.nodes, chunks, folder)
        for context in (self.context, self.alone):
            if context:
                context.close()
        heap = mk.AgGemm.heap_bytes(self.library, self.plan, max_m, max_k)
        self.context = mk.Context(self.library, self.rank, self.world, self.rank, heap, self.gather,
                                  nodes=self.options.nodes, net_bandwidth=self.options.net * 1e9)
        self.alone = mk.Context(self.library, 0, 1, self.rank, 4 << 20)

    def gather(self, mine):
        out = [None] * self.world
        dist.all_gather_object(out, mine, group=self.host)
        return out

    def normal(self, rows, columns, seed):
        g = torch.Generator(device="cuda").manual_seed(seed)
        return torch.randn(rows, columns, device="cuda", dtype=self.dtype, generator=g)

    def captured(self, call):
        """The call as a graph, replayed."""
        call(self.stream.cuda_stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            call(self.stream.cuda_stream)
        return lambda _stream: graph.replay()

    def times(self, variants, rounds, iterations):
        """variants: name -> list of functions of the stream, used in turn. Returns name -> list of ms, or an error."""
        stream, result, broken = self.stream.cuda_stream, {n: [] for n in variants}, {}
        host = {}
        for r in range(rounds + 1):
            for name, calls in variants.items():
                if name in broken:
                    continue
                count = 3 if r == 0 else iterations
                events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
                error, spent = None, 0.0
                if self.options.queued:  # the host runs ahead of the device, as it does inside a model
                    torch.cuda._sleep(int(self.options.queued * 1e6 * count))
                try:
                    for i, (start, end) in enumerate(events):
                        self.context.barrier(stream)
                        start.record()
                        begin = time.perf_counter()
                        calls[i % len(calls)](stream)
                        spent += time.perf_counter() - begin
                        end.record()
                    torch.cuda.synchronize()
                    for op in self.ops:
                        op.status()
                except RuntimeError as e:
                    error = str(e).splitlines()[0][:150]
                errors = [e for e in self.gather(error) if e]
                if errors:
                    broken[name] = errors[0]
                    for op in self.ops:
                        op.reset()
                elif r > 0:
                    result[name] += [s.elapsed_time(e) for s, e in events]
                    host[name] = spent / count * 1e6
        out = {}
        for name in variants:
            if name in broken:
                out[name] = {"error": broken[name]}
                continue
            mine = sorted(result[name])
            ranks = self.gather((statistics.median(mine), mine[int(len(mine) * .05)], mine[int(len(mine) * .95)], host[name]))
            slow = max(ranks)
            out[name] = {"ms": slow[0], "p5": slow[1], "p95": slow[2], "host_us": slow[3], "ranks": [x[0] for x in ranks]}
        return out

    def settled(self, what, prepare):
        """What `prepare` gives; nothing, and a line that says why, if a rank's library refuses the setting."""
        made, error = (None, None), None
        try:
            made = prepare()
        except RuntimeError as e:
            error = str(e)
        errors = [e for e in self.gather(error) if e]
        if errors and self.rank == 0:
            print(f"FAILED {what}: {errors[0][:150]}", flush=True)
        return (None, None) if errors else made

    def check(self, c, reference, what):
        error = ((c.float() - reference.float()).norm() / reference.float().norm()).item()
        worst = max(self.gather(error if error == error else float("inf")))
        bound = 4e-3 if self.dtype == torch.bfloat16 else 5e-4  # both are rounded
        if not worst < bound and self.rank == 0:
            print(f"WRONG {what}: relative error {worst:.2e}", flush=True)
        return worst < bound


def sets_for(*tensor_bytes):
    return max(2, min(12, -(-3 * L2_BYTES // sum(tensor_bytes))))


def bench_gemm(r, shape):
    m, n, k = shape
    count = sets_for(m * k * 2, n * k * 2, m * n * 2)
    a = [r.normal(m, k, 10 + i + 100 * r.rank) for i in range(count)]
    b = [r.normal(n, k, 50 + i) for i in range(count)]
    c = [torch.empty(m, n, device="cuda", dtype=r.dtype) for _ in range(count)]
    op = mk.AgGemm(r.alone, r.plan_alone, 0, 0)
    r.ops = [op]
    variants = {"cublas": [lambda s, i=i: torch.mm(a[i], b[i].t(), out=c[i]) for i in range(count)]}
    for config in r.options.configs:
        name = " ".join(f"{key}={value}" for key, value in config.items()) or "default"
        calls, _ = r.settled(f"gemm {shape} {name}", lambda config=config: op.calls(m, n, k, a, b, c, **config))
        if calls:
            variants[name] = calls
    for name, calls in variants.items():
        if name == "cublas":
            reference = torch.mm(a[0], b[0].t())
            continue
        c[0].fill_(float("nan"))
        calls[0](r.stream.cuda_stream)
        torch.cuda.synchronize()
        r.check(c[0], reference, f"gemm {shape} {name}")
    out = r.times(variants, r.options.rounds, r.options.iterations)
    op.close()
    return out


def bench_ag(r, shape):
    m, n, k = shape
    r.open_contexts(m, k, r.options.chunks_of.get(shape, 1))
    rows = m // r.world
    count = sets_for(rows * k * 2, n * k * 2, m * n * 2)
    a = [r.normal(rows, k, 10 + i + 100 * r.rank) for i in range(count)]
    b = [r.normal(n, k, 50 + i) for i in range(count)]
    c = [torch.empty(m, n, device="cuda", dtype=r.dtype) for _ in range(count)]
    full = torch.empty(m, k, device="cuda", dtype=r.dtype)
    group = dist.group.WORLD
    dist.all_gather_into_tensor(full, a[0])
    reference = torch.mm(full, b[0].t())

    def sequence(_s, i):
        dist.all_gather_into_tensor(full, a[i])
        torch.mm(full, b[i].t(), out=c[i])

    def async_tp(_s, i):
        torch.ops.symm_mem.fused_all_gather_matmul(a[i], [b[i].t()], gather_dim=0, group_name=group.group_name)

    variants = {
        "gemm": [lambda s, i=i: torch.mm(full, b[i].t(), out=c[i]) for i in range(count)],
    }
    if "nccl" in r.options.vs:
        variants["allgather"] = [lambda s, i=i: dist.all_gather_into_tensor(full, a[i]) for i in range(count)]
        variants["sequence"] = [lambda s, i=i: sequence(s, i) for i in range(count)]
    if "asynctp" in r.options.vs:
        variants["asynctp"] = [lambda s, i=i: async_tp(s, i) for i in range(count)]
    alone = mk.AgGemm(r.alone, r.plan_alone, 0, 0)
    variants["gemm (this library)"] = [alone.prepare(m, n, k, full, b[i], c[i]) for i in range(count)]
    baselines = len(variants)
    op = mk.AgGemm(r.context, r.plan, m, k)
    r.ops, choices = [op, alone], {}
    named = {" ".join(f"{key}={value}" for key, value in config.items()) or "default": config for config in r.options.configs}
    if shape in r.options.configured:
        named = {"configured": r.options.configured[shape]}
    for name, config in named.items():
        calls, chosen = r.settled(f"ag {shape} {name}", lambda config=config: op.calls(m, n, k, a, b, c, **config))
        if calls:
            variants[name], choices[name] = calls, chosen
    waited = {}
    for name, calls in list(variants.items())[baselines:]:
        c[0].fill_(float("nan"))
        error = None
        try:
            for _ in range(2):
                calls[0](r.stream.cuda_stream)
            torch.cuda.synchronize()
            op.status()
        except RuntimeError as e:
            error = str(e)
        errors = [e for e in r.gather(error) if e]
        if errors:
            op.reset()
            if r.rank == 0:
                print(f"FAILED ag {shape} {name}: {errors[0][:150]}", flush=True)
            continue
        r.check(c[0], reference, f"ag_gemm {shape} {name}")
        waited[name] = op.waited()
    if r.options.graph:
        for name in [n for n in variants if n not in ("allgather", "gemm (this library)")]:
            try:
                variants["graph " + name] = [r.captured(call) for call in variants[name]]
            except RuntimeError as e:
                if r.rank == 0:
                    print(f"graph {name}: {str(e).splitlines()[0][:120]}", flush=True)
    out = r.times(variants, r.options.rounds, r.options.iterations)
    for name, value in waited.items():
        if "error" not in out[name]:
            out[name]["waited"] = value
            out[name]["waited_us"] = value["producer"] * out[name]["ms"] * 1e3
            out[name]["chosen"] = choices[name]
    op.close()
    alone.close()
    return out


def table_gemm(shape, out, _options):
    m, n, k = shape
    base = out["cublas"].get("ms", math.nan)
    for name, x in out.items():
        if "error" in x:
            print(f"gemm {m},{n},{k} {name}: {x['error']}")
        else:
            print(f"gemm {m},{n},{k} {x['ms']:.4f} [{x['p5']:.4f} {x['p95']:.4f}] {2e-9 * m * n * k / x['ms']:.0f} TF "
                  f"cublas/this {base / x['ms']:.3f} host {x['host_us']:.0f}us  {name}")


def table_ag(shape, out, options):
    m, n, k = shape
    best = min((x["ms"] for name, x in out.items() if name in ("sequence", "asynctp") and "error" not in x), default=math.nan)
    gemm = out["gemm"].get("ms", math.nan)
    link = ""
    if options.nodes > 1:
        # What arrives at a rank from the other nodes, at the rate of the emulated link.
        floor = max(gemm, m * k * 2 * (options.nodes - 1) / options.nodes / options.net * 1e-6)
    for name, x in out.items():
        if options.nodes > 1 and "error" not in x:
            link = f" /max(gemm, link) {x['ms'] / floor:.3f}"
        if "error" in x:
            print(f"ag {m},{n},{k} {name}: {x['error']}")
        else:
            print(f"ag {m},{n},{k} {x['ms']:.4f} [{x['p5']:.4f} {x['p95']:.4f}] /best {x['ms'] / best:.3f} /gemm "
                  f"{x['ms'] / gemm:.3f} host {x['host_us']:.0f}us wait {x.get('waited_us', 0):.0f}us{link}  {name}")


def copy_probe():
    """Copy-engine rate of strided peer copies, one stream, GB/s by row length."""
    rt = None
    for name in ("libcudart.so.13", "libcudart.so"):
        try:
            rt = ctypes.CDLL(name)
            break
        except OSError:
            continue
    if rt is None:
        print("copy: no libcudart to call")
        return
    rows, columns = 4096, 8192
    a = torch.randn(rows, columns, device="cuda:0").to(torch.bfloat16)
    b = torch.empty(rows, columns, device="cuda:1", dtype=torch.bfloat16)
    torch.cuda.set_device(0)
    stream = torch.cuda.Stream()
    b.copy_(a)
    for width in (512, 1024, 2048, 4096, 8192, 16384):
        ms = []
        for _ in range(4):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record(stream)
            for at in range(0, columns * 2, width):
                e = rt.cudaMemcpy2DAsync(ctypes.c_void_p(b.data_ptr() + at), ctypes.c_size_t(columns * 2),
                                         ctypes.c_void_p(a.data_ptr() + at), ctypes.c_size_t(columns * 2),
                                         ctypes.c_size_t(width), ctypes.c_size_t(rows), ctypes.c_int(4),
                                         ctypes.c_void_p(stream.cuda_stream))
                assert e == 0, e
            end.record(stream)
            end.synchronize()
            ms.append(start.elapsed_time(end))
        print(f"copy 2d width {width}: {rows * columns * 2 / min(ms) / 1e6:.0f} GB/s")


def write_json(options, world, everything):
    """What is known so far, in one step: whoever is cut short leaves a whole file."""
    with open(options.json + ".part", "w") as f:
        json.dump({"what": options.what, "queued": bool(options.queued), "gpus": world, "dtype": options.dtype, "nodes": options.nodes, "net": options.net,
                   "cuda": torch.version.cuda, "command": " ".join(sys.argv), "rounds": options.rounds,
                   "iterations": options.iterations, "torch": torch.__version__, "device": torch.cuda.get_device_name(),
                   "date": time.strftime("%Y-%m-%d %H:%M"), "results": everything}, f, indent=1)
    os.replace(options.json + ".part", options.json)


def worker(rank, world, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(options.port), RANK=str(rank), WORLD_SIZE=str(world))
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    r = Rank(rank, world, options)
    bench, table = (bench_gemm, table_gemm) if options.what == "gemm" else (bench_ag, table_ag)
    everything = {}
    for shape in options.shapes:
        start = time.time()
        if options.seconds is not None and any(r.gather(start - options.begun > options.seconds)):
            if rank == 0:
                print(f"# {shape} and what follows is left out: {options.seconds:g} s are over", flush=True)
            break
        try:
            out = bench(r, shape)
        except Exception as e:
            print(f"[{rank}] {options.what} {shape} failed: {e}", flush=True)
            os._exit(1)
        everything[",".join(map(str, shape))] = out
        if rank == 0:
            table(shape, out, options)
            print(f"# {shape} took {time.time() - start:.1f} s", flush=True)
            if options.json:
                write_json(options, world, everything)
    dist.barrier()
    os._exit(0)


def main():
    options = parse(__doc__)
    options.begun = time.time()
    if options.what == "copy":
        copy_probe()
        return
    world = options.ranks or torch.cuda.device_count()
    if world > torch.cuda.device_count():
        raise SystemExit(f"{world} ranks, and {torch.cuda.device_count()} GPUs are seen")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        options.port = s.getsockname()[1]
    mp.spawn(worker, args=(world, options), nprocs=world)


if __name__ == "__main__":
    main()
