/* fold.c: reductions and scans along an axis of a block.
 *
 * The order is part of the meaning, so that every device gives the same bits:
 *
 *   reduce_*, scan_* along an axis that has others behind it
 *       one element after the other
 *   reduce_* along the last axis (axes of length 1 behind it do not count)
 *       element i is combined with running result i % 64 (i % 32 for 8-byte dtypes). Then, with p the largest
 *       power of two not above the number of running results, those from p on are combined with the first
 *       ones, and the upper half with the lower half until one result is left
 *   scan_* along the last axis
 *       in chunks of 16. Within a chunk, for s = 1, 2, 4, 8 every element i >= s is combined with the element
 *       s before it; then all of them are combined with the last result of the chunk before
 *   folds with a function of the user's
 *       halving as above, of all elements
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

/* x with `front` zeros before it and zeros after it, so that the axis has length n */
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
    ir_type line = {.dtype = EAS_I64, .rank = 1, .dim = {t.dim[axis]}},
            aligned = {.dtype = EAS_I64, .rank = t.rank};
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
        return irb_fail(b, EAS_ERR_VALUE, "%s: axis %d is out of range for a block of rank %d", what, *axis,
                        rank),
               false;
    *axis += *axis < 0 ? rank : 0;
    return true;
}

/* ---- folds with a function of the user's ---- */

typedef struct folder {
    eas_value (*fn)(void *, eas_builder *, eas_value, eas_value);
    void *ctx;
} folder;

static uint32_t join(eas_builder *b, const folder *f, uint32_t x, uint32_t y)
{
    uint32_t r = b->status ? 0 : f->fn(f->ctx, b, x, y);
    if (!b->status && (!r || !ir_type_eq(type_of(b, x), type_of(b, r))))
        irb_fail(b, EAS_ERR_TYPE, "reduce: the function must give the dtype and shape that it takes");
    return b->status ? 0 : r;
}

static uint32_t fold(eas_builder *b, const folder *f, uint32_t v, int axis)
{
    int64_t n = type_of(b, v).dim[axis], p = 1;
    while (2 * p <= n)
        p *= 2;
    if (p < n) { /* elements beyond the power of two are combined with the first ones */
        uint32_t x = slice(b, v, axis, 0, p),
                 r = join(b, f, x, pad(b, slice(b, v, axis, p, n - p), axis, 0, p));
        v = b->status ? 0 : irb_op(b, IR_WHERE, where_position(b, type_of(b, x), axis, IR_LT, n - p), r, x);
    }
    for (; p > 1 && !b->status; p /= 2)
        v = join(b, f, slice(b, v, axis, 0, p / 2), slice(b, v, axis, p / 2, p / 2));
    return drop_axis(b, v, axis);
}

/* ---- the public calls ---- */

/* The row `kind`_`op` of the table; 0 and an error if op does not join two values. */
static uint16_t row_of(eas_builder *b, const char *kind, eas_op op)
{
    static const uint16_t rows[] = {IR_REDUCE_ADD, IR_SCAN_ADD};
    uint16_t first = rows[*kind == 's'];
    for (uint16_t r = first; r < first + (IR_SCAN_ADD - IR_REDUCE_ADD); r++)
        if (op && ir_join_of(r) == op)
            return r;
    irb_fail(b, EAS_ERR_VALUE, "%s: %s does not join two values", kind, eas_op_name(op));
    return 0;
}

/* bool counts as integer where the operation is arithmetic */
static uint32_t ready(eas_builder *b, uint16_t op, uint32_t x)
{
    ir_type t = type_of(b, x);
    return t.dtype == EAS_BOOL && !(ir_rows[op].classes & IR_B)
             ? irb_to(b, IR_CAST, ir_with_dtype(t, EAS_I64), x)
             : x;
}

eas_value eas_builder_reduce(eas_builder *b, eas_op op, eas_value x, int axis)
{
    NEED(b, 0);
    if (b->status)
        return 0;
    uint16_t row = row_of(b, "reduce", op);
    if (!row || !want_block(b, "reduce", x, &axis))
        return 0;
    x = ready(b, op, x);
    if (b->status || type_of(b, x).dim[axis] == 1)
        return drop_axis(b, x, axis);
    ir_type t;
    return irb_insn(b, row, &x, 1, axis, 1, &t);
}

eas_value eas_builder_fold(eas_builder *b, eas_value x, int axis,
                           eas_value (*fn)(void *ctx, eas_builder *b, eas_value x, eas_value y), void *ctx)
{
    NEED(b, 0);
    return want_block(b, "reduce", x, &axis) ? fold(b, &(folder){fn, ctx}, x, axis) : 0;
}

