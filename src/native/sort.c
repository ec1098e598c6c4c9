/* sort.c: rows of numbers in order, by a quicksort of vectors (sort.inc), on several threads.
 *
 * Numbers become signed keys of the same order: in negative floats all bits but the sign are inverted, and a
 * NaN is the largest key, so that it comes last. Keys are sorted in the output array. The result has the bits
 * that the kernel of src/exec/lower_sort.c gives, since equal keys are equal bits.
 */
#include "native.h"

/* vectors of a sorting network, and of one step of a split; keys that make a thread worthwhile */
enum { REGISTERS = 8, SPLIT_MOST = 8, APART = 1 << 15 };

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 12)
#include <immintrin.h>

#define FN_(name, type) name##_##type
#define FN2(name, type) FN_(name, type)
#define FN(name) FN2(name, SUFFIX)
#define XOR4(x) 0 ^ (x), 1 ^ (x), 2 ^ (x), 3 ^ (x)
#define XOR8(x) XOR4(x), 4 ^ (x), 5 ^ (x), 6 ^ (x), 7 ^ (x)
#define XOR16(x) XOR8(x), 8 ^ (x), 9 ^ (x), 10 ^ (x), 11 ^ (x), 12 ^ (x), 13 ^ (x), 14 ^ (x), 15 ^ (x)
/* Bit l of each is set if l has the bit: 1, 2, 4 or 8. */
#define WITH(bit) ((bit) == 1 ? 0xaaaa : (bit) == 2 ? 0xcccc : (bit) == 4 ? 0xf0f0 : 0xff00)

/* ---- AVX-512: compressing moves ---- */

#define TARGET __attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,bmi2,popcnt")))

TARGET static inline int spread16(__m512i v, int32_t p, int32_t *low, int32_t *high)
{
    const __mmask16 m = _mm512_cmplt_epi32_mask(v, _mm512_set1_epi32(p));
    const int less = __builtin_popcount(m);
    _mm512_storeu_si512(low, _mm512_maskz_compress_epi32(m, v));
    _mm512_mask_storeu_epi32(high - (16 - less), (__mmask16)(0xffffu >> less),
                             _mm512_maskz_compress_epi32((__mmask16)~m, v));
    return less;
}

TARGET static inline int spread8(__m512i v, int64_t p, int64_t *low, int64_t *high)
{
    const __mmask8 m = _mm512_cmplt_epi64_mask(v, _mm512_set1_epi64(p));
    const int less = __builtin_popcount(m);
    _mm512_storeu_si512(low, _mm512_maskz_compress_epi64(m, v));
    _mm512_mask_storeu_epi64(high - (8 - less), (__mmask8)(0xffu >> less),
                             _mm512_maskz_compress_epi64((__mmask8)~m, v));
    return less;
}

#define KEY int32_t
#define KEY_MAX INT32_MAX
#define LANES 16
#define XOR(x) XOR16(x)
#define LEAST(x, y) (KEYS) _mm512_min_epi32((__m512i)(x), (__m512i)(y))
#define MOST(x, y) (KEYS) _mm512_max_epi32((__m512i)(x), (__m512i)(y))
#define CHOOSE(b, x, y) (KEYS) _mm512_mask_blend_epi32(WITH(b), (__m512i)(x), (__m512i)(y))
#define SUFFIX i32_512
#define SPREAD(v, p, low, high) spread16((__m512i)(v), p, low, high)
#include "sort.inc"
#undef KEY
#undef KEY_MAX
#undef LANES
#undef XOR
#undef LEAST
#undef MOST
#undef CHOOSE
#undef SUFFIX
#undef SPREAD
#define KEY int64_t
#define KEY_MAX INT64_MAX
#define LANES 8
#define XOR(x) XOR8(x)
#define LEAST(x, y) (KEYS) _mm512_min_epi64((__m512i)(x), (__m512i)(y))
#define MOST(x, y) (KEYS) _mm512_max_epi64((__m512i)(x), (__m512i)(y))
#define CHOOSE(b, x, y) (KEYS) _mm512_mask_blend_epi64(WITH(b) & 255, (__m512i)(x), (__m512i)(y))
#define SUFFIX i64_512
#define SPREAD(v, p, low, high) spread8((__m512i)(v), p, low, high)
#include "sort.inc"
#undef KEY
#undef KEY_MAX
#undef LANES
#undef XOR
#undef LEAST
#undef MOST
#undef CHOOSE
#undef SUFFIX
#undef SPREAD
#undef TARGET

