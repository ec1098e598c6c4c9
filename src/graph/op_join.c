/* op_join.c: tensors put together, taken apart, repeated and padded. */
#include "graph.h"

/* ---- concatenate, stack ---- */

static eas_dtype common_dtype(const graph_call *c)
{
    eas_dtype dt = (eas_dtype)c->in[0]->dtype;
    bool weak = (c->in[0]->flags & NODE_WEAK) != 0;
    for (int i = 1; i < c->nin; i++)
        dt = graph_promote(dt, weak, (eas_dtype)c->in[i]->dtype, (c->in[i]->flags & NODE_WEAK) != 0, &weak);
    return dt;
}

/* All inputs in one dtype and with the same batch dims, broadcast; how many of those there are. */
static int uniform_inputs(rule *r, eas_node **out)
{
    gbuild *g = &r->g;
    const graph_call *c = r->c;
    eas_dim shape[2 * GRAPH_MAX_RANK];
    eas_dtype dt = common_dtype(c);
    int bd = gb_align_batch(g, c->nin, c->in, out);
    if (!g->st)
        gb_batch_shape(g, c->nin, out, bd, shape);
    for (int i = 0; i < c->nin && !g->st; i++) {
        eas_node *x = gb_typed(g, out[i], dt);
        if (!x)
            break;
        memcpy(shape + bd, node_shape(x) + bd, sizeof *shape * (size_t)(x->rank - bd));
        out[i] = gb_broadcast(g, x, bd, x->rank, shape);
    }
    return bd;
}

static void same_shape_but(rule *r, const eas_node *x, const eas_node *y, int axis)
{
    bool same = node_logical_rank(x) == node_logical_rank(y);
    for (int i = 0; i < node_logical_rank(x) && same; i++)
        same = i == axis || node_logical_shape(x)[i] == node_logical_shape(y)[i];
    if (!same)
        rule_fail(r, "shapes %s and %s do not go together along axis %d", rule_text(x, (char[128]){0}),
                  rule_text(y, (char[128]){0}), axis);
}

/* axis: logical; < 0: the tensors are flattened first */
static eas_status concatenated(rule *r, int axis, eas_node **x, eas_node **out)
{
    gbuild *g = &r->g;
    const graph_call *c = r->c;
    eas_dim shape[2 * GRAPH_MAX_RANK] = {0}, sum = 0;
    int bd = uniform_inputs(r, x);
    for (int i = 0; i < c->nin && !g->st; i++) {
        if (axis < 0) {
            memcpy(shape, node_shape(x[i]), sizeof *shape * (size_t)bd);
            shape[bd] = gb_product(g, x[i]->rank - bd, node_shape(x[i]) + bd);
            x[i] = gb_reshape(g, x[i], bd, bd + 1, shape);
        } else
            same_shape_but(r, c->in[0], c->in[i], axis);
        if (!g->st)
            sum = gb_dim(g, EAS_DIM_ADD, sum, node_shape(x[i])[bd + (axis < 0 ? 0 : axis)]);
    }
    if (g->st)
        return rule_done(r, NULL, out);
    int64_t word = bd + (axis < 0 ? 0 : axis);
    memcpy(shape, node_shape(x[0]), sizeof *shape * x[0]->rank);
    shape[word] = sum;
    return rule_node(r, (eas_dtype)x[0]->dtype, bd, x[0]->rank, shape, 1, &word, c->nin, x, out);
}

enum { MANY = 65535, FEW = 8 };

/* Space for the inputs: `few`, if they are few; else to be freed. */
static eas_node **room(rule *r, eas_node **few)
{
    if (r->c->nin > MANY)
        rule_fail(r, "%d tensors; at most %d go together at once", r->c->nin, MANY);
    if (r->c->nin <= FEW)
        return few;
    eas_node **x = r->g.st ? NULL : malloc(sizeof *x * (size_t)r->c->nin);
    if (!x && !r->g.st)
        r->g.st = base_fail_oom(sizeof *x * (size_t)r->c->nin);
    return x;
}

