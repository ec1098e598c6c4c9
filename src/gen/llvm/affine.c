/* affine.c: integer values of a chunk as base + stride*lane with a scalar base, and masks that hold for a
 * prefix of lanes.
 *
 * An affine value costs scalar instructions only, and tells a contiguous access from a gather. `ok` is enough
 * to make the vector (the sum wraps as the dtype does); addresses and comparisons need `exact`: no step of
 * the computation wrapped. 64-bit index arithmetic counts as exact; narrower dtypes are proved by intervals.
 */
#include "llvm.h"

static const aff NOT_AFFINE = {0};

static uint64_t min_u(uint64_t a, uint64_t b) { return a < b ? a : b; }

static bool is_const(V x, int64_t *k)
{
    if (!LLVMIsAConstantInt(x))
        return false;
    *k = LLVMConstIntGetSExtValue(x);
    return true;
}

static V plus(gen *g, V a, V b)
{
    int64_t k;
    if (is_const(a, &k) && k == 0)
        return b;
    if (is_const(b, &k) && k == 0)
        return a;
    return LLVMBuildAdd(g->b, a, b, "");
}

static V times(gen *g, V a, int64_t k) { return k == 1 ? a : LLVMBuildMul(g->b, a, k_int(g, k), ""); }

V affine_base(gen *g, aff a) { return a.k ? plus(g, a.base, k_int(g, a.k)) : a.base; }

static aff constant(gen *g, int64_t k)
{
    return (aff){ir_run_still(ir_low_bit((uint64_t)k)), k_int(g, 0), k};
}
static aff scalar(V base, uint64_t mult) { return (aff){ir_run_still(mult), base, 0}; }

static aff index_of(gen *g, chunk *c, map_t m) /* the index along dim 0 of a rank-1 value */
{
    const int d = map_get(m, 0);
    if (d == NODIM)
        return constant(g, 0);
    aff a = scalar(c->idx[d], 1);
    if (d == c->sh.rank - 1) {
        a.run.stride = 1;
        a.run.mult = c->align;
    }
    return a;
}

aff affine_identity(gen *g, chunk *c, const ir_insn *in, map_t m)
{
    aff a = index_of(g, c, m);
    const bool in_simd = c->n <= IR_SIMD && a.run.mult >= (uint64_t)c->n;
    switch (in->op) {
    case IR_ARANGE:
        a.k = in->imm;
        a.run.mult = min_u(a.run.mult, ir_low_bit((uint64_t)in->imm));
        return a;
    case IR_GLOBAL_ID:
        a.base = plus(g, a.base, times(g, g->id[0], in->imm));
        a.run.mult = min_u(a.run.mult, ir_low_bit((uint64_t)in->imm));
        return a;
    case IR_LANE_ID:
        if (!in_simd)
            return NOT_AFFINE;
        a.base = LLVMBuildAnd(g->b, a.base, k_int(g, IR_SIMD - 1), "");
        a.run.whole = false;
        return a;
    case IR_SG_ID:
        if (!in_simd)
            return NOT_AFFINE;
        a = scalar(LLVMBuildLShr(g->b, a.base, k_int(g, 5), ""), 1);
        a.run.whole = false;
        return a;
    default: return a;
    }
}

static aff sum(gen *g, uint16_t op, aff x, aff y)
{
    int64_t zero;
    aff r = {.run = ir_run_sum(op, &x.run, &y.run), .base = x.base};
    if (!r.run.ok)
        return NOT_AFFINE;
    if (op == IR_ADD) {
        r.base = plus(g, x.base, y.base);
        r.k = (int64_t)((uint64_t)x.k + (uint64_t)y.k);
    } else {
        if (!is_const(y.base, &zero) || zero)
            r.base = LLVMBuildSub(g->b, x.base, y.base, "");
        r.k = (int64_t)((uint64_t)x.k - (uint64_t)y.k);
    }
    return r;
}

static bool is_constant(const aff *a, int64_t *k)
{
    int64_t b;
    if (a->run.stride || !is_const(a->base, &b))
        return false;
    *k = (int64_t)((uint64_t)b + (uint64_t)a->k);
    return *k > -((int64_t)1 << 31) && *k < (int64_t)1 << 31;
}

