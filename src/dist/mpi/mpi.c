/* mpi.c: libeas-mpi: messages over MPI, behind transport.h. A module of its own, opened at run time, so that
 * nothing else needs MPI. Compiled for Open MPI or for MPICH: their types differ.
 *
 * All messages go through a communicator of ours, so that they never meet those of a host program that uses
 * MPI too. A host that has initialised MPI finalises it as well.
 */
#include "../transport.h"

#include <mpi.h>
#include <signal.h>
#include <stdlib.h>

_Static_assert(sizeof(MPI_Request) <= sizeof(transport_request), "an MPI_Request fits");

static MPI_Comm world = MPI_COMM_NULL;
static int ours; /* MPI was initialised here */

/* MPICH's mpirun -disable-auto-cleanup sends SIGUSR1 to all ranks when one has died, which would end them
 * before they can say what happened. A host program that handles the signal keeps its handler. */
static void outlive_others(void)
{
#if defined(MPICH)
    struct sigaction a;
    if (!sigaction(SIGUSR1, NULL, &a) && a.sa_handler == SIG_DFL)
        signal(SIGUSR1, SIG_IGN);
#endif
}

static int mpi_open(int *rank, int *size)
{
    int there = 0, level, code = MPI_Initialized(&there);
    if (!code && !there) {
        code = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level); /* calls are made under one lock */
        ours = !code;
    }
    outlive_others();
    if (!code)
        code = MPI_Comm_dup(MPI_COMM_WORLD, &world);
    if (!code)
        code = MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
    if (!code)
        code = MPI_Comm_rank(world, rank);
    return code ? code : MPI_Comm_size(world, size);
}

static int mpi_share(void *bytes, int n) { return MPI_Bcast(bytes, n, MPI_BYTE, 0, world); }

static int mpi_send(const void *p, size_t n, int to, int tag, transport_request *out)
{
    return MPI_Isend((void *)(uintptr_t)p, (int)n, MPI_BYTE, to, tag, world, (MPI_Request *)(void *)out);
}

static int mpi_recv(void *p, size_t n, int from, int tag, transport_request *out)
{
    return MPI_Irecv(p, (int)n, MPI_BYTE, from, tag, world, (MPI_Request *)(void *)out);
}

static int mpi_test(transport_request *r, int *done)
{
    return MPI_Test((MPI_Request *)(void *)r, done, MPI_STATUS_IGNORE);
}

static int mpi_most_tag(void)
{
    int *value, found = 0;
    MPI_Comm_get_attr(world, MPI_TAG_UB, (void *)&value, &found);
    return found ? *value : 32767;
}

static int mpi_group(int n, const int *ranks, int tag, void **out)
{
    MPI_Group all, some;
    MPI_Comm *c = malloc(sizeof *c);
    int code = c ? MPI_Comm_group(world, &all) : MPI_ERR_NO_MEM;
    if (code) {
        free(c);
        return code;
    }
    code = MPI_Group_incl(all, n, ranks, &some);
    if (!code) {
        code = MPI_Comm_create_group(world, some, tag, c);
        MPI_Group_free(&some);
    }
    MPI_Group_free(&all);
    if (!code)
        code = MPI_Comm_set_errhandler(*c, MPI_ERRORS_RETURN);
    *out = code ? NULL : c; /* lives until MPI is finalised */
    if (code)
        free(c);
    return code;
}

static MPI_Datatype type_of(char type, int size)
{
    if (type == 'f')
        return size == 4 ? MPI_FLOAT : size == 8 ? MPI_DOUBLE : MPI_DATATYPE_NULL;
    switch (size) {
    case 1: return type == 'i' ? MPI_INT8_T : MPI_UINT8_T;
    case 2: return type == 'i' ? MPI_INT16_T : MPI_UINT16_T;
    case 4: return type == 'i' ? MPI_INT32_T : MPI_UINT32_T;
    default: return type == 'i' ? MPI_INT64_T : MPI_UINT64_T;
    }
}

static int mpi_reduce(void *group, int scatters, char type, int size, int product, const void *send,
                      void *recv, int count, transport_request *out)
{
    MPI_Comm c = *(MPI_Comm *)group;
    MPI_Datatype t = type_of(type, size);
    MPI_Op op = product ? MPI_PROD : MPI_SUM;
    void *from = send == recv ? MPI_IN_PLACE : (void *)(uintptr_t)send;
    if (scatters)
        return MPI_Ireduce_scatter_block(from, recv, count, t, op, c, (MPI_Request *)(void *)out);
    return MPI_Iallreduce(from, recv, count, t, op, c, (MPI_Request *)(void *)out);
}

static int mpi_close(void)
{
    int over = 0, code = MPI_Finalized(&over);
    if (code || over || !ours)
        return code;
    if (world != MPI_COMM_NULL)
        MPI_Comm_free(&world);
    return MPI_Finalize();
}

static const char *mpi_explain(int code)
{
    static char text[MPI_MAX_ERROR_STRING + 1];
    int n = 0;
    if (MPI_Error_string(code, text, &n))
        return "an error of MPI";
    text[n] = 0;
    return text;
}

#if defined(OPEN_MPI)
#define KIND "Open MPI"
#elif defined(MPICH)
#define KIND "MPICH"
#else
#define KIND "MPI"
#endif

static const transport mpi = {TRANSPORT_VERSION, KIND,         mpi_open,  mpi_share,  mpi_send,  mpi_recv,
                              mpi_test,          mpi_most_tag, mpi_group, mpi_reduce, mpi_close, mpi_explain};

__attribute__((visibility("default"))) const transport *eas_mpi_transport(void);
const transport *eas_mpi_transport(void) { return &mpi; }
