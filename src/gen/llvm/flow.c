/* flow.c: loops and branches, at scalar level and inside a chunk.
 *
 * A region is emitted in the same way at both levels; only what crosses its borders differs. At scalar level
 * that is uniform values, as phis: blocks lie in their slots. Inside a chunk it is scalars, vectors and
 * simdgroup matrices (`bundle`). Control flow that is the same for all lanes becomes branches; where lanes
 * part, a region runs under the mask c->exec, and is skipped where no lane takes it.
 */
#include "llvm.h"

enum { UNROLL_BODY = 64 };

/* ---- loops over a range that is known to be counted ---- */

/* Rounds of a loop that are known to be run, 2 for any number above 1; 0: not known. */
static int sure_rounds(V lo, V hi, int64_t step)
{
    if (!LLVMIsAConstantInt(lo) || !LLVMIsAConstantInt(hi))
        return 0;
    const int64_t n = LLVMConstIntGetSExtValue(hi) - LLVMConstIntGetSExtValue(lo);
    return n <= 0 ? 0 : n <= step ? 1 : 2;
}

/* Most loops are over blocks, so their first round is sure to be run and the test is at the end; one round
 * is no loop. */
loop loop_open(gen *g, V lo, V hi, int64_t step)
{
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), body;
    const int sure = sure_rounds(lo, hi, step);
    if (sure == 1)
        return (loop){.iv = lo};
    body = sure ? NULL : new_block(g, "chunk");
    loop l = {.from = from,
              .head = new_block(g, "chunks"),
              .done = new_block(g, "chunked"),
              .step = step,
              .end = sure ? hi : NULL};
    branch_to(g, l.head);
    LLVMPositionBuilderAtEnd(g->b, l.head);
    l.iv = LLVMBuildPhi(g->b, ty_int(g, 64, 0), "");
    LLVMAddIncoming(l.iv, &lo, &from, 1);
    if (!sure) {
        LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, l.iv, hi, ""), body, l.done);
        LLVMPositionBuilderAtEnd(g->b, body);
    }
    return l;
}

V loop_carry(gen *g, const loop *l, V first)
{
    LLVMBasicBlockRef here = LLVMGetInsertBlock(g->b), from = l->from;
    if (!l->head)
        return first;
    LLVMPositionBuilderBefore(g->b, LLVMGetFirstInstruction(l->head));
    V phi = LLVMBuildPhi(g->b, LLVMTypeOf(first), "");
    LLVMAddIncoming(phi, &first, &from, 1);
    LLVMPositionBuilderAtEnd(g->b, here);
    return phi;
}

void loop_carried(gen *g, const loop *l, V carry, V next)
{
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    if (l->head)
        LLVMAddIncoming(carry, &next, &back, 1);
}

void loop_close(gen *g, const loop *l)
{
    if (!l->head)
        return;
    V next = LLVMBuildAdd(g->b, l->iv, k_int(g, l->step), "");
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    LLVMAddIncoming(l->iv, &next, &back, 1);
    if (l->end)
        LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, next, l->end, ""), l->head, l->done);
    else
        branch_to(g, l->head);
    LLVMPositionBuilderAtEnd(g->b, l->done);
}

/* ---- what crosses the borders of a region ---- */

/* At scalar level a bundle of anything but a uniform value is empty. */
bundle bundle_get(gen *g, uint32_t like, uint32_t v)
{
    bundle b = {.n = 1};
    if (uniform(g, like)) {
        b.v[0] = g->sval[v];
    } else if (!g->c) {
        b.n = 0;
    } else if (g->p.val[like].cls == C_FRAG) {
        const frag f = seg_frag(g, v);
        b.n = 8;
        memcpy(b.v, f.row, sizeof f.row);
    } else {
        b.v[0] = seg_here(g, v);
    }
    return b;
}

/* final: the value is there for whatever follows the region, and goes to its slot if it has one. */
static void bundle_set(gen *g, uint32_t v, const bundle *b, bool final)
{
    if (!b->n)
        return;
    if (g->p.val[v].cls == C_FRAG) {
        frag f;
        memcpy(f.row, b->v, sizeof f.row);
        if (final)
            seg_define_frag(g, v, &f);
        else
            g->frags[v] = f;
    } else if (uniform(g, v)) {
        g->sval[v] = b->v[0];
        if (final && g->c)
            seg_publish(g, v);
    } else if (final) {
        seg_define(g, v, b->v[0]);
    } else {
        seg_set(g, v, b->v[0]);
    }
}

