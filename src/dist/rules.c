/* rules.c: each kind of operation on parts.
 *
 * Most kinds need no more than their rule in factors: inputs are laid out as the factors are cut, and the
 * operation runs on the parts with the same words. Dims that a rule does not cut are whole on every device.
 * What knows about places along a cut dim (indices) is told where the device's part begins. A sum over a cut
 * dim leaves a partial result, which whoever needs the sum reduces; other reductions are joined at once.
 * Elements that only pad a dim are replaced by the neutral element before they could count.
 */
#include "dist.h"

/* ---- rules in factors, extended by what this folder can cut ---- */

static void own_factor(eas_shard_rule *r, eas_dim size, int dim)
{
    eas_shard_dim *d = &r->tensors[r->nin].dims[dim];
    if (d->n || r->nfactors == EAS_MAX_FACTORS)
        return;
    r->factors[r->nfactors].size = size;
    r->factors[r->nfactors].kind = EAS_FACTOR_PASS;
    d->factors[d->n++] = (uint16_t)r->nfactors++;
}

static void never_cut(eas_shard_rule *r, int dim)
{
    for (int t = 0; t <= r->nin; t++)
        r->tensors[t].dims[dim].n = 0;
}

static double bytes_of(const eas_node *n)
{
    double b = (double)eas_dtype_size((eas_dtype)n->dtype);
    for (int d = 0; d < n->rank; d++)
        b *= dim_known(node_shape(n)[d]) ? (double)node_shape(n)[d] : 64.0;
    return b;
}

static bool is_number(const eas_node *n) { return n->dtype != EAS_BOOL; }

/* A gather from a table that is cut along its rows: each device contributes the rows it has and zeros, and
 * the sum is the result; used if that moves less than gathering the table. */
static void gather_rule(const eas_node *n, eas_shard_rule *r)
{
    const eas_shard_dim *d = &r->tensors[0].dims[node_words(n)[1]];
    if (d->n == 1 && is_number(n) && 2 * bytes_of(n) <= bytes_of(node_in(n)[0]))
        r->factors[d->factors[0]].kind = EAS_FACTOR_SUM;
}

/* A scatter-add with cut indices: each device adds its own updates, and the result is a partial sum. */
static void scatter_rule(const eas_node *n, eas_shard_rule *r)
{
    int nbatch = (int)node_words(n)[0];
    for (int d = nbatch; d < node_in(n)[1]->rank && node_words(n)[2] == SCATTER_ADD && is_number(n); d++) {
        const eas_shard_dim *dim = &r->tensors[1].dims[d];
        if (dim->n == 1)
            r->factors[dim->factors[0]].kind = EAS_FACTOR_SUM;
    }
}

static eas_status empty_rule(const eas_node *n, eas_shard_rule **out)
{
    eas_shard_rule *r = calloc(1, sizeof *r + sizeof(eas_shard_tensor) * (size_t)(n->nin + 1));
    *out = r;
    if (!r)
        return base_fail_oom(sizeof *r);
    r->nin = n->nin;
    r->tensors = (eas_shard_tensor *)(r + 1);
    for (int i = 0; i < n->nin; i++)
        r->tensors[i].rank = node_in(n)[i]->rank;
    r->tensors[n->nin].rank = n->rank;
    return EAS_OK;
}

/* All dims pass; the shuffled one only if it keeps its size, and then it may be cut only into single elements
 * (assign.c). */
static eas_status shuffle_rule(const eas_node *n, eas_shard_rule **out)
{
    int axis = (int)node_words(n)[0];
    eas_status st = empty_rule(n, out);
    for (int d = 0; d < n->rank && !st; d++)
        if (d != axis || node_shape(n)[d] == node_shape(node_in(n)[0])[d]) {
            own_factor(*out, node_shape(n)[d], d);
            (*out)->tensors[0].dims[d] = (*out)->tensors[1].dims[d];
        }
    return st;
}

