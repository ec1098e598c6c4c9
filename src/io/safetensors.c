/* safetensors.c: reading. Eight bytes with the length of a header in JSON, the header, then the data of all
 * tensors, one after the other.
 *
 * As the format asks, the data may have no holes and no overlaps, and nothing may follow it: a file that two
 * programs read in two ways is refused.
 */
#include "io.h"

#include <stdio.h>

#define MOST_HEADER 100000000u

/* Every dtype of the format: its bits, and ours (-1: none, so the file opens but that tensor cannot be read).
 */
static const struct st_dtype {
    const char *name;
    uint8_t bits;
    int8_t dtype;
} st_dtypes[] = {
    {"BOOL", 8, EAS_BOOL},  {"U8", 8, EAS_U8},      {"I8", 8, EAS_I8},      {"I16", 16, EAS_I16},
    {"U16", 16, EAS_U16},   {"F16", 16, EAS_F16},   {"BF16", 16, EAS_BF16}, {"I32", 32, EAS_I32},
    {"U32", 32, EAS_U32},   {"F32", 32, EAS_F32},   {"F64", 64, EAS_F64},   {"I64", 64, EAS_I64},
    {"U64", 64, EAS_U64},   {"F8_E4M3", 8, -1},     {"F8_E5M2", 8, -1},     {"F8_E8M0", 8, -1},
    {"F4", 4, -1},          {"F6_E2M3", 6, -1},     {"F6_E3M2", 6, -1},     {"C64", 64, -1},
    {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1},
};

static const struct st_dtype *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof st_dtypes / sizeof *st_dtypes; i++)
        if (!strcmp(st_dtypes[i].name, name))
            return &st_dtypes[i];
    return NULL;
}

static eas_status read_shape(json *j, arena *a, io_entry *e)
{
    int64_t shape[EAS_MAX_RANK];
    uint64_t d;
    eas_status st = json_expect(j, '[');
    if (st || json_take(j, ']'))
        return st;
    do {
        if (e->rank == EAS_MAX_RANK)
            return json_fail(j, "tensor '%s' has more than %d dims", e->name, EAS_MAX_RANK);
        if ((st = json_uint(j, &d)))
            return st;
        if (d > INT64_MAX)
            return json_fail(j, "tensor '%s' has a size that is too large", e->name);
        shape[e->rank++] = (int64_t)d;
    } while (json_take(j, ','));
    int64_t *own = arena_alloc(a, sizeof shape);
    if (!own)
        return base_fail_oom(sizeof shape);
    memcpy(own, shape, sizeof shape);
    e->shape = own;
    return json_expect(j, ']');
}

static eas_status read_offsets(json *j, uint64_t *from, uint64_t *to)
{
    eas_status st = json_expect(j, '[');
    st = st ? st : json_uint(j, from);
    st = st ? st : json_expect(j, ',');
    st = st ? st : json_uint(j, to);
    return st ? st : json_expect(j, ']');
}

enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4 };

static eas_status read_field(json *j, arena *a, io_entry *e, unsigned *seen, uint64_t *from, uint64_t *to)
{
    char *key, *dtype;
    eas_status st = json_string(j, a, &key);
    st = st ? st : json_expect(j, ':');
    if (st)
        return st;
    unsigned bit = !strcmp(key, "dtype")        ? HAS_DTYPE
                 : !strcmp(key, "shape")        ? HAS_SHAPE
                 : !strcmp(key, "data_offsets") ? HAS_OFFSETS
                                                : 0;
    if (bit & *seen)
        return json_fail(j, "tensor '%s' has two of \"%s\"", e->name, key);
    *seen |= bit;
    if (bit == HAS_SHAPE)
        return read_shape(j, a, e);
    if (bit == HAS_OFFSETS)
        return read_offsets(j, from, to);
    if (bit == HAS_DTYPE) {
        st = json_string(j, a, &dtype);
        e->stored = dtype;
        return st;
    }
    return json_fail(j, "tensor '%s' has \"%s\", which the format does not know", e->name, key);
}

