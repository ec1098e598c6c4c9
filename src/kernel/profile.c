/* profile.c: what launches, copies and compiles take, while a profile is open.
 *
 * A profile puts itself between the kernel folder and the devices: it exchanges the devices' own functions
 * (launch, replay, copy, compile) for ones that take the time around them, and puts them back at its end. So
 * a launch without a profile runs exactly the code it runs in a library that has no profiler. Work given to a
 * queue is waited for, or its time would not be known: streams do not overlap while they are looked at.
 *
 * Bytes and operations are counted in the IR, loops by the trips that the launch's values allow: whole
 * blocks, masked lanes among them, every load and store of global memory once each time it is done.
 */
#include "kernel.h"

#include <stdio.h>
#include <time.h>

enum { MAX_DEPTH = 64, MAX_EVENTS = 1 << 20 };

typedef enum event_kind { LAUNCH, REPLAY, COPY, COMPILE } event_kind;
static const char *const kind_names[] = {"launch", "replay", "copy", "compile"};

typedef struct event {
    event_kind kind;
    int device;
    const void *queue;
    const char *name; /* of what is no kernel; else r says it */
    int row;          /* of the kernel, or -1 */
    double start, seconds;
    int64_t grid[3];
    double bytes, flops;
} event;

typedef struct row {
    eas_profile_row r;
    uint64_t key; /* of the launch that was counted last */
    double bytes, flops;
} row;

struct eas_profile {
    arena mem; /* names */
    VEC(event) events;
    VEC(row) rows;
    VEC(const void *) queues;
    uint64_t lost; /* events beyond MAX_EVENTS */
    double begun, ended;
};

static struct {
    pthread_mutex_t lock;
    eas_profile *open;
    eas_device own[DEV_MAX]; /* the devices as they are */
} P = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- counting ---- */

static double trips(const ir_range *r, const uint32_t *a)
{
    ir_range lo = r[a[0]], hi = r[a[1]], step = r[a[2]];
    if (step.lo <= 0 && step.hi >= 0)
        return 1;
    double span = step.lo > 0 ? (double)hi.hi - (double)lo.lo : (double)lo.hi - (double)hi.lo;
    double by = step.lo > 0 ? (double)step.lo : -(double)step.hi;
    return span <= 0 ? 0 : span < by ? 1 : span / by;
}

static double lanes_of(const eas_ir *ir, const eas_ir_info *info, uint32_t v)
{
    if (info->mode == EAS_MODE_THREAD)
        return (double)info->block;
    return ir_typeof(ir, v).kind == IR_VAL ? (double)ir_lanes(ir_typeof(ir, v)) : 1;
}

static double global_bytes(const eas_ir *ir, uint32_t buf)
{
    ir_type t = ir_typeof(ir, buf);
    return t.kind == IR_BUF ? (double)eas_dtype_size(t.dtype) : 0;
}

/* Bytes of global memory that one instruction moves in a program. */
static double insn_bytes(const eas_ir *ir, const eas_ir_info *info, const ir_insn *in, const ir_range *r)
{
    const uint32_t *a = ir_args(ir, in);
    double groups = (double)info->block / IR_SIMD;
    if (in->op == IR_LOAD || in->op == IR_STORE)
        return global_bytes(ir, a[0]) * lanes_of(ir, info, a[1]);
    if (ir_is_atomic(in))
        return 2 * global_bytes(ir, a[0]) * lanes_of(ir, info, a[1]);
    if (in->op == IR_DOT)
        return (global_bytes(ir, a[0]) + global_bytes(ir, a[3])) * (double)r[a[6]].hi *
               lanes_of(ir, info, in->res);
    if (in->op == IR_MMA)
        return 64 * (global_bytes(ir, a[0]) + global_bytes(ir, a[3])) * groups;
    return in->op == IR_MMA_STORE ? 64 * global_bytes(ir, a[0]) * groups : 0;
}

