/* terms.c: integers as sums of terms, for proofs that lanes and programs touch different elements.
 *
 * linear.c gives each axis one coefficient, which is what contiguous accesses need. A proof needs more: an
 * offset is written as a sum of coordinates (lanes along an axis, program ids, anything else that is one
 * number for all lanes) times an integer and, at most, one scalar that is the same for the whole launch, with
 * several terms for one coordinate. Constants drop out: only differences between lanes and between programs
 * count.
 */
#include "ir.h"

static const ir_terms nothing = {.ok = true};
static const ir_terms unknown = {.ok = false};

void ir_terms_add(ir_terms *f, ir_term t)
{
    for (int i = 0; i < f->n; i++)
        if (f->t[i].coord == t.coord && f->t[i].sym == t.sym) {
            f->t[i].c += t.c;
            if (!f->t[i].c)
                f->t[i] = f->t[--f->n];
            return;
        }
    if (!t.c)
        return;
    if (f->n == IR_MAX_TERMS)
        f->ok = false;
    else
        f->t[f->n++] = t;
}

/* ---- scalars ---- */

/* The same for the whole launch: made of parameters and constants alone. */
static bool invariant(const eas_ir *ir, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(ir, v);
    if (!in)
        return ir_typeof(ir, v).kind == IR_VAL;
    if (in->op == IR_CONST)
        return true;
    if (!(ir_rows[in->op].flags & IR_PURE) || !in->nargs || in->nargs > 3 || depth > 8)
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (!invariant(ir, ir_args(ir, in)[k], depth + 1))
            return false;
    return true;
}

uint32_t ir_through_views(const eas_ir *ir, uint32_t v)
{
    const ir_insn *in;
    while ((in = ir_def(ir, v)) && (in->op == IR_BROADCAST || in->op == IR_RESHAPE ||
                                    (in->op == IR_CAST && dtype_is_int((eas_dtype)ir_typeof(ir, v).dtype) &&
                                     dtype_is_int((eas_dtype)ir_typeof(ir, ir_args(ir, in)[0]).dtype))))
        v = ir_args(ir, in)[0];
    return v;
}

/* v as an integer times an invariant scalar. */
static bool scale_of(const eas_ir *ir, uint32_t v, int64_t *c, uint32_t *sym)
{
    v = ir_through_views(ir, v);
    if (ir_const_of(ir, v, c))
        return *sym = 0, true;
    if (ir_typeof(ir, v).rank || !invariant(ir, v, 0))
        return false;
    const ir_insn *in = ir_def(ir, v);
    *c = 1;
    *sym = v;
    int64_t k;
    if (in && in->op == IR_MUL)
        for (int i = 0; i < 2; i++)
            if (ir_const_of(ir, ir_args(ir, in)[i], &k)) {
                *c = k;
                *sym = ir_through_views(ir, ir_args(ir, in)[1 - i]);
            }
    return true;
}

/* ---- forms ---- */

static ir_terms terms_at(const eas_ir *ir, uint32_t v, int depth);

/* axis[i]: the axis of the result that lane axis i becomes; -1: its length is 1 */
static ir_terms remapped(const ir_terms *f, const int *axis)
{
    ir_terms r = nothing;
    r.ok = f->ok;
    for (int i = 0; i < f->n; i++) {
        ir_term t = f->t[i];
        if (t.coord < IR_TERM_PROGRAM && axis[t.coord] < 0)
            continue;
        if (t.coord < IR_TERM_PROGRAM)
            t.coord = (uint32_t)axis[t.coord];
        ir_terms_add(&r, t);
    }
    return r;
}

static ir_terms broadcast_form(ir_terms f, ir_type from, ir_type to)
{
    int axis[4] = {-1, -1, -1, -1};
    for (int a = 0; a < from.rank; a++)
        axis[a] = from.dim[a] == 1 ? -1 : a + to.rank - from.rank;
    return remapped(&f, axis);
}

/* A reshape that only adds or drops axes of length 1. */
static bool same_but_ones(ir_type from, ir_type to, int axis[4])
{
    int b = 0;
    for (int a = 0; a < from.rank; a++) {
        axis[a] = -1;
        if (from.dim[a] == 1)
            continue;
        while (b < to.rank && to.dim[b] == 1)
            b++;
        if (b == to.rank || to.dim[b] != from.dim[a])
            return false;
        axis[a] = b++;
    }
    while (b < to.rank && to.dim[b] == 1)
        b++;
    return b == to.rank;
}

