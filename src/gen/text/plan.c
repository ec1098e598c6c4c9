/* plan.c: decides, before anything is printed, where each block value is computed.
 *
 * A program's block is a loop over lanes. Instructions whose blocks have the same dims (but for 1s) share one
 * loop, a *group*, as long as running lane by lane means the same as running instruction by instruction: a
 * group ends where a buffer is touched again at other places, where a block of other dims comes, at barriers
 * and at the ends of regions. At most one group is open at a time, and scalars are printed before it.
 *
 *   remat    block values that are cheap and pure (offsets, masks) belong to no group: each loop computes
 * them for the lanes that it needs. So it does with loads, and values computed from them, if each of their
 * lanes is read once array    values that are needed outside their own loop, in an array with one element per
 * lane (arrays.c) inlined  comparisons that feed one `and`, so that a mask stands on one line dot4     four
 * dots over neighbouring columns, printed as one loop
 */
#include "ctext.h"

enum { REMAT_MAX = 64, LAZY_MAX = 24, INLINE_MAX = 16, DOT_WINDOW = 64 };

typedef struct planner {
    ct *g;
    uint32_t open;  /* the open group; 0: none */
    int rank;       /* its dims */
    int32_t dim[IR_MAX_RANK];
    VEC(ir_access) accesses; /* of the open group */
    VEC(ir_access) now;      /* of the instruction being planned */
    uint16_t *weight;     /* per value: instructions a recomputation costs */
    uint8_t *loads;       /* per recomputed value: loads are among them */
    uint8_t *inline_cost; /* per value */
} planner;

int ct_dims(ir_type t, int32_t dim[IR_MAX_RANK])
{
    int n = 0;
    for (int i = 0; i < t.rank; i++)
        if (t.dim[i] != 1)
            dim[n++] = t.dim[i];
    return n;
}

bool ct_picks(const eas_ir *ir, const ir_insn *in)
{
    return in->op == IR_SLICE && !is_block(ir_typeof(ir, in->res)) &&
           is_block(ir_typeof(ir, ir_args(ir, in)[0]));
}

bool ct_is_view(const eas_ir *ir, const ir_insn *in)
{
    bool view = in->op == IR_BROADCAST || in->op == IR_RESHAPE || ir_rows[in->op].rule == IR_RULE_MOVE;
    return view && !ct_picks(ir, in);
}

/* A trans that only moves axes of length 1. */
static bool keeps_order(const ir_insn *in, ir_type from)
{
    int last = -1;
    for (int d = 0; d < from.rank; d++) {
        int axis = ir_imm_perm(in->imm, d);
        if (from.dim[axis] == 1)
            continue;
        if (axis < last)
            return false;
        last = axis;
    }
    return true;
}

static bool keeps_index(const eas_ir *ir, const ir_insn *view)
{
    ir_type to = ir_typeof(ir, view->res), from = ir_typeof(ir, ir_args(ir, view)[0]);
    return view->op == IR_TRANS ? keeps_order(view, from) : ir_lanes(from) == ir_lanes(to);
}

uint32_t ct_leaf(const eas_ir *ir, uint32_t v, bool *aligned)
{
    *aligned = true;
    for (;;) {
        const ir_insn *d = ir_def(ir, v);
        if (!d || !ct_is_view(ir, d))
            return v;
        *aligned = *aligned && keeps_index(ir, d);
        v = ir_args(ir, d)[0];
    }
}

static bool small(int64_t x) { return x > -2048 && x < 2048; }

/* The offset changes by a constant other than 0 from lane to lane, so no two lanes of a block share it.
 * Blocks of one dim only. */
static bool distinct_lanes(const ct *g, uint32_t off)
{
    int64_t step;
    return ir_lane_step(g->linear, off, &step) && step && small(step);
}

/* ---- groups ---- */

static void close_group(planner *p)
{
    p->open = 0;
    p->accesses.len = 0;
}

