/* live.c: launches of a live builder: its arguments, its grid, its programs in order.
 *
 * The grid of a kernel that was never traced follows from what the kernel says of itself: it is inferred when
 * the kernel asks, or when its first program is over. A launch that is empty whatever the kernel says runs
 * nothing. */
#include "kernel.h"

typedef struct live_launch {
    uint64_t slot[IR_MAX_PARAMS];
    int64_t count[IR_MAX_PARAMS];
    bool readonly[IR_MAX_PARAMS];
    eas_arg args[IR_MAX_PARAMS];
    eas_launch opts;
    eas_kernel sizes; /* only what the grid is inferred from */
    int64_t next;     /* program */
} live_launch;

/* The grid for a kernel of naxes axes and blocks of `block`. */
static eas_status infer(live_launch *l, int naxes, int64_t block, int64_t grid[3])
{
    l->sizes.info.naxes = naxes;
    l->sizes.info.block = block;
    return kernel_grid(&l->sizes, l->args, &l->opts, grid);
}

static eas_status grid_of(void *ctx, const eas_builder *b, int naxes, int64_t grid[3])
{
    return infer(ctx, naxes, eas_live_block(b), grid);
}

/* Would any kernel have a program to run? EAS_ERR_VALUE if no kernel's grid can be inferred. */
static eas_status any_program(live_launch *l, bool *any)
{
    eas_status first = EAS_OK;
    bool known = false;
    *any = false;
    for (int naxes = 3; naxes >= 1; naxes--) {
        int64_t grid[3];
        eas_status st = infer(l, naxes, 1, grid);
        if (!st) {
            known = true;
            *any |= grid[0] && grid[1] && grid[2];
        } else if (!first || naxes == 1) {
            first = st;
        }
    }
    return known ? EAS_OK : first;
}

static eas_status take_arg(const eas_ir *ir, int i, const eas_arg *a, live_launch *l)
{
    ir_type t = ir->vals[i + 1].type;
    bool buffer = t.kind == IR_BUF;
    if (buffer != (a->is_buffer != 0) || (a->dtype != t.dtype && (buffer || !dtype_is_float(t.dtype))))
        return base_fail(EAS_ERR_TYPE, "kernel %s, argument \"%s\": expected a %s of %s, got a %s of %s",
                         ir->name, ir->params[i].name, buffer ? "buffer" : "scalar", eas_dtype_name(t.dtype),
                         a->is_buffer ? "buffer" : "scalar", eas_dtype_name(a->dtype));
    if (buffer && (a->count < 0 || (a->count && !a->v.data)))
        return base_fail(EAS_ERR_VALUE, "kernel %s, argument \"%s\": no memory behind it", ir->name,
                         ir->params[i].name);
    l->args[i] = *a;
    l->readonly[i] = buffer && (a->flags & EAS_ARG_READONLY);
    l->count[i] = buffer ? a->count : 0;
    if (buffer)
        l->slot[i] = (uint64_t)(uintptr_t)a->v.data;
    else if (dtype_is_float(t.dtype))
        l->slot[i] =
            (uint64_t)ir_bits_from_double(t.dtype, dtype_is_float(a->dtype) ? a->v.f : (double)a->v.i);
    else
        l->slot[i] = (uint64_t)a->v.i;
    return EAS_OK;
}

eas_status eas_live_begin(eas_builder *b, const eas_arg *args, int nargs, const eas_launch *opts)
{
    NEED(b, EAS_ERR_HANDLE);
    if (eas_builder_status(b))
        return eas_builder_status(b);
    if (nargs != b->ir->nparams)
        return base_fail(EAS_ERR_TYPE, "kernel %s takes %d arguments, got %d", b->ir->name, b->ir->nparams,
                         nargs);
    if (graph_capturing())
        return base_fail(
            EAS_ERR_VALUE,
            "kernel %s: a launch that runs as plain Python (_interpret=True, EAS_INTERPRET) cannot be captured: it would run now and be missing "
            "from every replay. Leave _interpret out, or run it outside the capture",
            b->ir->name);
    live_launch *l = calloc(1, sizeof *l);
    if (!l)
        return base_fail_oom(sizeof *l);
    eas_status st = EAS_OK;
    for (int i = 0; i < nargs && !st; i++)
        st = take_arg(b->ir, i, &args[i], l);
    if (opts)
        l->opts = *opts;
    kernel_sizes(b->ir, &l->sizes);
    ir_live_host host = {.slot = l->slot,
                         .count = l->count,
                         .readonly = l->readonly,
                         .grid = grid_of,
                         .done = free,
                         .ctx = l,
                         .print = l->opts.print,
                         .print_ctx = l->opts.ctx};
    int64_t grid[3];
    if (!st)
        st = live_begin(b, &host);
    if (!st && l->opts.has_grid) /* the grid is known before the body has run */
        st = live_grid(b, grid);
    if (st && !live_host(b))
        free(l);
    return st;
}

int eas_live_next(eas_builder *b)
{
    NEED(b, 0);
    ir_live_host *h = live_host(b);
    live_launch *l = h ? h->ctx : NULL;
    int64_t pid[3] = {0}, grid[3];
    bool any = true;
    eas_status st = eas_builder_status(b);
    if (!st && !l)
        st = base_fail(EAS_ERR_VALUE, "not a live builder");
    if (!st && l->next)
        st = live_grid(b, grid);
    else if (!st)
        st = any_program(l, &any);
    if (st)
        return st;
    if (l->next) {
        pid[0] = l->next % grid[0];
        pid[1] = l->next / grid[0] % grid[1];
        pid[2] = l->next / grid[0] / grid[1];
        any = pid[2] < grid[2];
    }
    l->next++;
    st = any ? live_program(b, pid) : EAS_OK;
    return st ? (int)st : any;
}
