/* fold.c: along an axis. Orders are those of src/ir/fold.c.
 *
 * A reduction takes part in the chunks of its operand's segment. Along the last axis its accumulators lie
 * side by side in a small array on the stack: lane i is joined with accumulator i modulo 64 (32 for 8-byte
 * elements), and after the last chunk they are joined to one. Whole rounds of so many lanes keep the
 * accumulators in registers, which start with the identity element. Along any other axis the result's own
 * slot holds the accumulators.
 *
 * Scans and transposes are segments of their own: they read one slot and write another.
 */
#include "llvm.h"

#include <math.h>

static V load_vec(gen *g, V p, eas_dtype dt, int n)
{
    V x = LLVMBuildLoad2(g->b, ty_mem(g, dt, n), p, "");
    LLVMSetAlignment(x, (unsigned)eas_dtype_size(dt));
    return dt == EAS_BOOL ? LLVMBuildICmp(g->b, LLVMIntNE, x, k_like(g, LLVMTypeOf(x), 0), "") : x;
}

static void store_vec(gen *g, V p, eas_dtype dt, V x)
{
    if (dt == EAS_BOOL)
        x = LLVMBuildZExt(g->b, x, with_bits(g, LLVMTypeOf(x), 8), "");
    LLVMSetAlignment(LLVMBuildStore(g->b, x, p), (unsigned)eas_dtype_size(dt));
}

static V join(gen *g, const ir_insn *in, V a, V b)
{
    return value_insn(g, ir_join_of(in->op), (eas_dtype)ir_typeof(g->ir, in->res).dtype, a, b, NULL);
}

static V scaled(gen *g, V i, int64_t k) { return LLVMBuildMul(g->b, i, k_int(g, k), ""); }

/* ---- reductions ---- */

/* in the operand's canonical shape; NODIM if it has one element */
static int axis_dim(gen *g, const ir_insn *in)
{
    return plan_canon_dim(ir_typeof(g->ir, ir_args(g->ir, in)[0]), (int)in->imm);
}

static bool along_last(gen *g, const ir_insn *in)
{
    return axis_dim(g, in) == g->p.val[ir_args(g->ir, in)[0]].sh.rank - 1;
}

static int64_t chains_of(gen *g, const ir_insn *in)
{
    const ir_type t = ir_typeof(g->ir, ir_args(g->ir, in)[0]);
    const int64_t w = ir_chains((eas_dtype)t.dtype), n = t.dim[in->imm];
    return n < w ? n : w;
}

/* where the result of the running outer indices lies, for a reduction along dim `axis` */
static V result_place(gen *g, const ir_insn *in, int axis)
{
    const kind *r = &g->p.val[in->res];
    map_t m = map_identity(0);
    int64_t stride;
    for (int d = 0; d < r->sh.rank; d++)
        m = (map_t)((m & ~(15 << (4 * d))) | (d < axis ? d : d + 1) << (4 * d));
    return mem_element(g, mem_slot(g, g->p.at[in->res].slot), (eas_dtype)ir_typeof(g->ir, in->res).dtype,
                       seg_linear(g, &r->sh, m, &stride));
}

/* The identity element of the reduction. */
static int64_t identity_bits(uint16_t op, eas_dtype dt)
{
    const bool real = dtype_is_float(dt);
    switch (op) {
    case IR_ADD: return real ? ir_bits_from_double(dt, -0.0) : 0;
    case IR_MUL: return real ? ir_bits_from_double(dt, 1) : 1;
    case IR_MIN: return real ? ir_bits_from_double(dt, (double)INFINITY) : (int64_t)dtype_max(dt);
    case IR_MAX: return real ? ir_bits_from_double(dt, (double)-INFINITY) : dtype_min(dt);
    case IR_AND: return dt == EAS_BOOL ? 1 : -1;
    default: return 0;
    }
}

static bool in_rounds(gen *g, const ir_insn *in)
{
    return in && is_reduce(in) && axis_dim(g, in) != NODIM && along_last(g, in);
}

static V chains_at(gen *g, const ir_insn *in, V lane)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    if (!g->chains[in->res])
        g->chains[in->res] = entry_alloca(g, ty_mem(g, dt, IR_CHAINS));
    return mem_element(g, g->chains[in->res], dt, lane);
}

