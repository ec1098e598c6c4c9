/* shard.c: how tensors lie on a mesh of devices, as metadata: rules of operations, and specs that follow from
 * specs.
 *
 * A rule names factors: the dims of inputs and result are products of them (a reshape that merges two dims
 * has one dim with two factors). Axes of the mesh that cut a factor in one tensor can cut it in all. Of a
 * factor that the result does not have, sums leave partial results behind; and some factors cannot be cut at
 * all (the axis that is sorted along). Nothing here runs anything.
 */
#include "graph.h"

/* ---- rules ---- */

static uint16_t new_factor(eas_shard_rule *r, eas_dim size, eas_factor_kind kind)
{
    if (r->nfactors == EAS_MAX_FACTORS)
        return EAS_MAX_FACTORS; /* the table is full: further dims get no factor and are not cut */
    r->factors[r->nfactors].size = size;
    r->factors[r->nfactors].kind = kind;
    return (uint16_t)r->nfactors++;
}

static void add_factor(eas_shard_rule *r, int tensor, int dim, uint16_t factor)
{
    eas_shard_dim *d = &r->tensors[tensor].dims[dim];
    if (factor < EAS_MAX_FACTORS && d->n < EAS_DIM_FACTORS)
        d->factors[d->n++] = factor;
}

/* Input k's dim and the result's are one. */
static void pass(eas_shard_rule *r, const eas_node *n, int k, int from, int to)
{
    eas_shard_dim *out = &r->tensors[r->nin].dims[to];
    if (!out->n)
        add_factor(r, r->nin, to, new_factor(r, node_shape(n)[to], EAS_FACTOR_PASS));
    if (out->n)
        add_factor(r, k, from, out->factors[0]);
}

/* A dim of one input alone. */
static uint16_t alone(eas_shard_rule *r, const eas_node *n, int k, int dim, eas_factor_kind kind)
{
    uint16_t f = new_factor(r, node_shape(node_in(n)[k])[dim], kind);
    add_factor(r, k, dim, f);
    return f;
}

/* Inputs from `first` on broadcast to the result, aligned at the end. */
static void pass_aligned(eas_shard_rule *r, const eas_node *n, int first)
{
    for (int k = first; k < n->nin; k++) {
        const eas_node *x = node_in(n)[k];
        int ahead = n->rank - x->rank;
        for (int d = 0; d < x->rank; d++)
            if (node_shape(x)[d] == node_shape(n)[d + ahead])
                pass(r, n, k, d, d + ahead);
    }
}

eas_status shard_data(eas_node *n, eas_shard_rule *r) /* nothing comes in, or nothing is known of how */
{
    (void)n, (void)r;
    return EAS_OK;
}

eas_status shard_elements(eas_node *n, eas_shard_rule *r)
{
    pass_aligned(r, n, 0);
    return EAS_OK;
}

/* Like its first input, with the same dims; the others are looked at only. */
eas_status shard_same(eas_node *n, eas_shard_rule *r)
{
    for (int d = 0; d < n->rank && d < node_in(n)[0]->rank; d++)
        pass(r, n, 0, d, d);
    return EAS_OK;
}

/* Dims that are the same on both sides, from the last one back to the ones given. */
static void pass_tail(eas_shard_rule *r, const eas_node *n, int from, int to)
{
    const eas_node *x = node_in(n)[0];
    for (int i = x->rank - 1, k = n->rank - 1; i >= from && k >= to && node_shape(x)[i] == node_shape(n)[k];
         i--, k--)
        pass(r, n, 0, i, k);
}

/* Dims on both sides taken apart into what they have in common, from the first on. */
eas_status shard_reshape(eas_node *n, eas_shard_rule *r)
{
    const eas_node *x = node_in(n)[0];
    int i = 0, k = 0;
    eas_dim a = 1, b = 1, part;
    for (;;) {
        while (a == 1 && i < x->rank)
            a = node_shape(x)[i++];
        while (b == 1 && k < n->rank)
            b = node_shape(n)[k++];
        if (a == 1 || b == 1 || a == 0 || b == 0)
            return EAS_OK;
        bool all = a == b, down = !all && dim_divides(b, a, &part),
             up = !all && !down && dim_divides(a, b, &part);
        if (!all && !down && !up) {
            pass_tail(r, n, i, k); /* what follows cannot be told apart */
            return EAS_OK;
        }
        uint16_t f = new_factor(r, up ? b : a, EAS_FACTOR_PASS);
        add_factor(r, 0, i - 1, f);
        add_factor(r, 1, k - 1, f);
        a = up ? part : 1;
        b = down ? part : 1;
    }
}

