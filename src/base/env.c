/* env.c: the environment, where it decides what is loaded or written. */
#include "base.h"

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
