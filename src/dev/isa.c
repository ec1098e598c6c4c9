/* isa.c: run-time detection of the instruction set: cpuid and xgetbv on x86-64, auxv or sysctl on AArch64.
 *
 * A feature counts only if the operating system saves its registers. EAS_ISA lowers the level (never raises
 * it above what the machine has), so that every code path can be tested on one machine. What a machine lacks
 * can be tested where the program contains an emulator of it (tests/c/emulate.c): that names the features it
 * stands in for in a symbol of its own, which no setting can.
 */
#include "isa.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static struct {
    char features[512];
    const char *name;
    int bytes;
    bool bf16, exchange_16;
} isa;

#if defined(__x86_64__)
#include <cpuid.h>

enum { L_SSE2, L_AVX2, L_AVX512, L_BF16, L_AMX }; /* levels that EAS_ISA names */
static const char *const levels[] = {"sse2", "avx2", "avx512", "avx512bf16", "amx"};

typedef struct regs {
    uint32_t r[4];
} regs; /* eax ebx ecx edx */

static regs ask_cpuid(uint32_t leaf, uint32_t sub)
{
    regs x = {{0}};
    if (leaf <= __get_cpuid_max(leaf & 0x80000000u, NULL))
        __cpuid_count(leaf, sub, x.r[0], x.r[1], x.r[2], x.r[3]);
    return x;
}

/* Each leaf is asked for once: in a virtual machine the host answers, which takes microseconds. Only under
 * the lock of pthread_once. */
static regs cpuid(uint32_t leaf, uint32_t sub)
{
    static struct {
        uint32_t leaf, sub;
        regs x;
    } known[4];
    size_t i = 0;
    while (i < 4 && known[i].leaf && (known[i].leaf != leaf || known[i].sub != sub))
        i++;
    if (i == 4)
        return ask_cpuid(leaf, sub);
    if (!known[i].leaf) {
        known[i].leaf = leaf;
        known[i].sub = sub;
        known[i].x = ask_cpuid(leaf, sub);
    }
    return known[i].x;
}

static uint64_t xgetbv0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* X(feature, leaf, sub, register, bit, level, state): state is the part of xcr0 it needs */
#define XMM 0x2u
#define YMM 0x6u
#define ZMM 0xe6u
#define TILE 0x60000u
#define FEATURES(X) \
    X("sse3", 1, 0, 2, 0, L_AVX2, 0) \
    X("ssse3", 1, 0, 2, 9, L_AVX2, 0) \
    X("cx16", 1, 0, 2, 13, L_AVX2, 0) \
    X("sse4.1", 1, 0, 2, 19, L_AVX2, 0) \
    X("sse4.2", 1, 0, 2, 20, L_AVX2, 0) \
    X("popcnt", 1, 0, 2, 23, L_AVX2, 0) \
    X("avx", 1, 0, 2, 28, L_AVX2, YMM) \
    X("f16c", 1, 0, 2, 29, L_AVX2, YMM) \
    X("fma", 1, 0, 2, 12, L_AVX2, YMM) \
    X("bmi", 7, 0, 1, 3, L_AVX2, 0) \
    X("avx2", 7, 0, 1, 5, L_AVX2, YMM) \
    X("bmi2", 7, 0, 1, 8, L_AVX2, 0) \
    X("lzcnt", 0x80000001u, 0, 2, 5, L_AVX2, 0) \
    X("avxvnni", 7, 1, 0, 4, L_AVX2, YMM) \
    X("avx512f", 7, 0, 1, 16, L_AVX512, ZMM) \
    X("avx512dq", 7, 0, 1, 17, L_AVX512, ZMM) \
    X("avx512cd", 7, 0, 1, 28, L_AVX512, ZMM) \
    X("avx512bw", 7, 0, 1, 30, L_AVX512, ZMM) \
    X("avx512vl", 7, 0, 1, 31, L_AVX512, ZMM) \
    X("avx512vnni", 7, 0, 2, 11, L_AVX512, ZMM) \
    X("avx512fp16", 7, 0, 3, 23, L_AVX512, ZMM) \
    X("avx512bf16", 7, 1, 0, 5, L_BF16, ZMM) \
    X("amx-tile", 7, 0, 3, 24, L_AMX, TILE) \
    X("amx-bf16", 7, 0, 3, 22, L_AMX, TILE) \
    X("amx-int8", 7, 0, 3, 25, L_AMX, TILE)

static int level_of(const char *want)
{
    for (int i = 0; want && i <= L_AMX; i++)
        if (strcmp(want, levels[i]) == 0)
            return i;
    return L_AMX; /* native, anything unknown */
}

#if defined(__linux__)
/* Features that the program emulates, with a comma before and after each; there only in tests. */
extern const char eas_emulated_isa[] __attribute__((weak, visibility("default")));

/* And those that it does without, as if the machine lacked them. */
extern const char eas_missing_isa[] __attribute__((weak, visibility("default")));

static bool listed(const char *list, const char *feature)
{
    char want[32];
    snprintf(want, sizeof want, ",%s,", feature);
    return list && strstr(list, want);
}
static bool emulated(const char *feature) { return listed(eas_emulated_isa, feature); }
static bool missing(const char *feature) { return listed(eas_missing_isa, feature); }

