/* call.c: kernels of the user's, and functions of the host's, on parts.
 *
 * A call can be cut in four ways, which are tried in this order:
 *
 *   by the user's rule    (eas_node_call_rule): factors of the dims, and the grid and numbers of a part as
 *                         expressions in the sizes of its factors
 *   element by element    where that is proved of the kernel (elementwise.c): along any dim, with the kernel
 *                         over rows of any length
 *   lane by lane          of vmap: a rule as the user's, of the lanes alone
 *   matrix by matrix      functions of the host's, along the dims in front of their matrices
 *
 * Otherwise every device has all tensors whole, and explain says why. Where a rule of the user's is for a
 * kernel that is proved element-wise, the rule says what may be cut, and the proof how a part is launched.
 */
#include "elementwise.h"

typedef enum way { WAY_WHOLE, WAY_RULE, WAY_ELEMENTS, WAY_BATCH } way;
typedef struct calling {
    partition *p;
    eas_node *n;
    const node_extra *x;
    way how;
    const char *why; /* of WAY_WHOLE */
    elementwise e;
    int split; /* WAY_ELEMENTS: dims of the results that number rows */
    int lead, tail; /* WAY_BATCH: dims in front of the matrices; fft: dims behind the axis */
    assigned a;
} calling;

static int64_t count_of(int rank, const eas_dim *shape)
{
    int64_t c = 1;
    for (int d = 0; d < rank; d++) {
        if (!dim_known(shape[d]))
            return -1;
        c *= shape[d];
    }
    return c;
}

/* ---- rules ---- */

static eas_status new_rule(const calling *c, eas_shard_rule **out)
{
    int n = c->n->nin + c->x->nouts;
    eas_shard_rule *r = calloc(1, sizeof *r + sizeof(eas_shard_tensor) * (size_t)(n + 1));
    *out = r;
    if (!r)
        return base_fail_oom(sizeof *r);
    r->nin = c->n->nin;
    r->tensors = (eas_shard_tensor *)(r + 1);
    for (int i = 0; i < c->n->nin; i++)
        r->tensors[i].rank = node_in(c->n)[i]->rank;
    for (int i = 0; i < c->x->nouts; i++)
        r->tensors[r->nin + i].rank = c->x->outs[i].rank;
    return EAS_OK;
}

static void set_factor(eas_shard_rule *r, int tensor, int dim, int factor)
{
    r->tensors[tensor].dims[dim] = (eas_shard_dim){.n = 1, .factors = {(uint16_t)factor}};
}

static eas_status copy_rule(const call_share *s, eas_shard_rule **out)
{
    size_t size = sizeof *s->rule + sizeof(eas_shard_tensor) * (size_t)(s->ntensors + 1);
    eas_shard_rule *r = malloc(size);
    *out = r;
    if (!r)
        return base_fail_oom(size);
    *r = *s->rule;
    r->tensors = (eas_shard_tensor *)(r + 1);
    memcpy(r->tensors, s->rule->tensors, sizeof *r->tensors * (size_t)s->ntensors);
    return EAS_OK;
}

/* ---- element by element ---- */

/* The grid of the launch, and its numbers by parameter. */
static bool launch_of(const calling *c, elementwise_numbers *g, int64_t *number, bool *is_number)
{
    eas_arg args[IR_MAX_PARAMS];
    memset(args, 0, sizeof args);
    for (int i = 0; i < c->x->nargs; i++) {
        int64_t bits;
        int at = c->x->order[i];
        is_number[i] = at >= 0 && node_const_bits(node_in(c->n)[at], &bits) &&
                       !dtype_is_float((eas_dtype)node_in(c->n)[at]->dtype);
        number[i] = is_number[i] ? bits : 0;
        args[i].v.i = number[i];
    }
    g->number = number;
    g->is_number = is_number;
    for (int i = 0; i < 3; i++)
        g->grid[i] = c->x->launch.grid[i];
    bool given = c->x->launch.has_grid;
    for (int i = 0; i < 3 && given; i++)
        if (!dim_known(g->grid[i]))
            return false;
    if (!given && c->x->kernel->size_n < 0 && c->x->kernel->info.naxes == 1)
        return false;
    return given || kernel_grid(c->x->kernel, args, NULL, g->grid) == EAS_OK;
}

