/* comm_ranks.c: the engine whose ranks are processes: collectives made of messages (transport.h), watched
 * over by watch.c.
 *
 * A call becomes streams (comm_streams.c). This file moves them: it issues chunks as their window allows,
 * reduces chunks that are complete, and retires calls.
 *
 * Small chunks between ranks of one machine go through memory that they share (comm_mail.c); both ends know a
 * chunk's size, and so which way it takes.
 *
 * Messages are matched by tags: the call's number in its group, the half of the algorithm, and a hash of the
 * group and of everything that members must agree on. Calls that differ never meet; the watch finds out. Two
 * pending calls of one tag would be confused, so the second waits for the first. Everything moves when
 * somebody calls start, wait or poll: no thread is needed.
 */
#include "comm_fast.h"
#include "comm_mail.h"
#include "comm_streams.h"
#include "reduce.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static const size_t CHUNK = 256 << 10;

typedef struct ranks {
    comm base;
    const transport *t;
    watch *w;
    mail *mail; /* NULL: the ranks share no memory */
    double timeout;
    bool debug, crowded;
    int tag_bits;
    pthread_mutex_t lock; /* the transport is called by one thread at a time */
    comm_request *pending;
    /* memory for the next call: staging memory that is mapped anew each time costs more than the messages */
    _Atomic(comm_request *) spare;
    comm_stats wire; /* bytes given to the transport, by op */
} ranks;

static ranks *ranks_of(comm *c) { return (ranks *)(void *)c; }

/* ---- progress ---- */

static eas_status transport_failed(ranks *x, const comm_request *r, int peer, int code)
{
    char text[320], why[900];
    comm_record_text(&r->record, text, sizeof text);
    snprintf(why, sizeof why, "rank %d: %s with rank %d in %s", x->base.rank, x->t->explain(code), peer,
             text);
    return watch_fail(x->w, why);
}

static bool is_send(const stream *s) { return s->kind == SEND || s->kind == SEND_REDUCED; }

static bool may_issue(const comm_request *r, const stream *s)
{
    if (s->issued == s->chunks || s->issued - s->done == WINDOW)
        return false;
    for (int i = 0; i < s->needs; i++)
        if (r->streams[i].done < r->streams[i].chunks)
            return false;
    if (s->kind == SEND_REDUCED)
        return s->issued < r->reduced;
    if (s->kind == RECV_REDUCED) /* its memory is being sent: the send must be done first */
        return r->streams[s->before].done == r->streams[s->before].chunks ||
               s->issued < r->streams[s->before].done;
    /* a chunk of staging memory is free when it has been reduced */
    return s->at || s->issued < r->reduced + WINDOW;
}

/* Staging memory of the i-th stream into it. */
static char *staging_of(const comm_request *r, int i, uint32_t chunk)
{
    return r->staging + ((size_t)i * r->slots + chunk % r->slots) * r->chunk;
}

typedef struct chunk {
    char *p;
    size_t n;
    int tag;
    bool mailed;
} chunk;

static chunk chunk_at(const ranks *x, const comm_request *r, const stream *s, int stage, uint32_t i)
{
    size_t from = (size_t)i * r->chunk, n = s->bytes - from < r->chunk ? s->bytes - from : r->chunk;
    return (chunk){.p = s->at ? s->at + from : staging_of(r, stage, i),
                   .n = n,
                   .tag = (int)(r->tag << 2 | s->half),
                   .mailed = x->mail && n <= MAIL_MOST};
}

/* issued: false where the mailbox is full. */
static eas_status issue(ranks *x, comm_request *r, stream *s, int stage, bool *issued)
{
    chunk c = chunk_at(x, r, s, stage, s->issued);
    transport_request *q = &s->under_way[s->issued % WINDOW];
    int code = 0;
    *issued = true;
    if (!c.mailed)
        code = is_send(s) ? x->t->send(c.p, c.n, s->peer, c.tag, q) : x->t->recv(c.p, c.n, s->peer, c.tag, q);
    else if (is_send(s))
        *issued = mail_send(x->mail, c.p, c.n, s->peer, (uint32_t)c.tag);
    if (code)
        return transport_failed(x, r, s->peer, code);
    if (!*issued)
        return EAS_OK;
    if (is_send(s)) {
        x->wire.bytes[r->call.op] += c.n;
        s->done += c.mailed && s->done == s->issued; /* p may be reused */
    }
    s->issued++;
    return EAS_OK;
}

