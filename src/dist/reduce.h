/* reduce.h: joining the blocks of several ranks, in one order for all engines. */
#ifndef REDUCE_H
#define REDUCE_H

#include "comm.h"

/* outs[j][i] = in[0][i] ⊕ … ⊕ in[n-1][i] for i < count, joined in the tree of comm.h. An out may be one of
 * the inputs (exactly, not shifted); outs are distinct. Large results are written with non-temporal stores.
 * dtype and red fit each other (reduce_fits). */
void reduce_blocks(comm_reduction red, eas_dtype dt, int n, const void *const *in, int nouts,
                   void *const *outs, int64_t count);
bool reduce_fits(comm_reduction red, eas_dtype dt);
/* memcpy; past a few megabytes with non-temporal stores */
void reduce_copy(void *dst, const void *src, size_t bytes, bool large);

#endif
