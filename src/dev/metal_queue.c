/* metal_queue.c: work for the Metal device.
 *
 * A queue gathers launches and copies in an open command buffer, a *batch*, and commits it when somebody asks
 * for a ticket or waits, when it has grown, or when the device has nothing else to do. Batches complete in
 * order; each completion, on a thread of Metal's, brings home what the batch read back, looks for faults, and
 * moves `done` on. Numbers: `given` counts what was given (tickets are taken from it), `serial` counts
 * batches (the queue's shared event shows the last that ended).
 */
#include "metal.h"

#include <stdio.h>
#include <time.h>

enum {
    BATCH_OPS = 32,
    /* and places for faults in a batch */ IN_FLIGHT = 32,
    FAULT_BYTES = 32,
    TIMES = 1024,
    STAGE = 256 << 20
};

typedef struct landing { /* bytes to copy to the host when the batch is done */
    void *to;
    const char *from;
    size_t n;
    mtl_id buffer;
} landing;

typedef struct suspect { /* a launch that checks its accesses */
    eas_ir *ir;
    int64_t *count;
} suspect;

typedef struct batch {
    struct batch *next;
    dev_queue *q;
    uint64_t ticket, serial;
    int nops;
    bool bad; /* something could not be encoded or kept */
    VEC(landing) landings;
    VEC(suspect) suspects;
    mtl_id faults; /* FAULT_BYTES for each suspect */
    str names;     /* of the kernels, for messages */
} batch;

struct dev_queue {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    mtl_id queue, event, dummy; /* dummy: bound where an argument has no elements */
    mtl_id commands, compute, blit; /* of the open batch; counted */
    batch *open;
    batch *first, *last; /* committed, in order */
    int in_flight;
    bool gathers; /* a replay is being encoded: it stays in one batch */
    uint64_t given, done, serial;
    eas_status status; /* the first failure since the last wait */
    base_error error; /* of that */
    struct {
        uint64_t ticket;
        double at;
    } times[TIMES];
    uint32_t ntimes;
};

static double clock_now(void)
{
#ifdef __APPLE__
    return (double)clock_gettime_nsec_np(CLOCK_UPTIME_RAW) * 1e-9; /* the clock of GPUEndTime */
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
#endif
}

static void note_time(dev_queue *q, uint64_t ticket, double at)
{
    q->times[q->ntimes % TIMES].ticket = ticket;
    q->times[q->ntimes++ % TIMES].at = at;
}

/* ---- failures ---- */

/* Keeps this thread's message if it is the first. */
static void keep_failure(dev_queue *q, eas_status st)
{
    if (q->status)
        return;
    q->status = st;
    base_error_keep(&q->error, st);
}

static const char *what_happened(long code)
{
    switch (code) {
    case 2: return "it ran for too long";
    case 3: return "it touched memory that is not there";
    case 8: return "there was not enough memory";
    default: return "the device gave up";
    }
}

static void check_status(batch *b, mtl_id commands)
{
    enum { STATUS_ERROR = 5 };
    if (SEND0(status, commands) != STATUS_ERROR)
        return;
    mtl_id error = SEND0(error, commands);
    long code = error ? SEND0(code, error) : 0;
    keep_failure(b->q,
                 base_fail(code == 8 ? EAS_ERR_MEMORY : EAS_ERR_RUNTIME,
                           "device \"mps\": %s%s: %s (%s, code %ld)", b->names.len ? "kernel " : "a copy",
                           b->names.len ? b->names.at : "", what_happened(code), metal_text(error), code));
    b->bad = true;
}

static void check_faults(batch *b)
{
    const char *all = b->faults && !b->bad ? SEND0(contents, b->faults) : NULL;
    for (uint32_t i = 0; all && i < b->suspects.len; i++) {
        const suspect *s = &b->suspects.at[i];
        int32_t f[8];
        memcpy(f, all + (size_t)i * FAULT_BYTES, sizeof f);
        if (!f[0])
            continue;
        uint32_t insn = (uint32_t)f[1];
        int64_t index = (int64_t)((uint64_t)(uint32_t)f[2] | (uint64_t)(uint32_t)f[3] << 32);
        int64_t pid[3] = {(uint32_t)f[4], (uint32_t)f[5], (uint32_t)f[6]};
        keep_failure(b->q, ir_fault_message(s->ir, insn, index, s->count, pid, (uint32_t)f[7]));
        return;
    }
}

