/* diff_kind.c: derivatives of the kinds that are linear. Forth, a tangent goes through the same operation;
 * back, a cotangent goes through its transpose.
 *
 * A tangent lies behind `extra` dims (graph.h), so axes in a node's words are shifted by those. Sizes of
 * batch dims are read from the tangent, which may have lanes where the node has none; sizes of logical dims
 * from the node.
 */
#include "graph.h"

/* The node's own words for a tangent with e more dims in front. */
typedef struct moved {
    eas_dim shape[2 * GRAPH_MAX_RANK + 2];
    int64_t words[4 * GRAPH_MAX_RANK + 4];
    int rank;
} moved;

static eas_node *node1(gbuild *g, uint16_t op, eas_node *x, int batch_dims, int rank, const eas_dim *shape,
                       int nwords, const int64_t *words)
{
    return g->st || !x ? NULL
                       : gb_new(g, op, (eas_dtype)x->dtype, batch_dims, rank, shape, nwords, words, 1, &x);
}

/* ---- reshape ---- */

/* Have they the same batch dims, aligned at their end, but for ones in front? */
static bool same_batch(const eas_node *x, const eas_node *y)
{
    for (int i = 1; i <= x->batch_dims || i <= y->batch_dims; i++) {
        eas_dim a = i <= x->batch_dims ? node_shape(x)[x->batch_dims - i] : 1,
                b = i <= y->batch_dims ? node_shape(y)[y->batch_dims - i] : 1;
        if (a != b)
            return false;
    }
    return true;
}

/* t of `from` in the shape of `to`. Where batch dims stay batch dims, t keeps its own, as many as `to` has;
 * else everything behind the extra dims is one. */
static eas_node *reshaped(gbuild *g, eas_node *t, const eas_node *from, const eas_node *to)
{
    eas_dim shape[3 * GRAPH_MAX_RANK];
    int lf = node_logical_rank(from), lt = node_logical_rank(to), rank = 0,
        e = gd_extras(g, t, from->batch_dims);
    bool apart = same_batch(from, to) &&
                 gb_product(g, lf, node_logical_shape(from)) == gb_product(g, lt, node_logical_shape(to));
    if (g->st)
        return NULL;
    if (apart) {
        int have = t->batch_dims - e, lanes = have < g->lanes ? have : g->lanes,
            want = to->batch_dims > lanes ? to->batch_dims : lanes;
        for (int i = 0; i < e; i++)
            shape[rank++] = node_shape(t)[i];
        for (int i = have; i < want; i++)
            shape[rank++] = 1;
        for (int i = have > want ? have - want : 0; i < have; i++) /* what is left out has size 1 */
            shape[rank++] = node_shape(t)[e + i];
    } else {
        e = t->rank - from->rank;
        for (int i = 0; i < e; i++)
            shape[rank++] = node_shape(t)[i];
        for (int i = 0; i < to->batch_dims; i++)
            shape[rank++] = node_shape(to)[i];
    }
    int bd = rank;
    for (int i = 0; i < lt; i++)
        shape[rank++] = node_logical_shape(to)[i];
    if (rank > GRAPH_MAX_RANK) {
        g->st = base_fail(EAS_ERR_VALUE, "eager: a derivative of more than %d dims", GRAPH_MAX_RANK);
        return NULL;
    }
    return gb_reshape(g, t, bd, rank, shape);
}

/* ---- permute ---- */

static eas_node *permuted(gbuild *g, eas_node *t, const eas_node *n, const eas_node *to, bool back)
{
    moved m;
    int e = t->rank - n->rank;
    for (int i = 0; i < e; i++)
        m.words[i] = i;
    for (int i = 0; i < n->rank; i++)
        m.words[e + (back ? node_words(n)[i] : i)] = e + (back ? i : node_words(n)[i]);
    for (int i = 0; i < t->rank; i++)
        m.shape[i] = node_shape(t)[m.words[i]];
    return node1(g, GRAPH_PERMUTE, t, e + to->batch_dims, t->rank, m.shape, t->rank, m.words);
}

/* x's dims are n's last ones, wherever the border between batch dims and others is. */
static eas_node *forth_broadcast(gbuild *g, eas_node *t, const eas_node *x, const eas_node *n)
{
    int logical = node_logical_rank(n), over = node_logical_rank(x) - logical;
    over = over < 0 ? 0 : over; /* logical dims of x among the batch dims of n */
    t = gd_rebatch(g, t, t->batch_dims + over);
    return gd_full(g, gd_aligned(g, t, x->batch_dims + over, n->batch_dims, logical), n);
}

/* ---- slices, padding, updates ---- */

/* Words of n (a start and a step for each axis) with e axes in front that are taken whole. */
static void shift_slice(const eas_node *n, const int64_t *words, int rank, int e, int64_t *out)
{
    (void)n;
    for (int i = 0; i < e + rank; i++) {
        out[i] = i < e ? 0 : words[i - e];
        out[e + rank + i] = i < e ? 1 : words[rank + i - e];
    }
}

/* Sizes: the batch dims of t, but for those that differ between `of` and `like`; the logical dims of `like`.
 * t lies as `of` does. */
