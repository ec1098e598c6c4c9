/* linalg.c: factorisations of batches of matrices: la.inc for each element type, the general eigenvalue
 * problem in complex numbers, and LAPACK where it is wanted. */
#include "native.h"

#include <complex.h>
#include <float.h>
#include <math.h>

#define FN_(name, type) name##_##type
#define FN2(name, type) FN_(name, type)
#define FN(name) FN2(name, SUFFIX)

#define T float
#define R float
#define SUFFIX s
#define EPS FLT_EPSILON
#define REAL_MIN FLT_MIN
#define REAL_MAX FLT_MAX
#define CJ(x) (x)
#define RE(x) (x)
#define AB(x) fabsf(x)
#define SIZE(x) fabsf(x)
#define KIND NATIVE_F32
#define RSQRT sqrtf
#define RHYPOT hypotf
#define RFABS fabsf
#include "la.inc"
#undef T
#undef SUFFIX
#undef CJ
#undef RE
#undef AB
#undef SIZE
#undef KIND

#define T float _Complex
#define SUFFIX c
#define CJ(x) conjf(x)
#define RE(x) crealf(x)
#define AB(x) cabsf(x)
#define SIZE(x) (fabsf(crealf(x)) + fabsf(cimagf(x)))
#define KIND NATIVE_C64
#include "la.inc"
#undef T
#undef R
#undef SUFFIX
#undef EPS
#undef REAL_MIN
#undef REAL_MAX
#undef CJ
#undef RE
#undef AB
#undef SIZE
#undef KIND
#undef RSQRT
#undef RHYPOT
#undef RFABS

#define T double
#define R double
#define SUFFIX d
#define EPS DBL_EPSILON
#define REAL_MIN DBL_MIN
#define REAL_MAX DBL_MAX
#define CJ(x) (x)
#define RE(x) (x)
#define AB(x) fabs(x)
#define SIZE(x) fabs(x)
#define KIND NATIVE_F64
#define RSQRT sqrt
#define RHYPOT hypot
#define RFABS fabs
#include "la.inc"
#undef T
#undef SUFFIX
#undef CJ
#undef RE
#undef AB
#undef SIZE
#undef KIND

#define T double _Complex
#define SUFFIX z
#define CJ(x) conj(x)
#define RE(x) creal(x)
#define AB(x) cabs(x)
#define SIZE(x) (fabs(creal(x)) + fabs(cimag(x)))
#define KIND NATIVE_C128
#include "la.inc"

typedef float _Complex c64;
typedef double _Complex c128;

static size_t size_of(int64_t type) { return type == NATIVE_F32 ? 4 : type == NATIVE_C128 ? 16 : 8; }
static size_t real_size(int64_t type) { return type == NATIVE_F32 || type == NATIVE_C64 ? 4 : 8; }
static bool is_complex(int64_t type) { return type >= NATIVE_C64; }
static double weight(int64_t type) { return is_complex(type) ? 4 : 1; }

/* f_s(...) or its form for another type, with (float *), (double *), ... in place of (P *) */
#define BY_TYPE(type, call) \
    switch (type) { \
    case NATIVE_F32: { \
        typedef float P __attribute__((unused)); \
        typedef float Q __attribute__((unused)); \
        call(s); \
        break; \
    } \
    case NATIVE_F64: { \
        typedef double P __attribute__((unused)); \
        typedef double Q __attribute__((unused)); \
        call(d); \
        break; \
    } \
    case NATIVE_C64: { \
        typedef c64 P __attribute__((unused)); \
        typedef float Q __attribute__((unused)); \
        call(c); \
        break; \
    } \
    default: { \
        typedef c128 P __attribute__((unused)); \
        typedef double Q __attribute__((unused)); \
        call(z); \
    } \
    }

static const void *matrix_in(const native_call *c, int which, int64_t i, int64_t elements)
{
    return (const char *)c->in[which] + (size_t)(i * elements) * size_of(c->numbers[0]);
}
static void *matrix_out(const native_call *c, int which, int64_t i, int64_t elements)
{
    return (char *)c->out[which] + (size_t)(i * elements) * size_of(c->numbers[0]);
}

static char *aligned_up(char *p) { return p + (-(uintptr_t)p & 63); }

