/* queue.c: the cpu's queues: each has a thread of its own that takes what was given and runs it in order,
 * over the pool where it is large.
 *
 * A ticket is the number of an item; `completed` is the last one that is done. A caller that waits for
 * its launch and finds the queue idle runs the launch itself, so the thread is started only when a launch is
 * really queued. After
 * fork the child's queues are empty and have no thread: what the parent had given is the parent's. At exit
 * what has not begun is dropped and what runs stops at its next slice.
 */
#include "dev.h"

#include "../base/turns.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { INLINE_PARAMS = 12, CHUNK = 64, SPINS = 3000, PEEK = 64, TIMES = 4096, EXIT_MS = 2000 };

typedef enum kind { LAUNCH, COPY, AFTER, MARK, REPLAY, QUIT } kind;

/* Items travel from the core of the giver to the core of the thread and back: the fewer cache lines an item
 * has, the less a launch costs. */
typedef struct item {
    /* written last: the item is there. Older ones have smaller numbers */
    _Alignas(64) _Atomic uint64_t number;
    kind kind;
    dev_code *code;
    uint64_t *big; /* slots and counts of a launch with many parameters; else NULL */
    union {
        dev_launch l;
        struct {
            void *dst;
            const void *src;
            size_t n;
        } copy;
        struct {
            dev_queue *of;
            uint64_t ticket;
        } after;
        struct {
            const dev_step *at;
            int n;
        } steps;
    } u;
    uint64_t param[2 * INLINE_PARAMS]; /* slots, then counts, as many as there are */
} item;

typedef struct chunk { /* items in their order: whoever gives need not ask where the next one is */
    _Atomic(struct chunk *) next;
    item item[CHUNK];
} chunk;

struct dev_queue {
    /* of those who give and those who wait; the thread takes the lock to sleep, and when something failed */
    pthread_mutex_t lock;
    chunk *filling, *spare; /* spare: to be used again */
    int filled; /* items of filling */
    uint64_t items, given; /* items; tickets, which marks have too that are reached as they are made */
    bool started, sleeping; /* sleeping: the thread sleeps and was not woken yet */
    pthread_t thread;
    _Atomic uint64_t offered; /* given, for looking at without the lock */
    char apart[64]; /* what follows is the thread's: on other cache lines than what the givers write */
    chunk *emptying;
    int emptied;
    uint64_t taken; /* items */
    _Atomic(chunk *) freed; /* taken back by givers, all at once */
    _Atomic uint64_t completed;
    char apart2[64];
    _Atomic int waiters, hurry, failed; /* hurry: somebody has begun to wait */
    eas_status failure;
    pthread_cond_t wake, done;
    base_error error; /* of that */
    struct {
        uint64_t ticket;
        double when;
    } times[TIMES];
    dev_queue *next; /* all queues */
};

static chunk *new_chunk(void)
{
    void *p;
    return posix_memalign(&p, 64, sizeof(chunk)) ? NULL : memset(p, 0, sizeof(chunk));
}

static struct {
    pthread_mutex_t lock;
    dev_queue *all;
    _Atomic int stopping;
} Q = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the thread ---- */

static int stopping(void *ctx) { return (void)ctx, atomic_load_explicit(&Q.stopping, memory_order_relaxed); }

static void keep_failure(dev_queue *q, eas_status st)
{
    pthread_mutex_lock(&q->lock);
    if (!q->failure) {
        q->failure = st;
        base_error_keep(&q->error, st);
        atomic_store(&q->failed, 1);
    }
    pthread_mutex_unlock(&q->lock);
}

