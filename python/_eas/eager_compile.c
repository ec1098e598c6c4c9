/* eager_compile.c: compiled functions. A call is looked up among the programs that were made before
 * (eager_key.c); on a miss the function runs once on placeholders. Captured tensors are inputs of the
 * program. */
#include "eager_compile.h"

#include <string.h>
#include <time.h>

PyObject *graph_break;
int eager_tracing;
PyTypeObject *compiled_fn_type;

/* ---- tracing ---- */
typedef struct tracing {
    struct tracing *outer;
    void **keys; /* nodes of captured tensors, and arrays */
    eas_node **inputs;
    int n;
} tracing;
static _Thread_local tracing *now;

eas_node *eager_stand_in(void *key)
{
    for (tracing *t = now; t; t = t->outer)
        for (int i = 0; i < t->n; i++)
            if (t->keys[i] == key)
                return eas_node_retain(t->inputs[i]);
    return NULL;
}

/* ---- a function on placeholders ---- */
static eas_node *placeholder(const leaf_sig *s, int index)
{
    eas_node *n;
    if (s->value && s->cut) {
        n = shard_input(index, (eas_dtype)s->dtype, s->rank, s->shape, s->batch_dims, s->device, s->value);
        if (n && !node_set_sharding(n, s->value)) {
            eas_node_release(n);
            return NULL;
        }
        return n;
    }
    eas_status st =
        eas_node_input(index, (eas_dtype)s->dtype, s->rank, s->shape, s->batch_dims, s->device, &n);
    if (st != EAS_OK)
        return py_raise(st), NULL;
    if (s->value && !node_set_sharding(n, s->value)) {
        eas_node_release(n);
        return NULL;
    }
    return n;
}
/* The arguments with placeholders in place of tensors. */
static PyObject *stand_ins(Entry *e, const leaves *l, eas_node **inputs)
{
    PyObject *list = PyList_New(l->n);
    int k = 0;
    for (Py_ssize_t i = 0; list && i < l->n; i++) {
        PyObject *o = NULL;
        if (!e->leaves[i].is_tensor)
            o = Py_NewRef(l->at[i]);
        else if ((inputs[k] = placeholder(&e->leaves[i], k))) {
            o = eager_wrap(eas_node_retain(inputs[k]));
            k++;
        }
        if (!o)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, o);
    }
    return list;
}
/* st: remembers what the function can change before it is called. */
static PyObject *call_with(CompiledFn *c, Entry *e, const leaves *l, PyObject *list, state *st)
{
    PyObject *const *at = ((PyListObject *)list)->ob_item;
    PyObject *both = l->treedef ? pytree_unflatten(l->treedef, at, PyList_GET_SIZE(list)) : NULL, *r = NULL;
    if ((!l->treedef || (both && state_add_arguments(st, l->both, both))) && state_begin(st, e->small))
        r = both ? PyObject_Call(c->fn, PyTuple_GET_ITEM(both, 0), PyTuple_GET_ITEM(both, 1))
                 : PyObject_Vectorcall(c->fn, at, (size_t)PyList_GET_SIZE(list), NULL);
    Py_XDECREF(both);
    return r;
}
static PyObject *call_plain(CompiledFn *c, const leaves *l)
{
    if (!l->both)
        return PyObject_Vectorcall(c->fn, l->at, (size_t)l->n, NULL);
    return PyObject_Call(c->fn, PyTuple_GET_ITEM(l->both, 0), PyTuple_GET_ITEM(l->both, 1));
}
static int which_input(eas_node *n, eas_node **inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (inputs[i] == n)
            return i;
    return -1;
}
/* The nodes that the program computes go to *results (counted); how many, or -1. */
static int split_outputs(Entry *e, PyObject *result, eas_node **inputs, eas_node ***results)
{
    PyObject *list;
    if (!pytree_flatten(result, NULL, &list, &e->out_treedef))
        return -1;
    int n = 0;
    e->nouts = (int)PyList_GET_SIZE(list);
    e->outs = PyMem_Calloc((size_t)e->nouts + 1, sizeof *e->outs);
    e->out_of = PyMem_Calloc((size_t)e->nouts + 1, sizeof *e->out_of);
    e->shardings = PyMem_Calloc((size_t)e->nouts + 1, sizeof *e->shardings);
    eas_node **outs = *results = PyMem_Calloc((size_t)e->nouts + 1, sizeof *outs);
    for (int i = 0; e->outs && e->out_of && e->shardings && outs && i < e->nouts; i++) {
        PyObject *o = PyList_GET_ITEM(list, i);
        bool symbolic = eager_check(o) && eas_node_is_symbolic(eager_node(o));
        int arg = symbolic ? which_input(eager_node(o), inputs, e->ninputs) : -1;
        e->out_of[i] = !symbolic ? CONSTANT : arg >= 0 ? arg : RESULT;
        if (!symbolic)
            e->outs[i] = Py_NewRef(o);
        else if (arg < 0) {
            e->shardings[i] = Py_XNewRef(node_sharding(eager_node(o)));
            outs[n++] = eas_node_retain(eager_node(o));
        }
    }
    Py_DECREF(list);
    e->nresults = n;
    return e->outs && e->out_of && e->shardings && outs ? n : (PyErr_NoMemory(), -1);
}
/* Handles of arguments that the function gave other tensors (x[0] = v): each is one more result. */
static int argument_handles(Entry *e, const leaves *l, PyObject *list, eas_node **inputs, PyObject *values)
{
    int k = 0;
    for (Py_ssize_t i = 0; i < l->n; i++) {
        PyObject *t = PyList_GET_ITEM(list, i);
        if (!e->leaves[i].is_tensor)
            continue;
        if (eager_node(t) != inputs[k]) {
            if (!eager_check(l->at[i]))
                return py_fail(
                           graph_break,
                           "the function assigns to elements of an array that is an argument, which a replay cannot do"),
                       0;
            if (!write_handle(e, k, t, values))
                return 0;
        }
        k++;
    }
    return 1;
}
/* The same for captured tensors. values == NULL: their handles get their own tensors back. */
static int captured_handles(Entry *e, PyObject *captured, void **keys, int k, PyObject *values)
{
    int ok = 1;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(captured); i++) {
        PyObject *list = PyList_GET_ITEM(captured, i);
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(list); j++) {
            PyObject *o = PyList_GET_ITEM(list, j);
            if (!key_is_tensor(o))
                continue;
            if (k < e->ninputs && eager_check(o) && keys[k] && keys[k] != eager_node(o)) {
                eas_node *new = ((Eager *)o)->n;
                PyObject *t = values ? eager_wrap(eas_node_retain(new)) : NULL;
                ok = ok && (!values || (t && write_handle(e, k, t, values)));
                Py_XDECREF(t);
                if (!values) {
                    ((Eager *)o)->n = eas_node_retain(keys[k]);
                    eas_node_release(new);
                }
            }
            k++;
        }
    }
    return ok;
}
/* Placeholders of captured tensors; keys: what they stand for. */
static int capture(Entry *e, PyObject *values, eas_node **inputs, void **keys, int k)
{
    int leaf = e->nargleaves;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++) {
        PyObject *list = PyList_GET_ITEM(values, i);
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(list); j++, leaf++) {
            PyObject *o = PyList_GET_ITEM(list, j);
            if (!e->leaves[leaf].is_tensor)
                continue;
            if (!(inputs[k] = placeholder(&e->leaves[leaf], k)))
                return 0;
            keys[k++] = eager_check(o) ? (void *)eager_node(o) : (void *)o;
            if (eager_check(o))
                eas_node_retain(eager_node(o)); /* the function might put another in its place */
        }
    }
    return 1;
}
static void let_go(Entry *e, PyObject *values, void **keys, int k)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++)
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(PyList_GET_ITEM(values, i)); j++) {
            PyObject *o = PyList_GET_ITEM(PyList_GET_ITEM(values, i), j);
            if (!key_is_tensor(o) || k >= e->ninputs || !keys[k])
                continue;
            if (eager_check(o))
                eas_node_release(keys[k]);
            k++;
        }
}
/* Of bucket="pow2": what each dynamic dim is at most. */
enum { BOUNDS = 64 };
typedef struct bounds {
    int n;
    eas_dim symbols[BOUNDS];
    int64_t most[BOUNDS];
} bounds;

