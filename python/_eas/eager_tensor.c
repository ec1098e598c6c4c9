/* eager_tensor.c: eager.Tensor, a handle of a node: Python's operators record operations; attributes tell
 * what is known without computing. What operations there are, and their methods, comes from the table
 * (eager_op.c). */
#include "py.h"

#include <structmember.h>

int eager_strict;

/* ---- making ---- */
enum { FREE = 256 };
static Eager *freelist[FREE];
static int nfree;

PyObject *eager_wrap(eas_node *n)
{
    Eager *t;
    if (nfree) {
        t = freelist[--nfree];
        PyObject_Init((PyObject *)t, G.eager);
    } else if (!(t = PyObject_New(Eager, G.eager))) {
        eas_node_release(n);
        return NULL;
    }
    t->n = n;
    t->extra = t->weakrefs = NULL;
    return (PyObject *)t;
}
static void eager_dealloc(PyObject *o)
{
    Eager *t = (Eager *)o;
    PyTypeObject *type = Py_TYPE(o);
    if (t->weakrefs)
        PyObject_ClearWeakRefs(o);
    eas_node_release(t->n);
    Py_XDECREF(t->extra);
    if (type == G.eager && nfree < FREE)
        freelist[nfree++] = t;
    else
        type->tp_free(o);
    Py_DECREF(type);
    later_check();
}
/* Chains that nobody reads are computed here, where the GIL can be let go of, before the library has to. */
enum { LONGEST = 1 << 16 };
PyObject *eager_result(eas_status st, eas_node *n)
{
    if (st != EAS_OK)
        return py_raise(st);
    bool now = eager_strict ? !eager_tracing : eas_node_depth(n) > LONGEST && !eas_node_is_symbolic(n);
    if (now && !eager_realize(1, &n)) {
        eas_node_release(n);
        return NULL;
    }
    if (eager_nans && !eager_no_nan(n)) {
        eas_node_release(n);
        return NULL;
    }
    return eager_wrap(n);
}
static PyObject *eager_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *names[] = {"value", "dtype", "device", "storage", "impl", "traced", NULL};
    PyObject *value = NULL, *dtype = Py_None, *device = Py_None, *storage = NULL, *impl = NULL;
    int traced = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|O$OOOOp:Tensor", names, &value, &dtype, &device, &storage,
                                     &impl, &traced))
        return NULL;
    if ((value != NULL) + (storage != NULL) + (impl != NULL) != 1)
        return py_fail(
            PyExc_TypeError,
            "Tensor takes one of: data (an array, a list, a number), storage= (memory to share), impl=");
    if (value && !PyUnicode_Check(value) && (override_wanted(value) || override_wanted(dtype))) {
        PyObject *name = PyUnicode_FromString("constant"), *all = PyTuple_Pack(3, value, dtype, device),
                 *r = name ? override_call(name, all, NULL) : NULL;
        Py_XDECREF(name);
        Py_XDECREF(all);
        return r;
    }
    eas_device *d = device == Py_None ? NULL : py_device(device);
    if (device != Py_None && !d)
        return NULL;
    eas_node *n = NULL;
    if (impl) {
        if (!(n = impl_node(impl)))
            return NULL;
        eas_node_retain(n);
    } else if (value)
        n = node_of_data(value, dtype, d);
    else {
        PyObject *t = tensor_check(storage) ? Py_NewRef(storage) : tensor_from_dlpack(storage, Py_None);
        n = t ? node_of_tensor((Tensor *)t) : NULL;
        Py_XDECREF(t);
    }
    if (!n)
        return NULL;
    if (traced)
        eas_node_set_traced(n, 1);
    if (type == G.eager)
        return eager_wrap(n);
    Eager *t = (Eager *)type->tp_alloc(type, 0);
    if (!t)
        eas_node_release(n);
    else
        t->n = n;
    return (PyObject *)t;
}

