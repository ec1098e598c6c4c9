/* same_code.c: everything that src/gen makes of a kernel, as files; tools/same_code.py runs this and compares
 * two such folders.
 *
 *   same_code OUT cpu LEVEL FILE.ir...         machine code at that level, once without and once with
 *                                              overlapping arguments
 *   same_code OUT text FILE.ir...              MSL, OpenCL C for GPUs, OpenCL C in vectors
 *   same_code OUT cpu LEVEL --random SEED N    the same of N random kernels, as plain, 32-bit and checked
 *                                              forms
 *   same_code OUT text --random SEED N
 *
 * Code is made and not run, so the level need not be one that this machine has. A refusal is written like a
 * result: it must stay the same, too.
 */
#include "../src/gen/gen.h"
#include "../tests/fuzz/diff.h"

#include <dlfcn.h>
#include <stdio.h>

#define V2 ""
#define V3 "+sse3,+ssse3,+cx16,+sse4.1,+sse4.2,+popcnt,+avx,+f16c,+fma,+bmi,+avx2,+bmi2,+lzcnt"
#define V4 V3 ",+avx512f,+avx512dq,+avx512cd,+avx512bw,+avx512vl"

typedef struct level {
    const char *name, *features;
    int bytes;
} level;
static const level levels[] = {{"sse2", V2, 16},
                               {"avx2", V3, 32},
                               {"avx512", V4, 64},
                               {"amx", V4 ",+avx512bf16,+amx-tile,+amx-bf16", 64},
                               {"neon", "+neon", 16}};

static const char *out;
static const level *cpu; /* NULL: texts */
static gen_llvm_compile *compile;

static void write_file(const char *name, const char *form, const void *bytes, size_t n)
{
    char path[1200];
    snprintf(path, sizeof path, "%s/%s.%s", out, name, form);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n) {
        perror(path);
        exit(1);
    }
    fclose(f);
}

static void write_refusal(const char *name, const char *form, eas_status st, const char *why)
{
    char text[1024];
    const int n = snprintf(text, sizeof text, "refused (%d): %.900s\n", (int)st, why ? why : "");
    write_file(name, form, text, (size_t)n);
}

static void machine_code(const eas_ir *ir, const char *name, bool alias)
{
    const gen_options opt = {.cpu_features = cpu->features, .vector_bytes = cpu->bytes, .alias = alias};
    gen_image im = {0};
    char form[64], *text = NULL, *error = NULL;
    snprintf(form, sizeof form, "%s%s", cpu->name, alias ? "-alias" : "");
    const eas_status st = compile(ir, &opt, &im, &text, &error);
    if (st) {
        write_refusal(name, form, st, error);
    } else {
        str s = {0};
        str_add(&s, "entry %u, scratch %llu, sensitive %d\n", im.entry, (unsigned long long)im.scratch,
                im.alias_sensitive);
        const size_t head = s.len;
        uint8_t *all = malloc(head + im.size);
        memcpy(all, s.at, head);
        memcpy(all + head, im.bytes, im.size);
        write_file(name, form, all, head + im.size);
        free(all);
        str_free(&s);
    }
    free(im.bytes);
    free(text);
    free(error);
}

static void one_text(const eas_ir *ir, const char *name, const char *form, gen_dialect d, unsigned flags)
{
    str s = {0};
    gen_linemap map = {0};
    const eas_status st = gen_ctext(ir, d, flags, &s, &map);
    if (st) {
        write_refusal(name, form, st, eas_error_message());
    } else {
        for (uint32_t i = 0; i < map.len; i++)
            str_add(&s, "%s%u", i ? " " : "\n// ", map.at[i]);
        write_file(name, form, s.at, s.len);
    }
    str_free(&s);
    vec_free(&map);
}

