/* verify.c: the rules that hold for every kernel, whether a front end, the parser or a pass built it. Code
 * that reads a kernel relies on them and does not check them again. */
#include "ir.h"

#include <stdio.h>

typedef struct verifier {
    const eas_ir *ir;
    arena mem;
    bool *visible;          /* per value */
    uint32_t *open;         /* stack of open regions: index of the opener */
    uint32_t *divider;      /* per open region: index of its ELSE or DO, or UINT32_MAX */
    uint32_t *first;        /* per open region: first value defined inside */
    bool *diverges;         /* per open region: control inside may differ between threads */
    uint32_t depth;
    const bool *uniform;
    bool spmd, thread;
} verifier;

static eas_status bad(const verifier *v, uint32_t i, const char *fmt, ...) BASE_PRINTF(3, 4);
static eas_status bad(const verifier *v, uint32_t i, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    const ir_insn *in = &v->ir->insns[i];
    if (in->file)
        return base_fail(EAS_ERR_TYPE, "%s:%u: %s: %s", v->ir->files[in->file], (unsigned)in->line,
                         ir_rows[in->op].name, text);
    return base_fail(EAS_ERR_TYPE, "kernel %s, instruction %u: %s: %s", v->ir->name, (unsigned)i,
                     ir_rows[in->op].name, text);
}

static eas_status check_types(verifier *v, uint32_t i)
{
    const eas_ir *ir = v->ir;
    const ir_insn *in = &ir->insns[i];
    if (in->op == IR_NOP || in->op >= IR_NOPS)
        return base_fail(EAS_ERR_TYPE, "kernel %s, instruction %u: no such instruction", ir->name,
                         (unsigned)i);
    for (int k = 0; k < in->nargs; k++) {
        uint32_t a = ir_args(ir, in)[k];
        if (a == 0 || a >= ir->nvals || !v->visible[a])
            return bad(v, i, "operand %d is not defined here", k + 1);
    }
    ir_type *t = arena_alloc(&v->mem, (in->nres + 1u) * sizeof *t);
    if (!t)
        return base_fail_oom(in->nres * sizeof *t);
    for (int k = 0; k < in->nres; k++)
        t[k] = ir_typeof(ir, in->res + (uint32_t)k);
    const char *why = ir_check_insn(ir, &v->mem, in->op, ir_args(ir, in), in->nargs, in->imm, in->nres, t);
    if (v->mem.oom)
        return base_fail_oom(in->nres * sizeof *t);
    if (why)
        return bad(v, i, "%s", why);
    for (int k = 0; k < in->nres; k++)
        if (!ir_type_eq(t[k], ir_typeof(ir, in->res + (uint32_t)k)))
            return bad(v, i, "result %d has another type than the operands give", k + 1);
    return EAS_OK;
}

static void hide_region(verifier *v, uint32_t upto)
{
    for (uint32_t k = v->first[v->depth - 1]; k < upto; k++)
        v->visible[k] = false;
}

/* The values must have the types of want[0..n), or of the n values from `first` on where want is NULL. */
static eas_status check_values(verifier *v, uint32_t i, const uint32_t *want, uint32_t first, int n)
{
    const ir_insn *in = &v->ir->insns[i];
    if (in->nargs != n)
        return bad(v, i, "%d values, expected %d", in->nargs, n);
    for (int k = 0; k < n; k++)
        if (!ir_type_eq(ir_typeof(v->ir, ir_args(v->ir, in)[k]),
                        ir_typeof(v->ir, want ? want[k] : first + (uint32_t)k)))
            return bad(v, i, "value %d has another type than where the region began", k + 1);
    return EAS_OK;
}

/* The condition of a while loop is computed in each round only by those threads that are still in the loop:
 * it is as divergent as the body. */
static bool while_diverges(const verifier *v, uint32_t i)
{
    int depth = 0;
    for (; i < v->ir->ninsns; i++) {
        const ir_insn *in = &v->ir->insns[i];
        if (in->op == IR_DO && depth == 1)
            return in->nargs == 1 && ir_args(v->ir, in)[0] < v->ir->nvals &&
                   !v->uniform[ir_args(v->ir, in)[0]];
        depth += (in->op == IR_LOOP || in->op == IR_WHILE || in->op == IR_IF) -
                 (in->op == IR_ENDLOOP || in->op == IR_ENDWHILE || in->op == IR_ENDIF);
        if (!depth)
            break;
    }
    return false; /* there is no DO, which is an error that is reported elsewhere */
}

