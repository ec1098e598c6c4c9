/* opencl.c: OpenCL C 1.2.
 *
 * Without cl_khr_fp16 there is no half arithmetic, so f16 and bf16 variables are float and every operation
 * rounds through a helper; memory holds half (read by vload_half) or ushort. Scalars of those dtypes are
 * handed over as float, bool as uchar. A simdgroup is 32 neighbouring work-items; each holds two elements of
 * an 8x8 matrix: row lane/4, columns 2*(lane%4) and the next. Runtimes build with
 * -cl-fp32-correctly-rounded-divide-sqrt where the device has it.
 */
#include "ctext.h"

static const char *identity(ct *g, const ir_insn *in)
{
    const char *program = g->thread_mode ? "get_group_id" : "get_global_id",
               *programs = g->thread_mode ? "get_num_groups" : "get_global_size";
    int axis = (int)in->imm;
    switch (in->op) {
    case IR_PROGRAM_ID: return ct_fmt(g, "(uint)%s(%d)", program, axis);
    case IR_NUM_PROGRAMS: return ct_fmt(g, "(uint)%s(%d)", programs, axis);
    case IR_LOCAL_ID: return ct_fmt(g, g->thread_mode ? "(uint)get_local_id(%d)" : "(uint)0", axis);
    case IR_THREAD_ID: return "(uint)get_local_id(0)";
    case IR_GLOBAL_ID: return "(uint)get_global_id(0)";
    case IR_LANE_ID: return g->thread_mode ? "((uint)get_local_id(0) & 31u)" : "0u";
    default: return g->thread_mode ? "((uint)get_local_id(0) >> 5)" : "0u";
    }
}

/* ---- vectors of floats ---- */

enum { LANES = 8 };

static const char *vec_of(ct *g, const char *type, int n, const char *const *x)
{
    const char *r = ct_fmt(g, "(%s%d)(%s", type, n, x[0]);
    for (int l = 1; l < n; l++)
        r = ct_fmt(g, "%s, %s", r, x[l]);
    return ct_fmt(g, "%s)", r);
}

static const char *vec_load(ct *g, const char *type, int n, const char *array, const char *at)
{
    (void)type;
    return ct_fmt(g, "vload%d(0, %s + (%s))", n, array, at);
}

static const char *vec_splat(ct *g, const char *type, int n, const char *x)
{
    return ct_fmt(g, "(%s%d)(%s)", type, n, x);
}

static void vec_store(ct *g, int n, const char *array, const char *at, const char *x)
{
    ct_line(g, "vstore%d(%s, 0, %s + (%s));", n, x, array, at);
}

/* ---- memory ---- */

/* The buffer as a pointer to half: threadgroup arrays cannot be declared as half. */
static const char *half_pointer(ct *g, uint32_t buf, bool write)
{
    bool local = ir_typeof(g->ir, buf).kind == IR_TG;
    return !local ? ct_name(g, buf)
                  : ct_fmt(g, "(__local %shalf*)%s", write ? "" : "const ", ct_name(g, buf));
}

static const char *load(ct *g, uint32_t buf, const char *off)
{
    const char *name = ct_name(g, buf);
    switch (ir_typeof(g->ir, buf).dtype) {
    case EAS_F16: return ct_fmt(g, "vload_half(%s, %s)", off, half_pointer(g, buf, false));
    case EAS_BF16: ct_need(g, CT_BF16); return ct_fmt(g, "eas_bf16_value(%s[%s])", name, off);
    case EAS_BOOL: return ct_fmt(g, "(%s[%s] != 0)", name, off);
    default: return ct_fmt(g, "%s[%s]", name, off);
    }
}

static void store(ct *g, const char *guard, uint32_t buf, const char *off, const char *value)
{
    const char *name = ct_name(g, buf);
    switch (ir_typeof(g->ir, buf).dtype) {
    case EAS_F16:
        ct_line(g, "%svstore_half_rte(%s, %s, %s);", guard, value, off, half_pointer(g, buf, true));
        return;
    case EAS_BF16:
        ct_need(g, CT_BF16);
        ct_line(g, "%s%s[%s] = eas_bf16_bits(%s);", guard, name, off, value);
        return;
    default: ct_line(g, "%s%s[%s] = %s;", guard, name, off, value);
    }
}