/* The parameter of the kernel that input `what`, or output i if what is -1 - i, is bound to; -1: none. */
static int param_of(const node_extra *x, int what)
{
    for (int i = 0; i < x->nargs; i++)
        if (x->order[i] == what)
            return i;
    return -1;
}

static bool same_shape(int rank, const eas_dim *shape, int other_rank, const eas_dim *other)
{
    return rank == other_rank && !memcmp(shape, other, sizeof *shape * (size_t)rank);
}

/* How input i is read. What is not a parameter is what an output begins as; what is never read may lie as it
 * likes. */
static int how_read(const calling *c, int i)
{
    const struct node_out *o = &c->x->outs[0];
    const eas_node *in = node_in(c->n)[i];
    int k = param_of(c->x, i), how = k < 0 ? ELEMENTS_ALL : c->e.how[k];
    return how == ELEMENTS_UNUSED && same_shape(in->rank, node_shape(in), o->rank, o->shape) ? ELEMENTS_ALL
                                                                                             : how;
}

/* How the tensors' shapes go with the proof; false: they do not. */
static bool shapes_fit(calling *c)
{
    const node_extra *x = c->x;
    const struct node_out *o = &x->outs[0];
    int64_t rows = 1;
    c->split = 0;
    while (c->e.axis && rows < c->e.rows && c->split < o->rank)
        rows *= o->shape[c->split++];
    if (c->e.axis && rows != c->e.rows)
        return false;
    for (int i = 1; i < x->nouts; i++)
        if (!same_shape(x->outs[i].rank, x->outs[i].shape, o->rank, o->shape))
            return false;
    for (int i = 0; i < c->n->nin; i++) {
        const eas_node *in = node_in(c->n)[i];
        int how = how_read(c, i);
        if (how == ELEMENTS_ALL && !same_shape(in->rank, node_shape(in), o->rank, o->shape))
            return false;
        if (how == ELEMENTS_ROW &&
            !same_shape(in->rank, node_shape(in), o->rank - c->split, o->shape + c->split))
            return false;
    }
    return true;
}

static eas_status elements_rule(calling *c, eas_shard_rule **r)
{
    const struct node_out *o = &c->x->outs[0];
    eas_status st = new_rule(c, r);
    if (st)
        return st;
    (*r)->nfactors = o->rank;
    for (int d = 0; d < o->rank; d++) {
        (*r)->factors[d].size = o->shape[d];
        (*r)->factors[d].kind = EAS_FACTOR_PASS;
    }
    for (int i = 0; i < c->n->nin; i++) {
        int how = how_read(c, i);
        for (int d = how == ELEMENTS_ROW ? c->split : 0;
             d < o->rank && (how == ELEMENTS_ALL || how == ELEMENTS_ROW); d++)
            set_factor(*r, i, how == ELEMENTS_ROW ? d - c->split : d, d);
    }
    for (int i = 0; i < c->x->nouts; i++)
        for (int d = 0; d < o->rank; d++)
            set_factor(*r, c->n->nin + i, d, d);
    return EAS_OK;
}

/* Restricts a rule to the factors that the user's rule allows to be cut. */
static void only_as_told(eas_shard_rule *r, const call_share *s, int outputs)
{
    const eas_shard_tensor *told = &s->rule->tensors[outputs];
    for (int d = 0; d < told->rank; d++) {
        bool whole = told->dims[d].n == 0;
        for (int i = 0; i < told->dims[d].n; i++)
            whole |= s->rule->factors[told->dims[d].factors[i]].kind == EAS_FACTOR_WHOLE;
        if (whole)
            r->factors[d].kind = EAS_FACTOR_WHOLE;
    }
}

