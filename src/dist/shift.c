/* shift.c: slices, pads, windows and rolls along a cut dim: parts exchange their edges (halos) with their neighbours.
 *
 * Along a dim such an operation is a map of places: element j of the result, and tap t of a window, is element a + step * j + t of the input, or a number where that lies outside. Both input and result are cut into
 * n parts of equal size, padded at the end, li and lo elements long. Device k has the input's elements [k li, (k+1) li) and needs [A, A + E), A = a + step lo k, E = step (lo - 1) + reach. What it lacks on the left
 * and on the right comes from one or more neighbours (one permutation of parts for each distance), all devices take as much as the one that lacks most, and each then cuts out its own E elements: at one place for all
 * devices where step lo = li, otherwise at a place that depends on k. Where that moves as much as gathering the dim, it is gathered.
 *
 * Pads and slices that only windows, slices and pads read are late: they are made together with these, from what they were made of. So a padded convolution exchanges the window's reach, and the padded image is never
 * laid out in parts of its own, which would not be aligned with the image's.
 *
 * A roll is two permutations of parts: of the parts' ends and of their beginnings.
 */
#include "dist.h"

typedef struct view { /* along a dim: element q of a tensor is element q - off of the base if that is in [lo, hi), else the fill */
    int64_t off, lo, hi;
} view;
typedef struct along { /* one dim */
    view v;         /* of the operation's input */
    int64_t in, between; /* elements of the base; zeros put behind each of them first, and counted in `in` */
    int64_t a, step, reach, out; /* see above */
    bool moves, flips;
} along;
typedef struct shifting {
    partition *p;
    eas_node *n, *base;
    eas_node *fill; /* of the global graph; NULL: 0 */
    bool filled;    /* some element may be the fill, and that may be another number than 0 */
    int rank;
    along d[GRAPH_MAX_RANK];
    assigned a;
    const char *why;
} shifting;

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- which operations ---- */

static bool known_sizes(const eas_node *n)
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
    return node_kind(n) == KIND_UPDATE && !node_real(x) && node_kind(x) == KIND_BROADCAST && node_const_bits(node_in(x)[0], &bits) && bits == 0;
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
    return known_sizes(n) && known_sizes(input_of(n));
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
    return shift_is(n) && ((node_kind(n) == KIND_SLICE && steps_of_one(n)) || (node_kind(n) == KIND_PAD && node_const_bits(node_in(n)[1], &bits)));
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
    return node_kind(user) != KIND_PAD || !chain_fill(p, input, &bits) || (node_const_bits(node_in(user)[1], &own) && own == bits);
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

