/* flow.c: support for a front end that traces branches and loops before it is known which values they change.
 *
 * A branch: both sides are built first; eas_builder_if_join then gives the pairs of values that leave it.
 * The two values of a pair are brought to one type, which for the first side means instructions in front
 * of an `else` that has been passed long ago: they are appended and moved there. A loop: when its body
 * turns out to change the type of a value that it carries, eas_builder_rewind forgets the loop, to be
 * built again. */
#include "ir.h"

_Static_assert(sizeof((eas_mark *)0)->group_array >= sizeof((eas_builder *)0)->group_array,
               "a mark holds what the builder does");

void eas_builder_mark(const eas_builder *b, eas_mark *out)
{
    NEED_(out);
    memset(out, 0, sizeof *out);
    NEED_(b);
    if (b->status || b->live)
        return;
    *out = (eas_mark){.ninsns = b->ir->ninsns,
                      .nvals = b->ir->nvals,
                      .npool = b->ir->npool,
                      .nopen = b->open.len,
                      .hoisted = b->hoisted};
    memcpy(out->group_array, b->group_array, sizeof b->group_array);
}

static void defs_from(eas_ir *ir, uint32_t at)
{
    for (uint32_t i = at; i < ir->ninsns; i++)
        for (uint32_t k = 0; k < ir->insns[i].nres; k++)
            ir->vals[ir->insns[i].res + k].def = i;
}
void irb_hoist(eas_builder *b)
{
    eas_ir *ir = b->ir;
    ir_insn last = ir->insns[ir->ninsns - 1];
    memmove(ir->insns + 1, ir->insns, (ir->ninsns - 1) * sizeof *ir->insns);
    ir->insns[0] = last;
    defs_from(ir, 0);
    for (uint32_t i = 0; i < b->open.len; i++)
        b->open.at[i]++;
    b->hoisted++;
    b->moved = true;
}
/* Forgets the n instructions that were hoisted last. */
static void unhoist(eas_builder *b, uint32_t n)
{
    eas_ir *ir = b->ir;
    if (!n)
        return;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < b->scratch.len; k++)
            if (b->scratch.at[k] == ir->insns[i].res)
                b->scratch.at[k] = b->scratch.at[--b->scratch.len];
    memmove(ir->insns, ir->insns + n, (ir->ninsns - n) * sizeof *ir->insns);
    ir->ninsns -= n;
    b->hoisted -= n;
    for (uint32_t i = 0; i < b->open.len; i++)
        b->open.at[i] -= n;
    defs_from(ir, 0);
}

void eas_builder_rewind(eas_builder *b, const eas_mark *m)
{
    NEED_(b);
    NEED_(m);
    if (b->status || b->live)
        return;
    if (m->ninsns > b->ir->ninsns || m->nvals > b->ir->nvals || m->nopen > b->open.len) {
        irb_fail(b, EAS_ERR_VALUE, "this mark is of another builder, or of something that was forgotten");
        return;
    }
    unhoist(b, b->hoisted - m->hoisted);
    b->ir->ninsns = m->ninsns;
    b->ir->nvals = m->nvals;
    b->ir->npool = m->npool;
    b->open.len = m->nopen;
    memcpy(b->group_array, m->group_array, sizeof b->group_array);
}

/* ---- joining two branches ---- */

/* The else of the innermost open if; UINT32_MAX: there is none. */
static uint32_t find_else(const eas_ir *ir, uint32_t opener)
{
    uint32_t depth = 0, found = UINT32_MAX;
    for (uint32_t i = opener + 1; i < ir->ninsns; i++) {
        uint16_t op = ir->insns[i].op;
        depth += op == IR_IF || op == IR_LOOP || op == IR_WHILE;
        if (!depth && op == IR_ELSE)
            found = i;
        depth -= op == IR_ENDIF || op == IR_ENDLOOP || op == IR_ENDWHILE;
    }
    return found;
}

