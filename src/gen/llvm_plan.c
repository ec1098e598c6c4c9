/* llvm_plan.c: decides how a kernel runs on the CPU; knows nothing of LLVM.
 *
 *   shapes -> uniform values -> classes -> steps (scalar code, segments, regions) -> slots in scratch
 *
 * Invariants
 *   - Everything in one segment may be executed chunk after chunk: no two accesses of it can touch one element from different
 *     lanes when one of them is a store (SPMD; in thread mode the kernel's barriers say so).
 *   - A C_BLOCK that is wanted outside its segment, or through an index map that is not the identity, has a slot.
 *   - Scalar steps that stand between instructions of a segment are pure and were moved in front of it.
 */
#include "llvm.h"

enum { REMAT_COST = 24 };
static const uint32_t NO_PARENT = UINT32_MAX;

/* ---- shapes and maps ---- */

int64_t shape_lanes(const shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < s->rank; i++)
        n *= s->dim[i];
    return n;
}

bool shape_eq(const shape *a, const shape *b) { return a->rank == b->rank && memcmp(a->dim, b->dim, sizeof a->dim[0] * (size_t)a->rank) == 0; }

shape plan_shape(const plan *p, ir_type t)
{
    shape s = {0};
    (void)p;
    for (int i = 0; i < t.rank; i++)
        if (t.dim[i] != 1)
            s.dim[s.rank++] = t.dim[i];
    return s;
}

map_t map_identity(int rank)
{
    map_t m = 0;
    for (int d = 0; d < 4; d++)
        m |= (map_t)((d < rank ? d : NODIM) << (4 * d));
    return m;
}

static map_t map_set(map_t m, int d, int to) { return (map_t)((m & ~(15 << (4 * d))) | to << (4 * d)); }

int plan_canon_dim(ir_type t, int d)
{
    int k = 0;
    if (t.dim[d] == 1)
        return NODIM;
    for (int i = 0; i < d; i++)
        k += t.dim[i] != 1;
    return k;
}

static map_t broadcast_map(ir_type from, ir_type to, map_t m)
{
    map_t r = map_identity(0);
    for (int d = 0; d < from.rank; d++) {
        const int s = plan_canon_dim(from, d), t = plan_canon_dim(to, d + to.rank - from.rank);
        if (s != NODIM)
            r = map_set(r, s, map_get(m, t));
    }
    return r;
}

/* The last two dims change places. */
static bool swaps(const plan *p, const ir_insn *in)
{
    const ir_type from = ir_typeof(p->ir, ir_args(p->ir, in)[0]), to = ir_typeof(p->ir, in->res);
    const int rank = plan_shape(p, from).rank;
    for (int d = 0, c = 0; d < to.rank; d++) {
        if (to.dim[d] == 1)
            continue;
        const int src = plan_canon_dim(from, ir_imm_perm(in->imm, d));
        if (src != (c == rank - 2 ? rank - 1 : c == rank - 1 ? rank - 2 : c))
            return false;
        c++;
    }
    return rank >= 2;
}

bool plan_whole(const plan *p, const ir_insn *in)
{
    if (in->op == IR_MATMUL && p->val[in->res].cls == C_UNI)
        return p->val[ir_args(p->ir, in)[0]].sh.rank > 0;
    if (!in->res || p->val[in->res].cls != C_BLOCK)
        return false;
    return in->op == IR_MATMUL || ir_rows[in->op].rule == IR_RULE_SCAN ||
           (in->op == IR_TRANS && p->val[ir_args(p->ir, in)[0]].cls == C_BLOCK && swaps(p, in));
}

map_t plan_source_map(const plan *p, const ir_insn *in, map_t m)
{
    const uint32_t src = ir_args(p->ir, in)[0];
    return in->op == IR_BROADCAST ? broadcast_map(ir_typeof(p->ir, src), ir_typeof(p->ir, in->res), m) : m;
}

static bool trivial_reshape(const plan *p, const ir_insn *in)
{
    const shape a = plan_shape(p, ir_typeof(p->ir, ir_args(p->ir, in)[0])), b = plan_shape(p, ir_typeof(p->ir, in->res));
    return shape_eq(&a, &b);
}

view plan_resolve(const plan *p, uint32_t v, map_t m)
{
    view w = {.v = v, .m = m};
    while (p->val[w.v].cls == C_VIEW) {
        const ir_insn *in = ir_def(p->ir, w.v);
        const uint32_t src = ir_args(p->ir, in)[0];
        if (in->op == IR_BROADCAST) {
            w.m = broadcast_map(ir_typeof(p->ir, src), ir_typeof(p->ir, w.v), w.m);
        } else if (!trivial_reshape(p, in)) {
            w.linear = true;
            w.lin = p->val[w.v].sh;
            w.linmap = w.m;
            w.v = src;
            return w; /* classes make sure that src is a C_BLOCK */
        }
        w.v = src;
    }
    return w;
}

/* ---- uniform values ---- */

static bool args_uniform(const plan *p, const ir_insn *in, int from, const bool *uni)
{
    for (int i = from; i < in->nargs; i++) {
        const uint32_t a = ir_args(p->ir, in)[i];
        if (ir_typeof(p->ir, a).kind == IR_VAL && !uni[a])
            return false;
        if (ir_typeof(p->ir, a).kind == IR_FRAG)
            return false;
    }
    return true;
}

static bool varies_by_thread(const ir_insn *in)
{
    return in->op == IR_THREAD_ID || in->op == IR_GLOBAL_ID || in->op == IR_LANE_ID || in->op == IR_SG_ID ||
           (in->op == IR_LOCAL_ID && in->imm == 0) || ir_is_atomic(in);
}

