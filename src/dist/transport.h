/* transport.h: messages between processes, as comm_ranks.c needs them. libeas-mpi (mpi/mpi.c) is one; it
 * knows nothing else of the library. */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

enum { TRANSPORT_VERSION = 2 };

typedef union transport_request { /* the transport's own: an MPI_Request */
    void *pointer;
    int number;
} transport_request;

/* Functions return 0, or a code that `explain` puts into words. */
typedef struct transport {
    int version;
    const char *kind; /* "Open MPI", "MPICH" */
    int (*open)(int *rank, int *size); /* waits for all processes */
    int (*share)(void *bytes, int n); /* from rank 0 to all; waits for it */
    int (*send)(const void *p, size_t n, int to, int tag, transport_request *out);
    int (*recv)(void *p, size_t n, int from, int tag, transport_request *out);
    int (*test)(transport_request *r, int *done); /* moves messages on */
    int (*most_tag)(void); /* the greatest tag */
    /* The transport's own reductions, whose order of joining is its business. group: some ranks, in this
     * order; all of them call it. */
    int (*group)(int n, const int *ranks, int tag, void **out);
    /* Starts an all_reduce, or (scatters) a reduce_scatter of blocks of `count` elements: sums or products of
     * floats, signed or unsigned integers ('f', 'i', 'u') of `size` bytes. send may be recv. */
    int (*reduce)(void *group, int scatters, char type, int size, int product, const void *send, void *recv,
                  int count, transport_request *out);
    int (*close)(void); /* waits for all processes */
    const char *(*explain)(int code);
} transport;

typedef const transport *transport_get(void); /* the module's symbol "eas_mpi_transport" */

#endif
