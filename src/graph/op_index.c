/* op_index.c: elements chosen by indices, and written by them.
 *
 * Indices are integers; negative ones count from the end; others outside of the axis fail when they are used.
 * Batch dims of x and of the indices are paired where both have some.
 */
#include "graph.h"

static void need_integers(rule *r, const eas_node *index)
{
    if (!r->g.st && !dtype_is_int((eas_dtype)index->dtype))
        rule_type_fail(
            r, "indices must be integers, these are %s%s", eas_dtype_name((eas_dtype)index->dtype),
            index->dtype == EAS_BOOL ? "; how many elements a mask chooses is known only from its data" : "");
}

static eas_node *signed_index(gbuild *g, eas_node *index)
{
    return index && index->dtype == EAS_U64 ? gb_typed(g, index, EAS_I64) : index;
}

/* x with batch dims `batch` in front of its own logical dims */
static eas_node *with_batch(gbuild *g, eas_node *x, int bd, const eas_dim *batch)
{
    eas_dim shape[2 * GRAPH_MAX_RANK];
    eas_node *y = gb_lift(g, x, bd);
    if (g->st || !y)
        return NULL;
    memcpy(shape, batch, sizeof *shape * (size_t)bd);
    memcpy(shape + bd, node_shape(y) + bd, sizeof *shape * (size_t)(y->rank - bd));
    return gb_broadcast(g, y, bd, y->rank, shape);
}

static eas_node *lower_gather(gbuild *g, eas_node *x, eas_node *index, int logical_axis)
{
    eas_node *both[2];
    eas_dim batch[GRAPH_MAX_RANK];
    index = signed_index(g, index);
    if (g->st || !x || !index)
        return NULL;
    if (index->batch_dims == 0 || (x->batch_dims == 0 && logical_axis == 0))
        return gb_gather(g, x, index, 0, x->batch_dims + logical_axis);
    int bd = gb_align_batch(g, 2, (eas_node *[]){x, index}, both);
    if (g->st)
        return NULL;
    gb_batch_shape(g, 2, both, bd, batch);
    return gb_gather(g, with_batch(g, x, bd, batch), with_batch(g, index, bd, batch), bd, bd + logical_axis);
}

eas_status make_gather(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int axis = rule_axis(&r, x);
    need_integers(&r, c->in[1]);
    return rule_done(&r, r.g.st ? NULL : lower_gather(&r.g, x, c->in[1], axis - x->batch_dims), out);
}

/* ---- along an axis ---- */

/* x and the others with common batch dims; logical shapes broadcast to each other but for the axis. shape:
 * what comes, with the indices' size. */
static int along_shape(rule *r, const eas_node *x, const eas_node *index, int axis, eas_dim *shape)
{
    for (int i = 0; i < x->rank && !r->g.st; i++) {
        eas_dim a = node_shape(x)[i], b = node_shape(index)[i];
        shape[i] = i == axis ? b : a == 1 ? b : a;
        if (i != axis && a != b && a != 1 && b != 1)
            rule_fail(r, "indices of shape %s do not fit %s", rule_text(index, (char[128]){0}),
                      rule_text(x, (char[128]){0}));
    }
    return x->rank;
}

static int along_axis(rule *r, eas_node **both)
{
    const graph_call *c = r->c;
    int axis = rule_axis(r, c->in[0]) - (r->g.st ? 0 : c->in[0]->batch_dims);
    need_integers(r, c->in[1]);
    if (!r->g.st && node_logical_rank(c->in[0]) != node_logical_rank(c->in[1]))
        rule_fail(r, "indices of shape %s for %s: as many dims are wanted",
                  rule_text(c->in[1], (char[128]){0}), rule_text(c->in[0], (char[128]){0}));
    int bd = gb_align_batch(&r->g, 2, c->in, both);
    both[1] = signed_index(&r->g, both[1]);
    return bd + axis;
}

