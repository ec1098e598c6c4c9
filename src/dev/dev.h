/* dev.h: the device contract, and what devices share: memory, the cache of compiled code.
 *
 * A device is a row in dev.c's table of pointers. It turns IR into code once (compile) and runs code over a grid (launch). What the
 * kernel folder decides before: which form of the IR, that arguments fit it, the grid.
 */
#ifndef DEV_H
#define DEV_H

#include "../gen/gen.h"

typedef struct dev_code dev_code; /* a device's own: compiled form of one IR */

typedef struct dev_launch {
    const eas_ir *ir;     /* what code was compiled from: for messages */
    const uint64_t *slot; /* per parameter: address, or the scalar's bits */
    const int64_t *count;
    int64_t grid[3], programs; /* programs = product of grid, > 0 */
    uint64_t bytes;       /* of all buffers together */
    double cost;          /* rough nanoseconds of one program, > 0 */
    const eas_launch *opts; /* hooks; may be NULL */
} dev_launch;

struct eas_device {
    const char *name;
    const char *(*unavailable)(eas_device *d); /* NULL, or the reason */
    const char *(*describe)(eas_device *d);
    eas_status (*alloc)(eas_device *d, size_t nbytes, void **mem);
    void (*dealloc)(eas_device *d, void *mem, size_t nbytes);
    bool host_memory; /* the host may touch its buffers */
    /* alias: arguments may overlap in any way. */
    eas_status (*compile)(eas_device *d, const eas_ir *ir, bool alias, dev_code **out);
    void (*drop)(eas_device *d, dev_code *code);
    eas_status (*launch)(eas_device *d, dev_code *code, const dev_launch *l);
    bool (*alias_sensitive)(const dev_code *code); /* does overlap between arguments change results? */
};

extern eas_device dev_ref, dev_cpu;

struct eas_buffer {
    uint32_t magic;
    int refs;
    eas_device *device;
    void *mem;
    size_t size;
    void (*done)(void *);
    void *ctx;
    bool owned; /* mem is the device's, not the caller's */
};

/* ---- cpu.c ---- */
/* "llvm" or "asm" text of ir for this machine. */
eas_status cpu_text(const eas_ir *ir, const char *form, char **out);

/* ---- cache.c: compiled images on disk ---- */
typedef struct cache_key {
    uint8_t h[32];
} cache_key;
void cache_key_of(const eas_ir *ir, const char *target, const char *options, cache_key *key);
bool cache_load(const cache_key *key, gen_image *im);         /* false: not there, or dropped as bad */
void cache_store(const cache_key *key, const gen_image *im);  /* best effort */

extern struct dev_counters {
    _Atomic uint64_t compiles, hits, misses, bad, launches;
    _Atomic int compiler;
} dev_count;

/* Memory of devices that share the host's. */
eas_status dev_host_alloc(eas_device *d, size_t nbytes, void **mem);
void dev_host_dealloc(eas_device *d, void *mem, size_t nbytes);
/* Asks the host, holding its lock, whether to stop; ctx is the eas_launch. */
int dev_poll(void *ctx);
/* Says something once per process on standard error. */
void dev_warn_once(_Atomic int *said, const char *fmt, ...) BASE_PRINTF(2, 3);

#endif
