/* comm_bodies.h: what each rank runs in the tests of collectives, for every engine: values against plain
 * loops. */
#ifndef COMM_BODIES_H
#define COMM_BODIES_H

#include "../../src/dist/reduce.h"

enum { MOST = 16 };

typedef struct job job;

#define TRY(x) \
    do { \
        eas_status st_ = (x); \
        if (st_) \
            return st_; \
    } while (0)
#define HOLDS(x) \
    do { \
        if (!(x)) \
            return base_fail(EAS_ERR_VALUE, "line %d: %s", __LINE__, #x); \
    } while (0)

static const int64_t counts[] = {0, 1, 2, 3, 5, 17, 1000, 5001};
static const size_t ncounts = sizeof counts / sizeof *counts;

static int32_t at(int rank, int64_t i) { return (int32_t)(rank * 100003 + i * 7 - 50); }

static eas_status move_body(comm *c, job *j)
{
    (void)j;
    int n = c->size, me = c->rank;
    for (size_t q = 0; q < ncounts; q++) {
        int64_t k = counts[q];
        int32_t *send = malloc(4 * (size_t)(n * k + 1)), *recv = malloc(4 * (size_t)(n * k + 1));
        for (int64_t i = 0; i < n * k; i++)
            send[i] = at(me, i);
        comm_call call = {.dtype = EAS_I32, .count = k, .send = send, .recv = recv, .site = "test.py:1"};
        call.op = COMM_all_gather;
        TRY(comm_run(c, &call));
        for (int r = 0; r < n; r++)
            for (int64_t i = 0; i < k; i++)
                HOLDS(recv[r * k + i] == at(r, i));
        call.op = COMM_all_to_all;
        TRY(comm_run(c, &call));
        for (int r = 0; r < n; r++)
            for (int64_t i = 0; i < k; i++)
                HOLDS(recv[r * k + i] == at(r, me * k + i));
        call.op = COMM_reduce_scatter;
        TRY(comm_run(c, &call));
        for (int64_t i = 0; i < k; i++) {
            int32_t sum = 0;
            for (int r = 0; r < n; r++)
                sum += at(r, me * k + i);
            HOLDS(recv[i] == sum);
        }
        call.op = COMM_ppermute, call.to = me + 1 < n ? me + 1 : -1, call.from = me - 1;
        TRY(comm_run(c, &call));
        for (int64_t i = 0; i < k; i++)
            HOLDS(recv[i] == (me ? at(me - 1, i) : 0));
        for (call.root = 0; call.root < n; call.root++) {
            call.op = COMM_broadcast;
            TRY(comm_run(c, &call));
            for (int64_t i = 0; i < k; i++)
                HOLDS(recv[i] == at(call.root, i));
            call.op = COMM_scatter;
            TRY(comm_run(c, &call));
            for (int64_t i = 0; i < k; i++)
                HOLDS(recv[i] == at(call.root, me * k + i));
            call.op = COMM_gather;
            TRY(comm_run(c, &call));
            for (int r = 0; r < n && me == call.root; r++)
                for (int64_t i = 0; i < k; i++)
                    HOLDS(recv[r * k + i] == at(r, i));
        }
        call.op = COMM_all_reduce, call.recv = send; /* in place */
        TRY(comm_run(c, &call));
        for (int64_t i = 0; i < k; i++) {
            int32_t sum = 0;
            for (int r = 0; r < n; r++)
                sum += at(r, i);
            HOLDS(send[i] == sum);
        }
        TRY(comm_barrier(c, NULL));
        free(send), free(recv);
    }
    return EAS_OK;
}

/* Rows and columns of a 2 x 3 mesh at once, awaited out of order. */
static eas_status axes_body(comm *c, job *j)
{
    (void)j;
    int row = c->rank / 3, col = c->rank % 3, rows[3] = {row * 3, row * 3 + 1, row * 3 + 2},
        cols[2] = {col, col + 3};
    comm_group *along, *down, *again;
    TRY(comm_group_get(c, 3, rows, &along));
    TRY(comm_group_get(c, 2, cols, &down));
    TRY(comm_group_get(c, 3, rows, &again));
    HOLDS(along == again && along->me == col && down->me == row);
    for (int round = 0; round < 50; round++) {
        float x[2000], y[2000], z[2000];
        for (int i = 0; i < 2000; i++)
            x[i] = (float)(c->rank + i + round);
        comm_request *a, *b;
        TRY(comm_start(
            c,
            &(comm_call){
                .op = COMM_all_reduce, .dtype = EAS_F32, .count = 2000, .send = x, .recv = y, .group = along},
            &a));
        TRY(comm_start(
            c,
            &(comm_call){
                .op = COMM_all_reduce, .dtype = EAS_F32, .count = 2000, .send = x, .recv = z, .group = down},
            &b));
        TRY(comm_wait(c, b));
        TRY(comm_wait(c, a));
        for (int i = 0; i < 2000; i++) {
            HOLDS(y[i] == (float)(3 * (i + round) + rows[0] + rows[1] + rows[2]));
            HOLDS(z[i] == (float)(2 * (i + round) + cols[0] + cols[1]));
        }
    }
    return EAS_OK;
}

static uint16_t to_half(eas_dtype dt, double v) { return dt == EAS_F16 ? f64_to_f16(v) : f64_to_bf16(v); }

static eas_status dtypes_body(comm *c, job *j)
{
    (void)j;
    int n = c->size;
    enum { LEN = 3001 };
    static const comm_reduction reds[] = {COMM_RED_sum, COMM_RED_prod, COMM_RED_max,
                                          COMM_RED_min, COMM_RED_and,  COMM_RED_or};
    for (int dt = 0; dt < EAS_NDTYPES; dt++)
        for (int q = 0; q < 6; q++) {
            if (!reduce_fits(reds[q], (eas_dtype)dt))
                continue;
            uint64_t *bits[MOST], want[LEN], got[LEN];
            size_t size = eas_dtype_size((eas_dtype)dt);
            for (int r = 0; r < n; r++) {
                bits[r] = calloc(LEN, 8);
                for (int64_t i = 0; i < LEN; i++) {
                    uint64_t v = ((uint64_t)i * 2654435761u + (uint64_t)r * 40503u) * 0x9e3779b97f4a7c15u;
                    double f = (double)(v >> 40) / 1e3 - 9e3;
                    float s = (float)f;
                    uint16_t h = to_half((eas_dtype)dt, f / 100);
                    void *src = dt == EAS_F64                   ? (void *)&f
                              : dt == EAS_F32                   ? (void *)&s
                              : dt == EAS_F16 || dt == EAS_BF16 ? (void *)&h
                                                                : (void *)&v;
                    if (dt == EAS_BOOL)
                        v &= 1;
                    memcpy((char *)bits[r] + (size_t)i * size, src, size);
                }
            }
            reduce_blocks(reds[q], (eas_dtype)dt, n, (const void *const *)bits, 1, (void *const[]){want},
                          LEN);
            comm_call call = {.op = COMM_all_reduce,
                              .red = reds[q],
                              .dtype = (eas_dtype)dt,
                              .count = LEN,
                              .send = bits[c->rank],
                              .recv = got};
            TRY(comm_run(c, &call));
            HOLDS(!memcmp(want, got, LEN * size));
            for (int r = 0; r < n; r++)
                free(bits[r]);
        }
    return EAS_OK;
}

#endif
