/* comm_mail.h: small messages between the ranks of one machine, through memory that they share. */
#ifndef COMM_MAIL_H
#define COMM_MAIL_H

#include "comm.h"

enum { MAIL_MOST = 4096 }; /* bytes of a message */

typedef struct mail mail;

/* Shared memory that a job of this size needs; 0: too many ranks for it. */
size_t mail_bytes(int size);
/* memory: mail_bytes of it, zeroed before the first rank sends, aligned to a page. */
eas_status mail_open(void *memory, int rank, int size, mail **out);
void mail_free(mail *m); /* not the shared memory; NULL is accepted */
/* False: nothing was sent, since the receiver has yet to take older messages. Otherwise p may be reused. */
bool mail_send(mail *m, const void *p, size_t n, int to, uint32_t tag);
/* The oldest message of this sender with this tag and size; false: it has not come yet. */
bool mail_receive(mail *m, void *p, size_t n, int from, uint32_t tag);
/* Makes room for senders: takes in what has come from all ranks. For a rank that waits for something else. */
void mail_take_in(mail *m);

#endif
