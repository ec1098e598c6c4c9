/* program.c: a compiled function: a plan, what its arguments must look like, and the sizes that its symbols
 * take from them. */
#include "exec.h"

#include <time.h>

struct eas_program {
    _Atomic uint32_t refs;
    plan *p;
    void *shards;       /* of a function over parts on a mesh, in place of p: exec_sharded knows it */
    int nin;
    eas_node **inputs;  /* placeholders: what arguments must look like */
    uint32_t nleaves;
    eas_node **leaves;  /* per leaf of the plan: a tensor that was captured, or a placeholder */
    int64_t *numbers;
    int nouts;
    uint32_t *out_at;   /* per result: which of the plan's */
    eas_node **outs;    /* what results look like: placeholders' shapes in symbols */
    int nsymbols;
    eas_dim *symbols;
    int nbounds;
    eas_dim *bounded; /* symbols that have a bound */
    int64_t *most;
};

static eas_status keep_symbols(eas_program *g)
{
    VEC(eas_dim) all = {0};
    for (int i = 0; i < g->nin; i++)
        for (int k = 0; k < g->inputs[i]->rank; k++) {
            eas_dim sym;
            int64_t scale, offset;
            bool known = !dim_linear(node_shape(g->inputs[i])[k], &sym, &scale, &offset);
            for (uint32_t j = 0; j < all.len && !known; j++)
                known = all.at[j] == sym;
            if (!known && !vec_push(&all, sym))
                return base_fail_oom(sizeof sym);
        }
    g->symbols = all.at;
    g->nsymbols = (int)all.len;
    return EAS_OK;
}

static eas_status fill_program(eas_program *g, const pass_walk *w, int nin, eas_node *const *inputs,
                               int nouts, eas_node *const *outs)
{
    g->nin = nin;
    g->inputs = calloc((size_t)nin + 1, sizeof *g->inputs);
    g->leaves = calloc(w->leaves.len + 1, sizeof *g->leaves);
    g->numbers = calloc(w->numbers.len + 1, sizeof *g->numbers);
    g->outs = calloc((size_t)nouts + 1, sizeof *g->outs);
    g->out_at = calloc((size_t)nouts + 1, sizeof *g->out_at);
    if (!g->inputs || !g->leaves || !g->numbers || !g->outs || !g->out_at)
        return base_fail_oom(sizeof *g);
    for (int i = 0; i < nin; i++)
        g->inputs[i] = node_ref(inputs[i]);
    for (uint32_t i = 0; i < w->leaves.len; i++)
        g->leaves[g->nleaves++] = node_ref(w->leaves.at[i]);
    for (uint32_t i = 0; i < w->numbers.len; i++)
        g->numbers[i] = node_words(w->numbers.at[i])[0];
    for (int i = 0; i < nouts; i++) {
        g->outs[g->nouts++] = node_ref(outs[i]);
        for (uint32_t k = 0; k < g->p->nouts; k++)
            if (g->p->outs[k].position == outs[i]->mark)
                g->out_at[i] = k;
    }
    return keep_symbols(g);
}

static eas_status keep_bounds(eas_program *g, int n, const eas_dim *symbols, const int64_t *most)
{
    g->bounded = malloc(sizeof *g->bounded * (size_t)(n + 1));
    g->most = malloc(sizeof *g->most * (size_t)(n + 1));
    if (!g->bounded || !g->most)
        return base_fail_oom((size_t)n);
    for (int i = 0; i < n; i++) {
        if (most[i] < 0 || !dim_is_expr(symbols[i]))
            return base_fail(EAS_ERR_VALUE, "compiled function: bound %d is no symbol with a size", i);
        g->bounded[g->nbounds] = symbols[i];
        g->most[g->nbounds++] = most[i];
    }
    return EAS_OK;
}

static eas_status plan_program(eas_program *g, const pass_walk *w, int nouts, eas_node *const *outs,
                               eas_device *d, int variant, plan **out)
{
    dim_bound(g->nbounds, g->bounded, g->most);
    eas_status st = plan_new(w, (uint32_t)nouts, outs, d, variant, out);
    dim_bound(0, NULL, NULL);
    return st;
}

