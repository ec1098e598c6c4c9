/* grad_facts.c: which values vary, which of them matter, and what cannot be differentiated.
 *
 *   varied   depends on something that is differentiated with respect to
 *   useful   something that is stored into a result depends on it
 *   risky    may be infinite or NaN though nothing loaded is: in a lane that a mask turns off, or where a
 *            result does not show it, as in 1 / (1 + exp(-x))
 *   axes     the program axes that a value depends on
 *
 * All are fixpoints over the instructions: a carried value also gets the facts of its next value. Threadgroup
 * arrays carry `varied` from stores to loads, and `useful` back.
 */
#include "grad.h"

#include <math.h>

static bool set(bool *at, bool *changed)
{
    if (!*at)
        *at = *changed = true;
    return true;
}

/* ---- regions ---- */

/* Calls join(from, to) for every way in which a value passes through control flow: into a loop, from one
 * round to the next, and out of loops and branches. */
typedef void (*join_fn)(gradder *g, uint32_t from, uint32_t to, void *ctx);

static void through_structure(gradder *g, uint32_t i, join_fn join, void *ctx)
{
    const ir_insn *in = &g->w.from->insns[i];
    if (in->op == IR_LOOP || in->op == IR_WHILE) {
        const int head = in->op == IR_LOOP ? 3 : 0;
        const ir_insn *close = &g->w.from->insns[g->at.end[i]];
        for (int k = head; k < in->nargs; k++) {
            const uint32_t n = (uint32_t)(k - head), body = in->res + n + (head ? 1 : 0);
            join(g, gargs(g, in)[k], body, ctx);
            join(g, gargs(g, close)[n], body, ctx);
            join(g, body, close->res + n, ctx);
            if (in->op == IR_LOOP)
                join(g, gargs(g, close)[n], close->res + n, ctx);
        }
    } else if (in->op == IR_IF && g->at.mid[i]) {
        const ir_insn *close = &g->w.from->insns[g->at.end[i]], *els = &g->w.from->insns[g->at.mid[i]];
        for (int k = 0; k < close->nres; k++) {
            join(g, gargs(g, els)[k], close->res + (uint32_t)k, ctx);
            join(g, gargs(g, close)[k], close->res + (uint32_t)k, ctx);
        }
    }
}

/* ---- varied ---- */

/* Does memory hold something that varies? */
static bool memory_varies(const gradder *g, uint32_t buf)
{
    return buf <= (uint32_t)g->w.from->nparams ? g->buf[buf - 1].wrt : g->varied[buf];
}

static void vary_along(gradder *g, uint32_t from, uint32_t to, void *changed)
{
    if (g->varied[from] && (gfloat(g, to) || ir_typeof(g->w.from, to).kind == IR_FRAG))
        set(&g->varied[to], changed);
}

/* Steps have derivative 0: nothing varies behind them. */
static bool flat(uint16_t op) { return op == IR_FLOOR || op == IR_CEIL || op == IR_TRUNC || op == IR_ROUND; }

static bool varies(const gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    const ir_type t = ir_typeof(g->w.from, in->res);
    if (!gfloat(g, in->res) && t.kind != IR_FRAG)
        return false;
    if (in->op == IR_LOAD)
        return memory_varies(g, a[0]) || (in->nargs == 4 && g->varied[a[3]]);
    if (in->op == IR_DOT || in->op == IR_MMA)
        return memory_varies(g, a[0]) || memory_varies(g, a[3]) || (in->op == IR_MMA && g->varied[a[6]]);
    if (flat(in->op) || ir_is_atomic(in))
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (g->varied[a[k]])
            return true;
    return false;
}

static void find_varied(gradder *g)
{
    bool changed = true;
    for (int p = 0; p < g->w.from->nparams; p++)
        g->varied[p + 1] = g->buf[p].wrt && gfloat(g, (uint32_t)p + 1);
    while (changed) {
        changed = false;
        for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
            const ir_insn *in = &g->w.from->insns[i];
            through_structure(g, i, vary_along, &changed);
            if (in->op == IR_STORE && gargs(g, in)[0] > (uint32_t)g->w.from->nparams &&
                g->varied[gargs(g, in)[2]])
                set(&g->varied[gargs(g, in)[0]], &changed);
            if (in->nres == 1 && !(ir_rows[in->op].flags & IR_STRUCT) && varies(g, in))
                set(&g->varied[in->res], &changed);
        }
    }
}

