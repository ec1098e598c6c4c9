/* ctext.c: kernel IR as C-like source text: MSL and OpenCL C.
 *
 *   check (the dialect) -> plan -> body -> head
 *
 * The body is printed first; what it asked for (built-in values, helper functions) decides the head. A scalar is a variable
 * v<id>; a block is a loop over lanes with one variable per value inside it, or an array v<id>[lanes] where a loop of its own
 * cannot be avoided (see ctext_plan.c). Constants stand where they are used. Values carried by loops and merged by
 * branches are variables that are assigned.
 *
 * The text depends on nothing but the IR. The caller's IR is verified and simplified; it is read only.
 */
#include "ctext.h"

#include <stdio.h>

typedef struct ct_inst { /* a recomputed value in the current lane loop */
    ct_at at;
    const char *name;
    uint32_t next;
} ct_inst;

const char *ct_fmt(ct *g, const char *fmt, ...)
{
    va_list ap;
    str s = {0};
    va_start(ap, fmt);
    str_vadd(&s, fmt, ap);
    va_end(ap);
    const char *r = s.oom ? NULL : arena_strndup(&g->mem, s.at ? s.at : "", s.len);
    if (s.oom)
        g->mem.oom = true;
    str_free(&s);
    return r ? r : "";
}

void ct_line(ct *g, const char *fmt, ...)
{
    va_list ap;
    for (int i = 0; i < g->indent; i++)
        str_put(&g->body, "    ", 4);
    va_start(ap, fmt);
    str_vadd(&g->body, fmt, ap);
    va_end(ap);
    str_put(&g->body, "\n", 1);
    if (!vec_push(&g->lines, ct_source(g)))
        g->mem.oom = true;
}

const char *ct_name(ct *g, uint32_t v)
{
    if (!g->name[v])
        g->name[v] = ct_fmt(g, "v%u", v);
    return g->name[v];
}

static const char *type_name(ct *g, ir_type t) { return t.kind == IR_FRAG ? g->d->frag : g->d->type[t.dtype]; }
static bool is_block(ir_type t) { return t.kind == IR_VAL && ir_lanes(t) > 1; }

/* ---- values ---- */

static bool same_place(ir_type t, const ct_at *a, const ct_at *b)
{
    for (int d = 0; d < t.rank; d++)
        if (strcmp(a->dim[d], b->dim[d]))
            return false;
    return true;
}

static ct_inst *find_inst(ct *g, uint32_t v, const ct_at *at, int *count)
{
    *count = 0;
    if (g->inst_epoch[v] != g->loop.epoch) {
        g->inst_epoch[v] = g->loop.epoch;
        g->inst_head[v] = 0;
    }
    for (uint32_t k = g->inst_head[v]; k; k = g->insts[k - 1].next, ++*count)
        if (same_place(ir_typeof(g->ir, v), &g->insts[k - 1].at, at))
            return &g->insts[k - 1];
    return NULL;
}

static const char *remember(ct *g, uint32_t v, const ct_at *at, const char *name)
{
    if (!vec_grow((void **)&g->insts, &g->capinsts, g->ninsts + 1, sizeof *g->insts)) {
        g->mem.oom = true;
        return name;
    }
    g->insts[g->ninsts++] = (ct_inst){*at, name, g->inst_head[v]};
    g->inst_head[v] = g->ninsts;
    return name;
}

static const char *arange_expr(ct *g, const ir_insn *in, const char *lane)
{
    eas_dtype dt = ir_typeof(g->ir, in->res).dtype;
    if (dt == EAS_U32 && in->imm == 0)
        return lane;
    const char *x = dt == EAS_U32 ? lane : ct_fmt(g, ct_plain(lane) ? "(%s)%s" : "(%s)(%s)", g->d->type[dt], lane);
    return in->imm ? ct_fmt(g, "%s + %s", x, ct_literal(g, dt, in->imm)) : x;
}

static const char *mask_of(ct *g, uint32_t mask, const ct_at *at)
{
    int64_t bits;
    if (ir_const_of(g->ir, mask, &bits) && bits)
        return NULL;
    return g->early_done && mask == g->early ? NULL : ct_ref(g, mask, at);
}

static const char *load_expr(ct *g, const ir_insn *in, const ct_at *at)
{
    const uint32_t *a = ir_args(g->ir, in);
    const char *off = ct_ref(g, a[1], at);
    const char *mask = in->nargs == 4 ? mask_of(g, a[2], at) : NULL;
    const char *other = mask ? ct_ref(g, a[3], at) : NULL;
    const char *x = g->d->load(g, a[0], off);
    return mask ? ct_fmt(g, "%s ? %s : %s", mask, x, other) : x;
}

