/* pads.c: a sum of zero-padded parts that fill one dim side by side is a concatenation.
 *
 * The gradient of a tensor that was split is recorded as a sum: the cotangent of each part, padded with zeros
 * to the size of the whole. As a sum every element reads all parts and adds zeros to one of them; as a
 * concatenation (exec/lower_concat.c) it reads its own part, and the part's computation happens in the same
 * kernel.
 *
 * Bits: an element of the sum is x + 0.0, whatever the number of parts, and that differs from x where x is
 * -0.0. So the parts of a concatenation of floats are x + 0.0.
 */
#include "pass.h"

#include <math.h>

enum { MOST_PARTS = 32 };

typedef struct part {
    uint32_t x;
    int64_t start, size;
} part;

typedef struct parts {
    const pnode *whole;
    int dim; /* along which all of them are padded; -1: not known yet */
    int n;
    part at[MOST_PARTS];
} parts;

/* The dim along which p is padded with 0.0, if it is one dim of known size; -1: p is anything else. */
static int padded_dim(const pgraph *g, const pnode *p)
{
    double fill;
    int dim = -1;
    if (p->op != GRAPH_PAD_CONSTANT || !pass_is_const(g, p->in[1], &fill) || fill != 0 || signbit(fill))
        return -1;
    const pnode *x = pass_at(g, p->in[0]);
    for (int d = 0; d < p->rank; d++) {
        if (x->shape[d] == p->shape[d])
            continue;
        if (dim >= 0 || !dim_known(p->shape[d]) || !dim_known(x->shape[d]) || !dim_known(p->words[d]))
            return -1;
        dim = d;
    }
    return dim;
}

/* Collects the parts of node i, which is padded or a sum that nothing else reads; false: it is neither. */
static bool collect(const pgraph *g, uint32_t i, parts *s)
{
    const pnode *p = pass_at(g, i);
    if (p->dtype != s->whole->dtype || !pass_same_shape(p, s->whole))
        return false;
    if (p->op == GRAPH_ADD)
        return !p->shared && collect(g, p->in[0], s) && collect(g, p->in[1], s);
    const int dim = padded_dim(g, p);
    if (dim < 0 || s->n == MOST_PARTS || (s->dim >= 0 && s->dim != dim))
        return false;
    s->dim = dim;
    s->at[s->n++] = (part){p->in[0], p->words[dim], pass_at(g, p->in[0])->shape[dim]};
    return true;
}

static int by_start(const void *a, const void *b)
{
    const int64_t x = ((const part *)a)->start, y = ((const part *)b)->start;
    return (x > y) - (x < y);
}

/* Do the parts fill the dim, each element once? */
static bool fills(parts *s)
{
    int64_t end = 0;
    qsort(s->at, (size_t)s->n, sizeof *s->at, by_start);
    for (int k = 0; k < s->n; k++) {
        if (s->at[k].start != end)
            return false;
        end += s->at[k].size;
    }
    return end == s->whole->shape[s->dim];
}

/* x + 0.0: -0.0 becomes 0.0 as it does in the sum. */
static uint32_t plus_zero(pgraph *g, uint32_t x)
{
    pnode q = *pass_at(g, x);
    if (!dtype_is_float((eas_dtype)q.dtype))
        return x;
    const uint32_t in[2] = {x, pass_const(g, (eas_dtype)q.dtype, 0)};
    pnode sum = {.op = GRAPH_ADD,
                 .kind = KIND_MAP,
                 .dtype = q.dtype,
                 .rank = q.rank,
                 .nin = 2,
                 .param = PARAM_NONE,
                 .shape = q.shape,
                 .in = in};
    return in[1] ? pass_add(g, &sum) : 0;
}

uint32_t pass_join_pads(pgraph *g, const pnode *p)
{
    parts s = {.whole = p, .dim = -1};
    if (p->dtype == EAS_BOOL || !collect(g, p->in[0], &s) || !collect(g, p->in[1], &s) || !fills(&s))
        return 0;
    uint32_t in[MOST_PARTS];
    for (int k = 0; k < s.n && !g->st; k++)
        in[k] = plus_zero(g, s.at[k].x);
    const int64_t axis = s.dim;
    const pnode joined = {.op = GRAPH_CONCATENATE,
                          .kind = KIND_CONCAT,
                          .dtype = p->dtype,
                          .rank = p->rank,
                          .nin = (uint16_t)s.n,
                          .nwords = 1,
                          .param = PARAM_NONE,
                          .shape = p->shape,
                          .words = &axis,
                          .in = in};
    return g->st ? 0 : pass_add(g, &joined);
}
