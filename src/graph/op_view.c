/* op_view.c: the same elements in another shape or order: reshapes, permutations, broadcasts and slices.
 *
 * A rule turns logical axes and shapes into physical ones by putting the batch dims in front. Most are one
 * node of a simple kind.
 */
#include "graph.h"

/* Records c's operation as a reshape of x to `shape` behind `keep` leading dims of x. */
static eas_status reshaped(rule *r, eas_node *x, int keep, int batch_dims, int n, const eas_dim *shape,
                           eas_node **out)
{
    eas_dim full[3 * GRAPH_MAX_RANK];
    if (!r->g.st && keep + n > 2 * GRAPH_MAX_RANK)
        rule_fail(r, "a result of %d dims; there are at most %d", keep + n, GRAPH_MAX_RANK);
    if (r->g.st)
        return rule_done(r, NULL, out);
    memcpy(full, node_shape(x), sizeof *full * (size_t)keep);
    if (n)
        memcpy(full + keep, shape, sizeof *full * (size_t)n);
    return rule_node(r, (eas_dtype)x->dtype, batch_dims, keep + n, full, 0, NULL, 1, &x, out);
}

/* ---- reshape ---- */

static void cannot_reshape(rule *r, const eas_node *x, int base, int n, const int64_t *shape)
{
    char from[128], to[128];
    rule_fail(r, "%s cannot be reshaped to %s",
              shape_text(from, sizeof from, x->rank - base, node_shape(x) + base),
              shape_text(to, sizeof to, n, shape));
}

/* The size that -1 stands for. For an empty tensor it may be undetermined, which is an error, as in NumPy.
 */
static eas_dim missing_size(rule *r, const eas_node *x, int base, eas_dim have, int n, const int64_t *shape,
                            int at)
{
    dims rest = {0};
    eas_dim d;
    for (int i = 0; i < n; i++)
        if (i != at)
            rest.at[rest.n++] = shape[i];
    if (dim_divides(have, gb_product(&r->g, rest.n, rest.at), &d))
        return d;
    cannot_reshape(r, x, base, n, shape);
    return 0;
}

static void resolve_shape(rule *r, const eas_node *x, int base, dims *to)
{
    const int64_t *shape;
    int n = rule_list(r, &shape), at = -1;
    if (n < 0)
        rule_type_fail(r, "a shape is missing");
    if (n > GRAPH_MAX_RANK)
        rule_fail(r, "a shape of %d dims; there are at most %d", n, GRAPH_MAX_RANK);
    for (int i = 0; i < n && !r->g.st; i++) {
        to->at[i] = shape[i];
        if (shape[i] >= 0 || dim_is_expr(shape[i]))
            continue;
        if (shape[i] != -1 || at >= 0)
            rule_fail(r, "%s: one size may be -1, none may be otherwise negative",
                      shape_text((char[128]){0}, 128, n, shape));
        at = i;
    }
    if (r->g.st)
        return;
    to->n = n;
    eas_dim have = gb_product(&r->g, x->rank - base, node_shape(x) + base);
    if (at >= 0)
        to->at[at] = missing_size(r, x, base, have, n, shape, at);
    else if (have != gb_product(&r->g, n, to->at) && !r->g.st)
        cannot_reshape(r, x, base, n, shape);
}

static eas_status reshape(const graph_call *c, bool physical, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    dims to = {0};
    r.physical = physical;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int base = rule_base(&r, c->in[0]), bd = c->in[0]->batch_dims;
    resolve_shape(&r, c->in[0], base, &to);
    return reshaped(&r, c->in[0], base, physical && to.n < bd ? to.n : bd, to.n, to.at, out);
}

eas_status make_reshape(const graph_call *c, eas_node **out) { return reshape(c, false, out); }
eas_status make_reshape_physical(const graph_call *c, eas_node **out) { return reshape(c, true, out); }

