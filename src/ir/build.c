/* build.c: appending instructions to a kernel under construction.
 *
 * The raw layer: exact types, checked by the table's rules; passes use it. sugar.c puts Python's arithmetic
 * on top. A builder is sticky: the first error stays and everything after it does nothing.
 */
#include "ir.h"

#include <stdio.h>

eas_status irb_fail(eas_builder *b, eas_status st, const char *fmt, ...)
{
    if (b->status)
        return b->status;
    va_list ap;
    va_start(ap, fmt);
    base_vfail_at(st, b->file ? b->ir->files[b->file] : NULL, b->line, fmt, ap);
    va_end(ap);
    return irb_stop(b, st);
}

eas_status irb_stop(eas_builder *b, eas_status st)
{
    if (!b->status) {
        b->status = st;
        base_error_keep(&b->error, st);
    }
    return b->status;
}

static eas_status oom(eas_builder *b)
{
    return irb_fail(b, EAS_ERR_MEMORY, "out of memory while building a kernel");
}

/* Arrays of an IR under construction are malloc'ed and move into its arena when it is finished. */
static eas_status new_ir(const char *name, unsigned flags, eas_ir **out)
{
    eas_ir *ir = calloc(1, sizeof *ir);
    if (!ir)
        return base_fail_oom(sizeof *ir);
    ir->magic = IR_MAGIC;
    ir->refs = 1;
    ir->flags = flags;
    ir->name = arena_strdup(&ir->mem, name);
    ir->params = arena_alloc(&ir->mem, IR_MAX_PARAMS * sizeof *ir->params);
    if (ir->mem.oom) {
        arena_free(&ir->mem);
        free(ir);
        return base_fail_oom(IR_MAX_PARAMS * sizeof *ir->params);
    }
    *out = ir;
    return EAS_OK;
}

static bool add_file(eas_builder *b, const char *name)
{
    eas_ir *ir = b->ir;
    if (!vec_grow((void **)&ir->files, &b->capfiles, (uint32_t)ir->nfiles + 1, sizeof *ir->files))
        return false;
    ir->files[ir->nfiles] = arena_strdup(&ir->mem, name);
    return ir->files[ir->nfiles++] != NULL;
}

static bool add_string(eas_builder *b, const char *s)
{
    eas_ir *ir = b->ir;
    if (!vec_grow((void **)&ir->strings, &b->capstrings, (uint32_t)ir->nstrings + 1, sizeof *ir->strings))
        return false;
    ir->strings[ir->nstrings] = arena_strdup(&ir->mem, s);
    return ir->strings[ir->nstrings++] != NULL;
}

int64_t irb_string(eas_builder *b, const char *s)
{
    if (b->status)
        return -1;
    for (int i = 0; i < b->ir->nstrings; i++)
        if (!strcmp(b->ir->strings[i], s))
            return i;
    if (!add_string(b, s))
        return oom(b), -1;
    return b->ir->nstrings - 1;
}

