/* lower_conv.c: a convolution as products that read their windows where they lie.
 *
 * The left factor is (..., H_out, W_out, taps down, taps across * C), joined to a matrix: neighbours along
 * the last dim are neighbours in memory (pass/conv.c). A program makes a few pixels of one row of the result,
 * for all channels: for each row of taps, a product of a block whose rows overlap in memory with that row's
 * part of the filter. Nothing is copied but the border, where there is one.
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
    return p->rank == 2 && (dt == EAS_F32 || dt == EAS_F64) && x->dtype == dt && windows_of(g, x) &&
           dim_known(p->shape[1]) && p->shape[1] <= MOST_CHANNELS;
}

bool conv_rows(const fusion *f, const group *g)
{
    const pnode *p = g->kind == GROUP_MATMUL ? pass_at(f->g, g->core) : NULL;
    if (!p || !conv_wanted(f->g, p))
        return false;
    const uint32_t windows = pass_at(f->g, p->in[0])->in[0];
    return !fused_stored(f, p->in[0]) && !fused_stored(f, windows) &&
           fused_stored(f, pass_at(f->g, windows)->in[0]);
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
    eas_value x = eas_builder_broadcast(l->b, low_value(l, c->windows, c->at, NULL), 2,
                                        (int64_t[]){c->pixels, c->across});
    eas_value y = eas_builder_broadcast(l->b, low_value(l, c->p->in[1], (lindex[]){{k, 0}, c->col}, NULL), 2,
                                        (int64_t[]){c->across, c->strip});
    return eas_builder_matmul(l->b, x, y, acc);
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
        eas_value first = low_bin(l, "mul", eas_builder_program_id(l->b, 2), low_int(l, c->strip));
        v = low_bin(l, "add",
                    c->outs % c->strip ? low_bin(l, "min", first, low_int(l, c->outs - c->strip)) : first, v);
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
    eas_value first = low_bin(l, "mul", eas_builder_program_id(l->b, 0), low_int(l, c.pixels)), iv, now;
    /* the last ones begin early enough for all to be there: some are computed twice, to the same bits */
    if (c.wide % c.pixels)
        first = low_bin(l, "min", first, low_int(l, c.wide - c.pixels));
    c.at[r - 3] = (lindex){low_bin(l, "add", first, low_lanes(l, 0, c.pixels)), 0};
    c.col = columns(w, &c);
    eas_value acc = matmul_sums(l, (eas_dtype)c.p->dtype, c.pixels, c.strip);
    if (c.down == 1) {
        acc = row_of_taps(w, &c, 0, acc);
    } else {
        uint32_t mark = low_mark(l);
        eas_builder_loop_begin(l->b, low_int(l, 0), low_int(l, c.down), low_int(l, 1), 1, &acc, &iv, &now);
        eas_value next = row_of_taps(w, &c, iv, now);
        eas_builder_loop_end(l->b, 1, &next, &acc);
        low_forget(l, mark);
    }
    eas_value row = low_bin(l, "mul", eas_builder_program_id(l->b, 1), low_int(l, c.wide));
    matmul_store(w, acc, (lindex){low_bin(l, "add", row, c.at[r - 3].v), 0}, c.col);
}

/* ---- the gradient of a filter: windows^T @ what came back to the pixels ----
 *
 * A program makes the rows of one row of taps, or a part of them, for a strip of channels: it goes through
 * the images of its part (pass/conv.c) row by row, and multiplies a block of pixels, transposed, with what
 * came back to them. Neither windows nor their transpose are ever in memory.
 */

enum { MOST_ROWS = 192, GRAD_PIXELS = 64, FEW_GRAD_PIXELS = 7 };

static const pnode *gradient_windows(const pgraph *g, const pnode *p)
{
    const pnode *t = p->kind == KIND_MATMUL && p->rank == 3 ? pass_at(g, p->in[0]) : NULL;
    if (!t || t->kind != KIND_PERMUTE || t->words[0] != 0 || t->words[1] != 2)
        return NULL;
    const pnode *x = pass_at(g, t->in[0]), *w = x->kind == KIND_RESHAPE ? pass_at(g, x->in[0]) : NULL;
    if (!w || w->kind != KIND_WINDOW || w->rank < 5)
        return NULL;
    for (int i = 0; i < w->rank; i++)
        if (!dim_known(w->shape[i]) || w->shape[i] == 0)
            return NULL;
    return x->shape[2] == w->shape[w->rank - 1] * w->shape[w->rank - 2] ? w : NULL;
}

/* The largest divisor of n that is at most `most`. */
static int64_t divisor(int64_t n, int64_t most)
{
    int64_t d = n < most ? n : most;
    while (n % d)
        d--;
    return d;
}

bool conv_gradient_wanted(const pgraph *g, const pnode *p)
{
    const pnode *w = gradient_windows(g, p);
    const eas_dtype dt = (eas_dtype)p->dtype;
    return w && (dt == EAS_F32 || dt == EAS_F64) && w->dtype == dt && pass_at(g, p->in[1])->dtype == dt &&
           divisor(w->shape[w->rank - 3], GRAD_PIXELS) >= FEW_GRAD_PIXELS;
}

bool conv_gradient_rows(const fusion *f, const group *g)
{
    const pnode *p = g->kind == GROUP_MATMUL ? pass_at(f->g, g->core) : NULL;
    if (!p || !conv_gradient_wanted(f->g, p))
        return false;
    const uint32_t x = pass_at(f->g, p->in[0])->in[0], windows = pass_at(f->g, x)->in[0];
    return !fused_stored(f, p->in[0]) && !fused_stored(f, x) && !fused_stored(f, windows) &&
           fused_stored(f, pass_at(f->g, windows)->in[0]);
}

