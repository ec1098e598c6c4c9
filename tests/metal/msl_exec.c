/* msl_exec.c: runs a compiled kernel over a grid.
 *
 * Groups run one after the other. The threads of a group that meets at barriers are fibers; they run in turn
 * from one meeting to the next. A kernel without meetings runs all its threads on one fiber. Nothing runs on
 * the caller's own stack: from a signal (a trap of the checks that clang put in, a page fault, the time
 * limit) there is then always a way back, by switching to the caller.
 */
#include "fiber.h"
#include "msl.h"
#include "msl_shim.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

enum { THREAD_STACK = 256 << 10, ALTERNATE_STACK = 64 << 10, EXCHANGE = 16, POISON = 0xff };
static const size_t LONE_STACK = (size_t)512 << 20; /* blocks of SPMD kernels live there */

typedef enum state { RUNS, AT_SIMD, AT_GROUP, DONE } state;

typedef struct lane_thread {
    fiber f;
    state s;
    unsigned turn; /* of the exchange buffer */
    msl_at at;
} lane_thread;

typedef struct runner {
    const msl_kernel *k;
    void *const *args;
    const msl_grid *grid;
    uint32_t groups[3];
    lane_thread *threads; /* MSL_MAX_THREADS, made at first need */
    int nthreads, nmade;
    lane_thread lone;
    lane_thread *now;
    fiber caller;
    double until; /* 0: no limit */
    char *why;
    msl_result result;
    volatile sig_atomic_t inside; /* kernel code is running */
    volatile sig_atomic_t late;
    _Alignas(64) unsigned char tg[MSL_MAX_TG];
    _Alignas(64) unsigned char exchange[MSL_MAX_THREADS / MSL_SIMD][2][MSL_SIMD][EXCHANGE];
    uint32_t active[MSL_MAX_THREADS / MSL_SIMD];
    void *alternate;
} runner;

static _Thread_local runner *me;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- what kernels call ---- */

static void pause_as(state s)
{
    lane_thread *t = me->now;
    t->s = s;
    me->inside = 0;
    fiber_switch(&t->f, &me->caller);
    me->inside = 1;
}

static void barrier(void)
{
    if (me->k->meets)
        pause_as(AT_GROUP);
}

static unsigned lane(void) { return me->now->at.lane; }
static unsigned char *group_memory(void) { return me->tg; }

/* Two buffers take turns: a lane may already offer its next value while a slower one still reads the last. */
static const unsigned char *exchange(const void *mine, unsigned bytes, unsigned *active)
{
    lane_thread *t = me->now;
    unsigned char(*slot)[EXCHANGE] = me->exchange[t->at.sg][t->turn++ & 1];
    memcpy(slot[t->at.lane], mine, bytes);
    pause_as(AT_SIMD);
    *active = me->active[t->at.sg];
    return slot[0];
}

static const eas_shim_calls calls = {
    .barrier = barrier, .lane = lane, .group_memory = group_memory, .exchange = exchange};
const eas_shim_calls *msl_calls(void) { return &calls; }

/* ---- signals ---- */

static struct sigaction before[NSIG];
static const int caught[] = {SIGILL, SIGTRAP, SIGSEGV, SIGBUS, SIGFPE};
#ifdef SIGRTMIN
#define LIMIT_SIGNAL (SIGRTMIN + 7)
#else
#define LIMIT_SIGNAL SIGVTALRM
#endif

static void leave_kernel(msl_result r, const char *why)
{
    runner *m = me;
    fiber dead = {0};
    m->inside = 0;
    m->result = r;
    snprintf(m->why, 256, "%s, in kernel %s, thread (%u, %u, %u) of group (%u, %u, %u)", why, m->k->name,
             m->now->at.local[0], m->now->at.local[1], m->now->at.local[2], m->now->at.group[0],
             m->now->at.group[1], m->now->at.group[2]);
    fiber_switch(&dead, &m->caller);
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
    if (me && me->inside)
        leave_kernel(MSL_FAULT, sig == SIGSEGV || sig == SIGBUS ? "page fault"
                                : sig == SIGFPE                 ? "division by zero"
                                                                : "undefined behaviour");
    struct sigaction *old = &before[sig];
    if (old->sa_flags & SA_SIGINFO) {
        old->sa_sigaction(sig, info, context);
    } else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) {
        old->sa_handler(sig);
    } else {
        sigaction(sig, old, NULL);
        raise(sig);
    }
}

static void on_limit(int sig)
{
    (void)sig;
    if (!me)
        return;
    me->late = 1;
    if (me->inside)
        leave_kernel(MSL_TIMEOUT, "time limit");
}