/* Which nodes wait; after the walk forward. */
void shift_mark(partition *p, int nroots, eas_node *const *roots)
{
    bool any = false;
    for (uint32_t i = 0; i < p->at.len; i++) {
        pentry *e = &p->at.at[i];
        e->late = !e->v.n && e->same == UINT32_MAX && may_wait(e->n) && spec_cut(&partition_find(p, node_in(e->n)[0])->ahead) != 0;
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
    for (const pentry *e; n < 64 && (e = partition_find(s->p, s->base)) && e->late; s->base = node_in(s->base)[0])
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

/* ---- halos ---- */

typedef struct halo {
    int64_t n, li, lo, left, right; /* left, right: the most that a device lacks */
    bool outside; /* some element of the result is the fill */
} halo;

static int64_t first_of(const along *d, const halo *h, int64_t k) { return d->a + d->step * h->lo * k; }

/* One behind the last element that device k reads. */
static int64_t end_of(const along *d, const halo *h, int64_t k)
{
    int64_t rows = least(h->lo, d->out - k * h->lo);
    return rows <= 0 ? first_of(d, h, k) : first_of(d, h, k) + d->step * (rows - 1) + d->reach;
}

static int64_t lacks_left(const along *d, const halo *h, int64_t k)
{
    return end_of(d, h, k) <= d->v.lo ? 0 : most(0, k * h->li - most(first_of(d, h, k), d->v.lo));
}

static int64_t lacks_right(const along *d, const halo *h, int64_t k)
{
    return first_of(d, h, k) >= d->v.hi ? 0 : most(0, least(end_of(d, h, k), d->v.hi) - (k + 1) * h->li);
}

static halo measure(const along *d, int64_t n)
{
    halo h = {.n = n, .li = ceil_div(d->in / (1 + d->between), n) * (1 + d->between), .lo = ceil_div(d->out, n)};
    for (int64_t k = 0; k < n; k++) {
        h.left = most(h.left, lacks_left(d, &h, k));
        h.right = most(h.right, lacks_right(d, &h, k));
        h.outside |= end_of(d, &h, k) > first_of(d, &h, k) && (first_of(d, &h, k) < d->v.lo || end_of(d, &h, k) > d->v.hi);
    }
    return h;
}

/* Elements that are sent in all. */
static int64_t sent_by(const along *d, const halo *h)
{
    int64_t all = 0;
    for (int side = 0; side < 2; side++)
        for (int64_t hop = 0, rest = side ? h->right : h->left; rest > 0; rest -= h->li, hop++)
            for (int64_t k = 0; k < h->n; k++)
                all += (side ? lacks_right(d, h, k) : lacks_left(d, h, k)) > hop * h->li ? least(h->li, rest) : 0;
    return all;
}

/* Is it worth it, compared with gathering the dim? */
static bool fits(const dist_mesh *m, const along *d, const eas_dim_spec *axes)
{
    int64_t n = spec_parts(m, axes);
    if (d->flips)
        return d->in % n == 0;
    if (d->step < 1 || d->in < 1 || d->out < 1 || n > d->out)
        return false;
    halo h = measure(d, n);
    return h.lo * (n - 1) < d->out && sent_by(d, &h) < n * (n - 1) * h.li;
}

/* Parts of length `rows` from one side of x go to the devices `hop` further, where those lack them. */
static eas_node *edge(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes, const halo *h, int side, int64_t hop, int64_t rows)
{
    const along *d = &s->d[dim];
    int64_t *pairs = malloc(sizeof *pairs * 2 * (size_t)h->n), count = 0;
    if (!pairs)
        return partition_keep(s->p, base_fail_oom((size_t)h->n), NULL);
    for (int64_t k = 0; k < h->n; k++) {
        int64_t from = side ? k + hop : k - hop;
        if (from < 0 || from >= h->n || (side ? lacks_right(d, h, k) : lacks_left(d, h, k)) <= (hop - 1) * h->li)
            continue;
        pairs[2 * count] = from;
        pairs[2 * count++ + 1] = k;
    }
    eas_node *part = gb_slice(&s->p->g, x, dim, side ? 0 : h->li - rows, rows, 1);
    eas_node *r = coll_permute(s->p, part, axes, (int)count, pairs, "edges of parts go to neighbours");
    free(pairs);
    return r;
}

/* x with what its neighbours have on both sides. */
static eas_node *with_edges(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes, const halo *h)
{
    enum { MOST = 64 };
    eas_node *parts[2 * MOST + 1];
    int64_t hops = ceil_div(h->left, h->li), more = ceil_div(h->right, h->li);
    int n = 0;
    if (hops > MOST || more > MOST)
        return partition_keep(s->p, base_fail(EAS_ERR_RUNTIME, "eager: a halo over %lld parts", (long long)(hops + more)), NULL);
    for (int64_t i = hops; i > 0; i--)
        parts[n++] = edge(s, x, dim, axes, h, 0, i, i == hops ? h->left - (hops - 1) * h->li : h->li);
    parts[n++] = x;
    for (int64_t i = 1; i <= more; i++)
        parts[n++] = edge(s, x, dim, axes, h, 1, i, i == more ? h->right - (more - 1) * h->li : h->li);
    if (s->p->g.st)
        return NULL;
    return n == 1 ? x : gb_concat(&s->p->g, dim, n, parts);
}

static eas_node *fill_like(shifting *s, const eas_node *x)
{
    return s->fill ? gb_typed(&s->p->g, partition_value(s->p, s->fill)->n, (eas_dtype)x->dtype) : gd_num(&s->p->g, x, 0);
}

/* x from element `from` on, n of them; the fill where there are none. from may be negative. */
static eas_node *cut_out(shifting *s, eas_node *x, int dim, int64_t from, int64_t n, int64_t lo, int64_t hi)
{
    gbuild *g = &s->p->g;
    int64_t start = most(from, lo), end = least(from + n, hi), before[GRAPH_MAX_RANK] = {0};
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !x)
        return NULL;
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[dim] = n;
    if (end <= start)
        return gb_broadcast(g, fill_like(s, x), 0, x->rank, shape);
    x = gb_slice(g, x, dim, start, end - start, 1);
    if (!x || end - start == n)
        return x;
    before[dim] = start - from;
    return gb_new(g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, 0, x->rank, shape, x->rank, before, 2, (eas_node *[]){x, fill_like(s, x)});
}

/* The number of the first element that the device reads, plus `more`. */
static eas_node *first_place(shifting *s, const eas_dim_spec *axes, int64_t slope, int64_t more)
{
    gbuild *g = &s->p->g;
    eas_node *k = gd2(g, GRAPH_MUL, partition_index(s->p, axes), gb_int(g, EAS_I64, slope));
    return gd2(g, GRAPH_ADD, k, gb_int(g, EAS_I64, more));
}

/* The fill where the place is outside of what is there. */
static eas_node *masked(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes, const halo *h)
{
    gbuild *g = &s->p->g;
    const along *d = &s->d[dim];
    if (g->st || !x)
        return NULL;
    eas_node *place = gd2(g, GRAPH_ADD, gb_iota_at(g, node_shape(x)[dim], EAS_I64, x->rank - 1 - dim), first_place(s, axes, d->step * h->lo, d->a));
    eas_node *inside = gd2(g, GRAPH_LOGICAL_AND, gd2(g, GRAPH_GREATER_EQUAL, place, gb_int(g, EAS_I64, d->v.lo)),
                           gd2(g, GRAPH_LESS, place, gb_int(g, EAS_I64, d->v.hi)));
    return gd_where(g, inside, x, fill_like(s, x));
}

static eas_node *halo_of(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes)
{
    gbuild *g = &s->p->g;
    const along *d = &s->d[dim];
    if (g->st || !x)
        return NULL;
    halo h = measure(d, spec_parts(s->p->m, axes));
    int64_t n = d->step * (h.lo - 1) + d->reach, slope = d->step * h.lo - h.li;
    x = with_edges(s, x, dim, axes, &h);
    if (!x)
        return NULL;
    int64_t there = node_shape(x)[dim];
    bool zeros = !s->filled && d->in % h.n == 0 && d->v.lo == 0 && d->v.hi == d->in; /* what no neighbour sends is 0 */
    if (slope == 0) {
        eas_node *fill = s->fill;
        s->fill = NULL; /* what is not there: masked if it counts */
        x = cut_out(s, x, dim, d->a + h.left, n, 0, there);
        s->fill = fill;
        return h.outside && !zeros ? masked(s, x, dim, axes, &h) : x;
    }
    eas_node *at = gd2(g, GRAPH_ADD, gb_iota(g, n, EAS_I64), first_place(s, axes, slope, d->a + h.left));
    at = gd2(g, GRAPH_MINIMUM, gd2(g, GRAPH_MAXIMUM, at, gb_int(g, EAS_I64, 0)), gb_int(g, EAS_I64, there - 1));
    x = gb_gather(g, x, at, 0, dim);
    return h.outside ? masked(s, x, dim, axes, &h) : x;
}

/* Parts in reverse order, each reversed. */
static eas_node *flipped(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes)
{
    int64_t n = spec_parts(s->p->m, axes), *pairs = malloc(sizeof *pairs * 2 * (size_t)n);
    if (!pairs || !x)
        return free(pairs), x ? partition_keep(s->p, base_fail_oom((size_t)n), NULL) : NULL;
    for (int64_t k = 0; k < n; k++) {
        pairs[2 * k] = k;
        pairs[2 * k + 1] = n - 1 - k;
    }
    int64_t size = node_shape(x)[dim];
    x = coll_permute(s->p, gb_slice(&s->p->g, x, dim, size - 1, size, -1), axes, (int)n, pairs, "the last part comes first");
    free(pairs);
    return x;
}

/* ---- the operation ---- */

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
        const along *x = &s->d[d];
        eas_shard_dim own = {.n = 1, .factors = {(uint16_t)d}};
        bool cut = at->dims[d].n != 0, ok = cut && fits(s->p->m, x, &at->dims[d]);
        r->factors[d].size = x->moves ? x->in : x->out;
        r->factors[d].kind = !x->moves ? EAS_FACTOR_PASS : ok ? EAS_FACTOR_HALO : EAS_FACTOR_WHOLE;
        r->tensors[0].dims[d] = own;
        if (!x->moves || ok)
            r->tensors[1].dims[d] = own;
        if (cut && x->moves && !ok)
            s->why = "elements change their device, and edges would be as large as the parts";
    }
    return EAS_OK;
}