static bounds bounds_of(const Entry *e)
{
    bounds b = {0};
    for (int i = 0; i < e->nargleaves; i++)
        for (int d = 0; e->leaves[i].bucket && d < e->leaves[i].rank && b.n < BOUNDS; d++) {
            eas_dim size = e->leaves[i].shape[d];
            int k = 0;
            while (k < b.n && b.symbols[k] != size)
                k++;
            if (size >= 0 || k < b.n)
                continue;
            b.symbols[b.n] = size;
            b.most[b.n++] = e->leaves[i].bucket[d];
        }
    return b;
}
/* The counter of random numbers is the last input of a program that draws some. */
static void note_draws(Entry *e, random_scope *random, eas_node **inputs)
{
    const eas_dim *sizes;
    if (!random->base)
        return;
    inputs[e->ninputs] = random->base;
    e->draws = random->count;
    e->levels = vmap_levels(&sizes);
    memcpy(e->lanes, sizes, sizeof *sizes * (size_t)e->levels);
}
/* (result, values of the writes ...) where there are writes. */
static PyObject *with_writes(Entry *e, PyObject *result, PyObject *values)
{
    if (!e->nwrites)
        return Py_NewRef(result);
    PyObject *r = PyTuple_New(1 + PyList_GET_SIZE(values));
    for (Py_ssize_t i = 0; r && i < PyTuple_GET_SIZE(r); i++)
        PyTuple_SET_ITEM(r, i, Py_NewRef(i ? PyList_GET_ITEM(values, i - 1) : result));
    return r;
}
/* The function on placeholders: its result and what it changed, everything put back. */
static PyObject *traced_result(CompiledFn *c, Entry *e, const leaves *l, PyObject *list, PyObject *captured,
                               eas_node **inputs, void **keys, int nargs, state *st)
{
    random_scope random = {.index = e->ninputs};
    tracing t = {now, keys + nargs, inputs + nargs, e->ninputs - nargs};
    PyObject *values = PyList_New(0), *r = NULL;
    sizes call_sizes;
    if (!values || !sizes_push(&call_sizes, e, l)) {
        Py_XDECREF(values);
        return NULL;
    }
    now = &t;
    eager_tracing++;
    random_push(&random);
    unsigned derivatives = eager_derivatives();
    outside asked;
    outside_push(&asked);
    PyObject *result = call_with(c, e, l, list, st);
    if (!outside_pop(&asked))
        Py_CLEAR(result);
    e->differentiates = eager_derivatives() != derivatives;
    random_pop(&random);
    sizes_pop(&call_sizes);
    int ok = result && state_changes(st, e, values) && argument_handles(e, l, list, inputs, values) &&
             captured_handles(e, captured, keys, nargs, values);
    if (!ok) {
        PyObject *type, *v, *tb;
        PyErr_Fetch(&type, &v, &tb);
        state_forget_guards(e, captured);
        PyErr_Restore(type, v, tb);
    }
    ok = state_restore(st) && ok;
    eager_tracing--;
    now = t.outer;
    note_draws(e, &random, inputs);
    if (ok)
        r = with_writes(e, result, values);
    Py_XDECREF(result);
    Py_XDECREF(values);
    return r;
}
static int run_traced(CompiledFn *c, Entry *e, const leaves *l, PyObject *values, state *st)
{
    size_t n = (size_t)e->ninputs + 2;
    eas_node **inputs = PyMem_Calloc(n, sizeof *inputs), **outs = NULL;
    void **keys = PyMem_Calloc(n, sizeof *keys);
    PyObject *list = inputs && keys ? stand_ins(e, l, inputs) : NULL, *result = NULL;
    int nargs = 0, ok = list != NULL, nouts = 0;
    while (nargs < e->ninputs && inputs && inputs[nargs])
        nargs++;
    ok = ok && capture(e, values, inputs, keys, nargs);
    if (ok)
        ok = (result = traced_result(c, e, l, list, values, inputs, keys, nargs, st)) != NULL;
    if (ok)
        nouts = split_outputs(e, result, inputs, &outs);
    ok = ok && nouts >= 0;
    if (keys)
        captured_handles(e, values, keys, nargs, NULL); /* after the results were read from them */
    if (ok && nouts) {
        eas_device *d = py_backend();
        eas_status status = EAS_OK;
        bounds b = bounds_of(e);
        if (d) {
            Py_BEGIN_ALLOW_THREADS; /* other threads have what it waits for, and need the GIL */
            status = eas_program_new_bounded(e->ninputs + (e->draws > 0), inputs, nouts, outs, d, b.n,
                                             b.symbols, b.most, &e->program);
            Py_END_ALLOW_THREADS;
        }
        ok = d && status == EAS_OK;
        if (status != EAS_OK)
            py_raise(status);
    }
    for (int i = 0; i < nouts; i++)
        eas_node_release(outs[i]);
    for (int i = 0; inputs && i < e->ninputs + (e->draws > 0); i++)
        eas_node_release(inputs[i]);
    if (keys)
        let_go(e, values, keys, nargs);
    PyMem_Free(outs);
    PyMem_Free(keys);
    PyMem_Free(inputs);
    Py_XDECREF(list);
    Py_XDECREF(result);
    return ok;
}

