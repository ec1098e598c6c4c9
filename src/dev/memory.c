/* memory.c: device memory as counted buffers, and the pool that keeps freed ones for the next who wants that
 * size.
 *
 * Sizes come in eight steps to a power of two, so what is handed out is at most an eighth larger than what
 * was asked for. A freed buffer goes to the list of its size, buffer and memory as one; the next request of
 * that size takes it, one of the same stream first. What is kept is limited (EAS_POOL_LIMIT, else a quarter
 * of the living bytes and at least 256 MB): the oldest go back to the device. Work that may still use a
 * buffer holds it (see stream.c), so what is in the pool is free for every stream.
 */
#include "dev.h"
#include "sums.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BUFFER_MAGIC = 0x45415342, STEP = 64, CLASSES = 64 * 8, LOOK = 4 };

typedef struct pool {
    pthread_mutex_t lock;
    eas_buffer *free[CLASSES];
    eas_buffer *newest, *oldest;
    uint64_t of[CLASSES]; /* living buffers of each size */
    eas_memory s;
} pool;

static pool pools[DEV_MAX] = {{.lock = PTHREAD_MUTEX_INITIALIZER},
                              {.lock = PTHREAD_MUTEX_INITIALIZER},
                              {.lock = PTHREAD_MUTEX_INITIALIZER},
                              {.lock = PTHREAD_MUTEX_INITIALIZER}};

static pool *pool_of(const eas_device *d) { return &pools[dev_index(d)]; }

/* ---- host memory: cache lines, and huge pages for what is large ---- */

enum { HUGE_PAGE = 2 << 20, MAPPED = 1 << 20 };

