/* watch.c: who is alive, and what each rank does: the side channel between the processes of a job.
 *
 * MPI tells nothing of a peer that was killed or stopped: whoever waits for it waits without an end. So every
 * rank has a thread that calls no MPI and takes no lock of the host's (Python's), and a TCP connection
 * to rank 0, whose address reaches it through the transport. What its rank does (watch_state) stands on the
 * board (watch_board.c). Every beat, a tenth of a second at most, it sends a sign of life; where ranks are on
 * several machines also its state, and rank 0 passes the states on to all, so that each rank has a table of
 * all, a beat or two old.
 *
 *   killed, crashed      its connection closes                             found at once
 *   stopped, unreachable nothing is heard of it                            after half of EAS_DIST_TIMEOUT
 *   raises               it says so (watch_fail)                           at once
 *   another call         the call with one number of one group differs     in a few beats, if a rank waits
 *   never comes          the waiting rank says so (comm_ranks.c)           after 0.8 EAS_DIST_TIMEOUT without
 *                                                                          a sign of life
 *
 * Rank 0 decides: it waits for two beats, so that states are fresh, writes the report and sends it to all;
 * then every watch has failed. If rank 0 itself is lost, each rank decides alone. A failed watch prints the
 * report; calls of the communicator return the failure. A process that has not asked for it within a grace
 * period (it computes, or sleeps) is ended with code 1.
 *
 * mpirun sends SIGTERM to all as soon as one process has died. Where the host has no handler for it, ours
 * lets the thread write the report first.
 */
#include "watch_net.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { TEXT = 320 };

struct watch {
    int rank, size;
    double timeout, beat;
    pthread_t thread;
    int wake[2];
    conn *conns; /* rank 0: by rank; others: [0] is rank 0 */
    int nconns;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    watch_board board;
    double entered; /* when this rank gave its last sign of life, as seen by the thread */
    bool leaving, all_left, stop;
    char asked[1024]; /* a failure that this rank reports */
    char report[6000], reason[1500];
    bool told;
    /* the thread's own */
    bool deciding;
    double decide_at, failed_at, next_beat, term_at, seen_at;
    char why[1500];
    uint64_t *sent_signs; /* states passed on */
    uint8_t *dead; /* ranks whose connection has closed */
    _Atomic bool failed;
    _Atomic uint64_t signs;
};

/* ---- this rank's state ---- */

void watch_enter(watch *w, const comm_record *r, uint64_t group, uint64_t hash)
{
    atomic_fetch_add_explicit(&w->signs, 1, memory_order_relaxed);
    pthread_mutex_lock(&w->lock);
    watch_state *s = board_edit(&w->board, w->rank);
    comm_record_copy(&s->last, r);
    s->any = s->inside = 1;
    uint32_t k = s->nrecent++ % WATCH_RECENT;
    s->recent[k].group = group, s->recent[k].number = r->number, s->recent[k].hash = hash;
    s->since = 0;
    board_edited(&w->board, w->rank);
    pthread_mutex_unlock(&w->lock);
}

/* A byte that only this thread writes: no version, no lock. */
void watch_inside(watch *w, bool inside)
{
    watch_sign(w);
    board_set_inside(&w->board, w->rank, inside);
}

void watch_sign(watch *w) { atomic_fetch_add_explicit(&w->signs, 1, memory_order_relaxed); }

uint64_t watch_signs(watch *w, int rank)
{
    watch_state s;
    board_read(&w->board, rank, &s);
    return s.signs;
}

bool watch_left(watch *w, int rank)
{
    watch_state s;
    return board_read(&w->board, rank, &s) && s.left;
}

void *watch_mail(watch *w) { return w->board.mail; }

/* Text for reports: the collective that a rank is in, or the last one it was in. */
static const char *doing(watch *w, int rank, char *text, size_t size, watch_state *s)
{
    board_read(&w->board, rank, s);
    snprintf(text, size, "no collective");
    if (s->any)
        comm_record_text(&s->last, text, size);
    return text;
}

