/* run.c: programs over parts: made, kept by structure, run on every device of this process.
 *
 * A program is the plan of one device's graph (exec), what its leaves are (tensors of the run, or places along axes), and how its results lie. A result that is the same on every device becomes an
 * ordinary tensor; others keep their parts.
 */
#include "dist.h"

typedef struct leaf { /* of the plan */
    int which; /* tensor of the run; -1: the place along axes */
    eas_dim_spec axes;
    eas_buffer **place; /* per device of this process */
} leaf;
typedef struct program {
    _Atomic uint32_t refs;
    const dist_mesh *m;
    eas_device *device;
    plan *p;
    int nleaves, nnumbers, nouts, ngiven;
    leaf *leaves;
    struct {
        int which; /* number of the run; -1: bits */
        int64_t bits;
    } *numbers;
    struct out {
        uint32_t at; /* which of the plan's results */
        eas_spec spec;
    } *outs;
    eas_spec *given; /* per tensor of the run: how it lies */
    VEC_TEXT sites;
    pnotes notes;
    int64_t ndevices; /* of this process */
    uint64_t key[2], used;
} program;

/* ---- making ---- */

static void release(program *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    for (int i = 0; i < g->nleaves && g->leaves; i++) {
        for (int64_t k = 0; g->leaves[i].place && k < g->ndevices; k++)
            if (g->leaves[i].place[k])
                eas_buffer_release(g->leaves[i].place[k]);
        free(g->leaves[i].place);
    }
    for (uint32_t i = 0; i < g->sites.len; i++)
        free(g->sites.at[i]);
    vec_free(&g->sites);
    vec_free(&g->notes);
    plan_release(g->p);
    free(g->leaves);
    free(g->numbers);
    free(g->outs);
    free(g->given);
    free(g);
}

typedef struct wish { /* what a program is made of */
    int nleaves, nnumbers, nroots, nheld;
    eas_node *const *leaves, *const *numbers, *const *roots, *const *held;
    const eas_spec *specs; /* NULL, or per leaf: how it is to lie */
    dist_look look; /* NULL, or what is called with the local graph */
    void *ctx;
} wish;

/* As it lies on the mesh; what is on another one comes whole. m: NULL is any. */
static eas_spec spec_of_leaf(const dist_mesh *m, const eas_node *n)
{
    eas_spec s = {.rank = n->rank};
    const dist_parts *parts = node_real(n) ? parts_of(n) : NULL;
    if (parts && (!m || parts->mesh == m))
        s = parts->spec;
    else if (parts)
        return s;
    else if (!node_real(n) && n->op == GRAPH_INPUT && n->nwords > 1)
        spec_of_words(n->rank, node_words(n) + 1, &s);
    for (int d = 0; d < s.rank; d++)
        s.dims[d].open = s.dims[d].priority = 0;
    return s;
}

static eas_status add_leaves(partition *p, program *g, const wish *w)
{
    for (int i = 0; i < w->nleaves && !p->g.st; i++) {
        eas_node *n = w->leaves[i];
        eas_dim shape[GRAPH_MAX_RANK];
        g->given[i] = w->specs ? w->specs[i] : spec_of_leaf(p->m, n);
        for (int d = 0; d < g->given[i].rank; d++)
            g->given[i].dims[d].priority = 0; /* of mixed dims from here on: mix.c */
        spec_local_shape(p->m, &g->given[i], node_shape(n), shape);
        eas_node *own = partition_input(p, (eas_dtype)n->dtype, n->rank, shape);
        pentry *e = own ? partition_add(p, n) : NULL;
        if (e)
            e->v = (pvalue){own, g->given[i]};
    }
    return p->g.st;
}

/* What users see is a whole sum, laid out as they asked or as it came. */
static eas_node *finished(partition *p, eas_node *root, eas_spec *at)
{
    pvalue *v = partition_value(p, root);
    *at = mix_none(&v->at);
    if (!(root->flags & NODE_SHARDED) && !p->any_layout) /* an ordinary tensor */
        *at = (eas_spec){.rank = root->rank};
    at->partial = 0;
    if (v->at.partial) {
        pentry *e = partition_find(p, root);
        if (e->has_want && !spec_cut(at))
            *at = e->want;
    }
    p->now = root;
    return reshard(p, v, at, root->rank, node_shape(root), "a result that is read is a whole sum");
}

static eas_status index_buffers(program *g, leaf *l, int64_t first)
{
    int64_t at[EAS_MESH_AXES], index;
    eas_status st = EAS_OK;
    l->place = calloc((size_t)g->ndevices, sizeof *l->place);
    if (!l->place)
        return base_fail_oom((size_t)g->ndevices);
    for (int64_t k = 0; k < g->ndevices && !st; k++) {
        mesh_coordinates(g->m, first + k, at);
        index = mesh_index(g->m, &l->axes, at);
        st = eas_buffer_new(g->device, sizeof index, &l->place[k]);
        if (!st)
            st = eas_device_copy(g->device, eas_buffer_address(l->place[k]), NULL, &index, sizeof index, NULL);
    }
    return st;
}

