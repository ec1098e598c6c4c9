/* test_print.c: print and assert through the public interface: records in order, their limit, and where the
 * text goes. */
#include "eas.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static eas_builder *b;
static char heard[1 << 16];

static void hear(void *ctx, const char *text, size_t n)
{
    (void)ctx;
    size_t had = strlen(heard);
    assert_true(had + n < sizeof heard);
    memcpy(heard + had, text, n);
    heard[had + n] = 0;
}

static void ok(eas_status st)
{
    if (st)
        fail_msg("%s", eas_error_message());
}

static eas_value op2(const char *name, eas_value x, eas_value y)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, 0);
}

static eas_kernel *end(void)
{
    eas_ir *ir;
    eas_kernel *k;
    ok(eas_builder_finish(b, &ir));
    eas_builder_free(b);
    ok(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    return k;
}

static eas_status run(eas_kernel *k, const char *device, int64_t programs, int debug, const eas_arg *args,
                      int n)
{
    eas_device *d;
    eas_launch opts = {
        .size = sizeof opts, .has_grid = 1, .grid = {programs, 1, 1}, .debug = (uint8_t)debug, .print = hear};
    ok(eas_device_get(device, &d));
    heard[0] = 0;
    return eas_kernel_launch(k, d, args, n, &opts);
}

static void test_records(void **state)
{
    (void)state;
    static const char *const devices[] = {"ref", "cpu"};
    ok(eas_builder_new("say", 0, &b));
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32), pid = eas_builder_program_id(b, 0),
              o = eas_builder_arange(b, 0, 3);
    eas_value v[2] = {pid, eas_builder_load(b, x, o, 0, 0)};
    eas_builder_print(b, "p {} {{x}} {}", 2, v, 0);
    eas_builder_print(b, "end", 0, NULL, op2("eq", pid, eas_builder_const_int(b, 1)));
    eas_kernel *k = end();
    float data[3] = {1, 0.1f, -2.5f};
    eas_arg arg = {.v.data = data, .count = 3, .dtype = EAS_F32, .is_buffer = 1};
    for (int d = 0; d < 2; d++) {
        ok(run(k, devices[d], 2, 0, &arg, 1));
        assert_string_equal(
            heard, "program 0: p 0 {x} [1.0 0.1 -2.5]\nprogram 1: p 1 {x} [1.0 0.1 -2.5]\nprogram 1: end\n");
    }
    char *text;
    ok(eas_kernel_text(k, "ir", &text));
    assert_non_null(strstr(text, "print \"p {} {{x}} {}\" %"));
    eas_memory_free(text);
    ok(eas_kernel_text(k, "opencl", &text));
    assert_non_null(strstr(text, "eas_print_words"));
    eas_memory_free(text);
    eas_kernel_release(k);
}

/* 1000 records are written unless EAS_PRINT_LIMIT says otherwise; programs come in order. */
static void test_limit(void **state)
{
    (void)state;
    ok(eas_builder_new("many", 0, &b));
    eas_value pid = eas_builder_program_id(b, 0);
    eas_builder_print(b, "{}", 1, &pid, 0);
    eas_kernel *k = end();
    ok(run(k, "cpu", 20000, 0, NULL, 0));
    const char *at = heard;
    for (int i = 0; i < 1000; i++) {
        char line[64];
        int n = snprintf(line, sizeof line, "program %d: %d\n", i, i);
        assert_memory_equal(at, line, (size_t)n);
        at += n;
    }
    assert_string_equal(at, "... dropped 19000 records\n");
    eas_kernel_release(k);
}

static void test_threads_share_a_record(void **state)
{
    (void)state;
    ok(eas_builder_new("threads", 0, &b));
    eas_value t = eas_builder_tid(b, 0, 40), half = eas_builder_cast(b, t, EAS_F16);
    eas_builder_print(b, "h {}", 1, &half, op2("ge", t, eas_builder_const_int(b, 37)));
    eas_kernel *k = end();
    ok(run(k, "cpu", 1, 0, NULL, 0));
    assert_string_equal(heard, "program 0, threads 37-39: h [37.0 38.0 39.0]\n");
    eas_kernel_release(k);
}

static void test_asserts_only_when_asked(void **state)
{
    (void)state;
    static const char *const devices[] = {"ref", "cpu"};
    ok(eas_builder_new("sure", 0, &b));
    eas_builder_at(b, "k.c", 12);
    eas_value pid = eas_builder_program_id(b, 0), o = eas_builder_arange(b, 0, 20);
    eas_builder_assert(b, op2("lt", op2("add", pid, o), eas_builder_const_int(b, 21)), "too far",
                       op2("gt", o, eas_builder_const_int(b, 1)));
    eas_builder_assert(b, op2("ne", pid, eas_builder_const_int(b, 9)), "nine", 0);
    eas_kernel *k = end();
    for (int d = 0; d < 2; d++) {
        ok(run(k, devices[d], 10, 0, NULL, 0));
        ok(run(k, devices[d], 2, 1, NULL, 0));
        assert_int_equal(run(k, devices[d], 3, 1, NULL, 0), EAS_ERR_ASSERT);
        assert_string_equal(eas_error_message(),
                            "k.c:12: kernel sure: assertion failed: too far (program 2, 0, 0, lane 19)");
    }
    eas_kernel_release(k);
}

static void test_refused(void **state)
{
    (void)state;
    ok(eas_builder_new("bad", 0, &b));
    eas_value o = eas_builder_arange(b, 0, 4);
    eas_builder_print(b, "{}", 0, NULL, 0);
    assert_non_null(strstr(eas_error_message(), "0 values for 1 places"));
    eas_builder_free(b);
    ok(eas_builder_new("bad", 0, &b));
    o = eas_builder_arange(b, 0, 4);
    eas_builder_assert(b, o, "x", 0);
    assert_non_null(strstr(eas_error_message(), "the condition must be bool"));
    eas_builder_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_records),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_threads_share_a_record),
        cmocka_unit_test(test_asserts_only_when_asked),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
