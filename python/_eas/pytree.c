/* pytree.c: nested containers as a list of leaves and a TreeDef, their structure.
 *
 * A TreeDef is its nodes in the order in which a reader meets them, parents first. Flattening works off a
 * stack of objects; unflattening walks the nodes from the last to the first and needs a stack of what is
 * built already. So nothing here calls itself, and the depth of a tree is limited only against containers
 * that contain themselves.
 */
#include "pytree.h"

#include <string.h>

enum { MAX_DEPTH = 1000000 };

PyTypeObject *treedef_type;
static PyTypeObject *info_type;
static PyObject *registry; /* type -> TypeInfo */
static PyObject *ordered_dict, *default_dict;
static PyObject *name_fields, *name_dataclass, *name_static, *name_metadata, *name_factory, *name_make;

/* ---- growing arrays ---- */
typedef struct entry {
    PyObject *o;
    int32_t depth;
    bool owned;
} entry;
typedef struct stack {
    entry *at, few[64];
    Py_ssize_t n, cap;
} stack;
static void stack_init(stack *s)
{
    s->at = s->few;
    s->n = 0;
    s->cap = 64;
}
static int stack_grow(stack *s, Py_ssize_t more)
{
    Py_ssize_t cap = s->cap;
    while (cap < s->n + more)
        cap *= 2;
    entry *at = PyMem_Malloc((size_t)cap * sizeof *at);
    if (!at)
        return PyErr_NoMemory(), 0;
    memcpy(at, s->at, (size_t)s->n * sizeof *at);
    if (s->at != s->few)
        PyMem_Free(s->at);
    s->at = at;
    s->cap = cap;
    return 1;
}
static inline int stack_room(stack *s, Py_ssize_t more)
{
    return s->n + more <= s->cap || stack_grow(s, more);
}
static inline void stack_put(stack *s, PyObject *o, int32_t depth, bool owned)
{
    s->at[s->n++] = (entry){o, depth, owned};
}
static void stack_drop(stack *s)
{
    for (Py_ssize_t i = 0; i < s->n; i++)
        if (s->at[i].owned)
            Py_DECREF(s->at[i].o);
    if (s->at != s->few)
        PyMem_Free(s->at);
}

typedef struct builder {
    tree_node *nodes;
    Py_ssize_t n, cap;
} builder;
static tree_node *add_node(builder *b, tree_kind kind)
{
    if (b->n == b->cap) {
        Py_ssize_t cap = b->cap ? 2 * b->cap : 16;
        tree_node *nodes = PyMem_Realloc(b->nodes, (size_t)cap * sizeof *nodes);
        if (!nodes)
            return (tree_node *)PyErr_NoMemory();
        b->nodes = nodes;
        b->cap = cap;
    }
    tree_node *t = &b->nodes[b->n++];
    *t = (tree_node){.kind = (uint8_t)kind};
    return t;
}
void tree_drop_nodes(tree_node *nodes, Py_ssize_t n)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_XDECREF(nodes[i].type);
        Py_XDECREF(nodes[i].aux);
    }
    PyMem_Free(nodes);
}

/* ---- types ---- */
static void info_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    Py_XDECREF(((TypeInfo *)o)->flatten);
    Py_XDECREF(((TypeInfo *)o)->unflatten);
    PyObject_Free(o);
    Py_DECREF(type);
}
static PyType_Slot info_slots[] = {{Py_tp_dealloc, info_dealloc}, {0, NULL}};
static PyType_Spec info_spec = {"eas._eas.PytreeType", sizeof(TypeInfo), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, info_slots};