static eas_status fill_leaves(program *g, const partition *p, const pass_walk *inner, int ntensors)
{
    int64_t first, n;
    eas_status st = dist_devices(g->m, &first, &n);
    g->ndevices = n;
    g->leaves = calloc(inner->leaves.len + 1, sizeof *g->leaves);
    if (!g->leaves)
        return base_fail_oom(inner->leaves.len);
    for (uint32_t i = 0; i < inner->leaves.len && !st; i++, g->nleaves++) {
        int64_t k = node_words(inner->leaves.at[i])[0];
        g->leaves[i].which = k < ntensors ? (int)k : -1;
        for (uint32_t x = 0; x < p->index.len && k >= ntensors; x++)
            if (p->index.at[x].n == inner->leaves.at[i]) {
                g->leaves[i].axes = p->index.at[x].axes;
                st = index_buffers(g, &g->leaves[i], first);
            }
    }
    return st;
}

static eas_status fill_numbers(program *g, partition *p, const pass_walk *inner, const wish *w)
{
    g->nnumbers = (int)inner->numbers.len;
    g->numbers = calloc((size_t)g->nnumbers + 1, sizeof *g->numbers);
    if (!g->numbers)
        return base_fail_oom((size_t)g->nnumbers);
    for (int i = 0; i < g->nnumbers; i++) {
        g->numbers[i].which = -1;
        g->numbers[i].bits = node_words(inner->numbers.at[i])[0];
        for (int k = 0; k < w->nnumbers; k++) {
            const pentry *e = partition_find(p, w->numbers[k]);
            if (e && e->v.n == inner->numbers.at[i])
                g->numbers[i].which = k;
        }
    }
    return EAS_OK;
}

static eas_status compile(program *g, partition *p, const wish *w, eas_node **locals)
{
    pass_walk inner;
    eas_status st = pass_walk_from(&inner, w->nroots, locals);
    if (st)
        return st;
    inner.held.len = 0;
    st = plan_new(&inner, (uint32_t)w->nroots, locals, g->device, 0, &g->p);
    for (int i = 0; i < w->nroots && !st; i++)
        for (uint32_t k = 0; k < g->p->nouts; k++)
            if (g->p->outs[k].position == locals[i]->mark)
                g->outs[i].at = k;
    if (!st)
        st = fill_leaves(g, p, &inner, w->nleaves);
    if (!st)
        st = fill_numbers(g, p, &inner, w);
    pass_walk_clear(&inner);
    return st;
}

/* Numbers that the run does not give are part of the structure. */
static void fix_numbers(partition *p, const wish *w)
{
    for (uint32_t i = 0; i < p->at.len; i++) {
        pentry *e = &p->at.at[i];
        bool given = e->n->op != GRAPH_CONST;
        for (int k = 0; k < w->nnumbers && !given; k++)
            given = w->numbers[k] == e->n;
        if (!given)
            e->v.n->flags |= NODE_FIXED;
    }
}

static eas_status partitioned(const dist_mesh *m, const wish *w, program *g, partition *p, eas_node **locals)
{
    *p = (partition){.m = m, .notes = &g->notes, .sites = &g->sites, .times = 1, .any_layout = w->specs != NULL};
    eas_status st = add_leaves(p, g, w);
    if (!st)
        st = partition_collect(p, w->nroots, w->roots);
    if (!st)
        fix_numbers(p, w);
    if (!st)
        st = partition_run(p);
    for (int i = 0; i < w->nroots && !st; i++) {
        locals[i] = finished(p, w->roots[i], &g->outs[i].spec);
        st = p->g.st;
    }
    return st;
}

static eas_status make(const dist_mesh *m, const wish *w, eas_device *d, bool plan, program **out)
{
    partition p = {0};
    program *g = calloc(1, sizeof *g);
    eas_node **locals = calloc((size_t)w->nroots + 1, sizeof *locals);
    *out = NULL;
    if (!g || !locals) {
        free(g);
        free(locals);
        return base_fail_oom(sizeof *g);
    }
    atomic_init(&g->refs, 1);
    g->m = m;
    g->device = d;
    g->nouts = w->nroots;
    g->ngiven = w->nleaves;
    g->outs = calloc((size_t)w->nroots + 1, sizeof *g->outs);
    g->given = calloc((size_t)w->nleaves + 1, sizeof *g->given);
    eas_status st = g->outs && g->given ? partitioned(m, w, g, &p, locals) : base_fail_oom((size_t)w->nleaves);
    if (!st && w->look)
        st = w->look(w->ctx, w->nroots, locals);
    if (!st && plan)
        st = compile(g, &p, w, locals);
    partition_free(&p);
    free(locals);
    if (st) {
        release(g);
        g = NULL;
    }
    *out = g;
    return st;
}

/* ---- a run on every device ---- */

typedef struct running {
    const program *g;
    eas_node *const *args; /* per tensor of the run */
    const int64_t *numbers;
    const uint8_t *given; /* per tensor: its memory may be taken; NULL: none's */
    const eas_launch *hooks;
    eas_buffer **outs; /* [device][result of the plan] */
} running;
typedef struct device {
    const running *r;
    comm *c;
    int64_t number;
} device;

