/* diff_build.c: the nodes that derivatives are made of: element-wise operations on tangents whose dims need
 * not match, numbers, and the alignment of tangents. What dims a tangent has is told in diff.c.
 */
#include "graph.h"

static bool is_truth(uint16_t op)
{
    const graph_row *r = &graph_rows[op];
    return r->make == make_compare || r->make == make_test1 || r->make == make_logic;
}

eas_node *gd1(gbuild *g, uint16_t op, eas_node *x)
{
    if (g->st || !x)
        return NULL;
    eas_dtype dt = is_truth(op) ? EAS_BOOL : (eas_dtype)x->dtype;
    return gb_new(g, op, dt, x->batch_dims, x->rank, node_shape(x), 0, NULL, 1, &x);
}

static eas_node *mapped(gbuild *g, uint16_t op, eas_dtype dt, int n, eas_node *const *in)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int rank = 0, logical = 0;
    for (int i = 0; i < n; i++) {
        if (!in[i] || g->st)
            return NULL;
        rank = in[i]->rank > rank ? in[i]->rank : rank;
        logical = node_logical_rank(in[i]) > logical ? node_logical_rank(in[i]) : logical;
    }
    for (int k = 0; k < rank; k++)
        shape[k] = 1;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < in[i]->rank; k++)
            if (node_shape(in[i])[k] != 1)
                shape[k + rank - in[i]->rank] = node_shape(in[i])[k];
    return gb_new(g, op, dt, rank - logical, rank, shape, 0, NULL, n, in);
}

eas_node *gd2(gbuild *g, uint16_t op, eas_node *x, eas_node *y)
{
    return x ? mapped(g, op, is_truth(op) ? EAS_BOOL : (eas_dtype)x->dtype, 2, (eas_node *[]){x, y}) : NULL;
}

eas_node *gd_where(gbuild *g, eas_node *c, eas_node *x, eas_node *y)
{
    return x ? mapped(g, GRAPH_WHERE, (eas_dtype)x->dtype, 3, (eas_node *[]){c, x, y}) : NULL;
}

eas_node *gd_const(gbuild *g, eas_dtype dt, double v)
{
    int64_t words[2] = {ir_bits_from_double(dt, v), 0};
    eas_node *n = gb_new(g, GRAPH_CONST, dt, 0, 0, NULL, 2, words, 0, NULL);
    if (n)
        n->flags |= NODE_FIXED;
    return n;
}

eas_node *gd_num(gbuild *g, const eas_node *like, double v)
{
    return like ? gd_const(g, (eas_dtype)like->dtype, v) : NULL;
}

eas_node *gd_fill(gbuild *g, eas_dtype dt, double v, int batch_dims, int rank, const eas_dim *shape)
{
    return gb_broadcast(g, gd_const(g, dt, v), batch_dims, rank, shape);
}

eas_node *gd_rebatch(gbuild *g, eas_node *x, int batch_dims)
{
    int64_t word = batch_dims;
    if (g->st || !x || x->batch_dims == batch_dims)
        return g->st ? NULL : x;
    return gb_new(g, GRAPH_ALIAS, (eas_dtype)x->dtype, batch_dims, x->rank, node_shape(x), 1, &word, 1, &x);
}

eas_node *gd_stop(gbuild *g, eas_node *x)
{
    return g->st || !x ? NULL
                       : gb_new(g, GRAPH_STOP_GRADIENT, (eas_dtype)x->dtype, x->batch_dims, x->rank,
                                node_shape(x), 0, NULL, 1, &x);
}

eas_status make_stop_gradient(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    eas_status st =
        rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 0, NULL, 1, &x, out);
    if (!st)
        (*out)->flags &= (uint16_t)~NODE_KEEPS;
    return st;
}

int gd_extras(const gbuild *g, const eas_node *t, int of)
{
    int own = of > g->lanes ? of : g->lanes;
    return t->batch_dims > own ? t->batch_dims - own : 0;
}

eas_node *gd_aligned(gbuild *g, eas_node *t, int of, int batch_dims, int logical)
{
    eas_dim shape[3 * GRAPH_MAX_RANK];
    if (g->st || !t)
        return NULL;
    int e = gd_extras(g, t, of), have = t->batch_dims - e, want = have > batch_dims ? have : batch_dims;
    int own = node_logical_rank(t), rank = e + want + (own > logical ? own : logical), at = 0;
    if (rank == t->rank)
        return t;
    if (rank > GRAPH_MAX_RANK) {
        g->st = base_fail(EAS_ERR_VALUE,
                          "eager: a derivative has %d dims; there are at most %d, those of vmap included",
                          rank, GRAPH_MAX_RANK);
        return NULL;
    }
    for (int i = 0; i < e; i++)
        shape[at++] = node_shape(t)[i];
    for (int i = have; i < want; i++)
        shape[at++] = 1;
    for (int i = 0; i < have; i++)
        shape[at++] = node_shape(t)[e + i];
    for (int i = own; i < logical; i++)
        shape[at++] = 1;
    for (int i = 0; i < own; i++)
        shape[at++] = node_logical_shape(t)[i];
    return gb_reshape(g, t, e + want, rank, shape);
}

eas_node *gd_full(gbuild *g, eas_node *t, const eas_node *n)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !t)
        return NULL;
    int e = t->rank - n->rank;
    for (int i = 0; i < t->rank; i++)
        shape[i] = i < e || node_shape(t)[i] != 1 ? node_shape(t)[i] : node_shape(n)[i - e];
    return gb_broadcast(g, t, t->batch_dims, t->rank, shape);
}

bool diff_float(const eas_node *n) { return dtype_is_float((eas_dtype)n->dtype); }
