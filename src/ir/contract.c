/* contract.c: a product that feeds exactly one sum becomes an fma (f32 and f64). */
#include "ir.h"

static uint32_t *count_uses(const eas_ir *ir, arena *mem)
{
    uint32_t *n = arena_alloc(mem, ir->nvals * sizeof *n);
    for (uint32_t i = 0; i < ir->ninsns && n; i++)
        for (int k = 0; k < ir->insns[i].nargs; k++)
            n[ir_args(ir, &ir->insns[i])[k]]++;
    return n;
}

typedef struct contractor {
    ir_rewrite w;
    uint32_t *uses; /* per value: how often it is read */
} contractor;

static const ir_insn *product(const contractor *c, uint32_t v)
{
    const ir_insn *d = ir_def(c->w.from, v);
    return d && d->op == IR_MUL && c->uses[v] == 1 ? d : NULL;
}

/* The product must be in the same region as the sum: otherwise it would be computed again in each round. */
static bool same_region(const ir_insn *from, const ir_insn *to)
{
    for (const ir_insn *in = from; in < to; in++)
        if (ir_rows[in->op].flags & IR_STRUCT)
            return false;
    return true;
}

static bool contract_one(contractor *c, uint32_t i)
{
    const ir_insn *in = ir_rewrite_at(&c->w, i);
    eas_dtype dt = in->nres ? ir_typeof(c->w.from, in->res).dtype : EAS_BOOL;
    if ((in->op != IR_ADD && in->op != IR_SUB) || (dt != EAS_F32 && dt != EAS_F64))
        return false;
    for (int side = 0; side < 2; side++) {
        const ir_insn *m = product(c, ir_args(c->w.from, in)[side]);
        if (!m || !same_region(m, in))
            continue;
        uint32_t x = ir_rewrite_arg(&c->w, m, 0), y = ir_rewrite_arg(&c->w, m, 1),
                 z = ir_rewrite_arg(&c->w, in, 1 - side);
        if (in->op == IR_SUB && side == 0)
            z = irb_op(c->w.b, IR_NEG, z, 0, 0);
        else if (in->op == IR_SUB)
            x = irb_op(c->w.b, IR_NEG, x, 0, 0);
        c->w.map[in->res] = irb_op(c->w.b, IR_FMA, x, y, z);
        return true;
    }
    return false;
}

eas_status ir_contracted(const eas_ir *ir, eas_ir **out)
{
    contractor c = {0};
    eas_status st = ir_rewrite_begin(&c.w, ir);
    c.uses = count_uses(ir, &c.w.mem);
    for (uint32_t i = 0; i < ir->ninsns && !st && c.uses; i++)
        if (!contract_one(&c, i))
            ir_rewrite_copy(&c.w, i);
    return ir_rewrite_end(&c.w, st, out);
}
