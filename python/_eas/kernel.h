/* kernel.h: what the files of Kernel share.
 *
 *   kernel.c         signature, shapes of calls, specialisations, the call
 *   kernel_trace.c   running the function on traced values
 *   kernel_apart.c   arguments that come apart
 *   kernel_look.c    kernels as plain Python, and checks
 *   kernel_type.c    compile, texts, the type
 */
#ifndef EAS_KERNEL_H
#define EAS_KERNEL_H

#include "py.h"

#define PY_X(name) OPTION_##name,
enum { LAUNCH_OPTIONS(PY_X) NOPTIONS };
#undef PY_X
extern const char *const kernel_option_names[]; /* as a call spells them */
enum { MAX_SHAPES = 32 };

typedef struct Shape {
    struct Shape *next;
    Py_ssize_t nargs;
    PyObject *kwnames;          /* counted; NULL if none */
    PyObject *options;          /* names of the options that are given, for an inner kernel; or NULL */
    int16_t option[NOPTIONS];   /* index of the argument, or -1 */
    bool has_options;
    /* per run-time parameter, then per meta parameter: index of the argument, -1: its default */
    int16_t src[];
} Shape;

typedef struct Kernel {
    PyObject_HEAD vectorcallfunc call;
    PyObject *fn, *name, *dict, *weakrefs;
    /* of a bound method: its first parameter, which is no argument of a call; else NULL */
    PyObject *self;
    PyObject *bound;            /* of a method: {class: what classmethod bound}; or NULL */
    bool rewrite;               /* Python's own branches and loops are the kernel's (eas._rewrite) */
    bool method;                /* its first parameter is self or cls, and not bound */
    PyObject *names;            /* tuple: all parameters in order */
    PyObject *defaults;         /* tuple: as long; NULL entries are stood in for by the kernel itself */
    PyObject *rt_names, *meta_names;
    int *order;                 /* run-time parameters, then meta ones: indices into names */
    int nparams, npositional, nposonly, nrt, nmeta;
    unsigned flags;
    PyObject *cache;            /* key -> Compiled */
    /* list of str: why it was traced again because of what it captured, the latest few; or NULL */
    PyObject *retraced;
    Compiled *last;
    Shape *shapes, *last_shape;
    int nshapes;
    /* Arguments that come apart (eas._struct) */
    /* per run-time parameter: what is asked of it as an array, eas._struct.SHAPE | INDEX; NULL: nothing of
     * any */
    uint8_t *arrays;
    bool expands; /* calls go to an inner kernel */
    /* str: what binding said of an array with strides that the kernel may or may not use by indices; or NULL
     */
    PyObject *why;
    PyObject *inners; /* spec -> inner kernel; or NULL */
    struct Kernel *recent; /* the inner kernel of the last call; or NULL */
    uint8_t *asked; /* and what was asked of its arguments as arrays */
    struct Kernel *of; /* of an inner kernel: whose it is */
    PyObject *spec; /* and how that one's arguments come apart */
    parts_spec *parts; /* the same, for launches; or NULL */
} Kernel;

typedef struct Call {
    Shape *shape;
    bool owned; /* shape is this call's own */
    Compiled *ck; /* counted */
    Options o;
    Bound bd;
    int failed; /* the argument that could not be bound, or -1 */
    uint8_t tags[PY_MAX_PARAMS];
    PyObject *objs[PY_MAX_PARAMS]; /* run-time, then meta */
    eas_arg args[PY_MAX_PARAMS];
} Call;

static inline PyObject *kernel_default_of(Kernel *k, int i)
{
    PyObject *d = PyTuple_GET_ITEM(k->defaults, k->order[i]);
    return d == (PyObject *)k->fn ? NULL : d; /* the function itself marks "none" */
}

/* ---- kernel.c ---- */
Shape *kernel_find_shape(Kernel *k, Py_ssize_t nargs, PyObject *kwnames, bool *owned);
void kernel_shape_free(Shape *s);
PyObject *kernel_meta_plain(PyObject *v);
Compiled *kernel_specialise(Kernel *k, PyObject *const *metas, const uint8_t *tags);
void kernel_call_done(Call *c);
int kernel_bind_call(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Call *c);
int kernel_call_options(Kernel *k, Call *c, PyObject *meta, eas_launch *l);
int kernel_read_signature(Kernel *k);
int kernel_resolve(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, Call *c);
PyObject *kernel_get(PyObject *self, PyObject *o, PyObject *type);
PyObject *kernel_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames);

/* ---- kernel_trace.c ---- */
int kernel_close_body(Trace *t);
PyObject *kernel_function_of(Kernel *k, PyObject *const *metas, bool live);
int kernel_call_with(Kernel *k, PyObject *fn, Trace *t, PyObject *symbols, PyObject *const *metas);
PyObject *kernel_meta_dict(Kernel *k, PyObject *const *metas);
int kernel_index_of(PyObject *names, PyObject *name);
Compiled *kernel_trace(Kernel *k, PyObject *const *metas, const uint8_t *tags, unsigned flags);

/* ---- kernel_apart.c ---- */
typedef PyObject *method(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *kernel_forward(Kernel *k, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                         bool all_arrays, method *f);
bool kernel_comes_apart(Kernel *k, const Call *c);

/* ---- kernel_look.c ---- */
PyObject *kernel_interpret(Kernel *k, Call *c);
PyObject *kernel_check(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
bool kernel_wants_interpret(const Call *c);

/* ---- kernel_type.c ---- */
PyObject *kernel_inner(Kernel *of, PyObject *spec, PyObject *names);
PyObject *kernel_make(PyTypeObject *type, PyObject *fn, unsigned flags, bool rewrite, PyObject *self);

#endif
