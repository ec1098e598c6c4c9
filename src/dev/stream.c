/* stream.c: streams and events as users have them: a queue of a device, what its pending work must keep
 * alive, and how many launches may be pending (EAS_MAX_IN_FLIGHT).
 *
 * What pending work holds is kept in a ring with the ticket at which it may go; calls on the stream let go of
 * what has been reached. Whatever calls back into the caller (his lock, his release of objects) runs without
 * a lock of ours held.
 */
#include "dev.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum {
    STREAM_MAGIC = 0x45415354,
    EVENT_MAGIC = 0x45415345,
    INLINE_OBJECTS = 8,
    IN_FLIGHT = 256,
    SOME = 16,
    LOOK = 8
};

typedef struct flight {
    uint64_t ticket;
    void *owner, *stage;
    void (*drop_owner)(void *), (*drop_stage)(void *), (*release)(void *);
    int n;
    void *object[INLINE_OBJECTS], **more; /* more: all of them, if there are many */
} flight;

struct eas_stream {
    uint32_t magic;
    int refs;
    eas_device *d;
    dev_queue *q;
    pthread_mutex_t lock;
    flight *ring;
    uint32_t cap, first;
    _Atomic uint32_t len;
    eas_status failure; /* found while making room */
    base_error error; /* of that */
    eas_stream *next; /* all streams */
};

struct eas_event {
    uint32_t magic;
    int refs;
    pthread_mutex_t lock;
    eas_stream *stream; /* retained; NULL: not recorded */
    uint64_t ticket;
};

static struct {
    pthread_mutex_t lock;
    eas_stream *all;
    _Atomic(eas_stream *) own[DEV_MAX]; /* each device's default */
    pthread_once_t once;
} S = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static _Thread_local eas_stream *current[DEV_MAX];

/* ---- life ---- */

static uint32_t max_in_flight(void)
{
    static _Atomic uint32_t known;
    uint32_t n = known;
    if (!n) {
        const char *e = getenv("EAS_MAX_IN_FLIGHT");
        long long v = e && *e ? strtoll(e, NULL, 10) : 0;
        known = n = v < 1 ? IN_FLIGHT : v > 1 << 20 ? 1 << 20 : (uint32_t)v;
    }
    return n;
}

/* The child works with streams of its own: what was pending is the parent's. */
static void after_fork(void)
{
    pthread_mutex_init(&S.lock, NULL);
    for (eas_stream *s = S.all; s; s = s->next) {
        pthread_mutex_init(&s->lock, NULL);
        atomic_store(&s->len, 0);
        s->failure = EAS_OK;
    }
}

static void at_exit(void);
static void hook(void)
{
    pthread_atfork(NULL, NULL, after_fork);
    atexit(at_exit);
}

eas_status eas_stream_new(eas_device *d, eas_stream **out)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    eas_status st = dev_usable(d);
    if (st)
        return st;
    eas_stream *s = calloc(1, sizeof *s);
    if (!s)
        return base_fail_oom(sizeof *s);
    if ((st = d->queue_new(d, &s->q))) {
        free(s);
        return st;
    }
    pthread_once(&S.once, hook);
    dev_used(d);
    s->magic = STREAM_MAGIC;
    s->refs = 1;
    s->d = d;
    pthread_mutex_init(&s->lock, NULL);
    base_lock(&S.lock);
    s->next = S.all;
    S.all = s;
    base_unlock(&S.lock);
    *out = s;
    return EAS_OK;
}

eas_stream *eas_stream_retain(eas_stream *s)
{
    if (s)
        __atomic_add_fetch(&s->refs, 1, __ATOMIC_RELAXED);
    return s;
}

static void unlist(eas_stream *s)
{
    base_lock(&S.lock);
    eas_stream **at = &S.all;
    while (*at && *at != s)
        at = &(*at)->next;
    if (*at)
        *at = s->next;
    base_unlock(&S.lock);
}

void eas_stream_release(eas_stream *s)
{
    if (!s || __atomic_sub_fetch(&s->refs, 1, __ATOMIC_ACQ_REL))
        return;
    unlist(s);
    if (!dev_usable(s->d)) {
        stream_wait(s, NULL);
        s->d->queue_free(s->d, s->q);
    }
    pthread_mutex_destroy(&s->lock);
    free(s->ring);
    s->magic = 0;
    free(s);
}

