/* op_batch.c: batch dims, which vmap counts and users do not see, and names for tensors.
 *
 * The operations that are called physical count batch dims among the axes. They leave the number of batch
 * dims alone (unless no dims are left to be them): incr_batch_dims and decr_batch_dims say what becomes of a
 * dim that came or went.
 */
#include "graph.h"

static eas_status renamed(rule *r, eas_node *x, int64_t batch_dims, eas_node **out)
{
    if (!r->g.st && (batch_dims < 0 || batch_dims > x->rank))
        rule_fail(r, "%lld batch dims of a tensor of %d dims", (long long)batch_dims, x->rank);
    if (r->g.st)
        return rule_done(r, NULL, out);
    return rule_node(r, (eas_dtype)x->dtype, (int)batch_dims, x->rank, node_shape(x), 0, NULL, 1, &x, out);
}

eas_status make_alias(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    int64_t bd = rule_int(&r);
    return renamed(&r, c->nin ? c->in[0] : NULL, bd, out);
}

eas_status make_custom(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, -1);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    return rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 0, NULL, c->nin, c->in,
                     out);
}

eas_status make_incr_batch_dims(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    if (!r.g.st && node_logical_rank(c->in[0]) == 0)
        rule_fail(&r, "no dim is left to become a batch dim: shape () with %d batch dims",
                  c->in[0]->batch_dims);
    return renamed(&r, c->nin ? c->in[0] : NULL, r.g.st ? 0 : c->in[0]->batch_dims + 1, out);
}

eas_status make_decr_batch_dims(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    if (!r.g.st && c->in[0]->batch_dims == 0)
        rule_fail(&r, "there are no batch dims: batch_dims is 0 already");
    return renamed(&r, c->nin ? c->in[0] : NULL, r.g.st ? 0 : c->in[0]->batch_dims - 1, out);
}

static eas_status moved(rule *r, eas_node *x, int from, int to, int batch_dims, eas_node **out)
{
    int64_t order[GRAPH_MAX_RANK];
    eas_dim shape[GRAPH_MAX_RANK];
    if (r->g.st)
        return rule_done(r, NULL, out);
    for (int i = 0, k = 0; i < x->rank; i++) {
        k += k == from;
        order[i] = i == to ? from : k++;
        shape[i] = node_shape(x)[order[i]];
    }
    return rule_node(r, (eas_dtype)x->dtype, batch_dims, x->rank, shape, x->rank, order, 1, &x, out);
}

eas_status make_move_axis_to_batch_dims(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int axis = rule_axis(&r, c->in[0]);
    return moved(&r, c->in[0], axis, 0, c->in[0]->batch_dims + 1, out);
}

eas_status make_move_axis_from_batch_dims(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int64_t from = rule_int(&r), to = rule_int(&r), bd = x->batch_dims, rank = node_logical_rank(x) + 1;
    if (bd == 0 || from < -bd || from >= bd)
        rule_fail(&r, "batch_axis %lld of %d batch dims", (long long)from, (int)bd);
    if (to < -rank || to >= rank)
        rule_fail(&r, "logical_destination %lld in a result of %d dims", (long long)to, (int)rank);
    return moved(&r, x, (int)(from < 0 ? from + bd : from), (int)(bd - 1 + (to < 0 ? to + rank : to)),
                 (int)bd - 1, out);
}

/* x with at least so many batch dims: new ones have size 1 and stand in front, where the newest vmap's are.
 */
eas_status make_lift_batch_dims(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[2 * GRAPH_MAX_RANK];
    int64_t n = rule_int(&r);
    if (!r.g.st && (n < c->in[0]->batch_dims || n > GRAPH_MAX_RANK))
        rule_fail(&r, "%lld batch dims for a tensor that has %d", (long long)n, c->in[0]->batch_dims);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int more = (int)n - x->batch_dims;
    for (int i = 0; i < more; i++)
        shape[i] = 1;
    memcpy(shape + more, node_shape(x), sizeof *shape * x->rank);
    return rule_node(&r, (eas_dtype)x->dtype, (int)n, x->rank + more, shape, 0, NULL, 1, &x, out);
}

eas_status make_broadcast_batch_dims(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[3 * GRAPH_MAX_RANK];
    dims to = rule_shape(&r);
    if (!r.g.st && to.n < c->in[0]->batch_dims)
        rule_fail(&r, "%d batch sizes for a tensor of %d batch dims", to.n, c->in[0]->batch_dims);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = gb_lift(&r.g, c->in[0], to.n);
    int rank = to.n + node_logical_rank(c->in[0]);
    for (int i = 0; i < rank && !r.g.st; i++) {
        shape[i] = i < to.n ? to.at[i] : node_shape(x)[i];
        if (node_shape(x)[i] != 1 && node_shape(x)[i] != shape[i])
            rule_fail(&r, "batch dims %s do not broadcast to %s",
                      shape_text((char[128]){0}, 128, c->in[0]->batch_dims, node_shape(c->in[0])),
                      shape_text((char[128]){0}, 128, to.n, to.at));
    }
    return rule_node(&r, (eas_dtype)c->in[0]->dtype, to.n, rank, shape, 0, NULL, 1, &x, out);
}
