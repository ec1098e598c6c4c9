/* eager_call.c: kernels of the user's as operations: a launch that is recorded. */
#include "py.h"

enum { MAX_RANK = 64 };
typedef struct outputs {
    int n;
    eas_node_type type[PY_MAX_PARAMS];
    eas_dim dims[PY_MAX_PARAMS][EAS_MAX_RANK];
} outputs;

static int read_output(PyObject *o, outputs *out) /* (shape, dtype) */
{
    eas_node_type *t = &out->type[out->n];
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != 2)
        return py_fail(PyExc_TypeError, "from_kernel: an output is (shape, dtype), got %R", o), 0;
    t->rank = dims_of(PyTuple_GET_ITEM(o, 0), "from_kernel: the shape of an output", out->dims[out->n],
                      EAS_MAX_RANK);
    t->shape = out->dims[out->n++];
    return t->rank >= 0 && eager_dtype(PyTuple_GET_ITEM(o, 1), "from_kernel: an output", &t->dtype);
}
static int read_grid(PyObject *o, int64_t grid[3])
{
    eas_dim dims[3];
    int n = dims_of(o, "from_kernel: grid", dims, 3);
    if (n < 1)
        return n < 0 ? 0 : (py_fail(PyExc_ValueError, "from_kernel: grid has 1 to 3 sizes"), 0);
    for (int i = 0; i < 3; i++)
        grid[i] = i < n ? dims[i] : 1;
    return 1;
}
/* ---- lanes of vmap ---- */

static void drop_kernel(PyObject *capsule)
{
    eas_kernel_release(PyCapsule_GetPointer(capsule, "eas_kernel"));
}

/* kernel_lanes(compiled, flags, axis): the kernel with lanes on that axis; flags: per parameter, does it have
 * one part for each lane? */
static PyObject *kernel_lanes(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    uint8_t batched[PY_MAX_PARAMS] = {0};
    eas_kernel *k;
    (void)m;
    if (nargs != 3 || !PyObject_TypeCheck(args[0], G.compiled) || !PyTuple_Check(args[1]) ||
        PyTuple_GET_SIZE(args[1]) > PY_MAX_PARAMS)
        return py_fail(PyExc_TypeError, "kernel_lanes(compiled, flags, axis)");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args[1]); i++)
        batched[i] = PyTuple_GET_ITEM(args[1], i) == Py_True;
    long axis = PyLong_AsLong(args[2]);
    if (axis == -1 && PyErr_Occurred())
        return NULL;
    eas_status st = eas_kernel_lanes(((Compiled *)args[0])->k, batched, (int)axis, &k);
    return st == EAS_OK ? PyCapsule_New(k, "eas_kernel", drop_kernel) : py_raise(st);
}

/* ---- calls ---- */

/* What outputs hold before the launch: None, "zero", or a tensor that they begin as a copy of, which becomes
 * an input. */
static int read_begin(PyObject *o, Py_ssize_t nouts, eas_node **in, int *nin, int8_t *begin)
{
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) != nouts)
        return py_fail(PyExc_TypeError, "kernel_call: one beginning for each output, got %R", o), 0;
    for (Py_ssize_t i = 0; i < nouts; i++) {
        PyObject *x = PyTuple_GET_ITEM(o, i);
        begin[i] = x == Py_None ? EAS_BEGIN_ANY : EAS_BEGIN_ZERO;
        if (x == Py_None || PyUnicode_Check(x))
            continue;
        if (*nin >= PY_MAX_PARAMS - 1 || *nin >= 127 ||
            !(in[*nin] = eager_arg(x, "from_kernel", "what an output begins as")))
            return PyErr_Occurred() ? 0 : (py_fail(PyExc_ValueError, "kernel_call: too many tensors"), 0);
        begin[i] = (int8_t)(*nin)++;
    }
    return 1;
}

/* ---- how a call can be cut ---- */

