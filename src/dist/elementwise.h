/* elementwise.h: is a kernel element-wise? See elementwise.c. */
#ifndef ELEMENTWISE_H
#define ELEMENTWISE_H

#include "dist.h"

typedef struct elementwise_numbers { /* one launch */
    const int64_t *number; /* per parameter */
    const bool *is_number; /* it is an integer whose value is known */
    int64_t grid[3];
    int64_t count; /* elements of each argument that is taken element by element */
} elementwise_numbers;

enum {
    ELEMENTS_UNUSED,
    ELEMENTS_ALL,
    ELEMENTS_ROW,
    ELEMENTS_WHOLE
}; /* of an argument: its own element, the element of a row that all rows share, any element */

typedef struct elementwise {
    const char *why; /* NULL: it is element-wise; else why it is not */
    int64_t block;   /* elements of a program */
    int axis;        /* of the programs that number rows; 0: all elements are one row */
    int64_t rows, length; /* length: elements of a row */
    bool exact;      /* something is done by every lane: rows must be whole blocks */
    uint8_t *how;    /* per parameter */
    eas_kernel *kernel; /* the same over rows of any length, which is its last parameter; counted */
} elementwise;
/* kernel: is out->kernel wanted? */
eas_status elementwise_prove(eas_kernel *k, const elementwise_numbers *given, bool kernel, elementwise *out);
void elementwise_free(elementwise *e);

#endif
