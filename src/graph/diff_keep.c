/* diff_keep.c: a pullback whose result may be read before it is called.
 *
 * The result is then computed by one program and the gradients by another, and the second one would compute
 * the forward pass once more. So the derivative is recorded early, for placeholders in place of cotangents:
 * whatever does not depend on them and is used by something that does is a residual. Computing the result
 * computes the residuals as well (eas_nodes_realize asks diff_residuals), and pulling puts cotangents in
 * place of the placeholders.
 *
 * References go one way: the result under its untaped name holds the pullback until it has data, the pullback
 * holds the taped graph.
 */
#include "graph.h"

struct eas_pullback {
    _Atomic uint32_t refs;
    int nin, nout, lanes;
    /* counted as users count: what they are stays in memory when it is computed */
    eas_node **in, **outs;
    eas_node **cts, **grads;    /* NULL until it is recorded: placeholders, and gradients made of them */
    bool failed;                /* to record it: a user's rule reads data */
};
static _Atomic uint32_t waiting; /* results that hold a pullback */

static void drop(int n, eas_node **nodes)
{
    for (int i = 0; nodes && i < n; i++)
        eas_node_release(nodes[i]);
    free(nodes);
}

static eas_node **copied(int n, eas_node *const *nodes)
{
    eas_node **to = calloc((size_t)n + 1, sizeof *to);
    for (int i = 0; to && i < n; i++)
        to[i] = eas_node_retain(nodes[i]);
    return to;
}

void eas_pullback_release(eas_pullback *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    drop(p->nin, p->grads);
    drop(p->nout, p->cts);
    drop(p->nin, p->in);
    drop(p->nout, p->outs);
    free(p);
}

eas_status eas_pullback_new(int nin, eas_node *const *in, int nout, eas_node *const *outs, int lanes,
                            eas_pullback **out)
{
    NEED(out, EAS_ERR_HANDLE);
    NEED(!nin || in, EAS_ERR_HANDLE);
    NEED(!nout || outs, EAS_ERR_HANDLE);
    eas_pullback *p = *out = calloc(1, sizeof *p);
    if (!p)
        return base_fail_oom(sizeof *p);
    *p = (eas_pullback){
        .nin = nin, .nout = nout, .lanes = lanes, .in = copied(nin, in), .outs = copied(nout, outs)};
    atomic_init(&p->refs, 1);
    if (p->in && p->outs)
        return EAS_OK;
    eas_pullback_release(p);
    *out = NULL;
    return base_fail_oom((size_t)(nin + nout));
}

eas_status eas_pullback_hold(eas_pullback *p, eas_node *result)
{
    NEED(p, EAS_ERR_HANDLE);
    NEED(result, EAS_ERR_HANDLE);
    if (node_real(result) || result->flags & NODE_KEEPS)
        return EAS_OK;
    if (!result->extra && !(result->extra = calloc(1, sizeof *result->extra)))
        return base_fail_oom(sizeof *result->extra);
    if (result->extra->pullback)
        return EAS_OK;
    atomic_fetch_add(&p->refs, 1);
    atomic_fetch_add(&waiting, 1);
    result->extra->pullback = p;
    return EAS_OK;
}

void diff_pullback_drop(eas_pullback *p)
{
    if (!p)
        return;
    atomic_fetch_sub(&waiting, 1);
    eas_pullback_release(p);
}

/* ---- recording ---- */

static bool plain(const eas_pullback *p)
{
    for (int i = 0; i < p->nin; i++)
        if (p->in[i]->flags & NODE_SYMBOLIC)
            return false;
    for (int i = 0; i < p->nout; i++)
        if (p->outs[i]->flags & NODE_SYMBOLIC)
            return false;
    return p->lanes == 0;
}

static eas_status placeholders(eas_pullback *p)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < p->nout && !st; i++) {
        const eas_node *x = p->outs[i];
        int64_t word = -1;
        if (!diff_float(x))
            continue;
        st = node_new(GRAPH_INPUT, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 1, &word, 0,
                      NULL, &p->cts[i]);
        if (st)
            break;
        p->cts[i]->flags |= NODE_SYMBOLIC;
        p->cts[i]->device = x->device;
        node_hand_out(p->cts[i]);
    }
    return st;
}