/* Operations on floats of one instruction in a program: an fma is two, anything that only moves or compares
 * none. */
static double insn_flops(const eas_ir *ir, const eas_ir_info *info, const ir_insn *in, const ir_range *r)
{
    const uint32_t *a = ir_args(ir, in);
    if (in->op == IR_DOT)
        return 2 * (double)r[a[6]].hi * lanes_of(ir, info, in->res);
    if (in->op == IR_MMA)
        return 1024 * (double)info->block / IR_SIMD;
    if (!in->res || ir_typeof(ir, in->res).kind != IR_VAL || !dtype_is_float(ir_typeof(ir, in->res).dtype))
        return 0;
    if (in->op == IR_MATMUL) {
        ir_type x = ir_typeof(ir, a[0]);
        return 2 * (double)ir_lanes(ir_typeof(ir, in->res)) * (double)x.dim[1];
    }
    if (in->op == IR_FMA)
        return 2 * lanes_of(ir, info, in->res);
    switch (ir_rows[in->op].rule) {
    case IR_RULE_SAME: return lanes_of(ir, info, in->res);
    case IR_RULE_REDUCE:
    case IR_RULE_SCAN: return lanes_of(ir, info, a[0]);
    default: return ir_is_atomic(in) ? lanes_of(ir, info, in->res) : 0;
    }
}

static void count(const eas_ir *ir, const ir_env *env, double *bytes, double *flops)
{
    arena mem = {0};
    eas_ir_info info = ir_analyse(ir);
    const ir_range *r = ir_ranges(ir, env, &mem);
    double times = 1, outer[MAX_DEPTH];
    int depth = 0;
    *bytes = *flops = 0;
    for (uint32_t i = 0; i < ir->ninsns && r; i++) {
        const ir_insn *in = &ir->insns[i];
        if ((in->op == IR_LOOP || in->op == IR_WHILE) && depth < MAX_DEPTH) {
            outer[depth++] = times;
            times *= in->op == IR_LOOP ? trips(r, ir_args(ir, in)) : 1;
        } else if ((in->op == IR_ENDLOOP || in->op == IR_ENDWHILE) && depth) {
            times = outer[--depth];
        } else {
            *bytes += times * insn_bytes(ir, &info, in, r);
            *flops += times * insn_flops(ir, &info, in, r);
        }
    }
    arena_free(&mem);
}

static uint64_t launch_key(const dev_launch *l)
{
    uint64_t h = 1469598103934665603u;
    const eas_ir *ir = l->ir;
    for (int i = 0; i < 3; i++)
        h = (h ^ (uint64_t)l->grid[i]) * 1099511628211u;
    for (int i = 0; i < ir->nparams; i++)
        h = (h ^ (ir_typeof(ir, (uint32_t)i + 1).kind == IR_BUF ? 0 : l->slot[i])) * 1099511628211u;
    return h ? h : 1;
}

static void count_launch(const dev_launch *l, double *bytes, double *flops)
{
    ir_range scalar[IR_MAX_PARAMS];
    for (int i = 0; i < l->ir->nparams; i++) {
        int64_t v = dtype_is_float(ir_typeof(l->ir, (uint32_t)i + 1).dtype) ? 0 : (int64_t)l->slot[i];
        scalar[i] = (ir_range){v, v};
    }
    ir_env env = {.scalar = scalar, .grid = {l->grid[0], l->grid[1], l->grid[2]}, .count = l->count};
    count(l->ir, &env, bytes, flops);
    *bytes *= (double)l->programs;
    *flops *= (double)l->programs;
}

/* ---- recording ---- */

static const ir_insn *first_line(const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].file && ir->insns[i].line)
            return &ir->insns[i];
    return NULL;
}

static char *keep(eas_profile *p, const char *s)
{
    size_t n = strlen(s) + 1;
    char *out = arena_alloc(&p->mem, n);
    return out ? memcpy(out, s, n) : NULL;
}

