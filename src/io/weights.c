/* weights.c: eas_weights, the tensors of a file: opening by content, looking, and tensors or slices of them
 * as nodes. */
#include "io.h"

#include <stdio.h>

/* ---- adding entries ---- */
eas_status io_count(const char *name, int rank, const int64_t *shape, int64_t *count)
{
    int64_t n = 1;
    bool empty = false;
    for (int i = 0; i < rank; i++) {
        empty |= shape[i] == 0;
        if (shape[i] && n > INT64_MAX / 16 / shape[i])
            return base_fail(EAS_ERR_VALUE, "tensor '%s' has more elements than can be counted", name);
        n *= shape[i] ? shape[i] : 1;
    }
    *count = empty ? 0 : n;
    return EAS_OK;
}

eas_status io_add(eas_weights *w, const io_entry *e)
{
    return vec_push(&w->entries, *e) ? EAS_OK : base_fail_oom(sizeof *e);
}
eas_status io_add_meta(eas_weights *w, const io_meta *m)
{
    return vec_push(&w->metas, *m) ? EAS_OK : base_fail_oom(sizeof *m);
}

typedef struct named {
    const char *name;
    uint32_t index;
} named;
static int by_name(const void *a, const void *b)
{
    return strcmp(((const named *)a)->name, ((const named *)b)->name);
}

eas_status io_finish(eas_weights *w, const char *path)
{
    uint32_t n = w->entries.len;
    named *all = malloc(sizeof *all * ((size_t)n + 1));
    w->by_name = arena_alloc(&w->arena, sizeof *w->by_name * ((size_t)n + 1));
    eas_status st = all && w->by_name ? EAS_OK : base_fail_oom(sizeof *all * n);
    for (uint32_t i = 0; i < n && !st; i++)
        all[i] = (named){w->entries.at[i].name, i};
    if (!st)
        qsort(all, n, sizeof *all, by_name);
    for (uint32_t i = 0; i < n && !st; i++) {
        w->by_name[i] = all[i].index;
        if (i && !strcmp(all[i].name, all[i - 1].name))
            st = base_fail(EAS_ERR_VALUE, "%s: tensor '%s' is there twice", path, all[i].name);
    }
    free(all);
    return st;
}

/* ---- opening ---- */
static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

/* The format is told by the content where possible: a safetensors file begins with a length and '{'. */
static eas_status parse(eas_weights *w, const char *path)
{
    const io_file *f = w->files.at[0];
    if (f->len >= 4 && !memcmp(f->at, "GGUF", 4))
        return io_parse_gguf(w, 0, path);
    if (f->len >= 6 && !memcmp(f->at, "\x93NUMPY", 6))
        return io_parse_npy(w, 0, path);
    if (f->len >= 4 && (!memcmp(f->at, "PK\3\4", 4) || !memcmp(f->at, "PK\5\6", 4)) &&
        (!ends_with(path, ".safetensors") || f->at[7]))
        return io_parse_npz(w, 0, path);
    if (ends_with(path, ".json"))
        return io_open_index(w, path);
    return io_parse_safetensors(w, 0, path);
}

static eas_status open_file(io_file *f, const char *path, eas_weights **out)
{
    eas_weights *w = calloc(1, sizeof *w);
    eas_status st = w && vec_push(&w->files, f) ? EAS_OK : base_fail_oom(sizeof *w);
    if (st) {
        io_file_release(f);
        free(w);
        return st;
    }
    atomic_init(&w->refs, 1);
    st = parse(w, path);
    st = st ? st : io_finish(w, path);
    if (st)
        eas_weights_release(w);
    else
        *out = w;
    return st;
}

eas_status eas_weights_open(const char *path, eas_weights **out)
{
    io_file *f;
    NEED(path, EAS_ERR_VALUE);
    NEED(out, EAS_ERR_VALUE);
    eas_status st = io_file_open(path, &f);
    return st ? st : open_file(f, path, out);
}

eas_status eas_weights_parse(const void *data, size_t n, const char *name, eas_weights **out)
{
    io_file *f;
    NEED(!n || data, EAS_ERR_VALUE);
    NEED(name, EAS_ERR_VALUE);
    NEED(out, EAS_ERR_VALUE);
    eas_status st = io_file_copy(data, n, &f);
    return st ? st : open_file(f, name, out);
}

eas_weights *eas_weights_retain(eas_weights *w)
{
    if (w)
        atomic_fetch_add_explicit(&w->refs, 1, memory_order_relaxed);
    return w;
}

