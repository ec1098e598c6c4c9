/* eager_random.c: keys for random numbers that are asked for without one.
 *
 * A counter gives each call a key of its own. While a program is traced the counter is an input of the
 * program: call number j of a trace uses (counter + j) * STEP, and a run moves the counter on by as many
 * calls as there are, so a compiled function draws the same numbers as the function itself. The trips of a
 * loop have a carried counter: it starts at a key that is drawn where the loop stands and grows by one a
 * trip, and call j of a trip uses fold_in(counter, j). In vmap a key is folded with the number of the lane,
 * for those levels of vmap that lie inside the scope that the key is from.
 */
#include "eager_compile.h"

#define STEP \
    UINT64_C(0xD1342543DE82EF95) /* odd, and not the step of fold_in: keys of neighbouring calls folded with \
                                    neighbouring lanes differ */
#define LOOP_SALT UINT64_C(0xA0761D6478BD642F)

static uint64_t counter;
static _Thread_local random_scope *scope;

uint64_t random_take(int64_t n)
{
    uint64_t first = counter;
    counter += (uint64_t)n;
    return first;
}
void random_push(random_scope *s)
{
    s->outer = scope;
    s->level = vmap_levels(NULL);
    scope = s;
}
void random_pop(random_scope *s) { scope = s->outer; }

static eas_node *number(uint64_t v)
{
    eas_node *n;
    eas_status st = eas_node_number(EAS_U64, 0, (int64_t)v, 0, &n);
    return st == EAS_OK ? n : (py_raise(st), NULL);
}
static eas_node *two(const char *op, eas_node *a, eas_node *b) /* steals both */
{
    eas_node *in[2] = {a, b};
    if (a && b)
        return eager_do(op, 2, in, 0, NULL);
    eas_node_release(a);
    eas_node_release(b);
    return NULL;
}
/* A number for each lane of the levels of vmap from `from` (counted from outside) to `to`, u64. */
static eas_node *lane_numbers(int from, int to)
{
    const eas_dim *sizes;
    eas_dim count = 1;
    int64_t attr[VMAP_LEVELS + 1];
    vmap_levels(&sizes);
    for (int i = from; i < to; i++) {
        eas_status st = eas_dim_apply(EAS_DIM_MUL, count, sizes[i], &count);
        if (st != EAS_OK)
            return py_raise(st), NULL;
    }
    int64_t iota[] = {1, count, 0, EAS_U64};
    eas_node *n = eager_do("iota", 0, NULL, 4, iota);
    attr[0] = to;
    for (int i = 0; i < to; i++) /* the newest level is the first dim */
        attr[1 + i] = to - 1 - i >= from ? sizes[to - 1 - i] : 1;
    n = n ? eager_do("reshape_physical", 1, &n, to + 1, attr) : NULL;
    int64_t dims = to;
    return n ? eager_do("alias", 1, &n, 1, &dims) : NULL;
}
static eas_node *in_lanes(eas_node *key, int from, int to) /* steals key */
{
    return from < to && key ? two("fold_in", key, lane_numbers(from, to)) : key;
}
static eas_node *next_key(random_scope *s, int level);

/* The carried counter's first value, and a placeholder for it in the trips. */
static int start_loop(random_scope *s)
{
    if (!s->init && !(s->init = two("fold_in", next_key(s->outer, s->level), number(LOOP_SALT))))
        return 0;
    eas_status st = eas_node_input(-1, EAS_U64, eas_node_rank(s->init), eas_node_shape(s->init),
                                   eas_node_batch_dims(s->init), eas_node_device(s->init), &s->base);
    return st == EAS_OK || (py_raise(st), 0);
}
static int start_program(random_scope *s)
{
    eas_device *d = py_backend();
    eas_status st = d ? eas_node_input(s->index, EAS_U64, 0, NULL, 0, d, &s->base) : EAS_OK;
    return d && (st == EAS_OK || (py_raise(st), 0));
}
static eas_node *next_key(random_scope *s, int level)
{
    eas_node *key;
    if (!s)
        return in_lanes(number((random_take(1) + 1) * STEP), 0, level);
    if (!s->base && !(s->loop ? start_loop(s) : start_program(s)))
        return NULL;
    uint64_t j = (uint64_t)s->count++;
    if (s->loop)
        key = two("fold_in", eas_node_retain(s->base), number(j));
    else
        key = two("mul", two("add", eas_node_retain(s->base), number(j + 1)), number(STEP));
    return in_lanes(key, s->loop ? s->level : 0, level);
}
static PyObject *random_key(PyObject *m, PyObject *unused)
{
    (void)m;
    (void)unused;
    eas_node *n = next_key(scope, vmap_levels(NULL));
    return n ? eager_wrap(n) : NULL;
}
/* A tensor with the counter's value, for a run that draws n keys. */
eas_node *random_counter(int64_t n)
{
    eas_device *d = py_backend();
    eas_buffer *buf;
    eas_node *node = NULL;
    if (!d)
        return NULL;
    if (!eas_device_has_host_memory(d)) {
        PyObject *a = PyArray_SimpleNew(0, NULL, NPY_UINT64);
        if (a)
            *(uint64_t *)PyArray_DATA((PyArrayObject *)a) = random_take(n);
        node = a ? node_of_data(a, NULL, d) : NULL;
        Py_XDECREF(a);
        return node;
    }
    eas_status st = eas_buffer_new(d, sizeof counter, &buf);
    if (st != EAS_OK)
        return py_raise(st), NULL;
    *(uint64_t *)eas_buffer_address(buf) = random_take(n);
    st = eas_node_from_buffer(buf, EAS_U64, 0, NULL, 0, NULL, &node);
    eas_buffer_release(buf);
    return st == EAS_OK ? node : (py_raise(st), NULL);
}
static PyObject *random_state(PyObject *m, PyObject *unused)
{
    (void)m, (void)unused;
    return PyLong_FromUnsignedLongLong(counter);
}
static PyObject *random_set_state(PyObject *m, PyObject *n)
{
    (void)m;
    uint64_t v = PyLong_AsUnsignedLongLong(n);
    if (PyErr_Occurred())
        return NULL;
    counter = v;
    Py_RETURN_NONE;
}
static PyObject *random_seed(PyObject *m, PyObject *n)
{
    (void)m;
    PyObject *i = PyNumber_Index(n);
    if (!i)
        return NULL;
    uint64_t v = PyLong_AsUnsignedLongLongMask(i);
    Py_DECREF(i);
    if (scope)
        return py_fail_at(
            graph_break,
            "eager.seed sets the counter of random numbers once, when the function is traced, and not at each call; seed "
            "outside, or give the numbers a key");
    counter = v;
    Py_RETURN_NONE;
}

