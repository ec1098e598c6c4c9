/* shift.c: slices, pads and windows along a cut dim: parts exchange their edges (halos) with their neighbours
 * (halo.c). Where that moves as much as gathering the dim, it is gathered.
 *
 * A pad or slice that is read only by windows, slices and pads is late: it has no value of its own, and each
 * reader is computed from the input of the pad or slice instead. So a padded convolution exchanges the reach
 * of the window, and the padded image is never cut into parts, which would not be aligned with the image's.
 *
 * A slice with a negative step is, where parts are of equal size, a slice of the reversed tensor, whose parts
 * are permuted first.
 */
#include "shift.h"

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- which operations ---- */

bool shift_known_sizes(const eas_node *n)
{
    for (int d = 0; d < n->rank; d++)
        if (!dim_known(node_shape(n)[d]))
            return false;
    return true;
}

/* u in place of a part of zeros: the derivative of a slice. */
static bool is_spread(const eas_node *n)
{
    int64_t bits;
    const eas_node *x = n->nin ? node_in(n)[0] : NULL;
    return node_kind(n) == KIND_UPDATE && !node_real(x) && node_kind(x) == KIND_BROADCAST &&
           node_const_bits(node_in(x)[0], &bits) && bits == 0;
}

static eas_node *input_of(const eas_node *n) { return node_in(n)[node_kind(n) == KIND_UPDATE ? 1 : 0]; }

bool shift_is(const eas_node *n)
{
    graph_kind k = node_kind(n);
    if (node_real(n) || !(k == KIND_SLICE || k == KIND_PAD || k == KIND_WINDOW || is_spread(n)))
        return false;
    for (int i = 0; i < n->nwords; i++)
        if (dim_is_expr(node_words(n)[i]))
            return false;
    for (int i = 0; k == KIND_WINDOW && i < node_words(n)[0]; i++) /* one window along a dim */
        for (int j = 0; j < i; j++)
            if (node_words(n)[1 + 3 * i] == node_words(n)[1 + 3 * j])
                return false;
    return shift_known_sizes(n) && shift_known_sizes(input_of(n));
}

static bool steps_of_one(const eas_node *n)
{
    for (int d = 0; d < n->rank; d++)
        if (node_words(n)[n->rank + d] != 1)
            return false;
    return true;
}

/* Can it be made together with its users? */
static bool may_wait(const eas_node *n)
{
    int64_t bits;
    return shift_is(n) && ((node_kind(n) == KIND_SLICE && steps_of_one(n)) ||
                           (node_kind(n) == KIND_PAD && node_const_bits(node_in(n)[1], &bits)));
}

/* The number that a chain of late pads ends in, if it has one. */
static bool chain_fill(partition *p, const eas_node *n, int64_t *bits)
{
    for (const pentry *e; (e = partition_find(p, n)) && e->late; n = node_in(n)[0])
        if (node_kind(n) == KIND_PAD)
            return node_const_bits(node_in(n)[1], bits);
    return false;
}

static bool reads_late(partition *p, const eas_node *user, const eas_node *input)
{
    int64_t own, bits;
    if (!shift_is(user) || node_kind(user) == KIND_UPDATE)
        return false;
    return node_kind(user) != KIND_PAD || !chain_fill(p, input, &bits) ||
           (node_const_bits(node_in(user)[1], &own) && own == bits);
}

static void now(partition *p, const eas_node *n)
{
    pentry *e = partition_find(p, n);
    if (e)
        e->late = false;
}

static void ask_users(partition *p, pentry *e)
{
    if (e->v.n)
        return;
    if (e->same != UINT32_MAX) {
        p->at.at[e->same].late = false;
        return;
    }
    for (int i = 0; i < e->n->nin; i++)
        if (i || !reads_late(p, e->n, node_in(e->n)[0]))
            now(p, node_in(e->n)[i]);
    if (e->n->op == GRAPH_BARRIER)
        now(p, barrier_source(e->n));
}

