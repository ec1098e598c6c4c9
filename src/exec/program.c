/* program.c: a plan: kernels in order, and the memory of every tensor between them. Made once for a structure, run any number of times.
 *
 * Memory comes from the device's pool just before a step needs it and goes back after the last one that does, so what is dead is used again; a result takes the memory of
 * an input that dies with it where the kernel reads and writes the same place.
 */
#include "exec.h"

#include <stdio.h>

_Atomic uint64_t plan_steps_done;

/* ---- making ---- */

typedef struct making {
    const fusion *f;
    const pgraph *g;
    plan *p;
    uint32_t *slot_of; /* per node */
    uint32_t packed[2]; /* slots of the running group's factors */
    VEC(slot) slots;
    VEC_PLAN_STEP steps;
} making;

static uint32_t new_slot(making *m, uint32_t leaf, eas_dtype dt, int rank, const eas_dim *shape)
{
    slot s = {.leaf = leaf, .dtype = (uint8_t)dt, .count = shape_count(rank, shape), .takes = SLOT_NONE};
    m->p->symbolic |= !dim_known(s.count);
    return vec_push(&m->slots, s) ? m->slots.len - 1 : SLOT_NONE;
}

static uint32_t slot_for(making *m, uint32_t node)
{
    const pnode *p = pass_at(m->g, node);
    if (m->slot_of[node] == SLOT_NONE)
        m->slot_of[node] = new_slot(m, p->kind == KIND_LEAF ? p->param : SLOT_NONE, (eas_dtype)p->dtype, p->rank, p->shape);
    return m->slot_of[node];
}

static struct plan_arg arg_of(making *m, const use *u)
{
    struct plan_arg a = {.what = (uint8_t)u->what, .dtype = u->dtype, .dim = u->dim};
    if (u->what == USE_SCRATCH) {
        a.what = USE_NODE;
        a.index = new_slot(m, SLOT_NONE, (eas_dtype)u->dtype, 1, &u->dim);
    } else if (u->what == USE_PACKED) {
        if (m->packed[u->node] == SLOT_NONE)
            m->packed[u->node] = new_slot(m, SLOT_NONE, (eas_dtype)u->dtype, 1, &u->dim);
        a.what = USE_NODE;
        a.index = m->packed[u->node];
    } else if (u->what == USE_NODE)
        a.index = slot_for(m, u->node);
    else if (u->what == USE_NUMBER)
        a.index = pass_at(m->g, u->node)->param;
    m->p->symbolic |= u->what == USE_DIM && !dim_known(u->dim);
    return a;
}

static void step_free(plan_step *s)
{
    if (s->kernel)
        eas_kernel_release(s->kernel);
    control_free(s->control);
    free(s->collective);
    native_free(s->native);
    free(s->args);
}

static eas_status add_step(making *m, eas_kernel *k, const eas_dim *grid, int nargs, const struct plan_arg *args, int nouts, uint32_t reuse)
{
    plan_step s = {.kernel = k ? eas_kernel_retain(k) : NULL, .nargs = nargs, .nouts = nouts, .reuse = reuse};
    memcpy(s.grid, grid, sizeof s.grid);
    for (int i = 0; i < 3; i++)
        m->p->symbolic |= !dim_known(grid[i]);
    s.args = malloc(sizeof *s.args * (size_t)(nargs + 1));
    if (s.args)
        memcpy(s.args, args, sizeof *args * (size_t)nargs);
    if (!s.args || !vec_push(&m->steps, s)) {
        step_free(&s);
        return base_fail_oom(sizeof s);
    }
    return EAS_OK;
}

static eas_status add_kernel(making *m, const kernel_use *u)
{
    struct plan_arg args[IR_MAX_PARAMS];
    int nouts = 0;
    for (uint32_t i = 0; i < u->params.len; i++) {
        args[i] = arg_of(m, &u->params.at[i]);
        nouts += u->params.at[i].written;
    }
    eas_status st = add_step(m, u->kernel, u->grid, (int)u->params.len, args, nouts, u->in_place ? slot_for(m, u->in_place) : SLOT_NONE);
    if (!st) {
        m->steps.at[m->steps.len - 1].alike = u->alike;
        m->steps.at[m->steps.len - 1].maps = u->maps;
    }
    return st;
}

static struct plan_arg number_arg(const pnode *x)
{
    return (struct plan_arg){.what = USE_NUMBER, .dtype = x->dtype, .index = x->fixed ? SLOT_NONE : x->param, .bits = x->words[0]};
}

/* ---- what outputs of calls hold before the launch ---- */

enum { BEGIN_BLOCK = 1024 };

/* begun(to, N [, from]): to = 0, or from */
static eas_status begin_kernel(eas_dtype dt, bool copy, eas_kernel **out)
{
    eas_builder *b;
    eas_ir *ir = NULL;
    eas_status st = eas_builder_new(copy ? "copy" : "zero", 0, &b);
    if (st)
        return st;
    eas_value to = eas_param_buffer(b, "to", dt), n = eas_param_scalar(b, "N", EAS_I64, 0), from = copy ? eas_param_buffer(b, "from", dt) : 0;
    eas_value at =
        eas_apply(b, IR_ADD, eas_apply(b, IR_MUL, eas_program_id(b, 0), eas_const_int(b, BEGIN_BLOCK), 0), eas_arange(b, 0, BEGIN_BLOCK), 0);
    eas_value inside = eas_apply(b, IR_LT, at, n, 0);
    eas_store(b, to, at, copy ? eas_load(b, from, at, inside, 0) : eas_const_typed(b, dt, 0, 0), inside);
    st = eas_builder_finish(b, &ir);
    if (!st)
        st = eas_kernel_new(ir, out);
    eas_ir_release(ir);
    eas_builder_free(b);
    return st;
}

