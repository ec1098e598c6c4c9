/* op_pool.c: pooling of images (N, H, W, C): windows whose elements are joined by a reduction. */
#include "op_window.h"

#include <math.h>

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
                                                               : window_all(g, x, at, w, count);
}

static eas_node *joined_taps(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2],
                             uint16_t op)
{
    eas_node *y = NULL;
    for (int64_t i = 0; i < w->size[0]; i++)
        for (int64_t j = 0; j < w->size[1]; j++) {
            eas_node *t = window_tap(g, x, at, w, count, i, j);
            y = y ? gb2(g, op, y, t) : t;
        }
    return y;
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
    window_read_pair(&r, "kernel_size", 1, w.size);
    window_read_pair(&r, "stride", 1, w.stride);
    window_read_pair(&r, "dilation", 1, w.dilation);
    window_read_padding(&r, &w);
    w.flags[0] = rule_int(&r) != 0;
    w.flags[1] = average && rule_int(&r) != 0;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    window_need_rank(&r, x, "x", "(N, H, W, C)");
    for (int i = 0; i < 2 && !r.g.st; i++) {
        eas_dim n = node_logical_shape(x)[1 + i];
        if (average && (w.before[i] >= window_reach(&w, i) || w.after[i] >= window_reach(&w, i)))
            rule_fail(&r, "padding %lld and %lld is not smaller than a window of %s %lld",
                      (long long)w.before[i], (long long)w.after[i], window_side[i],
                      (long long)window_reach(&w, i));
        else if (!average && (2 * w.before[i] > window_reach(&w, i) || 2 * w.after[i] > window_reach(&w, i)))
            rule_fail(&r, "padding %lld and %lld is more than half of a window of %s %lld",
                      (long long)w.before[i], (long long)w.after[i], window_side[i],
                      (long long)window_reach(&w, i));
        shape[1 + i] = pool_count(&r.g, &w, i, n);
        if (dim_known(n) && shape[1 + i] < 1)
            window_too_small(&r, x, &w, i);
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
                   window_reach(w, i));
        eas_dim have = gb_dim(g, EAS_DIM_ADD, node_shape(x)[axis], w->before[i] + w->after[i]);
        out[i] = w->flags[0] ? gb_dim(g, EAS_DIM_MAX, gb_dim(g, EAS_DIM_SUB, used, have), 0) : 0;
    }
}

static eas_node *pooled(gbuild *g, const eas_node *n, eas_node *x, const window *w, const int64_t before[2],
                        const eas_dim after[2], eas_node *fill, uint16_t op)
{
    int at = n->batch_dims + 1;
    eas_node *y = window_framed(g, x, at, before, after, fill);
    if (window_few_taps(w) && !all_beside(w))
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
    eas_node *y = pool_windows(g, window_framed(g, in, at, w.before, after, gb_num(g, n, -INFINITY)), at, &w,
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
