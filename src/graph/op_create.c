/* op_create.c: tensors out of nothing but numbers and shapes. Numbers are inputs, so that other numbers give
 * no other structure. */
#include "graph.h"

eas_status make_iota(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 0, 0);
    dims shape = rule_shape(&r);
    int64_t axis = rule_int(&r), word = axis < 0 ? axis + shape.n : axis;
    eas_dtype dt = rule_dtype(&r);
    if (word < 0 || word >= shape.n)
        rule_fail(&r, "axis %lld of shape %s", (long long)axis,
                  shape_text((char[128]){0}, 128, shape.n, shape.at));
    if (dt == EAS_BOOL)
        rule_type_fail(&r, "not for bool");
    return rule_node(&r, dt, 0, shape.n, shape.at, 1, &word, 0, NULL, out);
}

/* Like broadcast_to, but the result is no Python number any more. */
eas_status make_full(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim ones[2 * GRAPH_MAX_RANK], full[2 * GRAPH_MAX_RANK];
    dims to = rule_shape(&r);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int bd = x->batch_dims, more = to.n - node_logical_rank(x);
    bool fits = more >= 0;
    for (int i = 0; i < node_logical_rank(x) && fits; i++)
        fits = node_logical_shape(x)[i] == 1 || node_logical_shape(x)[i] == to.at[more + i];
    if (!fits)
        rule_fail(&r, "a value of shape %s does not fill %s", rule_text(x, (char[128]){0}),
                  shape_text((char[128]){0}, 128, to.n, to.at));
    for (int i = 0; i < bd + to.n && fits; i++) {
        ones[i] = i < bd ? node_shape(x)[i] : i < bd + more ? 1 : node_shape(x)[i - more];
        full[i] = i < bd ? node_shape(x)[i] : to.at[i - bd];
    }
    eas_dtype dt = (eas_dtype)x->dtype;
    x = gb_typed(&r.g, x, dt);
    if (bd && more > 0)
        x = gb_reshape(&r.g, x, bd, bd + to.n, ones);
    return rule_node(&r, dt, bd, bd + to.n, full, 0, NULL, 1, &x, out);
}

/* ---- numbers in a row ---- */

static void need_number(rule *r, const eas_node *x, const char *what)
{
    if (!r->g.st && node_logical_rank(x))
        rule_fail(r, "%s has shape %s: one number is wanted", what, rule_text(x, (char[128]){0}));
}

static eas_dim length(rule *r, const char *what)
{
    int64_t n = rule_int(r);
    if (n < 0 && !dim_is_expr(n))
        rule_fail(r, "%s is %lld", what, (long long)n);
    return n;
}

/* Records c's operation on two numbers per batch, as a row of n. */
static eas_status row_of(rule *r, eas_dtype in, eas_dtype dt, eas_dim n, int nwords, const int64_t *words,
                         eas_node **out)
{
    gbuild *g = &r->g;
    eas_node *both[2];
    eas_dim shape[GRAPH_MAX_RANK + 1];
    if (g->st)
        return rule_done(r, NULL, out);
    int bd = gb_align_batch(g, 2, r->c->in, both);
    if (g->st)
        return rule_done(r, NULL, out);
    gb_batch_shape(g, 2, both, bd, shape);
    shape[bd] = n;
    for (int i = 0; i < 2; i++)
        both[i] = gb_typed(g, both[i], in);
    return rule_node(r, dt, bd, bd + 1, shape, nwords, words, 2, both, out);
}

/* start + i*step */
eas_status make_arange(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    eas_dim n = length(&r, "length");
    eas_dtype dt = rule_dtype(&r);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    need_number(&r, c->in[0], "start");
    need_number(&r, c->in[1], "step");
    if (dt == EAS_BOOL)
        rule_type_fail(&r, "not for bool");
    return row_of(&r, graph_compute_dtype(dt), dt, n, 0, NULL, out);
}

eas_status expand_arange(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *i = gb_iota(&g, node_shape(n)[n->rank - 1], (eas_dtype)in[0]->dtype);
    eas_node *y = gb2(&g, GRAPH_ADD, gb_spread(&g, in[0], 1), gb2(&g, GRAPH_MUL, i, gb_spread(&g, in[1], 1)));
    return gb_done(&g, gb_typed(&g, y, (eas_dtype)n->dtype), out);
}

/* words: endpoint */
eas_status make_linspace(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    eas_dim n = length(&r, "num");
    int64_t endpoint = rule_int(&r) != 0;
    eas_dtype dt = rule_dtype(&r);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    need_number(&r, c->in[0], "start");
    need_number(&r, c->in[1], "stop");
    if (dt == EAS_BOOL)
        rule_type_fail(&r, "not for bool");
    bool whole = !dtype_is_float(dt) && dtype_is_int((eas_dtype)c->in[0]->dtype) &&
                 dtype_is_int((eas_dtype)c->in[1]->dtype);
    return row_of(&r, whole ? EAS_I64 : graph_wide_dtype(dt), dt, n, 1, &endpoint, out);
}

