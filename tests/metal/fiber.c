/* fiber.c: see fiber.h. A switch saves what the calling convention makes the callee's, and the stack pointer;
 * ucontext, which also keeps the signal mask and so enters the kernel, is only for processors that have no
 * lines here. */
#include "fiber.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int fiber_new(fiber *f, size_t stack_bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t size = (stack_bytes + 2 * page - 1) / page * page;
    char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return -1;
    mprotect(p, page, PROT_NONE);
    *f = (fiber){.stack = p, .size = size};
    return 0;
}

void fiber_free(fiber *f)
{
    if (f->stack)
        munmap(f->stack, f->size);
    f->stack = NULL;
}

#if defined(__x86_64__)

__asm__(".text\n"
        "eas_fiber_swap:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        "eas_fiber_first:\n"
        "  movq %r12, %rdi\n"
        "  callq *%rbx\n"
        "  ud2\n");
void eas_fiber_swap(void **save, void *load) __asm__("eas_fiber_swap");
void eas_fiber_first(void) __asm__("eas_fiber_first");

void fiber_start(fiber *f, void (*entry)(void *), void *arg)
{
    /* so that the stack is aligned at the call */
    uint64_t *top = (uint64_t *)(void *)(f->stack + f->size - f->shift) - 2;
    uint64_t frame[7] = {0,
                         0,
                         0,
                         (uint64_t)(uintptr_t)arg,
                         (uint64_t)(uintptr_t)entry,
                         0,
                         (uint64_t)(uintptr_t)eas_fiber_first};
    memcpy(top - 7, frame, sizeof frame); /* r15 r14 r13 r12 rbx rbp, return address */
    f->sp = top - 7;
}

void fiber_switch(fiber *from, fiber *to) { eas_fiber_swap(&from->sp, to->sp); }

#elif defined(__aarch64__)

__asm__(
    ".text\n"
    "eas_fiber_swap:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n"
    "eas_fiber_first:\n"
    "  mov x0, x19\n"
    "  blr x20\n"
    "  brk #1\n");
void eas_fiber_swap(void **save, void *load) __asm__("eas_fiber_swap");
void eas_fiber_first(void) __asm__("eas_fiber_first");

void fiber_start(fiber *f, void (*entry)(void *), void *arg)
{
    uint64_t *sp = (uint64_t *)(void *)(f->stack + f->size - f->shift) - 20;
    memset(sp, 0, 160);
    sp[0] = (uint64_t)(uintptr_t)arg;
    sp[1] = (uint64_t)(uintptr_t)entry;
    sp[11] = (uint64_t)(uintptr_t)eas_fiber_first; /* x30 */
    f->sp = sp;
}

void fiber_switch(fiber *from, fiber *to) { eas_fiber_swap(&from->sp, to->sp); }

#else

#include <stdlib.h>
#include <ucontext.h>

static void first(unsigned e_hi, unsigned e_lo, unsigned a_hi, unsigned a_lo)
{
    void (*entry)(void *) = (void (*)(void *))(uintptr_t)((uint64_t)e_hi << 32 | e_lo);
    entry((void *)(uintptr_t)((uint64_t)a_hi << 32 | a_lo));
    abort();
}

void fiber_start(fiber *f, void (*entry)(void *), void *arg)
{
    ucontext_t *c = (ucontext_t *)(void *)(f->stack + f->size - f->shift - (sizeof *c + 63) / 64 * 64);
    uint64_t e = (uint64_t)(uintptr_t)entry, a = (uint64_t)(uintptr_t)arg;
    getcontext(c);
    c->uc_stack.ss_sp = f->stack;
    c->uc_stack.ss_size = (size_t)((char *)c - f->stack);
    c->uc_link = NULL;
    makecontext(c, (void (*)(void))first, 4, (unsigned)(e >> 32), (unsigned)e, (unsigned)(a >> 32),
                (unsigned)a);
    f->sp = c;
}

void fiber_switch(fiber *from, fiber *to)
{
    ucontext_t here;
    from->sp = &here;
    swapcontext(&here, to->sp);
}

#endif