static void conjugate(int64_t type, int64_t n, void *x)
{
    for (int64_t i = 0; i < n && type == NATIVE_C64; i++)
        ((c64 *)x)[i] = conjf(((c64 *)x)[i]);
    for (int64_t i = 0; i < n && type == NATIVE_C128; i++)
        ((c128 *)x)[i] = conj(((c128 *)x)[i]);
}

/* B (n m) = A (m n) transposed; conjugated: also conjugated. */
static void transposed(int64_t type, int64_t m, int64_t n, const void *a, void *b, bool conjugated)
{
#define DO(x) \
    for (int64_t i = 0; i < m; i++) \
        for (int64_t j = 0; j < n; j++) { \
            P v = ((const P *)a)[i * n + j]; \
            ((P *)b)[j * m + i] = v; \
        }
    BY_TYPE(type, DO)
#undef DO
    if (conjugated)
        conjugate(type, m * n, b);
}

/* ---- LAPACK's calling convention passes every argument by address; an int64 serves for integers of either
 * size, since the byte order is little-endian ---- */
typedef int64_t lint;
static int64_t int_at(const void *p, int64_t i)
{
    return lapack_wide() ? ((const int64_t *)p)[i] : ((const int32_t *)p)[i];
}
static bool failed(lint info) { return lapack_wide() ? info != 0 : (int32_t)info != 0; }
static void fill_nan(int64_t type, int64_t n, void *x)
{
    for (int64_t i = 0; i < n * (is_complex(type) ? 2 : 1); i++)
        if (real_size(type) == 4)
            ((float *)x)[i] = NAN;
        else
            ((double *)x)[i] = NAN;
}
static int64_t work_size(int64_t type, const void *first)
{
    double v = real_size(type) == 4 ? (double)*(const float *)first : *(const double *)first;
    return v < 1 ? 1 : (int64_t)(v * 1.01) + 1;
}

#define MIN2(a, b) ((a) < (b) ? (a) : (b))
#define MAX2(a, b) ((a) > (b) ? (a) : (b))

/* ---- LU ---- */

static void lu_one(const native_call *c, int64_t i, const crew *w)
{
    int64_t m = c->numbers[2], n = c->numbers[3];
    void *a = matrix_out(c, 0, i, m * n);
    memcpy(a, matrix_in(c, 0, i, m * n), (size_t)(m * n) * size_of(c->numbers[0]));
#define DO(x) lu_##x(w, m, n, (P *)a, (int64_t *)c->out[1] + i * m, (int64_t *)c->out[2] + i)
    BY_TYPE(c->numbers[0], DO)
#undef DO
}

eas_status native_lu(const native_call *c)
{
    int64_t type = c->numbers[0], m = c->numbers[2], n = c->numbers[3];
    double operations = weight(type) * (double)(m * n) * (double)MIN2(m, n);
    return native_batch(c, c->numbers[1], &(native_work){operations, PRODUCT_ROOM, lu_once_s(m), true},
                        lu_one);
}

/* ---- Cholesky ---- */

static void lower_of(int64_t type, int64_t n, const void *a, void *l)
{
    size_t size = size_of(type);
    for (int64_t i = 0; i < n; i++)
        memcpy((char *)l + (size_t)(i * n) * size, (const char *)a + (size_t)(i * n) * size,
               (size_t)(i + 1) * size);
}

static void cholesky_one(const native_call *c, int64_t i, const crew *w)
{
    int64_t n = c->numbers[2];
    void *l = matrix_out(c, 0, i, n * n);
    lower_of(c->numbers[0], n, matrix_in(c, 0, i, n * n), l);
#define DO(x) cholesky_##x(w, n, (P *)l)
    BY_TYPE(c->numbers[0], DO)
#undef DO
}

eas_status native_cholesky(const native_call *c)
{
    int64_t type = c->numbers[0], n = c->numbers[2];
    double operations = weight(type) * (double)n * (double)n * (double)n / 3;
    size_t each = PRODUCT_ROOM;
#define DO(x) each += cholesky_each_##x(n)
    BY_TYPE(type, DO)
#undef DO
    return native_batch(c, c->numbers[1], &(native_work){operations, each, 0, true}, cholesky_one);
}

