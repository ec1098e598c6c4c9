/* auto.c: layouts of a program's inputs, chosen by predicted cost.
 *
 * What follows from the inputs' layouts is the partitioner's business (assign.c, reshard.c), so the search is over layouts of inputs alone, and every candidate is judged by partitioning the whole graph
 * for it and counting (cost.c). Inputs that play the same part are laid out alike: a hash of shape, dtype and of the operations within a few steps of it, which is equal for the weights of repeated layers. The search
 * begins from what is given and, for each set of axes, from the batch cut along them with parameters whole or cut along the same axes, with parameters cut along the other axes by their first dims, and by their last. (The empty set: no batch is cut.) Each of
 * these is improved one class of inputs at a time, all layouts that sizes allow, until nothing helps, and the best of all two classes at a time. The result is the best that was ever seen, so it is never worse than any of the beginnings. The number of
 * candidates is bounded by the size of the graph, not by time: every process of a job must choose the same.
 */
#include "cost.h"

#include <float.h>

enum { ROUNDS = 3, MOST_TRIES = 2000, FEW_TRIES = 200, MOST_NODES = 500000, SUBSETS = 16 };

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
    int tries, most; /* candidates: so far, at most */
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
    a->new = ok ? malloc(sizeof *a->new *(a->order.len + 1u)) : NULL;
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

static bool same_shape(const eas_node *a, const eas_node *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && !memcmp(node_shape(a), node_shape(b), sizeof(eas_dim) * a->rank);
}

/* Inputs that begin with different layouts are of different classes. */
static uint64_t with_layout(uint64_t h, const eas_spec *s)
{
    for (int d = 0; d < s->rank; d++)
        h = join(h, (uint64_t)spec_dim_word(&s->dims[d]) + 3);
    return h;
}

