/* op_reduce.c: reductions over axes, running results, and what is made of them: mean, variance, softmax and
 * others.
 *
 * Sums and products of integers are 64 bits wide, as NumPy's are where int is; bools count as 0 and 1. Means
 * and the like of integers are f32. Composites compute halves in f32 and round once.
 */
#include "graph.h"

static eas_dtype sum_dtype(eas_dtype dt)
{
    return dt == EAS_BOOL || dtype_is_signed(dt) ? EAS_I64 : dtype_is_int(dt) ? EAS_U64 : dt;
}
static eas_dtype mean_dtype(eas_dtype dt) { return dtype_is_float(dt) ? dt : EAS_F32; }
static double bits_double(int64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Axes that are reduced, as words: keepdims, (extra words,) axes; and the shape that is left. */
typedef struct left {
    int rank, batch_dims, nwords;
    eas_dim shape[GRAPH_MAX_RANK];
    int64_t words[GRAPH_MAX_RANK + 2];
} left;

static left without(const eas_node *x, uint32_t axes, bool keep, bool physical, int nextra,
                    const int64_t *extra)
{
    left l = {.nwords = 1, .words = {keep}};
    for (int i = 0; i < nextra; i++)
        l.words[l.nwords++] = extra[i];
    for (int i = 0; i < x->rank; i++) {
        bool gone = axes >> i & 1;
        if (gone)
            l.words[l.nwords++] = i;
        if (!gone || keep)
            l.shape[l.rank++] = gone ? 1 : node_shape(x)[i];
    }
    l.batch_dims = physical && l.rank < x->batch_dims ? l.rank : x->batch_dims;
    return l;
}

/* axes and keepdims, as all reductions have them */
static uint32_t read_axes(rule *r, const eas_node *x, bool *keep)
{
    uint32_t axes = rule_axes(r, x);
    *keep = rule_int(r) != 0;
    return axes;
}

static void need_elements(rule *r, const eas_node *x, uint32_t axes)
{
    for (int i = 0; i < x->rank && !r->g.st; i++)
        if (axes >> i & 1 && node_shape(x)[i] == 0)
            rule_fail(r, "there is no element to take: shape %s", rule_text(x, (char[128]){0}));
}

/* A reduction of x, which is cast to dt before. */
static eas_status reduced(rule *r, eas_node *x, eas_dtype dt, uint32_t axes, bool keep, eas_node **out)
{
    if (r->g.st)
        return rule_done(r, NULL, out);
    left l = without(x, axes, keep, r->physical, 0, NULL);
    eas_node *y = gb_typed(&r->g, x, dt);
    return rule_node(r, dt, l.batch_dims, l.rank, l.shape, l.nwords, l.words, 1, &y, out);
}

/* ---- sums, products, extremes, truth ---- */

static eas_status reduce_as(const graph_call *c, bool physical, eas_dtype (*result)(eas_dtype),
                            eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    bool keep;
    r.physical = physical;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    uint32_t axes = read_axes(&r, c->in[0], &keep);
    return reduced(&r, c->in[0], result((eas_dtype)c->in[0]->dtype), axes, keep, out);
}

eas_status make_reduce_sum(const graph_call *c, eas_node **out)
{
    return reduce_as(c, false, sum_dtype, out);
}
eas_status make_reduce_sum_physical(const graph_call *c, eas_node **out)
{
    return reduce_as(c, true, sum_dtype, out);
}

/* The largest of bools is whether any is true. */
static eas_status extreme_of_bools(rule *r, eas_node *x, uint32_t axes, bool keep, eas_node **out)
{
    if (r->g.st)
        return rule_done(r, NULL, out);
    left l = without(x, axes, keep, r->physical, 0, NULL);
    uint16_t op = !strcmp(r->c->row->ir, "max") ? GRAPH_ANY : GRAPH_ALL;
    return rule_done(r, gb_new(&r->g, op, EAS_BOOL, l.batch_dims, l.rank, l.shape, l.nwords, l.words, 1, &x),
                     out);
}

static eas_status reduce_extreme(const graph_call *c, bool physical, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    bool keep;
    r.physical = physical;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    uint32_t axes = read_axes(&r, x, &keep);
    need_elements(&r, x, axes);
    return x->dtype == EAS_BOOL ? extreme_of_bools(&r, x, axes, keep, out)
                                : reduced(&r, x, (eas_dtype)x->dtype, axes, keep, out);
}

eas_status make_reduce_extreme(const graph_call *c, eas_node **out) { return reduce_extreme(c, false, out); }
eas_status make_reduce_extreme_physical(const graph_call *c, eas_node **out)
{
    return reduce_extreme(c, true, out);
}

static eas_dtype truth_dtype(eas_dtype dt)
{
    (void)dt;
    return EAS_BOOL;
}

eas_status make_reduce_truth(const graph_call *c, eas_node **out)
{
    return reduce_as(c, false, truth_dtype, out);
}
eas_status make_reduce_truth_physical(const graph_call *c, eas_node **out)
{
    return reduce_as(c, true, truth_dtype, out);
}

/* ---- composites over axes: words are keepdims, then one more for those that have it, then axes ---- */

static uint32_t axes_of(const eas_node *n, int from)
{
    uint32_t axes = 0;
    for (int i = from; i < n->nwords; i++)
        axes |= (uint32_t)1 << node_words(n)[i];
    return axes;
}

static eas_dim count_of(gbuild *g, const eas_node *x, uint32_t axes)
{
    dims d = {0};
    for (int i = 0; i < x->rank; i++)
        if (axes >> i & 1)
            d.at[d.n++] = node_shape(x)[i];
    return gb_product(g, d.n, d.at);
}

static eas_status composite(const graph_call *c, bool physical, int nextra, bool to_float, eas_dtype fixed,
                            eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    bool keep;
    r.physical = physical;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    uint32_t axes = read_axes(&r, x, &keep);
    int64_t extra = nextra ? rule_int(&r) : 0;
    if (r.g.st)
        return rule_done(&r, NULL, out);
    left l = without(x, axes, keep, physical, nextra, &extra);
    eas_dtype dt = to_float ? mean_dtype((eas_dtype)x->dtype) : fixed;
    return rule_node(&r, dt, l.batch_dims, l.rank, l.shape, l.nwords, l.words, 1, &x, out);
}

eas_status make_mean(const graph_call *c, eas_node **out)
{
    return composite(c, false, 0, true, EAS_F32, out);
}
eas_status make_mean_physical(const graph_call *c, eas_node **out)
{
    return composite(c, true, 0, true, EAS_F32, out);
}
eas_status make_logsumexp(const graph_call *c, eas_node **out)
{
    return composite(c, false, 0, true, EAS_F32, out);
}
eas_status make_var(const graph_call *c, eas_node **out)
{
    return composite(c, false, 1, true, EAS_F32, out);
}
eas_status make_count_nonzero(const graph_call *c, eas_node **out)
{
    return composite(c, false, 0, false, EAS_I64, out);
}

/* The result in n's dtype and with its batch dims. */
static eas_status finish(gbuild *g, eas_node *n, eas_node *y, eas_node **out)
{
    y = gb_typed(g, y, (eas_dtype)n->dtype);
    return gb_done(g, y ? gb_reshape(g, y, n->batch_dims, n->rank, node_shape(n)) : NULL, out);
}

static eas_node *mean_of(gbuild *g, eas_node *x, uint32_t axes, bool keep)
{
    eas_node *sum = gb_reduce(g, GRAPH_REDUCE_SUM, x, axes, keep);
    return x ? gb2(g, GRAPH_DIV, sum, gb_size(g, count_of(g, x, axes), (eas_dtype)x->dtype)) : NULL;
}

eas_status expand_mean(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *x = gb_typed(&g, in[0], graph_compute_dtype((eas_dtype)n->dtype));
    return finish(&g, n, mean_of(&g, x, axes_of(n, 1), node_words(n)[0] != 0), out);
}

/* In two passes: the mean, then the sum of squared differences from it. */
static eas_node *variance(gbuild *g, eas_node *n, eas_node *in)
{
    uint32_t axes = axes_of(n, 2);
    double correction = bits_double(node_words(n)[1]);
    eas_node *x = gb_typed(g, in, graph_compute_dtype((eas_dtype)n->dtype));
    eas_node *off = gb2(g, GRAPH_SUB, x, mean_of(g, x, axes, true));
    eas_node *sum = gb_reduce(g, GRAPH_REDUCE_SUM, gb1(g, GRAPH_SQUARE, off), axes, node_words(n)[0] != 0);
    if (!x)
        return NULL;
    eas_node *count = gb_size(g, count_of(g, x, axes), (eas_dtype)x->dtype);
    eas_node *freedom =
        gb2(g, GRAPH_MAXIMUM, gb2(g, GRAPH_SUB, count, gb_num(g, x, correction)), gb_num(g, x, 0));
    return gb2(g, GRAPH_DIV, sum, freedom);
}

eas_status expand_var(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    return finish(&g, n, variance(&g, n, in[0]), out);
}

eas_status expand_std(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    return finish(&g, n, gb1(&g, GRAPH_SQRT, variance(&g, n, in[0])), out);
}

eas_status expand_count_nonzero(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    eas_node *x = gb_typed(&g, gb_typed(&g, in[0], EAS_BOOL), EAS_I64);
    return finish(&g, n, gb_reduce(&g, GRAPH_REDUCE_SUM, x, axes_of(n, 1), node_words(n)[0] != 0), out);
}

/* The largest element is taken out first; an infinite one is not, or inf - inf would come of it. */
eas_status expand_logsumexp(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    uint32_t axes = axes_of(n, 1);
    eas_node *x = gb_typed(&g, in[0], graph_compute_dtype((eas_dtype)n->dtype));
    eas_node *top = gb_reduce(&g, GRAPH_REDUCE_MAX, x, axes, true);
    top = gb3(&g, GRAPH_WHERE, gb1(&g, GRAPH_IS_FINITE, top), top, x ? gb_num(&g, x, 0) : NULL);
    eas_node *sum =
        gb_reduce(&g, GRAPH_REDUCE_SUM, gb1(&g, GRAPH_EXP, gb2(&g, GRAPH_SUB, x, top)), axes, true);
    return finish(&g, n, gb2(&g, GRAPH_ADD, gb1(&g, GRAPH_LOG, sum), top), out);
}

/* ---- softmax: words are the axis ---- */

eas_status make_softmax(const graph_call *c, eas_node **out)
{
    rule r = rule_begin(c, 1, 1);
    if (r.g.st)
        return rule_done(&r, NULL, out);
    eas_node *x = c->in[0];
    int64_t axis = rule_axis(&r, x);
    return rule_node(&r, mean_dtype((eas_dtype)x->dtype), x->batch_dims, x->rank, node_shape(x), 1, &axis, 1,
                     &x, out);
}

/* exp(x - max) */
static eas_node *shifted(gbuild *g, eas_node *n, eas_node *in, uint32_t axes)
{
    eas_node *x = gb_typed(g, in, graph_compute_dtype((eas_dtype)n->dtype));
    return gb2(g, GRAPH_SUB, x, gb_reduce(g, GRAPH_REDUCE_MAX, x, axes, true));
}

eas_status expand_softmax(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    uint32_t axes = (uint32_t)1 << node_words(n)[0];
    eas_node *e = gb1(&g, GRAPH_EXP, shifted(&g, n, in[0], axes));
    return finish(
        &g, n,
        gb2(&g, GRAPH_MUL, e, gb1(&g, GRAPH_RECIPROCAL, gb_reduce(&g, GRAPH_REDUCE_SUM, e, axes, true))),
        out);
}

eas_status expand_logsoftmax(eas_node *n, eas_node *const *in, eas_node **out)
{
    gbuild g = {0};
    uint32_t axes = (uint32_t)1 << node_words(n)[0];
    eas_node *s = shifted(&g, n, in[0], axes);
    eas_node *sum = gb_reduce(&g, GRAPH_REDUCE_SUM, gb1(&g, GRAPH_EXP, s), axes, true);
    return finish(&g, n, gb2(&g, GRAPH_SUB, s, gb1(&g, GRAPH_LOG, sum)), out);
}
