/* op_conv.c: convolutions and pooling of images, NHWC: windows (KIND_WINDOW) that are joined by a matrix
 * product or a reduction. */
#include "graph.h"

#include <math.h>

/* What a window over height and width does; each item for the two axes. */
typedef struct window {
    int64_t size[2], stride[2], dilation[2], before[2], after[2];
    int64_t extra[2]; /* of a transposed convolution: more rows and columns at the end */
    int64_t flags[2];
} window;
enum { WINDOW_WORDS = sizeof(window) / sizeof(int64_t) };

static const char *const side[2] = {"height", "width"};

/* One number for both axes, or one for each. */
static void read_pair(rule *r, const char *what, int64_t least, int64_t out[2])
{
    const int64_t *items;
    int n = rule_list(r, &items);
    out[0] = out[1] = 1;
    if (n != 1 && n != 2) {
        rule_fail(r, "%s: 1 or 2 numbers are wanted, %d are given", what, n < 0 ? 0 : n);
        return;
    }
    for (int i = 0; i < 2; i++) {
        out[i] = items[n == 1 ? 0 : i];
        if (out[i] < least || dim_is_expr(out[i]))
            rule_fail(r, "%s is %lld; it must be at least %lld", what, (long long)out[i], (long long)least);
    }
}

/* One number for all sides, one for each axis, or top, bottom, left, right. */
static void read_padding(rule *r, window *w)
{
    const int64_t *p;
    int n = rule_list(r, &p);
    if (n != 1 && n != 2 && n != 4) {
        rule_fail(r, "padding: 1, 2 or 4 numbers are wanted, %d are given", n < 0 ? 0 : n);
        return;
    }
    for (int i = 0; i < 2; i++) {
        w->before[i] = n == 1 ? p[0] : n == 2 ? p[i] : p[2 * i];
        w->after[i] = n == 1 ? p[0] : n == 2 ? p[i] : p[2 * i + 1];
        if (w->before[i] < 0 || w->after[i] < 0)
            rule_fail(r, "padding is %lld and %lld; it must not be negative", (long long)w->before[i],
                      (long long)w->after[i]);
    }
}

static void need_rank(rule *r, const eas_node *x, const char *what, const char *dims_text)
{
    if (!r->g.st && node_logical_rank(x) != 4)
        rule_fail(r, "%s has shape %s; %s is wanted", what, rule_text(x, (char[128]){0}), dims_text);
}

/* From first to last element of a window */
static int64_t reach(const window *w, int i) { return w->dilation[i] * (w->size[i] - 1) + 1; }

static void too_small(rule *r, const eas_node *x, const window *w, int i)
{
    rule_fail(r, "a window of %s %lld does not fit shape %s with padding %lld and %lld", side[i],
              (long long)reach(w, i), rule_text(x, (char[128]){0}), (long long)w->before[i],
              (long long)w->after[i]);
}

/* How many windows there are along an axis of n. */
static eas_dim window_count(gbuild *g, const window *w, int i, eas_dim n)
{
    eas_dim room = gb_dim(g, EAS_DIM_SUB, gb_dim(g, EAS_DIM_ADD, n, w->before[i] + w->after[i]), reach(w, i));
    return gb_dim(g, EAS_DIM_ADD, gb_dim(g, EAS_DIM_FLOORDIV, room, w->stride[i]), 1);
}

static eas_dtype common_dtype(const graph_call *c)
{
    eas_dtype dt = (eas_dtype)c->in[0]->dtype;
    bool weak = false;
    for (int i = 1; i < c->nin; i++)
        dt = graph_promote(dt, weak, (eas_dtype)c->in[i]->dtype, (c->in[i]->flags & NODE_WEAK) != 0, &weak);
    return dt == EAS_BOOL ? EAS_I32 : dt;
}

/* Records c's operation on its inputs in one dtype. words: those of the window, and one more. */
static eas_status record(rule *r, const window *w, int64_t more, const eas_dim logical[4], eas_node **out)
{
    gbuild *g = &r->g;
    const graph_call *c = r->c;
    eas_node *in[3];
    eas_dim shape[GRAPH_MAX_RANK + 4];
    int64_t words[WINDOW_WORDS + 1];
    if (g->st)
        return rule_done(r, NULL, out);
    int bd = gb_align_batch(g, c->nin, c->in, in);
    if (g->st)
        return rule_done(r, NULL, out);
    gb_batch_shape(g, c->nin, in, bd, shape);
    memcpy(shape + bd, logical, sizeof *shape * 4);
    memcpy(words, w, sizeof *w);
    words[WINDOW_WORDS] = more;
    eas_dtype dt = common_dtype(c);
    for (int i = 0; i < c->nin; i++)
        /* batch dims as they are: one filter for all lanes is one matrix */
        in[i] = gb_typed(g, c->in[i], dt);
    return rule_node(r, dt, bd, bd + 4, shape, WINDOW_WORDS + 1, words, c->nin, in, out);
}

static void check_bias(rule *r, eas_dim channels)
{
    if (r->g.st || r->c->nin < 3)
        return;
    const eas_node *bias = r->c->in[2];
    if (node_logical_rank(bias) != 1 || node_logical_shape(bias)[0] != channels)
        rule_fail(r, "bias has shape %s; %s is wanted", rule_text(bias, (char[128]){0}),
                  shape_text((char[128]){0}, 128, 1, &channels));
}