void eas_weights_release(eas_weights *w)
{
    if (!w || atomic_fetch_sub_explicit(&w->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < w->files.len; i++)
        io_file_release(w->files.at[i]);
    vec_free(&w->files);
    vec_free(&w->entries);
    vec_free(&w->metas);
    arena_free(&w->arena);
    free(w);
}

/* ---- properties of the file and its tensors ---- */
const char *eas_weights_format(const eas_weights *w)
{
    NEED(w, "");
    return w->format;
}
int eas_weights_count(const eas_weights *w)
{
    NEED(w, 0);
    return (int)w->entries.len;
}
eas_weight eas_weights_at(const eas_weights *w, int i)
{
    NEED(w, (eas_weight){0});
    if (i < 0 || (uint32_t)i >= w->entries.len)
        return (eas_weight){0};
    const io_entry *e = &w->entries.at[i];
    return (eas_weight){.name = e->name,
                        .stored = e->stored,
                        .supported = e->dtype >= 0,
                        .dtype = e->dtype >= 0 ? (eas_dtype)e->dtype : EAS_U8,
                        .rank = e->rank,
                        .shape = e->shape,
                        .bytes = e->len};
}
int eas_weights_find(const eas_weights *w, const char *name)
{
    NEED(w, -1);
    NEED(name, -1);
    uint32_t low = 0, high = w->entries.len;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        int c = strcmp(w->entries.at[w->by_name[mid]].name, name);
        if (!c)
            return (int)w->by_name[mid];
        *(c < 0 ? &low : &high) = c < 0 ? mid + 1 : mid;
    }
    return -1;
}
int eas_weights_meta_count(const eas_weights *w)
{
    NEED(w, 0);
    return (int)w->metas.len;
}
const char *eas_weights_meta_key(const eas_weights *w, int i)
{
    NEED(w, NULL);
    return i < 0 || (uint32_t)i >= w->metas.len ? NULL : w->metas.at[i].key;
}
eas_status eas_weights_meta(const eas_weights *w, int i, char **value)
{
    NEED(w, EAS_ERR_VALUE);
    NEED(value, EAS_ERR_VALUE);
    if (i < 0 || (uint32_t)i >= w->metas.len)
        return base_fail(EAS_ERR_INDEX, "metadata %d of %u", i, w->metas.len);
    const io_meta *m = &w->metas.at[i];
    if (!m->text)
        return io_gguf_meta(m, value);
    *value = strdup(m->text);
    return *value ? EAS_OK : base_fail_oom(strlen(m->text));
}

/* ---- decoding ---- */
static void swap_bytes(uint8_t *p, int64_t count, size_t size)
{
    for (int64_t i = 0; i < count; i++, p += size)
        for (size_t k = 0; k < size / 2; k++) {
            uint8_t t = p[k];
            p[k] = p[size - 1 - k];
            p[size - 1 - k] = t;
        }
}

static eas_status wrong_sum(const io_entry *e)
{
    return base_fail(EAS_ERR_VALUE, "tensor '%s' is damaged: its checksum is not the one stored", e->name);
}

static eas_status decode_plain(const io_entry *e, const io_file *f, int64_t first, int64_t count,
                               uint8_t *dst)
{
    size_t size = eas_dtype_size((eas_dtype)e->dtype);
    if (e->check && count == e->count &&
        io_crc32(0, f->at + e->at - e->head, (size_t)(e->head + e->len)) != e->crc)
        return wrong_sum(e);
    memcpy(dst, f->at + e->at + (uint64_t)first * size, (size_t)count * size);
    return EAS_OK;
}

static eas_status decode_deflated(const io_entry *e, const io_file *f, int64_t first, int64_t count,
                                  uint8_t *dst)
{
    size_t size = eas_dtype_size((eas_dtype)e->dtype), all = (size_t)e->head + (size_t)e->count * size,
           made = 0;
    uint8_t *p = malloc(all + 1);
    if (!p)
        return base_fail_oom(all);
    eas_status st = EAS_OK;
    if (!io_inflate(f->at + e->at, (size_t)e->len, p, all, &made) || made != all)
        st = base_fail(EAS_ERR_VALUE, "tensor '%s' is damaged: its deflate stream is malformed", e->name);
    else if (io_crc32(0, p, all) != e->crc)
        st = wrong_sum(e);
    else
        memcpy(dst, p + e->head + (size_t)first * size, (size_t)count * size);
    free(p);
    return st;
}

typedef struct block_job {
    const ggml_kind *kind;
    const uint8_t *src;
    float *dst;
} block_job;
static void run_blocks(void *ctx, int64_t first, int64_t last, int worker)
{
    const block_job *j = ctx;
    (void)worker;
    for (int64_t i = first; i < last; i++)
        j->kind->decode(j->src + (size_t)i * j->kind->bytes, j->dst + (size_t)i * j->kind->block);
}

/* first and count are multiples of the block, since rows are. */
static eas_status decode_blocks(const io_entry *e, const io_file *f, int64_t first, int64_t count, float *dst)
{
    const ggml_kind *k = ggml_find(e->type);
    block_job job = {k, f->at + e->at + (uint64_t)(first / k->block) * k->bytes, dst};
    pool_run(count / k->block, 256, run_blocks, &job, NULL, NULL);
    return EAS_OK;
}

eas_status io_decode(eas_weights *w, const io_entry *e, int64_t first, int64_t count, void *dst)
{
    const io_file *f = w->files.at[e->file];
    if (!count)
        return EAS_OK;
    if (e->how == IO_BLOCKS)
        return decode_blocks(e, f, first, count, dst);
    eas_status st = (e->how == IO_DEFLATED ? decode_deflated : decode_plain)(e, f, first, count, dst);
    if (!st && e->swap)
        swap_bytes(dst, count, eas_dtype_size((eas_dtype)e->dtype));
    return st;
}