static bundle bundle_phi(gen *g, const bundle *init, LLVMBasicBlockRef from)
{
    bundle p = {.n = init->n};
    for (int i = 0; i < p.n; i++) {
        V x = init->v[i];
        p.v[i] = LLVMBuildPhi(g->b, LLVMTypeOf(x), "");
        LLVMAddIncoming(p.v[i], &x, &from, 1);
    }
    return p;
}

static void bundle_incoming(bundle *phi, const bundle *x, LLVMBasicBlockRef from)
{
    for (int i = 0; i < phi->n; i++) {
        V v = x->v[i];
        LLVMAddIncoming(phi->v[i], &v, &from, 1);
    }
}

static void bundle_select(gen *g, V mask, bundle *x, const bundle *old)
{
    for (int i = 0; mask && i < x->n; i++)
        if (lanes_of(LLVMTypeOf(x->v[i])) == g->c->n && x->n == 1)
            x->v[i] = sel(g, mask, x->v[i], old->v[i]);
}

/* ---- regions ---- */

typedef struct region {
    uint32_t opener, middle, end; /* middle: ELSE or DO; the end if there is none */
    const step *s;                /* at scalar level: its steps; NULL inside a chunk */
    V exec;                       /* of the chunk, where the region begins */
    uint32_t mark;                /* of c->log there */
} region;

static uint32_t middle_of(gen *g, uint32_t opener)
{
    uint32_t i = opener + 1;
    while (i < g->p.end[opener] &&
           ((g->ir->insns[i].op != IR_ELSE && g->ir->insns[i].op != IR_DO) || g->p.parent[i] != opener))
        i++;
    return i;
}

/* Before or after the middle. */
static void emit_part(gen *g, const region *r, int part)
{
    if (r->s)
        flow_steps(g, part ? r->s->other : r->s->body);
    else if (part)
        chunk_range(g, r->middle + (r->middle < r->end), r->end);
    else
        chunk_range(g, r->opener + 1, r->middle);
}

static void mark(gen *g, region *r)
{
    if (!g->c)
        return;
    r->exec = g->c->exec;
    r->mark = g->c->log.len;
}

/* Leaves a region, or one branch of it: what was made inside is out of sight. */
static void leave(gen *g, const region *r)
{
    if (!g->c)
        return;
    chunk_forget(g->c, r->mark);
    g->c->exec = r->exec;
}

/* Makes what a region inside a chunk wants from outside before the region, not in it. */
static void warm(gen *g, const region *r)
{
    for (uint32_t i = r->opener + 1; i < r->end && !r->s; i++) {
        const ir_insn *in = &g->ir->insns[i];
        for (int k = 0; k < in->nargs && !g->st; k++) {
            const uint32_t v = ir_args(g->ir, in)[k];
            const uint8_t cls = g->p.val[v].cls;
            if (g->ir->vals[v].def >= r->opener || g->p.val[v].sh.rank == 0)
                continue;
            if (cls == C_REMAT) {
                const aff a = affine_of(g, v, seg_map(g));
                if (!a.run.ok || !a.run.exact)
                    seg_here(g, v);
            } else if (cls == C_BLOCK || cls == C_VIEW) {
                seg_here(g, v);
            }
        }
    }
}

/* Do lanes run under masks where they part? A single lane branches. */
static bool parts(gen *g) { return g->c && g->c->n > 1; }

static V exec_mask(gen *g) { return g->c->exec ? g->c->exec : k_like(g, ty_int(g, 1, g->c->n), 1); }

/* ---- what loops carry ---- */

typedef struct carried {
    int n;
    uint32_t first, final;     /* of the values in the loop, and after it */
    const uint32_t *next;      /* what they become at the end of a round */
    bundle *init, *phi, *now;  /* before the loop; in it; at the end of a round */
} carried;

static carried open_carried(gen *g, const region *r)
{
    const ir_insn *in = &g->ir->insns[r->opener], *end = &g->ir->insns[r->end];
    const int head = in->op == IR_LOOP ? 3 : 0;
    carried c = {.n = end->nargs,
                 .first = in->res + (in->op == IR_LOOP),
                 .final = end->res,
                 .next = ir_args(g->ir, end)};
    c.init = arena_alloc(&g->mem, sizeof *c.init * (size_t)(3 * c.n + 1));
    if (!c.init) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return c;
    }
    c.phi = c.init + c.n;
    c.now = c.phi + c.n;
    for (int k = 0; k < c.n; k++)
        c.init[k] = bundle_get(g, c.first + (uint32_t)k, ir_args(g->ir, in)[head + k]);
    return c;
}

