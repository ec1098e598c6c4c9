/* dev.c: the table of devices, their limits, and what fork leaves of them. */
#include "dev.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

struct dev_counters dev_count;

static eas_device *const devices[] = {
#define DEVICE(symbol, alias, text, dlpack, absent, failed) &dev_##symbol,
#include "device.def"
#undef DEVICE
};
enum { NDEVICES = sizeof devices / sizeof *devices };
static const eas_device_facts facts[NDEVICES] = {
#define DEVICE(symbol, alias, text, dlpack, absent, failed) {alias, text, absent, failed, dlpack},
#include "device.def"
#undef DEVICE
};

eas_device_facts eas_device_facts_get(const eas_device *d)
{
    NEED(d, ((eas_device_facts){0}));
    return facts[dev_index(d)];
}

int eas_device_count(void) { return NDEVICES; }
eas_device *eas_device_at(int i) { return i >= 0 && i < NDEVICES ? devices[i] : NULL; }
const char *eas_device_name(const eas_device *d)
{
    NEED(d, NULL);
    return d->name;
}
int eas_device_has_host_memory(const eas_device *d)
{
    NEED(d, 0);
    return d->host_memory;
}
const char *eas_device_describe(const eas_device *d)
{
    NEED(d, NULL);
    return d->describe((eas_device *)(uintptr_t)d);
}
const char *eas_device_unavailable(const eas_device *d)
{
    NEED(d, NULL);
    const char *why = d->unavailable((eas_device *)(uintptr_t)d);
    return why                                    ? why
         : dev_usable((eas_device *)(uintptr_t)d) ? "it was used before this process was forked"
                                                  : NULL;
}

int dev_index(const eas_device *d)
{
    int i = 0;
    while (i < NDEVICES && devices[i] != d)
        i++;
    return i;
}

/* ---- fork: a child has the parent's CPU, not its drivers ---- */

static _Atomic int used[DEV_MAX], lost[DEV_MAX];

static void after_fork(void)
{
    for (int i = 0; i < NDEVICES; i++)
        lost[i] = used[i] && !devices[i]->host_memory;
}

static void hook_fork(void) { pthread_atfork(NULL, NULL, after_fork); }

void dev_used(eas_device *d)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook_fork);
    atomic_store_explicit(&used[dev_index(d)], 1, memory_order_relaxed);
}

eas_status dev_usable(eas_device *d)
{
    if (d->host_memory)
        return EAS_OK;
    if (lost[dev_index(d)])
        return base_fail(
            EAS_ERR_UNAVAILABLE,
            "device \"%s\" was used before this process was forked, and its driver does not survive that: use it in the "
            "parent only, or start the child anew (multiprocessing's \"spawn\")",
            d->name);
    const char *why = d->unavailable(d);
    return why ? base_fail(EAS_ERR_UNAVAILABLE, "device \"%s\" is not available: %s", d->name, why) : EAS_OK;
}

/* ---- limits ---- */

void dev_list_tg(str *s, const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        if (in->op != IR_ALLOC_TG)
            continue;
        ir_type t = ir_typeof(ir, in->res);
        str_add(s, "\n  %s:%u: alloc_tg(%lld, %s): %lld bytes", ir->files[in->file], (unsigned)in->line,
                (long long)in->imm, eas_dtype_name(t.dtype),
                (long long)(in->imm * (int64_t)eas_dtype_size(t.dtype)));
    }
}

static eas_status refuse_tg(const eas_device *d, const eas_ir *ir, long long bytes, long long own,
                            long long limit)
{
    str s = {0};
    dev_list_tg(&s, ir);
    if (own)
        str_add(&s, "\n  values that go from one thread of a simdgroup to another: %lld bytes", own);
    eas_status st = base_fail(EAS_ERR_VALUE,
                              "kernel %s needs %lld bytes of threadgroup memory; device \"%s\" has %lld:%s",
                              ir->name, bytes, d->name, limit, s.at ? s.at : "");
    str_free(&s);
    return st;
}

/* A value of f64 that a text would declare: scalars that the host rounds do not count. */
static bool is_double(const eas_ir *ir, uint32_t v)
{
    ir_type t = ir_typeof(ir, v);
    return t.kind != IR_FRAG && t.dtype == EAS_F64 &&
           !(v <= (uint32_t)ir->nparams && t.kind == IR_VAL && gen_ctext_scalar(ir, (int)v - 1) != EAS_F64);
}

