/* fuzz_grad.c: derivatives of random kernels.
 *
 * Each kernel is differentiated both ways, and for random cotangents ct and tangents t must hold <ct, J t> =
 * <J^T ct, t>, on ref and on cpu. Where the kernel is smooth, which two step sizes tell, J t must be the
 * difference quotient as well. Kernels that cannot be differentiated are refused with a message; how many is
 * printed.
 *
 *   fuzz_grad [KERNELS [SEED [SECONDS]]]
 */
#include "diff.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

enum { MAX_ARGS = 128 };

typedef struct job {
    trial t;
    eas_ir *ir;
    uint64_t rng;
    bool of[MAX_BUFS], wrt[MAX_BUFS];
    /* of float buffers: tangent of what is in wrt, cotangent of what is in of, as they were drawn */
    double *data[MAX_BUFS];
    double *ct[MAX_BUFS];
} job;

static long refused, smooth, both, zero;
static const char *verbose;

static double uniform(job *j) { return (double)(diff_random(&j->rng) >> 11) / 9007199254740992.0 * 2 - 1; }

/* ---- launches ---- */

/* band: programs along axis 0 that one stands for */
static eas_status launch(const job *j, eas_ir *ir, const char *device, eas_arg *args, int n, int64_t band)
{
    eas_kernel *k;
    eas_device *d;
    eas_launch opts = {.size = sizeof opts,
                       .has_grid = 1,
                       .debug = 2,
                       .grid = {(j->t.grid[0] + band - 1) / band, j->t.grid[1], j->t.grid[2]}};
    eas_status st = eas_kernel_new(ir, &k);
    if (st)
        return st;
    st = eas_device_get(device, &d);
    if (!st)
        st = eas_kernel_launch(k, d, args, n, &opts);
    eas_kernel_release(k);
    return st;
}

static int64_t programs(const job *j) { return j->t.grid[0] * j->t.grid[1] * j->t.grid[2]; }

/* Elements of a scratch buffer. */
static int64_t needed(const job *j, const eas_grad *d, eas_grad_param p)
{
    int64_t scalars[MAX_BUFS + 2] = {0}, trips = 1;
    scalars[j->t.nbufs] = j->t.n;
    if ((p.role == EAS_GRAD_TAPE || p.role == EAS_GRAD_TRIPS) && p.loop >= 0 &&
        eas_grad_trips(d, p.loop, scalars, j->t.grid, &trips))
        return -1;
    switch (p.role) {
    case EAS_GRAD_TAPE: return p.elements * trips * programs(j);
    case EAS_GRAD_TRIPS: return trips;
    case EAS_GRAD_LOCAL: return p.elements * programs(j);
    case EAS_GRAD_PROGRAMS: return j->t.grid[0];
    case EAS_GRAD_BAND: return 2;
    default: return p.param < 0 ? 0 : j->t.count[p.param];
    }
}

/* Runs a derivative on memory (what the kernel itself is given); given[b] is the array for buffer b that
 * comes second: gradient, or result's tangent. */
static eas_status run(const job *j, const eas_grad *d, const char *device, uint8_t *memory,
                      double *const *first, double *const *second)
{
    eas_arg args[MAX_ARGS];
    void *owned[MAX_ARGS] = {0};
    eas_ir *ir = eas_grad_ir(d);
    int n = diff_args(&j->t, memory, args);
    int64_t band = 1;
    eas_status st = eas_ir_param_count(ir) <= MAX_ARGS ? EAS_OK : EAS_ERR_VALUE;
    for (int i = n; i < eas_ir_param_count(ir) && !st; i++) {
        const eas_grad_param p = eas_grad_param_at(d, i);
        const size_t size = eas_dtype_size(p.dtype);
        int64_t count = p.param >= 0 ? j->t.count[p.param] : needed(j, d, p);
        if (count < 0)
            st = EAS_ERR_VALUE;
        args[i] = (eas_arg){
            .dtype = (uint8_t)p.dtype, .is_buffer = p.is_buffer, .count = count, .flags = EAS_ARG_HOST};
        if (p.role == EAS_GRAD_BAND)
            band = count;
        if (p.role == EAS_GRAD_TRIPS || p.role == EAS_GRAD_PROGRAMS || p.role == EAS_GRAD_BAND) {
            args[i].v.i = count;
        } else if (p.role == EAS_GRAD_COTANGENT || p.role == EAS_GRAD_TANGENT || p.role == EAS_GRAD_BOTH) {
            args[i].v.data = first[p.param];
        } else if (p.role == EAS_GRAD_GRADIENT || p.role == EAS_GRAD_RESULT_TANGENT) {
            args[i].v.data = second[p.param];
        } else if (!st) {
            owned[i] = p.zeroed ? calloc((size_t)count + 1, size) : malloc(((size_t)count + 1) * size);
            if (owned[i] && !p.zeroed)
                memset(owned[i], 0x7f, ((size_t)count + 1) * size);
            args[i].v.data = owned[i];
        }
    }
    if (!st)
        st = launch(j, ir, device, args, eas_ir_param_count(ir), band);
    for (int i = 0; i < MAX_ARGS; i++)
        free(owned[i]);
    return st;
}

