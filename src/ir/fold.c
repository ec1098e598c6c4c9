/* fold.c: reductions and scans along an axis of a block, spelled as slices and element-wise steps.
 *
 * The order is part of the meaning, so that every device gives the same bits. A fold of n elements: with p the largest power of two
 * not above n, the elements from p on join the first n - p; then the upper half joins the lower until one is left. A scan: for s = 1,
 * 2, 4, ... every element i >= s is joined with the element s before it.
 */
#include "ir.h"

static ir_type type_of(const eas_builder *b, uint32_t v) { return b->ir->vals[v].type; }

static ir_type with_dim(ir_type t, int axis, int64_t n)
{
    t.dim[axis] = (int32_t)n;
    return t;
}

static uint32_t slice(eas_builder *b, uint32_t x, int axis, int64_t start, int64_t n)
{
    if (b->status)
        return 0;
    ir_type t = with_dim(type_of(b, x), axis, n);
    return ir_type_eq(t, type_of(b, x)) ? x : irb_insn(b, IR_SLICE, &x, 1, ir_imm_place(axis, start), 1, &t);
}

/* x with `front` zeros before it and zeros behind, n in all */
static uint32_t pad(eas_builder *b, uint32_t x, int axis, int64_t front, int64_t n)
{
    if (b->status)
        return 0;
    ir_type t = with_dim(type_of(b, x), axis, n);
    uint32_t args[2] = {x, irb_typed(b, IR_CONST, ir_scalar(t.dtype), 0)};
    return ir_type_eq(t, type_of(b, x)) ? x : irb_insn(b, IR_PAD, args, 2, ir_imm_place(axis, front), 1, &t);
}

/* The index along axis, in the shape of t. */
static uint32_t positions(eas_builder *b, ir_type t, int axis)
{
    ir_type line = {.dtype = EAS_I64, .rank = 1, .dim = {t.dim[axis]}}, aligned = {.dtype = EAS_I64, .rank = t.rank};
    for (int i = 0; i < t.rank; i++)
        aligned.dim[i] = i == axis ? t.dim[axis] : 1;
    uint32_t v = irb_to(b, IR_RESHAPE, aligned, irb_typed(b, IR_ARANGE, line, 0));
    return b->status ? 0 : irb_to(b, IR_BROADCAST, ir_with_dtype(t, EAS_I64), v);
}

/* Is the index along axis below / not below n? */
static uint32_t where_position(eas_builder *b, ir_type t, int axis, uint16_t cmp, int64_t n)
{
    uint32_t at = positions(b, t, axis);
    return irb_op(b, cmp, at, irb_const(b, ir_with_dtype(t, EAS_I64), n), 0);
}

static uint32_t drop_axis(eas_builder *b, uint32_t x, int axis)
{
    if (b->status)
        return 0;
    ir_type t = type_of(b, x), to = ir_scalar(t.dtype);
    for (int i = 0; i < t.rank; i++)
        if (i != axis)
            to.dim[to.rank++] = t.dim[i];
    return irb_to(b, IR_RESHAPE, to, x);
}

static bool want_block(eas_builder *b, const char *what, uint32_t x, int *axis)
{
    if (b->status)
        return false;
    if (!x || x >= b->ir->nvals || type_of(b, x).kind != IR_VAL)
        return irb_fail(b, EAS_ERR_TYPE, "%s: not a value", what), false;
    int rank = type_of(b, x).rank;
    if (!rank)
        return irb_fail(b, EAS_ERR_TYPE, "%s: needs a block, got one value", what), false;
    if (*axis < -rank || *axis >= rank)
        return irb_fail(b, EAS_ERR_VALUE, "%s: axis %d is out of range for a block of rank %d", what, *axis, rank), false;
    *axis += *axis < 0 ? rank : 0;
    return true;
}

/* ---- folds of one or two blocks side by side ---- */

enum { MAX_TOGETHER = 2 };
typedef struct folder {
    int n; /* blocks folded together */
    void (*join)(eas_builder *b, const uint32_t *x, const uint32_t *y, uint32_t *out, void *ctx);
    void *ctx;
} folder;

static bool keeps_types(eas_builder *b, const folder *f, const uint32_t *in, const uint32_t *out)
{
    for (int i = 0; i < f->n && !b->status; i++)
        if (!out[i] || !ir_type_eq(type_of(b, in[i]), type_of(b, out[i])))
            return irb_fail(b, EAS_ERR_TYPE, "reduce: the function must give the dtype and shape that it takes"), false;
    return !b->status;
}

