/* ranges.c: intervals of integer values, and from them: is every access of a launch in bounds?
 *
 * An interval that could leave its dtype becomes the dtype's whole range, so wrapping never hides. u64 above
 * 2^63 is "unknown", which is the widest interval. Loop-carried values are unknown; induction variables are
 * not.
 */
#include "ir.h"

__extension__ typedef __int128 wide;

static ir_range whole(eas_dtype dt)
{
    if (dt == EAS_U64 || dtype_is_float(dt))
        return (ir_range){INT64_MIN, INT64_MAX};
    return (ir_range){dtype_min(dt), (int64_t)dtype_max(dt)};
}

static ir_range fit(eas_dtype dt, wide lo, wide hi)
{
    ir_range w = whole(dt);
    wide min = dt == EAS_U64 ? 0 : w.lo;
    return lo < min || hi > w.hi ? w : (ir_range){(int64_t)lo, (int64_t)hi};
}

static bool is_unknown(ir_range r) { return r.lo == INT64_MIN && r.hi == INT64_MAX; }
static bool may_wrap(eas_dtype dt, ir_range r) { return r.lo == whole(dt).lo && r.hi == whole(dt).hi; }
static bool is_point(ir_range r) { return r.lo == r.hi; }
static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static ir_range meet(ir_range a, ir_range b)
{
    ir_range r = {max64(a.lo, b.lo), min64(a.hi, b.hi)};
    return r.lo <= r.hi ? r : (ir_range){r.lo, r.lo}; /* contradictory facts: the place is never reached */
}

static ir_range corners(eas_dtype dt, wide a, wide b, wide c, wide d)
{
    wide lo = a, hi = a, v[3] = {b, c, d};
    for (int i = 0; i < 3; i++) {
        lo = v[i] < lo ? v[i] : lo;
        hi = v[i] > hi ? v[i] : hi;
    }
    return fit(dt, lo, hi);
}

static wide floor_div(wide a, wide b) { return a / b - ((a % b != 0) & ((a < 0) != (b < 0))); }

/* Divisors that include 0 or are of mixed sign are left unknown. */
static ir_range divide(uint16_t op, eas_dtype dt, ir_range a, ir_range b)
{
    if (b.lo <= 0 && b.hi >= 0)
        return whole(dt);
    wide q[4];
    for (int i = 0; i < 4; i++) {
        wide x = i & 1 ? a.hi : a.lo, y = i & 2 ? b.hi : b.lo;
        q[i] = op == IR_FLOORDIV ? floor_div(x, y) : x / y;
    }
    return corners(dt, q[0], q[1], q[2], q[3]);
}

static ir_range modulo(uint16_t op, eas_dtype dt, ir_range a, ir_range b)
{
    if (b.lo <= 0)
        return whole(dt);
    if (a.lo >= 0 && a.hi < b.lo)
        return a;
    if (is_point(b) && op == IR_MOD && floor_div(a.lo, b.lo) == floor_div(a.hi, b.lo)) {
        wide base = floor_div(a.lo, b.lo) * b.lo;
        return fit(dt, a.lo - base, a.hi - base);
    }
    return (ir_range){op == IR_MOD || a.lo >= 0 ? 0 : -(b.hi - 1), op == IR_MOD || a.hi > 0 ? b.hi - 1 : 0};
}

static int64_t ones_above(int64_t v)
{
    uint64_t u = (uint64_t)v;
    for (int s = 1; s < 64; s *= 2)
        u |= u >> s;
    return (int64_t)u;
}

static ir_range bits(uint16_t op, eas_dtype dt, ir_range a, ir_range b)
{
    if (op == IR_AND && b.lo >= 0)
        return (ir_range){0, a.lo >= 0 ? min64(a.hi, b.hi) : b.hi};
    if (op == IR_AND && a.lo >= 0)
        return (ir_range){0, a.hi};
    if (a.lo >= 0 && b.lo >= 0)
        return (ir_range){op == IR_OR ? max64(a.lo, b.lo) : 0, ones_above(a.hi | b.hi)};
    return whole(dt);
}

