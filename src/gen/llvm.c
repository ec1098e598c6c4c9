/* llvm.c: the entry point of libeas-llvm, the target machine, the loop over programs, and code at scalar level.
 *
 *   plan -> LLVM IR of one function -> object (LLVM's code generator, no IR passes) -> flat image (image.c)
 *
 * At scalar level a uniform value is one LLVM scalar (gen.sval); blocks live in scratch. Every LLVM object of a compilation
 * hangs on its own context, so compilations on several threads do not meet.
 */
#include "llvm.h"

#include <llvm-c/Analysis.h>
#include <llvm-c/Support.h>
#include <llvm-c/Target.h>
#include <llvm-c/TargetMachine.h>
#include <pthread.h>
#include <stdio.h>

#if defined(__aarch64__)
#define TRIPLE "aarch64-unknown-linux-gnu"
#else
#define TRIPLE "x86_64-unknown-linux-gnu"
#endif

void gen_fail(gen *g, eas_status st, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    if (g->st)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    g->st = base_fail(st, "%s", text);
}

/* ---- types and constants ---- */

static T vec(T e, int n) { return n ? LLVMVectorType(e, (unsigned)n) : e; }
T ty_int(gen *g, int bits, int n) { return vec(LLVMIntTypeInContext(g->cx, (unsigned)bits), n); }

T ty_float(gen *g, int bits, int n)
{
    return vec(bits == 64 ? LLVMDoubleTypeInContext(g->cx) : bits == 16 ? LLVMHalfTypeInContext(g->cx) : LLVMFloatTypeInContext(g->cx), n);
}

T ty_of(gen *g, eas_dtype dt, int n) { return dt == EAS_F32 || dt == EAS_F64 ? ty_float(g, dtype_bits(dt), n) : ty_int(g, dtype_bits(dt), n); }

T ty_mem(gen *g, eas_dtype dt, int n) { return dt == EAS_BOOL ? ty_int(g, 8, n) : ty_of(g, dt, n); }

int lanes_of(T t) { return LLVMGetTypeKind(t) == LLVMVectorTypeKind ? (int)LLVMGetVectorSize(t) : 0; }
T with_bits(gen *g, T like, int bits) { return ty_int(g, bits, lanes_of(like)); }

static V const_splat(V x, int n)
{
    V e[64];
    if (!n)
        return x;
    for (int i = 0; i < n; i++)
        e[i] = x;
    return LLVMConstVector(e, (unsigned)n);
}

V k_int(gen *g, int64_t v) { return LLVMConstInt(ty_int(g, 64, 0), (uint64_t)v, 1); }

V k_like(gen *g, T t, int64_t v)
{
    (void)g;
    const int n = lanes_of(t);
    return const_splat(LLVMConstInt(n ? LLVMGetElementType(t) : t, (uint64_t)v, 1), n);
}

V k_float(gen *g, T t, double v)
{
    (void)g;
    const int n = lanes_of(t);
    return const_splat(LLVMConstReal(n ? LLVMGetElementType(t) : t, v), n);
}

V k_bits(gen *g, eas_dtype dt, int n, int64_t bits)
{
    if (dt != EAS_F32 && dt != EAS_F64)
        return const_splat(LLVMConstInt(ty_of(g, dt, 0), (uint64_t)bits, 1), n);
    V i = LLVMConstInt(ty_int(g, dtype_bits(dt), 0), (uint64_t)bits, 0);
    return const_splat(LLVMConstBitCast(i, ty_of(g, dt, 0)), n);
}

V k_iota(gen *g, T elem, int n, int64_t stride)
{
    V e[64];
    (void)g;
    for (int i = 0; i < n; i++)
        e[i] = LLVMConstInt(elem, (uint64_t)(i * stride), 1);
    return LLVMConstVector(e, (unsigned)n);
}

