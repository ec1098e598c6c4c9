/* op_set.c: places of what is not zero, and distinct elements. How many there are is known only from the
 * data: flat_nonzero and unique are told, after count_nonzero and count_unique have counted. Elements count
 * as one axis, in C order.
 */
#include "graph.h"

static eas_node *flat(gbuild *g, eas_node *x)
{
    eas_dim shape[GRAPH_MAX_RANK + 1];
    if (g->st || !x)
        return NULL;
    int bd = x->batch_dims;
    memcpy(shape, node_shape(x), sizeof *shape * (size_t)bd);
    shape[bd] = gb_product(g, x->rank - bd, node_shape(x) + bd);
    return gb_reshape(g, x, bd, bd + 1, shape);
}

static eas_node *take(gbuild *g, eas_node *x, eas_node *index)
{
    return gb_apply(g, GRAPH_GATHER, 2, (eas_node *[]){x, index}, 1, (int64_t[]){0});
}
static eas_node *running_sum(gbuild *g, eas_node *x)
{
    return gb_apply(g, GRAPH_CUMSUM, 1, &x, 2, (int64_t[]){0, 0});
}

/* The attribute `size`: how many places are wanted, at most as many as there are elements. */
static eas_dim read_size(rule *r)
{
    int64_t n = rule_int(r);
    if (r->g.st)
        return 0;
    const eas_node *x = r->c->in[0];
    eas_dim all = gb_product(&r->g, node_logical_rank(x), node_logical_shape(x));
    if ((n < 0 && !dim_is_expr(n)) || (dim_known(all) && n > all))
        rule_fail(r, "size is %lld for shape %s", (long long)n, rule_text(x, (char[128]){0}));
    return n;
}

/* ---- flat_nonzero ---- */

eas_status make_flat_nonzero(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK + 1];
    eas_dim n = read_size(&r);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    memcpy(shape, node_shape(x), sizeof *shape * x->batch_dims);
    shape[x->batch_dims] = n;
    return rule_node(&r, EAS_I64, x->batch_dims, x->batch_dims + 1, shape, 0, NULL, 1, &x, out);
}

/* Where parts of a row begin is known once they are counted; then each writes its own places (KIND_COMPACT).
 * A length that divides the row needs no padding; a short row is one part. */
enum { PART_MOST = 4096, PART_LEAST = 1024 };

static int64_t part_length(int64_t n)
{
    if (n <= PART_MOST)
        return n;
    for (int64_t p = PART_MOST; p >= PART_LEAST; p--)
        if (n % p == 0)
            return p;
    return PART_MOST;
}

static eas_node *part_counts(gbuild *g, eas_node *truth, int64_t length)
{
    eas_dim shape[GRAPH_MAX_RANK + 1];
    int64_t zeros[GRAPH_MAX_RANK] = {0};
    const int axis = truth->rank - 1;
    const int64_t parts = (node_shape(truth)[axis] + length - 1) / length;
    memcpy(shape, node_shape(truth), sizeof *shape * truth->rank);
    shape[axis] = parts * length;
    if (shape[axis] != node_shape(truth)[axis])
        truth = gb_new(g, GRAPH_PAD_CONSTANT, EAS_BOOL, truth->batch_dims, truth->rank, shape, truth->rank,
                       zeros, 2, (eas_node *[]){truth, gb_int(g, EAS_BOOL, 0)});
    shape[axis] = parts;
    shape[axis + 1] = length;
    truth = truth ? gb_reshape(g, truth, truth->batch_dims, axis + 2, shape) : NULL;
    eas_node *n =
        truth ? gb_reduce(g, GRAPH_REDUCE_SUM, gb_typed(g, truth, EAS_I32), (uint32_t)1 << (axis + 1), false)
              : NULL;
    return gb_typed(g, n, EAS_I64);
}

static eas_node *compacted(gbuild *g, eas_node *truth, eas_dim n)
{
    eas_dim shape[GRAPH_MAX_RANK];
    const int64_t length = part_length(node_shape(truth)[truth->rank - 1]);
    const bool one = node_shape(truth)[truth->rank - 1] <= length;
    eas_node *counts = part_counts(g, truth, length), *ends = one ? counts : running_sum(g, counts);
    if (g->st || !ends)
        return NULL;
    memcpy(shape, node_shape(truth), sizeof *shape * truth->rank);
    shape[truth->rank - 1] = n;
    return gb_new(g, GRAPH_COMPACT, EAS_I64, truth->batch_dims, truth->rank, shape, 1, &length, 3,
                  (eas_node *[]){truth, ends, counts});
}

/* The k-th is where the running count first reaches k. */
static eas_node *places(gbuild *g, eas_node *truth, eas_dim n)
{
    if (!g->st && truth && truth->rank < GRAPH_MAX_RANK && dim_known(node_shape(truth)[truth->rank - 1]) &&
        node_shape(truth)[truth->rank - 1] > 0)
        return compacted(g, truth, n);
    eas_node *count = running_sum(g, gb_typed(g, truth, EAS_I64));
    eas_node *k = gb2(g, GRAPH_ADD, gb_iota(g, n, EAS_I64), gb_int(g, EAS_I64, 1));
    return gb_apply(g, GRAPH_SEARCHSORTED, 2, (eas_node *[]){count, k}, 1, (int64_t[]){0});
}

eas_status expand_flat_nonzero(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    return gb_done(&g, places(&g, flat(&g, gb_typed(&g, in[0], EAS_BOOL)), node_shape(n)[n->rank - 1]), out);
}

/* ---- distinct elements ---- */

enum { UNIQUE_VALUES, UNIQUE_INDICES, UNIQUE_INVERSE, UNIQUE_COUNTS, UNIQUE_PARTS };

