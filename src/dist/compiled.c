/* compiled.c: compiled functions over parts: a program, and the tensors that the function captured. */
#include "cost.h"
#include "run.h"

typedef struct function {
    program *g;
    int nin, nleaves, nouts;
    eas_node **inputs, **leaves, **outs; /* placeholders; per tensor of the run: captured, or a placeholder */
    int64_t *numbers;
    eas_node **copies; /* of captured ones that are not in C order */
} function;

void compiled_free(void *p)
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
    program_release(f->g);
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
                return base_fail(
                    EAS_ERR_VALUE,
                    "compiled function: sizes of arguments are symbols, and a program over parts on a mesh is made for "
                    "known sizes: make a program for each size (eager.compile does)");
    return EAS_OK;
}

static eas_status fill_function(function *f, const dist_mesh *m, int nin, eas_node *const *inputs, int nouts,
                                eas_node *const *outs, const pins *chosen, eas_device *device)
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
    wish x = wish_of(&w, nouts, outs);
    x.chosen = chosen;
    if (!st)
        st = program_make(m, &x, device, true, &f->g);
    pass_walk_clear(&w);
    return st;
}

eas_status compiled_new(int nin, eas_node *const *inputs, int nouts, eas_node *const *outs,
                        eas_device *device, void **out)
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
    pins chosen = {0};
    st = auto_for_compiled(m, nouts, outs, &chosen);
    exec_enter(NULL);
    if (!st)
        st = fill_function(f, m, nin, inputs, nouts, outs, &chosen, device);
    exec_leave();
    vec_free(&chosen);
    if (st)
        compiled_free(f);
    else
        *out = f;
    return st;
}

/* The arguments in the layouts that the program was made for; out: counted. */
static eas_status lay_out(const function *f, eas_node *const *args, const eas_launch *hooks, eas_node **out)
{
    eas_status st = EAS_OK;
    int n = 0;
    eas_node **todo = calloc((size_t)f->nleaves + 1, sizeof *todo);
    if (!todo)
        return base_fail_oom((size_t)f->nleaves);
    for (int i = 0; i < f->nleaves && !st; i++) {
        eas_node *x = f->leaves[i]->op == GRAPH_INPUT && !node_real(f->leaves[i])
                        ? args[node_words(f->leaves[i])[0]]
                        : f->leaves[i];
        eas_spec at = leaf_spec(NULL, x);
        const dist_parts *parts = node_real(x) ? parts_of(x) : NULL;
        if (node_real(x) && leaf_solid(x) && spec_same(&at, &f->g->given[i]) &&
            (!parts || parts->mesh == f->g->m))
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
        bool same = want->dtype == have->dtype && want->rank == have->rank &&
                    !memcmp(node_shape(want), node_shape(have), sizeof(eas_dim) * want->rank);
        if (!same)
            return base_fail(EAS_ERR_VALUE,
                             "compiled function: argument %d is %s %s, and was compiled for %s %s", i,
                             eas_dtype_name((eas_dtype)have->dtype),
                             shape_text((char[128]){0}, 128, have->rank, node_shape(have)),
                             eas_dtype_name((eas_dtype)want->dtype),
                             shape_text((char[128]){0}, 128, want->rank, node_shape(want)));
    }
    return EAS_OK;
}

static eas_status result_node(const function *f, int i, eas_buffer *b, eas_node **out)
{
    const eas_node *o = f->outs[i];
    eas_status st = node_new(GRAPH_LEAF, (eas_dtype)o->dtype, o->batch_dims, o->rank, node_shape(o), 0, NULL,
                             0, NULL, out);
    if (st)
        return st;
    (*out)->device = eas_buffer_device(b);
    if (parts_of_buffer(b))
        (*out)->flags |= NODE_SHARDED;
    atomic_store_explicit(&(*out)->buf, eas_buffer_retain(b), memory_order_release);
    node_hand_out(*out);
    return EAS_OK;
}

eas_status compiled_run(void *p, int nin, eas_node *const *args, const uint8_t *donated,
                        const eas_launch *hooks, eas_node **results)
{
    const function *f = p;
    eas_node **tensors = calloc((size_t)f->nleaves + 1, sizeof *tensors);
    eas_buffer **bufs = calloc((size_t)f->nouts + 1, sizeof *bufs);
    uint8_t *given = calloc((size_t)f->nleaves + 1, 1);
    int done = 0;
    eas_status st =
        tensors && bufs && given ? check_arguments(f, nin, args) : base_fail_oom((size_t)f->nleaves);
    if (!st)
        st = lay_out(f, args, hooks, tensors);
    for (int i = 0; i < f->nleaves && !st && donated; i++)
        given[i] = f->leaves[i]->op == GRAPH_INPUT && !node_real(f->leaves[i]) &&
                   donated[node_words(f->leaves[i])[0]];
    if (!st)
        st = program_go(f->g, tensors, f->numbers, donated ? given : NULL, hooks, bufs);
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
