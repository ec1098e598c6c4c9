/* transport.h: messages between processes, as comm_ranks.c needs them. libeas-mpi (mpi/mpi.c) is one; it knows nothing else of the library. */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

enum { TRANSPORT_VERSION = 1 };

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
    int (*close)(void); /* waits for all processes */
    const char *(*explain)(int code);
} transport;

typedef const transport *transport_get(void); /* the module's symbol "eas_mpi_transport" */

#endif