static int sizes_like(const eas_node *t, const eas_node *of, const eas_node *like, eas_dim *shape)
{
    int e = t->rank - of->rank, nb = e + like->batch_dims;
    memcpy(shape, node_shape(t), sizeof *shape * (size_t)nb);
    for (int k = 0; k < like->batch_dims && k < of->batch_dims; k++)
        if (node_shape(of)[k] != node_shape(like)[k])
            shape[e + k] = node_shape(like)[k];
    memcpy(shape + nb, node_logical_shape(like), sizeof *shape * (size_t)node_logical_rank(like));
    return nb + node_logical_rank(like);
}

static eas_node *sliced(gbuild *g, eas_node *t, const eas_node *n)
{
    moved m;
    const eas_node *x = node_in(n)[0];
    int e = gd_extra(t, x);
    if (!same_batch(x, n) && !(t = gd_full(g, t, x)))
        return NULL;
    shift_slice(n, node_words(n), n->rank, e, m.words);
    m.rank = sizes_like(t, x, n, m.shape);
    return node1(g, GRAPH_SLICE_STEPS, t, t->batch_dims, m.rank, m.shape, 2 * m.rank, m.words);
}

static eas_node *updated(gbuild *g, eas_node *x, eas_node *u, const int64_t *words)
{
    if (g->st || !x || !u)
        return NULL;
    return gb_new(g, GRAPH_SLICE_UPDATE, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x),
                  2 * x->rank, words, 2, (eas_node *[]){x, u});
}

static eas_node *padded(gbuild *g, eas_node *x, const int64_t *before, const eas_dim *shape)
{
    if (g->st || !x)
        return NULL;
    return gb_new(g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, x->batch_dims, x->rank, shape, x->rank, before,
                  2, (eas_node *[]){x, gd_num(g, x, 0)});
}

/* Zeros of that shape with t in place of start, step: the transpose of a slice. */
static eas_node *unsliced(gbuild *g, eas_node *t, const int64_t *start, const int64_t *step,
                          const eas_dim *shape)
{
    int64_t words[4 * GRAPH_MAX_RANK];
    bool dense = true;
    for (int i = 0; i < t->rank && !g->st && t; i++) {
        eas_dim size = node_shape(t)[i],
                last = gb_dim(g, EAS_DIM_MUL, gb_dim(g, EAS_DIM_SUB, size, 1), step[i]);
        words[i] = step[i] < 0 ? gb_dim(g, EAS_DIM_ADD, start[i], last) : start[i];
        words[t->rank + i] = step[i] < 0 ? -step[i] : step[i];
        if (size == 0) /* an empty slice may start anywhere */
            words[i] = 0;
        if (step[i] < 0 && size != 1)
            t = gb_slice(g, t, i, gb_dim(g, EAS_DIM_SUB, size, 1), size, -1);
        dense &= words[t ? t->rank + i : i] == 1 || size == 1;
    }
    if (g->st || !t)
        return NULL;
    return dense ? padded(g, t, words, shape)
                 : updated(g, gd_fill(g, (eas_dtype)t->dtype, 0, t->batch_dims, t->rank, shape), t, words);
}

static eas_node *back_slice(gbuild *g, eas_node *n, eas_node *ct)
{
    moved m;
    const eas_node *x = node_in(n)[0];
    int e = gd_extra(ct, n);
    if (!same_batch(x, n) && !(ct = gd_full(g, ct, n)))
        return NULL;
    shift_slice(n, node_words(n), n->rank, e, m.words);
    sizes_like(ct, n, x, m.shape);
    return unsliced(g, ct, m.words, m.words + ct->rank, m.shape);
}

/* The part of t from start on, of these sizes; zeros where it reaches beyond t. */
static eas_node *part(gbuild *g, eas_node *t, const int64_t *start, const eas_dim *sizes)
{
    int64_t before[GRAPH_MAX_RANK];
    eas_dim whole[GRAPH_MAX_RANK];
    bool beyond = false;
    for (int i = 0; i < t->rank && t && !g->st; i++) {
        eas_dim have = node_shape(t)[i], from = start[i], size = sizes[i];
        before[i] = 0;
        whole[i] = size;
        if (dim_known(from) && from < 0) {
            before[i] = -from;
            size = gb_dim(g, EAS_DIM_ADD, size, from);
            from = 0;
        }
        if (dim_known(have) && dim_known(from) && dim_known(size) && from + size > have)
            size = have > from ? have - from : 0;
        beyond |= size != sizes[i];
        t = gb_slice(g, t, i, from, size, 1);
    }
    return beyond && t ? padded(g, t, before, whole) : t;
}

