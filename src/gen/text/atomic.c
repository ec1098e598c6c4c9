/* atomic.c: atomics on 16-bit floats, and fences, in both languages.
 *
 * Neither language has atomics of 16 bits, so a half is changed within the aligned 32-bit word that holds it, by a loop around compare-and-exchange. The
 * other half of that word is written back as it was read, or the exchange fails. Which half it is follows from the address: buffers may begin at any
 * element. MSL converts no pointer to an integer, hence the union; threadgroup arrays are aligned by their declaration instead, and the index tells.
 *
 * The helpers are one per instruction and dtype (and address space in OpenCL C, which has no templates): CT_HALF + 4 * which + 2 * bf16 + local.
 */
#include "ctext.h"

static const uint16_t ops[CT_NHALF_ATOMICS] = {IR_ATOMIC_ADD, IR_ATOMIC_MIN, IR_ATOMIC_MAX, IR_ATOMIC_XCHG, IR_ATOMIC_CAS, IR_ATOMIC_LOAD};

static int which(uint16_t op)
{
    int k = 0;
    while (k < CT_NHALF_ATOMICS - 1 && ops[k] != op)
        k++;
    return k;
}

bool ct_is_half(const ct *g, uint32_t buf)
{
    const int dt = ir_typeof(g->ir, buf).dtype;
    return dt == EAS_F16 || dt == EAS_BF16;
}

static bool has_atomics(const ct *g, uint32_t buf)
{
    for (uint32_t i = 0; i < g->ir->ninsns; i++)
        if (ir_is_atomic(&g->ir->insns[i]) && ir_args(g->ir, &g->ir->insns[i])[0] == buf)
            return true;
    return false;
}

bool ct_words_tg(ct *g, uint32_t tg)
{
    if (!ct_is_half(g, tg) || !has_atomics(g, tg))
        return false;
    const char *name = ct_name(g, tg), *T = g->d->mem[ir_typeof(g->ir, tg).dtype];
    ct_line(g, "%s uint %s_words[%d];", g->d->space_local, name, (ir_typeof(g->ir, tg).dim[0] + 1) / 2);
    ct_line(g, "%s %s* %s = (%s %s*)%s_words;", g->d->space_local, T, name, g->d->space_local, T, name);
    return true;
}

/* ---- MSL ---- */

static void msl_half(str *s, uint16_t op, bool bf16)
{
    const char *T = bf16 ? "bfloat" : "half", *dt = bf16 ? "bf16" : "f16", *name = ir_rows[op].name;
    if (op == IR_ATOMIC_LOAD) {
        str_add(s,
                "template <typename P> %s eas_%s_%s(P p, uint shift)\n"
                "{\n"
                "    return as_type<%s>((ushort)(atomic_load_explicit(p, memory_order_relaxed) >> shift));\n"
                "}\n"
                "\n",
                T, name, dt, T);
        return;
    }
    const uint16_t join = ir_atomic_op(op);
    str_add(s, "template <typename P> %s eas_%s_%s(P p, uint shift, %s%s%s y)\n{\n", T, name, dt, op == IR_ATOMIC_CAS ? T : "",
            op == IR_ATOMIC_CAS ? " want, " : "", T);
    str_add(s,
            "    uint seen = atomic_load_explicit(p, memory_order_relaxed);\n"
            "    while (true) {\n"
            "        %s old = as_type<%s>((ushort)(seen >> shift));\n",
            T, T);
    if (op == IR_ATOMIC_CAS)
        str_add(s, "        if (as_type<ushort>(old) != as_type<ushort>(want)) return old;\n");
    if (join)
        str_add(s, "        float a = (float)old, b = (float)y;\n");
    str_add(s, "        uint next = (seen & ~(65535u << shift)) | (uint)as_type<ushort>((%s)(%s)) << shift;\n", T, join ? ir_rows[join].fl : "y");
    str_add(s, "        if (atomic_compare_exchange_weak_explicit(p, &seen, next, memory_order_relaxed, memory_order_relaxed)) return old;\n"
               "    }\n"
               "}\n"
               "\n");
}