V splat(gen *g, V x, int n)
{
    if (!n)
        return x;
    if (LLVMIsConstant(x) && !LLVMIsUndef(x))
        return const_splat(x, n);
    const T t = vec(LLVMTypeOf(x), n);
    V v = LLVMBuildInsertElement(g->b, LLVMGetPoison(t), x, k_int(g, 0), "");
    return LLVMBuildShuffleVector(g->b, v, LLVMGetPoison(t), LLVMConstNull(ty_int(g, 32, n)), "");
}

V intrinsic(gen *g, const char *name, T *types, int ntypes, V *args, int nargs)
{
    const unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
    V f = LLVMGetIntrinsicDeclaration(g->mod, id, types, (size_t)ntypes);
    return LLVMBuildCall2(g->b, LLVMIntrinsicGetType(g->cx, id, types, (size_t)ntypes), f, args, (unsigned)nargs, "");
}

V sel(gen *g, V c, V a, V b) { return LLVMBuildSelect(g->b, c, a, b, ""); }

V mask_bits(gen *g, V mask, int n) { return LLVMBuildBitCast(g->b, mask, ty_int(g, n, 0), ""); }

V any_of(gen *g, V mask)
{
    T t = LLVMTypeOf(mask);
    const int n = lanes_of(t);
    if (!n)
        return mask;
    if (!g->x86)
        return intrinsic(g, "llvm.vector.reduce.or", &t, 1, &mask, 1);
    return LLVMBuildICmp(g->b, LLVMIntNE, mask_bits(g, mask, n), LLVMConstInt(ty_int(g, n, 0), 0, 0), "");
}

V mask_and(gen *g, V a, V b) { return !a ? b : !b ? a : LLVMBuildAnd(g->b, a, b, ""); }

LLVMBasicBlockRef new_block(gen *g, const char *name) { return LLVMAppendBasicBlockInContext(g->cx, g->fn, name); }
void branch_to(gen *g, LLVMBasicBlockRef bb) { LLVMBuildBr(g->b, bb); }

V entry_alloca(gen *g, T t)
{
    LLVMBuilderRef b = LLVMCreateBuilderInContext(g->cx);
    LLVMPositionBuilderBefore(b, g->entry_end);
    V a = LLVMBuildAlloca(b, t, "");
    LLVMSetAlignment(a, 64);
    LLVMDisposeBuilder(b);
    return a;
}

/* ---- uniform instructions ---- */

static V program_axis(gen *g, int64_t axis) { return g->id[axis] ? g->id[axis] : k_int(g, 0); }

V grid_axis(gen *g, int64_t axis)
{
    V i = k_int(g, axis);
    return LLVMBuildLoad2(g->b, ty_int(g, 64, 0), LLVMBuildGEP2(g->b, ty_int(g, 64, 0), g->grid, &i, 1, ""), "");
}

static V scalar_ident(gen *g, const ir_insn *in)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    V x = k_int(g, 0);
    if (in->op == IR_PROGRAM_ID)
        x = program_axis(g, in->imm);
    else if (in->op == IR_NUM_PROGRAMS)
        x = grid_axis(g, in->imm);
    else if (in->op == IR_ARANGE)
        x = k_int(g, in->imm);
    return value_cast(g, x, EAS_I64, dt);
}

/* a load under a uniform mask: the memory is touched only if it holds */
static V scalar_load(gen *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype, ot = (eas_dtype)ir_typeof(g->ir, a[1]).dtype;
    int64_t k;
    if (in->nargs == 2 || (ir_const_of(g->ir, a[2], &k) && k))
        return mem_load_scalar(g, g->sval[a[0]], dt, value_cast(g, g->sval[a[1]], ot, EAS_I64));
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), yes = new_block(g, "load"), done = new_block(g, "loaded");
    LLVMBuildCondBr(g->b, g->sval[a[2]], yes, done);
    LLVMPositionBuilderAtEnd(g->b, yes);
    V x = mem_load_scalar(g, g->sval[a[0]], dt, value_cast(g, g->sval[a[1]], ot, EAS_I64));
    yes = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    V phi = LLVMBuildPhi(g->b, LLVMTypeOf(x), ""), in2[2] = {g->sval[a[3]], x};
    LLVMBasicBlockRef bb[2] = {from, yes};
    LLVMAddIncoming(phi, in2, bb, 2);
    return phi;
}