typedef struct part_rule { /* what eas_node_call_rule takes */
    eas_shard_rule r;
    eas_shard_tensor tensors[2 * PY_MAX_PARAMS];
    eas_dim sizes[EAS_MAX_FACTORS], numbers[PY_MAX_PARAMS], grid[3];
    uint8_t sums[PY_MAX_PARAMS];
} part_rule;

/* A list with a list of factors for each dim; None: nothing of it is cut. */
static int read_dims(PyObject *o, int rank, int nfactors, eas_shard_tensor *out)
{
    out->rank = rank;
    if (o == Py_None)
        return 1;
    if (!PyList_Check(o) || PyList_GET_SIZE(o) != rank)
        return py_fail(PyExc_ValueError, "from_kernel: a sharding rule of %R for a tensor of %d dims", o,
                       rank),
               0;
    for (int d = 0; d < rank; d++) {
        PyObject *list = PyList_GET_ITEM(o, d);
        int n = PyList_Check(list) ? (int)PyList_GET_SIZE(list) : EAS_DIM_FACTORS + 1;
        if (n > EAS_DIM_FACTORS)
            return py_fail(PyExc_ValueError, "from_kernel: a dim of more than %d factors", EAS_DIM_FACTORS),
                   0;
        out->dims[d].n = n;
        for (int i = 0; i < n; i++) {
            long f = PyLong_AsLong(PyList_GET_ITEM(list, i));
            if (f < 0 || f >= nfactors)
                return PyErr_Occurred()
                         ? 0
                         : (py_fail(PyExc_ValueError, "from_kernel: factor %ld of %d", f, nfactors), 0);
            out->dims[d].factors[i] = (uint16_t)f;
        }
    }
    return 1;
}

static int read_rule_factors(PyObject *factors, PyObject *symbols, part_rule *p)
{
    p->r.nfactors = (int)PyList_GET_SIZE(factors);
    if (p->r.nfactors > EAS_MAX_FACTORS || PyList_GET_SIZE(symbols) != p->r.nfactors)
        return py_fail(PyExc_ValueError, "from_kernel: a sharding rule has at most %d factors",
                       EAS_MAX_FACTORS),
               0;
    for (int i = 0; i < p->r.nfactors; i++) {
        long long size;
        int kind;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(factors, i), "Li", &size, &kind) ||
            !dim_of(PyList_GET_ITEM(symbols, i), "the size of a part", &p->sizes[i]))
            return 0;
        p->r.factors[i].size = size;
        p->r.factors[i].kind = (eas_factor_kind)kind;
    }
    return 1;
}

/* rule: (factors, symbols, dims of arguments, dims of outputs, numbers of arguments, grid, sums, lanes);
 * order: which input an argument is. begin: which output an input is the beginning of. */
