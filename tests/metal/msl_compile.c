/* msl_compile.c: from Metal Shading Language to functions of this process.
 *
 * The text is compiled as C++ with the shim of tests/metal/shim. Two things are written around it: the
 * kernel's threadgroup arrays become references into memory of the runner, and each kernel gets a trampoline,
 * so that all can be called alike, and a description of its arguments, both made from its signature. Lines
 * keep their numbers. What was compiled is kept in a folder of this user's, the whole C++ text beside it:
 * equal text, equal code.
 */
#include "msl.h"
#include "msl_shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef EAS_SHIM_DIR
#define EAS_SHIM_DIR "tests/metal/shim"
#endif

extern char **environ;

struct msl_lib {
    void *so;
    const msl_kernel *kernels;
    int n;
};

/* ---- text that grows ---- */

typedef struct text {
    char *at;
    size_t n, cap;
} text;

static void put_n(text *t, const char *s, size_t n)
{
    if (t->n + n + 1 > t->cap) {
        t->cap = (t->n + n + 1) * 2;
        t->at = realloc(t->at, t->cap);
        if (!t->at)
            abort();
    }
    memcpy(t->at + t->n, s, n);
    t->n += n;
    t->at[t->n] = 0;
}

static void put(text *t, const char *s) { put_n(t, s, strlen(s)); }

__attribute__((format(printf, 2, 3))) static void putf(text *t, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    put_n(t, line, n < (int)sizeof line ? (size_t)n : sizeof line - 1);
}

static char *read_all(const char *path)
{
    text t = {0};
    char part[16384];
    FILE *f = fopen(path, "r");
    if (!f)
        return NULL;
    put(&t, "");
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
        put_n(&t, part, n);
    fclose(f);
    return t.at;
}

/* ---- one kernel's signature ---- */

