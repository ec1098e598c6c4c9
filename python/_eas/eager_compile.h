/* eager_compile.h: what the files of compiled functions share.
 *
 *   eager_find.c     what a function can see besides its arguments, and what it can change
 *   eager_state.c    changes of that: found after a trace, undone, and made again by each run
 *   eager_key.c      what a program depends on: arguments, captured values; is a call like an earlier one,
 *                    and if not, why
 *   eager_compile.c  tracing, running, looking up
 *   eager_function.c the CompiledFunction as an object of Python's
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
    bool cut;           /* it lies in parts on a mesh */
    eas_dim *shape;     /* < 0: dynamic, the number of a symbol */
    int64_t *bucket;    /* of dynamic dims, or NULL */
    PyObject *content;  /* bytes of an array that the function reads while it is traced, or NULL */
} leaf_sig;
typedef enum source_kind {
    S_DICT,
    S_CELL,
    S_ATTR,    /* key of container: a slot, the defaults of a function */
    S_CLASS,   /* key of a class */
    S_CONTEXT, /* the value of a context variable */
    S_SIZE,    /* how many attributes an object has: n of them */
} source_kind;
typedef struct source { /* where a captured value is */
    source_kind kind;
    bool absent;               /* there was none */
    bool any;                  /* of a function that runs as it is and changes it: whatever it is */
    PyObject *container, *key; /* counted */
    PyObject *treedef;         /* NULL: one leaf */
    int first, n;              /* in Entry.leaves */
    unsigned version;          /* S_CLASS: the class's, when the value was looked at */
} source;
typedef enum place_kind {
    PLACE_LIST,
    PLACE_DICT,
    PLACE_NAMES,
    PLACE_SET,
    PLACE_DEQUE,
    PLACE_CELL,
    PLACE_ATTR,
    PLACE_CLASS,
    PLACE_CONTEXT,
    PLACE_RANDOM,
    PLACE_ITERATOR
} place_kind;
typedef struct place { /* something that a function can change */
    place_kind kind;
    /* key: the attribute; the names of PLACE_NAMES; that of the variable in a cell */
    PyObject *owner, *key;
    /* what is in it: before the trace, and when the trace starts (with tensors in place of arrays) */
    PyObject *before, *start;
    PyObject *label;          /* for messages, or NULL */
    /* of a container among the arguments: the steps that lead to it from (args, kwargs); owner is the trace's
     * copy of it */
    PyObject *path;
} place;
typedef struct state { /* what a function that is traced can change */
    place *at;
    int n;
    PyObject *seen; /* set of (owner, key) addresses */
    PyObject *arrays; /* list of (array, tensor that stands in its place) */
    PyObject *random; /* list of generators' states */
} state;
typedef struct change { /* what a run changes besides giving a result: its value is one more result */
    place_kind kind;
    PyObject *owner, *key, *path; /* as of the place; owner is NULL where there is a path */
    int input; /* >= 0: the handle of that input gets another tensor (x[0] = v) */
} change;
enum { RESULT = -1, CONSTANT = -2 };
typedef struct Entry {
    int refs; /* the function's, and those of calls that use it */
    PyObject *treedef; /* of (args, kwargs); NULL: nargs positional leaves */
    Py_ssize_t nargs;
    leaf_sig *leaves; /* of the arguments, then of the sources */
    int nleaves, nargleaves;
    source *sources;
    int nsources;
    int ninputs;
    eas_program *program; /* NULL: the function runs as it is, or all results are constants */
    bool plain; /* runs as it is */
    bool differentiates; /* takes derivatives itself */
    PyObject *out_treedef;
    PyObject **outs; /* constants, or NULL */
    PyObject **shardings; /* of results, or NULL */
    int *out_of; /* RESULT: the program's next result; CONSTANT; else the number of an input */
    int nouts, nresults;
    uint8_t *donated;
    bool any_donated;
    change *writes; /* results after the first */
    int nwrites;
    /* the contents of small arrays that are captured are part of the key: the function reads them */
    bool small;
    bool tune; /* before the next run: mode="autotune" */
    struct size_guard { /* something that the function asked about sizes, and the answer it got */
        int op; /* Py_LT .. Py_GE */
        eas_dim a, b;
        bool answer;
    } *guards;
    int nguards;
    int64_t draws; /* keys of random numbers in a run: the counter is the last input if there are any */
    int levels; /* of vmap, where it was traced, if anything is drawn */
    eas_dim lanes[VMAP_LEVELS];
} Entry;
typedef struct CompiledFn {
    PyObject_HEAD vectorcallfunc call;
    PyObject *fn, *dict, *weakrefs, *lock;
    PyObject *dynamic; /* {arg index: {dim: name}} or NULL */
    PyObject *donate; /* tuple of ints or NULL */
    PyObject *log; /* of misses: (cause, ms) */
    Entry **entries; /* the one used last comes first */
    int n, cap, max_compiles;
    bool fullgraph, pow2, autotune;
    int64_t hits, misses;
} CompiledFn;
typedef struct leaves {
    PyObject *const *at;
    Py_ssize_t n;
    PyObject *list, *treedef; /* NULL on the fast path: at are the positional arguments */
    PyObject *both; /* (args, kwargs) or NULL */
    PyObject *env; /* leaves of captured values: a list, or NULL */
} leaves;
extern PyTypeObject *compiled_fn_type;

