/* msl.h: compiles Metal Shading Language for this machine and runs it. No Objective-C in here: the C tests
 * use it as it is, and the stand-in for Metal (standin_*.m) puts Metal's classes on top.
 *
 * A text goes through clang with the shim of tests/metal/shim, which plays <metal_stdlib>. Threads of a group
 * are fibers on the calling thread, so a barrier costs a few instructions, and what a thread does wrong (a
 * trap, a page fault, no end) stops the run, not the process.
 */
#ifndef MSL_H
#define MSL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a thread is. The text of msl_compile.c has the same structure. */
typedef struct msl_at {
    uint32_t group[3], groups[3];     /* threadgroup_position_in_grid, threadgroups_per_grid */
    uint32_t local[3], locals[3];     /* thread_position_in_threadgroup, threads_per_threadgroup */
    uint32_t global[3], all[3];       /* thread_position_in_grid, threads_per_grid */
    /* thread_index_in_threadgroup, thread_index_in_simdgroup, simdgroup_index_in_threadgroup */
    uint32_t index, lane, sg;
} msl_at;

typedef struct msl_arg {
    int32_t index;    /* of [[buffer(index)]] */
    int32_t reference; /* a reference to one value: the buffer must hold it whole */
    uint64_t size;    /* of the value or of an element */
    const char *name;
} msl_arg;

typedef struct msl_kernel {
    const char *name;
    void (*run)(void *const *args, const msl_at *at); /* args by buffer index */
    const msl_arg *args;
    int32_t nargs;
    uint32_t tg_bytes; /* threadgroup memory declared in the kernel */
    int32_t meets;     /* has barriers or exchanges between lanes */
} msl_kernel;

typedef struct msl_lib msl_lib;
/* Compiles n texts into one library, each in a namespace of its own. NULL on failure, and *error (malloc'ed)
 * is clang's complaint, in which text i is called "program_source" if there is only one. Results are kept on
 * disk, keyed by everything they depend on. */
msl_lib *msl_compile(const char *const *texts, int n, bool fast_math, char **error);
const msl_kernel *msl_find(const msl_lib *lib, const char *name);
void msl_lib_free(msl_lib *lib);

enum { MSL_SIMD = 32, MSL_MAX_THREADS = 1024, MSL_MAX_TG = 32768, MSL_MAX_BUFFERS = 31 };

typedef enum msl_result { MSL_OK, MSL_FAULT, MSL_TIMEOUT, MSL_DIVERGED, MSL_NO_MEMORY } msl_result;
typedef struct msl_grid {
    uint64_t threads[3]; /* of the whole grid; groups at its edges may be smaller */
    uint32_t group[3];
} msl_grid;
/* Runs every thread of the grid. seconds <= 0: no limit. */
msl_result msl_run(const msl_kernel *k, void *const *args, const msl_grid *grid, double seconds,
                   char why[256]);

/* 0 if clang takes the text; it complains on standard error otherwise. msl_spaces reads it as C++ for OpenCL,
 * whose address spaces are checked as Metal's are: the shim that runs kernels knows none. */
int msl_syntax(const char *msl);
int msl_spaces(const char *const *texts, int n);
int opencl_syntax(const char *cl);

#endif
