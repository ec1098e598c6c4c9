/* op_linear.c: products of matrices and tensors. All become KIND_MATMUL, or a product and a sum where no matrix is left. */
#include "graph.h"

static eas_dtype common(const eas_node *x, const eas_node *y)
{
    bool weak;
    return graph_promote((eas_dtype)x->dtype, (x->flags & NODE_WEAK) != 0, (eas_dtype)y->dtype, (y->flags & NODE_WEAK) != 0, &weak);
}

static void cannot_multiply(rule *r, const eas_node *x, const eas_node *y)
{
    rule_fail(r, "shapes %s and %s do not multiply", rule_text(x, (char[128]){0}), rule_text(y, (char[128]){0}));
}

/* The product of x (..., M, K) and y (..., K, N), which lie so that leading dims broadcast. */
static eas_node *product(rule *r, eas_node *x, eas_node *y, eas_dtype dt, int batch_dims)
{
    eas_dim shape[GRAPH_MAX_RANK];
    gbuild *g = &r->g;
    if (g->st)
        return NULL;
    int rank = x->rank > y->rank ? x->rank : y->rank;
    for (int i = 0; i < rank - 2; i++) {
        eas_dim a = i < rank - x->rank ? 1 : node_shape(x)[i - (rank - x->rank)], b = i < rank - y->rank ? 1 : node_shape(y)[i - (rank - y->rank)];
        if (a != b && a != 1 && b != 1)
            cannot_multiply(r, r->c->in[0], r->c->in[1]);
        shape[i] = a == 1 ? b : a;
    }
    shape[rank - 2] = node_shape(x)[x->rank - 2];
    shape[rank - 1] = node_shape(y)[y->rank - 1];
    eas_dtype in = dt == EAS_BOOL ? EAS_I32 : dt;
    eas_node *both[2] = {gb_cast(g, x, in), gb_cast(g, y, in)};
    eas_node *p = gb_new(g, GRAPH_MATMUL, in, batch_dims, rank, shape, 0, NULL, 2, both);
    return dt == EAS_BOOL ? gb_cast(g, p, EAS_BOOL) : p;
}

static eas_node *drop_axis(gbuild *g, eas_node *x, int from_end) { return x ? gb_squeeze(g, x, x->rank - from_end) : NULL; }

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
        rule_fail(&r, "shapes %s and %s: a number is no matrix; use *", rule_text(x, (char[128]){0}), rule_text(y, (char[128]){0}));
    else if (node_shape(x)[x->rank - 1] != node_shape(y)[y->rank - (ly == 1 ? 1 : 2)])
        cannot_multiply(&r, x, y);
    eas_dtype dt = common(x, y);
    if (g->st)
        return rule_done(&r, NULL, out);
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
