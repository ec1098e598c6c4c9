/* turns.c: which threads compute when threads that wait for each other, such as the devices of a mesh in one
 * process, are more than CPUs.
 *
 * Left to the system, four such threads on two CPUs often run three on one CPU and one on the other, until
 * its scheduler evens that out some milliseconds later, and all of them then wait for the slowest; and those
 * that share a CPU drive each other's data out of its caches. So as many as there are CPUs have a turn, the
 * others wait in the order in which they came, and a thread that begins to wait for others hands its turn on.
 *
 * A turn is no lock: a thread that has waited PATIENCE_MS for one computes without, so that nothing depends
 * on when a turn is given back. */
#include "turns.h"

#include "base.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 20 };

typedef struct waiting {
    struct waiting *next;
    pthread_cond_t wake;
    bool called;
} waiting;

static struct {
    pthread_mutex_t lock;
    int taken;
    waiting *first;
} T = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Thread_local bool mine;

int turn_count(void)
{
    static _Atomic int count;
    int n = atomic_load_explicit(&count, memory_order_relaxed);
    if (n)
        return n;
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        n = CPU_COUNT(&set);
#endif
    if (n < 1)
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    n = n < 1 ? 1 : n;
    atomic_store(&count, n);
    return n;
}

static void append(waiting *w)
{
    waiting **at = &T.first;
    while (*at)
        at = &(*at)->next;
    *at = w;
}

static void leave(const waiting *w)
{
    waiting **at = &T.first;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
}

static struct timespec in_a_while(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += PATIENCE_MS * 1000000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    return t;
}

void turn_take(void)
{
    pthread_mutex_lock(&T.lock);
    if (T.taken >= turn_count()) {
        waiting w = {.wake = PTHREAD_COND_INITIALIZER};
        const struct timespec until = in_a_while();
        append(&w);
        while (!w.called)
            if (pthread_cond_timedwait(&w.wake, &T.lock, &until) == ETIMEDOUT)
                break;
        if (!w.called) {
            leave(&w);
            T.taken++;
        }
        pthread_cond_destroy(&w.wake);
    } else {
        T.taken++;
    }
    pthread_mutex_unlock(&T.lock);
    mine = true;
}

bool turn_give(void)
{
    if (!mine)
        return false;
    mine = false;
    pthread_mutex_lock(&T.lock);
    waiting *w = T.taken <= turn_count() ? T.first : NULL;
    if (w) { /* which has the turn now */
        T.first = w->next;
        w->called = true;
        pthread_cond_signal(&w->wake);
    } else {
        T.taken--;
    }
    pthread_mutex_unlock(&T.lock);
    return true;
}

void turn_after_fork(void)
{
    pthread_mutex_init(&T.lock, NULL);
    T.taken = 0;
    T.first = NULL;
    mine = false;
}
