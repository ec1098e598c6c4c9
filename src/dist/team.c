/* team.c: the devices of this process. Without MPI all devices of a mesh live here: each is a thread with an
 * endpoint of a communicator, made when a mesh of that many devices is first used and parked between runs.
 * Under MPI a process is one device, or none of a mesh that lies on other ranks, and the caller's thread does
 * its work.
 *
 * Where devices are more than CPUs, they take turns (base/turns.c).
 *
 * A run that fails on one device breaks the communicator, so that the others do not wait for it; the team
 * then gets a new one. A thread takes the team's lock without holding the host's (Python's GIL): the owner of
 * the former may wait for the latter.
 */
#include "dist.h"

#include "../base/turns.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>

_Atomic uint64_t dist_bytes[COMM_NOPS], dist_calls[COMM_NOPS];

typedef struct worker {
    team *t;
    int place;
    comm *c;
    eas_status st;
    char message[1024];
    comm_stats told; /* of the endpoint, as far as they were counted */
} worker;
struct team {
    int64_t first, n;
    bool threads;
    pthread_mutex_t busy; /* one run at a time */
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake, done;
    uint64_t round;
    int64_t left; /* workers that have not finished the round */
    team_work work;
    void *ctx;
    worker *workers;
    struct team *next;
};

static pthread_mutex_t teams_lock = PTHREAD_MUTEX_INITIALIZER;
static team *teams;

/* A child of fork has none of the threads: it starts its own. */
static void in_child(void)
{
    teams = NULL;
    pthread_mutex_init(&teams_lock, NULL);
    turn_after_fork();
}
static void hook_fork(void) { pthread_atfork(NULL, NULL, in_child); }

int64_t team_first(const team *t) { return t->first; }
int64_t team_size(const team *t) { return t->n; }

static void count(worker *w)
{
    for (int i = 0; w->c && i < COMM_NOPS; i++) {
        dist_bytes[i] += w->c->stats.bytes[i] - w->told.bytes[i];
        dist_calls[i] += w->c->stats.calls[i] - w->told.calls[i];
    }
    if (w->c)
        w->told = w->c->stats;
}

static void work_once(worker *w)
{
    team *t = w->t;
    w->st = t->work(t->ctx, t->first + w->place, w->place, w->c);
    if (w->st) {
        snprintf(w->message, sizeof w->message, "%s", eas_error_message());
        comm_abort(w->c, w->message);
    }
    count(w);
}

static void *worker_main(void *arg)
{
    worker *w = arg;
    team *t = w->t;
    uint64_t seen = 0;
    const bool takes_turns = t->n > turn_count();
    pool_alone = t->n >= pool_size(); /* otherwise whoever has the pool waits for workers that have no CPU */
    for (;;) {
        pthread_mutex_lock(&t->lock);
        while (t->round == seen)
            pthread_cond_wait(&t->wake, &t->lock);
        seen = t->round;
        pthread_mutex_unlock(&t->lock);
        if (t->work) {
            if (takes_turns)
                turn_take();
            work_once(w);
            turn_give();
        } else {
            comm_close(w->c); /* a thread closes its own */
            w->c = NULL;
        }
        pthread_mutex_lock(&t->lock);
        if (--t->left == 0)
            pthread_cond_broadcast(&t->done);
        pthread_mutex_unlock(&t->lock);
    }
    return NULL;
}

static eas_status open_endpoints(team *t)
{
    comm **all = calloc((size_t)t->n, sizeof *all);
    eas_status st = all ? comm_threads_new((int)t->n, all) : base_fail_oom((size_t)t->n);
    for (int64_t i = 0; i < t->n && !st; i++) {
        t->workers[i].c = all[i];
        memset(&t->workers[i].told, 0, sizeof t->workers[i].told);
    }
    free(all);
    return st;
}

static eas_status start_workers(team *t)
{
    sigset_t old;
    pthread_attr_t attr;
    eas_status st = EAS_OK;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, (size_t)4 << 20);
    pool_block_signals(&old);
    for (int64_t i = 0; i < t->n && !st; i++) {
        pthread_t id;
        t->workers[i].t = t;
        t->workers[i].place = (int)i;
        if (pthread_create(&id, &attr, worker_main, &t->workers[i]))
            st =
                base_fail(EAS_ERR_RUNTIME, "a mesh of %lld devices: no thread can be started for device %lld",
                          (long long)t->n, (long long)i);
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return st;
}

static eas_status new_team(int64_t first, int64_t n, bool threads, comm *own, team **out)
{
    team *t = calloc(1, sizeof *t);
    if (!t || !(t->workers = calloc((size_t)n + 1, sizeof *t->workers))) {
        free(t);
        return base_fail_oom(sizeof *t);
    }
    t->first = first;
    t->n = n;
    t->threads = threads;
    pthread_mutex_init(&t->busy, NULL);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    pthread_cond_init(&t->done, NULL);
    t->workers[0] = (worker){.t = t, .c = own};
    if (own)
        t->workers[0].told = own->stats;
    eas_status st = threads ? start_workers(t) : EAS_OK;
    *out = st ? NULL : t; /* with threads that wait for it, it cannot be freed */
    return st;
}