static ir_range shift(uint16_t op, eas_dtype dt, ir_range a, ir_range b)
{
    if (b.lo < 0 || b.hi >= dtype_bits(dt) || b.hi > 62)
        return op == IR_SHR && a.lo >= 0 ? (ir_range){0, a.hi} : whole(dt);
    if (op == IR_SHR)
        return is_unknown(a) && dt == EAS_U64
                 ? whole(dt)
                 : (ir_range){min64(a.lo >> b.lo, a.lo >> b.hi), max64(a.hi >> b.lo, a.hi >> b.hi)};
    return corners(dt, a.lo * ((wide)1 << b.lo), a.lo * ((wide)1 << b.hi), a.hi * ((wide)1 << b.lo),
                   a.hi * ((wide)1 << b.hi));
}

static const ir_range unsure = {0, 1};
static ir_range sure(bool yes) { return (ir_range){yes, yes}; }

static ir_range compare(uint16_t op, ir_range a, ir_range b)
{
    switch (op) {
    case IR_LT: return a.hi < b.lo ? sure(true) : a.lo >= b.hi ? sure(false) : unsure;
    case IR_LE: return a.hi <= b.lo ? sure(true) : a.lo > b.hi ? sure(false) : unsure;
    case IR_GT: return compare(IR_LT, b, a);
    case IR_GE: return compare(IR_LE, b, a);
    case IR_EQ:
        return is_point(a) && is_point(b) && a.lo == b.lo ? sure(true)
             : a.hi < b.lo || b.hi < a.lo                 ? sure(false)
                                                          : unsure;
    default: return (ir_range){1 - compare(IR_EQ, a, b).hi, 1 - compare(IR_EQ, a, b).lo};
    }
}

static ir_range arithmetic(uint16_t op, eas_dtype dt, ir_range a, ir_range b)
{
    switch (op) {
    case IR_NEG: return fit(dt, -(wide)a.hi, -(wide)a.lo);
    case IR_ABS:
        return a.lo >= 0 ? a : fit(dt, a.hi <= 0 ? -(wide)a.hi : 0, -(wide)a.lo > a.hi ? -(wide)a.lo : a.hi);
    case IR_ADD: return fit(dt, (wide)a.lo + b.lo, (wide)a.hi + b.hi);
    case IR_SUB: return fit(dt, (wide)a.lo - b.hi, (wide)a.hi - b.lo);
    case IR_MUL:
        return corners(dt, (wide)a.lo * b.lo, (wide)a.lo * b.hi, (wide)a.hi * b.lo, (wide)a.hi * b.hi);
    case IR_FLOORDIV:
    case IR_TDIV: return divide(op, dt, a, b);
    case IR_MOD:
    case IR_TREM: return modulo(op, dt, a, b);
    case IR_MIN: return (ir_range){min64(a.lo, b.lo), min64(a.hi, b.hi)};
    case IR_MAX: return (ir_range){max64(a.lo, b.lo), max64(a.hi, b.hi)};
    case IR_AND:
    case IR_OR:
    case IR_XOR: return bits(op, dt, a, b);
    case IR_SHL:
    case IR_SHR: return shift(op, dt, a, b);
    default: return whole(dt);
    }
}

static ir_range cast_range(eas_dtype from, eas_dtype to, ir_range a)
{
    if (dtype_is_float(from) || dtype_is_float(to))
        return whole(to);
    if (to == EAS_BOOL)
        return compare(IR_NE, a, (ir_range){0, 0});
    return fit(to, a.lo, a.hi);
}

enum { UNKNOWN_GRID = INT32_MAX, MAX_FACTORS = 8 };