/* Failing is no error: the derivative is taken again when it is asked for, and says what is wrong then. */
static bool recorded(eas_pullback *p)
{
    if (p->failed || p->grads)
        return !p->failed;
    p->cts = calloc((size_t)p->nout + 1, sizeof *p->cts);
    p->grads = calloc((size_t)p->nin + 1, sizeof *p->grads);
    p->failed = !plain(p) || !p->cts || !p->grads || placeholders(p) ||
                eas_nodes_vjp(p->nin, p->in, p->nout, p->outs, p->cts, p->lanes, p->grads);
    return !p->failed;
}

/* Is it another name of another node, or next to nothing to compute from it? */
static bool is_view(const eas_node *n)
{
    switch (node_kind(n)) {
    case KIND_RESHAPE:
    case KIND_PERMUTE:
    case KIND_BROADCAST:
    case KIND_ALIAS: return true;
    default: return false;
    }
}

/* One instruction an element, and no elementary function. */
static bool is_cheap(const eas_node *n)
{
    const char *ir = graph_rows[n->op].ir;
    if (n->op == GRAPH_ADD || n->op == GRAPH_MUL || n->op == GRAPH_SQUARE || n->op == GRAPH_RELU ||
        n->op == GRAPH_RECIPROCAL || graph_rows[n->op].make == make_compare)
        return true;
    return node_kind(n) == KIND_CAST || is_view(n) ||
           (node_kind(n) == KIND_MAP && ir && !(ir_rows[eas_op_find(ir)].flags & IR_EXPAND));
}

typedef struct search {
    gbuild g;
    diff_set seen, residuals;
    const diff_set *within; /* NULL, or only these nodes will be there later */
    diff_nodes stack, found;
    bool oom;
} search;

static void visit(search *s, eas_node *n)
{
    if (diff_set_has(&s->seen, n))
        return;
    diff_set_add(&s->g, &s->seen, n);
    s->oom |= !vec_push(&s->stack, n);
}

static void add_residual(search *s, eas_node *n)
{
    while (!node_real(n) && is_view(n) && n->nin)
        n = node_in(n)[0];
    if (node_real(n) || !n->nin || diff_set_has(&s->residuals, n))
        return;
    diff_set_add(&s->g, &s->residuals, n);
    s->oom |= !vec_push(&s->found, n);
}

/* Can it be had from what is kept in a few cheap instructions? n itself is not asked whether it is kept. */
static bool follows(const search *s, const eas_node *n, int depth)
{
    if (!is_cheap(n) || depth == 0)
        return false;
    for (int i = 0; i < n->nin; i++) {
        const eas_node *x = node_in(n)[i];
        if (!node_real(x) && x->nin && !diff_set_has(&s->residuals, x) && !follows(s, x, depth - 1))
            return false;
    }
    return true;
}

/* Walks down from the gradients and collects the residuals: the first nodes on each path that do not depend
 * on the placeholders of cotangents. */
static void look(search *s, const eas_pullback *p)
{
    for (int i = 0; i < p->nin; i++)
        if (p->grads[i])
            visit(s, p->grads[i]);
    while (s->stack.len && !s->oom && !s->g.st) {
        eas_node *n = s->stack.at[--s->stack.len];
        if (!(n->flags & NODE_SYMBOLIC) && (!s->within || diff_set_has(s->within, n)))
            add_residual(s, n);
        else
            for (int i = 0; i < n->nin; i++)
                visit(s, node_in(n)[i]);
    }
}

static eas_status find_residuals(const eas_pullback *p, const diff_set *within, diff_nodes *out)
{
    enum { FEW = 6 };
    search s = {.within = within};
    look(&s, p);
    for (uint32_t i = 0; i < s.found.len && !s.oom; i++)
        if (!follows(&s, s.found.at[i], FEW) && !(s.oom = !vec_push(out, s.found.at[i])))
            eas_node_retain(s.found.at[i]);
    vec_free(&s.stack);
    vec_free(&s.found);
    free(s.seen.at);
    free(s.residuals.at);
    return s.oom ? base_fail_oom(sizeof *out) : s.g.st;
}

