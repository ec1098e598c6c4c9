/* npy.c: NumPy's .npy: a magic string, a header that is a Python dict with three keys, and the elements. */
#include "io.h"

#include <stdio.h>

static const struct npy_dtype {
    const char *name;
    int8_t dtype;
} npy_dtypes[] = {
    {"b1", EAS_BOOL},
    {"i1", EAS_I8},
    {"i2", EAS_I16},
    {"i4", EAS_I32},
    {"i8", EAS_I64},
    {"u1", EAS_U8},
    {"u2", EAS_U16},
    /* NumPy knows no bfloat16 */
    {"u4", EAS_U32},
    {"u8", EAS_U64},
    {"f2", EAS_F16},
    {"f4", EAS_F32},
    {"f8", EAS_F64},
    {"V2", EAS_BF16},
};

typedef struct cursor {
    const char *at, *end, *name;
} cursor;

static eas_status bad(const cursor *c, const char *what)
{
    return base_fail(EAS_ERR_VALUE, "'%s': the npy header %s", c->name, what);
}

static char next(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t'))
        c->at++;
    return c->at < c->end ? *c->at : 0;
}
static bool took(cursor *c, char x) { return next(c) == x && x ? (c->at++, true) : false; }

static eas_status quoted(cursor *c, char *to, size_t room)
{
    char q = next(c);
    size_t n = 0;
    if (q != '\'' && q != '"')
        return bad(c, "lacks a string");
    for (c->at++; c->at < c->end && *c->at != q; c->at++)
        if (n + 1 < room)
            to[n++] = *c->at;
    to[n] = 0;
    return took(c, q) ? EAS_OK : bad(c, "has a string without an end");
}

static bool word(cursor *c, const char *w)
{
    size_t n = strlen(w);
    next(c);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, w, n))
        return false;
    c->at += n;
    return true;
}

static eas_status read_descr(cursor *c, npy_head *h)
{
    if (next(c) == '[') { /* fields */
        int depth = 0;
        do {
            depth += *c->at == '[' ? 1 : *c->at == ']' ? -1 : 0;
            c->at++;
        } while (depth && c->at < c->end);
        snprintf(h->descr, sizeof h->descr, "fields");
        return EAS_OK;
    }
    eas_status st = quoted(c, h->descr, sizeof h->descr);
    const char *d = h->descr;
    if (st || !*d)
        return st ? st : bad(c, "has an empty dtype");
    for (size_t i = 0; i < sizeof npy_dtypes / sizeof *npy_dtypes; i++)
        if (strchr("<>|=", d[0]) && !strcmp(d + 1, npy_dtypes[i].name))
            h->dtype = npy_dtypes[i].dtype;
    h->swap = d[0] == '>' && h->dtype >= 0 && eas_dtype_size((eas_dtype)h->dtype) > 1;
    return EAS_OK;
}

static eas_status read_shape(cursor *c, npy_head *h)
{
    if (!took(c, '('))
        return bad(c, "has no shape");
    while (!took(c, ')')) {
        int64_t v = 0;
        if (h->rank == EAS_MAX_RANK)
            return bad(c, "has too many dims");
        next(c);
        const char *first = c->at;
        for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
            if (v > (INT64_MAX - 9) / 10)
                return bad(c, "has a size that is too large");
            v = v * 10 + (*c->at - '0');
        }
        if (c->at == first)
            return bad(c, "has a size that is no number");
        h->shape[h->rank++] = v;
        if (!took(c, ',') && next(c) != ')')
            return bad(c, "has a bad shape");
    }
    return EAS_OK;
}