/* ---- useful ---- */

static void use_along(gradder *g, uint32_t from, uint32_t to, void *changed)
{
    if (g->useful[to])
        set(&g->useful[from], changed);
}

static bool counts(const gradder *g, const ir_insn *in)
{
    const uint32_t buf = gargs(g, in)[0];
    return buf <= (uint32_t)g->w.from->nparams ? g->buf[buf - 1].of : g->useful[buf];
}

static void use_one(gradder *g, const ir_insn *in, bool *changed)
{
    const uint32_t *a = gargs(g, in);
    if ((in->op == IR_STORE || in->op == IR_ATOMIC_ADD) && counts(g, in))
        set(&g->useful[a[2]], changed);
    if (in->op == IR_MMA_STORE && counts(g, in))
        set(&g->useful[a[3]], changed);
    if (in->nres != 1 || (ir_rows[in->op].flags & IR_STRUCT) || !g->useful[in->res])
        return;
    if (in->op == IR_LOAD && a[0] > (uint32_t)g->w.from->nparams)
        set(&g->useful[a[0]], changed);
    for (int k = 0; k < in->nargs; k++)
        if (gfloat(g, a[k]) || ir_typeof(g->w.from, a[k]).kind == IR_FRAG)
            set(&g->useful[a[k]], changed);
}

static void find_useful(gradder *g)
{
    bool changed = true;
    while (changed) {
        changed = false;
        for (uint32_t i = g->w.from->ninsns; i-- > 0;) {
            through_structure(g, i, use_along, &changed);
            use_one(g, &g->w.from->insns[i], &changed);
        }
    }
}

bool grad_touches(gradder *g, uint32_t first, uint32_t last)
{
    for (uint32_t i = first; i < last; i++) {
        const ir_insn *in = &g->w.from->insns[i];
        if ((in->op == IR_STORE || in->op == IR_ATOMIC_ADD) && counts(g, in) &&
            (gactive(g, gargs(g, in)[2]) || gargs(g, in)[0] > (uint32_t)g->w.from->nparams ||
             g->buf[gargs(g, in)[0] - 1].shared || g->buf[gargs(g, in)[0] - 1].consumed))
            return true;
    }
    return false;
}

/* ---- signs ---- */

static uint8_t least(uint8_t x, uint8_t y) { return x < y ? x : y; }

static uint8_t const_sign(const gradder *g, uint32_t v)
{
    int64_t bits;
    if (!ir_const_of(g->w.from, v, &bits))
        return g->sign[v];
    const double d = ir_bits_to_double((eas_dtype)ir_typeof(g->w.from, v).dtype, bits);
    return d > 1e-30 ? 2 : d >= 0;
}

static uint8_t product_sign(const gradder *g, uint32_t x, uint32_t y)
{
    const uint8_t s = least(const_sign(g, x), const_sign(g, y));
    return s == 2 ? 2 : s || x == y;
}

static uint8_t sum_sign(uint8_t x, uint8_t y) { return x && y ? (x > y ? x : y) : 0; }

/* A value that is bounded away from 0, as x*x + y*y + 0.01 is, can be a divisor without a guard. */
static uint8_t sign_of(const gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    switch (in->op) {
    case IR_CONST: return const_sign(g, in->res);
    case IR_ADD: return sum_sign(const_sign(g, a[0]), const_sign(g, a[1]));
    case IR_MUL: return product_sign(g, a[0], a[1]);
    case IR_FMA: return sum_sign(product_sign(g, a[0], a[1]), const_sign(g, a[2]));
    case IR_SQRT:
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_SLICE:
    case IR_TRANS:
    case IR_REDUCE_MIN:
    case IR_REDUCE_MAX:
    case IR_REDUCE_ADD: return const_sign(g, a[0]);
    case IR_WHERE: return least(const_sign(g, a[1]), const_sign(g, a[2]));
    case IR_MAX: return const_sign(g, a[0]) > const_sign(g, a[1]) ? const_sign(g, a[0]) : const_sign(g, a[1]);
    case IR_ABS:
    case IR_EXP:
    case IR_EXP2:
    case IR_SIGMOID: return 1;
    default: return 0;
    }
}

/* ---- risky and axes ---- */

static void risk_along(gradder *g, uint32_t from, uint32_t to, void *changed)
{
    if (g->risky[from] && gfloat(g, to))
        set(&g->risky[to], changed);
}

