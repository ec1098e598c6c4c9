/* op_along.c: along one axis, with an order: argmax, running results, differences, sorting. An axis of None
 * means the elements as one axis. */
#include "graph.h"

/* x with its logical dims as one */
static eas_node *flat(gbuild *g, eas_node *x)
{
    eas_dim shape[GRAPH_MAX_RANK + 1];
    int bd = x->batch_dims;
    memcpy(shape, node_shape(x), sizeof *shape * (size_t)bd);
    shape[bd] = gb_product(g, x->rank - bd, node_shape(x) + bd);
    return gb_reshape(g, x, bd, bd + 1, shape);
}

/* Reads an axis that may be None; *x is then flattened. */
static int axis_or_flat(rule *r, eas_node **x)
{
    int64_t axis = rule_int(r);
    if (r->g.st)
        return 0;
    if (axis != DIM_NONE)
        return rule_axis_of(r, *x, axis);
    int bd = (*x)->batch_dims;
    *x = flat(&r->g, *x);
    return bd;
}

/* ---- argmax, argmin ---- */

eas_status make_arg(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    gbuild *g = &r.g;
    eas_dim shape[GRAPH_MAX_RANK + 1], ones[GRAPH_MAX_RANK];
    int rank = 0;
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int axis = axis_or_flat(&r, &x);
    bool keep = rule_int(&r) != 0;
    if (!g->st && node_shape(x)[axis] == 0)
        rule_fail(&r, "there is no element to take: shape %s", rule_text(c->in[0], (char[128]){0}));
    x = c->in[0]->dtype == EAS_BOOL ? gb_typed(g, x, EAS_U8) : x;
    if (g->st)
        return rule_done(&r, NULL, out);
    for (int i = 0; i < x->rank; i++)
        if (i != axis || keep)
            shape[rank++] = i == axis ? 1 : node_shape(x)[i];
    int bd = x->batch_dims;
    eas_node *y = gb_new(g, c->op, EAS_I64, bd, rank, shape, 2, (int64_t[]){keep, axis}, 1, &x);
    if (!keep || x->rank == c->in[0]->rank)
        return rule_done(&r, y, out);
    for (int i = 0; i < c->in[0]->rank; i++)
        ones[i] = i < bd ? node_shape(x)[i] : 1;
    return rule_done(&r, gb_reshape(g, y, bd, c->in[0]->rank, ones), out);
}

/* ---- running results ---- */

static eas_dtype running_dtype(const graph_call *c, eas_dtype dt)
{
    bool sums = !strcmp(c->row->ir, "add") || !strcmp(c->row->ir, "mul");
    if (!sums)
        return dt;
    return dt == EAS_BOOL || dtype_is_signed(dt) ? EAS_I64 : dtype_is_int(dt) ? EAS_U64 : dt;
}

eas_status make_scan(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    eas_dtype dt = running_dtype(c, (eas_dtype)x->dtype);
    int64_t words[2];
    words[0] = axis_or_flat(&r, &x);
    words[1] = rule_int(&r) != 0;
    if (dt == EAS_BOOL)
        rule_type_fail(&r, "not for bool; cast it");
    x = gb_typed(&r.g, x, dt);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    return rule_node(&r, dt, x->batch_dims, x->rank, node_shape(x), 2, words, 1, &x, out);
}

/* words: axis, include_initial */
eas_status make_cumulative(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int64_t axis = rule_int(&r), initial = rule_int(&r) != 0, word;
    if (!r.g.st && axis == DIM_NONE && node_logical_rank(x) != 1)
        rule_fail(&r, "which axis of shape %s?", rule_text(x, (char[128]){0}));
    word = rule_axis_of(&r, x, axis == DIM_NONE ? 0 : axis);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[word] = gb_dim(&r.g, EAS_DIM_ADD, shape[word], initial);
    return rule_node(&r, running_dtype(c, (eas_dtype)x->dtype), x->batch_dims, x->rank, shape, 2,
                     (int64_t[]){word, initial}, 1, &x, out);
}

eas_status expand_cumulative(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_dim shape[GRAPH_MAX_RANK];
    int axis = (int)node_words(n)[0];
    bool product = !strcmp(graph_rows[n->op].ir, "mul");
    eas_dtype dt = (eas_dtype)n->dtype;
    eas_node *x = gb_typed(&g, in[0], dt);
    eas_node *y = gb_new(&g, product ? GRAPH_CUMPROD : GRAPH_CUMSUM, dt, n->batch_dims, n->rank,
                         node_shape(in[0]), 2, (int64_t[]){axis, 0}, 1, &x);
    if (node_words(n)[1]) {
        memcpy(shape, node_shape(n), sizeof *shape * n->rank);
        shape[axis] = 1;
        eas_node *first = gb_broadcast(&g, gb_int(&g, dt, product), n->batch_dims, n->rank, shape);
        y = gb_concat(&g, axis, 2, (eas_node *[]){first, y});
    }
    return gb_done(&g, y, out);
}

