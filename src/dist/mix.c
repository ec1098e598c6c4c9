/* mix.c: dims that are cut in the middle.
 *
 * A reshape that makes one dim of several, as a convolution does with images, rows and columns, would lose a
 * cut of any but the first of them: parts of the new dim are then not together. But most operations do not
 * care in which order elements lie along a dim, as long as all tensors have the same order: element-wise
 * ones, and products and sums over the dim. So the new dim is kept cut, and marked as *mixed*: its number (in
 * the `priority` of the dim's spec, which nothing else uses in this folder) says which sizes the dim is made
 * of, and which of these the axes cut. A reshape that takes the dim apart again finds the parts as they were.
 * Whoever needs the dim as it is has it gathered (mix_gathered). Results of programs, loops, constraints and
 * kernels are never mixed.
 */
#include "dist.h"

static int64_t parts_of_dim(const partition *p, const eas_dim_spec *d) { return spec_parts(p->m, d); }

static uint16_t number_of(partition *p, const pmix *m)
{
    for (uint32_t i = 0; i < p->mixes.len; i++) {
        const pmix *k = &p->mixes.at[i];
        if (k->n == m->n && k->which == m->which && !memcmp(k->size, m->size, sizeof *k->size * (size_t)k->n))
            return (uint16_t)(i + 1);
    }
    if (p->mixes.len == UINT16_MAX || !vec_push(&p->mixes, *m)) {
        p->g.st = base_fail_oom(sizeof *m);
        return 0;
    }
    return (uint16_t)p->mixes.len;
}

/* Dim d as the sizes that it is made of, the cut one in n parts. */
static eas_node *apart(partition *p, eas_node *x, int d, const pmix *m, int64_t n)
{
    eas_dim shape[GRAPH_MAX_RANK + MIX_MOST];
    if (!x || x->rank + m->n - 1 > GRAPH_MAX_RANK)
        return NULL;
    for (int i = 0; i < x->rank + m->n - 1; i++)
        shape[i] = i < d        ? node_shape(x)[i]
                 : i < d + m->n ? m->size[i - d] / (i - d == m->which ? n : 1)
                                : node_shape(x)[i - m->n + 1];
    return gb_reshape(&p->g, x, 0, x->rank + m->n - 1, shape);
}

static eas_node *together(partition *p, eas_node *x, int d, const pmix *m)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (!x)
        return NULL;
    for (int i = 0; i < x->rank - m->n + 1; i++) {
        shape[i] = i <= d ? node_shape(x)[i] : node_shape(x)[i + m->n - 1];
        for (int k = 1; i == d && k < m->n; k++)
            shape[i] *= node_shape(x)[d + k];
    }
    return gb_reshape(&p->g, x, 0, x->rank - m->n + 1, shape);
}

eas_node *mix_gathered(partition *p, eas_node *x, int d, const eas_dim_spec *at, const char *why)
{
    const pmix m = p->mixes.at[at->priority - 1];
    eas_dim_spec axes = *at;
    axes.priority = 0;
    x = apart(p, x, d, &m, parts_of_dim(p, at));
    return x ? together(p, coll_gather(p, x, &axes, d + m.which, why), d, &m) : NULL;
}

eas_node *mix_block(partition *p, eas_node *x, int d, const eas_dim_spec *to)
{
    const pmix m = p->mixes.at[to->priority - 1];
    eas_dim_spec axes = *to;
    axes.priority = 0;
    x = apart(p, x, d, &m, 1);
    return x ? together(p, local_block(p, x, &axes, d + m.which), d, &m) : NULL;
}

/* Operations that do not care for the order along dims that pass, or are summed over. */
bool mix_passes(const eas_node *n)
{
    switch (node_kind(n)) {
    case KIND_MAP:
    case KIND_CAST:
    case KIND_PERMUTE:
    case KIND_BROADCAST:
    case KIND_REDUCE:
    case KIND_MATMUL: return true;
    default: return false;
    }
}

