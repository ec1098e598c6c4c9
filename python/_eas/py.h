/* py.h: what the files of the extension share. The extension converts objects, counts references and reports
 * errors; everything with an algorithm in it is behind eas.h.
 *
 *   errors.c   status -> exception; the user's "file:line: "
 *   dtype.c    DType objects; NumPy, torch and buffer-protocol element types -> eas_dtype
 *   trace.c    the trace of a kernel body, per thread
 *   value.c    traced values and buffers: Python's number protocol -> eas_builder_apply
 *   args.c     arguments of mk's functions
 *   mkfuncs.c  the functions of mk: identity, memory, element-wise
 *   blocks.c   shapes, reductions, scans, random numbers
 *   hints.c    what acts while tracing: static_assert, static_print, assume, multiple_of
 *   live.c     values with data: _interpret=True
 *   ctrl.c     mk.range, mk.if_, mk.else_, mk.while_;  var.c mk.var
 *   flow.c     Python's own if, while and for (eas._flow)
 *   irview.c   finished IR, for looking at
 *   tensor.c   eas.Tensor;  view.c its views, copies and protocols;  dlpack.c its interchange
 *   bind.c     Python arguments -> eas_arg
 *   torch.c    those that are torch's;  torch_direct.c the quickest way to read them
 *   guard.c    what a trace captured, and whether it changed
 *   compiled.c CompiledKernel, launches
 *   stream.c   Stream, Event, captures, memory
 *   parts.c    arguments that come apart, at a launch like the one before
 *   kernel*.c  Kernel: signature, specialisations, vectorcall (kernel.h)
 *   module.c   the module itself
 *
 * Lazy tensors:
 *   pytree.c         nested containers: leaves and structure; treedef.c: the latter as an object
 *   eager_site.c     the user's lines as numbers; what may only be let go with the GIL
 *   eager_dim.c      Dim, SymbolicDim, Shape
 *   eager_tensor.c   eager.Tensor: operators, attributes;  eager_data.c its data: in, out, realising
 *   eager_impl.c     TensorImpl, OutputRefs: what is kept with a node
 *   eager_op.c       the operations of the table as functions and methods
 *   eager_index.c    x[key], x[key] = v, x.at[key]
 *   eager_call.c     kernels of the user's as operations
 *   eager_override.c operations on complex numbers and dtypes that are only stored
 *   eager_loop.c     loops and branches
 *   eager_random.c   keys for random numbers that are asked for without one
 *   eager_shard.c    shardings of results
 *   eager_cost.c     predictions for meshes, layouts that are chosen
 *   dist.c           the ranks of a job
 *   eager_vmap.c     vmap;  eager_diff.c  derivatives
 *   eager_key.c, eager_compile.c, eager_function.c  compiled functions
 *   eager_io.c       tensors in files
 */
#ifndef PY_H
#define PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_25_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL eas_ARRAY_API
#ifndef EAS_IMPORT_ARRAY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include "eas.h"

#include <stdbool.h>

/* Python's slot tables hold functions as void *. */
#pragma GCC diagnostic ignored "-Wpedantic"

enum { PY_MAX_PARAMS = 256 };

/* ---- module.c ---- */
/* One interpreter, one state: NumPy's C API table is process-wide as well. */
typedef struct py_state {
    PyTypeObject *dtype, *trace, *value, *buffer, *var, *range, *branch, *whil, *ir, *tensor, *compiled,
        *kernel, *guards, *constexpr, *stream, *event, *graph, *eager, *undefined;
    PyObject *dtypes[EAS_NDTYPES];
    PyObject *package;      /* str: the folder of the package, with a separator at its end */
    PyObject *package2;     /* the same of eager */
    PyObject *kernel_dict;  /* globals of eas.kernel: launches look get_runtime up there */
    PyObject *get_runtime;  /* our own */
    PyObject *environ;      /* os.environ._data, or NULL: EAS_BACKEND is looked up there at each launch */
    PyObject *backend_key;  /* its key */
    PyObject *interpret_key; /* EAS_INTERPRET's */
    PyObject *debug_key; /* EAS_DEBUG's */
    eas_device *cpu;
    PyTypeObject *torch_tensor, *torch_parameter; /* torch's, once met */
    int bf16_num;           /* NumPy's type number of bfloat16; -1 until seen */
} py_state;
extern py_state G;
/* interned names */
/* clang-format off */
#define PY_NAMES(X) \
    X(get_runtime) X(run) X(sync) X(nthreads) X(grid) X(tptg) X(shape) X(torch) X(Tensor) X(data_ptr) X(numel) X(is_cpu) X(is_contiguous) X(dtype) X(requires_grad) \
    X(device) X(strides) X(stride) X(__dlpack__) X(__dlpack_device__) X(__dlpack_c_exchange_api__) X(max_version) X(copy) X(is_mps) X(is_neg) X(__annotations__) X(IRModule) X(body) X(benchmark) X(_eas)
/* clang-format on */
typedef struct py_names {
#define X(n) PyObject *n;
    PY_NAMES(X)
#undef X
} py_names;
extern py_names N;

PyTypeObject *py_type(PyObject *module, PyType_Spec *spec, const char *name); /* made and, if name, added */

