/* output.c: the choice, when it runs, whether a block is kept in the output that it ends up in, or in its
 * slot (src/gen/plan/output.c). */
#include "llvm.h"

static V distance(gen *g, ir_coef x)
{
    const T t = ty_int(g, 64, 0);
    V by = x.by ? LLVMBuildMul(g->b, g->sval[x.by], k_int(g, x.k), "") : k_int(g, x.k);
    V a[2] = {by, LLVMConstInt(ty_int(g, 1, 0), 0, 0)};
    return intrinsic(g, "llvm.abs", (T[]){t}, 1, a, 2);
}

/* i1: no two programs write to a common element, if each writes a row of that many elements. This holds if
 * the step of each axis is larger than what all axes before it span. Computed in floats, which do not wrap.
 */
static V apart(gen *g, const ir_coef *x, int64_t lanes)
{
    const T t = ty_float(g, 64, 0);
    V reach = k_float(g, t, (double)lanes), yes = NULL;
    for (int d = 0; d < 3; d++) {
        V n = grid_axis(g, d), by = LLVMBuildSIToFP(g->b, distance(g, x[d]), t, "");
        V more = LLVMBuildSIToFP(g->b, LLVMBuildSub(g->b, n, k_int(g, 1), ""), t, "");
        V ok = LLVMBuildOr(g->b, LLVMBuildFCmp(g->b, LLVMRealOGE, by, reach, ""),
                           LLVMBuildICmp(g->b, LLVMIntSLE, n, k_int(g, 1), ""), "");
        yes = yes ? LLVMBuildAnd(g->b, yes, ok, "") : ok;
        reach = LLVMBuildFAdd(g->b, reach, LLVMBuildFMul(g->b, by, more, ""), "");
    }
    return yes;
}

/* i1: no lane of the store is masked off; NULL if that cannot be told here */
static V unmasked(gen *g, const output *h, int64_t lanes)
{
    const uint32_t mask = ir_mask(g->ir, &g->ir->insns[h->store]);
    if (!mask)
        return LLVMConstInt(ty_int(g, 1, 0), 1, 0);
    for (int k = 0; k < g->c->npre; k++)
        if (g->c->pre[k].v == mask && !g->c->pre[k].first)
            return LLVMBuildICmp(g->b, LLVMIntSGE, g->c->pre[k].count, k_int(g, lanes), "");
    return NULL;
}

static void choose(gen *g, const output *h)
{
    const uint32_t *a = ir_args(g->ir, &g->ir->insns[h->store]);
    const int64_t lanes = g->c->sh.dim[0];
    const aff off = affine_of(g, a[1], seg_map(g));
    V whole =
        off.run.ok && off.run.exact && off.run.whole && off.run.stride == 1 ? unmasked(g, h, lanes) : NULL;
    if (!whole)
        return;
    V cached = LLVMBuildNot(g->b, mem_streams(g), "");
    V yes = LLVMBuildAnd(g->b, LLVMBuildAnd(g->b, whole, cached, ""), apart(g, h->pace, lanes), "");
    V there = mem_element(g, g->sval[a[0]], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, affine_base(g, off));
    g->outputs[h->v] = sel(g, yes, there, mem_slot(g, g->p.at[h->v].slot));
}

/* Before the loop over the chunks of the segment that makes the blocks; the chunk stands at index 0. */
void output_choose(gen *g, const segment *s)
{
    for (uint32_t k = 0; k < g->p.outputs.len && !g->st; k++)
        if (g->p.made[g->p.outputs.at[k].v].seg == s->id)
            choose(g, &g->p.outputs.at[k]);
}

V output_or_slot(gen *g, uint32_t v) { return g->outputs[v] ? g->outputs[v] : mem_slot(g, g->p.at[v].slot); }