/* ---- tensors ---- */
typedef struct part { /* a slice, in elements of the file */
    int64_t shape[EAS_MAX_RANK], strides[EAS_MAX_RANK];
    int64_t first, last; /* the elements that it touches; last is one beyond */
} part;

static eas_status make_part(const io_entry *e, const int64_t *start, const int64_t *size, part *p)
{
    int64_t step = 1;
    bool empty = e->count == 0;
    for (int k = 0; k < e->rank; k++) {
        int i = e->fortran ? k : e->rank - 1 - k;
        p->strides[i] = step;
        step *= e->shape[i] ? e->shape[i] : 1;
    }
    p->first = 0;
    p->last = 1;
    for (int i = 0; i < e->rank; i++) {
        int64_t s = start ? start[i] : 0, n = size ? size[i] : e->shape[i];
        if (s < 0 || n < 0 || s > e->shape[i] || n > e->shape[i] - s)
            return base_fail(EAS_ERR_INDEX, "tensor '%s': %lld elements from %lld of axis %d, which has %lld",
                             e->name, (long long)n, (long long)s, i, (long long)e->shape[i]);
        p->shape[i] = n;
        empty |= n == 0;
        p->first += s * p->strides[i];
        p->last += (s + n - 1) * p->strides[i];
    }
    if (empty)
        p->first = p->last = 0;
    return EAS_OK;
}

static bool in_place(const eas_weights *w, const io_entry *e)
{
    return e->how == IO_PLAIN && !e->swap &&
           (uintptr_t)(w->files.at[e->file]->at + e->at) % eas_dtype_size((eas_dtype)e->dtype) == 0;
}

static eas_status node_over(eas_buffer *buf, const io_entry *e, const part *p, int64_t offset, eas_node **out)
{
    eas_status st =
        eas_node_from_buffer(buf, (eas_dtype)e->dtype, e->rank, p->shape, offset, p->strides, out);
    eas_buffer_seal(buf);
    eas_buffer_release(buf);
    return st;
}

static eas_status node_in_place(eas_weights *w, const io_entry *e, const part *p, eas_device *cpu,
                                eas_node **out)
{
    eas_buffer *buf;
    io_file *f = io_file_retain(w->files.at[e->file]);
    size_t size = eas_dtype_size((eas_dtype)e->dtype);
    eas_status st = eas_buffer_wrap(cpu, f->at + e->at + (size_t)p->first * size,
                                    (size_t)(p->last - p->first) * size, io_file_release, f, &buf);
    if (st) {
        io_file_release(f);
        return st;
    }
    return node_over(buf, e, p, 0, out);
}

static eas_status node_decoded(eas_weights *w, const io_entry *e, const part *p, eas_device *cpu,
                               eas_node **out)
{
    eas_buffer *buf;
    int64_t block = e->how == IO_BLOCKS ? ggml_find(e->type)->block : 1;
    int64_t first = p->first / block * block, last = (p->last + block - 1) / block * block;
    eas_status st = eas_buffer_new(cpu, (size_t)(last - first) * eas_dtype_size((eas_dtype)e->dtype), &buf);
    if (st)
        return st;
    if ((st = io_decode(w, e, first, last - first, eas_buffer_host(buf)))) {
        eas_buffer_release(buf);
        return st;
    }
    return node_over(buf, e, p, p->first - first, out);
}

eas_status eas_weights_slice(eas_weights *w, int i, const int64_t *start, const int64_t *size, eas_node **out)
{
    eas_device *cpu;
    part p;
    NEED(w, EAS_ERR_VALUE);
    NEED(out, EAS_ERR_VALUE);
    if (i < 0 || (uint32_t)i >= w->entries.len)
        return base_fail(EAS_ERR_INDEX, "tensor %d of %u", i, w->entries.len);
    const io_entry *e = &w->entries.at[i];
    if (e->dtype < 0)
        return base_fail(EAS_ERR_TYPE,
                         "tensor '%s' is stored as %s, which tensors cannot hold: convert the file first",
                         e->name, e->stored);
    eas_status st = eas_device_get("cpu", &cpu);
    st = st ? st : make_part(e, start, size, &p);
    if (st)
        return st;
    return (in_place(w, e) ? node_in_place : node_decoded)(w, e, &p, cpu, out);
}

eas_status eas_weights_node(eas_weights *w, int i, eas_node **out)
{
    return eas_weights_slice(w, i, NULL, NULL, out);
}

eas_status eas_weights_raw(eas_weights *w, int i, const void **data, uint64_t *bytes)
{
    NEED(w, EAS_ERR_VALUE);
    NEED(data, EAS_ERR_VALUE);
    NEED(bytes, EAS_ERR_VALUE);
    if (i < 0 || (uint32_t)i >= w->entries.len)
        return base_fail(EAS_ERR_INDEX, "tensor %d of %u", i, w->entries.len);
    const io_entry *e = &w->entries.at[i];
    *data = w->files.at[e->file]->at + e->at;
    *bytes = e->len;
    return EAS_OK;
}
