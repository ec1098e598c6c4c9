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
    eas_value rest = 0, ok;
    bool lanes = false;
    l->nblock = 1;
    grid[0] = grid[1] = grid[2] = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        eas_dim n = x->shape[d];
        if (n == 1)
            continue;
        if (!lanes) {
            int64_t many = dim_known(n) && n < LANES ? (n ? n : 1) : LANES;
            eas_value first = low_bin(l, "mul", eas_program_id(l->b, 0), eas_const_typed(l->b, EAS_I64, 0, many)), v = low_bin(l, "add", first, low_lanes(l, 0, many));
            grid[0] = ceil_dim(n, many);
            at[d] = (lindex){v, dim_known(n) && n % many == 0 ? 0 : low_bin(l, "lt", v, low_dim(l, n))};
            lanes = true;
            continue;
        }
        rest = rest ? rest : eas_program_id(l->b, 1);
        at[d].v = low_bin(l, "mod", rest, low_dim(l, n));
        rest = low_bin(l, "floordiv", rest, low_dim(l, n));
        eas_dim_apply(EAS_DIM_MUL, grid[1], n, &grid[1]);
    }
    eas_value v = low_value(l, p->in[w->part], at, NULL);
    if (start != 0)
        at[axis].v = at[axis].v ? low_bin(l, "add", at[axis].v, low_dim(l, start)) : low_dim(l, start);
    eas_value off = low_offset(l, p->rank, p->shape, at, &ok);
    eas_store(l->b, w->out[0], off, v, ok);
}
