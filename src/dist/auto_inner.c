/* auto_inner.c: layouts of values inside a graph, chosen by predicted cost where those of the inputs are
 * given.
 *
 * Without these every value lies as its inputs and users suggest (partition.c), which is right but for values
 * that several operations read in different layouts: an activation that is exchanged for one product and
 * gathered for its derivative; the values between layers, which could be cut along the sequence. The largest
 * values are tried one class at a time (those that play the same part, auto_class.c, and all element-wise
 * results of one shape), in all layouts that sizes allow; a layout stays if the whole program becomes cheaper
 * with it. So the result is never worse than without.
 */
#include "cost.h"

enum { CLASSES = 96, SWEEPS = 2 };

typedef struct alike {
    bool by_shape; /* all element-wise results of one shape: the values between the layers of a network */
    uint64_t hash;
    const eas_node *member; /* the first one */
    double bytes; /* of all of them */
} alike;
typedef struct inner {
    const dist_mesh *m;
    const eas_machine *machine;
    int n, tries;
    eas_node *const *outs;
    const eas_spec *specs;
    around a;
    VEC(alike) classes;
    pins *chosen;
    double best, seconds;
    eas_status st;
} inner;

static double bytes_of(const eas_node *n)
{
    double b = (double)eas_dtype_size((eas_dtype)n->dtype);
    for (int d = 0; d < n->rank; d++)
        b *= (double)node_shape(n)[d];
    return b;
}

/* A value of known size that the graph computes and that has no layout of its own. */
static bool may_pin(const eas_node *n)
{
    graph_kind k = node_kind(n);
    if (node_real(n) || n->rank == 0 || n->op == GRAPH_INPUT || n->op == GRAPH_SHARD ||
        n->op == GRAPH_BARRIER || k == KIND_CALL || k == KIND_CONTROL || k == KIND_CONST ||
        k == KIND_BROADCAST || k == KIND_IOTA)
        return false;
    for (int d = 0; d < n->rank; d++)
        if (!dim_known(node_shape(n)[d]) || node_shape(n)[d] < 1)
            return false;
    return true;
}

static uint64_t class_hash(const inner *w, const eas_node *n)
{
    return around_join(around_hash(&w->a, n), n->op);
}

static bool is_of(const inner *w, const alike *c, const eas_node *n)
{
    const eas_node *x = c->member;
    if (!c->by_shape)
        return class_hash(w, n) == c->hash;
    return node_kind(n) == KIND_MAP && n->rank == x->rank && n->dtype == x->dtype &&
           !memcmp(node_shape(n), node_shape(x), sizeof(eas_dim) * n->rank);
}

static void add_to_class(inner *w, const eas_node *n, bool by_shape)
{
    alike c = {by_shape, by_shape ? 0 : class_hash(w, n), n, bytes_of(n)};
    uint32_t k = 0;
    while (k < w->classes.len && !(w->classes.at[k].by_shape == by_shape && is_of(w, &w->classes.at[k], n)))
        k++;
    if (k < w->classes.len)
        w->classes.at[k].bytes += c.bytes;
    else if (!vec_push(&w->classes, c))
        w->st = base_fail_oom(sizeof c);
}

static bool is_view(const eas_node *n)
{
    graph_kind k = node_kind(n);
    return k == KIND_RESHAPE || k == KIND_PERMUTE || k == KIND_ALIAS || k == KIND_CAST || k == KIND_SLICE;
}

static bool comes_before(const alike *a, const alike *b)
{
    bool x = is_view(a->member), y = is_view(b->member);
    return x != y ? y : a->bytes > b->bytes;
}

static void find_classes(inner *w)
{
    for (uint32_t i = 0; i < w->a.order.len && !w->st; i++) {
        const eas_node *n = w->a.order.at[i];
        if (!may_pin(n))
            continue;
        add_to_class(w, n, false);
        if (node_kind(n) == KIND_MAP)
            add_to_class(w, n, true);
    }
    for (uint32_t i = 1; i < w->classes.len;
         /* what is computed before views of it, then the largest first; equal ones in the order of the graph
          */
         i++) {
        alike c = w->classes.at[i];
        uint32_t k = i;
        for (; k > 0 && comes_before(&c, &w->classes.at[k - 1]); k--)
            w->classes.at[k] = w->classes.at[k - 1];
        w->classes.at[k] = c;
    }
}

static void drop_class(inner *w, const alike *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->chosen->len; i++)
        if (!is_of(w, c, w->chosen->at[i].n))
            w->chosen->at[n++] = w->chosen->at[i];
    w->chosen->len = n;
}