static ir_terms reshape_form(ir_terms f, ir_type from, ir_type to)
{
    int axis[4] = {-1, -1, -1, -1};
    if (same_but_ones(from, to, axis))
        return remapped(&f, axis);
    if (from.rank != 1)
        return unknown;
    ir_terms r = nothing; /* a row cut into several axes */
    r.ok = f.ok;
    for (int i = 0; i < f.n; i++) {
        int64_t stride = 1;
        if (f.t[i].coord >= IR_TERM_PROGRAM)
            ir_terms_add(&r, f.t[i]);
        for (int a = to.rank - 1; a >= 0 && f.t[i].coord < IR_TERM_PROGRAM; a--) {
            ir_terms_add(&r, (ir_term){(uint32_t)a, f.t[i].c * stride, f.t[i].sym});
            stride *= to.dim[a];
        }
    }
    return r;
}

static ir_terms trans_form(ir_terms f, int64_t imm, int rank)
{
    int axis[4] = {-1, -1, -1, -1};
    for (int a = 0; a < rank; a++)
        axis[ir_imm_perm(imm, a)] = a;
    return remapped(&f, axis);
}

static ir_terms sum_form(const ir_terms *x, const ir_terms *y, int64_t sign)
{
    ir_terms r = *x;
    r.ok = x->ok && y->ok;
    for (int i = 0; i < y->n; i++)
        ir_terms_add(&r, (ir_term){y->t[i].coord, sign * y->t[i].c, y->t[i].sym});
    return r;
}

static ir_terms scaled(const eas_ir *ir, uint32_t x, uint32_t by, int depth)
{
    int64_t c;
    uint32_t sym;
    if (!scale_of(ir, by, &c, &sym))
        return unknown;
    ir_terms f = terms_at(ir, x, depth + 1);
    for (int i = 0; i < f.n; i++) {
        if (sym && f.t[i].sym)
            return unknown;
        if (__builtin_mul_overflow(f.t[i].c, c, &f.t[i].c))
            return unknown;
        f.t[i].sym = sym ? sym : f.t[i].sym;
    }
    return c ? f : nothing;
}

static ir_terms other(uint32_t v)
{
    ir_terms f = nothing;
    ir_terms_add(&f, (ir_term){IR_TERM_OTHER + v, 1, 0});
    return f;
}

/* A view of x: f is the ir_terms of x. */
ir_terms ir_terms_viewed(const eas_ir *ir, const ir_insn *in, ir_terms f)
{
    ir_type from = ir_typeof(ir, ir_args(ir, in)[0]), to = ir_typeof(ir, in->res);
    switch (in->op) {
    case IR_BROADCAST: return broadcast_form(f, from, to);
    case IR_RESHAPE: return reshape_form(f, from, to);
    case IR_TRANS: return trans_form(f, in->imm, to.rank);
    default: return f;
    }
}

static ir_terms terms_at(const eas_ir *ir, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(ir, v);
    const ir_type t = ir_typeof(ir, v);
    ir_terms f = nothing, x, y;
    if (invariant(ir, v, 0))
        return nothing;
    if (depth > 24)
        return unknown;
    if (!in)
        return unknown;
    switch (in->op) {
    case IR_ARANGE: ir_terms_add(&f, (ir_term){0, 1, 0}); return f;
    case IR_PROGRAM_ID: ir_terms_add(&f, (ir_term){IR_TERM_PROGRAM + (uint32_t)in->imm, 1, 0}); return f;
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_TRANS:
    case IR_SLICE: return ir_terms_viewed(ir, in, terms_at(ir, ir_args(ir, in)[0], depth + 1));
    case IR_CAST:
        return dtype_is_int((eas_dtype)t.dtype) && dtype_bits((eas_dtype)t.dtype) >= 32
                 ? terms_at(ir, ir_args(ir, in)[0], depth + 1)
                 : unknown;
    case IR_ADD:
    case IR_SUB:
        x = terms_at(ir, ir_args(ir, in)[0], depth + 1);
        y = terms_at(ir, ir_args(ir, in)[1], depth + 1);
        return sum_form(&x, &y, in->op == IR_ADD ? 1 : -1);
    case IR_MUL:
        f = scaled(ir, ir_args(ir, in)[0], ir_args(ir, in)[1], depth);
        if (!f.ok)
            f = scaled(ir, ir_args(ir, in)[1], ir_args(ir, in)[0], depth);
        return f.ok || t.rank ? f : other(v);
    default: return t.rank ? unknown : other(v);
    }
}

ir_terms ir_terms_of(const eas_ir *ir, uint32_t v) { return terms_at(ir, v, 0); }
