/* native.h: functions that run on the host as one step of a program: factorisations of matrices, Fourier
 * transforms.
 *
 * Each works on a batch of equal problems in C order. The problems of a batch are shared out over the pool's
 * threads. Complex arrays are pairs (re, im).
 *
 *   native.c   the table (native.def)
 *   product.c  matrix products: product.inc for float and double, tile.inc for each width of vectors
 *   linalg.c   factorisations: la.inc is expanded for float, double and their complex forms
 *   lapack.c   a LAPACK that was found at run time, for eigenvalues and singular values of large matrices
 *   fft.c      Fourier transforms of any length: fft.inc is expanded for float and double
 *   sort.c     sorting: sort.inc is expanded for keys of 32 and 64 bits, AVX2 and AVX-512
 */
#ifndef NATIVE_H
#define NATIVE_H

#include "../base/base.h"

/* For functions whose loops are vectorised: they are compiled for each level of x86-64, and the one to use is
 * chosen when the library is loaded. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOT __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HOT
#endif

typedef struct native_call {
    int nin, nout, nnumbers;
    const void **in;
    void **out;
    const int64_t *numbers;
} native_call;
typedef struct eas_native {
    const char *name;
    eas_status (*run)(const native_call *c);
} eas_native;
const eas_native *native_find(const char *name); /* NULL: there is none */

/* numbers[0] of linear algebra */
enum { NATIVE_F32, NATIVE_F64, NATIVE_C64, NATIVE_C128 };

/* Threads that share a problem, and memory for each; the memory still has the content that the problem before
 * left. */
typedef struct crew {
    int threads;
    size_t bytes;
    char *room;
    char *once; /* memory for the problem, whatever the number of threads */
} crew;
static inline void *crew_room(const crew *w, int worker) { return w->room + w->bytes * (size_t)worker; }

/* A problem of a batch: index i. */
typedef void (*native_each)(const native_call *c, int64_t i, const crew *w);
typedef struct native_work {
    double operations; /* of one problem, about */
    size_t each, once; /* bytes of memory: for each thread, for the problem */
    bool shared; /* f can share a problem among threads */
} native_work;
/* Runs f for each of n problems: several at a time, or, if they are few and large, each by all threads. */
eas_status native_batch(const native_call *c, int64_t n, const native_work *work, native_each f);

#define NATIVE(name, doc) eas_status native_##name(const native_call *c);
#include "native.def"
#undef NATIVE

/* ---- product.c ---- */
enum { PRODUCT_ROOM = 1 << 20 }; /* bytes of memory for packed blocks */

/* A factor of a product: element (i, j) lies at the first one's address plus rs i + cs j elements; strides
 * may be negative.
 */
typedef struct factor {
    const void *at;
    int64_t rs, cs;
    bool conj;
    bool pairs; /* set by product(): elements are complex */
} factor;
/* C (m n, ldc elements from row to row) += sign A (m k) B (k n); C overlaps neither factor */
typedef struct product_call {
    int type, sign;
    int64_t m, n, k;
    factor a, b;
    void *c;
    int64_t ldc;
} product_call;
void product(const product_call *q, void *room); /* on this thread; room: PRODUCT_ROOM bytes */
void product_shared(const crew *w, const product_call *q);

/* ---- sort.c ---- */
/* Are numbers of this kind (f, i, u) and size put in order, with vectors of so many bytes? places: or is
 * their order (argsort) found? */
bool native_sorts(char kind, int size, bool places, int vector_bytes);

/* ---- lapack.c ---- */
/* Functions by their LAPACK names without the letter of the type ("getrf"); NULL: there is no LAPACK, or it
 * lacks the function. type: NATIVE_F32 ... */
typedef void (*lapack_fn)(void);
lapack_fn lapack_find(const char *name, int type);
bool lapack_wide(void); /* integers have 64 bits */
/* The only place that decides whether a matrix of this size is given to LAPACK. */
bool lapack_wanted(int64_t n, int64_t batch);

#endif