static void open_group(planner *p, ir_type t, uint32_t i)
{
    close_group(p);
    p->open = ++p->g->ngroups;
    p->rank = ct_dims(t, p->dim);
    p->g->first[p->open] = i;
}

static bool clashes(const planner *p, ir_access x)
{
    for (uint32_t i = 0; i < p->accesses.len; i++) {
        ir_access y = p->accesses.at[i];
        if (!ct_shared(p->g, x.buf, y.buf) || !(x.store || y.store))
            continue;
        if (x.buf != y.buf || !x.off || x.off != y.off || !distinct_lanes(p->g, x.off))
            return true;
    }
    return false;
}

static void add_access(planner *p, ir_access x)
{
    if (!vec_push(&p->now, x))
        p->g->mem.oom = true;
}

/* What recomputing v loads. */
static void add_loads(planner *p, uint32_t v)
{
    const eas_ir *ir = p->g->ir;
    const ir_insn *in = ir_def(ir, v);
    if (!p->loads[v])
        return;
    if (in->op == IR_LOAD)
        add_access(p, (ir_access){ir_args(ir, in)[0], 0, false});
    for (int k = 0; k < in->nargs; k++)
        add_loads(p, ir_args(ir, in)[k]);
}

/* Into p->now: what an instruction touches, with what it recomputes. */
static void gather(planner *p, const ir_insn *in)
{
    ir_access x[2];
    int n = ir_accesses(p->g->ir, in, x);
    p->now.len = 0;
    for (int i = 0; i < n; i++)
        add_access(p, x[i]);
    for (int k = 0; k < in->nargs; k++)
        add_loads(p, ir_args(p->g->ir, in)[k]);
}

static bool any_clash(planner *p, const ir_insn *in)
{
    gather(p, in);
    for (uint32_t i = 0; i < p->now.len; i++)
        if (clashes(p, p->now.at[i]))
            return true;
    return false;
}

/* Does the instruction read a block of the open group: at all, or at other lanes than its own? */
static bool reads_open(const planner *p, const ir_insn *in, bool own_lane_too)
{
    const eas_ir *ir = p->g->ir;
    for (int k = 0; k < in->nargs && p->open; k++) {
        bool aligned;
        uint32_t def = ir->vals[ct_leaf(ir, ir_args(ir, in)[k], &aligned)].def;
        if (def != UINT32_MAX && p->g->group[def] == p->open && (own_lane_too || !aligned))
            return true;
    }
    return false;
}

/* Threads as lanes (g->origin) have no order between barriers, so that what one touches never concerns
 * another. Blocks with the same dims have the same row-major index in every lane, whatever reshapes lie
 * between them, so an instruction that joins a group needs its operands at its own lane. */
static void anchor(planner *p, uint32_t i, ir_type t)
{
    ct *g = p->g;
    const ir_insn *in = &g->ir->insns[i];
    int32_t dim[IR_MAX_RANK];
    int rank = ct_dims(t, dim);
    bool joins = p->open && rank == p->rank && !memcmp(dim, p->dim, (size_t)rank * sizeof *dim) &&
                 (g->origin || !any_clash(p, in)) && !reads_open(p, in, false);
    if (!joins)
        open_group(p, t, i);
    g->group[i] = p->open;
    g->last[p->open] = i;
    gather(p, in);
    for (uint32_t k = 0; k < p->now.len; k++)
        if (!vec_push(&p->accesses, p->now.at[k]))
            g->mem.oom = true;
}

static bool can_remat(planner *p, const ir_insn *in)
{
    const ct *g = p->g;
    uint32_t w = 1;
    bool loads = in->op == IR_LOAD;
    if (!(ir_rows[in->op].flags & IR_PURE) && !loads)
        return false;
    for (int k = 0; k < in->nargs; k++) {
        uint32_t a = ir_args(g->ir, in)[k];
        if (is_block(ir_typeof(g->ir, a))) {
            if (!g->remat[a])
                return false;
            w += p->weight[a];
            loads = loads || p->loads[a];
        }
    }
    if (loads && (w > LAZY_MAX || !(g->lazy[in->res] || ct_is_view(g->ir, in))))
        return false;
    p->loads[in->res] = loads;
    p->weight[in->res] = (uint16_t)(w > UINT16_MAX ? UINT16_MAX : w);
    return w <= REMAT_MAX;
}

