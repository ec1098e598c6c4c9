/* msl.c: the Metal Shading Language.
 *
 * Buffers and scalars are bound in the order of the parameters, as long as there are not too many (see
 * gen.h). A kernel with `bounds` has two more: eas_fault and eas_count. Runtimes compile with fast math off:
 * division and sqrt are then correctly rounded.
 */
#include "ctext.h"

#include <stdio.h>

static const char *identity(ct *g, const ir_insn *in)
{
    static const char axis[] = "xyz";
    switch (in->op) {
    case IR_PROGRAM_ID: return ct_fmt(g, "pid.%c", axis[in->imm]);
    case IR_NUM_PROGRAMS: return ct_fmt(g, "npid.%c", axis[in->imm]);
    case IR_LOCAL_ID: return ct_fmt(g, "tid.%c", axis[in->imm]);
    case IR_THREAD_ID: return "tid.x";
    case IR_GLOBAL_ID: return "gid.x";
    case IR_LANE_ID: return "lane";
    default: return "sg";
    }
}

static const char *load(ct *g, uint32_t buf, const char *off)
{
    return ct_fmt(g, "%s[%s]", ct_name(g, buf), off);
}

static void store(ct *g, const char *guard, uint32_t buf, const char *off, const char *value)
{
    ct_line(g, "%s%s[%s] = %s;", guard, ct_name(g, buf), off, value);
}

static const char *space(const ct *g, uint32_t buf)
{
    return ir_typeof(g->ir, buf).kind == IR_TG ? "threadgroup"
         : ct_msl_coherent(g, buf)             ? "coherent(device) device"
                                               : "device";
}

static const char *load4(ct *g, uint32_t buf, const char *off)
{
    bool half = ir_typeof(g->ir, buf).dtype == EAS_F16;
    return ct_fmt(g,
                  half ? "float4(half4(*(%s const packed_half4*)(%s + (%s))))"
                       : "float4(*(%s const packed_float4*)(%s + (%s)))",
                  space(g, buf), ct_name(g, buf), off);
}

/* Arrays of floats are not aligned as vectors are, so these go element by element; compilers see through
 * that. */
enum { LANES = 4 };

static const char *vec_of(ct *g, const char *type, int n, const char *const *x)
{
    return (void)n, ct_fmt(g, "%s4(%s, %s, %s, %s)", type, x[0], x[1], x[2], x[3]);
}

static const char *vec_load(ct *g, const char *type, int n, const char *array, const char *at)
{
    (void)n;
    return ct_fmt(g, "%s4(%s[%s], %s[%s + 1u], %s[%s + 2u], %s[%s + 3u])", type, array, at, array, at, array,
                  at, array, at);
}

static const char *vec_splat(ct *g, const char *type, int n, const char *x)
{
    return (void)n, ct_fmt(g, "%s4(%s)", type, x);
}

static void vec_store(ct *g, int n, const char *array, const char *at, const char *x)
{
    (void)n;
    ct_line(g, "%s[%s] = %s.x;", array, at, x);
    for (int l = 1; l < LANES; l++)
        ct_line(g, "%s[%s + %du] = %s.%c;", array, at, l, x, "xyzw"[l]);
}

static const char *round_half(ct *g, eas_dtype dt, const char *x)
{
    return ct_fmt(g, "(%s)%s", dt == EAS_F16 ? "half" : "bfloat", x);
}

static const char *sat(ct *g, eas_dtype from, eas_dtype to, const char *x)
{
    (void)from;
    ct_need(g, CT_SAT + (int)to);
    return ct_fmt(g, "eas_to_%s(%s)", eas_dtype_name(to), x);
}

static const char *bitcast(ct *g, eas_dtype from, eas_dtype to, const char *x)
{
    (void)from;
    return ct_fmt(g, "as_type<%s>(%s)", g->d->type[to], x);
}

static const char *bits(ct *g, eas_dtype dt, uint64_t b)
{
    (void)dt;
    return ct_fmt(g, "as_type<float>(0x%08xu)", (unsigned)b);
}