/* Is the oldest chunk that is under way complete? */
static int look_at(ranks *x, const comm_request *r, stream *s, int stage, int *done)
{
    chunk c = chunk_at(x, r, s, stage, s->done);
    if (!c.mailed)
        return x->t->test(&s->under_way[s->done % WINDOW], done);
    *done = is_send(s) || mail_receive(x->mail, c.p, c.n, s->peer, (uint32_t)c.tag);
    return 0;
}

/* All that can be done of one stream now. */
static eas_status move_stream(ranks *x, comm_request *r, stream *s, int stage, bool *moved)
{
    while (s->done < s->issued) {
        int done = 0, code = look_at(x, r, s, stage, &done);
        if (code)
            return transport_failed(x, r, s->peer, code);
        if (!done)
            break;
        s->done++, *moved = true;
    }
    bool issued = true;
    while (issued && may_issue(r, s)) {
        eas_status st = issue(x, r, s, stage, &issued);
        if (st)
            return st;
        *moved |= issued;
    }
    return EAS_OK;
}

/* Chunk r->reduced has come from all. Operands of two members that swap may lie where the result goes, so
 * they must have been sent. */
static bool may_reduce(const comm_request *r)
{
    if (!r->reduces || r->reduced == r->nparts)
        return false;
    for (int i = 0; i < r->nstreams; i++) {
        const stream *s = &r->streams[i];
        if ((s->kind == RECV && s->done <= r->reduced) ||
            (r->swaps && s->kind == SEND && s->done <= r->reduced))
            return false;
    }
    return true;
}

static void reduce_chunk(comm_request *r)
{
    const comm_call *k = &r->call;
    const comm_group *g = k->group;
    size_t from = (size_t)r->reduced * r->chunk, n = r->part - from < r->chunk ? r->part - from : r->chunk;
    /* laid out by new_request */
    const void *few[64], **in = g->n <= 64 ? few : (const void **)(void *)(r->streams + streams_most(k));
    in[g->me] = r->own + from;
    for (int i = 1; i < g->n; i++)
        in[streams_member(g, i)] = staging_of(r, i - 1, r->reduced);
    reduce_blocks(k->red, k->dtype, g->n, in, 1, (void *const[]){r->into + from},
                  (int64_t)(n / eas_dtype_size(k->dtype)));
    r->reduced++;
}

static bool is_complete(const comm_request *r)
{
    if (r->reduces && r->reduced < r->nparts)
        return false;
    for (int i = 0; i < r->nstreams; i++)
        if (r->streams[i].done < r->streams[i].chunks)
            return false;
    return true;
}

static eas_status move_library(ranks *x, comm_request *r, bool *moved)
{
    int done = 0, code = x->t->test(&r->at_library, &done);
    if (code)
        return transport_failed(x, r, r->call.group->ranks[streams_member(r->call.group, 1)], code);
    r->complete = done;
    *moved |= r->complete;
    return EAS_OK;
}

static eas_status move_request(ranks *x, comm_request *r, bool *moved)
{
    if (r->library)
        return move_library(x, r, moved);
    bool again = true;
    while (again) {
        again = false;
        for (int i = 0, stage = 0; i < r->nstreams; i++) {
            stream *s = &r->streams[i];
            eas_status st = move_stream(x, r, s, s->at ? 0 : stage++, moved);
            if (st)
                return st;
        }
        while (may_reduce(r))
            reduce_chunk(r), again = *moved = true;
    }
    r->complete = is_complete(r);
    return EAS_OK;
}

static eas_status move_all(ranks *x, bool *moved)
{
    if (watch_failed(x->w))
        return watch_status(x->w);
    for (comm_request *r = x->pending; r; r = r->next) {
        eas_status st = r->complete ? EAS_OK : move_request(x, r, moved);
        if (st)
            return st;
    }
    return EAS_OK;
}

/* ---- waiting ---- */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct patience {
    double since; /* the last chunk, or sign of life */
    uint64_t signs;
    uint32_t polls;
} patience;

/* A peer that a stream of this call still waits for; -1: none. */
static int awaited(ranks *x, const comm_request *r, uint64_t *signs, bool *left)
{
    int peer = -1;
    *signs = 0, *left = false;
    for (int i = 1; r->library && i < r->call.group->n; i++) { /* any of them */
        int rank = r->call.group->ranks[streams_member(r->call.group, i)];
        *signs += watch_signs(x->w, rank);
        if (peer < 0 || (!*left && watch_left(x->w, rank)))
            peer = rank, *left = watch_left(x->w, rank);
    }
    for (int i = 0; i < r->nstreams; i++) {
        const stream *s = &r->streams[i];
        if (s->done == s->chunks || s->done == s->issued)
            continue;
        *signs += watch_signs(x->w, s->peer);
        if (peer < 0 || (!*left && watch_left(x->w, s->peer)))
            peer = s->peer, *left = watch_left(x->w, s->peer);
    }
    return peer;
}