static eas_status open_region(verifier *v, uint32_t i)
{
    const ir_insn *in = &v->ir->insns[i];
    bool outer = v->depth && v->diverges[v->depth - 1], mine = in->op == IR_WHILE && while_diverges(v, i);
    for (int k = 0; k < in->nargs && in->op != IR_WHILE; k++)
        if (in->op == IR_IF || k < 3)
            mine |= !v->uniform[ir_args(v->ir, in)[k]];
    v->open[v->depth] = i;
    v->divider[v->depth] = UINT32_MAX;
    v->first[v->depth] = in->res ? in->res : UINT32_MAX; /* the opener's own results belong to the body */
    v->diverges[v->depth] = outer || mine;
    v->depth++;
    return EAS_OK;
}

static const ir_insn *opener(const verifier *v)
{
    return v->depth ? &v->ir->insns[v->open[v->depth - 1]] : NULL;
}

static eas_status check_end(verifier *v, uint32_t i)
{
    const eas_ir *ir = v->ir;
    const ir_insn *in = &ir->insns[i], *op = opener(v);
    uint32_t div = v->divider[v->depth - 1];
    if (in->op == IR_ENDIF)
        return div == UINT32_MAX ? check_values(v, i, NULL, 0, 0)
                                 : check_values(v, i, ir_args(ir, &ir->insns[div]), 0, ir->insns[div].nargs);
    if (in->op == IR_ENDWHILE && div == UINT32_MAX)
        return bad(v, i, "the loop has no condition (do)");
    int skip = in->op == IR_ENDLOOP;
    return check_values(v, i, NULL, op->res + (uint32_t)skip, op->nres - skip);
}

static eas_status check_structure(verifier *v, uint32_t i)
{
    static const uint8_t partner[IR_NOPS] = {[IR_ENDLOOP] = IR_LOOP,
                                             [IR_ENDWHILE] = IR_WHILE,
                                             [IR_DO] = IR_WHILE,
                                             [IR_ENDIF] = IR_IF,
                                             [IR_ELSE] = IR_IF};
    const ir_insn *in = &v->ir->insns[i];
    if (!partner[in->op])
        return open_region(v, i);
    if (!v->depth || opener(v)->op != partner[in->op])
        return bad(v, i, "does not close the innermost region");
    uint32_t d = v->depth - 1;
    if (in->op == IR_ELSE || in->op == IR_DO) {
        if (v->divider[d] != UINT32_MAX)
            return bad(v, i, "stands twice in one region");
        v->divider[d] = i;
        if (in->op == IR_ELSE)
            hide_region(v, in->res ? in->res : v->ir->nvals);
        return EAS_OK;
    }
    eas_status st = check_end(v, i);
    if (st)
        return st;
    hide_region(v, in->res ? in->res : v->ir->nvals);
    v->depth--;
    return EAS_OK;
}

static eas_status mixed(const verifier *v, uint32_t i)
{
    return bad(v, i,
               "kernel %s mixes arange (one program, a block of lanes) with tid (a group of threads); use "
               "one of them",
               v->ir->name);
}

static eas_status be_spmd(verifier *v, uint32_t i)
{
    v->spmd = true;
    return v->thread ? mixed(v, i) : EAS_OK;
}

static eas_status be_thread(verifier *v, uint32_t i, int64_t n)
{
    v->thread = true;
    if (v->spmd)
        return mixed(v, i);
    if (!v->ir->threads)
        return bad(v, i, "the kernel uses threads of a group but never says how many; call tid(0, BLOCK)");
    if (n && n != v->ir->threads)
        return bad(v, i, "the group has %lld threads elsewhere and %lld here", (long long)v->ir->threads,
                   (long long)n);
    return EAS_OK;
}

static eas_status check_mode(verifier *v, uint32_t i)
{
    const ir_insn *in = &v->ir->insns[i];
    bool diverged = v->depth && v->diverges[v->depth - 1];
    switch (in->op) {
    case IR_ARANGE: return be_spmd(v, i);
    case IR_THREAD_ID:
    case IR_GLOBAL_ID: return be_thread(v, i, in->imm);
    case IR_LOCAL_ID:
    case IR_LANE_ID:
    case IR_SG_ID: return be_thread(v, i, 0);
    case IR_SIMD_SHUFFLE:
        if (diverged)
            return bad(
                v, i,
                "control around it may differ between threads; it must be the same for the whole group");
        if (v->ir->threads % IR_SIMD)
            return bad(v, i, "needs a group of a multiple of %d threads; this one has %lld", (int)IR_SIMD,
                       (long long)v->ir->threads);
        return be_thread(v, i, 0);
    case IR_MMA_ZERO: return be_thread(v, i, 0);
    case IR_MMA:
    case IR_MMA_STORE:
    case IR_BARRIER:
        if (diverged && !(in->op == IR_BARRIER && (v->ir->flags & EAS_KERNEL_LOOSE)))
            return bad(
                v, i,
                "control around it may differ between threads; it must be the same for the whole group");
        return in->op == IR_BARRIER ? EAS_OK : be_thread(v, i, 0);
    default: return ir_is_fold(in) ? be_spmd(v, i) : EAS_OK;
    }
}