static bool valid_name(const char *s)
{
    if (!s || !*s || strlen(s) > 255)
        return false;
    for (const unsigned char *p = (const unsigned char *)s; *p; p++)
        if (!(*p == '_' || *p >= 128 || (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
              (p > (const unsigned char *)s && *p >= '0' && *p <= '9')))
            return false;
    return true;
}

eas_status eas_builder_new(const char *name, unsigned flags, eas_builder **out)
{
    NEED(name, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    if (!valid_name(name))
        return base_fail(EAS_ERR_VALUE, "a kernel's name must be an identifier, not \"%s\"",
                         name ? name : "(null)");
    eas_builder *b = calloc(1, sizeof *b);
    if (!b)
        return base_fail_oom(sizeof *b);
    b->magic = IRB_MAGIC;
    eas_status st = new_ir(name, flags, &b->ir);
    if (st) {
        free(b);
        return st;
    }
    if (!add_file(b, "") || !vec_grow((void **)&b->ir->vals, &b->capvals, 1, sizeof *b->ir->vals)) {
        eas_builder_free(b);
        return base_fail_oom(64);
    }
    memset(b->ir->vals, 0, sizeof *b->ir->vals);
    b->ir->nvals = 1;
    *out = b;
    return EAS_OK;
}

static void free_unfinished(eas_ir *ir)
{
    free(ir->vals);
    free(ir->insns);
    free(ir->pool);
    free(ir->files);
    free(ir->strings);
    arena_free(&ir->mem);
    free(ir);
}

void eas_builder_free(eas_builder *b)
{
    if (!b)
        return;
    live_free(b);
    if (b->ir)
        free_unfinished(b->ir);
    vec_free(&b->open);
    vec_free(&b->scratch);
    b->magic = 0;
    free(b);
}

eas_status eas_builder_status(const eas_builder *b)
{
    NEED(b, EAS_ERR_HANDLE);
    return b->status;
}

void eas_builder_at(eas_builder *b, const char *file, int line)
{
    NEED_(b);
    if (b->status)
        return;
    b->line = line > 0 ? (uint32_t)line : 0;
    if (!file || !*file) {
        b->file = 0;
        return;
    }
    eas_ir *ir = b->ir;
    if (b->file && !strcmp(ir->files[b->file], file))
        return;
    for (int i = ir->nfiles - 1; i > 0; i--)
        if (!strcmp(ir->files[i], file)) {
            b->file = (uint16_t)i;
            return;
        }
    if (ir->nfiles > UINT16_MAX - 1 || !add_file(b, file)) {
        b->file = 0;
        return;
    }
    b->file = (uint16_t)(ir->nfiles - 1);
}

static uint32_t new_value(eas_builder *b, ir_type t, uint32_t def, bool weak)
{
    eas_ir *ir = b->ir;
    if (ir->nvals >= UINT32_MAX / 4 ||
        !vec_grow((void **)&ir->vals, &b->capvals, ir->nvals + 1, sizeof *ir->vals)) {
        oom(b);
        return 0;
    }
    ir->vals[ir->nvals] = (ir_val){.type = t, .def = def, .weak = weak};
    return ir->nvals++;
}

uint32_t irb_param(eas_builder *b, const char *name, ir_type t, bool weak)
{
    if (b->status)
        return 0;
    eas_ir *ir = b->ir;
    if (ir->ninsns)
        return irb_fail(b, EAS_ERR_VALUE, "parameter \"%s\" comes after instructions", name), 0;
    if (!valid_name(name))
        return irb_fail(b, EAS_ERR_VALUE, "a parameter's name must be an identifier, not \"%s\"",
                        name ? name : "(null)"),
               0;
    if (ir->nparams == IR_MAX_PARAMS)
        return irb_fail(b, EAS_ERR_VALUE, "a kernel may have at most %d parameters", (int)IR_MAX_PARAMS), 0;
    for (int i = 0; i < ir->nparams; i++)
        if (!strcmp(ir->params[i].name, name))
            return irb_fail(b, EAS_ERR_VALUE, "two parameters are called \"%s\"", name), 0;
    char *copy = arena_strdup(&ir->mem, name);
    uint32_t v = copy ? new_value(b, t, UINT32_MAX, weak) : 0;
    if (!v)
        return oom(b), 0;
    ir->params[ir->nparams++] = (ir_param){.name = copy, .value = v};
    return v;
}

static uint32_t add_operands(eas_builder *b, const uint32_t *args, int nargs)
{
    eas_ir *ir = b->ir;
    if (!vec_grow((void **)&ir->pool, &b->cappool, ir->npool + (uint32_t)nargs + 1, sizeof *ir->pool))
        return oom(b), 0;
    if (nargs)
        memcpy(ir->pool + ir->npool, args, (size_t)nargs * sizeof *args);
    ir->npool += (uint32_t)nargs;
    return ir->npool - (uint32_t)nargs;
}

static void track_region(eas_builder *b, uint16_t op)
{
    if (op == IR_LOOP || op == IR_WHILE || op == IR_IF) {
        if (!vec_push(&b->open, b->ir->ninsns - 1))
            oom(b);
        return;
    }
    static const uint8_t opener[IR_NOPS] = {[IR_ENDLOOP] = IR_LOOP,
                                            [IR_ENDWHILE] = IR_WHILE,
                                            [IR_DO] = IR_WHILE,
                                            [IR_ENDIF] = IR_IF,
                                            [IR_ELSE] = IR_IF};
    if (!opener[op])
        return;
    uint32_t top = b->open.len ? b->open.at[b->open.len - 1] : UINT32_MAX;
    if (top == UINT32_MAX || b->ir->insns[top].op != opener[op])
        irb_fail(b, EAS_ERR_VALUE, "%s without %s", ir_rows[op].name, ir_rows[opener[op]].name);
    else if (op != IR_DO && op != IR_ELSE)
        b->open.len--;
}

/* Appends an instruction: checks its operands by the rule of the instruction, which also gives the types of
 * the results, keeps track of open regions, and, for a live builder, runs it. */
uint32_t irb_insn(eas_builder *b, uint16_t op, const uint32_t *args, int nargs, int64_t imm, int nres,
                  ir_type *t)
{
    if (b->status)
        return 0;
    eas_ir *ir = b->ir;
    arena tmp = {0};
    const char *why = nargs > UINT16_MAX || nres > UINT16_MAX
                        ? "too many operands"
                        : ir_check_insn(ir, &tmp, op, args, nargs, imm, nres, t);
    if (tmp.oom) /* then the text in `why` may be missing */
        oom(b);
    else if (why)
        irb_fail(b, EAS_ERR_TYPE, "%s: %s", eas_op_name(op), why);
    arena_free(&tmp);
    if (b->status)
        return 0;
    if (b->live)
        return live_insn(b, op, args, nargs, imm, nres, t);
    if (ir->ninsns >= UINT32_MAX / 8 ||
        !vec_grow((void **)&ir->insns, &b->capinsns, ir->ninsns + 1, sizeof *ir->insns))
        return oom(b), 0;
    uint32_t at = add_operands(b, args, nargs), first = 0;
    for (int i = 0; i < nres && !b->status; i++) {
        uint32_t v = new_value(b, t[i], ir->ninsns, false);
        if (i == 0)
            first = v;
    }
    if (b->status)
        return 0;
    ir->insns[ir->ninsns++] = (ir_insn){.op = op,
                                        .nargs = (uint16_t)nargs,
                                        .nres = (uint16_t)nres,
                                        .file = b->file,
                                        .line = b->line,
                                        .args = at,
                                        .res = first,
                                        .imm = imm};
    if ((op == IR_THREAD_ID || op == IR_GLOBAL_ID) && !ir->threads)
        ir->threads = imm;
    track_region(b, op);
    return first;
}

void irb_else_values(eas_builder *b, uint32_t at, int n, const uint32_t *v)
{
    uint32_t args = add_operands(b, v, n);
    if (b->status)
        return;
    b->ir->insns[at].args = args;
    b->ir->insns[at].nargs = (uint16_t)n;
}

bool irb_live_room(eas_builder *b)
{
    eas_ir *ir = b->ir;
    if (!vec_grow((void **)&ir->insns, &b->capinsns, ir->nvals, sizeof *ir->insns))
        return oom(b), false;
    for (; ir->ninsns < ir->nvals; ir->ninsns++)
        ir->insns[ir->ninsns] = (ir_insn){.op = IR_NOP};
    return true;
}

bool irb_live_value(eas_builder *b)
{
    return new_value(b, ir_scalar(EAS_BOOL), 0, false) && irb_live_room(b);
}

bool irb_live_operands(eas_builder *b, const uint32_t *args, int nargs)
{
    b->ir->npool = 0;
    add_operands(b, args, nargs);
    return !b->status;
}

void irb_note_block(eas_builder *b, uint32_t v)
{
    const ir_insn *in = b->status || !v ? NULL : ir_def(b->ir, v);
    if (in && in->op == IR_ARANGE && !b->ir->spmd_block)
        b->ir->spmd_block = ir_typeof(b->ir, v).dim[0];
}

uint32_t irb_op(eas_builder *b, uint16_t op, uint32_t x, uint32_t y, uint32_t z)
{
    uint32_t args[3] = {x, y, z};
    ir_type t = {0};
    return irb_insn(b, op, args, op < IR_NOPS ? ir_rows[op].nargs : 0, 0, 1, &t);
}

uint32_t irb_typed(eas_builder *b, uint16_t op, ir_type t, int64_t imm)
{
    return irb_insn(b, op, NULL, 0, imm, 1, &t);
}

uint32_t irb_to(eas_builder *b, uint16_t op, ir_type t, uint32_t x)
{
    if (b->status || ir_type_eq(ir_typeof(b->ir, x), t))
        return b->status ? 0 : x;
    return irb_insn(b, op, &x, 1, 0, 1, &t);
}

uint32_t irb_const(eas_builder *b, ir_type t, int64_t bits)
{
    return irb_to(b, IR_BROADCAST, t, irb_typed(b, IR_CONST, ir_scalar(t.dtype), bits));
}

/* ---- finishing ---- */

/* Moves the arrays into the arena: all of them or none. */
static bool settle(eas_ir *ir)
{
    void *at[5] = {ir->vals, ir->insns, ir->pool, ir->files, ir->strings}, *to[5];
    size_t bytes[5] = {ir->nvals * sizeof *ir->vals, ir->ninsns * sizeof *ir->insns,
                       ir->npool * sizeof *ir->pool, (size_t)ir->nfiles * sizeof *ir->files,
                       (size_t)ir->nstrings * sizeof *ir->strings};
    for (int i = 0; i < 5; i++)
        if (!(to[i] = arena_alloc(&ir->mem, bytes[i])))
            return false;
    for (int i = 0; i < 5; i++) {
        if (bytes[i])
            memcpy(to[i], at[i], bytes[i]);
        free(at[i]);
    }
    ir->vals = to[0];
    ir->insns = to[1];
    ir->pool = to[2];
    ir->files = to[3];
    ir->strings = to[4];
    return true;
}

static void mark_access(eas_ir *ir, uint32_t v, bool write)
{
    if (v > (uint32_t)ir->nparams)
        return;
    ir_param *p = &ir->params[v - 1];
    if (write)
        p->write = 1;
    else
        p->read = 1;
}

static void find_access(eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        const uint32_t *a = ir->pool + in->args;
        if (ir_is_atomic(in)) {
            mark_access(ir, a[0], false);
            if (ir_writes(in))
                mark_access(ir, a[0], true);
            if (a[0] <= (uint32_t)ir->nparams)
                ir->params[a[0] - 1].atomic = 1;
        }
        switch (in->op) {
        case IR_LOAD: mark_access(ir, a[0], false); break;
        case IR_STORE:
        case IR_MMA_STORE: mark_access(ir, a[0], true); break;
        case IR_DOT:
        case IR_MMA:
            mark_access(ir, a[0], false);
            mark_access(ir, a[3], false);
            break;
        default: break;
        }
    }
}

eas_status irb_finish(eas_builder *b, eas_ir **out)
{
    *out = NULL;
    if (b->status)
        return base_error_raise(&b->error);
    if (!b->ir)
        return base_fail(EAS_ERR_HANDLE, "this builder is finished already");
    if (b->live)
        return irb_fail(b, EAS_ERR_VALUE, "a live builder has run its kernel and kept no IR of it");
    if (b->open.len)
        return irb_fail(b, EAS_ERR_VALUE, "%s is not closed",
                        ir_rows[b->ir->insns[b->open.at[b->open.len - 1]].op].name);
    eas_ir *ir = b->ir;
    if (!irb_renumber(b) || !settle(ir))
        return oom(b);
    b->ir = NULL;
    find_access(ir);
    eas_status st = ir_verify(ir);
    if (st) {
        eas_ir_release(ir);
        return b->status = st;
    }
    *out = ir;
    return EAS_OK;
}

/* ---- copying, for passes ---- */

void eas_builder_config(eas_builder *b, const char *text)
{
    NEED_(b);
    if (b->status)
        return;
    b->ir->config = arena_strdup(&b->ir->mem, text ? text : "");
    if (!b->ir->config)
        oom(b);
}

eas_status irb_like(const eas_ir *from, eas_builder **out)
{
    eas_status st = eas_builder_new(from->name, from->flags, out);
    if (st)
        return st;
    (*out)->ir->spmd_block = from->spmd_block;
    (*out)->ir->threads = from->threads;
    if (from->config)
        eas_builder_config(*out, from->config);
    for (int i = 1; i < from->nfiles; i++)
        if (!add_file(*out, from->files[i]))
            oom(*out);
    for (int i = 0; i < from->nstrings; i++)
        if (!add_string(*out, from->strings[i]))
            oom(*out);
    for (int i = 0; i < from->nparams; i++)
        irb_param(*out, from->params[i].name, from->vals[from->params[i].value].type,
                  from->vals[from->params[i].value].weak);
    return EAS_OK;
}

void irb_copy(eas_builder *b, const eas_ir *from, uint32_t i, uint32_t *map)
{
    if (b->status)
        return;
    const ir_insn *in = &from->insns[i];
    uint32_t few[8], *args = in->nargs > 8 ? malloc(in->nargs * sizeof *args) : few;
    ir_type one, *t = in->nres > 1 ? malloc(in->nres * sizeof *t) : &one;
    if (args && t) {
        for (int k = 0; k < in->nargs; k++)
            args[k] = map[ir_args(from, in)[k]];
        for (int k = 0; k < in->nres; k++)
            t[k] = ir_typeof(from, in->res + (uint32_t)k);
        b->file = in->file;
        b->line = in->line;
        uint32_t r = irb_insn(b, in->op, args, in->nargs, in->imm, in->nres, t);
        for (int k = 0; k < in->nres; k++)
            map[in->res + (uint32_t)k] = r + (uint32_t)k;
    } else {
        oom(b);
    }
    if (args != few)
        free(args);
    if (t != &one)
        free(t);
}

/* ---- looking at finished IR ---- */

eas_ir *eas_ir_retain(eas_ir *ir)
{
    if (ir)
        __atomic_add_fetch(&ir->refs, 1, __ATOMIC_RELAXED);
    return ir;
}

void eas_ir_release(eas_ir *ir)
{
    if (!ir || __atomic_sub_fetch(&ir->refs, 1, __ATOMIC_ACQ_REL))
        return;
    ir->magic = 0;
    arena_free(&ir->mem);
    free(ir);
}

const char *eas_ir_name(const eas_ir *ir)
{
    NEED(ir, NULL);
    return ir->name;
}
int eas_ir_param_count(const eas_ir *ir)
{
    NEED(ir, 0);
    return ir->nparams;
}
int eas_ir_insn_count(const eas_ir *ir)
{
    NEED(ir, 0);
    return (int)ir->ninsns;
}

eas_param eas_ir_param(const eas_ir *ir, int i)
{
    NEED(ir, ((eas_param){0}));
    if (i < 0 || i >= ir->nparams)
        return (eas_param){0};
    const ir_param *p = &ir->params[i];
    ir_type t = ir_typeof(ir, p->value);
    return (eas_param){.name = p->name,
                       .dtype = t.dtype,
                       .is_buffer = t.kind == IR_BUF,
                       .is_read = p->read,
                       .is_written = p->write,
                       .is_atomic = p->atomic};
}

eas_insn eas_ir_insn(const eas_ir *ir, int i)
{
    NEED(ir, ((eas_insn){0}));
    if (i < 0 || (uint32_t)i >= ir->ninsns)
        return (eas_insn){0};
    const ir_insn *in = &ir->insns[i];
    return (eas_insn){.op = in->op,
                      .nargs = in->nargs,
                      .nresults = in->nres,
                      .args = ir_args(ir, in),
                      .result = in->res,
                      .file = in->file ? ir->files[in->file] : NULL,
                      .line = (int)in->line,
                      .imm = in->imm};
}

eas_status eas_ir_value_type(const eas_ir *ir, eas_value v, eas_dtype *dt, int *rank, int64_t shape[4])
{
    NEED(ir, EAS_ERR_HANDLE);
    NEED(dt, EAS_ERR_HANDLE);
    NEED(rank, EAS_ERR_HANDLE);
    NEED(shape, EAS_ERR_HANDLE);
    if (v == 0 || v >= ir->nvals)
        return base_fail(EAS_ERR_VALUE, "%%%u is not a value of kernel \"%s\"", (unsigned)v, ir->name);
    ir_type t = ir_typeof(ir, v);
    *dt = t.dtype;
    *rank = t.rank;
    for (int i = 0; i < 4; i++)
        shape[i] = t.dim[i];
    return EAS_OK;
}
