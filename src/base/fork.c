/* fork.c: a fork that finds no thread in the middle of a change.
 *
 * A forked child has one thread. What another thread was changing at that moment stays half changed there,
 * and a lock that it held is never released. So a fork waits until no other thread is inside one of our locks
 * (or between fork_hold and fork_release), and threads that want to go in wait until the fork is over.
 *
 * Each thread counts in a word of its own how many locks it is inside; the fork raises a flag and looks at
 * all the words. A lock therefore costs a store and a load more than a plain one. Two rules keep this free of
 * deadlock: a thread that is inside a lock never waits for anything but another of these locks (least of all
 * for the host program's own lock, Python's GIL, which the thread that forks may hold), and the fork waits
 * for a bounded time only: a thread that is still inside then, such as one that compiles a very large kernel,
 * loses its locks in the child, where they are made anew.
 */
#include "base.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

enum { DEEPEST = 8, LATE = 64, PATIENCE_MS = 500 };

typedef struct place {
    _Atomic int depth;               /* written by its own thread only */
    pthread_mutex_t *held[DEEPEST];  /* NULL: held without a lock */
    struct place *next, **link;
    bool known;
} place;
static _Thread_local place own;

static struct {
    pthread_mutex_t lock; /* of the list; held throughout a fork */
    place *all;
    pthread_key_t ending;
    pthread_mutex_t *late[LATE]; /* locks of threads that a fork did not wait for any longer */
    int nlate;
} F = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Atomic int forking;

/* ---- the fork ---- */

static int64_t milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void doze(void)
{
    struct timespec t = {0, 20000};
    nanosleep(&t, NULL);
}

static void note_late(place *p)
{
    for (int i = 0; i < DEEPEST && i < atomic_load(&p->depth) && F.nlate < LATE; i++)
        if (p->held[i])
            F.late[F.nlate++] = p->held[i];
}

static void before(void)
{
    pthread_mutex_lock(&F.lock);
    F.nlate = 0;
    atomic_store(&forking, 1);
    atomic_thread_fence(memory_order_seq_cst);
    const int64_t end = milliseconds() + PATIENCE_MS;
    for (place *p = F.all; p; p = p->next) {
        while (p != &own && atomic_load(&p->depth) && milliseconds() < end)
            doze();
        if (p != &own && atomic_load(&p->depth))
            note_late(p);
    }
}

static void in_parent(void)
{
    atomic_store(&forking, 0);
    pthread_mutex_unlock(&F.lock);
}

static void in_child(void)
{
    F.all = own.known ? &own : NULL;
    own.next = NULL;
    own.link = &F.all;
    for (int i = 0; i < F.nlate; i++)
        pthread_mutex_init(F.late[i], NULL);
    in_parent();
}

/* ---- threads ---- */

static void at_end(void *p)
{
    place *gone = p;
    pthread_mutex_lock(&F.lock);
    *gone->link = gone->next;
    if (gone->next)
        gone->next->link = gone->link;
    gone->known = false;
    pthread_mutex_unlock(&F.lock);
}

static void hook(void)
{
    pthread_key_create(&F.ending, at_end);
    pthread_atfork(before, in_parent, in_child);
}

/* A thread that F does not know yet is not inside a lock, so waiting for F.lock is waiting for a fork. */
static void meet(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook);
    pthread_mutex_lock(&F.lock);
    own.next = F.all;
    own.link = &F.all;
    if (F.all)
        F.all->link = &own.next;
    F.all = &own;
    own.known = true;
    pthread_mutex_unlock(&F.lock);
    pthread_setspecific(F.ending, &own);
}

/* ---- entering a lock ---- */

static void set_depth(int n) { atomic_store_explicit(&own.depth, n, memory_order_release); }

/* False: a fork is going on, and this thread must leave before it takes a lock. If the flag is not seen here,
 * the fork must see what this thread wrote before (its depth). */
static bool may_stay(int depth) { return depth > 0 || !atomic_load_explicit(&forking, memory_order_relaxed); }

static int go_in(pthread_mutex_t *m)
{
    if (!own.known)
        meet();
    const int depth = atomic_load_explicit(&own.depth, memory_order_relaxed);
    if (depth < DEEPEST)
        own.held[depth] = m;
    set_depth(depth + 1);
    return depth;
}

void fork_hold(void)
{
    for (;;) {
        const int depth = go_in(NULL);
        atomic_thread_fence(memory_order_seq_cst);
        if (may_stay(depth))
            return;
        set_depth(depth);
        doze();
    }
}

void fork_release(void) { set_depth(atomic_load_explicit(&own.depth, memory_order_relaxed) - 1); }

void base_lock(pthread_mutex_t *m)
{
    for (;;) {
        const int depth = go_in(m);
        pthread_mutex_lock(m);
#if !defined(__x86_64__) /* there, taking a lock is a fence */
        atomic_thread_fence(memory_order_seq_cst);
#endif
        if (may_stay(depth))
            return;
        base_unlock(m);
        doze();
    }
}

void base_unlock(pthread_mutex_t *m)
{
    pthread_mutex_unlock(m);
    fork_release();
}