static void texts(const eas_ir *ir, const char *name)
{
    eas_ir *plain = NULL;
    if (ir_expanded(ir, 0, &plain)) {
        write_refusal(name, "msl", EAS_ERR_INTERNAL, eas_error_message());
        return;
    }
    one_text(plain, name, "msl", GEN_MSL, 0);
    one_text(plain, name, "alias.msl", GEN_MSL, GEN_ALIAS);
    one_text(plain, name, "cl", GEN_OPENCL, GEN_OFFSETS);
    one_text(plain, name, "alias.cl", GEN_OPENCL, GEN_OFFSETS | GEN_ALIAS);
    one_text(plain, name, "v16.cl", GEN_OPENCL, GEN_OFFSETS | 16 * GEN_LANES);
    one_text(plain, name, "v4.cl", GEN_OPENCL, GEN_OFFSETS | GEN_ALIAS | 4 * GEN_LANES);
    eas_ir_release(plain);
}

static void code(const eas_ir *ir, const char *name)
{
    if (!cpu) {
        texts(ir, name);
        return;
    }
    eas_ir *plain = NULL;
    if (ir_expanded(ir, cpu->bytes == 64 ? IR_KEEP_LDEXP : 0, &plain)) {
        write_refusal(name, cpu->name, EAS_ERR_INTERNAL, eas_error_message());
        return;
    }
    machine_code(plain, name, false);
    machine_code(plain, name, true);
    eas_ir_release(plain);
}

static void of_file(const char *path)
{
    char name[256];
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(base, "."), base);
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(1);
    }
    str s = {0};
    char buf[4096];
    for (size_t n; (n = fread(buf, 1, sizeof buf, f)) > 0;)
        str_add(&s, "%.*s", (int)n, buf);
    fclose(f);
    eas_ir *ir = NULL;
    const eas_status st = eas_ir_parse(s.at, s.len, &ir);
    if (st)
        write_refusal(name, "ir", st, eas_error_message());
    else
        code(ir, name);
    eas_ir_release(ir);
    str_free(&s);
}

static void of_seed(uint64_t seed)
{
    const knobs k = {.seed = seed, .max_lanes = 300, .max_grid = 5, .max_steps = 14, .max_depth = 2};
    trial t;
    char why[400], name[64];
    eas_ir *simple = NULL, *narrow = NULL, *checked = NULL;
    ir_narrow need = {0};
    if (!diff_make(&k, &t, why, sizeof why))
        return;
    snprintf(name, sizeof name, "seed%llu", (unsigned long long)seed);
    if (eas_ir_simplify(t.ir, &simple)) {
        write_refusal(name, "ir", EAS_ERR_INTERNAL, eas_error_message());
    } else if (seed % 3 == 0 && !ir_narrowed(simple, &narrow, &need) && narrow) {
        code(narrow, name);
    } else if (seed % 3 == 1 && !ir_checked(simple, NULL, &checked)) {
        code(checked, name);
    } else {
        code(simple, name);
    }
    ir_narrow_free(&need);
    eas_ir_release(simple);
    eas_ir_release(narrow);
    eas_ir_release(checked);
    diff_free(&t);
}

static void open_compiler(void)
{
    const char *path = getenv("EAS_LLVM_LIBRARY");
    void *lib = path ? dlopen(path, RTLD_NOW) : NULL, *sym = lib ? dlsym(lib, "eas_llvm_compile") : NULL;
    if (!sym) {
        fprintf(stderr, "same_code: EAS_LLVM_LIBRARY: %s\n", path ? dlerror() : "not set");
        exit(1);
    }
    memcpy(&compile, &sym, sizeof sym);
}

static const level *level_of(const char *name)
{
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        if (!strcmp(levels[i].name, name))
            return &levels[i];
    fprintf(stderr, "same_code: no level %s\n", name);
    exit(2);
}

int main(int argc, char **argv)
{
    const bool machine = argc > 3 && !strcmp(argv[2], "cpu");
    int at = machine ? 4 : 3;
    if (argc <= at) {
        fprintf(stderr, "usage: same_code OUT cpu LEVEL|text FILE.ir... | --random SEED N\n");
        return 2;
    }
    out = argv[1];
    if (machine) {
        cpu = level_of(argv[3]);
        open_compiler();
    }
    if (!strcmp(argv[at], "--random") && at + 2 < argc) {
        const uint64_t first = strtoull(argv[at + 1], NULL, 10), n = strtoull(argv[at + 2], NULL, 10);
        for (uint64_t k = 0; k < n; k++)
            of_seed(first + k);
        return 0;
    }
    for (; at < argc; at++)
        of_file(argv[at]);
    return 0;
}