static const char *recompute(ct *g, uint32_t v, const ct_at *at)
{
    const ir_insn *in = ir_def(g->ir, v);
    int count;
    if (in->op == IR_ARANGE && in->imm == 0 && ir_typeof(g->ir, v).dtype == EAS_U32)
        return ct_plain(at->dim[0]) ? at->dim[0] : ct_fmt(g, "(%s)", at->dim[0]);
    ct_inst *have = find_inst(g, v, at, &count);
    if (have)
        return have->name;
    const char *x = in->op == IR_ARANGE ? arange_expr(g, in, at->dim[0]) : in->op == IR_LOAD ? load_expr(g, in, at) : ct_expr(g, in, at);
    if (g->inlined[v])
        return ct_fmt(g, "(%s)", x);
    const char *name = count ? ct_fmt(g, "v%u_%d", v, count) : ct_fmt(g, "v%u", v);
    ct_line(g, "%s %s = %s;", type_name(g, ir_typeof(g->ir, v)), name, x);
    return remember(g, v, at, name);
}

static const char *view_ref(ct *g, const ir_insn *in, const ct_at *at)
{
    const uint32_t *a = ir_args(g->ir, in);
    const char *inside;
    ct_at from = ct_through(g, in, at, &inside);
    const char *x = ct_ref(g, a[0], &from);
    return inside ? ct_fmt(g, "(%s ? %s : %s)", inside, x, ct_ref(g, a[1], NULL)) : x;
}

const char *ct_ref(ct *g, uint32_t v, const ct_at *at)
{
    const eas_ir *ir = g->ir;
    int64_t bits;
    ir_type t = ir_typeof(ir, v);
    if (t.kind != IR_VAL)
        return ct_name(g, v);
    if (ir_const_of(ir, v, &bits))
        return ct_literal(g, t.dtype, bits);
    ct_at here = at ? *at : ct_natural(t);
    const ir_insn *in = ir_def(ir, v);
    if (in && ct_is_view(ir, in))
        return view_ref(g, in, &here);
    if (!is_block(t)) {
        if (v <= (uint32_t)ir->nparams && t.dtype == EAS_BOOL && strcmp(g->d->mem[EAS_BOOL], "bool"))
            return ct_fmt(g, "(%s != 0)", ct_name(g, v));
        if (g->inlined[v])
            return ct_fmt(g, "(%s)", ct_expr(g, in, NULL));
        return ct_name(g, v);
    }
    if (g->remat[v])
        return recompute(g, v, &here);
    if (g->array[v])
        return ct_fmt(g, "%s[%s]", ct_name(g, v), ct_flat(g, t, &here));
    if (g->inlined[v])
        return ct_fmt(g, "(%s)", ct_expr(g, in, &here));
    return ct_name(g, v);
}

const char *ct_ref_often(ct *g, uint32_t v, const ct_at *at)
{
    ir_type t = ir_typeof(g->ir, v);
    const char *x = ct_ref(g, v, at);
    int count;
    if (!is_block(t) || !strpbrk(x, "[?"))
        return x;
    ct_at here = at ? *at : ct_natural(t);
    ct_inst *have = find_inst(g, v, &here, &count);
    if (have)
        return have->name;
    const char *name = count || g->array[v] ? ct_fmt(g, "v%u_%d", v, count + 1) : ct_fmt(g, "v%u", v);
    ct_line(g, "%s %s = %s;", g->d->type[t.dtype], name, x);
    return remember(g, v, &here, name);
}

/* Gives v its value: a new variable, or its element of an array that stands before the loop. */
static void define(ct *g, uint32_t v, const char *x)
{
    ir_type t = ir_typeof(g->ir, v);
    ct_at at = ct_natural(t);
    if (is_block(t) && g->array[v])
        ct_line(g, "%s[%s] = %s;", ct_name(g, v), ct_flat(g, t, &at), x);
    else
        ct_line(g, "%s %s = %s;", type_name(g, t), ct_name(g, v), x);
}

static void declare_array(ct *g, ir_type t, const char *name)
{
    ct_line(g, "%s %s[%lld]%s;", ct_array_type(g, t.dtype), name, (long long)ir_lanes(t), g->lanes ? " __attribute__((aligned(64)))" : "");
}

static void declare(ct *g, uint32_t v)
{
    ir_type t = ir_typeof(g->ir, v);
    if (is_block(t))
        declare_array(g, t, ct_name(g, v));
    else
        ct_line(g, "%s %s;", type_name(g, t), ct_name(g, v));
}

/* ---- memory ---- */

static void print_load(ct *g, const ir_insn *in) { define(g, in->res, load_expr(g, in, NULL)); }

static void print_store(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const char *off = ct_ref(g, a[1], NULL), *x = ct_ref(g, a[2], NULL);
    const char *mask = in->nargs == 4 ? mask_of(g, a[3], NULL) : NULL;
    g->d->store(g, mask ? ct_fmt(g, "if (%s) ", mask) : "", a[0], off, x);
}

const uint16_t ct_float_atomics[CT_NFLOAT_ATOMICS] = {IR_ATOMIC_ADD, IR_ATOMIC_MIN, IR_ATOMIC_MAX};

int ct_float_atomic(uint16_t op)
{
    for (int i = 0; i < CT_NFLOAT_ATOMICS; i++)
        if (ct_float_atomics[i] == op)
            return i;
    return -1;
}