/* ---- the end of a batch ---- */

static void free_batch(batch *b)
{
    for (uint32_t i = 0; i < b->landings.len; i++)
        SEND0(release, b->landings.at[i].buffer);
    for (uint32_t i = 0; i < b->suspects.len; i++) {
        eas_ir_release(b->suspects.at[i].ir);
        free(b->suspects.at[i].count);
    }
    if (b->faults)
        SEND0(release, b->faults);
    vec_free(&b->landings);
    vec_free(&b->suspects);
    str_free(&b->names);
    free(b);
}

/* Called by Metal. A failed batch has not signalled its event; whoever waits for it must not wait for ever.
 */
static void completed(void *ctx, mtl_id commands)
{
    batch *b = ctx;
    dev_queue *q = b->q;
    void *pool = metal_pool_push();
    pthread_mutex_lock(&q->lock);
    check_status(b, commands);
    check_faults(b);
    if (b->bad && SEND0(signaled, q->event) < b->serial)
        SEND(set_signaled, q->event, b->serial);
    pthread_mutex_unlock(&q->lock);
    for (uint32_t i = 0; i < b->landings.len && !b->bad; i++)
        if (b->landings.at[i].to !=
            b->landings.at[i].from) /* lent memory is the host's own: nothing to copy */
            memcpy(b->landings.at[i].to, b->landings.at[i].from, b->landings.at[i].n);
    double end = SEND0(end_time, commands);
    pthread_mutex_lock(&q->lock);
    q->first = b->next;
    if (!q->first)
        q->last = NULL;
    q->done = b->ticket;
    note_time(q, b->ticket, end);
    free_batch(b);
    q->in_flight--;
    pthread_cond_broadcast(&q->changed); /* the queue may be gone as soon as the lock is */
    pthread_mutex_unlock(&q->lock);
    metal_pool_pop(pool);
}

/* ---- the open batch ---- */

static void end_encoder(mtl_id *e)
{
    if (!*e)
        return;
    SEND0(end_encoding, *e);
    SEND0(release, *e);
    *e = NULL;
}

static void end_encoders(dev_queue *q)
{
    end_encoder(&q->compute);
    end_encoder(&q->blit);
}

static eas_status open_batch(dev_queue *q)
{
    if (q->open)
        return EAS_OK;
    while (q->in_flight >= IN_FLIGHT)
        pthread_cond_wait(&q->changed, &q->lock);
    batch *b = calloc(1, sizeof *b);
    mtl_id c = b ? SEND0(command_buffer, q->queue) : NULL;
    if (!c) {
        free(b);
        return base_fail(EAS_ERR_RUNTIME, "device \"mps\": Metal gives no command buffer");
    }
    q->commands = SEND0(retain, c);
    b->q = q;
    q->open = b;
    return EAS_OK;
}

static eas_status encoder(dev_queue *q, bool compute, mtl_id *out)
{
    eas_status st = open_batch(q);
    mtl_id *mine = compute ? &q->compute : &q->blit;
    if (st)
        return st;
    end_encoder(compute ? &q->blit : &q->compute);
    if (!*mine) {
        mtl_id e = compute ? SEND0(compute_encoder, q->commands) : SEND0(blit_encoder, q->commands);
        if (!e)
            return base_fail(EAS_ERR_RUNTIME, "device \"mps\": Metal gives no encoder");
        *mine = SEND0(retain, e);
    }
    *out = *mine;
    return EAS_OK;
}