eas_status make_flatten(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    dims to = {0};
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int bd = x->batch_dims;
    if (node_logical_rank(x) == 0) {
        int64_t start = rule_int(&r), end = rule_int(&r);
        if (start < -1 || start > 0 || end < -1 || end > 0)
            rule_fail(&r, "dims %lld to %lld of a tensor of 0 dims", (long long)start, (long long)end);
        return reshaped(&r, x, bd, bd, 1, (eas_dim[]){1}, out);
    }
    int start = rule_axis(&r, x), end = rule_axis(&r, x);
    if (start > end)
        rule_fail(&r, "start_dim %d is behind end_dim %d", start - bd, end - bd);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    for (int i = bd; i < start; i++)
        to.at[to.n++] = node_shape(x)[i];
    to.at[to.n++] = gb_product(&r.g, end - start + 1, node_shape(x) + start);
    for (int i = end + 1; i < x->rank; i++)
        to.at[to.n++] = node_shape(x)[i];
    return reshaped(&r, x, bd, bd, to.n, to.at, out);
}

/* One axis becomes several; one size may be -1. */
eas_status make_unflatten(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    const int64_t *sizes;
    dims to = {0}, rest = {0};
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int axis = rule_axis(&r, x), n = rule_list(&r, &sizes), bd = x->batch_dims, at = -1;
    if (n < 1 || n > GRAPH_MAX_RANK)
        rule_fail(&r, "the sizes of the axis are missing or too many");
    for (int i = bd; i < axis; i++)
        to.at[to.n++] = node_shape(x)[i];
    for (int i = 0; i < n && !r.g.st; i++) {
        if (sizes[i] < -1 && !dim_is_expr(sizes[i]))
            rule_fail(&r, "size %lld is negative", (long long)sizes[i]);
        if (sizes[i] == -1 && at >= 0)
            rule_fail(&r, "one size may be -1");
        if (sizes[i] == -1)
            at = to.n;
        else
            rest.at[rest.n++] = sizes[i];
        to.at[to.n++] = sizes[i];
    }
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_dim have = node_shape(x)[axis], product = gb_product(&r.g, rest.n, rest.at), left = 1;
    if (!dim_divides(have, product, &left) || (at < 0 && left != 1)) {
        char from[128], parts[128];
        if (at >= 0 || have != product)
            rule_fail(&r, "the axis of size %s does not become %s", shape_text(from, 128, 1, &have),
                      shape_text(parts, 128, n, sizes));
    }
    if (at >= 0)
        to.at[at] = left;
    for (int i = axis + 1; i < x->rank && to.n < 2 * GRAPH_MAX_RANK; i++)
        to.at[to.n++] = node_shape(x)[i];
    return reshaped(&r, x, bd, bd, to.n, to.at, out);
}

static eas_status squeeze(const graph_call *c, bool physical, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    dims to = {0};
    r.physical = physical;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    bool all = c->nattr > 0 && c->attr[0] < 0;
    int base = rule_base(&r, x), bd = x->batch_dims;
    uint32_t axes = rule_axes(&r, x);
    for (int i = base; i < x->rank; i++) {
        bool named = axes >> i & 1;
        if (named && !all && node_shape(x)[i] != 1)
            rule_fail(&r, "axis %d of shape %s has not size 1", i - base,
                      shape_text((char[128]){0}, 128, x->rank - base, node_shape(x) + base));
        if (!named || node_shape(x)[i] != 1)
            to.at[to.n++] = node_shape(x)[i];
    }
    return reshaped(&r, x, base, base + to.n < bd ? base + to.n : bd, to.n, to.at, out);
}

eas_status make_squeeze(const graph_call *c, eas_node **out) { return squeeze(c, false, out); }
eas_status make_squeeze_physical(const graph_call *c, eas_node **out) { return squeeze(c, true, out); }

