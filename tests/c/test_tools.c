/* test_tools.c: what surrounds a launch, from C: objects, limits, source for queues of others, the profiler,
 * timings on disk. */
#include "eas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void must(eas_status st)
{
    if (st)
        fail_msg("%s", eas_error_message());
}
static eas_device *device(const char *name) /* whether it can be used or not */
{
    for (int i = 0; i < eas_device_count(); i++)
        if (!strcmp(eas_device_name(eas_device_at(i)), name))
            return eas_device_at(i);
    fail_msg("no device %s", name);
    return NULL;
}
static eas_value op(eas_builder *b, const char *name, eas_value x, eas_value y)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, 0);
}
static eas_kernel *finish(eas_builder *b)
{
    eas_ir *ir = NULL;
    eas_kernel *k = NULL;
    must(eas_builder_finish(b, &ir));
    must(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    eas_builder_free(b);
    return k;
}

/* y = x + s over N elements, in programs or in groups of threads */
static eas_kernel *shifted(eas_dtype dt, int64_t block, bool threads)
{
    eas_builder *b = NULL;
    must(eas_builder_new("shifted", 0, &b));
    eas_value x = eas_builder_param_buffer(b, "x", dt), y = eas_builder_param_buffer(b, "y", dt),
              n = eas_builder_param_scalar(b, "N", EAS_I64, 1),
              s = eas_builder_param_scalar(b, "s", EAS_F64, 1);
    eas_builder_at(b, "tools.c", 7);
    eas_value lane = threads ? eas_builder_tid(b, 0, block) : eas_builder_arange(b, 0, block);
    eas_value at = op(b, "add", op(b, "mul", eas_builder_program_id(b, 0), eas_builder_const_int(b, block)),
                      lane),
              in = op(b, "lt", at, n);
    eas_builder_store(b, y, at, op(b, "add", eas_builder_load(b, x, at, in, 0), s), in);
    return finish(b);
}
/* y[i] = x[x[i]]: nothing proves that it stays inside */
static eas_kernel *gather(void)
{
    eas_builder *b = NULL;
    must(eas_builder_new("gather", 0, &b));
    eas_value x = eas_builder_param_buffer(b, "x", EAS_I32), y = eas_builder_param_buffer(b, "y", EAS_I32),
              at = eas_builder_arange(b, 0, 4);
    eas_builder_store(b, y, at, eas_builder_load(b, x, eas_builder_load(b, x, at, 0, 0), 0, 0), 0);
    return finish(b);
}

static eas_arg buffer(void *p, int64_t n, eas_dtype dt)
{
    return (eas_arg){.v.data = p, .count = n, .dtype = (uint8_t)dt, .is_buffer = 1, .flags = EAS_ARG_HOST};
}
static eas_arg integer(int64_t i) { return (eas_arg){.v.i = i, .dtype = EAS_I64}; }
static eas_arg number(double f) { return (eas_arg){.v.f = f, .dtype = EAS_F64}; }

/* ---- objects and limits ---- */

static void an_object_file(void **state)
{
    (void)state;
    eas_kernel *k = shifted(EAS_F32, 64, false);
    void *bytes = NULL;
    size_t size = 0;
    eas_status st = eas_kernel_object(k, &bytes, &size);
    if (st) { /* built without LLVM */
        assert_int_equal(st, EAS_ERR_UNAVAILABLE);
        assert_null(bytes);
    } else {
        static const unsigned char elf[] = {0x7f, 'E', 'L', 'F'}, macho[] = {0xcf, 0xfa, 0xed, 0xfe};
        assert_true(size > 64 && (!memcmp(bytes, elf, 4) || !memcmp(bytes, macho, 4)));
    }
    eas_memory_free(bytes);
    eas_kernel_release(k);
}

static void what_a_device_lacks(void **state)
{
    (void)state;
    eas_kernel *wide = shifted(EAS_F64, 64, false), *plain = shifted(EAS_F32, 64, true);
    must(eas_kernel_require(wide, device("cpu")));
    must(eas_kernel_require(plain, device("cpu")));
    must(eas_kernel_require(plain, device("mps")));
    assert_int_equal(eas_kernel_require(wide, device("mps")), EAS_ERR_TYPE);
    assert_non_null(strstr(eas_error_message(), "double"));
    eas_kernel_release(wide);
    eas_kernel_release(plain);
}

/* ---- source ---- */

static void source_of_a_launch(void **state)
{
    (void)state;
    float x[100], y[100];
    for (int threads = 0; threads < 2; threads++) {
        eas_kernel *k = shifted(EAS_F32, 32, threads);
        eas_arg args[] = {buffer(x, 100, EAS_F32), buffer(y, 100, EAS_F32), integer(100), number(0.5)};
        eas_source s;
        must(eas_kernel_source(k, "msl", args, 4, NULL, &s));
        assert_int_equal(s.threads[0], threads ? 128 : 4);
        assert_int_equal(s.group[0], threads ? 32 : 4);
        assert_int_equal(s.value[2], 100);
        float half;
        memcpy(&half, &s.value[3], sizeof half);
        assert_true(half == 0.5f);
        char *text = NULL, *name = NULL;
        must(eas_kernel_source_text(k, "msl", s.variant, &text, &name));
        assert_string_equal(name, "shifted");
        assert_non_null(strstr(text, "kernel void shifted"));
        assert_non_null(strstr(text, "__restrict"));
        eas_memory_free(text);
        eas_memory_free(name);

        args[1] = buffer(x, 100, EAS_F32); /* overlap: another text */
        eas_source o;
        must(eas_kernel_source(k, "msl", args, 4, NULL, &o));
        assert_int_not_equal(o.variant, s.variant);
        must(eas_kernel_source_text(k, "msl", o.variant, &text, &name));
        assert_null(strstr(text, "__restrict"));
        eas_memory_free(text);
        eas_memory_free(name);

        args[2] = integer(0);
        must(eas_kernel_source(k, "opencl", args, 4, NULL, &s));
        assert_int_equal(s.threads[0], 0);
        assert_int_equal(eas_kernel_source(k, "fortran", args, 4, NULL, &s), EAS_ERR_VALUE);
        assert_int_equal(eas_kernel_source(k, "msl", args, 3, NULL, &s), EAS_ERR_TYPE);
        eas_kernel_release(k);
    }
}

static void source_needs_a_proof(void **state)
{
    (void)state;
    int32_t x[4] = {0}, y[4];
    eas_kernel *k = gather(), *f = shifted(EAS_F32, 32, false);
    eas_arg args[] = {buffer(x, 4, EAS_I32), buffer(y, 4, EAS_I32)};
    eas_launch one = {.size = sizeof one, .has_grid = 1, .grid = {1, 1, 1}};
    eas_source s;
    assert_int_equal(eas_kernel_source(k, "msl", args, 2, &one, &s), EAS_ERR_UNAVAILABLE);
    assert_non_null(strstr(eas_error_message(), "not proved"));
    float u[32], v[32];
    eas_arg more[] = {buffer(u, 32, EAS_F32), buffer(v, 32, EAS_F32), integer(32), number(1)};
    one.debug = 1;
    assert_int_equal(eas_kernel_source(f, "msl", more, 4, &one, &s), EAS_ERR_UNAVAILABLE);
    eas_kernel_release(k);
    eas_kernel_release(f);
}

/* ---- the profiler ---- */

static void a_profile_counts(void **state)
{
    (void)state;
    enum { N = 1000 };
    static float x[N], y[N];
    eas_kernel *k = shifted(EAS_F32, 100, false);
    eas_arg args[] = {buffer(x, N, EAS_F32), buffer(y, N, EAS_F32), integer(N), number(1)};
    eas_profile *p = NULL, *second = NULL;
    must(eas_kernel_launch(k, device("ref"), args, 4, NULL)); /* before: not counted */
    must(eas_profile_start(&p));
    assert_int_equal(eas_profile_start(&second), EAS_ERR_RUNTIME);
    assert_null(second);
    for (int i = 0; i < 3; i++)
        must(eas_kernel_launch(k, device("ref"), args, 4, NULL));
    eas_profile_stop(p);
    must(eas_kernel_launch(k, device("ref"), args, 4, NULL)); /* after: not either */
    assert_true(eas_profile_seconds(p) > 0);
    assert_int_equal(eas_profile_count(p), 1);
    eas_profile_row r = eas_profile_at(p, 0);
    assert_string_equal(r.kernel, "shifted");
    assert_string_equal(r.device, "ref");
    assert_string_equal(r.file, "tools.c");
    assert_int_equal(r.line, 7);
    assert_int_equal(r.calls, 3);
    assert_true(r.seconds > 0);
    assert_true(r.bytes == 3.0 * 2 * sizeof(float) * N);
    assert_true(r.flops == 3.0 * N);
    char *json = NULL;
    must(eas_profile_trace(p, &json));
    assert_non_null(strstr(json, "\"shifted\""));
    eas_memory_free(json);
    eas_profile_free(p);
    eas_kernel_release(k);
}

/* ---- timings ---- */

static void the_first_within_the_band(void **state)
{
    (void)state;
    const double a[] = {1.019, 1.0, 2.0}, b[] = {1.03, 1.0, 1.0}, c[] = {-1, -1};
    assert_int_equal(eas_tune_choose(a, 3, 0.02), 0);
    assert_int_equal(eas_tune_choose(b, 3, 0.02), 1);
    assert_int_equal(eas_tune_choose(c, 2, 0.02), -1);
    assert_int_equal(eas_tune_choose(NULL, 0, 0.02), -1);
}

static void timings_are_kept(void **state)
{
    (void)state;
    eas_kernel *k = shifted(EAS_F32, 64, false), *other = shifted(EAS_F32, 128, false);
    eas_device *cpu = device("cpu");
    double t = 0;
    char *text = NULL;
    int n = 0;
    assert_int_equal(eas_tune_load(k, cpu, "N=1", &t), 0);
    eas_tune_store(k, cpu, "N=1", 0.25);
    eas_tune_store(k, cpu, "N=1", 0.5); /* the first stays */
    assert_int_equal(eas_tune_load(k, cpu, "N=1", &t), 1);
    assert_true(t == 0.25);
    assert_int_equal(eas_tune_load(k, cpu, "N=2", &t), 0);
    assert_int_equal(eas_tune_load(k, device("ref"), "N=1", &t), 0);
    assert_int_equal(eas_tune_load(other, cpu, "N=1", &t), 0);
    eas_tune_store(other, cpu, "N=1", 0.125);
    must(eas_tune_export(&text));
    must(eas_cache_clear());
    assert_int_equal(eas_tune_load(k, cpu, "N=1", &t), 0);
    must(eas_tune_import(text, &n));
    assert_int_equal(n, 2);
    assert_int_equal(eas_tune_load(other, cpu, "N=1", &t), 1);
    assert_true(t == 0.125);
    char bad[512];
    snprintf(bad, sizeof bad, "%.*snonsense\n", (int)(strchr(text, '\n') - text + 1), text);
    assert_int_equal(eas_tune_import(bad, &n), EAS_ERR_VALUE);
    assert_non_null(strstr(eas_error_message(), "line 2"));
    eas_memory_free(text);
    eas_kernel_release(k);
    eas_kernel_release(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_object_file),     cmocka_unit_test(what_a_device_lacks),
        cmocka_unit_test(source_of_a_launch), cmocka_unit_test(source_needs_a_proof),
        cmocka_unit_test(a_profile_counts),   cmocka_unit_test(the_first_within_the_band),
        cmocka_unit_test(timings_are_kept),
    };
    char folder[] = "/tmp/eas-tools-XXXXXX";
    if (!mkdtemp(folder) || setenv("EAS_CACHE_DIR", folder, 1))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    eas_cache_clear();
    rmdir(folder);
    return failed;
}
