/* msl_run.h: batches of kernels for tests that compare a kernel's MSL with the reference; tests/metal
 * compiles and runs them. */
#ifndef MSL_RUN_H
#define MSL_RUN_H

#include "../metal/msl.h"

/* A batch of kernels that is compiled in one go; kernels of one batch have different names. */
typedef struct msl_batch msl_batch;
msl_batch *msl_batch_new(void);
void msl_batch_add(msl_batch *b, const char *msl);
int msl_batch_compile(msl_batch *b); /* 0, or prints clang's complaints */
/* Runs every threadgroup of the grid with block threads each. args: per parameter a pointer to the first
 * element or to the scalar. Returns 0, or prints why not. */
int msl_batch_run(msl_batch *b, const char *kernel, void **args, const int64_t grid[3], int block);
void msl_batch_free(msl_batch *b);

#endif