/* ---- triangular systems ---- */

static void solve_triangular_one(const native_call *c, int64_t i, const crew *w)
{
    const int64_t *q = c->numbers;
    int64_t n = q[2], k = q[3];
    void *x = matrix_out(c, 0, i, n * k);
    memcpy(x, matrix_in(c, 1, i, n * k), (size_t)(n * k) * size_of(q[0]));
#define DO(t) \
    solve_triangular_##t(w, n, k, q[4] != 0, (int)q[5], q[6] != 0, (const P *)matrix_in(c, 0, i, n * n), \
                         (P *)x)
    BY_TYPE(q[0], DO)
#undef DO
}

eas_status native_solve_triangular(const native_call *c)
{
    const int64_t *q = c->numbers;
    double operations = weight(q[0]) * (double)q[2] * (double)q[2] * (double)q[3];
    return native_batch(c, q[1], &(native_work){operations, PRODUCT_ROOM, 0, true}, solve_triangular_one);
}

/* ---- QR ---- */

static void qr_one(const native_call *c, int64_t i, const crew *w)
{
    const int64_t *q = c->numbers;
    int64_t m = q[2], n = q[3], k = q[4] ? m : MIN2(m, n);
    crew rest = *w;
    void *a = w->once;
    rest.once = aligned_up(w->once + (size_t)(m * n) * size_of(q[0]));
    memcpy(a, matrix_in(c, 0, i, m * n), (size_t)(m * n) * size_of(q[0]));
#define DO(t) qr_##t(&rest, m, n, k, (P *)a, (P *)matrix_out(c, 0, i, m *k), (P *)matrix_out(c, 1, i, k *n))
    BY_TYPE(q[0], DO)
#undef DO
}

eas_status native_qr(const native_call *c)
{
    const int64_t *q = c->numbers;
    int64_t m = q[2], n = q[3];
    double operations = weight(q[0]) * 4 * (double)(m * n) * (double)MIN2(m, n);
    size_t each = PRODUCT_ROOM, once = (size_t)(m * n) * size_of(q[0]) + 64;
#define DO(t) \
    each += qr_each_##t(); \
    once += qr_once_##t(m, n)
    BY_TYPE(q[0], DO)
#undef DO
    return native_batch(c, q[1], &(native_work){operations, each, once, true}, qr_one);
}

/* ---- Hermitian eigenvalues ---- */

static void eigh_one(const native_call *c, int64_t i, const crew *w)
{
    const int64_t *q = c->numbers;
    int64_t n = q[2];
    char *a = w->room, *rest = a + (size_t)(n * n) * size_of(q[0]),
         *values = (char *)c->out[0] + (size_t)(i * n) * real_size(q[0]);
    memcpy(a, matrix_in(c, 0, i, n * n), (size_t)(n * n) * size_of(q[0]));
#define DO(t) \
    eigh_##t(n, (P *)(void *)a, (Q *)(void *)values, q[3] ? (P *)matrix_out(c, 1, i, n *n) : NULL, \
             (P *)(void *)rest)
    BY_TYPE(q[0], DO)
#undef DO
}

/* Problem i by LAPACK's divide and conquer (?syevd, ?heevd). LAPACK reads columns where our matrices have
 * rows, so it sees the transpose, which for a Hermitian matrix is the conjugate: the eigenvalues are the
 * same, the eigenvectors are conjugated. The first call only returns the sizes of the work arrays. */