/* steals both; borrowed result */
static TypeInfo *remember(PyTypeObject *type, tree_kind kind, PyObject *flatten, PyObject *unflatten)
{
    TypeInfo *i = flatten && unflatten ? PyObject_New(TypeInfo, info_type) : NULL;
    if (!i) {
        Py_XDECREF(flatten);
        Py_XDECREF(unflatten);
        return NULL;
    }
    i->kind = (uint8_t)kind;
    i->flatten = flatten;
    i->unflatten = unflatten;
    int bad = PyDict_SetItem(registry, (PyObject *)type, (PyObject *)i);
    Py_DECREF(i);
    return bad ? NULL : i;
}
static int is_static(PyObject *field) /* dataclasses.field(metadata={"static": True}) */
{
    PyObject *m = PyObject_GetAttr(field, name_metadata), *v = m ? PyObject_GetItem(m, name_static) : NULL;
    int yes = v ? PyObject_IsTrue(v) : 0;
    PyErr_Clear();
    Py_XDECREF(v);
    Py_XDECREF(m);
    return yes;
}
static TypeInfo *dataclass_info(PyTypeObject *type, PyObject *fields)
{
    PyObject *children = PyList_New(0), *fixed = PyList_New(0), *name, *field;
    Py_ssize_t pos = 0;
    int bad = !children || !fixed || !PyDict_Check(fields);
    PyObject *dataclasses = PyImport_ImportModule("dataclasses"),
             *kind = dataclasses ? PyObject_GetAttrString(dataclasses, "_FIELD") : NULL;
    while (!bad && kind && PyDict_Next(fields, &pos, &name, &field)) {
        PyObject *k = PyObject_GetAttrString(field, "_field_type"); /* neither ClassVar nor InitVar */
        if (k == kind)
            bad = PyList_Append(is_static(field) ? fixed : children, name);
        Py_XDECREF(k);
    }
    Py_XDECREF(kind);
    Py_XDECREF(dataclasses);
    PyObject *c = bad || !kind ? NULL : PyList_AsTuple(children), *f = c ? PyList_AsTuple(fixed) : NULL;
    Py_XDECREF(children);
    Py_XDECREF(fixed);
    return remember(type, T_DATACLASS, c, f);
}
/* NULL: a leaf, or an exception. */
static TypeInfo *info_of(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    TypeInfo *i = (TypeInfo *)PyDict_GetItemWithError(registry, (PyObject *)type);
    if (i || PyErr_Occurred() || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE))
        return i;
    PyObject *fields = PyObject_GetAttr((PyObject *)type, name_dataclass);
    if (fields) {
        i = dataclass_info(type, fields);
        Py_DECREF(fields);
        return i;
    }
    PyErr_Clear();
    if (!PyTuple_Check(o) || !(fields = PyObject_GetAttr((PyObject *)type, name_fields)))
        return PyErr_Clear(), NULL;
    Py_DECREF(fields);
    return remember(type, T_NAMED, Py_NewRef(Py_None), Py_NewRef(Py_None));
}
PyObject *tree_register_node(PyObject *m, PyObject *args)
{
    (void)m;
    PyObject *type, *flatten, *unflatten;
    if (!PyArg_ParseTuple(args, "OOO:register_pytree_node", &type, &flatten, &unflatten))
        return NULL;
    if (!PyType_Check(type))
        return py_fail(PyExc_TypeError, "register_pytree_node: the first argument must be a class, got %R",
                       type);
    if (!PyCallable_Check(flatten) || !PyCallable_Check(unflatten))
        return py_fail(
            PyExc_TypeError,
            "register_pytree_node: %s takes flatten(x) -> (children, aux) and unflatten(aux, children), both callable",
            ((PyTypeObject *)type)->tp_name);
    TypeInfo *old = (TypeInfo *)PyDict_GetItemWithError(registry, type);
    if (type == (PyObject *)&PyTuple_Type || type == (PyObject *)&PyList_Type ||
        type == (PyObject *)&PyDict_Type || type == (PyObject *)Py_TYPE(Py_None) || type == ordered_dict ||
        type == default_dict || (old && old->kind == T_CUSTOM))
        return py_fail(PyExc_ValueError, "register_pytree_node: %s is registered already",
                       ((PyTypeObject *)type)->tp_name);
    return remember((PyTypeObject *)type, T_CUSTOM, Py_NewRef(flatten), Py_NewRef(unflatten))
             ? Py_NewRef(Py_None)
             : NULL;
}

PyObject *tree_field_names(const tree_node *t)
{
    if (t->kind == T_NAMED)
        return PyObject_GetAttr(t->type, name_fields);
    if (t->kind == T_DATACLASS)
        return Py_XNewRef(((TypeInfo *)PyDict_GetItemWithError(registry, t->type))->flatten);
    return NULL;
}

/* ---- flattening ---- */
typedef int (*take_leaf)(void *ctx, PyObject *leaf); /* 0 with an exception */
typedef struct flattener {
    stack todo;
    builder tree;
    PyObject *is_leaf; /* callable or NULL */
    PyObject *leaves;  /* list */
    Py_ssize_t nleaves;
} flattener;

