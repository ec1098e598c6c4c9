/* node_call.c: nodes with several results: calls of kernels, functions of the host, loops, branches and
 * collectives. Such a node has no shape of its own; each result is a GRAPH_RESULT node that refers to it.
 */
#include "graph.h"

static eas_status results_extra(int nouts, const struct node_out *outs, node_extra **out)
{
    node_extra *e = calloc(1, sizeof *e);
    size_t dims = 0;
    for (int i = 0; i < nouts; i++)
        dims += (size_t)outs[i].rank;
    struct node_out *o = malloc(sizeof *o * (size_t)nouts + sizeof(eas_dim) * dims + 1);
    if (!e || !o) {
        free(e);
        free(o);
        return base_fail_oom(sizeof *e);
    }
    eas_dim *d = (eas_dim *)(o + nouts);
    for (int i = 0; i < nouts; i++) {
        o[i] = (struct node_out){outs[i].dtype, outs[i].rank, d};
        if (outs[i].rank)
            memcpy(d, outs[i].shape, sizeof *d * (size_t)outs[i].rank);
        d += outs[i].rank;
    }
    e->nouts = nouts;
    e->outs = o;
    e->launch.size = sizeof e->launch;
    *out = e;
    return EAS_OK;
}

eas_status node_extra_copy(const node_extra *from, node_extra **out)
{
    eas_status st = results_extra(from->nouts, from->outs, out);
    if (st)
        return st;
    node_extra *e = *out;
    if (from->order && !(e->order = malloc((size_t)from->nargs + 1))) {
        node_extra_free(e);
        return base_fail_oom((size_t)from->nargs);
    }
    if (from->order)
        memcpy(e->order, from->order, (size_t)from->nargs);
    if (from->begin && !(e->begin = malloc((size_t)from->nouts + 1))) {
        node_extra_free(e);
        return base_fail_oom((size_t)from->nouts);
    }
    if (from->begin)
        memcpy(e->begin, from->begin, (size_t)from->nouts);
    if (from->numbers && !(e->numbers = malloc(sizeof *e->numbers * (size_t)(from->nnumbers + 1)))) {
        node_extra_free(e);
        return base_fail_oom((size_t)from->nnumbers);
    }
    if (from->numbers)
        memcpy(e->numbers, from->numbers, sizeof *e->numbers * (size_t)from->nnumbers);
    e->share = call_share_retain(from->share);
    e->native = from->native;
    e->nnumbers = from->nnumbers;
    e->nargs = from->nargs;
    e->launch = from->launch;
    e->kernel = from->kernel ? eas_kernel_retain(from->kernel) : NULL;
    e->control = from->control;
    if (e->control)
        atomic_fetch_add(&e->control->refs, 1);
    return EAS_OK;
}

/* Does something in a loop or a branch lie on a mesh? */
static uint16_t holds_shards(const graph_control *c)
{
    unsigned flags = 0;
    for (int k = 0; c && k < (c->branch ? 2 : 1); k++)
        for (int i = 0; i < c->fn[k].n; i++)
            flags |= c->fn[k].outs[i]->flags;
    return (uint16_t)(flags & NODE_SHARDED);
}

/* Makes a node with several results, and one GRAPH_RESULT node for each of them. */
static eas_status with_results(uint16_t op, int nwords, const int64_t *words, int nin, eas_node *const *in,
                               const node_extra *what, const uint8_t *batch_dims, eas_node **results)
{
    eas_node *n = NULL;
    node_extra *e = NULL;
    eas_status st = node_extra_copy(what, &e);
    if (!st)
        st = node_new(op, EAS_I64, 0, 0, NULL, nwords, words, nin, in, &n);
    if (st) {
        node_extra_free(e);
        return st;
    }
    n->extra = e;
    n->flags |= holds_shards(e->control);
    for (int i = 0; i < what->nouts && !st; i++) {
        const struct node_out *o = &what->outs[i];
        int64_t word = i;
        st = node_new(GRAPH_RESULT, o->dtype, batch_dims ? batch_dims[i] : 0, o->rank, o->shape, 1, &word, 1,
                      &n, &results[i]);
        for (int k = i; st && k > 0;)
            node_unref(results[--k]);
    }
    node_unref(n);
    return st;
}

eas_status node_control(uint16_t op, int nin, eas_node *const *in, graph_control *c, int nouts,
                        const struct node_out *outs, const uint8_t *batch_dims, eas_node **results)
{
    node_extra e = {.nouts = nouts, .outs = (struct node_out *)(uintptr_t)outs, .control = c};
    return with_results(op, 0, NULL, nin, in, &e, batch_dims, results);
}

eas_status node_collective(int nwords, const int64_t *words, int n, eas_node *const *in, int64_t group,
                           eas_node **results)
{
    struct node_out *outs = calloc((size_t)n + 1, sizeof *outs);
    eas_dim *shapes = malloc(sizeof *shapes * (GRAPH_MAX_RANK + 1) * (size_t)(n + 1));
    eas_status st = outs && shapes ? EAS_OK : base_fail_oom((size_t)n);
    for (int i = 0; i < n && !st; i++) {
        eas_dim *shape = shapes + (GRAPH_MAX_RANK + 1) * i;
        const int more = words[COLL_KIND] == COLL_GATHER, less = words[COLL_KIND] == COLL_SCATTER;
        shape[0] = group;
        memcpy(shape + more, node_shape(in[i]) + less, sizeof *shape * (size_t)(in[i]->rank - less));
        outs[i] = (struct node_out){(eas_dtype)in[i]->dtype, in[i]->rank + more - less, shape};
    }
    node_extra e = {.nouts = n, .outs = outs};
    if (!st)
        st = with_results(GRAPH_COLLECTIVE, nwords, words, n, in, &e, NULL, results);
    free(outs);
    free(shapes);
    return st;
}

