/* many.c: a kernel over many sets of arguments at once: one more axis of programs, and buffers that hold one set after the other.
 *
 * Program `lane` of that axis sees buffer p from element lane * n on, where n is a new parameter. Everything else is the kernel as it was.
 */
#include "ir.h"

#include <stdio.h>

typedef struct lanes {
    const eas_ir *ir;
    eas_builder *b;
    uint32_t *map;   /* values, old to new */
    uint32_t *start; /* per parameter: where this lane's buffer begins; 0: shared by all */
} lanes;

static ir_type scalar(eas_dtype dt) { return (ir_type){.dtype = (uint8_t)dt}; }

/* base moved to this lane's part of buf */
static uint32_t moved(lanes *l, uint32_t buf, uint32_t base)
{
    if (buf > (uint32_t)l->ir->nparams || !l->start[buf - 1])
        return base;
    ir_type t = l->b->ir->vals[base].type;
    t.dtype = EAS_I64;
    return irb_op(l->b, IR_ADD, irb_to(l->b, IR_CAST, t, base), irb_to(l->b, IR_BROADCAST, t, l->start[buf - 1]), 0);
}

/* An access: operands at 0 and 1 are a buffer and where; of dot and mma those at 3 and 4 too. */
static bool accesses(const ir_insn *in, bool *two)
{
    *two = in->op == IR_DOT || in->op == IR_MMA;
    return *two || in->op == IR_LOAD || in->op == IR_STORE || in->op == IR_BOUNDS || in->op == IR_MMA_STORE || ir_is_atomic(in);
}

static void copy_access(lanes *l, const ir_insn *in, bool two)
{
    uint32_t args[8];
    ir_type t = in->nres ? ir_typeof(l->ir, in->res) : (ir_type){0};
    l->b->file = in->file;
    l->b->line = in->line;
    for (int k = 0; k < in->nargs && k < 8; k++)
        args[k] = l->map[ir_args(l->ir, in)[k]];
    args[1] = moved(l, ir_args(l->ir, in)[0], args[1]);
    if (two)
        args[4] = moved(l, ir_args(l->ir, in)[3], args[4]);
    uint32_t r = irb_insn(l->b, in->op, args, in->nargs, in->imm, in->nres, &t);
    if (in->nres)
        l->map[in->res] = r;
}

static void add_lengths(lanes *l, const uint8_t *batched, int axis)
{
    char name[80];
    uint32_t first = 0, n = 0;
    for (int i = 0; i < l->ir->nparams; i++)
        if (batched[i]) {
            snprintf(name, sizeof name, "%.60s_lane", l->ir->params[i].name);
            l->start[i] = irb_param(l->b, name, scalar(EAS_I64), false);
            first = first ? first : l->start[i];
            n++;
        }
    uint32_t lane = n ? irb_typed(l->b, IR_PROGRAM_ID, scalar(EAS_I64), axis) : 0;
    for (int i = 0; i < l->ir->nparams; i++)
        if (l->start[i])
            l->start[i] = irb_op(l->b, IR_MUL, lane, l->start[i], 0);
}

eas_status ir_many(const eas_ir *ir, const uint8_t *batched, int axis, eas_ir **out)
{
    arena mem = {0};
    lanes l = {
        .ir = ir, .map = arena_alloc(&mem, ir->nvals * sizeof *l.map), .start = arena_alloc(&mem, (size_t)(ir->nparams + 1) * sizeof *l.start)};
    *out = NULL;
    eas_status st = mem.oom ? base_fail_oom(ir->nvals) : irb_like(ir, &l.b);
    if (st) {
        arena_free(&mem);
        return st;
    }
    for (int i = 1; i <= ir->nparams; i++)
        l.map[i] = (uint32_t)i;
    add_lengths(&l, batched, axis);
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        bool two;
        if (accesses(&ir->insns[i], &two))
            copy_access(&l, &ir->insns[i], two);
        else
            irb_copy(l.b, ir, i, l.map);
    }
    st = irb_finish(l.b, out);
    eas_builder_free(l.b);
    arena_free(&mem);
    return st;
}
