/* collectives.c: times of collectives, in turns: MPI's own against libeas's over MPI (mpirun -n 2 collectives
 * mpi), and between threads against copies (collectives threads N). Prints "name bytes ours theirs" in
 * seconds: the best of many short turns (a median would measure what else runs on the machine);
 * bench/collectives.py builds and runs it. */
#include "../src/dist/comm.h"

#include <mpi.h>
#include <stdio.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int repeats(size_t bytes) { return bytes <= 4096 ? 100 : bytes <= (4 << 20) ? 3 : 1; }
static int turns(size_t bytes) { return bytes <= (4 << 20) ? 60 : 8; }

static void *pages(size_t n)
{
    void *p = aligned_alloc(4096, (n + 4095) / 4096 * 4096);
    if (p)
        memset(p, 1, n);
    return p;
}

/* ---- over MPI ---- */

static void theirs(comm_op op, float *x, float *y, int count)
{
    if (op == COMM_all_reduce)
        MPI_Allreduce(x, y, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (op == COMM_all_gather)
        MPI_Allgather(x, count, MPI_FLOAT, y, count, MPI_FLOAT, MPI_COMM_WORLD);
    else
        MPI_Reduce_scatter_block(x, y, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void ours(comm *c, comm_op op, float *x, float *y, int count)
{
    if (comm_run(c, &(comm_call){.op = op, .dtype = EAS_F32, .count = count, .send = x, .recv = y}))
        fprintf(stderr, "%s\n", eas_error_message());
}

/* bytes: of the whole, which is what one rank gives (all_reduce, reduce_scatter) or gets (all_gather) */
static void over_mpi(comm *c, comm_op op, size_t bytes)
{
    int count = (int)(bytes / 4) / (op == COMM_all_reduce ? 1 : c->size), n = repeats(bytes);
    float *x = pages(bytes), *y = pages(bytes);
    double best[2] = {1e9, 1e9};
    for (int r = 0; r < turns(bytes); r++)
        for (int which = 0; which < 2; which++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double t = now();
            for (int i = 0; i < n; i++)
                which ? theirs(op, x, y, count) : ours(c, op, x, y, count);
            t = (now() - t) / n;
            double most;
            MPI_Allreduce(&t, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            if (most < best[which])
                best[which] = most;
        }
    if (!c->rank)
        printf("%s %zu %.9f %.9f\n", comm_op_name(op), bytes, best[0], best[1]), fflush(stdout);
    free(x), free(y);
}

static int mpi_main(int *argc, char ***argv)
{
    int level;
    comm *c;
    MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &level);
    if (comm_world(&c)) {
        fprintf(stderr, "%s\n", eas_error_message());
        return 1;
    }
    static const comm_op ops[] = {COMM_all_reduce, COMM_all_gather, COMM_reduce_scatter};
    static const size_t sizes[] = {1 << 10, 1 << 20, 64 << 20};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            over_mpi(c, ops[i], sizes[k]);
    comm_world_close();
    MPI_Finalize();
    return 0;
}

/* ---- between threads, against as many threads that copy as much each ---- */

typedef struct seat {
    comm *c;
    comm_op op;
    size_t bytes;
    double *best;
} seat;

static void *seat_main(void *p)
{
    seat *s = p;
    int count = (int)(s->bytes / 4) / (s->op == COMM_all_reduce ? 1 : s->c->size), n = repeats(s->bytes);
    float *x = pages(s->bytes), *y = pages(s->bytes);
    for (int r = 0; r < turns(s->bytes); r++)
        for (int which = 0; which < 2; which++) {
            comm_barrier(s->c, NULL);
            double t = now();
            for (int i = 0; i < n; i++) {
                if (which)
                    memcpy(y, x, s->bytes);
                else
                    ours(s->c, s->op, x, y, count);
            }
            comm_barrier(s->c, NULL);
            t = (now() - t) / n;
            if (!s->c->rank && t < s->best[which])
                s->best[which] = t;
        }
    free(x), free(y);
    comm_close(s->c);
    return NULL;
}

static void in_threads(int n, comm_op op, size_t bytes)
{
    comm *ends[64];
    pthread_t t[64];
    seat seats[64];
    double best[2] = {1e9, 1e9};
    if (comm_threads_new(n, ends))
        return;
    for (int i = 0; i < n; i++) {
        seats[i] = (seat){ends[i], op, bytes, best};
        pthread_create(&t[i], NULL, seat_main, &seats[i]);
    }
    for (int i = 0; i < n; i++)
        pthread_join(t[i], NULL);
    printf("%s %zu %.9f %.9f\n", comm_op_name(op), bytes, best[0], best[1]);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "mpi"))
        return mpi_main(&argc, &argv);
    int n = argc > 2 ? atoi(argv[2]) : 2;
    static const comm_op ops[] = {COMM_all_reduce, COMM_all_gather, COMM_reduce_scatter};
    static const size_t sizes[] = {1 << 10, 1 << 20, 64 << 20};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++)
            in_threads(n, ops[i], sizes[k]);
    return 0;
}