static void wait_until(dev_queue *q, uint64_t ticket)
{
    bool done = false;
    atomic_store_explicit(&q->hurry, 1, memory_order_relaxed);
    for (int i = 0; i < SPINS / 8 && !done; i++) {
        done = atomic_load_explicit(&q->completed, memory_order_acquire) >= ticket;
        base_relax();
    }
    if (!done) {
        pthread_mutex_lock(&q->lock);
        atomic_fetch_add(&q->waiters, 1);
        while (atomic_load(&q->completed) < ticket)
            pthread_cond_wait(&q->done, &q->lock);
        atomic_fetch_sub(&q->waiters, 1);
        pthread_mutex_unlock(&q->lock);
    }
    /* of several who wait, the others' work is taken a little later then */
    atomic_store_explicit(&q->hurry, 0, memory_order_relaxed);
}

/* Whoever waits for steps is asked whether to stop, inside long launches and, every 20 ms, between them. */
typedef struct asker {
    const eas_launch *hooks; /* NULL: nobody waits */
    double last;
} asker;

static int asked(void *ctx)
{
    asker *a = ctx;
    double t;
    if (stopping(NULL) || !a->hooks || !a->hooks->interrupted)
        return stopping(NULL);
    t = seconds();
    if (t - a->last < 0.02)
        return 0;
    a->last = t;
    return a->hooks->interrupted(a->hooks->ctx);
}

static eas_status run_steps(const dev_step *steps, int n, const eas_launch *now)
{
    enum { SOME = 16, LONG_NS = 4000 };
    asker a = {.hooks = now, .last = now ? seconds() : 0};
    const eas_launch hooks = {.size = sizeof hooks, .interrupted = asked, .ctx = &a};
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st && !stopping(NULL); i++) {
        const dev_step *s = &steps[i];
        bool ask = now && i % SOME == SOME - 1;
        if (s->code) {
            dev_launch l = s->l;
            l.opts = &hooks;
            st = cpu_run(s->code, &l);
            ask = now && (ask || l.cost * (double)l.programs > LONG_NS);
        } else if (s->n) {
            memmove(s->dst, s->src, s->n);
        }
        if (!st && ask && i < n - 1 && asked(&a))
            st = base_fail(EAS_ERR_INTERRUPTED, "a replay was interrupted");
    }
    return st;
}

static eas_status run(const item *it)
{
    static const eas_launch hooks = {.size = sizeof hooks, .interrupted = stopping};
    switch (it->kind) {
    case LAUNCH: {
        dev_launch l = it->u.l;
        l.opts = &hooks;
        return cpu_run(it->code, &l);
    }
    case COPY: memmove(it->u.copy.dst, it->u.copy.src, it->u.copy.n); return EAS_OK;
    case AFTER: wait_until(it->u.after.of, it->u.after.ticket); return EAS_OK;
    case REPLAY: return run_steps(it->u.steps.at, it->u.steps.n, NULL);
    case MARK:
    case QUIT: return EAS_OK;
    }
    return EAS_OK;
}

static void note_time(dev_queue *q, uint64_t ticket)
{
    q->times[ticket % TIMES].ticket = ticket;
    q->times[ticket % TIMES].when = seconds();
}

static void complete(dev_queue *q, const item *it)
{
    uint64_t n = atomic_load_explicit(&q->completed, memory_order_relaxed) + 1;
    if (it->kind == MARK) {
        pthread_mutex_lock(&q->lock);
        note_time(q, n);
        pthread_mutex_unlock(&q->lock);
    }
    atomic_store(&q->completed, n);
    if (atomic_load(&q->waiters)) {
        pthread_mutex_lock(&q->lock);
        pthread_cond_broadcast(&q->done);
        pthread_mutex_unlock(&q->lock);
    }
}

/* The next item, if there is one. An empty chunk goes back to the givers. */
static item *look(dev_queue *q)
{
    if (q->emptied == CHUNK) {
        chunk *old = q->emptying, *next = atomic_load_explicit(&old->next, memory_order_acquire),
              *top = atomic_load_explicit(&q->freed, memory_order_relaxed);
        if (!next)
            return NULL;
        do
            atomic_store_explicit(&old->next, top, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&q->freed, &top, old, memory_order_release,
                                                      memory_order_relaxed));
        q->emptying = next;
        q->emptied = 0;
    }
    item *it = &q->emptying->item[q->emptied];
    return atomic_load_explicit(&it->number, memory_order_acquire) == q->taken + 1 ? it : NULL;
}

