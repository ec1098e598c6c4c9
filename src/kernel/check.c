/* check.c: a launch on copies of its memory, looked at access by access, and the report of it. */
#include "kernel.h"

#include <stdio.h>

struct eas_report {
    eas_ir *ir; /* what ran; names and files of the findings are its */
    ir_report r;
};

typedef struct piece { /* memory that arguments share, and its copy */
    uint64_t lo, hi;
    uint8_t *copy;
} piece;

static int by_address(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* The memory of all buffers as disjoint pieces. */
static int find_pieces(const eas_kernel *k, const uint64_t *slot, const int64_t *count, piece *p)
{
    int n = 0, m = 0;
    for (int i = 0; i < k->nparams; i++)
        if (k->params[i].is_buffer && count[i])
            p[n++] = (piece){.lo = slot[i], .hi = slot[i] + ((uint64_t)count[i] << k->params[i].log2_size)};
    qsort(p, (size_t)n, sizeof *p, by_address);
    for (int i = 0; i < n; i++)
        if (m && p[i].lo < p[m - 1].hi)
            p[m - 1].hi = p[i].hi > p[m - 1].hi ? p[i].hi : p[m - 1].hi;
        else
            p[m++] = p[i];
    return m;
}

static eas_status copy_pieces(piece *p, int n)
{
    for (int i = 0; i < n; i++) {
        uint64_t skew = p[i].lo % 16; /* elements stay aligned as they are */
        p[i].copy = malloc(p[i].hi - p[i].lo + 32);
        if (!p[i].copy)
            return base_fail_oom(p[i].hi - p[i].lo);
        memcpy(p[i].copy + skew, (const void *)(uintptr_t)p[i].lo, p[i].hi - p[i].lo);
    }
    return EAS_OK;
}

static void redirect(const eas_kernel *k, const piece *p, int n, uint64_t *slot)
{
    for (int i = 0; i < k->nparams; i++)
        for (int j = 0; j < n && k->params[i].is_buffer; j++)
            if (slot[i] >= p[j].lo && slot[i] < p[j].hi) {
                slot[i] = (uint64_t)(uintptr_t)p[j].copy + p[j].lo % 16 + (slot[i] - p[j].lo);
                break;
            }
}

static eas_status run_check(eas_kernel *k, const eas_launch *o, uint64_t *slot, const int64_t *count,
                            const int64_t grid[3], eas_report *r)
{
    piece pieces[IR_MAX_PARAMS] = {0};
    int n = find_pieces(k, slot, count, pieces);
    eas_status st = copy_pieces(pieces, n);
    if (!st) {
        redirect(k, pieces, n, slot);
        ir_call call = {.slot = slot, .count = count, .grid = {grid[0], grid[1], grid[2]}};
        if (o && o->interrupted) {
            call.interrupted = o->interrupted;
            call.ctx = o->ctx;
        }
        st = ir_check(r->ir, &call, &r->r);
    }
    for (int i = 0; i < n; i++)
        free(pieces[i].copy);
    return st;
}

eas_status eas_kernel_check(eas_kernel *k, const eas_arg *args, int nargs, const eas_launch *o,
                            eas_report **out)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    uint64_t slot[IR_MAX_PARAMS];
    int64_t count[IR_MAX_PARAMS], grid[3];
    eas_ir *ir;
    *out = NULL;
    eas_status st = kernel_pack(k, args, nargs, o, slot, count, grid);
    if (!st)
        st = kernel_form(k, 0, &ir);
    eas_report *r = st ? NULL : calloc(1, sizeof *r);
    if (!r)
        return st ? st : base_fail_oom(sizeof *r);
    ir_range scalar[IR_MAX_PARAMS];
    for (int i = 0; i < k->nparams; i++)
        scalar[i] = (ir_range){(int64_t)slot[i], (int64_t)slot[i]};
    const ir_env env = {.scalar = scalar, .grid = {grid[0], grid[1], grid[2]}, .count = count};
    if (grid[0] && grid[1] && grid[2] && ir_in_bounds(ir, &env, NULL) != IR_PROVED_ALL)
        st = ir_demanded(ir, &r->ir); /* as a launch runs it that is not proved to stay inside */
    else
        r->ir = eas_ir_retain(ir);
    if (!st && grid[0] && grid[1] && grid[2])
        st = run_check(k, o, slot, count, grid, r);
    if (st)
        eas_report_free(r);
    else
        *out = r;
    return st;
}

