/* bytes.c: matrix products of 8-bit integers, by vpdpbusd (VNNI) or pmaddwd.
 *
 * Such a product arrives as one of f32, whose factors are cast from i8 or u8, which starts from 0 and is cast
 * to i32 (src/ir/fold.c: sums of so few terms are exact). bytes_factors makes it a product of the bytes
 * themselves, in i32, and an addition of the result the product's start. The factors are laid out as 32-bit
 * words of neighbours along k in an area at the end of scratch; the register tiles are those of
 * matmul.c, which see a word as one step of k.
 *
 *   quads   vpdpbusd adds four products of an unsigned and a signed byte to a 32-bit sum, without saturation.
 *           Two signed factors: 128 is added to the
 *           left one, and 128 times the sum of each column of the right one taken off the start (`bias`).
 *   pairs   bytes widened to 16 bits; pmaddwd adds two products, exactly. Where there is no VNNI, and for two
 *           unsigned factors.
 */
#include "llvm.h"

enum { LANES = 16, FEWEST = 8 };

static bool is_byte(ir_type t) { return t.kind == IR_VAL && (t.dtype == EAS_I8 || t.dtype == EAS_U8); }

/* ---- which products ---- */

static uint32_t byte_of(const eas_ir *ir, uint32_t v)
{
    const ir_insn *in = ir_def(ir, v);
    return in && in->op == IR_CAST && is_byte(ir_typeof(ir, ir_args(ir, in)[0])) ? ir_args(ir, in)[0] : 0;
}

/* The largest sum must be exact in f32, or other devices would round what is exact here. */
static bool is_exact(const eas_ir *ir, uint32_t x, uint32_t y)
{
    const int64_t a = ir_typeof(ir, x).dtype == EAS_U8 ? 255 : 128,
                  b = ir_typeof(ir, y).dtype == EAS_U8 ? 255 : 128;
    return a * b * ir_typeof(ir, x).dim[1] <= 1 << 24;
}

static bool becomes_int(const eas_ir *ir, uint32_t v)
{
    bool any = false;
    for (uint32_t i = 0; i < ir->ninsns; i++)
        for (int k = 0; k < ir->insns[i].nargs; k++)
            if (ir_args(ir, &ir->insns[i])[k] == v) {
                any = true;
                if (ir->insns[i].op != IR_CAST || ir_typeof(ir, ir->insns[i].res).dtype != EAS_I32)
                    return false;
            }
    return any;
}

static bool wanted(const gen *g, const ir_insn *in)
{
    const eas_ir *ir = g->ir;
    int64_t zero;
    if (in->op != IR_MATMUL || ir_typeof(ir, in->res).dtype != EAS_F32)
        return false;
    const uint32_t *a = ir_args(ir, in), x = byte_of(ir, a[0]), y = byte_of(ir, a[1]);
    return x && y && ir_typeof(ir, x).dim[1] >= FEWEST && is_exact(ir, x, y) &&
           ir_const_of(ir, a[2], &zero) && !zero && becomes_int(ir, in->res);
}

/* What follows changes a copy of the IR. Instructions keep their numbers, faults are told by them: what is
 * not wanted any more is empty. */

static int uses_of(const eas_ir *ir, uint32_t v)
{
    int n = 0;
    for (uint32_t i = 0; i < ir->ninsns; i++)
        for (int k = 0; k < ir->insns[i].nargs; k++)
            n += ir->pool[ir->insns[i].args + (uint32_t)k] == v;
    return n;
}

static void replace(eas_ir *ir, uint32_t insn, uint32_t by)
{
    const uint32_t old = ir->insns[insn].res;
    ir->insns[insn] = (ir_insn){.op = IR_NOP};
    for (uint32_t i = 0; i < ir->npool; i++)
        if (ir->pool[i] == old)
            ir->pool[i] = by;
}

/* The only user of a product is an addition, in its region, to what is there before the product: that is
 * where it starts. */
static void start_from(eas_ir *ir, uint32_t product)
{
    const uint32_t v = ir->insns[product].res;
    if (uses_of(ir, v) != 1)
        return;
    for (uint32_t i = product + 1; i < ir->ninsns && !(ir_rows[ir->insns[i].op].flags & IR_STRUCT); i++) {
        const uint32_t *a = ir_args(ir, &ir->insns[i]);
        if (ir->insns[i].op != IR_ADD || (a[0] != v && a[1] != v))
            continue;
        const uint32_t other = a[0] == v ? a[1] : a[0];
        if (ir->vals[other].def >= product)
            return;
        ir->pool[ir->insns[product].args + 2] = other;
        replace(ir, i, v);
        return;
    }
}

