/* lower_compact.c: the places of the true elements of a row, in order.
 *
 * A program goes through one part of the row, whose first place in the result is known from the counts. A
 * block of elements none of which is true is passed over. Of another block every element is stored at the
 * next place, and the place moves on if the element is true: so what is stored for one that is not is
 * overwritten, and nothing depends on the data but the place. After the last true element of the part nothing
 * is stored: the next place belongs to another program. The last part of a row fills what is left of the
 * result with the row's length.
 */
#include "exec.h"

enum { BLOCK = 64 };

typedef struct compaction {
    lowering *w;
    const pnode *p, *truth;
    int axis;
    eas_value row, size; /* of the result: number of its first element; length */
    lindex at[MAX_DIMS];
} compaction;

static void put(compaction *c, eas_value place, eas_value v, eas_value ok)
{
    lower *l = &c->w->l;
    place =
        low_bin(l, "max", low_bin(l, "min", place, low_bin(l, "sub", c->size, low_int(l, 1))), low_int(l, 0));
    eas_builder_if_begin(l->b, ok);
    eas_builder_store(l->b, c->w->out[0], low_bin(l, "add", c->row, place), v, 0);
    eas_builder_if_end(l->b, 0, NULL, NULL);
}

static eas_value of_part(compaction *c, int input, eas_value part)
{
    c->at[c->axis] = (lindex){part, 0};
    return low_value(&c->w->l, c->p->in[input], c->at, NULL);
}

static void fill(compaction *c, eas_value from)
{
    lower *l = &c->w->l;
    eas_value iv;
    eas_builder_loop_begin(l->b, from, c->size, low_int(l, 1), 0, NULL, &iv, NULL);
    put(c, iv, low_dim(l, c->truth->shape[c->axis]), low_bin(l, "lt", iv, c->size));
    eas_builder_loop_end(l->b, 0, NULL, NULL);
}

static eas_value truth_at(compaction *c, eas_value i, eas_value ok)
{
    c->at[c->axis] = (lindex){i, ok};
    return low_value(&c->w->l, c->p->in[0], c->at, NULL);
}

/* Is there a true element among [from, from + BLOCK) below stop? */
static eas_value any(compaction *c, eas_value from, eas_value stop)
{
    lower *l = &c->w->l;
    const int64_t block = BLOCK;
    const uint32_t mark = low_mark(l);
    eas_value i = low_bin(l, "add", from, low_lanes(l, 0, BLOCK)), ok = low_bin(l, "lt", i, stop),
              yes = low_bin(l, "and", eas_builder_broadcast(l->b, truth_at(c, i, ok), 1, &block), ok),
              found = eas_builder_reduce(l->b, eas_op_find("max"), eas_builder_cast(l->b, yes, EAS_I32), 0);
    low_forget(l, mark);
    return low_bin(l, "gt", found, eas_builder_const_typed(l->b, EAS_I32, 0, 0));
}

/* The places of the true elements of [from, stop), the first at `place`; gives the next place. */
static eas_value each(compaction *c, eas_value from, eas_value stop, eas_value place, eas_value last)
{
    lower *l = &c->w->l;
    const uint32_t mark = low_mark(l);
    eas_value iv, now, next;
    eas_builder_loop_begin(l->b, from, stop, low_int(l, 1), 1, &place, &iv, &now);
    eas_value yes = eas_builder_cast(l->b, truth_at(c, iv, 0), EAS_I64);
    put(c, now, iv, low_bin(l, "lt", now, last));
    now = low_bin(l, "add", now, yes);
    eas_builder_loop_end(l->b, 1, &now, &next);
    low_forget(l, mark);
    return next;
}

void lower_compact(lowering *w)
{
    lower *l = &w->l;
    compaction c = {.w = w, .p = pass_at(l->g, l->grp->core)};
    c.truth = pass_at(l->g, c.p->in[0]);
    c.axis = c.p->rank - 1;
    const int64_t n = c.truth->shape[c.axis], length = c.p->words[0], parts = (n + length - 1) / length;
    eas_dim *grid = w->use->grid;
    l->nblock = 1;
    grid[0] = parts;
    grid[2] = 1;
    grid[1] = low_spread(l, 1, c.axis, c.p->shape, 0, c.at);
    c.size = low_dim(l, c.p->shape[c.axis]);
    c.row = low_bin(l, "mul", eas_builder_program_id(l->b, 1), c.size);
    eas_value part = eas_builder_program_id(l->b, 0), end = of_part(&c, 1, part),
              start = low_bin(l, "sub", end, of_part(&c, 2, part));
    eas_value last = low_bin(l, "min", end, c.size), first = low_bin(l, "mul", part, low_int(l, length));
    eas_value stop = low_bin(l, "min", low_bin(l, "add", first, low_int(l, length)), low_int(l, n)), iv,
              place;
    eas_value moved, next, done;
    const uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, first, stop, low_int(l, BLOCK), 1, &start, &iv, &place);
    eas_builder_if_begin(l->b, any(&c, iv, stop));
    moved = each(&c, iv, low_bin(l, "min", low_bin(l, "add", iv, low_int(l, BLOCK)), stop), place, last);
    eas_builder_if_else(l->b, 1, &moved);
    eas_builder_if_end(l->b, 1, &place, &next);
    eas_builder_loop_end(l->b, 1, &next, &done);
    low_forget(l, mark);
    eas_builder_if_begin(l->b, low_bin(l, "eq", part, low_int(l, parts - 1)));
    fill(&c, end);
    eas_builder_if_end(l->b, 0, NULL, NULL);
}