/* ---- errors.c ---- */
PyObject *py_raise(eas_status st);                 /* from eas_error_message(); NULL */
/* an IndexError of a launch names the argument's shape, too */
void py_tell_shape(PyObject *names, PyObject *const *args, int n);
PyObject *py_fail(PyObject *exc, const char *fmt, ...);    /* NULL */
PyObject *py_fail_at(PyObject *exc, const char *fmt, ...); /* the same with the user's "file:line: " */
/* The user's position: innermost Python frame outside the package. *file is valid while that code object
 * lives. */
bool py_user_line(const char **file, int *line);
bool py_is_ours(PyFrameObject *f); /* code of the package */

/* ---- dtype.c ---- */
int py_dtype_init(PyObject *module);
/* 1 and *out; 0 with TypeError naming `what` */
int py_to_dtype(PyObject *o, const char *what, eas_dtype *out);
int py_dtype_of_npy(PyArray_Descr *d);      /* eas_dtype or -1 */
int py_dtype_to_npy(eas_dtype dt);          /* type number; -1 with an exception */
int py_dtype_of_format(const char *format, Py_ssize_t itemsize); /* buffer protocol */
int py_dtype_of_torch(PyObject *torch, PyObject *dtype);
static inline PyObject *py_dtype_object(eas_dtype dt) { return Py_NewRef(G.dtypes[dt]); }
PyObject *py_npy_dtype(eas_dtype dt);       /* np.dtype */

/* ---- trace.c ---- */
struct Var;
typedef struct Frame Frame;
typedef struct Scope Scope;
typedef struct Trace {
    PyObject_HEAD eas_builder *b;     /* NULL once the trace is over */
    PyObject *name;
    struct Var **vars;
    int nvars, capvars; /* living variables, borrowed */
    Frame *frames;      /* open control constructs, innermost first */
    Frame *pending;     /* an if that may yet get its else */
    Scope *scopes;      /* every body so far; 0 is the kernel's own */
    int nscopes, capscopes;
    bool live;          /* instructions run as they are traced: _interpret=True */
    eas_value mask;     /* lanes that take part where it is not 0: loads, stores and variables heed it */
    int64_t threads;    /* that mk.tid said; 0: nothing yet */
    bool checks;        /* indices of arrays are checked against their sizes */
    /* set of names: buffers whose sizes the body asked for, and which are not known; or NULL */
    PyObject *wanted;
    int busy;           /* C code holds values that no object stands for: nothing may be swept */
} Trace;
Trace *trace_new(PyObject *name, unsigned flags);
Trace *trace_current(void);
extern int trace_active;               /* how many traces are open on all threads: 0 spares the look */
Trace *trace_push(Trace *t);           /* makes t current; returns the former one */
void trace_pop(Trace *former);
/* The current trace, positioned at the user's line, any pending if closed; RuntimeError outside a trace. */
Trace *trace_enter(const char *what);
int trace_ok(Trace *t);                /* 1, or 0 with the builder's error raised */
eas_value trace_mask(Trace *t, eas_value mask); /* a mask of the user's (0: none) and the trace's own */
/* 0 with an exception where only some lanes take part; memory: and where one condition for all lanes decides,
 * too. */
int trace_whole(Trace *t, const char *fn, bool memory);
extern PyType_Spec Trace_spec;

/* ---- value.c ---- */
typedef struct Value { /* Value and Buffer */
    PyObject_HEAD Trace *trace;
    PyObject *name; /* of a parameter, else NULL */
    eas_value v;
    int scope; /* the body it was made in; see scope_open */
    PyObject *array; /* of a buffer: how it lies in memory (array.c), or NULL: not known */
} Value;
extern PyType_Spec Value_spec, Buffer_spec;
int value_init(PyObject *module);
/* shared by Value and Buffer (buffer.c) */
void value_dealloc(PyObject *o);
Py_hash_t value_hash(PyObject *o);
PyObject *value_get_dtype(PyObject *o, void *c);
PyObject *value_get_name(PyObject *o, void *c);
PyObject *value_new(Trace *t, eas_value v); /* raises what the builder has to say */
PyObject *buffer_new(Trace *t, eas_value v, PyObject *name);
PyObject *value_named(Trace *t, eas_value v, PyObject *name);
/* 1: converted; 0: not a number or value (no exception); -1: exception */
int value_of(Trace *t, PyObject *o, eas_value *out);
/* The same, TypeError in place of 0: "mk.load: offset must be ..., got ..." */
int value_arg(Trace *t, PyObject *o, const char *fn, const char *arg, eas_value *out);
int buffer_arg(Trace *t, PyObject *o, const char *fn, const char *arg, eas_value *out);
bool value_check(PyObject *o); /* a Value or a Var */
bool number_check(PyObject *o); /* a Python or NumPy number */
/* clang-format off */
#define VALUE_OPS(X) \
    X(add) X(sub) X(mul) X(div) X(floordiv) X(mod) X(and) X(or) X(xor) X(not) X(shl) X(shr) X(neg) X(abs) X(lt) X(le) X(gt) X(ge) X(eq) X(ne) X(min) X(max) \
    X(where) X(fma) X(sqrt) X(rsqrt) X(pow)
