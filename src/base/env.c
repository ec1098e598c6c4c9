/* env.c: the environment, where it decides what is loaded or written. */
#include "base.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *base_env(const char *name)
{
#if defined(__linux__)
    return secure_getenv(name);
#elif defined(__APPLE__)
    return issetugid() ? NULL : getenv(name);
#else
    return getuid() == geteuid() && getgid() == getegid() ? getenv(name) : NULL;
#endif
}

void base_module_path(const char *variable, const char *name, char *out, size_t size)
{
    const char *env = base_env(variable);
    Dl_info here;
    *out = 0;
    if (env && *env) {
        snprintf(out, size, "%s", env);
        return;
    }
    if (!dladdr((void *)(uintptr_t)&eas_version, &here) || !here.dli_fname)
        return;
    const char *slash = strrchr(here.dli_fname, '/');
#ifdef __APPLE__
    const char *ext = "dylib";
#else
    const char *ext = "so";
#endif
    snprintf(out, size, "%.*s%s.%s", slash ? (int)(slash - here.dli_fname + 1) : 0, here.dli_fname, name,
             ext);
}
