/* sums.c: what a launch adds to buffers, kept apart by thread until the launch is done.
 *
 * An atomic addition of a float is a loop around a locked exchange, which costs as much as twenty plain
 * additions of vectors. A kernel that does nothing to a buffer but add (ir_added) may run in another form, in
 * which each thread of the pool has an array of its own in place of the buffer. The array begins with what
 * changes nothing in an addition, -0.0 of floats, so that a sum has the sign it would have in the buffer. At
 * the end the threads' arrays are added to each other, and the result to the buffer.
 *
 * That last step is atomic again, since other launches may add to the buffer at the same time, but in words
 * of 16 bytes. Elements that nothing was added to keep their bits: a plain store to such a neighbour is
 * right, too, because the exchange fails where any byte of the word has changed.
 */
#include "sums.h"
#include "isa.h"

#include <pthread.h>

/* ---- additions of elements in memory: to[i] += x[i] ---- */

typedef void adder(void *to, const void *x, int64_t n);

#define ADDER(name, bits_t, none, sum) \
    static inline void add_##name(void *to, const void *x, int64_t n) \
    { \
        for (int64_t i = 0; i < n; i++) { \
            bits_t a, b; \
            memcpy(&a, (const char *)to + i * (int64_t)sizeof a, sizeof a); \
            memcpy(&b, (const char *)x + i * (int64_t)sizeof b, sizeof b); \
            a = b == (none) ? a : (sum); \
            memcpy((char *)to + i * (int64_t)sizeof a, &a, sizeof a); \
        } \
    }

#define SUM(name, bits_t, type) \
    static inline bits_t sum_##name(bits_t a, bits_t b) \
    { \
        type x, y; \
        memcpy(&x, &a, sizeof x); \
        memcpy(&y, &b, sizeof y); \
        x += y; \
        memcpy(&a, &x, sizeof a); \
        return a; \
    }
SUM(f32, uint32_t, float)
SUM(f64, uint64_t, double)
#undef SUM

ADDER(f32, uint32_t, 0x80000000u, sum_f32(a, b))
ADDER(f64, uint64_t, 0x8000000000000000u, sum_f64(a, b))
ADDER(f16, uint16_t, 0x8000u, f32_to_f16(f16_to_f32(a) + f16_to_f32(b)))
ADDER(bf16, uint16_t, 0x8000u, f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b)))
ADDER(i32, uint32_t, 0, a + b)
ADDER(i64, uint64_t, 0, a + b)
#undef ADDER

/* ---- to memory that others add to ---- */

typedef union word {
    uint8_t bytes[16];
    uint16_t h;
    uint32_t w;
    uint64_t d[2];
} word;

#define IN_LINE static inline __attribute__((always_inline))
#define EXCHANGE(part) \
    __atomic_compare_exchange_n(&p->part, &old->part, x->part, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)

/* False: the bytes at p were not those of *old, which now has what they were. */
IN_LINE bool exchange(word *p, word *old, const word *x, int bytes)
{
    switch (bytes) {
    case 2: return EXCHANGE(h);
    case 4: return EXCHANGE(w);
#if defined(__x86_64__)
    case 16: {
        bool same;
        __asm__ volatile("lock cmpxchg16b %1"
                         : "=@ccz"(same), "+m"(*p), "+a"(old->d[0]), "+d"(old->d[1])
                         : "b"(x->d[0]), "c"(x->d[1])
                         : "memory");
        return same;
    }
#endif
    default: return EXCHANGE(d[0]);
    }
}
#undef EXCHANGE

/* A word read in two steps may be one that never was: the exchange then fails and reads it in one. */
IN_LINE word read_word(const word *p, int bytes)
{
    word x = {{0}};
    switch (bytes) {
    case 2: x.h = __atomic_load_n(&p->h, __ATOMIC_RELAXED); break;
    case 4: x.w = __atomic_load_n(&p->w, __ATOMIC_RELAXED); break;
    case 16: x.d[1] = __atomic_load_n(&p->d[1], __ATOMIC_RELAXED); /* fall through */
    default: x.d[0] = __atomic_load_n(&p->d[0], __ATOMIC_RELAXED);
    }
    return x;
}

