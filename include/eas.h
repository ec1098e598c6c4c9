/* eas.h: the whole public interface of libeas.
 *
 *   0. basics                       version, status, dtypes, the objects
 *   1. kernels                      building IR, finished IR, launches, captures, choosing among
 *                                   configurations
 *   2. devices and memory           devices, buffers, streams and events, copies, the cache on disk, threads
 *   3. tensors                      lazy tensors, evaluation, compiled programs, quantized matrices, files
 *   4. derivatives and meshes       of kernels, of tensors; layouts, parts, predictions, collectives between
 *                                   processes
 *   5. debugging                    checks, profiles, kernels that run while they are built, what the library
 *                                   did
 *
 * Conventions
 *   - The noun comes first: eas_node_shape asks a node. What appends to a kernel is eas_builder_*.
 *   - A call that can fail returns eas_status: EAS_OK or a negative code. The message is in
 *     eas_error_message(), per thread, until the next failing call on that thread.
 *   - A question is answered by an int, 1 or 0, never by a status: eas_node_is_real, eas_dtype_holds. A
 *     question with a further answer returns 1 and fills the answer in, or returns 0.
 *   - Not found is no error: _find returns the number before the first one, which is 0 for eas_op (whose
 *     codes begin at 1) and -1 for everything else; a pointer is NULL.
 *   - _new/_free own; _retain/_release count; every other pointer is borrowed from the object it was asked
 *     of.
 *   - Texts (char **) and arrays that a call makes belong to the caller, who frees them with eas_memory_free.
 *   - A builder is sticky: after its first error further calls do nothing and return 0; eas_builder_finish
 *     reports it.
 *   - Every function may be called from any thread; one builder belongs to one thread at a time.
 *   - A struct that may grow begins with its size: set it to sizeof the struct. 0 (not set) is accepted;
 *     any other size than this header's is refused.
 */
#ifndef EAS_H
#define EAS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define EAS_API __attribute__((visibility("default")))
#else
#define EAS_API
#endif

/* ====================================================================================================
 * 0. basics: version, status, dtypes, the objects
 * ==================================================================================================== */

/* ---- version ---------------------------------------------------------------------------------------- */

/* Of this header. The library's file is libeas.so.MAJOR; a library with another major version does not
 * load in its place. */
#define EAS_VERSION_MAJOR 0
#define EAS_VERSION_MINOR 1
#define EAS_VERSION_PATCH 0
#define EAS_VERSION (EAS_VERSION_MAJOR * 10000 + EAS_VERSION_MINOR * 100 + EAS_VERSION_PATCH)
EAS_API const char *eas_version(void);   /* of the library that runs: "0.1.0" */
EAS_API int eas_version_number(void);    /* the same as EAS_VERSION is made */

/* ---- status ----------------------------------------------------------------------------------------- */

/* X(NAME, code, text) */
#define EAS_STATUS_TABLE(X) \
    X(OK, 0, "ok") \
    X(ERR_VALUE, -1, "a value is out of its range") \
    X(ERR_TYPE, -2, "a type does not fit") \
    X(ERR_INDEX, -3, "an access is out of bounds") \
    X(ERR_MEMORY, -4, "out of memory") \
    X(ERR_RUNTIME, -5, "the operation failed") \
    X(ERR_IO, -6, "a file could not be used") \
    X(ERR_UNAVAILABLE, -7, "not available on this machine") \
    X(ERR_INTERRUPTED, -8, "interrupted") \
    X(ERR_SYNTAX, -9, "malformed IR text") \
    X(ERR_HANDLE, -10, "a released handle was used") \
    X(ERR_INTERNAL, -11, "an error inside libeas") \
    X(ERR_ASSERT, -12, "an assertion of a kernel failed")

typedef enum eas_status {
#define EAS_X(name, code, text) EAS_##name = code,
    EAS_STATUS_TABLE(EAS_X)
#undef EAS_X
} eas_status;

EAS_API const char *eas_status_name(eas_status st); /* "ERR_VALUE" */
EAS_API const char *eas_error_message(void);        /* of this thread's last failure; "" if none */
/* The source line that this thread's last failure is about, where the library knows it: 1 and *file,
 * *line; else 0. The message begins with it. */
EAS_API int eas_error_place(const char **file, int *line);
/* of texts and arrays that the library made for the caller; NULL is accepted */
EAS_API void eas_memory_free(void *p);
/* hash of the library's sources: part of every cache key */
EAS_API const char *eas_build_id(void);
/* of the compiler that the library was built with; "none" without one */
EAS_API const char *eas_llvm_version(void);

/* ---- dtypes ----------------------------------------------------------------------------------------- */

/* X(NAME, name, bytes, kind): kind is 'b'ool, 'i'nt, 'u'nsigned or 'f'loat */
#define EAS_DTYPE_TABLE(X) \
    X(BOOL, bool, 1, 'b') \
    X(I8, i8, 1, 'i') \
    X(I16, i16, 2, 'i') \
    X(I32, i32, 4, 'i') \
    X(I64, i64, 8, 'i') \
    X(U8, u8, 1, 'u') \
    X(U16, u16, 2, 'u') \
    X(U32, u32, 4, 'u') \
    X(U64, u64, 8, 'u') \
    X(F16, f16, 2, 'f') \
    X(BF16, bf16, 2, 'f') \
    X(F32, f32, 4, 'f') \
    X(F64, f64, 8, 'f')

typedef enum eas_dtype {
#define EAS_X(NAME, name, bytes, kind) EAS_##NAME,
    EAS_DTYPE_TABLE(EAS_X)
#undef EAS_X
        EAS_NDTYPES
} eas_dtype;

EAS_API size_t eas_dtype_size(eas_dtype dt);               /* bytes of an element */
EAS_API const char *eas_dtype_name(eas_dtype dt);          /* "f32" */
/* Does a number (f if is_float, else i) fit: no integer wraps, no finite number becomes an infinity? A
 * whole float fits integers, 0 and 1 fit bool. */
EAS_API int eas_dtype_holds(eas_dtype dt, int is_float, int64_t i, double f);
EAS_API char eas_dtype_kind(eas_dtype dt); /* 'b' 'i' 'u' 'f' */
EAS_API int eas_dtype_parse(const char *name, eas_dtype *out); /* 1 if name is a dtype's */

/* ---- objects ---------------------------------------------------------------------------------------- */

typedef struct eas_builder eas_builder;           /* a kernel while it is built; _new and _free */
typedef struct eas_ir eas_ir;                     /* a finished kernel; immutable, counted */
typedef struct eas_kernel eas_kernel; /* IR and, per device, what was compiled from it; counted */
typedef struct eas_launch eas_launch; /* how to launch; a struct, below */
/* launches and copies that were recorded, to be run again as a whole; counted */
typedef struct eas_capture eas_capture;
typedef struct eas_device eas_device; /* lives as long as the process */
typedef struct eas_buffer eas_buffer; /* memory of a device; counted */
/* a queue: work given to one stream runs in the order given; counted */
typedef struct eas_stream eas_stream;
typedef struct eas_event eas_event; /* a point in a stream; counted */
typedef struct eas_node eas_node; /* a lazy tensor; counted */
typedef struct eas_program eas_program; /* a compiled function of tensors; counted */
typedef struct eas_weights eas_weights; /* the tensors of a file; counted */
typedef struct eas_grad eas_grad; /* a derivative of a kernel; _free */
typedef struct eas_pullback eas_pullback; /* a derivative that waits for cotangents; counted */
typedef struct eas_dist_request eas_dist_request; /* a collective under way */
typedef struct eas_report eas_report; /* what a check found; _free */
typedef struct eas_profile eas_profile; /* times of launches; _free */

/* ====================================================================================================
 * 1. kernels: building IR, finished IR, launches, captures, choosing among configurations
 * ==================================================================================================== */

/* ---- building a kernel ------------------------------------------------------------------------------ */

typedef uint32_t eas_value; /* an SSA value of the kernel being built; 0 is "none" */

/* An instruction of the IR, found by its name ("add", "floordiv", "where"); docs/ir.md lists them. 0 is
 * none. */
typedef uint16_t eas_op;
EAS_API eas_op eas_op_find(const char *name);
EAS_API const char *eas_op_name(eas_op op);
EAS_API int eas_op_count(void); /* codes are 1 .. count */

enum { /* flags of a kernel */
       EAS_KERNEL_NO_CONTRACT = 1, /* keep a*b+c as two roundings */
       EAS_KERNEL_FAST_MATH = 2, /* elementary functions may be the device's own */
       /* for eas_kernel_check alone: barriers may stand where control may differ between threads; no
        * device runs it */
       EAS_KERNEL_LOOSE = 4
};

/* A builder for a kernel of that name; flags: EAS_KERNEL_*. Declare the parameters first, then append
 * instructions, then eas_builder_finish; eas_builder_free in any case. */
EAS_API eas_status eas_builder_new(const char *name, unsigned flags, eas_builder **out);
/* What tells this kernel from others of its name, such as "BLOCK=64": shown by profiles, and no part of
 * what the kernel means. */
EAS_API void eas_builder_config(eas_builder *b, const char *text);
EAS_API void eas_builder_free(eas_builder *b);
EAS_API eas_status eas_builder_status(const eas_builder *b); /* EAS_OK until the first error */
/* The source position that instructions built from now on carry. file may be NULL. */
EAS_API void eas_builder_at(eas_builder *b, const char *file, int line);

/* Parameters, in call order, before anything else. A scalar is *weak* when it stands for a Python number:
 * it then takes the dtype of what it meets (i64 and f64 are what the host hands over). */
EAS_API eas_value eas_builder_param_buffer(eas_builder *b, const char *name, eas_dtype elem);
EAS_API eas_value eas_builder_param_scalar(eas_builder *b, const char *name, eas_dtype dt, int weak);

/* Literals. The weak ones adopt the dtype of the other operand. */
EAS_API eas_value eas_builder_const_int(eas_builder *b, int64_t v); /* weak i64 */
EAS_API eas_value eas_builder_const_float(eas_builder *b, double v); /* weak f32 */
EAS_API eas_value eas_builder_const_bool(eas_builder *b, int v);
/* f for floats, i for the rest */
EAS_API eas_value eas_builder_const_typed(eas_builder *b, eas_dtype dt, double f, int64_t i);
/* the same, and it must fit the integers that it meets */
EAS_API eas_value eas_builder_const_number(eas_builder *b, eas_dtype dt, double f, int64_t i);

/* Identity of the running program. All are i64 in the traced IR. */
EAS_API eas_value eas_builder_program_id(eas_builder *b, int axis);
EAS_API eas_value eas_builder_num_programs(eas_builder *b, int axis);
/* block (size,): SPMD mode */
EAS_API eas_value eas_builder_arange(eas_builder *b, int64_t start, int64_t size);
/* start + thread in group: thread mode */
EAS_API eas_value eas_builder_tid(eas_builder *b, int64_t start, int64_t size);
EAS_API eas_value eas_builder_local_id(eas_builder *b, int axis);
EAS_API eas_value eas_builder_lane_id(eas_builder *b);
EAS_API eas_value eas_builder_sg_id(eas_builder *b);

/* An element-wise operation on 1 to 3 values, with literals adapted, dtypes promoted and shapes broadcast.
 * "div" of integers is true division; "floordiv" and "mod" follow Python on integers and floats. */