typedef struct filter {
    const pnode *p, *w;
    uint32_t windows;
    /* images: of a part; rows: of the result, in one program */
    int64_t images, high, wide, across, rows, strip, pixels;
    lindex at[MAX_DIMS]; /* of the windows */
    lindex part, col;
    eas_value down, tap; /* which row of taps, and which of its elements come first */
} filter;

/* The image with this number, as leading dims of the windows. */
static void set_image(lower *l, filter *c, eas_value image)
{
    for (int d = c->w->rank - 5; d >= 0; d--) {
        c->at[d] = (lindex){d ? low_bin(l, "mod", image, low_int(l, c->w->shape[d])) : image, 0};
        image = d ? low_bin(l, "floordiv", image, low_int(l, c->w->shape[d])) : image;
    }
}

/* One block of pixels: pixel `first` of row `row`, which counts the rows of all images of the part. */
static eas_value block_of_pixels(lowering *w, filter *c, eas_value row, eas_value first, eas_value acc)
{
    lower *l = &w->l;
    const int r = c->w->rank;
    eas_value image = low_bin(l, "floordiv", row, low_int(l, c->high));
    if (c->part.v)
        image = low_bin(l, "add", low_bin(l, "mul", c->part.v, low_int(l, c->images)), image);
    set_image(l, c, image);
    c->at[r - 4] = (lindex){low_bin(l, "mod", row, low_int(l, c->high)), 0};
    c->at[r - 3] = (lindex){low_bin(l, "add", first, low_lanes(l, 0, c->pixels)), 0};
    c->at[r - 2] = (lindex){c->down, 0};
    c->at[r - 1] = (lindex){low_bin(l, "add", c->tap, low_lanes(l, 1, c->rows)), 0};
    eas_value x = eas_builder_broadcast(l->b, low_value(l, c->windows, c->at, NULL), 2,
                                        (int64_t[]){c->pixels, c->rows});
    eas_value k = low_bin(l, "add", low_bin(l, "add", low_bin(l, "mul", row, low_int(l, c->wide)), first),
                          low_lanes(l, 0, c->pixels));
    eas_value y = low_value(l, c->p->in[1], (lindex[]){c->part, {k, 0}, c->col}, NULL);
    return eas_builder_matmul(l->b, eas_builder_trans(l->b, x, NULL),
                              eas_builder_broadcast(l->b, y, 2, (int64_t[]){c->pixels, c->strip}), acc);
}

void lower_conv_gradient(lowering *w)
{
    lower *l = &w->l;
    filter c = {.p = pass_at(l->g, l->grp->core)};
    c.w = gradient_windows(l->g, c.p);
    c.windows = pass_at(l->g, pass_at(l->g, c.p->in[0])->in[0])->in[0];
    const int r = c.w->rank;
    const int64_t outs = c.p->shape[2];
    c.high = c.w->shape[r - 4];
    c.wide = c.w->shape[r - 3];
    c.across = c.w->shape[r - 1];
    c.images = pass_at(l->g, c.p->in[1])->shape[1] / (c.high * c.wide);
    c.rows = divisor(c.across, MOST_ROWS);
    c.pixels = divisor(c.wide, GRAD_PIXELS);
    c.strip = strip_of(outs, STRIP_BYTES / (int64_t)eas_dtype_size((eas_dtype)c.p->dtype));
    l->nblock = 2;
    matmul_batch(w, c.p, &c.part);
    const int64_t bands = c.across / c.rows, strips = (outs + c.strip - 1) / c.strip;
    w->use->grid[0] = strips;
    w->use->grid[1] = c.w->shape[r - 2] * bands;
    eas_value band = eas_builder_program_id(l->b, 1);
    c.down = low_bin(l, "floordiv", band, low_int(l, bands));
    c.tap = low_bin(l, "mul", low_bin(l, "mod", band, low_int(l, bands)), low_int(l, c.rows));
    eas_value first = low_bin(l, "mul", eas_builder_program_id(l->b, 0), low_int(l, c.strip)),
              col = low_lanes(l, 1, c.strip);
    /* some are computed twice, to the same bits */
    first = outs % c.strip ? low_bin(l, "min", first, low_int(l, outs - c.strip)) : first;
    c.col = (lindex){strips > 1 ? low_bin(l, "add", first, col) : col, 0};
    eas_value acc = matmul_sums(l, (eas_dtype)c.p->dtype, c.rows, c.strip), row, now, x, inner;
    const uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), low_int(l, c.images * c.high), low_int(l, 1), 1, &acc, &row,
                           &now);
    if (c.pixels == c.wide) {
        inner = block_of_pixels(w, &c, row, low_int(l, 0), now);
    } else {
        const uint32_t deeper = low_mark(l);
        eas_builder_loop_begin(l->b, low_int(l, 0), low_int(l, c.wide), low_int(l, c.pixels), 1, &now, &x,
                               &inner);
        eas_value next = block_of_pixels(w, &c, row, x, inner);
        eas_builder_loop_end(l->b, 1, &next, &inner);
        low_forget(l, deeper);
    }
    eas_builder_loop_end(l->b, 1, &inner, &acc);
    low_forget(l, mark);
    eas_value at = low_bin(l, "add", low_bin(l, "mul", band, low_int(l, c.rows)), low_lanes(l, 0, c.rows));
    matmul_store(w, acc, (lindex){at, 0}, c.col);
}
