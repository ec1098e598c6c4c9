/* lapack.c: a LAPACK opened at run time: the file that the host program names (NumPy and SciPy bring one),
 * else the system's.
 *
 * Builds differ in names (dgetrf_, scipy_dgetrf_64_) and in the size of integers; a suffix of 64_ says the
 * latter. EAS_LAPACK names another file, or "none".
 */
#include "native.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

enum { PATH_ROOM = 4096, LEAST = 96 };
static struct {
    pthread_mutex_t lock;
    bool looked;
    void *lib;
    char path[PATH_ROOM], name[PATH_ROOM];
    const char *prefix, *suffix;
} L = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const struct {
    const char *prefix, *suffix;
} forms[] = {{"scipy_", "_64_"}, {"", "_64_"}, {"scipy_", "_"}, {"", "_"}, {"", ""}};

static bool try_file(const char *path)
{
    char name[64];
    void *lib = path && *path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (size_t i = 0; lib && i < sizeof forms / sizeof *forms; i++) {
        snprintf(name, sizeof name, "%sdgesdd%s", forms[i].prefix, forms[i].suffix);
        if (dlsym(lib, name)) {
            L.lib = lib;
            L.prefix = forms[i].prefix;
            L.suffix = forms[i].suffix;
            snprintf(L.name, sizeof L.name, "%s", path);
            return true;
        }
    }
    if (lib)
        dlclose(lib);
    return false;
}

static void look(void)
{
    static const char *const system[] = {"libopenblas.so.0", "liblapack.so.3", "libmkl_rt.so.2",
                                         "/System/Library/Frameworks/Accelerate.framework/Accelerate"};
    const char *env = base_env("EAS_LAPACK");
    L.looked = true;
    if (env && *env) {
        if (strcmp(env, "none"))
            try_file(env);
        return;
    }
    if (try_file(L.path))
        return;
    for (size_t i = 0; i < sizeof system / sizeof *system; i++)
        if (try_file(system[i]))
            return;
}

static bool found(void)
{
    pthread_mutex_lock(&L.lock);
    if (!L.looked)
        look();
    pthread_mutex_unlock(&L.lock);
    return L.lib != NULL;
}

void eas_lapack_path(const char *path)
{
    pthread_mutex_lock(&L.lock);
    if (!L.looked)
        snprintf(L.path, sizeof L.path, "%s", path ? path : "");
    pthread_mutex_unlock(&L.lock);
}

const char *eas_lapack_name(void) { return found() ? L.name : NULL; }

lapack_fn lapack_find(const char *name, int type)
{
    char full[64];
    union {
        void *p;
        lapack_fn f;
    } u;
    if (!found())
        return NULL;
    snprintf(full, sizeof full, "%s%c%s%s", L.prefix, "sdcz"[type], name, L.suffix);
    u.p = dlsym(L.lib, full);
    return u.f;
}

bool lapack_wide(void) { return L.suffix && !strcmp(L.suffix, "_64_"); }

/* For eigenvalues and singular values: of smaller matrices the calls and the copies into column order
 * cost more than our own loops. In a batch our loops use a thread for each problem. */
bool lapack_wanted(int64_t n, int64_t batch)
{
    return n >= LEAST && (batch == 1 || n >= 2 * LEAST) && found();
}