/* Axes are those of the result. */
static eas_status unsqueeze(const graph_call *c, bool physical, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    const int64_t *items;
    dims to = {0};
    uint32_t new = 0;
    r.physical = physical;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int n = rule_list(&r, &items), base = rule_base(&r, x), have = x->rank - base, rank = have + n;
    if (n < 0)
        rule_type_fail(&r, "an axis is missing");
    if (rank > GRAPH_MAX_RANK)
        rule_fail(&r, "a result of %d dims; there are at most %d", rank, GRAPH_MAX_RANK);
    for (int i = 0; i < n && !r.g.st; i++) {
        if (items[i] < -rank || items[i] >= rank)
            rule_fail(&r, "axis %lld is out of range for a result of %d dims", (long long)items[i], rank);
        else if (new >> (items[i] < 0 ? items[i] + rank : items[i]) & 1)
            rule_fail(&r, "axis %lld is there twice", (long long)items[i]);
        else
            new |= (uint32_t)1 << (items[i] < 0 ? items[i] + rank : items[i]);
    }
    for (int k = 0; to.n < rank && !r.g.st;) {
        bool fresh = new >> to.n & 1;
        to.at[to.n++] = fresh ? 1 : node_shape(x)[base + k++];
    }
    return reshaped(&r, x, base, x->batch_dims, to.n, to.at, out);
}

eas_status make_unsqueeze(const graph_call *c, eas_node **out) { return unsqueeze(c, false, out); }
eas_status make_unsqueeze_physical(const graph_call *c, eas_node **out) { return unsqueeze(c, true, out); }

/* ---- permutations ---- */

static eas_status permuted(rule *r, eas_node *x, int batch_dims, const int64_t *order, eas_node **out)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (r->g.st)
        return rule_done(r, NULL, out);
    for (int i = 0; i < x->rank; i++)
        shape[i] = node_shape(x)[order[i]];
    return rule_node(r, (eas_dtype)x->dtype, batch_dims, x->rank, shape, x->rank, order, 1, &x, out);
}

eas_status make_permute(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    const int64_t *items;
    int64_t order[GRAPH_MAX_RANK];
    uint32_t seen = 0;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int n = rule_list(&r, &items), bd = x->batch_dims;
    for (int i = 0; i < x->rank; i++)
        order[i] = n < 0 && i >= bd ? x->rank - 1 - (i - bd) : i;
    if (n >= 0 && n != node_logical_rank(x))
        rule_fail(&r, "an order of %d axes for shape %s", n, rule_text(x, (char[128]){0}));
    for (int i = 0; i < n && !r.g.st; i++) {
        order[bd + i] = rule_axis_of(&r, x, items[i]);
        if (seen >> order[bd + i] & 1)
            rule_fail(&r, "axis %lld is there twice", (long long)items[i]);
        seen |= (uint32_t)1 << order[bd + i];
    }
    return permuted(&r, x, bd, order, out);
}

eas_status make_swap_axes(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    int64_t order[GRAPH_MAX_RANK];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int a = rule_axis(&r, x), b = rule_axis(&r, x);
    for (int i = 0; i < x->rank; i++)
        order[i] = i == a ? b : i == b ? a : i;
    return permuted(&r, x, x->batch_dims, order, out);
}

eas_status make_matrix_transpose(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    int64_t order[GRAPH_MAX_RANK];
    if (!r.g.st && node_logical_rank(c->in[0]) < 2)
        rule_fail(&r, "shape %s is not that of a matrix", rule_text(c->in[0], (char[128]){0}));
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    for (int i = 0; i < x->rank; i++)
        order[i] = i == x->rank - 1 ? i - 1 : i == x->rank - 2 ? i + 1 : i;
    return permuted(&r, x, x->batch_dims, order, out);
}

static eas_status moveaxis(const graph_call *c, bool physical, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    const int64_t *from, *to;
    int64_t order[GRAPH_MAX_RANK];
    uint32_t taken = 0, placed = 0;
    r.physical = physical;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int n = rule_list(&r, &from), m = rule_list(&r, &to);
    if (n != m || n < 0)
        rule_fail(&r, "%d sources and %d destinations", n, m);
    for (int i = 0; i < n && !r.g.st; i++) {
        int source = rule_axis_of(&r, x, from[i]), place = rule_axis_of(&r, x, to[i]);
        if (taken >> source & 1 || placed >> place & 1)
            rule_fail(&r, "axis %lld is there twice", (long long)(taken >> source & 1 ? from[i] : to[i]));
        order[place] = source;
        taken |= (uint32_t)1 << source;
        placed |= (uint32_t)1 << place;
    }
    for (int i = 0, k = 0; i < x->rank && !r.g.st; i++) {
        if (placed >> i & 1)
            continue;
        while (taken >> k & 1)
            k++;
        order[i] = k++;
    }
    return permuted(&r, x, x->batch_dims, order, out);
}

