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

enum {
    MIN_WORK = 100000,
    SHARED_WORK = 4000000
}; /* operations that make another thread worthwhile; operations that make sharing one problem worthwhile */

typedef struct batch {
    const native_call *c;
    native_each f;
    crew *crews; /* one for each thread that works alone */
} batch;

static void slice(void *ctx, int64_t first, int64_t last, int worker)
{
    const batch *b = ctx;
    for (int64_t i = first; i < last; i++)
        b->f(b->c, i, &b->crews[worker]);
}

static size_t rounded(size_t bytes) { return (bytes + 127) & ~(size_t)63; }

/* Runs n problems: each by one of `threads` threads or, if shared, one after the other by all of them. */
static eas_status run_batch(const native_call *c, int64_t n, const native_work *work, native_each f,
                            int threads, bool shared)
{
    const size_t each = rounded(work->each), once = rounded(work->once),
                 all = (size_t)threads * each + (size_t)(shared ? 1 : threads) * once;
    crew *crews = calloc((size_t)threads, sizeof *crews);
    char *room = aligned_alloc(64, all);
    eas_status st = crews && room ? EAS_OK : base_fail_oom(all);
    batch b = {c, f, crews};
    for (int i = 0; i < threads && !st; i++)
        crews[i] = (crew){1, each, room + (size_t)i * (each + once), room + (size_t)i * (each + once) + each};
    if (!st && shared)
        crews[0] = (crew){threads, each, room, room + (size_t)threads * each};
    if (!st && (shared || threads == 1))
        slice(&b, 0, n, 0);
    else if (!st) {
        const double grain = MIN_WORK / (work->operations + 1);
        pool_run(n, grain < 1 ? 1 : (int64_t)grain, slice, &b, NULL, NULL);
    }
    free(room), free(crews);
    return st;
}

eas_status native_batch(const native_call *c, int64_t n, const native_work *work, native_each f)
{
    const int all = pool_size();
    if (n <= 0)
        return EAS_OK;
    if (work->shared && n < all && work->operations > SHARED_WORK)
        return run_batch(c, n, work, f, all, true);
    return run_batch(c, n, work, f, n > 1 && (double)n * work->operations > 2 * MIN_WORK ? all : 1, false);
}