static void join_parts(eas_builder *b, const folder *f, uint32_t *v, int axis, int64_t second, int64_t n)
{
    uint32_t x[MAX_TOGETHER], y[MAX_TOGETHER], out[MAX_TOGETHER] = {0};
    for (int i = 0; i < f->n; i++) {
        x[i] = slice(b, v[i], axis, 0, n);
        y[i] = slice(b, v[i], axis, second, n);
    }
    if (b->status)
        return;
    f->join(b, x, y, out, f->ctx);
    if (keeps_types(b, f, x, out))
        for (int i = 0; i < f->n; i++)
            v[i] = out[i];
}

/* Brings the length to a power of two. */
static int64_t join_rest(eas_builder *b, const folder *f, uint32_t *v, int axis)
{
    int64_t n = type_of(b, v[0]).dim[axis], p = 1;
    uint32_t x[MAX_TOGETHER], y[MAX_TOGETHER], out[MAX_TOGETHER] = {0};
    while (2 * p <= n)
        p *= 2;
    if (p == n)
        return p;
    for (int i = 0; i < f->n; i++) {
        x[i] = slice(b, v[i], axis, 0, p);
        y[i] = pad(b, slice(b, v[i], axis, p, n - p), axis, 0, p);
    }
    if (b->status)
        return p;
    f->join(b, x, y, out, f->ctx);
    if (!keeps_types(b, f, x, out))
        return p;
    uint32_t first = where_position(b, type_of(b, x[0]), axis, IR_LT, n - p);
    for (int i = 0; i < f->n; i++)
        v[i] = irb_op(b, IR_WHERE, first, out[i], x[i]);
    return p;
}

static void fold(eas_builder *b, const folder *f, uint32_t *v, int axis)
{
    for (int64_t p = join_rest(b, f, v, axis); p > 1 && !b->status; p /= 2)
        join_parts(b, f, v, axis, p / 2, p / 2);
    for (int i = 0; i < f->n; i++)
        v[i] = drop_axis(b, v[i], axis);
}

/* ---- the public calls ---- */

static void join_op(eas_builder *b, const uint32_t *x, const uint32_t *y, uint32_t *out, void *ctx)
{
    out[0] = irb_op(b, *(const uint16_t *)ctx, x[0], y[0], 0);
}

/* bool counts as integer where the operation is arithmetic */
static uint32_t ready(eas_builder *b, uint16_t op, uint32_t x)
{
    ir_type t = type_of(b, x);
    return t.dtype == EAS_BOOL && !(ir_rows[op].classes & IR_B) ? irb_to(b, IR_CAST, ir_with_dtype(t, EAS_I64), x) : x;
}

eas_value eas_reduce(eas_builder *b, eas_op op, eas_value x, int axis)
{
    uint16_t o = op;
    if (b->status)
        return 0;
    if (op == 0 || op >= IR_NOPS || ir_rows[op].rule != IR_RULE_SAME || ir_rows[op].nargs != 2)
        return irb_fail(b, EAS_ERR_VALUE, "reduce: %s does not join two values", eas_op_name(op)), 0;
    if (!want_block(b, "reduce", x, &axis))
        return 0;
    uint32_t v[MAX_TOGETHER] = {ready(b, o, x)};
    fold(b, &(folder){.n = 1, .join = join_op, .ctx = &o}, v, axis);
    return b->status ? 0 : v[0];
}

typedef struct users {
    eas_value (*fn)(void *, eas_builder *, eas_value, eas_value);
    void *ctx;
} users;

static void join_users(eas_builder *b, const uint32_t *x, const uint32_t *y, uint32_t *out, void *ctx)
{
    users *u = ctx;
    out[0] = u->fn(u->ctx, b, x[0], y[0]);
}

eas_value eas_fold(eas_builder *b, eas_value x, int axis, eas_value (*fn)(void *ctx, eas_builder *b, eas_value x, eas_value y), void *ctx)
{
    users u = {fn, ctx};
    if (!want_block(b, "reduce", x, &axis))
        return 0;
    uint32_t v[MAX_TOGETHER] = {x};
    fold(b, &(folder){.n = 1, .join = join_users, .ctx = &u}, v, axis);
    return b->status ? 0 : v[0];
}

