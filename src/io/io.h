/* io.h: tensors in files: safetensors, NumPy's npy and npz, llama.cpp's GGUF.
 *
 * A file is mapped privately and parsed; only its header is read until a tensor is requested. A tensor whose
 * bytes in the file are those that it has in memory (plain, aligned, little-endian) becomes a view of the
 * mapping; any other one (deflated, quantised, misaligned, big-endian) is decoded into memory of its own.
 * Every number of a header is checked before it is used: files come from strangers.
 *
 *   file.c         mapping files, writing them atomically
 *   json.c         a strict reader of JSON
 *   inflate.c      deflate streams, both ways, and CRC-32
 *   safetensors.c  headers, shards with an index
 *   npy.c          NumPy's headers;  npz.c  archives of them
 *   gguf.c         llama.cpp's files;  ggml.c  its quantised blocks
 *   weights.c      eas_weights: looking, tensors, slices
 *   save.c         writing
 */
#ifndef IO_H
#define IO_H

#include "../base/base.h"

#include <stdatomic.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "src/io reads little-endian files in place"
#endif

static inline uint16_t io_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static inline uint32_t io_u32(const uint8_t *p)
{
    return (uint32_t)io_u16(p) | (uint32_t)io_u16(p + 2) << 16;
}
static inline uint64_t io_u64(const uint8_t *p)
{
    return (uint64_t)io_u32(p) | (uint64_t)io_u32(p + 4) << 32;
}

/* ---- file.c ---- */
typedef struct io_file { /* counted: the mapping lives as long as a tensor over it */
    _Atomic uint32_t refs;
    uint8_t *at;
    size_t len;
    bool mapped; /* else allocated */
} io_file;
eas_status io_file_open(const char *path, io_file **out);
eas_status io_file_copy(const void *data, size_t n, io_file **out); /* of memory, for tests */
io_file *io_file_retain(io_file *f);
void io_file_release(void *f);

/* a temporary file that takes the place of the real one when it is complete; sticky */
typedef struct io_writer {
    eas_status st;
    int fd;
    uint64_t at;
    char *path, *temporary;
    uint8_t *buf;
    size_t used;
} io_writer;
void io_writer_begin(io_writer *w, const char *path);
void io_write(io_writer *w, const void *data, size_t n);
void io_write_zeros(io_writer *w, size_t n);
/* commits if st and everything before is OK, else removes the temporary file */
eas_status io_writer_end(io_writer *w, eas_status st);

/* ---- json.c ---- */
typedef struct json {
    const char *begin, *at, *end;
    const char *what; /* for messages: "the header of model.safetensors" */
} json;
eas_status json_fail(const json *j, const char *fmt, ...) BASE_PRINTF(2, 3);
char json_peek(json *j); /* the next character that is no space; 0 at the end */
bool json_take(json *j, char c); /* takes c if it comes next */
eas_status json_expect(json *j, char c);
eas_status json_string(json *j, arena *a, char **out); /* decoded, valid UTF-8 without NUL */
eas_status json_uint(json *j, uint64_t *out);
eas_status json_skip(json *j); /* any value */
eas_status json_end(json *j); /* nothing but spaces is left */
void json_put_string(str *s, const char *p, size_t n); /* quoted */

/* ---- inflate.c ---- */
/* Decodes until the stream ends or dst is full; *made: bytes written. false: the stream is malformed or cut
 * off. */
bool io_inflate(const uint8_t *src, size_t n, uint8_t *dst, size_t room, size_t *made);
void io_deflate(const uint8_t *src, size_t n, str *out); /* appends a stream */
uint32_t io_crc32(uint32_t crc, const uint8_t *p, size_t n); /* crc: of what came before, 0 at first */

