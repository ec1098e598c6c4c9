/* save.c: writing safetensors, npy and npz. A file is made beside its place and renamed, so readers see the
 * old one or the whole new one. */
#include "io.h"

#include <stdio.h>

/* ---- elements in C order, on the host ---- */
static void copy_strided(uint8_t *dst, const uint8_t *src, int rank, const int64_t *shape,
                         const int64_t *strides, size_t size)
{
    int64_t at[EAS_MAX_RANK] = {0}, last = rank ? shape[rank - 1] : 1,
            step = rank ? strides[rank - 1] * (int64_t)size : 0;
    for (;;) {
        const uint8_t *p = src;
        for (int i = 0; i < rank - 1; i++)
            p += at[i] * strides[i] * (int64_t)size;
        for (int64_t k = 0; k < last; k++, dst += size)
            memcpy(dst, p + k * step, size);
        int i = rank - 2;
        while (i >= 0 && ++at[i] == shape[i])
            at[i--] = 0;
        if (i < 0)
            return;
    }
}

static bool c_order(int rank, const int64_t *shape, const int64_t *strides)
{
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; i--) {
        if (shape[i] != 1 && strides[i] != step)
            return false;
        step *= shape[i];
    }
    return true;
}

eas_status io_item_bytes(const io_item *it, const void **data, void **own, const eas_launch *hooks)
{
    int64_t offset, strides[EAS_MAX_RANK];
    size_t size = eas_dtype_size(it->dtype);
    /* the node of a tensor of pairs has one dim more than the file says */
    const int rank = eas_node_rank(it->node);
    *own = NULL;
    *data = "";
    if (!it->bytes)
        return EAS_OK;
    eas_buffer *buf = eas_node_buffer(it->node, &offset, strides);
    if (!buf)
        return base_fail(EAS_ERR_RUNTIME, "tensor '%s' has no data", it->name);
    const uint8_t *host = eas_device_has_host_memory(eas_buffer_device(buf)) ? eas_buffer_read(buf) : NULL;
    bool whole = c_order(rank, it->shape, strides);
    if (host && whole) {
        *data = host + offset * (int64_t)size;
        return EAS_OK;
    }
    uint8_t *all = NULL, *made = whole ? NULL : malloc((size_t)it->bytes);
    eas_status st = !whole && !made ? base_fail_oom((size_t)it->bytes) : EAS_OK;
    if (!st && !host) { /* the part of the buffer that the tensor reaches */
        int64_t low = 0, high = 0;
        for (int i = 0; i < rank; i++)
            *(strides[i] < 0 ? &low : &high) += (it->shape[i] - 1) * strides[i];
        size_t n = (size_t)(high - low + 1) * size;
        all = malloc(n);
        st = all ? eas_device_copy(NULL, all, eas_buffer_device(buf),
                                   (const uint8_t *)eas_buffer_read(buf) + (offset + low) * (int64_t)size, n,
                                   hooks)
                 : base_fail_oom(n);
        host = all ? all - (offset + low) * (int64_t)size : NULL;
    }
    if (!st && !whole)
        copy_strided(made, host + offset * (int64_t)size, rank, it->shape, strides, size);
    *own = whole ? all : made;
    *data = *own;
    if (!whole)
        free(all);
    return st;
}

/* ---- safetensors ---- */
static const char *st_name(eas_dtype dt)
{
    static const char *const names[EAS_NDTYPES] = {
        [EAS_BOOL] = "BOOL", [EAS_I8] = "I8",   [EAS_I16] = "I16", [EAS_I32] = "I32", [EAS_I64] = "I64",
        [EAS_U8] = "U8",     [EAS_U16] = "U16", [EAS_U32] = "U32", [EAS_U64] = "U64", [EAS_F16] = "F16",
        [EAS_BF16] = "BF16", [EAS_F32] = "F32", [EAS_F64] = "F64"};
    return names[dt];
}