/* ---- operands ---- */
static eas_node *number(eas_dtype dt, bool weak, int64_t i, double f)
{
    eas_node *n;
    eas_status st = eas_node_number(dt, weak, i, f, &n);
    return st == EAS_OK ? n : (py_raise(st), NULL);
}
static eas_node *long_operand(PyObject *o)
{
    int over;
    int64_t v = PyLong_AsLongLongAndOverflow(o, &over);
    if (!over)
        return v == -1 && PyErr_Occurred() ? NULL : number(EAS_I64, true, v, 0);
    uint64_t u = over > 0 ? PyLong_AsUnsignedLongLong(o) : 0;
    if (over > 0 && !PyErr_Occurred())
        return number(EAS_U64, true, (int64_t)u, 0);
    PyErr_Clear();
    return py_fail(PyExc_OverflowError, "%S does not fit 64 bits", o), NULL;
}
static eas_node *scalar_operand(PyObject *o) /* NumPy's are as arrays of rank 0 */
{
    PyArray_Descr *d = PyArray_DescrFromScalar(o);
    int dt = d ? py_dtype_of_npy(d) : -1;
    if (d && dt < 0)
        py_fail(
            PyExc_TypeError,
            "eager: a number of %S; use bool, int8-int64, uint8-uint64, float16, bfloat16, float32 or float64",
            (PyObject *)d);
    Py_XDECREF(d);
    if (dt < 0)
        return NULL;
    bool real = eas_dtype_kind((eas_dtype)dt) == 'f';
    PyObject *v = real ? PyNumber_Float(o) : PyNumber_Long(o);
    eas_node *n = !v ? NULL
                     : number((eas_dtype)dt, false, real ? 0 : (int64_t)PyLong_AsUnsignedLongLongMask(v),
                              real ? PyFloat_AS_DOUBLE(v) : 0);
    Py_XDECREF(v);
    return n;
}
eas_node *eager_operand(PyObject *o)
{
    if (eager_check(o)) {
        eas_node *n = eager_tracing ? eager_stand_in(eager_node(o)) : NULL;
        return n ? n : PyErr_Occurred() ? NULL : eas_node_retain(eager_node(o));
    }
    if (PyFloat_CheckExact(o))
        return number(EAS_F64, true, 0, PyFloat_AS_DOUBLE(o));
    if (PyBool_Check(o))
        return number(EAS_BOOL, true, o == Py_True, 0);
    if (PyArray_IsScalar(o, Generic))
        return scalar_operand(o);
    if (PyLong_Check(o))
        return long_operand(o);
    if (PyFloat_Check(o))
        return number(EAS_F64, true, 0, PyFloat_AS_DOUBLE(o));
    if (!eager_convertible(o))
        return NULL;
    eas_node *n = eager_tracing ? eager_stand_in(o) : NULL;
    return n || PyErr_Occurred() ? n : node_of_data(o, NULL, NULL);
}
eas_node *eager_arg(PyObject *o, const char *fn, const char *arg)
{
    eas_node *n = eager_operand(o);
    if (!n && !PyErr_Occurred())
        py_fail(PyExc_TypeError, "eager.%s: %s must be a tensor, an array or a number, got %s", fn, arg,
                Py_TYPE(o)->tp_name);
    return n;
}
eas_node *eager_do(const char *op, int nin, eas_node **in, int nattr, const int64_t *attr)
{
    eas_node *out = NULL;
    int code = eas_tensor_op_find(op);
    bool whole = true;
    for (int i = 0; i < nin; i++)
        whole = whole && in[i];
    if (whole && code < 0)
        py_fail(PyExc_NotImplementedError, "eager: there is no operation '%s' in this build", op);
    else if (whole) {
        eas_site_set(site_here());
        eas_status st = eas_node_apply((eas_tensor_op)code, nin, in, nattr, attr, &out);
        if (st != EAS_OK)
            py_raise(st);
        bool follows = false;
        for (int i = 0; st == EAS_OK && i < nin; i++)
            follows = in[i] != out && (follows || eas_node_object(in[i]));
        if (follows && !shard_follow(out, nin, in)) {
            eas_node_release(out);
            out = NULL;
        }
    }
    for (int i = 0; i < nin; i++)
        eas_node_release(in[i]);
    return out;
}

