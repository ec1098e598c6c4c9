/* slots.c: how long values are needed, and which of them share memory.
 *
 * The problem: blocks that the interpreter, a text or machine code keeps in memory outnumber those that are
 * needed at the same time. The idea is register allocation by linear scan: the caller, which places values,
 * numbers the points of a run in order (instructions, or segments of them), reports where each value is made
 * and read, and reports every loop at its end: a value from outside of a loop is read again in the next
 * round, so its live range lasts until the loop ends. Then values are placed in the order in which they are
 * made; each takes the smallest slot that is large enough and whose holder's live range is over, or a new
 * one. Whether a slot is free is the caller's to say, since one that is read for the last time where the next
 * value is made may be overwritten lane by lane.
 */
#include "ir.h"

bool ir_lives_begin(ir_lives *l, uint32_t nvals, arena *mem)
{
    *l = (ir_lives){.n = nvals, .of = arena_alloc(mem, ((size_t)nvals + 1) * sizeof *l->of)};
    return l->of != NULL;
}

void ir_lives_read(ir_lives *l, uint32_t v, uint32_t at)
{
    ir_live_range *x = &l->of[v];
    if (at <= x->last)
        return;
    x->last = at;
    x->region = false;
}

void ir_lives_region(ir_lives *l, uint32_t first, uint32_t last)
{
    for (uint32_t v = 1; v < l->n; v++) {
        ir_live_range *x = &l->of[v];
        if (x->made >= first || x->last < first || x->last > last)
            continue;
        x->last = last;
        x->region = true;
    }
}

ir_slot *ir_slot_take(ir_slots *s, uint64_t size, uint32_t v, ir_slot_test *is_free, const void *ctx)
{
    ir_slot *best = NULL;
    for (uint32_t k = 0; k < s->len; k++) {
        ir_slot *x = &s->at[k];
        if (x->size >= size && (!best || x->size < best->size) && is_free(ctx, x, v))
            best = x;
    }
    if (best)
        best->holder = v;
    return best;
}

bool ir_slot_add(ir_slots *s, uint64_t at, uint64_t size, uint32_t v)
{
    return vec_push(s, ((ir_slot){.owner = v, .holder = v, .size = size, .at = at}));
}