static eas_status find_classes(problem *p, int nin, eas_node *const *inputs, const eas_spec *start)
{
    around a = {0};
    bool ok = look_around(&a, p->n, p->outs);
    uint64_t *hash = calloc((size_t)p->nleaves + 1, sizeof *hash);
    for (int i = 0; ok && hash && i < p->nleaves; i++) {
        p->class[i] = -1;
        if (!ours(p->leaves[i], nin, inputs))
            continue;
        hash[i] = has(&a, p->leaves[i]) ? a.old[a.table[place_in(&a, p->leaves[i])] - 1] : own_hash(p->leaves[i]);
        hash[i] = with_layout(hash[i], start ? &start[i] : &p->given[i]);
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
    int64_t most = MOST_NODES / ((int64_t)a.order.len + 1);
    p->most = (int)(most > MOST_TRIES ? MOST_TRIES : most < FEW_TRIES ? FEW_TRIES : most);
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
    if (p->st || p->tries++ >= p->most)
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

/* Axis after axis onto the first dim that can take it, of the first ndims; back: the last such dim. */
static void cut_along(const problem *p, const eas_node *n, uint32_t axes, int ndims, bool back, eas_spec *s)
{
    for (int a = 0; a < p->m->m.naxes; a++)
        for (int i = 0; axes >> a & 1 && i < ndims; i++) {
            int d = back ? ndims - 1 - i : i;
            eas_spec t = *s;
            put_axis(&t, d, a);
            if (p->m->m.sizes[a] > 1 && can_cut(p, n, &t)) {
                *s = t;
                break;
            }
        }
}

/* The batch is what dim 0 of size `batch` of inputs is; the others are parameters: whole, or (split) cut along their first dim that can be, or (columns) their last. */
static void try_batch(problem *p, plan_of *best, plan_of *x, eas_dim batch, uint32_t axes, uint32_t split, bool columns)
{
    for (int c = 0; c < p->nclasses; c++) {
        const eas_node *n = p->leaves[p->member[c]];
        x->at[c] = (eas_spec){.rank = n->rank};
        if (n->rank && node_shape(n)[0] == batch)
            cut_along(p, n, axes, 1, false, &x->at[c]);
        else
            cut_along(p, n, split, n->rank, columns, &x->at[c]);
    }
    judge(p, x);
    if (x->rank < best->rank)
        copy_plan(p, best, x);
}

/* The best beginning with the batch along these axes; parameters: 0 whole or cut along the same axes, 1 along the others by their first dims, 2 by their last. */
static void begin_with(problem *p, plan_of *best, plan_of *x, uint32_t axes, int parameters)
{
    uint32_t others = ((1u << p->m->m.naxes) - 1) & ~axes;
    best->rank = DBL_MAX;
    for (int c = 0; c < p->nclasses && !p->st; c++) {
        const eas_node *n = p->leaves[p->member[c]];
        bool seen = n->rank == 0 || !dim_known(node_shape(n)[0]);
        for (int k = 0; k < c && !seen; k++)
            seen = p->leaves[p->member[k]]->rank && node_shape(p->leaves[p->member[k]])[0] == node_shape(n)[0];
        if (seen || (parameters && !others))
            continue;
        try_batch(p, best, x, node_shape(n)[0], axes, parameters ? others : 0, parameters == 2);
        if (!parameters && axes)
            try_batch(p, best, x, node_shape(n)[0], axes, axes, false);
    }
}

/* ---- one class at a time ---- */

/* All ways to give each axis to a dim of class c, or to none, from axis a on; with all ways of class `next`, if that is not -1. */
static void all_layouts(problem *p, plan_of *best, plan_of *x, int c, int a, eas_spec s, int next)
{
    const eas_node *n = p->leaves[p->member[c]];
    if (p->st || p->tries >= p->most)
        return;
    if (a == p->m->m.naxes) {
        x->at[c] = s;
        if (next >= 0) {
            all_layouts(p, best, x, next, 0, (eas_spec){.rank = p->leaves[p->member[next]]->rank}, -1);
            return;
        }
        judge(p, x);
        if (x->rank < best->rank)
            copy_plan(p, best, x);
        return;
    }
    all_layouts(p, best, x, c, a + 1, s, next);
    for (int d = 0; d < n->rank && p->m->m.sizes[a] > 1; d++) {
        eas_spec t = s;
        put_axis(&t, d, a);
        if (can_cut(p, n, &t))
            all_layouts(p, best, x, c, a + 1, t, next);
    }
}

/* Two classes at a time, the largest first, as far as the number of candidates allows. */
static void improve_pairs(problem *p, plan_of *best, plan_of *x)
{
    for (int j = 1; j < p->nclasses; j++)
        for (int i = 0; i < j && !p->st && p->tries < p->most; i++) {
            copy_plan(p, x, best);
            all_layouts(p, best, x, p->order[i], 0, (eas_spec){.rank = p->leaves[p->member[p->order[i]]]->rank}, p->order[j]);
        }
}

static void improve(problem *p, plan_of *best, plan_of *x)
{
    for (int r = 0; r < ROUNDS && !p->st; r++) {
        double before = best->rank;
        for (int i = 0; i < p->nclasses && !p->st; i++) {
            int c = p->order[i];
            copy_plan(p, x, best);
            all_layouts(p, best, x, c, 0, (eas_spec){.rank = p->leaves[p->member[c]]->rank}, -1);
        }
        if (best->rank >= before)
            break;
    }
}

static void improved(problem *p, plan_of *out, plan_of *from, plan_of *x)
{
    if (from->rank == DBL_MAX)
        return;
    improve(p, from, x);
    if (from->rank < out->rank)
        copy_plan(p, out, from);
}

static void search(problem *p, const eas_spec *start, plan_of *out, double *seconds)
{
    plan_of x = plan_new_of(p), from = plan_new_of(p);
    uint32_t sets = p->m->m.naxes < 5 ? 1u << p->m->m.naxes : SUBSETS;
    p->st = x.at && from.at ? EAS_OK : base_fail_oom(sizeof *x.at);
    if (!p->st) {
        judge(p, &x); /* all whole */
        seconds[1] = x.seconds;
        copy_plan(p, out, &x);
        for (int c = 0; c < p->nclasses; c++)
            from.at[c] = start ? start[p->member[c]] : p->given[p->member[c]];
        judge(p, &from);
        seconds[0] = from.seconds;
        improved(p, out, &from, &x);
    }
    for (uint32_t s = 0; s < sets && !p->st; s++)
        for (int k = 0; k < 3 && !p->st; k++) {
            begin_with(p, &from, &x, s, k);
            improved(p, out, &from, &x);
        }
    improve_pairs(p, out, &x);
    seconds[2] = out->seconds;
    free(x.at);
    free(from.at);
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

eas_status eas_nodes_auto_shard(int n, eas_node *const *nodes, int mesh, const eas_machine *machine, int nin, eas_node *const *inputs,
                                const eas_spec *start, eas_spec *specs, double *seconds)
{
    if ((n && !nodes) || (nin && (!inputs || !specs)) || !machine)
        return base_null(__func__, "nodes, inputs, specs or machine");
    const dist_mesh *m = dist_mesh_at(mesh);
    if (!m)
        return base_fail(EAS_ERR_VALUE, "there is no mesh %d", mesh);
    if (!cost_machine_ok(machine))
        return base_fail(EAS_ERR_VALUE, "eas_nodes_auto_shard: speeds, bandwidths and latencies of the machine must be positive");
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
    eas_spec *begin = !p.st && start ? by_leaf(&p, nin, inputs, start) : NULL;
    if (!p.st && start && !begin)
        p.st = base_fail_oom(room);
    if (!p.st)
        p.st = find_classes(&p, nin, inputs, begin);
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