static void scalar_store(gen *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, a[0]).dtype, ot = (eas_dtype)ir_typeof(g->ir, a[1]).dtype;
    LLVMBasicBlockRef yes = new_block(g, "store"), done = new_block(g, "stored");
    if (in->nargs == 4)
        LLVMBuildCondBr(g->b, g->sval[a[3]], yes, done);
    else
        branch_to(g, yes);
    LLVMPositionBuilderAtEnd(g->b, yes);
    mem_store_scalar(g, g->sval[a[0]], dt, value_cast(g, g->sval[a[1]], ot, EAS_I64), g->sval[a[2]]);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
}

/* one element of a block that lies in its slot */
static V scalar_move(gen *g, const ir_insn *in)
{
    const uint32_t x = ir_args(g->ir, in)[0];
    if (g->p.val[x].cls == C_UNI)
        return g->sval[x];
    const ir_type from = ir_typeof(g->ir, x);
    const int64_t lane = ir_source_lane(in->op, in->imm, from, ir_typeof(g->ir, in->res), 0);
    return mem_load_scalar(g, mem_slot(g, g->p.val[x].slot), (eas_dtype)from.dtype, k_int(g, lane));
}

static V scalar_value(gen *g, const ir_insn *in)
{
    const uint32_t *a = ir_args(g->ir, in);
    const eas_dtype to = (eas_dtype)ir_typeof(g->ir, in->res).dtype;
    switch (in->op) {
    case IR_CONST: return k_bits(g, to, 0, in->imm);
    case IR_CAST: return value_cast(g, g->sval[a[0]], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, to);
    case IR_BITCAST: return value_bitcast(g, g->sval[a[0]], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, to);
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_SIMD_SHUFFLE: return g->sval[a[0]]; /* the same for all threads */
    case IR_SLICE:
    case IR_PAD:
    case IR_TRANS: return scalar_move(g, in);
    case IR_LOAD: return scalar_load(g, in);
    case IR_MATMUL: return float_fma(g, g->sval[a[0]], g->sval[a[1]], g->sval[a[2]]);
    default: break;
    }
    if (ir_is_fold(in)) /* of one element */
        return g->sval[a[0]];
    if (in->nargs == 0)
        return scalar_ident(g, in);
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, a[in->op == IR_WHERE ? 1 : 0]).dtype;
    return value_insn(g, in->op, dt, g->sval[a[0]], in->nargs > 1 ? g->sval[a[1]] : NULL, in->nargs > 2 ? g->sval[a[2]] : NULL);
}

void scalar_insn(gen *g, uint32_t i)
{
    const ir_insn *in = &g->ir->insns[i];
    if (in->op == IR_STORE)
        scalar_store(g, in);
    else if (in->op == IR_BOUNDS)
        mem_bounds_scalar(g, i);
    else if (in->op == IR_ASSERT)
        mem_assert_scalar(g, i);
    else if (in->op == IR_DOT)
        dot_scalar(g, i);
    else if (in->op == IR_FENCE)
        atomic_fence(g, i);
    else if (ir_is_atomic(in))
        atomic_scalar(g, i);
    else if (in->res)
        g->sval[in->res] = scalar_value(g, in);
}

/* ---- control flow at scalar level: uniform values become phis, blocks are in their slots ---- */

static void emit_steps(gen *g, const steps *s);

static bool is_uni(const gen *g, uint32_t v) { return g->p.val[v].cls == C_UNI; }

