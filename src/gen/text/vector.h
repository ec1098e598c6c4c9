/* vector.h: what vector.c and vector_memory.c share. */
#ifndef GEN_TEXT_VECTOR_H
#define GEN_TEXT_VECTOR_H

#include "ctext.h"

enum { UNI, STEP, VEC, MAX_MULT = 1 << 20 };

typedef struct vx {
    uint8_t kind;
    int64_t step;
    uint64_t mult; /* UNI, STEP: a power of two that divides the first lane's value */
    const char *x; /* atomic */
} vx;

/* vector.c */
vx vx_give_up(ct *g); /* the loop cannot be done in vectors */
vx vx_value(ct *g, uint32_t v, const ct_at *at);
const char *vx_as_vector(ct *g, eas_dtype dt, vx v); /* any value as a vector, atomic */
bool vx_is_half(eas_dtype dt);
bool vx_wide_int(eas_dtype dt);
eas_dtype vx_lane_dtype(eas_dtype dt); /* the type of a variable's lanes: bools are int */
const char *vx_vec_type(ct *g, eas_dtype dt, int n);
const char *vx_neighbours(ct *g, const char *space, eas_dtype dt,
                          /* the vector of neighbours at a pointer, whatever its alignment */
                          const char *pointer);
const char *vx_array_at(ct *g, const char *array, eas_dtype dt, const char *at);
const char *vx_to_element(ct *g, eas_dtype dt, const char *x); /* bools in arrays are bytes */
const char *vx_from_element(ct *g, eas_dtype dt, const char *x);

/* vector_memory.c */
/* in a variable of that name, unless it can stand as it is */
vx vx_load(ct *g, const ir_insn *in, const ct_at *at, const char *name);
void vx_store(ct *g, const ir_insn *in);

#endif
