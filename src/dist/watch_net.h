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

/* ---- watch_board.c: what each rank does ---- */
enum { WATCH_RECENT = 8 };

typedef struct watch_state {
    uint64_t signs;
    double since; /* seconds in the collective */
    uint8_t any, inside, left;
    uint32_t nrecent;
    comm_record last;
    struct {
        uint64_t group, number, hash;
    } recent[WATCH_RECENT]; /* calls, at their count modulo WATCH_RECENT */
} watch_state;

typedef struct watch_row watch_row;
typedef struct watch_board {
    int size;
    bool shared; /* all ranks have the same memory */
    watch_row *rows;
    size_t bytes; /* mapped */
    void *mail; /* memory for comm_mail.c behind the rows; NULL: none */
} watch_board;
eas_status board_make(int size, watch_address *a); /* rank 0: the file */
void board_unlink(const watch_address *a);
eas_status board_open(watch_board *b, int size, const watch_address *a);
void board_close(watch_board *b);
watch_state *board_edit(watch_board *b, int rank); /* by one thread at a time */
void board_edited(watch_board *b, int rank);
void board_set_inside(watch_board *b, int rank, bool inside); /* without an edit */
/* false: torn, since that rank was writing all the time, or died while it did */
bool board_read(const watch_board *b, int rank, watch_state *out);

/* ---- watch_net.c ---- */
double watch_seconds(void);
int net_listen(bool local, watch_address *out); /* -1: errno tells why */
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
