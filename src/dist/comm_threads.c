/* comm_threads.c: the engine whose ranks are threads of one process.
 *
 * Members of a group meet: the first to start its n-th call makes a `meeting`, the others find it, and each
 * leaves there what it sends and where it receives. Once all are there, there is a share for each member,
 * which is done by reading the others' memory: what the member receives is copied, or its part of the range
 * is reduced over all members and the result written to every member (all_reduce). Whoever waits takes shares
 * until none is left, its own or others': so nobody waits for a member that computes meanwhile or that has
 * no CPU. Nobody leaves before all shares are done, since its memory is in use until then. Small operands
 * are copied into the meeting when the call starts; then each does its own share, and nobody waits for
 * readers.
 *
 * Waiting spins for at most SPIN ns, and not at all where there are more threads than processors; then it
 * sleeps on the endpoint's own condition variable, and whoever completes a meeting wakes its members.
 *
 * Failure: the hub keeps one text, of the first failure, and a flag. A member that takes its share counts
 * itself in (`active`) before it looks at the flag, and one that leaves a failed meeting sets the flag before
 * it waits for `active` to fall to 0: so nobody's memory is read after it has returned.
 */
#include "../base/turns.h"
#include "reduce.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { SPIN = 30000, EAGER = 4096, TEXT = 320 };

typedef struct place { /* of a member in a meeting */
    comm_call call;
    bool here, finished; /* under the table's lock */
    char *copy; /* of a small operand */
} place;

typedef struct meeting {
    struct meeting *next;
    uint64_t number, hash;
    int n, refs; /* refs: under the table's lock */
    bool eager;
    _Atomic int arrived, taken, done, active; /* members; shares that somebody does, that are done */
    int first; /* the member that came first */
    comm_record record; /* its call */
    place *places;
} meeting;

typedef struct table { /* the meetings of a group */
    struct table *next;
    uint64_t hash;
    int n, *ranks;
    pthread_mutex_t lock;
    meeting *meetings;
} table;

struct comm_request {
    table *t;
    meeting *m;
    int me;
    comm_record record;
    void *pointers[]; /* 2 n, for reductions */
};

typedef struct endpoint {
    comm base;
    struct hub *hub;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t wake;
    bool closed;
    bool inside, any; /* in a collective; otherwise `last` is what it did last, if it did any */
    comm_record last;
    _Atomic bool asleep;
    _Atomic uint64_t signs; /* of life: calls of this interface */
} endpoint;

typedef struct hub {
    int n;
    _Atomic int refs;
    bool debug, spins;
    double timeout;
    pthread_mutex_t lock; /* of tables, failure */
    table *tables;
    _Atomic bool broken;
    char failure[3072];
    endpoint *ends[];
} hub;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static endpoint *end_of(comm *c) { return (endpoint *)(void *)c; }

/* ---- failure ---- */

static void wake_rank(hub *h, int rank)
{
    endpoint *e = h->ends[rank];
    if (!atomic_load(&e->asleep))
        return;
    pthread_mutex_lock(&e->lock);
    pthread_cond_signal(&e->wake);
    pthread_mutex_unlock(&e->lock);
}

static void report(hub *h, str *s)
{
    for (int i = 0; i < h->n; i++) {
        endpoint *e = h->ends[i];
        pthread_mutex_lock(&e->lock);
        char text[TEXT] = "no collective";
        if (e->any)
            comm_record_text(&e->last, text, sizeof text);
        str_add(s, "\n  rank %d: %s%s", i,
                e->closed   ? "returned; last: "
                : e->inside ? "in "
                            : "computing; last: ",
                text);
        pthread_mutex_unlock(&e->lock);
    }
}

static eas_status broken(hub *h)
{
    pthread_mutex_lock(&h->lock);
    eas_status st = base_fail(EAS_ERR_RUNTIME, "%s", h->failure);
    pthread_mutex_unlock(&h->lock);
    return st;
}

/* The first failure is kept. */
static eas_status break_all(hub *h, const char *why)
{
    str s = {0};
    str_add(&s, "%s\nlast operation of each rank:", why);
    report(h, &s);
    pthread_mutex_lock(&h->lock);
    if (!atomic_load(&h->broken)) {
        snprintf(h->failure, sizeof h->failure, "%s", s.at ? s.at : why);
        atomic_store(&h->broken, true);
    }
    pthread_mutex_unlock(&h->lock);
    str_free(&s);
    for (int i = 0; i < h->n; i++)
        wake_rank(h, i);
    return broken(h);
}