static eas_status add_begin(making *m, uint32_t to, uint32_t from)
{
    const slot s = m->slots.at[to];
    const bool copy = from != SLOT_NONE;
    eas_kernel *k = NULL;
    eas_dim grid[3] = {1, 1, 1};
    struct plan_arg args[3] = {{.what = USE_NODE, .dtype = s.dtype, .index = to},
                               {.what = USE_DIM, .dtype = EAS_I64, .dim = s.count},
                               {.what = USE_NODE, .dtype = s.dtype, .index = from}};
    eas_status st = eas_dim_apply(EAS_DIM_ADD, s.count, BEGIN_BLOCK - 1, &grid[0]);
    if (!st)
        st = eas_dim_apply(EAS_DIM_FLOORDIV, grid[0], BEGIN_BLOCK, &grid[0]);
    if (!st)
        st = begin_kernel((eas_dtype)s.dtype, copy, &k);
    if (!st)
        st = add_step(m, k, grid, copy ? 3 : 2, args, 1, SLOT_NONE);
    eas_kernel_release(k);
    return st;
}

static eas_status add_begins(making *m, const pnode *p, uint32_t first)
{
    const node_extra *e = p->extra;
    eas_status st = EAS_OK;
    for (int i = 0; e->begin && i < e->nouts && !st; i++)
        if (e->begin[i] != EAS_BEGIN_ANY)
            st = add_begin(m, first + (uint32_t)i, e->begin[i] < 0 ? SLOT_NONE : slot_for(m, p->in[e->begin[i]]));
    return st;
}

/* A kernel of the user's: results first in the list of slots, parameters in its own order. */
static eas_status add_call(making *m, uint32_t node)
{
    const pnode *p = pass_at(m->g, node);
    const node_extra *e = p->extra;
    struct plan_arg args[IR_MAX_PARAMS];
    uint32_t first = m->slots.len;
    eas_dim grid[3];
    for (int i = 0; i < e->nouts; i++)
        if (new_slot(m, SLOT_NONE, e->outs[i].dtype, e->outs[i].rank, e->outs[i].shape) == SLOT_NONE)
            return base_fail_oom(sizeof(slot));
    for (int i = 0; i < e->nargs; i++) {
        eas_param want = eas_ir_param(eas_kernel_ir(e->kernel), i);
        args[i] = (struct plan_arg){.what = USE_NODE, .dtype = (uint8_t)want.dtype};
        if (e->order[i] < 0) {
            args[i].index = first + (uint32_t)(-1 - e->order[i]);
            continue;
        }
        uint32_t in = p->in[e->order[i]];
        const pnode *x = pass_at(m->g, in);
        if (want.is_buffer) {
            args[i].index = slot_for(m, in);
        } else if (x->kind == KIND_CONST) {
            args[i] = number_arg(x);
        } else {
            return base_fail(EAS_ERR_TYPE, "eager: kernel %s takes a number for \"%s\", and a tensor is given", eas_ir_name(eas_kernel_ir(e->kernel)),
                             want.name);
        }
    }
    m->slot_of[node] = first;
    for (int i = 0; i < 3; i++)
        grid[i] = e->launch.has_grid ? e->launch.grid[i] : -1;
    eas_status st = add_begins(m, p, first);
    if (!st)
        st = add_step(m, e->kernel, grid, e->nargs, args, 0, SLOT_NONE);
    if (!st)
        m->steps.at[m->steps.len - 1].nouts = -e->nouts; /* they are slots first .. first + nouts */
    if (!st && e->nouts)
        m->steps.at[m->steps.len - 1].reuse = first;
    return st;
}

/* A step that is no kernel of ours: inputs are read and results written where they lie. tensors: how many inputs are in memory; those behind them are numbers. */
static eas_status add_opaque(making *m, uint32_t node, int tensors)
{
    const pnode *p = pass_at(m->g, node);
    const node_extra *e = p->extra;
    uint32_t first = m->slots.len;
    struct plan_arg *args = calloc((size_t)p->nin + 1, sizeof *args);
    eas_status st = args ? EAS_OK : base_fail_oom(p->nin);
    for (int i = 0; i < e->nouts && !st; i++)
        if (new_slot(m, SLOT_NONE, e->outs[i].dtype, e->outs[i].rank, e->outs[i].shape) == SLOT_NONE)
            st = base_fail_oom(sizeof(slot));
    for (int i = 0; i < p->nin && !st; i++) {
        const pnode *x = pass_at(m->g, p->in[i]);
        args[i] = i < tensors ? (struct plan_arg){.what = USE_NODE, .dtype = x->dtype, .index = slot_for(m, p->in[i])} : number_arg(x);
        if (args[i].what == USE_NODE && args[i].index == SLOT_NONE)
            st = base_fail_oom(sizeof(slot));
    }
    m->slot_of[node] = first;
    if (!st)
        st = add_step(m, NULL, (eas_dim[3]){1, 1, 1}, p->nin, args, -e->nouts, first);
    free(args);
    return st;
}

