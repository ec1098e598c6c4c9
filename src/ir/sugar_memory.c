/* sugar_memory.c: the public builder: loads, stores, atomics, threadgroup arrays, products from memory,
 * asserts and prints. */
#include "sugar.h"

#include <stdio.h>

bool sugar_want_offset(eas_builder *b, const char *what, const char *which, uint32_t *v)
{
    char d[160];
    if (!sugar_want_value(b, what, *v))
        return false;
    if (!dtype_is_int(type_of(b, *v).dtype))
        return irb_fail(b, EAS_ERR_TYPE, "%s: %s must be an integer, got %s", what, which,
                        sugar_describe(b, *v, d)),
               false;
    return true;
}

static bool want_mask(eas_builder *b, const char *what, uint32_t v)
{
    char d[160];
    if (!sugar_want_value(b, what, v))
        return false;
    if (type_of(b, v).dtype != EAS_BOOL)
        return irb_fail(b, EAS_ERR_TYPE, "%s: the mask must be bool, got %s; compare it with something", what,
                        sugar_describe(b, v, d)),
               false;
    return true;
}

/* The value v, about to be stored in memory of dtype elem: every conversion is implicit but that of a float
 * to an integer. */
static uint32_t to_element(eas_builder *b, const char *what, uint32_t v, eas_dtype elem)
{
    char d[160];
    eas_dtype dt = type_of(b, v).dtype;
    const bool number = sugar_weak_int(b, v);
    if (!number && dt != elem && ((dtype_is_float(dt) && !dtype_is_float(elem)) || elem == EAS_BOOL))
        return irb_fail(b, EAS_ERR_TYPE, "%s: %s does not go into %s by itself; say mk.cast(value, mk.%s%s)",
                        what, sugar_describe(b, v, d), eas_dtype_name(elem), eas_dtype_name(elem),
                        elem == EAS_BOOL ? "_" : ""),
               0;
    if (!sugar_literal_fits(b, what, v, elem))
        return 0;
    return sugar_adapt(b, v, elem);
}

eas_value eas_builder_load(eas_builder *b, eas_value buf, eas_value off, eas_value mask, eas_value other)
{
    NEED(b, 0);
    if (!sugar_want_buffer(b, "load", buf) || !sugar_want_offset(b, "load", "the offset", &off) ||
        (mask && !want_mask(b, "load", mask)))
        return 0;
    eas_dtype elem = type_of(b, buf).dtype;
    if (!mask) {
        ir_type t = {0};
        uint32_t args[2] = {buf, off};
        return irb_insn(b, IR_LOAD, args, 2, 0, 1, &t);
    }
    if (other && !sugar_want_value(b, "load", other))
        return 0;
    other = other ? to_element(b, "load: other", other, elem) : irb_typed(b, IR_CONST, ir_scalar(elem), 0);
    uint32_t v[3] = {off, mask, other};
    if (b->status || !sugar_spread_all(b, "load", v, 3))
        return 0;
    uint32_t args[4] = {buf, v[0], v[1], v[2]};
    ir_type t = {0};
    return irb_insn(b, IR_LOAD, args, 4, 0, 1, &t);
}

void eas_builder_store(eas_builder *b, eas_value buf, eas_value off, eas_value val, eas_value mask)
{
    NEED_(b);
    char d[160];
    if (!sugar_want_buffer(b, "store", buf) || !sugar_want_offset(b, "store", "the offset", &off) ||
        !sugar_want_value(b, "store", val) || (mask && !want_mask(b, "store", mask)))
        return;
    val = to_element(b, "store", val, type_of(b, buf).dtype);
    if (b->status)
        return;
    if (!type_of(b, off).rank && type_of(b, val).rank) {
        irb_fail(b, EAS_ERR_VALUE,
                 "store: one offset for a block of values (%s): every lane would write the same element",
                 sugar_describe(b, val, d));
        return;
    }
    uint32_t v[3] = {off, val, mask};
    if (!sugar_spread_all(b, "store", v, mask ? 3 : 2))
        return;
    uint32_t args[4] = {buf, v[0], v[1], v[2]};
    irb_insn(b, IR_STORE, args, mask ? 4 : 3, 0, 0, NULL);
}

static bool atomic_fits(uint16_t op, eas_dtype dt)
{
    return dtype_is_float(dt) ? (ir_rows[op].classes & IR_F) != 0 : dtype_is_int(dt) && dtype_bits(dt) >= 32;
}