/* ---- operators ---- */
/* clang-format off */
#define OPERATORS(X) \
    X(add) X(sub) X(mul) X(div) X(floordiv) X(mod) X(pow) X(matmul) X(bitwise_and) X(bitwise_or) X(bitwise_xor) X(bitwise_left_shift) X(bitwise_right_shift) \
    X(neg) X(abs) X(bitwise_invert) X(less) X(less_equal) X(equal) X(not_equal) X(greater) X(greater_equal)
/* clang-format on */
#define X(name) static int op_##name = -1;
OPERATORS(X)
#undef X

/* Borrowed where that is enough. */
static inline eas_node *take(PyObject *o, bool *owned)
{
    *owned = !(Py_IS_TYPE(o, G.eager) && !eager_tracing);
    return *owned ? eager_operand(o) : eager_node(o);
}
static PyObject *finish(int op, eas_node *const *in, PyObject *const *args, int n,
                        PyObject *(*make)(eas_status, eas_node *))
{
    eas_node *out;
    eas_site_set(site_here());
    eas_status st = eas_node_apply((eas_tensor_op)op, n, in, 0, NULL, &out);
    if (st == EAS_OK &&
        (eas_node_is_traced(out) || eas_node_object(in[0]) || (n > 1 && eas_node_object(in[1])))) {
        PyObject *all = PyTuple_New(n);
        for (int i = 0; all && i < n; i++)
            PyTuple_SET_ITEM(all, i, Py_NewRef(args[i]));
        int ok = all && shard_follow(out, n, in) &&
                 impl_record(&out, 1, op_object((eas_tensor_op)op), all, NULL, NULL);
        Py_XDECREF(all);
        if (!ok) {
            eas_node_release(out);
            return NULL;
        }
    }
    return make(st, out);
}
static PyObject *missing(const char *name)
{
    return py_fail(PyExc_NotImplementedError, "eager: there is no operation '%s' in this build", name);
}
/* A Python number that meets a tensor of its own kind or a wider one is in the tensor's dtype at once. NULL:
 * it is not that simple. */
static eas_node *number_like(PyObject *o, PyObject *tensor)
{
    eas_node *n;
    int over;
    if (!Py_IS_TYPE(tensor, G.eager) || eas_node_is_weak(eager_node(tensor)))
        return NULL;
    eas_dtype dt = eas_node_dtype(eager_node(tensor));
    bool real = eas_dtype_kind(dt) == 'f';
    if (PyFloat_CheckExact(o))
        return real && eas_dtype_holds(dt, 1, 0, PyFloat_AS_DOUBLE(o)) &&
                       eas_node_number(dt, 0, 0, PyFloat_AS_DOUBLE(o), &n) == EAS_OK
                 ? n
                 : NULL;
    if (!PyLong_CheckExact(o) || dt == EAS_BOOL)
        return NULL;
    int64_t v = PyLong_AsLongLongAndOverflow(o, &over);
    return !over && eas_dtype_holds(dt, 0, v, 0) && eas_node_number(dt, 0, v, (double)v, &n) == EAS_OK ? n
                                                                                                       : NULL;
}
static inline eas_node *take_beside(PyObject *o, PyObject *other, bool *owned)
{
    eas_node *n = PyFloat_CheckExact(o) || PyLong_CheckExact(o) ? number_like(o, other) : NULL;
    *owned = true;
    return n ? n : take(o, owned);
}
static PyObject *binary(int op, const char *name, PyObject *x, PyObject *y)
{
    bool own0, own1 = false;
    eas_node *in[2];
    PyObject *r = NULL;
    if (op < 0)
        return missing(name);
    if (Py_IS_TYPE(x, G.eager) && Py_IS_TYPE(y, G.eager) && !eager_tracing) { /* the way most calls go */
        in[0] = eager_node(x);
        in[1] = eager_node(y);
        return finish(op, in, (PyObject *[]){x, y}, 2, eager_result);
    }
    if (override_wanted(x) || override_wanted(y))
        return override_vector(op_object((eas_tensor_op)op), (PyObject *[]){x, y}, 2, NULL);
    in[0] = take_beside(x, y, &own0);
    in[1] = in[0] ? take_beside(y, x, &own1) : NULL;
    if (in[1])
        r = finish(op, in, (PyObject *[]){x, y}, 2, eager_result);
    else if (!PyErr_Occurred())
        r = Py_NewRef(Py_NotImplemented);
    if (own0)
        eas_node_release(in[0]);
    if (own1)
        eas_node_release(in[1]);
    return r;
}
static PyObject *unary(int op, const char *name, PyObject *x)
{
    bool own;
    if (op < 0)
        return missing(name);
    eas_node *n = take(x, &own);
    PyObject *r = n ? finish(op, &n, &x, 1, eager_result) : NULL;
    if (own)
        eas_node_release(n);
    return r;
}
#define BINARY(name) \
    static PyObject *do_##name(PyObject *x, PyObject *y) { return binary(op_##name, #name, x, y); }