/* clang-format on */
typedef struct value_ops {
#define X(n) eas_op n;
    VALUE_OPS(X)
#undef X
} value_ops;
extern value_ops OP;
PyObject *value_power(Trace *t, PyObject *x, PyObject *y);
/* NumPy's protocols: operators with its scalars; anything else is told what of mk to write */
PyObject *value_array_ufunc(PyObject *self, PyObject *args, PyObject *kw);
PyObject *value_array_function(PyObject *self, PyObject *args);
PyObject *value_round(PyObject *self, PyObject *args);
PyObject *value_format(PyObject *self, PyObject *spec);
Py_ssize_t value_len(PyObject *x); /* refused */

/* ---- array.c ---- */
int array_init(PyObject *module);
PyObject *array_shape(PyObject *o, void *which); /* 0: its shape, 1: its strides */
PyObject *array_ndim(PyObject *o, void *unused);
PyObject *array_size(PyObject *o, void *unused);
PyObject *array_T(PyObject *o, void *unused);
PyObject *array_get(PyObject *buf, PyObject *key);
int array_set(PyObject *buf, PyObject *key, PyObject *value);
PyObject *array_new(PyObject *buf, PyObject *array); /* steals array */
PyObject *array_flat(PyObject *buf, int64_t n); /* a buffer of n elements in a row; steals buf */
/* 0 with an exception */
int array_at(Trace *t, PyObject *buf, PyObject *off, const char *fn, eas_value *b, eas_value *o);
int array_whole(PyObject *buf, const char *fn); /* 0 with an exception if offsets into it mean nothing */

/* ---- live.c ---- */
/* the data of a Value or Buffer; TypeError while tracing */
PyObject *live_array(PyObject *o);
PyObject *live_item(PyObject *o, const char *what); /* of a value that is one number */
PyObject *live_repr(PyObject *o);
PyObject *live_numpy(PyObject *o, PyObject *unused);
PyObject *live_item_method(PyObject *o, PyObject *unused);
PyObject *live_dunder_array(PyObject *o, PyObject *args, PyObject *kw);
typedef struct live_launch {
    PyObject *name, *names; /* of the kernel; of its run-time parameters */
    unsigned flags;
    const uint8_t *tags;
    const eas_arg *args;
    int n;
    const eas_launch *opts;
    PyObject *tptg;
    int (*body)(void *kernel, Trace *t); /* runs one program; 0 with an exception */
    void *kernel;
} live_launch;
PyObject *live_run(const live_launch *l); /* None */

/* ---- args.c ---- */
typedef struct sig {
    const char *fn;
    int n, required;
    const char *names[8];
} sig;
/* args by position and name into out[]; absent ones are NULL. */
int mk_parse(const sig *s, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, PyObject **out);
int static_int(PyObject *o, const char *fn, const char *arg, int64_t *out); /* known while tracing */
/* an int, or a tuple or list of up to 4 */
int shape_arg(PyObject *o, const char *fn, int64_t shape[4], int *rank);
/* A function of mk: FN(name) { PARSE({"name", 2, 1, {"x", "y"}}); ... in[0], in[1] } */
#define FN(name) \
    static PyObject *mk_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
#define PARSE(...) \
    static const sig s = __VA_ARGS__; \
    PyObject *in[8]; \
    (void)self; \
    Trace *t = trace_enter(s.fn); \
    if (!t || !mk_parse(&s, args, nargs, kwnames, in)) \
    return NULL
#define ROW(name, doc) {#name, (PyCFunction)(void (*)(void))mk_##name, METH_FASTCALL | METH_KEYWORDS, doc}

/* ---- mkfuncs.c, blocks.c, hints.c, ctrl.c ---- */
int mkfuncs_init(PyObject *module); /* adds the dict `mk` */
int mk_add(PyObject *mk, PyMethodDef *def, PyObject *self); /* one function into that dict */
int mk_add_all(PyObject *mk, PyMethodDef *def);
int mk_add_numbered(PyObject *mk, PyMethodDef *def, long row); /* with its row as self */
/* adds shapes, reductions, scans, random numbers; the methods of values too */
int blocks_init(PyObject *mk);
int group_init(PyObject *mk); /* adds functions over threads */
int lanes_init(PyObject *mk); /* adds functions that move lanes, of bits, made of instructions */
int lanes_item(Trace *t, eas_value *x, int *axis, PyObject *item); /* one item of x[...] of a block */
int debug_init(PyObject *mk); /* adds assert_ and print */
int hints_init(PyObject *mk); /* adds what acts while tracing */
PyObject *mk_extreme(Trace *t, const char *fn, PyObject **in, bool is_max); /* element-wise, of two */
typedef struct Var {
    PyObject_HEAD Trace *trace;
    eas_value v;
    int slot; /* in trace->vars */
} Var;
extern PyType_Spec Var_spec, Range_spec, Branch_spec, While_spec;
int flow_init(PyObject *module); /* flow.c: what rewritten functions call */
int ctrl_init(PyObject *mk); /* adds var, range, if_, else_, while_ */
int ctrl_flush(Trace *t); /* closes a pending if */
int ctrl_finish(Trace *t); /* nothing may be open; 0 with an exception otherwise */
void ctrl_clear(Trace *t);
/* the innermost body that is being traced; 0: the kernel's own */
int scope_now(const Trace *t);
bool scope_open(const Trace *t, int scope); /* may its values still be used? */
const char *scope_what(const Trace *t, int scope, int *line); /* "mk.range" and where it began */