eas_status dist_shard_rule(eas_node *n, eas_shard_rule **out)
{
    if (n->op == GRAPH_SHUFFLE_PHYSICAL)
        return shuffle_rule(n, out);
    if (n->op == GRAPH_ROLL)
        return shift_roll_rule(n, out);
    eas_status st = eas_node_shard_rule(n, out);
    if (st)
        return st;
    switch (node_kind(n)) {
    case KIND_IOTA:
    case KIND_BROADCAST: /* needs no input in parts, so any dim may be created in parts */
        for (int d = 0; d < n->rank; d++)
            own_factor(*out, node_shape(n)[d], d);
        break;
    case KIND_UPDATE: /* dims of which a part is replaced are cut by place.c or not at all */
        for (int d = 0; d < n->rank; d++)
            if (node_shape(node_in(n)[1])[d] != node_shape(n)[d])
                never_cut(*out, d);
        break;
    case KIND_GATHER: gather_rule(n, *out); break;
    case KIND_SCATTER: scatter_rule(n, *out); break;
    default: break;
    }
    return EAS_OK;
}

/* ---- padding ---- */

/* x, with `fill` in the elements that only pad dim d. */
static eas_node *masked(partition *p, eas_node *x, int d, const eas_dim_spec *axes, eas_dim size,
                        int64_t fill)
{
    gbuild *g = &p->g;
    if (g->st || !x)
        return NULL;
    eas_dim local = node_shape(x)[d];
    eas_node *start = gd2(g, GRAPH_MUL, partition_index(p, axes), gb_int(g, EAS_I64, local));
    eas_node *at = gd2(g, GRAPH_ADD, gb_iota_at(g, local, EAS_I64, x->rank - 1 - d), start);
    eas_node *number = NULL;
    eas_status st = node_const((eas_dtype)x->dtype, false, fill, &number);
    if (!st)
        number = partition_keep(p, st, number);
    return gd_where(g, gd2(g, GRAPH_LESS, at, gb_int(g, EAS_I64, size)), x, number);
}

static int64_t neutral_of(const eas_node *n, eas_dtype dt)
{
    return node_kind(n) == KIND_REDUCE ? graph_neutral(graph_rows[n->op].ir, dt) : 0;
}

/* Replaces the padding of inputs that are reduced over, or that are indices: it must not change the result.
 */
static eas_node *mask_input(partition *p, const eas_node *n, const assigned *a, int i, eas_node *x)
{
    const eas_shard_tensor *t = &a->r->tensors[i];
    graph_kind kind = node_kind(n);
    bool index = i == 1 && (kind == KIND_GATHER || kind == KIND_ALONG);
    for (int d = 0; d < t->rank; d++)
        for (int k = 0; k < t->dims[d].n; k++) {
            uint16_t f = t->dims[d].factors[k];
            eas_dim size = a->r->factors[f].size;
            eas_factor_kind what = a->r->factors[f].kind;
            if (what != EAS_FACTOR_WHOLE && spec_uneven(p->m, &a->of[f], size) &&
                (index || (what != EAS_FACTOR_PASS && !(kind == KIND_GATHER && i == 0))))
                x = masked(p, x, d, &a->of[f], size, neutral_of(n, (eas_dtype)node_in(n)[i]->dtype));
        }
    return x;
}

/* ---- results ---- */

static coll_join join_of(const char *ir)
{
    static const char *const names[] = {"add", "mul", "max", "min", "and", "or"};
    for (int i = 0; i < 6; i++)
        if (!strcmp(ir, names[i]))
            return (coll_join)i;
    return JOIN_SUM;
}

/* A sum over a cut dim stays partial; other reductions over a cut dim are finished by an all_reduce now. */
static void joined(partition *p, const eas_node *n, const assigned *a, pvalue *v)
{
    eas_dim_spec axes = {0};
    for (int f = 0; f < a->r->nfactors; f++)
        for (int i = 0; i < a->of[f].n; i++) {
            if (a->r->factors[f].kind == EAS_FACTOR_SUM)
                v->at.partial |= 1u << a->of[f].axes[i];
            if (a->r->factors[f].kind == EAS_FACTOR_JOIN)
                axes.axes[axes.n++] = a->of[f].axes[i];
        }
    if (axes.n)
        v->n = coll_reduce(p, v->n, &axes, join_of(graph_rows[n->op].ir),
                           "joins what each device found in its part");
}

