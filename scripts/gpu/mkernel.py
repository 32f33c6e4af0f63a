"""ctypes view of build/libmkernel.so for the GPU benches (cuda/include/mkernel.h has the meaning of every field)."""
import ctypes as C
import os

from options import CONFIG_FIELDS

VERSION = 2
SM, CE = 1, 2
ALLGATHER = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_void_p, C.c_void_p, C.c_uint64)


class Struct(C.Structure):
    def __init__(self, **fields):
        super().__init__(size=C.sizeof(type(self)), version=VERSION, **fields)


def struct(name, *fields):
    return type(name, (Struct,), {"_fields_": [("size", C.c_uint32), ("version", C.c_uint32), *fields]})


class Error(C.Structure):
    _fields_ = [("code", C.c_int32), ("text", C.c_char * 508)]


ContextDesc = struct("ContextDesc", ("rank", C.c_int32), ("world", C.c_int32), ("device", C.c_int32),
                     ("share_gpus", C.c_int32), ("heap_bytes", C.c_uint64), ("timeout_ns", C.c_uint64),
                     ("allgather", ALLGATHER), ("user", C.c_void_p), ("node_ranks", C.POINTER(C.c_int32)),
                     ("nodes", C.c_int32), ("network", C.c_int32), ("net_bandwidth", C.c_double),
                     ("net_latency_ns", C.c_uint64), ("net", C.c_void_p))
AgGemmDesc = struct("AgGemmDesc", ("plan", C.c_char_p), ("plan_bytes", C.c_uint64), ("max_m", C.c_int64),
                    ("max_k", C.c_int64))
WAIT_ROLES = ("none", "producer", "push", "credit", "barrier", "sum", "send", "notice")
Waits = struct("Waits", ("ctas", C.c_int32), ("launches", C.c_int32), ("life", C.c_int64),
               ("mean", C.c_int64 * len(WAIT_ROLES)), ("most", C.c_int64 * len(WAIT_ROLES)))
Args = struct("Args", ("m", C.c_int64), ("n", C.c_int64), ("k", C.c_int64), ("a", C.c_void_p), ("b", C.c_void_p),
              ("c", C.c_void_p), ("lda", C.c_int64), ("ldb", C.c_int64), ("ldc", C.c_int64), ("element", C.c_int32),
              ("reserved", C.c_int32))
Config = struct("Config", *((name, C.c_int32) for name in CONFIG_FIELDS))


def plan_of(rank, nodes, per_node, chunks=1, folder=None):
    """This rank's part of a plan that `make cuda` had mkrun write, or of one in another folder."""
    if folder is None:
        here = os.path.dirname(os.path.abspath(__file__))
        folder = os.path.join(here, "..", "..", "build", "plans", f"ag_gemm-{nodes}x{per_node}-c{chunks}")
    with open(os.path.join(folder, f"rank{rank}.plan"), "rb") as f:
        return f.read()


class Library:
    def __init__(self, path=None):
        here = os.path.dirname(os.path.abspath(__file__))
        self.lib = C.CDLL(path or os.path.join(here, "..", "..", "build", "libmkernel.so"))

    def __call__(self, name, *args):
        error = Error()
        if getattr(self.lib, name)(*args, C.byref(error)) != 0:
            raise RuntimeError(f"{name}: {error.text.decode()}")


ELEMENTS = {"torch.bfloat16": 0, "torch.float16": 1}


class Context:
    """One rank. `gather(bytes) -> list of bytes` is the all-gather of the bootstrap."""

    def __init__(self, library, rank, world, device, heap_bytes, gather=None, timeout_ns=2_000_000_000, nodes=1,
                 net_bandwidth=0.0):
        def allgather(_user, mine, everyone, size):
            try:
                C.memmove(everyone, b"".join(gather(C.string_at(mine, size))), size * world)
                return 0
            except Exception:  # an exception cannot cross the C frame
                return 1

        self.library, self.keep = library, ALLGATHER(allgather)
        self.handle = C.c_void_p()
        desc = ContextDesc(rank=rank, world=world, device=device, heap_bytes=heap_bytes, timeout_ns=timeout_ns,
                           allgather=self.keep, nodes=nodes, network=1 if nodes > 1 else 0,
                           node_ranks=(C.c_int32 * nodes)(*[world // nodes] * nodes), net_bandwidth=net_bandwidth,
                           net_latency_ns=2000 if nodes > 1 else 0)
        library("mk_context_create", C.byref(desc), C.byref(self.handle))

    def barrier(self, stream):
        self.library("mk_barrier", self.handle, C.c_void_p(stream))

    def close(self):
        self.library("mk_context_destroy", self.handle)


class AgGemm:
    @staticmethod
    def heap_bytes(library, plan, max_m, max_k):
        bytes_ = C.c_uint64()
        desc = AgGemmDesc(plan=plan, plan_bytes=len(plan), max_m=max_m, max_k=max_k)
        library("mk_ag_gemm_heap_bytes", C.byref(desc), C.byref(bytes_))
        return bytes_.value

    def __init__(self, context, plan, max_m, max_k):
        self.library, self.handle = context.library, C.c_void_p()
        desc = AgGemmDesc(plan=plan, plan_bytes=len(plan), max_m=max_m, max_k=max_k)
        self.library("mk_ag_gemm_create", context.handle, C.byref(desc), C.byref(self.handle))

    def prepare(self, m, n, k, a, b, c, **config):
        """A call with tensors a (m/world x k), b (n x k), c (m x n); returns a function of the stream."""
        args = Args(m=m, n=n, k=k, a=a.data_ptr(), b=b.data_ptr(), c=c.data_ptr(), lda=a.stride(0), ldb=b.stride(0),
                    ldc=c.stride(0), element=ELEMENTS[str(a.dtype)])
        settings = Config(**config)
        launch, error = self.library.lib.mk_ag_gemm_launch, Error()
        refs = (self.handle, C.byref(args), C.byref(settings))

        def call(stream):
            if launch(*refs, C.c_void_p(stream), C.byref(error)) != 0:
                raise RuntimeError(error.text.decode())

        call.keep = (args, settings, a, b, c)
        return call

    def choose(self, m, n, k, a, b, c, **config):
        call = self.prepare(m, n, k, a, b, c, **config)
        args, settings = call.keep[0], call.keep[1]
        self.library("mk_ag_gemm_choose", self.handle, C.byref(args), C.byref(settings))
        return {name: getattr(settings, name) for name in CONFIG_FIELDS}

    def calls(self, m, n, k, a, b, c, **config):
        """A call for each of the sets of operands, and what was chosen for them; RuntimeError where a setting is refused."""
        chosen = self.choose(m, n, k, a[0], b[0], c[0], **config)
        return [self.prepare(m, n, k, *operands, **config) for operands in zip(a, b, c)], chosen

    def status(self):
        self.library("mk_ag_gemm_status", self.handle, None)

    def reset(self):
        self.library("mk_ag_gemm_reset", self.handle)

    def waited(self):
        """Of the last call: role -> share of a CTA's life that it waited (mean over the CTAs that have it)."""
        waits = Waits()
        self.library("mk_ag_gemm_waited", self.handle, C.byref(waits))
        return {role: waits.mean[i] / waits.life for i, role in enumerate(WAIT_ROLES) if i > 0 and waits.life > 0}

    def close(self):
        self.library("mk_ag_gemm_destroy", self.handle)
