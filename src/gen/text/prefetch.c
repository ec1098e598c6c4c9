/* prefetch.c: prefetches, on a CPU.
 *
 * A program that goes over its block several times waits for memory in the lane loop that loads it, and in no other. The longest loop that follows prefetches what
 * the next program along the first axis will load; inside of a loop, what its next round will: the same offsets, plus what one more program or trip adds
 * to them (ir_step_of).
 */
#include "ctext.h"

/* A step as an expression of the text. */
static const char *step_text(ct *g, const ir_step *s)
{
    switch (s->kind) {
    case STEP_ZERO: return "0";
    case STEP_ONE: return ct_literal(g, ir_typeof(g->ir, s->v).dtype, 1);
    case STEP_VALUE: return ct_ref(g, s->v, NULL);
    case STEP_CAST: return ct_fmt(g, "(%s)%s", g->d->type[ir_typeof(g->ir, s->v).dtype], step_text(g, s->x));
    case STEP_SUM: {
        const char *x = step_text(g, s->x);
        return ct_fmt(g, "(%s + %s)", x, step_text(g, s->y));
    }
    default: {
        const char *x = step_text(g, s->x);
        return ct_fmt(g, "(%s * %s)", x, ct_ref(g, s->v, NULL));
    }
    }
}

static bool is_load(const ct *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    return in->op == IR_LOAD && ir_typeof(g->ir, ir_args(g->ir, in)[0]).kind == IR_BUF;
}

static bool same_lanes(const ct *g, uint32_t x, uint32_t y)
{
    int32_t a[IR_MAX_RANK], b[IR_MAX_RANK];
    int n = ct_dims(ct_lanes_of(g->ir, &g->ir->insns[g->first[x]]), a);
    return n == ct_dims(ct_lanes_of(g->ir, &g->ir->insns[g->first[y]]), b) && !memcmp(a, b, (size_t)n * sizeof *a);
}

static uint32_t length(const ct *g, uint32_t group)
{
    uint32_t n = 0;
    for (uint32_t i = g->first[group]; i <= g->last[group]; i++)
        n += g->group[i] == group;
    return n;
}

/* The longest lane loop of its region that follows; what offsets are made of stands before it. */
static uint32_t host_of(const ct *g, uint32_t from)
{
    uint32_t best = 0, host = 0;
    for (uint32_t k = from + 1; k <= g->ngroups; k++) {
        const uint32_t first = g->first[k];
        if (g->region[first] != g->region[g->first[from]] || ir_is_fold(&g->ir->insns[first]) || !same_lanes(g, k, from) || length(g, k) <= best)
            continue;
        best = length(g, k);
        host = k;
    }
    return host;
}

/* Of each region the first lane loop that loads. */
void ct_find_prefetches(ct *g)
{
    uint8_t *seen = arena_alloc(&g->mem, (size_t)g->ir->ninsns + 2);
    g->prefetches = arena_alloc(&g->mem, ((size_t)g->ngroups + 1) * sizeof *g->prefetches);
    for (uint32_t i = 0; seen && g->prefetches && i < g->ir->ninsns; i++) {
        const uint32_t r = g->region[i];
        if (!g->group[i] || seen[r] || !is_load(g, i))
            continue;
        seen[r] = 1;
        g->prefetches[host_of(g, g->group[i])] = g->group[i];
    }
}

const char *ct_prefetch_step(ct *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i], *open = g->region[i] ? &g->ir->insns[g->opener[g->region[i]]] : NULL;
    if (!is_load(g, i) || (open && open->op != IR_LOOP))
        return NULL;
    const ir_step *x = ir_step_of(g->ir, ir_args(g->ir, in)[1], open ? open->res : 0, &g->mem);
    return x && x->kind != STEP_ZERO ? step_text(g, x) : NULL;
}
