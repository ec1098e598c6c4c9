/* watch_net.h: frames over TCP for watch.c. */
#ifndef WATCH_NET_H
#define WATCH_NET_H

#include "watch.h"

typedef enum frame_kind {
    FRAME_HELLO, /* rank -> 0: the token */
    FRAME_STATE, /* the state of `rank`; 0 passes those of others on */
    FRAME_FAIL, /* rank -> 0: why; 0 decides */
    FRAME_REPORT, /* 0 -> all: it is over */
    FRAME_LEFT /* 0 -> all: all have left */
} frame_kind;

typedef struct frame {
    uint32_t kind, rank, bytes, pad;
} frame;

typedef struct conn { /* never blocks: what cannot be sent yet is queued */
    int fd; /* -1: closed */
    char *in, *out;
    size_t in_len, in_cap, out_len, out_cap;
    double heard; /* when something came last */
} conn;

double watch_seconds(void);
void conn_init(conn *c, int fd);
void conn_close(conn *c);
bool conn_busy(const conn *c); /* something is queued */
void conn_send(conn *c, frame_kind kind, int rank, const void *payload, size_t n);
void conn_flush(conn *c);
bool conn_read(conn *c); /* false: the other side has closed, or is unreachable */
/* The next whole frame; its payload is valid until the next conn_read. */
bool conn_next(conn *c, size_t *at, frame *out, const char **payload);
void conn_taken(conn *c, size_t at); /* frames up to `at` have been taken */
int net_connect(const watch_address *a, double until); /* -1: no address answers */
/* Rank 0: one connection a rank, by rank. False: not all came; fds of those missing are -1. */
bool net_accept(int listener, int size, const uint8_t token[16], double until, conn *conns);

#endif
