/* gen.h: from kernel IR to text (MSL, OpenCL C) and to CPU machine code.
 *
 * text/ prints one C-like text with a dialect per language. llvm/ is a module of its own (libeas-llvm),
 * opened by the cpu device when something must be compiled; nothing else in libeas knows LLVM. image.c is the
 * form in which compiled code is kept: flat, position independent, no external symbols.
 */
#ifndef GEN_H
#define GEN_H

#include "../ir/ir.h"

/* ---- ctext.c ---- */
/* X(NAME, name): a language of texts, ct_<name>, and its name as a form of eas_kernel_text */
#define GEN_DIALECTS(X) \
    X(MSL, msl) \
    X(OPENCL, opencl)
typedef enum gen_dialect {
#define GEN_X(NAME, name) GEN_##NAME,
    GEN_DIALECTS(GEN_X)
#undef GEN_X
} gen_dialect;
bool gen_dialect_find(const char *form, gen_dialect *out); /* false: no language has that name */
/* The kernel as source text. Lines of it are mapped back to the user's by comments-free bookkeeping: map
 * (if not NULL) receives, per text line, the index of the instruction it came from (UINT32_MAX: none). */
typedef VEC(uint32_t) gen_linemap;
enum {
    /* buffers of different arguments may overlap: no restrict, and whole-block order between them */
    GEN_ALIAS = 1,
    /* after all other parameters one `ulong` for each buffer parameter, in order: the element at which it
     * begins */
    GEN_OFFSETS = 2,
    /* times 4, 8 or 16: OpenCL C for a CPU: blocks in vectors of so many lanes, and one more `uint` parameter
     * at the end, not 0 where outputs are larger than the caches */
    GEN_LANES = 256
};
eas_status gen_ctext(const eas_ir *ir, gen_dialect d, unsigned flags, str *out, gen_linemap *map);
/* What a runtime must know besides: the function's name in the text, and the dtype in which scalar i is
 * handed over (an f64 that is only ever cast to one narrower float is rounded by the host; OpenCL takes
 * f16 and bf16 as float, bool as uchar). A kernel with `bounds` takes two more buffers after its
 * parameters:
 *   int fault[8]: all 0 before; after a failure 1, instruction, offset (low, high word), program x, y, z,
 *   thread: of one failing lane
 *   const long count[nparams]: elements of each buffer
 * Without GEN_ALIAS buffers of different arguments may not overlap where one of them is written. */
/* bytes of threadgroup memory that the text declares besides the kernel's */
int64_t gen_opencl_tg(const eas_ir *ir);
eas_status gen_ctext_name(const eas_ir *ir, str *out);
eas_dtype gen_ctext_scalar(const eas_ir *ir, int i);

/* ---- text/msl.c: where a runtime binds what ---- */
enum { GEN_MSL_BUFFERS = 31 };
/* Parameters are bound in order. Where that would be too many, buffers are, and the scalars share one
 * structure behind them, each at its natural alignment. A kernel with `bounds` has fault and count after
 * all of that. */
typedef struct gen_msl_layout {
    bool packed; /* index[i] of a scalar is then a byte offset into the structure */
    uint16_t index[IR_MAX_PARAMS];
    uint16_t pack, pack_bytes; /* the structure */
    uint16_t fault, count;
} gen_msl_layout;
eas_status gen_msl_layout_of(const eas_ir *ir, gen_msl_layout *out);

/* ---- the call into compiled CPU code ---- */
enum { GEN_STREAM = 1 }; /* gen_call.flags: outputs are larger than the caches: non-temporal stores */
typedef struct gen_call {
    /* per parameter: address of element 0, or the scalar's bits in its dtype, low bytes first */
    const uint64_t *slot;
    const int64_t *count; /* per parameter: elements of a buffer (read by `bounds` only) */
    int64_t grid[3]; /* program p is (p % g0, p / g0 % g1, p / (g0*g1)) */
    uint64_t flags;
    /* that of the first program: whoever calls takes it apart, so that no kernel need have code for it */
    int64_t id[3];
    /* asked now and then by loops that may never end; non-zero: return at once. NULL: go on for ever */
    int (*look)(void *ctx);
    void *look_ctx;
} gen_call;
/* written by `bounds` when it fails: the first failure of the lowest program of this call */
typedef struct gen_fault {
    uint64_t set, insn;
    int64_t index, program, thread;
} gen_fault;
/* Runs programs first <= p < last. What it streams, others see after a fence (sfence). scratch:
 * image.scratch bytes, 64-byte aligned, private to this call: threadgroup arrays and blocks that do not
 * fit registers. Its content is undefined on entry. */
typedef void gen_entry(const gen_call *call, int64_t first, int64_t last, void *scratch, gen_fault *fault);

/* ---- image.c: flat code ---- */
typedef struct gen_image {
    uint8_t *bytes;
    size_t size; /* malloc'ed; code and constants, loadable at any 64-byte aligned address */
    uint32_t entry; /* offset of gen_entry */
    uint64_t scratch; /* bytes of scratch a call needs */
    /* result may depend on whether *different* buffer arguments overlap; see gen_options.alias */
    uint8_t alias_sensitive;
} gen_image;
/* Links one relocatable ELF object (x86-64 or AArch64) into a flat image; fails with ERR_INTERNAL on
 * external symbols. */
eas_status gen_link_elf(const uint8_t *obj, size_t size, const char *entry, gen_image *out);
void gen_image_free(gen_image *im);

/* ---- register tiles of matrix products ---- */
/* Rows of sums that stay in registers beside `nvec` vectors of a row of the right factor and one element
 * of the left; three vectors want some to spare, or the allocator spills. */
static inline int gen_tile_rows(int registers, int nvec)
{
    return (registers - 1 - nvec - (nvec > 2 ? 3 : 0)) / nvec;
}
/* How many vectors side by side need the fewest loads for an fma. */
static inline int gen_tile_vectors(int registers) { return registers >= 32 ? 3 : 2; }

/* ---- the LLVM module: libeas-llvm exports one symbol, eas_llvm_compile, of this type ---- */
typedef struct gen_options {
    /* LLVM's feature string for this machine, "+avx2,+fma,..."; found by the cpu device */
    const char *cpu_features;
    int vector_bytes; /* native vector width: 16, 32, 64 */
    /* buffers of different arguments may overlap in any way: keep whole-block order between them */
    uint8_t alias;
    /* buffers that the kernel only adds to (ir_added) are replaced by arrays of the calling thread's own, as
     * long as they */
    uint8_t sums;
    /* NULL, or "plan" / "llvm" / "asm": only produce that text; "obj": the image is a relocatable object,
     * not linked */
    const char *text;
    /* eas_build_id() of the caller: a module of another build is refused; NULL: not checked */
    const char *build;
} gen_options;
typedef eas_status gen_llvm_compile(const eas_ir *ir, const gen_options *opt, gen_image *image, char **text,
                                    char **error);

#endif