EAS_API eas_value eas_builder_apply(eas_builder *b, eas_op op, eas_value x, eas_value y, eas_value z);
/* x / y rounded up; by 0 it is 0 for integers */
EAS_API eas_value eas_builder_cdiv(eas_builder *b, eas_value x, eas_value y);
EAS_API eas_value eas_builder_cast(eas_builder *b, eas_value x, eas_dtype dt);
/* The same for a function `what`, in which a literal must fit (eas_dtype_holds). */
EAS_API eas_value eas_builder_convert(eas_builder *b, const char *what, eas_value x, eas_dtype dt);
EAS_API eas_value eas_builder_bitcast(eas_builder *b, eas_value x, eas_dtype dt);
EAS_API eas_value eas_builder_broadcast(eas_builder *b, eas_value x, int rank, const int64_t *shape);
EAS_API eas_value eas_builder_reshape(eas_builder *b, eas_value x, int rank, const int64_t *shape);

/* Along an axis of a block (negative axes count from the end); the axis disappears. The order of joining
 * is fixed: see docs/ir.md. reduce: op joins two values: add, mul, min, max, and, or, xor. fold: fn does.
 * scan: running results, same shape. */
EAS_API eas_value eas_builder_reduce(eas_builder *b, eas_op op, eas_value x, int axis);
EAS_API eas_value eas_builder_fold(eas_builder *b, eas_value x, int axis,
                                   eas_value (*fn)(void *ctx, eas_builder *b, eas_value x, eas_value y),
                                   void *ctx);
/* i64; the first of equals */
EAS_API eas_value eas_builder_arg_reduce(eas_builder *b, int want_max, eas_value x, int axis);
EAS_API eas_value eas_builder_scan(eas_builder *b, eas_op op, eas_value x, int axis);
/* Lanes that change places. gather: x at the indices along an axis, in the shape of index; negative ones
 * count from the end, others outside give 0. lane: one index; the axis disappears. sort: stable, NaN last
 * (first if it descends); order: the positions of the sorted elements, i64; both may be NULL. histogram:
 * how often 0, 1, ..., bins - 1 occur, i32; mask may be 0. scan_with: running results by fn, which joins n
 * values with n later ones. */
EAS_API eas_value eas_builder_gather(eas_builder *b, eas_value x, eas_value index, int axis);
EAS_API eas_value eas_builder_lane(eas_builder *b, eas_value x, int axis, eas_value index);
EAS_API eas_value eas_builder_flip(eas_builder *b, eas_value x, int axis);
EAS_API eas_value eas_builder_cat(eas_builder *b, eas_value x, eas_value y, int axis);
EAS_API void eas_builder_sort(eas_builder *b, eas_value x, int axis, int descending, eas_value *sorted,
                              eas_value *order);
EAS_API eas_value eas_builder_histogram(eas_builder *b, eas_value x, int64_t bins, eas_value mask);
EAS_API void eas_builder_scan_with(eas_builder *b, int n, const eas_value *x, int axis, int reverse,
                                   int (*fn)(void *ctx, eas_builder *b, const eas_value *x,
                                             const eas_value *y, eas_value *out),
                                   void *ctx, eas_value *out);
/* Of integers: bits that are set; zeros above the highest and below the lowest one (the width of x for 0),
 * as i32; the upper half of a product. */
typedef enum eas_bits_kind { EAS_BITS_POPCOUNT, EAS_BITS_CLZ, EAS_BITS_CTZ, EAS_BITS_UMULHI } eas_bits_kind;
EAS_API eas_value eas_builder_bits(eas_builder *b, eas_bits_kind kind, eas_value x, eas_value y);
/* Functions that are made of instructions: asin acos atan atan2 sinh cosh asinh acosh atanh log10 cbrt
 * hypot copysign. y: of those of two. */
EAS_API eas_value eas_builder_function(eas_builder *b, const char *name, eas_value x, eas_value y);
/* Blocks (M,K) times (K,N), plus acc (M,N) if it is not 0: one fma a step, k ascending, in f32 (f64 if any
 * of them is). With a first axis more, one product each. i8 and u8: exact, in i32. */
EAS_API eas_value eas_builder_matmul(eas_builder *b, eas_value x, eas_value y, eas_value acc);
EAS_API eas_value eas_builder_slice(eas_builder *b, eas_value x, int axis, int64_t start, int64_t size);
EAS_API eas_value eas_builder_trans(eas_builder *b, eas_value x, const int *axes); /* NULL: axes reversed */
EAS_API eas_value eas_builder_join(eas_builder *b, eas_value x, eas_value y); /* on a new last axis of 2 */

/* Random numbers by Philox-4x32-10: the same bits for the same seed and offset on every device. All are
 * integers; shapes broadcast. philox: the four u32 words of one step; stream (0: none) is the upper half
 * of the counter. rand: from its first words. rand_int: i64 in [lo, hi), a range of at most 2^32. */
typedef enum eas_rand_kind {
    EAS_RAND_BITS, /* u32 */
    EAS_RAND_UNIFORM, /* f32 in [0, 1) */
    EAS_RAND_NORMAL, /* f32, mean 0, deviation 1 */
    EAS_RAND_BITS64, /* the same in u64 and f64 */
    EAS_RAND_UNIFORM64,
    EAS_RAND_NORMAL64
} eas_rand_kind;
EAS_API void eas_builder_philox(eas_builder *b, eas_value seed, eas_value offset, eas_value stream,
                                eas_value words[4]);
EAS_API eas_value eas_builder_rand(eas_builder *b, eas_value seed, eas_value offset, eas_rand_kind kind);
EAS_API eas_value eas_builder_rand_int(eas_builder *b, eas_value seed, eas_value offset, eas_value lo,
                                       eas_value hi);

/* Memory. mask and other may be 0. Masked-off lanes read `other` (0 by default) and write nothing. */
EAS_API eas_value eas_builder_load(eas_builder *b, eas_value buf, eas_value off, eas_value mask,
                                   eas_value other);
EAS_API void eas_builder_store(eas_builder *b, eas_value buf, eas_value off, eas_value val, eas_value mask);
/* op: "atomic_add", "atomic_min", "atomic_max", "atomic_and", "atomic_or", "atomic_xor", "atomic_xchg"
 * with the value x, or "atomic_cas" with x expected and y desired. Gives the old elements; lanes of a
 * block take effect in their order, lanes that are masked off give 0. "atomic_load" (x and y are 0) only
 * reads. Relaxed: an atomic orders nothing but the accesses of its own element. */
EAS_API eas_value eas_builder_atomic(eas_builder *b, eas_op op, eas_value buf, eas_value off, eas_value x,
                                     eas_value y, eas_value mask);
/* As in C11. fence: accesses before it are not seen after those behind it (release), or those behind it
 * not before (acquire), by the threads of the group or by all programs. An atomic with an order has such
 * fences before and behind it: eas_builder_atomic_ordered appends them. */
typedef enum eas_order {
    EAS_ORDER_RELAXED,
    EAS_ORDER_ACQUIRE,
    EAS_ORDER_RELEASE,
    EAS_ORDER_ACQ_REL,
    EAS_ORDER_SEQ_CST,
    EAS_NORDERS
} eas_order;
typedef enum eas_scope { EAS_SCOPE_GROUP, EAS_SCOPE_DEVICE, EAS_NSCOPES } eas_scope;
EAS_API void eas_builder_fence(eas_builder *b, eas_order order, eas_scope scope);
EAS_API eas_value eas_builder_atomic_ordered(eas_builder *b, eas_op op, eas_value buf, eas_value off,
                                             eas_value x, eas_value y, eas_value mask, eas_order order);
EAS_API eas_value eas_builder_alloc_tg(eas_builder *b, int64_t size, eas_dtype elem);
EAS_API void eas_builder_barrier(eas_builder *b);

/* Between the threads of a simdgroup (32 neighbours; the group has a multiple of 32 threads) and of a
 * whole group (of any size). Control flow around them must be the same for the whole group. x is one value
 * per thread; the result is the same for all that share it. The order of joining is fixed: see docs/ir.md.
 * reduce: op is add, mul, min, max, and, or, xor. scan: running sums; exclusive: without the own value. */
typedef enum eas_shuffle {
    EAS_SHUFFLE_LANE, /* the value of lane y, modulo 32 */
    EAS_SHUFFLE_XOR, /* of lane own ^ y */
    EAS_SHUFFLE_UP, /* of lane own - y; lanes without a source keep their own */
    EAS_SHUFFLE_DOWN /* of lane own + y; likewise */
} eas_shuffle;
EAS_API eas_value eas_builder_simd_shuffle(eas_builder *b, eas_shuffle kind, eas_value x, eas_value y);
EAS_API eas_value eas_builder_simd_reduce(eas_builder *b, eas_op op, eas_value x);
EAS_API eas_value eas_builder_simd_scan(eas_builder *b, eas_value x, int exclusive);
EAS_API eas_value eas_builder_tg_reduce(eas_builder *b, eas_op op, eas_value x);
EAS_API eas_value eas_builder_tg_scan(eas_builder *b, eas_value x, int exclusive);

/* sum over k < K of a[a_base + k*a_stride] * b[b_base + k*b_stride], in f32 (f64 for f64 buffers) with one
 * fma a step */
EAS_API eas_value eas_builder_dot(eas_builder *b, eas_value a, eas_value a_base, eas_value a_stride,
                                  eas_value bb, eas_value b_base, eas_value b_stride, eas_value K);
/* Debugging. assert: launches with `debug` stop with ERR_ASSERT where a lane's condition is false; others
 * do not look. print: one record per program, written after the launch in the order of programs; text has
 * one {} for each value ({{ and }} for braces); mask (0: always) chooses lanes. */
EAS_API void eas_builder_assert(eas_builder *b, eas_value cond, const char *message, eas_value mask);
EAS_API void eas_builder_print(eas_builder *b, const char *text, int n, const eas_value *values,
                               eas_value mask);
EAS_API eas_value eas_builder_mma_zero(eas_builder *b);
EAS_API eas_value eas_builder_mma(eas_builder *b, eas_value a, eas_value a_base, eas_value a_stride,
                                  eas_value bb, eas_value b_base, eas_value b_stride, eas_value acc);
EAS_API void eas_builder_mma_store(eas_builder *b, eas_value buf, eas_value base, eas_value stride,
                                   eas_value frag);

/* Structured control. Bodies are what is built between begin and end. loop: body values iv and
 * carried[0..n) are returned; end takes the next carried values and returns the final ones. if: else_
 * takes the then-values, end takes the else-values (or the only branch's none) and returns the merged
 * ones. */
EAS_API void eas_builder_loop_begin(eas_builder *b, eas_value lo, eas_value hi, eas_value step, int n,
                                    const eas_value *init, eas_value *iv, eas_value *carried);
EAS_API void eas_builder_loop_end(eas_builder *b, int n, const eas_value *next, eas_value *final);
EAS_API void eas_builder_while_begin(eas_builder *b, int n, const eas_value *init, eas_value *carried);
EAS_API void eas_builder_while_do(eas_builder *b, eas_value cond);
EAS_API void eas_builder_while_end(eas_builder *b, int n, const eas_value *next, eas_value *final);
EAS_API void eas_builder_if_begin(eas_builder *b, eas_value cond);
EAS_API void eas_builder_if_else(eas_builder *b, int n, const eas_value *then_values);
EAS_API void eas_builder_if_end(eas_builder *b, int n, const eas_value *else_values, eas_value *merged);

/* For front ends that learn what a body changes by building it. join: ends an if whose else was begun with
 * no values; the two values of each pair are promoted and broadcast to one type. mark, rewind: forgets
 * everything built since the mark, regions included; its values are dead. */
