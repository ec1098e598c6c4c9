/* rule.c: what the rules of views, reductions, indexing and the other families share: reading attributes,
 * batch dims, and building the nodes that expansions are made of. Builders here take physical axes and check
 * nothing that a make has checked.
 */
#include "graph.h"

#include <stdio.h>

/* ---- attributes ---- */

rule rule_begin(const graph_call *c, int least, int most)
{
    rule r = {.c = c};
    if (c->nin < least || (most >= 0 && c->nin > most)) {
        const char *bound = most < 0 ? "at least " : most > least ? "up to " : "";
        int wanted = most < 0 ? least : most;
        r.g.st = node_fail(EAS_ERR_TYPE, c, "%s%d tensor%s expected, %d given", bound, wanted,
                           wanted == 1 ? "" : "s", c->nin);
    }
    return r;
}

static void fail_with(rule *r, eas_status st, const char *fmt, va_list ap)
{
    char text[480];
    if (r->g.st)
        return;
    vsnprintf(text, sizeof text, fmt, ap);
    r->g.st = node_fail(st, r->c, "%s", text);
}

void rule_fail(rule *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_with(r, EAS_ERR_VALUE, fmt, ap);
    va_end(ap);
}

void rule_type_fail(rule *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fail_with(r, EAS_ERR_TYPE, fmt, ap);
    va_end(ap);
}

int64_t rule_int(rule *r)
{
    if (r->g.st)
        return 0;
    if (r->at >= r->c->nattr) {
        rule_type_fail(r, "%d attribute words are too few for (%s)", r->c->nattr, r->c->row->sig);
        return 0;
    }
    return r->c->attr[r->at++];
}

double rule_float(rule *r)
{
    double v;
    int64_t bits = rule_int(r);
    memcpy(&v, &bits, sizeof v);
    return v;
}

eas_dtype rule_dtype(rule *r)
{
    int64_t v = rule_int(r);
    if (v < 0 || v >= EAS_NDTYPES) {
        rule_type_fail(r, "there is no dtype %lld", (long long)v);
        return EAS_F32;
    }
    return (eas_dtype)v;
}

int rule_list(rule *r, const int64_t **items)
{
    int64_t n = rule_int(r);
    *items = NULL;
    if (r->g.st || n < 0)
        return r->g.st ? 0 : -1;
    if (n > r->c->nattr - r->at) {
        rule_type_fail(r, "a list of %lld is not in %d attribute words", (long long)n, r->c->nattr);
        return 0;
    }
    *items = r->c->attr + r->at;
    r->at += (int)n;
    return (int)n;
}

dims rule_shape(rule *r)
{
    dims d = {0};
    const int64_t *items;
    int n = rule_list(r, &items);
    if (n < 0)
        rule_type_fail(r, "a shape is missing");
    if (n > GRAPH_MAX_RANK)
        rule_fail(r, "a shape of %d dims; there are at most %d", n, GRAPH_MAX_RANK);
    if (r->g.st)
        return d;
    for (int i = 0; i < n; i++) {
        if (items[i] < 0 && !dim_is_expr(items[i]))
            rule_fail(r, "size %lld is negative", (long long)items[i]);
        d.at[i] = items[i];
    }
    d.n = n;
    return d;
}

int rule_axis_of(rule *r, const eas_node *x, int64_t axis)
{
    int base = rule_base(r, x), rank = x->rank - base;
    if (axis < -rank || axis >= rank) {
        char t[128];
        if (axis == DIM_NONE)
            rule_type_fail(r, "an axis is missing");
        else
            rule_fail(r, "axis %lld is out of range for shape %s", (long long)axis,
                      shape_text(t, sizeof t, rank, node_shape(x) + base));
        return base;
    }
    return base + (int)(axis < 0 ? axis + rank : axis);
}

int rule_axis(rule *r, const eas_node *x)
{
    int64_t axis = rule_int(r);
    return r->g.st ? 0 : rule_axis_of(r, x, axis);
}