static int is_word(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

typedef struct param {
    char type[160], name[128]; /* of what the pointer or reference is to */
    const char *attr;          /* "[[...]]" */
    int buffer, is_reference;
} param;

static bool parse_param(const char *s, size_t n, param *p)
{
    const char *attr = memmem(s, n, "[[", 2);
    if (!attr)
        return false;
    const char *end = attr;
    while (end > s && !is_word(end[-1]))
        end--;
    const char *name = end;
    while (name > s && is_word(name[-1]))
        name--;
    p->attr = attr;
    snprintf(p->name, sizeof p->name, "%.*s", (int)(end - name), name);
    p->buffer = -1;
    if (sscanf(attr, "[[buffer(%d)]]", &p->buffer) != 1)
        return true;
    const char *mark = memchr(s, '*', (size_t)(attr - s));
    p->is_reference = !mark;
    if (!mark)
        mark = memchr(s, '&', (size_t)(attr - s));
    snprintf(p->type, sizeof p->type, "%.*s", mark ? (int)(mark - s) : 0, s);
    return mark != NULL;
}

static const char *built_in(const char *attr)
{
    static const struct {
        const char *attr, *expr;
    } table[] = {
        {"[[threads_per_grid]]", "uint3(t->all[0], t->all[1], t->all[2])"},
        {"[[threadgroups_per_grid]]", "uint3(t->groups[0], t->groups[1], t->groups[2])"},
        {"[[threads_per_threadgroup]]", "uint3(t->locals[0], t->locals[1], t->locals[2])"},
        {"[[threadgroup_position_in_grid]]", "uint3(t->group[0], t->group[1], t->group[2])"},
        {"[[thread_position_in_threadgroup]]", "uint3(t->local[0], t->local[1], t->local[2])"},
        {"[[thread_position_in_grid]]", "uint3(t->global[0], t->global[1], t->global[2])"},
        {"[[thread_index_in_threadgroup]]", "t->index"},
        {"[[thread_index_in_simdgroup]]", "t->lane"},
        {"[[simdgroup_index_in_threadgroup]]", "t->sg"},
        {"[[threads_per_simdgroup]]", "32u"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strncmp(attr, table[i].attr, strlen(table[i].attr)))
            return table[i].expr;
    return NULL;
}

/* Parameters of a signature, from behind its "(" on; returns the end of the next one, or NULL after the last.
 */
static const char *next_param(const char *s)
{
    int depth = 0;
    for (; *s; s++) {
        if (*s == '(' || *s == '[' || *s == '<')
            depth++;
        else if (*s == ']' || *s == '>')
            depth--;
        else if (*s == ')' && depth-- == 0)
            return s;
        else if (*s == ',' && !depth)
            return s;
    }
    return NULL;
}

static void put_trampoline(text *out, const char *params, const char *name, int id)
{
    text call = {0}, args = {0};
    int nargs = 0;
    put(&call, "");
    put(&args, "");
    for (const char *s = params, *end; (end = next_param(s)); s = end + 1) {
        param p = {0};
        if (parse_param(s, (size_t)(end - s), &p)) {
            put(&call, call.n ? ", " : "");
            if (p.buffer >= 0) {
                putf(&call, p.is_reference ? "*(%s*)a[%d]" : "(%s*)a[%d]", p.type, p.buffer);
                putf(&args, "{%d, %d, sizeof(%s), \"%s\"}, ", p.buffer, p.is_reference, p.type, p.name);
                nargs++;
            } else {
                const char *value = built_in(p.attr);
                put(&call, value ? value : "eas_shim_unknown_attribute");
            }
        }
        if (*end == ')')
            break;
    }
    putf(out, "static const msl_arg args_%d[] = {", id);
    put(out, args.at);
    putf(
        out,
        "{-1, 0, 0, 0}};\nenum { nargs_%d = %d };\nstatic void run_%d(void *const *a, const msl_at *t)\n{\n    (void)a, (void)t;\n    %s(",
        id, nargs, id, name);
    put(out, call.at);
    put(out, ");\n}\n");
    free(call.at);
    free(args.at);
}

/* ---- threadgroup arrays ---- */

static unsigned element_size(const char *type)
{
    static const struct {
        const char *name;
        unsigned size;
    } table[] = {{"bool", 1},       {"char", 1},        {"uchar", 1},        {"short", 2},
                 {"ushort", 2},     {"half", 2},        {"bfloat", 2},       {"int", 4},
                 {"uint", 4},       {"long", 8},        {"ulong", 8},        {"float", 4},
                 {"atomic_int", 4}, {"atomic_uint", 4}, {"atomic_float", 4}, {"atomic_ulong", 8}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(type, table[i].name))
            return table[i].size;
    return 0;
}

/* Copies a text; "threadgroup T name[N];" on a line of its own becomes a macro of the shim's. Returns the
 * bytes taken by a kernel's arrays. */
static unsigned put_body(text *out, const char *s)
{
    unsigned used = 0;
    while (*s) {
        const char *end = strchr(s, '\n');
        size_t n = end ? (size_t)(end - s) + 1 : strlen(s);
        char type[64], name[128];
        unsigned count, size;
        if (*s == ' ' &&
            sscanf(s, " threadgroup %63[a-z_0-9] %127[A-Za-z_0-9][%u];", type, name, &count) == 3 &&
            (size = element_size(type)) > 0) {
            putf(out, "    EAS_GROUP_ARRAY(%s, %s, %u, %u);\n", type, name, count, used);
            used += (size * count + 15) / 16 * 16;
        } else {
            put_n(out, s, n);
        }
        s += n;
    }
    return used;
}

/* ---- the whole C++ text ---- */

static void put_text(text *out, text *table, const char *msl, int space, int alone)
{
    int meets = strstr(msl, "barrier(") || strstr(msl, "simd_");
    putf(out, "namespace n%d {\n", space);
    if (alone)
        put(out, "#line 1 \"program_source\"\n");
    else
        putf(out, "#line 1 \"program_source_%d\"\n", space);
    unsigned used = put_body(out, msl);
    putf(out, "\n#line 1 \"trampolines\"\n");
    int id = 0;
    for (const char *s = msl; (s = strstr(s, "kernel void ")); id++) {
        char name[256];
        s += strlen("kernel void ");
        if (sscanf(s, "%255[A-Za-z_0-9]", name) != 1 || s[strlen(name)] != '(')
            continue;
        put_trampoline(out, s + strlen(name) + 1, name, id);
        putf(table, "    {\"%s\", n%d::run_%d, n%d::args_%d, n%d::nargs_%d, %uu, %d},\n", name, space, id,
             space, id, space, id, used, meets);
    }
    put(out, "} // namespace\n");
}

static const char *target_options(void)
{
#if defined(__x86_64__) && defined(__linux__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return "-march=x86-64-v3";
#endif
    return "-DEAS_SHIM_BASE_CPU";
}

/* The option by which clang makes code for the machine of this process. Only an emulated one differs from
 * clang's default; -g0 says nothing new. */
#if defined(__aarch64__) && defined(__linux__)
#define MACHINE "--target=aarch64-linux-gnu"
#else
#define MACHINE "-g0"
#endif

/* The shim is part of what a result depends on. */
static uint64_t hash(uint64_t h, const char *s)
{
    for (; *s; s++)
        h = (h ^ (unsigned char)*s) * 0x100000001b3u;
    return h;
}

static uint64_t shim_hash(void)
{
    static _Atomic uint64_t known;
    if (known)
        return known;
    static const char *const files[] = {EAS_SHIM_DIR "/metal_stdlib", EAS_SHIM_DIR "/metal_simdgroup_matrix",
                                        EAS_SHIM_DIR "/../msl.h", EAS_SHIM_DIR "/../msl_shim.h"};
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *s = read_all(files[i]);
        h = hash(h, s ? s : "");
        free(s);
    }
    return known = h;
}

/* A batch of many small kernels takes much longer to optimise than to run. */
enum { BATCH = 8 };
static const char *level_for(int n) { return n > BATCH ? "-O0" : "-O1"; }

static text whole_text(const char *const *texts, int n, bool fast_math)
{
    text out = {0}, table = {0};
    put(&table, "");
    putf(&out, "// shim %016llx, %s, %s, %s, %s math\n", (unsigned long long)shim_hash(), MACHINE,
         level_for(n), target_options(), fast_math ? "fast" : "exact");
    put(&out,
        "#include \"msl.h\"\n#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing metal::uint3;\n");
    for (int i = 0; i < n; i++)
        put_text(&out, &table, texts[i], i, n == 1);
    put(&out,
        "extern \"C\" __attribute__((visibility(\"default\"))) const msl_kernel eas_msl_kernels[] = {\n");
    put(&out, table.at);
    put(&out, "    {nullptr, nullptr, nullptr, 0, 0, 0}};\n");
    free(table.at);
    return out;
}

/* ---- clang ---- */

static const char *clang(void)
{
    const char *c = getenv("EAS_CLANG");
    return c && *c ? c : "clang-19";
}

/* Runs clang with what it says in *said; 0 if it was pleased. */
static int run_clang(const char *const *argv, char **said)
{
    char path[] = "/tmp/eas_msl_XXXXXX";
    int fd = mkstemp(path), status = -1;
    pid_t pid;
    posix_spawn_file_actions_t files;
    if (fd < 0)
        return -1;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, fd, 1);
    posix_spawn_file_actions_adddup2(&files, fd, 2);
    int rc = posix_spawnp(&pid, argv[0], &files, NULL, (char *const *)(uintptr_t)argv, environ);
    posix_spawn_file_actions_destroy(&files);
    if (!rc)
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    *said = rc ? strdup("the stand-in needs clang-19, or what EAS_CLANG names, and cannot start it")
               : read_all(path);
    close(fd);
    unlink(path);
    return rc ? rc : status;
}

