/* grad_scan.c: derivatives of reductions and scans.
 *
 * A reduction's derivative is a weight for each element: 1 for a sum; for a product the product of all
 * others, exact where elements are 0; for min and max one over the number of elements that attain it, where
 * they do. A scan's is a linear recurrence along the axis, forwards for tangents and backwards for
 * cotangents, which is solved by doubling: after step s an element has joined the 2s elements on its side.
 */
#include "grad.h"

#include <math.h>

static ir_type type_of(const gradder *g, uint32_t v) { return gnew(g, v); }

/* Element i of the result is element i + by of x, or `fill` if there is none. */
static uint32_t shifted(gradder *g, uint32_t x, int axis, int64_t by, double fill)
{
    if (g->w.b->status)
        return 0;
    const ir_type full = type_of(g, x);
    const int64_t n = full.dim[axis], s = by < 0 ? -by : by;
    ir_type part = full, t = full;
    if (s >= n)
        return g_num(g, full, fill);
    part.dim[axis] = (int32_t)(n - s);
    uint32_t y = irb_insn(g->w.b, IR_SLICE, &x, 1, ir_imm_place(axis, by > 0 ? s : 0), 1, &part);
    uint32_t a[2] = {y, g_num(g, ir_scalar((eas_dtype)full.dtype), fill)};
    return g->w.b->status ? 0 : irb_insn(g->w.b, IR_PAD, a, 2, ir_imm_place(axis, by > 0 ? 0 : s), 1, &t);
}

/* Solves r[i] = b[i] + a[i] * r[i + 1] (toward = 1) or r[i] = b[i] + a[i] * r[i - 1] (toward = -1) by
 * doubling; a must be 0 at the last element in that direction, which has no neighbour. */
static uint32_t recurrence(gradder *g, uint32_t a, uint32_t b, int axis, int toward)
{
    const int64_t n = g->w.b->status ? 0 : type_of(g, b).dim[axis];
    for (int64_t s = 1; s < n && !g->w.b->status; s *= 2) {
        uint32_t next = shifted(g, b, axis, toward * s, 0);
        b = g_op(g, IR_ADD, b, a ? g_op(g, IR_MUL, a, next) : next);
        if (a && 2 * s < n)
            a = g_op(g, IR_MUL, a, shifted(g, a, axis, toward * s, 0));
    }
    return b;
}

/* For each element the product of all elements before it (toward = -1) or after it. */
static uint32_t others(gradder *g, uint32_t x, int axis, int toward)
{
    uint32_t p = shifted(g, x, axis, toward, 1);
    for (int64_t s = 1; !g->w.b->status && s < type_of(g, p).dim[axis]; s *= 2)
        p = g_op(g, IR_MUL, p, shifted(g, p, axis, toward * s, 1));
    return p;
}

/* ---- reductions ---- */

static uint32_t attained(gradder *g, const ir_insn *in)
{
    uint32_t x = g_wide(g, gargs(g, in)[0]);
    return g->w.b->status ? 0
                          : g_op(g, IR_EQ, x, g_spread(g, g_wide(g, in->res), type_of(g, x), (int)in->imm));
}

static uint32_t how_many(gradder *g, uint32_t eq, int axis, eas_dtype dt)
{
    ir_type t = ir_with_dtype(type_of(g, eq), dt);
    return g_reduce(g, IR_REDUCE_ADD, g_where(g, eq, g_num(g, t, 1), g_num(g, t, 0)), axis);
}

uint32_t grad_reduce_back(gradder *g, const ir_insn *in, uint32_t ct)
{
    const int axis = (int)in->imm;
    if (g->w.b->status)
        return 0;
    const ir_type full =
        ir_with_dtype(ir_typeof(g->w.from, gargs(g, in)[0]), (eas_dtype)type_of(g, ct).dtype);
    if (in->op == IR_REDUCE_ADD)
        return g_spread(g, ct, full, axis);
    if (in->op == IR_REDUCE_MUL) {
        uint32_t x = g_wide(g, gargs(g, in)[0]);
        return g_op(g, IR_MUL, g_spread(g, ct, full, axis),
                    g_op(g, IR_MUL, others(g, x, axis, -1), others(g, x, axis, 1)));
    }
    uint32_t eq = attained(g, in), share = g_op(g, IR_DIV, ct, how_many(g, eq, axis, (eas_dtype)full.dtype));
    return g_where(g, eq, g_spread(g, share, full, axis), g_num(g, full, 0));
}