static bool lower(bool *u, bool to)
{
    const bool changed = *u && !to;
    *u = *u && to;
    return changed;
}

/* A region is divergent when threads may take different ways through it. */
static bool divergent(const plan *p, uint32_t opener, const bool *uni)
{
    const ir_insn *in = &p->ir->insns[opener];
    const uint32_t *a = ir_args(p->ir, in);
    if (in->op == IR_IF)
        return !uni[a[0]];
    if (in->op == IR_LOOP)
        return !uni[a[0]] || !uni[a[1]] || !uni[a[2]];
    for (uint32_t i = opener; i <= p->end[opener]; i++)
        if (p->ir->insns[i].op == IR_DO && p->parent[i] == opener)
            return !uni[ir_args(p->ir, &p->ir->insns[i])[0]];
    return true;
}

static uint32_t else_of(const plan *p, uint32_t opener)
{
    for (uint32_t i = opener + 1; i < p->end[opener]; i++)
        if (p->ir->insns[i].op == IR_ELSE && p->parent[i] == opener)
            return i;
    return p->end[opener];
}

static bool uniform_loop(const plan *p, uint32_t i, bool *uni)
{
    const ir_insn *in = &p->ir->insns[i], *end = &p->ir->insns[p->end[i]];
    const int head = in->op == IR_LOOP ? 3 : 0, first = in->op == IR_LOOP ? 1 : 0;
    const uint32_t *a = ir_args(p->ir, in), *next = ir_args(p->ir, end);
    const bool div = divergent(p, i, uni);
    bool changed = false;
    if (first)
        changed |= lower(&uni[in->res], uni[a[0]] && uni[a[2]]);
    for (int k = 0; k < end->nargs; k++) {
        const bool u = !div && uni[a[head + k]] && uni[next[k]];
        changed |= lower(&uni[in->res + (uint32_t)(first + k)], u);
        changed |= lower(&uni[end->res + (uint32_t)k], u);
    }
    return changed;
}

static bool uniform_if(const plan *p, uint32_t i, bool *uni)
{
    const ir_insn *end = &p->ir->insns[p->end[i]], *els = &p->ir->insns[else_of(p, i)];
    bool changed = false;
    for (int k = 0; k < end->nres; k++)
        changed |= lower(&uni[end->res + (uint32_t)k], !divergent(p, i, uni) && uni[ir_args(p->ir, els)[k]] && uni[ir_args(p->ir, end)[k]]);
    return changed;
}

static bool uniform_insn(const plan *p, uint32_t i, bool *uni)
{
    const ir_insn *in = &p->ir->insns[i];
    if (in->op == IR_LOOP || in->op == IR_WHILE)
        return uniform_loop(p, i, uni);
    if (in->op == IR_IF)
        return uniform_if(p, i, uni);
    if (!in->res || (ir_rows[in->op].flags & IR_STRUCT))
        return false;
    return lower(&uni[in->res], !varies_by_thread(in) && args_uniform(p, in, 0, uni));
}

static void find_uniform(plan *p, bool *uni)
{
    const bool spmd = p->info.mode == EAS_MODE_SPMD;
    for (uint32_t v = 1; v < p->ir->nvals; v++) {
        const ir_type t = p->ir->vals[v].type;
        uni[v] = t.kind == IR_VAL && (!spmd || ir_lanes(t) == 1);
    }
    for (bool changed = !spmd; changed;) {
        changed = false;
        for (uint32_t i = 0; i < p->ir->ninsns; i++)
            changed |= uniform_insn(p, i, uni);
    }
}

/* ---- classes ---- */

static bool is_view_op(const ir_insn *in) { return in->op == IR_BROADCAST || in->op == IR_RESHAPE; }

static bool expensive(const plan *p, const ir_insn *in)
{
    int64_t k;
    switch (in->op) {
    case IR_FLOORDIV:
    case IR_MOD:
    case IR_TDIV:
    case IR_TREM: return !ir_const_of(p->ir, ir_args(p->ir, in)[1], &k);
    case IR_DIV:
    case IR_SQRT: return true;
    default: return false;
    }
}

static bool can_remat(const plan *p, const ir_insn *in, uint16_t *cost)
{
    uint32_t c = 1;
    if (!(ir_rows[in->op].flags & IR_PURE) || ir_is_fold(in) || expensive(p, in))
        return false;
    for (int i = 0; i < in->nargs; i++) {
        const vinfo *a = &p->val[ir_args(p->ir, in)[i]];
        if (a->cls != C_UNI && a->cls != C_REMAT)
            return false;
        c += a->cls == C_REMAT ? a->cost : 0;
    }
    *cost = (uint16_t)(c > 1000 ? 1000 : c);
    return c <= REMAT_COST;
}

static uint8_t class_of(plan *p, const ir_insn *in, uint32_t v, const bool *uni, const bool *forced, const bool *lent)
{
    const ir_type t = p->ir->vals[v].type;
    if (t.kind == IR_FRAG)
        return C_FRAG;
    if (t.kind != IR_VAL)
        return C_NONE;
    if (uni[v])
        return C_UNI;
    if (lent[v])
        return C_LENT;
    if (forced[v])
        return C_BLOCK;
    if (is_view_op(in)) {
        const uint8_t src = p->val[ir_args(p->ir, in)[0]].cls;
        if (src == C_UNI)
            return C_REMAT;
        if (src == C_REMAT && (in->op == IR_BROADCAST || trivial_reshape(p, in))) {
            p->val[v].cost = p->val[ir_args(p->ir, in)[0]].cost;
            return C_REMAT;
        }
        return C_VIEW;
    }
    return can_remat(p, in, &p->val[v].cost) ? C_REMAT : C_BLOCK;
}