/* ---- simdgroup matrices ---- */

static const char *matrix_of(const ct *g, uint32_t buf)
{
    return ir_typeof(g->ir, buf).dtype == EAS_F16 ? "simdgroup_half8x8" : "simdgroup_float8x8";
}

static void mma_zero(ct *g, const char *r)
{
    ct_need(g, CT_MMA);
    ct_line(g, "simdgroup_float8x8 %s = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);", r);
}

static void load_matrix(ct *g, const char *name, const uint32_t *a)
{
    ct_line(g, "%s %s;", matrix_of(g, a[0]), name);
    ct_line(g, "simdgroup_load(%s, %s + %s, %s);", name, ct_name(g, a[0]), ct_ref(g, a[1], NULL),
            ct_ref(g, a[2], NULL));
}

static void mma(ct *g, const char *r, const uint32_t *a)
{
    const char *x = ct_fmt(g, "%s_a", r), *y = ct_fmt(g, "%s_b", r);
    ct_need(g, CT_MMA);
    load_matrix(g, x, a);
    load_matrix(g, y, a + 3);
    ct_line(g, "simdgroup_float8x8 %s;", r);
    ct_line(g, "simdgroup_multiply_accumulate(%s, %s, %s, %s);", r, x, y, ct_ref(g, a[6], NULL));
}

static void mma_store(ct *g, const uint32_t *a)
{
    const char *m = ct_ref(g, a[3], NULL);
    bool half = ir_typeof(g->ir, a[0]).dtype == EAS_F16;
    ct_need(g, CT_MMA);
    if (half) {
        ct_line(g, "{");
        ct_line(g, "    simdgroup_half8x8 eas_h;");
        for (int e = 0; e < 2; e++)
            ct_line(g, "    eas_h.thread_elements()[%d] = (half)%s.thread_elements()[%d];", e, m, e);
    }
    ct_line(g, "%ssimdgroup_store(%s, %s + %s, %s);", half ? "    " : "", half ? "eas_h" : m,
            ct_name(g, a[0]), ct_ref(g, a[1], NULL), ct_ref(g, a[2], NULL));
    if (half)
        ct_line(g, "}");
}

/* ---- shuffles: of numbers of at most 32 bits; wider ones go in halves ---- */

static const char *shuffle_one(ct *g, const ir_insn *in, const char *x, const char *lane)
{
    int64_t c;
    if (ir_shuffle_xor(g->ir, in, &c))
        return ct_fmt(g, "simd_shuffle_xor(%s, (ushort)%d)", x, (int)c);
    return ct_fmt(g, "simd_shuffle(%s, (ushort)(%s & 31))", x, lane);
}

static const char *shuffle(ct *g, const ir_insn *in, const char *x, const char *lane)
{
    eas_dtype dt = ir_typeof(g->ir, in->res).dtype;
    const char *T = g->d->type[dt];
    if (dt == EAS_BOOL)
        return ct_fmt(g, "(%s != 0u)", shuffle_one(g, in, ct_fmt(g, "(uint)%s", x), lane));
    if (dt == EAS_BF16)
        return ct_fmt(g, "as_type<bfloat>(%s)",
                      shuffle_one(g, in, ct_fmt(g, "as_type<ushort>(%s)", x), lane));
    if (dtype_bits(dt) < 64)
        return shuffle_one(g, in, x, lane);
    const char *low = shuffle_one(g, in, ct_fmt(g, "(uint)%s", x), lane),
               *high = shuffle_one(g, in, ct_fmt(g, "(uint)((ulong)%s >> 32)", x), lane);
    return ct_fmt(g, "(%s)((ulong)%s | (ulong)%s << 32)", T, low, high);
}

/* ---- atomics: on integers the language has them; on floats a loop that compares bits ---- */

