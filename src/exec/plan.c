/* plan.c: makes a plan: kernels in order, and the memory of every tensor between them. Made once for a
 * structure, run any number of times (plan_run.c).
 *
 * Memory comes from the device's pool just before a step needs it and goes back after the last one that does,
 * so what is dead is used again; a result takes the memory of an input that dies with it where the kernel
 * reads and writes the same place.
 */
#include "exec.h"

#include "../native/native.h"

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
        m->slot_of[node] =
            new_slot(m, p->kind == KIND_LEAF ? p->param : SLOT_NONE, (eas_dtype)p->dtype, p->rank, p->shape);
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

static eas_status add_step(making *m, eas_kernel *k, const eas_dim *grid, int nargs,
                           const struct plan_arg *args, int nouts, uint32_t reuse)
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
    eas_status st = add_step(m, u->kernel, u->grid, (int)u->params.len, args, nouts,
                             u->in_place ? slot_for(m, u->in_place) : SLOT_NONE);
    if (!st) {
        m->steps.at[m->steps.len - 1].alike = u->alike;
        m->steps.at[m->steps.len - 1].maps = u->maps;
        m->steps.at[m->steps.len - 1].indexed = u->indexed;
        m->steps.at[m->steps.len - 1].copies = u->copies;
    }
    return st;
}

static struct plan_arg number_arg(const pnode *x)
{
    return (struct plan_arg){
        .what = USE_NUMBER, .dtype = x->dtype, .index = x->fixed ? SLOT_NONE : x->param, .bits = x->words[0]};
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
    eas_value to = eas_builder_param_buffer(b, "to", dt), n = eas_builder_param_scalar(b, "N", EAS_I64, 0),
              from = copy ? eas_builder_param_buffer(b, "from", dt) : 0;
    eas_value at = eas_builder_apply(
        b, IR_ADD,
        eas_builder_apply(b, IR_MUL, eas_builder_program_id(b, 0), eas_builder_const_int(b, BEGIN_BLOCK), 0),
        eas_builder_arange(b, 0, BEGIN_BLOCK), 0);
    eas_value inside = eas_builder_apply(b, IR_LT, at, n, 0);
    eas_builder_store(b, to, at,
                      copy ? eas_builder_load(b, from, at, inside, 0) : eas_builder_const_typed(b, dt, 0, 0),
                      inside);
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
            st = add_begin(m, first + (uint32_t)i,
                           e->begin[i] < 0 ? SLOT_NONE : slot_for(m, p->in[e->begin[i]]));
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
            return base_fail(EAS_ERR_TYPE,
                             "eager: kernel %s takes a number for \"%s\", and a tensor is given",
                             eas_ir_name(eas_kernel_ir(e->kernel)), want.name);
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

/* A step that is no kernel of ours: inputs are read and results written where they lie. tensors: how many
 * inputs are in memory; those behind them are numbers. */
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
        args[i] = i < tensors
                    ? (struct plan_arg){.what = USE_NODE, .dtype = x->dtype, .index = slot_for(m, p->in[i])}
                    : number_arg(x);
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
    return st ? st
              : control_new(e->control, m->p->device, m->f->variant, &m->steps.at[m->steps.len - 1].control);
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

/* Rows that the host sorts. */
static eas_status add_sort(making *m, uint32_t node)
{
    const pnode *p = pass_at(m->g, node);
    const eas_dtype dt = (eas_dtype)pass_at(m->g, p->in[0])->dtype;
    const eas_dim numbers[] = {eas_dtype_kind(dt),    (eas_dim)eas_dtype_size(dt),
                               m->f->sort_bytes,      shape_count(p->rank - 1, p->shape),
                               p->shape[p->rank - 1], p->words[1] != 0};
    const int n = (int)(sizeof numbers / sizeof *numbers);
    const node_extra e = {.native = native_find(graph_rows[p->op].name),
                          .nnumbers = n,
                          .numbers = (eas_dim *)(uintptr_t)numbers};
    struct plan_arg in = {.what = USE_NODE, .dtype = (uint8_t)dt, .index = slot_for(m, p->in[0])};
    const uint32_t out = slot_for(m, node);
    if (in.index == SLOT_NONE || out == SLOT_NONE)
        return base_fail_oom(sizeof(slot));
    m->p->symbolic |= dim_is_expr(numbers[3]);
    eas_status st = add_step(m, NULL, (eas_dim[3]){1, 1, 1}, 1, &in, -1, out);
    return st ? st : native_new(&e, &m->steps.at[m->steps.len - 1].native);
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
        return EAS_OK; /* it was merged into another group */
    if (g->kind == GROUP_CALL)
        switch (pass_at(m->g, g->core)->kind) {
        case KIND_CALL:
            return pass_at(m->g, g->core)->extra->native ? add_native(m, g->core) : add_call(m, g->core);
        case KIND_COLLECTIVE: return add_collective(m, g->core);
        default: return add_control(m, g->core);
        }
    if (g->kind == GROUP_SORT && sort_by_host(m->f, pass_at(m->g, g->core)))
        return add_sort(m, g->core);
    if (g->kind == GROUP_ALIAS) {
        const pnode *p = pass_at(m->g, g->core);
        m->slot_of[g->core] = m->slot_of[p->in[0]] + (uint32_t)p->words[0];
        return EAS_OK;
    }
    const int parts = group_parts(m->f, g);
    m->packed[0] = m->packed[1] = SLOT_NONE;
    for (int i = 0; i < parts && !st; i++) {
        if (g->packed && !pack_copies(m->f, g, i))
            continue;
        st = add_lowered(m, grp, i);
        if (!st && g->packed && i != PACK_PRODUCT) {
            plan_step *s = &m->steps.at[m->steps.len - 1];
            s->packs = packs_can_keep(s, m->slots.at);
        }
    }
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

/* Is the memory of a leaf free after this step? A leaf may have several slots, one for each view of it: its
 * memory is free when that of the last one is. */
static bool leaf_free_after(const making *m, uint32_t leaf, uint32_t step)
{
    for (uint32_t k = 0; k < m->slots.len; k++)
        if (m->slots.at[k].leaf == leaf && (m->slots.at[k].last > step || m->slots.at[k].kept))
            return false;
    return true;
}

/* Which slot of each leaf is the last one that needs its memory. */
static eas_status leaf_ends(making *m)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < m->slots.len; k++)
        if (m->slots.at[k].leaf != SLOT_NONE && m->slots.at[k].leaf >= n)
            n = m->slots.at[k].leaf + 1;
    uint32_t *last = calloc((size_t)n + 1, sizeof *last); /* per leaf; UINT32_MAX: it is a result */
    if (!last)
        return base_fail_oom(sizeof *last * n);
    for (uint32_t k = 0; k < m->slots.len; k++) {
        const slot *s = &m->slots.at[k];
        if (s->leaf != SLOT_NONE && (s->kept || s->last > last[s->leaf]))
            last[s->leaf] = s->kept ? UINT32_MAX : s->last;
    }
    for (uint32_t k = 0; k < m->slots.len; k++) {
        slot *s = &m->slots.at[k];
        s->ends = s->leaf != SLOT_NONE && s->last == last[s->leaf];
    }
    free(last);
    return EAS_OK;
}