eas_status make_take_along_axis(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    eas_node *both[2];
    eas_dim shape[GRAPH_MAX_RANK];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int64_t axis = along_axis(&r, both);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int rank = along_shape(&r, both[0], both[1], (int)axis, shape);
    return rule_node(&r, (eas_dtype)both[0]->dtype, both[0]->batch_dims, rank, shape, 1, &axis, 2, both, out);
}

/* ---- several indices at once ---- */

/* Negative indices from the end; n where it is out of range, so that the access fails. */
static eas_node *wrapped(gbuild *g, eas_node *i, eas_node *n, eas_node **good)
{
    eas_node *zero = gb_int(g, EAS_I64, 0);
    i = gb_typed(g, i, EAS_I64);
    i = gb3(g, GRAPH_WHERE, gb2(g, GRAPH_LESS, i, zero), gb2(g, GRAPH_ADD, i, n), i);
    eas_node *in = gb2(g, GRAPH_LOGICAL_AND, gb2(g, GRAPH_GREATER_EQUAL, i, zero), gb2(g, GRAPH_LESS, i, n));
    *good = *good ? gb2(g, GRAPH_LOGICAL_AND, *good, in) : in;
    return i;
}

/* The number of an element in C order of the axes of sizes[0..n), from an index for each. */
static eas_node *linear_index(gbuild *g, int n, eas_node *const *index, const eas_dim *sizes)
{
    eas_node *sum = NULL, *good = NULL;
    if (n == 1)
        return signed_index(g, index[0]);
    for (int i = 0; i < n; i++) {
        eas_node *size = gb_size(g, sizes[i], EAS_I64), *k = wrapped(g, index[i], size, &good);
        sum = sum ? gb2(g, GRAPH_ADD, gb2(g, GRAPH_MUL, sum, size), k) : k;
    }
    return gb3(g, GRAPH_WHERE, good, sum, gb_size(g, gb_product(g, n, sizes), EAS_I64));
}

/* Where NumPy puts the dims of the indices: at the first indexed axis if all stand together, else in front.
 */
typedef struct chosen {
    int n, place;           /* place: logical */
    int axis[GRAPH_MAX_RANK]; /* logical */
    eas_dim size[GRAPH_MAX_RANK];
    eas_dim rest[GRAPH_MAX_RANK];
    int nrest;
} chosen;

static void place_indices(const eas_node *x, chosen *k)
{
    uint32_t mask = 0;
    bool together = true;
    for (int i = 0; i < k->n; i++) {
        together &= i == 0 || k->axis[i] == k->axis[i - 1] + 1;
        mask |= (uint32_t)1 << k->axis[i];
        k->size[i] = node_logical_shape(x)[k->axis[i]];
    }
    k->place = together ? k->axis[0] : 0;
    k->nrest = 0;
    for (int i = 0; i < node_logical_rank(x); i++)
        if (!(mask >> i & 1))
            k->rest[k->nrest++] = node_logical_shape(x)[i];
}

static void read_indexed(rule *r, const eas_node *x, int n, eas_node *const *index, chosen *k)
{
    const int64_t *axes;
    int m = rule_list(r, &axes);
    *k = (chosen){.n = n};
    if (!r->g.st && (m != n || n < 1 || n > GRAPH_MAX_RANK))
        rule_fail(r, "%d indices for %d axes", n, m);
    for (int i = 0; i < n && !r->g.st; i++) {
        need_integers(r, index[i]);
        k->axis[i] = rule_axis_of(r, x, axes[i]) - x->batch_dims;
        if (i && k->axis[i] <= k->axis[i - 1])
            rule_fail(r, "axes of indices must be in ascending order");
    }
    if (!r->g.st)
        place_indices(x, k);
}