EAS_API void eas_builder_if_join(eas_builder *b, int n, const eas_value *then_values,
                                 const eas_value *else_values, eas_value *merged);
typedef struct eas_mark {
    uint32_t ninsns, nvals, npool, nopen, hoisted;
    uint32_t group_array[32];
} eas_mark;
EAS_API void eas_builder_mark(const eas_builder *b, eas_mark *out);
EAS_API void eas_builder_rewind(eas_builder *b, const eas_mark *m);

/* What is known of a value while building. */
EAS_API eas_dtype eas_value_dtype(const eas_builder *b, eas_value v);
EAS_API int eas_value_shape(const eas_builder *b, eas_value v, int64_t shape[4]); /* returns the rank */
EAS_API int eas_value_is_buffer(const eas_builder *b, eas_value v);
EAS_API int eas_value_is_weak(const eas_builder *b, eas_value v);
/* 1 and *out if v is a literal integer or bool */
EAS_API int eas_value_const_int(const eas_builder *b, eas_value v, int64_t *out);

/* Verifies, simplifies and hands over the IR (counted); the builder is spent and must still be freed. */
EAS_API eas_status eas_builder_finish(eas_builder *b, eas_ir **out);

/* ---- finished IR ------------------------------------------------------------------------------------ */

EAS_API eas_ir *eas_ir_retain(eas_ir *ir); /* counts one more reference and returns ir */
EAS_API void eas_ir_release(eas_ir *ir);   /* NULL is accepted */
/* Text form: eas_ir_parse(eas_ir_text(ir)) gives the same IR back. */
EAS_API eas_status eas_ir_text(const eas_ir *ir, int with_lines, char **out);
/* parses and verifies; does not simplify */
EAS_API eas_status eas_ir_parse(const char *text, size_t len, eas_ir **out);
/* a simplified copy; what eas_builder_finish has done already */
EAS_API eas_status eas_ir_simplify(const eas_ir *ir, eas_ir **out);

EAS_API const char *eas_ir_name(const eas_ir *ir);     /* of the kernel */
EAS_API int eas_ir_param_count(const eas_ir *ir);      /* parameters are 0 .. count-1 */
typedef struct eas_param {
    const char *name;
    eas_dtype dtype; /* element dtype of a buffer */
    uint8_t is_buffer;
    uint8_t is_read, is_written, is_atomic; /* for buffers */
} eas_param;
EAS_API eas_param eas_ir_param(const eas_ir *ir, int i); /* zeros if there is no parameter i */

typedef struct eas_insn { /* one instruction, for looking at */
    eas_op op;
    int nargs, nresults;
    const eas_value *args;
    eas_value result; /* first of nresults consecutive values; 0 if none */
    const char *file; /* NULL if unknown */
    int line;
    int64_t imm; /* start, axis, size or constant bits, by op */
} eas_insn;
EAS_API int eas_ir_insn_count(const eas_ir *ir);       /* instructions are 0 .. count-1 */
EAS_API eas_insn eas_ir_insn(const eas_ir *ir, int i); /* zeros if there is no instruction i */
/* The dtype and the shape of a value; rank 0 is a scalar. ERR_VALUE if ir has no value v. */
EAS_API eas_status eas_ir_value_type(const eas_ir *ir, eas_value v, eas_dtype *dt, int *rank,
                                     int64_t shape[4]);

enum { EAS_MODE_SPMD = 0, EAS_MODE_THREAD = 1 };
typedef struct eas_ir_info {
    int mode; /* EAS_MODE_* */
    int64_t block; /* innermost block size (SPMD) or threads in a group */
    int naxes; /* 1 + the highest program axis used; at least 1 */
    int64_t tg_bytes; /* threadgroup memory */
    int has_barrier;
} eas_ir_info;
EAS_API eas_ir_info eas_ir_analyse(const eas_ir *ir); /* how the kernel is launched */

/* Texts for looking at: "ir", "msl", "opencl" need nothing; "plan" (how it runs on the CPU), "llvm" and
 * "asm" open the compiler. */
EAS_API eas_status eas_ir_emit(const eas_ir *ir, const char *form, char **out);

/* ---- kernels and launches --------------------------------------------------------------------------- */

/* needs no device; simplifies; retains what it keeps */
EAS_API eas_status eas_kernel_new(eas_ir *ir, eas_kernel **out);
/* The same over many sets of arguments at once: programs of `axis` (0 to 2, one that k does not use) are
 * the sets. Buffers with batched[i] hold the sets one after the other, and there is one more parameter
 * (i64) at the end for each of them: the elements of one set. Others are shared, and must not be written. */
EAS_API eas_status eas_kernel_lanes(eas_kernel *k, const uint8_t *batched, int axis, eas_kernel **out);
EAS_API eas_kernel *eas_kernel_retain(eas_kernel *k);
EAS_API void eas_kernel_release(eas_kernel *k);
EAS_API eas_ir *eas_kernel_ir(const eas_kernel *k); /* borrowed */
EAS_API eas_ir_info eas_kernel_info(const eas_kernel *k);
/* "ir", "msl", "opencl", "plan", "llvm", "asm"; msl and opencl are the 32-bit forms where those are
 * possible. */
EAS_API eas_status eas_kernel_text(eas_kernel *k, const char *form, char **out);
/* The CPU code as a relocatable object of the host's format; its function is `kernel`. Opens the compiler. */
EAS_API eas_status eas_kernel_object(eas_kernel *k, void **bytes, size_t *size);
/* Fails, and says what is missing, if d does not have what the kernel needs (threads, memory of a group,
 * dtypes). Compiles nothing. */
EAS_API eas_status eas_kernel_require(eas_kernel *k, eas_device *d);

enum {
    EAS_ARG_READONLY = 1,
    /* host memory: on a device that cannot use it, it is copied there and, if written, back */
    EAS_ARG_HOST = 2
};
typedef struct eas_arg {
    union {
        void *data; /* buffers: first element, on the device's memory */
        int64_t i; /* bool and integer scalars */
        double f; /* float scalars */
    } v;
    int64_t count; /* buffers: elements reachable from data; scalars: ignored */
    uint8_t dtype; /* eas_dtype */
    uint8_t is_buffer;
    uint8_t flags; /* EAS_ARG_* */
} eas_arg;

struct eas_launch {
    uint32_t size; /* sizeof(eas_launch), for later versions */
    uint8_t has_grid, has_nthreads, has_shape;
    /* 1: checks and asserts; 2: none; 0: as EAS_DEBUG of the environment was at the first launch */
    uint8_t debug;
    int64_t grid[3]; /* programs (SPMD) or threadgroups */
    int64_t nthreads;
    int64_t shape[3]; /* last dims of the iteration space, (D,) H, W */
    int nshape;
    /* asked now and then during a long launch, on the calling thread; non-zero stops it with
     * ERR_INTERRUPTED */
    int (*interrupted)(void *ctx);
    void *ctx;
    /* called on the calling thread before and after a launch that is not tiny (to release and take a lock) */
    void (*leave)(void *ctx);
    void (*enter)(void *ctx);
    /* streams */
    eas_stream *stream; /* NULL: this thread's current one */
    uint8_t async; /* return once the launch is queued; failures come at the stream's next synchronise */
    /* Objects that keep the arguments' memory alive. A launch that may still run when the call returns
     * (async, or interrupted on a device with memory of its own) calls retain for each; a later call on
     * the stream, on its own thread, calls release when the launch is over. */
    void *const *hold;
    int nhold;
    void (*retain)(void *object);
    void (*release)(void *object);
    /* takes what the kernel printed, on the calling thread; NULL: standard output */
    void (*print)(void *ctx, const char *text, size_t n);
};

/* Where opts is NULL or has no grid, the grid is inferred from nthreads, shape, or the scalars N / H, W,
 * D. */
EAS_API eas_status eas_kernel_launch(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs,
                                     const eas_launch *opts);
/* The grid that a launch would have; fails where it cannot be inferred. */
EAS_API eas_status eas_kernel_grid(const eas_kernel *k, const eas_arg *args, int nargs,
                                   const eas_launch *opts, int64_t grid[3]);
/* 0, and the message says why: the grid that a launch would infer from N surely leaves elements of an
 * argument out. 1: nothing of that kind is known. */
EAS_API int eas_kernel_covers(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *opts);
/* Compiles for d what a launch with these arguments would need, without launching. */
EAS_API eas_status eas_kernel_prepare(eas_kernel *k, eas_device *d, const eas_arg *args, int nargs,
                                      const eas_launch *opts);

/* A launch on a queue that others own (torch's, say): which text for exactly these arguments, what to
 * bind, how many threads. Nothing runs. Addresses only tell which buffers overlap: any will do that do
 * that. ERR_UNAVAILABLE where something would have to come back from the device: accesses that are not
 * proved to stay inside, prints, debug. */
enum { EAS_MAX_PARAMS = 256 };
typedef struct eas_source {
    int variant; /* which text: eas_kernel_source_text */
    int64_t threads[3], group[3]; /* in all, and in a group; all 0: nothing to do */
    /* a scalar's bytes as the text takes them, the first at the lowest address; buffers 0. Bound in order */
    uint64_t value[EAS_MAX_PARAMS];
} eas_source;
EAS_API eas_status eas_kernel_source(eas_kernel *k, const char *form, const eas_arg *args, int nargs,
                                     const eas_launch *opts, eas_source *out);
EAS_API eas_status eas_kernel_source_text(eas_kernel *k, const char *form, int variant, char **text,
                                          char **name); /* "msl", "opencl" */

/* ---- capture and replay ----------------------------------------------------------------------------- */

/* From begin to end (or abort) launches and queued copies of this thread are checked and recorded, not
 * run. For rebinding, the first objects of eas_launch.hold are the arguments', one each. end compiles what
 * is missing, in parallel, and makes the graph usable. */
EAS_API eas_status eas_capture_begin(eas_capture **out);
EAS_API eas_status eas_capture_end(eas_capture *g, const eas_launch *hooks);
EAS_API void eas_capture_abort(eas_capture *g);
EAS_API int eas_capture_is_open(void); /* is this thread recording? */
EAS_API eas_capture *eas_capture_retain(eas_capture *g);
EAS_API void eas_capture_release(eas_capture *g);
EAS_API int eas_capture_count(const eas_capture *g); /* launches and copies */
/* Runs everything, in order: stream, async and hooks of opts count. */
EAS_API eas_status eas_capture_replay(eas_capture *g, const eas_launch *opts);
/* Calls the array at an address by a name of its own. */
EAS_API eas_status eas_capture_label(eas_capture *g, const char *name, const void *address);
/* Replaces what the name stands for (a label, else a parameter's name if it stands for one value only)
 * from now on. A refused value changes nothing. object is retained as the capture's objects were, and may
 * be NULL. */
EAS_API eas_status eas_capture_bind(eas_capture *g, const char *name, const eas_arg *arg, void *object);

/* ---- choosing among configurations ------------------------------------------------------------------ */

/* The first, in order, of those within the band (0.02: 2 %) above the least; negative times are configs
 * that are out. -1: all are. */
EAS_API int eas_tune_choose(const double *seconds, int n, double band);
/* Timings on disk, beside the cache: by kernel (so by config), device, build of the library, and a key of
 * the caller's. */
