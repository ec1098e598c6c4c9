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
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

enum { PATIENCE_MS = 20 };

enum { ANY = -1, NONE = -2 }; /* in place of the number of a CPU */
#ifdef __linux__
enum { CPUS = CPU_SETSIZE };
#else
enum { CPUS = 1 };
#endif

typedef struct waiting {
    struct waiting *next;
    pthread_cond_t wake;
    bool called;
    int cpu, *bound; /* of the one that called it; the thread's own `bound` */
    pid_t thread;
} waiting;

static struct {
    pthread_mutex_t lock;
    int taken;
    waiting *first;
    bool busy[CPUS]; /* somebody's turn */
} T = {.lock = PTHREAD_MUTEX_INITIALIZER};
static _Thread_local int mine = NONE,
                         bound = ANY; /* the CPU of this thread's turn; the only one it runs on */

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

/* ---- where a turn runs ---- */

#ifdef __linux__
static cpu_set_t allowed; /* as the process had it when the first turn was taken */

static void find_allowed(void)
{
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        CPU_ZERO(&allowed);
}

/* A CPU that is nobody's, the one where the thread is if possible; ANY: there is none. Under the lock. */
static int free_cpu(void)
{
    static bool known;
    if (!known)
        find_allowed();
    known = true;
    const int here = sched_getcpu();
    if (here >= 0 && here < CPUS && CPU_ISSET(here, &allowed) && !T.busy[here])
        return here;
    for (int i = 0; i < CPUS; i++)
        if (CPU_ISSET(i, &allowed) && !T.busy[i])
            return i;
    return ANY;
}

static pid_t this_thread(void) { return (pid_t)syscall(SYS_gettid); }

static void bind_to(int cpu, pid_t thread, int *now)
{
    cpu_set_t one;
    if (cpu == *now)
        return;
    CPU_ZERO(&one);
    if (cpu != ANY)
        CPU_SET(cpu, &one);
    /* a CPU that the process may not use any more: the thread stays where it was */
    if (sched_setaffinity(thread, sizeof one, cpu == ANY ? &allowed : &one) == 0)
        *now = cpu;
}
#else
static int free_cpu(void) { return ANY; }
static pid_t this_thread(void) { return 0; }
static void bind_to(int cpu, pid_t thread, int *now) { (void)cpu, (void)thread, (void)now; }
#endif

/* ---- turns ---- */

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
        waiting w = {.wake = PTHREAD_COND_INITIALIZER, .cpu = ANY, .bound = &bound, .thread = this_thread()};
        const struct timespec until = in_a_while();
        append(&w);
        while (!w.called)
            if (pthread_cond_timedwait(&w.wake, &T.lock, &until) == ETIMEDOUT)
                break;
        if (!w.called) {
            leave(&w);
            T.taken++;
        }
        mine = w.cpu;
        pthread_cond_destroy(&w.wake);
    } else {
        T.taken++;
        mine = free_cpu();
    }
    if (mine >= 0)
        T.busy[mine] = true;
    pthread_mutex_unlock(&T.lock);
    bind_to(mine, 0, &bound);
}

bool turn_give(void)
{
    if (mine == NONE)
        return false;
    pthread_mutex_lock(&T.lock);
    waiting *w = T.taken <= turn_count() ? T.first : NULL;
    if (w) { /* which has the turn now */
        T.first = w->next;
        w->called = true;
        w->cpu = mine;
        if (mine != ANY)
            bind_to(mine, w->thread, w->bound);
        pthread_cond_signal(&w->wake);
    } else {
        T.taken--;
        if (mine >= 0)
            T.busy[mine] = false;
    }
    mine = NONE;
    pthread_mutex_unlock(&T.lock);
    bind_to(ANY, 0, &bound); /* bound, it would be woken to wait behind whoever has the CPU now */
    return true;
}

int turn_create_thread(pthread_t *t, void *(*f)(void *), void *arg)
{
    const int cpu = bound;
    bind_to(ANY, 0, &bound); /* a new thread is bound as its creator is */
    const int bad = pthread_create(t, NULL, f, arg);
    bind_to(cpu, 0, &bound);
    return bad;
}

void turn_after_fork(void)
{
    pthread_mutex_init(&T.lock, NULL);
    T.taken = 0;
    T.first = NULL;
    memset(T.busy, 0, sizeof T.busy);
    mine = NONE;
}
