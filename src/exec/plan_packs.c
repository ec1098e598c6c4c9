/* plan_packs.c: the factors of matrix products that a plan lays out in panels (lower_pack.c) are kept for
 * later runs, as long as the tensor that they are made of stays what it is (src/dev/packs.c).
 *
 * That is so for steps that read one tensor of the run and nothing else but numbers: weights, possibly
 * transposed or cast. The layout is told by the kernel and these numbers, so all plans share what was laid
 * out in the same way. Factors that take much more memory than what they are made of (4-bit weights that are
 * dequantised) are not kept.
 */
#include "exec.h"

static bool is_number(const struct plan_arg *a)
{
    return a->what == USE_NUMBER || (a->what == USE_DIM && dim_known(a->dim));
}

/* The argument that is read, if it is all that is; -1 */
static int only_source(const plan_step *s, const slot *slots)
{
    int from = -1;
    for (int i = 1; i < s->nargs; i++) {
        const bool leaf = s->args[i].what == USE_NODE && slots[s->args[i].index].leaf != SLOT_NONE;
        if (!leaf && !is_number(&s->args[i]))
            return -1;
        if (leaf && from >= 0)
            return -1;
        if (leaf)
            from = i;
    }
    return from;
}

static double bytes_of(const slot *s)
{
    return dim_known(s->count) ? (double)s->count * (double)eas_dtype_size((eas_dtype)s->dtype) : -1;
}

bool packs_can_keep(const plan_step *s, const slot *slots)
{
    if (s->nouts != 1 || s->nargs - 2 > DEV_PACK_ARGS || !dim_known(s->grid[0]) || !dim_known(s->grid[1]) ||
        !dim_known(s->grid[2]))
        return false;
    const int from = only_source(s, slots);
    if (from < 0)
        return false;
    const double read = bytes_of(&slots[s->args[from].index]), made = bytes_of(&slots[s->args[0].index]);
    return made >= 0 && made <= 2.25 * read; /* halves become f32, and panels are full */
}

eas_buffer *packs_find(const plan_step *s, const plan_run *r, eas_buffer *const *bufs, packs_use *u)
{
    int n = 0;
    *u = (packs_use){.key = {.kernel = s->kernel->number}};
    for (int i = 1; i < s->nargs; i++) {
        const struct plan_arg *a = &s->args[i];
        if (a->what == USE_NODE)
            u->from = bufs[a->index];
        else
            u->key.arg[n++] = a->what == USE_DIM    ? a->dim
                            : a->index == SLOT_NONE ? a->bits
                                                    : r->numbers[a->index];
    }
    return dev_pack_find(u->from, &u->key, &u->ask);
}

void packs_keep(const packs_use *u, eas_buffer *made) { dev_pack_add(u->from, &u->key, &u->ask, made); }
