"""The command line of bench.py; without PyTorch, so that calls of it are checked where there is none.

    options.py ARGUMENTS...    prints what bench.py would make of them
"""
import argparse
import itertools
import json

GEMM_SHAPES = [(4096, 4096, 4096), (8192, 4096, 8192), (16384, 4096, 8192), (8192, 8192, 2048), (8192, 8192, 4096),
               (2048, 2048, 2048)]
AG_SHAPES = [(8192, 1024, 8192), (8192, 4096, 8192), (2048, 2048, 2048), (4096, 2048, 4096), (16384, 2048, 8192),
             (32768, 4096, 8192), (256, 4096, 8192), (16, 4096, 8192)]
CONFIG_FIELDS = ("mover", "tile_n", "cluster", "ctas", "raster_group", "push_ctas", "push_group",
                 "row_block", "k_block", "split_k")
MOVERS = {"sm": 1, "ce": 2}


def parse_config(text):
    """'tile_n=256,128 cluster=1,2' -> every combination."""
    keys, values = [], []
    for part in text.split():
        key, _, choice = part.partition("=")
        if key not in CONFIG_FIELDS:
            raise SystemExit(f"no such setting: {key}")
        keys.append(key)
        values.append([MOVERS.get(v) or int(v) for v in choice.split(",")])
    return [dict(zip(keys, combination)) for combination in itertools.product(*values)]


def parse_shape(text):
    sizes = tuple(map(int, text.split(",")))
    if len(sizes) != 3:
        raise SystemExit(f"shape {text}: want M,N,K")
    return sizes


def parser(about):
    p = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("gemm", "ag", "copy"))
    p.add_argument("--shapes", nargs="*")
    p.add_argument("--dtype", choices=("bf16", "fp16"), default="bf16", help="of the operands and the product")
    p.add_argument("--configs", nargs="*", default=[""])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--iterations", type=int, default=10)
    p.add_argument("--queued", type=float, default=0, help="million cycles of head start for the host, per call")
    p.add_argument("--vs", nargs="*", choices=("nccl", "asynctp"), default=("nccl", "asynctp"))
    p.add_argument("--ranks", type=int, help="one on each of the first GPUs; left out: all")
    p.add_argument("--plans", help="folder of c1/rank*.plan, c2/..., by chunks, instead of those of `make cuda`; with --plan-alone")
    p.add_argument("--plan-alone", help="folder of rank0.plan of one rank alone")
    p.add_argument("--nodes", type=int, default=1, help="emulated nodes that the GPUs are spread over")
    p.add_argument("--net", type=float, default=50, help="GB/s of each rank's emulated link, each way")
    p.add_argument("--graph", action="store_true", help="also time each call captured in a graph and replayed")
    p.add_argument("--library", help="another build of libmkernel.so, to compare builds")
    p.add_argument("--seconds", type=float, help="begin with no further shape after so long, the start of the ranks counted; left out: all shapes")
    p.add_argument("--json", help="written anew after each shape")
    return p


def parse(about, arguments=None):
    o = parser(about).parse_args(arguments)
    o.configured, o.chunks_of = {}, {}
    if o.shapes:
        for text in o.shapes:
            sizes, colon, config = text.partition(":")
            if colon:  # as mkrun bench asks: each shape with what is configured for it
                shape, words = parse_shape(sizes), config.split()
                o.chunks_of[shape] = next((int(w[7:]) for w in words if w.startswith("chunks=")), 1)
                o.configured[shape] = parse_config(" ".join(w for w in words if not w.startswith("chunks=")))[0]
        o.shapes = [parse_shape(s.partition(":")[0]) for s in o.shapes]
    else:
        o.shapes = GEMM_SHAPES if o.what == "gemm" else AG_SHAPES
    o.configs = [c for text in o.configs for c in parse_config(text)]
    return o


if __name__ == "__main__":
    o = vars(parse(__doc__))
    o["configured"] = {",".join(map(str, s)): c for s, c in o["configured"].items()}
    o["chunks_of"] = {",".join(map(str, s)): c for s, c in o["chunks_of"].items()}
    print(json.dumps(o))
