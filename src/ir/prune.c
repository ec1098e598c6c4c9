/* prune.c: a kernel without carried values, merged values, loops and branches that nothing needs.
 *
 * simplify.c keeps structure as it is. Derivatives are built with everything that might be needed, and this pass drops what is not. A value is live if an
 * instruction that stays uses it; a loop or branch stays if it contains an effect or one of its results is live; a carried value stays if its final value or its
 * value in the body is live. Liveness goes backwards and, for loops, round until nothing changes.
 */
#include "grad.h"

typedef struct pruner {
    ir_rewrite w;
    ir_regions at;
    bool *live; /* per value */
    bool *keep; /* per instruction */
    bool changed;
} pruner;

static const uint32_t *args_of(const pruner *p, const ir_insn *in) { return ir_args(p->w.from, in); }

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
    const ir_insn *in = &p->w.from->insns[i], *close = &p->w.from->insns[p->at.end[i]];
    const int head = head_of(in), skip = head ? 1 : 0;
    for (int k = 0; k < head; k++)
        need(p, args_of(p, in)[k]);
    if (p->at.mid[i])
        need(p, args_of(p, &p->w.from->insns[p->at.mid[i]])[0]);
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
    const ir_insn *in = &p->w.from->insns[i], *close = &p->w.from->insns[p->at.end[i]];
    need(p, args_of(p, in)[0]);
    for (int k = 0; k < close->nres; k++)
        if (p->live[close->res + (uint32_t)k]) {
            need(p, args_of(p, close)[k]);
            need(p, args_of(p, &p->w.from->insns[p->at.mid[i]])[k]);
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
    const ir_insn *in = &p->w.from->insns[i];
    switch (in->op) {
    case IR_ENDLOOP:
    case IR_ENDWHILE:
    case IR_ENDIF:
        if (any_result(p, in)) {
            stay(p, p->at.opener[i]);
            stay_within(p, p->at.opener[i], parent);
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

/* ---- the copy ---- */

/* Which of the values that pass through a region stay. */
static bool *stays_of(pruner *p, uint32_t opener)
{
    const ir_insn *in = &p->w.from->insns[opener], *close = &p->w.from->insns[p->at.end[opener]];
    bool *s = arena_alloc(&p->w.mem, (size_t)close->nres + 1);
    for (int k = 0; s && k < close->nres; k++)
        s[k] = p->live[close->res + (uint32_t)k] || (in->op != IR_IF && p->live[in->res + (uint32_t)k + (in->op == IR_LOOP)]);
    return s;
}

static void copy_structure(pruner *p, uint32_t i)
{
    const uint16_t op = p->w.from->insns[i].op;
    if (op == IR_IF || op == IR_DO) {
        ir_rewrite_copy(&p->w, i);
        return;
    }
    const bool *stays = stays_of(p, ir_opens(op) ? i : p->at.opener[i]);
    if (stays)
        ir_rewrite_some(&p->w, i, op == IR_LOOP ? 3 : 0, op == IR_LOOP, stays);
}

static void copy_all(pruner *p)
{
    for (uint32_t i = 0; i < p->w.from->ninsns && !p->w.b->status; i++) {
        const uint16_t op = p->w.from->insns[i].op;
        const bool structure = ir_rows[op].flags & IR_STRUCT;
        if (!p->keep[structure && !ir_opens(op) ? p->at.opener[i] : i])
            continue;
        if (structure)
            copy_structure(p, i);
        else
            ir_rewrite_copy(&p->w, i);
    }
}

eas_status ir_prune(const eas_ir *ir, eas_ir **out)
{
    pruner p = {0};
    *out = NULL;
    eas_status st = ir_rewrite_begin(&p.w, ir);
    p.live = arena_alloc(&p.w.mem, ir->nvals + 1);
    p.keep = arena_alloc(&p.w.mem, ir->ninsns + 1);
    if (!st && ir_find_regions(ir, &p.w.mem, &p.at)) {
        do {
            p.changed = false;
            for (uint32_t i = ir->ninsns; i-- > 0;)
                visit(&p, i, p.at.parent);
        } while (p.changed);
        copy_all(&p);
    }
    return ir_rewrite_end(&p.w, st, out);
}
