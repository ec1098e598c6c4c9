/* chunk.c: the instructions of one chunk, in order. */
#include "llvm.h"

static void emit_insn(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    const uint8_t cls = in->res ? g->p.val[in->res].cls : C_NONE;
    switch (in->op) {
    case IR_STORE: mem_store(g, i); return;
    case IR_ASSERT: mem_assert(g, i); return;
    case IR_FENCE: atomic_fence(g, i); return;
    case IR_MMA_ZERO:
    case IR_MMA:
    case IR_MMA_STORE: mma_insn(g, i); return;
    default: break;
    }
    if (is_reduce(in)) {
        fold_chunk(g, i);
    } else if (cls == C_UNI) {
        scalar_insn(g, i);
        seg_publish(g, in->res);
    } else if (cls == C_BLOCK) {
        if (in->op == IR_LOAD)
            mem_load(g, i);
        else if (in->op == IR_BOUNDS)
            mem_bounds(g, i);
        else if (in->op == IR_DOT)
            dot_insn(g, i);
        else if (ir_is_atomic(in))
            atomic_insn(g, i);
        else
            seg_define(g, in->res, seg_elementwise(g, in, seg_map(g)));
    }
}

static uint32_t emit_one(gen *g, uint32_t i) /* an instruction or a region; returns its last instruction */
{
    switch (g->ir->insns[i].op) {
    case IR_LOOP:
    case IR_WHILE:
    case IR_IF: flow_region(g, i); return g->p.end[i];
    default: emit_insn(g, i); return i;
    }
}

void chunk_range(gen *g, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to && !g->st; i++)
        i = emit_one(g, i);
}

static uint32_t emit_copies(gen *g, const segment *s, uint32_t k)
{
    uint32_t end = k;
    while (end < s->items.len && s->items.at[end].insn == UINT32_MAX)
        end++;
    bundle *b = arena_alloc(&g->mem, sizeof *b * (end - k));
    if (!b) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return end;
    }
    for (uint32_t i = k; i < end; i++)
        b[i - k] = bundle_get(g, s->items.at[i].dst, s->items.at[i].src);
    for (uint32_t i = k; i < end; i++) {
        const uint32_t d = s->items.at[i].dst;
        if (s->kind == SEG_SIMDGROUPS) {
            frag f;
            memcpy(f.row, b[i - k].v, sizeof f.row);
            seg_put_frag(g, d, &f);
        } else {
            mem_spill(g, mem_slot(g, g->p.at[d].slot), (eas_dtype)ir_typeof(g->ir, d).dtype, b[i - k].v[0],
                      d);
        }
    }
    return end;
}

static bool is_rare(const segment *s, uint32_t k, uint32_t choice) { return s->items.at[k].rare == choice; }

/* A mask that is used in another basic block than it is made in. Without mask registers LLVM packs it to
 * 16 bits a lane in between; as a vector of the width that it was compared in it stays as it is. NULL: it
 * is fine. */
static V mask_across(gen *g, V mask)
{
    const int n = lanes_of(LLVMTypeOf(mask));
    if (!g->avx2 || g->avx512 || (n != 8 && n != 4))
        return NULL;
    return LLVMBuildSExt(g->b, mask, ty_int(g, 256 / n, n), "");
}

/* The values that a `where` (and others with its condition) choose, made if some lane wants them. */
static void emit_rare(gen *g, const segment *s, uint32_t at)
{
    const uint32_t choice = s->items.at[at].insn, cond = ir_args(g->ir, &g->ir->insns[choice])[0];
    uint32_t *vals = arena_alloc(&g->mem, sizeof *vals * (s->items.len + 1)), n = 0;
    V *x = arena_alloc(&g->mem, sizeof *x * (s->items.len + 1));
    if (!vals || !x) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    for (uint32_t k = at; k < s->items.len; k++) {
        const ir_insn *in = s->items.at[k].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[k].insn];
        if (in && in->op == IR_WHERE && ir_args(g->ir, in)[0] == cond)
            for (uint32_t j = 0; j < at; j++)
                if (is_rare(s, j, choice) && g->ir->insns[s->items.at[j].insn].res == ir_args(g->ir, in)[1])
                    vals[n++] = ir_args(g->ir, in)[1];
    }
    for (uint32_t j = 0; j < at; j++) /* what it wants from outside is made before the branch */
        for (int k = 0; is_rare(s, j, choice) && k < g->ir->insns[s->items.at[j].insn].nargs; k++) {
            const uint32_t a = ir_args(g->ir, &g->ir->insns[s->items.at[j].insn])[k];
            if (g->p.val[a].cls == C_BLOCK && g->p.made[a].seg != s->id)
                seg_here(g, a);
        }
    V chosen = seg_here(g, cond), want = mask_and(g, chosen, g->c->exec), wide = mask_across(g, chosen);
    LLVMBasicBlockRef before = LLVMGetInsertBlock(g->b), arm = new_block(g, "rare"),
                      done = new_block(g, "usual");
    LLVMBuildCondBr(g->b, any_of(g, want), arm, done);
    LLVMPositionBuilderAtEnd(g->b, arm);
    const uint32_t mark = g->c->log.len;
    for (uint32_t j = 0; j < at; j++)
        if (is_rare(s, j, choice))
            emit_one(g, s->items.at[j].insn);
    for (uint32_t k = 0; k < n; k++)
        x[k] = seg_here(g, vals[k]);
    arm = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    chunk_forget(g->c, mark);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (uint32_t k = 0; k < n; k++) {
        V none = LLVMConstNull(LLVMTypeOf(x[k])), phi = LLVMBuildPhi(g->b, LLVMTypeOf(x[k]), "");
        LLVMAddIncoming(phi, &x[k], &arm, 1);
        LLVMAddIncoming(phi, &none, &before, 1);
        seg_set(g, vals[k], phi);
    }
    if (wide)
        seg_set(g, cond, LLVMBuildICmp(g->b, LLVMIntSLT, wide, LLVMConstNull(LLVMTypeOf(wide)), ""));
}

void chunk_emit(gen *g, const segment *s)
{
    const uint32_t mark = g->c->log.len;
    for (uint32_t k = 0; k < s->prefetches.len && g->c->full; k++)
        prefetch_chunk(g, &s->prefetches.at[k]);
    for (uint32_t k = 0; k < s->items.len && !g->st;) {
        if (s->items.at[k].insn == UINT32_MAX) {
            k = emit_copies(g, s, k);
        } else if (s->items.at[k].rare) {
            k++;
        } else {
            if (s->items.at[k].chooses)
                emit_rare(g, s, k);
            emit_one(g, s->items.at[k].insn);
            k++;
        }
    }
    chunk_forget(g->c, mark);
}