uint64_t node_call_key(const node_extra *e)
{
    uint64_t h =
        (uint64_t)(uintptr_t)e->kernel ^ (uint64_t)(uintptr_t)e->native ^ (uint64_t)e->launch.has_grid << 1;
    for (int i = 0; i < e->nnumbers; i++)
        h = (h ^ (uint64_t)e->numbers[i]) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < e->nouts && e->native; i++)
        h = (h ^ (uint64_t)e->outs[i].dtype) * 0x100000001b3u;
    for (int i = 0; i < 3 && e->launch.has_grid; i++)
        h = (h ^ (uint64_t)e->launch.grid[i]) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < e->nargs && e->order; i++)
        h = (h ^ (uint8_t)e->order[i]) * 0x100000001b3u;
    for (int i = 0; i < e->nouts && e->begin; i++)
        h = (h ^ (uint8_t)e->begin[i] ^ 0x100) * 0x100000001b3u;
    if (e->share)
        h = (h ^ e->share->hash) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 31;
}

eas_status eas_node_call(eas_kernel *k, int nin, eas_node *const *in, int nouts, const eas_node_type *outs,
                         int nparams, const int8_t *order, const int64_t grid[3], eas_node **results)
{
    NEED(nin <= 0 || in, EAS_ERR_HANDLE);
    NEED(nouts <= 0 || outs, EAS_ERR_HANDLE);
    NEED(nparams <= 0 || order, EAS_ERR_HANDLE);
    NEED(nouts <= 0 || results, EAS_ERR_HANDLE);
    return eas_node_call_begun(k, nin, in, nouts, outs, NULL, nparams, order, grid, results);
}

static eas_status check_begin(const eas_kernel *k, int nin, eas_node *const *in, int nouts,
                              const eas_node_type *outs, const int8_t *begin)
{
    for (int i = 0; begin && i < nouts; i++)
        if (begin[i] >= nin || (begin[i] >= 0 && in[begin[i]]->dtype != outs[i].dtype))
            return base_fail(EAS_ERR_VALUE,
                             "eager.call: output %d of kernel %s is to begin as input %d, which %s", i,
                             eas_ir_name(eas_kernel_ir(k)), begin[i],
                             begin[i] >= nin ? "is not there" : "has another dtype");
    return EAS_OK;
}

eas_status eas_node_call_begun(eas_kernel *k, int nin, eas_node *const *in, int nouts,
                               const eas_node_type *outs, const int8_t *begin, int nparams,
                               const int8_t *order, const int64_t grid[3], eas_node **results)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(nin <= 0 || in, EAS_ERR_HANDLE);
    NEED(nouts <= 0 || outs, EAS_ERR_HANDLE);
    NEED(nparams <= 0 || order, EAS_ERR_HANDLE);
    NEED(nouts <= 0 || results, EAS_ERR_HANDLE);
    if (nparams != eas_ir_param_count(eas_kernel_ir(k)))
        return base_fail(EAS_ERR_VALUE, "eager.call: kernel %s has %d parameters, %d are given",
                         eas_ir_name(eas_kernel_ir(k)), eas_ir_param_count(eas_kernel_ir(k)), nparams);
    eas_status bad = check_begin(k, nin, in, nouts, outs, begin);
    struct node_out *o = bad ? NULL : malloc(sizeof *o * (size_t)(nouts + 1));
    if (!o)
        return bad ? bad : base_fail_oom((size_t)nouts);
    for (int i = 0; i < nouts; i++)
        o[i] = (struct node_out){outs[i].dtype, outs[i].rank, outs[i].shape};
    node_extra e = {.kernel = k,
                    .nouts = nouts,
                    .nargs = nparams,
                    .outs = o,
                    .order = (int8_t *)(uintptr_t)order,
                    .begin = (int8_t *)(uintptr_t)begin};
    e.launch.size = sizeof e.launch;
    e.launch.has_grid = grid != NULL;
    if (grid)
        memcpy(e.launch.grid, grid, sizeof e.launch.grid);
    eas_status st = with_results(GRAPH_CALL, 0, NULL, nin, in, &e, NULL, results);
    for (int i = 0; i < nouts && !st; i++)
        node_hand_out(results[i]);
    free(o);
    return st;
}

eas_status node_native(const struct eas_native *fn, int nin, eas_node *const *in, int nouts,
                       const eas_node_type *outs, int nnumbers, const eas_dim *numbers, eas_node **results)
{
    struct node_out *o = malloc(sizeof *o * (size_t)(nouts + 1));
    if (!o)
        return base_fail_oom((size_t)nouts);
    for (int i = 0; i < nouts; i++)
        o[i] = (struct node_out){outs[i].dtype, outs[i].rank, outs[i].shape};
    node_extra e = {.native = fn,
                    .nnumbers = nnumbers,
                    .numbers = (eas_dim *)(uintptr_t)numbers,
                    .nouts = nouts,
                    .outs = o};
    e.launch.size = sizeof e.launch;
    eas_status st = with_results(GRAPH_CALL, 0, NULL, nin, in, &e, NULL, results);
    for (int i = 0; i < nouts && !st; i++)
        node_hand_out(results[i]);
    free(o);
    return st;
}