/* x with the chosen axes as one, at k's place. */
static eas_node *merged(gbuild *g, eas_node *x, const chosen *k)
{
    int order[GRAPH_MAX_RANK], bd = x->batch_dims, rank = 0, at = 0;
    eas_dim shape[GRAPH_MAX_RANK];
    uint32_t mask = 0;
    for (int i = 0; i < k->n; i++)
        mask |= (uint32_t)1 << (bd + k->axis[i]);
    for (int i = 0; i < bd; i++) {
        order[at++] = i;
        shape[rank++] = node_shape(x)[i];
    }
    for (int i = bd, placed = 0; i <= x->rank; i++) {
        if (!placed && rank - bd == k->place) {
            for (int j = 0; j < k->n; j++)
                order[at++] = bd + k->axis[j];
            shape[rank++] = gb_product(g, k->n, k->size);
            placed = 1;
        }
        if (i < x->rank && !(mask >> i & 1)) {
            order[at++] = i;
            shape[rank++] = node_shape(x)[i];
        }
    }
    return gb_reshape(g, gb_permute(g, x, order), bd, rank, shape);
}

/* The reverse: from merged axes back to x's. */
static eas_node *unmerged(gbuild *g, eas_node *y, const eas_node *x, const chosen *k)
{
    int back[GRAPH_MAX_RANK], bd = y ? y->batch_dims : 0, rank = bd;
    eas_dim shape[GRAPH_MAX_RANK];
    uint32_t mask = 0;
    if (g->st || !y)
        return NULL;
    for (int i = 0; i < k->n; i++)
        mask |= (uint32_t)1 << k->axis[i];
    memcpy(shape, node_shape(y), sizeof *shape * (size_t)bd);
    for (int i = 0; i <= k->nrest; i++) {
        for (int j = 0; i == k->place && j < k->n; j++)
            shape[rank++] = k->size[j];
        if (i < k->nrest)
            shape[rank++] = k->rest[i];
    }
    for (int i = 0, j = 0, rest = 0; i < node_logical_rank(x); i++) {
        bool picked = mask >> i & 1;
        back[bd + i] = bd + (picked ? k->place + j : rest < k->place ? rest : rest + k->n);
        j += picked;
        rest += !picked;
    }
    for (int i = 0; i < bd; i++)
        back[i] = i;
    return gb_permute(g, gb_reshape(g, y, bd, rank, shape), back);
}

/* words: the logical axes */
eas_status make_index(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, -1);
    chosen k;
    eas_node *index[GRAPH_MAX_RANK];
    eas_dim ishape[GRAPH_MAX_RANK], shape[3 * GRAPH_MAX_RANK], batch[GRAPH_MAX_RANK];
    int64_t words[GRAPH_MAX_RANK];
    int irank, ibd = 0, n = c->nin - 1, rank = 0;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    read_indexed(&r, x, n, c->in + 1, &k);
    if (!r.g.st)
        r.g.st = graph_align(c, n, c->in + 1, index, &ibd);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    r.g.st = graph_broadcast(c, n, index, &irank, ishape);
    for (int i = 0; i < n; i++)
        node_unref(index[i]);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int bd = ibd > x->batch_dims ? ibd : x->batch_dims;
    for (int i = 0; i < bd; i++) {
        eas_dim a = i < bd - x->batch_dims ? 1 : node_shape(x)[i - (bd - x->batch_dims)],
                b = i < bd - ibd ? 1 : ishape[i - (bd - ibd)];
        batch[i] = a == 1 ? b : a;
        shape[rank++] = batch[i];
    }
    for (int i = 0; i <= k.nrest && rank <= 2 * GRAPH_MAX_RANK; i++) {
        for (int j = ibd; i == k.place && j < irank; j++)
            shape[rank++] = ishape[j];
        if (i < k.nrest)
            shape[rank++] = k.rest[i];
    }
    for (int i = 0; i < n; i++)
        words[i] = k.axis[i];
    return rule_node(&r, (eas_dtype)x->dtype, bd, rank, shape, n, words, c->nin, c->in, out);
}

static chosen chosen_of(const eas_node *n, const eas_node *x, int nindices)
{
    chosen k = {.n = nindices};
    for (int i = 0; i < nindices; i++)
        k.axis[i] = (int)node_words(n)[i];
    place_indices(x, &k);
    return k;
}

