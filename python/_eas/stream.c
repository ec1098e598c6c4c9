/* stream.c: eas.Stream, eas.Event, captures, and what there is to ask of memory. */
#include "py.h"

#include <structmember.h>

/* ---- waiting without the GIL, with an ear for signals ---- */
/* What a kernel printed goes where Python's print goes. */
void hooks_print(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    PyObject *out = PySys_GetObject("stdout"), *s = PyUnicode_DecodeUTF8(text, (Py_ssize_t)n, "replace");
    if (s && out && out != Py_None)
        PyFile_WriteObject(s, out, Py_PRINT_RAW);
    Py_XDECREF(s);
}
void hooks_init(eas_launch *l, hooks *h)
{
    h->left = NULL;
    l->size = sizeof *l;
    l->interrupted = hooks_interrupted;
    l->leave = hooks_leave;
    l->enter = hooks_enter;
    l->ctx = h;
    l->print = hooks_print;
}
void hooks_leave(void *ctx) { ((hooks *)ctx)->left = PyEval_SaveThread(); }
void hooks_enter(void *ctx)
{
    PyThreadState *ts = ((hooks *)ctx)->left;
    ((hooks *)ctx)->left = NULL;
    PyEval_RestoreThread(ts);
}
int hooks_interrupted(void *ctx)
{
    bool left = ((hooks *)ctx)->left != NULL;
    if (left)
        hooks_enter(ctx);
    int r = PyErr_CheckSignals();
    if (left)
        hooks_leave(ctx);
    return r;
}
void hold_retain(void *o) { Py_INCREF((PyObject *)o); }
void hold_release(void *o) { Py_DECREF((PyObject *)o); }

static PyObject *none_or_raise(eas_status st) { return st == EAS_OK ? Py_NewRef(Py_None) : py_raise(st); }

#define WAITING \
    hooks h; \
    eas_launch l = {0}; \
    hooks_init(&l, &h)

/* ---- Stream ---- */
typedef struct Stream {
    PyObject_HEAD eas_stream *s;
    PyObject *weakrefs;
} Stream;

static PyObject *stream_wrap(PyTypeObject *type, eas_stream *s) /* steals s */
{
    Stream *o = (Stream *)type->tp_alloc(type, 0);
    if (o)
        o->s = s;
    else
        eas_stream_release(s);
    return (PyObject *)o;
}
static PyObject *stream_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *names[] = {"device", NULL};
    PyObject *device = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kw, "|O:Stream", names, &device))
        return NULL;
    eas_device *d = device == Py_None ? py_backend() : py_device(device);
    eas_stream *s;
    if (!d)
        return NULL;
    eas_status st = eas_stream_new(d, &s);
    return st == EAS_OK ? stream_wrap(type, s) : py_raise(st);
}
static void stream_dealloc(PyObject *o)
{
    Stream *s = (Stream *)o;
    PyTypeObject *type = Py_TYPE(o);
    if (s->weakrefs)
        PyObject_ClearWeakRefs(o);
    eas_stream_release(s->s);
    type->tp_free(o);
    Py_DECREF(type);
}
/* The stream an argument stands for: a Stream, or with None the current one of that device. Borrowed; NULL
 * with an exception. */
eas_stream *stream_arg(PyObject *o, const char *what, eas_device *d)
{
    eas_stream *s;
    if (o && o != Py_None) {
        if (PyObject_TypeCheck(o, G.stream))
            return ((Stream *)o)->s;
        return py_fail(PyExc_TypeError, "%s must be an eas.Stream or None, got %s", what,
                       Py_TYPE(o)->tp_name),
               NULL;
    }
    eas_status st = eas_stream_current(d, &s);
    return st == EAS_OK ? s : (py_raise(st), NULL);
}
static PyObject *stream_synchronize(PyObject *o, PyObject *unused)
{
    (void)unused;
    WAITING;
    return none_or_raise(eas_stream_synchronize(((Stream *)o)->s, &l));
}
static PyObject *stream_idle(PyObject *o, void *c)
{
    (void)c;
    return PyBool_FromLong(eas_stream_is_idle(((Stream *)o)->s));
}
static PyObject *stream_device(PyObject *o, void *c)
{
    (void)c;
    return PyUnicode_FromString(eas_device_name(eas_stream_device(((Stream *)o)->s)));
}
static PyObject *stream_repr(PyObject *o)
{
    return PyUnicode_FromFormat("<eas.Stream on '%s' at %p>",
                                eas_device_name(eas_stream_device(((Stream *)o)->s)),
                                (void *)((Stream *)o)->s);
}
static PyObject *stream_richcompare(PyObject *x, PyObject *y, int op)
{
    if ((op != Py_EQ && op != Py_NE) || !PyObject_TypeCheck(y, G.stream))
        Py_RETURN_NOTIMPLEMENTED;
    return PyBool_FromLong((((Stream *)x)->s == ((Stream *)y)->s) == (op == Py_EQ));
}
static Py_hash_t stream_hash(PyObject *o) { return (Py_hash_t)((uintptr_t)((Stream *)o)->s >> 4); }