/* ---- one kernel ---- */

static double *fresh(const double *from, int64_t n)
{
    double *p = calloc((size_t)n + 1, sizeof *p);
    if (p && from)
        memcpy(p, from, (size_t)n * sizeof *p);
    return p;
}

static double dot(const double *x, const double *y, int64_t n, double *size)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) {
        s += x[i] * y[i];
        *size += fabs(x[i] * y[i]);
    }
    return s;
}

typedef struct sums {
    double value, size; /* of a sum, and of its terms */
} sums;

static uint8_t *memory_of(const job *j, double step)
{
    uint8_t *m = malloc(j->t.bytes + 8);
    memcpy(m, j->t.memory, j->t.bytes);
    for (int b = 0; b < j->t.nbufs && step != 0; b++)
        for (int64_t i = 0; j->wrt[b] && i < j->t.count[b]; i++)
            ((double *)(m + j->t.offset[b]))[i] += step * j->data[b][i];
    return m;
}

static eas_status reverse(const job *j, const eas_grad *d, const char *device, sums *out)
{
    double *first[MAX_BUFS] = {0}, *second[MAX_BUFS] = {0};
    uint8_t *m = memory_of(j, 0);
    for (int b = 0; b < j->t.nbufs; b++) {
        first[b] = j->of[b] ? fresh(j->ct[b], j->t.count[b]) : NULL;
        second[b] = j->wrt[b] ? j->of[b] ? first[b] : fresh(NULL, j->t.count[b]) : NULL;
    }
    eas_status st = run(j, d, device, m, first, second);
    *out = (sums){0, 0};
    for (int b = 0; b < j->t.nbufs; b++) {
        if (j->wrt[b])
            out->value += dot(second[b], j->data[b], j->t.count[b], &out->size);
        if (second[b] != first[b])
            free(second[b]);
        free(first[b]);
    }
    free(m);
    return st;
}

static eas_status forward(const job *j, const eas_grad *d, const char *device, sums *out)
{
    double *first[MAX_BUFS] = {0}, *second[MAX_BUFS] = {0};
    uint8_t *m = memory_of(j, 0);
    for (int b = 0; b < j->t.nbufs; b++) {
        first[b] = j->wrt[b] ? fresh(j->data[b], j->t.count[b]) : NULL;
        second[b] = j->of[b] ? j->wrt[b] ? first[b] : fresh(NULL, j->t.count[b]) : NULL;
    }
    eas_status st = run(j, d, device, m, first, second);
    *out = (sums){0, 0};
    for (int b = 0; b < j->t.nbufs; b++) {
        if (j->of[b])
            out->value += dot(second[b], j->ct[b], j->t.count[b], &out->size);
        if (second[b] != first[b])
            free(second[b]);
        free(first[b]);
    }
    free(m);
    return st;
}

static bool quotient(const job *j, double step, double *out)
{
    uint8_t *m[2] = {memory_of(j, step), memory_of(j, -step)};
    eas_arg args[MAX_BUFS + 2];
    bool ok = true;
    for (int k = 0; k < 2; k++)
        ok &= !launch(j, j->ir, "ref", args, diff_args(&j->t, m[k], args), 1);
    *out = 0;
    for (int b = 0; b < j->t.nbufs && ok; b++)
        for (int64_t i = 0; j->of[b] && i < j->t.count[b]; i++) {
            double up = ((double *)(m[0] + j->t.offset[b]))[i], down = ((double *)(m[1] + j->t.offset[b]))[i];
            if (!isfinite(up) || fabs(up) > 1e4)
                ok = false; /* differences of large numbers say little */
            *out += up == down ? 0 : (up - down) / (2 * step) * j->ct[b][i];
        }
    free(m[0]);
    free(m[1]);
    return ok && isfinite(*out);
}

/* Remainders by tiny numbers, and numbers made of bits, which are tiny: nothing is small enough a step. */
static bool jumps(const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op == IR_TREM || ir->insns[i].op == IR_BITCAST)
            return true;
    return false;
}

static bool near(double x, double y, double size, double tolerance)
{
    return fabs(x - y) <= tolerance * (size + 1e-30) || (!isfinite(x) && !isfinite(y));
}

static void complain(const job *j, const char *what, double x, double y)
{
    char *text = NULL;
    eas_ir_text(j->ir, 0, &text);
    printf("%s: %.17g against %.17g\n%s\n", what, x, y, text ? text : "");
    eas_memory_free(text);
}