eas_status make_concatenate(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, -1);
    int64_t axis = rule_int(&r);
    int logical = -1;
    if (!r.g.st && axis != DIM_NONE) {
        if (node_logical_rank(c->in[0]) == 0)
            rule_fail(&r, "tensors of 0 dims have no axis; stack them");
        logical = rule_axis_of(&r, c->in[0], axis) - c->in[0]->batch_dims;
    }
    eas_node *few[FEW], **x = room(&r, few);
    eas_status st = r.g.st ? rule_done(&r, NULL, out) : concatenated(&r, logical, x, out);
    if (x != few)
        free(x);
    return st;
}

/* words: the axis in the result */
eas_status make_stack(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, -1);
    eas_dim shape[2 * GRAPH_MAX_RANK];
    int64_t axis = rule_int(&r), rank = r.g.st ? 0 : node_logical_rank(c->in[0]) + 1;
    if (!r.g.st && (axis < -rank || axis >= rank))
        rule_fail(&r, "axis %lld is out of range for a result of %d dims", (long long)axis, (int)rank);
    eas_node *few[FEW], **x = room(&r, few);
    int bd = x && !r.g.st ? uniform_inputs(&r, x) : 0;
    for (int i = 1; i < c->nin && !r.g.st; i++)
        same_shape_but(&r, c->in[0], c->in[i], -1);
    eas_status st;
    if (r.g.st)
        st = rule_done(&r, NULL, out);
    else {
        int64_t word = bd + (axis < 0 ? axis + rank : axis);
        for (int i = 0; i <= x[0]->rank; i++)
            shape[i] = i == word ? c->nin : node_shape(x[0])[i - (i > word)];
        st = rule_node(&r, (eas_dtype)x[0]->dtype, bd, x[0]->rank + 1, shape, 1, &word, c->nin, x, out);
    }
    if (x != few)
        free(x);
    return st;
}

eas_status expand_stack(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node **x = malloc(sizeof *x * n->nin);
    if (!x)
        return base_fail_oom(sizeof *x * n->nin);
    for (int i = 0; i < n->nin; i++)
        x[i] = gb_unsqueeze(&g, in[i], (int)node_words(n)[0]);
    eas_node *y = gb_concat(&g, (int)node_words(n)[0], n->nin, x);
    free(x);
    return gb_done(&g, y, out);
}

/* ---- parts: one node for each ---- */

static eas_status part_of(rule *r, eas_node *x, int axis, eas_dim start, eas_dim size, eas_node **out)
{
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t words[2 * GRAPH_MAX_RANK];
    if (r->g.st)
        return rule_done(r, NULL, out);
    for (int i = 0; i < x->rank; i++) {
        shape[i] = i == axis ? size : node_shape(x)[i];
        words[i] = i == axis ? start : 0;
        words[x->rank + i] = 1;
    }
    return rule_node(r, (eas_dtype)x->dtype, x->batch_dims, x->rank, shape, 2 * x->rank, words, 1, &x, out);
}

static void check_index(rule *r, int64_t index, int64_t n)
{
    if (index < 0 || index >= n)
        rule_fail(r, "part %lld of %lld", (long long)index, (long long)n);
}

eas_status make_split(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int64_t n = rule_int(&r);
    int axis = rule_axis(&r, x);
    int64_t index = rule_int(&r);
    eas_dim size = 0;
    if (n < 1 || (!r.g.st && !dim_divides(node_shape(x)[axis], n, &size)))
        rule_fail(&r, "axis %d of shape %s does not split into %lld equal parts", axis - x->batch_dims,
                  rule_text(x, (char[128]){0}), (long long)n);
    check_index(&r, index, n);
    return part_of(&r, x, axis, gb_dim(&r.g, EAS_DIM_MUL, size, index), size, out);
}

/* The first parts are one longer where the axis does not divide. */
eas_status make_chunk(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    gbuild *g = &r.g;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int64_t n = rule_int(&r);
    int axis = rule_axis(&r, x);
    int64_t index = rule_int(&r);
    if (n < 1)
        rule_fail(&r, "%lld chunks", (long long)n);
    check_index(&r, index, n);
    if (g->st)
        return rule_done(&r, NULL, out);
    eas_dim each = gb_dim(g, EAS_DIM_FLOORDIV, node_shape(x)[axis], n),
            longer = gb_dim(g, EAS_DIM_MOD, node_shape(x)[axis], n);
    eas_dim before = gb_dim(g, EAS_DIM_MIN, longer, index), upto = gb_dim(g, EAS_DIM_MIN, longer, index + 1);
    eas_dim start = gb_dim(g, EAS_DIM_ADD, gb_dim(g, EAS_DIM_MUL, each, index), before);
    eas_dim size = gb_dim(g, EAS_DIM_ADD, each, gb_dim(g, EAS_DIM_SUB, upto, before));
    return part_of(&r, x, axis, size == 0 ? 0 : start, size, out);
}