eas_value eas_builder_atomic(eas_builder *b, eas_op op, eas_value buf, eas_value off, eas_value x,
                             eas_value y, eas_value mask)
{
    NEED(b, 0);
    if (b->status)
        return 0;
    if (!op || op >= IR_NOPS || ir_rows[op].rule != IR_RULE_ATOMIC)
        return irb_fail(b, EAS_ERR_VALUE, "atomic: %s is not an atomic instruction", eas_op_name(op)), 0;
    const char *what = ir_rows[op].name;
    int values = ir_atomic_values(op);
    if (!sugar_want_buffer(b, what, buf) || !sugar_want_offset(b, what, "the offset", &off) ||
        (values && !sugar_want_value(b, what, x)) || (values == 2 && !sugar_want_value(b, what, y)) ||
        (mask && !want_mask(b, what, mask)))
        return 0;
    eas_dtype elem = type_of(b, buf).dtype;
    if (!atomic_fits(op, elem))
        return irb_fail(b, EAS_ERR_TYPE, "%s: a buffer of %s; it works on i32, u32, i64, u64%s", what,
                        eas_dtype_name(elem), ir_rows[op].classes & IR_F ? ", f16, bf16, f32 and f64" : ""),
               0;
    uint32_t v[4] = {off, values ? to_element(b, what, x, elem) : 0};
    if (values == 2)
        v[2] = b->status ? 0 : to_element(b, what, y, elem);
    v[1 + values] = mask;
    int n = 1 + values + (mask != 0);
    if (b->status || !sugar_spread_all(b, what, v, n))
        return 0;
    uint32_t args[5] = {buf, v[0], v[1], v[2], v[3]};
    ir_type t = {0};
    return irb_insn(b, op, args, 1 + n, 0, 1, &t);
}

void eas_builder_fence(eas_builder *b, eas_order order, eas_scope scope)
{
    NEED_(b);
    if ((unsigned)order >= EAS_NORDERS || (unsigned)scope >= EAS_NSCOPES) {
        irb_fail(b, EAS_ERR_VALUE, "fence: order %d and scope %d; there are %d and %d", (int)order,
                 (int)scope, (int)EAS_NORDERS, (int)EAS_NSCOPES);
        return;
    }
    if (order != EAS_ORDER_RELAXED)
        irb_insn(b, IR_FENCE, NULL, 0, ir_imm_fence(order, scope), 0, NULL);
}

/* C11 has ordered atomics; Metal has only relaxed ones, which are put between fences here. That is at least
 * as strong as the ordered form. */
eas_value eas_builder_atomic_ordered(eas_builder *b, eas_op op, eas_value buf, eas_value off, eas_value x,
                                     eas_value y, eas_value mask, eas_order order)
{
    NEED(b, 0);
    const bool strict = order == EAS_ORDER_SEQ_CST,
               first = order == EAS_ORDER_RELEASE || order == EAS_ORDER_ACQ_REL,
               then = order == EAS_ORDER_ACQUIRE || order == EAS_ORDER_ACQ_REL;
    const eas_scope scope =
        !b->status && sugar_want_buffer(b, eas_op_name(op), buf) && type_of(b, buf).kind == IR_TG
            ? EAS_SCOPE_GROUP
            : EAS_SCOPE_DEVICE;
    if (strict || first || (unsigned)order >= EAS_NORDERS)
        eas_builder_fence(b, strict ? order : first ? EAS_ORDER_RELEASE : order, scope);
    eas_value r = eas_builder_atomic(b, op, buf, off, x, y, mask);
    if (strict || then)
        eas_builder_fence(b, strict ? order : EAS_ORDER_ACQUIRE, scope);
    return r;
}

void eas_builder_assert(eas_builder *b, eas_value cond, const char *message, eas_value mask)
{
    NEED_(b);
    char d[160];
    if (!sugar_want_value(b, "assert_", cond) || (mask && !want_mask(b, "assert_", mask)))
        return;
    if (type_of(b, cond).dtype != EAS_BOOL) {
        irb_fail(b, EAS_ERR_TYPE, "assert_: the condition must be bool, got %s; compare it with something",
                 sugar_describe(b, cond, d));
        return;
    }
    uint32_t v[2] = {cond, mask};
    if (!sugar_spread_all(b, "assert_", v, mask ? 2 : 1))
        return;
    irb_insn(b, IR_ASSERT, v, mask ? 2 : 1, irb_string(b, message ? message : ""), 0, NULL);
}

enum { MAX_PRINTED = 64 };

