/* torch.c: torch tensors as arguments and as tensors.
 *
 * On the CPU they are read by torch's C functions (torch_direct.c); where those are not known, through the
 * table of C functions that torch's own type offers (DLPack's exchange API), which takes a fraction of what
 * its attributes do. What neither can tell (subclasses, sparse, fake or batched tensors, older versions) is
 * asked attribute by attribute, and so are the reasons for an error. torch is never imported here. */
#include "dlpack.h"

static struct {
    const dl_api *api;     /* NULL: torch is too old */
    getter requires_grad;  /* of its type's descriptor: no look-up, no call object */
    void *closure;
    PyObject *grad_enabled; /* torch.is_grad_enabled */
    bool learned;           /* torch_direct.c knows this torch */
    unsigned asked;         /* arguments that it was not known for */
} T;

/* ---- which objects ---- */
static PyObject *module(void) /* borrowed; NULL without an exception if torch was not imported */
{
    return PyDict_GetItemWithError(PyImport_GetModuleDict(), N.torch);
}
static PyTypeObject *type_of(PyObject *m, const char *name) /* new reference or NULL */
{
    PyObject *t = m ? PyObject_GetAttrString(m, name) : NULL;
    PyErr_Clear();
    if (t && PyType_Check(t))
        return (PyTypeObject *)t;
    Py_XDECREF(t);
    return NULL;
}
static void meet(PyObject *torch, PyTypeObject *type)
{
    PyObject *nn = PyObject_GetAttrString(torch, "nn"),
             *d = PyObject_GetAttr((PyObject *)type, N.requires_grad);
    if (d && Py_IS_TYPE(d, &PyGetSetDescr_Type)) { /* lives as long as the type */
        PyGetSetDef *def = ((PyGetSetDescrObject *)d)->d_getset;
        T.requires_grad = def->get;
        T.closure = def->closure;
    }
    T.grad_enabled = PyObject_GetAttrString(torch, "is_grad_enabled");
    T.api = dlpack_api(type);
    G.torch_parameter = type_of(nn, "Parameter");
    G.torch_tensor = (PyTypeObject *)Py_NewRef(type);
    PyErr_Clear();
    PyObject *threads = PyImport_ImportModule("eas.torch._threads"),
             *r = threads ? PyObject_CallMethod(threads, "share", "O", torch) : NULL;
    PyErr_Clear(); /* then each has its own threads */
    Py_XDECREF(r);
    Py_XDECREF(threads);
    Py_XDECREF(d);
    Py_XDECREF(nn);
}
bool torch_check(PyObject *o)
{
    if (torch_check_exact(o))
        return true;
    PyObject *torch = module();
    PyTypeObject *type =
        G.torch_tensor ? (PyTypeObject *)Py_NewRef(G.torch_tensor) : type_of(torch, "Tensor");
    if (!type)
        return PyErr_Clear(), false;
    bool yes = PyObject_TypeCheck(o, type);
    if (yes && !G.torch_tensor)
        meet(torch, type);
    Py_DECREF(type);
    return yes;
}

