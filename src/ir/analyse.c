/* analyse.c: facts about a whole kernel: launch mode, block size, axes, uniformity. */
#include "ir.h"

static void look(const eas_ir *ir, const ir_insn *in, eas_ir_info *info)
{
    switch (in->op) {
    case IR_PROGRAM_ID:
    case IR_NUM_PROGRAMS:
        if (in->imm + 1 > info->naxes)
            info->naxes = (int)in->imm + 1;
        break;
    case IR_ALLOC_TG:
        info->tg_bytes += in->imm * (int64_t)eas_dtype_size(ir_typeof(ir, in->res).dtype);
        break;
    case IR_BARRIER: info->has_barrier = 1; break;
    default: break;
    }
}

eas_ir_info ir_analyse(const eas_ir *ir)
{
    eas_ir_info info = {.mode = ir->threads ? EAS_MODE_THREAD : EAS_MODE_SPMD, .naxes = 1};
    info.block = ir->threads ? ir->threads : ir->spmd_block ? ir->spmd_block : 1;
    for (uint32_t i = 0; i < ir->ninsns; i++)
        look(ir, &ir->insns[i], &info);
    return info;
}

eas_ir_info eas_ir_analyse(const eas_ir *ir)
{
    NEED(ir, ((eas_ir_info){0}));
    return ir_analyse(ir);
}

/* ---- uniformity ---- */

typedef struct spread {
    const eas_ir *ir;
    bool *u;
    unsigned how; /* IR_UNIFORM_* */
    bool changed;
    uint32_t *root;  /* of ir_roots */
    uint32_t *stack; /* open regions */
    uint32_t *div;   /* their ELSE or DO */
    uint32_t depth;
} spread;

static void vary(spread *s, uint32_t v)
{
    if (s->u[v]) {
        s->u[v] = false;
        s->changed = true;
    }
}

static bool any_varies(const spread *s, const ir_insn *in)
{
    for (int k = 0; k < in->nargs; k++)
        if (!s->u[ir_args(s->ir, in)[k]])
            return true;
    return false;
}

/* A load that all threads make at one place gives all of them the same value, also from memory that the
 * kernel writes: if threads could write to that place without a barrier in between, the kernel would have a
 * race, and any value is allowed. */
static bool varies(const spread *s, const ir_insn *in)
{
    switch (in->op) {
    case IR_THREAD_ID:
    case IR_GLOBAL_ID:
    case IR_LANE_ID:
    case IR_SG_ID: return true;
    case IR_LOCAL_ID: return in->imm == 0;
    case IR_MMA_ZERO:
    case IR_MMA: return true;
    default: return ir_is_atomic(in) || any_varies(s, in);
    }
}

static void open_region(spread *s, uint32_t i)
{
    const ir_insn *in = &s->ir->insns[i];
    int head = in->op == IR_LOOP ? 3 : 0;
    s->stack[s->depth] = i;
    s->div[s->depth++] = UINT32_MAX;
    if (in->op == IR_IF)
        return;
    for (int k = head; k < in->nargs; k++)
        if (!s->u[ir_args(s->ir, in)[k]])
            vary(s, in->res + (uint32_t)(k - head + (head ? 1 : 0)));
    for (int k = 0; k < head; k++)
        if (!s->u[ir_args(s->ir, in)[k]] && !(k == 1 && s->how & IR_UNIFORM_COUNTERS))
            vary(s, in->res);
}

/* Do threads leave this region by different ways? */
static bool splits(const spread *s, const ir_insn *op, uint32_t divider)
{
    if (op->op == IR_WHILE)
        return divider != UINT32_MAX && !s->u[ir_args(s->ir, &s->ir->insns[divider])[0]];
    for (int k = 0; k < (op->op == IR_IF ? 1 : 3); k++)
        if (!s->u[ir_args(s->ir, op)[k]])
            return true;
    return false;
}

static void close_region(spread *s, uint32_t i)
{
    const ir_insn *in = &s->ir->insns[i], *op = &s->ir->insns[s->stack[--s->depth]];
    uint32_t d = s->div[s->depth];
    const bool split = splits(s, op, d);
    for (int k = 0; k < in->nargs; k++) {
        uint32_t v = ir_args(s->ir, in)[k], res = in->res + (uint32_t)k,
                 body = op->res + (uint32_t)(k + (in->op == IR_ENDLOOP));
        bool differs = !s->u[v];
        if (op->op == IR_IF) {
            differs |= !s->u[ir_args(s->ir, &s->ir->insns[d])[k]] ||
                       (split && !(s->how & IR_UNIFORM_MERGES && s->root[res] != res));
        } else {
            if (differs || (split && !(s->how & IR_UNIFORM_MERGES && s->root[v] == body)))
                vary(s, body);
            differs |= !s->u[body];
        }
        if (differs)
            vary(s, res);
    }
}

