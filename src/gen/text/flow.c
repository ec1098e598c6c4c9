/* flow.c: loops and branches. Values carried by loops and merged by branches are variables that are
 * assigned. */
#include "ctext.h"

static void assign(ct *g, const char *to, uint32_t v)
{
    if (is_block(ir_typeof(g->ir, v)))
        ct_copy_block(g, to, v);
    else
        ct_line(g, "%s = %s;", to, ct_ref(g, v, NULL));
}

/* All carried variables take their next values at once: those that read another carried variable go
 * through a copy. Blocks come first, since they may be recomputed from carried scalars. */
static void assign_all(ct *g, uint32_t first, const uint32_t *next, int n)
{
    const eas_ir *ir = g->ir;
    const char **from = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *from);
    bool *done = arena_alloc(&g->mem, (size_t)(n + 1) * sizeof *done);
    if (!from || !done)
        return;
    for (int j = 0; j < n; j++) {
        bool aligned;
        uint32_t leaf = ct_leaf(ir, next[j], &aligned), own = first + (uint32_t)j;
        bool carried = leaf >= first && leaf < first + (uint32_t)n;
        done[j] = next[j] == own || g->array_of[next[j]] == own;
        if (!carried || done[j])
            continue;
        ir_type t = ir_typeof(ir, next[j]);
        from[j] = ct_fmt(g, "v%u_next", own);
        if (is_block(t)) {
            ct_declare_array(g, t, from[j]);
            ct_copy_block(g, from[j], next[j]);
        } else {
            ct_line(g, "%s %s = %s;", ct_type_name(g, t), from[j], ct_ref(g, next[j], NULL));
        }
    }
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < n; j++) {
            ir_type t = ir_typeof(ir, next[j]);
            if (done[j] || is_block(t) != (pass == 0))
                continue;
            const char *to = ct_name(g, first + (uint32_t)j);
            if (!from[j])
                assign(g, to, next[j]);
            else if (is_block(t)) {
                ct_line(g, "for (uint i = 0; i < %lldu; ++i) {", (long long)ir_lanes(t));
                ct_line(g, "    %s[i] = %s[i];", to, from[j]);
                ct_line(g, "}");
            } else {
                ct_line(g, "%s = %s;", to, from[j]);
            }
        }
}

static void start_carried(ct *g, uint32_t first, const uint32_t *init, int n)
{
    for (int j = 0; j < n; j++) {
        uint32_t v = first + (uint32_t)j;
        ir_type t = ir_typeof(g->ir, v);
        if (is_block(t)) {
            ct_declare(g, v);
            ct_copy_block(g, ct_name(g, v), init[j]);
        } else {
            ct_line(g, "%s %s = %s;", ct_type_name(g, t), ct_name(g, v), ct_ref(g, init[j], NULL));
        }
    }
}

/* A loop whose step is not 1 counts its trips, so that it does not overflow at the ends of the dtype. */
static void open_counted(ct *g, const char *iv, const uint32_t *a, eas_dtype dt)
{
    bool wide = dtype_bits(dt) == 64;
    const char *U = g->d->type[wide ? EAS_U64 : EAS_U32], *T = g->d->type[dt], *one = wide ? "1ul" : "1u",
               *zero = wide ? "0ul" : "0u";
    const char *lo = ct_ref(g, a[0], NULL), *hi = ct_ref(g, a[1], NULL), *step = ct_ref(g, a[2], NULL);
    const char *ulo = ct_unsigned(g, a[0]), *uhi = ct_unsigned(g, a[1]), *ustep = ct_unsigned(g, a[2]);
    const char *up =
        ct_fmt(g, "(%s < %s ? (%s - %s - %s) / %s + %s : %s)", lo, hi, uhi, ulo, one, ustep, one, zero);
    const char *down = ct_fmt(g, "(%s > %s ? (%s - %s - %s) / (%s - %s) + %s : %s)", lo, hi, ulo, uhi, one,
                              zero, ustep, one, zero);
    int64_t c;
    const char *trips;
    if (ir_const_of(g->ir, a[2], &c))
        trips = c == 0 ? zero : !dtype_is_signed(dt) || c > 0 ? up : down;
    else if (dtype_is_signed(dt))
        trips = ct_fmt(g, "%s > 0 ? %s : %s < 0 ? %s : %s", step, up, step, down, zero);
    else
        trips = ct_fmt(g, "%s > 0 ? %s : %s", step, up, zero);
    ct_line(g, "%s %s_trips = %s;", U, iv, trips);
    const char *next = dt == EAS_U32 || dt == EAS_U64 ? ct_fmt(g, "%s + %s", iv, step)
                                                      : ct_fmt(g, "(%s)((%s)%s + %s)", T, U, iv, ustep);
    ct_line(g, "for (%s %s = %s; %s_trips != 0; --%s_trips, %s = %s) {", T, iv, lo, iv, iv, iv, next);
}

