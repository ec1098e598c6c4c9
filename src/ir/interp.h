/* interp.h: the state of a running kernel, for the files that run one: interp.c (finished IR), live.c
 * (instruction by instruction while a kernel is built) and check.c (with every access looked at). */
#ifndef INTERP_H
#define INTERP_H

#include "ir.h"

typedef struct frame { /* an open region while running */
    uint32_t at;     /* its opener */
    uint8_t *saved;  /* active lanes around it */
} frame;

typedef struct run {
    const eas_ir *ir;
    const ir_call *call;
    eas_ir_info info;
    int64_t threads;     /* lanes of a rank-0 value: 1 (SPMD) or the group's threads */
    int64_t groups;      /* simdgroups */
    arena mem;
    int64_t **val;       /* slots of each value */
    float **frag;        /* fragments: groups x 64 */
    uint8_t **tg;        /* threadgroup arrays */
    uint8_t *active;     /* per thread */
    uint32_t *end;       /* region ends */
    frame *stack;
    uint32_t depth;
    int64_t pid[3];
    eas_status st;
    struct watch *watch; /* the observer of accesses, or NULL */
    bool lenient;        /* loads out of bounds mark their lanes (poison.c) */
    struct poison *poison; /* marks, or NULL */
    /* the lane for which the current instruction accesses memory, for the watch; in thread mode the thread */
    int64_t lane;
} run;

/* An observer of what a kernel does to memory. It also reports accesses that are out of bounds, after which
 * the kernel goes on. */
typedef struct watch {
    void (*access)(struct watch *w, const run *r, uint32_t insn, uint32_t buf, int64_t off, bool inside);
    void (*barrier)(struct watch *w, const run *r, uint32_t insn);
    void (*fence)(struct watch *w, const run *r, uint32_t insn);
    void (*program)(struct watch *w, const run *r); /* one begins */
    int64_t nowhere[2]; /* what accesses out of bounds touch */
} watch;

void interp_print(run *r, uint32_t i); /* records.c */

/* poison.c: marks of lanes whose load was out of bounds. r->st is the fault of that load; it is kept, and
 * reported when a marked lane is used. */
void poison_load(run *r, uint32_t v, int64_t lane);
bool poison_before(run *r, const ir_insn *in); /* the instruction uses a marked lane: r->st is set */
void poison_after(run *r, const ir_insn *in);
bool poison_used(run *r, uint32_t v); /* any lane of it that takes part */
void poison_drop(run *r, uint32_t v);
void poison_free(run *r);
/* Runs instruction i and returns the next one. */
uint32_t interp_step(run *r, uint32_t i);
int64_t interp_lanes(const run *r, uint32_t v); /* elements of a value */
/* Is there a step to take from iv; does iv + step stay in range? Unsigned dtypes compare unsigned; a step
 * of 0 takes none. */
bool interp_in_range(eas_dtype dt, int64_t iv, int64_t hi, int64_t step);
bool interp_next_in_range(eas_dtype dt, int64_t iv, int64_t hi, int64_t step);
/* An element of memory as a slot, and back. */
int64_t interp_load_element(eas_dtype dt, const uint8_t *p);
void interp_store_element(eas_dtype dt, uint8_t *p, int64_t v);
/* a scalar as the host hands it over (its own bytes, rest undefined) */
int64_t interp_scalar_lane(eas_dtype dt, uint64_t slot);
eas_status interp_watched(const eas_ir *ir, const ir_call *call, watch *w);

/* ---- interp_memory.c ---- */
void interp_load(run *r, uint32_t i);
void interp_store(run *r, uint32_t i);
void interp_atomic(run *r, uint32_t i);
void interp_bounds(run *r, uint32_t i);
void interp_assert(run *r, uint32_t i);
void interp_dot(run *r, uint32_t i);
bool interp_lane_on(const run *r, int64_t lane);
uint8_t *interp_address(run *r, uint32_t i, uint32_t buf, int64_t off, int64_t lane);
double interp_element_as_double(const run *r, uint32_t buf, const uint8_t *p);

/* ---- interp_block.c ---- */
void interp_reduce(run *r, const ir_insn *in);
void interp_scan(run *r, const ir_insn *in);
void interp_matmul(run *r, const ir_insn *in);
void interp_mma(run *r, uint32_t i);
void interp_mma_store(run *r, uint32_t i);
void interp_shape(run *r, const ir_insn *in);
void interp_shuffle(run *r, uint32_t i);
void interp_identity(run *r, const ir_insn *in);
void interp_elementwise(run *r, const ir_insn *in);
bool interp_all_here(run *r, uint32_t i, const char *what);

#endif