static void add_incoming(V phi, V x, LLVMBasicBlockRef bb) { LLVMAddIncoming(phi, &x, &bb, 1); }

/* phis of the uniform carried values, started with x[] */
static V *make_phis(gen *g, uint32_t first, V *x, int n, LLVMBasicBlockRef from)
{
    V *phi = arena_alloc(&g->mem, sizeof(V) * (size_t)(n + 1));
    if (!phi)
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
    for (int k = 0; k < n && phi; k++) {
        if (!is_uni(g, first + (uint32_t)k))
            continue;
        phi[k] = LLVMBuildPhi(g->b, LLVMTypeOf(x[k]), "");
        add_incoming(phi[k], x[k], from);
    }
    return phi;
}

static V *uniform_values(gen *g, uint32_t first, const uint32_t *v, int n)
{
    V *x = arena_alloc(&g->mem, sizeof(V) * (size_t)(n + 1));
    if (!x)
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
    for (int k = 0; k < n && x; k++)
        if (is_uni(g, first + (uint32_t)k))
            x[k] = g->sval[v[k]];
    return x;
}

static void set_values(gen *g, uint32_t first, V *x, int n)
{
    for (int k = 0; k < n; k++)
        if (is_uni(g, first + (uint32_t)k))
            g->sval[first + (uint32_t)k] = x[k];
}

static void join_phis(V *phi, V *x, int n, LLVMBasicBlockRef from)
{
    for (int k = 0; k < n; k++)
        if (phi[k])
            add_incoming(phi[k], x[k], from);
}

static void emit_loop(gen *g, const step *s)
{
    const ir_insn *in = &g->ir->insns[s->insn], *end = &g->ir->insns[g->p.end[s->insn]];
    const uint32_t *a = ir_args(g->ir, in), first = in->res + 1;
    const int n = end->nargs;
    const bool is_signed = dtype_is_signed((eas_dtype)ir_typeof(g->ir, a[0]).dtype);
    V lo = g->sval[a[0]], hi = g->sval[a[1]], st = g->sval[a[2]];
    V *init = uniform_values(g, first, a + 3, n);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), body = new_block(g, "body"), done = new_block(g, "done");
    if (g->st)
        return;
    LLVMBuildCondBr(g->b, loop_first(g, lo, hi, st, is_signed), body, done);
    LLVMPositionBuilderAtEnd(g->b, body);
    V iv = g->sval[in->res] = LLVMBuildPhi(g->b, LLVMTypeOf(lo), ""), *phi = make_phis(g, first, init, n, from);
    add_incoming(iv, lo, from);
    if (g->st)
        return;
    set_values(g, first, phi, n);
    emit_steps(g, s->body);
    V *next = uniform_values(g, first, ir_args(g->ir, end), n);
    if (g->st)
        return;
    V more = loop_next(g, iv, hi, st, is_signed), iv2 = LLVMBuildAdd(g->b, iv, st, "");
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    LLVMBuildCondBr(g->b, more, body, done);
    add_incoming(iv, iv2, back);
    join_phis(phi, next, n, back);
    LLVMPositionBuilderAtEnd(g->b, done);
    V *fin = make_phis(g, end->res, init, n, from);
    if (g->st)
        return;
    join_phis(fin, next, n, back);
    set_values(g, end->res, fin, n);
}