static comm_op op_of(coll_kind k)
{
    static const comm_op ops[] = {COMM_all_gather, COMM_all_reduce, COMM_reduce_scatter, COMM_all_to_all, COMM_ppermute};
    return ops[k];
}

/* Where this device's data goes and where its result comes from. */
static void set_pairs(const int64_t *words, comm_call *call)
{
    call->to = call->from = -1;
    for (int64_t i = 0; i < words[COLL_PAIRS]; i++) {
        if (words[COLL_WORDS + 2 * i] == call->group->me)
            call->to = (int)words[COLL_WORDS + 2 * i + 1];
        if (words[COLL_WORDS + 2 * i + 1] == call->group->me)
            call->from = (int)words[COLL_WORDS + 2 * i];
    }
}

/* A collective under way. What goes as one, or lies on a device without host memory, has memory of its own. */
typedef struct under_way {
    comm_request *request;
    char *send, *recv; /* NULL: the tensors' own */
    int n;
    struct {
        eas_buffer *in, *out; /* borrowed */
    } at[];
} under_way;

static eas_status copy_to(const device *d, under_way *u, bool host)
{
    eas_status st = EAS_OK;
    size_t at = 0;
    for (int i = 0; i < u->n && !st; i++) {
        size_t n = eas_buffer_size(u->at[i].in);
        if (host && n)
            memcpy(u->send + at, eas_buffer_address(u->at[i].in), n);
        else if (n)
            st = eas_device_copy(NULL, u->send + at, d->r->g->device, eas_buffer_address(u->at[i].in), n, NULL);
        at += n;
    }
    return st;
}

static eas_status copy_from(const device *d, under_way *u, bool host)
{
    eas_status st = EAS_OK;
    size_t at = 0;
    for (int i = 0; i < u->n && !st; i++) {
        size_t n = eas_buffer_size(u->at[i].out);
        if (host && n)
            memcpy(eas_buffer_address(u->at[i].out), u->recv + at, n);
        else if (n)
            st = eas_device_copy(d->r->g->device, eas_buffer_address(u->at[i].out), NULL, u->recv + at, n, NULL);
        at += n;
    }
    return st;
}

static void under_way_free(under_way *u)
{
    free(u->send);
    free(u->recv);
    free(u);
}

static eas_status start_call(device *d, const int64_t *words, comm_group *group, eas_dtype dt, under_way *u)
{
    bool host = eas_device_has_host_memory(d->r->g->device), own = !host || u->n > 1;
    size_t nin = 0, nout = 0;
    for (int i = 0; i < u->n; i++) {
        nin += eas_buffer_size(u->at[i].in);
        nout += eas_buffer_size(u->at[i].out);
    }
    u->send = own ? malloc(nin + 1) : NULL;
    u->recv = own ? malloc(nout + 1) : NULL;
    if (own && (!u->send || !u->recv))
        return base_fail_oom(nin + nout);
    bool blocks = words[COLL_KIND] == COLL_SCATTER || words[COLL_KIND] == COLL_EXCHANGE;
    comm_call call = {.op = op_of((coll_kind)words[COLL_KIND]),
                      .red = (comm_reduction)words[COLL_JOIN],
                      .dtype = dt,
                      .group = group,
                      .count = (int64_t)(nin / eas_dtype_size(dt)) / (blocks ? group->n : 1),
                      .send = own ? u->send : eas_buffer_address(u->at[0].in),
                      .recv = own ? u->recv : eas_buffer_address(u->at[0].out),
                      .site = words[COLL_SITE] < 0 ? NULL : d->r->g->sites.at[words[COLL_SITE]]};
    set_pairs(words, &call);
    eas_status st = own ? copy_to(d, u, host) : EAS_OK;
    return st ? st : comm_start(d->c, &call, &u->request);
}

static eas_status start_collective(void *ctx, const int64_t *words, int n, const eas_dtype *dtypes, eas_buffer *const *in, eas_buffer *const *out,
                                   const eas_launch *hooks, void **request)
{
    device *d = ctx;
    const dist_mesh *m = d->r->g->m;
    eas_dim_spec axes = spec_dim_of(words[COLL_AXES]);
    int few[64], *ranks = m->ndevices <= 64 ? few : malloc(sizeof *ranks * (size_t)m->ndevices);
    under_way *u = calloc(1, sizeof *u + sizeof u->at[0] * (size_t)n);
    comm_group *group = NULL;
    *request = NULL;
    if (!ranks || !u) {
        if (ranks != few)
            free(ranks);
        free(u);
        return base_fail_oom((size_t)m->ndevices);
    }
    u->n = n;
    for (int i = 0; i < n; i++) {
        u->at[i].in = in[i];
        u->at[i].out = out[i];
    }
    int64_t members = mesh_members(m, &axes, d->number, ranks);
    eas_status st = comm_group_get(d->c, (int)members, ranks, &group);
    const bool locks = hooks && hooks->leave && hooks->enter;
    if (locks)
        hooks->leave(hooks->ctx);
    if (!st)
        st = start_call(d, words, group, dtypes[0], u);
    if (locks)
        hooks->enter(hooks->ctx);
    if (ranks != few)
        free(ranks);
    if (st)
        under_way_free(u);
    else
        *request = u;
    return st;
}