static aff scaled(gen *g, aff x, int64_t c)
{
    aff r = {.run = ir_run_scaled(&x.run, c)};
    if (!r.run.ok)
        return NOT_AFFINE;
    if (__builtin_mul_overflow(x.k, c, &r.k)) {
        r.k = 0;
        r.base = times(g, affine_base(g, x), c);
    } else {
        r.base = times(g, x.base, c);
    }
    return r;
}

static aff product(gen *g, aff x, aff y)
{
    int64_t c;
    if (!x.run.ok || !y.run.ok)
        return NOT_AFFINE;
    aff r = {.run = ir_run_product(&x.run, &y.run)};
    if (is_constant(&y, &c))
        r = scaled(g, x, c);
    else if (is_constant(&x, &c))
        r = scaled(g, y, c);
    else if (r.run.ok)
        r.base = LLVMBuildMul(g->b, affine_base(g, x), affine_base(g, y), "");
    r.run.exact = r.run.ok && x.run.exact && y.run.exact;
    r.run.whole = x.run.whole && y.run.whole;
    return r;
}

/* (base + l) / k and % k for a chunk that does not cross a multiple of k */
static aff split(gen *g, chunk *c, uint16_t op, aff x, int64_t k)
{
    const bool quotient = op == IR_FLOORDIV || op == IR_TDIV, floors = op == IR_FLOORDIV || op == IR_MOD;
    aff r = {.run = ir_run_split(quotient, &x.run, k, c->n)};
    if (!r.run.ok)
        return NOT_AFFINE;
    const bool apart = floors && x.k % k == 0; /* a whole number of k's comes out in front */
    r.base = value_insn(g, op, EAS_I64, apart ? x.base : affine_base(g, x), k_int(g, k), NULL);
    r.k = quotient && apart ? x.k / k : 0;
    return r;
}

static bool nonnegative(gen *g, uint32_t v) { return g->p.range && g->p.range[v].lo >= 0; }

static aff divided(gen *g, chunk *c, const ir_insn *in, map_t m)
{
    const uint32_t *a = ir_args(g->ir, in);
    int64_t k;
    uint16_t op = in->op;
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    if (!ir_const_of(g->ir, a[1], &k))
        return NOT_AFFINE;
    if (dt == EAS_U64 && !nonnegative(g, a[0]))
        return NOT_AFFINE; /* it is divided as a signed number */
    if (op == IR_SHR) {
        if (k < 0 || k > 30)
            return NOT_AFFINE;
        k = (int64_t)1 << k;
        op = IR_FLOORDIV;
    }
    if (op == IR_AND) {
        if (k < 0 || ((k + 1) & k) || k >= (int64_t)1 << 31)
            return NOT_AFFINE;
        k++;
        op = IR_MOD;
    }
    if ((op == IR_TDIV || op == IR_TREM) && !nonnegative(g, a[0])) {
        if (affine_at(g, c, a[0], m).run.stride != 0)
            return NOT_AFFINE;
    } else if (op == IR_TDIV || op == IR_TREM) {
        op = op == IR_TDIV ? IR_FLOORDIV : IR_MOD;
    }
    return split(g, c, op, affine_at(g, c, a[0], m), k);
}

static aff casted(gen *g, chunk *c, const ir_insn *in, map_t m)
{
    const uint32_t s = ir_args(g->ir, in)[0];
    const eas_dtype from = (eas_dtype)ir_typeof(g->ir, s).dtype,
                    to = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    if (!dtype_is_int(from))
        return NOT_AFFINE;
    aff a = affine_at(g, c, s, m);
    if (!a.run.ok)
        return a;
    const bool wider = dtype_bits(to) > dtype_bits(from);
    if (wider && !a.run.exact)
        return NOT_AFFINE;
    if (!(wider && dtype_bits(to) == 64) &&
        /* a wider one neither, if it has no sign: less than nothing becomes much */
        !plan_cast_fits(&g->p, s, to))
        a.run.exact = false;
    return a;
}