eas_status shard_permute(eas_node *n, eas_shard_rule *r)
{
    for (int d = 0; d < n->rank; d++)
        pass(r, n, 0, (int)node_words(n)[d], d);
    return EAS_OK;
}

/* A dim that is taken as it is, or one of which every part may need every part. */
static void taken(eas_shard_rule *r, const eas_node *n, int d, bool whole)
{
    if (whole && node_shape(node_in(n)[0])[d] == node_shape(n)[d])
        pass(r, n, 0, d, d);
    else
        alone(r, n, 0, d, EAS_FACTOR_WHOLE);
}

eas_status shard_slice(eas_node *n, eas_shard_rule *r)
{
    const int64_t *w = node_words(n);
    for (int d = 0; d < n->rank; d++)
        taken(r, n, d, w[d] == 0 && w[n->rank + d] == 1);
    return EAS_OK;
}

eas_status shard_pad(eas_node *n, eas_shard_rule *r)
{
    for (int d = 0; d < n->rank; d++)
        taken(r, n, d, true);
    return EAS_OK;
}

eas_status shard_concat(eas_node *n, eas_shard_rule *r)
{
    for (int k = 0; k < n->nin; k++)
        for (int d = 0; d < n->rank; d++)
            if (d == node_words(n)[0])
                alone(r, n, k, d, EAS_FACTOR_WHOLE);
            else
                pass(r, n, k, d, d);
    return EAS_OK;
}

/* The result lies as x does; an update of a whole dim as well. */
eas_status shard_update(eas_node *n, eas_shard_rule *r)
{
    const eas_node *u = node_in(n)[1];
    for (int d = 0; d < n->rank; d++) {
        pass(r, n, 0, d, d);
        if (node_shape(u)[d] == node_shape(n)[d])
            pass(r, n, 1, d, d);
        else
            alone(r, n, 1, d, EAS_FACTOR_WHOLE);
    }
    return EAS_OK;
}

eas_status shard_window(eas_node *n, eas_shard_rule *r)
{
    const int64_t *w = node_words(n);
    for (int d = 0; d < node_in(n)[0]->rank; d++) {
        bool slid = false;
        for (int i = 0; i < w[0]; i++)
            slid |= w[1 + 3 * i] == d;
        if (slid)
            alone(r, n, 0, d, EAS_FACTOR_WHOLE);
        else
            pass(r, n, 0, d, d);
    }
    return EAS_OK;
}

/* A key for each of the leading dims. */
eas_status shard_random(eas_node *n, eas_shard_rule *r)
{
    for (int d = 0; d < node_in(n)[0]->rank; d++)
        if (node_shape(node_in(n)[0])[d] == node_shape(n)[d])
            pass(r, n, 0, d, d);
    return EAS_OK;
}

static void reduce_axes(eas_node *n, eas_shard_rule *r, uint32_t axes, bool keep, eas_factor_kind kind)
{
    for (int d = 0, to = 0; d < node_in(n)[0]->rank; d++) {
        bool gone = axes >> d & 1;
        if (gone)
            alone(r, n, 0, d, kind);
        else
            pass(r, n, 0, d, to);
        to += !gone || keep;
    }
}

eas_status shard_reduce(eas_node *n, eas_shard_rule *r)
{
    const char *join = graph_rows[n->op].ir;
    uint32_t axes = 0;
    for (int i = 1; i < n->nwords; i++)
        axes |= 1u << node_words(n)[i];
    reduce_axes(n, r, axes, node_words(n)[0] != 0, !strcmp(join, "add") ? EAS_FACTOR_SUM : EAS_FACTOR_JOIN);
    return EAS_OK;
}

eas_status shard_arg(eas_node *n, eas_shard_rule *r)
{
    reduce_axes(n, r, 1u << node_words(n)[1], node_words(n)[0] != 0, EAS_FACTOR_WHOLE);
    return EAS_OK;
}

