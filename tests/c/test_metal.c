/* The Metal device through the stand-in of tests/metal: memory, copies, launches, tickets, and what goes
 * wrong. */
#include "../../src/dev/dev.h"
#include "../metal/msl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static eas_device *mps;
static dev_queue *queue;
static const char *(*reports)(void);
static void (*clear)(void);
static void (*fault)(const char *);
static long (*live)(const char *);
static void (*indirect)(long *encoded, long *executed);

static void ok(eas_status st)
{
    if (st)
        fail_msg("%s", eas_error_message());
}

static void fails(eas_status st, eas_status want, const char *part)
{
    assert_int_equal(st, want);
    if (!strstr(eas_error_message(), part))
        fail_msg("\"%s\" does not say \"%s\"", eas_error_message(), part);
}

static void *address(void *mem, size_t offset) { return (char *)mem + offset; }

static void *new_memory(size_t n)
{
    void *mem;
    ok(mps->alloc(mps, n, &mem));
    return mem;
}

static void put(void *mem, const void *from, size_t n) { ok(mps->copy(mps, queue, DEV_TO, mem, from, n)); }
static void get(void *to, void *mem, size_t n)
{
    ok(mps->copy(mps, queue, DEV_FROM, to, mem, n));
    ok(mps->wait(mps, queue, UINT64_MAX));
}

static int nothing_to_report(void **state)
{
    (void)state;
    int bad = *reports() != 0;
    clear();
    return bad;
}

/* ---- kernels, from text ---- */

static const char add_ir[] = "file 1 \"mine.py\"\n"
                             "kernel add(buf<f32> a, buf<f32> b, buf<f32> c, i64 N) {\n"
                             "  %5 = program_id 0 : i64 @1:3\n"
                             "  %6 = const 64 : i64 @1:3\n"
                             "  %7 = mul %5, %6 : i64 @1:3\n"
                             "  %8 = broadcast %7 : i64[64] @1:3\n"
                             "  %9 = arange 0 : i64[64] @1:3\n"
                             "  %10 = add %8, %9 : i64[64] @1:3\n"
                             "  %11 = broadcast %4 : i64[64] @1:4\n"
                             "  %12 = lt %10, %11 : bool[64] @1:4\n"
                             "  %13 = const 0.0 : f32 @1:5\n"
                             "  %14 = broadcast %13 : f32[64] @1:5\n"
                             "  %15 = load %1, %10, %12, %14 : f32[64] @1:5\n"
                             "  %16 = load %2, %10, %12, %14 : f32[64] @1:6\n"
                             "  %17 = add %15, %16 : f32[64] @1:7\n"
                             "  store %3, %10, %17, %12 @1:8\n"
                             "}\n";

/* The group's sum, by halves in threadgroup memory; thread 0 writes it. */
static const char sum_ir[] = "kernel sum(buf<f32> a, buf<f32> c) {\n"
                             "  %3 = thread_id 256 : i64\n"
                             "  %4 = program_id 0 : i64\n"
                             "  %5 = const 256 : i64\n"
                             "  %6 = mul %4, %5 : i64\n"
                             "  %7 = add %6, %3 : i64\n"
                             "  %8 = load %1, %7 : f32\n"
                             "  %9 = alloc_tg : tg<f32>[256]\n"
                             "  store %9, %3, %8\n"
                             "  barrier\n"
                             "  %10 = const 1 : i64\n"
                             "  %11 = const 0 : i64\n"
                             "  %12 = const 8 : i64\n"
                             "  %13 = const 128 : i64\n"
                             "  %14, %15 = loop %11, %12, %10, %13 : i64, i64\n"
                             "    %16 = lt %3, %15 : bool\n"
                             "    %17 = const 0.0 : f32\n"
                             "    %18 = add %3, %15 : i64\n"
                             "    %19 = load %9, %18, %16, %17 : f32\n"
                             "    %20 = load %9, %3, %16, %17 : f32\n"
                             "    %21 = add %20, %19 : f32\n"
                             "    store %9, %3, %21, %16\n"
                             "    barrier\n"
                             "    %22 = const 2 : i64\n"
                             "    %23 = floordiv %15, %22 : i64\n"
                             "  %24 = endloop %23 : i64\n"
                             "  %25 = eq %3, %11 : bool\n"
                             "  %26 = load %9, %11 : f32\n"
                             "  store %2, %4, %26, %25\n"
                             "}\n";

