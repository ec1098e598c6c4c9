/* native.c: the table of functions of the host's, and how they share out a batch. */
#include "native.h"

static const eas_native rows[] = {
#define NATIVE(name, doc) {#name, native_##name},
#include "native.def"
#undef NATIVE
};

const eas_native *native_find(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].name, name))
            return &rows[i];
    return NULL;
}

enum { MIN_WORK = 100000 }; /* operations worth another thread */

typedef struct batch {
    const native_call *c;
    native_each f;
    char *scratch; /* a part for each thread */
    size_t bytes;
} batch;

static void slice(void *ctx, int64_t first, int64_t last, int worker)
{
    const batch *b = ctx;
    for (int64_t i = first; i < last; i++)
        b->f(b->c, i, b->scratch + b->bytes * (size_t)worker);
}

eas_status native_batch(const native_call *c, int64_t n, double work, size_t scratch, native_each f)
{
    double grain = MIN_WORK / (work + 1);
    int threads = n > 1 && (double)n * work > 2 * MIN_WORK ? pool_size() : 1;
    batch b = {c, f, NULL, (scratch + 127) & ~(size_t)63};
    b.scratch = malloc(b.bytes * (size_t)threads);
    if (!b.scratch)
        return base_fail_oom(b.bytes * (size_t)threads);
    if (threads > 1)
        pool_run(n, grain < 1 ? 1 : (int64_t)grain, slice, &b, NULL, NULL);
    else
        slice(&b, 0, n, 0);
    free(b.scratch);
    return EAS_OK;
}
