/* api.c: the ranks of a job, as the public header has them: collectives on host memory between processes. */
#include "comm_ranks.h"

_Static_assert((int)EAS_DIST_NOPS == (int)COMM_NOPS && (int)EAS_DIST_BARRIER == (int)COMM_barrier &&
                   (int)EAS_DIST_PPERMUTE == (int)COMM_ppermute,
               "one order of ops");
_Static_assert((int)EAS_DIST_OR == (int)COMM_RED_or && (int)EAS_DIST_MAX == (int)COMM_RED_max,
               "one order of reductions");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* calls start one after another */

eas_status eas_dist_init(void)
{
    comm *c;
    return comm_world(&c);
}

eas_status eas_dist_place(int *rank, int *size)
{
    comm *c;
    eas_status st = comm_world(&c);
    if (rank)
        *rank = st ? 0 : c->rank;
    if (size)
        *size = st ? 1 : c->size;
    return st;
}

int eas_dist_is_open(void) { return comm_world_open() != NULL; }

int eas_dist_is_job(void) { return comm_world_is_job(); }

const char *eas_dist_engine(void)
{
    comm *c = comm_world_open();
    return c ? c->engine->name : "";
}

void eas_dist_abort(const char *why)
{
    comm *c = comm_world_open();
    if (c)
        comm_abort(c, why);
}

const char *eas_dist_report(void)
{
    comm *c = comm_world_open();
    return c ? comm_ranks_report(c) : NULL;
}

eas_status eas_dist_finalize(void) { return comm_world_close(); }

static eas_status translate(comm *c, const eas_dist_call *k, comm_call *out)
{
    if (k->size != sizeof *k)
        return base_fail(EAS_ERR_VALUE, "eas_dist_call: size is %zu, not %zu: set it to sizeof", k->size,
                         sizeof *k);
    if ((unsigned)k->op >= EAS_DIST_NOPS || (unsigned)k->reduction > EAS_DIST_OR)
        return base_fail(EAS_ERR_VALUE, "eas_dist_call: op %d, reduction %d", (int)k->op, (int)k->reduction);
    *out = (comm_call){.op = (comm_op)k->op,
                       .red = (comm_reduction)k->reduction,
                       .dtype = k->dtype,
                       .count = k->count,
                       .send = k->send,
                       .recv = k->recv,
                       .root = k->root,
                       .to = k->to,
                       .from = k->from,
                       .fast = k->fast != 0,
                       .site = k->site,
                       .rank = k->rank,
                       .shape = k->shape};
    return k->nranks ? comm_group_get(c, k->nranks, k->ranks, &out->group) : EAS_OK;
}

eas_status eas_dist_start(const eas_dist_call *call, eas_dist_request **out)
{
    NEED(call, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    comm *c;
    comm_call k;
    eas_status st = comm_world(&c);
    if (st)
        return st;
    pthread_mutex_lock(&lock);
    st = translate(c, call, &k);
    if (!st)
        st = comm_start(c, &k, (comm_request **)(void *)out);
    pthread_mutex_unlock(&lock);
    return st;
}

eas_status eas_dist_wait(eas_dist_request *r)
{
    comm *c;
    eas_status st = comm_world(&c);
    return st ? st : comm_wait(c, (comm_request *)(void *)r);
}

eas_status eas_dist_run(const eas_dist_call *call)
{
    eas_dist_request *r;
    eas_status st = eas_dist_start(call, &r);
    return st ? st : eas_dist_wait(r);
}

void eas_dist_poll(void)
{
    comm *c = comm_world_open();
    if (c)
        comm_poll(c);
}

void eas_dist_bytes(eas_dist_op op, uint64_t *bytes, uint64_t *calls, uint64_t *wire)
{
    comm *c = (unsigned)op < EAS_DIST_NOPS ? comm_world_open() : NULL;
    const comm_stats *w = c ? comm_ranks_wire(c) : NULL;
    if (bytes)
        *bytes = c ? c->stats.bytes[op] : 0;
    if (calls)
        *calls = c ? c->stats.calls[op] : 0;
    if (wire)
        *wire = w ? w->bytes[op] : 0;
}
