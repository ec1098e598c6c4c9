/* file.c: files, mapped to be read and written so that readers see the old one or the new one. */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static eas_status failed(const char *what, const char *path)
{
    return base_fail(EAS_ERR_IO, "%s: %s: %s", path, what, strerror(errno));
}

static eas_status file_new(io_file **out)
{
    io_file *f = calloc(1, sizeof *f);
    if (!f)
        return base_fail_oom(sizeof *f);
    atomic_init(&f->refs, 1);
    *out = f;
    return EAS_OK;
}

/* The mapping is private and writable: a write to a tensor over it goes to a copy of the page, never to the
 * file. */
static eas_status map(io_file *f, int fd, const char *path)
{
    struct stat s;
    if (fstat(fd, &s))
        return failed("cannot be read", path);
    if (!S_ISREG(s.st_mode))
        return base_fail(EAS_ERR_IO, "%s: is no regular file", path);
    if ((uint64_t)s.st_size > SIZE_MAX / 2)
        return base_fail(EAS_ERR_IO, "%s: is larger than the address space", path);
    f->len = (size_t)s.st_size;
    if (!f->len)
        return EAS_OK;
    void *p = mmap(NULL, f->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED)
        return failed("cannot be mapped", path);
    f->at = p;
    f->mapped = true;
    return EAS_OK;
}

eas_status io_file_open(const char *path, io_file **out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return failed("cannot be opened", path);
    eas_status st = file_new(out);
    if (!st && (st = map(*out, fd, path)))
        io_file_release(*out);
    close(fd);
    return st;
}

eas_status io_file_copy(const void *data, size_t n, io_file **out)
{
    eas_status st = file_new(out);
    if (st)
        return st;
    if (!((*out)->at = aligned_alloc(64, (n + 64) / 64 * 64))) {
        io_file_release(*out);
        return base_fail_oom(n);
    }
    if (n)
        memcpy((*out)->at, data, n);
    (*out)->len = n;
    return EAS_OK;
}

io_file *io_file_retain(io_file *f)
{
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

void io_file_release(void *p)
{
    io_file *f = p;
    if (atomic_fetch_sub_explicit(&f->refs, 1, memory_order_acq_rel) != 1)
        return;
    if (f->mapped)
        munmap(f->at, f->len);
    else
        free(f->at);
    free(f);
}

/* ---- writing ---- */
enum { ROOM = 1 << 16 };

void io_writer_begin(io_writer *w, const char *path)
{
    static _Atomic uint32_t number;
    str s = {0};
    *w = (io_writer){.fd = -1, .path = strdup(path), .buf = malloc(ROOM)};
    str_add(&s, "%s.%ld-%u.tmp", path, (long)getpid(), (unsigned)atomic_fetch_add(&number, 1));
    if ((w->st = str_take(&s, &w->temporary)))
        return;
    if (!w->path || !w->buf)
        w->st = base_fail_oom(ROOM);
    else if ((w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0)
        w->st = failed("cannot be written", path);
}

static void put(io_writer *w, const uint8_t *p, size_t n)
{
    while (n && !w->st) {
        ssize_t k = write(w->fd, p, n < (1 << 30) ? n : 1 << 30);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            w->st = failed("cannot be written", w->path);
        else {
            p += k;
            n -= (size_t)k;
        }
    }
}

static void flush(io_writer *w)
{
    put(w, w->buf, w->used);
    w->used = 0;
}

void io_write(io_writer *w, const void *data, size_t n)
{
    if (w->st || !n)
        return;
    w->at += n;
    if (w->used + n > ROOM)
        flush(w);
    if (n > ROOM)
        put(w, data, n);
    else {
        memcpy(w->buf + w->used, data, n);
        w->used += n;
    }
}

void io_write_zeros(io_writer *w, size_t n)
{
    static const uint8_t zeros[64];
    for (; n && !w->st; n -= n < 64 ? n : 64)
        io_write(w, zeros, n < 64 ? n : 64);
}

/* The new name is on disk only once its folder is synced. Some file systems cannot sync folders, and need
 * not. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

eas_status io_writer_end(io_writer *w, eas_status st)
{
    if (!st)
        flush(w);
    st = st ? st : w->st;
    if (!st && fsync(w->fd))
        st = failed("cannot be written", w->path);
    if (w->fd >= 0 && close(w->fd) && !st)
        st = failed("cannot be written", w->path);
    if (!st && rename(w->temporary, w->path))
        st = failed("cannot be replaced", w->path);
    if (!st)
        sync_folder(w->path);
    else if (w->fd >= 0)
        unlink(w->temporary);
    free(w->path);
    free(w->temporary);
    free(w->buf);
    return st;
}
