/* diff_tape.c: variables of derivatives, and rules of users.
 *
 * A node that is evaluated releases its inputs, unless a derivative is being taken through it: such nodes
 * are taped (NODE_TAPED), which goes from a variable to all that is recorded from it. When the derivative
 * has been taken, the user gets another node for the same value (an alias) that is not taped, so the tape can
 * be freed.
 */
#include "graph.h"

eas_status eas_node_variable(eas_node *x, eas_node **out)
{
    NEED(x, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    int64_t word = x->batch_dims;
    eas_status st = node_new(GRAPH_ALIAS, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 1,
                             &word, 1, &x, out);
    if (st)
        return st;
    (*out)->flags |= NODE_TAPED;
    node_hand_out(*out);
    return EAS_OK;
}

int eas_node_is_taped(const eas_node *n)
{
    NEED(n, 0);
    return (n->flags & NODE_TAPED) != 0;
}

/* Another name of x that is not taped: whoever holds it holds no more than x's value once it is evaluated. */
eas_status eas_node_untaped(eas_node *x, eas_node **out)
{
    NEED(x, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    int64_t word = x->batch_dims;
    *out = NULL;
    if (!(x->flags & NODE_TAPED)) {
        *out = eas_node_retain(x);
        return EAS_OK;
    }
    eas_status st = node_new(GRAPH_ALIAS, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 1,
                             &word, 1, &x, out);
    if (st)
        return st;
    (*out)->flags &= (uint16_t)~NODE_TAPED;
    node_hand_out(*out);
    return EAS_OK;
}

/* ---- recomputing ---- */

/* x under a name that shares nothing with what is computed of x already, and an input that must be there
 * first. Of `after` one element is enough; no derivative passes through it. */
eas_status make_barrier(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    gbuild *g = &r.g;
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0], *token = gd_stop(g, gd_rebatch(g, c->in[1], 0));
    bool empty = false;
    for (int i = 0; i < c->in[1]->rank; i++)
        empty |= node_shape(c->in[1])[i] == 0;
    while (token && token->rank && !empty)
        token = gb_squeeze(g, gb_slice(g, token, 0, 0, 1, 1), 0);
    if (empty)
        token = gb_int(g, EAS_BOOL, 0);
    return rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 0, NULL, 2,
                     (eas_node *[]){x, token}, out);
}

eas_value emit_barrier(eas_builder *b, const eas_value *x, eas_dtype dt)
{
    (void)b, (void)dt;
    return x[0];
}

eas_node *each_barrier(gbuild *g, eas_node *n, int i, eas_node *t)
{
    (void)g, (void)n, (void)i;
    return t;
}

/* ---- graphs that are not needed any more ---- */

static uint32_t place(const diff_set *s, const eas_node *n)
{
    uint64_t h = (uint64_t)(uintptr_t)n * 0x9e3779b97f4a7c15u >> 24;
    while (s->at[h & (s->size - 1)] && s->at[h & (s->size - 1)] != n)
        h++;
    return (uint32_t)(h & (s->size - 1));
}

bool diff_set_has(const diff_set *s, const eas_node *n) { return s->at && s->at[place(s, n)]; }

void diff_set_add(gbuild *g, diff_set *s, const eas_node *n)
{
    if (2 * (s->n + 1) > s->size) {
        diff_set more = {calloc(s->size ? 2 * (size_t)s->size : 64, sizeof *more.at), s->n,
                         s->size ? 2 * s->size : 64};
        if (!more.at) {
            g->st = g->st ? g->st : base_fail_oom(sizeof *more.at);
            return;
        }
        for (uint32_t i = 0; i < s->size; i++)
            if (s->at[i])
                more.at[place(&more, s->at[i])] = s->at[i];
        free(s->at);
        *s = more;
    }
    s->at[place(s, n)] = n;
    s->n++;
}

static bool is_leaf(const eas_node *n)
{
    for (int i = 0; i < n->nin; i++)
        if (node_in(n)[i]->flags & NODE_TRACED)
            return false;
    return true;
}

/* Everything traced that n was made of, n first; leaves: those that were made of nothing traced. */
static eas_status traced_below(eas_node *n, bool leaves, eas_node ***out, int *count)
{
    VEC(eas_node *) stack = {0};
    VEC(eas_node *) found = {0};
    gbuild g = {0};
    diff_set seen = {0};
    bool ok = !(n->flags & NODE_TRACED) || vec_push(&stack, n);
    while (stack.len && ok && !g.st) {
        eas_node *x = stack.at[--stack.len];
        if (diff_set_has(&seen, x))
            continue;
        diff_set_add(&g, &seen, x);
        if (is_leaf(x) == leaves)
            ok = vec_push(&found, x);
        for (int i = 0; i < x->nin && ok; i++)
            if (node_in(x)[i]->flags & NODE_TRACED)
                ok = vec_push(&stack, node_in(x)[i]);
    }
    vec_free(&stack);
    free(seen.at);
    *out = found.at;
    *count = (int)found.len;
    return ok ? g.st : base_fail_oom(sizeof n);
}