static eas_status try_elements(calling *c, eas_shard_rule **r)
{
    const node_extra *x = c->x;
    elementwise_numbers g = {.count = x->nouts ? count_of(x->outs[0].rank, x->outs[0].shape) : -1};
    int64_t number[IR_MAX_PARAMS];
    bool is_number[IR_MAX_PARAMS];
    *r = NULL;
    if (g.count < 0 || x->nargs > IR_MAX_PARAMS - 1 || !launch_of(c, &g, number, is_number)) {
        c->why = "how many programs the kernel has is not known here";
        return EAS_OK;
    }
    elementwise_free(&c->e);
    eas_status st = elementwise_prove(x->kernel, &g, false, &c->e);
    if (st)
        return st;
    c->why = c->e.why ? c->e.why : shapes_fit(c) ? NULL : "its tensors are of different shapes";
    if (c->why)
        return EAS_OK;
    c->how = WAY_ELEMENTS;
    st = elements_rule(c, r);
    if (!st && x->share && !x->share->lanes)
        only_as_told(*r, x->share, c->n->nin);
    return st;
}

/* ---- matrix by matrix ---- */

/* Dims that all tensors have in front; their product is how many matrices there are. */
static bool common_lead(calling *c, int64_t matrices, int from_end)
{
    const struct node_out *o = &c->x->outs[0];
    int64_t n = 1;
    int d = 0;
    while (d < o->rank && n * o->shape[from_end ? o->rank - 1 - d : d] <= matrices &&
           (n < matrices || o->shape[from_end ? o->rank - 1 - d : d] == 1)) {
        eas_dim size = o->shape[from_end ? o->rank - 1 - d : d];
        for (int i = 0; i < c->n->nin + c->x->nouts; i++) {
            const eas_node *in = i < c->n->nin ? node_in(c->n)[i] : NULL;
            const struct node_out *out = in ? NULL : &c->x->outs[i - c->n->nin];
            int rank = in ? in->rank : out->rank;
            const eas_dim *shape = in ? node_shape(in) : out->shape;
            if (d >= rank || shape[from_end ? rank - 1 - d : d] != size)
                return n == matrices && (from_end ? c->tail = d : (c->lead = d), true);
        }
        n *= size;
        d++;
    }
    if (n == matrices && from_end)
        c->tail = d;
    else if (n == matrices)
        c->lead = d;
    return n == matrices;
}

static bool is_fft(const node_extra *x) { return !strcmp(native_name(x->native), "fft"); }

static eas_status batch_rule(calling *c, eas_shard_rule **r)
{
    const node_extra *x = c->x;
    *r = NULL;
    c->why = "the function of the host needs whole matrices";
    for (int i = 0; i < x->nouts; i++)
        if (count_of(x->outs[i].rank, x->outs[i].shape) <= 0)
            return EAS_OK;
    if (!x->nouts || x->nnumbers < 2 || !dim_known(x->numbers[1]) || !common_lead(c, x->numbers[1], 0))
        return EAS_OK;
    if (is_fft(x) && (!dim_known(x->numbers[3]) || !common_lead(c, x->numbers[3], 1)))
        return EAS_OK;
    eas_status st = new_rule(c, r);
    for (int d = 0; d < c->lead + c->tail && !st; d++) {
        bool end = d >= c->lead;
        int from = end ? c->lead + c->tail - d : 0; /* counted from the end */
        (*r)->factors[d].size = x->outs[0].shape[end ? x->outs[0].rank - from : d];
        (*r)->factors[d].kind = EAS_FACTOR_PASS;
        (*r)->nfactors = d + 1;
        for (int i = 0; i < c->n->nin + x->nouts; i++)
            set_factor(*r, i, end ? (*r)->tensors[i].rank - from : d, d);
    }
    c->how = WAY_BATCH;
    return st;
}

/* ---- how it is cut ---- */

static eas_status rule_for(calling *c, eas_shard_rule **r)
{
    const node_extra *x = c->x;
    *r = NULL;
    c->why = "a kernel without a sharding rule needs whole tensors";
    if (x->native)
        return batch_rule(c, r);
    if (!x->kernel || !x->order)
        return EAS_OK;
    eas_status st = try_elements(c, r);
    if (st || *r || !x->share)
        return st;
    c->how = WAY_RULE;
    return copy_rule(x->share, r);
}

