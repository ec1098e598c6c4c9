/* auto.c: layouts of a program's inputs, chosen by predicted cost.
 *
 * What follows from the inputs' layouts is the partitioner's business (assign.c, reshard.c), so the search is over layouts of inputs alone, and every candidate is judged by partitioning the whole graph
 * for it and counting (cost.c). Inputs that play the same part are laid out alike: a hash of shape, dtype and of the operations within a few steps of it, which is equal for the weights of repeated layers. The search
 * begins from what is given, from whole tensors, from the batch cut along each set of axes, and from parameters cut along with it; the best few of these are improved one class of inputs at a
 * time, all layouts that sizes allow, until nothing helps. The result is the best that was ever seen, so it is never worse than any of the beginnings.
 */
#include "cost.h"

#include <float.h>

enum { BEAM = 3, ROUNDS = 3, MOST_TRIES = 4000 };

typedef struct problem {
    const dist_mesh *m;
    const eas_machine *machine;
    int n, nleaves, nclasses;
    eas_node *const *outs;
    eas_node **leaves;
    eas_spec *given;     /* per leaf */
    int *class;          /* per leaf; -1: not ours to lay out */
    int *member;         /* per class: one of its leaves */
    double *bytes;       /* per class: of all its leaves */
    int *order;          /* classes, the largest first */
    eas_spec *specs;     /* per leaf: of the candidate that is tried */
    int tries;
    eas_status st;
} problem;
typedef struct plan_of { /* a layout for each class */
    eas_spec *at;
    double seconds, rank; /* rank: what is compared: seconds, and a little for memory */
} plan_of;

/* ---- classes ---- */

