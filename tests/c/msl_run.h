/* msl_run.h: runs generated MSL on this machine: clang compiles it with the shim of tests/metal/shim into a shared object, threads
 * of a group are threads here. For tests that compare a kernel's MSL with the reference. */
#ifndef MSL_RUN_H
#define MSL_RUN_H

#include <stdint.h>

/* A batch of kernels that is compiled in one go; kernels of one batch have different names. */
typedef struct msl_batch msl_batch;
msl_batch *msl_batch_new(void);
void msl_batch_add(msl_batch *b, const char *msl);
int msl_batch_compile(msl_batch *b); /* 0, or prints clang's complaints */
/* Runs every threadgroup of the grid, one after the other, with block threads each. args: per parameter a pointer to the first
 * element or to the scalar. Returns 0, or -1 if the batch has no such kernel. */
int msl_batch_run(msl_batch *b, const char *kernel, void **args, const int64_t grid[3], int block);
void msl_batch_free(msl_batch *b);

/* Both return 0 if clang takes the text. */
int msl_syntax(const char *msl);
int opencl_syntax(const char *cl);

#endif