/* A loop or a branch, with plans in place of a kernel. */
static eas_status add_control(making *m, uint32_t node)
{
    const node_extra *e = pass_at(m->g, node)->extra;
    eas_status st = add_opaque(m, node, e->control->nin);
    return st ? st : control_new(e->control, m->p->device, m->f->variant, &m->steps.at[m->steps.len - 1].control);
}

/* Devices exchange what is in memory. */
static eas_status add_collective(making *m, uint32_t node)
{
    const pnode *p = pass_at(m->g, node);
    const size_t size = sizeof *p->words * p->nwords;
    int64_t *words = malloc(size + 1);
    if (!words)
        return base_fail_oom(size);
    memcpy(words, p->words, size);
    eas_status st = add_opaque(m, node, pass_at(m->g, node)->nin);
    if (st)
        free(words);
    else
        m->steps.at[m->steps.len - 1].collective = words;
    return st;
}

/* A function of the host's. */
static eas_status add_native(making *m, uint32_t node)
{
    const node_extra *e = pass_at(m->g, node)->extra;
    for (int i = 0; i < e->nnumbers; i++)
        m->p->symbolic |= dim_is_expr(e->numbers[i]);
    eas_status st = add_opaque(m, node, pass_at(m->g, node)->nin);
    return st ? st : native_new(e, &m->steps.at[m->steps.len - 1].native);
}

static eas_status add_lowered(making *m, uint32_t grp, int part)
{
    kernel_use u;
    eas_status st = lower_group(m->f, grp, part, &u);
    if (st)
        return st;
    st = add_kernel(m, &u);
    kernel_use_free(&u);
    return st;
}

static eas_status add_group(making *m, uint32_t grp)
{
    const group *g = &m->f->groups.at[grp];
    eas_status st = EAS_OK;
    if (g->roots.len == 0)
        return EAS_OK; /* became part of another */
    if (g->kind == GROUP_CALL)
        switch (pass_at(m->g, g->core)->kind) {
        case KIND_CALL: return pass_at(m->g, g->core)->extra->native ? add_native(m, g->core) : add_call(m, g->core);
        case KIND_COLLECTIVE: return add_collective(m, g->core);
        default: return add_control(m, g->core);
        }
    if (g->kind == GROUP_ALIAS) {
        const pnode *p = pass_at(m->g, g->core);
        m->slot_of[g->core] = m->slot_of[p->in[0]] + (uint32_t)p->words[0];
        return EAS_OK;
    }
    const pnode *core = pass_at(m->g, g->core);
    int parts = g->kind == GROUP_CONCAT ? core->nin : g->kind == GROUP_SCATTER ? scatter_parts(core) : g->packed ? PACK_PARTS : 1;
    m->packed[0] = m->packed[1] = SLOT_NONE;
    for (int i = 0; i < parts && !st; i++)
        if (!g->packed || pack_copies(m->f, g, i))
            st = add_lowered(m, grp, i);
    return st;
}

/* ---- when memory is needed ---- */

static void lifetimes(making *m)
{
    for (uint32_t i = 0; i < m->steps.len; i++) {
        const plan_step *s = &m->steps.at[i];
        for (int k = 0; k < s->nargs; k++)
            if (s->args[k].what == USE_NODE)
                m->slots.at[s->args[k].index].last = i;
        for (int k = 0; k < -s->nouts; k++)
            if (m->slots.at[s->reuse + (uint32_t)k].last < i)
                m->slots.at[s->reuse + (uint32_t)k].last = i;
    }
}

/* One leaf may have several slots: views of it. Its memory is free when the last one of them is. */
static bool leaf_free_after(const making *m, uint32_t leaf, uint32_t step)
{
    for (uint32_t k = 0; k < m->slots.len; k++)
        if (m->slots.at[k].leaf == leaf && (m->slots.at[k].last > step || m->slots.at[k].kept))
            return false;
    return true;
}

static void take_over(making *m)
{
    for (uint32_t i = 0; i < m->steps.len; i++) {
        plan_step *s = &m->steps.at[i];
        if (s->nouts <= 0 || s->reuse == SLOT_NONE)
            continue;
        slot *to = &m->slots.at[s->args[0].index], *from = &m->slots.at[s->reuse];
        if (from->leaf == SLOT_NONE && !from->kept && from->last == i && from->count == to->count && from->dtype == to->dtype)
            to->takes = s->reuse;
        if (from->leaf == SLOT_NONE || from->last != i || from->count != to->count || !leaf_free_after(m, from->leaf, i))
            s->reuse = SLOT_NONE;
    }
}

/* Of inputs that are alike the results only leaves that nothing needs after the step can be taken. */
static void keep_takeable(making *m)
{
    for (uint32_t i = 0; i < m->steps.len; i++) {
        plan_step *s = &m->steps.at[i];
        for (int k = s->nouts > 0 ? s->nouts : 0; k < s->nargs && k < 64 && s->alike; k++) {
            const slot *from = s->args[k].what == USE_NODE ? &m->slots.at[s->args[k].index] : NULL;
            if (!from || from->leaf == SLOT_NONE || from->last != i || !leaf_free_after(m, from->leaf, i))
                s->alike &= ~(UINT64_C(1) << k);
        }
    }
}

