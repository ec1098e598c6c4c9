/* eager_vmap.c: vmap. A mapped axis becomes the first physical dim and is counted as a batch dim, so that no
 * operation sees it; afterwards it becomes an axis again. Nested calls have levels: inside level k a mapped
 * tensor has k batch dims, the newest in front. */
#include "py.h"

static _Thread_local int level;
static _Thread_local eas_dim level_sizes[VMAP_LEVELS];

int vmap_levels(const eas_dim **sizes)
{
    if (sizes)
        *sizes = level_sizes;
    return level;
}

static eas_node *one_int(const char *op, eas_node *n, int64_t v)
{
    return n ? eager_do(op, 1, &n, 1, &v) : NULL;
}

/* ---- in ---- */
typedef struct mapping {
    PyObject *treedef;
    eas_dim size; /* of the mapped axis */
    bool known;
    PyObject *path; /* of the leaf that told the size; NULL: axis_size did */
    /* gives a mapped tensor a sharding whose first dim is cut along an axis of a mesh; or None */
    PyObject *spread;
} mapping;

static int bad_axis(mapping *m, Py_ssize_t leaf, long axis, int rank)
{
    PyObject *p = pytree_arg_path(m->treedef, leaf);
    if (p)
        py_fail(PyExc_ValueError, "vmap: in_axes says axis %ld for %U, which has %d dims", axis, p, rank);
    Py_XDECREF(p);
    return 0;
}
static int bad_size(mapping *m, Py_ssize_t leaf, eas_dim size)
{
    PyObject *p = pytree_arg_path(m->treedef, leaf), *a = dim_object(size), *b = dim_object(m->size);
    if (p && a && b && m->path)
        py_fail(PyExc_ValueError, "vmap: mapped axes must have one size: %U has %S, %U has %S", m->path, b, p,
                a);
    else if (p && a && b)
        py_fail(PyExc_ValueError, "vmap: axis_size is %S, but the mapped axis of %U has %S", b, p, a);
    Py_XDECREF(p);
    Py_XDECREF(a);
    Py_XDECREF(b);
    return 0;
}
static int note_size(mapping *m, Py_ssize_t leaf, eas_dim size)
{
    if (m->known)
        return size == m->size || bad_size(m, leaf, size);
    m->known = true;
    m->size = size;
    return (m->path = pytree_arg_path(m->treedef, leaf)) != NULL;
}
static PyObject *map_leaf(mapping *m, Py_ssize_t i, PyObject *leaf, PyObject *axis)
{
    if (axis == Py_None)
        return Py_NewRef(leaf);
    if (!PyIndex_Check(axis))
        return py_fail(PyExc_TypeError, "vmap: in_axes must be ints, None, or a pytree of them; got %R",
                       axis);
    long a = PyLong_AsLong(axis);
    eas_node *n = a == -1 && PyErr_Occurred() ? NULL : eager_arg(leaf, "vmap", "a mapped argument");
    if (!n)
        return NULL;
    int bd = eas_node_batch_dims(n), rank = eas_node_rank(n) - bd;
    if (a < -rank || a >= rank) {
        eas_node_release(n);
        bad_axis(m, i, a, rank);
        return NULL;
    }
    a += a < 0 ? rank : 0;
    if (!note_size(m, i, eas_node_shape(n)[bd + a])) {
        eas_node_release(n);
        return NULL;
    }
    if (bd < level)
        n = one_int("lift_batch_dims", n, level);
    n = one_int("move_axis_to_batch_dims", n, a);
    PyObject *t = n ? eager_wrap(n) : NULL;
    if (t && m->spread != Py_None) {
        PyObject *r = PyObject_CallOneArg(m->spread, t);
        Py_SETREF(t, r);
    }
    return t;
}