uint32_t rule_axes(rule *r, const eas_node *x)
{
    const int64_t *items;
    int n = rule_list(r, &items);
    uint32_t mask = 0;
    if (r->g.st)
        return 0;
    if (n < 0)
        return (uint32_t)(((uint64_t)1 << x->rank) - ((uint64_t)1 << rule_base(r, x)));
    for (int i = 0; i < n && !r->g.st; i++) {
        uint32_t bit = (uint32_t)1 << rule_axis_of(r, x, items[i]);
        if (mask & bit)
            rule_fail(r, "axis %lld is there twice", (long long)items[i]);
        mask |= bit;
    }
    return mask;
}

const char *rule_text(const eas_node *x, char buf[128])
{
    return shape_text(buf, 128, node_logical_rank(x), node_logical_shape(x));
}

static void clean(gbuild *g)
{
    for (uint32_t i = 0; i < g->made.len; i++)
        node_unref(g->made.at[i]);
    vec_free(&g->made);
}

eas_status rule_node(rule *r, eas_dtype dt, int batch_dims, int rank, const eas_dim *shape, int nwords,
                     const int64_t *words, int nin, eas_node *const *in, eas_node **out)
{
    *out = NULL;
    if (!r->g.st)
        r->g.st = node_new(r->c->op, dt, batch_dims, rank, shape, nwords, words, nin, in, out);
    clean(&r->g);
    return r->g.st;
}

eas_status rule_done(rule *r, eas_node *result, eas_node **out) { return gb_done(&r->g, result, out); }

/* ---- batch dims ---- */

eas_node *gb_lift(gbuild *g, eas_node *x, int batch_dims)
{
    eas_dim shape[2 * GRAPH_MAX_RANK];
    if (g->st || !x || x->batch_dims >= batch_dims)
        return x;
    int more = batch_dims - x->batch_dims;
    for (int i = 0; i < more; i++)
        shape[i] = 1;
    memcpy(shape + more, node_shape(x), sizeof *shape * x->rank);
    return gb_reshape(g, x, batch_dims, x->rank + more, shape);
}

int gb_align_batch(gbuild *g, int n, eas_node *const *in, eas_node **out)
{
    int bd = 0;
    for (int i = 0; i < n; i++)
        bd = in[i]->batch_dims > bd ? in[i]->batch_dims : bd;
    for (int i = 0; i < n; i++)
        out[i] = gb_lift(g, in[i], bd);
    return bd;
}

void gb_batch_shape(gbuild *g, int n, eas_node *const *in, int batch_dims, eas_dim *shape)
{
    for (int k = 0; k < batch_dims; k++)
        shape[k] = 1;
    for (int i = 0; i < n && !g->st; i++)
        for (int k = 0; k < batch_dims; k++) {
            eas_dim d = node_shape(in[i])[k];
            if (shape[k] == 1)
                shape[k] = d;
            else if (d != 1 && d != shape[k])
                g->st = base_fail(EAS_ERR_VALUE, "eager: batch dims do not broadcast");
        }
}

/* ---- sizes ---- */

eas_dim gb_dim(gbuild *g, eas_dim_op op, eas_dim a, eas_dim b)
{
    eas_dim d = 0;
    if (!g->st)
        g->st = eas_dim_apply(op, a, b, &d);
    return g->st ? 0 : d;
}

eas_dim gb_product(gbuild *g, int n, const eas_dim *d)
{
    eas_dim p = dim_product(n, d);
    if (p == DIM_NONE && !g->st)
        g->st = EAS_ERR_VALUE;
    return g->st ? 0 : p;
}

/* A symbolic size is recorded as the last element of the range 0 .. d. The lowering computes that element
 * from its index alone, so the range itself is never in memory. */
eas_node *gb_size(gbuild *g, eas_dim d, eas_dtype dt)
{
    if (dim_known(d))
        return gb_int(g, dt, d);
    eas_node *all = gb_iota(g, gb_dim(g, EAS_DIM_ADD, d, 1), EAS_I64);
    eas_node *last = gb_slice(g, all, 0, d, 1, 1);
    return gb_cast(g, gb_squeeze(g, last, 0), dt);
}

/* ---- views ---- */

/* -1: a size is not known yet, or there are too many elements to count */
static int64_t known_product(int n, const eas_dim *d)
{
    int64_t p = 1;
    for (int i = 0; i < n; i++)
        if (!dim_known(d[i]) || __builtin_mul_overflow(p, d[i], &p))
            return -1;
    return p;
}