static const char *load4(ct *g, uint32_t buf, const char *off)
{
    if (ir_typeof(g->ir, buf).dtype == EAS_F16)
        return ct_fmt(g, "vload_half4(0, %s + (%s))", half_pointer(g, buf, false), off);
    return ct_fmt(g, "vload4(0, %s + (%s))", ct_name(g, buf), off);
}

/* ---- conversions ---- */

static const char *round_half(ct *g, eas_dtype dt, const char *x)
{
    ct_need(g, dt == EAS_F16 ? CT_F16 : CT_BF16);
    return ct_fmt(g,
                  x[0] == '(' && x[strlen(x) - 1] == ')' && !strchr(x + 1, '(') ? "eas_round_%s%s"
                                                                                : "eas_round_%s(%s)",
                  eas_dtype_name(dt), x);
}

static const char *from_f64(ct *g, eas_dtype dt, const char *x)
{
    ct_need(g, dt == EAS_F16 ? CT_F64_F16 : CT_F64_BF16);
    if (dt == EAS_BF16)
        ct_need(g, CT_BF16);
    return ct_fmt(g, "eas_f64_to_%s(%s)", eas_dtype_name(dt), x);
}

static const char *sat(ct *g, eas_dtype from, eas_dtype to, const char *x)
{
    (void)from;
    return ct_fmt(g, "convert_%s_sat_rtz(%s)", g->d->type[to], x);
}

static bool is_half(eas_dtype dt) { return dt == EAS_F16 || dt == EAS_BF16; }

static const char *bitcast(ct *g, eas_dtype from, eas_dtype to, const char *x)
{
    if (is_half(from)) {
        ct_need(g, from == EAS_F16 ? CT_F16 : CT_BF16);
        x = ct_fmt(g, "eas_%s_bits(%s)", eas_dtype_name(from), x);
    }
    if (is_half(to)) {
        ct_need(g, to == EAS_F16 ? CT_F16 : CT_BF16);
        return ct_fmt(g, "eas_%s_value(as_ushort(%s))", eas_dtype_name(to), x);
    }
    return ct_fmt(g, "as_%s(%s)", g->d->type[to], x);
}

static const char *bits(ct *g, eas_dtype dt, uint64_t b)
{
    return dt == EAS_F64 ? ct_fmt(g, "as_double(0x%016llxul)", (unsigned long long)b)
                         : ct_fmt(g, "as_float(0x%08xu)", (unsigned)b);
}

/* ---- simdgroup matrices: a float2 per work-item ---- */

static void mma_zero(ct *g, const char *r) { ct_line(g, "float2 %s = (float2)(0.0f, 0.0f);", r); }

static const char *element(ct *g, uint32_t buf, uint32_t base, uint32_t stride, const char *row,
                           const char *col)
{
    return load(g, buf,
                ct_fmt(g, "%s + %s * %s + %s", ct_ref(g, base, NULL), row, ct_ref(g, stride, NULL), col));
}

static void open_matrix(ct *g, const char *r, const char **row, const char **col)
{
    *row = ct_fmt(g, "%s_row", r);
    *col = ct_fmt(g, "%s_col", r);
    ct_line(g, "uint %s = ((uint)get_local_id(0) & 31u) / 4u, %s = ((uint)get_local_id(0) & 3u) * 2u;", *row,
            *col);
}

static void mma(ct *g, const char *r, const uint32_t *a)
{
    const char *row, *col;
    ct_line(g, "float2 %s = %s;", r, ct_ref(g, a[6], NULL));
    ct_line(g, "for (uint eas_k = 0; eas_k < 8u; ++eas_k) {");
    g->indent++;
    open_matrix(g, r, &row, &col);
    ct_line(g, "float %s_a = %s;", r, element(g, a[0], a[1], a[2], row, "eas_k"));
    ct_line(g, "%s.x = fma(%s_a, %s, %s.x);", r, r, element(g, a[3], a[4], a[5], "eas_k", col), r);
    ct_line(g, "%s.y = fma(%s_a, %s, %s.y);", r, r,
            element(g, a[3], a[4], a[5], "eas_k", ct_fmt(g, "%s + 1u", col)), r);
    g->indent--;
    ct_line(g, "}");
}

