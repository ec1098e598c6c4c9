/* order.c: functions that move the lanes of a block: gather, flip, concatenation, sorting, histograms,
 * scans with a function of the caller's; and functions of bits.
 *
 * Lanes move through scratch memory: a threadgroup array of the program, as large as the block. Such
 * arrays stand at the top of the kernel, whatever loop asks for one, and one serves all uses of its dtype
 * and size, since each use stores before it loads. Sorting is by rank: the rank of an element is the
 * number of elements that come before it, counted in one loop over the axis, equal ones in the order of
 * their positions. So it is stable, any length will do, and the code is short; it takes n * n comparisons,
 * n at a time. */
#include "ir.h"

static ir_type type_of(const eas_builder *b, uint32_t v) { return b->ir->vals[v].type; }
static uint32_t op2(eas_builder *b, uint16_t op, uint32_t x, uint32_t y) { return irb_op(b, op, x, y, 0); }
static int64_t count_of(ir_type t)
{
    int64_t n = 1;
    for (int i = 0; i < t.rank; i++)
        n *= t.dim[i];
    return n;
}
static ir_type as_i64(ir_type t) { return ir_with_dtype(t, EAS_I64); }
static uint32_t whole(eas_builder *b, ir_type like, int64_t v) { return irb_const(b, as_i64(like), v); }

static bool want_block(eas_builder *b, const char *what, uint32_t *x, int *axis)
{
    if (b->status)
        return false;
    if (!*x || *x >= b->ir->nvals || type_of(b, *x).kind != IR_VAL || !type_of(b, *x).rank)
        return irb_fail(b, EAS_ERR_TYPE, "%s: needs a block", what), false;
    int rank = type_of(b, *x).rank, a = *axis < 0 ? *axis + rank : *axis;
    if (a < 0 || a >= rank)
        return irb_fail(b, EAS_ERR_VALUE, "%s: axis %d is out of range for a block of rank %d", what, *axis,
                        rank),
               false;
    *axis = a;
    *x = irb_strong(b, *x);
    return !b->status;
}

/* ---- scratch memory ---- */
static uint32_t scratch_new(eas_builder *b, eas_dtype dt, int64_t n)
{
    ir_type t = {.dtype = (uint8_t)dt, .kind = IR_TG, .rank = 1, .dim = {(int32_t)n}};
    uint32_t v = irb_typed(b, IR_ALLOC_TG, t, n);
    if (!b->status && !b->live)
        irb_hoist(b);
    return v;
}
static uint32_t scratch(eas_builder *b, eas_dtype dt, int64_t n)
{
    if (b->live)
        return scratch_new(b, dt, n);
    for (uint32_t i = 0; i < b->scratch.len; i++) {
        uint32_t v = b->scratch.at[i];
        if (type_of(b, v).dtype == dt && type_of(b, v).dim[0] == n)
            return v;
    }
    uint32_t v = scratch_new(b, dt, n);
    if (!b->status && !vec_push(&b->scratch, v))
        irb_fail(b, EAS_ERR_MEMORY, "out of memory while building a kernel");
    return v;
}

/* ---- places ---- */
typedef struct lanes { /* a block on its way through scratch memory */
    ir_type t;
    int axis;
    int64_t step;      /* from one index of the axis to the next */
    uint32_t mem;
    bool truth;        /* stored as u8 */
} lanes;

/* 0, 1, 2, ... in row-major order */
static uint32_t numbered(eas_builder *b, ir_type t)
{
    ir_type flat = {.dtype = EAS_I64, .kind = IR_VAL, .rank = 1, .dim = {(int32_t)count_of(t)}};
    return irb_to(b, IR_RESHAPE, as_i64(t), irb_typed(b, IR_ARANGE, flat, 0));
}
static int64_t step_of(ir_type t, int axis)
{
    int64_t n = 1;
    for (int i = axis + 1; i < t.rank; i++)
        n *= t.dim[i];
    return n;
}
/* The index along an axis of each element. */
static uint32_t position(eas_builder *b, ir_type t, int axis)
{
    uint32_t lin = numbered(b, t);
    return op2(b, IR_MOD, op2(b, IR_FLOORDIV, lin, whole(b, t, step_of(t, axis))), whole(b, t, t.dim[axis]));
}
/* For a block of type `to`, which differs from l->t only in the length of the axis: the offset at which each
 * element would lie if its index along the axis were 0. */
