/* sugar_flow.c: the public builder: loops and branches, whose values keep one type. */
#include "sugar.h"

#include <stdio.h>

enum { MAX_CARRIED = 1024 };

/* Builds an instruction with n more operands behind `head`, and returns its results from `skip` on in
 * `out`. */
static uint32_t region(eas_builder *b, uint16_t op, const uint32_t *head, int nhead, int n,
                       const uint32_t *more, int nres, uint32_t *out, int skip)
{
    uint32_t args[MAX_CARRIED + 3] = {0};
    ir_type t[MAX_CARRIED + 1];
    if (b->status)
        return 0;
    if (n < 0 || n > MAX_CARRIED)
        return irb_fail(b, EAS_ERR_VALUE, "%s: at most %d values can be carried", ir_rows[op].name,
                        (int)MAX_CARRIED),
               0;
    for (int i = 0; i < nhead; i++)
        args[i] = head[i];
    for (int i = 0; i < n; i++)
        args[nhead + i] = more[i];
    uint32_t r = irb_insn(b, op, args, nhead + n, 0, nres, t);
    for (int i = skip; i < nres && out; i++)
        out[i - skip] = r ? r + (uint32_t)i : 0;
    return r;
}

/* Weak values cannot be carried: they become strong, so that the body has a definite dtype. */
static void strengthen(eas_builder *b, int n, const uint32_t *in, uint32_t *out)
{
    for (int i = 0; i < n && i < MAX_CARRIED; i++) {
        out[i] = in[i];
        if (alive(b, in[i]) && sugar_weak_float(b, in[i]))
            out[i] = sugar_adapt(b, in[i], EAS_F32);
    }
}

/* The value `next` brought to the type that the region carries. */
static uint32_t as_carried(eas_builder *b, const char *what, uint32_t next, ir_type t)
{
    char d[160];
    if (!alive(b, next))
        return 0;
    if (t.kind == IR_VAL && type_of(b, next).kind == IR_VAL) {
        if (is_weak(b, next) || (dtype_is_int(t.dtype) && type_of(b, next).dtype == EAS_I64 &&
                                 t.dtype != EAS_I64 && sugar_is_literal(b, next)))
            next = sugar_literal_fits(b, what, next, t.dtype) ? sugar_adapt(b, next, t.dtype) : 0;
        if (alive(b, next) && !type_of(b, next).rank && t.rank)
            next = sugar_spread(b, next, t);
    }
    if (alive(b, next) && !ir_type_eq(type_of(b, next), t)) {
        str s = {0};
        ir_type_print(&s, t);
        irb_fail(b, EAS_ERR_TYPE, "%s: a variable is %s and would become %s; cast or broadcast it", what,
                 s.at ? s.at : "?", sugar_describe(b, next, d));
        str_free(&s);
    }
    return next;
}

bool irb_bounds(eas_builder *b, uint32_t head[3])
{
    char d[160];
    for (int i = 0; i < 3; i++) {
        if (!sugar_want_offset(b, "range", "a bound", &head[i]))
            return false;
        if (type_of(b, head[i]).rank)
            return irb_fail(b, EAS_ERR_TYPE,
                            "range: a bound must be one integer for the whole program, got %s",
                            sugar_describe(b, head[i], d)),
                   false;
    }
    eas_dtype dt;
    if (!sugar_common_dtype(b, "range", head, 3, &dt))
        return false;
    for (int i = 0; i < 3; i++)
        head[i] = sugar_adapt(b, head[i], dt);
    return !b->status;
}

void eas_builder_loop_begin(eas_builder *b, eas_value lo, eas_value hi, eas_value step, int n,
                            const eas_value *init, eas_value *iv, eas_value *carried)
{
    NEED_(b);
    uint32_t head[3] = {lo, hi, step}, start[MAX_CARRIED];
    if (!irb_bounds(b, head))
        return;
    strengthen(b, n, init, start);
    uint32_t r = region(b, IR_LOOP, head, 3, n, start, n + 1, carried, 1);
    *iv = r;
}

void eas_builder_loop_end(eas_builder *b, int n, const eas_value *next, eas_value *final)
{
    NEED_(b);
    if (b->status || !b->open.len) {
        irb_fail(b, EAS_ERR_VALUE, "endloop without loop");
        return;
    }
    const ir_insn *open = &b->ir->insns[b->open.at[b->open.len - 1]];
    uint32_t v[MAX_CARRIED], first = open->res + 1;
    if (open->op != IR_LOOP || n != open->nres - 1) {
        irb_fail(b, EAS_ERR_VALUE, "endloop does not match its loop");
        return;
    }
    for (int i = 0; i < n; i++)
        v[i] = as_carried(b, "range", next[i], type_of(b, first + (uint32_t)i));
    region(b, IR_ENDLOOP, NULL, 0, n, v, n, final, 0);
}