eas_status dist_devices(const dist_mesh *m, int64_t *first, int64_t *n)
{
    comm *world;
    eas_status st = comm_world(&world);
    *first = 0;
    *n = m->ndevices;
    if (st || world->size == 1)
        return st;
    int64_t device = world->rank - m->m.first;
    if (m->m.first < 0 || m->m.first + m->ndevices > world->size)
        return base_fail(
            EAS_ERR_VALUE,
            "mesh '%s' has %lld devices, which are ranks %d to %lld, and the job has %d ranks; start it with mpirun -n %lld, or make "
            "the mesh smaller",
            m->name, (long long)m->ndevices, m->m.first, (long long)(m->m.first + m->ndevices - 1),
            world->size, (long long)(m->m.first + m->ndevices));
    *n = device >= 0 && device < m->ndevices; /* a rank outside of the mesh has none of its devices */
    *first = *n ? device : 0;
    return EAS_OK;
}

eas_status team_get(const dist_mesh *m, team **out)
{
    int64_t first, n;
    comm *own = NULL;
    eas_status st = dist_devices(m, &first, &n);
    *out = NULL;
    bool threads = n > 1;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook_fork);
    if (!st && !threads)
        st = comm_world(&own);
    if (st)
        return st;
    base_lock(&teams_lock);
    for (team *t = teams; t && !*out; t = t->next)
        if (t->n == n && t->first == first && t->threads == threads)
            *out = t;
    if (!*out) {
        st = new_team(first, n, threads, own, out);
        if (!st) {
            (*out)->next = teams;
            teams = *out;
        }
    }
    base_unlock(&teams_lock);
    return st;
}

/* ---- a run ---- */

static void post(team *t, team_work work, void *ctx)
{
    pthread_mutex_lock(&t->lock);
    t->work = work;
    t->ctx = ctx;
    t->left = t->n;
    t->round++;
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

/* Asks the host program whether to stop (Ctrl-C); called without its lock. */
static bool wants_to_stop(const eas_launch *h)
{
    bool stop = false;
    if (!h || !h->interrupted)
        return false;
    if (h->enter)
        h->enter(h->ctx);
    stop = h->interrupted(h->ctx);
    if (h->leave)
        h->leave(h->ctx);
    return stop;
}

static bool await_all(team *t, const eas_launch *hooks)
{
    bool stopped = false;
    pthread_mutex_lock(&t->lock);
    while (t->left) {
        struct timespec at;
        clock_gettime(CLOCK_REALTIME, &at);
        at.tv_nsec += 50 * 1000000;
        if (at.tv_nsec >= 1000000000) {
            at.tv_sec++;
            at.tv_nsec -= 1000000000;
        }
        if (pthread_cond_timedwait(&t->done, &t->lock, &at) != ETIMEDOUT || stopped)
            continue;
        pthread_mutex_unlock(&t->lock);
        if (wants_to_stop(hooks)) {
            comm_abort(t->workers[0].c, "interrupted");
            stopped = true;
        }
        pthread_mutex_lock(&t->lock);
    }
    pthread_mutex_unlock(&t->lock);
    return stopped;
}

/* The error to report: of a device that failed by itself rather than one that was told of another's failure
 * (ERR_RUNTIME). */
static eas_status first_error(const team *t)
{
    const worker *bad = NULL;
    for (int64_t i = 0; i < t->n; i++) {
        const worker *w = &t->workers[i];
        if (w->st && (!bad || (bad->st == EAS_ERR_RUNTIME && w->st != EAS_ERR_RUNTIME)))
            bad = w;
    }
    return bad ? base_fail(bad->st, "%s", bad->message) : EAS_OK;
}

static eas_status run_threads(team *t, team_work work, void *ctx, const eas_launch *hooks)
{
    const bool own = hooks && hooks->leave && hooks->enter;
    if (own)
        hooks->leave(hooks->ctx);
    pthread_mutex_lock(&t->busy);
    eas_status st = t->workers[0].c ? EAS_OK : open_endpoints(t);
    bool stopped = false;
    if (!st) {
        post(t, work, ctx);
        stopped = await_all(t, hooks);
        st = first_error(t);
        if (st || stopped) {
            post(t, NULL, NULL);
            await_all(t, NULL);
        }
    }
    pthread_mutex_unlock(&t->busy);
    if (own)
        hooks->enter(hooks->ctx);
    return stopped ? base_fail(EAS_ERR_INTERRUPTED, "eager: the run on a mesh was interrupted") : st;
}

eas_status team_run(team *t, team_work work, void *ctx, const eas_launch *hooks)
{
    if (!t->n)
        return EAS_OK;
    if (t->threads)
        return run_threads(t, work, ctx, hooks);
    worker *w = &t->workers[0];
    const bool own = hooks && hooks->leave && hooks->enter;
    if (pthread_mutex_trylock(&t->busy)) {
        if (own)
            hooks->leave(hooks->ctx);
        pthread_mutex_lock(&t->busy);
        if (own)
            hooks->enter(hooks->ctx);
    }
    w->told = w->c->stats; /* collectives of eager.distributed in between are not a program's */
    eas_status st = work(ctx, t->first, 0, w->c);
    if (st && w->c->size > 1) {
        char text[1024];
        snprintf(text, sizeof text, "%s", eas_error_message());
        comm_abort(w->c, text);
        st = base_fail(st, "%s", text);
    }
    count(w);
    pthread_mutex_unlock(&t->busy);
    return st;
}