/* Rows that have to be whole blocks: an axis that leaves no whole blocks goes. */
static void keep_blocks(calling *c)
{
    const struct node_out *o = &c->x->outs[0];
    for (int d = c->split; d < o->rank && c->e.exact; d++)
        while (c->a.of[d].n) {
            int64_t length = 1;
            for (int k = c->split; k < o->rank; k++)
                length *= spec_local(c->p->m, &c->a.of[k], o->shape[k]);
            if (length % c->e.block == 0)
                return;
            c->a.of[d].n--;
            c->why = "the kernel has no mask, and parts are not whole blocks";
        }
}

/* Joined in a way that nobody told: such factors stay whole. */
static void never_join(eas_shard_rule *r)
{
    for (int f = 0; f < r->nfactors; f++)
        if (r->factors[f].kind == EAS_FACTOR_JOIN)
            r->factors[f].kind = EAS_FACTOR_WHOLE;
}

static eas_status assign_call(calling *c, const eas_spec *const *in)
{
    eas_shard_rule *r = NULL;
    eas_status st = rule_for(c, &r);
    if (!st && !r)
        st = new_rule(c, &r);
    if (st) {
        free(r);
        return st;
    }
    never_join(r);
    st = assign_by(c->p, c->n, r, c->x->nouts, in, NULL, &c->a);
    if (!st && c->how == WAY_ELEMENTS)
        keep_blocks(c);
    c->a.carried = 0;
    return st;
}

/* Axes of factors that an output does not have, where it is the sum over them. */
static uint32_t partial_of(const calling *c, int out)
{
    const eas_shard_tensor *t = &c->a.r->tensors[c->n->nin + out];
    uint32_t all = 0, has = 0;
    if (c->how != WAY_RULE)
        return 0;
    for (int f = 0; f < c->a.r->nfactors; f++)
        for (int i = 0; i < c->a.of[f].n; i++)
            if (c->a.r->factors[f].kind == EAS_FACTOR_SUM || c->x->share->sums[out])
                all |= 1u << c->a.of[f].axes[i];
    for (int d = 0; d < t->rank; d++)
        for (int k = 0; k < t->dims[d].n; k++)
            for (int i = 0; i < c->a.of[t->dims[d].factors[k]].n; i++)
                has |= 1u << c->a.of[t->dims[d].factors[k]].axes[i];
    return all & ~has;
}

static void calling_free(calling *c)
{
    if (c->a.r)
        assign_free(&c->a);
    elementwise_free(&c->e);
}

static eas_spec result_spec(const calling *c, int i)
{
    eas_spec s;
    assign_spec(&c->a, c->n->nin + i, &s);
    s.partial = partial_of(c, i);
    return s;
}

void call_ahead(partition *p, pentry *e)
{
    calling c = {.p = p, .n = e->n, .x = e->n->extra};
    const eas_spec **in = malloc(sizeof *in * ((size_t)e->n->nin + 1));
    if (!e->results)
        e->results = calloc((size_t)c.x->nouts + 1, sizeof *e->results);
    eas_status st = in && e->results ? EAS_OK : base_fail_oom(e->n->nin);
    bool cut = false;
    for (int i = 0; i < e->n->nin && !st; i++) {
        in[i] = &partition_find(p, node_in(e->n)[i])->ahead;
        cut |= !spec_plain(in[i]);
    }
    if (!st && cut)
        st = assign_call(&c, in);
    for (int i = 0; i < c.x->nouts && !st; i++)
        e->results[i].at = cut ? result_spec(&c, i) : (eas_spec){.rank = c.x->outs[i].rank};
    calling_free(&c);
    free(in);
    p->g.st = p->g.st ? p->g.st : st;
}

/* ---- a part's launch ---- */

/* Sizes of the factors of a part. */
static int64_t local_size(const calling *c, int factor)
{
    return spec_local(c->p->m, &c->a.of[factor], c->a.r->factors[factor].size);
}

static eas_status eval(const calling *c, eas_dim d, eas_dim *out)
{
    int64_t sizes[EAS_MAX_FACTORS], v;
    if (!dim_is_expr(d)) {
        *out = d;
        return EAS_OK;
    }
    for (int f = 0; f < c->a.r->nfactors; f++)
        sizes[f] = local_size(c, f);
    eas_status st = dim_eval(d, c->a.r->nfactors, c->x->share->sizes, sizes, &v);
    *out = v;
    return st;
}