/* The widest elements first, so that everything is aligned without holes; then by name. */
static int by_width(const void *a, const void *b)
{
    const io_item *x = *(const io_item *const *)a, *y = *(const io_item *const *)b;
    size_t p = eas_dtype_size(x->dtype), q = eas_dtype_size(y->dtype);
    return p != q ? (p < q ? 1 : -1) : strcmp(x->name, y->name);
}

static void put_header(str *s, int n, const io_item *const *order, int nmeta, const char *const *meta)
{
    uint64_t at = 0;
    str_put(s, "{", 1);
    for (int i = 0; i < nmeta; i++) {
        str_add(s, i ? "," : "\"__metadata__\":{");
        json_put_string(s, meta[2 * i], strlen(meta[2 * i]));
        str_put(s, ":", 1);
        json_put_string(s, meta[2 * i + 1], strlen(meta[2 * i + 1]));
    }
    if (nmeta)
        str_add(s, n ? "}," : "}");
    for (int i = 0; i < n; i++) {
        const io_item *it = order[i];
        if (i)
            str_put(s, ",", 1);
        json_put_string(s, it->name, strlen(it->name));
        str_add(s, ":{\"dtype\":\"%s\",\"shape\":[", it->stored ? it->stored : st_name(it->dtype));
        for (int k = 0; k < it->rank; k++)
            str_add(s, k ? ",%lld" : "%lld", (long long)it->shape[k]);
        str_add(s, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                (unsigned long long)(at + it->bytes));
        at += it->bytes;
    }
    str_put(s, "}", 1);
    while ((s->len + 8) % 64) /* data begins at a cache line */
        str_put(s, " ", 1);
}

static void write_item(io_writer *w, const io_item *it, const eas_launch *hooks)
{
    const void *data;
    void *own;
    if (w->st)
        return;
    w->st = io_item_bytes(it, &data, &own, hooks);
    io_write(w, data, (size_t)it->bytes);
    free(own);
}

eas_status io_save_safetensors(const char *path, int n, const io_item *items, int nmeta,
                               const char *const *meta, const eas_launch *hooks)
{
    const io_item **order = malloc(sizeof *order * ((size_t)n + 1));
    str s = {0};
    io_writer w;
    if (!order)
        return base_fail_oom(sizeof *order * (size_t)n);
    for (int i = 0; i < n; i++)
        order[i] = &items[i];
    qsort(order, (size_t)n, sizeof *order, by_width);
    put_header(&s, n, order, nmeta, meta);
    io_writer_begin(&w, path);
    uint64_t len = s.len;
    io_write(&w, &len, 8);
    io_write(&w, s.at, s.len);
    for (int i = 0; i < n; i++)
        write_item(&w, order[i], hooks);
    eas_status st = s.oom ? base_fail_oom(s.cap) : EAS_OK;
    str_free(&s);
    free(order);
    return io_writer_end(&w, st);
}

/* ---- npy, npz ---- */
static const char *npy_name(const io_item *it)
{
    return !it->stored ? NULL : !strcmp(it->stored, "C64") ? "c8" : "c16";
}

eas_status io_save_npy(const char *path, const io_item *it, const eas_launch *hooks)
{
    io_writer w;
    str s = {0};
    npy_write(&s, it->dtype, npy_name(it), it->rank, it->shape);
    io_writer_begin(&w, path);
    io_write(&w, s.at, s.len);
    write_item(&w, it, hooks);
    eas_status st = s.oom ? base_fail_oom(s.cap) : EAS_OK;
    str_free(&s);
    return io_writer_end(&w, st);
}

static void put16(str *s, uint64_t v) { str_put(s, (const char *)&(uint16_t){(uint16_t)v}, 2); }
static void put32(str *s, uint64_t v) { str_put(s, (const char *)&(uint32_t){(uint32_t)v}, 4); }
static void put64(str *s, uint64_t v) { str_put(s, (const char *)&v, 8); }
static uint64_t clip(uint64_t v) { return v < UINT32_MAX ? v : UINT32_MAX; }