static void with_bytes(eas_ir *ir, uint32_t product)
{
    uint32_t *a = ir->pool + ir->insns[product].args;
    const uint32_t v = ir->insns[product].res;
    const ir_type t = ir_with_dtype(ir_typeof(ir, v), EAS_I32);
    a[0] = byte_of(ir, a[0]);
    a[1] = byte_of(ir, a[1]);
    ir->vals[v].type = t;
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op == IR_CAST && ir_args(ir, &ir->insns[i])[0] == v)
            replace(ir, i, v);
    start_from(ir, product);
}

static eas_ir *copy_of(gen *g)
{
    const eas_ir *ir = g->ir;
    eas_ir *to = arena_alloc(&g->mem, sizeof *to);
    ir_insn *insns = arena_alloc(&g->mem, sizeof *insns * (ir->ninsns + 1));
    ir_val *vals = arena_alloc(&g->mem, sizeof *vals * (ir->nvals + 1));
    uint32_t *pool = arena_alloc(&g->mem, sizeof *pool * (ir->npool + 1));
    if (!to || !insns || !vals || !pool)
        return NULL;
    memcpy(insns, ir->insns, sizeof *insns * ir->ninsns);
    memcpy(vals, ir->vals, sizeof *vals * ir->nvals);
    memcpy(pool, ir->pool, sizeof *pool * ir->npool);
    *to = *ir;
    to->insns = insns;
    to->vals = vals;
    to->pool = pool;
    return to;
}

eas_status bytes_factors(gen *g)
{
    eas_ir *to = NULL;
    for (uint32_t i = 0; i < g->ir->ninsns && g->x86; i++) {
        if (!wanted(g, &g->ir->insns[i]))
            continue;
        if (!to && !(to = copy_of(g)))
            return base_fail_oom(g->ir->nvals);
        g->ir = g->p.ir = to;
        with_bytes(to, i);
    }
    for (uint32_t i = 0; to && i < to->ninsns; i++)
        if (to->insns[i].op == IR_CAST && !uses_of(to, to->insns[i].res))
            to->insns[i] = (ir_insn){.op = IR_NOP};
    return EAS_OK;
}

/* ---- where words lie ---- */

typedef struct words {
    int per;                 /* bytes in a word: 4, or 2 that are widened */
    bool xsigned, ysigned;
    bool bias;               /* 128 was added to the left factor */
    int64_t k;               /* words along k */
    int64_t xrow, yrow;      /* bytes from one row of words to the next */
    int64_t left, right, sums, bytes; /* offsets of the three areas, and their end */
} words;

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Rows a power of two apart would share a few sets of the cache. */
static int64_t apart(int64_t bytes) { return bytes % 256 ? bytes : bytes + 64; }

static words words_of(const gen *g, ir_type x, ir_type y)
{
    words w = {.xsigned = x.dtype == EAS_I8, .ysigned = y.dtype == EAS_I8};
    w.per = g->vnni && (w.xsigned || w.ysigned) ? 4 : 2;
    w.bias = w.per == 4 && w.xsigned && w.ysigned;
    w.k = (x.dim[1] + w.per - 1) / w.per;
    w.xrow = apart(up(w.k, LANES) * 4);
    w.yrow = apart(up(y.dim[1], LANES) * 4);
    w.right = x.dim[0] * w.xrow;
    w.sums = w.right + w.k * w.yrow;
    w.bytes = w.sums + (w.bias ? up(y.dim[1], LANES) * 4 : 0);
    return w;
}

void bytes_reserve(gen *g)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        const ir_insn *in = &g->ir->insns[i];
        if (in->op != IR_MATMUL || !is_byte(ir_typeof(g->ir, ir_args(g->ir, in)[0])))
            continue;
        const words w =
            words_of(g, ir_typeof(g->ir, ir_args(g->ir, in)[0]), ir_typeof(g->ir, ir_args(g->ir, in)[1]));
        most = w.bytes > most ? w.bytes : most;
    }
    g->bytes_at = up((int64_t)g->p.scratch, 64);
    if (most)
        g->p.scratch = (uint64_t)(g->bytes_at + most);
}

/* ---- laying out ---- */

