/* product.c: matrix products for factorisations: C += A B or C -= A B for f32, f64 and their complex forms,
 * of matrices with any strides, transposed or conjugated.
 *
 * Both factors are packed, block by block: DEPTH rows of B, up to BLOCK_COLS wide, then BLOCK_ROWS rows of A.
 * A register tile of C is summed along DEPTH; the columns of B that it reads (two vectors of each row) stay
 * in the first cache, the block of A in the second. Threads take strips of C, and each packs its own factors.
 */
#include "native.h"

#include <stdatomic.h>

enum { DEPTH = 192 };

#if defined(__x86_64__) && defined(__GNUC__)
#define TILES_X86
enum { TILE_NARROW, TILE_AVX2, TILE_AVX512 };

/* The instruction sets of the CPU that EAS_ISA (whose names are those of src/dev/isa.h) does not forbid. */
static int look_at_cpu(void)
{
    const char *isa = base_env("EAS_ISA");
    const bool named = isa && *isa;
    __builtin_cpu_init();
    if (named && !strcmp(isa, "sse2"))
        return TILE_NARROW;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return TILE_NARROW;
    if (named && !strcmp(isa, "avx2"))
        return TILE_AVX2;
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
             ? TILE_AVX512
             : TILE_AVX2;
}

static int tile_level(void)
{
    static _Atomic int known; /* level + 1 */
    int level = atomic_load_explicit(&known, memory_order_relaxed);
    if (!level)
        atomic_store(&known, level = look_at_cpu() + 1);
    return level - 1;
}
#endif

#define ROWS_6(f) f(0) f(1) f(2) f(3) f(4) f(5)
#define ROWS_12(f) ROWS_6(f) f(6) f(7) f(8) f(9) f(10) f(11)
#define FN_(name, type) name##_##type
#define FN2(name, type) FN_(name, type)
#define FN(name) FN2(name, SUFFIX)

#define R float
#define SUFFIX s
#define BLOCK_ROWS 240
#define BLOCK_COLS 1024
#include "product.inc"
#undef R
#undef SUFFIX
#undef BLOCK_ROWS
#undef BLOCK_COLS

#define R double
#define SUFFIX d
#define BLOCK_ROWS 120
#define BLOCK_COLS 512
#include "product.inc"

_Static_assert(sizeof(double) * DEPTH * (120 + 512) <= PRODUCT_ROOM, "what is packed has room");

void product(const product_call *q, void *room)
{
    const bool wide = q->type == NATIVE_F64 || q->type == NATIVE_C128, pairs = q->type >= NATIVE_C64;
    const int64_t two = pairs ? 2 : 1;
    factor a = q->a, b = q->b;
    a.pairs = b.pairs = pairs;
    a.rs *= two, a.cs *= two, b.rs *= two, b.cs *= two;
    if (wide)
        multiply_d(q->sign, q->m, q->n * two, q->k * two, &a, &b, q->c, q->ldc * two, room);
    else
        multiply_s((float)q->sign, q->m, q->n * two, q->k * two, &a, &b, q->c, q->ldc * two, room);
}

/* ---- threads ---- */

typedef struct strips {
    const product_call *whole;
    const crew *w;
    int64_t size; /* rows or columns of a strip */
    bool by_rows;
} strips;

static size_t element_size(int type) { return type == NATIVE_F32 ? 4 : type == NATIVE_C128 ? 16 : 8; }

static void strip(void *ctx, int64_t first, int64_t last, int worker)
{
    const strips *s = ctx;
    const size_t size = element_size(s->whole->type);
    for (int64_t i = first; i < last; i++) {
        product_call q = *s->whole;
        const int64_t at = i * s->size, all = s->by_rows ? q.m : q.n,
                      here = all - at < s->size ? all - at : s->size;
        if (s->by_rows) {
            q.m = here;
            q.a.at = (const char *)q.a.at + at * q.a.rs * (int64_t)size;
            q.c = (char *)q.c + at * q.ldc * (int64_t)size;
        } else {
            q.n = here;
            q.b.at = (const char *)q.b.at + at * q.b.cs * (int64_t)size;
            q.c = (char *)q.c + at * (int64_t)size;
        }
        product(&q, crew_room(s->w, worker));
    }
}

void product_shared(const crew *w, const product_call *q)
{
    enum {
        LEAST = 1 << 18,
        GRAIN = 48,
        EACH = 2
    }; /* multiplications that make a thread worthwhile; the least size of a strip; strips a thread */
    if (q->m <= 0 || q->n <= 0 || q->k <= 0)
        return;
    const bool by_rows = q->m >= q->n;
    const int64_t all = by_rows ? q->m : q->n, parts = w->threads * EACH,
                  size = ((all + parts - 1) / parts + GRAIN - 1) / GRAIN * GRAIN;
    strips s = {q, w, size, by_rows};
    if (w->threads < 2 || q->m * q->n * q->k < LEAST || all <= GRAIN)
        product(q, crew_room(w, 0));
    else
        pool_run((all + size - 1) / size, 1, strip, &s, NULL, NULL);
}
