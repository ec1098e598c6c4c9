/* emulate.c: runs the machine code that we generate for AVX512-BF16 and AMX-BF16 on a machine that has only
 * AVX-512.
 *
 * An instruction that the processor does not know raises SIGILL. The handler decodes it, does what Intel's
 * manual says on the registers that the signal saved (general ones in ucontext, vectors in its XSAVE area),
 * and goes on behind it. Tiles are kept here, per thread. It knows exactly the forms that are generated;
 * anything else is reported with its bytes and aborts. On a machine that has the instructions nothing is ever
 * raised, and they run themselves; some have vdpbf16ps though they do not say so. An ud2 before an
 * instruction has it emulated all the same.
 *
 * Linked into a test, or loaded before everything else (LD_PRELOAD; compiled with EMULATE_PRELOADED, it keeps
 * the signal to itself). The symbol eas_emulated_isa is how src/dev/isa.c knows: no setting of a user's turns
 * it on.
 */
#include <cpuid.h>
#include <dlfcn.h>
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

__attribute__((visibility("default"))) const char eas_emulated_isa[] = ",avx512bf16,amx-tile,amx-bf16,";
#ifdef EMULATE_MISSING /* ",avx512f,": as if the machine lacked these */
__attribute__((visibility("default"))) const char eas_missing_isa[] = EMULATE_MISSING;
#endif
/* vdpbf16ps, tdpbf16ps and vcvtneps2bf16 so far */
__attribute__((visibility("default"))) _Atomic uint64_t eas_emulated_pairs, eas_emulated_tiles,
    eas_emulated_roundings;

void eas_emulate(void);

enum { ZMM = 64, THREADS = 256, PALETTE_TILES = 8 };

typedef struct tiles {
    bool on;
    uint8_t config[64];
    struct {
        _Alignas(64) uint8_t row[16][64];
    } t[PALETTE_TILES];
} tiles;

/* The first use on a thread takes one: a handler may not allocate, and a library loaded late has little room
 * for thread-local data. */
static tiles all_tiles[THREADS];
static _Atomic int taken;
static _Thread_local tiles *mine __attribute__((tls_model("initial-exec")));

typedef struct cpu { /* where a signal found the processor */
    greg_t *r;
    uint8_t *xsave;
    const uint8_t *ip;
} cpu;

/* ---- giving up ---- */

static void say(const char *s)
{
    if (write(2, s, strlen(s)) < 0)
        abort();
}

