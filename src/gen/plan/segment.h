/* segment.h: what segment.c, region.c and access.c share: the state of the planner while steps are made. */
#ifndef GEN_PLAN_SEGMENT_H
#define GEN_PLAN_SEGMENT_H

#include "plan.h"

/* access.c */
typedef VEC(ir_access) accesses;
void plan_add_accesses(plan *p, uint32_t insn, accesses *out);
/* Can an access of each list touch one element from two lanes? loop_begin: the opener of the loop that
 * both are in, UINT32_MAX outside of loops. */
bool plan_conflicts(plan *p, const accesses *old, const accesses *add, uint32_t loop_begin);

/* segment.c */
typedef struct planner {
    plan *p;
    steps *out;
    segment *open;
    accesses acc; /* of the open segment */
    bool views; /* the open segment reads slots through maps */
} planner;
void step_push(planner *q, step s);
void segment_open(planner *q, shape sh, int kind); /* stays in the open one if it is of that shape and kind */
void segment_close(planner *q);
void segment_push(planner *q, item it);
void segment_define(planner *q, uint32_t insn); /* its results are made in the open segment */
shape segment_shape(const plan *p, const ir_insn *in); /* the iteration shape of a block instruction */
bool segment_touches_memory(const ir_insn *in);
bool segment_is_mma(const ir_insn *in);
bool segment_readable(planner *q, uint32_t v,
                      /* may an instruction that reads v join? Not if v is made in it and read through a
                       * map */
                      const shape *sh);
bool segment_waits(const planner *q, const ir_insn *in); /* does it wait for the end of the open segment? */
/* the operand of a move is made in the open segment: not all of it is there yet */
bool segment_half_made(planner *q, const ir_insn *in);
/* reads a uniform value that is made in the open segment */
bool segment_uses_open(const planner *q, const ir_insn *in);
void segment_insn(planner *q, uint32_t insn);

/* region.c */
void segment_range(planner *q, uint32_t from, uint32_t to); /* steps of the instructions from <= i < to */

#endif
