/* eager_op.c: the operations of the table as Python objects: called as functions, methods of tensors, and
 * what TensorImpl.op is. A signature of the table says how arguments are read, so that a new row appears here
 * by itself. */
#include "py.h"

#include <ctype.h>
#include <string.h>
#include <structmember.h>

enum { MAX_PARAMS = 16, MAX_ATTR = 512, MAX_IN = 4096 };
typedef enum param_kind {
    P_TENSOR,
    P_INT,
    P_FLOAT,
    P_BOOL,
    P_AXIS,
    P_AXES,
    P_DIMS,
    P_INTS,
    P_DTYPE,
    P_WORDS
} param_kind;
typedef struct param {
    PyObject *name; /* interned */
    uint8_t kind;
    bool optional; /* tensors: x? */
    bool variadic; /* tensors: xs* */
    bool has_default;
    PyObject *def; /* default, an object */
    char words[120]; /* P_WORDS: "a|b|c" */
} param;
typedef struct Op {
    PyObject_HEAD vectorcallfunc call;
    PyObject *name, *doc;
    PyObject *called; /* another name that users know it by, for messages; or NULL */
    eas_tensor_op op;
    int n, ntensors;
    bool simple; /* only tensors, each exactly once */
    param p[MAX_PARAMS];
} Op;
PyTypeObject *tensor_op_type;
static Op **ops; /* by code; NULL: not for calling */
static int nops, op_custom, op_where;

PyObject *op_object(eas_tensor_op op) { return op < nops ? (PyObject *)ops[op] : NULL; }

/* ---- signatures ---- */
static param_kind kind_of(const char *text)
{
    static const char *const names[] = {"", "int", "float", "bool", "axis", "axes", "dims", "ints", "dtype"};
    for (int i = 1; i <= P_DTYPE; i++)
        if (!strcmp(text, names[i]))
            return (param_kind)i;
    return P_WORDS;
}
static PyObject *literal(const char *text)
{
    if (!strcmp(text, "None"))
        return Py_NewRef(Py_None);
    if (!strcmp(text, "True") || !strcmp(text, "False"))
        return PyBool_FromLong(*text == 'T');
    if (isdigit((unsigned char)*text) || *text == '-' || *text == '+' || *text == '.') {
        if (strpbrk(text, ".eE")) {
            PyObject *s = PyUnicode_FromString(text), *f = s ? PyFloat_FromString(s) : NULL;
            Py_XDECREF(s);
            return f;
        }
        return PyLong_FromString(text, NULL, 10);
    }
    if (!strcmp(text, "()"))
        return PyTuple_New(0);
    return PyUnicode_FromString(text);
}
static int parse_param(Op *o, char *text)
{
    param *p = &o->p[o->n++];
    char *kind = strchr(text, ':');
    if (!kind) {
        size_t len = strlen(text);
        p->optional = text[len - 1] == '?';
        p->variadic = text[len - 1] == '*';
        if (p->optional || p->variadic)
            text[len - 1] = 0;
        o->simple = o->simple && !p->optional && !p->variadic;
        o->ntensors++;
    } else {
        *kind++ = 0;
        char *def = strchr(kind, '=');
        if (def)
            *def++ = 0;
        o->simple = false;
        p->kind = (uint8_t)kind_of(kind);
        snprintf(p->words, sizeof p->words, "%s", kind);
        if (def && !(p->def = literal(def)))
            return 0;
        p->has_default = def != NULL;
    }
    return (p->name = PyUnicode_InternFromString(text)) != NULL;
}
static int parse_signature(Op *o, const char *sig)
{
    char text[1024], *at = NULL;
    snprintf(text, sizeof text, "%s", sig);
    o->simple = true;
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at))
        if (o->n == MAX_PARAMS || !parse_param(o, w))
            return 0;
    return 1;
}
static PyObject *text_signature(Op *o, const char *name)
{
    PyObject *t = PyUnicode_FromFormat("%s(", name);
    for (int i = 0; t && i < o->n; i++) {
        param *p = &o->p[i];
        PyObject *next = p->optional    ? PyUnicode_FromFormat("%U%s%U=None", t, i ? ", " : "", p->name)
                       : p->has_default ? PyUnicode_FromFormat("%U%s%U=%R", t, i ? ", " : "", p->name, p->def)
                                        : PyUnicode_FromFormat("%U%s%U", t, i ? ", " : "", p->name);
        Py_SETREF(t, next);
    }
    if (t)
        Py_SETREF(t, PyUnicode_FromFormat("%U)", t));
    return t;
}