/* ---- asked by attributes ---- */
static int flag(PyObject *o, PyObject *attr, bool call)
{
    PyObject *r = call ? PyObject_CallMethodNoArgs(o, attr) : PyObject_GetAttr(o, attr);
    int v = r ? PyObject_IsTrue(r) : -1;
    Py_XDECREF(r);
    return v;
}
static int needs_grad(PyObject *o)
{
    if (!T.requires_grad || !torch_check_exact(o))
        return flag(o, N.requires_grad, false);
    PyObject *r = T.requires_grad(o, T.closure);
    Py_XDECREF(r);
    return r ? r == Py_True : -1;
}
/* Only where torch would record what happens to the tensor. */
static int recorded(PyObject *o)
{
    int needs = needs_grad(o);
    if (needs <= 0 || !T.grad_enabled)
        return needs;
    PyObject *r = PyObject_CallNoArgs(T.grad_enabled);
    int v = r ? PyObject_IsTrue(r) : -1;
    Py_XDECREF(r);
    return v;
}
static int refuse_grad(Bound *bd, PyObject *name)
{
    py_fail(
        PyExc_ValueError,
        "%U: argument '%U' requires grad, which a launch does not record: pass x.detach(), launch under torch.no_grad(), or make the kernel an "
        "operator with a backward: eas.torch.op",
        bd->kernel, name);
    return 0;
}
static int refuse_strides(Bound *bd, PyObject *o, PyObject *name)
{
    PyObject *s = PyObject_CallMethodNoArgs(o, N.stride), *shape = PyObject_GetAttr(o, N.shape);
    bd->strided = s && shape;
    if (s && shape)
        py_fail(
            PyExc_ValueError,
            "%U: argument '%U' must be C-contiguous; got strides %S in elements for a torch tensor of %S. Pass x.contiguous(), or "
            "eas.tensor(x).memory() with x.stride() as arguments",
            bd->kernel, name, s, shape);
    Py_XDECREF(s);
    Py_XDECREF(shape);
    return 0;
}
static int refuse_device(Bound *bd, PyObject *o, PyObject *name)
{
    PyObject *d = PyObject_GetAttr(o, N.device);
    if (d)
        py_fail(
            PyExc_ValueError,
            "%U: argument '%U' is a torch tensor on device '%S'; kernels reach torch's memory on cpu and mps: pass x.cpu()",
            bd->kernel, name, d);
    Py_XDECREF(d);
    return 0;
}
static int refuse_memory(Bound *bd, PyObject *o, PyObject *name)
{
    PyErr_Clear();
    py_fail(
        PyExc_ValueError,
        "%U: argument '%U' is a torch tensor (%s) without plain memory of its own: it is sparse, nested, fake, batched by vmap or functional. "
        "Under torch.compile, torch.export and torch.vmap call the kernel as an operator: eas.torch.op",
        bd->kernel, name, Py_TYPE(o)->tp_name);
    return 0;
}
static int torch_dtype(Bound *bd, PyObject *o, PyObject *name)
{
    PyObject *dtype = PyObject_GetAttr(o, N.dtype);
    int dt = dtype ? py_dtype_of_torch(NULL, dtype) : -1;
    if (dtype && dt < 0)
        bind_bad_dtype(bd, name, dtype);
    Py_XDECREF(dtype);
    return dt;
}
/* Torch's GPU: its memory is the device's, which eas.torch imports, or leaves to torch's own queue. */
static int bind_mps(Bound *bd, PyObject *o, int i, PyObject *name, eas_arg *out)
{
    int dt = torch_dtype(bd, o, name);
    if (dt < 0)
        return 0;
    if (bd->defer_mps) {
        PyObject *n = PyObject_CallMethodNoArgs(o, N.numel);
        *out = (eas_arg){.count = n ? PyLong_AsLongLong(n) : -1, .dtype = (uint8_t)dt, .is_buffer = 1};
        Py_XDECREF(n);
        bd->has_mps = true;
        return PyErr_Occurred() ? 0 : TAG_BUFFER | dt;
    }
    PyObject *m = PyImport_ImportModule("eas.torch"),
             *t = m ? PyObject_CallMethod(m, "from_torch", "O", o) : NULL;
    Py_XDECREF(m);
    if (!t)
        return 0;
    bind_keep(bd, t);
    return bind_tensor(bd, (Tensor *)t, i, name, out);
}
static bool nests(PyObject *o)
{
    PyObject *r = PyObject_GetAttrString(o, "is_nested");
    bool yes = r == Py_True;
    PyErr_Clear();
    Py_XDECREF(r);
    return yes;
}
static int bind_slowly(Bound *bd, PyObject *o, int i, PyObject *name, eas_arg *out)
{
    int cpu = flag(o, N.is_cpu, false), mps = cpu == 0 ? flag(o, N.is_mps, false) : 0;
    if (cpu < 0 || mps < 0)
        return 0;
    int grad = recorded(o);
    if (grad)
        return grad > 0 ? refuse_grad(bd, name) : 0;
    if (mps)
        return bind_mps(bd, o, i, name, out);
    if (!cpu)
        return refuse_device(bd, o, name);
    int dt = torch_dtype(bd, o, name);
    if (dt < 0)
        return 0;
    PyObject *layout = PyObject_GetAttrString(o, "layout"), *text = layout ? PyObject_Str(layout) : NULL;
    bool strided = text && !PyUnicode_CompareWithASCIIString(text, "torch.strided");
    Py_XDECREF(text);
    Py_XDECREF(layout);
    if (!strided)
        return refuse_memory(bd, o, name);
    int nested = nests(o), contiguous = nested ? -1 : flag(o, N.is_contiguous, true);
    if (contiguous <= 0)
        return contiguous < 0 ? refuse_memory(bd, o, name) : refuse_strides(bd, o, name);
    if (flag(o, N.is_neg, true) > 0)
        return py_fail(PyExc_ValueError, "%U: argument '%U' is negated lazily: pass x.resolve_neg()",
                       bd->kernel, name),
               0;
    PyObject *p = PyObject_CallMethodNoArgs(o, N.data_ptr),
             *n = p ? PyObject_CallMethodNoArgs(o, N.numel) : NULL;
    if (n)
        *out = (eas_arg){.v.data = PyLong_AsVoidPtr(p),
                         .count = PyLong_AsLongLong(n),
                         .dtype = (uint8_t)dt,
                         .is_buffer = 1,
                         .flags = EAS_ARG_HOST};
    Py_XDECREF(p);
    Py_XDECREF(n);
    if (PyErr_Occurred() || (out->count && !out->v.data))
        return refuse_memory(bd, o, name);
    return TAG_BUFFER | dt;
}