static void emit_while(gen *g, const step *s)
{
    const ir_insn *in = &g->ir->insns[s->insn], *end = &g->ir->insns[g->p.end[s->insn]];
    const int n = end->nargs;
    uint32_t d = s->insn + 1;
    while (g->ir->insns[d].op != IR_DO || g->p.parent[d] != s->insn)
        d++;
    V *init = uniform_values(g, in->res, ir_args(g->ir, in), n);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), head = new_block(g, "while"), body = new_block(g, "do"), done = new_block(g, "done");
    if (g->st)
        return;
    branch_to(g, head);
    LLVMPositionBuilderAtEnd(g->b, head);
    V *phi = make_phis(g, in->res, init, n, from);
    look l = look_begin(g, s->insn, from);
    if (g->st)
        return;
    set_values(g, in->res, phi, n);
    emit_steps(g, s->body);
    LLVMBuildCondBr(g->b, g->sval[ir_args(g->ir, &g->ir->insns[d])[0]], body, done);
    LLVMPositionBuilderAtEnd(g->b, body);
    emit_steps(g, s->other);
    V *next = uniform_values(g, in->res, ir_args(g->ir, end), n);
    if (g->st)
        return;
    look_end(g, &l);
    join_phis(phi, next, n, LLVMGetInsertBlock(g->b));
    branch_to(g, head);
    LLVMPositionBuilderAtEnd(g->b, done);
    set_values(g, end->res, phi, n);
}

static void emit_if(gen *g, const step *s)
{
    const ir_insn *in = &g->ir->insns[s->insn], *end = &g->ir->insns[g->p.end[s->insn]];
    uint32_t mid = s->insn + 1;
    while (mid < g->p.end[s->insn] && (g->ir->insns[mid].op != IR_ELSE || g->p.parent[mid] != s->insn))
        mid++;
    const uint32_t *tv = ir_args(g->ir, &g->ir->insns[mid]), *ev = ir_args(g->ir, end);
    LLVMBasicBlockRef yes = new_block(g, "then"), no = new_block(g, "else"), done = new_block(g, "endif");
    LLVMBuildCondBr(g->b, g->sval[ir_args(g->ir, in)[0]], yes, no);
    LLVMPositionBuilderAtEnd(g->b, yes);
    emit_steps(g, s->body);
    yes = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, no);
    emit_steps(g, s->other);
    no = LLVMGetInsertBlock(g->b);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (uint32_t k = 0; k < end->nres; k++) {
        if (!is_uni(g, end->res + k))
            continue;
        V phi = g->sval[end->res + k] = LLVMBuildPhi(g->b, ty_of(g, (eas_dtype)ir_typeof(g->ir, end->res + k).dtype, 0), "");
        add_incoming(phi, g->sval[tv[k]], yes);
        add_incoming(phi, g->sval[ev[k]], no);
    }
}

static void emit_steps(gen *g, const steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len && !g->st; i++) {
        const step *st = &s->v.at[i];
        if (st->kind == S_SCALAR)
            scalar_insn(g, st->insn);
        else if (st->kind == S_SEGMENT)
            seg_emit(g, st->seg);
        else if (g->ir->insns[st->insn].op == IR_IF)
            emit_if(g, st);
        else if (g->ir->insns[st->insn].op == IR_WHILE)
            emit_while(g, st);
        else
            emit_loop(g, st);
    }
}

/* ---- the function ---- */

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
            g->sval[g->ir->insns[i].res] = mem_slot(g, g->p.val[g->ir->insns[i].res].slot);
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

