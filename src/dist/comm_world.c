/* comm_world.c: the endpoint of this process among the processes of its job, opened when it is first asked
 * for.
 *
 * Under mpirun (the launcher's variables say so) or with EAS_DIST=mpi the module libeas-mpi is opened: one
 * for each MPI it was built for, and the launcher's variables tell which. Otherwise, with EAS_DIST=self, or
 * in a job of one process, this is the only rank and no MPI is needed.
 */
#include "comm_ranks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    comm *c;
    pid_t pid; /* whose it is: a forked child has none of the connections */
    bool over;
} W = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- what the launcher says ---- */

typedef struct launch {
    const char *kind; /* "openmpi", "mpich"; NULL: not known */
    int rank, size, local; /* -1: not known; local: ranks on this machine */
    char job[128];
} launch;

static int number(const char *name)
{
    const char *e = getenv(name);
    return e && *e ? atoi(e) : -1;
}

static launch read_launch(void)
{
    launch l = {NULL, -1, -1, -1, ""};
    if (getenv("OMPI_COMM_WORLD_SIZE"))
        l = (launch){"openmpi", number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_SIZE"),
                     number("OMPI_COMM_WORLD_LOCAL_SIZE"), ""};
    else if (getenv("PMI_SIZE") && getenv("PMI_RANK"))
        l = (launch){"mpich", number("PMI_RANK"), number("PMI_SIZE"), number("MPI_LOCALNRANKS"), ""};
    else if (getenv("PMIX_RANK"))
        l = (launch){NULL, number("PMIX_RANK"), number("SLURM_NTASKS"), -1, ""};
    const char *job = getenv("PMIX_NAMESPACE");
    if (job)
        snprintf(l.job, sizeof l.job, "%s", job);
    else if (getenv("SLURM_JOB_ID"))
        snprintf(l.job, sizeof l.job, "slurm-%s-%s", getenv("SLURM_JOB_ID"),
                 getenv("SLURM_STEP_ID") ? getenv("SLURM_STEP_ID") : "0");
    else
        snprintf(l.job, sizeof l.job, "parent-%d", (int)getppid());
    return l;
}

/* ---- the module ---- */

/* MPI's own plug-ins look for its symbols among the global ones. */
static const transport *open_module(const char *kind, char *why, size_t size)
{
    char path[1024];
    char name[64];
    snprintf(name, sizeof name, "libeas-mpi%s%s", *kind ? "-" : "", kind);
    base_module_path("EAS_MPI_LIBRARY", name, path, sizeof path);
    void *lib = dlopen(path, RTLD_NOW | RTLD_GLOBAL), *sym = lib ? dlsym(lib, "eas_mpi_transport") : NULL;
    if (!sym) {
        const char *e = dlerror();
        snprintf(why, size, "%.500s", e ? e : path);
        return NULL;
    }
    transport_get *get;
    memcpy(&get, &sym, sizeof sym);
    const transport *t = get();
    if (t->version == TRANSPORT_VERSION)
        return t;
    snprintf(why, size, "%.500s is of another version of the library", path);
    return NULL;
}

static eas_status find_module(const launch *l, const transport **out)
{
    char why[600] = "", other[600];
    const char *kinds[] = {l->kind ? l->kind : "openmpi", "openmpi", "mpich"};
    int n = l->kind ? 1 : 3; /* the launcher's MPI, and no other, can join its job */
    for (int i = 0; i < n; i++)
        if ((*out = open_module(kinds[i], i ? other : why, sizeof why)))
            return EAS_OK;
    return base_fail(
        EAS_ERR_UNAVAILABLE,
        "this job needs MPI (%s), but the module libeas-mpi for it cannot be opened: %s. Install MPI's development package "
        "(libopenmpi-dev, or libmpich-dev) and build eas again; "
        "EAS_DIST=self runs without MPI",
        l->kind ? l->kind : "EAS_DIST=mpi", why);
}

/* ---- opening ---- */