static const char msl_odd[] = "union eas_address {\n"
                              "    device const ushort* at;\n"
                              "    uint words[2];\n"
                              "};\n"
                              "\n"
                              "uint eas_odd(device const ushort* p)\n"
                              "{\n"
                              "    eas_address a;\n"
                              "    a.at = p;\n"
                              "    return a.words[0] >> 1 & 1u;\n"
                              "}\n"
                              "\n";

static const char msl_fences[] = "#if __METAL_VERSION__ < 320\n"
                                 "#error \"this kernel orders memory (order=, mk.fence), which needs Metal 3.2: macOS 15 or newer\"\n"
                                 "#endif\n"
                                 "\n";

void ct_msl_atomics(const ct *g, str *s)
{
    if (ct_needs(g, CT_FENCE))
        str_add(s, "%s", msl_fences);
    if (ct_needs(g, CT_HALF_ODD))
        str_add(s, "%s", msl_odd);
    for (int k = 0; k < CT_NHALF_ATOMICS; k++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            if (ct_needs(g, CT_HALF + 4 * k + 2 * bf16))
                msl_half(s, ops[k], bf16);
}

const char *ct_msl_half(ct *g, uint16_t op, uint32_t buf, const char *off, const char *x, const char *y)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, buf).dtype;
    const char *name = ct_name(g, buf), *word, *shift;
    ct_need(g, CT_HALF + 4 * which(op) + 2 * (dt == EAS_BF16));
    if (ir_typeof(g->ir, buf).kind == IR_TG) {
        word = ct_fmt(g, "(threadgroup atomic_uint*)&%s[%s & ~1]", name, off);
        shift = ct_fmt(g, "(uint)(%s & 1) * 16u", off);
    } else {
        const char *odd = ct_fmt(g, "eas_odd((device const ushort*)&%s[%s])", name, off);
        ct_need(g, CT_HALF_ODD);
        word = ct_fmt(g, "(device atomic_uint*)(&%s[%s] - %s)", name, off, odd);
        shift = ct_fmt(g, "%s * 16u", odd);
    }
    return ct_fmt(g, "eas_%s_%s(%s, %s%s%s%s%s)", ir_rows[op].name, eas_dtype_name(dt), word, shift, x ? ", " : "", x ? x : "", y ? ", " : "",
                  y ? y : "");
}

static bool has_tg(const ct *g)
{
    for (uint32_t i = 0; i < g->ir->ninsns; i++)
        if (g->ir->insns[i].op == IR_ALLOC_TG)
            return true;
    return false;
}

/* The language has fences of two orders: none, and seq_cst. */
void ct_msl_fence(ct *g, eas_order order, eas_scope scope)
{
    if (order == EAS_ORDER_RELAXED)
        return;
    ct_need(g, CT_FENCE);
    ct_line(g, "atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_%s);",
            scope == EAS_SCOPE_GROUP ? "threadgroup" : "device");
    if (has_tg(g))
        ct_line(g, "atomic_thread_fence(mem_flags::mem_threadgroup, memory_order_seq_cst, thread_scope_threadgroup);");
}

/* Plain accesses of a buffer are seen by other threadgroups only if it is declared so; it matters where programs hand each other data. */
bool ct_msl_coherent(const ct *g, uint32_t buf)
{
    if (buf > (uint32_t)g->ir->nparams || !(g->ir->params[buf - 1].read || g->flags & GEN_ALIAS) || !g->ir->params[buf - 1].write)
        return false;
    for (uint32_t i = 0; i < g->ir->ninsns; i++)
        if (g->ir->insns[i].op == IR_FENCE && ir_fence_scope(g->ir->insns[i].imm) == EAS_SCOPE_DEVICE)
            return true;
    return false;
}

/* ---- OpenCL C ---- */

