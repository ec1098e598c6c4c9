/* npz.c: zip archives of .npy files, stored or deflated, with zip64 where they are large. */
#include "io.h"

#include <stdio.h>

enum { STORED = 0, DEFLATED = 8, HEAD_ROOM = 1 << 12 };

typedef struct zip {
    const io_file *f;
    const char *path;
} zip;

static eas_status bad(const zip *z, const char *what)
{
    return base_fail(EAS_ERR_VALUE, "%s: the archive %s", z->path, what);
}

/* Where the central directory is, and how many entries it has. */
static eas_status find_directory(const zip *z, uint64_t *at, uint64_t *count)
{
    const uint8_t *p = z->f->at;
    size_t n = z->f->len, least = n > 22 + 65535 ? n - 22 - 65535 : 0, i = n - 22;
    if (n < 22)
        return bad(z, "is too short");
    while (memcmp(p + i, "PK\5\6", 4)) {
        if (i == least)
            return bad(z, "has no directory");
        i--;
    }
    *count = io_u16(p + i + 10);
    *at = io_u32(p + i + 16);
    if (i >= 20 && !memcmp(p + i - 20, "PK\6\7", 4)) {
        uint64_t q = io_u64(p + i - 20 + 8);
        if (q > n || n - q < 56 || memcmp(p + q, "PK\6\6", 4))
            return bad(z, "has a bad zip64 directory");
        *count = io_u64(p + q + 32);
        *at = io_u64(p + q + 48);
    }
    return *at > n         ? bad(z, "has its directory beyond its end")
         : *count > n / 46 ? bad(z, "says it has more entries than fit")
                           : EAS_OK;
}

typedef struct member {
    char *name;
    uint16_t method;
    uint32_t crc;
    uint64_t packed, size, local;
} member;

/* A size that is 2^32 - 1 is found in the zip64 field instead; the field has only such sizes, in this
 * order. */
static eas_status read_zip64(const zip *z, const uint8_t *x, size_t n, member *m)
{
    while (n >= 4) {
        size_t len = io_u16(x + 2);
        if (len > n - 4)
            return bad(z, "has a bad extra field");
        if (io_u16(x) == 1) {
            uint64_t *want[] = {&m->size, &m->packed, &m->local};
            const uint8_t *p = x + 4;
            for (int i = 0; i < 3; i++)
                if (*want[i] == UINT32_MAX) {
                    if ((size_t)(p - x - 4) + 8 > len)
                        return bad(z, "has a bad zip64 field");
                    *want[i] = io_u64(p);
                    p += 8;
                }
        }
        x += 4 + len;
        n -= 4 + len;
    }
    return EAS_OK;
}

static eas_status read_member(const zip *z, uint64_t *at, arena *a, member *m)
{
    const uint8_t *p = z->f->at + *at;
    uint64_t left = z->f->len - *at;
    if (left < 46 || memcmp(p, "PK\1\2", 4))
        return bad(z, "has a directory that is cut off");
    size_t name = io_u16(p + 28), extra = io_u16(p + 30), comment = io_u16(p + 32);
    if (left - 46 < name + extra + comment)
        return bad(z, "has a directory that is cut off");
    *m = (member){arena_strndup(a, (const char *)p + 46, name),
                  io_u16(p + 10),
                  io_u32(p + 16),
                  io_u32(p + 20),
                  io_u32(p + 24),
                  io_u32(p + 42)};
    *at += 46 + name + extra + comment;
    if (!m->name)
        return base_fail_oom(name);
    if (strlen(m->name) != name)
        return bad(z, "has a name with a NUL in it");
    if (io_u16(p + 8) & 1)
        return base_fail(EAS_ERR_VALUE, "%s: '%s' is encrypted", z->path, m->name);
    if (m->method != STORED && m->method != DEFLATED)
        return base_fail(EAS_ERR_VALUE,
                         "%s: '%s' is compressed by method %u; only stored and deflated entries can be read",
                         z->path, m->name, m->method);
    return read_zip64(z, p + 46 + name, extra, m);
}