/* ---- arguments ---- */
typedef struct call {
    Op *op;
    const char *name;
    int nin, nattr;
    eas_node **in, *few[8];
    int64_t attr[MAX_ATTR];
} call;
static void call_done(call *c)
{
    for (int i = 0; i < c->nin; i++)
        eas_node_release(c->in[i]);
    if (c->in != c->few)
        PyMem_Free(c->in);
}
static int room_in(call *c, Py_ssize_t more)
{
    if (c->nin + more <= 8 || c->in != c->few)
        return 1;
    eas_node **in = PyMem_New(eas_node *, MAX_IN);
    if (!in)
        return PyErr_NoMemory(), 0;
    memcpy(in, c->few, sizeof c->few);
    c->in = in;
    return 1;
}
static int add_tensor(call *c, PyObject *o, PyObject *arg)
{
    if (c->nin == MAX_IN)
        return py_fail(PyExc_ValueError, "eager.%s: at most %d tensors", c->name, MAX_IN), 0;
    eas_node *n = room_in(c, 1) ? eager_arg(o, c->name, PyUnicode_AsUTF8(arg)) : NULL;
    if (n)
        c->in[c->nin++] = n;
    return n != NULL;
}
static int add_tensors(call *c, PyObject *o, PyObject *arg)
{
    if (eager_check(o) && eas_node_rank(eager_node(o)) == eas_node_batch_dims(eager_node(o)))
        return py_fail(PyExc_TypeError, "eager.%s: %U must be a sequence of tensors", c->name, arg), 0;
    PyObject *seq = PySequence_Fast(o, "a sequence of tensors is wanted");
    if (!seq)
        return 0;
    int ok = 1;
    for (Py_ssize_t i = 0; ok && i < PySequence_Fast_GET_SIZE(seq); i++)
        ok = add_tensor(c, PySequence_Fast_GET_ITEM(seq, i), arg);
    Py_DECREF(seq);
    return ok;
}
static int word_number(call *c, param *p, PyObject *o, int64_t *out)
{
    const char *s = PyUnicode_Check(o) ? PyUnicode_AsUTF8(o) : NULL, *at = p->words;
    for (int64_t i = 0; s; i++) {
        const char *end = strchr(at, '|');
        size_t len = end ? (size_t)(end - at) : strlen(at);
        if (strlen(s) == len && !memcmp(s, at, len))
            return *out = i, 1;
        if (!end)
            break;
        at = end + 1;
    }
    return py_fail(PyExc_ValueError, "eager.%s: %U must be one of %s, got %R", c->name, p->name, p->words, o),
           0;
}
static int whole(call *c, param *p, PyObject *o, int64_t *out)
{
    if (p->kind == P_INT && !PyIndex_Check(o) && dim_check(o))
        return dim_of(o, c->name, out);
    if (!PyIndex_Check(o) || PyBool_Check(o))
        return py_fail(PyExc_TypeError, "eager.%s: %U must be an int, got %R", c->name, p->name, o), 0;
    *out = PyNumber_AsSsize_t(o, PyExc_OverflowError);
    return !(*out == -1 && PyErr_Occurred());
}
static int put(call *c, int64_t v)
{
    if (c->nattr == MAX_ATTR)
        return py_fail(PyExc_ValueError, "eager.%s: too many numbers", c->name), 0;
    c->attr[c->nattr++] = v;
    return 1;
}
/* Plain ints, the common case: 1 if that is all there is. */
static int add_ints(call *c, PyObject *o)
{
    PyObject *one[1] = {o}, **items = one;
    Py_ssize_t n = 1;
    int over = 0;
    if (PyTuple_CheckExact(o) || PyList_CheckExact(o)) {
        n = Py_SIZE(o);
        items = PyTuple_CheckExact(o) ? &PyTuple_GET_ITEM(o, 0) : ((PyListObject *)o)->ob_item;
    }
    if (c->nattr + n + 1 > MAX_ATTR)
        return 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!PyLong_CheckExact(items[i]))
            return 0;
        c->attr[c->nattr + 1 + i] = PyLong_AsLongLongAndOverflow(items[i], &over);
        if (over)
            return 0;
    }
    c->attr[c->nattr] = n;
    c->nattr += (int)n + 1;
    return 1;
}
static int add_list(call *c, param *p, PyObject *o)
{
    if (o == Py_None)
        return put(c, -1);
    if (add_ints(c, o))
        return 1;
    if (p->kind != P_DIMS && PyUnicode_Check(o))
        return py_fail(PyExc_TypeError, "eager.%s: %U must be an int or a sequence of ints, got %R", c->name,
                       p->name, o),
               0;
    int at = c->nattr;
    if (!put(c, 0))
        return 0;
    char what[160];
    snprintf(what, sizeof what, "eager.%s: %s", c->name, PyUnicode_AsUTF8(p->name));
    int n = dims_of(o, what, c->attr + at + 1, MAX_ATTR - at - 1);
    c->attr[at] = n;
    c->nattr += n > 0 ? n : 0;
    return n >= 0;
}
static int add_attr(call *c, param *p, PyObject *o)
{
    int64_t v;
    eas_dtype dt;
    if (p->kind == P_AXES || p->kind == P_DIMS || p->kind == P_INTS)
        return add_list(c, p, o);
    if (o == Py_None && (p->kind == P_AXIS || (p->has_default && p->def == Py_None)))
        return put(c, INT64_MIN);
    switch ((param_kind)p->kind) {
    case P_FLOAT: {
        double f = PyFloat_AsDouble(o);
        if (f == -1 && PyErr_Occurred())
            return py_fail(PyExc_TypeError, "eager.%s: %U must be a number, got %R", c->name, p->name, o), 0;
        memcpy(&v, &f, sizeof v);
        return put(c, v);
    }
    case P_BOOL: {
        int yes = PyObject_IsTrue(o);
        return yes >= 0 && put(c, yes);
    }
    case P_DTYPE: return eager_dtype(o, c->name, &dt) && put(c, dt);
    case P_WORDS: return word_number(c, p, o, &v) && put(c, v);
    default: return whole(c, p, o, &v) && put(c, v);
    }
}
/* Python numbers alone: they are as an array of them would be, unless the call says what they become. */
static int settle_numbers(call *c)
{
    for (int i = 0; i < c->op->n; i++)
        if (c->op->p[i].kind == P_DTYPE)
            return 1;
    int first = c->op->op == op_where; /* its condition is no value */
    for (int i = first; i < c->nin; i++)
        if (!eas_node_is_weak(c->in[i]))
            return 1;
    for (int i = first; i < c->nin; i++) {
        int64_t v;
        double f;
        eas_node *n;
        if (eas_node_dtype(c->in[i]) != EAS_F64 || !eas_node_number_value(c->in[i], &v, &f))
            continue;
        eas_status st = eas_node_number(EAS_F32, 1, 0, f, &n);
        if (st != EAS_OK)
            return py_raise(st), 0;
        eas_node_release(c->in[i]);
        c->in[i] = n;
    }
    return 1;
}
static int find_param(Op *o, PyObject *name)
{
    for (int i = 0; i < o->n; i++)
        if (o->p[i].name == name)
            return i;
    for (int i = 0; i < o->n; i++)
        if (PyUnicode_Compare(o->p[i].name, name) == 0)
            return i;
    return -1;
}
static bool is_list_kind(const param *p)
{
    return p->kind == P_DIMS || p->kind == P_INTS || p->kind == P_AXES;
}