/* words: axis, index */
eas_status make_unbind(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int axis = rule_axis(&r, x);
    int64_t index = rule_int(&r);
    if (!r.g.st && !dim_known(node_shape(x)[axis]))
        rule_fail(&r, "axis %d of shape %s has no fixed size", axis - x->batch_dims,
                  rule_text(x, (char[128]){0}));
    if (!r.g.st)
        check_index(&r, index, node_shape(x)[axis]);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    for (int i = 0; i + 1 < x->rank; i++)
        shape[i] = node_shape(x)[i + (i >= axis)];
    return rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, x->rank - 1, shape, 2, (int64_t[]){axis, index},
                     1, &x, out);
}

eas_status expand_unbind(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    int axis = (int)node_words(n)[0];
    return gb_done(&g, gb_squeeze(&g, gb_slice(&g, in[0], axis, node_words(n)[1], 1, 1), axis), out);
}

/* ---- another order, known when it is recorded ---- */

/* words: axis, then source of each element; -1: zero */
eas_status make_shuffle_physical(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    const int64_t *source;
    r.physical = true;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int axis = rule_axis(&r, x), n = rule_list(&r, &source);
    eas_dim shape[GRAPH_MAX_RANK];
    if (!r.g.st && !dim_known(node_shape(x)[axis]))
        rule_fail(&r, "axis %d has no fixed size", axis);
    for (int i = 0; i < n && !r.g.st; i++)
        if (source[i] < -1 || source[i] >= node_shape(x)[axis])
            rule_fail(&r, "source[%d] is %lld, and the axis has %lld elements", i, (long long)source[i],
                      (long long)node_shape(x)[axis]);
    int64_t *words = r.g.st ? NULL : malloc(sizeof *words * (size_t)(n < 0 ? 1 : n + 1));
    if (!r.g.st && !words)
        r.g.st = base_fail_oom((size_t)n);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[axis] = n < 0 ? 0 : n;
    words[0] = axis;
    if (n > 0)
        memcpy(words + 1, source, sizeof *words * (size_t)n);
    eas_status st = rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, x->rank, shape, 1 + (n < 0 ? 0 : n),
                              words, 1, &x, out);
    free(words);
    return st;
}

/* Runs of neighbours are one slice each. */
eas_status expand_shuffle(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    const int64_t *w = node_words(n);
    int axis = (int)w[0], count = n->nwords - 1, parts = 0;
    eas_node **part = calloc((size_t)count + 1, sizeof *part);
    eas_dim shape[GRAPH_MAX_RANK];
    memcpy(shape, node_shape(n), sizeof *shape * n->rank);
    if (!part)
        return base_fail_oom((size_t)count);
    for (int i = 0, k; i < count; i = k) {
        for (k = i + 1; k < count && (w[1 + i] < 0 ? w[1 + k] < 0 : w[1 + k] == w[1 + i] + k - i); k++)
            continue;
        shape[axis] = k - i;
        part[parts++] = w[1 + i] < 0 ? gd_fill(&g, (eas_dtype)n->dtype, 0, n->batch_dims, n->rank, shape)
                                     : gb_slice(&g, in[0], axis, w[1 + i], k - i, 1);
    }
    eas_node *all = parts ? gb_concat(&g, axis, parts, part) : gb_slice(&g, in[0], axis, 0, 0, 1);
    free(part);
    return gb_done(&g, all, out);
}