/* ---- kinds ---- */

static eas_node *same_op(partition *p, const eas_node *n, const eas_spec *at, eas_node *const *in)
{
    eas_dim shape[GRAPH_MAX_RANK];
    spec_local_shape(p->m, at, node_shape(n), shape);
    return gb_new(&p->g, n->op, (eas_dtype)n->dtype, 0, n->rank, shape, n->nwords, node_words(n), n->nin, in);
}

/* Indices of the part. */
static eas_node *iota(partition *p, const eas_node *n, const eas_spec *at)
{
    gbuild *g = &p->g;
    int axis = (int)node_words(n)[0];
    const eas_dim_spec *cut = &at->dims[axis];
    eas_dim shape[GRAPH_MAX_RANK];
    if (!cut->n)
        return same_op(p, n, at, NULL);
    spec_local_shape(p->m, at, node_shape(n), shape);
    eas_node *own = gb_new(g, GRAPH_IOTA, EAS_I64, 0, n->rank, shape, n->nwords, node_words(n), 0, NULL);
    eas_node *start = gd2(g, GRAPH_MUL, partition_index(p, cut), gb_int(g, EAS_I64, shape[axis]));
    return gb_cast(g, gd2(g, GRAPH_ADD, own, start), (eas_dtype)n->dtype);
}

/* Is no element wanted twice? */
bool rules_is_permutation(const eas_node *n)
{
    for (int i = 1; i < n->nwords; i++)
        for (int k = 1; k < i && node_words(n)[i] >= 0; k++)
            if (node_words(n)[i] == node_words(n)[k])
                return false;
    return true;
}

/* A shuffle between devices that have one element each along the axis: a ppermute. */
static eas_node *permuted(partition *p, const eas_node *n, eas_node *x, const eas_dim_spec *axes)
{
    int64_t *pairs = malloc(sizeof *pairs * 2 * n->nwords);
    int count = 0;
    if (!pairs)
        return partition_keep(p, base_fail_oom(n->nwords), NULL);
    for (int i = 1; i < n->nwords; i++)
        if (node_words(n)[i] >= 0) {
            pairs[2 * count] = node_words(n)[i];
            pairs[2 * count++ + 1] = i - 1;
        }
    eas_node *r = coll_permute(p, x, axes, count, pairs, "parts go from device to device");
    free(pairs);
    return r;
}

static eas_node *shuffled(partition *p, eas_node *n, const eas_spec *at, eas_node *x)
{
    int axis = (int)node_words(n)[0];
    if (at->dims[axis].n)
        return permuted(p, n, x, &at->dims[axis]);
    eas_node *local = same_op(p, n, at, &x), *made = NULL;
    if (!local)
        return NULL;
    node_expanding = true;
    eas_status st = expand_shuffle(local, &x, &made);
    node_expanding = false;
    return partition_keep(p, st, made);
}

/* Rows of other devices are zero here. An index that is out of range of the whole table stays out of range,
 * so that the error is raised. */
