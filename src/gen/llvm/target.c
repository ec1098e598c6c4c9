/* target.c: the target machine: which instructions it has, and object code for it. */
#include "llvm.h"

#include <llvm-c/Support.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <pthread.h>
#include <stdio.h>

#if defined(__aarch64__)
#define TRIPLE "aarch64-unknown-linux-gnu"
#else
#define TRIPLE "x86_64-unknown-linux-gnu"
#endif

static LLVMTargetRef target;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Passes that have nothing to do for us: addresses are already what strength reduction would make of them,
 * and so on. The options are those of this module's own copy of LLVM. */
static void set_options(void)
{
    static const char *const argv[] = {
        "eas",
        "-disable-lsr",
        "-disable-mergeicmps",
        "-disable-constant-hoisting",
        "-disable-postra-machine-licm",
        "-disable-early-ifcvt",
        "-disable-select-optimize",
        "-disable-partial-libcall-inlining",
        "-disable-tail-duplicate",
#if !defined(__aarch64__)
        "-disable-cgp",
        "-x86-cmov-converter=false",
        "-disable-x86-domain-reassignment",
#endif
    };
    LLVMParseCommandLineOptions((int)(sizeof argv / sizeof *argv), argv, NULL);
}

static void init_target(void)
{
    char *err = NULL;
    set_options();
#if defined(__aarch64__)
    LLVMInitializeAArch64TargetInfo();
    LLVMInitializeAArch64Target();
    LLVMInitializeAArch64TargetMC();
    LLVMInitializeAArch64AsmPrinter();
#else
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
#endif
    if (LLVMGetTargetFromTriple(TRIPLE, &target, &err))
        target = NULL;
    LLVMDisposeMessage(err);
}

static bool has_feature(const char *features, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = features; (p = strstr(p, name)); p += n)
        if (p > features && p[-1] == '+' && (p[n] == 0 || p[n] == ','))
            return true;
    return false;
}

void target_read_isa(gen *g)
{
    const char *f = g->opt->cpu_features ? g->opt->cpu_features : "";
#if defined(__aarch64__)
    (void)f;
    g->f16c = g->fma = true;
#else
    g->x86 = true;
    g->sse41 = has_feature(f, "sse4.1");
    g->f16c = has_feature(f, "f16c");
    g->fma = has_feature(f, "fma");
    g->avx2 = has_feature(f, "avx2");
    g->avx512 = has_feature(f, "avx512f") && has_feature(f, "avx512bw") && has_feature(f, "avx512vl") &&
                has_feature(f, "avx512dq");
    const bool whole = g->avx512 && g->opt->vector_bytes == 64;
    g->bf16 = whole && has_feature(f, "avx512bf16");
    g->vnni = whole ? has_feature(f, "avx512vnni")
                    : g->avx2 && g->opt->vector_bytes == 32 && has_feature(f, "avxvnni");
    g->amx = whole && has_feature(f, "amx-tile") && has_feature(f, "amx-bf16");
#endif
}

/* A name for as many features as possible: parsing a feature string is a large part of making a target
 * machine. */
static const char *cpu_of(const gen *g, char *rest, size_t size)
{
    const char *f = g->opt->cpu_features ? g->opt->cpu_features : "";
#if !defined(__aarch64__)
    static const char *const v3[] = {"sse3", "ssse3", "cx16", "sse4.1", "sse4.2", "popcnt", "avx",
                                     "f16c", "fma",   "bmi",  "avx2",   "bmi2",   "lzcnt"};
    static const char *const v4[] = {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"};
    bool has3 = true, has4 = true;
    for (size_t i = 0; i < sizeof v3 / sizeof *v3; i++)
        has3 = has3 && has_feature(f, v3[i]);
    for (size_t i = 0; i < sizeof v4 / sizeof *v4; i++)
        has4 = has4 && has_feature(f, v4[i]);
    if (has3 && has4)
        snprintf(rest, size, "-prefer-256-bit%s%s%s", g->vnni ? ",+avx512vnni" : "",
                 g->bf16 ? ",+avx512bf16" : "", g->amx ? ",+amx-tile,+amx-bf16" : "");
    else
        snprintf(rest, size, "%s", has3 ? g->vnni ? "+avxvnni" : "" : f);
    return has3 && has4 ? "x86-64-v4" : has3 ? "x86-64-v3" : "x86-64";
#else
    snprintf(rest, size, "%s", f);
    return "generic";
#endif
}

/* ---- target machines are kept: making one costs as much as a small kernel ---- */

static struct kept {
    char features[512];
    LLVMTargetMachineRef tm;
} kept[4];
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static LLVMTargetMachineRef take_machine(const gen *g, const char *features)
{
    LLVMTargetMachineRef tm = NULL;
    char rest[512];
    pthread_mutex_lock(&kept_lock);
    for (size_t i = 0; i < sizeof kept / sizeof *kept && !tm; i++) {
        if (!kept[i].tm || strcmp(kept[i].features, features) != 0)
            continue;
        tm = kept[i].tm;
        kept[i].tm = NULL;
    }
    pthread_mutex_unlock(&kept_lock);
    if (tm)
        return tm;
    const char *cpu = cpu_of(g, rest, sizeof rest);
    return LLVMCreateTargetMachine(target, TRIPLE, cpu, rest, LLVMCodeGenLevelDefault, LLVMRelocPIC,
                                   LLVMCodeModelSmall);
}

static void give_machine(LLVMTargetMachineRef tm, const char *features)
{
    pthread_mutex_lock(&kept_lock);
    for (size_t i = 0; i < sizeof kept / sizeof *kept && tm && strlen(features) < sizeof kept->features;
         i++) {
        if (kept[i].tm)
            continue;
        kept[i].tm = tm;
        strcpy(kept[i].features, features);
        tm = NULL;
    }
    pthread_mutex_unlock(&kept_lock);
    if (tm)
        LLVMDisposeTargetMachine(tm);
}

eas_status target_emit(gen *g, bool assembly, LLVMMemoryBufferRef *out)
{
    char *err = NULL;
    const char *features = g->opt->cpu_features ? g->opt->cpu_features : "";
    pthread_once(&once, init_target);
    if (!target)
        return base_fail(EAS_ERR_INTERNAL, "LLVM has no target for this machine");
    LLVMTargetMachineRef tm = take_machine(g, features);
    if (!tm)
        return base_fail(EAS_ERR_INTERNAL, "LLVM has no target machine");
    LLVMTargetDataRef td = LLVMCreateTargetDataLayout(tm);
    LLVMSetModuleDataLayout(g->mod, td);
    LLVMDisposeTargetData(td);
    LLVMSetTarget(g->mod, TRIPLE);
    const LLVMBool bad = LLVMTargetMachineEmitToMemoryBuffer(
        tm, g->mod, assembly ? LLVMAssemblyFile : LLVMObjectFile, &err, out);
    give_machine(tm, features);
    if (!bad)
        return *out ? EAS_OK : base_fail_oom(1);
    const eas_status st = base_fail(EAS_ERR_INTERNAL, "LLVM: %s", err);
    LLVMDisposeMessage(err);
    return st;
}