static eas_status eigh_lapack(const native_call *c, int64_t i, lapack_fn f)
{
    const int64_t *q = c->numbers;
    int64_t type = q[0], n = q[2];
    size_t size = size_of(type);
    char *a = malloc((size_t)(n * n) * size), *w = (char *)c->out[0] + (size_t)(i * n) * real_size(type);
    char first[16], rfirst[16], ifirst[16] = {0};
    lint info = 0, ln = n, ask = -1;
    const char *job = q[3] ? "V" : "N";
    typedef void (*real_fn)(const char *, const char *, lint *, void *, lint *, void *, void *, lint *,
                            void *, lint *, lint *, size_t, size_t);
    typedef void (*complex_fn)(const char *, const char *, lint *, void *, lint *, void *, void *, lint *,
                               void *, lint *, void *, lint *, lint *, size_t, size_t);
    if (!a)
        return base_fail_oom((size_t)(n * n) * size);
    memcpy(a, matrix_in(c, 0, i, n * n), (size_t)(n * n) * size);
    if (is_complex(type))
        ((complex_fn)f)(job, "U", &ln, a, &ln, w, first, &ask, rfirst, &ask, ifirst, &ask, &info, 1, 1);
    else
        ((real_fn)f)(job, "U", &ln, a, &ln, w, first, &ask, ifirst, &ask, &info, 1, 1);
    lint lw = work_size(type, first), lr = is_complex(type) ? work_size(type, rfirst) : 1,
         li = int_at(ifirst, 0);
    char *work = malloc((size_t)lw * size), *rwork = malloc((size_t)lr * size),
         *iwork = malloc((size_t)(li + 1) * 8);
    eas_status st = work && rwork && iwork ? EAS_OK : base_fail_oom((size_t)lw * size);
    if (!st && is_complex(type))
        ((complex_fn)f)(job, "U", &ln, a, &ln, w, work, &lw, rwork, &lr, iwork, &li, &info, 1, 1);
    else if (!st)
        ((real_fn)f)(job, "U", &ln, a, &ln, w, work, &lw, iwork, &li, &info, 1, 1);
    if (!st && q[3]) /* LAPACK worked on the conjugate */
        transposed(type, n, n, a, matrix_out(c, 1, i, n * n), true);
    if (!st && failed(info)) {
        fill_nan(type == NATIVE_C64 ? NATIVE_F32 : type == NATIVE_C128 ? NATIVE_F64 : type, n, w);
        if (q[3])
            fill_nan(type, n * n, matrix_out(c, 1, i, n * n));
    }
    free(a), free(work), free(rwork), free(iwork);
    return st;
}

eas_status native_eigh(const native_call *c)
{
    const int64_t *q = c->numbers;
    int64_t b = q[1], n = q[2];
    lapack_fn f = lapack_wanted(n, b) ? lapack_find(is_complex(q[0]) ? "heevd" : "syevd", (int)q[0]) : NULL;
    eas_status st = EAS_OK;
    for (int64_t i = 0; i < b && f && !st; i++)
        st = eigh_lapack(c, i, f);
    size_t room = (size_t)(2 * n * n + 5 * n + 8) * size_of(q[0]);
    return f ? st
             : native_batch(
                   c, b, &(native_work){weight(q[0]) * 8 * (double)n * (double)n * (double)n, room, 0, false},
                   eigh_one);
}

/* ---- singular values ---- */

/* Our routine needs m >= n: otherwise it gets the conjugate transpose, whose U is the V of this matrix. */
static void svd_one(const native_call *c, int64_t i, const crew *w)
{
    const int64_t *q = c->numbers;
    int64_t m = q[2], n = q[3], k = MIN2(m, n), big = MAX2(m, n);
    bool full = q[4] != 0, vectors = q[5] != 0, flip = m < n;
    int64_t nu = full ? big : k;
    size_t size = size_of(q[0]);
    crew rest = *w;
    char *a = w->once, *ut = a + (size_t)(m * n) * size, *vt = ut + (size_t)(nu * big) * size,
         *scratch = aligned_up(vt + (size_t)(k * k) * size);
    char *s = (char *)c->out[0] + (size_t)(i * k) * real_size(q[0]);
    if (flip)
        transposed(q[0], m, n, matrix_in(c, 0, i, m * n), a, true);
    else
        memcpy(a, matrix_in(c, 0, i, m * n), (size_t)(m * n) * size);
#define DO(t) \
    rest.once = aligned_up(scratch + svd_scratch_##t(big, k, nu) * sizeof(P)); \
    svd_##t(&rest, big, k, (const P *)(void *)a, vectors, nu, (Q *)(void *)s, (P *)(void *)ut, \
            (P *)(void *)vt, scratch)
    BY_TYPE(q[0], DO)
#undef DO
    if (!vectors)
        return;
    void *u = matrix_out(c, 1, i, m * (full ? m : k)), *vh = matrix_out(c, 2, i, (full ? n : k) * n);
    if (!flip) { /* ut: rows are columns of U; vt: rows are columns of V */
        transposed(q[0], nu, big, ut, u, false);
        memcpy(vh, vt, (size_t)(k * k) * size);
        conjugate(q[0], k * k, vh);
    } else { /* A^H = U' S V'^H: A = V' S U'^H */
        transposed(q[0], k, k, vt, u, false);
        memcpy(vh, ut, (size_t)(nu * big) * size);
        conjugate(q[0], nu * big, vh);
    }
}