static void start_carried(gen *g, carried *c, LLVMBasicBlockRef from)
{
    for (int k = 0; k < c->n; k++) {
        c->phi[k] = bundle_phi(g, &c->init[k], from);
        bundle_set(g, c->first + (uint32_t)k, &c->phi[k], false);
    }
}

/* the values for the next round: those of lanes that do not run stay */
static void next_carried(gen *g, carried *c, V run)
{
    for (int k = 0; k < c->n && !g->st; k++) {
        c->now[k] = bundle_get(g, c->first + (uint32_t)k, c->next[k]);
        if (!uniform(g, c->first + (uint32_t)k))
            bundle_select(g, run, &c->now[k], &c->phi[k]);
    }
}

static void join_carried(carried *c, LLVMBasicBlockRef back)
{
    for (int k = 0; k < c->n; k++)
        bundle_incoming(&c->phi[k], &c->now[k], back);
}

/* ---- counted loops ---- */

/* is there a step from iv to the next, without wrapping? */
V loop_next(gen *g, V iv, V hi, V step, bool is_signed)
{
    const T t = LLVMTypeOf(iv);
    V up = LLVMBuildICmp(g->b, LLVMIntUGT, LLVMBuildSub(g->b, hi, iv, ""), step, "");
    /* iv < hi, so iv + 1 does not wrap */
    if (LLVMIsAConstantInt(step) && LLVMConstIntGetSExtValue(step) == 1)
        return LLVMBuildICmp(g->b, is_signed ? LLVMIntSLT : LLVMIntULT, LLVMBuildAdd(g->b, iv, step, ""), hi,
                             "");
    if (!is_signed || (LLVMIsAConstantInt(step) && LLVMConstIntGetSExtValue(step) > 0))
        return up;
    V down =
        LLVMBuildICmp(g->b, LLVMIntUGT, LLVMBuildSub(g->b, iv, hi, ""), LLVMBuildNeg(g->b, step, ""), "");
    return sel(g, LLVMBuildICmp(g->b, LLVMIntSGT, step, k_like(g, t, 0), ""), up, down);
}

V loop_first(gen *g, V iv, V hi, V step, bool is_signed)
{
    const T t = LLVMTypeOf(iv);
    V zero = k_like(g, t, 0);
    if (!is_signed)
        return LLVMBuildAnd(g->b, LLVMBuildICmp(g->b, LLVMIntNE, step, zero, ""),
                            LLVMBuildICmp(g->b, LLVMIntULT, iv, hi, ""), "");
    V up = LLVMBuildAnd(g->b, LLVMBuildICmp(g->b, LLVMIntSGT, step, zero, ""),
                        LLVMBuildICmp(g->b, LLVMIntSLT, iv, hi, ""), "");
    V down = LLVMBuildAnd(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, step, zero, ""),
                          LLVMBuildICmp(g->b, LLVMIntSGT, iv, hi, ""), "");
    return LLVMBuildOr(g->b, up, down, "");
}

static uint32_t region_weight(gen *g, uint32_t i)
{
    uint32_t n = 0;
    for (uint32_t k = i; k < g->p.end[i]; k++)
        n += g->ir->insns[k].op == IR_MMA ? 64 : 1;
    return n;
}

/* How many rounds of a loop with constant bounds to write out in one. */
static int unroll_of(gen *g, uint32_t i, V lo, V hi, V step)
{
    if (!LLVMIsAConstantInt(lo) || !LLVMIsAConstantInt(hi) || !LLVMIsAConstantInt(step) ||
        region_weight(g, i) > UNROLL_BODY)
        return 1;
    const int64_t a = LLVMConstIntGetSExtValue(lo), b = LLVMConstIntGetSExtValue(hi),
                  s = LLVMConstIntGetSExtValue(step);
    if (s <= 0 || s > 1 << 20 || a < 0 || b < a || b > INT32_MAX || (b - a) % s)
        return 1;
    const int64_t trips = (b - a) / s;
    return trips > 4 && trips % 4 == 0 ? 4 : trips > 2 && trips % 2 == 0 ? 2 : 1;
}

/* ---- rounds without masks ----
 *
 * A mask such as k + lane < n, with k the counter of the loop, holds for all lanes in all rounds but the
 * last. A body that has such masks is written twice, behind a scalar test: without them and as it is.
 */
