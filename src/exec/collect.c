/* collect.c: what a group reads: its parameters, and how each tensor lies in the space. Done before any code,
 * as parameters come first. */
#include "exec.h"

typedef struct gather_ctx {
    const fusion *f;
    uint32_t grp;
    collected *c;
} gather_ctx;

scratch *scratch_new(uint32_t n)
{
    scratch *s = calloc(1, sizeof *s + 6 * sizeof(uint32_t) * n);
    if (!s)
        return NULL;
    uint32_t *at = (uint32_t *)(s + 1);
    s->param = at;
    s->fold = at + n;
    s->newest = at + 2 * (size_t)n;
    s->visits = at + 3 * (size_t)n;
    s->number = at + 4 * (size_t)n;
    s->stamp = at + 5 * (size_t)n;
    return s;
}

void scratch_free(scratch *s) { free(s); }

void collect_key(collected *c, const void *p, size_t n) { str_put(&c->key, p, n); }

static void add_dim(collected *c, eas_dim d)
{
    if (dim_known(d))
        return;
    for (uint32_t i = 0; i < c->dims.len; i++)
        if (c->dims.at[i] == d)
            return;
    c->oom |= !vec_push(&c->dims, d);
}

/* Sizes, and the strides that they make. */
void collect_shape(collected *c, int rank, const eas_dim *shape)
{
    eas_dim dense = 1;
    for (int i = rank - 1; i >= 0; i--) {
        add_dim(c, shape[i]);
        eas_dim_apply(EAS_DIM_MUL, dense, shape[i], &dense);
        add_dim(c, dense);
    }
}

static void add_words(collected *c, const pgraph *g, const pnode *p)
{
    eas_dim start = 0;
    for (int i = 0; i < p->nin && p->kind == KIND_CONCAT; i++) { /* where each part begins */
        eas_dim_apply(EAS_DIM_ADD, start, pass_at(g, p->in[i])->shape[p->words[0]], &start);
        add_dim(c, start);
    }
    if (p->kind == KIND_SLICE || p->kind == KIND_PAD || p->kind == KIND_UPDATE)
        for (int i = 0; i < p->rank; i++)
            add_dim(c, p->words[i]);
    c->indexed |= p->kind == KIND_GATHER || p->kind == KIND_ALONG || p->kind == KIND_SCATTER;
}

static void add_once(collected *c, VEC_U32 *list, uint32_t id)
{
    for (uint32_t i = 0; i < list->len; i++)
        if (list->at[i] == id)
            return;
    c->oom |= !vec_push(list, id);
}

/* Node id's memory is read at the index of `as`: the node itself, or a reshape of it. */
static void add_access(collected *c, const pgraph *g, uint32_t id, uint32_t as, const int8_t *map)
{
    const pnode *p = pass_at(g, as);
    reading a = {.node = id};
    eas_dim start, own[GRAPH_MAX_RANK];
    leaf_strides(g, as, &start, own);
    for (int k = 0; k < p->rank; k++)
        if (map[k] >= 0 && p->shape[k] != 1)
            a.stride[map[k]] = own[k];
    c->oom |= !vec_push(&c->accesses, a);
}

void draw_strides(const pgraph *g, const pnode *p, eas_dim *own)
{
    const int keys = pass_at(g, p->in[0])->rank;
    eas_dim dense = 1;
    for (int k = p->rank - 1; k >= 0; k--) {
        own[k] = k < keys ? 0 : dense;
        eas_dim_apply(EAS_DIM_MUL, dense, p->shape[k], &dense);
    }
}

/* Random numbers are computed where they lie in the space: as if they were read from memory there. */
static void add_draw(collected *c, const pgraph *g, uint32_t id, const int8_t *map)
{
    const pnode *p = pass_at(g, id);
    reading a = {.node = id};
    eas_dim own[GRAPH_MAX_RANK];
    draw_strides(g, p, own);
    for (int k = 0; k < p->rank; k++)
        if (map[k] >= 0 && p->shape[k] != 1)
            a.stride[map[k]] = own[k];
    c->oom |= !vec_push(&c->draws, a);
}

static bool mine(const gather_ctx *x, uint32_t id)
{
    const place *q = &x->f->at[id];
    return q->group == x->grp && !q->many;
}

/* Was it visited like this before? Notes it if not. */
static bool again(gather_ctx *x, uint32_t id, const int8_t *map)
{
    scratch *t = x->f->scratch;
    int rank = pass_at(x->f->g, id)->rank;
    for (uint32_t i = t->visits[id]; i; i = x->c->visits.at[i - 1].older) {
        const visited *v = &x->c->visits.at[i - 1];
        if (map ? !v->general && !memcmp(v->map, map, (size_t)rank) : v->general)
            return true;
    }
    visited v = {.node = id, .older = t->visits[id], .general = !map};
    if (map)
        memcpy(v.map, map, (size_t)rank);
    x->c->oom |= !vec_push(&x->c->visits, v);
    t->visits[id] = x->c->visits.len;
    return false;
}

/* Adds a node to the group's key: its properties the first time it is met, its number after that. */
static void note(gather_ctx *x, uint32_t id, bool outside, const int8_t *map)
{
    scratch *t = x->f->scratch;
    const pnode *p = pass_at(x->f->g, id);
    collected *c = x->c;
    if (!t->number[id]) {
        uint32_t head[] = {0,        p->op,   p->dtype,           p->rank, p->nwords, p->nin,
                           p->fixed, outside, x->f->at[id].stored};
        collect_key(c, head, sizeof head);
        collect_key(c, p->shape, sizeof *p->shape * p->rank);
        if (p->kind != KIND_CONST || p->fixed)
            collect_key(c, p->words, sizeof *p->words * p->nwords);
        c->oom |= !vec_push(&c->touched, id);
        t->number[id] = c->touched.len;
    }
    collect_key(c, &t->number[id], sizeof t->number[id]);
    if (map)
        collect_key(c, map, p->rank);
    else
        collect_key(c, "*", 1);
}

