/* watch.h: the side channel between the processes of a job: who is alive, and what each does. See watch.c. */
#ifndef WATCH_H
#define WATCH_H

#include "comm.h"

typedef struct watch watch;

enum { WATCH_ADDRESSES = 8 };

/* Where rank 0 listens; shared by the transport before anybody connects. */
typedef struct watch_address {
    uint16_t port;
    uint16_t n;
    uint32_t at[WATCH_ADDRESSES]; /* IPv4, network order */
    uint8_t token[16]; /* whoever connects must know it */
    char board[64]; /* a file with the states of all ranks, where they are on one machine; "": none */
} watch_address;

/* Rank 0: opens the listening socket, and where all ranks are on this machine (local) makes the board. */
eas_status watch_listen(bool local, int size, watch_address *out, int *listener);
/* Connects all ranks within the timeout, or fails with a message that lists who is missing; starts this
 * rank's thread. */
eas_status watch_open(int rank, int size, const watch_address *a, int listener, double timeout, watch **out);

/* This rank's state, as the others will see it. hash: of the call; group: its group's. */
void watch_enter(watch *w, const comm_record *r, uint64_t group, uint64_t hash);
void watch_inside(watch *w, bool inside);
void watch_sign(watch *w); /* of life */
uint64_t watch_signs(watch *w, int rank); /* of another rank, as last heard */
bool watch_left(watch *w, int rank); /* it has said that it leaves */
void *watch_mail(watch *w); /* memory that all ranks share, for comm_mail.c; NULL: none */

bool watch_failed(const watch *w);
/* of a failed watch: the status, with its message; the failure counts as told */
eas_status watch_status(watch *w);
/* This rank reports a failure, its own or another's; all ranks learn of it. Returns when this rank's own
 * watch has failed. */
eas_status watch_fail(watch *w, const char *why);
const char *watch_report(watch *w); /* NULL: nothing has failed */
/* This rank leaves: returns when all have left, or one has failed. */
eas_status watch_leave(watch *w);
void watch_free(watch *w);

/* Before the transport is opened: this rank is there. A thread ends the process with the list of missing
 * ranks if watch_started is not called within the timeout. */
eas_status watch_starting(int rank, int size, const char *job, double timeout);
void watch_started(void);

#endif