#define COMMON \
    "-x", "c++", "-std=c++17", "-isystem", EAS_SHIM_DIR, "-I", EAS_SHIM_DIR "/..", \
        "-Wno-unknown-attributes", "-Wno-unknown-pragmas"

static int compile_file(const char *from, const char *to, const char *level, bool fast_math, char **said)
{
    const char *argv[] = {clang(),
                          COMMON,
                          "-shared",
                          "-fPIC",
                          level,
                          MACHINE,
                          "-fvisibility=hidden",
                          "-fno-exceptions",
                          "-fno-rtti",
                          "-fno-diagnostics-show-option",
                          fast_math ? "-ffast-math" : "-ffp-contract=off",
                          target_options(),
                          "-fsanitize=undefined,float-cast-overflow",
                          "-fsanitize-trap=undefined,float-cast-overflow",
                          "-o",
                          to,
                          from,
                          NULL};
    return run_clang(argv, said);
}

static int check_text(const char *s, const char *const *argv, const char *path)
{
    FILE *f = fopen(path, "w");
    char *said = NULL;
    if (!f)
        return -1;
    fputs(s, f);
    fclose(f);
    int rc = run_clang(argv, &said);
    if (rc)
        fprintf(stderr, "%s\n%s\n", s, said ? said : "");
    free(said);
    unlink(path);
    return rc;
}

static void temporary(char path[64], const char *suffix)
{
    snprintf(path, 64, "/tmp/eas_ctext_XXXXXX%s", suffix);
    int fd = mkstemps(path, (int)strlen(suffix));
    if (fd >= 0)
        close(fd);
}

#define SYNTAX "-fsyntax-only", "-Wall", "-Wno-unused-variable", "-Wno-unused-but-set-variable", "-Werror"

int msl_syntax(const char *msl)
{
    char path[64];
    temporary(path, ".metal");
    const char *argv[] = {clang(), SYNTAX, COMMON, "-Wno-unused-function", path, NULL};
    return check_text(msl, argv, path);
}

int msl_spaces(const char *const *texts, int n)
{
    char path[64];
    text all = {0};
    put(&all, "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\n");
    for (int i = 0; i < n; i++) {
        putf(&all, "namespace n%d {\n", i);
        put_body(&all, texts[i]);
        put(&all, "} // namespace\n");
    }
    temporary(path, ".metal");
    const char *argv[] = {clang(),
                          "-fsyntax-only",
                          "-x",
                          "clcpp",
                          "-cl-std=clc++2021",
                          "-cl-no-stdinc",
                          "-isystem",
                          EAS_SHIM_DIR "/../spaces",
                          "-Wno-everything",
                          path,
                          NULL};
    int rc = check_text(all.at, argv, path);
    free(all.at);
    return rc;
}

