/* reshard.c: converts a tensor from one layout to another.
 *
 * Steps that make progress towards the target are done in the order of what they save: sums first (of a part
 * only, where the target cuts a dim along the summed axis: reduce_scatter), then slices, which cost nothing
 * and make everything after them smaller, then axes that move from one dim to another (all_to_all), then
 * gathers. Axes of a dim are nested, the outermost first, so the innermost go and come first. Dims in uneven
 * parts are gathered whole and cut anew.
 *
 * Collectives work on blocks that lie together: what is gathered comes with a dim of the group's members in
 * front, and what is scattered has one. Moving that dim to its place is a view, which whoever reads it
 * computes with.
 */
#include "dist.h"

static int64_t count_of(const eas_node *n)
{
    int64_t c = 1;
    for (int d = 0; d < n->rank; d++)
        c *= dim_known(node_shape(n)[d]) ? node_shape(n)[d] : 1;
    return c;
}

/* ---- collectives ---- */

/* The number of the user's line among the program's; -1: unknown. */
static int64_t site_of(partition *p)
{
    char file[256], *text = NULL;
    int line;
    str s = {0};
    if (!p->now || !p->sites || !node_place(p->now, file, sizeof file, &line))
        return -1;
    str_add(&s, "%s:%d", file, line);
    if (str_take(&s, &text) || !text)
        return -1;
    for (uint32_t i = p->sites->len; i-- > 0;)
        if (!strcmp(p->sites->at[i], text)) {
            free(text);
            return i;
        }
    if (!vec_push(p->sites, text)) {
        free(text);
        return -1;
    }
    return p->sites->len - 1;
}

static eas_node *collective(partition *p, coll_kind kind, coll_join join, const eas_dim_spec *axes,
                            eas_node *x, int npairs, const int64_t *pairs, const char *why)
{
    if (p->g.st || !x)
        return NULL;
    int64_t group = spec_parts(p->m, axes),
            *words = malloc(sizeof *words * (size_t)(COLL_WORDS + 2 * npairs + 1 + x->rank));
    eas_node *r = NULL;
    if (!words)
        return partition_keep(p, base_fail_oom((size_t)npairs), NULL);
    words[COLL_KIND] = kind;
    words[COLL_JOIN] = join;
    words[COLL_MESH] = p->m->id;
    words[COLL_AXES] = spec_dim_word(&(eas_dim_spec){.n = axes->n});
    for (int i = 0; i < axes->n; i++)
        words[COLL_AXES] |= (int64_t)axes->axes[i] << (16 + 4 * i);
    words[COLL_SITE] = site_of(p);
    words[COLL_PAIRS] = npairs;
    if (npairs)
        memcpy(words + COLL_WORDS, pairs, sizeof *pairs * 2 * (size_t)npairs);
    words[coll_rank_at(words)] = x->rank;
    memcpy(words + coll_rank_at(words) + 1, node_shape(x), sizeof *words * x->rank);
    eas_site_set(p->now ? p->now->site : 0); /* nodes that follow for the same operation keep it */
    eas_status st = node_collective((int)coll_nwords(words), words, 1, &x, group, &r);
    free(words);
    pnote note = {.kind = kind,
                  .join = join,
                  .axes = *axes,
                  .dtype = (eas_dtype)x->dtype,
                  .count = count_of(x),
                  .pairs = npairs,
                  .times = p->times,
                  .per_trip = p->per_trip,
                  .op = p->now ? p->now->op : GRAPH_SHARD,
                  .site = p->now ? p->now->site : 0,
                  .why = why};
    if (!st && p->notes && !vec_push(p->notes, note))
        st = base_fail_oom(sizeof note);
    return partition_keep(p, st, r);
}

eas_node *coll_reduce(partition *p, eas_node *x, const eas_dim_spec *axes, coll_join join, const char *why)
{
    return spec_parts(p->m, axes) == 1 ? x : collective(p, COLL_REDUCE, join, axes, x, 0, NULL, why);
}

/* Moves the first dim (the group's members) in front of dim `dim` of the rest and merges the two. */
static eas_node *merge_front(partition *p, eas_node *x, int dim)
{
    eas_dim shape[GRAPH_MAX_RANK];
    eas_node *m = gb_move(&p->g, x, 0, dim);
    if (!m)
        return NULL;
    for (int d = 0; d + 1 < m->rank; d++)
        shape[d] = d < dim  ? node_shape(m)[d]
                 : d == dim ? gb_dim(&p->g, EAS_DIM_MUL, node_shape(m)[d], node_shape(m)[d + 1])
                            : node_shape(m)[d + 1];
    return gb_reshape(&p->g, m, 0, m->rank - 1, shape);
}

/* Dim `dim` as (n, size / n). */
static eas_node *split_dim(partition *p, eas_node *x, int dim, int64_t n)
{
    eas_dim shape[GRAPH_MAX_RANK + 1];
    if (!x)
        return NULL;
    for (int d = 0; d <= x->rank; d++)
        shape[d] = d < dim      ? node_shape(x)[d]
                 : d == dim     ? n
                 : d == dim + 1 ? node_shape(x)[dim] / n
                                : node_shape(x)[d - 1];
    return gb_reshape(&p->g, x, 0, x->rank + 1, shape);
}