static const char twice_ir[] = "kernel twice(buf<f32> a, buf<f32> c) {\n"
                               "  %3 = thread_id 256 : i64\n"
                               "  %4 = program_id 0 : i64\n"
                               "  %5 = const 256 : i64\n"
                               "  %6 = mul %4, %5 : i64\n"
                               "  %7 = add %6, %3 : i64\n"
                               "  %8 = load %1, %7 : f32\n"
                               "  %9 = add %8, %8 : f32\n"
                               "  store %2, %7, %9\n"
                               "}\n";

static eas_kernel *kernel_of(const char *text)
{
    eas_ir *ir;
    eas_kernel *k;
    ok(eas_ir_parse(text, strlen(text), &ir));
    ok(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    return k;
}

static eas_arg buffer(void *mem, int64_t count)
{
    return (eas_arg){.v.data = mem, .count = count, .dtype = EAS_F32, .is_buffer = 1};
}
static eas_arg integer(int64_t i) { return (eas_arg){.v.i = i, .dtype = EAS_I64}; }

/* c = a + b over n; 1000 elements lie behind each. */
static eas_status launch_add(eas_kernel *k, void *a, void *b, void *c, int64_t count, int64_t n)
{
    eas_arg args[] = {buffer(a, count), buffer(b, count), buffer(c, count), integer(n)};
    return eas_kernel_launch(k, mps, args, 4, NULL);
}

enum { N = 1000 };
typedef struct abc {
    float host[N];
    void *a, *b, *c;
} abc;

static abc *new_abc(void)
{
    abc *x = malloc(sizeof *x);
    for (int i = 0; i < N; i++)
        x->host[i] = (float)i;
    x->a = new_memory(sizeof x->host);
    x->b = new_memory(sizeof x->host);
    x->c = new_memory(sizeof x->host);
    put(x->a, x->host, sizeof x->host);
    put(x->b, x->host, sizeof x->host);
    return x;
}

static void free_abc(abc *x)
{
    mps->dealloc(mps, x->a, sizeof x->host);
    mps->dealloc(mps, x->b, sizeof x->host);
    mps->dealloc(mps, x->c, sizeof x->host);
    free(x);
}

static void check_sum(abc *x)
{
    get(x->host, x->c, sizeof x->host);
    for (int i = 0; i < N; i++)
        assert_true(x->host[i] == 2 * (float)i);
}

/* ---- tests ---- */

static void the_device_says_what_it_is(void **state)
{
    (void)state;
    eas_device *d;
    dev_limits l = mps->limits(mps);
    ok(eas_device_get("metal", &d));
    assert_ptr_equal(d, mps);
    assert_non_null(strstr(eas_device_describe(mps), "stand-in"));
    assert_int_equal(l.threads, MSL_MAX_THREADS);
    assert_int_equal(l.tg_bytes, MSL_MAX_TG);
    assert_int_equal(l.simd, MSL_SIMD);
    assert_int_equal(l.buffers, MSL_MAX_BUFFERS);
    assert_true(l.unified && l.f16 && !l.f64 && l.max_alloc > 1 << 20);
}

static void bytes_go_there_and_back(void **state)
{
    (void)state;
    char data[300], back[300];
    char *mem = new_memory(sizeof data), *other = new_memory(sizeof data);
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7);
    put(mem, data, sizeof data);
    put(address(mem, 10), "hello", 5);
    get(back, mem, sizeof back);
    memcpy(data + 10, "hello", 5);
    assert_memory_equal(back, data, sizeof data);
    ok(mps->copy(mps, queue, DEV_WITHIN, other, address(mem, 100), 200)); /* to another */
    ok(mps->copy(mps, queue, DEV_WITHIN, address(mem, 1), mem, 299));     /* onto itself */
    get(back, other, 200);
    assert_memory_equal(back, data + 100, 200);
    get(back, mem, 300);
    assert_memory_equal(back + 1, data, 299);
    ok(mps->copy(mps, queue, DEV_TO, address(mem, 300), data, 0));
    fails(mps->copy(mps, queue, DEV_TO, address(mem, 299), data, 2), EAS_ERR_VALUE, "not in its memory");
    mps->dealloc(mps, mem, sizeof data);
    fails(mps->copy(mps, queue, DEV_FROM, back, mem, 1), EAS_ERR_VALUE, "not in its memory");
    mps->dealloc(mps, other, sizeof data);
    mps->dealloc(mps, new_memory(0), 0);
}