/* ---- through the table ---- */
/* of a tensor that torch made: nothing overflows */
static inline int64_t count_of(const dl_tensor *d, bool *contiguous)
{
    int64_t n = 1;
    *contiguous = true;
    for (int k = d->ndim - 1; k >= 0; k--) {
        if (d->shape[k] != 1 && d->strides && d->strides[k] != n)
            *contiguous = false;
        n *= d->shape[k];
    }
    *contiguous |= n == 0;
    return n;
}
/* Whether torch_direct is worth another call. Samples may not be had inside a transform of torch.func, so
 * later arguments ask again: ever less often, in case it is for another reason. */
static bool learn(void)
{
    if (T.learned)
        return false;
    unsigned n = ++T.asked;
    PyObject *torch = n & (n - 1) ? NULL : module();
    PyObject *m = torch ? PyImport_ImportModule("eas.torch._direct") : NULL,
             *r = m ? PyObject_CallMethod(m, "learn", "O", torch) : NULL;
    T.learned = r == Py_True;
    PyErr_Clear(); /* then the other ways stay */
    Py_XDECREF(r);
    Py_XDECREF(m);
    return T.learned;
}
static bool negated(PyObject *o, int dt) /* lazily: the imaginary part of a conjugate */
{
    int neg = eas_dtype_kind((eas_dtype)dt) == 'f' ? flag(o, N.is_neg, true) : 0;
    PyErr_Clear(); /* the slow way raises it */
    return neg != 0;
}
int bind_torch(Bound *bd, PyObject *o, int i, PyObject *name, eas_arg *out)
{
    dl_tensor d;
    bool contiguous;
    if (!torch_check_exact(o))
        return bind_slowly(bd, o, i, name, out);
    int tag = torch_direct(o, out);
    if (tag || (learn() && (tag = torch_direct(o, out))))
        return tag;
    if (!T.api || !T.api->view)
        return bind_slowly(bd, o, i, name, out);
    if (T.api->view(o, &d) < 0)
        return PyErr_Clear(), bind_slowly(bd, o, i, name, out);
    int dt = dlpack_dtype(d.dtype);
    int64_t n = count_of(&d, &contiguous);
    if (d.device.type != DL_CPU || dt < 0 || !contiguous || (!d.data && n) || recorded(o) || negated(o, dt))
        return bind_slowly(bd, o, i, name, out);
    out->v.data = (char *)d.data + d.byte_offset;
    out->count = n;
    out->dtype = (uint8_t)dt;
    out->is_buffer = 1;
    out->flags = EAS_ARG_HOST;
    return TAG_BUFFER | dt;
}