#define UNARY(name) \
    static PyObject *do_##name(PyObject *x) { return unary(op_##name, #name, x); }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(floordiv)
BINARY(mod)
BINARY(matmul)
BINARY(bitwise_and)
BINARY(bitwise_or)
BINARY(bitwise_xor)
BINARY(bitwise_left_shift)
BINARY(bitwise_right_shift)
UNARY(neg)
UNARY(abs)
UNARY(bitwise_invert)
static PyObject *do_pow(PyObject *x, PyObject *y, PyObject *z)
{
    if (z != Py_None)
        return py_fail(PyExc_TypeError, "pow() of tensors takes two arguments");
    return binary(op_pow, "pow", x, y);
}
static PyObject *do_divmod(PyObject *x, PyObject *y)
{
    PyObject *q = do_floordiv(x, y), *r = q && q != Py_NotImplemented ? do_mod(x, y) : NULL;
    if (q == Py_NotImplemented)
        return q;
    PyObject *t = r ? PyTuple_Pack(2, q, r) : NULL;
    Py_XDECREF(q);
    Py_XDECREF(r);
    return t;
}
static PyObject *do_pos(PyObject *x) { return Py_NewRef(x); }
static PyObject *compare(PyObject *x, PyObject *y, int how)
{
    int ops[] = {[Py_LT] = op_less,      [Py_LE] = op_less_equal, [Py_EQ] = op_equal,
                 [Py_NE] = op_not_equal, [Py_GT] = op_greater,    [Py_GE] = op_greater_equal};
    if (y == Py_None)
        Py_RETURN_NOTIMPLEMENTED;
    return binary(ops[how], "a comparison", x, y);
}
static Py_hash_t hash(PyObject *o) { return _Py_HashPointer(o); }

/* ---- as a number ---- */
static int do_bool(PyObject *o)
{
    PyObject *v = eager_number(o, "the truth value");
    int r = v ? PyObject_IsTrue(v) : -1;
    Py_XDECREF(v);
    return r;
}
static PyObject *do_int(PyObject *o)
{
    PyObject *v = eager_number(o, "int()"), *r = v ? PyNumber_Long(v) : NULL;
    Py_XDECREF(v);
    return r;
}
static PyObject *do_float(PyObject *o)
{
    PyObject *v = eager_number(o, "float()"), *r = v ? PyNumber_Float(v) : NULL;
    Py_XDECREF(v);
    return r;
}
static PyObject *do_index(PyObject *o)
{
    eas_node *n = eager_node(o);
    char kind = eas_dtype_kind(eas_node_dtype(n));
    if (eas_node_rank(n) - eas_node_batch_dims(n) || (kind != 'i' && kind != 'u'))
        return py_fail(PyExc_TypeError, "only a tensor of integers with no dims is an index");
    return eager_number(o, "an index");
}