static void classify(plan *p, const bool *uni, bool *forced, const bool *lent)
{
    const bool spmd = p->info.mode == EAS_MODE_SPMD;
    for (uint32_t v = 1; v < p->ir->nvals; v++) {
        p->val[v].slot = -1;
        p->val[v].sh = spmd || uni[v] ? plan_shape(p, p->ir->vals[v].type) : (shape){1, {(int32_t)p->info.block}};
        if (p->ir->vals[v].def == UINT32_MAX)
            p->val[v].cls = p->ir->vals[v].type.kind == IR_VAL ? C_UNI : C_NONE;
    }
    for (uint32_t i = 0; i < p->ir->ninsns; i++) { /* what is read whole must lie in memory */
        const ir_insn *in = &p->ir->insns[i];
        const bool first = is_move(in) || (in->op == IR_RESHAPE && !trivial_reshape(p, in)) || (ir_is_fold(in) && !is_reduce(in));
        int64_t zero;
        for (int k = 0; first && k < (in->op == IR_MATMUL ? 3 : 1); k++)
            if (!uni[ir_args(p->ir, in)[k]] && !(k == 2 && ir_const_of(p->ir, ir_args(p->ir, in)[2], &zero)))
                forced[ir_args(p->ir, in)[k]] = true;
    }
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        for (uint32_t k = 0; k < in->nres; k++)
            p->val[in->res + k].cls = class_of(p, in, in->res + k, uni, forced, lent);
    }
}

/* ---- tiles ---- */

/* Rows of the right factor of a product that lie a large power of two apart would share a few sets of the cache: they are kept a line further apart, if nothing but
 * products reads the block. */
static void find_pitches(plan *p)
{
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        if (in->op != IR_MATMUL)
            continue;
        const uint32_t y = ir_args(p->ir, in)[1];
        const ir_type t = ir_typeof(p->ir, y);
        const ir_insn *def = ir_def(p->ir, y);
        const int64_t size = (int64_t)eas_dtype_size((eas_dtype)t.dtype);
        if (t.dim[0] > 1 && t.dim[1] * size % 256 == 0 && def && !(ir_rows[def->op].flags & IR_STRUCT) && (def->op == IR_TRANS || !ir_is_fold(def)))
            p->val[y].pitch = t.dim[1] + (int32_t)(64 / size);
    }
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        for (int k = 0; k < in->nargs; k++)
            if (in->op != IR_MATMUL || k != 1)
                p->val[ir_args(p->ir, in)[k]].pitch = 0;
    }
}

/* ---- accesses: what may touch one element from two lanes ---- */

typedef struct access {
    uint32_t buf, off, insn;
    bool store;
} access; /* off 0: anywhere */
typedef VEC(access) accesses;

static uint32_t strip(const plan *p, uint32_t v) /* casts that keep the order of lanes */
{
    const ir_insn *in = ir_def(p->ir, v);
    while (in && in->op == IR_CAST && dtype_is_int((eas_dtype)ir_typeof(p->ir, ir_args(p->ir, in)[0]).dtype)) {
        v = ir_args(p->ir, in)[0];
        in = ir_def(p->ir, v);
    }
    return v;
}

/* Different lanes of v surely differ: a rank-1 arange plus or minus something uniform, times a constant. */
static bool injective(const plan *p, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(p->ir, v = strip(p, v));
    int64_t k;
    if (!in || depth > 32 || p->val[v].sh.rank != 1)
        return false;
    const uint32_t *a = ir_args(p->ir, in);
    const bool wide = dtype_bits((eas_dtype)ir_typeof(p->ir, v).dtype) == 64;
    switch (in->op) {
    case IR_ARANGE: return wide;
    case IR_BROADCAST:
    case IR_RESHAPE: return shape_lanes(&p->val[a[0]].sh) == shape_lanes(&p->val[v].sh) && injective(p, a[0], depth + 1);
    case IR_ADD:
    case IR_SUB: {
        const bool x = shape_lanes(&p->val[a[0]].sh) > 1 && injective(p, a[0], depth + 1), y = injective(p, a[1], depth + 1);
        const ir_insn *dx = ir_def(p->ir, a[0]), *dy = ir_def(p->ir, a[1]);
        const bool ux = dx && is_view_op(dx) && p->val[ir_args(p->ir, dx)[0]].cls == C_UNI;
        const bool uy = dy && is_view_op(dy) && p->val[ir_args(p->ir, dy)[0]].cls == C_UNI;
        return wide && ((x && uy) || (y && ux));
    }
    case IR_MUL:
        return wide && ((ir_const_of(p->ir, a[1], &k) && k > 0 && k < 1 << 30 && injective(p, a[0], depth + 1)) ||
                        (ir_const_of(p->ir, a[0], &k) && k > 0 && k < 1 << 30 && injective(p, a[1], depth + 1)));
    default: return false;
    }
}

bool plan_injective(const plan *p, uint32_t off) { return injective(p, off, 0); }

static bool conflict(plan *p, const access *x, const access *y, uint32_t loop_begin)
{
    const ir_type bx = ir_typeof(p->ir, x->buf), by = ir_typeof(p->ir, y->buf);
    if (p->info.mode == EAS_MODE_THREAD || (!x->store && !y->store))
        return false;
    if (bx.kind != by.kind || (bx.kind == IR_TG && x->buf != y->buf))
        return false;
    const bool same_off =
        x->off && x->off == y->off && (loop_begin == UINT32_MAX || p->ir->vals[x->off].def < loop_begin || p->ir->vals[x->off].def == UINT32_MAX);
    if (x->buf == y->buf)
        return !(same_off && plan_injective(p, x->off));
    if (p->alias)
        return true;
    if (!(same_off && bx.dtype == by.dtype && plan_injective(p, x->off)))
        p->alias_sensitive = true;
    return false;
}

