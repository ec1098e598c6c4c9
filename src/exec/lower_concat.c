/* lower_concat.c: many tensors one after the other: a kernel for each copies it to its place. */
#include "exec.h"

enum { LANES = 1024 };

void lower_concat(lowering *w)
{
    lower *l = &w->l;
    const pnode *p = pass_at(l->g, l->grp->core), *x = pass_at(l->g, p->in[w->part]);
    int axis = (int)p->words[0];
    eas_dim *grid = w->use->grid, start = concat_start(l->g, p, w->part);
    lindex at[MAX_DIMS] = {{0, 0}};
    eas_value ok;
    int last = x->rank - 1;
    l->nblock = 1;
    while (last > 0 && x->shape[last] == 1)
        last--;
    grid[0] = grid[2] = 1;
    if (x->shape[last] != 1)
        at[last] = low_lanes_of(l, 0, x->shape[last], LANES, &grid[0]);
    grid[1] = low_spread(l, 1, last, x->shape, 0, at);
    eas_value v = low_value(l, p->in[w->part], at, NULL);
    if (start != 0)
        at[axis].v = at[axis].v ? low_bin(l, "add", at[axis].v, low_dim(l, start)) : low_dim(l, start);
    eas_value off = low_offset(l, p->rank, p->shape, at, &ok);
    eas_builder_store(l->b, w->out[0], off, v, ok);
}