static aff computed(gen *g, chunk *c, const ir_insn *in, map_t m)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    aff r;
    switch (in->op) {
    case IR_ADD:
    case IR_SUB: r = sum(g, in->op, affine_at(g, c, a[0], m), affine_at(g, c, a[1], m)); break;
    case IR_MUL: r = product(g, affine_at(g, c, a[0], m), affine_at(g, c, a[1], m)); break;
    case IR_SHL: {
        int64_t k;
        if (!ir_const_of(g->ir, a[1], &k) || k < 0 || k > 30 || k >= dtype_bits(dt))
            return NOT_AFFINE;
        r = product(g, affine_at(g, c, a[0], m), constant(g, (int64_t)1 << k));
        if (dtype_bits(dt) < 64)
            r.run.exact = false;
        return r;
    }
    case IR_FLOORDIV:
    case IR_MOD:
    case IR_TDIV:
    case IR_TREM:
    case IR_SHR:
    case IR_AND: return divided(g, c, in, m);
    case IR_CAST: return casted(g, c, in, m);
    default: return NOT_AFFINE;
    }
    if (r.run.ok && !plan_fits(&g->p, in->op, a[0], a[1], dt))
        r.run.exact = false;
    return r;
}

static bool ident_fits(gen *g, const ir_insn *in)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    const int64_t size = in->op == IR_ARANGE ? ir_typeof(g->ir, in->res).dim[0] : g->p.info.block;
    if (dtype_bits(dt) == 64)
        return true;
    if (in->op == IR_GLOBAL_ID)
        return false;
    const int64_t lo = in->op == IR_ARANGE ? in->imm : 0, hi = lo + size - 1;
    return lo >= dtype_min(dt) && hi <= (int64_t)dtype_max(dt);
}

static aff fresh(gen *g, chunk *c, uint32_t v, map_t m)
{
    const kind *x = &g->p.val[v];
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, v).dtype;
    if (x->cls == C_UNI) {
        int64_t k;
        V u = value_cast(g, c->sval[v], dt, EAS_I64);
        return is_const(u, &k) ? constant(g, k) : scalar(u, ir_multiple(g->ir, v));
    }
    if (x->cls != C_REMAT)
        return NOT_AFFINE;
    const ir_insn *in = ir_def(g->ir, v);
    if (in->op == IR_BROADCAST || in->op == IR_RESHAPE)
        return affine_at(g, c, ir_args(g->ir, in)[0], plan_source_map(&g->p, in, m));
    if (in->nargs == 0) {
        aff a = affine_identity(g, c, in, m);
        a.run.exact = a.run.exact && ident_fits(g, in);
        return a;
    }
    return computed(g, c, in, m);
}

aff affine_at(gen *g, chunk *c, uint32_t v, map_t m)
{
    if (!dtype_is_int((eas_dtype)ir_typeof(g->ir, v).dtype) || g->st)
        return NOT_AFFINE;
    if (g->p.val[v].cls == C_UNI)
        m = map_identity(0);
    const entry *e = chunk_find(c, v, m);
    if (e && e->has_aff)
        return e->a;
    const aff a = fresh(g, c, v, m);
    chunk_remember(g, c, v, m, NULL, &a);
    return a;
}

aff affine_of(gen *g, uint32_t v, map_t m) { return affine_at(g, g->c, v, m); }

V affine_vector(gen *g, aff a, eas_dtype dt)
{
    const int n = g->c->n;
    const T e = ty_of(g, dt, 0);
    V base = affine_base(g, a);
    if (dtype_bits(dt) < 64)
        base = LLVMBuildTrunc(g->b, base, e, "");
    V s = splat(g, base, n);
    return a.run.stride ? LLVMBuildAdd(g->b, s, k_iota(g, e, n, a.run.stride), "") : s;
}

/* ---- prefix masks ---- */

static V saturating(gen *g, const char *name, V a, V b)
{
    T t = ty_int(g, 64, 0);
    V x[2] = {a, b};
    return intrinsic(g, name, &t, 1, x, 2);
}

/* Indices first <= i < count of the inner dim; first NULL: 0; count NULL: no such form is known. */
typedef struct range {
    V first, count;
} range;

static V least(gen *g, V a, V b) { return saturating(g, "llvm.smin", a, b); }
static V most(gen *g, V a, V b) { return saturating(g, "llvm.smax", a, b); }

/* x < y (or <=) with x - y affine of stride 1, 0 or -1 in the inner index: which indices satisfy it? The
 * chunk stands at index 0. */