/* A shuffle is a permutation: the cotangent is moved back by the inverse one. */
eas_node *back_shuffle(gbuild *g, eas_node *n, int i, eas_node *ct)
{
    const int64_t *w = node_words(n);
    const eas_node *x = node_in(n)[0];
    int axis = (int)w[0], count = n->nwords - 1;
    int64_t size = node_shape(x)[axis], *words = malloc(sizeof *words * (size_t)(size + 1));
    bool once = words != NULL;
    (void)i;
    for (int64_t k = 0; k < size && words; k++)
        words[1 + k] = -1;
    for (int k = 0; k < count && once; k++)
        if (w[1 + k] >= 0) {
            once = words[1 + w[1 + k]] < 0;
            words[1 + w[1 + k]] = k;
        }
    if (!g || !once) {
        free(words);
        return once ? n : NULL;
    }
    eas_dim shape[GRAPH_MAX_RANK];
    int extra = gd_extra(ct, n);
    memcpy(shape, node_shape(ct), sizeof *shape * ct->rank);
    shape[axis + extra] = size;
    words[0] = axis + extra;
    eas_node *r = gb_new(g, GRAPH_SHUFFLE_PHYSICAL, (eas_dtype)ct->dtype, ct->batch_dims, ct->rank, shape,
                         (int)size + 1, words, 1, &ct);
    free(words);
    return r;
}

/* ---- repetition ---- */

/* x, n times over: `before` dims of x stand outside of the copies. shape: of the result. */
static eas_node *copies(gbuild *g, eas_node *x, int before, eas_dim n, int rank, const eas_dim *shape)
{
    if (g->st || !x)
        return NULL;
    eas_dim outer = gb_product(g, before, node_shape(x)),
            inner = gb_product(g, x->rank - before, node_shape(x) + before);
    eas_node *y = gb_reshape(g, x, 0, 3, (eas_dim[]){outer, 1, inner});
    y = gb_broadcast(g, y, 0, 3, (eas_dim[]){outer, n, inner});
    return gb_reshape(g, y, x->batch_dims, rank, shape);
}

/* words: how often, per physical axis of the result */
eas_status make_tile(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[2 * GRAPH_MAX_RANK];
    int64_t words[2 * GRAPH_MAX_RANK];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    dims reps = rule_shape(&r);
    int bd = x->batch_dims, have = node_logical_rank(x), logical = reps.n > have ? reps.n : have;
    for (int i = 0; i < bd + logical && !r.g.st; i++) {
        int own = i - (logical - have), rep = i - bd - (logical - reps.n);
        eas_dim d = i < bd ? node_shape(x)[i] : own < bd ? 1 : node_shape(x)[own];
        words[i] = i < bd || rep < 0 ? 1 : reps.at[rep];
        shape[i] = gb_dim(&r.g, EAS_DIM_MUL, d, words[i]);
    }
    if (r.g.st)
        return rule_done(&r, NULL, out);
    return rule_node(&r, (eas_dtype)x->dtype, bd, bd + logical, shape, bd + logical, words, 1, &x, out);
}

eas_status expand_tile(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_dim shape[GRAPH_MAX_RANK];
    eas_node *x = in[0];
    int bd = n->batch_dims, more = n->rank - x->rank;
    for (int i = 0; i < n->rank; i++)
        shape[i] = i < bd ? node_shape(x)[i] : i < bd + more ? 1 : node_shape(x)[i - more];
    x = gb_reshape(&g, x, bd, n->rank, shape);
    for (int i = bd; i < n->rank && !g.st; i++) {
        if (node_words(n)[i] == 1)
            continue;
        shape[i] = node_shape(n)[i];
        x = copies(&g, x, i, node_words(n)[i], n->rank, shape);
    }
    return gb_done(&g, x, out);
}

/* words: how often, axis (-1: all logical ones as one) */
eas_status make_repeat(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    eas_dim shape[GRAPH_MAX_RANK + 1];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int64_t n = rule_int(&r), a = rule_int(&r);
    int bd = x->batch_dims, axis = r.g.st || a == DIM_NONE ? -1 : rule_axis_of(&r, x, a),
        rank = axis < 0 ? bd + 1 : x->rank;
    if (n < 0 && !dim_is_expr(n))
        rule_fail(&r, "%lld repeats", (long long)n);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    memcpy(shape, node_shape(x), sizeof *shape * (size_t)(axis < 0 ? bd : x->rank));
    if (axis < 0)
        shape[bd] = gb_product(&r.g, x->rank - bd, node_shape(x) + bd);
    shape[axis < 0 ? bd : axis] = gb_dim(&r.g, EAS_DIM_MUL, shape[axis < 0 ? bd : axis], n);
    return rule_node(&r, (eas_dtype)x->dtype, bd, rank, shape, 2, (int64_t[]){n, axis}, 1, &x, out);
}

