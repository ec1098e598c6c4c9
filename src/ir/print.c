/* print.c: the text form. parse.c reads back exactly what is written here.
 *
 *   kernel NAME(buf<f32> a, i64 N) contract {
 *     %3 = program_id 0 : i64                    @1:7
 *     %5, %6 = loop %3, %2, %4, %9 : i64, f32
 *     store %1, %7, %8
 *   }
 *
 * Files of the source positions stand before the kernel: file 1 "add.py".
 */
#include "ir.h"

static void print_string(str *s, const char *p)
{
    str_add(s, "\"");
    for (; *p; p++)
        if (*p == '"' || *p == '\\')
            str_add(s, "\\%c", *p);
        else if ((unsigned char)*p < 32)
            str_add(s, "\\x%02x", (unsigned char)*p);
        else
            str_put(s, p, 1);
    str_add(s, "\"");
}

static void print_const(str *s, eas_dtype dt, int64_t bits)
{
    if (dt == EAS_BOOL) {
        str_add(s, "%s", bits ? "true" : "false");
    } else if (dt == EAS_U64) {
        str_add(s, "%llu", (unsigned long long)bits);
    } else if (!dtype_is_float(dt)) {
        str_add(s, "%lld", (long long)bits);
    } else {
        double d = ir_bits_to_double(dt, bits);
        if (d != d && bits != ir_bits_from_double(dt, (double)__builtin_nanf("")))
            str_add(s, "nan:0x%llx", (unsigned long long)bits);
        else
            str_add_double(s, d, dt != EAS_F64);
    }
}

static bool prints_imm(const ir_insn *in)
{
    switch (ir_rows[in->op].rule) {
    case IR_RULE_IDENT: return in->op != IR_LANE_ID && in->op != IR_SG_ID;
    case IR_RULE_ARANGE:
    case IR_RULE_REDUCE:
    case IR_RULE_SCAN: return true;
    default: return false;
    }
}

void ir_print_insn(str *s, const eas_ir *ir, uint32_t i, bool lines)
{
    const ir_insn *in = &ir->insns[i];
    for (int k = 0; k < in->nres; k++)
        str_add(s, "%s%%%u", k ? ", " : "", (unsigned)(in->res + (uint32_t)k));
    str_add(s, "%s%s", in->nres ? " = " : "", ir_rows[in->op].name);
    if (in->op == IR_CONST) {
        str_add(s, " ");
        print_const(s, ir_typeof(ir, in->res).dtype, in->imm);
    } else if (in->op == IR_TRANS) {
        for (int k = 0; k < ir_typeof(ir, in->res).rank; k++)
            str_add(s, " %d", ir_imm_perm(in->imm, k));
    } else if (in->op == IR_SLICE || in->op == IR_PAD) {
        str_add(s, " %d %lld", ir_imm_axis(in->imm), (long long)ir_imm_start(in->imm));
    } else if (in->op == IR_ASSERT || in->op == IR_PRINT) {
        str_add(s, " ");
        print_string(s, ir->strings[in->imm]);
    } else if (in->op == IR_FENCE) {
        str_add(s, " %s %s", ir_order_names[ir_fence_order(in->imm)],
                ir_scope_names[ir_fence_scope(in->imm)]);
    } else if (prints_imm(in)) {
        str_add(s, " %lld", (long long)in->imm);
    }
    for (int k = 0; k < in->nargs; k++)
        str_add(s, "%s%%%u", k ? ", " : " ", (unsigned)ir_args(ir, in)[k]);
    for (int k = 0; k < in->nres; k++) {
        str_add(s, k ? ", " : " : ");
        ir_type_print(s, ir_typeof(ir, in->res + (uint32_t)k));
    }
    if (lines && in->file)
        str_add(s, " @%u:%u", (unsigned)in->file, (unsigned)in->line);
}

/* Block and group size stand in the head only where no instruction tells them. */
static void print_mode(str *s, const eas_ir *ir)
{
    int64_t block = 0, threads = 0;
    for (uint32_t i = ir->ninsns; i-- > 0;) {
        const ir_insn *in = &ir->insns[i];
        if (in->op == IR_ARANGE)
            block = ir_typeof(ir, in->res).dim[0];
        if (in->op == IR_THREAD_ID || in->op == IR_GLOBAL_ID)
            threads = in->imm;
    }
    if (!ir->threads && (block ? block : 1) != (ir->spmd_block ? ir->spmd_block : 1))
        str_add(s, " block %lld", (long long)(ir->spmd_block ? ir->spmd_block : 1));
    if (threads != ir->threads)
        str_add(s, " threads %lld", (long long)ir->threads);
}

static void print_head(str *s, const eas_ir *ir, bool lines)
{
    for (int i = 1; i < ir->nfiles && lines; i++) {
        str_add(s, "file %d ", i);
        print_string(s, ir->files[i]);
        str_add(s, "\n");
    }
    str_add(s, "kernel %s(", ir->name);
    for (int i = 0; i < ir->nparams; i++) {
        str_add(s, i ? ", " : "");
        ir_type_print(s, ir_typeof(ir, ir->params[i].value));
        str_add(s, " %s", ir->params[i].name);
    }
    str_add(s, ")");
    print_mode(s, ir);
    str_add(s, "%s%s {\n", ir->flags & EAS_KERNEL_NO_CONTRACT ? " nocontract" : "",
            ir->flags & EAS_KERNEL_FAST_MATH ? " fastmath" : "");
}

void ir_print(str *s, const eas_ir *ir, bool lines)
{
    int depth = 1;
    print_head(s, ir, lines);
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        uint16_t op = ir->insns[i].op;
        bool closes = op == IR_ENDLOOP || op == IR_ENDWHILE || op == IR_ENDIF,
             divides = op == IR_ELSE || op == IR_DO;
        depth -= closes || divides;
        str_add(s, "%*s", 2 * depth, "");
        ir_print_insn(s, ir, i, lines);
        str_add(s, "\n");
        depth += op == IR_LOOP || op == IR_WHILE || op == IR_IF || divides;
    }
    str_add(s, "}\n");
}

eas_status eas_ir_text(const eas_ir *ir, int with_lines, char **out)
{
    NEED(ir, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    str s = {0};
    ir_print(&s, ir, with_lines != 0);
    return str_take(&s, out);
}