static eas_status wait_collective(void *ctx, void *request, const eas_launch *hooks)
{
    device *d = ctx;
    under_way *u = request;
    const bool locks = hooks && hooks->leave && hooks->enter;
    if (locks)
        hooks->leave(hooks->ctx);
    eas_status st = comm_wait(d->c, u->request);
    if (!st && u->recv)
        st = copy_from(d, u, eas_device_has_host_memory(d->r->g->device));
    if (locks)
        hooks->enter(hooks->ctx);
    under_way_free(u);
    return st;
}

static void poll_collectives(void *ctx)
{
    device *d = ctx;
    comm_poll(d->c);
}

static eas_buffer *buffer_of(const eas_node *n, int place)
{
    eas_buffer *b = atomic_load_explicit(&((eas_node *)(uintptr_t)n)->buf, memory_order_acquire);
    const dist_parts *parts = parts_of_buffer(b);
    return parts ? parts->at[place] : b;
}

static bool may_take(const running *r, int which, int place)
{
    const eas_buffer *b = buffer_of(r->args[which], place), *whole = atomic_load(&r->args[which]->buf);
    bool alone = r->given && r->given[which] && b != whole && b->owned && __atomic_load_n(&b->refs, __ATOMIC_ACQUIRE) == 1 &&
                 __atomic_load_n(&whole->refs, __ATOMIC_ACQUIRE) == 1;
    for (int i = 0; i < r->g->ngiven && alone; i++)
        alone = i == which || buffer_of(r->args[i], place) != b;
    return alone;
}

static eas_status run_device(void *ctx, int64_t number, int place, comm *c)
{
    const running *r = ctx;
    const program *g = r->g;
    device d = {r, c, number};
    plan_comm with = {start_collective, wait_collective, poll_collectives, &d};
    int64_t *numbers = malloc(sizeof *numbers * (size_t)(g->nnumbers + 1));
    eas_buffer **bufs = malloc(sizeof *bufs * (size_t)(g->nleaves + 1));
    uint8_t *given = calloc((size_t)g->nleaves + 1, 1);
    eas_status st = numbers && bufs && given ? EAS_OK : base_fail_oom((size_t)g->nleaves);
    for (int i = 0; i < g->nnumbers && !st; i++)
        numbers[i] = g->numbers[i].which < 0 ? g->numbers[i].bits : r->numbers[g->numbers[i].which];
    for (int i = 0; i < g->nleaves && !st; i++) {
        const leaf *l = &g->leaves[i];
        bufs[i] = l->which < 0 ? l->place[place] : buffer_of(r->args[l->which], place);
        given[i] = l->which >= 0 && r->given && may_take(r, l->which, place);
    }
    if (!st) {
        plan_run run = {.bufs = bufs, .numbers = numbers, .given = given, .comm = &with, .hooks = g->ndevices > 1 ? NULL : r->hooks};
        st = plan_go(g->p, &run, r->outs + (size_t)place * g->p->nouts);
    }
    free(numbers);
    free(bufs);
    free(given);
    return st;
}

/* A result from its parts. */
static eas_status result_buffer(const running *r, int i, const team *t, eas_buffer **out)
{
    const program *g = r->g;
    int64_t n = team_size(t);
    uint32_t at = g->outs[i].at;
    if (spec_plain(&g->outs[i].spec)) {
        *out = eas_buffer_retain(r->outs[at]);
        return EAS_OK;
    }
    eas_buffer **parts = malloc(sizeof *parts * (size_t)n);
    eas_status st = parts ? EAS_OK : base_fail_oom((size_t)n);
    for (int64_t k = 0; k < n && !st; k++)
        parts[k] = r->outs[(size_t)k * g->p->nouts + at];
    if (!st)
        st = parts_new(g->m, &g->outs[i].spec, true, g->device, team_first(t), n, parts, out);
    free(parts);
    return st;
}

static eas_status go(const program *g, eas_node *const *args, const int64_t *numbers, const uint8_t *given, const eas_launch *hooks,
                     eas_buffer **results)
{
    team *t = NULL;
    eas_status st = team_get(g->m, &t);
    if (st)
        return st;
    size_t n = (size_t)team_size(t) * g->p->nouts;
    running r = {g, args, numbers, given, hooks, calloc(n + 1, sizeof *r.outs)};
    int done = 0;
    if (!r.outs)
        return base_fail_oom(n);
    st = team_run(t, run_device, &r, hooks);
    for (; done < g->nouts && !st; done++)
        st = result_buffer(&r, done, t, &results[done]);
    for (int i = 0; st && i + 1 < done; i++)
        eas_buffer_release(results[i]);
    for (size_t i = 0; i < n; i++)
        if (r.outs[i])
            eas_buffer_release(r.outs[i]);
    free(r.outs);
    return st;
}

/* ---- evaluating ---- */

enum { KEPT = 256 };
static program *kept[KEPT];
static uint64_t clock_now;

