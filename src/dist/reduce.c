/* reduce.c: joining the blocks of several ranks.
 *
 * All engines call reduce_blocks, so that a reduction gives the same bits wherever it runs. Elements go
 * through in blocks of BLOCK bytes that stay in the first cache: the tree over the inputs is walked for each
 * block, inputs are read once where they lie, and the result is copied to every output. f16 and bf16 are
 * widened to f32 at the leaves and rounded at the root, by integer operations that give the same bits with
 * every instruction set. The loops are compiled twice, for the base instruction set and for AVX2.
 */
#include "reduce.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3") /* at -O2 loops of unknown length are not made into vectors */
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#define HAVE_AVX2 1
#endif

enum { BLOCK = 4096, DEPTH = 14 }; /* bytes of widened elements; groups have fewer than 2^DEPTH members */
/* results of this size and more are not read from the cache by whoever comes next */
static const size_t STREAM = 4u << 20;

/* dst may be an operand, element by element; it never overlaps one shifted */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* with sanitizers loops are not made into vectors */
#define IN_ANY_ORDER _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define IN_ANY_ORDER _Pragma("GCC ivdep")
#else
#define IN_ANY_ORDER
#endif
#define INLINE static inline __attribute__((always_inline))

bool reduce_fits(comm_reduction red, eas_dtype dt)
{
    switch (red) {
    case COMM_RED_sum:
    case COMM_RED_prod: return dt != EAS_BOOL;
    case COMM_RED_and:
    case COMM_RED_or: return !dtype_is_float(dt);
    default: return true;
    }
}

/* ---- loops ---- */

/* Integers wrap: products and sums are taken in an unsigned type that int does not swallow. */
#define LOOP(T, expr) \
    do { \
        T *d = dst; \
        const T *x = a, *y = b; \
        IN_ANY_ORDER for (int64_t i = 0; i < n; i++) \
        { \
            T p = x[i], q = y[i]; \
            d[i] = (T)(expr); \
        } \
    } while (0)
#define INTEGERS(T, U) \
    switch (red) { \
    case COMM_RED_sum: LOOP(T, (U)p + (U)q); return; \
    case COMM_RED_prod: LOOP(T, (U)p *(U)q); return; \
    case COMM_RED_max: LOOP(T, p > q ? p : q); return; \
    case COMM_RED_min: LOOP(T, p < q ? p : q); return; \
    case COMM_RED_and: LOOP(T, p &q); return; \
    case COMM_RED_or: LOOP(T, p | q); return; \
    default: return; \
    }
#define FLOATS(T) \
    switch (red) { \
    case COMM_RED_sum: LOOP(T, p + q); return; \
    case COMM_RED_prod: LOOP(T, p *q); return; \
    case COMM_RED_max: LOOP(T, p > q || p != p ? p : q); return; \
    case COMM_RED_min: LOOP(T, p < q || p != p ? p : q); return; \
    default: return; \
    }

/* dst may be a or b. */
INLINE void join_body(comm_reduction red, eas_dtype dt, void *dst, const void *a, const void *b, int64_t n)
{
    switch (dt) {
    case EAS_BOOL:
    case EAS_U8: INTEGERS(uint8_t, uint32_t)
    case EAS_I8: INTEGERS(int8_t, uint32_t)
    case EAS_U16: INTEGERS(uint16_t, uint32_t)
    case EAS_I16: INTEGERS(int16_t, uint32_t)
    case EAS_U32: INTEGERS(uint32_t, uint32_t)
    case EAS_I32: INTEGERS(int32_t, uint32_t)
    case EAS_U64: INTEGERS(uint64_t, uint64_t)
    case EAS_I64: INTEGERS(int64_t, uint64_t)
    case EAS_F64: FLOATS(double)
    default: FLOATS(float)
    }
}

INLINE float as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

INLINE uint32_t as_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

/* A subnormal is made by subtracting 0.5 from 0.5 + m 2^-24: exact, and no operand is subnormal, which
 * processors are slow at. */