static void note(endpoint *e, const comm_record *record, bool inside)
{
    atomic_fetch_add_explicit(&e->signs, 1, memory_order_relaxed);
    pthread_mutex_lock(&e->lock);
    if (record)
        e->last = *record, e->any = true;
    e->inside = inside;
    pthread_mutex_unlock(&e->lock);
}

/* ---- meetings ---- */

static table *find_table(hub *h, const comm_group *g)
{
    for (table *t = h->tables; t; t = t->next)
        if (t->hash == g->hash && t->n == g->n &&
            !memcmp(t->ranks, g->ranks, sizeof *g->ranks * (size_t)g->n))
            return t;
    table *t = calloc(1, sizeof *t);
    int *ranks = malloc(sizeof *ranks * (size_t)g->n);
    if (!t || !ranks) {
        free(t), free(ranks);
        return NULL;
    }
    memcpy(ranks, g->ranks, sizeof *ranks * (size_t)g->n);
    *t = (table){.next = h->tables, .hash = g->hash, .n = g->n, .ranks = ranks};
    pthread_mutex_init(&t->lock, NULL);
    return h->tables = t;
}

static table *table_of(hub *h, comm_group *g)
{
    if (!g->engine) {
        pthread_mutex_lock(&h->lock);
        g->engine = find_table(h, g);
        pthread_mutex_unlock(&h->lock);
    }
    return g->engine;
}

static size_t block_bytes(const comm_call *k) { return (size_t)k->count * eas_dtype_size(k->dtype); }

static size_t send_bytes(const comm_call *k)
{
    size_t b = block_bytes(k);
    switch (k->op) {
    case COMM_reduce_scatter:
    case COMM_all_to_all:
    case COMM_scatter: return b * (size_t)k->group->n;
    case COMM_barrier: return 0;
    default: return b;
    }
}

static meeting *meeting_new(const comm_call *k, uint64_t number, uint64_t hash)
{
    size_t n = (size_t)k->group->n, eager = send_bytes(k) <= EAGER ? (send_bytes(k) + 63) / 64 * 64 : 0;
    meeting *m = calloc(1, sizeof *m + n * sizeof(place) + n * eager);
    if (!m)
        return NULL;
    m->number = number, m->hash = hash, m->n = (int)n, m->first = k->group->me;
    m->eager = send_bytes(k) <= EAGER;
    m->places = (place *)(void *)(m + 1);
    for (size_t i = 0; i < n; i++)
        m->places[i].copy = (char *)(m->places + n) + i * eager;
    comm_record_set(&m->record, k, number);
    return m;
}

static meeting *find_meeting(table *t, const comm_call *k, uint64_t number, uint64_t hash)
{
    meeting **at = &t->meetings;
    while (*at && (*at)->number != number)
        at = &(*at)->next;
    if (!*at)
        *at = meeting_new(k, number, hash);
    if (*at)
        (*at)->refs++;
    return *at;
}

static void leave(table *t, meeting *m)
{
    pthread_mutex_lock(&t->lock);
    bool last = --m->refs == 0;
    if (last) {
        meeting **at = &t->meetings;
        while (*at != m)
            at = &(*at)->next;
        *at = m->next;
    }
    pthread_mutex_unlock(&t->lock);
    if (last)
        free(m);
}

static bool sends(const comm_call *k)
{
    if (k->op == COMM_broadcast || k->op == COMM_scatter)
        return k->group->me == k->root;
    return k->op != COMM_barrier && !(k->op == COMM_ppermute && k->to < 0);
}

static void enter(hub *h, table *t, meeting *m, const comm_call *k)
{
    int me = k->group->me;
    place *p = &m->places[me];
    p->call = *k;
    p->call.site = NULL, p->call.shape = NULL;
    if (m->eager && sends(k)) {
        if (send_bytes(k))
            memcpy(p->copy, k->send, send_bytes(k));
        p->call.send = p->copy;
    }
    pthread_mutex_lock(&t->lock);
    p->here = true;
    pthread_mutex_unlock(&t->lock);
    if (atomic_fetch_add(&m->arrived, 1) + 1 == m->n)
        for (int i = 0; i < m->n; i++)
            wake_rank(h, t->ranks[i]);
}

static eas_status mismatch(hub *h, comm_request *r, int rank)
{
    char mine[TEXT], other[TEXT], why[2 * TEXT + 200];
    comm_record_text(&r->record, mine, sizeof mine);
    comm_record_text(&r->m->record, other, sizeof other);
    snprintf(why, sizeof why,
             "the ranks do not take part in the same collective: rank %d calls %s, but rank %d calls %s",
             rank, mine, r->t->ranks[r->m->first], other);
    return break_all(h, why);
}