/* 1 if there is one */
EAS_API int eas_tune_load(eas_kernel *k, eas_device *d, const char *key, double *seconds);
/* best effort; one that is there stays: load it again */
EAS_API void eas_tune_store(eas_kernel *k, eas_device *d, const char *key, double seconds);
EAS_API eas_status eas_tune_export(char **out); /* all of them, a line each */
EAS_API eas_status eas_tune_import(const char *text, int *count);

/* ====================================================================================================
 * 2. devices and memory: devices, buffers, streams and events, copies, the cache on disk, threads
 * ==================================================================================================== */

/* ---- devices and buffers ---------------------------------------------------------------------------- */

EAS_API eas_status eas_device_get(const char *name, eas_device **out); /* "cpu", "ref", ... */
EAS_API const char *eas_device_name(const eas_device *d); /* the name that eas_device_get takes */
EAS_API const char *eas_device_describe(const eas_device *d); /* one line for people */
EAS_API int eas_device_count(void); /* of all kinds of devices, usable or not */
EAS_API eas_device *eas_device_at(int i); /* 0 .. count-1; else NULL */
EAS_API const char *eas_device_unavailable(const eas_device *d); /* NULL if it can be used, else the reason */
typedef struct eas_device_facts { /* whether it can be used or not; strings may be NULL */
    const char *alias; /* another name for it */
    const char *text; /* the form of eas_kernel_text that it compiles; NULL: machine code, or none */
    const char *absent, *failed; /* what to do where it cannot be used, and where it gives wrong results */
    int dlpack; /* device type of its tensors in DLPack */
} eas_device_facts;
EAS_API eas_device_facts eas_device_facts_get(const eas_device *d); /* the same at any time */
/* 1: its addresses are host pointers, and it takes any host memory as it is */
EAS_API int eas_device_has_host_memory(const eas_device *d);

typedef struct eas_limits { /* of a device that can be used; 0: no limit */
    /* threads of a group; threadgroup memory; width of a simdgroup; buffer arguments */
    int64_t threads, tg_bytes, simd, buffers;
    uint64_t max_alloc; /* bytes */
    uint8_t f64, f16, i64_atomics; /* does it have them? */
    uint8_t unified; /* host and device share memory */
} eas_limits;
EAS_API eas_status eas_device_limits(eas_device *d, eas_limits *out);

/* New memory of a device, not initialised; from the device's pool of freed memory if that has some. */
EAS_API eas_status eas_buffer_new(eas_device *d, size_t nbytes, eas_buffer **out);
/* Wraps memory of the caller's; done(ctx), if not NULL, is called when the last reference goes. */
EAS_API eas_status eas_buffer_wrap(eas_device *d, void *data, size_t nbytes, void (*done)(void *), void *ctx,
                                   eas_buffer **out);
EAS_API eas_buffer *eas_buffer_retain(eas_buffer *b);
EAS_API void eas_buffer_release(eas_buffer *b);
EAS_API eas_device *eas_buffer_device(const eas_buffer *b);
EAS_API size_t eas_buffer_size(const eas_buffer *b);
EAS_API void *eas_buffer_host(const eas_buffer *b); /* NULL where the host cannot reach it */
/* Memory that the host reaches as well (eas_buffer_host): on devices with memory of their own it is
 * outside the pool. */
EAS_API eas_status eas_buffer_new_shared(eas_device *d, size_t nbytes, eas_buffer **out);
/* Memory that others made with the device's own interface (Metal: an id<MTLBuffer>). It is retained;
 * done(ctx) is called when the last reference goes. The same handle has the same address while any buffer
 * of it lives. ERR_VALUE where the device has no such handles. */
EAS_API eas_status eas_buffer_adopt(eas_device *d, void *handle, void (*done)(void *), void *ctx,
                                    eas_buffer **out);
/* The other way: the handle that an address of the device's lies in, and how far in; NULL where there is
 * none. Borrowed. */
EAS_API void *eas_device_handle(eas_device *d, const void *address, size_t *offset);
/* of its first byte, in the device's own space; offsets may be added */
EAS_API void *eas_buffer_address(const eas_buffer *b);
EAS_API const void *eas_buffer_read(const eas_buffer *b); /* the same, to be read only */
/* The caller will not write to the memory any more, so that the library may keep what it computes from it:
 * weights are laid out for products once, not at every call (docs/caches.md). Tensors that were computed and
 * those of files are sealed. Who asks for the address by eas_buffer_address or eas_buffer_host may write to
 * it from then on. */
EAS_API void eas_buffer_seal(eas_buffer *b);

/* Freed buffers are kept for the next request of their size: see docs/devices.md. Bytes are those taken
 * from the device. */
typedef struct eas_memory {
    uint64_t live_bytes, live_count; /* in use */
    uint64_t cached_bytes, cached_count; /* kept */
    uint64_t peak_bytes; /* the most that was in use */
    uint64_t hits, misses; /* requests served from what was kept, and from the device */
    uint64_t limit; /* on cached_bytes, now */
} eas_memory;
EAS_API eas_memory eas_memory_stats(eas_device *d);
EAS_API void eas_device_empty_cache(eas_device *d); /* NULL: of every device */

/* ---- streams, events and copies --------------------------------------------------------------------- */

/* A new stream: its work runs in the order given, and beside that of other streams. */
EAS_API eas_status eas_stream_new(eas_device *d, eas_stream **out);
EAS_API eas_stream *eas_stream_retain(eas_stream *s);
EAS_API void eas_stream_release(eas_stream *s); /* the last one waits for its work */
EAS_API eas_device *eas_stream_device(const eas_stream *s); /* that it was made for */
EAS_API eas_status eas_stream_default(eas_device *d, eas_stream **out); /* the device's own; borrowed */
/* this thread's for d, else the default; borrowed */
EAS_API eas_status eas_stream_current(eas_device *d, eas_stream **out);
/* Makes s (NULL: the default) this thread's stream for d and returns the former one, NULL for the default.
 * Borrowed: keep s while it is in use. */
EAS_API eas_stream *eas_stream_use(eas_device *d, eas_stream *s);
EAS_API int eas_stream_is_idle(eas_stream *s); /* 1 when everything given to it is done */
/* Waits for everything given. Returns, once, the first failure among it since the last wait; the stream
 * stays usable. hooks may be NULL; with `interrupted` the wait can end early with ERR_INTERRUPTED while
 * the work goes on. */
EAS_API eas_status eas_stream_synchronize(eas_stream *s, const eas_launch *hooks);
/* every stream of d; NULL: of every device */
EAS_API eas_status eas_device_synchronize(eas_device *d, const eas_launch *hooks);

/* An event that is not recorded yet; it belongs to no device until it is. */
EAS_API eas_status eas_event_new(eas_event **out);
EAS_API eas_event *eas_event_retain(eas_event *e);
EAS_API void eas_event_release(eas_event *e);
/* reached when all given to s before is done; replaces an earlier record */
EAS_API eas_status eas_event_record(eas_event *e, eas_stream *s);
/* What is given to s from now on runs after the event. Between devices the caller waits. An event that was
 * not recorded holds nothing up. */
EAS_API eas_status eas_event_wait(eas_event *e, eas_stream *s, const eas_launch *hooks);
EAS_API eas_status eas_event_synchronize(eas_event *e,
                                         const eas_launch *hooks); /* waits until it is reached */
EAS_API int eas_event_is_reached(eas_event *e); /* 1 also if it was never recorded */
/* Seconds between two recorded events of one device; waits for both. */
EAS_API eas_status eas_event_elapsed(eas_event *start, eas_event *end, double *seconds,
                                     const eas_launch *hooks);

/* Copies n bytes between devices (NULL: the host) and waits. Both streams' work so far, the current ones
 * of this thread, is done before. */
EAS_API eas_status eas_device_copy(eas_device *to, void *dst, eas_device *from, const void *src, size_t n,
                                   const eas_launch *hooks);

/* A copy on one device's stream, as a launch is: queued with `async`, recorded by a capture. TO: from the
 * host; FROM: to the host. hold: dst's object, then src's. */
typedef enum eas_copy_way { EAS_COPY_TO, EAS_COPY_FROM, EAS_COPY_WITHIN } eas_copy_way;
EAS_API eas_status eas_device_copy_on(eas_device *d, eas_copy_way way, void *dst, const void *src, size_t n,
                                      const eas_launch *opts);

/* ---- the cache on disk and the thread pool ---------------------------------------------------------- */

EAS_API const char *eas_cache_dir(void); /* "" when the disk cache is off, eas_cache_why() then says why */
EAS_API const char *eas_cache_why(void); /* why there is no disk cache; "" if there is one */
EAS_API eas_status eas_cache_clear(void); /* kernels and timings */
EAS_API eas_status eas_cache_verify(uint64_t *good, uint64_t *bad, uint64_t *bytes); /* drops the bad ones */
EAS_API int eas_threads_count(void); /* threads that a launch on the cpu is spread over */
/* Launches from now on use the host program's threads in place of the library's own: run(fn, ctx, n, 0)
 * calls fn(ctx) on the calling thread and on at most n - 1 others, and returns when all are done
 * (libgomp's and libomp's GOMP_parallel does). NULL: the library's own again. A child of fork uses its
 * own. */
EAS_API void eas_threads_lend(void (*run)(void (*fn)(void *ctx), void *ctx, unsigned n, unsigned flags));
/* The lock that a host program calls the library under (Python's GIL), for calls that take no hooks:
 * leave() gives it up while the calling thread waits for another one that may need it, and enter() takes
 * it again with what leave() gave. leave() gives NULL where the thread does not have the lock. */
EAS_API void eas_host_set_lock(void *(*leave)(void), void (*enter)(void *left));

/* ====================================================================================================
 * 3. tensors: lazy tensors, evaluation, compiled programs, quantized matrices, files
 * ==================================================================================================== */

/* ---- lazy tensors ----------------------------------------------------------------------------------- */

/* A size: >= 0, or < 0 for an expression in symbols. Equal expressions have equal numbers, in one process. */
typedef int64_t eas_dim;
typedef enum eas_dim_op {
    EAS_DIM_ADD,
    EAS_DIM_SUB,
    EAS_DIM_MUL,
    EAS_DIM_FLOORDIV,
    EAS_DIM_MOD,
    EAS_DIM_MIN,
    EAS_DIM_MAX
} eas_dim_op;
EAS_API eas_status eas_dim_symbol(const char *name, eas_dim *out);
EAS_API eas_status eas_dim_apply(eas_dim_op op, eas_dim a, eas_dim b, eas_dim *out);
EAS_API eas_status eas_dim_text(eas_dim d, char **out); /* "2*batch + 1" */
/* The value of d where symbol names[i] is values[i]; ERR_VALUE names a symbol that has none. */
EAS_API eas_status eas_dim_value(eas_dim d, int n, const char *const *names, const int64_t *values,
                                 int64_t *out);

/* Asked on this thread where two sizes that are different expressions must be equal: does the caller take
 * them for equal? (A function that is traced for certain sizes answers by them, and remembers what it
 * answered.) NULL: they are different. */
typedef int (*eas_dim_decide)(void *context, eas_dim a, eas_dim b);
EAS_API void eas_dim_set_decider(eas_dim_decide decide, void *context);

/* A tensor: recorded, or with its data. Counted. Shapes are physical: the first batch_dims dims are
 * vmap's, operations speak of the rest. */