static void commit(dev_queue *q)
{
    batch *b = q->open;
    if (!b)
        return;
    end_encoders(q);
    b->ticket = q->given;
    b->serial = ++q->serial;
    SEND(signal, q->commands, q->event, b->serial);
    metal_on_completed(q->commands, completed, b);
    if (q->last)
        q->last->next = b;
    else
        q->first = b;
    q->last = b;
    q->open = NULL;
    q->in_flight++;
    mtl_id c = q->commands;
    q->commands = NULL;
    SEND0(commit, c);
    SEND0(release, c);
}

/* Counts one piece of work. keep: more of the same will follow soon. */
static void count_op(dev_queue *q, bool keep)
{
    bool full = ++q->open->nops >= BATCH_OPS && (!q->gathers || q->open->suspects.len >= BATCH_OPS);
    q->given++;
    if (full || (!keep && !q->gathers && !q->in_flight))
        commit(q);
}

/* ---- launches ---- */

/* An argument of no elements is bound to the dummy. */
static void bind(dev_queue *q, const metal_call *call, mtl_id e)
{
    for (int i = 0; i < call->nargs; i++) {
        const metal_arg *a = &call->arg[i];
        if (a->n)
            SEND(set_bytes, e, call->bytes + a->at, a->n, a->index);
        else
            SEND(set_buffer, e, a->buffer ? a->buffer : q->dummy, a->offset, a->index);
    }
}

/* The place where this launch writes its fault, and what the message will need. */
static eas_status bind_fault(dev_queue *q, const dev_code *c, const dev_launch *l, mtl_id e)
{
    batch *b = q->open;
    size_t n = (size_t)c->ir->nparams;
    if (!b->faults) {
        b->faults = SEND(new_buffer, metal_device(), BATCH_OPS * FAULT_BYTES, METAL_SHARED);
        if (!b->faults)
            return base_fail(EAS_ERR_MEMORY, "device \"mps\": no memory for the faults of checked kernels");
        memset(SEND0(contents, b->faults), 0, BATCH_OPS * FAULT_BYTES);
    }
    suspect s = {.ir = c->ir, .count = malloc((n + 1) * sizeof *s.count)};
    if (!s.count || !vec_push(&b->suspects, s)) {
        free(s.count);
        return base_fail_oom(n * sizeof *s.count);
    }
    eas_ir_retain(c->ir);
    memcpy(s.count, l->count, n * sizeof *s.count);
    SEND(set_buffer, e, b->faults, (b->suspects.len - 1) * FAULT_BYTES, c->layout.fault);
    SEND(set_bytes, e, s.count, (n ? n : 1) * sizeof *s.count, c->layout.count);
    return EAS_OK;
}

static void note_name(batch *b, const char *name)
{
    if (b->names.len < 200)
        str_add(&b->names, b->names.len ? ", %s" : "%s", name);
}

static eas_status add_launch(dev_queue *q, const dev_code *c, const dev_launch *l)
{
    metal_call call;
    mtl_id e;
    eas_status st = metal_call_of(c, l, &call);
    if (!st)
        st = encoder(q, true, &e);
    if (!st && c->checked)
        st = bind_fault(q, c, l, e);
    if (st)
        return st;
    SEND(set_pipeline, e, call.pipeline);
    bind(q, &call, e);
    if (call.groups)
        SEND(dispatch_groups, e, call.grid, call.group);
    else
        SEND(dispatch_threads, e, call.grid, call.group);
    note_name(q->open, l->ir->name);
    count_op(q, l->now);
    return EAS_OK;
}

eas_status metal_launch(eas_device *d, dev_queue *q, dev_code *c, const dev_launch *l)
{
    (void)d;
    eas_status st = metal_ready();
    if (st)
        return st;
    pthread_mutex_lock(&q->lock);
    void *pool = metal_pool_push();
    st = add_launch(q, c, l);
    metal_pool_pop(pool);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* ---- copies ---- */

static eas_status no_stage(size_t n)
{
    return base_fail(EAS_ERR_MEMORY, "device \"mps\": no memory to stage a copy of %zu bytes", n);
}

enum { WORD = 4, MOST_BYTES = 1 << 30 };

/* Blits move whole words; what does not lie on them is moved by a kernel, a thread a byte. */
static eas_status copy_bytes(dev_queue *q, const metal_place *from, const metal_place *to, size_t n)
{
    mtl_id e, pipeline;
    eas_status st = metal_byte_copier(&pipeline);
    if (!st)
        st = encoder(q, true, &e);
    if (st)
        return st;
    SEND(set_pipeline, e, pipeline);
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at < MOST_BYTES ? n - at : MOST_BYTES;
        SEND(set_buffer, e, from->buffer, from->offset + at, 0);
        SEND(set_buffer, e, to->buffer, to->offset + at, 1);
        SEND(dispatch_threads, e, ((mtl_size){part, 1, 1}), ((mtl_size){part < 256 ? part : 256, 1, 1}));
    }
    return EAS_OK;
}

