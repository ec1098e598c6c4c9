/* halo.c: what a device reads of the other devices' parts along a cut dim, and the exchange of it.
 *
 * Base and result are cut into n parts of equal size, padded at the end, li and lo elements long. Device k
 * has the base's elements [k li, (k+1) li) and needs [A, A + E), A = a + step lo k, E = step (lo - 1) +
 * reach. What it lacks comes from the devices that have it: one permutation of parts (ppermute) for each
 * distance between sender and receiver (a hop), which carries the elements of a part that any receiver at
 * that distance needs. Each device puts what it received beside its own part, zeros where nothing was needed,
 * and cuts out its own E elements: at one place for all devices where step lo = li, otherwise at a place that
 * depends on k.
 *
 * A slice of fewer elements than there are devices is not cut: its elements are sent to all devices, (n - 1)
 * times their size in all, by their owner along a binomial tree of permutations; where more than two devices
 * own some of them, each device contributes the elements that it has to one all_gather.
 */
#include "shift.h"

enum { MOST_HOPS = 64 }; /* collectives of one exchange; beyond, the dim is gathered */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

typedef struct hop { /* to the devices at one distance */
    int64_t from, to; /* elements of the sender's part: [from, to) */
    int64_t receivers;
} hop;
typedef struct halo {
    int64_t n, li, lo;
    int64_t nleft, nright; /* the greatest distances */
    int64_t left; /* elements that stand in front of a device's own part after the exchange */
    hop *at; /* [-nleft .. nright] of it, by `hop_at`; malloc'ed */
    bool outside; /* some element of the result is the fill */
} halo;

static hop *hop_at(const halo *h, int64_t distance) { return &h->at[distance + h->nleft]; }

/* ---- what is needed ---- */

static int64_t first_of(const along *d, const halo *h, int64_t k) { return d->a + d->step * h->lo * k; }

/* One behind the last element that device k reads. */
static int64_t end_of(const along *d, const halo *h, int64_t k)
{
    int64_t rows = least(h->lo, d->out - k * h->lo);
    return rows <= 0 ? first_of(d, h, k) : first_of(d, h, k) + d->step * (rows - 1) + d->reach;
}

/* The elements of the base that device k reads: [*from, *to). False: none. */
static bool needs(const along *d, const halo *h, int64_t k, int64_t *from, int64_t *to)
{
    *from = most(first_of(d, h, k), d->v.lo);
    *to = least(end_of(d, h, k), d->v.hi);
    return *from < *to;
}

static void count_hops(const along *d, halo *h)
{
    for (int64_t k = 0; k < h->n; k++) {
        int64_t from, to;
        if (!needs(d, h, k, &from, &to))
            continue;
        for (int64_t b = from / h->li; b <= (to - 1) / h->li; b++) {
            hop *x = hop_at(h, b - k);
            int64_t u = most(from, b * h->li) - b * h->li, w = least(to, (b + 1) * h->li) - b * h->li;
            if (b == k)
                continue;
            x->from = x->receivers ? least(x->from, u) : u;
            x->to = most(x->to, w);
            x->receivers++;
        }
    }
}

static bool measure(const along *d, int64_t n, halo *h)
{
    *h = (halo){
        .n = n, .li = ceil_div(d->in / (1 + d->between), n) * (1 + d->between), .lo = ceil_div(d->out, n)};
    for (int64_t k = 0; k < n; k++) {
        int64_t from, to;
        h->outside |=
            end_of(d, h, k) > first_of(d, h, k) && (first_of(d, h, k) < d->v.lo || end_of(d, h, k) > d->v.hi);
        if (!needs(d, h, k, &from, &to))
            continue;
        h->nleft = most(h->nleft, k - from / h->li);
        h->nright = most(h->nright, (to - 1) / h->li - k);
    }
    h->at = calloc((size_t)(h->nleft + h->nright + 1), sizeof *h->at);
    if (!h->at)
        return false;
    count_hops(d, h);
    h->left = h->nleft ? h->nleft * h->li - hop_at(h, -h->nleft)->from : 0;
    return true;
}

/* Elements that leave devices, and in how many permutations. */
static int64_t sent_by(const halo *h, int64_t *permutations)
{
    int64_t all = 0;
    *permutations = 0;
    for (int64_t i = -h->nleft; i <= h->nright; i++) {
        const hop *x = hop_at(h, i);
        all += x->receivers * (x->to - x->from);
        *permutations += x->receivers > 0;
    }
    return all;
}

int64_t halo_sent(const dist_mesh *m, const along *d, const eas_dim_spec *axes)
{
    halo h;
    int64_t permutations, all = measure(d, spec_parts(m, axes), &h) ? sent_by(&h, &permutations) : 0;
    free(h.at);
    return all;
}

