/* test_api.c: the library as a C program sees it: nothing but eas.h. */
#include "eas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const devices[] = {"cpu", "ref"};

static eas_value op(eas_builder *b, const char *name, eas_value x, eas_value y)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, 0);
}

/* c = a + s*b over N elements */
static eas_kernel *axpy(eas_dtype dt, int64_t block)
{
    eas_builder *b;
    eas_ir *ir;
    eas_kernel *k = NULL;
    assert_int_equal(eas_builder_new("axpy", 0, &b), EAS_OK);
    eas_value x = eas_builder_param_buffer(b, "a", dt), y = eas_builder_param_buffer(b, "b", dt),
              z = eas_builder_param_buffer(b, "c", dt);
    eas_value n = eas_builder_param_scalar(b, "N", EAS_I64, 1),
              s = eas_builder_param_scalar(b, "s", EAS_F64, 1);
    eas_builder_at(b, "axpy.c", 42);
    eas_value at = op(b, "add", op(b, "mul", eas_builder_program_id(b, 0), eas_builder_const_int(b, block)),
                      eas_builder_arange(b, 0, block));
    eas_value in = op(b, "lt", at, n);
    eas_builder_store(
        b, z, at,
        op(b, "add", eas_builder_load(b, x, at, in, 0), op(b, "mul", s, eas_builder_load(b, y, at, in, 0))),
        in);
    if (eas_builder_finish(b, &ir) || eas_kernel_new(ir, &k))
        fail_msg("%s", eas_error_message());
    eas_ir_release(ir);
    eas_builder_free(b);
    return k;
}

static eas_arg buffer(void *p, int64_t n, eas_dtype dt)
{
    return (eas_arg){.v.data = p, .count = n, .dtype = (uint8_t)dt, .is_buffer = 1};
}
static eas_arg integer(int64_t i) { return (eas_arg){.v.i = i, .dtype = EAS_I64}; }
static eas_arg number(double f) { return (eas_arg){.v.f = f, .dtype = EAS_F64}; }

static void a_kernel_runs_on_its_own_memory(void **state)
{
    (void)state;
    enum { N = 1031 };
    static float a[N], b[N], c[N + 1];
    eas_kernel *k = axpy(EAS_F32, 256);
    for (int d = 0; d < 2; d++) {
        eas_device *dev;
        assert_int_equal(eas_device_get(devices[d], &dev), EAS_OK);
        for (int i = 0; i < N; i++)
            a[i] = (float)i, b[i] = 2, c[i] = -1;
        c[N] = 7;
        eas_arg args[5] = {buffer(a, N, EAS_F32), buffer(b, N, EAS_F32), buffer(c, N, EAS_F32), integer(N),
                           number(0.5)};
        if (eas_kernel_launch(k, dev, args, 5, NULL))
            fail_msg("%s", eas_error_message());
        for (int i = 0; i < N; i++)
            assert_true(c[i] == (float)i + 1);
        assert_true(c[N] == 7);
    }
    eas_kernel_release(k);
}

static void a_refused_launch_changes_nothing(void **state)
{
    (void)state;
    enum { N = 100 };
    static double a[N], b[N], c[N];
    eas_kernel *k = axpy(EAS_F64, 64);
    for (int d = 0; d < 2; d++) {
        eas_device *dev;
        assert_int_equal(eas_device_get(devices[d], &dev), EAS_OK);
        for (int i = 0; i < N; i++)
            a[i] = 1, b[i] = 1, c[i] = -1;
        eas_arg good[5] = {buffer(a, N, EAS_F64), buffer(b, N, EAS_F64), buffer(c, N, EAS_F64), integer(N),
                           number(1)},
                bad[5];
        memcpy(bad, good, sizeof bad);
        bad[2].dtype = EAS_F32;
        assert_int_equal(eas_kernel_launch(k, dev, bad, 5, NULL), EAS_ERR_TYPE);
        assert_non_null(strstr(eas_error_message(), "\"c\": expected a buffer of f64, got f32"));
        memcpy(bad, good, sizeof bad);
        bad[2].flags = EAS_ARG_READONLY;
        assert_int_equal(eas_kernel_launch(k, dev, bad, 5, NULL), EAS_ERR_VALUE);
        memcpy(bad, good, sizeof bad);
        bad[3] = good[0];
        assert_int_equal(eas_kernel_launch(k, dev, bad, 5, NULL), EAS_ERR_TYPE);
        assert_int_equal(eas_kernel_launch(k, dev, good, 4, NULL), EAS_ERR_TYPE);
        eas_launch grid = {.size = sizeof grid, .has_grid = 1, .grid = {1, -1, 1}};
        assert_int_equal(eas_kernel_launch(k, dev, good, 5, &grid), EAS_ERR_VALUE);
        for (int i = 0; i < N; i++)
            assert_true(c[i] == -1);
        assert_int_equal(eas_kernel_launch(k, dev, good, 5, NULL), EAS_OK);
        assert_true(c[N - 1] == 2);
    }
    eas_kernel_release(k);
}