eas_status expand_index(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    chosen k = chosen_of(n, in[0], n->nin - 1);
    eas_node *y = lower_gather(&g, merged(&g, in[0], &k), linear_index(&g, k.n, in + 1, k.size), k.place);
    return gb_done(&g, y ? gb_reshape(&g, y, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}

/* ---- writing ---- */

static int read_how(rule *r)
{
    int64_t how = rule_int(r);
    if (how < SCATTER_SET || how > SCATTER_MAX)
        rule_fail(r, "there is no mode %lld", (long long)how);
    return (int)how;
}

/* x with updates written at index of an axis. updates broadcast to x's shape with the indices' in place of
 * the axis. own: the dims before the axis, which is the last one, have indices of their own. */
static eas_node *scattered(gbuild *g, const graph_call *c, eas_node *x, eas_node *index, eas_node *u,
                           int logical_axis, bool own, int how)
{
    eas_node *all[3];
    eas_dim batch[GRAPH_MAX_RANK], want[3 * GRAPH_MAX_RANK], lifted[3 * GRAPH_MAX_RANK];
    index = signed_index(g, index);
    if (g->st || !x || !index || !u)
        return NULL;
    int bd = gb_align_batch(g, 3, (eas_node *[]){x, index, u}, all), nbatch = index->batch_dims ? bd : 0,
        rank = 0;
    if (g->st)
        return NULL;
    gb_batch_shape(g, 3, all, bd, batch);
    x = with_batch(g, x, bd, batch);
    if (own && !g->st) {
        nbatch = bd + logical_axis;
        memcpy(want, node_shape(x), sizeof *want * (size_t)nbatch);
        want[nbatch] = node_shape(all[1])[all[1]->rank - 1];
        index = gb_broadcast(g, all[1], bd, nbatch + 1, want);
    } else
        index = nbatch ? with_batch(g, index, bd, batch) : index;
    u = gb_typed(g, all[2], (eas_dtype)all[0]->dtype);
    if (g->st)
        return NULL;
    for (int i = 0; i < bd + logical_axis; i++)
        want[rank++] = node_shape(x)[i];
    for (int i = nbatch; i < index->rank; i++)
        want[rank++] = node_shape(index)[i];
    for (int i = bd + logical_axis + 1; i < x->rank; i++)
        want[rank++] = node_shape(x)[i];
    int more = rank - u->rank;
    bool fits = more >= 0 && rank <= GRAPH_MAX_RANK;
    for (int i = 0; i < rank && fits; i++) {
        lifted[i] = i < bd ? node_shape(u)[i] : i < bd + more ? 1 : node_shape(u)[i - more];
        fits = lifted[i] == 1 || lifted[i] == want[i];
    }
    if (!fits) {
        g->st = node_fail(EAS_ERR_VALUE, c, "updates of shape %s do not fit %s",
                          shape_text((char[128]){0}, 128, u->rank - bd, node_shape(u) + bd),
                          shape_text((char[128]){0}, 128, rank - bd, want + bd));
        return NULL;
    }
    u = gb_broadcast(g, gb_reshape(g, u, bd, rank, lifted), bd, rank, want);
    int64_t words[3] = {nbatch, bd + logical_axis, how};
    return gb_new(g, GRAPH_SCATTER, (eas_dtype)x->dtype, bd, x->rank, node_shape(x), 3, words, 3,
                  (eas_node *[]){x, index, u});
}

/* Bools are joined as numbers: or is max, and is min. */
static eas_node *scatter_any(gbuild *g, const graph_call *c, eas_node *x, eas_node *index, eas_node *u,
                             int axis, bool own, int how)
{
    if (g->st || !x || x->dtype != EAS_BOOL || how == SCATTER_SET)
        return scattered(g, c, x, index, u, axis, own, how);
    how = how == SCATTER_ADD ? SCATTER_MAX : how == SCATTER_MUL ? SCATTER_MIN : how;
    return gb_typed(g,
                    scattered(g, c, gb_typed(g, x, EAS_U8), index,
                              gb_typed(g, gb_typed(g, u, EAS_BOOL), EAS_U8), axis, own, how),
                    EAS_BOOL);
}

eas_status make_scatter(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 3, 3);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int axis = rule_axis(&r, x), how = read_how(&r);
    need_integers(&r, c->in[1]);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    axis -= x->batch_dims;
    return rule_done(&r, scatter_any(&r.g, c, x, c->in[1], c->in[2], axis, false, how), out);
}

eas_status make_index_update(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 3, -1);
    gbuild *g = &r.g;
    chosen k;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    read_indexed(&r, x, c->nin - 2, c->in + 2, &k);
    int how = read_how(&r);
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_node *y = scatter_any(g, c, merged(g, x, &k), linear_index(g, k.n, c->in + 2, k.size), c->in[1],
                              k.place, false, how);
    return rule_done(&r, unmerged(g, y, x, &k), out);
}

