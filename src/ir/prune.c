/* prune.c: a kernel without carried values, merged values, loops and branches that nothing needs.
 *
 * simplify.c keeps structure as it is. Derivatives are built with everything that might be needed, and this pass drops what is not. A value is live if an
 * instruction that stays uses it; a loop or branch stays if it contains an effect or one of its results is live; a carried value stays if its final value or its
 * value in the body is live. Liveness goes backwards and, for loops, round until nothing changes.
 */
#include "grad.h"

typedef struct pruner {
    const eas_ir *ir;
    bool *live;         /* per value */
    bool *keep;         /* per instruction */
    uint32_t *end, *mid; /* per opener */
    uint32_t *open;     /* per closer and divider: its opener */
    bool changed;
} pruner;

static const uint32_t *args_of(const pruner *p, const ir_insn *in) { return ir_args(p->ir, in); }

static void need(pruner *p, uint32_t v)
{
    if (!p->live[v])
        p->live[v] = p->changed = true;
}

static void need_args(pruner *p, const ir_insn *in)
{
    for (int k = 0; k < in->nargs; k++)
        need(p, args_of(p, in)[k]);
}

static void stay(pruner *p, uint32_t i)
{
    if (!p->keep[i])
        p->keep[i] = p->changed = true;
}

/* Keeps every region around instruction i. */
static void stay_within(pruner *p, uint32_t i, const uint32_t *parent)
{
    for (uint32_t o = parent[i]; o != UINT32_MAX; o = parent[o])
        stay(p, o);
}

static int head_of(const ir_insn *in) { return in->op == IR_LOOP ? 3 : 0; }

/* A loop or while that stays: its bounds, its condition, and the carried values that are live in either place. */
static void visit_loop(pruner *p, uint32_t i)
{
    const ir_insn *in = &p->ir->insns[i], *close = &p->ir->insns[p->end[i]];
    const int head = head_of(in), skip = head ? 1 : 0;
    for (int k = 0; k < head; k++)
        need(p, args_of(p, in)[k]);
    if (p->mid[i])
        need(p, args_of(p, &p->ir->insns[p->mid[i]])[0]);
    for (int k = head; k < in->nargs; k++) {
        const uint32_t n = (uint32_t)(k - head), body = in->res + n + (uint32_t)skip, last = close->res + n;
        if (!p->live[body] && !p->live[last])
            continue;
        need(p, body);
        need(p, args_of(p, in)[k]);
        need(p, args_of(p, close)[n]);
    }
}

static void visit_if(pruner *p, uint32_t i)
{
    const ir_insn *in = &p->ir->insns[i], *close = &p->ir->insns[p->end[i]];
    need(p, args_of(p, in)[0]);
    for (int k = 0; k < close->nres; k++)
        if (p->live[close->res + (uint32_t)k]) {
            need(p, args_of(p, close)[k]);
            need(p, args_of(p, &p->ir->insns[p->mid[i]])[k]);
        }
}

static bool any_result(const pruner *p, const ir_insn *in)
{
    for (int k = 0; k < in->nres; k++)
        if (p->live[in->res + (uint32_t)k])
            return true;
    return false;
}

static void visit(pruner *p, uint32_t i, const uint32_t *parent)
{
    const ir_insn *in = &p->ir->insns[i];
    switch (in->op) {
    case IR_ENDLOOP:
    case IR_ENDWHILE:
    case IR_ENDIF:
        if (any_result(p, in)) {
            stay(p, p->open[i]);
            stay_within(p, p->open[i], parent);
        }
        break;
    case IR_LOOP:
    case IR_WHILE:
        if (any_result(p, in)) {
            stay(p, i);
            stay_within(p, i, parent);
        }
        if (p->keep[i])
            visit_loop(p, i);
        break;
    case IR_IF:
        if (p->keep[i])
            visit_if(p, i);
        break;
    case IR_ELSE:
    case IR_DO: break;
    default:
        if ((ir_rows[in->op].flags & IR_EFFECT && in->op != IR_ALLOC_TG) || any_result(p, in)) {
            stay(p, i);
            stay_within(p, i, parent);
            need_args(p, in);
        }
    }
}

static uint32_t *parents(const pruner *p, arena *mem)
{
    uint32_t *parent = arena_alloc(mem, (p->ir->ninsns + 1) * sizeof *parent), *stack = arena_alloc(mem, (p->ir->ninsns + 1) * sizeof *stack), n = 0;
    for (uint32_t i = 0; parent && stack && i < p->ir->ninsns; i++) {
        const uint16_t op = p->ir->insns[i].op;
        if (op == IR_ENDLOOP || op == IR_ENDWHILE || op == IR_ENDIF)
            n--;
        parent[i] = n ? stack[n - 1] : UINT32_MAX;
        if (op == IR_LOOP || op == IR_WHILE || op == IR_IF)
            stack[n++] = i;
    }
    return parent;
}

/* ---- the copy ---- */

static bool opens(const pruner *p, uint32_t i)
{
    const uint16_t op = p->ir->insns[i].op;
    return op == IR_LOOP || op == IR_WHILE || op == IR_IF;
}