/* Finds or makes the meeting, and takes its place in it. */
static eas_status meet(endpoint *e, const comm_call *k, comm_request *r)
{
    hub *h = e->hub;
    uint64_t hash = comm_call_hash(k, h->debug);
    if (!(r->t = table_of(h, k->group)))
        return base_fail_oom(sizeof(table));
    pthread_mutex_lock(&r->t->lock);
    r->m = find_meeting(r->t, k, r->record.number, hash);
    pthread_mutex_unlock(&r->t->lock);
    if (!r->m)
        return base_fail_oom(sizeof(meeting));
    if (r->m->hash != hash) {
        eas_status st = mismatch(h, r, e->base.rank);
        leave(r->t, r->m);
        return st;
    }
    enter(h, r->t, r->m, k);
    return EAS_OK;
}

static eas_status threads_start(comm *c, const comm_call *k, comm_request **out)
{
    endpoint *e = end_of(c);
    size_t bytes = sizeof(comm_request) + 2 * sizeof(void *) * (size_t)k->group->n;
    comm_request *r = malloc(bytes);
    if (!r)
        return base_fail_oom(bytes);
    r->me = k->group->me;
    comm_record_set(&r->record, k, k->group->calls++);
    note(e, &r->record, true);
    eas_status st = atomic_load(&e->hub->broken) ? broken(e->hub) : meet(e, k, r);
    if (st)
        free(r);
    else
        note(e, NULL, false), *out = r;
    return st;
}

/* ---- waiting ---- */

typedef struct look { /* at those that a meeting waits for */
    int missing, gone; /* ranks, -1: none; gone has returned and will not come */
    uint64_t signs; /* of life, of all that are missing */
} look;

static look look_around(hub *h, comm_request *r, bool sharing)
{
    look l = {-1, -1, 0};
    for (int i = 0; i < r->m->n; i++) {
        int rank = r->t->ranks[i];
        endpoint *e = h->ends[rank];
        /* before the place is looked at: who has closed has left there what it had to */
        pthread_mutex_lock(&e->lock);
        bool closed = e->closed;
        pthread_mutex_unlock(&e->lock);
        pthread_mutex_lock(&r->t->lock);
        bool came = sharing ? r->m->places[i].finished : r->m->places[i].here;
        pthread_mutex_unlock(&r->t->lock);
        if (came)
            continue;
        l.missing = rank;
        l.signs += atomic_load_explicit(&e->signs, memory_order_relaxed);
        if (closed)
            l.gone = rank;
    }
    return l;
}

static void sleep_a_while(endpoint *e, _Atomic int *count, int want, hub *h)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&e->lock);
    atomic_store(&e->asleep, true);
    if (atomic_load(count) < want && !atomic_load(&h->broken))
        pthread_cond_timedwait(&e->wake, &e->lock, &until);
    atomic_store(&e->asleep, false);
    pthread_mutex_unlock(&e->lock);
}

static bool spin(hub *h, _Atomic int *count, int want)
{
    double end = h->spins ? seconds() + 1e-9 * SPIN : 0;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load_explicit(count, memory_order_acquire) >= want)
                return true;
            base_relax();
        }
    } while (h->spins && seconds() < end);
    return false;
}

static eas_status give_up(endpoint *e, comm_request *r, int rank, bool returned)
{
    char text[TEXT], why[TEXT + 300];
    comm_record_text(&r->record, text, sizeof text);
    if (returned)
        snprintf(why, sizeof why, "rank %d has returned without taking part in %s, in which rank %d waits",
                 rank, text, e->base.rank);
    else
        snprintf(why, sizeof why, "rank %d has waited %g s in %s for rank %d (EAS_DIST_TIMEOUT)",
                 e->base.rank, e->hub->timeout, text, rank);
    return break_all(e->hub, why);
}

/* Time counts from the last sign of life of those that are missing. */
static eas_status sleep_until(endpoint *e, comm_request *r, bool sharing, _Atomic int *count)
{
    hub *h = e->hub;
    int n = r->m->n;
    double since = seconds();
    uint64_t last = 0;
    while (atomic_load(count) < n) {
        if (atomic_load(&h->broken))
            return broken(h);
        look l = look_around(h, r, sharing);
        if (l.missing < 0)
            continue; /* all have come meanwhile */
        if (l.gone >= 0)
            return give_up(e, r, l.gone, true);
        if (l.signs != last)
            last = l.signs, since = seconds();
        if (seconds() - since > 0.8 * h->timeout)
            return give_up(e, r, l.missing, false);
        sleep_a_while(e, count, n, h);
    }
    return EAS_OK;
}