static void print_atomic(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in), mask_value = ir_mask(g->ir, in);
    const int values = ir_atomic_values(in->op);
    const char *off = ct_ref(g, a[1], NULL), *x = values ? ct_ref(g, a[2], NULL) : NULL, *y = values == 2 ? ct_ref(g, a[3], NULL) : NULL;
    const char *mask = mask_value ? mask_of(g, mask_value, NULL) : NULL;
    const char *call = g->d->atomic(g, in->op, a[0], off, x, y);
    if (!g->uses[in->res])
        ct_line(g, mask ? "if (%s) %s;" : "%s%s;", mask ? mask : "", call);
    else
        define(g, in->res, mask ? ct_fmt(g, "%s ? %s : %s", mask, call, ct_literal(g, ir_typeof(g->ir, a[0]).dtype, 0)) : call);
}

static void print_bounds(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const char *off = ct_ref(g, a[1], NULL), *mask = in->nargs == 3 ? mask_of(g, a[2], NULL) : NULL;
    ct_need(g, CT_BOUNDS);
    const char *count =
        a[0] <= (uint32_t)g->ir->nparams ? ct_fmt(g, "eas_count[%u]", a[0] - 1) : ct_literal(g, EAS_I64, ir_typeof(g->ir, a[0]).dim[0]);
    const ir_insn tid = {.op = IR_THREAD_ID};
    ir_type t = ir_typeof(g->ir, in->res);
    ct_at at = ct_natural(t);
    const char *thread = g->thread_mode ? g->d->identity(g, &tid) : g->origin && is_block(t) ? ct_flat(g, t, &at) : "0u";
    const char *call = ct_fmt(g, g->d->bounds, count, off, ct_source(g), thread);
    define(g, in->res, mask ? ct_fmt(g, "%s && %s", mask, call) : call);
}

static void print_assert(ct *g, const ir_insn *in)
{
    const uint32_t cond = ir_args(g->ir, in)[0], m = ir_mask(g->ir, in);
    ir_type t = ir_typeof(g->ir, cond);
    ct_at at = ct_natural(t);
    const ir_insn tid = {.op = IR_THREAD_ID};
    const char *ok = ct_ref(g, cond, NULL), *mask = m ? mask_of(g, m, NULL) : NULL;
    const char *lane = g->thread_mode ? g->d->identity(g, &tid) : is_block(t) ? ct_flat(g, t, &at) : "0";
    ct_need(g, CT_BOUNDS);
    const char *call = ct_fmt(g, g->d->failed, lane, ct_source(g));
    ct_line(g, mask ? "if (%s && !%s) %s;" : "if (%s!%s) %s;", mask ? mask : "", ok, call);
}

/* ---- dots ---- */

/* The type that base + k * stride is computed in. */
static eas_dtype index_dtype(const eas_ir *ir, uint32_t base, uint32_t stride)
{
    eas_dtype x = ir_typeof(ir, base).dtype, y = ir_typeof(ir, stride).dtype;
    int64_t c;
    if (ir_const_of(ir, stride, &c) && c >= 0)
        y = dtype_bits(y) == 64 && c <= INT32_MAX ? x : y;
    if (ir_const_of(ir, base, &c) && c >= 0)
        x = dtype_bits(x) == 64 && c <= INT32_MAX ? y : x;
    if (dtype_bits(x) == 64 || dtype_bits(y) == 64 || dtype_is_signed(x) != dtype_is_signed(y))
        return EAS_I64;
    return dtype_is_signed(x) ? EAS_I32 : EAS_U32;
}

static const char *as_index(ct *g, eas_dtype dt, uint32_t v)
{
    int64_t c;
    if (ir_const_of(g->ir, v, &c))
        return ct_literal(g, dt, dt == EAS_U32 ? (int64_t)(uint32_t)c : c);
    return ir_typeof(g->ir, v).dtype == dt ? ct_ref(g, v, NULL) : ct_fmt(g, "(%s)%s", g->d->type[dt], ct_ref(g, v, NULL));
}

/* base + k * stride */
static const char *walk_index(ct *g, uint32_t base, uint32_t stride, bool wide_k)
{
    eas_dtype dt = index_dtype(g->ir, base, stride), kt = wide_k ? EAS_U64 : EAS_U32;
    int64_t c;
    const char *k = dt == kt ? "k" : ct_fmt(g, "(%s)k", g->d->type[dt]);
    if (!(ir_const_of(g->ir, stride, &c) && c == 1))
        k = ct_fmt(g, "%s * %s", k, as_index(g, dt, stride));
    return ir_const_of(g->ir, base, &c) && c == 0 ? k : ct_fmt(g, "%s + %s", as_index(g, dt, base), k);
}