/* Where the data of m begins. */
static eas_status find_data(const zip *z, const member *m, uint64_t *at)
{
    const uint8_t *p = z->f->at;
    uint64_t n = z->f->len;
    if (m->local > n || n - m->local < 30 || memcmp(p + m->local, "PK\3\4", 4))
        return base_fail(EAS_ERR_VALUE, "%s: '%s' is not where the directory says", z->path, m->name);
    *at = m->local + 30 + io_u16(p + m->local + 26) + io_u16(p + m->local + 28);
    if (*at > n || m->packed > n - *at)
        return base_fail(EAS_ERR_VALUE, "%s: '%s' goes beyond the end of the file", z->path, m->name);
    if (m->method == STORED && m->packed != m->size)
        return base_fail(EAS_ERR_VALUE, "%s: '%s' is stored, with two sizes", z->path, m->name);
    return EAS_OK;
}

static eas_status read_head(const zip *z, const member *m, uint64_t at, npy_head *h)
{
    if (m->method == STORED) {
        int r = npy_read(z->f->at + at, (size_t)m->size, m->name, h);
        return r == NPY_MORE ? base_fail(EAS_ERR_VALUE, "%s: '%s' ends in its header", z->path, m->name)
                             : (eas_status)r;
    }
    size_t room = HEAD_ROOM, made;
    for (;;) {
        size_t want = room < m->size ? room : (size_t)m->size;
        uint8_t *p = malloc(want + 1);
        if (!p)
            return base_fail_oom(want);
        int r = io_inflate(z->f->at + at, (size_t)m->packed, p, want, &made) ? npy_read(p, made, m->name, h)
                                                                             : -1000;
        free(p);
        if (r == -1000)
            return base_fail(EAS_ERR_VALUE, "%s: '%s' has a malformed deflate stream", z->path, m->name);
        if (r != NPY_MORE)
            return (eas_status)r;
        if (made < want || want == m->size)
            return base_fail(EAS_ERR_VALUE, "%s: '%s' ends in its header", z->path, m->name);
        room = h->size;
    }
}

static eas_status add_member(eas_weights *w, uint32_t file, const zip *z, member *m)
{
    npy_head h;
    uint64_t at = 0;
    size_t n = strlen(m->name);
    if (n < 4 || strcmp(m->name + n - 4, ".npy"))
        return base_fail(EAS_ERR_VALUE, "%s: '%s' is no .npy file: the archive is no .npz", z->path, m->name);
    eas_status st = find_data(z, m, &at);
    st = st ? st : read_head(z, m, at, &h);
    if (st)
        return st;
    int64_t *shape = arena_alloc(&w->arena, sizeof h.shape);
    io_entry e = {.stored = arena_strdup(&w->arena, h.descr),
                  .dtype = h.dtype,
                  .rank = h.rank,
                  .shape = shape,
                  .file = file,
                  .crc = m->crc,
                  .check = true,
                  .fortran = h.fortran,
                  .swap = h.swap,
                  .head = h.size,
                  .how = m->method == STORED ? IO_PLAIN : IO_DEFLATED};
    if (!shape || !e.stored)
        return base_fail_oom(sizeof h.shape);
    memcpy(shape, h.shape, sizeof h.shape);
    m->name[n - 4] = 0;
    e.name = m->name;
    e.at = e.how == IO_PLAIN ? at + h.size : at;
    e.len = e.how == IO_PLAIN ? m->size - h.size : m->packed;
    if ((st = io_count(e.name, h.rank, shape, &e.count)))
        return st;
    if (h.dtype >= 0 && m->size - h.size != (uint64_t)e.count * eas_dtype_size((eas_dtype)h.dtype))
        return base_fail(EAS_ERR_VALUE, "%s: '%s' has %llu bytes, which its shape does not give", z->path,
                         e.name, (unsigned long long)(m->size - h.size));
    /* A byte of a deflate stream gives at most 1032 bytes: an entry that claims more is malformed, and would
     * make us allocate memory for nothing. */
    if (e.how == IO_DEFLATED && m->size / 1100 > m->packed)
        return base_fail(EAS_ERR_VALUE, "%s: '%s' says it has %llu bytes in %llu deflated ones", z->path,
                         e.name, (unsigned long long)m->size, (unsigned long long)m->packed);
    return io_add(w, &e);
}

eas_status io_parse_npz(eas_weights *w, uint32_t file, const char *path)
{
    zip z = {w->files.at[file], path};
    uint64_t at = 0, count = 0;
    eas_status st = find_directory(&z, &at, &count);
    for (uint64_t i = 0; i < count && !st; i++) {
        member m;
        st = read_member(&z, &at, &w->arena, &m);
        st = st ? st : add_member(w, file, &z, &m);
    }
    w->format = "npz";
    return st;
}
