/* pool.c: one pool of worker threads for the process.
 *
 * A run is a job on the caller's stack. Its range is cut into one part a thread, always in the same way, so
 * that the same thread comes to the same data from one job to the next and finds it in its caches. A thread
 * takes slices of its own part with one atomic add each, and then of the others'. The caller does so too, and
 * leaves when everything is handed out and no worker is inside. One job at a time uses the workers; a caller
 * that finds them busy runs its whole job itself, so nested and concurrent runs cannot deadlock. Workers spin
 * for at most SPIN_NS, then sleep: other processes want the CPUs, too. After fork the child has no workers:
 * it sees another pid and starts its own.
 *
 * A host program whose own threads spin between its jobs may lend them: two pools on the same CPUs would wait
 * for each other's spinning.
 */
#include "base.h"
#include "turns.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { SPIN_NS = 40000, PAUSES = 16, MAX_WORKERS = 256, LONG_US = 4000, POLL_US = 20000 };

typedef struct part {
    _Alignas(64) _Atomic int64_t next;
    int64_t end;
} part;

typedef struct job {
    int64_t least;
    int threads;
    _Atomic int64_t slice; /* programs handed out at a time; shrinks when that takes long */
    void (*fn)(void *, int64_t, int64_t, int);
    void *ctx;
    part *parts; /* one a thread */
} job;

static struct {
    pthread_mutex_t lock;  /* held by the caller whose job uses the workers */
    pthread_mutex_t sleep; /* guards the condition */
    pthread_cond_t wake;
    _Atomic uint64_t epoch; /* odd while a job is offered */
    _Atomic(job *) job;
    _Atomic int inside;   /* workers that may be looking at job */
    _Atomic int sleepers;
    _Atomic pid_t owner;
    _Atomic uint32_t forks;
    int nworkers;
} P = {
    .lock = PTHREAD_MUTEX_INITIALIZER, .sleep = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static int count_cpus(void)
{
    const char *e = getenv("EAS_NUM_THREADS");
    if (e && *e) {
        long n = strtol(e, NULL, 10);
        if (n >= 1)
            return n > MAX_WORKERS ? MAX_WORKERS : (int)n;
    }
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set) > MAX_WORKERS ? MAX_WORKERS : CPU_COUNT(&set);
#endif
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_WORKERS ? MAX_WORKERS : (int)n;
}

int pool_size(void)
{
    static _Atomic int size;
    int n = atomic_load_explicit(&size, memory_order_relaxed);
    if (!n)
        atomic_store(&size, n = count_cpus());
    return n;
}

int eas_threads_count(void) { return pool_size(); }

static int64_t now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A short wait: it pauses, and looks at the clock only now and then, since a pause takes 10 to 150 cycles.
 * False: the time is up. */
typedef struct spin {
    int64_t end; /* 0: not begun */
    int pauses;
} spin;

static bool spin_on(spin *s)
{
    base_relax();
    if (++s->pauses % PAUSES)
        return true;
    const int64_t t = now_ns();
    if (!s->end)
        s->end = t + SPIN_NS;
    return t < s->end;
}

/* The next slice of a part: [*first, *last). Towards the end slices become smaller, so that all threads end
 * at about the same time. */
static bool take(job *j, part *p, int64_t *first, int64_t *last)
{
    const int64_t left = p->end - atomic_load_explicit(&p->next, memory_order_relaxed);
    if (left <= 0)
        return false;
    int64_t slice = atomic_load_explicit(&j->slice, memory_order_relaxed),
            share = left / 2 < j->least ? j->least : left / 2;
    slice = share < slice ? share : slice;
    *first = atomic_fetch_add_explicit(&p->next, slice, memory_order_relaxed);
    *last = p->end - *first < slice ? p->end : *first + slice;
    return *first < p->end;
}

/* Runs one slice; false when there is none left. If a slice takes long, later ones are smaller, so that an
 * interrupt is noticed soon. */
static bool one_slice(job *j, int worker)
{
    int64_t first = 0, last = 0;
    int k = 0;
    while (k < j->threads && !take(j, &j->parts[(worker + k) % j->threads], &first, &last))
        k++;
    if (k == j->threads)
        return false;
    int64_t start = now_us();
    j->fn(j->ctx, first, last, worker);
    int64_t took = now_us() - start;
    if (took > LONG_US && last - first > 1)
        atomic_store_explicit(&j->slice, 1 + (last - first - 1) * LONG_US / (2 * took), memory_order_relaxed);
    return true;
}

