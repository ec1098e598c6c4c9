/* ctext_words.h: what the tests of the texts share: small builders, what a text has, and whole kernels that
 * run as MSL against the reference. */
#ifndef CTEXT_WORDS_H
#define CTEXT_WORDS_H

#include "eas.h"
#include "msl_run.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- helpers ---- */

static inline void ok(eas_status st)
{
    if (st)
        fail_msg("%s: %s", eas_status_name(st), eas_error_message());
}

static inline char *text_of_ir(const char *ir_text, const char *form)
{
    eas_ir *ir;
    char *out;
    ok(eas_ir_parse(ir_text, strlen(ir_text), &ir));
    ok(eas_ir_emit(ir, form, &out));
    eas_ir_release(ir);
    return out;
}

static inline eas_kernel *finish(eas_builder *b)
{
    eas_ir *ir;
    eas_kernel *k;
    ok(eas_builder_finish(b, &ir));
    eas_builder_free(b);
    ok(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    return k;
}

static inline char *text_of(eas_kernel *k, const char *form)
{
    char *out;
    ok(eas_kernel_text(k, form, &out));
    return out;
}

static inline eas_builder *start(const char *name)
{
    eas_builder *b;
    ok(eas_builder_new(name, 0, &b));
    return b;
}

static inline eas_value op2(eas_builder *b, const char *name, eas_value x, eas_value y)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, 0);
}
static inline eas_value op3(eas_builder *b, const char *name, eas_value x, eas_value y, eas_value z)
{
    return eas_builder_apply(b, eas_op_find(name), x, y, z);
}
static inline eas_value num(eas_builder *b, int64_t v) { return eas_builder_const_int(b, v); }

static inline void has(const char *text, const char *want)
{
    if (!strstr(text, want))
        fail_msg("\"%s\" is not in\n%s", want, text);
}

static inline void has_not(const char *text, const char *unwanted)
{
    if (strstr(text, unwanted))
        fail_msg("\"%s\" is in\n%s", unwanted, text);
}

/* "v" and digits stand for # in the pattern. */
static inline const char *find(const char *text, const char *pattern)
{
    for (; *text; text++) {
        const char *t = text, *p = pattern;
        while (*p && *t) {
            if (*p == '#' && *t == 'v' && t[1] >= '0' && t[1] <= '9') {
                for (t++; *t >= '0' && *t <= '9'; t++) {}
                p++;
            } else if (*p == *t) {
                p++, t++;
            } else {
                break;
            }
        }
        if (!*p)
            return text;
    }
    return NULL;
}

static inline void has_like(const char *text, const char *pattern)
{
    if (!find(text, pattern))
        fail_msg("nothing like \"%s\" in\n%s", pattern, text);
}

/* ---- values ---- */

static uint64_t seed __attribute__((unused)) = 1;

static inline uint64_t random_bits(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return seed >> 20 ^ seed << 30;
}

static inline int is_nan_at(eas_dtype dt, const void *p)
{
    uint64_t u = 0;
    memcpy(&u, p, eas_dtype_size(dt));
    switch (dt) {
    case EAS_F16: return (u & 0x7fff) > 0x7c00;
    case EAS_BF16: return (u & 0x7fff) > 0x7f80;
    case EAS_F32: return (u & 0x7fffffff) > 0x7f800000;
    case EAS_F64: return (u & INT64_MAX) > 0x7ff0000000000000;
    default: return 0;
    }
}

static inline void same_values(const char *what, eas_dtype dt, const void *want, const void *got, int64_t n)
{
    size_t size = eas_dtype_size(dt);
    for (int64_t i = 0; i < n; i++) {
        const char *w = (const char *)want + (size_t)i * size, *g = (const char *)got + (size_t)i * size;
        if (!memcmp(w, g, size) || (is_nan_at(dt, w) && is_nan_at(dt, g)))
            continue;
        uint64_t x = 0, y = 0;
        memcpy(&x, w, size);
        memcpy(&y, g, size);
        fail_msg("%s: element %lld is %llx, the reference says %llx", what, (long long)i,
                 (unsigned long long)y, (unsigned long long)x);
    }
}

static msl_batch *batch __attribute__((unused));

enum { MAX_ARGS = 6, ELEMENTS = 4096 };
typedef struct whole {
    eas_kernel *k;
    int64_t grid[3];
    int64_t scalar[MAX_ARGS]; /* integers; a float scalar is given in thousandths */
} whole;

static inline void check_whole(const whole *w)
{
    eas_ir *ir = eas_kernel_ir(w->k);
    eas_ir_info info = eas_kernel_info(w->k);
    int n = eas_ir_param_count(ir);
    eas_arg args[MAX_ARGS];
    void *ptr[MAX_ARGS], *want[MAX_ARGS];
    int64_t scalars[MAX_ARGS];
    float floats[MAX_ARGS];
    eas_device *ref;
    for (int i = 0; i < n; i++) {
        eas_param p = eas_ir_param(ir, i);
        size_t size = eas_dtype_size(p.dtype);
        args[i] = (eas_arg){.dtype = (uint8_t)p.dtype, .is_buffer = p.is_buffer, .count = ELEMENTS};
        if (!p.is_buffer) {
            scalars[i] = w->scalar[i];
            floats[i] = (float)w->scalar[i] / 1000;
            if (eas_dtype_kind(p.dtype) == 'f')
                args[i].v.f = (double)floats[i];
            else
                args[i].v.i = w->scalar[i];
            ptr[i] = eas_dtype_kind(p.dtype) == 'f' ? (void *)&floats[i] : (void *)&scalars[i];
            continue;
        }
        want[i] = malloc(ELEMENTS * size);
        ptr[i] = malloc(ELEMENTS * size);
        for (int e = 0; e < ELEMENTS; e++) {
            uint64_t bits = random_bits() >> 3 & (p.dtype == EAS_BOOL ? 1 : 7);
            float f = (float)(int)(random_bits() >> 7 & 63) / 8 - 4;
            if (p.dtype == EAS_F32)
                memcpy(&bits, &f, 4);
            else if (p.dtype == EAS_F16)
                bits = 0x3c00 + (random_bits() >> 9 & 0x83ff);
            memcpy((char *)want[i] + (size_t)e * size, &bits, size);
        }
        memcpy(ptr[i], want[i], ELEMENTS * size);
        args[i].v.data = want[i];
    }
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {w->grid[0], w->grid[1], w->grid[2]}};
    ok(eas_device_get("ref", &ref));
    ok(eas_kernel_launch(w->k, ref, args, n, &opts));
    assert_int_equal(msl_batch_run(batch, eas_ir_name(ir), ptr, w->grid,
                                   info.mode == EAS_MODE_THREAD ? (int)info.block : 1),
                     0);
    for (int i = 0; i < n; i++)
        if (args[i].is_buffer) {
            same_values(eas_ir_name(ir), (eas_dtype)args[i].dtype, want[i], ptr[i], ELEMENTS);
            free(want[i]);
            free(ptr[i]);
        }
}

static inline void run_all(whole *all, int n)
{
    batch = msl_batch_new();
    for (int i = 0; i < n; i++) {
        char *s = text_of(all[i].k, "msl");
        msl_batch_add(batch, s);
        eas_memory_free(s);
    }
    assert_int_equal(msl_batch_compile(batch), 0);
    for (int i = 0; i < n; i++) {
        check_whole(&all[i]);
        eas_kernel_release(all[i].k);
    }
    msl_batch_free(batch);
}

#endif
