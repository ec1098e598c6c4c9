/* msl_run.c: see msl_run.h. For each kernel a trampoline is written from its signature, so that all can be called alike. */
#include "msl_run.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef EAS_SHIM_DIR
#define EAS_SHIM_DIR "tests/metal/shim"
#endif

struct msl_batch {
    char dir[64], path[96], lib[96];
    FILE *f;
    int n;
    void *so;
};

typedef struct where_am_i {
    unsigned pid[3], npid[3], tid[3], gid[3], lane, sg;
} where_am_i;
typedef void trampoline(void **args, const where_am_i *at);

static const char *clang(void)
{
    const char *c = getenv("EAS_CLANG");
    return c && *c ? c : "clang-19";
}

static int run(const char *fmt, ...)
{
    char cmd[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(cmd, sizeof cmd, fmt, ap);
    va_end(ap);
    return system(cmd);
}

/* ---- syntax only ---- */

static int check_text(const char *text, const char *suffix, const char *options)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/eas_ctext_XXXXXX%s", suffix);
    int fd = mkstemps(path, (int)strlen(suffix));
    size_t n = strlen(text);
    if (fd < 0 || write(fd, text, n) != (ssize_t)n)
        return -1;
    close(fd);
    int rc = run("%s -fsyntax-only -Wall -Wno-unused-variable -Wno-unused-but-set-variable -Werror %s %s", clang(), options, path);
    if (rc)
        fprintf(stderr, "%s\n", text);
    unlink(path);
    return rc;
}

int msl_syntax(const char *msl)
{
    return check_text(msl, ".metal", "-x c++ -std=c++17 -isystem " EAS_SHIM_DIR " -Wno-unknown-attributes -Wno-unknown-pragmas");
}

int opencl_syntax(const char *cl) { return check_text(cl, ".cl", "-x cl -cl-std=CL1.2 -Xclang -finclude-default-header"); }

/* ---- batches ---- */

msl_batch *msl_batch_new(void)
{
    msl_batch *b = calloc(1, sizeof *b);
    if (!b)
        return NULL;
    snprintf(b->dir, sizeof b->dir, "/tmp/eas_msl_XXXXXX");
    if (!mkdtemp(b->dir)) {
        free(b);
        return NULL;
    }
    snprintf(b->path, sizeof b->path, "%s/batch.cc", b->dir);
    snprintf(b->lib, sizeof b->lib, "%s/batch.so", b->dir);
    b->f = fopen(b->path, "w");
    if (b->f)
        fputs("#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing metal::uint3;\n"
              "struct eas_at { unsigned pid[3], npid[3], tid[3], gid[3], lane, sg; };\n",
              b->f);
    return b;
}

