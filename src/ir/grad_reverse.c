/* grad_reverse.c: reverse mode. A region is computed forwards once, without its stores, and then gone through
 * backwards: each instruction adds the contribution of its result's adjoint to the adjoints of its operands.
 * A load adds to the gradient of its buffer; a store reads the cotangent of the elements that it stored.
 */
#include "grad.h"

static void at_line(gradder *g, const ir_insn *in)
{
    g->w.b->file = in->file;
    g->w.b->line = in->line;
}

static bool is_local(const gradder *g, uint32_t buf) { return buf > (uint32_t)g->w.from->nparams; }

/* off + start, as blocks of i64 */
static uint32_t moved(gradder *g, uint32_t off, uint32_t start)
{
    off = g_cast(g, off, EAS_I64);
    return g->w.b->status ? 0 : g_op(g, IR_ADD, off, irb_to(g->w.b, IR_BROADCAST, gnew(g, off), start));
}

/* The offset in the new kernel of an access of the primal kernel. */
static uint32_t place(gradder *g, uint32_t buf, uint32_t off)
{
    return is_local(g, buf) ? moved(g, g->w.map[off], grad_local_of(g, buf)->start) : g->w.map[off];
}

static uint32_t memory(gradder *g, uint32_t buf)
{
    return is_local(g, buf) ? grad_local_of(g, buf)->data : g->w.map[buf];
}

/* ---- forwards ---- */

/* Copies an access whose operands 0 and 1 (two: also 3 and 4) are a buffer and an offset. */
static void copy_access(gradder *g, const ir_insn *in, bool two)
{
    uint32_t args[8];
    const uint32_t *a = gargs(g, in);
    ir_type t = in->nres ? ir_typeof(g->w.from, in->res) : (ir_type){0};
    for (int k = 0; k < in->nargs && k < 8; k++)
        args[k] = g->w.map[a[k]];
    args[0] = memory(g, a[0]);
    args[1] = place(g, a[0], a[1]);
    if (two) {
        args[3] = memory(g, a[3]);
        args[4] = place(g, a[3], a[4]);
    }
    uint32_t r = g->w.b->status ? 0 : irb_insn(g->w.b, in->op, args, in->nargs, in->imm, in->nres, &t);
    if (in->nres)
        g->w.map[in->res] = r;
}

static void forward_one(gradder *g, uint32_t i)
{
    const ir_insn *in = &g->w.from->insns[i];
    at_line(g, in);
    switch (in->op) {
    case IR_ALLOC_TG:
    case IR_BARRIER:
    case IR_FENCE:
    case IR_ASSERT:
    case IR_PRINT:
    case IR_DO: return;
    case IR_LOAD: copy_access(g, in, false); return;
    case IR_DOT: copy_access(g, in, true); return;
    default: break;
    }
    if (ir_writes(in)) {
        if (is_local(g, gargs(g, in)[0]))
            copy_access(g, in, false);
        return;
    }
    ir_rewrite_copy(&g->w, i);
}

void grad_forward(gradder *g, uint32_t first, uint32_t last, bool taped)
{
    for (uint32_t i = first; i < last && !g->w.b->status; i++)
        switch (g->w.from->insns[i].op) {
        case IR_LOOP:
        case IR_WHILE:
            grad_forward_loop(g, i, taped);
            i = g->at.end[i];
            break;
        case IR_IF:
            grad_forward_if(g, i);
            i = g->at.end[i];
            break;
        default: forward_one(g, i);
        }
}

/* ---- memory ---- */

static uint32_t lanes_of(gradder *g, ir_type t)
{
    ir_type row = ir_scalar(EAS_I32);
    row.rank = 1;
    row.dim[0] = (int32_t)ir_lanes(t);
    return irb_to(g->w.b, IR_RESHAPE, ir_with_dtype(t, EAS_I32), irb_typed(g->w.b, IR_ARANGE, row, 0));
}

/* If lanes of a store may write to the same element, the last one counts: every lane writes its number, and
 * reads back the number that remained. */
static uint32_t winners(gradder *g, uint32_t owner, uint32_t off, uint32_t mask)
{
    if (g->w.b->status)
        return 0;
    uint32_t lane = lanes_of(g, gnew(g, off));
    g_store(g, owner, off, lane, mask);
    uint32_t won = g_op(g, IR_EQ, g_load(g, owner, off, mask), lane);
    return mask ? g_op(g, IR_AND, won, mask) : won;
}