static void emit_function(gen *g)
{
    make_function(g);
    V first = LLVMGetParam(g->fn, 1), last = LLVMGetParam(g->fn, 2), start[3], gridv[3], next[3];
    const int axes = g->p.info.naxes;
    LLVMBasicBlockRef from, head = new_block(g, "program"), body = new_block(g, "run"), done = new_block(g, "end");
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
    emit_steps(g, g->p.top);
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

/* ---- target and emission ---- */

static LLVMTargetRef target;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Passes that have nothing to do for us: addresses are already what strength reduction would make of them, and so on. The options are
 * those of this module's own copy of LLVM. */
static void set_options(void)
{
    static const char *const argv[] = {
        "eas",
        "-disable-lsr",
        "-disable-mergeicmps",
        "-disable-constant-hoisting",
        "-disable-postra-machine-licm",
        "-disable-early-ifcvt",
        "-disable-select-optimize",
        "-disable-partial-libcall-inlining",
        "-disable-tail-duplicate",
#if !defined(__aarch64__)
        "-disable-cgp",
        "-x86-cmov-converter=false",
        "-disable-x86-domain-reassignment",
#endif
    };
    LLVMParseCommandLineOptions((int)(sizeof argv / sizeof *argv), argv, NULL);
}

static void init_target(void)
{
    char *err = NULL;
    set_options();
#if defined(__aarch64__)
    LLVMInitializeAArch64TargetInfo();
    LLVMInitializeAArch64Target();
    LLVMInitializeAArch64TargetMC();
    LLVMInitializeAArch64AsmPrinter();
#else
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
#endif
    if (LLVMGetTargetFromTriple(TRIPLE, &target, &err))
        target = NULL;
    LLVMDisposeMessage(err);
}

static bool has_feature(const char *features, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = features; (p = strstr(p, name)); p += n)
        if (p > features && p[-1] == '+' && (p[n] == 0 || p[n] == ','))
            return true;
    return false;
}

static void read_isa(gen *g)
{
    const char *f = g->opt->cpu_features ? g->opt->cpu_features : "";
#if defined(__aarch64__)
    (void)f;
    g->f16c = g->fma = true;
#else
    g->x86 = true;
    g->sse41 = has_feature(f, "sse4.1");
    g->f16c = has_feature(f, "f16c");
    g->fma = has_feature(f, "fma");
    g->avx2 = has_feature(f, "avx2");
    g->avx512 = has_feature(f, "avx512f") && has_feature(f, "avx512bw") && has_feature(f, "avx512vl") && has_feature(f, "avx512dq");
    const bool whole = g->avx512 && g->opt->vector_bytes == 64;
    g->bf16 = whole && has_feature(f, "avx512bf16");
    g->vnni = whole ? has_feature(f, "avx512vnni") : g->avx2 && g->opt->vector_bytes == 32 && has_feature(f, "avxvnni");
    g->amx = whole && has_feature(f, "amx-tile") && has_feature(f, "amx-bf16");
#endif
}