eas_status expand_repeat(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    int axis = (int)node_words(n)[1];
    return gb_done(
        &g, copies(&g, in[0], axis < 0 ? in[0]->rank : axis + 1, node_words(n)[0], n->rank, node_shape(n)),
        out);
}

/* words: pairs of axis and shift; the axis -1 is all logical ones as one */
eas_status make_roll(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    const int64_t *shift, *axis;
    int64_t words[4 * GRAPH_MAX_RANK];
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int n = rule_list(&r, &shift), m = rule_list(&r, &axis), pairs = m < 0 ? n : n > m ? n : m;
    if (n < 1 || (m >= 0 && n != m && n != 1 && m != 1) || pairs > 2 * GRAPH_MAX_RANK)
        rule_fail(&r, "%d shifts for %d axes", n, m);
    for (int i = 0; i < pairs && !r.g.st; i++) {
        words[2 * i] = m < 0 ? -1 : rule_axis_of(&r, x, axis[m == 1 ? 0 : i]);
        words[2 * i + 1] = shift[n == 1 ? 0 : i];
    }
    if (m == 0)
        pairs = 0;
    return rule_node(&r, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x), 2 * pairs, words, 1, &x,
                     out);
}

static eas_node *rolled(gbuild *g, eas_node *x, int axis, int64_t shift)
{
    if (g->st || !x)
        return NULL;
    eas_dim n = node_shape(x)[axis], by = gb_dim(g, EAS_DIM_MOD, shift, gb_dim(g, EAS_DIM_MAX, n, 1)),
            rest = gb_dim(g, EAS_DIM_SUB, n, by);
    if (by == 0)
        return x;
    return gb_concat(g, axis, 2,
                     (eas_node *[]){gb_slice(g, x, axis, rest, by, 1), gb_slice(g, x, axis, 0, rest, 1)});
}

eas_status expand_roll(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *x = in[0];
    int bd = n->batch_dims;
    for (int i = 0; i < n->nwords && !g.st; i += 2) {
        int axis = (int)node_words(n)[i];
        if (axis < 0) {
            eas_dim flat[GRAPH_MAX_RANK + 1];
            memcpy(flat, node_shape(n), sizeof *flat * (size_t)bd);
            flat[bd] = gb_product(&g, n->rank - bd, node_shape(n) + bd);
            x = gb_reshape(&g, x, bd, bd + 1, flat);
        }
        x = rolled(&g, x, axis < 0 ? bd : axis, node_words(n)[i + 1]);
    }
    return gb_done(&g, gb_reshape(&g, x, bd, n->rank, node_shape(n)), out);
}

/* The cotangent is rolled the other way. */
eas_node *back_roll(gbuild *g, eas_node *n, int i, eas_node *ct)
{
    int64_t words[4 * GRAPH_MAX_RANK];
    (void)i;
    for (int k = 0; k < n->nwords; k += 2)
        if (node_words(n)[k] < 0 || dim_is_expr(node_words(n)[k + 1]))
            return NULL;
    if (!g)
        return n;
    for (int k = 0; k < n->nwords; k += 2) {
        words[k] = node_words(n)[k] + ct->rank - n->rank;
        words[k + 1] = -node_words(n)[k + 1];
    }
    return gb_new(g, GRAPH_ROLL, (eas_dtype)ct->dtype, ct->batch_dims, ct->rank, node_shape(ct), n->nwords,
                  words, 1, &ct);
}

/* ---- padding ---- */

enum {
    PAD_CONSTANT,
    PAD_EDGE,
    PAD_REFLECT,
    PAD_SYMMETRIC,
    PAD_WRAP,
    PAD_MAXIMUM,
    PAD_MINIMUM,
    PAD_MEAN,
    PAD_LINEAR_RAMP,
    PAD_MODES
};