static bool conflicts(plan *p, const accesses *old, const accesses *add, uint32_t loop_begin)
{
    for (uint32_t i = 0; i < old->len; i++)
        for (uint32_t j = 0; j < add->len; j++)
            if (conflict(p, &old->at[i], &add->at[j], loop_begin))
                return true;
    return false;
}

static void add_accesses(plan *p, uint32_t i, accesses *out)
{
    const ir_insn *in = &p->ir->insns[i];
    const uint32_t *a = ir_args(p->ir, in);
    bool ok = true;
    if (in->op == IR_LOAD)
        ok = vec_push(out, ((access){a[0], a[1], i, false}));
    if (in->op == IR_STORE || ir_is_atomic(in))
        ok = vec_push(out, ((access){a[0], a[1], i, true}));
    if (in->op == IR_DOT || in->op == IR_MMA)
        ok = vec_push(out, ((access){a[0], 0, i, false})) && vec_push(out, ((access){a[3], 0, i, false}));
    if (in->op == IR_MMA_STORE)
        ok = vec_push(out, ((access){a[0], 0, i, true}));
    if (!ok)
        p->mem->oom = true;
}

/* ---- steps ---- */

static bool touches_memory(const ir_insn *in)
{
    return in->op == IR_LOAD || in->op == IR_STORE || in->op == IR_BOUNDS || in->op == IR_DOT || in->op == IR_ASSERT || ir_is_atomic(in);
}

static bool is_mma(const ir_insn *in) { return in->op == IR_MMA || in->op == IR_MMA_ZERO || in->op == IR_MMA_STORE; }

typedef struct planner {
    plan *p;
    steps *out;
    segment *open;
    accesses acc; /* of the open segment */
    bool views; /* the open segment reads slots through maps */
    uint32_t *iseg; /* per instruction: its segment, shared by all planners */
} planner;

static void push_step(planner *q, step s)
{
    if (!vec_push(&q->out->v, s))
        q->p->mem->oom = true;
}

static void close_segment(planner *q)
{
    if (!q->open)
        return;
    push_step(q, (step){.kind = S_SEGMENT, .seg = q->open});
    q->open = NULL;
    q->views = false;
    q->acc.len = 0;
}

static void open_segment(planner *q, shape sh, int kind)
{
    if (q->open && (int)q->open->kind == kind && shape_eq(&q->open->sh, &sh))
        return;
    close_segment(q);
    q->open = arena_alloc(q->p->mem, sizeof *q->open);
    if (!q->open)
        return;
    q->open->id = ++q->p->nsegs;
    q->open->sh = sh;
    q->open->kind = kind;
}

static void push_item(planner *q, item it)
{
    if (!q->open || !vec_push(&q->open->items, it))
        q->p->mem->oom = true;
}

bool plan_identity(const plan *p, const view *w, const shape *sh)
{
    return !w->linear && w->m == map_identity(sh->rank) && shape_eq(&p->val[w->v].sh, sh);
}

/* May an instruction that reads v join the open segment? Not if v is made in it and read through a map. */
static bool readable(planner *q, uint32_t v, const shape *sh)
{
    const view w = plan_resolve(q->p, v, map_identity(sh->rank));
    if (q->p->val[w.v].cls != C_BLOCK || plan_identity(q->p, &w, sh))
        return true;
    if (q->open && q->p->val[w.v].seg == q->open->id)
        return false;
    q->views = true;
    return true;
}

/* Does it wait for the end of the open segment? */
static bool waits(const planner *q, const ir_insn *in)
{
    for (int k = 0; k < in->nargs; k++)
        if (q->open && q->p->val[ir_args(q->p->ir, in)[k]].late == q->open->id)
            return true;
    return false;
}

/* What is recomputed from a value is late where that is. */
static void pass_on_late(planner *q, const ir_insn *in)
{
    vinfo *v = &q->p->val[in->res];
    for (int k = 0; k < in->nargs; k++)
        if (q->p->val[ir_args(q->p->ir, in)[k]].late > v->late)
            v->late = q->p->val[ir_args(q->p->ir, in)[k]].late;
}

/* The operand of a move is made in the open segment: not all of it is there yet. */
static bool half_made(planner *q, const ir_insn *in)
{
    if (!is_move(in))
        return false;
    const vinfo *src = &q->p->val[ir_args(q->p->ir, in)[0]];
    if (src->cls != C_BLOCK)
        return false;
    if (q->open && src->seg == q->open->id)
        return true;
    q->views = true;
    return false;
}

static bool uses_open(const planner *q, const ir_insn *in)
{
    for (int i = 0; i < in->nargs; i++) {
        const vinfo *a = &q->p->val[ir_args(q->p->ir, in)[i]];
        if (q->open && a->cls == C_UNI && a->inseg && a->seg == q->open->id)
            return true;
    }
    return false;
}

static void define_in(planner *q, uint32_t i)
{
    const ir_insn *in = &q->p->ir->insns[i];
    if (q->open == NULL)
        return;
    q->iseg[i] = q->open->id;
    for (uint32_t k = 0; k < in->nres; k++) {
        vinfo *v = &q->p->val[in->res + k];
        v->seg = q->open->id;
        if (v->cls == C_UNI)
            v->inseg = 1;
    }
}

/* the iteration shape of a block instruction */
static shape insn_shape(const plan *p, const ir_insn *in)
{
    if (in->op == IR_ASSERT && p->info.mode == EAS_MODE_SPMD)
        return p->val[ir_args(p->ir, in)[0]].sh;
    if (p->info.mode == EAS_MODE_THREAD)
        return (shape){1, {(int32_t)p->info.block}};
    if (in->op == IR_STORE || in->op == IR_BOUNDS)
        return p->val[ir_args(p->ir, in)[1]].sh;
    return p->val[is_reduce(in) ? ir_args(p->ir, in)[0] : in->res].sh;
}

