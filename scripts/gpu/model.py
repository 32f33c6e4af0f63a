"""What ag_gemm and its alternatives should take on W GPUs of one node, queued, in ms: a few formulas with constants that were
measured on two H200s (docs/results.md) or are marked as assumed. Made to be refuted: `summary.py` puts each measured time
beside what is said here.

    model.py GPUS    a table in Markdown

S = 2 M K / W bytes is a shard, B = (W - 1) S what each GPU sends and receives.
"""
import math
import sys

SMS, TILE_M, TILE_N = 132, 128, 256
TILE_MS = .0901            # a tile of 128 x 256 with K = 8192 on one SM: 2 x 128 x 256 x 8192 / (787 TFLOP/s / 132)
WAVE_MS = .0015            # and what each wave of tiles takes besides
PEAK, LONG_PEAK = 787, 713  # TFLOP/s of cuBLAS: below 0.8 TFLOP, and beyond, where the power limit sets the clock
LONG = .8e12
START_MS = .008            # prologue, first bytes
GAP_MS = .004              # between copies of the copy engine: each with its flag
# GB/s of a copy by the width of its rows in bytes.
COPY_GBS = ((16384, 379), (8192, 371), (4096, 355), (2048, 338), (0, 300))
PUSH_GBS = 270             # the sm mover beside the product
PUSH_SLOWDOWN = .12        # of the product while the sm mover moves
ASYNC_TP_MS = .07          # async-TP besides product and copies
ASYNC_TP_GBS = 386
NCCL_START_MS, NCCL_GBS = .02, {2: 245}  # all-gather
NCCL_ASSUMED_GBS = 320     # with more GPUs and without multicast: assumed, its all-reduce reaches 368 on eight

M_ROWS, N_COLUMNS, K = (4096, 8192, 16384, 32768), (1024, 2048, 4096), 8192


def cublas(m, n, k):
    flops = 2 * m * n * k
    return flops * 1e-9 / (LONG_PEAK if flops > LONG else PEAK)


def product(m, n, k):
    """This library's kernel alone: whole waves of tiles, or what the power limit leaves."""
    waves = math.ceil(math.ceil(m / TILE_M) * math.ceil(n / TILE_N) / SMS)
    return max(waves * (TILE_MS * k / 8192 + WAVE_MS), cublas(m, n, k))


def copy_ms(rows, columns):
    rate = next(gbs for width, gbs in COPY_GBS if 2 * columns >= width)
    return 2e-6 * rows * columns / rate + GAP_MS


def pieces(k, block=512):
    """Columns of the pieces that the last copy goes in: half of what is left each time."""
    out, left = [], math.ceil(k / block)
    while left > 0:
        out.append(max(1, left // 2))
        left -= out[-1]
    return [n * block for n in out]


def ours_ce(w, m, n, k):
    rows, shard = m / w, product(m, n, k) / w
    at, done = START_MS, shard
    for _ in range(w - 2):  # whole shards, each computed when it is there
        at += copy_ms(rows, k)
        done = max(done, at) + shard
    last = pieces(k)
    at += sum(copy_ms(rows, columns) for columns in last)
    return max(done + shard, at + max(shard, TILE_MS * k / 8192) * last[-1] / k) + START_MS / 2


def ours_sm(w, m, n, k):
    alone, move = product(m, n, k), 2e-6 * m * k * (w - 1) / w / PUSH_GBS
    return START_MS + max(alone + PUSH_SLOWDOWN * min(move, alone), move + TILE_MS / 16)


def sequence(w, m, n, k):
    return 2e-6 * m * k * (w - 1) / w / NCCL_GBS.get(w, NCCL_ASSUMED_GBS) + NCCL_START_MS + cublas(m, n, k)


def async_tp(w, m, n, k):
    """Copies of whole shards on one stream, products of shards on two."""
    shard = max(cublas(m, n, k) / w, TILE_MS / 2 * k / 8192)
    copy = 2e-6 * m * k / w / ASYNC_TP_GBS
    return ASYNC_TP_MS + max(cublas(m, n, k), w * shard / 2, (w - 1) * copy + shard)


def push_ctas(w, n):
    """What the library takes by itself: SMS x 1000 / n to each peer, at most all."""
    return min(SMS, math.ceil((w - 1) * SMS * 1000 / n))


def predict(w, m, n, k):
    ce, sm = ours_ce(w, m, n, k), ours_sm(w, m, n, k)
    x = {"gemm": cublas(m, n, k), "own": product(m, n, k), "bytes": 2 * m * k * (w - 1) / w, "sm": sm, "ce": ce,
         "sequence": sequence(w, m, n, k), "asynctp": async_tp(w, m, n, k), "push_ctas": push_ctas(w, n)}
    x["ours"], x["mover"] = min((ce, "ce"), (sm, "sm"))
    return x


def main():
    if len(sys.argv) != 2 or not sys.argv[1].isdecimal() or int(sys.argv[1]) < 2:
        sys.exit(f"{__doc__}\nmodel.py: one argument, how many GPUs: 2 or more")
    w = int(sys.argv[1])
    print("| M, N_loc, K | gemm | own gemm | MB out of each GPU | sequence | async-TP | `sm` / `ce` | best mover | / sequence | / async-TP | "
          "exposed | CTAs that push (`sm`) |")
    print("|" + " --- |" * 12)
    for m in M_ROWS:
        for n in N_COLUMNS:
            x = predict(w, m, n, K)
            print(f"| {m}, {n}, {K} | {x['gemm']:.3f} | {x['own']:.3f} | {x['bytes'] / 1e6:.0f} | {x['sequence']:.3f} | {x['asynctp']:.3f} | "
                  f"{x['sm']:.3f} / {x['ce']:.3f} | {x['mover']} | {x['ours'] / x['sequence']:.2f} | {x['ours'] / x['asynctp']:.2f} | "
                  f"{1 - x['gemm'] / x['ours']:.2f} | {x['push_ctas']} |".replace(" 0.", " ."))


if __name__ == "__main__":
    main()