void eas_report_free(eas_report *r)
{
    if (!r)
        return;
    vec_free(&r->r.findings);
    eas_ir_release(r->ir);
    free(r);
}

int eas_report_count(const eas_report *r)
{
    NEED(r, 0);
    return (int)r->r.findings.len;
}

static eas_place place(const ir_place *p)
{
    return (eas_place){.file = p->file,
                       .line = p->line,
                       .program = {p->program[0], p->program[1], p->program[2]},
                       .thread = p->thread};
}

eas_finding eas_report_at(const eas_report *r, int i)
{
    NEED(r, ((eas_finding){0}));
    if (i < 0 || (uint32_t)i >= r->r.findings.len)
        return (eas_finding){0};
    const ir_finding *f = &r->r.findings.at[i];
    return (eas_finding){.kind = f->kind,
                         .arg = f->buf && f->buf <= (uint32_t)r->ir->nparams ? r->ir->params[f->buf - 1].name
                                                                             : NULL,
                         .index = f->index,
                         .count = f->count,
                         .at = {place(&f->at[0]), place(&f->at[1])}};
}

const char *eas_finding_name(eas_finding_kind kind)
{
    static const char *const names[] = {"write-write race", "read-write race", "divergent barrier",
                                        "uninitialised read", "out of bounds"};
    return (unsigned)kind < sizeof names / sizeof *names ? names[kind] : "unknown finding";
}

/* ---- text ---- */

static void add_place(str *s, const eas_place *p, bool program)
{
    str_add(s, "%s:%d", p->file ? p->file : "?", p->line);
    if (program)
        str_add(s, " (program %lld, %lld, %lld", (long long)p->program[0], (long long)p->program[1],
                (long long)p->program[2]);
    else
        str_add(s, " (");
    if (p->thread >= 0)
        str_add(s, "%sthread %lld", program ? ", " : "", (long long)p->thread);
    str_add(s, ")");
}

static void add_finding(str *s, const eas_finding *f)
{
    bool across = memcmp(f->at[0].program, f->at[1].program, sizeof f->at[0].program) != 0;
    str_add(s, "%s", eas_finding_name(f->kind));
    if (f->kind == EAS_FOUND_DIVERGENT_BARRIER) {
        str_add(s, " at ");
        add_place(s, &f->at[0], true);
        str_add(s, "; another thread does not come: it went another way at ");
        add_place(s, &f->at[1], false);
    } else {
        bool race = f->kind == EAS_FOUND_WRITE_WRITE || f->kind == EAS_FOUND_READ_WRITE;
        str_add(s, "%s: element %lld of %s%s%s, ",
                !race    ? ""
                : across ? " between programs"
                         : " between threads without a barrier",
                (long long)f->index, f->arg ? "\"" : "", f->arg ? f->arg : "a threadgroup array",
                f->arg ? "\"" : "");
        add_place(s, &f->at[0], true);
        if (race) {
            str_add(s, " and ");
            add_place(s, &f->at[1], true);
        }
    }
    if (f->count > 1)
        str_add(s, "; %lld times", (long long)f->count);
}

eas_status eas_report_text(const eas_report *r, char **out)
{
    NEED(r, EAS_ERR_HANDLE);
    str s = {0};
    *out = NULL;
    str_add(&s, "kernel %s: %s", r->ir->name, r->r.findings.len ? "" : "nothing found");
    for (int i = 0; i < eas_report_count(r); i++) {
        eas_finding f = eas_report_at(r, i);
        str_add(&s, "\n  ");
        add_finding(&s, &f);
    }
    return str_take(&s, out);
}