/* ---- irview.c ---- */
extern PyType_Spec IR_spec;
typedef struct IR {
    PyObject_HEAD eas_ir *ir;
} IR;
PyObject *ir_wrap(eas_ir *ir); /* an eas.ir.IRModule; retains */
PyObject *py_take_text(eas_status st, char *text); /* frees text */

/* ---- tensor.c, dlpack.c ---- */
typedef struct Tensor {
    PyObject_VAR_HEAD eas_arg arg; /* as a launch wants it */
    uint8_t tag; /* as bind.c wants it; 0 if a kernel cannot take it (not contiguous) */
    int ndim;
    eas_device *device;
    eas_buffer *buf; /* NULL when the memory belongs to owner */
    PyObject *owner;
    PyObject *weakrefs;
    int64_t dims[]; /* shape, then strides in bytes, then strides in elements */
} Tensor;
extern PyType_Spec Tensor_spec;
int tensor_init(PyObject *module);
Tensor *tensor_alloc_by(eas_status (*alloc)(eas_device *, size_t, eas_buffer **), eas_device *d, eas_dtype dt,
                        int ndim, const int64_t *shape);
size_t tensor_nbytes(const Tensor *t);
bool tensor_on_host(const Tensor *t);
PyObject *tensor_numpy(PyObject *o, PyObject *unused); /* Tensor.numpy */
/* tensor_make.c: eas.tensor and its like */
PyObject *tensor_new_tensor(PyObject *m, PyObject *args, PyObject *kw);
PyObject *tensor_new_empty(PyObject *m, PyObject *args, PyObject *kw);
PyObject *tensor_new_zeros(PyObject *m, PyObject *args, PyObject *kw);
PyObject *tensor_new_ones(PyObject *m, PyObject *args, PyObject *kw);
PyObject *tensor_new_empty_like(PyObject *m, PyObject *args, PyObject *kw);
PyObject *tensor_new_shared(PyObject *m, PyObject *args, PyObject *kw);
static inline bool tensor_check(PyObject *o)
{
    return Py_IS_TYPE(o, G.tensor) || PyType_IsSubtype(Py_TYPE(o), G.tensor);
}
/* A tensor over memory of owner's (reference taken). strides NULL: C order. */
Tensor *tensor_over(eas_device *d, eas_dtype dt, int ndim, const int64_t *shape, const int64_t *strides,
                    void *data, bool readonly, PyObject *owner);
/* PyArray_FromAny, but for strides that lead out of any memory */
PyObject *tensor_to_array(PyObject *o, PyArray_Descr *d, int flags);
Tensor *tensor_from_array(PyArrayObject *a); /* zero copy */
/* Owns new memory of the device's; contents are arbitrary. */
Tensor *tensor_new(eas_device *d, eas_dtype dt, int ndim, const int64_t *shape);
Tensor *tensor_copy(Tensor *t, eas_device *d); /* in C order, on d */
/* The bytes that the elements take, from the first element's address: [lo, hi). */
void tensor_span(const Tensor *t, int64_t *lo, int64_t *hi);
bool tensor_in_c_order(const Tensor *t);
PyObject *tensor_array_view(Tensor *t); /* the same memory as an array; of the host only */
PyObject *tensor_fetch(Tensor *t); /* a copy as an array */
/* copies and waits; NULL: the host. 0 with an exception */
int tensor_bytes(eas_device *to, void *dst, eas_device *from, const void *src, size_t n);
/* what eas.tensor takes, where it is; dtype may be NULL */
Tensor *tensor_wrap(PyObject *data, PyObject *dtype);
int dlpack_init(void);
PyObject *tensor_from_dlpack(PyObject *o, PyObject *copy); /* zero copy unless copy is True */

/* ---- view.c ---- */
extern PyMethodDef view_methods[];
extern PyGetSetDef view_getset[];
PyObject *view_subscript(PyObject *t, PyObject *key);
int view_assign(PyObject *t, PyObject *key, PyObject *value);
int view_getbuffer(PyObject *t, Py_buffer *b, int flags);
void view_releasebuffer(PyObject *t, Py_buffer *b);
PyObject *view_rebuild(PyObject *m, PyObject *args); /* what pickles call */
PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kw);
PyObject *tensor_dlpack_device(PyObject *self, PyObject *unused);
/* The device of that name ("metal" is "mps"); ValueError if unknown, RuntimeError if it cannot be used. NULL
 * o: cpu. */
eas_device *py_device(PyObject *o);
eas_device *py_device_named(const char *name);

typedef struct Compiled Compiled;
typedef struct Options Options;

