/* diff_gen.c: a random kernel that is valid and has one answer.
 *
 * One answer: programs write only elements of their own, threads too; between barriers threads of a group
 * share nothing that one of them writes. What several programs write is written by one kind of integer
 * atomic, whose result goes unused. Offsets are brought inside by `mod` or masks. Bits of a NaN are nobody's
 * business, so floats with NaNs are never bitcast to integers. Overlapping arguments: one SPMD program.
 */
#include "diff.h"

#include <math.h>
#include <stdio.h>

enum { INPUTS = 3, OUTPUTS = 2, SHARED = INPUTS + OUTPUTS, NBUFS, MAX_POOL = 256, OWN = 2 };

typedef struct made { /* a generator's state */
    knobs k;
    uint64_t rng;
    trial *t;
    eas_builder *b;
    bool threads, overlap;
    int64_t group;             /* threads of a group */
    int rank;
    int64_t shape[4], lanes;   /* the kernel's block */
    int64_t segment;           /* elements of an output that a program (a thread) owns */
    eas_value buf[NBUFS], n, f;
    eas_value base;            /* first element that is its own */
    eas_value tid, pid;
    eas_value pool[MAX_POOL];  /* values to use */
    int npool, depth;
    bool uniform;              /* all threads of a group are here */
    const char *atomic;        /* what the shared buffer is changed by */
    eas_value tg[3];
    eas_dtype tgtype[3];
    int ntg;
} made;

