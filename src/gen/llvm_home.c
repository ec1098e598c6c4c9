/* llvm_home.c: large blocks that wait where they will end up.
 *
 * A softmax of a long row makes exponentials in one segment and divides them in the next. A slot in scratch would send them through the caches twice, to the slot and to the output. They wait in the
 * output instead, where what is made of them is stored lane by lane in the end. That memory must be the program's alone: the output is touched by this store and by nothing else, and by no two
 * programs at one place. Each program finds out when it runs, from the grid and the distance between the outputs of its neighbours, and takes the slot if it cannot tell; so it does
 * where stores go past the caches, and where the store's mask leaves out lanes.
 */
#include "llvm.h"

enum { HOME_BYTES = 128 << 10, LINE = 64 }; /* smaller blocks stay in the nearest caches anyway */

/* ---- how an offset moves from program to program ---- */

static bool sum_pace(pace *x, pace y, int64_t sign)
{
    if (!y.k)
        return true;
    if (x->k && x->by != y.by)
        return false;
    x->by = y.by;
    return !__builtin_mul_overflow(y.k, sign, &y.k) && !__builtin_add_overflow(x->k, y.k, &x->k);
}

/* x by a factor that is the same for all programs: a constant or a parameter */
static bool scale_pace(const plan *p, pace *x, uint32_t factor)
{
    int64_t k;
    const ir_insn *in = ir_def(p->ir, factor);
    while (in && (in->op == IR_BROADCAST || in->op == IR_RESHAPE)) {
        factor = ir_args(p->ir, in)[0];
        in = ir_def(p->ir, factor);
    }
    if (!x->k)
        return true;
    if (ir_const_of(p->ir, factor, &k))
        return !__builtin_mul_overflow(x->k, k, &x->k);
    if (in || x->by)
        return false;
    x->by = factor;
    return true;
}

static bool stands_still(const pace *x) { return !x[0].k && !x[1].k && !x[2].k; }

/* Fills out[] with what is added to v from one program to the next along each axis; false if that is no fixed number. */
static bool find_pace(const plan *p, uint32_t v, pace *out, int depth)
{
    const ir_insn *in = ir_def(p->ir, v);
    memset(out, 0, 3 * sizeof *out);
    if (!in)
        return true;
    const uint32_t *a = ir_args(p->ir, in);
    pace more[3];
    if (ir_typeof(p->ir, v).dtype != EAS_I64 || depth > 16)
        return false;
    switch (in->op) {
    case IR_PROGRAM_ID: out[in->imm].k = 1; return true;
    case IR_CONST:
    case IR_NUM_PROGRAMS:
    case IR_ARANGE: return true;
    case IR_BROADCAST:
    case IR_RESHAPE: return find_pace(p, a[0], out, depth + 1);
    case IR_ADD:
    case IR_SUB:
        if (!find_pace(p, a[0], out, depth + 1) || !find_pace(p, a[1], more, depth + 1))
            return false;
        for (int d = 0; d < 3; d++)
            if (!sum_pace(&out[d], more[d], in->op == IR_ADD ? 1 : -1))
                return false;
        return true;
    case IR_MUL: {
        if (!find_pace(p, a[0], out, depth + 1) || !find_pace(p, a[1], more, depth + 1) || (!stands_still(out) && !stands_still(more)))
            return false;
        const uint32_t factor = a[stands_still(out) ? 0 : 1];
        for (int d = 0; d < 3; d++) {
            out[d] = stands_still(more) ? out[d] : more[d];
            if (!scale_pace(p, &out[d], factor))
                return false;
        }
        return true;
    }
    default: return false;
    }
}

/* ---- who has one ---- */

/* A store of a row to memory that nothing else touches. */
static bool takes_in(const plan *p, uint32_t i, home *h)
{
    const ir_insn *in = &p->ir->insns[i];
    if (in->op != IR_STORE || p->parent[i] != UINT32_MAX)
        return false;
    const uint32_t *a = ir_args(p->ir, in);
    const shape *sh = &p->val[a[2]].sh;
    const size_t size = eas_dtype_size((eas_dtype)ir_typeof(p->ir, a[0]).dtype);
    return ir_typeof(p->ir, a[0]).kind == IR_BUF && sh->rank == 1 && (size_t)sh->dim[0] * size >= HOME_BYTES &&
           (size_t)sh->dim[0] * size % LINE == 0 && plan_uses(p, a[0]) == 1 && plan_stays(p, a[1]) && plan_neighbours(p, a[1]) &&
           find_pace(p, a[1], h->pace, 0);
}

/* Are all loads, in whatever buffers, over and done with when v is made, and of the very lanes that the store is to write? Then arguments may be the same array. */
static bool reads_first(const plan *p, const uint32_t *iseg, const home *h)
{
    const uint32_t off = ir_args(p->ir, &p->ir->insns[h->store])[1];
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        if (i != h->store && (ir_writes(in) || in->op == IR_FENCE || ir_rows[in->op].flags & IR_STRUCT))
            return false;
        if (in->op == IR_LOAD && ir_args(p->ir, in)[1] != off)
            return false;
        for (uint32_t k = i + 1; in->op == IR_LOAD && k < p->ir->ninsns; k++)
            if (plan_reads(p, &p->ir->insns[k], in->res) && iseg[k] > p->val[h->v].seg)
                return false;
    }
    return plan_injective(p, off);
}

