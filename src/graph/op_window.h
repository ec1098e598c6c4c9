/* op_window.h: windows over the height and width of images, for op_conv.c and op_pool.c. */
#ifndef OP_WINDOW_H
#define OP_WINDOW_H

#include "graph.h"

/* What a window over height and width does; each item for the two axes. */
typedef struct window {
    int64_t size[2], stride[2], dilation[2], before[2], after[2];
    int64_t extra[2]; /* of a transposed convolution: more rows and columns at the end */
    int64_t flags[2];
} window;
enum { WINDOW_WORDS = sizeof(window) / sizeof(int64_t) };
extern const char *const window_side[2]; /* "height", "width" */

/* ---- what a call says ---- */
void window_read_pair(rule *r, const char *what, int64_t least, int64_t out[2]);
void window_read_padding(rule *r, window *w);
void window_need_rank(rule *r, const eas_node *x, const char *what, const char *dims_text);
void window_too_small(rule *r, const eas_node *x, const window *w, int i);
window window_of(const eas_node *n); /* the words of a node that was recorded with a window */

/* ---- nodes ---- */
int64_t window_reach(const window *w, int i); /* elements from the first to the last one of a window */
eas_dim window_count(gbuild *g, const window *w, int i,
                     eas_dim n); /* how many there are along an axis of n */
/* x, whose height is axis `at`, with `fill` around it. after may be negative: elements are taken away. */
eas_node *window_framed(gbuild *g, eas_node *x, int at, const int64_t before[2], const eas_dim after[2],
                        eas_node *fill);
/* Windows over axes at and at + 1: two dims of their sizes come at the end. */
eas_node *window_all(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2]);

/* Where windows overlap, element (i, j) of all of them is a slice of x (a tap), whose channels are neighbours
 * in memory. A few taps, joined element by element, are one pass over x with channels as lanes; a reduction
 * over the window's own dims would have the few elements of one window as lanes. */
bool window_few_taps(const window *w);
eas_node *window_tap(gbuild *g, eas_node *x, int at, const window *w, const eas_dim count[2], int64_t i,
                     int64_t j);

#endif