/* KIND_PAD itself: x, and a number to fill with. */
eas_status make_pad_constant(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 2, 2);
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t words[GRAPH_MAX_RANK];
    dims before = rule_shape(&r), after = rule_shape(&r);
    if (!r.g.st && (before.n != node_logical_rank(c->in[0]) || after.n != before.n))
        rule_fail(&r, "%d and %d paddings for shape %s", before.n, after.n,
                  rule_text(c->in[0], (char[128]){0}));
    if (!r.g.st && c->in[1]->rank)
        rule_fail(&r, "a fill of shape %s is no number", rule_text(c->in[1], (char[128]){0}));
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0], *both[2] = {x, gb_typed(&r.g, c->in[1], (eas_dtype)x->dtype)};
    int bd = x->batch_dims;
    for (int i = 0; i < x->rank; i++) {
        words[i] = i < bd ? 0 : before.at[i - bd];
        shape[i] = i < bd ? node_shape(x)[i]
                          : gb_dim(&r.g, EAS_DIM_ADD, gb_dim(&r.g, EAS_DIM_ADD, node_shape(x)[i], words[i]),
                                   after.at[i - bd]);
    }
    return rule_node(&r, (eas_dtype)x->dtype, bd, x->rank, shape, x->rank, words, 2, both, out);
}

/* words: mode, then elements before, then after, per physical axis. Inputs: x, and the value for the modes
 * that have one. */
eas_status make_pad(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 2);
    gbuild *g = &r.g;
    eas_dim shape[2 * GRAPH_MAX_RANK], batch[GRAPH_MAX_RANK];
    int64_t words[1 + 4 * GRAPH_MAX_RANK] = {0};
    const int64_t *pads;
    eas_node *in[2];
    int n = rule_list(&r, &pads);
    words[0] = rule_int(&r);
    if (!g->st && n != 2 * node_logical_rank(c->in[0]))
        rule_fail(&r, "%d paddings, two for each axis of %s are wanted", n,
                  rule_text(c->in[0], (char[128]){0}));
    if (!g->st && (words[0] < 0 || words[0] >= PAD_MODES))
        rule_fail(&r, "there is no mode %lld", (long long)words[0]);
    if (!g->st && c->nin == 2 && node_logical_rank(c->in[1]))
        rule_fail(&r, "a value of shape %s is no number", rule_text(c->in[1], (char[128]){0}));
    int bd = g->st ? 0 : gb_align_batch(g, c->nin, c->in, in);
    if (g->st)
        return rule_done(&r, NULL, out);
    gb_batch_shape(g, c->nin, in, bd, batch);
    eas_dtype dt = (eas_dtype)c->in[0]->dtype;
    int rank = bd + n / 2;
    for (int i = 0; i < rank && !g->st; i++) {
        eas_dim have = node_shape(in[0])[i], before = i < bd ? 0 : pads[2 * (i - bd)],
                after = i < bd ? 0 : pads[2 * (i - bd) + 1];
        if ((before < 0 && !dim_is_expr(before)) || (after < 0 && !dim_is_expr(after)))
            rule_fail(&r, "axis %d is padded by %lld and %lld", i - bd, (long long)before, (long long)after);
        if (words[0] != PAD_CONSTANT && have == 0 && (before != 0 || after != 0))
            rule_fail(&r, "axis %d is empty: only a constant can pad it", i - bd);
        words[1 + i] = before;
        words[1 + rank + i] = after;
        shape[i] = i < bd ? batch[i] : gb_dim(g, EAS_DIM_ADD, have, gb_dim(g, EAS_DIM_ADD, before, after));
    }
    if (c->nin == 2)
        in[1] = c->in[1]->rank ? gb_typed(g, in[1], dt) : gb_typed(g, c->in[1], dt);
    return rule_node(&r, dt, bd, rank, shape, 1 + 2 * rank, words, c->nin, in, out);
}

static eas_node *filled(gbuild *g, eas_node *n, eas_node *x, eas_node *fill)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !x || !fill)
        return NULL;
    for (int i = 0; i < n->rank; i++)
        shape[i] = i < x->batch_dims ? node_shape(x)[i] : node_shape(n)[i];
    return gb_new(g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, n->batch_dims, n->rank, shape, n->rank,
                  node_words(n) + 1, 2, (eas_node *[]){x, fill});
}

/* A value that differs between lanes of a vmap is chosen by where: the fill of KIND_PAD is one number. */
static eas_node *pad_constant(gbuild *g, eas_node *n, eas_node *x, eas_node *value)
{
    eas_node *zero = gb_int(g, (eas_dtype)n->dtype, 0);
    if (!value || value->rank == 0)
        return filled(g, n, x, value ? value : zero);
    eas_dim ones[GRAPH_MAX_RANK];
    for (int i = 0; i < n->rank; i++)
        ones[i] = i < n->batch_dims ? node_shape(value)[i] : 1;
    eas_node *inside = gb_broadcast(g, gb_int(g, EAS_BOOL, 1), n->batch_dims, n->rank, node_shape(x));
    inside = filled(g, n, inside, gb_int(g, EAS_BOOL, 0));
    return gb3(g, GRAPH_WHERE, inside, filled(g, n, x, zero),
               gb_reshape(g, value, n->batch_dims, n->rank, ones));
}