static int push_seq(stack *s, PyObject **items, Py_ssize_t n, int32_t depth, bool owned)
{
    if (!stack_room(s, n))
        return 0;
    for (Py_ssize_t i = n - 1; i >= 0; i--)
        stack_put(s, owned ? Py_NewRef(items[i]) : items[i], depth, owned);
    return 1;
}
static PyObject *sorted_keys(PyObject *dict)
{
    PyObject *keys = PyDict_Keys(dict);
    if (keys && PyList_Sort(keys) < 0) {
        PyObject *t, *v, *tb;
        PyErr_Fetch(&t, &v, &tb);
        py_fail(PyExc_TypeError, "keys of a dict in a pytree must have an order: %S", v ? v : t);
        Py_XDECREF(t);
        Py_XDECREF(v);
        Py_XDECREF(tb);
        Py_CLEAR(keys);
    }
    return keys;
}
static int push_values(stack *s, PyObject *dict, PyObject *keys, int32_t depth, bool owned)
{
    Py_ssize_t n = PyList_GET_SIZE(keys);
    if (!stack_room(s, n))
        return 0;
    for (Py_ssize_t i = n - 1; i >= 0; i--) {
        PyObject *v = PyDict_GetItemWithError(dict, PyList_GET_ITEM(keys, i));
        if (!v) {
            if (!PyErr_Occurred())
                PyErr_SetObject(PyExc_KeyError, PyList_GET_ITEM(keys, i));
            return 0;
        }
        stack_put(s, owned ? Py_NewRef(v) : v, depth, owned);
    }
    return 1;
}
static PyObject *dict_keys(PyObject *o, tree_kind kind)
{
    return kind == T_ORDERED ? PySequence_List(o) : sorted_keys(o);
}

static int open_dict(flattener *f, PyObject *o, tree_kind kind, int32_t depth, bool owned)
{
    tree_node *t = add_node(&f->tree, kind);
    PyObject *keys = t ? dict_keys(o, kind) : NULL;
    if (!keys)
        return 0;
    t->arity = PyList_GET_SIZE(keys);
    t->aux = keys;
    if (kind == T_DEFAULT) {
        PyObject *factory = PyObject_GetAttr(o, name_factory);
        if (!factory)
            return 0;
        t->type = factory;
    }
    return push_values(&f->todo, o, keys, depth, owned);
}
static PyObject *attributes(PyObject *o, PyObject *names)
{
    Py_ssize_t n = PyTuple_GET_SIZE(names);
    PyObject *t = PyTuple_New(n);
    for (Py_ssize_t i = 0; t && i < n; i++) {
        PyObject *v = PyObject_GetAttr(o, PyTuple_GET_ITEM(names, i));
        if (!v)
            Py_CLEAR(t);
        else
            PyTuple_SET_ITEM(t, i, v);
    }
    return t;
}
/* Children of a dataclass or a custom node as a tuple, aux beside it. */
static PyObject *children_of(PyObject *o, TypeInfo *i, PyObject **aux)
{
    if (i->kind == T_DATACLASS) {
        *aux = attributes(o, i->unflatten);
        return *aux ? attributes(o, i->flatten) : NULL;
    }
    PyObject *r = PyObject_CallOneArg(i->flatten, o);
    if (!r)
        return NULL;
    if (!PyTuple_Check(r) || PyTuple_GET_SIZE(r) != 2) {
        py_fail(PyExc_TypeError, "flatten of %s must give (children, aux), got %R", Py_TYPE(o)->tp_name, r);
        Py_DECREF(r);
        return NULL;
    }
    *aux = Py_NewRef(PyTuple_GET_ITEM(r, 1));
    PyObject *c = PySequence_Tuple(PyTuple_GET_ITEM(r, 0));
    Py_DECREF(r);
    return c;
}
static int open_other(flattener *f, PyObject *o, TypeInfo *i, int32_t depth)
{
    PyObject *aux = NULL, *c;
    tree_node *t;
    if (i->kind == T_NAMED) {
        if (!(t = add_node(&f->tree, T_NAMED)))
            return 0;
        t->arity = PyTuple_GET_SIZE(o);
        t->type = Py_NewRef(Py_TYPE(o));
        return push_seq(&f->todo, &PyTuple_GET_ITEM(o, 0), t->arity, depth, true);
    }
    if (!(c = children_of(o, i, &aux)) || !(t = add_node(&f->tree, i->kind))) {
        Py_XDECREF(aux);
        Py_XDECREF(c);
        return 0;
    }
    t->arity = PyTuple_GET_SIZE(c);
    t->type = Py_NewRef(Py_TYPE(o));
    t->aux = aux;
    int ok = push_seq(&f->todo, &PyTuple_GET_ITEM(c, 0), t->arity, depth, true);
    Py_DECREF(c);
    return ok;
}
static int add_leaf(flattener *f, PyObject *o)
{
    f->nleaves++;
    return add_node(&f->tree, T_LEAF) && PyList_Append(f->leaves, o) == 0;
}
static inline bool plain_leaf(PyObject *o)
{
    return Py_IS_TYPE(o, G.eager) || PyFloat_CheckExact(o) || PyLong_CheckExact(o) || PyArray_CheckExact(o) ||
           PyUnicode_CheckExact(o);
}
/* One object: a leaf, or a node whose children go on the stack. owned: children outlive their container only
 * if counted. */