uint32_t grad_reduce_tangent(gradder *g, const ir_insn *in, uint32_t t)
{
    const int axis = (int)in->imm;
    if (in->op == IR_REDUCE_ADD)
        return g_reduce(g, IR_REDUCE_ADD, t, axis);
    if (in->op == IR_REDUCE_MUL) {
        uint32_t x = g_wide(g, gargs(g, in)[0]);
        t = g_op(g, IR_MUL, t, g_op(g, IR_MUL, others(g, x, axis, -1), others(g, x, axis, 1)));
        return g_reduce(g, IR_REDUCE_ADD, t, axis);
    }
    if (g->w.b->status)
        return 0;
    uint32_t eq = attained(g, in), zero = g_num(g, type_of(g, t), 0);
    uint32_t all = g_reduce(g, IR_REDUCE_ADD, g_where(g, eq, t, zero), axis);
    return g->w.b->status ? 0 : g_op(g, IR_DIV, all, how_many(g, eq, axis, (eas_dtype)type_of(g, t).dtype));
}

/* ---- scans ---- */

/* For a running min or max: the elements at which it changes, which are those that become its value. Of equal
 * elements the first one counts. */
static uint32_t record(gradder *g, const ir_insn *in)
{
    uint32_t x = g_wide(g, gargs(g, in)[0]), y = g_wide(g, in->res);
    return g_op(g, IR_AND, g_op(g, IR_EQ, x, y), g_op(g, IR_NE, y, shifted(g, y, (int)in->imm, -1, NAN)));
}

static uint32_t kept(gradder *g, uint32_t rec, eas_dtype dt)
{
    if (g->w.b->status)
        return 0;
    ir_type t = ir_with_dtype(type_of(g, rec), dt);
    return g_where(g, rec, g_num(g, t, 0), g_num(g, t, 1));
}

uint32_t grad_scan_back(gradder *g, const ir_insn *in, uint32_t ct)
{
    const int axis = (int)in->imm;
    if (g->w.b->status)
        return 0;
    const eas_dtype dt = (eas_dtype)type_of(g, ct).dtype;
    if (in->op == IR_SCAN_ADD)
        return recurrence(g, 0, ct, axis, 1);
    uint32_t x = g_wide(g, gargs(g, in)[0]);
    /* element i contributes to all products that contain it, each of them without its factor i */
    if (in->op == IR_SCAN_MUL)
        return g_op(g, IR_MUL, others(g, x, axis, -1), recurrence(g, shifted(g, x, axis, 1, 0), ct, axis, 1));
    uint32_t rec = record(g, in), all = recurrence(g, shifted(g, kept(g, rec, dt), axis, 1, 0), ct, axis, 1);
    return g->w.b->status ? 0 : g_where(g, rec, all, g_num(g, type_of(g, ct), 0));
}

uint32_t grad_scan_tangent(gradder *g, const ir_insn *in, uint32_t t)
{
    const int axis = (int)in->imm;
    if (g->w.b->status)
        return 0;
    if (in->op == IR_SCAN_ADD)
        return recurrence(g, 0, t, axis, -1);
    uint32_t x = g_wide(g, gargs(g, in)[0]);
    if (in->op == IR_SCAN_MUL)
        return recurrence(g, x, g_op(g, IR_MUL, t, others(g, x, axis, -1)), axis, -1);
    uint32_t rec = record(g, in), own = g_where(g, rec, t, g_num(g, type_of(g, t), 0));
    return recurrence(g, kept(g, rec, (eas_dtype)type_of(g, t).dtype), own, axis, -1);
}