static const char *atomic(ct *g, uint16_t op, uint32_t buf, const char *off, const char *x, const char *y)
{
    eas_dtype dt = ir_typeof(g->ir, buf).dtype;
    if (ct_is_half(g, buf))
        return ct_msl_half(g, op, buf, off, x, y);
    bool bits = dt == EAS_F32 || op == IR_ATOMIC_CAS;
    const char *at = ct_fmt(g, "(%s atomic_%s*)&%s[%s]", space(g, buf), bits ? "uint" : g->d->type[dt],
                            ct_name(g, buf), off);
    const char *name = ir_rows[op].name + strlen("atomic_"), *call;
    if (dt == EAS_F32 && ct_float_atomic(op) >= 0) {
        ct_need(g, CT_ATOMIC + 2 * ct_float_atomic(op));
        return ct_fmt(g, "eas_%s(%s, %s)", ir_rows[op].name, at, x);
    }
    if (bits && dt != EAS_U32 && x) {
        x = ct_fmt(g, "as_type<uint>(%s)", x);
        y = y ? ct_fmt(g, "as_type<uint>(%s)", y) : NULL;
    }
    if (op == IR_ATOMIC_CAS) {
        ct_need(g, CT_CAS);
        call = ct_fmt(g, "eas_atomic_cas(%s, %s, %s)", at, x, y);
    } else if (op == IR_ATOMIC_LOAD) {
        call = ct_fmt(g, "atomic_load_explicit(%s, memory_order_relaxed)", at);
    } else if (op == IR_ATOMIC_XCHG) {
        call = ct_fmt(g, "atomic_exchange_explicit(%s, %s, memory_order_relaxed)", at, x);
    } else {
        call = ct_fmt(g, "atomic_fetch_%s_explicit(%s, %s, memory_order_relaxed)", name, at, x);
    }
    return bits && dt != EAS_U32 ? ct_fmt(g, "as_type<%s>(%s)", g->d->type[dt], call) : call;
}

static void barrier(ct *g)
{
    if (g->device_barrier)
        ct_line(g, "threadgroup_barrier(mem_flags::mem_device);");
    ct_line(g, "threadgroup_barrier(mem_flags::mem_threadgroup);");
}

/* ---- the head ---- */

static const char bounds[] =
    "void eas_failed(device atomic_int* fault, long off, int insn, uint3 pid, uint thread_)\n"
    "{\n"
    "    int seen = 0;\n"
    "    while (seen == 0) {\n"
    "        if (!atomic_compare_exchange_weak_explicit(&fault[0], &seen, 1, memory_order_relaxed, "
    "memory_order_relaxed)) continue;\n"
    "        atomic_store_explicit(&fault[1], insn, memory_order_relaxed);\n"
    "        atomic_store_explicit(&fault[2], (int)(uint)off, memory_order_relaxed);\n"
    "        atomic_store_explicit(&fault[3], (int)(off >> 32), memory_order_relaxed);\n"
    "        atomic_store_explicit(&fault[4], (int)pid.x, memory_order_relaxed);\n"
    "        atomic_store_explicit(&fault[5], (int)pid.y, memory_order_relaxed);\n"
    "        atomic_store_explicit(&fault[6], (int)pid.z, memory_order_relaxed);\n"
    "        atomic_store_explicit(&fault[7], (int)thread_, memory_order_relaxed);\n"
    "        break;\n"
    "    }\n"
    "}\n"
    "\n"
    "bool eas_in_bounds(device atomic_int* fault, long count, long off, int insn, uint3 pid, uint thread_)\n"
    "{\n"
    "    if (off >= 0 && off < count) return true;\n"
    "    eas_failed(fault, off, insn, pid, thread_);\n"
    "    return false;\n"
    "}\n"
    "\n";

/* The language's compare-and-exchange may fail spuriously, even if the values are equal: this one does not.
 */
static const char cas[] = "template <typename P> uint eas_atomic_cas(P p, uint want, uint x)\n"
                          "{\n"
                          "    uint seen = want;\n"
                          "    while (!atomic_compare_exchange_weak_explicit(p, &seen, x, "
                          "memory_order_relaxed, memory_order_relaxed) && seen == want) {\n"
                          "    }\n"
                          "    return seen;\n"
                          "}\n"
                          "\n";