/* ---- out ---- */
static eas_node *spread(eas_node *n, eas_dim size) /* the same in every lane; steals n */
{
    int64_t attr[64];
    int bd = level + 1, k = 0;
    if (eas_node_batch_dims(n) < bd)
        n = one_int("lift_batch_dims", n, bd);
    if (!n || eas_node_shape(n)[0] == size)
        return n;
    attr[k++] = bd;
    attr[k++] = size;
    for (int i = 1; i < bd; i++)
        attr[k++] = eas_node_shape(n)[i];
    return eager_do("broadcast_batch_dims", 1, &n, k, attr);
}
static PyObject *unmap_leaf(mapping *m, PyObject *treedef, Py_ssize_t i, PyObject *leaf, PyObject *axis)
{
    eas_node *n = eager_operand(leaf);
    if (!n && !PyErr_Occurred() && axis == Py_None)
        return Py_NewRef(leaf);
    if (!n)
        return PyErr_Occurred()
                 ? NULL
                 : py_fail(PyExc_TypeError,
                           "vmap: a function that is mapped returns tensors or numbers, got %s",
                           Py_TYPE(leaf)->tp_name);
    bool mapped = eas_node_batch_dims(n) > level;
    if (axis == Py_None) {
        eas_node_release(n);
        if (!mapped)
            return Py_NewRef(leaf);
        PyObject *p = pytree_path(treedef, i);
        if (p)
            py_fail(PyExc_ValueError, "vmap: out_axes is None for result%s%U, but it differs between lanes",
                    PyUnicode_GET_LENGTH(p) ? " " : "", p);
        Py_XDECREF(p);
        return NULL;
    }
    if (!PyIndex_Check(axis)) {
        eas_node_release(n);
        return py_fail(PyExc_TypeError, "vmap: out_axes must be ints, None, or a pytree of them; got %R",
                       axis);
    }
    long a = PyLong_AsLong(axis);
    int rank = eas_node_rank(n) - eas_node_batch_dims(n) + 1;
    if ((a == -1 && PyErr_Occurred()) || a < -rank || a >= rank) {
        eas_node_release(n);
        return PyErr_Occurred()
                 ? NULL
                 : py_fail(PyExc_ValueError, "vmap: out_axes says axis %ld for a result of %d dims", a, rank);
    }
    n = spread(n, m->size);
    int64_t attr[2] = {0, a < 0 ? a + rank : a};
    n = n ? eager_do("move_axis_from_batch_dims", 1, &n, 2, attr) : NULL;
    return n ? eager_result(EAS_OK, n) : NULL;
}
static PyObject *unmap(mapping *m, PyObject *result, PyObject *out_axes)
{
    PyObject *leaves, *treedef, *axes = NULL, *r = NULL;
    if (!pytree_flatten(result, NULL, &leaves, &treedef))
        return NULL;
    int ok = (axes = pytree_broadcast_prefix(out_axes, treedef)) != NULL;
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(leaves); i++) {
        PyObject *v = unmap_leaf(m, treedef, i, PyList_GET_ITEM(leaves, i), PyList_GET_ITEM(axes, i));
        ok = v && PyList_SetItem(leaves, i, v) == 0;
    }
    if (ok)
        r = pytree_unflatten(treedef, ((PyListObject *)leaves)->ob_item, PyList_GET_SIZE(leaves));
    Py_XDECREF(axes);
    Py_DECREF(leaves);
    Py_DECREF(treedef);
    return r;
}