typedef uint16_t eas_tensor_op; /* an operation on tensors: docs/ops.md lists them */
typedef struct eas_tensor_op_info {
    /* tensors first, then attributes with kind and default; docs/c.md tells how attributes are passed */
    const char *name, *kind, *signature, *doc;
    /* where it comes from: "zero" (it has none), "each", "linear", "expand", "as" (through other
     * operations) */
    const char *derivative;
} eas_tensor_op_info;
EAS_API int eas_tensor_op_count(void); /* codes are 0 .. count-1 */
EAS_API int eas_tensor_op_find(const char *name); /* -1: none */
EAS_API eas_tensor_op_info eas_tensor_op_at(eas_tensor_op op);
/* Which operations it belongs with ("unary", "binary", "comparison", "reduction", "view", ...); *hidden:
 * users call it by another function, or not at all. NULL: no such operation, or one that is data. */
EAS_API const char *eas_tensor_op_family(eas_tensor_op op, int *hidden);

EAS_API eas_node *eas_node_retain(eas_node *n); /* counts one more reference and returns n */
EAS_API void eas_node_release(eas_node *n); /* NULL is accepted; long chains need no stack */
/* For those who remember nodes without counting them, and are told by the object's drop (below) before the
 * memory goes: counts n if somebody else does, else NULL. */
EAS_API eas_node *eas_node_revive(eas_node *n);
/* does somebody count it besides the caller, who counts it once? */
EAS_API int eas_node_is_shared(const eas_node *n);
/* Data: a tensor over a buffer (retained). offset and strides in elements; strides NULL: C order. */
EAS_API eas_status eas_node_from_buffer(eas_buffer *buf, eas_dtype dt, int rank, const int64_t *shape,
                                        int64_t offset, const int64_t *strides, eas_node **out);
/* Of a new tensor over a buffer in C order: its data is a copy that was made for it. Its operation is
 * "constant" then. */
EAS_API void eas_node_mark_constant(eas_node *n);
/* A number: i for bool and integers, f for floats; weak: it takes the dtype of what it meets, as Python's
 * do. */
EAS_API eas_status eas_node_number(eas_dtype dt, int weak, int64_t i, double f, eas_node **out);
/* A placeholder for argument `index` of a compiled function; EAS_INPUT_DONATED: stands for a tensor
 * whose memory was donated, and cannot be read. */
enum { EAS_INPUT_DONATED = -2 };
EAS_API eas_status eas_node_input(int index, eas_dtype dt, int rank, const eas_dim *shape, int batch_dims,
                                  eas_device *d, eas_node **out);
/* Records an operation: never computes. attr: the signature's attributes, flattened. */
EAS_API eas_status eas_node_apply(eas_tensor_op op, int nin, eas_node *const *in, int nattr,
                                  const int64_t *attr, eas_node **out);
/* Records a launch of a kernel: order[p] says what parameter p is, input order[p] or (negative) output -1
 * - order[p]. outs: one node each. */
typedef struct eas_node_type {
    eas_dtype dtype;
    int rank;
    const eas_dim *shape;
} eas_node_type;
EAS_API eas_status eas_node_call(eas_kernel *k, int nin, eas_node *const *in, int nouts,
                                 const eas_node_type *outs, int nparams, const int8_t *order,
                                 const int64_t grid[3], eas_node **results);
/* The same with outputs that the kernel reads: begin[i] is what output i holds before the launch:
 * EAS_BEGIN_ANY, EAS_BEGIN_ZERO, or the number of an input of its dtype and size, of which it is a copy. */
enum { EAS_BEGIN_ANY = -1, EAS_BEGIN_ZERO = -2 };
EAS_API eas_status eas_node_call_begun(eas_kernel *k, int nin, eas_node *const *in, int nouts,
                                       const eas_node_type *outs, const int8_t *begin, int nparams,
                                       const int8_t *order, const int64_t grid[3], eas_node **results);

/* How a call can be cut along the axes of a mesh: tells it of the call behind this result, which has no
 * data yet. The kernel then runs on the parts. */
typedef struct eas_call_rule {
    const struct eas_shard_rule *factors; /* tensors: the inputs (numbers have no dims), then the outputs */
    /* per factor: a symbol (eas_dim_symbol) that stands for the size of a part in what follows */
    const eas_dim *sizes;
    const eas_dim *grid; /* 3 sizes; NULL: as the call was given, or as the kernel infers it */
    /* per input: the number that a part is launched with, EAS_DIM_NONE: as it is; NULL: all as they are */
    const eas_dim *numbers;
    /* per output: it is a sum over all factors that it does not have; NULL: only over EAS_FACTOR_SUM */
    const uint8_t *sums;
    int lanes; /* it speaks of lanes alone: a kernel that is proved element-wise can be cut further */
} eas_call_rule;
EAS_API eas_status eas_node_call_rule(eas_node *result, const eas_call_rule *r);

/* Records a call of a function that runs on the host: factorisations and Fourier transforms. docs/c.md lists
 * their names, with the numbers, inputs and results of each. Inputs come in C order; devices without host
 * memory are copied from and to. numbers may be symbolic sizes. ERR_VALUE if there is no such function. */
EAS_API eas_status eas_node_native(const char *name, int nin, eas_node *const *in, int nouts,
                                   const eas_node_type *outs, int nnumbers, const eas_dim *numbers,
                                   eas_node **results);
/* Where a LAPACK may be found (a file), looked at before the system's; and whether one is in use. */
EAS_API void eas_lapack_path(const char *path);
EAS_API const char *eas_lapack_name(void); /* NULL: none */

/* Records a loop: state = init; while condition: state = next, where condition and next are recorded from
 * the placeholders `state` (eas_node_input, with any number). One trip runs as one program, nothing is
 * called in between. What they need besides is computed once, before the loop. */
#define EAS_DIM_NONE INT64_MIN
typedef struct eas_loop {
    int ncarried;
    eas_node *const *init, *const *state, *const *next; /* of one dtype, shape and batch_dims */
    /* one truth value; with batch dims: one for each lane, and lanes that are done keep their state. NULL:
     * none */
    eas_node *condition;
    eas_dim length; /* trips, at most; EAS_DIM_NONE: any number */
    /* Without a condition: tensors of that length along their first axis that are gone through, with
     * placeholders for an element, and what each trip gives, stacked. */
    int nscanned;
    eas_node *const *scanned, *const *element;
    int nstacked;
    eas_node *const *stacked;
    int reverse; /* from the last element to the first */
} eas_loop;
/* the last state, then what is stacked: ncarried + nstacked nodes */
EAS_API eas_status eas_node_loop(const eas_loop *l, eas_node **results);
/* Records a branch: what this thread records from begin to end belongs to it, and only the branch that is
 * taken runs. Where both are next to nothing, both are computed and chosen from. pred: one bool. yes[i]
 * and no[i] have one dtype, shape and batch_dims. end (or abort) closes the innermost. */
EAS_API void eas_branch_begin(void);
EAS_API void eas_branch_abort(void);
EAS_API eas_status eas_branch_end(eas_node *pred, int n, eas_node *const *yes, eas_node *const *no,
                                  eas_node **results);

/* ---- nodes, evaluation and compiled programs -------------------------------------------------------- */

/* Looking at a node. */
EAS_API eas_dtype eas_node_dtype(const eas_node *n);
EAS_API int eas_node_rank(const eas_node *n); /* physical */
EAS_API const eas_dim *eas_node_shape(const eas_node *n); /* physical */
EAS_API int eas_node_batch_dims(const eas_node *n);
EAS_API eas_device *eas_node_device(const eas_node *n); /* NULL: any will do */
EAS_API eas_tensor_op eas_node_op(const eas_node *n);
EAS_API int eas_node_is_real(const eas_node *n); /* has data */
/* how many operations deep, since there was data; recording evaluates a chain that gets very long, without
 * hooks */
EAS_API uint32_t eas_node_depth(const eas_node *n);
EAS_API int eas_node_is_weak(const eas_node *n);
/* depends on a placeholder: cannot be evaluated by itself */
EAS_API int eas_node_is_symbolic(const eas_node *n);
EAS_API int eas_node_number_value(const eas_node *n, int64_t *i, double *f); /* 1 if it is a number */
/* how many; borrowed; none once it has data and is not traced */
EAS_API int eas_node_inputs(const eas_node *n, eas_node *const **in);
/* what the operation was given, as it keeps it; differs from operation to operation and may change between
 * versions */
EAS_API int eas_node_words(const eas_node *n, const int64_t **words);
/* Data of a node that has some: borrowed; offset and strides in elements. */
EAS_API eas_buffer *eas_node_buffer(const eas_node *n, int64_t *offset, int64_t *strides);
EAS_API int eas_node_is_traced(const eas_node *n); /* keeps its inputs for derivatives */
EAS_API void eas_node_set_traced(eas_node *n, int traced); /* before anything is recorded from it */
EAS_API void eas_node_set_batch_dims(eas_node *n, int batch_dims); /* as well; at most its rank */
/* A pointer of the caller's, kept with the node, and an object that is dropped with it. */
EAS_API void *eas_node_user(const eas_node *n);
EAS_API void eas_node_set_user(eas_node *n, void *user);
EAS_API void *eas_node_object(const eas_node *n);
EAS_API eas_status eas_node_set_object(eas_node *n, void *object, void (*drop)(void *object));
/* Where nodes recorded from now on by this thread come from; 0: unknown. The resolver gives file and line
 * for messages: 1 if it knows. */
EAS_API void eas_site_set(uint32_t site);
EAS_API void eas_site_set_resolver(int (*resolve)(uint32_t site, char *file, size_t room, int *line));
EAS_API uint32_t eas_node_site(const eas_node *n);

/* Gives data to these nodes: everything they need is computed in one program, found again by its
 * structure. hooks: as for a launch; may be NULL. A node that depends on a placeholder: ERR_RUNTIME.
 * device: for what belongs to none; NULL: cpu. */
EAS_API eas_status eas_nodes_realize(int n, eas_node *const *nodes, eas_device *device,
                                     const eas_launch *hooks);

/* A function of placeholders, compiled: outs depend on inputs 0 .. nin-1. Symbols in the inputs' shapes
 * are solved at each run. */
/* Like eas_nodes_show it may wait for other threads: the caller holds no lock that hooks of theirs take. */
EAS_API eas_status eas_program_new(int nin, eas_node *const *inputs, int nouts, eas_node *const *outs,
                                   eas_device *device, eas_program **out);
/* The same for sizes of symbols[i] up to most[i]: what is reduced, scanned or multiplied along is then a
 * block of that size, and masked. A run with more is refused. */
EAS_API eas_status eas_program_new_bounded(int nin, eas_node *const *inputs, int nouts, eas_node *const *outs,
                                           eas_device *device, int nbounds, const eas_dim *symbols,
                                           const int64_t *most, eas_program **out);
EAS_API eas_program *eas_program_retain(eas_program *p);
EAS_API void eas_program_release(eas_program *p);
/* args: nodes with data (others are realised first). donated[i] != 0: argument i's memory may become a
 * result's. results: nouts new nodes. */
EAS_API eas_status eas_program_run(eas_program *p, int nin, eas_node *const *args, const uint8_t *donated,
                                   const eas_launch *hooks, eas_node **results);
/* Takes the time of several ways to do it, with these arguments, and keeps the quickest; ties go to the
 * usual way. Not while others run it. */
EAS_API eas_status eas_program_tune(eas_program *p, int nin, eas_node *const *args, const eas_launch *hooks);

/* ---- quantized matrices ----------------------------------------------------------------------------- */

/* A matrix (..., rows, N), cut along its rows into groups that share a scale (and offset) for each column:
 * an element is scale * code + offset. data: (..., rows of codes, N), i8 for int8, else u8 with two codes
 * a byte: with h = group / 2, row g*h + j has element g*group + j in its low half and g*group + h + j in
 * its high half. scales, offsets (NULL: none): (..., groups, N), f32. The last group may be padded. */