/* Opens the loop over k < K. */
static bool open_k(ct *g, uint32_t K)
{
    eas_dtype dt = ir_typeof(g->ir, K).dtype;
    int64_t c;
    bool is_const = ir_const_of(g->ir, K, &c), wide = is_const ? c > UINT32_MAX : dtype_bits(dt) == 64;
    const char *word = g->d->type[wide ? EAS_U64 : EAS_U32], *end;
    if (is_const)
        end = ct_literal(g, wide ? EAS_U64 : EAS_U32, c < 0 ? 0 : c);
    else if (dtype_is_signed(dt))
        end = ct_fmt(g, "(%s)max((%s)%s, %s)", word, g->d->type[wide ? EAS_I64 : EAS_I32], ct_ref(g, K, NULL), wide ? "0l" : "0");
    else
        end = ct_ref(g, K, NULL);
    ct_line(g, "for (%s k = 0; k < %s; ++k) {", word, end);
    g->indent++;
    return wide;
}

void ct_close(ct *g)
{
    g->indent--;
    ct_line(g, "}");
}

void ct_open(ct *g, const char *var, int64_t n)
{
    ct_line(g, "for (uint %s = 0; %s < %lldu; ++%s) {", var, var, (long long)n, var);
    g->indent++;
}

void ct_new_scope(ct *g)
{
    g->loop.epoch++;
    g->ninsts = 0;
    g->vec.n = 0;
}

static bool wide_k(const eas_ir *ir, uint32_t K)
{
    int64_t c;
    return ir_const_of(ir, K, &c) ? c > UINT32_MAX : dtype_bits(ir_typeof(ir, K).dtype) == 64;
}

static const char *dot_element(ct *g, uint32_t buf, const char *index, eas_dtype sum)
{
    eas_dtype dt = ir_typeof(g->ir, buf).dtype;
    const char *x = ct_as_f32(g, dt, g->d->load(g, buf, index));
    return sum == EAS_F64 && dt != EAS_F64 ? ct_fmt(g, "(double)%s", x) : x;
}

static void print_dot(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    eas_dtype sum = ir_typeof(g->ir, in->res).dtype;
    bool wide = wide_k(g->ir, a[6]);
    /* operands that are recomputed must stand before the loop */
    const char *ia = walk_index(g, a[1], a[2], wide), *ib = walk_index(g, a[4], a[5], wide);
    define(g, in->res, sum == EAS_F64 ? "0.0" : "0.0f");
    const char *r = ct_ref(g, in->res, NULL);
    open_k(g, a[6]);
    ct_line(g, "%s = fma(%s, %s, %s);", r, dot_element(g, a[0], ia, sum), dot_element(g, a[3], ib, sum), r);
    ct_close(g);
}

/* The results of the four dots that i leads, in order of their columns. */
static void dot4_results(const ct *g, uint32_t i, uint32_t r[4])
{
    int n = 0;
    for (uint32_t j = i; n < 4; j++)
        if (g->dot4[j] == i + 1)
            r[n++] = g->ir->insns[j].res;
}

static void dot4_loop(ct *g, const uint32_t *a, const uint32_t res[4], bool vector)
{
    static const char part[] = "xyzw";
    bool wide = wide_k(g->ir, a[6]);
    const char *va = ct_fmt(g, "v%u_a", res[0]), *vb = ct_fmt(g, "v%u_b", res[0]);
    const char *ib = walk_index(g, a[4], a[5], wide);
    open_k(g, a[6]);
    ct_line(g, "float %s = %s;", va, dot_element(g, a[0], walk_index(g, a[1], a[2], wide), EAS_F32));
    if (vector)
        ct_line(g, "float4 %s = %s;", vb, g->d->load4(g, a[3], ib));
    for (int c = 0; c < 4; c++) {
        const char *r = ct_ref(g, res[c], NULL);
        const char *y = vector ? ct_fmt(g, "%s.%c", vb, part[c]) : dot_element(g, a[3], c ? ct_fmt(g, "%s + %d", ib, c) : ib, EAS_F32);
        ct_line(g, "%s = fma(%s, %s, %s);", r, va, y, r);
    }
    ct_close(g);
}

/* "" when base and stride of b are known multiples of four; else the test for it. */
static const char *alignment_test(ct *g, uint32_t base, uint32_t stride)
{
    bool b = ct_multiple(g->ir, base, 0) % 4 == 0, s = ct_multiple(g->ir, stride, 0) % 4 == 0;
    if (b && s)
        return "";
    const char *zero = dtype_bits(ir_typeof(g->ir, base).dtype) == 64 || dtype_bits(ir_typeof(g->ir, stride).dtype) == 64 ? "0ul" : "0u";
    if (!b && !s)
        return ct_fmt(g, "((%s | %s) & 3u) == %s", ct_unsigned(g, base), ct_unsigned(g, stride), zero);
    return ct_fmt(g, "(%s & 3u) == %s", ct_unsigned(g, b ? stride : base), zero);
}