static uint32_t row_start(eas_builder *b, const lanes *l, ir_type to)
{
    uint32_t lin = numbered(b, to);
    int64_t n = to.dim[l->axis], outer = n * l->step;
    uint32_t before = op2(b, IR_FLOORDIV, lin, whole(b, to, outer)),
             inside = op2(b, IR_MOD, lin, whole(b, to, l->step));
    return op2(b, IR_ADD, op2(b, IR_MUL, before, whole(b, to, l->t.dim[l->axis] * l->step)), inside);
}
static lanes put(eas_builder *b, uint32_t x, int axis)
{
    lanes l = {.t = type_of(b, x), .axis = axis, .truth = type_of(b, x).dtype == EAS_BOOL};
    l.step = step_of(l.t, axis);
    if (l.truth)
        x = irb_to(b, IR_CAST, ir_with_dtype(l.t, EAS_U8), x);
    l.mem = scratch(b, l.truth ? EAS_U8 : l.t.dtype, count_of(l.t));
    if (!b->status)
        eas_builder_store(b, l.mem, numbered(b, l.t), x, 0);
    return l;
}
static uint32_t get(eas_builder *b, const lanes *l, uint32_t off, uint32_t mask)
{
    uint32_t r = b->status ? 0 : eas_builder_load(b, l->mem, off, mask, 0);
    return b->status || !l->truth ? r : irb_to(b, IR_CAST, ir_with_dtype(type_of(b, r), EAS_BOOL), r);
}
/* Stores the lanes of x at the offsets `off`, a permutation, and loads them back in order. */
static uint32_t scattered(eas_builder *b, uint32_t x, uint32_t off)
{
    ir_type t = type_of(b, x);
    bool truth = t.dtype == EAS_BOOL;
    if (truth)
        x = irb_to(b, IR_CAST, ir_with_dtype(t, EAS_U8), x);
    uint32_t mem = scratch(b, truth ? EAS_U8 : t.dtype, count_of(t));
    if (b->status)
        return 0;
    eas_builder_store(b, mem, off, x, 0);
    uint32_t r = eas_builder_load(b, mem, numbered(b, t), 0, 0);
    return b->status || !truth ? r : irb_to(b, IR_CAST, t, r);
}
/* off = start + index * step */
static uint32_t at_index(eas_builder *b, const lanes *l, uint32_t start, uint32_t index)
{
    return op2(b, IR_ADD, start, op2(b, IR_MUL, index, whole(b, type_of(b, start), l->step)));
}