static void kernels_run(void **state)
{
    (void)state;
    abc *x = new_abc();
    eas_kernel *k = kernel_of(add_ir);
    ok(launch_add(k, x->a, x->b, x->c, N, N));
    check_sum(x);
    eas_kernel_release(k);
    free_abc(x);
}

static void groups_share_memory_and_meet(void **state)
{
    (void)state;
    enum { GROUPS = 50 };
    float in[GROUPS * 256], out[GROUPS];
    void *a = new_memory(sizeof in), *c = new_memory(sizeof out);
    eas_kernel *k = kernel_of(sum_ir);
    eas_arg args[] = {buffer(a, GROUPS * 256), buffer(c, GROUPS)};
    eas_launch o = {.size = sizeof o, .has_grid = 1, .grid = {GROUPS, 1, 1}};
    for (int i = 0; i < GROUPS * 256; i++)
        in[i] = (float)(i % 256 + i / 256);
    put(a, in, sizeof in);
    ok(eas_kernel_launch(k, mps, args, 2, &o));
    get(out, c, sizeof out);
    for (int g = 0; g < GROUPS; g++)
        assert_true(out[g] == 255 * 128 + 256 * (float)g);
    eas_kernel_release(k);
    mps->dealloc(mps, a, sizeof in);
    mps->dealloc(mps, c, sizeof out);
}

static void views_and_overlap(void **state)
{
    (void)state;
    abc *x = new_abc();
    eas_kernel *k = kernel_of(add_ir);
    ok(launch_add(k, x->a, x->a, x->a, N, N)); /* in place */
    ok(launch_add(k, address(x->a, 400), address(x->a, 400), address(x->c, 400), N - 100, N - 100));
    get(x->host, x->c, sizeof x->host);
    for (int i = 100; i < N; i++)
        assert_true(x->host[i] == 4 * (float)i);
    ok(launch_add(k, address(x->a, 4 * N), x->a, x->a, 0, 0)); /* nothing of it */
    eas_kernel_release(k);
    free_abc(x);
}

static void a_bad_index_is_an_error_at_the_wait(void **state)
{
    (void)state;
    abc *x = new_abc();
    eas_kernel *k = kernel_of(add_ir);
    fails(launch_add(k, x->a, x->b, x->c, N - 1, N), EAS_ERR_INDEX, "mine.py:5");
    assert_non_null(strstr(eas_error_message(), "999"));
    ok(launch_add(k, x->a, x->b, x->c, N, N));
    check_sum(x);
    eas_kernel_release(k);
    free_abc(x);
}