static eas_status assign(shifting *s, const eas_spec *at, const eas_spec *want)
{
    eas_shard_rule *r;
    const eas_spec plain = {0}, *in[3] = {at, &plain, &plain}; /* what else it is given is a number, or zeros */
    eas_status st = rule_of(s, at, &r);
    return st ? st : assign_by(s->p, s->n, r, 1, in, want, &s->a);
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

/* What the dims that no axis cuts are padded and sliced to. */
static eas_node *locally(shifting *s, eas_node *x, const eas_spec *at)
{
    for (int d = 0; d < s->rank && x; d++) {
        const along *w = &s->d[d];
        bool last = w->step == 1 && w->reach == 1;
        if (at->dims[d].n || !w->moves)
            continue;
        int64_t from = last ? w->a : -w->v.off, n = last ? w->out : node_shape(input_of(s->n))[d];
        x = cut_out(s, x, d, from, n, w->v.lo, w->v.hi);
    }
    return x;
}

/* Steps and windows. */
static eas_node *finish(shifting *s, eas_node *x, const eas_spec *in, const eas_spec *out)
{
    const eas_node *n = s->n;
    int64_t words[2 * GRAPH_MAX_RANK];
    eas_dim shape[GRAPH_MAX_RANK];
    bool any = false;
    for (int d = 0; d < s->rank; d++)
        any |= (s->d[d].step != 1 || s->d[d].reach != 1) && !(s->d[d].flips && in->dims[d].n);
    if (!any || !x)
        return x;
    spec_local_shape(s->p->m, out, node_shape(n), shape);
    if (node_kind(n) == KIND_WINDOW)
        return gb_new(&s->p->g, n->op, (eas_dtype)n->dtype, 0, n->rank, shape, n->nwords, node_words(n), 1, &x);
    for (int d = 0; d < s->rank; d++) {
        bool stepped = s->d[d].step != 1 && !(s->d[d].flips && in->dims[d].n);
        words[d] = stepped && !in->dims[d].n ? node_words(n)[d] : 0;
        words[s->rank + d] = stepped ? s->d[d].step : 1;
    }
    return gb_new(&s->p->g, n->op, (eas_dtype)n->dtype, 0, n->rank, shape, 2 * s->rank, words, 1, &x);
}

/* Each element with zeros behind it. */
static eas_node *spread(shifting *s, eas_node *x)
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
        y = gb_new(g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, 0, y->rank, shape, y->rank, before, 2, (eas_node *[]){y, gd_num(g, x, 0)});
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
    eas_node *x =
        reshard(p, partition_value(p, s.base), &need, s.rank, node_shape(s.base), s.why ? s.why : "elements along the axis change their device");
    x = spread(&s, x);
    for (int d = 0; d < s.rank; d++)
        if (s.d[d].moves && need.dims[d].n)
            x = s.d[d].flips ? flipped(&s, x, d, &need.dims[d]) : halo_of(&s, x, d, &need.dims[d]);
    x = locally(&s, x, &need);
    assign_spec(&s.a, 1, &e->v.at);
    e->v.at.partial = s.a.carried;
    e->v.n = finish(&s, x, &need, &e->v.at);
    assign_free(&s.a);
    return true;
}