eas_status make_moveaxis(const graph_call *c, eas_node **out) { return moveaxis(c, false, out); }
eas_status make_moveaxis_physical(const graph_call *c, eas_node **out) { return moveaxis(c, true, out); }

/* ---- broadcasts ---- */

static eas_status broadcast_to(const graph_call *c, bool physical, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim full[3 * GRAPH_MAX_RANK], lifted[3 * GRAPH_MAX_RANK];
    r.physical = physical;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    dims to = rule_shape(&r);
    int base = rule_base(&r, x), have = x->rank - base, more = to.n - have;
    bool fits = more >= 0;
    for (int i = 0; i < have && fits; i++)
        fits = node_shape(x)[base + i] == 1 || node_shape(x)[base + i] == to.at[more + i];
    if (!fits)
        rule_fail(&r, "%s does not broadcast to %s",
                  shape_text((char[128]){0}, 128, have, node_shape(x) + base),
                  shape_text((char[128]){0}, 128, to.n, to.at));
    if (!r.g.st && base + to.n > GRAPH_MAX_RANK)
        rule_fail(&r, "a result of %d dims; there are at most %d, those of vmap included", base + to.n,
                  GRAPH_MAX_RANK);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    for (int i = 0; i < base + to.n; i++) {
        lifted[i] = i < base ? node_shape(x)[i] : i < base + more ? 1 : node_shape(x)[i - more];
        full[i] = i < base ? node_shape(x)[i] : to.at[i - base];
    }
    if (base && more) /* broadcasting aligns at the end, so new dims must stand behind the batch dims first */
        x = gb_reshape(&r.g, x, x->batch_dims, base + to.n, lifted);
    return rule_node(&r, (eas_dtype)c->in[0]->dtype, c->in[0]->batch_dims, base + to.n, full, 0, NULL, 1, &x,
                     out);
}

eas_status make_broadcast_to(const graph_call *c, eas_node **out) { return broadcast_to(c, false, out); }
eas_status make_broadcast_to_physical(const graph_call *c, eas_node **out)
{
    return broadcast_to(c, true, out);
}

/* ---- slices ---- */

/* The part of x that a slice takes, per physical axis. */
typedef struct part {
    eas_dim size[GRAPH_MAX_RANK];
    int64_t words[2 * GRAPH_MAX_RANK]; /* start, then step */
} part;

static void whole(const eas_node *x, part *p)
{
    for (int i = 0; i < x->rank; i++) {
        p->size[i] = node_shape(x)[i];
        p->words[i] = 0;
        p->words[x->rank + i] = 1;
    }
}

/* Fails where the slice is known to leave the axis; what depends on symbols is for the run. */
static void check_range(rule *r, eas_dim n, eas_dim start, eas_dim size, int64_t step, int axis)
{
    if (!dim_known(n) || start < DIM_LOWEST || !dim_known(size))
        return;
    int64_t span = 0, last = start;
    if (size == 0)
        return;
    if (__builtin_mul_overflow(size - 1, step, &span) || __builtin_add_overflow(start, span, &last) ||
        start < 0 || start >= n || last < 0 || last >= n)
        rule_fail(r, "elements %lld to %lld of axis %d, which has size %lld", (long long)start,
                  (long long)last, axis, (long long)n);
}

static void take_sizes(rule *r, const eas_node *x, int n, const int64_t *start, const int64_t *size,
                       const int64_t *step, part *p)
{
    int base = rule_base(r, x);
    whole(x, p);
    for (int i = 0; i < n && !r->g.st; i++) {
        int axis = base + i;
        int64_t by = step ? step[i] : 1;
        if ((size[i] < 0 && !dim_is_expr(size[i])) || start[i] == DIM_NONE)
            rule_fail(r, "size %lld from start %lld of axis %d", (long long)size[i], (long long)start[i], i);
        check_range(r, node_shape(x)[axis], start[i], size[i], by, i);
        p->size[axis] = size[i];
        p->words[axis] = size[i] == 0 ? 0 : start[i];
        p->words[x->rank + axis] = by;
    }
}

