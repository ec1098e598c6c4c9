/* blame.c: which index was out of range. A kernel only knows the place in memory that it was asked for; so
 * after such a failure the indices of every gather and scatter that the failed evaluation contains are
 * computed by themselves, and the first one that does not fit its axis is named. What a loop runs is not
 * looked into: its indices are different in each trip.
 */
#include "exec.h"

#include <stdio.h>

typedef struct blaming {
    int nin; /* inputs of a program, and what was given for them; 0: of no program */
    eas_node *const *inputs, *const *args;
    eas_device *device;
    VEC(eas_node *) todo;
    /* a table of pointers, counted: computing indices lets go of what they were computed from */
    eas_node **seen;
    uint32_t room, used;
    bool found;
} blaming;
static _Thread_local bool busy; /* computing indices may fail for an index as well */

static bool grow(blaming *b)
{
    uint32_t room = b->room ? 2 * b->room : 256;
    eas_node **seen = calloc(room, sizeof *seen), **old = b->seen;
    if (!seen)
        return false;
    for (uint32_t i = 0; i < b->room; i++)
        if (old[i]) {
            uint32_t k = (uint32_t)((uintptr_t)old[i] >> 4) * 2654435761u & (room - 1);
            while (seen[k])
                k = (k + 1) & (room - 1);
            seen[k] = old[i];
        }
    free(old);
    b->seen = seen;
    b->room = room;
    return true;
}

static void visit(blaming *b, eas_node *n)
{
    if (node_real(n) || (2 * b->used >= b->room && !grow(b)))
        return;
    uint32_t k = (uint32_t)((uintptr_t)n >> 4) * 2654435761u & (b->room - 1);
    while (b->seen[k] && b->seen[k] != n)
        k = (k + 1) & (b->room - 1);
    if (b->seen[k] || !vec_push(&b->todo, n))
        return;
    b->seen[k] = node_ref(n);
    b->used++;
}

/* The data of indices as i64 in memory of the host; NULL: they cannot be had. Free it. */
static int64_t *read_indices(const blaming *b, eas_node *index, int64_t *count)
{
    eas_node *wide = NULL, *result = NULL;
    eas_program *p = NULL;
    int64_t *out = NULL;
    eas_status st = graph_cast(index, EAS_I64, &wide);
    if (!st && wide->flags & NODE_SYMBOLIC && b->nin) {
        st = eas_program_new(b->nin, b->inputs, 1, &wide, b->device, &p);
        if (!st)
            st = eas_program_run(p, b->nin, b->args, NULL, NULL, &result);
    } else if (!st) {
        st = eas_nodes_realize(1, &wide, b->device, NULL);
        result = st ? NULL : node_ref(wide);
    }
    eas_buffer *buf = st ? NULL : atomic_load_explicit(&result->buf, memory_order_acquire);
    *count = 1;
    for (int i = 0; buf && i < result->rank; i++)
        *count *= node_shape(result)[i];
    bool plain = buf && !(node_kind(result) == KIND_LEAF && result->nwords);
    if (plain && (out = malloc(sizeof *out * (size_t)(*count + 1))) &&
        eas_device_copy(NULL, out, eas_buffer_device(buf), buf->mem, sizeof *out * (size_t)*count, NULL)) {
        free(out);
        out = NULL;
    }
    node_unref(result);
    node_unref(wide);
    eas_program_release(p);
    return out;
}

static void check(blaming *b, eas_node *n, eas_node *index, int axis)
{
    eas_node *x = node_in(n)[0];
    /* Indices of several axes are joined into one number before the access; a bad one becomes the size of the
     * joined axis (wrapped in op_index.c). That tells nothing about which index it was, so it is left out. */
    bool joined = n->op != GRAPH_INDEX && !node_real(index);
    int64_t count = 0, size = node_shape(x)[axis],
            *at = dim_known(size) ? read_indices(b, index, &count) : NULL;
    for (int64_t i = 0; at && i < count && !b->found; i++)
        if ((at[i] < -size || at[i] >= size) && !(joined && at[i] == size)) {
            char file[512];
            int line;
            b->found = true;
            if (node_place(n, file, sizeof file, &line))
                base_fail(
                    EAS_ERR_INDEX,
                    "%s:%d: an index is out of range: index %lld is out of bounds for axis %d with size %lld",
                    file, line, (long long)at[i], axis - x->batch_dims, (long long)size);
            else
                base_fail(
                    EAS_ERR_INDEX,
                    "eager: an index is out of range: index %lld is out of bounds for axis %d with size %lld",
                    (long long)at[i], axis - x->batch_dims, (long long)size);
        }
    free(at);
}

/* The expansion of a composite, with the composite's source line. */
static bool expanded(eas_node *n, eas_node **out)
{
    eas_site_set(n->site);
    eas_status st = graph_rows[n->op].expand(n, node_in(n), out);
    eas_site_set(0);
    return st == EAS_OK;
}

static void look_at(blaming *b, eas_node *n)
{
    graph_kind kind = node_kind(n);
    eas_node *out = NULL;
    /* it was computed meanwhile as a part of another index: it had no bad index, and has let its inputs go */
    if (node_real(n))
        return;
    for (int i = 0; i < n->nin; i++)
        visit(b, node_in(n)[i]);
    for (int i = 0; n->op == GRAPH_INDEX && i + 1 < n->nin && !b->found; i++)
        check(b, n, node_in(n)[1 + i], node_in(n)[0]->batch_dims + (int)node_words(n)[i]);
    if (kind == KIND_GATHER || kind == KIND_SCATTER)
        check(b, n, node_in(n)[1], (int)node_words(n)[1]);
    else if (kind == KIND_ALONG)
        check(b, n, node_in(n)[1], (int)node_words(n)[0]);
    else if (kind == KIND_COMPOSITE && expanded(n, &out)) {
        visit(b, out);
        node_unref(out);
    }
}

void blame_index(int n, eas_node *const *roots, eas_device *device, int nin, eas_node *const *inputs,
                 eas_node *const *args)
{
    blaming b = {.nin = nin, .inputs = inputs, .args = args, .device = device};
    char before[1024];
    if (busy)
        return;
    busy = true;
    snprintf(before, sizeof before, "%s", eas_error_message());
    for (int i = 0; i < n; i++)
        visit(&b, roots[i]);
    while (b.todo.len && !b.found)
        look_at(&b, b.todo.at[--b.todo.len]);
    if (!b.found)
        base_fail(EAS_ERR_INDEX, "%s", before);
    for (uint32_t i = 0; i < b.room; i++)
        if (b.seen[i])
            node_unref(b.seen[i]);
    vec_free(&b.todo);
    free(b.seen);
    busy = false;
}