/* One parameter of the signature as the trampoline hands it over: "TYPE NAME [[ATTRIBUTE]]". */
static void put_argument(FILE *f, const char *line, size_t n)
{
    char type[256] = "";
    const char *attr = memmem(line, n, "[[", 2);
    int buffer;
    if (!attr)
        return;
    if (sscanf(attr, "[[buffer(%d)]]", &buffer) == 1) {
        const char *mark = memchr(line, '*', n);
        int is_ref = !mark || mark > attr;
        if (is_ref)
            mark = memchr(line, '&', n);
        snprintf(type, sizeof type, "%.*s*", (int)(mark - line), line);
        fprintf(f, is_ref ? "*(%s)a[%d]" : "(%s)a[%d]", type, buffer);
        return;
    }
    static const struct {
        const char *attr, *expr;
    } table[] = {
        {"[[threads_per_grid]]", "uint3(t->npid[0], t->npid[1], t->npid[2])"},
        {"[[threadgroups_per_grid]]", "uint3(t->npid[0], t->npid[1], t->npid[2])"},
        {"[[threadgroup_position_in_grid]]", "uint3(t->pid[0], t->pid[1], t->pid[2])"},
        {"[[thread_position_in_threadgroup]]", "uint3(t->tid[0], t->tid[1], t->tid[2])"},
        {"[[thread_position_in_grid]]", "uint3(t->gid[0], t->gid[1], t->gid[2])"},
        {"[[thread_index_in_simdgroup]]", "t->lane"},
        {"[[simdgroup_index_in_threadgroup]]", "t->sg"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strncmp(attr, table[i].attr, strlen(table[i].attr)))
            fputs(table[i].expr, f);
}

/* Threadgroup arrays are shared by the threads of a group; groups run one at a time. */
static void put_body(FILE *f, const char *text)
{
    static const char decl[] = "\n    threadgroup ";
    for (const char *p; (p = strstr(text, decl)); text = p + sizeof decl - 1) {
        fwrite(text, 1, (size_t)(p - text), f);
        fputs("\n    static ", f);
    }
    fputs(text, f);
}

void msl_batch_add(msl_batch *b, const char *msl)
{
    char name[128];
    const char *sig = strstr(msl, "kernel void ");
    if (!sig || sscanf(sig, "kernel void %127[^(]", name) != 1)
        return;
    fprintf(b->f, "namespace n%d {\n", b->n++);
    put_body(b->f, msl);
    fprintf(b->f, "extern \"C\" void run_%s(void **a, const eas_at *t)\n{\n    (void)a, (void)t;\n    %s(", name, name);
    const char *line = strchr(sig, '\n') + 1;
    for (int i = 0; *line == ' '; i++) {
        const char *end = strchr(line, '\n');
        if (i)
            fputs(", ", b->f);
        put_argument(b->f, line, (size_t)(end - line));
        line = end + 1;
        if (end[-1] == ')')
            break;
    }
    fprintf(b->f, ");\n}\n} // namespace\n");
}

int msl_batch_compile(msl_batch *b)
{
    fclose(b->f);
    b->f = NULL;
    if (run("%s -shared -fPIC -O1 -x c++ -std=c++17 -isystem %s -ffp-contract=off -fsanitize=undefined,float-cast-overflow "
            "-fsanitize-trap=undefined,float-cast-overflow -Wno-unknown-attributes -Wno-unknown-pragmas -o %s %s",
            clang(), EAS_SHIM_DIR, b->lib, b->path))
        return -1;
    b->so = dlopen(b->lib, RTLD_NOW | RTLD_LOCAL);
    if (!b->so)
        fprintf(stderr, "%s\n", dlerror());
    return b->so ? 0 : -1;
}

/* ---- threads ---- */

static pthread_barrier_t group_barrier;
static int group_size = 1;
static _Thread_local unsigned my_lane;

void eas_shim_barrier(void);
unsigned eas_shim_lane(void);
__attribute__((visibility("default"))) void eas_shim_barrier(void)
{
    if (group_size > 1)
        pthread_barrier_wait(&group_barrier);
}
__attribute__((visibility("default"))) unsigned eas_shim_lane(void) { return my_lane; }

typedef struct thread {
    trampoline *fn;
    void **args;
    where_am_i at;
} thread;

/* The trampoline's type is written twice, here and in the batch. */
#if defined(__clang__)
__attribute__((no_sanitize("function")))
#endif
static void *
run_thread(void *p)
{
    thread *t = p;
    my_lane = t->at.lane;
    t->fn(t->args, &t->at);
    return NULL;
}

static void run_group(trampoline *fn, void **args, const unsigned pid[3], const int64_t grid[3], int block)
{
    thread *t = calloc((size_t)block, sizeof *t);
    pthread_t *id = calloc((size_t)block, sizeof *id);
    group_size = block;
    if (block > 1)
        pthread_barrier_init(&group_barrier, NULL, (unsigned)block);
    for (int i = 0; i < block; i++) {
        t[i] = (thread){.fn = fn, .args = args};
        for (int a = 0; a < 3; a++) {
            t[i].at.pid[a] = pid[a];
            t[i].at.npid[a] = (unsigned)grid[a];
            t[i].at.tid[a] = a ? 0 : (unsigned)i;
            t[i].at.gid[a] = pid[a] * (a ? 1u : (unsigned)block) + t[i].at.tid[a];
        }
        t[i].at.lane = (unsigned)i % 32;
        t[i].at.sg = (unsigned)i / 32;
        if (block > 1)
            pthread_create(&id[i], NULL, run_thread, &t[i]);
        else
            run_thread(&t[i]);
    }
    for (int i = 0; i < block && block > 1; i++)
        pthread_join(id[i], NULL);
    if (block > 1)
        pthread_barrier_destroy(&group_barrier);
    free(t);
    free(id);
}

int msl_batch_run(msl_batch *b, const char *kernel, void **args, const int64_t grid[3], int block)
{
    char name[160];
    trampoline *fn;
    snprintf(name, sizeof name, "run_%s", kernel);
    void *p = dlsym(b->so, name);
    if (!p)
        return -1;
    memcpy(&fn, &p, sizeof fn);
    for (int64_t z = 0; z < grid[2]; z++)
        for (int64_t y = 0; y < grid[1]; y++)
            for (int64_t x = 0; x < grid[0]; x++)
                run_group(fn, args, (unsigned[]){(unsigned)x, (unsigned)y, (unsigned)z}, grid, block);
    return 0;
}

void msl_batch_free(msl_batch *b)
{
    if (!b)
        return;
    if (b->f)
        fclose(b->f);
    if (b->so)
        dlclose(b->so);
    unlink(b->path);
    unlink(b->lib);
    rmdir(b->dir);
    free(b);
}