static void plan_block(planner *q, uint32_t i)
{
    const ir_insn *in = &q->p->ir->insns[i];
    const shape sh = insn_shape(q->p, in);
    const int kind = is_mma(in) ? SEG_SIMDGROUPS : SEG_CHUNKS;
    accesses add = {0};
    add_accesses(q->p, i, &add);
    open_segment(q, sh, kind);
    bool ok = !conflicts(q->p, &q->acc, &add, UINT32_MAX) && !half_made(q, in);
    for (int k = 0; k < in->nargs; k++)
        ok = ok && readable(q, ir_args(q->p->ir, in)[k], &sh);
    if (!ok) {
        close_segment(q);
        open_segment(q, sh, kind);
        half_made(q, in);
        for (int k = 0; k < in->nargs; k++)
            readable(q, ir_args(q->p->ir, in)[k], &sh);
    }
    for (uint32_t k = 0; k < add.len; k++)
        if (!vec_push(&q->acc, add.at[k]))
            q->p->mem->oom = true;
    vec_free(&add);
    push_item(q, (item){.insn = i});
    define_in(q, i);
}

/* A reduction takes part in the segment of its operand; its result is there when that ends. */
static void plan_reduce(planner *q, uint32_t i)
{
    plan_block(q, i);
    vinfo *v = &q->p->val[q->p->ir->insns[i].res];
    if (!q->open)
        return;
    q->open->reduces = true;
    v->late = q->open->id;
    v->inseg = 0;
    v->seg = v->cls == C_UNI ? 0 : v->seg;
    v->needs_slot = v->cls == C_BLOCK;
}

static void plan_alone(planner *q, uint32_t i)
{
    const ir_insn *in = &q->p->ir->insns[i];
    close_segment(q);
    open_segment(q, q->p->val[in->res].sh, SEG_WHOLE);
    push_item(q, (item){.insn = i});
    define_in(q, i);
    q->p->val[in->res].needs_slot = 1;
    q->p->val[in->res].inseg = 0;
    if (q->p->val[in->res].cls == C_UNI)
        q->p->val[in->res].seg = 0;
    for (int k = 0; k < in->nargs; k++)
        q->p->val[ir_args(q->p->ir, in)[k]].needs_slot |= q->p->val[ir_args(q->p->ir, in)[k]].cls == C_BLOCK;
    if (q->p->val[in->res].cls == C_UNI) /* what may follow waits for it; else scalars pass, and a product can tell where its result will go */
        close_segment(q);
}

static void plan_scalar(planner *q, uint32_t i)
{
    const ir_insn *in = &q->p->ir->insns[i];
    if (half_made(q, in))
        close_segment(q);
    if (ir_rows[in->op].flags & IR_PURE) {
        if (uses_open(q, in)) {
            push_item(q, (item){.insn = i});
            define_in(q, i);
            return;
        }
    } else {
        accesses add = {0};
        add_accesses(q->p, i, &add);
        if (in->op == IR_STORE || in->op == IR_BOUNDS || ir_is_atomic(in) || uses_open(q, in) || conflicts(q->p, &q->acc, &add, UINT32_MAX))
            close_segment(q);
        vec_free(&add);
    }
    push_step(q, (step){.kind = S_SCALAR, .insn = i});
}

/* ---- regions ---- */

typedef struct scan {
    bool ok, any, mma, block;
    shape sh;
    accesses acc;
} scan;

static void scan_shape(scan *s, shape sh)
{
    if (s->any && !shape_eq(&s->sh, &sh))
        s->ok = false;
    s->any = true;
    s->sh = sh;
}

static void scan_insn(plan *p, uint32_t i, uint32_t opener, scan *s)
{
    const ir_insn *in = &p->ir->insns[i];
    const bool spmd = p->info.mode == EAS_MODE_SPMD;
    if (in->op == IR_BARRIER || (spmd && in->op == IR_FENCE) || in->op == IR_ALLOC_TG || (ir_is_fold(in) && p->val[ir_args(p->ir, in)[0]].sh.rank) ||
        plan_whole(p, in))
        s->ok = false;
    if (is_mma(in))
        s->mma = true;
    if (is_mma(in) || (!spmd && touches_memory(in)))
        scan_shape(s, insn_shape(p, in));
    if (!spmd && touches_memory(in))
        s->block = true;
    if (spmd && in->op == IR_ASSERT && p->val[ir_args(p->ir, in)[0]].sh.rank)
        scan_shape(s, p->val[ir_args(p->ir, in)[0]].sh);
    if (spmd && (in->op == IR_STORE || in->op == IR_BOUNDS || ir_is_atomic(in))) {
        const shape sh = p->val[ir_args(p->ir, in)[1]].sh;
        if (sh.rank == 0)
            s->ok = false;
        else
            scan_shape(s, sh);
    }
    for (uint32_t k = 0; k < in->nres; k++) {
        const vinfo *v = &p->val[in->res + k];
        if (v->cls != C_BLOCK && v->cls != C_FRAG)
            continue;
        scan_shape(s, v->cls == C_FRAG ? (shape){1, {(int32_t)p->info.block}} : v->sh);
        if (v->cls == C_BLOCK)
            s->block = true;
        else
            s->mma = true;
    }
    if (is_move(in) && p->val[ir_args(p->ir, in)[0]].cls == C_BLOCK) {
        const uint32_t def = p->ir->vals[ir_args(p->ir, in)[0]].def;
        if (def == UINT32_MAX || def >= opener)
            s->ok = false;
    }
    for (int k = 0; k < in->nargs && s->any; k++) { /* everything must be readable lane by lane */
        const uint32_t a = ir_args(p->ir, in)[k];
        if (p->val[a].cls != C_VIEW)
            continue;
        const view w = plan_resolve(p, a, map_identity(p->val[a].sh.rank));
        if (!plan_identity(p, &w, &p->val[a].sh) && p->ir->vals[w.v].def != UINT32_MAX && p->ir->vals[w.v].def >= opener)
            s->ok = false;
    }
    add_accesses(p, i, &s->acc);
}

