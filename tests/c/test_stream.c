/* Streams, events, the pool and captures of the public interface, from several threads: under the sanitizers
 * too. */
#include "eas.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { N = 64 };

static void ok(eas_status st)
{
    if (st)
        fail_msg("%s: %s", eas_status_name(st), eas_error_message());
}

static eas_device *device(const char *name)
{
    eas_device *d;
    ok(eas_device_get(name, &d));
    return d;
}

/* y[i] = x[i + at] + by, one program of N lanes */
static eas_kernel *shift_kernel(void)
{
    eas_builder *b;
    eas_ir *ir;
    eas_kernel *k;
    ok(eas_builder_new("shift", 0, &b));
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32),
              at = eas_builder_param_scalar(b, "at", EAS_I64, 1),
              by = eas_builder_param_scalar(b, "by", EAS_F64, 1);
    eas_value i = eas_builder_arange(b, 0, N), from = eas_builder_apply(b, eas_op_find("add"), i, at, 0);
    eas_builder_store(b, y, i,
                      eas_builder_apply(b, eas_op_find("add"), eas_builder_load(b, x, from, 0, 0), by, 0), 0);
    ok(eas_builder_finish(b, &ir));
    eas_builder_free(b);
    ok(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    return k;
}

static eas_arg floats(float *p, int64_t n)
{
    return (eas_arg){.v.data = p, .count = n, .dtype = EAS_F32, .is_buffer = 1, .flags = EAS_ARG_HOST};
}

static eas_status shift(eas_kernel *k, eas_device *d, float *x, float *y, int64_t at, double by, eas_launch l)
{
    eas_arg args[4] = {
        floats(x, N), floats(y, N), {.v.i = at, .dtype = EAS_I64}, {.v.f = by, .dtype = EAS_F64}};
    l.size = sizeof l;
    l.has_grid = 1;
    l.grid[0] = l.grid[1] = l.grid[2] = 1;
    return eas_kernel_launch(k, d, args, 4, &l);
}

static void launches_run_in_order(void **state)
{
    eas_kernel *k = *state;
    eas_device *d = device("cpu");
    eas_stream *s;
    float x[N] = {0};
    ok(eas_stream_new(d, &s));
    for (int i = 0; i < 1000; i++)
        ok(shift(k, d, x, x, 0, 1, (eas_launch){.async = 1, .stream = s}));
    ok(eas_stream_synchronize(s, NULL));
    assert_true(eas_stream_is_idle(s));
    for (int i = 0; i < N; i++)
        assert_true(x[i] == 1000);
    eas_stream_release(s);
}

static void failures_come_once(void **state)
{
    eas_kernel *k = *state;
    eas_device *d = device("cpu");
    eas_stream *s;
    float x[N] = {0}, y[N];
    ok(eas_stream_new(d, &s));
    ok(shift(k, d, x, y, 5, 1, (eas_launch){.async = 1, .stream = s}));
    ok(shift(k, d, x, y, 0, 2, (eas_launch){.async = 1, .stream = s}));
    assert_int_equal(eas_stream_synchronize(s, NULL), EAS_ERR_INDEX);
    assert_non_null(strstr(eas_error_message(), "index 64 of \"x\""));
    ok(eas_stream_synchronize(s, NULL));
    assert_true(y[0] == 2);
    ok(shift(k, d, x, y, 5, 1, (eas_launch){.async = 1, .stream = s}));
    assert_int_equal(shift(k, d, x, y, 0, 3, (eas_launch){.stream = s}), EAS_ERR_INDEX);
    ok(shift(k, d, x, y, 0, 3, (eas_launch){.stream = s}));
    eas_stream_release(s);
}