typedef enum eas_quant {
    EAS_QUANT_INT8, /* a scale for each column */
    EAS_QUANT_INT4, /* groups of 32, codes from -8 to 7 */
    EAS_QUANT_INT4_ZP, /* groups of 32 with a zero point */
    EAS_QUANT_NF4 /* groups of 64, codes are quantiles of a normal distribution */
} eas_quant;
typedef struct eas_quantized {
    eas_quant kind;
    int64_t rows, group;
    eas_node *data, *scales, *offsets;
} eas_quantized;
EAS_API const char *eas_quant_name(eas_quant kind); /* "int4_zp" */
EAS_API int eas_quant_parse(const char *name, eas_quant *out); /* 1 if name is a kind's */
/* records; its nodes are the caller's to release */
EAS_API eas_status eas_node_quantize(eas_node *w, eas_quant kind, eas_quantized *out);
EAS_API eas_status eas_quantized_dequantize(const eas_quantized *q, eas_dtype dt, eas_node **out);
/* x (..., rows) times the matrix, in x's dtype */
EAS_API eas_status eas_quantized_matmul(eas_node *x, const eas_quantized *q, eas_node **out);

/* ---- tensors in files ------------------------------------------------------------------------------- */

/* The tensors of a safetensors file, of shards by their index (model.safetensors.index.json), of an npz
 * archive, an npy or a GGUF file. Opening reads headers alone; they are checked, and a malformed or
 * contradictory one is refused. Counted. */
typedef struct eas_weight { /* borrowed from the weights */
    const char *name;
    const char *stored; /* how the file has it: "F32", "<f4", "Q4_K" */
    int supported; /* 0: a dtype that tensors do not have; eas_weights_node refuses it */
    eas_dtype dtype; /* as a tensor: blocks of GGUF are f32 */
    int rank;
    const int64_t *shape;
    uint64_t bytes; /* in the file */
} eas_weight;
EAS_API eas_status eas_weights_open(const char *path, eas_weights **out);
EAS_API eas_status eas_weights_parse(const void *data, size_t n, const char *name,
                                     /* a copy of memory, as if it were a file of that name */
                                     eas_weights **out);
EAS_API eas_weights *eas_weights_retain(eas_weights *w);
EAS_API void eas_weights_release(eas_weights *w);
EAS_API const char *eas_weights_format(const eas_weights *w); /* "safetensors", "npz", "npy", "gguf" */
EAS_API int eas_weights_count(const eas_weights *w);
EAS_API eas_weight eas_weights_at(const eas_weights *w, int i);
EAS_API int eas_weights_find(const eas_weights *w, const char *name); /* -1: none */
EAS_API int eas_weights_meta_count(const eas_weights *w);
EAS_API const char *eas_weights_meta_key(const eas_weights *w, int i);
EAS_API eas_status eas_weights_meta(const eas_weights *w, int i, char **value); /* a string; GGUF: JSON */
/* A tensor on the cpu device. Where the file has its elements as memory has them it is a view of the
 * mapped file, and nothing is read before it is used; the mapping is private, so writing to it does not
 * change the file. Else it is decoded now. The file may be replaced meanwhile, but not be made shorter. */
EAS_API eas_status eas_weights_node(eas_weights *w, int i, eas_node **out);
/* size[k] elements from start[k] of each axis: only those are read, or the blocks they are in. */
EAS_API eas_status eas_weights_slice(eas_weights *w, int i, const int64_t *start, const int64_t *size,
                                     eas_node **out);
/* its bytes in the file; borrowed */
EAS_API eas_status eas_weights_raw(eas_weights *w, int i, const void **data, uint64_t *bytes);
/* Writes tensors (realised if need be) as path ends: .safetensors, .npz, .npy (one tensor). The file is
 * made under another name, synced and renamed. stored: what the file says of dtypes that tensors do not
 * have, or NULL; an entry is NULL, "C64" or "C128" (the tensor has pairs of f32 or f64 in a last dim of 2;
 * safetensors has no C128), "F8_E4M3" or "F8_E5M2" (u8, safetensors only). meta: nmeta pairs of strings, for
 * safetensors. compressed: npz entries are deflated. */
EAS_API eas_status eas_weights_save(const char *path, int n, const char *const *names, eas_node *const *nodes,
                                    const char *const *stored, int nmeta, const char *const *meta,
                                    int compressed, const eas_launch *hooks);

/* ====================================================================================================
 * 4. derivatives and meshes: of kernels, of tensors; layouts, parts, predictions, collectives
 * ==================================================================================================== */

/* ---- derivatives of kernels ------------------------------------------------------------------------- */

/* A kernel that computes a derivative of another. Its first parameters are those of the kernel it is made
 * from (which read its buffers as they were before the launch); what follows is told by eas_grad_param_at.
 * It is launched on the same grid. docs/grad_kernels.md describes what can be differentiated. */
typedef enum eas_grad_role {
    EAS_GRAD_GIVEN, /* parameter `param` of the kernel itself */
    EAS_GRAD_COTANGENT, /* reverse mode: of a result; read. consumed: it is changed as well, so pass a copy */
    EAS_GRAD_GRADIENT, /* reverse mode: with respect to an argument (of a scalar: one element); added to */
    /* a buffer that is read and written: its cotangent before and its gradient after; forward mode: its
     * tangent */
    EAS_GRAD_BOTH,
    EAS_GRAD_TANGENT, /* forward mode: of an argument; read */
    EAS_GRAD_RESULT_TANGENT, /* forward mode: of a result; written where the kernel writes */
    EAS_GRAD_TAPE, /* scratch: elements * (most trips of `loop`) for each program; loop < 0: one trip */
    EAS_GRAD_TRIPS, /* i64: the most trips of `loop`, from eas_grad_trips */
    EAS_GRAD_LOCAL, /* scratch: `elements` for each program; zeroed: zero before */
    EAS_GRAD_OWNER, /* scratch: as many elements as buffer `param` has */
    EAS_GRAD_PROGRAMS, /* i64: programs of the kernel along axis 0 */
    /* i64: how many of them one program of this kernel stands for: its grid along axis 0 is
     * EAS_GRAD_PROGRAMS / EAS_GRAD_BAND, rounded up */
    EAS_GRAD_BAND,
    /* i64: elements of buffer `param` (1 for a scalar). Its gradient has that many for each program, zero
     * before; their sum is added up afterwards */
    EAS_GRAD_LENGTH
} eas_grad_role;
typedef struct eas_grad_param {
    eas_grad_role role;
    int param; /* of the kernel; -1: none */
    int loop;
    eas_dtype dtype;
    int64_t elements;
    uint8_t is_buffer, consumed, zeroed;
} eas_grad_param;
typedef struct eas_grad_options {
    int nof, nwrt;
    /* numbers of parameters: results, and arguments to differentiate with respect to; floats */
    const int *of, *wrt;
    int deterministic; /* sums in an order that does not depend on threads: EAS_GRAD_LENGTH */
    int fresh; /* gradients are zero before the launch: what is proved to be added to once is stored */
    int band; /* programs may be joined: EAS_GRAD_BAND */
    /* the most trips of loops whose number of trips is not known before they run; more give NaN. 0: such
     * loops are refused where values must be kept */
    int64_t max_trips;
} eas_grad_options;
EAS_API eas_status eas_ir_grad(eas_ir *ir, const eas_grad_options *opt, eas_grad **out); /* reverse mode */
/* forward mode; does what the kernel does as well */
EAS_API eas_status eas_ir_jvp(eas_ir *ir, const eas_grad_options *opt, eas_grad **out);
EAS_API void eas_grad_free(eas_grad *d);
EAS_API eas_ir *eas_grad_ir(const eas_grad *d); /* borrowed */
EAS_API eas_grad_param eas_grad_param_at(const eas_grad *d, int i);
/* The most trips of a loop in a launch. scalars: one entry per parameter of the kernel; those of integers
 * count. ERR_VALUE if no bound is known. */
EAS_API eas_status eas_grad_trips(const eas_grad *d, int loop, const int64_t *scalars, const int64_t grid[3],
                                  int64_t *out);

/* ---- derivatives of tensors ------------------------------------------------------------------------- */

/* Both modes walk the recorded graph from `outs` down to the variables `in`, and record the derivative;
 * nothing is computed. Integers and truth values have none. lanes: how many batch dims belong to vmaps
 * around the call; 0 outside of vmap. jvp: out[i] is the tangent of outs[i] for these tangents of in
 * (NULL: zero); NULL where it does not depend on them. */
EAS_API eas_status eas_nodes_jvp(int nin, eas_node *const *in, eas_node *const *tangents, int nout,
                                 eas_node *const *outs, int lanes, eas_node **out);
/* vjp: grads[i] is the cotangent of in[i] for these cotangents of outs (NULL: zero); NULL where nothing
 * depends on it. */
EAS_API eas_status eas_nodes_vjp(int nin, eas_node *const *in, int nout, eas_node *const *outs,
                                 eas_node *const *cotangents, int lanes, eas_node **grads);
/* A vjp whose results may be read before the gradients are asked for. Computing a result that holds it
 * computes what the gradients will need as well, as long as somebody else has the pullback. Calling it
 * gives what eas_nodes_vjp gives. Counted. */
EAS_API eas_status eas_pullback_new(int nin, eas_node *const *in, int nout, eas_node *const *outs, int lanes,
                                    eas_pullback **out);
/* result: one of outs, by its untaped name */
EAS_API eas_status eas_pullback_hold(eas_pullback *p, eas_node *result);
EAS_API eas_status eas_pullback_call(eas_pullback *p, eas_node *const *cotangents, eas_node **grads);
EAS_API void eas_pullback_release(eas_pullback *p);
/* x as a variable of a derivative: what is recorded from it is taped, that is, it keeps its inputs when it
 * is evaluated. */
EAS_API eas_status eas_node_variable(eas_node *x, eas_node **out);
/* x under another name, which does not keep what x was made of */
EAS_API eas_status eas_node_untaped(eas_node *x, eas_node **out);
EAS_API int eas_node_is_taped(const eas_node *n);
/* Traced tensors (eas_node_set_traced) that n was made of and that were made of nothing traced themselves.
 * The nodes are borrowed. */
EAS_API eas_status eas_node_leaves(eas_node *n, eas_node ***out, int *count);
/* n and what it was made of are not traced any more, but for those leaves; what has data lets go of its
 * inputs */
EAS_API eas_status eas_node_forget(eas_node *n);
/* off: what this thread records is constant for derivatives. What it was before */
EAS_API int eas_grad_set_enabled(int on);
/* Results with a derivative of the caller's: outs[i] is results[i], seen as a function of `in`, whose
 * derivative is what the rules say. A rule gets the inputs and a tangent or cotangent for each input or
 * result (NULL: zero), and gives counted nodes or NULL. Without a vjp rule reverse mode transposes what
 * the jvp rule gives. */
typedef eas_status (*eas_vjp_rule)(void *ctx, int nin, eas_node *const *in, eas_node *const *cotangents,
                                   eas_node **grads);
typedef eas_status (*eas_jvp_rule)(void *ctx, int nin, eas_node *const *in, eas_node *const *tangents,
                                   eas_node **out);
EAS_API eas_status eas_nodes_custom(int nout, eas_node *const *results, int nin, eas_node *const *in,
                                    eas_vjp_rule vjp, eas_jvp_rule jvp, void *ctx, void (*drop)(void *ctx),
                                    eas_node **outs);

