/* lanes.c: a kernel of threads as one of blocks: the threads of a group become the lanes of blocks.
 *
 * A value that is the same for all threads stays a scalar, and a loop or branch that all threads take alike
 * stays as it is. Where threads diverge, both ways run under masks: a branch is no branch any more, a loop
 * goes on as long as any lane does. Loads and stores take the mask of the region they stand in; scalars of
 * such a region are loaded if any lane is on. Shuffles go through threadgroup arrays, and a fragment is two
 * blocks: lane l of a simdgroup has elements 2*(l%4) and the next of row l/4. Barriers stay where they are:
 * between two of them the order of the lanes is not defined.
 */
#include "ir.h"

typedef enum how { ALIKE, PARTED_IF, PARTED_LOOP, PARTED_WHILE } how;

typedef struct region {
    how how;
    uint32_t opener; /* of the old kernel */
    uint32_t mask, any; /* the mask outside of the region */
    uint32_t cond;   /* of a branch: its condition per lane; of a loop: the lanes that are still in it */
    uint32_t first;  /* of a loop: its first value in the new kernel */
    uint32_t *then;  /* of a branch: the new values of its first half */
    uint32_t *args;  /* of a loop over parted lanes: lo, hi, step */
} region;

typedef struct laner {
    ir_rewrite w;
    bool *uniform;
    uint32_t *end;  /* per opener of the old kernel: its closer */
    uint32_t *map2; /* per old value: the second elements of a fragment */
    int64_t n; /* threads */
    uint32_t mask, any; /* mask 0: all lanes are on; any: is any of them on? 0: not computed yet */
    uint32_t shuffle[EAS_NDTYPES]; /* arrays that values are exchanged through */
    VEC(region) open;
    VEC(uint32_t) origin; /* per new instruction */
} laner;

static ir_type block(const laner *l, eas_dtype dt)
{
    ir_type t = ir_scalar(dt);
    t.rank = 1;
    t.dim[0] = (int32_t)l->n;
    return t;
}

static eas_dtype dtype_of(const laner *l, uint32_t v) { return (eas_dtype)ir_typeof(l->w.b->ir, v).dtype; }

/* A new value as a block. */
static uint32_t widen(laner *l, uint32_t v)
{
    if (l->w.b->status || ir_typeof(l->w.b->ir, v).rank)
        return v;
    return irb_to(l->w.b, IR_BROADCAST, block(l, dtype_of(l, v)), v);
}

static uint32_t lanes_of(laner *l, uint32_t old) { return widen(l, l->w.map[old]); }
static uint32_t constant(laner *l, eas_dtype dt, int64_t bits)
{
    return irb_const(l->w.b, block(l, dt), bits);
}
static uint32_t op2(laner *l, uint16_t op, uint32_t x, uint32_t y) { return irb_op(l->w.b, op, x, y, 0); }
static uint32_t as(laner *l, eas_dtype dt, uint32_t v)
{
    return l->w.b->status ? 0 : irb_to(l->w.b, IR_CAST, ir_with_dtype(ir_typeof(l->w.b->ir, v), dt), v);
}
static uint32_t threads(laner *l, eas_dtype dt) { return irb_typed(l->w.b, IR_ARANGE, block(l, dt), 0); }
static uint32_t both(laner *l, uint32_t x, uint32_t y) { return !x ? y : !y ? x : op2(l, IR_AND, x, y); }
static const uint32_t *args_of(const laner *l, const ir_insn *in) { return ir_args(l->w.from, in); }

/* One result of an instruction over blocks. */
static uint32_t emit(laner *l, uint16_t op, const uint32_t *args, int n, ir_type t)
{
    return irb_insn(l->w.b, op, args, n, 0, 1, &t);
}

static uint32_t any_of(laner *l, uint32_t mask)
{
    ir_type t = ir_scalar(EAS_BOOL);
    return irb_insn(l->w.b, IR_REDUCE_OR, &mask, 1, 0, 1, &t);
}

/* Is any lane of the region on? 0: all lanes are. */
static uint32_t any_here(laner *l)
{
    if (l->mask && !l->any)
        l->any = any_of(l, l->mask);
    return l->any;
}

static void set_mask(laner *l, uint32_t mask)
{
    l->mask = mask;
    l->any = 0;
}

static bool all_uniform(const laner *l, const ir_insn *in)
{
    for (int k = 0; k < in->nargs; k++)
        if (!l->uniform[args_of(l, in)[k]])
            return false;
    return true;
}