int64_t fold_round(gen *g, const segment *s)
{
    int64_t w = 0;
    for (uint32_t i = 0; i < s->items.len && s->reduces; i++) {
        const ir_insn *in = s->items.at[i].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[i].insn];
        const int64_t mine = in_rounds(g, in) ? ir_chains((eas_dtype)ir_typeof(g->ir, in->res).dtype) : 0;
        w = mine > w ? mine : w;
    }
    return w % g->c->n ? 0 : w;
}

/* Calls f for the registers of every reduction that takes part in rounds. */
typedef void each_chain(gen *g, const ir_insn *in, V *reg, int k, void *ctx);
static void for_chains(gen *g, const segment *s, each_chain *f, void *ctx)
{
    for (uint32_t i = 0; i < s->items.len; i++) {
        const ir_insn *in = s->items.at[i].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[i].insn];
        if (!in_rounds(g, in))
            continue;
        const int count = (int)(ir_chains((eas_dtype)ir_typeof(g->ir, in->res).dtype) / g->c->n);
        V **regs = &g->c->regs[in->res];
        if (!*regs && !(*regs = arena_alloc(&g->mem, sizeof **regs * (size_t)count))) {
            gen_fail(g, EAS_ERR_MEMORY, "out of memory");
            return;
        }
        for (int k = 0; k < count; k++)
            f(g, in, &(*regs)[k], k, ctx);
    }
}

typedef struct chain_phis { /* in order */
    LLVMBasicBlockRef from;
    V *phi;
    int n;
} chain_phis;

static void open_chain(gen *g, const ir_insn *in, V *reg, int k, void *ctx)
{
    chain_phis *c = ctx;
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    V none = k_bits(g, dt, g->c->n, identity_bits(ir_join_of(in->op), dt));
    (void)k;
    *reg = LLVMBuildPhi(g->b, ty_of(g, dt, g->c->n), "");
    LLVMAddIncoming(*reg, &none, &c->from, 1);
    c->phi[c->n++] = *reg;
}

static void next_chain(gen *g, const ir_insn *in, V *reg, int k, void *ctx)
{
    chain_phis *c = ctx;
    V next = *reg;
    (void)g, (void)in, (void)k;
    *reg = c->phi[c->n++];
    LLVMAddIncoming(*reg, &next, &c->from, 1);
}

static void put_chain(gen *g, const ir_insn *in, V *reg, int k, void *ctx)
{
    (void)ctx;
    store_vec(g, chains_at(g, in, k_int(g, (int64_t)k * g->c->n)), (eas_dtype)ir_typeof(g->ir, in->res).dtype,
              *reg);
}

/* A loop over rounds of `w` elements whose running results stay in registers: each chain is a phi of the
 * loop, and the chunks of a round are unrolled, so that neighbouring chunks add to different chains and no
 * addition waits for the one before. */
void fold_rounds(gen *g, const segment *s, V hi, int64_t w, void chunk_at(gen *, const segment *, V))
{
    chain_phis c = {.from = LLVMGetInsertBlock(g->b)};
    LLVMBasicBlockRef head = new_block(g, "rounds"), body = new_block(g, "round"),
                      done = new_block(g, "rounded");
    c.phi = arena_alloc(&g->mem, sizeof *c.phi * (s->items.len + 1) * IR_CHAINS);
    g->c->regs = arena_alloc(&g->mem, sizeof *g->c->regs * (g->ir->nvals + 1));
    if (!c.phi || !g->c->regs) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    branch_to(g, head);
    LLVMPositionBuilderAtEnd(g->b, head);
    V iv = LLVMBuildPhi(g->b, ty_int(g, 64, 0), ""), zero = k_int(g, 0);
    LLVMAddIncoming(iv, &zero, &c.from, 1);
    for_chains(g, s, open_chain, &c);
    LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, iv, hi, ""), body, done);
    LLVMPositionBuilderAtEnd(g->b, body);
    for (int64_t at = 0; at < w; at += g->c->n) {
        g->c->part = (int)(at / g->c->n);
        chunk_at(g, s, LLVMBuildAdd(g->b, iv, k_int(g, at), ""));
    }
    V next = LLVMBuildAdd(g->b, iv, k_int(g, w), "");
    c.from = LLVMGetInsertBlock(g->b);
    LLVMAddIncoming(iv, &next, &c.from, 1);
    branch_to(g, head);
    LLVMPositionBuilderAtEnd(g->b, done);
    c.n = 0;
    for_chains(g, s, next_chain, &c);
    for_chains(g, s, put_chain, NULL);
    g->c->regs = NULL;
}

