/* gguf.c: llama.cpp's files: typed metadata, then names, shapes and types of the tensors, then their data,
 * each at a multiple of an alignment. */
#include "io.h"

#include <stdio.h>

enum {
    GG_U8,
    GG_I8,
    GG_U16,
    GG_I16,
    GG_U32,
    GG_I32,
    GG_F32,
    GG_BOOL,
    GG_STRING,
    GG_ARRAY,
    GG_U64,
    GG_I64,
    GG_F64,
    GG_TYPES,
    DEEPEST = 8
};
static const uint8_t gg_size[GG_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

typedef struct reader {
    const uint8_t *at, *end, *begin;
    const char *path;
} reader;

static eas_status bad(const reader *r, const char *what)
{
    return base_fail(EAS_ERR_VALUE, "%s: %s at byte %zu of the GGUF header", r->path, what,
                     (size_t)(r->at - r->begin));
}
static size_t left(const reader *r) { return (size_t)(r->end - r->at); }

static eas_status get(reader *r, int bytes, uint64_t *v)
{
    if (left(r) < (size_t)bytes)
        return bad(r, "the file ends");
    *v = bytes == 8 ? io_u64(r->at) : io_u32(r->at);
    r->at += bytes;
    return EAS_OK;
}

static eas_status get_string(reader *r, arena *a, char **out)
{
    uint64_t n = 0;
    eas_status st = get(r, 8, &n);
    if (st)
        return st;
    if (n > left(r))
        return bad(r, "a string is longer than the file");
    if (memchr(r->at, 0, (size_t)n))
        return bad(r, "a name has a NUL in it");
    *out = arena_strndup(a, (const char *)r->at, (size_t)n);
    r->at += n;
    return *out ? EAS_OK : base_fail_oom((size_t)n);
}

static eas_status skip_value(reader *r, uint32_t type, int depth)
{
    uint64_t n = 0, inner = 0;
    eas_status st = EAS_OK;
    if (type >= GG_TYPES)
        return bad(r, "a value has an unknown type");
    if (gg_size[type]) {
        if (left(r) < gg_size[type])
            return bad(r, "the file ends");
        r->at += gg_size[type];
        return EAS_OK;
    }
    if (type == GG_STRING) {
        if ((st = get(r, 8, &n)))
            return st;
        if (n > left(r))
            return bad(r, "a string is longer than the file");
        r->at += n;
        return EAS_OK;
    }
    st = get(r, 4, &inner);
    st = st ? st : get(r, 8, &n);
    if (st)
        return st;
    if (inner >= GG_TYPES || depth == DEEPEST)
        return bad(r, "an array has an unknown type");
    if (n > left(r) / (gg_size[inner] ? gg_size[inner] : 8))
        return bad(r, "an array is longer than the file");
    if (gg_size[inner]) {
        r->at += n * gg_size[inner];
        return EAS_OK;
    }
    for (uint64_t i = 0; i < n && !st; i++)
        st = skip_value(r, (uint32_t)inner, depth + 1);
    return st;
}

static eas_status read_meta(reader *r, eas_weights *w, uint64_t *alignment)
{
    io_meta m = {0};
    char *key;
    uint64_t type = 0, a;
    eas_status st = get_string(r, &w->arena, &key);
    st = st ? st : get(r, 4, &type);
    if (st)
        return st;
    m.key = key;
    m.type = (uint32_t)type;
    m.value = r->at;
    if ((st = skip_value(r, m.type, 0)))
        return st;
    if (!strcmp(key, "general.alignment")) {
        a = type == GG_U32 ? io_u32(m.value) : 0;
        if (!a || a & (a - 1) || a > 1 << 20)
            return bad(r, "general.alignment is no power of two");
        *alignment = a;
    }
    return io_add_meta(w, &m);
}

/* Reads the entry of one tensor. GGUF lists sizes from the innermost dim outwards. */
static eas_status read_info(reader *r, eas_weights *w, uint32_t file, uint64_t *offset)
{
    io_entry e = {.file = file, .dtype = -1};
    char *name;
    uint64_t rank = 0, type = 0, d = 0;
    eas_status st = get_string(r, &w->arena, &name);
    st = st ? st : get(r, 4, &rank);
    if (st)
        return st;
    if (rank > EAS_MAX_RANK)
        return bad(r, "a tensor has too many dims");
    int64_t *shape = arena_alloc(&w->arena, sizeof *shape * EAS_MAX_RANK);
    if (!shape)
        return base_fail_oom(sizeof *shape);
    for (uint64_t i = 0; i < rank && !st; i++) {
        st = get(r, 8, &d);
        if (!st && d > INT64_MAX)
            st = bad(r, "a tensor is too large");
        shape[rank - 1 - i] = st ? 0 : (int64_t)d;
    }
    st = st ? st : get(r, 4, &type);
    st = st ? st : get(r, 8, offset);
    e.name = name;
    e.rank = (int)rank;
    e.shape = shape;
    st = st ? st : io_count(name, e.rank, shape, &e.count);
    if (st)
        return st;
    const ggml_kind *k = ggml_find((uint32_t)type);
    if (!k)
        return base_fail(EAS_ERR_VALUE, "%s: tensor '%s' has type %llu, which is not known", r->path, name,
                         (unsigned long long)type);
    if ((rank ? shape[rank - 1] : 1) % k->block)
        return base_fail(EAS_ERR_VALUE, "%s: rows of tensor '%s' are not whole blocks of %s", r->path, name,
                         k->name);
    e.stored = k->name;
    e.type = k->type;
    e.how = k->dtype >= 0 ? IO_PLAIN : IO_BLOCKS;
    e.dtype = k->dtype >= 0 ? k->dtype : k->decode ? EAS_F32 : -1;
    /* io_count keeps a factor of 16 free, and no block has more than 4 times its elements */
    e.len = (uint64_t)(e.count / k->block) * k->bytes;
    return io_add(w, &e);
}

static int by_place(const void *a, const void *b)
{
    const io_entry *x = *(const io_entry *const *)a, *y = *(const io_entry *const *)b;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : x->len != y->len ? (x->len < y->len ? -1 : 1) : 0;
}

static eas_status check_places(const reader *r, const eas_weights *w)
{
    uint32_t n = w->entries.len;
    const io_entry **order = malloc(sizeof *order * ((size_t)n + 1));
    eas_status st = order ? EAS_OK : base_fail_oom(sizeof *order * n);
    for (uint32_t i = 0; i < n && !st; i++)
        order[i] = &w->entries.at[i];
    if (!st)
        qsort(order, n, sizeof *order, by_place);
    for (uint32_t i = 1; i < n && !st; i++)
        if (order[i]->at < order[i - 1]->at + order[i - 1]->len)
            st = base_fail(EAS_ERR_VALUE, "%s: tensors '%s' and '%s' overlap", r->path, order[i - 1]->name,
                           order[i]->name);
    free(order);
    return st;
}

eas_status io_parse_gguf(eas_weights *w, uint32_t file, const char *path)
{
    const io_file *f = w->files.at[file];
    reader r = {f->at + 4, f->at + f->len, f->at, path};
    uint64_t version = 0, tensors = 0, metas = 0, alignment = 32, offset = 0;
    eas_status st = get(&r, 4, &version);
    if (!st && version != 2 && version != 3)
        st = base_fail(EAS_ERR_VALUE, "%s: GGUF version %llu: 2 and 3 can be read%s", path,
                       (unsigned long long)version, version >> 16 ? " (is it big-endian?)" : "");
    st = st ? st : get(&r, 8, &tensors);
    st = st ? st : get(&r, 8, &metas);
    for (uint64_t i = 0; !st && i < metas; i++)
        st = read_meta(&r, w, &alignment);
    for (uint64_t i = 0; !st && i < tensors; i++)
        if (!(st = read_info(&r, w, file, &offset)))
            w->entries.at[w->entries.len - 1].at = offset;
    if (st)
        return st;
    uint64_t begin = ((uint64_t)(r.at - r.begin) + alignment - 1) / alignment * alignment;
    for (uint32_t i = 0; i < w->entries.len; i++) {
        io_entry *e = &w->entries.at[i];
        if (e->at % alignment)
            return base_fail(EAS_ERR_VALUE, "%s: tensor '%s' is not at a multiple of %llu", path, e->name,
                             (unsigned long long)alignment);
        if (begin > f->len || e->at > f->len - begin || e->len > f->len - begin - e->at)
            return base_fail(EAS_ERR_VALUE, "%s: tensor '%s' goes beyond the end of the file", path, e->name);
        e->at += begin;
    }
    w->format = "gguf";
    return check_places(&r, w);
}

/* ---- metadata as JSON: it was checked when the file was opened ---- */
static const uint8_t *put_value(str *s, uint32_t type, const uint8_t *p)
{
    switch (type) {
    case GG_U8: str_add(s, "%u", p[0]); break;
    case GG_I8: str_add(s, "%d", (int8_t)p[0]); break;
    case GG_U16: str_add(s, "%u", io_u16(p)); break;
    case GG_I16: str_add(s, "%d", (int16_t)io_u16(p)); break;
    case GG_U32: str_add(s, "%u", io_u32(p)); break;
    case GG_I32: str_add(s, "%d", (int32_t)io_u32(p)); break;
    case GG_BOOL: str_add(s, p[0] ? "true" : "false"); break;
    case GG_U64: str_add(s, "%llu", (unsigned long long)io_u64(p)); break;
    case GG_I64: str_add(s, "%lld", (long long)io_u64(p)); break;
    case GG_F32:
    case GG_F64: {
        double d;
        if (type == GG_F32) {
            uint32_t u = io_u32(p);
            float f;
            memcpy(&f, &u, 4);
            d = f;
        } else {
            uint64_t u = io_u64(p);
            memcpy(&d, &u, 8);
        }
        if (d != d || d - d != 0)
            str_add(s, d != d ? "NaN" : d > 0 ? "Infinity" : "-Infinity");
        else
            str_add(s, "%.17g", d);
        break;
    }
    case GG_STRING: json_put_string(s, (const char *)p + 8, (size_t)io_u64(p)); return p + 8 + io_u64(p);
    case GG_ARRAY: {
        uint32_t inner = io_u32(p);
        uint64_t n = io_u64(p + 4);
        p += 12;
        str_put(s, "[", 1);
        for (uint64_t i = 0; i < n; i++) {
            if (i)
                str_put(s, ", ", 2);
            p = put_value(s, inner, p);
        }
        str_put(s, "]", 1);
        return p;
    }
    default: break;
    }
    return p + gg_size[type];
}

eas_status io_gguf_meta(const io_meta *m, char **out)
{
    str s = {0};
    put_value(&s, m->type, m->value);
    return str_take(&s, out);
}