static eas_status check_result_shapes(verifier *v, uint32_t i)
{
    const ir_insn *in = &v->ir->insns[i];
    for (int k = 0; k < in->nres; k++)
        if (ir_typeof(v->ir, in->res + (uint32_t)k).kind == IR_VAL &&
            ir_typeof(v->ir, in->res + (uint32_t)k).rank)
            return be_spmd(v, i);
    return EAS_OK;
}

static eas_status check_insn(verifier *v, uint32_t i)
{
    const ir_insn *in = &v->ir->insns[i];
    eas_status st = check_types(v, i);
    if (!st)
        st = check_mode(v, i);
    if (!st && (ir_rows[in->op].flags & IR_STRUCT))
        st = check_structure(v, i);
    if (!st)
        st = check_result_shapes(v, i);
    /* a region without body values still begins with the next value defined */
    if (!st && v->depth && v->first[v->depth - 1] == UINT32_MAX && v->open[v->depth - 1] != i && in->res)
        v->first[v->depth - 1] = in->res;
    for (int k = 0; k < in->nres && !st; k++)
        v->visible[in->res + (uint32_t)k] = true;
    return st;
}

static eas_status check_whole(const verifier *v)
{
    if (v->depth)
        return base_fail(EAS_ERR_TYPE, "kernel %s: %s is not closed", v->ir->name,
                         ir_rows[opener(v)->op].name);
    return EAS_OK;
}

/* Indices are checked before anything follows them. */
static eas_status check_layout(const eas_ir *ir)
{
    uint32_t next = 1 + (uint32_t)ir->nparams;
    if (ir->nvals < next)
        return base_fail(EAS_ERR_TYPE, "kernel %s: values are missing", ir->name);
    for (int i = 0; i < ir->nparams; i++) {
        ir_type t = ir->vals[i + 1].type;
        if (ir->params[i].value != (uint32_t)i + 1 || (t.kind != IR_VAL && t.kind != IR_BUF) || t.rank ||
            t.dtype >= EAS_NDTYPES)
            return base_fail(EAS_ERR_TYPE, "kernel %s: parameter %s is malformed", ir->name,
                             ir->params[i].name);
    }
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        if ((uint64_t)in->args + in->nargs > ir->npool || (in->nres && in->res != next) ||
            in->file >= ir->nfiles)
            return base_fail(EAS_ERR_TYPE, "kernel %s, instruction %u: malformed", ir->name, (unsigned)i);
        next += in->nres;
    }
    return next == ir->nvals ? EAS_OK : base_fail(EAS_ERR_TYPE, "kernel %s: values are missing", ir->name);
}

eas_status ir_verify(const eas_ir *ir)
{
    eas_status st = check_layout(ir);
    if (st)
        return st;
    verifier v = {.ir = ir, .thread = ir->threads != 0};
    uint32_t n = 0;
    for (uint32_t i = 0; i < ir->ninsns; i++)
        n += ir->insns[i].op == IR_LOOP || ir->insns[i].op == IR_WHILE || ir->insns[i].op == IR_IF;
    v.visible = arena_alloc(&v.mem, ir->nvals);
    v.open = arena_alloc(&v.mem, (n + 1) * sizeof *v.open);
    v.divider = arena_alloc(&v.mem, (n + 1) * sizeof *v.divider);
    v.first = arena_alloc(&v.mem, (n + 1) * sizeof *v.first);
    v.diverges = arena_alloc(&v.mem, n + 1);
    v.uniform = v.mem.oom ? NULL : ir_uniform(ir, IR_UNIFORM_MERGES, &v.mem);
    if (v.mem.oom || !v.uniform) {
        arena_free(&v.mem);
        return base_fail_oom(ir->nvals);
    }
    for (int i = 0; i < ir->nparams; i++)
        v.visible[i + 1] = true;
    for (uint32_t i = 0; i < ir->ninsns && !st; i++)
        st = check_insn(&v, i);
    if (!st)
        st = check_whole(&v);
    arena_free(&v.mem);
    return st;
}