static void float_atomic(str *s, uint16_t op)
{
    str_add(s,
            "template <typename P> float eas_%s(P p, float b)\n"
            "{\n"
            "    uint seen = atomic_load_explicit(p, memory_order_relaxed);\n"
            "    while (true) {\n"
            "        float a = as_type<float>(seen);\n"
            "        uint next = as_type<uint>(%s);\n"
            "        if (atomic_compare_exchange_weak_explicit(p, &seen, next, memory_order_relaxed, "
            "memory_order_relaxed)) return a;\n"
            "    }\n"
            "}\n"
            "\n",
            ir_rows[op].name, ir_rows[ir_atomic_op(op)].fl);
}

static void sat_helper(ct *g, str *s, eas_dtype dt)
{
    int width = dtype_bits(dt) - dtype_is_signed(dt);
    const char *T = g->d->type[dt], *hi = ct_literal(g, dt, (int64_t)dtype_max(dt));
    const char *lo = dtype_is_signed(dt) ? ct_literal(g, dt, dtype_min(dt)) : "0";
    const char *top =
        ct_literal(g, EAS_F32, ir_bits_from_double(EAS_F32, (double)((uint64_t)1 << (width - 1)) * 2));
    str_add(s, "%s eas_to_%s(float x)\n{\n", T, eas_dtype_name(dt));
    str_add(s, "    return x != x ? (%s)0 : x <= %s%s ? (%s)%s : x >= %s ? (%s)%s : (%s)x;\n}\n\n", T,
            dtype_is_signed(dt) ? "-" : "", dtype_is_signed(dt) ? top : "0.0f", T, lo, top, T, hi, T);
}

static void helpers(ct *g, str *s)
{
    for (int dt = 0; dt < EAS_NDTYPES; dt++)
        if (ct_needs(g, CT_SAT + dt))
            sat_helper(g, s, (eas_dtype)dt);
    if (ct_needs(g, CT_ODD))
        str_add(s, "%s", ct_odd_text);
    ct_msl_atomics(g, s);
    if (ct_needs(g, CT_CAS))
        str_add(s, "%s", cas);
    for (int i = 0; i < CT_NFLOAT_ATOMICS; i++)
        if (ct_needs(g, CT_ATOMIC + 2 * i))
            float_atomic(s, ct_float_atomics[i]);
    if (ct_needs(g, CT_BOUNDS))
        str_add(s, "%s", bounds);
}

static bool is_buffer(const eas_ir *ir, int i) { return ir_typeof(ir, (uint32_t)i + 1).kind == IR_BUF; }

static void pack_scalars(const eas_ir *ir, gen_msl_layout *l)
{
    unsigned at = 0, widest = 1;
    for (int i = 0, n = 0; i < ir->nparams; i++) {
        unsigned size = (unsigned)eas_dtype_size(gen_ctext_scalar(ir, i));
        if (is_buffer(ir, i)) {
            l->index[i] = (uint16_t)n++;
            continue;
        }
        at = (at + size - 1) / size * size;
        l->index[i] = (uint16_t)at;
        at += size;
        widest = size > widest ? size : widest;
    }
    l->pack_bytes = (uint16_t)((at + widest - 1) / widest * widest);
}

eas_status gen_msl_layout_of(const eas_ir *ir, gen_msl_layout *out)
{
    int n = ir->nparams, extra = ir_faults(ir) ? 2 : 0, buffers = 0;
    *out = (gen_msl_layout){.packed = n + extra > GEN_MSL_BUFFERS};
    for (int i = 0; i < n; i++) {
        out->index[i] = (uint16_t)i;
        buffers += is_buffer(ir, i);
    }
    if (out->packed) {
        pack_scalars(ir, out);
        out->pack = (uint16_t)buffers;
        n = buffers + (out->pack_bytes != 0);
    }
    out->fault = (uint16_t)n;
    out->count = (uint16_t)(n + 1);
    if (n + extra <= GEN_MSL_BUFFERS)
        return EAS_OK;
    return base_fail(EAS_ERR_VALUE,
                     "kernel %s: Metal binds %d buffers; this takes %d: %d buffer arguments%s%s", ir->name,
                     (int)GEN_MSL_BUFFERS, n + extra, buffers, out->pack_bytes ? ", one for all scalars" : "",
                     extra ? ", two for bounds checks" : "");
}

