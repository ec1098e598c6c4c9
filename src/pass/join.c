/* join.c: updates of a slice as concatenations.
 *
 * Where something changes along one axis only and no axis before that has more than one element, the result
 * is made of whole stretches of memory: what lies before the slice, the slice, what lies after it. A kernel
 * that concatenates copies each with programs of its own (exec/lower_concat.c), while an update decides for
 * each lane where it comes from.
 */
#include "pass.h"

enum { LEAST = 4096 }; /* with fewer elements the update is as fast */

/* The one axis along which x is smaller than p, if what is asked of it holds; else -1. */
static int changed_axis(const pnode *p, const pnode *x)
{
    int axis = -1;
    int64_t count = 1;
    for (int d = 0; d < p->rank; d++) {
        if (!dim_known(p->shape[d]) || !dim_known(x->shape[d]) || !dim_known(p->words[d]))
            return -1;
        count *= p->shape[d];
        if (p->words[p->rank + d] != 1)
            return -1;
        if (p->shape[d] == x->shape[d])
            continue;
        if (axis >= 0)
            return -1;
        axis = d;
    }
    for (int d = 0; d < axis; d++)
        if (p->shape[d] != 1)
            return -1;
    return count >= LEAST ? axis : -1;
}

/* n elements of what is updated, from `start` on along the axis. */
static uint32_t stretch(pgraph *g, const pnode *p, int axis, int64_t start, int64_t n)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t words[2 * GRAPH_MAX_RANK];
    for (int d = 0; d < p->rank; d++) {
        shape[d] = d == axis ? n : p->shape[d];
        words[d] = d == axis ? start : 0;
        words[p->rank + d] = 1;
    }
    pnode q = {.op = GRAPH_SLICE,
               .kind = KIND_SLICE,
               .dtype = p->dtype,
               .rank = p->rank,
               .nwords = (uint16_t)(2 * p->rank),
               .nin = 1,
               .param = PARAM_NONE,
               .shape = shape,
               .words = words,
               .in = p->in};
    return pass_add(g, &q);
}

uint32_t pass_as_concat(pgraph *g, const pnode *p)
{
    const uint32_t inside = p->in[1];
    const pnode x = *pass_at(g, inside);
    const int axis = changed_axis(p, &x);
    uint32_t in[3];
    int n = 0;
    if (axis < 0)
        return 0;
    const int64_t start = p->words[axis], end = start + x.shape[axis], all = p->shape[axis];
    if (x.shape[axis] == 0 || start < 0 || end > all)
        return 0;
    if (start > 0)
        in[n++] = stretch(g, p, axis, 0, start);
    in[n++] = inside;
    if (end < all)
        in[n++] = stretch(g, p, axis, end, all - end);
    int64_t word = axis;
    pnode q = {.op = GRAPH_CONCATENATE,
               .kind = KIND_CONCAT,
               .dtype = p->dtype,
               .rank = p->rank,
               .nwords = 1,
               .nin = (uint16_t)n,
               .param = PARAM_NONE,
               .shape = p->shape,
               .words = &word,
               .in = in};
    return g->st ? 0 : pass_add(g, &q);
}