eas_node *gb_reshape(gbuild *g, eas_node *x, int batch_dims, int rank, const eas_dim *shape)
{
    if (g->st || !x)
        return NULL;
    if (rank == x->rank && batch_dims == x->batch_dims &&
        !memcmp(shape, node_shape(x), sizeof *shape * (size_t)rank))
        return x;
    const int64_t have = known_product(x->rank, node_shape(x)), want = known_product(rank, shape);
    if (have >= 0 && want >= 0 && have != want) {
        g->st = base_fail(EAS_ERR_INTERNAL, "eager: %lld elements reshaped to %lld", (long long)have,
                          (long long)want);
        return NULL;
    }
    return gb_new(g, GRAPH_RESHAPE, (eas_dtype)x->dtype, batch_dims, rank, shape, 0, NULL, 1, &x);
}

eas_node *gb_unsqueeze(gbuild *g, eas_node *x, int axis)
{
    eas_dim shape[GRAPH_MAX_RANK + 1];
    if (g->st || !x)
        return NULL;
    for (int i = 0; i <= x->rank; i++)
        shape[i] = i == axis ? 1 : node_shape(x)[i - (i > axis)];
    return gb_reshape(g, x, x->batch_dims, x->rank + 1, shape);
}

eas_node *gb_squeeze(gbuild *g, eas_node *x, int axis)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !x)
        return NULL;
    for (int i = 0; i + 1 < x->rank; i++)
        shape[i] = node_shape(x)[i + (i >= axis)];
    return gb_reshape(g, x, x->batch_dims, x->rank - 1, shape);
}

eas_node *gb_permute(gbuild *g, eas_node *x, const int *order)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t words[GRAPH_MAX_RANK];
    bool moved = false;
    if (g->st || !x)
        return NULL;
    for (int i = 0; i < x->rank; i++) {
        words[i] = order[i];
        shape[i] = node_shape(x)[order[i]];
        moved |= order[i] != i;
    }
    return moved ? gb_new(g, GRAPH_PERMUTE, (eas_dtype)x->dtype, x->batch_dims, x->rank, shape, x->rank,
                          words, 1, &x)
                 : x;
}

eas_node *gb_move(gbuild *g, eas_node *x, int from, int to)
{
    int order[GRAPH_MAX_RANK];
    if (g->st || !x)
        return NULL;
    for (int i = 0, k = 0; i < x->rank; i++) {
        k += k == from;
        order[i] = i == to ? from : k++;
    }
    return gb_permute(g, x, order);
}

eas_node *gb_broadcast(gbuild *g, eas_node *x, int batch_dims, int rank, const eas_dim *shape)
{
    if (g->st || !x)
        return NULL;
    if (rank == x->rank && batch_dims == x->batch_dims &&
        !memcmp(shape, node_shape(x), sizeof *shape * (size_t)rank))
        return x;
    return gb_new(g, GRAPH_BROADCAST_TO, (eas_dtype)x->dtype, batch_dims, rank, shape, 0, NULL, 1, &x);
}

eas_node *gb_slice(gbuild *g, eas_node *x, int axis, eas_dim start, eas_dim size, int64_t step)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t words[2 * GRAPH_MAX_RANK];
    if (g->st || !x)
        return NULL;
    if (start == 0 && step == 1 && size == node_shape(x)[axis])
        return x;
    for (int i = 0; i < x->rank; i++) {
        shape[i] = i == axis ? size : node_shape(x)[i];
        words[i] = i == axis ? start : 0;
        words[x->rank + i] = i == axis ? step : 1;
    }
    return gb_new(g, GRAPH_SLICE_STEPS, (eas_dtype)x->dtype, x->batch_dims, x->rank, shape, 2 * x->rank,
                  words, 1, &x);
}

