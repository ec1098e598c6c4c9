/* grad_band.c: programs joined into bands, so that an element to which all of them add is added to once a
 * band.
 *
 * The gradient of something that every program reads, such as the weight of a layer norm, is a sum over
 * programs: an atomic addition for each element and program, which costs more than everything else. Where the
 * place of such an addition does not depend on the program's number along axis 0, one program of the new
 * kernel goes over a band of programs in a loop, keeps the sum in a carried value, and adds it at the end.
 * The launch decides how many programs make a band (EAS_GRAD_BAND); the grid along axis 0 is divided by that
 * number.
 */
#include "grad.h"

typedef struct bander {
    ir_rewrite w;       /* copies in the loop */
    uint32_t *outside; /* per value: its copy before the loop */
    VEC(uint32_t) sums;      /* additions that are made once a band */
} bander;

static const uint32_t *args_of(const bander *d, const ir_insn *in) { return ir_args(d->w.from, in); }

/* Made of parameters, constants and lanes: the same for all programs along axis 0. */
static bool shared(const bander *d, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(d->w.from, v);
    if (!in)
        return true;
    if (!(ir_rows[in->op].flags & IR_PURE) || (ir_rows[in->op].flags & IR_STRUCT) || in->nres != 1 ||
        depth > 32 || ((in->op == IR_PROGRAM_ID || in->op == IR_NUM_PROGRAMS) && in->imm == 0))
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
    const uint32_t mask = in->op == IR_ATOMIC_ADD ? ir_mask(d->w.from, in) : 0;
    return in->op == IR_ATOMIC_ADD && args_of(d, in)[0] <= (uint32_t)d->w.from->nparams &&
           !used(d->w.from, in->res) && shared(d, args_of(d, in)[1], 0) && (!mask || shared(d, mask, 0));
}

/* Additions that stand in no loop or branch. */
static bool find_sums(bander *d)
{
    int depth = 0;
    for (uint32_t i = 0; i < d->w.from->ninsns; i++) {
        const ir_insn *in = &d->w.from->insns[i];
        depth += ir_opens(in->op) - ir_closes(in->op);
        if (!depth && can_wait(d, in) && !vec_push(&d->sums, i))
            d->w.mem.oom = true;
    }
    return d->sums.len != 0;
}

static uint32_t copy_outside(bander *d, uint32_t v)
{
    const ir_insn *in = ir_def(d->w.from, v);
    if (!in || d->outside[v])
        return in ? d->outside[v] : v;
    for (int k = 0; k < in->nargs; k++)
        copy_outside(d, args_of(d, in)[k]);
    irb_copy(d->w.b, d->w.from, d->w.from->vals[v].def, d->outside);
    return d->outside[v];
}

/* The value to add, 0 in lanes that are off. */
static uint32_t addend(bander *d, const ir_insn *in)
{
    const uint32_t x = d->w.map[args_of(d, in)[2]], mask = ir_mask(d->w.from, in);
    return mask && !d->w.b->status
             ? irb_op(d->w.b, IR_WHERE, d->w.map[mask], x, irb_const(d->w.b, d->w.b->ir->vals[x].type, 0))
             : x;
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
    for (uint32_t i = 0; i < d->w.from->ninsns && !d->w.b->status; i++) {
        const ir_insn *in = &d->w.from->insns[i];
        const int k = number_of(d, i);
        if (k >= 0)
            next[k] = irb_op(d->w.b, IR_ADD, first + (uint32_t)k, addend(d, in), 0);
        else if (in->op == IR_PROGRAM_ID && in->imm == 0)
            d->w.map[in->res] = irb_to(d->w.b, IR_CAST, ir_typeof(d->w.from, in->res), program);
        else if (in->op == IR_NUM_PROGRAMS && in->imm == 0)
            d->w.map[in->res] = irb_to(d->w.b, IR_CAST, ir_typeof(d->w.from, in->res), programs);
        else
            ir_rewrite_copy(&d->w, i);
    }
}

static void write_band(bander *d)
{
    const ir_type t = ir_scalar(EAS_I64);
    const int n = (int)d->sums.len;
    uint32_t programs = irb_param(d->w.b, "programs", t, false), band = irb_param(d->w.b, "band", t, false);
    uint32_t from = irb_op(d->w.b, IR_MUL, irb_typed(d->w.b, IR_PROGRAM_ID, t, 0), band, 0);
    uint32_t to = irb_op(d->w.b, IR_MIN, irb_op(d->w.b, IR_ADD, from, band, 0), programs, 0);
    uint32_t *args = arena_alloc(&d->w.mem, (size_t)(n + 3) * sizeof *args),
             *next = arena_alloc(&d->w.mem, (size_t)(n + 1) * sizeof *next);
    ir_type *types = arena_alloc(&d->w.mem, (size_t)(n + 2) * sizeof *types);
    if (d->w.mem.oom)
        return;
    args[0] = from;
    args[1] = to;
    args[2] = irb_const(d->w.b, t, 1);
    for (int k = 0; k < n; k++) {
        const ir_insn *in = &d->w.from->insns[d->sums.at[k]];
        copy_outside(d, args_of(d, in)[1]);
        if (ir_mask(d->w.from, in))
            copy_outside(d, ir_mask(d->w.from, in));
        args[3 + k] = irb_const(d->w.b, ir_typeof(d->w.from, args_of(d, in)[2]), 0);
    }
    uint32_t program = irb_insn(d->w.b, IR_LOOP, args, n + 3, 0, n + 1, types);
    copy_body(d, program, programs, program + 1, next);
    uint32_t last = d->w.b->status ? 0 : irb_insn(d->w.b, IR_ENDLOOP, next, n, 0, n, types);
    for (int k = 0; k < n && !d->w.b->status; k++) {
        const ir_insn *in = &d->w.from->insns[d->sums.at[k]];
        const uint32_t *a = args_of(d, in), mask = ir_mask(d->w.from, in);
        uint32_t add[4] = {a[0], copy_outside(d, a[1]), last + (uint32_t)k, mask ? copy_outside(d, mask) : 0};
        irb_insn(d->w.b, IR_ATOMIC_ADD, add, mask ? 4 : 3, 0, 1, types);
    }
}

eas_status grad_banded(const eas_ir *ir, eas_ir **out)
{
    bander d = {0};
    *out = NULL;
    eas_status st = ir_rewrite_begin(&d.w, ir);
    d.outside = arena_alloc(&d.w.mem, ir->nvals * sizeof *d.outside);
    const bool found = !st && d.outside && find_sums(&d);
    if (found) {
        memcpy(d.outside, d.w.map, (size_t)(ir->nparams + 1) * sizeof *d.outside);
        write_band(&d);
    }
    vec_free(&d.sums);
    if (found || st || d.w.mem.oom)
        return ir_rewrite_end(&d.w, st, out);
    ir_rewrite_drop(&d.w);
    return EAS_OK;
}
