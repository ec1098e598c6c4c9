/* fail_alloc.c: LD_PRELOADed, it lets allocations fail: after fail_alloc(n, many) the n-th (from 0) and the
 * `many - 1` after it give NULL, in every thread. fail_alloc(-1, 0) ends that; fail_alloc_count() tells how
 * many there were since. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
    *__libc_memalign(size_t, size_t);

_Atomic long fail_first = -1, fail_last = -1, fail_count;

void fail_alloc(long n, long many)
{
    fail_count = 0;
    fail_last = n + many;
    fail_first = n;
}
long fail_alloc_count(void) { return fail_count; }

static int fails(void)
{
    if (fail_first < 0)
        return 0;
    long at = fail_count++;
    if (at < fail_first || at >= fail_last)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return fails() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return fails() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return n && fails() ? NULL : __libc_realloc(p, n); }
void *memalign(size_t align, size_t n) { return fails() ? NULL : __libc_memalign(align, n); }
void *aligned_alloc(size_t align, size_t n) { return memalign(align, n); }
int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = memalign(align, n);
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}