void fold_chunk(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    const int axis = axis_dim(g, in), n = g->c->n;
    V x = seg_here(g, ir_args(g->ir, in)[0]), at, first;
    if (axis == NODIM) { /* of one element: a copy */
        seg_define(g, in->res, x);
        return;
    }
    if (along_last(g, in)) {
        const int64_t w = ir_chains(dt);
        V *reg = g->c->regs ? &g->c->regs[in->res][g->c->part % (w / n)] : NULL;
        if (reg) {
            *reg = join(g, in, *reg, x);
            return;
        }
        at = chains_at(g, in, LLVMBuildAnd(g->b, g->c->idx[axis], k_int(g, w - 1), ""));
        first = LLVMBuildICmp(g->b, LLVMIntSLT, g->c->idx[axis], k_int(g, w), "");
    } else {
        at = result_place(g, in, axis);
        first = LLVMBuildICmp(g->b, LLVMIntEQ, g->c->idx[axis], k_int(g, 0), "");
    }
    V old = load_vec(g, at, dt, n), r = LLVMBuildSelect(g->b, first, x, join(g, in, old, x), "");
    store_vec(g, at, dt, g->c->exec ? sel(g, g->c->exec, r, old) : r);
}

static V half(gen *g, V x, int from, int n)
{
    V idx[IR_CHAINS];
    for (int k = 0; k < n; k++)
        idx[k] = LLVMConstInt(ty_int(g, 32, 0), (unsigned)(from + k), 0);
    return LLVMBuildShuffleVector(g->b, x, LLVMGetUndef(LLVMTypeOf(x)), LLVMConstVector(idx, (unsigned)n),
                                  "");
}

static V lanes_below(gen *g, int n, int count)
{
    V bit[IR_CHAINS];
    for (int k = 0; k < n; k++)
        bit[k] = LLVMConstInt(ty_int(g, 1, 0), k < count, 0);
    return LLVMConstVector(bit, (unsigned)n);
}

static V join_chains(gen *g, const ir_insn *in)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    const int w = (int)chains_of(g, in);
    int p = 1;
    while (2 * p <= w)
        p *= 2;
    V ptr = g->chains[in->res], x = load_vec(g, ptr, dt, p);
    if (w > p)
        x = sel(g, lanes_below(g, p, w - p),
                join(g, in, x, load_vec(g, mem_element(g, ptr, dt, k_int(g, p)), dt, p)), x);
    for (p /= 2; p; p /= 2)
        x = join(g, in, half(g, x, 0, p), half(g, x, p, p));
    return LLVMBuildExtractElement(g->b, x, k_int(g, 0), "");
}

void fold_finish(gen *g, const segment *s)
{
    /* after a failure there may be no chains */
    for (uint32_t i = 0; i < s->items.len && s->reduces && !g->st; i++) {
        const ir_insn *in = s->items.at[i].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[i].insn];
        if (!in || !is_reduce(in) || !along_last(g, in))
            continue;
        const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
        V x = join_chains(g, in);
        if (g->p.val[in->res].cls == C_UNI) {
            g->sval[in->res] = x; /* the operand has one dim, so nothing stands around this */
            continue;
        }
        int64_t stride;
        const shape *sh = &g->p.val[in->res].sh;
        mem_store_scalar(g, mem_slot(g, g->p.at[in->res].slot), dt,
                         seg_linear(g, sh, map_identity(sh->rank), &stride), x);
    }
}

/* ---- scans ---- */

static V shifted(gen *g, V x, int s) /* lane k holds lane k - s; the first s hold something */
{
    V idx[IR_CHUNK];
    for (int k = 0; k < IR_CHUNK; k++)
        idx[k] = LLVMConstInt(ty_int(g, 32, 0), (unsigned)(k < s ? 0 : k - s), 0);
    return LLVMBuildShuffleVector(g->b, x, LLVMGetUndef(LLVMTypeOf(x)), LLVMConstVector(idx, IR_CHUNK), "");
}

static V scan_chunk(gen *g, const ir_insn *in, V x)
{
    for (int s = 1; s < IR_CHUNK; s *= 2)
        x = sel(g, lanes_below(g, IR_CHUNK, s), x, join(g, in, shifted(g, x, s), x));
    return x;
}