static void read_filter(rule *r, window *w)
{
    for (int i = 0; i < 2 && !r->g.st; i++) {
        w->size[i] = node_logical_shape(r->c->in[1])[i];
        if (!dim_known(w->size[i]) || w->size[i] == 0)
            rule_fail(r, "filter has shape %s: its %s must be a number above 0",
                      rule_text(r->c->in[1], (char[128]){0}), side[i]);
    }
}

/* ---- conv2d: words are the window and the number of groups ---- */

eas_status make_conv2d(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 3);
    window w = {0};
    eas_dim shape[4] = {0};
    read_pair(&r, "stride", 1, w.stride);
    read_pair(&r, "dilation", 1, w.dilation);
    read_padding(&r, &w);
    int64_t groups = rule_int(&r);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    need_rank(&r, c->in[0], "x", "(N, H, W, C)");
    need_rank(&r, c->in[1], "filter", "(H, W, C / groups, C_out)");
    read_filter(&r, &w);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    const eas_dim *x = node_logical_shape(c->in[0]), *f = node_logical_shape(c->in[1]);
    eas_dim each;
    if (groups < 1 || !dim_divides(x[3], groups, &each) || !dim_divides(f[3], groups, &each))
        rule_fail(&r, "groups is %lld; it must divide the channels of %s and %s", (long long)groups,
                  rule_text(c->in[0], (char[128]){0}), rule_text(c->in[1], (char[128]){0}));
    else if (gb_dim(&r.g, EAS_DIM_MUL, f[2], groups) != x[3])
        rule_fail(&r, "filter of shape %s for x of shape %s and %lld groups: channels differ",
                  rule_text(c->in[1], (char[128]){0}), rule_text(c->in[0], (char[128]){0}),
                  (long long)groups);
    check_bias(&r, f[3]);
    for (int i = 0; i < 2 && !r.g.st; i++) {
        shape[1 + i] = window_count(&r.g, &w, i, x[1 + i]);
        if (dim_known(x[1 + i]) && shape[1 + i] < 1)
            too_small(&r, c->in[0], &w, i);
    }
    shape[0] = x[0];
    shape[3] = f[3];
    return record(&r, &w, groups, shape, out);
}

/* x, whose height is axis `at`, with zeros (or another number) around it. after may be negative: elements go.
 */
static eas_node *framed(gbuild *g, eas_node *x, int at, const int64_t before[2], const eas_dim after[2],
                        eas_node *fill)
{
    int64_t words[GRAPH_MAX_RANK] = {0};
    eas_dim shape[GRAPH_MAX_RANK];
    bool any = false;
    if (g->st || !x)
        return NULL;
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    for (int i = 0; i < 2; i++) {
        words[at + i] = before[i];
        shape[at + i] = gb_dim(g, EAS_DIM_ADD, gb_dim(g, EAS_DIM_ADD, shape[at + i], before[i]), after[i]);
        any |= before[i] != 0 || after[i] != 0;
    }
    return any ? gb_new(g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, x->batch_dims, x->rank, shape, x->rank,
                        words, 2, (eas_node *[]){x, fill})
               : x;
}

/* Windows over axes at and at + 1: two dims of their sizes come at the end. */
static eas_node *windows(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2])
{
    int64_t words[7] = {2, at, w->stride[0], w->dilation[0], at + 1, w->stride[1], w->dilation[1]};
    eas_dim shape[GRAPH_MAX_RANK + 2];
    if (g->st || !x)
        return NULL;
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    for (int i = 0; i < 2; i++) {
        shape[at + i] = count[i];
        shape[x->rank + i] = w->size[i];
    }
    return gb_new(g, GRAPH_WINDOW, (eas_dtype)x->dtype, x->batch_dims, x->rank + 2, shape, 7, words, 1, &x);
}

/* Windows that lie side by side are views: each axis is cut in two. Their derivative is a view as well, where
 * that of windows which may overlap adds up copies. */
static eas_node *side_by_side(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2])
{
    eas_dim shape[GRAPH_MAX_RANK + 2];
    int order[GRAPH_MAX_RANK + 2], rank = 0;
    for (int i = 0; i < 2; i++)
        x = gb_slice(g, x, at + i, 0, gb_dim(g, EAS_DIM_MUL, count[i], w->size[i]), 1);
    if (g->st || !x)
        return NULL;
    for (int i = 0; i < x->rank; i++) {
        const bool cut = i == at || i == at + 1;
        order[i] = rank;
        shape[rank++] = cut ? count[i - at] : node_shape(x)[i];
        if (cut) {
            order[x->rank + i - at] = rank;
            shape[rank++] = w->size[i - at];
        }
    }
    return gb_permute(g, gb_reshape(g, x, x->batch_dims, rank, shape), order);
}

static bool all_beside(const window *w)
{
    bool beside = true;
    for (int i = 0; i < 2; i++)
        beside &= w->stride[i] == w->size[i] && w->dilation[i] == 1;
    return beside;
}

static eas_node *pool_windows(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2])
{
    return x && x->rank + 2 <= GRAPH_MAX_RANK && all_beside(w) ? side_by_side(g, x, at, w, count)
                                                               : windows(g, x, at, w, count);
}

/* ---- tap by tap ----
 *
 * Where windows overlap, element (i, j) of all of them is a slice of x, whose channels are neighbours in
 * memory. A few slices, joined element by element, are one pass over x with channels as lanes; a reduction
 * over the window's own dims would have the few elements of one window as lanes.
 */