static int flatten_one(flattener *f, PyObject *o, int32_t depth, bool owned)
{
    if (f->is_leaf) {
        PyObject *r = PyObject_CallOneArg(f->is_leaf, o);
        int yes = r ? PyObject_IsTrue(r) : -1;
        Py_XDECREF(r);
        if (yes)
            return yes > 0 && add_leaf(f, o);
    }
    if (plain_leaf(o))
        return add_leaf(f, o);
    if (depth >= MAX_DEPTH)
        return py_fail(PyExc_ValueError,
                       "a pytree is nested deeper than %d levels: does a container contain itself?",
                       MAX_DEPTH),
               0;
    tree_node *t;
    if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
        bool tuple = PyTuple_CheckExact(o);
        if (!(t = add_node(&f->tree, tuple ? T_TUPLE : T_LIST)))
            return 0;
        t->arity = Py_SIZE(o);
        return push_seq(&f->todo, tuple ? &PyTuple_GET_ITEM(o, 0) : ((PyListObject *)o)->ob_item, t->arity,
                        depth + 1, owned);
    }
    if (PyDict_CheckExact(o))
        return open_dict(f, o, T_DICT, depth + 1, owned);
    if (o == Py_None)
        return add_node(&f->tree, T_NONE) != NULL;
    if (Py_IS_TYPE(o, (PyTypeObject *)ordered_dict))
        return open_dict(f, o, T_ORDERED, depth + 1, owned);
    if (Py_IS_TYPE(o, (PyTypeObject *)default_dict))
        return open_dict(f, o, T_DEFAULT, depth + 1, owned);
    TypeInfo *i = info_of(o);
    if (i)
        return open_other(f, o, i, depth + 1);
    return !PyErr_Occurred() && add_leaf(f, o);
}
/* While Python code may run (is_leaf, flatten functions, comparisons of keys), containers could change under
 * us: what is on the stack is counted. */
static int flatten_all(flattener *f, PyObject *tree)
{
    stack_init(&f->todo);
    stack_put(&f->todo, Py_NewRef(tree), 0, true);
    while (f->todo.n) {
        entry e = f->todo.at[--f->todo.n];
        int ok = flatten_one(f, e.o, e.depth, true);
        Py_DECREF(e.o);
        if (!ok)
            return stack_drop(&f->todo), 0;
    }
    stack_drop(&f->todo);
    return 1;
}
static TreeDef *treedef_new(builder *b, Py_ssize_t leaves) /* takes b's nodes */
{
    TreeDef *d = PyObject_GC_New(TreeDef, treedef_type);
    if (!d)
        return NULL;
    d->nodes = b->nodes;
    d->n = b->n;
    d->leaves = leaves;
    b->nodes = NULL;
    PyObject_GC_Track(d);
    return d;
}
int pytree_flatten(PyObject *tree, PyObject *is_leaf, PyObject **leaves, PyObject **treedef)
{
    flattener f = {.is_leaf = is_leaf == Py_None ? NULL : is_leaf};
    if (!(f.leaves = PyList_New(0)))
        return 0;
    int ok = flatten_all(&f, tree);
    TreeDef *d = ok && treedef ? treedef_new(&f.tree, f.nleaves) : NULL;
    tree_drop_nodes(f.tree.nodes, f.tree.nodes ? f.tree.n : 0);
    if (!ok || (treedef && !d)) {
        Py_DECREF(f.leaves);
        return 0;
    }
    *leaves = f.leaves;
    if (treedef)
        *treedef = (PyObject *)d;
    return 1;
}