/* ---- bind.c ---- */
/* A tag tells all of an argument's type that a specialisation depends on; 0 is none. */
enum { TAG_BUFFER = 0x80, TAG_SCALAR = 0x40, TAG_WEAK = 0x20, TAG_DTYPE = 0x0f };
typedef struct Bound {
    PyObject *kernel; /* name, for messages */
    eas_device *device; /* of the tensors among the arguments; NULL if any will do */
    int device_arg; /* which of them said so */
    bool defer_mps; /* the caller looks at has_mps: torch tensors on mps are not imported */
    bool has_mps;
    bool strided; /* what was refused is a torch tensor that is only not contiguous */
    int ntemps;
    PyObject *temps[PY_MAX_PARAMS]; /* kept until the launch is over */
} Bound;
/* Slow kinds only; the fast ones are inline in bind_arg. 0 and an exception if o cannot be an argument. */
int bind_other(Bound *bd, PyObject *o, int i, PyObject *name, eas_arg *out);
int bind_tensor_device(Bound *bd, Tensor *t, int i, PyObject *name);
extern uint8_t bind_npy_dtype[NPY_NTYPES_LEGACY + 1]; /* 0x80 | dtype, or 0 */
PyObject *bind_tag_name(int tag); /* "array of f32", "Python int" */
int bind_tensor(Bound *bd, Tensor *t, int i, PyObject *name, eas_arg *out);
int bind_bad_dtype(Bound *bd, PyObject *name, PyObject *dtype); /* 0 with an exception */
void bind_keep(Bound *bd, PyObject *o); /* takes o, until the launch is over */

/* ---- torch.c ---- */
static inline bool torch_check_exact(PyObject *o)
{
    return Py_TYPE(o) == G.torch_tensor || Py_TYPE(o) == G.torch_parameter;
}
bool torch_check(PyObject *o); /* and subclasses; does not import torch */
int bind_torch(Bound *bd, PyObject *o, int i, PyObject *name, eas_arg *out);
PyObject *torch_import(PyObject *o); /* a tensor over the memory of one that torch_check_exact knows */
/* the exception that an import of a torch tensor raised, in words of ours where torch's tell of its own
 * insides */
void torch_explain(PyObject *o);
PyObject *torch_export(PyObject *m, PyObject *t); /* a torch tensor over an eas.Tensor */
/* Arguments on torch's GPU: eas.torch launches. */
PyObject *torch_launch(Compiled *ck, PyObject *const *objs, int n, const Options *o, const eas_launch *l);

/* ---- torch_direct.c ---- */
/* Of one that torch_check_exact knows: its tag, out filled; 0 without an exception where it takes another
 * way. */
int torch_direct(PyObject *o, eas_arg *out);
/* from samples; until it succeeds, torch_direct returns 0 */
PyObject *torch_learn(PyObject *m, PyObject *args);

/* The tag of o, out filled; 0 and an exception. */
static inline int bind_arg(Bound *bd, PyObject *o, int i, PyObject *name, eas_arg *out)
{
    if (Py_IS_TYPE(o, G.tensor)) {
        Tensor *t = (Tensor *)o;
        if (t->tag && (t->device == G.cpu || bind_tensor_device(bd, t, i, name))) {
            *out = t->arg;
            return t->tag;
        }
    } else if (PyArray_CheckExact(o)) {
        PyArrayObject *a = (PyArrayObject *)o;
        PyArray_Descr *d = PyArray_DESCR(a);
        int flags = PyArray_FLAGS(a);
        if ((unsigned)d->type_num < NPY_NTYPES_LEGACY &&
            (flags & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED)) ==
                (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED) &&
            d->byteorder != NPY_OPPBYTE) {
            int tag = bind_npy_dtype[d->type_num];
            if (tag) {
                out->v.data = PyArray_DATA(a);
                out->count = PyArray_NDIM(a) == 1 ? PyArray_DIM(a, 0) : PyArray_SIZE(a);
                out->dtype = (uint8_t)(tag & TAG_DTYPE);
                out->is_buffer = 1;
                out->flags = EAS_ARG_HOST | (flags & NPY_ARRAY_WRITEABLE ? 0 : EAS_ARG_READONLY);
                return tag;
            }
        }
    } else if (PyLong_CheckExact(o)) {
        int over;
        out->v.i = PyLong_AsLongLongAndOverflow(o, &over);
        if (!over) {
            out->dtype = EAS_I64;
            out->is_buffer = out->flags = 0;
            return TAG_SCALAR | TAG_WEAK | EAS_I64;
        }
    } else if (PyFloat_CheckExact(o)) {
        out->v.f = PyFloat_AS_DOUBLE(o);
        out->dtype = EAS_F64;
        out->is_buffer = out->flags = 0;
        return TAG_SCALAR | TAG_WEAK | EAS_F64;
    }
    if (torch_check_exact(o))
        return bind_torch(bd, o, i, name, out);
    return bind_other(bd, o, i, name, out);
}
static inline void bind_done(Bound *bd)
{
    for (int i = 0; i < bd->ntemps; i++)
        Py_DECREF(bd->temps[i]);
}

/* ---- compiled.c ---- */
struct Compiled {
    PyObject_VAR_HEAD eas_kernel *k;
    PyObject *name; /* str */
    PyObject *params; /* tuple of str: run-time parameters */
    PyObject *meta; /* dict */
    PyObject *metas; /* tuple: the same values in order; the fast path compares with them */
    PyObject *msl, *irmod;
    PyObject *guards; /* what tracing captured; NULL: nothing */
    PyObject *spec; /* how its arguments come apart (eas._struct), or NULL: each is one parameter */
    PyObject *flat; /* tuple of str: the parameters then */
    eas_ir_info info;
    double traced; /* seconds that tracing took */
    int nargs;
    uint8_t tags[];
};
extern PyType_Spec Compiled_spec;
Compiled *compiled_new(eas_kernel *k, PyObject *name, PyObject *params, PyObject *meta, PyObject *metas,
                       const uint8_t *tags, int nargs);

