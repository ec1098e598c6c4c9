/* insn.c: the instruction table as data, types and constants. */
#include "ir.h"

#include <math.h>
#include <stdio.h>

#define V (-1)
#define P IR_PURE
#define C IR_COMM
#define M IR_MEM
#define X IR_EFFECT
#define S IR_STRUCT
#define E IR_EXPAND
#define L IR_VECTOR
/* A meaning is text, unexpanded; NONE is none (no real meaning is as short as that word: the test of the table sees to it). */
#define MEANING(text) (sizeof(text) == sizeof "NONE" ? NULL : (text))
const ir_row ir_rows[IR_NOPS] = {
    [IR_NOP] = {.name = "nop"},
#define INSN(NAME, name, nargs, rule, classes, flags, cost, llvm, mk, si, ui, fl) \
    [IR_##NAME] = {#name, nargs, IR_RULE_##rule, classes, flags, cost, mk, MEANING(#si), MEANING(#ui), MEANING(#fl)},
#include "insn.def"
#undef INSN
};
#undef V
#undef P
#undef C
#undef M
#undef X
#undef S
#undef E
#undef L

eas_op eas_op_find(const char *name)
{
    NEED(name, 0);
    for (int i = 1; i < IR_NOPS; i++)
        if (!strcmp(ir_rows[i].name, name))
            return (eas_op)i;
    return 0;
}

const char *eas_op_name(eas_op op) { return op && op < IR_NOPS ? ir_rows[op].name : "?"; }
int eas_op_count(void) { return IR_NOPS - 1; }

uint16_t ir_join_of(uint16_t op)
{
    static const uint16_t join[] = {IR_ADD, IR_MUL, IR_MIN, IR_MAX, IR_AND, IR_OR, IR_XOR};
    return op >= IR_REDUCE_ADD && op <= IR_REDUCE_XOR ? join[op - IR_REDUCE_ADD]
         : op >= IR_SCAN_ADD && op <= IR_SCAN_XOR     ? join[op - IR_SCAN_ADD]
                                                      : 0;
}

bool ir_is_fold(const ir_insn *in) { return ir_join_of(in->op) || in->op == IR_MATMUL; }

/* ---- types ---- */

ir_axis ir_axis_of(ir_type t, int axis)
{
    ir_axis a = {1, t.dim[axis], 1};
    for (int i = 0; i < t.rank; i++)
        *(i < axis ? &a.outer : &a.inner) *= i == axis ? 1 : t.dim[i];
    return a;
}

ir_type ir_scalar(eas_dtype dt) { return (ir_type){.dtype = (uint8_t)dt, .kind = IR_VAL}; }

ir_type ir_with_dtype(ir_type t, eas_dtype dt)
{
    t.dtype = (uint8_t)dt;
    t.kind = IR_VAL;
    return t;
}

bool ir_shape_eq(ir_type a, ir_type b) { return a.rank == b.rank && !memcmp(a.dim, b.dim, sizeof a.dim); }
bool ir_type_eq(ir_type a, ir_type b) { return a.dtype == b.dtype && a.kind == b.kind && ir_shape_eq(a, b); }

int64_t ir_lanes(ir_type t)
{
    int64_t n = 1;
    for (int i = 0; i < t.rank; i++)
        n *= t.dim[i];
    return n;
}

void ir_type_print(str *s, ir_type t)
{
    static const char *const form[] = {[IR_VAL] = "%s", [IR_BUF] = "buf<%s>", [IR_TG] = "tg<%s>", [IR_FRAG] = "frag"};
    str_add(s, form[t.kind], eas_dtype_name(t.dtype));
    for (int i = 0; i < t.rank; i++)
        str_add(s, "%s%d", i ? "," : "[", (int)t.dim[i]);
    if (t.rank)
        str_add(s, "]");
}

static int64_t broadcast_lane(ir_type from, ir_type to, int64_t k)
{
    int64_t src = 0, scale = 1;
    for (int d = 0; d < to.rank; d++) {
        int32_t n = to.dim[to.rank - 1 - d], f = d < from.rank ? from.dim[from.rank - 1 - d] : 1;
        if (f != 1)
            src += k % n * scale;
        scale *= f;
        k /= n;
    }
    return src;
}

static int64_t lane_of(ir_type t, const int64_t *index)
{
    int64_t k = 0;
    for (int i = 0; i < t.rank; i++)
        k = k * t.dim[i] + index[i];
    return k;
}

int64_t ir_source_lane(uint16_t op, int64_t imm, ir_type from, ir_type to, int64_t k)
{
    int64_t at[IR_MAX_RANK] = {0}, src[IR_MAX_RANK] = {0};
    if (op == IR_RESHAPE)
        return k;
    if (op == IR_BROADCAST)
        return broadcast_lane(from, to, k);
    for (int i = to.rank - 1; i >= 0; i--) {
        at[i] = k % to.dim[i];
        k /= to.dim[i];
    }
    for (int i = 0; i < to.rank; i++)
        src[op == IR_TRANS ? ir_imm_perm(imm, i) : i] = at[i];
    if (op != IR_TRANS) {
        int axis = ir_imm_axis(imm);
        src[axis] += op == IR_SLICE ? ir_imm_start(imm) : -ir_imm_start(imm);
        if (src[axis] < 0 || src[axis] >= from.dim[axis])
            return -1;
    }
    return lane_of(from, src);
}

const char *ir_type_text(arena *mem, ir_type t)
{
    str s = {0};
    ir_type_print(&s, t);
    const char *r = s.oom ? "?" : arena_strdup(mem, s.at);
    str_free(&s);
    return r;
}

/* ---- constants ---- */

double ir_bits_to_double(eas_dtype dt, int64_t bits)
{
    float f;
    double d;
    switch (dt) {
    case EAS_F16: return (double)f16_to_f32((uint16_t)bits);
    case EAS_BF16: return (double)bf16_to_f32((uint16_t)bits);
    case EAS_F32: memcpy(&f, &bits, 4); return (double)f;
    case EAS_F64: memcpy(&d, &bits, 8); return d;
    case EAS_U64: return (double)(uint64_t)bits;
    default: return (double)bits;
    }
}

int64_t ir_bits_from_double(eas_dtype dt, double d)
{
    float f = (float)d;
    uint32_t u;
    int64_t r;
    switch (dt) {
    case EAS_F16: return f64_to_f16(d);
    case EAS_BF16: return f64_to_bf16(d);
    case EAS_F32: memcpy(&u, &f, 4); return (int64_t)u;
    case EAS_F64: memcpy(&r, &d, 8); return r;
    default: {
        int64_t in, out = 0;
        memcpy(&in, &d, 8);
        ir_eval(IR_CAST, EAS_F64, dt, &in, &out);
        return out;
    }
    }
}

bool ir_const_of(const eas_ir *ir, uint32_t v, int64_t *bits)
{
    for (;;) {
        const ir_insn *d = ir_def(ir, v);
        if (!d)
            return false;
        if (d->op == IR_CONST) {
            *bits = d->imm;
            return true;
        }
        if (d->op != IR_BROADCAST && d->op != IR_RESHAPE)
            return false;
        v = ir_args(ir, d)[0];
    }
}