static void param(ct *g, str *s, const gen_msl_layout *l, int i)
{
    uint32_t v = (uint32_t)i + 1;
    const ir_param *p = &g->ir->params[i];
    const char *T = g->d->mem[g->param_dtype[i]], *name = ct_name(g, v);
    if (ir_typeof(g->ir, v).kind == IR_BUF)
        str_add(s, "    %s %s%s*%s %s [[buffer(%d)]],\n", space(g, v), p->write || p->atomic ? "" : "const ",
                T, g->flags & GEN_ALIAS ? "" : " __restrict", name, l->index[i]);
    else if (!l->packed)
        str_add(s, "    constant %s& %s [[buffer(%d)]],\n", T, name, l->index[i]);
}

/* Scalars that do not fit one by one: the structure, and their names at the start of the body. */
static void packed_scalars(ct *g, str *s, const gen_msl_layout *l, const char *line)
{
    for (int i = 0; i < g->ir->nparams && l->packed; i++)
        if (!is_buffer(g->ir, i))
            str_add(s, line, g->d->mem[g->param_dtype[i]], ct_name(g, (uint32_t)i + 1),
                    ct_name(g, (uint32_t)i + 1));
}

static void head(ct *g, str *s)
{
    static const char *const attr[2][CT_NIDENTS] = {
        {"uint3 pid [[thread_position_in_grid]]", "uint3 npid [[threads_per_grid]]",
         "uint3 tid [[thread_position_in_threadgroup]]", "uint3 gid [[thread_position_in_grid]]",
         "uint lane [[thread_index_in_simdgroup]]", "uint sg [[simdgroup_index_in_threadgroup]]"},
        {"uint3 pid [[threadgroup_position_in_grid]]", "uint3 npid [[threadgroups_per_grid]]",
         "uint3 tid [[thread_position_in_threadgroup]]", "uint3 gid [[thread_position_in_grid]]",
         "uint lane [[thread_index_in_simdgroup]]", "uint sg [[simdgroup_index_in_threadgroup]]"},
    };
    str_add(s, "#include <metal_stdlib>\n");
    if (ct_needs(g, CT_MMA))
        str_add(s, "#include <metal_simdgroup_matrix>\n");
    str_add(s, "using namespace metal;\n#pragma METAL fp contract(off)\n\n");
    helpers(g, s);
    gen_msl_layout l;
    gen_msl_layout_of(g->ir, &l); /* check() has refused what does not fit */
    if (l.pack_bytes) {
        str_add(s, "struct eas_scalars\n{\n");
        packed_scalars(g, s, &l, "    %s %s;\n");
        str_add(s, "};\n\n");
    }
    str_add(s, "kernel void %s(\n", g->kernel_name);
    for (int i = 0; i < g->ir->nparams; i++)
        param(g, s, &l, i);
    if (l.pack_bytes)
        str_add(s, "    constant eas_scalars& eas_packed [[buffer(%d)]],\n", l.pack);
    if (g->has_bounds)
        str_add(s,
                "    device atomic_int* eas_fault [[buffer(%d)]],\n    constant long* eas_count "
                "[[buffer(%d)]],\n",
                l.fault, l.count);
    for (int i = 0; i < CT_NIDENTS; i++)
        if (g->idents >> i & 1)
            str_add(s, "    %s,\n", attr[g->thread_mode][i]);
    if (s->len >= 2 && s->at[s->len - 2] == ',')
        s->at[s->len -= 2] = 0;
    str_add(s, ")\n{\n");
    packed_scalars(g, s, &l, "    constant %s& %s = eas_packed.%s;\n");
}

