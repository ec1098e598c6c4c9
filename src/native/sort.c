/* sort.c: rows of numbers in order, by a quicksort of vectors (sort.inc), on several threads.
 *
 * Numbers become signed keys of the same order: in negative floats all bits but the sign are inverted, and a
 * NaN is the largest key, so that it comes last. Keys are sorted in the output array. The result has the bits
 * that the kernel of src/exec/lower_sort.c gives, since equal keys are equal bits.
 *
 * The order of 32-bit numbers (argsort) is a sort of 64-bit keys: a number's key, and its place in the lower
 * half. All differ, so equal numbers keep their order. Integers of one byte are counted.
 */
#include "native.h"

/* vectors of one step of a split; keys that make a thread worthwhile */
enum { SPLIT_MOST = 8, APART = 1 << 15 };

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

#define REGISTERS 16
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
#undef REGISTERS

/* ---- AVX2: a permutation for each mask puts the smaller keys first ---- */

#define REGISTERS 8
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
#undef REGISTERS

#include <pthread.h>

/* ---- numbers and keys ---- */

typedef struct sorter {
    void (*range)(void *keys, int64_t n, int depth);
    int64_t (*cut)(void **keys, int64_t *n);
    int from, size; /* of a number; of a key, which is as large as an element of the result */
    char kind; /* of the numbers: f, i, u */
    bool down, places; /* places: the result is where each number was */
    int64_t n;
    const char *in;
    char *out;
} sorter;

static inline uint32_t key_32(uint32_t b, char kind)
{
    const uint32_t nan = (b & 0x7fffffffu) > 0x7f800000u,
                   turned = b ^ (uint32_t)((int32_t)b >> 31 & INT32_MAX);
    return kind == 'f' ? (nan ? (uint32_t)INT32_MAX : turned) : kind == 'u' ? b ^ 0x80000000u : b;
}