eas_status eas_node_leaves(eas_node *n, eas_node ***out, int *count)
{
    NEED(n, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    NEED(count, EAS_ERR_HANDLE);
    return traced_below(n, true, out, count);
}

eas_status eas_node_forget(eas_node *n)
{
    NEED(n, EAS_ERR_HANDLE);
    eas_node **all;
    int count;
    eas_status st = traced_below(n, false, &all, &count);
    for (int i = 0; i < count; i++)
        node_ref(all[i]);
    for (int i = 0; i < count; i++) {
        all[i]->flags &= (uint16_t)~NODE_TRACED;
        node_cut(all[i]);
    }
    for (int i = 0; i < count; i++)
        node_unref(all[i]);
    free(all);
    return st;
}

/* ---- rules of users ---- */

void diff_rule_release(node_rule *r)
{
    if (!r || atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    if (r->drop)
        r->drop(r->ctx);
    for (int i = 0; r->again && i < r->nout; i++)
        node_unref(r->again[i]);
    free(r->again);
    free(r);
}

static eas_status custom_result(node_rule *r, int k, eas_node *result, int nin, eas_node *const *all,
                                eas_node **out)
{
    node_extra *e = calloc(1, sizeof *e);
    if (!e)
        return base_fail_oom(sizeof *e);
    int64_t word = k;
    eas_status st = node_new(GRAPH_CUSTOM, (eas_dtype)result->dtype, result->batch_dims, result->rank,
                             node_shape(result), 1, &word, nin + 1, all, out);
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

/* Takes r over. */
static eas_status custom_results(node_rule *r, eas_node *const *results, int nin, eas_node *const *in,
                                 eas_node **outs)
{
    eas_node **all = malloc(sizeof *all * ((size_t)nin + 1));
    eas_status st =
        !all ? base_fail_oom((size_t)nin)
        : nin < UINT16_MAX
            ? EAS_OK
            : base_fail(EAS_ERR_VALUE, "eager.custom: %d inputs; there are at most %d", nin, UINT16_MAX - 1);
    int done = 0;
    for (int i = 0; i < nin && !st; i++)
        all[1 + i] = in[i];
    for (; done < r->nout && !st; done += !st) {
        all[0] = results[done];
        st = custom_result(r, done, results[done], nin, all, &outs[done]);
    }
    while (st && done > 0)
        eas_node_release(outs[--done]);
    free(all);
    return st;
}

eas_status eas_nodes_custom(int nout, eas_node *const *results, int nin, eas_node *const *in,
                            eas_vjp_rule vjp, eas_jvp_rule jvp, void *ctx, void (*drop)(void *ctx),
                            eas_node **outs)
{
    NEED(!nout || (results && outs), EAS_ERR_HANDLE);
    NEED(!nin || in, EAS_ERR_HANDLE);
    node_rule *r = calloc(1, sizeof *r);
    if (!r)
        return base_fail_oom(sizeof *r);
    *r = (node_rule){.nout = nout, .vjp = vjp, .jvp = jvp, .ctx = ctx};
    atomic_init(&r->refs, 1);
    eas_status st = custom_results(r, results, nin, in, outs);
    if (!st)
        r->drop = drop; /* a caller that is refused keeps its object */
    diff_rule_release(r);
    return st;
}

eas_status eas_nodes_checkpoint(int nout, eas_node *const *results, int nin, eas_node *const *in,
                                eas_node **outs)
{
    NEED(!nout || (results && outs), EAS_ERR_HANDLE);
    NEED(!nin || in, EAS_ERR_HANDLE);
    node_rule *r = calloc(1, sizeof *r);
    if (r)
        r->again = calloc((size_t)nout + 1, sizeof *r->again);
    if (!r || !r->again) {
        free(r);
        return base_fail_oom(sizeof *r);
    }
    atomic_init(&r->refs, 1);
    for (int i = 0; i < nout; i++)
        r->again[r->nout++] = node_ref(results[i]);
    eas_status st = custom_results(r, results, nin, in, outs);
    diff_rule_release(r);
    return st;
}