static void take_over(making *m)
{
    for (uint32_t i = 0; i < m->steps.len; i++) {
        plan_step *s = &m->steps.at[i];
        if (s->nouts <= 0 || s->reuse == SLOT_NONE)
            continue;
        slot *to = &m->slots.at[s->args[0].index], *from = &m->slots.at[s->reuse];
        if (from->leaf == SLOT_NONE && !from->kept && from->last == i && from->count == to->count &&
            from->dtype == to->dtype)
            to->takes = s->reuse;
        if (from->leaf == SLOT_NONE || from->last != i || from->count != to->count ||
            !leaf_free_after(m, from->leaf, i))
            s->reuse = SLOT_NONE;
    }
}

/* An input of the same size as a result can give its memory to the result only if it is a leaf that no
 * later step reads; the other inputs are taken off the list. */
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

/* what the steps so far, from the last that does not join, read and write: numbers of such runs */
typedef struct joining {
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
        if (k >= s->nouts && leaf != SLOT_NONE && j->leaf[leaf] == j->run &&
            ((k < 64 && s->alike >> k & 1) || s->reuse == at))
            return true; /* a step may take a leaf's memory, which the other step reads */
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

/* A node that copies tensor i, which is in memory but not in C order. */
static uint32_t solid(pgraph *g, uint32_t i)
{
    const pnode *x = pass_at(g, i);
    if (x->kind != KIND_LEAF || !x->nwords)
        return i;
    pnode p = {.op = GRAPH_ALIAS,
               .kind = KIND_ALIAS,
               .dtype = x->dtype,
               .rank = x->rank,
               .nin = 1,
               .param = PARAM_NONE,
               .shape = x->shape,
               .in = &i};
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
    return (uint32_t)n - 1; /* kernels that check indices have one more parameter */
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
        bool there = fused_stored(m->f, node) &&
                     !(pass_at(m->g, node)->kind == KIND_LEAF && pass_at(m->g, node)->nwords);
        if (i >= nroots && (!there || pass_at(m->g, node)->kind == KIND_LEAF))
            continue; /* users hold it, but no kernel of the plan stores it */
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
    st = leaf_ends(m);
    if (!st)
        st = join(m);
    if (st) {
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

typedef struct tries { /* what one try tells the next */
    uint32_t limit; /* nodes in a group */
    uint32_t most; /* parameters that cuts aim at */
    uint8_t *cuts;
    bool cut; /* did the last try find nodes to cut at? */
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
    eas_status st = fuse_for(&f, g, nroots, roots, t->limit, t->cuts, p->device, variant);
    f.params = most_params(p->device);
    t->cut = false;
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

static eas_status want(pgraph *g, const pass_walk *walk, const uint32_t *at, uint32_t nroots,
                       eas_node *const *roots, wanted *w)
{
    for (uint32_t i = 0; i < nroots + walk->held.len; i++) {
        uint32_t position = i < nroots ? roots[i]->mark : walk->held.at[i - nroots];
        bool root = i < nroots;
        for (uint32_t k = 0; !root && k < nroots; k++)
            if (roots[k]->mark == position)
                position = SLOT_NONE; /* the caller asked for it as a result anyway */
        if (position == SLOT_NONE)
            continue;
        struct plan_out o = {position, root ? solid(g, at[position]) : at[position]};
        if (!vec_push(&w->outs, o))
            return base_fail_oom(sizeof o);
    }
    return g->st;
}

/* Tries to make the plan until every kernel fits the device. The first try has groups of any size; if a
 * kernel would have too many parameters, nodes are cut (cut.c), first down to three quarters of the
 * parameters, then to half, and so on; the last try has small groups. */
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
             ? base_fail(
                   EAS_ERR_VALUE,
                   "eager: one operation takes more tensors than a kernel of device \"%s\" has parameters (%u)",
                   eas_device_name(p->device), most_params(p->device))
             : st;
}

eas_status plan_new(const pass_walk *walk, uint32_t nroots, eas_node *const *roots, eas_device *d,
                    int variant, plan **out)
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
        same = a->steps[i].kernel == b->steps[i].kernel &&
               control_same(a->steps[i].control, b->steps[i].control) &&
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