/* words: axis, how many times */
eas_status make_diff(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int64_t axis = rule_axis(&r, x), n = rule_int(&r);
    if (n < 0)
        rule_fail(&r, "n is %lld", (long long)n);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[axis] = gb_dim(&r.g, EAS_DIM_MAX, gb_dim(&r.g, EAS_DIM_SUB, shape[axis], n), 0);
    return rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, x->rank, shape, 2, (int64_t[]){axis, n}, 1, &x,
                     out);
}

eas_status expand_diff(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    int axis = (int)node_words(n)[0];
    eas_node *x = in[0];
    if (node_shape(n)[axis] == 0) /* as many differences as there are elements, or more */
        return gb_done(&g, gb_slice(&g, x, axis, 0, 0, 1), out);
    for (int64_t i = 0; i < node_words(n)[1] && !g.st; i++) {
        eas_dim size = gb_dim(&g, EAS_DIM_MAX, gb_dim(&g, EAS_DIM_SUB, node_shape(in[0])[axis], i + 1), 0);
        eas_node *upper = gb_slice(&g, x, axis, 1, size, 1), *lower = gb_slice(&g, x, axis, 0, size, 1);
        x = gb2(&g, n->dtype == EAS_BOOL ? GRAPH_NOT_EQUAL : GRAPH_SUB, upper, lower);
    }
    return gb_done(&g, x, out);
}

/* ---- sorting ---- */

/* sort and argsort: words are axis, descending, and whether indices are wanted */
eas_status make_sort(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    gbuild *g = &r.g;
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    bool indices = c->op == GRAPH_ARGSORT, truth = x->dtype == EAS_BOOL;
    int64_t words[3] = {0, 0, indices};
    words[0] = axis_or_flat(&r, &x);
    words[1] = rule_int(&r) != 0;
    x = truth ? gb_typed(g, x, EAS_U8) : x;
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_node *y = gb_new(g, c->op, indices ? EAS_I64 : (eas_dtype)x->dtype, x->batch_dims, x->rank,
                         node_shape(x), 3, words, 1, &x);
    return rule_done(&r, truth && !indices ? gb_typed(g, y, EAS_BOOL) : y, out);
}

/* words: axis, largest, 0 for the elements and 1 for their indices */
eas_status make_topk(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int64_t k = rule_int(&r), axis = rule_axis(&r, x), largest = rule_int(&r) != 0, index = rule_int(&r);
    if (!r.g.st &&
        ((k < 0 && !dim_is_expr(k)) || (dim_known(node_shape(x)[axis]) && k > node_shape(x)[axis])))
        rule_fail(&r, "k is %lld for axis %d of shape %s", (long long)k, (int)axis - x->batch_dims,
                  rule_text(x, (char[128]){0}));
    if (index < 0 || index > 1)
        rule_fail(&r, "result %lld of 2", (long long)index);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[axis] = k;
    return rule_node(&r, index ? EAS_I64 : (eas_dtype)x->dtype, x->batch_dims, x->rank, shape, 3,
                     (int64_t[]){axis, largest, index}, 1, &x, out);
}

/* A few of a long row are chosen one after the other: a sort whose result is that short. */
enum { FEW = 48, LONG = 1 << 30, BLOCKS = 64 };

static eas_node *chosen(gbuild *g, eas_node *x, int axis, eas_dim k, bool largest, bool indices)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !x)
        return NULL;
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[axis] = k;
    return gb_new(g, indices ? GRAPH_ARGSORT : GRAPH_SORT, indices ? EAS_I64 : (eas_dtype)x->dtype,
                  x->batch_dims, x->rank, shape, 3, (int64_t[]){axis, largest, indices}, 1, &x);
}

/* The k first of a row that is much longer are in the k blocks whose own first elements are first: of those,
 * and of the elements behind the last block, they are chosen. Candidates keep the order of the row, so that
 * equal elements do. */
