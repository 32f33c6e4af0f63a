"""Puts what scripts/gpu-8.sh measured into one short table, beside what model.py predicts, and into files to keep.

    summary.py FOLDER OUT GPUS    FOLDER: parts.tsv, *.log, bench-*.json, topo.json; OUT gets bench.json
"""
import glob
import json
import os
import sys

import model
import report


def parts(folder):
    path = os.path.join(folder, "parts.tsv")
    if not os.path.exists(path):
        return
    with open(path) as f:
        for line in f:
            part, status, seconds, limit, command = line.rstrip("\n").split("\t")
            if status != "ok":
                print(f"part   {part:<8} {status} after {seconds} of {limit} s: {command}")


def load(folder):
    """Name of the part -> what bench.py wrote there."""
    runs = {}
    for path in sorted(glob.glob(os.path.join(folder, "bench-*.json"))):
        with open(path) as f:
            runs[os.path.basename(path)[len("bench-"):-len(".json")]] = json.load(f)
    return runs


def predicted(shape, gpus, ms):
    m, n, k = map(int, shape.split(","))
    if m < 4096:
        return ""
    x = model.predict(gpus, m, n, k)
    return f" | predicted {x['mover']} {x['ours']:.3f} ({ms / x['ours'] - 1:+.0%}), gemm {x['gemm']:.3f} seq {x['sequence']:.3f} atp {x['asynctp']:.3f}"


def speed(data):
    for shape, out in data["results"].items():
        good = {name: x for name, x in out.items() if "error" not in x}
        if "gemm" not in good or "default" not in good:
            print(f"ag     {report.loop_name(data):<6} {shape}: incomplete: {[n for n in out if n not in good]}")
            continue
        gemm, x = good["gemm"]["ms"], good["default"]
        baselines = [good[name]["ms"] for name in ("sequence", "asynctp") if name in good]
        movers = " ".join(f"{label} {good[name]['ms']:.4f}" for name, label in report.MOVERS if name in good)
        figures = " ".join(f"{label} {good[name]['ms']:.4f}" for name, label in
                           (("gemm (this library)", "own"), ("allgather", "ag"), ("sequence", "seq"), ("asynctp", "atp")) if name in good)
        best = f" /best {x['ms'] / min(baselines):.3f}" if baselines else ""
        print(f"ag     {report.loop_name(data):<6} {shape:<15} gemm {gemm:.4f} {figures} | {x['ms']:.4f} [{x['p5']:.4f} {x['p95']:.4f}]"
              f"{best} /gemm {x['ms'] / gemm:.3f} | {movers} | exposed {1 - gemm / x['ms']:.2f} host {x['host_us']:.0f}us"
              f"{predicted(shape, data['gpus'], x['ms'])}")


def sweep(name, data):
    """All settings of a shape in one line, the fastest first."""
    for shape, out in data["results"].items():
        m, _, k = map(int, shape.split(","))
        own = sorted((x["ms"], setting) for setting, x in out.items() if "error" not in x and "=" in setting)
        broken = [setting for setting, x in out.items() if "error" in x]
        text = ", ".join(f"{setting.replace('mover=1', 'sm').replace('mover=2', 'ce')} {ms:.4f}" for ms, setting in own[:12])
        others = " ".join(f"{label} {out[of]['ms']:.4f}" for of, label in (("cublas", "cublas"), ("gemm", "gemm"), ("allgather", "all-gather"), ("default", "default"))
                          if "ms" in out.get(of, {}))
        sent = 2e-6 * m * k * (data["gpus"] - 1) / data["gpus"]
        rate = f"; best {sent / own[0][0]:.0f} GB/s out of each GPU" if own and data["what"] == "ag" else ""
        print(f"{name:<6} {data['gpus']} GPUs {shape}: {others}; {text}{rate}{f'; failed: {broken}' if broken else ''}")


def span(values):
    values = [v for v in values if v]
    return f"{min(values):.4g}-{max(values):.4g}" if values else "-"


def links(folder):
    path = os.path.join(folder, "topo.json")
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        return
    with open(path) as f:
        try:
            node = json.load(f)["nodes"][0]
        except (ValueError, KeyError, IndexError) as e:
            print(f"links  topo.json is no topology: {e!r}")
            return
    states = sorted({(g.get("fabric") or {}).get("state", "unknown") for g in node["gpus"]})
    m = node.get("measured") or {"paths": [], "hosts": [], "fans": []}
    paths, hosts = m["paths"], m["hosts"]
    wrong = sum(p[w] for p in paths for w in ("wrong_copy", "wrong_store", "wrong_load")) + sum(f["wrong"] for f in m["fans"]) + \
        sum(h["wrong_to_device"] + h["wrong_to_host"] for h in hosts)
    print(f"links  fabric {', '.join(states)}; {len(paths)} paths: copy {span(p['copy_gbs'] for p in paths)}, both ways "
          f"{span(p['both_gbs'] for p in paths)}, store {span(p['store_gbs'] for p in paths)} GB/s; signal {span(p['signal_us'] for p in paths)}, "
          f"load {span(p['load_us'] for p in paths)} us; wrong words {wrong}")
    print(f"links  host: to GPU {span(h['to_device_gbs'] for h in hosts)}, to host {span(h['to_host_gbs'] for h in hosts)} GB/s; "
          f"GPU-CPU-GPU signal {span(h['signal_us'] for h in hosts)} us")
    rows = {}
    for f in m["fans"]:
        rows.setdefault((f["sources"], f["peers"], f["depth"]), []).append(f"{f['ctas'] or 'all'} {f['gbs']:.0f}")
    for (sources, peers, depth), cells in rows.items():
        print(f"fan    {sources} push to {peers}, {depth} blocks on their way, GB/s by CTAs: {', '.join(cells)}")


def main():
    folder, out, gpus = sys.argv[1], sys.argv[2], sys.argv[3]
    runs = load(folder)
    print(f"# gpu-8.sh on {gpus} GPUs; ms, medians, slower rank, [5 % 95 %]; predicted: scripts/gpu/model.py, for the queued loop")
    if runs:
        r = next(iter(runs.values()))
        print(f"# {r['device']}, PyTorch {r['torch']}, CUDA {r['cuda']}, {r['date']}")
        with open(os.path.join(out, "bench.json"), "w") as f:
            json.dump(runs, f)
    parts(folder)
    report.checks(folder, names=("right", "nodes", "fuzz"))
    for name, data in runs.items():
        if name.startswith(("split", "peers", "bars")):
            sweep(name.split("-")[0], data)
        elif data["what"] == "gemm":
            report.gemm(data)
        elif data["nodes"] > 1:
            report.nodes(data)
        else:
            speed(data)
    links(folder)


if __name__ == "__main__":
    main()
