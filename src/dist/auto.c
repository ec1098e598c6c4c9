/* auto.c: layouts of a program's inputs, chosen by predicted cost.
 *
 * Problem: choose a layout for each input such that the program over parts takes the least time. All other
 * layouts follow from those of the inputs (assign.c, reshard.c).
 *
 * Idea: local search. A candidate is a layout for each input; its cost is predicted by partitioning the whole
 * graph for it (cost.c). Inputs that play the same part, such as the weights of repeated layers, form a class
 * (auto_class.c) and are laid out alike. The search has four stages:
 *
 *   starts      the caller's layouts; whole tensors; and for each set of axes the batch or the sequence cut
 *               along them, with parameters whole, cut along the same axes or along the others, by their
 * first or their last dims classes     the most promising starts are improved one class at a time, over all
 * layouts that sizes allow, until no change helps pairs       the best plan is improved two classes at a time
 *   inside      for the best few plans layouts of values inside the graph are chosen as well (auto_inner.c)
 *
 * The result is the best candidate that was seen, so it is never worse than any start.
 * The number of candidates is bounded by the size of the graph, not by time: every process of a job must
 * choose the same.
 */
#include "cost.h"

#include <float.h>

enum { ROUNDS = 3, MOST_TRIES = 1200, FEW_TRIES = 200, MOST_NODES = 500000, SUBSETS = 16 };

typedef struct problem {
    const dist_mesh *m;
    const eas_machine *machine;
    int n, nleaves, nclasses;
    eas_node *const *outs;
    eas_node **leaves;
    eas_spec *given;     /* per leaf */
    int *class;          /* per leaf; -1: its layout is fixed */
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
    return a->dtype == b->dtype && a->rank == b->rank &&
           !memcmp(node_shape(a), node_shape(b), sizeof(eas_dim) * a->rank);
}

/* Inputs that begin with different layouts are of different classes. */
static uint64_t with_layout(uint64_t h, const eas_spec *s)
{
    for (int d = 0; d < s->rank; d++)
        h = around_join(h, (uint64_t)spec_dim_word(&s->dims[d]) + 3);
    return h;
}