static void opencl_half(str *s, uint16_t op, bool bf16, const char *space)
{
    const char *dt = bf16 ? "bf16" : "f16";
    const uint16_t join = ir_atomic_op(op);
    str_add(s, "float eas_%s_%s_%s(__%s uchar* at%s%s)\n{\n", ir_rows[op].name, space, dt, space, op == IR_ATOMIC_CAS ? ", float want" : "",
            op == IR_ATOMIC_LOAD ? "" : ", float b");
    str_add(s,
            "    const uint odd = (uint)(size_t)at & 2u, shift = odd * 8u;\n"
            "    volatile __%s uint* p = (volatile __%s uint*)(at - odd);\n",
            space, space);
    if (op == IR_ATOMIC_LOAD) {
        str_add(s, "    return eas_%s_value((ushort)(*p >> shift));\n}\n\n", dt);
        return;
    }
    str_add(s,
            "    uint seen = *p;\n"
            "    while (true) {\n"
            "        const uint old = seen;\n"
            "        const float a = eas_%s_value((ushort)(old >> shift));\n",
            dt);
    if (op == IR_ATOMIC_CAS)
        str_add(s, "        if ((ushort)(old >> shift) != eas_%s_bits(want)) return a;\n", dt);
    str_add(s,
            "        seen = atomic_cmpxchg(p, old, (old & ~(65535u << shift)) | (uint)eas_%s_bits(%s) << shift);\n"
            "        if (seen == old) return a;\n"
            "    }\n"
            "}\n"
            "\n",
            dt, join ? ir_rows[join].fl : "b");
}

/* Compilers that come from clang have C11's fences, across all work-groups; mem_fence is what OpenCL 1.2 has. */
static const char opencl_fences[] = "#ifdef __has_builtin\n"
                                    "#if __has_builtin(__c11_atomic_thread_fence)\n"
                                    "#define eas_builder_fence(order) __c11_atomic_thread_fence(order)\n"
                                    "#endif\n"
                                    "#endif\n"
                                    "#ifndef eas_builder_fence\n"
                                    "#define eas_builder_fence(order) mem_fence(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)\n"
                                    "#endif\n"
                                    "\n";

void ct_opencl_atomics(const ct *g, str *s)
{
    if (ct_needs(g, CT_FENCE))
        str_add(s, "%s", opencl_fences);
    for (int k = 0; k < 4 * CT_NHALF_ATOMICS; k++)
        if (ct_needs(g, CT_HALF + k))
            opencl_half(s, ops[k / 4], k & 2, k & 1 ? "local" : "global");
}

const char *ct_opencl_half(ct *g, uint16_t op, uint32_t buf, const char *off, const char *x, const char *y)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, buf).dtype;
    const bool local = ir_typeof(g->ir, buf).kind == IR_TG;
    const char *space = local ? "local" : "global";
    ct_need(g, dt == EAS_F16 ? CT_F16 : CT_BF16);
    ct_need(g, CT_HALF + 4 * which(op) + 2 * (dt == EAS_BF16) + local);
    return ct_fmt(g, "eas_%s_%s_%s((__%s uchar*)(%s + %s)%s%s%s%s)", ir_rows[op].name, space, eas_dtype_name(dt), space, ct_name(g, buf), off,
                  x ? ", " : "", x ? x : "", y ? ", " : "", y ? y : "");
}

void ct_opencl_fence(ct *g, eas_order order, eas_scope scope)
{
    static const char *const of[EAS_NORDERS] = {[EAS_ORDER_ACQUIRE] = "__ATOMIC_ACQUIRE",
                                                [EAS_ORDER_RELEASE] = "__ATOMIC_RELEASE",
                                                [EAS_ORDER_ACQ_REL] = "__ATOMIC_ACQ_REL",
                                                [EAS_ORDER_SEQ_CST] = "__ATOMIC_SEQ_CST"};
    (void)scope;
    if (!of[order])
        return;
    ct_need(g, CT_FENCE);
    ct_line(g, "eas_builder_fence(%s);", of[order]);
}
