/* shape.c: element-wise nodes are computed in the shape of what they follow.
 *
 * A convolution is a product of two matrices whose result is reshaped to images; the bias and the activation that follow see images. Computed in the shape of the matrix they are part of the product's
 * kernel (fuse.c), so a reshape of a product moves behind the element-wise nodes that follow it. So does one that joins the dims of a permuted tensor: behind it, an index would be taken
 * apart again with divisions.
 */
#include "pass.h"

static uint32_t reshaped(pgraph *g, uint32_t x, int rank, const eas_dim *shape)
{
    const pnode p = {.op = GRAPH_RESHAPE,
                     .kind = KIND_RESHAPE,
                     .dtype = pass_at(g, x)->dtype,
                     .rank = (uint8_t)rank,
                     .nin = 1,
                     .param = PARAM_NONE,
                     .shape = shape,
                     .in = &x};
    return pass_add(g, &p);
}

static bool same_shape(const pnode *a, const pnode *b) { return a->rank == b->rank && !memcmp(a->shape, b->shape, sizeof *a->shape * a->rank); }

/* Dims other than the last are 1, and there is no more than one element unless the last dim is that of p. */
static bool along_last(const pnode *x, const pnode *p)
{
    for (int i = 0; i + 1 < x->rank; i++)
        if (x->shape[i] != 1)
            return false;
    return !x->rank || x->shape[x->rank - 1] == 1 || x->shape[x->rank - 1] == p->shape[p->rank - 1];
}

/* Can input x of p take the shape of z for nothing? */
static bool can_follow(const pnode *x, const pnode *p, const pnode *z)
{
    if (same_shape(x, p))
        return x->kind == KIND_MAP || x->kind == KIND_CAST || x->kind == KIND_RESHAPE || (x->kind == KIND_LEAF && !x->nwords);
    return along_last(x, p) && (!x->rank || x->shape[x->rank - 1] == 1 || (z->rank && z->shape[z->rank - 1] == p->shape[p->rank - 1]));
}

/* Is x a reshape that p is better computed in front of? */
static bool leads(const pgraph *g, const pnode *x, const pnode *p)
{
    if (x->kind != KIND_RESHAPE || !same_shape(x, p))
        return false;
    const pnode *z = pass_at(g, x->in[0]);
    const bool joins = z->rank > x->rank;
    return z->kind == KIND_MATMUL || (z->kind == KIND_PERMUTE && joins) || ((z->kind == KIND_MAP || z->kind == KIND_CAST) && !z->shared);
}

/* p in the shape of the reshape's source, and the reshape behind it; 0: as it is. */
uint32_t pass_move_reshape(pgraph *g, const pnode *p)
{
    int lead = -1;
    for (int i = 0; i < p->nin && lead < 0; i++)
        lead = leads(g, pass_at(g, p->in[i]), p) ? i : -1;
    if (lead < 0 || p->nin > 3)
        return 0;
    const pnode z = *pass_at(g, pass_at(g, p->in[lead])->in[0]); /* adding moves the nodes */
    uint32_t in[3];
    for (int i = 0; i < p->nin; i++)
        if (!can_follow(pass_at(g, p->in[i]), p, &z))
            return 0;
    for (int i = 0; i < p->nin && !g->st; i++) {
        const pnode x = *pass_at(g, p->in[i]);
        if (same_shape(&x, p))
            in[i] = reshaped(g, p->in[i], z.rank, z.shape);
        else
            in[i] = x.rank > 1 ? reshaped(g, p->in[i], 1, &x.shape[x.rank - 1]) : p->in[i];
    }
    pnode q = *p;
    q.rank = z.rank;
    q.shape = z.shape;
    q.in = in;
    uint32_t r = g->st ? 0 : pass_share(g, &q);
    const pnode back = {
        .op = GRAPH_RESHAPE, .kind = KIND_RESHAPE, .dtype = p->dtype, .rank = p->rank, .nin = 1, .param = PARAM_NONE, .shape = p->shape, .in = &r};
    return r ? pass_share(g, &back) : 0;
}