/* ---- failing ---- */

bool watch_failed(const watch *w) { return atomic_load_explicit(&w->failed, memory_order_acquire); }

eas_status watch_status(watch *w)
{
    pthread_mutex_lock(&w->lock);
    w->told = true;
    char mine[TEXT];
    watch_state s;
    eas_status st = base_fail(EAS_ERR_RUNTIME, "%s (this is rank %d; its last collective: %s)", w->reason,
                              w->rank, doing(w, w->rank, mine, sizeof mine, &s));
    pthread_mutex_unlock(&w->lock);
    return st;
}

const char *watch_report(watch *w) { return watch_failed(w) ? w->report : NULL; }

static void compose(watch *w, const char *why, str *s)
{
    str_add(s, "%s\n", why);
    for (int i = 0; i < w->size; i++) {
        watch_state t;
        char text[TEXT];
        doing(w, i, text, sizeof text, &t);
        str_add(s, "  rank %d: %s%s%s", i, w->dead[i] ? "dead; " : "",
                t.left     ? "has left; last: "
                : t.inside ? "in "
                           : "computing; last: ",
                text);
        if (t.inside && t.since > 0.05)
            str_add(s, ", for %.1f s", t.since);
        str_add(s, "\n");
    }
}

static void print_report(watch *w, const char *text)
{
    str s = {0};
    str_add(&s, "eas: [rank %d] %s", w->rank, text);
    size_t at = 0;
    while (s.at && at < s.len) {
        ssize_t n = write(2, s.at + at, s.len - at);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    str_free(&s);
}

/* From here on every call fails. */
static void conclude(watch *w, const char *text)
{
    if (watch_failed(w))
        return;
    pthread_mutex_lock(&w->lock);
    snprintf(w->report, sizeof w->report, "%s", text);
    size_t line = strcspn(w->report, "\n");
    snprintf(w->reason, sizeof w->reason, "%.*s", (int)line, w->report);
    pthread_mutex_unlock(&w->lock);
    print_report(w, w->report);
    w->failed_at = watch_seconds();
    pthread_mutex_lock(&w->lock);
    atomic_store_explicit(&w->failed, true, memory_order_release);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void decide(watch *w, const char *why)
{
    if (w->deciding || watch_failed(w))
        return;
    w->deciding = true;
    snprintf(w->why, sizeof w->why, "%s", why);
    w->decide_at = watch_seconds() + 2 * w->beat;
}

/* Rank 0, or a rank that has lost it. */
static void decided(watch *w)
{
    str s = {0};
    compose(w, w->why, &s);
    const char *text = s.at ? s.at : w->why;
    if (!w->rank) {
        for (int i = 1; i < w->nconns; i++)
            conn_send(&w->conns[i], FRAME_REPORT, 0, text, strlen(text) + 1);
        for (int tries = 0; tries < 20; tries++) {
            bool busy = false;
            for (int i = 1; i < w->nconns; i++)
                conn_flush(&w->conns[i]), busy |= conn_busy(&w->conns[i]) && !w->dead[i];
            if (!busy)
                break;
            usleep(5000);
        }
    }
    conclude(w, text);
    str_free(&s);
}

static void nudge(watch *w)
{
    char c = 'w';
    if (write(w->wake[1], &c, 1) < 0)
        return; /* the pipe is full: the thread wakes up anyway */
}

eas_status watch_fail(watch *w, const char *why)
{
    pthread_mutex_lock(&w->lock);
    if (!*w->asked)
        snprintf(w->asked, sizeof w->asked, "%s", why);
    nudge(w);
    while (!watch_failed(w) && !w->all_left)
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    return watch_status(w);
}

/* ---- the thread: looking for trouble ---- */

static void lost(watch *w, int rank, const char *how)
{
    char why[700], text[TEXT];
    watch_state s;
    doing(w, rank, text, sizeof text, &s);
    snprintf(why, sizeof why, "rank %d %s; %s %s", rank, how,
             s.inside ? "it was in" : "its last collective was", text);
    decide(w, why);
}

static bool differ(const watch_state *a, const watch_state *b, char *why, size_t size, int ra, int rb)
{
    uint32_t k = (a->nrecent - 1) % WATCH_RECENT, n = b->nrecent < WATCH_RECENT ? b->nrecent : WATCH_RECENT;
    for (uint32_t i = 0; i < n; i++) {
        if (b->recent[i].group != a->recent[k].group || b->recent[i].number != a->recent[k].number ||
            b->recent[i].hash == a->recent[k].hash)
            continue;
        char x[TEXT], y[TEXT];
        comm_record_text(&a->last, x, sizeof x);
        comm_record_text(&b->last, y, sizeof y);
        snprintf(
            why, size,
            "the ranks do not take part in the same collective: rank %d calls %s, but rank %d calls %s%s", ra,
            x, rb, i == (b->nrecent - 1) % WATCH_RECENT ? "" : "another one; its last is ", y);
        return true;
    }
    return false;
}

/* Rank 0: a call with one number of one group that is not the same everywhere, once somebody has waited in it
 * for a beat. */
static void compare_calls(watch *w)
{
    char why[1000];
    bool found = false;
    for (int i = 0; i < w->size && !found; i++) {
        watch_state a, b;
        if (!board_read(&w->board, i, &a) || !a.any || !a.inside || a.since < w->beat)
            continue;
        for (int j = 0; j < w->size && !found; j++)
            found = j != i && board_read(&w->board, j, &b) && b.any && differ(&a, &b, why, sizeof why, i, j);
    }
    if (found)
        decide(w, why);
}

static void look_for_silence(watch *w)
{
    double now = watch_seconds();
    /* this process was stopped itself: the others get their time again */
    if (now - w->seen_at > 0.25 * w->timeout) {
        for (int i = 0; i < w->nconns; i++)
            w->conns[i].heard = now;
    }
    w->seen_at = now;
    for (int i = w->rank ? 0 : 1; i < w->nconns; i++) {
        if (w->conns[i].fd < 0 || now - w->conns[i].heard < 0.5 * w->timeout)
            continue;
        char how[120];
        snprintf(how, sizeof how, "has not answered for %.1f s (stopped, or its machine is out of reach)",
                 now - w->conns[i].heard);
        lost(w, i, how);
    }
}

/* ---- the thread: frames ---- */

static watch_state fill_own(watch *w)
{
    pthread_mutex_lock(&w->lock);
    watch_state *s = board_edit(&w->board, w->rank);
    double now = watch_seconds();
    uint64_t signs = atomic_load_explicit(&w->signs, memory_order_relaxed);
    if (!w->entered || signs != s->signs)
        w->entered = now;
    s->signs = signs;
    s->since = s->inside ? now - w->entered : 0;
    s->left = w->leaving;
    watch_state copy = *s;
    board_edited(&w->board, w->rank);
    pthread_mutex_unlock(&w->lock);
    return copy;
}

/* A frame is a sign that the process lives; with a shared board it is nothing else. */
static void send_beat(watch *w)
{
    watch_state own = fill_own(w);
    size_t bytes = w->board.shared ? 0 : sizeof own;
    if (w->rank) {
        conn_send(&w->conns[0], FRAME_STATE, w->rank, &own, bytes);
        return;
    }
    for (int to = 1; to < w->size; to++)
        conn_send(&w->conns[to], FRAME_STATE, 0, &own, bytes);
    for (int i = 1; bytes && i < w->size; i++) {
        watch_state s;
        if (!board_read(&w->board, i, &s) || (s.signs + s.left == w->sent_signs[i] && !s.inside))
            continue;
        w->sent_signs[i] = s.signs + s.left;
        for (int to = 1; to < w->size; to++)
            if (to != i)
                conn_send(&w->conns[to], FRAME_STATE, i, &s, sizeof s);
    }
}

static void take_frame(watch *w, int from, const frame *f, const char *payload)
{
    char why[1100];
    switch (f->kind) {
    case FRAME_STATE:
        if (w->board.shared || f->bytes != sizeof(watch_state) || f->rank >= (uint32_t)w->size ||
            f->rank == (uint32_t)w->rank || (!w->rank && f->rank != (uint32_t)from))
            return;
        memcpy(board_edit(&w->board, (int)f->rank), payload, sizeof(watch_state));
        board_edited(&w->board, (int)f->rank);
        break;
    case FRAME_FAIL:
        snprintf(why, sizeof why, "%.*s", (int)f->bytes, payload);
        decide(w, why);
        break;
    case FRAME_REPORT:
        if (f->bytes && !payload[f->bytes - 1])
            conclude(w, payload);
        break;
    case FRAME_LEFT:
        pthread_mutex_lock(&w->lock);
        w->all_left = true;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->lock);
        break;
    default: break;
    }
}

static void read_conn(watch *w, int i)
{
    conn *c = &w->conns[i];
    if (c->fd < 0)
        return;
    bool open = conn_read(c);
    size_t at = 0;
    frame f;
    const char *payload;
    while (conn_next(c, &at, &f, &payload))
        take_frame(w, i, &f, payload);
    if (at)
        conn_taken(c, at);
    if (open)
        return;
    conn_close(c);
    pthread_mutex_lock(&w->lock);
    bool fine = w->all_left;
    pthread_mutex_unlock(&w->lock);
    if (fine || watch_failed(w))
        return;
    w->dead[i] = 1;
    lost(w, i, "has died: its process ended without leaving the job (killed, out of memory, or a crash)");
}

static void pass_on_own_failure(watch *w)
{
    char why[1024];
    pthread_mutex_lock(&w->lock);
    snprintf(why, sizeof why, "%s", w->asked);
    pthread_mutex_unlock(&w->lock);
    if (!*why || w->deciding || watch_failed(w))
        return;
    send_beat(w);
    if (w->rank && w->conns[0].fd >= 0) {
        conn_send(&w->conns[0], FRAME_FAIL, w->rank, why, strlen(why));
        w->deciding = true; /* rank 0 answers; this is for when it does not */
        snprintf(w->why, sizeof w->why, "%s", why);
        w->decide_at = watch_seconds() + 10 * w->beat;
    } else {
        decide(w, why);
    }
}

static void see_who_left(watch *w)
{
    if (w->rank || w->all_left)
        return;
    pthread_mutex_lock(&w->lock);
    bool all = w->leaving;
    pthread_mutex_unlock(&w->lock);
    for (int i = 1; i < w->size && all; i++)
        all = watch_left(w, i);
    if (!all)
        return;
    for (int i = 1; i < w->nconns; i++)
        conn_send(&w->conns[i], FRAME_LEFT, 0, NULL, 0);
    pthread_mutex_lock(&w->lock);
    w->all_left = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* ---- SIGTERM ---- */

static _Atomic int term_pipe = -1;
static struct sigaction term_before;

static void on_term(int sig)
{
    (void)sig;
    int fd = atomic_load(&term_pipe), code = errno;
    char c = 'T';
    if (fd < 0 || write(fd, &c, 1) < 0)
        _exit(128 + SIGTERM);
    errno = code;
}

static void take_term(watch *w)
{
    struct sigaction a = {.sa_handler = on_term};
    sigemptyset(&a.sa_mask);
    a.sa_flags = SA_RESTART;
    if (sigaction(SIGTERM, NULL, &term_before) || term_before.sa_handler != SIG_DFL)
        return;
    atomic_store(&term_pipe, w->wake[1]);
    sigaction(SIGTERM, &a, NULL);
}

static void give_term_back(void)
{
    if (atomic_exchange(&term_pipe, -1) >= 0)
        sigaction(SIGTERM, &term_before, NULL);
}

/* The report is out, or there is nothing to report: what SIGTERM means happens now. */
static void obey_term(watch *w)
{
    double now = watch_seconds();
    if (!w->term_at || !(watch_failed(w) || now - w->term_at > (w->deciding ? 0.8 : 0.3)))
        return;
    give_term_back();
    kill(getpid(), SIGTERM);
    w->term_at = 0;
}

static void enforce(watch *w)
{
    if (!watch_failed(w))
        return;
    double grace = 0.15 * w->timeout;
    grace = grace > 5 ? 5 : grace < 0.3 ? 0.3 : grace;
    pthread_mutex_lock(&w->lock);
    bool told = w->told;
    pthread_mutex_unlock(&w->lock);
    if (!told && watch_seconds() - w->failed_at > grace)
        _exit(1);
}

/* ---- the thread ---- */

static void wait_for_something(watch *w, struct pollfd *p)
{
    p[0] = (struct pollfd){.fd = w->wake[0], .events = POLLIN};
    for (int i = 0; i < w->nconns; i++)
        p[1 + i] = (struct pollfd){.fd = w->conns[i].fd,
                                   .events = (short)(POLLIN | (conn_busy(&w->conns[i]) ? POLLOUT : 0))};
    double left = w->next_beat - watch_seconds();
    if (left > 0)
        poll(p, (nfds_t)(1 + w->nconns), 1 + (int)(1000 * left));
    char c[64];
    ssize_t n;
    while ((n = read(w->wake[0], c, sizeof c)) > 0)
        if (memchr(c, 'T', (size_t)n) && !w->term_at)
            w->term_at = watch_seconds();
}

static bool stopping(watch *w)
{
    pthread_mutex_lock(&w->lock);
    bool stop = w->stop;
    pthread_mutex_unlock(&w->lock);
    return stop;
}

static void *watch_main(void *arg)
{
    watch *w = arg;
    struct pollfd *p = calloc((size_t)w->nconns + 1, sizeof *p);
    while (p && !stopping(w)) {
        wait_for_something(w, p);
        for (int i = 0; i < w->nconns; i++)
            conn_flush(&w->conns[i]), read_conn(w, i);
        pass_on_own_failure(w);
        if (watch_seconds() >= w->next_beat) {
            w->next_beat = watch_seconds() + w->beat;
            send_beat(w);
            if (!w->all_left && !watch_failed(w)) {
                look_for_silence(w);
                if (!w->rank)
                    compare_calls(w);
            }
        }
        see_who_left(w);
        if (w->deciding && !watch_failed(w) && watch_seconds() >= w->decide_at)
            decided(w);
        enforce(w);
        obey_term(w);
    }
    for (int i = 0; i < w->nconns; i++)
        conn_flush(&w->conns[i]);
    free(p);
    return NULL;
}

/* ---- life ---- */

eas_status watch_listen(bool local, int size, watch_address *out, int *listener)
{
    memset(out, 0, sizeof *out);
    const char *given = getenv("EAS_DIST_ADDRESS");
    eas_status st = local ? board_make(size, out) : EAS_OK;
    if (st)
        return st;
    if ((*listener = net_listen(local, out)) >= 0)
        return EAS_OK;
    board_unlink(out);
    out->port = 0;
    return base_fail(EAS_ERR_RUNTIME, "start-up failed: rank 0 cannot listen for the other ranks%s%s: %s",
                     given && *given ? " at EAS_DIST_ADDRESS=" : "", given ? given : "", strerror(errno));
}

static eas_status connect_all(watch *w, const watch_address *a, int listener)
{
    double until = watch_seconds() + 0.8 * w->timeout;
    if (w->rank) {
        int fd = net_connect(a, until);
        if (fd < 0)
            return base_fail(
                EAS_ERR_RUNTIME,
                "start-up failed: rank %d cannot reach rank 0 (port %d): is it alive, and does a firewall or a wrong EAS_DIST_ADDRESS stand between?",
                w->rank, a->port);
        conn_init(&w->conns[0], fd);
        conn_send(&w->conns[0], FRAME_HELLO, w->rank, a->token, sizeof a->token);
        return EAS_OK;
    }
    bool all = net_accept(listener, w->size, a->token, until, w->conns);
    close(listener);
    if (all)
        return EAS_OK;
    str s = {0};
    for (int i = 1; i < w->size; i++)
        if (w->conns[i].fd < 0)
            str_add(&s, "%s%d", s.len ? ", " : "", i);
    eas_status st =
        base_fail(EAS_ERR_RUNTIME,
                  "start-up failed: of %d ranks these have not connected within EAS_DIST_TIMEOUT=%g s: %s",
                  w->size, w->timeout, s.at ? s.at : "?");
    str_free(&s);
    return st;
}

static bool allocate(watch *w)
{
    w->nconns = w->rank ? 1 : w->size;
    w->conns = calloc((size_t)w->nconns, sizeof *w->conns);
    w->sent_signs = calloc((size_t)w->size, sizeof *w->sent_signs);
    w->dead = calloc((size_t)w->size, 1);
    for (int i = 0; w->conns && i < w->nconns; i++)
        w->conns[i].fd = -1;
    return w->conns && w->sent_signs && w->dead && pipe(w->wake) == 0;
}

eas_status watch_open(int rank, int size, const watch_address *a, int listener, double timeout, watch **out)
{
    watch *w = calloc(1, sizeof *w);
    if (!w)
        return base_fail_oom(sizeof *w);
    w->rank = rank, w->size = size, w->timeout = timeout;
    w->beat = timeout / 20 < 0.1 ? timeout / 20 : 0.1;
    w->wake[0] = w->wake[1] = -1;
    w->seen_at = watch_seconds();
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    eas_status st = allocate(w) ? EAS_OK
                                : base_fail(EAS_ERR_MEMORY,
                                            "no memory, or no pipe, for the connections to the other ranks");
    if (!st)
        st = board_open(&w->board, size, a);
    if (!st)
        st = connect_all(w, a, listener);
    if (!rank)
        board_unlink(a); /* all have mapped it */
    if (!st) {
        for (int i = 0; i < 2; i++)
            fcntl(w->wake[i], F_SETFL, O_NONBLOCK), fcntl(w->wake[i], F_SETFD, FD_CLOEXEC);
        sigset_t old;
        pool_block_signals(&old);
        if (pthread_create(&w->thread, NULL, watch_main, w))
            st = base_fail(EAS_ERR_MEMORY, "no thread could be started");
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (!st)
        take_term(w);
    if (st)
        watch_free(w);
    else
        *out = w;
    return st;
}

eas_status watch_leave(watch *w)
{
    pthread_mutex_lock(&w->lock);
    w->leaving = true;
    board_edit(&w->board, w->rank)->inside = 0;
    board_edited(&w->board, w->rank);
    nudge(w);
    while (!w->all_left && !watch_failed(w))
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
    return watch_failed(w) ? watch_status(w) : EAS_OK;
}

void watch_free(watch *w)
{
    if (w->thread) {
        give_term_back();
        pthread_mutex_lock(&w->lock);
        w->stop = true;
        pthread_mutex_unlock(&w->lock);
        nudge(w);
        pthread_join(w->thread, NULL);
    }
    for (int i = 0; w->conns && i < w->nconns; i++)
        conn_close(&w->conns[i]);
    for (int i = 0; i < 2; i++)
        if (w->wake[i] >= 0)
            close(w->wake[i]);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    board_close(&w->board);
    free(w->conns), free(w->sent_signs), free(w->dead);
    free(w);
}
