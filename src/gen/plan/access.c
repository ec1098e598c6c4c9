/* access.c: which instructions may touch one element from two lanes. */
#include "segment.h"

bool plan_injective(const plan *p, uint32_t off)
{
    int64_t step;
    return ir_linear_of(p->linear, off)->exact && ir_lane_step(p->linear, off, &step) && step &&
           step > -(1 << 30) && step < 1 << 30;
}

static bool conflict(plan *p, const ir_access *x, const ir_access *y, uint32_t loop_begin)
{
    const ir_type bx = ir_typeof(p->ir, x->buf), by = ir_typeof(p->ir, y->buf);
    if (p->info.mode == EAS_MODE_THREAD || (!x->store && !y->store))
        return false;
    if (bx.kind != by.kind || (bx.kind == IR_TG && x->buf != y->buf))
        return false;
    const bool same_off = x->off && x->off == y->off &&
                          (loop_begin == UINT32_MAX || p->ir->vals[x->off].def < loop_begin ||
                           p->ir->vals[x->off].def == UINT32_MAX);
    if (x->buf == y->buf)
        return !(same_off && plan_injective(p, x->off));
    if (p->alias)
        return true;
    if (!(same_off && bx.dtype == by.dtype && plan_injective(p, x->off)))
        p->alias_sensitive = true;
    return false;
}

bool plan_conflicts(plan *p, const accesses *old, const accesses *add, uint32_t loop_begin)
{
    for (uint32_t i = 0; i < old->len; i++)
        for (uint32_t j = 0; j < add->len; j++)
            if (conflict(p, &old->at[i], &add->at[j], loop_begin))
                return true;
    return false;
}

void plan_add_accesses(plan *p, uint32_t i, accesses *out)
{
    ir_access a[2];
    const int n = ir_accesses(p->ir, &p->ir->insns[i], a);
    for (int k = 0; k < n; k++)
        if (!vec_push(out, a[k]))
            p->mem->oom = true;
}