/* The same, after sleeping if there is none. */
static item *take(dev_queue *q)
{
    item *it;
    /* not at every turn: each look takes the cache line away from the giver, which needs it for every launch
     */
    for (int i = 0; i < SPINS; i++) {
        const bool now = i % PEEK == 0 || atomic_load_explicit(&q->hurry, memory_order_relaxed);
        if (now && (it = look(q)))
            return it;
        base_relax();
    }
    pthread_mutex_lock(&q->lock);
    while (!(it = look(q))) {
        q->sleeping = true;
        pthread_cond_wait(&q->wake, &q->lock);
    }
    q->sleeping = false;
    pthread_mutex_unlock(&q->lock);
    return it;
}

static void free_chunks(chunk *c)
{
    for (chunk *next; c; c = next) {
        next = c->next;
        free(c);
    }
}

static void free_queue(dev_queue *q)
{
    free_chunks(q->spare);
    free_chunks(q->freed);
    free_chunks(q->emptying);
    pthread_cond_destroy(&q->wake);
    pthread_cond_destroy(&q->done);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

static void *thread_main(void *arg)
{
    dev_queue *q = arg;
    for (;;) {
        item *it = take(q);
        if (it->kind == QUIT)
            return NULL;
        eas_status st = stopping(NULL) ? EAS_OK : run(it);
        if (st)
            keep_failure(q, st);
        free(it->big);
        q->emptied++;
        q->taken++;
        complete(q, it);
    }
}

/* ---- giving ---- */

static void at_exit(void)
{
    struct timespec ms = {0, 1000000};
    atomic_store(&Q.stopping, 1);
    pthread_mutex_lock(&Q.lock);
    int left = EXIT_MS;
    for (dev_queue *q = Q.all; q; q = q->next)
        for (; left && atomic_load(&q->completed) < atomic_load(&q->offered); left--)
            nanosleep(&ms, NULL);
    pthread_mutex_unlock(&Q.lock);
}

/* In the child no other thread exists: locks that they held are made anew, and what they were doing is not
 * the child's. */
static void after_fork(void)
{
    pthread_mutex_init(&Q.lock, NULL);
    for (dev_queue *q = Q.all; q; q = q->next) {
        pthread_mutex_init(&q->lock, NULL);
        pthread_cond_init(&q->wake, NULL);
        pthread_cond_init(&q->done, NULL);
        q->emptying = q->filling;
        q->emptied = q->filled;
        q->taken = q->items;
        q->started = false;
        q->failure = EAS_OK;
        atomic_store(&q->failed, 0);
        q->sleeping = false;
        atomic_store(&q->waiters, 0);
        atomic_store(&q->offered, q->given);
        atomic_store(&q->completed, q->given);
    }
}

static void hook(void)
{
    pthread_atfork(NULL, NULL, after_fork);
    atexit(at_exit);
}

eas_status cpu_queue_new(eas_device *d, dev_queue **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)d;
    pthread_once(&once, hook);
    *out = NULL;
    dev_queue *q = calloc(1, sizeof *q);
    chunk *first = new_chunk();
    if (!q || !first) {
        free(q);
        free(first);
        return base_fail_oom(sizeof *q + sizeof *first);
    }
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->wake, NULL);
    pthread_cond_init(&q->done, NULL);
    q->filling = q->emptying = first;
    *out = q;
    pthread_mutex_lock(&Q.lock);
    q->next = Q.all;
    Q.all = q;
    pthread_mutex_unlock(&Q.lock);
    return EAS_OK;
}