/* ---- running ---- */
static bool donate_leaf(CompiledFn *c, Py_ssize_t arg)
{
    for (Py_ssize_t i = 0; c->donate && i < PyTuple_GET_SIZE(c->donate); i++)
        if (PyLong_AsLong(PyTuple_GET_ITEM(c->donate, i)) == arg)
            return true;
    return false;
}
/* What the function gives back as it is stays, whatever was donated. */
static bool is_handed_back(const Entry *e, int input)
{
    for (int i = 0; i < e->nouts; i++)
        if (e->out_of[i] == input)
            return true;
    return false;
}
static int plan_donation(CompiledFn *c, Entry *e, const leaves *l)
{
    if (!c->donate)
        return 1;
    if (!(e->donated = PyMem_Calloc((size_t)e->ninputs + 1, 1)))
        return PyErr_NoMemory(), 0;
    int k = 0;
    for (int i = 0; i < e->nargleaves; i++)
        if (e->leaves[i].is_tensor) {
            e->donated[k] = donate_leaf(c, argument_of(l, i)) && !is_handed_back(e, k);
            e->any_donated |= e->donated[k++];
        }
    return 1;
}
/* The inputs of a run. All are counted for its time: without the GIL other threads may rebind handles and
 * names. */
typedef struct inputs {
    int n, room;
    eas_node **node;
    PyObject **who;
    uint8_t *donated;
    eas_node *node_few[2 * FAST_LEAVES];
    PyObject *who_few[2 * FAST_LEAVES];
    uint8_t donated_few[2 * FAST_LEAVES];
} inputs;

