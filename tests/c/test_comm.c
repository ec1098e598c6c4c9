/* Collectives of the threads engine: values against plain loops, failures of every kind; runs under the
 * sanitizers too. */
#include "comm_bodies.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- running ranks ---- */

typedef eas_status (*body)(comm *c, job *j);
struct job {
    body fn;
    void *arg;
    comm *ends[MOST];
    eas_status st[MOST];
    char message[MOST][4096];
    int n;
};
typedef struct seat {
    job *j;
    int rank;
} seat;

static void *run_rank(void *p)
{
    seat *s = p;
    comm *c = s->j->ends[s->rank];
    s->j->st[s->rank] = s->j->fn(c, s->j);
    snprintf(s->j->message[s->rank], sizeof s->j->message[0], "%s",
             s->j->st[s->rank] ? eas_error_message() : "");
    comm_close(c);
    return NULL;
}

static void run(job *j, int n, body fn, void *arg)
{
    pthread_t t[MOST];
    seat s[MOST];
    j->n = n, j->fn = fn, j->arg = arg;
    assert_int_equal(comm_threads_new(n, j->ends), EAS_OK);
    for (int i = 0; i < n; i++) {
        s[i] = (seat){j, i};
        assert_int_equal(pthread_create(&t[i], NULL, run_rank, &s[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
}

static void run_well(int n, body fn, void *arg)
{
    job *j = calloc(1, sizeof *j);
    run(j, n, fn, arg);
    for (int i = 0; i < n; i++)
        if (j->st[i])
            fail_msg("rank %d of %d: %s", i, n, j->message[i]);
    free(j);
}

/* ---- values ---- */

static void data_moves(void **state)
{
    (void)state;
    for (int n = 1; n <= 9; n++)
        run_well(n, move_body, NULL);
}

static void groups_are_independent(void **state)
{
    (void)state;
    run_well(6, axes_body, NULL);
}

/* ---- reductions ---- */

static double tree(int lo, int hi, const double *v, comm_reduction red, bool single)
{
    if (hi - lo == 1)
        return v[lo];
    int m = 1;
    while (2 * m < hi - lo)
        m *= 2;
    double a = tree(lo, lo + m, v, red, single), b = tree(lo + m, hi, v, red, single), r;
    switch (red) {
    case COMM_RED_sum: r = a + b; break;
    case COMM_RED_prod: r = a * b; break;
    case COMM_RED_max: r = a != a || b != b ? NAN : a > b ? a : b; break;
    default: r = a != a || b != b ? NAN : a < b ? a : b; break;
    }
    return single ? (double)(float)r : r;
}

static double half_value(eas_dtype dt, uint16_t h)
{
    return (double)(dt == EAS_F16 ? f16_to_f32(h) : bf16_to_f32(h));
}

/* Every bit pattern of the 16-bit floats, joined with others: what base/dtype.c makes of it. */
static void halves_round_once(void **state)
{
    (void)state;
    enum { ALL = 1 << 16, N = 5 };
    uint16_t *in[N], *out = malloc(2 * ALL);
    for (int k = 0; k < N; k++) {
        in[k] = malloc(2 * ALL);
        for (int i = 0; i < ALL; i++)
            in[k][i] =
                (uint16_t)(k ? (unsigned)i * (2u * (unsigned)k + 1) + 977u * (unsigned)k : (unsigned)i);
    }
    eas_dtype dts[] = {EAS_F16, EAS_BF16};
    for (int d = 0; d < 2; d++)
        for (int n = 1; n <= N; n++)
            for (int red = COMM_RED_sum; red <= COMM_RED_min; red++) {
                reduce_blocks((comm_reduction)red, dts[d], n, (const void *const *)in, 1,
                              (void *const[]){out}, ALL);
                for (int i = 0; i < ALL; i++) {
                    double v[N];
                    for (int k = 0; k < n; k++)
                        v[k] = half_value(dts[d], in[k][i]);
                    double want = tree(0, n, v, (comm_reduction)red, true), got = half_value(dts[d], out[i]);
                    if (want != want ? got == got : to_half(dts[d], want) != out[i])
                        fail_msg("%s of %d %s at %d: %a, not %a", comm_reduction_name((comm_reduction)red), n,
                                 eas_dtype_name(dts[d]), i, got, want);
                }
            }
    for (int k = 0; k < N; k++)
        free(in[k]);
    free(out);
}

static void all_dtypes_reduce(void **state)
{
    (void)state;
    run_well(2, dtypes_body, NULL);
    run_well(5, dtypes_body, NULL);
}

static void integers_wrap(void **state)
{
    (void)state;
    int64_t a[] = {INT64_MAX, -3}, b[] = {1, 5}, out[2];
    const void *in[] = {a, b};
    reduce_blocks(COMM_RED_sum, EAS_I64, 2, in, 1, (void *const[]){out}, 2);
    assert_true(out[0] == INT64_MIN && out[1] == 2);
    uint16_t u[] = {65535, 2}, v[] = {65535, 40000}, w[2];
    const void *in16[] = {u, v};
    reduce_blocks(COMM_RED_prod, EAS_U16, 2, in16, 1, (void *const[]){w}, 2);
    assert_true(w[0] == 1 && w[1] == (uint16_t)80000);
}

static eas_status bytes_body(comm *c, job *j)
{
    uint64_t *total = j->arg;
    float x[4096], y[4096 * 4];
    comm_call call = {.op = COMM_all_reduce, .dtype = EAS_F32, .count = 1001, .send = x, .recv = y};
    memset(x, 0, sizeof x);
    TRY(comm_run(c, &call));
    call.op = COMM_all_gather;
    TRY(comm_run(c, &call));
    call.op = COMM_broadcast;
    TRY(comm_run(c, &call));
    for (int i = 0; i < COMM_NOPS; i++)
        __atomic_fetch_add(&total[i], c->stats.bytes[i], __ATOMIC_RELAXED);
    return EAS_OK;
}

static void bytes_are_the_textbook_s(void **state)
{
    (void)state;
    uint64_t total[COMM_NOPS] = {0};
    run_well(4, bytes_body, total);
    assert_int_equal(total[COMM_all_reduce], 2 * 3 * 1001 * 4);
    assert_int_equal(total[COMM_all_gather], 4 * 3 * 1001 * 4);
    assert_int_equal(total[COMM_broadcast], 3 * 1001 * 4);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Rank 1 starts the call and computes for a while before it waits. */
static eas_status computing_body(comm *c, job *j)
{
    enum { N = 9001 };
    static float x[4][N], y[4][N];
    comm_request *r;
    double *took = j->arg, begin = now();
    for (int i = 0; i < N; i++)
        x[c->rank][i] = (float)(i + c->rank);
    TRY(comm_start(
        c,
        &(comm_call){
            .op = COMM_all_reduce, .dtype = EAS_F32, .count = N, .send = x[c->rank], .recv = y[c->rank]},
        &r));
    if (c->rank == 1)
        usleep(1500000);
    TRY(comm_wait(c, r));
    for (int i = 0; i < N; i++)
        if (y[c->rank][i] != (float)(4 * i + 6))
            return base_fail(EAS_ERR_RUNTIME, "element %d is %g", i, (double)y[c->rank][i]);
    took[c->rank] = now() - begin;
    return EAS_OK;
}

static void nobody_waits_for_one_that_computes(void **state)
{
    (void)state;
    double took[4];
    run_well(4, computing_body, took);
    assert_true(took[1] >= 1.5);
    for (int i = 0; i < 4; i++)
        assert_true(i == 1 || took[i] < 1.2);
}

/* ---- failures ---- */

enum { RETURNS, RAISES, ORDER, SHAPE, DTYPE, LINE, SILENT, PERMUTES };

static eas_status sum_at(comm *c, eas_dtype dt, int64_t count, const char *site, comm_op op)
{
    char x[80000] = {0}, y[80000];
    return comm_run(c, &(comm_call){.op = op,
                                    .dtype = dt,
                                    .count = count,
                                    .send = x,
                                    .recv = y,
                                    .site = site,
                                    .to = c->rank ? -1 : 1,
                                    .from = c->rank == 1 ? 0 : -1});
}

static eas_status failing_body(comm *c, job *j)
{
    int kind = *(int *)j->arg;
    bool odd = c->rank == 1;
    TRY(sum_at(c, EAS_F32, 7, "train.py:10", COMM_all_reduce));
    if (odd && kind == RETURNS)
        return EAS_OK;
    if (odd && kind == RAISES) {
        comm_abort(c, "ZeroDivisionError at train.py:11");
        return base_fail(EAS_ERR_RUNTIME, "ZeroDivisionError");
    }
    if (odd && kind == ORDER)
        TRY(sum_at(c, EAS_F32, 9000, "train.py:13", COMM_broadcast));
    if (odd && kind == SILENT)
        usleep(1500000);
    if (kind == PERMUTES)
        return comm_run(
            c,
            &(comm_call){.op = COMM_ppermute, .dtype = EAS_F32, .to = 0, .from = -1, .site = "train.py:12"});
    return sum_at(c, odd && kind == DTYPE ? EAS_I32 : EAS_F32, odd && kind == SHAPE ? 9001 : 9000,
                  odd && kind == LINE ? "train.py:99" : "train.py:12", COMM_all_reduce);
}

/* All ranks but (perhaps) rank 1 fail, soon, and say what is wanted. */
static void fails(int kind, const char *says)
{
    job *j = calloc(1, sizeof *j);
    double begin = now();
    run(j, 4, failing_body, &kind);
    assert_true(now() - begin < 20);
    for (int i = 0; i < 4; i++) {
        if (i == 1 && kind == RETURNS)
            continue;
        assert_true(j->st[i] == EAS_ERR_RUNTIME);
        if (i == 1 && kind == RAISES)
            continue;
        if (!strstr(j->message[i], says) || !strstr(j->message[i], "rank 1") ||
            !strstr(j->message[i], "train.py:1") || !strstr(j->message[i], "  rank 3: "))
            fail_msg("rank %d says: %s", i, j->message[i]);
    }
    free(j);
}

static void an_early_return_is_found(void **state)
{
    (void)state, fails(RETURNS, "rank 1 has returned without taking part in all_reduce #1");
}
static void an_error_reaches_the_others(void **state)
{
    (void)state, fails(RAISES, "rank 1 failed: ZeroDivisionError at train.py:11");
}
static void another_order_is_found(void **state)
{
    (void)state, fails(ORDER, "broadcast #1 of f32[9000] over 4 ranks at train.py:13");
}
static void another_shape_is_found(void **state)
{
    (void)state, fails(SHAPE, "all_reduce #1 (sum) of f32[9001]");
}
static void another_dtype_is_found(void **state)
{
    (void)state, fails(DTYPE, "all_reduce #1 (sum) of i32[9000]");
}
static void permutations_are_compared(void **state) { (void)state, fails(PERMUTES, "the same permutation"); }

static void another_line_is_found_when_debugging(void **state)
{
    (void)state;
    setenv("EAS_DIST_DEBUG", "1", 1);
    fails(LINE, "train.py:99");
    unsetenv("EAS_DIST_DEBUG");
}

static void silence_is_an_error(void **state)
{
    (void)state;
    setenv("EAS_DIST_TIMEOUT", "0.5", 1);
    fails(SILENT, "EAS_DIST_TIMEOUT");
    unsetenv("EAS_DIST_TIMEOUT");
}

static void mistakes_are_refused(void **state)
{
    (void)state;
    comm *c;
    assert_int_equal(comm_self(&c), EAS_OK);
    comm_group *g;
    float x[4] = {1, 2, 3, 4}, y[4];
    assert_int_equal(comm_group_get(c, 1, (int[]){1}, &g), EAS_ERR_VALUE);
    assert_int_equal(comm_group_get(c, 2, (int[]){0, 0}, &g), EAS_ERR_VALUE);
    assert_int_equal(
        comm_run(c, &(comm_call){.op = COMM_all_reduce, .dtype = EAS_BOOL, .count = 4, .send = x, .recv = y}),
        EAS_ERR_TYPE);
    assert_int_equal(comm_run(c, &(comm_call){.op = COMM_all_reduce,
                                              .red = COMM_RED_and,
                                              .dtype = EAS_F32,
                                              .count = 4,
                                              .send = x,
                                              .recv = y}),
                     EAS_ERR_TYPE);
    assert_int_equal(
        comm_run(c, &(comm_call){.op = COMM_all_reduce, .dtype = EAS_F32, .count = 4, .recv = y}),
        EAS_ERR_VALUE);
    assert_int_equal(
        comm_run(c,
                 &(comm_call){
                     .op = COMM_broadcast, .dtype = EAS_F32, .count = 4, .send = x, .recv = y, .root = 1}),
        EAS_ERR_VALUE);
    assert_int_equal(
        comm_run(
            c,
            &(comm_call){.op = COMM_ppermute, .dtype = EAS_F32, .count = 4, .send = x, .recv = y, .from = 3}),
        EAS_ERR_VALUE);
    assert_int_equal(
        comm_run(c, &(comm_call){.op = COMM_all_reduce, .dtype = EAS_F32, .count = 4, .send = x, .recv = y}),
        EAS_OK);
    assert_memory_equal(x, y, sizeof x);
    comm_close(c);
    comm *ends[1];
    assert_int_equal(comm_threads_new(0, ends), EAS_ERR_VALUE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_moves),
        cmocka_unit_test(groups_are_independent),
        cmocka_unit_test(halves_round_once),
        cmocka_unit_test(all_dtypes_reduce),
        cmocka_unit_test(integers_wrap),
        cmocka_unit_test(bytes_are_the_textbook_s),
        cmocka_unit_test(an_early_return_is_found),
        cmocka_unit_test(an_error_reaches_the_others),
        cmocka_unit_test(another_order_is_found),
        cmocka_unit_test(another_shape_is_found),
        cmocka_unit_test(another_dtype_is_found),
        cmocka_unit_test(permutations_are_compared),
        cmocka_unit_test(another_line_is_found_when_debugging),
        cmocka_unit_test(nobody_waits_for_one_that_computes),
        cmocka_unit_test(silence_is_an_error),
        cmocka_unit_test(mistakes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
