/* guard.c: running out of memory inside LLVM, without ending the process.
 *
 * LLVM has no way to report that an allocation failed: it ends the process. Here its allocations go through
 * ours (operator new by definition, malloc and its kin by the linker's --wrap), and one that fails jumps out
 * of the compiler, back into llvm_guarded. What LLVM had allocated for that kernel is lost; nothing else is,
 * provided that no lock is held, no pthread_once is under way and no static variable is being made at that
 * moment: the next compilation would wait for them for ever. Such sections are counted (their functions are
 * wrapped as well), they are few and short, and inside them an allocation that fails is served from a reserve
 * instead. The same goes for allocations outside llvm_guarded: the constructors that run while the library is
 * opened.
 *
 * The reserve is address space that nobody touches until then, and what is taken from it is not given back.
 */
#include "llvm.h"

#include <llvm-c/ErrorHandling.h>
#if defined(__linux__)
#include <malloc.h>
#endif
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdio.h>

static _Thread_local struct {
    jmp_buf *out;    /* NULL: outside llvm_guarded */
    char *why;       /* LLVM's last words, if it had any */
    size_t room;
    int critical;    /* sections that must not be left by a jump */
} here;

static void leave(void)
{
    jmp_buf *out = here.out;
    here.out = NULL;
    longjmp(*out, 1);
}

static bool may_leave(void) { return here.out && !here.critical; }

/* ---- handlers of LLVM's ---- */

static void fatal(const char *reason)
{
    if (!here.out) /* nobody to tell: LLVM prints it and ends the process */
        return;
    snprintf(here.why, here.room, "%s", reason);
    leave();
}

#if defined(EAS_LLVM_GUARD)
static void starved(void *ctx, const char *reason, bool diagnostics)
{
    (void)ctx, (void)reason, (void)diagnostics;
    if (here.out)
        leave();
}
/* llvm::install_bad_alloc_error_handler: it is not in the C interface */
void install_bad_alloc(void (*handler)(void *, const char *, bool),
                       void *ctx) __asm__("_ZN4llvm31install_bad_alloc_error_handlerEPFvPvPKcbES0_");
#endif

static void install(void)
{
    LLVMInstallFatalErrorHandler(fatal);
#if defined(EAS_LLVM_GUARD)
    install_bad_alloc(starved, NULL);
#endif
}

bool llvm_guarded(void (*fn)(void *ctx), void *ctx, char *why, size_t room)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    jmp_buf out;
    *why = 0;
    pthread_once(&once, install);
    if (_setjmp(out)) {
        here.critical = 0;
        return false;
    }
    here.out = &out;
    here.why = why;
    here.room = room;
    fn(ctx);
    here.out = NULL;
    return true;
}

#if defined(EAS_LLVM_GUARD)

/* ---- the reserve ---- */

enum { RESERVE = 16 << 20, ALIGN = 64 }; /* each piece has its size before it */
static _Alignas(4096) char reserve[RESERVE];
static _Atomic size_t used;

static bool reserved(const void *p)
{
    return (const char *)p >= reserve && (const char *)p < reserve + RESERVE;
}

static void *from_reserve(size_t n)
{
    if (n > RESERVE)
        return NULL;
    const size_t room = ALIGN + (n + ALIGN - 1) / ALIGN * ALIGN, at = atomic_fetch_add(&used, room);
    if (at + room > RESERVE)
        return NULL;
    memcpy(reserve + at, &n, sizeof n);
    return reserve + at + ALIGN; /* zeroed: nothing is used twice */
}

/* ---- malloc and its kin: NULL is for whoever asked, who calls starved() if it is LLVM ---- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
void __wrap_free(void *p);

void *__wrap_malloc(size_t n)
{
    void *p = __real_malloc(n);
    return p || may_leave() ? p : from_reserve(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    size_t all;
    void *p = __real_calloc(n, size);
    return p || may_leave() || __builtin_mul_overflow(n, size, &all) ? p : from_reserve(all);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    void *p = __real_aligned_alloc(align, n);
    return p || may_leave() || align > ALIGN ? p : from_reserve(n);
}

static size_t size_of(void *p)
{
    size_t n;
    if (!reserved(p))
        return malloc_usable_size(p);
    memcpy(&n, (char *)p - ALIGN, sizeof n);
    return n;
}

void *__wrap_realloc(void *p, size_t n)
{
    void *q = reserved(p) ? NULL : __real_realloc(p, n);
    if (q || !n || (!reserved(p) && may_leave()))
        return q;
    const size_t old = p ? size_of(p) : 0;
    if (reserved(p) && n <= old)
        return p;
    q = __wrap_malloc(n);
    if (q && p)
        memcpy(q, p, old < n ? old : n);
    if (q)
        __wrap_free(p);
    return q;
}

void __wrap_free(void *p)
{
    if (!reserved(p))
        __real_free(p);
}

/* ---- operator new and delete ---- */

