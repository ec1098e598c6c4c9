/* place.c: concatenations, and updates of a slice, along a cut dim: tensors are put next to each other, or
 * one over a part of another.
 *
 * The result is cut. Each device finds of every input the elements that lie in its part of the result, and
 * selects between them by their global places. An input that is whole along the dim gives them for nothing.
 * An input in parts is shifted: seen from the result it is the input padded to the result's size, and only
 * elements that change their device are sent (halo.c). If that is more than gathering the input, the input is
 * gathered. An input that is still to be summed stays so in a concatenation of
 * such.
 */
#include "shift.h"

typedef struct placing {
    partition *p;
    eas_node *n;
    bool concat;
    int dim; /* of a concatenation */
    assigned a;
} placing;

static bool is_update(const eas_node *n) { return node_kind(n) == KIND_UPDATE && n->nin == 2; }

/* Sizes and places are known, and nothing is empty. */
static bool is_placing(const eas_node *n)
{
    if (node_real(n) || !(node_kind(n) == KIND_CONCAT || is_update(n)) || !shift_known_sizes(n) ||
        shift_is(n))
        return false;
    for (int i = 0; i < n->nwords; i++)
        if (dim_is_expr(node_words(n)[i]))
            return false;
    for (int i = 0; i < n->nin; i++) {
        if (!shift_known_sizes(node_in(n)[i]))
            return false;
        for (int d = 0; d < n->rank; d++)
            if (node_shape(node_in(n)[i])[d] == 0 && !(node_kind(n) == KIND_CONCAT && d == node_words(n)[0]))
                return false;
    }
    return true;
}

/* Do elements of the inputs lie at other places in the result along this dim? */
static bool moves(const placing *w, int d)
{
    return w->concat ? d == w->dim : node_shape(node_in(w->n)[1])[d] != node_shape(w->n)[d];
}

/* One factor for each dim, in all inputs and in the result. */
static eas_status rule_of(const placing *w, eas_shard_rule **out)
{
    const eas_node *n = w->n;
    eas_shard_rule *r = calloc(1, sizeof *r + sizeof(eas_shard_tensor) * (size_t)(n->nin + 1));
    *out = r;
    if (!r)
        return base_fail_oom(sizeof *r);
    r->nin = n->nin;
    r->tensors = (eas_shard_tensor *)(r + 1);
    for (int t = 0; t <= n->nin; t++) {
        r->tensors[t].rank = n->rank;
        for (int d = 0; d < n->rank; d++)
            r->tensors[t].dims[d] = (eas_shard_dim){.n = 1, .factors = {(uint16_t)d}};
    }
    for (int d = 0; d < n->rank; d++, r->nfactors++) {
        r->factors[d].size = node_shape(n)[d];
        r->factors[d].kind = moves(w, d) ? EAS_FACTOR_HALO : EAS_FACTOR_PASS;
    }
    return EAS_OK;
}

/* Is a dim cut along which elements move, into at most as many parts as it has elements? False, and nothing
 * is assigned, otherwise. */
static bool assign(placing *w, const eas_spec *const *in, const eas_spec *want)
{
    partition *p = w->p;
    eas_shard_rule *r = NULL;
    bool any = false;
    for (int i = 0; i < w->n->nin; i++)
        for (int d = 0; d < w->n->rank; d++) {
            any |= moves(w, d) && in[i]->dims[d].n;
            if (in[i]->dims[d].n && in[i]->dims[d].priority) /* cut in the middle: mix.c */
                return false;
        }
    if (!any)
        return false;
    p->g.st = rule_of(w, &r);
    if (!p->g.st)
        p->g.st = assign_by(p, w->n, r, 1, in, want, &w->a);
    if (p->g.st)
        return true;
    any = false;
    for (int d = 0; d < w->n->rank; d++) {
        int64_t n = spec_parts(p->m, &w->a.of[d]), size = node_shape(w->n)[d];
        if (!moves(w, d) || n == 1)
            continue;
        any = true;
        if (n > size) {
            any = false;
            break;
        }
    }
    if (!any)
        assign_free(&w->a);
    return any;
}