/* ---- a call ---- */
/* in_axes for (args, kwargs): as given for args, 0 for all of kwargs. */
static PyObject *axes_of(PyObject *in_axes, PyObject *both, PyObject *treedef)
{
    PyObject *args = PyTuple_GET_ITEM(both, 0), *prefix = NULL, *zero = NULL, *r = NULL;
    bool sequence = PyList_CheckExact(in_axes) || PyTuple_Check(in_axes), one = PyTuple_GET_SIZE(args) == 1;
    /* the tree of the one argument */
    if (one && (sequence ? PySequence_Size(in_axes) != 1 : in_axes != Py_None && !PyIndex_Check(in_axes)))
        prefix = PyTuple_Pack(1, in_axes);
    else if (sequence) {
        prefix = PySequence_Tuple(in_axes);
        if (prefix && PyTuple_GET_SIZE(prefix) != PyTuple_GET_SIZE(args)) {
            py_fail(PyExc_ValueError, "vmap: in_axes has %zd entries for %zd arguments",
                    PyTuple_GET_SIZE(prefix), PyTuple_GET_SIZE(args));
            Py_CLEAR(prefix);
        }
    } else
        prefix = Py_NewRef(in_axes);
    zero = PyLong_FromLong(0);
    PyObject *whole = prefix && zero ? PyTuple_Pack(2, prefix, zero) : NULL;
    r = whole ? pytree_broadcast_prefix(whole, treedef) : NULL;
    Py_XDECREF(whole);
    Py_XDECREF(zero);
    Py_XDECREF(prefix);
    return r;
}
static PyObject *map_arguments(mapping *m, PyObject *both, PyObject *in_axes)
{
    PyObject *leaves, *axes = NULL, *r = NULL;
    if (!pytree_flatten(both, NULL, &leaves, &m->treedef))
        return NULL;
    int ok = (axes = axes_of(in_axes, both, m->treedef)) != NULL;
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(leaves); i++) {
        PyObject *v = map_leaf(m, i, PyList_GET_ITEM(leaves, i), PyList_GET_ITEM(axes, i));
        ok = v && PyList_SetItem(leaves, i, v) == 0;
    }
    if (ok && !m->known) {
        py_fail(PyExc_ValueError,
                "vmap: nothing is mapped: in_axes is None for all arguments, and there is no axis_size");
        ok = 0;
    }
    if (ok)
        r = pytree_unflatten(m->treedef, ((PyListObject *)leaves)->ob_item, PyList_GET_SIZE(leaves));
    Py_XDECREF(axes);
    Py_DECREF(leaves);
    return r;
}
/* fn, in_axes, out_axes, axis_size, spread, args, kwargs */
static PyObject *vmap_call(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *fn, *in_axes, *out_axes, *axis_size, *a, *k, *r = NULL;
    mapping m = {0};
    if (!PyArg_ParseTuple(args, "OOOOOO!O!:vmap_call", &fn, &in_axes, &out_axes, &axis_size, &m.spread,
                          &PyTuple_Type, &a, &PyDict_Type, &k))
        return NULL;
    if (axis_size != Py_None) {
        if (!dim_of(axis_size, "vmap: axis_size", &m.size))
            return NULL;
        m.known = true;
    }
    PyObject *both = PyTuple_Pack(2, a, k), *mapped = both ? map_arguments(&m, both, in_axes) : NULL;
    if (mapped && level == VMAP_LEVELS)
        py_fail(PyExc_ValueError, "vmap: at most %d calls can be inside each other", VMAP_LEVELS);
    else if (mapped) {
        level_sizes[level++] = m.size;
        r = PyObject_Call(fn, PyTuple_GET_ITEM(mapped, 0), PyTuple_GET_ITEM(mapped, 1));
        level--;
    }
    if (r)
        Py_SETREF(r, unmap(&m, r, out_axes));
    Py_XDECREF(mapped);
    Py_XDECREF(both);
    Py_XDECREF(m.treedef);
    Py_XDECREF(m.path);
    return r;
}
static PyObject *vmap_level(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return PyLong_FromLong(level);
}
static PyMethodDef functions[] = {
    {"vmap_call", vmap_call, METH_VARARGS,
     "vmap_call(fn, in_axes, out_axes, axis_size, spread, args, kwargs)"},
    {"vmap_level", vmap_level, METH_NOARGS, "vmap_level(): how many vmaps this thread is inside of"},
    {NULL, NULL, 0, NULL},
};
int eager_vmap_init(PyObject *module) { return PyModule_AddFunctions(module, functions); }