/* Types of the parameters, as in "f32[] int"; cut off where there are very many. What a device compiles may
 * have 32-bit integers for those of a launch. */
enum { TYPES_MAX = 1024 };
static void write_types(const eas_ir *ir, char *out)
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < ir->nparams && n + 16 < TYPES_MAX; i++) {
        ir_type t = ir_typeof(ir, (uint32_t)i + 1);
        n += (size_t)snprintf(out + n, TYPES_MAX - n, "%s%s%s", i ? " " : "",
                              t.kind != IR_BUF && dtype_is_int(t.dtype) ? "int" : eas_dtype_name(t.dtype),
                              t.kind == IR_BUF ? "[]" : "");
    }
}

static bool is_row(const eas_profile_row *r, const eas_profile_row *of)
{
    return r->line == of->line && !strcmp(r->kernel, of->kernel) && !strcmp(r->config, of->config) &&
           !strcmp(r->types, of->types) && !strcmp(r->file, of->file) && !strcmp(r->device, of->device);
}

/* Its number, or -1: a row for each configuration of a kernel on a device. */
static int row_of(eas_profile *p, const eas_ir *ir, int device)
{
    const ir_insn *at = first_line(ir);
    char types[TYPES_MAX];
    write_types(ir, types);
    eas_profile_row r = {.kernel = ir->name,
                         .device = P.own[device].name,
                         .file = at ? ir->files[at->file] : "",
                         .config = ir->config ? ir->config : "",
                         .types = types,
                         .line = at ? (int)at->line : 0};
    for (uint32_t i = 0; i < p->rows.len; i++)
        if (is_row(&p->rows.at[i].r, &r))
            return (int)i;
    r.kernel = keep(p, r.kernel);
    r.file = keep(p, r.file);
    r.config = keep(p, r.config);
    r.types = keep(p, r.types);
    return r.kernel && r.file && r.config && r.types && vec_push(&p->rows, ((row){.r = r}))
             ? (int)p->rows.len - 1
             : -1;
}

static void add_event(eas_profile *p, event e)
{
    if (p->events.len >= MAX_EVENTS || !vec_push(&p->events, e))
        p->lost++;
}

static void record_launch(int device, const dev_queue *q, const dev_launch *l, double start, double seconds)
{
    base_lock(&P.lock);
    eas_profile *p = P.open;
    int at = p ? row_of(p, l->ir, device) : -1;
    if (at >= 0) {
        row *r = &p->rows.at[at];
        uint64_t key = launch_key(l);
        if (r->key != key)
            count_launch(l, &r->bytes, &r->flops);
        r->key = key;
        r->r.calls++;
        r->r.seconds += seconds;
        r->r.bytes += r->bytes;
        r->r.flops += r->flops;
        add_event(p, (event){.kind = LAUNCH,
                             .device = device,
                             .queue = q,
                             .row = at,
                             .start = start,
                             .seconds = seconds,
                             .grid = {l->grid[0], l->grid[1], l->grid[2]},
                             .bytes = r->bytes,
                             .flops = r->flops});
    }
    base_unlock(&P.lock);
}

static void record(event_kind kind, int device, const dev_queue *q, const eas_ir *ir, double start,
                   double bytes)
{
    double seconds = now() - start;
    base_lock(&P.lock);
    eas_profile *p = P.open;
    if (p) {
        int at = ir ? row_of(p, ir, device) : -1;
        if (at >= 0 && kind == COMPILE) {
            p->rows.at[at].r.compiles++;
            p->rows.at[at].r.compile_seconds += seconds;
        }
        add_event(p, (event){.kind = kind,
                             .device = device,
                             .queue = q,
                             .name = kind_names[kind],
                             .row = at,
                             .start = start,
                             .seconds = seconds,
                             .bytes = bytes});
    }
    base_unlock(&P.lock);
}

/* ---- in the devices' places ---- */