HOT static void keys_32(const uint32_t *x, int32_t *k, int64_t n, char kind)
{
    for (int64_t i = 0; i < n; i++)
        k[i] = (int32_t)key_32(x[i], kind);
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

/* Keys with places, from `first` on. Both zeros are equal. For the largest first, keys are inverted: equal
 * numbers keep their order. */
HOT static void keys_and_places(const uint32_t *x, int64_t *k, int64_t first, int64_t n, char kind, bool down)
{
    const uint32_t inverted = down ? UINT32_MAX : 0;
    for (int64_t i = 0; i < n; i++) {
        const uint32_t b = kind == 'f' && x[i] == 0x80000000u ? 0 : x[i];
        k[i] = (int64_t)((uint64_t)(key_32(b, kind) ^ inverted) << 32 | (uint64_t)(first + i));
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

HOT static void places_64(uint64_t *k, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        k[i] &= UINT32_MAX;
}

/* Elements first .. first + n - 1 of a row */
static void to_keys(const sorter *s, int64_t row, int64_t first, int64_t n)
{
    const void *in = s->in + (row * s->n + first) * s->from;
    void *out = s->out + (row * s->n + first) * s->size;
    if (s->places)
        keys_and_places(in, out, first, n, s->kind, s->down);
    else if (s->size == 4)
        keys_32(in, out, n, s->kind);
    else
        keys_64(in, out, n, s->kind);
}

static void to_numbers(const sorter *s, int64_t row, int64_t first, int64_t n)
{
    void *out = s->out + (row * s->n + first) * s->size;
    if (s->places)
        places_64(out, n);
    else if (s->size == 4)
        numbers_32(out, n, s->kind);
    else
        numbers_64(out, n, s->kind);
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
        to_keys(s, r, 0, s->n);
        s->range(row, s->n, depth_of(s->n));
        to_numbers(s, r, 0, s->n);
        if (s->down && !s->places)
            turn_round(s, row);
    }
}

/* ---- one row on several threads: split until there are enough ranges, which are then sorted one by one ----
 */

enum { RANGES = 32 };

typedef struct ranges {
    const sorter *s;
    int64_t row;
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
    to_keys(x->s, x->row, first, last - first);
}

static void decode_part(void *ctx, int64_t first, int64_t last, int worker)
{
    const ranges *x = ctx;
    (void)worker;
    to_numbers(x->s, x->row, first, last - first);
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

static void long_row(const sorter *s, int64_t r)
{
    char *row = s->out + r * s->n * s->size;
    ranges x = {.s = s, .row = r, .len = 1};
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
    if (s->down && !s->places)
        turn_round(s, row);
}

/* ---- integers of one byte ---- */

enum { VALUES = 256, TABLES = 4 };

/* Each fourth element has a table of its own, so that equal neighbours do not wait for each other. */
static void count_row(const sorter *s, int64_t row, uint8_t turned)
{
    const uint8_t *x = (const uint8_t *)s->in + row * s->n;
    uint8_t *y = (uint8_t *)s->out + row * s->n;
    int64_t counts[TABLES][VALUES] = {0}, i = 0;
    for (; i + TABLES <= s->n; i += TABLES)
        for (int t = 0; t < TABLES; t++)
            counts[t][x[i + t]]++;
    for (; i < s->n; i++)
        counts[0][x[i]]++;
    for (int v = 0; v < VALUES; v++) {
        const uint8_t value = (uint8_t)(v ^ turned);
        int64_t n = 0;
        for (int t = 0; t < TABLES; t++)
            n += counts[t][value];
        memset(y, value, (size_t)n);
        y += n;
    }
}

static void count_rows(void *ctx, int64_t first, int64_t last, int worker)
{
    const sorter *s = ctx;
    (void)worker;
    for (int64_t r = first; r < last; r++) /* signed numbers begin at 128; from the largest on: backwards */
        count_row(s, r, (uint8_t)((s->kind == 'i' ? 0x80 : 0) ^ (s->down ? 0xff : 0)));
}

bool native_sorts(char kind, int size, bool places, int vector_bytes)
{
    if (vector_bytes < 32)
        return false;
    return size == 4 || (!places && (size == 8 || (size == 1 && (kind == 'i' || kind == 'u'))));
}

static eas_status run_sort(const native_call *c, bool places)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_orders);
    const int from = (int)c->numbers[1], size = places ? 8 : from;
    const bool wide = size == 8, long_vectors = c->numbers[2] >= 64;
    const int64_t rows = c->numbers[3];
    sorter s = {.range = wide ? (long_vectors ? range_i64_512 : range_i64_256)
                              : (long_vectors ? range_i32_512 : range_i32_256),
                .cut = wide ? (long_vectors ? cut_any_i64_512 : cut_any_i64_256)
                            : (long_vectors ? cut_any_i32_512 : cut_any_i32_256),
                .from = from,
                .size = size,
                .kind = (char)c->numbers[0],
                .down = c->numbers[5] != 0,
                .places = places,
                .n = c->numbers[4],
                .in = c->in[0],
                .out = c->out[0]};
    void (*each)(void *, int64_t, int64_t, int) = size == 1 ? count_rows : some_rows;
    if (rows * s.n < 2 * APART || pool_size() == 1)
        each(&s, 0, rows, 0);
    else if (rows >= 4 * pool_size() || size == 1)
        pool_run(rows, 1 + APART / (s.n + 1), each, &s, NULL, NULL);
    else
        for (int64_t r = 0; r < rows; r++)
            long_row(&s, r);
    return EAS_OK;
}

#else
bool native_sorts(char kind, int size, bool places, int vector_bytes)
{
    return (void)kind, (void)size, (void)places, (void)vector_bytes, false;
}
static eas_status run_sort(const native_call *c, bool places)
{
    (void)c, (void)places;
    return base_fail(EAS_ERR_INTERNAL, "sort: not on this processor");
}
#endif

eas_status native_sort(const native_call *c) { return run_sort(c, false); }
eas_status native_argsort(const native_call *c) { return run_sort(c, true); }