/* Thirty-three scalars share a structure. */
static void many_scalars_fit(void **state)
{
    (void)state;
    char text[8192];
    int n = snprintf(text, sizeof text, "kernel many(buf<f32> c, bool on, i64 N");
    enum { SCALARS = 33 };
    for (int i = 0; i < SCALARS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, ", f32 s%d", i);
    int v = 4 + SCALARS;
    n += snprintf(text + n, sizeof text - (size_t)n, ") {\n");
    for (int i = 0; i < SCALARS - 1; i++, v++)
        n += snprintf(text + n, sizeof text - (size_t)n, "  %%%d = add %%%d, %%%d : f32\n", v, i ? v - 1 : 4,
                      5 + i);
    n += snprintf(text + n, sizeof text - (size_t)n,
                  "  %%%d = program_id 0 : i64\n  store %%1, %%%d, %%%d, %%2\n}\n", v, v, v - 1);
    eas_kernel *k = kernel_of(text);
    eas_arg args[3 + SCALARS];
    void *c = new_memory(4);
    float got = 0, zero = 0;
    put(c, &zero, 4);
    args[0] = buffer(c, 1);
    args[1] = (eas_arg){.v.i = 1, .dtype = EAS_BOOL};
    args[2] = integer(1);
    for (int i = 0; i < SCALARS; i++)
        args[3 + i] = (eas_arg){.v.f = i + 1, .dtype = EAS_F32};
    ok(eas_kernel_launch(k, mps, args, 3 + SCALARS, NULL));
    get(&got, c, 4);
    assert_true(got == SCALARS * (SCALARS + 1) / 2);
    eas_capture *g;
    ok(eas_capture_begin(&g));
    ok(eas_kernel_launch(k, mps, args, 3 + SCALARS, NULL));
    ok(eas_capture_end(g, NULL));
    put(c, &zero, 4);
    ok(eas_capture_replay(g, NULL));
    eas_capture_release(g);
    get(&got, c, 4);
    assert_true(got == SCALARS * (SCALARS + 1) / 2);
    eas_kernel_release(k);
    mps->dealloc(mps, c, 4);
}

static void too_many_buffers_are_refused(void **state)
{
    (void)state;
    char text[8192];
    enum { BUFFERS = 32 };
    eas_arg args[BUFFERS + 1];
    void *c = new_memory(4);
    int n = snprintf(text, sizeof text, "kernel wide(i64 N");
    args[0] = integer(1);
    for (int i = 0; i < BUFFERS; i++) {
        n += snprintf(text + n, sizeof text - (size_t)n, ", buf<f32> b%d", i);
        args[i + 1] = buffer(c, 1);
    }
    n += snprintf(text + n, sizeof text - (size_t)n,
                  ") {\n  %%%d = program_id 0 : i64\n  %%%d = load %%2, %%%d : f32\n", BUFFERS + 2,
                  BUFFERS + 3, BUFFERS + 2);
    for (int i = 1; i < BUFFERS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "  store %%%d, %%%d, %%%d\n", i + 2, BUFFERS + 2,
                      BUFFERS + 3);
    snprintf(text + n, sizeof text - (size_t)n, "}\n");
    eas_kernel *k = kernel_of(text);
    fails(eas_kernel_launch(k, mps, args, BUFFERS + 1, NULL), EAS_ERR_VALUE, "32 buffer arguments");
    eas_kernel_release(k);
    mps->dealloc(mps, c, 4);
}

/* ---- graphs ---- */

static void check_indirect(long encoded, long executed)
{
    static long before[2];
    long now[2];
    indirect(&now[0], &now[1]);
    assert_int_equal(now[0] - before[0], encoded);
    assert_int_equal(now[1] - before[1], executed);
    memcpy(before, now, sizeof now);
}

/* SPMD and thread mode, a copy in between, arguments and a scalar rebound: what a replay runs is encoded
 * once, and anew only where it changed. */
