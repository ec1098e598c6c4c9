/* merge.c: drops values that regions only hand on, and instructions that nothing needs.
 *
 * A front end traces a body once and cannot know what it will change, so it carries every living variable
 * through every loop and merges it at the end of every branch. Most of these values come out as they went in,
 * or are never read afterwards. Both kinds are dropped here: a merge whose two sides are the same value is
 * that value, and the result of a loop that hands a value on unchanged is the value before the loop.
 * Uniformity (analyse.c) follows from the same facts: a value that diverging threads leave unchanged is still
 * the same for all of them afterwards.
 */
#include "ir.h"

/* ---- values that regions hand on unchanged ---- */

typedef struct rooter {
    const eas_ir *ir;
    uint32_t *root;
    uint32_t *stack, *div; /* open regions, and their ELSE or DO */
} rooter;

/* Equal constants, or equal casts of one value, made anew on each side. */
static bool made_alike(const rooter *r, uint32_t a, uint32_t b)
{
    const ir_insn *x = ir_def(r->ir, a), *y = ir_def(r->ir, b);
    if (!x || !y || x->op != y->op || !ir_type_eq(ir_typeof(r->ir, a), ir_typeof(r->ir, b)))
        return false;
    return x->op == IR_CONST
             ? x->imm == y->imm
             : x->op == IR_CAST && r->root[ir_args(r->ir, x)[0]] == r->root[ir_args(r->ir, y)[0]];
}

static void root_results(rooter *r, const ir_insn *end, const ir_insn *op, const ir_insn *els)
{
    int skip = end->op == IR_ENDLOOP, head = op->op == IR_LOOP ? 3 : 0;
    for (int k = 0; k < end->nargs; k++) {
        uint32_t v = ir_args(r->ir, end)[k], res = end->res + (uint32_t)k;
        if (op->op == IR_IF) {
            uint32_t other = ir_args(r->ir, els)[k];
            if (r->root[v] == r->root[other] || made_alike(r, v, other))
                r->root[res] = r->root[v];
        } else if (r->root[v] == op->res + (uint32_t)(k + skip)) {
            r->root[res] = r->root[ir_args(r->ir, op)[head + k]];
        }
    }
}

uint32_t *ir_roots(const eas_ir *ir, arena *mem)
{
    const size_t n = (ir->ninsns + 1) * sizeof(uint32_t);
    rooter r = {.ir = ir,
                .root = arena_alloc(mem, ir->nvals * sizeof(uint32_t)),
                .stack = arena_alloc(mem, n),
                .div = arena_alloc(mem, n)};
    if (!r.root || !r.stack || !r.div)
        return NULL;
    for (uint32_t v = 0; v < ir->nvals; v++)
        r.root[v] = v;
    for (uint32_t i = 0, depth = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        if (in->op == IR_LOOP || in->op == IR_WHILE || in->op == IR_IF) {
            r.stack[depth] = r.div[depth] = i;
            depth++;
        } else if (in->op == IR_ELSE || in->op == IR_DO) {
            r.div[depth - 1] = i;
        } else if (in->op == IR_ENDLOOP || in->op == IR_ENDWHILE || in->op == IR_ENDIF) {
            depth--;
            root_results(&r, in, &ir->insns[r.stack[depth]], &ir->insns[r.div[depth]]);
        }
    }
    return r.root;
}

/* ---- liveness ---- */

typedef struct sweeper {
    ir_rewrite w;
    ir_regions at;
    uint32_t *root;
    bool *live;       /* per value */
    bool changed;
} sweeper;

static const uint32_t *args_of(const sweeper *s, const ir_insn *in) { return ir_args(s->w.from, in); }

static bool need(sweeper *s, uint32_t v)
{
    const bool fresh = !s->live[v];
    s->live[v] = true;
    return fresh;
}

/* The n operands from `from` on are needed. */
static bool need_args(sweeper *s, const ir_insn *in, int from, int n)
{
    bool more = false;
    for (int k = from; k < from + n; k++)
        more |= need(s, args_of(s, in)[k]);
    return more;
}

/* A carried value is needed if the body, or an instruction after the loop, reads it. */
static bool carries(const sweeper *s, const ir_insn *op, const ir_insn *end, int k)
{
    return s->live[op->res + (uint32_t)(k + (op->op == IR_LOOP))] || s->live[end->res + (uint32_t)k];
}

static bool need_carried(sweeper *s, const ir_insn *op, const ir_insn *end)
{
    const int head = op->op == IR_LOOP ? 3 : 0;
    bool more = need_args(s, op, 0, head);
    for (int k = 0; k < end->nargs; k++)
        if (carries(s, op, end, k)) {
            more |= need(s, args_of(s, op)[head + k]);
            more |= need(s, args_of(s, end)[k]);
        }
    return more;
}

static bool need_merged(sweeper *s, const ir_insn *half, const ir_insn *end)
{
    bool more = false;
    for (int k = 0; k < half->nargs; k++)
        if (s->live[end->res + (uint32_t)k])
            more |= need(s, args_of(s, half)[k]);
    return more;
}