static eas_node *back_pad(gbuild *g, eas_node *n, int i, eas_node *ct)
{
    int64_t start[GRAPH_MAX_RANK] = {0}, words[4 * GRAPH_MAX_RANK];
    eas_dim shape[GRAPH_MAX_RANK];
    const eas_node *x = node_in(n)[0];
    int e = gd_extra(ct, n), rank = sizes_like(ct, n, x, shape);
    for (int k = 0; k < n->rank; k++)
        start[e + k] = node_words(n)[k];
    if (i == 0)
        return part(g, ct, start, shape);
    eas_node *inner = part(g, ct, start, shape); /* everything but what lies over x */
    for (int k = 0; k < rank; k++) {
        words[k] = dim_known(start[k]) && start[k] < 0 ? 0 : start[k];
        words[rank + k] = 1;
        if (inner && dim_known(start[k]) && start[k] < 0)
            inner =
                gb_slice(g, inner, k, -start[k], gb_dim(g, EAS_DIM_ADD, node_shape(inner)[k], start[k]), 1);
        eas_dim end = inner && dim_known(words[k]) && dim_known(node_shape(inner)[k])
                        ? words[k] + node_shape(inner)[k]
                        : 0;
        if (inner && dim_known(node_shape(ct)[k]) && end > node_shape(ct)[k])
            inner = gb_slice(g, inner, k, 0, node_shape(ct)[k] - words[k], 1);
    }
    if (!inner)
        return NULL;
    return updated(
        g, ct, gd_fill(g, (eas_dtype)ct->dtype, 0, inner->batch_dims, inner->rank, node_shape(inner)), words);
}

static eas_node *back_concat(gbuild *g, eas_node *n, int i, eas_node *ct)
{
    int axis = (int)node_words(n)[0];
    eas_dim start = 0;
    for (int k = 0; k < i; k++)
        start = gb_dim(g, EAS_DIM_ADD, start, node_shape(node_in(n)[k])[axis]);
    return gb_slice(g, ct, axis + gd_extra(ct, n), start, node_shape(node_in(n)[i])[axis], 1);
}

static eas_node *back_update(gbuild *g, eas_node *n, int i, eas_node *ct)
{
    moved m;
    const eas_node *u = node_in(n)[1];
    int e = gd_extra(ct, n);
    shift_slice(n, node_words(n), n->rank, e, m.words);
    m.rank = sizes_like(ct, n, u, m.shape);
    if (i == 1)
        return node1(g, GRAPH_SLICE_STEPS, ct, ct->batch_dims, m.rank, m.shape, 2 * m.rank, m.words);
    return updated(g, ct, gd_fill(g, (eas_dtype)ct->dtype, 0, ct->batch_dims, m.rank, m.shape), m.words);
}

/* ---- windows ---- */

static eas_node *windowed(gbuild *g, eas_node *t, const eas_node *n)
{
    moved m;
    const eas_node *x = node_in(n)[0];
    int e = gd_extra(t, x);
    memcpy(m.words, node_words(n), sizeof *m.words * n->nwords);
    for (int k = 0; k < m.words[0]; k++)
        m.words[1 + 3 * k] += e;
    m.rank = sizes_like(t, x, n, m.shape);
    return node1(g, GRAPH_WINDOW, t, t->batch_dims, m.rank, m.shape, n->nwords, m.words);
}

/* ct (..., count at axis, ..., size at the end) to (..., length at axis, ...): element p gets the sum over
 * windows c and taps k with c stride + k dilation = p. A few taps are shifted and added, many are added at
 * their indices. */
enum { FEW_TAPS = 16 };
static eas_node *fold_taps(gbuild *g, eas_node *ct, int axis, eas_dim length, int64_t stride,
                           int64_t dilation)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t start[GRAPH_MAX_RANK] = {0}, step[GRAPH_MAX_RANK];
    int last = ct->rank - 1;
    eas_node *sum = NULL;
    for (int i = 0; i < last; i++) {
        shape[i] = i == axis ? length : node_shape(ct)[i];
        step[i] = i == axis ? stride : 1;
    }
    for (int64_t k = 0; k < node_shape(ct)[last] && !g->st; k++) {
        eas_node *tap = gb_squeeze(g, gb_slice(g, ct, last, k, 1, 1), last);
        start[axis] = k * dilation;
        tap = tap ? unsliced(g, tap, start, step, shape) : NULL;
        sum = sum ? gd2(g, GRAPH_ADD, sum, tap) : tap;
    }
    return sum;
}

static eas_node *scatter_taps(gbuild *g, eas_node *ct, int axis, eas_dim length, int64_t stride,
                              int64_t dilation)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int last = ct->rank - 1;
    eas_dim count = node_shape(ct)[axis], taps = node_shape(ct)[last];
    eas_node *u = gb_move(g, ct, last, axis + 1);
    eas_node *c = gd2(g, GRAPH_MUL, gb_iota_at(g, count, EAS_I64, 1), gb_int(g, EAS_I64, stride));
    eas_node *index =
        gd2(g, GRAPH_ADD, c, gd2(g, GRAPH_MUL, gb_iota(g, taps, EAS_I64), gb_int(g, EAS_I64, dilation)));
    if (g->st || !u || !index)
        return NULL;
    for (int i = 0; i < last; i++)
        shape[i] = i == axis ? length : node_shape(ct)[i];
    eas_node *zeros = gd_fill(g, (eas_dtype)ct->dtype, 0, ct->batch_dims, last, shape);
    return gb_new(g, GRAPH_SCATTER, (eas_dtype)ct->dtype, ct->batch_dims, last, shape, 3,
                  (int64_t[]){0, axis, SCATTER_ADD}, 3, (eas_node *[]){zeros, index, u});
}