eas_node *coll_gather(partition *p, eas_node *x, const eas_dim_spec *axes, int dim, const char *why)
{
    return spec_parts(p->m, axes) == 1
             ? x
             : merge_front(p, collective(p, COLL_GATHER, JOIN_SUM, axes, x, 0, NULL, why), dim);
}

static eas_node *coll_scatter(partition *p, eas_node *x, const eas_dim_spec *axes, int dim, const char *why)
{
    eas_node *s = split_dim(p, x, dim, spec_parts(p->m, axes));
    return collective(p, COLL_SCATTER, JOIN_SUM, axes, gb_move(&p->g, s, dim, 0), 0, NULL, why);
}

/* The axes stop cutting dim `from` and cut dim `to`. */
static eas_node *coll_exchange(partition *p, eas_node *x, const eas_dim_spec *axes, int from, int to,
                               const char *why)
{
    eas_node *s = split_dim(p, x, to, spec_parts(p->m, axes));
    return merge_front(
        p, collective(p, COLL_EXCHANGE, JOIN_SUM, axes, gb_move(&p->g, s, to, 0), 0, NULL, why), from);
}

eas_node *coll_permute(partition *p, eas_node *x, const eas_dim_spec *axes, int n, const int64_t *pairs,
                       const char *why)
{
    return collective(p, COLL_PERMUTE, JOIN_SUM, axes, x, n, pairs, why);
}

static eas_node *padded_to(partition *p, eas_node *x, int dim, eas_dim size)
{
    int64_t before[GRAPH_MAX_RANK] = {0};
    eas_dim shape[GRAPH_MAX_RANK];
    if (p->g.st || !x || node_shape(x)[dim] == size)
        return p->g.st ? NULL : x;
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[dim] = size;
    return gb_new(&p->g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, 0, x->rank, shape, x->rank, before, 2,
                  (eas_node *[]){x, gd_num(&p->g, x, 0)});
}

eas_node *local_block(partition *p, eas_node *x, const eas_dim_spec *axes, int dim)
{
    int64_t n = spec_parts(p->m, axes);
    if (n == 1 || !x)
        return x;
    eas_node *s = split_dim(p, padded_to(p, x, dim, (node_shape(x)[dim] + n - 1) / n * n), dim, n);
    return gb_gather(&p->g, s, partition_index(p, axes), 0, dim);
}

/* ---- steps ---- */

typedef struct moving {
    partition *p;
    eas_node *x;
    eas_spec at;
    const eas_spec *to;
    const eas_dim *shape; /* global */
    const char *why;
} moving;

/* Is axis the next that the target has along dim? */
static bool comes_next(const moving *w, int d, int axis)
{
    const eas_dim_spec *at = &w->at.dims[d], *to = &w->to->dims[d];
    return to->n > at->n && !memcmp(at->axes, to->axes, at->n) && to->axes[at->n] == axis &&
           !spec_uneven(w->p->m, to, w->shape[d]) && !spec_uneven(w->p->m, at, w->shape[d]);
}

static int next_dim(const moving *w, int axis)
{
    for (int d = 0; d < w->at.rank; d++)
        if (comes_next(w, d, axis))
            return d;
    return -1;
}

static void append(eas_dim_spec *d, int axis) { d->axes[d->n++] = (uint8_t)axis; }

static bool sum_step(moving *w)
{
    uint32_t left = w->at.partial & ~w->to->partial;
    eas_dim_spec rest = {0};
    for (int a = 0; a < w->p->m->m.naxes; a++) {
        int d = left >> a & 1 ? next_dim(w, a) : -1;
        if (d < 0)
            continue;
        w->x = coll_scatter(w->p, w->x, &(eas_dim_spec){.n = 1, .axes = {(uint8_t)a}}, d, w->why);
        w->at.partial &= ~(1u << a);
        append(&w->at.dims[d], a);
        return true;
    }
    for (int a = 0; a < w->p->m->m.naxes; a++)
        if (left >> a & 1)
            append(&rest, a);
    if (!rest.n)
        return false;
    w->x = coll_reduce(w->p, w->x, &rest, JOIN_SUM, w->why);
    w->at.partial &= ~left;
    return true;
}

/* Axes that cut nothing yet and that the target has: each device takes its block, nothing is sent. */
static bool slice_step(moving *w)
{
    uint32_t used = spec_cut(&w->at) | w->at.partial;
    for (int d = 0; d < w->at.rank; d++) {
        eas_dim_spec more = {0};
        const eas_dim_spec *to = &w->to->dims[d], *at = &w->at.dims[d];
        if (at->n == 0 && to->n && spec_uneven(w->p->m, to, w->shape[d])) {
            bool free = true;
            for (int i = 0; i < to->n; i++)
                free &= !(used >> to->axes[i] & 1);
            more = free ? *to : more;
        } else
            for (int i = at->n;
                 i < to->n && !(used >> to->axes[i] & 1) && (i > at->n || comes_next(w, d, to->axes[i])); i++)
                append(&more, to->axes[i]);
        if (!more.n)
            continue;
        w->x = local_block(w->p, w->x, &more, d);
        for (int i = 0; i < more.n; i++)
            append(&w->at.dims[d], more.axes[i]);
        return true;
    }
    return false;
}

