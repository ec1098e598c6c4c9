/* rewrite.c: the frame of a pass, which builds a new kernel out of an old one.
 *
 * IR is immutable, so a pass walks the old kernel, copies what it leaves alone and builds something else where it changes something. `map` tells which value
 * of the new kernel stands for a value of the old one; an instruction that is copied takes its operands through it and enters its results. The new
 * kernel begins with the name, flags, source files, strings and parameters of the old one, and parameters keep their value ids.
 */
#include "ir.h"

eas_status ir_rewrite_begin(ir_rewrite *w, const eas_ir *from)
{
    w->from = from;
    w->map = arena_alloc(&w->mem, ((size_t)from->nvals + 1) * sizeof *w->map);
    if (!w->map)
        return base_fail_oom(from->nvals * sizeof *w->map);
    for (int p = 1; p <= from->nparams; p++)
        w->map[p] = (uint32_t)p;
    return irb_like(from, &w->b);
}

const ir_insn *ir_rewrite_at(ir_rewrite *w, uint32_t i)
{
    const ir_insn *in = &w->from->insns[i];
    w->b->file = in->file;
    w->b->line = in->line;
    return in;
}

uint32_t ir_rewrite_arg(const ir_rewrite *w, const ir_insn *in, int k) { return w->map[ir_args(w->from, in)[k]]; }

void ir_rewrite_args(const ir_rewrite *w, const ir_insn *in, uint32_t *args)
{
    for (int k = 0; k < in->nargs; k++)
        args[k] = ir_rewrite_arg(w, in, k);
}

void ir_rewrite_copy(ir_rewrite *w, uint32_t i) { irb_copy(w->b, w->from, i, w->map); }

static bool stays(const bool *keep, int k, int always) { return k < always || keep[k - always]; }

void ir_rewrite_some(ir_rewrite *w, uint32_t i, int head, int own, const bool *keep)
{
    const ir_insn *in = ir_rewrite_at(w, i);
    uint32_t *args = arena_alloc(&w->mem, (in->nargs + 1u) * sizeof *args);
    ir_type *t = arena_alloc(&w->mem, (in->nres + 1u) * sizeof *t);
    int n = 0, m = 0;
    if (!args || !t || w->b->status)
        return;
    for (int k = 0; k < in->nargs; k++)
        if (stays(keep, k, head))
            args[n++] = ir_rewrite_arg(w, in, k);
    for (int k = 0; k < in->nres; k++)
        if (stays(keep, k, own))
            t[m++] = ir_typeof(w->from, in->res + (uint32_t)k);
    uint32_t r = irb_insn(w->b, in->op, args, n, in->imm, m, t);
    for (int k = 0; k < in->nres; k++)
        if (stays(keep, k, own))
            w->map[in->res + (uint32_t)k] = r++;
}

void ir_rewrite_drop(ir_rewrite *w)
{
    eas_builder_free(w->b);
    arena_free(&w->mem);
    *w = (ir_rewrite){0};
}

eas_status ir_rewrite_end(ir_rewrite *w, eas_status st, eas_ir **out)
{
    if (!st && w->mem.oom)
        st = base_fail_oom(w->from->nvals);
    if (!st)
        st = irb_finish(w->b, out);
    ir_rewrite_drop(w);
    return st;
}

eas_status ir_rewrite_end_simple(ir_rewrite *w, eas_status st, eas_ir **out)
{
    eas_ir *raw = NULL;
    st = ir_rewrite_end(w, st, &raw);
    if (!st)
        st = ir_simplify(raw, out);
    eas_ir_release(raw);
    return st;
}