/* SPIR has every extension of the language, where the target of this machine may have none (AArch64). */
int opencl_syntax(const char *cl)
{
    char path[64];
    temporary(path, ".cl");
    const char *argv[] = {clang(),         SYNTAX,    "--target=spir64-unknown-unknown", "-x", "cl",
                          "-cl-std=CL1.2", "-Xclang", "-finclude-default-header",        path, NULL};
    return check_text(cl, argv, path);
}

/* ---- the cache ---- */

static bool is_ours(const char *dir)
{
    struct stat s;
    return !lstat(dir, &s) && S_ISDIR(s.st_mode) && s.st_uid == getuid() && !(s.st_mode & 022);
}

/* EAS_METAL_CACHE_DIR, or a folder of this user's among the temporary ones. */
static bool cache_folder(char dir[512])
{
    const char *given = getenv("EAS_METAL_CACHE_DIR"), *tmp = getenv("TMPDIR");
    if (given && *given)
        snprintf(dir, 512, "%s", given);
    else
        snprintf(dir, 512, "%s/eas-metal-%u", tmp && *tmp ? tmp : "/tmp", (unsigned)getuid());
    if (mkdir(dir, 0700) && errno != EEXIST)
        return false;
    return is_ours(dir);
}

static bool is_cached(const char *cc, const char *so, const char *wanted)
{
    char *s = access(so, R_OK) ? NULL : read_all(cc);
    bool same = s && !strcmp(s, wanted);
    free(s);
    return same;
}

static bool write_all(const char *path, const text *t)
{
    FILE *f = fopen(path, "w");
    if (!f)
        return false;
    bool ok = fwrite(t->at, 1, t->n, f) == t->n;
    return !fclose(f) && ok;
}

/* Compiles beside and renames: another process sees all of it or nothing. */
static bool make_cached(const char *cc, const char *so, const text *t, const char *level, bool fast_math,
                        char **error)
{
    char new_cc[640], new_so[640];
    static _Atomic int counter;
    int id = counter++;
    snprintf(new_cc, sizeof new_cc, "%s.%d.%d.cc", cc, (int)getpid(), id);
    snprintf(new_so, sizeof new_so, "%s.%d.%d.so", so, (int)getpid(), id);
    bool ok = write_all(new_cc, t) && !compile_file(new_cc, new_so, level, fast_math, error) &&
              !rename(new_so, so) && !rename(new_cc, cc);
    unlink(new_cc);
    unlink(new_so);
    if (ok) {
        free(*error); /* warnings */
        *error = NULL;
    } else if (!*error) {
        *error = strdup("the compiled kernel could not be written");
    }
    return ok;
}

static msl_lib *open_lib(const char *so, char **error)
{
    msl_lib *lib = calloc(1, sizeof *lib);
    lib->so = dlopen(so, RTLD_NOW | RTLD_LOCAL);
    const eas_shim_calls **shim = lib->so ? dlsym(lib->so, "eas_shim") : NULL;
    lib->kernels = lib->so ? dlsym(lib->so, "eas_msl_kernels") : NULL;
    if (!shim || !lib->kernels) {
        *error = strdup(dlerror());
        msl_lib_free(lib);
        return NULL;
    }
    *shim = msl_calls();
    while (lib->kernels[lib->n].name)
        lib->n++;
    return lib;
}

msl_lib *msl_compile(const char *const *texts, int n, bool fast_math, char **error)
{
    char dir[512], cc[600], so[600];
    *error = NULL;
    if (!cache_folder(dir)) {
        *error = strdup("the folder for compiled kernels is not this user's alone; set EAS_METAL_CACHE_DIR");
        return NULL;
    }
    text t = whole_text(texts, n, fast_math);
    uint64_t key = hash(0xcbf29ce484222325u, t.at);
    snprintf(cc, sizeof cc, "%s/%016llx.cc", dir, (unsigned long long)key);
    snprintf(so, sizeof so, "%s/%016llx.so", dir, (unsigned long long)key);
    msl_lib *lib = NULL;
    if (is_cached(cc, so, t.at) || make_cached(cc, so, &t, level_for(n), fast_math, error))
        lib = open_lib(so, error);
    free(t.at);
    return lib;
}

const msl_kernel *msl_find(const msl_lib *lib, const char *name)
{
    for (int i = 0; i < lib->n; i++)
        if (!strcmp(lib->kernels[i].name, name))
            return &lib->kernels[i];
    return NULL;
}

void msl_lib_free(msl_lib *lib)
{
    if (!lib)
        return;
    if (lib->so)
        dlclose(lib->so);
    free(lib);
}