static void mma_store(ct *g, const uint32_t *a)
{
    const char *m = ct_ref(g, a[3], NULL), *row, *col;
    ct_line(g, "{");
    g->indent++;
    open_matrix(g, m, &row, &col);
    const char *at = ct_fmt(g, "%s + %s * %s + %s", ct_ref(g, a[1], NULL), row, ct_ref(g, a[2], NULL), col);
    store(g, "", a[0], at, ct_fmt(g, "%s.x", m));
    store(g, "", a[0], ct_fmt(g, "%s + 1u", at), ct_fmt(g, "%s.y", m));
    g->indent--;
    ct_line(g, "}");
}

/* ---- shuffles: through local memory, since simdgroups of 32 are rare ---- */

static const char *shuffle(ct *g, const ir_insn *in, const char *x, const char *lane)
{
    const char *array = ct_fmt(g, "((__local %s*)eas_shuffle)", g->d->type[ir_typeof(g->ir, in->res).dtype]);
    if (ir_typeof(g->ir, in->res).dtype == EAS_BOOL)
        array = "((__local uchar*)eas_shuffle)";
    ct_line(g, "barrier(CLK_LOCAL_MEM_FENCE);"); /* what stood there was read */
    ct_line(g, "%s[get_local_id(0)] = %s;", array, x);
    ct_line(g, "barrier(CLK_LOCAL_MEM_FENCE);");
    return ct_fmt(g, "%s[((uint)get_local_id(0) & ~31u) + ((uint)%s & 31u)]", array, lane);
}

/* ---- atomics ---- */

static const char *atomic(ct *g, uint16_t op, uint32_t buf, const char *off, const char *x, const char *y)
{
    eas_dtype dt = ir_typeof(g->ir, buf).dtype;
    if (ct_is_half(g, buf))
        return ct_opencl_half(g, op, buf, off, x, y);
    bool local = ir_typeof(g->ir, buf).kind == IR_TG, real = dt == EAS_F32 || dt == EAS_F64;
    const char *bits = dt == EAS_F64 ? "ulong" : "uint";
    const char *space = local ? "local" : "global",
               *name = op == IR_ATOMIC_CAS ? "cmpxchg" : ir_rows[op].name + strlen("atomic_");
    const char *at =
        ct_fmt(g, "(volatile __%s %s*)&%s[%s]", space, real ? bits : g->d->type[dt], ct_name(g, buf), off);
    if (op == IR_ATOMIC_LOAD)
        return ct_fmt(g, "*(volatile __%s %s*)&%s[%s]", space, g->d->type[dt], ct_name(g, buf), off);
    if (real && ct_float_atomic(op) >= 0) {
        ct_need(g, CT_ATOMIC + 2 * ct_float_atomic(op) + local + (dt == EAS_F64 ? 2 * CT_NFLOAT_ATOMICS : 0));
        return ct_fmt(g, "eas_%s_%s%s(%s, %s)", ir_rows[op].name, space, dt == EAS_F64 ? "_f64" : "", at, x);
    }
    if (real) {
        x = ct_fmt(g, "as_%s(%s)", bits, x);
        y = y ? ct_fmt(g, "as_%s(%s)", bits, y) : NULL;
    }
    const char *call = ct_fmt(g, "%s_%s(%s, %s%s%s)", dtype_bits(dt) == 64 ? "atom" : "atomic", name, at, x,
                              y ? ", " : "", y ? y : "");
    return real ? ct_fmt(g, "as_%s(%s)", g->d->type[dt], call) : call;
}

static void barrier(ct *g)
{
    ct_line(g, g->device_barrier ? "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"
                                 : "barrier(CLK_LOCAL_MEM_FENCE);");
}

/* ---- the head ---- */

