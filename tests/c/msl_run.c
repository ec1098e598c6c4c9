/* msl_run.c: see msl_run.h. */
#include "msl_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct msl_batch {
    char **texts;
    int n;
    msl_lib *lib;
};

msl_batch *msl_batch_new(void) { return calloc(1, sizeof(msl_batch)); }

void msl_batch_add(msl_batch *b, const char *msl)
{
    b->texts = realloc(b->texts, (size_t)(b->n + 1) * sizeof *b->texts);
    b->texts[b->n++] = strdup(msl);
}

int msl_batch_compile(msl_batch *b)
{
    char *error;
    if (msl_spaces((const char *const *)b->texts, b->n))
        return -1;
    b->lib = msl_compile((const char *const *)b->texts, b->n, false, &error);
    if (!b->lib)
        fprintf(stderr, "%s\n", error);
    free(error);
    return b->lib ? 0 : -1;
}

int msl_batch_run(msl_batch *b, const char *kernel, void **args, const int64_t grid[3], int block)
{
    char why[256] = "no such kernel";
    const msl_kernel *k = msl_find(b->lib, kernel);
    msl_grid g = {.threads = {(uint64_t)grid[0] * (uint64_t)block, (uint64_t)grid[1], (uint64_t)grid[2]},
                  .group = {(uint32_t)block, 1, 1}};
    msl_result r = k ? msl_run(k, args, &g, 60, why) : MSL_FAULT;
    if (r)
        fprintf(stderr, "%s: %s\n", kernel, why);
    return (int)r;
}

void msl_batch_free(msl_batch *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->n; i++)
        free(b->texts[i]);
    free(b->texts);
    msl_lib_free(b->lib);
    free(b);
}
