/* merge.c: neighbouring groups over the same index space become one kernel with several results.
 *
 * Problem: fuse.c gives every result that several groups use a group of its own, so the backward pass of
 * element-wise code is full of small kernels over one space.
 *
 * Idea: two groups over the same space can be one kernel if the later one reads nothing of the earlier one,
 * or reads its results only at the index where it computes its own. In the second case the values are still
 * in registers, and a result that no other group reads needs no memory (drop_private). The later group moves
 * to the time of the earlier one, so everything else that it reads must have been computed before that:
 * reads.nearest is the latest group that it reads at other indices, and it can join only groups after that.
 *
 * Assumed: groups are numbered from results to inputs: a larger number runs earlier. What would break it: a
 * read that map_input takes for one at the same index although it is not, since the value would be used
 * before another program has computed it.
 */
#include "exec.h"

enum { MAX_ROOTS = 8 };

static bool alike(const group *a, const group *b)
{
    return a->kind == GROUP_MAP && b->kind == GROUP_MAP && a->rank == b->rank && a->inner == b->inner &&
           !memcmp(a->space, b->space, sizeof *a->space * (size_t)a->rank);
}

/* Does node p, which lies by q, read its input k at the index where the group of that input computes it? */
static bool same_index(const fusion *f, const pnode *p, const place *q, int k)
{
    const place *x = &f->at[p->in[k]];
    const pnode *in = pass_at(f->g, p->in[k]);
    const group *g = &f->groups.at[q->group], *of = &f->groups.at[x->group];
    int8_t to[GRAPH_MAX_RANK];
    if (g->inner || !alike(g, of) || !q->simple || q->many || !x->simple || x->many ||
        !map_input(f->g, p, k, q->map, to))
        return false;
    for (int d = 0; d < in->rank; d++)
        if (to[d] != x->map[d] && in->shape[d] != 1)
            return false;
    return shape_count(in->rank, in->shape) == shape_count(g->rank, g->space);
}

typedef struct edge {
    uint32_t to, next;
} edge;
typedef struct reads {
    /* per group: the nearest one before it in time that it reads from memory (a larger number) */
    uint32_t *nearest;
    bool *any;         /* it is read by nodes that several groups compute */
    uint32_t *first;   /* the groups that it reads at its own index: 1 + number of the first of its edges */
    VEC(edge) edges;
    uint32_t *into; /* what it has become part of */
} reads;

static bool note_edge(reads *r, uint32_t from, uint32_t to)
{
    for (uint32_t e = r->first[from]; e; e = r->edges.at[e - 1].next)
        if (r->edges.at[e - 1].to == to)
            return true;
    if (!vec_push(&r->edges, ((edge){to, r->first[from]})))
        return false;
    r->first[from] = r->edges.len;
    return true;
}

static bool find_reads(const fusion *f, reads *r)
{
    for (uint32_t i = 1; i < f->g->n.len; i++) {
        const pnode *p = pass_at(f->g, i);
        const place *q = &f->at[i];
        if (!q->used && !q->stored)
            continue;
        for (int k = 0; k < p->nin; k++) {
            const place *x = &f->at[p->in[k]];
            if (!x->stored || x->group == q->group)
                continue;
            if (q->many && !q->stored)
                r->any[x->group] = true;
            else if (same_index(f, p, q, k)) {
                if (!note_edge(r, q->group, x->group))
                    return false;
            } else if (x->group < r->nearest[q->group])
                r->nearest[q->group] = x->group;
        }
    }
    return true;
}

static bool is_alone(const fusion *f, const group *g)
{
    for (uint32_t i = 0; i < g->roots.len; i++)
        if (cut_of(f, g->roots.at[i].node) & CUT_ALONE)
            return true;
    return false;
}

static bool absorb(group *a, group *b)
{
    for (uint32_t i = 0; i < b->roots.len; i++)
        if (!vec_push(&a->roots, b->roots.at[i]))
            return false;
    for (uint32_t i = 0; i < b->folds.len; i++)
        if (!vec_push(&a->folds, b->folds.at[i]))
            return false;
    a->size += b->size;
    b->roots.len = b->folds.len = 0;
    return true;
}

