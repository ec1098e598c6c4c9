/* op_linear.c: products of matrices and tensors. All become KIND_MATMUL, or a product and a sum where no
 * matrix is left. */
#include "graph.h"

static eas_dtype common(const eas_node *x, const eas_node *y)
{
    bool weak;
    return graph_promote((eas_dtype)x->dtype, (x->flags & NODE_WEAK) != 0, (eas_dtype)y->dtype,
                         (y->flags & NODE_WEAK) != 0, &weak);
}

static void cannot_multiply(rule *r, const eas_node *x, const eas_node *y)
{
    rule_fail(r, "shapes %s and %s do not multiply", rule_text(x, (char[128]){0}),
              rule_text(y, (char[128]){0}));
}

/* The shape of the product of x (..., M, K) and y (..., K, N), which lie so that leading dims broadcast; its
 * rank. */
static int product_shape(rule *r, const eas_node *x, const eas_node *y, eas_dim *shape)
{
    int rank = x->rank > y->rank ? x->rank : y->rank;
    for (int i = 0; i < rank - 2; i++) {
        eas_dim a = i < rank - x->rank ? 1 : node_shape(x)[i - (rank - x->rank)],
                b = i < rank - y->rank ? 1 : node_shape(y)[i - (rank - y->rank)];
        if (a != b && a != 1 && b != 1)
            cannot_multiply(r, r->c->in[0], r->c->in[1]);
        shape[i] = a == 1 ? b : a;
    }
    shape[rank - 2] = node_shape(x)[x->rank - 2];
    shape[rank - 1] = node_shape(y)[y->rank - 1];
    return rank;
}

static eas_node *product(rule *r, eas_node *x, eas_node *y, eas_dtype dt, int batch_dims)
{
    eas_dim shape[GRAPH_MAX_RANK];
    gbuild *g = &r->g;
    int rank = product_shape(r, x, y, shape);
    eas_dtype in = dt == EAS_BOOL ? EAS_I32 : dt;
    eas_node *both[2] = {gb_typed(g, x, in), gb_typed(g, y, in)};
    eas_node *p = gb_new(g, GRAPH_MATMUL, in, batch_dims, rank, shape, 0, NULL, 2, both);
    return dt == EAS_BOOL ? gb_typed(g, p, EAS_BOOL) : p;
}

static eas_node *drop_axis(gbuild *g, eas_node *x, int from_end)
{
    return x ? gb_squeeze(g, x, x->rank - from_end) : NULL;
}

/* Vectors under vmap against one matrix are the rows of a matrix. */
static bool rows_of_matrix(const eas_node *x, const eas_node *y)
{
    return node_logical_rank(x) == 1 && x->batch_dims > 0 && y->batch_dims == 0 && y->rank == 2;
}

eas_status make_matmul(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    gbuild *g = &r.g;
    eas_node *both[2];
    int bd;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0], *y = c->in[1];
    int lx = node_logical_rank(x), ly = node_logical_rank(y);
    if (lx == 0 || ly == 0)
        rule_fail(&r, "shapes %s and %s: a number is no matrix; use *", rule_text(x, (char[128]){0}),
                  rule_text(y, (char[128]){0}));
    else if (!dim_agrees(node_shape(x)[x->rank - 1], node_shape(y)[y->rank - (ly == 1 ? 1 : 2)]))
        cannot_multiply(&r, x, y);
    eas_dtype dt = common(x, y);
    if (g->st)
        return rule_done(&r, NULL, out);
    /* the common case: no reshape or cast is needed */
    if (lx > 1 && ly > 1 && x->batch_dims == 0 && y->batch_dims == 0 && dt != EAS_BOOL) {
        eas_dim shape[GRAPH_MAX_RANK];
        int rank = product_shape(&r, x, y, shape);
        both[0] = gb_typed(g, x, dt);
        both[1] = gb_typed(g, y, dt);
        return rule_node(&r, dt, 0, rank, shape, 0, NULL, 2, both, out);
    }
    if (rows_of_matrix(x, y))
        return rule_done(&r, product(&r, x, y, dt, x->batch_dims), out);
    both[0] = lx == 1 ? gb_unsqueeze(g, x, x->rank - 1) : x;
    both[1] = ly == 1 ? gb_unsqueeze(g, y, y->rank) : y;
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_node *aligned[2];
    g->st = graph_align(c, 2, both, aligned, &bd);
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_node *p = product(&r, aligned[0], aligned[1], dt, bd);
    node_unref(aligned[0]);
    node_unref(aligned[1]);
    if (lx == 1)
        p = drop_axis(g, p, 2);
    if (ly == 1)
        p = drop_axis(g, p, 1);
    return rule_done(&r, p, out);
}

