/* dev.h: the device contract, and what devices share: memory, the cache of compiled code.
 *
 * A device is a row of device.def and a struct eas_device. It turns IR into code once (compile) and runs code
 * over a grid (launch). The kernel folder has decided before which form of the IR that is, that arguments fit
 * it, and how large the grid is.
 */
#ifndef DEV_H
#define DEV_H

#include "../gen/gen.h"

typedef struct dev_code dev_code;   /* a device's own: compiled form of one IR */
typedef struct dev_queue dev_queue; /* a device's own: work given to one queue runs in the order given */

typedef struct dev_launch {
    const eas_ir *ir;     /* the kernel's: for messages */
    const uint64_t *slot; /* per parameter: address, or the scalar's bits */
    const int64_t *count;
    int64_t grid[3], programs; /* programs = product of grid, > 0 */
    uint64_t bytes;       /* of all buffers together */
    double cost;          /* rough nanoseconds of one program, > 0 */
    /* devices with host memory: interpret this in place of running the code; else NULL */
    const eas_ir *interp;
    bool serial;          /* programs run in order, one after the other, where the device can */
    bool now; /* the caller waits for it: a device of the host may run it on the calling thread */
    const eas_launch *opts; /* hooks, for a launch that is waited for; may be NULL */
} dev_launch;

typedef struct dev_tile { /* of a matrix product: what one program keeps in registers */
    int rows, bytes; /* bytes of a row */
} dev_tile;
enum { DEV_TILES = 2 };

typedef struct dev_limits { /* as read from the device; 0: no such limit */
    int64_t threads, tg_bytes, simd, buffers,
        /* threads of a group; threadgroup memory; width of a simdgroup; buffer arguments; all arguments */
        params;
    size_t max_alloc;
    bool f64, f16, i64_atomics;
    bool unified; /* host and device share memory: no copy is needed */
    dev_tile tile[DEV_TILES]; /* the best first; 0 rows: none, or no further one */
    int sort_bytes; /* of the vectors that the host sorts rows of this device with (native_sorts); 0: it does
                       not */
    bool bf16_products; /* blocks of bf16 are multiplied as they are, without a pass that widens them */
} dev_limits;

/* host to device, device to host, on the device */
typedef enum dev_way { DEV_TO, DEV_FROM, DEV_WITHIN } dev_way;

typedef struct dev_step { /* of a replay: a launch, or a copy where code is NULL */
    dev_code *code;
    dev_launch l;
    dev_way way;
    void *dst;
    const void *src;
    size_t n;
} dev_step;

typedef struct dev_plan dev_plan; /* a device's own: steps made ready for replays */

/* Ways to compile. DEV_ALIAS: arguments may overlap in any way. DEV_SUMS: threads add to arrays of their own
 * in place of buffers that the kernel only adds to (ir_added), which may not overlap with others then. */
enum { DEV_ALIAS = 1, DEV_SUMS = 2 };

enum { DEV_MAX = 4 }; /* devices in the table */

/* Calls that give work to a queue may return before it is done; whatever they need of their arguments is
 * copied, and copies see the host memory that work given before wrote. Failures of work that was given are
 * kept by the queue and returned by the next wait. */