static range range_below(gen *g, aff x, aff y, bool or_equal)
{
    const int64_t n = g->c->sh.dim[g->c->sh.rank - 1];
    if (x.run.stride == 0 && y.run.stride == 0) {
        V c =
            LLVMBuildICmp(g->b, or_equal ? LLVMIntSLE : LLVMIntSLT, affine_base(g, x), affine_base(g, y), "");
        return (range){NULL, sel(g, c, k_int(g, n), k_int(g, 0))};
    }
    if (x.run.stride + y.run.stride != 1 || (x.run.stride && y.run.stride))
        return (range){0};
    if (x.run.stride) {
        V d = saturating(g, "llvm.ssub.sat", affine_base(g, y), affine_base(g, x));
        return (range){NULL, or_equal ? saturating(g, "llvm.sadd.sat", d, k_int(g, 1)) : d};
    }
    V d = saturating(g, "llvm.ssub.sat", affine_base(g, x), affine_base(g, y));
    return (range){or_equal ? d : saturating(g, "llvm.sadd.sat", d, k_int(g, 1)), k_int(g, n)};
}

static range compare_range(gen *g, const ir_insn *in, map_t m)
{
    if (in->nargs < 2)
        return (range){0};
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, a[0]).dtype;
    if (!dtype_is_int(dt) || (dt == EAS_U64 && !(nonnegative(g, a[0]) && nonnegative(g, a[1]))))
        return (range){0};
    const aff x = affine_of(g, a[0], m), y = affine_of(g, a[1], m);
    if (!x.run.ok || !y.run.ok || !x.run.exact || !y.run.exact || !x.run.whole || !y.run.whole)
        return (range){0};
    switch (in->op) {
    case IR_LT: return range_below(g, x, y, false);
    case IR_LE: return range_below(g, x, y, true);
    case IR_GT: return range_below(g, y, x, false);
    case IR_GE: return range_below(g, y, x, true);
    default: return (range){0};
    }
}

static prefix *find_prefix(gen *g, uint32_t v)
{
    for (int i = 0; i < g->c->npre; i++)
        if (g->c->pre[i].v == v)
            return &g->c->pre[i];
    return NULL;
}

static void enter_prefix(gen *g, uint32_t v, range r)
{
    prefix *old = g->c->pre;
    g->c->pre = arena_alloc(&g->mem, sizeof *old * (size_t)(g->c->npre + 1));
    if (!g->c->pre) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        g->c->npre = 0;
        return;
    }
    if (old)
        memcpy(g->c->pre, old, sizeof *old * (size_t)g->c->npre);
    g->c->pre[g->c->npre++] = (prefix){v, r.count, r.first};
}

bool affine_early(gen *g, uint32_t v)
{
    const kind *x = &g->p.val[v];
    const ir_insn *in = ir_def(g->ir, v);
    if (x->cls == C_UNI)
        return !(g->p.made[v].inside && g->p.made[v].seg == g->seg->id);
    if (x->cls != C_REMAT)
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (!affine_early(g, ir_args(g->ir, in)[k]))
            return false;
    return true;
}

/* Is v made where the whole segment can see it? */
static bool visible(gen *g, uint32_t v, uint32_t top)
{
    const uint32_t def = g->ir->vals[v].def;
    if (def == UINT32_MAX)
        return true;
    for (uint32_t r = g->p.parent[top];; r = g->p.parent[r]) {
        if (g->p.parent[def] == r)
            return true;
        if (r == UINT32_MAX)
            return false;
    }
}

static V min_v(gen *g, V a, V b)
{
    return !a ? b : !b ? a : sel(g, LLVMBuildICmp(g->b, LLVMIntSLT, a, b, ""), a, b);
}

static range leaf_range(gen *g, uint32_t v, map_t m)
{
    const kind *x = &g->p.val[v];
    const int64_t n = g->c->sh.dim[g->c->sh.rank - 1];
    if (x->cls == C_UNI)
        return (range){NULL, sel(g, g->sval[v], k_int(g, n), k_int(g, 0))};
    const ir_insn *in = ir_def(g->ir, v);
    if (x->cls != C_REMAT || !in)
        return (range){0};
    if (in->op == IR_BROADCAST || in->op == IR_RESHAPE)
        return leaf_range(g, ir_args(g->ir, in)[0], plan_source_map(&g->p, in, m));
    if (in->op != IR_AND)
        return compare_range(g, in, m);
    range a = leaf_range(g, ir_args(g->ir, in)[0], m), b = leaf_range(g, ir_args(g->ir, in)[1], m);
    if (!a.count || !b.count)
        return (range){0};
    return (range){!a.first   ? b.first
                   : !b.first ? a.first
                              : most(g, a.first, b.first),
                   least(g, a.count, b.count)};
}