_Noreturn static void give_up(const cpu *c, const char *why)
{
    char text[160];
    int n = snprintf(text, sizeof text, "emulate: %s:", why);
    for (int i = 0; i < 12; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %02x", c->ip[i]);
    say(text);
    say("\n");
    signal(SIGABRT, SIG_DFL);
    abort();
}

/* ---- registers ---- */

static uint32_t offset_of[8]; /* of the parts of an XSAVE area */

static uint64_t *in_use(const cpu *c) { return (uint64_t *)(void *)(c->xsave + 512); }

/* A part that was not in use is all zero, and in use from now on. */
static uint8_t *part(const cpu *c, int i, size_t size)
{
    uint8_t *p = i == 1 ? c->xsave + 160 : c->xsave + offset_of[i];
    if (!(*in_use(c) >> i & 1)) {
        memset(p, 0, size);
        *in_use(c) |= (uint64_t)1 << i;
    }
    return p;
}

static void get_zmm(const cpu *c, int n, uint8_t *out)
{
    if (n >= 16) {
        memcpy(out, part(c, 7, 1024) + 64 * (n - 16), 64);
        return;
    }
    memcpy(out, part(c, 1, 256) + 16 * n, 16);
    memcpy(out + 16, part(c, 2, 256) + 16 * n, 16);
    memcpy(out + 32, part(c, 6, 512) + 32 * n, 32);
}

static void set_zmm(const cpu *c, int n, const uint8_t *x)
{
    if (n >= 16) {
        memcpy(part(c, 7, 1024) + 64 * (n - 16), x, 64);
        return;
    }
    memcpy(part(c, 1, 256) + 16 * n, x, 16);
    memcpy(part(c, 2, 256) + 16 * n, x + 16, 16);
    memcpy(part(c, 6, 512) + 32 * n, x + 32, 32);
}

static uint64_t general(const cpu *c, int n)
{
    static const int reg[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)c->r[reg[n]];
}

/* ---- ModRM ---- */

typedef struct operand {
    bool memory;
    int reg, rm;      /* 3 bits each, no extension */
    uint64_t address;
    uint64_t index; /* the index register's value times scale, which the address has not in it if `apart` */
    const uint8_t *end;
} operand;

static int64_t signed_at(const uint8_t *p, int n)
{
    int32_t x;
    if (n == 1)
        return (int8_t)*p;
    memcpy(&x, p, 4);
    return x;
}

/* rx, rb: extensions of index and base, 0 or 8; scale8: what a displacement of one byte counts in; apart:
 * tile accesses take the index as a stride */
static operand read_operand(const cpu *c, const uint8_t *p, int rx, int rb, int64_t scale8, bool apart)
{
    operand o = {.memory = *p >> 6 != 3, .reg = *p >> 3 & 7, .rm = *p & 7};
    const int mod = *p++ >> 6;
    o.end = p;
    if (!o.memory)
        return o;
    bool base = true;
    int at = o.rm | rb;
    if (o.rm == 4) {
        const int index = (*p >> 3 & 7) | rx;
        if (index != 4)
            o.index = general(c, index) << (*p >> 6);
        at = (*p & 7) | rb;
        base = (*p & 7) != 5 || mod;
        p++;
    }
    const bool relative = o.rm == 5 && mod == 0;
    const int bytes = mod == 1 ? 1 : mod == 2 || relative || !base ? 4 : 0;
    const int64_t far = bytes ? signed_at(p, bytes) * (bytes == 1 ? scale8 : 1) : 0;
    o.end = p + bytes;
    o.address = (relative ? (uint64_t)(uintptr_t)o.end
                 : base   ? general(c, at)
                          : 0) +
                (uint64_t)far + (apart ? 0 : o.index);
    return o;
}

/* ---- arithmetic: an fma with DAZ and FTZ, round to nearest; MXCSR neither consulted nor updated ---- */

static unsigned enter_flushing(void)
{
    const unsigned old = _mm_getcsr();
    _mm_setcsr(0x9fc0);
    return old;
}

__attribute__((target("avx512f"))) static __m512 upper(__m512i x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)));
}
__attribute__((target("avx512f"))) static __m512 lower(__m512i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

__attribute__((target("avx512f"))) static void add_pairs(float *sum, const uint8_t *x, const uint8_t *y)
{
    const unsigned old = enter_flushing();
    const __m512i a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(y);
    __m512 s = _mm512_loadu_ps(sum);
    __asm__ volatile("" : "+v"(s)); /* arithmetic stays between the two changes of MXCSR */
    s = _mm512_fmadd_ps(lower(a), lower(b), _mm512_fmadd_ps(upper(a), upper(b), s));
    __asm__ volatile("" : "+v"(s));
    _mm_setcsr(old);
    _mm512_storeu_ps(sum, s);
}

/* One row of a tile of sums: even and odd elements apart, then both, then the old sum. */
__attribute__((target("avx512f"))) static void add_row(uint8_t *sum, const uint8_t *x, uint8_t y[16][64])
{
    const unsigned old = enter_flushing();
    __m512 even = _mm512_setzero_ps(), odd = even;
    __asm__ volatile("" : "+v"(even), "+v"(odd));
    for (int k = 0; k < 16; k++) {
        int32_t pair;
        memcpy(&pair, x + 4 * k, 4);
        const __m512i a = _mm512_set1_epi32(pair), b = _mm512_load_si512(y[k]);
        even = _mm512_fmadd_ps(lower(a), lower(b), even);
        odd = _mm512_fmadd_ps(upper(a), upper(b), odd);
    }
    __m512 s = _mm512_add_ps(_mm512_load_ps(sum), _mm512_add_ps(even, odd));
    __asm__ volatile("" : "+v"(s));
    _mm_setcsr(old);
    _mm512_store_ps(sum, s);
}

/* ---- instructions ---- */

/* EVEX.512.F3.0F38.W0 52 /r: vdpbf16ps zmm, zmm, zmm or 64 bytes or 4 bytes for all lanes */
static const uint8_t *pairs(const cpu *c)
{
    const uint8_t *p = c->ip;
    const bool right = (p[1] & 0x0f) == 2 && (p[2] & 0x87) == 0x06 && p[4] == 0x52, masked = p[3] & 0x87,
               wide = (p[3] >> 5 & 3) == 2;
    if (!right || masked || !wide)
        give_up(c, "no instruction that it knows");
    const bool all = p[3] & 0x10;
    const int rr = !(p[1] & 0x80), rx = !(p[1] & 0x40), rb = !(p[1] & 0x20), r2 = !(p[1] & 0x10),
              v2 = !(p[3] & 0x08);
    const operand o = read_operand(c, p + 5, rx * 8, rb * 8, all ? 4 : ZMM, false);
    const int to = r2 << 4 | rr << 3 | o.reg, from = v2 << 4 | (~p[2] >> 3 & 15);
    uint8_t x[ZMM], y[ZMM];
    float sum[16];
    get_zmm(c, to, (uint8_t *)sum);
    get_zmm(c, from, x);
    if (!o.memory)
        get_zmm(c, rx << 4 | rb << 3 | o.rm, y);
    for (int i = 0; o.memory && i < 16; i++)
        memcpy(y + 4 * i, (const uint8_t *)(uintptr_t)o.address + (all ? 0 : 4 * i), 4);
    add_pairs(sum, x, y);
    set_zmm(c, to, (const uint8_t *)sum);
    atomic_fetch_add(&eas_emulated_pairs, 1);
    return o.end;
}

/* To bf16, halves to even; subnormal numbers become 0, and NaN quiet. */
static uint16_t rounded(uint32_t x)
{
    const uint32_t size = x & 0x7fffffff;
    if (size < 0x800000)
        return (uint16_t)(x >> 16 & 0x8000);
    return (uint16_t)(size > 0x7f800000 ? x >> 16 | 0x40 : (x + 0x7fff + (x >> 16 & 1)) >> 16);
}

/* EVEX.512 or 256.F3.0F38.W0 72 /r: vcvtneps2bf16 to half as long a register, from a register or memory */
static const uint8_t *roundings(const cpu *c)
{
    const uint8_t *p = c->ip;
    const int bytes = 16 << (p[3] >> 5 & 3);
    const bool right = (p[1] & 0x0f) == 2 && p[2] == 0x7e, plain = !(p[3] & 0x97) && (p[3] & 0x08);
    if (!right || !plain || (bytes != ZMM && bytes != ZMM / 2))
        give_up(c, "no rounding that it knows");
    const int rr = !(p[1] & 0x80), rx = !(p[1] & 0x40), rb = !(p[1] & 0x20), r2 = !(p[1] & 0x10);
    const operand o = read_operand(c, p + 5, rx * 8, rb * 8, bytes, false);
    uint8_t x[ZMM], y[ZMM] = {0};
    if (o.memory)
        memcpy(x, (const uint8_t *)(uintptr_t)o.address, (size_t)bytes);
    else
        get_zmm(c, rx << 4 | rb << 3 | o.rm, x);
    for (int i = 0; i < bytes / 4; i++) {
        uint32_t u;
        memcpy(&u, x + 4 * i, 4);
        const uint16_t h = rounded(u);
        memcpy(y + 2 * i, &h, 2);
    }
    set_zmm(c, r2 << 4 | rr << 3 | o.reg, y);
    atomic_fetch_add(&eas_emulated_roundings, 1);
    return o.end;
}

static tiles *tiles_of(const cpu *c)
{
    if (!mine) {
        const int n = atomic_fetch_add(&taken, 1);
        if (n >= THREADS)
            give_up(c, "more threads with tiles than there is room for");
        mine = &all_tiles[n];
    }
    return mine;
}

/* Only the one configuration that we use: all tiles of 16 rows of 64 bytes. */
static void configure(const cpu *c, tiles *t, const uint8_t *from)
{
    memcpy(t->config, from, 64);
    bool ok = from[0] == 1 && from[1] == 0;
    for (int i = 0; i < PALETTE_TILES; i++)
        ok = ok && from[16 + 2 * i] == 64 && from[17 + 2 * i] == 0 && from[48 + i] == 16;
    if (!ok)
        give_up(c, "a configuration of tiles that it does not know");
    memset(t->t, 0, sizeof t->t);
    t->on = true;
}

static void move_tile(uint8_t tile[16][64], const operand *o, bool store)
{
    for (uint64_t r = 0; r < 16; r++) {
        uint8_t *at = (uint8_t *)(uintptr_t)(o->address + r * o->index);
        memcpy(store ? at : tile[r], store ? tile[r] : at, 64);
    }
}

/* VEX.128.*.0F38.W0: ldtilecfg, tilerelease and tilezero 49; tileloadd and tilestored 4B; tdpbf16ps 5C */
static const uint8_t *tile_insn(const cpu *c)
{
    const uint8_t *p = c->ip;
    enum { NONE, P66, PF3, PF2 };
    const int rx = p[1] & 0x40 ? 0 : 8, rb = p[1] & 0x20 ? 0 : 8, prefix = p[2] & 3, op = p[3],
              other = ~p[2] >> 3 & 15;
    if ((p[1] & 0x9f) != 0x82 || (p[2] & 0x84) || (op != 0x49 && op != 0x4b && op != 0x5c))
        give_up(c, "no instruction that it knows");
    const operand o = read_operand(c, p + 4, rx, rb, 1, op == 0x4b);
    tiles *t = tiles_of(c);
    if (op == 0x49 && prefix == NONE && o.memory && o.reg == 0)
        configure(c, t, (const uint8_t *)(uintptr_t)o.address);
    else if (op == 0x49 && prefix == NONE && p[4] == 0xc0)
        t->on = false;
    else if (!t->on)
        give_up(c, "tiles are not configured");
    else if (op == 0x49 && prefix == PF2 && !o.memory && o.rm == 0)
        memset(t->t[o.reg].row, 0, 1024);
    else if (op == 0x4b && (prefix == PF2 || prefix == PF3) && o.memory)
        move_tile(t->t[o.reg].row, &o, prefix == PF3);
    else if (op == 0x5c && prefix == PF3 && !o.memory && other < 8 && o.reg != o.rm && o.reg != other &&
             o.rm != other) {
        for (int r = 0; r < 16; r++)
            add_row(t->t[o.reg].row[r], t->t[o.rm].row[r], t->t[other].row);
        atomic_fetch_add(&eas_emulated_tiles, 1);
    } else
        give_up(c, "no instruction on tiles that it knows");
    return o.end;
}

static void on_illegal(int sig, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    cpu c = {.r = u->uc_mcontext.gregs,
             .xsave = (uint8_t *)u->uc_mcontext.fpregs,
             .ip = (const uint8_t *)u->uc_mcontext.gregs[REG_RIP]};
    (void)sig;
    (void)info;
    if (c.ip[0] == 0x0f && c.ip[1] == 0x0b) /* ud2: the test that compares us with the processor */
        c.ip += 2;
    const uint8_t *next = *c.ip == 0x62 ? c.ip[4] == 0x72 ? roundings(&c) : pairs(&c)
                        : *c.ip == 0xc4 ? tile_insn(&c)
                                        : NULL;
    if (!next)
        give_up(&c, "no instruction that it knows");
    c.r[REG_RIP] = (greg_t)(uintptr_t)next;
}

#ifdef EMULATE_PRELOADED
typedef int set_action(int, const struct sigaction *, struct sigaction *);
typedef void (*set_handler(int, void (*)(int)))(int);

static void *behind(const char *name) { return dlsym(RTLD_NEXT, name); }

/* Handlers of others (faulthandler's, cmocka's) never get to be SIGILL's. */
__attribute__((visibility("default"))) int sigaction(int sig, const struct sigaction *now,
                                                     struct sigaction *old)
{
    set_action *f;
    *(void **)&f = behind("sigaction");
    return f(sig, sig == SIGILL ? NULL : now, old);
}

__attribute__((visibility("default"))) void (*signal(int sig, void (*now)(int)))(int)
{
    set_handler *f;
    *(void **)&f = behind("signal");
    return sig == SIGILL ? SIG_DFL : f(sig, now);
}

static void take_signal(const struct sigaction *s)
{
    set_action *f;
    *(void **)&f = behind("sigaction");
    f(SIGILL, s, NULL);
}
#else
static void take_signal(const struct sigaction *s) { sigaction(SIGILL, s, NULL); }
#endif

/* Called again by who comes after something that takes the signal for itself, as cmocka does for every test.
 */
__attribute__((constructor, visibility("default"))) void eas_emulate(void)
{
    unsigned a, b, c, d;
    if (!__builtin_cpu_supports("avx512f")) /* nothing that could be emulated would be generated */
        return;
    for (unsigned i = 2; i < 8; i++) {
        __cpuid_count(13, i, a, b, c, d);
        offset_of[i] = b;
    }
    struct sigaction s = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    take_signal(&s);
}