/* Scans and sorts: along the axis every element may need every other. */
eas_status shard_axis(eas_node *n, eas_shard_rule *r)
{
    for (int d = 0; d < n->rank; d++)
        if (d == node_words(n)[0])
            alone(r, n, 0, d, EAS_FACTOR_WHOLE);
        else
            pass(r, n, 0, d, d);
    return EAS_OK;
}

eas_status shard_matmul(eas_node *n, eas_shard_rule *r)
{
    const eas_node *x = node_in(n)[0], *y = node_in(n)[1];
    for (int k = 0; k < 2; k++) {
        const eas_node *z = node_in(n)[k];
        for (int d = 0; d < z->rank - 2; d++)
            if (node_shape(z)[d] == node_shape(n)[d + n->rank - z->rank])
                pass(r, n, k, d, d + n->rank - z->rank);
    }
    pass(r, n, 0, x->rank - 2, n->rank - 2);
    pass(r, n, 1, y->rank - 1, n->rank - 1);
    add_factor(r, 1, y->rank - 2, alone(r, n, 0, x->rank - 1, EAS_FACTOR_SUM));
    return EAS_OK;
}

eas_status shard_gather(eas_node *n, eas_shard_rule *r)
{
    const eas_node *x = node_in(n)[0], *index = node_in(n)[1];
    int nbatch = (int)node_words(n)[0], axis = (int)node_words(n)[1], more = index->rank - nbatch - 1;
    for (int d = 0; d < x->rank; d++)
        if (d == axis)
            alone(r, n, 0, d, EAS_FACTOR_WHOLE);
        else if (node_shape(x)[d] == node_shape(n)[d < axis ? d : d + more])
            pass(r, n, 0, d, d < axis ? d : d + more);
    for (int d = 0; d < index->rank; d++) {
        int to = d < nbatch ? d : d - nbatch + axis;
        if (node_shape(index)[d] == node_shape(n)[to])
            pass(r, n, 1, d, to);
    }
    return EAS_OK;
}

eas_status shard_along(eas_node *n, eas_shard_rule *r)
{
    for (int k = 0; k < 2; k++)
        for (int d = 0; d < n->rank; d++)
            if (k == 0 && d == node_words(n)[0])
                alone(r, n, 0, d, EAS_FACTOR_WHOLE);
            else if (node_shape(node_in(n)[k])[d] == node_shape(n)[d])
                pass(r, n, k, d, d);
    return EAS_OK;
}

/* Updates have the index's dims in place of the axis. */
eas_status shard_scatter(eas_node *n, eas_shard_rule *r)
{
    const eas_node *index = node_in(n)[1], *u = node_in(n)[2];
    int nbatch = (int)node_words(n)[0], axis = (int)node_words(n)[1], more = index->rank - nbatch - 1;
    for (int d = 0; d < n->rank; d++) {
        int from = d < axis ? d : d + more;
        if (d == axis) {
            alone(r, n, 0, d, EAS_FACTOR_WHOLE);
            continue;
        }
        pass(r, n, 0, d, d);
        if (from < u->rank && node_shape(u)[from] == node_shape(n)[d])
            pass(r, n, 2, from, d);
    }
    for (int d = 0; d < index->rank; d++) {
        if (d < nbatch && node_shape(index)[d] == node_shape(n)[d]) {
            pass(r, n, 1, d, d);
        } else if (d >= nbatch) {
            uint16_t f = alone(r, n, 1, d, EAS_FACTOR_WHOLE);
            if (d - nbatch + axis < u->rank)
                add_factor(r, 2, d - nbatch + axis, f);
        }
    }
    return EAS_OK;
}

/* A composite has no rule of its own: eas_node_infer_spec goes through the nodes it expands to. */
eas_status shard_expand(eas_node *n, eas_shard_rule *r)
{
    (void)r;
    return base_fail(EAS_ERR_UNAVAILABLE,
                     "eager.%s is made of simpler operations, and its sharding follows from theirs",
                     graph_rows[n->op].name);
}

