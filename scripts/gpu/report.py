"""Puts the JSON files of bench.py and the verdicts of the checks into one short table.

    report.py FOLDER    (steps.tsv, *.log, gemm*.json and ag*.json of scripts/gpu-check.sh)
"""
import glob
import json
import math
import os
import re
import sys

# Bars of ag_gemm on two H200s: (shape, what it is compared with, ratio).
BARS = {
    "8192,1024,8192": ("best", 0.50), "8192,4096,8192": ("gemm", 1.05), "16384,2048,8192": ("gemm", 1.06),
    "32768,4096,8192": ("gemm", 1.04), "4096,2048,4096": ("best", 0.60), "2048,2048,2048": ("best", 0.70),
    "256,4096,8192": ("best", 0.75), "16,4096,8192": ("best", 0.60),
}


# bench.py names a variant after its settings, movers by number.
MOVERS = (("mover=1", "sm"), ("mover=2", "ce"))


def load(folder, pattern):
    out = []
    for path in sorted(glob.glob(os.path.join(folder, pattern))):
        with open(path) as f:
            out.append(json.load(f))
    return out


def waited(x):
    """How long the call waited; nothing where its first run failed, which is told by a line of its own."""
    return f" wait {x['waited_us']:.0f}us" if "waited_us" in x else ""


def loop_name(data):
    return "queued" if data["queued"] else "eager"


def verdict(text):
    """The last line of a log that says how its program ended."""
    lines = [line for line in text.splitlines() if re.search(
        r"\d+ passed, \d+ failed|(ERROR|RACECHECK) SUMMARY|^time of a call|elements are wrong", line)]
    bad = len(re.findall(r"FAIL|WRONG", text))
    return (lines[-1].strip("= ") if lines else "did not finish") + (f"  ({bad} bad lines)" if bad else "")


def checks(folder, names=("",)):
    """The verdicts of the logs whose names begin with one of these."""
    for path in sorted(glob.glob(os.path.join(folder, "*.log"))):
        if os.path.basename(path).startswith(names):
            print(f"check  {os.path.basename(path)[:-4]:<12} {verdict(open(path, errors='replace').read())}")


def steps(folder):
    """A line for each log: how many of its commands went well, their seconds, and the last verdict; then what did not go well."""
    with open(os.path.join(folder, "steps.tsv")) as f:
        rows = [line.rstrip("\n").split("\t") for line in f]
    for log in dict.fromkeys(row[0] for row in rows):
        mine = [row for row in rows if row[0] == log]
        path = os.path.join(folder, log + ".log")
        text = "" if not os.path.exists(path) else verdict(open(path, errors="replace").read())
        print(f"check  {log:<13} {sum(row[1] == 'ok' for row in mine)} of {len(mine)} in {sum(int(row[2]) for row in mine)} s  {text}")
    for log, status, seconds, command in rows:
        if status != "ok":
            print(f"{status:<6} {log}, after {seconds} s: {command}")


def links(folder):
    """What gpu_measure says of the way over the host and the proxy."""
    path = os.path.join(folder, "measure.log")
    if os.path.exists(path):
        print("".join(f"link   {line}" for line in open(path, errors="replace") if line.startswith(("host: ", "gpu -> proxy"))), end="")


def gemm(data):
    ratios = []
    for shape, out in data["results"].items():
        base = out["cublas"].get("ms")
        own = {name: x for name, x in out.items() if name != "cublas" and "error" not in x}
        if not own or not base:
            print(f"gemm   {loop_name(data):<6} {shape}: incomplete: {[n for n in out if 'error' in out[n]] or 'no setting was taken'}")
            continue
        name, x = next(iter(own.items()))
        ratios.append(base / x["ms"])
        m, n, k = map(int, shape.split(","))
        print(f"gemm   {loop_name(data):<6} {shape:<17} cublas {base:.4f}  this {x['ms']:.4f} [{x['p5']:.4f} {x['p95']:.4f}] "
              f"{2e-9 * m * n * k / x['ms']:.0f} TFLOP/s  speed against cublas {ratios[-1]:.3f}")
    if ratios:
        print(f"gemm   {loop_name(data):<6} geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}, "
              f"lowest {min(ratios):.3f}")


def ag(data):
    for shape, out in data["results"].items():
        good = {name: x for name, x in out.items() if "error" not in x}
        baselines = {name: good[name]["ms"] for name in ("sequence", "asynctp") if name in good}
        if "gemm" not in good or not baselines or "default" not in good:
            print(f"ag     {loop_name(data)} {shape}: incomplete: {[n for n in out if n not in good]}")
            continue
        product, best = good["gemm"]["ms"], min(baselines.values())
        x = good["default"]
        kind, bar = BARS.get(shape, ("best", math.inf))
        ratio = x["ms"] / (best if kind == "best" else product)
        movers = " ".join(f"{label} {good[name]['ms']:.4f}" for name, label in MOVERS if name in good)
        print(f"ag     {loop_name(data):<6} {shape:<15} gemm {product:.4f} seq {baselines.get('sequence', math.nan):.4f} "
              f"atp {baselines.get('asynctp', math.nan):.4f} | {x['ms']:.4f} [{x['p5']:.4f} {x['p95']:.4f}] "
              f"/best {x['ms'] / best:.3f} /gemm {x['ms'] / product:.3f} bar {bar} {kind}: {'met' if ratio <= bar else 'MISSED'} | "
              f"{movers} | exposed {1 - product / x['ms']:.2f} ({1 - product / best:.2f}) host {x['host_us']:.0f}us{waited(x)}")


def nodes(data):
    """Emulated nodes: against the product alone or the link alone, whichever takes longer."""
    for shape, out in data["results"].items():
        x, product = out.get("configured") or out.get("default") or {"error": "the library refused the setting"}, out["gemm"].get("ms")
        if "error" in x or not product:
            print(f"nodes  {shape}: {x.get('error') or out['gemm'].get('error')}")
            continue
        m, _, k = map(int, shape.split(","))
        link = m * k * 2 * (data["nodes"] - 1) / data["nodes"] / data["net"] * 1e-6
        ratio = x["ms"] / max(product, link)
        print(f"nodes  {data['nodes']} x {data['gpus'] // data['nodes']} at {data['net']:g} GB/s {shape:<15} gemm {product:.4f} link {link:.4f} | "
              f"{x['ms']:.4f} [{x['p5']:.4f} {x['p95']:.4f}] /max {ratio:.3f} bar 1.10: {'met' if ratio <= 1.10 else 'MISSED'} | "
              f"host {x['host_us']:.0f}us{waited(x)}")


def main():
    folder = sys.argv[1]
    runs = load(folder, "gemm*.json") + load(folder, "ag*.json")
    if runs:
        r = runs[0]
        print(f"# {r['gpus']} x {r['device']}, PyTorch {r['torch']}, CUDA {r['cuda']}, {r['date']}; ms, median of "
              f"{r['rounds'] * r['iterations']}, slower rank, [5 % 95 %]")
        print("# eager: as a caller launches; queued: the host had a head start. exposed: share of the time beyond cuBLAS's"
              " product (of the best alternative)")
    steps(folder)
    links(folder)
    for data in runs:
        (gemm if data["what"] == "gemm" else nodes if data["nodes"] > 1 else ag)(data)


if __name__ == "__main__":
    main()
