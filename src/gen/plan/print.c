/* print.c: a plan as text: steps in order, with what each value is and where it lies.
 *
 *   plan of centred: programs of blocks, 2304 bytes of scratch
 *   scalar     %4 = program_id 0 : i64
 *   segment    1: chunks of [512], reduces
 *     %9 = load %1, %8 : f32[512], in its argument
 *     %10 = reduce_add 0 %9 : f32
 *
 * After an instruction stands where its result lies if that is not a register. Values that belong to no step
 * (rematerialised ones, views, factors read in place) come last.
 */
#include "plan.h"

typedef struct printer {
    str *s;
    const plan *p;
    int depth;
} printer;

static void shape_text(str *s, const shape *sh)
{
    str_add(s, "[");
    for (int d = 0; d < sh->rank; d++)
        str_add(s, d ? ", %d" : "%d", sh->dim[d]);
    str_add(s, "]");
}

static void begin(printer *t, const char *word)
{
    str_add(t->s, "%*s", 2 * t->depth, "");
    if (*word)
        str_add(t->s, "%-10s ", word);
}

static void place_text(printer *t, uint32_t v)
{
    const placement *x = &t->p->at[v];
    if (t->p->made[v].into)
        str_add(t->s, ", in the memory of %%%u", (unsigned)t->p->made[v].into);
    else if (x->where == IN_SLOT)
        str_add(t->s, ", in slot %lld", (long long)x->slot);
    else if (x->where == IN_OUTPUT)
        str_add(t->s, ", in the output or slot %lld", (long long)x->slot);
    else if (x->where == IN_ARGUMENT)
        str_add(t->s, ", in its argument");
    if (plan_in_memory(t->p, v) && x->pitch)
        str_add(t->s, ", rows %d apart", (int)x->pitch);
    if (x->where == IN_ARGUMENT && x->step)
        str_add(t->s, ", rows %lld apart", (long long)x->step);
}

/* An instruction; of a region its opener. */
static void insn_text(printer *t, const char *word, uint32_t i)
{
    const ir_insn *in = &t->p->ir->insns[i];
    begin(t, word);
    ir_print_insn(t->s, t->p->ir, i, false);
    for (uint32_t k = 0; k < in->nres; k++)
        place_text(t, in->res + k);
}

static void line(printer *t, const char *word, uint32_t i)
{
    insn_text(t, word, i);
    str_add(t->s, "\n");
}

static void prefetch_text(printer *t, const prefetch *x)
{
    insn_text(t, "prefetch", x->insn);
    str_add(t->s, x->next ? ", of the next round or program" : ", of a later segment");
    str_add(t->s, x->half ? ", half %d of the row\n" : "\n", x->half);
}

static void item_text(printer *t, const item *it)
{
    if (it->insn == UINT32_MAX) {
        begin(t, "");
        str_add(t->s, "copy %%%u to %%%u", (unsigned)it->src, (unsigned)it->dst);
        place_text(t, it->dst);
        str_add(t->s, "\n");
        return;
    }
    const uint32_t end = t->p->end[it->insn] > it->insn ? t->p->end[it->insn] : it->insn;
    line(t, it->rare ? "rarely" : "", it->insn);
    t->depth++;
    for (uint32_t i = it->insn + 1; i < end; i++)
        line(t, "", i);
    t->depth--;
    if (end > it->insn)
        line(t, "", end);
}

static void segment_text(printer *t, const segment *s)
{
    static const char *const kinds[] = {"chunks of ", "simdgroups of ", "whole blocks of "};
    begin(t, "segment");
    str_add(t->s, "%u: %s", (unsigned)s->id, kinds[s->kind]);
    shape_text(t->s, &s->sh);
    str_add(t->s, s->reduces ? ", reduces\n" : "\n");
    t->depth++;
    for (uint32_t k = 0; k < s->prefetches.len; k++)
        prefetch_text(t, &s->prefetches.at[k]);
    for (uint32_t k = 0; k < s->items.len; k++)
        item_text(t, &s->items.at[k]);
    t->depth--;
}

static void steps_text(printer *t, const steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len; i++) {
        const step *st = &s->v.at[i];
        if (st->kind == S_SCALAR) {
            line(t, "scalar", st->insn);
        } else if (st->kind == S_SEGMENT) {
            segment_text(t, st->seg);
        } else {
            line(t, "region", st->insn);
            t->depth++;
            steps_text(t, st->body);
            t->depth--;
            if (st->other) {
                begin(t, t->p->ir->insns[st->insn].op == IR_WHILE ? "do" : "else");
                str_add(t->s, "\n");
                t->depth++;
                steps_text(t, st->other);
                t->depth--;
            }
            line(t, "end", t->p->end[st->insn]);
        }
    }
}

static void values_text(printer *t)
{
    static const char *const words[] = {[C_REMAT] = "recompute", [C_VIEW] = "view", [C_FACTOR] = "factor"};
    for (uint32_t v = 1; v < t->p->ir->nvals; v++) {
        const uint8_t cls = t->p->val[v].cls;
        if (cls == C_REMAT || cls == C_VIEW || cls == C_FACTOR)
            line(t, words[cls], t->p->ir->vals[v].def);
    }
}

void plan_print(const plan *p, str *s)
{
    printer t = {.s = s, .p = p};
    str_add(s, "plan of %s: %s, %llu bytes of scratch%s\n", p->ir->name,
            p->info.mode == EAS_MODE_THREAD ? "groups of threads" : "programs of blocks",
            (unsigned long long)p->scratch,
            p->alias_sensitive ? ", sensitive to arguments that overlap" : "");
    steps_text(&t, p->top);
    values_text(&t);
}
