/* shape.c: element-wise nodes are computed in the shape of what they follow.
 *
 * A convolution is a product of two matrices whose result is reshaped to images; the bias and the activation
 * that follow see images. Computed in the shape of the matrix they are part of the product's kernel (fuse.c),
 * so a reshape of a product moves behind the element-wise nodes that follow it. So does one that joins the
 * dims of a permuted tensor: behind it, an index would be taken apart again with divisions.
 */
#include "pass.h"

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
    if (pass_same_shape(x, p))
        return x->kind == KIND_MAP || x->kind == KIND_CAST || x->kind == KIND_RESHAPE ||
               (x->kind == KIND_LEAF && !x->nwords);
    return along_last(x, p) && (!x->rank || x->shape[x->rank - 1] == 1 ||
                                (z->rank && z->shape[z->rank - 1] == p->shape[p->rank - 1]));
}

/* Is z element-wise over a product of its own shape? */
static bool over_product(const pgraph *g, const pnode *z, int depth)
{
    if (z->kind == KIND_MATMUL)
        return true;
    if (depth == 0 || (z->kind != KIND_MAP && z->kind != KIND_CAST))
        return false;
    for (int i = 0; i < z->nin; i++) {
        const pnode *x = pass_at(g, z->in[i]);
        if (pass_same_shape(x, z) && over_product(g, x, depth - 1))
            return true;
    }
    return false;
}

/* Is x a reshape that should come after p instead of before it? */
static bool leads(const pgraph *g, const pnode *x, const pnode *p)
{
    if (x->kind != KIND_RESHAPE || !pass_same_shape(x, p))
        return false;
    const pnode *z = pass_at(g, x->in[0]);
    const bool joins = z->rank > x->rank;
    if (z->kind == KIND_MAP || z->kind == KIND_CAST)
        return !z->shared || over_product(g, z, 6);
    return z->kind == KIND_MATMUL || (z->kind == KIND_PERMUTE && joins);
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
        if (pass_same_shape(&x, p))
            in[i] = pass_reshaped(g, p->in[i], z.rank, z.shape);
        else
            in[i] = x.rank > 1 ? pass_reshaped(g, p->in[i], 1, &x.shape[x.rank - 1]) : p->in[i];
    }
    pnode q = *p;
    q.rank = z.rank;
    q.shape = z.shape;
    q.in = in;
    uint32_t r = g->st ? 0 : pass_share(g, &q);
    const pnode back = {.op = GRAPH_RESHAPE,
                        .kind = KIND_RESHAPE,
                        .dtype = p->dtype,
                        .rank = p->rank,
                        .nin = 1,
                        .param = PARAM_NONE,
                        .shape = p->shape,
                        .in = &r};
    return r ? pass_share(g, &back) : 0;
}