ir_type ct_lanes_of(const eas_ir *ir, const ir_insn *in)
{
    if (in->op == IR_STORE || in->op == IR_ASSERT)
        return ir_typeof(ir, ir_args(ir, in)[in->op == IR_STORE]);
    return in->nres ? ir_typeof(ir, in->res) : ir_scalar(EAS_BOOL);
}

static void plan_insn(planner *p, uint32_t i)
{
    ct *g = p->g;
    const eas_ir *ir = g->ir;
    const ir_insn *in = &ir->insns[i];
    int flags = ir_rows[in->op].flags;
    if ((flags & IR_STRUCT) || ir_orders(in)) {
        close_group(p);
        return;
    }
    if (ir_is_fold(in)) { /* loops of its own */
        open_group(p, ir_typeof(ir, ir_args(ir, in)[0]), i);
        g->group[i] = p->open;
        g->last[p->open] = i;
        g->array[in->res] = is_block(ir_typeof(ir, in->res));
        close_group(p);
        return;
    }
    ir_type t = ct_lanes_of(ir, in);
    if (!is_block(t)) {
        if (p->open && (any_clash(p, in) || reads_open(p, in, true)))
            close_group(p);
        return;
    }
    if (in->nres && can_remat(p, in))
        g->remat[in->res] = 1;
    else if (!ct_is_view(ir, in))
        anchor(p, i, t);
}

/* ---- what follows from the groups ---- */

static bool joins_bools(const eas_ir *ir, const ir_insn *in)
{
    return (in->op == IR_AND || in->op == IR_OR || in->op == IR_NOT) &&
           ir_typeof(ir, in->res).dtype == EAS_BOOL;
}

static bool can_inline(const ct *g, uint32_t v, uint32_t user)
{
    const ir_insn *d = ir_def(g->ir, v);
    if (!d || g->uses[v] != 1 || g->array[v] || v == g->early)
        return false;
    uint32_t def = g->ir->vals[v].def;
    bool here = g->region[def] == g->region[user] && (g->remat[v] || g->group[def] == g->group[user]);
    return here && (ir_rows[d->op].rule == IR_RULE_CMP || joins_bools(g->ir, d));
}

static void find_inlined(planner *p)
{
    ct *g = p->g;
    const eas_ir *ir = g->ir;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        if (!in->nres)
            continue;
        p->inline_cost[in->res] = 1;
        if (!joins_bools(ir, in))
            continue;
        uint32_t cost = 0;
        for (int k = 0; k < in->nargs; k++) {
            uint32_t v = ir_args(ir, in)[k], c = p->inline_cost[v];
            if (can_inline(g, v, i) && cost + c <= INLINE_MAX) {
                g->inlined[v] = 1;
                cost += c;
            } else {
                cost++;
            }
        }
        p->inline_cost[in->res] = (uint8_t)cost;
    }
}

/* Four dots that differ only in a base that goes up by one: operand 4 is b_base. */
static bool neighbour(const eas_ir *ir, const ir_insn *x, const ir_insn *y, int64_t step)
{
    const uint32_t *a = ir_args(ir, x), *b = ir_args(ir, y);
    for (int k = 0; k < 7; k++)
        if (k != 4 && a[k] != b[k])
            return false;
    uint32_t ra, rb;
    int64_t ca, cb;
    ir_split_constant(ir, a[4], &ra, &ca);
    ir_split_constant(ir, b[4], &rb, &cb);
    return ra == rb && cb - ca == step;
}