/* Bytes that the shape and dtype of e take. */
static eas_status size_of(const json *j, io_entry *e, uint64_t *bytes)
{
    const struct st_dtype *d = find_dtype(e->stored);
    if (!d)
        return json_fail(j, "tensor '%s' has dtype \"%s\", which the format does not know", e->name,
                         e->stored);
    e->dtype = d->dtype;
    eas_status st = io_count(e->name, e->rank, e->shape, &e->count);
    if (st)
        return st;
    if ((uint64_t)e->count > UINT64_MAX / 64)
        return json_fail(j, "tensor '%s' is too large", e->name);
    if ((uint64_t)e->count * d->bits % 8)
        return json_fail(j, "tensor '%s' does not fill its last byte", e->name);
    *bytes = (uint64_t)e->count * d->bits / 8;
    return EAS_OK;
}

static eas_status read_tensor(json *j, eas_weights *w, char *name, uint32_t file, uint64_t begin,
                              uint64_t room)
{
    io_entry e = {.name = name, .file = file, .dtype = -1};
    unsigned seen = 0;
    uint64_t from = 0, to = 0, bytes = 0;
    eas_status st = json_expect(j, '{');
    if (!st && !json_take(j, '}')) {
        do
            st = read_field(j, &w->arena, &e, &seen, &from, &to);
        while (!st && json_take(j, ','));
        st = st ? st : json_expect(j, '}');
    }
    if (st)
        return st;
    if (seen != (HAS_DTYPE | HAS_SHAPE | HAS_OFFSETS))
        return json_fail(j, "tensor '%s' lacks \"%s\"", name,
                         !(seen & HAS_DTYPE)   ? "dtype"
                         : !(seen & HAS_SHAPE) ? "shape"
                                               : "data_offsets");
    if ((st = size_of(j, &e, &bytes)))
        return st;
    if (from > to || to > room)
        return json_fail(j, "tensor '%s' lies at %llu to %llu of %llu bytes", name, (unsigned long long)from,
                         (unsigned long long)to, (unsigned long long)room);
    if (to - from != bytes)
        return json_fail(j, "tensor '%s' takes %llu bytes by its shape and has %llu", name,
                         (unsigned long long)bytes, (unsigned long long)(to - from));
    e.at = begin + from;
    e.len = bytes;
    return io_add(w, &e);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const io_meta *)a)->key, ((const io_meta *)b)->key);
}

/* Sorts the keys, to find those that are there twice. */
static eas_status check_keys(const json *j, io_meta *m, uint32_t n)
{
    qsort(m, n, sizeof *m, by_key);
    for (uint32_t i = 1; i < n; i++)
        if (!strcmp(m[i].key, m[i - 1].key))
            return json_fail(j, "metadata \"%s\" is there twice", m[i].key);
    return EAS_OK;
}

static eas_status read_metadata(json *j, eas_weights *w)
{
    eas_status st = json_expect(j, '{');
    if (st || json_take(j, '}'))
        return st;
    uint32_t first = w->metas.len;
    do {
        char *key, *text;
        st = json_string(j, &w->arena, &key);
        st = st ? st : json_expect(j, ':');
        if (!st && json_peek(j) != '"')
            st = json_fail(j, "metadata \"%s\" is no string", key);
        st = st ? st : json_string(j, &w->arena, &text);
        st = st ? st : io_add_meta(w, &(io_meta){.key = key, .text = text});
    } while (!st && json_take(j, ','));
    st = st ? st : json_expect(j, '}');
    return st ? st : check_keys(j, w->metas.at + first, w->metas.len - first);
}

static int by_place(const void *a, const void *b)
{
    const io_entry *x = *(const io_entry *const *)a, *y = *(const io_entry *const *)b;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : x->len != y->len ? (x->len < y->len ? -1 : 1) : 0;
}