static placing begin(partition *p, eas_node *n)
{
    return (placing){.p = p,
                     .n = n,
                     .concat = node_kind(n) == KIND_CONCAT,
                     .dim = node_kind(n) == KIND_CONCAT ? (int)node_words(n)[0] : -1};
}

/* How input i lies along the dims, and how the map of its places to those of the result is. */
static along along_of(const placing *w, int i, int d, int64_t start)
{
    int64_t step = w->concat ? 1 : node_words(w->n)[w->n->rank + d], size = node_shape(node_in(w->n)[i])[d];
    along x = {.between = size > 1 ? step - 1 : 0,
               .a = -start,
               .step = 1,
               .reach = 1,
               .out = node_shape(w->n)[d],
               .moves = true};
    x.in = size * (1 + x.between);
    x.v = (view){0, 0, x.in};
    return x;
}

/* Elements start, start + step, ... of the result are x's, which is whole along dim; others are any. */
static eas_node *put_whole(placing *w, eas_node *x, int dim, const eas_dim_spec *axes, int64_t start,
                           int64_t step)
{
    gbuild *g = &w->p->g;
    if (g->st || !x)
        return NULL;
    int64_t size = node_shape(x)[dim];
    eas_node *at = halo_places(w->p, axes, spec_local(w->p->m, axes, node_shape(w->n)[dim]), 1, 0);
    at = gd2(g, GRAPH_SUB, at, gb_int(g, EAS_I64, start));
    if (step > 1)
        at = gd2(g, GRAPH_FLOORDIV, at, gb_int(g, EAS_I64, step));
    at =
        gd2(g, GRAPH_MINIMUM, gd2(g, GRAPH_MAXIMUM, at, gb_int(g, EAS_I64, 0)), gb_int(g, EAS_I64, size - 1));
    return gb_gather(g, x, at, 0, dim);
}

/* Input i in the result's layout, at its places along the dims where elements move; other elements are any.
 * starts: per dim. */
static eas_node *put(placing *w, int i, const int64_t *starts)
{
    partition *p = w->p;
    eas_node *in = node_in(w->n)[i];
    const pvalue *v = partition_value(p, in);
    shifting s = {.p = p, .n = w->n, .base = in, .rank = in->rank, .any_fill = true};
    eas_spec need;
    assign_spec(&w->a, i, &need);
    need.partial = v->at.partial & w->a.carried;
    for (int d = 0; d < in->rank; d++) {
        s.d[d] = along_of(w, i, d, starts[d]);
        if (moves(w, d) && need.dims[d].n && (!v->at.dims[d].n || !halo_fits(p->m, &s.d[d], &need.dims[d])))
            need.dims[d].n = 0; /* whole, or less to gather than to shift */
        if (!moves(w, d) || !need.dims[d].n)
            s.d[d].between = 0;
    }
    eas_node *x =
        reshard(p, v, &need, in->rank, node_shape(in),
                w->concat ? "what is concatenated lies alike" : "what replaces a slice lies as that does");
    x = shift_spread(&s, x);
    for (int d = 0; d < in->rank && x; d++) {
        if (!moves(w, d))
            continue;
        x = need.dims[d].n
              ? halo_exchange(&s, x, d, &need.dims[d])
              : put_whole(w, x, d, &w->a.of[d], starts[d], w->concat ? 1 : node_words(w->n)[w->n->rank + d]);
    }
    return x;
}