/* The least index at which the best value is found; a NaN is better than any number. */
eas_value eas_builder_arg_reduce(eas_builder *b, int want_max, eas_value x, int axis)
{
    NEED(b, 0);
    if (!want_block(b, want_max ? "argmax" : "argmin", x, &axis))
        return 0;
    x = ready(b, IR_MAX, x);
    uint32_t best = eas_builder_reduce(b, want_max ? IR_MAX : IR_MIN, x, axis);
    if (b->status)
        return 0;
    /* positions in 32 bits: a vector holds twice as many as in 64, and few CPUs have a 64-bit minimum */
    ir_type t = type_of(b, x), kept = with_dim(t, axis, 1), at = ir_with_dtype(t, EAS_I32);
    best = irb_to(b, IR_BROADCAST, t, irb_to(b, IR_RESHAPE, kept, best));
    uint32_t hit = irb_op(b, IR_EQ, x, best, 0);
    if (dtype_is_float(t.dtype))
        hit = irb_op(b, IR_OR, hit, irb_op(b, IR_ISNAN, x, 0, 0), 0);
    uint32_t where = irb_op(b, IR_WHERE, hit, irb_to(b, IR_CAST, at, positions(b, t, axis)),
                            irb_const(b, at, t.dim[axis]));
    return eas_builder_cast(b, eas_builder_reduce(b, IR_MIN, where, axis), EAS_I64);
}

eas_value eas_builder_scan(eas_builder *b, eas_op op, eas_value x, int axis)
{
    NEED(b, 0);
    if (b->status)
        return 0;
    uint16_t row = row_of(b, "scan", op);
    if (!row || !want_block(b, "scan", x, &axis))
        return 0;
    x = ready(b, op, x);
    if (b->status || type_of(b, x).dim[axis] == 1)
        return b->status ? 0 : x;
    ir_type t;
    return irb_insn(b, row, &x, 1, axis, 1, &t);
}

/* ---- products of blocks of rank 3, and of small integers ---- */
static uint32_t with_rank(eas_builder *b, uint32_t x, int rank) /* leading dims of 1 come or go */
{
    ir_type t = type_of(b, x), to = t;
    to.rank = (uint8_t)rank;
    for (int i = 0; i < IR_MAX_RANK; i++)
        to.dim[i] = i >= rank ? 0 : i + t.rank - rank < 0 ? 1 : t.dim[i + t.rank - rank];
    return irb_to(b, IR_RESHAPE, to, x);
}
/* One product for each index of the first axis; a factor whose axis has length 1 is repeated. */
static uint32_t batched(eas_builder *b, uint32_t x, uint32_t y, uint32_t acc)
{
    uint32_t v[3] = {with_rank(b, x, 3), with_rank(b, y, 3), acc ? with_rank(b, acc, 3) : 0}, all = 0;
    int32_t n = 1;
    for (int i = 0; i < 3 && !b->status; i++)
        if (v[i] && type_of(b, v[i]).dim[0] > n)
            n = type_of(b, v[i]).dim[0];
    for (int i = 0; i < 3 && !b->status; i++)
        if (v[i] && type_of(b, v[i]).dim[0] != n && type_of(b, v[i]).dim[0] != 1)
            return irb_fail(b, EAS_ERR_TYPE, "dot: %d products, and operand %d has %d", (int)n, i + 1,
                            (int)type_of(b, v[i]).dim[0]),
                   0;
    for (int32_t k = 0; k < n && !b->status; k++) {
        uint32_t one[3] = {0};
        for (int i = 0; i < 3 && !b->status; i++)
            if (v[i])
                one[i] = with_rank(b, slice(b, v[i], 0, type_of(b, v[i]).dim[0] == 1 ? 0 : k, 1), 2);
        uint32_t r = b->status ? 0 : with_rank(b, eas_builder_matmul(b, one[0], one[1], one[2]), 3);
        all = b->status ? 0 : all ? eas_builder_cat(b, all, r, 0) : r;
    }
    return all;
}
/* Products of 8-bit integers, 256 of two unsigned factors or 512 others, have sums below 2^24, which f32
 * holds: exact on every device. */
static uint32_t of_bytes(eas_builder *b, uint32_t x, uint32_t y, uint32_t acc)
{
    ir_type tx = type_of(b, x), ty = type_of(b, y);
    const int32_t terms = tx.dtype == EAS_U8 && ty.dtype == EAS_U8 ? 256 : 512;
    uint32_t sum = acc ? irb_to(b, IR_CAST, ir_with_dtype(type_of(b, acc), EAS_I32), acc) : 0;
    for (int32_t k = 0; k < tx.dim[1] && !b->status; k += terms) {
        int32_t n = tx.dim[1] - k < terms ? tx.dim[1] - k : terms;
        uint32_t p = slice(b, x, 1, k, n), q = slice(b, y, 0, k, n);
        if (b->status)
            return 0;
        p = irb_to(b, IR_CAST, ir_with_dtype(type_of(b, p), EAS_F32), p);
        q = irb_to(b, IR_CAST, ir_with_dtype(type_of(b, q), EAS_F32), q);
        uint32_t r = b->status ? 0 : eas_builder_matmul(b, p, q, 0);
        r = b->status ? 0 : irb_to(b, IR_CAST, ir_with_dtype(type_of(b, r), EAS_I32), r);
        sum = b->status ? 0 : sum ? irb_op(b, IR_ADD, sum, r, 0) : r;
    }
    return sum;
}
static bool is_byte(ir_type t) { return t.dtype == EAS_I8 || t.dtype == EAS_U8; }

