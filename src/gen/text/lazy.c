/* lazy.c: block values that may wait until they are read, loads included.
 *
 * A fold reads the two halves of a block and never the block again. Where each lane of a value is read at
 * most once, in lane loops of its own region and before its memory can change, the value need not be kept in
 * an array: it is computed where it is read. lazy[v] says that each lane is read once, by element-wise
 * instructions or through up to two slices that do not overlap; reach[v] is the last instruction that may
 * compute it then.
 */
#include "ctext.h"

typedef struct reads {
    uint8_t n;      /* readers so far; more than two is too many */
    bool bad;
    int axis;       /* of the slices */
    int64_t lo, hi; /* the first slice */
    uint32_t reach;
} reads;

static bool is_elementwise(const eas_ir *ir, const ir_insn *in)
{
    int rule = ir_rows[in->op].rule;
    return in->nres &&
           (rule == IR_RULE_SAME || rule == IR_RULE_CMP || rule == IR_RULE_WHERE || rule == IR_RULE_CAST) &&
           is_block(ir_typeof(ir, in->res));
}

static void once(reads *r, bool allowed, uint32_t reach)
{
    r->bad = r->bad || !allowed || r->n;
    r->n = 1;
    r->reach = reach > r->reach ? reach : r->reach;
}

/* A slice that one element-wise instruction reads. */
static void part(const ct *g, reads *r, const ir_insn *in, const uint32_t *sole)
{
    const eas_ir *ir = g->ir;
    const ir_insn *user = g->uses[in->res] == 1 ? &ir->insns[sole[in->res]] : NULL;
    int axis = ir_imm_axis(in->imm);
    int64_t lo = ir_imm_start(in->imm), hi = lo + ir_typeof(ir, in->res).dim[axis];
    bool apart = !r->n || (r->n == 1 && r->hi && axis == r->axis && (lo >= r->hi || hi <= r->lo));
    if (r->bad || !user || !is_elementwise(ir, user) || ct_picks(ir, in) || !apart) {
        r->bad = true;
        return;
    }
    uint32_t reach = g->lazy[user->res] ? g->reach[user->res] : sole[in->res];
    *r = (reads){.n = (uint8_t)(r->n + 1),
                 .axis = axis,
                 .lo = lo,
                 .hi = hi,
                 .reach = reach > r->reach ? reach : r->reach};
}

/* Does anything between a load and the last place that may do it change its buffer, or leave its region? */
static bool undisturbed(const ct *g, uint32_t i)
{
    const eas_ir *ir = g->ir;
    uint32_t buf = ir_args(ir, &ir->insns[i])[0];
    for (uint32_t k = i + 1; k <= g->reach[ir->insns[i].res]; k++) {
        const ir_insn *in = &ir->insns[k];
        bool writes = ir_writes(in) && ct_shared(g, ir_args(ir, in)[0], buf);
        if (writes || ir_orders(in) || (ir_rows[in->op].flags & IR_STRUCT))
            return false;
    }
    return true;
}

void ct_find_lazy(ct *g)
{
    const eas_ir *ir = g->ir;
    size_t nv = (size_t)ir->nvals + 1;
    reads *r = arena_alloc(&g->mem, nv * sizeof *r);
    uint32_t *sole = arena_alloc(&g->mem, nv * sizeof *sole);
    if (!r || !sole)
        return;
    for (uint32_t i = 0; i < ir->ninsns; i++)
        for (int k = 0; k < ir->insns[i].nargs; k++)
            sole[ir_args(ir, &ir->insns[i])[k]] = i;
    for (uint32_t i = ir->ninsns; i-- > 0;) {
        const ir_insn *in = &ir->insns[i];
        uint32_t v = in->res;
        if (in->nres == 1 && is_block(ir_typeof(ir, v)) && r[v].n && !r[v].bad) {
            g->reach[v] = r[v].reach;
            g->lazy[v] = in->op != IR_LOAD || undisturbed(g, i);
        }
        bool through = in->nres && (is_elementwise(ir, in) || in->op == IR_RESHAPE) && g->lazy[v];
        for (int k = 0; k < in->nargs; k++) {
            reads *x = &r[ir_args(ir, in)[k]];
            if (in->op == IR_SLICE)
                part(g, x, in, sole);
            else if (ir_join_of(in->op))
                once(x, true, i); /* reads every lane once */
            else
                once(x, through, through ? g->reach[v] : 0);
        }
    }
}