/* The better value, the lower index among equals; NaN is better than any number. */
static void join_best(eas_builder *b, const uint32_t *x, const uint32_t *y, uint32_t *out, void *ctx)
{
    uint16_t cmp = *(const bool *)ctx ? IR_GT : IR_LT;
    uint32_t better = irb_op(b, cmp, y[0], x[0], 0);
    uint32_t even = irb_op(b, IR_EQ, y[0], x[0], 0), lower = irb_op(b, IR_LT, y[1], x[1], 0);
    if (b->status)
        return;
    if (dtype_is_float(type_of(b, x[0]).dtype)) {
        uint32_t nx = irb_op(b, IR_ISNAN, x[0], 0, 0), ny = irb_op(b, IR_ISNAN, y[0], 0, 0);
        better = irb_op(b, IR_OR, better, irb_op(b, IR_AND, ny, irb_op(b, IR_NOT, nx, 0, 0), 0), 0);
        even = irb_op(b, IR_OR, even, irb_op(b, IR_AND, nx, ny, 0), 0);
    }
    uint32_t take = irb_op(b, IR_OR, better, irb_op(b, IR_AND, even, lower, 0), 0);
    out[0] = irb_op(b, IR_WHERE, take, y[0], x[0]);
    out[1] = irb_op(b, IR_WHERE, take, y[1], x[1]);
}

eas_value eas_arg_reduce(eas_builder *b, int want_max, eas_value x, int axis)
{
    bool max = want_max != 0;
    if (!want_block(b, max ? "argmax" : "argmin", x, &axis))
        return 0;
    x = ready(b, IR_MAX, x);
    if (b->status)
        return 0;
    uint32_t v[MAX_TOGETHER] = {x, positions(b, type_of(b, x), axis)};
    fold(b, &(folder){.n = 2, .join = join_best, .ctx = &max}, v, axis);
    return b->status ? 0 : v[1];
}

eas_value eas_scan(eas_builder *b, eas_op op, eas_value x, int axis)
{
    if (b->status)
        return 0;
    if (op == 0 || op >= IR_NOPS || ir_rows[op].rule != IR_RULE_SAME || ir_rows[op].nargs != 2)
        return irb_fail(b, EAS_ERR_VALUE, "scan: %s does not join two values", eas_op_name(op)), 0;
    if (!want_block(b, "scan", x, &axis))
        return 0;
    x = ready(b, op, x);
    if (b->status)
        return 0;
    ir_type t = type_of(b, x);
    for (int64_t n = t.dim[axis], s = 1; s < n && !b->status; s *= 2) {
        uint32_t before = pad(b, slice(b, x, axis, 0, n - s), axis, s, n);
        x = irb_op(b, IR_WHERE, where_position(b, t, axis, IR_GE, s), irb_op(b, op, before, x, 0), x);
    }
    return b->status ? 0 : x;
}

eas_value eas_slice(eas_builder *b, eas_value x, int axis, int64_t start, int64_t size)
{
    if (!want_block(b, "slice", x, &axis))
        return 0;
    int32_t n = type_of(b, x).dim[axis];
    if (start < 0 || size < 1 || start + size > n)
        return irb_fail(b, EAS_ERR_VALUE, "slice: %lld elements from %lld on do not lie in an axis of %d", (long long)size, (long long)start, (int)n),
               0;
    return slice(b, x, axis, start, size);
}

eas_value eas_trans(eas_builder *b, eas_value x, const int *axes)
{
    int axis = 0;
    if (!want_block(b, "trans", x, &axis))
        return 0;
    ir_type t = type_of(b, x), to = t;
    int64_t imm = 0;
    unsigned seen = 0;
    for (int i = 0; i < t.rank; i++) {
        int p = axes ? axes[i] : t.rank - 1 - i;
        if (p < 0 || p >= t.rank)
            return irb_fail(b, EAS_ERR_VALUE, "trans: no axis %d in a block of rank %d", p, (int)t.rank), 0;
        if (seen & 1u << p)
            return irb_fail(b, EAS_ERR_VALUE, "trans: axis %d stands twice", p), 0;
        seen |= 1u << p;
        to.dim[i] = t.dim[p];
        imm |= (int64_t)p << (3 * i);
    }
    return irb_insn(b, IR_TRANS, &x, 1, imm, 1, &to);
}

/* Two blocks side by side on a new last axis of length 2. */
eas_value eas_join(eas_builder *b, eas_value x, eas_value y)
{
    int axis = 0;
    if (!want_block(b, "join", x, &axis) || !want_block(b, "join", y, &axis))
        return 0;
    ir_type t = type_of(b, x);
    if (!ir_type_eq(t, type_of(b, y)) || t.rank == IR_MAX_RANK)
        return irb_fail(b, EAS_ERR_TYPE, "join: needs two blocks of one dtype and shape, of rank %d at most", (int)IR_MAX_RANK - 1), 0;
    ir_type one = t;
    one.dim[one.rank++] = 1;
    int last = t.rank;
    uint32_t a = pad(b, irb_to(b, IR_RESHAPE, one, x), last, 0, 2), c = pad(b, irb_to(b, IR_RESHAPE, one, y), last, 1, 2);
    return b->status ? 0 : irb_op(b, IR_WHERE, where_position(b, type_of(b, a), last, IR_LT, 1), a, c);
}
