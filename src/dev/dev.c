/* dev.c: the table of devices, and device memory as counted buffers. */
#include "dev.h"

#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

struct dev_counters dev_count;

static eas_device *const devices[] = {&dev_cpu, &dev_ref};
enum { NDEVICES = sizeof devices / sizeof *devices };

/* Names that exist in the language but not in this library. */
static const struct {
    const char *name, *why;
} absent[] = {
    {"mps", "the Metal device is not part of this build"},
    {"metal", "the Metal device is not part of this build"},
    {"opencl", "the OpenCL device is not part of this build"},
};

int eas_device_count(void) { return NDEVICES; }
eas_device *eas_device_at(int i) { return i >= 0 && i < NDEVICES ? devices[i] : NULL; }
const char *eas_device_name(const eas_device *d) { return d->name; }
const char *eas_device_describe(const eas_device *d) { return d->describe((eas_device *)(uintptr_t)d); }
const char *eas_device_unavailable(const eas_device *d) { return d->unavailable((eas_device *)(uintptr_t)d); }

eas_status eas_device_get(const char *name, eas_device **out)
{
    *out = NULL;
    for (int i = 0; i < NDEVICES; i++)
        if (!strcmp(devices[i]->name, name)) {
            *out = devices[i];
            return EAS_OK;
        }
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (!strcmp(absent[i].name, name))
            return base_fail(EAS_ERR_UNAVAILABLE, "device \"%s\" is not available: %s", name, absent[i].why);
    return base_fail(EAS_ERR_VALUE, "unknown device \"%s\"; there are cpu, ref, mps (also called metal) and opencl", name);
}

void dev_warn_once(_Atomic int *said, const char *fmt, ...)
{
    if (atomic_exchange(said, 1))
        return;
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "eas: %s\n", text);
}

int dev_poll(void *ctx)
{
    const eas_launch *o = ctx;
    bool locks = o->enter && o->leave;
    if (locks)
        o->enter(o->ctx);
    int stop = o->interrupted(o->ctx);
    if (locks)
        o->leave(o->ctx);
    return stop;
}

eas_stats eas_stats_get(void)
{
    return (eas_stats){.compiles = dev_count.compiles,
                       .disk_hits = dev_count.hits,
                       .disk_misses = dev_count.misses,
                       .disk_bad = dev_count.bad,
                       .launches = dev_count.launches,
                       .compiler_loaded = dev_count.compiler};
}

/* ---- host memory: cache lines, and huge pages for what is large ---- */

enum { HUGE_PAGE = 2 << 20 };

eas_status dev_host_alloc(eas_device *d, size_t nbytes, void **mem)
{
    (void)d;
    bool big = nbytes >= 2 * (size_t)HUGE_PAGE;
    if (posix_memalign(mem, big ? HUGE_PAGE : 64, nbytes ? nbytes : 1))
        return base_fail_oom(nbytes);
#ifdef MADV_HUGEPAGE
    if (big)
        madvise(*mem, nbytes, MADV_HUGEPAGE);
#endif
    return EAS_OK;
}

void dev_host_dealloc(eas_device *d, void *mem, size_t nbytes)
{
    (void)d, (void)nbytes;
    free(mem);
}

/* ---- buffers ---- */

enum { BUFFER_MAGIC = 0x45415342 };

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

eas_status eas_buffer_new(eas_device *d, size_t nbytes, eas_buffer **out)
{
    void *mem;
    *out = NULL;
    eas_status st = d->alloc(d, nbytes, &mem);
    if (st)
        return st;
    st = new_buffer((eas_buffer){.device = d, .mem = mem, .size = nbytes, .owned = true}, out);
    if (st)
        d->dealloc(d, mem, nbytes);
    return st;
}

eas_status eas_buffer_wrap(eas_device *d, void *data, size_t nbytes, void (*done)(void *), void *ctx, eas_buffer **out)
{
    *out = NULL;
    if (!d->host_memory)
        return base_fail(EAS_ERR_VALUE, "device \"%s\" cannot use host memory as it is", d->name);
    return new_buffer((eas_buffer){.device = d, .mem = data, .size = nbytes, .done = done, .ctx = ctx}, out);
}

eas_buffer *eas_buffer_retain(eas_buffer *b)
{
    if (b)
        __atomic_add_fetch(&b->refs, 1, __ATOMIC_RELAXED);
    return b;
}

void eas_buffer_release(eas_buffer *b)
{
    if (!b || __atomic_sub_fetch(&b->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (b->done)
        b->done(b->ctx);
    if (b->owned)
        b->device->dealloc(b->device, b->mem, b->size);
    b->magic = 0;
    free(b);
}

eas_device *eas_buffer_device(const eas_buffer *b) { return b->device; }
size_t eas_buffer_size(const eas_buffer *b) { return b->size; }
void *eas_buffer_host(const eas_buffer *b) { return b->device->host_memory ? b->mem : NULL; }
