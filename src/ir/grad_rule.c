/* grad_rule.c: the derivative of one instruction: partial derivatives from grad.def, and transposes of what
 * only moves or adds up elements.
 *
 * A product of a cotangent and a partial derivative that may be infinite is 0 where the cotangent is 0. Two
 * cases need that: lanes that a mask turns off still compute, on zeros, and a NaN of theirs would spread to
 * all lanes in the next sum; and where 1 / (1 + exp(-x)) is 0 because the exponential overflows, its
 * derivative is 0 as well.
 */
#include "grad.h"

#include <math.h>

/* ---- small builders ---- */

uint32_t g_op(gradder *g, uint16_t op, uint32_t x, uint32_t y) { return irb_op(g->w.b, op, x, y, 0); }
uint32_t g_num(gradder *g, ir_type t, double v)
{
    return irb_const(g->w.b, t, ir_bits_from_double((eas_dtype)t.dtype, v));
}
uint32_t g_int(gradder *g, eas_dtype dt, int64_t v) { return irb_const(g->w.b, ir_scalar(dt), v); }
uint32_t g_where(gradder *g, uint32_t c, uint32_t x, uint32_t y) { return irb_op(g->w.b, IR_WHERE, c, x, y); }

uint32_t g_cast(gradder *g, uint32_t x, eas_dtype dt)
{
    return g->w.b->status ? 0 : irb_to(g->w.b, IR_CAST, ir_with_dtype(gnew(g, x), dt), x);
}

uint32_t g_wide(gradder *g, uint32_t v)
{
    return g_cast(g, g->w.map[v], grad_dtype((eas_dtype)ir_typeof(g->w.from, v).dtype));
}

uint32_t g_load(gradder *g, uint32_t buf, uint32_t off, uint32_t mask)
{
    if (g->w.b->status)
        return 0;
    ir_type t = ir_with_dtype(gnew(g, off), (eas_dtype)gnew(g, buf).dtype);
    uint32_t a[4] = {buf, off, mask, 0};
    if (mask)
        a[3] = irb_const(g->w.b, t, 0);
    return irb_insn(g->w.b, IR_LOAD, a, mask ? 4 : 2, 0, 1, &t);
}

void g_store(gradder *g, uint32_t buf, uint32_t off, uint32_t x, uint32_t mask)
{
    uint32_t a[4] = {buf, off, x, mask};
    irb_insn(g->w.b, IR_STORE, a, mask ? 4 : 3, 0, 0, NULL);
}

uint32_t g_reduce(gradder *g, uint16_t op, uint32_t x, int axis)
{
    ir_type t = {0};
    return g->w.b->status ? 0 : irb_insn(g->w.b, op, &x, 1, axis, 1, &t);
}

uint32_t g_spread(gradder *g, uint32_t x, ir_type t, int axis)
{
    if (g->w.b->status)
        return 0;
    ir_type one = ir_with_dtype(t, (eas_dtype)gnew(g, x).dtype), full = one;
    one.dim[axis] = 1;
    return irb_to(g->w.b, IR_BROADCAST, full, irb_to(g->w.b, IR_RESHAPE, one, x));
}

uint32_t g_sum_to(gradder *g, uint32_t x, ir_type t)
{
    if (g->w.b->status)
        return 0;
    ir_type from = gnew(g, x);
    const int extra = from.rank - t.rank;
    for (int a = from.rank - 1; a >= 0; a--)
        if (a < extra || (t.dim[a - extra] == 1 && from.dim[a] != 1))
            x = g_reduce(g, IR_REDUCE_ADD, x, a);
    return g->w.b->status ? 0 : irb_to(g->w.b, IR_RESHAPE, ir_with_dtype(t, (eas_dtype)gnew(g, x).dtype), x);
}

void grad_add(gradder *g, uint32_t v, uint32_t x)
{
    if (g->w.b->status || !x || !gactive(g, v))
        return;
    x = g_cast(g, x, grad_dtype((eas_dtype)ir_typeof(g->w.from, v).dtype));
    g->adj[v] = g->adj[v] ? g_op(g, IR_ADD, g->adj[v], x) : x;
}

/* ---- partial derivatives ---- */