static eas_node *gathered(partition *p, eas_node *n, const eas_spec *at, eas_node *const *in,
                          const eas_dim_spec *axes)
{
    gbuild *g = &p->g;
    int axis = (int)node_words(n)[1], nbatch = (int)node_words(n)[0];
    eas_dim size = node_shape(node_in(n)[0])[axis], local;
    if (!in[0] || !in[1])
        return NULL;
    local = node_shape(in[0])[axis];
    eas_node *i = gb_typed(g, in[1], EAS_I64), *zero = gb_int(g, EAS_I64, 0);
    i = gd_where(g, gd2(g, GRAPH_LESS, i, zero), gd2(g, GRAPH_ADD, i, gb_int(g, EAS_I64, size)), i);
    eas_node *bad = gd2(g, GRAPH_LOGICAL_OR, gd2(g, GRAPH_LESS, i, zero),
                        gd2(g, GRAPH_GREATER_EQUAL, i, gb_int(g, EAS_I64, size)));
    eas_node *own =
        gd2(g, GRAPH_SUB, i, gd2(g, GRAPH_MUL, partition_index(p, axes), gb_int(g, EAS_I64, local)));
    eas_node *here = gd2(g, GRAPH_LOGICAL_AND, gd2(g, GRAPH_GREATER_EQUAL, own, zero),
                         gd2(g, GRAPH_LESS, own, gb_int(g, EAS_I64, local)));
    own = gd_where(g, bad, gb_int(g, EAS_I64, local), gd_where(g, here, own, zero));
    eas_node *rows = same_op(p, n, at, (eas_node *[]){in[0], own});
    if (!rows || !here)
        return NULL;
    eas_dim shape[GRAPH_MAX_RANK];
    for (int d = 0; d < n->rank; d++) { /* as the index's dims lie in the result */
        bool batch = d < nbatch, index = d >= axis && d < axis + in[1]->rank - nbatch;
        shape[d] = batch ? node_shape(here)[d] : index ? node_shape(here)[d - axis + nbatch] : 1;
    }
    return gd_where(g, gb_reshape(g, here, 0, n->rank, shape), rows, gd_num(g, rows, 0));
}

/* A scatter-add whose updates are spread over devices: every device adds its updates to a partial result,
 * so the tensor they are added to must count once. The first device starts from it, the others from zeros.
 */
static eas_node *scattered(partition *p, eas_node *n, const eas_spec *at, eas_node *const *in,
                           const eas_dim_spec *axes)
{
    gbuild *g = &p->g;
    if (!in[0])
        return NULL;
    eas_node *first = gd2(g, GRAPH_EQUAL, partition_index(p, axes), gb_int(g, EAS_I64, 0));
    eas_node *x = gd_where(g, first, in[0], gd_num(g, in[0], 0));
    return same_op(p, n, at, (eas_node *[]){x, in[1], in[2]});
}

/* The axes of the factors that the rule sums over. */
static eas_dim_spec summed_axes(const assigned *a)
{
    eas_dim_spec s = {0};
    for (int f = 0; f < a->r->nfactors; f++)
        for (int i = 0; a->r->factors[f].kind == EAS_FACTOR_SUM && i < a->of[f].n; i++)
            s.axes[s.n++] = a->of[f].axes[i];
    return s;
}

static eas_node *local_op(partition *p, eas_node *n, const assigned *a, const eas_spec *at,
                          eas_node *const *in)
{
    eas_dim_spec sum = summed_axes(a);
    if (sum.n && node_kind(n) == KIND_GATHER)
        return gathered(p, n, at, in, &sum);
    if (sum.n && node_kind(n) == KIND_SCATTER)
        return scattered(p, n, at, in, &sum);
    if (n->op == GRAPH_SHUFFLE_PHYSICAL)
        return shuffled(p, n, at, in[0]);
    if (n->op == GRAPH_ROLL)
        return shift_rolled(p, n, at, in[0]);
    switch (node_kind(n)) {
    case KIND_IOTA: return iota(p, n, at);
    default: return same_op(p, n, at, in);
    }
}

static const char *reason(const eas_node *n)
{
    switch (node_kind(n)) {
    case KIND_MATMUL: return "the product needs its factors cut alike";
    case KIND_SORT:
    case KIND_SCAN:
    case KIND_ARG: return "every element along the axis may need every other";
    case KIND_GATHER:
    case KIND_ALONG:
    case KIND_SCATTER: return "an index may select any element of the axis";
    case KIND_RESHAPE: return "the new shape does not keep the parts together";
    case KIND_SLICE:
    case KIND_PAD:
    case KIND_CONCAT:
    case KIND_UPDATE:
    case KIND_WINDOW: return "elements along the axis change their device";
    case KIND_MAP: return "operands must lie alike and whole sums are needed";
    default: return "the operation needs it laid out so";
    }
}