static void mix(uint64_t key[2], uint64_t v)
{
    key[0] = (key[0] ^ v) * 0x9e3779b97f4a7c15u;
    key[0] ^= key[0] >> 29;
    key[1] = (key[1] + v) * 0xd6e8feb86659fd93u;
    key[1] ^= key[1] >> 32;
}

static void mix_leaf(uint64_t key[2], const dist_mesh *m, const eas_node *n)
{
    eas_spec s = spec_of_leaf(m, n);
    for (int d = 0; d < s.rank; d++)
        mix(key, (uint64_t)spec_dim_word(&s.dims[d]) + 1);
}

static program *find(const uint64_t key[2])
{
    for (int i = 0; i < KEPT; i++)
        if (kept[i] && kept[i]->key[0] == key[0] && kept[i]->key[1] == key[1]) {
            kept[i]->used = ++clock_now;
            return kept[i];
        }
    return NULL;
}

static void keep(program *g, const uint64_t key[2])
{
    int oldest = 0;
    for (int i = 0; i < KEPT && kept[oldest]; i++)
        if (!kept[i] || kept[i]->used < kept[oldest]->used)
            oldest = i;
    release(kept[oldest]);
    memcpy(g->key, key, sizeof g->key);
    g->used = ++clock_now;
    kept[oldest] = g;
}

static bool solid(const eas_node *n) { return !(n->op == GRAPH_LEAF && n->nwords); }

/* Tensors that are not in C order, copied so. *copies: per leaf, NULL where nothing was to be done; the walk is done anew by the caller. */
static eas_status copy_leaf(eas_node *n, eas_device *d, const eas_launch *hooks, eas_node **out)
{
    eas_status st = node_new(GRAPH_ALIAS, (eas_dtype)n->dtype, n->batch_dims, n->rank, node_shape(n), 0, NULL, 1, &n, out);
    if (st)
        return st;
    st = exec_realize(1, out, d, hooks);
    if (st) {
        node_unref(*out);
        *out = NULL;
    }
    return st;
}

static eas_status realize_on(const dist_mesh *m, int n, eas_node *const *nodes, eas_device *device, const eas_launch *hooks);

/* What lies on another mesh, whole. */
static eas_status whole_leaf(eas_node *n, const dist_parts *parts, eas_device *d, const eas_launch *hooks, eas_node **out)
{
    bool here = parts->n == parts->mesh->ndevices && eas_device_has_host_memory(eas_buffer_device(parts->at[0]));
    eas_node *made = NULL;
    eas_status st = here ? eas_node_whole(n, hooks, &made) : eas_node_shard(n, parts->mesh->id, &(eas_spec){.rank = n->rank}, 0, &made);
    if (!st && !here)
        st = realize_on(parts->mesh, 1, &made, d, hooks);
    *out = st ? NULL : node_ref(made);
    if (made)
        eas_node_release(made); /* what is counted is counted from inside the graph */
    return st;
}

/* Of the leaves, those that are laid out otherwise; the marks of the walk are gone afterwards. */
static eas_status make_solid(const dist_mesh *m, int n, eas_node **leaves, eas_device *d, const eas_launch *hooks, eas_node **copies)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st; i++) {
        const dist_parts *parts = node_real(leaves[i]) ? parts_of(leaves[i]) : NULL;
        bool foreign = parts && parts->mesh != m;
        if (foreign || !solid(leaves[i])) {
            st = foreign ? whole_leaf(leaves[i], parts, d, hooks, &copies[i]) : copy_leaf(leaves[i], d, hooks, &copies[i]);
            if (!st)
                leaves[i] = copies[i];
        }
    }
    return st;
}

static eas_status settle(int n, eas_node *const *nodes, eas_buffer **results)
{
    for (int i = 0; i < n; i++)
        node_ref(nodes[i]);
    for (int i = 0; i < n; i++)
        if (node_real(nodes[i]))
            eas_buffer_release(results[i]);
        else
            node_settle(nodes[i], results[i]);
    for (int i = 0; i < n; i++)
        node_unref(nodes[i]);
    return EAS_OK;
}

/* Numbers of calls decide how these are cut, so they are part of what a program is made for. */
static bool has_calls(const graph_control *c);
static void mix_numbers(uint64_t key[2], const eas_node *n)
{
    const graph_control *c = n->extra ? n->extra->control : NULL;
    int64_t bits;
    if (node_real(n) || !(node_kind(n) == KIND_CALL || (c && has_calls(c))))
        return;
    for (int i = 0; i < n->nin; i++)
        if (node_const_bits(node_in(n)[i], &bits))
            mix(key, (uint64_t)bits + 1);
}

static bool calls_below(diff_set *seen, gbuild *g, eas_node *n)
{
    if (diff_set_has(seen, n))
        return false;
    diff_set_add(g, seen, n);
    const graph_control *c = n->extra ? n->extra->control : NULL;
    if (node_kind(n) == KIND_CALL || (c && has_calls(c)))
        return true;
    for (int i = 0; i < n->nin && !node_real(n); i++)
        if (calls_below(seen, g, node_in(n)[i]))
            return true;
    return false;
}

