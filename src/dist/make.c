/* make.c: a program from a recorded graph: partitioned, planned, and with what its leaves, numbers and
 * results are. */
#include "run.h"

void program_release(program *g)
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

eas_spec leaf_spec(const dist_mesh *m, const eas_node *n)
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
        g->given[i] = w->specs ? w->specs[i] : leaf_spec(p->m, n);
        for (int d = 0; d < g->given[i].rank; d++)
            g->given[i].dims[d].priority = 0; /* inside a partition it numbers mixed dims (mix.c) */
        spec_local_shape(p->m, &g->given[i], node_shape(n), shape);
        eas_node *own = partition_input(p, (eas_dtype)n->dtype, n->rank, shape);
        pentry *e = own ? partition_add(p, n) : NULL;
        if (e)
            e->v = (pvalue){own, g->given[i]};
    }
    return p->g.st;
}

/* The local node of a result: partial sums are reduced, and the layout is the one that was asked for or that
 * it has. */
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
    l->place = calloc((size_t)g->ndevices + 1, sizeof *l->place);
    if (!l->place)
        return base_fail_oom((size_t)g->ndevices);
    for (int64_t k = 0; k < g->ndevices && !st; k++) {
        mesh_coordinates(g->m, first + k, at);
        index = mesh_index(g->m, &l->axes, at);
        st = eas_buffer_new(g->device, sizeof index, &l->place[k]);
        if (!st)
            st =
                eas_device_copy(g->device, eas_buffer_address(l->place[k]), NULL, &index, sizeof index, NULL);
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

/* Constants that are not arguments of the run become part of the structure. */
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
    *p = (partition){
        .m = m, .notes = &g->notes, .sites = &g->sites, .times = 1, .any_layout = w->specs != NULL};
    eas_status st = add_leaves(p, g, w);
    if (!st)
        st = partition_collect(p, w->nroots, w->roots);
    if (!st)
        fix_numbers(p, w);
    if (!st) {
        partition_pin(p, w->chosen);
        st = partition_run(p);
    }
    for (int i = 0; i < w->nroots && !st; i++) {
        locals[i] = finished(p, w->roots[i], &g->outs[i].spec);
        st = p->g.st;
        if (!st)
            g->outs[i].bytes = (size_t)dim_product(locals[i]->rank, node_shape(locals[i])) *
                               eas_dtype_size((eas_dtype)locals[i]->dtype);
    }
    eas_site_set(0);
    return st;
}

eas_status program_make(const dist_mesh *m, const wish *w, eas_device *d, bool plan, program **out)
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
    eas_status st =
        g->outs && g->given ? partitioned(m, w, g, &p, locals) : base_fail_oom((size_t)w->nleaves);
    if (!st && w->look)
        st = w->look(w->ctx, w->nroots, locals);
    if (!st && plan)
        st = compile(g, &p, w, locals);
    partition_free(&p);
    free(locals);
    if (st) {
        program_release(g);
        g = NULL;
    }
    *out = g;
    return st;
}