static bool ends_dots(const ct *g, const ir_insn *in, const ir_insn *lead)
{
    const eas_ir *ir = g->ir;
    const uint32_t *a = ir_args(ir, in), *l = ir_args(ir, lead);
    if ((ir_rows[in->op].flags & IR_STRUCT) || ir_orders(in))
        return true;
    return ir_writes(in) && (ct_shared(g, a[0], l[0]) || ct_shared(g, a[0], l[3]));
}

static void find_dot4(ct *g, uint32_t i)
{
    const eas_ir *ir = g->ir;
    const ir_insn *lead = &ir->insns[i];
    uint32_t found[4] = {i};
    eas_dtype dt = ir_typeof(ir, ir_args(ir, lead)[3]).dtype;
    if (g->dot4[i] || (dt != EAS_F32 && dt != EAS_F16) || ir_typeof(ir, lead->res).dtype != EAS_F32)
        return;
    int n = 1;
    for (uint32_t j = i + 1; j < ir->ninsns && j < i + DOT_WINDOW && n < 4; j++) {
        const ir_insn *in = &ir->insns[j];
        if (ends_dots(g, in, lead))
            return;
        if (in->op == IR_DOT && !g->dot4[j] && g->group[j] == g->group[i] && neighbour(ir, lead, in, n))
            found[n++] = j;
    }
    if (n < 4)
        return;
    for (int k = 0; k < 4; k++)
        g->dot4[found[k]] = i + 1;
}

/* One masked store at top level and no other effect: threads whose mask is off have nothing to do. */
static uint32_t only_masked_store(const ct *g)
{
    const eas_ir *ir = g->ir;
    uint32_t mask = 0;
    if (g->has_shuffle) /* every thread must run, since others read its value */
        return 0;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        if (!(ir_rows[in->op].flags & IR_EFFECT))
            continue;
        if (mask || in->op != IR_STORE || in->nargs != 4 || g->region[i])
            return 0;
        mask = ir_args(ir, in)[3];
    }
    int64_t c;
    if (!mask || is_block(ir_typeof(ir, mask)) || ir_const_of(ir, mask, &c))
        return 0;
    uint32_t def = ir->vals[mask].def;
    return def != UINT32_MAX && g->region[def] ? 0 : mask;
}

static void find_regions(ct *g)
{
    const eas_ir *ir = g->ir;
    VEC(uint32_t) open = {0};
    uint32_t now = 0, next = 1;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        uint16_t op = ir->insns[i].op;
        bool ok = true;
        if (op == IR_ENDLOOP || op == IR_ENDWHILE || op == IR_ENDIF)
            now = open.len ? open.at[--open.len] : 0;
        g->region[i] = now;
        if (op == IR_LOOP || op == IR_WHILE || op == IR_IF)
            ok = vec_push(&open, now);
        if (op == IR_LOOP || op == IR_WHILE || op == IR_IF || op == IR_ELSE) {
            now = next++;
            g->parent[now] = open.len ? open.at[open.len - 1] : 0;
            g->opener[now] = i;
        }
        if (!ok)
            g->mem.oom = true;
    }
    vec_free(&open);
}

/* A Python float is an f64 that is only ever cast to what it meets: the host can round it once and hand
 * that over. */
eas_dtype gen_ctext_scalar(const eas_ir *ir, int i)
{
    ir_type t = ir_typeof(ir, (uint32_t)i + 1);
    int to = -1;
    if (t.kind != IR_VAL || t.dtype != EAS_F64)
        return t.dtype;
    for (uint32_t k = 0; k < ir->ninsns; k++) {
        const ir_insn *in = &ir->insns[k];
        for (int a = 0; a < in->nargs; a++)
            if (ir_args(ir, in)[a] == (uint32_t)i + 1) {
                int dt = in->op == IR_CAST ? ir_typeof(ir, in->res).dtype : EAS_F64;
                to = to == -1 || to == dt ? dt : EAS_F64;
            }
    }
    return to == -1 ? EAS_F32 : to == EAS_F32 || to == EAS_F16 || to == EAS_BF16 ? (eas_dtype)to : EAS_F64;
}

