/* op_window.c: windows over the height and width of images: how calls describe them, and the nodes that show
 * them. Convolutions (op_conv.c) and pooling (op_pool.c) are made of these. */
#include "op_window.h"

const char *const window_side[2] = {"height", "width"};

/* One number for both axes, or one for each. */
void window_read_pair(rule *r, const char *what, int64_t least, int64_t out[2])
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
void window_read_padding(rule *r, window *w)
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

void window_need_rank(rule *r, const eas_node *x, const char *what, const char *dims_text)
{
    if (!r->g.st && node_logical_rank(x) != 4)
        rule_fail(r, "%s has shape %s; %s is wanted", what, rule_text(x, (char[128]){0}), dims_text);
}

int64_t window_reach(const window *w, int i) { return w->dilation[i] * (w->size[i] - 1) + 1; }

void window_too_small(rule *r, const eas_node *x, const window *w, int i)
{
    rule_fail(r, "a window of %s %lld does not fit shape %s with padding %lld and %lld", window_side[i],
              (long long)window_reach(w, i), rule_text(x, (char[128]){0}), (long long)w->before[i],
              (long long)w->after[i]);
}

eas_dim window_count(gbuild *g, const window *w, int i, eas_dim n)
{
    eas_dim room =
        gb_dim(g, EAS_DIM_SUB, gb_dim(g, EAS_DIM_ADD, n, w->before[i] + w->after[i]), window_reach(w, i));
    return gb_dim(g, EAS_DIM_ADD, gb_dim(g, EAS_DIM_FLOORDIV, room, w->stride[i]), 1);
}

window window_of(const eas_node *n)
{
    window w;
    memcpy(&w, node_words(n), sizeof w);
    return w;
}

eas_node *window_framed(gbuild *g, eas_node *x, int at, const int64_t before[2], const eas_dim after[2],
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

eas_node *window_all(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2])
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

eas_node *window_tap(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2], int64_t i,
                     int64_t j)
{
    x = gb_slice(g, x, at, i * w->dilation[0], count[0], w->stride[0]);
    return gb_slice(g, x, at + 1, j * w->dilation[1], count[1], w->stride[1]);
}

enum { MOST_TAPS = 32 };
bool window_few_taps(const window *w) { return w->size[0] * w->size[1] <= MOST_TAPS; }

/* ---- windows as an operation of users ---- */

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