enum { MOST_TAPS = 32 };

static eas_node *tap(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2], int64_t i,
                     int64_t j)
{
    x = gb_slice(g, x, at, i * w->dilation[0], count[0], w->stride[0]);
    return gb_slice(g, x, at + 1, j * w->dilation[1], count[1], w->stride[1]);
}

static bool few_taps(const window *w) { return w->size[0] * w->size[1] <= MOST_TAPS; }

static eas_node *joined_taps(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2],
                             uint16_t op)
{
    eas_node *y = NULL;
    for (int64_t i = 0; i < w->size[0]; i++)
        for (int64_t j = 0; j < w->size[1]; j++) {
            eas_node *t = tap(g, x, at, w, count, i, j);
            y = y ? gb2(g, op, y, t) : t;
        }
    return y;
}

/* A filter (H, W, 1, C) for each channel: sums of slices times numbers that all pixels share. */
static eas_status depthwise(gbuild *g, eas_node *n, eas_node *x, eas_node *f, eas_node *bias, const window *w,
                            eas_node **out)
{
    const eas_dtype dt = graph_compute_dtype((eas_dtype)n->dtype);
    const int at = x->batch_dims + 1;
    const eas_dim channels = node_shape(x)[x->rank - 1];
    eas_node *y = NULL;
    f = gb_reshape(g, f, 0, 2, (eas_dim[]){w->size[0] * w->size[1], channels});
    for (int64_t i = 0; i < w->size[0]; i++)
        for (int64_t j = 0; j < w->size[1]; j++) {
            eas_node *k = gb_slice(g, f, 0, i * w->size[1] + j, 1, 1),
                     *t = tap(g, x, at, w, node_logical_shape(n) + 1, i, j);
            k = k ? gb_reshape(g, k, 0, 1, &channels) : NULL;
            t = gb2(g, GRAPH_MUL, gb_typed(g, t, dt), gb_typed(g, k, dt));
            y = y ? gb2(g, GRAPH_ADD, y, t) : t;
        }
    y = gb_typed(g, y, (eas_dtype)n->dtype);
    y = bias ? gb2(g, GRAPH_ADD, y, bias) : y;
    return gb_done(g, y ? gb_broadcast(g, y, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}

/* Windows of x (batch, N, H, W, C) as (batch, groups, N*H*W, taps * C/groups); x's batch dims are kept. */
static eas_node *columns(gbuild *g, eas_node *x, const window *w, int64_t groups, const eas_dim count[2])
{
    eas_dim shape[GRAPH_MAX_RANK + 4];
    if (g->st || !x)
        return NULL;
    int bd = x->batch_dims, order[GRAPH_MAX_RANK + 4];
    eas_dim images = node_shape(x)[bd], channels = node_shape(x)[bd + 3],
            each = gb_dim(g, EAS_DIM_FLOORDIV, channels, groups);
    eas_node *y = windows(g, x, bd + 1, w, count);
    memcpy(shape, node_shape(x), sizeof *shape * (size_t)bd);
    memcpy(shape + bd, (eas_dim[]){images, count[0], count[1], groups, each, w->size[0], w->size[1]},
           sizeof(eas_dim) * 7);
    y = gb_reshape(g, y, bd, bd + 7, shape);
    for (int i = 0; i < bd; i++)
        order[i] = i;
    memcpy(order + bd, (int[]){bd + 3, bd, bd + 1, bd + 2, bd + 5, bd + 6, bd + 4}, sizeof(int) * 7);
    y = gb_permute(g, y, order);
    shape[bd] = groups;
    shape[bd + 1] = gb_product(g, 3, (eas_dim[]){images, count[0], count[1]});
    shape[bd + 2] = gb_product(g, 3, (eas_dim[]){w->size[0], w->size[1], each});
    return gb_reshape(g, y, bd, bd + 3, shape);
}

/* A filter (batch, H, W, C/groups, C_out) as (batch, groups, taps * C/groups, C_out/groups). */
static eas_node *filter_matrix(gbuild *g, eas_node *f, int64_t groups)
{
    eas_dim shape[GRAPH_MAX_RANK + 4];
    if (g->st || !f)
        return NULL;
    int bd = f->batch_dims;
    const eas_dim *s = node_shape(f) + bd;
    memcpy(shape, node_shape(f), sizeof *shape * (size_t)bd);
    shape[bd] = gb_product(g, 3, s);
    shape[bd + 1] = groups;
    shape[bd + 2] = gb_dim(g, EAS_DIM_FLOORDIV, s[3], groups);
    return gb_move(g, gb_reshape(g, f, bd, bd + 3, shape), bd + 1, bd);
}

/* p, whose batch dims are its own, in n's shape and with the bias. */
static eas_status finish(gbuild *g, eas_node *n, eas_node *p, eas_node *bias, eas_node **out)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !p)
        return gb_done(g, NULL, out);
    memcpy(shape, node_shape(p), sizeof *shape * (size_t)p->batch_dims);
    memcpy(shape + p->batch_dims, node_logical_shape(n), sizeof *shape * 4);
    eas_node *y = gb_reshape(g, p, p->batch_dims, p->batch_dims + 4, shape);
    y = bias ? gb2(g, GRAPH_ADD, y, bias) : y;
    return gb_done(g, y ? gb_broadcast(g, y, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}

/* One group and one filter for all lanes: everything in front of the taps is rows of one matrix. */
static eas_node *one_product(gbuild *g, eas_node *x, eas_node *f, const window *w, const eas_dim count[2])
{
    eas_node *cols = columns(g, x, w, 1, count);
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !cols || !f)
        return NULL;
    const int bd = cols->batch_dims;
    const eas_dim rows = gb_product(g, cols->rank - 1, node_shape(cols)),
                  taps = node_shape(cols)[cols->rank - 1], outs = node_shape(f)[f->rank - 1];
    eas_node *p = gb2(g, GRAPH_MATMUL, gb_reshape(g, cols, 0, 2, (eas_dim[]){rows, taps}),
                      gb_reshape(g, f, 0, 2, (eas_dim[]){taps, outs}));
    memcpy(shape, node_shape(x), sizeof *shape * (size_t)(bd + 1));
    memcpy(shape + bd + 1, (eas_dim[]){count[0], count[1], outs}, sizeof *shape * 3);
    return gb_reshape(g, p, bd, bd + 4, shape);
}

/* A few groups: each is a product of its own, which reads its windows where they lie, once the channels of a
 * group are neighbours. */
enum { MOST_GROUPS = 32, LEAST_CHANNELS = 4 };

static bool few_groups(const eas_node *x, const eas_node *f, int64_t groups)
{
    const eas_dim c = node_shape(x)[x->rank - 1];
    return groups > 1 && groups <= MOST_GROUPS && f->batch_dims == 0 && dim_known(c) &&
           c / groups >= LEAST_CHANNELS;
}

static eas_node *group_by_group(gbuild *g, eas_node *x, eas_node *f, const window *w, int64_t groups,
                                const eas_dim count[2])
{
    eas_node *part[MOST_GROUPS];
    const eas_dim each = node_shape(x)[x->rank - 1] / groups, outs = node_shape(f)[f->rank - 1] / groups;
    for (int64_t k = 0; k < groups; k++)
        part[k] = one_product(g, gb_slice(g, x, x->rank - 1, k * each, each, 1),
                              gb_slice(g, f, f->rank - 1, k * outs, outs, 1), w, count);
    return g->st ? NULL : gb_concat(g, x->rank - 1, (int)groups, part);
}

/* The convolution of x, framed already, into n's shape. */
static eas_status convolved(gbuild *g, eas_node *n, eas_node *x, eas_node *f, eas_node *bias, const window *w,
                            int64_t groups, eas_node **out)
{
    const eas_dim *count = node_logical_shape(n) + 1;
    if (g->st || !x || !f)
        return gb_done(g, NULL, out);
    if (groups > 1 && few_taps(w) && f->batch_dims == 0 && node_shape(x)[x->rank - 1] == groups &&
        node_shape(f)[f->rank - 1] == groups)
        return depthwise(g, n, x, f, bias, w, out);
    if (groups == 1 && f->batch_dims == 0)
        return finish(g, n, one_product(g, x, f, w, count), bias, out);
    if (few_groups(x, f, groups))
        return finish(g, n, group_by_group(g, x, f, w, groups, count), bias, out);
    /* (batch, groups, rows, C_out/groups) */
    eas_node *p = gb2(g, GRAPH_MATMUL, columns(g, x, w, groups, count), filter_matrix(g, f, groups));
    return finish(g, n, p ? gb_move(g, p, p->batch_dims, p->batch_dims + 1) : NULL, bias, out);
}

static window window_of(const eas_node *n)
{
    window w;
    memcpy(&w, node_words(n), sizeof w);
    return w;
}

eas_status expand_conv2d(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    window w = window_of(n);
    eas_node *x =
        framed(&g, in[0], in[0]->batch_dims + 1, w.before, w.after, gb_int(&g, (eas_dtype)n->dtype, 0));
    return convolved(&g, n, x, in[1], n->nin > 2 ? in[2] : NULL, &w, node_words(n)[WINDOW_WORDS], out);
}

/* Of an image and one group: the transposed convolution by the same filter. */
eas_node *back_conv2d(gbuild *g, eas_node *n, int i, eas_node *ct)
{
    window w = window_of(n);
    if (i != 0 || node_words(n)[WINDOW_WORDS] != 1)
        return NULL;
    const eas_dim *x = node_logical_shape(node_in(n)[0]);
    for (int k = 0; k < 2; k++) { /* what no window reached at the end */
        eas_dim used =
            dim_known(x[1 + k]) ? (node_logical_shape(n)[1 + k] - 1) * w.stride[k] + reach(&w, k) : DIM_NONE;
        w.extra[k] = dim_known(used) ? x[1 + k] + w.before[k] + w.after[k] - used : w.stride[k] == 1 ? 0 : -1;
        if (w.extra[k] < 0 || x[1 + k] == 0 || (w.extra[k] >= w.stride[k] && w.extra[k] >= w.dilation[k]))
            return NULL;
    }
    if (!g)
        return n;
    int64_t attr[] = {2,          w.stride[0], w.stride[1], 2, w.dilation[0], w.dilation[1], 4, w.before[0],
                      w.after[0], w.before[1], w.after[1],  2, w.extra[0],    w.extra[1]};
    return gb_apply(g, GRAPH_CONV2D_TRANSPOSE, 2, (eas_node *[]){ct, node_in(n)[1]},
                    (int)(sizeof attr / sizeof *attr), attr);
}

/* ---- the transposed convolution: words are the window ---- */

eas_status make_conv2d_transpose(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 3);
    gbuild *g = &r.g;
    window w = {0};
    eas_dim shape[4] = {0};
    read_pair(&r, "stride", 1, w.stride);
    read_pair(&r, "dilation", 1, w.dilation);
    read_padding(&r, &w);
    read_pair(&r, "output_paddings", 0, w.extra);
    if (g->st)
        return rule_done(&r, NULL, out);
    need_rank(&r, c->in[0], "x", "(N, H, W, C)");
    need_rank(&r, c->in[1], "filter", "(H, W, C_out, C)");
    read_filter(&r, &w);
    if (g->st)
        return rule_done(&r, NULL, out);
    const eas_dim *x = node_logical_shape(c->in[0]), *f = node_logical_shape(c->in[1]);
    if (f[3] != x[3])
        rule_fail(&r, "filter of shape %s for x of shape %s: channels differ",
                  rule_text(c->in[1], (char[128]){0}), rule_text(c->in[0], (char[128]){0}));
    check_bias(&r, f[2]);
    for (int i = 0; i < 2 && !g->st; i++) {
        if (w.extra[i] >= w.stride[i] && w.extra[i] >= w.dilation[i])
            rule_fail(&r, "output_paddings is %lld; it must be below stride %lld or dilation %lld",
                      (long long)w.extra[i], (long long)w.stride[i], (long long)w.dilation[i]);
        eas_dim spread = gb_dim(g, EAS_DIM_MUL, gb_dim(g, EAS_DIM_SUB, x[1 + i], 1), w.stride[i]);
        shape[1 + i] = gb_dim(g, EAS_DIM_ADD, spread, reach(&w, i) + w.extra[i] - w.before[i] - w.after[i]);
        if (dim_known(x[1 + i]) && (x[1 + i] == 0 || shape[1 + i] < 1))
            rule_fail(&r, "no %s is left of shape %s with padding %lld and %lld", side[i],
                      rule_text(c->in[0], (char[128]){0}), (long long)w.before[i], (long long)w.after[i]);
    }
    shape[0] = x[0];
    shape[3] = f[2];
    return record(&r, &w, 1, shape, out);
}