/* Checks that the entries from `first` on cover bytes begin to end without holes and overlaps. */
static eas_status check_cover(const json *j, const eas_weights *w, uint32_t first, uint64_t begin,
                              uint64_t end)
{
    uint32_t n = w->entries.len - first;
    const io_entry **order = malloc(sizeof *order * ((size_t)n + 1)), *e = NULL;
    if (!order)
        return base_fail_oom(sizeof *order * n);
    for (uint32_t i = 0; i < n; i++)
        order[i] = &w->entries.at[first + i];
    qsort(order, n, sizeof *order, by_place);
    uint64_t at = begin;
    eas_status st = EAS_OK;
    for (uint32_t i = 0; i < n && !st; at = e->at + e->len, i++) {
        e = order[i];
        if (e->at != at)
            st = base_fail(EAS_ERR_VALUE, "%s: tensor '%s' %s", j->what, e->name,
                           e->at < at ? "overlaps another one" : "is not where the one before it ends");
    }
    free(order);
    if (!st && at != end)
        st = base_fail(EAS_ERR_VALUE, "%s: the tensors end at byte %llu, the file at %llu", j->what,
                       (unsigned long long)at, (unsigned long long)end);
    return st;
}

static eas_status read_header(json *j, eas_weights *w, uint32_t file, uint64_t begin, uint64_t end)
{
    uint32_t first = w->entries.len;
    bool metadata = false;
    eas_status st = j->at < j->end && *j->at == '{' ? json_expect(j, '{') : json_fail(j, "'{' is missing");
    if (!st && !json_take(j, '}')) {
        do {
            char *name;
            st = json_string(j, &w->arena, &name);
            st = st ? st : json_expect(j, ':');
            if (st)
                break;
            if (strcmp(name, "__metadata__"))
                st = read_tensor(j, w, name, file, begin, end - begin);
            else if (metadata)
                st = json_fail(j, "\"__metadata__\" is there twice");
            else {
                metadata = true;
                st = read_metadata(j, w);
            }
        } while (!st && json_take(j, ','));
        st = st ? st : json_expect(j, '}');
    }
    st = st ? st : json_end(j);
    return st ? st : check_cover(j, w, first, begin, end);
}

eas_status io_parse_safetensors(eas_weights *w, uint32_t file, const char *path)
{
    const io_file *f = w->files.at[file];
    uint64_t n = f->len >= 8 ? io_u64(f->at) : 0;
    if (f->len < 8)
        return base_fail(EAS_ERR_VALUE, "%s: %zu bytes are no safetensors file", path, f->len);
    if (n > MOST_HEADER)
        return base_fail(
            EAS_ERR_VALUE,
            "%s: a header of %llu bytes is more than safetensors allows (%u): is it a safetensors file?",
            path, (unsigned long long)n, MOST_HEADER);
    if (n > f->len - 8)
        return base_fail(EAS_ERR_VALUE, "%s: the header should have %llu bytes, but the file ends after %zu",
                         path, (unsigned long long)n, f->len - 8);
    const char *text = (const char *)f->at + 8;
    char what[256];
    snprintf(what, sizeof what, "%.240s", path);
    json j = {text, text, text + n, what};
    w->format = "safetensors";
    return read_header(&j, w, file, 8 + n, f->len);
}

/* ---- shards ---- */
typedef struct shard_name {
    const char *name, *file;
} shard_name;

/* Shards must lie beside their index: a name with a folder in it could be any file of the machine. */
static bool plain_name(const char *s)
{
    return *s && !strchr(s, '/') && !strchr(s, '\\') && strcmp(s, ".") && strcmp(s, "..");
}