static bool not_finite(const gradder *g, uint32_t v)
{
    int64_t bits;
    return gfloat(g, v) && ir_const_of(g->w.from, v, &bits) &&
           !isfinite(ir_bits_to_double((eas_dtype)ir_typeof(g->w.from, v).dtype, bits));
}

static bool risks(const gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    int64_t bits;
    switch (in->op) {
    case IR_CONST: return not_finite(g, in->res);
    case IR_DIV:
        return (!ir_const_of(g->w.from, a[1], &bits) && g->sign[a[1]] < 2) || g->risky[a[0]] ||
               g->risky[a[1]];
    case IR_EXP: /* exp overflows where 1 / (1 + exp(-x)) is still an ordinary number */
    case IR_EXP2:
    case IR_EXPM1:
    case IR_LOG:
    case IR_LOG2:
    case IR_LOG1P:
    case IR_POW: return true;
    case IR_RSQRT: return g->sign[a[0]] < 2 || g->risky[a[0]];
    default: break;
    }
    for (int k = 0; k < in->nargs; k++)
        if (g->risky[a[k]])
            return true;
    return false;
}

static void find_risky(gradder *g)
{
    bool changed = true;
    for (uint32_t i = 0; i < g->w.from->ninsns; i++)
        if (g->w.from->insns[i].nres == 1 && gfloat(g, g->w.from->insns[i].res) &&
            !(ir_rows[g->w.from->insns[i].op].flags & IR_STRUCT))
            g->sign[g->w.from->insns[i].res] = sign_of(g, &g->w.from->insns[i]);
    while (changed) {
        changed = false;
        for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
            const ir_insn *in = &g->w.from->insns[i];
            through_structure(g, i, risk_along, &changed);
            if (in->nres == 1 && !(ir_rows[in->op].flags & IR_STRUCT) && gfloat(g, in->res) && risks(g, in))
                set(&g->risky[in->res], &changed);
        }
    }
}

static void depend(gradder *g, uint32_t from, uint32_t to, bool *changed)
{
    if (g->axes[from] & ~g->axes[to]) {
        g->axes[to] |= g->axes[from];
        *changed = true;
    }
}

static void depend_along(gradder *g, uint32_t from, uint32_t to, void *changed)
{
    depend(g, from, to, changed);
}

static void find_axes(gradder *g)
{
    bool changed = true;
    for (uint32_t i = 0; i < g->w.from->ninsns; i++)
        if (g->w.from->insns[i].op == IR_PROGRAM_ID)
            g->axes[g->w.from->insns[i].res] = (uint8_t)(1 << g->w.from->insns[i].imm);
    while (changed) {
        changed = false;
        for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
            const ir_insn *in = &g->w.from->insns[i];
            through_structure(g, i, depend_along, &changed);
            if (in->op == IR_LOOP)
                for (int k = 0; k < 3; k++)
                    depend(g, gargs(g, in)[k], in->res, &changed);
            if (in->nres == 1 && !(ir_rows[in->op].flags & IR_STRUCT))
                for (int k = 0; k < in->nargs; k++)
                    depend(g, gargs(g, in)[k], in->res, &changed);
        }
    }
}

/* ---- refusals ---- */

static const char *name_of(const gradder *g, uint32_t buf)
{
    return buf <= (uint32_t)g->w.from->nparams ? g->w.from->params[buf - 1].name : "a threadgroup array";
}

static bool used(const gradder *g, uint32_t v)
{
    for (uint32_t i = 0; i < g->w.from->npool; i++)
        if (g->w.from->pool[i] == v)
            return true;
    return false;
}

static eas_status check_value(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    bool active = in->nres == 1 && gactive(g, in->res);
    if (in->op == IR_BITCAST && g->varied[a[0]])
        return grad_fail(g, in,
                         "bitcast has no derivative: a value that depends on what is differentiated with "
                         "respect to passes through it");
    if (!active || (ir_rows[in->op].flags & IR_STRUCT))
        return EAS_OK;
    switch (ir_rows[in->op].rule) {
    case IR_RULE_REDUCE:
    case IR_RULE_SCAN:
    case IR_RULE_SHAPE:
    case IR_RULE_MOVE:
    case IR_RULE_WHERE:
    case IR_RULE_MATMUL:
    case IR_RULE_LOAD:
    case IR_RULE_DOT:
    case IR_RULE_SHUFFLE:
    case IR_RULE_FRAG:
    case IR_RULE_MMA: return EAS_OK;
    default: break;
    }
    return in->op == IR_CAST || grad_has_rule(in->op)
             ? EAS_OK
             : grad_fail(g, in, "%s has no derivative", ir_rows[in->op].name);
}