/* x times y plus acc: halves are widened to f32 first; acc 0: none. */
eas_value eas_builder_matmul(eas_builder *b, eas_value x, eas_value y, eas_value acc)
{
    NEED(b, 0);
    uint32_t v[3] = {x, y, acc};
    bool wide = false;
    int first = 0;
    if (!want_block(b, "dot", x, &first) || !want_block(b, "dot", y, &first))
        return 0;
    if (type_of(b, x).rank == 3 || type_of(b, y).rank == 3)
        return batched(b, x, y, acc);
    if (is_byte(type_of(b, x)) && is_byte(type_of(b, y)) && type_of(b, x).rank == 2 &&
        type_of(b, y).rank == 2 && type_of(b, x).dim[1] == type_of(b, y).dim[0])
        return of_bytes(b, x, y, acc);
    for (int i = 0; i < (acc ? 3 : 2); i++) {
        int axis = 0;
        if (!want_block(b, "dot", v[i], &axis))
            return 0;
        ir_type t = type_of(b, v[i]);
        if (t.rank != 2 || !dtype_is_float(t.dtype))
            return irb_fail(b, EAS_ERR_TYPE,
                            "dot: needs blocks of floats of rank 2, operand %d is %s of rank %d", i + 1,
                            eas_dtype_name(t.dtype), (int)t.rank),
                   0;
        wide = wide || t.dtype == EAS_F64;
    }
    ir_type tx = type_of(b, x), ty = type_of(b, y), sum = ir_with_dtype(tx, wide ? EAS_F64 : EAS_F32);
    if (tx.dim[1] != ty.dim[0])
        return irb_fail(b, EAS_ERR_TYPE, "dot: (%d, %d) times (%d, %d) do not fit: %d is not %d",
                        (int)tx.dim[0], (int)tx.dim[1], (int)ty.dim[0], (int)ty.dim[1], (int)tx.dim[1],
                        (int)ty.dim[0]),
               0;
    sum.dim[1] = ty.dim[1];
    if (acc && !ir_shape_eq(type_of(b, acc), sum))
        return irb_fail(b, EAS_ERR_TYPE, "dot: the sum has the shape (%d, %d), acc has not", (int)sum.dim[0],
                        (int)sum.dim[1]),
               0;
    v[2] = acc ? acc : irb_const(b, sum, 0);
    for (int i = 0; i < 3 && !b->status; i++)
        v[i] = irb_to(b, IR_CAST, ir_with_dtype(type_of(b, v[i]), sum.dtype), v[i]);
    return b->status ? 0 : irb_insn(b, IR_MATMUL, v, 3, 0, 1, &sum);
}

eas_value eas_builder_slice(eas_builder *b, eas_value x, int axis, int64_t start, int64_t size)
{
    NEED(b, 0);
    if (!want_block(b, "slice", x, &axis))
        return 0;
    int32_t n = type_of(b, x).dim[axis];
    if (start < 0 || size < 1 || start + size > n)
        return irb_fail(b, EAS_ERR_VALUE, "slice: %lld elements from %lld on do not lie in an axis of %d",
                        (long long)size, (long long)start, (int)n),
               0;
    return slice(b, x, axis, start, size);
}

eas_value eas_builder_trans(eas_builder *b, eas_value x, const int *axes)
{
    NEED(b, 0);
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
eas_value eas_builder_join(eas_builder *b, eas_value x, eas_value y)
{
    NEED(b, 0);
    int axis = 0;
    if (!want_block(b, "join", x, &axis) || !want_block(b, "join", y, &axis))
        return 0;
    ir_type t = type_of(b, x);
    if (!ir_type_eq(t, type_of(b, y)) || t.rank == IR_MAX_RANK)
        return irb_fail(b, EAS_ERR_TYPE, "join: needs two blocks of one dtype and shape, of rank %d at most",
                        (int)IR_MAX_RANK - 1),
               0;
    ir_type one = t;
    one.dim[one.rank++] = 1;
    int last = t.rank;
    uint32_t a = pad(b, irb_to(b, IR_RESHAPE, one, x), last, 0, 2),
             c = pad(b, irb_to(b, IR_RESHAPE, one, y), last, 1, 2);
    return b->status ? 0 : irb_op(b, IR_WHERE, where_position(b, type_of(b, a), last, IR_LT, 1), a, c);
}