/* Is it in memory before the group runs? */
static bool comes_from_outside(const gather_ctx *x, uint32_t id)
{
    return pass_at(x->f->g, id)->kind == KIND_LEAF || (x->f->at[id].stored && !mine(x, id));
}

static void visit(gather_ctx *x, uint32_t id, const int8_t *map)
{
    const pgraph *g = x->f->g;
    const pnode *p = pass_at(g, id);
    const group *grp = &x->f->groups.at[x->grp];
    const bool outside = comes_from_outside(x, id);
    note(x, id, outside, map);
    if (p->kind == KIND_CONST) {
        if (!p->fixed)
            add_once(x->c, &x->c->numbers, id);
        return;
    }
    if (again(x, id, map))
        return;
    if (outside) {
        add_once(x->c, &x->c->buffers, id);
        collect_shape(x->c, p->rank, p->shape);
        if (map)
            add_access(x->c, g, id, id, map);
        else
            x->c->general |= p->rank > 0;
        return;
    }
    if (grp->kind == GROUP_ATTENTION_BACK && back_core(&x->f->backs.at[grp->back], id))
        return;
    if ((p->kind == KIND_REDUCE || p->kind == KIND_ARG || id == grp->core || id == grp->inner_core) &&
        mine(x, id))
        return;
    collect_shape(x->c, p->rank, p->shape);
    add_words(x->c, g, p);
    bool by_map = map && low_by_map(g, p, map);
    /* the same memory with other strides */
    if (map && !by_map && reshapes_dense(g, p) && comes_from_outside(x, p->in[0])) {
        note(x, p->in[0], true, NULL);
        add_once(x->c, &x->c->buffers, p->in[0]);
        collect_shape(x->c, pass_at(g, p->in[0])->rank, pass_at(g, p->in[0])->shape);
        add_access(x->c, g, p->in[0], id, map);
        return;
    }
    if (map && p->kind == KIND_RANDOM) {
        add_draw(x->c, g, id, map);
        for (int k = 0; k < p->nin; k++)
            visit(x, p->in[k], map);
        return;
    }
    if (!by_map)
        x->c->general |= p->rank > 0;
    for (int k = 0; k < p->nin; k++) {
        int8_t to[GRAPH_MAX_RANK];
        visit(x, p->in[k], by_map && map_input(g, p, k, map, to) ? to : NULL);
    }
}

void collect_from(const fusion *f, uint32_t grp, uint32_t node, const int8_t *map, collected *c)
{
    gather_ctx x = {f, grp, c};
    visit(&x, node, map);
}

void collect_note(const fusion *f, uint32_t grp, uint32_t node, collected *c)
{
    gather_ctx x = {f, grp, c};
    const place *q = &f->at[node];
    note(&x, node, false, q->simple ? q->map : NULL);
}

/* How a reduction's input lies in the space of the group that the reduction joined. */
void fold_input_map(const fusion *f, uint32_t fold, int8_t *map)
{
    const pgraph *g = f->g;
    const pnode *p = pass_at(g, fold), *x = pass_at(g, p->in[0]);
    const place *q = &f->at[fold];
    const group *grp = &f->groups.at[q->group];
    uint32_t inner = grp->inner;
    for (int d = 0; d < x->rank; d++) {
        if (!fold_axis(p, d)) {
            map[d] = q->map[fold_kept(p, d)];
            continue;
        }
        map[d] = -1;
        for (int k = 0; k < grp->rank; k++)
            if (inner >> k & 1) {
                map[d] = (int8_t)k;
                inner &= ~(1u << k);
                break;
            }
    }
}

eas_dim concat_start(const pgraph *g, const pnode *p, int part)
{
    eas_dim start = 0;
    for (int k = 0; k < part; k++)
        eas_dim_apply(EAS_DIM_ADD, start, pass_at(g, p->in[k])->shape[p->words[0]], &start);
    return start;
}

void collect_starts(collected *c, const pgraph *g, const pnode *p, int part)
{
    /* the offset follows from the sizes of the inputs before, which are not part of the key */
    eas_dim start = concat_start(g, p, part);
    collect_key(c, &start, sizeof start);
    add_dim(c, start);
}

bool fold_varies(const pgraph *g, const fusion *f, uint32_t fold, int dim)
{
    for (int k = 0; k < pass_at(g, fold)->rank; k++)
        if (f->at[fold].map[k] == dim)
            return true;
    return false;
}

void root_map(const fusion *f, const group *g, const group_root *r, int8_t *map)
{
    int rank = pass_at(f->g, r->value)->rank;
    if (r->value == r->node)
        memcpy(map, f->at[r->node].map, (size_t)rank);
    else
        for (int k = 0; k < rank; k++)
            map[k] = (int8_t)k;
    (void)g;
}

void collect_free(const fusion *f, collected *c)
{
    scratch *t = f->scratch;
    for (uint32_t i = 0; i < c->touched.len; i++) {
        uint32_t id = c->touched.at[i];
        t->param[id] = t->fold[id] = t->newest[id] = t->visits[id] = t->number[id] = 0;
    }
    vec_free(&c->touched);
    vec_free(&c->visits);
    str_free(&c->key);
    vec_free(&c->buffers);
    vec_free(&c->numbers);
    vec_free(&c->dims);
    vec_free(&c->accesses);
    vec_free(&c->draws);
}