static bool exchange_step(moving *w)
{
    for (int d = 0; d < w->at.rank; d++) {
        eas_dim_spec *at = &w->at.dims[d];
        int axis = at->n ? at->axes[at->n - 1] : -1, to = axis < 0 ? -1 : next_dim(w, axis);
        bool stays = at->n <= w->to->dims[d].n && !memcmp(at->axes, w->to->dims[d].axes, at->n);
        if (to < 0 || to == d || stays || spec_uneven(w->p->m, at, w->shape[d]))
            continue;
        w->x = coll_exchange(w->p, w->x, &(eas_dim_spec){.n = 1, .axes = {(uint8_t)axis}}, d, to, w->why);
        at->n--;
        append(&w->at.dims[to], axis);
        return true;
    }
    return false;
}

static bool gather_step(moving *w)
{
    for (int d = 0; d < w->at.rank; d++) {
        eas_dim_spec *at = &w->at.dims[d], gone = {0};
        const eas_dim_spec *to = &w->to->dims[d];
        int keep = 0;
        if (spec_same_dim(at, to))
            continue;
        while (keep < at->n && keep < to->n && at->axes[keep] == to->axes[keep])
            keep++;
        bool uneven = spec_uneven(w->p->m, at, w->shape[d]) || spec_uneven(w->p->m, to, w->shape[d]);
        if (uneven)
            keep = 0;
        for (int i = keep; i < at->n; i++)
            append(&gone, at->axes[i]);
        if (!gone.n)
            continue;
        w->x = coll_gather(w->p, w->x, &gone, d, w->why);
        if (uneven && w->x)
            w->x = gb_slice(&w->p->g, w->x, d, 0, w->shape[d], 1);
        at->n = (uint8_t)keep;
        return true;
    }
    return false;
}

static eas_node *remembered(const partition *p, const pvalue *x, const eas_spec *to)
{
    for (uint32_t i = 0; i < p->memo.len; i++)
        if (p->memo.at[i].from == x->n && spec_same(&p->memo.at[i].before, &x->at) &&
            spec_same(&p->memo.at[i].after, to))
            return p->memo.at[i].to;
    return NULL;
}

/* Gathers mixed dims (mix.c) that the target does not have in the same form. Returns the target without mixed
 * dims that are still to be made: with_mixes makes them last. */
static eas_spec without_mixes(moving *w)
{
    eas_spec to = *w->to;
    for (int d = 0; d < to.rank; d++) {
        bool same = spec_same_dim(&w->at.dims[d], &to.dims[d]);
        if (w->at.dims[d].n && w->at.dims[d].priority && !same) {
            w->x = mix_gathered(w->p, w->x, d, &w->at.dims[d], w->why);
            w->at.dims[d] = (eas_dim_spec){0};
        }
        if (to.dims[d].n && to.dims[d].priority && !same)
            to.dims[d] = (eas_dim_spec){0};
    }
    return to;
}

static void with_mixes(moving *w, const eas_spec *to)
{
    for (int d = 0; d < to->rank && !w->p->g.st; d++)
        if (to->dims[d].n && to->dims[d].priority && !spec_same_dim(&w->at.dims[d], &to->dims[d])) {
            w->x = mix_block(w->p, w->x, d, &to->dims[d]);
            w->at.dims[d] = to->dims[d];
        }
}

eas_node *reshard(partition *p, const pvalue *x, const eas_spec *to, int rank, const eas_dim *shape,
                  const char *why)
{
    moving w = {p, x->n, x->at, to, shape, why};
    (void)rank;
    if (p->g.st || !x->n || spec_same(&x->at, to))
        return p->g.st ? NULL : x->n;
    eas_node *known = remembered(p, x, to);
    if (known)
        return known;
    const eas_spec plain = without_mixes(&w);
    w.to = &plain;
    while (!p->g.st && !spec_same(&w.at, &plain))
        if (!sum_step(&w) && !slice_step(&w) && !exchange_step(&w) && !gather_step(&w)) {
            str s = {0};
            spec_add_text(&s, p->m, &w.at);
            str_add(&s, " to ");
            spec_add_text(&s, p->m, to);
            p->g.st = base_fail(EAS_ERR_RUNTIME, "eager: no way from %s", s.at ? s.at : "?");
            str_free(&s);
        }
    with_mixes(&w, to);
    if (!p->g.st && !vec_push(&p->memo, ((struct pmemo){x->n, x->at, *to, w.x})))
        p->g.st = base_fail_oom(sizeof *to);
    return p->g.st ? NULL : w.x;
}