/* Problem i by LAPACK's divide and conquer (?gesdd). LAPACK reads columns, so the matrix is passed as its
 * transpose, with u and vh exchanged. The first pass only returns the size of the work array. */
static eas_status svd_lapack(const native_call *c, int64_t i, lapack_fn f)
{
    const int64_t *q = c->numbers;
    int64_t type = q[0], m = q[2], n = q[3], k = MIN2(m, n), big = MAX2(m, n);
    bool full = q[4] != 0, vectors = q[5] != 0;
    size_t size = size_of(type);
    const char *job = !vectors ? "N" : full ? "A" : "S";
    lint info = 0, lm = m, ln = n, lk = full ? m : k, ask = -1;
    char first[16], dummy[16], *a = malloc((size_t)(m * n) * size),
                               *s = (char *)c->out[0] + (size_t)(i * k) * real_size(type);
    void *u = vectors ? matrix_out(c, 1, i, m * (full ? m : k)) : dummy,
         *vh = vectors ? matrix_out(c, 2, i, (full ? n : k) * n) : dummy;
    size_t reals = (size_t)(MAX2(5 * k * k + 5 * k, 2 * big * k + 2 * k * k + k) + 8);
    char *rwork = is_complex(type) ? malloc(reals * real_size(type)) : dummy,
         *iwork = malloc((size_t)(8 * k + 1) * 8), *work = NULL;
    typedef void (*real_fn)(const char *, lint *, lint *, void *, lint *, void *, void *, lint *, void *,
                            lint *, void *, lint *, void *, lint *, size_t);
    typedef void (*complex_fn)(const char *, lint *, lint *, void *, lint *, void *, void *, lint *, void *,
                               lint *, void *, lint *, void *, void *, lint *, size_t);
    eas_status st = a && rwork && iwork ? EAS_OK : base_fail_oom((size_t)(m * n) * size);
    lint lw = -1;
    for (int pass = 0; pass < 2 && !st;
         /* LAPACK reads columns, so it sees the transpose, whose left vectors are our right ones: the content
            of u and vh is right as it is */
         pass++) {
        void *at = pass ? work : first;
        memcpy(a, matrix_in(c, 0, i, m * n), (size_t)(m * n) * size);
        if (is_complex(type))
            ((complex_fn)f)(job, &ln, &lm, a, &ln, s, vh, &ln, u, &lk, at, pass ? &lw : &ask, rwork, iwork,
                            &info, 1);
        else
            ((real_fn)f)(job, &ln, &lm, a, &ln, s, vh, &ln, u, &lk, at, pass ? &lw : &ask, iwork, &info, 1);
        if (!pass) {
            lw = work_size(type, first);
            work = malloc((size_t)lw * size);
            st = work ? EAS_OK : base_fail_oom((size_t)lw * size);
        }
    }
    if (!st && failed(info)) {
        fill_nan(real_size(type) == 4 ? NATIVE_F32 : NATIVE_F64, k, s);
        if (vectors) {
            fill_nan(type, m * (full ? m : k), u);
            fill_nan(type, (full ? n : k) * n, vh);
        }
    }
    free(a), free(iwork), free(work);
    if (is_complex(type))
        free(rwork);
    return st;
}