/* Mapped directly, so that freeing gives the pages back to the system; malloc would keep them. */
static void *map_pages(size_t n)
{
    size_t align = n >= 2 * (size_t)HUGE_PAGE ? HUGE_PAGE : (size_t)sysconf(_SC_PAGESIZE);
    if (n > SIZE_MAX - align)
        return NULL;
    char *p = mmap(NULL, n + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t before = (align - (uintptr_t)p % align) % align;
    if (before)
        munmap(p, before);
    if (align - before)
        munmap(p + before + n, align - before);
#ifdef MADV_HUGEPAGE
    if (align == HUGE_PAGE)
        madvise(p + before, n, MADV_HUGEPAGE);
#endif
    return p + before;
}

static size_t whole_pages(size_t n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return n > SIZE_MAX - page ? n : (n + page - 1) / page * page;
}

eas_status dev_host_alloc(eas_device *d, size_t nbytes, void **mem)
{
    (void)d;
    *mem = NULL;
    if (nbytes >= MAPPED)
        *mem = map_pages(whole_pages(nbytes));
    else if (posix_memalign(mem, STEP, nbytes ? nbytes : 1))
        *mem = NULL;
    return *mem ? EAS_OK : base_fail_oom(nbytes);
}

void dev_host_dealloc(eas_device *d, void *mem, size_t nbytes)
{
    (void)d;
    if (nbytes >= MAPPED)
        munmap(mem, whole_pages(nbytes));
    else
        free(mem);
}

/* ---- sizes ---- */

static unsigned log2_of(size_t n) { return 63u - (unsigned)__builtin_clzll((unsigned long long)n); }

/* The size handed out for n bytes and its class. Sizes that no machine has are left to the device to refuse.
 */
static size_t size_class(size_t n, unsigned *cls)
{
    if (n < STEP)
        n = STEP;
    unsigned e = log2_of(n);
    size_t base = (size_t)1 << e, step = base / 8 < STEP ? STEP : base / 8;
    if (n > SIZE_MAX / 4) {
        *cls = CLASSES - 1;
        return n;
    }
    size_t room = (n + step - 1) / step * step;
    e = log2_of(room);
    base = (size_t)1 << e;
    *cls = e * 8 + (unsigned)((room - base) / (base / 8 < STEP ? STEP : base / 8));
    return room;
}

bool dev_env_bytes(const char *name, uint64_t *out)
{
    const char *e = getenv(name);
    char *end = NULL;
    unsigned long long n = e && *e ? strtoull(e, &end, 10) : 0;
    if (!end || end == e)
        return false;
    const int shift = *end == 'K' || *end == 'k' ? 10
                    : *end == 'M' || *end == 'm' ? 20
                    : *end == 'G' || *end == 'g' ? 30
                                                 : 0;
    *out = (uint64_t)n << shift;
    return true;
}

static uint64_t limit_of(const pool *p)
{
    static _Atomic uint64_t set; /* 2 + the limit; 0: not looked up yet; 1: none was set */
    uint64_t v = set;
    if (!v)
        set = v = dev_env_bytes("EAS_POOL_LIMIT", &v) ? v + 2 : 1;
    if (v > 1)
        return v - 2;
    uint64_t quarter = p->s.live_bytes / 4, least = (uint64_t)256 << 20;
    return quarter > least ? quarter : least;
}

/* ---- the pool; all with its lock held ---- */

static void take_out(pool *p, eas_buffer *b, unsigned cls)
{
    *(b->newer ? &b->newer->older : &p->newest) = b->older;
    *(b->older ? &b->older->newer : &p->oldest) = b->newer;
    *(b->prev ? &b->prev->next : &p->free[cls]) = b->next;
    if (b->next)
        b->next->prev = b->prev;
    p->s.cached_bytes -= b->room;
    p->s.cached_count--;
}

static eas_buffer *find(pool *p, unsigned cls, size_t n, const eas_stream *stream)
{
    for (unsigned c = cls; c < cls + 2 && c < CLASSES; c++) {
        eas_buffer *b = p->free[c], *same = b;
        if (!b || b->room < n || b->room - n > n / 8 + STEP)
            continue;
        for (int i = 0; i < LOOK && same && same->stream != stream; i++)
            same = same->next;
        if (same && same->stream == stream)
            b = same;
        take_out(p, b, c);
        return b;
    }
    return NULL;
}

/* The oldest, until no more than keep bytes are cached; chained by next, to be freed without the lock. */
static eas_buffer *trim(pool *p, uint64_t keep)
{
    eas_buffer *out = NULL;
    while (p->oldest && p->s.cached_bytes > keep) {
        eas_buffer *b = p->oldest;
        take_out(p, b, b->cls);
        b->next = out;
        out = b;
    }
    return out;
}

static void lived(pool *p, const eas_buffer *b, int by)
{
    p->s.live_bytes += by > 0 ? b->room : -b->room;
    p->s.live_count += (uint64_t)(int64_t)by;
    p->of[b->cls] += (uint64_t)(int64_t)by;
    if (p->s.live_bytes > p->s.peak_bytes)
        p->s.peak_bytes = p->s.live_bytes;
}

/* ---- with the device ---- */

static void give_back(eas_buffer *list)
{
    while (list) {
        eas_buffer *next = list->next;
        if (!dev_usable(list->device))
            list->device->dealloc(list->device, list->mem, list->room);
        free(list);
        list = next;
    }
}

static void empty(pool *p)
{
    base_lock(&p->lock);
    eas_buffer *all = trim(p, 0);
    base_unlock(&p->lock);
    give_back(all);
}

static void add_bytes(str *s, uint64_t n)
{
    if (n >= (uint64_t)1 << 30)
        str_add(s, "%.2f GB", (double)n / (1 << 30));
    else if (n >= 1 << 20)
        str_add(s, "%.1f MB", (double)n / (1 << 20));
    else
        str_add(s, "%llu bytes", (unsigned long long)n);
}

/* Who has the memory: the living buffers by size, largest first. */
static eas_status out_of_memory(pool *p, eas_device *d, size_t n)
{
    enum { SHOWN = 6 };
    str s = {0};
    int shown = 0;
    char why[512];
    snprintf(why, sizeof why, "%s", eas_error_message());
    base_lock(&p->lock);
    str_add(&s, "device \"%s\" has no room for ", d->name);
    add_bytes(&s, n);
    str_add(&s, ", nothing cached is left: %s. In use are ", why);
    add_bytes(&s, p->s.live_bytes);
    str_add(&s, " in %llu buffer%s", (unsigned long long)p->s.live_count, p->s.live_count == 1 ? "" : "s");
    for (int c = CLASSES - 1; c >= 0 && shown < SHOWN; c--)
        if (p->of[c]) {
            uint64_t base = (uint64_t)1 << (c / 8), step = base / 8 < STEP ? STEP : base / 8;
            str_add(&s, "%s%llu of ", shown++ ? ", " : ": ", (unsigned long long)p->of[c]);
            add_bytes(&s, base + (uint64_t)(c % 8) * step);
        }
    base_unlock(&p->lock);
    eas_status st = base_fail(EAS_ERR_MEMORY, "%s", s.at ? s.at : "out of memory");
    str_free(&s);
    return st;
}

static eas_status obtain(pool *p, eas_device *d, size_t n, size_t room, void **mem)
{
    eas_status st = d->alloc(d, room, mem);
    if (st != EAS_ERR_MEMORY)
        return st;
    stream_retire_all(d);
    dev_packs_empty(d);
    sums_forget();
    empty(p);
    st = d->alloc(d, room, mem);
    return st == EAS_ERR_MEMORY ? out_of_memory(p, d, n) : st;
}

/* ---- buffers ---- */

static eas_status new_buffer(eas_buffer what, eas_buffer **out)
{
    eas_buffer *b = malloc(sizeof *b);
    if (!b)
        return base_fail_oom(sizeof *b);
    *b = what;
    b->magic = BUFFER_MAGIC;
    b->refs = 1;
    *out = b;
    return EAS_OK;
}

static eas_status fresh_buffer(pool *p, eas_device *d, size_t n, size_t room, eas_buffer **out)
{
    void *mem;
    eas_status st = dev_usable(d);
    if (!st)
        st = obtain(p, d, n, room, &mem);
    if (st)
        return st;
    dev_used(d);
    st = new_buffer((eas_buffer){.device = d, .mem = mem, .size = n, .room = room, .owned = true}, out);
    if (st)
        d->dealloc(d, mem, room);
    return st;
}

static eas_buffer *used_again(pool *p, unsigned cls, size_t nbytes, const eas_stream *stream)
{
    base_lock(&p->lock);
    eas_buffer *b = find(p, cls, nbytes, stream);
    if (b) {
        p->s.hits++;
        lived(p, b, 1);
    }
    base_unlock(&p->lock);
    return b;
}

eas_status eas_buffer_new(eas_device *d, size_t nbytes, eas_buffer **out)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    pool *p = pool_of(d);
    unsigned cls;
    size_t room = size_class(nbytes, &cls);
    const eas_stream *stream = stream_used(d);
    *out = NULL;
    eas_buffer *b = used_again(p, cls, nbytes, stream);
    if (!b && room >= MAPPED) { /* first take back what finished launches still hold, then map new pages */
        stream_retire_all(d);
        b = used_again(p, cls, nbytes, stream);
    }
    if (!b) {
        eas_status st = fresh_buffer(p, d, nbytes, room, &b);
        if (st)
            return st;
        base_lock(&p->lock);
        p->s.misses++;
        b->cls = cls;
        lived(p, b, 1);
        base_unlock(&p->lock);
    }
    b->refs = 1;
    b->magic = BUFFER_MAGIC;
    b->size = nbytes;
    b->stream = stream;
    *out = b;
    return EAS_OK;
}

