/* rare.c: what only few lanes ever need.
 *
 * `where(c, x, y)` computes x and y for all lanes. Where at least WORTH instructions serve x and nothing else
 * (the range reduction of huge arguments of sin and cos), they are moved to the `where`, behind a test
 * whether any lane of the chunk has c. Several `where` with one condition share them. To find them: walk back
 * from the `where`; an instruction belongs to x if all uses of its result do.
 */
#include "plan.h"

#include <math.h>

enum { WORTH = 24, SLOW = 8 }; /* instructions; what a division or a root counts for */

typedef struct finder {
    plan *p;
    segment *s;
    uint32_t *uses;  /* per value, in the whole kernel */
    uint32_t *inner; /* per value: uses by what is rare */
} finder;

static const ir_insn *insn_of(const finder *f, uint32_t k)
{
    return f->s->items.at[k].insn == UINT32_MAX ? NULL : &f->p->ir->insns[f->s->items.at[k].insn];
}

static bool can_wait(const finder *f, const ir_insn *in)
{
    const plan *p = f->p;
    return in && in->nres == 1 && (ir_rows[in->op].flags & IR_PURE) && !is_reduce(in) && !is_move(in) &&
           p->val[in->res].cls == C_BLOCK && !plan_in_memory(p, in->res) && !p->made[in->res].into;
}

/* Counts the uses of x by every `where` with this condition. */
static void count_choices(finder *f, uint32_t cond, uint32_t from)
{
    for (uint32_t k = from; k < f->s->items.len; k++) {
        const ir_insn *in = insn_of(f, k);
        if (in && in->op == IR_WHERE && ir_args(f->p->ir, in)[0] == cond)
            f->inner[ir_args(f->p->ir, in)[1]]++;
    }
}

static void find_rare(finder *f, uint32_t at)
{
    const ir_insn *choice = insn_of(f, at);
    const uint32_t cond = ir_args(f->p->ir, choice)[0];
    uint32_t n = 0;
    count_choices(f, cond, at);
    for (uint32_t pass = 0; pass < 2; pass++) { /* count, then mark */
        if (pass && n < WORTH)
            break;
        for (uint32_t k = at; k-- > 0;) {
            item *it = &f->s->items.at[k];
            const ir_insn *in = insn_of(f, k);
            if (!can_wait(f, in) || it->rare || it->chooses || in->res == cond)
                continue;
            if (pass ? f->inner[in->res] == UINT32_MAX
                     : f->uses[in->res] && f->inner[in->res] == f->uses[in->res]) {
                if (pass) {
                    it->rare = f->s->items.at[at].insn;
                    continue;
                }
                n += in->op == IR_DIV || in->op == IR_SQRT ? SLOW : 1;
                f->inner[in->res] = UINT32_MAX;
                for (int a = 0; a < in->nargs; a++)
                    f->inner[ir_args(f->p->ir, in)[a]]++;
            }
        }
    }
    f->s->items.at[at].chooses = n >= WORTH;
    memset(f->inner, 0, sizeof *f->inner * ((size_t)f->p->ir->nvals + 1));
}

/* `where(c, x, NaN)` says where a function is defined: nearly everywhere. */
static bool usual(const finder *f, const ir_insn *in)
{
    const uint32_t other = ir_args(f->p->ir, in)[2];
    const eas_dtype dt = (eas_dtype)ir_typeof(f->p->ir, other).dtype;
    int64_t bits;
    return dtype_is_float(dt) && ir_const_of(f->p->ir, other, &bits) && isnan(ir_bits_to_double(dt, bits));
}

static void walk(finder *f, const steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len; i++) {
        const step *st = &s->v.at[i];
        if (st->kind == S_REGION) {
            walk(f, st->body);
            walk(f, st->other);
        }
        if (st->kind != S_SEGMENT || st->seg->kind != SEG_CHUNKS || st->seg->items.len < WORTH)
            continue;
        f->s = st->seg;
        /* the last one first: what it does not want takes choices of its own along */
        for (uint32_t k = st->seg->items.len; k-- > 0;) {
            const ir_insn *in = insn_of(f, k);
            if (in && in->op == IR_WHERE && !st->seg->items.at[k].rare && !usual(f, in) &&
                f->p->val[ir_args(f->p->ir, in)[0]].cls != C_UNI)
                find_rare(f, k);
        }
    }
}

void plan_rare(plan *p)
{
    const size_t n = (size_t)p->ir->nvals + 1;
    finder f = {.p = p,
                .uses = arena_alloc(p->mem, n * sizeof *f.uses),
                .inner = arena_alloc(p->mem, n * sizeof *f.inner)};
    if (!f.uses || !f.inner)
        return;
    for (uint32_t i = 0; i < p->ir->ninsns; i++)
        for (int k = 0; k < p->ir->insns[i].nargs; k++)
            f.uses[ir_args(p->ir, &p->ir->insns[i])[k]]++;
    walk(&f, p->top);
}