/* Decides which pads and slices are delayed until their reader is made; after the walk forward. */
void shift_mark(partition *p, int nroots, eas_node *const *roots)
{
    bool any = false;
    for (uint32_t i = 0; i < p->at.len; i++) {
        pentry *e = &p->at.at[i];
        e->late = !e->v.n && !e->pinned && e->same == UINT32_MAX && may_wait(e->n) &&
                  spec_cut(&partition_find(p, node_in(e->n)[0])->ahead) != 0;
        any |= e->late;
    }
    if (!any)
        return;
    for (int i = 0; i < nroots; i++)
        now(p, roots[i]);
    for (uint32_t i = p->at.len; i-- > 0;)
        ask_users(p, &p->at.at[i]);
}

/* ---- what is read where ---- */

static void through(along *d, const eas_node *n, int dim)
{
    int64_t size = node_shape(n)[dim];
    d->v.off += node_kind(n) == KIND_PAD ? node_words(n)[dim] : -node_words(n)[dim];
    d->v.lo = most(d->v.lo, -d->v.off);
    d->v.hi = least(d->v.hi, size - d->v.off);
}

static void add_op(shifting *s, int dim)
{
    const eas_node *n = s->n;
    const int64_t *w = node_words(n);
    along *d = &s->d[dim];
    int64_t start = 0;
    d->step = d->reach = 1;
    switch (node_kind(n)) {
    case KIND_SLICE:
        start = w[dim];
        d->step = node_shape(n)[dim] > 1 ? w[n->rank + dim] : 1;
        break;
    case KIND_UPDATE:
    case KIND_PAD: start = -w[dim]; break;
    default:
        for (int i = 0; i < w[0]; i++)
            if (w[1 + 3 * i] == dim) {
                d->step = w[2 + 3 * i];
                d->reach = (node_shape(n)[input_of(n)->rank + i] - 1) * w[3 + 3 * i] + 1;
            }
    }
    d->out = node_shape(n)[dim];
    d->a = start - d->v.off;
    bool all = d->v.lo <= 0 && d->v.hi >= d->in;
    d->flips = all && d->v.off == 0 && d->step == -1 && start == d->in - 1 && d->out == d->in;
    d->moves = !(all && d->a == 0 && d->step == 1 && d->reach == 1 && d->out == d->in);
}

static void look(shifting *s)
{
    eas_node *chain[64];
    int n = 0;
    s->rank = input_of(s->n)->rank;
    s->base = input_of(s->n);
    for (const pentry *e; n < 64 && (e = partition_find(s->p, s->base)) && e->late;
         s->base = node_in(s->base)[0])
        chain[n++] = s->base;
    for (int i = -1; i < n; i++) {
        const eas_node *x = i < 0 ? s->n : chain[i];
        int64_t bits;
        if (node_kind(x) != KIND_PAD)
            continue;
        s->fill = node_in(x)[1];
        s->filled |= !node_const_bits(s->fill, &bits) || bits != 0;
    }
    for (int d = 0; d < s->rank; d++) {
        along *x = &s->d[d];
        x->in = node_shape(s->base)[d];
        if (node_kind(s->n) == KIND_UPDATE && node_words(s->n)[s->n->rank + d] > 1 && x->in > 1)
            x->between = node_words(s->n)[s->n->rank + d] - 1;
        x->in *= 1 + x->between;
        x->v = (view){0, 0, x->in};
        for (int i = n - 1; i >= 0; i--)
            through(x, chain[i], d);
        add_op(s, d);
    }
}

/* ---- the operation ---- */

/* A slice that goes backwards along a cut dim, as one that goes forwards of the reversed tensor. */
static void turn(shifting *s, const eas_spec *at)
{
    for (int i = 0; i < s->rank; i++) {
        along *d = &s->d[i];
        bool all = d->v.off == 0 && d->v.lo <= 0 && d->v.hi >= d->in;
        if (d->flips || d->step >= 0 || !all || !at->dims[i].n || d->in % spec_parts(s->p->m, &at->dims[i]))
            continue;
        d->turned = true;
        d->a = d->in - 1 - d->a;
        d->step = -d->step;
    }
}