/* ---- eager_size.c ---- */
/* Sizes of the call that is traced: comparisons of symbolic dims are decided by them, and the answers are
 * guards of the entry. */
typedef struct sizes {
    enum { SIZES = 64 } room;
    int n;
    char *name[SIZES];
    int64_t value[SIZES];
    Entry *e;
    struct sizes *outer;
} sizes;
int sizes_push(sizes *s, Entry *e, const leaves *l);
void sizes_pop(sizes *s);
bool sizes_match(const Entry *e, const leaves *l);
PyObject *sizes_difference(const Entry *e, const leaves *l); /* in words, or NULL */
PyObject *sizes_text(const Entry *e); /* a list of what was assumed */

/* ---- eager_find.c ---- */
int find_sources(CompiledFn *c, const leaves *l, Entry *e, state *s);
int find_watch(PyObject *var); /* a context variable that every function may depend on */
bool class_attribute(PyObject *name, PyObject *v); /* is it state of a class, and not machinery? */
bool state_is_deque(PyObject *o);

/* ---- eager_state.c ---- */
int state_add(state *s, place_kind kind, PyObject *owner, PyObject *key, PyObject *label);
/* (args, kwargs), and the copy of it that the function gets */
int state_add_arguments(state *s, PyObject *given, PyObject *copy);
bool state_is_random(PyObject *o);
/* remembers; puts tensors in place of arrays, of small ones unless told */
int state_begin(state *s, bool small);
/* What the function changed: 1 with writes in e and their values appended to values; 0 with an exception
 * (GraphBreak, where a replay could not do it). */
int state_changes(state *s, Entry *e, PyObject *values);
/* of an entry that runs as it is: numbers and containers that the trace changed */
void state_forget_guards(Entry *e, PyObject *values);
int state_restore(state *s); /* everything as it was before */
void state_end(state *s);
typedef struct outside { /* eager_outside.c: what a trace asks clocks and the system for */
    struct outside *outer;
    const char *what; /* NULL: nothing */
    char file[256];
    int line;
    bool watching;
    int collecting; /* was the garbage collector on? */
} outside;
void outside_push(outside *o);
int outside_pop(outside *o);
bool state_has_small(const state *s); /* were small arrays replaced? */
int write_apply(const change *w, PyObject *both, PyObject *value);
/* notes that the handle of an input gets another tensor */
int write_handle(Entry *e, int input, PyObject *value, PyObject *values);
void write_free(change *w);

/* ---- eager_key.c ---- */
PyObject *source_fetch(const source *s); /* borrowed; NULL: gone */
/* counted: v if pytrees go into it, a list of a deque's elements; NULL: it is a leaf */
PyObject *source_container(PyObject *v);
enum { SMALL_ARRAY = 1024 }; /* bytes */
bool key_is_tensor(PyObject *o); /* a tensor, or an array that becomes one */
int leaves_of(leaves *l, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
void leaves_done(leaves *l);
/* An entry for such a call, nothing traced yet; values: a list that gets the leaves of what is captured, a
 * list for each source. */
Entry *entry_new(CompiledFn *c, const leaves *l, PyObject *values, state *s, bool small);
void entry_free(Entry *e); /* one reference less */
/* Does the call fit the entry? env: the captured tensors, borrowed; l keeps them. */
bool entry_matches(Entry *e, leaves *l, PyObject **env, int *nenv);
/* which positional argument a leaf belongs to; -1: a named one */
Py_ssize_t argument_of(const leaves *l, Py_ssize_t leaf);
PyObject *entry_difference(Entry *e, const leaves *l); /* in words; e may be NULL */

/* ---- eager_compile.c ---- */
PyObject *compiled_call(PyObject *self, PyObject *const *args, size_t nargsf,
                        PyObject *kwnames); /* vectorcall */

#endif