/* Options of a launch, in the order in which messages name them: keywords _<name>. */
#define LAUNCH_OPTIONS(X) X(grid) X(tptg) X(shape) X(nthreads) X(sync) X(stream) X(debug) X(interpret)
struct Options { /* as given; NULL: absent */
#define PY_X(name) PyObject *name;
    LAUNCH_OPTIONS(PY_X)
#undef PY_X
};
/* Fills l from o; the grid may be a callable of meta (a dict) and runtime_args. ck: what _tptg is checked
 * against, if known. 0 and an exception. */
int options_read(const Options *o, Compiled *ck, PyObject *meta, PyObject *runtime_args, eas_launch *l);
int tptg_fits(PyObject *tptg, PyObject *name, int64_t want, bool threads);
bool launch_interprets(void); /* EAS_INTERPRET is set */
int options_check(const Options *o, Compiled *ck); /* what compile checks too */
/* objs: the arguments, kept alive with what bd holds for them while the launch may run. None. */
PyObject *launch_with(Compiled *ck, eas_device *d, const eas_arg *args, PyObject *const *objs, int n,
                      const Bound *bd, eas_launch *l);
eas_device *py_backend(void); /* that EAS_BACKEND names; NULL with an exception */
/* Where a launch goes: NULL and the backend's device (NULL with an exception); or the function that was put
 * in place of eas.kernel.get_runtime (borrowed). */
PyObject *launch_where(eas_device **d);
int launch_watch(void);
PyObject *compiled_text(Compiled *ck, const char *form);
/* the dict that callables and runtimes see */
static inline bool py_given(PyObject *o) { return o && o != Py_None; } /* an option */
PyObject *runtime_args(PyObject *params, PyObject *const *objs, int n);
PyObject *py_prepare(PyObject *module, PyObject *args, PyObject *kw);
PyObject *py_tune_load(PyObject *module, PyObject *args);
PyObject *py_tune_store(PyObject *module, PyObject *args);
PyObject *py_tune_choose(PyObject *module, PyObject *list);
PyObject *py_tune_export(PyObject *module, PyObject *unused);
PyObject *py_tune_import(PyObject *module, PyObject *text);
PyObject *py_compile_ir(PyObject *module, PyObject *ir);
PyObject *py_run(PyObject *module, PyObject *args, PyObject *kw);
PyObject *py_benchmark(PyObject *module, PyObject *args, PyObject *kw);
PyObject *py_source(PyObject *module, PyObject *args, PyObject *kw);
PyObject *py_source_text(PyObject *module, PyObject *args);
PyObject *py_grid(PyObject *module, PyObject *args, PyObject *kw);

/* ---- stream.c ---- */
int stream_init(PyObject *module);
typedef struct hooks { /* the GIL, while libeas runs or waits without it */
    PyThreadState *left;
} hooks;
void hooks_init(eas_launch *l, hooks *h);
void hooks_print(void *h, const char *text, size_t n);
void hooks_leave(void *h);
void hooks_enter(void *h);
int hooks_interrupted(void *h);
void hold_retain(void *object);
void hold_release(void *object);
eas_stream *stream_arg(PyObject *o, const char *what, eas_device *d);

/* ---- profile.c ---- */
int profile_init(PyObject *module);

/* ---- pytree.c, treedef.c ---- */
int pytree_init(PyObject *module);
/* 1: leaves (a list) and, if asked, the structure; 0 with an exception. is_leaf may be NULL. */
int pytree_flatten(PyObject *tree, PyObject *is_leaf, PyObject **leaves, PyObject **treedef);
PyObject *pytree_unflatten(PyObject *treedef, PyObject *const *leaves, Py_ssize_t n);
PyObject *pytree_map(PyObject *tree, PyObject *(*fn)(void *ctx, PyObject *leaf), void *ctx);
/* a list: what the prefix says for each leaf */
PyObject *pytree_broadcast_prefix(PyObject *prefix, PyObject *treedef);
PyObject *pytree_path(PyObject *treedef, Py_ssize_t leaf); /* "[0]['w']" */
PyObject *pytree_arg_path(PyObject *treedef,
                          Py_ssize_t leaf); /* of a structure of (args, kwargs): "args[0]['w']" */
int pytree_same(PyObject *a, PyObject *b); /* 1, 0; -1 with an exception */
bool pytree_is_treedef(PyObject *o);
Py_ssize_t pytree_num_leaves(PyObject *treedef);

/* ---- eager_site.c ---- */
int site_init(PyObject *module);
PyObject *site_text(uint32_t site); /* "file:line", or None */
uint32_t site_here(void); /* the number of the line that runs now */
int site_find(uint32_t site, char *file, size_t room, int *line); /* 1: it is known */
/* Lets go of a Python object from any thread, with or without the GIL, whatever locks are held: later, when
 * there is nothing to fear. */
void later_decref(void *object);
extern _Atomic(void *) later_list;
void later_run(void);
static inline void later_check(void)
{
    if (later_list)
        later_run();
}