/* ---- unflattening ---- */
static PyObject *join_dict(tree_node *t, entry *kids)
{
    PyObject *d = t->kind == T_DICT    ? PyDict_New()
                : t->kind == T_ORDERED ? PyObject_CallNoArgs(ordered_dict)
                                       : PyObject_CallOneArg(default_dict, t->type);
    for (Py_ssize_t i = 0; d && i < t->arity; i++)
        if (PyObject_SetItem(d, PyList_GET_ITEM(t->aux, i), kids[-i].o) < 0)
            Py_CLEAR(d);
    return d;
}
static int set_fields(PyObject *o, PyObject *names, PyObject *const *values)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++)
        if (PyObject_GenericSetAttr(o, PyTuple_GET_ITEM(names, i), values[i]) < 0)
            return 0;
    return 1;
}
static PyObject *join_tuple(tree_node *t, entry *kids)
{
    PyObject *c = PyTuple_New(t->arity);
    for (Py_ssize_t i = 0; c && i < t->arity; i++)
        PyTuple_SET_ITEM(c, i, Py_NewRef(kids[-i].o));
    return c;
}
/* Neither __init__ nor __post_init__ runs: leaves may be anything while a function is transformed. */
static PyObject *join_dataclass(tree_node *t, PyObject *children)
{
    TypeInfo *i = (TypeInfo *)PyDict_GetItemWithError(registry, t->type);
    PyObject *none = i ? PyTuple_New(0) : NULL,
             *o = none ? PyBaseObject_Type.tp_new((PyTypeObject *)t->type, none, NULL) : NULL;
    Py_XDECREF(none);
    if (o && (!set_fields(o, i->flatten, &PyTuple_GET_ITEM(children, 0)) ||
              !set_fields(o, i->unflatten, &PyTuple_GET_ITEM(t->aux, 0))))
        Py_CLEAR(o);
    return o;
}
static PyObject *join_custom(tree_node *t, PyObject *children)
{
    TypeInfo *i = (TypeInfo *)PyDict_GetItemWithError(registry, t->type);
    return i ? PyObject_CallFunctionObjArgs(i->unflatten, t->aux, children, NULL) : NULL;
}
static PyObject *join(tree_node *t, entry *kids) /* kids[0], kids[-1], ... */
{
    PyObject *r;
    switch ((tree_kind)t->kind) {
    case T_NONE: return Py_NewRef(Py_None);
    case T_TUPLE: return join_tuple(t, kids);
    case T_LIST:
        r = PyList_New(t->arity);
        for (Py_ssize_t i = 0; r && i < t->arity; i++)
            PyList_SET_ITEM(r, i, Py_NewRef(kids[-i].o));
        return r;
    case T_DICT:
    case T_ORDERED:
    case T_DEFAULT: return join_dict(t, kids);
    default: break;
    }
    PyObject *c = join_tuple(t, kids);
    if (!c)
        return NULL;
    r = t->kind == T_NAMED     ? PyObject_CallMethodOneArg(t->type, name_make, c)
      : t->kind == T_DATACLASS ? join_dataclass(t, c)
                               : join_custom(t, c);
    Py_DECREF(c);
    return r;
}
PyObject *pytree_unflatten(PyObject *treedef, PyObject *const *leaves, Py_ssize_t n)
{
    TreeDef *d = (TreeDef *)treedef;
    if (n != d->leaves)
        return py_fail(PyExc_ValueError, "the structure %R has %zd leaves, got %zd", treedef, d->leaves, n);
    if (d->n == 1 && d->nodes[0].kind == T_LEAF)
        return Py_NewRef(leaves[0]);
    stack s;
    stack_init(&s);
    for (Py_ssize_t i = d->n - 1; i >= 0; i--) {
        tree_node *t = &d->nodes[i];
        PyObject *o = t->kind == T_LEAF ? Py_NewRef(leaves[--n]) : join(t, s.at + s.n - 1);
        for (Py_ssize_t k = 0; o && k < t->arity; k++)
            Py_DECREF(s.at[--s.n].o);
        if (!o || !stack_room(&s, 1)) {
            Py_XDECREF(o);
            return stack_drop(&s), NULL;
        }
        stack_put(&s, o, 0, true);
    }
    PyObject *r = Py_NewRef(s.at[0].o);
    stack_drop(&s);
    return r;
}