eas_status native_svd(const native_call *c)
{
    const int64_t *q = c->numbers;
    int64_t b = q[1], m = q[2], n = q[3], k = MIN2(m, n), big = MAX2(m, n), nu = q[4] ? big : k;
    lapack_fn f = lapack_wanted(k, b) ? lapack_find("gesdd", (int)q[0]) : NULL;
    eas_status st = EAS_OK;
    for (int64_t i = 0; i < b && f && !st; i++)
        st = svd_lapack(c, i, f);
    double operations = weight(q[0]) * 40 * (double)(m * n) * (double)k;
    size_t each = PRODUCT_ROOM, once = (size_t)(m * n + nu * big + k * k) * size_of(q[0]) + 128;
#define DO(t) \
    each += qr_each_##t(); \
    once += svd_scratch_##t(big, k, nu) * sizeof(P) + qr_once_##t(big, k)
    BY_TYPE(q[0], DO)
#undef DO
    return f ? st : native_batch(c, b, &(native_work){operations, each, once, true}, svd_one);
}

/* ---- general eigenvalues: Hessenberg form by reflections, then single-shift QR to the Schur form; in
 * complex double ---- */

enum { QR_STEPS = 60 };

static void hessenberg(int64_t n, c128 *h, c128 *z, c128 *v, c128 *w)
{
    for (int64_t i = 0; i < n * n && z; i++)
        z[i] = i / n == i % n;
    for (int64_t k = 0; k + 2 < n; k++) {
        double beta;
        int64_t m = n - k - 1;
        for (int64_t i = 0; i < m; i++)
            v[i] = h[(k + 1 + i) * n + k];
        c128 tau = reflector_z(m, v, 1, &beta);
        reflect_left_z(m, n - k - 1, conj(tau), v, 1, h + (k + 1) * n + k + 1, n, w);
        h[(k + 1) * n + k] = beta;
        for (int64_t i = 1; i < m; i++)
            h[(k + 1 + i) * n + k] = 0;
        reflect_right_z(n, m, tau, v, h + k + 1, n);
        if (z)
            reflect_right_z(n, m, tau, v, z + k + 1, n);
    }
}

/* The eigenvalue of the last 2 x 2 block that is nearer to its last element. */
static c128 wilkinson(const c128 *h, int64_t n, int64_t hi)
{
    c128 a = h[(hi - 1) * n + hi - 1], b = h[(hi - 1) * n + hi], cc = h[hi * n + hi - 1], d = h[hi * n + hi];
    c128 half = (a - d) / 2, root = csqrt(half * half + b * cc),
         bottom = cabs(half + root) > cabs(half - root) ? half + root : half - root;
    return bottom == 0 ? d : d - b * cc / bottom;
}

static void qr_sweep(int64_t n, c128 *h, c128 *z, int64_t lo, int64_t hi, c128 shift, double *cs, c128 *sn)
{
    for (int64_t i = lo; i <= hi; i++)
        h[i * n + i] -= shift;
    for (int64_t k = lo; k < hi; k++) {
        c128 x = h[k * n + k], y = h[(k + 1) * n + k];
        double ax = cabs(x), r = hypot(ax, cabs(y));
        c128 phase = ax == 0 ? 1 : x / ax;
        cs[k] = r == 0 ? 1 : ax / r;
        sn[k] = r == 0 ? 0 : phase * conj(y) / r;
        for (int64_t j = k; j < n; j++) {
            c128 a = h[k * n + j], b = h[(k + 1) * n + j];
            h[k * n + j] = cs[k] * a + sn[k] * b;
            h[(k + 1) * n + j] = cs[k] * b - conj(sn[k]) * a;
        }
    }
    for (int64_t k = lo; k < hi; k++) {
        for (int64_t i = 0; i <= (k + 1 < hi ? k + 1 : hi); i++) {
            c128 a = h[i * n + k], b = h[i * n + k + 1];
            h[i * n + k] = cs[k] * a + conj(sn[k]) * b;
            h[i * n + k + 1] = cs[k] * b - sn[k] * a;
        }
        for (int64_t i = 0; i < n && z; i++) {
            c128 a = z[i * n + k], b = z[i * n + k + 1];
            z[i * n + k] = cs[k] * a + conj(sn[k]) * b;
            z[i * n + k + 1] = cs[k] * b - sn[k] * a;
        }
    }
    for (int64_t i = lo; i <= hi; i++)
        h[i * n + i] += shift;
}