static uint64_t join(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t own_hash(const eas_node *n)
{
    uint64_t h = join(0x51ed, n->op);
    h = join(h, n->dtype);
    for (int d = 0; d < n->rank; d++)
        h = join(h, (uint64_t)node_shape(n)[d] + 7);
    return h;
}

typedef struct around { /* nodes of the graph, inputs before users, with hashes of their users */
    VEC(eas_node *) order;
    uint64_t *old, *new;
    uint32_t *table, ntable;
} around;

static uint32_t place_in(const around *a, const eas_node *n)
{
    uint64_t h = (uint64_t)(uintptr_t)n * 0x9e3779b97f4a7c15u >> 24;
    while (a->table[h & (a->ntable - 1)] && a->order.at[a->table[h & (a->ntable - 1)] - 1] != n)
        h++;
    return (uint32_t)(h & (a->ntable - 1));
}

static bool has(const around *a, const eas_node *n) { return a->table[place_in(a, n)] != 0; }

static bool enlarge(around *a)
{
    free(a->table);
    a->ntable = a->ntable ? a->ntable * 2 : 1024;
    a->table = calloc(a->ntable, sizeof *a->table);
    for (uint32_t i = 0; a->table && i < a->order.len; i++)
        a->table[place_in(a, a->order.at[i])] = i + 1;
    return a->table != NULL;
}

static bool push_node(around *a, eas_node *n)
{
    if (a->order.len * 2 >= a->ntable && !enlarge(a))
        return false;
    if (has(a, n))
        return true;
    if (!vec_push(&a->order, n))
        return false;
    a->table[place_in(a, n)] = a->order.len;
    return true;
}

/* All nodes that outs are made of; users stand before what they use. */
static bool reach(around *a, int n, eas_node *const *outs)
{
    bool ok = true;
    for (int i = 0; i < n && ok; i++)
        ok = push_node(a, outs[i]);
    for (uint32_t i = 0; i < a->order.len && ok; i++) {
        eas_node *x = a->order.at[i];
        for (int k = 0; k < x->nin && !node_real(x) && ok; k++)
            ok = push_node(a, node_in(x)[k]);
    }
    return ok;
}

/* Hashes of what lies within STEPS uses of each node. The sum over users does not depend on their order. */
static bool look_around(around *a, int n, eas_node *const *outs)
{
    enum { STEPS = 5 };
    bool ok = reach(a, n, outs);
    a->old = ok ? malloc(sizeof *a->old * (a->order.len + 1u)) : NULL;
    a->new = ok ? malloc(sizeof *a->new * (a->order.len + 1u)) : NULL;
    if (!a->old || !a->new)
        return false;
    for (uint32_t i = 0; i < a->order.len; i++)
        a->old[i] = own_hash(a->order.at[i]);
    for (int s = 0; s < STEPS; s++) {
        memcpy(a->new, a->old, sizeof *a->new * a->order.len);
        for (uint32_t i = 0; i < a->order.len; i++) {
            const eas_node *x = a->order.at[i];
            for (int k = 0; k < x->nin && !node_real(x); k++)
                a->new[a->table[place_in(a, node_in(x)[k])] - 1] += join(a->old[i], (uint64_t)k + 1);
        }
        uint64_t *t = a->old;
        a->old = a->new;
        a->new = t;
    }
    return true;
}

static double bytes_of(const eas_node *n)
{
    double b = (double)eas_dtype_size((eas_dtype)n->dtype);
    for (int d = 0; d < n->rank; d++)
        b *= dim_known(node_shape(n)[d]) ? (double)node_shape(n)[d] : 64;
    return b;
}

static bool ours(const eas_node *n, int nin, eas_node *const *inputs)
{
    for (int i = 0; i < nin; i++)
        if (inputs[i] == n)
            return true;
    return false;
}

static bool same_shape(const eas_node *a, const eas_node *b) { return a->dtype == b->dtype && a->rank == b->rank && !memcmp(node_shape(a), node_shape(b), sizeof(eas_dim) * a->rank); }

static eas_status find_classes(problem *p, int nin, eas_node *const *inputs)
{
    around a = {0};
    bool ok = look_around(&a, p->n, p->outs);
    uint64_t *hash = calloc((size_t)p->nleaves + 1, sizeof *hash);
    for (int i = 0; ok && hash && i < p->nleaves; i++) {
        p->class[i] = -1;
        if (!ours(p->leaves[i], nin, inputs))
            continue;
        hash[i] = has(&a, p->leaves[i]) ? a.old[a.table[place_in(&a, p->leaves[i])] - 1] : own_hash(p->leaves[i]);
        for (int k = 0; k < i && p->class[i] < 0; k++)
            if (p->class[k] >= 0 && hash[k] == hash[i] && same_shape(p->leaves[k], p->leaves[i]))
                p->class[i] = p->class[k];
        if (p->class[i] < 0) {
            p->class[i] = p->nclasses;
            p->member[p->nclasses++] = i;
        }
        p->bytes[p->class[i]] += bytes_of(p->leaves[i]);
    }
    for (int i = 0; i < p->nclasses; i++) { /* insertion sort by size */
        int k = i;
        for (; k > 0 && p->bytes[p->order[k - 1]] < p->bytes[i]; k--)
            p->order[k] = p->order[k - 1];
        p->order[k] = i;
    }
    vec_free(&a.order);
    free(a.old);
    free(a.new);
    free(a.table);
    bool done = ok && hash;
    free(hash);
    return done ? EAS_OK : base_fail_oom((size_t)p->nleaves);
}

/* ---- candidates ---- */

static void judge(problem *p, plan_of *x)
{
    cost c = {0};
    x->seconds = x->rank = DBL_MAX;
    if (p->st || p->tries++ >= MOST_TRIES)
        return;
    for (int i = 0; i < p->nleaves; i++)
        p->specs[i] = p->class[i] < 0 ? p->given[i] : x->at[p->class[i]];
    p->st = cost_of(p->m, p->machine, p->n, p->outs, p->specs, &c, NULL);
    if (p->st)
        return;
    x->seconds = c.seconds;
    x->rank = c.seconds * (1 + 1e-3 * (double)c.memory / (double)((int64_t)1 << 40)) + 1e-16 * (double)c.memory;
    if (p->machine->memory > 0 && (double)c.memory > p->machine->memory) /* does not fit: less is better, but nothing that fits is worse */
        x->rank = 1e6 * (1 + (double)c.memory / p->machine->memory) + c.seconds;
}

static bool can_cut(const problem *p, const eas_node *n, const eas_spec *s)
{
    for (int d = 0; d < n->rank; d++)
        if (s->dims[d].n && (!dim_known(node_shape(n)[d]) || node_shape(n)[d] == 0 || node_shape(n)[d] % spec_parts(p->m, &s->dims[d])))
            return false;
    return true;
}

static void put_axis(eas_spec *s, int dim, int axis) { s->dims[dim].axes[s->dims[dim].n++] = (uint8_t)axis; }

static plan_of plan_new_of(const problem *p)
{
    plan_of x = {.at = calloc((size_t)p->nclasses + 1, sizeof *x.at), .seconds = DBL_MAX, .rank = DBL_MAX};
    for (int i = 0; x.at && i < p->nclasses; i++)
        x.at[i].rank = p->leaves[p->member[i]]->rank;
    return x;
}

static void copy_plan(const problem *p, plan_of *to, const plan_of *from)
{
    memcpy(to->at, from->at, sizeof *to->at * (size_t)p->nclasses);
    to->seconds = from->seconds;
    to->rank = from->rank;
}

typedef struct beam {
    plan_of at[BEAM];
    int n;
} beam;

/* Among the best, unless it is there already. */
static void enter(const problem *p, beam *b, const plan_of *x)
{
    int at = b->n;
    for (int i = 0; i < b->n; i++) {
        bool same = b->at[i].rank == x->rank;
        for (int k = 0; k < p->nclasses && same; k++)
            same = spec_same(&b->at[i].at[k], &x->at[k]);
        if (same)
            return;
    }
    while (at > 0 && b->at[at - 1].rank > x->rank)
        at--;
    if (at == BEAM)
        return;
    plan_of last = b->at[BEAM - 1];
    for (int i = BEAM - 1; i > at; i--)
        b->at[i] = b->at[i - 1];
    b->at[at] = last;
    copy_plan(p, &b->at[at], x);
    b->n += b->n < BEAM;
}

/* Axis after axis onto the first dim that can take it, from dim `first` on. */
static void cut_first(const problem *p, const eas_node *n, uint32_t axes, int first, int last, eas_spec *s)
{
    for (int a = 0; a < p->m->m.naxes; a++)
        for (int d = first; axes >> a & 1 && d <= last && d < n->rank; d++) {
            eas_spec t = *s;
            put_axis(&t, d, a);
            if (p->m->m.sizes[a] > 1 && can_cut(p, n, &t)) {
                *s = t;
                break;
            }
        }
}

/* The batch is what dim 0 of size `batch` of inputs is; the others are parameters: whole, or (split) cut where they can be. */
static void try_batch(problem *p, beam *b, plan_of *x, eas_dim batch, uint32_t axes, uint32_t split)
{
    for (int c = 0; c < p->nclasses; c++) {
        const eas_node *n = p->leaves[p->member[c]];
        x->at[c] = (eas_spec){.rank = n->rank};
        if (n->rank && node_shape(n)[0] == batch)
            cut_first(p, n, axes, 0, 0, &x->at[c]);
        else
            cut_first(p, n, split, 0, n->rank, &x->at[c]);
    }
    judge(p, x);
    enter(p, b, x);
}

static void try_batches(problem *p, beam *b, plan_of *x)
{
    uint32_t all = (1u << p->m->m.naxes) - 1;
    for (int c = 0; c < p->nclasses; c++) {
        const eas_node *n = p->leaves[p->member[c]];
        bool seen = n->rank == 0 || !dim_known(node_shape(n)[0]);
        for (int k = 0; k < c && !seen; k++)
            seen = p->leaves[p->member[k]]->rank && node_shape(p->leaves[p->member[k]])[0] == node_shape(n)[0];
        for (uint32_t axes = 1; axes <= all && !seen && !p->st; axes++) {
            try_batch(p, b, x, node_shape(n)[0], axes, 0);
            try_batch(p, b, x, node_shape(n)[0], axes, axes);
            if (all & ~axes)
                try_batch(p, b, x, node_shape(n)[0], axes, all & ~axes);
        }
    }
}

/* ---- one class at a time ---- */

/* All ways to give each axis to a dim of n, or to none, from axis a on. */
static void all_layouts(problem *p, plan_of *best, plan_of *x, int c, int a, eas_spec s)
{
    const eas_node *n = p->leaves[p->member[c]];
    if (p->st || p->tries >= MOST_TRIES)
        return;
    if (a == p->m->m.naxes) {
        if (spec_same(&s, &best->at[c]) || !can_cut(p, n, &s))
            return;
        x->at[c] = s;
        judge(p, x);
        if (x->rank < best->rank)
            copy_plan(p, best, x);
        return;
    }
    all_layouts(p, best, x, c, a + 1, s);
    for (int d = 0; d < n->rank && p->m->m.sizes[a] > 1; d++) {
        eas_spec t = s;
        put_axis(&t, d, a);
        if (can_cut(p, n, &t))
            all_layouts(p, best, x, c, a + 1, t);
    }
}

static void improve(problem *p, plan_of *best, plan_of *x)
{
    for (int r = 0; r < ROUNDS && !p->st; r++) {
        double before = best->rank;
        for (int i = 0; i < p->nclasses && !p->st; i++) {
            int c = p->order[i];
            copy_plan(p, x, best);
            all_layouts(p, best, x, c, 0, (eas_spec){.rank = p->leaves[p->member[c]]->rank});
        }
        if (best->rank >= before)
            break;
    }
}

static void search(problem *p, const eas_spec *start, plan_of *out, double *seconds)
{
    beam b = {0};
    plan_of x = plan_new_of(p), given = plan_new_of(p);
    bool ok = x.at && given.at;
    for (int i = 0; i < BEAM; i++) {
        b.at[i] = plan_new_of(p);
        ok &= b.at[i].at != NULL;
    }
    p->st = ok ? EAS_OK : base_fail_oom(sizeof *x.at);
    for (int c = 0; c < p->nclasses && ok; c++)
        given.at[c] = start ? start[p->member[c]] : p->given[p->member[c]];
    if (ok) {
        judge(p, &given);
        enter(p, &b, &given);
        judge(p, &x);
        seconds[0] = given.seconds;
        seconds[1] = x.seconds;
        enter(p, &b, &x);
        try_batches(p, &b, &x);
    }
    copy_plan(p, out, &b.at[0]);
    for (int i = 0; i < b.n && !p->st; i++) {
        improve(p, &b.at[i], &x);
        if (b.at[i].rank < out->rank)
            copy_plan(p, out, &b.at[i]);
    }
    seconds[2] = out->seconds;
    for (int i = 0; i < BEAM; i++)
        free(b.at[i].at);
    free(x.at);
    free(given.at);
}

/* The caller's layouts, per input, as layouts per leaf. */
static eas_spec *by_leaf(const problem *p, int nin, eas_node *const *inputs, const eas_spec *start)
{
    eas_spec *all = malloc(sizeof *all * ((size_t)p->nleaves + 1));
    for (int i = 0; all && i < p->nleaves; i++) {
        all[i] = p->given[i];
        for (int k = 0; k < nin; k++)
            if (inputs[k] == p->leaves[i])
                all[i] = start[k];
    }
    return all;
}

eas_status eas_auto_shard(int n, eas_node *const *nodes, int mesh, const eas_machine *machine, int nin, eas_node *const *inputs, const eas_spec *start,
                          eas_spec *specs, double *seconds)
{
    if ((n && !nodes) || (nin && (!inputs || !specs)) || !machine)
        return base_null(__func__, "nodes, inputs, specs or machine");
    const dist_mesh *m = dist_mesh_at(mesh);
    if (!m)
        return base_fail(EAS_ERR_VALUE, "there is no mesh %d", mesh);
    if (!cost_machine_ok(machine))
        return base_fail(EAS_ERR_VALUE, "eas_auto_shard: speeds, bandwidths and latencies of the machine must be positive");
    problem p = {.m = m, .machine = machine, .n = n, .outs = nodes};
    double took[3] = {0};
    p.st = dist_leaves(n, nodes, &p.nleaves, &p.leaves, &p.given);
    size_t room = (size_t)p.nleaves + 1;
    p.class = calloc(room, sizeof *p.class);
    p.member = calloc(room, sizeof *p.member);
    p.bytes = calloc(room, sizeof *p.bytes);
    p.order = calloc(room, sizeof *p.order);
    p.specs = calloc(room, sizeof *p.specs);
    if (!p.st && (!p.class || !p.member || !p.bytes || !p.order || !p.specs))
        p.st = base_fail_oom(room);
    if (!p.st)
        p.st = find_classes(&p, nin, inputs);
    eas_spec *begin = !p.st && start ? by_leaf(&p, nin, inputs, start) : NULL;
    if (!p.st && start && !begin)
        p.st = base_fail_oom(room);
    plan_of best = p.st ? (plan_of){0} : plan_new_of(&p);
    if (!p.st && best.at)
        search(&p, begin, &best, took);
    for (int i = 0; i < nin && !p.st && best.at; i++) {
        specs[i] = (eas_spec){.rank = inputs[i]->rank}; /* of what nothing is made of: whole */
        for (int k = 0; k < p.nleaves; k++)
            if (p.leaves[k] == inputs[i] && p.class[k] >= 0)
                specs[i] = best.at[p.class[k]];
    }
    if (seconds)
        memcpy(seconds, took, sizeof took);
    free(best.at);
    free(begin);
    free(p.leaves);
    free(p.given);
    free(p.class);
    free(p.member);
    free(p.bytes);
    free(p.order);
    free(p.specs);
    return p.st;
}
