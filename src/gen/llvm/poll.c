/* poll.c: loops that may never end ask now and then whether to go on.
 *
 * How often a `while` goes round is not known, and whoever waits for it may want to stop it (Ctrl-C). So it
 * counts its rounds down, and when the count is used up, after about EVERY_NS, it calls gen_call.look; if
 * that says so, the kernel returns at once and leaves its results unfinished. The count costs one instruction
 * a round and starts from a guess at what a round costs. Counted loops have none of this.
 */
#include "llvm.h"

enum { EVERY_NS = 100000, MOST = 1 << 16, TRIPS = 8 };

/* Of one round, in ns, roughly: an instruction on a vector takes a quarter of one. */
static double round_cost(const gen *g, uint32_t opener)
{
    double total = 1, times = 1;
    for (uint32_t i = opener + 1; i < g->p.end[opener]; i++) {
        const ir_insn *in = &g->ir->insns[i];
        const uint32_t v = in->res ? in->res : in->nargs ? ir_args(g->ir, in)[in->nargs - 1] : 0;
        const ir_type t = v ? ir_typeof(g->ir, v) : (ir_type){0};
        double lanes = v && t.kind == IR_VAL ? (double)ir_lanes(t) : 1;
        if (g->p.info.mode == EAS_MODE_THREAD)
            lanes *= (double)g->p.info.block;
        if (in->op == IR_MATMUL)
            lanes *= (double)ir_typeof(g->ir, ir_args(g->ir, in)[0]).dim[1];
        if (in->op == IR_LOOP || in->op == IR_WHILE)
            times *= TRIPS;
        if ((in->op == IR_ENDLOOP || in->op == IR_ENDWHILE) && times > 1)
            times /= TRIPS;
        total += times * (0.25 + lanes / 32);
    }
    return total;
}

poll poll_begin(gen *g, uint32_t opener, LLVMBasicBlockRef from)
{
    const double n = EVERY_NS / round_cost(g, opener);
    poll l = {.every = k_like(g, ty_int(g, 32, 0), n < 1 ? 1 : n > MOST ? MOST : (int64_t)n)};
    l.left = LLVMBuildPhi(g->b, ty_int(g, 32, 0), "left");
    LLVMAddIncoming(l.left, &l.every, &from, 1);
    return l;
}

static V load_field(gen *g, int64_t at)
{
    V i = k_int(g, at);
    return LLVMBuildLoad2(g->b, LLVMPointerTypeInContext(g->cx, 0),
                          LLVMBuildGEP2(g->b, ty_int(g, 8, 0), g->call, &i, 1, ""), "");
}

/* i1: whoever waits for this call wants it to stop. */
static V ask(gen *g, V look_fn)
{
    T p = LLVMPointerTypeInContext(g->cx, 0), type = LLVMFunctionType(ty_int(g, 32, 0), &p, 1, 0);
    V ctx = load_field(g, offsetof(gen_call, look_ctx));
    V said = LLVMBuildCall2(g->b, type, look_fn, &ctx, 1, "");
    return LLVMBuildICmp(g->b, LLVMIntNE, said, k_like(g, ty_int(g, 32, 0), 0), "");
}

static void rarely(gen *g, V branch)
{
    LLVMMetadataRef m[3] = {LLVMMDStringInContext2(g->cx, "branch_weights", 14),
                            LLVMValueAsMetadata(LLVMConstInt(ty_int(g, 32, 0), 1, 0)),
                            LLVMValueAsMetadata(LLVMConstInt(ty_int(g, 32, 0), 1 << 20, 0))};
    LLVMSetMetadata(branch, LLVMGetMDKindIDInContext(g->cx, "prof", 4),
                    LLVMMetadataAsValue(g->cx, LLVMMDNodeInContext2(g->cx, m, 3)));
}

void poll_end(gen *g, poll *l)
{
    const T i32 = ty_int(g, 32, 0);
    LLVMBasicBlockRef due = new_block(g, "look"), call = new_block(g, "ask"), stop = new_block(g, "stop"),
                      again = new_block(g, "again"), back;
    V less = LLVMBuildSub(g->b, l->left, k_like(g, i32, 1), "");
    back = LLVMGetInsertBlock(g->b);
    rarely(g, LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntEQ, less, k_like(g, i32, 0), ""), due, again));
    LLVMPositionBuilderAtEnd(g->b, due);
    V fn = load_field(g, offsetof(gen_call, look));
    rarely(g, LLVMBuildCondBr(g->b, LLVMBuildIsNull(g->b, fn, ""), again, call));
    LLVMPositionBuilderAtEnd(g->b, call);
    rarely(g, LLVMBuildCondBr(g->b, ask(g, fn), stop, again));
    LLVMPositionBuilderAtEnd(g->b, stop);
    bf16_end(g);
    LLVMBuildRetVoid(g->b);
    LLVMPositionBuilderAtEnd(g->b, again);
    V next = LLVMBuildPhi(g->b, i32, "");
    V values[3] = {less, l->every, l->every};
    LLVMBasicBlockRef from[3] = {back, due, call};
    LLVMAddIncoming(next, values, from, 3);
    LLVMAddIncoming(l->left, &next, &again, 1);
}