static eas_status check_atomic(gradder *g, const ir_insn *in, bool reverse)
{
    const uint32_t *a = gargs(g, in);
    const bool global = a[0] <= (uint32_t)g->w.from->nparams,
               asked = global && (g->buf[a[0] - 1].of || g->buf[a[0] - 1].wrt);
    if (reverse && used(g, in->res))
        return grad_fail(g, in,
                         "%s: its result is used, and the derivative computes values again, which would "
                         "change \"%s\" again",
                         ir_rows[in->op].name, name_of(g, a[0]));
    const bool varied = ir_atomic_values(in->op) && g->varied[a[2]];
    if (in->op != IR_ATOMIC_ADD && (asked || varied || g->varied[a[0]]) &&
        dtype_is_float((eas_dtype)ir_typeof(g->w.from, a[0]).dtype))
        return grad_fail(g, in, "%s has no derivative; only atomic_add has one", ir_rows[in->op].name);
    if (!global && (varied || (g->varied[a[0]] && g->useful[a[0]])))
        return grad_fail(g, in,
                         "%s on a threadgroup array has no derivative; use a reduction (mk.tg_sum), or an "
                         "atomic on a global buffer",
                         ir_rows[in->op].name);
    if (asked && g->buf[a[0] - 1].wrt)
        return grad_fail(g, in,
                         "\"%s\" is added to, so it cannot be differentiated with respect to: its gradient "
                         "is the cotangent itself",
                         name_of(g, a[0]));
    return EAS_OK;
}

static bool in_one_loop(const gradder *g, uint32_t i, uint32_t j)
{
    for (uint32_t o = 0; o < i && o < j; o++)
        if ((g->w.from->insns[o].op == IR_LOOP || g->w.from->insns[o].op == IR_WHILE) && g->at.end[o] > i &&
            g->at.end[o] > j)
            return true;
    return false;
}

static bool load_of(const gradder *g, const ir_insn *in, uint32_t buf)
{
    const uint32_t *a = gargs(g, in);
    return (in->op == IR_LOAD && a[0] == buf) ||
           ((in->op == IR_DOT || in->op == IR_MMA) && (a[0] == buf || a[3] == buf));
}

/* The derivative repeats loads, from the buffers as they were before the launch: no store may come before
 * a load of the same buffer. */
static eas_status check_order(gradder *g, uint32_t buf)
{
    for (uint32_t s = 0; s < g->w.from->ninsns; s++) {
        const ir_insn *store = &g->w.from->insns[s];
        if (!ir_writes(store) || gargs(g, store)[0] != buf)
            continue;
        for (uint32_t i = 0; i < g->w.from->ninsns; i++)
            if (load_of(g, &g->w.from->insns[i], buf) && (i > s || in_one_loop(g, i, s)))
                return grad_fail(g, &g->w.from->insns[i],
                                 "\"%s\" is read here after the kernel wrote to it (line %u), and the "
                                 "derivative needs what was there before: "
                                 "keep the value in a variable, or write to another buffer",
                                 name_of(g, buf), (unsigned)store->line);
    }
    return EAS_OK;
}

/* Can the gradient of a stored buffer be read where it was stored? Stores and atomic additions to one
 * buffer have no known order. A store that does not depend on some axis of the grid is made by all
 * programs along it, and each would take the whole cotangent: so offset, mask and the regions around it
 * together must depend on every axis that the kernel uses. An element that may be stored twice gives its
 * cotangent to the last store: `consumed`. */
