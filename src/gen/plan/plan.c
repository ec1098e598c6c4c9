/* plan.c: decides how a kernel runs on the CPU; knows nothing of LLVM.
 *
 *   facts (regions, ranges, uniform values)
 *     -> classify   what kind of value                          classify.c, factor.c
 *     -> segment    steps: scalar code, segments, regions       segment.c, region.c, access.c
 *     -> place      where blocks lie                            place.c, output.c
 *     -> prefetch   which loads and stores are prefetched where prefetch.c
 *     -> rare       what only few lanes need                    rare.c
 */
#include "segment.h"

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
            vec_free(&s->v.at[i].seg->prefetches);
        }
    }
    if (s)
        vec_free(&s->v);
}

void plan_free(plan *p)
{
    free_steps(p->top);
    vec_free(&p->outputs);
}

eas_status plan_make(plan *p)
{
    const size_t ni = p->ir->ninsns + 1, nv = p->ir->nvals + 1;
    const ir_env env = {0};
    p->info = ir_analyse(p->ir);
    ir_regions regions;
    if (!ir_find_regions(p->ir, p->mem, &regions))
        return base_fail_oom(ni);
    p->end = regions.end;
    p->parent = regions.parent;
    p->val = arena_alloc(p->mem, nv * sizeof *p->val);
    p->made = arena_alloc(p->mem, nv * sizeof *p->made);
    p->seg_of = arena_alloc(p->mem, ni * sizeof *p->seg_of);
    p->range = ir_ranges(p->ir, &env, p->mem);
    bool *uni = ir_uniform(p->ir, IR_UNIFORM_COUNTERS | IR_UNIFORM_ONE_LANE, p->mem), *forced = arena_alloc(p->mem, nv),
         *factor = arena_alloc(p->mem, nv);
    p->top = arena_alloc(p->mem, sizeof *p->top);
    if (p->mem->oom)
        return base_fail_oom(nv);
    for (uint32_t v = 0; v < p->ir->nvals; v++)
        uni[v] = uni[v] && p->ir->vals[v].type.kind == IR_VAL;
    p->linear = ir_linears_new(p->ir, uni, p->mem);
    if (!p->linear)
        return base_fail_oom(nv);
    plan_factors(p, uni, factor);
    plan_classify(p, uni, forced, factor);
    if (!plan_factors_hold(p, factor)) {
        memset(factor, 0, nv);
        plan_classify(p, uni, forced, factor);
    }
    planner q = {.p = p, .out = p->top};
    segment_range(&q, 0, p->ir->ninsns);
    segment_close(&q);
    vec_free(&q.acc);
    plan_place(p);
    if (p->mem->oom)
        return base_fail_oom(nv);
    plan_prefetch(p);
    plan_rare(p);
    if (p->mem->oom)
        return base_fail_oom(nv);
    if (p->why)
        return base_fail(EAS_ERR_UNAVAILABLE, "the CPU compiler cannot run %s", p->why);
    return EAS_OK;
}