static const char f16[] = "ushort eas_f16_bits(float x)\n"
                          "{\n"
                          "    ushort h;\n"
                          "    vstore_half_rte(x, 0, (__private half*)&h);\n"
                          "    return h;\n"
                          "}\n"
                          "\n"
                          "float eas_f16_value(ushort h)\n"
                          "{\n"
                          "    return vload_half(0, (__private const half*)&h);\n"
                          "}\n"
                          "\n"
                          "float eas_round_f16(float x)\n"
                          "{\n"
                          "    return eas_f16_value(eas_f16_bits(x));\n"
                          "}\n"
                          "\n";

static const char bf16[] =
    "ushort eas_bf16_bits(float x)\n"
    "{\n"
    "    uint u = as_uint(x);\n"
    "    return (ushort)(x != x ? (u >> 16 & 32768u) | 32704u : (u + 32767u + (u >> 16 & 1u)) >> 16);\n"
    "}\n"
    "\n"
    "float eas_bf16_value(ushort h)\n"
    "{\n"
    "    return as_float((uint)h << 16);\n"
    "}\n"
    "\n"
    "float eas_round_bf16(float x)\n"
    "{\n"
    "    return eas_bf16_value(eas_bf16_bits(x));\n"
    "}\n"
    "\n";

static const char f64_f16[] = "float eas_f64_to_f16(double x)\n"
                              "{\n"
                              "    ushort h;\n"
                              "    vstore_half_rte(x, 0, (__private half*)&h);\n"
                              "    return vload_half(0, (__private const half*)&h);\n"
                              "}\n"
                              "\n";

static const char f64_bf16[] = /* through a float rounded to odd, so that it is rounded once */
    "float eas_f64_to_bf16(double x)\n"
    "{\n"
    "    float f = convert_float_rtz(x);\n"
    "    if (x == x && (double)f != x) f = as_float(as_uint(f) | 1u);\n"
    "    return eas_round_bf16(f);\n"
    "}\n"
    "\n";

static const char bounds[] =
    "void eas_failed(__global volatile int* fault, long off, int insn, uint x, uint y, uint z, uint thread)\n"
    "{\n"
    "    if (atomic_cmpxchg(&fault[0], 0, 1) == 0) {\n"
    "        fault[1] = insn;\n"
    "        fault[2] = (int)(uint)off;\n"
    "        fault[3] = (int)(off >> 32);\n"
    "        fault[4] = (int)x;\n"
    "        fault[5] = (int)y;\n"
    "        fault[6] = (int)z;\n"
    "        fault[7] = (int)thread;\n"
    "    }\n"
    "}\n"
    "\n"
    "bool eas_in_bounds(__global volatile int* fault, long count, long off, int insn, uint x, uint y, uint "
    "z, uint thread)\n"
    "{\n"
    "    if (off >= 0 && off < count) return true;\n"
    "    eas_failed(fault, off, insn, x, y, z, thread);\n"
    "    return false;\n"
    "}\n"
    "\n";

static void float_atomic(str *s, uint16_t op, const char *space, bool wide)
{
    const char *real = wide ? "double" : "float", *bits = wide ? "ulong" : "uint";
    str_add(s,
            "%s eas_%s_%s%s(volatile __%s %s* p, %s b)\n"
            "{\n"
            "    %s seen = *p, old;\n"
            "    do {\n"
            "        old = seen;\n"
            "        %s a = as_%s(old);\n"
            "        seen = %s_cmpxchg(p, old, as_%s(%s));\n"
            "    } while (seen != old);\n"
            "    return as_%s(old);\n"
            "}\n"
            "\n",
            real, ir_rows[op].name, space, wide ? "_f64" : "", space, bits, real, bits, real, real,
            wide ? "atom" : "atomic", bits, ir_rows[ir_atomic_op(op)].fl, real);
}

