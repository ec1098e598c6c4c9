/* sums.h: arrays of the threads' own in place of buffers that a launch only adds to (sums.c). */
#ifndef DEV_SUMS_H
#define DEV_SUMS_H

#include "dev.h"

typedef struct sums_set { /* the buffers of a kernel that this is done for */
    int n, nparams; /* n; parameters in all */
    struct {
        int at;
        eas_dtype dtype;
    } param[];
} sums_set;

enum { SUMS_WORKERS = 256 };
typedef struct sums { /* of a launch */
    const sums_set *set;
    const dev_launch *l;
    void *mem;
    size_t room, each, arrays; /* bytes of mem; of a worker in it; of those, of its arrays: slots follow */
    int workers;
    bool began[SUMS_WORKERS]; /* the worker's arrays are there */
} sums;

eas_status sums_find(const eas_ir *ir, sums_set **out); /* free()d by the caller */
bool sums_open(sums *s, const sums_set *set, const dev_launch *l); /* false: there is no memory for it */
/* The launch's slots as a worker of the pool sees them. */
const uint64_t *sums_slots(sums *s, int worker);
void sums_close(sums *s, bool lost); /* adds them to the buffers, unless the launch's result is lost */
void sums_forget(void); /* frees memory that is kept for the next launch */

#endif
