/* metal.h: what the parts of the Metal device share.
 *
 *   metal_msg.def    every message that is sent, with its types
 *   metal_objc.c     the Objective-C runtime, opened at run time: how plain C sends messages
 *   metal.c          the device: memory, code
 *   metal_call.c     a launch as Metal takes it: what is bound where
 *   metal_plan.c     graphs: launches encoded once, in an indirect command buffer
 *   metal_queue.c    queues: command buffers, launches, copies, tickets
 *
 * Objects are plain pointers, counted by hand: what comes from new... or retain is released, the rest belongs
 * to the autorelease pool around the call.
 */
#ifndef METAL_H
#define METAL_H

#include "dev.h"

#include <pthread.h>

/* ---- metal_objc.c ---- */

typedef struct objc_object *mtl_id;
typedef struct objc_selector *mtl_sel;
typedef struct mtl_size {
    unsigned long width, height, depth;
} mtl_size;
typedef struct mtl_range { /* NSRange */
    unsigned long location, length;
} mtl_range;
#if defined(__APPLE__) && defined(__aarch64__)
typedef bool mtl_bool;
#else
/* BOOL: a char on Intel Macs; GNU's is an unsigned char, and 0 and 1 are the same in both */
typedef signed char mtl_bool;
#endif

enum {
#define MSG(result, name, types, cls, selector, text) MSG_##name,
#include "metal_msg.def"
#undef MSG
    NMESSAGES
};
#define MSG(result, name, types, cls, selector, text) typedef result msg_##name types;
#include "metal_msg.def"
#undef MSG

extern mtl_sel metal_sel[NMESSAGES];
typedef void metal_fn(void);
metal_fn *metal_method(mtl_id o, int message);
#define SEND0(name, o) (((msg_##name *)metal_method((o), MSG_##name))((o), metal_sel[MSG_##name]))
#define SEND(name, o, ...) \
    (((msg_##name *)metal_method((o), MSG_##name))((o), metal_sel[MSG_##name], __VA_ARGS__))

/* Opens the library that EAS_METAL_LIBRARY names, or the system's. NULL, or why it cannot be had. *device is
 * counted. */
const char *metal_open(mtl_id *device);
mtl_id metal_class(const char *name); /* NULL: there is none */
mtl_id metal_string(const char *s);
const char *metal_text(mtl_id error); /* what an NSError says */
void *metal_pool_push(void);
void metal_pool_pop(void *pool);
void metal_watch_fork(void); /* once, when Metal is open */
bool metal_forked(void);     /* this process is a child of the one that opened Metal */

/* Has handler(ctx, command buffer) called when the command buffer is done, on a thread of Metal's. */
void metal_on_completed(mtl_id command_buffer, void (*handler)(void *ctx, mtl_id command_buffer), void *ctx);

/* ---- metal.c ---- */

enum { METAL_SHARED = 0, METAL_PRIVATE = 2 << 4 }; /* MTLResourceOptions */

typedef struct metal_place { /* where an address is */
    mtl_id buffer;
    size_t offset;
    char *host; /* its first byte if the host reaches it, else NULL */
} metal_place;

struct dev_code {
    eas_ir *ir; /* what it was compiled from */
    mtl_id pipeline;
    gen_msl_layout layout;
    uint8_t scalar[IR_MAX_PARAMS]; /* dtype of each scalar as the text has it */
    bool thread_mode, checked;
    int64_t threads; /* of a group, in thread mode */
    int64_t width;   /* of a simdgroup */
};

mtl_id metal_device(void);
bool metal_answers(mtl_id o, int message);
/* Can launches be encoded once and replayed? *resident: such a launch brings its pipeline along; where it
 * does not, the encoder must have run the pipeline itself before. */
bool metal_indirect(bool *resident);
eas_status metal_ready(void); /* open, and not in a forked child */
/* The buffer that n bytes from address lie in. */
eas_status metal_find(uint64_t address, size_t n, metal_place *out);

/* A kernel that copies bytes, from buffer 0 to buffer 1; borrowed. */
eas_status metal_byte_copier(mtl_id *pipeline);

/* ---- metal_call.c ---- */

typedef struct metal_arg {
    mtl_id buffer; /* NULL: a scalar; with n == 0 a buffer of no elements, which must be bound all the same */
    size_t offset;
    uint16_t index, at, n; /* a scalar's n bytes are at `at` of the call's */
} metal_arg;

typedef struct metal_call {
    mtl_id pipeline;
    mtl_size grid, group;
    bool groups; /* the grid counts groups, else threads */
    int nargs, nbytes;
    metal_arg arg[GEN_MSL_BUFFERS];
    unsigned char bytes[IR_MAX_PARAMS * 8];
} metal_call;

/* Buffers and pipeline are borrowed. A checked kernel's fault and count are not in it. */
eas_status metal_call_of(const dev_code *c, const dev_launch *l, metal_call *out);

/* ---- metal_plan.c ---- */
eas_status metal_plan(eas_device *d, const dev_step *steps, int n, dev_plan **plan);
void metal_plan_free(eas_device *d, dev_plan *p);
/* how many steps from this one on are encoded; p may be NULL */
int metal_plan_run(const dev_plan *p, int step);
void metal_plan_execute(const dev_plan *p, mtl_id compute, int step, int n);

/* ---- metal_queue.c ---- */
eas_status metal_queue_new(eas_device *d, dev_queue **out);
void metal_queue_free(eas_device *d, dev_queue *q);
eas_status metal_launch(eas_device *d, dev_queue *q, dev_code *code, const dev_launch *l);
eas_status metal_copy(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n);
eas_status metal_replay(eas_device *d, dev_queue *q, const dev_plan *plan, const dev_step *steps, int n,
                        const eas_launch *now);
eas_status metal_mark(eas_device *d, dev_queue *q, uint64_t *ticket);
uint64_t metal_given(eas_device *d, dev_queue *q);
bool metal_reached(eas_device *d, dev_queue *q, uint64_t ticket);
eas_status metal_wait(eas_device *d, dev_queue *q, uint64_t ticket);
eas_status metal_after(eas_device *d, dev_queue *q, dev_queue *other, uint64_t ticket);
double metal_time(eas_device *d, dev_queue *q, uint64_t ticket);

#endif