/* A name for as many features as possible: parsing a feature string is a large part of making a target machine. */
static const char *cpu_of(const gen *g, char *rest, size_t size)
{
    const char *f = g->opt->cpu_features ? g->opt->cpu_features : "";
#if !defined(__aarch64__)
    static const char *const v3[] = {"sse3", "ssse3", "cx16", "sse4.1", "sse4.2", "popcnt", "avx", "f16c", "fma", "bmi", "avx2", "bmi2", "lzcnt"};
    static const char *const v4[] = {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"};
    bool has3 = true, has4 = true;
    for (size_t i = 0; i < sizeof v3 / sizeof *v3; i++)
        has3 = has3 && has_feature(f, v3[i]);
    for (size_t i = 0; i < sizeof v4 / sizeof *v4; i++)
        has4 = has4 && has_feature(f, v4[i]);
    if (has3 && has4)
        snprintf(rest, size, "-prefer-256-bit%s%s%s", g->vnni ? ",+avx512vnni" : "", g->bf16 ? ",+avx512bf16" : "",
                 g->amx ? ",+amx-tile,+amx-bf16" : "");
    else
        snprintf(rest, size, "%s", has3 ? g->vnni ? "+avxvnni" : "" : f);
    return has3 && has4 ? "x86-64-v4" : has3 ? "x86-64-v3" : "x86-64";
#else
    snprintf(rest, size, "%s", f);
    return "generic";
#endif
}

/* ---- target machines are kept: making one costs as much as a small kernel ---- */

static struct kept {
    char features[512];
    LLVMTargetMachineRef tm;
} kept[4];
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static LLVMTargetMachineRef take_machine(const gen *g, const char *features)
{
    LLVMTargetMachineRef tm = NULL;
    char rest[512];
    pthread_mutex_lock(&kept_lock);
    for (size_t i = 0; i < sizeof kept / sizeof *kept && !tm; i++) {
        if (!kept[i].tm || strcmp(kept[i].features, features) != 0)
            continue;
        tm = kept[i].tm;
        kept[i].tm = NULL;
    }
    pthread_mutex_unlock(&kept_lock);
    if (tm)
        return tm;
    const char *cpu = cpu_of(g, rest, sizeof rest);
    return LLVMCreateTargetMachine(target, TRIPLE, cpu, rest, LLVMCodeGenLevelDefault, LLVMRelocPIC, LLVMCodeModelSmall);
}

static void give_machine(LLVMTargetMachineRef tm, const char *features)
{
    pthread_mutex_lock(&kept_lock);
    for (size_t i = 0; i < sizeof kept / sizeof *kept && tm && strlen(features) < sizeof kept->features; i++) {
        if (kept[i].tm)
            continue;
        kept[i].tm = tm;
        strcpy(kept[i].features, features);
        tm = NULL;
    }
    pthread_mutex_unlock(&kept_lock);
    if (tm)
        LLVMDisposeTargetMachine(tm);
}

static eas_status emit_object(gen *g, LLVMCodeGenFileType kind, LLVMMemoryBufferRef *out)
{
    char *err = NULL;
    const char *features = g->opt->cpu_features ? g->opt->cpu_features : "";
    pthread_once(&once, init_target);
    if (!target)
        return base_fail(EAS_ERR_INTERNAL, "LLVM has no target for this machine");
    LLVMTargetMachineRef tm = take_machine(g, features);
    if (!tm)
        return base_fail(EAS_ERR_INTERNAL, "LLVM has no target machine");
    LLVMTargetDataRef td = LLVMCreateTargetDataLayout(tm);
    LLVMSetModuleDataLayout(g->mod, td);
    LLVMDisposeTargetData(td);
    LLVMSetTarget(g->mod, TRIPLE);
    const LLVMBool bad = LLVMTargetMachineEmitToMemoryBuffer(tm, g->mod, kind, &err, out);
    give_machine(tm, features);
    if (!bad)
        return *out ? EAS_OK : base_fail_oom(1);
    const eas_status st = base_fail(EAS_ERR_INTERNAL, "LLVM: %s", err);
    LLVMDisposeMessage(err);
    return st;
}

#ifndef NDEBUG
static eas_status check_module(gen *g)
{
    char *err = NULL;
    eas_status st = EAS_OK;
    if (LLVMVerifyModule(g->mod, LLVMReturnStatusAction, &err))
        st = base_fail(EAS_ERR_INTERNAL, "LLVM: %s", err);
    LLVMDisposeMessage(err);
    return st;
}
#else
static eas_status check_module(gen *g)
{
    (void)g;
    return EAS_OK;
}
#endif

static eas_status make_text(gen *g, char **text)
{
    if (strcmp(g->opt->text, "llvm") == 0) {
        char *s = LLVMPrintModuleToString(g->mod);
        *text = s ? strdup(s) : NULL;
        LLVMDisposeMessage(s);
        return *text ? EAS_OK : base_fail_oom(1);
    }
    LLVMMemoryBufferRef buf;
    const eas_status st = emit_object(g, LLVMAssemblyFile, &buf);
    if (st)
        return st;
    *text = strndup(LLVMGetBufferStart(buf), LLVMGetBufferSize(buf));
    LLVMDisposeMemoryBuffer(buf);
    return *text ? EAS_OK : base_fail_oom(1);
}

static eas_status make_object(gen *g, gen_image *image)
{
    LLVMMemoryBufferRef buf;
    const eas_status st = emit_object(g, LLVMObjectFile, &buf);
    if (st)
        return st;
    image->size = LLVMGetBufferSize(buf);
    image->bytes = malloc(image->size);
    if (image->bytes)
        memcpy(image->bytes, LLVMGetBufferStart(buf), image->size);
    LLVMDisposeMemoryBuffer(buf);
    return image->bytes ? EAS_OK : base_fail_oom(image->size);
}

static eas_status make_image(gen *g, gen_image *image)
{
    LLVMMemoryBufferRef buf;
    eas_status st = emit_object(g, LLVMObjectFile, &buf);
    if (st)
        return st;
    st = gen_link_elf((const uint8_t *)LLVMGetBufferStart(buf), LLVMGetBufferSize(buf), "kernel", image);
    LLVMDisposeMemoryBuffer(buf);
    image->scratch = g->p.scratch;
    image->alias_sensitive = g->p.alias_sensitive;
    return st;
}

static eas_status generate(gen *g)
{
    eas_status st = bf16_factors(g);
    if (!st)
        st = bytes_factors(g);
    if (!st)
        st = plan_make(&g->p);
    if (st)
        return st;
    bf16_reserve(g);
    bytes_reserve(g);
    g->sval = arena_alloc(&g->mem, sizeof *g->sval * (g->ir->nvals + 1));
    g->homes = arena_alloc(&g->mem, sizeof *g->homes * (g->ir->nvals + 1));
    g->frags = arena_alloc(&g->mem, sizeof *g->frags * (g->ir->nvals + 1));
    g->chains = arena_alloc(&g->mem, sizeof *g->chains * (g->ir->nvals + 1));
    if (!g->sval || !g->homes || !g->frags || !g->chains)
        return base_fail_oom(sizeof *g->sval * g->ir->nvals);
    emit_function(g);
    return g->st ? g->st : check_module(g);
}

typedef struct task {
    gen *g;
    gen_image *image;
    char **text;
    eas_status st;
} task;

static void with_llvm(void *ctx)
{
    task *t = ctx;
    gen *g = t->g;
    const char *form = g->opt->text;
    g->cx = LLVMContextCreate();
    g->mod = LLVMModuleCreateWithNameInContext("eas", g->cx);
    g->b = LLVMCreateBuilderInContext(g->cx);
    t->st = generate(g);
    if (!t->st)
        t->st = !form ? make_image(g, t->image) : strcmp(form, "obj") ? make_text(g, t->text) : make_object(g, t->image);
    LLVMDisposeBuilder(g->b);
    LLVMDisposeModule(g->mod);
    LLVMContextDispose(g->cx);
}

static eas_status gave_up(const char *why)
{
    return *why ? base_fail(EAS_ERR_INTERNAL, "LLVM: %s", why) : base_fail(EAS_ERR_MEMORY, "the compiler ran out of memory");
}

static eas_status compile(const eas_ir *ir, const gen_options *opt, gen_image *image, char **text)
{
    char why[512];
    gen g = {.ir = ir, .opt = opt};
    g.p = (plan){.ir = ir, .mem = &g.mem, .alias = opt->alias != 0};
    task t = {&g, image, text, EAS_OK};
    read_isa(&g);
    if (!llvm_guarded(with_llvm, &t, why, sizeof why)) {
        if (image) {
            free(image->bytes);
            image->bytes = NULL;
        }
        t.st = gave_up(why);
    }
    plan_free(&g.p);
    arena_free(&g.mem);
    return t.st;
}

/* The module has its own copy of base, so the message of a failure is handed over, malloc'ed. */
EAS_API gen_llvm_compile eas_llvm_compile;
EAS_API eas_status eas_llvm_compile(const eas_ir *ir, const gen_options *opt, gen_image *image, char **text, char **error)
{
    if (image)
        memset(image, 0, sizeof *image);
    const bool other = opt->build && strcmp(opt->build, eas_build_id());
    const eas_status st = other ? base_fail(EAS_ERR_UNAVAILABLE, "libeas-llvm is of another build than libeas") : compile(ir, opt, image, text);
    if (st && error)
        *error = strdup(eas_error_message());
    return st;
}