/* ---- loops ---- */
typedef struct LoopRandom { /* the counter of one loop that is being traced */
    PyObject_HEAD random_scope s;
} LoopRandom;
static PyTypeObject *loop_type;

static PyObject *loop_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    (void)args;
    (void)kw;
    LoopRandom *l = (LoopRandom *)type->tp_alloc(type, 0);
    if (l)
        l->s.loop = true;
    return (PyObject *)l;
}
static void loop_dealloc(PyObject *o)
{
    random_scope *s = &((LoopRandom *)o)->s;
    PyTypeObject *type = Py_TYPE(o);
    eas_node_release(s->init);
    eas_node_release(s->base);
    type->tp_free(o);
    Py_DECREF(type);
}
static PyObject *loop_restart(PyObject *o, PyObject *unused) /* the body is traced again */
{
    (void)unused;
    random_scope *s = &((LoopRandom *)o)->s;
    eas_node_release(s->base);
    s->base = NULL;
    s->count = 0;
    Py_RETURN_NONE;
}
/* Lists of none or one: the value before the loop, the placeholder, and the value for the next trip. */
static PyObject *loop_carried(PyObject *o, PyObject *unused)
{
    (void)unused;
    random_scope *s = &((LoopRandom *)o)->s;
    if (!s->base)
        return Py_BuildValue("([][][])");
    eas_node *next = two("add", eas_node_retain(s->base), number(1));
    PyObject *a = eager_wrap(eas_node_retain(s->init)), *b = eager_wrap(eas_node_retain(s->base)),
             *c = next ? eager_wrap(next) : NULL;
    if (a && b && c)
        return Py_BuildValue("([N][N][N])", a, b, c);
    Py_XDECREF(a);
    Py_XDECREF(b);
    Py_XDECREF(c);
    return NULL;
}
random_scope *random_of_loop(PyObject *o) { return Py_IS_TYPE(o, loop_type) ? &((LoopRandom *)o)->s : NULL; }

static PyMethodDef loop_methods[] = {
    {"restart", loop_restart, METH_NOARGS, "restart(): the body is traced anew"},
    {"carried", loop_carried, METH_NOARGS,
     "carried(): ([first value], [placeholder], [next value]), empty where nothing was drawn"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot loop_slots[] = {{Py_tp_doc, "The counter of random numbers in the trips of a loop."},
                                   {Py_tp_new, loop_new},
                                   {Py_tp_dealloc, loop_dealloc},
                                   {Py_tp_methods, loop_methods},
                                   {0, NULL}};
static PyType_Spec loop_spec = {"eager._LoopRandom", sizeof(LoopRandom), 0, Py_TPFLAGS_DEFAULT, loop_slots};

static PyMethodDef functions[] = {
    {"random_key", random_key, METH_NOARGS,
     "random_key(): a key that no call had before; in vmap one for each lane, in a loop one for each trip"},
    {"random_state", random_state, METH_NOARGS, "random_state(): the counter of random_key"},
    {"random_set_state", random_set_state, METH_O, "random_set_state(n): what random_state() gave"},
    {"random_seed", random_seed, METH_O, "random_seed(n): where the counter of random_key starts"},
    {NULL, NULL, 0, NULL},
};
int eager_random_init(PyObject *module)
{
    if (!(loop_type = py_type(module, &loop_spec, "LoopRandom")))
        return -1;
    return PyModule_AddFunctions(module, functions);
}