/* ---- AVX2: a permutation for each mask puts the smaller keys first ---- */

#define TARGET __attribute__((target("avx2,bmi2,popcnt")))

static uint64_t order8[256]; /* a byte for each lane */
static uint64_t order4[16];  /* of 64-bit lanes: two bytes for each */

static void fill_orders(void)
{
    for (unsigned m = 0; m < 256; m++) {
        int at = 0;
        for (int set = 1; set >= 0; set--)
            for (unsigned l = 0; l < 8; l++)
                if ((int)(m >> l & 1) == set)
                    order8[m] |= (uint64_t)l << 8 * at++;
    }
    for (unsigned m = 0; m < 16; m++) {
        int at = 0;
        for (int set = 1; set >= 0; set--)
            for (unsigned l = 0; l < 4; l++)
                if ((int)(m >> l & 1) == set) {
                    order4[m] |= (uint64_t)(2 * l) << 16 * at | (uint64_t)(2 * l + 1) << (16 * at + 8);
                    at++;
                }
    }
}

TARGET static inline int spread8n(__m256i v, int32_t p, int32_t *low, int32_t *high)
{
    const unsigned m =
        (unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(p), v)));
    const int less = __builtin_popcount(m);
    v = _mm256_permutevar8x32_epi32(v, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)order8[m])));
    _mm256_storeu_si256((__m256i_u *)low, v);
    _mm256_storeu_si256((__m256i_u *)(high - 8), v);
    return less;
}

TARGET static inline int spread4(__m256i v, int64_t p, int64_t *low, int64_t *high)
{
    const unsigned m =
        (unsigned)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(_mm256_set1_epi64x(p), v)));
    const int less = __builtin_popcount(m);
    v = _mm256_permutevar8x32_epi32(v, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)order4[m])));
    _mm256_storeu_si256((__m256i_u *)low, v);
    _mm256_storeu_si256((__m256i_u *)(high - 4), v);
    return less;
}

TARGET static inline __m256i least4(__m256i x, __m256i y)
{
    return _mm256_blendv_epi8(x, y, _mm256_cmpgt_epi64(x, y));
}
TARGET static inline __m256i most4(__m256i x, __m256i y)
{
    return _mm256_blendv_epi8(y, x, _mm256_cmpgt_epi64(x, y));
}

#define KEY int32_t
#define KEY_MAX INT32_MAX
#define LANES 8
#define XOR(x) XOR8(x)
#define LEAST(x, y) (KEYS) _mm256_min_epi32((__m256i)(x), (__m256i)(y))
#define MOST(x, y) (KEYS) _mm256_max_epi32((__m256i)(x), (__m256i)(y))
#define CHOOSE(b, x, y) (KEYS) _mm256_blend_epi32((__m256i)(x), (__m256i)(y), WITH(b) & 255)
#define SUFFIX i32_256
#define SPREAD(v, p, low, high) spread8n((__m256i)(v), p, low, high)
#include "sort.inc"
#undef KEY
#undef KEY_MAX
#undef LANES
#undef XOR
#undef LEAST
#undef MOST
#undef CHOOSE
#undef SUFFIX
#undef SPREAD
#define KEY int64_t
#define KEY_MAX INT64_MAX
#define LANES 4
#define XOR(x) XOR4(x)
#define LEAST(x, y) (KEYS) least4((__m256i)(x), (__m256i)(y))
#define MOST(x, y) (KEYS) most4((__m256i)(x), (__m256i)(y))
#define CHOOSE(b, x, y) (KEYS) _mm256_blend_epi32((__m256i)(x), (__m256i)(y), WITH(2 * (b)) & 255)
#define SUFFIX i64_256
#define SPREAD(v, p, low, high) spread4((__m256i)(v), p, low, high)
#include "sort.inc"
#undef KEY
#undef KEY_MAX
#undef LANES
#undef XOR
#undef LEAST
#undef MOST
#undef CHOOSE
#undef SUFFIX
#undef SPREAD
#undef TARGET