static eas_status check_double(const eas_device *d, const eas_ir *ir)
{
    for (int i = 0; i < ir->nparams; i++)
        if (is_double(ir, (uint32_t)i + 1))
            return base_fail(EAS_ERR_TYPE, "kernel %s: device \"%s\" has no double; argument \"%s\" is f64",
                             ir->name, d->name, ir->params[i].name);
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        for (uint32_t r = 0; r < in->nres; r++)
            if (is_double(ir, in->res + r))
                return base_fail(EAS_ERR_TYPE,
                                 "%s:%u: kernel %s: device \"%s\" has no double; `%s` gives f64 here",
                                 in->file ? ir->files[in->file] : "?", (unsigned)in->line, ir->name, d->name,
                                 ir_rows[in->op].name);
    }
    return EAS_OK;
}

static eas_status check_wide_atomics(const eas_device *d, const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        if (ir_is_atomic(in) && dtype_bits(ir_typeof(ir, in->res).dtype) == 64)
            return base_fail(EAS_ERR_TYPE,
                             "%s:%u: kernel %s: device \"%s\" has no 64-bit atomics; `%s` works on %s here",
                             in->file ? ir->files[in->file] : "?", (unsigned)in->line, ir->name, d->name,
                             ir_rows[in->op].name, eas_dtype_name(ir_typeof(ir, in->res).dtype));
    }
    return EAS_OK;
}

eas_status eas_device_limits(eas_device *d, eas_limits *out)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = (eas_limits){0};
    eas_status st = dev_usable(d);
    if (st)
        return st;
    dev_limits l = d->limits(d);
    *out = (eas_limits){.threads = l.threads,
                        .tg_bytes = l.tg_bytes,
                        .simd = l.simd,
                        .buffers = l.buffers,
                        .max_alloc = l.max_alloc,
                        .f64 = l.f64,
                        .f16 = l.f16,
                        .i64_atomics = l.i64_atomics,
                        .unified = l.unified};
    return EAS_OK;
}

eas_status dev_check(eas_device *d, const eas_ir *ir)
{
    dev_limits l = d->limits(d);
    eas_ir_info info = ir_analyse(ir);
    int buffers = 0;
    for (int i = 0; i < ir->nparams; i++)
        buffers += ir_typeof(ir, (uint32_t)i + 1).kind == IR_BUF;
    if (info.mode == EAS_MODE_THREAD && l.threads && info.block > l.threads)
        return base_fail(EAS_ERR_VALUE, "kernel %s: a group of %lld threads; device \"%s\" has at most %lld",
                         ir->name, (long long)info.block, d->name, (long long)l.threads);
    int64_t own = d->own_tg ? d->own_tg(ir) : 0;
    if (l.tg_bytes && info.tg_bytes + own > l.tg_bytes)
        return refuse_tg(d, ir, (long long)(info.tg_bytes + own), (long long)own, (long long)l.tg_bytes);
    if (l.buffers && buffers > l.buffers)
        return base_fail(EAS_ERR_VALUE, "kernel %s has %d buffer arguments; device \"%s\" takes %lld",
                         ir->name, buffers, d->name, (long long)l.buffers);
    eas_status st = l.i64_atomics ? EAS_OK : check_wide_atomics(d, ir);
    return st || l.f64 ? st : check_double(d, ir);
}

static eas_status unknown_device(const char *name)
{
    char list[256];
    size_t n = 0;
    for (int i = 0; i < NDEVICES && n < sizeof list; i++) {
        const char *also = facts[i].alias, *sep = !i ? "" : i + 1 < NDEVICES ? ", " : " and ";
        n += (size_t)snprintf(list + n, sizeof list - n, "%s%s%s%s%s", sep, devices[i]->name,
                              also ? " (also called " : "", also ? also : "", also ? ")" : "");
    }
    return base_fail(EAS_ERR_VALUE, "unknown device \"%s\"; there are %s", name, list);
}

eas_status eas_device_get(const char *name, eas_device **out)
{
    NEED(name, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    for (int i = 0; i < NDEVICES; i++)
        if (!strcmp(devices[i]->name, name) || (facts[i].alias && !strcmp(facts[i].alias, name))) {
            const char *why = devices[i]->unavailable(devices[i]);
            if (why)
                return base_fail(EAS_ERR_UNAVAILABLE, "device \"%s\" is not available: %s", devices[i]->name,
                                 why);
            *out = devices[i];
            return EAS_OK;
        }
    return unknown_device(name);
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