/* x with stride - 1 zeros between the elements of an axis */
static eas_node *spread_out(gbuild *g, eas_node *x, int axis, int64_t stride, eas_node *zero)
{
    int64_t words[GRAPH_MAX_RANK + 1] = {0};
    eas_dim shape[GRAPH_MAX_RANK + 1];
    if (g->st || !x || stride == 1)
        return x;
    eas_dim n = node_shape(x)[axis];
    eas_node *y = gb_unsqueeze(g, x, axis + 1);
    if (!y)
        return NULL;
    memcpy(shape, node_shape(y), sizeof *shape * y->rank);
    shape[axis + 1] = stride;
    y = gb_new(g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, x->batch_dims, y->rank, shape, y->rank, words, 2,
               (eas_node *[]){y, zero});
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[axis] = gb_dim(g, EAS_DIM_MUL, n, stride);
    y = gb_reshape(g, y, x->batch_dims, x->rank, shape);
    return gb_slice(g, y, axis, 0, gb_dim(g, EAS_DIM_SUB, shape[axis], stride - 1), 1);
}

/* ---- in phases ----
 *
 * Element o = stride * q + r of the result sees every stride-th tap, from t = (r + before) mod stride on, and
 * taps u = 0, 1, ... of these at element q + c - u of x, c = (r + before - t) / stride: for each r an
 * ordinary convolution with a part of the filter, turned around, where nothing is multiplied by zeros.
 */