static void an_access_out_of_bounds_is_named(void **state)
{
    (void)state;
    static float a[8], b[8], c[8];
    eas_kernel *k = axpy(EAS_F32, 16);
    for (int d = 0; d < 2; d++) {
        eas_device *dev;
        assert_int_equal(eas_device_get(devices[d], &dev), EAS_OK);
        eas_arg args[5] = {buffer(a, 8, EAS_F32), buffer(b, 5, EAS_F32), buffer(c, 8, EAS_F32), integer(8),
                           number(1)};
        assert_int_equal(eas_kernel_launch(k, dev, args, 5, NULL), EAS_ERR_INDEX);
        assert_non_null(strstr(eas_error_message(), "axpy.c:42"));
        assert_non_null(strstr(eas_error_message(), "index 5 of \"b\", which has 5 elements"));
    }
    eas_kernel_release(k);
}

static void arguments_may_overlap(void **state)
{
    (void)state;
    enum { N = 512 };
    eas_builder *b;
    eas_ir *ir;
    eas_kernel *k = NULL;
    assert_int_equal(eas_builder_new("shift", 0, &b), EAS_OK);
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), y = eas_builder_param_buffer(b, "y", EAS_F32);
    eas_value at = eas_builder_arange(b, 0, N);
    eas_builder_store(b, y, op(b, "add", at, eas_builder_const_int(b, 1)), eas_builder_load(b, x, at, 0, 0),
                      0);
    if (eas_builder_finish(b, &ir) || eas_kernel_new(ir, &k))
        fail_msg("%s", eas_error_message());
    for (int d = 0; d < 2; d++) {
        float m[N + 1];
        eas_device *dev;
        assert_int_equal(eas_device_get(devices[d], &dev), EAS_OK);
        for (int i = 0; i <= N; i++)
            m[i] = (float)i;
        /* the same memory as source and target: a block is read whole before it is written */
        eas_arg args[2] = {buffer(m, N, EAS_F32), buffer(m, N + 1, EAS_F32)};
        eas_launch one = {.size = sizeof one, .has_grid = 1, .grid = {1, 1, 1}};
        if (eas_kernel_launch(k, dev, args, 2, &one))
            fail_msg("%s", eas_error_message());
        for (int i = 0; i < N; i++)
            assert_true(m[i + 1] == (float)i);
    }
    eas_kernel_release(k);
    eas_ir_release(ir);
    eas_builder_free(b);
}

static void texts_can_be_had(void **state)
{
    (void)state;
    eas_kernel *k = axpy(EAS_F32, 256);
    char *t = NULL;
    assert_int_equal(eas_kernel_text(k, "ir", &t), EAS_OK);
    assert_non_null(strstr(t, "fma"));
    eas_memory_free(t);
    assert_int_equal(eas_kernel_text(k, "msl", &t), EAS_OK);
    assert_non_null(strstr(t, "constant uint& N"));
    eas_memory_free(t);
    assert_int_equal(eas_kernel_text(k, "opencl", &t), EAS_OK);
    assert_non_null(strstr(t, "__kernel"));
    eas_memory_free(t);
    assert_int_equal(eas_kernel_text(k, "nonsense", &t), EAS_ERR_VALUE);
    eas_kernel_release(k);
}

static int calls;
static void done(void *ctx)
{
    calls++;
    free(ctx);
}

static void buffers_are_counted(void **state)
{
    (void)state;
    eas_device *dev;
    eas_buffer *b;
    assert_int_equal(eas_device_get("cpu", &dev), EAS_OK);
    assert_int_equal(eas_buffer_new(dev, 1000, &b), EAS_OK);
    assert_int_equal(eas_buffer_size(b), 1000);
    memset(eas_buffer_host(b), 1, 1000);
    eas_buffer_release(eas_buffer_retain(b));
    eas_buffer_release(b);
    void *mine = malloc(16);
    assert_int_equal(eas_buffer_wrap(dev, mine, 16, done, mine, &b), EAS_OK);
    assert_ptr_equal(eas_buffer_host(b), mine);
    eas_buffer_release(b);
    assert_int_equal(calls, 1);
    assert_int_equal(eas_device_get("toaster", &dev), EAS_ERR_VALUE);
#ifndef __APPLE__
    unsetenv("EAS_METAL_LIBRARY");
    assert_int_equal(eas_device_get("mps", &dev), EAS_ERR_UNAVAILABLE);
#endif
}