eas_spec mix_none(const eas_spec *s)
{
    eas_spec r = *s;
    for (int d = 0; d < r.rank; d++)
        if (r.dims[d].priority)
            r.dims[d] = (eas_dim_spec){0};
    return r;
}

/* ---- reshapes ---- */

typedef struct reshaping {
    partition *p;
    const eas_shard_rule *r;
    eas_dim_spec *of; /* per factor */
    bool special;     /* something is mixed, before or after */
} reshaping;

/* Finds the factor of the dim that contains the cut size of the mix, and the sizes of the mix that it
 * consists of; false: the factors are not products of these sizes. */
static bool find_cut(const eas_shard_rule *r, const eas_shard_dim *dim, const pmix *m, int *factor,
                     pmix *inside)
{
    int at = 0;
    bool found = false;
    for (int k = 0; k < dim->n; k++) {
        int64_t size = r->factors[dim->factors[k]].size, product = 1;
        int first = at;
        while (at < m->n && product < size)
            product *= m->size[at++];
        if (product != size)
            return false;
        if (m->which < first || m->which >= at)
            continue;
        *factor = dim->factors[k];
        *inside = (pmix){.n = at - first, .which = m->which - first};
        memcpy(inside->size, m->size + first, sizeof *m->size * (size_t)(at - first));
        found = true;
    }
    return found && at == m->n;
}

static void read_mixed(reshaping *w, const eas_shard_dim *dim, const eas_dim_spec *s)
{
    pmix inside;
    int factor;
    const pmix m = w->p->mixes.at[s->priority - 1];
    w->special = true;
    if (!find_cut(w->r, dim, &m, &factor, &inside))
        return;
    w->of[factor] = *s;
    w->of[factor].priority = inside.n > 1 ? number_of(w->p, &inside) : 0;
}

static void read_plain(reshaping *w, const eas_shard_dim *dim, const eas_dim_spec *s)
{
    int k = 0;
    for (int i = 0; i < s->n && k < dim->n; i++) {
        eas_dim_spec *a = &w->of[dim->factors[k]];
        eas_dim size = w->r->factors[dim->factors[k]].size;
        int64_t now = parts_of_dim(w->p, a) * w->p->m->m.sizes[s->axes[i]];
        if (!dim_known(size) || size % now)
            return;
        a->axes[a->n++] = s->axes[i];
        k += now == size && dim->n > 1;
    }
}

/* Are only the outermost factors cut, each into single elements before the next? */
static bool in_order(const reshaping *w, const eas_shard_dim *dim)
{
    bool whole = false;
    for (int k = 0; k < dim->n; k++) {
        const eas_dim_spec *of = &w->of[dim->factors[k]];
        if (whole && of->n)
            return false;
        whole |= parts_of_dim(w->p, of) != w->r->factors[dim->factors[k]].size;
    }
    return true;
}

/* The sizes of a dim of which one factor is cut, mixed itself or not. */
static bool mix_of_dim(const reshaping *w, const eas_shard_dim *dim, pmix *m, int *factor)
{
    int ncut = 0;
    m->n = 0;
    for (int k = 0; k < dim->n; k++) {
        const eas_dim_spec *of = &w->of[dim->factors[k]];
        const pmix own = {.n = 1, .size = {w->r->factors[dim->factors[k]].size}};
        const pmix *in = of->n && of->priority ? &w->p->mixes.at[of->priority - 1] : &own;
        if (m->n + in->n > MIX_MOST)
            return false;
        if (of->n) {
            m->which = m->n + in->which;
            *factor = dim->factors[k];
            ncut++;
        }
        if (in == &own && own.size[0] == 1)
            continue;
        memcpy(m->size + m->n, in->size, sizeof *m->size * (size_t)in->n);
        m->n += in->n;
    }
    return ncut == 1;
}