static bool may_wait(const plan *p, const uint32_t *iseg, uint32_t v, uint32_t store)
{
    const vinfo *x = &p->val[v];
    const ir_insn *in = ir_def(p->ir, v);
    const uint32_t *a = ir_args(p->ir, &p->ir->insns[store]), def = p->ir->vals[v].def;
    if (x->cls != C_BLOCK || !x->needs_slot || x->same_slot || x->pitch || !in || ir_rows[in->op].flags & IR_STRUCT || p->parent[def] != UINT32_MAX ||
        x->seg >= iseg[store] || !shape_eq(&x->sh, &p->val[a[2]].sh) ||
        eas_dtype_size((eas_dtype)ir_typeof(p->ir, v).dtype) != eas_dtype_size((eas_dtype)ir_typeof(p->ir, a[0]).dtype))
        return false;
    for (uint32_t i = def + 1; i < p->ir->ninsns; i++)
        if (plan_reads(p, &p->ir->insns[i], v) && (i > store || iseg[i] > iseg[store] || !plan_plain_reader(p, i, def, v)))
            return false;
    return true;
}

void plan_homes(plan *p, const uint32_t *iseg)
{
    for (uint32_t i = 0; i < p->ir->ninsns && p->info.mode == EAS_MODE_SPMD && !p->alias; i++) {
        home h = {.store = i};
        if (!takes_in(p, i, &h))
            continue;
        for (uint32_t v = 1; v < p->ir->nvals && !h.v; v++)
            h.v = may_wait(p, iseg, v, i) ? v : 0;
        if (!h.v)
            continue;
        p->alias_sensitive |= !reads_first(p, iseg, &h);
        if (!vec_push(&p->homes, h))
            p->mem->oom = true;
    }
}

const home *plan_home(const plan *p, uint32_t store)
{
    for (uint32_t k = 0; k < p->homes.len; k++)
        if (p->homes.at[k].store == store)
            return &p->homes.at[k];
    return NULL;
}

/* ---- the choice, when it runs ---- */

static V distance(gen *g, pace x)
{
    const T t = ty_int(g, 64, 0);
    V by = x.by ? LLVMBuildMul(g->b, g->sval[x.by], k_int(g, x.k), "") : k_int(g, x.k);
    V a[2] = {by, LLVMConstInt(ty_int(g, 1, 0), 0, 0)};
    return intrinsic(g, "llvm.abs", (T[]){t}, 1, a, 2);
}

/* i1: rows of that many elements never meet. Each axis steps over all that the ones before it reach; in floats, which do not wrap. */
static V apart(gen *g, const pace *x, int64_t lanes)
{
    const T t = ty_float(g, 64, 0);
    V reach = k_float(g, t, (double)lanes), yes = NULL;
    for (int d = 0; d < 3; d++) {
        V n = grid_axis(g, d), by = LLVMBuildSIToFP(g->b, distance(g, x[d]), t, "");
        V more = LLVMBuildSIToFP(g->b, LLVMBuildSub(g->b, n, k_int(g, 1), ""), t, "");
        V ok = LLVMBuildOr(g->b, LLVMBuildFCmp(g->b, LLVMRealOGE, by, reach, ""), LLVMBuildICmp(g->b, LLVMIntSLE, n, k_int(g, 1), ""), "");
        yes = yes ? LLVMBuildAnd(g->b, yes, ok, "") : ok;
        reach = LLVMBuildFAdd(g->b, reach, LLVMBuildFMul(g->b, by, more, ""), "");
    }
    return yes;
}

/* i1: no lane of the store is masked off; NULL if that cannot be told here */
static V unmasked(gen *g, const home *h, int64_t lanes)
{
    const uint32_t mask = ir_mask(g->ir, &g->ir->insns[h->store]);
    if (!mask)
        return LLVMConstInt(ty_int(g, 1, 0), 1, 0);
    for (int k = 0; k < g->c->npre; k++)
        if (g->c->pre[k].v == mask)
            return LLVMBuildICmp(g->b, LLVMIntSGE, g->c->pre[k].count, k_int(g, lanes), "");
    return NULL;
}

static void choose(gen *g, const home *h)
{
    const uint32_t *a = ir_args(g->ir, &g->ir->insns[h->store]);
    const int64_t lanes = g->c->sh.dim[0];
    const aff off = affine_of(g, a[1], seg_map(g));
    V whole = off.ok && off.exact && off.whole && off.stride == 1 ? unmasked(g, h, lanes) : NULL;
    if (!whole)
        return;
    V cached = LLVMBuildNot(g->b, mem_streams(g), "");
    V yes = LLVMBuildAnd(g->b, LLVMBuildAnd(g->b, whole, cached, ""), apart(g, h->pace, lanes), "");
    V there = mem_element(g, g->sval[a[0]], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, affine_base(g, off));
    g->homes[h->v] = sel(g, yes, there, mem_slot(g, g->p.val[h->v].slot));
}

/* Before the loop over the chunks of the segment that makes the blocks; the chunk stands at index 0. */
void home_choose(gen *g, const segment *s)
{
    for (uint32_t k = 0; k < g->p.homes.len && !g->st; k++)
        if (g->p.val[g->p.homes.at[k].v].seg == s->id)
            choose(g, &g->p.homes.at[k]);
}

V home_or_slot(gen *g, uint32_t v) { return g->homes[v] ? g->homes[v] : mem_slot(g, g->p.val[v].slot); }
