/* diff.h: random kernels that run in every way there is.
 *
 *   diff_gen.c   a kernel and its arguments out of a seed, by the public builder
 *   diff_live.c  finished IR through the live builder, loops and branches taken by hand
 *   fuzz_diff.c  runs and compares; shrinks what differs
 *   fuzz_grad.c  differentiates both ways and compares
 */
#ifndef DIFF_H
#define DIFF_H

#include "../../src/ir/ir.h"

enum { MAX_BUFS = 8 };

/* Everything about a kernel follows from these. Smaller limits give smaller kernels out of the same seed. */
typedef struct knobs {
    uint64_t seed;
    int max_lanes, max_grid, max_steps, max_depth;
    bool floats; /* mostly f64, with values that are smooth to work with: for derivatives */
} knobs;

typedef struct trial {
    eas_ir *ir; /* as built: verified, not simplified */
    int nbufs;  /* the first parameters; two scalars follow */
    eas_dtype dtype[MAX_BUFS];
    int64_t count[MAX_BUFS];
    size_t offset[MAX_BUFS]; /* in memory */
    size_t bytes;
    uint8_t *memory; /* what the buffers hold at the start */
    int64_t n;       /* the scalars */
    double f;
    int64_t grid[3];
} trial;

uint64_t diff_random(uint64_t *state);
/* false: the builder refused, which is a bug in either */
bool diff_make(const knobs *k, trial *t, char *why, size_t size);
void diff_free(trial *t);
/* The arguments of a launch on this memory. */
int diff_args(const trial *t, uint8_t *memory, eas_arg *args);

/* Runs t on memory, one instruction at a time. */
eas_status diff_live(const trial *t, const eas_ir *ir, uint8_t *memory);

#endif