#include <pthread.h>

/* ---- numbers and keys ---- */

typedef struct sorter {
    void (*range)(void *keys, int64_t n, int depth);
    int64_t (*cut)(void **keys, int64_t *n);
    int size; /* of a key */
    char kind; /* of the numbers: f, i, u */
    bool down;
    int64_t n;
    const char *in;
    char *out;
} sorter;

HOT static void keys_32(const uint32_t *x, int32_t *k, int64_t n, char kind)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t b = x[i], nan = (b & 0x7fffffffu) > 0x7f800000u,
                       turned = b ^ (uint32_t)((int32_t)b >> 31 & INT32_MAX);
        k[i] = (int32_t)(kind == 'f'   ? (nan ? (uint32_t)INT32_MAX : turned)
                         : kind == 'u' ? b ^ 0x80000000u
                                       : b);
    }
}

HOT static void keys_64(const uint64_t *x, int64_t *k, int64_t n, char kind)
{
    for (int64_t i = 0; i < n; i++) {
        const uint64_t b = x[i], nan = (b & INT64_MAX) > 0x7ffull << 52,
                       turned = b ^ (uint64_t)((int64_t)b >> 63 & INT64_MAX);
        k[i] = (int64_t)(kind == 'f'   ? (nan ? (uint64_t)INT64_MAX : turned)
                         : kind == 'u' ? b ^ (uint64_t)1 << 63
                                       : b);
    }
}

HOT static void numbers_32(uint32_t *k, int64_t n, char kind)
{
    for (int64_t i = 0; i < n && kind != 'i'; i++)
        k[i] ^= kind == 'f' ? (uint32_t)((int32_t)k[i] >> 31 & INT32_MAX) : 0x80000000u;
}

HOT static void numbers_64(uint64_t *k, int64_t n, char kind)
{
    for (int64_t i = 0; i < n && kind != 'i'; i++)
        k[i] ^= kind == 'f' ? (uint64_t)((int64_t)k[i] >> 63 & INT64_MAX) : (uint64_t)1 << 63;
}

static void to_keys(const sorter *s, const char *in, char *out, int64_t n)
{
    if (s->size == 4)
        keys_32((const uint32_t *)in, (int32_t *)out, n, s->kind);
    else
        keys_64((const uint64_t *)in, (int64_t *)out, n, s->kind);
}

static void to_numbers(const sorter *s, char *out, int64_t n)
{
    if (s->size == 4)
        numbers_32((uint32_t *)out, n, s->kind);
    else
        numbers_64((uint64_t *)out, n, s->kind);
}

/* Reverses the whole row, for an order from the largest to the smallest. */
static void turn_round(const sorter *s, char *row)
{
    for (int64_t i = 0, j = s->n - 1; i < j; i++, j--) {
        uint64_t t = 0;
        memcpy(&t, row + i * s->size, (size_t)s->size);
        memcpy(row + i * s->size, row + j * s->size, (size_t)s->size);
        memcpy(row + j * s->size, &t, (size_t)s->size);
    }
}

static int depth_of(int64_t n) { return 2 * (64 - __builtin_clzll((unsigned long long)n + 1)); }

static void some_rows(void *ctx, int64_t first, int64_t last, int worker)
{
    const sorter *s = ctx;
    (void)worker;
    for (int64_t r = first; r < last; r++) {
        char *row = s->out + r * s->n * s->size;
        to_keys(s, s->in + r * s->n * s->size, row, s->n);
        s->range(row, s->n, depth_of(s->n));
        to_numbers(s, row, s->n);
        if (s->down)
            turn_round(s, row);
    }
}