/* ---- gather, lane, flip, cat ---- */
eas_value eas_builder_gather(eas_builder *b, eas_value x, eas_value index, int axis)
{
    NEED(b, 0);
    int same = axis;
    if (!want_block(b, "gather", &x, &axis) || !want_block(b, "gather", &index, &same))
        return 0;
    ir_type t = type_of(b, x), ti = type_of(b, index);
    bool fits = t.rank == ti.rank && dtype_is_int(ti.dtype);
    for (int i = 0; fits && i < t.rank; i++)
        fits = i == axis || t.dim[i] == ti.dim[i];
    if (!fits)
        return irb_fail(
                   b, EAS_ERR_TYPE,
                   "gather: the indices must be integers in a block that has x's shape but for the axis"),
               0;
    index = irb_to(b, IR_CAST, as_i64(ti), index);
    lanes l = put(b, x, axis);
    if (b->status)
        return 0;
    uint32_t n = whole(b, ti, t.dim[axis]), zero = whole(b, ti, 0);
    index = irb_op(b, IR_WHERE, op2(b, IR_LT, index, zero), op2(b, IR_ADD, index, n), index);
    uint32_t inside = op2(b, IR_AND, op2(b, IR_GE, index, zero), op2(b, IR_LT, index, n));
    return get(b, &l, at_index(b, &l, row_start(b, &l, as_i64(ti)), index), inside);
}
eas_value eas_builder_lane(eas_builder *b, eas_value x, int axis, eas_value index)
{
    NEED(b, 0);
    if (!want_block(b, "a lane", &x, &axis))
        return 0;
    if (!index || index >= b->ir->nvals || type_of(b, index).kind != IR_VAL || type_of(b, index).rank ||
        !dtype_is_int(type_of(b, index).dtype))
        return irb_fail(b, EAS_ERR_TYPE, "a lane is picked by one integer; gather takes a block of them"), 0;
    ir_type t = type_of(b, x), one = as_i64(t), rest = t;
    one.dim[axis] = 1;
    rest.rank--;
    for (int i = axis; i < IR_MAX_RANK; i++)
        rest.dim[i] = i < rest.rank ? t.dim[i + 1] : 0;
    index = irb_to(b, IR_CAST, ir_scalar(EAS_I64), index);
    uint32_t n = irb_const(b, ir_scalar(EAS_I64), t.dim[axis]), zero = irb_const(b, ir_scalar(EAS_I64), 0);
    index = irb_op(b, IR_WHERE, op2(b, IR_LT, index, zero), op2(b, IR_ADD, index, n), index);
    uint32_t inside = op2(b, IR_AND, op2(b, IR_GE, index, zero), op2(b, IR_LT, index, n));
    lanes l = put(b, x, axis);
    if (b->status)
        return 0;
    if (!rest.rank)
        return get(b, &l, index, inside);
    uint32_t off = at_index(b, &l, row_start(b, &l, one), irb_to(b, IR_BROADCAST, one, index));
    uint32_t r = get(b, &l, off, irb_to(b, IR_BROADCAST, ir_with_dtype(one, EAS_BOOL), inside));
    return b->status ? 0 : irb_to(b, IR_RESHAPE, rest, r);
}
eas_value eas_builder_flip(eas_builder *b, eas_value x, int axis)
{
    NEED(b, 0);
    if (!want_block(b, "flip", &x, &axis))
        return 0;
    lanes l = put(b, x, axis);
    if (b->status)
        return 0;
    uint32_t index = op2(b, IR_SUB, whole(b, l.t, l.t.dim[axis] - 1), position(b, l.t, axis));
    return get(b, &l, at_index(b, &l, row_start(b, &l, as_i64(l.t)), index), 0);
}
static uint32_t padded(eas_builder *b, uint32_t x, int axis, int64_t front, int64_t n)
{
    ir_type t = type_of(b, x);
    t.dim[axis] = (int32_t)n;
    uint32_t args[2] = {x, irb_const(b, ir_scalar(t.dtype), 0)};
    return irb_insn(b, IR_PAD, args, 2, ir_imm_place(axis, front), 1, &t);
}
eas_value eas_builder_cat(eas_builder *b, eas_value x, eas_value y, int axis)
{
    NEED(b, 0);
    int same = axis;
    if (!want_block(b, "cat", &x, &axis) || !want_block(b, "cat", &y, &same))
        return 0;
    ir_type t = type_of(b, x), ty = type_of(b, y);
    bool fits = t.rank == ty.rank && t.dtype == ty.dtype;
    for (int i = 0; fits && i < t.rank; i++)
        fits = i == axis || t.dim[i] == ty.dim[i];
    if (!fits)
        return irb_fail(b, EAS_ERR_TYPE,
                        "cat: the blocks must have one dtype, and one shape but for the axis"),
               0;
    int64_t n = (int64_t)t.dim[axis] + ty.dim[axis];
    uint32_t p = padded(b, x, axis, 0, n), q = padded(b, y, axis, t.dim[axis], n);
    if (b->status)
        return 0;
    ir_type to = as_i64(type_of(b, p));
    return irb_op(b, IR_WHERE, op2(b, IR_LT, position(b, to, axis), whole(b, to, t.dim[axis])), p, q);
}

