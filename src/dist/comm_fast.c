/* comm_fast.c: reductions that need not be joined in the fixed tree (comm_call.fast): by messages of ours or
 * by the transport's own collective, whichever is quicker here.
 *
 * Which one that is depends on the network, the MPI, the number of ranks and the size, so it is measured:
 * when a group first makes a fast call of a size class (a power of two bytes, up to 4 MB), its members run
 * both ways a few times on scratch memory, agree on the slowest member's times by a reduction in the fixed
 * tree, and keep the quicker one. EAS_DIST_FAST=own or mpi decides by hand; it must be the same on all ranks.
 *
 * The transport has sums and products of f32, f64 and integers. Everything else (16-bit floats, which are
 * joined in f32; minima and maxima, whose result does not depend on the order and which give NaN if any
 * operand is one; bits) goes our way.
 */
#include "comm_fast.h"

#include <limits.h>
#include <time.h>

enum { LEAST_CLASS = 8, MOST_CLASS = 22, CLASSES = MOST_CLASS + 1 };
typedef enum way { NOT_KNOWN, OWN, LIBRARY } way;
typedef struct fast { /* of a group; its `engine` */
    void *group; /* the transport's */
    uint8_t way[2][CLASSES]; /* [scatters][class] */
} fast;

static int class_of(const comm_call *k)
{
    uint64_t bytes = (uint64_t)k->count * eas_dtype_size(k->dtype) *
                     (k->op == COMM_reduce_scatter ? (uint64_t)k->group->n : 1);
    int c = LEAST_CLASS;
    while (c < MOST_CLASS && (uint64_t)1 << c < bytes)
        c++;
    return c;
}

static char type_of(eas_dtype dt)
{
    switch (dt) {
    case EAS_F32:
    case EAS_F64: return 'f';
    case EAS_I8:
    case EAS_I16:
    case EAS_I32:
    case EAS_I64: return 'i';
    case EAS_U8:
    case EAS_U16:
    case EAS_U32:
    case EAS_U64: return 'u';
    default: return 0;
    }
}

static bool library_can(const comm_call *k)
{
    return (k->red == COMM_RED_sum || k->red == COMM_RED_prod) && type_of(k->dtype) && k->count > 0 &&
           k->count <= INT_MAX;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The shortest of some runs each way, of the slowest member. */
static eas_status measure(comm *c, const comm_call *k, int class, fast_run run, double took[2])
{
    comm_call trial = *k;
    size_t bytes = (size_t)1 << class,
           part = k->op == COMM_reduce_scatter ? bytes / (size_t)k->group->n : bytes;
    int rounds = class <= 16 ? 20 : 4;
    double own[2] = {1e9, 1e9};
    trial.count = (int64_t)(part / eas_dtype_size(k->dtype));
    trial.count = trial.count ? trial.count : 1;
    trial.send = calloc(1, bytes + 8 * (size_t)k->group->n);
    trial.recv = calloc(1, bytes + 8 * (size_t)k->group->n);
    trial.rank = 0, trial.shape = NULL;
    eas_status st = trial.send && trial.recv ? EAS_OK : base_fail_oom(bytes);
    for (int i = 0; i < rounds && !st; i++)
        for (int way = 0; way < 2 && !st; way++) {
            double t = now();
            st = run(c, &trial, way);
            t = now() - t;
            own[way] = t < own[way] ? t : own[way];
        }
    free((void *)(uintptr_t)trial.send);
    free(trial.recv);
    comm_call agree = {.op = COMM_all_reduce,
                       .red = COMM_RED_max,
                       .dtype = EAS_F64,
                       .group = k->group,
                       .count = 2,
                       .send = own,
                       .recv = took,
                       .site = k->site};
    return st ? st : run(c, &agree, false);
}

static eas_status make_group(const transport *t, const comm_call *k, fast **out)
{
    fast *f = *out = k->group->engine;
    if (f)
        return EAS_OK;
    f = calloc(1, sizeof *f);
    if (!f)
        return base_fail_oom(sizeof *f);
    int code = t->group(k->group->n, k->group->ranks, (int)(k->group->hash & 0x3fff), &f->group);
    if (code) {
        free(f);
        return base_fail(EAS_ERR_RUNTIME, "a group of %d ranks for fast reductions: %s", k->group->n,
                         t->explain(code));
    }
    k->group->engine = *out = f;
    return EAS_OK;
}

eas_status fast_choose(comm *c, const transport *t, const comm_call *k, fast_run run, bool *library)
{
    const char *by_hand = getenv("EAS_DIST_FAST");
    fast *f;
    *library = false;
    if (!library_can(k) || (by_hand && !strcmp(by_hand, "own")))
        return EAS_OK;
    eas_status st = make_group(t, k, &f);
    if (st)
        return st;
    if (by_hand && *by_hand) {
        *library = !strcmp(by_hand, "mpi");
        return *library ? EAS_OK
                        : base_fail(EAS_ERR_VALUE, "EAS_DIST_FAST=%s: it is \"own\" or \"mpi\"", by_hand);
    }
    uint8_t *way = &f->way[k->op == COMM_reduce_scatter][class_of(k)];
    if (*way == NOT_KNOWN) {
        double took[2];
        st = measure(c, k, class_of(k), run, took);
        if (st)
            return st;
        *way = took[1] < 0.95 * took[0] ? LIBRARY : OWN;
    }
    *library = *way == LIBRARY;
    return EAS_OK;
}

int fast_start(const transport *t, const comm_call *k, transport_request *out)
{
    const fast *f = k->group->engine;
    return t->reduce(f->group, k->op == COMM_reduce_scatter, type_of(k->dtype), (int)eas_dtype_size(k->dtype),
                     k->red == COMM_RED_prod, k->send, k->recv, (int)k->count, out);
}