INLINE uint32_t f16_widen(uint32_t h)
{
    uint32_t sign = (h & 0x8000) << 16, m = h & 0x7fff, u = m << 13;
    uint32_t small = as_bits(as_float(m | 0x3f000000) - 0.5f);
    uint32_t normal = u + 0x38000000 + (u >= 0x0f800000 ? 0x38000000 : 0);
    return sign | (u < 0x00800000 ? small : normal);
}

INLINE uint16_t f16_round(uint32_t u)
{
    uint32_t sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    uint32_t large = u > 0x7f800000 ? 0x7e00 : 0x7c00;
    uint32_t small = as_bits(as_float(u < 0x38800000 ? u : 0) + 0.5f) - 0x3f000000;
    uint32_t normal = (u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13;
    return (uint16_t)(sign | (u >= 0x47800000 ? large : u < 0x38800000 ? small : normal));
}

INLINE uint16_t bf16_round(uint32_t u)
{
    uint32_t nan = (u >> 16 & 0x8000) | 0x7fc0;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? nan : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

INLINE void widen_body(eas_dtype dt, uint32_t *dst, const uint16_t *src, int64_t n)
{
    if (dt == EAS_F16)
        IN_ANY_ORDER for (int64_t i = 0; i < n; i++) dst[i] = f16_widen(src[i]);
    else
        IN_ANY_ORDER for (int64_t i = 0; i < n; i++) dst[i] = (uint32_t)src[i] << 16;
}

INLINE void round_body(eas_dtype dt, uint16_t *dst, const uint32_t *src, int64_t n)
{
    if (dt == EAS_F16)
        IN_ANY_ORDER for (int64_t i = 0; i < n; i++) dst[i] = f16_round(src[i]);
    else
        IN_ANY_ORDER for (int64_t i = 0; i < n; i++) dst[i] = bf16_round(src[i]);
}

typedef struct loops {
    void (*join)(comm_reduction, eas_dtype, void *, const void *, const void *, int64_t);
    void (*widen)(eas_dtype, uint32_t *, const uint16_t *, int64_t);
    void (*round)(eas_dtype, uint16_t *, const uint32_t *, int64_t);
} loops;

#define LOOPS(name, target) \
    target static void join_##name(comm_reduction red, eas_dtype dt, void *d, const void *a, const void *b, \
                                   int64_t n) \
    { \
        join_body(red, dt, d, a, b, n); \
    } \
    target static void widen_##name(eas_dtype dt, uint32_t *d, const uint16_t *s, int64_t n) \
    { \
        widen_body(dt, d, s, n); \
    } \
    target static void round_##name(eas_dtype dt, uint16_t *d, const uint32_t *s, int64_t n) \
    { \
        round_body(dt, d, s, n); \
    } \
    static const loops loops_##name = {join_##name, widen_##name, round_##name};

LOOPS(base, )
#ifdef HAVE_AVX2
#define AVX2 __attribute__((target("avx2,f16c")))
LOOPS(avx2, AVX2)

AVX2 static void widen_f16c(eas_dtype dt, uint32_t *dst, const uint16_t *src, int64_t n)
{
    int64_t i = 0;
    for (; dt == EAS_F16 && i + 8 <= n; i += 8)
        _mm256_storeu_ps((float *)(void *)(dst + i),
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
    widen_avx2(dt, dst + i, src + i, n - i);
}

/* NaNs are made what f16_round makes of them. */
AVX2 static void round_f16c(eas_dtype dt, uint16_t *dst, const uint32_t *src, int64_t n)
{
    int64_t i = 0;
    for (; dt == EAS_F16 && i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps((const float *)(const void *)(src + i));
        __m256i wide = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m128i is_nan = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
        __m128i nan = _mm_or_si128(_mm_and_si128(h, _mm_set1_epi16((short)0x8000)), _mm_set1_epi16(0x7e00));
        _mm_storeu_si128((__m128i *)(void *)(dst + i), _mm_blendv_epi8(h, nan, is_nan));
    }
    round_avx2(dt, dst + i, src + i, n - i);
}

static const loops loops_f16c = {join_avx2, widen_f16c, round_f16c};
#endif

static const loops *the_loops(void)
{
#ifdef HAVE_AVX2
    const char *isa = base_env("EAS_ISA"); /* tests run as on machines with less */
    if (!(isa && !strncmp(isa, "sse", 3)) && __builtin_cpu_supports("avx2"))
        return __builtin_cpu_supports("f16c") ? &loops_f16c : &loops_avx2;
#endif
    return &loops_base;
}

/* ---- copies ---- */

#if defined(__x86_64__)
static void stream(char *dst, const char *src, size_t bytes)
{
    size_t head = -(uintptr_t)dst & 15;
    if (head > bytes)
        head = bytes;
    memcpy(dst, src, head);
    size_t i = head;
    for (; i + 64 <= bytes; i += 64)
        for (int k = 0; k < 64; k += 16)
            _mm_stream_si128((__m128i *)(void *)(dst + i + k),
                             _mm_loadu_si128((const __m128i *)(const void *)(src + i + k)));
    memcpy(dst + i, src + i, bytes - i);
}
static void stream_done(void) { _mm_sfence(); }
#else
static void stream(char *dst, const char *src, size_t bytes) { memcpy(dst, src, bytes); }
static void stream_done(void) {}
#endif

void reduce_copy(void *dst, const void *src, size_t bytes, bool large)
{
    if (!bytes || dst == src)
        return;
    if (!large) {
        memcpy(dst, src, bytes);
        return;
    }
    stream(dst, src, bytes);
    stream_done();
}

/* ---- the tree ---- */

typedef struct walk {
    const loops *l;
    comm_reduction red;
    eas_dtype dt;
    const void *const *in;
    int64_t at, n; /* elements of this block */
    /* the result of a subtree, by its depth; its left child's lies in the same place */
    _Alignas(64) char scratch[DEPTH + 1][BLOCK];
} walk;

static bool is_half(eas_dtype dt) { return dt == EAS_F16 || dt == EAS_BF16; }

static const void *leaf(walk *w, int k, int depth)
{
    if (!is_half(w->dt))
        return (const char *)w->in[k] + w->at * (int64_t)eas_dtype_size(w->dt);
    w->l->widen(w->dt, (uint32_t *)(void *)w->scratch[depth], (const uint16_t *)w->in[k] + w->at, w->n);
    return w->scratch[depth];
}

static const void *subtree(walk *w, int lo, int hi, int depth)
{
    if (hi - lo == 1)
        return leaf(w, lo, depth);
    int m = 1;
    while (2 * m < hi - lo)
        m *= 2;
    const void *a = subtree(w, lo, lo + m, depth), *b = subtree(w, lo + m, hi, depth + 1);
    w->l->join(w->red, w->dt, w->scratch[depth], a, b, w->n);
    return w->scratch[depth];
}

void reduce_blocks(comm_reduction red, eas_dtype dt, int n, const void *const *in, int nouts,
                   void *const *outs, int64_t count)
{
    walk w;
    w.l = the_loops(), w.red = red, w.dt = dt, w.in = in;
    size_t size = eas_dtype_size(dt);
    int64_t step = BLOCK / (int64_t)(is_half(dt) ? 4 : size);
    bool large = (size_t)count * size >= STREAM;
    _Alignas(64) uint16_t halves[BLOCK / 4];
    for (w.at = 0; w.at < count; w.at += step) {
        w.n = count - w.at < step ? count - w.at : step;
        const void *r = subtree(&w, 0, n, 0);
        if (is_half(dt)) {
            w.l->round(dt, halves, r, w.n);
            r = halves;
        }
        for (int j = 0; j < nouts; j++) {
            char *out = (char *)outs[j] + (size_t)w.at * size;
            if (large)
                stream(out, r, (size_t)w.n * size);
            else if (out != r)
                memcpy(out, r, (size_t)w.n * size);
        }
    }
    if (large)
        stream_done();
}
