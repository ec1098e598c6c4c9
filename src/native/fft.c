/* fft.c: Fourier transforms along the last axis, of any length, real and complex.
 *
 * A plan has the radices of a length and a table of its roots of unity, computed in double; plans are kept
 * (PLANS of them). Lengths with a prime factor above MAX_RADIX go through Bluestein's convolution. Real
 * transforms share a complex one between two rows. One long sequence is cut into four steps so that it uses
 * all threads and stays in the caches; complex rows whose length has two factors of whole vectors are cut in
 * the same way, each by one thread, in the first cache.
 */
#include "native.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

enum { FFT_COMPLEX, FFT_REAL, FFT_HALF };
enum { MAX_RADIX = 31, MAX_STAGES = 64, PLANS = 32, LONG = 1 << 14, LINE = 16 };
enum { MAX_STRIP = 4, STRIP_BYTES = 3 << 18 }; /* the blocks of a strip stay in the second cache */

typedef struct fft_plan {
    _Atomic int refs;
    int64_t n;
    int nradix, radix[MAX_STAGES];
    float *wr_s, *wi_s, *chirp_re_s, *chirp_im_s, *kernel_re_s, *kernel_im_s;
    double *wr_d, *wi_d, *chirp_re_d, *chirp_im_d, *kernel_re_d, *kernel_im_d;
    struct fft_plan *inner; /* of Bluestein's convolution */
    /* of one long sequence, which has no other tables: e^(-2 pi i k / n) = coarse[k >> shift] fine[the bits
     * below]; steps: w^(k l), for each k of LINE lanes first the cosines, then the sines */
    struct fft_plan *columns, *rows;
    int shift;
    double *coarse, *fine, *steps_d;
    float *steps_s;
    /* all w^(k j) of a sequence that is not long, k of columns->n, j of rows->n; else NULL */
    double *whole_re_d, *whole_im_d;
    float *whole_re_s, *whole_im_s;
} fft_plan;
typedef struct fft_job {
    const void *in[2]; /* real and imaginary parts; the latter is NULL for real sequences */
    void *out[2], *mid;
    /* inner: the distance between elements of a sequence; lanes: the number of sequences, after real ones
     * were paired */
    int64_t batch, n, inner, lanes;
    int kind, strip; /* strip: blocks of V sequences that a step takes */
    bool inverse;
    double scale;
    const fft_plan *plan;
    int64_t row; /* of one long sequence: the distance in elements between rows of `mid` */
    void (*step)(const struct fft_job *, int64_t, void *);
    char *scratch;
    size_t bytes, blocks; /* blocks: where in a thread's scratch `mid` begins, if a row is cut */
} fft_job;

#define FN_(name, type) name##_##type
#define FN2(name, type) FN_(name, type)
#define FN(name) FN2(name, SUFFIX)
#define T float
#define SUFFIX s
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#include "fft.inc"
#undef T
#undef SUFFIX
#undef INTERLEAVE_LOW
#undef INTERLEAVE_HIGH
#define T double
#define SUFFIX d
#define INTERLEAVE_LOW(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#include "fft.inc"
#undef T
#undef SUFFIX
#undef INTERLEAVE_LOW
#undef INTERLEAVE_HIGH

static int64_t lanes_of(bool wide) { return 64 / (int64_t)(wide ? sizeof(double) : sizeof(float)); }

/* ---- plans ---- */