/* ---- eager_dim.c ---- */
int dim_init(PyObject *module);
PyObject *dim_object(eas_dim d);
bool dim_check(PyObject *o); /* can it be a size? */
int dim_of(PyObject *o, const char *what, eas_dim *out); /* an int, a Dim, a str: 1; 0 with an exception */
PyObject *shape_object(int rank, const eas_dim *dims);
/* The rank; -1 with an exception. An int or a sequence. */
int dims_of(PyObject *o, const char *what, eas_dim *out, int room);

/* ---- eager_size.c ---- */
/* a op b, decided by the sizes of the call that is being traced: 1 or 0; -1: nobody knows (no exception). */
int size_decide(int op, eas_dim a, eas_dim b);
/* the size itself, which the program is then for: 1; 0: nobody knows */
int size_value(eas_dim d, int64_t *out);

/* ---- eager_tensor.c ---- */
typedef struct Eager { /* eager.Tensor: a handle of a node */
    PyObject_HEAD eas_node *n;
    PyObject *extra; /* dict of what few tensors have, or NULL */
    PyObject *weakrefs;
} Eager;
int eager_init(PyObject *module);
static inline bool eager_check(PyObject *o)
{
    return Py_IS_TYPE(o, G.eager) || PyType_IsSubtype(Py_TYPE(o), G.eager);
}
PyObject *eager_wrap(eas_node *n); /* steals n; NULL: the error of libeas is raised by the caller */
/* the same after a call: raises, or runs the operation at once if EAGER_STRICT asks for that */
PyObject *eager_result(eas_status st, eas_node *n);
/* eager_loop.c: the same of n of them, as a list */
PyObject *eager_results(eas_status st, Py_ssize_t n, eas_node *const *results);
extern int eager_strict;
extern int eager_nans; /* eager.debug_nans: every result is looked at */
PyObject *eager_readable(eas_node *n); /* its elements as an array; computes it */
int eager_no_nan(eas_node *n); /* 1; 0 with an exception: it has a NaN, or could not be computed */
/* the same of all that n is made of, inputs first: of derivatives, which are recorded at once */
int eager_no_nan_below(eas_node *n);
/* Node of an operand, counted: a tensor, a number, an array, a list. NULL with an exception, or without one
 * if o is none of those. */
eas_node *eager_operand(PyObject *o);
eas_node *eager_arg(PyObject *o, const char *fn, const char *arg); /* TypeError instead */
unsigned eager_derivatives(void); /* counts the derivatives that this thread has begun to take */
static inline eas_node *eager_node(PyObject *o) { return ((Eager *)o)->n; }
/* Applies an operation of the table by its name. Steals the inputs. */
eas_node *eager_do(const char *op, int nin, eas_node **in, int nattr, const int64_t *attr);