static bool compare(job *j, const eas_grad *g, const eas_grad *f)
{
    static const char *const devices[] = {"ref", "cpu"};
    sums want = {0, 0}, got, q = {0, 0};
    for (int k = 0; k < 2; k++) {
        if (forward(j, f, devices[k], &got))
            return printf("forward mode fails on %s: %s\n", devices[k], eas_error_message()),
                   complain(j, "forward", 0, 0), false;
        if (k && isfinite(want.size) && !near(want.value, got.value, want.size, 1e-6))
            return complain(j, "forward mode on ref and cpu", want.value, got.value), false;
        want = got;
        if (!isfinite(want.size) || want.size > 1e60)
            return true; /* overflowed: there is nothing to compare */
        if (reverse(j, g, devices[k], &got))
            return eas_error_message()[0] && strstr(eas_error_message(), "max_trips")
                     ? (refused++, true)
                     : (printf("reverse mode fails on %s: %s\n", devices[k], eas_error_message()),
                        complain(j, "reverse", 0, 0), false);
        if (!near(want.value, got.value, want.size + got.size, 1e-6))
            return complain(j, k ? "forward against reverse on cpu" : "forward against reverse on ref",
                            want.value, got.value),
                   false;
    }
    both++;
    zero += want.size == 0;
    double near1, near2;
    if (jumps(j->ir) || !quotient(j, 1e-5, &near1) || !quotient(j, 1e-6, &near2))
        return true;
    q.size = want.size + fabs(near1);
    if (!near(near1, near2, q.size, 1e-5))
        return true; /* a corner, or a number too large for differences */
    smooth++;
    return near(near2, want.value, q.size, 1e-3) ||
           (complain(j, "differences against forward mode", near2, want.value), false);
}

static void choose(job *j)
{
    for (int b = 0; b < j->t.nbufs; b++) {
        const eas_param p = eas_ir_param(j->ir, b);
        if (p.dtype != EAS_F64 || p.is_atomic)
            continue;
        j->of[b] = p.is_written;
        j->wrt[b] = p.is_read;
        j->data[b] = fresh(NULL, j->t.count[b]);
        j->ct[b] = fresh(NULL, j->t.count[b]);
        for (int64_t i = 0; i < j->t.count[b]; i++) {
            j->data[b][i] = uniform(j);
            j->ct[b][i] = uniform(j);
        }
    }
}

static bool check(job *j)
{
    int of[MAX_BUFS], wrt[MAX_BUFS];
    eas_grad_options opt = {
        .of = of, .wrt = wrt, .max_trips = 8, .fresh = j->rng >> 1 & 1, .band = j->rng >> 2 & 1};
    eas_grad *g = NULL, *f = NULL;
    choose(j);
    for (int b = 0; b < j->t.nbufs; b++) {
        if (j->of[b])
            of[opt.nof++] = b;
        if (j->wrt[b])
            wrt[opt.nwrt++] = b;
    }
    if (!opt.nof || !opt.nwrt)
        return true;
    eas_status st = eas_ir_grad(j->ir, &opt, &g);
    if (!st)
        st = eas_ir_jvp(j->ir, &opt, &f);
    bool ok = true;
    if (st == EAS_ERR_VALUE) {
        refused++;
        if (verbose)
            printf("refused: %s\n", eas_error_message());
    } else if (st) {
        complain(j, eas_error_message(), 0, 0);
        ok = false;
    } else {
        ok = compare(j, g, f);
    }
    eas_grad_free(g);
    eas_grad_free(f);
    return ok;
}

static bool one(uint64_t seed)
{
    static const knobs sizes[] = {{.max_lanes = 12, .max_grid = 2, .max_steps = 5, .max_depth = 1},
                                  {.max_lanes = 80, .max_grid = 4, .max_steps = 12, .max_depth = 2}};
    knobs k = sizes[seed % 2];
    char why[200] = "";
    job j = {.rng = seed};
    k.seed = seed;
    k.floats = true;
    if (!diff_make(&k, &j.t, why, sizeof why))
        return printf("seed %" PRIu64 ": %s\n", seed, why), false;
    bool ok = !eas_ir_simplify(j.t.ir, &j.ir) && check(&j);
    if (!ok)
        printf("seed %" PRIu64 "\n", seed);
    for (int b = 0; b < MAX_BUFS; b++) {
        free(j.data[b]);
        free(j.ct[b]);
    }
    eas_ir_release(j.ir);
    diff_free(&j.t);
    return ok;
}

int main(int argc, char **argv)
{
    const long n = argc > 1 ? atol(argv[1]) : 1000;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const double limit = argc > 3 ? atof(argv[3]) : 1e9;
    const time_t start = time(NULL);
    long done = 0, bad = 0;
    verbose = getenv("EAS_FUZZ_VERBOSE");
    for (; done < n && bad < 5 && difftime(time(NULL), start) < limit; done++)
        bad += !one(seed + (uint64_t)done);
    printf(
        "%ld kernels: %ld agree both ways, %ld of them are smooth and agree with differences, %ld are zero; %ld are refused, %ld are wrong\n",
        done, both, smooth, zero, refused, bad);
    return bad != 0;
}