static void events_order_streams(void **state)
{
    eas_kernel *k = *state;
    eas_device *d = device("cpu");
    eas_stream *one, *two;
    eas_event *e, *f;
    float x[N] = {0}, y[N] = {0};
    double seconds;
    ok(eas_stream_new(d, &one));
    ok(eas_stream_new(d, &two));
    ok(eas_event_new(&e));
    ok(eas_event_new(&f));
    assert_true(eas_event_is_reached(e));
    for (int i = 1; i <= 50; i++) {
        for (int j = 0; j < 20; j++)
            ok(shift(k, d, x, x, 0, 1, (eas_launch){.async = 1, .stream = one}));
        ok(eas_event_record(e, one));
        ok(eas_event_wait(e, two, NULL));
        ok(shift(k, d, x, y, 0, 0, (eas_launch){.async = 1, .stream = two}));
        ok(eas_event_record(f, two));
        ok(eas_event_wait(f, one, NULL));
        ok(eas_event_synchronize(f, NULL));
        assert_true(y[N - 1] == 20 * i);
    }
    ok(eas_event_elapsed(e, f, &seconds, NULL));
    assert_true(seconds >= 0 && seconds < 60);
    eas_event_release(e);
    eas_event_release(f);
    eas_stream_release(one);
    eas_stream_release(two);
}

static int held;
static void retain(void *o) { held += *(int *)o; }
static void release(void *o) { held -= *(int *)o; }

static void objects_are_held_while_pending(void **state)
{
    eas_kernel *k = *state;
    eas_device *d = device("cpu");
    eas_stream *s;
    float x[N] = {0};
    int one = 1;
    void *objects[12];
    for (int i = 0; i < 12; i++)
        objects[i] = &one;
    ok(eas_stream_new(d, &s));
    for (int i = 0; i < 600; i++)
        ok(shift(k, d, x, x, 0, 1,
                 (eas_launch){.async = 1,
                              .stream = s,
                              .hold = objects,
                              .nhold = i % 13,
                              .retain = retain,
                              .release = release}));
    ok(eas_stream_synchronize(s, NULL));
    assert_int_equal(held, 0);
    assert_true(x[0] == 600);
    eas_stream_release(s);
}

typedef struct shared {
    eas_kernel *k;
    eas_stream *s;
    eas_status st;
} shared;

static void *pound(void *ctx)
{
    shared *w = ctx;
    float x[N] = {0};
    eas_device *d = device("cpu");
    for (int i = 0; i < 300 && !w->st; i++) {
        w->st = shift(w->k, d, x, x, 0, 1, (eas_launch){.async = 1, .stream = w->s});
        if (i % 50 == 49 && !w->st)
            w->st = eas_stream_synchronize(w->s, NULL);
    }
    if (!w->st && x[N - 1] != 300)
        w->st = EAS_ERR_INTERNAL;
    return NULL;
}

static void threads_share_a_stream(void **state)
{
    eas_stream *s;
    pthread_t t[4];
    shared w[4];
    ok(eas_stream_new(device("cpu"), &s));
    for (int i = 0; i < 4; i++) {
        w[i] = (shared){*state, s, EAS_OK};
        assert_int_equal(pthread_create(&t[i], NULL, pound, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        ok(w[i].st);
    }
    eas_stream_release(s);
}

static void *churn(void *ctx)
{
    eas_device *d = ctx;
    eas_buffer *b[8] = {NULL};
    for (unsigned i = 0, r = 1; i < 4000; i++) {
        r = r * 1664525u + 1013904223u;
        eas_buffer **at = &b[r >> 29];
        size_t n = r >> 12 & 0xffff;
        eas_buffer_release(*at);
        *at = NULL;
        if (eas_buffer_new(d, n, at))
            return "out of memory";
        memset(eas_buffer_host(*at), (int)r, n);
    }
    for (int i = 0; i < 8; i++)
        eas_buffer_release(b[i]);
    return NULL;
}

static void the_pool_is_for_every_thread(void **state)
{
    (void)state;
    eas_device *d = device("cpu");
    pthread_t t[3];
    void *bad;
    eas_memory before = eas_memory_stats(d);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&t[i], NULL, churn, d), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], &bad);
        assert_null(bad);
    }
    eas_memory after = eas_memory_stats(d);
    assert_int_equal(after.live_bytes, before.live_bytes);
    assert_int_equal(after.live_count, before.live_count);
    assert_true(after.hits > before.hits && after.cached_bytes <= after.limit);
    eas_device_empty_cache(NULL);
    assert_int_equal(eas_memory_stats(d).cached_bytes, 0);
    eas_buffer *b;
    assert_int_equal(eas_buffer_new(d, SIZE_MAX / 2, &b), EAS_ERR_MEMORY);
    assert_int_equal(eas_buffer_new(d, (size_t)1 << 60, &b), EAS_ERR_MEMORY);
}