/* What an entry of grad.def gives: a value, or P_NIL. */
enum { P_NIL = 0 };
static const uint32_t P_ONE = UINT32_MAX, P_MINUS = UINT32_MAX - 1;

typedef struct at {
    gradder *g;
    const ir_insn *in;
    ir_type t;
} at;

static uint32_t operand(const at *p, int k) { return g_wide(p->g, gargs(p->g, p->in)[k]); }

#define A operand(p, 0)
#define B operand(p, 1)
#define C operand(p, 2)
#define R g_wide(p->g, p->in->res)
#define NUM(x) g_num(p->g, p->t, x)
#define F1(op, x) g_op(p->g, op, x, 0)
#define NEG(x) F1(IR_NEG, x)
#define TRUNC(x) F1(IR_TRUNC, x)
#define EXP(x) F1(IR_EXP, x)
#define LOG(x) F1(IR_LOG, x)
#define SIN(x) F1(IR_SIN, x)
#define COS(x) F1(IR_COS, x)
#define ADD(x, y) g_op(p->g, IR_ADD, x, y)
#define SUB(x, y) g_op(p->g, IR_SUB, x, y)
#define MUL(x, y) g_op(p->g, IR_MUL, x, y)
#define DIV(x, y) g_op(p->g, IR_DIV, x, y)
#define POW(x, y) g_op(p->g, IR_POW, x, y)
#define LDEXP(x, y) g_op(p->g, IR_LDEXP, x, y)
#define LT(x, y) g_op(p->g, IR_LT, x, y)
#define GT(x, y) g_op(p->g, IR_GT, x, y)
#define EQ(x, y) g_op(p->g, IR_EQ, x, y)
#define WHERE(c, x, y) g_where(p->g, c, x, y)
#define NIL P_NIL
#define ONE P_ONE
#define MINUS P_MINUS

static uint32_t partial_of(const at *p, int k)
{
    switch (p->in->op) {
#define PARTIALS(NAME, da, db, dc) \
    case IR_##NAME: return k == 0 ? (da) : k == 1 ? (db) : (dc);
#include "grad.def"
#undef PARTIALS
    default: return P_NIL;
    }
}

#undef A
#undef B
#undef C
#undef R
#undef LOG

bool grad_has_rule(uint16_t op)
{
    switch (op) {
#define PARTIALS(NAME, da, db, dc) case IR_##NAME:
#include "grad.def"
#undef PARTIALS
        return true;
    default: return false;
    }
}

/* Can a product with this instruction's partial derivatives make a NaN of a zero? */
static bool singular(const gradder *g, const ir_insn *in)
{
    switch (in->op) {
    case IR_DIV:
        if (g->sign[gargs(g, in)[1]] < 2)
            return true;
        break;
    case IR_SQRT:
    case IR_RSQRT:
        if (g->sign[gargs(g, in)[0]] < 2)
            return true;
        break;
    case IR_LOG:
    case IR_LOG2:
    case IR_LOG1P:
    case IR_POW:
    case IR_TREM: return true;
    default: break;
    }
    if (g->risky[in->res])
        return true;
    for (int k = 0; k < in->nargs; k++)
        if (g->risky[gargs(g, in)[k]])
            return true;
    return false;
}

/* x * partial; 0: there is none. x is a cotangent or a tangent. An infinite tangent times a partial
 * derivative of 0 is 0, since the value itself no longer depends on what was infinite. */
static uint32_t times(gradder *g, const ir_insn *in, uint32_t x, uint32_t p, bool tangent)
{
    if (p == P_NIL || g->w.b->status)
        return 0;
    if (p == P_ONE)
        return x;
    if (p == P_MINUS)
        return g_op(g, IR_NEG, x, 0);
    uint32_t y = g_op(g, IR_MUL, x, p);
    if (g->w.b->status || !singular(g, in))
        return y;
    uint32_t zero = g_num(g, gnew(g, x), 0), none = g_op(g, IR_EQ, x, zero);
    if (tangent)
        none = g_op(g, IR_OR, none, g_op(g, IR_EQ, p, zero));
    return g_where(g, none, zero, y);
}

/* ---- transposes ---- */