/* ---- sorting ---- */
/* Does x come before y? A NaN comes after every number, or before it in descending order. */
static uint32_t comes_before(eas_builder *b, uint32_t x, uint32_t y, bool descending)
{
    uint32_t r = op2(b, descending ? IR_GT : IR_LT, x, y);
    if (!dtype_is_float(type_of(b, x).dtype))
        return r;
    uint32_t nx = irb_op(b, IR_ISNAN, x, 0, 0), ny = irb_op(b, IR_ISNAN, y, 0, 0),
             first = descending ? nx : ny, last = descending ? ny : nx;
    return op2(b, IR_OR, r, op2(b, IR_AND, first, irb_op(b, IR_NOT, last, 0, 0)));
}
typedef struct ranking {
    lanes l;
    uint32_t x, start, pos;
    bool descending;
} ranking;
/* The count `now`, plus 1 in lanes whose element comes after element j of the axis. */
static uint32_t count_ahead(eas_builder *b, const ranking *r, uint32_t now, uint32_t j)
{
    ir_type t = r->l.t;
    j = irb_to(b, IR_BROADCAST, as_i64(t), j);
    uint32_t other = get(b, &r->l, at_index(b, &r->l, r->start, j), 0);
    if (b->status)
        return 0;
    uint32_t ahead = comes_before(b, other, r->x, r->descending),
             behind = comes_before(b, r->x, other, r->descending);
    uint32_t equal = irb_op(b, IR_NOT, op2(b, IR_OR, ahead, behind), 0, 0);
    uint32_t first = op2(b, IR_OR, ahead, op2(b, IR_AND, equal, op2(b, IR_LT, j, r->pos)));
    return op2(b, IR_ADD, now, irb_to(b, IR_CAST, as_i64(t), first));
}
/* The place in scratch memory that each element of the sorted block takes. */
static uint32_t rank_of(eas_builder *b, uint32_t x, int axis, bool descending)
{
    ranking r = {.l = put(b, x, axis), .x = x, .descending = descending};
    if (b->status)
        return 0;
    ir_type t = r.l.t;
    int64_t n = t.dim[axis];
    r.start = row_start(b, &r.l, as_i64(t));
    r.pos = position(b, t, axis);
    uint32_t now = whole(b, t, 0), iv = 0, out = 0;
    if (b->live) {
        for (int64_t j = 0; j < n && !b->status; j++)
            now = count_ahead(b, &r, now, irb_const(b, ir_scalar(EAS_I64), j));
        out = now;
    } else {
        uint32_t zero = irb_const(b, ir_scalar(EAS_I64), 0), end = irb_const(b, ir_scalar(EAS_I64), n),
                 one = irb_const(b, ir_scalar(EAS_I64), 1), init = now;
        eas_builder_loop_begin(b, zero, end, one, 1, &init, &iv, &now);
        uint32_t next = b->status ? 0 : count_ahead(b, &r, now, iv);
        eas_builder_loop_end(b, 1, &next, &out);
    }
    return b->status ? 0 : op2(b, IR_ADD, r.start, op2(b, IR_MUL, out, whole(b, t, r.l.step)));
}
void eas_builder_sort(eas_builder *b, eas_value x, int axis, int descending, eas_value *sorted,
                      eas_value *order)
{
    NEED_(b);
    if (!want_block(b, "sort", &x, &axis))
        return;
    ir_type t = type_of(b, x);
    uint32_t key = t.dtype == EAS_BOOL ? irb_to(b, IR_CAST, ir_with_dtype(t, EAS_U8), x) : x,
             to = rank_of(b, key, axis, descending != 0);
    if (!b->status && sorted)
        *sorted = scattered(b, x, to);
    if (!b->status && order)
        *order = scattered(b, position(b, t, axis), to);
}

/* ---- histogram ---- */
eas_value eas_builder_histogram(eas_builder *b, eas_value x, int64_t bins, eas_value mask)
{
    NEED(b, 0);
    int axis = 0;
    if (!want_block(b, "histogram", &x, &axis))
        return 0;
    ir_type t = type_of(b, x);
    if (!dtype_is_int(t.dtype) || bins < 1 || bins > IR_MAX_DIM)
        return irb_fail(
                   b, EAS_ERR_TYPE,
                   "histogram: counts the integers of a block from 0 to bins - 1, with at least one bin"),
               0;
    ir_type to = {.dtype = EAS_I32, .kind = IR_VAL, .rank = 1, .dim = {(int32_t)bins}};
    uint32_t mem = scratch(b, EAS_I32, bins), at = b->status ? 0 : numbered(b, to);
    if (b->status)
        return 0;
    eas_builder_store(b, mem, at, irb_const(b, to, 0), 0);
    uint32_t i = irb_to(b, IR_CAST, as_i64(t), x);
    uint32_t inside = op2(b, IR_AND, op2(b, IR_GE, i, whole(b, t, 0)), op2(b, IR_LT, i, whole(b, t, bins)));
    if (mask)
        inside = eas_builder_apply(b, IR_AND, inside, mask, 0);
    if (b->status)
        return 0;
    eas_builder_atomic(b, IR_ATOMIC_ADD, mem, i, irb_const(b, ir_with_dtype(t, EAS_I32), 1), 0, inside);
    return b->status ? 0 : eas_builder_load(b, mem, at, 0, 0);
}