static eas_node *chosen_by_blocks(gbuild *g, eas_node *x, int64_t n, int64_t k, bool largest, bool indices)
{
    int64_t size = 1;
    while (size * size * k < n)
        size *= 2;
    const int64_t count = n / size;
    const int last = x->rank - 1;
    eas_dim cut[GRAPH_MAX_RANK + 1];
    memcpy(cut, node_shape(x), sizeof *cut * x->rank);
    cut[last] = count;
    cut[last + 1] = size;
    eas_node *whole = gb_slice(g, x, last, 0, count * size, 1),
             *tail = gb_slice(g, x, last, count * size, n - count * size, 1);
    eas_node *blocks = whole ? gb_reshape(g, whole, x->batch_dims, last + 2, cut) : NULL;
    eas_node *best = chosen(g, blocks, last + 1, 1, largest, false);
    best = best ? gb_reshape(g, best, x->batch_dims, last + 1, cut) : NULL;
    eas_node *ids = chosen(g, chosen(g, best, last, k, largest, true), last, k, false, false);
    if (g->st || !ids)
        return NULL;
    cut[last] = k;
    eas_node *of = gb_broadcast(g, gb_unsqueeze(g, ids, last + 1), x->batch_dims, last + 2, cut);
    eas_node *some = gb_take(g, blocks, of, -2);
    cut[last] = k * size;
    some = some ? gb_reshape(g, some, x->batch_dims, last + 1, cut) : NULL;
    if (some && count * size < n)
        some = gb_apply(g, GRAPH_CONCATENATE, 2, (eas_node *[]){some, tail}, 1, (int64_t[]){-1});
    eas_node *y = chosen(g, some, last, k, largest, indices);
    if (!indices || !y)
        return y;
    eas_node *block = gb2(g, GRAPH_FLOORDIV, y, gb_int(g, EAS_I64, size)),
             *within = gb2(g, GRAPH_MOD, y, gb_int(g, EAS_I64, size)), *far = gb_int(g, EAS_I64, k - 1);
    eas_node *first =
        gb2(g, GRAPH_MUL, gb_take(g, ids, gb2(g, GRAPH_MINIMUM, block, far), -1), gb_int(g, EAS_I64, size));
    eas_node *behind = gb2(g, GRAPH_ADD, y, gb_int(g, EAS_I64, (count - k) * size));
    return gb3(g, GRAPH_WHERE, gb2(g, GRAPH_GREATER, block, far), behind, gb2(g, GRAPH_ADD, first, within));
}

eas_status expand_topk(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    const int64_t *w = node_words(n);
    int axis = (int)w[0];
    eas_dim k = node_shape(n)[axis], all = node_shape(in[0])[axis];
    if (dim_known(k) && dim_known(all) && k <= FEW && k < all && all < LONG) {
        bool truth = in[0]->dtype == EAS_BOOL;
        eas_node *x = truth ? gb_typed(&g, in[0], EAS_U8) : in[0];
        eas_node *y = axis == n->rank - 1 && n->rank < GRAPH_MAX_RANK && k > 0 && all / k >= BLOCKS * BLOCKS
                        ? chosen_by_blocks(&g, x, all, k, w[1], w[2])
                        : chosen(&g, x, axis, k, w[1], w[2]);
        return gb_done(&g, truth && !w[2] ? gb_typed(&g, y, EAS_BOOL) : y, out);
    }
    eas_node *y =
        gb_apply(&g, w[2] ? GRAPH_ARGSORT : GRAPH_SORT, 1, in, 2, (int64_t[]){axis - n->batch_dims, w[1]});
    return gb_done(&g, gb_slice(&g, y, axis, 0, node_shape(n)[axis], 1), out);
}

/* words: 0 for the smallest and 1 for the largest, keepdims, axes */
eas_status make_minmax(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t words[GRAPH_MAX_RANK + 2];
    int rank = 0, n = 2;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    uint32_t axes = rule_axes(&r, x);
    words[1] = rule_int(&r) != 0;
    words[0] = rule_int(&r);
    if (words[0] < 0 || words[0] > 1)
        rule_fail(&r, "result %lld of 2", (long long)words[0]);
    for (int i = 0; i < x->rank && !r.g.st; i++) {
        bool gone = axes >> i & 1;
        if (gone)
            words[n++] = i;
        if (gone && node_shape(x)[i] == 0)
            rule_fail(&r, "there is no element to take: shape %s", rule_text(x, (char[128]){0}));
        if (!gone || words[1])
            shape[rank++] = gone ? 1 : node_shape(x)[i];
    }
    return rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, rank, shape, n, words, 1, &x, out);
}

eas_status expand_minmax(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    const int64_t *w = node_words(n);
    uint32_t axes = 0;
    for (int i = 2; i < n->nwords; i++)
        axes |= (uint32_t)1 << w[i];
    bool truth = n->dtype == EAS_BOOL;
    uint16_t op = w[0] ? (truth ? GRAPH_ANY : GRAPH_REDUCE_MAX) : truth ? GRAPH_ALL : GRAPH_REDUCE_MIN;
    return gb_done(&g, gb_reduce(&g, op, in[0], axes, w[1] != 0), out);
}