static void by_rule(partition *p, pentry *e)
{
    eas_node *n = e->n;
    assigned a;
    const eas_spec **specs = malloc(sizeof *specs * ((size_t)n->nin + 1));
    eas_node **in = calloc((size_t)n->nin + 1, sizeof *in);
    eas_status st = specs && in ? EAS_OK : base_fail_oom(n->nin);
    for (int i = 0; i < n->nin && !st; i++)
        specs[i] = &partition_value(p, node_in(n)[i])->at;
    if (!st)
        st = assign_factors(p, n, specs, e->has_want ? &e->want : NULL, &a);
    for (int i = 0; i < n->nin && !st; i++) {
        eas_spec need;
        eas_node *x = node_in(n)[i];
        assign_spec(&a, i, &need);
        need.partial = specs[i]->partial & a.carried;
        in[i] = reshard(p, partition_value(p, x), &need, x->rank, node_shape(x), reason(n));
        in[i] = mask_input(p, n, &a, i, in[i]);
        st = p->g.st;
    }
    if (!st) {
        assign_spec(&a, a.r->nin, &e->v.at);
        e->v.at.partial = a.carried;
        e->v.n = local_op(p, n, &a, &e->v.at, in);
        joined(p, n, &a, &e->v);
        assign_free(&a);
    }
    free(specs);
    free(in);
    p->g.st = p->g.st ? p->g.st : st;
}

/* ---- sums of whole and partial values ---- */

/* Gradients of a value that is used several times are summed one after another, and some are partial: a + b,
 * with a whole and b partial, becomes a and b for later, and b is joined with what else is partial in the
 * chain, so that all of it is reduced once. */
static bool same_dims(const pvalue *a, const pvalue *b)
{
    eas_spec x = a->at, y = b->at;
    x.partial = y.partial = 0;
    return spec_same(&x, &y);
}

static bool add_rest(partition *p, pvalue *to, const pvalue *more)
{
    if (!to->n)
        *to = *more;
    else if (more->n && same_dims(to, more) && to->at.partial == more->at.partial)
        to->n = gd2(&p->g, GRAPH_ADD, to->n, more->n);
    else
        return !more->n;
    return true;
}

static bool sum_later(partition *p, pentry *e)
{
    const eas_node *n = e->n, *const *in = (const eas_node *const *)node_in(n);
    if (n->op != GRAPH_ADD || n->dtype == EAS_BOOL)
        return false;
    for (int i = 0; i < 2; i++)
        if (in[i]->rank != n->rank || memcmp(node_shape(in[i]), node_shape(n), sizeof(eas_dim) * n->rank))
            return false;
    const pentry *x = partition_find(p, in[0]), *y = partition_find(p, in[1]);
    bool left = x->v.at.partial != 0, right = y->v.at.partial != 0;
    pvalue rest = {0}, v;
    if (left == right ? left || (!x->rest.n && !y->rest.n) : false)
        return false; /* both partial: the operation carries them; both whole: nothing to postpone */
    if (!same_dims(&x->v, &y->v))
        return false;
    if (left || right) {
        const pentry *whole = left ? y : x, *partial = left ? x : y;
        v = whole->v;
        if (partial->rest.n || !add_rest(p, &rest, &whole->rest) || !add_rest(p, &rest, &partial->v))
            return false;
    } else {
        if (!add_rest(p, &rest, &x->rest) || !add_rest(p, &rest, &y->rest))
            return false;
        v = x->v;
        v.n = gd2(&p->g, GRAPH_ADD, x->v.n, y->v.n);
    }
    e->v = v;
    e->rest = rest;
    return true;
}