enum { MOST_PHASES = 16 };

static bool has_phases(const eas_node *x, const eas_node *f, const window *w)
{
    bool ok =
        f->batch_dims == 0 && w->stride[0] * w->stride[1] > 1 && w->stride[0] * w->stride[1] <= MOST_PHASES;
    for (int i = 0; i < 2; i++)
        ok &= w->dilation[i] == 1 && w->size[i] >= w->stride[i] && dim_known(node_logical_shape(x)[1 + i]);
    return ok;
}

/* f: (H, W, C, C_out) */
static eas_node *phase(gbuild *g, eas_node *x, eas_node *f, const window *w, const int64_t r[2],
                       const eas_dim count[2])
{
    window plain = {.stride = {1, 1}, .dilation = {1, 1}};
    const int at = x->batch_dims + 1;
    eas_node *zero = gb_int(g, (eas_dtype)x->dtype, 0);
    eas_dim after[2];
    for (int i = 0; i < 2 && x; i++) {
        const int64_t s = w->stride[i], t = (r[i] + w->before[i]) % s, c = (r[i] + w->before[i] - t) / s,
                      taps = (w->size[i] - t + s - 1) / s;
        eas_dim n = node_shape(x)[at + i];
        f = gb_slice(g, f, i, t + s * (taps - 1), taps, -s);
        plain.size[i] = taps;
        plain.before[i] = taps - 1 - c;
        after[i] = count[i] + c - n;
        const int64_t from = plain.before[i] < 0 ? -plain.before[i] : 0, gone = after[i] < 0 ? -after[i] : 0;
        if (from + gone > 0)
            x = gb_slice(g, x, at + i, from, n - from - gone, 1);
        plain.before[i] += from;
        after[i] += gone;
    }
    return one_product(g, framed(g, x, at, plain.before, after, zero), f, &plain, count);
}