static eas_node *back_window(gbuild *g, eas_node *n, eas_node *ct)
{
    const int64_t *w = node_words(n);
    const eas_node *x = node_in(n)[0];
    int e = gd_extra(ct, n);
    for (int k = (int)w[0] - 1; k >= 0 && ct && !g->st; k--) { /* the last window dim is the last dim */
        int axis = (int)w[1 + 3 * k];
        bool few = node_shape(ct)[ct->rank - 1] <= FEW_TAPS;
        ct = (few ? fold_taps : scatter_taps)(g, ct, axis + e, node_shape(x)[axis], w[2 + 3 * k],
                                              w[3 + 3 * k]);
    }
    return ct;
}

/* ---- reductions and running sums ---- */

static eas_node *summed(gbuild *g, eas_node *t, const eas_node *n)
{
    const eas_node *x = node_in(n)[0];
    int e = gd_extra(t, x);
    uint32_t axes = 0;
    for (int k = 1; k < n->nwords; k++)
        axes |= 1u << (node_words(n)[k] + e);
    eas_node *y = gb_reduce(g, GRAPH_REDUCE_SUM, t, axes, node_words(n)[0] != 0);
    return y ? gd_rebatch(g, y, e + n->batch_dims) : NULL;
}

static eas_node *back_sum(gbuild *g, eas_node *n, eas_node *ct)
{
    eas_dim ones[GRAPH_MAX_RANK], full[GRAPH_MAX_RANK];
    const eas_node *x = node_in(n)[0];
    int e = gd_extra(ct, n), at = e;
    uint32_t gone = 0;
    for (int k = 1; k < n->nwords; k++)
        gone |= 1u << node_words(n)[k];
    memcpy(ones, node_shape(ct), sizeof *ones * (size_t)e);
    for (int i = 0; i < x->rank; i++) {
        bool out = gone >> i & 1;
        ones[e + i] = out ? 1 : node_shape(ct)[at];
        full[e + i] = out ? node_shape(x)[i] : node_shape(ct)[at];
        at += !out || node_words(n)[0];
    }
    memcpy(full, ones, sizeof *full * (size_t)e);
    int bd = e + x->batch_dims, rank = e + x->rank;
    return gb_broadcast(g, gb_reshape(g, ct, bd, rank, ones), bd, rank, full);
}

static eas_node *running(gbuild *g, eas_node *t, const eas_node *n, bool back)
{
    int64_t words[2] = {node_words(n)[0] + gd_extra(t, n), (node_words(n)[1] != 0) != back};
    return node1(g, GRAPH_CUMSUM, t, t->batch_dims, t->rank, node_shape(t), 2, words);
}

/* ---- products ---- */

static eas_node *turned(gbuild *g, eas_node *x)
{
    int order[GRAPH_MAX_RANK];
    for (int i = 0; i < x->rank; i++)
        order[i] = i < x->rank - 2 ? i : 2 * x->rank - 3 - i;
    return gb_permute(g, x, order);
}

/* x (..., M, K) by y (..., K, N), leading dims aligned at the end. */
static eas_node *product(gbuild *g, eas_node *x, eas_node *y)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !x || !y)
        return NULL;
    int rank = x->rank > y->rank ? x->rank : y->rank, bd = x->batch_dims + rank - x->rank;
    bd = y->batch_dims + rank - y->rank > bd ? y->batch_dims + rank - y->rank : bd;
    int least = node_logical_rank(x) > node_logical_rank(y) ? node_logical_rank(x) : node_logical_rank(y);
    bd = rank - least < bd ? rank - least : bd;
    for (int i = 0; i < rank - 2; i++) {
        eas_dim a = i < rank - x->rank ? 1 : node_shape(x)[i - (rank - x->rank)],
                b = i < rank - y->rank ? 1 : node_shape(y)[i - (rank - y->rank)];
        shape[i] = a == 1 ? b : a;
    }
    shape[rank - 2] = node_shape(x)[x->rank - 2];
    shape[rank - 1] = node_shape(y)[y->rank - 1];
    return gb_new(g, GRAPH_MATMUL, (eas_dtype)x->dtype, bd, rank, shape, 0, NULL, 2, (eas_node *[]){x, y});
}

static eas_node *turned_all(gbuild *g, eas_node *x) { return x && !g->st ? turned(g, x) : NULL; }

/* Vectors under vmap against one matrix are its rows (op_linear.c): the last batch dim of n is the rows of
 * the product. */
static bool rows_are_lanes(const eas_node *n) { return n->batch_dims > n->rank - 2; }

static eas_node *lane_rows(gbuild *g, eas_node *x) { return x ? gb_unsqueeze(g, x, x->rank - 1) : NULL; }

static eas_node *back_matmul(gbuild *g, eas_node *n, int i, eas_node *ct)
{
    eas_node *x = node_in(n)[0], *y = node_in(n)[1], *r;
    if (i == 0)
        r = product(g, ct, turned(g, y));
    else if (rows_are_lanes(n) && g->lanes) /* each lane has a gradient of its own */
        r = product(g, turned(g, lane_rows(g, x)), lane_rows(g, ct));
    else if (node_kind(y) == KIND_PERMUTE && !y->batch_dims && !n->batch_dims &&
             node_words(y)[y->rank - 1] == y->rank - 2 &&
             /* of a transpose: what it is the transpose of gets a product as it is */
             node_words(y)[y->rank - 2] == y->rank - 1)
        r = turned_all(g, product(g, turned(g, ct), x));
    else
        r = product(g, turned(g, x), ct);
    int logical = rows_are_lanes(n) && i == 1 ? 2 : node_logical_rank(n);
    return r ? gd_rebatch(g, r, r->rank - logical) : NULL;
}