typedef struct member {
    uint64_t local, packed, size;
    uint32_t crc;
} member;
enum {
    VERSION = 20,
    VERSION64 = 45,
    UTF8 = 0x800,
    DOS_DATE = 0x21 /* 1980-01-01, so that equal tensors give equal files */
};

/* What local headers and the directory have in common, from the version to the length of the name. */
static void put_common(str *s, const member *m, int method, size_t name)
{
    bool wide = m->packed >= UINT32_MAX || m->size >= UINT32_MAX || m->local >= UINT32_MAX;
    put16(s, wide ? VERSION64 : VERSION);
    put16(s, UTF8);
    put16(s, (uint64_t)method);
    put16(s, 0);
    put16(s, DOS_DATE);
    put32(s, m->crc);
    put32(s, clip(m->packed));
    put32(s, clip(m->size));
    put16(s, name + 4);
}

static void put_zip64(str *s, const member *m, bool local)
{
    int n = local ? 2 : (m->size >= UINT32_MAX) + (m->packed >= UINT32_MAX) + (m->local >= UINT32_MAX);
    put16(s, 1);
    put16(s, (uint64_t)n * 8);
    if (local || m->size >= UINT32_MAX)
        put64(s, m->size);
    if (local || m->packed >= UINT32_MAX)
        put64(s, m->packed);
    if (!local && m->local >= UINT32_MAX)
        put64(s, m->local);
}

/* The header is extended to a multiple of 64 by an extra field, so that stored arrays are aligned in a mapped
 * file. */
static void put_local(str *s, const member *m, int method, const char *name)
{
    enum { PADDING = 0xD935 };
    bool wide = m->packed >= UINT32_MAX || m->size >= UINT32_MAX;
    size_t n = strlen(name), extra = wide ? 20 : 0,
           pad = (64 - (m->local + 30 + n + 4 + extra + 4) % 64) % 64;
    str_put(s, "PK\3\4", 4);
    put_common(s, m, method, n);
    put16(s, extra + 4 + pad);
    str_put(s, name, n);
    str_put(s, ".npy", 4);
    if (wide)
        put_zip64(s, m, true);
    put16(s, PADDING);
    put16(s, pad);
    for (size_t i = 0; i < pad; i++)
        str_put(s, "", 1);
}

static void put_entry(str *s, const member *m, int method, const char *name)
{
    bool wide = m->packed >= UINT32_MAX || m->size >= UINT32_MAX || m->local >= UINT32_MAX;
    str zip64 = {0};
    if (wide)
        put_zip64(&zip64, m, false);
    str_put(s, "PK\1\2", 4);
    put16(s, wide ? VERSION64 : VERSION);
    put_common(s, m, method, strlen(name));
    put16(s, zip64.len);
    put16(s, 0); /* comment */
    put16(s, 0);
    put16(s, 0);
    put32(s, 0);
    put32(s, clip(m->local));
    str_put(s, name, strlen(name));
    str_put(s, ".npy", 4);
    str_put(s, zip64.at, zip64.len);
    str_free(&zip64);
}

static void put_end(str *s, uint64_t n, uint64_t at, uint64_t size)
{
    if (n >= UINT16_MAX || at >= UINT32_MAX || size >= UINT32_MAX) {
        uint64_t here = at + size;
        str_put(s, "PK\6\6", 4);
        put64(s, 44);
        put16(s, VERSION64);
        put16(s, VERSION64);
        put64(s, 0);
        put64(s, n);
        put64(s, n);
        put64(s, size);
        put64(s, at);
        str_put(s, "PK\6\7", 4);
        put32(s, 0);
        put64(s, here);
        put32(s, 1);
    }
    str_put(s, "PK\5\6", 4);
    put32(s, 0);
    put16(s, n < UINT16_MAX ? n : UINT16_MAX);
    put16(s, n < UINT16_MAX ? n : UINT16_MAX);
    put32(s, clip(size));
    put32(s, clip(at));
    put16(s, 0);
}

