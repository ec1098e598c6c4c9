/* watch_start.c: who has started, before there is a connection to anybody.
 *
 * Opening MPI waits for all processes, without an end if one never comes. So each rank first leaves a file
 * named by its number in a folder of the job's, and a thread looks at its clock: when the transport is not
 * open in time, it lists the ranks of this machine that have left no file, and ends the process.
 */
#include "watch_net.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool waits, done;
    int rank, size;
    double timeout;
    char folder[256];
    pthread_t thread;
} S = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void file_of(int rank, char *out, size_t size) { snprintf(out, size, "%s/%d", S.folder, rank); }

static void say_who_is_missing(void)
{
    str s = {0};
    char path[300];
    int missing = 0;
    for (int i = 0; i < S.size; i++) {
        file_of(i, path, sizeof path);
        if (access(path, F_OK) && missing++ < 64)
            str_add(&s, "%s%d", s.len ? ", " : "", i);
    }
    if (missing)
        fprintf(
            stderr,
            "eas: [rank %d] start-up failed: of %d ranks these have not started within EAS_DIST_TIMEOUT=%g s: %s\n",
            S.rank, S.size, S.timeout, s.at ? s.at : "?");
    else
        fprintf(
            stderr,
            "eas: [rank %d] start-up failed: all %d ranks of this machine have started, but MPI did not connect them within EAS_DIST_TIMEOUT=%g s\n",
            S.rank, S.size, S.timeout);
    str_free(&s);
}

static void clear(void)
{
    char path[300];
    file_of(S.rank, path, sizeof path);
    unlink(path);
    rmdir(S.folder); /* the last one can */
}

static void *guard(void *p)
{
    (void)p;
    double until = watch_seconds() + 0.8 * S.timeout;
    pthread_mutex_lock(&S.lock);
    while (!S.done && watch_seconds() < until) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 50000000;
        t.tv_sec += t.tv_nsec / 1000000000, t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&S.changed, &S.lock, &t);
    }
    bool done = S.done;
    pthread_mutex_unlock(&S.lock);
    if (done)
        return NULL;
    say_who_is_missing();
    /* the others look at the folder too */
    usleep((useconds_t)(1e6 * (S.timeout < 10 ? 0.05 * S.timeout : 0.5)));
    clear();
    _exit(1);
}

eas_status watch_starting(int rank, int size, const char *job, double timeout)
{
    S.rank = rank, S.size = size, S.timeout = timeout;
    S.done = false;
    snprintf(S.folder, sizeof S.folder, "/tmp/eas-dist-%u-%.150s", (unsigned)getuid(), job);
    for (char *c = S.folder + 5; *c; c++)
        if (*c == '/')
            *c = '_';
    char path[300];
    file_of(rank, path, sizeof path);
    struct stat is;
    if ((mkdir(S.folder, 0700) && errno != EEXIST) || lstat(S.folder, &is) || !S_ISDIR(is.st_mode) ||
        is.st_uid != getuid())
        return base_fail(EAS_ERR_IO,
                         "the folder %s, where ranks tell that they have started, cannot be used: %s",
                         S.folder, strerror(errno));
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0)
        return base_fail(EAS_ERR_IO, "%s cannot be written: %s", path, strerror(errno));
    close(fd);
    sigset_t old;
    pool_block_signals(&old);
    S.waits = pthread_create(&S.thread, NULL, guard, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return S.waits ? EAS_OK : base_fail(EAS_ERR_MEMORY, "no thread could be started");
}

void watch_started(void)
{
    if (!S.waits)
        return;
    pthread_mutex_lock(&S.lock);
    S.done = true;
    pthread_cond_signal(&S.changed);
    pthread_mutex_unlock(&S.lock);
    pthread_join(S.thread, NULL);
    S.waits = false;
    clear();
}