/* The dims of base and result: cut alike with an exchange of edges (HALO), cut in the base alone (JOIN: a few
 * elements go to all), or whole. */
static eas_status rule_of(shifting *s, const eas_spec *at, eas_shard_rule **out)
{
    eas_shard_rule *r = calloc(1, sizeof *r + sizeof(eas_shard_tensor) * (size_t)(s->n->nin + 2));
    *out = r;
    if (!r)
        return base_fail_oom(sizeof *r);
    r->nin = 1;
    r->tensors = (eas_shard_tensor *)(r + 1);
    r->tensors[0].rank = s->rank;
    r->tensors[1].rank = s->n->rank;
    for (int d = 0; d < s->rank; d++, r->nfactors++) {
        along *x = &s->d[d];
        eas_shard_dim own = {.n = 1, .factors = {(uint16_t)d}};
        bool cut = at->dims[d].n != 0, ok = cut && halo_fits(s->p->m, x, &at->dims[d]);
        x->few = cut && x->moves && !ok && halo_is_few(s->p->m, x, &at->dims[d]);
        r->factors[d].size = x->moves ? x->in : x->out;
        r->factors[d].kind = !x->moves ? EAS_FACTOR_PASS
                           : ok        ? EAS_FACTOR_HALO
                           : x->few    ? EAS_FACTOR_JOIN
                                       : EAS_FACTOR_WHOLE;
        r->tensors[0].dims[d] = own;
        if (!x->moves || ok)
            r->tensors[1].dims[d] = own;
        if (cut && x->moves && !ok && !x->few)
            s->why = "elements change their device, and edges would be as large as the parts";
    }
    return EAS_OK;
}

static eas_status assign(shifting *s, const eas_spec *at, const eas_spec *want)
{
    eas_shard_rule *r;
    /* what else it is given is a number, or zeros */
    const eas_spec plain = {0}, *in[3] = {at, &plain, &plain};
    turn(s, at);
    eas_status st = rule_of(s, at, &r);
    if (!st)
        st = assign_by(s->p, s->n, r, 1, in, want, &s->a);
    for (int i = 0; i < s->rank && !st; i++) {
        along *d = &s->d[i];
        if ((d->flips || d->turned) && d->in % spec_parts(s->p->m, &s->a.of[i]))
            /* this axis would give parts of different size, which cannot be reversed */
            s->a.of[i].n = 0;
        if (d->turned && !s->a.of[i].n) {
            d->turned = false;
            d->a = d->in - 1 - d->a;
            d->step = -d->step;
        }
    }
    return st;
}

void shift_ahead(partition *p, pentry *e)
{
    shifting s = {.p = p, .n = e->n};
    look(&s);
    p->g.st = assign(&s, &partition_find(p, s.base)->ahead, NULL);
    if (p->g.st)
        return;
    assign_spec(&s.a, 1, &e->ahead);
    e->ahead.partial = s.a.carried;
    assign_free(&s.a);
}

/* Pads and slices the dims that no axis cuts; no communication is needed for these. */
static eas_node *locally(shifting *s, eas_node *x, const eas_spec *at)
{
    for (int d = 0; d < s->rank && x; d++) {
        const along *w = &s->d[d];
        bool last = w->step == 1 && w->reach == 1;
        if (at->dims[d].n || !w->moves)
            continue;
        int64_t from = last ? w->a : -w->v.off, n = last ? w->out : node_shape(input_of(s->n))[d];
        x = halo_cut(s, x, d, from, n, w->v.lo, w->v.hi);
    }
    return x;
}

static bool is_done(const shifting *s, const eas_spec *in, int d)
{
    return in->dims[d].n && (s->d[d].flips || s->d[d].few);
}