static bool may_split(gen *g, const region *r, V run)
{
    if (r->s || run || g->c->exec || !g->c->full || g->seg->kind == SEG_SIMDGROUPS ||
        region_weight(g, r->opener) > UNROLL_BODY)
        return false;
    for (uint32_t i = r->opener + 1; i < r->end; i++)
        if (g->ir->insns[i].op == IR_LOOP || g->ir->insns[i].op == IR_WHILE)
            return false;
    return true;
}

static void emit_body(gen *g, const region *r, carried *c, V run)
{
    emit_part(g, r, 0);
    next_carried(g, c, run);
}

static void emit_split(gen *g, const region *r, carried *c, V whole, prefix *pre, int npre)
{
    bundle *first = arena_alloc(&g->mem, sizeof *first * (size_t)(c->n + 1));
    if (!first) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    const uint32_t begin = g->c->log.len;
    LLVMBasicBlockRef yes = new_block(g, "round"), no = new_block(g, "masked"),
                      done = new_block(g, "rounded");
    LLVMBuildCondBr(g->b, whole, yes, no);
    LLVMPositionBuilderAtEnd(g->b, yes);
    emit_body(g, r, c, NULL);
    memcpy(first, c->now, sizeof *first * (size_t)c->n);
    chunk_forget(g->c, begin);
    yes = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    g->c->pre = pre;
    g->c->npre = npre;
    LLVMPositionBuilderAtEnd(g->b, no);
    emit_body(g, r, c, NULL);
    chunk_forget(g->c, begin);
    no = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (int k = 0; k < c->n && !g->st; k++) {
        const bundle second = c->now[k];
        c->now[k] = bundle_phi(g, &first[k], yes);
        bundle_incoming(&c->now[k], &second, no);
    }
}

static void emit_round(gen *g, const region *r, carried *c, V run)
{
    prefix *pre = g->c ? g->c->pre : NULL;
    const int npre = g->c ? g->c->npre : 0;
    V whole = may_split(g, r, run) ? affine_round(g, r->opener) : NULL;
    if (whole)
        emit_split(g, r, c, whole, pre, npre);
    else
        emit_body(g, r, c, run);
}

/* the body, u times: iv, iv + step, ... */
static void emit_rounds(gen *g, const region *r, carried *c, V run, V iv, V step, int u)
{
    const uint32_t begin = g->c ? g->c->log.len : 0, res = g->ir->insns[r->opener].res;
    for (int k = 0; k < u && !g->st; k++) {
        if (k) {
            chunk_forget(g->c, begin);
            for (int j = 0; j < c->n; j++)
                bundle_set(g, c->first + (uint32_t)j, &c->now[j], false);
            iv = g->sval[res] = LLVMBuildAdd(g->b, iv, step, "");
        }
        emit_round(g, r, c, run);
    }
}

static void add_incoming(V phi, V x, LLVMBasicBlockRef from, V y, LLVMBasicBlockRef back)
{
    LLVMAddIncoming(phi, &x, &from, 1);
    LLVMAddIncoming(phi, &y, &back, 1);
}