uint64_t diff_random(uint64_t *s)
{
    uint64_t z = (*s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t below(made *g, int64_t n) { return (int64_t)(diff_random(&g->rng) % (uint64_t)n); }
static bool one_in(made *g, int n) { return below(g, n) == 0; }

/* For derivatives mostly f64, and no other float. */
static eas_dtype some_dtype(made *g)
{
    if (g->k.floats && !one_in(g, 6))
        return EAS_F64;
    eas_dtype dt = (eas_dtype)below(g, EAS_NDTYPES);
    return g->k.floats && dtype_is_float(dt) ? EAS_F64 : dt;
}

/* ---- inputs ---- */

static void put(eas_dtype dt, uint8_t *p, int64_t bits) { memcpy(p, &bits, eas_dtype_size(dt)); }

static int64_t special(made *g, eas_dtype dt)
{
    static const double reals[] = {0.0,          -0.0,    1.0,      -1.0,      0.5,   1.5,    2.5,   -2.5,
                                   1e-45,        -1e-40,  6e-8,     65504,     65520, 3e38,   -3e38, 1e300,
                                   2147483648.0, -9.3e18, INFINITY, -INFINITY, NAN,   5e-324, 88.7,  709.8};
    if (dtype_is_float(dt))
        return ir_bits_from_double(dt, reals[below(g, (int64_t)(sizeof reals / sizeof *reals))]);
    if (dt == EAS_BOOL)
        return below(g, 2);
    int64_t ints[] = {0,
                      1,
                      -1,
                      2,
                      3,
                      -7,
                      100,
                      dtype_min(dt),
                      (int64_t)dtype_max(dt),
                      dtype_min(dt) + 1,
                      (int64_t)dtype_max(dt) - 1};
    return ints[below(g, (int64_t)(sizeof ints / sizeof *ints))];
}

static int64_t element(made *g, eas_dtype dt)
{
    if (g->k.floats && dtype_is_float(dt))
        return ir_bits_from_double(dt, (double)below(g, 4001) / 1000 - 1.99963);
    if (dt == EAS_BOOL || (one_in(g, 3) && !g->k.floats))
        return special(g, dt);
    /* numbers that are added to large ones do not move them, and have no differences */
    if (g->k.floats || one_in(g, 2)) {
        int64_t small = g->k.floats ? below(g, 100) : below(g, 200) - 100, bits;
        if (dtype_is_float(dt))
            return ir_bits_from_double(dt, (double)small / 8);
        ir_eval(IR_CAST, EAS_I64, dt, &small, &bits);
        return bits;
    }
    return (int64_t)diff_random(&g->rng);
}

/* Outputs may lie over other buffers of their dtype, shifted by some elements. */
static void place_buffers(made *g)
{
    trial *t = g->t;
    for (int i = 0; i < t->nbufs; i++) {
        size_t size = eas_dtype_size(t->dtype[i]);
        t->offset[i] = (t->bytes + 63) / 64 * 64;
        for (int j = 0; g->overlap && j < i; j++)
            if (t->dtype[j] == t->dtype[i] && one_in(g, 2))
                t->offset[i] = t->offset[j] + (size_t)below(g, t->count[j]) * size;
        size_t end = t->offset[i] + (size_t)t->count[i] * size;
        t->bytes = end > t->bytes ? end : t->bytes;
    }
    t->memory = calloc(1, t->bytes + 8);
    for (int i = 0; i < t->nbufs; i++)
        for (int64_t k = 0; k < t->count[i]; k++)
            put(t->dtype[i], t->memory + t->offset[i] + (size_t)k * eas_dtype_size(t->dtype[i]),
                element(g, t->dtype[i]));
}

/* ---- values ---- */

static eas_value push(made *g, eas_value v)
{
    if (v && g->npool < MAX_POOL)
        g->pool[g->npool++] = v;
    return v;
}

static eas_value op2(made *g, uint16_t op, eas_value x, eas_value y)
{
    return eas_builder_apply(g->b, op, x, y, 0);
}
static eas_value i64(made *g, int64_t v) { return eas_builder_const_typed(g->b, EAS_I64, 0, v); }
static eas_value any(made *g) { return g->pool[below(g, g->npool)]; }
static int rank_of(made *g, eas_value v, int64_t shape[4]) { return eas_value_shape(g->b, v, shape); }

static int64_t lanes_of(made *g, eas_value v)
{
    int64_t shape[4], n = 1;
    int rank = rank_of(g, v, shape);
    for (int i = 0; i < rank; i++)
        n *= shape[i];
    return n;
}

static bool same_shape(made *g, eas_value x, eas_value y)
{
    int64_t a[4] = {0}, b[4] = {0};
    int rx = rank_of(g, x, a), ry = rank_of(g, y, b);
    return rx == ry && !memcmp(a, b, (size_t)rx * sizeof *a);
}

/* Some value of that shape and dtype; `like` itself does if nothing else has the shape. */
static eas_value like(made *g, eas_value model, eas_dtype dt)
{
    eas_value v = model;
    for (int tries = 0; tries < 8; tries++) {
        eas_value w = any(g);
        if (same_shape(g, w, model)) {
            v = w;
            break;
        }
    }
    return eas_builder_cast(g->b, v, dt);
}

static eas_value scalar(made *g, eas_dtype dt)
{
    int64_t shape[4];
    for (int tries = 0; tries < 6; tries++) {
        eas_value v = any(g);
        if (!rank_of(g, v, shape))
            return eas_builder_cast(g->b, v, dt);
    }
    return eas_builder_const_typed(g->b, dt, (double)below(g, 9) - 3, below(g, 9));
}

/* An index in [0, n) in the shape of v. */
static eas_value index_in(made *g, eas_value v, int64_t n)
{
    return op2(g, IR_MOD, eas_builder_cast(g->b, v, EAS_I64), i64(g, n));
}

static eas_value condition_like(made *g, eas_value model)
{
    eas_dtype dt = eas_value_dtype(g->b, model);
    return dt == EAS_BOOL ? model : op2(g, IR_LT, like(g, model, dt), like(g, model, dt));
}

/* A value of the kernel's main shape. */
static eas_value main_value(made *g)
{
    eas_value v = g->pool[0];
    for (int tries = 0; tries < 6; tries++) {
        eas_value w = any(g);
        if (same_shape(g, w, v))
            return w;
    }
    return v;
}

static bool fits_class(uint8_t classes, eas_dtype dt)
{
    return dt == EAS_BOOL ? classes & IR_B : dtype_is_float(dt) ? classes & IR_F : classes & IR_I;
}

static eas_dtype dtype_in(made *g, uint8_t classes)
{
    for (;;) {
        eas_dtype dt = some_dtype(g);
        if (fits_class(classes, dt))
            return dt;
    }
}

/* ---- statements ---- */

static void do_elementwise(made *g)
{
    uint16_t op;
    do
        op = (uint16_t)(1 + below(g, IR_NOPS - 1));
    while ((ir_rows[op].rule != IR_RULE_SAME && ir_rows[op].rule != IR_RULE_CMP &&
            ir_rows[op].rule != IR_RULE_WHERE) ||
           ((ir_rows[op].flags & IR_EXPAND) && !one_in(g, 4)));
    eas_value x = any(g), v[3] = {0};
    eas_dtype dt = eas_value_dtype(g->b, x);
    if (!fits_class(ir_rows[op].classes, dt) || one_in(g, 3))
        dt = dtype_in(g, ir_rows[op].classes);
    for (int i = 0; i < ir_rows[op].nargs; i++)
        v[i] = i == 0 && op != IR_WHERE ? eas_builder_cast(g->b, x, dt)
             : i == 0                   ? eas_builder_cast(g->b, condition_like(g, x), EAS_BOOL)
             : one_in(g, 6)
                 ? (dtype_is_float(dt) ? eas_builder_const_float(g->b, (double)below(g, 64) / 4 - 4)
                    : dt == EAS_BOOL   ? eas_builder_const_bool(g->b, one_in(g, 2))
                                       : eas_builder_const_int(g->b, below(g, 100)))
             : one_in(g, 5) ? scalar(g, dt)
                            : like(g, x, dt);
    push(g, eas_builder_apply(g->b, op, v[0], v[1], v[2]));
}

static void do_cast(made *g)
{
    eas_value x = any(g);
    eas_dtype from = eas_value_dtype(g->b, x), to = some_dtype(g);
    if (from == EAS_BOOL || to == EAS_BOOL || eas_dtype_size(from) != eas_dtype_size(to) || from == to) {
        push(g, eas_builder_cast(g->b, x, to));
        return;
    }
    if (dtype_is_float(from) && !dtype_is_float(to))
        x = eas_builder_apply(g->b, IR_WHERE, eas_builder_apply(g->b, IR_ISNAN, x, 0, 0),
                              eas_builder_const_typed(g->b, from, 1, 0), x);
    push(g, eas_builder_bitcast(g->b, x, to));
}

static void do_load(made *g)
{
    int i = (int)below(g, INPUTS);
    eas_value x = one_in(g, 5) ? scalar(g, EAS_I64) : main_value(g), mask = 0, other = 0;
    eas_value off = index_in(g, x, g->t->count[i]);
    if (one_in(g, 2)) {
        mask = condition_like(g, off);
        other = one_in(g, 2) ? like(g, off, g->t->dtype[i]) : 0;
        if (one_in(g, 3)) { /* wild, and masked where it is outside */
            off = eas_builder_cast(g->b, x, EAS_I64);
            mask = op2(g, IR_AND, op2(g, IR_GE, off, i64(g, 0)), op2(g, IR_LT, off, i64(g, g->t->count[i])));
        }
    }
    push(g, eas_builder_load(g->b, g->buf[i], off, mask, other));
}

/* Element j of the own ones, j in the shape of an index. */
static eas_value own(made *g, eas_value j) { return op2(g, IR_ADD, j, g->base); }

static eas_value numbered(made *g, eas_value v) /* 0, 1, 2, ... in the shape of v */
{
    int64_t shape[4];
    int rank = rank_of(g, v, shape);
    return rank ? eas_builder_reshape(g->b, eas_builder_arange(g->b, 0, lanes_of(g, v)), rank, shape)
                : i64(g, below(g, g->segment));
}

static void store_value(made *g, eas_value v)
{
    int i = INPUTS + (int)below(g, OUTPUTS);
    if (lanes_of(g, v) > g->segment)
        return;
    eas_value at = one_in(g, 3) ? index_in(g, like(g, v, EAS_I64), g->segment) : numbered(g, v),
              mask = one_in(g, 3) ? condition_like(g, v) : 0;
    eas_builder_store(g->b, g->buf[i], own(g, at), eas_builder_cast(g->b, v, g->t->dtype[i]), mask);
}

static void do_store(made *g) { store_value(g, any(g)); }

static void do_load_own(made *g)
{
    int i = INPUTS + (int)below(g, OUTPUTS);
    push(g, eas_builder_load(g->b, g->buf[i], own(g, index_in(g, main_value(g), g->segment)), 0, 0));
}

static bool atomic_dtype(eas_dtype dt)
{
    return dt == EAS_I32 || dt == EAS_U32 || dt == EAS_I64 || dt == EAS_U64;
}

/* On memory of its own an atomic's result is known; on shared memory only what is left at the end. */
static void do_atomic(made *g)
{
    static const char *const names[] = {"atomic_add", "atomic_min", "atomic_max",  "atomic_and",
                                        "atomic_or",  "atomic_xor", "atomic_xchg", "atomic_cas"};
    int i = INPUTS + (int)below(g, OUTPUTS);
    eas_value x = main_value(g), mask = one_in(g, 2) ? condition_like(g, x) : 0;
    if (one_in(g, 2) || !atomic_dtype(g->t->dtype[i])) {
        eas_dtype dt = g->t->dtype[SHARED];
        eas_builder_atomic(g->b, eas_op_find(g->atomic), g->buf[SHARED], index_in(g, x, g->t->count[SHARED]),
                           like(g, x, dt), 0, mask);
        return;
    }
    const char *name = names[below(g, 8)];
    eas_value y = strcmp(name, "atomic_cas") ? 0 : like(g, x, g->t->dtype[i]);
    push(g, eas_builder_atomic(g->b, eas_op_find(name), g->buf[i], own(g, index_in(g, x, g->segment)),
                               like(g, x, g->t->dtype[i]), y, mask));
}

static void do_random(made *g)
{
    eas_value at = eas_builder_cast(g->b, main_value(g), EAS_I64), seed = scalar(g, EAS_I64), words[4];
    if (one_in(g, 3)) {
        eas_builder_philox(g->b, seed, at, 0, words);
        push(g, words[below(g, 4)]);
    } else {
        push(g, eas_builder_rand(g->b, seed, at, (eas_rand_kind)below(g, 3)));
    }
}

static void do_dot(made *g)
{
    int a = (int)below(g, INPUTS), b = (int)below(g, INPUTS);
    if (!dtype_is_float(g->t->dtype[a]) || !dtype_is_float(g->t->dtype[b]))
        return;
    eas_value x = main_value(g), k = one_in(g, 2) ? i64(g, below(g, 6)) : index_in(g, scalar(g, EAS_I64), 6);
    push(g, eas_builder_dot(g->b, g->buf[a], index_in(g, x, g->t->count[a] - 16), i64(g, 1 + below(g, 3)),
                            g->buf[b], index_in(g, like(g, x, EAS_I64), g->t->count[b] - 16),
                            i64(g, 1 + below(g, 3)), k));
}

/* ---- blocks ---- */

static eas_op join_op(made *g, eas_dtype dt)
{
    static const uint16_t ops[] = {IR_ADD, IR_MUL, IR_MIN, IR_MAX, IR_AND, IR_OR, IR_XOR};
    uint16_t op;
    do
        op = ops[below(g, 7)];
    while (!fits_class(ir_rows[op].classes, dt));
    return op;
}

static eas_value some_block(made *g, int64_t shape[4], int *rank)
{
    for (int tries = 0; tries < 8; tries++) {
        eas_value v = any(g);
        if ((*rank = rank_of(g, v, shape)))
            return v;
    }
    return 0;
}

static void do_fold(made *g)
{
    int64_t shape[4];
    int rank;
    eas_value v = some_block(g, shape, &rank);
    if (!v)
        return;
    eas_dtype dt = eas_value_dtype(g->b, v);
    int axis = (int)below(g, rank);
    if (one_in(g, 4))
        push(g, eas_builder_arg_reduce(g->b, one_in(g, 2),
                                       dt == EAS_BOOL ? eas_builder_cast(g->b, v, EAS_I32) : v, axis));
    else if (one_in(g, 2))
        push(g, eas_builder_scan(g->b, join_op(g, dt), v, axis));
    else
        push(g, eas_builder_reduce(g->b, join_op(g, dt), v, axis));
}

static void shuffle_axes(made *g, int *axes, int n)
{
    for (int i = 0; i < n; i++)
        axes[i] = i;
    for (int i = n - 1; i > 0; i--) {
        int j = (int)below(g, i + 1), was = axes[i];
        axes[i] = axes[j];
        axes[j] = was;
    }
}

static void do_move(made *g)
{
    int64_t shape[4], flat;
    int rank, axes[4];
    eas_value v = some_block(g, shape, &rank);
    if (!v)
        return;
    int axis = (int)below(g, rank);
    int64_t start = below(g, shape[axis]);
    switch (below(g, 5)) {
    case 0: push(g, eas_builder_slice(g->b, v, axis, start, 1 + below(g, shape[axis] - start))); break;
    case 1:
        shuffle_axes(g, axes, rank);
        push(g, eas_builder_trans(g->b, v, axes));
        break;
    case 2:
        flat = lanes_of(g, v);
        push(g, eas_builder_reshape(g->b, v, 1, &flat));
        break;
    case 3:
        if (rank < 4 && lanes_of(g, v) <= 512)
            push(g, eas_builder_join(g->b, v, like(g, v, eas_value_dtype(g->b, v))));
        break;
    default: push(g, eas_builder_broadcast(g->b, scalar(g, some_dtype(g)), g->rank, g->shape));
    }
}

static eas_value loaded_block(made *g, int input, int64_t m, int64_t n)
{
    int64_t shape[2] = {m, n};
    eas_value at = op2(g, IR_ADD, eas_builder_arange(g->b, below(g, 7), m * n), scalar(g, EAS_I64));
    eas_value v = eas_builder_load(g->b, g->buf[input], index_in(g, at, g->t->count[input]), 0, 0);
    static const eas_dtype floats[] = {EAS_F16, EAS_BF16, EAS_F32, EAS_F64};
    if (!dtype_is_float(g->t->dtype[input]))
        v = eas_builder_cast(g->b, v, g->k.floats ? EAS_F64 : floats[below(g, 4)]);
    return eas_builder_reshape(g->b, v, 2, shape);
}

/* Machines that multiply bf16 themselves do it without subnormal numbers (docs/ir.md): small numbers are made
 * 0 here, so that no product or sum is one. AMX, which sums in another order, has its say from k = 32 on. */
static eas_value not_tiny(made *g, eas_value x)
{
    const eas_dtype dt = eas_value_dtype(g->b, x);
    eas_value tiny = op2(g, IR_LT, eas_builder_apply(g->b, IR_ABS, x, 0, 0),
                         eas_builder_const_typed(g->b, dt, dt == EAS_F16 ? 0 : 0x1p-50, 0));
    return eas_builder_apply(g->b, IR_WHERE, tiny, eas_builder_const_typed(g->b, dt, 0, 0), x);
}

static void do_matmul(made *g)
{
    int64_t m = 1 + below(g, one_in(g, 3) ? 24 : 6), k = 1 + below(g, 9),
            n = 1 + below(g, one_in(g, 3) ? 40 : 6);
    if (m * n > g->k.max_lanes || m * k > g->k.max_lanes || k * n > g->k.max_lanes)
        return;
    eas_value x = loaded_block(g, (int)below(g, INPUTS), m, k),
              y = loaded_block(g, (int)below(g, INPUTS), k, n);
    eas_value acc = one_in(g, 2) ? 0 : loaded_block(g, (int)below(g, INPUTS), m, n);
    if (eas_value_dtype(g->b, x) == EAS_BF16 && eas_value_dtype(g->b, y) == EAS_BF16) {
        x = not_tiny(g, x);
        y = not_tiny(g, y);
        acc = acc ? not_tiny(g, acc) : 0;
    }
    push(g, eas_builder_matmul(g->b, x, y, acc));
}

/* ---- threads ---- */

static void do_threadgroup(made *g)
{
    if (!g->uniform)
        return;
    if (g->ntg < 3 && !g->depth && one_in(g, 2)) {
        g->tgtype[g->ntg] = some_dtype(g);
        g->tg[g->ntg] = eas_builder_alloc_tg(g->b, OWN * g->group, g->tgtype[g->ntg]);
        for (int i = 0; i < OWN; i++) /* all of it is written before it is read */
            eas_builder_store(g->b, g->tg[g->ntg],
                              op2(g, IR_ADD, op2(g, IR_MUL, g->tid, i64(g, OWN)), i64(g, i)),
                              like(g, g->tid, g->tgtype[g->ntg]), 0);
        g->ntg++;
        eas_builder_barrier(g->b);
    }
    if (!g->ntg)
        return;
    int i = (int)below(g, g->ntg);
    eas_value x = main_value(g), mask = one_in(g, 3) ? condition_like(g, x) : 0;
    eas_builder_barrier(g->b);
    eas_builder_store(g->b, g->tg[i],
                      op2(g, IR_ADD, op2(g, IR_MUL, g->tid, i64(g, OWN)), index_in(g, x, OWN)),
                      like(g, x, g->tgtype[i]), mask);
    eas_builder_barrier(g->b);
    push(g, eas_builder_load(g->b, g->tg[i], index_in(g, like(g, x, EAS_I64), OWN * g->group), 0, 0));
    eas_builder_barrier(g->b);
}

static void do_across(made *g)
{
    if (!g->uniform)
        return;
    eas_value x = main_value(g);
    eas_dtype dt = eas_value_dtype(g->b, x);
    eas_op op = join_op(g, dt);
    bool simd = g->group % IR_SIMD == 0, sums = dt != EAS_BOOL;
    switch (below(g, 5)) {
    case 0: push(g, eas_builder_tg_reduce(g->b, op, x)); break;
    case 1: push(g, sums ? eas_builder_tg_scan(g->b, x, one_in(g, 2)) : 0); break;
    case 2:
        push(g, simd ? eas_builder_simd_shuffle(g->b, (eas_shuffle)below(g, 4), x,
                                                one_in(g, 2) ? i64(g, below(g, 40)) : like(g, x, EAS_I64))
                     : 0);
        break;
    case 3: push(g, simd ? eas_builder_simd_reduce(g->b, op, x) : 0); break;
    default: push(g, simd && sums ? eas_builder_simd_scan(g->b, x, one_in(g, 2)) : 0);
    }
}

static bool matrix_dtype(eas_dtype dt) { return dt == EAS_F16 || dt == EAS_F32; }

/* A simdgroup's 32 threads own 64 elements: an 8 x 8 matrix fits. */
static void do_matrix(made *g)
{
    int a = (int)below(g, INPUTS), b = (int)below(g, INPUTS), out = INPUTS + (int)below(g, OUTPUTS);
    if (g->depth || g->group % IR_SIMD || !matrix_dtype(g->t->dtype[a]) || !matrix_dtype(g->t->dtype[b]) ||
        !matrix_dtype(g->t->dtype[out]))
        return;
    eas_value acc = eas_builder_mma_zero(g->b),
              first = op2(g, IR_MUL, eas_builder_sg_id(g->b), i64(g, IR_SIMD * OWN));
    for (int i = 0; i < 2; i++)
        acc = eas_builder_mma(g->b, g->buf[a], i64(g, below(g, g->t->count[a] - 63)), i64(g, 8), g->buf[b],
                              i64(g, below(g, g->t->count[b] - 63)), i64(g, 8), acc);
    eas_builder_barrier(g->b);
    eas_builder_mma_store(g->b, g->buf[out],
                          op2(g, IR_ADD, op2(g, IR_MUL, g->pid, i64(g, g->group * OWN)), first), i64(g, 8),
                          acc);
    eas_builder_barrier(g->b);
}

/* ---- control ---- */

static void statements(made *g, int n);

static void body(made *g, bool uniform, int n)
{
    bool was = g->uniform;
    g->uniform = was && uniform;
    g->depth++;
    statements(g, n);
    g->depth--;
    g->uniform = was;
}

static int carried(made *g, eas_value v[3])
{
    int n = 1 + (int)below(g, 2);
    for (int i = 0; i < n; i++) {
        v[i] = any(g);
        v[i] = eas_builder_cast(g->b, v[i], eas_value_dtype(g->b, v[i])); /* what is carried is not weak */
    }
    return n;
}

static void next_values(made *g, int n, const eas_value *now, eas_value *next)
{
    for (int i = 0; i < n; i++)
        next[i] = like(g, now[i], eas_value_dtype(g->b, now[i]));
}

static void do_loop(made *g)
{
    eas_value init[3], now[3], next[3], last[3], iv = 0;
    int n = carried(g, init), mark = g->npool;
    bool constant = one_in(g, 2), down = one_in(g, 4);
    int64_t lo = below(g, 4), step = 1 + below(g, 2);
    eas_value far = constant ? i64(g, below(g, 5)) : index_in(g, scalar(g, EAS_I64), 5);
    eas_value from = i64(g, lo), to = op2(g, down ? IR_SUB : IR_ADD, from, far);
    eas_builder_loop_begin(g->b, from, to, i64(g, down ? -step : step), n, init, &iv, now);
    push(g, iv);
    for (int i = 0; i < n; i++)
        push(g, now[i]);
    body(g, constant, 1 + (int)below(g, 4));
    next_values(g, n, now, next);
    eas_builder_loop_end(g->b, n, next, last);
    g->npool = mark;
    for (int i = 0; i < n; i++)
        push(g, last[i]);
}

static void do_while(made *g)
{
    eas_value init[4], now[4], next[4], last[4], limit = index_in(g, scalar(g, EAS_I64), 5);
    int n = 1 + carried(g, init + 1), mark = g->npool;
    init[0] = i64(g, 0);
    eas_builder_while_begin(g->b, n, init, now);
    for (int i = 0; i < n; i++)
        push(g, now[i]);
    eas_builder_while_do(g->b, op2(g, IR_LT, now[0], limit));
    body(g, false, 1 + (int)below(g, 3));
    next_values(g, n, now, next);
    next[0] = op2(g, IR_ADD, now[0], i64(g, 1));
    eas_builder_while_end(g->b, n, next, last);
    g->npool = mark;
    for (int i = 0; i < n; i++)
        push(g, last[i]);
}

static void do_if(made *g)
{
    eas_value model[3], yes[3], no[3], merged[3];
    int n = carried(g, model), mark = g->npool;
    eas_dtype dt = one_in(g, 2) ? EAS_I64 : EAS_F32;
    eas_builder_if_begin(g->b, op2(g, IR_LT, scalar(g, dt), scalar(g, dt)));
    body(g, false, 1 + (int)below(g, 3));
    next_values(g, n, model, yes);
    g->npool = mark;
    eas_builder_if_else(g->b, n, yes);
    body(g, false, (int)below(g, 3));
    next_values(g, n, model, no);
    g->npool = mark;
    eas_builder_if_end(g->b, n, no, merged);
    for (int i = 0; i < n; i++)
        push(g, merged[i]);
}

static void do_control(made *g)
{
    if (g->depth >= g->k.max_depth)
        return;
    static void (*const kinds[])(made *) = {do_loop, do_while, do_if, do_if};
    kinds[below(g, 4)](g);
}

typedef struct choice {
    void (*make)(made *);
    int weight;
    int mode; /* 1: SPMD, 2: threads, 3: both */
} choice;
static const choice choices[] = {{do_elementwise, 40, 3}, {do_cast, 8, 3},     {do_load, 12, 3},
                                 {do_store, 8, 3},        {do_load_own, 4, 3}, {do_atomic, 4, 3},
                                 {do_random, 2, 3},       {do_dot, 3, 3},      {do_fold, 10, 1},
                                 {do_move, 8, 1},         {do_matmul, 3, 1},   {do_control, 8, 3},
                                 {do_threadgroup, 8, 2},  {do_across, 6, 2},   {do_matrix, 3, 2}};

static void statements(made *g, int n)
{
    while (n > 0 && !eas_builder_status(g->b)) {
        const choice *c = &choices[below(g, (int64_t)(sizeof choices / sizeof *choices))];
        if (!(c->mode & (g->threads ? 2 : 1)) || below(g, 40) >= c->weight)
            continue;
        c->make(g);
        n--;
    }
}

/* ---- the kernel ---- */

static void choose_shape(made *g)
{
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 100, 128, 256};
    g->threads = one_in(g, 3);
    g->rank = 1 + (int)below(g, one_in(g, 2) ? 1 : 3);
    g->lanes = 1;
    for (int i = 0; i < g->rank; i++) {
        int64_t d = sizes[below(g, (int64_t)(sizeof sizes / sizeof *sizes))],
                most = g->k.max_lanes / g->lanes;
        g->shape[i] = d < most ? d : most;
        g->lanes *= g->shape[i];
    }
    g->group = g->shape[0];
    g->segment = g->threads ? OWN : OWN * g->lanes;
    g->t->grid[0] = 1 + below(g, g->k.max_grid);
    g->t->grid[1] = one_in(g, 3) && g->k.max_grid > 1 ? 2 : 1;
    g->t->grid[2] = 1;
    g->overlap = !g->threads && one_in(g, 4) && !g->k.floats;
    if (g->overlap)
        g->t->grid[0] = g->t->grid[1] = 1;
}

static void declare(made *g)
{
    static const char *const names[NBUFS] = {"a", "b", "c", "x", "y", "sum"};
    static const char *const shared[] = {"atomic_add", "atomic_min", "atomic_max",
                                         "atomic_and", "atomic_or",  "atomic_xor"};
    static const eas_dtype ints[] = {EAS_I32, EAS_U32, EAS_I64, EAS_U64};
    int64_t programs = g->t->grid[0] * g->t->grid[1];
    g->t->nbufs = NBUFS;
    g->atomic = shared[below(g, 6)];
    for (int i = 0; i < NBUFS; i++) {
        g->t->dtype[i] = i == SHARED ? ints[below(g, 4)] : some_dtype(g);
        g->t->count[i] = i < INPUTS  ? 64 + below(g, 200)
                       : i == SHARED ? 1 + below(g, 40)
                                     : programs * g->segment * (g->threads ? g->group : 1);
        g->buf[i] = eas_builder_param_buffer(g->b, names[i], g->t->dtype[i]);
    }
    g->t->n = below(g, 50) - 5;
    g->t->f = (double)below(g, 100) / 8 - 3;
    g->n = eas_builder_param_scalar(g->b, "N", EAS_I64, one_in(g, 2));
    g->f = eas_builder_param_scalar(g->b, "F", EAS_F64, one_in(g, 2));
}

static void begin(made *g)
{
    eas_value p = eas_builder_program_id(g->b, 0), where = p;
    g->pid = g->t->grid[1] > 1
               ? op2(g, IR_ADD, p,
                     op2(g, IR_MUL, eas_builder_program_id(g->b, 1), eas_builder_num_programs(g->b, 0)))
               : p;
    if (g->threads) {
        g->tid = eas_builder_tid(g->b, 0, g->group);
        where = op2(g, IR_ADD, op2(g, IR_MUL, g->pid, i64(g, g->group)), g->tid);
        push(g, g->tid);
    } else {
        where = g->pid;
        push(g, eas_builder_reshape(g->b, eas_builder_arange(g->b, below(g, 5) - 2, g->lanes), g->rank,
                                    g->shape));
    }
    g->base = op2(g, IR_MUL, where, i64(g, g->segment));
    push(g, op2(g, IR_ADD, g->pid, g->n));
    push(g, eas_builder_cast(g->b, g->f, one_in(g, 2) ? EAS_F32 : EAS_F64));
    g->uniform = true;
    for (int i = 0; i < INPUTS; i++)
        push(g, eas_builder_load(g->b, g->buf[i], index_in(g, g->pool[0], g->t->count[i]), 0, 0));
}

static void build(made *g)
{
    begin(g);
    statements(g, 2 + (int)below(g, g->k.max_steps));
    for (int i = 0; i < 4 && !eas_builder_status(g->b); i++)
        store_value(g, g->pool[g->npool - 1 - below(g, g->npool < 6 ? g->npool : 6)]);
}

bool diff_make(const knobs *k, trial *t, char *why, size_t size)
{
    made g = {.k = *k, .rng = k->seed * 0x2545f4914f6cdd1du, .t = t};
    memset(t, 0, sizeof *t);
    choose_shape(&g);
    eas_status st = eas_builder_new("fuzzed", one_in(&g, 2) ? EAS_KERNEL_NO_CONTRACT : 0, &g.b);
    if (!st) {
        eas_builder_at(g.b, "fuzzed.py", 1);
        declare(&g);
        place_buffers(&g);
        build(&g);
        st = irb_finish(g.b, &t->ir);
    }
    if (st)
        snprintf(why, size, "%s", eas_error_message());
    eas_builder_free(g.b);
    if (st)
        diff_free(t);
    return !st;
}

void diff_free(trial *t)
{
    eas_ir_release(t->ir);
    free(t->memory);
}

int diff_args(const trial *t, uint8_t *memory, eas_arg *args)
{
    for (int i = 0; i < t->nbufs; i++)
        args[i] = (eas_arg){.v.data = memory + t->offset[i],
                            .count = t->count[i],
                            .dtype = (uint8_t)t->dtype[i],
                            .is_buffer = 1,
                            .flags = EAS_ARG_HOST};
    args[t->nbufs] = (eas_arg){.v.i = t->n, .dtype = EAS_I64};
    args[t->nbufs + 1] = (eas_arg){.v.f = t->f, .dtype = EAS_F64};
    return t->nbufs + 2;
}
