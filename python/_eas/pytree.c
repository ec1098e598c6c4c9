/* pytree.c: nested containers as a list of leaves and a TreeDef, their structure.
 *
 * A TreeDef is its nodes in the order in which a reader meets them, parents first. Flattening works off a
 * stack of objects; unflattening walks the nodes from the last to the first and needs a stack of what is
 * built already. So nothing here calls itself, and the depth of a tree is limited only against containers
 * that contain themselves.
 */
#include "py.h"

#include <string.h>

enum { MAX_DEPTH = 1000000 };
typedef enum tree_kind {
    T_LEAF,
    T_NONE,
    T_TUPLE,
    T_LIST,
    T_DICT,
    T_NAMED,
    T_ORDERED,
    T_DEFAULT,
    T_DATACLASS,
    T_CUSTOM
} tree_kind;

typedef struct tree_node {
    uint8_t kind;
    Py_ssize_t arity;
    PyObject *type; /* of T_NAMED, T_DATACLASS, T_CUSTOM */
    PyObject *aux;  /* keys of a dict; (factory, keys); static fields; what a custom node's flatten gave */
} tree_node;
typedef struct TreeDef {
    PyObject_HEAD tree_node *nodes;
    Py_ssize_t n, leaves;
} TreeDef;

/* What is known of a type that is no built-in container. */
typedef struct TypeInfo {
    PyObject_HEAD uint8_t kind;
    /* T_CUSTOM: functions; T_DATACLASS: names of the fields that are children, and of the others */
    PyObject *flatten, *unflatten;
} TypeInfo;

static PyTypeObject *treedef_type, *info_type;
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
static void drop_nodes(tree_node *nodes, Py_ssize_t n)
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
static PyObject *register_node(PyObject *m, PyObject *args)
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
    drop_nodes(f.tree.nodes, f.tree.nodes ? f.tree.n : 0);
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
static PyObject *flatten_up_to(TreeDef *d, PyObject *tree)
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
    drop_nodes(d->nodes, d->n);
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
    if (t->kind == T_NAMED)
        names = PyObject_GetAttr(t->type, name_fields);
    else if (t->kind == T_DATACLASS)
        names = Py_XNewRef(((TypeInfo *)PyDict_GetItemWithError(registry, t->type))->flatten);
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
static PyObject *treedef_up_to(PyObject *o, PyObject *tree) { return flatten_up_to((TreeDef *)o, tree); }
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
    {"flatten_up_to", treedef_up_to, METH_O,
     "flatten_up_to(tree): what the tree has in the places of this structure's leaves"},
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
        ok = (columns[i - 1] = flatten_up_to((TreeDef *)treedef, args[i])) != NULL;
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
    {"register_pytree_node", register_node, METH_VARARGS,
     "register_pytree_node(cls, flatten, unflatten)\n--\n\nMakes instances of cls nodes: flatten(x) gives (children, aux), unflatten(aux, children) "
     "the inverse."},
    {"broadcast_prefix", FAST(broadcast_prefix),
     "broadcast_prefix(prefix, treedef)\n--\n\nWhat the prefix says for each leaf of the structure."},
    {NULL, NULL, 0, NULL},
};
static PyObject *from(const char *module, const char *name)
{
    PyObject *m = PyImport_ImportModule(module), *o = m ? PyObject_GetAttrString(m, name) : NULL;
    Py_XDECREF(m);
    return o;
}
int pytree_init(PyObject *module)
{
    if (!(treedef_type = py_type(module, &treedef_spec, "PyTreeDef")) ||
        !(info_type = py_type(module, &info_spec, NULL)) || !(registry = PyDict_New()) ||
        !(ordered_dict = from("collections", "OrderedDict")) ||
        !(default_dict = from("collections", "defaultdict")))
        return -1;
    name_fields = PyUnicode_InternFromString("_fields");
    name_dataclass = PyUnicode_InternFromString("__dataclass_fields__");
    name_static = PyUnicode_InternFromString("static");
    name_metadata = PyUnicode_InternFromString("metadata");
    name_factory = PyUnicode_InternFromString("default_factory");
    name_make = PyUnicode_InternFromString("_make");
    return name_fields && name_dataclass && name_static && name_metadata && name_factory && name_make
             ? PyModule_AddFunctions(module, functions)
             : -1;
}