static eas_status find_classes(problem *p, int nin, eas_node *const *inputs, const eas_spec *start)
{
    around a;
    eas_status st = around_new(&a, p->n, p->outs);
    if (st)
        return st;
    uint64_t *hash = calloc((size_t)p->nleaves + 1, sizeof *hash);
    for (int i = 0; hash && i < p->nleaves; i++) {
        p->class[i] = -1;
        if (!ours(p->leaves[i], nin, inputs))
            continue;
        hash[i] = around_hash(&a, p->leaves[i]);
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
    around_free(&a);
    bool done = hash != NULL;
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
    p->st = cost_of(p->m, p->machine, p->n, p->outs, p->specs, NULL, &c, NULL);
    if (p->st)
        return;
    x->seconds = c.seconds;
    x->rank = auto_rank(p->machine, &c);
}

double auto_rank(const eas_machine *machine, const cost *c)
{
    /* does not fit: less is better, but nothing that fits is worse */
    if (machine->memory > 0 && (double)c->memory > machine->memory)
        return 1e6 * (1 + (double)c->memory / machine->memory) + c->seconds;
    return c->seconds * (1 + 1e-3 * (double)c->memory / (double)((int64_t)1 << 40)) +
           1e-16 * (double)c->memory;
}

bool auto_can_cut(const dist_mesh *m, const eas_node *n, const eas_spec *s)
{
    for (int d = 0; d < n->rank; d++)
        if (s->dims[d].n && (!dim_known(node_shape(n)[d]) || node_shape(n)[d] == 0 ||
                             node_shape(n)[d] % spec_parts(m, &s->dims[d])))
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

static bool cut_one(const problem *p, const eas_node *n, int axis, int dim, eas_spec *s)
{
    eas_spec t = *s;
    if (dim >= n->rank || p->m->m.sizes[axis] == 1)
        return false;
    put_axis(&t, dim, axis);
    if (!auto_can_cut(p->m, n, &t))
        return false;
    *s = t;
    return true;
}

static void cut_along(const problem *p, const eas_node *n, uint32_t axes, int dim, eas_spec *s)
{
    for (int a = 0; a < p->m->m.naxes; a++)
        if (axes >> a & 1)
            cut_one(p, n, a, dim, s);
}

/* Axis after axis onto the first dim that can take it; back: the last such dim. */
static void cut_first(const problem *p, const eas_node *n, uint32_t axes, bool back, eas_spec *s)
{
    for (int a = 0; a < p->m->m.naxes; a++)
        for (int i = 0; axes >> a & 1 && i < n->rank; i++)
            if (cut_one(p, n, a, back ? n->rank - 1 - i : i, s))
                break;
}

/* A way to begin: inputs whose first dim has the size `batch` are cut along `axes` by their dim 0 or 1 (the
 * batch, the sequence); the others are parameters: cut along `split` by their first dim that can be, or
 * (columns) by their last. */
typedef struct beginning {
    eas_dim batch;
    int dim;
    uint32_t axes, split;
    bool columns;
} beginning;

static void try_beginning(problem *p, plan_of *best, plan_of *x, const beginning *b)
{
    for (int c = 0; c < p->nclasses; c++) {
        const eas_node *n = p->leaves[p->member[c]];
        x->at[c] = (eas_spec){.rank = n->rank};
        if (n->rank && node_shape(n)[0] == b->batch)
            cut_along(p, n, b->axes, b->dim, &x->at[c]);
        else
            cut_first(p, n, b->split, b->columns, &x->at[c]);
    }
    judge(p, x);
    if (x->rank < best->rank)
        copy_plan(p, best, x);
}

/* The best beginning of a kind with the batch along these axes. */
typedef enum kind_of_beginning {
    DATA, /* parameters whole, or cut along the same axes */
    OTHERS_FIRST, /* parameters cut along the other axes by their first dims */
    OTHERS_LAST, /* and by their last */
    SEQUENCE, /* the sequence is cut; parameters are whole */
    SEQUENCE_FIRST, /* and cut along the same axes, by their first dims */
    SEQUENCE_LAST, /* and by their last */
    BEGINNINGS
} kind_of_beginning;

static void begin_with(problem *p, plan_of *best, plan_of *x, uint32_t axes, kind_of_beginning kind)
{
    uint32_t others = ((1u << p->m->m.naxes) - 1) & ~axes;
    best->rank = DBL_MAX;
    for (int c = 0; c < p->nclasses && !p->st; c++) {
        const eas_node *n = p->leaves[p->member[c]];
        bool seen = n->rank == 0 || !dim_known(node_shape(n)[0]);
        for (int k = 0; k < c && !seen; k++)
            seen =
                p->leaves[p->member[k]]->rank && node_shape(p->leaves[p->member[k]])[0] == node_shape(n)[0];
        if (seen || ((kind == OTHERS_FIRST || kind == OTHERS_LAST) && !others) ||
            (kind >= SEQUENCE && (!axes || n->rank < 2)))
            continue;
        beginning b = {.batch = node_shape(n)[0], .dim = kind >= SEQUENCE, .axes = axes};
        if (kind == OTHERS_FIRST || kind == OTHERS_LAST)
            b.split = others;
        if (kind > SEQUENCE)
            b.split = axes;
        b.columns = kind == OTHERS_LAST || kind == SEQUENCE_LAST;
        try_beginning(p, best, x, &b);
        b.split = axes;
        if (kind == DATA && axes)
            try_beginning(p, best, x, &b);
    }
}

/* ---- one class at a time ---- */

/* All ways to give each axis to a dim of class c, or to none, from axis a on; with all ways of class `next`,
 * if that is not -1. */
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
        if (auto_can_cut(p->m, n, &t))
            all_layouts(p, best, x, c, a + 1, t, next);
    }
}