/* Arguments into value[], in the order of the signature. x.reshape(2, 3): sizes may be given one by one if
 * nothing comes after them. *spread: a tuple of them. */
static int bind(Op *o, const char *name, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                PyObject **value, PyObject **spread)
{
    int first = o->ntensors;
    if (nargs > first + 1 && first < o->n && is_list_kind(&o->p[first]) && dim_check(args[first]) &&
        nargs > o->n) {
        if (!(*spread = PyTuple_New(nargs - first)))
            return 0;
        for (Py_ssize_t i = first; i < nargs; i++)
            PyTuple_SET_ITEM(*spread, i - first, Py_NewRef(args[i]));
        value[first] = *spread;
        nargs = first;
    }
    if (nargs > o->n)
        return py_fail(PyExc_TypeError, "eager.%s takes %d arguments, %zd are given", name, o->n, nargs), 0;
    for (Py_ssize_t i = 0; i < nargs; i++)
        value[i] = args[i];
    Py_ssize_t kw = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    PyObject *const *named = args + (*spread ? nargs + PyTuple_GET_SIZE(*spread) : nargs);
    for (Py_ssize_t i = 0; i < kw; i++) {
        int k = find_param(o, PyTuple_GET_ITEM(kwnames, i));
        if (k < 0)
            return py_fail(PyExc_TypeError, "eager.%s has no argument '%U'; it takes %S", name,
                           PyTuple_GET_ITEM(kwnames, i), o->doc),
                   0;
        if (value[k])
            return py_fail(PyExc_TypeError, "eager.%s: argument '%U' is given twice", name,
                           PyTuple_GET_ITEM(kwnames, i)),
                   0;
        value[k] = named[i];
    }
    return 1;
}
static int read_arguments(call *c, PyObject **value)
{
    Op *o = c->op;
    for (int i = 0; i < o->n; i++) {
        param *p = &o->p[i];
        PyObject *v = value[i] ? value[i] : p->has_default ? p->def : NULL;
        if (p->kind == P_TENSOR && p->optional && (!v || v == Py_None))
            continue;
        if (!v)
            return py_fail(PyExc_TypeError, "eager.%s: argument '%U' is missing; it takes %S", c->name,
                           p->name, o->doc),
                   0;
        if (!(p->kind != P_TENSOR ? add_attr(c, p, v)
              : p->variadic       ? add_tensors(c, v, p->name)
                                  : add_tensor(c, v, p->name)))
            return 0;
    }
    return settle_numbers(c);
}
/* What users' operations give is recorded as theirs. */
static int remember(Op *o, eas_node *out, PyObject **value, eas_node *const *in, int nin)
{
    bool any = eas_node_is_traced(out), objects = false;
    for (int i = 0; i < nin; i++) {
        if (in[i] == out)
            return 1; /* nothing was to be done */
        objects = objects || eas_node_object(in[i]);
    }
    if (objects && !shard_follow(out, nin, in))
        return 0;
    if ((!any && !objects) || o->op == op_custom)
        return 1;
    PyObject *args = PyTuple_New(o->ntensors), *kwargs = PyDict_New();
    int ok = args && kwargs;
    for (int i = 0; ok && i < o->n; i++)
        if (i < o->ntensors)
            PyTuple_SET_ITEM(args, i, Py_NewRef(value[i] ? value[i] : Py_None));
        else if (value[i])
            ok = PyDict_SetItem(kwargs, o->p[i].name, value[i]) == 0;
    ok = ok && impl_record(&out, 1, (PyObject *)ops[o->op], args, kwargs, NULL);
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return ok;
}
/* Tensors only, each given once and as what it is: NULL without an exception if it is not that simple. */
static PyObject *simple_call(Op *o, PyObject *const *args)
{
    eas_node *in[MAX_PARAMS], *out;
    for (int i = 0; i < o->n; i++) {
        if (!Py_IS_TYPE(args[i], G.eager))
            return NULL;
        in[i] = eager_node(args[i]);
        if (eas_node_is_traced(in[i]) || eas_node_object(in[i]))
            return NULL;
    }
    eas_site_set(site_here());
    eas_status st = eas_node_apply(o->op, o->n, in, 0, NULL, &out);
    return eager_result(st, out);
}
/* The name that the user called, in place of the table's, in the exception that is set. */
static void rename_error(Op *o)
{
    PyObject *type, *e, *tb, *text = NULL;
    const char *const forms[] = {"eager.%U", "takes %U("};
    PyErr_Fetch(&type, &e, &tb);
    PyErr_NormalizeException(&type, &e, &tb);
    text = e ? PyObject_Str(e) : NULL;
    for (int i = 0; i < 2 && text; i++) {
        PyObject *from = PyUnicode_FromFormat(forms[i], o->name),
                 *to = PyUnicode_FromFormat(forms[i], o->called);
        Py_SETREF(text, from && to ? PyUnicode_Replace(text, from, to, 1) : NULL);
        Py_XDECREF(from);
        Py_XDECREF(to);
    }
    PyObject *args = text ? PyTuple_Pack(1, text) : NULL;
    if (args)
        PyObject_SetAttrString(e, "args", args);
    PyErr_Clear();
    Py_XDECREF(args);
    Py_XDECREF(text);
    PyErr_Restore(type, e, tb);
}
static PyObject *call_it(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);
static PyObject *op_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    PyObject *r = call_it(self, args, nargsf, kwnames);
    if (!r && ((Op *)self)->called)
        rename_error((Op *)self);
    return r;
}
static inline PyObject *call_it(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Op *o = (Op *)self;
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (o->simple && nargs == o->n && !kwnames && !eager_tracing) {
        PyObject *r = simple_call(o, args);
        if (r || PyErr_Occurred())
            return r;
    }
    for (Py_ssize_t i = 0, all = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0); i < all; i++)
        if (override_wanted(args[i]))
            return override_vector(self, args, nargs, kwnames);
    PyObject *value[MAX_PARAMS] = {NULL}, *spread = NULL, *r = NULL;
    call c;
    c.op = o;
    c.name = PyUnicode_AsUTF8(o->name);
    c.nin = c.nattr = 0;
    c.in = c.few;
    eas_node *out = NULL;
    if (bind(o, c.name, args, nargs, kwnames, value, &spread) && read_arguments(&c, value)) {
        eas_site_set(site_here());
        eas_status st = eas_node_apply(o->op, c.nin, c.in, c.nattr, c.attr, &out);
        if (st != EAS_OK)
            py_raise(st);
        else if (remember(o, out, value, c.in, c.nin))
            r = eager_result(EAS_OK, out);
        else
            eas_node_release(out);
    }
    call_done(&c);
    Py_XDECREF(spread);
    return r;
}