static void graphs_are_encoded_once(void **state)
{
    (void)state;
    abc *x = new_abc();
    eas_kernel *add = kernel_of(add_ir), *twice = kernel_of(twice_ir);
    void *last = new_memory(768 * 4), *other = new_memory(sizeof x->host);
    float three[N], got[3];
    eas_capture *g;
    for (int i = 0; i < N; i++)
        three[i] = 3;
    put(other, three, sizeof three);
    check_indirect(1, 1); /* so far, by many_scalars_fit */
    ok(eas_capture_begin(&g));
    ok(eas_capture_label(g, "b", x->b));
    ok(launch_add(add, x->a, x->b, x->c, N, N));
    ok(launch_add(add, x->c, x->b, x->c, N, N));
    ok(eas_device_copy_on(mps, EAS_COPY_WITHIN, x->a, x->c, sizeof x->host, NULL));
    eas_arg args[] = {buffer(x->a, 768), buffer(last, 768)};
    ok(eas_kernel_launch(twice, mps, args, 2,
                         &(eas_launch){.size = sizeof(eas_launch), .has_grid = 1, .grid = {3, 1, 1}}));
    ok(eas_capture_end(g, NULL));
    check_indirect(3, 0);
    ok(eas_capture_replay(g, NULL));
    check_indirect(0, 3);
    get(got, last, sizeof got);
    assert_true(got[1] == 6 && got[2] == 12);
    eas_arg b = buffer(other, N), n = integer(256);
    ok(eas_capture_bind(g, "b", &b, NULL));
    check_indirect(2, 0);
    ok(eas_capture_bind(g, "b", &b, NULL));
    ok(eas_capture_bind(g, "N", &n, NULL));
    check_indirect(2, 0);
    put(x->a, three, sizeof three);
    for (int i = 0; i < 2; i++)
        ok(eas_capture_replay(g, &(eas_launch){.size = sizeof(eas_launch), .async = 1}));
    ok(eas_device_synchronize(mps, NULL));
    check_indirect(0, 6);
    get(got, last, sizeof got);
    assert_true(got[0] == 30);
    eas_capture_release(g);
    eas_kernel_release(add);
    eas_kernel_release(twice);
    mps->dealloc(mps, last, 768 * 4);
    mps->dealloc(mps, other, sizeof x->host);
    free_abc(x);
}

/* What there is no memory for is refused, once; what could not be encoded leaves nothing. */
static void a_graph_that_cannot_be_encoded(void **state)
{
    (void)state;
    abc *x = new_abc();
    eas_kernel *k = kernel_of(add_ir);
    static const char *const faults[] = {"memory", "indirect"};
    for (int i = 0; i < 3; i++) {
        eas_capture *g;
        ok(eas_capture_begin(&g));
        ok(launch_add(k, x->a, x->b, x->c, N, N));
        if (i < 2) {
            ok(eas_device_synchronize(mps, NULL));
            fault(faults[i]);
            fails(eas_capture_end(g, NULL), EAS_ERR_MEMORY, "no memory to encode the 1 launches");
            assert_int_equal(eas_capture_replay(g, NULL), EAS_ERR_RUNTIME);
        } else {
            ok(eas_capture_end(g, NULL));
            ok(eas_capture_replay(g, NULL));
        }
        eas_capture_release(g);
        assert_int_equal(live("indirect"), 0);
    }
    check_sum(x);
    eas_kernel_release(k);
    free_abc(x);
}

static void tickets_grow_and_are_reached(void **state)
{
    (void)state;
    abc *x = new_abc();
    uint64_t t[3];
    dev_queue *other;
    char back[sizeof x->host];
    ok(mps->queue_new(mps, &other));
    for (int i = 0; i < 3; i++) {
        put(x->c, x->host, sizeof x->host);
        ok(mps->mark(mps, queue, &t[i]));
    }
    assert_true(t[0] < t[1] && t[1] < t[2]);
    ok(mps->after(mps, other, queue, t[2]));
    ok(mps->copy(mps, other, DEV_FROM, back, x->c, sizeof back));
    ok(mps->wait(mps, other, UINT64_MAX));
    assert_memory_equal(back, x->host, sizeof back);
    ok(mps->wait(mps, queue, t[1]));
    assert_true(mps->reached(mps, queue, t[1]));
    ok(mps->wait(mps, queue, UINT64_MAX));
    assert_true(mps->reached(mps, queue, t[2]));
    assert_true(mps->time(mps, queue, t[0]) <= mps->time(mps, queue, t[2]));
    mps->queue_free(mps, other);
    free_abc(x);
}

static void shared_memory_is_the_hosts_too(void **state)
{
    (void)state;
    eas_buffer *b;
    char back[64];
    ok(eas_buffer_new_shared(mps, 64, &b));
    memset(eas_buffer_host(b), 7, 64);
    get(back, address(eas_buffer_address(b), 1), 63);
    assert_int_equal(back[62], 7);
    put(eas_buffer_address(b), "hello", 5);
    ok(mps->wait(mps, queue, UINT64_MAX));
    assert_memory_equal(eas_buffer_host(b), "hello", 5);
    eas_buffer_release(b);
}

