/* collect.c: what a group reads: its parameters, and how each tensor lies in the space. Done before any code, as parameters come first. */
#include "exec.h"

typedef struct gather_ctx {
    const fusion *f;
    uint32_t grp;
    collected *c;
    uint8_t *seen; /* per node: 1 by a map, 2 at an index */
} gather_ctx;

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

static void add_access(collected *c, const pgraph *g, uint32_t id, const int8_t *map)
{
    const pnode *p = pass_at(g, id);
    access a = {.node = id};
    eas_dim start, own[GRAPH_MAX_RANK];
    leaf_strides(g, id, &start, own);
    for (int k = 0; k < p->rank; k++)
        if (map[k] >= 0 && p->shape[k] != 1)
            a.stride[map[k]] = own[k];
    c->oom |= !vec_push(&c->accesses, a);
}

static bool mine(const gather_ctx *x, uint32_t id)
{
    const place *q = &x->f->at[id];
    return q->group == x->grp && !q->many;
}

static void visit(gather_ctx *x, uint32_t id, const int8_t *map)
{
    const pgraph *g = x->f->g;
    const pnode *p = pass_at(g, id);
    const place *q = &x->f->at[id];
    bool again = x->seen[id] & (map ? 1 : 2);
    if (p->kind == KIND_CONST) {
        if (!p->fixed)
            add_once(x->c, &x->c->numbers, id);
        return;
    }
    if (p->kind == KIND_LEAF || (q->stored && !mine(x, id))) {
        add_once(x->c, &x->c->buffers, id);
        collect_shape(x->c, p->rank, p->shape);
        if (map)
            add_access(x->c, g, id, map);
        else
            x->c->general |= p->rank > 0;
        x->seen[id] |= map ? 1 : 2;
        return;
    }
    if ((p->kind == KIND_REDUCE || p->kind == KIND_ARG || id == x->f->groups.at[x->grp].core || id == x->f->groups.at[x->grp].inner_core) && mine(x, id))
        return;
    if (again && !map)
        return;
    x->seen[id] |= map ? 1 : 2;
    collect_shape(x->c, p->rank, p->shape);
    add_words(x->c, g, p);
    bool by_map = map && low_by_map(g, p, map);
    if (!by_map)
        x->c->general |= p->rank > 0;
    for (int k = 0; k < p->nin; k++) {
        int8_t to[GRAPH_MAX_RANK];
        visit(x, p->in[k], by_map && map_input(g, p, k, map, to) ? to : NULL);
    }
}

void collect_from(const fusion *f, uint32_t grp, uint32_t node, const int8_t *map, uint8_t *seen, collected *c)
{
    gather_ctx x = {f, grp, c, seen};
    visit(&x, node, map);
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

void collect_starts(collected *c, const pgraph *g, const pnode *p, int part) { add_dim(c, concat_start(g, p, part)); }

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

void collect_free(collected *c)
{
    vec_free(&c->buffers);
    vec_free(&c->numbers);
    vec_free(&c->dims);
    vec_free(&c->accesses);
}