/* Two classes at a time, the largest first, as far as the number of candidates allows. */
static void improve_pairs(problem *p, plan_of *best, plan_of *x)
{
    for (int j = 1; j < p->nclasses; j++)
        for (int i = 0; i < j && !p->st && p->tries < p->most; i++) {
            copy_plan(p, x, best);
            all_layouts(p, best, x, p->order[i], 0,
                        (eas_spec){.rank = p->leaves[p->member[p->order[i]]]->rank}, p->order[j]);
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

/* The best plans so far, the best first; layouts inside are chosen for each of them at the end. */
enum { FINALISTS = 3, STARTS = 8 };
typedef struct finalists {
    plan_of at[STARTS];
    int n, most;
} finalists;

static bool same_plan(const problem *p, const plan_of *a, const plan_of *b)
{
    for (int c = 0; c < p->nclasses; c++)
        if (!spec_same(&a->at[c], &b->at[c]))
            return false;
    return true;
}

static void enter(problem *p, finalists *f, const plan_of *x)
{
    for (int i = 0; i < f->n; i++)
        if (same_plan(p, &f->at[i], x))
            return;
    if (x->rank == DBL_MAX || (f->n == f->most && x->rank >= f->at[f->n - 1].rank))
        return;
    if (f->n < f->most) {
        f->at[f->n] = plan_new_of(p);
        if (!f->at[f->n].at) {
            p->st = base_fail_oom(sizeof *x->at);
            return;
        }
        f->n++;
    }
    copy_plan(p, &f->at[f->n - 1], x);
    for (int i = f->n - 1; i > 0 && f->at[i].rank < f->at[i - 1].rank; i--) {
        plan_of t = f->at[i];
        f->at[i] = f->at[i - 1];
        f->at[i - 1] = t;
    }
}

static void finalists_free(finalists *f)
{
    for (int i = 0; i < f->n; i++)
        free(f->at[i].at);
}

/* The cheapest of the finalists with layouts inside. */
static void decide(problem *p, finalists *f, plan_of *out)
{
    out->rank = DBL_MAX;
    for (int k = 0; k < f->n && !p->st; k++) {
        plan_of *x = &f->at[k];
        pins chosen = {0};
        if (x->rank > 1.3 * f->at[0].rank) /* layouts inside never save as much as 30 % */
            break;
        for (int i = 0; i < p->nleaves; i++)
            p->specs[i] = p->class[i] < 0 ? p->given[i] : x->at[p->class[i]];
        p->st = auto_inner(p->m, p->machine, p->n, p->outs, p->specs, p->most / 3, &chosen, &x->rank,
                           &x->seconds);
        vec_free(&chosen);
        if (!p->st && x->rank < out->rank)
            copy_plan(p, out, x);
    }
}

/* All beginnings; the promising ones stay. */
static void find_starts(problem *p, const eas_spec *start, finalists *starts, plan_of *from, plan_of *x,
                        double *seconds)
{
    uint32_t sets = p->m->m.naxes < 5 ? 1u << p->m->m.naxes : SUBSETS;
    judge(p, x); /* all whole */
    seconds[1] = x->seconds;
    enter(p, starts, x);
    for (int c = 0; c < p->nclasses; c++)
        from->at[c] = start ? start[p->member[c]] : p->given[p->member[c]];
    judge(p, from);
    seconds[0] = from->seconds;
    enter(p, starts, from);
    for (uint32_t s = 0; s < sets && !p->st; s++)
        for (kind_of_beginning k = 0; k < BEGINNINGS && !p->st; k++) {
            begin_with(p, from, x, s, k);
            enter(p, starts, from);
        }
}

static void search(problem *p, const eas_spec *start, plan_of *out, double *seconds)
{
    plan_of x = plan_new_of(p), from = plan_new_of(p);
    finalists starts = {.most = STARTS}, all = {.most = FINALISTS};
    p->st = x.at && from.at ? EAS_OK : base_fail_oom(sizeof *x.at);
    if (!p->st)
        find_starts(p, start, &starts, &from, &x, seconds);
    for (int i = 0; i < starts.n && !p->st; i++) {
        enter(p, &all, &starts.at[i]);
        copy_plan(p, &from, &starts.at[i]);
        improve(p, &from, &x);
        enter(p, &all, &from);
    }
    if (!p->st && all.n) {
        copy_plan(p, &from, &all.at[0]);
        improve_pairs(p, &from, &x);
        enter(p, &all, &from);
        decide(p, &all, out);
    }
    seconds[2] = out->seconds;
    finalists_free(&starts);
    finalists_free(&all);
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

eas_status eas_nodes_auto_shard(int n, eas_node *const *nodes, int mesh, const eas_machine *machine, int nin,
                                eas_node *const *inputs, const eas_spec *start, eas_spec *specs,
                                double *seconds)
{
    if ((n && !nodes) || (nin && (!inputs || !specs)) || !machine)
        return base_null(__func__, "nodes, inputs, specs or machine");
    const dist_mesh *m = dist_mesh_at(mesh);
    if (!m)
        return base_fail(EAS_ERR_VALUE, "there is no mesh %d", mesh);
    if (!cost_machine_ok(machine))
        return base_fail(
            EAS_ERR_VALUE,
            "eas_nodes_auto_shard: speeds, bandwidths and latencies of the machine must be positive");
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