static void schur(int64_t n, c128 *h, c128 *z, double *cs, c128 *sn)
{
    int64_t hi = n - 1;
    int steps = 0;
    while (hi > 0) {
        int64_t lo = hi;
        for (; lo > 0; lo--) {
            double around = cabs(h[(lo - 1) * n + lo - 1]) + cabs(h[lo * n + lo]);
            if (cabs(h[lo * n + lo - 1]) <= DBL_EPSILON * around) {
                h[lo * n + lo - 1] = 0;
                break;
            }
        }
        if (lo == hi || steps++ == QR_STEPS) {
            hi--;
            steps = 0;
            continue;
        }
        c128 shift = steps % 11 == 10 ? h[hi * n + hi] + cabs(h[hi * n + hi - 1]) : wilkinson(h, n, hi);
        qr_sweep(n, h, z, lo, hi, shift, cs, sn);
    }
}

/* Vectors of length 1 whose largest element is real, as LAPACK gives them. */
static void eigenvectors(int64_t n, const c128 *h, const c128 *z, c128 *x, c128 *v)
{
    double size = 0;
    for (int64_t i = 0; i < n * n; i++)
        size = cabs(h[i]) > size ? cabs(h[i]) : size;
    for (int64_t k = 0; k < n; k++) {
        double length = 0, most = -1;
        c128 phase = 1;
        for (int64_t i = 0; i < n; i++)
            x[i] = i == k;
        for (int64_t i = k - 1; i >= 0; i--) {
            c128 s = 0, d = h[i * n + i] - h[k * n + k];
            for (int64_t j = i + 1; j <= k; j++)
                s += h[i * n + j] * x[j];
            if (cabs(d) < DBL_EPSILON * size)
                d = DBL_EPSILON * size;
            x[i] = d == 0 ? 0 : -s / d;
        }
        for (int64_t i = 0; i < n; i++) {
            c128 s = 0;
            for (int64_t j = 0; j <= k; j++)
                s += z[i * n + j] * x[j];
            v[i * n + k] = s;
            length = hypot(length, cabs(s));
            if (cabs(s) > most * (1 + 1e-12)) {
                most = cabs(s);
                phase = most == 0 ? 1 : s / most;
            }
        }
        for (int64_t i = 0; i < n; i++)
            v[i * n + k] = v[i * n + k] / phase / (length == 0 ? 1 : length);
    }
}

static c128 element(int64_t type, const void *a, int64_t i)
{
    switch (type) {
    case NATIVE_F32: return ((const float *)a)[i];
    case NATIVE_F64: return ((const double *)a)[i];
    case NATIVE_C64: return ((const c64 *)a)[i];
    default: return ((const c128 *)a)[i];
    }
}

static void put(int64_t type, void *a, int64_t i, c128 v)
{
    if (real_size(type) == 4)
        ((c64 *)a)[i] = (c64)v;
    else
        ((c128 *)a)[i] = v;
}

static void eig_one(const native_call *c, int64_t i, const crew *w)
{
    const int64_t *q = c->numbers;
    int64_t type = q[0], n = q[2];
    c128 *h = (c128 *)(void *)w->room, *z = q[3] ? h + n * n : NULL, *v = h + 2 * n * n, *work = v + n * n,
         *sn = work + 2 * n;
    double *cs = (double *)(sn + n), size = 0;
    const void *a = matrix_in(c, 0, i, n * n);
    bool finite = true;
    for (int64_t k = 0; k < n * n; k++) {
        h[k] = element(type, a, k);
        size = fmax(size, cabs(h[k]));
        finite = finite && isfinite(creal(h[k])) && isfinite(cimag(h[k]));
    }
    if (finite) {
        hessenberg(n, h, z, work, work + n);
        schur(n, h, z, cs, sn);
        if (z)
            eigenvectors(n, h, z, work, v);
    } else
        for (int64_t k = 0; k < 3 * n * n; k++)
            h[k] = NAN;
    double least = is_complex(type) ? 0 : 50 * DBL_EPSILON * size * (double)n;
    for (int64_t k = 0; k < n; k++) {
        c128 w = h[k * n + k];
        bool real = fabs(cimag(w)) <= least && !is_complex(type);
        put(type, c->out[0], i * n + k, real ? creal(w) : w);
        for (int64_t j = 0; j < n && z; j++)
            put(type, c->out[1], (i * n + j) * n + k, real ? creal(v[j * n + k]) : v[j * n + k]);
    }
}