static eas_status encode_copy(dev_queue *q, const metal_place *from, const metal_place *to, size_t n)
{
    mtl_id e;
    if ((from->offset | to->offset | n) % WORD)
        return copy_bytes(q, from, to, n);
    eas_status st = encoder(q, false, &e);
    if (!st)
        SEND(copy, e, from->buffer, from->offset, to->buffer, to->offset, n);
    return st;
}

static eas_status copy_to(dev_queue *q, const metal_place *to, const char *from, size_t n)
{
    metal_place stage = {.buffer = SEND(new_filled, metal_device(), from, n, METAL_SHARED)};
    if (!stage.buffer)
        return no_stage(n);
    eas_status st = encode_copy(q, &stage, to, n);
    SEND0(release, stage.buffer);
    return st;
}

/* Memory that the host can reach is copied by the host when the batch is over: nothing is encoded. */
static eas_status land(dev_queue *q, char *to, const metal_place *from, size_t n)
{
    landing l = {.to = to, .from = from->host, .n = n, .buffer = from->buffer};
    eas_status st = open_batch(q);
    if (!st && !vec_push(&q->open->landings, l))
        st = base_fail_oom(sizeof l);
    if (!st)
        SEND0(retain, from->buffer);
    return st;
}

static eas_status copy_from(dev_queue *q, char *to, const metal_place *from, size_t n)
{
    if (from->host)
        return land(q, to, from, n);
    metal_place stage = {.buffer = SEND(new_buffer, metal_device(), n, METAL_SHARED)};
    if (!stage.buffer)
        return no_stage(n);
    eas_status st = encode_copy(q, from, &stage, n);
    landing l = {.to = to, .from = SEND0(contents, stage.buffer), .n = n, .buffer = stage.buffer};
    if (!st && !vec_push(&q->open->landings, l))
        st = base_fail_oom(sizeof l);
    if (st)
        SEND0(release, stage.buffer);
    return st;
}

/* Metal copies no bytes onto themselves: those go through a buffer of their own. */
static eas_status copy_within(dev_queue *q, const metal_place *to, const metal_place *from, size_t n)
{
    if (to->buffer != from->buffer || to->offset >= from->offset + n || from->offset >= to->offset + n)
        return encode_copy(q, from, to, n);
    metal_place stage = {.buffer = SEND(new_buffer, metal_device(), n, METAL_PRIVATE)};
    if (!stage.buffer)
        return no_stage(n);
    eas_status st = encode_copy(q, from, &stage, n);
    if (!st)
        st = encode_copy(q, &stage, to, n);
    SEND0(release, stage.buffer);
    return st;
}

static bool lands_in(const batch *b, const char *src, size_t n)
{
    for (uint32_t i = 0; b && i < b->landings.len; i++) {
        const landing *l = &b->landings.at[i];
        if ((char *)l->to < src + n && src < (char *)l->to + l->n)
            return true;
    }
    return false;
}

/* A copy to the device reads the host's memory at once: what this queue is still to write there comes first.
 */
static void let_land(dev_queue *q, const char *src, size_t n)
{
    uint64_t until = 0;
    if (lands_in(q->open, src, n)) {
        commit(q);
        until = q->last->ticket;
    }
    for (const batch *b = q->first; b; b = b->next)
        if (lands_in(b, src, n) && b->ticket > until)
            until = b->ticket;
    while (q->done < until)
        pthread_cond_wait(&q->changed, &q->lock);
}

