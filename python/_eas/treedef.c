/* treedef.c: the structure of a pytree as an object of Python's (PyTreeDef: comparison, hash, text,
 * children), and the functions of the module: tree_flatten, tree_map and their kin. */
#include "pytree.h"

#include <string.h>

/* ---- TreeDef ---- */
static int treedef_traverse(PyObject *o, visitproc visit, void *arg)
{
    TreeDef *d = (TreeDef *)o;
    Py_VISIT(Py_TYPE(o));
    for (Py_ssize_t i = 0; i < d->n; i++) {
        Py_VISIT(d->nodes[i].type);
        Py_VISIT(d->nodes[i].aux);
    }
    return 0;
}
static void treedef_dealloc(PyObject *o)
{
    TreeDef *d = (TreeDef *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    tree_drop_nodes(d->nodes, d->n);
    PyObject_GC_Del(o);
    Py_DECREF(type);
}
static int same_object(PyObject *x, PyObject *y)
{
    return x == y ? 1 : !x || !y ? 0 : PyObject_RichCompareBool(x, y, Py_EQ);
}
int pytree_same(PyObject *a, PyObject *b)
{
    TreeDef *x = (TreeDef *)a, *y = (TreeDef *)b;
    if (x == y)
        return 1;
    if (x->n != y->n || x->leaves != y->leaves)
        return 0;
    for (Py_ssize_t i = 0; i < x->n; i++) {
        tree_node *s = &x->nodes[i], *t = &y->nodes[i];
        if (s->kind != t->kind || s->arity != t->arity || (s->type != t->type && s->kind != T_DEFAULT))
            return 0;
        int same = same_object(s->type, t->type);
        if (same > 0)
            same = same_object(s->aux, t->aux);
        if (same <= 0)
            return same;
    }
    return 1;
}
static PyObject *treedef_richcompare(PyObject *a, PyObject *b, int op)
{
    if ((op != Py_EQ && op != Py_NE) || !Py_IS_TYPE(b, treedef_type))
        Py_RETURN_NOTIMPLEMENTED;
    int same = pytree_same(a, b);
    return same < 0 ? NULL : PyBool_FromLong(same == (op == Py_EQ));
}
static Py_hash_t hash_aux(PyObject *aux)
{
    if (!aux || !PyList_CheckExact(aux))
        return aux ? PyObject_Hash(aux) : 0;
    PyObject *t = PyList_AsTuple(aux);
    Py_hash_t h = t ? PyObject_Hash(t) : -1;
    Py_XDECREF(t);
    return h;
}
static Py_hash_t treedef_hash(PyObject *o)
{
    TreeDef *d = (TreeDef *)o;
    Py_uhash_t h = 1469598103934665603u;
    for (Py_ssize_t i = 0; i < d->n; i++) {
        tree_node *t = &d->nodes[i];
        Py_hash_t a = hash_aux(t->aux);
        if (a == -1 && PyErr_Occurred())
            return -1;
        h = (h ^ t->kind) * 1099511628211u;
        h = (h ^ (Py_uhash_t)t->arity) * 1099511628211u;
        h = (h ^ (Py_uhash_t)(uintptr_t)t->type) * 1099511628211u;
        h = (h ^ (Py_uhash_t)a) * 1099511628211u;
    }
    return (Py_hash_t)h == -1 ? -2 : (Py_hash_t)h;
}
static PyObject *type_name(PyObject *type)
{
    return PyType_Check(type) ? PyUnicode_FromString(strrchr(((PyTypeObject *)type)->tp_name, '.')
                                                         ? strrchr(((PyTypeObject *)type)->tp_name, '.') + 1
                                                         : ((PyTypeObject *)type)->tp_name)
                              : PyObject_Repr(type);
}

static PyObject *join_text(PyObject *list, Py_ssize_t n, const char *open, const char *close, PyObject *names,
                           const char *between)
{
    /* The last n texts of the list, in reverse order, become one. */
    PyObject *parts = PyList_New(0), *sep = PyUnicode_FromString(", "), *r = NULL;
    Py_ssize_t size = PyList_GET_SIZE(list);
    int ok = parts && sep;
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        PyObject *kid = PyList_GET_ITEM(list, size - 1 - i), *p;
        PyObject *name = names ? PySequence_GetItem(names, i) : NULL;
        p = !names ? Py_NewRef(kid)
          : name   ? PyUnicode_FromFormat(*between == ':' ? "%R: %U" : "%S=%U", name, kid)
                   : NULL;
        ok = p && PyList_Append(parts, p) == 0;
        Py_XDECREF(p);
        Py_XDECREF(name);
    }
    PyObject *body = ok ? PyUnicode_Join(sep, parts) : NULL;
    if (body && PyList_SetSlice(list, size - n, size, NULL) == 0)
        r = PyUnicode_FromFormat("%s%U%s", open, body, close);
    Py_XDECREF(body);
    Py_XDECREF(parts);
    Py_XDECREF(sep);
    return r;
}
static PyObject *node_text(tree_node *t, PyObject *done)
{
    PyObject *name = NULL, *r = NULL, *names = NULL;
    switch ((tree_kind)t->kind) {
    case T_LEAF: return PyUnicode_FromString("*");
    case T_NONE: return PyUnicode_FromString("None");
    case T_TUPLE: return join_text(done, t->arity, "(", t->arity == 1 ? ",)" : ")", NULL, "");
    case T_LIST: return join_text(done, t->arity, "[", "]", NULL, "");
    case T_DICT: return join_text(done, t->arity, "{", "}", t->aux, ":");
    case T_ORDERED: return join_text(done, t->arity, "OrderedDict({", "})", t->aux, ":");
    case T_DEFAULT: return join_text(done, t->arity, "defaultdict({", "})", t->aux, ":");
    default: break;
    }
    if (!(name = type_name(t->type)))
        return NULL;
    names = tree_field_names(t);
    PyObject *body = join_text(done, t->arity, "(", ")", names, "=");
    r = body ? PyUnicode_FromFormat("%U%U", name, body) : NULL;
    Py_XDECREF(body);
    Py_XDECREF(names);
    Py_DECREF(name);
    return r;
}
static PyObject *treedef_repr(PyObject *o)
{
    TreeDef *d = (TreeDef *)o;
    if (d->n > 20000)
        return PyUnicode_FromFormat("PyTreeDef(%zd nodes, %zd leaves)", d->n, d->leaves);
    PyObject *done = PyList_New(0);
    for (Py_ssize_t i = d->n - 1; done && i >= 0; i--) {
        PyObject *t = node_text(&d->nodes[i], done);
        if (!t || PyList_Append(done, t) < 0)
            Py_CLEAR(done);
        Py_XDECREF(t);
    }
    PyObject *r = done ? PyUnicode_FromFormat("PyTreeDef(%U)", PyList_GET_ITEM(done, 0)) : NULL;
    Py_XDECREF(done);
    return r;
}
static PyObject *get_num_leaves(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromSsize_t(((TreeDef *)o)->leaves);
}
static PyObject *get_num_nodes(PyObject *o, void *c)
{
    (void)c;
    return PyLong_FromSsize_t(((TreeDef *)o)->n);
}
static PyObject *unflatten_from(PyObject *treedef, PyObject *leaves)
{
    PyObject *seq = PySequence_Fast(leaves, "leaves must be a sequence");
    PyObject *r =
        seq ? pytree_unflatten(treedef, PySequence_Fast_ITEMS(seq), PySequence_Fast_GET_SIZE(seq)) : NULL;
    Py_XDECREF(seq);
    return r;
}
static PyObject *treedef_up_to(PyObject *o, PyObject *tree) { return tree_flatten_up_to((TreeDef *)o, tree); }
static PyObject *treedef_path(PyObject *o, PyObject *leaf)
{
    Py_ssize_t i = PyNumber_AsSsize_t(leaf, PyExc_OverflowError);
    return i == -1 && PyErr_Occurred() ? NULL : pytree_path(o, i);
}
static PyGetSetDef treedef_getset[] = {
    {"num_leaves", get_num_leaves, NULL, "number of leaves", NULL},
    {"num_nodes", get_num_nodes, NULL, "number of nodes, leaves among them", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
/* As the structure of a tree with numbers for leaves. */
static PyObject *treedef_reduce(PyObject *o, PyObject *unused)
{
    (void)unused;
    Py_ssize_t n = ((TreeDef *)o)->leaves;
    PyObject *m = PyImport_ImportModule("eager.core.pytree"),
             *make = m ? PyObject_GetAttrString(m, "tree_structure") : NULL;
    PyObject *leaves = make ? PyTuple_New(n) : NULL, *tree = NULL;
    for (Py_ssize_t i = 0; leaves && i < n; i++)
        PyTuple_SET_ITEM(leaves, i, PyLong_FromLong(0));
    if (leaves && !PyErr_Occurred())
        tree = unflatten_from(o, leaves);
    PyObject *r = tree ? Py_BuildValue("(O(O))", make, tree) : NULL;
    Py_XDECREF(tree);
    Py_XDECREF(leaves);
    Py_XDECREF(make);
    Py_XDECREF(m);
    return r;
}
/* [(aux, first leaf, number of leaves)] of the nodes whose class was registered, in order. */
static PyObject *treedef_customs(PyObject *o, PyObject *unused)
{
    TreeDef *d = (TreeDef *)o;
    PyObject *list = PyList_New(0);
    Py_ssize_t leaf = 0;
    (void)unused;
    for (Py_ssize_t i = 0; list && i < d->n; i++) {
        leaf += d->nodes[i].kind == T_LEAF;
        if (d->nodes[i].kind != T_CUSTOM)
            continue;
        Py_ssize_t below = 0, open = d->nodes[i].arity; /* nodes of the subtree that are still to come */
        for (Py_ssize_t j = i + 1; open > 0; j++) {
            below += d->nodes[j].kind == T_LEAF;
            open += d->nodes[j].arity - 1;
        }
        PyObject *row = Py_BuildValue("(Onn)", d->nodes[i].aux ? d->nodes[i].aux : Py_None, leaf, below);
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}
static PyMethodDef treedef_methods[] = {
    {"customs", treedef_customs, METH_NOARGS,
     "customs(): (what flatten gave beside the children, first leaf, number of leaves) of each registered class in the tree"},
    {"__reduce__", treedef_reduce, METH_NOARGS, NULL},
    {"unflatten", unflatten_from, METH_O, "unflatten(leaves): the tree of this structure with these leaves"},
    {"tree_flatten_up_to", treedef_up_to, METH_O,
     "tree_flatten_up_to(tree): what the tree has in the places of this structure's leaves"},
    {"path", treedef_path, METH_O, "path(i): where leaf i is, as \"[0]['w']\""},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot treedef_slots[] = {
    {Py_tp_doc, "The structure of a pytree. Equal structures are equal and have equal hashes."},
    {Py_tp_traverse, treedef_traverse},
    {Py_tp_dealloc, treedef_dealloc},
    {Py_tp_richcompare, treedef_richcompare},
    {Py_tp_hash, treedef_hash},
    {Py_tp_repr, treedef_repr},
    {Py_tp_getset, treedef_getset},
    {Py_tp_methods, treedef_methods},
    {0, NULL},
};
static PyType_Spec treedef_spec = {
    "eager.core.pytree.PyTreeDef", sizeof(TreeDef), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, treedef_slots};
bool pytree_is_treedef(PyObject *o) { return Py_IS_TYPE(o, treedef_type); }
Py_ssize_t pytree_num_leaves(PyObject *treedef) { return ((TreeDef *)treedef)->leaves; }

/* ---- functions ---- */
static int tree_args(const char *fn, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                     PyObject **tree, PyObject **is_leaf)
{
    *is_leaf = nargs > 1 ? args[1] : NULL;
    Py_ssize_t nkw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    if (nargs < 1 || nargs + nkw > 2 ||
        (nkw && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "is_leaf")))
        return py_fail(PyExc_TypeError, "%s(tree, is_leaf=None)", fn), 0;
    if (nkw)
        *is_leaf = args[nargs];
    *tree = args[0];
    if (*is_leaf == Py_None)
        *is_leaf = NULL;
    return 1;
}
static PyObject *tree_flatten(PyObject *m, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)m;
    PyObject *tree, *is_leaf, *leaves, *treedef;
    if (!tree_args("tree_flatten", args, nargs, kwnames, &tree, &is_leaf) ||
        !pytree_flatten(tree, is_leaf, &leaves, &treedef))
        return NULL;
    PyObject *r = PyTuple_New(2);
    if (!r) {
        Py_DECREF(leaves);
        Py_DECREF(treedef);
        return NULL;
    }
    PyTuple_SET_ITEM(r, 0, leaves);
    PyTuple_SET_ITEM(r, 1, treedef);
    return r;
}
static PyObject *tree_leaves(PyObject *m, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)m;
    PyObject *tree, *is_leaf, *leaves;
    return tree_args("tree_leaves", args, nargs, kwnames, &tree, &is_leaf) &&
                   pytree_flatten(tree, is_leaf, &leaves, NULL)
             ? leaves
             : NULL;
}
static PyObject *tree_structure(PyObject *m, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *r = tree_flatten(m, args, nargs, kwnames), *d = r ? Py_NewRef(PyTuple_GET_ITEM(r, 1)) : NULL;
    Py_XDECREF(r);
    return d;
}
static PyObject *tree_unflatten(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    if (nargs != 2 || !pytree_is_treedef(args[0]))
        return py_fail(PyExc_TypeError, "tree_unflatten(treedef, leaves): treedef as tree_flatten gave it");
    return unflatten_from(args[0], args[1]);
}
static PyObject *broadcast_prefix(PyObject *m, PyObject *const *args, Py_ssize_t nargs)
{
    (void)m;
    if (nargs != 2 || !pytree_is_treedef(args[1]))
        return py_fail(PyExc_TypeError, "broadcast_prefix(prefix, treedef)");
    return pytree_broadcast_prefix(args[0], args[1]);
}
PyObject *pytree_map(PyObject *tree, PyObject *(*fn)(void *ctx, PyObject *leaf), void *ctx)
{
    PyObject *leaves, *treedef, *r = NULL;
    if (!pytree_flatten(tree, NULL, &leaves, &treedef))
        return NULL;
    int ok = 1;
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(leaves); i++) {
        PyObject *v = fn(ctx, PyList_GET_ITEM(leaves, i));
        ok = v && PyList_SetItem(leaves, i, v) == 0;
    }
    if (ok)
        r = pytree_unflatten(treedef, ((PyListObject *)leaves)->ob_item, PyList_GET_SIZE(leaves));
    Py_DECREF(leaves);
    Py_DECREF(treedef);
    return r;
}
static PyObject *map_rows(PyObject *fn, PyObject *treedef, PyObject **columns, Py_ssize_t n)
{
    Py_ssize_t rows = PyList_GET_SIZE(columns[0]);
    PyObject *out = PyList_New(rows), **row = PyMem_New(PyObject *, (size_t)n + 1), *r = NULL;
    int ok = out && row;
    for (Py_ssize_t i = 0; ok && i < rows; i++) {
        for (Py_ssize_t k = 0; k < n; k++)
            row[k + 1] = PyList_GET_ITEM(columns[k], i);
        PyObject *v = PyObject_Vectorcall(fn, row + 1, (size_t)n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        if ((ok = v != NULL))
            PyList_SET_ITEM(out, i, v);
    }
    if (ok)
        r = pytree_unflatten(treedef, ((PyListObject *)out)->ob_item, rows);
    Py_XDECREF(out);
    PyMem_Free(row);
    return r;
}
static PyObject *tree_map(PyObject *m, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)m;
    Py_ssize_t nkw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    if (nargs < 2 || nkw > 1 ||
        (nkw && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "is_leaf")))
        return py_fail(PyExc_TypeError, "tree_map(fn, tree, *rest, is_leaf=None)");
    PyObject *is_leaf = nkw && args[nargs] != Py_None ? args[nargs] : NULL, *treedef = NULL, *r = NULL;
    PyObject **columns = PyMem_Calloc((size_t)nargs, sizeof *columns);
    if (!columns)
        return PyErr_NoMemory();
    int ok = pytree_flatten(args[1], is_leaf, &columns[0], &treedef);
    for (Py_ssize_t i = 2; ok && i < nargs; i++)
        ok = (columns[i - 1] = tree_flatten_up_to((TreeDef *)treedef, args[i])) != NULL;
    if (ok)
        r = map_rows(args[0], treedef, columns, nargs - 1);
    for (Py_ssize_t i = 0; i + 1 < nargs; i++)
        Py_XDECREF(columns[i]);
    PyMem_Free(columns);
    Py_XDECREF(treedef);
    return r;
}
static PyObject *tensor_leaves(PyObject *m, PyObject *tree)
{
    (void)m;
    PyObject *leaves, *out = PyList_New(0);
    if (!out || !pytree_flatten(tree, NULL, &leaves, NULL)) {
        Py_XDECREF(out);
        return NULL;
    }
    for (Py_ssize_t i = 0; out && i < PyList_GET_SIZE(leaves); i++)
        if (eager_check(PyList_GET_ITEM(leaves, i)) && PyList_Append(out, PyList_GET_ITEM(leaves, i)) < 0)
            Py_CLEAR(out);
    Py_DECREF(leaves);
    return out;
}
#define FAST(f) (PyCFunction)(void (*)(void)) f, METH_FASTCALL
static PyMethodDef functions[] = {
    {"tree_flatten", FAST(tree_flatten) | METH_KEYWORDS,
     "tree_flatten(tree, is_leaf=None)\n--\n\n(leaves, treedef) of a pytree; dicts in the order of their sorted keys."},
    {"tree_unflatten", FAST(tree_unflatten),
     "tree_unflatten(treedef, leaves)\n--\n\nThe inverse of tree_flatten."},
    {"tree_leaves", FAST(tree_leaves) | METH_KEYWORDS,
     "tree_leaves(tree, is_leaf=None)\n--\n\nThe leaves of a pytree."},
    {"tree_structure", FAST(tree_structure) | METH_KEYWORDS,
     "tree_structure(tree, is_leaf=None)\n--\n\nThe treedef of a pytree."},
    {"tree_map", FAST(tree_map) | METH_KEYWORDS,
     "tree_map(fn, tree, *rest, is_leaf=None)\n--\n\nThe tree with fn(leaf, *others) in place of each leaf; the rest has tree's structure, or deeper "
     "ones below its leaves."},
    {"tensor_leaves", tensor_leaves, METH_O,
     "tensor_leaves(tree)\n--\n\nThose leaves of a pytree that are tensors."},
    {"register_pytree_node", tree_register_node, METH_VARARGS,
     "register_pytree_node(cls, flatten, unflatten)\n--\n\nMakes instances of cls nodes: flatten(x) gives (children, aux), unflatten(aux, children) "
     "the inverse."},
    {"broadcast_prefix", FAST(broadcast_prefix),
     "broadcast_prefix(prefix, treedef)\n--\n\nWhat the prefix says for each leaf of the structure."},
    {NULL, NULL, 0, NULL},
};
int pytree_init(PyObject *module)
{
    if (!(treedef_type = py_type(module, &treedef_spec, "PyTreeDef")) || tree_types_init(module) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