void eas_builder_print(eas_builder *b, const char *text, int n, const eas_value *values, eas_value mask)
{
    NEED_(b);
    NEED_(text);
    uint32_t v[MAX_PRINTED + 1];
    if (b->status)
        return;
    if (n < 0 || n > MAX_PRINTED || ir_print_values(text) != n) {
        irb_fail(b, EAS_ERR_VALUE, "print: %d values for %d places in \"%s\"; at most %d", n,
                 ir_print_values(text), text, (int)MAX_PRINTED);
        return;
    }
    for (int i = 0; i < n; i++)
        if (!sugar_want_value(b, "print", values[i]) || !(v[i] = irb_strong(b, values[i])))
            return;
    if (mask && !want_mask(b, "print", mask))
        return;
    v[n] = mask;
    ir_type shape = {0};
    if (mask && (!sugar_common_shape(b, "print", v, n + 1, &shape)))
        return;
    for (int i = 0; i <= n && mask && type_of(b, mask).rank; i++)
        v[i] = sugar_spread(b, v[i], shape);
    irb_insn(b, IR_PRINT, v, n + (mask != 0), irb_string(b, text), 0, NULL);
}

eas_value eas_builder_alloc_tg(eas_builder *b, int64_t size, eas_dtype elem)
{
    NEED(b, 0);
    if (b->status)
        return 0;
    if (size < 1 || size > IR_MAX_DIM * (int64_t)64)
        return irb_fail(b, EAS_ERR_VALUE, "alloc_tg: size is %lld; it must be positive", (long long)size), 0;
    if (b->open.len || live_inside(b))
        return irb_fail(b, EAS_ERR_VALUE,
                        "alloc_tg: a threadgroup array cannot be made inside a loop or branch; move it to "
                        "the top"),
               0;
    ir_type t = {.dtype = (uint8_t)elem, .kind = IR_TG, .rank = 1, .dim = {(int32_t)size}};
    return irb_typed(b, IR_ALLOC_TG, t, size);
}

void eas_builder_barrier(eas_builder *b)
{
    NEED_(b);
    irb_insn(b, IR_BARRIER, NULL, 0, 0, 0, NULL);
}

eas_value eas_builder_dot(eas_builder *b, eas_value a, eas_value a_base, eas_value a_stride, eas_value bb,
                          eas_value b_base, eas_value b_stride, eas_value K)
{
    NEED(b, 0);
    if (!sugar_want_buffer(b, "dot", a) || !sugar_want_buffer(b, "dot", bb) ||
        !sugar_want_offset(b, "dot", "a_base", &a_base) ||
        !sugar_want_offset(b, "dot", "a_stride", &a_stride) ||
        !sugar_want_offset(b, "dot", "b_base", &b_base) ||
        !sugar_want_offset(b, "dot", "b_stride", &b_stride) || !sugar_want_offset(b, "dot", "K", &K))
        return 0;
    if (!dtype_is_float(type_of(b, a).dtype) || !dtype_is_float(type_of(b, bb).dtype))
        return irb_fail(b, EAS_ERR_TYPE, "dot: needs float buffers, got %s and %s",
                        eas_dtype_name(type_of(b, a).dtype), eas_dtype_name(type_of(b, bb).dtype)),
               0;
    uint32_t v[5] = {a_base, a_stride, b_base, b_stride, K};
    if (!sugar_spread_all(b, "dot", v, 5))
        return 0;
    uint32_t args[7] = {a, v[0], v[1], bb, v[2], v[3], v[4]};
    ir_type t = {0};
    return irb_insn(b, IR_DOT, args, 7, 0, 1, &t);
}

eas_value eas_builder_mma_zero(eas_builder *b)
{
    NEED(b, 0);
    return irb_typed(b, IR_MMA_ZERO, (ir_type){.dtype = EAS_F32, .kind = IR_FRAG}, 0);
}

eas_value eas_builder_mma(eas_builder *b, eas_value a, eas_value a_base, eas_value a_stride, eas_value bb,
                          eas_value b_base, eas_value b_stride, eas_value acc)
{
    NEED(b, 0);
    if (!sugar_want_buffer(b, "mma", a) || !sugar_want_buffer(b, "mma", bb) ||
        !sugar_want_offset(b, "mma", "a_base", &a_base) ||
        !sugar_want_offset(b, "mma", "a_stride", &a_stride) ||
        !sugar_want_offset(b, "mma", "b_base", &b_base) ||
        !sugar_want_offset(b, "mma", "b_stride", &b_stride))
        return 0;
    uint32_t args[7] = {a, a_base, a_stride, bb, b_base, b_stride, acc};
    ir_type t = {0};
    return irb_insn(b, IR_MMA, args, 7, 0, 1, &t);
}

void eas_builder_mma_store(eas_builder *b, eas_value buf, eas_value base, eas_value stride, eas_value frag)
{
    NEED_(b);
    if (!sugar_want_buffer(b, "mma_store", buf) || !sugar_want_offset(b, "mma_store", "base", &base) ||
        !sugar_want_offset(b, "mma_store", "stride", &stride))
        return;
    uint32_t args[4] = {buf, base, stride, frag};
    irb_insn(b, IR_MMA_STORE, args, 4, 0, 0, NULL);
}