static void *new_or_leave(size_t n, size_t align)
{
    n = n ? n : 1;
    void *p = align > 16 ? __wrap_aligned_alloc(align, (n + align - 1) / align * align) : __wrap_malloc(n);
    if (!p && here.out)
        leave(); /* the reserve is used up where a section is critical: nothing better is left */
    if (!p)
        abort();
    return p;
}

#define NEW(name, params, n, align) \
    void *name params __asm__(#name); \
    void *name params { return new_or_leave(n, align); }
NEW(_Znwm, (size_t n), n, 16)
NEW(_Znam, (size_t n), n, 16)
NEW(_ZnwmSt11align_val_t, (size_t n, size_t align), n, align)
NEW(_ZnamSt11align_val_t, (size_t n, size_t align), n, align)
#define NEW_OR_NULL(name, params, call) \
    void *name params __asm__(#name); \
    void *name params { return call; }
NEW_OR_NULL(_ZnwmRKSt9nothrow_t, (size_t n, const void *t), ((void)t, __wrap_malloc(n ? n : 1)))
NEW_OR_NULL(_ZnamRKSt9nothrow_t, (size_t n, const void *t), ((void)t, __wrap_malloc(n ? n : 1)))
#define DELETE(name, params) \
    void name params __asm__(#name); \
    void name params { __wrap_free(p); }
DELETE(_ZdlPv, (void *p))
DELETE(_ZdaPv, (void *p))
DELETE(_ZdlPvm, (void *p, size_t n __attribute__((unused))))
DELETE(_ZdaPvm, (void *p, size_t n __attribute__((unused))))
DELETE(_ZdlPvSt11align_val_t, (void *p, size_t a __attribute__((unused))))
DELETE(_ZdaPvSt11align_val_t, (void *p, size_t a __attribute__((unused))))
DELETE(_ZdlPvmSt11align_val_t, (void *p, size_t n __attribute__((unused)), size_t a __attribute__((unused))))
DELETE(_ZdaPvmSt11align_val_t, (void *p, size_t n __attribute__((unused)), size_t a __attribute__((unused))))
DELETE(_ZdlPvRKSt9nothrow_t, (void *p, const void *t __attribute__((unused))))
DELETE(_ZdaPvRKSt9nothrow_t, (void *p, const void *t __attribute__((unused))))

/* ---- sections that must not be left by a jump ---- */

#define ENTERS(name, type) \
    int __real_##name(type *m); \
    int __wrap_##name(type *m); \
    int __wrap_##name(type *m) \
    { \
        int bad = __real_##name(m); \
        here.critical += !bad; \
        return bad; \
    }
#define LEAVES(name, type) \
    int __real_##name(type *m); \
    int __wrap_##name(type *m); \
    int __wrap_##name(type *m) \
    { \
        here.critical--; \
        return __real_##name(m); \
    }
ENTERS(pthread_mutex_lock, pthread_mutex_t)
LEAVES(pthread_mutex_unlock, pthread_mutex_t)
ENTERS(pthread_rwlock_rdlock, pthread_rwlock_t)
ENTERS(pthread_rwlock_wrlock, pthread_rwlock_t)
LEAVES(pthread_rwlock_unlock, pthread_rwlock_t)

int __real_pthread_once(pthread_once_t *o, void (*f)(void));
int __wrap_pthread_once(pthread_once_t *o, void (*f)(void));
int __wrap_pthread_once(pthread_once_t *o, void (*f)(void))
{
    here.critical++;
    const int bad = __real_pthread_once(o, f);
    here.critical--;
    return bad;
}

/* A static variable of a function in C++ is being made between these two; the first gives 0 where it is
 * made already. */
int __real___cxa_guard_acquire(void *g);
void __real___cxa_guard_release(void *g);
int __wrap___cxa_guard_acquire(void *g);
void __wrap___cxa_guard_release(void *g);
int __wrap___cxa_guard_acquire(void *g)
{
    const int make = __real___cxa_guard_acquire(g);
    here.critical += make;
    return make;
}
void __wrap___cxa_guard_release(void *g)
{
    here.critical--;
    __real___cxa_guard_release(g);
}

#endif
