/* shift.h: operations that move elements along a cut dim, for the files that make them.
 *
 *   halo.c   what each device reads of the others, and the exchange of it
 *   shift.c  slices, pads and windows
 *   roll.c   rolls
 *   place.c  concatenations and updates of slices: tensors put next to, or over, others along a cut dim
 *
 * Along a dim such an operation is a map of places: element j of the result, and tap t of a window, is
 * element a + step * j + t of the input (the base), or a fill value where that lies outside.
 */
#ifndef DIST_SHIFT_H
#define DIST_SHIFT_H

#include "dist.h"

/* along a dim: element q of a tensor is element q - off of the base if that is in [lo, hi), else the fill */
typedef struct view {
    int64_t off, lo, hi;
} view;
typedef struct along { /* one dim */
    view v;              /* of the operation's input */
    /* elements of the base; zeros inserted behind each of them first, and counted in `in` */
    int64_t in, between;
    int64_t a, step, reach, out; /* see above; reach: elements from the first to the last tap of a window */
    bool moves;  /* the result is not the base itself */
    bool flips;  /* the result is the base in reverse order */
    /* a negative step: the base is reversed first, and a and step are those of a slice of that */
    bool turned;
    bool few; /* the elements of a short slice go to all devices, and the result is whole along the dim */
} along;
typedef struct shifting {
    partition *p;
    eas_node *n, *base;
    eas_node *fill; /* of the global graph; NULL: 0 */
    bool filled; /* some element may be the fill, and that may be another number than 0 */
    bool any_fill; /* whoever reads the result ignores elements that lie outside */
    int rank;
    along d[GRAPH_MAX_RANK];
    assigned a;
    const char *why;
} shifting;

/* ---- halo.c ---- */
/* can parts be exchanged for less than gathering the dim costs? */
bool halo_fits(const dist_mesh *m, const along *d, const eas_dim_spec *axes);
/* elements along the dim that leave devices, in all */
int64_t halo_sent(const dist_mesh *m, const along *d, const eas_dim_spec *axes);
/* x, a part of the base, as the elements that this device's part of the result is made of: step * (part - 1)
 * + reach of them. */
eas_node *halo_exchange(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes);
/* x from element `from` (which may be negative) on, n of them; the fill where there are none, and outside of
 * [lo, hi). */
eas_node *halo_cut(shifting *s, eas_node *x, int dim, int64_t from, int64_t n, int64_t lo, int64_t hi);
/* a slice that is better sent to all devices than cut or gathered */
bool halo_is_few(const dist_mesh *m, const along *d, const eas_dim_spec *axes);
/* that slice, whole on every device; steps are done */
eas_node *halo_few(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes);
/* parts in reverse order, each reversed */
eas_node *halo_flip(shifting *s, eas_node *x, int dim, const eas_dim_spec *axes);
/* Global places of the elements of a part along dim, shaped to be compared with a tensor of this rank: i64.
 */
eas_node *halo_places(partition *p, const eas_dim_spec *axes, int64_t size, int rank, int dim);

/* ---- shift.c ---- */
bool shift_known_sizes(const eas_node *n);
eas_node *shift_spread(shifting *s, eas_node *x); /* each element with `between` zeros behind it */

#endif