eas_status eas_program_new(int nin, eas_node *const *inputs, int nouts, eas_node *const *outs,
                           eas_device *device, eas_program **out)
{
    return eas_program_new_bounded(nin, inputs, nouts, outs, device, 0, NULL, NULL, out);
}

eas_status eas_program_new_bounded(int nin, eas_node *const *inputs, int nouts, eas_node *const *outs,
                                   eas_device *device, int nbounds, const eas_dim *symbols,
                                   const int64_t *most, eas_program **out)
{
    NEED(nbounds <= 0 || symbols, EAS_ERR_HANDLE);
    NEED(nbounds <= 0 || most, EAS_ERR_HANDLE);
    if (nin && !inputs)
        return base_null(__func__, "inputs");
    if (nouts && !outs)
        return base_null(__func__, "outs");
    NEED(out, EAS_ERR_HANDLE);
    pass_walk w;
    eas_program *g = calloc(1, sizeof *g);
    if (!g)
        return base_fail_oom(sizeof *g);
    atomic_init(&g->refs, 1);
    eas_status st = keep_bounds(g, nbounds, symbols, most);
    if (exec_any_sharded(nouts, outs) || exec_any_sharded(nin, inputs)) {
        if (!st)
            st = exec_sharded->program_new(nin, inputs, nouts, outs, device, &g->shards);
        if (st) {
            eas_program_release(g);
            g = NULL;
        }
        *out = g;
        if (st || g->shards)
            return st;
    }
    exec_enter(NULL);
    if (!st)
        st = pass_walk_from(&w, nouts, outs);
    if (!st) {
        w.held.len = 0; /* symbolic nodes have no data to keep for those who hold them */
        st = plan_program(g, &w, nouts, outs, exec_device(&w, device), 0, &g->p);
        if (!st)
            st = fill_program(g, &w, nin, inputs, nouts, outs);
        pass_walk_clear(&w);
    }
    exec_leave();
    if (st) {
        eas_program_release(g);
        g = NULL;
    }
    *out = g;
    return st;
}

