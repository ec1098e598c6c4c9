/* everywhere.h: runs kernels on ref, on the cpu device and as MSL, and compares every buffer bit by bit;
 * their OpenCL C must compile. */
#ifndef EVERYWHERE_H
#define EVERYWHERE_H

#include "eas.h"
#include "msl_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ARGS = 6, ELEMENTS = 1024, MAX_CASES = 400 };

typedef struct everywhere {
    eas_kernel *k;
    int64_t grid[3];
    int64_t scalar[MAX_ARGS];
    int no_msl; /* the language cannot say it */
} everywhere;

static everywhere cases[MAX_CASES];
static int ncases;
static eas_builder *b;

static void ok(eas_status st)
{
    if (st)
        fail_msg("%s", eas_error_message());
}

static eas_value op2(const char *name, eas_value x, eas_value y)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, 0);
}
static eas_value num(int64_t v) { return eas_builder_const_int(b, v); }
static eas_value load(eas_value buf, eas_value off) { return eas_builder_load(b, buf, off, 0, 0); }
static void store(eas_value buf, eas_value off, eas_value x) { eas_builder_store(b, buf, off, x, 0); }

static void begin(const char *fmt, ...)
{
    char name[96];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    ok(eas_builder_new(name, 0, &b));
}

static everywhere *end(int64_t programs)
{
    eas_ir *ir;
    eas_kernel *k;
    ok(eas_builder_finish(b, &ir));
    eas_builder_free(b);
    ok(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    assert_true(ncases < MAX_CASES);
    cases[ncases] = (everywhere){.k = k, .grid = {programs, 1, 1}};
    return &cases[ncases++];
}

static char *text_of(eas_kernel *k, const char *form)
{
    char *s = NULL;
    ok(eas_kernel_text(k, form, &s));
    return s;
}

/* ---- data ---- */

static uint64_t random_state = 88172645463325252u;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

/* Small numbers: sums of them are exact in every dtype, in any order. */
static void fill(void *p, eas_dtype dt)
{
    size_t size = eas_dtype_size(dt);
    for (int e = 0; e < ELEMENTS; e++) {
        uint64_t bits = random_bits() >> 9 & (dt == EAS_BOOL ? 1 : 15);
        float f = (float)(int)(random_bits() >> 7 & 63) / 8 - 4;
        double d = (double)f;
        if (dt == EAS_F32)
            memcpy(&bits, &f, 4);
        else if (dt == EAS_F64)
            memcpy(&bits, &d, 8);
        else if (dt == EAS_F16)
            bits = 0x3c00 + (bits << 6);
        else if (dt == EAS_BF16)
            bits = 0x3f80 + (bits << 3);
        memcpy((char *)p + (size_t)e * size, &bits, size);
    }
}

typedef struct values {
    void *at[MAX_ARGS];
} values;

static values fresh(eas_ir *ir, const everywhere *w)
{
    values v = {{0}};
    random_state = 88172645463325252u;
    for (int i = 0; i < eas_ir_param_count(ir); i++) {
        eas_param p = eas_ir_param(ir, i);
        v.at[i] = malloc(ELEMENTS * 8);
        if (p.is_buffer)
            fill(v.at[i], p.dtype);
        else
            memcpy(v.at[i], &w->scalar[i], 8);
    }
    return v;
}

static void free_values(values *v)
{
    for (int i = 0; i < MAX_ARGS; i++)
        free(v->at[i]);
}

static void run_on(const char *device, const everywhere *w, values *v)
{
    eas_ir *ir = eas_kernel_ir(w->k);
    eas_arg args[MAX_ARGS];
    eas_device *d;
    int n = eas_ir_param_count(ir);
    for (int i = 0; i < n; i++) {
        eas_param p = eas_ir_param(ir, i);
        args[i] = (eas_arg){.dtype = (uint8_t)p.dtype, .is_buffer = p.is_buffer, .count = ELEMENTS};
        if (p.is_buffer)
            args[i].v.data = v->at[i];
        else
            args[i].v.i = w->scalar[i];
    }
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {w->grid[0], w->grid[1], w->grid[2]}};
    ok(eas_device_get(device, &d));
    ok(eas_kernel_launch(w->k, d, args, n, &opts));
}

static int is_nan(eas_dtype dt, const void *p)
{
    float f;
    double d;
    memcpy(&f, p, 4);
    memcpy(&d, p, eas_dtype_size(dt));
    return dt == EAS_F32 ? f != f : dt == EAS_F64 && d != d;
}

static void same(const char *what, eas_ir *ir, const values *want, const values *got)
{
    for (int i = 0; i < eas_ir_param_count(ir); i++) {
        eas_param p = eas_ir_param(ir, i);
        size_t size = eas_dtype_size(p.dtype);
        for (int e = 0; p.is_buffer && e < ELEMENTS; e++) {
            const char *x = (char *)want->at[i] + (size_t)e * size,
                       *y = (char *)got->at[i] + (size_t)e * size;
            uint64_t u = 0, w = 0;
            memcpy(&u, x, size);
            memcpy(&w, y, size);
            if (u != w && !(is_nan(p.dtype, x) && is_nan(p.dtype, y)))
                fail_msg("%s: %s, %s[%d]: %llx instead of %llx", what, eas_ir_name(ir), p.name, e,
                         (unsigned long long)w, (unsigned long long)u);
        }
    }
}

/* ---- all cases: one call of clang each for MSL and OpenCL C ---- */

static msl_batch *compile_texts(void)
{
    msl_batch *batch = msl_batch_new();
    size_t room = 0, n = 0;
    char *joined = NULL;
    for (int i = 0; i < ncases; i++) {
        char *m = cases[i].no_msl ? NULL : text_of(cases[i].k, "msl"), *c = text_of(cases[i].k, "opencl");
        if (m)
            msl_batch_add(batch, m);
        if (n + strlen(c) + 1 > room)
            joined = realloc(joined, room = 2 * (n + strlen(c) + 1));
        /* helpers of one name may stand once in a file */
        n += (size_t)sprintf(joined + n, "%s", c);
        if (strstr(c, "eas_")) {
            assert_int_equal(opencl_syntax(c), 0);
            n -= strlen(c);
        }
        eas_memory_free(m);
        eas_memory_free(c);
    }
    if (joined && n) {
        joined[n] = 0;
        assert_int_equal(opencl_syntax(joined), 0);
    }
    free(joined);
    assert_int_equal(msl_batch_compile(batch), 0);
    return batch;
}

static void run_cases(void)
{
    msl_batch *batch = compile_texts();
    for (int i = 0; i < ncases; i++) {
        everywhere *w = &cases[i];
        eas_ir *ir = eas_kernel_ir(w->k);
        eas_ir_info info = eas_kernel_info(w->k);
        values want = fresh(ir, w), got = fresh(ir, w);
        run_on("ref", w, &want);
        run_on("cpu", w, &got);
        same("cpu", ir, &want, &got);
        free_values(&got);
        if (!w->no_msl) {
            got = fresh(ir, w);
            assert_int_equal(msl_batch_run(batch, eas_ir_name(ir), got.at, w->grid,
                                           info.mode == EAS_MODE_THREAD ? (int)info.block : 1),
                             0);
            same("msl", ir, &want, &got);
            free_values(&got);
        }
        free_values(&want);
        eas_kernel_release(w->k);
    }
    msl_batch_free(batch);
    ncases = 0;
}

#endif