/* Until all members have come (sharing: until all shares are done). */
static eas_status wait_for(endpoint *e, comm_request *r, bool sharing)
{
    _Atomic int *count = sharing ? &r->m->done : &r->m->arrived;
    if (spin(e->hub, count, r->m->n))
        return EAS_OK;
    const bool turn = turn_give();
    eas_status st = sleep_until(e, r, sharing, count);
    if (turn)
        turn_take();
    return st;
}

/* ---- data ---- */

static const char *send_of(const meeting *m, int k, size_t at)
{
    return (const char *)m->places[k].call.send + at;
}

static bool is_large(const comm_call *k) { return block_bytes(k) >= (4u << 20); }

static void reduce_part(comm_request *r, const comm_call *k, size_t from, int nouts, void *const *outs,
                        int64_t count)
{
    const void **in = (const void **)r->pointers;
    for (int i = 0; i < r->m->n; i++)
        in[i] = send_of(r->m, i, from);
    reduce_blocks(k->red, k->dtype, r->m->n, in, nouts, outs, count);
}

/* Each member reduces its part and writes it to all; of small operands each has a copy, and does all of it
 * for itself. */
static void all_reduce(comm_request *r, const comm_call *k)
{
    const meeting *m = r->m;
    if (m->eager) {
        reduce_part(r, k, 0, 1, (void *const[]){k->recv}, k->count);
        return;
    }
    uint64_t n = (uint64_t)m->n, me = (uint64_t)k->group->me, count = (uint64_t)k->count,
             lo = comm_part(count, me, n), hi = comm_part(count, me + 1, n);
    size_t from = lo * eas_dtype_size(k->dtype);
    void **outs = r->pointers + n;
    for (uint64_t i = 0; i < n; i++)
        outs[i] = (char *)m->places[i].call.recv + from;
    reduce_part(r, k, from, m->n, outs, (int64_t)(hi - lo));
}

static void collect(const meeting *m, const comm_call *k, size_t from)
{
    size_t b = block_bytes(k);
    int me = k->group->me;
    for (int i = 0; i < m->n; i++) { /* members begin with different sources */
        int j = (me + i) % m->n;
        reduce_copy((char *)k->recv + (size_t)j * b, send_of(m, j, from), b, is_large(k));
    }
}

/* The share of member `me`; r is the request of whoever does it. */
static void move(comm_request *r, int me)
{
    const meeting *m = r->m;
    const comm_call *k = &m->places[me].call;
    size_t b = block_bytes(k), mine = b * (size_t)me;
    if (!b)
        return;
    switch (k->op) {
    case COMM_all_gather: collect(m, k, 0); break;
    case COMM_all_reduce: all_reduce(r, k); break;
    case COMM_reduce_scatter: reduce_part(r, k, mine, 1, (void *const[]){k->recv}, k->count); break;
    case COMM_all_to_all: collect(m, k, mine); break;
    case COMM_ppermute:
        if (k->from < 0)
            memset(k->recv, 0, b);
        else
            reduce_copy(k->recv, send_of(m, k->from, 0), b, is_large(k));
        break;
    case COMM_broadcast: reduce_copy(k->recv, send_of(m, k->root, 0), b, is_large(k)); break;
    case COMM_gather:
        if (me == k->root)
            collect(m, k, 0);
        break;
    case COMM_scatter: reduce_copy(k->recv, send_of(m, k->root, mine), b, is_large(k)); break;
    default: break;
    }
}

/* A permutation has each member as a source once at most, and both sides know of it. */
static eas_status check_permutation(endpoint *e, comm_request *r)
{
    const meeting *m = r->m;
    for (int i = 0; i < m->n; i++) {
        int to = m->places[i].call.to, from = m->places[i].call.from;
        if ((to < 0 || m->places[to].call.from == i) && (from < 0 || m->places[from].call.to == i))
            continue;
        char text[TEXT], why[TEXT + 160];
        comm_record_text(&r->record, text, sizeof text);
        snprintf(
            why, sizeof why,
            "%s: the ranks do not give the same permutation: rank %d sends to member %d and receives from member %d",
            text, r->t->ranks[i], to, from);
        return break_all(e->hub, why);
    }
    return EAS_OK;
}

/* Does the shares of all members that no thread has begun: a member that has slept until all came need not be
 * awake for its share to be done. */
static void do_shares(hub *h, comm_request *r)
{
    meeting *m = r->m;
    for (int i; (i = atomic_fetch_add(&m->taken, 1)) < m->n;) {
        move(r, i);
        pthread_mutex_lock(&r->t->lock);
        m->places[i].finished = true;
        pthread_mutex_unlock(&r->t->lock);
        if (atomic_fetch_add(&m->done, 1) + 1 == m->n)
            for (int k = 0; k < m->n; k++)
                wake_rank(h, r->t->ranks[k]);
    }
}