/* ---- steps that run as one ---- */

typedef struct joining { /* what the steps so far, from the last that does not join, read and write: numbers of such runs */
    uint32_t run, length;
    uint32_t *read, *wrote; /* per slot */
    uint32_t *leaf; /* per leaf: read */
} joining;

static bool depends(const making *m, const joining *j, const plan_step *s)
{
    for (int k = 0; k < s->nargs; k++) {
        if (s->args[k].what != USE_NODE)
            continue;
        const uint32_t at = s->args[k].index, leaf = m->slots.at[at].leaf, takes = m->slots.at[at].takes;
        if (j->wrote[at] == j->run || (k < s->nouts && j->read[at] == j->run))
            return true;
        if (k < s->nouts && takes != SLOT_NONE && (j->read[takes] == j->run || j->wrote[takes] == j->run))
            return true;
        if (k >= s->nouts && leaf != SLOT_NONE && j->leaf[leaf] == j->run && ((k < 64 && s->alike >> k & 1) || s->reuse == at))
            return true; /* may be written in place, while the other reads it */
    }
    return false;
}

static void note(const making *m, joining *j, const plan_step *s)
{
    for (int k = 0; k < s->nargs; k++)
        if (s->args[k].what == USE_NODE) {
            const uint32_t at = s->args[k].index;
            (k < s->nouts ? j->wrote : j->read)[at] = j->run;
            if (m->slots.at[at].leaf != SLOT_NONE)
                j->leaf[m->slots.at[at].leaf] = j->run;
        }
    j->length++;
}

static eas_status join(making *m)
{
    const size_t n = 2 * (size_t)m->slots.len + m->p->nleaves + 1;
    uint32_t *room = calloc(n, sizeof *room);
    joining j = {.read = room, .wrote = room + m->slots.len, .leaf = room + 2 * (size_t)m->slots.len};
    if (!room)
        return base_fail_oom(n * sizeof *room);
    for (uint32_t i = 0; i < m->steps.len; i++) {
        plan_step *s = &m->steps.at[i];
        const bool can = s->maps && s->nouts > 0 && !s->control;
        s->joins = can && j.length && j.length < JOIN_MOST && !depends(m, &j, s);
        if (!s->joins) {
            j.run++;
            j.length = 0;
        }
        if (can)
            note(m, &j, s);
    }
    free(room);
    return EAS_OK;
}

/* ---- roots ---- */

/* Something to copy a tensor that is there already but not in C order. */
static uint32_t solid(pgraph *g, uint32_t i)
{
    const pnode *x = pass_at(g, i);
    if (x->kind != KIND_LEAF || !x->nwords)
        return i;
    pnode p = {.op = GRAPH_ALIAS, .kind = KIND_ALIAS, .dtype = x->dtype, .rank = x->rank, .nin = 1, .param = PARAM_NONE, .shape = x->shape, .in = &i};
    return pass_add(g, &p);
}

/* Groups with too many parameters are cut; then another try follows. */
static eas_status all_groups(making *m, uint32_t most, uint8_t *cuts, bool *cut)
{
    bool wide = false;
    for (uint32_t i = m->f->groups.len - 1; i > 0; i--) {
        eas_status st = add_group(m, i);
        if (st == EAS_ERR_UNAVAILABLE) {
            wide = true;
            *cut |= cut_group(m->f, i, most, cuts);
        } else if (st)
            return st;
    }
    return wide ? EAS_ERR_UNAVAILABLE : EAS_OK;
}

static uint32_t most_params(eas_device *d)
{
    const dev_limits l = d->limits(d);
    int64_t n = IR_MAX_PARAMS;
    if (l.buffers && l.buffers < n)
        n = l.buffers;
    if (l.params && l.params < n)
        n = l.params;
    return (uint32_t)n - 1; /* a kernel that checks indices has one more */
}

static void discard_steps(making *m)
{
    for (uint32_t i = 0; i < m->steps.len; i++)
        step_free(&m->steps.at[i]);
    vec_free(&m->steps);
    vec_free(&m->slots);
}

typedef struct wanted { /* what the plan hands back: positions of the walk, as nodes of the list */
    VEC(struct plan_out) outs;
} wanted;

static eas_status finish(making *m, const wanted *w, uint32_t nroots)
{
    plan *p = m->p;
    VEC(struct plan_out) outs = {0};
    for (uint32_t i = 0; i < w->outs.len; i++) {
        uint32_t node = w->outs.at[i].slot;
        bool there = fused_stored(m->f, node) && !(pass_at(m->g, node)->kind == KIND_LEAF && pass_at(m->g, node)->nwords);
        if (i >= nroots && (!there || pass_at(m->g, node)->kind == KIND_LEAF))
            continue; /* held, but nothing was stored on the way */
        struct plan_out o = {w->outs.at[i].position, slot_for(m, node)};
        if (o.slot == SLOT_NONE || !vec_push(&outs, o)) {
            vec_free(&outs);
            return base_fail_oom(sizeof o);
        }
        m->slots.at[o.slot].kept = true;
    }
    eas_status st = plan_order(m->steps.len, m->steps.at, m->slots.len, m->slots.at);
    if (!st)
        st = plan_overlap(&m->steps, m->slots.len, m->slots.at, &p->ncomms);
    if (st) {
        vec_free(&outs);
        return st;
    }
    lifetimes(m);
    take_over(m);
    keep_takeable(m);
    if ((st = join(m))) {
        vec_free(&outs);
        return st;
    }
    p->slots = m->slots.at;
    p->nslots = m->slots.len;
    p->steps = m->steps.at;
    p->nsteps = m->steps.len;
    p->outs = outs.at;
    p->nouts = outs.len;
    return EAS_OK;
}

