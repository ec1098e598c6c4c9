/* output.c: large blocks that are kept in the output buffer instead of a slot.
 *
 * The problem: a softmax of a long row makes exponentials in one segment and divides them in the next.
 * Spilling them to a slot sends them through the caches twice: to the slot, and as results to the output. The
 * idea: they are kept in the output, where what is made of them is stored lane by lane. What is assumed: the
 * output is touched by this store and by nothing else, and no two programs store to one place. The first is
 * proved here. The second is decided by each program when it runs, from the grid and the distance between the
 * outputs of neighbouring programs (llvm/output.c); a program that cannot tell uses the slot, and so does one
 * whose stores are non-temporal or masked.
 */
#include "plan.h"

enum { KEPT_BYTES = 128 << 10, LINE = 64 }; /* smaller blocks stay in the nearest caches anyway */

/* How far the store's offset moves from program to program, along each axis of the grid; false if that is
 * no fixed number: one that depends on anything but parameters could differ from program to program. */
static bool find_pace(const plan *p, uint32_t off, ir_coef *out)
{
    const ir_linear *x = ir_linear_of(p->linear, off);
    for (int d = 0; d < 3; d++) {
        out[d] = x->program[d];
        if (!x->ok || !x->exact || out[d].any || (out[d].by && ir_def(p->ir, out[d].by)))
            return false;
    }
    return true;
}

/* ---- which blocks ---- */

/* A store of a row to memory that nothing else touches. */
static bool keeps(const plan *p, uint32_t i, output *h)
{
    const ir_insn *in = &p->ir->insns[i];
    if (in->op != IR_STORE || p->parent[i] != UINT32_MAX)
        return false;
    const uint32_t *a = ir_args(p->ir, in);
    const shape *sh = &p->val[a[2]].sh;
    const size_t size = eas_dtype_size((eas_dtype)ir_typeof(p->ir, a[0]).dtype);
    return ir_typeof(p->ir, a[0]).kind == IR_BUF && sh->rank == 1 &&
           (size_t)sh->dim[0] * size >= KEPT_BYTES && (size_t)sh->dim[0] * size % LINE == 0 &&
           plan_uses(p, a[0]) == 1 && plan_stays(p, a[1]) && plan_neighbours(p, a[1]) &&
           find_pace(p, a[1], h->pace);
}

/* Are all loads, in whatever buffers, over and done with when v is made, and of the very lanes that the
 * store is to write? Then arguments may be the same array. */
static bool reads_first(const plan *p, const output *h)
{
    const uint32_t off = ir_args(p->ir, &p->ir->insns[h->store])[1];
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        if (i != h->store && (ir_writes(in) || in->op == IR_FENCE || ir_rows[in->op].flags & IR_STRUCT))
            return false;
        if (in->op == IR_LOAD && ir_args(p->ir, in)[1] != off)
            return false;
        for (uint32_t k = i + 1; in->op == IR_LOAD && k < p->ir->ninsns; k++)
            if (plan_reads(p, &p->ir->insns[k], in->res) && p->seg_of[k] > p->made[h->v].seg)
                return false;
    }
    return plan_injective(p, off);
}

static bool can_keep(const plan *p, uint32_t v, uint32_t store)
{
    const placement *x = &p->at[v];
    const ir_insn *in = ir_def(p->ir, v);
    const uint32_t *a = ir_args(p->ir, &p->ir->insns[store]), def = p->ir->vals[v].def;
    if (p->val[v].cls != C_BLOCK || x->where != IN_SLOT || p->made[v].into || x->pitch || !in ||
        ir_rows[in->op].flags & IR_STRUCT || p->parent[def] != UINT32_MAX ||
        p->made[v].seg >= p->seg_of[store] || !shape_eq(&p->val[v].sh, &p->val[a[2]].sh) ||
        eas_dtype_size((eas_dtype)ir_typeof(p->ir, v).dtype) !=
            eas_dtype_size((eas_dtype)ir_typeof(p->ir, a[0]).dtype))
        return false;
    for (uint32_t i = def + 1; i < p->ir->ninsns; i++)
        if (plan_reads(p, &p->ir->insns[i], v) &&
            (i > store || p->seg_of[i] > p->seg_of[store] || !plan_plain_reader(p, i, def, v)))
            return false;
    return true;
}

void plan_outputs(plan *p)
{
    for (uint32_t i = 0; i < p->ir->ninsns && p->info.mode == EAS_MODE_SPMD && !p->alias; i++) {
        output h = {.store = i};
        if (!keeps(p, i, &h))
            continue;
        for (uint32_t v = 1; v < p->ir->nvals && !h.v; v++)
            h.v = can_keep(p, v, i) ? v : 0;
        if (!h.v)
            continue;
        p->alias_sensitive |= !reads_first(p, &h);
        p->at[h.v].where = IN_OUTPUT;
        if (!vec_push(&p->outputs, h))
            p->mem->oom = true;
    }
}

const output *plan_output_of(const plan *p, uint32_t store)
{
    for (uint32_t k = 0; k < p->outputs.len; k++)
        if (p->outputs.at[k].store == store)
            return &p->outputs.at[k];
    return NULL;
}