static uint32_t inverse_trans(gradder *g, uint32_t x, int64_t imm, ir_type to)
{
    int64_t back = 0;
    ir_type t = ir_with_dtype(to, (eas_dtype)gnew(g, x).dtype);
    for (int a = 0; a < to.rank; a++)
        back |= (int64_t)a << (3 * ir_imm_perm(imm, a));
    return irb_insn(g->w.b, IR_TRANS, &x, 1, back, 1, &t);
}

static uint32_t swapped(gradder *g, uint32_t x)
{
    ir_type t = gnew(g, x);
    int32_t rows = t.dim[0];
    t.dim[0] = t.dim[1];
    t.dim[1] = rows;
    return g->w.b->status ? 0 : irb_insn(g->w.b, IR_TRANS, &x, 1, 1 | 0 << 3, 1, &t);
}

static uint32_t product(gradder *g, uint32_t x, uint32_t y)
{
    if (g->w.b->status)
        return 0;
    ir_type t = gnew(g, x);
    t.dim[1] = gnew(g, y).dim[1];
    uint32_t a[3] = {x, y, g_num(g, t, 0)};
    return irb_insn(g->w.b, IR_MATMUL, a, 3, 0, 1, &t);
}

static uint32_t cut(gradder *g, uint32_t x, int64_t imm, ir_type to)
{
    ir_type t = ir_with_dtype(to, (eas_dtype)gnew(g, x).dtype);
    return g->w.b->status ? 0 : irb_insn(g->w.b, IR_SLICE, &x, 1, imm, 1, &t);
}

static uint32_t padded(gradder *g, uint32_t x, int64_t imm, ir_type to)
{
    if (g->w.b->status)
        return 0;
    ir_type t = ir_with_dtype(to, (eas_dtype)gnew(g, x).dtype);
    uint32_t a[2] = {x, g_num(g, ir_scalar((eas_dtype)t.dtype), 0)};
    return irb_insn(g->w.b, IR_PAD, a, 2, imm, 1, &t);
}

static void pad_back(gradder *g, const ir_insn *in, uint32_t ct)
{
    const uint32_t *a = gargs(g, in);
    uint32_t inner = cut(g, ct, in->imm, ir_typeof(g->w.from, a[0]));
    grad_add(g, a[0], inner);
    if (gactive(g, a[1]))
        grad_add(g, a[1],
                 g_sum_to(g, g_op(g, IR_SUB, ct, padded(g, inner, in->imm, ir_typeof(g->w.from, in->res))),
                          ir_typeof(g->w.from, a[1])));
}

static void where_back(gradder *g, const ir_insn *in, uint32_t ct)
{
    const uint32_t *a = gargs(g, in);
    uint32_t c = g->w.map[a[0]], zero = g->w.b->status ? 0 : g_num(g, gnew(g, ct), 0);
    if (gactive(g, a[1]))
        grad_add(g, a[1], g_where(g, c, ct, zero));
    if (gactive(g, a[2]))
        grad_add(g, a[2], g_where(g, c, zero, ct));
}

static void matmul_back(gradder *g, const ir_insn *in, uint32_t ct)
{
    const uint32_t *a = gargs(g, in);
    if (gactive(g, a[0]))
        grad_add(g, a[0], product(g, ct, swapped(g, g->w.map[a[1]])));
    if (gactive(g, a[1]))
        grad_add(g, a[1], product(g, swapped(g, g->w.map[a[0]]), ct));
    grad_add(g, a[2], ct);
}

static void elementwise_back(gradder *g, const ir_insn *in, uint32_t ct)
{
    at p = {g, in, gnew(g, ct)};
    for (int k = 0; k < in->nargs; k++)
        if (gactive(g, gargs(g, in)[k]))
            grad_add(g, gargs(g, in)[k], times(g, in, ct, partial_of(&p, k), false));
}

