/* run.c: evaluating nodes on meshes. Programs are kept by the structure of the graph that they were made of
 * and by how its leaves lie. */
#include "run.h"

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
    eas_spec s = leaf_spec(m, n);
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
    program_release(kept[oldest]);
    memcpy(g->key, key, sizeof g->key);
    g->used = ++clock_now;
    kept[oldest] = g;
}

bool leaf_solid(const eas_node *n) { return !(n->op == GRAPH_LEAF && n->nwords); }

/* A copy in C order. */
static eas_status copy_leaf(eas_node *n, eas_device *d, const eas_launch *hooks, eas_node **out)
{
    eas_status st = node_new(GRAPH_ALIAS, (eas_dtype)n->dtype, n->batch_dims, n->rank, node_shape(n), 0, NULL,
                             1, &n, out);
    if (st)
        return st;
    st = exec_realize(1, out, d, hooks);
    if (st) {
        node_unref(*out);
        *out = NULL;
    }
    return st;
}

static eas_status realize_on(const dist_mesh *m, int n, eas_node *const *nodes, eas_device *device,
                             const eas_launch *hooks);

/* A tensor of another mesh, gathered. */
static eas_status whole_leaf(eas_node *n, const dist_parts *parts, eas_device *d, const eas_launch *hooks,
                             eas_node **out)
{
    bool here = parts_all_here(parts);
    eas_node *made = NULL;
    eas_status st = here ? eas_node_whole(n, hooks, &made)
                         : eas_node_shard(n, parts->mesh->id, &(eas_spec){.rank = n->rank}, 0, &made);
    if (!st && !here)
        st = realize_on(parts->mesh, 1, &made, d, hooks);
    *out = st ? NULL : node_ref(made);
    if (made)
        eas_node_release(made); /* the reference that is kept is the graph's own */
    return st;
}

/* Replaces leaves that are on another mesh or not in C order by copies (counted; NULL where there is none).
 * Clears the marks of the caller's walk. */
static eas_status make_solid(const dist_mesh *m, int n, eas_node **leaves, eas_device *d,
                             const eas_launch *hooks, eas_node **copies)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st; i++) {
        const dist_parts *parts = node_real(leaves[i]) ? parts_of(leaves[i]) : NULL;
        bool foreign = parts && parts->mesh != m;
        if (foreign || !leaf_solid(leaves[i])) {
            st = foreign ? whole_leaf(leaves[i], parts, d, hooks, &copies[i])
                         : copy_leaf(leaves[i], d, hooks, &copies[i]);
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

/* The numbers of a user's kernel decide how it can be cut, so they are part of the key. */
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

static eas_status program_for(const dist_mesh *m, pass_walk *w, int n, eas_node *const *nodes, eas_device *d,
                              program **out)
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
    wish x = wish_of(w, n, nodes);
    eas_status st = program_make(m, &x, d, true, out);
    if (!st)
        keep(*out, key);
    return st;
}

static eas_status realize_on(const dist_mesh *m, int n, eas_node *const *nodes, eas_device *device,
                             const eas_launch *hooks)
{
    pass_walk w;
    program *g = NULL;
    eas_status st = pass_walk_from(&w, n, nodes);
    if (st)
        return st;
    device = exec_device(&w, device);
    /* later walks reuse the memory of this one: what is needed is copied */
    size_t nleaves = w.leaves.len, nnumbers = w.numbers.len;
    eas_node **leaves = malloc(sizeof *leaves * (nleaves + 1)),
             **copies = calloc(nleaves + 1, sizeof *copies);
    int64_t *numbers = malloc(sizeof *numbers * (nnumbers + 1));
    eas_buffer **results = calloc((size_t)n + 1, sizeof *results);
    st = leaves && copies && numbers && results ? program_for(m, &w, n, nodes, device, &g)
                                                : base_fail_oom(nleaves);
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
            st = program_go(g, leaves, numbers, NULL, hooks, results);
            fork_hold();
        }
        if (!st)
            st = settle(n, nodes, results);
        program_release(g);
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

static bool in_parts(const eas_node *n) { return parts_of(n) != NULL; }

void dist_begin(void)
{
    static const exec_shards mine = {realize, compiled_new, compiled_run, compiled_free, in_parts};
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
        wish x = wish_of(&w, n, nodes);
        *st = program_make(m, &x, exec_device(&w, NULL), false, &g);
        pass_walk_clear(&w);
    }
    exec_leave();
    if (g) {
        *out = g->notes;
        g->notes = (pnotes){0};
        program_release(g);
    }
}

/* ---- for cost.c and auto.c ---- */

eas_status dist_local(const dist_mesh *m, int n, eas_node *const *nodes, const eas_spec *specs,
                      const pins *chosen, dist_look look, void *ctx)
{
    pass_walk w;
    program *g = NULL;
    exec_enter(NULL);
    eas_status st = pass_walk_from(&w, n, nodes);
    if (!st) {
        wish x = wish_of(&w, n, nodes);
        x.specs = specs, x.chosen = chosen, x.look = look, x.ctx = ctx;
        st = program_make(m, &x, exec_device(&w, NULL), false, &g);
        pass_walk_clear(&w);
    }
    exec_leave();
    program_release(g);
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
            (*specs)[i] = leaf_spec(NULL, w.leaves.at[i]);
        }
        pass_walk_clear(&w);
    }
    exec_leave();
    return st;
}