/* Results, of which a reverse derivative keeps only `in`: what was computed in between is computed again
 * when the derivative needs it. What they capture besides is kept. */
EAS_API eas_status eas_nodes_checkpoint(int nout, eas_node *const *results, int nin, eas_node *const *in,
                                        eas_node **outs);

/* ---- how tensors lie on a mesh ---------------------------------------------------------------------- */

/* A spec says along which axes of a mesh each dim of a tensor is cut; a rule, how an operation passes specs
 * on. These are values: tensors are cut by eas_node_shard, below. Axes of a mesh are told by their number. */
enum { EAS_MAX_RANK = 32, EAS_MESH_AXES = 16, EAS_MAX_FACTORS = 512, EAS_DIM_FACTORS = 16 };
typedef struct eas_mesh {
    int naxes; /* EAS_MESH_AXES at most */
    int64_t sizes[EAS_MESH_AXES];
    int fast; /* 1: sums over its devices may be joined in any order, see eas_dist_call */
    /* in a job of several ranks: the rank of its first device; its devices are this rank and those after
     * it */
    int first;
} eas_mesh;
typedef struct eas_dim_spec {
    uint8_t n, axes[EAS_MESH_AXES]; /* the dim is cut along these, the outermost first */
    uint8_t open; /* more may be added */
    uint16_t priority; /* 0 goes first */
} eas_dim_spec;
typedef struct eas_spec {
    int rank; /* of the physical shape */
    eas_dim_spec dims[EAS_MAX_RANK];
    /* bits: axes that are not to be used; axes along which parts are still to be summed */
    uint32_t replicated, partial;
} eas_spec;
typedef enum eas_factor_kind {
    EAS_FACTOR_PASS, /* in the result too */
    EAS_FACTOR_SUM, /* summed over: where it is cut, the result is partial */
    EAS_FACTOR_JOIN, /* reduced by something else */
    EAS_FACTOR_WHOLE, /* not to be cut */
    EAS_FACTOR_HALO /* in the result too, in parts of other sizes: edges come from neighbours */
} eas_factor_kind;
typedef struct eas_shard_dim { /* a product of factors, the outermost first; none: not to be cut */
    int n;
    uint16_t factors[EAS_DIM_FACTORS];
} eas_shard_dim;
typedef struct eas_shard_tensor {
    int rank;
    eas_shard_dim dims[EAS_MAX_RANK];
} eas_shard_tensor;
typedef struct eas_shard_rule {
    int nin, nfactors;
    struct {
        eas_dim size;
        eas_factor_kind kind;
    } factors[EAS_MAX_FACTORS];
    eas_shard_tensor *tensors; /* the inputs, then the result */
} eas_shard_rule;
/* Of a recorded node and its inputs (eas_node_inputs). ERR_UNAVAILABLE: it is made of simpler operations,
 * and has none of its own. */
EAS_API eas_status eas_node_shard_rule(eas_node *n, eas_shard_rule **out);
/* Axes go from tensor to tensor, to dims that are open. specs: of the inputs, then of the result; NULL:
 * none. Where two disagree they keep what they have in common; aggressive: the one with more parts wins. */
EAS_API eas_status eas_shard_propagate(const eas_shard_rule *r, const eas_mesh *m, eas_spec *const *specs,
                                       int aggressive, int *changed);
/* The spec of n that follows from those of what an operation was given (specs[i]: NULL for none), however
 * many nodes it made of it. *any: 0 if none of them reaches n. */
EAS_API eas_status eas_node_infer_spec(eas_node *n, const eas_mesh *m, int nin, eas_node *const *in,
                                       const eas_spec *const *specs, eas_spec *out, int *any);

/* ---- tensors in parts on a mesh --------------------------------------------------------------------- */

/* A mesh of devices by its number; registering it again gives the same number. Without MPI every device is
 * a thread of this process; under mpirun every process is one. */
EAS_API eas_status eas_mesh_register(const char *name, const eas_mesh *m, const char *const *axis_names,
                                     int *id);
EAS_API eas_status eas_mesh_get(int id, eas_mesh *out, const char **name, const char *const **axis_names);
/* x, laid out so: a node as any other, whose derivative lays out the cotangent alike. Sizes that do not
 * divide are ERR_VALUE, but with pad, where the last parts are padded. A dim that is open stays as it is.
 * A spec that cuts nothing: every device has all of it. */
EAS_API eas_status eas_node_shard(eas_node *x, int mesh, const eas_spec *spec, int pad, eas_node **out);
/* A placeholder of a compiled function whose argument lies so. */
EAS_API eas_status eas_node_input_sharded(int index, eas_dtype dt, int rank, const eas_dim *shape,
                                          int batch_dims, eas_device *d, int mesh, const eas_spec *spec,
                                          int pad, eas_node **out);
/* it, or something it was recorded from, was laid out on a mesh */
EAS_API int eas_node_is_sharded(const eas_node *n);
/* of a node with data in parts: 1 and how they lie; else 0 */
EAS_API int eas_node_layout(const eas_node *n, int *mesh, eas_spec *spec);
/* The part of a device of this process, borrowed, in C order; shape: its own, padding included. */
EAS_API eas_status eas_node_part(const eas_node *n, int64_t device, eas_buffer **out, int64_t *shape);
/* n with ordinary data on this process: n itself, counted, if it has that; else its parts put together
 * (under MPI every rank takes part). */
EAS_API eas_status eas_node_whole(eas_node *n, const eas_launch *hooks, eas_node **out);
EAS_API eas_status eas_mesh_devices(int mesh, int64_t *first, int64_t *count); /* of this process */
/* A tensor from the parts of this process's devices, which are counted; shape: of the whole. */
EAS_API eas_status eas_node_from_parts(int mesh, const eas_spec *spec, int pad, eas_dtype dt, int rank,
                                       const int64_t *shape, int64_t n, eas_buffer *const *parts,
                                       eas_node **out);

/* What is sent to evaluate these nodes: each collective, in order, without running anything. *mesh: -1
 * where nothing lies on one. */
typedef struct eas_collective {
    const char *name; /* "all_gather", ... */
    const char *operation, *why; /* that wanted it */
    uint32_t site; /* where that was recorded */
    eas_dim_spec axes; /* of the mesh */
    eas_dtype dtype;
    int64_t count; /* elements that each device gives */
    int64_t times; /* trips of the loops around it; 1 where their number is not known */
    int64_t bytes; /* that leave devices, over all devices and trips */
    int per_trip; /* a loop around it takes an unknown number of trips: bytes are of one */
} eas_collective;
EAS_API eas_status eas_nodes_collectives(int n, eas_node *const *nodes, int *mesh, eas_collective **out,
                                         int *count);
/* what eas_nodes_collectives gave, as text */
EAS_API eas_status eas_collectives_text(int mesh, const eas_collective *all, int count, char **out);
EAS_API eas_status eas_nodes_explain(int n, eas_node *const *nodes, char **out); /* both */
typedef struct eas_comm_stats { /* sent so far by the devices of this process */
    uint64_t bytes, calls;
    uint64_t all_gather, all_reduce, reduce_scatter, all_to_all, ppermute; /* bytes */
} eas_comm_stats;
EAS_API eas_comm_stats eas_comm_stats_get(void);

/* ---- predicting programs over parts, and choosing layouts ------------------------------------------- */

typedef struct eas_link { /* between neighbours along an axis of a mesh */
    double latency; /* seconds of a message */
    double bandwidth; /* bytes per second that leave a device */
} eas_link;
typedef struct eas_machine { /* one device, and what lies between devices */
    /* matrix products: floating-point operations per second; f16 stands for bf16 too */
    double product_f32, product_f64, product_f16;
    double elementwise; /* other arithmetic: operations per second */
    double memory_bandwidth; /* bytes per second */
    double launch; /* seconds that a kernel takes at least */
    double call; /* seconds that a run of a program takes besides its kernels and collectives */
    double memory; /* bytes; 0: not limited */
    double cores; /* how many devices compute at the same time; 0: all of them */
    int overlap; /* collectives run beside kernels */
    eas_link link[EAS_MESH_AXES];
} eas_machine;
enum { EAS_SIM_KERNELS, EAS_SIM_LINKS, EAS_SIM_LOOPS };
typedef struct eas_sim_event {
    const char *name; /* of the operation or collective; lives as long as the library */
    uint32_t site; /* where it was recorded, as eas_node_site */
    int lane; /* EAS_SIM_KERNELS, EAS_SIM_LINKS; EAS_SIM_LOOPS: a whole loop */
    double start, seconds, flops;
    int64_t bytes; /* of kernels: read and written; of collectives: that leave a device */
    int64_t memory; /* in use while it runs */
} eas_sim_event;
typedef struct eas_simulation { /* of one device; all do the same */
    int mesh;
    double seconds, compute, communication; /* all; kernels; collectives, hidden behind kernels or not */
    double flops;
    /* bytes: the most at any time; of what is given and of what is made */
    int64_t memory, arguments, results;
    int64_t kernels;
    struct {
        const char *name;
        int64_t calls, bytes; /* that leave the device */
        double seconds;
    } collective[5];
    int nevents;
    eas_sim_event *events;
    eas_machine machine;
} eas_simulation;
/* Predicts what evaluating the nodes takes on a mesh: time, memory and traffic of each device. Nothing
 * runs, so nodes may be made of placeholders (eas_node_input, eas_node_input_sharded), and the mesh may
 * have any number of devices. */
EAS_API eas_status eas_nodes_simulate(int n, eas_node *const *nodes, int mesh, const eas_machine *machine,
                                      eas_simulation **out);
EAS_API void eas_simulation_free(eas_simulation *s);
EAS_API eas_status eas_simulation_table(const eas_simulation *s, char **out); /* for people */
/* a file for Perfetto or chrome://tracing */
EAS_API eas_status eas_simulation_trace(const eas_simulation *s, const char *path);

/* Chooses how the tensors that nodes are made of lie on a mesh, so that evaluating the nodes takes least
 * by the machine's numbers; what is asked for inside (eas_node_shard) stays. inputs: the tensors that may
 * be laid out, specs: one for each. start: NULL, or layouts to begin with; the result is never worse than
 * they are, nor than whole tensors and the batch cut along the axes. seconds[0..2]: as given, all whole,
 * chosen; may be NULL. */
EAS_API eas_status eas_nodes_auto_shard(int n, eas_node *const *nodes, int mesh, const eas_machine *machine,
                                        int nin, eas_node *const *inputs, const eas_spec *start,
                                        eas_spec *specs, double *seconds);
/* Compiled functions that this thread makes on the mesh from now on choose layouts of values inside, too,
 * where that is cheaper by the machine's numbers (seconds of eas_nodes_auto_shard counts on it).
 * machine NULL: no longer. */
EAS_API eas_status eas_mesh_auto_inner(int mesh, const eas_machine *machine);

/* ---- the ranks of a job: collectives between processes ---------------------------------------------- */

/* Under mpirun every process is a rank; elsewhere this process is the only one, and no MPI is needed.
 * Opened by whatever needs it first: eas_dist_init does nothing else. EAS_DIST=mpi or self chooses by
 * hand, EAS_DIST_TIMEOUT (30 seconds) bounds how long a failure of one rank can stay unnoticed by the
 * others, EAS_DIST_DEBUG=1 compares calls before data is sent. docs/distributed.md tells more. */