/* Which products are laid out for the device's register tiles. */
static void choose_packed(fusion *f, eas_device *d)
{
    const dev_limits l = d->limits(d);
    memcpy(f->tile, l.tile, sizeof f->tile);
    f->bf16_products = l.bf16_products;
    for (uint32_t i = 1; i < f->groups.len; i++)
        f->groups.at[i].packed = pack_wanted(f, &f->groups.at[i]) && !conv_rows(f, &f->groups.at[i]);
}

typedef struct tries { /* what one try tells the next */
    uint32_t limit; /* nodes in a group */
    uint32_t most; /* parameters that cuts aim at */
    uint8_t *cuts;
    bool cut; /* did the last one find some? */
} tries;

static eas_status attempt(pgraph *g, plan *p, const wanted *w, uint32_t nroots, tries *t, int variant)
{
    fusion f;
    uint32_t *roots = malloc(sizeof *roots * (nroots + 1));
    making m = {.f = &f, .g = g, .p = p};
    if (!roots)
        return base_fail_oom(nroots);
    for (uint32_t i = 0; i < nroots; i++)
        roots[i] = w->outs.at[i].slot;
    eas_status st = fuse(&f, g, nroots, roots, t->limit, t->cuts);
    f.variant = variant;
    f.params = most_params(p->device);
    t->cut = false;
    if (!st)
        choose_packed(&f, p->device);
    m.slot_of = malloc(sizeof *m.slot_of * g->n.len);
    if (!m.slot_of)
        st = base_fail_oom(g->n.len);
    for (uint32_t i = 0; i < g->n.len && !st; i++)
        m.slot_of[i] = SLOT_NONE;
    if (!st)
        st = all_groups(&m, t->most, t->cuts, &t->cut);
    if (!st)
        st = finish(&m, w, nroots);
    if (st)
        discard_steps(&m);
    fuse_free(&f);
    free(roots);
    free(m.slot_of);
    return st;
}

static eas_status want(pgraph *g, const pass_walk *walk, const uint32_t *at, uint32_t nroots, eas_node *const *roots, wanted *w)
{
    for (uint32_t i = 0; i < nroots + walk->held.len; i++) {
        uint32_t position = i < nroots ? roots[i]->mark : walk->held.at[i - nroots];
        bool root = i < nroots;
        for (uint32_t k = 0; !root && k < nroots; k++)
            if (roots[k]->mark == position)
                position = SLOT_NONE; /* asked for anyway */
        if (position == SLOT_NONE)
            continue;
        struct plan_out o = {position, root ? solid(g, at[position]) : at[position]};
        if (!vec_push(&w->outs, o))
            return base_fail_oom(sizeof o);
    }
    return g->st;
}

/* First as large as groups get, with cuts where that is too much, three quarters of the parameters, then half, and so on; at last with small groups. */
static eas_status try_all(pgraph *g, plan *p, const wanted *w, uint32_t nroots, int variant)
{
    static const uint32_t limits[] = {256, 16, 4, 1};
    enum { ROUNDS = 12 };
    eas_status st = EAS_ERR_UNAVAILABLE;
    tries t = {.cuts = calloc(g->n.len, 1)};
    if (!t.cuts)
        return base_fail_oom(g->n.len);
    for (int i = 0; i < 4 && st == EAS_ERR_UNAVAILABLE; i++) {
        t.limit = limits[i];
        t.most = most_params(p->device);
        t.cut = true;
        for (int k = 0; k < ROUNDS && t.cut && st == EAS_ERR_UNAVAILABLE; k++) {
            t.most = t.most * 3 / 4;
            st = attempt(g, p, w, nroots, &t, variant);
        }
    }
    free(t.cuts);
    return st == EAS_ERR_UNAVAILABLE
             ? base_fail(EAS_ERR_VALUE, "eager: one operation takes more tensors than a kernel of device \"%s\" has parameters (%u)",
                         eas_device_name(p->device), most_params(p->device))
             : st;
}

eas_status plan_new(const pass_walk *walk, uint32_t nroots, eas_node *const *roots, eas_device *d, int variant, plan **out)
{
    pgraph g;
    wanted w = {0};
    plan *p = calloc(1, sizeof *p);
    uint32_t *at = malloc(sizeof *at * (walk->order.len + 1));
    eas_status st = pass_init(&g);
    if (!p || !at)
        st = base_fail_oom(sizeof *p);
    if (!st) {
        atomic_init(&p->refs, 1);
        p->device = d;
        p->nleaves = walk->leaves.len;
        st = pass_flatten(&g, walk, at);
    }
    if (!st)
        st = want(&g, walk, at, nroots, roots, &w);
    if (!st)
        st = try_all(&g, p, &w, nroots, variant);
    vec_free(&w.outs);
    free(at);
    pass_free(&g);
    if (st) {
        free(p);
        p = NULL;
    }
    *out = p;
    return st;
}