/* ---- the objects ---- */
static PyObject *op_get(PyObject *self, PyObject *obj, PyObject *type)
{
    (void)type;
    return obj && obj != Py_None ? PyMethod_New(self, obj) : Py_NewRef(self);
}
static PyObject *op_repr(PyObject *self) { return PyUnicode_FromFormat("<eager.%U>", ((Op *)self)->name); }
static PyObject *op_doc(PyObject *self, void *c)
{
    (void)c;
    return PyUnicode_FromFormat("%U\n\n%s", ((Op *)self)->doc, eas_tensor_op_at(((Op *)self)->op).doc);
}
static PyObject *op_kind(PyObject *self, void *c)
{
    (void)c;
    return PyUnicode_FromString(eas_tensor_op_at(((Op *)self)->op).kind);
}
static PyObject *op_family(PyObject *self, void *c)
{
    (void)c;
    int hidden;
    const char *family = eas_tensor_op_family(((Op *)self)->op, &hidden);
    return family && !hidden ? PyUnicode_FromString(family) : Py_NewRef(Py_None);
}
static PyObject *op_derivative(PyObject *self, void *c)
{
    (void)c;
    return PyUnicode_FromString(eas_tensor_op_at(((Op *)self)->op).derivative);
}
static PyObject *op_signature(PyObject *self, void *c)
{
    (void)c;
    return PyUnicode_FromString(eas_tensor_op_at(((Op *)self)->op).signature);
}
static PyObject *op_text_signature(PyObject *self, void *c)
{
    (void)c;
    PyObject *d = ((Op *)self)->doc;
    Py_ssize_t open = PyUnicode_FindChar(d, '(', 0, PyUnicode_GET_LENGTH(d), 1);
    return PyUnicode_Substring(d, open, PyUnicode_GET_LENGTH(d));
}
static PyObject *no_rule(PyObject *self, const char *rule)
{
    return py_fail(PyExc_NotImplementedError, "eager.%U: its %s rule is in the library's table of operations",
                   ((Op *)self)->name, rule);
}
#define RULE(name) \
    static PyObject *op_##name(PyObject *self, PyObject *args, PyObject *kw) \
    { \
        (void)args, (void)kw; \
        return no_rule(self, #name); \
    }
RULE(vjp_rule)
RULE(jvp_rule)
RULE(sharding_rule)
/* The same operation under another name. */
static PyObject *op_as(PyObject *self, PyObject *name)
{
    if (!PyUnicode_Check(name))
        return py_fail(PyExc_TypeError, "_called(name)");
    Op *from = (Op *)self, *o = PyObject_New(Op, tensor_op_type);
    if (!o)
        return NULL;
    memcpy((char *)o + sizeof(PyObject), (const char *)from + sizeof(PyObject), sizeof *o - sizeof(PyObject));
    Py_INCREF(o->name);
    Py_INCREF(o->doc);
    o->called = Py_NewRef(name);
    for (int i = 0; i < o->n; i++) {
        Py_INCREF(o->p[i].name);
        Py_XINCREF(o->p[i].def);
    }
    return (PyObject *)o;
}
static PyObject *op_maxpr(PyObject *self, PyObject *args, PyObject *kw)
{
    return PyObject_Call(self, args, kw);
}
static PyObject *op_reduce(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *m = PyImport_ImportModule("eas._eas"), *f = m ? PyObject_GetAttrString(m, "tensor_op") : NULL;
    PyObject *r = f ? Py_BuildValue("O(O)", f, ((Op *)self)->name) : NULL;
    Py_XDECREF(f);
    Py_XDECREF(m);
    return r;
}
static PyGetSetDef op_getset[] = {
    {"__doc__", op_doc, NULL, NULL, NULL},
    {"__text_signature__", op_text_signature, NULL, NULL, NULL},
    {"kind", op_kind, NULL, "what it is made into", NULL},
    {"derivative", op_derivative, NULL, "where its derivative comes from; \"zero\": it has none", NULL},
    {"family", op_family, NULL, "the operations that it belongs with; None: it is called by another function",
     NULL},
    {"signature", op_signature, NULL, "as it stands in the table", NULL},
    {NULL, NULL, NULL, NULL, NULL}};
static PyMemberDef op_members[] = {{"name", T_OBJECT, offsetof(Op, name), READONLY, "its name"},
                                   {"__name__", T_OBJECT, offsetof(Op, name), READONLY, NULL},
                                   {"__qualname__", T_OBJECT, offsetof(Op, name), READONLY, NULL},
                                   {"__vectorcalloffset__", T_PYSSIZET, offsetof(Op, call), READONLY, NULL},
                                   {NULL, 0, 0, 0, NULL}};
#define KW(f) (PyCFunction)(void (*)(void)) f, METH_VARARGS | METH_KEYWORDS
static PyMethodDef op_methods[] = {
    {"_called", op_as, METH_O, "_called(name): the operation under another name, which messages use"},
    {"maxpr", KW(op_maxpr), "maxpr(...)\n--\n\nRecords the operation."},
    {"vjp_rule", KW(op_vjp_rule), NULL},
    {"jvp_rule", KW(op_jvp_rule), NULL},
    {"sharding_rule", KW(op_sharding_rule), NULL},
    {"__reduce__", op_reduce, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyType_Slot op_slots[] = {
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, op_get},
    {Py_tp_repr, op_repr},
    {Py_tp_getset, op_getset},
    {Py_tp_members, op_members},
    {Py_tp_methods, op_methods},
    {0, NULL},
};
static PyType_Spec op_spec = {"eager.ops.operation.TensorOp", sizeof(Op), 0,
                              Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
                                  Py_TPFLAGS_DISALLOW_INSTANTIATION,
                              op_slots};

static Op *op_new(eas_tensor_op code, eas_tensor_op_info info)
{
    Op *o = PyObject_New(Op, tensor_op_type);
    if (!o)
        return NULL;
    memset(&o->call, 0, sizeof *o - offsetof(Op, call));
    o->call = op_call;
    o->op = code;
    o->name = PyUnicode_InternFromString(info.name);
    return o->name && parse_signature(o, info.signature) && (o->doc = text_signature(o, info.name)) ? o
                                                                                                    : NULL;
}
/* Data and calls of kernels are made by functions of their own. */
static bool callable(eas_tensor_op_info i)
{
    return strcmp(i.kind, "leaf") && strcmp(i.kind, "input") && strcmp(i.kind, "const") &&
           strcmp(i.kind, "call") && strcmp(i.kind, "control") && strcmp(i.kind, "collective") &&
           strcmp(i.kind, "compact") && strcmp(i.name, "shard") && strcmp(i.kind, "result");
}
static PyObject *tensor_op(PyObject *m, PyObject *name)
{
    (void)m;
    const char *text = PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    int code = text ? eas_tensor_op_find(text) : -1;
    if (code < 0 || !ops[code])
        return PyErr_Occurred() ? NULL : py_fail(PyExc_ValueError, "there is no operation %R", name);
    return Py_NewRef(ops[code]);
}
static PyMethodDef functions[] = {
    {"tensor_op", tensor_op, METH_O, "tensor_op(name): the operation of that name"}, {NULL, NULL, 0, NULL}};

int eager_op_init(PyObject *module)
{
    nops = eas_tensor_op_count();
    op_custom = eas_tensor_op_find("custom");
    op_where = eas_tensor_op_find("where");
    PyObject *dict = PyDict_New();
    if (!dict || !(tensor_op_type = py_type(module, &op_spec, "TensorOp")) ||
        !(ops = PyMem_Calloc((size_t)nops, sizeof *ops)))
        return -1;
    for (int i = 0; i < nops; i++) {
        eas_tensor_op_info info = eas_tensor_op_at((eas_tensor_op)i);
        bool made = callable(info), constant = !strcmp(info.name, "constant");
        if (!made && !constant)
            continue;
        if (!(ops[i] = op_new((eas_tensor_op)i, info)))
            return -1;
        if (constant) /* what tensors with a copy of data say they were made by */
            continue;
        if (PyDict_SetItem(dict, ops[i]->name, (PyObject *)ops[i]) < 0)
            return -1;
        bool method = ops[i]->n && ops[i]->p[0].kind == P_TENSOR && !ops[i]->p[0].variadic;
        if (method && !PyObject_HasAttr((PyObject *)G.eager, ops[i]->name) &&
            PyObject_SetAttr((PyObject *)G.eager, ops[i]->name, (PyObject *)ops[i]) < 0)
            return -1;
    }
    int bad =
        PyModule_AddObjectRef(module, "tensor_ops", dict) < 0 || PyModule_AddFunctions(module, functions) < 0;
    Py_DECREF(dict);
    return bad ? -1 : 0;
}