/* ---- indices ---- */

/* The index of a gather or scatter for a tangent t with e more dims in front: if nbatch dims are common to
 * index and data, the index is broadcast over those e dims; else it is used as it is. */
static eas_node *index_for(gbuild *g, eas_node *index, int nbatch, const eas_node *t, int e)
{
    eas_dim ones[2 * GRAPH_MAX_RANK], full[2 * GRAPH_MAX_RANK];
    if (nbatch == 0)
        return index;
    for (int i = 0; i < e + index->rank; i++) {
        ones[i] = i < e ? 1 : node_shape(index)[i - e];
        full[i] = i < e + nbatch ? node_shape(t)[i] : node_shape(index)[i - e];
    }
    int rank = e + index->rank;
    if (rank > GRAPH_MAX_RANK) {
        g->st = base_fail(EAS_ERR_VALUE, "eager: a derivative of more than %d dims", GRAPH_MAX_RANK);
        return NULL;
    }
    return gb_broadcast(g, gb_reshape(g, index, e + index->batch_dims, rank, ones), e + index->batch_dims,
                        rank, full);
}

/* Do the lanes of index and t go together? Else index is the same for all that t has in front. */
static bool by_lanes(const gbuild *g, const eas_node *n)
{
    return node_words(n)[0] || (g->lanes && node_in(n)[1]->batch_dims);
}

static eas_node *gathered(gbuild *g, eas_node *t, const eas_node *n)
{
    const eas_node *x = node_in(n)[0];
    int64_t axis = node_words(n)[1] - x->batch_dims;
    t = gd_aligned(g, t, x->batch_dims, n->batch_dims, node_logical_rank(x));
    return t ? gb_apply(g, GRAPH_GATHER, 2, (eas_node *[]){t, node_in(n)[1]}, 1, &axis) : NULL;
}

/* Adds ct at the indices. */
static eas_node *back_gather(gbuild *g, eas_node *n, eas_node *ct)
{
    eas_dim shape[2 * GRAPH_MAX_RANK];
    const eas_node *x = node_in(n)[0];
    eas_dtype dt = (eas_dtype)ct->dtype;
    int axis = (int)node_words(n)[1], e = gd_extra(ct, n),
        lead = by_lanes(g, n) ? ct->batch_dims : e + x->batch_dims;
    if (by_lanes(g, n)) {
        memcpy(shape, node_shape(ct), sizeof *shape * (size_t)lead);
        memcpy(shape + lead, node_logical_shape(x), sizeof *shape * (size_t)node_logical_rank(x));
        eas_node *zeros = gd_fill(g, dt, 0, lead, lead + node_logical_rank(x), shape);
        return zeros ? gb_apply(g, GRAPH_SCATTER, 3, (eas_node *[]){zeros, node_in(n)[1], ct}, 2,
                                (int64_t[]){axis - x->batch_dims, SCATTER_ADD})
                     : NULL;
    }
    for (int i = 0; i < e + x->rank; i++)
        shape[i] = i < e + axis ? node_shape(ct)[i] : node_shape(x)[i - e];
    eas_node *zeros = gd_fill(g, dt, 0, lead, e + x->rank, shape);
    int64_t words[3] = {0, axis + e, SCATTER_ADD};
    return zeros ? gb_new(g, GRAPH_SCATTER, dt, lead, e + x->rank, shape, 3, words, 3,
                          (eas_node *[]){zeros, node_in(n)[1], ct})
                 : NULL;
}

static eas_node *along(gbuild *g, eas_node *t, eas_node *index, int axis, int batch_dims)
{
    eas_dim shape[GRAPH_MAX_RANK], ones[GRAPH_MAX_RANK];
    int64_t word = axis;
    if (g->st || !t || !index)
        return NULL;
    int e = t->rank - index->rank;
    for (int i = 0; i < t->rank; i++) {
        ones[i] = i < e ? 1 : node_shape(index)[i - e];
        eas_dim a = node_shape(t)[i];
        shape[i] = i == axis || a == 1 ? (i < e ? a : ones[i]) : a;
    }
    index = gb_reshape(g, index, e + index->batch_dims, t->rank, ones);
    return index ? gb_new(g, GRAPH_TAKE_ALONG_AXIS, (eas_dtype)t->dtype, batch_dims, t->rank, shape, 1, &word,
                          2, (eas_node *[]){t, index})
                 : NULL;
}

/* Adds ct at the indices: along the axis everything is one row of its own, so the rows are made one array and
 * each index is shifted to its row. */