static eas_status share(endpoint *e, comm_request *r)
{
    hub *h = e->hub;
    meeting *m = r->m;
    eas_status st = m->places[r->me].call.op == COMM_ppermute ? check_permutation(e, r) : EAS_OK;
    if (st)
        return st;
    atomic_fetch_add(&m->active, 1);
    bool fails = atomic_load(&h->broken);
    if (!fails && m->eager)
        move(r, r->me);
    else if (!fails)
        do_shares(h, r);
    atomic_fetch_sub(&m->active, 1);
    if (fails)
        return broken(h);
    return m->eager ? EAS_OK : wait_for(e, r, true);
}

static eas_status threads_wait(comm *c, comm_request *r)
{
    endpoint *e = end_of(c);
    note(e, &r->record, true);
    eas_status st = wait_for(e, r, false);
    if (!st)
        st = share(e, r);
    while (st && atomic_load(&r->m->active))
        usleep(50); /* somebody still reads this rank's memory; it will be done without waiting for anyone */
    leave(r->t, r->m);
    free(r);
    note(e, NULL, st != EAS_OK);
    return st;
}

static void threads_poll(comm *c) { atomic_fetch_add_explicit(&end_of(c)->signs, 1, memory_order_relaxed); }

static void threads_abort(comm *c, const char *why)
{
    char text[1024];
    snprintf(text, sizeof text, "rank %d failed: %s", c->rank, why);
    break_all(end_of(c)->hub, text);
}

/* ---- life ---- */

static void hub_free(hub *h)
{
    for (table *t = h->tables, *next; t; t = next) {
        next = t->next;
        for (meeting *m = t->meetings, *after; m; m = after)
            after = m->next, free(m);
        pthread_mutex_destroy(&t->lock);
        free(t->ranks);
        free(t);
    }
    for (int i = 0; i < h->n; i++)
        if (h->ends[i]) {
            comm_done(&h->ends[i]->base);
            pthread_mutex_destroy(&h->ends[i]->lock);
            pthread_cond_destroy(&h->ends[i]->wake);
            free(h->ends[i]);
        }
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* Endpoints live until the last one is closed: the others' reports name them. */
static void threads_close(comm *c)
{
    endpoint *e = end_of(c);
    hub *h = e->hub;
    pthread_mutex_lock(&e->lock);
    e->closed = true;
    e->inside = false;
    pthread_mutex_unlock(&e->lock);
    for (int i = 0; i < h->n; i++)
        wake_rank(h, i);
    if (atomic_fetch_sub(&h->refs, 1) == 1)
        hub_free(h);
}

static const comm_engine threads = {"threads",    threads_start, threads_wait,
                                    threads_poll, threads_abort, threads_close};

static bool add_endpoint(hub *h, int rank)
{
    endpoint *e = calloc(1, sizeof *e);
    if (!e)
        return false;
    h->ends[rank] = e;
    e->hub = h;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->wake, NULL);
    return comm_init(&e->base, &threads, rank, h->n) == EAS_OK;
}

eas_status comm_threads_new(int n, comm **endpoints)
{
    if (n < 1 || n > 4096)
        return base_fail(EAS_ERR_VALUE, "a mesh in one process has 1 to 4096 devices, not %d", n);
    hub *h = calloc(1, sizeof *h + sizeof *h->ends * (size_t)n);
    if (!h)
        return base_fail_oom(sizeof *h);
    h->n = n, h->debug = comm_debug(), h->timeout = comm_timeout();
    h->spins = n <= sysconf(_SC_NPROCESSORS_ONLN);
    atomic_store(&h->refs, n);
    pthread_mutex_init(&h->lock, NULL);
    for (int i = 0; i < n; i++)
        if (!add_endpoint(h, i)) {
            hub_free(h);
            return base_fail_oom(sizeof(endpoint));
        }
    for (int i = 0; i < n; i++)
        endpoints[i] = &h->ends[i]->base;
    return EAS_OK;
}

static void self_close(comm *c)
{
    comm_done(c);
    free(c);
}

static const comm_engine self = {.name = "self", .close = self_close};

eas_status comm_self(comm **out)
{
    comm *c = calloc(1, sizeof *c);
    eas_status st = c ? comm_init(c, &self, 0, 1) : base_fail_oom(sizeof *c);
    if (st)
        free(c);
    else
        *out = c;
    return st;
}