/* `with stream:` nests per thread; what is current is kept alive. */
enum { DEPTH = 64 };
static _Thread_local struct {
    eas_stream *s, *former;
} entered[DEPTH];
static _Thread_local int depth;

static PyObject *stream_enter(PyObject *o, PyObject *unused)
{
    (void)unused;
    eas_stream *s = ((Stream *)o)->s;
    if (depth == DEPTH)
        return py_fail(PyExc_RuntimeError, "with stream: more than %d levels deep", DEPTH);
    entered[depth].s = eas_stream_retain(s);
    entered[depth++].former = eas_stream_use(eas_stream_device(s), s);
    return Py_NewRef(o);
}
static PyObject *stream_exit(PyObject *o, PyObject *args)
{
    (void)args;
    eas_stream *s = ((Stream *)o)->s;
    if (!depth || entered[depth - 1].s != s)
        return py_fail(PyExc_RuntimeError,
                       "with stream: blocks must end in the order they began, on their own thread");
    depth--;
    eas_stream_use(eas_stream_device(s), entered[depth].former);
    eas_stream_release(s);
    Py_RETURN_NONE;
}

/* ---- Event ---- */
typedef struct Event {
    PyObject_HEAD eas_event *e;
} Event;

static PyObject *event_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kw, ":Event", names))
        return NULL;
    eas_event *e;
    eas_status st = eas_event_new(&e);
    if (st != EAS_OK)
        return py_raise(st);
    Event *o = (Event *)type->tp_alloc(type, 0);
    if (o)
        o->e = e;
    else
        eas_event_release(e);
    return (PyObject *)o;
}
static void event_dealloc(PyObject *o)
{
    PyTypeObject *type = Py_TYPE(o);
    eas_event_release(((Event *)o)->e);
    type->tp_free(o);
    Py_DECREF(type);
}
static eas_stream *optional_stream(PyObject *const *args, Py_ssize_t n, const char *what)
{
    if (n > 1)
        return py_fail(PyExc_TypeError, "%s takes at most one stream, got %zd arguments", what, n), NULL;
    eas_device *d = n && args[0] != Py_None ? G.cpu : py_backend();
    return d ? stream_arg(n ? args[0] : NULL, what, d) : NULL;
}
static PyObject *event_record(PyObject *o, PyObject *const *args, Py_ssize_t n)
{
    eas_stream *s = optional_stream(args, n, "Event.record");
    if (!s)
        return NULL;
    eas_status st = eas_event_record(((Event *)o)->e, s);
    return st == EAS_OK ? Py_NewRef(o) : py_raise(st);
}
static PyObject *event_wait(PyObject *o, PyObject *const *args, Py_ssize_t n)
{
    eas_stream *s = optional_stream(args, n, "Event.wait");
    if (!s)
        return NULL;
    WAITING;
    return none_or_raise(eas_event_wait(((Event *)o)->e, s, &l));
}
static PyObject *event_synchronize(PyObject *o, PyObject *unused)
{
    (void)unused;
    WAITING;
    return none_or_raise(eas_event_synchronize(((Event *)o)->e, &l));
}
static PyObject *event_reached(PyObject *o, void *c)
{
    (void)c;
    return PyBool_FromLong(eas_event_is_reached(((Event *)o)->e));
}
static PyObject *event_elapsed(PyObject *o, PyObject *end)
{
    double seconds;
    if (!PyObject_TypeCheck(end, G.event))
        return py_fail(PyExc_TypeError, "elapsed takes an eas.Event, got %s", Py_TYPE(end)->tp_name);
    WAITING;
    eas_status st = eas_event_elapsed(((Event *)o)->e, ((Event *)end)->e, &seconds, &l);
    return st == EAS_OK ? PyFloat_FromDouble(seconds) : py_raise(st);
}
static PyObject *stream_record(PyObject *o, PyObject *const *args, Py_ssize_t n)
{
    if (n > 1 || (n && !PyObject_TypeCheck(args[0], G.event)))
        return py_fail(PyExc_TypeError, "Stream.record takes an eas.Event or nothing");
    PyObject *e = n ? Py_NewRef(args[0]) : PyObject_CallNoArgs((PyObject *)G.event);
    eas_status st = e ? eas_event_record(((Event *)e)->e, ((Stream *)o)->s) : EAS_OK;
    if (st == EAS_OK)
        return e;
    Py_DECREF(e);
    return py_raise(st);
}
static PyObject *stream_wait_event(PyObject *o, PyObject *e)
{
    if (!PyObject_TypeCheck(e, G.event))
        return py_fail(PyExc_TypeError, "Stream.wait takes an eas.Event, got %s", Py_TYPE(e)->tp_name);
    WAITING;
    return none_or_raise(eas_event_wait(((Event *)e)->e, ((Stream *)o)->s, &l));
}