bool halo_fits(const dist_mesh *m, const along *d, const eas_dim_spec *axes)
{
    int64_t n = spec_parts(m, axes), permutations;
    halo h;
    if (d->flips)
        return d->in % n == 0;
    if (d->step < 1 || d->in < 1 || d->out < 1 || n > d->out || !measure(d, n, &h))
        return false;
    bool fits = sent_by(&h, &permutations) < n * (n - 1) * h.li && permutations <= MOST_HOPS;
    free(h.at);
    return fits;
}

/* ---- pieces ---- */

static eas_node *fill_like(shifting *s, const eas_node *x)
{
    return s->fill ? gb_typed(&s->p->g, partition_value(s->p, s->fill)->n, (eas_dtype)x->dtype)
                   : gd_num(&s->p->g, x, 0);
}

/* x with `before` fills in front of it along dim, n elements in all. */
static eas_node *padded(gbuild *g, eas_node *x, int dim, int64_t before, int64_t n, eas_node *fill)
{
    int64_t words[GRAPH_MAX_RANK] = {0};
    eas_dim shape[GRAPH_MAX_RANK];
    if (g->st || !x || !fill || node_shape(x)[dim] == n)
        return g->st || !fill ? NULL : x;
    memcpy(shape, node_shape(x), sizeof *shape * x->rank);
    shape[dim] = n;
    words[dim] = before;
    return gb_new(g, GRAPH_PAD_CONSTANT, (eas_dtype)x->dtype, 0, x->rank, shape, x->rank, words, 2,
                  (eas_node *[]){x, fill});
}

eas_node *halo_cut(shifting *s, eas_node *x, int dim, int64_t from, int64_t n, int64_t lo, int64_t hi)
{
    gbuild *g = &s->p->g;
    int64_t start = most(from, lo), end = least(from + n, hi);
    if (g->st || !x)
        return NULL;
    if (end <= start) {
        eas_dim shape[GRAPH_MAX_RANK];
        memcpy(shape, node_shape(x), sizeof *shape * x->rank);
        shape[dim] = n;
        return gb_broadcast(g, fill_like(s, x), 0, x->rank, shape);
    }
    x = gb_slice(g, x, dim, start, end - start, 1);
    return x ? padded(g, x, dim, start - from, n, fill_like(s, x)) : NULL;
}

/* One hop: the elements that any receiver needs of the device at this distance, sent by one permutation and
 * placed as in a whole part. Of the two outermost parts only the side next to the receiver is kept. */
static eas_node *from_distance(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes, const halo *h,
                               int64_t distance)
{
    gbuild *g = &s->p->g;
    const hop *p = hop_at(h, distance);
    int64_t count = 0, *pairs = malloc(sizeof *pairs * 2 * (size_t)h->n), from, to;
    int64_t begin = distance == -h->nleft ? p->from : 0, end = distance == h->nright ? p->to : h->li;
    if (!pairs)
        return partition_keep(s->p, base_fail_oom((size_t)h->n), NULL);
    for (int64_t k = 0; k < h->n; k++) {
        int64_t b = k + distance;
        if (b < 0 || b >= h->n || !needs(&s->d[dim], h, k, &from, &to) || from >= (b + 1) * h->li ||
            to <= b * h->li)
            continue;
        pairs[2 * count] = b;
        pairs[2 * count++ + 1] = k;
    }
    eas_node *r = NULL;
    if (count) {
        r = coll_permute(s->p, gb_slice(g, x, dim, p->from, p->to - p->from, 1), axes, (int)count, pairs,
                         "edges of parts go to neighbours");
        r = r ? padded(g, r, dim, p->from - begin, end - begin, gd_num(g, r, 0)) : NULL;
    } else {
        eas_dim shape[GRAPH_MAX_RANK];
        memcpy(shape, node_shape(x), sizeof *shape * x->rank);
        shape[dim] = end - begin;
        r = gb_broadcast(g, gd_num(g, x, 0), 0, x->rank, shape);
    }
    free(pairs);
    return r;
}

/* x with what other devices have on both sides. */
static eas_node *with_edges(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes, const halo *h)
{
    int n = 0;
    eas_node **parts = malloc(sizeof *parts * (size_t)(h->nleft + h->nright + 1)), *r = NULL;
    if (!parts)
        return partition_keep(s->p, base_fail_oom((size_t)h->nleft), NULL);
    for (int64_t i = -h->nleft; i <= h->nright && !s->p->g.st; i++)
        parts[n++] = i ? from_distance(s, x, dim, axes, h, i) : x;
    if (!s->p->g.st)
        r = n == 1 ? x : gb_concat(&s->p->g, dim, n, parts);
    free(parts);
    return r;
}