/* Results that only their own kernel reads need no memory. */
static bool drop_private(fusion *f)
{
    bool *read = calloc(f->g->n.len, sizeof *read);
    if (!read)
        return false;
    for (uint32_t i = 1; i < f->g->n.len; i++) {
        const pnode *p = pass_at(f->g, i);
        const place *q = &f->at[i];
        for (int k = 0; k < p->nin && (q->used || q->stored); k++)
            read[p->in[k]] |=
                (q->many && !q->stored) || q->group != f->at[p->in[k]].group || !same_index(f, p, q, k);
    }
    for (uint32_t j = 1; j < f->groups.len; j++) {
        group *g = &f->groups.at[j];
        uint32_t kept = 0;
        for (uint32_t i = 0; i < g->roots.len; i++) {
            const group_root r = g->roots.at[i];
            place *q = &f->at[r.node];
            const bool needed =
                g->kind != GROUP_MAP || g->inner || r.node != r.value || q->root || q->taken || read[r.node];
            if (needed)
                g->roots.at[kept++] = r;
            else
                q->stored = false;
        }
        g->roots.len = kept;
    }
    free(read);
    return true;
}

static bool may_join(const fusion *f, const group *a, const group *b)
{
    return a->size + b->size <= f->limit && alike(a, b) && a->roots.len + b->roots.len <= MAX_ROOTS &&
           !is_alone(f, a) && !is_alone(f, b);
}

/* An earlier group that b can be part of because it reads its results at its own index, though others run in
 * between; 0: none. unknown: the last group before b whose readers are not known. */
static uint32_t earlier(const fusion *f, const reads *r, uint32_t b, uint32_t unknown)
{
    uint32_t best = 0, last = UINT32_MAX;
    for (uint32_t e = r->first[b]; e; e = r->edges.at[e - 1].next) {
        const uint32_t to = r->edges.at[e - 1].to;
        best = to < last ? r->into[to] : best;
        last = to < last ? to : last;
    }
    if (!best || r->nearest[b] <= best || unknown <= best ||
        !may_join(f, &f->groups.at[best], &f->groups.at[b]))
        return 0;
    for (uint32_t e = r->first[b]; e; e = r->edges.at[e - 1].next)
        if (r->edges.at[e - 1].to < best && r->into[r->edges.at[e - 1].to] != best)
            return 0;
    return best;
}

static bool merge(fusion *f, reads *r)
{
    const uint32_t n = f->groups.len;
    uint32_t chain = n - 1, hi = n - 1,
             /* chain: the group that the last groups were merged into, hi: the first of them; 0: none */
        unknown = UINT32_MAX;
    for (uint32_t b = n - 2; n > 2 && b > 0; b--) {
        unknown = r->any[b + 1] ? b + 1 : unknown;
        const bool next = chain && r->nearest[b] > hi && !r->any[b + 1] &&
                          may_join(f, &f->groups.at[chain], &f->groups.at[b]);
        const uint32_t to = next ? chain : earlier(f, r, b, unknown);
        if (!next) {
            chain = to ? 0 : b;
            hi = b;
        }
        if (!to)
            continue;
        r->into[b] = to;
        if (!absorb(&f->groups.at[to], &f->groups.at[b]))
            return false;
    }
    for (uint32_t i = 1; i < f->g->n.len; i++)
        f->at[i].group = r->into[f->at[i].group];
    return true;
}

eas_status merge_groups(fusion *f)
{
    const uint32_t n = f->groups.len;
    reads r = {malloc(sizeof *r.nearest * n), calloc(n, sizeof *r.any), calloc(n, sizeof *r.first),
               .into = malloc(sizeof *r.into * n)};
    bool ok = r.nearest && r.any && r.first && r.into;
    for (uint32_t i = 0; ok && i < n; i++) {
        r.nearest[i] = UINT32_MAX;
        r.into[i] = i;
    }
    ok = ok && find_reads(f, &r) && merge(f, &r) && drop_private(f);
    free(r.nearest);
    free(r.any);
    free(r.first);
    free(r.into);
    vec_free(&r.edges);
    return ok ? EAS_OK : base_fail_oom(n);
}