/* The numbers of the elements of a tensor of `shape` that have index in place of their own along the axis. */
static eas_node *along_numbers(gbuild *g, eas_node *index, int bd, int rank, const eas_dim *shape, int axis)
{
    eas_node *at[GRAPH_MAX_RANK];
    for (int i = bd; i < rank; i++)
        at[i - bd] = i == axis ? index : gb_iota_at(g, shape[i], EAS_I64, rank - 1 - i);
    return linear_index(g, rank - bd, at, shape + bd);
}

/* x with values at indices along an axis; other dims of indices and values broadcast to x's. Rows of the last
 * axis are updated beside each other; along another axis, elements are numbered through all dims. */
eas_status make_put_along_axis(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 3, 3);
    gbuild *g = &r.g;
    eas_node *both[2];
    eas_dim want[GRAPH_MAX_RANK], flat[GRAPH_MAX_RANK + 1];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int axis = along_axis(&r, both), how = read_how(&r);
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_node *x = both[0];
    int bd = x->batch_dims, rank = x->rank;
    for (int i = 0; i < rank && !g->st; i++) {
        eas_dim d = node_shape(both[1])[i];
        want[i] = i < bd ? (node_shape(x)[i] == 1 ? d : node_shape(x)[i]) : i == axis ? d : node_shape(x)[i];
        if (d != 1 && d != want[i])
            rule_fail(&r, "indices of shape %s do not fit %s", rule_text(c->in[1], (char[128]){0}),
                      rule_text(c->in[0], (char[128]){0}));
    }
    if (axis == rank - 1)
        return rule_done(&r, g->st ? NULL : scatter_any(g, c, x, both[1], c->in[2], axis - bd, true, how),
                         out);
    memcpy(flat, node_shape(x), sizeof *flat * (size_t)bd);
    flat[bd] = gb_product(g, rank - bd, node_shape(x) + bd);
    eas_node *index = gb_broadcast(g, both[1], bd, rank, want);
    index = along_numbers(g, index, bd, rank, node_shape(x), axis);
    eas_node *u = gb_typed(g, c->in[2], (eas_dtype)x->dtype);
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_node *y = scatter_any(g, c, gb_reshape(g, x, bd, bd + 1, flat), index, u, 0, false, how);
    if (!y)
        return rule_done(&r, NULL, out);
    /* y may have batch dims that only the indices or the values brought */
    eas_dim shape[2 * GRAPH_MAX_RANK];
    memcpy(shape, node_shape(y), sizeof *shape * (size_t)y->batch_dims);
    memcpy(shape + y->batch_dims, node_shape(x) + bd, sizeof *shape * (size_t)(rank - bd));
    return rule_done(&r, gb_reshape(g, y, y->batch_dims, y->batch_dims + rank - bd, shape), out);
}

/* ---- search in what is sorted ---- */