/* ---- an exchange ---- */

eas_node *halo_places(partition *p, const eas_dim_spec *axes, int64_t size, int rank, int dim)
{
    gbuild *g = &p->g;
    eas_node *own = gb_iota_at(g, size, EAS_I64, rank - 1 - dim);
    return axes->n
             ? gd2(g, GRAPH_ADD, own, gd2(g, GRAPH_MUL, partition_index(p, axes), gb_int(g, EAS_I64, size)))
             : own;
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
    eas_node *place = gd2(g, GRAPH_ADD, gb_iota_at(g, node_shape(x)[dim], EAS_I64, x->rank - 1 - dim),
                          first_place(s, axes, d->step * h->lo, d->a));
    eas_node *inside =
        gd2(g, GRAPH_LOGICAL_AND, gd2(g, GRAPH_GREATER_EQUAL, place, gb_int(g, EAS_I64, d->v.lo)),
            gd2(g, GRAPH_LESS, place, gb_int(g, EAS_I64, d->v.hi)));
    return gd_where(g, inside, x, fill_like(s, x));
}

static eas_node *exchange(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes, const halo *h)
{
    gbuild *g = &s->p->g;
    const along *d = &s->d[dim];
    int64_t n = d->step * (h->lo - 1) + d->reach, slope = d->step * h->lo - h->li;
    bool outside = h->outside && !s->any_fill;
    x = with_edges(s, x, dim, axes, h);
    if (!x)
        return NULL;
    int64_t there = node_shape(x)[dim];
    /* what no neighbour sends is 0 */
    bool zeros = !s->filled && d->in % h->n == 0 && d->v.lo == 0 && d->v.hi == d->in;
    if (slope == 0) {
        eas_node *fill = s->fill;
        s->fill = NULL; /* what is not there: masked if it counts */
        x = halo_cut(s, x, dim, d->a + h->left, n, 0, there);
        s->fill = fill;
        return outside && !zeros ? masked(s, x, dim, axes, h) : x;
    }
    eas_node *at = gd2(g, GRAPH_ADD, gb_iota(g, n, EAS_I64), first_place(s, axes, slope, d->a + h->left));
    at = gd2(g, GRAPH_MINIMUM, gd2(g, GRAPH_MAXIMUM, at, gb_int(g, EAS_I64, 0)),
             gb_int(g, EAS_I64, there - 1));
    x = gb_gather(g, x, at, 0, dim);
    return outside ? masked(s, x, dim, axes, h) : x;
}

eas_node *halo_exchange(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes)
{
    halo h = {0};
    if (s->p->g.st || !x)
        return NULL;
    if (!measure(&s->d[dim], spec_parts(s->p->m, axes), &h))
        return partition_keep(s->p, base_fail_oom(sizeof h), NULL);
    x = exchange(s, x, dim, axes, &h);
    free(h.at);
    return x;
}

eas_node *halo_flip(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes)
{
    int64_t n = spec_parts(s->p->m, axes), *pairs = malloc(sizeof *pairs * 2 * (size_t)n);
    if (!pairs || !x)
        return free(pairs), x ? partition_keep(s->p, base_fail_oom((size_t)n), NULL) : NULL;
    for (int64_t k = 0; k < n; k++) {
        pairs[2 * k] = k;
        pairs[2 * k + 1] = n - 1 - k;
    }
    int64_t size = node_shape(x)[dim];
    x = coll_permute(s->p, gb_slice(&s->p->g, x, dim, size - 1, size, -1), axes, (int)n, pairs,
                     "the last part comes first");
    free(pairs);
    return x;
}

/* ---- few elements ---- */

typedef struct piece { /* of a slice: elements of one owner */
    int64_t owner, start, count; /* start: in the owner's part */
} piece;

static int64_t part_of(const along *d, int64_t n) { return ceil_div(d->in, n); }

/* The next piece, from element *j of the slice on. */
static piece next_piece(const along *d, int64_t li, int64_t *j)
{
    piece p = {.owner = (d->a + d->step * *j) / li};
    p.start = d->a + d->step * *j - p.owner * li;
    while (*j < d->out && (d->a + d->step * *j) / li == p.owner) {
        p.count++;
        ++*j;
    }
    return p;
}

static int64_t count_pieces(const along *d, int64_t li, int64_t *largest)
{
    int64_t n = 0;
    *largest = 0;
    for (int64_t j = 0; j < d->out; n++)
        *largest = most(*largest, next_piece(d, li, &j).count);
    return n;
}

