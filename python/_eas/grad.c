/* grad.c: derivatives of kernels: eas_ir_grad and eas_ir_jvp as Python sees them. eas/_grad.py and
 * eager/_kernel.py make kernels and operations of it. */
#include "py.h"

static const char *const roles[] = {"given",          "cotangent", "gradient", "both",  "tangent",
                                    "result_tangent", "tape",      "trips",    "local", "owner",
                                    "programs",       "band",      "length"};

static void drop(PyObject *capsule) { eas_grad_free(PyCapsule_GetPointer(capsule, "eas_grad")); }

static int read_numbers(PyObject *o, int *out)
{
    if (!PyTuple_Check(o) || PyTuple_GET_SIZE(o) > PY_MAX_PARAMS)
        return py_fail(PyExc_TypeError, "ir_grad: parameters are a tuple of their numbers, got %R", o), 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(o); i++) {
        out[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(o, i));
        if (PyErr_Occurred())
            return 0;
    }
    return 1;
}
static PyObject *param_tuple(const eas_ir *ir, const eas_grad *d, int i)
{
    eas_grad_param p = eas_grad_param_at(d, i);
    return Py_BuildValue("(ssiiNLOO)", eas_ir_param(ir, i).name, roles[p.role], p.param, p.loop,
                         py_dtype_object(p.dtype), (long long)p.elements, p.consumed ? Py_True : Py_False,
                         p.zeroed ? Py_True : Py_False);
}
static PyObject *grad_tuple(eas_grad *d) /* (IRModule, parameters, handle) */
{
    eas_ir *ir = eas_grad_ir(d);
    PyObject *handle = PyCapsule_New(d, "eas_grad", drop),
             *params = handle ? PyTuple_New(eas_ir_param_count(ir)) : NULL;
    if (!handle)
        eas_grad_free(d);
    for (int i = 0; params && i < eas_ir_param_count(ir); i++) {
        PyObject *t = param_tuple(ir, d, i);
        if (!t)
            Py_CLEAR(params);
        else
            PyTuple_SET_ITEM(params, i, t);
    }
    PyObject *module = params ? ir_wrap(ir) : NULL;
    if (!module) {
        Py_XDECREF(params);
        Py_XDECREF(handle);
        return NULL;
    }
    return Py_BuildValue("(NNN)", module, params, handle);
}
/* ir_grad(ir, wrt, of, forward, deterministic, fresh, band, max_trips) */
static PyObject *ir_grad(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *o, *wrt, *of;
    int forward, deterministic, fresh, band, wrts[PY_MAX_PARAMS], ofs[PY_MAX_PARAMS];
    long long max_trips;
    if (!PyArg_ParseTuple(args, "O!OOppppL:ir_grad", G.ir, &o, &wrt, &of, &forward, &deterministic, &fresh,
                          &band, &max_trips) ||
        !read_numbers(wrt, wrts) || !read_numbers(of, ofs))
        return NULL;
    eas_grad_options opt = {.nof = (int)PyTuple_GET_SIZE(of),
                            .nwrt = (int)PyTuple_GET_SIZE(wrt),
                            .of = ofs,
                            .wrt = wrts,
                            .deterministic = deterministic,
                            .fresh = fresh,
                            .band = band,
                            .max_trips = max_trips};
    eas_grad *d = NULL;
    eas_status st;
    eas_ir *ir = ((IR *)o)->ir;
    Py_BEGIN_ALLOW_THREADS st = (forward ? eas_ir_jvp : eas_ir_grad)(ir, &opt, &d);
    Py_END_ALLOW_THREADS return st == EAS_OK ? grad_tuple(d) : py_raise(st);
}
/* grad_trips(handle, loop, scalars, grid): the most trips of a loop in such a launch */
static PyObject *grad_trips(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *handle, *scalars;
    int loop;
    long long grid[3];
    int64_t values[PY_MAX_PARAMS] = {0}, out;
    if (!PyArg_ParseTuple(args, "OiO!(LLL):grad_trips", &handle, &loop, &PyTuple_Type, &scalars, &grid[0],
                          &grid[1], &grid[2]))
        return NULL;
    eas_grad *d = PyCapsule_GetPointer(handle, "eas_grad");
    if (!d || PyTuple_GET_SIZE(scalars) > PY_MAX_PARAMS)
        return d ? py_fail(PyExc_ValueError, "grad_trips: too many scalars") : NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(scalars); i++) {
        values[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(scalars, i));
        if (PyErr_Occurred())
            return NULL;
    }
    eas_status st = eas_grad_trips(d, loop, values, (int64_t[3]){grid[0], grid[1], grid[2]}, &out);
    return st == EAS_OK ? PyLong_FromLongLong(out) : py_raise(st);
}
static PyMethodDef functions[] = {
    {"ir_grad", ir_grad, METH_VARARGS,
     "ir_grad(ir, wrt, of, forward, deterministic, fresh, band, max_trips): (ir, parameters, handle)"},
    {"grad_trips", grad_trips, METH_VARARGS,
     "grad_trips(handle, loop, scalars, grid): the most trips of a loop"},
    {NULL, NULL, 0, NULL}};
int grad_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