/* ---- outer, vecdot ---- */

/* Records c's operation on x and y, cast to one dtype, with batch dims aligned. */
static eas_status pair(rule *r, eas_node *x, eas_node *y, eas_dtype dt, int rank, const eas_dim *shape,
                       int nwords, const int64_t *words, int batch_dims, eas_node **out)
{
    eas_node *both[2] = {gb_typed(&r->g, x, dt), gb_typed(&r->g, y, dt)};
    return rule_node(r, dt, batch_dims, rank, shape, nwords, words, 2, both, out);
}

/* Both flattened, as NumPy does it. */
eas_status make_outer(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    gbuild *g = &r.g;
    eas_node *both[2];
    eas_dim shape[GRAPH_MAX_RANK + 2];
    if (g->st)
        return rule_done(&r, NULL, out);
    int bd = gb_align_batch(g, 2, c->in, both);
    if (g->st)
        return rule_done(&r, NULL, out);
    gb_batch_shape(g, 2, both, bd, shape);
    for (int i = 0; i < 2; i++)
        shape[bd + i] = gb_product(g, both[i]->rank - bd, node_shape(both[i]) + bd);
    return pair(&r, both[0], both[1], common(c->in[0], c->in[1]), bd + 2, shape, 0, NULL, bd, out);
}

eas_status expand_outer(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *both[2];
    int bd = n->batch_dims;
    for (int i = 0; i < 2; i++) {
        eas_dim shape[GRAPH_MAX_RANK];
        memcpy(shape, node_shape(in[i]), sizeof *shape * (size_t)bd);
        shape[bd + i] = node_shape(n)[bd + i];
        shape[bd + 1 - i] = 1;
        both[i] = gb_reshape(&g, in[i], bd, bd + 2, shape);
    }
    return gb_done(&g, gb2(&g, GRAPH_MUL, both[0], both[1]), out);
}

/* words: the axis, from the end: both have it after broadcasting */
eas_status make_vecdot(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    gbuild *g = &r.g;
    eas_node *both[2];
    eas_dim shape[GRAPH_MAX_RANK];
    int rank = 0, bd = 0;
    int64_t axis = rule_int(&r);
    if (g->st)
        return rule_done(&r, NULL, out);
    int lx = node_logical_rank(c->in[0]), ly = node_logical_rank(c->in[1]), least = lx < ly ? lx : ly;
    if (axis >= 0 && lx == ly)
        axis -= lx;
    if (axis >= 0 || axis < -least)
        rule_fail(&r, "axis %lld of shapes %s and %s", (long long)axis, rule_text(c->in[0], (char[128]){0}),
                  rule_text(c->in[1], (char[128]){0}));
    else if (node_shape(c->in[0])[c->in[0]->rank + axis] != node_shape(c->in[1])[c->in[1]->rank + axis])
        cannot_multiply(&r, c->in[0], c->in[1]);
    if (!g->st)
        g->st = graph_align(c, 2, c->in, both, &bd);
    if (g->st)
        return rule_done(&r, NULL, out);
    g->st = graph_broadcast(c, 2, both, &rank, shape);
    if (!g->st)
        memmove(shape + rank + axis, shape + rank + axis + 1, sizeof *shape * (size_t)(-axis - 1));
    eas_status st =
        pair(&r, both[0], both[1], common(c->in[0], c->in[1]), rank - 1, shape, 1, &axis, bd, out);
    node_unref(both[0]);
    node_unref(both[1]);
    return st;
}

eas_status expand_vecdot(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    bool truth = n->dtype == EAS_BOOL;
    eas_node *p = gb2(&g, GRAPH_MUL, in[0], in[1]);
    if (!p)
        return gb_done(&g, NULL, out);
    eas_node *y = gb_reduce(&g, truth ? GRAPH_ANY : GRAPH_REDUCE_SUM, p,
                            (uint32_t)1 << (p->rank + node_words(n)[0]), false);
    return gb_done(&g, gb_reshape(&g, y, n->batch_dims, n->rank, node_shape(n)), out);
}

/* ---- tensordot: words are the number of contracted axes, then those of x, then those of y, all logical ----
 */

static int contracted(rule *r, const eas_node *x, int n, const int64_t *axes, int64_t *words)
{
    uint32_t seen = 0;
    for (int i = 0; i < n && !r->g.st; i++) {
        words[i] = rule_axis_of(r, x, axes[i]) - x->batch_dims;
        if (seen >> words[i] & 1)
            rule_fail(r, "axis %lld is there twice", (long long)axes[i]);
        seen |= (uint32_t)1 << words[i];
    }
    return n;
}