static void captures_replay(void **state)
{
    eas_kernel *k = *state;
    float x[N] = {0}, y[N] = {0}, z[N] = {0};
    static const char *const names[] = {"cpu", "ref"};
    for (int n = 0; n < 2; n++) {
        eas_device *d = device(names[n]);
        eas_capture *g;
        memset(x, 0, sizeof x);
        ok(eas_capture_begin(&g));
        ok(eas_capture_label(g, "start", x));
        for (int i = 0; i < 10; i++)
            ok(shift(k, d, i ? y : x, y, 0, 1, (eas_launch){0}));
        ok(eas_device_copy_on(d, EAS_COPY_WITHIN, z, y, sizeof z, NULL));
        assert_int_equal(shift(k, d, NULL, y, 0, 1, (eas_launch){0}), EAS_ERR_VALUE);
        ok(eas_capture_end(g, NULL));
        assert_int_equal(eas_capture_count(g), 11);
        ok(eas_capture_replay(g, NULL));
        assert_true(z[0] == 10);
        ok(eas_capture_replay(g, &(eas_launch){.async = 1}));
        eas_arg other = floats((float[N]){[0] = 5}, N), wrong = {.v.i = 1, .dtype = EAS_I64};
        ok(eas_capture_bind(g, "start", &other, NULL));
        assert_int_equal(eas_capture_bind(g, "start", &wrong, NULL), EAS_ERR_TYPE);
        assert_int_equal(eas_capture_bind(g, "nobody", &other, NULL), EAS_ERR_VALUE);
        ok(eas_capture_replay(g, NULL));
        assert_true(z[0] == 15 && z[1] == 10);
        eas_capture_release(g);
    }
}

static void an_aborted_capture_is_gone(void **state)
{
    eas_kernel *k = *state;
    eas_device *d = device("cpu");
    eas_capture *g, *h;
    float x[N] = {0};
    ok(eas_capture_begin(&g));
    assert_int_equal(eas_capture_begin(&h), EAS_ERR_RUNTIME);
    ok(shift(k, d, x, x, 0, 1, (eas_launch){0}));
    eas_capture_abort(g);
    assert_int_equal(eas_capture_replay(g, NULL), EAS_ERR_RUNTIME);
    eas_capture_release(g);
    ok(shift(k, d, x, x, 0, 1, (eas_launch){0}));
    assert_true(x[0] == 1);
}

static void a_child_has_streams_of_its_own(void **state)
{
    if (getenv("EAS_EMULATED")) /* qemu-user fails when a process with threads forks */
        skip();
    eas_kernel *k = *state;
    eas_device *d = device("cpu");
    float x[N] = {0};
    ok(shift(k, d, x, x, 0, 1, (eas_launch){.async = 1}));
    pid_t pid = fork();
    if (!pid) {
        float y[N] = {0};
        int good = !shift(k, d, y, y, 0, 1, (eas_launch){.async = 1}) &&
                   !eas_device_synchronize(NULL, NULL) && y[0] == 1;
        _exit(good ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    ok(eas_device_synchronize(d, NULL));
    assert_true(x[0] == 1);
}

static int make(void **state)
{
    *state = shift_kernel();
    return 0;
}
static int drop(void **state)
{
    eas_kernel_release(*state);
    return eas_device_synchronize(NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_run_in_order),
        cmocka_unit_test(failures_come_once),
        cmocka_unit_test(events_order_streams),
        cmocka_unit_test(objects_are_held_while_pending),
        cmocka_unit_test(threads_share_a_stream),
        cmocka_unit_test(the_pool_is_for_every_thread),
        cmocka_unit_test(captures_replay),
        cmocka_unit_test(an_aborted_capture_is_gone),
        cmocka_unit_test(a_child_has_streams_of_its_own),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
