/* fiber.h: stacks to switch between, on one thread. */
#ifndef FIBER_H
#define FIBER_H

#include <stddef.h>

typedef struct fiber {
    void *sp; /* while it is not running */
    char *stack;
    size_t size;
    /* where the stack begins below its end: stacks that all began alike would share few cache lines */
    size_t shift;
} fiber;

/* 0, or -1 without memory; below the stack is a page that may not be touched */
int fiber_new(fiber *f, size_t stack_bytes);
void fiber_free(fiber *f);
/* The next switch to f calls entry(arg), which must never return. */
void fiber_start(fiber *f, void (*entry)(void *), void *arg);
void fiber_switch(fiber *from, fiber *to);

#endif