/* 64-bit atomics are two extensions: add, xchg and cas; the others. */
static void wide_atomics(const ct *g, str *s)
{
    bool base = false, extended = false;
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        const ir_insn *in = &g->ir->insns[i];
        if (!ir_is_atomic(in) || dtype_bits(ir_typeof(g->ir, in->res).dtype) != 64)
            continue;
        bool basic = in->op == IR_ATOMIC_ADD || in->op == IR_ATOMIC_XCHG || in->op == IR_ATOMIC_CAS ||
                     ir_typeof(g->ir, in->res).dtype == EAS_F64;
        base |= basic;
        extended |= !basic;
    }
    if (base)
        str_add(s, "#pragma OPENCL EXTENSION cl_khr_int64_base_atomics : enable\n");
    if (extended)
        str_add(s, "#pragma OPENCL EXTENSION cl_khr_int64_extended_atomics : enable\n");
}

static bool uses_double(const ct *g)
{
    for (uint32_t v = 1; v < g->ir->nvals; v++)
        if (ir_typeof(g->ir, v).dtype == EAS_F64 &&
            !(v <= (uint32_t)g->ir->nparams && g->param_dtype[v - 1] != EAS_F64))
            return true;
    return false;
}

static void helpers(ct *g, str *s)
{
    const struct {
        int need;
        const char *text;
    } table[] = {
        {CT_F16, f16},           {CT_BF16, bf16},       {CT_F64_F16, f64_f16},
        {CT_F64_BF16, f64_bf16}, {CT_ODD, ct_odd_text}, {CT_BOUNDS, bounds},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (ct_needs(g, table[i].need))
            str_add(s, "%s", table[i].text);
    ct_opencl_atomics(g, s);
    for (int i = 0; i < 4 * CT_NFLOAT_ATOMICS; i++)
        if (ct_needs(g, CT_ATOMIC + i))
            float_atomic(s, ct_float_atomics[i / 2 % CT_NFLOAT_ATOMICS], i % 2 ? "local" : "global",
                         i >= 2 * CT_NFLOAT_ATOMICS);
}

static void param(ct *g, str *s, int i)
{
    uint32_t v = (uint32_t)i + 1;
    const ir_param *p = &g->ir->params[i];
    eas_dtype dt = g->param_dtype[i];
    const char *name = ct_name(g, v);
    if (ir_typeof(g->ir, v).kind == IR_BUF)
        str_add(s, "    __global %s%s*%s %s,\n", p->write || p->atomic ? "" : "const ",
                dt == EAS_F16 ? "half" : g->d->mem[dt], g->flags & GEN_ALIAS ? "" : " restrict", name);
    else
        str_add(s, "    %s %s,\n", dt == EAS_BOOL ? "uchar" : g->d->type[dt], name);
}

/* Where each buffer begins: declared as a parameter, or added to it. */
static void offsets(ct *g, str *s, bool declare)
{
    for (int i = 0; i < g->ir->nparams; i++) {
        if (ir_typeof(g->ir, (uint32_t)i + 1).kind != IR_BUF)
            continue;
        if (declare)
            str_add(s, "    ulong eas_at%d,\n", i);
        else
            str_add(s, "    %s += eas_at%d;\n", ct_name(g, (uint32_t)i + 1), i);
    }
}

/* Without sub-groups, values go from one thread to another through an array with a place for each. */
int64_t gen_opencl_tg(const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op == IR_SIMD_SHUFFLE)
            return ir_analyse(ir).block * (int64_t)sizeof(uint64_t);
    return 0;
}

/* A vector to global memory, by a non-temporal store where the kernel's outputs do not fit the caches. */
static const char puts[] =
    "#ifdef __has_builtin\n"
    "#if __has_builtin(__builtin_nontemporal_store)\n"
    "#define eas_put(T, p, x) if (eas_past && ((size_t)(p) & (sizeof(T) - 1)) == 0) "
    "__builtin_nontemporal_store(x, (__global T*)(p)); else ((__global eas_##T*)(p))->v = x\n"
    "#endif\n"
    "#endif\n"
    "#ifndef eas_put\n"
    "#define eas_put(T, p, x) ((__global eas_##T*)(p))->v = x\n"
    "#endif\n";

