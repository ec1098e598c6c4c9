/* group.c: functions over the threads of a simdgroup and of a whole group, spelled in simd_shuffle,
 * threadgroup memory and barriers.
 *
 * The order of joining is part of the meaning, so that every device gives the same bits. A simdgroup: for d =
 * 16, 8, 4, 2, 1 each lane joins lane ^ d, the lower lane first. A group of n: as a fold of n elements
 * (fold.c). Running sums: for s = 1, 2, 4, ... every element i >= s is joined with the element s before it.
 */
#include "ir.h"

static ir_type type_of(const eas_builder *b, uint32_t v) { return b->ir->vals[v].type; }
static uint32_t constant(eas_builder *b, int64_t v) { return irb_const(b, ir_scalar(EAS_I64), v); }
static uint32_t op2(eas_builder *b, uint16_t op, uint32_t x, uint32_t y) { return irb_op(b, op, x, y, 0); }

/* One value per thread, of a definite dtype: a literal without one is refused. */
static bool want_thread_value(eas_builder *b, const char *what, uint32_t *x)
{
    if (b->status)
        return false;
    if (!*x || *x >= b->ir->nvals || type_of(b, *x).kind != IR_VAL)
        return irb_fail(b, EAS_ERR_TYPE, "%s: not a value", what), false;
    if (type_of(b, *x).rank)
        return irb_fail(b, EAS_ERR_TYPE,
                        "%s works over the threads of a group (mk.tid), one value each; for a block "
                        "(mk.arange) there are sum, max and their like",
                        what),
               false;
    *x = irb_strong(b, *x);
    return !b->status;
}

static bool want_threads(eas_builder *b, const char *what)
{
    if (b->ir->threads)
        return true;
    return irb_fail(b, EAS_ERR_VALUE,
                    "%s: how many threads the group has must be known; call tid(0, BLOCK) first", what),
           false;
}

/* Simdgroups must be whole. If the number of threads is not known yet, the verifier checks it. */
static bool want_simdgroups(eas_builder *b, const char *what, uint32_t *x)
{
    if (!want_thread_value(b, what, x))
        return false;
    if (b->ir->threads % IR_SIMD)
        return irb_fail(b, EAS_ERR_VALUE, "%s: needs a group of a multiple of %d threads; this one has %lld",
                        what, (int)IR_SIMD, (long long)b->ir->threads),
               false;
    return true;
}

/* ---- shuffles ---- */

static uint32_t shuffle(eas_builder *b, uint32_t x, uint32_t lane)
{
    return op2(b, IR_SIMD_SHUFFLE, x, lane);
}

static uint32_t shuffle_by(eas_builder *b, uint16_t op, uint32_t x, int64_t d)
{
    return shuffle(b, x, op2(b, op, eas_builder_lane_id(b), constant(b, d)));
}

static uint32_t shuffle_moved(eas_builder *b, uint16_t op, uint32_t x, uint32_t delta)
{
    uint32_t from = op2(b, op, eas_builder_lane_id(b), delta);
    uint32_t there =
        op2(b, IR_AND, op2(b, IR_GE, from, constant(b, 0)), op2(b, IR_LT, from, constant(b, IR_SIMD)));
    return irb_op(b, IR_WHERE, there, shuffle(b, x, from), x);
}