eas_program *eas_program_retain(eas_program *g)
{
    NEED(g, NULL);
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void eas_program_release(eas_program *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    for (int i = 0; i < g->nin && g->inputs; i++)
        node_unref(g->inputs[i]);
    for (uint32_t i = 0; i < g->nleaves; i++)
        node_unref(g->leaves[i]);
    for (int i = 0; i < g->nouts; i++)
        node_unref(g->outs[i]);
    plan_release(g->p);
    if (g->shards)
        exec_sharded->program_free(g->shards);
    free(g->inputs);
    free(g->leaves);
    free(g->numbers);
    free(g->outs);
    free(g->out_at);
    free(g->symbols);
    free(g->bounded);
    free(g->most);
    free(g);
}

/* Sizes of symbols from one argument's shape; two that disagree are an error. */
static eas_status solve_dim(const eas_program *g, int arg, int axis, eas_dim want, int64_t have,
                            int64_t *sizes)
{
    eas_dim sym;
    int64_t scale, offset;
    if (dim_known(want)) {
        if (want != have)
            return base_fail(
                EAS_ERR_VALUE,
                "compiled function: argument %d has size %lld along axis %d, and was compiled for %lld", arg,
                (long long)have, axis, (long long)want);
        return EAS_OK;
    }
    if (!dim_linear(want, &sym, &scale, &offset))
        return EAS_OK; /* checked when all symbols are known */
    if ((have - offset) % scale || (have - offset) / scale < 0)
        return base_fail(
            EAS_ERR_VALUE,
            "compiled function: argument %d has size %lld along axis %d, which does not fit its expression",
            arg, (long long)have, axis);
    int64_t v = (have - offset) / scale;
    for (int i = 0; i < g->nsymbols; i++)
        if (g->symbols[i] == sym) {
            if (sizes[i] >= 0 && sizes[i] != v) {
                char *name = NULL;
                eas_dim_text(sym, &name);
                eas_status st = base_fail(
                    EAS_ERR_VALUE,
                    "compiled function: dim \"%s\" is %lld in one argument and %lld in argument %d, axis %d",
                    name ? name : "?", (long long)sizes[i], (long long)v, arg, axis);
                eas_memory_free(name);
                return st;
            }
            sizes[i] = v;
        }
    return EAS_OK;
}

static eas_status solve(const eas_program *g, eas_node *const *args, int64_t *sizes)
{
    for (int i = 0; i < g->nsymbols; i++)
        sizes[i] = -1;
    for (int i = 0; i < g->nin; i++) {
        const eas_node *want = g->inputs[i], *have = args[i];
        if (want->dtype != have->dtype || want->rank != have->rank)
            return base_fail(
                EAS_ERR_TYPE,
                "compiled function: argument %d is %s of %d dims, and was compiled for %s of %d dims", i,
                eas_dtype_name((eas_dtype)have->dtype), have->rank, eas_dtype_name((eas_dtype)want->dtype),
                want->rank);
        for (int k = 0; k < want->rank; k++) {
            eas_status st = solve_dim(g, i, k, node_shape(want)[k], node_shape(have)[k], sizes);
            if (st)
                return st;
        }
    }
    for (int i = 0; i < g->nbounds; i++)
        for (int k = 0; k < g->nsymbols; k++)
            if (g->symbols[k] == g->bounded[i] && sizes[k] > g->most[i])
                return base_fail(EAS_ERR_VALUE,
                                 "compiled function: a size of %lld, and it was compiled for %lld at most",
                                 (long long)sizes[k], (long long)g->most[i]);
    return EAS_OK;
}

static eas_status result_of(const eas_program *g, int i, const int64_t *sizes, eas_buffer *buf,
                            eas_node **out)
{
    const eas_node *o = g->outs[i];
    int64_t shape[GRAPH_MAX_RANK];
    for (int k = 0; k < o->rank; k++) {
        eas_dim d = node_shape(o)[k];
        shape[k] = d;
        eas_status st = dim_known(d) ? EAS_OK : dim_eval(d, g->nsymbols, g->symbols, sizes, &shape[k]);
        if (st)
            return st;
    }
    eas_status st = eas_node_from_buffer(buf, (eas_dtype)o->dtype, o->rank, shape, 0, NULL, out);
    if (!st)
        (*out)->batch_dims = o->batch_dims;
    return st;
}

/* May leaf i's memory be written? It is if the library owns it and no other tensor or argument has it. */
static bool only_here(eas_node *const *leaves, uint32_t n, uint32_t i)
{
    const eas_buffer *buf = atomic_load_explicit(&leaves[i]->buf, memory_order_acquire);
    if (!buf->owned || __atomic_load_n(&buf->refs, __ATOMIC_ACQUIRE) != 1)
        return false;
    for (uint32_t k = 0; k < n; k++)
        if (k != i && atomic_load_explicit(&leaves[k]->buf, memory_order_acquire) == buf)
            return false;
    return true;
}

/* What a run needs besides the plan. Small programs keep it on the stack. */
enum { FEW_LEAVES = 16, FEW_OUTS = 8, FEW_SYMBOLS = 16 };
typedef struct run_memory {
    int64_t *sizes, sizes_few[FEW_SYMBOLS];
    eas_node **leaves, *leaves_few[FEW_LEAVES];
    uint8_t *given, given_few[FEW_LEAVES]; /* NULL: nothing is donated */
    eas_buffer **outs, *outs_few[FEW_OUTS];
} run_memory;

static bool run_memory_init(run_memory *m, const eas_program *g, bool donated)
{
    const bool few = g->nleaves <= FEW_LEAVES;
    m->sizes = g->nsymbols <= FEW_SYMBOLS ? m->sizes_few : malloc(sizeof *m->sizes * (size_t)g->nsymbols);
    m->leaves = few ? m->leaves_few : malloc(sizeof *m->leaves * g->nleaves);
    m->given = !donated ? NULL : few ? m->given_few : malloc(g->nleaves);
    m->outs = g->p->nouts <= FEW_OUTS ? m->outs_few : malloc(sizeof *m->outs * g->p->nouts);
    for (uint32_t i = 0; m->outs && i < g->p->nouts; i++)
        m->outs[i] = NULL;
    return m->sizes && m->leaves && (m->given || !donated) && m->outs;
}

static void run_memory_done(run_memory *m)
{
    if (m->sizes != m->sizes_few)
        free(m->sizes);
    if (m->leaves != m->leaves_few)
        free(m->leaves);
    if (m->given != m->given_few)
        free(m->given);
    if (m->outs != m->outs_few)
        free(m->outs);
}

/* Leaves are arguments or tensors of the program's own; donated arguments that nothing else has are given. */
static void run_leaves(run_memory *m, const eas_program *g, eas_node *const *args, const uint8_t *donated)
{
    for (uint32_t i = 0; i < g->nleaves; i++) {
        const bool input = g->leaves[i]->op == GRAPH_INPUT;
        const int64_t k = input ? node_words(g->leaves[i])[0] : 0;
        m->leaves[i] = input ? args[k] : g->leaves[i];
        if (m->given)
            m->given[i] = input && donated[k];
    }
    for (uint32_t i = 0; m->given && i < g->nleaves; i++)
        m->given[i] = m->given[i] && only_here(m->leaves, g->nleaves, i);
}

static eas_status run_program(eas_program *g, eas_node *const *args, const uint8_t *donated,
                              const eas_launch *hooks, eas_node **results)
{
    run_memory m;
    int done = 0;
    eas_status st =
        run_memory_init(&m, g, donated != NULL) ? solve(g, args, m.sizes) : base_fail_oom(g->nleaves);
    if (!st) {
        run_leaves(&m, g, args, donated);
        plan_run r = {.leaves = m.leaves,
                      .numbers = g->numbers,
                      .given = m.given,
                      .nsymbols = g->nsymbols,
                      .symbols = g->symbols,
                      .sizes = m.sizes,
                      .hooks = hooks};
        st = plan_go(g->p, &r, m.outs);
    }
    for (int i = 0; i < g->nouts && !st; i++) {
        st = result_of(g, i, m.sizes, m.outs[g->out_at[i]], &results[i]);
        done += !st;
    }
    for (int i = 0; st && i < done; i++)
        eas_node_release(results[i]);
    for (uint32_t i = 0; m.outs && i < g->p->nouts; i++)
        if (m.outs[i])
            eas_buffer_release(m.outs[i]);
    run_memory_done(&m);
    return st;
}

/* Placeholders stand for tensors in C order. */
static bool fits_as_is(const eas_node *n) { return node_real(n) && !(n->op == GRAPH_LEAF && n->nwords); }

static void drop_solid(eas_node **solid, int n)
{
    for (int i = 0; i < n && solid; i++)
        node_unref(solid[i]);
    free(solid);
}

/* The arguments with data and in C order; *out stays NULL where they are that already. */
static eas_status made_solid(eas_program *g, int nin, eas_node *const *args, const eas_launch *hooks,
                             eas_node ***out)
{
    bool ready = true;
    *out = NULL;
    if (nin != g->nin)
        return base_fail(EAS_ERR_VALUE, "compiled function: %d arguments given, %d expected", nin, g->nin);
    for (int i = 0; i < nin; i++) {
        ready &= fits_as_is(args[i]);
        if (node_real(args[i]) && args[i]->flags & NODE_SHARDED && exec_sharded->in_parts(args[i]))
            return base_fail(
                EAS_ERR_VALUE,
                "compiled function: argument %d lies in parts on a mesh, and was compiled for one that does not",
                i);
    }
    if (ready)
        return EAS_OK;
    eas_node **solid = calloc((size_t)nin + 1, sizeof *solid);
    eas_status st = solid ? EAS_OK : base_fail_oom((size_t)nin);
    for (int i = 0; i < nin && !st; i++) {
        if (fits_as_is(args[i]) || !node_real(args[i]))
            solid[i] = node_ref(args[i]);
        else
            st = node_new(GRAPH_ALIAS, (eas_dtype)args[i]->dtype, args[i]->batch_dims, args[i]->rank,
                          node_shape(args[i]), 0, NULL, 1, &args[i], &solid[i]);
    }
    if (!st)
        st = eas_nodes_realize(nin, solid, g->p->device, hooks);
    if (st)
        drop_solid(solid, nin);
    else
        *out = solid;
    return st;
}

/* ---- choosing by the clock ---- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The quickest of a few runs, after one that compiles. Negative: it failed. */
static double timed(eas_program *g, eas_node *const *args, const eas_launch *hooks)
{
    eas_node **results = calloc((size_t)g->nouts + 1, sizeof *results);
    double best = -1;
    for (int i = 0; i < 6 && results; i++) {
        double start = seconds_now();
        if (run_program(g, args, NULL, hooks, results)) {
            best = -1;
            break;
        }
        double took = seconds_now() - start;
        for (int k = 0; k < g->nouts; k++)
            eas_node_release(results[k]);
        if (i > 0 && (best < 0 || took < best))
            best = took;
    }
    free(results);
    return best;
}

static eas_status variant_of(eas_program *g, int variant, const eas_launch *hooks, plan **out)
{
    pass_walk w;
    exec_enter(hooks);
    eas_status st = pass_walk_from(&w, g->nouts, g->outs);
    if (!st) {
        w.held.len = 0;
        st = plan_program(g, &w, g->nouts, g->outs, g->p->device, variant, out);
        pass_walk_clear(&w);
    }
    exec_leave();
    return st;
}

eas_status eas_program_tune(eas_program *g, int nin, eas_node *const *args, const eas_launch *hooks)
{
    NEED(g, EAS_ERR_HANDLE);
    if (g->shards)
        return EAS_OK;
    plan *p[VARIANTS] = {g->p};
    double took[VARIANTS] = {-1, -1, -1, -1};
    eas_node **solid = NULL;
    eas_status st = made_solid(g, nin, args, hooks, &solid);
    for (int v = 0; v < VARIANTS && !st; v++) {
        st = v ? variant_of(g, v, hooks, &p[v]) : EAS_OK;
        bool other = !st;
        for (int k = 0; k < v && other; k++)
            other = !plan_same(p[k], p[v]);
        g->p = st ? p[0] : p[v];
        took[v] = other ? timed(g, solid ? solid : args, hooks) : -1;
    }
    int best = st ? 0 : eas_tune_choose(took, VARIANTS, 0.02);
    g->p = p[best < 0 ? 0 : best];
    for (int v = 0; v < VARIANTS; v++)
        if (p[v] && p[v] != g->p)
            plan_release(p[v]);
    drop_solid(solid, nin);
    return st;
}

eas_status eas_program_run(eas_program *g, int nin, eas_node *const *args, const uint8_t *donated,
                           const eas_launch *hooks, eas_node **results)
{
    NEED(g, EAS_ERR_HANDLE);
    if (g->shards)
        return exec_sharded->program_run(g->shards, nin, args, donated, hooks, results);
    eas_node **solid = NULL;
    eas_status st = made_solid(g, nin, args, hooks, &solid);
    if (!st)
        st = run_program(g, solid ? solid : args, donated, hooks, results);
    if (st == EAS_ERR_INDEX && !donated)
        blame_index(g->nouts, g->outs, g->p->device, nin, g->inputs, solid ? solid : args);
    drop_solid(solid, nin);
    return st;
}

eas_status eas_program_show(eas_program *g, const char *form, char **out)
{
    NEED(g, EAS_ERR_HANDLE);
    return eas_nodes_show(g->nouts, g->outs, form, out);
}
