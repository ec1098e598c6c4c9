/* region.c: loops and branches: inside one chunk where that means the same, else at scalar level with
 * segments in them. */
#include "segment.h"

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

/* One instruction of a region that might run inside a chunk: a region does so if everything in it works
 * lane by lane on one shape. What needs all lanes at once (barriers, folds, products of blocks), scalar
 * stores, and moves of blocks that the region itself makes rule it out; accesses are gathered, to be
 * compared afterwards. */
static void scan_insn(plan *p, uint32_t i, uint32_t opener, scan *s)
{
    const ir_insn *in = &p->ir->insns[i];
    const bool spmd = p->info.mode == EAS_MODE_SPMD;
    if (in->op == IR_BARRIER || (spmd && in->op == IR_FENCE) || in->op == IR_ALLOC_TG ||
        (ir_is_fold(in) && p->val[ir_args(p->ir, in)[0]].sh.rank) || plan_whole(p, in))
        s->ok = false;
    if (segment_is_mma(in))
        s->mma = true;
    if (segment_is_mma(in) || (!spmd && segment_touches_memory(in)))
        scan_shape(s, segment_shape(p, in));
    if (!spmd && segment_touches_memory(in))
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
        const kind *v = &p->val[in->res + k];
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
        if (!plan_identity(p, &w, &p->val[a].sh) && p->ir->vals[w.v].def != UINT32_MAX &&
            p->ir->vals[w.v].def >= opener)
            s->ok = false;
    }
    plan_add_accesses(p, i, &s->acc);
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
        if ((i == opener || p->parent[i] == opener) && parts_threads(p, &p->ir->insns[i]) &&
            (i == opener || p->ir->insns[i].op == IR_DO))
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
    if (s.ok && plan_conflicts(p, &s.acc, &s.acc, begin))
        s.ok = false;
    return s;
}

static bool region_uses_open(const planner *q, uint32_t opener)
{
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        if (segment_uses_open(q, &q->p->ir->insns[i]))
            return true;
    return false;
}

static bool region_readable(planner *q, uint32_t opener, const shape *sh)
{
    bool ok = true;
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        ok = !segment_half_made(q, &q->p->ir->insns[i]) && !segment_waits(q, &q->p->ir->insns[i]) && ok;
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        for (int k = 0; k < q->p->ir->insns[i].nargs; k++)
            ok = segment_readable(q, ir_args(q->p->ir, &q->p->ir->insns[i])[k], sh) && ok;
    return ok;
}

static void plan_inner_region(planner *q, uint32_t opener, scan *s)
{
    segment_open(q, s->sh, s->mma ? SEG_SIMDGROUPS : SEG_CHUNKS);
    if (plan_conflicts(q->p, &q->acc, &s->acc, UINT32_MAX) || !region_readable(q, opener, &s->sh)) {
        segment_close(q);
        segment_open(q, s->sh, s->mma ? SEG_SIMDGROUPS : SEG_CHUNKS);
        region_readable(q, opener, &s->sh);
    }
    for (uint32_t k = 0; k < s->acc.len; k++)
        if (!vec_push(&q->acc, s->acc.at[k]))
            q->p->mem->oom = true;
    segment_push(q, (item){.insn = opener});
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        segment_define(q, i);
}