struct eas_device {
    const char *name;
    const char *(*unavailable)(eas_device *d); /* NULL, or the reason */
    const char *(*describe)(eas_device *d);
    dev_limits (*limits)(eas_device *d);
    /* Memory. An address is a number in the device's own space, unique over all its live allocations: address
     * + offset names a place, and views and overlap are plain arithmetic. With host_memory it is a host
     * pointer; other devices keep a table from addresses to their handles. */
    eas_status (*alloc)(eas_device *d, size_t nbytes, void **mem);
    void (*dealloc)(eas_device *d, void *mem, size_t nbytes);
    /* Memory that the host reaches too; NULL: what alloc gives is. */
    eas_status (*alloc_shared)(eas_device *d, size_t nbytes, void **mem, void **host);
    /* Memory in the device's own terms: adopt gives a handle of others addresses until dealloc, handle tells
     * what an address lies in. NULL: no such thing. */
    eas_status (*adopt)(eas_device *d, void *handle, size_t *nbytes, void **mem, void **host);
    void *(*handle)(eas_device *d, const void *mem, size_t *offset);
    /* Host memory as it is, at an address of the device until dealloc: what the device writes is there once a
     * copy from that address to the memory itself is done. Nothing else may use the memory meanwhile. False:
     * it cannot be used so; NULL: no such thing. */
    bool (*lend)(eas_device *d, void *host, size_t nbytes, bool written, void **mem);
    bool host_memory; /* the host may touch its buffers, and it the host's */
    /* threadgroup memory that its code uses besides the kernel's own; NULL: none */
    int64_t (*own_tg)(const eas_ir *ir);
    /* compiles the text of gen_ctext: gets the 32-bit form where a launch allows it, and native functions
     * with fast math */
    bool text;
    bool sums; /* there is a form DEV_SUMS of its code */
    bool (*ldexp)(void); /* its code may have the instruction, of f32 and f64; NULL: never */
    /* Code; how: DEV_ALIAS, DEV_SUMS. */
    eas_status (*compile)(eas_device *d, const eas_ir *ir, unsigned how, dev_code **out);
    void (*drop)(eas_device *d, dev_code *code);
    bool (*alias_sensitive)(const dev_code *code); /* does overlap between arguments change results? */
    /* Queues */
    eas_status (*queue_new)(eas_device *d, dev_queue **out);
    void (*queue_free)(eas_device *d, dev_queue *q); /* waits */
    eas_status (*launch)(eas_device *d, dev_queue *q, dev_code *code, const dev_launch *l);
    /* Launches that do not depend on each other, as one that is waited for; they have one set of hooks. NULL:
     * they are given one by one. */
    eas_status (*launch_many)(eas_device *d, dev_queue *q, int n, dev_code *const *code, const dev_launch *l);
    eas_status (*copy)(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n);
    /* A number larger than those before; it is reached when all work given to q before is done. */
    eas_status (*mark)(eas_device *d, dev_queue *q, uint64_t *ticket);
    /* The ticket of what was given last; NULL: mark makes one for it. */
    uint64_t (*given)(eas_device *d, dev_queue *q);
    bool (*reached)(eas_device *d, dev_queue *q, uint64_t ticket);
    /* UINT64_MAX: for everything given so far. Returns, once, the first failure since the last wait; the
     * queue works on. */
    eas_status (*wait)(eas_device *d, dev_queue *q, uint64_t ticket);
    /* What is given to q from now on runs after other has reached ticket. Both are queues of d. */
    eas_status (*after)(eas_device *d, dev_queue *q, dev_queue *other, uint64_t ticket);
    /* Seconds at which a reached ticket of mark was, on a clock of the device's; negative: so old that it is
     * forgotten. */
    double (*time)(eas_device *d, dev_queue *q, uint64_t ticket);
    /* A list of launches and copies as one piece of work; it lives until that is done. now: the caller waits
     * for it, and holds no lock of the host's; of the hooks only `interrupted` counts. NULL: they are given
     * one by one. */
    eas_status (*replay)(eas_device *d, dev_queue *q, const dev_plan *plan, const dev_step *steps, int n,
                         const eas_launch *now);
    /* Makes steps ready for replay. *plan is NULL, or what was made of the list before some of its arguments
     * changed; no replay of it is pending. It may stay NULL. NULL: there is nothing to make ready. */
    eas_status (*plan)(eas_device *d, const dev_step *steps, int n, dev_plan **plan);
    void (*plan_free)(eas_device *d, dev_plan *plan);
};

#define DEVICE(symbol, alias, text, dlpack, absent, failed) extern eas_device dev_##symbol;
#include "device.def"
#undef DEVICE

/* ---- cpu.c ---- */
eas_status cpu_run(dev_code *code, const dev_launch *l); /* on the calling thread and the pool */
/* the same, slices of all side by side */
eas_status cpu_run_many(int n, dev_code *const *code, const dev_launch *l);
/* "plan", "llvm" or "asm" text of ir for this machine. */
eas_status cpu_text(const eas_ir *ir, const char *form, char **out);
eas_status cpu_object(const eas_ir *ir, void **bytes, size_t *size); /* relocatable; malloc'ed */