/* ---- one instruction ---- */

static uint32_t identity(laner *l, const ir_insn *in)
{
    eas_dtype dt = (eas_dtype)ir_typeof(l->w.from, in->res).dtype;
    uint32_t t = in->op == IR_LOCAL_ID && in->imm ? irb_const(l->w.b, ir_scalar(dt), 0) : threads(l, dt);
    switch (in->op) {
    case IR_LANE_ID: return op2(l, IR_AND, t, constant(l, dt, IR_SIMD - 1));
    case IR_SG_ID: return op2(l, IR_FLOORDIV, t, constant(l, dt, IR_SIMD));
    case IR_GLOBAL_ID: {
        uint32_t pid = irb_typed(l->w.b, IR_PROGRAM_ID, ir_scalar(dt), 0);
        return op2(l, IR_ADD, widen(l, op2(l, IR_MUL, pid, irb_const(l->w.b, ir_scalar(dt), in->imm))), t);
    }
    default: return t;
    }
}

static uint32_t over_blocks(laner *l, const ir_insn *in)
{
    uint32_t a[3] = {0};
    for (int k = 0; k < in->nargs; k++)
        a[k] = lanes_of(l, args_of(l, in)[k]);
    return emit(l, in->op, a, in->nargs, block(l, (eas_dtype)ir_typeof(l->w.from, in->res).dtype));
}

static uint32_t load_at(laner *l, uint32_t buf, uint32_t off, uint32_t mask, uint32_t other)
{
    ir_type t = ir_with_dtype(ir_typeof(l->w.b->ir, off), dtype_of(l, buf));
    uint32_t a[4] = {buf, off, mask, other};
    if (mask && !other)
        a[3] = irb_const(l->w.b, t, 0);
    return l->w.b->status ? 0 : emit(l, IR_LOAD, a, mask ? 4 : 2, t);
}

static uint32_t load(laner *l, const ir_insn *in)
{
    const uint32_t *a = args_of(l, in);
    bool masked = in->nargs == 4;
    if (l->uniform[in->res])
        return load_at(l, l->w.map[a[0]], l->w.map[a[1]], both(l, masked ? l->w.map[a[2]] : 0, any_here(l)),
                       masked ? l->w.map[a[3]] : 0);
    return load_at(l, l->w.map[a[0]], lanes_of(l, a[1]), both(l, masked ? lanes_of(l, a[2]) : 0, l->mask),
                   masked ? lanes_of(l, a[3]) : 0);
}

static void store_at(laner *l, uint32_t buf, uint32_t off, uint32_t x, uint32_t mask)
{
    uint32_t a[4] = {buf, off, x, mask};
    irb_insn(l->w.b, IR_STORE, a, mask ? 4 : 3, 0, 0, NULL);
}

static void store(laner *l, const ir_insn *in)
{
    const uint32_t *a = args_of(l, in);
    bool masked = in->nargs == 4;
    if (all_uniform(l, in))
        store_at(l, l->w.map[a[0]], l->w.map[a[1]], l->w.map[a[2]],
                 both(l, masked ? l->w.map[a[3]] : 0, any_here(l)));
    else
        store_at(l, l->w.map[a[0]], lanes_of(l, a[1]), lanes_of(l, a[2]),
                 both(l, masked ? lanes_of(l, a[3]) : 0, l->mask));
}

/* Atomics, bounds and asserts: operands, then the mask. */
static uint32_t masked(laner *l, const ir_insn *in, int values)
{
    const uint32_t *old = args_of(l, in);
    bool alike = (in->op == IR_BOUNDS || in->op == IR_ASSERT) && all_uniform(l, in);
    uint32_t a[5];
    for (int k = 0; k < values; k++)
        a[k] = ir_typeof(l->w.from, old[k]).kind != IR_VAL || alike ? l->w.map[old[k]] : lanes_of(l, old[k]);
    uint32_t own = in->nargs > values ? alike ? l->w.map[old[values]] : lanes_of(l, old[values]) : 0,
             mask = both(l, own, alike ? any_here(l) : l->mask);
    a[values] = mask;
    if (l->w.b->status)
        return 0;
    ir_type t = in->nres ? ir_typeof(l->w.from, in->res) : ir_scalar(EAS_BOOL);
    if (!alike)
        t = block(l, (eas_dtype)t.dtype);
    return irb_insn(l->w.b, in->op, a, values + (mask != 0), in->op == IR_ASSERT ? in->imm : 0, in->nres, &t);
}