/* ---- where something is, for messages ---- */
static PyObject *step_name(const tree_node *t, Py_ssize_t i)
{
    switch ((tree_kind)t->kind) {
    case T_DICT:
    case T_ORDERED:
    case T_DEFAULT: return PyUnicode_FromFormat("[%R]", PyList_GET_ITEM(t->aux, i));
    case T_NAMED: {
        PyObject *f = PyObject_GetAttr(t->type, name_fields), *n = f ? PySequence_GetItem(f, i) : NULL,
                 *r = n ? PyUnicode_FromFormat(".%S", n) : NULL;
        Py_XDECREF(f);
        Py_XDECREF(n);
        return r;
    }
    case T_DATACLASS: {
        TypeInfo *info = (TypeInfo *)PyDict_GetItemWithError(registry, t->type);
        return info ? PyUnicode_FromFormat(".%S", PyTuple_GET_ITEM(info->flatten, i)) : NULL;
    }
    default: return PyUnicode_FromFormat("[%zd]", i);
    }
}
/* The path to node `at`: "[0]['w'].bias"; "" for the root. */
static PyObject *path_to(const TreeDef *d, Py_ssize_t at)
{
    Py_ssize_t n = 0, cap = 64;
    struct {
        Py_ssize_t node, next;
    } *open = PyMem_Malloc((size_t)cap * sizeof *open), *more;
    PyObject *text = open ? PyUnicode_FromString("") : PyErr_NoMemory();
    for (Py_ssize_t i = 0; text && i < at; i++) {
        while (n && open[n - 1].next == d->nodes[open[n - 1].node].arity)
            n--;
        if (n)
            open[n - 1].next++;
        if (!d->nodes[i].arity)
            continue;
        if (n == cap) {
            cap *= 2;
            if (!(more = PyMem_Realloc(open, (size_t)cap * sizeof *open)))
                break;
            open = more;
        }
        open[n].node = i;
        open[n++].next = 0;
    }
    while (n && open[n - 1].next == d->nodes[open[n - 1].node].arity)
        n--;
    for (Py_ssize_t i = 0; text && i < n && i < 64; i++) {
        PyObject *step = step_name(&d->nodes[open[i].node], open[i].next - (i + 1 < n));
        if (step)
            PyUnicode_AppendAndDel(&text, step);
        else
            Py_CLEAR(text);
    }
    PyMem_Free(open);
    return text;
}
PyObject *pytree_path(PyObject *treedef, Py_ssize_t leaf)
{
    TreeDef *d = (TreeDef *)treedef;
    for (Py_ssize_t i = 0; i < d->n; i++)
        if (d->nodes[i].kind == T_LEAF && leaf-- == 0)
            return path_to(d, i);
    return PyUnicode_FromString("");
}

/* The same for a structure of (args, kwargs): "args[0]['w']", "kwargs['x']". */
PyObject *pytree_arg_path(PyObject *treedef, Py_ssize_t leaf)
{
    PyObject *p = pytree_path(treedef, leaf), *rest = p && PyUnicode_GET_LENGTH(p) >= 3
                                                        ? PyUnicode_Substring(p, 3, PyUnicode_GET_LENGTH(p))
                                                        : NULL;
    if (rest)
        Py_SETREF(p,
                  PyUnicode_FromFormat("%s%U", PyUnicode_READ_CHAR(p, 1) == '0' ? "args" : "kwargs", rest));
    Py_XDECREF(rest);
    return p;
}

/* ---- one tree along the structure of another ---- */
static const char *const kind_names[] = {"a leaf",      "None",         "a tuple",        "a list",
                                         "a dict",      "a namedtuple", "an OrderedDict", "a defaultdict",
                                         "a dataclass", "a node"};

