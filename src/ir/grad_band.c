/* grad_band.c: programs joined into bands, so that what all of them add to is added to once a band.
 *
 * The gradient of something that every program reads, such as the weight of a layer norm, is a sum over programs: an atomic addition for each element and program,
 * which costs more than everything else. Where the place of such an addition does not depend on the program's number along axis 0, one program of the new kernel goes over a band of
 * programs in a loop, keeps the sum in a carried value, and adds it at the end. How many make a band is up to the launch (EAS_GRAD_BAND), the grid along axis 0 is
 * divided by it.
 */
#include "grad.h"

typedef struct bander {
    const eas_ir *ir;
    eas_builder *b;
    arena mem;
    uint32_t *map, *outside; /* copies in the loop, and before it */
    VEC(uint32_t) sums;      /* instructions: additions that are kept back */
} bander;

static const uint32_t *args_of(const bander *d, const ir_insn *in) { return ir_args(d->ir, in); }

/* Made of parameters, constants and lanes: the same for all programs along axis 0. */
static bool shared(const bander *d, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(d->ir, v);
    if (!in)
        return true;
    if (!(ir_rows[in->op].flags & IR_PURE) || (ir_rows[in->op].flags & IR_STRUCT) || in->nres != 1 || depth > 32 ||
        ((in->op == IR_PROGRAM_ID || in->op == IR_NUM_PROGRAMS) && in->imm == 0))
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (!shared(d, args_of(d, in)[k], depth + 1))
            return false;
    return true;
}

static bool used(const eas_ir *ir, uint32_t v)
{
    for (uint32_t i = 0; i < ir->npool; i++)
        if (ir->pool[i] == v)
            return true;
    return false;
}

static bool can_wait(const bander *d, const ir_insn *in)
{
    const uint32_t mask = in->op == IR_ATOMIC_ADD ? ir_mask(d->ir, in) : 0;
    return in->op == IR_ATOMIC_ADD && args_of(d, in)[0] <= (uint32_t)d->ir->nparams && !used(d->ir, in->res) && shared(d, args_of(d, in)[1], 0) &&
           (!mask || shared(d, mask, 0));
}

/* Additions that stand in no loop or branch. */
static bool find_sums(bander *d)
{
    int depth = 0;
    for (uint32_t i = 0; i < d->ir->ninsns; i++) {
        const ir_insn *in = &d->ir->insns[i];
        depth += (in->op == IR_LOOP || in->op == IR_WHILE || in->op == IR_IF) - (in->op == IR_ENDLOOP || in->op == IR_ENDWHILE || in->op == IR_ENDIF);
        if (!depth && can_wait(d, in) && !vec_push(&d->sums, i))
            d->mem.oom = true;
    }
    return d->sums.len != 0;
}

static uint32_t copy_outside(bander *d, uint32_t v)
{
    const ir_insn *in = ir_def(d->ir, v);
    if (!in || d->outside[v])
        return in ? d->outside[v] : v;
    for (int k = 0; k < in->nargs; k++)
        copy_outside(d, args_of(d, in)[k]);
    irb_copy(d->b, d->ir, d->ir->vals[v].def, d->outside);
    return d->outside[v];
}

/* The value to add, 0 in lanes that are off. */
static uint32_t addend(bander *d, const ir_insn *in)
{
    const uint32_t x = d->map[args_of(d, in)[2]], mask = ir_mask(d->ir, in);
    return mask && !d->b->status ? irb_op(d->b, IR_WHERE, d->map[mask], x, irb_const(d->b, d->b->ir->vals[x].type, 0)) : x;
}

static int number_of(const bander *d, uint32_t insn)
{
    for (uint32_t k = 0; k < d->sums.len; k++)
        if (d->sums.at[k] == insn)
            return (int)k;
    return -1;
}

