"""An example for every function of `mk`, for the reference (tools/reference.py), which runs each of them.

Every example is the middle of a kernel. In blocks (`SPMD`) these names are there:

    i = mk.arange(0, 8)
    a, b = mk.load(x, i), mk.load(y, i)      # f32: 8 numbers each
    n, m = mk.load(p, i), mk.load(q, i)      # i32: 8 numbers each

in threads (`THREADS`) `t = mk.tid(0, 32)` and `a`, `n` by thread. What is assigned to `r` is stored and
shown.
"""

UNARY = "abs ceil cos erf exp exp2 expm1 floor log log1p log2 round rsqrt sigmoid sin sqrt tan tanh trunc asin acos atan sinh cosh asinh acosh atanh log10 cbrt".split()
CASTS = "to_bf16 to_bool to_f16 to_f32 to_f64 to_i16 to_i32 to_i64 to_i8 to_u16 to_u32 to_u64 to_u8".split()
REDUCE = "sum prod max min argmax argmin any all".split()
ATOMIC = "add and or xor max min".split()

SPMD = {name: f"r = mk.{name}(a)" for name in UNARY}
SPMD |= {"asin": "r = mk.asin(a / 8)", "acos": "r = mk.acos(a / 8)", "acosh": "r = mk.acosh(a + 1)", "atanh": "r = mk.atanh(a / 9)"}
SPMD |= {name: f"r = mk.{name}({'n' if 'f' in name else 'a'})" for name in CASTS}
SPMD |= {name: f"r = mk.{name}({'a > 3' if name in ('any', 'all') else 'a'})" for name in REDUCE}
SPMD |= {f"atomic_{op}": f"r = mk.atomic_{op}(p, i % 2, n)  # the old elements" for op in ATOMIC}
SPMD |= {
    "load": "r = mk.load(x, i, mask=i < 5, other=-1)",
    "store": "mk.store(out, i, a, mask=i < 5)",
    "atan2": "r = mk.atan2(a, b)",
    "hypot": "r = mk.hypot(a, b)",
    "copysign": "r = mk.copysign(a, 4 - a)",
    "popcount": "r = mk.popcount(n)",
    "clz": "r = mk.clz(n)",
    "ctz": "r = mk.ctz(n)",
    "umulhi": "r = mk.umulhi(n * 1000000007, m * 1000000007)",
    "sort": "r = mk.sort(b)",
    "argsort": "r = mk.argsort(b)",
    "topk": "values, places = mk.topk(b, 3)\nr = mk.sum(values) + i",
    "flip": "r = mk.flip(a)",
    "cat": "r = mk.cat([a[0:4], b[0:4]])",
    "gather": "r = mk.gather(a, 7 - i)",
    "histogram": "r = mk.histogram(n % 8, 8)",
    "associative_scan": "r = mk.associative_scan(a, 0, lambda u, v: u * v)",
    "program_id": "r = mk.program_id(0) * 8 + i",
    "num_programs": "r = i + mk.num_programs(0)",
    "arange": "r = mk.arange(0, 8) * 2",
    "where": "r = mk.where(a > b, a, b)",
    "fma": "r = mk.fma(a, b, 1.0)",
    "pow": "r = mk.pow(a, 2.5)",
    "maximum": "r = mk.maximum(a, b)",
    "minimum": "r = mk.minimum(a, b)",
    "clamp": "r = mk.clamp(a, 2.0, 5.0)",
    "cdiv": "r = mk.cdiv(n, 3)",
    "isnan": "r = mk.isnan(a / (a - 1) * 0)",
    "isinf": "r = mk.isinf(a / (a - 1))",
    "isfinite": "r = mk.isfinite(a / (a - 1))",
    "and_": "r = mk.and_(a > 2, b > 2)",
    "or_": "r = mk.or_(a > 6, b > 6)",
    "not_": "r = mk.not_(a > 2)",
    "cast": "r = mk.cast(a, mk.i32)",
    "bitcast": "r = mk.bitcast(a, mk.u32)",
    "full": "r = a + mk.full((8,), 0.5)",
    "zeros": "r = a + mk.zeros((8,))",
    "ones": "r = a + mk.ones((8,))",
    "full_like": "r = mk.full_like(a, 7)",
    "zeros_like": "r = mk.zeros_like(a)",
    "ones_like": "r = mk.ones_like(a)",
    "reshape": "r = mk.ravel(mk.reshape(a, (2, 4)) + mk.full((2, 1), 0.5))",
    "ravel": "r = mk.ravel(mk.reshape(a, (2, 4)))",
    "expand_dims": "r = mk.sum(mk.expand_dims(a, 0), axis=0)",
    "broadcast_to": "r = mk.sum(mk.broadcast_to(a, (2, 8)), axis=0)",
    "trans": "r = mk.ravel(mk.trans(mk.reshape(a, (2, 4))))",
    "permute": "r = mk.ravel(mk.permute(mk.reshape(a, (2, 4)), (1, 0)))",
    "join": "r = mk.sum(mk.join(a, b), axis=1)",
    "split": "even, odd = mk.split(mk.reshape(a, (4, 2)))\nr = mk.sum(even * odd) + i",
    "cumsum": "r = mk.cumsum(a)",
    "cumprod": "r = mk.cumprod(a)",
    "reduce": "r = mk.reduce(a, 0, lambda u, v: u + v)",
    "philox": "r = mk.philox(7, i)[0]",
    "rand": "r = mk.rand(7, i)",
    "randn": "r = mk.randn(7, i)",
    "randint": "r = mk.randint(7, i, 1, 7)",
    "atomic_xchg": "r = mk.atomic_xchg(p, i, m)  # the old elements",
    "atomic_exchange": "r = mk.atomic_exchange(p, i, m)  # the old elements",
    "atomic_cas": "r = mk.atomic_cas(p, i, 3, 100)  # the old elements",
    "atomic_compare_exchange": "r = mk.atomic_compare_exchange(p, i, 3, 100)  # the old elements",
    "atomic_load": "mk.atomic_add(p, i % 2, n)\nr = mk.atomic_load(p, i, order='acquire')",
    "atomic_store": "mk.atomic_store(p, i, m, order='release')\nr = mk.atomic_load(p, i)",
    "fence": "mk.store(p, i, m)\nmk.fence('release')  # who sees 1 in q[0] sees the stores before it\nmk.atomic_store(q, 0, 1)\nr = n",
    "var": "v = mk.var(0.0)\nfor k in mk.range(0, 4):\n    v += mk.load(x, k)\nr = v.value + i",
    "range": "v = mk.var(0.0)\nfor k in mk.range(0, 4):\n    v += mk.load(x, k)\nr = v.value + i",
    "while_": "v = mk.var(1)\nwith mk.while_(lambda: v < 100):\n    v *= 3\nr = v.value + i",
    "if_": "v = mk.var(0.0)\nwith mk.if_(mk.load(x, 0) > 0):\n    v.set(1.0)\nr = v.value + i",
    "else_": "v = mk.var(0.0)\nwith mk.if_(mk.load(x, 0) > 5):\n    v.set(1.0)\nwith mk.else_():\n    v.set(2.0)\nr = v.value + i",
    "dot": "r = i + mk.dot(x, 0, 1, y, 0, 1, 8)",
    "multiple_of": "r = mk.load(x, mk.multiple_of(mk.program_id(0) * 8, 8) + i)",
    "assume": "mk.assume(mk.load(p, 0) > 0)\nr = n",
    "assert_": "mk.assert_(a > 0, 'a must be positive')\nr = a",
    "device_assert": "mk.device_assert(a > 0, 'a must be positive')\nr = a",
    "static_assert": "mk.static_assert(a.shape == (8,), 'one row')\nr = a",
    "static_print": "mk.static_print('the block is', a.shape)\nr = a",
    "static_range": "r = a\nfor k in mk.static_range(3):\n    r = r * 2",
    "print": "mk.print('program', mk.program_id(0))\nr = a",
    "device_print": "mk.device_print('program', mk.program_id(0))\nr = a",
}
THREADS = {
    "tid": "r = mk.tid(0, 32) * 2",
    "local": "own = mk.local(4)\nfor k in mk.static_range(4):\n    own[k] = a * k\nr = own[3]",
    "local_id": "r = mk.local_id(0)",
    "lane_id": "r = mk.lane_id()",
    "sg_id": "r = mk.sg_id()",
    "alloc_tg": "s = mk.alloc_tg(32)\nmk.store(s, t, a)\nmk.barrier()\nr = mk.load(s, 31 - t)",
    "alloc_tg_f16": "s = mk.alloc_tg_f16(32)\nmk.store(s, t, a)\nmk.barrier()\nr = mk.load(s, 31 - t)",
    "barrier": "s = mk.alloc_tg(32)\nmk.store(s, t, a)\nmk.barrier()\nr = mk.load(s, (t + 1) % 32)",
    "debug_barrier": "s = mk.alloc_tg(32)\nmk.store(s, t, a)\nmk.debug_barrier()\nr = mk.load(s, (t + 1) % 32)",
    "simd_broadcast": "r = mk.simd_broadcast(a, 3)",
    "simd_shuffle": "r = mk.simd_shuffle(a, 31 - t)",
    "simd_shuffle_down": "r = mk.simd_shuffle_down(a, 1)",
    "simd_shuffle_up": "r = mk.simd_shuffle_up(a, 1)",
    "simd_shuffle_xor": "r = mk.simd_shuffle_xor(a, 1)",
    "mma_zero": "mk.mma_store(out, 0, 8, mk.mma_zero())",
    "mma": "acc = mk.mma(x, 0, 8, y, 0, 8, mk.mma_zero())\nmk.mma_store(out, 0, 8, acc)",
    "mma_store": "mk.mma_store(out, 0, 8, mk.mma(x, 0, 8, y, 0, 8, mk.mma_zero()))",
}
THREADS |= {f"simd_{op}": f"r = mk.simd_{op}(a)" for op in "sum prod max min prefix_sum prefix_exclusive_sum".split()}
THREADS |= {f"simd_{op}": f"r = mk.simd_{op}(n)" for op in "and or xor".split()}
THREADS |= {f"{where}_{op}": f"r = mk.{where}_{op}(a > 3)" for where in ("simd", "tg") for op in ("any", "all")}
THREADS |= {f"tg_{op}": f"r = mk.tg_{op}(a)" for op in "sum prod max min prefix_sum prefix_exclusive_sum".split()}