static uint32_t dot(laner *l, const ir_insn *in)
{
    const uint32_t *old = args_of(l, in);
    const bool alike = l->uniform[in->res];
    uint32_t a[7];
    for (int k = 0; k < 7; k++)
        a[k] = k % 3 == 0 && k < 6 ? l->w.map[old[k]] : alike ? l->w.map[old[k]] : lanes_of(l, old[k]);
    uint32_t on = alike ? any_here(l) : l->mask;
    if (l->w.b->status)
        return 0;
    ir_type t = ir_typeof(l->w.from, in->res);
    if (on) /* lanes that are off take no steps */
        a[6] = irb_op(l->w.b, IR_WHERE, on, a[6], irb_const(l->w.b, ir_typeof(l->w.b->ir, a[6]), 0));
    return emit(l, IR_DOT, a, 7, alike ? t : block(l, (eas_dtype)t.dtype));
}

static void barrier(laner *l) { irb_insn(l->w.b, IR_BARRIER, NULL, 0, 0, 0, NULL); }

static uint32_t shuffle(laner *l, const ir_insn *in)
{
    const uint32_t *a = args_of(l, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(l->w.from, in->res).dtype;
    uint32_t t = threads(l, EAS_U32), from = as(l, EAS_U32, lanes_of(l, a[1]));
    barrier(l); /* every lane has read the values of the exchange before */
    store_at(l, l->shuffle[dt], t, lanes_of(l, a[0]), 0);
    barrier(l);
    uint32_t own = op2(l, IR_SUB, t, op2(l, IR_AND, t, constant(l, EAS_U32, IR_SIMD - 1)));
    uint32_t at = op2(l, IR_ADD, own, op2(l, IR_AND, from, constant(l, EAS_U32, IR_SIMD - 1)));
    return load_at(l, l->shuffle[dt], at, 0, 0);
}

/* ---- fragments ---- */

/* base + row * stride + col, in a dtype that holds it. */
static uint32_t element(laner *l, uint32_t base, uint32_t stride, uint32_t row, uint32_t col)
{
    eas_dtype x = dtype_of(l, l->w.map[base]), y = dtype_of(l, l->w.map[stride]),
              dt = x == y && dtype_bits(x) >= 32 ? x : EAS_I64;
    uint32_t from = as(l, dt, lanes_of(l, base)), by = as(l, dt, lanes_of(l, stride));
    return op2(l, IR_ADD, op2(l, IR_ADD, from, op2(l, IR_MUL, as(l, dt, row), by)), as(l, dt, col));
}

static void own_place(laner *l, uint32_t *row, uint32_t *col)
{
    uint32_t t = threads(l, EAS_U32);
    *row = op2(l, IR_FLOORDIV, op2(l, IR_AND, t, constant(l, EAS_U32, IR_SIMD - 1)), constant(l, EAS_U32, 4));
    *col = op2(l, IR_MUL, op2(l, IR_AND, t, constant(l, EAS_U32, 3)), constant(l, EAS_U32, 2));
}

static uint32_t matrix_load(laner *l, uint32_t buf, uint32_t off)
{
    return as(l, EAS_F32, load_at(l, l->w.map[buf], off, 0, 0));
}

static void mma(laner *l, const ir_insn *in)
{
    const uint32_t *a = args_of(l, in);
    uint32_t row, col, x = l->w.map[a[6]], y = l->map2[a[6]];
    own_place(l, &row, &col);
    uint32_t next = op2(l, IR_ADD, col, constant(l, EAS_U32, 1));
    for (int k = 0; k < 8 && !l->w.b->status; k++) {
        uint32_t at = constant(l, EAS_U32, k), f = matrix_load(l, a[0], element(l, a[1], a[2], row, at));
        x = irb_op(l->w.b, IR_FMA, f, matrix_load(l, a[3], element(l, a[4], a[5], at, col)), x);
        y = irb_op(l->w.b, IR_FMA, f, matrix_load(l, a[3], element(l, a[4], a[5], at, next)), y);
    }
    l->w.map[in->res] = x;
    l->map2[in->res] = y;
}

static void mma_store(laner *l, const ir_insn *in)
{
    const uint32_t *a = args_of(l, in);
    const eas_dtype dt = dtype_of(l, l->w.map[a[0]]);
    uint32_t row, col;
    own_place(l, &row, &col);
    store_at(l, l->w.map[a[0]], element(l, a[1], a[2], row, col), as(l, dt, l->w.map[a[3]]), 0);
    store_at(l, l->w.map[a[0]], element(l, a[1], a[2], row, op2(l, IR_ADD, col, constant(l, EAS_U32, 1))),
             as(l, dt, l->map2[a[3]]), 0);
}

static void plain(laner *l, uint32_t i)
{
    const ir_insn *in = &l->w.from->insns[i];
    uint32_t r = 0;
    switch (in->op) {
    case IR_THREAD_ID:
    case IR_GLOBAL_ID:
    case IR_LOCAL_ID:
    case IR_LANE_ID:
    case IR_SG_ID: r = identity(l, in); break;
    case IR_LOAD: r = load(l, in); break;
    case IR_STORE: store(l, in); return;
    case IR_BOUNDS: r = masked(l, in, 2); break;
    case IR_ASSERT: masked(l, in, 1); return;
    case IR_DOT: r = dot(l, in); break;
    /* a value that all threads share stays a scalar */
    case IR_SIMD_SHUFFLE: r = l->uniform[in->res] ? l->w.map[args_of(l, in)[0]] : shuffle(l, in); break;
    case IR_MMA_ZERO:
        l->map2[in->res] = constant(l, EAS_F32, 0);
        r = constant(l, EAS_F32, 0);
        break;
    case IR_MMA: mma(l, in); return;
    case IR_MMA_STORE: mma_store(l, in); return;
    default:
        if (ir_is_atomic(in))
            r = masked(l, in, 2 + ir_atomic_values(in->op));
        else if (!in->nres || l->uniform[in->res] || ir_typeof(l->w.from, in->res).kind != IR_VAL)
            ir_rewrite_copy(&l->w, i);
        else
            r = over_blocks(l, in);
    }
    if (r)
        l->w.map[in->res] = r;
}

/* ---- regions ---- */

typedef VEC(uint32_t) ids;

static void add(laner *l, ids *s, uint32_t v)
{
    if (!vec_push(s, v))
        l->w.mem.oom = true;
}

/* A value that goes into or out of a region: a scalar, a block, or the two blocks of a fragment. */
static void add_value(laner *l, ids *s, uint32_t old, bool wide)
{
    if (ir_typeof(l->w.from, old).kind == IR_FRAG) {
        add(l, s, l->w.map[old]);
        add(l, s, l->map2[old]);
    } else {
        add(l, s, wide ? lanes_of(l, old) : l->w.map[old]);
    }
}

/* Old values from `first` on are the new ones from `r` on. */
static uint32_t take_values(laner *l, uint32_t first, int n, uint32_t r)
{
    for (int k = 0; k < n; k++) {
        l->w.map[first + (uint32_t)k] = r++;
        if (ir_typeof(l->w.from, first + (uint32_t)k).kind == IR_FRAG)
            l->map2[first + (uint32_t)k] = r++;
    }
    return r;
}

static uint32_t structure(laner *l, uint16_t op, const ids *a, int nres)
{
    ir_type *t = arena_alloc(&l->w.mem, ((size_t)nres + 1) * sizeof *t);
    return t && !l->w.mem.oom ? irb_insn(l->w.b, op, a->at, (int)a->len, 0, nres, t) : 0;
}

static region *innermost(laner *l) { return &l->open.at[l->open.len - 1]; }

static bool parts(const laner *l, const ir_insn *in, int n)
{
    for (int k = 0; k < n; k++)
        if (!l->uniform[args_of(l, in)[k]])
            return true;
    return false;
}

static void open_loop_alike(laner *l, const ir_insn *in)
{
    ids a = {0};
    int head = in->op == IR_LOOP ? 3 : 0, skip = head ? 1 : 0;
    for (int k = 0; k < head; k++)
        add(l, &a, l->w.map[args_of(l, in)[k]]);
    for (int k = head; k < in->nargs; k++)
        add_value(l, &a, args_of(l, in)[k], !l->uniform[in->res + (uint32_t)(k - head + skip)]);
    uint32_t r = structure(l, in->op, &a, (int)a.len - head + skip);
    take_values(l, in->res, in->nres, r);
    vec_free(&a);
}

/* The number of rounds of a lane, exact also near the ends of the dtype's range. */
static uint32_t trips(laner *l, uint32_t lo, uint32_t hi, uint32_t step)
{
    const eas_dtype dt = dtype_of(l, lo), u = dtype_bits(dt) == 64 ? EAS_U64 : EAS_U32;
    uint32_t zero = constant(l, dt, 0), none = constant(l, u, 0), one = constant(l, u, 1);
    uint32_t ulo = as(l, u, lo), uhi = as(l, u, hi), ustep = as(l, u, step);
    uint32_t up =
        op2(l, IR_ADD, op2(l, IR_FLOORDIV, op2(l, IR_SUB, op2(l, IR_SUB, uhi, ulo), one), ustep), one);
    uint32_t r =
        irb_op(l->w.b, IR_WHERE, op2(l, IR_AND, op2(l, IR_GT, step, zero), op2(l, IR_LT, lo, hi)), up, none);
    if (!dtype_is_signed(dt))
        return r;
    uint32_t down = op2(
        l, IR_ADD,
        op2(l, IR_FLOORDIV, op2(l, IR_SUB, op2(l, IR_SUB, ulo, uhi), one), op2(l, IR_SUB, none, ustep)), one);
    return irb_op(l->w.b, IR_WHERE, op2(l, IR_AND, op2(l, IR_LT, step, zero), op2(l, IR_GT, lo, hi)), down,
                  r);
}

/* A value that a loop over diverging lanes hands on unchanged stays a scalar: `first` is the first value
 * inside, or the first result. */
static void keep_unchanged(laner *l, const ir_insn *open, uint32_t first)
{
    int head = open->op == IR_LOOP ? 3 : 0;
    for (int k = head; k < open->nargs; k++)
        if (l->uniform[first + (uint32_t)(k - head)])
            l->w.map[first + (uint32_t)(k - head)] = l->w.map[args_of(l, open)[k]];
}

/* Values of the loop: the rounds left in each lane, the counter, then the carried values. */
static void open_loop_parted(laner *l, const ir_insn *in, region *r)
{
    const uint32_t *old = args_of(l, in);
    ids a = {0};
    r->args = arena_alloc(&l->w.mem, 3 * sizeof *r->args);
    for (int k = 0; k < 3 && r->args; k++)
        r->args[k] = lanes_of(l, old[k]);
    if (r->args && !l->w.b->status) {
        add(l, &a, trips(l, r->args[0], r->args[1], r->args[2]));
        add(l, &a, r->args[0]);
        for (int k = 3; k < in->nargs; k++)
            add_value(l, &a, old[k], true);
        r->first = structure(l, IR_WHILE, &a, (int)a.len);
    }
    if (r->first) {
        take_values(l, in->res, in->nres, r->first + 1);
        keep_unchanged(l, in, in->res + 1);
        uint32_t left = r->first;
        r->cond = both(l, l->mask, op2(l, IR_NE, left, constant(l, dtype_of(l, left), 0)));
        uint32_t go = any_of(l, r->cond);
        irb_insn(l->w.b, IR_DO, &go, 1, 0, 0, NULL);
        set_mask(l, r->cond);
    }
    vec_free(&a);
}

/* Values of the loop: the lanes that are still in it, then the carried values. */
static void open_while_parted(laner *l, const ir_insn *in, region *r)
{
    ids a = {0};
    add(l, &a, l->mask ? l->mask : constant(l, EAS_BOOL, 1));
    for (int k = 0; k < in->nargs; k++)
        add_value(l, &a, args_of(l, in)[k], true);
    r->first = structure(l, IR_WHILE, &a, (int)a.len);
    take_values(l, in->res, in->nres, r->first + 1);
    keep_unchanged(l, in, in->res);
    set_mask(l, r->first);
    vec_free(&a);
}

/* Does a while loop's condition, which comes after its first instructions, differ between lanes? */
static bool while_parts(const laner *l, uint32_t i)
{
    int depth = 0;
    for (;; i++) {
        const ir_insn *in = &l->w.from->insns[i];
        if (in->op == IR_DO && depth == 1)
            return !l->uniform[args_of(l, in)[0]];
        depth += ir_opens(in->op) - ir_closes(in->op);
    }
}

static void open_region(laner *l, uint32_t i)
{
    const ir_insn *in = &l->w.from->insns[i];
    region r = {.opener = i, .mask = l->mask, .any = l->any};
    if (in->op == IR_IF && parts(l, in, 1)) {
        r.how = PARTED_IF;
        r.cond = lanes_of(l, args_of(l, in)[0]);
        set_mask(l, both(l, l->mask, r.cond));
    } else if (in->op == IR_IF) {
        ir_rewrite_copy(&l->w, i);
    } else if (in->op == IR_LOOP && parts(l, in, 3)) {
        r.how = PARTED_LOOP;
        open_loop_parted(l, in, &r);
    } else if (in->op == IR_WHILE && while_parts(l, i)) {
        r.how = PARTED_WHILE;
        open_while_parted(l, in, &r);
    } else {
        any_here(l); /* a while loop tests it in each round */
        r.any = l->any;
        open_loop_alike(l, in);
    }
    if (!vec_push(&l->open, r))
        l->w.mem.oom = true;
}

/* The condition of a while loop. */
static void go_on(laner *l, const ir_insn *in, region *r)
{
    uint32_t go = l->w.map[args_of(l, in)[0]];
    if (r->how == PARTED_WHILE) {
        r->cond = both(l, r->first, widen(l, go));
        go = any_of(l, r->cond);
        set_mask(l, r->cond);
    } else {
        go = both(l, go, l->any);
    }
    irb_insn(l->w.b, IR_DO, &go, 1, 0, 0, NULL);
}

/* The values of one side of a branch that all lanes take alike, or of its end; `end`: the old closer. */
static void merge_alike(laner *l, const ir_insn *in, const ir_insn *end)
{
    ids a = {0};
    for (int k = 0; k < in->nargs; k++)
        add_value(l, &a, args_of(l, in)[k], !l->uniform[end->res + (uint32_t)k]);
    uint32_t r = structure(l, in->op, &a, in == end ? (int)a.len : 0);
    if (in == end)
        take_values(l, end->res, end->nres, r);
    vec_free(&a);
}

static void other_half(laner *l, const ir_insn *in, region *r)
{
    const ir_insn *end = &l->w.from->insns[l->end[r->opener]];
    if (r->how == ALIKE) {
        merge_alike(l, in, end);
        l->any = r->any;
        return;
    }
    r->then = arena_alloc(&l->w.mem, (2 * (size_t)in->nargs + 1) * sizeof *r->then);
    for (int k = 0; k < in->nargs && r->then; k++) {
        uint32_t v = args_of(l, in)[k];
        r->then[2 * k] = ir_typeof(l->w.from, v).kind == IR_FRAG ? l->w.map[v] : lanes_of(l, v);
        r->then[2 * k + 1] = l->map2[v];
    }
    set_mask(l, both(l, r->mask, irb_op(l->w.b, IR_NOT, r->cond, 0, 0)));
}

static void merge_parted(laner *l, const ir_insn *in, const region *r)
{
    for (int k = 0; k < in->nargs && r->then && !l->w.b->status; k++) {
        uint32_t v = args_of(l, in)[k], to = in->res + (uint32_t)k;
        bool frag = ir_typeof(l->w.from, v).kind == IR_FRAG;
        if (l->uniform[to]) { /* both sides have the same value */
            l->w.map[to] = l->w.map[v];
            continue;
        }
        l->w.map[to] = irb_op(l->w.b, IR_WHERE, r->cond, r->then[2 * k], frag ? l->w.map[v] : lanes_of(l, v));
        if (frag)
            l->map2[to] = irb_op(l->w.b, IR_WHERE, r->cond, r->then[2 * k + 1], l->map2[v]);
    }
}

/* Lanes that are off keep the value that they had. */
static void add_kept(laner *l, ids *a, const region *r, uint32_t next, uint32_t had)
{
    add(l, a, l->w.b->status ? 0 : irb_op(l->w.b, IR_WHERE, r->cond, next, had));
}

static void close_parted_loop(laner *l, const ir_insn *in, const region *r)
{
    const int own = r->how == PARTED_LOOP ? 2 : 1;
    ids a = {0};
    uint32_t had = r->first + (uint32_t)own;
    if (r->how == PARTED_LOOP) {
        uint32_t left = r->first, count = r->first + 1;
        add_kept(l, &a, r, op2(l, IR_SUB, left, constant(l, dtype_of(l, left), 1)), left);
        add(l, &a, op2(l, IR_ADD, count, r->args[2]));
    } else {
        add(l, &a, r->cond);
    }
    for (int k = 0; k < in->nargs; k++) {
        uint32_t v = args_of(l, in)[k];
        bool frag = ir_typeof(l->w.from, v).kind == IR_FRAG;
        add_kept(l, &a, r, frag ? l->w.map[v] : lanes_of(l, v), had++);
        if (frag)
            add_kept(l, &a, r, l->map2[v], had++);
    }
    uint32_t first = structure(l, IR_ENDWHILE, &a, (int)a.len);
    take_values(l, in->res, in->nres, first + (uint32_t)own);
    keep_unchanged(l, &l->w.from->insns[r->opener], in->res);
    vec_free(&a);
}

static void close_loop_alike(laner *l, const ir_insn *in, const region *r)
{
    const ir_insn *open = &l->w.from->insns[r->opener];
    ids a = {0};
    for (int k = 0; k < in->nargs; k++)
        add_value(l, &a, args_of(l, in)[k], !l->uniform[open->res + (uint32_t)(k + (in->op == IR_ENDLOOP))]);
    uint32_t first = structure(l, in->op, &a, (int)a.len);
    take_values(l, in->res, in->nres, first);
    vec_free(&a);
}

static void close_region(laner *l, const ir_insn *in)
{
    region r = *innermost(l);
    l->mask = r.mask;
    l->any = r.any;
    if (in->op == IR_ENDIF)
        r.how == ALIKE ? merge_alike(l, in, in) : merge_parted(l, in, &r);
    else
        r.how == ALIKE ? close_loop_alike(l, in, &r) : close_parted_loop(l, in, &r);
    l->open.len--;
}

static void convert(laner *l, uint32_t i)
{
    const ir_insn *in = ir_rewrite_at(&l->w, i);
    switch (in->op) {
    case IR_LOOP:
    case IR_WHILE:
    case IR_IF: open_region(l, i); break;
    case IR_DO: go_on(l, in, innermost(l)); break;
    case IR_ELSE: other_half(l, in, innermost(l)); break;
    case IR_ENDLOOP:
    case IR_ENDWHILE:
    case IR_ENDIF: close_region(l, in); break;
    default: plain(l, i);
    }
}

/* ---- the pass ---- */

static void make_arrays(laner *l)
{
    for (uint32_t i = 0; i < l->w.from->ninsns; i++) {
        const ir_insn *in = &l->w.from->insns[i];
        eas_dtype dt =
            in->op == IR_SIMD_SHUFFLE ? (eas_dtype)ir_typeof(l->w.from, in->res).dtype : EAS_NDTYPES;
        ir_type t = {.dtype = (uint8_t)dt, .kind = IR_TG, .rank = 1, .dim = {(int32_t)l->n}};
        if (dt != EAS_NDTYPES && !l->shuffle[dt])
            l->shuffle[dt] = irb_typed(l->w.b, IR_ALLOC_TG, t, l->n);
    }
}

static void note_origin(laner *l, uint32_t i)
{
    while (!l->w.b->status && l->origin.len < l->w.b->ir->ninsns)
        if (!vec_push(&l->origin, i)) {
            l->w.mem.oom = true;
            return;
        }
}

static void convert_all(laner *l)
{
    const eas_ir *ir = l->w.from;
    l->map2 = arena_alloc(&l->w.mem, ir->nvals * sizeof *l->map2);
    l->uniform = ir_uniform(ir, IR_UNIFORM_MERGES, &l->w.mem);
    l->end = ir_region_ends(ir, &l->w.mem);
    if (l->w.mem.oom)
        return;
    l->w.b->ir->threads = 0;
    l->w.b->ir->spmd_block = l->n;
    make_arrays(l);
    for (uint32_t i = 0; i < ir->ninsns && !l->w.b->status && !l->w.mem.oom; i++) {
        convert(l, i);
        note_origin(l, i);
    }
}

eas_status ir_as_lanes(const eas_ir *ir, eas_ir **out, uint32_t **origin)
{
    laner l = {.n = ir->threads};
    *out = NULL;
    *origin = NULL;
    eas_status st = ir_rewrite_begin(&l.w, ir);
    if (!st)
        convert_all(&l);
    st = ir_rewrite_end(&l.w, st, out);
    if (!st)
        *origin = l.origin.at;
    else
        vec_free(&l.origin);
    vec_free(&l.open);
    return st;
}