static eas_status read_map(json *j, arena *a, void *list)
{
    VEC(shard_name) *v = list;
    eas_status st = json_expect(j, '{');
    if (st || json_take(j, '}'))
        return st;
    do {
        char *name = NULL, *file = NULL;
        st = json_string(j, a, &name);
        st = st ? st : json_expect(j, ':');
        st = st ? st : json_string(j, a, &file);
        if (!st && !plain_name(file))
            st = json_fail(j, "tensor '%s' lies in \"%s\", which is no file beside the index", name, file);
        shard_name one = {name, file};
        if (!st && !vec_push(v, one))
            st = base_fail_oom(sizeof one);
    } while (!st && json_take(j, ','));
    return st ? st : json_expect(j, '}');
}

static int by_file(const void *a, const void *b)
{
    const shard_name *x = a, *y = b;
    int c = strcmp(x->file, y->file);
    return c ? c : strcmp(x->name, y->name);
}

/* Opens one shard, and checks that it has what the index says: names[0..n), sorted. */
static eas_status open_shard(eas_weights *w, const char *path, const shard_name *names, uint32_t n)
{
    io_file *f;
    uint32_t first = w->entries.len;
    eas_status st = io_file_open(path, &f);
    if (st)
        return st;
    if (!vec_push(&w->files, f)) {
        io_file_release(f);
        return base_fail_oom(sizeof f);
    }
    if ((st = io_parse_safetensors(w, w->files.len - 1, path)))
        return st;
    for (uint32_t i = first; i < w->entries.len; i++) {
        uint32_t low = 0, high = n;
        while (low < high) {
            uint32_t mid = low + (high - low) / 2;
            int c = strcmp(names[mid].name, w->entries.at[i].name);
            if (!c)
                break;
            *(c < 0 ? &low : &high) = c < 0 ? mid + 1 : mid;
        }
        if (low >= high)
            return base_fail(EAS_ERR_VALUE, "%s: has tensor '%s', which the index does not place there", path,
                             w->entries.at[i].name);
    }
    if (w->entries.len - first != n)
        return base_fail(EAS_ERR_VALUE, "%s: has %u tensors, the index places %u there", path,
                         w->entries.len - first, n);
    return EAS_OK;
}

static eas_status open_shards(eas_weights *w, const char *index, const shard_name *names, uint32_t n)
{
    const char *slash = strrchr(index, '/');
    int folder = slash ? (int)(slash + 1 - index) : 0;
    eas_status st = EAS_OK;
    for (uint32_t i = 0, end; i < n && !st; i = end) {
        for (end = i + 1; end < n && !strcmp(names[end].file, names[i].file); end++)
            if (!strcmp(names[end].name, names[end - 1].name))
                return base_fail(EAS_ERR_VALUE, "%s: tensor '%s' is there twice", index, names[end].name);
        char *path = arena_printf(&w->arena, "%.*s%s", folder, index, names[i].file);
        st = path ? open_shard(w, path, names + i, end - i) : base_fail_oom(256);
    }
    return st;
}

eas_status io_open_index(eas_weights *w, const char *path)
{
    const io_file *f = w->files.at[0];
    json j = {(const char *)f->at, (const char *)f->at, (const char *)f->at + f->len, path};
    VEC(shard_name) names = {0};
    bool found = false;
    eas_status st = json_expect(&j, '{');
    if (!st && !json_take(&j, '}')) {
        do {
            char *key;
            st = json_string(&j, &w->arena, &key);
            st = st ? st : json_expect(&j, ':');
            if (st)
                break;
            if (strcmp(key, "weight_map"))
                st = json_skip(&j);
            else if (found)
                st = json_fail(&j, "\"weight_map\" is there twice");
            else {
                found = true;
                st = read_map(&j, &w->arena, &names);
            }
        } while (!st && json_take(&j, ','));
        st = st ? st : json_expect(&j, '}');
    }
    st = st ? st : json_end(&j);
    if (!st && !found)
        st = base_fail(EAS_ERR_VALUE, "%s: has no \"weight_map\"", path);
    if (!st && names.len)
        qsort(names.at, names.len, sizeof *names.at, by_file);
    st = st ? st : open_shards(w, path, names.at, names.len);
    vec_free(&names);
    w->format = "safetensors";
    return st;
}
