/* arrays.c: which blocks are kept in arrays, and which of them share one.
 *
 * A block that is needed outside its own loop is an array, one element per lane. An array whose block is no
 * longer needed serves the next block of its dtype that fits: even in the loop that reads it last, where no
 * lane reads an element that an earlier lane has overwritten. Slices read forward, so the halves of a fold
 * stay in one array.
 */
#include "ctext.h"

void ct_find_arrays(ct *g)
{
    const eas_ir *ir = g->ir;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        if (ir_rows[in->op].flags & IR_STRUCT)
            for (uint32_t r = 0; r < in->nres; r++)
                g->array[in->res + r] = is_block(ir_typeof(ir, in->res + r));
        if (ct_is_view(ir, in))
            continue;
        for (int k = 0; k < in->nargs; k++) {
            bool aligned;
            uint32_t leaf = ct_leaf(ir, ir_args(ir, in)[k], &aligned), def = ir->vals[leaf].def;
            if (!is_block(ir_typeof(ir, leaf)) || g->remat[leaf] || def == UINT32_MAX || !g->group[def])
                continue;
            if (!aligned || g->group[i] != g->group[def])
                g->array[leaf] = 1;
        }
    }
}

/* ---- how long a block is needed ---- */

static bool find_lives(ct *g, ir_lives *l)
{
    const eas_ir *ir = g->ir;
    ir_regions regions;
    if (!ir_lives_begin(l, ir->nvals, &g->mem) || !ir_find_regions(ir, &g->mem, &regions))
        return false;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        bool aligned;
        for (int k = 0; k < in->nres; k++)
            l->of[in->res + (uint32_t)k].made = i;
        for (int k = 0; k < in->nargs && !ct_is_view(ir, in); k++)
            ir_lives_read(l, ct_leaf(ir, ir_args(ir, in)[k], &aligned), i);
        if (ir_closes(in->op))
            ir_lives_region(l, regions.opener[i] + 1, i);
    }
    return true;
}

/* ---- sharing ---- */

static bool encloses(const ct *g, uint32_t outer, uint32_t inner)
{
    while (inner && inner != outer)
        inner = g->parent[inner];
    return inner == outer;
}

/* The index along each axis of a view's operand: that along axis `of` of the view (-1: none), plus `add`. */
typedef struct index_map {
    int of[IR_MAX_RANK];
    int64_t add[IR_MAX_RANK];
} index_map;

/* Axes of length 1 have no index. */
static bool map_reshape(ir_type to, ir_type from, const index_map *m, index_map *r)
{
    int k = 0;
    for (int d = 0; d < from.rank; d++) {
        r->of[d] = -1;
        if (from.dim[d] == 1)
            continue;
        while (k < to.rank && to.dim[k] == 1)
            k++;
        if (k == to.rank || to.dim[k] != from.dim[d])
            return false;
        r->of[d] = m->of[k];
        r->add[d] = m->add[k++];
    }
    return true;
}

static bool map_view(const eas_ir *ir, const ir_insn *in, index_map *m)
{
    ir_type to = ir_typeof(ir, in->res), from = ir_typeof(ir, ir_args(ir, in)[0]);
    index_map old = *m;
    *m = (index_map){{0}, {0}};
    if (in->op == IR_RESHAPE)
        return map_reshape(to, from, &old, m);
    for (int d = 0; d < from.rank; d++) {
        int k = in->op == IR_BROADCAST ? d + to.rank - from.rank : d,
            axis = in->op == IR_TRANS ? ir_imm_perm(in->imm, d) : d;
        m->of[axis] = from.dim[axis] == 1 ? -1 : old.of[k];
        m->add[axis] = from.dim[axis] == 1 ? 0 : old.add[k];
    }
    if (in->op == IR_SLICE || in->op == IR_PAD)
        m->add[ir_imm_axis(in->imm)] += in->op == IR_SLICE ? ir_imm_start(in->imm) : -ir_imm_start(in->imm);
    return true;
}

/* In every lane of v, the row-major index in the block behind its views is at least the lane's. */
static bool reads_forward(const eas_ir *ir, uint32_t v)
{
    ir_type t = ir_typeof(ir, v);
    index_map m = {{0, 1, 2, 3}, {0}};
    int64_t step[IR_MAX_RANK] = {0}, stride = 1, start = 0;
    bool aligned;
    ct_leaf(ir, v, &aligned);
    if (aligned)
        return true;
    for (const ir_insn *d; (d = ir_def(ir, v)) && ct_is_view(ir, d); v = ir_args(ir, d)[0])
        if (!map_view(ir, d, &m))
            return false;
    ir_type from = ir_typeof(ir, v);
    for (int d = from.rank - 1; d >= 0; stride *= from.dim[d--]) {
        start += stride * m.add[d];
        if (m.of[d] >= 0)
            step[m.of[d]] += stride;
    }
    stride = 1;
    for (int d = t.rank - 1; d >= 0; stride *= t.dim[d--])
        if (t.dim[d] != 1 && step[d] < stride)
            return false;
    return start >= 0;
}