static void print_dot4(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    uint32_t res[4];
    dot4_results(g, g->at, res);
    const char *test = g->d->load4_needs_alignment ? alignment_test(g, a[4], a[5]) : "";
    for (int k = 1; k < 7; k++)
        if (k != 3)
            ct_ref(g, a[k], NULL); /* what is recomputed must stand before the loops */
    for (int c = 0; c < 4; c++)
        define(g, res[c], "0.0f");
    if (!*test) {
        dot4_loop(g, a, res, true);
        return;
    }
    ct_line(g, "if (%s) {", test);
    g->indent++;
    dot4_loop(g, a, res, true);
    g->indent--;
    ct_line(g, "} else {");
    g->indent++;
    dot4_loop(g, a, res, false);
    ct_close(g);
}

/* ---- lane loops ---- */

static void open_lanes(ct *g, ir_type t, uint32_t group)
{
    g->loop.rank = ct_dims(t, g->loop.dim);
    g->loop.group = group;
    ct_new_scope(g);
    for (int d = 0; d < g->loop.rank; d++)
        ct_open(g, ct_lane_var[d], g->loop.dim[d]);
}

static void close_lanes(ct *g)
{
    for (int d = 0; d < g->loop.rank; d++)
        ct_close(g);
    g->loop.rank = 0;
    g->loop.group = 0;
    g->loop.epoch++;
}

/* ---- one instruction ---- */

/* One lane of a block. Where the block is recomputed, what that takes goes out of sight again. */
static void print_pick(ct *g, const ir_insn *in)
{
    const eas_ir *ir = g->ir;
    bool aligned;
    uint32_t from = ir_args(ir, in)[0];
    ct_at place = ct_natural(ir_typeof(ir, in->res)), at;
    const char *never;
    at = ct_through(g, in, &place, &never);
    if (!g->remat[ct_leaf(ir, from, &aligned)]) {
        define(g, in->res, ct_ref(g, from, &at));
        return;
    }
    declare(g, in->res);
    ct_line(g, "{");
    g->indent++;
    open_lanes(g, ir_scalar(EAS_BOOL), 0);
    ct_line(g, "%s = %s;", ct_name(g, in->res), ct_ref(g, from, &at));
    close_lanes(g);
    ct_close(g);
}

static const char *identity_expr(ct *g, const ir_insn *in)
{
    eas_dtype dt = ir_typeof(g->ir, in->res).dtype;
    const char *x = g->d->identity(g, in);
    return dt == EAS_U32 ? x : ct_fmt(g, "(%s)%s", g->d->type[dt], x);
}

static void print_insn(ct *g, uint32_t i)
{
    const eas_ir *ir = g->ir;
    const ir_insn *in = &ir->insns[i];
    g->at = i;
    if (g->inlined[in->res] && in->nres)
        return;
    if (ct_is_view(ir, in))
        return;
    switch (in->op) {
    case IR_CONST:
    case IR_ALLOC_TG: return;
    case IR_SLICE: print_pick(g, in); return;
    case IR_PROGRAM_ID:
    case IR_NUM_PROGRAMS:
    case IR_THREAD_ID:
    case IR_GLOBAL_ID:
    case IR_LOCAL_ID:
    case IR_LANE_ID:
    case IR_SG_ID: define(g, in->res, identity_expr(g, in)); return;
    case IR_ARANGE: define(g, in->res, ct_literal(g, ir_typeof(ir, in->res).dtype, in->imm)); return; /* of one lane */
    case IR_LOAD: print_load(g, in); return;
    case IR_STORE: print_store(g, in); return;
    case IR_BOUNDS: print_bounds(g, in); return;
    case IR_ASSERT: print_assert(g, in); return;
    case IR_BARRIER:
        if (!g->origin) /* one item runs all lanes */
            g->d->barrier(g);
        return;
    case IR_FENCE: g->d->fence(g, ir_fence_order(in->imm), ir_fence_scope(in->imm)); return;
    case IR_SIMD_SHUFFLE: define(g, in->res, g->d->shuffle(g, in, ct_ref(g, ir_args(ir, in)[0], NULL), ct_ref(g, ir_args(ir, in)[1], NULL))); return;
    case IR_DOT:
        if (g->dot4[i] == i + 1)
            print_dot4(g, in);
        else if (!g->dot4[i])
            print_dot(g, in);
        return;
    case IR_MMA_ZERO: g->d->mma_zero(g, ct_name(g, in->res)); return;
    case IR_MMA: g->d->mma(g, ct_name(g, in->res), ir_args(ir, in)); return;
    case IR_MMA_STORE: g->d->mma_store(g, ir_args(ir, in)); return;
    default: {
        if (ir_is_atomic(in)) {
            print_atomic(g, in);
            return;
        }
        ct_at at = ct_natural(ir_typeof(ir, in->res));
        const char *x = ct_expr(g, in, &at);
        define(g, in->res, x);
    }
    }
}

/* ---- whole blocks ---- */

static void group_lane(ct *g, const ct_walk *w)
{
    for (uint32_t i = g->first[w->group]; i <= g->last[w->group]; i++)
        if (g->group[i] == w->group)
            print_insn(g, i);
}