static eas_status open_watch(const transport *t, const launch *l, int rank, int size, watch **out)
{
    watch_address a = {0};
    int listener = -1;
    eas_status st = rank ? EAS_OK : watch_listen(l->local == size, size, &a, &listener);
    int code = t->share(&a, sizeof a); /* a port of 0 tells the others that rank 0 has failed */
    if (st)
        return st;
    if (code)
        return base_fail(EAS_ERR_RUNTIME, "start-up failed: %s", t->explain(code));
    if (!a.port)
        return base_fail(EAS_ERR_RUNTIME, "start-up failed: rank 0 cannot listen for the other ranks");
    return watch_open(rank, size, &a, listener, comm_timeout(), out);
}

static eas_status open_mpi(const launch *l, comm **out)
{
    const transport *t;
    eas_status st = find_module(l, &t);
    if (st)
        return st;
    bool guarded = l->rank >= 0 && l->size > 0 && (l->local < 0 || l->local == l->size);
    if (guarded && (st = watch_starting(l->rank, l->size, l->job, comm_timeout())))
        return st;
    int rank = 0, size = 1, code = t->open(&rank, &size);
    if (guarded)
        watch_started();
    if (code)
        return base_fail(EAS_ERR_RUNTIME, "MPI cannot be opened: %s", t->explain(code));
    watch *w;
    st = open_watch(t, l, rank, size, &w);
    int here = l->local > 0 ? l->local : size;
    if (!st)
        st = comm_ranks_new(t, w, rank, size, here > sysconf(_SC_NPROCESSORS_ONLN), out);
    return st;
}

static bool wants_mpi(const launch *l)
{
    const char *e = getenv("EAS_DIST");
    return e && *e ? !strcmp(e, "mpi") : l->size > 1;
}

bool comm_world_is_job(void)
{
    launch l = read_launch();
    return wants_mpi(&l);
}

/* A program that ends without finalizing leaves properly: the others would take it for dead. */
static void at_exit(void) { comm_world_close(); }

static eas_status open_world(comm **out)
{
    launch l = read_launch();
    const char *e = getenv("EAS_DIST");
    if (e && *e && strcmp(e, "mpi") != 0 && strcmp(e, "self") != 0)
        return base_fail(EAS_ERR_VALUE, "EAS_DIST=%s: it is \"mpi\" or \"self\"", e);
    if (!wants_mpi(&l))
        return comm_self(out);
    eas_status st = open_mpi(&l, out);
    if (!st)
        atexit(at_exit);
    return st;
}

eas_status comm_world(comm **out)
{
    pthread_mutex_lock(&W.lock);
    eas_status st = EAS_OK;
    if (W.c && W.c->size > 1 && W.pid != getpid()) /* the only rank of a job is that in a child, too */
        st = base_fail(
            EAS_ERR_RUNTIME,
            "a forked child is no rank of its parent's job: use multiprocessing's \"spawn\", or open the job in the child alone");
    else if (W.over)
        st = base_fail(EAS_ERR_RUNTIME, "this process has left its job (eas_dist_finalize)");
    else if (!W.c && !(st = open_world(&W.c)))
        W.pid = getpid();
    *out = W.c;
    pthread_mutex_unlock(&W.lock);
    return st;
}

comm *comm_world_open(void)
{
    pthread_mutex_lock(&W.lock);
    comm *c = W.pid == getpid() && !W.over ? W.c : NULL;
    pthread_mutex_unlock(&W.lock);
    return c;
}

eas_status comm_world_close(void)
{
    comm *c = comm_world_open();
    if (!c)
        return EAS_OK;
    pthread_mutex_lock(&W.lock);
    W.over = true;
    pthread_mutex_unlock(&W.lock);
    const char *failed = comm_ranks_report(c);
    eas_status st = failed ? base_fail(EAS_ERR_RUNTIME, "%s", failed) : EAS_OK;
    comm_close(c);
    W.c = NULL;
    return st;
}