static ir_range identity(const ir_insn *in, eas_dtype dt, const ir_env *env, const eas_ir_info *info)
{
    wide grid = in->op == IR_PROGRAM_ID || in->op == IR_NUM_PROGRAMS ? env->grid[in->imm] : env->grid[0];
    const wide first = in->op == IR_GLOBAL_ID || (in->op == IR_PROGRAM_ID && !in->imm) ? env->first : 0;
    bool known = grid != 0;
    if (!known)
        grid = UNKNOWN_GRID;
    switch (in->op) {
    case IR_PROGRAM_ID: return fit(dt, first, grid - 1);
    case IR_NUM_PROGRAMS: return fit(dt, known ? grid : 1, grid);
    case IR_THREAD_ID: return fit(dt, 0, in->imm - 1);
    case IR_GLOBAL_ID: return fit(dt, first * in->imm, grid * in->imm - 1);
    case IR_LOCAL_ID: return fit(dt, 0, in->imm == 0 ? info->block - 1 : 0);
    case IR_LANE_ID: return fit(dt, 0, IR_SIMD - 1);
    default: return fit(dt, 0, (info->block - 1) / IR_SIMD);
    }
}

/* What `transfer` needs to know of an instruction's surroundings: `ask` gives the interval of an operand. */
typedef struct asking {
    const eas_ir *ir;
    const ir_env *env;
    const eas_ir_info *info;
    ir_range (*ask)(void *ctx, uint32_t v);
    void *ctx;
} asking;

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* A number that divides v for sure; 0 where v is 0. For values that may have wrapped it is 1. */
static int64_t divisor(const asking *q, uint32_t v, int depth)
{
    const ir_type t = ir_typeof(q->ir, v);
    if (t.kind != IR_VAL || !dtype_is_int(t.dtype) || depth > MAX_FACTORS)
        return 1;
    const ir_range r = q->ask(q->ctx, v);
    const ir_insn *d = ir_def(q->ir, v);
    if (is_point(r) && r.lo > INT64_MIN)
        return r.lo < 0 ? -r.lo : r.lo;
    if (!d || is_unknown(r) || may_wrap(t.dtype, r))
        return 1;
    const uint32_t *a = ir_args(q->ir, d);
    int64_t x, y;
    switch (d->op) {
    case IR_MUL:
        x = divisor(q, a[0], depth + 1);
        y = divisor(q, a[1], depth + 1);
        return (wide)x * y <= INT64_MAX ? x * y : x;
    case IR_ADD:
    case IR_SUB:
    case IR_MIN:
    case IR_MAX: return gcd(divisor(q, a[0], depth + 1), divisor(q, a[1], depth + 1));
    case IR_LOOP: return v == d->res ? gcd(divisor(q, a[0], depth + 1), divisor(q, a[2], depth + 1)) : 1;
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_NEG:
    case IR_CAST: return divisor(q, a[0], depth + 1);
    default: return 1;
    }
}

/* The interval of a loop's counter. If start and step are known, its last value is exact, not just below hi.
 * If both are only known to be multiples of `unit`, the last value is a multiple of it, too. */
static ir_range loop_variable(eas_dtype dt, ir_range lo, ir_range hi, ir_range step, int64_t unit)
{
    const wide first = lo.lo, room = step.lo > 0 ? (wide)hi.hi - 1 - first : first - 1 - (wide)hi.lo;
    if (is_point(lo) && is_point(step) && step.lo && room >= 0) {
        const wide last = first + room / (step.lo > 0 ? (wide)step.lo : -(wide)step.lo) * step.lo;
        return step.lo > 0 ? fit(dt, first, last) : fit(dt, last, first);
    }
    const wide u = unit ? unit : 1,
               last = step.lo >= 0 ? floor_div((wide)hi.hi - 1, u) * u : -floor_div(-(wide)hi.lo - 1, u) * u;
    if (step.lo >= 0)
        return fit(dt, lo.lo, last > lo.lo ? last : lo.lo);
    if (step.hi <= 0)
        return fit(dt, last < lo.hi ? last : lo.hi, lo.hi);
    return fit(dt, min64(lo.lo, hi.lo), max64(lo.hi, hi.hi));
}

/* The interval of a result from those of its operands: the transfer function of interval analysis. Arithmetic
 * that may leave its dtype gives the dtype's whole range, as do loads and other results that intervals tell
 * nothing about. */