static eas_status sliced(rule *r, eas_node *x, const part *p, eas_node **out)
{
    return rule_node(r, (eas_dtype)x->dtype, x->batch_dims, x->rank, p->size, 2 * x->rank, p->words, 1, &x,
                     out);
}

static int same_count(rule *r, const eas_node *x, int n, int m, int k)
{
    if (n != m || n != k || n > x->rank - rule_base(r, x) || n < 0)
        rule_fail(r, "start, size and step for %d, %d and %d axes of shape %s", n, m, k,
                  rule_text(x, (char[128]){0}));
    return r->g.st ? 0 : n;
}

eas_status make_slice_steps(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    const int64_t *start, *size, *step;
    part p;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int n = rule_list(&r, &start), m = rule_list(&r, &size), k = rule_list(&r, &step);
    n = same_count(&r, c->in[0], n, m, k);
    for (int i = 0; i < n; i++)
        if (step[i] == 0 || step[i] == DIM_NONE)
            rule_fail(&r, "step %d is 0 or missing", i);
    take_sizes(&r, c->in[0], n, start, size, step, &p);
    return sliced(&r, c->in[0], &p, out);
}

static eas_status slice_tensor(const graph_call *c, bool physical, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    const int64_t *start, *size;
    part p;
    r.physical = physical;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int n = rule_list(&r, &start), m = rule_list(&r, &size);
    n = same_count(&r, c->in[0], n, m, m);
    take_sizes(&r, c->in[0], n, start, size, NULL, &p);
    return sliced(&r, c->in[0], &p, out);
}

eas_status make_slice_tensor(const graph_call *c, eas_node **out) { return slice_tensor(c, false, out); }
eas_status make_slice_tensor_physical(const graph_call *c, eas_node **out)
{
    return slice_tensor(c, true, out);
}

/* A bound as Python's slices mean it: None, from the end if negative, and never outside [low, high]. */
static eas_dim bound(rule *r, int64_t v, eas_dim none, eas_dim n, eas_dim low, eas_dim high)
{
    gbuild *g = &r->g;
    if (v == DIM_NONE)
        return none;
    eas_dim d = v < 0 && !dim_is_expr(v) ? gb_dim(g, EAS_DIM_ADD, n, v) : v;
    return gb_dim(g, EAS_DIM_MIN, gb_dim(g, EAS_DIM_MAX, d, low), high);
}

/* start:stop:step of an axis of n elements. */
static void resolve_slice(rule *r, eas_dim n, int64_t start, int64_t stop, int64_t step, eas_dim *first,
                          eas_dim *size)
{
    gbuild *g = &r->g;
    int64_t by = step == DIM_NONE ? 1 : step;
    *first = *size = 0;
    if (by == 0 || dim_is_expr(by)) {
        rule_fail(r, by ? "a step must be a number" : "a step is 0");
        return;
    }
    eas_dim low = by > 0 ? 0 : -1, high = by > 0 ? n : gb_dim(g, EAS_DIM_SUB, n, 1);
    eas_dim from = bound(r, start, by > 0 ? low : high, n, low, high),
            to = bound(r, stop, by > 0 ? high : low, n, low, high);
    eas_dim gap = by > 0 ? gb_dim(g, EAS_DIM_SUB, to, from) : gb_dim(g, EAS_DIM_SUB, from, to);
    int64_t stride = by > 0 ? by : -by;
    eas_dim count = gb_dim(g, EAS_DIM_FLOORDIV, gb_dim(g, EAS_DIM_ADD, gap, stride - 1), stride);
    *size = gb_dim(g, EAS_DIM_MAX, count, 0);
    *first = *size == 0 ? 0 : from;
}

/* The lists of start, stop and step as a part of x. */
static void take_slices(rule *r, const eas_node *x, part *p)
{
    const int64_t *start, *stop, *step;
    int n = rule_list(r, &start), m = rule_list(r, &stop), k = rule_list(r, &step);
    n = same_count(r, x, n, m, k);
    whole(x, p);
    for (int i = 0; i < n && !r->g.st; i++) {
        int axis = x->batch_dims + i;
        resolve_slice(r, node_shape(x)[axis], start[i], stop[i], step[i], &p->words[axis], &p->size[axis]);
        p->words[x->rank + axis] = step[i] == DIM_NONE ? 1 : step[i];
    }
}