static void cut(job *j, int64_t n)
{
    for (int i = 0; i < j->threads; i++) {
        const int64_t first = n / j->threads * i + (i < n % j->threads ? i : n % j->threads);
        atomic_store_explicit(&j->parts[i].next, first, memory_order_relaxed);
        j->parts[i].end = first + n / j->threads + (i < n % j->threads);
    }
}

static void stop(job *j)
{
    for (int i = 0; i < j->threads; i++)
        atomic_store(&j->parts[i].next, j->parts[i].end);
}

static void work(job *j, int worker)
{
    while (one_slice(j, worker))
        ;
}

static uint64_t wait_for_job(uint64_t seen)
{
    uint64_t e;
    spin s = {0};
    do {
        e = atomic_load_explicit(&P.epoch, memory_order_acquire);
        if (e != seen && (e & 1))
            return e;
    } while (spin_on(&s));
    pthread_mutex_lock(&P.sleep);
    atomic_fetch_add(&P.sleepers, 1);
    while ((e = atomic_load(&P.epoch)) == seen || !(e & 1))
        pthread_cond_wait(&P.wake, &P.sleep);
    atomic_fetch_sub(&P.sleepers, 1);
    pthread_mutex_unlock(&P.sleep);
    return e;
}

static void *worker_main(void *arg)
{
    int id = (int)(intptr_t)arg;
    uint64_t seen = 0;
    for (;;) {
        uint64_t e = wait_for_job(seen);
        atomic_fetch_add(&P.inside, 1);
        /* the job may have been withdrawn meanwhile: then the epoch has changed; if not, `inside` keeps the
         * caller waiting */
        if (atomic_load(&P.epoch) == e)
            work(atomic_load(&P.job), id);
        atomic_fetch_sub(&P.inside, 1);
        seen = e;
    }
    return NULL;
}

void pool_block_signals(void *old)
{
    static const int own[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP};
    sigset_t all;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, old);
}

