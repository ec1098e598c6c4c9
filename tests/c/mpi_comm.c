/* mpi_comm: the tests of collectives as a rank of a job: mpirun -n N mpi_comm. tests/test_mpi.py runs it. */
#include "comm_bodies.h"

#include "../../src/dist/comm_ranks.h"

#include <stdio.h>
#include <unistd.h>

/* Bytes that were sent are those that comm_bytes tells. */
static eas_status counted_body(comm *c)
{
    const comm_stats *wire = comm_ranks_wire(c);
    for (int op = 0; wire && op < COMM_NOPS; op++)
        if (wire->bytes[op] != c->stats.bytes[op])
            return base_fail(EAS_ERR_VALUE, "%s sent %llu bytes, counted %llu", comm_op_name((comm_op)op),
                             (unsigned long long)wire->bytes[op], (unsigned long long)c->stats.bytes[op]);
    return EAS_OK;
}

/* Large and many: chunks, windows, several calls under way, awaited in another order. */
static eas_status large_body(comm *c)
{
    enum { LEN = 1 << 20, CALLS = 5 };
    int n = c->size;
    float *x[CALLS], *y[CALLS];
    comm_request *r[CALLS];
    for (int k = 0; k < CALLS; k++) {
        x[k] = malloc(4 * LEN), y[k] = malloc(4 * LEN);
        for (int i = 0; i < LEN; i++)
            x[k][i] = (float)((i * 7 + k + c->rank * 13) % 1001);
        TRY(comm_start(c,
                       &(comm_call){.op = COMM_all_reduce,
                                    .dtype = EAS_F32,
                                    .count = LEN - k,
                                    .send = x[k],
                                    .recv = k % 2 ? x[k] : y[k]},
                       &r[k]));
    }
    for (int k = CALLS - 1; k >= 0; k--) {
        comm_poll(c);
        TRY(comm_wait(c, r[k]));
        const float *got = k % 2 ? x[k] : y[k];
        for (int i = 0; i < LEN - k; i++) {
            float want = 0;
            for (int q = 0; q < n; q++)
                want += (float)((i * 7 + k + q * 13) % 1001);
            HOLDS(got[i] == want);
        }
        free(x[k]), free(y[k]);
    }
    return EAS_OK;
}

/* Rank 0 sends more small messages than anything holds, then takes part in a large call that rank 1 has begun
 * before it takes the small ones. */
static eas_status ahead_body(comm *c)
{
    enum { LEN = 100000, CALLS = 100 };
    if (c->size < 2 || c->rank > 1 || comm_debug()) /* under EAS_DIST_DEBUG nobody runs ahead */
        return EAS_OK;
    comm_group *one, *other;
    TRY(comm_group_get(c, 2, (int[]){0, 1}, &one));
    TRY(comm_group_get(c, 2, (int[]){1, 0}, &other));
    int *x = calloc(LEN, sizeof *x), *y = calloc(LEN, sizeof *y);
    for (int half = 0; half < 2; half++) {
        if (half == c->rank)
            for (int i = 0; i < CALLS; i++) {
                int64_t v = i, got = -1;
                TRY(comm_run(c, &(comm_call){.op = COMM_broadcast,
                                             .dtype = EAS_I64,
                                             .group = one,
                                             .count = 1,
                                             .send = &v,
                                             .recv = &got}));
                HOLDS(got == i);
            }
        else
            TRY(comm_run(c, &(comm_call){.op = COMM_all_reduce,
                                         .dtype = EAS_I32,
                                         .group = other,
                                         .count = LEN,
                                         .send = x,
                                         .recv = y}));
    }
    free(x), free(y);
    return EAS_OK;
}

/* The same through the public header: two steps with work in between, a group in another order. */
static eas_status public_body(void)
{
    int rank, size, pair[2];
    TRY(eas_dist_place(&rank, &size));
    int64_t x[3] = {rank, 1, 2}, y[3] = {0};
    eas_dist_request *r;
    eas_dist_call k = {.size = sizeof k,
                       .op = EAS_DIST_ALL_REDUCE,
                       .dtype = EAS_I64,
                       .count = 3,
                       .send = x,
                       .recv = y,
                       .site = "mpi_comm.c"};
    TRY(eas_dist_start(&k, &r));
    eas_dist_poll();
    TRY(eas_dist_wait(r));
    HOLDS(y[0] == (int64_t)size * (size - 1) / 2 && y[1] == size && y[2] == 2 * size);
    if (size > 1 && rank < 2) {
        pair[0] = 1, pair[1] = 0;
        k.op = EAS_DIST_ALL_GATHER, k.count = 1, k.nranks = 2, k.ranks = pair;
        TRY(eas_dist_run(&k));
        HOLDS(y[0] == 1 && y[1] == 0);
    }
    k.size = 1;
    HOLDS(eas_dist_run(&k) == EAS_ERR_VALUE);
    HOLDS(eas_dist_is_open() && eas_dist_report() == NULL && eas_dist_is_job() == (size > 1));
    return EAS_OK;
}

int main(void)
{
    comm *c;
    eas_status st = comm_world(&c);
    if (!st)
        st = move_body(c, NULL);
    if (!st && c->size == 6)
        st = axes_body(c, NULL);
    if (!st && c->size <= MOST)
        st = dtypes_body(c, NULL);
    if (!st)
        st = large_body(c);
    if (!st)
        st = ahead_body(c);
    if (!st)
        st = public_body();
    if (!st)
        st = counted_body(c);
    if (st) {
        fprintf(stderr, "rank %d: %s\n", c ? c->rank : -1, eas_error_message());
        if (c)
            comm_abort(c, eas_error_message());
        return 1;
    }
    printf("rank %d of %d over %s: all values right\n", c->rank, c->size, c->engine->name);
    fflush(stdout);
    return comm_world_close() ? 1 : 0;
}
