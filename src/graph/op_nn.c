/* op_nn.c: what networks are made of, beside convolutions: normalisation, clipping, one-hot vectors. */
#include "graph.h"

static double bits_double(int64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* ---- clip ---- */

eas_status make_clip(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 3, 3);
    eas_node *in[3], *typed[3];
    eas_dim shape[GRAPH_MAX_RANK];
    int bd, rank;
    bool weak;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_dtype dt = (eas_dtype)c->in[0]->dtype;
    weak = (c->in[0]->flags & NODE_WEAK) != 0;
    for (int i = 1; i < 3; i++)
        dt = graph_promote(dt, weak, (eas_dtype)c->in[i]->dtype, (c->in[i]->flags & NODE_WEAK) != 0, &weak);
    r.g.st = graph_align(c, 3, c->in, in, &bd);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    r.g.st = graph_broadcast(c, 3, in, &rank, shape);
    for (int i = 0; i < 3; i++)
        typed[i] = gb_typed(&r.g, in[i], dt);
    eas_status st = rule_node(&r, dt, bd, rank, shape, 0, NULL, 3, typed, out);
    for (int i = 0; i < 3; i++)
        node_unref(in[i]);
    return st;
}

eas_status expand_clip(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    (void)n;
    return gb_done(&g, gb2(&g, GRAPH_MINIMUM, gb2(&g, GRAPH_MAXIMUM, in[0], in[1]), in[2]), out);
}

/* ---- normalisation: words are eps and the axes; inputs are x, weight?, bias? ---- */

eas_status make_norm(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 3);
    eas_node *in[3];
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t words[GRAPH_MAX_RANK + 1];
    int rank, bd, n = 1;
    bool weak = false;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    uint32_t axes = rule_axes(&r, x);
    words[0] = rule_int(&r);
    eas_dtype dt = (eas_dtype)x->dtype;
    for (int i = 1; i < c->nin && !r.g.st; i++)
        dt = graph_promote(dt, weak, (eas_dtype)c->in[i]->dtype, (c->in[i]->flags & NODE_WEAK) != 0, &weak);
    dt = dtype_is_float(dt) ? dt : EAS_F32;
    if (!r.g.st)
        r.g.st = graph_align(c, c->nin, c->in, in, &bd);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    r.g.st = graph_broadcast(c, c->nin, in, &rank, shape);
    if (!r.g.st && rank - bd != node_logical_rank(x))
        rule_fail(&r, "weight or bias has more dims than x of shape %s", rule_text(x, (char[128]){0}));
    for (int i = 0; i < x->rank; i++)
        if (axes >> i & 1)
            words[n++] = i - x->batch_dims;
    eas_status st = rule_node(&r, dt, bd, rank, shape, n, words, c->nin, c->in, out);
    for (int i = 0; i < c->nin; i++)
        node_unref(in[i]);
    return st;
}

static eas_node *mean_over(gbuild *g, eas_node *x, eas_node *n)
{
    int64_t attr[GRAPH_MAX_RANK + 2];
    int k = 0;
    attr[k++] = n->nwords - 1;
    for (int i = 1; i < n->nwords; i++)
        attr[k++] = node_words(n)[i];
    attr[k++] = 1;
    return gb_apply(g, GRAPH_MEAN, 1, &x, k, attr);
}

/* y / sqrt(mean(y*y) + eps), with weight and bias. */
static eas_status scaled(gbuild *g, eas_node *n, eas_node *y, eas_node *const *in, eas_node **out)
{
    if (!y)
        return gb_done(g, NULL, out);
    eas_node *power = mean_over(g, gb1(g, GRAPH_SQUARE, y), n);
    y = gb2(g, GRAPH_MUL, y,
            gb1(g, GRAPH_RSQRT, gb2(g, GRAPH_ADD, power, gb_num(g, y, bits_double(node_words(n)[0])))));
    if (n->nin > 1)
        y = gb2(g, GRAPH_MUL, y, in[1]);
    if (n->nin > 2)
        y = gb2(g, GRAPH_ADD, y, in[2]);
    y = gb_typed(g, y, (eas_dtype)n->dtype);
    return gb_done(g, y ? gb_broadcast(g, y, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}

eas_status expand_layer_norm(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *x = gb_typed(&g, in[0], graph_compute_dtype((eas_dtype)n->dtype));
    return scaled(&g, n, gb2(&g, GRAPH_SUB, x, mean_over(&g, x, n)), in, out);
}

eas_status expand_rms_norm(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    return scaled(&g, n, gb_typed(&g, in[0], graph_compute_dtype((eas_dtype)n->dtype)), in, out);
}

/* ---- one_hot: a new last axis ---- */

eas_status make_one_hot(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK + 1];
    int64_t n = rule_int(&r);
    eas_dtype dt = rule_dtype(&r);
    if (!r.g.st && !dtype_is_int((eas_dtype)c->in[0]->dtype))
        rule_type_fail(&r, "classes must be integers, these are %s",
                       eas_dtype_name((eas_dtype)c->in[0]->dtype));
    if (n < 0 && !dim_is_expr(n))
        rule_fail(&r, "%lld classes", (long long)n);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[x->rank] = n;
    return rule_node(&r, dt, x->batch_dims, x->rank + 1, shape, 0, NULL, 1, &x, out);
}

eas_status expand_one_hot(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *x = gb_unsqueeze(&g, gb_typed(&g, in[0], EAS_I64), in[0]->rank);
    return gb_done(&g,
                   gb_typed(&g, gb2(&g, GRAPH_EQUAL, x, gb_iota(&g, node_shape(n)[n->rank - 1], EAS_I64)),
                            (eas_dtype)n->dtype),
                   out);
}