bool grad_transpose(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in), ct = g->adj[in->res];
    const ir_type from = in->nargs ? ir_typeof(g->w.from, a[0]) : (ir_type){0};
    if (g->w.b->status)
        return true;
    switch (in->op) {
    case IR_CAST: grad_add(g, a[0], ct); return true;
    case IR_WHERE: where_back(g, in, ct); return true;
    case IR_BROADCAST: grad_add(g, a[0], g_sum_to(g, ct, from)); return true;
    case IR_RESHAPE:
        grad_add(g, a[0], irb_to(g->w.b, IR_RESHAPE, ir_with_dtype(from, (eas_dtype)gnew(g, ct).dtype), ct));
        return true;
    case IR_SLICE: grad_add(g, a[0], padded(g, ct, in->imm, from)); return true;
    case IR_PAD: pad_back(g, in, ct); return true;
    case IR_TRANS: grad_add(g, a[0], inverse_trans(g, ct, in->imm, from)); return true;
    case IR_MATMUL: matmul_back(g, in, ct); return true;
    default: break;
    }
    if (ir_rows[in->op].rule == IR_RULE_REDUCE)
        return grad_add(g, a[0], grad_reduce_back(g, in, ct)), true;
    if (ir_rows[in->op].rule == IR_RULE_SCAN)
        return grad_add(g, a[0], grad_scan_back(g, in, ct)), true;
    if (!grad_has_rule(in->op))
        return false;
    elementwise_back(g, in, ct);
    return true;
}

/* ---- tangents ---- */

static uint32_t tangent_or_zero(gradder *g, uint32_t v)
{
    return g->adj[v] ? g->adj[v] : g_num(g, grad_type(ir_typeof(g->w.from, v)), 0);
}

static uint32_t sum(gradder *g, uint32_t x, uint32_t y) { return !x ? y : !y ? x : g_op(g, IR_ADD, x, y); }

static uint32_t matmul_tangent(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    uint32_t r = g->adj[a[2]];
    for (int k = 0; k < 2; k++) {
        if (!g->adj[a[k]])
            continue;
        uint32_t x = k ? g->w.map[a[0]] : g->adj[a[0]], y = k ? g->adj[a[1]] : g->w.map[a[1]];
        r = sum(g, r, product(g, x, y));
    }
    return r;
}

static uint32_t elementwise_tangent(gradder *g, const ir_insn *in)
{
    uint32_t r = 0;
    at p = {g, in, grad_type(ir_typeof(g->w.from, in->res))};
    for (int k = 0; k < in->nargs; k++)
        if (g->adj[gargs(g, in)[k]])
            r = sum(g, r, times(g, in, g->adj[gargs(g, in)[k]], partial_of(&p, k), true));
    return r;
}

/* Moves the tangent as the instruction moves the value. */
static uint32_t moved(gradder *g, const ir_insn *in)
{
    const uint32_t *a = gargs(g, in);
    uint32_t args[2] = {tangent_or_zero(g, a[0]), in->nargs > 1 ? tangent_or_zero(g, a[1]) : 0};
    ir_type t = grad_type(ir_typeof(g->w.from, in->res));
    return g->w.b->status ? 0 : irb_insn(g->w.b, in->op, args, in->nargs, in->imm, 1, &t);
}

uint32_t grad_tangent(gradder *g, const ir_insn *in, bool *known)
{
    const uint32_t *a = gargs(g, in);
    bool any = false;
    *known = true;
    for (int k = 0; k < in->nargs; k++)
        any |= g->adj[a[k]] != 0;
    if (!any || !in->nres || !gfloat(g, in->res) || g->w.b->status)
        return 0;
    switch (in->op) {
    case IR_CAST: return g_cast(g, g->adj[a[0]], grad_dtype((eas_dtype)ir_typeof(g->w.from, in->res).dtype));
    case IR_WHERE: return g_where(g, g->w.map[a[0]], tangent_or_zero(g, a[1]), tangent_or_zero(g, a[2]));
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_SLICE:
    case IR_PAD:
    case IR_TRANS: return moved(g, in);
    case IR_MATMUL: return matmul_tangent(g, in);
    default: break;
    }
    if (ir_rows[in->op].rule == IR_RULE_REDUCE)
        return grad_reduce_tangent(g, in, g->adj[a[0]]);
    if (ir_rows[in->op].rule == IR_RULE_SCAN)
        return grad_scan_tangent(g, in, g->adj[a[0]]);
    *known = grad_has_rule(in->op);
    return *known ? elementwise_tangent(g, in) : 0;
}