/* For each of `size` positions of a padded axis, the index of the element (of m) that it shows; the first
 * position is -before. */
static eas_node *pad_index(gbuild *g, int mode, eas_dim m, eas_dim size, eas_dim before)
{
    eas_node *i = gb2(g, GRAPH_SUB, gb_iota(g, size, EAS_I64), gb_size(g, before, EAS_I64)),
             *zero = gb_int(g, EAS_I64, 0);
    if (mode == PAD_EDGE)
        return gb2(g, GRAPH_MINIMUM, gb2(g, GRAPH_MAXIMUM, i, zero),
                   gb_size(g, gb_dim(g, EAS_DIM_SUB, m, 1), EAS_I64));
    if (mode == PAD_WRAP)
        return gb2(g, GRAPH_MOD, i, gb_size(g, m, EAS_I64));
    eas_dim period = gb_dim(g, EAS_DIM_MUL, m, 2);
    if (mode == PAD_REFLECT) /* an axis of one element has a period of 1 */
        period = gb_dim(g, EAS_DIM_MAX, gb_dim(g, EAS_DIM_SUB, period, 2), 1);
    eas_node *k = gb2(g, GRAPH_MOD, i, gb_size(g, period, EAS_I64));
    eas_node *back =
        gb2(g, GRAPH_SUB, gb_size(g, gb_dim(g, EAS_DIM_SUB, period, mode == PAD_SYMMETRIC), EAS_I64), k);
    return gb2(g, GRAPH_MINIMUM, k, back);
}

/* The mean of integers, rounded to the nearest one and halves to the even one: exact, on devices without f64
 * too. */
static eas_node *integer_mean(gbuild *g, eas_node *x, int axis)
{
    eas_dtype wide = x->dtype == EAS_BOOL || dtype_is_signed((eas_dtype)x->dtype) ? EAS_I64 : EAS_U64;
    eas_node *n = gb_size(g, node_shape(x)[axis], wide), *two = gb_int(g, wide, 2);
    eas_node *sum = gb_reduce(g, GRAPH_REDUCE_SUM, gb_typed(g, x, wide), (uint32_t)1 << axis, true);
    eas_node *down = gb2(g, GRAPH_FLOORDIV, sum, n),
             *twice = gb2(g, GRAPH_MUL, gb2(g, GRAPH_MOD, sum, n), two);
    eas_node *odd = gb_typed(g, gb2(g, GRAPH_MOD, down, two), EAS_BOOL);
    eas_node *up = gb2(g, GRAPH_LOGICAL_OR, gb2(g, GRAPH_GREATER, twice, n),
                       gb2(g, GRAPH_LOGICAL_AND, gb2(g, GRAPH_EQUAL, twice, n), odd));
    return gb2(g, GRAPH_ADD, down, gb_typed(g, up, wide));
}

/* The number that stands for the whole axis, in x's dtype. */
static eas_node *pad_summary(gbuild *g, int mode, eas_node *x, int axis)
{
    eas_dtype dt = (eas_dtype)x->dtype;
    uint32_t axes = (uint32_t)1 << axis;
    if (mode != PAD_MEAN && dt == EAS_BOOL)
        return gb_reduce(g, mode == PAD_MAXIMUM ? GRAPH_ANY : GRAPH_ALL, x, axes, true);
    if (mode != PAD_MEAN)
        return gb_reduce(g, mode == PAD_MAXIMUM ? GRAPH_REDUCE_MAX : GRAPH_REDUCE_MIN, x, axes, true);
    if (!dtype_is_float(dt))
        return gb_typed(g, integer_mean(g, x, axis), dt);
    eas_node *wide = gb_typed(g, x, graph_compute_dtype(dt)),
             *n = gb_size(g, node_shape(x)[axis], graph_compute_dtype(dt));
    return gb_typed(g, gb2(g, GRAPH_DIV, gb_reduce(g, GRAPH_REDUCE_SUM, wide, axes, true), n), dt);
}