/* Linux gives a process the registers of AMX only on request (arch_prctl), once for the process. */
static bool granted(uint64_t state)
{
    enum { REQUEST = 0x1023, TILE_DATA = 18 };
    return state != TILE || syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#else
static bool emulated(const char *feature) { return (void)feature, false; }
static bool missing(const char *feature) { return (void)feature, false; }
static bool granted(uint64_t state) { return state != TILE; }
#endif

static bool has_bit(const char *feature, uint32_t leaf, uint32_t sub, int reg, int bit, uint64_t state,
                    uint64_t xcr0)
{
    return !missing(feature) &&
           (((cpuid(leaf, sub).r[reg] >> bit & 1) && (xcr0 & state) == state && granted(state)) ||
            emulated(feature));
}

static bool on(const char *feature)
{
    char want[32];
    snprintf(want, sizeof want, "+%s,", feature);
    return strstr(isa.features, want) != NULL;
}

static bool wide(void) /* the parts of AVX-512 that every AVX-512 server and client has */
{
    return on("avx512f") && on("avx512dq") && on("avx512bw") && on("avx512vl");
}

/* On processors that have AVX512-FP16 too (Intel's from Sapphire Rapids on) a vdpbf16ps takes four times as
 * long as an fma and does the work of two: it is used there only if EAS_ISA names it. */
static bool pays(const char *feature, int level)
{
    return strcmp(feature, "avx512bf16") != 0 || level == L_BF16 || !(cpuid(7, 0).r[3] >> 23 & 1);
}

static void detect(void)
{
    const int level = level_of(getenv("EAS_ISA"));
    const uint64_t xcr0 = cpuid(1, 0).r[2] >> 27 & 1 ? xgetbv0() : 0;
    size_t n = 0;
#define ADD(f, leaf, sub, reg, bit, lv, state) \
    if ((lv) <= level && ((lv) < L_BF16 || wide()) && pays(f, level) && \
        has_bit(f, leaf, sub, reg, bit, state, xcr0)) \
        n += (size_t)snprintf(isa.features + n, sizeof isa.features - n, "+%s,", f);
    FEATURES(ADD)
#undef ADD
    const bool avx2 = on("avx2") && on("fma") && on("f16c") && on("bmi") && on("bmi2");
    isa.bytes = avx2 && wide() ? 64 : avx2 ? 32 : 16;
    const bool bf16 = avx2 && wide() && on("avx512bf16"),
               amx = avx2 && wide() && on("amx-tile") && on("amx-bf16");
    isa.name = levels[amx ? L_AMX : bf16 ? L_BF16 : avx2 && wide() ? L_AVX512 : avx2 ? L_AVX2 : L_SSE2];
    isa.bf16 = bf16 || amx;
    isa.exchange_16 = level > L_SSE2 && cpuid(1, 0).r[2] >> 13 & 1;
    if (n)
        isa.features[n - 1] = 0; /* the last comma */
}

#elif defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
static bool has(const char *what)
{
    const unsigned long cap = getauxval(AT_HWCAP);
    if (strcmp(what, "fullfp16") == 0)
        return cap >> 10 & 1; /* HWCAP_ASIMDHP */
    if (strcmp(what, "dotprod") == 0)
        return cap >> 20 & 1;  /* HWCAP_ASIMDDP */
    return false;
}
#elif defined(__APPLE__)
#include <sys/sysctl.h>
static bool has(const char *what)
{
    int v = 0;
    size_t n = sizeof v;
    const char *key =
        strcmp(what, "fullfp16") == 0 ? "hw.optional.arm.FEAT_FP16" : "hw.optional.arm.FEAT_DotProd";
    return sysctlbyname(key, &v, &n, NULL, 0) == 0 && v;
}
#else
static bool has(const char *what)
{
    (void)what;
    return false;
}
#endif

static void detect(void)
{
    snprintf(isa.features, sizeof isa.features, "+neon%s%s", has("fullfp16") ? ",+fullfp16" : "",
             has("dotprod") ? ",+dotprod" : "");
    isa.name = "neon";
    isa.bytes = 16;
}

#else
static void detect(void)
{
    isa.name = "none";
    isa.bytes = 16;
}
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;

const char *isa_name(void)
{
    pthread_once(&once, detect);
    return isa.name;
}

const char *isa_features(void)
{
    pthread_once(&once, detect);
    return isa.features;
}

int isa_vector_bytes(void)
{
    pthread_once(&once, detect);
    return isa.bytes;
}

int isa_registers(void)
{
    pthread_once(&once, detect);
#if defined(__x86_64__)
    return isa.bytes == 64 ? 32 : 16;
#else
    return 32;
#endif
}

bool isa_exchange_16(void)
{
    pthread_once(&once, detect);
    return isa.exchange_16;
}

bool isa_ldexp(void)
{
    pthread_once(&once, detect);
    return isa.bytes == 64;
}

bool isa_bf16(void)
{
    pthread_once(&once, detect);
    return isa.bf16;
}