static int tell_rule(PyObject *rule, eas_node *result, int nparams, const int8_t *order, int nin,
                     eas_node *const *in, int nouts, const eas_node_type *outs, const int8_t *begin)
{
    PyObject *factors, *symbols, *args, *results, *numbers, *grid, *sums;
    int lanes, ok = PyArg_ParseTuple(rule, "O!O!O!O!O!OO!p:rule", &PyList_Type, &factors, &PyList_Type,
                                     &symbols, &PyList_Type, &args, &PyList_Type, &results, &PyList_Type,
                                     &numbers, &grid, &PyList_Type, &sums, &lanes);
    part_rule *p = ok ? PyMem_Calloc(1, sizeof *p) : NULL;
    if (!p)
        return ok ? (PyErr_NoMemory(), 0) : 0;
    ok = read_rule_factors(factors, symbols, p);
    p->r.nin = nin;
    p->r.tensors = p->tensors;
    for (int i = 0; i < nin; i++) {
        p->numbers[i] = EAS_DIM_NONE;
        p->tensors[i].rank = eas_node_rank(in[i]);
    }
    for (int i = 0; ok && i < nparams; i++) {
        int at = order[i];
        if (at < 0)
            continue;
        ok = read_dims(PyList_GET_ITEM(args, i), eas_node_rank(in[at]), p->r.nfactors, &p->tensors[at]);
        if (ok && PyList_GET_ITEM(numbers, i) != Py_None)
            ok = dim_of(PyList_GET_ITEM(numbers, i), "a number of a part", &p->numbers[at]);
    }
    for (int i = 0; ok && i < nouts; i++) {
        ok = read_dims(PyList_GET_ITEM(results, i), outs[i].rank, p->r.nfactors, &p->tensors[nin + i]);
        p->sums[i] = PyList_GET_ITEM(sums, i) == Py_True;
        if (ok && begin && begin[i] >= 0)
            p->tensors[begin[i]] = p->tensors[nin + i];
    }
    ok = ok && (grid == Py_None || read_grid(grid, p->grid));
    if (ok) {
        eas_call_rule told = {.factors = &p->r,
                              .sizes = p->sizes,
                              .grid = grid == Py_None ? NULL : p->grid,
                              .numbers = p->numbers,
                              .sums = p->sums,
                              .lanes = lanes};
        eas_status st = eas_node_call_rule(result, &told);
        ok = st == EAS_OK ? 1 : (py_raise(st), 0);
    }
    PyMem_Free(p);
    return ok;
}

/* kernel_call(compiled, arguments, outputs, grid[, begin[, rule]]): arguments in the order of the kernel's
 * parameters: tensors, numbers, or the number of an output in a list of one. Gives the tensors of the
 * outputs. compiled may be what kernel_lanes gave. rule: how the call can be cut along axes of a mesh
 * (tell_rule), or None. */
static PyObject *kernel_call(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    bool lanes = nargs >= 4 && PyCapsule_IsValid(args[0], "eas_kernel");
    if (nargs < 4 || nargs > 6 || (!lanes && !PyObject_TypeCheck(args[0], G.compiled)) ||
        !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]))
        return py_fail(PyExc_TypeError, "kernel_call(compiled, arguments, outputs, grid[, begin[, rule]])");
    eas_kernel *k = lanes ? PyCapsule_GetPointer(args[0], "eas_kernel") : ((Compiled *)args[0])->k;
    Py_ssize_t n = PyTuple_GET_SIZE(args[1]), nouts = PyTuple_GET_SIZE(args[2]);
    eas_node *in[PY_MAX_PARAMS], *results[PY_MAX_PARAMS];
    int8_t order[PY_MAX_PARAMS], begin[128];
    int64_t grid[3];
    int nin = 0, ok = n <= PY_MAX_PARAMS && nouts < 128;
    outputs *out = ok ? PyMem_Calloc(1, sizeof *out) : NULL;
    if (!out)
        return ok ? PyErr_NoMemory() : py_fail(PyExc_ValueError, "from_kernel: too many parameters");
    for (Py_ssize_t i = 0; ok && i < nouts; i++)
        ok = read_output(PyTuple_GET_ITEM(args[2], i), out);
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *o = PyTuple_GET_ITEM(args[1], i);
        if (PyList_Check(o)) {
            order[i] = (int8_t)(-1 - PyLong_AsLong(PyList_GET_ITEM(o, 0)));
            continue;
        }
        order[i] = (int8_t)nin;
        ok = nin < 128 && (in[nin] = eager_arg(o, "from_kernel", "an argument")) != NULL;
        nin += ok;
    }
    PyObject *list = NULL;
    bool begun = nargs > 4 && args[4] != Py_None;
    ok = ok && (!begun || read_begin(args[4], nouts, in, &nin, begin));
    if (ok && (args[3] == Py_None || read_grid(args[3], grid))) {
        eas_site_set(site_here());
        eas_status st = eas_node_call_begun(k, nin, in, (int)nouts, out->type, begun ? begin : NULL, (int)n,
                                            order, args[3] == Py_None ? NULL : grid, results);
        int told = st != EAS_OK || nargs < 6 || args[5] == Py_None || nouts == 0 ||
                   tell_rule(args[5], results[0], (int)n, order, nin, in, (int)nouts, out->type,
                             begun ? begin : NULL);
        bool sharded = false;
        for (int i = 0; i < nin && st == EAS_OK; i++)
            sharded |= eas_node_is_sharded(in[i]) != 0;
        for (Py_ssize_t i = 0; i < nouts && told && sharded; i++)
            told = shard_follow(results[i], nin, in);
        list = eager_results(st, nouts, results);
        if (!told)
            Py_CLEAR(list);
    }
    for (int i = 0; i < nin; i++)
        eas_node_release(in[i]);
    PyMem_Free(out);
    return list;
}
/* native_call(name, tensors, outputs, numbers): a function of the host's (src/native/native.def). outputs:
 * (shape, dtype) each; numbers: ints or symbolic sizes. */