#define FAST(f) (PyCFunction)(void (*)(void)) f, METH_FASTCALL
static PyMethodDef stream_methods[] = {
    {"synchronize", stream_synchronize, METH_NOARGS,
     "synchronize(): waits for everything given to it; raises the first failure among it"},
    {"record", FAST(stream_record), "record(event=None): marks this point; returns the event"},
    {"wait", stream_wait_event, METH_O, "wait(event): what is given from now on runs after the event"},
    {"__enter__", stream_enter, METH_NOARGS, NULL},
    {"__exit__", stream_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef stream_getset[] = {
    {"device", stream_device, NULL, "the device it is of", NULL},
    {"idle", stream_idle, NULL, "is everything given to it done?", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMemberDef stream_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Stream, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot stream_slots[] = {
    {Py_tp_doc,
     "Stream(device=None)\n--\n\nAn order of work on a device: launches given to one stream run one after the other, those of different streams "
     "side by side. `with stream:` makes it the one that launches of this thread go to."},
    {Py_tp_new, stream_new},
    {Py_tp_dealloc, stream_dealloc},
    {Py_tp_repr, stream_repr},
    {Py_tp_richcompare, stream_richcompare},
    {Py_tp_hash, stream_hash},
    {Py_tp_methods, stream_methods},
    {Py_tp_getset, stream_getset},
    {Py_tp_members, stream_members},
    {0, NULL},
};
static PyType_Spec Stream_spec = {"eas.Stream", sizeof(Stream), 0, Py_TPFLAGS_DEFAULT, stream_slots};
static PyMethodDef event_methods[] = {
    {"record", FAST(event_record),
     "record(stream=None): the event is reached when all given to the stream before is done; returns the event"},
    {"wait", FAST(event_wait),
     "wait(stream=None): what is given to the stream from now on runs after the event"},
    {"synchronize", event_synchronize, METH_NOARGS,
     "synchronize(): waits until it is reached; raises the first failure before it"},
    {"elapsed", event_elapsed, METH_O,
     "elapsed(end): seconds from this event to another of the same device; waits for both"},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef event_getset[] = {
    {"reached", event_reached, NULL, "is it reached? (one that was never recorded is)", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot event_slots[] = {
    {Py_tp_doc, "Event()\n--\n\nA point in a stream: record it, then wait for it in other streams or here."},
    {Py_tp_new, event_new},
    {Py_tp_dealloc, event_dealloc},
    {Py_tp_methods, event_methods},
    {Py_tp_getset, event_getset},
    {0, NULL},
};
static PyType_Spec Event_spec = {"eas.Event", sizeof(Event), 0, Py_TPFLAGS_DEFAULT, event_slots};

/* ---- captures ---- */
typedef struct Graph {
    PyObject_HEAD eas_capture *g; /* NULL until the block begins */
    PyObject *names;            /* dict of str to array, given before */
    bool ended;
} Graph;

static PyObject *graph_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    if (PyTuple_GET_SIZE(args))
        return py_fail(PyExc_TypeError, "capture takes arrays by name only: eas.capture(x=array)");
    Graph *o = (Graph *)type->tp_alloc(type, 0);
    if (o && !(o->names = kw ? PyDict_Copy(kw) : PyDict_New()))
        Py_CLEAR(o);
    return (PyObject *)o;
}
static int graph_traverse(PyObject *o, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(((Graph *)o)->names);
    return 0;
}
static int graph_clear(PyObject *o)
{
    Py_CLEAR(((Graph *)o)->names);
    return 0;
}
static void graph_dealloc(PyObject *o)
{
    Graph *g = (Graph *)o;
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    if (g->g && !g->ended)
        eas_capture_abort(g->g);
    eas_capture_release(g->g);
    graph_clear(o);
    type->tp_free(o);
    Py_DECREF(type);
}
/* An argument by itself, as a launch would take it; keep is what keeps its memory alive (new reference). */
static int bind_one(PyObject *name, PyObject *o, eas_arg *arg, PyObject **keep)
{
    Bound bd = {.kernel = name};
    int tag = bind_arg(&bd, o, 0, name, arg);
    *keep = tag ? Py_NewRef(bd.ntemps ? bd.temps[0] : o) : NULL;
    bind_done(&bd);
    return tag;
}
static int add_labels(Graph *g)
{
    PyObject *name, *value, *keep;
    Py_ssize_t pos = 0;
    eas_arg arg;
    while (PyDict_Next(g->names, &pos, &name, &value)) {
        int tag = bind_one(name, value, &arg, &keep);
        Py_XDECREF(keep); /* the dict has the object itself */
        if (!tag)
            return 0;
        if (!(tag & TAG_BUFFER))
            return py_fail(PyExc_TypeError, "capture: '%U' must be an array or a tensor, got %s", name,
                           Py_TYPE(value)->tp_name),
                   0;
        eas_status st = eas_capture_label(g->g, PyUnicode_AsUTF8(name), arg.v.data);
        if (st != EAS_OK)
            return py_raise(st), 0;
    }
    return 1;
}
static PyObject *graph_enter(PyObject *o, PyObject *unused)
{
    (void)unused;
    Graph *g = (Graph *)o;
    if (g->g)
        return py_fail(PyExc_RuntimeError, "a capture can be made once: make another with eas.capture()");
    eas_status st = eas_capture_begin(&g->g);
    if (st != EAS_OK)
        return py_raise(st);
    if (add_labels(g))
        return Py_NewRef(o);
    eas_capture_abort(g->g);
    return NULL;
}
static PyObject *graph_exit(PyObject *o, PyObject *args)
{
    Graph *g = (Graph *)o;
    PyObject *exc = Py_None;
    if (!g->g || g->ended)
        return py_fail(PyExc_RuntimeError, "this capture is not under way");
    if (PyTuple_GET_SIZE(args))
        exc = PyTuple_GET_ITEM(args, 0);
    g->ended = true;
    if (exc != Py_None) { /* the block failed: its own exception goes on */
        eas_capture_abort(g->g);
        Py_RETURN_FALSE;
    }
    WAITING;
    eas_status st = eas_capture_end(g->g, &l);
    return st == EAS_OK ? Py_NewRef(Py_False) : py_raise(st);
}
static int graph_rebind(Graph *g, PyObject *name, PyObject *value)
{
    eas_arg arg;
    PyObject *keep;
    if (!bind_one(name, value, &arg, &keep))
        return 0;
    eas_status st = eas_capture_bind(g->g, PyUnicode_AsUTF8(name), &arg, keep);
    Py_DECREF(keep);
    if (st != EAS_OK)
        return py_raise(st), 0;
    return PyDict_Contains(g->names, name) <= 0 || PyDict_SetItem(g->names, name, value) == 0;
}
static PyObject *graph_replay(PyObject *o, PyObject *const *args, Py_ssize_t n, PyObject *kwnames)
{
    Graph *g = (Graph *)o;
    WAITING;
    if (n)
        return py_fail(PyExc_TypeError, "replay takes arguments by name only: replay(x=array)");
    if (!g->g || !g->ended)
        return py_fail(PyExc_RuntimeError, "replay: the capture has not ended yet");
    for (Py_ssize_t i = 0; kwnames && i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i), *value = args[i];
        if (!PyUnicode_CompareWithASCIIString(name, "_sync")) {
            if (!PyBool_Check(value))
                return py_fail(PyExc_TypeError, "_sync must be a bool, got %s", Py_TYPE(value)->tp_name);
            l.async = value == Py_False;
        } else if (!PyUnicode_CompareWithASCIIString(name, "_stream")) {
            if (value != Py_None && !(l.stream = stream_arg(value, "_stream", NULL)))
                return NULL;
        } else if (!graph_rebind(g, name, value)) {
            return NULL;
        }
    }
    return none_or_raise(eas_capture_replay(g->g, &l));
}
static Py_ssize_t graph_len(PyObject *o) { return ((Graph *)o)->g ? eas_capture_count(((Graph *)o)->g) : 0; }

static PyMethodDef graph_methods[] = {
    {"replay", (PyCFunction)(void (*)(void))graph_replay, METH_FASTCALL | METH_KEYWORDS,
     "replay(*, _sync=True, _stream=None, **rebind): runs everything that was captured; arguments given by name replace the captured ones from now "
     "on"},
    {"__enter__", graph_enter, METH_NOARGS, NULL},
    {"__exit__", graph_exit, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot graph_slots[] = {
    {Py_tp_doc,
     "capture(**names)\n--\n\n`with eas.capture() as g:` records the launches of the block instead of running them; g.replay() runs them all. "
     "Arrays given by name can be replaced at a replay by that name."},
    {Py_tp_new, graph_new},
    {Py_tp_dealloc, graph_dealloc},
    {Py_tp_traverse, graph_traverse},
    {Py_tp_clear, graph_clear},
    {Py_tp_methods, graph_methods},
    {Py_sq_length, graph_len},
    {0, NULL},
};
static PyType_Spec Graph_spec = {"eas.capture", sizeof(Graph), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                 graph_slots};

/* ---- functions ---- */
static int optional_device(PyObject *args, PyObject *kw, const char *format, PyObject **o)
{
    static char *names[] = {"device", NULL};
    *o = Py_None;
    return PyArg_ParseTupleAndKeywords(args, kw, format, names, o);
}
static PyObject *synchronize(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    PyObject *o;
    if (!optional_device(args, kw, "|O:synchronize", &o))
        return NULL;
    eas_device *d = o == Py_None ? NULL : py_device(o);
    if (o != Py_None && !d)
        return NULL;
    WAITING;
    return none_or_raise(eas_device_synchronize(d, &l));
}
static PyObject *current_stream(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    PyObject *o;
    eas_stream *s;
    if (!optional_device(args, kw, "|O:current_stream", &o))
        return NULL;
    eas_device *d = o == Py_None ? py_backend() : py_device(o);
    if (!d || !(s = stream_arg(NULL, "", d)))
        return NULL;
    return stream_wrap(G.stream, eas_stream_retain(s));
}
static PyObject *memory_stats(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    PyObject *o;
    if (!optional_device(args, kw, "|O:memory_stats", &o))
        return NULL;
    eas_device *d = o == Py_None ? py_backend() : py_device(o);
    if (!d)
        return NULL;
    eas_memory s = eas_memory_stats(d);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "live_bytes", (unsigned long long)s.live_bytes,
                         "live_count", (unsigned long long)s.live_count, "cached_bytes",
                         (unsigned long long)s.cached_bytes, "cached_count",
                         (unsigned long long)s.cached_count, "peak_bytes", (unsigned long long)s.peak_bytes,
                         "hits", (unsigned long long)s.hits, "misses", (unsigned long long)s.misses, "limit",
                         (unsigned long long)s.limit);
}
static PyObject *empty_cache(PyObject *m, PyObject *args, PyObject *kw)
{
    (void)m;
    PyObject *o;
    if (!optional_device(args, kw, "|O:empty_cache", &o))
        return NULL;
    eas_device *d = o == Py_None ? NULL : py_device(o);
    if (o != Py_None && !d)
        return NULL;
    eas_device_empty_cache(d);
    Py_RETURN_NONE;
}
#define KW(f) (PyCFunction)(void (*)(void)) f, METH_VARARGS | METH_KEYWORDS
static PyMethodDef functions[] = {
    {"synchronize", KW(synchronize),
     "synchronize(device=None)\n--\n\nWaits for all streams of the device, or of every device; raises the first failure among their work."},
    {"current_stream", KW(current_stream),
     "current_stream(device=None)\n--\n\nThe stream that launches of this thread go to."},
    {"memory_stats", KW(memory_stats),
     "memory_stats(device=None)\n--\n\nBytes and buffers in use and kept by a device's pool, as a dict."},
    {"empty_cache", KW(empty_cache),
     "empty_cache(device=None)\n--\n\nGives the memory that the pool keeps back to the device, or to every device."},
    {NULL, NULL, 0, NULL},
};
int stream_init(PyObject *module)
{
    if (!(G.stream = py_type(module, &Stream_spec, "Stream")) ||
        !(G.event = py_type(module, &Event_spec, "Event")) ||
        !(G.graph = py_type(module, &Graph_spec, "capture")))
        return -1;
    return PyModule_AddFunctions(module, functions);
}