/* One tensor whose elements along an axis come from each part in turns. */
static eas_node *in_turns(gbuild *g, int axis, int64_t n, eas_node **part)
{
    eas_dim shape[GRAPH_MAX_RANK + 1];
    for (int64_t k = 0; k < n; k++)
        part[k] = gb_unsqueeze(g, part[k], axis + 1);
    eas_node *y = g->st ? NULL : gb_concat(g, axis + 1, (int)n, part);
    if (!y)
        return NULL;
    memcpy(shape, node_shape(y), sizeof *shape * y->rank);
    shape[axis] *= n;
    memmove(shape + axis + 1, shape + axis + 2, sizeof *shape * (size_t)(y->rank - axis - 2));
    return gb_reshape(g, y, y->batch_dims, y->rank - 1, shape);
}

static eas_node *all_phases(gbuild *g, const eas_node *n, eas_node *x, eas_node *f, const window *w)
{
    const eas_dim *shape = node_logical_shape(n) + 1;
    const int at = x->batch_dims + 1;
    eas_node *row[MOST_PHASES], *one[MOST_PHASES];
    eas_dim count[2];
    for (int i = 0; i < 2; i++)
        count[i] = (shape[i] + w->stride[i] - 1) / w->stride[i];
    f = gb_move(g, f, 3, 2); /* (H, W, C_out, C) to (H, W, C, C_out) */
    for (int64_t i = 0; i < w->stride[0]; i++) {
        for (int64_t k = 0; k < w->stride[1]; k++)
            one[k] = phase(g, x, f, w, (int64_t[]){i, k}, count);
        row[i] = in_turns(g, at + 1, w->stride[1], one);
    }
    eas_node *y = in_turns(g, at, w->stride[0], row);
    for (int i = 0; i < 2; i++)
        y = gb_slice(g, y, at + i, 0, shape[i], 1);
    return y;
}

/* An ordinary convolution over the elements, spread out, with the filter turned around. Padding takes away
 * what a window reaches beyond the edge. */
eas_status expand_conv2d_transpose(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    window w = window_of(n), plain = w;
    eas_node *x = in[0], *f = in[1], *zero = gb_int(&g, (eas_dtype)n->dtype, 0);
    int at = x->batch_dims + 1;
    eas_dim after[2];
    if (has_phases(x, f, &w))
        return finish(&g, n, all_phases(&g, n, x, f, &w), n->nin > 2 ? in[2] : NULL, out);
    for (int i = 0; i < 2; i++) {
        x = spread_out(&g, x, at + i, w.stride[i], zero);
        plain.stride[i] = 1;
        plain.before[i] = reach(&w, i) - 1 - w.before[i];
        after[i] = reach(&w, i) - 1 - w.after[i] + w.extra[i];
        if (plain.before[i] < 0 && x) { /* the padding takes more than the window adds */
            x = gb_slice(&g, x, at + i, -plain.before[i],
                         gb_dim(&g, EAS_DIM_ADD, node_shape(x)[at + i], plain.before[i]), 1);
            plain.before[i] = 0;
        }
        if (after[i] < 0 && x) {
            x = gb_slice(&g, x, at + i, 0, gb_dim(&g, EAS_DIM_ADD, node_shape(x)[at + i], after[i]), 1);
            after[i] = 0;
        }
        f = gb_slice(&g, f, in[1]->batch_dims + i, w.size[i] - 1, w.size[i], -1);
    }
    /* (H, W, C_out, C) to (H, W, C, C_out) */
    f = gb_move(&g, f, in[1]->batch_dims + 3, in[1]->batch_dims + 2);
    return convolved(&g, n, framed(&g, x, at, plain.before, after, zero), f, n->nin > 2 ? in[2] : NULL,
                     &plain, 1, out);
}

/* ---- pooling: words are the window; flags: ceil mode, padding counts ---- */

/* In ceil mode a last window may reach beyond the edge, if it begins before the padding there. */
static eas_dim pool_count(gbuild *g, const window *w, int i, eas_dim n)
{
    if (!w->flags[0])
        return window_count(g, w, i, n);
    window up = *w;
    up.after[i] += w->stride[i] - 1;
    eas_dim starts = gb_dim(g, EAS_DIM_FLOORDIV, gb_dim(g, EAS_DIM_ADD, n, w->before[i] - 1), w->stride[i]);
    return gb_dim(g, EAS_DIM_MIN, window_count(g, &up, i, n), gb_dim(g, EAS_DIM_ADD, starts, 1));
}