static ir_range transfer(const asking *q, const ir_insn *in, int k)
{
    const uint32_t *a = ir_args(q->ir, in);
    ir_type t = ir_typeof(q->ir, in->res + (uint32_t)k);
    eas_dtype dt = t.dtype;
    if (t.kind != IR_VAL || dtype_is_float(dt))
        return whole(EAS_I64);
    switch (ir_rows[in->op].rule) {
    case IR_RULE_CONST: return dt == EAS_U64 && in->imm < 0 ? whole(dt) : (ir_range){in->imm, in->imm};
    case IR_RULE_ARANGE: return fit(dt, in->imm, (wide)in->imm + t.dim[0] - 1);
    case IR_RULE_IDENT: return identity(in, dt, q->env, q->info);
    case IR_RULE_SHUFFLE:
    case IR_RULE_SHAPE: return q->ask(q->ctx, a[0]);
    case IR_RULE_MOVE: {
        ir_range x = q->ask(q->ctx, a[0]), fill = in->op == IR_PAD ? q->ask(q->ctx, a[1]) : x;
        return (ir_range){min64(x.lo, fill.lo), max64(x.hi, fill.hi)};
    }
    case IR_RULE_REDUCE:
    case IR_RULE_SCAN: {
        ir_range x = q->ask(q->ctx, a[0]);
        wide n = ir_typeof(q->ir, a[0]).dim[in->imm];
        const uint16_t join = ir_join_of(in->op);
        if (join == IR_MIN || join == IR_MAX)
            return x;
        if (join != IR_ADD || (dt == EAS_U64 && is_unknown(x)))
            return whole(dt);
        return fit(dt, x.lo < 0 || in->op == IR_REDUCE_ADD ? x.lo * n : x.lo,
                   x.hi > 0 || in->op == IR_REDUCE_ADD ? x.hi * n : x.hi);
    }
    case IR_RULE_SAME: {
        ir_range x = q->ask(q->ctx, a[0]), y = in->nargs > 1 ? q->ask(q->ctx, a[1]) : x;
        if (in->op == IR_NOT)
            return dt == EAS_BOOL ? (ir_range){1 - x.hi, 1 - x.lo} : whole(dt);
        if (dt == EAS_U64 && (is_unknown(x) || is_unknown(y)) && in->op != IR_AND && in->op != IR_MOD &&
            in->op != IR_TREM)
            return whole(dt);
        return arithmetic(in->op, dt, x, y);
    }
    case IR_RULE_CMP:
        if (in->nargs == 2 && !dtype_is_float(ir_typeof(q->ir, a[0]).dtype)) {
            ir_range x = q->ask(q->ctx, a[0]), y = q->ask(q->ctx, a[1]);
            return ir_typeof(q->ir, a[0]).dtype == EAS_U64 && (is_unknown(x) || is_unknown(y))
                     ? unsure
                     : compare(in->op, x, y);
        }
        return unsure;
    case IR_RULE_WHERE: {
        ir_range c = q->ask(q->ctx, a[0]), x = q->ask(q->ctx, a[1]), y = q->ask(q->ctx, a[2]);
        return is_point(c) ? c.lo ? x : y : (ir_range){min64(x.lo, y.lo), max64(x.hi, y.hi)};
    }
    case IR_RULE_CAST:
        return in->op == IR_CAST ? cast_range(ir_typeof(q->ir, a[0]).dtype, dt, q->ask(q->ctx, a[0]))
                                 : whole(dt);
    case IR_RULE_LOOP:
        if (in->op == IR_LOOP && k == 0)
            return loop_variable(dt, q->ask(q->ctx, a[0]), q->ask(q->ctx, a[1]), q->ask(q->ctx, a[2]),
                                 gcd(divisor(q, a[0], 0), divisor(q, a[2], 0)));
        return whole(dt);
    default: return whole(dt);
    }
}

static ir_range ask_array(void *ctx, uint32_t v) { return ((const ir_range *)ctx)[v]; }