static void print_loop(ct *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    eas_dtype dt = ir_typeof(g->ir, in->res).dtype;
    const char *iv = ct_name(g, in->res);
    start_carried(g, in->res + 1, a + 3, in->nargs - 3);
    int64_t c;
    if (ir_const_of(g->ir, a[2], &c) && c == 1)
        ct_line(g, "for (%s %s = %s; %s < %s; ++%s) {", g->d->type[dt], iv, ct_ref(g, a[0], NULL), iv,
                ct_ref(g, a[1], NULL), iv);
    else
        open_counted(g, iv, a, dt);
    g->indent++;
}

static const ir_insn *opener(const ct *g) { return &g->ir->insns[g->open.at[g->open.len - 1]]; }

static void finish_loop(ct *g, const ir_insn *in)
{
    const ir_insn *open = opener(g);
    uint32_t first = open->res + (open->op == IR_LOOP ? 1 : 0);
    assign_all(g, first, ir_args(g->ir, in), in->nargs);
    ct_close(g);
    for (uint32_t j = 0; j < in->nres; j++)
        g->name[in->res + j] = ct_name(g, first + j);
}

/* The closer of the region that the IF at i opens. */
static const ir_insn *closer(const eas_ir *ir, uint32_t i)
{
    int depth = 0;
    for (;; i++) {
        uint16_t op = ir->insns[i].op;
        depth += (op == IR_LOOP || op == IR_WHILE || op == IR_IF) -
                 (op == IR_ENDLOOP || op == IR_ENDWHILE || op == IR_ENDIF);
        if (!depth)
            return &ir->insns[i];
    }
}

static void print_if(ct *g, uint32_t i)
{
    const ir_insn *end = closer(g->ir, i);
    for (uint32_t j = 0; j < end->nres; j++)
        ct_declare(g, end->res + j);
    ct_line(g, "if (%s) {", ct_ref(g, ir_args(g->ir, &g->ir->insns[i])[0], NULL));
    g->indent++;
}

/* The values of one branch go into the merged variables. */
static void merge(ct *g, const ir_insn *in)
{
    const ir_insn *end = closer(g->ir, g->open.at[g->open.len - 1]);
    for (int j = 0; j < in->nargs && (uint32_t)j < end->nres; j++)
        assign(g, ct_name(g, end->res + (uint32_t)j), ir_args(g->ir, in)[j]);
}

void ct_structure(ct *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint32_t *a = ir_args(g->ir, in);
    g->at = i;
    switch (in->op) {
    case IR_LOOP: print_loop(g, in); break;
    case IR_WHILE:
        start_carried(g, in->res, a, in->nargs);
        ct_line(g, "while (true) {");
        g->indent++;
        break;
    case IR_DO: ct_line(g, "if (!%s) break;", ct_ref(g, a[0], NULL)); return;
    case IR_IF: print_if(g, i); break;
    case IR_ELSE:
        merge(g, in);
        g->indent--;
        ct_line(g, "} else {");
        g->indent++;
        return;
    case IR_ENDLOOP:
    case IR_ENDWHILE:
        finish_loop(g, in);
        g->open.len--;
        return;
    default: /* IR_ENDIF */
        merge(g, in);
        ct_close(g);
        g->open.len--;
        return;
    }
    if (!vec_push(&g->open, i))
        g->mem.oom = true;
}