eas_status eas_node_shard_rule(eas_node *n, eas_shard_rule **out)
{
    NEED(n, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    size_t size = sizeof(eas_shard_rule) + sizeof(eas_shard_tensor) * (size_t)(n->nin + 1);
    eas_shard_rule *r = calloc(1, size);
    *out = NULL;
    if (!r)
        return base_fail_oom(size);
    r->nin = n->nin;
    r->tensors = (eas_shard_tensor *)(r + 1);
    for (int i = 0; i < n->nin; i++)
        r->tensors[i].rank = node_in(n)[i]->rank;
    r->tensors[n->nin].rank = n->rank;
    eas_status st = node_real(n) ? EAS_OK : graph_rows[n->op].shard(n, r);
    if (st)
        free(r);
    else
        *out = r;
    return st;
}

/* ---- specs from specs ---- */

typedef eas_dim_spec axes; /* of a factor: n and axes count */

static int64_t parts(const eas_mesh *m, const axes *a)
{
    int64_t p = 1;
    for (int i = 0; i < a->n; i++)
        p *= m->sizes[a->axes[i]];
    return p;
}

/* The axes of a dim, given to its factors from the first on: a factor is cut into all it has before the next
 * one is. */
static void spread(const eas_mesh *m, const eas_shard_rule *r, const eas_shard_dim *d, const eas_dim_spec *s,
                   axes *out)
{
    int k = 0;
    for (int i = 0; i < s->n && d->n; i++) {
        axes *a = &out[k];
        eas_dim size = r->factors[d->factors[k]].size;
        int64_t now = parts(m, a) * m->sizes[s->axes[i]];
        if (d->n > 1 && !(dim_known(size) && size % now == 0))
            return; /* a part of this factor and of the next: cannot be said */
        a->axes[a->n++] = s->axes[i];
        if (d->n > 1 && now == size && ++k == d->n)
            return;
    }
}

static int common(const axes *a, const axes *b)
{
    int n = 0;
    while (n < a->n && n < b->n && a->axes[n] == b->axes[n])
        n++;
    return n;
}

/* Joins the axes that two tensors cut one factor along. */
static void meet(const eas_mesh *m, axes *have, const axes *more, bool aggressive)
{
    int n = common(have, more);
    if (more->n == 0 || n == more->n)
        return;
    if (n == have->n || (aggressive && parts(m, more) > parts(m, have)))
        *have = *more;
    else if (!aggressive)
        have->n = (uint8_t)n;
}

static void gather_axes(const eas_mesh *m, const eas_shard_rule *r, int n, eas_spec *const *specs,
                        int priority, bool aggressive, axes *of)
{
    for (int t = 0; t < n; t++)
        for (int d = 0; specs[t] && d < r->tensors[t].rank; d++) {
            const eas_shard_dim *dim = &r->tensors[t].dims[d];
            axes own[EAS_DIM_FACTORS] = {{0}};
            if (specs[t]->dims[d].priority != priority)
                continue;
            spread(m, r, dim, &specs[t]->dims[d], own);
            for (int k = 0; k < dim->n; k++)
                if (r->factors[dim->factors[k]].kind != EAS_FACTOR_WHOLE)
                    meet(m, &of[dim->factors[k]], &own[k], aggressive);
        }
}

static uint32_t used_axes(const eas_spec *s)
{
    uint32_t used = s->replicated | s->partial;
    for (int d = 0; d < s->rank; d++)
        for (int i = 0; i < s->dims[d].n; i++)
            used |= 1u << s->dims[d].axes[i];
    return used;
}

/* The dim's axes as its factors have them; an axis that the tensor uses elsewhere ends it. */
static bool fill_dim(const eas_mesh *m, const eas_shard_rule *r, const eas_shard_dim *dim, const axes *of,
                     eas_spec *s, int d)
{
    eas_dim_spec want = s->dims[d];
    uint32_t used = used_axes(s);
    int at = 0;
    for (int k = 0; k < dim->n; k++) {
        const axes *a = &of[dim->factors[k]];
        int i = 0;
        for (; i < a->n; i++, at++) {
            if (at < want.n && want.axes[at] != a->axes[i])
                return false;
            if (at < want.n)
                continue;
            if (used >> a->axes[i] & 1)
                break;
            want.axes[want.n++] = a->axes[i];
            used |= 1u << a->axes[i]; /* two factors of the dim may have it */
        }
        if (i < a->n || parts(m, a) != r->factors[dim->factors[k]].size)
            break;
    }
    bool changed = want.n > s->dims[d].n;
    s->dims[d] = want;
    return changed;
}

eas_status eas_shard_propagate(const eas_shard_rule *r, const eas_mesh *m, eas_spec *const *specs,
                               int aggressive, int *changed)
{
    NEED(r, EAS_ERR_HANDLE);
    axes *of = calloc((size_t)r->nfactors + 1, sizeof *of);
    int lowest = 0, highest = 0;
    if (!of)
        return base_fail_oom((size_t)r->nfactors * sizeof *of);
    *changed = 0;
    for (int t = 0; t <= r->nin; t++) {
        if (specs[t] && specs[t]->rank != r->tensors[t].rank) {
            free(of);
            return base_fail(EAS_ERR_VALUE, "propagate_sharding: spec %d is of %d dims, and the rule of %d",
                             t, specs[t]->rank, r->tensors[t].rank);
        }
        for (int d = 0; specs[t] && d < specs[t]->rank; d++)
            highest = specs[t]->dims[d].priority > highest ? specs[t]->dims[d].priority : highest;
    }
    for (int p = lowest; p <= highest; p++)
        gather_axes(m, r, r->nin + 1, specs, p, aggressive != 0, of);
    for (int t = 0; t <= r->nin; t++)
        for (int d = 0; specs[t] && d < specs[t]->rank; d++)
            if (specs[t]->dims[d].open)
                *changed |= fill_dim(m, r, &r->tensors[t].dims[d], of, specs[t], d);
    eas_spec *out = specs[r->nin];
    for (int f = 0; f < r->nfactors && out; f++)
        for (int i = 0; r->factors[f].kind == EAS_FACTOR_SUM && i < of[f].n; i++)
            if (!(used_axes(out) >> of[f].axes[i] & 1)) {
                out->partial |= 1u << of[f].axes[i];
                *changed = 1;
            }
    free(of);
    return EAS_OK;
}

/* ---- what a node's spec is ---- */

/* The axes (as bits) along which the result of n is still a partial sum. An operation keeps its input's
 * partial sums if it is linear in that input. p: the axes of each input. */
static uint32_t still_partial(const eas_node *n, const uint32_t *p)
{
    uint32_t all = n->nin ? p[0] : 0;
    int64_t bits;
    for (int i = 1; i < n->nin; i++)
        all &= p[i];
    switch (node_kind(n)) {
    case KIND_RESHAPE:
    case KIND_PERMUTE:
    case KIND_BROADCAST:
    case KIND_SLICE:
    case KIND_WINDOW:
    case KIND_ALIAS: return p[0];
    case KIND_CAST:
        return dtype_is_float((eas_dtype)n->dtype) && dtype_is_float((eas_dtype)node_in(n)[0]->dtype) ? p[0]
                                                                                                      : 0;
    case KIND_CONCAT:
    case KIND_UPDATE: return all;
    case KIND_PAD: return node_const_bits(node_in(n)[1], &bits) && bits == 0 ? p[0] : 0;
    case KIND_REDUCE:
    case KIND_SCAN: return !strcmp(graph_rows[n->op].ir, "add") ? p[0] : 0;
    case KIND_MATMUL: return p[0] ^ p[1];
    case KIND_GATHER:
    case KIND_ALONG: return p[0] & ~p[1];
    case KIND_SCATTER: return node_words(n)[2] == SCATTER_ADD ? p[0] & p[2] & ~p[1] : 0;
    case KIND_MAP: break;
    default: return 0;
    }
    switch (n->op) {
    case GRAPH_NEG: return p[0];
    case GRAPH_ADD:
    case GRAPH_SUB: return all;
    case GRAPH_MUL: return p[0] ^ p[1];
    case GRAPH_DIV: return p[0] & ~p[1];
    case GRAPH_WHERE: return p[1] & p[2] & ~p[0];
    default: return 0;
    }
}

/* Each dim of the result has the open flag and the priority of the input's dim that it comes from. */
static void inherit_flags(const eas_shard_rule *r, eas_spec *const *specs, eas_spec *out)
{
    for (int d = 0; d < out->rank; d++) {
        const eas_shard_dim *to = &r->tensors[r->nin].dims[d];
        out->dims[d].open = false;
        for (int t = r->nin - 1; t >= 0 && to->n; t--)
            for (int k = 0; specs[t] && k < r->tensors[t].rank; k++)
                if (r->tensors[t].dims[k].n && r->tensors[t].dims[k].factors[0] == to->factors[0]) {
                    out->dims[d].open = specs[t]->dims[k].open;
                    out->dims[d].priority = specs[t]->dims[k].priority;
                }
    }
}

/* r: of n, which it takes over; NULL: the one of n's operation. */
static eas_status apply_rule(eas_node *n, eas_shard_rule *r, const eas_mesh *m, eas_spec **specs,
                             eas_spec *out)
{
    uint32_t few[16], *p = n->nin <= 16 ? few : malloc(sizeof *p * n->nin), replicated = 0;
    int changed;
    eas_status st = p ? r ? EAS_OK : eas_node_shard_rule(n, &r) : base_fail_oom(n->nin);
    if (st) {
        if (p != few)
            free(p);
        return st;
    }
    *out = (eas_spec){.rank = n->rank};
    for (int d = 0; d < n->rank; d++)
        out->dims[d].open = 1;
    uint8_t *was = malloc((size_t)(n->nin * GRAPH_MAX_RANK + 1));
    for (int i = 0; was && i < n->nin; i++) {
        p[i] = specs[i] ? specs[i]->partial : 0;
        replicated |= specs[i] ? specs[i]->replicated : 0;
        for (int d = 0; specs[i] && d < specs[i]->rank; d++) { /* inputs stay what they are */
            was[i * GRAPH_MAX_RANK + d] = specs[i]->dims[d].open;
            specs[i]->dims[d].open = 0;
        }
    }
    out->partial = was ? still_partial(n, p) : 0;
    specs[n->nin] = out;
    st = was ? eas_shard_propagate(r, m, specs, 0, &changed) : base_fail_oom(n->nin);
    for (int i = 0; was && i < n->nin; i++)
        for (int d = 0; specs[i] && d < specs[i]->rank; d++)
            specs[i]->dims[d].open = was[i * GRAPH_MAX_RANK + d];
    inherit_flags(r, specs, out);
    out->replicated = replicated & ~used_axes(out);
    free(was);
    free(r);
    if (p != few)
        free(p);
    return st;
}

typedef struct known { /* a node whose spec is there */
    eas_node *n;
    eas_spec spec;
    bool any; /* it has one */
} known;
typedef struct inferring {
    const eas_mesh *m;
    VEC(known) at;
    VEC(eas_node *) opened; /* expansions, counted */
} inferring;

static known *look(inferring *w, const eas_node *n)
{
    for (uint32_t i = 0; i < w->at.len; i++)
        if (w->at.at[i].n == n)
            return &w->at.at[i];
    return NULL;
}

static eas_status infer(inferring *w, eas_node *n, int depth);

static eas_status infer_expansion(inferring *w, eas_node *n, int depth)
{
    eas_node *e = NULL;
    node_expanding = true;
    eas_status st = graph_rows[n->op].expand(n, node_in(n), &e);
    node_expanding = false;
    if (!st && !vec_push(&w->opened, e)) {
        node_unref(e);
        st = base_fail_oom(sizeof e);
    }
    if (!st)
        st = infer(w, e, depth);
    if (st)
        return st;
    known k = *look(w, e);
    k.n = n;
    return vec_push(&w->at, k) ? EAS_OK : base_fail_oom(sizeof k);
}

static eas_status infer_plain(inferring *w, eas_node *n, int depth)
{
    known k = {.n = n};
    eas_spec **specs = calloc((size_t)n->nin + 2, sizeof *specs);
    eas_status st = specs ? EAS_OK : base_fail_oom(n->nin);
    for (int i = 0; i < n->nin && !st; i++)
        st = infer(w, node_in(n)[i], depth);
    graph_kind kind = node_kind(n);
    /* how results of calls, loops and branches lie does not follow from their inputs */
    bool opaque = kind == KIND_CALL || kind == KIND_CONTROL || kind == KIND_RESULT;
    for (int i = 0; i < n->nin && !st && !opaque; i++) {
        known *x = look(w, node_in(n)[i]);
        specs[i] = x->any ? &x->spec : NULL;
        k.any |= x->any;
    }
    if (!st && k.any)
        st = apply_rule(n, NULL, w->m, specs, &k.spec);
    free(specs);
    if (!st && !vec_push(&w->at, k))
        st = base_fail_oom(sizeof k);
    return st;
}

eas_status (*shard_call_rule)(eas_node *result, eas_shard_rule **out);

/* A result of a call, by the call's rule. *done: it has one. */
static eas_status infer_called(inferring *w, eas_node *n, int depth, bool *done)
{
    int index;
    eas_node *call = control_source(n, &index);
    eas_shard_rule *r = NULL;
    known k = {.n = n};
    *done = false;
    eas_status st = shard_call_rule ? shard_call_rule(n, &r) : EAS_OK;
    if (st || !r)
        return st;
    eas_spec **specs = calloc((size_t)call->nin + 2, sizeof *specs), out = {.rank = n->rank};
    st = specs ? EAS_OK : base_fail_oom(call->nin);
    for (int i = 0; i < call->nin && !st; i++)
        st = infer(w, node_in(call)[i], depth);
    for (int i = 0; i < call->nin && !st; i++) {
        known *x = look(w, node_in(call)[i]);
        specs[i] = x->any ? &x->spec : NULL;
        k.any |= x->any;
    }
    for (int d = 0; d < n->rank; d++)
        out.dims[d].open = 1;
    specs[call->nin] = &out;
    int changed;
    if (!st && k.any)
        st = eas_shard_propagate(r, w->m, specs, 0, &changed);
    for (int d = 0; d < n->rank; d++)
        out.dims[d].open = 0;
    k.spec = out;
    free(specs);
    free(r);
    if (!st && !vec_push(&w->at, k))
        st = base_fail_oom(sizeof k);
    *done = !st;
    return st;
}

/* Bounds the walk below a node: the expansion of one operation is never that deep, so a deeper chain belongs
 * to other operations, whose specs the caller knows. */
enum { DEEPEST = 200 };
static eas_status infer(inferring *w, eas_node *n, int depth)
{
    if (look(w, n))
        return EAS_OK;
    if (node_real(n) || n->nin == 0 || depth >= DEEPEST) {
        known k = {.n = n};
        return vec_push(&w->at, k) ? EAS_OK : base_fail_oom(sizeof k);
    }
    if (node_kind(n) == KIND_RESULT) {
        bool done;
        eas_status st = infer_called(w, n, depth + 1, &done);
        if (st || done)
            return st;
    }
    return node_kind(n) == KIND_COMPOSITE ? infer_expansion(w, n, depth + 1) : infer_plain(w, n, depth + 1);
}

eas_status eas_node_infer_spec(eas_node *n, const eas_mesh *m, int nin, eas_node *const *in,
                               const eas_spec *const *specs, eas_spec *out, int *any)
{
    NEED(n, EAS_ERR_HANDLE);
    NEED(m, EAS_ERR_HANDLE);
    NEED(nin <= 0 || in, EAS_ERR_HANDLE);
    NEED(nin <= 0 || specs, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    NEED(any, EAS_ERR_HANDLE);
    inferring w = {.m = m};
    eas_status st = EAS_OK;
    *any = 0;
    for (int i = 0; i < nin && !st; i++) {
        known k = {.n = in[i], .any = specs[i] != NULL};
        if (in[i] == n || look(&w, in[i]))
            continue;
        if (specs[i] && specs[i]->rank != in[i]->rank)
            st = base_fail(EAS_ERR_VALUE, "eager: a sharding of %d dims on a tensor of %d", specs[i]->rank,
                           in[i]->rank);
        else if (specs[i])
            k.spec = *specs[i];
        if (!st && !vec_push(&w.at, k))
            st = base_fail_oom(sizeof k);
    }
    if (!st)
        st = infer(&w, n, 0);
    if (!st) {
        known *k = look(&w, n);
        *out = k->spec;
        *any = k->any;
    }
    for (uint32_t i = 0; i < w.opened.len; i++)
        node_unref(w.opened.at[i]);
    vec_free(&w.opened);
    vec_free(&w.at);
    return st;
}
