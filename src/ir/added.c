/* added.c: buffers that a kernel does nothing to but add.
 *
 * What such a buffer held before a launch cannot be seen by the launch, and what one program adds cannot be
 * seen by another: additions may be put together first and added to the buffer at the end. That is not so in
 * a kernel that orders its accesses by fences or looks at what others did in an atomic: there another launch
 * may wait for what was added, while this one waits for it.
 */
#include "ir.h"

static bool is_buffer(const eas_ir *ir, uint32_t v)
{
    return v && v <= (uint32_t)ir->nparams && ir_typeof(ir, v).kind == IR_BUF;
}

/* Does the instruction see what other programs did, by a way that is defined? */
static bool looks(const eas_ir *ir, const ir_insn *in, const bool *used)
{
    if (in->op == IR_FENCE)
        return ir_fence_order(in->imm) != EAS_ORDER_RELAXED;
    return ir_is_atomic(in) && is_buffer(ir, ir_args(ir, in)[0]) && used[in->res];
}

static void take_away(const eas_ir *ir, const ir_insn *in, bool *added)
{
    const uint32_t *a = ir_args(ir, in);
    for (int k = in->op == IR_ATOMIC_ADD || in->op == IR_BOUNDS; k < in->nargs; k++)
        if (is_buffer(ir, a[k]))
            added[a[k] - 1] = false;
}

bool ir_added(const eas_ir *ir, bool *added)
{
    bool *used = calloc(ir->nvals + 1, sizeof *used), any = false, seen = !used;
    for (uint32_t i = 0; i < ir->npool && used; i++)
        used[ir->pool[i]] = true;
    for (int i = 0; i < ir->nparams; i++)
        added[i] = ir->params[i].atomic && is_buffer(ir, (uint32_t)i + 1);
    for (uint32_t i = 0; i < ir->ninsns && !seen; i++) {
        seen = looks(ir, &ir->insns[i], used);
        take_away(ir, &ir->insns[i], added);
    }
    free(used);
    for (int i = 0; i < ir->nparams; i++)
        any |= added[i] &= !seen;
    return any;
}