/* With the lock held. */
static eas_status start(dev_queue *q)
{
    if (q->started)
        return EAS_OK;
    sigset_t old;
    pool_block_signals(&old);
    int bad = turn_create_thread(&q->thread, thread_main, q);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (bad)
        return base_fail(EAS_ERR_RUNTIME, "no thread could be started for a stream: %s", strerror(bad));
    q->started = true;
    return EAS_OK;
}

/* With the lock held: the chunk is full. */
static bool next_chunk(dev_queue *q)
{
    if (!q->spare)
        q->spare = atomic_exchange_explicit(&q->freed, NULL, memory_order_acquire);
    chunk *c = q->spare;
    if (c)
        q->spare = c->next;
    else if (!(c = new_chunk()))
        return base_fail_oom(sizeof *c), false;
    atomic_store_explicit(&c->next, NULL, memory_order_relaxed);
    atomic_store_explicit(&q->filling->next, c, memory_order_release);
    q->filling = c;
    q->filled = 0;
    return true;
}

/* An item to fill, with the lock held; NULL with an error and the lock released. It counts only once it is
 * given. */
static item *begin(dev_queue *q, kind k)
{
    pthread_mutex_lock(&q->lock);
    if (start(q) || (q->filled == CHUNK && !next_chunk(q))) {
        pthread_mutex_unlock(&q->lock);
        return NULL;
    }
    item *it = &q->filling->item[q->filled];
    it->kind = k;
    it->big = NULL;
    return it;
}

/* Prefetches for writing the lines of an item that the other core has read. */
static void want(const item *it)
{
    for (size_t at = 0; at < offsetof(item, param) + 64; at += 64)
#if defined(__x86_64__)
        __asm__ volatile("prefetchw %0" : : "m"(((const char *)it)[at]));
#else
        __builtin_prefetch((const char *)it + at, 1);
#endif
}

static void give(dev_queue *q, item *it)
{
    atomic_store_explicit(&q->offered, ++q->given, memory_order_release);
    atomic_store_explicit(&it->number, ++q->items, memory_order_release);
    q->filled++;
    if (q->sleeping) { /* until it is awake, others need not wake it again */
        q->sleeping = false;
        pthread_cond_signal(&q->wake);
    }
    const item *next = q->filled < CHUNK ? it + 1 : NULL;
    pthread_mutex_unlock(&q->lock);
    if (next)
        want(next);
}

void cpu_queue_free(eas_device *d, dev_queue *q)
{
    cpu_queue_wait(d, q, UINT64_MAX);
    pthread_mutex_lock(&Q.lock);
    dev_queue **at = &Q.all;
    while (*at && *at != q)
        at = &(*at)->next;
    if (*at)
        *at = q->next;
    pthread_mutex_unlock(&Q.lock);
    item *it = q->started ? begin(q, QUIT) : NULL;
    if (it) {
        give(q, it);
        pthread_join(q->thread, NULL);
    }
    if (it || !q->started)
        free_queue(q);
}

/* The parameters are the caller's: they are copied. */
static bool copy_params(item *it, const dev_launch *l)
{
    size_t n = (size_t)l->ir->nparams;
    if (n > INLINE_PARAMS && !(it->big = malloc(2 * n * sizeof *it->big)))
        return false;
    uint64_t *slot = it->big ? it->big : it->param;
    int64_t *count = (int64_t *)(void *)(slot + n);
    for (size_t i = 0; i < n; i++) {
        slot[i] = l->slot[i];
        count[i] = l->count[i];
    }
    it->u.l = *l;
    it->u.l.slot = slot;
    it->u.l.count = count;
    return true;
}

static bool idle(dev_queue *q)
{
    return atomic_load_explicit(&q->completed, memory_order_acquire) ==
           atomic_load_explicit(&q->offered, memory_order_acquire);
}

eas_status cpu_queue_launch(eas_device *d, dev_queue *q, dev_code *code, const dev_launch *l)
{
    (void)d;
    if (l->now && idle(q))
        return cpu_run(code, l);
    item *it = begin(q, LAUNCH);
    if (!it)
        return EAS_ERR_RUNTIME;
    it->code = code;
    if (!copy_params(it, l)) {
        pthread_mutex_unlock(&q->lock);
        return base_fail_oom(0);
    }
    give(q, it);
    return EAS_OK;
}

