/* diff_tape.c: variables of derivatives, and rules of users.
 *
 * A node that is evaluated lets go of its inputs, unless a derivative is being taken through it: such nodes are taped (NODE_TAPED), which goes from a variable to all
 * that is recorded from it. What is handed out when the derivative is there is another name of a taped node, which is not taped: the tape goes with it.
 */
#include "graph.h"

eas_status eas_node_variable(eas_node *x, eas_node **out)
{
    int64_t word = x->batch_dims;
    eas_status st = node_new(GRAPH_ALIAS, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 1, &word, 1, &x, out);
    if (st)
        return st;
    (*out)->flags |= NODE_TAPED;
    node_hand_out(*out);
    return EAS_OK;
}

int eas_node_is_taped(const eas_node *n) { return (n->flags & NODE_TAPED) != 0; }

/* Another name of x that is not taped: whoever holds it holds no more than x's value once it is evaluated. */
eas_status eas_node_untaped(eas_node *x, eas_node **out)
{
    int64_t word = x->batch_dims;
    *out = NULL;
    if (!(x->flags & NODE_TAPED)) {
        *out = eas_node_retain(x);
        return EAS_OK;
    }
    eas_status st = node_new(GRAPH_ALIAS, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 1, &word, 1, &x, out);
    if (st)
        return st;
    (*out)->flags &= (uint16_t)~NODE_TAPED;
    node_hand_out(*out);
    return EAS_OK;
}

/* ---- rules of users ---- */

void diff_rule_release(node_rule *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    if (r->drop)
        r->drop(r->ctx);
    free(r);
}

static eas_status custom_result(node_rule *r, int k, eas_node *result, int nin, eas_node *const *all, eas_node **out)
{
    node_extra *e = calloc(1, sizeof *e);
    if (!e)
        return base_fail_oom(sizeof *e);
    int64_t word = k;
    eas_status st = node_new(GRAPH_CUSTOM, (eas_dtype)result->dtype, result->batch_dims, result->rank, node_shape(result), 1, &word, nin + 1, all, out);
    if (st) {
        free(e);
        return st;
    }
    atomic_fetch_add(&r->refs, 1);
    e->rule = r;
    (*out)->extra = e;
    node_hand_out(*out);
    return EAS_OK;
}

eas_status eas_nodes_custom(int nout, eas_node *const *results, int nin, eas_node *const *in, eas_vjp_rule vjp, eas_jvp_rule jvp, void *ctx,
                            void (*drop)(void *ctx), eas_node **outs)
{
    node_rule *r = calloc(1, sizeof *r);
    eas_node **all = malloc(sizeof *all * ((size_t)nin + 1));
    if (!r || !all) {
        free(r);
        free(all);
        return base_fail_oom(sizeof *r);
    }
    *r = (node_rule){.nout = nout, .vjp = vjp, .jvp = jvp, .ctx = ctx};
    atomic_init(&r->refs, 1);
    for (int i = 0; i < nin; i++)
        all[1 + i] = in[i];
    eas_status st = nin < UINT16_MAX ? EAS_OK : base_fail(EAS_ERR_VALUE, "eager.custom: %d inputs; there are at most %d", nin, UINT16_MAX - 1);
    int done = 0;
    for (; done < nout && !st; done += !st) {
        all[0] = results[done];
        st = custom_result(r, done, results[done], nin, all, &outs[done]);
    }
    while (st && done > 0)
        eas_node_release(outs[--done]);
    if (!st)
        r->drop = drop; /* a caller that is refused keeps its object */
    diff_rule_release(r);
    free(all);
    return st;
}