eas_status eas_buffer_wrap(eas_device *d, void *data, size_t nbytes, void (*done)(void *), void *ctx,
                           eas_buffer **out)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    if (!d->host_memory && nbytes) /* such a device cannot use memory of the host */
        return base_fail(EAS_ERR_VALUE, "device \"%s\" cannot use host memory as it is", d->name);
    return new_buffer((eas_buffer){.device = d, .mem = data, .size = nbytes, .done = done, .ctx = ctx}, out);
}

static eas_status direct_buffer(eas_buffer what, eas_buffer **out)
{
    dev_used(what.device);
    what.direct = true;
    eas_status st = new_buffer(what, out);
    if (st)
        what.device->dealloc(what.device, what.mem, what.size);
    return st;
}

eas_status eas_buffer_new_shared(eas_device *d, size_t nbytes, eas_buffer **out)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    void *mem, *host;
    *out = NULL;
    if (!d->alloc_shared)
        return d->host_memory
                 ? eas_buffer_new(d, nbytes, out)
                 : base_fail(EAS_ERR_VALUE, "device \"%s\" has no memory that the host reaches as well",
                             d->name);
    eas_status st = dev_usable(d);
    if (!st)
        st = d->alloc_shared(d, nbytes, &mem, &host);
    return st ? st : direct_buffer((eas_buffer){.device = d, .mem = mem, .size = nbytes, .host = host}, out);
}