static eas_status look_at_clock(ranks *x, const comm_request *r, patience *p)
{
    uint64_t signs;
    bool left;
    int peer = awaited(x, r, &signs, &left);
    double now = seconds();
    if (signs != p->signs)
        p->signs = signs, p->since = left ? p->since : now;
    double limit = left ? 0.3 : 0.8 * x->timeout;
    if (peer < 0 || now - p->since < limit)
        return EAS_OK;
    char text[320], why[700];
    comm_record_text(&r->record, text, sizeof text);
    if (left)
        snprintf(why, sizeof why,
                 "rank %d has left the job without taking part in %s, in which rank %d waits", peer, text,
                 x->base.rank);
    else
        snprintf(
            why, sizeof why,
            "rank %d has waited %.1f s in %s for rank %d, which is alive (EAS_DIST_TIMEOUT=%g; a program that computes for longer needs a "
            "longer one)",
            x->base.rank, now - p->since, text, peer, x->timeout);
    return watch_fail(x->w, why);
}

/* Nothing moved. Polls without a pause for some microseconds, then lets others run, then sleeps. */
static eas_status rest(ranks *x, const comm_request *r, patience *p)
{
    p->polls++;
    if ((p->polls < 64 || p->polls % 16) && !x->crowded)
        return EAS_OK;
    if (x->mail) {
        pthread_mutex_lock(&x->lock);
        mail_take_in(x->mail);
        pthread_mutex_unlock(&x->lock);
    }
    double now = seconds();
    if (!p->since)
        p->since = now;
    if (now - p->since < 2e-3 || (x->crowded && p->polls < 4)) {
        if (x->crowded || now - p->since > 5e-5)
            sched_yield();
        return EAS_OK;
    }
    nanosleep(&(struct timespec){0, 100000}, NULL);
    return p->polls % 64 ? EAS_OK : look_at_clock(x, r, p);
}

/* Most small calls are done within a few polls: with the lock taken once. */
static eas_status run_shortly(ranks *x, comm_request *r)
{
    enum { POLLS = 64 };
    eas_status st = EAS_OK;
    pthread_mutex_lock(&x->lock);
    for (int i = 0; i < POLLS && !r->complete && !st; i++) {
        bool moved = false;
        st = move_all(x, &moved);
    }
    pthread_mutex_unlock(&x->lock);
    return st;
}

static eas_status run_to_end(ranks *x, comm_request *r)
{
    patience p = {0};
    eas_status st = x->crowded ? EAS_OK : run_shortly(x, r);
    while (!r->complete && !st) {
        bool moved = false;
        pthread_mutex_lock(&x->lock);
        st = move_all(x, &moved);
        pthread_mutex_unlock(&x->lock);
        if (moved)
            p.polls = 0, p.since = 0;
        else if (!st && !r->complete)
            st = rest(x, r, &p);
    }
    return st;
}

/* ---- calls ---- */

static comm_request *take_memory(ranks *x, size_t bytes)
{
    comm_request *r = atomic_exchange_explicit(&x->spare, NULL, memory_order_acquire);
    if (r && r->room < bytes) {
        free(r);
        r = NULL;
    }
    if (!r && (r = malloc(bytes)))
        r->room = bytes;
    if (!r)
        base_fail_oom(bytes);
    return r;
}

static void give_memory(ranks *x, comm_request *r)
{
    free(atomic_exchange_explicit(&x->spare, r, memory_order_acq_rel));
}

/* reduce_chunk's pointers lie behind the streams, for groups of more than 64. */
static comm_request *new_request(ranks *x, const comm_call *k)
{
    int most = streams_most(k), n = k->group->n;
    size_t b = (size_t)k->count * eas_dtype_size(k->dtype),
           part = streams_swap(k, b) || k->op == COMM_reduce_scatter ? b : b / (size_t)n + 8;
    size_t chunk = comm_op_reduces(k->op) ? CHUNK : 4 * CHUNK;
    if (comm_op_reduces(k->op) && part < chunk)
        chunk = (part + 63) / 64 * 64;
    size_t head =
        (sizeof(comm_request) + (size_t)most * sizeof(stream) + (size_t)n * sizeof(void *) + 63) / 64 * 64;
    uint32_t slots = part <= chunk ? 1 : WINDOW;
    size_t staging = comm_op_reduces(k->op) ? (size_t)(n - 1) * slots * chunk : 0;
    comm_request *r = take_memory(x, head + staging);
    if (!r)
        return NULL;
    size_t room = r->room;
    memset(r, 0, sizeof *r);
    r->room = room, r->chunk = chunk, r->slots = slots;
    r->streams = (stream *)(void *)(r + 1);
    r->staging = (char *)r + head;
    r->call = *k;
    r->call.site = NULL, r->call.shape = NULL;
    return r;
}

