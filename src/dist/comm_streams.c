/* comm_streams.c: which messages a collective is made of. All collectives are direct: a member sends each
 * block straight to its destination, so the bytes are those of the best algorithms (comm_bytes), and a
 * reduction has all operands in one place and joins them in the tree that all engines share.
 *
 *   all_gather, all_to_all, gather, scatter, ppermute   one stream a pair
 *   broadcast                                           a binomial tree: streams to children begin when the
 *                                                       one from the parent is done
 *   barrier                                             dissemination: round k sends to the member 2^k
 *                                                       further and waits for the one 2^k before
 *   reduce_scatter                                      every member's part goes to its owner (FIRST), chunk
 *                                                       by chunk into staging memory; complete chunks are
 *                                                       reduced at once
 *   all_reduce                                          the same, and reduced chunks go to all others at once
 *                                                       (SECOND); two members with small operands swap them
 *                                                       whole
 */
#include "comm_streams.h"

static uint32_t chunks_of(const comm_request *r, size_t bytes)
{
    return bytes ? (uint32_t)((bytes + r->chunk - 1) / r->chunk) : 0;
}

static stream *add_stream(comm_request *r, stream_kind kind, int half, int member, const void *at,
                          size_t bytes)
{
    stream *s = &r->streams[r->nstreams++];
    s->kind = kind, s->half = (uint8_t)half;
    s->peer = r->call.group->ranks[member];
    s->at = (char *)(uintptr_t)at;
    s->bytes = bytes;
    s->chunks = r->call.op == COMM_barrier ? 1 : chunks_of(r, bytes); /* a barrier's message is empty */
    s->needs = 0, s->before = -1;
    s->issued = s->done = 0;
    return s;
}

static void copy_own(const comm_request *r, size_t to, size_t from, size_t bytes)
{
    if (bytes && (char *)r->call.recv + to != (const char *)r->call.send + from)
        memcpy((char *)r->call.recv + to, (const char *)r->call.send + from, bytes);
}

static void lay_exchange(comm_request *r, size_t b) /* all_gather and all_to_all */
{
    const comm_group *g = r->call.group;
    bool cuts = r->call.op == COMM_all_to_all;
    size_t me = (size_t)g->me;
    copy_own(r, me * b, cuts ? me * b : 0, b);
    for (int i = 1; i < g->n; i++) {
        int from = streams_member(g, g->n - i), to = streams_member(g, i);
        add_stream(r, RECV, FIRST, from, (char *)r->call.recv + (size_t)from * b, b);
        add_stream(r, SEND, FIRST, to, (const char *)r->call.send + (cuts ? (size_t)to * b : 0), b);
    }
}

static void lay_gather(comm_request *r, size_t b)
{
    const comm_group *g = r->call.group;
    if (g->me != r->call.root) {
        add_stream(r, SEND, FIRST, r->call.root, r->call.send, b);
        return;
    }
    copy_own(r, (size_t)g->me * b, 0, b);
    for (int i = 1; i < g->n; i++)
        add_stream(r, RECV, FIRST, streams_member(g, i),
                   (char *)r->call.recv + (size_t)streams_member(g, i) * b, b);
}

static void lay_scatter(comm_request *r, size_t b)
{
    const comm_group *g = r->call.group;
    if (g->me != r->call.root) {
        add_stream(r, RECV, FIRST, r->call.root, r->call.recv, b);
        return;
    }
    copy_own(r, 0, (size_t)g->me * b, b);
    for (int i = 1; i < g->n; i++)
        add_stream(r, SEND, FIRST, streams_member(g, i),
                   (const char *)r->call.send + (size_t)streams_member(g, i) * b, b);
}