static void print_group(ct *g, uint32_t group)
{
    const eas_ir *ir = g->ir;
    uint32_t first = g->first[group], last = g->last[group];
    const ir_insn *lead = &ir->insns[first];
    for (uint32_t i = first; i <= last; i++) {
        const ir_insn *in = &ir->insns[i];
        g->at = i;
        if (g->group[i] != group || !in->nres || !g->array[in->res])
            continue;
        if (g->home[in->res] == in->res)
            declare(g, in->res);
        else
            g->name[in->res] = ct_name(g, g->home[in->res]);
    }
    g->at = first;
    if (ir_is_fold(lead)) {
        if (!is_block(ir_typeof(ir, lead->res)))
            declare(g, lead->res);
        ct_fold(g, lead);
        return;
    }
    const ct_walk w = {.group = group, .one = group_lane};
    if (ct_vec_walk(g, ct_lanes_of(ir, lead), &w))
        return;
    open_lanes(g, ct_lanes_of(ir, lead), group);
    group_lane(g, &w);
    close_lanes(g);
}

static void copy_lane(ct *g, const ct_walk *w)
{
    ir_type t = ir_typeof(g->ir, w->value);
    ct_at at = ct_natural(t);
    const char *x = ct_ref(g, w->value, &at);
    ct_line(g, "%s[%s] = %s;", w->to, ct_flat(g, t, &at), x);
}

/* to[lane] = v, for every lane */
static void copy_block(ct *g, const char *to, uint32_t v)
{
    const ct_walk w = {.value = v, .to = to, .one = copy_lane};
    if (ct_vec_walk(g, ir_typeof(g->ir, v), &w))
        return;
    open_lanes(g, ir_typeof(g->ir, v), 0);
    copy_lane(g, &w);
    close_lanes(g);
}

/* ---- regions ---- */

static void assign(ct *g, const char *to, uint32_t v)
{
    if (is_block(ir_typeof(g->ir, v)))
        copy_block(g, to, v);
    else
        ct_line(g, "%s = %s;", to, ct_ref(g, v, NULL));
}

/* All carried variables take their next values at once: those that read another carried variable go through a copy. Blocks
 * come first, since they may be recomputed from carried scalars. */
static void assign_all(ct *g, uint32_t first, const uint32_t *next, int n)
{
    const eas_ir *ir = g->ir;
    const char **from = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *from);
    bool *done = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *done);
    if (!from || !done)
        return;
    for (int j = 0; j < n; j++) {
        bool aligned;
        uint32_t leaf = ct_leaf(ir, next[j], &aligned), own = first + (uint32_t)j;
        bool carried = leaf >= first && leaf < first + (uint32_t)n;
        done[j] = next[j] == own || g->home[next[j]] == own;
        if (!carried || done[j])
            continue;
        ir_type t = ir_typeof(ir, next[j]);
        from[j] = ct_fmt(g, "v%u_next", own);
        if (is_block(t)) {
            declare_array(g, t, from[j]);
            copy_block(g, from[j], next[j]);
        } else {
            ct_line(g, "%s %s = %s;", type_name(g, t), from[j], ct_ref(g, next[j], NULL));
        }
    }
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < n; j++) {
            ir_type t = ir_typeof(ir, next[j]);
            if (done[j] || is_block(t) != (pass == 0))
                continue;
            const char *to = ct_name(g, first + (uint32_t)j);
            if (!from[j])
                assign(g, to, next[j]);
            else if (is_block(t)) {
                ct_line(g, "for (uint i = 0; i < %lldu; ++i) {", (long long)ir_lanes(t));
                ct_line(g, "    %s[i] = %s[i];", to, from[j]);
                ct_line(g, "}");
            } else {
                ct_line(g, "%s = %s;", to, from[j]);
            }
        }
}

static void start_carried(ct *g, uint32_t first, const uint32_t *init, int n)
{
    for (int j = 0; j < n; j++) {
        uint32_t v = first + (uint32_t)j;
        ir_type t = ir_typeof(g->ir, v);
        if (is_block(t)) {
            declare(g, v);
            copy_block(g, ct_name(g, v), init[j]);
        } else {
            ct_line(g, "%s %s = %s;", type_name(g, t), ct_name(g, v), ct_ref(g, init[j], NULL));
        }
    }
}

