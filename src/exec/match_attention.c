/* match_attention.c: is a product softmax(scores) @ v, and does no other node read what lies between?
 * lower_attention.c makes the kernel. */
#include "exec.h"

enum { WIDEST = 256 };

static bool over_last(const pnode *p, const pnode *x) { return p->nwords == 2 && p->words[1] == x->rank - 1; }

/* The one product below a node, if there is one; nodes on the way are element-wise in the node's own shape.
 */
static bool only_product(const fusion *f, uint32_t i, const pnode *shape, uint32_t *core, int depth)
{
    const pnode *p = pass_at(f->g, i);
    if (!f->at[i].heavy)
        return true;
    if (depth == 0 || p->rank != shape->rank || memcmp(p->shape, shape->shape, sizeof *p->shape * p->rank))
        return false;
    if (p->kind == KIND_MATMUL) {
        bool first = *core == 0 || *core == i;
        *core = i;
        return first;
    }
    if (p->kind != KIND_MAP && p->kind != KIND_CAST)
        return false;
    for (int k = 0; k < p->nin; k++)
        if (!only_product(f, p->in[k], shape, core, depth - 1))
            return false;
    return true;
}

bool match_softmax(const fusion *f, uint32_t weights, const uint32_t *uses, softmax_parts *out)
{
    const pgraph *g = f->g;
    const pnode *w = pass_at(g, weights);
    softmax_parts r = {0};
    if (!is_op(g, weights, GRAPH_MUL))
        return false;
    r.e = w->in[0];
    r.inverse = w->in[1];
    if (!is_op(g, r.e, GRAPH_EXP) || !is_op(g, r.inverse, GRAPH_RECIPROCAL))
        return false;
    r.sum = pass_at(g, r.inverse)->in[0];
    r.diff = pass_at(g, r.e)->in[0];
    if (!is_op(g, r.sum, GRAPH_REDUCE_SUM) || pass_at(g, r.sum)->in[0] != r.e ||
        !over_last(pass_at(g, r.sum), w) || !is_op(g, r.diff, GRAPH_SUB))
        return false;
    r.scores = pass_at(g, r.diff)->in[0];
    r.top = pass_at(g, r.diff)->in[1];
    const uint32_t s = r.scores;
    if (!is_op(g, r.top, GRAPH_REDUCE_MAX) || pass_at(g, r.top)->in[0] != s ||
        !over_last(pass_at(g, r.top), w))
        return false;
    if (uses[r.e] != 2 || uses[r.inverse] != 1 || uses[r.sum] != 1 || uses[r.diff] != 1 || uses[r.top] != 1 ||
        uses[s] != 2 || f->at[s].root)
        return false;
    if (!only_product(f, s, pass_at(g, s), &r.core, 9) || !r.core || (uses[r.core] != 1 && r.core != s))
        return false;
    *out = r;
    return true;
}

bool match_attention(const fusion *f, uint32_t i, const uint32_t *uses, uint32_t *scores, uint32_t *core)
{
    const pgraph *g = f->g;
    const pnode *o = pass_at(g, i);
    uint32_t weights = o->in[0];
    softmax_parts r;
    if (o->kind != KIND_MATMUL || (uses[weights] != 1 && !f->at[weights].shared) ||
        !match_softmax(f, weights, uses, &r))
        return false;
    *scores = r.scores;
    *core = r.core;
    const pnode *c = pass_at(g, *core), *v = pass_at(g, o->in[1]), *q = pass_at(g, c->in[0]),
                *w = pass_at(g, weights);
    eas_dim depth = q->shape[q->rank - 1], width = v->shape[v->rank - 1];
    return o->dtype == c->dtype && dim_known(depth) && depth <= WIDEST && depth > 0 && dim_known(width) &&
           width <= WIDEST && width > 0 && o->rank == c->rank && w->rank == o->rank;
}