void ir_range_insn(const eas_ir *ir, const ir_env *env, const eas_ir_info *info, const ir_insn *in,
                   ir_range *r)
{
    asking q = {ir, env, info, ask_array, r};
    for (int k = 0; k < in->nres; k++)
        r[in->res + (uint32_t)k] = transfer(&q, in, k);
}

int64_t ir_loop_unit(const eas_ir *ir, const ir_range *r, uint32_t loop)
{
    const asking q = {.ir = ir, .ask = ask_array, .ctx = (void *)(uintptr_t)r};
    const uint32_t *a = ir_args(ir, &ir->insns[loop]);
    const int64_t unit = gcd(divisor(&q, a[0], 0), divisor(&q, a[2], 0));
    return unit ? unit : 1;
}

static void range_params(const eas_ir *ir, const ir_env *env, ir_range *r)
{
    for (int p = 0; p < ir->nparams; p++) {
        ir_type t = ir->vals[p + 1].type;
        r[p + 1] = t.kind != IR_VAL ? whole(EAS_I64)
                 : env->scalar && !dtype_is_float(t.dtype) && !(t.dtype == EAS_U64 && env->scalar[p].lo < 0)
                     ? meet(env->scalar[p], whole(t.dtype))
                     : whole(t.dtype);
    }
}

ir_range *ir_ranges(const eas_ir *ir, const ir_env *env, arena *mem)
{
    ir_range *r = arena_alloc(mem, ir->nvals * sizeof *r);
    eas_ir_info info = ir_analyse(ir);
    if (!r)
        return NULL;
    range_params(ir, env, r);
    for (uint32_t i = 0; i < ir->ninsns; i++)
        ir_range_insn(ir, env, &info, &ir->insns[i], r);
    return r;
}

/* ---- bounds ---- */

/* More is known of an access under a mask or inside an if: the comparisons in its condition bound the values
 * that they compare, and the offset is evaluated again under those bounds. */

enum { MAX_FACTS = 64, MAX_DEPTH = 64 };

static bool any_data(const eas_ir *ir, const ir_insn *in, const bool *data)
{
    for (int k = 0; k < in->nargs; k++)
        if (data[ir_args(ir, in)[k]])
            return true;
    return false;
}

static bool place_by_data(const eas_ir *ir, const ir_insn *in, const bool *data)
{
    const uint32_t *a = ir_args(ir, in);
    if (in->op == IR_DOT)
        return data[a[1]] || data[a[2]] || data[a[4]] || data[a[5]] || data[a[6]];
    return (in->op == IR_LOAD || in->op == IR_STORE || ir_is_atomic(in)) && data[a[1]];
}

bool *ir_by_data(const eas_ir *ir, arena *mem)
{
    bool *by = arena_alloc(mem, ir->ninsns + 1), *data = arena_alloc(mem, ir->nvals);
    if (!by || !data)
        return NULL;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        const bool known = ir_rows[in->op].flags & IR_PURE || ir_rows[in->op].rule == IR_RULE_IDENT,
                   counter = in->op == IR_LOOP;
        for (int k = 0; k < in->nres; k++)
            data[in->res + (uint32_t)k] = known || (counter && k == 0) ? any_data(ir, in, data) : true;
        by[i] = place_by_data(ir, in, data);
    }
    return by;
}

typedef struct prover {
    const eas_ir *ir;
    const ir_env *env;
    eas_ir_info info;
    ir_range *base;
    struct {
        uint32_t v;
        ir_range r;
    } fact[MAX_FACTS];
    int nfacts;
    uint32_t *stamp, now; /* memo of the current query */
    ir_range *memo;
    int depth;
    bool *by_data;
    bool doubts; /* an access by data is not proved */
} prover;

static ir_range refined(void *ctx, uint32_t v)
{
    prover *p = ctx;
    ir_range r = p->base[v];
    if (p->stamp[v] == p->now)
        return p->memo[v];
    for (int i = 0; i < p->nfacts; i++)
        if (p->fact[i].v == v)
            r = meet(r, p->fact[i].r);
    const ir_insn *d = ir_def(p->ir, v);
    if (d && d->nres == 1 && d->nargs && (ir_rows[d->op].flags & IR_PURE) && p->depth < MAX_DEPTH) {
        asking q = {p->ir, p->env, &p->info, refined, p};
        p->depth++;
        r = meet(r, transfer(&q, d, 0));
        p->depth--;
    }
    p->stamp[v] = p->now;
    p->memo[v] = r;
    return r;
}