eas_status cpu_queue_launch_many(eas_device *d, dev_queue *q, int n, dev_code *const *code,
                                 const dev_launch *l)
{
    if (idle(q))
        return cpu_run_many(n, code, l);
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st; i++)
        st = cpu_queue_launch(d, q, code[i], &l[i]);
    return st;
}

eas_status cpu_queue_replay(eas_device *d, dev_queue *q, const dev_plan *plan, const dev_step *steps, int n,
                            const eas_launch *now)
{
    (void)d, (void)plan;
    if (now && idle(q))
        return run_steps(steps, n, now);
    item *it = begin(q, REPLAY);
    if (!it)
        return EAS_ERR_RUNTIME;
    it->u.steps.at = steps;
    it->u.steps.n = n;
    give(q, it);
    return EAS_OK;
}

eas_status cpu_queue_copy(eas_device *d, dev_queue *q, dev_way way, void *dst, const void *src, size_t n)
{
    (void)d, (void)way;
    if (!n)
        return EAS_OK;
    item *it = begin(q, COPY);
    if (!it)
        return EAS_ERR_RUNTIME;
    it->u.copy.dst = dst;
    it->u.copy.src = src;
    it->u.copy.n = n;
    give(q, it);
    return EAS_OK;
}

eas_status cpu_queue_after(eas_device *d, dev_queue *q, dev_queue *other, uint64_t ticket)
{
    (void)d;
    if (q == other || atomic_load(&other->completed) >= ticket)
        return EAS_OK;
    item *it = begin(q, AFTER);
    if (!it)
        return EAS_ERR_RUNTIME;
    it->u.after.of = other;
    it->u.after.ticket = ticket;
    give(q, it);
    return EAS_OK;
}

eas_status cpu_queue_mark(eas_device *d, dev_queue *q, uint64_t *ticket)
{
    (void)d;
    pthread_mutex_lock(&q->lock);
    if (idle(q)) { /* reached as it is made */
        *ticket = ++q->given;
        note_time(q, *ticket);
        atomic_store(&q->completed, *ticket);
        atomic_store(&q->offered, *ticket);
        pthread_mutex_unlock(&q->lock);
        return EAS_OK;
    }
    pthread_mutex_unlock(&q->lock);
    item *it = begin(q, MARK);
    if (!it)
        return EAS_ERR_RUNTIME;
    *ticket = q->given + 1;
    give(q, it);
    return EAS_OK;
}

/* ---- looking and waiting ---- */

uint64_t cpu_queue_given(eas_device *d, dev_queue *q)
{
    return (void)d, atomic_load_explicit(&q->offered, memory_order_acquire);
}

bool cpu_queue_reached(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    return atomic_load_explicit(&q->completed, memory_order_acquire) >= ticket;
}

eas_status cpu_queue_wait(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    if (ticket == UINT64_MAX)
        ticket = atomic_load(&q->offered);
    if (atomic_load_explicit(&q->completed, memory_order_acquire) < ticket)
        wait_until(q, ticket);
    if (!atomic_load_explicit(&q->failed, memory_order_relaxed))
        return EAS_OK;
    pthread_mutex_lock(&q->lock);
    eas_status st = q->failure;
    q->failure = EAS_OK;
    atomic_store(&q->failed, 0);
    if (st)
        base_error_raise(&q->error);
    pthread_mutex_unlock(&q->lock);
    return st;
}

double cpu_queue_time(eas_device *d, dev_queue *q, uint64_t ticket)
{
    (void)d;
    pthread_mutex_lock(&q->lock);
    double t = q->times[ticket % TIMES].ticket == ticket ? q->times[ticket % TIMES].when : -1;
    pthread_mutex_unlock(&q->lock);
    return t;
}