/* An ordering edge (GRAPH_BARRIER): depends on any one element of its second input that this device has. */
static void barrier(partition *p, pentry *e)
{
    gbuild *g = &p->g;
    pvalue *x = partition_value(p, node_in(e->n)[0]);
    const eas_node *source = barrier_source(e->n);
    eas_node *token = partition_value(p, source)->n;
    bool empty = false;
    for (int d = 0; token && d < token->rank; d++)
        empty |= node_shape(token)[d] == 0;
    while (token && token->rank && !empty && !g->st)
        token = gb_squeeze(g, gb_slice(g, token, 0, 0, 1, 1), 0);
    if (empty)
        token = gb_int(g, EAS_BOOL, 0);
    e->v.at = x->at;
    if (!g->st && x->n && token)
        e->v.n = gb_new(g, GRAPH_BARRIER, (eas_dtype)x->n->dtype, 0, x->n->rank, node_shape(x->n), 0, NULL, 2,
                        (eas_node *[]){x->n, token});
}

/* Reshards a value and its postponed partial sum separately, and adds them: the sum can be reduced with a
 * reduce_scatter where the target is cut. */
static eas_node *reshard_both(partition *p, const eas_node *n, const eas_spec *to, const char *why)
{
    pentry *e = partition_find(p, n);
    if (!e->rest.n)
        return reshard(p, partition_value(p, n), to, n->rank, node_shape(n), why);
    eas_node *a = reshard(p, &e->v, to, n->rank, node_shape(n), why),
             *b = reshard(p, &e->rest, to, n->rank, node_shape(n), why);
    return a && b ? gd2(&p->g, GRAPH_ADD, a, b) : NULL;
}

void partition_keep_pin(partition *p, pentry *e)
{
    eas_spec to = e->pinned->at;
    e->v.n = reshard_both(p, e->n, &to, "was chosen by auto_shard");
    e->v.at = to;
    e->rest.n = NULL;
}

static void constrain(partition *p, pentry *e)
{
    pvalue *x = &partition_find(p, node_in(e->n)[0])->v;
    eas_spec to = mix_none(&e->ahead);
    if (e->n->nin > 1 && !dist_foreign(e->n, 1)) {
        const eas_node *other = node_in(e->n)[1];
        spec_like(e->n, &x->at, other, &partition_find(p, other)->v.at, &to);
    }
    for (int d = 0; d < to.rank && e->n->nin == 1; d++) /* open dims keep the layout of the input */
        if (spec_dim_of(node_words(e->n)[SHARD_DIMS + d]).open &&
            !spec_same_dim(&to.dims[d], &x->at.dims[d])) {
            uint32_t used = 0;
            to.dims[d].n = 0;
            used = spec_cut(&to) | to.replicated;
            for (int i = 0;
                 i < x->at.dims[d].n && !x->at.dims[d].priority && !(used >> x->at.dims[d].axes[i] & 1); i++)
                to.dims[d].axes[to.dims[d].n++] = x->at.dims[d].axes[i];
        }
    to.partial = 0;
    e->v.n = reshard_both(p, node_in(e->n)[0], &to,
                          e->n->nin > 1 ? "a cotangent lies as its value" : "was asked for");
    e->v.at = to;
}

static void result(partition *p, pentry *e)
{
    int index;
    eas_node *from = control_source(e->n, &index);
    e->v = partition_find(p, from)->results[index];
}

void partition_node(partition *p, pentry *e)
{
    switch (node_kind(e->n)) {
    case KIND_ALIAS: constrain(p, e); return; /* GRAPH_SHARD */
    case KIND_RESULT: result(p, e); return;
    case KIND_CALL: partition_call(p, e); return;
    case KIND_CONTROL: partition_control(p, e); return;
    default: break;
    }
    if (e->n->op == GRAPH_BARRIER)
        barrier(p, e);
    else if (!partition_shift(p, e) && !partition_place(p, e) && !partition_reshape(p, e) && !sum_later(p, e))
        by_rule(p, e);
}