/* `count` steps from value to the edge of x, value included, the edge not; backwards at the end of an axis.
 * Integers are rounded down. */
static eas_node *pad_ramp(gbuild *g, eas_node *x, int axis, eas_node *value, eas_dim count, bool end)
{
    eas_dtype dt = (eas_dtype)x->dtype, wide = dtype_is_float(dt) ? graph_compute_dtype(dt) : EAS_I64;
    eas_node *edge = gb_typed(
        g, gb_slice(g, x, axis, end ? gb_dim(g, EAS_DIM_SUB, node_shape(x)[axis], 1) : 0, 1, 1), wide);
    eas_node *from = gb_typed(g, value ? value : gb_int(g, wide, 0), wide),
             *steps = gb_iota_at(g, count, wide, x->rank - 1 - axis);
    if (value && value->rank && !g->st) {
        eas_dim ones[GRAPH_MAX_RANK];
        for (int i = 0; i < x->rank; i++)
            ones[i] = i < x->batch_dims ? node_shape(value)[i] : 1;
        from = gb_reshape(g, from, x->batch_dims, x->rank, ones);
    }
    eas_node *way = gb2(g, GRAPH_MUL, gb2(g, GRAPH_SUB, edge, from), steps);
    eas_node *y = gb2(g, dtype_is_float(dt) ? GRAPH_DIV : GRAPH_FLOORDIV, way, gb_size(g, count, wide));
    y = gb_typed(g, gb2(g, GRAPH_ADD, y, from), dt);
    return end ? gb_slice(g, y, axis, gb_dim(g, EAS_DIM_SUB, count, 1), count, -1) : y;
}

static eas_node *stretched(gbuild *g, eas_node *x, int axis, eas_dim size)
{
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !x)
        return NULL;
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[axis] = size;
    return gb_broadcast(g, x, x->batch_dims, x->rank, shape);
}

static eas_node *pad_axis(gbuild *g, int mode, eas_node *x, int axis, eas_node *value, eas_dim before,
                          eas_dim after)
{
    if (g->st || !x || (before == 0 && after == 0))
        return x;
    eas_node *parts[3] = {NULL, x, NULL};
    if (mode == PAD_EDGE && axis == x->rank - 1) { /* neighbouring elements are read as they lie */
        eas_dim last = gb_dim(g, EAS_DIM_SUB, node_shape(x)[axis], 1);
        parts[0] = before == 0 ? NULL : stretched(g, gb_slice(g, x, axis, 0, 1, 1), axis, before);
        parts[2] = after == 0 ? NULL : stretched(g, gb_slice(g, x, axis, last, 1, 1), axis, after);
    } else if (mode < PAD_MAXIMUM) {
        eas_dim size = gb_dim(g, EAS_DIM_ADD, node_shape(x)[axis], gb_dim(g, EAS_DIM_ADD, before, after));
        return gb_gather(g, x, pad_index(g, mode, node_shape(x)[axis], size, before), 0, axis);
    } else if (mode == PAD_LINEAR_RAMP) {
        parts[0] = before == 0 ? NULL : pad_ramp(g, x, axis, value, before, false);
        parts[2] = after == 0 ? NULL : pad_ramp(g, x, axis, value, after, true);
    } else {
        eas_node *s = pad_summary(g, mode, x, axis);
        parts[0] = before == 0 ? NULL : stretched(g, s, axis, before);
        parts[2] = after == 0 ? NULL : stretched(g, s, axis, after);
    }
    return g->st ? NULL
                 : gb_concat(g, axis, 1 + (before != 0) + (after != 0), before == 0 ? parts + 1 : parts);
}

eas_status expand_pad(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    const int64_t *before = node_words(n) + 1, *after = before + n->rank;
    int mode = (int)node_words(n)[0];
    eas_node *x = in[0], *value = n->nin > 1 ? in[1] : NULL;
    if (mode == PAD_CONSTANT)
        return gb_done(&g, pad_constant(&g, n, x, value), out);
    for (int i = n->batch_dims; i < n->rank; i++)
        x = pad_axis(&g, mode, x, i, value, before[i], after[i]);
    return gb_done(&g, x ? gb_broadcast(&g, x, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}
