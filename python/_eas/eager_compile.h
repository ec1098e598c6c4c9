/* eager_compile.h: what the two files of compiled functions share.
 *
 *   eager_key.c      what a program depends on: arguments, captured values; is a call like an earlier one, and if not, why
 *   eager_compile.c  tracing, running, the CompiledFunction
 */
#ifndef EAGER_COMPILE_H
#define EAGER_COMPILE_H

#include "py.h"

enum { FAST_LEAVES = 32, ENV = 4096 }; /* ENV: captured tensors, at most */
typedef struct leaf_sig {
    bool is_tensor;
    uint8_t dtype, batch_dims, rank;
    eas_device *device;
    PyObject *value;    /* of what is no tensor; the sharding of one that is, or NULL */
    eas_dim *shape;     /* < 0: dynamic, the number of a symbol */
    int64_t *bucket;    /* of dynamic dims, or NULL */
} leaf_sig;
typedef enum source_kind { S_DICT, S_CELL } source_kind;
typedef struct source { /* where a captured value is */
    source_kind kind;
    PyObject *container, *key; /* counted */
    PyObject *treedef;         /* NULL: one leaf */
    int first, n;              /* in Entry.leaves */
} source;
enum { RESULT = -1, CONSTANT = -2 };
typedef struct Entry {
    int refs; /* the function's, and those of calls that use it */
    PyObject *treedef; /* of (args, kwargs); NULL: nargs positional leaves */
    Py_ssize_t nargs;
    leaf_sig *leaves;  /* of the arguments, then of the sources */
    int nleaves, nargleaves;
    source *sources;
    int nsources;
    int ninputs;
    eas_program *program; /* NULL: the function runs as it is, or all results are constants */
    bool plain;           /* runs as it is */
    PyObject *out_treedef;
    PyObject **outs;      /* constants, or NULL */
    PyObject **shardings; /* of results, or NULL */
    int *out_of;          /* RESULT: the program's next result; CONSTANT; else the number of an input */
    int nouts, nresults;
    uint8_t *donated;
    bool any_donated;
    bool tune;          /* before the next run: mode="autotune" */
    int64_t draws;      /* keys of random numbers in a run: the counter is the last input if there are any */
    int levels;         /* of vmap, where it was traced, if anything is drawn */
    eas_dim lanes[VMAP_LEVELS];
} Entry;
typedef struct CompiledFn {
    PyObject_HEAD vectorcallfunc call;
    PyObject *fn, *dict, *weakrefs, *lock;
    PyObject *dynamic; /* {arg index: {dim: name}} or NULL */
    PyObject *donate;  /* tuple of ints or NULL */
    PyObject *log;     /* of misses: (cause, ms) */
    Entry **entries;   /* the one used last comes first */
    int n, cap, max_compiles;
    bool fullgraph, pow2, autotune;
    int64_t hits, misses;
} CompiledFn;
typedef struct leaves {
    PyObject *const *at;
    Py_ssize_t n;
    PyObject *list, *treedef; /* NULL on the fast path: at are the positional arguments */
    PyObject *both;           /* (args, kwargs) or NULL */
    PyObject *env;            /* leaves of captured values: a list, or NULL */
} leaves;
extern PyTypeObject *compiled_fn_type;

/* ---- eager_key.c ---- */
bool key_is_tensor(PyObject *o);          /* a tensor, or an array that becomes one */
int leaves_of(leaves *l, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
void leaves_done(leaves *l);
/* An entry for such a call, nothing traced yet; values: a list that gets the leaves of what is captured, a list for each source. */
Entry *entry_new(CompiledFn *c, const leaves *l, PyObject *values);
void entry_free(Entry *e); /* one reference less */
/* Does the call fit the entry? env: the captured tensors, borrowed; l keeps them. */
bool entry_matches(Entry *e, leaves *l, PyObject **env, int *nenv);
Py_ssize_t argument_of(const leaves *l, Py_ssize_t leaf); /* which positional argument a leaf belongs to; -1: a named one */
PyObject *entry_difference(Entry *e, const leaves *l);    /* in words; e may be NULL */

#endif