/* A loop whose step is not 1 counts its trips, so that it does not overflow at the ends of the dtype. */
static void open_counted(ct *g, const char *iv, const uint32_t *a, eas_dtype dt)
{
    bool wide = dtype_bits(dt) == 64;
    const char *U = g->d->type[wide ? EAS_U64 : EAS_U32], *T = g->d->type[dt], *one = wide ? "1ul" : "1u", *zero = wide ? "0ul" : "0u";
    const char *lo = ct_ref(g, a[0], NULL), *hi = ct_ref(g, a[1], NULL), *step = ct_ref(g, a[2], NULL);
    const char *ulo = ct_unsigned(g, a[0]), *uhi = ct_unsigned(g, a[1]), *ustep = ct_unsigned(g, a[2]);
    const char *up = ct_fmt(g, "(%s < %s ? (%s - %s - %s) / %s + %s : %s)", lo, hi, uhi, ulo, one, ustep, one, zero);
    const char *down = ct_fmt(g, "(%s > %s ? (%s - %s - %s) / (%s - %s) + %s : %s)", lo, hi, ulo, uhi, one, zero, ustep, one, zero);
    int64_t c;
    const char *trips;
    if (ir_const_of(g->ir, a[2], &c))
        trips = c == 0 ? zero : !dtype_is_signed(dt) || c > 0 ? up : down;
    else if (dtype_is_signed(dt))
        trips = ct_fmt(g, "%s > 0 ? %s : %s < 0 ? %s : %s", step, up, step, down, zero);
    else
        trips = ct_fmt(g, "%s > 0 ? %s : %s", step, up, zero);
    ct_line(g, "%s %s_trips = %s;", U, iv, trips);
    const char *next = dt == EAS_U32 || dt == EAS_U64 ? ct_fmt(g, "%s + %s", iv, step) : ct_fmt(g, "(%s)((%s)%s + %s)", T, U, iv, ustep);
    ct_line(g, "for (%s %s = %s; %s_trips != 0; --%s_trips, %s = %s) {", T, iv, lo, iv, iv, iv, next);
}

static void print_loop(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    eas_dtype dt = ir_typeof(g->ir, in->res).dtype;
    const char *iv = ct_name(g, in->res);
    start_carried(g, in->res + 1, a + 3, in->nargs - 3);
    int64_t c;
    if (ir_const_of(g->ir, a[2], &c) && c == 1)
        ct_line(g, "for (%s %s = %s; %s < %s; ++%s) {", g->d->type[dt], iv, ct_ref(g, a[0], NULL), iv, ct_ref(g, a[1], NULL), iv);
    else
        open_counted(g, iv, a, dt);
    g->indent++;
}

static const ir_insn *opener(const ct *g) { return &g->ir->insns[g->open.at[g->open.len - 1]]; }

static void finish_loop(ct *g, const ir_insn *in)
{
    const ir_insn *open = opener(g);
    uint32_t first = open->res + (open->op == IR_LOOP ? 1 : 0);
    assign_all(g, first, ir_args(g->ir, in), in->nargs);
    ct_close(g);
    for (uint32_t j = 0; j < in->nres; j++)
        g->name[in->res + j] = ct_name(g, first + j);
}

/* The closer of the region that the IF at i opens. */
static const ir_insn *closer(const eas_ir *ir, uint32_t i)
{
    int depth = 0;
    for (;; i++) {
        uint16_t op = ir->insns[i].op;
        depth += (op == IR_LOOP || op == IR_WHILE || op == IR_IF) - (op == IR_ENDLOOP || op == IR_ENDWHILE || op == IR_ENDIF);
        if (!depth)
            return &ir->insns[i];
    }
}

static void print_if(ct *g, uint32_t i)
{
    const ir_insn *end = closer(g->ir, i);
    for (uint32_t j = 0; j < end->nres; j++)
        declare(g, end->res + j);
    ct_line(g, "if (%s) {", ct_ref(g, ir_args(g->ir, &g->ir->insns[i])[0], NULL));
    g->indent++;
}

/* The values of one branch go into the merged variables. */
static void merge(ct *g, const ir_insn *in)
{
    const ir_insn *end = closer(g->ir, g->open.at[g->open.len - 1]);
    for (int j = 0; j < in->nargs && (uint32_t)j < end->nres; j++)
        assign(g, ct_name(g, end->res + (uint32_t)j), ir_args(g->ir, in)[j]);
}

static void print_structure(ct *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in);
    g->at = i;
    switch (in->op) {
    case IR_LOOP: print_loop(g, in); break;
    case IR_WHILE:
        start_carried(g, in->res, a, in->nargs);
        ct_line(g, "while (true) {");
        g->indent++;
        break;
    case IR_DO: ct_line(g, "if (!%s) break;", ct_ref(g, a[0], NULL)); return;
    case IR_IF: print_if(g, i); break;
    case IR_ELSE:
        merge(g, in);
        g->indent--;
        ct_line(g, "} else {");
        g->indent++;
        return;
    case IR_ENDLOOP:
    case IR_ENDWHILE:
        finish_loop(g, in);
        g->open.len--;
        return;
    default: /* IR_ENDIF */
        merge(g, in);
        ct_close(g);
        g->open.len--;
        return;
    }
    if (!vec_push(&g->open, i))
        g->mem.oom = true;
}

/* ---- the whole ---- */

static void declare_tg(ct *g)
{
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        const ir_insn *in = &g->ir->insns[i];
        g->at = i;
        if (in->op == IR_ALLOC_TG && !ct_words_tg(g, in->res)) {
            ir_type t = ir_typeof(g->ir, in->res);
            ct_line(g, "%s %s %s[%lld];", g->d->space_local, g->d->mem[t.dtype], ct_name(g, in->res), (long long)in->imm);
        }
    }
}

static void maybe_return_early(ct *g, uint32_t defined)
{
    if (!g->early || g->early_done || defined != g->early)
        return;
    ct_line(g, "if (!%s) return;", ct_ref(g, g->early, NULL));
    g->early_done = true;
}