static PyObject *native_call(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    if (nargs != 4 || !PyUnicode_Check(args[0]) || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]) ||
        !PyTuple_Check(args[3]))
        return py_fail(PyExc_TypeError, "native_call(name, tensors, outputs, numbers)");
    Py_ssize_t n = PyTuple_GET_SIZE(args[1]), nouts = PyTuple_GET_SIZE(args[2]);
    eas_node *in[16], *results[16];
    eas_dim numbers[64];
    int nin = 0, ok = n <= 16 && nouts <= 16;
    int nnumbers = ok ? dims_of(args[3], "native_call: numbers", numbers, 64) : -1;
    outputs *out = nnumbers >= 0 ? PyMem_Calloc(1, sizeof *out) : NULL;
    if (!out)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_ValueError, "native_call: too many tensors");
    for (Py_ssize_t i = 0; ok && i < nouts; i++)
        ok = read_output(PyTuple_GET_ITEM(args[2], i), out);
    for (; ok && nin < n; nin += ok)
        ok = (in[nin] = eager_arg(PyTuple_GET_ITEM(args[1], nin), "linalg", "an argument")) != NULL;
    PyObject *list = NULL;
    if (ok) {
        eas_site_set(site_here());
        eas_status st = eas_node_native(PyUnicode_AsUTF8(args[0]), nin, in, (int)nouts, out->type, nnumbers,
                                        numbers, results);
        list = eager_results(st, nouts, results);
    }
    for (int i = 0; i < nin; i++)
        eas_node_release(in[i]);
    PyMem_Free(out);
    return list;
}
static PyObject *lapack_path(PyObject *m, PyObject *path)
{
    (void)m;
    const char *text = PyUnicode_Check(path) ? PyUnicode_AsUTF8(path) : NULL;
    if (!text)
        return PyErr_Occurred() ? NULL : py_fail(PyExc_TypeError, "lapack_path(path)");
    eas_lapack_path(text);
    return Py_NewRef(Py_None);
}
static PyObject *lapack_name(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    const char *name = eas_lapack_name();
    return name ? PyUnicode_FromString(name) : Py_NewRef(Py_None);
}
static PyMethodDef functions[] = {
    {"native_call", (PyCFunction)(void (*)(void))native_call, METH_FASTCALL,
     "native_call(name, tensors, outputs, numbers)"},
    {"lapack_path", lapack_path, METH_O, "lapack_path(path): a file that a LAPACK may be in"},
    {"lapack_name", lapack_name, METH_NOARGS, "lapack_name(): the file of the LAPACK in use, or None"},
    {"kernel_call", (PyCFunction)(void (*)(void))kernel_call, METH_FASTCALL,
     "kernel_call(compiled, arguments, outputs, grid[, begin])"},
    {"kernel_lanes", (PyCFunction)(void (*)(void))kernel_lanes, METH_FASTCALL,
     "kernel_lanes(compiled, flags, axis)"},
    {NULL, NULL, 0, NULL}};
int eager_call_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