static eas_status timed_launch(eas_device *d, dev_queue *q, dev_code *code, const dev_launch *l)
{
    eas_device *own = &P.own[dev_index(d)];
    double start = now();
    eas_status st = own->launch(d, q, code, l);
    if (!st && q)
        st = own->wait(d, q, UINT64_MAX);
    if (!st)
        record_launch(dev_index(d), q, l, start, now() - start);
    return st;
}

static eas_status timed_copy(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n)
{
    eas_device *own = &P.own[dev_index(d)];
    double start = now();
    eas_status st = own->copy(d, q, way, dst, src, n);
    if (!st && q)
        st = own->wait(d, q, UINT64_MAX);
    if (!st)
        record(COPY, dev_index(d), q, NULL, start, (double)n);
    return st;
}

static eas_status timed_replay(eas_device *d, dev_queue *q, const dev_plan *plan, const dev_step *steps,
                               int n, const eas_launch *here)
{
    eas_device *own = &P.own[dev_index(d)];
    double start = now();
    eas_status st = own->replay(d, q, plan, steps, n, here);
    if (!st && q)
        st = own->wait(d, q, UINT64_MAX);
    if (!st)
        record(REPLAY, dev_index(d), q, NULL, start, 0);
    return st;
}

static eas_status timed_compile(eas_device *d, const eas_ir *ir, unsigned how, dev_code **out)
{
    double start = now();
    eas_status st = P.own[dev_index(d)].compile(d, ir, how, out);
    if (!st)
        record(COMPILE, dev_index(d), NULL, ir, start, 0);
    return st;
}

#define SWAP(d, field, f) __atomic_store_n(&(d)->field, f, __ATOMIC_RELEASE)
static void step_between(void)
{
    for (int i = 0; i < eas_device_count(); i++) {
        eas_device *d = eas_device_at(i);
        P.own[i] = *d;
        SWAP(d, launch, timed_launch);
        SWAP(d, launch_many, NULL); /* one by one: each has a time of its own then */
        SWAP(d, copy, timed_copy);
        SWAP(d, compile, timed_compile);
        if (d->replay)
            SWAP(d, replay, timed_replay);
    }
}

static void step_back(void)
{
    for (int i = 0; i < eas_device_count(); i++) {
        eas_device *d = eas_device_at(i);
        SWAP(d, launch, P.own[i].launch);
        SWAP(d, launch_many, P.own[i].launch_many);
        SWAP(d, copy, P.own[i].copy);
        SWAP(d, compile, P.own[i].compile);
        SWAP(d, replay, P.own[i].replay);
    }
}

/* ---- for users ---- */

eas_status eas_profile_start(eas_profile **out)
{
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    eas_profile *p = calloc(1, sizeof *p);
    if (!p)
        return base_fail_oom(sizeof *p);
    base_lock(&P.lock);
    bool taken = P.open != NULL;
    if (!taken) {
        p->begun = now();
        P.open = *out = p;
        step_between();
    }
    base_unlock(&P.lock);
    if (!taken)
        return EAS_OK;
    free(p);
    return base_fail(EAS_ERR_RUNTIME, "a profile is open already: there is one at a time");
}

void eas_profile_stop(eas_profile *p)
{
    NEED_(p);
    base_lock(&P.lock);
    if (P.open == p) {
        step_back();
        P.open = NULL;
        p->ended = now();
    }
    base_unlock(&P.lock);
}

void eas_profile_free(eas_profile *p)
{
    if (!p)
        return;
    eas_profile_stop(p);
    vec_free(&p->events);
    vec_free(&p->rows);
    vec_free(&p->queues);
    arena_free(&p->mem);
    free(p);
}

