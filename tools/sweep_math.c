/* sweep_math.c: the elementary functions of one argument for every f32 there is, on the cpu device, against
 * the C library in double.
 *
 *   sweep_math [function ...]      all of them without names; minutes each
 *
 * For each function one line: the largest error in ULP of the exact result, the argument it belongs to, and
 * what was given and wanted there. The ULP of a subnormal is that of the smallest normal number. A NaN where
 * there should be none, or none where there should be one, or a zero of the wrong sign, is an infinite error.
 * Exits with 1 if any error is above 1 ULP.
 */
#include <eas.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20, BLOCK = 1024 };

/* The functions are the rows of the instruction table that the host computes as real numbers. */
#define INSN(...)
#define HOST(name, kind, value, doc) EXACT_##kind(name, value)
#define EXACT_WHOLE(name, value)
#define EXACT_TRUTH(name, value)
#define EXACT_REAL(name, value) \
    static double exact_##name(double a) { return value; }
#include "../src/ir/insn.def"
#undef EXACT_REAL

static const struct function {
    const char *name;
    double (*exact)(double);
} FUNCTIONS[] = {
#define HOST(name, kind, value, doc) EXACT_##kind(name, value)
#define EXACT_REAL(name, value) {#name, exact_##name},
#include "../src/ir/insn.def"
#undef INSN
};
enum { N_FUNCTIONS = sizeof FUNCTIONS / sizeof FUNCTIONS[0] };

struct worst {
    double error;
    float x, got;
    double want;
};

static void check(eas_status st)
{
    if (st == EAS_OK)
        return;
    fprintf(stderr, "%s: %s\n", eas_status_name(st), eas_error_message());
    exit(2);
}

static eas_kernel *kernel_of(const char *name)
{
    eas_builder *b;
    eas_ir *ir;
    eas_kernel *k;
    check(eas_builder_new(name, 0, &b));
    eas_value x = eas_builder_param_buffer(b, "x", EAS_F32),
              out = eas_builder_param_buffer(b, "out", EAS_F32);
    eas_builder_param_scalar(b, "N", EAS_I64, 1); /* the grid follows from it */
    eas_value pid = eas_builder_program_id(b, 0), size = eas_builder_const_int(b, BLOCK);
    eas_value first = eas_builder_apply(b, eas_op_find("mul"), pid, size, 0),
              lane = eas_builder_arange(b, 0, BLOCK);
    eas_value offs = eas_builder_apply(b, eas_op_find("add"), first, lane, 0);
    eas_value v = eas_builder_load(b, x, offs, 0, 0);
    eas_builder_store(b, out, offs, eas_builder_apply(b, eas_op_find(name), v, 0, 0), 0);
    check(eas_builder_finish(b, &ir));
    eas_builder_free(b);
    check(eas_kernel_new(ir, &k));
    eas_ir_release(ir);
    return k;
}

/* How many ULP make 1 at |want|, which is finite: a power of two, put together from the exponent, as this
 * runs 2^32 times. */
static double ulps_in_one(double want)
{
    int64_t bits, e;
    double r;
    memcpy(&bits, &want, sizeof bits);
    e = (bits >> 52 & 0x7ff) - 1023;
    e = e < -126 ? -126 : e > 127 ? 127 : e;
    bits = (23 - e + 1023) << 52;
    memcpy(&r, &bits, sizeof r);
    return r;
}

/* Infinity stands for 2^128, the float that comes after the largest. */
static double bounded(double v) { return v > 0x1p128 ? 0x1p128 : v < -0x1p128 ? -0x1p128 : v; }

static double error_of(float got, double want)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want) ? 0 : INFINITY;
    if (want == 0 && (got != 0 || !signbit(got) != !signbit(want)))
        return INFINITY;
    want = bounded(want);
    return fabs(bounded(got) - want) * ulps_in_one(want);
}

static void compare(const struct function *f, const float *x, const float *out, struct worst *w)
{
    for (int i = 0; i < CHUNK; i++) {
        double want = f->exact(x[i]), error = error_of(out[i], want);
        if (error > w->error)
            *w = (struct worst){error, x[i], out[i], want};
    }
}

static struct worst sweep(const struct function *f, eas_device *cpu)
{
    static uint32_t bits[CHUNK];
    static float x[CHUNK], out[CHUNK];
    struct worst w = {0, 0, 0, 0};
    eas_kernel *k = kernel_of(f->name);
    eas_arg args[3] = {{{x}, CHUNK, EAS_F32, 1, EAS_ARG_READONLY},
                       {{out}, CHUNK, EAS_F32, 1, 0},
                       {{NULL}, 0, EAS_I64, 0, 0}};
    args[2].v.i = CHUNK;
    for (uint64_t first = 0; first < UINT64_C(1) << 32; first += CHUNK) {
        for (uint32_t i = 0; i < CHUNK; i++)
            bits[i] = (uint32_t)first + i;
        memcpy(x, bits, sizeof x);
        check(eas_kernel_launch(k, cpu, args, 3, NULL));
        compare(f, x, out, &w);
    }
    eas_kernel_release(k);
    return w;
}

static const struct function *find(const char *name)
{
    for (int i = 0; i < N_FUNCTIONS; i++)
        if (!strcmp(FUNCTIONS[i].name, name))
            return &FUNCTIONS[i];
    fprintf(stderr, "no function %s; there are", name);
    for (int i = 0; i < N_FUNCTIONS; i++)
        fprintf(stderr, " %s", FUNCTIONS[i].name);
    fprintf(stderr, "\n");
    exit(2);
}

static int report(const struct function *f, eas_device *cpu)
{
    struct worst w = sweep(f, cpu);
    printf("%-8s %.4f ULP at %a (%.9g): %a, wanted %.13a\n", f->name, w.error, (double)w.x, (double)w.x,
           (double)w.got, w.want);
    fflush(stdout);
    return w.error > 1;
}

int main(int argc, char **argv)
{
    eas_device *cpu;
    int bad = 0;
    for (int i = 1; i < argc; i++)
        find(argv[i]);
    check(eas_device_get("cpu", &cpu));
    printf("%s\n", eas_device_describe(cpu));
    fflush(stdout);
    for (int i = 1; i < argc; i++)
        bad |= report(find(argv[i]), cpu);
    for (int i = 0; i < N_FUNCTIONS && argc == 1; i++)
        bad |= report(&FUNCTIONS[i], cpu);
    return bad;
}