static bool parts_threads(const plan *p, const ir_insn *in)
{
    const int n = in->op == IR_LOOP ? 3 : in->op == IR_IF || in->op == IR_DO ? 1 : 0;
    for (int k = 0; k < n; k++)
        if (p->val[ir_args(p->ir, in)[k]].cls != C_UNI)
            return true;
    return false;
}

static bool has_divergence(const plan *p, uint32_t opener)
{
    for (uint32_t i = opener; i <= p->end[opener]; i++)
        if (parts_threads(p, &p->ir->insns[i]))
            return true;
    return false;
}

/* Do the threads part at this region itself, whatever the regions in it do? */
static bool diverges(const plan *p, uint32_t opener)
{
    for (uint32_t i = opener; i <= p->end[opener]; i++)
        if ((i == opener || p->parent[i] == opener) && parts_threads(p, &p->ir->insns[i]) && (i == opener || p->ir->insns[i].op == IR_DO))
            return true;
    return false;
}

/* Can the region run inside one chunk? */
static scan scan_region(plan *p, uint32_t opener)
{
    scan s = {.ok = true};
    for (uint32_t i = opener; i <= p->end[opener]; i++)
        scan_insn(p, i, opener, &s);
    if (has_divergence(p, opener)) {
        scan_shape(&s, (shape){1, {(int32_t)p->info.block}});
        s.block = true;
    }
    if (s.block && s.mma)
        s.ok = false;
    /* Inside a loop the same instruction runs again with other offsets. */
    const uint32_t begin = p->ir->insns[opener].op == IR_IF ? UINT32_MAX : opener;
    if (s.ok && conflicts(p, &s.acc, &s.acc, begin))
        s.ok = false;
    return s;
}

static bool region_uses_open(const planner *q, uint32_t opener)
{
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        if (uses_open(q, &q->p->ir->insns[i]))
            return true;
    return false;
}

static bool region_readable(planner *q, uint32_t opener, const shape *sh)
{
    bool ok = true;
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        ok = !half_made(q, &q->p->ir->insns[i]) && !waits(q, &q->p->ir->insns[i]) && ok;
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        for (int k = 0; k < q->p->ir->insns[i].nargs; k++)
            ok = readable(q, ir_args(q->p->ir, &q->p->ir->insns[i])[k], sh) && ok;
    return ok;
}

static void plan_inner_region(planner *q, uint32_t opener, scan *s)
{
    open_segment(q, s->sh, s->mma ? SEG_SIMDGROUPS : SEG_CHUNKS);
    if (conflicts(q->p, &q->acc, &s->acc, UINT32_MAX) || !region_readable(q, opener, &s->sh)) {
        close_segment(q);
        open_segment(q, s->sh, s->mma ? SEG_SIMDGROUPS : SEG_CHUNKS);
        region_readable(q, opener, &s->sh);
    }
    for (uint32_t k = 0; k < s->acc.len; k++)
        if (!vec_push(&q->acc, s->acc.at[k]))
            q->p->mem->oom = true;
    push_item(q, (item){.insn = opener});
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        define_in(q, i);
}

static void plan_range(planner *q, uint32_t from, uint32_t to);

/* Copies of block values into the slots of dst[]. All of them are read before any is written. */
static void plan_copies(planner *q, const uint32_t *src, uint32_t dst, int n)
{
    plan *p = q->p;
    if (q->views)
        close_segment(q);
    const uint32_t before = p->nsegs;
    for (int k = 0; k < n; k++) {
        const vinfo *d = &p->val[dst + (uint32_t)k];
        if (d->cls != C_BLOCK && d->cls != C_FRAG)
            continue;
        if (src[k] == dst + (uint32_t)k || p->val[src[k]].same_slot == dst + (uint32_t)k)
            continue;
        open_segment(q, d->cls == C_FRAG ? (shape){1, {(int32_t)p->info.block}} : d->sh, d->cls == C_FRAG ? SEG_SIMDGROUPS : SEG_CHUNKS);
        if (d->cls == C_BLOCK && ((q->open && p->val[src[k]].late == q->open->id) || !readable(q, src[k], &d->sh))) {
            close_segment(q);
            open_segment(q, d->sh, SEG_CHUNKS);
            readable(q, src[k], &d->sh);
        }
        push_item(q, (item){.insn = UINT32_MAX, .src = src[k], .dst = dst + (uint32_t)k});
    }
    if (p->nsegs <= before + 1)
        return;
    for (int k = 0; k < n; k++) { /* several segments: a source that is another destination would be overwritten too early */
        const view w = plan_resolve(p, src[k], 0);
        if (w.v >= dst && w.v < dst + (uint32_t)n && w.v != dst + (uint32_t)k && p->val[w.v].cls >= C_BLOCK)
            p->why = "a loop that exchanges carried blocks of different shapes";
    }
}

static bool used_after(const plan *p, uint32_t v, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        for (int k = 0; k < p->ir->insns[i].nargs; k++)
            if (ir_args(p->ir, &p->ir->insns[i])[k] == v)
                return true;
    return false;
}

