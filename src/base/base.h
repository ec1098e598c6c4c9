/* base.h: what every other folder stands on: status, arena, vectors, strings, hashes, dtypes, threads. */
#ifndef BASE_H
#define BASE_H

#include "eas.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__)
#define BASE_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define BASE_PRINTF(f, a)
#endif

/* ---- status.c ---- */
/* Sets this thread's message and returns st. */
eas_status base_fail(eas_status st, const char *fmt, ...) BASE_PRINTF(2, 3);
/* base_fail with the line of the user's source that the failure is about, with which the message begins; file
 * NULL: not known. */
eas_status base_fail_at(eas_status st, const char *file, uint32_t line, const char *fmt, ...)
    BASE_PRINTF(4, 5);
eas_status base_vfail_at(eas_status st, const char *file, uint32_t line, const char *fmt, va_list ap);
/* A failure as a value: kept to be reported later, or on another thread. */
typedef struct base_error {
    eas_status status; /* EAS_OK: there is none */
    uint32_t line;
    char file[256]; /* "": not known */
    char message[4096];
} base_error;
void base_error_keep(base_error *e, eas_status st); /* this thread's last failure, whose status is st */
/* makes it this thread's last failure; returns its status */
eas_status base_error_raise(const base_error *e);
eas_status base_fail_oom(size_t bytes);

/* ---- arena.c: freed whole ---- */
typedef struct arena {
    struct arena_chunk *head;
    char *cur, *end;
    bool oom; /* sticky: set when an allocation failed */
} arena;
void *arena_alloc(arena *a, size_t n); /* zeroed, 16-byte aligned; NULL and oom on failure */
char *arena_strdup(arena *a, const char *s);
char *arena_strndup(arena *a, const char *s, size_t n);
char *arena_printf(arena *a, const char *fmt, ...) BASE_PRINTF(2, 3);
void arena_free(arena *a);

/* ---- vector: VEC(T) v = {0}; vec_push(&v, x) is false when out of memory ---- */
#define VEC(T) \
    struct { \
        T *at; \
        uint32_t len, cap; \
    }
#define vec_push(v, x) \
    ((v)->len < (v)->cap || vec_grow((void **)&(v)->at, &(v)->cap, (v)->len + 1, sizeof *(v)->at) \
         ? ((v)->at[(v)->len++] = (x), true) \
         : false)
#define vec_free(v) (free((v)->at), (v)->at = NULL, (v)->len = (v)->cap = 0)
bool vec_grow(void **at, uint32_t *cap, uint32_t need, size_t size);

/* ---- str.c: a growing string; sticky oom ---- */
typedef struct str {
    char *at; /* NUL-terminated once anything was added */
    size_t len, cap;
    bool oom;
} str;
void str_add(str *s, const char *fmt, ...) BASE_PRINTF(2, 3);
void str_vadd(str *s, const char *fmt, va_list ap);
void str_put(str *s, const char *p, size_t n);
void str_free(str *s);
/* Gives the caller the text (malloc'ed), or fails with ERR_MEMORY. */
eas_status str_take(str *s, char **out);
/* The shortest decimal that reads back to the same double (float, if single): "1.5", "inf", "-0.0", "nan". */
void str_add_double(str *s, double v, bool single);

/* Public functions begin with these macros: passing NULL for an object is the caller's mistake, and no reason
 * to crash. NEED_ is for functions that return nothing. */
eas_status base_null(const char *fn, const char *what);
#define NEED(p, otherwise) \
    do { \
        if (__builtin_expect(!(p), 0)) { \
            base_null(__func__, #p); \
            return otherwise; \
        } \
    } while (0)
#define NEED_(p) \
    do { \
        if (__builtin_expect(!(p), 0)) { \
            base_null(__func__, #p); \
            return; \
        } \
    } while (0)

/* ---- hash.c ---- */
typedef struct sha256 {
    uint32_t h[8];
    uint64_t len;
    uint8_t buf[64];
} sha256;
void sha256_init(sha256 *s);
void sha256_add(sha256 *s, const void *p, size_t n);
void sha256_done(sha256 *s, uint8_t out[32]);
void sha256_hex(const uint8_t h[32], char out[65]);

/* ---- dtype.c ---- */
bool dtype_is_int(eas_dtype dt); /* signed or unsigned, not bool */
bool dtype_is_float(eas_dtype dt);
bool dtype_is_signed(eas_dtype dt); /* signed integer */
int dtype_bits(eas_dtype dt);
int64_t dtype_min(eas_dtype dt); /* integers */
uint64_t dtype_max(eas_dtype dt);
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float f); /* round to nearest even */
uint16_t f64_to_f16(double d); /* one rounding */
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float f);
uint16_t f64_to_bf16(double d);

/* ---- env.c ---- */
/* getenv, except in programs that run with more rights than the user who started them (setuid): there the
 * environment must not decide what is loaded. */
const char *base_env(const char *name);
/* The path of a module of the library: the value of the variable, else `name` beside the library itself; ""
 * if that is not known. */
void base_module_path(const char *variable, const char *name, char *out, size_t size);

/* ---- fork.c: no fork happens while a thread is inside one of these ---- */
/* Between locking and unlocking a thread may wait for another lock of this kind and for nothing else: not for
 * the host program's lock, not for work to be done. */
void base_lock(pthread_mutex_t *m);
void base_unlock(pthread_mutex_t *m);
/* Keeps forks out without taking a lock: fork_hold and fork_release nest. */
void fork_hold(void);
void fork_release(void);

/* ---- pool.c: one pool of worker threads for the process ---- */
/* Runs fn(ctx, first, last, worker) over slices of [0, n), worker in [0, pool_size()), on the calling thread
 * and the workers. grain is the smallest slice worth handing out. poll(poll_ctx), if not NULL, is called on
 * the calling thread about every 20 ms; non-zero stops handing out slices and pool_run returns false. Safe
 * from many threads at once and after fork; a child that poll() forked gets false as well, since it has none
 * of the threads that had slices. */
bool pool_run(int64_t n, int64_t grain, void (*fn)(void *ctx, int64_t first, int64_t last, int worker),
              void *ctx, int (*poll)(void *), void *poll_ctx);
/* Set by threads that are as many as there are CPUs, or more, and all compute at once: their pool_run uses no
 * other thread. */
extern _Thread_local bool pool_alone;
bool pool_awake(void); /* the workers are looking for a job: handing them one takes about a microsecond */
uint32_t pool_forks(void); /* how many forks lie between this process and the one that first ran something */
/* For loops that wait a very short time. */
static inline void base_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}
/* For starting threads of our own. It blocks all signals, so that they are delivered to the threads of the
 * host program, but those of faults, which go to the thread that causes them: if they were blocked, a fault
 * would end the process without the host's handler being called. */
void pool_block_signals(void *old); /* a sigset_t: the mask before */
int pool_size(void); /* EAS_NUM_THREADS, or the CPUs this process may use */

#endif