/* Where instruction i of a group is printed: inlined ones with their only user. */
static uint32_t printed_at(const ct *g, uint32_t i)
{
    const eas_ir *ir = g->ir;
    while (ir->insns[i].nres && g->inlined[ir->insns[i].res]) {
        uint32_t v = ir->insns[i].res;
        for (bool found = false; !found;) {
            const ir_insn *user = &ir->insns[++i];
            for (int k = 0; k < user->nargs; k++)
                found = found || ir_args(ir, user)[k] == v;
        }
    }
    return i;
}

/* v, computed at `def`, may overwrite `old` in the loop that both stand in: no later statement or lane
 * reads what is gone. */
static bool in_place(const ct *g, uint32_t old, uint32_t def)
{
    const eas_ir *ir = g->ir;
    uint32_t group = g->group[def];
    for (uint32_t i = g->first[group]; i <= g->last[group]; i++) {
        const ir_insn *in = &ir->insns[i];
        if (g->group[i] != group)
            continue;
        for (int k = 0; k < in->nargs; k++) {
            bool aligned;
            if (ct_leaf(ir, ir_args(ir, in)[k], &aligned) != old)
                continue;
            if (printed_at(g, i) > def || !reads_forward(ir, ir_args(ir, in)[k]) || in->op == IR_DOT ||
                ir_is_fold(in))
                return false;
        }
    }
    return true;
}

typedef struct sharing {
    const ct *g;
    ir_lives lives; /* points are instructions */
} sharing;

static bool is_free(const void *ctx, const ir_slot *s, uint32_t v)
{
    const sharing *x = ctx;
    const ct *g = x->g;
    const eas_ir *ir = g->ir;
    uint32_t def = ir->vals[v].def, group = g->group[def], over = x->lives.of[s->holder].last;
    if (ir_typeof(ir, s->owner).dtype != ir_typeof(ir, v).dtype ||
        !encloses(g, g->region[ir->vals[s->owner].def], g->region[def]))
        return false;
    return over < g->first[group] || (over <= g->last[group] && g->group[ir->vals[s->holder].def] != group &&
                                      in_place(g, s->holder, def));
}

/* ---- what a loop carries ---- */

/* Does everything that reads the carried block come before v, or read no more than its own lane up to
 * there? */
static bool read_before(const ct *g, uint32_t carried, uint32_t v, uint32_t end)
{
    const eas_ir *ir = g->ir;
    const uint32_t def = ir->vals[v].def, group = g->group[def];
    for (uint32_t i = g->last[group] + 1; i <= end; i++)
        for (int k = 0; k < ir->insns[i].nargs; k++) {
            bool aligned;
            if (ct_leaf(ir, ir_args(ir, &ir->insns[i])[k], &aligned) == carried)
                return false;
        }
    return in_place(g, carried, def);
}

/* The next value of a carried block is computed in the carried block's own array if the old value is not read
 * any more. */
static void carry_in_place(ct *g, uint32_t open, uint32_t end)
{
    const eas_ir *ir = g->ir;
    const ir_insn *in = &ir->insns[end];
    const uint32_t first = ir->insns[open].res + (ir->insns[open].op == IR_LOOP ? 1 : 0);
    for (int k = 0; k < in->nargs; k++) {
        const uint32_t v = ir_args(ir, in)[k], carried = first + (uint32_t)k, def = ir->vals[v].def;
        if (!is_block(ir_typeof(ir, v)) || !g->array[v] || g->array_of[v] || def == UINT32_MAX ||
            def < open || !g->group[def])
            continue;
        if (g->opener[g->region[def]] == open && !ir_is_fold(&ir->insns[def]) &&
            read_before(g, carried, v, end))
            g->array_of[v] = carried;
    }
}

static void carry_all(ct *g)
{
    const uint32_t *end = ir_region_ends(g->ir, &g->mem);
    for (uint32_t i = 0; end && i < g->ir->ninsns; i++)
        if (g->ir->insns[i].op == IR_LOOP || g->ir->insns[i].op == IR_WHILE)
            carry_in_place(g, i, end[i]);
}

void ct_share_arrays(ct *g)
{
    const eas_ir *ir = g->ir;
    sharing x = {.g = g};
    ir_slots slots = {0};
    if (g->lanes)
        carry_all(g);
    if (!find_lives(g, &x.lives))
        return;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const uint32_t v = ir->insns[i].res;
        if (!g->group[i] || !v || !g->array[v] || g->array_of[v])
            continue;
        const uint64_t lanes = (uint64_t)ir_lanes(ir_typeof(ir, v));
        const ir_slot *shared = ir_slot_take(&slots, lanes, v, is_free, &x);
        g->array_of[v] = shared ? shared->owner : v;
        if (!shared && !ir_slot_add(&slots, 0, lanes, v))
            g->mem.oom = true;
    }
    vec_free(&slots);
}