eas_status make_slice(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    part p;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    take_slices(&r, c->in[0], &p);
    return sliced(&r, c->in[0], &p, out);
}

eas_status make_flip(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    part p;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    uint32_t axes = rule_axes(&r, x);
    whole(x, &p);
    for (int i = 0; i < x->rank; i++)
        if (axes >> i & 1 && p.size[i] != 0) {
            p.words[i] = gb_dim(&r.g, EAS_DIM_SUB, p.size[i], 1);
            p.words[x->rank + i] = -1;
        }
    return sliced(&r, x, &p, out);
}

/* ---- updates of slices ---- */

/* x with u, broadcast, in place of part p. A part that runs backwards takes u backwards. */
static eas_status updated(rule *r, eas_node *x, eas_node *u, part *p, eas_node **out)
{
    gbuild *g = &r->g;
    eas_node *both[2] = {x, u};
    eas_dim batch[GRAPH_MAX_RANK], shape[GRAPH_MAX_RANK], lifted[GRAPH_MAX_RANK];
    part q = {0};
    if (g->st)
        return rule_done(r, NULL, out);
    int own = x->batch_dims, logical = node_logical_rank(x), more = logical - node_logical_rank(u);
    int bd = gb_align_batch(g, 2, both, both);
    if (more < 0)
        rule_fail(r, "an update of shape %s does not fit %s", rule_text(u, (char[128]){0}),
                  shape_text((char[128]){0}, 128, logical, p->size + own));
    if (bd + logical > GRAPH_MAX_RANK)
        rule_fail(r, "a result of %d dims; there are at most %d", bd + logical, GRAPH_MAX_RANK);
    if (g->st)
        return rule_done(r, NULL, out);
    gb_batch_shape(g, 2, both, bd, batch);
    for (int i = 0; i < bd + logical; i++) {
        eas_dim part_size = i < bd ? batch[i] : p->size[own + i - bd];
        shape[i] = i < bd ? batch[i] : node_logical_shape(x)[i - bd];
        lifted[i] = i < bd ? node_shape(both[1])[i] : i < bd + more ? 1 : node_shape(both[1])[i - more];
        if (lifted[i] != 1 && lifted[i] != part_size)
            rule_fail(r, "an update of shape %s does not fit %s", rule_text(u, (char[128]){0}),
                      shape_text((char[128]){0}, 128, logical, p->size + own));
        q.size[i] = part_size;
        q.words[i] = i < bd ? 0 : p->words[own + i - bd];
        q.words[bd + logical + i] = i < bd ? 1 : p->words[x->rank + own + i - bd];
    }
    both[0] = gb_broadcast(g, both[0], bd, bd + logical, shape);
    both[1] =
        gb_broadcast(g, gb_reshape(g, gb_typed(g, both[1], (eas_dtype)x->dtype), bd, bd + logical, lifted),
                     bd, bd + logical, q.size);
    for (int i = bd; i < bd + logical && !g->st; i++) {
        int64_t step = q.words[bd + logical + i];
        if (step > 0)
            continue;
        eas_dim last = gb_dim(g, EAS_DIM_SUB, q.size[i], 1);
        both[1] = gb_slice(g, both[1], i, q.size[i] == 0 ? 0 : last, q.size[i], -1);
        q.words[i] =
            q.size[i] == 0 ? 0 : gb_dim(g, EAS_DIM_ADD, q.words[i], gb_dim(g, EAS_DIM_MUL, last, step));
        q.words[bd + logical + i] = -step;
    }
    return rule_node(r, (eas_dtype)x->dtype, bd, bd + logical, shape, 2 * (bd + logical), q.words, 2, both,
                     out);
}

eas_status make_slice_update(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    const int64_t *start, *size;
    part p;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    int n = rule_list(&r, &start), m = rule_list(&r, &size);
    n = same_count(&r, c->in[0], n, m, m);
    take_sizes(&r, c->in[0], n, start, size, NULL, &p);
    return updated(&r, c->in[0], c->in[1], &p, out);
}

