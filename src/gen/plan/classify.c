/* classify.c: what kind of value each value is, before anything is placed.
 *
 *   uniform       the same for all lanes: a scalar
 *   recomputed    cheap functions of lane index and uniforms
 *   views         broadcasts and reshapes, read through an index map
 *   blocks        everything else
 */
#include "plan.h"

enum { REMAT_COST = 24 };

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

uint32_t plan_else_of(const plan *p, uint32_t opener)
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
    const ir_insn *end = &p->ir->insns[p->end[i]], *els = &p->ir->insns[plan_else_of(p, i)];
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

void plan_uniform(plan *p, bool *uni)
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
