/* ctrl.h: open control constructs of a trace, shared by ctrl.c (mk.if_, mk.range, ...), var.c (mk.var) and
 * flow.c (Python's own statements). */
#ifndef CTRL_H
#define CTRL_H

#include "py.h"

enum kind { K_LOOP, K_WHILE, K_IF, K_ELSE, K_FOR, K_PLAIN_WHILE, K_PLAIN_IF, K_PLAIN_ELSE, K_PROBE };
struct Frame {
    enum kind kind;
    Frame *outer;
    int n;
    Var **vars;           /* counted */
    eas_value *before;    /* their values at the start */
    eas_value *then_vals; /* K_ELSE: at the end of the first branch */
    int scope;
    int first; /* the scope of its first body */
    int line;
    /* what the names of the function held at the start */
    PyFrameObject *py;
    PyObject *names;
    PyObject *state; /* what containers and attributes held then (guard.c), or NULL */
    PyObject *cond;
    int at; /* offset in its bytecode */
    eas_value live_cond;  /* K_IF, run live: kept for the else */
};
struct Scope {
    enum kind kind;
    int line;
    int outer; /* the scope around it */
    bool open, adopted;
};
Frame *frame_new(Trace *t, enum kind kind); /* with the variables that live now; NULL with an exception */
void frame_free(Frame *f);
void frame_push(Trace *t, Frame *f);
int frame_pop(Trace *t, Frame *f); /* must be the innermost; 0 with an exception */
void frame_set(Frame *f, const eas_value *v); /* its variables hold v */
void frame_get(const Frame *f, eas_value *v);
/* what containers and attributes that the user's function reaches hold now; 0 with an exception */
int frame_state_keep(Frame *f);
int frame_state_check(Frame *f, bool loop); /* 0 with an exception if the body changed any */
/* of a mk.range that has not begun; 0: it is none (no exception) */
int range_bounds(PyObject *o, eas_value bounds[3]);
int scope_begin(Trace *t, enum kind kind, int line); /* its number, or 0 with an exception */
void scope_adopt(Trace *t, int scope); /* its values live on in the scope around it */
extern const char *const ctrl_what[]; /* by enum kind: what the user wrote */

/* ---- ctrl_names.c: each gives 0 with an exception ---- */
int frame_names_keep(Frame *f, PyObject *cond); /* what the names of the function hold as the body begins */
int frame_names_check(Trace *t, Frame *f); /* a loop ends: no plain name would have to be carried */
int frame_branch_check(Frame *f); /* a branch ends: no name that it assigned is read after it */
int frame_drop_made_names(PyObject *names); /* those that rewriting made */
int frame_left_early(Frame *f); /* 0 if the body can be left by break, continue or return */

/* ---- var.c ---- */
int var_init(PyObject *mk); /* adds mk.var */

#endif