#ifndef NDEBUG
static void a_released_kernel_is_noticed(void **state)
{
    (void)state;
    eas_device *dev;
    eas_arg args[5] = {buffer(NULL, 0, EAS_F32), buffer(NULL, 0, EAS_F32), buffer(NULL, 0, EAS_F32),
                       integer(0), number(0)};
    eas_kernel *k = axpy(EAS_F32, 8);
    assert_int_equal(eas_device_get("ref", &dev), EAS_OK);
    assert_int_equal(eas_kernel_launch(k, dev, args, 5, NULL), EAS_OK);
    eas_kernel_release(k);
    assert_int_equal(eas_kernel_launch(k, dev, args, 5, NULL), EAS_ERR_HANDLE);
}
#endif

/* A NULL where an object must be, an odd address and a struct of another size are errors with a message,
 * never a crash. */
static void mistakes_of_the_caller_are_errors(void **state)
{
    (void)state;
    static float a[9], b[8], c[8];
    eas_device *d;
    eas_ir *ir;
    eas_kernel *none = NULL, *k = axpy(EAS_F32, 8);
    int64_t grid[3];
    eas_arg args[5] = {buffer(a, 8, EAS_F32), buffer(b, 8, EAS_F32), buffer(c, 8, EAS_F32), integer(8),
                       number(2)};
    eas_launch o = {.size = sizeof o};
    assert_int_equal(eas_device_get("cpu", &d), EAS_OK);
    assert_int_equal(eas_kernel_launch(NULL, d, args, 5, &o), EAS_ERR_HANDLE);
    assert_non_null(strstr(eas_error_message(), "eas_kernel_launch: \"k\" is NULL"));
    assert_int_equal(eas_kernel_launch(k, NULL, args, 5, &o), EAS_ERR_HANDLE);
    assert_int_equal(eas_kernel_launch(k, d, NULL, 5, &o), EAS_ERR_HANDLE);
    assert_int_equal(eas_kernel_new(NULL, &none), EAS_ERR_HANDLE);
    assert_int_equal(eas_kernel_grid(NULL, args, 5, &o, grid), EAS_ERR_HANDLE);
    assert_int_equal(eas_builder_finish(NULL, &ir), EAS_ERR_HANDLE);
    assert_int_equal(eas_builder_apply(NULL, eas_op_find("add"), 1, 2, 0), 0);
    assert_int_equal(eas_device_get(NULL, &d), EAS_ERR_HANDLE);
    assert_int_equal(eas_ir_param_count(NULL), 0);
    assert_int_equal(eas_node_rank(NULL), 0);
    assert_null(eas_device_name(NULL));
    eas_builder_barrier(NULL);
    assert_int_equal(eas_device_get("cpu", &d), EAS_OK);
    o.size = 8;
    assert_int_equal(eas_kernel_launch(k, d, args, 5, &o), EAS_ERR_VALUE);
    assert_non_null(strstr(eas_error_message(), "sizeof(eas_launch)"));
    o.size = sizeof o;
    args[0] = buffer((char *)a + 2, 8, EAS_F32);
    for (int i = 0; i < 2; i++) {
        eas_device *dev;
        assert_int_equal(eas_device_get(devices[i], &dev), EAS_OK);
        assert_int_equal(eas_kernel_launch(k, dev, args, 5, &o), EAS_ERR_VALUE);
        assert_non_null(strstr(eas_error_message(), "not a multiple of 4 bytes"));
    }
    args[0] = buffer(a, 8, EAS_F32);
    assert_int_equal(eas_kernel_launch(k, d, args, 5, &o), EAS_OK);
    eas_kernel_release(k);
}

static void the_version_is_the_headers(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", EAS_VERSION_MAJOR, EAS_VERSION_MINOR, EAS_VERSION_PATCH);
    assert_string_equal(eas_version(), text);
    assert_int_equal(eas_version_number(), EAS_VERSION);
}