/* ---- rolls ---- */

bool shift_is_roll(const eas_node *n)
{
    if (n->op != GRAPH_ROLL || node_real(n) || !known_sizes(n))
        return false;
    for (int i = 0; i < n->nwords; i += 2)
        if (node_words(n)[i] < 0 || dim_is_expr(node_words(n)[i + 1]))
            return false;
    return true;
}

eas_status shift_roll_rule(const eas_node *n, eas_shard_rule **out)
{
    eas_shard_rule *r = calloc(1, sizeof *r + sizeof(eas_shard_tensor) * 2);
    *out = r;
    if (!r)
        return base_fail_oom(sizeof *r);
    r->nin = 1;
    r->tensors = (eas_shard_tensor *)(r + 1);
    r->tensors[0].rank = r->tensors[1].rank = n->rank;
    for (int d = 0; d < n->rank; d++, r->nfactors++) {
        r->factors[d].size = node_shape(n)[d];
        r->factors[d].kind = EAS_FACTOR_PASS;
        r->tensors[0].dims[d] = r->tensors[1].dims[d] = (eas_shard_dim){.n = 1, .factors = {(uint16_t)d}};
    }
    return EAS_OK;
}

/* The last rows of each part (or, of `first`, its first ones) to the device `hops` further, around. */
static eas_node *around(partition *p, eas_node *x, int dim, const eas_dim_spec *axes, int64_t n, int64_t hops, int64_t rows, bool first)
{
    int64_t *pairs = malloc(sizeof *pairs * 2 * (size_t)n);
    if (!pairs)
        return partition_keep(p, base_fail_oom((size_t)n), NULL);
    for (int64_t k = 0; k < n; k++) {
        pairs[2 * k] = k;
        pairs[2 * k + 1] = (k + hops) % n;
    }
    eas_node *part = gb_slice(&p->g, x, dim, first ? 0 : node_shape(x)[dim] - rows, rows, 1);
    if (hops % n)
        part = coll_permute(p, part, axes, (int)n, pairs, "edges of parts go around");
    free(pairs);
    return part;
}

static eas_node *rolled(partition *p, eas_node *x, int dim, const eas_dim_spec *axes, int64_t size, int64_t shift)
{
    gbuild *g = &p->g;
    if (g->st || !x || size == 0)
        return g->st ? NULL : x;
    int64_t n = spec_parts(p->m, axes), li = node_shape(x)[dim], by = ((shift % size) + size) % size, hops = by / li, rows = by % li;
    eas_node *ends = rows ? around(p, x, dim, axes, n, hops + 1, rows, false) : NULL;
    eas_node *rest = around(p, x, dim, axes, n, hops, li - rows, true);
    return !rows || g->st ? rest : gb_concat(g, dim, 2, (eas_node *[]){ends, rest});
}

eas_node *shift_rolled(partition *p, const eas_node *n, const eas_spec *at, eas_node *x)
{
    for (int i = 0; i < n->nwords && x; i += 2) {
        int dim = (int)node_words(n)[i];
        x = rolled(p, x, dim, &at->dims[dim], node_shape(n)[dim], node_words(n)[i + 1]);
    }
    return x;
}