static eas_status read_dict(cursor *c, npy_head *h)
{
    unsigned seen = 0;
    if (!took(c, '{'))
        return bad(c, "is no dict");
    while (!took(c, '}')) {
        char key[32];
        eas_status st = quoted(c, key, sizeof key);
        if (!st && !took(c, ':'))
            st = bad(c, "lacks a ':'");
        if (st)
            return st;
        unsigned bit = !strcmp(key, "descr")         ? 1
                     : !strcmp(key, "fortran_order") ? 2
                     : !strcmp(key, "shape")         ? 4
                                                     : 0;
        if (!bit || seen & bit)
            return bad(c, bit ? "has a key twice" : "has a key that the format does not know");
        seen |= bit;
        if (bit == 1)
            st = read_descr(c, h);
        else if (bit == 4)
            st = read_shape(c, h);
        else if (word(c, "True"))
            h->fortran = true;
        else if (!word(c, "False"))
            st = bad(c, "has a fortran_order that is no bool");
        if (st)
            return st;
        if (!took(c, ',') && next(c) != '}')
            return bad(c, "lacks a ','");
    }
    return seen == 7 ? (next(c) ? bad(c, "goes on after its end") : EAS_OK) : bad(c, "lacks a key");
}

int npy_read(const uint8_t *p, size_t n, const char *name, npy_head *h)
{
    *h = (npy_head){.dtype = -1};
    cursor c = {.name = name};
    if (n < 12 || memcmp(p, "\x93NUMPY", 6))
        return bad(&c, "is missing");
    if (p[6] < 1 || p[6] > 3)
        return bad(&c, "has a version that is not known");
    size_t fixed = p[6] == 1 ? 10 : 12, len = p[6] == 1 ? io_u16(p + 8) : io_u32(p + 8);
    if (len > 1 << 20)
        return bad(&c, "is too long");
    h->size = fixed + len;
    if (h->size > n)
        return NPY_MORE;
    c.at = (const char *)p + fixed;
    c.end = c.at + len;
    return read_dict(&c, h);
}

/* NumPy puts the elements at a multiple of 64. */
void npy_write(str *s, eas_dtype dt, const char *type, int rank, const int64_t *shape)
{
    str d = {0};
    for (size_t i = 0; i < sizeof npy_dtypes / sizeof *npy_dtypes && !type; i++)
        if (npy_dtypes[i].dtype == (int)dt)
            type = npy_dtypes[i].name;
    str_add(&d, "{'descr': '%c%s', 'fortran_order': False, 'shape': (", eas_dtype_size(dt) == 1 ? '|' : '<',
            type);
    for (int i = 0; i < rank; i++)
        str_add(&d, i ? ", %lld" : "%lld", (long long)shape[i]);
    str_add(&d, rank == 1 ? ",), }" : "), }");
    size_t n = (10 + d.len + 1 + 63) / 64 * 64;
    str_put(s, "\x93NUMPY\1\0", 8);
    const char len[2] = {(char)((n - 10) & 255), (char)((n - 10) >> 8)};
    str_put(s, len, 2);
    str_put(s, d.at, d.len);
    for (size_t i = 10 + d.len; i + 1 < n; i++)
        str_put(s, " ", 1);
    str_put(s, "\n", 1);
    s->oom |= d.oom;
    str_free(&d);
}

eas_status io_parse_npy(eas_weights *w, uint32_t file, const char *path)
{
    const io_file *f = w->files.at[file];
    npy_head h;
    int r = npy_read(f->at, f->len, path, &h);
    if (r)
        return r == NPY_MORE ? base_fail(EAS_ERR_VALUE, "%s: ends in the middle of its header", path)
                             : (eas_status)r;
    int64_t *shape = arena_alloc(&w->arena, sizeof h.shape);
    io_entry e = {.name = "arr_0",
                  .stored = arena_strdup(&w->arena, h.descr),
                  .dtype = h.dtype,
                  .rank = h.rank,
                  .shape = shape,
                  .file = file,
                  .fortran = h.fortran,
                  .swap = h.swap,
                  .at = h.size,
                  .len = f->len - h.size};
    if (!shape || !e.stored)
        return base_fail_oom(sizeof h.shape);
    memcpy(shape, h.shape, sizeof h.shape);
    eas_status st = io_count(path, h.rank, shape, &e.count);
    if (!st && h.dtype >= 0 && e.len != (uint64_t)e.count * eas_dtype_size((eas_dtype)h.dtype))
        st = base_fail(EAS_ERR_VALUE, "%s: %lld elements of %s should follow the header, and %llu bytes do",
                       path, (long long)e.count, h.descr, (unsigned long long)e.len);
    w->format = "npy";
    return st ? st : io_add(w, &e);
}