static V clamped(gen *g, V count) /* to 0 .. size of the inner dim */
{
    return most(g, least(g, count, k_int(g, g->c->sh.dim[g->c->sh.rank - 1])), k_int(g, 0));
}

/* Enters the prefix leaves of a conjunction; gives the least of their counts, NULL if there is none. */
static V collect(gen *g, uint32_t v, uint32_t top, int depth)
{
    const ir_insn *in = ir_def(g->ir, v);
    prefix *known = find_prefix(g, v);
    if (known)
        return known->count;
    if (depth > 32 || !visible(g, v, top))
        return NULL;
    if (in && in->op == IR_AND && g->p.val[v].cls == C_REMAT)
        return min_v(g, collect(g, ir_args(g->ir, in)[0], top, depth + 1),
                     collect(g, ir_args(g->ir, in)[1], top, depth + 1));
    range r = affine_early(g, v) ? leaf_range(g, v, seg_map(g)) : (range){0};
    /* reductions join by lane number from index 0 on: for them only masks that begin there are known */
    if (!r.count || (r.first && (g->seg->reduces || g->seg->at_once)))
        return NULL;
    r.count = clamped(g, r.count);
    r.first = r.first ? clamped(g, r.first) : NULL;
    enter_prefix(g, v, r);
    return r.count;
}

static bool lives_out(gen *g, const segment *s)
{
    if (s->reduces)
        return true;
    for (uint32_t v = 1; v < g->ir->nvals; v++)
        if (g->p.made[v].seg == s->id && plan_in_memory(&g->p, v))
            return true;
    for (uint32_t i = 0; i < s->items.len; i++)
        if (s->items.at[i].insn == UINT32_MAX)
            return true;
    return false;
}

static uint32_t item_end(gen *g, const item *it)
{
    const uint16_t op = g->ir->insns[it->insn].op;
    return op == IR_LOOP || op == IR_WHILE || op == IR_IF ? g->p.end[it->insn] : it->insn;
}

/* The mask of an instruction, or the condition of a branch that lanes take apart; 0: none. */
static uint32_t tested(gen *g, const ir_insn *in)
{
    if (in->op != IR_IF)
        return ir_mask(g->ir, in);
    const uint32_t cond = ir_args(g->ir, in)[0];
    return g->p.val[cond].cls == C_UNI ? 0 : cond;
}

V affine_prefixes(gen *g, segment *s)
{
    V limit = NULL;
    bool all = !lives_out(g, s);
    for (uint32_t i = 0; i < s->items.len; i++) {
        const item *it = &s->items.at[i];
        if (it->insn == UINT32_MAX)
            continue;
        for (uint32_t k = it->insn; k <= item_end(g, it); k++) {
            const ir_insn *in = &g->ir->insns[k];
            const uint32_t mask = tested(g, in);
            V count = mask ? collect(g, mask, it->insn, 0) : NULL;
            if (!ir_writes(in) && in->op != IR_BOUNDS && in->op != IR_ASSERT)
                continue;
            if (!count)
                all = false;
            else
                limit =
                    !limit ? count : sel(g, LLVMBuildICmp(g->b, LLVMIntSGT, limit, count, ""), limit, count);
        }
    }
    return all ? limit : NULL;
}

static V lanes_before(gen *g, V count)
{
    const int n = g->c->n;
    V l = most(g, least(g, count, k_int(g, n)), k_int(g, 0));
    l = splat(g, LLVMBuildTrunc(g->b, l, ty_int(g, 32, 0), ""), n);
    return LLVMBuildICmp(g->b, LLVMIntULT, k_iota(g, ty_int(g, 32, 0), n, 1), l, "");
}

