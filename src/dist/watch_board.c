/* watch_board.c: what each rank does, a row each. Where all ranks are on one machine the rows lie in a file
 * that all of them map: then a rank's last operation can be read after it was killed. Otherwise each rank has
 * its own copy, and states come in frames.
 *
 * A row is written by one process at a time and read by all without a lock: its version is odd while it is
 * written, and a reader that sees it change reads again.
 */
#include "watch_net.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

struct watch_row {
    _Alignas(64) _Atomic uint32_t version;
    watch_state s;
};

eas_status board_make(int size, watch_address *a)
{
    const char *folder = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(a->board, sizeof a->board, "%s/eas-dist-XXXXXX", folder);
    int fd = mkstemp(a->board);
    bool good = fd >= 0 && ftruncate(fd, (off_t)sizeof(watch_row) * size) == 0;
    int code = errno;
    if (fd >= 0)
        close(fd);
    if (good)
        return EAS_OK;
    if (fd >= 0)
        unlink(a->board);
    *a->board = 0;
    return base_fail(EAS_ERR_IO, "start-up failed: no file can be made in %s: %s", folder, strerror(code));
}

void board_unlink(const watch_address *a)
{
    if (*a->board)
        unlink(a->board);
}

eas_status board_open(watch_board *b, int size, const watch_address *a)
{
    size_t bytes = sizeof(watch_row) * (size_t)size;
    b->size = size, b->shared = *a->board != 0;
    int fd = b->shared ? open(a->board, O_RDWR | O_CLOEXEC) : -1;
    void *p = b->shared && fd < 0 ? MAP_FAILED
                                  : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                         b->shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    int code = errno;
    if (fd >= 0)
        close(fd);
    if (p == MAP_FAILED)
        return base_fail(EAS_ERR_IO, "start-up failed: %s cannot be mapped: %s",
                         b->shared ? a->board : "memory", strerror(code));
    b->rows = p;
    return EAS_OK;
}

void board_close(watch_board *b)
{
    if (b->rows)
        munmap(b->rows, sizeof(watch_row) * (size_t)b->size);
    b->rows = NULL;
}

watch_state *board_edit(watch_board *b, int rank)
{
    watch_row *r = &b->rows[rank];
    atomic_store_explicit(&r->version, atomic_load_explicit(&r->version, memory_order_relaxed) | 1,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return &r->s;
}

void board_edited(watch_board *b, int rank)
{
    watch_row *r = &b->rows[rank];
    atomic_store_explicit(&r->version, atomic_load_explicit(&r->version, memory_order_relaxed) + 1,
                          memory_order_release);
}

void board_set_inside(watch_board *b, int rank, bool inside)
{
    __atomic_store_n(&b->rows[rank].s.inside, (uint8_t)inside, __ATOMIC_RELAXED);
}

bool board_read(const watch_board *b, int rank, watch_state *out)
{
    watch_row *r = &b->rows[rank];
    for (int tries = 0; tries < 1000; tries++) {
        uint32_t before = atomic_load_explicit(&r->version, memory_order_acquire);
        memcpy(out, &r->s, sizeof *out);
        atomic_thread_fence(memory_order_acquire);
        if (!(before & 1) && atomic_load_explicit(&r->version, memory_order_relaxed) == before)
            return true;
        base_relax();
    }
    out->last.site[COMM_SITE - 1] = 0;
    if (out->last.rank > COMM_MAX_DIMS)
        out->last.rank = -1;
    return false;
}