static int inputs_init(inputs *in, int room)
{
    bool few = room <= 2 * FAST_LEAVES;
    in->n = 0;
    in->room = room;
    in->node = few ? in->node_few : PyMem_New(eas_node *, (size_t)room);
    in->who = few ? in->who_few : PyMem_New(PyObject *, (size_t)room);
    in->donated = few ? in->donated_few : PyMem_New(uint8_t, (size_t)room);
    return in->node && in->who && in->donated ? 1 : (PyErr_NoMemory(), 0);
}
static void inputs_done(inputs *in)
{
    for (int i = 0; i < in->n; i++) {
        eas_node_release(in->node[i]);
        Py_DECREF(in->who[i]);
    }
    if (in->room <= 2 * FAST_LEAVES)
        return;
    PyMem_Free(in->node);
    PyMem_Free(in->who);
    PyMem_Free(in->donated);
}
/* donate: its memory may be taken, unless somebody else needs it. */
static int add_input(inputs *in, PyObject *o, bool donate)
{
    eas_node *n = eager_check(o) ? eager_node(o) : node_of_data(o, NULL, NULL);
    if (!n)
        return 0;
    in->donated[in->n] = donate && eager_check(o) && !eas_node_is_shared(n);
    if (eager_check(o))
        eas_node_retain(n);
    in->node[in->n] = n;
    in->who[in->n++] = Py_NewRef(o);
    return 1;
}
static int add_counter(inputs *in, int64_t draws)
{
    eas_node *n = random_counter(draws);
    if (!n)
        return 0;
    in->donated[in->n] = false;
    in->node[in->n] = n;
    in->who[in->n++] = Py_NewRef(Py_None);
    return 1;
}
static int gather_inputs(inputs *in, const Entry *e, const leaves *l, PyObject **env, int nenv)
{
    int ok = inputs_init(in, e->ninputs + (e->draws > 0));
    for (int i = 0; ok && i < e->nargleaves; i++)
        if (e->leaves[i].is_tensor)
            ok = add_input(in, l->at[i], e->any_donated && e->donated[in->n]);
    for (int i = 0; ok && i < nenv; i++)
        ok = add_input(in, env[i], false);
    return ok && (!e->draws || add_counter(in, e->draws));
}
/* Donated tensors are gone: their handles get nodes without data. */
static void disown(const inputs *in)
{
    for (int i = 0; i < in->n; i++) {
        eas_node *n = in->node[i], *gone;
        Eager *t = (Eager *)in->who[i];
        if (in->donated[i] && t->n == n &&
            eas_node_input(EAS_INPUT_DONATED, eas_node_dtype(n), eas_node_rank(n), eas_node_shape(n),
                           eas_node_batch_dims(n), eas_node_device(n), &gone) == EAS_OK) {
            t->n = gone;
            eas_node_release(n);
        }
    }
}
static bool is_rebound(const Entry *e, int input)
{
    for (int i = 0; i < e->nwrites; i++)
        if (e->writes[i].input == input)
            return true;
    return false;
}
/* An argument that is assigned to must not be there under another name, which the recording knew nothing of.
 * (Captured tensors are found by what they are, so other names do not matter.) */