static void write_member(io_writer *w, const io_item *it, bool compressed, member *m, const eas_launch *hooks)
{
    const void *data;
    void *own;
    str head = {0}, local = {0}, packed = {0};
    if (w->st || (w->st = io_item_bytes(it, &data, &own, hooks)))
        return;
    npy_write(&head, it->dtype, npy_name(it), it->rank, it->shape);
    *m = (member){.local = w->at, .size = head.len + it->bytes};
    m->crc = io_crc32(io_crc32(0, (const uint8_t *)head.at, head.len), data, (size_t)it->bytes);
    m->packed = m->size;
    if (compressed) {
        str all = {0};
        str_put(&all, head.at, head.len);
        str_put(&all, data, (size_t)it->bytes);
        if (!all.oom)
            io_deflate((const uint8_t *)all.at, all.len, &packed);
        w->st = all.oom || packed.oom ? base_fail_oom(all.len) : EAS_OK;
        str_free(&all);
        m->packed = packed.len;
    }
    put_local(&local, m, compressed ? 8 : 0, it->name);
    io_write(w, local.at, local.len);
    if (compressed)
        io_write(w, packed.at, packed.len);
    else {
        io_write(w, head.at, head.len);
        io_write(w, data, (size_t)it->bytes);
    }
    if (!w->st && (head.oom || local.oom))
        w->st = base_fail_oom(head.len);
    str_free(&head);
    str_free(&local);
    str_free(&packed);
    free(own);
}

eas_status io_save_npz(const char *path, int n, const io_item *items, bool compressed,
                       const eas_launch *hooks)
{
    member *m = calloc((size_t)n + 1, sizeof *m);
    str s = {0};
    io_writer w;
    if (!m)
        return base_fail_oom(sizeof *m * (size_t)n);
    io_writer_begin(&w, path);
    for (int i = 0; i < n; i++) {
        if (!w.st && strlen(items[i].name) > 60000)
            w.st = base_fail(EAS_ERR_VALUE, "the name of tensor %d is too long for a zip archive", i);
        write_member(&w, &items[i], compressed, &m[i], hooks);
    }
    for (int i = 0; i < n; i++)
        put_entry(&s, &m[i], compressed ? 8 : 0, items[i].name);
    put_end(&s, (uint64_t)n, w.at, s.len);
    io_write(&w, s.at, s.len);
    eas_status st = s.oom ? base_fail_oom(s.cap) : EAS_OK;
    str_free(&s);
    free(m);
    return io_writer_end(&w, st);
}

/* ---- the public functions: any format ---- */
static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && !strcmp(s + n - k, end);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static eas_status check_names(int n, const char *const *names)
{
    const char **sorted = malloc(sizeof *sorted * ((size_t)n + 1));
    eas_status st = sorted ? EAS_OK : base_fail_oom(sizeof *sorted * (size_t)n);
    if (!st && n)
        memcpy(sorted, names, sizeof *sorted * (size_t)n);
    if (!st)
        qsort(sorted, (size_t)n, sizeof *sorted, by_text);
    for (int i = 0; i < n && !st; i++)
        if (!strcmp(sorted[i], "__metadata__"))
            st = base_fail(EAS_ERR_VALUE, "a tensor cannot be called '__metadata__'");
        else if (i && !strcmp(sorted[i], sorted[i - 1]))
            st = base_fail(EAS_ERR_VALUE, "two tensors are called '%s'", sorted[i]);
    free(sorted);
    return st;
}