static void add_atomic(gradder *g, uint32_t to, uint32_t off, uint32_t x, uint32_t mask)
{
    uint32_t a[4] = {to, off, x, mask};
    ir_type t = {0};
    irb_insn(g->w.b, IR_ATOMIC_ADD, a, mask ? 4 : 3, 0, 1, &t);
}

/* to[off] += x */
static void add_to(gradder *g, uint32_t to, uint32_t off, uint32_t x, uint32_t mask, bool alone)
{
    if (g->w.b->status)
        return;
    x = g_cast(g, x, (eas_dtype)gnew(g, to).dtype);
    if (alone)
        g_store(g, to, off, g_op(g, IR_ADD, g_load(g, to, off, mask), x), mask);
    else
        add_atomic(g, to, off, x, mask);
}

/* The buffer that holds the gradient of memory `buf`; 0: it is not wanted. */
static uint32_t gradient_of(gradder *g, uint32_t buf)
{
    return is_local(g, buf) ? grad_local_of(g, buf)->adj : g->buf[buf - 1].grad;
}

/* If the order of the sum is to be fixed, each program has its own part of the gradient. */
static uint32_t gradient_place(gradder *g, uint32_t buf, uint32_t off)
{
    if (is_local(g, buf) || !g->buf[buf - 1].length)
        return off;
    return moved(g, off, g_op(g, IR_MUL, g->program, g->buf[buf - 1].length));
}

/* Is it the only load of its buffer, and not in a loop? */
static bool read_once(const gradder *g, uint32_t i)
{
    const uint32_t buf = gargs(g, &g->w.from->insns[i])[0];
    if (g->w.from->params[buf - 1].write)
        return false;
    for (uint32_t k = 0; k < g->w.from->ninsns; k++) {
        const ir_insn *in = &g->w.from->insns[k];
        if ((in->op == IR_LOOP || in->op == IR_WHILE) && k < i && g->at.end[k] > i)
            return false;
        if (k != i && ((in->op == IR_LOAD && gargs(g, in)[0] == buf) ||
                       (in->op == IR_DOT && (gargs(g, in)[0] == buf || gargs(g, in)[3] == buf))))
            return false;
    }
    return true;
}

static void reverse_load(gradder *g, uint32_t i)
{
    const ir_insn *in = &g->w.from->insns[i];
    const uint32_t *a = gargs(g, in), ct = g->adj[in->res], mask = in->nargs == 4 ? g->w.map[a[2]] : 0,
                   to = gradient_of(g, a[0]);
    if (mask && gactive(g, a[3]))
        grad_add(g, a[3], g_where(g, mask, g_num(g, gnew(g, ct), 0), ct));
    if (!to || g->w.b->status)
        return;
    const bool once = g->opt->fresh && !is_local(g, a[0]) && read_once(g, i);
    const bool alone = grad_lanes_differ(g, a[1], in->nargs == 4 ? a[2] : 0) &&
                       (is_local(g, a[0]) || g->buf[a[0] - 1].length || grad_programs_differ(g, i));
    if (alone && once)
        g_store(g, to, gradient_place(g, a[0], g->w.map[a[1]]), g_cast(g, ct, (eas_dtype)gnew(g, to).dtype),
                mask);
    else
        add_to(g, to, gradient_place(g, a[0], place(g, a[0], a[1])), ct, mask, alone);
}

/* The cotangent of the values that a store wrote: those of lanes whose value was not overwritten. */
static void take(gradder *g, const ir_insn *in, uint32_t from, uint32_t owner, bool clear)
{
    const uint32_t *a = gargs(g, in);
    const uint32_t off = place(g, a[0], a[1]), mask = in->nargs == 4 ? g->w.map[a[3]] : 0;
    const uint32_t on = owner ? winners(g, owner, off, mask) : mask;
    if (gactive(g, a[2]))
        grad_add(
            g, a[2],
            g_cast(g, g_load(g, from, off, on), grad_dtype((eas_dtype)ir_typeof(g->w.from, a[2]).dtype)));
    if (clear && !g->w.b->status)
        g_store(g, from, off,
                irb_const(g->w.b, ir_with_dtype(gnew(g, off), (eas_dtype)gnew(g, from).dtype), 0), mask);
}