void eas_builder_while_begin(eas_builder *b, int n, const eas_value *init, eas_value *carried)
{
    NEED_(b);
    NEED_(!n || init);
    uint32_t start[MAX_CARRIED];
    strengthen(b, n, init, start);
    region(b, IR_WHILE, NULL, 0, n, start, n, carried, 0);
}

bool irb_condition(eas_builder *b, const char *what, uint32_t *cond)
{
    char d[160];
    if (!sugar_want_value(b, what, *cond) || !sugar_as_condition(b, cond))
        return false;
    if (type_of(b, *cond).rank)
        return irb_fail(
                   b, EAS_ERR_TYPE,
                   "%s: the condition must be one bool for the whole program, got %s; use where for lanes",
                   what, sugar_describe(b, *cond, d)),
               false;
    return true;
}

void eas_builder_while_do(eas_builder *b, eas_value cond)
{
    NEED_(b);
    if (irb_condition(b, "while_", &cond))
        irb_insn(b, IR_DO, &cond, 1, 0, 0, NULL);
}

void eas_builder_while_end(eas_builder *b, int n, const eas_value *next, eas_value *final)
{
    NEED_(b);
    if (b->status || !b->open.len) {
        irb_fail(b, EAS_ERR_VALUE, "endwhile without while");
        return;
    }
    const ir_insn *open = &b->ir->insns[b->open.at[b->open.len - 1]];
    uint32_t v[MAX_CARRIED], first = open->res;
    if (open->op != IR_WHILE || n != open->nres) {
        irb_fail(b, EAS_ERR_VALUE, "endwhile does not match its while");
        return;
    }
    for (int i = 0; i < n; i++)
        v[i] = as_carried(b, "while_", next[i], type_of(b, first + (uint32_t)i));
    region(b, IR_ENDWHILE, NULL, 0, n, v, n, final, 0);
}

void eas_builder_if_begin(eas_builder *b, eas_value cond)
{
    NEED_(b);
    if (irb_condition(b, "if_", &cond))
        irb_insn(b, IR_IF, &cond, 1, 0, 0, NULL);
}

void eas_builder_if_else(eas_builder *b, int n, const eas_value *then_values)
{
    NEED_(b);
    NEED_(!n || then_values);
    uint32_t v[MAX_CARRIED];
    strengthen(b, n, then_values, v);
    region(b, IR_ELSE, NULL, 0, n, v, 0, NULL, 0);
}

void eas_builder_if_end(eas_builder *b, int n, const eas_value *else_values, eas_value *merged)
{
    NEED_(b);
    uint32_t v[MAX_CARRIED];
    const ir_insn *els = NULL;
    /* the else of the innermost open if, to match its types */
    for (uint32_t i = b->status ? 0 : b->ir->ninsns, depth = 0; i-- > 0;) {
        uint16_t op = b->ir->insns[i].op;
        depth += op == IR_ENDIF || op == IR_ENDLOOP || op == IR_ENDWHILE;
        if (!depth && op == IR_ELSE)
            els = &b->ir->insns[i];
        if (op == IR_IF || op == IR_LOOP || op == IR_WHILE) {
            if (!depth)
                break;
            depth--;
        }
    }
    if (n && !b->status && (!els || els->nargs != n)) {
        irb_fail(b, EAS_ERR_VALUE, "endif does not match its else");
        return;
    }
    for (int i = 0; i < n && n <= MAX_CARRIED && !b->status; i++)
        v[i] = as_carried(b, "if_", else_values[i], type_of(b, ir_args(b->ir, els)[i]));
    region(b, IR_ENDIF, NULL, 0, n, v, n, merged, 0);
}

/* x in the type that it has in common with the other value of a pair. */
uint32_t irb_join_type(eas_builder *b, uint32_t x, uint32_t other)
{
    uint32_t v[2] = {x, other};
    eas_dtype dt;
    ir_type shape;
    if (!sugar_want_value(b, "if", x) || !sugar_want_value(b, "if", other) ||
        !sugar_common_dtype(b, "if", v, 2, &dt) || !sugar_common_shape(b, "if", v, 2, &shape))
        return 0;
    x = sugar_adapt(b, x, dt);
    return b->status ? 0 : sugar_spread(b, x, shape);
}