static int mismatch(const TreeDef *d, Py_ssize_t at, PyObject *o, const char *why)
{
    PyObject *path = path_to(d, at);
    if (path)
        py_fail(PyExc_ValueError, "pytrees differ%s%U: %s with %zd children is wanted, got a %s%s%s",
                PyUnicode_GET_LENGTH(path) ? " at " : "", path, kind_names[d->nodes[at].kind],
                d->nodes[at].arity, Py_TYPE(o)->tp_name, *why ? " " : "", why);
    Py_XDECREF(path);
    return 0;
}
static int length_mismatch(const TreeDef *d, Py_ssize_t at, PyObject *o)
{
    char why[64];
    if (!PyTuple_CheckExact(o) && !PyList_CheckExact(o))
        return mismatch(d, at, o, "");
    snprintf(why, sizeof why, "with %zd", Py_SIZE(o));
    return mismatch(d, at, o, why);
}
/* Which keys one dict has and the other has not. */
static int key_mismatch(const TreeDef *d, Py_ssize_t at, PyObject *o)
{
    PyObject *path = path_to(d, at), *keys = d->nodes[at].aux, *missing = PyList_New(0),
             *more = PyDict_Keys(o);
    int ok = path && missing && more;
    for (Py_ssize_t i = 0; ok && i < PyList_GET_SIZE(keys); i++)
        if (PyDict_Contains(o, PyList_GET_ITEM(keys, i)) != 1)
            ok = PyList_Append(missing, PyList_GET_ITEM(keys, i)) == 0;
    for (Py_ssize_t i = ok ? PyList_GET_SIZE(more) : 0; i-- > 0;)
        if (PySequence_Contains(keys, PyList_GET_ITEM(more, i)) == 1)
            PySequence_DelItem(more, i);
    if (ok) {
        PyObject *a = PyList_GET_SIZE(missing) ? PyUnicode_FromFormat("%R is missing", missing)
                                               : PyUnicode_FromString("");
        PyObject *b =
            PyList_GET_SIZE(more) ? PyUnicode_FromFormat("%R is not wanted", more) : PyUnicode_FromString("");
        if (a && b)
            py_fail(PyExc_ValueError, "pytrees differ%s%U: a dict with the keys %R is wanted; %U%s%U",
                    PyUnicode_GET_LENGTH(path) ? " at " : "", path, keys, a,
                    PyUnicode_GET_LENGTH(a) && PyUnicode_GET_LENGTH(b) ? ", " : "", b);
        Py_XDECREF(a);
        Py_XDECREF(b);
    }
    Py_XDECREF(path);
    Py_XDECREF(missing);
    Py_XDECREF(more);
    return 0;
}
static int same_keys(PyObject *o, PyObject *keys)
{
    if (PyDict_GET_SIZE(o) != PyList_GET_SIZE(keys))
        return 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys); i++)
        if (PyDict_Contains(o, PyList_GET_ITEM(keys, i)) != 1)
            return PyErr_Clear(), 0;
    return 1;
}
static int descend_custom(const TreeDef *d, Py_ssize_t at, PyObject *o, stack *s)
{
    tree_node *t = &d->nodes[at];
    PyObject *aux = NULL, *c = NULL;
    TypeInfo *i = (PyObject *)Py_TYPE(o) == t->type ? info_of(o) : NULL;
    if (!i)
        return PyErr_Occurred() ? 0 : mismatch(d, at, o, "");
    if (!(c = children_of(o, i, &aux)))
        return 0;
    int same = PyTuple_GET_SIZE(c) == t->arity ? PyObject_RichCompareBool(aux, t->aux, Py_EQ) : 0;
    int ok = same > 0  ? push_seq(s, &PyTuple_GET_ITEM(c, 0), t->arity, 0, true)
           : same == 0 ? mismatch(d, at, o, "other fixed fields")
                       : 0;
    Py_DECREF(c);
    Py_DECREF(aux);
    return ok;
}
static int descend(const TreeDef *d, Py_ssize_t at, PyObject *o, stack *s)
{
    tree_node *t = &d->nodes[at];
    PyTypeObject *type = Py_TYPE(o);
    switch ((tree_kind)t->kind) {
    case T_NONE: return o == Py_None || mismatch(d, at, o, "");
    case T_TUPLE:
    case T_LIST:
        if (type != (t->kind == T_TUPLE ? &PyTuple_Type : &PyList_Type) || Py_SIZE(o) != t->arity)
            return length_mismatch(d, at, o);
        return push_seq(s, t->kind == T_TUPLE ? &PyTuple_GET_ITEM(o, 0) : ((PyListObject *)o)->ob_item,
                        t->arity, 0, true);
    case T_DICT:
    case T_ORDERED:
    case T_DEFAULT:
        if (type != (t->kind == T_DICT
                         ? &PyDict_Type
                         : (PyTypeObject *)(t->kind == T_ORDERED ? ordered_dict : default_dict)))
            return mismatch(d, at, o, "");
        return same_keys(o, t->aux) ? push_values(s, o, t->aux, 0, true) : key_mismatch(d, at, o);
    case T_NAMED:
        if ((PyObject *)type != t->type)
            return mismatch(d, at, o, "");
        return push_seq(s, &PyTuple_GET_ITEM(o, 0), t->arity, 0, true);
    default: return descend_custom(d, at, o, s);
    }
}
/* What `tree` has in the places of d's leaves: leaves or whole subtrees. A list. */
PyObject *tree_flatten_up_to(TreeDef *d, PyObject *tree)
{
    PyObject *out = PyList_New(0);
    stack s;
    stack_init(&s);
    stack_put(&s, Py_NewRef(tree), 0, true);
    int ok = out != NULL;
    for (Py_ssize_t i = 0; ok && i < d->n; i++) {
        PyObject *o = s.at[--s.n].o;
        ok = d->nodes[i].kind == T_LEAF ? PyList_Append(out, o) == 0 : descend(d, i, o, &s);
        Py_DECREF(o);
    }
    stack_drop(&s);
    if (!ok)
        Py_CLEAR(out);
    return out;
}
/* `prefix` says one thing for whole subtrees of d: the list of what it says for each leaf. Nodes that say
 * something are those of d's nodes where the prefix is a leaf (as is_leaf and the types tell; None is one).
 */