/* An integer cast that changes no value. */
static bool keeps_value(const prover *p, const ir_insn *cast)
{
    uint32_t x = ir_args(p->ir, cast)[0];
    ir_range r = p->base[x], to = whole(ir_typeof(p->ir, cast->res).dtype);
    return dtype_is_int(ir_typeof(p->ir, x).dtype) && !is_unknown(r) && r.lo >= to.lo && r.hi <= to.hi;
}

static void add_fact(prover *p, uint32_t v, wide lo, wide hi)
{
    ir_range r = {(int64_t)(lo < INT64_MIN ? INT64_MIN : lo), (int64_t)(hi > INT64_MAX ? INT64_MAX : hi)};
    for (int hops = 0; hops < MAX_DEPTH && p->nfacts < MAX_FACTS && r.lo <= r.hi; hops++) {
        p->fact[p->nfacts].v = v;
        p->fact[p->nfacts++].r = r;
        const ir_insn *d = ir_def(p->ir, v);
        if (!d)
            return;
        const uint32_t *a = ir_args(p->ir, d);
        if (d->op == IR_BROADCAST || d->op == IR_RESHAPE) {
            v = a[0];
        } else if (d->op == IR_CAST && keeps_value(p, d)) {
            v = a[0];
        } else if ((d->op == IR_ADD || d->op == IR_SUB) && is_point(p->base[a[1]]) &&
                   !may_wrap(ir_typeof(p->ir, v).dtype, p->base[v])) {
            /* v = x + c without wrapping: x is bounded by the shifted interval */
            wide c = d->op == IR_ADD ? p->base[a[1]].lo : -(wide)p->base[a[1]].lo;
            wide l = r.lo == INT64_MIN ? INT64_MIN : r.lo - c, h = r.hi == INT64_MAX ? INT64_MAX : r.hi - c;
            r = (ir_range){(int64_t)(l < INT64_MIN ? INT64_MIN : l),
                           (int64_t)(h > INT64_MAX ? INT64_MAX : h)};
            v = a[0];
        } else {
            return;
        }
    }
}

static void learn(prover *p, uint32_t cond, bool holds, int depth)
{
    const ir_insn *d = ir_def(p->ir, cond);
    if (!d || depth > MAX_DEPTH)
        return;
    const uint32_t *a = ir_args(p->ir, d);
    static const uint8_t opposite[IR_NOPS] = {
        [IR_LT] = IR_GE, [IR_LE] = IR_GT, [IR_GT] = IR_LE, [IR_GE] = IR_LT, [IR_EQ] = IR_NE, [IR_NE] = IR_EQ};
    uint16_t op = d->op;
    if (op == IR_BROADCAST || op == IR_RESHAPE) {
        learn(p, a[0], holds, depth + 1);
    } else if (op == IR_NOT) {
        learn(p, a[0], !holds, depth + 1);
    } else if (op == (holds ? IR_AND : IR_OR)) {
        learn(p, a[0], holds, depth + 1);
        learn(p, a[1], holds, depth + 1);
    } else if (opposite[op] && dtype_is_int(ir_typeof(p->ir, a[0]).dtype)) {
        ir_range x = p->base[a[0]], y = p->base[a[1]];
        op = holds ? op : opposite[op];
        if (op == IR_LT || op == IR_LE) {
            add_fact(p, a[0], INT64_MIN, (wide)y.hi - (op == IR_LT));
            add_fact(p, a[1], (wide)x.lo + (op == IR_LT), INT64_MAX);
        } else if (op == IR_GT || op == IR_GE) {
            add_fact(p, a[0], (wide)y.lo + (op == IR_GT), INT64_MAX);
            add_fact(p, a[1], INT64_MIN, (wide)x.hi - (op == IR_GT));
        } else if (op == IR_EQ) {
            add_fact(p, a[0], y.lo, y.hi);
            add_fact(p, a[1], x.lo, x.hi);
        }
    }
}