static V bytes_on(gen *g, V p, V off) { return LLVMBuildGEP2(g->b, ty_int(g, 8, 0), p, &off, 1, ""); }
static V times(gen *g, V x, int64_t n) { return LLVMBuildMul(g->b, x, k_int(g, n), ""); }
static void put(gen *g, V p, V x) { LLVMSetAlignment(LLVMBuildStore(g->b, x, p), 64); }
static V widened(gen *g, V x, bool is_signed, T t)
{
    return is_signed ? LLVMBuildSExt(g->b, x, t, "") : LLVMBuildZExt(g->b, x, t, "");
}

/* n of so many bytes from p on, zeros behind them; one: the only element of a factor that is the same
 * everywhere */
static V read_bytes(gen *g, V p, V one, int lanes, int64_t n)
{
    V zero = LLVMConstNull(ty_int(g, 8, lanes));
    if (!one)
        return mem_read_first(g, p, EAS_I8, lanes, (int)n, zero);
    V in[MOST_LANES], all = splat(g, one, lanes);
    for (int i = 0; i < lanes; i++)
        in[i] = LLVMConstInt(ty_int(g, 1, 0), i < n, 0);
    return sel(g, LLVMConstVector(in, (unsigned)lanes), all, zero);
}

/* 16 words of a row of the left factor, of which n bytes are there */
static void lay_left_chunk(gen *g, const words *w, const matmul *p, V from, V to, int64_t n)
{
    V x = read_bytes(g, from, p->xs, LANES * w->per, n);
    if (w->bias)
        x = LLVMBuildXor(g->b, x, k_like(g, LLVMTypeOf(x), 128), "");
    if (w->per == 2)
        x = widened(g, x, w->xsigned, ty_int(g, 16, LANES * 2));
    put(g, to, LLVMBuildBitCast(g->b, x, ty_int(g, 32, LANES), ""));
}

static void lay_left(gen *g, const matmul *p, const words *w, V base)
{
    const int64_t chunk = LANES * w->per, whole = p->k / chunk, rest = p->k % chunk;
    loop r = loop_open(g, k_int(g, 0), k_int(g, p->m), 1);
    V from = p->xs ? base : bytes_on(g, p->x, LLVMBuildMul(g->b, r.iv, p->xrows, "")),
      to = bytes_on(g, base, times(g, r.iv, w->xrow));
    if (whole) {
        loop c = loop_open(g, k_int(g, 0), k_int(g, whole), 1);
        lay_left_chunk(g, w, p, bytes_on(g, from, times(g, c.iv, chunk)), bytes_on(g, to, times(g, c.iv, 64)),
                       chunk);
        loop_close(g, &c);
    }
    if (rest)
        lay_left_chunk(g, w, p, bytes_on(g, from, k_int(g, whole * chunk)),
                       bytes_on(g, to, k_int(g, whole * 64)), rest);
    loop_close(g, &r);
}

/* 16 columns of `rows` rows of the right factor, the first at `from`; fewer rows than fill a word are
 * followed by zeros */
static void lay_right_chunk(gen *g, const words *w, const matmul *p, V from, int64_t rows, V to, V bias,
                            int64_t n)
{
    const T t = ty_int(g, 32, LANES);
    const int bits = 32 / w->per;
    V word = LLVMConstNull(t), sum = word;
    for (int64_t i = 0; i < rows; i++) {
        V y = read_bytes(g, p->ys ? from : bytes_on(g, from, LLVMBuildMul(g->b, p->ystep, k_int(g, i), "")),
                         p->ys, LANES, n),
          x = widened(g, y, w->ysigned, t);
        sum = w->bias ? LLVMBuildAdd(g->b, sum, x, "") : sum;
        x = LLVMBuildAnd(g->b, x, k_like(g, t, (1 << bits) - 1), "");
        word = LLVMBuildOr(g->b, word, LLVMBuildShl(g->b, x, k_like(g, t, bits * i), ""), "");
    }
    put(g, to, word);
    if (!w->bias)
        return;
    V old = LLVMBuildLoad2(g->b, t, bias, "");
    LLVMSetAlignment(old, 64);
    put(g, bias, LLVMBuildSub(g->b, old, LLVMBuildShl(g->b, sum, k_like(g, t, 7), ""), ""));
}