PyObject *pytree_broadcast_prefix(PyObject *prefix, PyObject *treedef)
{
    TreeDef *d = (TreeDef *)treedef;
    PyObject *out = PyList_New(0);
    stack s;
    stack_init(&s);
    stack_put(&s, Py_NewRef(prefix), 0, true);
    int ok = out != NULL;
    for (Py_ssize_t i = 0; ok && i < d->n; i++) {
        PyObject *o = s.at[--s.n].o;
        tree_node *t = &d->nodes[i];
        bool container = o != Py_None && !plain_leaf(o) &&
                         (PyTuple_Check(o) || PyList_CheckExact(o) || PyDict_Check(o) || info_of(o));
        if (t->kind == T_LEAF)
            ok = PyList_Append(out, o) == 0;
        else if (t->kind == T_NONE)
            ok = o == Py_None || !container || mismatch(d, i, o, "");
        else if (container)
            ok = descend(d, i, o, &s);
        else if ((ok = stack_room(&s, t->arity)))
            for (Py_ssize_t k = 0; k < t->arity; k++)
                stack_put(&s, Py_NewRef(o), 0, true);
        Py_DECREF(o);
    }
    stack_drop(&s);
    if (!ok)
        Py_CLEAR(out);
    return out;
}

/* ---- what is looked up once ---- */
static PyObject *from(const char *module, const char *name)
{
    PyObject *m = PyImport_ImportModule(module), *o = m ? PyObject_GetAttrString(m, name) : NULL;
    Py_XDECREF(m);
    return o;
}
int tree_types_init(PyObject *module)
{
    if (!(info_type = py_type(module, &info_spec, NULL)) || !(registry = PyDict_New()) ||
        !(ordered_dict = from("collections", "OrderedDict")) ||
        !(default_dict = from("collections", "defaultdict")))
        return -1;
    name_fields = PyUnicode_InternFromString("_fields");
    name_dataclass = PyUnicode_InternFromString("__dataclass_fields__");
    name_static = PyUnicode_InternFromString("static");
    name_metadata = PyUnicode_InternFromString("metadata");
    name_factory = PyUnicode_InternFromString("default_factory");
    name_make = PyUnicode_InternFromString("_make");
    return name_fields && name_dataclass && name_static && name_metadata && name_factory && name_make ? 0
                                                                                                      : -1;
}