/* ---- weights.c ---- */
typedef enum io_how { IO_PLAIN, IO_DEFLATED, IO_BLOCKS } io_how;
typedef struct io_entry {
    const char *name;
    const char *stored; /* as the file calls it: "F32", "<f4", "Q4_K" */
    int dtype; /* of the tensor; -1: there is none */
    int rank;
    const int64_t *shape;
    int64_t count;
    uint8_t how;
    bool fortran, swap; /* order of the elements; big-endian */
    bool check; /* crc holds the checksum of the whole entry */
    uint16_t type; /* of blocks: their type in ggml */
    uint32_t file, crc;
    uint64_t at, len; /* in the file: of the elements, or of the deflated stream */
    /* bytes before the elements: of a deflated entry, in the stream; of a plain one with a checksum, in the
     * file before `at` */
    uint64_t head;
} io_entry;
typedef struct io_meta {
    const char *key, *text;
    const uint8_t *value; /* text NULL: a value of GGUF */
    uint32_t type;
} io_meta;
struct eas_weights {
    _Atomic uint32_t refs;
    const char *format;
    arena arena;
    VEC(io_entry) entries;
    VEC(io_meta) metas;
    VEC(io_file *) files;
    uint32_t *by_name; /* entries sorted by name */
};
eas_status io_add(eas_weights *w, const io_entry *e);
eas_status io_add_meta(eas_weights *w, const io_meta *m);
eas_status io_finish(eas_weights *w, const char *path); /* sorts; names that are there twice: ERR_VALUE */
/* The product of the shape; ERR_VALUE if it, or its bytes, cannot be counted. */
eas_status io_count(const char *name, int rank, const int64_t *shape, int64_t *count);
/* decodes elements; first and count are counted in the order of the file */
eas_status io_decode(eas_weights *w, const io_entry *e, int64_t first, int64_t count, void *dst);

/* ---- formats ---- */
eas_status io_parse_safetensors(eas_weights *w, uint32_t file, const char *path);
eas_status io_open_index(eas_weights *w, const char *path);
eas_status io_parse_npy(eas_weights *w, uint32_t file, const char *path);
eas_status io_parse_npz(eas_weights *w, uint32_t file, const char *path);
eas_status io_parse_gguf(eas_weights *w, uint32_t file, const char *path);
eas_status io_gguf_meta(const io_meta *m, char **out); /* as JSON */

/* npy.c */
typedef struct npy_head {
    char descr[32];
    int dtype, rank;
    bool fortran, swap;
    int64_t shape[EAS_MAX_RANK];
    size_t size; /* of the header, all told */
} npy_head;
enum { NPY_MORE = 1 }; /* npy_read: the header is longer than n; head->size says how long */
/* returns NPY_MORE or an eas_status */
int npy_read(const uint8_t *p, size_t n, const char *name, npy_head *head);
/* type: "f4"; NULL: that of dt */
void npy_write(str *s, eas_dtype dt, const char *type, int rank, const int64_t *shape);

/* ggml.c */
typedef struct ggml_kind {
    uint16_t type;
    const char *name;
    uint16_t block, bytes; /* elements of a block, and its bytes */
    int dtype; /* of plain ones; -1: blocks */
    void (*decode)(const uint8_t *src, float *dst); /* one block; NULL: not known how */
} ggml_kind;
const ggml_kind *ggml_find(uint32_t type); /* NULL: unknown */

/* ---- save.c ---- */
typedef struct io_item { /* a tensor to be written, with its elements in C order */
    const char *name;
    eas_dtype dtype;
    const char *stored; /* "C64", ...: the file says so and has no last dim of pairs; else NULL */
    int rank; /* as the file says */
    const int64_t *shape;
    uint64_t bytes;
    eas_node *node;
} io_item;
/* free(own) */
typedef eas_status (*io_bytes)(const io_item *it, const void **data, void **own, const eas_launch *hooks);
eas_status io_save_safetensors(const char *path, int n, const io_item *items, int nmeta,
                               const char *const *meta, const eas_launch *hooks);
eas_status io_save_npz(const char *path, int n, const io_item *items, bool compressed,
                       const eas_launch *hooks);
eas_status io_save_npy(const char *path, const io_item *item, const eas_launch *hooks);
eas_status io_item_bytes(const io_item *it, const void **data, void **own, const eas_launch *hooks);

#endif
