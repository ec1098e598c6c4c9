/* watch_board.c: what each rank does, a row each. Where all ranks are on one machine the rows lie in a file
 * that all of them map: then a rank's last operation can be read after it was killed. Otherwise each rank has
 * its own copy, and states come in frames. The file has the mailboxes (comm_mail.c) as well, if there is
 * memory for them: its length says so to all ranks.
 *
 * A row is written by one process at a time and read by all without a lock: its version is odd while it is
 * written, and a reader that sees it change reads again.
 */
#include "comm_mail.h"
#include "watch_net.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct watch_row {
    _Alignas(64) _Atomic uint32_t version;
    watch_state s;
};

/* Of the rows, up to a page. */
static size_t rows_bytes(int size) { return (sizeof(watch_row) * (size_t)size + 4095) / 4096 * 4096; }

/* Memory that cannot be had is found here, not when a message is written. EAS_DIST_MAIL=0: no mailboxes. */
static bool make_room(int fd, int size)
{
    const char *e = getenv("EAS_DIST_MAIL");
    size_t rows = rows_bytes(size), mail = e && !strcmp(e, "0") ? 0 : mail_bytes(size);
    if (mail && posix_fallocate(fd, 0, (off_t)(rows + mail)) == 0)
        return true;
    return ftruncate(fd, (off_t)rows) == 0;
}

eas_status board_make(int size, watch_address *a)
{
    const char *folder = access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm";
    snprintf(a->board, sizeof a->board, "%s/eas-dist-XXXXXX", folder);
    int fd = mkstemp(a->board);
    bool good = fd >= 0 && make_room(fd, size);
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
    size_t rows = rows_bytes(size);
    struct stat file = {0};
    b->size = size, b->shared = *a->board != 0, b->bytes = rows;
    int fd = b->shared ? open(a->board, O_RDWR | O_CLOEXEC) : -1;
    if (fd >= 0 && fstat(fd, &file) == 0 && (size_t)file.st_size > rows)
        b->bytes = (size_t)file.st_size;
    void *p = b->shared && fd < 0 ? MAP_FAILED
                                  : mmap(NULL, b->bytes, PROT_READ | PROT_WRITE,
                                         b->shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd, 0);
    int code = errno;
    if (fd >= 0)
        close(fd);
    if (p == MAP_FAILED)
        return base_fail(EAS_ERR_IO, "start-up failed: %s cannot be mapped: %s",
                         b->shared ? a->board : "memory", strerror(code));
    b->rows = p;
    b->mail = b->bytes > rows ? (char *)p + rows : NULL;
    return EAS_OK;
}

void board_close(watch_board *b)
{
    if (b->rows)
        munmap(b->rows, b->bytes);
    b->rows = NULL, b->mail = NULL;
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