static bool has_views(const plan *p, uint32_t v, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const ir_insn *in = &p->ir->insns[i];
        if (ir_rows[in->op].nargs >= 1 && ir_args(p->ir, in)[0] == v && (is_move(in) || (is_view_op(in) && p->val[in->res].cls == C_VIEW)))
            return true;
    }
    return false;
}

/* May v be made where its operand c lies? */
static bool in_place(const plan *p, uint32_t v, uint32_t c)
{
    const ir_insn *in = ir_def(p->ir, v);
    const uint32_t *a = ir_args(p->ir, in);
    if (in->op == IR_MATMUL)
        return a[0] != c && a[1] != c;
    return !is_reduce(in) && !plan_whole(p, in);
}

/* The next value of a carried block may be made right in the carried one's slot, if that is not read any more from there on. */
static void share_next(plan *p, uint32_t opener, const uint32_t *next, uint32_t first, int n)
{
    const uint32_t end = p->end[opener];
    for (int k = 0; k < n; k++) {
        const uint32_t c = first + (uint32_t)k, v = next[k];
        vinfo *x = &p->val[v];
        bool ok = p->val[c].cls == x->cls && x->cls >= C_BLOCK && x->seg && !x->same_slot && p->ir->vals[v].def != UINT32_MAX &&
                  p->ir->vals[v].def > opener && p->parent[p->ir->vals[v].def] == opener;
        for (int j = 0; j < n; j++)
            ok = ok && next[j] != c;
        if (!ok || !in_place(p, v, c) || used_after(p, c, p->ir->vals[v].def + 1, end) || has_views(p, c, opener, end) ||
            has_views(p, v, opener, end))
            continue;
        x->same_slot = c;
        x->needs_slot = 1;
    }
}

/* loop: the opener, if dst are its carried values */
static steps *sub_plan(planner *q, uint32_t from, uint32_t to, const uint32_t *src, uint32_t dst, int n, uint32_t loop)
{
    planner sub = {.p = q->p, .iseg = q->iseg, .out = arena_alloc(q->p->mem, sizeof(steps))};
    if (!sub.out)
        return NULL;
    plan_range(&sub, from, to);
    if (loop != UINT32_MAX)
        share_next(q->p, loop, src, dst, n);
    plan_copies(&sub, src, dst, n);
    close_segment(&sub);
    vec_free(&sub.acc);
    return sub.out;
}

static uint32_t do_of(const plan *p, uint32_t opener)
{
    for (uint32_t i = opener + 1; i < p->end[opener]; i++)
        if (p->ir->insns[i].op == IR_DO && p->parent[i] == opener)
            return i;
    return opener;
}

static void share_slots(plan *p, uint32_t first, uint32_t final, int n)
{
    for (int k = 0; k < n; k++) {
        p->val[final + (uint32_t)k].same_slot = first + (uint32_t)k;
        p->val[first + (uint32_t)k].needs_slot = 1;
    }
}

static void plan_outer_loop(planner *q, uint32_t i, step *s)
{
    plan *p = q->p;
    const ir_insn *in = &p->ir->insns[i], *end = &p->ir->insns[p->end[i]];
    const int head = in->op == IR_LOOP ? 3 : 0, n = end->nargs;
    const uint32_t first = in->res + (in->op == IR_LOOP ? 1 : 0), *next = ir_args(p->ir, end);
    plan_copies(q, ir_args(p->ir, in) + head, first, n);
    close_segment(q);
    if (in->op == IR_LOOP) {
        s->body = sub_plan(q, i + 1, p->end[i], next, first, n, i);
    } else {
        const uint32_t d = do_of(p, i);
        s->body = sub_plan(q, i + 1, d, NULL, 0, 0, UINT32_MAX);
        s->other = sub_plan(q, d + 1, p->end[i], next, first, n, i);
    }
    if (n)
        share_slots(p, first, end->res, n);
}

static void plan_outer_if(planner *q, uint32_t i, step *s)
{
    plan *p = q->p;
    const uint32_t mid = else_of(p, i), end = p->end[i];
    const ir_insn *in = &p->ir->insns[end], *els = &p->ir->insns[mid];
    close_segment(q);
    s->body = sub_plan(q, i + 1, mid, ir_args(p->ir, els), in->res, in->nres, UINT32_MAX);
    s->other = sub_plan(q, mid + (mid < end), end, ir_args(p->ir, in), in->res, in->nres, UINT32_MAX);
    for (uint32_t k = 0; k < in->nres; k++)
        p->val[in->res + k].needs_slot = 1;
}

static bool region_waits(const planner *q, uint32_t opener)
{
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        if (waits(q, &q->p->ir->insns[i]))
            return true;
    return false;
}

static void plan_region(planner *q, uint32_t i)
{
    if (region_waits(q, i))
        close_segment(q);
    scan s = scan_region(q->p, i);
    if (s.ok && (s.any || region_uses_open(q, i))) {
        if (!s.any)
            s.sh = q->open->sh, s.mma = q->open->kind == SEG_SIMDGROUPS;
        plan_inner_region(q, i, &s);
        vec_free(&s.acc);
        return;
    }
    vec_free(&s.acc);
    if (diverges(q->p, i))
        q->p->why = "a barrier or simdgroup matrix under a condition that differs between threads";
    step st = {.kind = S_REGION, .insn = i};
    if (q->p->ir->insns[i].op == IR_IF)
        plan_outer_if(q, i, &st);
    else
        plan_outer_loop(q, i, &st);
    push_step(q, st);
}