/* Operands first..first+n of which those with live[at + k] stay. */
static void copy_some(pruner *p, eas_builder *b, uint32_t *map, uint32_t i, int head, const bool *stays, uint32_t res, int skip)
{
    const ir_insn *in = &p->ir->insns[i];
    uint32_t *args = malloc((size_t)(in->nargs + 1) * sizeof *args);
    ir_type *t = calloc((size_t)in->nres + 2, sizeof *t);
    int n = 0, m = 0;
    b->file = in->file;
    b->line = in->line;
    if (!args || !t) {
        irb_fail(b, EAS_ERR_MEMORY, "out of memory while building a kernel");
    } else {
        for (int k = 0; k < in->nargs; k++)
            if (k < head || stays[k - head])
                args[n++] = map[args_of(p, in)[k]];
        for (int k = 0; k < in->nres; k++)
            if (k < skip || stays[k - skip])
                t[m++] = ir_typeof(p->ir, in->res + (uint32_t)k);
        uint32_t r = irb_insn(b, in->op, args, n, in->imm, m, t);
        for (int k = 0; k < in->nres; k++)
            if (k < skip || stays[k - skip])
                map[res + (uint32_t)k] = r++;
    }
    free(args);
    free(t);
}

static bool *stays_of(const pruner *p, uint32_t opener, arena *mem)
{
    const ir_insn *in = &p->ir->insns[opener], *close = &p->ir->insns[p->end[opener]];
    bool *s = arena_alloc(mem, (size_t)close->nres + 1);
    for (int k = 0; s && k < close->nres; k++)
        s[k] = p->live[close->res + (uint32_t)k] || (in->op != IR_IF && p->live[in->res + (uint32_t)k + (in->op == IR_LOOP)]);
    return s;
}

static void copy_structure(pruner *p, eas_builder *b, uint32_t *map, uint32_t i, arena *mem)
{
    const ir_insn *in = &p->ir->insns[i];
    const bool *stays = stays_of(p, opens(p, i) ? i : p->open[i], mem);
    if (!stays)
        irb_fail(b, EAS_ERR_MEMORY, "out of memory while building a kernel");
    else if (in->op == IR_LOOP)
        copy_some(p, b, map, i, 3, stays, in->res, 1);
    else if (in->op == IR_IF || in->op == IR_DO)
        irb_copy(b, p->ir, i, map);
    else
        copy_some(p, b, map, i, 0, stays, in->res, 0);
}

static eas_status copy_all(pruner *p, arena *mem, eas_ir **out)
{
    uint32_t *map = arena_alloc(mem, p->ir->nvals * sizeof *map);
    eas_builder *b = NULL;
    eas_status st = mem->oom ? base_fail_oom(p->ir->nvals) : irb_like(p->ir, &b);
    if (st)
        return st;
    for (int v = 1; v <= p->ir->nparams; v++)
        map[v] = (uint32_t)v;
    for (uint32_t i = 0; i < p->ir->ninsns && !b->status; i++) {
        const bool structure = ir_rows[p->ir->insns[i].op].flags & IR_STRUCT;
        if (p->keep[structure && !opens(p, i) ? p->open[i] : i]) {
            if (structure)
                copy_structure(p, b, map, i, mem);
            else
                irb_copy(b, p->ir, i, map);
        }
    }
    st = irb_finish(b, out);
    eas_builder_free(b);
    return st;
}

static bool find_regions(pruner *p, arena *mem)
{
    uint32_t *stack = arena_alloc(mem, (p->ir->ninsns + 1) * sizeof *stack), n = 0;
    p->end = ir_region_ends(p->ir, mem);
    p->mid = arena_alloc(mem, (p->ir->ninsns + 1) * sizeof *p->mid);
    p->open = arena_alloc(mem, (p->ir->ninsns + 1) * sizeof *p->open);
    for (uint32_t i = 0; !mem->oom && i < p->ir->ninsns; i++)
        switch (p->ir->insns[i].op) {
        case IR_LOOP:
        case IR_WHILE:
        case IR_IF: stack[n++] = i; break;
        case IR_ELSE:
        case IR_DO:
            p->mid[stack[n - 1]] = i;
            p->open[i] = stack[n - 1];
            break;
        case IR_ENDLOOP:
        case IR_ENDWHILE:
        case IR_ENDIF: p->open[i] = stack[--n]; break;
        default: break;
        }
    return !mem->oom;
}

eas_status ir_prune(const eas_ir *ir, eas_ir **out)
{
    arena mem = {0};
    pruner p = {.ir = ir, .live = arena_alloc(&mem, ir->nvals + 1), .keep = arena_alloc(&mem, ir->ninsns + 1)};
    *out = NULL;
    const uint32_t *parent = mem.oom || !find_regions(&p, &mem) ? NULL : parents(&p, &mem);
    if (!parent || mem.oom) {
        arena_free(&mem);
        return base_fail_oom(ir->nvals);
    }
    do {
        p.changed = false;
        for (uint32_t i = ir->ninsns; i-- > 0;)
            visit(&p, i, parent);
    } while (p.changed);
    eas_status st = copy_all(&p, &mem, out);
    arena_free(&mem);
    return st;
}
