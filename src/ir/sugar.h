/* sugar.h: what the files of the public builder share: sugar.c (arithmetic), sugar_memory.c, sugar_flow.c. */
#ifndef SUGAR_H
#define SUGAR_H

#include "ir.h"

static inline ir_type type_of(const eas_builder *b, uint32_t v) { return b->ir->vals[v].type; }
static inline bool is_weak(const eas_builder *b, uint32_t v) { return b->ir->vals[v].weak == IR_WEAK; }
static inline bool alive(const eas_builder *b, uint32_t v) { return !b->status && v && v < b->ir->nvals; }

/* ---- sugar.c ---- */
const char *sugar_describe(const eas_builder *b, uint32_t v, char buf[160]);
bool sugar_want_value(eas_builder *b, const char *what, uint32_t v);
bool sugar_want_buffer(eas_builder *b, const char *what, uint32_t v);
uint32_t sugar_adapt(eas_builder *b, uint32_t v, eas_dtype dt);
bool sugar_weak_int(const eas_builder *b, uint32_t v);
bool sugar_weak_float(const eas_builder *b, uint32_t v);
bool sugar_literal_fits(eas_builder *b, const char *what, uint32_t v, eas_dtype dt);
bool sugar_common_dtype(eas_builder *b, const char *what, const uint32_t *v, int n, eas_dtype *out);
bool sugar_common_shape(eas_builder *b, const char *what, const uint32_t *v, int n, ir_type *out);
uint32_t sugar_spread(eas_builder *b, uint32_t v, ir_type shape);
bool sugar_spread_all(eas_builder *b, const char *what, uint32_t *v, int n);
bool sugar_is_literal(const eas_builder *b, uint32_t v);
bool sugar_as_condition(eas_builder *b, uint32_t *v);

/* ---- sugar_memory.c ---- */
bool sugar_want_offset(eas_builder *b, const char *what, const char *which, uint32_t *v);

#endif