IN_LINE void add_word(uint8_t *to, const uint8_t *x, int size, int bytes, adder *add)
{
    word *p = (word *)(void *)to, old = read_word(p, bytes), next;
    do {
        next = old;
        add(next.bytes, x, bytes / size);
    } while (!exchange(p, &old, &next, bytes));
}

static bool changes_nothing(const uint8_t *x, uint64_t none, int bytes)
{
    uint64_t d[2];
    memcpy(d, x, (size_t)bytes);
    return d[0] == none && (bytes < 16 || d[1] == none);
}

IN_LINE void deliver(uint8_t *to, const uint8_t *x, int64_t n, int size, uint64_t none, int bytes, adder *add)
{
    const int64_t end = n * size, ahead = (int64_t)(-(uintptr_t)to & (uintptr_t)(bytes - 1));
    int64_t i = 0;
    for (; i < end && i < ahead; i += size)
        add_word(to + i, x + i, size, size, add);
    for (; i + bytes <= end; i += bytes)
        if (!changes_nothing(x + i, none, bytes))
            add_word(to + i, x + i, size, bytes, add);
    for (; i < end; i += size)
        add_word(to + i, x + i, size, size, add);
}

typedef struct kind { /* of elements */
    uint64_t none; /* eight bytes of what changes nothing in an addition */
    int size;
    adder *add;
    void (*deliver)(uint8_t *to, const uint8_t *x, int64_t n); /* atomically */
} kind;