/* ---- eager_override.c ---- */
int eager_override_init(PyObject *module);
/* is it, or a sequence with, something that the handler of Python's knows? */
bool override_wanted(PyObject *o);
PyObject *override_call(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *override_vector(PyObject *op, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* ---- eager_data.c ---- */
int eager_data_init(PyObject *module);
int eager_dtype(PyObject *o, const char *what,
                eas_dtype *out); /* py_to_dtype with NumPy's meaning of "i8" and "u8" */
/* does a Python number fit? 0 with an exception */
int number_fits(eas_node *v, eas_dtype dt, const char *fn);
PyObject *number_from(PyObject *o); /* an array of rank 0 as a NumPy number */
int eager_realize(int n, eas_node *const *nodes); /* 1, or 0 with an exception */
eas_node *node_of_tensor(Tensor *t); /* the same memory, counted */
/* a copy of arrays and lists; Tensors of eas share */
eas_node *node_of_data(PyObject *o, PyObject *dtype, eas_device *d);
Tensor *tensor_of_node(eas_node *n); /* realises; the same memory */
PyObject *array_of_node(eas_node *n); /* realises; read-only, on the cpu the same memory */
bool eager_convertible(PyObject *o);
eas_node *eager_on_device(eas_node *n, eas_device *d); /* a copy of n's data there, or n; steals n */
PyObject *eager_number(PyObject *o, const char *what); /* the one element as a Python number */
int eager_getbuffer(PyObject *o, Py_buffer *view, int flags);
PyObject *eager_repr(PyObject *o);
PyObject *eager_await(PyObject *o);

/* ---- eager_impl.c ---- */
int impl_init(PyObject *module);
PyObject *impl_of(eas_node *n); /* the one TensorImpl of a node */
extern PyTypeObject *impl_type;
eas_node *impl_node(PyObject *impl);
/* of a tensor with data: its memory, the same eas.Tensor each time; counted */
PyObject *node_storage(eas_node *n);
PyObject *node_sharding(eas_node *n); /* borrowed; NULL: none */
int node_set_sharding(eas_node *n, PyObject *sharding);
/* What a traced result remembers: the operation and its arguments. */
int impl_record(eas_node *const *outs, int nouts, PyObject *op, PyObject *args, PyObject *kwargs,
                PyObject *tree_def);
PyObject *op_object(eas_tensor_op op); /* the function of that row, borrowed; NULL: it has none */

/* ---- eager_op.c ---- */
int eager_op_init(PyObject *module);
extern PyTypeObject *tensor_op_type;

/* ---- eager_index.c ---- */
int eager_index_init(PyObject *module);
PyObject *eager_subscript(PyObject *o, PyObject *key);
int eager_ass_subscript(PyObject *o, PyObject *key, PyObject *value);
PyObject *eager_at(PyObject *o, void *c);
/* what eager_index.c does for x.at[key] (eager_at.c) */
enum { INDEX_SET, INDEX_ADD, INDEX_MUL, INDEX_MIN, INDEX_MAX };
eas_node *index_updated(PyObject *o, PyObject *key, PyObject *value,
                        int how); /* o with value joined in there */
int index_record(eas_node *out, PyObject *x, PyObject *value, bool in_place);
int index_note_way(PyObject *t, PyObject *in_place);
eas_node *index_operand(PyObject *o);
eas_node *index_cast(eas_node *v, eas_dtype dt); /* steals v */
PyObject *eager_show(PyObject *m, PyObject *const *args, Py_ssize_t nargs); /* eager_show.c */

/* ---- eager_call.c ---- */
int grad_init(PyObject *module); /* grad.c */
int eager_call_init(PyObject *module);

/* ---- eager_loop.c ---- */
int eager_loop_init(PyObject *module);

/* ---- eager_random.c ---- */
/* What draws keys while a program or a loop's body is traced. */
typedef struct random_scope {
    struct random_scope *outer;
    bool loop;
    int level; /* of vmap, where it was opened */
    int index; /* of a program: the number of the input that the counter will be */
    eas_node *init; /* of a loop: the counter's value before the first trip, once something was drawn */
    eas_node *base; /* the counter: a placeholder; NULL: nothing was drawn */
    int64_t count; /* keys drawn */
} random_scope;
int eager_random_init(PyObject *module);
void random_push(random_scope *s); /* from now on keys of this thread are drawn from s, until it is popped */
void random_pop(random_scope *s);
uint64_t random_take(int64_t n); /* the process's counter, which moves on by n */
eas_node *random_counter(int64_t n); /* a tensor of that */
random_scope *random_of_loop(PyObject *o); /* of a LoopRandom; NULL: it is none */

/* ---- dist.c ---- */
int dist_init(PyObject *module);

/* ---- eager_cost.c ---- */
int eager_cost_init(PyObject *module);

/* ---- eager_shard.c ---- */
int eager_shard_init(PyObject *module);
/* Gives out, which an operation made of these, the sharding that follows from theirs, if any has one. 0 with
 * an exception. */
int shard_follow(eas_node *out, int n, eas_node *const *in);
eas_node *shard_input(int index, eas_dtype dt, int rank, const eas_dim *shape, int batch_dims, eas_device *d,
                      PyObject *spec); /* a placeholder that lies so; NULL with an exception */
/* a ShardingSpec, and its mesh's number; 0 with an exception */
int shard_read(PyObject *spec, int *id, eas_spec *out);
PyObject *shard_make(PyObject *mesh_object, const eas_spec *s); /* a ShardingSpec; new */
PyObject *shard_stored(
    eas_node *n,
    /* how the data of a node lies, in place of what was told before there was any; new; None: nothing */
    PyObject *told);

/* ---- eager_vmap.c, eager_diff.c ---- */
int eager_vmap_init(PyObject *module);
int eager_diff_init(PyObject *module);
enum { VMAP_LEVELS = 16 };
/* how many vmaps this thread is inside of; the sizes of their axes, the outermost first */
int vmap_levels(const eas_dim **sizes);

/* ---- eager_io.c ---- */
int eager_io_init(PyObject *module);

/* ---- eager_compile.c, eager_function.c ---- */
int eager_compile_init(PyObject *module);
extern PyObject *graph_break; /* the exception of data that is asked for while a function is traced */
extern int eager_tracing; /* functions that are being traced, on all threads */
/* the placeholder of a captured tensor (its node) or array in this thread's trace; counted, or NULL */
eas_node *eager_stand_in(void *key);

/* ---- guard.c ---- */
extern PyType_Spec Guards_spec;
/* Of a function that was just traced with these meta values, as a method of self if that is not NULL; *out
 * NULL: it captured nothing. 0 with an exception. */
int guards_find(PyObject *fn, PyObject *metas, PyObject *self, PyObject **out);
bool guards_hold(PyObject *guards);
PyObject *guards_reason(PyObject *guards); /* in words, of those that do not */
/* Containers and attributes that code can reach, as they are where a traced body begins; *out NULL: none. 0
 * with an exception. */
int guards_state(PyObject *code, PyObject *globals, PyObject *locals, PyObject **out);
PyObject *
guards_lost(PyObject *guards, bool loop,
            /* (what, was, is) of the first that the body changed and would not each time, or None */
            int scope);

/* ---- parts.c ---- */
typedef struct parts_spec parts_spec;
/* a key of eas._struct.expand, which must outlive it; NULL without an exception: none */
parts_spec *parts_read(PyObject *key);
void parts_free(parts_spec *s);
/* The parts of arguments that come apart as the key says, into out[]: how many, each counted; -1 without an
 * exception: not certainly. */
int parts_like(const parts_spec *key, PyObject *const *objs, const uint8_t *flags, PyObject **out, int room);

/* ---- kernel.c ---- */
extern PyType_Spec Kernel_spec;
int kernel_init(PyObject *module);

#endif
