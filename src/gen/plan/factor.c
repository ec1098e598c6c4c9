/* factor.c: factors of matrix products that are read in place: in global memory, or transposed in another
 * block's slot.
 *
 * The problem: packing (copying a factor to its slot first) costs a pass over it. It gains nothing where the
 * product reads each element once, where rows follow each other without a gap, or where rows are whole cache
 * lines of a small matrix. The right factor may then be a load that is read in place, and so may the left
 * one, if the distance of its rows is a number or if it is the transpose of such a load. bf16 factors are
 * packed in pairs by the product itself (bf16.c), which reads them once, row by row. What is assumed: nothing
 * is written between the load and the product. A left factor that is the transpose of a computed block needs
 * no slot of its own: its elements are read one by one, from that block's slot.
 */
#include "plan.h"

enum {
    FEW_ROWS = 16,
    FEW_BYTES = 256,
    LINE_BYTES = 256,
    SMALL_BYTES = 1 << 20,
    PAGE_BYTES = 4096,
    NEAR_BYTES = 64 << 10
};

bool plan_neighbours(const plan *p, uint32_t off)
{
    const ir_type t = ir_typeof(p->ir, off);
    const ir_linear *x = ir_linear_of(p->linear, off);
    return x->ok && x->exact && t.rank && ir_coef_is(x->lane[t.rank - 1], 1);
}

int plan_uses(const plan *p, uint32_t v)
{
    int n = 0;
    for (uint32_t i = 0; i < p->ir->ninsns; i++)
        for (int k = 0; k < p->ir->insns[i].nargs; k++)
            n += ir_args(p->ir, &p->ir->insns[i])[k] == v;
    return n;
}

static bool nothing_written(const plan *p, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        if (ir_writes(&p->ir->insns[i]) || (ir_rows[p->ir->insns[i].op].flags & IR_STRUCT) ||
            ir_orders(&p->ir->insns[i]))
            return false;
    return p->parent[from] == p->parent[to];
}

/* Rows so far apart are still within reach of an instruction's address. */
static bool near(int64_t step) { return step > 0 && step < 1 << 22; }

/* Elements from one row of a load of two dims to the next; 0: that is no number. */
static int64_t step_of(const plan *p, uint32_t v)
{
    const ir_linear *off = ir_linear_of(p->linear, ir_args(p->ir, ir_def(p->ir, v))[1]);
    return ir_coef_number(off->lane[0]) ? off->lane[0].k : 0;
}

/* The load can be read as rows of neighbours by the product at `user`, which reads each of its elements
 * once if `once`. */
static bool in_rows(plan *p, uint32_t v, uint32_t user, bool once)
{
    const ir_insn *in = ir_def(p->ir, v);
    if (!in || in->op != IR_LOAD || in->nargs != 2 || plan_uses(p, v) != 1 ||
        !nothing_written(p, p->ir->vals[v].def, user))
        return false;
    const uint32_t *a = ir_args(p->ir, in);
    const ir_type t = ir_typeof(p->ir, v);
    if (ir_typeof(p->ir, a[0]).kind != IR_BUF || t.rank != 2 || t.dim[0] < 2 || t.dim[1] < 2)
        return false;
    const ir_linear *off = ir_linear_of(p->linear, a[1]);
    if (!off->ok || !off->exact || !ir_coef_is(off->lane[1], 1))
        return false;
    const bool known = ir_coef_number(off->lane[0]);
    const int64_t step = step_of(p, v);
    const int64_t size = (int64_t)eas_dtype_size((eas_dtype)t.dtype), row = t.dim[1] * size,
                  apart = step * size;
    if (once || !known)
        return once;
    return row <= LINE_BYTES && (apart == row || (row == LINE_BYTES && near(step) &&
                                                  apart * t.dim[0] <= SMALL_BYTES && apart % PAGE_BYTES));
}

static bool is_transpose(const plan *p, uint32_t v)
{
    const ir_insn *in = ir_def(p->ir, v);
    return in && in->op == IR_TRANS && ir_typeof(p->ir, v).rank == 2 && ir_imm_perm(in->imm, 0) == 1;
}

uint32_t plan_factor_load(const plan *p, uint32_t v)
{
    return is_transpose(p, v) ? ir_args(p->ir, ir_def(p->ir, v))[0] : v;
}

/* The transpose of a block that stays in its slot, small enough for the nearest caches. */
static bool turns_slot(const plan *p, const bool *uni, uint32_t v)
{
    if (!is_transpose(p, v) || plan_uses(p, v) != 1)
        return false;
    const uint32_t x = plan_factor_load(p, v);
    const ir_insn *in = ir_def(p->ir, x);
    const ir_type t = ir_typeof(p->ir, x);
    return in && !uni[x] && !(ir_rows[in->op].flags & IR_STRUCT) && t.dim[0] > 1 && t.dim[1] > 1 &&
           (int64_t)t.dim[0] * t.dim[1] * (int64_t)eas_dtype_size((eas_dtype)t.dtype) <= NEAR_BYTES;
}

uint32_t plan_factor_slot(const plan *p, uint32_t v)
{
    const uint32_t x = plan_factor_load(p, v);
    return p->val[v].cls == C_FACTOR && p->val[x].cls == C_BLOCK ? x : 0;
}

void plan_factors(plan *p, const bool *uni, bool *factor)
{
    for (uint32_t i = 0; i < p->ir->ninsns && p->info.mode == EAS_MODE_SPMD; i++) {
        const ir_insn *in = &p->ir->insns[i];
        if (in->op != IR_MATMUL)
            continue;
        const uint32_t x = ir_args(p->ir, in)[0], y = ir_args(p->ir, in)[1];
        const int64_t rows = ir_typeof(p->ir, x).dim[0],
                      bytes = ir_typeof(p->ir, y).dim[1] *
                              (int64_t)eas_dtype_size((eas_dtype)ir_typeof(p->ir, y).dtype);
        /* bf16 and bytes are packed as words: read once, row by row */
        const bool half = eas_dtype_size((eas_dtype)ir_typeof(p->ir, x).dtype) < 4;
        if (in_rows(p, y, i, half || rows <= FEW_ROWS))
            factor[y] = true;
        if (half)
            factor[x] = in_rows(p, x, i, true);
        else if (is_transpose(p, x) && plan_uses(p, x) == 1 &&
                 in_rows(p, plan_factor_load(p, x), i, bytes <= FEW_BYTES))
            factor[x] = factor[plan_factor_load(p, x)] = true;
        else if (turns_slot(p, uni, x) ||
                 (bytes <= FEW_BYTES && in_rows(p, x, i, true) && near(step_of(p, x))))
            factor[x] = true;
    }
}

bool plan_factors_hold(const plan *p, const bool *factor)
{
    for (uint32_t v = 1; v < p->ir->nvals; v++) {
        const ir_insn *in = factor[v] ? ir_def(p->ir, v) : NULL;
        if (in && in->op == IR_LOAD && p->val[ir_args(p->ir, in)[1]].cls != C_REMAT)
            return false;
    }
    return true;
}

void plan_place_factors(plan *p)
{
    for (uint32_t v = 1; v < p->ir->nvals; v++) {
        const ir_insn *in = p->val[v].cls == C_FACTOR ? ir_def(p->ir, v) : NULL;
        if (!in)
            continue;
        p->at[v].where = IN_ARGUMENT;
        p->at[v].step = in->op == IR_LOAD ? step_of(p, v) : 0;
    }
}