/* ---- scans ---- */
void eas_builder_scan_with(eas_builder *b, int n, const eas_value *x, int axis, int reverse,
                           int (*fn)(void *ctx, eas_builder *b, const eas_value *x, const eas_value *y,
                                     eas_value *out),
                           void *ctx, eas_value *out)
{
    NEED_(b);
    NEED_(x);
    NEED_(fn);
    NEED_(out);
    enum { MAX = 16 };
    uint32_t now[MAX], moved[MAX], joined[MAX];
    if (n < 1 || n > MAX) {
        irb_fail(b, EAS_ERR_VALUE, "a scan works on 1 to %d blocks", (int)MAX);
        return;
    }
    for (int k = 0; k < n; k++) {
        int a = axis;
        now[k] = x[k];
        if (!want_block(b, "associative_scan", &now[k], &a))
            return;
        if (k && !ir_shape_eq(type_of(b, now[k]), type_of(b, now[0]))) {
            irb_fail(b, EAS_ERR_TYPE, "associative_scan: the blocks must have one shape");
            return;
        }
        if (k == n - 1)
            axis = a;
    }
    ir_type t = type_of(b, now[0]);
    uint32_t pos = position(b, t, axis);
    for (int64_t s = 1; s < t.dim[axis] && !b->status; s *= 2) {
        uint32_t from = op2(b, reverse ? IR_ADD : IR_SUB, pos, whole(b, t, s));
        uint32_t there =
            reverse ? op2(b, IR_LT, from, whole(b, t, t.dim[axis])) : op2(b, IR_GE, from, whole(b, t, 0));
        for (int k = 0; k < n && !b->status; k++) {
            lanes l = put(b, now[k], axis);
            moved[k] = b->status ? 0 : get(b, &l, at_index(b, &l, row_start(b, &l, as_i64(t)), from), there);
        }
        if (b->status || !fn(ctx, b, moved, now, joined))
            return;
        for (int k = 0; k < n && !b->status; k++) {
            uint32_t j = eas_builder_cast(b, joined[k], type_of(b, now[k]).dtype);
            now[k] = b->status ? 0 : eas_builder_apply(b, IR_WHERE, there, j, now[k]);
        }
    }
    for (int k = 0; k < n; k++)
        out[k] = b->status ? 0 : now[k];
}

/* ---- bits ---- */
static uint32_t bits_of(eas_builder *b, ir_type t, uint64_t v)
{
    int n = dtype_bits(t.dtype);
    return irb_const(b, t, (int64_t)(n == 64 ? v : v & ((1ull << n) - 1)));
}
static uint32_t shifted(eas_builder *b, uint16_t op, uint32_t x, int n)
{
    return op2(b, op, x, bits_of(b, type_of(b, x), (uint64_t)n));
}
static uint32_t popcount(eas_builder *b, uint32_t x)
{
    ir_type t = type_of(b, x);
    uint32_t a =
        op2(b, IR_SUB, x, op2(b, IR_AND, shifted(b, IR_SHR, x, 1), bits_of(b, t, 0x5555555555555555)));
    uint32_t m = bits_of(b, t, 0x3333333333333333);
    a = op2(b, IR_ADD, op2(b, IR_AND, a, m), op2(b, IR_AND, shifted(b, IR_SHR, a, 2), m));
    a = op2(b, IR_AND, op2(b, IR_ADD, a, shifted(b, IR_SHR, a, 4)), bits_of(b, t, 0x0f0f0f0f0f0f0f0f));
    for (int s = 8; s < dtype_bits(t.dtype); s *= 2)
        a = op2(b, IR_ADD, a, shifted(b, IR_SHR, a, s));
    return op2(b, IR_AND, a, bits_of(b, t, dtype_bits(t.dtype) == 8 ? 0x0f : 0x7f));
}
static uint32_t smeared(eas_builder *b, uint32_t x) /* every bit below the highest is set */
{
    for (int s = 1; s < dtype_bits(type_of(b, x).dtype); s *= 2)
        x = op2(b, IR_OR, x, shifted(b, IR_SHR, x, s));
    return x;
}
static uint32_t mulhi64(eas_builder *b, uint32_t x, uint32_t y)
{
    ir_type t = type_of(b, x);
    uint32_t low = bits_of(b, t, 0xffffffff), xl = op2(b, IR_AND, x, low), xh = shifted(b, IR_SHR, x, 32),
             yl = op2(b, IR_AND, y, low), yh = shifted(b, IR_SHR, y, 32);
    uint32_t ll = op2(b, IR_MUL, xl, yl), lh = op2(b, IR_MUL, xl, yh), hl = op2(b, IR_MUL, xh, yl);
    uint32_t mid = op2(b, IR_ADD, op2(b, IR_ADD, shifted(b, IR_SHR, ll, 32), op2(b, IR_AND, lh, low)),
                       op2(b, IR_AND, hl, low));
    uint32_t high = op2(b, IR_ADD, shifted(b, IR_SHR, lh, 32), shifted(b, IR_SHR, hl, 32));
    return op2(b, IR_ADD, op2(b, IR_ADD, op2(b, IR_MUL, xh, yh), high), shifted(b, IR_SHR, mid, 32));
}
static eas_dtype unsigned_of(eas_dtype dt)
{
    static const eas_dtype u[4] = {EAS_U8, EAS_U16, EAS_U32, EAS_U64};
    int n = dtype_bits(dt);
    return u[n == 8 ? 0 : n == 16 ? 1 : n == 32 ? 2 : 3];
}
/* Counting bits without an instruction for it: popcount adds neighbouring fields of bits in parallel; clz
 * is the popcount of the zeros above the highest one (smeared fills everything below it); ctz that of the
 * ones in ~x & (x - 1). */