static void count_call(void *ctx) { ++*(int *)ctx; }

static void buffers_of_others_have_one_address(void **state)
{
    (void)state;
    long before = live("buffer");
    int calls = 0;
    size_t offset;
    eas_buffer *x, *y;
    void *mem = new_memory(100), *handle = eas_device_handle(mps, address(mem, 40), &offset);
    char back[5];
    assert_non_null(handle);
    assert_int_equal(offset, 40);
    put(address(mem, 40), "hello", 5);
    ok(eas_buffer_adopt(mps, handle, count_call, &calls, &x));
    ok(eas_buffer_adopt(mps, handle, count_call, &calls, &y));
    assert_ptr_equal(eas_buffer_address(x), mem);
    assert_ptr_equal(eas_buffer_address(y), mem);
    mps->dealloc(mps, mem, 100);
    get(back, address(eas_buffer_address(y), offset), 5);
    assert_memory_equal(back, "hello", 5);
    eas_buffer_release(x);
    assert_int_equal(calls, 1);
    eas_buffer_release(y);
    assert_int_equal(calls, 2);
    for (int i = 0; i < 200 && live("buffer") != before; i++)
        usleep(10000); /* staging goes on the queue's thread */
    assert_int_equal(live("buffer"), before);
    fails(eas_buffer_adopt(mps, NULL, NULL, NULL, &x), EAS_ERR_VALUE, "NULL");
}

static void what_comes_home_may_go_out_again(void **state)
{
    (void)state;
    abc *x = new_abc();
    float host[N] = {0}, back[N];
    ok(mps->copy(mps, queue, DEV_FROM, host, x->a, sizeof host));
    put(x->c, host, sizeof host);
    get(back, x->c, sizeof back);
    assert_memory_equal(back, x->host, sizeof back);
    free_abc(x);
}

/* ---- faults ---- */

static void out_of_memory_is_an_error(void **state)
{
    (void)state;
    void *mem;
    fault("memory");
    fails(mps->alloc(mps, 1000, &mem), EAS_ERR_MEMORY, "1000 bytes");
    ok(mps->alloc(mps, 1000, &mem));
    fails(mps->alloc(mps, (size_t)1 << 60, &mem), EAS_ERR_MEMORY, "at most");
}

static void a_compile_error_names_the_line(void **state)
{
    (void)state;
    abc *x = new_abc();
    eas_kernel *k = kernel_of(add_ir);
    fault("compile");
    fails(launch_add(k, x->a, x->b, x->c, N, N), EAS_ERR_RUNTIME, "injected");
    fault("pipeline");
    fails(launch_add(k, x->a, x->b, x->c, N, N), EAS_ERR_RUNTIME, "no pipeline");
    ok(launch_add(k, x->a, x->b, x->c, N, N));
    check_sum(x);
    eas_kernel_release(k);
    free_abc(x);
}

static void a_failed_command_buffer_is_an_error_once(void **state)
{
    static const char *const kinds[][2] = {
        {"command", "injected"}, {"timeout", "too long"}, {"pagefault", "memory that is not there"}};
    (void)state;
    abc *x = new_abc();
    eas_kernel *k = kernel_of(add_ir);
    ok(mps->wait(mps, queue, UINT64_MAX));
    for (int i = 0; i < 3; i++) {
        fault(kinds[i][0]);
        fails(launch_add(k, x->a, x->b, x->c, N, N), EAS_ERR_RUNTIME, kinds[i][1]);
        assert_non_null(strstr(eas_error_message(), "kernel add"));
        ok(mps->wait(mps, queue, UINT64_MAX));
        ok(launch_add(k, x->a, x->b, x->c, N, N));
    }
    check_sum(x);
    eas_kernel_release(k);
    free_abc(x);
}