static bool handles_alone(const Entry *e, const inputs *in)
{
    int nargs = 0;
    for (int i = 0; i < e->nargleaves; i++)
        nargs += e->leaves[i].is_tensor;
    for (int i = 0; i < e->nwrites; i++)
        for (int k = 0, w = e->writes[i].input; w >= 0 && k < in->n; k++)
            if (k != w && (k < nargs || w < nargs) && in->who[k] == in->who[w])
                return false;
    return true;
}
/* Makes the changes that the function makes; gives its result. Steals all. */
static PyObject *make_changes(const Entry *e, PyObject *all, const leaves *l, const inputs *in)
{
    PyObject *r = all ? Py_NewRef(PyTuple_GET_ITEM(all, 0)) : NULL;
    for (int i = 0; r && i < e->nwrites; i++) {
        const change *w = &e->writes[i];
        PyObject *v = PyTuple_GET_ITEM(all, i + 1);
        if (w->input >= 0) {
            Eager *t = (Eager *)in->who[w->input];
            eas_node *old = t->n;
            t->n = eas_node_retain(eager_node(v));
            eas_node_release(old);
        } else if (!write_apply(w, l->both, v))
            Py_CLEAR(r);
    }
    Py_XDECREF(all);
    return r;
}
static PyObject *result_of(const Entry *e, int i, eas_node **results, int *next, const inputs *in)
{
    int of = e->out_of[i];
    if (of == RESULT) {
        eas_node *n = results[(*next)++];
        if (!e->shardings[i] || node_set_sharding(n, e->shardings[i]))
            return eager_wrap(n);
        eas_node_release(n);
        return NULL;
    }
    if (of == CONSTANT && e->nwrites && eager_check(e->outs[i])) /* a handle that may be assigned to later */
        return eager_wrap(eas_node_retain(eager_node(e->outs[i])));
    if (of == CONSTANT)
        return Py_NewRef(e->outs[i]);
    return eager_check(in->who[of]) && !is_rebound(e, of) ? Py_NewRef(in->who[of])
                                                          : eager_wrap(eas_node_retain(in->node[of]));
}
static PyObject *collect(const Entry *e, eas_node **results, const inputs *in) /* takes the results */
{
    PyObject *few[FAST_LEAVES],
        **at = e->nouts <= FAST_LEAVES ? few : PyMem_New(PyObject *, (size_t)e->nouts);
    int next = 0, ok = at != NULL;
    for (int i = 0; at && i < e->nouts; i++) {
        at[i] = result_of(e, i, results, &next, in);
        ok = ok && at[i];
    }
    PyObject *r = ok ? pytree_unflatten(e->out_treedef, at, e->nouts) : NULL;
    for (int i = 0; at && i < e->nouts; i++)
        Py_XDECREF(at[i]);
    if (at != few)
        PyMem_Free(at);
    return r;
}
static eas_status go(Entry *e, const inputs *in, eas_node **results)
{
    hooks h;
    eas_launch launch = {0};
    eas_status st = EAS_OK;
    if (!e->program)
        return st;
    hooks_init(&launch, &h);
    if (e->tune)
        st = eas_program_tune(e->program, in->n, in->node, &launch);
    e->tune = false;
    if (st == EAS_OK)
        st = eas_program_run(e->program, in->n, in->node, e->any_donated ? in->donated : NULL, &launch,
                             results);
    later_check();
    return st;
}
static PyObject *run_program(CompiledFn *c, Entry *e, const leaves *l, PyObject **env, int nenv)
{
    inputs in;
    eas_node *few[FAST_LEAVES],
        **results = e->nresults <= FAST_LEAVES ? few : PyMem_New(eas_node *, (size_t)e->nresults);
    PyObject *r = NULL;
    if (!results)
        return PyErr_NoMemory();
    if (!gather_inputs(&in, e, l, env, nenv))
        r = NULL;
    else if (e->nwrites && !handles_alone(e, &in))
        r = call_plain(c, l);
    else {
        eas_status st = go(e, &in, results);
        r = st == EAS_OK ? collect(e, results, &in) : py_raise(st);
        if (r && e->nwrites)
            r = make_changes(e, r, l, &in);
        if (st == EAS_OK && e->any_donated)
            disown(&in);
    }
    inputs_done(&in);
    if (results != few)
        PyMem_Free(results);
    return r;
}