double eas_profile_seconds(const eas_profile *p)
{
    NEED(p, 0);
    return (p->ended ? p->ended : now()) - p->begun;
}
int eas_profile_count(const eas_profile *p)
{
    NEED(p, 0);
    return (int)p->rows.len;
}
eas_profile_row eas_profile_at(const eas_profile *p, int i)
{
    NEED(p, ((eas_profile_row){0}));
    return i >= 0 && i < (int)p->rows.len ? p->rows.at[i].r : (eas_profile_row){0};
}

/* ---- the trace: Chrome's format, which Perfetto reads ---- */

static void add_string(str *s, const char *text)
{
    str_add(s, "\"");
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (*c == '"' || *c == '\\')
            str_add(s, "\\%c", *c);
        else if (*c < 0x20)
            str_add(s, "\\u%04x", *c);
        else
            str_add(s, "%c", *c);
    str_add(s, "\"");
}

/* A lane of the trace: 0 for compiles, then one for each queue in the order of their first work. */
static int lane(eas_profile *p, const void *queue)
{
    if (!queue)
        return 0;
    for (uint32_t i = 0; i < p->queues.len; i++)
        if (p->queues.at[i] == queue)
            return (int)i + 1;
    return vec_push(&p->queues, queue) ? (int)p->queues.len : 0;
}

/* The name as the table has it, where the kernel begins, and what tells the row from others. */
static void trace_name(str *s, const eas_profile_row *r)
{
    str name = {0};
    str_add(&name, *r->config ? "%s [%s]" : "%s", r->kernel, r->config);
    add_string(s, name.at ? name.at : r->kernel);
    str_free(&name);
}
static void trace_kernel(str *s, const eas_profile_row *r)
{
    if (*r->file) {
        str at = {0};
        str_add(&at, "%s:%d", r->file, r->line);
        str_add(s, ", \"line\": ");
        add_string(s, at.at ? at.at : "");
        str_free(&at);
    }
    str_add(s, ", \"config\": ");
    add_string(s, r->config);
    str_add(s, ", \"types\": ");
    add_string(s, r->types);
}

static void trace_event(str *s, eas_profile *p, const event *e)
{
    const eas_profile_row *r = e->row >= 0 ? &p->rows.at[e->row].r : NULL;
    str_add(
        s,
        ",\n{\"ph\": \"X\", \"cat\": \"%s\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"name\": ",
        kind_names[e->kind], e->device, lane(p, e->queue), (e->start - p->begun) * 1e6, e->seconds * 1e6);
    if (r)
        trace_name(s, r);
    else
        add_string(s, e->name);
    str_add(s, ", \"args\": {\"kind\": \"%s\"", kind_names[e->kind]);
    if (r)
        trace_kernel(s, r);
    if (e->kind == LAUNCH)
        str_add(s, ", \"grid\": [%lld, %lld, %lld], \"flops\": %.0f", (long long)e->grid[0],
                (long long)e->grid[1], (long long)e->grid[2], e->flops);
    if (e->kind == LAUNCH || e->kind == COPY)
        str_add(s, ", \"bytes\": %.0f", e->bytes);
    str_add(s, "}}");
}

eas_status eas_profile_trace(eas_profile *p, char **out)
{
    NEED(p, EAS_ERR_HANDLE);
    str s = {0};
    *out = NULL;
    base_lock(&P.lock);
    str_add(
        &s,
        "{\"displayTimeUnit\": \"ns\", \"otherData\": {\"version\": \"%s\", \"lost\": %llu}, \"traceEvents\": [\n",
        eas_version(), (unsigned long long)p->lost);
    for (int i = 0; i < eas_device_count(); i++)
        str_add(&s,
                "%s{\"ph\": \"M\", \"pid\": %d, \"name\": \"process_name\", \"args\": {\"name\": \"%s\"}}",
                i ? ",\n" : "", i, eas_device_name(eas_device_at(i)));
    for (uint32_t i = 0; i < p->events.len; i++)
        trace_event(&s, p, &p->events.at[i]);
    str_add(&s, "\n]}\n");
    base_unlock(&P.lock);
    return str_take(&s, out);
}
