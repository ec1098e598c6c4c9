/* rows.c: a sum of products x_b^T y_b over a batch is one product of all their rows: the gradient of a matrix
 * that many rows were multiplied with.
 *
 * The rows of x and y are joined by a reshape of their memory. The reshape is not moved in front of the nodes
 * that compute x and y, since other nodes use these in their own shape.
 */
#include "pass.h"

static bool swaps_last(const pnode *p)
{
    bool swaps = p->kind == KIND_PERMUTE && p->rank >= 2 && p->words[p->rank - 1] == p->rank - 2 &&
                 p->words[p->rank - 2] == p->rank - 1;
    for (int i = 0; i + 2 < p->rank && swaps; i++)
        swaps = p->words[i] == i;
    return swaps;
}

/* The axes of p are all dims in front of the last two. */
static bool over_batch(const pnode *p, int rank)
{
    uint32_t axes = 0;
    for (int i = 1; i < p->nwords; i++)
        axes |= 1u << p->words[i];
    return rank > 2 && axes == (1u << (rank - 2)) - 1;
}

static uint32_t joined(pgraph *g, uint32_t x)
{
    const pnode *p = pass_at(g, x);
    eas_dim shape[2] = {dim_product(p->rank - 1, p->shape), p->shape[p->rank - 1]};
    if (shape[0] == DIM_NONE)
        return 0;
    pnode r = {.op = GRAPH_RESHAPE,
               .kind = KIND_RESHAPE,
               .dtype = p->dtype,
               .rank = 2,
               .nin = 1,
               .param = PARAM_NONE,
               .shape = shape,
               .in = &x};
    return pass_share(g, &r);
}

uint32_t pass_join_rows(pgraph *g, const pnode *p)
{
    const pnode *m = pass_at(g, p->in[0]);
    if (p->op != GRAPH_REDUCE_SUM || m->kind != KIND_MATMUL || p->dtype != m->dtype ||
        !over_batch(p, m->rank) || !swaps_last(pass_at(g, m->in[0])))
        return 0;
    const uint32_t x = pass_at(g, m->in[0])->in[0], y = m->in[1];
    const pnode *a = pass_at(g, x), *b = pass_at(g, y);
    const eas_dim shape[2] = {m->shape[m->rank - 2], m->shape[m->rank - 1]};
    if (a->rank != m->rank || b->rank != m->rank ||
        memcmp(a->shape, b->shape, sizeof *a->shape * (size_t)(m->rank - 1)) ||
        !dtype_is_float((eas_dtype)m->dtype))
        return 0;
    pnode q = *m;
    const int rank = p->rank;
    eas_dim want[GRAPH_MAX_RANK];
    memcpy(want, p->shape, sizeof *want * (size_t)rank);
    uint32_t rows = joined(g, x), other = joined(g, y), in[2] = {rows ? pass_turned(g, rows) : 0, other};
    q.rank = 2;
    q.shape = shape;
    q.in = in;
    uint32_t r = in[0] && in[1] ? pass_add(g, &q) : 0;
    pnode back = {.op = GRAPH_RESHAPE,
                  .kind = KIND_RESHAPE,
                  .dtype = p->dtype,
                  .rank = (uint8_t)rank,
                  .nin = 1,
                  .param = PARAM_NONE,
                  .shape = want,
                  .in = &r};
    return r && rank != 2 ? pass_add(g, &back) : r;
}