/* ---- cache.c: compiled images on disk ---- */
typedef struct cache_key {
    uint8_t h[32];
    bool unknown; /* there was no memory to find it out */
} cache_key;
void cache_key_of(const eas_ir *ir, const char *target, const char *options, cache_key *key);
void cache_key_text(const char *text, size_t len, const char *target, const char *options, cache_key *key);
bool cache_load(const cache_key *key, gen_image *im); /* false: not there, or dropped as bad */
void cache_store(const cache_key *key, const gen_image *im); /* best effort */

/* Timings of configs: hex names the kernel, the device and the caller's key. Best effort. */
void cache_timing_name(const eas_ir *ir, eas_device *d, const char *key, char hex[65]);
bool cache_timing_load(const char *hex, double *seconds);
void cache_timing_store(const char *hex, double seconds);

extern struct dev_counters {
    _Atomic uint64_t compiles, hits, misses, bad, launches;
    _Atomic int compiler;
} dev_count;

/* ---- dev.c ---- */
int dev_index(const eas_device *d); /* in the table of devices */
uint64_t dev_cache_bytes(void); /* of the host: what the pool's threads can count on of the largest cache */
eas_status dev_usable(eas_device *d); /* EAS_OK, or why it cannot be used: not there, or not after fork */
void dev_used(eas_device *d); /* from now on a forked child may not use it, unless it has host memory */
/* Does the device have what ir needs? The message lists what uses it. */
eas_status dev_check(eas_device *d, const eas_ir *ir);

/* ---- now.c: queues of devices that are done with everything when the call returns ---- */
eas_status now_queue_new(eas_device *d, dev_queue **out);
void now_queue_free(eas_device *d, dev_queue *q);
eas_status now_copy(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n);
eas_status now_mark(eas_device *d, dev_queue *q, uint64_t *ticket);
bool now_reached(eas_device *d, dev_queue *q, uint64_t ticket);
eas_status now_wait(eas_device *d, dev_queue *q, uint64_t ticket);
eas_status now_after(eas_device *d, dev_queue *q, dev_queue *other, uint64_t ticket);
double now_time(eas_device *d, dev_queue *q, uint64_t ticket);

/* ---- queue.c: the cpu's queues ---- */
eas_status cpu_queue_new(eas_device *d, dev_queue **out);
void cpu_queue_free(eas_device *d, dev_queue *q);
eas_status cpu_queue_launch(eas_device *d, dev_queue *q, dev_code *code, const dev_launch *l);
eas_status cpu_queue_launch_many(eas_device *d, dev_queue *q, int n, dev_code *const *code,
                                 const dev_launch *l);
eas_status cpu_queue_replay(eas_device *d, dev_queue *q, const dev_plan *plan, const dev_step *steps, int n,
                            const eas_launch *now);
eas_status cpu_queue_copy(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n);
eas_status cpu_queue_mark(eas_device *d, dev_queue *q, uint64_t *ticket);
uint64_t cpu_queue_given(eas_device *d, dev_queue *q);
bool cpu_queue_reached(eas_device *d, dev_queue *q, uint64_t ticket);
eas_status cpu_queue_wait(eas_device *d, dev_queue *q, uint64_t ticket);
eas_status cpu_queue_after(eas_device *d, dev_queue *q, dev_queue *other, uint64_t ticket);
double cpu_queue_time(eas_device *d, dev_queue *q, uint64_t ticket);

/* ---- stream.c ---- */
typedef struct stream_hold { /* what a piece of work needs while it may run */
    void *owner, *stage; /* a kernel or the like; memory of its own */
    void (*drop_owner)(void *), (*drop_stage)(void *);
    void *const *objects; /* of the caller's: each is retained, and released later */
    int nobjects;
    void (*retain)(void *), (*release)(void *);
} stream_hold;
/* Between begin and end this thread gives work to the stream; begin waits while too much is pending. end:
 * hold is let go once everything given so far is done, by some later call on the stream. With failed work
 * (end's st) nothing is held. */