eas_status expand_linspace(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_dtype wide = (eas_dtype)in[0]->dtype;
    eas_dim num = node_shape(n)[n->rank - 1];
    bool endpoint = node_words(n)[0] != 0;
    eas_node *start = gb_spread(&g, in[0], 1), *stop = gb_spread(&g, in[1], 1), *i = gb_iota(&g, num, wide);
    eas_node *last = gb_size(&g, gb_dim(&g, EAS_DIM_MAX, gb_dim(&g, EAS_DIM_SUB, num, endpoint), 1), wide);
    eas_node *way = gb2(&g, GRAPH_SUB, stop, start);
    if (!dtype_is_float(wide)) /* integers between integers, rounded down */
        return gb_done(
            &g,
            gb_typed(&g, gb2(&g, GRAPH_ADD, gb2(&g, GRAPH_FLOORDIV, gb2(&g, GRAPH_MUL, i, way), last), start),
                     (eas_dtype)n->dtype),
            out);
    eas_node *y = gb2(&g, GRAPH_ADD, gb2(&g, GRAPH_MUL, i, gb2(&g, GRAPH_DIV, way, last)), start);
    if (endpoint) /* exactly */
        y = gb3(&g, GRAPH_WHERE, gb2(&g, GRAPH_EQUAL, i, last), stop, y);
    if (!dtype_is_float((eas_dtype)n->dtype))
        y = gb1(&g, GRAPH_FLOOR, y);
    return gb_done(&g, gb_typed(&g, y, (eas_dtype)n->dtype), out);
}

/* words: periodic */
eas_status make_hann_window(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 0, 0);
    eas_dim n = length(&r, "window_length");
    int64_t periodic = rule_int(&r) != 0;
    eas_dtype dt = rule_dtype(&r);
    if (!dtype_is_float(dt))
        rule_type_fail(&r, "not for %s", eas_dtype_name(dt));
    return rule_node(&r, dt, 0, 1, &n, 1, &periodic, 0, NULL, out);
}

eas_status expand_hann_window(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_dtype dt = graph_compute_dtype((eas_dtype)n->dtype);
    eas_dim num = node_shape(n)[0],
            period = gb_dim(&g, EAS_DIM_MAX, gb_dim(&g, EAS_DIM_SUB, num, node_words(n)[0] == 0), 1);
    eas_node *i = gb_iota(&g, num, dt);
    (void)in;
    if (!i)
        return gb_done(&g, NULL, out);
    eas_node *turn =
        gb2(&g, GRAPH_DIV, gb2(&g, GRAPH_MUL, i, gb_num(&g, i, 6.283185307179586)), gb_size(&g, period, dt));
    eas_node *half = gb_num(&g, i, 0.5),
             *y = gb2(&g, GRAPH_SUB, half, gb2(&g, GRAPH_MUL, half, gb1(&g, GRAPH_COS, turn)));
    if (num == 1 || !dim_known(num)) /* the only element of a window of size 1 is 1 */
        y = gb3(&g, GRAPH_WHERE, gb2(&g, GRAPH_EQUAL, gb_size(&g, num, dt), gb_num(&g, i, 1)),
                gb_num(&g, i, 1), y);
    return gb_done(&g, gb_typed(&g, y, (eas_dtype)n->dtype), out);
}

/* ---- triangles ---- */

/* Is row + k equal to the column (or not below it)? For the last two dims. */
static eas_node *diagonal_mask(gbuild *g, uint16_t compare, eas_dim rows, eas_dim cols, int64_t k)
{
    eas_node *row = gb_iota_at(g, rows, EAS_I64, 1), *col = gb_iota(g, cols, EAS_I64);
    return gb2(g, compare, gb2(g, GRAPH_ADD, row, gb_int(g, EAS_I64, k)), col);
}

/* words: k */
eas_status make_eye(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 0, 0);
    dims shape = rule_shape(&r);
    int64_t k = rule_int(&r);
    eas_dtype dt = rule_dtype(&r);
    if (shape.n != 2)
        rule_fail(&r, "shape %s is not that of a matrix", shape_text((char[128]){0}, 128, shape.n, shape.at));
    return rule_node(&r, dt, 0, 2, shape.at, 1, &k, 0, NULL, out);
}

static eas_status expand_mask(eas_node *n, uint16_t compare, eas_node **out)
{
    gbuild g = {0};
    return gb_done(&g,
                   gb_typed(&g,
                            diagonal_mask(&g, compare, node_shape(n)[0], node_shape(n)[1], node_words(n)[0]),
                            (eas_dtype)n->dtype),
                   out);
}

eas_status expand_eye(eas_node *n, eas_node *const *in, eas_node **out)
{
    (void)in;
    return expand_mask(n, GRAPH_EQUAL, out);
}

eas_status expand_tri(eas_node *n, eas_node *const *in, eas_node **out)
{
    (void)in;
    return expand_mask(n, GRAPH_GREATER_EQUAL, out);
}

/* words: k */
eas_status make_triangle(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    int64_t k = rule_int(&r);
    if (!r.g.st && node_logical_rank(c->in[0]) < 2)
        rule_fail(&r, "shape %s is not that of a matrix", rule_text(c->in[0], (char[128]){0}));
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    return rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 1, &k, 1, &x, out);
}

static eas_status expand_part(eas_node *n, eas_node *x, bool upper, eas_node **out)
{
    gbuild g = {0};
    int64_t k = node_words(n)[0];
    eas_dim rows = node_shape(n)[n->rank - 2], cols = node_shape(n)[n->rank - 1];
    eas_node *mask = diagonal_mask(&g, upper ? GRAPH_LESS_EQUAL : GRAPH_GREATER_EQUAL, rows, cols, k);
    return gb_done(&g, gb3(&g, GRAPH_WHERE, mask, x, gb_int(&g, (eas_dtype)n->dtype, 0)), out);
}

eas_status expand_tril(eas_node *n, eas_node *const *in, eas_node **out)
{
    return expand_part(n, in[0], false, out);
}
eas_status expand_triu(eas_node *n, eas_node *const *in, eas_node **out)
{
    return expand_part(n, in[0], true, out);
}
