/* diff_as.c: operations that are differentiated through others: as_<f>(n) records something with the same
 * derivatives as n, of every order, from n's inputs. Its value is never used by anybody but its own
 * derivative.
 */
#include "graph.h"

#include <math.h>

static uint32_t axes_from(const eas_node *n, int first)
{
    uint32_t axes = 0;
    for (int i = first; i < n->nwords; i++)
        axes |= 1u << node_words(n)[i];
    return axes;
}

/* In n's shape and dtype. */
static eas_node *like(gbuild *g, eas_node *y, const eas_node *n)
{
    y = gb_typed(g, y, (eas_dtype)n->dtype);
    return y ? gb_reshape(g, y, n->batch_dims, n->rank, node_shape(n)) : NULL;
}

/* ---- extremes: the mean of those that are the largest ---- */

eas_node *as_extreme(gbuild *g, eas_node *n)
{
    eas_dim kept[GRAPH_MAX_RANK];
    eas_node *x = node_in(n)[0];
    uint32_t axes = axes_from(n, 1);
    for (int i = 0; i < x->rank; i++)
        kept[i] = axes >> i & 1 ? 1 : node_shape(x)[i];
    eas_node *top = gb_reshape(g, n, x->batch_dims, x->rank, kept);
    eas_node *mask = gb_cast(g, gd2(g, GRAPH_EQUAL, x, top), (eas_dtype)n->dtype);
    eas_node *share = mask ? gd2(g, GRAPH_DIV, mask, gb_reduce(g, GRAPH_REDUCE_SUM, mask, axes, true)) : NULL;
    eas_node *y = gd2(g, GRAPH_MUL, x, gd_stop(g, share));
    return like(g, y ? gb_reduce(g, GRAPH_REDUCE_SUM, y, axes, node_words(n)[0] != 0) : NULL, n);
}

/* ---- products: a tree of products of two; a quotient by one factor would fail where that is zero ---- */

/* x with the axes of the mask as one, at the end. */
static eas_node *as_rows(gbuild *g, eas_node *x, uint32_t axes)
{
    int order[GRAPH_MAX_RANK], at = 0;
    eas_dim shape[GRAPH_MAX_RANK + 1], last[GRAPH_MAX_RANK];
    int rank = 0, nlast = 0, bd = 0;
    for (int i = 0; i < x->rank; i++)
        if (!(axes >> i & 1)) {
            order[at++] = i;
            shape[rank++] = node_shape(x)[i];
            bd += i < x->batch_dims;
        }
    for (int i = 0; i < x->rank; i++)
        if (axes >> i & 1) {
            order[at++] = i;
            last[nlast++] = node_shape(x)[i];
        }
    shape[rank++] = gb_product(g, nlast, last);
    eas_node *y = gb_permute(g, x, order);
    return y ? gb_reshape(g, y, bd, rank, shape) : NULL;
}

/* x moved along the axis by `by` elements, towards the front, or towards the end if `forth`; `fill` takes the
 * free places. The result has `size` elements along the axis. */
static eas_node *shifted(gbuild *g, eas_node *x, int axis, eas_dim by, bool forth, eas_dim size,
                         eas_node *fill)
{
    int64_t before[GRAPH_MAX_RANK] = {0};
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !x || !fill)
        return NULL;
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    before[axis] = forth ? by : 0;
    shape[axis] = gb_dim(g, EAS_DIM_ADD, shape[axis], by);
    eas_node *y = gb_new(g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, x->batch_dims, x->rank, shape, x->rank,
                         before, 2, (eas_node *[]){x, fill});
    return gb_slice(g, y, axis, forth ? 0 : by, size, 1);
}

/* Steps of a running product along an axis whose size is known only when it runs: enough for 2^31 elements.
 */
enum { MOST_STEPS = 31 };

/* Does a running product of n elements have step k? by: how far it reaches, never beyond n: what is padded
 * has up to 2n elements, whatever n turns out to be. */
static bool has_step(gbuild *g, eas_dim n, int k, eas_dim *by)
{
    *by = (int64_t)1 << k;
    if (!dim_known(n))
        *by = gb_dim(g, EAS_DIM_MIN, n, *by);
    return !g->st && k < MOST_STEPS && (!dim_known(n) || *by < n);
}

/* Running products: after step k an element is the product of the 2^k up to it. */
static eas_node *running_product(gbuild *g, eas_node *x, int axis, bool reverse)
{
    eas_dim n = node_shape(x)[axis], by;
    for (int k = 0; x && has_step(g, n, k, &by); k++)
        x = gd2(g, GRAPH_MUL, x, shifted(g, x, axis, by, !reverse, n, gd_num(g, x, 1)));
    return x;
}

eas_node *as_cumprod(gbuild *g, eas_node *n)
{
    return running_product(g, node_in(n)[0], (int)node_words(n)[0], node_words(n)[1] != 0);
}