bool plan_same(const plan *a, const plan *b)
{
    bool same = a->nsteps == b->nsteps;
    for (uint32_t i = 0; same && i < a->nsteps; i++)
        same = a->steps[i].kernel == b->steps[i].kernel && control_same(a->steps[i].control, b->steps[i].control) &&
               native_same(a->steps[i].native, b->steps[i].native);
    return same;
}

void plan_release(plan *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    for (uint32_t i = 0; i < p->nsteps; i++)
        step_free(&p->steps[i]);
    free(p->steps);
    free(p->slots);
    free(p->outs);
    free(p);
}

/* ---- running ---- */

typedef struct running {
    const plan *p;
    const plan_run *r;
    eas_buffer **buf; /* per slot */
    bool *owned; /* counted by the run */
    struct started {
        void *request;
        bool open;
    } *started; /* per collective */
    uint32_t nstarted; /* that are open */
} running;

static eas_status size_of(const running *x, eas_dim d, int64_t *out)
{
    if (dim_known(d)) {
        *out = d;
        return EAS_OK;
    }
    return dim_eval(d, x->r->nsymbols, x->r->symbols, x->r->sizes, out);
}

static eas_status need(running *x, uint32_t i)
{
    const slot *s = &x->p->slots[i];
    int64_t n;
    if (x->buf[i])
        return EAS_OK;
    if (s->takes != SLOT_NONE && x->owned[s->takes]) {
        x->buf[i] = x->buf[s->takes];
        x->owned[i] = true;
        x->owned[s->takes] = false; /* still read by this step, from the same place */
        return EAS_OK;
    }
    eas_status st = size_of(x, s->count, &n);
    if (st)
        return st;
    if (n < 0 || (uint64_t)n > SIZE_MAX / 16)
        return base_fail(EAS_ERR_MEMORY, "eager: a tensor of %lld elements", (long long)n);
    st = eas_buffer_new(x->p->device, (size_t)n * eas_dtype_size((eas_dtype)s->dtype), &x->buf[i]);
    x->owned[i] = !st;
    return st;
}

/* The memory of a leaf that was given away becomes the first result's. */
static void take_given(running *x, const plan_step *s)
{
    if (s->nouts <= 0 || s->reuse == SLOT_NONE || !x->r->given)
        return;
    uint32_t to = s->args[0].index, leaf = x->p->slots[s->reuse].leaf;
    if (leaf == SLOT_NONE || !x->r->given[leaf] || x->buf[to] ||
        eas_buffer_size(x->buf[s->reuse]) != (size_t)x->p->slots[to].count * eas_dtype_size((eas_dtype)x->p->slots[to].dtype))
        return;
    x->buf[to] = eas_buffer_retain(x->buf[s->reuse]);
    x->owned[to] = true;
}

/* The same for every result that is alike a leaf that was given away. */
static void take_alike(running *x, const plan_step *s)
{
    uint64_t left = s->alike;
    if (!left || !x->r->given)
        return;
    for (int i = 0; i < s->nouts && i < 64; i++) {
        const uint32_t to = s->args[i].index;
        if (!(s->alike >> i & 1) || x->buf[to])
            continue;
        for (int k = s->nouts; k < s->nargs && k < 64; k++) {
            const uint32_t from = s->args[k].index;
            if (!(left >> k & 1) || from == s->reuse || !x->r->given[x->p->slots[from].leaf] ||
                eas_buffer_size(x->buf[from]) != (size_t)x->p->slots[to].count * eas_dtype_size((eas_dtype)x->p->slots[to].dtype))
                continue;
            x->buf[to] = eas_buffer_retain(x->buf[from]);
            x->owned[to] = true;
            left &= ~(UINT64_C(1) << k);
            break;
        }
    }
}

static eas_status fill_arg(running *x, const struct plan_arg *a, eas_arg *out)
{
    memset(out, 0, sizeof *out);
    out->dtype = a->dtype;
    if (a->what == USE_NODE) {
        const eas_buffer *b = x->buf[a->index];
        out->is_buffer = 1;
        out->v.data = eas_buffer_address(b);
        out->count = (int64_t)(eas_buffer_size(b) / eas_dtype_size((eas_dtype)a->dtype));
        return EAS_OK;
    }
    if (a->what == USE_DIM)
        return size_of(x, a->dim, &out->v.i);
    int64_t bits = a->index == SLOT_NONE ? a->bits : x->r->numbers[a->index];
    if (dtype_is_float((eas_dtype)a->dtype))
        out->v.f = ir_bits_to_double((eas_dtype)a->dtype, bits);
    else
        out->v.i = bits;
    return EAS_OK;
}

/* Kernels of our own only fail where an index is data; what the kernel says of its memory is no use to the one who wrote it. */
static eas_status bad_index(void)
{
    char place[512] = "";
    const char *text = eas_error_message(), *colon = strchr(text, ':'), *end = colon ? strchr(colon + 1, ':') : NULL;
    if (end && end - text < (ptrdiff_t)sizeof place && colon[1] >= '0' && colon[1] <= '9')
        snprintf(place, sizeof place, "%.*s: ", (int)(end - text), text);
    return base_fail(EAS_ERR_INDEX, "%san index is out of range for the axis that it selects from", place);
}