/* A launch that leaves its arrays tells the line as a value, on every device; another failure has none. */
static void a_failure_knows_its_line(void **state)
{
    (void)state;
    float a[8] = {0}, b[8] = {0}, c[8] = {0};
    eas_kernel *k = axpy(EAS_F32, 8);
    for (int d = 0; d < 2; d++) {
        eas_device *dev;
        eas_stream *s;
        const char *file = NULL;
        int line = 0;
        assert_int_equal(eas_device_get(devices[d], &dev), EAS_OK);
        eas_arg args[5] = {buffer(a, 4, EAS_F32), buffer(b, 8, EAS_F32), buffer(c, 8, EAS_F32), integer(8),
                           number(1)};
        assert_int_equal(eas_kernel_launch(k, dev, args, 5, NULL), EAS_ERR_INDEX);
        assert_int_equal(eas_error_place(&file, &line), 1);
        assert_string_equal(file, "axpy.c");
        assert_int_equal(line, 42);
        assert_int_equal(eas_device_get("nowhere", &dev), EAS_ERR_VALUE);
        assert_int_equal(eas_error_place(&file, &line), 0);
        assert_null(file);

        assert_int_equal(eas_device_get(devices[d], &dev), EAS_OK); /* found later, on another thread */
        assert_int_equal(eas_stream_new(dev, &s), EAS_OK);
        const eas_launch later = {.size = sizeof later, .stream = s, .async = 1};
        const eas_status now = eas_kernel_launch(k, dev, args, 5, &later),
                         then = eas_stream_synchronize(s, NULL);
        assert_int_equal(now ? now : then, EAS_ERR_INDEX);
        assert_int_equal(eas_error_place(&file, &line), 1);
        assert_int_equal(line, 42);
        eas_stream_release(s);
    }
    eas_kernel_release(k);
}

/* A struct of another size is refused, whatever is in it. */
static void sizes_are_checked(void **state)
{
    (void)state;
    float a[8] = {0}, b[8] = {0}, c[8] = {0};
    eas_kernel *k = axpy(EAS_F32, 8);
    eas_device *dev;
    eas_launch l = {.size = sizeof l - 8};
    assert_int_equal(eas_device_get("cpu", &dev), EAS_OK);
    eas_arg args[5] = {buffer(a, 8, EAS_F32), buffer(b, 8, EAS_F32), buffer(c, 8, EAS_F32), integer(8),
                       number(1)};
    assert_int_equal(eas_kernel_launch(k, dev, args, 5, &l), EAS_ERR_VALUE);
    assert_non_null(strstr(eas_error_message(), "eas_launch.size"));
    l.size = sizeof l;
    assert_int_equal(eas_kernel_launch(k, dev, args, 5, &l), EAS_OK);
    eas_kernel_release(k);
    assert_int_equal(eas_dist_run(&(eas_dist_call){.size = 8}), EAS_ERR_VALUE);
}

typedef struct turns {
    int left, entered;
} turns;

static void leave(void *ctx) { ((turns *)ctx)->left++; }
static void enter(void *ctx) { ((turns *)ctx)->entered++; }

/* A launch of one program has nothing that other threads could take, and is over before anybody could take
 * the caller's lock: it is not given up. The interpreter, which is slow, always gives it up. */
static void one_short_program_keeps_the_lock(void **state)
{
    (void)state;
    enum { BLOCK = 8192, FEW = 1000, MANY = 100 * BLOCK };
    float *a = calloc(3 * MANY, sizeof *a);
    eas_kernel *k = axpy(EAS_F32, BLOCK);
    eas_device *dev;
    turns t = {0, 0};
    const eas_launch l = {.size = sizeof l, .ctx = &t, .leave = leave, .enter = enter};
    assert_non_null(a);
    assert_int_equal(eas_device_get("cpu", &dev), EAS_OK);
    char *code = NULL;
    const int interpreted = eas_kernel_text(k, "llvm", &code) == EAS_ERR_UNAVAILABLE;
    eas_memory_free(code);
    for (int i = 0; i < 2; i++) {
        const int64_t n = i ? MANY : FEW;
        eas_arg args[5] = {buffer(a, n, EAS_F32), buffer(a + MANY, n, EAS_F32),
                           buffer(a + 2 * MANY, n, EAS_F32), integer(n), number(1)};
        assert_int_equal(eas_kernel_launch(k, dev, args, 5, NULL), EAS_OK); /* compiles */
        assert_int_equal(eas_kernel_launch(k, dev, args, 5, &l), EAS_OK);
        assert_int_equal(t.left, t.entered);
        assert_true(i || interpreted ? t.left > 0 : !t.left);
    }
    eas_kernel_release(k);
    free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_runs_on_its_own_memory),
        cmocka_unit_test(the_version_is_the_headers),
        cmocka_unit_test(a_failure_knows_its_line),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(one_short_program_keeps_the_lock),
        cmocka_unit_test(mistakes_of_the_caller_are_errors),
        cmocka_unit_test(a_refused_launch_changes_nothing),
        cmocka_unit_test(an_access_out_of_bounds_is_named),
        cmocka_unit_test(arguments_may_overlap),
        cmocka_unit_test(texts_can_be_had),
        cmocka_unit_test(buffers_are_counted),
#ifndef NDEBUG
        cmocka_unit_test(a_released_kernel_is_noticed),
#endif
    };
    return cmocka_run_group_tests_name("api", tests, NULL, NULL);
}
