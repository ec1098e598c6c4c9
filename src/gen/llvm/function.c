/* function.c: the compiled function: its parameters and the loop over programs. */
#include "llvm.h"

static void add_incoming(V phi, V x, LLVMBasicBlockRef bb) { LLVMAddIncoming(phi, &x, &bb, 1); }

static V field(gen *g, V base, int64_t bytes, T t)
{
    V i = k_int(g, bytes);
    return LLVMBuildLoad2(g->b, t, LLVMBuildGEP2(g->b, ty_int(g, 8, 0), base, &i, 1, ""), "");
}

static V slot_value(gen *g, int i) /* a parameter from call->slot[i] */
{
    const ir_type t = ir_typeof(g->ir, g->ir->params[i].value);
    const T p = LLVMPointerTypeInContext(g->cx, 0);
    if (t.kind != IR_VAL)
        return field(g, g->slots, 8 * (int64_t)i, p);
    V x = field(g, g->slots, 8 * (int64_t)i, ty_mem(g, (eas_dtype)t.dtype, 0));
    return t.dtype == EAS_BOOL ? LLVMBuildICmp(g->b, LLVMIntNE, x, k_like(g, LLVMTypeOf(x), 0), "") : x;
}

static void load_params(gen *g)
{
    const T p = LLVMPointerTypeInContext(g->cx, 0);
    V off = k_int(g, (int64_t)offsetof(gen_call, grid));
    g->slots = field(g, g->call, offsetof(gen_call, slot), p);
    g->counts = field(g, g->call, offsetof(gen_call, count), p);
    g->flags = field(g, g->call, offsetof(gen_call, flags), ty_int(g, 64, 0));
    g->grid = LLVMBuildGEP2(g->b, ty_int(g, 8, 0), g->call, &off, 1, "");
    for (int i = 0; i < g->ir->nparams; i++)
        g->sval[g->ir->params[i].value] = slot_value(g, i);
    for (uint32_t i = 0; i < g->ir->ninsns; i++)
        if (g->ir->insns[i].op == IR_ALLOC_TG)
            g->sval[g->ir->insns[i].res] = mem_slot(g, g->p.at[g->ir->insns[i].res].slot);
}

/* Program ids by axis: those of the first are given, the next follow by counting. */
static void open_programs(gen *g, V *start, V *gridv)
{
    for (int a = 0; a < g->p.info.naxes; a++) {
        gridv[a] = grid_axis(g, a);
        start[a] = field(g, g->call, (int64_t)offsetof(gen_call, id) + 8 * (int64_t)a, ty_int(g, 64, 0));
    }
}

static void next_ids(gen *g, V *gridv, V *next)
{
    V carry = LLVMConstInt(ty_int(g, 1, 0), 1, 0);
    for (int a = 0; a < g->p.info.naxes; a++) {
        V up = LLVMBuildAdd(g->b, g->id[a], LLVMBuildZExt(g->b, carry, ty_int(g, 64, 0), ""), "");
        carry = LLVMBuildICmp(g->b, LLVMIntEQ, up, gridv[a], "");
        next[a] = sel(g, carry, k_int(g, 0), up);
    }
}

static void add_attribute(gen *g, const char *name)
{
    const unsigned k = LLVMGetEnumAttributeKindForName(name, strlen(name));
    LLVMAddAttributeAtIndex(g->fn, LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(g->cx, k, 0));
}

static void make_function(gen *g)
{
    const T p = LLVMPointerTypeInContext(g->cx, 0), i64 = ty_int(g, 64, 0);
    T args[5] = {p, i64, i64, p, p};
    g->fn = LLVMAddFunction(g->mod, "kernel", LLVMFunctionType(LLVMVoidTypeInContext(g->cx), args, 5, 0));
    add_attribute(g, "nounwind");
    LLVMPositionBuilderAtEnd(g->b, new_block(g, "entry"));
    g->call = LLVMGetParam(g->fn, 0);
    g->scratch = LLVMGetParam(g->fn, 3);
    g->fault = LLVMGetParam(g->fn, 4);
    LLVMBasicBlockRef start = new_block(g, "start");
    g->entry_end = LLVMBuildBr(g->b, start);
    LLVMPositionBuilderAtEnd(g->b, start);
    load_params(g);
    bf16_begin(g);
}

void function_emit(gen *g)
{
    make_function(g);
    V first = LLVMGetParam(g->fn, 1), last = LLVMGetParam(g->fn, 2), start[3], gridv[3], next[3];
    const int axes = g->p.info.naxes;
    LLVMBasicBlockRef from, head = new_block(g, "program"), body = new_block(g, "run"),
                            done = new_block(g, "end");
    open_programs(g, start, gridv);
    from = LLVMGetInsertBlock(g->b);
    branch_to(g, head);
    LLVMPositionBuilderAtEnd(g->b, head);
    V ids[3], p = g->pid = LLVMBuildPhi(g->b, ty_int(g, 64, 0), "p");
    add_incoming(p, first, from);
    for (int a = 0; a < axes; a++) {
        ids[a] = g->id[a] = LLVMBuildPhi(g->b, ty_int(g, 64, 0), "id");
        add_incoming(ids[a], start[a], from);
    }
    LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, p, last, ""), body, done);
    LLVMPositionBuilderAtEnd(g->b, body);
    flow_steps(g, g->p.top);
    next_ids(g, gridv, next);
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    add_incoming(p, LLVMBuildAdd(g->b, p, k_int(g, 1), ""), back);
    for (int a = 0; a < axes; a++)
        add_incoming(ids[a], next[a], back);
    branch_to(g, head);
    LLVMPositionBuilderAtEnd(g->b, done);
    bf16_end(g);
    LLVMBuildRetVoid(g->b);
}