/* ---- one row on several threads: split until there are enough ranges, which are then sorted one by one ----
 */

enum { RANGES = 32 };

typedef struct ranges {
    const sorter *s;
    char *row;
    struct {
        char *at;
        int64_t n;
    } r[RANGES];
    int len;
} ranges;

static void encode_part(void *ctx, int64_t first, int64_t last, int worker)
{
    const ranges *x = ctx;
    (void)worker;
    to_keys(x->s, x->s->in + (x->row - x->s->out) + first * x->s->size, x->row + first * x->s->size,
            last - first);
}

static void decode_part(void *ctx, int64_t first, int64_t last, int worker)
{
    const ranges *x = ctx;
    (void)worker;
    to_numbers(x->s, x->row + first * x->s->size, last - first);
}

static void sort_part(void *ctx, int64_t first, int64_t last, int worker)
{
    const ranges *x = ctx;
    (void)worker;
    for (int64_t i = first; i < last; i++)
        x->s->range(x->r[i].at, x->r[i].n, depth_of(x->r[i].n));
}

static int longest(const ranges *x)
{
    int k = 0;
    for (int i = 1; i < x->len; i++)
        k = x->r[i].n > x->r[k].n ? i : k;
    return k;
}

static void long_row(const sorter *s, char *row)
{
    ranges x = {.s = s, .row = row, .len = 1};
    pool_run(s->n, APART, encode_part, &x, NULL, NULL);
    x.r[0].at = row;
    x.r[0].n = s->n;
    while (x.len < RANGES && x.len < 8 * pool_size()) {
        const int k = longest(&x);
        if (x.r[k].n < APART)
            break;
        void *at = x.r[k].at;
        int64_t n = x.r[k].n;
        const int64_t less = s->cut(&at, &n);
        x.r[k].at = at;
        x.r[k].n = less;
        x.r[x.len].at = (char *)at + less * s->size;
        x.r[x.len].n = n - less;
        x.len++;
    }
    pool_run(x.len, 1, sort_part, &x, NULL, NULL);
    pool_run(s->n, APART, decode_part, &x, NULL, NULL);
    if (s->down)
        turn_round(s, row);
}

bool native_sorts(int size, int vector_bytes) { return vector_bytes >= 32 && (size == 4 || size == 8); }

/* numbers: kind of the numbers, size of one, bytes of a vector, rows, length of a row, 1 for the largest
 * first */
eas_status native_sort(const native_call *c)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_orders);
    const bool wide = c->numbers[1] == 8, long_vectors = c->numbers[2] >= 64;
    const int64_t rows = c->numbers[3];
    const sorter s = {.range = wide ? (long_vectors ? range_i64_512 : range_i64_256)
                                    : (long_vectors ? range_i32_512 : range_i32_256),
                      .cut = wide ? (long_vectors ? cut_any_i64_512 : cut_any_i64_256)
                                  : (long_vectors ? cut_any_i32_512 : cut_any_i32_256),
                      .size = (int)c->numbers[1],
                      .kind = (char)c->numbers[0],
                      .down = c->numbers[5] != 0,
                      .n = c->numbers[4],
                      .in = c->in[0],
                      .out = c->out[0]};
    if (rows * s.n < 2 * APART || pool_size() == 1)
        some_rows((void *)(uintptr_t)&s, 0, rows, 0);
    else if (rows >= 4 * pool_size())
        pool_run(rows, 1 + APART / (s.n + 1), some_rows, (void *)(uintptr_t)&s, NULL, NULL);
    else
        for (int64_t r = 0; r < rows; r++)
            long_row(&s, s.out + r * s.n * s.size);
    return EAS_OK;
}

#else
bool native_sorts(int size, int vector_bytes) { return (void)size, (void)vector_bytes, false; }
eas_status native_sort(const native_call *c)
{
    (void)c;
    return base_fail(EAS_ERR_INTERNAL, "sort: not on this processor");
}
#endif