/* Copies of block values into the slots of dst[]. All of them are read before any is written. */
static void plan_copies(planner *q, const uint32_t *src, uint32_t dst, int n)
{
    plan *p = q->p;
    if (q->views)
        segment_close(q);
    const uint32_t before = p->nsegs;
    for (int k = 0; k < n; k++) {
        const kind *d = &p->val[dst + (uint32_t)k];
        if (d->cls != C_BLOCK && d->cls != C_FRAG)
            continue;
        if (src[k] == dst + (uint32_t)k || p->made[src[k]].into == dst + (uint32_t)k)
            continue;
        segment_open(q, d->cls == C_FRAG ? (shape){1, {(int32_t)p->info.block}} : d->sh,
                     d->cls == C_FRAG ? SEG_SIMDGROUPS : SEG_CHUNKS);
        if (d->cls == C_BLOCK &&
            ((q->open && p->made[src[k]].ready == q->open->id) || !segment_readable(q, src[k], &d->sh))) {
            segment_close(q);
            segment_open(q, d->sh, SEG_CHUNKS);
            segment_readable(q, src[k], &d->sh);
        }
        segment_push(q, (item){.insn = UINT32_MAX, .src = src[k], .dst = dst + (uint32_t)k});
    }
    if (p->nsegs <= before + 1)
        return;
    /* several segments: a source that is another destination would be overwritten too early */
    for (int k = 0; k < n; k++) {
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
        if (ir_rows[in->op].nargs >= 1 && ir_args(p->ir, in)[0] == v &&
            (is_move(in) || (is_view_op(in) && p->val[in->res].cls == C_VIEW)))
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

/* The next value of a carried block may be made right in the carried one's slot, if that is not read any
 * more from there on. */
static void share_next(plan *p, uint32_t opener, const uint32_t *next, uint32_t first, int n)
{
    const uint32_t end = p->end[opener];
    for (int k = 0; k < n; k++) {
        const uint32_t c = first + (uint32_t)k, v = next[k];
        origin *x = &p->made[v];
        bool ok = p->val[c].cls == p->val[v].cls && p->val[v].cls >= C_BLOCK && x->seg && !x->into &&
                  p->ir->vals[v].def != UINT32_MAX && p->ir->vals[v].def > opener &&
                  p->parent[p->ir->vals[v].def] == opener;
        for (int j = 0; j < n; j++)
            ok = ok && next[j] != c;
        if (!ok || !in_place(p, v, c) || used_after(p, c, p->ir->vals[v].def + 1, end) ||
            has_views(p, c, opener, end) || has_views(p, v, opener, end))
            continue;
        x->into = c;
    }
}

/* loop: the opener, if dst are its carried values */
static steps *sub_plan(planner *q, uint32_t from, uint32_t to, const uint32_t *src, uint32_t dst, int n,
                       uint32_t loop)
{
    planner sub = {.p = q->p, .out = arena_alloc(q->p->mem, sizeof(steps))};
    if (!sub.out)
        return NULL;
    segment_range(&sub, from, to);
    if (loop != UINT32_MAX)
        share_next(q->p, loop, src, dst, n);
    plan_copies(&sub, src, dst, n);
    segment_close(&sub);
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

static void share_finals(plan *p, uint32_t first, uint32_t final, int n)
{
    for (int k = 0; k < n; k++)
        p->made[final + (uint32_t)k].into = first + (uint32_t)k;
}

static void plan_outer_loop(planner *q, uint32_t i, step *s)
{
    plan *p = q->p;
    const ir_insn *in = &p->ir->insns[i], *end = &p->ir->insns[p->end[i]];
    const int head = in->op == IR_LOOP ? 3 : 0, n = end->nargs;
    const uint32_t first = in->res + (in->op == IR_LOOP ? 1 : 0), *next = ir_args(p->ir, end);
    plan_copies(q, ir_args(p->ir, in) + head, first, n);
    segment_close(q);
    if (in->op == IR_LOOP) {
        s->body = sub_plan(q, i + 1, p->end[i], next, first, n, i);
    } else {
        const uint32_t d = do_of(p, i);
        s->body = sub_plan(q, i + 1, d, NULL, 0, 0, UINT32_MAX);
        s->other = sub_plan(q, d + 1, p->end[i], next, first, n, i);
    }
    if (n)
        share_finals(p, first, end->res, n);
}

static void plan_outer_if(planner *q, uint32_t i, step *s)
{
    plan *p = q->p;
    const uint32_t mid = plan_else_of(p, i), end = p->end[i];
    const ir_insn *in = &p->ir->insns[end], *els = &p->ir->insns[mid];
    segment_close(q);
    s->body = sub_plan(q, i + 1, mid, ir_args(p->ir, els), in->res, in->nres, UINT32_MAX);
    s->other = sub_plan(q, mid + (mid < end), end, ir_args(p->ir, in), in->res, in->nres, UINT32_MAX);
}

static bool region_waits(const planner *q, uint32_t opener)
{
    for (uint32_t i = opener; i <= q->p->end[opener]; i++)
        if (segment_waits(q, &q->p->ir->insns[i]))
            return true;
    return false;
}

/* Is a block of the open segment read from instruction i on? */
static bool open_is_read(const planner *q, uint32_t from)
{
    const plan *p = q->p;
    for (uint32_t i = from; q->open && i < p->ir->ninsns; i++)
        for (int k = 0; k < p->ir->insns[i].nargs; k++) {
            uint32_t v = ir_args(p->ir, &p->ir->insns[i])[k];
            if (p->val[v].cls == C_VIEW)
                v = plan_resolve(p, v, 0).v;
            if (p->val[v].cls >= C_BLOCK && p->made[v].seg == q->open->id)
                return true;
        }
    return false;
}

/* A branch that all lanes take alike, and that only stores, could run inside a chunk. At scalar level it is
 * taken once, not once a chunk, and masks that hold in full chunks cost nothing there, as they do only at the
 * top of a segment. */
static bool better_outside(const planner *q, uint32_t i)
{
    const plan *p = q->p;
    return p->info.mode == EAS_MODE_SPMD && p->ir->insns[i].op == IR_IF && p->parent[i] == UINT32_MAX &&
           p->ir->insns[p->end[i]].nres == 0 && !region_uses_open(q, i) && !open_is_read(q, i);
}

static void plan_region(planner *q, uint32_t i)
{
    if (region_waits(q, i))
        segment_close(q);
    scan s = scan_region(q->p, i);
    if (s.ok && (s.any || region_uses_open(q, i)) && !better_outside(q, i)) {
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
    step_push(q, st);
}

void segment_range(planner *q, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to && !q->p->mem->oom; i++) {
        const uint16_t op = q->p->ir->insns[i].op;
        if (op == IR_LOOP || op == IR_WHILE || op == IR_IF) {
            plan_region(q, i);
            i = q->p->end[i];
        } else {
            segment_insn(q, i);
        }
    }
}
