/* many.c: a kernel over many sets of arguments at once: one more axis of programs, and buffers that hold one
 * set after the other.
 *
 * Program `lane` of that axis sees buffer p from element lane * n on, where n is a new parameter. The
 * rest of the kernel is unchanged.
 */
#include "ir.h"

#include <stdio.h>

typedef struct lanes {
    ir_rewrite w;
    uint32_t *start; /* per parameter: where this lane's buffer begins; 0: shared by all */
} lanes;

static ir_type scalar(eas_dtype dt) { return (ir_type){.dtype = (uint8_t)dt}; }

/* base plus the element at which this lane's part of buf begins */
static uint32_t moved(lanes *l, uint32_t buf, uint32_t base)
{
    if (buf > (uint32_t)l->w.from->nparams || !l->start[buf - 1])
        return base;
    ir_type t = l->w.b->ir->vals[base].type;
    t.dtype = EAS_I64;
    return irb_op(l->w.b, IR_ADD, irb_to(l->w.b, IR_CAST, t, base),
                  irb_to(l->w.b, IR_BROADCAST, t, l->start[buf - 1]), 0);
}

/* Is it an access? Operands 0 and 1 are its buffer and offset; *two: operands 3 and 4 (of dot and mma) are a
 * second buffer and offset. */
static bool accesses(const ir_insn *in, bool *two)
{
    *two = in->op == IR_DOT || in->op == IR_MMA;
    return *two || in->op == IR_LOAD || in->op == IR_STORE || in->op == IR_BOUNDS || in->op == IR_MMA_STORE ||
           ir_is_atomic(in);
}

static void copy_access(lanes *l, const ir_insn *in, bool two)
{
    uint32_t args[8];
    ir_type t = in->nres ? ir_typeof(l->w.from, in->res) : (ir_type){0};
    ir_rewrite_args(&l->w, in, args);
    args[1] = moved(l, ir_args(l->w.from, in)[0], args[1]);
    if (two)
        args[4] = moved(l, ir_args(l->w.from, in)[3], args[4]);
    uint32_t r = irb_insn(l->w.b, in->op, args, in->nargs, in->imm, in->nres, &t);
    if (in->nres)
        l->w.map[in->res] = r;
}

static void add_lengths(lanes *l, const uint8_t *batched, int axis)
{
    char name[80];
    uint32_t first = 0, n = 0;
    for (int i = 0; i < l->w.from->nparams; i++)
        if (batched[i]) {
            snprintf(name, sizeof name, "%.60s_lane", l->w.from->params[i].name);
            l->start[i] = irb_param(l->w.b, name, scalar(EAS_I64), false);
            first = first ? first : l->start[i];
            n++;
        }
    uint32_t lane = n ? irb_typed(l->w.b, IR_PROGRAM_ID, scalar(EAS_I64), axis) : 0;
    for (int i = 0; i < l->w.from->nparams; i++)
        if (l->start[i])
            l->start[i] = irb_op(l->w.b, IR_MUL, lane, l->start[i], 0);
}

eas_status ir_many(const eas_ir *ir, const uint8_t *batched, int axis, eas_ir **out)
{
    lanes l = {0};
    *out = NULL;
    eas_status st = ir_rewrite_begin(&l.w, ir);
    l.start = arena_alloc(&l.w.mem, (size_t)(ir->nparams + 1) * sizeof *l.start);
    if (!st && l.start)
        add_lengths(&l, batched, axis);
    for (uint32_t i = 0; i < ir->ninsns && !st && l.start; i++) {
        const ir_insn *in = ir_rewrite_at(&l.w, i);
        bool two;
        if (accesses(in, &two))
            copy_access(&l, in, two);
        else
            ir_rewrite_copy(&l.w, i);
    }
    return ir_rewrite_end(&l.w, st, out);
}