/* Whoever set a handler since the last run (a test framework, an interpreter) is asked when a signal is not
 * ours. */
static void install(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct sigaction a = {0}, now;
    a.sa_sigaction = on_signal;
    a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&a.sa_mask);
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        if (!sigaction(caught[i], NULL, &now) && now.sa_sigaction != on_signal)
            sigaction(caught[i], &a, &before[caught[i]]);
    pthread_mutex_unlock(&lock);
}

#ifdef __linux__
typedef struct limit {
    timer_t t;
    bool set;
} limit;
static void limit_start(limit *l, double seconds)
{
    struct sigevent e = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = LIMIT_SIGNAL};
    struct itimerspec when = {
        .it_value = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) + 1}};
#ifdef sigev_notify_thread_id
    e.sigev_notify_thread_id = (pid_t)syscall(SYS_gettid);
#else
    e._sigev_un._tid = (pid_t)syscall(SYS_gettid);
#endif
    l->set = seconds > 0 && !timer_create(CLOCK_MONOTONIC, &e, &l->t);
    if (l->set)
        timer_settime(l->t, 0, &when, NULL);
}
static void limit_stop(limit *l)
{
    if (l->set)
        timer_delete(l->t);
}
#else /* only looked at between groups */
typedef struct limit {
    int unused;
} limit;
static void limit_start(limit *l, double seconds) { (void)l, (void)seconds; }
static void limit_stop(limit *l) { (void)l; }
#endif

/* ---- a runner per thread ---- */

static pthread_key_t runner_key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void free_runner(void *p)
{
    runner *r = p;
    stack_t off = {.ss_flags = SS_DISABLE};
    sigaltstack(&off, NULL);
    for (int i = 0; i < r->nmade; i++)
        fiber_free(&r->threads[i].f);
    fiber_free(&r->lone.f);
    free(r->threads);
    free(r->alternate);
    free(r);
    me = NULL;
}

static void set_up(void)
{
    struct sigaction a = {.sa_flags = SA_ONSTACK | SA_NODEFER | SA_RESTART};
    a.sa_handler = on_limit;
    pthread_key_create(&runner_key, free_runner);
    sigaction(LIMIT_SIGNAL, &a, NULL);
}

static runner *get_runner(void)
{
    pthread_once(&once, set_up);
    if (me)
        return me;
    runner *r;
    if (posix_memalign((void **)&r, 64, sizeof *r))
        return NULL;
    memset(r, 0, sizeof *r);
    stack_t alt = {.ss_size = ALTERNATE_STACK}, old;
    r->alternate = alt.ss_sp = malloc(ALTERNATE_STACK);
    r->threads = calloc(MSL_MAX_THREADS, sizeof *r->threads);
    if (!alt.ss_sp || !r->threads || fiber_new(&r->lone.f, LONE_STACK)) {
        free_runner(r);
        return NULL;
    }
    if (!sigaltstack(NULL, &old) && old.ss_flags & SS_DISABLE)
        sigaltstack(&alt, NULL);
    pthread_setspecific(runner_key, r);
    return me = r;
}

static bool have_threads(runner *r, int n)
{
    while (r->nmade < n && !fiber_new(&r->threads[r->nmade].f, THREAD_STACK)) {
        r->threads[r->nmade].f.shift = (size_t)r->nmade * 5 * 64 % (64 << 10);
        r->nmade++;
    }
    return r->nmade >= n;
}

/* ---- threads ---- */

static void place(runner *r, const uint32_t group[3], const uint32_t size[3], uint32_t index, msl_at *at)
{
    uint32_t t[3] = {index % size[0], index / size[0] % size[1], index / (size[0] * size[1])};
    for (int a = 0; a < 3; a++) {
        at->group[a] = group[a];
        at->groups[a] = r->groups[a];
        at->local[a] = t[a];
        at->locals[a] = r->grid->group[a];
        at->global[a] = group[a] * r->grid->group[a] + t[a];
        at->all[a] = (uint32_t)r->grid->threads[a];
    }
    at->index = index;
    at->lane = index % MSL_SIMD;
    at->sg = index / MSL_SIMD;
}

static void finish(void)
{
    me->inside = 0;
    me->now->s = DONE;
    for (;;)
        fiber_switch(&me->now->f, &me->caller);
}

static void thread_entry(void *p)
{
    lane_thread *t = p;
    me->inside = 1;
    me->k->run(me->args, &t->at);
    finish();
}

static void resume(runner *r, lane_thread *t)
{
    r->now = t;
    fiber_switch(&r->caller, &t->f);
}