bool halo_is_few(const dist_mesh *m, const along *d, const eas_dim_spec *axes)
{
    int64_t n = spec_parts(m, axes), largest;
    if (n < 2 || d->step < 1 || d->reach != 1 || d->between || d->out < 1 || d->out >= d->in ||
        d->a < most(d->v.lo, 0) || d->a + d->step * (d->out - 1) >= d->v.hi || d->out > 4096)
        return false;
    int64_t li = part_of(d, n), pieces = count_pieces(d, li, &largest);
    return (pieces <= 2 ? d->out : n * largest) < n * li;
}

/* One device's elements to all, along a binomial tree. */
static eas_node *sent_to_all(shifting *s, eas_node *x, const eas_dim_spec *axes, int64_t owner)
{
    gbuild *g = &s->p->g;
    int64_t n = spec_parts(s->p->m, axes), *pairs = malloc(sizeof *pairs * 2 * (size_t)n);
    if (!pairs)
        return partition_keep(s->p, base_fail_oom((size_t)n), NULL);
    eas_node *place =
        gd2(g, GRAPH_MOD, gd2(g, GRAPH_ADD, partition_index(s->p, axes), gb_int(g, EAS_I64, n - owner)),
            gb_int(g, EAS_I64, n));
    for (int64_t have = 1; have < n && !g->st && x; have *= 2) {
        int count = 0;
        for (int64_t k = 0; k < have && k + have < n; k++, count++) {
            pairs[2 * count] = (owner + k) % n;
            pairs[2 * count + 1] = (owner + k + have) % n;
        }
        eas_node *got =
            coll_permute(s->p, x, axes, count, pairs, "the few elements that are wanted go to all devices");
        eas_node *is_new =
            gd2(g, GRAPH_LOGICAL_AND, gd2(g, GRAPH_GREATER_EQUAL, place, gb_int(g, EAS_I64, have)),
                gd2(g, GRAPH_LESS, place, gb_int(g, EAS_I64, 2 * have)));
        x = got ? gd_where(g, is_new, got, x) : NULL;
    }
    free(pairs);
    return x;
}

/* Every device gives up to `largest` elements of the slice that it has. */
static eas_node *contributed(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes, int64_t li,
                             int64_t largest)
{
    gbuild *g = &s->p->g;
    const along *d = &s->d[dim];
    eas_node *begin = gd2(g, GRAPH_MUL, partition_index(s->p, axes), gb_int(g, EAS_I64, li));
    eas_node *j = gd2(g, GRAPH_FLOORDIV, gd2(g, GRAPH_ADD, begin, gb_int(g, EAS_I64, d->step - 1 - d->a)),
                      gb_int(g, EAS_I64, d->step));
    j = gd2(g, GRAPH_MAXIMUM, j, gb_int(g, EAS_I64, 0));
    eas_node *start =
        gd2(g, GRAPH_SUB,
            gd2(g, GRAPH_ADD, gd2(g, GRAPH_MUL, j, gb_int(g, EAS_I64, d->step)), gb_int(g, EAS_I64, d->a)),
            begin);
    eas_node *at = gd2(g, GRAPH_ADD,
                       gd2(g, GRAPH_MUL, gb_iota(g, largest, EAS_I64), gb_int(g, EAS_I64, d->step)), start);
    at = gd2(g, GRAPH_MINIMUM, gd2(g, GRAPH_MAXIMUM, at, gb_int(g, EAS_I64, 0)), gb_int(g, EAS_I64, li - 1));
    return coll_gather(s->p, gb_gather(g, x, at, 0, dim), axes, dim,
                       "the few elements that are wanted go to all devices");
}

eas_node *halo_few(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes)
{
    gbuild *g = &s->p->g;
    const along *d = &s->d[dim];
    int64_t n = spec_parts(s->p->m, axes), li = part_of(d, n), largest,
            pieces = count_pieces(d, li, &largest), i = 0;
    eas_node **parts = malloc(sizeof *parts * (size_t)pieces), *all = NULL;
    if (!parts || !x)
        return free(parts), x ? partition_keep(s->p, base_fail_oom((size_t)pieces), NULL) : NULL;
    if (pieces > 2)
        all = contributed(s, x, dim, axes, li, largest);
    for (int64_t j = 0; j < d->out && !g->st; i++) {
        piece p = next_piece(d, li, &j);
        parts[i] = all ? gb_slice(g, all, dim, p.owner * largest, p.count, 1)
                       : sent_to_all(s, gb_slice(g, x, dim, p.start, p.count, d->step), axes, p.owner);
    }
    x = g->st ? NULL : pieces == 1 ? parts[0] : gb_concat(g, dim, (int)pieces, parts);
    free(parts);
    return x;
}
