/* comm_streams.h: a collective over messages as a set of streams, for comm_ranks.c.
 *
 * A call becomes streams: each moves one stretch of memory to or from one member, in chunks, WINDOW of them
 * under way at a time. comm_streams.c decides which streams a call needs; comm_ranks.c moves them.
 */
#ifndef COMM_STREAMS_H
#define COMM_STREAMS_H

#include "comm_ranks.h"

enum { WINDOW = 4, FIRST = 0, SECOND = 1, CHECK = 2 };

typedef enum stream_kind { SEND, RECV, SEND_REDUCED, RECV_REDUCED } stream_kind;

typedef struct stream {
    stream_kind kind;
    uint8_t half; /* FIRST or SECOND */
    int peer; /* rank */
    char *at; /* NULL: staging memory */
    size_t bytes;
    int needs; /* streams before this one that must be done first: all of index < needs */
    int before; /* RECV_REDUCED: the stream that sends what stands there now; -1: none */
    uint32_t issued, done, chunks;
    transport_request under_way[WINDOW];
} stream;

struct comm_request {
    size_t room; /* bytes allocated */
    comm_request *next; /* pending calls, oldest first */
    comm_call call;
    comm_record record;
    uint64_t hash;
    uint32_t tag;
    bool complete;
    bool library; /* the transport's own reduction; there are no streams */
    transport_request at_library;
    /* reductions */
    bool reduces, swaps;
    char *own, *into; /* this member's part of its operand, and where the result goes */
    size_t part; /* bytes of that part */
    size_t chunk; /* bytes of a chunk in all streams of this call */
    uint32_t reduced, nparts; /* chunks */
    char *staging; /* `slots` chunks of each other member */
    uint32_t slots;
    int nstreams;
    stream *streams;
};

/* Members in an order that begins after this one, so that not all send to the same one first. */
static inline int streams_member(const comm_group *g, int i) { return (g->me + i) % g->n; }
/* Two members with small operands swap them whole instead of reducing a part each. */
bool streams_swap(const comm_call *k, size_t b);
int streams_most(const comm_call *k); /* how many streams the call can need */
/* Fills r->streams, which has room for streams_most, and copies what stays on this member. */
void streams_lay(comm_request *r);

#endif