eas_status eas_buffer_adopt(eas_device *d, void *handle, void (*done)(void *), void *ctx, eas_buffer **out)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    void *mem, *host;
    size_t nbytes;
    *out = NULL;
    if (!d->adopt || !handle)
        return base_fail(EAS_ERR_VALUE, "device \"%s\" %s", d->name,
                         d->adopt ? "cannot adopt a handle of NULL" : "has no handles of others");
    eas_status st = dev_usable(d);
    if (!st)
        st = d->adopt(d, handle, &nbytes, &mem, &host);
    return st ? st
              : direct_buffer(
                    (eas_buffer){
                        .device = d, .mem = mem, .size = nbytes, .host = host, .done = done, .ctx = ctx},
                    out);
}

void *eas_device_handle(eas_device *d, const void *address, size_t *offset)
{
    NEED(d, NULL);
    NEED(offset, NULL);
    *offset = 0;
    return d->handle && !dev_usable(d) ? d->handle(d, address, offset) : NULL;
}

eas_buffer *eas_buffer_retain(eas_buffer *b)
{
    if (b)
        __atomic_add_fetch(&b->refs, 1, __ATOMIC_RELAXED);
    return b;
}

static void recycle(eas_buffer *b)
{
    pool *p = pool_of(b->device);
    unsigned cls = b->cls;
    b->magic = 0;
    base_lock(&p->lock);
    lived(p, b, -1);
    b->prev = NULL;
    b->next = p->free[cls];
    if (b->next)
        b->next->prev = b;
    p->free[cls] = b;
    b->newer = NULL;
    b->older = p->newest;
    *(p->newest ? &p->newest->newer : &p->oldest) = b;
    p->newest = b;
    p->s.cached_bytes += b->room;
    p->s.cached_count++;
    uint64_t limit = limit_of(p);
    eas_buffer *old = p->s.cached_bytes > limit ? trim(p, limit) : NULL;
    base_unlock(&p->lock);
    give_back(old);
}

void eas_buffer_release(eas_buffer *b)
{
    if (!b || __atomic_sub_fetch(&b->refs, 1, __ATOMIC_ACQ_REL))
        return;
    dev_buffer_changes(b);
    b->sealed = false;
    if (b->direct && !dev_usable(b->device))
        b->device->dealloc(b->device, b->mem, b->size);
    if (b->done)
        b->done(b->ctx);
    if (b->owned) {
        recycle(b);
        return;
    }
    b->magic = 0;
    free(b);
}

eas_device *eas_buffer_device(const eas_buffer *b)
{
    NEED(b, NULL);
    return b->device;
}
size_t eas_buffer_size(const eas_buffer *b)
{
    NEED(b, 0);
    return b->size;
}

/* The caller may write to it from now on. */
static void give_out(const eas_buffer *b)
{
    if (__atomic_load_n(&b->sealed, __ATOMIC_ACQUIRE))
        dev_unseal((eas_buffer *)(uintptr_t)b);
}
void *eas_buffer_host(const eas_buffer *b)
{
    NEED(b, NULL);
    give_out(b);
    return b->device->host_memory ? b->mem : b->host;
}
void *eas_buffer_address(const eas_buffer *b)
{
    NEED(b, NULL);
    give_out(b);
    return b->mem;
}
const void *eas_buffer_read(const eas_buffer *b)
{
    NEED(b, NULL);
    return b->mem;
}
void eas_buffer_seal(eas_buffer *b)
{
    if (b)
        dev_seal(b);
}

/* ---- for people ---- */

eas_memory eas_memory_stats(eas_device *d)
{
    pool *p = pool_of(d);
    base_lock(&p->lock);
    eas_memory s = p->s;
    s.limit = limit_of(p);
    base_unlock(&p->lock);
    return s;
}

void eas_device_empty_cache(eas_device *d)
{
    for (int i = 0; i < eas_device_count(); i++)
        if (!d || d == eas_device_at(i)) {
            stream_retire_all(eas_device_at(i));
            dev_packs_empty(eas_device_at(i));
            empty(&pools[i]);
        }
    if (!d || d == &dev_cpu)
        sums_forget();
}