eas_value eas_builder_bits(eas_builder *b, eas_bits_kind kind, eas_value x, eas_value y)
{
    NEED(b, 0);
    static const char *const names[] = {"popcount", "clz", "ctz", "umulhi"};
    if (b->status)
        return 0;
    const char *what = (unsigned)kind < 4 ? names[kind] : "bits";
    if (!x || x >= b->ir->nvals || type_of(b, x).kind != IR_VAL || !dtype_is_int(type_of(b, x).dtype))
        return irb_fail(b, EAS_ERR_TYPE, "%s: needs integers", what), 0;
    if (kind == EAS_BITS_UMULHI) {
        uint32_t two = eas_builder_apply(b, IR_ADD, x, y, 0); /* promotes and broadcasts both */
        if (b->status)
            return 0;
        ir_type t = type_of(b, two), u = ir_with_dtype(t, unsigned_of(t.dtype)),
                wide = ir_with_dtype(t, EAS_U64);
        int n = dtype_bits(t.dtype);
        x = irb_to(b, IR_BROADCAST, ir_with_dtype(t, type_of(b, eas_builder_cast(b, x, t.dtype)).dtype),
                   eas_builder_cast(b, x, t.dtype));
        y = irb_to(b, IR_BROADCAST, ir_with_dtype(t, t.dtype), eas_builder_cast(b, y, t.dtype));
        x = irb_to(b, IR_BITCAST, u, x);
        y = irb_to(b, IR_BITCAST, u, y);
        uint32_t r =
            n == 64 ? mulhi64(b, x, y)
                    : irb_to(b, IR_CAST, u,
                             shifted(b, IR_SHR,
                                     op2(b, IR_MUL, irb_to(b, IR_CAST, wide, x), irb_to(b, IR_CAST, wide, y)),
                                     n));
        return b->status ? 0 : irb_to(b, IR_BITCAST, t, r);
    }
    ir_type t = type_of(b, x), u = ir_with_dtype(t, unsigned_of(t.dtype));
    x = irb_to(b, IR_BITCAST, u, x);
    uint32_t r = 0;
    switch (kind) {
    case EAS_BITS_POPCOUNT: r = popcount(b, x); break;
    case EAS_BITS_CLZ: r = popcount(b, irb_op(b, IR_NOT, smeared(b, x), 0, 0)); break;
    default: {
        uint32_t one = bits_of(b, u, 1), below = op2(b, IR_SUB, x, one);
        r = popcount(b, op2(b, IR_AND, irb_op(b, IR_NOT, x, 0, 0), below));
        break;
    }
    }
    return b->status ? 0 : irb_to(b, IR_CAST, ir_with_dtype(t, EAS_I32), r);
}