static eas_node *back_along(gbuild *g, eas_node *n, eas_node *ct)
{
    eas_dim shape[GRAPH_MAX_RANK];
    const eas_node *x = node_in(n)[0];
    eas_node *index = node_in(n)[1];
    int axis = (int)node_words(n)[0], e = gd_extra(ct, n);
    memcpy(shape, node_shape(ct), sizeof *shape * ct->rank);
    shape[e + axis] = node_shape(x)[axis];
    eas_node *zeros = gd_fill(g, (eas_dtype)ct->dtype, 0, 0, ct->rank, shape);
    eas_node *wide = gb_broadcast(g, index, 0, ct->rank, node_shape(ct));
    eas_node *u = gd_rebatch(g, ct, 0);
    if (!wide || !u || !zeros)
        return NULL;
    eas_node *r = gb_apply(g, GRAPH_PUT_ALONG_AXIS, 3, (eas_node *[]){zeros, wide, u}, 2,
                           (int64_t[]){e + axis, SCATTER_ADD});
    return r ? gd_rebatch(g, r, e + x->batch_dims) : NULL;
}

/* set and add; the other modes are made of other things (diff_as.c). t: of x and of the updates */
static eas_node *scattered(gbuild *g, const eas_node *n, eas_node *x, eas_node *u)
{
    int nbatch = (int)node_words(n)[0], axis = (int)node_words(n)[1], how = (int)node_words(n)[2],
        e = gd_extra(x, n);
    eas_node *index = index_for(g, node_in(n)[1], nbatch, x, e);
    int64_t words[3] = {nbatch ? nbatch + e : 0, axis + e, how};
    if (g->st || !index)
        return NULL;
    return gb_new(g, GRAPH_SCATTER, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 3, words, 3,
                  (eas_node *[]){x, index, u});
}

/* A mask over the updates of a scatter: true for the update that stays, which is the last one of those with
 * the same index. */
static eas_node *last_ones(gbuild *g, const eas_node *n)
{
    const eas_node *u = node_in(n)[2];
    eas_node *index = node_in(n)[1];
    int nbatch = (int)node_words(n)[0], axis = (int)node_words(n)[1];
    eas_dim one[GRAPH_MAX_RANK], places[GRAPH_MAX_RANK];
    int nidx = index->rank - nbatch;
    eas_dim many = gb_product(g, nidx, node_shape(index) + nbatch);
    for (int i = 0; i < nbatch; i++)
        places[i] = node_shape(index)[i];
    places[nbatch] = node_shape(n)[axis];
    eas_node *ids = gb_reshape(g, gb_iota(g, many, EAS_I64), 0, nidx, node_shape(index) + nbatch);
    ids = ids ? gb_broadcast(g, ids, 0, index->rank, node_shape(index)) : NULL;
    eas_node *zeros = gb_broadcast(g, gb_int(g, EAS_I64, 0), 0, nbatch + 1, places);
    eas_node *plain = gd_rebatch(g, index, 0);
    if (g->st || !ids || !zeros || !plain)
        return NULL;
    eas_node *winner = gb_new(g, GRAPH_SCATTER, EAS_I64, 0, nbatch + 1, places, 3,
                              (int64_t[]){nbatch, nbatch, SCATTER_SET}, 3, (eas_node *[]){zeros, plain, ids});
    eas_node *mine = gd2(g, GRAPH_EQUAL, gb_gather(g, winner, plain, nbatch, nbatch), ids);
    for (int i = 0; i < u->rank; i++) /* (batch, index dims) among the dims of the updates */
        one[i] = i < nbatch                   ? node_shape(index)[i]
               : i >= axis && i < axis + nidx ? node_shape(index)[nbatch + i - axis]
                                              : 1;
    return mine ? gb_reshape(g, mine, u->batch_dims, u->rank, one) : NULL;
}

static eas_node *back_scatter(gbuild *g, eas_node *n, int i, eas_node *ct)
{
    int nbatch = (int)node_words(n)[0], axis = (int)node_words(n)[1], how = (int)node_words(n)[2],
        e = gd_extra(ct, n);
    const eas_node *u = node_in(n)[2];
    if (i == 0 && how == SCATTER_ADD)
        return ct;
    if (i == 0) {
        eas_dim shape[GRAPH_MAX_RANK];
        int rank = e + u->rank;
        memcpy(shape, node_shape(ct), sizeof *shape * (size_t)(e + axis));
        memcpy(shape + e + axis, node_shape(u) + axis, sizeof *shape * (size_t)(u->rank - axis));
        return scattered(g, n, ct, gd_fill(g, (eas_dtype)ct->dtype, 0, ct->batch_dims, rank, shape));
    }
    /* where every element's row has indices of its own, the updates are read back along that row */
    eas_node *r = nbatch > n->batch_dims ? along(g, ct, node_in(n)[1], axis + e, ct->batch_dims)
                                         : gb_gather(g, ct, index_for(g, node_in(n)[1], nbatch, ct, e),
                                                     nbatch ? nbatch + e : 0, axis + e);
    if (r && how == SCATTER_SET)
        r = gd_where(g, last_ones(g, n), r, gd_num(g, r, 0));
    return r ? gd_rebatch(g, r, e + u->batch_dims) : NULL;
}

/* ---- both ways, by kind ---- */

