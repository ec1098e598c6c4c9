/* op_create.c: tensors out of nothing but numbers and shapes. Numbers are inputs, so that other numbers give no other structure. */
#include "graph.h"

eas_status make_iota(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 0, 0);
    dims shape = rule_shape(&r);
    int64_t axis = rule_int(&r), word = axis < 0 ? axis + shape.n : axis;
    eas_dtype dt = rule_dtype(&r);
    if (word < 0 || word >= shape.n)
        rule_fail(&r, "axis %lld of shape %s", (long long)axis, shape_text((char[128]){0}, 128, shape.n, shape.at));
    if (dt == EAS_BOOL)
        rule_type_fail(&r, "not for bool");
    return rule_node(&r, dt, 0, shape.n, shape.at, 1, &word, 0, NULL, out);
}

/* Like broadcast_to, but the result is no Python number any more. */
eas_status make_full(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim ones[2 * GRAPH_MAX_RANK], full[2 * GRAPH_MAX_RANK];
    dims to = rule_shape(&r);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int bd = x->batch_dims, more = to.n - node_logical_rank(x);
    bool fits = more >= 0;
    for (int i = 0; i < node_logical_rank(x) && fits; i++)
        fits = node_logical_shape(x)[i] == 1 || node_logical_shape(x)[i] == to.at[more + i];
    if (!fits)
        rule_fail(&r, "a value of shape %s does not fill %s", rule_text(x, (char[128]){0}), shape_text((char[128]){0}, 128, to.n, to.at));
    for (int i = 0; i < bd + to.n && fits; i++) {
        ones[i] = i < bd ? node_shape(x)[i] : i < bd + more ? 1 : node_shape(x)[i - more];
        full[i] = i < bd ? node_shape(x)[i] : to.at[i - bd];
    }
    eas_dtype dt = (eas_dtype)x->dtype;
    x = gb_cast(&r.g, x, dt);
    if (bd && more > 0)
        x = gb_reshape(&r.g, x, bd, bd + to.n, ones);
    return rule_node(&r, dt, bd, bd + to.n, full, 0, NULL, 1, &x, out);
}