static eas_status record_tensordot(rule *r, int n, const int64_t *words, eas_node **out)
{
    gbuild *g = &r->g;
    const graph_call *c = r->c;
    eas_node *both[2];
    eas_dim shape[2 * GRAPH_MAX_RANK];
    int rank = 0;
    for (int i = 0; i < n && !g->st; i++)
        if (node_logical_shape(c->in[0])[words[1 + i]] != node_logical_shape(c->in[1])[words[1 + n + i]])
            cannot_multiply(r, c->in[0], c->in[1]);
    int bd = g->st ? 0 : gb_align_batch(g, 2, c->in, both);
    if (g->st)
        return rule_done(r, NULL, out);
    gb_batch_shape(g, 2, both, bd, shape);
    rank = bd;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < node_logical_rank(c->in[k]); i++) {
            bool gone = false;
            for (int j = 0; j < n; j++)
                gone |= words[1 + k * n + j] == i;
            if (!gone)
                shape[rank++] = node_logical_shape(c->in[k])[i];
        }
    return pair(r, both[0], both[1], common(c->in[0], c->in[1]), rank, shape, 1 + 2 * n, words, bd, out);
}

eas_status make_tensordot(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    const int64_t *ax, *ay;
    int64_t words[1 + 2 * GRAPH_MAX_RANK];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int n = rule_list(&r, &ax), m = rule_list(&r, &ay);
    if (n != m || n < 0 || n > GRAPH_MAX_RANK)
        rule_fail(&r, "%d axes against %d", n, m);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    words[0] = n;
    contracted(&r, c->in[0], n, ax, words + 1);
    contracted(&r, c->in[1], n, ay, words + 1 + n);
    return record_tensordot(&r, n, words, out);
}

/* x as a matrix for each batch: free axes and contracted ones, either first. */
static eas_node *as_matrix(gbuild *g, eas_node *x, int n, const int64_t *axes, bool contracted_first)
{
    int order[GRAPH_MAX_RANK], bd = x->batch_dims, at = bd;
    eas_dim shape[GRAPH_MAX_RANK + 2], inner[GRAPH_MAX_RANK], outer[GRAPH_MAX_RANK];
    int nouter = 0;
    uint32_t mask = 0;
    for (int i = 0; i < bd; i++)
        order[i] = i;
    for (int i = 0; i < n; i++) {
        mask |= (uint32_t)1 << (bd + axes[i]);
        inner[i] = node_shape(x)[bd + axes[i]];
    }
    for (int i = 0; i < n && contracted_first; i++)
        order[at++] = bd + (int)axes[i];
    for (int i = bd; i < x->rank; i++)
        if (!(mask >> i & 1)) {
            order[at++] = i;
            outer[nouter++] = node_shape(x)[i];
        }
    for (int i = 0; i < n && !contracted_first; i++)
        order[at++] = bd + (int)axes[i];
    memcpy(shape, node_shape(x), sizeof *shape * (size_t)bd);
    shape[bd + !contracted_first] = gb_product(g, n, inner);
    shape[bd + contracted_first] = gb_product(g, nouter, outer);
    return gb_reshape(g, gb_permute(g, x, order), bd, bd + 2, shape);
}

eas_status expand_tensordot(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    const int64_t *w = node_words(n);
    int k = (int)w[0];
    eas_node *x = as_matrix(&g, in[0], k, w + 1, false), *y = as_matrix(&g, in[1], k, w + 1 + k, true);
    eas_node *p = gb2(&g, GRAPH_MATMUL, x, y);
    return gb_done(&g, p ? gb_reshape(&g, p, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}

/* As numpy.dot: numbers multiply, the last axis of x is contracted with the last but one of y. */
eas_status make_dot(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    int64_t words[3] = {1};
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int lx = node_logical_rank(c->in[0]), ly = node_logical_rank(c->in[1]);
    if (lx == 0 || ly == 0)
        return rule_done(&r, gb2(&r.g, GRAPH_MUL, c->in[0], c->in[1]), out);
    words[1] = lx - 1;
    words[2] = ly == 1 ? 0 : ly - 2;
    return record_tensordot(&r, 1, words, out);
}

/* The sum of the diagonal of the last two axes. */
eas_status make_trace(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    int64_t offset = rule_int(&r), attr[] = {offset, -2, -1};
    if (!r.g.st && node_logical_rank(c->in[0]) < 2)
        rule_fail(&r, "shape %s is not that of a matrix", rule_text(c->in[0], (char[128]){0}));
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *d = gb_apply(&r.g, GRAPH_DIAGONAL, 1, c->in, 3, attr);
    return rule_done(&r, gb_apply(&r.g, GRAPH_REDUCE_SUM, 1, &d, 3, (int64_t[]){1, -1, 0}), out);
}
