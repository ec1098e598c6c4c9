/* prefetch.c: prefetches, on a CPU.
 *
 * A program that goes over its block several times waits for memory in the lane loop that loads it, and in no other. The longest loop that follows prefetches what
 * the next program along the first axis will load; inside of a loop, what its next round will: the same offsets, plus what one program or one step more adds
 * to them (`moves`, an expression of the text).
 */
#include "ctext.h"

enum { DEPTH = 16 };

static bool none(const char *x) { return x && !strcmp(x, "0"); }

static const char *moves(ct *g, uint32_t v, uint32_t iv, int depth);

/* x times the other factor, a scalar. */
static const char *times(ct *g, const char *x, uint32_t factor)
{
    bool aligned;
    uint32_t leaf = ct_leaf(g->ir, factor, &aligned);
    return is_block(ir_typeof(g->ir, leaf)) ? NULL : ct_fmt(g, "(%s * %s)", x, ct_ref(g, leaf, NULL));
}

static const char *of_insn(ct *g, const ir_insn *in, const char *const *x)
{
    const uint32_t *a = ir_args(g->ir, in);
    bool zero = true;
    for (int k = 0; k < in->nargs && k < 3; k++)
        zero = zero && none(x[k]);
    if (zero && in->nargs <= 3)
        return "0";
    switch (in->op) {
    case IR_BROADCAST:
    case IR_RESHAPE: return x[0];
    case IR_CAST: return dtype_is_int(ir_typeof(g->ir, a[0]).dtype) ? ct_fmt(g, "(%s)%s", g->d->type[ir_typeof(g->ir, in->res).dtype], x[0]) : NULL;
    case IR_ADD: return none(x[0]) ? x[1] : none(x[1]) ? x[0] : ct_fmt(g, "(%s + %s)", x[0], x[1]);
    case IR_SUB: return none(x[1]) ? x[0] : NULL;
    case IR_MUL: return none(x[1]) ? times(g, x[0], a[1]) : none(x[0]) ? times(g, x[1], a[0]) : NULL;
    default: return NULL;
    }
}

/* What one round more adds to an integer, or one program more along the first axis (iv 0); NULL: not known. */
static const char *moves(ct *g, uint32_t v, uint32_t iv, int depth)
{
    const eas_ir *ir = g->ir;
    const ir_insn *in = ir_def(ir, v), *loop = iv ? ir_def(ir, iv) : NULL;
    const char *x[3] = {0};
    if (!in || in->op == IR_CONST || in->op == IR_ARANGE || in->op == IR_NUM_PROGRAMS)
        return "0";
    if (in->op == IR_PROGRAM_ID)
        return iv || in->imm ? "0" : ct_literal(g, ir_typeof(ir, v).dtype, 1);
    if (iv && v == iv)
        return ct_ref(g, ir_args(ir, in)[2], NULL);
    if (iv && in < loop && !is_block(ir_typeof(ir, v)))
        return "0"; /* from outside of the loop */
    if (depth > DEPTH || !(ir_rows[in->op].flags & IR_PURE) || in->nargs > 3)
        return NULL;
    for (int k = 0; k < in->nargs; k++)
        if (!(x[k] = moves(g, ir_args(ir, in)[k], iv, depth + 1)))
            return NULL;
    return of_insn(g, in, x);
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
    const char *x = moves(g, ir_args(g->ir, in)[1], open ? open->res : 0, 0);
    return none(x) ? NULL : x;
}