static eas_status run_control(running *x, const plan_step *s)
{
    enum { FEW = 32 };
    eas_buffer *few[FEW], **in = s->nargs <= FEW ? few : malloc(sizeof *in * (size_t)s->nargs);
    int64_t numbers_few[FEW], *numbers = s->nargs <= FEW ? numbers_few : malloc(sizeof *numbers * (size_t)s->nargs);
    int nin = 0, nnumbers = 0;
    eas_status st = in && numbers ? EAS_OK : base_fail_oom((size_t)s->nargs);
    for (int i = 0; i < s->nargs && !st; i++) {
        const struct plan_arg *a = &s->args[i];
        if (a->what != USE_NODE) {
            numbers[nnumbers++] = a->index == SLOT_NONE ? a->bits : x->r->numbers[a->index];
            continue;
        }
        st = need(x, a->index);
        in[nin++] = x->buf[a->index];
    }
    if (!st)
        st = control_run(s->control, x->r, x->p->device, in, numbers, &x->buf[s->reuse]);
    for (int i = 0; i < -s->nouts && !st; i++)
        x->owned[s->reuse + (uint32_t)i] = true;
    if (in != few)
        free(in);
    if (numbers != numbers_few)
        free(numbers);
    return st;
}

static eas_status start_collective(running *x, const plan_step *s)
{
    enum { FEW = 8 };
    int n = s->nargs / 2;
    eas_dtype few_dtypes[FEW], *dtypes = n <= FEW ? few_dtypes : malloc(sizeof *dtypes * (size_t)n);
    eas_buffer *few[2 * FEW], **bufs = n <= FEW ? few : malloc(sizeof *bufs * (size_t)s->nargs);
    eas_status st = bufs && dtypes ? EAS_OK : base_fail_oom((size_t)s->nargs);
    for (int i = 0; i < s->nargs && !st; i++) {
        st = need(x, s->args[i].index);
        bufs[i] = x->buf[s->args[i].index];
    }
    for (int i = 0; i < n && !st; i++)
        dtypes[i] = (eas_dtype)s->args[i].dtype;
    if (!st)
        st = x->r->comm->start(x->r->comm->ctx, s->collective, n, dtypes, bufs, bufs + n, x->r->hooks, &x->started[s->number].request);
    x->started[s->number].open = !st;
    x->nstarted += !st;
    if (bufs != few)
        free(bufs);
    if (dtypes != few_dtypes)
        free(dtypes);
    return st;
}

static eas_status wait_collective(running *x, uint32_t number)
{
    x->started[number].open = false;
    x->nstarted--;
    return x->r->comm->wait(x->r->comm->ctx, x->started[number].request, x->r->hooks);
}

static eas_status run_collective(running *x, const plan_step *s) { return s->phase == STEP_START ? start_collective(x, s) : wait_collective(x, s->number); }

/* After a failure: nobody may write to memory that is let go. */
static void abandon_collectives(running *x)
{
    for (uint32_t i = 0; x->started && i < x->p->ncomms; i++)
        if (x->started[i].open)
            wait_collective(x, i);
}

static eas_launch options_of(const running *x)
{
    eas_launch o = {.size = sizeof o, .has_grid = 1};
    if (x->r->hooks)
        o = *x->r->hooks;
    o.has_grid = 1;
    return o;
}

/* Steps that do not depend on each other: one launch. Memory of all is there before any runs, and let go of after. */
static eas_status run_many(running *x, const plan_step *s, int n)
{
    kernel_call calls[JOIN_MOST];
    int nargs = 0, count = 0;
    for (int i = 0; i < n; i++)
        nargs += s[i].nargs;
    eas_arg *args = malloc((size_t)nargs * sizeof *args), *at = args;
    eas_status st = args ? EAS_OK : base_fail_oom((size_t)nargs * sizeof *args);
    for (int i = 0; i < n && !st; i++) {
        kernel_call *c = &calls[count];
        *c = (kernel_call){.kernel = s[i].kernel, .args = at, .nargs = s[i].nargs};
        bool empty = false;
        take_given(x, &s[i]);
        take_alike(x, &s[i]);
        for (int k = 0; k < s[i].nargs && !st; k++)
            if (s[i].args[k].what == USE_NODE)
                st = need(x, s[i].args[k].index);
        for (int k = 0; k < 3 && !st; k++) {
            st = size_of(x, s[i].grid[k], &c->grid[k]);
            empty |= c->grid[k] == 0;
        }
        for (int k = 0; k < s[i].nargs && !st && !empty; k++)
            st = fill_arg(x, &s[i].args[k], at++);
        count += !empty;
    }
    eas_launch o = options_of(x);
    atomic_fetch_add_explicit(&plan_steps_done, count > 0, memory_order_relaxed);
    if (!st && count)
        st = kernel_launch_many(count, calls, x->p->device, &o);
    free(args);
    return st == EAS_ERR_INDEX ? bad_index() : st;
}