static eas_status make_pool(const graph_call *c, bool average, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    window w = {0};
    eas_dim shape[4] = {0};
    read_pair(&r, "kernel_size", 1, w.size);
    read_pair(&r, "stride", 1, w.stride);
    read_pair(&r, "dilation", 1, w.dilation);
    read_padding(&r, &w);
    w.flags[0] = rule_int(&r) != 0;
    w.flags[1] = average && rule_int(&r) != 0;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    need_rank(&r, x, "x", "(N, H, W, C)");
    for (int i = 0; i < 2 && !r.g.st; i++) {
        eas_dim n = node_logical_shape(x)[1 + i];
        if (average && (w.before[i] >= reach(&w, i) || w.after[i] >= reach(&w, i)))
            rule_fail(&r, "padding %lld and %lld is not smaller than a window of %s %lld",
                      (long long)w.before[i], (long long)w.after[i], side[i], (long long)reach(&w, i));
        else if (!average && (2 * w.before[i] > reach(&w, i) || 2 * w.after[i] > reach(&w, i)))
            rule_fail(&r, "padding %lld and %lld is more than half of a window of %s %lld",
                      (long long)w.before[i], (long long)w.after[i], side[i], (long long)reach(&w, i));
        shape[1 + i] = pool_count(&r.g, &w, i, n);
        if (dim_known(n) && shape[1 + i] < 1)
            too_small(&r, x, &w, i);
    }
    if (r.g.st)
        return rule_done(&r, NULL, out);
    shape[0] = node_logical_shape(x)[0];
    shape[3] = node_logical_shape(x)[3];
    eas_dtype dt = (eas_dtype)x->dtype;
    dt = average && !dtype_is_float(dt) ? EAS_F32 : dt;
    eas_dim full[GRAPH_MAX_RANK];
    memcpy(full, node_shape(x), sizeof *full * x->batch_dims);
    memcpy(full + x->batch_dims, shape, sizeof shape);
    int64_t words[WINDOW_WORDS];
    memcpy(words, &w, sizeof w);
    return rule_node(&r, dt, x->batch_dims, x->rank, full, WINDOW_WORDS, words, 1, &x, out);
}

eas_status make_max_pool2d(const graph_call *c, eas_node **out) { return make_pool(c, false, out); }
eas_status make_avg_pool2d(const graph_call *c, eas_node **out) { return make_pool(c, true, out); }

/* What the last windows reach beyond x and its padding, per axis. */
static void overhang(gbuild *g, const eas_node *n, const eas_node *x, const window *w, eas_dim out[2])
{
    for (int i = 0; i < 2; i++) {
        int axis = n->batch_dims + 1 + i;
        eas_dim used =
            gb_dim(g, EAS_DIM_ADD,
                   gb_dim(g, EAS_DIM_MUL, gb_dim(g, EAS_DIM_SUB, node_shape(n)[axis], 1), w->stride[i]),
                   reach(w, i));
        eas_dim have = gb_dim(g, EAS_DIM_ADD, node_shape(x)[axis], w->before[i] + w->after[i]);
        out[i] = w->flags[0] ? gb_dim(g, EAS_DIM_MAX, gb_dim(g, EAS_DIM_SUB, used, have), 0) : 0;
    }
}

static eas_node *pooled(gbuild *g, const eas_node *n, eas_node *x, const window *w, const int64_t before[2],
                        const eas_dim after[2], eas_node *fill, uint16_t op)
{
    int at = n->batch_dims + 1;
    eas_node *y = framed(g, x, at, before, after, fill);
    if (few_taps(w) && !all_beside(w))
        return joined_taps(g, y, at, w, node_shape(n) + at,
                           op == GRAPH_REDUCE_MAX ? GRAPH_MAXIMUM
                           : op == GRAPH_ANY      ? GRAPH_LOGICAL_OR
                                                  : GRAPH_ADD);
    y = pool_windows(g, y, at, w, node_shape(n) + at);
    return y ? gb_reduce(g, op, y, (uint32_t)3 << (y->rank - 2), false) : NULL;
}

eas_status expand_max_pool2d(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    window w = window_of(n);
    eas_dtype dt = (eas_dtype)n->dtype;
    bool truth = dt == EAS_BOOL;
    eas_dim after[2];
    overhang(&g, n, in[0], &w, after);
    for (int i = 0; i < 2; i++)
        after[i] = gb_dim(&g, EAS_DIM_ADD, after[i], w.after[i]);
    /* never wins */
    eas_node *fill = truth              ? gb_int(&g, EAS_BOOL, 0)
                   : dtype_is_float(dt) ? gb_num(&g, n, -INFINITY)
                                        : gb_int(&g, dt, dtype_min(dt));
    return gb_done(&g, pooled(&g, n, in[0], &w, w.before, after, fill, truth ? GRAPH_ANY : GRAPH_REDUCE_MAX),
                   out);
}

/* The number of each element of a window, as a tensor of the last two dims. */
static eas_node *tap_numbers(gbuild *g, const window *w)
{
    eas_node *all = gb_iota(g, w->size[0] * w->size[1], EAS_I32);
    return all ? gb_reshape(g, all, 0, 2, (eas_dim[]){w->size[0], w->size[1]}) : NULL;
}

static eas_node *spread_over_taps(gbuild *g, eas_node *x)
{
    return x ? gb_unsqueeze(g, gb_unsqueeze(g, x, x->rank), x->rank + 1) : NULL;
}