/* Never faults, whatever the address. */
static const char asks[] = "#ifdef __has_builtin\n"
                           "#if __has_builtin(__builtin_prefetch)\n"
                           "#define eas_ask(p) __builtin_prefetch((const void*)(size_t)(p))\n"
                           "#endif\n"
                           "#endif\n"
                           "#ifndef eas_ask\n"
                           "#define eas_ask(p)\n"
                           "#endif\n";

static void head(ct *g, str *s)
{
    if (uses_double(g))
        str_add(s, "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n");
    wide_atomics(g, s);
    str_add(s, "#pragma OPENCL FP_CONTRACT OFF\n\n");
    if (g->packs) {
        ct_vec_typedefs(g, s);
        str_add(s, "%s%s\n", g->vec.puts ? puts : "", g->vec.prefetches ? asks : "");
    }
    helpers(g, s);
    str_add(s, "__kernel ");
    if (g->thread_mode)
        str_add(s, "__attribute__((reqd_work_group_size(%lld, 1, 1))) ", (long long)g->info.block);
    str_add(s, "void %s(\n", g->kernel_name);
    for (int i = 0; i < g->ir->nparams; i++)
        param(g, s, i);
    if (g->has_bounds)
        str_add(s, "    __global volatile int* eas_fault,\n    __global const long* eas_count,\n");
    if (g->flags & GEN_OFFSETS)
        offsets(g, s, true);
    if (g->lanes)
        str_add(s, "    uint eas_past,\n");
    if (s->len >= 2 && s->at[s->len - 2] == ',')
        s->at[s->len -= 2] = 0;
    str_add(s, ")\n{\n");
    if (g->has_shuffle)
        str_add(s, "    __local ulong eas_shuffle[%lld];\n", (long long)g->info.block);
    if (g->flags & GEN_OFFSETS)
        offsets(g, s, false);
    if (g->has_bounds) {
        const char *f = g->thread_mode ? "get_group_id" : "get_global_id";
        str_add(s, "    uint eas_x = (uint)%s(0), eas_y = (uint)%s(1), eas_z = (uint)%s(2);\n", f, f, f);
    }
}

const ct_dialect ct_opencl = {
    .type = {[EAS_BOOL] = "bool",
             [EAS_I8] = "char",
             [EAS_I16] = "short",
             [EAS_I32] = "int",
             [EAS_I64] = "long",
             [EAS_U8] = "uchar",
             [EAS_U16] = "ushort",
             [EAS_U32] = "uint",
             [EAS_U64] = "ulong",
             [EAS_F16] = "float",
             [EAS_BF16] = "float",
             [EAS_F32] = "float",
             [EAS_F64] = "double"},
    .mem = {[EAS_BOOL] = "uchar",
            [EAS_I8] = "char",
            [EAS_I16] = "short",
            [EAS_I32] = "int",
            [EAS_I64] = "long",
            [EAS_U8] = "uchar",
            [EAS_U16] = "ushort",
            [EAS_U32] = "uint",
            [EAS_U64] = "ulong",
            [EAS_F16] = "ushort",
            [EAS_BF16] = "ushort",
            [EAS_F32] = "float",
            [EAS_F64] = "double"},
    .space_local = "__local",
    .half_is_float = true,
    .head = head,
    .identity = identity,
    .load = load,
    .store = store,
    .load4 = load4,
    .vec = LANES,
    .vec_of = vec_of,
    .vec_load = vec_load,
    .vec_splat = vec_splat,
    .vec_store = vec_store,
    .round = round_half,
    .from_f64 = from_f64,
    .sat = sat,
    .bitcast = bitcast,
    .bits = bits,
    .frag = "float2",
    .mma_zero = mma_zero,
    .mma = mma,
    .mma_store = mma_store,
    .barrier = barrier,
    .fence = ct_opencl_fence,
    .shuffle = shuffle,
    .atomic = atomic,
    .bounds = "eas_in_bounds(eas_fault, %s, (long)%s, %u, eas_x, eas_y, eas_z, %s)",
    .failed = "eas_failed(eas_fault, (long)(%s), %u, eas_x, eas_y, eas_z, 0u)",
};