static int64_t elements(const prover *p, uint32_t buf)
{
    return buf > (uint32_t)p->ir->nparams ? ir_typeof(p->ir, buf).dim[0]
         : p->env->count                  ? p->env->count[buf - 1]
                                          : -1;
}

static ir_range query(prover *p, uint32_t v)
{
    p->now++;
    return refined(p, v);
}

/* base + j*stride + [0, extra] for j in [0, n): all inside? */
static bool strided_inside(prover *p, uint32_t buf, uint32_t base, uint32_t stride, wide n, wide extra)
{
    ir_range b = query(p, base), s = query(p, stride);
    wide step = n - 1, lo = b.lo + (s.lo < 0 ? step * s.lo : 0),
         hi = b.hi + (s.hi > 0 ? step * s.hi : 0) + extra;
    return n <= 0 || (lo >= 0 && hi < elements(p, buf));
}

static bool access_inside(prover *p, const ir_insn *in)
{
    const uint32_t *a = ir_args(p->ir, in);
    uint32_t mask = in->op == IR_BOUNDS ? 0 : ir_mask(p->ir, in);
    int outer = p->nfacts;
    bool inside = true;
    if (mask)
        learn(p, mask, true, 0);
    if (in->op == IR_LOAD || in->op == IR_STORE || ir_is_atomic(in)) {
        ir_range r = query(p, a[1]), m = mask ? p->base[mask] : sure(true);
        inside = m.hi == 0 || (r.lo >= 0 && r.hi < elements(p, a[0]));
    }
    switch (in->op) {
    case IR_DOT: {
        wide n = query(p, a[6]).hi;
        inside = strided_inside(p, a[0], a[1], a[2], n, 0) && strided_inside(p, a[3], a[4], a[5], n, 0);
        break;
    }
    case IR_MMA:
        inside = strided_inside(p, a[0], a[1], a[2], 8, 7) && strided_inside(p, a[3], a[4], a[5], 8, 7);
        break;
    case IR_MMA_STORE: inside = strided_inside(p, a[0], a[1], a[2], 8, 7); break;
    default: break;
    }
    p->nfacts = outer;
    return inside;
}

/* Facts that hold inside ifs come and go with the region. */
static bool prove_all(prover *p, uint32_t *insn, arena *mem)
{
    const eas_ir *ir = p->ir;
    struct {
        uint32_t at;
        int facts;
    } *stack = arena_alloc(mem, (ir->ninsns + 1) * sizeof *stack);
    uint32_t depth = 0;
    if (!stack)
        return false;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        switch (in->op) {
        case IR_LOOP:
        case IR_WHILE:
        case IR_IF:
            stack[depth].at = i;
            stack[depth++].facts = p->nfacts;
            if (in->op == IR_IF)
                learn(p, ir_args(ir, in)[0], true, 0);
            break;
        case IR_ELSE:
            p->nfacts = stack[depth - 1].facts;
            learn(p, ir_args(ir, &ir->insns[stack[depth - 1].at])[0], false, 0);
            break;
        case IR_ENDLOOP:
        case IR_ENDWHILE:
        case IR_ENDIF: p->nfacts = stack[--depth].facts; break;
        default:
            if (access_inside(p, in))
                break;
            p->doubts = true;
            if (!p->by_data[i]) {
                if (insn)
                    *insn = i;
                return false;
            }
        }
    }
    return true;
}

static bool prover_init(prover *p, const eas_ir *ir, const ir_env *env, arena *mem)
{
    *p = (prover){.ir = ir, .env = env, .info = ir_analyse(ir), .base = ir_ranges(ir, env, mem)};
    p->stamp = arena_alloc(mem, ir->nvals * sizeof *p->stamp);
    p->memo = arena_alloc(mem, ir->nvals * sizeof *p->memo);
    p->by_data = ir_by_data(ir, mem);
    return p->base && p->stamp && p->memo && p->by_data;
}