/* Derivatives: of each window the first largest element is the result, or the first NaN. */
eas_node *as_max_pool2d(gbuild *g, eas_node *n)
{
    window w = window_of(n);
    eas_dim after[2];
    eas_node *in = node_in(n)[0];
    overhang(g, n, in, &w, after);
    for (int i = 0; i < 2; i++)
        after[i] = gb_dim(g, EAS_DIM_ADD, after[i], w.after[i]);
    int at = n->batch_dims + 1;
    eas_node *y = pool_windows(g, framed(g, in, at, w.before, after, gb_num(g, n, -INFINITY)), at, &w,
                               node_shape(n) + at);
    if (!y)
        return NULL;
    const uint32_t taps = (uint32_t)3 << (y->rank - 2);
    eas_node *top = spread_over_taps(g, gb_reduce(g, GRAPH_REDUCE_MAX, y, taps, false)),
             *number = tap_numbers(g, &w);
    eas_node *is_top = gb2(g, GRAPH_LOGICAL_OR, gd2(g, GRAPH_EQUAL, y, top), gd2(g, GRAPH_NOT_EQUAL, y, y));
    eas_node *first = gd_where(g, is_top, number, gb_int(g, EAS_I32, INT32_MAX));
    first = first ? spread_over_taps(g, gb_reduce(g, GRAPH_REDUCE_MIN, first, taps, false)) : NULL;
    y = gd_where(g, gd2(g, GRAPH_EQUAL, first, number), y, gd_num(g, n, 0));
    return y ? gb_reduce(g, GRAPH_REDUCE_SUM, y, taps, false) : NULL;
}

/* How many elements each window has: those of x and, if they count, of the padding; what ceil mode adds never
 * counts. */
static eas_node *pool_counts(gbuild *g, const eas_node *n, const eas_node *x, const window *w,
                             const eas_dim beyond[2], eas_dtype dt)
{
    eas_dim shape[GRAPH_MAX_RANK], after[2];
    int64_t before[2] = {0};
    int at = n->batch_dims + 1;
    for (int i = 0; i < n->rank; i++)
        shape[i] = 1;
    for (int i = 0; i < 2; i++) {
        int64_t pad = w->before[i] + w->after[i];
        shape[at + i] = gb_dim(g, EAS_DIM_ADD, node_shape(x)[at + i], w->flags[1] ? pad : 0);
        before[i] = w->flags[1] ? 0 : w->before[i];
        after[i] = gb_dim(g, EAS_DIM_ADD, beyond[i], w->flags[1] ? 0 : w->after[i]);
    }
    eas_node *ones = gb_broadcast(g, gb_int(g, dt, 1), n->batch_dims, n->rank, shape);
    return pooled(g, n, ones, w, before, after, gb_int(g, dt, 0), GRAPH_REDUCE_SUM);
}

eas_status expand_avg_pool2d(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    window w = window_of(n);
    eas_dtype dt = graph_compute_dtype((eas_dtype)n->dtype);
    eas_dim beyond[2], after[2];
    bool padded = false, ragged = false;
    overhang(&g, n, in[0], &w, beyond);
    for (int i = 0; i < 2; i++) {
        after[i] = gb_dim(&g, EAS_DIM_ADD, beyond[i], w.after[i]);
        padded |= w.before[i] || w.after[i];
        ragged |= beyond[i] != 0;
    }
    eas_node *x = gb_typed(&g, in[0], dt);
    eas_node *sum = pooled(&g, n, x, &w, w.before, after, gb_int(&g, dt, 0), GRAPH_REDUCE_SUM);
    bool counted = ragged || (padded && !w.flags[1]);
    eas_node *count =
        counted ? pool_counts(&g, n, in[0], &w, beyond, dt) : gb_int(&g, dt, w.size[0] * w.size[1]);
    return gb_done(&g, gb_typed(&g, gb2(&g, GRAPH_DIV, sum, count), (eas_dtype)n->dtype), out);
}

/* ---- windows themselves ---- */

/* Sliding windows over some axes: their sizes come as new dims at the end. */
eas_status make_window(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    const int64_t *axes, *size, *stride, *dilation;
    eas_dim shape[2 * GRAPH_MAX_RANK];
    int64_t words[1 + 3 * GRAPH_MAX_RANK];
    uint32_t seen = 0;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int n = rule_list(&r, &axes), counts[3];
    counts[0] = rule_list(&r, &size);
    counts[1] = rule_list(&r, &stride);
    counts[2] = rule_list(&r, &dilation);
    for (int i = 0; i < 3; i++)
        if (n < 0 || n > GRAPH_MAX_RANK || counts[i] != n)
            rule_fail(&r, "sizes, strides and dilations for each of %d axes are wanted", n);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    words[0] = n;
    for (int i = 0; i < n && !r.g.st; i++) {
        int axis = rule_axis_of(&r, x, axes[i]);
        if (seen >> axis & 1)
            rule_fail(&r, "axis %lld is there twice", (long long)axes[i]);
        if (size[i] < 1 || stride[i] < 1 || dilation[i] < 1)
            rule_fail(&r, "size %lld, stride %lld and dilation %lld must be above 0", (long long)size[i],
                      (long long)stride[i], (long long)dilation[i]);
        if (r.g.st)
            break;
        seen |= (uint32_t)1 << axis;
        eas_dim room = gb_dim(&r.g, EAS_DIM_SUB, node_shape(x)[axis],
                              gb_dim(&r.g, EAS_DIM_MUL, size[i] - 1, dilation[i]));
        shape[axis] =
            gb_dim(&r.g, EAS_DIM_MAX,
                   gb_dim(&r.g, EAS_DIM_ADD,
                          gb_dim(&r.g, EAS_DIM_FLOORDIV, gb_dim(&r.g, EAS_DIM_SUB, room, 1), stride[i]), 1),
                   0);
        shape[x->rank + i] = size[i];
        words[1 + 3 * i] = axis;
        words[2 + 3 * i] = stride[i];
        words[3 + 3 * i] = dilation[i];
    }
    return rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, x->rank + n, shape, 1 + 3 * n, words, 1, &x,
                     out);
}
