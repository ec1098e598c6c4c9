/* checked.c: a kernel with its accesses guarded, and one without its asserts.
 *
 * ir_checked: every access, or every one whose offset depends on data, is preceded by a `bounds` test; it
 * runs if a launch cannot be proved to stay inside its arguments. ir_unasserted: the kernel without asserts,
 * which runs unless a launch debugs.
 */
#include "ir.h"

typedef struct checker {
    ir_rewrite w;
    /* the newest guard in this region: an element that is read and then written is checked once */
    uint32_t last[3], verdict;
} checker;

static uint32_t guarded(checker *c, uint32_t buf, uint32_t off, uint32_t mask)
{
    uint32_t args[3] = {buf, off, mask};
    ir_type t = {0};
    if (c->verdict && !memcmp(args, c->last, sizeof args))
        return c->verdict;
    memcpy(c->last, args, sizeof args);
    return c->verdict = irb_insn(c->w.b, IR_BOUNDS, args, mask ? 3 : 2, 0, 1, &t);
}

static void check_load(checker *c, const ir_insn *in)
{
    uint32_t a[4] = {0};
    ir_rewrite_args(&c->w, in, a);
    a[2] = guarded(c, a[0], a[1], a[2]);
    if (!a[3])
        a[3] = irb_const(c->w.b, ir_typeof(c->w.from, in->res), 0);
    ir_type t = {0};
    c->w.map[in->res] = irb_insn(c->w.b, IR_LOAD, a, 4, 0, 1, &t);
}

static void check_store(checker *c, const ir_insn *in)
{
    uint32_t a[4] = {0};
    ir_rewrite_args(&c->w, in, a);
    a[3] = guarded(c, a[0], a[1], a[3]);
    irb_insn(c->w.b, IR_STORE, a, 4, 0, 0, NULL);
}

static void check_atomic(checker *c, const ir_insn *in)
{
    uint32_t a[5] = {0};
    int values = ir_atomic_values(in->op);
    ir_rewrite_args(&c->w, in, a);
    a[2 + values] = guarded(c, a[0], a[1], a[2 + values]);
    ir_type t = {0};
    c->w.map[in->res] = irb_insn(c->w.b, in->op, a, 3 + values, 0, 1, &t);
}

/* The offsets of a dot run linearly: if both ends are inside, all are. K becomes 0 where they are not. */
static uint32_t check_run(checker *c, uint32_t buf, uint32_t base, uint32_t stride, uint32_t last,
                          uint32_t any)
{
    ir_type t = ir_with_dtype(ir_typeof(c->w.b->ir, base), EAS_I64);
    uint32_t b = irb_to(c->w.b, IR_CAST, t, base), s = irb_to(c->w.b, IR_CAST, t, stride);
    uint32_t end = irb_op(c->w.b, IR_ADD, b, irb_op(c->w.b, IR_MUL, s, last, 0), 0);
    return guarded(c, buf, end, guarded(c, buf, b, any));
}

static void check_dot(checker *c, const ir_insn *in)
{
    uint32_t a[7];
    ir_rewrite_args(&c->w, in, a);
    if (c->w.b->status)
        return;
    ir_type t = ir_typeof(c->w.b->ir, a[6]), w = ir_with_dtype(t, EAS_I64);
    uint32_t K = irb_to(c->w.b, IR_CAST, w, a[6]);
    uint32_t any = irb_op(c->w.b, IR_GT, K, irb_const(c->w.b, w, 0), 0),
             last = irb_op(c->w.b, IR_SUB, K, irb_const(c->w.b, w, 1), 0);
    uint32_t ok = check_run(c, a[3], a[4], a[5], last, check_run(c, a[0], a[1], a[2], last, any));
    a[6] = irb_op(c->w.b, IR_WHERE, ok, a[6], irb_const(c->w.b, t, 0));
    ir_type r = {0};
    c->w.map[in->res] = irb_insn(c->w.b, IR_DOT, a, 7, 0, 1, &r);
}

static bool is_access(const ir_insn *in)
{
    return in->op == IR_LOAD || in->op == IR_STORE || in->op == IR_DOT || ir_is_atomic(in);
}

static uint32_t next_access(const eas_ir *ir, uint32_t i)
{
    while (i < ir->ninsns && !is_access(&ir->insns[i]))
        i++;
    return i;
}

/* The accesses of ir that need a guard. NULL: all of them do, because nothing was proved or because the
 * accesses of `proved` do not correspond to those of ir one to one. */
static const bool *doubtful(const eas_ir *ir, const eas_ir *proved, arena *mem)
{
    const bool *here = proved ? ir_by_data(ir, mem) : NULL, *there = here ? ir_by_data(proved, mem) : NULL;
    if (!there)
        return NULL;
    uint32_t i = next_access(ir, 0), j = next_access(proved, 0);
    while (i < ir->ninsns && j < proved->ninsns && ir->insns[i].op == proved->insns[j].op &&
           here[i] == there[j]) {
        i = next_access(ir, i + 1);
        j = next_access(proved, j + 1);
    }
    return i == ir->ninsns && j == proved->ninsns ? here : NULL;
}

static void check(checker *c, uint32_t i)
{
    const ir_insn *in = ir_rewrite_at(&c->w, i);
    if (in->op == IR_LOAD)
        check_load(c, in);
    else if (in->op == IR_STORE)
        check_store(c, in);
    else if (ir_is_atomic(in))
        check_atomic(c, in);
    else
        check_dot(c, in);
}

eas_status ir_checked(const eas_ir *ir, const eas_ir *proved, eas_ir **out)
{
    checker c = {0};
    *out = NULL;
    eas_status st = ir_rewrite_begin(&c.w, ir);
    const bool *guard = doubtful(ir, proved, &c.w.mem);
    for (uint32_t i = 0; i < ir->ninsns && !st; i++) {
        const ir_insn *in = &ir->insns[i];
        if (ir_rows[in->op].flags & IR_STRUCT)
            c.verdict = 0;
        if (is_access(in) && (!guard || guard[i]))
            check(&c, i);
        else
            ir_rewrite_copy(&c.w, i);
    }
    return ir_rewrite_end_simple(&c.w, st, out);
}

/* ---- without asserts ---- */

bool ir_asserts(const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op == IR_ASSERT)
            return true;
    return false;
}

eas_status ir_unasserted(const eas_ir *ir, eas_ir **out)
{
    *out = NULL;
    if (!ir_asserts(ir)) {
        *out = eas_ir_retain((eas_ir *)(uintptr_t)ir);
        return EAS_OK;
    }
    ir_rewrite w = {0};
    eas_status st = ir_rewrite_begin(&w, ir);
    for (uint32_t i = 0; i < ir->ninsns && !st; i++)
        if (ir->insns[i].op != IR_ASSERT)
            ir_rewrite_copy(&w, i);
    return ir_rewrite_end_simple(&w, st, out);
}