static void pin_class(inner *w, const alike *c, const eas_spec *s)
{
    for (uint32_t i = 0; i < w->a.order.len && !w->st; i++) {
        const eas_node *n = w->a.order.at[i];
        if (may_pin(n) && n->rank == s->rank && is_of(w, c, n) && auto_can_cut(w->m, n, s) &&
            !vec_push(w->chosen, ((pin){n, *s})))
            w->st = base_fail_oom(sizeof *s);
    }
}

static double judge(inner *w, double *seconds)
{
    cost c = {0};
    w->tries--;
    w->st = cost_of(w->m, w->machine, w->n, w->outs, w->specs, w->chosen, &c, NULL);
    *seconds = c.seconds;
    return auto_rank(w->machine, &c);
}

/* All ways to give each axis, from `axis` on, to a dim of the class or to none. */
static void try_layouts(inner *w, const alike *c, int axis, eas_spec s)
{
    if (w->st || w->tries <= 0)
        return;
    if (axis < w->m->m.naxes) {
        try_layouts(w, c, axis + 1, s);
        for (int d = 0; d < s.rank && w->m->m.sizes[axis] > 1; d++) {
            eas_spec t = s;
            t.dims[d].axes[t.dims[d].n++] = (uint8_t)axis;
            if (auto_can_cut(w->m, c->member, &t))
                try_layouts(w, c, axis + 1, t);
        }
        return;
    }
    pins before = {0};
    for (uint32_t i = 0; i < w->chosen->len && !w->st; i++)
        if (!vec_push(&before, w->chosen->at[i]))
            w->st = base_fail_oom(sizeof s);
    drop_class(w, c);
    pin_class(w, c, &s);
    double seconds, rank = w->st ? 0 : judge(w, &seconds);
    bool better = !w->st && rank < w->best * (1 - 1e-6);
    if (better) {
        w->best = rank;
        w->seconds = seconds;
        vec_free(&before);
    } else {
        vec_free(w->chosen);
        *w->chosen = before;
    }
}

eas_status auto_inner(const dist_mesh *m, const eas_machine *machine, int n, eas_node *const *outs,
                      const eas_spec *specs, int tries, pins *chosen, double *best, double *seconds)
{
    inner w = {.m = m,
               .machine = machine,
               .n = n,
               .outs = outs,
               .specs = specs,
               .tries = tries,
               .chosen = chosen,
               .best = *best,
               .seconds = *seconds};
    w.st = around_new(&w.a, n, outs);
    if (!w.st)
        find_classes(&w);
    for (int s = 0; s < SWEEPS && !w.st; s++) {
        double before = w.best;
        for (uint32_t i = 0; i < w.classes.len && i < CLASSES && !w.st; i++)
            try_layouts(&w, &w.classes.at[i], 0, (eas_spec){.rank = w.classes.at[i].member->rank});
        if (w.best >= before)
            break;
    }
    *best = w.best;
    *seconds = w.seconds;
    vec_free(&w.classes);
    around_free(&w.a);
    return w.st;
}

/* ---- for compiled functions ---- */

static _Thread_local struct {
    bool on;
    int mesh;
    eas_machine machine;
} now;

eas_status eas_mesh_auto_inner(int mesh, const eas_machine *machine)
{
    now.on = false;
    if (!machine)
        return EAS_OK;
    if (!dist_mesh_at(mesh))
        return base_fail(EAS_ERR_VALUE, "there is no mesh %d", mesh);
    if (!cost_machine_ok(machine))
        return base_fail(
            EAS_ERR_VALUE,
            "eas_mesh_auto_inner: speeds, bandwidths and latencies of the machine must be positive");
    now.on = true;
    now.mesh = mesh;
    now.machine = *machine;
    return EAS_OK;
}

eas_status auto_for_compiled(const dist_mesh *m, int n, eas_node *const *outs, pins *chosen)
{
    if (!now.on || now.mesh != m->id)
        return EAS_OK;
    int count = 0;
    eas_node **leaves = NULL;
    eas_spec *specs = NULL;
    cost c = {0};
    eas_status st = dist_leaves(n, outs, &count, &leaves, &specs);
    if (!st)
        st = cost_of(m, &now.machine, n, outs, specs, NULL, &c, NULL);
    double rank = auto_rank(&now.machine, &c), seconds = c.seconds;
    if (!st)
        st = auto_inner(m, &now.machine, n, outs, specs, 400, chosen, &rank, &seconds);
    free(leaves);
    free(specs);
    return st;
}