/* one line of n elements; whole chunks are written, what lies behind them is written later or is padding */
static void scan_line(gen *g, const ir_insn *in, V from, V to, int64_t n)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    V first = scan_chunk(g, in, load_vec(g, from, dt, IR_CHUNK)), last = k_int(g, IR_CHUNK - 1);
    store_vec(g, to, dt, first);
    if (n <= IR_CHUNK)
        return;
    V start = LLVMBuildExtractElement(g->b, first, last, "");
    loop l = loop_open(g, k_int(g, 0), k_int(g, n - IR_CHUNK), IR_CHUNK);
    V carry = loop_carry(g, &l, start), at = LLVMBuildAdd(g->b, l.iv, k_int(g, IR_CHUNK), "");
    V x = scan_chunk(g, in, load_vec(g, mem_element(g, from, dt, at), dt, IR_CHUNK));
    store_vec(g, mem_element(g, to, dt, at), dt, join(g, in, splat(g, carry, IR_CHUNK), x));
    loop_carried(g, &l, carry, join(g, in, carry, LLVMBuildExtractElement(g->b, x, last, "")));
    loop_close(g, &l);
}

/* lines of `inner` neighbours, one after the other */
static void scan_lines(gen *g, const ir_insn *in, V from, V to, const ir_axis *a)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    int n = g->opt->vector_bytes / (int)eas_dtype_size(dt);
    while (n > 1 && a->inner % n)
        n /= 2;
    loop l = loop_open(g, k_int(g, 0), k_int(g, a->inner), n);
    V x = load_vec(g, mem_element(g, from, dt, l.iv), dt, n);
    store_vec(g, mem_element(g, to, dt, l.iv), dt, x);
    loop_close(g, &l);
    loop k = loop_open(g, k_int(g, 0), k_int(g, a->n - 1), 1);
    V row = scaled(g, k.iv, a->inner);
    loop j = loop_open(g, k_int(g, 0), k_int(g, a->inner), n);
    V old = LLVMBuildAdd(g->b, row, j.iv, ""), at = LLVMBuildAdd(g->b, old, k_int(g, a->inner), "");
    x = join(g, in, load_vec(g, mem_element(g, to, dt, old), dt, n),
             load_vec(g, mem_element(g, from, dt, at), dt, n));
    store_vec(g, mem_element(g, to, dt, at), dt, x);
    loop_close(g, &j);
    loop_close(g, &k);
}

static void scan_insn(gen *g, const ir_insn *in)
{
    const uint32_t x = ir_args(g->ir, in)[0];
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, x).dtype;
    const ir_axis a = ir_axis_of(ir_typeof(g->ir, x), (int)in->imm);
    loop o = loop_open(g, k_int(g, 0), k_int(g, a.outer), 1);
    V off = scaled(g, o.iv, a.n * a.inner);
    V from = mem_element(g, mem_slot(g, g->p.at[x].slot), dt, off),
      to = mem_element(g, mem_slot(g, g->p.at[in->res].slot), dt, off);
    if (a.inner == 1)
        scan_line(g, in, from, to, a.n);
    else
        scan_lines(g, in, from, to, &a);
    loop_close(g, &o);
}

/* ---- transposes: tiles in registers, single elements at the edges ----
 *
 * A tile is n rows by as many columns as fit 16 bytes. Pieces of that size are loaded directly to their
 * place in the result's rows, so only the small squares inside each piece must be transposed by shuffles.
 * That takes half the shuffles of squares of n by n, and a quarter of the code.
 */

/* The first or the second halves of the pieces of a and b, their elements in turns: there is an
 * instruction for that. */
static V interleave(gen *g, V a, V b, int n, int w, bool second)
{
    V idx[16];
    for (int k = 0; k < n; k++) {
        const int lane = k / w * w + (second ? w / 2 : 0) + k % w / 2 + (k % 2 ? n : 0);
        idx[k] = LLVMConstInt(ty_int(g, 32, 0), (unsigned)lane, 0);
    }
    return LLVMBuildShuffleVector(g->b, a, b, LLVMConstVector(idx, (unsigned)n), "");
}

/* `count` pieces of w elements, `step` apart, side by side */
static V load_pieces(gen *g, V from, eas_dtype dt, int w, int count, int64_t step)
{
    V idx[16];
    if (count == 1)
        return load_vec(g, from, dt, w);
    V lo = load_pieces(g, from, dt, w, count / 2, step),
      hi = load_pieces(g, mem_element(g, from, dt, k_int(g, count / 2 * step)), dt, w, count / 2, step);
    for (int k = 0; k < w * count; k++)
        idx[k] = LLVMConstInt(ty_int(g, 32, 0), (unsigned)k, 0);
    return LLVMBuildShuffleVector(g->b, lo, hi, LLVMConstVector(idx, (unsigned)(w * count)), "");
}