static bool has_calls(const graph_control *c)
{
    diff_set seen = {0};
    gbuild g = {0};
    bool any = false;
    for (int f = 0; f < (c->branch ? 2 : 1) && !any; f++)
        for (int i = 0; i < c->fn[f].n && !any; i++)
            any = calls_below(&seen, &g, c->fn[f].outs[i]);
    free(seen.at);
    return any;
}

static eas_status program_for(const dist_mesh *m, pass_walk *w, int n, eas_node *const *nodes, eas_device *d, program **out)
{
    uint64_t key[2] = {w->key[0] ^ (uint64_t)(uintptr_t)d, w->key[1]};
    mix(key, (uint64_t)m->id + 1);
    for (uint32_t i = 0; i < w->leaves.len; i++)
        mix_leaf(key, m, w->leaves.at[i]);
    for (uint32_t i = 0; i < w->order.len; i++)
        mix_numbers(key, w->order.at[i]);
    *out = find(key);
    if (*out)
        return EAS_OK;
    wish x = {.nleaves = (int)w->leaves.len,
              .leaves = w->leaves.at,
              .nnumbers = (int)w->numbers.len,
              .numbers = w->numbers.at,
              .nroots = n,
              .roots = nodes};
    eas_status st = make(m, &x, d, true, out);
    if (!st)
        keep(*out, key);
    return st;
}

static eas_status realize_on(const dist_mesh *m, int n, eas_node *const *nodes, eas_device *device, const eas_launch *hooks)
{
    pass_walk w;
    program *g = NULL;
    eas_status st = pass_walk_from(&w, n, nodes);
    if (st)
        return st;
    device = exec_device(&w, device);
    /* inner walks use the memory of this one once it is cleared: what is needed is copied */
    size_t nleaves = w.leaves.len, nnumbers = w.numbers.len;
    eas_node **leaves = malloc(sizeof *leaves * (nleaves + 1)), **copies = calloc(nleaves + 1, sizeof *copies);
    int64_t *numbers = malloc(sizeof *numbers * (nnumbers + 1));
    eas_buffer **results = calloc((size_t)n + 1, sizeof *results);
    st = leaves && copies && numbers && results ? program_for(m, &w, n, nodes, device, &g) : base_fail_oom(nleaves);
    for (size_t i = 0; i < nleaves && !st; i++)
        leaves[i] = w.leaves.at[i];
    for (size_t i = 0; i < nnumbers && !st; i++)
        numbers[i] = node_words(w.numbers.at[i])[0];
    pass_walk_clear(&w);
    if (!st) {
        atomic_fetch_add(&g->refs, 1);
        st = make_solid(m, (int)nleaves, leaves, device, hooks, copies);
        if (!st) {
            fork_release();
            st = go(g, leaves, numbers, NULL, hooks, results);
            fork_hold();
        }
        if (!st)
            st = settle(n, nodes, results);
        release(g);
    }
    for (size_t i = 0; copies && i < nleaves; i++)
        node_unref(copies[i]);
    free(leaves);
    free(copies);
    free(numbers);
    free(results);
    return st;
}

/* Tensors on several meshes, one mesh after the other. */
static eas_status realize_several(int n, eas_node *const *nodes, eas_device *device, const eas_launch *hooks)
{
    eas_node **some = malloc(sizeof *some * ((size_t)n + 1));
    bool before = dist_several;
    dist_several = true;
    eas_status st = some ? dist_stage(n, nodes, realize_on, device, hooks) : base_fail_oom((size_t)n);
    for (int i = 0; i < n && !st; i++) {
        const dist_mesh *own = node_real(nodes[i]) ? NULL : dist_mesh_of(nodes[i]), *all = NULL;
        int count = 0;
        for (int k = i; k < n && !node_real(nodes[i]); k++)
            if (!node_real(nodes[k]) && dist_mesh_of(nodes[k]) == own)
                some[count++] = nodes[k];
        st = partition_mesh(count, some, &all); /* one operation on tensors of two meshes is an error */
        if (!st && count)
            st = own ? realize_on(own, count, some, device, hooks) : exec_realize(count, some, device, hooks);
    }
    dist_several = before;
    free(some);
    return st;
}

static eas_status realize(int n, eas_node *const *nodes, eas_device *device, const eas_launch *hooks)
{
    const dist_mesh *m = NULL;
    eas_status st = partition_mesh(n, nodes, &m);
    if (st == EAS_ERR_VALUE)
        return realize_several(n, nodes, device, hooks);
    return st ? st : m ? realize_on(m, n, nodes, device, hooks) : exec_realize(n, nodes, device, hooks);
}

/* ---- compiled functions ---- */

typedef struct function {
    program *g;
    int nin, nleaves, nouts;
    eas_node **inputs, **leaves, **outs; /* placeholders; per tensor of the run: captured, or a placeholder */
    int64_t *numbers;
    eas_node **copies; /* of captured ones that are not in C order */
} function;