/* ---- what Metal cannot say ---- */

static bool is_double(const ct *g, uint32_t v)
{
    ir_type t = ir_typeof(g->ir, v);
    return t.kind != IR_FRAG && t.dtype == EAS_F64 &&
           !(v <= (uint32_t)g->ir->nparams && g->param_dtype[v - 1] != EAS_F64);
}

static eas_status wide_atomic(const eas_ir *ir, uint32_t i)
{
    const ir_insn *in = &ir->insns[i];
    char where[320] = "";
    if (in->file)
        snprintf(where, sizeof where, "%s:%u: ", ir->files[in->file], (unsigned)in->line);
    return base_fail(EAS_ERR_TYPE, "%skernel %s: Metal has no 64-bit atomics; `%s` works on %s here", where,
                     ir->name, ir_rows[in->op].name, eas_dtype_name(ir_typeof(ir, ir_args(ir, in)[0]).dtype));
}

static eas_status check(ct *g)
{
    const eas_ir *ir = g->ir;
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir_is_atomic(&ir->insns[i]) &&
            dtype_bits(ir_typeof(ir, ir_args(ir, &ir->insns[i])[0]).dtype) == 64 &&
            ir_typeof(ir, ir_args(ir, &ir->insns[i])[0]).dtype != EAS_F64)
            return wide_atomic(ir, i);
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        bool bad = false;
        for (int k = 0; k < in->nargs; k++)
            bad |= is_double(g, ir_args(ir, in)[k]);
        for (uint32_t r = 0; r < in->nres; r++)
            bad |= is_double(g, in->res + r);
        if (!bad)
            continue;
        if (in->file)
            return base_fail(EAS_ERR_TYPE, "%s:%u: kernel %s: Metal has no double; `%s` uses f64 here",
                             ir->files[in->file], in->line, ir->name, ir_rows[in->op].name);
        return base_fail(EAS_ERR_TYPE, "kernel %s: Metal has no double; instruction %u (`%s`) uses f64",
                         ir->name, i, ir_rows[in->op].name);
    }
    for (int i = 0; i < ir->nparams; i++)
        if (is_double(g, (uint32_t)i + 1))
            return base_fail(EAS_ERR_TYPE, "kernel %s: Metal has no double; argument \"%s\" is f64", ir->name,
                             ir->params[i].name);
    gen_msl_layout l;
    return gen_msl_layout_of(ir, &l);
}

#define TYPES \
    {[EAS_BOOL] = "bool", [EAS_I8] = "char",  [EAS_I16] = "short",   [EAS_I32] = "int", \
     [EAS_I64] = "long",  [EAS_U8] = "uchar", [EAS_U16] = "ushort",  [EAS_U32] = "uint", \
     [EAS_U64] = "ulong", [EAS_F16] = "half", [EAS_BF16] = "bfloat", [EAS_F32] = "float", \
     [EAS_F64] = "double"}

const ct_dialect ct_msl = {
    .type = TYPES,
    .mem = TYPES,
    .space_local = "threadgroup",
    .ident = {"pid", "npid", "tid", "gid", "lane", "sg"},
    .check = check,
    .head = head,
    .identity = identity,
    .load = load,
    .store = store,
    .load4 = load4,
    .load4_needs_alignment = true,
    .vec = LANES,
    .vec_of = vec_of,
    .vec_load = vec_load,
    .vec_splat = vec_splat,
    .vec_store = vec_store,
    .round = round_half,
    .from_f64 = round_half,
    .sat = sat,
    .bitcast = bitcast,
    .bits = bits,
    .frag = "simdgroup_float8x8",
    .mma_zero = mma_zero,
    .mma = mma,
    .mma_store = mma_store,
    .barrier = barrier,
    .fence = ct_msl_fence,
    .shuffle = shuffle,
    .atomic = atomic,
    .bounds = "eas_in_bounds(eas_fault, %s, (long)%s, %u, pid, %s)",
    .failed = "eas_failed(eas_fault, (long)(%s), %u, pid, 0u)",
};
