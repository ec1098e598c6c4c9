/* comm_mail.c: small messages between the ranks of one machine, through memory that they share.
 *
 * Between processes that share a machine, a small message of MPI costs several times what the caches need to
 * move it: requests, matching, and progress of everything else at each test. Here each ordered pair of ranks
 * has a box, a ring of letters that one rank writes and the other reads:
 *
 *   the sender     copies the message into the next letter and stores the letter's number last (release)
 *   the receiver   polls the number of the next letter (acquire), copies the message out, and now and then
 *                  stores how many it has taken
 *
 * Neither writes a cache line that the other one polls, except to hand over data; the sender reads `taken`
 * only when the ring seems to be full. A rank that dies in the middle of a letter leaves its number unset.
 *
 * Letters are read in the order they were sent, but are wanted by tag. A letter that nobody has asked for yet
 * is moved to a list of the receiver's: whoever polls, for whatever message, empties the ring, and whoever
 * waits for long empties all of its rings. So a full ring never holds up a message that is wanted behind
 * messages that are not, nor for ever a rank that others wait for. Messages of one tag keep their order.
 */
#include "comm_mail.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { LETTERS = 8 };
static const size_t MOST_MEMORY = 32u << 20;

typedef struct letter {
    _Alignas(64) _Atomic uint32_t number; /* of the message, counted from 1 */
    uint32_t tag, bytes, pad;
    char data[MAIL_MOST];
} letter;

typedef struct box {
    _Alignas(64) _Atomic uint32_t taken; /* letters that the receiver has taken out */
    letter letters[LETTERS];
} box;

typedef struct early { /* a message that came before it was wanted */
    struct early *next;
    uint32_t tag, bytes;
    char data[];
} early;

typedef struct peer {
    box *to, *from;
    uint32_t sent, known; /* known: of `to`->taken, as last read */
    uint32_t received;
    early *list; /* oldest first */
} peer;

struct mail {
    int size;
    peer peers[];
};

size_t mail_bytes(int size)
{
    size_t bytes = sizeof(box) * (size_t)size * (size_t)size;
    return bytes <= MOST_MEMORY ? bytes : 0;
}

eas_status mail_open(void *memory, int rank, int size, mail **out)
{
    box *boxes = memory;
    size_t bytes = sizeof(mail) + sizeof(peer) * (size_t)size;
    mail *m = *out = calloc(1, bytes);
    if (!m)
        return base_fail_oom(bytes);
    m->size = size;
    for (int i = 0; i < size; i++) {
        m->peers[i].to = &boxes[rank * size + i];
        m->peers[i].from = &boxes[i * size + rank];
    }
    return EAS_OK;
}

void mail_free(mail *m)
{
    for (int i = 0; m && i < m->size; i++)
        for (early *e = m->peers[i].list, *next; e; e = next)
            next = e->next, free(e);
    free(m);
}

bool mail_send(mail *m, const void *p, size_t n, int to, uint32_t tag)
{
    peer *q = &m->peers[to];
    if (q->sent - q->known == LETTERS) {
        q->known = atomic_load_explicit(&q->to->taken, memory_order_acquire);
        if (q->sent - q->known == LETTERS)
            return false;
    }
    letter *l = &q->to->letters[q->sent % LETTERS];
    if (n)
        memcpy(l->data, p, n);
    l->tag = tag, l->bytes = (uint32_t)n;
    atomic_store_explicit(&l->number, ++q->sent, memory_order_release);
    return true;
}

/* The next letter, or NULL. */
static const letter *arrived(const peer *q)
{
    const letter *l = &q->from->letters[q->received % LETTERS];
    return atomic_load_explicit(&l->number, memory_order_acquire) == q->received + 1 ? l : NULL;
}

static void taken(peer *q)
{
    q->received++;
    if (q->received % (LETTERS / 2) == 0)
        atomic_store_explicit(&q->from->taken, q->received, memory_order_release);
}

static bool keep(peer *q, const letter *l)
{
    early **at = &q->list, *e = malloc(sizeof *e + l->bytes);
    if (!e)
        return false;
    e->next = NULL, e->tag = l->tag, e->bytes = l->bytes;
    memcpy(e->data, l->data, l->bytes);
    while (*at)
        at = &(*at)->next;
    *at = e;
    return true;
}

static bool take_early(peer *q, void *p, size_t n, uint32_t tag)
{
    early **at = &q->list;
    while (*at && ((*at)->tag != tag || (*at)->bytes != n))
        at = &(*at)->next;
    early *e = *at;
    if (!e)
        return false;
    if (n)
        memcpy(p, e->data, n);
    *at = e->next;
    free(e);
    return true;
}

void mail_take_in(mail *m)
{
    for (int i = 0; i < m->size; i++) {
        peer *q = &m->peers[i];
        for (const letter *l; (l = arrived(q)) && keep(q, l);)
            taken(q);
    }
}

bool mail_receive(mail *m, void *p, size_t n, int from, uint32_t tag)
{
    peer *q = &m->peers[from];
    if (q->list && take_early(q, p, n, tag))
        return true;
    for (const letter *l; (l = arrived(q));) {
        bool wanted = l->tag == tag && l->bytes == n;
        if (wanted && n)
            memcpy(p, l->data, n);
        if (!wanted && !keep(q, l))
            return false; /* no memory now: later */
        taken(q);
        if (wanted)
            return true;
    }
    return false;
}
