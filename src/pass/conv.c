/* conv.c: the windows of a convolution as rows of a matrix that need no copy, in the product and in the
 * gradient of its filter.
 *
 * Images lie as (..., H, W, C), so the elements of one row of a window are neighbours in memory: that row is
 * a window over one dim of W * C elements. Then the left factor of a convolution's product is (..., H_out,
 * W_out, taps down, taps across * C), joined to two dims, and lowering reads its rows where they lie
 * (lower_conv.c).
 */
#include "pass.h"

typedef struct windows {
    const pnode *w, *x; /* w: (..., H_out, W_out, C, taps down, taps across) */
    uint32_t image;
    int axis; /* of H */
    int64_t channels, down, across;
} windows;

static bool all_known(const pnode *x)
{
    for (int i = 0; i < x->rank; i++)
        if (!dim_known(x->shape[i]))
            return false;
    return true;
}

/* Windows over height and width, neighbours across. */
static bool is_windows(const pgraph *g, const pnode *w, windows *out)
{
    if (w->kind != KIND_WINDOW || w->words[0] != 2 || w->words[4] != w->words[1] + 1 || w->words[6] != 1 ||
        !all_known(w))
        return false;
    const pnode *x = pass_at(g, w->in[0]);
    const int axis = (int)w->words[1];
    if (axis + 3 != x->rank || w->rank != x->rank + 2 || !all_known(x))
        return false;
    *out = (windows){w, x, w->in[0], axis, x->shape[axis + 2], w->shape[w->rank - 2], w->shape[w->rank - 1]};
    return true;
}

/* The dim of the windows that comes n-th in the order that a product reads: taps before channels. */
static int wanted_dim(const windows *v, int n)
{
    const int last = v->w->rank - 1;
    return n < v->axis + 2 ? n : n == last ? v->axis + 2 : n + 1;
}

/* Is p, but for dims of 1, the windows' dims in that order? The dims of z, that p exchanges, are those of the
 * windows with some of 1 between them. */
static bool in_order(const windows *v, const pnode *p, const pnode *z)
{
    int from[GRAPH_MAX_RANK], k = 0, n = 0;
    for (int d = 0; d < z->rank; d++) {
        from[d] = -1;
        if (z->shape[d] == 1)
            continue;
        while (k < v->w->rank && v->w->shape[k] == 1)
            k++;
        if (k == v->w->rank || v->w->shape[k] != z->shape[d])
            return false;
        from[d] = k++;
    }
    for (int d = 0; d < p->rank; d++) {
        const int have = from[p->words[d]];
        if (have < 0)
            continue;
        while (n < v->w->rank && v->w->shape[wanted_dim(v, n)] == 1)
            n++;
        if (n == v->w->rank || wanted_dim(v, n++) != have)
            return false;
    }
    return true;
}

static uint32_t viewed(pgraph *g, uint16_t op, uint32_t x, int rank, const eas_dim *shape, int nwords,
                       const int64_t *words)
{
    pnode p = {.op = op,
               .kind = graph_rows[op].kind,
               .dtype = pass_at(g, x)->dtype,
               .rank = (uint8_t)rank,
               .nin = 1,
               .nwords = (uint16_t)nwords,
               .param = PARAM_NONE,
               .shape = shape,
               .words = words,
               .in = &x};
    return x ? pass_add(g, &p) : 0;
}

static uint32_t flat(pgraph *g, const pnode *p, const windows *v)
{
    eas_dim shape[GRAPH_MAX_RANK];
    const int axis = v->axis;
    const int64_t *old = v->w->words, words[] = {2, axis, old[2], old[3], axis + 1, old[5] * v->channels, 1},
                  channels = v->channels;
    eas_dim out[GRAPH_MAX_RANK];
    memcpy(out, v->w->shape, sizeof *out * (size_t)(axis + 2));
    out[axis + 2] = v->down;
    out[axis + 3] = v->across * channels;
    memcpy(shape, v->x->shape, sizeof *shape * (size_t)(axis + 1));
    shape[axis + 1] = v->x->shape[axis + 1] * channels;
    if (v->down == 1 && v->across == 1 && old[2] == 1 && old[5] == 1) /* every pixel as it is */
        return viewed(g, GRAPH_RESHAPE, v->image, 2, p->shape, 0, NULL);
    uint32_t x = viewed(g, GRAPH_RESHAPE, v->image, axis + 2, shape, 0, NULL);
    x = viewed(g, GRAPH_WINDOW, x, axis + 4, out, 7, words);
    return viewed(g, GRAPH_RESHAPE, x, 2, p->shape, 0, NULL);
}