eas_status stream_begin(eas_stream *s, const eas_launch *hooks);
eas_status stream_end(eas_stream *s, eas_status st, const stream_hold *hold);
/* everything given; returns the first failure since the last time */
eas_status stream_wait(eas_stream *s, const eas_launch *hooks);
const eas_stream *stream_used(const eas_device *d); /* this thread's, NULL for the default */
bool stream_pending(const eas_stream *s);
dev_queue *stream_queue(eas_stream *s);
eas_status dev_default_queue(eas_device *d, dev_queue **out); /* the default stream's */
void stream_retire_all(eas_device *d); /* lets go of what is done, to have memory back */

/* ---- memory.c: buffers, and the pool they come from ---- */
struct eas_buffer {
    uint32_t magic;
    int refs;
    eas_device *device;
    void *mem;
    size_t size, room; /* asked for; there */
    void (*done)(void *);
    void *ctx;
    bool owned; /* mem is the device's, not the caller's */
    bool direct; /* mem goes back to the device, not to the pool */
    void *host; /* of direct ones, where the host reaches it; else NULL */
    /* only the library writes to it: no caller has its address for writing (packs.c) */
    bool sealed;
    uint32_t version; /* how often it was written to by the library since it was made, or more */
    struct dev_pack *packs; /* copies in other layouts, or what was copied once */
    /* of the pool */
    const eas_stream *stream; /* it was made for */
    unsigned cls; /* of its size */
    struct eas_buffer *next, *prev; /* of its size */
    struct eas_buffer *newer, *older;
};

bool dev_env_bytes(const char *name, uint64_t *out); /* a variable such as "64M", if it is set */

/* ---- packs.c: copies of buffers in other layouts, kept with them ---- */
typedef struct dev_pack dev_pack;
enum { DEV_PACK_ARGS = 8 };
typedef struct dev_pack_key { /* how it is laid out */
    uint64_t kernel; /* its number */
    int64_t arg[DEV_PACK_ARGS]; /* scalars that it is given */
} dev_pack_key;
typedef struct dev_pack_ask { /* what dev_pack_find tells dev_pack_add */
    bool may; /* be kept at all */
    bool known; /* it was made before */
    uint32_t version; /* of the buffer */
} dev_pack_ask;
/* The copy, counted; NULL: there is none. Then the caller makes it and hands it to dev_pack_add. */
eas_buffer *dev_pack_find(eas_buffer *of, const dev_pack_key *key, dev_pack_ask *ask);
void dev_pack_add(eas_buffer *of, const dev_pack_key *key, const dev_pack_ask *ask, eas_buffer *copy);
void dev_packs_drop_all(eas_buffer *of);
void dev_packs_empty(const eas_device *d); /* drops all copies on a device; NULL: on all */
void dev_seal(eas_buffer *b);
void dev_unseal(eas_buffer *b);
/* The library writes to the buffer, or it dies. */
static inline void dev_buffer_changes(eas_buffer *b)
{
    __atomic_add_fetch(&b->version, 1, __ATOMIC_RELEASE);
    if (__atomic_load_n(&b->packs, __ATOMIC_ACQUIRE))
        dev_packs_drop_all(b);
}
typedef struct dev_pack_stats {
    uint64_t bytes, count, hits, limit;
} dev_pack_stats;
dev_pack_stats dev_packs_stats(void);

/* Memory of devices that share the host's. */
eas_status dev_host_alloc(eas_device *d, size_t nbytes, void **mem);
void dev_host_dealloc(eas_device *d, void *mem, size_t nbytes);
/* Asks the host, holding its lock, whether to stop; ctx is the eas_launch. */
int dev_poll(void *ctx);
/* What uses threadgroup memory, a line each, for messages. */
void dev_list_tg(str *s, const eas_ir *ir);
/* Says something once per process on standard error. */
void dev_warn_once(_Atomic int *said, const char *fmt, ...) BASE_PRINTF(2, 3);

#endif
