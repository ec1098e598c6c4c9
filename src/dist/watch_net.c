/* watch_net.c: the sockets of the side channel: frames with queues on both sides, so that a rank that has
 * stopped reading never stops the others. */
#include "watch_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
enum { QUEUE = 4 << 20 }; /* bytes: states beyond that are dropped, since newer ones follow */

double watch_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- connections ---- */

static void make_ready(int fd)
{
    int on = 1;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void conn_init(conn *c, int fd)
{
    *c = (conn){.fd = fd, .heard = watch_seconds()};
    if (fd >= 0)
        make_ready(fd);
}

void conn_close(conn *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->in), free(c->out);
    *c = (conn){.fd = -1};
}

bool conn_busy(const conn *c) { return c->fd >= 0 && c->out_len; }

static bool grow(char **at, size_t *cap, size_t need)
{
    if (need <= *cap)
        return true;
    size_t n = *cap ? *cap : 4096;
    while (n < need)
        n *= 2;
    char *p = realloc(*at, n);
    if (!p)
        return false;
    *at = p, *cap = n;
    return true;
}

void conn_flush(conn *c)
{
    size_t sent = 0;
    while (c->fd >= 0 && sent < c->out_len) {
        ssize_t n = send(c->fd, c->out + sent, c->out_len - sent, MSG_NOSIGNAL);
        if (n <= 0)
            break; /* a broken connection is found by reading it */
        sent += (size_t)n;
    }
    if (sent) {
        memmove(c->out, c->out + sent, c->out_len - sent);
        c->out_len -= sent;
    }
}

void conn_send(conn *c, frame_kind kind, int rank, const void *payload, size_t n)
{
    frame f = {.kind = kind, .rank = (uint32_t)rank, .bytes = (uint32_t)n};
    if (c->fd < 0 || (kind == FRAME_STATE && c->out_len > QUEUE) ||
        !grow(&c->out, &c->out_cap, c->out_len + sizeof f + n))
        return;
    memcpy(c->out + c->out_len, &f, sizeof f);
    if (n)
        memcpy(c->out + c->out_len + sizeof f, payload, n);
    c->out_len += sizeof f + n;
    conn_flush(c);
}

bool conn_read(conn *c)
{
    for (;;) {
        if (!grow(&c->in, &c->in_cap, c->in_len + 4096))
            return true; /* no memory now: later */
        ssize_t n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
        if (!n)
            return false;
        c->in_len += (size_t)n;
        c->heard = watch_seconds();
    }
}

bool conn_next(conn *c, size_t *at, frame *out, const char **payload)
{
    if (c->in_len - *at < sizeof *out)
        return false;
    memcpy(out, c->in + *at, sizeof *out);
    if (c->in_len - *at - sizeof *out < out->bytes)
        return false;
    *payload = c->in + *at + sizeof *out;
    *at += sizeof *out + out->bytes;
    return true;
}

void conn_taken(conn *c, size_t at)
{
    memmove(c->in, c->in + at, c->in_len - at);
    c->in_len -= at;
}

/* ---- meeting at the start ---- */

static void add_address(watch_address *a, uint32_t ip)
{
    if (a->n < WATCH_ADDRESSES)
        a->at[a->n++] = ip;
}

/* EAS_DIST_ADDRESS, the loopback where all ranks are on one machine, or every address of this machine. */
static bool own_addresses(bool local, watch_address *a)
{
    const char *given = getenv("EAS_DIST_ADDRESS");
    struct in_addr one;
    if (given && *given) {
        if (inet_pton(AF_INET, given, &one) != 1)
            return false;
        add_address(a, one.s_addr);
        return true;
    }
    struct ifaddrs *all = NULL;
    if (!local && getifaddrs(&all) == 0)
        for (struct ifaddrs *i = all; i; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) &&
                !(i->ifa_flags & IFF_LOOPBACK))
                add_address(a, ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr);
    if (all)
        freeifaddrs(all);
    if (!a->n)
        add_address(a, htonl(INADDR_LOOPBACK));
    return true;
}

int net_listen(bool local, watch_address *out)
{
    if (!own_addresses(local, out)) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0), random = open("/dev/urandom", O_RDONLY);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = out->n == 1 ? out->at[0] : htonl(INADDR_ANY)};
    socklen_t n = sizeof at;
    bool good = fd >= 0 && random >= 0 &&
                read(random, out->token, sizeof out->token) == (ssize_t)sizeof out->token &&
                bind(fd, (struct sockaddr *)(void *)&at, sizeof at) == 0 && listen(fd, 4096) == 0 &&
                getsockname(fd, (struct sockaddr *)(void *)&at, &n) == 0;
    int code = errno;
    if (random >= 0)
        close(random);
    if (good) {
        make_ready(fd);
        out->port = ntohs(at.sin_port);
        return fd;
    }
    if (fd >= 0)
        close(fd);
    errno = code;
    return -1;
}

static int try_address(uint32_t ip, uint16_t port, double until)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0)
        return -1;
    make_ready(fd);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = ip};
    int code = connect(fd, (struct sockaddr *)(void *)&at, sizeof at) ? errno : 0;
    if (code == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        double left = until - watch_seconds();
        socklen_t n = sizeof code;
        if (poll(&p, 1,
                 left > 2   ? 2000
                 : left > 0 ? (int)(1000 * left)
                            : 0) != 1 ||
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &n))
            code = ETIMEDOUT;
    }
    if (!code)
        return fd;
    close(fd);
    return -1;
}

int net_connect(const watch_address *a, double until)
{
    do {
        for (int i = 0; i < a->n; i++) {
            int fd = try_address(a->at[i], a->port, until);
            if (fd >= 0)
                return fd;
        }
        usleep(20000);
    } while (watch_seconds() < until);
    return -1;
}

/* Reads until a whole greeting is there; -1: not one of us, or not in time. */
static int greeted(conn *c, int size, const uint8_t token[16], double until)
{
    while (watch_seconds() < until) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        poll(&p, 1, 50);
        bool open = conn_read(c);
        size_t at = 0;
        frame f;
        const char *payload;
        if (c->in_len >= sizeof f && conn_next(c, &at, &f, &payload)) {
            bool known = f.kind == FRAME_HELLO && f.bytes == 16 && !memcmp(payload, token, 16) &&
                         f.rank > 0 && f.rank < (uint32_t)size;
            conn_taken(c, at);
            return known ? (int)f.rank : -1;
        }
        if (!open || c->in_len > 64)
            return -1;
    }
    return -1;
}

bool net_accept(int listener, int size, const uint8_t token[16], double until, conn *conns)
{
    int missing = size - 1;
    for (int i = 0; i < size; i++)
        conns[i] = (conn){.fd = -1};
    while (missing && watch_seconds() < until) {
        struct pollfd p = {.fd = listener, .events = POLLIN};
        poll(&p, 1, 50);
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        conn c;
        conn_init(&c, fd);
        double soon = watch_seconds() + 2;
        int rank = greeted(&c, size, token, soon < until ? soon : until);
        if (rank < 0 || conns[rank].fd >= 0) {
            conn_close(&c);
            continue;
        }
        conns[rank] = c;
        missing--;
    }
    return !missing;
}
