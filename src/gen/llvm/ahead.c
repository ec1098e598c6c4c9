/* ahead.c: uniform values and offsets as the next round of the loop around a segment, or the next program, will have them: what is prefetched. */
#include "llvm.h"

static uint32_t first_insn(const segment *s)
{
    for (uint32_t k = 0; k < s->items.len; k++)
        if (s->items.at[k].insn != UINT32_MAX)
            return s->items.at[k].insn;
    return UINT32_MAX;
}

/* Does it depend on the loop's counter, by way of values that were made before the segment? A uniform value that is made of a block is not made again. */
static bool moves_on(gen *g, const ir_insn *in, bool uniform)
{
    bool moves = false;
    for (int k = 0; k < in->nargs; k++) {
        const uint32_t a = ir_args(g->ir, in)[k];
        if (g->p.val[a].cls == C_UNI ? !g->sval[a] : uniform && g->p.val[a].cls != C_NONE)
            return false;
        moves = moves || g->moves[a];
    }
    return moves;
}

/* What moves on: the loop's counter, or for segments outside loops the program's number. */
static void step_ahead(gen *g, uint32_t loop, V *ahead)
{
    if (loop != UINT32_MAX) {
        const ir_insn *in = &g->ir->insns[loop];
        ahead[in->res] = LLVMBuildAdd(g->b, g->sval[in->res], g->sval[ir_args(g->ir, in)[2]], "");
        g->moves[in->res] = true;
        return;
    }
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        const ir_insn *in = &g->ir->insns[i];
        if (in->op != IR_PROGRAM_ID || in->imm != 0 || !g->sval[in->res])
            continue;
        ahead[in->res] = LLVMBuildAdd(g->b, g->sval[in->res], k_like(g, LLVMTypeOf(g->sval[in->res]), 1), "");
        g->moves[in->res] = true;
    }
}

static bool looks_ahead(const segment *s)
{
    for (uint32_t k = 0; k < s->prefetches.len; k++)
        if (s->prefetches.at[k].next)
            return true;
    return false;
}

void ahead_look(gen *g, const segment *s)
{
    const uint32_t first = first_insn(s), loop = first == UINT32_MAX ? first : g->p.parent[first];
    const size_t nv = g->ir->nvals + 1;
    g->ahead = NULL;
    if (first == UINT32_MAX || s->kind == SEG_SIMDGROUPS || (s->kind == SEG_WHOLE && !s->prefetches.len) ||
        (loop == UINT32_MAX ? !looks_ahead(s) : g->ir->insns[loop].op != IR_LOOP))
        return;
    V *now = g->sval, *ahead = arena_alloc(&g->mem, nv * sizeof *ahead);
    g->moves = arena_alloc(&g->mem, nv);
    g->ahead_cache = arena_alloc(&g->mem, nv * sizeof *g->ahead_cache);
    if (!ahead || !g->moves || !g->ahead_cache) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    memcpy(ahead, now, (nv - 1) * sizeof *ahead);
    step_ahead(g, loop, ahead);
    g->sval = ahead;
    for (uint32_t i = loop + 1; i < (loop == UINT32_MAX ? first : g->p.end[loop]) && !g->st; i++) {
        const ir_insn *x = &g->ir->insns[i];
        const bool uniform = x->res && g->p.val[x->res].cls == C_UNI && !g->p.made[x->res].inside, peeks = uniform && plan_peeks(g->ir, x);
        if (!x->res || x->nres != 1 || !(ir_rows[x->op].flags & IR_PURE || peeks) || g->p.parent[i] != loop || !moves_on(g, x, uniform))
            continue;
        if (peeks)
            g->sval[x->res] = mem_peek(g, x);
        else if (uniform)
            scalar_insn(g, i);
        g->moves[x->res] = true;
    }
    g->sval = now;
    g->ahead = ahead;
}

bool seg_available(gen *g, uint32_t v)
{
    const ir_insn *in = ir_def(g->ir, v);
    if (g->p.val[v].cls == C_UNI)
        return g->sval[v] != NULL && !g->p.made[v].inside;
    if (g->p.val[v].cls != C_REMAT)
        return false;
    for (int k = 0; k < in->nargs; k++)
        if (!seg_available(g, ir_args(g->ir, in)[k]))
            return false;
    return true;
}

/* The offset at the running inner index, from its line. */
static bool on_line(gen *g, uint32_t v, bool ahead, aff *out)
{
    for (uint32_t k = 0; k < g->c->lines.len; k++) {
        const line *l = &g->c->lines.at[k];
        if (l->v != v || l->ahead != ahead)
            continue;
        *out = l->a;
        if (l->a.stride)
            out->base = LLVMBuildAdd(g->b, l->a.base, LLVMBuildMul(g->b, g->c->idx[g->c->sh.rank - 1], k_int(g, l->a.stride), ""), "");
        return true;
    }
    return false;
}

aff seg_offset(gen *g, uint32_t v)
{
    aff a;
    return on_line(g, v, false, &a) ? a : affine_of(g, v, seg_map(g));
}

static void add_line(gen *g, uint32_t v, bool ahead)
{
    aff a;
    if (!seg_available(g, v) || on_line(g, v, ahead, &a))
        return;
    a = ahead ? seg_ahead(g, v) : affine_of(g, v, seg_map(g));
    if (a.ok && a.exact && a.whole && !vec_push(&g->c->lines, ((line){v, ahead, a})))
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
}

/* Offsets of the segment's own accesses and prefetches; the chunk stands at inner index 0. */
void ahead_lines(gen *g, const segment *s)
{
    g->c->lines.len = 0;
    for (uint32_t k = 0; k < s->items.len; k++) {
        const ir_insn *in = s->items.at[k].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[k].insn];
        if (in && (in->op == IR_LOAD || in->op == IR_STORE)) {
            add_line(g, ir_args(g->ir, in)[1], false);
            if (in->op == IR_LOAD && g->ahead)
                add_line(g, ir_args(g->ir, in)[1], true);
        }
    }
    for (uint32_t k = 0; k < s->prefetches.len; k++)
        add_line(g, ir_args(g->ir, &g->ir->insns[s->prefetches.at[k].insn])[1], s->prefetches.at[k].next);
}

aff seg_ahead(gen *g, uint32_t v)
{
    aff a = {0};
    if (!g->ahead || !g->moves[v] || on_line(g, v, true, &a))
        return a;
    V *now = g->sval;
    const chunk saved = *g->c;
    g->sval = g->ahead;
    g->c->cache = g->ahead_cache;
    memset(&g->c->log, 0, sizeof g->c->log);
    a = affine_of(g, v, seg_map(g));
    seg_forget(g, 0);
    vec_free(&g->c->log);
    *g->c = saved;
    g->sval = now;
    return a;
}