/* Makes the item one of the dtype `stored`, if the format has it. */
static eas_status store_as(io_item *it, const char *stored, const char *path)
{
    static const struct {
        const char *name;
        eas_dtype dtype;
        bool pairs, in_npy, in_safetensors;
    } known[] = {{"C64", EAS_F32, true, true, true},
                 {"C128", EAS_F64, true, true, false},
                 {"F8_E4M3", EAS_U8, false, false, true},
                 {"F8_E5M2", EAS_U8, false, false, true}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, stored))
            continue;
        if (it->dtype != known[i].dtype || (known[i].pairs && (!it->rank || it->shape[it->rank - 1] != 2)))
            return base_fail(EAS_ERR_VALUE, "tensor '%s' is to be stored as %s, and is not %s%s", it->name,
                             stored, eas_dtype_name(known[i].dtype),
                             known[i].pairs ? " with a last dim of 2" : "");
        if (!(ends_with(path, ".safetensors") ? known[i].in_safetensors : known[i].in_npy))
            return base_fail(EAS_ERR_VALUE, "tensor '%s' is %s, which %s files do not have; use %s", it->name,
                             stored, known[i].in_npy ? "safetensors" : "npz and npy",
                             known[i].in_npy ? ".npz" : ".safetensors");
        it->stored = known[i].name;
        it->rank -= known[i].pairs;
        return EAS_OK;
    }
    return base_fail(EAS_ERR_VALUE, "tensor '%s' cannot be stored as %s; use C64, C128, F8_E4M3 or F8_E5M2",
                     it->name, stored);
}

static eas_status make_items(const char *path, int n, const char *const *names, eas_node *const *nodes,
                             const char *const *stored, io_item *items)
{
    for (int i = 0; i < n; i++) {
        io_item *it = &items[i];
        it->name = names[i];
        it->node = nodes[i];
        it->dtype = eas_node_dtype(nodes[i]);
        it->rank = eas_node_rank(nodes[i]);
        it->shape = eas_node_shape(nodes[i]);
        it->bytes = eas_dtype_size(it->dtype);
        for (int k = 0; k < it->rank; k++)
            it->bytes *= (uint64_t)it->shape[k];
        if (eas_node_batch_dims(nodes[i]))
            return base_fail(EAS_ERR_RUNTIME, "tensor '%s' belongs to a vmap: save results outside of it",
                             names[i]);
        eas_status st = stored && stored[i] ? store_as(it, stored[i], path) : EAS_OK;
        if (st)
            return st;
    }
    return EAS_OK;
}

eas_status eas_weights_save(const char *path, int n, const char *const *names, eas_node *const *nodes,
                            const char *const *stored, int nmeta, const char *const *meta, int compressed,
                            const eas_launch *hooks)
{
    NEED(path, EAS_ERR_VALUE);
    NEED(n <= 0 || (names && nodes), EAS_ERR_VALUE);
    NEED(nmeta <= 0 || meta, EAS_ERR_VALUE);
    for (int i = 0; i < n; i++)
        NEED(names[i] && nodes[i], EAS_ERR_HANDLE);
    for (int i = 0; i < 2 * nmeta; i++)
        NEED(meta[i], EAS_ERR_VALUE);
    eas_status st = check_names(n, names);
    st = st ? st : eas_nodes_realize(n, nodes, NULL, hooks);
    st = st ? st : eas_device_synchronize(NULL, hooks);
    io_item *items = st ? NULL : calloc((size_t)n + 1, sizeof *items);
    if (!st && !items)
        st = base_fail_oom(sizeof *items * (size_t)n);
    st = st ? st : make_items(path, n, names, nodes, stored, items);
    if (!st && ends_with(path, ".npz"))
        st = io_save_npz(path, n, items, compressed != 0, hooks);
    else if (!st && ends_with(path, ".npy"))
        st = n == 1
               ? io_save_npy(path, items, hooks)
               : base_fail(EAS_ERR_VALUE, "%s: an .npy file holds one tensor, not %d; use .npz", path, n);
    else if (!st && ends_with(path, ".safetensors"))
        st = io_save_safetensors(path, n, items, nmeta, meta, hooks);
    else if (!st)
        st = base_fail(
            EAS_ERR_VALUE,
            "%s: the name does not end in .safetensors, .npz or .npy, so it is not known how to write it",
            path);
    free(items);
    return st;
}