eas_device *eas_stream_device(const eas_stream *s)
{
    NEED(s, NULL);
    return s->d;
}
dev_queue *stream_queue(eas_stream *s) { return s->q; }
bool stream_pending(const eas_stream *s) { return atomic_load_explicit(&s->len, memory_order_acquire) != 0; }

eas_status eas_stream_default(eas_device *d, eas_stream **out)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    _Atomic(eas_stream *) *own = &S.own[dev_index(d)];
    *out = atomic_load_explicit(own, memory_order_acquire);
    if (*out)
        return EAS_OK;
    eas_status st = EAS_OK;
    base_lock(&lock);
    *out = *own;
    if (!*out && !(st = eas_stream_new(d, out)))
        atomic_store_explicit(own, *out, memory_order_release);
    base_unlock(&lock);
    return st;
}

eas_status dev_default_queue(eas_device *d, dev_queue **out)
{
    eas_stream *s;
    eas_status st = eas_stream_default(d, &s);
    *out = st ? NULL : s->q;
    return st;
}

eas_status eas_stream_current(eas_device *d, eas_stream **out)
{
    NEED(d, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = current[dev_index(d)];
    return *out ? EAS_OK : eas_stream_default(d, out);
}

const eas_stream *stream_used(const eas_device *d) { return current[dev_index(d)]; }

eas_stream *eas_stream_use(eas_device *d, eas_stream *s)
{
    eas_stream **at = &current[dev_index(d)], *former = *at;
    *at = s;
    return former;
}

/* ---- what is pending ---- */

static void *const *objects_of(const flight *f) { return f->more ? f->more : f->object; }

static void let_go(flight *f)
{
    for (int i = 0; i < f->n; i++)
        f->release(objects_of(f)[i]);
    free(f->more);
    if (f->stage)
        f->drop_stage(f->stage);
    if (f->owner)
        f->drop_owner(f->owner);
}

/* With the lock held: takes up to max flights that are over into out. */
static int pop_reached(eas_stream *s, flight *out, int max)
{
    int n = 0;
    uint32_t len = atomic_load_explicit(&s->len, memory_order_relaxed);
    for (; n < max && len && s->d->reached(s->d, s->q, s->ring[s->first].ticket); len--) {
        out[n++] = s->ring[s->first];
        s->first = (s->first + 1) & (s->cap - 1);
    }
    atomic_store_explicit(&s->len, len, memory_order_release);
    return n;
}

static void retire(eas_stream *s)
{
    flight done[SOME];
    int n;
    do {
        base_lock(&s->lock);
        n = pop_reached(s, done, SOME);
        base_unlock(&s->lock);
        for (int i = 0; i < n; i++)
            let_go(&done[i]);
    } while (n == SOME);
}

void stream_retire_all(eas_device *d)
{
    for (int i = 0;; i++) { /* the list may change while objects are released */
        base_lock(&S.lock);
        eas_stream *s = S.all;
        for (int k = 0; s && (k < i); k++)
            s = s->next;
        eas_stream_retain(s);
        base_unlock(&S.lock);
        if (!s)
            return;
        if (s->d == d && stream_pending(s))
            retire(s);
        eas_stream_release(s);
    }
}

static bool make_room(eas_stream *s)
{
    uint32_t len = atomic_load_explicit(&s->len, memory_order_relaxed);
    if (len < s->cap)
        return true;
    uint32_t cap = s->cap ? 2 * s->cap : 64;
    flight *ring = malloc(cap * sizeof *ring);
    if (!ring)
        return false;
    for (uint32_t i = 0; i < len; i++)
        ring[i] = s->ring[(s->first + i) & (s->cap - 1)];
    free(s->ring);
    s->ring = ring;
    s->cap = cap;
    s->first = 0;
    return true;
}

/* ---- waiting ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Short waits spin: a sleep takes longer than most launches. Later ones sleep for a sixteenth of the time
 * waited so far, so a wait is at most that much too long. */
static void doze(double waited)
{
    if (waited < 100e-6) {
        for (int i = 0; i < 16; i++)
            base_relax();
        if (waited > 20e-6)
            sched_yield();
        return;
    }
    double ns = waited / 16 * 1e9;
    struct timespec t = {0, ns > 1000000 ? 1000000 : (long)ns};
    nanosleep(&t, NULL);
}

/* Without the caller's lock; he is asked now and then whether to go on. */
static eas_status await(eas_stream *s, uint64_t ticket, const eas_launch *hooks)
{
    eas_device *d = s->d;
    if (d->reached(d, s->q, ticket))
        return EAS_OK;
    bool locks = hooks && hooks->leave && hooks->enter, stop = false;
    if (locks)
        hooks->leave(hooks->ctx);
    double start = seconds(), asked = start;
    while (hooks && hooks->interrupted && !stop && !d->reached(d, s->q, ticket)) {
        double now = seconds();
        doze(now - start);
        if (now - asked > 0.02) {
            asked = now;
            stop = dev_poll((void *)(uintptr_t)hooks);
        }
    }
    eas_status st = EAS_OK;
    if (!(hooks && hooks->interrupted))
        st = d->wait(d, s->q, ticket);
    if (locks)
        hooks->enter(hooks->ctx);
    return stop ? base_fail(EAS_ERR_INTERRUPTED, "interrupted while waiting for a stream; its work goes on")
                : st;
}

static void keep_failure(eas_stream *s, eas_status st)
{
    base_lock(&s->lock);
    if (!s->failure) {
        s->failure = st;
        base_error_keep(&s->error, st);
    }
    base_unlock(&s->lock);
}

static eas_status take_failure(eas_stream *s, eas_status st)
{
    base_lock(&s->lock);
    if (s->failure) {
        st = base_error_raise(&s->error);
        s->failure = EAS_OK;
    }
    base_unlock(&s->lock);
    return st;
}

static eas_status last_ticket(eas_stream *s, uint64_t *ticket)
{
    if (!s->d->given)
        return s->d->mark(s->d, s->q, ticket);
    *ticket = s->d->given(s->d, s->q);
    return EAS_OK;
}

static eas_status wait_for(eas_stream *s, uint64_t ticket, const eas_launch *hooks)
{
    eas_status st = await(s, ticket, hooks);
    if (st == EAS_ERR_INTERRUPTED)
        return st;
    if (!st)
        st = s->d->wait(s->d, s->q, ticket); /* is there already: the failure */
    st = take_failure(s, st);
    base_error failed; /* releasing objects may fail in its own ways */
    if (st)
        base_error_keep(&failed, st);
    retire(s);
    return st ? base_error_raise(&failed) : EAS_OK;
}

eas_status stream_wait(eas_stream *s, const eas_launch *hooks)
{
    uint64_t ticket;
    eas_status st = dev_usable(s->d);
    if (!st)
        st = last_ticket(s, &ticket);
    return st ? st : wait_for(s, ticket, hooks);
}

/* Waits until half of it is over, so that the next ones need not wait again; a failure it finds is kept for
 * whoever asks. */
static eas_status hold_back(eas_stream *s, const eas_launch *hooks)
{
    base_lock(&s->lock);
    uint32_t len = atomic_load(&s->len);
    uint64_t ticket = len ? s->ring[(s->first + len / 2) & (s->cap - 1)].ticket : 0;
    base_unlock(&s->lock);
    eas_status st = len ? await(s, ticket, hooks) : EAS_OK;
    if (st && st != EAS_ERR_INTERRUPTED) {
        keep_failure(s, st);
        st = EAS_OK;
    }
    retire(s);
    return st;
}

eas_status stream_begin(eas_stream *s, const eas_launch *hooks)
{
    for (;;) {
        base_lock(&s->lock);
        bool full = atomic_load_explicit(&s->len, memory_order_relaxed) >= max_in_flight();
        bool room = make_room(s);
        if (!full && room)
            return EAS_OK;
        base_unlock(&s->lock);
        if (!room)
            return base_fail_oom(2 * (size_t)s->cap * sizeof(flight));
        eas_status st = hold_back(s, hooks);
        if (st)
            return st;
    }
}

static bool fill(flight *f, const stream_hold *h)
{
    *f = (flight){.owner = h->owner,
                  .stage = h->stage,
                  .drop_owner = h->drop_owner,
                  .drop_stage = h->drop_stage,
                  .release = h->release,
                  .n = h->nobjects};
    if (h->nobjects > INLINE_OBJECTS && !(f->more = malloc((size_t)h->nobjects * sizeof *f->more)))
        return false;
    void **to = f->more ? f->more : f->object;
    for (int i = 0; i < h->nobjects; i++)
        h->retain(to[i] = h->objects[i]);
    return true;
}

eas_status stream_end(eas_stream *s, eas_status st, const stream_hold *hold)
{
    flight *f = &s->ring[(s->first + atomic_load_explicit(&s->len, memory_order_relaxed)) & (s->cap - 1)],
           done[SOME];
    bool out_of_memory = !st && !fill(f, hold);
    if (!st && !out_of_memory)
        st = last_ticket(s, &f->ticket);
    if (!st && !out_of_memory)
        atomic_store_explicit(&s->len, atomic_load_explicit(&s->len, memory_order_relaxed) + 1,
                              memory_order_release);
    /* With many pending launches this is not done at every launch: another core writes the count of finished
     * ones, and reading it fetches the cache line each time. */
    const uint32_t len = atomic_load_explicit(&s->len, memory_order_relaxed);
    const bool due = len <= 2 || (s->first + len) % LOOK == 0;
    int n = due ? pop_reached(s, done, SOME) : 0;
    base_unlock(&s->lock);
    for (int i = 0; i < n; i++)
        let_go(&done[i]);
    if (!out_of_memory)
        return st;
    s->d->wait(s->d, s->q, UINT64_MAX); /* nothing may still use what nobody holds */
    return base_fail_oom((size_t)hold->nobjects * sizeof(void *));
}

/* ---- the public side ---- */

eas_status eas_stream_synchronize(eas_stream *s, const eas_launch *hooks)
{
    NEED(s, EAS_ERR_HANDLE);
    return stream_wait(s, hooks);
}

int eas_stream_is_idle(eas_stream *s)
{
    NEED(s, 0);
    uint64_t ticket;
    return dev_usable(s->d) || last_ticket(s, &ticket) || s->d->reached(s->d, s->q, ticket);
}

/* The i-th stream, retained. */
static eas_stream *stream_at(int i)
{
    base_lock(&S.lock);
    eas_stream *s = S.all;
    while (s && i--)
        s = s->next;
    eas_stream_retain(s);
    base_unlock(&S.lock);
    return s;
}

eas_status eas_device_synchronize(eas_device *d, const eas_launch *hooks)
{
    base_error first = {0};
    eas_stream *s;
    for (int i = 0; (s = stream_at(i)); i++) {
        eas_status st = (d && s->d != d) || dev_usable(s->d) ? EAS_OK : stream_wait(s, hooks);
        if (st && !first.status)
            base_error_keep(&first, st);
        eas_stream_release(s);
        if (st == EAS_ERR_INTERRUPTED)
            break;
    }
    return first.status ? base_error_raise(&first) : EAS_OK;
}

/* Pending work of other devices may still use objects that the end of the process destroys: it gets a little
 * time to end. */
static void at_exit(void)
{
    struct timespec ms = {0, 1000000};
    int left = 2000;
    if (pthread_mutex_trylock(&S.lock))
        return;
    for (eas_stream *s = S.all; s; s = s->next)
        if (!s->d->host_memory && !dev_usable(s->d) && atomic_load(&s->len))
            for (uint64_t t; left && !last_ticket(s, &t) && !s->d->reached(s->d, s->q, t); left--)
                nanosleep(&ms, NULL);
    pthread_mutex_unlock(&S.lock);
}

/* ---- events ---- */

eas_status eas_event_new(eas_event **out)
{
    NEED(out, EAS_ERR_HANDLE);
    eas_event *e = *out = calloc(1, sizeof *e);
    if (!e)
        return base_fail_oom(sizeof *e);
    e->magic = EVENT_MAGIC;
    e->refs = 1;
    pthread_mutex_init(&e->lock, NULL);
    return EAS_OK;
}

eas_event *eas_event_retain(eas_event *e)
{
    if (e)
        __atomic_add_fetch(&e->refs, 1, __ATOMIC_RELAXED);
    return e;
}

void eas_event_release(eas_event *e)
{
    if (!e || __atomic_sub_fetch(&e->refs, 1, __ATOMIC_ACQ_REL))
        return;
    eas_stream_release(e->stream);
    pthread_mutex_destroy(&e->lock);
    e->magic = 0;
    free(e);
}

/* Where it was recorded; the stream is retained, NULL if nowhere. */
static eas_stream *place_of(eas_event *e, uint64_t *ticket)
{
    base_lock(&e->lock);
    eas_stream *s = eas_stream_retain(e->stream);
    *ticket = e->ticket;
    base_unlock(&e->lock);
    return s;
}

eas_status eas_event_record(eas_event *e, eas_stream *s)
{
    NEED(e, EAS_ERR_HANDLE);
    NEED(s, EAS_ERR_HANDLE);
    uint64_t ticket;
    eas_status st = dev_usable(s->d);
    if (!st)
        st = s->d->mark(s->d, s->q, &ticket);
    if (st)
        return st;
    base_lock(&e->lock);
    eas_stream *former = e->stream;
    e->stream = eas_stream_retain(s);
    e->ticket = ticket;
    base_unlock(&e->lock);
    eas_stream_release(former);
    return EAS_OK;
}

static void release_stream(void *s) { eas_stream_release(s); }

static eas_status after(eas_stream *s, eas_stream *other, uint64_t ticket, const eas_launch *hooks)
{
    if (s->d != other->d)
        return await(other, ticket, hooks);
    eas_status st = stream_begin(s, hooks);
    if (st)
        return st;
    stream_hold hold = {.owner = eas_stream_retain(other), .drop_owner = release_stream};
    st = stream_end(s, s->d->after(s->d, s->q, other->q, ticket), &hold);
    if (st)
        eas_stream_release(other);
    return st;
}

eas_status eas_event_wait(eas_event *e, eas_stream *s, const eas_launch *hooks)
{
    NEED(e, EAS_ERR_HANDLE);
    uint64_t ticket;
    eas_stream *other = place_of(e, &ticket);
    eas_status st = other ? dev_usable(s->d) : EAS_OK;
    if (!st && other && other != s && !other->d->reached(other->d, other->q, ticket))
        st = after(s, other, ticket, hooks);
    eas_stream_release(other);
    return st;
}

eas_status eas_event_synchronize(eas_event *e, const eas_launch *hooks)
{
    NEED(e, EAS_ERR_HANDLE);
    uint64_t ticket;
    eas_stream *s = place_of(e, &ticket);
    eas_status st = s ? dev_usable(s->d) : EAS_OK;
    if (s && !st)
        st = wait_for(s, ticket, hooks);
    eas_stream_release(s);
    return st;
}

int eas_event_is_reached(eas_event *e)
{
    NEED(e, 0);
    uint64_t ticket;
    eas_stream *s = place_of(e, &ticket);
    int yes = !s || s->d->reached(s->d, s->q, ticket);
    eas_stream_release(s);
    return yes;
}

static eas_status event_time(eas_event *e, const char *which, eas_device **d, double *t,
                             const eas_launch *hooks)
{
    uint64_t ticket;
    eas_stream *s = place_of(e, &ticket);
    if (!s)
        return base_fail(EAS_ERR_VALUE, "elapsed: the %s event was not recorded", which);
    eas_status st = await(s, ticket, hooks);
    *d = s->d;
    *t = st ? 0 : s->d->time(s->d, s->q, ticket);
    if (!st && *t < 0)
        st = base_fail(EAS_ERR_VALUE, "elapsed: the %s event is so old that its time is forgotten", which);
    eas_stream_release(s);
    return st;
}

eas_status eas_event_elapsed(eas_event *start, eas_event *end, double *out, const eas_launch *hooks)
{
    NEED(start, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    eas_device *a = NULL, *b = NULL;
    double t0 = 0, t1 = 0;
    *out = 0;
    eas_status st = event_time(start, "first", &a, &t0, hooks);
    if (!st)
        st = event_time(end, "second", &b, &t1, hooks);
    if (!st && a != b)
        st = base_fail(EAS_ERR_VALUE,
                       "elapsed: one event is of device \"%s\", the other of \"%s\": their clocks differ",
                       a->name, b->name);
    if (!st)
        *out = t1 - t0;
    return st;
}
