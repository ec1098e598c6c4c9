/* run.h: programs over parts, for the files that make and run them.
 *
 *   make.c      a program from a recorded graph
 *   launch.c    its runs on every device of this process
 *   run.c       evaluating nodes: programs are kept by the structure of the graph
 *   compiled.c  compiled functions
 *
 * A program is the plan of one device's graph (exec), what its leaves are (tensors of the run, or places
 * along axes), and how its results lie. A result that is the same on every device becomes an ordinary tensor;
 * others keep their parts.
 */
#ifndef DIST_RUN_H
#define DIST_RUN_H

#include "dist.h"

typedef struct leaf { /* of the plan */
    int which; /* tensor of the run; -1: the place along axes */
    eas_dim_spec axes;
    eas_buffer **place; /* per device of this process */
} leaf;
typedef struct program {
    _Atomic uint32_t refs;
    const dist_mesh *m;
    eas_device *device;
    plan *p;
    int nleaves, nnumbers, nouts, ngiven;
    leaf *leaves;
    struct {
        int which; /* number of the run; -1: bits */
        int64_t bits;
    } *numbers;
    struct out {
        uint32_t at; /* which of the plan's results */
        eas_spec spec;
        size_t bytes; /* of one part */
    } *outs;
    eas_spec *given; /* per tensor of the run: how it lies */
    VEC_TEXT sites;
    pnotes notes;
    int64_t ndevices; /* of this process */
    uint64_t key[2], used;
} program;

typedef struct wish { /* what a program is made of */
    int nleaves, nnumbers, nroots;
    eas_node *const *leaves, *const *numbers, *const *roots;
    const eas_spec *specs; /* NULL, or per leaf: how it is to lie */
    const pins *chosen; /* NULL, or layouts inside */
    dist_look look; /* NULL, or what is called with the local graph */
    void *ctx;
} wish;

/* ---- make.c ---- */
void program_release(program *g);
/* plan: to be run; otherwise only looked at */
eas_status program_make(const dist_mesh *m, const wish *w, eas_device *d, bool plan, program **out);
/* as it lies on the mesh; what is on another one comes whole. m: NULL is any */
eas_spec leaf_spec(const dist_mesh *m, const eas_node *n);
static inline wish wish_of(const pass_walk *w, int n, eas_node *const *roots)
{
    return (wish){.nleaves = (int)w->leaves.len,
                  .leaves = w->leaves.at,
                  .nnumbers = (int)w->numbers.len,
                  .numbers = w->numbers.at,
                  .nroots = n,
                  .roots = roots};
}

/* ---- launch.c ---- */
/* args: per tensor of the run, with data that lies as the program wants it; given: NULL, or per tensor,
 * whether its memory may be taken. */
eas_status program_go(const program *g, eas_node *const *args, const int64_t *numbers, const uint8_t *given,
                      const eas_launch *hooks, eas_buffer **results);

/* ---- run.c ---- */
bool leaf_solid(const eas_node *n); /* in C order */

/* ---- compiled.c ---- */
eas_status compiled_new(int nin, eas_node *const *inputs, int nouts, eas_node *const *outs,
                        eas_device *device, void **out);
eas_status compiled_run(void *p, int nin, eas_node *const *args, const uint8_t *donated,
                        const eas_launch *hooks, eas_node **results);
void compiled_free(void *p);

#endif