/* Uniform bounds: a branch. Else: iv, bounds and the set of running lanes are vectors, until none runs. */
static void emit_loop(gen *g, region *r)
{
    const ir_insn *in = &g->ir->insns[r->opener];
    const uint32_t *a = ir_args(g->ir, in);
    const bool uni = uniform(g, a[0]) && uniform(g, a[1]) && uniform(g, a[2]), uni_iv = uniform(g, in->res);
    const bool is_signed = dtype_is_signed((eas_dtype)ir_typeof(g->ir, a[0]).dtype);
    carried c = open_carried(g, r);
    if (g->st)
        return;
    mark(g, r);
    V lo = uni ? g->sval[a[0]] : seg_here(g, a[0]), hi = uni ? g->sval[a[1]] : seg_here(g, a[1]),
      step = uni ? g->sval[a[2]] : seg_here(g, a[2]);
    V go = loop_first(g, lo, hi, step, is_signed);
    if (!uni)
        go = LLVMBuildAnd(g->b, go, exec_mask(g), "");
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), body = new_block(g, "body"),
                      done = new_block(g, "done");
    LLVMBuildCondBr(g->b, any_of(g, go), body, done);
    LLVMPositionBuilderAtEnd(g->b, body);
    V iv = LLVMBuildPhi(g->b, LLVMTypeOf(lo), ""),
      run = uni || !parts(g) ? NULL : LLVMBuildPhi(g->b, LLVMTypeOf(go), "");
    V iv_s = !uni && uni_iv ? LLVMBuildPhi(g->b, LLVMTypeOf(g->sval[a[0]]), "") : NULL;
    start_carried(g, &c, from);
    if (uni_iv)
        g->sval[in->res] = uni ? iv : iv_s;
    else
        seg_set(g, in->res, iv);
    if (run)
        g->c->exec = run;
    const int u = uni && !r->s ? unroll_of(g, r->opener, lo, hi, step) : 1;
    emit_rounds(g, r, &c, run, iv, step, u);
    if (g->st)
        return;
    if (u > 1)
        step = LLVMBuildMul(g->b, step, k_like(g, LLVMTypeOf(step), u), "");
    V more = loop_next(g, iv, hi, step, is_signed), iv2 = LLVMBuildAdd(g->b, iv, step, "");
    if (run)
        more = LLVMBuildAnd(g->b, more, run, "");
    V iv_s2 = iv_s ? LLVMBuildAdd(g->b, iv_s, g->sval[a[2]], "") : NULL;
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    LLVMBuildCondBr(g->b, any_of(g, more), body, done);
    add_incoming(iv, lo, from, iv2, back);
    if (run)
        add_incoming(run, go, from, more, back);
    if (iv_s)
        add_incoming(iv_s, g->sval[a[0]], from, iv_s2, back);
    join_carried(&c, back);
    leave(g, r);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (int k = 0; k < c.n; k++)
        c.phi[k] = bundle_phi(g, &c.init[k], from);
    join_carried(&c, back);
    for (int k = 0; k < c.n; k++)
        bundle_set(g, c.final + (uint32_t)k, &c.phi[k], true);
}

/* ---- loops with a condition ---- */

/* A loop with its condition at the top. Where threads leave it at different times, a mask of those that
 * still run is carried round beside the values: the loop goes on while any lane does, and lanes that are
 * done keep what they carry. */
static void emit_while(gen *g, region *r)
{
    const uint32_t cond = ir_args(g->ir, &g->ir->insns[r->middle])[0];
    const bool uni = uniform(g, cond);
    carried c = open_carried(g, r);
    if (g->st)
        return;
    mark(g, r);
    V all = uni || !parts(g) ? NULL : exec_mask(g);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), head = new_block(g, "while"),
                      body = new_block(g, "do"), done = new_block(g, "done");
    branch_to(g, head);
    LLVMPositionBuilderAtEnd(g->b, head);
    V run = all ? LLVMBuildPhi(g->b, LLVMTypeOf(all), "") : NULL;
    if (r->s) /* LLVM assigns registers to phis in the order in which they are made */
        start_carried(g, &c, from);
    poll l = poll_begin(g, r->opener, from);
    if (!r->s)
        start_carried(g, &c, from);
    if (run)
        g->c->exec = run;
    emit_part(g, r, 0);
    if (g->st)
        return;
    V go = uni ? g->sval[cond] : mask_and(g, seg_here(g, cond), run);
    LLVMBuildCondBr(g->b, any_of(g, go), body, done);
    LLVMPositionBuilderAtEnd(g->b, body);
    if (run)
        g->c->exec = go;
    emit_part(g, r, 1);
    next_carried(g, &c, run ? go : NULL);
    if (g->st)
        return;
    poll_end(g, &l);
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    branch_to(g, head);
    if (run)
        add_incoming(run, all, from, go, back);
    join_carried(&c, back);
    leave(g, r);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (int k = 0; k < c.n; k++)
        bundle_set(g, c.final + (uint32_t)k, &c.phi[k], true);
}

/* ---- branches ---- */

/* One branch of an if: its values, and the block that it ends in. */
static LLVMBasicBlockRef emit_arm(gen *g, region *r, int part, V exec, bundle *out, LLVMBasicBlockRef done)
{
    const ir_insn *merge = &g->ir->insns[r->end];
    const uint32_t *vals = ir_args(g->ir, &g->ir->insns[part ? r->end : r->middle]);
    mark(g, r);
    if (g->c)
        g->c->exec = exec;
    emit_part(g, r, part);
    for (uint32_t k = 0; k < merge->nres && !g->st; k++)
        out[k] = bundle_get(g, merge->res + k, vals[k]);
    leave(g, r);
    LLVMBasicBlockRef end = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    return end;
}