static eas_node *number_like(calling *c, const eas_node *like, int64_t v)
{
    eas_node *n = NULL;
    int64_t words[2] = {v, 0};
    eas_status st = node_new(GRAPH_CONST, (eas_dtype)like->dtype, 0, 0, NULL, 2, words, 0, NULL, &n);
    if (!st)
        n->flags |= NODE_FIXED;
    return partition_keep(c->p, st, n);
}

static eas_status launch_by_rule(calling *c, node_extra *k, eas_node **in)
{
    const call_share *s = c->x->share;
    eas_status st = EAS_OK;
    for (int i = 0; i < 3 && s->has_grid && !st; i++)
        st = eval(c, s->grid[i], &k->launch.grid[i]);
    for (int i = 0; i < c->n->nin && !st; i++)
        if (s->numbers[i] != DIM_NONE) {
            eas_dim v;
            st = eval(c, s->numbers[i], &v);
            in[i] = st ? NULL : number_like(c, node_in(c->n)[i], v);
            st = st ? st : c->p->g.st;
        }
    return st;
}

static eas_status launch_elements(calling *c, node_extra *k, eas_node **in, int *nin)
{
    const struct node_out *o = &c->x->outs[0];
    elementwise_numbers g = {.count = count_of(o->rank, o->shape)};
    int64_t number[IR_MAX_PARAMS], rows = 1, length = 1;
    bool is_number[IR_MAX_PARAMS];
    elementwise_free(&c->e);
    if (!launch_of(c, &g, number, is_number))
        return base_fail(EAS_ERR_RUNTIME, "eager: the grid of a kernel is gone");
    eas_status st = elementwise_prove(c->x->kernel, &g, true, &c->e);
    for (int d = 0; d < o->rank && !st; d++)
        *(d < c->split ? &rows : &length) *= local_size(c, d);
    eas_node *n = st ? NULL : gb_int(&c->p->g, EAS_I64, length);
    int8_t *order = st ? NULL : malloc((size_t)k->nargs + 1);
    if (!st && (!n || !order))
        st = c->p->g.st ? c->p->g.st : base_fail_oom((size_t)k->nargs);
    if (st) {
        free(order);
        return st;
    }
    n = partition_number(c->p, n, true);
    memcpy(order, k->order, (size_t)k->nargs);
    order[k->nargs++] = (int8_t)*nin;
    in[(*nin)++] = n;
    free(k->order);
    k->order = order;
    eas_kernel_release(k->kernel);
    k->kernel = eas_kernel_retain(c->e.kernel);
    k->launch.has_grid = 1;
    k->launch.grid[0] = (length + c->e.block - 1) / c->e.block;
    k->launch.grid[1] = c->e.axis == 1 ? rows : 1;
    k->launch.grid[2] = c->e.axis == 2 ? rows : 1;
    return c->p->g.st;
}

static eas_status launch_batch(const calling *c, node_extra *k)
{
    for (int d = 0; d < c->lead + c->tail; d++) {
        eas_dim *number = &k->numbers[d < c->lead ? 1 : 3];
        *number = *number / c->a.r->factors[d].size * local_size(c, d);
    }
    return EAS_OK;
}

static eas_status local_extra(calling *c, eas_node **in, int *nin, node_extra **out)
{
    const node_extra *x = c->x;
    node_extra like = *x;
    eas_dim *shapes = malloc(sizeof *shapes * GRAPH_MAX_RANK * (size_t)(x->nouts + 1));
    like.outs = malloc(sizeof *like.outs * (size_t)(x->nouts + 1));
    like.share = NULL;
    eas_status st = shapes && like.outs ? EAS_OK : base_fail_oom((size_t)x->nouts);
    for (int i = 0; i < x->nouts && !st; i++) {
        eas_spec s = result_spec(c, i);
        like.outs[i] = (struct node_out){x->outs[i].dtype, x->outs[i].rank, shapes + i * GRAPH_MAX_RANK};
        spec_local_shape(c->p->m, &s, x->outs[i].shape, shapes + i * GRAPH_MAX_RANK);
    }
    if (!st)
        st = node_extra_copy(&like, out);
    free(shapes);
    free(like.outs);
    if (st)
        return st;
    switch (c->how) {
    case WAY_RULE: return launch_by_rule(c, *out, in);
    case WAY_ELEMENTS: return launch_elements(c, *out, in, nin);
    case WAY_BATCH: return launch_batch(c, *out);
    default: return EAS_OK;
    }
}