/* ---- stores that are certain ---- */

bool *ir_depends(const eas_ir *ir, uint16_t op, int64_t imm, arena *mem)
{
    bool *r = arena_alloc(mem, ir->nvals);
    for (uint32_t i = 0; r && i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        const bool is =
            (in->op == op && in->imm == imm) || (in->op == IR_GLOBAL_ID && op == IR_PROGRAM_ID && !imm);
        for (int k = 0; k < in->nres; k++)
            r[in->res + (uint32_t)k] = is || any_data(ir, in, r);
    }
    return r;
}

/* Is the body that begins here (otherwise: the else of `in`) surely never entered? */
static bool skipped(const prover *p, const ir_insn *in, bool otherwise)
{
    const uint32_t *a = ir_args(p->ir, in);
    if (in->op == IR_IF)
        return otherwise ? p->base[a[0]].lo == 1 : p->base[a[0]].hi == 0;
    return in->op == IR_LOOP && p->base[a[2]].lo > 0 && p->base[a[0]].lo >= p->base[a[1]].hi;
}

static bool surely_writes(prover *p, const ir_insn *in, const bool *depends)
{
    const uint32_t *a = ir_args(p->ir, in), mask = in->op == IR_STORE ? ir_mask(p->ir, in) : 0;
    return in->op == IR_STORE && a[0] <= (uint32_t)p->ir->nparams && depends[a[1]] &&
           !(mask && p->base[mask].hi == 0) && access_inside(p, in);
}

/* The first store that is certain to happen and to depend on program_id(0). Walks the instructions with the
 * facts that the conditions of enclosing branches give. A branch whose condition is not known counts as
 * taken; one that is surely not taken is skipped. */
static uint32_t find_write(prover *p, arena *mem)
{
    const eas_ir *ir = p->ir;
    const bool *depends = ir_depends(ir, IR_PROGRAM_ID, 0, mem);
    const uint32_t *end = ir_region_ends(ir, mem);
    struct {
        uint32_t at;
        int facts;
    } *stack = arena_alloc(mem, (ir->ninsns + 1) * sizeof *stack);
    for (uint32_t i = 0, depth = 0; depends && end && stack && i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i], *op = depth ? &ir->insns[stack[depth - 1].at] : NULL;
        if (in->op == IR_LOOP || in->op == IR_WHILE || in->op == IR_IF) {
            stack[depth].at = i;
            stack[depth++].facts = p->nfacts;
            if (skipped(p, in, false))
                /* its else is skipped, too: a store that is missed is harmless, a wrong one is not */
                i = end[i] - 1;
            else if (in->op == IR_IF)
                learn(p, ir_args(ir, in)[0], true, 0);
        } else if (in->op == IR_ELSE) {
            p->nfacts = stack[depth - 1].facts;
            if (skipped(p, op, true))
                i = end[i] - 1;
            else
                learn(p, ir_args(ir, op)[0], false, 0);
        } else if (in->op == IR_ENDLOOP || in->op == IR_ENDWHILE || in->op == IR_ENDIF) {
            p->nfacts = stack[--depth].facts;
        } else if (surely_writes(p, in, depends)) {
            return i;
        }
    }
    return UINT32_MAX;
}

uint32_t ir_writes_inside(const eas_ir *ir, const ir_env *env)
{
    arena mem = {0};
    prover p;
    uint32_t r = prover_init(&p, ir, env, &mem) ? find_write(&p, &mem) : UINT32_MAX;
    arena_free(&mem);
    return r;
}

ir_proof ir_in_bounds(const eas_ir *ir, const ir_env *env, uint32_t *insn)
{
    arena mem = {0};
    prover p;
    if (insn)
        *insn = 0;
    bool ok = prover_init(&p, ir, env, &mem) && prove_all(&p, insn, &mem);
    arena_free(&mem);
    return !ok ? IR_PROVED_NONE : p.doubts ? IR_PROVED_INDEX : IR_PROVED_ALL;
}