eas_node *as_prod(gbuild *g, eas_node *n)
{
    eas_node *y = as_rows(g, node_in(n)[0], axes_from(n, 1));
    if (!y)
        return NULL;
    int axis = y->rank - 1;
    eas_dim m = node_shape(y)[axis];
    if (m == 0)
        /* an empty tensor: its derivative is empty, too */
        return like(g, gb_reduce(g, GRAPH_REDUCE_SUM, y, 1u << axis, false), n);
    if (!dim_known(m)) {
        y = running_product(g, y, axis, true);
        return like(g, gb_slice(g, y, axis, 0, 1, 1), n);
    }
    for (; m > 1 && y && !g->st; m = (m + 1) / 2) {
        eas_dim half = (m + 1) / 2;
        y = gd2(g, GRAPH_MUL, gb_slice(g, y, axis, 0, half, 1),
                shifted(g, y, axis, half, false, half, gd_num(g, y, 1)));
    }
    return like(g, y, n);
}

/* ---- chosen elements ---- */

static eas_node *chosen(gbuild *g, eas_node *x, eas_node *index, int axis, const eas_node *n)
{
    int64_t word = axis;
    if (g->st || !x || !index)
        return NULL;
    return gb_new(g, GRAPH_TAKE_ALONG_AXIS, (eas_dtype)x->dtype, n->batch_dims, n->rank, node_shape(n), 1,
                  &word, 2, (eas_node *[]){x, index});
}

eas_node *as_sort(gbuild *g, eas_node *n)
{
    eas_node *x = node_in(n)[0];
    int64_t words[3] = {node_words(n)[0], node_words(n)[1], 1};
    eas_node *index =
        gb_new(g, GRAPH_ARGSORT, EAS_I64, n->batch_dims, n->rank, node_shape(n), 3, words, 1, &x);
    return chosen(g, x, index, (int)words[0], n);
}

/* Where the running extreme was met last. */
eas_node *as_cumextreme(gbuild *g, eas_node *n)
{
    eas_node *x = node_in(n)[0];
    int axis = (int)node_words(n)[0];
    bool reverse = node_words(n)[1] != 0;
    eas_dim size = node_shape(n)[axis];
    eas_node *at = gb_iota_at(g, size, EAS_I64, n->rank - 1 - axis);
    eas_node *other = reverse ? gb_size(g, size, EAS_I64) : gb_int(g, EAS_I64, -1);
    eas_node *met = gd_where(g, gd2(g, GRAPH_EQUAL, x, n), at, other);
    eas_node *index = met ? gb_new(g, reverse ? GRAPH_CUMMIN : GRAPH_CUMMAX, EAS_I64, n->batch_dims, n->rank,
                                   node_shape(n), 2, node_words(n), 1, &met)
                          : NULL;
    /* of NaNs none is equal: any index will do */
    eas_node *last = gd2(g, GRAPH_SUB, gb_size(g, size, EAS_I64), gb_int(g, EAS_I64, 1));
    index = gd2(g, GRAPH_MAXIMUM, gd2(g, GRAPH_MINIMUM, index, last), gb_int(g, EAS_I64, 0));
    return chosen(g, x, index, axis, n);
}

/* ---- without the largest element, which cancels ---- */

static eas_node *below_top(gbuild *g, eas_node *n, uint32_t axes, eas_node **top)
{
    eas_node *x = gb_typed(g, node_in(n)[0], graph_compute_dtype((eas_dtype)n->dtype));
    eas_node *m = gb_reduce(g, GRAPH_REDUCE_MAX, x, axes, true);
    m = m ? gd_where(g, gd1(g, GRAPH_IS_FINITE, m), m, gd_num(g, x, 0)) : NULL;
    *top = gd_stop(g, m);
    return gd2(g, GRAPH_SUB, x, *top);
}

static eas_node *log_of_sum(gbuild *g, eas_node *x, uint32_t axes)
{
    eas_node *e = gd1(g, GRAPH_EXP, x);
    return e ? gd1(g, GRAPH_LOG, gb_reduce(g, GRAPH_REDUCE_SUM, e, axes, true)) : NULL;
}

eas_node *as_logsumexp(gbuild *g, eas_node *n)
{
    eas_node *top;
    uint32_t axes = axes_from(n, 1);
    eas_node *x = below_top(g, n, axes, &top);
    return like(g, log_of_sum(g, x, axes), n);
}

eas_node *as_logsoftmax(gbuild *g, eas_node *n)
{
    eas_node *top;
    uint32_t axes = 1u << node_words(n)[0];
    eas_node *x = below_top(g, n, axes, &top);
    return like(g, gd2(g, GRAPH_SUB, x, log_of_sum(g, x, axes)), n);
}

/* ---- scatter: set and add are linear; the others are put together from gathers ---- */

/* What follows is written for (rows, places) against (rows, updates): the other dims are rows. */
typedef struct plain {
    eas_node *x, *u, *index; /* index: of u's shape, along its last dim */
} plain;

