/* test_pool.c: the thread pool: every index once, from many threads at once, stopped half-way, and after
 * fork. Runs under ThreadSanitizer too. */
#include "../../src/base/base.h"
#include "../../src/base/turns.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 100000 };

typedef struct job {
    atomic_uchar hits[N];
    atomic_int bad_worker;
} job;

static void count(void *ctx, int64_t first, int64_t last, int worker)
{
    job *j = ctx;
    if (worker < 0 || worker >= pool_size())
        atomic_fetch_add(&j->bad_worker, 1);
    for (int64_t i = first; i < last; i++)
        atomic_fetch_add(&j->hits[i], 1);
}

static int run_and_check(void)
{
    job *j = calloc(1, sizeof *j);
    int bad = !pool_run(N, 100, count, j, NULL, NULL);
    for (int i = 0; i < N; i++)
        bad += atomic_load(&j->hits[i]) != 1;
    bad += atomic_load(&j->bad_worker);
    free(j);
    return bad;
}

static void test_every_index_once(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        assert_int_equal(run_and_check(), 0);
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    job *j = calloc(1, sizeof *j);
    assert_true(pool_run(0, 1, count, j, NULL, NULL));
    assert_int_equal(atomic_load(&j->hits[0]), 0);
    free(j);
}

static void *from_a_thread(void *p)
{
    *(int *)p = run_and_check();
    return NULL;
}

static void test_many_callers(void **state)
{
    (void)state;
    pthread_t id[8];
    int bad[8];
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&id[i], NULL, from_a_thread, &bad[i]), 0);
    for (int i = 0; i < 8; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(bad[i], 0);
    }
}

static void slow(void *ctx, int64_t first, int64_t last, int worker)
{
    (void)worker;
    for (int64_t i = first; i < last; i++) {
        usleep(1000);
        atomic_fetch_add((atomic_int *)ctx, 1);
    }
}

static int stop(void *ctx) { return atomic_fetch_add((atomic_int *)ctx, 1) >= 1; }

static void test_can_be_stopped(void **state)
{
    (void)state;
    atomic_int done = 0, asked = 0;
    assert_false(pool_run(20000, 1, slow, &done, stop, &asked));
    assert_true(atomic_load(&done) < 20000);
    assert_int_equal(run_and_check(), 0);
}

static void test_works_after_fork(void **state)
{
    (void)state;
    assert_int_equal(run_and_check(), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid)
        _exit(run_and_check() ? 1 : 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(run_and_check(), 0);
}

/* Threads of the host program, made for each job. */
typedef struct part {
    void (*fn)(void *);
    void *ctx;
} part;
static atomic_int lent_jobs;

static void *part_main(void *p)
{
    ((part *)p)->fn(((part *)p)->ctx);
    return NULL;
}

static void lend(void (*fn)(void *), void *ctx, unsigned n, unsigned flags)
{
    pthread_t t[256];
    part p = {fn, ctx};
    assert_int_equal(flags, 0);
    atomic_fetch_add(&lent_jobs, 1);
    for (unsigned i = 1; i < n; i++)
        assert_int_equal(pthread_create(&t[i], NULL, part_main, &p), 0);
    fn(ctx);
    for (unsigned i = 1; i < n; i++)
        pthread_join(t[i], NULL);
}

static void test_lent_threads(void **state)
{
    (void)state;
    eas_threads_lend(lend);
    test_every_index_once(NULL);
    test_can_be_stopped(NULL);
    int jobs = atomic_load(&lent_jobs);
    assert_true(pool_size() == 1 || jobs > 0);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) /* a child has none of them */
        _exit(run_and_check() || atomic_load(&lent_jobs) != jobs);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    eas_threads_lend(NULL);
    assert_int_equal(run_and_check(), 0);
    assert_int_equal(atomic_load(&lent_jobs), jobs);
}

/* ---- turns ---- */

static _Atomic int computing, most, turns_had, longest_ms;

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void raise_to(_Atomic int *greatest, int x)
{
    for (int before = atomic_load(greatest);
         x > before && !atomic_compare_exchange_weak(greatest, &before, x);)
        ;
}

/* on how many CPUs this thread may run; 0: the system does not say */
static int cpus_here(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    return 0;
}

static void *count_cpus(void *out)
{
    *(int *)out = cpus_here();
    return NULL;
}

static void *take_turns(void *ctx)
{
    (void)ctx;
    const int all = cpus_here();
    for (int i = 0; i < 20; i++) {
        const int64_t begin = now_ms();
        turn_take();
        if (now_ms() - begin < 15) /* who has waited longer may have gone without */
            assert_true(all == 0 || cpus_here() == 1);
        if (i == 0) { /* a thread that it starts is not bound as it is */
            pthread_t t;
            int its = 0;
            assert_int_equal(turn_create_thread(&t, count_cpus, &its), 0);
            pthread_join(t, NULL);
            assert_int_equal(its, all);
        }
        raise_to(&longest_ms, (int)(now_ms() - begin));
        raise_to(&most, atomic_fetch_add(&computing, 1) + 1);
        usleep(100);
        atomic_fetch_sub(&computing, 1);
        atomic_fetch_add(&turns_had, 1);
        assert_true(turn_give());
        assert_int_equal(cpus_here(), all);
    }
    return NULL;
}

static void *keep_turn(void *release)
{
    turn_take();
    while (!atomic_load((_Atomic int *)release))
        usleep(1000);
    turn_give();
    return NULL;
}

/* All have theirs, and nobody is stopped for good by those who keep them. */
static void test_turns(void **state)
{
    (void)state;
    enum { MOST = 64 };
    pthread_t t[MOST + 8], keeping[MOST];
    const int n = turn_count() > MOST ? MOST : turn_count(), all = n + 8;
    _Atomic int release = 0;
    assert_false(turn_give()); /* it has none */
    for (int i = 0; i < all; i++)
        assert_int_equal(pthread_create(&t[i], NULL, take_turns, NULL), 0);
    for (int i = 0; i < all; i++)
        pthread_join(t[i], NULL);
    assert_int_equal(atomic_load(&turns_had), 20 * all);
    /* on a busy machine a turn may take longer than others are patient */
    assert_true(atomic_load(&most) <= n || atomic_load(&longest_ms) >= 15);
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&keeping[i], NULL, keep_turn, &release), 0);
    usleep(20000);
    turn_take();
    assert_true(turn_give());
    atomic_store(&release, 1);
    for (int i = 0; i < n; i++)
        pthread_join(keeping[i], NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lent_threads),   cmocka_unit_test(test_every_index_once),
        cmocka_unit_test(test_nothing_to_do),  cmocka_unit_test(test_many_callers),
        cmocka_unit_test(test_can_be_stopped), cmocka_unit_test(test_works_after_fork),
        cmocka_unit_test(test_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