static void print_body(ct *g)
{
    const eas_ir *ir = g->ir;
    g->indent = 1;
    declare_tg(g);
    if (g->early && g->early <= (uint32_t)ir->nparams)
        maybe_return_early(g, g->early);
    for (uint32_t i = 0; i < ir->ninsns && !g->mem.oom; i++) {
        const ir_insn *in = &ir->insns[i];
        if (ir_rows[in->op].flags & IR_STRUCT)
            print_structure(g, i);
        else if (g->group[i])
            i == g->last[g->group[i]] ? print_group(g, g->group[i]) : (void)0;
        else if (!in->nres || !is_block(ir_typeof(ir, in->res)))
            print_insn(g, i);
        for (uint32_t r = 0; r < in->nres; r++)
            maybe_return_early(g, in->res + r);
    }
}

/* What a kernel asks for before its body is printed decides which names it may not use. */
static void find_idents(ct *g)
{
    static const uint8_t of[IR_NOPS] = {
        [IR_PROGRAM_ID] = 1 + CT_PID, [IR_NUM_PROGRAMS] = 1 + CT_NPROG, [IR_THREAD_ID] = 1 + CT_TID,
        [IR_GLOBAL_ID] = 1 + CT_GID,  [IR_LOCAL_ID] = 1 + CT_TID,       [IR_LANE_ID] = 1 + CT_LANE,
        [IR_SG_ID] = 1 + CT_SG,       [IR_BOUNDS] = 1 + CT_PID,         [IR_ASSERT] = 1 + CT_PID,
    };
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        uint16_t op = g->ir->insns[i].op;
        if (of[op])
            g->idents |= 1u << (of[op] - 1);
        if ((op == IR_ASSERT || op == IR_BOUNDS) && g->thread_mode)
            g->idents |= 1u << CT_TID;
    }
    if (!g->thread_mode)
        g->idents |= 1u << CT_PID;
}

static eas_status prepare(ct *g)
{
    size_t nv = (size_t)g->ir->nvals + 1;
    g->info = ir_analyse(g->ir);
    g->thread_mode = g->info.mode == EAS_MODE_THREAD;
    g->name = arena_alloc(&g->mem, nv * sizeof *g->name);
    g->inst_head = arena_alloc(&g->mem, nv * sizeof *g->inst_head);
    g->inst_epoch = arena_alloc(&g->mem, nv * sizeof *g->inst_epoch);
    g->vec.head = arena_alloc(&g->mem, nv * sizeof *g->vec.head);
    g->vec.epoch = arena_alloc(&g->mem, nv * sizeof *g->vec.epoch);
    g->loop.epoch = 1;
    if (g->mem.oom)
        return base_fail_oom(nv);
    eas_status st = ct_plan(g);
    if (!st && g->d->check)
        st = g->d->check(g);
    if (st)
        return st;
    if (g->lanes)
        ct_find_ahead(g);
    find_idents(g);
    return ct_names(g) ? EAS_OK : base_fail_oom(nv);
}

static bool fill_map(gen_linemap *map, const str *head, const gen_linemap *body)
{
    bool ok = true;
    for (size_t i = 0; i < head->len; i++)
        if (head->at[i] == '\n')
            ok = ok && vec_push(map, UINT32_MAX);
    for (uint32_t i = 0; i < body->len; i++)
        ok = ok && vec_push(map, body->at[i]);
    return ok && vec_push(map, UINT32_MAX); /* the closing brace */
}

static eas_status print_kernel(ct *g, str *out, gen_linemap *map)
{
    str head = {0};
    eas_status st = prepare(g);
    if (!st) {
        print_body(g);
        g->d->head(g, &head);
        str_put(out, head.at ? head.at : "", head.len);
        str_put(out, g->body.at ? g->body.at : "", g->body.len);
        str_put(out, "}\n", 2);
        bool ok = !map || fill_map(map, &head, &g->lines);
        if (!ok || g->mem.oom || head.oom || g->body.oom || out->oom)
            st = base_fail_oom(out->len);
    }
    str_free(&head);
    str_free(&g->body);
    vec_free(&g->lines);
    vec_free(&g->open);
    free(g->insts);
    free(g->vec.insts);
    arena_free(&g->mem);
    return st;
}

eas_status gen_ctext(const eas_ir *ir, gen_dialect d, unsigned flags, str *out, gen_linemap *map)
{
    ct g = {.ir = ir, .d = d == GEN_MSL ? &ct_msl : &ct_opencl, .dialect = d, .flags = flags, .lanes = (int)(flags / GEN_LANES)};
    eas_ir *lanes = NULL;
    uint32_t *origin = NULL;
    eas_status st = g.lanes && ir->threads ? ir_as_lanes(ir, &lanes, &origin) : EAS_OK;
    if (lanes) {
        g.ir = lanes;
        g.origin = origin;
    }
    if (!st)
        st = print_kernel(&g, out, map);
    eas_ir_release(lanes);
    free(origin);
    return st;
}