/* With P.lock held. */
static void start_workers(void)
{
    pid_t me = getpid();
    if (atomic_load(&P.owner) == me)
        return;
    P.nworkers = 0;
    atomic_store(&P.inside, 0);
    atomic_store(&P.sleepers, 0);
    sigset_t old;
    pool_block_signals(&old);
    for (int i = 1; i < pool_size(); i++) {
        pthread_t t;
        if (turn_create_thread(&t, worker_main, (void *)(intptr_t)i))
            break;
        pthread_detach(t);
        P.nworkers++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    atomic_store(&P.owner, me);
}

/* In the child after fork no other thread exists, so locks that they held are made anew. */
static void after_fork(void)
{
    pthread_mutex_init(&P.lock, NULL);
    pthread_mutex_init(&P.sleep, NULL);
    pthread_cond_init(&P.wake, NULL);
    atomic_store(&P.epoch, atomic_load(&P.epoch) & ~(uint64_t)1);
    atomic_store(&P.owner, 0);
    atomic_store(&P.inside, 0);
    atomic_fetch_add(&P.forks, 1);
}

uint32_t pool_forks(void) { return atomic_load_explicit(&P.forks, memory_order_relaxed); }

static void hook_fork(void) { pthread_atfork(NULL, NULL, after_fork); }

static void offer(job *j)
{
    atomic_store(&P.job, j);
    atomic_fetch_add(&P.epoch, 1);
    if (atomic_load(&P.sleepers)) {
        pthread_mutex_lock(&P.sleep);
        pthread_cond_broadcast(&P.wake);
        pthread_mutex_unlock(&P.sleep);
    }
}

/* Withdraws the job and waits until no worker is inside it. Slices of the workers may take long, so poll is
 * called meanwhile. False: poll wants to stop. */
static bool withdraw(job *j, int (*poll)(void *), void *poll_ctx)
{
    int64_t last = 0;
    bool go_on = true, soon = true;
    spin s = {0};
    atomic_fetch_add(&P.epoch, 1);
    while (atomic_load(&P.inside)) {
        if (soon && (soon = spin_on(&s)))
            continue;
        sched_yield();
        const int64_t t = now_us();
        last = last ? last : t;
        if (!poll || !go_on || t - last < POLL_US)
            continue;
        last = t;
        go_on = !poll(poll_ctx);
        if (!go_on)
            stop(j);
    }
    return go_on;
}

/* The caller's share of the work: it runs slices as a worker does, and calls poll now and then. */
static bool work_and_poll(job *j, int (*poll)(void *), void *poll_ctx)
{
    if (!poll) {
        work(j, 0);
        return true;
    }
    int64_t last_poll = now_us();
    while (one_slice(j, 0)) {
        int64_t t = now_us();
        if (t - last_poll < POLL_US)
            continue;
        last_poll = t;
        if (poll(poll_ctx)) {
            stop(j);
            return false;
        }
    }
    return true;
}

/* ---- threads of the host program ---- */

typedef void parallel(void (*fn)(void *), void *ctx, unsigned n, unsigned flags);
static struct {
    _Atomic(parallel *) run;
    _Atomic pid_t owner; /* a forked child has none of these threads */
} lent;

typedef struct team {
    job *j;
    pthread_t caller;
    _Atomic int next; /* worker */
    int (*poll)(void *);
    void *poll_ctx;
    bool done;
} team;

void eas_threads_lend(void (*run)(void (*fn)(void *ctx), void *ctx, unsigned n, unsigned flags))
{
    atomic_store(&lent.owner, getpid());
    atomic_store(&lent.run, run);
}

static parallel *lent_run(void)
{
    parallel *run = atomic_load_explicit(&lent.run, memory_order_relaxed);
    return run && atomic_load_explicit(&lent.owner, memory_order_relaxed) == getpid() ? run : NULL;
}

static void team_part(void *ctx)
{
    team *t = ctx;
    if (pthread_equal(pthread_self(), t->caller))
        t->done = work_and_poll(t->j, t->poll, t->poll_ctx);
    else
        work(t->j, atomic_fetch_add(&t->next, 1));
}

static bool run_lent(parallel *run, job *j, int (*poll)(void *), void *poll_ctx)
{
    team t = {.j = j, .caller = pthread_self(), .next = 1, .poll = poll, .poll_ctx = poll_ctx};
    run(team_part, &t, (unsigned)j->threads, 0);
    return t.done;
}

_Thread_local bool pool_alone;

bool pool_awake(void)
{
    return atomic_load_explicit(&P.owner, memory_order_relaxed) &&
           !atomic_load_explicit(&P.sleepers, memory_order_relaxed);
}

bool pool_run(int64_t n, int64_t grain, void (*fn)(void *, int64_t, int64_t, int), void *ctx,
              int (*poll)(void *), void *poll_ctx)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int threads = pool_alone ? 1 : pool_size();
    /* sixteen slices a thread even out different speeds; the limit on a slice's size keeps interrupts quick
     * if the estimate of its cost is wrong */
    int64_t slice = n / ((int64_t)threads * 16), most = grain > INT64_MAX / 64 ? grain : 64 * grain;
    slice = slice > most ? most : slice < grain ? grain : slice;
    part parts[MAX_WORKERS];
    job j = {
        .least = grain < 1 ? 1 : grain, .slice = slice < 1 ? 1 : slice, .fn = fn, .ctx = ctx, .parts = parts};
    j.threads = threads == 1 || n <= slice || pthread_mutex_trylock(&P.lock) ? 1 : threads;
    cut(&j, n);
    if (j.threads == 1)
        return work_and_poll(&j, poll, poll_ctx);
    pthread_once(&once, hook_fork);
    parallel *run = lent_run();
    const uint32_t forks = pool_forks();
    bool done;
    if (run) {
        done = run_lent(run, &j, poll, poll_ctx);
    } else {
        start_workers();
        offer(&j);
        done = work_and_poll(&j, poll, poll_ctx);
        if (pool_forks() == forks)
            done = withdraw(&j, done ? poll : NULL, poll_ctx) && done;
    }
    pthread_mutex_unlock(&P.lock);
    /* in a child that poll made, the slices of other threads are not done */
    return done && pool_forks() == forks;
}