static eas_dim_spec written(reshaping *w, const eas_shard_dim *dim)
{
    eas_dim_spec out = {0};
    pmix m;
    int factor;
    bool mixed = false;
    for (int k = 0; k < dim->n; k++)
        mixed |= w->of[dim->factors[k]].n && w->of[dim->factors[k]].priority;
    if (dim->n == 1)
        return w->of[dim->factors[0]];
    if (!mixed && in_order(w, dim)) {
        for (int k = 0; k < dim->n; k++)
            for (int i = 0; i < w->of[dim->factors[k]].n; i++)
                out.axes[out.n++] = w->of[dim->factors[k]].axes[i];
        return out;
    }
    if (mix_of_dim(w, dim, &m, &factor)) {
        out = w->of[factor];
        out.priority = number_of(w->p, &m);
        w->special = true;
        return out;
    }
    /* several cuts that cannot be told apart: all go but the outermost, if that is in single elements */
    for (int k = 0; k < dim->n; k++) {
        eas_dim_spec *of = &w->of[dim->factors[k]];
        if (k || !of->n || of->priority || parts_of_dim(w->p, of) != w->r->factors[dim->factors[k]].size)
            *of = (eas_dim_spec){0};
    }
    return written(w, dim);
}

/* How the input must lie for what the factors are cut into. */
static eas_dim_spec wanted(const reshaping *w, const eas_shard_dim *dim, const eas_dim_spec *at)
{
    eas_dim_spec out = {0};
    if (at->priority) {
        bool stays = false;
        for (int k = 0; k < dim->n; k++)
            stays |= w->of[dim->factors[k]].n != 0;
        return stays ? *at : out;
    }
    for (int k = 0; k < dim->n; k++)
        for (int i = 0; i < w->of[dim->factors[k]].n; i++)
            out.axes[out.n++] = w->of[dim->factors[k]].axes[i];
    return out;
}

static void fill(reshaping *w, const eas_node *n, const eas_spec *at, eas_spec *need, eas_spec *out)
{
    const eas_node *x = node_in(n)[0];
    for (int d = 0; d < x->rank; d++) {
        const eas_shard_dim *dim = &w->r->tensors[0].dims[d];
        if (at->dims[d].n && dim->n)
            (at->dims[d].priority ? read_mixed : read_plain)(w, dim, &at->dims[d]);
        w->special |= at->dims[d].priority != 0;
    }
    for (int d = 0; d < n->rank; d++)
        out->dims[d] = written(w, &w->r->tensors[1].dims[d]);
    for (int d = 0; d < x->rank; d++)
        need->dims[d] = wanted(w, &w->r->tensors[0].dims[d], &at->dims[d]);
}

bool partition_reshape(partition *p, pentry *e)
{
    eas_node *n = e->n, *x = node_in(n)[0];
    eas_shard_rule *r;
    if (node_kind(n) != KIND_RESHAPE)
        return false;
    for (int d = 0; d < n->rank; d++)
        if (!dim_known(node_shape(n)[d]))
            return false;
    const eas_spec at = partition_value(p, x)->at;
    if (p->g.st || !spec_cut(&at))
        return p->g.st != EAS_OK;
    p->g.st = dist_shard_rule(n, &r);
    if (p->g.st)
        return true;
    eas_spec need = {.rank = x->rank}, out = {.rank = n->rank};
    reshaping w = {.p = p, .r = r, .of = calloc((size_t)r->nfactors + 1, sizeof *w.of)};
    if (!w.of)
        p->g.st = base_fail_oom((size_t)r->nfactors);
    else
        fill(&w, n, &at, &need, &out);
    bool special = w.special && !p->g.st;
    if (special) {
        eas_dim shape[GRAPH_MAX_RANK];
        need.partial = out.partial = at.partial;
        eas_node *y = reshard(p, partition_value(p, x), &need, x->rank, node_shape(x),
                              "the new shape does not keep the parts together");
        spec_local_shape(p->m, &out, node_shape(n), shape);
        e->v.n =
            y ? gb_new(&p->g, n->op, (eas_dtype)n->dtype, 0, n->rank, shape, n->nwords, node_words(n), 1, &y)
              : NULL;
        e->v.at = out;
    }
    free(w.of);
    free(r);
    return special || p->g.st != EAS_OK;
}