uint32_t pass_flat_windows(pgraph *g, const pnode *p)
{
    const pnode *t = pass_at(g, p->in[0]);
    windows v;
    if (p->rank != 2 || t->kind != KIND_PERMUTE)
        return 0;
    const pnode *z = pass_at(g, t->in[0]);
    if (!is_windows(g, z->kind == KIND_RESHAPE ? pass_at(g, z->in[0]) : z, &v) || !in_order(&v, t, z) ||
        p->shape[1] != v.down * v.across * v.channels)
        return 0;
    const pnode w = *v.w, x = *v.x; /* pass_add moves the nodes */
    v.w = &w;
    v.x = &x;
    return flat(g, p, &v);
}

/* ---- the gradient of a filter ----
 *
 * It is the product of the transposed windows with what came back to the pixels: few results, each a sum over
 * all pixels of all images. Groups of images are summed by products of their own, which read the windows
 * where they lie (lower_conv.c), and then added up: how many follows from the sizes alone, never from the
 * number of threads.
 */

enum { MOST_PARTS = 8 };

static bool turns_matrix(const pnode *p)
{
    return p->kind == KIND_PERMUTE && p->rank == 2 && p->words[0] == 1;
}

/* The windows that x joins to a matrix. */
static const pnode *joined_windows(const pgraph *g, const pnode *x)
{
    const pnode *w = x->kind == KIND_RESHAPE ? pass_at(g, x->in[0]) : NULL;
    return w && w->kind == KIND_WINDOW && w->rank >= 5 && all_known(w) &&
                   x->shape[1] == w->shape[w->rank - 1] * w->shape[w->rank - 2]
             ? w
             : NULL;
}

static int64_t parts_of(int64_t images)
{
    int64_t n = images < MOST_PARTS ? images : MOST_PARTS;
    while (images % n)
        n--;
    return n;
}

/* x, which is in memory, in another shape. The reshape is not moved in front of the nodes that compute x (as
 * pass_add would), since other nodes use x in its own shape. */
static uint32_t in_parts(pgraph *g, uint32_t x, const eas_dim *shape)
{
    while (pass_at(g, x)->kind == KIND_RESHAPE)
        x = pass_at(g, x)->in[0];
    const pnode *p = pass_at(g, x);
    if (p->kind == KIND_LEAF)
        return viewed(g, GRAPH_RESHAPE, x, 3, shape, 0, NULL);
    const pnode r = {.op = GRAPH_RESHAPE,
                     .kind = KIND_RESHAPE,
                     .dtype = p->dtype,
                     .rank = 3,
                     .nin = 1,
                     .param = PARAM_NONE,
                     .shape = shape,
                     .in = &x};
    return pass_share(g, &r);
}

uint32_t pass_filter_gradient(pgraph *g, const pnode *p)
{
    const pnode *t = pass_at(g, p->in[0]);
    if (p->rank != 2 || !turns_matrix(t) || !all_known(p))
        return 0;
    const pnode *w = joined_windows(g, pass_at(g, t->in[0]));
    int64_t images = 1;
    for (int i = 0; w && i < w->rank - 4; i++)
        images *= w->shape[i];
    if (!w || images < 2)
        return 0;
    const int64_t parts = parts_of(images), m = p->shape[0], n = p->shape[1], k = t->shape[1],
                  order[] = {0, 2, 1}, axis[] = {0, 0};
    const uint32_t windows = t->in[0], other = p->in[1];
    const eas_dim left[] = {parts, k / parts, m}, turned[] = {parts, m, k / parts},
                  right[] = {parts, k / parts, n}, many[] = {parts, m, n}, one[] = {m, n};
    if (parts < 2)
        return 0;
    pnode q = *p;
    uint32_t x = viewed(g, GRAPH_RESHAPE, windows, 3, left, 0, NULL);
    x = viewed(g, GRAPH_PERMUTE, x, 3, turned, 3, order);
    uint32_t y = in_parts(g, other, right);
    q.rank = 3;
    q.shape = many;
    q.in = (uint32_t[]){x, y};
    x = x && y ? pass_share(g, &q) : 0;
    const pnode sum = {.op = GRAPH_REDUCE_SUM,
                       .kind = KIND_REDUCE,
                       .dtype = p->dtype,
                       .rank = 2,
                       .nin = 1,
                       .nwords = 2,
                       .param = PARAM_NONE,
                       .shape = one,
                       .words = axis,
                       .in = &x};
    return x ? pass_share(g, &sum) : 0; /* as it is: rows.c would make one product of it */
}