static eas_status from_result(eas_node *n, diff_nodes *out)
{
    eas_pullback *p = n->extra ? n->extra->pullback : NULL;
    if (!p || atomic_load(&p->refs) == 1) /* nobody can pull any more */
        return EAS_OK;
    atomic_fetch_add(&p->refs, 1);
    eas_status st = recorded(p) ? find_residuals(p, NULL, out) : EAS_OK;
    eas_pullback_release(p);
    return st;
}

/* Residuals for Torch's way, where no pullback exists yet: backward() will take the derivative of the traced
 * tensor n after n was computed. Here that derivative is taken once in advance, to see which recorded nodes
 * it refers to. The caller does this only if no rule of a user is involved, since those may read data. */
static eas_status from_traced(eas_node *n, const diff_set *recorded_nodes, diff_nodes *out)
{
    eas_node **leaves = NULL;
    eas_pullback *p = NULL;
    int count = 0;
    eas_status st = eas_node_leaves(n, &leaves, &count);
    if (!st && count)
        st = eas_pullback_new(count, leaves, 1, &n, 0, &p);
    if (p && recorded(p))
        st = find_residuals(p, recorded_nodes, out);
    eas_pullback_release(p);
    eas_memory_free(leaves);
    return st;
}

eas_status diff_residuals(int n, eas_node *const *roots, diff_nodes *out)
{
    search s = {0};
    bool traced = false, rules = false;
    for (int i = 0; i < n; i++)
        traced |= roots[i]->flags & NODE_TRACED && diff_float(roots[i]) && roots[i]->nin;
    if (!traced && !atomic_load_explicit(&waiting, memory_order_relaxed))
        return EAS_OK;
    for (int i = 0; i < n; i++)
        visit(&s, roots[i]);
    while (s.stack.len && !s.oom && !s.g.st) {
        eas_node *x = s.stack.at[--s.stack.len];
        if (node_real(x) || !x->nin)
            continue;
        s.g.st = from_result(x, out);
        rules |= x->extra && x->extra->rule && !x->extra->rule->again;
        for (int i = 0; i < x->nin; i++)
            visit(&s, node_in(x)[i]);
    }
    for (int i = 0; i < n && traced && !rules && !s.oom && !s.g.st; i++)
        if (roots[i]->flags & NODE_TRACED && diff_float(roots[i]) && roots[i]->nin)
            s.g.st = from_traced(roots[i], &s.seen, out);
    vec_free(&s.stack);
    free(s.seen.at);
    return s.oom ? base_fail_oom(sizeof *out) : s.g.st;
}

/* ---- pulling ---- */

static bool same_type(const eas_node *x, const eas_node *y)
{
    return x->dtype == y->dtype && x->batch_dims == y->batch_dims && x->rank == y->rank &&
           !memcmp(node_shape(x), node_shape(y), sizeof(eas_dim) * x->rank);
}

static bool fits(const eas_pullback *p, eas_node *const *cotangents)
{
    for (int i = 0; i < p->nout; i++)
        if (p->cts[i] && (!cotangents[i] || !same_type(cotangents[i], p->cts[i])))
            return false;
    return true;
}

eas_status eas_pullback_call(eas_pullback *p, eas_node *const *cotangents, eas_node **grads)
{
    NEED(p, EAS_ERR_HANDLE);
    NEED(!p->nout || cotangents, EAS_ERR_HANDLE);
    NEED(!p->nin || grads, EAS_ERR_HANDLE);
    /* nobody read the result first: one program computes all */
    if (!p->grads || p->failed || !fits(p, cotangents))
        return eas_nodes_vjp(p->nin, p->in, p->nout, p->outs, cotangents, p->lanes, grads);
    gbuild g = {0};
    eas_node *none;
    for (int i = 0; i < p->nin; i++)
        grads[i] = p->grads[i];
    control_replace(&g, p->nout, p->cts, cotangents, p->nin, grads, false);
    for (int i = 0; i < p->nin; i++)
        grads[i] = g.st || !grads[i] ? NULL : eas_node_retain(grads[i]);
    return gb_done(&g, NULL, &none);
}
