/* ref.c: the reference device: the interpreter, with host memory. */
#include "dev.h"

#include <time.h>

static const char *always(eas_device *d) { return (void)d, NULL; }
static dev_limits limits(eas_device *d)
{
    return (void)d,
           (dev_limits){.simd = IR_SIMD, .f64 = true, .f16 = true, .i64_atomics = true, .unified = true};
}
static const char *describe(eas_device *d)
{
    return (void)d, "reference interpreter: slow, checks every access";
}

static eas_status compile(eas_device *d, const eas_ir *ir, unsigned how, dev_code **out)
{
    (void)d, (void)how;
    *out = (dev_code *)(void *)eas_ir_retain((eas_ir *)(uintptr_t)ir);
    return EAS_OK;
}

static void drop(eas_device *d, dev_code *code)
{
    (void)d;
    eas_ir_release((eas_ir *)(void *)code);
}

static bool insensitive(const dev_code *code) { return (void)code, false; }

/* The interpreter asks after every program and every turn of a loop; the host is asked every 20 ms. */
typedef struct asker {
    const eas_launch *opts;
    int64_t last;
} asker;

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int ask_sometimes(void *ctx)
{
    asker *a = ctx;
    int64_t t = now_ms();
    if (t - a->last < 20)
        return 0;
    a->last = t;
    return dev_poll((void *)(uintptr_t)a->opts);
}

static eas_status launch(eas_device *d, dev_queue *q, dev_code *code, const dev_launch *l)
{
    (void)d, (void)q;
    const eas_launch *o = l->opts;
    bool locks = o && o->leave && o->enter;
    ir_call call = {.slot = l->slot, .count = l->count, .grid = {l->grid[0], l->grid[1], l->grid[2]}};
    asker ask = {o, now_ms()};
    if (o && o->interrupted) {
        call.interrupted = ask_sometimes;
        call.ctx = &ask;
    }
    if (locks)
        o->leave(o->ctx);
    eas_status st = ir_interp((const eas_ir *)(const void *)code, &call);
    if (locks)
        o->enter(o->ctx);
    return st;
}

eas_device dev_ref = {
    .name = "ref",
    .unavailable = always,
    .describe = describe,
    .limits = limits,
    .alloc = dev_host_alloc,
    .dealloc = dev_host_dealloc,
    .host_memory = true,
    .compile = compile,
    .drop = drop,
    .alias_sensitive = insensitive,
    .queue_new = now_queue_new,
    .queue_free = now_queue_free,
    .launch = launch,
    .copy = now_copy,
    .mark = now_mark,
    .reached = now_reached,
    .wait = now_wait,
    .after = now_after,
    .time = now_time,
};