/* ---- looking up ---- */
/* Counted. Comparing runs Python code, so other threads may change the list meanwhile: an entry is kept while
 * it is looked at, and then looked up again. */
static Entry *find(CompiledFn *c, leaves *l, PyObject **env, int *nenv)
{
    for (int i = 0; i < c->n; i++) {
        Entry *e = c->entries[i];
        e->refs++;
        if (!entry_matches(e, l, env, nenv)) {
            entry_free(e);
            continue;
        }
        int at = 0;
        while (at < c->n && c->entries[at] != e)
            at++;
        if (at < c->n) {
            memmove(c->entries + 1, c->entries, (size_t)at * sizeof *c->entries);
            c->entries[0] = e;
        }
        return e;
    }
    return NULL;
}
/* ---- a miss ---- */
static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void insert(CompiledFn *c, Entry *e)
{
    if (c->n == c->cap)
        entry_free(c->entries[--c->n]);
    memmove(c->entries + 1, c->entries, (size_t)c->n * sizeof *c->entries);
    c->entries[0] = e;
    c->n++;
}
/* The captured tensors as they were when the function was traced. */
static void take_values(leaves *l, PyObject *values, PyObject **env, int *nenv)
{
    *nenv = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(values); i++)
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(PyList_GET_ITEM(values, i)); j++) {
            PyObject *o = PyList_GET_ITEM(PyList_GET_ITEM(values, i), j);
            if (key_is_tensor(o) && *nenv < ENV)
                env[(*nenv)++] = o;
        }
    Py_XSETREF(l->env, Py_NewRef(values));
}
/* A new entry for the call. A function that cannot be traced gets one that runs it as it is; *why: the
 * reason. */