eas_value eas_builder_simd_shuffle(eas_builder *b, eas_shuffle kind, eas_value x, eas_value y)
{
    NEED(b, 0);
    static const char *const names[] = {"simd_shuffle", "simd_shuffle_xor", "simd_shuffle_up",
                                        "simd_shuffle_down"};
    if (b->status)
        return 0;
    if ((unsigned)kind > EAS_SHUFFLE_DOWN)
        return irb_fail(b, EAS_ERR_VALUE, "simd_shuffle: there is no kind %d", (int)kind), 0;
    const char *what = names[kind];
    if (!want_simdgroups(b, what, &x) || !want_thread_value(b, what, &y))
        return 0;
    if (!dtype_is_int(type_of(b, y).dtype))
        return irb_fail(b, EAS_ERR_TYPE, "%s: the %s must be an integer, not %s", what,
                        kind == EAS_SHUFFLE_LANE ? "lane" : "delta", eas_dtype_name(type_of(b, y).dtype)),
               0;
    y = irb_to(b, IR_CAST, ir_scalar(EAS_I64), y);
    switch (kind) {
    case EAS_SHUFFLE_LANE: return shuffle(b, x, y);
    case EAS_SHUFFLE_XOR: return shuffle(b, x, op2(b, IR_XOR, eas_builder_lane_id(b), y));
    default: return shuffle_moved(b, kind == EAS_SHUFFLE_UP ? IR_SUB : IR_ADD, x, y);
    }
}

/* ---- joining ---- */

static bool want_join(eas_builder *b, const char *what, uint16_t op, uint32_t *x)
{
    bool bits = op == IR_AND || op == IR_OR || op == IR_XOR;
    if (b->status)
        return false;
    if (!bits && op != IR_ADD && op != IR_MUL && op != IR_MIN && op != IR_MAX)
        return irb_fail(b, EAS_ERR_VALUE,
                        "%s: cannot join values by \"%s\"; there are add, mul, min, max, and, or, xor", what,
                        eas_op_name(op)),
               false;
    eas_dtype dt = type_of(b, *x).dtype;
    if (bits && dtype_is_float(dt))
        return irb_fail(b, EAS_ERR_TYPE, "%s: \"%s\" is not defined for %s", what, eas_op_name(op),
                        eas_dtype_name(dt)),
               false;
    if (!bits && dt == EAS_BOOL) /* booleans are counted */
        *x = irb_to(b, IR_CAST, ir_scalar(EAS_I64), *x);
    return !b->status;
}

/* min and max of zeros with different signs depend on the order. */
static bool ordered(const eas_builder *b, uint16_t op, uint32_t x)
{
    return (op == IR_MIN || op == IR_MAX) && dtype_is_float(type_of(b, x).dtype);
}

static uint32_t butterfly(eas_builder *b, uint16_t op, uint32_t x, int64_t d)
{
    uint32_t other = shuffle_by(b, IR_XOR, x, d);
    if (b->status || !ordered(b, op, x))
        return op2(b, op, x, other);
    uint32_t upper = op2(b, IR_NE, op2(b, IR_AND, eas_builder_lane_id(b), constant(b, d)), constant(b, 0));
    return op2(b, op, irb_op(b, IR_WHERE, upper, other, x), irb_op(b, IR_WHERE, upper, x, other));
}

eas_value eas_builder_simd_reduce(eas_builder *b, eas_op op, eas_value x)
{
    NEED(b, 0);
    if (!want_simdgroups(b, "simd_reduce", &x) || !want_join(b, "simd_reduce", op, &x))
        return 0;
    for (int64_t d = IR_SIMD / 2; d; d /= 2)
        x = butterfly(b, op, x, d);
    return x;
}

static uint32_t zero_like(eas_builder *b, uint32_t x)
{
    return b->status ? 0 : irb_const(b, type_of(b, x), 0);
}

eas_value eas_builder_simd_scan(eas_builder *b, eas_value x, int exclusive)
{
    NEED(b, 0);
    if (!want_simdgroups(b, "simd_scan", &x) || !want_join(b, "simd_scan", IR_ADD, &x))
        return 0;
    uint32_t lane = eas_builder_lane_id(b);
    for (int64_t s = 1; s < IR_SIMD; s *= 2)
        x = irb_op(b, IR_WHERE, op2(b, IR_GE, lane, constant(b, s)),
                   op2(b, IR_ADD, shuffle_by(b, IR_SUB, x, s), x), x);
    if (!exclusive)
        return x;
    return irb_op(b, IR_WHERE, op2(b, IR_GE, lane, constant(b, 1)), shuffle_by(b, IR_SUB, x, 1),
                  zero_like(b, x));
}

/* ---- the whole group, through an array with an element for each thread ---- */