static eas_status check_stores(gradder *g, uint32_t buf)
{
    int stores = 0, adds = 0;
    uint8_t all = 0;
    for (uint32_t v = 1; v < g->w.from->nvals; v++)
        all |= g->axes[v];
    for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
        const ir_insn *in = &g->w.from->insns[i];
        if (in->nargs < 3 || gargs(g, in)[0] != buf || !ir_writes(in))
            continue;
        const uint32_t m = ir_mask(g->w.from, in);
        stores += in->op == IR_STORE;
        adds += ir_is_atomic(in);
        if (stores && adds)
            return grad_fail(g, in,
                             "\"%s\" is stored to and added to by atomics, in an order that is not known: "
                             "there is no derivative",
                             name_of(g, buf));
        uint8_t axes = (uint8_t)(g->axes[gargs(g, in)[1]] | (m ? g->axes[m] : 0));
        for (uint32_t o = 0; o < i; o++)
            if (g->at.end[o] > i && g->w.from->insns[o].op != IR_ELSE && g->w.from->insns[o].op != IR_DO)
                for (int k = 0; k < (g->w.from->insns[o].op == IR_LOOP ? 3 : g->w.from->insns[o].op == IR_IF);
                     k++)
                    axes |= g->axes[gargs(g, &g->w.from->insns[o])[k]];
        if (in->op == IR_STORE && axes != all)
            return grad_fail(g, in,
                             "all programs along axis %d store to the same elements of \"%s\": each would "
                             "take the whole gradient. Let one of them "
                             "store, or use mk.atomic_add",
                             all & ~axes & 1   ? 0
                             : all & ~axes & 2 ? 1
                                               : 2,
                             name_of(g, buf));
        g->buf[buf - 1].consumed |= stores > 1 || (in->op == IR_STORE && in_one_loop(g, i, i));
    }
    return EAS_OK;
}

static eas_status check_reverse(gradder *g)
{
    for (int p = 0; p < g->w.from->nparams; p++) {
        const uint32_t v = (uint32_t)p + 1;
        if (ir_typeof(g->w.from, v).kind != IR_BUF)
            continue;
        eas_status st = g->w.from->params[p].write ? check_order(g, v) : EAS_OK;
        if (!st && g->buf[p].of)
            st = check_stores(g, v);
        if (st)
            return st;
        g->buf[p].shared = g->buf[p].of && g->buf[p].wrt && g->w.from->params[p].write;
    }
    return EAS_OK;
}

/* Forward mode makes the stores of the kernel; a buffer that is read after that needs a tangent of its
 * own. */
static eas_status check_forward(gradder *g)
{
    for (uint32_t i = 0; i < g->w.from->ninsns; i++) {
        const ir_insn *in = &g->w.from->insns[i];
        if (!ir_writes(in) || gargs(g, in)[0] > (uint32_t)g->w.from->nparams ||
            !g->w.from->params[gargs(g, in)[0] - 1].read || ir_is_atomic(in))
            continue;
        const grad_buf *b = &g->buf[gargs(g, in)[0] - 1];
        const uint32_t x = gargs(g, in)[in->op == IR_MMA_STORE ? 3 : 2];
        if (b->of != b->wrt && (g->varied[x] || b->wrt))
            return grad_fail(g, in, "\"%s\" is read and written: name it in both `of` and `wrt`",
                             name_of(g, gargs(g, in)[0]));
        if (!b->of && g->varied[x])
            return grad_fail(
                g, in, "\"%s\" is read again and holds something that varies: name it in both `of` and `wrt`",
                name_of(g, gargs(g, in)[0]));
    }
    return EAS_OK;
}

eas_status grad_facts(gradder *g, bool reverse)
{
    const uint32_t n = g->w.from->nvals + 1;
    const ir_env none = {0};
    g->varied = arena_alloc(&g->w.mem, n);
    g->useful = arena_alloc(&g->w.mem, n);
    g->risky = arena_alloc(&g->w.mem, n);
    g->sign = arena_alloc(&g->w.mem, n);
    g->axes = arena_alloc(&g->w.mem, n);
    g->range = ir_ranges(g->w.from, &none, &g->w.mem);
    g->adj = arena_alloc(&g->w.mem, n * sizeof *g->adj);
    g->went = arena_alloc(&g->w.mem, (g->w.from->ninsns + 1) * sizeof *g->went);
    if (!ir_find_regions(g->w.from, &g->w.mem, &g->at) || !g->range)
        return base_fail_oom(n);
    find_varied(g);
    find_useful(g);
    find_risky(g);
    find_axes(g);
    eas_status st = reverse ? check_reverse(g) : check_forward(g);
    for (uint32_t i = 0; i < g->w.from->ninsns && !st; i++) {
        const ir_insn *in = &g->w.from->insns[i];
        st = ir_is_atomic(in) ? check_atomic(g, in, reverse) : in->nargs ? check_value(g, in) : EAS_OK;
    }
    return st;
}
