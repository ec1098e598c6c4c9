/* lower_conv.c: a convolution as products that read their windows where they lie.
 *
 * The left factor is (..., H_out, W_out, taps down, taps across * C), joined to a matrix: neighbours along the last dim are neighbours in memory (pass/conv.c). A program makes a few pixels of one row
 * of the result, for all channels: for each row of taps, a product of a block whose rows overlap in memory with that row's part of the filter. Nothing is copied but the border, where there is one.
 */
#include "exec.h"

enum { MOST_PIXELS = 16, FEW_PIXELS = 6, PIXELS = 14, STRIP_BYTES = 256, MOST_CHANNELS = 256 };

/* The windows that x joins to a matrix, or NULL. */
static const pnode *windows_of(const pgraph *g, const pnode *x)
{
    const pnode *w = x->kind == KIND_RESHAPE ? pass_at(g, x->in[0]) : NULL;
    if (!w || w->kind != KIND_WINDOW || x->rank != 2 || w->rank < 4)
        return NULL;
    for (int i = 0; i < w->rank; i++)
        if (!dim_known(w->shape[i]) || w->shape[i] == 0)
            return NULL;
    return x->shape[1] == w->shape[w->rank - 1] * w->shape[w->rank - 2] ? w : NULL;
}

bool conv_wanted(const pgraph *g, const pnode *p)
{
    const pnode *x = pass_at(g, p->in[0]);
    const eas_dtype dt = (eas_dtype)p->dtype;
    return p->rank == 2 && (dt == EAS_F32 || dt == EAS_F64) && x->dtype == dt && windows_of(g, x) && dim_known(p->shape[1]) &&
           p->shape[1] <= MOST_CHANNELS;
}

bool conv_rows(const fusion *f, const group *g)
{
    const pnode *p = g->kind == GROUP_MATMUL ? pass_at(f->g, g->core) : NULL;
    if (!p || !conv_wanted(f->g, p))
        return false;
    const uint32_t windows = pass_at(f->g, p->in[0])->in[0];
    return !fused_stored(f, p->in[0]) && !fused_stored(f, windows) && fused_stored(f, pass_at(f->g, windows)->in[0]);
}

/* Pixels of a row that a program makes: few enough for the generator to read them in place. */
static int64_t pixels_of(int64_t n)
{
    int64_t t = n < MOST_PIXELS ? n : MOST_PIXELS;
    while (n % t)
        t--;
    return t >= FEW_PIXELS || n <= MOST_PIXELS ? t : PIXELS;
}

typedef struct conv {
    const pnode *p, *w;
    uint32_t windows;
    int64_t outs, strip, wide, pixels, down, across; /* strip: of the channels that come out */
    lindex at[MAX_DIMS]; /* of the windows */
    lindex col;
} conv;

static eas_value row_of_taps(lowering *w, conv *c, eas_value tap, eas_value acc)
{
    lower *l = &w->l;
    const int r = c->w->rank;
    c->at[r - 2] = (lindex){tap, 0};
    c->at[r - 1] = (lindex){low_lanes(l, 1, c->across), 0};
    eas_value k = low_lanes(l, 0, c->across);
    k = tap ? low_bin(l, "add", low_bin(l, "mul", tap, low_int(l, c->across)), k) : k;
    eas_value x = eas_broadcast(l->b, low_value(l, c->windows, c->at, NULL), 2, (int64_t[]){c->pixels, c->across});
    eas_value y = eas_broadcast(l->b, low_value(l, c->p->in[1], (lindex[]){{k, 0}, c->col}, NULL), 2, (int64_t[]){c->across, c->strip});
    return eas_matmul(l->b, x, y, acc);
}

/* Even strips of whole vectors, where one would be too wide. */
static int64_t strip_of(int64_t n, int64_t most)
{
    const int64_t strips = (n + most - 1) / most, even = ((n + strips - 1) / strips + 15) / 16 * 16;
    return even < n ? even : n;
}

static lindex columns(lowering *w, const conv *c)
{
    lower *l = &w->l;
    eas_value v = low_lanes(l, 1, c->strip);
    w->use->grid[2] = (c->outs + c->strip - 1) / c->strip;
    if (c->strip < c->outs) {
        eas_value first = low_bin(l, "mul", eas_program_id(l->b, 2), low_int(l, c->strip));
        v = low_bin(l, "add", c->outs % c->strip ? low_bin(l, "min", first, low_int(l, c->outs - c->strip)) : first, v);
    }
    return (lindex){v, 0};
}

void lower_conv(lowering *w)
{
    lower *l = &w->l;
    conv c = {.p = pass_at(l->g, l->grp->core)};
    c.windows = pass_at(l->g, c.p->in[0])->in[0];
    c.w = pass_at(l->g, c.windows);
    const int r = c.w->rank;
    c.outs = c.p->shape[1];
    c.wide = c.w->shape[r - 3];
    c.down = c.w->shape[r - 2];
    c.across = c.w->shape[r - 1];
    c.pixels = pixels_of(c.wide);
    c.strip = strip_of(c.outs, STRIP_BYTES / (int64_t)eas_dtype_size((eas_dtype)c.p->dtype));
    l->nblock = 2;
    w->use->grid[0] = (c.wide + c.pixels - 1) / c.pixels;
    w->use->grid[1] = low_spread(l, 1, r - 3, c.w->shape, 0, c.at);
    eas_value first = low_bin(l, "mul", eas_program_id(l->b, 0), low_int(l, c.pixels)), iv, now;
    if (c.wide % c.pixels) /* the last ones begin early enough for all to be there: some are computed twice, to the same bits */
        first = low_bin(l, "min", first, low_int(l, c.wide - c.pixels));
    c.at[r - 3] = (lindex){low_bin(l, "add", first, low_lanes(l, 0, c.pixels)), 0};
    c.col = columns(w, &c);
    eas_value acc = matmul_sums(l, (eas_dtype)c.p->dtype, c.pixels, c.strip);
    if (c.down == 1) {
        acc = row_of_taps(w, &c, 0, acc);
    } else {
        uint32_t mark = low_mark(l);
        eas_loop_begin(l->b, low_int(l, 0), low_int(l, c.down), low_int(l, 1), 1, &acc, &iv, &now);
        eas_value next = row_of_taps(w, &c, iv, now);
        eas_loop_end(l->b, 1, &next, &acc);
        low_forget(l, mark);
    }
    eas_value row = low_bin(l, "mul", eas_program_id(l->b, 1), low_int(l, c.wide));
    matmul_store(w, acc, (lindex){low_bin(l, "add", row, c.at[r - 3].v), 0}, c.col);
}