/* Runs the lanes of one simdgroup until none can go on alone. */
static void run_simdgroup(runner *r, int sg)
{
    int first = sg * MSL_SIMD, last = first + MSL_SIMD < r->nthreads ? first + MSL_SIMD : r->nthreads;
    for (uint32_t waiting = 1; waiting && !r->result;) {
        waiting = 0;
        for (int i = first; i < last && !r->result; i++) {
            if (r->threads[i].s == RUNS)
                resume(r, &r->threads[i]);
            if (r->threads[i].s == AT_SIMD)
                waiting |= 1u << (i - first);
        }
        r->active[sg] = waiting;
        for (int i = first; i < last; i++)
            if (waiting >> (i - first) & 1)
                r->threads[i].s = RUNS;
    }
}

/* All at the barrier: go on. All done: the end. Anything else is a barrier that some thread never reaches. */
static bool group_goes_on(runner *r)
{
    int done = 0;
    for (int i = 0; i < r->nthreads; i++)
        done += r->threads[i].s == DONE;
    if (done == r->nthreads)
        return false;
    if (done) {
        r->result = MSL_DIVERGED;
        snprintf(r->why, 256, "kernel %s: %d of %d threads ended while the others wait at a barrier",
                 r->k->name, done, r->nthreads);
        return false;
    }
    for (int i = 0; i < r->nthreads; i++)
        r->threads[i].s = RUNS;
    return true;
}

static void meet_group(runner *r, const uint32_t group[3], const uint32_t size[3])
{
    r->nthreads = (int)(size[0] * size[1] * size[2]);
    if (!have_threads(r, r->nthreads)) {
        r->result = MSL_NO_MEMORY;
        snprintf(r->why, 256, "no memory for the stacks of %d threads", r->nthreads);
        return;
    }
    for (int i = 0; i < r->nthreads; i++) {
        lane_thread *t = &r->threads[i];
        place(r, group, size, (uint32_t)i, &t->at);
        t->s = RUNS;
        t->turn = 0;
        fiber_start(&t->f, thread_entry, t);
    }
    do {
        for (int sg = 0; sg * MSL_SIMD < r->nthreads && !r->result; sg++)
            run_simdgroup(r, sg);
    } while (!r->result && group_goes_on(r));
}

static void one_group(runner *r, const uint32_t group[3], bool lone)
{
    uint32_t size[3], n = 1;
    for (int a = 0; a < 3; a++) {
        uint64_t first = (uint64_t)group[a] * r->grid->group[a], left = r->grid->threads[a] - first;
        size[a] = left < r->grid->group[a] ? (uint32_t)left : r->grid->group[a];
        n *= size[a];
    }
    memset(r->tg, POISON, r->k->tg_bytes); /* undefined until it is written */
    if (!lone) {
        meet_group(r, group, size);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        place(r, group, size, i, &r->lone.at);
        r->inside = 1;
        r->k->run(r->args, &r->lone.at);
        r->inside = 0;
    }
}

static void all_groups(runner *r, bool lone)
{
    unsigned tick = 0;
    for (uint32_t z = 0; z < r->groups[2]; z++)
        for (uint32_t y = 0; y < r->groups[1]; y++)
            for (uint32_t x = 0; x < r->groups[0]; x++) {
                if (r->late || (r->until > 0 && !(++tick & 255) && now_s() > r->until)) {
                    r->result = MSL_TIMEOUT;
                    snprintf(r->why, 256, "time limit, in kernel %s", r->k->name);
                }
                if (r->result)
                    return;
                one_group(r, (uint32_t[]){x, y, z}, lone);
            }
}

static void lone_entry(void *p)
{
    all_groups(p, true);
    finish();
}

msl_result msl_run(const msl_kernel *k, void *const *args, const msl_grid *grid, double seconds,
                   char why[256])
{
    runner *r = get_runner();
    limit l;
    why[0] = 0;
    if (!r) {
        snprintf(why, 256, "no memory for a stack");
        return MSL_NO_MEMORY;
    }
    r->k = k;
    r->args = args;
    r->grid = grid;
    r->why = why;
    r->result = MSL_OK;
    r->late = 0;
    r->until = seconds > 0 ? now_s() + seconds : 0;
    for (int a = 0; a < 3; a++)
        r->groups[a] = (uint32_t)((grid->threads[a] + grid->group[a] - 1) / grid->group[a]);
    install();
    limit_start(&l, seconds);
    if (k->meets) {
        all_groups(r, false);
    } else {
        fiber_start(&r->lone.f, lone_entry, r);
        resume(r, &r->lone);
    }
    limit_stop(&l);
    return r->result;
}