/* e^(-2 pi i k / n): the angle is brought below an eighth of a turn exactly, by integers. */
static void root(int64_t k, int64_t n, double *c, double *s)
{
    int64_t eighth = 8 * (k % n);
    int octant = (int)(eighth / n);
    int64_t rest = eighth % n; /* the angle is (octant + rest / n) / 8 turns */
    double a = 0.78539816339744830962 * (double)(octant & 1 ? n - rest : rest) / (double)n, x = cos(a),
           y = sin(a);
    static const int8_t swap[8] = {0, 1, 1, 0, 0, 1, 1, 0}, neg_c[8] = {0, 0, 1, 1, 1, 1, 0, 0},
                        neg_s[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    *c = swap[octant] ? y : x;
    *s = swap[octant] ? x : y;
    *c = neg_c[octant] ? -*c : *c;
    *s = neg_s[octant] ? *s : -*s; /* forward: the angle is negative */
}

static void plan_drop(fft_plan *p)
{
    if (!p || atomic_fetch_sub(&p->refs, 1) != 1)
        return;
    free(p->wr_s), free(p->wi_s), free(p->wr_d), free(p->wi_d);
    free(p->chirp_re_s), free(p->chirp_im_s), free(p->chirp_re_d), free(p->chirp_im_d);
    free(p->kernel_re_s), free(p->kernel_im_s), free(p->kernel_re_d), free(p->kernel_im_d);
    free(p->coarse), free(p->fine), free(p->steps_s), free(p->steps_d);
    free(p->whole_re_d), free(p->whole_im_d), free(p->whole_re_s), free(p->whole_im_s);
    plan_drop(p->inner), plan_drop(p->columns), plan_drop(p->rows);
    free(p);
}

static bool factorise(fft_plan *p)
{
    int64_t n = p->n;
    while (n % 4 == 0) {
        p->radix[p->nradix++] = 4;
        n /= 4;
    }
    for (int r = 2; r <= MAX_RADIX && n > 1; r++)
        while (n % r == 0) {
            p->radix[p->nradix++] = r;
            n /= r;
        }
    return n == 1;
}

static bool tables(int64_t n, double **re, double **im, float **res, float **ims)
{
    *re = malloc(sizeof **re * (size_t)n), *im = malloc(sizeof **im * (size_t)n);
    *res = malloc(sizeof **res * (size_t)n), *ims = malloc(sizeof **ims * (size_t)n);
    return *re && *im && *res && *ims;
}

static void narrow(int64_t n, const double *re, const double *im, float *res, float *ims)
{
    for (int64_t i = 0; i < n; i++) {
        res[i] = (float)re[i];
        ims[i] = (float)im[i];
    }
}

static fft_plan *plan_get(int64_t n, int64_t n1);

static int64_t smooth_above(int64_t n) /* a multiple of small powers that is not below n */
{
    int64_t best = 1;
    while (best < n)
        best *= 2;
    for (int64_t odd = 3; odd <= 15; odd += 2) {
        int64_t m = odd;
        while (m < n)
            m *= 2;
        if (odd != 7 && odd != 11 && odd != 13 && m < best)
            best = m;
    }
    return best;
}

static bool make_chirp(fft_plan *p)
{
    int64_t n = p->n, m = smooth_above(2 * n - 1);
    if (!(p->inner = plan_get(m, 0)) ||
        !tables(n, &p->chirp_re_d, &p->chirp_im_d, &p->chirp_re_s, &p->chirp_im_s) ||
        !tables(m, &p->kernel_re_d, &p->kernel_im_d, &p->kernel_re_s, &p->kernel_im_s))
        return false;
    const int64_t V = lanes_of(true);
    double *mem = calloc((size_t)(4 * m * V), sizeof *mem);
    if (!mem)
        return false;
    lanes_d x = {mem, mem + m * V}, w = {mem + 2 * m * V, mem + 3 * m * V};
    /* e^(-i pi j^2 / n); e is j^2, modulo 2 n */
    for (int64_t j = 0, e = 0; j < n; e = (e + 2 * j + 1) % (2 * n), j++) {
        root(e, 2 * n, &p->chirp_re_d[j], &p->chirp_im_d[j]);
        x.re[j * V] = p->chirp_re_d[j] / (double)m;
        x.im[j * V] = -p->chirp_im_d[j] / (double)m;
        if (j) {
            x.re[(m - j) * V] = x.re[j * V];
            x.im[(m - j) * V] = x.im[j * V];
        }
    }
    x = stages_d(p->inner, x, w);
    for (int64_t j = 0; j < m; j++) {
        p->kernel_re_d[j] = x.re[j * V];
        p->kernel_im_d[j] = x.im[j * V];
    }
    free(mem);
    narrow(n, p->chirp_re_d, p->chirp_im_d, p->chirp_re_s, p->chirp_im_s);
    narrow(m, p->kernel_re_d, p->kernel_im_d, p->kernel_re_s, p->kernel_im_s);
    return true;
}

static bool make_long(fft_plan *p, int64_t n1)
{
    const int64_t n = p->n;
    while ((1ll << 2 * p->shift) < n)
        p->shift++;
    const int64_t nfine = 1ll << p->shift, ncoarse = (n >> p->shift) + 1, nsteps = 2 * LINE * n1;
    p->columns = plan_get(n1, 0);
    p->rows = plan_get(n / n1, 0);
    p->coarse = malloc(sizeof(double) * 2 * (size_t)ncoarse);
    p->fine = malloc(sizeof(double) * 2 * (size_t)nfine);
    p->steps_d = malloc(sizeof(double) * (size_t)nsteps);
    p->steps_s = malloc(sizeof(float) * (size_t)nsteps);
    if (!p->columns || !p->rows || !p->coarse || !p->fine || !p->steps_d || !p->steps_s)
        return false;
    for (int64_t i = 0; i < ncoarse; i++)
        root((i << p->shift) % n, n, &p->coarse[2 * i], &p->coarse[2 * i + 1]);
    for (int64_t i = 0; i < nfine; i++)
        root(i % n, n, &p->fine[2 * i], &p->fine[2 * i + 1]);
    for (int64_t k = 0; k < n1; k++)
        for (int64_t l = 0; l < LINE; l++)
            root(k * l % n, n, &p->steps_d[2 * LINE * k + l], &p->steps_d[2 * LINE * k + LINE + l]);
    for (int64_t i = 0; i < nsteps; i++)
        p->steps_s[i] = (float)p->steps_d[i];
    if (n > LONG)
        return true;
    if (!tables(n, &p->whole_re_d, &p->whole_im_d, &p->whole_re_s, &p->whole_im_s))
        return false;
    for (int64_t i = 0, n2 = n / n1; i < n; i++)
        root(i / n2 * (i % n2) % n, n, &p->whole_re_d[i], &p->whole_im_d[i]);
    narrow(n, p->whole_re_d, p->whole_im_d, p->whole_re_s, p->whole_im_s);
    return true;
}

static bool make_short(fft_plan *p)
{
    if (!factorise(p))
        return make_chirp(p);
    if (!tables(p->n, &p->wr_d, &p->wi_d, &p->wr_s, &p->wi_s))
        return false;
    for (int64_t k = 0; k < p->n; k++)
        root(k, p->n, &p->wr_d[k], &p->wi_d[k]);
    narrow(p->n, p->wr_d, p->wi_d, p->wr_s, p->wi_s);
    return true;
}

static fft_plan *plan_make(int64_t n, int64_t n1)
{
    fft_plan *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    atomic_init(&p->refs, 1);
    p->n = n;
    if (n1 ? make_long(p, n1) : make_short(p))
        return p;
    plan_drop(p);
    return NULL;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fft_plan *kept[PLANS];
static int next_kept;

/* The plan of a length, counted; n1 > 0: of one long sequence as n1 rows. NULL: no memory. */
static fft_plan *plan_get(int64_t n, int64_t n1)
{
    fft_plan *found = NULL;
    base_lock(&lock);
    for (int i = 0; i < PLANS && !found; i++)
        if (kept[i] && kept[i]->n == n && (kept[i]->columns ? kept[i]->columns->n : 0) == n1)
            found = kept[i];
    if (found)
        atomic_fetch_add(&found->refs, 1);
    base_unlock(&lock);
    if (found || !(found = plan_make(n, n1)))
        return found;
    base_lock(&lock);
    atomic_fetch_add(&found->refs, 1);
    fft_plan *old = kept[next_kept];
    kept[next_kept] = found;
    next_kept = (next_kept + 1) % PLANS;
    base_unlock(&lock);
    plan_drop(old);
    return found;
}

/* elements for each lane */
static int64_t room(const fft_plan *p) { return (p->inner ? 2 * p->n + 4 * p->inner->n : 4 * p->n) + 4; }

/* ---- running ---- */

static void part(void *ctx, int64_t first, int64_t last, int worker)
{
    const fft_job *b = ctx;
    for (int64_t g = first; g < last; g++)
        b->step(b, g, b->scratch + b->bytes * (size_t)worker);
}

/* The most blocks that a step can take so that all steps are whole, blocks of sequences of plan p stay in the
 * caches, and all threads have some steps. side: as many sequences lie side by side. */
static int strip_of(const fft_plan *p, int64_t side, int64_t sequences, bool wide)
{
    const int64_t V = lanes_of(wide);
    int strip = MAX_STRIP;
    while (strip > 1 && (side % (strip * V) || (strip + 1) * 2 * p->n * 64 > STRIP_BYTES ||
                         sequences < strip * V * 4 * pool_size()))
        strip /= 2;
    return strip;
}

/* The bytes of a step's scratch memory: its blocks, and what plan p needs to transform one. */
static size_t strip_bytes(const fft_job *b, const fft_plan *p)
{
    return (size_t)(room(p) + 2 * p->n * (b->strip - 1)) * 64;
}

static eas_status share_out(fft_job *b, int64_t groups, size_t bytes,
                            void (*step)(const fft_job *, int64_t, void *))
{
    int threads = groups > 1 && b->batch * b->n > 20000 ? pool_size() : 1;
    b->bytes = (bytes + 127) & ~(size_t)63;
    b->scratch = aligned_alloc(64, b->bytes * (size_t)threads);
    b->step = step;
    if (!b->scratch)
        return base_fail_oom(b->bytes * (size_t)threads);
    if (threads > 1)
        pool_run(groups, 1, part, b, NULL, NULL);
    else
        part(b, 0, groups, 0);
    free(b->scratch);
    return EAS_OK;
}

static int64_t groups_of(const fft_job *b, int64_t sequences, bool wide)
{
    const int64_t each = lanes_of(wide) * b->strip;
    return (sequences + each - 1) / each;
}

/* The smaller one of the two factors of n that are nearest to each other and multiples of `of`; 0: there are
 * none, or n has large prime factors. */
static int64_t square_factor(int64_t n, int64_t of)
{
    fft_plan p = {.n = n};
    int64_t best = 0;
    if (!factorise(&p))
        return 0;
    for (int64_t d = of; d * d <= n; d += of)
        if (n % d == 0 && n / d % of == 0)
            best = d;
    return best;
}

static size_t mid_bytes(const fft_job *b, int64_t n1, bool wide)
{
    return 2 * (wide ? sizeof(double) : sizeof(float)) * (size_t)(n1 * b->row);
}

static eas_status run_long(fft_job *b, int64_t n1, bool wide)
{
    const int64_t n2 = b->n / n1;
    /* rows are one line longer than needed, so that the lines of a column do not share a set of the caches */
    b->row = n2 + lanes_of(wide);
    const size_t bytes = mid_bytes(b, n1, wide);
    fft_plan *p = plan_get(b->n, n1);
    b->plan = p;
    b->mid = malloc(bytes);
    eas_status st = p && b->mid ? EAS_OK : base_fail_oom(bytes);
    if (!st) {
        b->strip = strip_of(p->columns, n2, n2, wide);
        st = share_out(b, groups_of(b, n2, wide), strip_bytes(b, p->columns),
                       wide ? long_columns_d : long_columns_s);
    }
    if (!st) {
        b->strip = strip_of(p->rows, n1, n1, wide);
        st = share_out(b, groups_of(b, n1, wide), strip_bytes(b, p->rows), wide ? long_rows_d : long_rows_s);
    }
    free(b->mid);
    plan_drop(p);
    return st;
}

/* Rows of n1 times some whole vectors, each in the four steps of a long one. */
static eas_status run_rows(fft_job *b, int64_t n1, bool wide)
{
    fft_plan *p = plan_get(b->n, n1);
    if (!p)
        return base_fail_oom((size_t)b->n * 16);
    b->plan = p;
    const int64_t n2 = b->n / n1, V = lanes_of(wide);
    b->strip = MAX_STRIP;
    while (n1 % (b->strip * V) || n2 % (b->strip * V))
        b->strip /= 2;
    b->row = n2 + V;
    const size_t columns = strip_bytes(b, p->columns), rows = strip_bytes(b, p->rows);
    b->blocks = columns > rows ? columns : rows;
    eas_status st = share_out(b, b->batch, b->blocks + mid_bytes(b, n1, wide), wide ? whole_d : whole_s);
    plan_drop(p);
    return st;
}

eas_status native_fft(const native_call *c)
{
    const int64_t *q = c->numbers;
    bool wide = q[0] != 0;
    fft_job b = {
        .batch = q[1] * q[3], .n = q[2], .inner = q[3], .kind = (int)q[4], .inverse = q[5] != 0, .scale = 1};
    if (b.batch == 0 || b.n == 0)
        return EAS_OK;
    for (int i = 0; i < 2; i++) {
        b.in[i] = i < c->nin ? c->in[i] : NULL;
        b.out[i] = i < c->nout ? c->out[i] : NULL;
    }
    if (q[6] == 1)
        b.scale = 1 / (double)b.n;
    else if (q[6] == 2)
        b.scale = 1 / sqrt((double)b.n);
    const int64_t V = lanes_of(wide);
    int64_t n1 = b.batch == 1 && b.n >= LONG && b.kind != FFT_HALF ? square_factor(b.n, 1) : 0;
    if (n1 >= 32)
        return run_long(&b, n1, wide);
    n1 = b.kind == FFT_COMPLEX && b.inner == 1 && b.n % (V * V) == 0 ? square_factor(b.n, V) : 0;
    if (n1)
        return run_rows(&b, n1, wide);
    fft_plan *p = plan_get(b.n, 0);
    if (!p)
        return base_fail_oom((size_t)b.n * 16);
    b.plan = p;
    b.lanes = b.kind == FFT_COMPLEX ? b.batch : (b.batch + 1) / 2;
    const bool columns = b.kind == FFT_COMPLEX && b.inner % V == 0;
    b.strip = columns ? strip_of(p, b.inner, b.lanes, wide) : 1;
    eas_status st = share_out(&b, groups_of(&b, b.lanes, wide), strip_bytes(&b, p),
                              columns ? (wide ? columns_d : columns_s) : (wide ? group_d : group_s));
    plan_drop(p);
    return st;
}