/* A queue that waits for another's ticket goes on when the other fails. */
static void a_failure_does_not_hang_who_waits_for_it(void **state)
{
    (void)state;
    abc *x = new_abc();
    uint64_t t;
    char back[16];
    dev_queue *other;
    ok(mps->queue_new(mps, &other));
    ok(mps->wait(mps, queue, UINT64_MAX));
    fault("command");
    put(x->c, x->host, 16);
    ok(mps->mark(mps, queue, &t));
    ok(mps->after(mps, other, queue, t));
    ok(mps->copy(mps, other, DEV_FROM, back, x->a, 16));
    ok(mps->wait(mps, other, UINT64_MAX));
    assert_memory_equal(back, x->host, 16);
    fails(mps->wait(mps, queue, UINT64_MAX), EAS_ERR_RUNTIME, "a copy");
    mps->queue_free(mps, other);
    free_abc(x);
}

static int in_child(int (*fn)(void))
{
    int status;
    pid_t pid = fork();
    if (!pid) {
        alarm(20);
        _exit(fn());
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int use_it(void)
{
    void *mem;
    if (mps->alloc(mps, 10, &mem) != EAS_ERR_UNAVAILABLE || !strstr(eas_error_message(), "fork"))
        return 1;
    return mps->wait(mps, queue, UINT64_MAX) != EAS_ERR_UNAVAILABLE;
}

static void a_forked_child_is_told(void **state)
{
    (void)state;
    assert_int_equal(in_child(use_it), 0);
    mps->dealloc(mps, new_memory(10), 10);
}

static void nothing_is_left(void **state)
{
    (void)state;
    ok(mps->wait(mps, queue, UINT64_MAX));
    for (int i = 0; i < 200 && (live("command") || live("string")); i++)
        usleep(10000); /* the last references go on the queue's thread */
    assert_int_equal(live("command"), 0);
    assert_int_equal(live("compute"), 0);
    assert_int_equal(live("blit"), 0);
    assert_int_equal(live("library"), 1); /* the kernel that copies bytes stays */
    assert_int_equal(live("pipeline"), 1);
    assert_int_equal(live("options"), 0);
    assert_int_equal(live("string"), 0);
    assert_int_equal(live("error"), 0);
    assert_int_equal(live("queue"), 1);
}

static void find(void *lib, const char *name, void *out)
{
    void *p = dlsym(lib, name);
    memcpy(out, &p, sizeof p);
}

static int open_standin(void **state)
{
    (void)state;
    void *lib = dlopen(getenv("EAS_METAL_LIBRARY"), RTLD_NOW);
    if (!lib)
        return -1;
    find(lib, "eas_standin_reports", &reports);
    find(lib, "eas_standin_clear", &clear);
    find(lib, "eas_standin_fault", &fault);
    find(lib, "eas_standin_live", &live);
    find(lib, "eas_standin_indirect", &indirect);
    if (eas_device_get("mps", &mps))
        return -1;
    return (int)dev_default_queue(mps, &queue);
}

/* GNU's runtime keeps tables of its own to the end; objects are counted by the stand-in. */
const char *__lsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void)
{
    return "leak:objc_malloc\n";
}

#define TEST(f) cmocka_unit_test_teardown(f, nothing_to_report)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_device_says_what_it_is),
        TEST(bytes_go_there_and_back),
        TEST(kernels_run),
        TEST(groups_share_memory_and_meet),
        TEST(views_and_overlap),
        TEST(a_bad_index_is_an_error_at_the_wait),
        TEST(many_scalars_fit),
        TEST(too_many_buffers_are_refused),
        TEST(graphs_are_encoded_once),
        TEST(a_graph_that_cannot_be_encoded),
        TEST(tickets_grow_and_are_reached),
        TEST(shared_memory_is_the_hosts_too),
        TEST(buffers_of_others_have_one_address),
        TEST(what_comes_home_may_go_out_again),
        TEST(out_of_memory_is_an_error),
        TEST(a_compile_error_names_the_line),
        TEST(a_failed_command_buffer_is_an_error_once),
        TEST(a_failure_does_not_hang_who_waits_for_it),
        TEST(a_forked_child_is_told),
        TEST(nothing_is_left),
    };
    if (!getenv("EAS_METAL_LIBRARY")) {
        fprintf(stderr, "EAS_METAL_LIBRARY must name the stand-in\n");
        return 1;
    }
    return cmocka_run_group_tests_name("metal", tests, open_standin, NULL);
}