eas_node *gb_concat(gbuild *g, int axis, int n, eas_node *const *in)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t word = axis;
    for (int i = 0; i < n; i++)
        if (!in[i])
            return NULL;
    if (g->st || n == 1)
        return g->st ? NULL : in[0];
    memcpy(shape, node_shape(in[0]), sizeof *shape * in[0]->rank);
    for (int i = 1; i < n; i++)
        shape[axis] = gb_dim(g, EAS_DIM_ADD, shape[axis], node_shape(in[i])[axis]);
    return gb_new(g, GRAPH_CONCATENATE, (eas_dtype)in[0]->dtype, in[0]->batch_dims, in[0]->rank, shape, 1,
                  &word, n, in);
}

eas_node *gb_iota_at(gbuild *g, eas_dim size, eas_dtype dt, int after)
{
    eas_dim shape[GRAPH_MAX_RANK + 1] = {size};
    int64_t axis = 0;
    for (int i = 1; i <= after; i++)
        shape[i] = 1;
    return gb_new(g, GRAPH_IOTA, dt, 0, 1 + after, shape, 1, &axis, 0, NULL);
}

eas_node *gb_iota(gbuild *g, eas_dim size, eas_dtype dt) { return gb_iota_at(g, size, dt, 0); }

/* ---- the rest ---- */

eas_node *gb_reduce(gbuild *g, uint16_t op, eas_node *x, uint32_t axes, bool keep)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t words[GRAPH_MAX_RANK + 1] = {keep};
    int rank = 0, n = 1, bd = 0;
    if (g->st || !x)
        return NULL;
    for (int i = 0; i < x->rank; i++) {
        bool gone = axes >> i & 1;
        if (gone)
            words[n++] = i;
        if (!gone || keep) {
            bd += i < x->batch_dims;
            shape[rank++] = gone ? 1 : node_shape(x)[i];
        }
    }
    return gb_new(g, op, (eas_dtype)x->dtype, bd, rank, shape, n, words, 1, &x);
}

eas_node *gb_gather(gbuild *g, eas_node *x, eas_node *index, int nbatch, int axis)
{
    eas_dim shape[2 * GRAPH_MAX_RANK];
    int64_t words[2] = {nbatch, axis};
    int rank = 0;
    if (g->st || !x || !index)
        return NULL;
    for (int i = 0; i < axis; i++)
        shape[rank++] = node_shape(x)[i];
    for (int i = nbatch; i < index->rank; i++)
        shape[rank++] = node_shape(index)[i];
    for (int i = axis + 1; i < x->rank; i++)
        shape[rank++] = node_shape(x)[i];
    int bd = x->batch_dims > index->batch_dims ? x->batch_dims : index->batch_dims;
    return gb_new(g, GRAPH_GATHER, (eas_dtype)x->dtype, bd, rank, shape, 2, words, 2,
                  (eas_node *[]){x, index});
}

eas_node *gb_take(gbuild *g, eas_node *x, eas_node *index, int64_t axis)
{
    return g->st || !x || !index ? NULL
                                 : gb_apply(g, GRAPH_TAKE_ALONG_AXIS, 2, (eas_node *[]){x, index}, 1, &axis);
}

eas_dtype graph_compute_dtype(eas_dtype dt) { return dt == EAS_F16 || dt == EAS_BF16 ? EAS_F32 : dt; }

/* Without a count of its own where nothing is to be done: the common case, and cheap. */
eas_node *gb_typed(gbuild *g, eas_node *x, eas_dtype dt)
{
    if (x && x->dtype == dt && !(x->flags & NODE_WEAK))
        return x;
    if (x && !g->st)
        g->st = graph_number_fits(NULL, x, dt);
    return gb_cast(g, x, dt);
}

eas_dtype graph_wide_dtype(eas_dtype dt)
{
    if (dtype_is_float(dt))
        return graph_compute_dtype(dt);
    return eas_dtype_size(dt) <= 2 ? EAS_F32 : EAS_F64;
}

/* A tensor of logical rank 0 so that it broadcasts against `rank` logical dims. */
eas_node *gb_spread(gbuild *g, eas_node *x, int rank)
{
    eas_dim shape[2 * GRAPH_MAX_RANK];
    if (g->st || !x || x->rank == 0)
        return x;
    for (int i = 0; i < x->batch_dims + rank; i++)
        shape[i] = i < x->batch_dims ? node_shape(x)[i] : 1;
    return gb_reshape(g, x, x->batch_dims, x->batch_dims + rank, shape);
}