static void lay_right_row(gen *g, const words *w, const matmul *p, V from, int64_t rows, V to, V bias)
{
    const int64_t whole = p->n / LANES, rest = p->n % LANES;
    if (whole) {
        loop c = loop_open(g, k_int(g, 0), k_int(g, whole), 1);
        V at = times(g, c.iv, 64);
        lay_right_chunk(g, w, p, p->ys ? from : bytes_on(g, from, times(g, c.iv, LANES)), rows,
                        bytes_on(g, to, at), bytes_on(g, bias, at), LANES);
        loop_close(g, &c);
    }
    V at = k_int(g, whole * 64);
    if (rest)
        lay_right_chunk(g, w, p, p->ys ? from : bytes_on(g, from, k_int(g, whole * LANES)), rows,
                        bytes_on(g, to, at), bytes_on(g, bias, at), rest);
}

static void lay_right(gen *g, const matmul *p, const words *w, V base, V bias)
{
    const int64_t whole = p->k / w->per, rest = p->k % w->per;
    if (w->bias) {
        loop z = loop_open(g, k_int(g, 0), k_int(g, up(p->n, LANES) * 4), 64);
        put(g, bytes_on(g, bias, z.iv), LLVMConstNull(ty_int(g, 32, LANES)));
        loop_close(g, &z);
    }
    if (whole) {
        loop j = loop_open(g, k_int(g, 0), k_int(g, whole), 1);
        V from = p->ys ? base : bytes_on(g, p->y, LLVMBuildMul(g->b, times(g, j.iv, w->per), p->ystep, ""));
        lay_right_row(g, w, p, from, w->per, bytes_on(g, base, times(g, j.iv, w->yrow)), bias);
        loop_close(g, &j);
    }
    if (!rest)
        return;
    V from = p->ys ? base : bytes_on(g, p->y, LLVMBuildMul(g->b, k_int(g, whole * w->per), p->ystep, ""));
    lay_right_row(g, w, p, from, rest, bytes_on(g, base, k_int(g, whole * w->yrow)), bias);
}

/* ---- a step ---- */

/* The operands as the intrinsic wants them: newer LLVMs take vectors of bytes. */
static V call(gen *g, const char *name, V *a, int n)
{
    T want[3];
    const unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    LLVMGetParamTypes(LLVMIntrinsicGetType(g->cx, id, NULL, 0), want);
    for (int i = 0; i < n; i++)
        a[i] = LLVMBuildBitCast(g->b, a[i], want[i], "");
    return intrinsic(g, name, NULL, 0, a, n);
}

V bytes_step(gen *g, const matmul *p, V x, V y, V sum)
{
    const int lanes = (int)LLVMGetVectorSize(LLVMTypeOf(sum)), size = lanes >= 16 ? 2 : lanes >= 8 ? 1 : 0;
    static const char *const quads[] = {"llvm.x86.avx512.vpdpbusd.128", "llvm.x86.avx512.vpdpbusd.256",
                                        "llvm.x86.avx512.vpdpbusd.512"};
    static const char *const pairs[] = {"llvm.x86.sse2.pmadd.wd", "llvm.x86.avx2.pmadd.wd",
                                        "llvm.x86.avx512.pmaddw.d.512"};
    if (p->words == WORDS_QUADS || p->words == WORDS_QUADS_TURNED) {
        const bool turned = p->words == WORDS_QUADS_TURNED; /* the right factor is the unsigned one */
        V a[3] = {sum, turned ? y : x, turned ? x : y};
        return call(g, quads[size], a, 3);
    }
    V a[2] = {x, y};
    return LLVMBuildAdd(g->b, sum, call(g, pairs[size], a, 2), "");
}

void bytes_product(gen *g, matmul *p, ir_type x, ir_type y)
{
    const words w = words_of(g, x, y);
    V left = mem_slot(g, g->bytes_at), right = mem_slot(g, g->bytes_at + w.right),
      sums = mem_slot(g, g->bytes_at + w.sums);
    lay_left(g, p, &w, left);
    lay_right(g, p, &w, right, sums);
    p->words = w.per == 2 ? WORDS_SHORTS : w.xsigned && !w.bias ? WORDS_QUADS_TURNED : WORDS_QUADS;
    p->bias = w.bias ? sums : NULL;
    p->x = left;
    p->y = right;
    p->xs = p->ys = NULL;
    p->xrow = w.xrow / 4;
    p->xstep = k_int(g, 1);
    p->ystep = k_int(g, w.yrow / 4);
    p->xfar = p->yfar = false;
    p->k = w.k;
}