/* Arrays made at top level serve all later calls. Each call begins with a barrier, so that every thread has
 * finished reading the values of the call before. */
static uint32_t group_array(eas_builder *b, eas_dtype dt)
{
    if (b->group_array[dt])
        return b->group_array[dt];
    ir_type t = {.dtype = (uint8_t)dt, .kind = IR_TG, .rank = 1, .dim = {(int32_t)b->ir->threads}};
    uint32_t v = irb_typed(b, IR_ALLOC_TG, t, b->ir->threads);
    if (!b->open.len && !b->live) /* a live builder drops values that are not kept */
        b->group_array[dt] = v;
    return v;
}

static uint32_t thread_id(eas_builder *b)
{
    return irb_typed(b, IR_THREAD_ID, ir_scalar(EAS_I64), b->ir->threads);
}

static uint32_t load(eas_builder *b, uint32_t array, uint32_t at, uint32_t mask)
{
    uint32_t a[4] = {array, at, mask, b->status ? 0 : irb_const(b, ir_scalar(type_of(b, array).dtype), 0)};
    ir_type t = {0};
    return irb_insn(b, IR_LOAD, a, mask ? 4 : 2, 0, 1, &t);
}

static void store(eas_builder *b, uint32_t array, uint32_t at, uint32_t x, uint32_t mask)
{
    uint32_t a[4] = {array, at, x, mask};
    irb_insn(b, IR_STORE, a, mask ? 4 : 3, 0, 0, NULL);
}

/* Element `second` + i is combined with element i, for i < n. */
static void join_parts(eas_builder *b, uint16_t op, uint32_t array, uint32_t t, int64_t second, int64_t n)
{
    uint32_t mask = op2(b, IR_LT, t, constant(b, n));
    uint32_t x = load(b, array, t, mask), y = load(b, array, op2(b, IR_ADD, t, constant(b, second)), mask);
    store(b, array, t, op2(b, op, x, y), mask);
    eas_builder_barrier(b);
}

eas_value eas_builder_tg_reduce(eas_builder *b, eas_op op, eas_value x)
{
    NEED(b, 0);
    if (!want_thread_value(b, "tg_reduce", &x) || !want_threads(b, "tg_reduce") ||
        !want_join(b, "tg_reduce", op, &x))
        return 0;
    int64_t n = b->ir->threads, p = 1;
    uint32_t array = group_array(b, type_of(b, x).dtype), t = thread_id(b);
    eas_builder_barrier(b);
    store(b, array, t, x, 0);
    eas_builder_barrier(b);
    while (2 * p <= n)
        p *= 2;
    if (p < n)
        join_parts(b, op, array, t, p, n - p);
    for (p /= 2; p; p /= 2)
        join_parts(b, op, array, t, p, p);
    return load(b, array, constant(b, 0), 0);
}

eas_value eas_builder_tg_scan(eas_builder *b, eas_value x, int exclusive)
{
    NEED(b, 0);
    if (!want_thread_value(b, "tg_scan", &x) || !want_threads(b, "tg_scan") ||
        !want_join(b, "tg_scan", IR_ADD, &x))
        return 0;
    int64_t n = b->ir->threads;
    uint32_t array = group_array(b, type_of(b, x).dtype), t = thread_id(b);
    for (int64_t s = 1; s < n; s *= 2) {
        eas_builder_barrier(b);
        store(b, array, t, x, 0);
        eas_builder_barrier(b);
        uint32_t mask = op2(b, IR_GE, t, constant(b, s));
        x = irb_op(b, IR_WHERE, mask,
                   op2(b, IR_ADD, load(b, array, op2(b, IR_SUB, t, constant(b, s)), mask), x), x);
    }
    if (!exclusive)
        return x;
    eas_builder_barrier(b);
    store(b, array, t, x, 0);
    eas_builder_barrier(b);
    return load(b, array, op2(b, IR_SUB, t, constant(b, 1)), op2(b, IR_GE, t, constant(b, 1)));
}