/* Each input from its first place on covers those before it. */
static eas_node *concatenated(placing *w, const eas_spec *at)
{
    gbuild *g = &w->p->g;
    int64_t starts[GRAPH_MAX_RANK] = {0};
    eas_node *all = NULL, *places = NULL;
    for (int i = 0; i < w->n->nin && !g->st; i++) {
        int64_t size = node_shape(node_in(w->n)[i])[w->dim];
        if (!size)
            continue;
        eas_node *x = put(w, i, starts);
        if (all && x) {
            if (!places)
                places = halo_places(w->p, &at->dims[w->dim], node_shape(x)[w->dim], w->n->rank, w->dim);
            x = gd_where(g, gd2(g, GRAPH_GREATER_EQUAL, places, gb_int(g, EAS_I64, starts[w->dim])), x, all);
        }
        all = x;
        starts[w->dim] += size;
    }
    return all;
}

/* Is the element at a place that the update has? */
static eas_node *replaced(placing *w, const eas_spec *at)
{
    gbuild *g = &w->p->g;
    const eas_node *n = w->n;
    eas_node *all = NULL;
    for (int d = 0; d < n->rank && !g->st; d++) {
        int64_t size = node_shape(node_in(n)[1])[d], start = node_words(n)[d],
                step = node_words(n)[n->rank + d];
        if (!moves(w, d))
            continue;
        eas_node *x =
            halo_places(w->p, &at->dims[d], spec_local(w->p->m, &at->dims[d], node_shape(n)[d]), n->rank, d);
        eas_node *in = gd2(g, GRAPH_LOGICAL_AND, gd2(g, GRAPH_GREATER_EQUAL, x, gb_int(g, EAS_I64, start)),
                           gd2(g, GRAPH_LESS, x, gb_int(g, EAS_I64, start + (size - 1) * step + 1)));
        if (step > 1 && size > 1)
            in = gd2(g, GRAPH_LOGICAL_AND, in,
                     gd2(g, GRAPH_EQUAL,
                         gd2(g, GRAPH_MOD, gd2(g, GRAPH_SUB, x, gb_int(g, EAS_I64, start)),
                             gb_int(g, EAS_I64, step)),
                         gb_int(g, EAS_I64, 0)));
        all = all ? gd2(g, GRAPH_LOGICAL_AND, all, in) : in;
    }
    return all;
}

static eas_node *updated(placing *w, const eas_spec *at)
{
    partition *p = w->p;
    eas_node *x = node_in(w->n)[0];
    eas_spec need;
    assign_spec(&w->a, 0, &need);
    eas_node *old = reshard(p, partition_value(p, x), &need, x->rank, node_shape(x),
                            "a tensor and what replaces a slice of it lie alike");
    eas_node *update = put(w, 1, node_words(w->n));
    return p->g.st ? NULL : gd_where(&p->g, replaced(w, at), update, old);
}

static bool assign_from(placing *w, bool ahead, const eas_spec *want)
{
    const eas_spec **in = malloc(sizeof *in * ((size_t)w->n->nin + 1));
    if (!in) {
        w->p->g.st = base_fail_oom(w->n->nin);
        return true;
    }
    for (int i = 0; i < w->n->nin; i++) {
        const eas_node *x = node_in(w->n)[i];
        in[i] = ahead ? &partition_find(w->p, x)->ahead : &partition_value(w->p, x)->at;
    }
    bool any = assign(w, in, want);
    free(in);
    return any;
}

bool place_ahead(partition *p, pentry *e)
{
    placing w = begin(p, e->n);
    if (!is_placing(e->n) || !assign_from(&w, true, NULL))
        return false;
    if (p->g.st)
        return true;
    assign_spec(&w.a, w.n->nin, &e->ahead);
    e->ahead.partial = w.a.carried;
    assign_free(&w.a);
    return true;
}

bool partition_place(partition *p, pentry *e)
{
    placing w = begin(p, e->n);
    if (!is_placing(e->n) || !assign_from(&w, false, e->has_want ? &e->want : NULL))
        return false;
    if (p->g.st)
        return true;
    eas_spec at;
    assign_spec(&w.a, w.n->nin, &at);
    at.partial = w.a.carried;
    e->v.n = w.concat ? concatenated(&w, &at) : updated(&w, &at);
    e->v.at = at;
    assign_free(&w.a);
    return true;
}