static void emit_uniform_if(gen *g, region *r, V cond, bundle *t, bundle *e)
{
    const ir_insn *end = &g->ir->insns[r->end];
    V exec = g->c ? g->c->exec : NULL;
    LLVMBasicBlockRef yes = new_block(g, "then"), no = new_block(g, "else"), done = new_block(g, "endif");
    LLVMBuildCondBr(g->b, cond, yes, no);
    LLVMPositionBuilderAtEnd(g->b, yes);
    yes = emit_arm(g, r, 0, exec, t, done);
    LLVMPositionBuilderAtEnd(g->b, no);
    no = emit_arm(g, r, 1, exec, e, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (uint32_t k = 0; k < end->nres && !g->st; k++) {
        t[k] = bundle_phi(g, &t[k], yes);
        bundle_incoming(&t[k], &e[k], no);
    }
    for (uint32_t k = 0; k < end->nres && !g->st; k++)
        bundle_set(g, end->res + k, &t[k], true);
}

/* An arm under a mask, skipped if no lane takes it; its values are then undefined, and chosen by no lane. */
static void emit_masked_arm(gen *g, region *r, int part, V mask, bundle *out)
{
    LLVMBasicBlockRef before = LLVMGetInsertBlock(g->b), arm = new_block(g, "arm"),
                      done = new_block(g, "after");
    LLVMBuildCondBr(g->b, any_of(g, mask), arm, done);
    LLVMPositionBuilderAtEnd(g->b, arm);
    arm = emit_arm(g, r, part, parts(g) ? mask : NULL, out, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (uint32_t k = 0; k < g->ir->insns[r->end].nres && !g->st; k++) {
        bundle none = out[k];
        for (int j = 0; j < none.n; j++)
            none.v[j] = LLVMConstNull(LLVMTypeOf(none.v[j]));
        bundle phi = bundle_phi(g, &out[k], arm);
        bundle_incoming(&phi, &none, before);
        out[k] = phi;
    }
}

/* All lanes take the first arm. */
static void emit_sure_if(gen *g, region *r, bundle *t)
{
    const ir_insn *end = &g->ir->insns[r->end];
    LLVMBasicBlockRef done = new_block(g, "endif");
    emit_arm(g, r, 0, g->c->exec, t, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (uint32_t k = 0; k < end->nres && !g->st; k++)
        bundle_set(g, end->res + k, &t[k], true);
}

static void emit_if(gen *g, region *r)
{
    const ir_insn *end = &g->ir->insns[r->end];
    const uint32_t cond = ir_args(g->ir, &g->ir->insns[r->opener])[0];
    bundle *t = arena_alloc(&g->mem, sizeof *t * (2u * end->nres + 1)), *e = t + end->nres;
    if (!t) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    if (uniform(g, cond)) {
        emit_uniform_if(g, r, g->sval[cond], t, e);
        return;
    }
    if (affine_holds(g, cond)) {
        emit_sure_if(g, r, t);
        return;
    }
    V c = seg_here(g, cond);
    emit_masked_arm(g, r, 0, mask_and(g, c, g->c->exec), t);
    if (r->middle < r->end)
        emit_masked_arm(g, r, 1, mask_and(g, LLVMBuildNot(g->b, c, ""), g->c->exec), e);
    for (uint32_t k = 0; k < end->nres && !g->st; k++)
        bundle_select(g, c, &t[k], &e[k]);
    for (uint32_t k = 0; k < end->nres && !g->st; k++)
        bundle_set(g, end->res + k, &t[k], true);
}

/* ---- both levels ---- */

static void emit_region(gen *g, uint32_t opener, const step *s)
{
    region r = {.opener = opener, .middle = middle_of(g, opener), .end = g->p.end[opener], .s = s};
    warm(g, &r);
    switch (g->ir->insns[opener].op) {
    case IR_IF: emit_if(g, &r); break;
    case IR_WHILE: emit_while(g, &r); break;
    default: emit_loop(g, &r); break;
    }
}

void flow_region(gen *g, uint32_t opener) { emit_region(g, opener, NULL); }

void flow_steps(gen *g, const steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len && !g->st; i++) {
        const step *st = &s->v.at[i];
        if (st->kind == S_SCALAR)
            scalar_insn(g, st->insn);
        else if (st->kind == S_SEGMENT)
            seg_emit(g, st->seg);
        else
            emit_region(g, st->insn, st);
    }
}