/* ---- attributes ---- */
static PyObject *logical_shape(eas_node *n)
{
    int bd = eas_node_batch_dims(n);
    return shape_object(eas_node_rank(n) - bd, eas_node_shape(n) + bd);
}
static PyObject *get_shape(PyObject *o, void *c)
{
    (void)c;
    return logical_shape(eager_node(o));
}
static PyObject *get_physical_shape(PyObject *o, void *c)
{
    (void)c;
    return shape_object(eas_node_rank(eager_node(o)), eas_node_shape(eager_node(o)));
}
static PyObject *get_dtype(PyObject *o, void *c)
{
    (void)c;
    return py_dtype_object(eas_node_dtype(eager_node(o)));
}
static PyObject *get_device(PyObject *o, void *c)
{
    (void)c;
    eas_device *d = eas_node_device(eager_node(o));
    if (!d && !(d = py_backend()))
        return NULL;
    return PyUnicode_FromString(eas_device_name(d));
}
static PyObject *get_batch_dims(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromLong(eas_node_batch_dims(eager_node(o)));
}
static int set_batch_dims(PyObject *o, PyObject *v, void *c)
{
    (void)c;
    PyObject *impl = impl_of(eager_node(o));
    int r = impl
              ? v ? PyObject_SetAttrString(impl, "batch_dims", v) : PyObject_DelAttrString(impl, "batch_dims")
              : -1;
    Py_XDECREF(impl);
    return r;
}
static PyObject *get_ndim(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromLong(eas_node_rank(eager_node(o)) - eas_node_batch_dims(eager_node(o)));
}
static PyObject *get_size(PyObject *o, void *c)
{
    (void)c;
    eas_node *n = eager_node(o);
    eas_dim d = 1;
    for (int i = eas_node_batch_dims(n); i < eas_node_rank(n); i++) {
        eas_status st = eas_dim_apply(EAS_DIM_MUL, d, eas_node_shape(n)[i], &d);
        if (st != EAS_OK)
            return py_raise(st);
    }
    return d >= 0 ? PyLong_FromLongLong(d) : dim_object(d);
}
static PyObject *get_itemsize(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromSize_t(eas_dtype_size(eas_node_dtype(eager_node(o))));
}
static PyObject *get_nbytes(PyObject *o, void *c)
{
    PyObject *n = get_size(o, c), *b = n ? get_itemsize(o, c) : NULL, *r = b ? PyNumber_Multiply(n, b) : NULL;
    Py_XDECREF(n);
    Py_XDECREF(b);
    return r;
}
static PyObject *get_real(PyObject *o, void *c)
{
    (void)c;
    return PyBool_FromLong(eas_node_is_real(eager_node(o)));
}
static PyObject *get_impl(PyObject *o, void *c)
{
    (void)c;
    return impl_of(eager_node(o));
}
static int set_impl(PyObject *o, PyObject *v, void *c)
{
    (void)c;
    eas_node *n = v ? impl_node(v) : NULL;
    if (!n)
        return v ? -1 : (py_fail(PyExc_AttributeError, "a tensor has an _impl"), -1);
    eas_node *old = ((Eager *)o)->n;
    ((Eager *)o)->n = eas_node_retain(n);
    eas_node_release(old);
    return 0;
}
static PyObject *get_storage(PyObject *o, void *c)
{
    (void)c;
    if (!eas_node_is_real(eager_node(o)))
        Py_RETURN_NONE;
    return node_storage(eager_node(o));
}
static PyObject *get_value(PyObject *o, void *c)
{
    (void)c;
    if (eas_node_is_real(eager_node(o)))
        Py_RETURN_NONE;
    return impl_of(eager_node(o));
}
static PyObject *get_traced(PyObject *o, void *c)
{
    (void)c;
    return PyBool_FromLong(eas_node_is_traced(eager_node(o)));
}
static int set_traced(PyObject *o, PyObject *v, void *c)
{
    (void)c;
    int yes = v ? PyObject_IsTrue(v) : 0;
    if (yes >= 0)
        eas_node_set_traced(eager_node(o), yes);
    return yes < 0 ? -1 : 0;
}
static PyObject *get_sharding(PyObject *o, void *c)
{
    (void)c;
    PyObject *s = node_sharding(eager_node(o));
    return Py_NewRef(s ? s : Py_None);
}
static int set_sharding(PyObject *o, PyObject *v, void *c)
{
    (void)c;
    return node_set_sharding(eager_node(o), v == Py_None ? NULL : v) ? 0 : -1;
}
static PyObject *get_extra(PyObject *o, void *name)
{
    PyObject *d = ((Eager *)o)->extra, *v = d ? PyDict_GetItemString(d, name) : NULL;
    return Py_NewRef(v ? v : Py_None);
}
static int set_extra(PyObject *o, PyObject *v, void *name)
{
    Eager *t = (Eager *)o;
    if (!t->extra && !(t->extra = PyDict_New()))
        return -1;
    return PyDict_SetItemString(t->extra, name, v ? v : Py_None);
}
static PyObject *get_op_kwargs(PyObject *o, void *c)
{
    (void)c;
    PyObject *d = ((Eager *)o)->extra, *set = d ? PyDict_GetItemString(d, "use_buffer_ops") : NULL;
    if (set)
        return Py_BuildValue("{s:O}", "use_buffer_ops", set);
    PyObject *impl = impl_of(eager_node(o)),
             *refs = impl ? PyObject_GetAttrString(impl, "output_refs") : NULL;
    PyObject *kwargs = refs && refs != Py_None ? PyObject_GetAttrString(refs, "op_kwargs") : NULL, *r = NULL;
    if (kwargs)
        r = PyDict_Copy(kwargs);
    else if (refs == Py_None)
        r = PyDict_New();
    Py_XDECREF(kwargs);
    Py_XDECREF(refs);
    Py_XDECREF(impl);
    return r;
}
static PyObject *get_transposed(PyObject *o, void *c)
{
    (void)c;
    eas_node *n = eas_node_retain(eager_node(o));
    int rank = eas_node_rank(n) - eas_node_batch_dims(n);
    int64_t attr[64] = {rank};
    for (int i = 0; i < rank; i++)
        attr[1 + i] = rank - 1 - i;
    n = eager_do("permute", 1, &n, rank + 1, attr);
    return n ? eager_result(EAS_OK, n) : NULL;
}
static PyObject *get_matrix_transposed(PyObject *o, void *c)
{
    (void)c;
    eas_node *n = eas_node_retain(eager_node(o));
    int rank = eas_node_rank(n) - eas_node_batch_dims(n);
    int64_t attr[64] = {rank};
    if (rank < 2) {
        eas_node_release(n);
        return py_fail(PyExc_ValueError, "mT: a tensor of at least 2 dims is wanted, this one has %d", rank);
    }
    for (int i = 0; i < rank; i++)
        attr[1 + i] = i < rank - 2 ? i : 2 * rank - 3 - i;
    n = eager_do("permute", 1, &n, rank + 1, attr);
    return n ? eager_result(EAS_OK, n) : NULL;
}
static PyGetSetDef getset[] = {
    {"shape", get_shape, NULL, "sizes of the dims, those of vmap hidden", NULL},
    {"local_shape", get_shape, NULL, "sizes of the dims of this process's part", NULL},
    {"global_shape", get_shape, NULL, "sizes of the dims of the whole", NULL},
    {"physical_global_shape", get_physical_shape, NULL, "sizes of all dims, those of vmap in front", NULL},
    {"physical_shape", get_physical_shape, NULL, "sizes of all dims, those of vmap in front", NULL},
    {"dtype", get_dtype, NULL, "element type", NULL},
    {"device", get_device, NULL, "\"cpu\", \"ref\", ...", NULL},
    {"batch_dims", get_batch_dims, set_batch_dims, "how many of the leading physical dims are vmap's", NULL},
    {"ndim", get_ndim, NULL, "number of dims", NULL},
    {"rank", get_ndim, NULL, "number of dims", NULL},
    {"size", get_size, NULL, "number of elements", NULL},
    {"itemsize", get_itemsize, NULL, "bytes of an element", NULL},
    {"nbytes", get_nbytes, NULL, "bytes of all elements", NULL},
    {"real", get_real, NULL, "has it been evaluated?", NULL},
    {"storage", get_storage, NULL, "the memory, an eas.Tensor; None before it is evaluated", NULL},
    {"T", get_transposed, NULL, "axes in reverse order", NULL},
    {"mT", get_matrix_transposed, NULL, "the last two axes swapped", NULL},
    {"at", eager_at, NULL, "x.at[key].set(v), .add(v), .mul(v), .min(v), .max(v), .get(): a new tensor",
     NULL},
    {"_impl", get_impl, set_impl, "the TensorImpl", NULL},
    {"_value", get_value, NULL, "what stands for the tensor in the graph; None once it is evaluated", NULL},
    {"is_traced", get_traced, set_traced, "are its operations kept for derivatives?", NULL},
    {"traced", get_traced, set_traced, "are its operations kept for derivatives?", NULL},
    {"sharding", get_sharding, set_sharding, "the ShardingSpec, or None", NULL},
    {"op_kwargs", get_op_kwargs, NULL, "the keyword arguments of the operation that made it", NULL},
    {"grad", get_extra, set_extra, "the gradient, or None", "grad"},
    {"_leaf", get_extra, set_extra, "of a tensor that requires a gradient: its TensorImpl", "_leaf"},
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---- methods that the table does not have ---- */
static Py_ssize_t length(PyObject *o)
{
    eas_node *n = eager_node(o);
    int bd = eas_node_batch_dims(n);
    if (eas_node_rank(n) == bd)
        return PyErr_SetString(PyExc_TypeError, "len() of a tensor with no dims"), -1;
    eas_dim d = eas_node_shape(n)[bd];
    if (d < 0)
        return PyErr_SetString(PyExc_TypeError, "len() of a tensor whose first dim is symbolic"), -1;
    return (Py_ssize_t)d;
}
static PyObject *item_at(PyObject *o, Py_ssize_t i)
{
    PyObject *k = PyLong_FromSsize_t(i), *r = k ? eager_subscript(o, k) : NULL;
    Py_XDECREF(k);
    return r;
}
static PyObject *iter(PyObject *o) { return length(o) < 0 ? NULL : PySeqIter_New(o); }
static PyObject *trace_method(PyObject *o, PyObject *unused)
{
    (void)unused;
    eas_node_set_traced(eager_node(o), 1);
    return Py_NewRef(o);
}
static PyMethodDef methods[] = {
    {"trace", trace_method, METH_NOARGS,
     "trace(): what is recorded from this tensor is kept for derivatives; gives the tensor"},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Eager, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot slots[] = {
    {Py_tp_doc,
     "Tensor(value, *, dtype=None, device=None), Tensor(storage=memory)\n\nA lazy tensor. Operations are recorded; reading data computes "
     "all that it needs at once."},
    {Py_tp_new, eager_new},
    {Py_tp_dealloc, eager_dealloc},
    {Py_tp_repr, eager_repr},
    {Py_tp_hash, hash},
    {Py_tp_richcompare, compare},
    {Py_tp_iter, iter},
    {Py_tp_getset, getset},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_am_await, eager_await},
    {Py_bf_getbuffer, eager_getbuffer},
    {Py_mp_length, length},
    {Py_mp_subscript, eager_subscript},
    {Py_mp_ass_subscript, eager_ass_subscript},
    {Py_sq_item, item_at},
    {Py_nb_add, do_add},
    {Py_nb_subtract, do_sub},
    {Py_nb_multiply, do_mul},
    {Py_nb_true_divide, do_div},
    {Py_nb_floor_divide, do_floordiv},
    {Py_nb_remainder, do_mod},
    {Py_nb_divmod, do_divmod},
    {Py_nb_power, do_pow},
    {Py_nb_matrix_multiply, do_matmul},
    {Py_nb_and, do_bitwise_and},
    {Py_nb_or, do_bitwise_or},
    {Py_nb_xor, do_bitwise_xor},
    {Py_nb_lshift, do_bitwise_left_shift},
    {Py_nb_rshift, do_bitwise_right_shift},
    {Py_nb_negative, do_neg},
    {Py_nb_positive, do_pos},
    {Py_nb_absolute, do_abs},
    {Py_nb_invert, do_bitwise_invert},
    {Py_nb_bool, do_bool},
    {Py_nb_int, do_int},
    {Py_nb_float, do_float},
    {Py_nb_index, do_index},
    {0, NULL},
};
static PyType_Spec spec = {"eager.Tensor", sizeof(Eager), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

int eager_init(PyObject *module)
{
    if (!(G.eager = py_type(module, &spec, "EagerTensor")))
        return -1;
#define X(name) op_##name = eas_tensor_op_find(#name);
    OPERATORS(X)
#undef X
    PyObject *p = PyFloat_FromDouble(1000); /* NumPy's operators leave those with a tensor to us */
    int bad = !p || PyObject_SetAttrString((PyObject *)G.eager, "__array_priority__", p) < 0;
    Py_XDECREF(p);
    return bad ? -1 : 0;
}
