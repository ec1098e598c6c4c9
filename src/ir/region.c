/* region.c: where the regions of a kernel begin, divide and end. */
#include "ir.h"

bool ir_opens(uint16_t op) { return op == IR_LOOP || op == IR_WHILE || op == IR_IF; }
bool ir_closes(uint16_t op) { return op == IR_ENDLOOP || op == IR_ENDWHILE || op == IR_ENDIF; }
bool ir_divides(uint16_t op) { return op == IR_ELSE || op == IR_DO; }

bool ir_find_regions(const eas_ir *ir, arena *mem, ir_regions *out)
{
    const size_t n = ir->ninsns + 1;
    uint32_t *stack = arena_alloc(mem, n * sizeof *stack), depth = 0;
    *out = (ir_regions){.end = arena_alloc(mem, n * sizeof *out->end),
                        .mid = arena_alloc(mem, n * sizeof *out->mid),
                        .opener = arena_alloc(mem, n * sizeof *out->opener),
                        .parent = arena_alloc(mem, n * sizeof *out->parent)};
    for (uint32_t i = 0; !mem->oom && i < ir->ninsns; i++) {
        const uint16_t op = ir->insns[i].op;
        if (ir_divides(op) || ir_closes(op))
            out->opener[i] = stack[depth - 1];
        if (ir_divides(op))
            out->mid[stack[depth - 1]] = i;
        if (ir_closes(op)) {
            const uint32_t o = stack[--depth];
            out->end[o] = i;
            if (out->mid[o])
                out->end[out->mid[o]] = i;
        }
        out->parent[i] = depth ? stack[depth - 1] : UINT32_MAX;
        if (ir_opens(op))
            stack[depth++] = i;
    }
    return !mem->oom;
}

uint32_t *ir_region_ends(const eas_ir *ir, arena *mem)
{
    ir_regions r;
    return ir_find_regions(ir, mem, &r) ? r.end : NULL;
}