/* t laid out on the mesh as n is; the dims that t has in front of n's are left open. */
static eas_node *laid_out(gbuild *g, eas_node *t, const eas_node *n)
{
    int64_t words[SHARD_DIMS + GRAPH_MAX_RANK];
    const int extra = t ? gd_extra(t, n) : 0;
    if (g->st || !t || extra < 0)
        return t;
    memcpy(words, node_words(n), sizeof *words * SHARD_DIMS);
    for (int d = 0; d < t->rank; d++)
        words[SHARD_DIMS + d] = d < extra ? SHARD_OPEN
                              : t->rank - extra != n->rank || node_shape(t)[d] != node_shape(n)[d - extra]
                                  ? 0
                                  : node_words(n)[SHARD_DIMS + d - extra];
    return gb_new(g, GRAPH_SHARD, (eas_dtype)t->dtype, t->batch_dims, t->rank, node_shape(t),
                  SHARD_DIMS + t->rank, words, 1, &t);
}

/* ct laid out on the mesh as x is. The layout of x is known only when the graph is partitioned, so the node
 * has x as a second input, of which nothing but the layout is read: the cotangent of a tensor that was
 * gathered is scattered, and the other way round. In the body of a loop that input would make x a residual,
 * kept for every trip, so there ct is laid out as n is. */
static eas_node *laid_like(gbuild *g, eas_node *ct, const eas_node *n, eas_node *x)
{
    if (diff_in_body())
        return n->nin > 1 ? ct : laid_out(g, ct, n);
    if (g->st || !ct || ct->rank < x->rank)
        return ct;
    return gb_new(g, GRAPH_SHARD, (eas_dtype)ct->dtype, ct->batch_dims, ct->rank, node_shape(ct), SHARD_DIMS,
                  node_words(n), 2, (eas_node *[]){ct, x});
}

eas_node *diff_back(gbuild *g, eas_node *n, int i, eas_node *ct)
{
    eas_node *x = node_in(n)[i];
    if (g->st || !ct)
        return NULL;
    switch (node_kind(n)) {
    case KIND_CAST: return gb_typed(g, ct, (eas_dtype)x->dtype);
    case KIND_ALIAS:
        return n->op == GRAPH_SHARD ? laid_like(g, ct, n, x)
                                    : gd_rebatch(g, ct, gd_extra(ct, n) + x->batch_dims);
    case KIND_RESHAPE: return reshaped(g, ct, n, x);
    case KIND_PERMUTE: return permuted(g, ct, n, x, true);
    case KIND_BROADCAST: return ct;
    case KIND_SLICE: return back_slice(g, n, ct);
    case KIND_PAD: return back_pad(g, n, i, ct);
    case KIND_CONCAT: return back_concat(g, n, i, ct);
    case KIND_UPDATE: return back_update(g, n, i, ct);
    case KIND_WINDOW: return back_window(g, n, ct);
    case KIND_REDUCE: return back_sum(g, n, ct);
    case KIND_SCAN: return running(g, ct, n, true);
    case KIND_MATMUL: return back_matmul(g, n, i, ct);
    case KIND_GATHER: return back_gather(g, n, ct);
    case KIND_ALONG: return back_along(g, n, ct);
    case KIND_SCATTER: return back_scatter(g, n, i, ct);
    default:
        g->st = base_fail(EAS_ERR_INTERNAL, "eager.%s has no transpose", graph_rows[n->op].name);
        return NULL;
    }
}

/* Tangents of inputs that are linear together, all with the same dims in front; zeros where there is none. */
static bool together(gbuild *g, const eas_node *n, int nin, eas_node *const *t, eas_node **out)
{
    int e = 0;
    const eas_node *widest = NULL;
    for (int i = 0; i < nin; i++)
        if (t[i] && (!widest || gd_extra(t[i], node_in(n)[i]) > e)) {
            widest = t[i];
            e = gd_extra(t[i], node_in(n)[i]);
        }
    for (int i = 0; i < nin && !g->st; i++) {
        const eas_node *x = node_in(n)[i];
        eas_dim shape[2 * GRAPH_MAX_RANK];
        bool index = !diff_float(x);
        if (index) {
            out[i] = node_in(n)[i];
            continue;
        }
        for (int k = 0; k < e + x->rank; k++)
            shape[k] = k < e ? node_shape(widest)[k] : node_shape(x)[k - e];
        for (int j = 0; j < nin; j++) /* lanes that only some of them have */
            for (int k = 1; t[j] && k <= x->batch_dims && x->batch_dims == node_in(n)[j]->batch_dims; k++)
                if (shape[e + k - 1] == 1 && node_shape(node_in(n)[j])[k - 1] == 1)
                    shape[e + k - 1] = node_shape(t[j])[gd_extra(t[j], node_in(n)[j]) + k - 1];
        int rank = e + x->rank;
        if (rank > GRAPH_MAX_RANK)
            g->st = base_fail(EAS_ERR_VALUE, "eager: a derivative of more than %d dims", GRAPH_MAX_RANK);
        else if (t[i])
            out[i] = gb_broadcast(g, t[i], e + x->batch_dims, rank, shape);
        else
            out[i] = gd_fill(g, (eas_dtype)x->dtype, 0, e + x->batch_dims, rank, shape);
    }
    return !g->st;
}