static eas_node *last_axis(gbuild *g, eas_node *x, int axis, int count, eas_dim size)
{
    int order[GRAPH_MAX_RANK], at = 0;
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !x)
        return NULL;
    for (int i = 0; i < x->rank; i++)
        if (i < axis || i >= axis + count) {
            shape[at] = node_shape(x)[i];
            order[at++] = i;
        }
    int rank = at;
    for (int i = 0; i < count; i++)
        order[at++] = axis + i;
    shape[rank++] = size;
    eas_node *y = gb_permute(g, x, order);
    return y ? gb_reshape(g, y, x->batch_dims, rank, shape) : NULL;
}

static plain plain_scatter(gbuild *g, eas_node *n)
{
    plain p = {0};
    eas_node *x = node_in(n)[0], *index = node_in(n)[1], *u = node_in(n)[2];
    int nbatch = (int)node_words(n)[0], axis = (int)node_words(n)[1], nidx = index->rank - nbatch;
    eas_dim ones[GRAPH_MAX_RANK], many = gb_product(g, nidx, node_shape(index) + nbatch);
    p.x = last_axis(g, x, axis, 1, node_shape(x)[axis]);
    p.u = last_axis(g, u, axis, nidx, many);
    if (g->st || !p.u)
        return p;
    for (int i = 0; i < p.u->rank; i++)
        ones[i] = i < nbatch ? node_shape(index)[i] : 1;
    ones[p.u->rank - 1] = many;
    eas_node *k = gb_typed(g, index, EAS_I64);
    k = k ? gb_reshape(g, k, p.u->batch_dims, p.u->rank, ones) : NULL;
    eas_node *size = gb_size(g, node_shape(x)[axis], EAS_I64);
    /* negative: from the end */
    k = gd_where(g, gd2(g, GRAPH_LESS, k, gb_int(g, EAS_I64, 0)), gd2(g, GRAPH_ADD, k, size), k);
    p.index = k ? gb_broadcast(g, k, p.u->batch_dims, p.u->rank, node_shape(p.u)) : NULL;
    return p;
}

static eas_node *put(gbuild *g, eas_node *x, eas_node *index, eas_node *u, int how)
{
    return g->st || !x || !index || !u
             ? NULL
             : gb_apply(g, GRAPH_PUT_ALONG_AXIS, 3, (eas_node *[]){x, index, u}, 2, (int64_t[]){-1, how});
}

/* Elements that equal the extreme share the derivative among them. */
static eas_node *scatter_extreme(gbuild *g, const plain *p, eas_node *top)
{
    eas_dtype dt = (eas_dtype)p->x->dtype;
    eas_node *of_x = gb_cast(g, gd2(g, GRAPH_EQUAL, p->x, top), dt),
             *of_u = gb_cast(g, gd2(g, GRAPH_EQUAL, p->u, gb_take(g, top, p->index, -1)), dt);
    eas_node *count = gd_stop(g, put(g, of_x, p->index, of_u, SCATTER_ADD));
    eas_node *x = gd2(g, GRAPH_MUL, p->x, gd_stop(g, gd2(g, GRAPH_DIV, of_x, count)));
    eas_node *u =
        gd2(g, GRAPH_MUL, p->u, gd_stop(g, gd2(g, GRAPH_DIV, of_u, gb_take(g, count, p->index, -1))));
    return put(g, x, p->index, u, SCATTER_ADD);
}

/* Updates in the order of their places; running products that begin anew at each place; the last of a place
 * is the product of all. */
static eas_node *scatter_product(gbuild *g, const plain *p)
{
    eas_node *order = gb_apply(g, GRAPH_ARGSORT, 1, &p->index, 2, (int64_t[]){-1, 0});
    eas_node *index = gb_take(g, p->index, order, -1), *u = gb_take(g, p->u, order, -1),
             *one = gd_num(g, p->u, 1);
    if (g->st || !u)
        return NULL;
    int axis = u->rank - 1;
    eas_dim n = node_shape(u)[axis], by;
    eas_node *far = gb_typed(g, index, EAS_I64), *nowhere = gb_int(g, EAS_I64, -1);
    for (int k = 0; u && has_step(g, n, k, &by); k++) {
        eas_node *same = gd2(g, GRAPH_EQUAL, far, shifted(g, far, axis, by, true, n, nowhere));
        u = gd2(g, GRAPH_MUL, u, gd_where(g, same, shifted(g, u, axis, by, true, n, one), one));
    }
    eas_node *ones = gd_fill(g, (eas_dtype)p->x->dtype, 1, p->x->batch_dims, p->x->rank, node_shape(p->x));
    return gd2(g, GRAPH_MUL, p->x, put(g, ones, index, u, SCATTER_SET));
}

eas_node *as_scatter(gbuild *g, eas_node *n)
{
    int how = (int)node_words(n)[2], axis = (int)node_words(n)[1];
    if (how == SCATTER_SET || how == SCATTER_ADD || g->st)
        return NULL;
    plain p = plain_scatter(g, n);
    if (g->st)
        return NULL;
    eas_node *y = how == SCATTER_MUL ? scatter_product(g, &p)
                                     : scatter_extreme(g, &p, last_axis(g, n, axis, 1, node_shape(n)[axis]));
    return y ? gd_rebatch(g, gb_move(g, y, y->rank - 1, axis), n->batch_dims) : NULL;
}