static void lay_permute(comm_request *r, size_t b)
{
    int me = r->call.group->me, to = r->call.to, from = r->call.from;
    if (from < 0 && b)
        memset(r->call.recv, 0, b);
    if (from == me)
        copy_own(r, 0, 0, b);
    else if (from >= 0)
        add_stream(r, RECV, FIRST, from, r->call.recv, b);
    if (to >= 0 && to != me)
        add_stream(r, SEND, FIRST, to, r->call.send, b);
}

/* Places count from the root; the parent of a place is that place without its lowest bit. */
static void lay_broadcast(comm_request *r, size_t b)
{
    const comm_group *g = r->call.group;
    int n = g->n, root = r->call.root, place = (g->me - root + n) % n;
    const void *data = r->call.recv;
    if (place)
        add_stream(r, RECV, FIRST, ((place & (place - 1)) + root) % n, r->call.recv, b);
    else
        copy_own(r, 0, 0, b), data = r->call.send;
    int bit = 1;
    while (place + bit < n && !(place & bit))
        bit *= 2;
    for (bit /= 2; bit; bit /= 2) /* the largest subtree first */
        if (place + bit < n)
            add_stream(r, SEND, FIRST, (place + bit + root) % n, data, b)->needs = place ? 1 : 0;
}

static void lay_barrier(comm_request *r)
{
    const comm_group *g = r->call.group;
    for (int step = 1; step < g->n; step *= 2) {
        int before = r->nstreams;
        add_stream(r, RECV, FIRST, (g->me - step + g->n) % g->n, &r->tag, 0);
        add_stream(r, SEND, FIRST, (g->me + step) % g->n, &r->tag, 0)->needs = before;
    }
}

bool streams_swap(const comm_call *k, size_t b)
{
    return k->op == COMM_all_reduce && k->group->n == 2 && b <= COMM_SWAP;
}

static void lay_reduction(comm_request *r, size_t b)
{
    const comm_call *k = &r->call;
    const comm_group *g = k->group;
    uint64_t n = (uint64_t)g->n, count = (uint64_t)k->count, size = eas_dtype_size(k->dtype);
    bool scatters = k->op == COMM_reduce_scatter, whole = streams_swap(k, b);
    /* own part first: the staging memory of other members follows the order of their streams */
    for (int i = 0; i < g->n; i++) {
        int m = streams_member(g, i);
        size_t lo = scatters ? (size_t)m * b : whole ? 0 : comm_part(count, (uint64_t)m, n) * size;
        size_t len = scatters || whole ? b : comm_part(count, (uint64_t)m + 1, n) * size - lo;
        if (!i) {
            r->reduces = true, r->swaps = whole;
            r->own = (char *)(uintptr_t)k->send + lo, r->into = (char *)k->recv + (scatters ? 0 : lo),
            r->part = len;
            r->nparts = chunks_of(r, len);
            continue;
        }
        add_stream(r, RECV, FIRST, m, NULL, r->part);
        add_stream(r, SEND, FIRST, m, (const char *)k->send + lo, len);
        if (scatters || whole)
            continue;
        int sends = r->nstreams - 1;
        add_stream(r, SEND_REDUCED, SECOND, m, r->into, r->part);
        add_stream(r, RECV_REDUCED, SECOND, m, (char *)k->recv + lo, len)->before = sends;
    }
}

void streams_lay(comm_request *r)
{
    size_t b = (size_t)r->call.count * eas_dtype_size(r->call.dtype);
    switch (r->call.op) {
    case COMM_all_gather:
    case COMM_all_to_all: lay_exchange(r, b); break;
    case COMM_gather: lay_gather(r, b); break;
    case COMM_scatter: lay_scatter(r, b); break;
    case COMM_ppermute: lay_permute(r, b); break;
    case COMM_broadcast: lay_broadcast(r, b); break;
    case COMM_barrier: lay_barrier(r); break;
    default: lay_reduction(r, b);
    }
}

int streams_most(const comm_call *k)
{
    int n = k->group->n;
    return k->op == COMM_barrier ? 64 : comm_op_reduces(k->op) ? 4 * n : 2 * n;
}