V affine_prefix_vector(gen *g, uint32_t v)
{
    const prefix *p = find_prefix(g, v);
    const int n = g->c->n;
    if (!p)
        return NULL;
    if (g->c->full)
        return k_like(g, ty_int(g, 1, n), 1);
    V left = LLVMBuildSub(g->b, p->count, g->c->idx[g->c->sh.rank - 1], "");
    V below = lanes_before(g, left);
    if (!p->first)
        return below;
    V skip = LLVMBuildSub(g->b, p->first, g->c->idx[g->c->sh.rank - 1], "");
    return LLVMBuildAnd(g->b, below, LLVMBuildNot(g->b, lanes_before(g, skip), ""), "");
}

/* Known to hold for every lane: a constant, a prefix mask in a full chunk, or a conjunction of such. */
bool affine_holds(gen *g, uint32_t v)
{
    int64_t k;
    const ir_insn *in = ir_def(g->ir, v);
    if (ir_const_of(g->ir, v, &k))
        return k != 0;
    if (g->c->full && find_prefix(g, v))
        return true;
    if (!in || in->op != IR_AND || g->p.val[v].cls == C_UNI)
        return false;
    return affine_holds(g, ir_args(g->ir, in)[0]) && affine_holds(g, ir_args(g->ir, in)[1]);
}

/* ---- masks of a round ---- */

/* Is everything that v is made from there: made before `opener`, by it (a counter, what a loop carries), or
 * by an instruction that was run early? */
static bool there(gen *g, uint32_t v, uint32_t opener, const bool *early)
{
    const uint32_t def = g->ir->vals[v].def;
    if (g->p.val[v].cls == C_UNI)
        return def == UINT32_MAX || def <= opener || early[v];
    if (g->p.val[v].cls != C_REMAT)
        return false;
    const ir_insn *in = &g->ir->insns[def];
    for (int k = 0; k < in->nargs; k++)
        if (!there(g, ir_args(g->ir, in)[k], opener, early))
            return false;
    return true;
}

/* Runs the uniform instructions of a body that need nothing of it but its counter. */
static void run_early(gen *g, uint32_t opener, bool *early)
{
    for (uint32_t i = opener + 1; i < g->p.end[opener]; i++) {
        const ir_insn *in = &g->ir->insns[i];
        bool ok = g->p.parent[i] == opener && in->res && g->p.val[in->res].cls == C_UNI &&
                  (ir_rows[in->op].flags & IR_PURE) &&
                  dtype_is_int((eas_dtype)ir_typeof(g->ir, in->res).dtype);
        for (int k = 0; ok && k < in->nargs; k++)
            ok = there(g, ir_args(g->ir, in)[k], opener, early);
        if (!ok)
            continue;
        scalar_insn(g, i);
        early[in->res] = true;
    }
}

static V hold_all(gen *g, uint32_t v, uint32_t opener, const bool *early, V so_far)
{
    const ir_insn *in = ir_def(g->ir, v);
    if (!in || g->p.val[v].cls != C_REMAT || find_prefix(g, v))
        return so_far;
    if (in->op == IR_AND)
        return hold_all(g, ir_args(g->ir, in)[1], opener, early,
                        hold_all(g, ir_args(g->ir, in)[0], opener, early, so_far));
    range r = there(g, v, opener, early) ? leaf_range(g, v, seg_map(g)) : (range){0};
    if (!r.count)
        return so_far;
    enter_prefix(g, v, r);
    V on = LLVMBuildICmp(g->b, LLVMIntSGE, r.count, k_int(g, g->c->n), "");
    if (r.first)
        on = LLVMBuildAnd(g->b, on, LLVMBuildICmp(g->b, LLVMIntSLE, r.first, k_int(g, 0), ""), "");
    return so_far ? LLVMBuildAnd(g->b, so_far, on, "") : on;
}

V affine_round(gen *g, uint32_t opener)
{
    V all = NULL;
    bool *early = arena_alloc(&g->mem, sizeof *early * (g->ir->nvals + 1));
    if (!early) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return NULL;
    }
    memset(early, 0, sizeof *early * (g->ir->nvals + 1));
    run_early(g, opener, early);
    for (uint32_t i = opener + 1; i < g->p.end[opener] && !g->st; i++) {
        const uint32_t mask = tested(g, &g->ir->insns[i]);
        if (mask)
            all = hold_all(g, mask, opener, early, all);
    }
    return all;
}