/* ---- both ways ---- */
static PyObject *by_method(PyObject *o)
{
    PyObject *f = PyObject_GetAttr(o, N.__dlpack__), *c = f ? PyObject_CallNoArgs(f) : NULL,
             *t = c ? tensor_from_dlpack(c, Py_None) : NULL;
    Py_XDECREF(c);
    Py_XDECREF(f);
    return t;
}
PyObject *torch_import(PyObject *o)
{
    dl_versioned *m = NULL;
    int cpu = flag(o, N.is_cpu, false), grad = cpu < 0 ? -1 : needs_grad(o),
        neg = grad < 0 ? -1 : flag(o, N.is_neg, true);
    if (neg < 0)
        return NULL;
    if (grad)
        return py_fail(
            PyExc_BufferError,
            "the torch tensor requires grad: pass x.detach(), or use eas.from_torch, which does that");
    if (neg)
        return py_fail(PyExc_BufferError, "the torch tensor is negated lazily: pass x.resolve_neg()");
    if (!T.api || !cpu)
        return by_method(o);
    return T.api->managed_from(o, &m) < 0 ? NULL : dlpack_take(m);
}
void torch_explain(PyObject *o)
{
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError))
        return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    int cpu = flag(o, N.is_cpu, false);
    PyErr_Clear();
    if (cpu <= 0)
        return PyErr_Restore(type, value, trace);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    py_fail(
        PyExc_BufferError,
        "the torch tensor (%s) has no plain memory to share: it is sparse, nested, quantized or fake, or stands for one inside torch.vmap or "
        "another transform, where "
        "kernels are called as operators: eas.torch.op",
        Py_TYPE(o)->tp_name);
}
PyObject *torch_export(PyObject *module_, PyObject *o)
{
    (void)module_;
    if (!tensor_check(o))
        return py_fail(PyExc_TypeError, "to_torch takes an eas.Tensor, got %s", Py_TYPE(o)->tp_name);
    void *out = NULL;
    PyObject *torch = module();
    if (!G.torch_tensor && torch) {
        PyTypeObject *type = type_of(torch, "Tensor");
        if (type)
            meet(torch, type);
        Py_XDECREF(type);
    }
    if (!T.api || ((Tensor *)o)->device != G.cpu || ((Tensor *)o)->arg.flags & EAS_ARG_READONLY)
        Py_RETURN_NONE; /* the caller has a longer way */
    dl_versioned *m = dlpack_give((Tensor *)o, false);
    return m && T.api->managed_to(m, &out) == 0 ? out : NULL;
}

/* ---- launches on torch's GPU ---- */
static PyObject *or_none(PyObject *o) { return o ? o : Py_None; }

PyObject *torch_launch(Compiled *ck, PyObject *const *objs, int n, const Options *o, const eas_launch *l)
{
    PyObject *grid = l->has_grid ? Py_BuildValue("(LLL)", (long long)l->grid[0], (long long)l->grid[1],
                                                 (long long)l->grid[2])
                                 : Py_NewRef(Py_None);
    PyObject *rt = grid ? runtime_args(ck->params, objs, n) : NULL;
    PyObject *kw = rt ? Py_BuildValue("{sOsOsOsOsOsOsO}", "grid", grid, "tptg", or_none(o->tptg), "shape",
                                      or_none(o->shape), "nthreads", or_none(o->nthreads), "sync",
                                      o->sync ? o->sync : Py_True, "stream", or_none(o->stream), "debug",
                                      l->debug ? Py_True : Py_False)
                      : NULL;
    PyObject *m = kw ? PyImport_ImportModule("eas.torch") : NULL,
             *f = m ? PyObject_GetAttrString(m, "_launch") : NULL;
    PyObject *pos = f ? PyTuple_Pack(2, (PyObject *)ck, rt) : NULL,
             *r = pos ? PyObject_Call(f, pos, kw) : NULL;
    Py_XDECREF(pos);
    Py_XDECREF(f);
    Py_XDECREF(m);
    Py_XDECREF(kw);
    Py_XDECREF(rt);
    Py_XDECREF(grid);
    return r;
}