static void plan_insn(planner *q, uint32_t i)
{
    plan *p = q->p;
    const ir_insn *in = &p->ir->insns[i];
    const bool spmd = p->info.mode == EAS_MODE_SPMD;
    const uint8_t cls = in->res ? p->val[in->res].cls : C_NONE;
    if (in->op == IR_ALLOC_TG) {
        p->val[in->res].needs_slot = 1;
        return;
    }
    if (in->op == IR_BARRIER) {
        if (!spmd)
            close_segment(q);
        return;
    }
    if (in->op == IR_FENCE) { /* every lane before it, none after */
        close_segment(q);
        push_step(q, (step){.kind = S_SCALAR, .insn = i});
        return;
    }
    if (cls == C_LENT || in->op == IR_NOP)
        return;
    if (cls == C_REMAT || cls == C_VIEW) {
        pass_on_late(q, in);
        return;
    }
    if (waits(q, in))
        close_segment(q);
    if (plan_whole(p, in))
        plan_alone(q, i);
    else if (is_reduce(in) && p->val[ir_args(p->ir, in)[0]].sh.rank)
        plan_reduce(q, i);
    else if (is_mma(in) || cls == C_BLOCK)
        plan_block(q, i);
    else if (!spmd && touches_memory(in))
        plan_block(q, i);
    else if (in->op == IR_STORE && p->val[ir_args(p->ir, in)[1]].sh.rank)
        plan_block(q, i);
    else if (in->op == IR_ASSERT && p->val[ir_args(p->ir, in)[0]].sh.rank)
        plan_block(q, i);
    else
        plan_scalar(q, i);
}

static void plan_range(planner *q, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to && !q->p->mem->oom; i++) {
        const uint16_t op = q->p->ir->insns[i].op;
        if (op == IR_LOOP || op == IR_WHILE || op == IR_IF) {
            plan_region(q, i);
            i = q->p->end[i];
        } else {
            plan_insn(q, i);
        }
    }
}

static void find_parents(plan *p)
{
    VEC(uint32_t) open = {0};
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const uint16_t op = p->ir->insns[i].op;
        if (op == IR_ENDLOOP || op == IR_ENDWHILE || op == IR_ENDIF)
            open.len--;
        p->parent[i] = open.len ? open.at[open.len - 1] : NO_PARENT;
        if (op == IR_LOOP || op == IR_WHILE || op == IR_IF)
            if (!vec_push(&open, i))
                p->mem->oom = true;
        if (p->mem->oom)
            break;
    }
    vec_free(&open);
}

/* ---- ranges ---- */

__extension__ typedef __int128 wide;

static bool in_dtype(eas_dtype dt, wide lo, wide hi) { return lo >= (dtype_is_signed(dt) ? (wide)dtype_min(dt) : 0) && hi <= (wide)dtype_max(dt); }

bool plan_cast_fits(const plan *p, uint32_t v, eas_dtype dt) { return p->range && in_dtype(dt, p->range[v].lo, p->range[v].hi); }

bool plan_fits(const plan *p, uint16_t op, uint32_t a, uint32_t b, eas_dtype dt)
{
    if (dtype_bits(dt) == 64)
        return true;
    if (!p->range)
        return false;
    const wide al = p->range[a].lo, ah = p->range[a].hi, bl = p->range[b].lo, bh = p->range[b].hi;
    if (op == IR_ADD)
        return in_dtype(dt, al + bl, ah + bh);
    if (op == IR_SUB)
        return in_dtype(dt, al - bh, ah - bl);
    wide x[4] = {al * bl, al * bh, ah * bl, ah * bh}, lo = x[0], hi = x[0];
    for (int i = 1; i < 4; i++)
        lo = x[i] < lo ? x[i] : lo, hi = x[i] > hi ? x[i] : hi;
    return op == IR_MUL && in_dtype(dt, lo, hi);
}

static void free_steps(steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len; i++) {
        free_steps(s->v.at[i].body);
        free_steps(s->v.at[i].other);
        if (s->v.at[i].seg) {
            vec_free(&s->v.at[i].seg->items);
            vec_free(&s->v.at[i].seg->ahead);
        }
    }
    if (s)
        vec_free(&s->v);
}

void plan_free(plan *p)
{
    free_steps(p->top);
    vec_free(&p->homes);
}

eas_status plan_make(plan *p)
{
    const size_t ni = p->ir->ninsns + 1, nv = p->ir->nvals + 1;
    const ir_env env = {0};
    p->info = ir_analyse(p->ir);
    p->end = ir_region_ends(p->ir, p->mem);
    p->parent = arena_alloc(p->mem, ni * sizeof *p->parent);
    p->val = arena_alloc(p->mem, nv * sizeof *p->val);
    p->range = ir_ranges(p->ir, &env, p->mem);
    bool *uni = arena_alloc(p->mem, nv), *forced = arena_alloc(p->mem, nv), *lent = arena_alloc(p->mem, nv);
    uint32_t *iseg = arena_alloc(p->mem, ni * sizeof *iseg);
    p->top = arena_alloc(p->mem, sizeof *p->top);
    if (p->mem->oom)
        return base_fail_oom(nv);
    find_parents(p);
    find_uniform(p, uni);
    find_pitches(p);
    plan_lent(p, uni, lent);
    classify(p, uni, forced, lent);
    if (!plan_lent_holds(p, lent)) {
        memset(lent, 0, nv);
        classify(p, uni, forced, lent);
    }
    planner q = {.p = p, .out = p->top, .iseg = iseg};
    plan_range(&q, 0, p->ir->ninsns);
    close_segment(&q);
    vec_free(&q.acc);
    plan_slots(p, iseg);
    plan_prefetch(p);
    plan_rare(p);
    if (p->mem->oom)
        return base_fail_oom(nv);
    if (p->why)
        return base_fail(EAS_ERR_UNAVAILABLE, "the CPU compiler cannot run %s", p->why);
    return EAS_OK;
}