static void function_free(void *p)
{
    function *f = p;
    if (!f)
        return;
    for (int i = 0; i < f->nin && f->inputs; i++)
        node_unref(f->inputs[i]);
    for (int i = 0; i < f->nleaves && f->leaves; i++)
        node_unref(f->leaves[i]);
    for (int i = 0; i < f->nouts && f->outs; i++)
        node_unref(f->outs[i]);
    release(f->g);
    free(f->inputs);
    free(f->leaves);
    free(f->outs);
    free(f->numbers);
    free(f);
}

static eas_node **counted(int n, eas_node *const *from)
{
    eas_node **to = calloc((size_t)n + 1, sizeof *to);
    for (int i = 0; i < n && to; i++)
        to[i] = node_ref(from[i]);
    return to;
}

static eas_status no_symbols(int n, eas_node *const *nodes)
{
    for (int i = 0; i < n; i++)
        for (int d = 0; d < nodes[i]->rank; d++)
            if (!dim_known(node_shape(nodes[i])[d]))
                return base_fail(EAS_ERR_VALUE, "compiled function: sizes of arguments are symbols, and a program over parts on a mesh is made for "
                                                "known sizes: make a program for each size (eager.compile does)");
    return EAS_OK;
}

static eas_status fill_function(function *f, const dist_mesh *m, int nin, eas_node *const *inputs, int nouts, eas_node *const *outs,
                                eas_device *device)
{
    pass_walk w;
    eas_status st = pass_walk_from(&w, nouts, outs);
    if (st)
        return st;
    device = exec_device(&w, device);
    f->inputs = counted(f->nin = nin, inputs);
    f->outs = counted(f->nouts = nouts, outs);
    f->leaves = counted(f->nleaves = (int)w.leaves.len, w.leaves.at);
    f->numbers = calloc(w.numbers.len + 1, sizeof *f->numbers);
    if (!f->inputs || !f->outs || !f->leaves || !f->numbers)
        st = base_fail_oom(w.leaves.len);
    for (uint32_t i = 0; i < w.numbers.len && !st; i++)
        f->numbers[i] = node_words(w.numbers.at[i])[0];
    wish x = {
        .nleaves = (int)w.leaves.len, .leaves = w.leaves.at, .nnumbers = (int)w.numbers.len, .numbers = w.numbers.at, .nroots = nouts, .roots = outs};
    if (!st)
        st = make(m, &x, device, true, &f->g);
    pass_walk_clear(&w);
    return st;
}

static eas_status program_new(int nin, eas_node *const *inputs, int nouts, eas_node *const *outs, eas_device *device, void **out)
{
    const dist_mesh *m = NULL;
    *out = NULL;
    eas_status st = partition_mesh(nouts, outs, &m);
    if (!st)
        st = partition_mesh(nin, inputs, &m);
    if (st || !m)
        return st;
    st = no_symbols(nin, inputs);
    function *f = st ? NULL : calloc(1, sizeof *f);
    if (!f)
        return st ? st : base_fail_oom(sizeof *f);
    exec_enter(NULL);
    st = fill_function(f, m, nin, inputs, nouts, outs, device);
    exec_leave();
    if (st)
        function_free(f);
    else
        *out = f;
    return st;
}

/* The arguments with data that lies as the program wants it. Those that do: themselves; all are counted. */
static eas_status lay_out(const function *f, eas_node *const *args, const eas_launch *hooks, eas_node **out)
{
    eas_status st = EAS_OK;
    int n = 0;
    eas_node **todo = calloc((size_t)f->nleaves + 1, sizeof *todo);
    if (!todo)
        return base_fail_oom((size_t)f->nleaves);
    for (int i = 0; i < f->nleaves && !st; i++) {
        eas_node *x = f->leaves[i]->op == GRAPH_INPUT && !node_real(f->leaves[i]) ? args[node_words(f->leaves[i])[0]] : f->leaves[i];
        eas_spec at = spec_of_leaf(NULL, x);
        const dist_parts *parts = node_real(x) ? parts_of(x) : NULL;
        if (node_real(x) && solid(x) && spec_same(&at, &f->g->given[i]) && (!parts || parts->mesh == f->g->m))
            out[i] = node_ref(x);
        else {
            eas_node *want = NULL;
            st = eas_node_shard(x, f->g->m->id, &f->g->given[i], 1, &want);
            out[i] = want;
            if (want)
                todo[n++] = want;
        }
    }
    if (!st && n)
        st = eas_nodes_realize(n, todo, f->g->device, hooks);
    free(todo);
    return st;
}

static eas_status check_arguments(const function *f, int nin, eas_node *const *args)
{
    if (nin != f->nin)
        return base_fail(EAS_ERR_VALUE, "compiled function: %d arguments given, %d expected", nin, f->nin);
    for (int i = 0; i < nin; i++) {
        const eas_node *want = f->inputs[i], *have = args[i];
        bool same =
            want->dtype == have->dtype && want->rank == have->rank && !memcmp(node_shape(want), node_shape(have), sizeof(eas_dim) * want->rank);
        if (!same)
            return base_fail(EAS_ERR_VALUE, "compiled function: argument %d is %s %s, and was compiled for %s %s", i,
                             eas_dtype_name((eas_dtype)have->dtype), shape_text((char[128]){0}, 128, have->rank, node_shape(have)),
                             eas_dtype_name((eas_dtype)want->dtype), shape_text((char[128]){0}, 128, want->rank, node_shape(want)));
    }
    return EAS_OK;
}