enum { FEW = 32 };

eas_status make_searchsorted(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    int64_t right = rule_int(&r);
    if (!r.g.st && node_logical_rank(c->in[0]) != 1)
        rule_fail(&r, "shape %s: one axis of sorted elements is wanted", rule_text(c->in[0], (char[128]){0}));
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0], *v = c->in[1];
    eas_dim shape[2 * GRAPH_MAX_RANK];
    bool weak;
    eas_dtype dt =
        graph_promote((eas_dtype)x->dtype, false, (eas_dtype)v->dtype, (v->flags & NODE_WEAK) != 0, &weak);
    eas_node *both[2];
    int bd = gb_align_batch(&r.g, 2, (eas_node *[]){x, v}, both);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    gb_batch_shape(&r.g, 2, both, bd, shape);
    memcpy(shape + bd, node_logical_shape(v), sizeof *shape * (size_t)node_logical_rank(v));
    eas_node *in[2] = {gb_typed(&r.g, x, dt), gb_typed(&r.g, v, dt)};
    return rule_node(&r, EAS_I64, bd, bd + node_logical_rank(v), shape, 1, &right, 2, in, out);
}

/* Does element a stand left of the place for v? NaN comes last: `late` tells that v is one (NULL: the dtype
 * has none). */
static eas_node *stays_left(gbuild *g, eas_node *a, eas_node *v, eas_node *late, bool right)
{
    eas_node *left = gb2(g, right ? GRAPH_LESS_EQUAL : GRAPH_LESS, a, v);
    if (!late)
        return left;
    if (!right)
        late = gb2(g, GRAPH_LOGICAL_AND, late, gb2(g, GRAPH_EQUAL, a, a));
    return gb2(g, GRAPH_LOGICAL_OR, left, late);
}

static eas_node *is_late(gbuild *g, eas_node *v)
{
    return !g->st && v && dtype_is_float((eas_dtype)v->dtype) ? gb1(g, GRAPH_IS_NAN, v) : NULL;
}

static eas_node *count_left(gbuild *g, eas_node *x, eas_node *v, bool right)
{
    eas_node *one = gb_unsqueeze(g, v, v->rank);
    eas_node *left = gb_typed(g, stays_left(g, x, one, is_late(g, one), right), EAS_I64);
    return left ? gb_reduce(g, GRAPH_REDUCE_SUM, left, (uint32_t)1 << (left->rank - 1), false) : NULL;
}

/* The place is in [at, at + n]. A step halves n by the element in the middle, which is never out of range. */
static eas_node *bisect(gbuild *g, eas_node *x, eas_node *v, bool right, int64_t n)
{
    const eas_dtype dt = n <= INT32_MAX ? EAS_I32 : EAS_I64;
    const int64_t axis = 0;
    eas_node *at = gb_broadcast(g, gb_int(g, dt, 0), v->batch_dims, v->rank, node_shape(v)),
             *late = is_late(g, v);
    while (n > 0 && !g->st) {
        const int64_t half = (n + 1) / 2;
        eas_node *middle = gb2(g, GRAPH_ADD, at, gb_int(g, dt, half - 1));
        eas_node *a = gb_apply(g, GRAPH_GATHER, 2, (eas_node *[]){x, middle}, 1, &axis);
        eas_node *behind = gb2(g, GRAPH_ADD, at, gb_int(g, dt, half));
        at = gb3(g, GRAPH_WHERE, stays_left(g, a, v, late, right), behind, at);
        n -= half;
    }
    return gb_typed(g, at, EAS_I64);
}

eas_status expand_searchsorted(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_dim size = node_shape(in[0])[in[0]->rank - 1];
    bool right = node_words(n)[0] != 0, few = !dim_known(size) || size <= FEW;
    eas_node *y = few ? count_left(&g, in[0], in[1], right) : bisect(&g, in[0], in[1], right, size);
    return gb_done(&g, y ? gb_broadcast(&g, y, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}