EAS_API eas_status eas_dist_init(void);
EAS_API eas_status eas_dist_place(int *rank, int *size); /* either may be NULL */
EAS_API int eas_dist_is_open(void);
/* was this process started as one of several ranks (or EAS_DIST=mpi)? Opens nothing */
EAS_API int eas_dist_is_job(void);
EAS_API const char *eas_dist_engine(void); /* "mpi", "self"; "" if not open */
/* This rank fails: the others end with `why` in their message. */
EAS_API void eas_dist_abort(const char *why);
/* of the failure that ended the job, with the last operation of each rank; NULL: none */
EAS_API const char *eas_dist_report(void);
/* Waits until all ranks call it; ERR_RUNTIME if the job has failed. The job cannot be opened again. */
EAS_API eas_status eas_dist_finalize(void);

typedef enum eas_dist_op {
    EAS_DIST_ALL_GATHER, /* count elements from each; n * count to all, in the order of ranks */
    EAS_DIST_ALL_REDUCE, /* count; recv may be send */
    EAS_DIST_REDUCE_SCATTER, /* n * count from each, block k is reduced for rank k; count */
    EAS_DIST_ALL_TO_ALL, /* n * count: block k goes to rank k; n * count */
    EAS_DIST_PPERMUTE, /* count to `to`, count from `from`; -1: to nobody, from nobody (zeros) */
    EAS_DIST_BROADCAST, /* count of root's; at the root recv may be send */
    EAS_DIST_GATHER, /* as all_gather, at root alone */
    EAS_DIST_SCATTER, /* n * count of root's; count */
    EAS_DIST_BARRIER,
    EAS_DIST_NOPS
} eas_dist_op;
typedef enum eas_dist_reduction {
    EAS_DIST_SUM,
    EAS_DIST_PROD,
    EAS_DIST_MAX,
    EAS_DIST_MIN,
    EAS_DIST_AND,
    EAS_DIST_OR
} eas_dist_reduction;

/* A collective on host memory. All members start the same calls in the same order. Sums are joined in one
 * fixed tree: the bits do not depend on the engine. With `fast` they may be joined in any order, by
 * whichever of our messages and MPI's own reductions is quicker here, measured once for each group and size:
 * the last bits of sums of floats may then differ from those of other engines and other runs. */
typedef struct eas_dist_call {
    size_t size; /* of this struct */
    eas_dist_op op;
    eas_dist_reduction reduction;
    eas_dtype dtype;
    int64_t count; /* elements of a block */
    const void *send;
    void *recv;
    int root, to, from; /* members, by their place among `ranks` */
    int nranks; /* 0: all ranks */
    const int *ranks; /* the members, in their order; this rank is one of them */
    const char *site; /* the caller's source line, for messages; NULL: none */
    int rank; /* the tensor's shape, for messages */
    const int64_t *shape;
    int fast; /* of reductions: see above */
} eas_dist_call;
EAS_API eas_status eas_dist_run(const eas_dist_call *call);
/* The same in two steps. In between, send is not written and recv not touched; every request is waited
 * for, after failures too. eas_dist_poll moves messages on while the caller computes. */
EAS_API eas_status eas_dist_start(const eas_dist_call *call, eas_dist_request **out);
EAS_API eas_status eas_dist_wait(eas_dist_request *r);
EAS_API void eas_dist_poll(void);
/* Bytes of data that left this rank by calls of op, and the number of calls. wire: as counted where they
 * were sent; 0 for an engine of one process. Each may be NULL. */
EAS_API void eas_dist_bytes(eas_dist_op op, uint64_t *bytes, uint64_t *calls, uint64_t *wire);

/* ====================================================================================================
 * 5. debugging: checks, profiles, kernels that run while they are built, what the library did
 * ==================================================================================================== */

/* ---- checking a kernel ------------------------------------------------------------------------------ */

/* Runs a launch on the interpreter, on copies of its memory (which the host must reach), and reports what
 * it does wrong. Findings of one kind at the same two lines are one, counted. A race: two accesses of an
 * element by different programs, or by different threads of a group with no barrier between, of which one
 * writes and not both are atomic; that both write the same value does not matter. */
typedef enum eas_finding_kind {
    EAS_FOUND_WRITE_WRITE,
    EAS_FOUND_READ_WRITE,
    /* at[0]: the barrier; at[1]: where a thread that misses it went another way */
    EAS_FOUND_DIVERGENT_BARRIER,
    /* an element of threadgroup memory is read that its group has not written; at[1] is at[0] */
    EAS_FOUND_UNINITIALISED,
    EAS_FOUND_OUT_OF_BOUNDS /* at[1] is at[0]; the access touched nothing and read 0 */
} eas_finding_kind;
typedef struct eas_place {
    const char *file; /* NULL if unknown */
    int line;
    int64_t program[3], thread; /* thread: -1 in SPMD mode */
} eas_place;
typedef struct eas_finding {
    eas_finding_kind kind;
    const char *arg; /* NULL: a threadgroup array, or nothing (barriers) */
    int64_t index, count; /* the element, of the first time; how often */
    eas_place at[2]; /* of the first time, the earlier access first */
} eas_finding;
EAS_API eas_status eas_kernel_check(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *opts,
                                    eas_report **out);
EAS_API int eas_report_count(const eas_report *r);
EAS_API eas_finding eas_report_at(const eas_report *r, int i); /* its names live as long as the report */
EAS_API eas_status eas_report_text(const eas_report *r, char **out);
EAS_API void eas_report_free(eas_report *r);
EAS_API const char *eas_finding_name(eas_finding_kind kind); /* "write-write race" */

/* ---- profiling -------------------------------------------------------------------------------------- */

/* Takes the time of every launch, replay, copy and compile from start to stop; one profile at a time.
 * Queued work is waited for meanwhile. Start and stop while no other thread gives work. Costs nothing when
 * none is open. */
typedef struct eas_profile_row { /* a configuration of a kernel on a device */
    const char *kernel, *device, *file; /* file: "" if unknown; they live as long as the profile */
    /* as eas_builder_config said, or ""; those of the parameters: "f32[] f32[] int" */
    const char *config, *types;
    int line;
    uint64_t calls, compiles;
    double seconds, compile_seconds;
    /* of global memory and on floats, counted in the IR: whole blocks, loops by their trips */
    double bytes, flops;
} eas_profile_row;
EAS_API eas_status eas_profile_start(eas_profile **out);
EAS_API void eas_profile_stop(eas_profile *p);
EAS_API double eas_profile_seconds(const eas_profile *p); /* from start to stop */
EAS_API int eas_profile_count(const eas_profile *p); /* rows, in the order of first use */
EAS_API eas_profile_row eas_profile_at(const eas_profile *p, int i);
EAS_API eas_status eas_profile_trace(eas_profile *p, char **out); /* JSON for Perfetto or chrome://tracing */
EAS_API void eas_profile_free(eas_profile *p);

/* ---- running a kernel while it is built ------------------------------------------------------------- */

/* A live builder runs each instruction as it is appended, on the memory of the host, one program after the
 * other: for debugging. Values have the bits that every device gives; only products and sums are not
 * contracted into fma.
 *
 *   make a builder and its parameters
 *   eas_live_begin
 *   while (eas_live_next(b) == 1) build the body
 *   eas_builder_free
 *
 * eas_builder_loop_*, eas_builder_while_* and eas_builder_if_* are not for live builders: the caller has
 * loops and branches of its own language, and says by the functions below which threads take part. In SPMD
 * mode a program counts as one thread. */
/* opts as for a launch */
EAS_API eas_status eas_live_begin(eas_builder *b, const eas_arg *args, int nargs, const eas_launch *opts);
/* 1: on to the next program; 0: there is none; negative: an eas_status */
EAS_API int eas_live_next(eas_builder *b);

/* A value lives until the next sweep unless it is kept; a kept one as long as that. Nothing else frees
 * values. */
EAS_API void eas_live_keep(eas_builder *b, eas_value v);
EAS_API void eas_live_drop(eas_builder *b, eas_value v);
EAS_API void eas_live_sweep(eas_builder *b);
EAS_API int64_t eas_live_values(const eas_builder *b); /* how many there are now */

/* Regions: only the threads for which the condition holds take part until the end. With no thread left the
 * body may be built all the same: it touches no memory. Loops: 1 and the counter while a thread goes on; 0
 * once none does, the region is then closed. */
EAS_API void eas_live_if(eas_builder *b, eas_value cond);
/* after the end of the if: the threads for which cond does not hold */
EAS_API void eas_live_else(eas_builder *b, eas_value cond);
EAS_API void eas_live_end(eas_builder *b);
EAS_API int eas_live_loop(eas_builder *b, eas_value lo, eas_value hi, eas_value step, eas_value *iv);
EAS_API int eas_live_again(eas_builder *b, eas_value *iv);
EAS_API void eas_live_while(eas_builder *b); /* then, each time round, the condition and: */
EAS_API int eas_live_test(eas_builder *b, eas_value cond);
EAS_API int eas_live_depth(const eas_builder *b); /* open regions */
/* next in threads that take part, old in the others */
EAS_API eas_value eas_live_merge(eas_builder *b, eas_value old, eas_value next);

/* Looking: a block has its elements, a scalar one for each thread (one in SPMD mode), a buffer all it has. */
EAS_API int64_t eas_live_count(const eas_builder *b, eas_value v);
EAS_API eas_status eas_live_read(const eas_builder *b, eas_value v, void *out);
/* of a group; 0 in SPMD mode, and before the first tid */
EAS_API int64_t eas_live_threads(const eas_builder *b);
EAS_API int64_t eas_live_block(const eas_builder *b); /* as eas_ir_info's, as far as the kernel has said */
EAS_API int eas_live_axes(const eas_builder *b);
EAS_API void eas_live_active(const eas_builder *b, uint8_t *out); /* per thread: does it take part? */

/* ---- what programs do ------------------------------------------------------------------------------- */

/* How tensors are called in what is shown on this thread: NULL is said for one that has no name. input:
 * the number of an input of a program, or -1. */
typedef const char *(*eas_show_name)(void *context, eas_node *n, int input);
EAS_API void eas_show_set_namer(eas_show_name name, void *context); /* NULL: nothing has a name */
/* What it does: "text" (kernels, buffers, peak memory), "svg-before", "svg-after" (the graph, with kernels
 * drawn around it). */
EAS_API eas_status eas_program_show(eas_program *p, const char *form, char **out);
/* of what eas_nodes_realize would do */
EAS_API eas_status eas_nodes_show(int n, eas_node *const *nodes, const char *form, char **out);

/* ---- counters --------------------------------------------------------------------------------------- */

typedef struct eas_stats {
    uint64_t compiles; /* programs compiled by this process */
    uint64_t disk_hits, disk_misses, disk_bad; /* bad: entries dropped for a wrong checksum */
    uint64_t launches;
    int compiler_loaded; /* 1 once the compiler module was opened */
} eas_stats;
EAS_API eas_stats eas_stats_get(void); /* since the process began */
typedef struct eas_lazy_stats {
    uint64_t programs, program_hits; /* structures seen for the first time; found again */
    uint64_t kernels; /* kernels made */
    uint64_t steps; /* launches and copies done */
    uint64_t live_nodes;
    uint64_t pack_bytes, pack_hits; /* factors of products that are kept laid out; how often one was used */
} eas_lazy_stats;
EAS_API eas_lazy_stats eas_lazy_stats_get(void); /* of lazy tensors, since the process began */

#ifdef __cplusplus
}
#endif
#endif