/* Problem i by LAPACK's ?geev, on a transposed copy, since LAPACK reads columns. The first pass only returns
 * the size of the work array. Of a real matrix, a pair of conjugate eigenvectors comes as a real and an
 * imaginary part in two columns. */
static eas_status eig_lapack(const native_call *c, int64_t i, lapack_fn f)
{
    const int64_t *q = c->numbers;
    int64_t type = q[0], n = q[2];
    size_t size = size_of(type);
    char *a = malloc((size_t)(n * n + 1) * size), *w = malloc((size_t)(2 * n + 1) * size),
         *vr = malloc((size_t)(n * n + 1) * size), *rwork = malloc((size_t)(2 * n + 1) * size), first[16],
         *work = NULL;
    lint info = 0, ln = n, one = 1, ask = -1, lw = -1;
    typedef void (*real_fn)(const char *, const char *, lint *, void *, lint *, void *, void *, void *,
                            lint *, void *, lint *, void *, lint *, lint *, size_t, size_t);
    typedef void (*complex_fn)(const char *, const char *, lint *, void *, lint *, void *, void *, lint *,
                               void *, lint *, void *, lint *, void *, lint *, size_t, size_t);
    eas_status st = a && w && vr && rwork ? EAS_OK : base_fail_oom((size_t)(n * n) * size);
    for (int pass = 0; pass < 2 && !st; pass++) {
        void *at = pass ? work : first;
        transposed(type, n, n, matrix_in(c, 0, i, n * n), a, false);
        if (is_complex(type))
            ((complex_fn)f)("N", q[3] ? "V" : "N", &ln, a, &ln, w, NULL, &one, vr, &ln, at, pass ? &lw : &ask,
                            rwork, &info, 1, 1);
        else
            ((real_fn)f)("N", q[3] ? "V" : "N", &ln, a, &ln, w, w + (size_t)n * size, NULL, &one, vr, &ln, at,
                         pass ? &lw : &ask, &info, 1, 1);
        if (!pass) {
            lw = work_size(type, first);
            work = malloc((size_t)lw * size);
            st = work ? EAS_OK : base_fail_oom((size_t)lw * size);
        }
    }
    bool bad = failed(info);
    for (int64_t k = 0; k < n && !st; k++) {
        double im = is_complex(type) ? 0 : creal(element(type, w, n + k));
        put(type, c->out[0], i * n + k,
            bad                ? NAN
            : is_complex(type) ? element(type, w, k)
                               : creal(element(type, w, k)) + im * I);
        /* a pair of conjugate eigenvalues has two columns: the real and the imaginary part of a vector */
        for (int64_t j = 0; j < n && q[3]; j++) {
            c128 v = element(type, vr, k * n + j);
            if (im > 0)
                v = creal(v) + I * creal(element(type, vr, (k + 1) * n + j));
            else if (im < 0)
                v = creal(element(type, vr, (k - 1) * n + j)) - I * creal(v);
            put(type, c->out[1], (i * n + j) * n + k, bad ? NAN : v);
        }
    }
    free(a), free(w), free(vr), free(rwork), free(work);
    return st;
}

static bool all_finite(const native_call *c, int64_t n)
{
    bool ok = true;
    for (int64_t i = 0; i < n && ok; i++) {
        c128 v = element(c->numbers[0], c->in[0], i);
        ok = isfinite(creal(v)) && isfinite(cimag(v));
    }
    return ok;
}

eas_status native_eig(const native_call *c)
{
    const int64_t *q = c->numbers;
    int64_t b = q[1], n = q[2];
    /* whatever the size: for real matrices LAPACK keeps conjugate pairs exact */
    lapack_fn f = n && all_finite(c, b * n * n) ? lapack_find("geev", (int)q[0]) : NULL;
    eas_status st = EAS_OK;
    for (int64_t i = 0; i < b && f && !st; i++)
        st = eig_lapack(c, i, f);
    size_t room = (size_t)(3 * n * n + 6 * n + 8) * sizeof(c128);
    return f ? st
             : native_batch(c, b, &(native_work){100 * (double)n * (double)n * (double)n, room, 0, false},
                            eig_one);
}