/* An input as the call wants it. What only pads it is 0 where the kernel sums over it. */
static eas_node *laid_out(calling *c, int i)
{
    eas_spec need;
    eas_node *g = node_in(c->n)[i];
    assign_spec(&c->a, i, &need);
    return reshard(c->p, partition_value(c->p, g), &need, g->rank, node_shape(g),
                   c->why ? c->why : "the kernel needs its tensors cut alike");
}

static bool any_cut(const calling *c)
{
    for (int f = 0; f < c->a.r->nfactors; f++)
        if (c->a.of[f].n)
            return true;
    return false;
}

static eas_status record(calling *c, pentry *e, eas_node **in)
{
    eas_node *made = NULL;
    node_extra *k = NULL;
    int nin = c->n->nin;
    if (!any_cut(c))
        c->how = WAY_WHOLE;
    eas_status st = local_extra(c, in, &nin, &k);
    if (!st)
        st = node_new(c->n->op, EAS_I64, 0, 0, NULL, 0, NULL, nin, in, &made);
    if (!st)
        made->extra = k;
    else if (k)
        node_extra_free(k);
    made = made ? partition_keep(c->p, st, made) : NULL;
    for (int i = 0; i < c->x->nouts && !st; i++) {
        int64_t word = i;
        const struct node_out *o = &k->outs[i];
        e->results[i].n = gb_new(&c->p->g, GRAPH_RESULT, o->dtype, 0, o->rank, o->shape, 1, &word, 1, &made);
        e->results[i].at = result_spec(c, i);
    }
    e->v.n = made;
    return st ? st : c->p->g.st;
}

/* Uneven parts of a factor that is summed over would count their padding. */
static void drop_uneven_sums(calling *c)
{
    for (int f = 0; f < c->a.r->nfactors && c->how == WAY_RULE; f++) {
        bool sums = c->a.r->factors[f].kind == EAS_FACTOR_SUM;
        for (int i = 0; i < c->x->nouts; i++)
            sums |= c->x->share->sums[i] != 0;
        while (sums && c->a.of[f].n && spec_uneven(c->p->m, &c->a.of[f], c->a.r->factors[f].size))
            c->a.of[f].n--;
    }
}

void partition_call(partition *p, pentry *e)
{
    eas_node *n = e->n;
    calling c = {.p = p, .n = n, .x = n->extra};
    eas_node **in = calloc((size_t)n->nin + 2, sizeof *in);
    const eas_spec **specs = malloc(sizeof *specs * ((size_t)n->nin + 1));
    if (!e->results)
        e->results = calloc((size_t)c.x->nouts + 1, sizeof *e->results);
    eas_status st = in && specs && e->results ? EAS_OK : base_fail_oom(n->nin);
    for (int i = 0; i < n->nin && !st; i++)
        specs[i] = &partition_value(p, node_in(n)[i])->at;
    if (!st)
        st = assign_call(&c, specs);
    if (!st)
        drop_uneven_sums(&c);
    for (int i = 0; i < n->nin && !st; i++) {
        in[i] = laid_out(&c, i);
        st = p->g.st;
    }
    if (!st)
        st = record(&c, e, in);
    calling_free(&c);
    free(in);
    free(specs);
    p->g.st = p->g.st ? p->g.st : st;
}

eas_status call_result_rule(eas_node *result, eas_shard_rule **out)
{
    int index;
    eas_node *n = control_source(result, &index);
    calling c = {.n = n, .x = n->extra};
    *out = NULL;
    if (node_kind(n) != KIND_CALL)
        return EAS_OK;
    eas_status st = rule_for(&c, out);
    if (!st && *out) {
        never_join(*out);
        (*out)->tensors[n->nin] = (*out)->tensors[n->nin + index];
    }
    elementwise_free(&c.e);
    return st;
}