# Headings of the page, in the order of reading; a function that is in none of them stands under the last.
SECTIONS = {
    "Where am I": "program_id num_programs arange tid local_id lane_id sg_id",
    "Memory": "load store local alloc_tg alloc_tg_f16 barrier debug_barrier",
    "Loops, branches, variables": "var range while_ if_ else_ static_range",
    "Arithmetic": "where fma maximum minimum clamp abs floor ceil trunc round cdiv pow sqrt rsqrt cbrt hypot copysign popcount clz ctz umulhi and_ or_ not_ isnan isinf isfinite",
    "Elementary functions": "exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sigmoid erf",
    "Conversions": "cast bitcast " + " ".join(CASTS),
    "Blocks": "sort argsort topk flip cat gather histogram full zeros ones full_like zeros_like ones_like reshape ravel expand_dims broadcast_to trans permute join split",
    "Reductions and scans": " ".join(REDUCE) + " cumsum cumprod associative_scan reduce",
    "Products": "dot mma_zero mma mma_store",
    "Random numbers": "rand randn randint philox",
    "Atomics": " ".join(f"atomic_{op}" for op in [*ATOMIC, "xchg", "exchange", "cas", "compare_exchange", "load", "store"]) + " fence",
    "Across the threads of a simdgroup": " ".join(n for n in THREADS if n.startswith("simd_")),
    "Across the threads of a group": " ".join(n for n in THREADS if n.startswith("tg_")),
    "Promises and debugging": "assume multiple_of assert_ device_assert static_assert print device_print static_print",
    "More": "",
}