static bool stays(const sweeper *s, const ir_insn *in)
{
    if (in->op != IR_ALLOC_TG && (ir_rows[in->op].flags & (IR_EFFECT | IR_STRUCT)))
        return true;
    for (int k = 0; k < in->nres; k++)
        if (s->live[in->res + (uint32_t)k])
            return true;
    return false;
}

static bool need_of(sweeper *s, uint32_t i)
{
    const ir_insn *in = &s->w.from->insns[i];
    switch (in->op) {
    case IR_LOOP:
    case IR_WHILE: return need_carried(s, in, &s->w.from->insns[s->at.end[i]]);
    case IR_ENDLOOP:
    case IR_ENDWHILE: return need_carried(s, &s->w.from->insns[s->at.opener[i]], in);
    case IR_ELSE: return need_merged(s, in, &s->w.from->insns[s->at.end[i]]);
    case IR_ENDIF: return need_merged(s, in, in);
    default: return stays(s, in) && need_args(s, in, 0, in->nargs);
    }
}

static void find_live(sweeper *s)
{
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = s->w.from->ninsns; i-- > 0;)
            more |= need_of(s, i);
    }
}

/* ---- building the kernel without the rest ---- */

/* Does value k of the region come out as it went in? Then the root of the closer's result is another
 * value. */
static bool passes(const sweeper *s, const ir_insn *end, int k)
{
    return s->root[end->res + (uint32_t)k] != end->res + (uint32_t)k;
}

static bool kept(const sweeper *s, const ir_insn *op, const ir_insn *end, int k)
{
    return !passes(s, end, k) && (op->op == IR_IF ? s->live[end->res + (uint32_t)k] : carries(s, op, end, k));
}

/* Copies an instruction of the region `op` to `end` with the values that the region keeps: operands after
 * `head` ones, results after `own` ones. */
static void copy_kept(sweeper *s, uint32_t i, const ir_insn *op, const ir_insn *end, int head, int own)
{
    bool *keep = arena_alloc(&s->w.mem, end->nargs + 1u);
    for (int k = 0; keep && k < end->nargs; k++)
        keep[k] = kept(s, op, end, k);
    if (keep)
        ir_rewrite_some(&s->w, i, head, own, keep);
}

static void open_loop(sweeper *s, uint32_t i, const ir_insn *end)
{
    const ir_insn *in = &s->w.from->insns[i];
    const int head = in->op == IR_LOOP ? 3 : 0, own = in->op == IR_LOOP;
    copy_kept(s, i, in, end, head, own);
    for (int k = 0; k < end->nargs; k++)
        if (!kept(s, in, end, k))
            s->w.map[in->res + (uint32_t)(own + k)] = s->w.map[args_of(s, in)[head + k]];
}

/* The value in the new kernel that both sides of a branch give for v: the value itself, or, if each side
 * makes an equal constant or cast, a new one after the branch. */
static uint32_t either_way(sweeper *s, uint32_t v)
{
    const uint32_t root = s->root[v];
    const ir_insn *d = ir_def(s->w.from, root);
    if (d && d->op == IR_CONST)
        return irb_typed(s->w.b, IR_CONST, ir_typeof(s->w.from, root), d->imm);
    if (d && d->op == IR_CAST)
        return irb_to(s->w.b, IR_CAST, ir_typeof(s->w.from, root), either_way(s, args_of(s, d)[0]));
    return s->w.map[root];
}

static void close_region(sweeper *s, uint32_t i, const ir_insn *op)
{
    const ir_insn *in = &s->w.from->insns[i];
    const int head = op->op == IR_LOOP ? 3 : 0;
    copy_kept(s, i, op, in, 0, 0);
    for (int k = 0; k < in->nargs && !s->w.b->status; k++) {
        const uint32_t res = in->res + (uint32_t)k;
        if (!kept(s, op, in, k) && s->live[res])
            s->w.map[res] =
                op->op == IR_IF ? either_way(s, args_of(s, in)[k]) : s->w.map[args_of(s, op)[head + k]];
        s->changed |= !kept(s, op, in, k);
    }
}

static void copy(sweeper *s, uint32_t i)
{
    const ir_insn *in = ir_rewrite_at(&s->w, i);
    const ir_insn *op = &s->w.from->insns[s->at.opener[i]], *end = &s->w.from->insns[s->at.end[i]];
    switch (in->op) {
    case IR_LOOP:
    case IR_WHILE: open_loop(s, i, end); break;
    case IR_ELSE: copy_kept(s, i, op, end, 0, 0); break;
    case IR_ENDLOOP:
    case IR_ENDWHILE:
    case IR_ENDIF: close_region(s, i, op); break;
    default:
        if (stays(s, in))
            ir_rewrite_copy(&s->w, i);
    }
}

eas_status ir_swept(const eas_ir *ir, eas_ir **out, bool *changed)
{
    sweeper s = {0};
    eas_status st = ir_rewrite_begin(&s.w, ir);
    s.live = arena_alloc(&s.w.mem, ir->nvals);
    s.root = ir_roots(ir, &s.w.mem);
    if (!st && ir_find_regions(ir, &s.w.mem, &s.at)) {
        find_live(&s);
        for (uint32_t i = 0; i < ir->ninsns && !s.w.mem.oom; i++)
            copy(&s, i);
    }
    st = ir_rewrite_end(&s.w, st, out);
    *changed |= s.changed;
    return st;
}
