/* grid.c: how many programs a launch has. */
#include "kernel.h"

static int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

static eas_status want_size(const eas_kernel *k, const char *what, int64_t n)
{
    return n < 0 ? base_fail(EAS_ERR_VALUE, "kernel %s: %s is %lld; a size cannot be negative", k->ir->name,
                             what, (long long)n)
                 : EAS_OK;
}

static eas_status given(const eas_kernel *k, const eas_launch *o, int64_t grid[3])
{
    for (int i = 0; i < 3; i++) {
        grid[i] = o->grid[i];
        if (grid[i] < 0)
            return base_fail(EAS_ERR_VALUE, "kernel %s: _grid[%d] is %lld; it cannot be negative",
                             k->ir->name, i, (long long)grid[i]);
    }
    return EAS_OK;
}

static eas_status line(const eas_kernel *k, const eas_arg *args, const eas_launch *o, int64_t grid[3])
{
    int64_t n = 1;
    const char *what = "_nthreads";
    if (o && o->has_nthreads)
        n = o->nthreads;
    else if (o && o->has_shape)
        for (int i = 0; i < o->nshape; i++)
            n *= o->shape[i];
    else if (k->size_n >= 0)
        n = args[k->size_n].v.i, what = "N";
    else
        return base_fail(
            EAS_ERR_VALUE,
            "kernel %s: the grid is not known; pass _grid or _nthreads, or give the kernel a scalar argument N",
            k->ir->name);
    eas_status st = want_size(k, what, n);
    grid[0] = st ? 0 : ceil_div(n, k->info.block);
    return st;
}

static eas_status plane(const eas_kernel *k, const eas_arg *args, const eas_launch *o, int64_t grid[3])
{
    int64_t w, h, d = 1;
    bool deep = k->info.naxes == 3;
    if (o && o->has_shape) {
        int need = deep ? 3 : 2;
        if (o->nshape < need)
            return base_fail(EAS_ERR_VALUE, "kernel %s: _shape needs %d dimensions, got %d", k->ir->name,
                             need, o->nshape);
        w = o->shape[o->nshape - 1];
        h = o->shape[o->nshape - 2];
        d = deep ? o->shape[o->nshape - 3] : 1;
    } else if (k->size_w >= 0 && k->size_h >= 0 && (!deep || k->size_d >= 0)) {
        w = args[k->size_w].v.i;
        h = args[k->size_h].v.i;
        d = deep ? args[k->size_d].v.i : 1;
    } else {
        return base_fail(
            EAS_ERR_VALUE,
            "kernel %s uses %d grid axes and the grid is not known; pass _grid or _shape, or give the kernel scalar arguments %sH and W",
            k->ir->name, k->info.naxes, deep ? "D, " : "");
    }
    eas_status st = want_size(k, "W", w);
    if (!st)
        st = want_size(k, "H", h);
    if (!st)
        st = want_size(k, "D", d);
    if (st)
        return st;
    grid[0] = ceil_div(w, k->info.block);
    grid[1] = h;
    grid[2] = d;
    return EAS_OK;
}

eas_status kernel_grid(const eas_kernel *k, const eas_arg *args, const eas_launch *o, int64_t grid[3])
{
    grid[0] = grid[1] = grid[2] = 1;
    if (o && o->has_grid)
        return given(k, o, grid);
    return k->info.naxes == 1 ? line(k, args, o, grid) : plane(k, args, o, grid);
}