/* Steps and windows. */
static eas_node *finish(shifting *s, eas_node *x, const eas_spec *in, const eas_spec *out)
{
    const eas_node *n = s->n;
    int64_t words[2 * GRAPH_MAX_RANK];
    eas_dim shape[GRAPH_MAX_RANK];
    bool any = false;
    for (int d = 0; d < s->rank; d++)
        any |= (s->d[d].step != 1 || s->d[d].reach != 1) && !is_done(s, in, d);
    if (!any || !x)
        return x;
    spec_local_shape(s->p->m, out, node_shape(n), shape);
    if (node_kind(n) == KIND_WINDOW)
        return gb_new(&s->p->g, n->op, (eas_dtype)n->dtype, 0, n->rank, shape, n->nwords, node_words(n), 1,
                      &x);
    for (int d = 0; d < s->rank; d++) {
        bool stepped = s->d[d].step != 1 && !is_done(s, in, d);
        words[d] = stepped && !in->dims[d].n ? node_words(n)[d] : 0;
        words[s->rank + d] = stepped ? s->d[d].step : 1;
    }
    return gb_new(&s->p->g, n->op, (eas_dtype)n->dtype, 0, n->rank, shape, 2 * s->rank, words, 1, &x);
}

eas_node *shift_spread(shifting *s, eas_node *x)
{
    gbuild *g = &s->p->g;
    for (int d = 0; d < s->rank && x && !g->st; d++) {
        int64_t before[GRAPH_MAX_RANK + 1] = {0};
        eas_dim shape[GRAPH_MAX_RANK + 1];
        if (!s->d[d].between)
            continue;
        eas_node *y = gb_unsqueeze(g, x, d + 1);
        if (!y)
            return NULL;
        memcpy(shape, node_shape(y), sizeof *shape * y->rank);
        shape[d + 1] = 1 + s->d[d].between;
        y = gb_new(g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, 0, y->rank, shape, y->rank, before, 2,
                   (eas_node *[]){y, gd_num(g, x, 0)});
        memcpy(shape, node_shape(x), sizeof *shape * x->rank);
        shape[d] *= 1 + s->d[d].between;
        x = gb_reshape(g, y, 0, x->rank, shape);
    }
    return x;
}

static bool wanted_here(shifting *s, const eas_spec *at)
{
    if (s->base != input_of(s->n))
        return true;
    for (int d = 0; d < s->rank; d++)
        if (s->d[d].moves && at->dims[d].n)
            return true;
    return false;
}

static eas_node *moved(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes)
{
    if (s->d[dim].flips || s->d[dim].turned)
        x = halo_flip(s, x, dim, axes);
    return s->d[dim].flips ? x : s->d[dim].few ? halo_few(s, x, dim, axes) : halo_exchange(s, x, dim, axes);
}

bool partition_shift(partition *p, pentry *e)
{
    shifting s = {.p = p, .n = e->n};
    if (!shift_is(e->n))
        return false;
    look(&s);
    pvalue *v = partition_value(p, s.base);
    eas_spec at = v->at, need;
    if (p->g.st || !wanted_here(&s, &at))
        return p->g.st != EAS_OK;
    if (s.filled || node_kind(e->n) == KIND_UPDATE)
        at.partial = 0;
    p->g.st = assign(&s, &at, e->has_want ? &e->want : NULL);
    if (p->g.st)
        return true;
    assign_spec(&s.a, 0, &need);
    need.partial = at.partial & s.a.carried;
    eas_node *x = reshard(p, partition_value(p, s.base), &need, s.rank, node_shape(s.base),
                          s.why ? s.why : "elements along the axis change their device");
    x = shift_spread(&s, x);
    for (int d = 0; d < s.rank; d++)
        if (s.d[d].moves && need.dims[d].n)
            x = moved(&s, x, d, &need.dims[d]);
    x = locally(&s, x, &need);
    assign_spec(&s.a, 1, &e->v.at);
    e->v.at.partial = s.a.carried;
    e->v.n = finish(&s, x, &need, &e->v.at);
    assign_free(&s.a);
    return true;
}