static void copy_body(bander *d, uint32_t program, uint32_t programs, uint32_t first, uint32_t *next)
{
    for (uint32_t i = 0; i < d->ir->ninsns && !d->b->status; i++) {
        const ir_insn *in = &d->ir->insns[i];
        const int k = number_of(d, i);
        if (k >= 0)
            next[k] = irb_op(d->b, IR_ADD, first + (uint32_t)k, addend(d, in), 0);
        else if (in->op == IR_PROGRAM_ID && in->imm == 0)
            d->map[in->res] = irb_to(d->b, IR_CAST, ir_typeof(d->ir, in->res), program);
        else if (in->op == IR_NUM_PROGRAMS && in->imm == 0)
            d->map[in->res] = irb_to(d->b, IR_CAST, ir_typeof(d->ir, in->res), programs);
        else
            irb_copy(d->b, d->ir, i, d->map);
    }
}

static void write_band(bander *d)
{
    const ir_type t = ir_scalar(EAS_I64);
    const int n = (int)d->sums.len;
    uint32_t programs = irb_param(d->b, "programs", t, false), band = irb_param(d->b, "band", t, false);
    uint32_t from = irb_op(d->b, IR_MUL, irb_typed(d->b, IR_PROGRAM_ID, t, 0), band, 0);
    uint32_t to = irb_op(d->b, IR_MIN, irb_op(d->b, IR_ADD, from, band, 0), programs, 0);
    uint32_t *args = arena_alloc(&d->mem, (size_t)(n + 3) * sizeof *args), *next = arena_alloc(&d->mem, (size_t)(n + 1) * sizeof *next);
    ir_type *types = arena_alloc(&d->mem, (size_t)(n + 2) * sizeof *types);
    if (d->mem.oom)
        return;
    args[0] = from;
    args[1] = to;
    args[2] = irb_const(d->b, t, 1);
    for (int k = 0; k < n; k++) {
        const ir_insn *in = &d->ir->insns[d->sums.at[k]];
        copy_outside(d, args_of(d, in)[1]);
        if (ir_mask(d->ir, in))
            copy_outside(d, ir_mask(d->ir, in));
        args[3 + k] = irb_const(d->b, ir_typeof(d->ir, args_of(d, in)[2]), 0);
    }
    uint32_t program = irb_insn(d->b, IR_LOOP, args, n + 3, 0, n + 1, types);
    copy_body(d, program, programs, program + 1, next);
    uint32_t last = d->b->status ? 0 : irb_insn(d->b, IR_ENDLOOP, next, n, 0, n, types);
    for (int k = 0; k < n && !d->b->status; k++) {
        const ir_insn *in = &d->ir->insns[d->sums.at[k]];
        const uint32_t *a = args_of(d, in), mask = ir_mask(d->ir, in);
        uint32_t add[4] = {a[0], copy_outside(d, a[1]), last + (uint32_t)k, mask ? copy_outside(d, mask) : 0};
        irb_insn(d->b, IR_ATOMIC_ADD, add, mask ? 4 : 3, 0, 1, types);
    }
}

eas_status grad_banded(const eas_ir *ir, eas_ir **out)
{
    bander d = {.ir = ir, .map = NULL};
    eas_status st = EAS_OK;
    *out = NULL;
    d.map = arena_alloc(&d.mem, ir->nvals * sizeof *d.map);
    d.outside = arena_alloc(&d.mem, ir->nvals * sizeof *d.outside);
    if (!d.mem.oom && find_sums(&d)) {
        st = irb_like(ir, &d.b);
        for (int p = 1; p <= ir->nparams && !st; p++)
            d.map[p] = d.outside[p] = (uint32_t)p;
        if (!st)
            write_band(&d);
        if (!st && !d.mem.oom)
            st = irb_finish(d.b, out);
    }
    if (d.mem.oom)
        st = base_fail_oom(ir->nvals);
    eas_builder_free(d.b);
    vec_free(&d.sums);
    arena_free(&d.mem);
    return st;
}
