/* op_conv.c: convolutions of images (N, H, W, C) and their transposes: windows (op_window.h) that are joined
 * by a matrix product. */
#include "op_window.h"

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
                      rule_text(r->c->in[1], (char[128]){0}), window_side[i]);
    }
}

/* ---- conv2d: words are the window and the number of groups ---- */

eas_status make_conv2d(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 3);
    window w = {0};
    eas_dim shape[4] = {0};
    window_read_pair(&r, "stride", 1, w.stride);
    window_read_pair(&r, "dilation", 1, w.dilation);
    window_read_padding(&r, &w);
    int64_t groups = rule_int(&r);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    window_need_rank(&r, c->in[0], "x", "(N, H, W, C)");
    window_need_rank(&r, c->in[1], "filter", "(H, W, C / groups, C_out)");
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
            window_too_small(&r, c->in[0], &w, i);
    }
    shape[0] = x[0];
    shape[3] = f[3];
    return record(&r, &w, groups, shape, out);
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
                     *t = window_tap(g, x, at, w, node_logical_shape(n) + 1, i, j);
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
    eas_node *y = window_all(g, x, bd + 1, w, count);
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
    if (groups > 1 && window_few_taps(w) && f->batch_dims == 0 && node_shape(x)[x->rank - 1] == groups &&
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

eas_status expand_conv2d(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    window w = window_of(n);
    eas_node *x = window_framed(&g, in[0], in[0]->batch_dims + 1, w.before, w.after,
                                gb_int(&g, (eas_dtype)n->dtype, 0));
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
        eas_dim used = dim_known(x[1 + k])
                         ? (node_logical_shape(n)[1 + k] - 1) * w.stride[k] + window_reach(&w, k)
                         : DIM_NONE;
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
    window_read_pair(&r, "stride", 1, w.stride);
    window_read_pair(&r, "dilation", 1, w.dilation);
    window_read_padding(&r, &w);
    window_read_pair(&r, "output_paddings", 0, w.extra);
    if (g->st)
        return rule_done(&r, NULL, out);
    window_need_rank(&r, c->in[0], "x", "(N, H, W, C)");
    window_need_rank(&r, c->in[1], "filter", "(H, W, C_out, C)");
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
        shape[1 + i] =
            gb_dim(g, EAS_DIM_ADD, spread, window_reach(&w, i) + w.extra[i] - w.before[i] - w.after[i]);
        if (dim_known(x[1 + i]) && (x[1 + i] == 0 || shape[1 + i] < 1))
            rule_fail(&r, "no %s is left of shape %s with padding %lld and %lld", window_side[i],
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
    return one_product(g, window_framed(g, x, at, plain.before, after, zero), f, &plain, count);
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
        plain.before[i] = window_reach(&w, i) - 1 - w.before[i];
        after[i] = window_reach(&w, i) - 1 - w.after[i] + w.extra[i];
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
    return convolved(&g, n, window_framed(&g, x, at, plain.before, after, zero), f, n->nin > 2 ? in[2] : NULL,
                     &plain, 1, out);
}