/* A mask over sorted elements: does the element differ from its predecessor? NaNs all differ. */
static eas_node *begins(gbuild *g, eas_node *sorted)
{
    if (g->st || !sorted)
        return NULL;
    const int axis = sorted->rank - 1;
    const eas_dim n = node_shape(sorted)[axis];
    if (dim_known(n) && n > 1) { /* neighbours are read as shifted vectors */
        int64_t before[GRAPH_MAX_RANK] = {0};
        eas_node *differs = gb2(g, GRAPH_NOT_EQUAL, gb_slice(g, sorted, axis, 1, n - 1, 1),
                                gb_slice(g, sorted, axis, 0, n - 1, 1));
        before[axis] = 1;
        return gb_new(g, GRAPH_PAD_CONSTANT, EAS_BOOL, sorted->batch_dims, sorted->rank, node_shape(sorted),
                      sorted->rank, before, 2, (eas_node *[]){differs, gb_int(g, EAS_BOOL, 1)});
    }
    eas_node *i = gb_iota(g, node_shape(sorted)[sorted->rank - 1], EAS_I64), *zero = gb_int(g, EAS_I64, 0);
    eas_node *before = gb2(g, GRAPH_MAXIMUM, gb2(g, GRAPH_SUB, i, gb_int(g, EAS_I64, 1)), zero);
    return gb2(g, GRAPH_LOGICAL_OR, gb2(g, GRAPH_EQUAL, i, zero),
               gb2(g, GRAPH_NOT_EQUAL, sorted, take(g, sorted, before)));
}

eas_status make_count_unique(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    const int64_t in_order = rule_int(&r) != 0;
    return rule_node(&r, EAS_I64, x->batch_dims, x->batch_dims, node_shape(x), 1, &in_order, 1, &x, out);
}

eas_status expand_count_unique(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *x = flat(&g, in[0]),
             *sorted = node_words(n)[0] ? x : gb_apply(&g, GRAPH_SORT, 1, &x, 2, (int64_t[]){0, 0});
    eas_node *first = gb_typed(&g, begins(&g, sorted), EAS_I64);
    return gb_done(
        &g, first ? gb_reduce(&g, GRAPH_REDUCE_SUM, first, (uint32_t)1 << n->batch_dims, false) : NULL, out);
}

/* words: which part */
eas_status make_unique(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK + 1];
    eas_dim n = read_size(&r);
    int64_t part = rule_int(&r), in_order = rule_int(&r) != 0;
    if (part < 0 || part >= UNIQUE_PARTS)
        rule_fail(&r, "result %lld of %d", (long long)part, UNIQUE_PARTS);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    eas_dtype dt = part == UNIQUE_VALUES ? (eas_dtype)x->dtype : EAS_I64;
    int bd = x->batch_dims;
    memcpy(shape, node_shape(x), sizeof *shape * (size_t)bd);
    shape[bd] = n;
    int64_t words[3] = {part, n, in_order};
    return rule_node(&r, dt, bd, part == UNIQUE_INVERSE ? x->rank : bd + 1,
                     part == UNIQUE_INVERSE ? node_shape(x) : shape, 3, words, 1, &x, out);
}

static eas_node *unique_counts(gbuild *g, eas_node *at, eas_dim all)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !at)
        return NULL;
    int axis = at->rank - 1;
    memcpy(shape, node_shape(at), sizeof *shape * at->rank);
    shape[axis] = 1;
    eas_node *end = gb_broadcast(g, gb_size(g, all, EAS_I64), at->batch_dims, at->rank, shape);
    eas_node *both = gb_concat(g, axis, 2, (eas_node *[]){at, end});
    return gb_apply(g, GRAPH_DIFF, 1, &both, 2, (int64_t[]){-1, 1});
}

/* Each element's place among the distinct ones, put where the element was; order: NULL if x is sorted. */
static eas_node *unique_inverse(gbuild *g, eas_node *first, eas_node *order)
{
    eas_node *rank = running_sum(g, gb_typed(g, first, EAS_I64));
    rank = gb2(g, GRAPH_SUB, rank, gb_int(g, EAS_I64, 1));
    if (!order)
        return rank;
    eas_node *in[3] = {
        rank ? gb_broadcast(g, gb_int(g, EAS_I64, 0), rank->batch_dims, rank->rank, node_shape(rank)) : NULL,
        order, rank};
    return gb_apply(g, GRAPH_SCATTER, 3, in, 2, (int64_t[]){0, SCATTER_SET});
}

eas_status expand_unique(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    int part = (int)node_words(n)[0];
    const bool in_order = node_words(n)[2] != 0,
               places_too = !in_order && (part == UNIQUE_INVERSE || part == UNIQUE_INDICES);
    eas_node *x = flat(&g, in[0]),
             *order = places_too ? gb_apply(&g, GRAPH_ARGSORT, 1, &x, 2, (int64_t[]){0, 0}) : NULL;
    eas_node *sorted = places_too ? take(&g, x, order)
                     : in_order   ? x
                                  : gb_apply(&g, GRAPH_SORT, 1, &x, 2, (int64_t[]){0, 0}),
             *first = begins(&g, sorted), *y;
    if (!first)
        return gb_done(&g, NULL, out);
    if (part == UNIQUE_INVERSE)
        y = unique_inverse(&g, first, order);
    else {
        eas_node *at = places(&g, first, node_words(n)[1]);
        y = part == UNIQUE_COUNTS              ? unique_counts(&g, at, node_shape(x)[x->rank - 1])
          : part == UNIQUE_INDICES && in_order ? at
                                               : take(&g, part == UNIQUE_VALUES ? sorted : order, at);
    }
    return gb_done(&g, y ? gb_reshape(&g, y, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}