static eas_status run_native(running *x, const plan_step *s)
{
    enum { MOST = 16 };
    eas_buffer *in[MOST];
    eas_status st = EAS_OK;
    for (int i = 0; i < s->nargs && !st; i++) {
        st = need(x, s->args[i].index);
        in[i] = x->buf[s->args[i].index];
    }
    for (int i = 0; i < -s->nouts && !st; i++)
        st = need(x, s->reuse + (uint32_t)i);
    atomic_fetch_add_explicit(&plan_steps_done, 1, memory_order_relaxed);
    return st ? st : native_run(s->native, x->r, x->p->device, s->nargs, in, -s->nouts, &x->buf[s->reuse]);
}

static eas_status run_step(running *x, const plan_step *s)
{
    eas_arg args[IR_MAX_PARAMS];
    eas_launch o = options_of(x);
    eas_status st = EAS_OK;
    take_given(x, s);
    take_alike(x, s);
    for (int i = 0; i < s->nargs && !st; i++)
        if (s->args[i].what == USE_NODE)
            st = need(x, s->args[i].index);
    for (int i = 0; i < -s->nouts && !st; i++)
        st = need(x, s->reuse + (uint32_t)i);
    if (s->grid[0] == -1) /* a kernel of the user's that finds its own */
        o.has_grid = 0;
    for (int i = 0; i < 3 && !st && o.has_grid; i++) {
        st = size_of(x, s->grid[i], &o.grid[i]);
        if (!st && o.grid[i] == 0)
            return EAS_OK;
    }
    for (int i = 0; i < s->nargs && !st; i++)
        st = fill_arg(x, &s->args[i], &args[i]);
    atomic_fetch_add_explicit(&plan_steps_done, 1, memory_order_relaxed);
    if (!st)
        st = eas_kernel_launch(s->kernel, x->p->device, args, s->nargs, &o);
    return st == EAS_ERR_INDEX && s->nouts > 0 ? bad_index() : st;
}

static void let_go_after(running *x, uint32_t step)
{
    const plan_step *s = &x->p->steps[step];
    for (int i = 0; i < s->nargs; i++) {
        uint32_t k = s->args[i].index;
        if (s->args[i].what != USE_NODE || x->p->slots[k].last != step || x->p->slots[k].kept || !x->owned[k])
            continue;
        eas_buffer_release(x->buf[k]);
        x->buf[k] = NULL;
        x->owned[k] = false;
    }
}

static eas_status hand_over(running *x, eas_buffer **outs)
{
    for (uint32_t i = 0; i < x->p->nouts; i++) {
        uint32_t k = x->p->outs[i].slot;
        eas_status st = need(x, k); /* of a tensor that no step wrote: it is empty */
        if (st) {
            while (i > 0)
                eas_buffer_release(outs[--i]);
            return st;
        }
        outs[i] = eas_buffer_retain(x->buf[k]);
    }
    return EAS_OK;
}

eas_status plan_go(plan *p, const plan_run *r, eas_buffer **outs)
{
    enum { FEW = 64 };
    eas_buffer *few[FEW];
    bool few_owned[FEW];
    running x = {.p = p, .r = r, .buf = few, .owned = few_owned};
    eas_status st = EAS_OK;
    if (p->nslots > FEW) {
        x.buf = malloc(sizeof *x.buf * p->nslots);
        x.owned = malloc(sizeof *x.owned * p->nslots);
    }
    if (!x.buf || !x.owned)
        st = base_fail_oom(p->nslots);
    for (uint32_t i = 0; i < p->nslots && !st; i++) {
        uint32_t leaf = p->slots[i].leaf;
        x.owned[i] = false;
        x.buf[i] = leaf == SLOT_NONE ? NULL : r->bufs ? r->bufs[leaf] : atomic_load_explicit(&r->leaves[leaf]->buf, memory_order_acquire);
    }
    if (p->ncomms && !st && !(x.started = calloc(p->ncomms, sizeof *x.started)))
        st = base_fail_oom(p->ncomms);
    bool ready = !st;
    for (uint32_t i = 0; r->places && i < p->nouts && !st; i++) {
        uint32_t k = p->outs[i].slot;
        if (r->places[i] && p->slots[k].leaf == SLOT_NONE && !x.buf[k])
            x.buf[k] = r->places[i];
    }
    for (uint32_t i = 0, n; i < p->nsteps && !st; i += n) {
        for (n = 1; i + n < p->nsteps && p->steps[i + n].joins; n++)
            ;
        const plan_step *s = &p->steps[i];
        if (n > 1)
            st = run_many(&x, s, (int)n);
        else
            st = s->control ? run_control(&x, s) : s->collective ? run_collective(&x, s) : s->native ? run_native(&x, s) : run_step(&x, s);
        for (uint32_t k = i; k < i + n && !st; k++)
            let_go_after(&x, k);
        if (x.nstarted && !st)
            r->comm->poll(r->comm->ctx);
    }
    if (st && x.nstarted) { /* the first failure is the one that counts */
        char text[1024];
        snprintf(text, sizeof text, "%s", eas_error_message());
        abandon_collectives(&x);
        st = base_fail(st, "%s", text);
    }
    free(x.started);
    if (!st)
        st = hand_over(&x, outs);
    for (uint32_t i = 0; i < p->nslots && ready; i++)
        if (x.owned[i])
            eas_buffer_release(x.buf[i]);
    if (x.buf != few) {
        free(x.buf);
        free(x.owned);
    }
    return st;
}