static void transpose_tile(gen *g, V from, V to, eas_dtype dt, int n, int w, int64_t cols, int64_t pitch)
{
    V r[16], old[16];
    for (int i = 0; i < w; i++)
        r[i] = load_pieces(g, mem_element(g, from, dt, k_int(g, i * cols)), dt, w, n / w, w * cols);
    for (int s = 1; s < w; s *= 2) {
        memcpy(old, r, sizeof r);
        for (int i = 0; i < w; i++)
            r[i] = interleave(g, old[i / 2], old[i / 2 + w / 2], n, w, i % 2);
    }
    for (int i = 0; i < w; i++)
        store_vec(g, mem_element(g, to, dt, k_int(g, i * pitch)), dt, r[i]);
}

typedef struct matrix {
    V from, to;
    eas_dtype dt;
    int64_t rows, cols; /* of the operand */
    int64_t pitch; /* from one row of the result to the next */
} matrix;

/* rows r0 <= r < r1 and columns c0 <= c < c1 in tiles of n by w (n = 1: elements) */
static void transpose_part(gen *g, const matrix *m, int64_t r0, int64_t r1, int64_t c0, int64_t c1, int n,
                           int w)
{
    if (r0 >= r1 || c0 >= c1)
        return;
    loop i = loop_open(g, k_int(g, 0), k_int(g, r1 - r0), n);
    V r = LLVMBuildAdd(g->b, i.iv, k_int(g, r0), "");
    loop j = loop_open(g, k_int(g, 0), k_int(g, c1 - c0), w);
    V c = LLVMBuildAdd(g->b, j.iv, k_int(g, c0), "");
    V from = mem_element(g, m->from, m->dt, LLVMBuildAdd(g->b, scaled(g, r, m->cols), c, ""));
    V to = mem_element(g, m->to, m->dt, LLVMBuildAdd(g->b, scaled(g, c, m->pitch), r, ""));
    if (n == 1)
        mem_store_scalar(g, to, m->dt, k_int(g, 0), mem_load_scalar(g, from, m->dt, k_int(g, 0)));
    else
        transpose_tile(g, from, to, m->dt, n, w, m->cols, m->pitch);
    loop_close(g, &j);
    loop_close(g, &i);
}

static void trans_insn(gen *g, const ir_insn *in)
{
    const uint32_t x = ir_args(g->ir, in)[0];
    const shape *sh = &g->p.val[x].sh;
    matrix m = {.dt = (eas_dtype)ir_typeof(g->ir, x).dtype,
                .rows = sh->dim[sh->rank - 2],
                .cols = sh->dim[sh->rank - 1]};
    m.pitch = g->p.at[in->res].pitch ? g->p.at[in->res].pitch : m.rows; /* a pitch is for two dims only */
    const int64_t all = shape_lanes(sh) / (m.rows * m.cols);
    int n = g->opt->vector_bytes / (int)eas_dtype_size(m.dt), w = 16 / (int)eas_dtype_size(m.dt);
    n = n > 16 ? 16 : n;
    loop o = loop_open(g, k_int(g, 0), k_int(g, all), 1);
    V off = scaled(g, o.iv, m.rows * m.cols);
    m.from = mem_element(g, mem_slot(g, g->p.at[x].slot), m.dt, off);
    m.to = mem_element(g, mem_slot(g, g->p.at[in->res].slot), m.dt, off);
    const int64_t r = m.rows / n * n, c = m.cols / w * w;
    transpose_part(g, &m, 0, r, 0, c, n, w);
    transpose_part(g, &m, r, m.rows, 0, m.cols, 1, 1);
    transpose_part(g, &m, 0, r, c, m.cols, 1, 1);
    loop_close(g, &o);
}

void whole_insn(gen *g, const segment *s)
{
    const ir_insn *in = &g->ir->insns[s->items.at[0].insn];
    if (in->op == IR_MATMUL)
        matmul_insn(g, s);
    else if (in->op == IR_TRANS)
        trans_insn(g, in);
    else
        scan_insn(g, in);
    if (g->p.val[in->res].cls == C_UNI)
        g->sval[in->res] = mem_load_scalar(g, mem_slot(g, g->p.at[in->res].slot),
                                           (eas_dtype)ir_typeof(g->ir, in->res).dtype, k_int(g, 0));
}