eas_status make_slice_set(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    part p;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    take_slices(&r, c->in[0], &p);
    return updated(&r, c->in[0], c->in[1], &p, out);
}

/* ---- diagonal ---- */

eas_status make_diagonal(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK];
    int rank = 0;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    gbuild *g = &r.g;
    int64_t offset = rule_int(&r);
    int a = rule_axis(&r, x), b = rule_axis(&r, x);
    if (a == b)
        rule_fail(&r, "axes %d and %d are one", a - x->batch_dims, b - x->batch_dims);
    if (offset < DIM_LOWEST)
        rule_fail(&r, "offset is out of range");
    if (g->st)
        return rule_done(&r, NULL, out);
    for (int i = 0; i < x->rank; i++)
        if (i != a && i != b)
            shape[rank++] = node_shape(x)[i];
    eas_dim rows = node_shape(x)[a], cols = node_shape(x)[b];
    *(offset < 0 ? &rows : &cols) =
        gb_dim(g, EAS_DIM_SUB, offset < 0 ? rows : cols, offset < 0 ? -offset : offset);
    shape[rank++] = gb_dim(g, EAS_DIM_MAX, gb_dim(g, EAS_DIM_MIN, rows, cols), 0);
    return rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, rank, shape, 3, (int64_t[]){offset, a, b}, 1, &x,
                     out);
}

/* With the two axes as one, neighbours on the diagonal are a row and one element apart. */
static eas_node *every_other(gbuild *g, eas_node *n, eas_node *x)
{
    const int64_t *w = node_words(n), offset = w[0];
    const int a = (int)w[1], b = (int)w[2], last = x->rank - 1;
    const eas_dim rows = node_shape(x)[a], cols = node_shape(x)[b];
    eas_dim shape[GRAPH_MAX_RANK];
    if (a != last - 1 || b != last) {
        x = gb_move(g, x, a, last);
        x = gb_move(g, x, b - (b > a), last); /* ..., a, b */
    }
    if (!x)
        return NULL;
    memcpy(shape, node_shape(x), sizeof *shape * (size_t)last);
    shape[last - 1] = rows * cols;
    x = gb_reshape(g, x, x->batch_dims, last, shape);
    return gb_slice(g, x, last - 1, offset < 0 ? -offset * cols : offset, node_shape(n)[n->rank - 1],
                    cols + 1);
}

/* Element i of the diagonal is element i + column offset of row i + row offset. */
eas_status expand_diagonal(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    const int64_t *w = node_words(n);
    int64_t offset = w[0];
    int a = (int)w[1], b = (int)w[2], last = n->rank;
    eas_dim k = node_shape(n)[n->rank - 1], shape[GRAPH_MAX_RANK];
    if (dim_known(node_shape(in[0])[b]) && dim_known(node_shape(in[0])[a]) && k != 0)
        return gb_done(&g, every_other(&g, n, in[0]), out);
    eas_node *x = gb_move(&g, in[0], a, last);
    x = gb_move(&g, x, b - (b > a), last - 1); /* ..., b, a */
    x = gb_slice(&g, x, last, offset < 0 && k != 0 ? -offset : 0, k, 1); /* rows that meet the diagonal */
    eas_node *index = gb_iota(&g, k, EAS_I64);
    if (offset > 0)
        index = gb2(&g, GRAPH_ADD, index, gb_int(&g, EAS_I64, offset));
    if (g.st)
        return gb_done(&g, NULL, out);
    for (int i = 0; i < x->rank; i++)
        shape[i] = i == last ? k : 1;
    index = gb_reshape(&g, index, 0, x->rank, shape);
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[last - 1] = 1;
    int64_t axis = last - 1;
    eas_node *y = gb_new(&g, GRAPH_TAKE_ALONG_AXIS, (eas_dtype)n->dtype, n->batch_dims, x->rank, shape, 1,
                         &axis, 2, (eas_node *[]){x, index});
    return gb_done(&g, gb_reshape(&g, y, n->batch_dims, n->rank, node_shape(n)), out);
}
