/* fuse_map.c: how the inputs of a node lie in the space of its group, and at how many indices a group reads a
 * node, for the decisions of fuse.c.
 */
#include "exec.h"

/* Tells node x that group grp uses it. The first user sets x's group and map. A second user in another group
 * makes it `many`; a second map in the same group makes it not `simple`: it is then read at indices of its
 * own. */
void fuse_push(fusion *f, uint32_t x, uint32_t grp, const int8_t *map, bool many)
{
    place *q = &f->at[x];
    int rank = pass_at(f->g, x)->rank;
    if (!q->used) {
        q->used = true;
        q->group = grp;
        q->many = many;
        q->simple = map != NULL;
        if (map)
            memcpy(q->map, map, (size_t)rank);
        return;
    }
    if (q->group != grp || many)
        q->many = true;
    if (!map || (q->simple && memcmp(q->map, map, (size_t)rank)))
        q->simple = false;
}

static void map_aligned(const pnode *p, const pnode *x, const int8_t *from, int8_t *to)
{
    int skip = p->rank - x->rank;
    for (int k = 0; k < x->rank; k++)
        to[k] = x->shape[k] == 1 && p->shape[skip + k] != 1 ? -1 : from[skip + k];
}

/* A reshape that only adds and drops dims of size 1. */
static bool map_reshape(const pnode *p, const pnode *x, const int8_t *from, int8_t *to)
{
    int i = 0;
    for (int k = 0; k < x->rank; k++) {
        to[k] = -1;
        if (x->shape[k] == 1)
            continue;
        while (i < p->rank && p->shape[i] == 1)
            i++;
        if (i == p->rank || p->shape[i] != x->shape[k])
            return false;
        to[k] = from[i++];
    }
    while (i < p->rank && p->shape[i] == 1)
        i++;
    return i == p->rank;
}

/* The index of a gather: its dims stand where the axis was. */
static void map_gather(const pnode *p, const pnode *x, const int8_t *from, int8_t *to)
{
    int nbatch = (int)p->words[0], axis = (int)p->words[1];
    for (int k = 0; k < x->rank; k++)
        to[k] = k < nbatch ? from[k] : from[axis + k - nbatch];
}

bool map_input(const pgraph *g, const pnode *p, int k, const int8_t *map, int8_t *to)
{
    const pnode *x = pass_at(g, p->in[k]);
    switch (p->kind) {
    case KIND_MAP:
    case KIND_CAST:
    case KIND_BROADCAST: map_aligned(p, x, map, to); return true;
    case KIND_PERMUTE:
        for (int d = 0; d < p->rank; d++)
            to[p->words[d]] = map[d];
        return true;
    case KIND_ALIAS: memcpy(to, map, p->rank); return true;
    case KIND_RESHAPE: return map_reshape(p, x, map, to);
    case KIND_GATHER:
        if (k == 1)
            map_gather(p, x, map, to);
        return k == 1;
    case KIND_ALONG:
        if (k == 1)
            map_aligned(p, x, map, to);
        return k == 1;
    case KIND_UPDATE: memcpy(to, map, p->rank); return k == 0;
    default: return x->rank == 0;
    }
}

/* ---- at how many indices a node is read ----
 *
 * A node is computed once for each index that its group asks for, and a chain of shifted reads (x[i] * x[i -
 * 1], of that y[i] * y[i - 2], ...) doubles them with each link: 2^k copies of the code after k links. So
 * indices have names: users element by element pass theirs on, a view makes a new one of each, and a node
 * that is read at more than PLACE_WAYS gets memory.
 */

static uint32_t name_of(uint32_t of, uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)of << 32 | a) * 0x9e3779b97f4a7c15u + b;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h >> 32);
}

static void add_way(place *x, uint32_t name)
{
    for (int i = 0; i < x->nways && i < PLACE_WAYS; i++)
        if (x->ways[i] == name)
            return;
    if (x->nways < PLACE_WAYS)
        x->ways[x->nways] = name;
    x->nways += x->nways <= PLACE_WAYS;
}

static bool keeps_index(const pnode *p)
{
    return p->kind == KIND_MAP || p->kind == KIND_CAST || p->kind == KIND_ALIAS || p->kind == KIND_BROADCAST;
}

/* Input k of node i is read wherever i is. */
static void add_ways(fusion *f, uint32_t i, int k, const int8_t *map)
{
    const pnode *p = pass_at(f->g, i);
    const place *q = &f->at[i];
    place *x = &f->at[p->in[k]];
    if (map) {
        uint32_t name = q->group;
        for (int d = 0; d < pass_at(f->g, p->in[k])->rank; d++)
            name = name_of(name, (uint32_t)map[d], 0);
        add_way(x, name);
        return;
    }
    if (q->nways == 0)
        add_way(x, name_of(i, (uint32_t)k, 1));
    for (int w = 0; w < q->nways && w < PLACE_WAYS; w++)
        add_way(x, keeps_index(p) ? q->ways[w] : name_of(q->ways[w], i, 2 + (uint32_t)k));
    if (q->nways > PLACE_WAYS)
        x->nways = PLACE_WAYS + 1;
}

void fuse_push_inputs(fusion *f, uint32_t i)
{
    const pnode *p = pass_at(f->g, i);
    place *q = &f->at[i];
    if (q->stored) /* its group computes it once and stores it, however many indices it is read at */
        q->nways = 0;
    for (int k = 0; k < p->nin; k++) {
        int8_t map[GRAPH_MAX_RANK];
        bool simple = q->simple && !q->many && map_input(f->g, p, k, q->map, map);
        fuse_push(f, p->in[k], q->group, simple ? map : NULL, q->many);
        add_ways(f, i, k, simple ? map : NULL);
        f->at[p->in[k]].whole |= k == 0 && (p->kind == KIND_GATHER || p->kind == KIND_ALONG);
        f->at[p->in[k]].whole |= q->whole && (p->kind == KIND_MAP || p->kind == KIND_CAST);
    }
}