#define DELIVER(name, size, none) \
    static void deliver_##name(uint8_t *to, const uint8_t *x, int64_t n) \
    { \
        if (isa_exchange_16()) \
            deliver(to, x, n, size, none, 16, add_##name); \
        else \
            deliver(to, x, n, size, none, 8, add_##name); \
    } \
    static const kind kind_##name = {none, size, add_##name, deliver_##name};
DELIVER(f32, 4, 0x8000000080000000u)
DELIVER(f64, 8, 0x8000000000000000u)
DELIVER(f16, 2, 0x8000800080008000u)
DELIVER(bf16, 2, 0x8000800080008000u)
DELIVER(i32, 4, 0)
DELIVER(i64, 8, 0)
#undef DELIVER

static const kind *kind_of(eas_dtype dt)
{
    switch (dt) {
    case EAS_F64: return &kind_f64;
    case EAS_F32: return &kind_f32;
    case EAS_F16: return &kind_f16;
    case EAS_BF16: return &kind_bf16;
    default: return eas_dtype_size(dt) == 8 ? &kind_i64 : &kind_i32;
    }
}

/* ---- memory: that of the last launch is kept for the next one ---- */

enum { KEEP = 64 << 20 };
static struct {
    pthread_mutex_t lock;
    void *mem;
    size_t room;
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void swap_kept(sums *s)
{
    void *mem = kept.mem;
    const size_t room = kept.room;
    kept.mem = s->mem;
    kept.room = s->room;
    s->mem = mem;
    s->room = room;
}

static bool obtain(sums *s, size_t room)
{
    base_lock(&kept.lock);
    if (kept.room >= room)
        swap_kept(s);
    base_unlock(&kept.lock);
    if (s->mem)
        return true;
    s->room = room;
    return dev_host_alloc(&dev_cpu, room, &s->mem) == EAS_OK;
}

static void give_back(sums *s)
{
    base_lock(&kept.lock);
    if (s->room <= KEEP && kept.room < s->room)
        swap_kept(s);
    base_unlock(&kept.lock);
    if (s->mem)
        dev_host_dealloc(&dev_cpu, s->mem, s->room);
    s->mem = NULL;
}

void sums_forget(void)
{
    sums s = {0};
    base_lock(&kept.lock);
    swap_kept(&s);
    base_unlock(&kept.lock);
    if (s.mem)
        dev_host_dealloc(&dev_cpu, s.mem, s.room);
}

/* ---- a launch ---- */

eas_status sums_find(const eas_ir *ir, sums_set **out)
{
    bool added[IR_MAX_PARAMS];
    sums_set *set = calloc(1, sizeof *set + (size_t)ir->nparams * sizeof *set->param);
    *out = set;
    if (!set)
        return base_fail_oom(sizeof *set);
    set->nparams = ir->nparams;
    if (ir_added(ir, added))
        for (int i = 0; i < ir->nparams; i++)
            if (added[i]) {
                set->param[set->n].at = i;
                set->param[set->n++].dtype = (eas_dtype)ir_typeof(ir, (uint32_t)i + 1).dtype;
            }
    return EAS_OK;
}

static size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }
static const kind *kind_at(const sums *s, int i) { return kind_of(s->set->param[i].dtype); }

static size_t bytes_of(const sums *s, int i)
{
    return (size_t)s->l->count[s->set->param[i].at] * (size_t)kind_at(s, i)->size;
}

bool sums_open(sums *s, const sums_set *set, const dev_launch *l)
{
    *s = (sums){.set = set, .l = l, .workers = pool_size()};
    for (int i = 0; i < set->n; i++)
        s->arrays += whole_lines(bytes_of(s, i));
    s->each = s->arrays + whole_lines((size_t)set->nparams * sizeof *l->slot);
    return obtain(s, s->each * (size_t)s->workers);
}

static void fill(uint8_t *at, size_t bytes, uint64_t none)
{
    uint64_t *x = (uint64_t *)(void *)at;
    if (!none)
        memset(at, 0, bytes);
    for (size_t i = 0; none && i < bytes / sizeof none; i++)
        x[i] = none;
}

const uint64_t *sums_slots(sums *s, int worker)
{
    uint8_t *mine = (uint8_t *)s->mem + (size_t)worker * s->each, *at = mine;
    uint64_t *slot = (uint64_t *)(void *)(mine + s->arrays);
    if (s->began[worker])
        return slot;
    memcpy(slot, s->l->slot, (size_t)s->set->nparams * sizeof *slot);
    for (int i = 0; i < s->set->n; i++) {
        const size_t bytes = whole_lines(bytes_of(s, i));
        fill(at, bytes, kind_at(s, i)->none);
        slot[s->set->param[i].at] = (uint64_t)(uintptr_t)at;
        at += bytes;
    }
    s->began[worker] = true;
    return slot;
}

/* ---- its end ---- */

enum { STRETCH = 4096, SOME = 8 }; /* bytes that go through the nearest cache; stretches worth a thread */

static size_t stretches(const sums *s, int i) { return (bytes_of(s, i) + STRETCH - 1) / STRETCH; }

/* Bytes from .. from + STRETCH of a buffer, which begins at `at` of each thread's arrays. */
static void deliver_stretch(const sums *s, int i, size_t at, size_t from)
{
    _Alignas(64) uint8_t sum[STRETCH];
    const size_t left = bytes_of(s, i) - from, bytes = left < STRETCH ? left : STRETCH;
    const kind *k = kind_at(s, i);
    const uint8_t *only = NULL;
    for (int w = 0; w < s->workers; w++) {
        if (!s->began[w])
            continue;
        const uint8_t *x = (const uint8_t *)s->mem + (size_t)w * s->each + at + from;
        if (only && only != sum)
            only = memcpy(sum, only, bytes);
        if (only)
            k->add(sum, x, (int64_t)bytes / k->size);
        else
            only = x;
    }
    uint8_t *to = (uint8_t *)(uintptr_t)s->l->slot[s->set->param[i].at];
    if (only)
        k->deliver(to + from, only, (int64_t)bytes / k->size);
}

static void deliver_some(void *ctx, int64_t first, int64_t last, int worker)
{
    const sums *s = ctx;
    size_t at = 0;
    (void)worker;
    for (int i = 0; i < s->set->n && first < last; i++) {
        const int64_t n = (int64_t)stretches(s, i);
        for (int64_t k = first; k < n && k < last; k++)
            deliver_stretch(s, i, at, (size_t)k * STRETCH);
        first = first > n ? first - n : 0;
        last -= n;
        at += whole_lines(bytes_of(s, i));
    }
}

void sums_close(sums *s, bool lost)
{
    int64_t n = 0;
    for (int i = 0; i < s->set->n; i++)
        n += (int64_t)stretches(s, i);
    if (!lost)
        pool_run(n, SOME, deliver_some, s, NULL, NULL);
    give_back(s);
}