static void reverse(ir_insn *a, uint32_t n)
{
    for (uint32_t i = 0; i < n / 2; i++) {
        ir_insn t = a[i];
        a[i] = a[n - 1 - i];
        a[n - 1 - i] = t;
    }
}
/* Moves the instructions from `first` to the last one in front of instruction `at`. */
static void move_before(eas_ir *ir, uint32_t at, uint32_t first)
{
    if (first == ir->ninsns)
        return;
    reverse(ir->insns + at, first - at);
    reverse(ir->insns + first, ir->ninsns - first);
    reverse(ir->insns + at, ir->ninsns - at);
    defs_from(ir, at);
}

/* Values are numbered in the order of their instructions: done once, when the kernel is finished. */
bool irb_renumber(eas_builder *b)
{
    eas_ir *ir = b->ir;
    if (!b->moved)
        return true;
    uint32_t *map = calloc(ir->nvals, sizeof *map), next = 1 + (uint32_t)ir->nparams;
    ir_val *vals = malloc(ir->nvals * sizeof *vals);
    bool ok = map && vals;
    if (ok) {
        memcpy(vals, ir->vals, ir->nvals * sizeof *vals);
        for (uint32_t i = 0; i < next; i++)
            map[i] = i;
        for (uint32_t i = 0; i < ir->ninsns; i++) {
            ir_insn *in = &ir->insns[i];
            for (uint32_t k = 0; k < in->nres; k++) {
                map[in->res + k] = next + k;
                ir->vals[next + k] = vals[in->res + k];
            }
            if (in->nres)
                in->res = next;
            next += in->nres;
        }
        for (uint32_t i = 0; i < ir->ninsns; i++)
            for (uint32_t k = 0; k < ir->insns[i].nargs; k++)
                ir->pool[ir->insns[i].args + k] = map[ir->pool[ir->insns[i].args + k]];
        ir->nvals = next;
        b->moved = false;
    }
    free(map);
    free(vals);
    return ok;
}

static uint32_t literal_again(eas_builder *b, uint32_t v)
{
    int64_t bits;
    const uint8_t weak = b->ir->vals[v].weak;
    if (!ir_const_of(b->ir, v, &bits))
        return v;
    uint32_t r = irb_const(b, ir_typeof(b->ir, v), bits);
    if (!b->status)
        b->ir->vals[r].weak = weak;
    return r;
}

void eas_builder_if_join(eas_builder *b, int n, const eas_value *then_values, const eas_value *else_values,
                         eas_value *merged)
{
    NEED_(b);
    if (b->status)
        return;
    uint32_t opener = b->open.len ? b->open.at[b->open.len - 1] : UINT32_MAX;
    uint32_t at =
        opener != UINT32_MAX && b->ir->insns[opener].op == IR_IF ? find_else(b->ir, opener) : UINT32_MAX;
    if (at == UINT32_MAX || b->ir->insns[at].nargs) {
        irb_fail(b, EAS_ERR_VALUE, "a join of branches needs an if with an else that has no values yet");
        return;
    }
    uint32_t *v = malloc(((size_t)n * 2 + 1) * sizeof *v), first = b->ir->ninsns;
    if (!v) {
        irb_fail(b, EAS_ERR_MEMORY, "out of memory while building a kernel");
        return;
    }
    for (int i = 0; i < n; i++)
        v[i] = irb_join_type(b, literal_again(b, then_values[i]), else_values[i]);
    if (!b->status) {
        uint32_t moved = b->ir->ninsns - first;
        move_before(b->ir, at, first);
        at += moved;
        b->moved |= moved != 0;
    }
    for (int i = 0; i < n; i++)
        v[n + i] = irb_join_type(b, else_values[i], then_values[i]);
    if (!b->status)
        irb_else_values(b, at, n, v);
    eas_builder_if_end(b, n, v + n, merged);
    free(v);
}