static void visit(spread *s, uint32_t i)
{
    const ir_insn *in = &s->ir->insns[i];
    switch (in->op) {
    case IR_LOOP:
    case IR_WHILE:
    case IR_IF: open_region(s, i); break;
    case IR_ELSE:
    case IR_DO:
        if (s->depth)
            s->div[s->depth - 1] = i;
        break;
    case IR_ENDLOOP:
    case IR_ENDWHILE:
    case IR_ENDIF:
        if (s->depth)
            close_region(s, i);
        break;
    default:
        if (in->nres && varies(s, in))
            vary(s, in->res);
    }
}

/* The verifier calls this before it checks operands, so nothing here may rely on them. */
static bool well_formed(const eas_ir *ir)
{
    uint32_t depth = 0;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        uint16_t op = in->op;
        if (op >= IR_NOPS)
            return false;
        for (int k = 0; k < in->nargs; k++)
            if (ir_args(ir, in)[k] == 0 || ir_args(ir, in)[k] >= ir->nvals)
                return false;
        depth += op == IR_LOOP || op == IR_WHILE || op == IR_IF;
        if (op == IR_ENDLOOP || op == IR_ENDWHILE || op == IR_ENDIF) {
            if (!depth--)
                return false;
        }
    }
    return true;
}

/* Do openers and closers match in kind and number of values? */
static bool regions_match(const eas_ir *ir, uint32_t *stack, uint32_t *div)
{
    uint32_t depth = 0;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        const ir_insn *o = depth ? &ir->insns[stack[depth - 1]] : NULL;
        switch (in->op) {
        case IR_LOOP:
            if (in->nargs < 3 || in->nres != in->nargs - 2)
                return false;
            goto open;
        case IR_WHILE:
            if (in->nres != in->nargs)
                return false;
            goto open;
        case IR_IF:
            if (in->nargs != 1)
                return false;
        open:
            stack[depth] = i;
            div[depth++] = UINT32_MAX;
            break;
        case IR_DO:
            if (in->nargs != 1)
                return false;
            goto divide;
        case IR_ELSE:
        divide:
            if (!o || o->op != (in->op == IR_DO ? IR_WHILE : IR_IF))
                return false;
            div[depth - 1] = i;
            break;
        case IR_ENDLOOP:
            if (!o || o->op != IR_LOOP || in->nargs != o->nres - 1 || in->nres != in->nargs)
                return false;
            depth--;
            break;
        case IR_ENDWHILE:
            if (!o || o->op != IR_WHILE || in->nargs != o->nres || in->nres != in->nargs)
                return false;
            depth--;
            break;
        case IR_ENDIF:
            if (!o || o->op != IR_IF || in->nres != in->nargs ||
                in->nargs != (div[depth - 1] == UINT32_MAX ? 0 : ir->insns[div[depth - 1]].nargs))
                return false;
            depth--;
            break;
        case IR_LOAD:
            if (in->nargs < 2)
                return false;
            break;
        case IR_DOT:
            if (in->nargs != 7)
                return false;
            break;
        default: break;
        }
    }
    return depth == 0;
}

bool *ir_uniform(const eas_ir *ir, unsigned how, arena *mem)
{
    spread s = {.ir = ir, .how = how, .u = arena_alloc(mem, ir->nvals)};
    s.stack = arena_alloc(mem, (ir->ninsns + 1) * sizeof *s.stack);
    s.div = arena_alloc(mem, (ir->ninsns + 1) * sizeof *s.div);
    if (!s.u || !s.stack || !s.div)
        return NULL;
    if (!well_formed(ir) || !regions_match(ir, s.stack, s.div))
        return s.u; /* ill-formed: nothing counts as uniform, and the verifier will report what is wrong */
    bool thread = ir_analyse(ir).mode == EAS_MODE_THREAD;
    for (uint32_t v = 1; v < ir->nvals; v++)
        s.u[v] = thread || !ir->vals[v].type.rank ||
                 (how & IR_UNIFORM_ONE_LANE && ir_lanes(ir->vals[v].type) == 1);
    if (thread && how & IR_UNIFORM_MERGES && !(s.root = ir_roots(ir, mem)))
        return NULL;
    do {
        s.changed = false;
        for (uint32_t i = 0; thread && i < ir->ninsns; i++)
            visit(&s, i);
    } while (s.changed);
    return s.u;
}