static uint32_t tag_of(const ranks *x, const comm_group *g, uint64_t number, uint64_t hash)
{
    int bits = x->tag_bits - 2 - 8; /* 2 for the half, 8 for the number */
    uint64_t h = (hash ^ g->hash * 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(number & 255) | (uint32_t)(h >> (64 - bits)) << 8;
}

static void append(ranks *x, comm_request *r)
{
    comm_request **at = &x->pending;
    while (*at)
        at = &(*at)->next;
    *at = r;
}

static void drop(ranks *x, comm_request *r)
{
    comm_request **at = &x->pending;
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
}

/* With the lock held. */
static comm_request *of_same_tag(const ranks *x, uint32_t tag)
{
    comm_request *r = x->pending;
    while (r && (r->tag != tag || r->complete))
        r = r->next;
    return r;
}

/* EAS_DIST_DEBUG: all members tell each other what they are about to do, before any of it is done. */
typedef struct claim {
    uint64_t hash;
    comm_record record;
} claim;

static eas_status compare_claims(ranks *x, const comm_request *r, const claim *mine, const claim *theirs)
{
    const comm_group *g = r->call.group;
    for (int i = 0; i < g->n; i++) {
        if (i == g->me || theirs[i].hash == mine->hash)
            continue;
        char a[320], b[320], why[900];
        comm_record_text(&mine->record, a, sizeof a);
        comm_record_text(&theirs[i].record, b, sizeof b);
        snprintf(why, sizeof why,
                 "the ranks do not take part in the same collective: rank %d calls %s, but rank %d calls %s",
                 x->base.rank, a, g->ranks[i], b);
        return watch_fail(x->w, why);
    }
    return EAS_OK;
}

static eas_status check_claims(ranks *x, comm_request *r, const comm_call *k)
{
    comm_call c = {.op = COMM_all_gather, .dtype = EAS_U8, .count = sizeof(claim), .group = k->group};
    claim mine = {.hash = comm_call_hash(k, true), .record = r->record},
          *theirs = calloc((size_t)k->group->n, sizeof *theirs);
    if (!theirs)
        return base_fail_oom(sizeof *theirs);
    c.send = &mine, c.recv = theirs;
    comm_request *q = new_request(x, &c);
    eas_status st = q ? EAS_OK : EAS_ERR_MEMORY;
    if (q) {
        q->record = r->record;
        q->tag = tag_of(x, k->group, r->record.number, 0x5eed);
        streams_lay(q);
        for (int i = 0; i < q->nstreams; i++)
            q->streams[i].half = CHECK;
        uint64_t counted = x->wire.bytes[COMM_all_gather];
        pthread_mutex_lock(&x->lock);
        append(x, q);
        pthread_mutex_unlock(&x->lock);
        st = run_to_end(x, q);
        pthread_mutex_lock(&x->lock);
        drop(x, q);
        x->wire.bytes[COMM_all_gather] = counted;
        pthread_mutex_unlock(&x->lock);
        give_memory(x, q);
    }
    if (!st)
        st = compare_claims(x, r, &mine, theirs);
    free(theirs);
    return st;
}

static eas_status begin_library(ranks *x, comm_request *r)
{
    const comm_call *k = &r->call;
    bool moved;
    eas_status st = EAS_OK;
    pthread_mutex_lock(&x->lock);
    int code = fast_start(x->t, k, &r->at_library);
    if (code)
        st = transport_failed(x, r, k->group->ranks[streams_member(k->group, 1)], code);
    else {
        x->wire.bytes[k->op] += comm_bytes(k); /* what MPI sends is not told: counted as if sent as ours */
        append(x, r);
        st = move_library(x, r, &moved);
        if (st)
            drop(x, r);
    }
    pthread_mutex_unlock(&x->lock);
    return st;
}

static eas_status begin(ranks *x, comm_request *r, const comm_call *k)
{
    eas_status st = x->debug ? check_claims(x, r, k) : EAS_OK;
    if (st)
        return st;
    comm_request *same;
    bool moved;
    if (r->library)
        return begin_library(x, r);
    streams_lay(r);
    pthread_mutex_lock(&x->lock);
    while (!st && (same = of_same_tag(x, r->tag))) {
        pthread_mutex_unlock(&x->lock);
        st = run_to_end(x, same);
        pthread_mutex_lock(&x->lock);
    }
    if (!st) {
        append(x, r);
        st = move_request(x, r, &moved);
    }
    if (st)
        drop(x, r);
    pthread_mutex_unlock(&x->lock);
    return st;
}

/* Starts it in our way or in the library's; all members in the same one. */
static eas_status start_as(ranks *x, const comm_call *k, bool library, comm_request **out)
{
    if (watch_failed(x->w))
        return watch_status(x->w);
    comm_request *r = new_request(x, k);
    if (!r)
        return EAS_ERR_MEMORY;
    r->library = library;
    comm_record_set(&r->record, k, k->group->calls++);
    r->hash = comm_call_hash(k, false);
    r->tag = tag_of(x, k->group, r->record.number, r->hash);
    watch_enter(x->w, &r->record, k->group->hash, x->debug ? comm_call_hash(k, true) : r->hash);
    eas_status st = begin(x, r, k);
    if (!st)
        *out = r;
    return st;
}

/* After a failure messages may still be under way into this call's memory. The job is over; what the
 * transport could still write to is not given back. */
static eas_status ranks_wait(comm *c, comm_request *r)
{
    ranks *x = ranks_of(c);
    eas_status st = run_to_end(x, r);
    pthread_mutex_lock(&x->lock);
    drop(x, r);
    pthread_mutex_unlock(&x->lock);
    if (!st) {
        watch_inside(x->w, false);
        give_memory(x, r);
    }
    return st;
}

/* For comm_fast.c: a call in one of the two ways, to its end. */
static eas_status run_as(comm *c, const comm_call *k, bool library)
{
    comm_request *r;
    ranks *x = ranks_of(c);
    comm_stats counted = x->wire;
    eas_status st = start_as(x, k, library, &r);
    st = st ? st : ranks_wait(c, r);
    x->wire = counted; /* not the program's */
    return st;
}

static eas_status ranks_start(comm *c, const comm_call *k, comm_request **out)
{
    ranks *x = ranks_of(c);
    bool library = false;
    eas_status st = k->fast ? fast_choose(c, x->t, k, run_as, &library) : EAS_OK;
    return st ? st : start_as(x, k, library, out);
}

static void ranks_poll(comm *c)
{
    ranks *x = ranks_of(c);
    watch_sign(x->w);
    if (!x->pending || pthread_mutex_trylock(&x->lock))
        return;
    bool moved;
    (void)move_all(x, &moved); /* a failure is met again by whoever waits */
    pthread_mutex_unlock(&x->lock);
}

static void ranks_abort(comm *c, const char *why)
{
    char text[1000];
    snprintf(text, sizeof text, "rank %d failed: %s", c->rank, why);
    watch_fail(ranks_of(c)->w, text);
}

/* A failed job ends without MPI_Finalize, which would wait for the dead. */
static void ranks_close(comm *c)
{
    ranks *x = ranks_of(c);
    if (!watch_leave(x->w))
        x->t->close();
    mail_free(x->mail);
    watch_free(x->w);
    for (uint32_t i = 0; i < c->groups.len; i++)
        free(c->groups.at[i]->engine);
    comm_done(c);
    free(x->spare);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

static const comm_engine engine = {"mpi", ranks_start, ranks_wait, ranks_poll, ranks_abort, ranks_close};

eas_status comm_ranks_new(const transport *t, watch *w, int rank, int size, bool crowded, comm **out)
{
    ranks *x = calloc(1, sizeof *x);
    eas_status st = x ? comm_init(&x->base, &engine, rank, size) : base_fail_oom(sizeof *x);
    if (!st && watch_mail(w))
        st = mail_open(watch_mail(w), rank, size, &x->mail);
    if (st) {
        free(x);
        return st;
    }
    x->t = t, x->w = w, x->timeout = comm_timeout(), x->debug = comm_debug(), x->crowded = crowded;
    int most = t->most_tag();
    while (x->tag_bits < 30 && (1 << (x->tag_bits + 1)) - 1 <= most)
        x->tag_bits++;
    pthread_mutex_init(&x->lock, NULL);
    *out = &x->base;
    return EAS_OK;
}

const comm_stats *comm_ranks_wire(const comm *c)
{
    return c->engine == &engine ? &ranks_of((comm *)(uintptr_t)c)->wire : NULL;
}
const char *comm_ranks_report(const comm *c)
{
    return c->engine == &engine ? watch_report(ranks_of((comm *)(uintptr_t)c)->w) : NULL;
}