static Entry *trace(CompiledFn *c, leaves *l, PyObject **values, PyObject **why)
{
    Entry *e = NULL;
    bool small = false, again;
    do { /* a second time where small arrays are read: their contents are then part of the key */
        state st = {0};
        Py_XSETREF(*values, PyList_New(0));
        e = *values ? entry_new(c, l, *values, &st, small) : NULL;
        again = false;
        if (e && !(run_traced(c, e, l, *values, &st) && plan_donation(c, e, l))) {
            bool broken = PyErr_ExceptionMatches(graph_break);
            again = broken && !small && state_has_small(&st);
            if (again || !broken || c->fullgraph) {
                entry_free(e);
                e = NULL;
            } else {
                PyObject *t, *tb;
                PyErr_Fetch(&t, why, &tb);
                PyErr_NormalizeException(&t, why, &tb);
                Py_XDECREF(t);
                Py_XDECREF(tb);
                e->plain = true;
            }
            if (again)
                PyErr_Clear();
        }
        state_end(&st);
        small = true;
    } while (again);
    return e;
}
static int log_miss(CompiledFn *c, const Entry *e, PyObject *cause, PyObject *why, double start)
{
    PyObject *reason = why ? PyObject_Str(why) : Py_NewRef(Py_None), *guards = reason ? sizes_text(e) : NULL;
    PyObject *row =
        !guards ? NULL
                : Py_BuildValue("{s:O,s:d,s:O,s:O,s:O}", "cause", cause, "ms", 1e3 * (seconds() - start),
                                "compiled", e->plain ? Py_False : Py_True, "reason", reason, "sizes", guards);
    Py_XDECREF(guards);
    int ok = row && PyList_Append(c->log, row) == 0;
    Py_XDECREF(row);
    Py_XDECREF(reason);
    return ok;
}
static Entry *make(CompiledFn *c, leaves *l, PyObject **env, int *nenv)
{
    PyObject *cause = entry_difference(c->n ? c->entries[0] : NULL, l), *values = NULL, *why = NULL;
    Entry *e = NULL;
    if (cause && c->max_compiles >= 0 && c->misses >= c->max_compiles)
        py_fail(PyExc_RuntimeError,
                "compile: %R was compiled %lld times, which max_compiles=%d allows; this call differs in %U",
                c->fn, (long long)c->misses, c->max_compiles, cause);
    else if (cause) {
        double start = seconds();
        e = trace(c, l, &values, &why);
        if (e && !log_miss(c, e, cause, why, start)) {
            entry_free(e);
            e = NULL;
        }
        if (e) {
            e->tune = c->autotune;
            c->misses++;
            e->refs++;
            insert(c, e);
            take_values(l, values, env, nenv);
        }
    }
    Py_XDECREF(why);
    Py_XDECREF(values);
    Py_XDECREF(cause);
    return e;
}
static int locked(CompiledFn *c, bool enter)
{
    PyObject *r = PyObject_CallMethod(c->lock, enter ? "acquire" : "release", NULL);
    Py_XDECREF(r);
    return r != NULL;
}
/* Does the tensor itself require a gradient, and not only what it was made of? */
static bool is_grad_leaf(eas_node *n)
{
    eas_node **at = NULL;
    int count = 0;
    bool is = eas_node_leaves(n, &at, &count) == EAS_OK && count == 1 && at[0] == n;
    eas_memory_free(at);
    return is;
}
static bool grad_is_on(void)
{
    int on = eas_grad_set_enabled(1);
    eas_grad_set_enabled(on);
    return on;
}
/* Placeholders, tensors of a derivative that is being taken and results of tensors that require a gradient go
 * through the function itself: what is recorded is part of something larger. */
static bool inline_it(const leaves *l)
{
    for (Py_ssize_t i = 0; i < l->n; i++) {
        eas_node *n = eager_check(l->at[i]) ? eager_node(l->at[i]) : NULL;
        if (n && (eas_node_is_taped(n) || (eager_tracing && eas_node_is_symbolic(n)) ||
                  (eas_node_is_traced(n) && !is_grad_leaf(n) && grad_is_on())))
            return true;
    }
    return false;
}
/* Somebody may call backward() on the result: there are arguments or captured tensors that require a
 * gradient. A function that takes derivatives itself is a step of training and has used them; the result of
 * any other is recorded by running it as it is. */
static bool wants_record(const Entry *e, const leaves *l, PyObject **env, int nenv)
{
    bool any = false;
    if (e->differentiates)
        return false;
    for (Py_ssize_t i = 0; i < l->n; i++)
        any |= eager_check(l->at[i]) && eas_node_is_traced(eager_node(l->at[i]));
    for (int i = 0; i < nenv; i++)
        any |= eager_check(env[i]) && eas_node_is_traced(eager_node(env[i]));
    return any && grad_is_on();
}
PyObject *compiled_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    CompiledFn *c = (CompiledFn *)self;
    leaves l;
    PyObject *env[ENV], *r = NULL;
    int nenv = 0;
    if (!leaves_of(&l, args, PyVectorcall_NARGS(nargsf), kwnames)) {
        leaves_done(&l);
        return NULL;
    }
    if (now || eager_nans || inline_it(&l)) {
        r = call_plain(c, &l);
        leaves_done(&l);
        return r;
    }
    Entry *e = find(c, &l, env, &nenv);
    if (e)
        c->hits++;
    else if (locked(c, true)) {
        if ((e = find(c, &l, env, &nenv))) /* another thread may have been here */
            c->hits++;
        else
            e = make(c, &l, env, &nenv);
        PyObject *t, *v, *tb;
        PyErr_Fetch(&t, &v, &tb);
        locked(c, false);
        PyErr_Restore(t, v, tb);
    }
    if (e && (e->plain || wants_record(e, &l, env, nenv)))
        r = call_plain(c, &l);
    else if (e)
        r = run_program(c, e, &l, env, nenv);
    entry_free(e);
    leaves_done(&l);
    return r;
}