static void reverse_store(gradder *g, const ir_insn *in)
{
    const uint32_t buf = gargs(g, in)[0];
    if (is_local(g, buf)) {
        const grad_local *l = grad_local_of(g, buf);
        if (l->adj)
            take(g, in, l->adj, grad_lanes_differ(g, gargs(g, in)[1], ir_mask(g->w.from, in)) ? 0 : l->owner,
                 true);
        return;
    }
    const grad_buf *b = &g->buf[buf - 1];
    if (b->ct && (b->shared || b->consumed || gactive(g, gargs(g, in)[2])))
        take(g, in, b->ct, grad_lanes_differ(g, gargs(g, in)[1], ir_mask(g->w.from, in)) ? 0 : b->owner,
             b->shared || b->consumed);
}

static void reverse_atomic(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    if (!is_local(g, a[0]) && g->buf[a[0] - 1].ct && gactive(g, a[2]))
        grad_add(g, a[2],
                 g_load(g, g->buf[a[0] - 1].ct, g->w.map[a[1]], in->nargs == 4 ? g->w.map[a[3]] : 0));
}

/* ---- dot ---- */

static uint32_t stepped(gradder *g, uint32_t base, uint32_t stride, uint32_t k)
{
    base = g_cast(g, base, EAS_I64);
    return g->w.b->status ? 0
                          : g_op(g, IR_ADD, base,
                                 g_op(g, IR_MUL, g_cast(g, stride, EAS_I64),
                                      irb_to(g->w.b, IR_BROADCAST, gnew(g, base), k)));
}

static uint32_t most_of(gradder *g, uint32_t k)
{
    k = g_cast(g, k, EAS_I64);
    while (!g->w.b->status && gnew(g, k).rank)
        k = g_reduce(g, IR_REDUCE_MAX, k, 0);
    return k;
}

static void dot_step(gradder *g, const ir_insn *in, int x, uint32_t k, uint32_t on)
{
    const uint32_t *a = gargs(g, in), y = (uint32_t)(3 - x), ct = g->adj[in->res];
    const uint32_t to = gradient_of(g, a[x]);
    if (!to || g->w.b->status)
        return;
    uint32_t mine = stepped(g, place(g, a[x], a[x + 1]), g->w.map[a[x + 2]], k),
             theirs = stepped(g, place(g, a[y], a[y + 1]), g->w.map[a[y + 2]], k);
    uint32_t factor = g_cast(g, g_load(g, memory(g, a[y]), theirs, on), (eas_dtype)gnew(g, ct).dtype);
    add_to(g, to, gradient_place(g, a[x], mine), g_op(g, IR_MUL, ct, factor), on, false);
}

static void reverse_dot(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    uint32_t n = g->w.map[a[6]], args[3] = {g_int(g, EAS_I64, 0), most_of(g, n), g_int(g, EAS_I64, 1)};
    ir_type t = {0};
    if (g->w.b->status)
        return;
    uint32_t k = irb_insn(g->w.b, IR_LOOP, args, 3, 0, 1, &t), on = 0;
    if (!g->w.b->status && gnew(g, n).rank) {
        n = g_cast(g, n, EAS_I64);
        on = g_op(g, IR_LT, irb_to(g->w.b, IR_BROADCAST, gnew(g, n), k), n);
    }
    dot_step(g, in, 0, k, on);
    dot_step(g, in, 3, k, on);
    irb_insn(g->w.b, IR_ENDLOOP, NULL, 0, 0, 0, NULL);
}

/* ---- backwards ---- */

static void reverse_one(gradder *g, uint32_t i)
{
    const ir_insn *in = &g->w.from->insns[i];
    at_line(g, in);
    if (in->op == IR_STORE) {
        reverse_store(g, in);
        return;
    }
    if (in->op == IR_ATOMIC_ADD) {
        reverse_atomic(g, in);
        return;
    }
    if (in->nres != 1 || !g->adj[in->res] || !gactive(g, in->res))
        return;
    if (in->op == IR_LOAD)
        reverse_load(g, i);
    else if (in->op == IR_DOT)
        reverse_dot(g, in);
    else if (!grad_transpose(g, in))
        grad_fail(g, in, "%s has no derivative", ir_rows[in->op].name);
}

void grad_reverse(gradder *g, uint32_t first, uint32_t last)
{
    for (uint32_t i = last; i-- > first && !g->w.b->status && !g->status;)
        switch (g->w.from->insns[i].op) {
        case IR_ENDLOOP:
        case IR_ENDWHILE:
            i = g->at.opener[i];
            at_line(g, &g->w.from->insns[i]);
            grad_reverse_loop(g, i);
            break;
        case IR_ENDIF:
            i = g->at.opener[i];
            at_line(g, &g->w.from->insns[i]);
            grad_reverse_if(g, i);
            break;
        default: reverse_one(g, i);
        }
}
