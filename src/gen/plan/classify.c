/* classify.c: what kind of value each value is, before anything is placed.
 *
 *   uniform       the same for all lanes: a scalar
 *   recomputed    cheap functions of lane index and uniforms
 *   views         broadcasts and reshapes, read through an index map
 *   blocks        everything else
 */
#include "plan.h"

enum { REMAT_COST = 24 };

uint32_t plan_else_of(const plan *p, uint32_t opener)
{
    for (uint32_t i = opener + 1; i < p->end[opener]; i++)
        if (p->ir->insns[i].op == IR_ELSE && p->parent[i] == opener)
            return i;
    return p->end[opener];
}

/* ---- classes ---- */

/* Quotients and remainders of whole numbers by a constant take a few cheap instructions. */
static bool divides_by_constant(const plan *p, const ir_insn *in)
{
    int64_t k;
    return in->nargs == 2 && ir_rows[in->op].classes & IR_I && ir_const_of(p->ir, ir_args(p->ir, in)[1], &k);
}

static bool expensive(const plan *p, const ir_insn *in) { return ir_rows[in->op].cost > REMAT_COST && !divides_by_constant(p, in); }

static bool can_remat(const plan *p, const ir_insn *in, uint16_t *cost)
{
    uint32_t c = 1;
    if (!(ir_rows[in->op].flags & IR_PURE) || ir_is_fold(in) || expensive(p, in))
        return false;
    for (int i = 0; i < in->nargs; i++) {
        const kind *a = &p->val[ir_args(p->ir, in)[i]];
        if (a->cls != C_UNI && a->cls != C_REMAT)
            return false;
        c += a->cls == C_REMAT ? a->cost : 0;
    }
    *cost = (uint16_t)(c > 1000 ? 1000 : c);
    return c <= REMAT_COST;
}

static uint8_t class_of(plan *p, const ir_insn *in, uint32_t v, const bool *uni, const bool *forced, const bool *factor)
{
    const ir_type t = p->ir->vals[v].type;
    if (t.kind == IR_FRAG)
        return C_FRAG;
    if (t.kind != IR_VAL)
        return C_NONE;
    if (uni[v])
        return C_UNI;
    if (factor[v])
        return C_FACTOR;
    if (forced[v])
        return C_BLOCK;
    if (is_view_op(in)) {
        const uint8_t src = p->val[ir_args(p->ir, in)[0]].cls;
        if (src == C_UNI)
            return C_REMAT;
        if (src == C_REMAT && (in->op == IR_BROADCAST || plan_trivial_reshape(p, in))) {
            p->val[v].cost = p->val[ir_args(p->ir, in)[0]].cost;
            return C_REMAT;
        }
        return C_VIEW;
    }
    return can_remat(p, in, &p->val[v].cost) ? C_REMAT : C_BLOCK;
}

void plan_classify(plan *p, const bool *uni, bool *forced, const bool *factor)
{
    const bool spmd = p->info.mode == EAS_MODE_SPMD;
    for (uint32_t v = 1; v < p->ir->nvals; v++) {
        p->val[v].sh = spmd || uni[v] ? plan_shape(p, p->ir->vals[v].type) : (shape){1, {(int32_t)p->info.block}};
        if (p->ir->vals[v].def == UINT32_MAX)
            p->val[v].cls = p->ir->vals[v].type.kind == IR_VAL ? C_UNI : C_NONE;
    }
    for (uint32_t i = 0; i < p->ir->ninsns; i++) { /* what is read whole must lie in memory */
        const ir_insn *in = &p->ir->insns[i];
        const bool first = is_move(in) || (in->op == IR_RESHAPE && !plan_trivial_reshape(p, in)) || (ir_is_fold(in) && !is_reduce(in));
        int64_t zero;
        for (int k = 0; first && k < (in->op == IR_MATMUL ? 3 : 1); k++)
            if (!uni[ir_args(p->ir, in)[k]] && !(k == 2 && ir_const_of(p->ir, ir_args(p->ir, in)[2], &zero)))
                forced[ir_args(p->ir, in)[k]] = true;
    }
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        for (uint32_t k = 0; k < in->nres; k++)
            p->val[in->res + k].cls = class_of(p, in, in->res + k, uni, forced, factor);
    }
}