static eas_status copy_part(dev_queue *q, dev_way way, char *dst, const char *src, size_t n)
{
    metal_place to = {0}, from = {0};
    eas_status st = EAS_OK;
    if (way != DEV_FROM)
        st = metal_find((uint64_t)(uintptr_t)dst, n, &to);
    if (!st && way != DEV_TO)
        st = metal_find((uint64_t)(uintptr_t)src, n, &from);
    if (!st)
        st = way == DEV_TO   ? copy_to(q, &to, src, n)
           : way == DEV_FROM ? copy_from(q, dst, &from, n)
                             : copy_within(q, &to, &from, n);
    if (!st)
        count_op(q, true);
    return st;
}

/* In parts, so that staging stays small; within the device in one, since parts could overlap. */
static eas_status add_copy(dev_queue *q, dev_way way, char *dst, const char *src, size_t n)
{
    eas_status st = EAS_OK;
    if (way == DEV_TO)
        let_land(q, src, n);
    for (size_t at = 0, part; at < n && !st; at += part) {
        part = way == DEV_WITHIN || n - at < STAGE ? n - at : STAGE;
        st = copy_part(q, way, dst + at, src + at, part);
    }
    return st;
}

eas_status metal_copy(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n)
{
    (void)d;
    eas_status st = metal_ready();
    if (st)
        return st;
    pthread_mutex_lock(&q->lock);
    void *pool = metal_pool_push();
    st = add_copy(q, way, dst, src, n);
    metal_pool_pop(pool);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* ---- replays ---- */

/* n steps that the plan has encoded. */
static eas_status add_planned(dev_queue *q, const dev_plan *plan, const dev_step *steps, int first, int n)
{
    mtl_id e;
    eas_status st = encoder(q, true, &e);
    if (st)
        return st;
    metal_plan_execute(plan, e, first, n);
    for (int i = 0; i < n; i++)
        note_name(q->open, steps[first + i].l.ir->name);
    count_op(q, true);
    return EAS_OK;
}

/* Steps of a captured graph, in one batch: what the plan has as it is, copies and the rest encoded anew. */
eas_status metal_replay(eas_device *d, dev_queue *q, const dev_plan *plan, const dev_step *steps, int n,
                        const eas_launch *now)
{
    (void)d;
    eas_status st = metal_ready();
    if (st)
        return st;
    pthread_mutex_lock(&q->lock);
    void *pool = metal_pool_push();
    q->gathers = true;
    for (int i = 0, done; i < n && !st; i += done) {
        const dev_step *s = &steps[i];
        int run = metal_plan_run(plan, i);
        done = run ? run : 1;
        st = run     ? add_planned(q, plan, steps, i, run)
           : s->code ? add_launch(q, s->code, &s->l)
                     : add_copy(q, s->way, s->dst, s->src, s->n);
    }
    q->gathers = false;
    if (!now)
        commit(q);
    metal_pool_pop(pool);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* ---- tickets ---- */

eas_status metal_mark(eas_device *d, dev_queue *q, uint64_t *ticket)
{
    (void)d;
    eas_status st = metal_ready();
    if (st)
        return st;
    pthread_mutex_lock(&q->lock);
    void *pool = metal_pool_push();
    *ticket = ++q->given;
    if (q->open)
        commit(q);
    else if (q->last)
        q->last->ticket = *ticket;
    else {
        q->done = *ticket;
        note_time(q, *ticket, clock_now());
    }
    metal_pool_pop(pool);
    pthread_mutex_unlock(&q->lock);
    return EAS_OK;
}

uint64_t metal_given(eas_device *d, dev_queue *q)
{
    (void)d;
    pthread_mutex_lock(&q->lock);
    uint64_t given = q->given;
    pthread_mutex_unlock(&q->lock);
    return given;
}

/* Commits the open batch: a caller that asks for the ticket again and again must see it reached some time. */
bool metal_reached(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    if (metal_forked())
        return false;
    pthread_mutex_lock(&q->lock);
    bool reached = q->done >= ticket;
    if (!reached && q->open && !q->in_flight) {
        void *pool = metal_pool_push();
        commit(q);
        metal_pool_pop(pool);
    }
    pthread_mutex_unlock(&q->lock);
    return reached;
}

static eas_status take_failure(dev_queue *q)
{
    eas_status st = q->status;
    if (st)
        base_error_raise(&q->error);
    q->status = EAS_OK;
    return st;
}

eas_status metal_wait(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    eas_status st = metal_ready();
    if (st)
        return st;
    pthread_mutex_lock(&q->lock);
    void *pool = metal_pool_push();
    if (ticket > q->given)
        ticket = q->given;
    if (q->open && q->done < ticket)
        commit(q);
    metal_pool_pop(pool);
    while (q->done < ticket)
        pthread_cond_wait(&q->changed, &q->lock);
    st = take_failure(q);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* The batch that brings other to ticket, if that is still to come. */
static uint64_t serial_of(dev_queue *other, uint64_t ticket)
{
    uint64_t serial = 0;
    pthread_mutex_lock(&other->lock);
    if (other->done < ticket) {
        commit(other);
        for (const batch *b = other->first; b && !serial; b = b->next)
            if (b->ticket >= ticket)
                serial = b->serial;
    }
    pthread_mutex_unlock(&other->lock);
    return serial;
}

eas_status metal_after(eas_device *d, dev_queue *q, dev_queue *other, uint64_t ticket)
{
    (void)d;
    eas_status st = metal_ready();
    if (st || q == other)
        return st;
    void *pool = metal_pool_push();
    uint64_t serial = serial_of(other, ticket);
    if (serial) {
        pthread_mutex_lock(&q->lock);
        commit(q); /* what was given before does not wait */
        st = open_batch(q);
        if (!st)
            SEND(wait_event, q->commands, other->event, serial);
        pthread_mutex_unlock(&q->lock);
    }
    metal_pool_pop(pool);
    return st;
}

double metal_time(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    double at = -1;
    pthread_mutex_lock(&q->lock);
    uint32_t n = q->ntimes < TIMES ? q->ntimes : TIMES;
    bool forgotten = q->ntimes > TIMES && q->times[q->ntimes % TIMES].ticket > ticket;
    for (uint32_t i = q->ntimes - n; i != q->ntimes && at < 0 && !forgotten; i++)
        if (q->times[i % TIMES].ticket >= ticket)
            at = q->times[i % TIMES].at;
    pthread_mutex_unlock(&q->lock);
    return at;
}

/* ---- life ---- */

static void free_queue(dev_queue *q)
{
    if (q->dummy)
        SEND0(release, q->dummy);
    if (q->event)
        SEND0(release, q->event);
    if (q->queue)
        SEND0(release, q->queue);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->changed);
    free(q);
}

eas_status metal_queue_new(eas_device *d, dev_queue **out)
{
    (void)d;
    *out = NULL;
    eas_status st = metal_ready();
    dev_queue *q = st ? NULL : calloc(1, sizeof *q);
    if (!q)
        return st ? st : base_fail_oom(sizeof *q);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    q->queue = SEND0(new_queue, metal_device());
    q->event = SEND0(new_event, metal_device());
    q->dummy = SEND(new_buffer, metal_device(), 16, METAL_PRIVATE);
    if (!q->queue || !q->event || !q->dummy) {
        free_queue(q);
        return base_fail(EAS_ERR_MEMORY, "device \"mps\": Metal makes no queue");
    }
    *out = q;
    return EAS_OK;
}

void metal_queue_free(eas_device *d, dev_queue *q)
{
    if (metal_forked())
        return;
    (void)d;
    pthread_mutex_lock(&q->lock);
    void *pool = metal_pool_push();
    commit(q);
    metal_pool_pop(pool);
    while (q->in_flight)
        pthread_cond_wait(&q->changed, &q->lock);
    pthread_mutex_unlock(&q->lock);
    free_queue(q);
}