static void survey(ct *g)
{
    const eas_ir *ir = g->ir;
    uint8_t *rw = arena_alloc(&g->mem, (size_t)ir->nvals + 1);
    if (!rw)
        return;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        ir_access x[2];
        int n = ir_accesses(ir, in, x);
        for (int k = 0; k < n; k++)
            rw[x[k].buf] |= ir_is_atomic(in) ? 3 : x[k].store ? 2 : 1;
        for (int k = 0; k < in->nargs; k++)
            g->uses[ir_args(ir, in)[k]]++;
        g->has_dot |= in->op == IR_DOT || ir_is_fold(in);
        if (ir_is_fold(in))
            g->max_rank = IR_MAX_RANK; /* its loops are named by axis */
        g->has_bounds |= in->op == IR_BOUNDS || in->op == IR_ASSERT;
        g->has_shuffle |= in->op == IR_SIMD_SHUFFLE;
    }
    uint8_t all = 0;
    for (int i = 1; i <= ir->nparams; i++) {
        all |= rw[i];
        g->device_barrier |= rw[i] == 3 || (g->flags & GEN_ALIAS && all == 3);
    }
    for (uint32_t v = 1; v < ir->nvals; v++) {
        int32_t dim[IR_MAX_RANK];
        int rank = ir->vals[v].type.kind == IR_VAL ? ct_dims(ir->vals[v].type, dim) : 0;
        g->max_rank = rank > g->max_rank ? rank : g->max_rank;
    }
}

eas_status ct_plan(ct *g)
{
    const eas_ir *ir = g->ir;
    size_t nv = (size_t)ir->nvals + 1, ni = (size_t)ir->ninsns + 2;
    planner p = {.g = g};
    g->uses = arena_alloc(&g->mem, nv * sizeof *g->uses);
    g->region = arena_alloc(&g->mem, ni * sizeof *g->region);
    g->parent = arena_alloc(&g->mem, ni * sizeof *g->parent);
    g->opener = arena_alloc(&g->mem, ni * sizeof *g->opener);
    g->group = arena_alloc(&g->mem, ni * sizeof *g->group);
    g->first = arena_alloc(&g->mem, ni * sizeof *g->first);
    g->last = arena_alloc(&g->mem, ni * sizeof *g->last);
    g->remat = arena_alloc(&g->mem, nv);
    g->array = arena_alloc(&g->mem, nv);
    g->array_of = arena_alloc(&g->mem, nv * sizeof *g->array_of);
    g->inlined = arena_alloc(&g->mem, nv);
    g->dot4 = arena_alloc(&g->mem, ni * sizeof *g->dot4);
    g->param_dtype = arena_alloc(&g->mem, (size_t)ir->nparams + 1);
    g->lazy = arena_alloc(&g->mem, nv);
    g->linear = ir_linears_new(ir, NULL, &g->mem);
    g->reach = arena_alloc(&g->mem, nv * sizeof *g->reach);
    p.weight = arena_alloc(&g->mem, nv * sizeof *p.weight);
    p.loads = arena_alloc(&g->mem, nv);
    p.inline_cost = arena_alloc(&g->mem, nv);
    if (g->mem.oom)
        return base_fail_oom(nv);
    survey(g);
    find_regions(g);
    ct_find_lazy(g);
    for (int i = 0; i < ir->nparams; i++)
        g->param_dtype[i] = (uint8_t)gen_ctext_scalar(ir, i);
    for (uint32_t i = 0; i < ir->ninsns; i++)
        plan_insn(&p, i);
    vec_free(&p.accesses);
    vec_free(&p.now);
    ct_find_arrays(g);
    if (g->thread_mode)
        g->early = only_masked_store(g);
    find_inlined(&p);
    ct_share_arrays(g);
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op == IR_DOT)
            find_dot4(g, i);
    return g->mem.oom ? base_fail_oom(nv) : EAS_OK;
}