static eas_status result_node(const function *f, int i, eas_buffer *b, eas_node **out)
{
    const eas_node *o = f->outs[i];
    eas_status st = node_new(GRAPH_LEAF, (eas_dtype)o->dtype, o->batch_dims, o->rank, node_shape(o), 0, NULL, 0, NULL, out);
    if (st)
        return st;
    (*out)->device = eas_buffer_device(b);
    if (parts_of_buffer(b))
        (*out)->flags |= NODE_SHARDED;
    atomic_store_explicit(&(*out)->buf, eas_buffer_retain(b), memory_order_release);
    node_hand_out(*out);
    return EAS_OK;
}

static eas_status program_run(void *p, int nin, eas_node *const *args, const uint8_t *donated, const eas_launch *hooks, eas_node **results)
{
    const function *f = p;
    eas_node **tensors = calloc((size_t)f->nleaves + 1, sizeof *tensors);
    eas_buffer **bufs = calloc((size_t)f->nouts + 1, sizeof *bufs);
    uint8_t *given = calloc((size_t)f->nleaves + 1, 1);
    int done = 0;
    eas_status st = tensors && bufs && given ? check_arguments(f, nin, args) : base_fail_oom((size_t)f->nleaves);
    if (!st)
        st = lay_out(f, args, hooks, tensors);
    for (int i = 0; i < f->nleaves && !st && donated; i++)
        given[i] = f->leaves[i]->op == GRAPH_INPUT && !node_real(f->leaves[i]) && donated[node_words(f->leaves[i])[0]];
    if (!st)
        st = go(f->g, tensors, f->numbers, donated ? given : NULL, hooks, bufs);
    for (; done < f->nouts && !st; done++)
        st = result_node(f, done, bufs[done], &results[done]);
    for (int i = 0; st && i + 1 < done; i++)
        eas_node_release(results[i]);
    for (int i = 0; i < f->nouts && bufs; i++)
        if (bufs[i])
            eas_buffer_release(bufs[i]);
    for (int i = 0; i < f->nleaves && tensors; i++)
        node_unref(tensors[i]);
    free(tensors);
    free(bufs);
    free(given);
    return st;
}

static bool in_parts(const eas_node *n) { return parts_of(n) != NULL; }

void dist_begin(void)
{
    static const exec_shards mine = {realize, program_new, program_run, function_free, in_parts};
    exec_sharded = &mine;
    shard_call_rule = call_result_rule;
}

/* ---- for explain.c ---- */

void dist_notes_of(int n, eas_node *const *nodes, pnotes *out, eas_status *st)
{
    const dist_mesh *m = NULL;
    pass_walk w;
    program *g = NULL;
    *st = partition_mesh(n, nodes, &m);
    if (*st || !m)
        return;
    exec_enter(NULL);
    *st = pass_walk_from(&w, n, nodes);
    if (!*st) {
        wish x = {.nleaves = (int)w.leaves.len,
                  .leaves = w.leaves.at,
                  .nnumbers = (int)w.numbers.len,
                  .numbers = w.numbers.at,
                  .nroots = n,
                  .roots = nodes};
        *st = make(m, &x, exec_device(&w, NULL), false, &g);
        pass_walk_clear(&w);
    }
    exec_leave();
    if (g) {
        *out = g->notes;
        g->notes = (pnotes){0};
        release(g);
    }
}

/* ---- for cost.c and auto.c ---- */

eas_status dist_local(const dist_mesh *m, int n, eas_node *const *nodes, const eas_spec *specs, dist_look look, void *ctx)
{
    pass_walk w;
    program *g = NULL;
    exec_enter(NULL);
    eas_status st = pass_walk_from(&w, n, nodes);
    if (!st) {
        wish x = {(int)w.leaves.len, (int)w.numbers.len, n, 0, w.leaves.at, w.numbers.at, nodes, NULL, specs, look, ctx};
        st = make(m, &x, exec_device(&w, NULL), false, &g);
        pass_walk_clear(&w);
    }
    exec_leave();
    release(g);
    return st;
}

eas_status dist_leaves(int n, eas_node *const *nodes, int *count, eas_node ***leaves, eas_spec **specs)
{
    pass_walk w;
    exec_enter(NULL);
    eas_status st = pass_walk_from(&w, n, nodes);
    if (!st) {
        *count = (int)w.leaves.len;
        *leaves = malloc(sizeof **leaves * (w.leaves.len + 1u));
        *specs = malloc(sizeof **specs * (w.leaves.len + 1u));
        st = *leaves && *specs ? EAS_OK : base_fail_oom(w.leaves.len);
        for (uint32_t i = 0; i < w.leaves.len && !st; i++) {
            (*leaves)[i] = w.leaves.at[i];
            (*specs)[i] = spec_of_leaf(NULL, w.leaves.at[i]);
        }
        pass_walk_clear(&w);
    }
    exec_leave();
    return st;
}