static eas_node *forth_together(gbuild *g, eas_node *n, eas_node *const *t)
{
    eas_node *in[3], **all = n->nin <= 3 ? in : malloc(sizeof *all * n->nin), *r = NULL;
    moved m;
    if (!all)
        g->st = base_fail_oom(n->nin);
    else if (together(g, n, n->nin, t, all)) {
        int e = gd_extra(all[0], node_in(n)[0]);
        m.rank = sizes_like(all[0], node_in(n)[0], n, m.shape);
        int bd = all[0]->batch_dims;
        switch (node_kind(n)) {
        case KIND_CONCAT: r = gb_concat(g, (int)node_words(n)[0] + e, n->nin, all); break;
        case KIND_PAD:
            for (int i = 0; i < m.rank; i++)
                m.words[i] = i < e ? 0 : node_words(n)[i - e];
            if (t[1] == NULL)
                all[1] = gd_num(g, n, 0);
            if (all[1]->rank == 0)
                r = gb_new(g, n->op, (eas_dtype)n->dtype, bd, m.rank, m.shape, m.rank, m.words, 2, all);
            else { /* another number in front of each: zeros around, then the number where x is not */
                eas_node *inside = gd_fill(g, (eas_dtype)n->dtype, 1, bd, all[0]->rank, node_shape(all[0]));
                eas_node *zero = gd_num(g, n, 0);
                eas_node *x = gb_new(g, n->op, (eas_dtype)n->dtype, bd, m.rank, m.shape, m.rank, m.words, 2,
                                     (eas_node *[]){all[0], zero});
                eas_node *mask = gb_new(g, n->op, (eas_dtype)n->dtype, bd, m.rank, m.shape, m.rank, m.words,
                                        2, (eas_node *[]){inside, zero});
                r = gd_where(
                    g, gd2(g, GRAPH_EQUAL, mask, zero),
                    gd_aligned(g, all[1], node_in(n)[1]->batch_dims, n->batch_dims, node_logical_rank(n)), x);
            }
            break;
        case KIND_UPDATE:
            shift_slice(n, node_words(n), n->rank, e, m.words);
            r = updated(g, all[0], all[1], m.words);
            break;
        default: r = scattered(g, n, all[0], all[2]); break;
        }
    }
    if (all != in)
        free(all);
    return r;
}

/* The tangent of a product that comes from the tangent t of factor i. */
static eas_node *forth_factor(gbuild *g, eas_node *n, int i, eas_node *t)
{
    eas_node *x = node_in(n)[0], *y = node_in(n)[1];
    bool lanes = rows_are_lanes(n);
    if (!lanes || i == 0) {
        t = lanes ? t : gd_aligned(g, t, node_in(n)[i]->batch_dims, n->batch_dims, node_logical_rank(n));
        eas_node *p = i == 0 ? product(g, t, y) : product(g, x, t);
        return p ? gd_rebatch(g, p, p->rank - node_logical_rank(n)) : NULL;
    }
    t = gd_aligned(g, t, y->batch_dims, n->batch_dims, 2);
    eas_node *p = t ? product(g, lane_rows(g, x), t) : NULL;
    p = p ? gb_squeeze(g, p, p->rank - 2) : NULL;
    return p ? gd_rebatch(g, p, p->rank - 1) : NULL;
}

static eas_node *forth_product(gbuild *g, eas_node *n, eas_node *const *t)
{
    eas_node *sum = NULL;
    for (int i = 0; i < 2; i++) {
        eas_node *p = t[i] ? forth_factor(g, n, i, t[i]) : NULL;
        sum = sum && p ? gd2(g, GRAPH_ADD, sum, p) : p ? p : sum;
    }
    return sum ? gd_full(g, sum, n) : NULL;
}

eas_node *diff_forth(gbuild *g, eas_node *n, eas_node *const *t)
{
    eas_node *x = n->nin ? node_in(n)[0] : NULL;
    if (g->st)
        return NULL;
    switch (node_kind(n)) {
    case KIND_CAST: return gb_typed(g, t[0], (eas_dtype)n->dtype);
    case KIND_ALIAS:
        return n->op == GRAPH_SHARD
                 ? (n->nin > 1 ? laid_like(g, t[0], n, node_in(n)[1]) : laid_out(g, t[0], n))
                 : gd_rebatch(g, t[0], gd_extra(t[0], x) + n->batch_dims);
    case KIND_RESHAPE: return reshaped(g, t[0], x, n);
    case KIND_PERMUTE: return permuted(g, t[0], n, n, false);
    case KIND_BROADCAST: return forth_broadcast(g, t[0], x, n);
    case KIND_SLICE: return sliced(g, t[0], n);
    case KIND_WINDOW: return windowed(g, t[0], n);
    case KIND_REDUCE: return summed(g, t[0], n);
    case KIND_SCAN: return running(g, t[0], n, false);
    case KIND_MATMUL: return forth_product(g, n, t);
    case KIND_GATHER: return gathered(g, t[0], n);
    case KIND_ALONG:
        return along(g, t[0], node_in(n)[1], (int)node_words(n)[0] + gd_extra(t[0], x),
                     gd_extra(t[0], x) + n->batch_dims);
    case KIND_PAD:
    case KIND_CONCAT:
    case KIND_UPDATE:
    case KIND_SCATTER: return forth_together(g, n, t);
    default:
        g->st = base_fail(EAS_ERR_INTERNAL, "eager.%s is not linear", graph_rows[n->op].name);
        return NULL;
    }
}
