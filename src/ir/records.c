/* records.c: the records that `print` writes, and the text that is made of them.
 *
 * No device knows how to print. ir_printed turns each print into a place taken from a counter and stores into
 * a buffer of records, two parameters that launches add to the caller's; afterwards the host puts records in
 * order and writes them. A record is `stride` words of 32 bits:
 *
 *   program (low, high), which print, thread; lanes of the mask, if it is a block; lanes of each value
 *
 * with the low word first. In thread mode each thread writes a record of its own, and the records of one
 * program that belong to one print are joined here.
 */
#include "interp.h"

#include <stdio.h>

enum { HEAD = 4, MAX_WORDS = 1 << 24, MANY = 1000, EDGE = 3 };

/* ---- values as text ---- */

/* The shortest digits that read back as the same float, as NumPy writes them: with a point where that is
 * not too long. */
static void add_float(str *s, eas_dtype dt, int64_t bits)
{
    double d = ir_bits_to_double(dt, bits);
    char text[40], digits[24];
    int n = 0, exponent, longest = dt == EAS_F64 ? 16 : dt == EAS_F32 ? 6 : 3;
    if (d != d || d - d != 0) {
        str_add(s, d != d ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    for (int more = 0; more < 17; more++) {
        snprintf(text, sizeof text, "%.*e", more, d);
        if (ir_bits_from_double(dt, strtod(text, NULL)) == bits)
            break;
    }
    const char *p = text + (*text == '-');
    for (; *p && *p != 'e'; p++)
        if (*p != '.')
            digits[n++] = *p;
    digits[n] = 0;
    exponent = atoi(p + 1);
    str_add(s, "%s", *text == '-' ? "-" : "");
    if (exponent < -4 || exponent >= longest)
        str_add(s, n > 1 ? "%c.%se%+03d" : "%c%se%+03d", digits[0], digits + 1, exponent);
    else if (exponent < 0)
        str_add(s, "0.%.*s%s", -exponent - 1, "0000", digits);
    else if (n <= exponent + 1)
        str_add(s, "%s%.*s.0", digits, exponent + 1 - n, "0000000000000000");
    else
        str_add(s, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
}

static void add_value(str *s, eas_dtype dt, int64_t bits)
{
    if (dt == EAS_BOOL)
        str_add(s, bits ? "True" : "False");
    else if (dt == EAS_U64)
        str_add(s, "%llu", (unsigned long long)bits);
    else if (!dtype_is_float(dt))
        str_add(s, "%lld", (long long)bits);
    else
        add_float(s, dt, bits);
}

typedef struct lanes { /* of one value */
    eas_dtype dt;
    int rank;         /* 0: one value, without brackets */
    int64_t dim[IR_MAX_RANK];
    const int64_t *bits;
} lanes;

/* Rows in brackets; of a long block only the ends, as NumPy does. */
static const int64_t *add_rows(str *s, const lanes *v, int axis, const int64_t *at, bool all)
{
    int64_t inner = 1;
    if (axis == v->rank || axis == IR_MAX_RANK)
        return add_value(s, v->dt, *at), at + 1;
    for (int i = axis + 1; i < v->rank; i++)
        inner *= v->dim[i];
    str_add(s, "[");
    for (int64_t i = 0; i < v->dim[axis]; i++) {
        if (!all && v->dim[axis] > 2 * EDGE && i == EDGE) {
            str_add(s, " ...");
            at += (v->dim[axis] - 2 * EDGE) * inner;
            i = v->dim[axis] - EDGE;
        }
        str_add(s, i ? " " : "");
        at = add_rows(s, v, axis + 1, at, all);
    }
    str_add(s, "]");
    return at;
}

static void add_lanes(str *s, const lanes *v)
{
    int64_t n = 1;
    for (int i = 0; i < v->rank; i++)
        n *= v->dim[i];
    add_rows(s, v, 0, v->bits, n <= MANY);
}

/* The text with a value in each {}. */
static void add_text(str *s, const char *text, const lanes *v)
{
    for (const char *p = text; *p; p++) {
        if (p[0] == '{' && p[1] == '}')
            add_lanes(s, v++);
        else
            str_put(s, p, 1);
        p += (p[0] == '{' || p[0] == '}') && p[1];
    }
}

/* "0-3, 7" */
static void add_numbers(str *s, const int64_t *who, int64_t n)
{
    for (int64_t i = 0; i < n;) {
        int64_t k = i;
        while (k + 1 < n && who[k + 1] == who[k] + 1)
            k++;
        str_add(s, "%s%lld", i ? ", " : "", (long long)who[i]);
        if (k > i)
            str_add(s, "-%lld", (long long)who[k]);
        i = k + 1;
    }
}

/* "program 3, threads 0-31: "; who: the threads or lanes that print, NULL where it is the program */
static void add_head(str *s, const int64_t pid[3], int naxes, const char *what, const int64_t *who, int64_t n)
{
    str_add(s, "program %lld", (long long)pid[0]);
    for (int a = 1; a < naxes; a++)
        str_add(s, ", %lld", (long long)pid[a]);
    if (who) {
        str_add(s, ", %s%s ", what, n == 1 ? "" : "s");
        add_numbers(s, who, n);
    }
    str_add(s, ": ");
}

/* ---- printing at once: on the interpreter, and while a live kernel is built ---- */

static int64_t lanes_on(const run *r, uint32_t mask, int64_t n, int64_t *who)
{
    int64_t on = 0;
    for (int64_t k = 0; k < n; k++)
        if ((r->threads == 1 ? r->active[0] : r->active[k]) && (!mask || r->val[mask][k]))
            who[on++] = k;
    return on;
}

static void say(const ir_call *call, const str *s)
{
    if (s->oom || !s->at)
        return;
    if (call->print)
        call->print(call->print_ctx, s->at, s->len);
    else
        fwrite(s->at, 1, s->len, stdout);
}

/* Values of the lanes that print, one after the other; rows: as one row. */
static bool pick(const run *r, uint32_t v, const int64_t *who, int64_t on, bool rows, arena *mem, lanes *out)
{
    int64_t *bits = arena_alloc(mem, (size_t)on * sizeof *bits);
    ir_type t = ir_typeof(r->ir, v);
    for (int64_t k = 0; k < on && bits; k++)
        bits[k] = r->val[v][who[k]];
    *out = (lanes){.dt = t.dtype, .rank = rows, .dim = {on}, .bits = bits};
    return bits != NULL;
}

static lanes whole(const run *r, uint32_t v)
{
    ir_type t = ir_typeof(r->ir, v);
    lanes l = {.dt = t.dtype, .rank = t.rank, .bits = r->val[v]};
    for (int i = 0; i < t.rank; i++)
        l.dim[i] = t.dim[i];
    return l;
}

void interp_print(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    const char *text = r->ir->strings[in->imm];
    int n = ir_print_values(text);
    uint32_t mask = in->nargs > n ? a[n] : 0;
    bool thread = r->ir->threads != 0, some = thread || (mask && ir_typeof(r->ir, mask).rank);
    int64_t all = mask ? interp_lanes(r, mask) : r->threads, on;
    arena mem = {0};
    int64_t *who = arena_alloc(&mem, (size_t)all * sizeof *who);
    lanes *v = arena_alloc(&mem, (size_t)(n + 1) * sizeof *v);
    str s = {0};
    if (!mem.oom && (on = lanes_on(r, mask, all, who))) {
        int naxes = r->info.naxes > 1 ? r->info.naxes : 1;
        for (int axis = naxes; axis < 3; axis++)
            naxes = r->pid[axis] || r->call->grid[axis] > 1 ? axis + 1 : naxes;
        add_head(&s, r->pid, naxes, thread ? "thread" : "lane", some ? who : NULL, on);
        for (int k = 0; k < n && !mem.oom; k++) {
            if (some)
                pick(r, a[k], who, on, on > 1, &mem, &v[k]);
            else
                v[k] = whole(r, a[k]);
        }
        if (!mem.oom)
            add_text(&s, text, v);
        str_add(&s, "\n");
        say(r->call, &s);
    }
    if (mem.oom || s.oom)
        r->st = base_fail_oom((size_t)all * sizeof *who);
    str_free(&s);
    arena_free(&mem);
}

/* ---- the pass ---- */

typedef struct printer {
    ir_rewrite w;
    uint32_t count, words; /* the two buffers */
    ir_records rec;
    uint32_t which;        /* print */
} printer;

static int words_of(eas_dtype dt) { return eas_dtype_size(dt) == 8 ? 2 : 1; }

static int64_t record_words(const eas_ir *ir, const ir_insn *in)
{
    int n = ir_print_values(ir->strings[in->imm]);
    int64_t words = HEAD;
    for (int k = 0; k < n; k++)
        words +=
            ir_lanes(ir_typeof(ir, ir_args(ir, in)[k])) * words_of(ir_typeof(ir, ir_args(ir, in)[k]).dtype);
    return in->nargs > n && ir_typeof(ir, ir_args(ir, in)[n]).rank
             ? words + ir_lanes(ir_typeof(ir, ir_args(ir, in)[n]))
             : words;
}

static uint32_t op2(printer *p, uint16_t op, uint32_t x, uint32_t y) { return irb_op(p->w.b, op, x, y, 0); }
static uint32_t number(printer *p, int64_t v) { return irb_const(p->w.b, ir_scalar(EAS_I64), v); }
static uint32_t cast(printer *p, uint32_t x, eas_dtype dt)
{
    return p->w.b->status ? 0 : irb_to(p->w.b, IR_CAST, ir_with_dtype(ir_typeof(p->w.b->ir, x), dt), x);
}

/* The same bits, as an unsigned integer. */
static uint32_t as_unsigned(printer *p, uint32_t x)
{
    static const eas_dtype same[9] = {[1] = EAS_U8, [2] = EAS_U16, [4] = EAS_U32, [8] = EAS_U64};
    eas_dtype dt = p->w.b->status ? EAS_BOOL : ir_typeof(p->w.b->ir, x).dtype;
    return dt == EAS_BOOL ? cast(p, x, EAS_U32)
                          : irb_to(p->w.b, IR_BITCAST,
                                   ir_with_dtype(ir_typeof(p->w.b->ir, x), same[eas_dtype_size(dt)]), x);
}

static void put(printer *p, uint32_t off, uint32_t word, uint32_t mask)
{
    uint32_t args[4] = {p->words, off, word, mask};
    irb_insn(p->w.b, IR_STORE, args, 4, 0, 0, NULL);
}

/* A value from word `at` of the record that begins at base; returns the word behind it. */
static int64_t put_value(printer *p, uint32_t base, int64_t at, uint32_t x, uint32_t keep)
{
    ir_type t = p->w.b->status ? ir_scalar(EAS_BOOL) : ir_typeof(p->w.b->ir, x);
    int64_t n = ir_lanes(t);
    int w = words_of(t.dtype);
    uint32_t u = as_unsigned(p, x), off = op2(p, IR_ADD, base, number(p, at)), each = off;
    if (t.rank) {
        ir_type row = {.dtype = EAS_I64, .kind = IR_VAL, .rank = 1, .dim = {(int32_t)n}};
        u = p->w.b->status
              ? 0
              : irb_to(p->w.b, IR_RESHAPE, ir_with_dtype(row, ir_typeof(p->w.b->ir, u).dtype), u);
        each = op2(p, IR_MUL, irb_typed(p->w.b, IR_ARANGE, row, 0), irb_const(p->w.b, row, w));
        each = op2(p, IR_ADD, p->w.b->status ? 0 : irb_to(p->w.b, IR_BROADCAST, row, off), each);
        keep = p->w.b->status ? 0 : irb_to(p->w.b, IR_BROADCAST, ir_with_dtype(row, EAS_BOOL), keep);
    }
    for (int k = 0; k < w && !p->w.b->status; k++) {
        ir_type wide = ir_typeof(p->w.b->ir, u), it = ir_typeof(p->w.b->ir, each);
        put(p, k ? op2(p, IR_ADD, each, irb_const(p->w.b, it, 1)) : each,
            cast(p, k ? op2(p, IR_SHR, u, irb_const(p->w.b, wide, 32)) : u, EAS_U32), keep);
    }
    return at + n * w;
}

static uint32_t any_lane(printer *p, uint32_t mask)
{
    for (int axis = p->w.b->status ? 0 : ir_typeof(p->w.b->ir, mask).rank; axis > 0; axis--)
        mask = eas_builder_reduce(p->w.b, IR_OR, mask, axis - 1);
    return mask;
}

static uint32_t count_up(printer *p, int64_t which, uint32_t mask)
{
    uint32_t args[4] = {p->count, number(p, which), irb_const(p->w.b, ir_scalar(EAS_U32), 1), mask};
    ir_type t = {0};
    return irb_insn(p->w.b, IR_ATOMIC_ADD, args, 4, 0, 1, &t);
}

/* A place among the records: its number, and whether there is room. The counter stands still when it is
 * full, so that it cannot wrap. */
static uint32_t take_place(printer *p, uint32_t on, uint32_t *keep)
{
    uint32_t args[2] = {p->count, number(p, 0)}, cap = irb_const(p->w.b, ir_scalar(EAS_U32), p->rec.cap);
    ir_type t = {0};
    uint32_t room = op2(p, IR_AND, on, op2(p, IR_LT, irb_insn(p->w.b, IR_LOAD, args, 2, 0, 1, &t), cap));
    uint32_t place = count_up(p, 0, room);
    *keep = op2(p, IR_AND, room, op2(p, IR_LT, place, cap));
    count_up(p, 1, op2(p, IR_AND, on, irb_op(p->w.b, IR_NOT, *keep, 0, 0)));
    return op2(p, IR_MUL, cast(p, place, EAS_I64), number(p, p->rec.stride));
}

static uint32_t program(printer *p)
{
    uint32_t at = eas_builder_program_id(p->w.b, 2);
    for (int a = 1; a >= 0; a--)
        at = op2(p, IR_ADD, op2(p, IR_MUL, at, eas_builder_num_programs(p->w.b, a)),
                 eas_builder_program_id(p->w.b, a));
    return at;
}

static void lower(printer *p, const ir_insn *in)
{
    const eas_ir *ir = p->w.from;
    int n = ir_print_values(ir->strings[in->imm]);
    uint32_t mask = in->nargs > n ? p->w.map[ir_args(ir, in)[n]] : 0, keep;
    bool block = mask && ir_typeof(ir, ir_args(ir, in)[n]).rank;
    uint32_t on = !mask ? irb_const(p->w.b, ir_scalar(EAS_BOOL), 1) : any_lane(p, mask),
             base = take_place(p, on, &keep);
    int64_t at = put_value(p, base, 0, program(p), keep);
    at = put_value(p, base, at, irb_const(p->w.b, ir_scalar(EAS_U32), p->which++), keep);
    uint32_t thread = ir->threads ? irb_typed(p->w.b, IR_THREAD_ID, ir_scalar(EAS_U32), ir->threads)
                                  : irb_const(p->w.b, ir_scalar(EAS_U32), 0);
    at = put_value(p, base, at, thread, keep);
    if (block)
        at = put_value(p, base, at, mask, keep);
    for (int k = 0; k < n; k++)
        at = put_value(p, base, at, p->w.map[ir_args(ir, in)[k]], keep);
}

static void measure(printer *p, int64_t limit)
{
    p->rec.limit = limit;
    p->rec.stride = HEAD;
    for (uint32_t i = 0; i < p->w.from->ninsns; i++)
        if (p->w.from->insns[i].op == IR_PRINT) {
            int64_t words = record_words(p->w.from, &p->w.from->insns[i]);
            p->rec.stride = words > p->rec.stride ? words : p->rec.stride;
        }
    int64_t most = MAX_WORDS / p->rec.stride, want = limit * (p->w.from->threads ? p->w.from->threads : 1);
    p->rec.cap = want > most ? most : want;
    p->rec.cap = p->rec.cap < 1 ? 1 : p->rec.cap;
}

bool ir_prints(const eas_ir *ir)
{
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (ir->insns[i].op == IR_PRINT)
            return true;
    return false;
}

eas_status ir_printed(const eas_ir *ir, int64_t limit, eas_ir **out, ir_records *rec)
{
    printer p = {0};
    *out = NULL;
    eas_status st = ir_rewrite_begin(&p.w, ir);
    if (!st) {
        measure(&p, limit);
        p.count = irb_param(p.w.b, "eas_print_count", (ir_type){.dtype = EAS_U32, .kind = IR_BUF}, false);
        p.words = irb_param(p.w.b, "eas_print_words", (ir_type){.dtype = EAS_U32, .kind = IR_BUF}, false);
    }
    for (uint32_t i = 0; i < ir->ninsns && !st; i++) {
        const ir_insn *in = ir_rewrite_at(&p.w, i);
        if (in->op == IR_PRINT)
            lower(&p, in);
        else
            ir_rewrite_copy(&p.w, i);
    }
    *rec = p.rec;
    return ir_rewrite_end_simple(&p.w, st, out);
}

/* ---- after the launch: putting records in order ---- */

typedef struct record {
    int64_t program;
    /* round: this is the n-th time that the thread reached the print; first: the first place of the line */
    uint32_t which, thread, place, round, first;
} record;

static int by_thread(const void *x, const void *y)
{
    const record *a = x, *b = y;
    if (a->program != b->program)
        return a->program < b->program ? -1 : 1;
    if (a->which != b->which)
        return a->which < b->which ? -1 : 1;
    if (a->thread != b->thread)
        return a->thread < b->thread ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

static int by_round(const void *x, const void *y)
{
    const record *a = x, *b = y;
    if (a->program != b->program)
        return a->program < b->program ? -1 : 1;
    if (a->which != b->which)
        return a->which < b->which ? -1 : 1;
    if (a->round != b->round)
        return a->round < b->round ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

static int by_line(const void *x, const void *y)
{
    const record *a = x, *b = y;
    if (a->program != b->program)
        return a->program < b->program ? -1 : 1;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return a->thread < b->thread ? -1 : a->thread > b->thread;
}

/* ---- merging the lines of a group's threads: those of one thread are in order, the order of threads is
 * chance ---- */

typedef struct merge {
    const record *r; /* of one program, by thread */
    const uint32_t *loop; /* of each print: which outermost loop it stands in; 0: none */
    uint32_t *head, *end; /* of each thread, in r */
    uint32_t *waiting; /* of each line: how many of its threads have not come to it yet */
    uint32_t *rank; /* of each line; 0: not placed */
    uint32_t nthreads;
} merge;

static bool comes_before(const merge *m, const record *a, const record *b)
{
    bool together = m->loop[a->which] && m->loop[a->which] == m->loop[b->which];
    if (together && a->round != b->round)
        return a->round < b->round;
    return a->which != b->which ? a->which < b->which : a->round < b->round;
}

/* Advances the thread to its next line that is not placed. */
static void settle(merge *m, uint32_t t)
{
    while (m->head[t] < m->end[t] && m->rank[m->r[m->head[t]].first])
        m->head[t]++;
    if (m->head[t] < m->end[t])
        m->waiting[m->r[m->head[t]].first]--;
}

/* The next line to write: the first that all of its threads have come to. If there is none, because threads
 * took different ways round a loop, the first that any thread has come to. */
static uint32_t next_line(const merge *m)
{
    const record *best = NULL, *any = NULL;
    for (uint32_t t = 0; t < m->nthreads; t++) {
        const record *c = m->head[t] < m->end[t] ? &m->r[m->head[t]] : NULL;
        if (c && (!any || comes_before(m, c, any)))
            any = c;
        if (c && !m->waiting[c->first] && (!best || comes_before(m, c, best)))
            best = c;
    }
    return best ? best->first : any->first;
}

/* r: the records of one program, by thread and place, with the number of their line (of nlines) in
 * `first`; that becomes its place. */
static bool merge_threads(record *r, uint32_t n, uint32_t nlines, const uint32_t *loop)
{
    arena mem = {0};
    merge m = {.r = r,
               .loop = loop,
               .head = arena_alloc(&mem, n * sizeof *m.head),
               .end = arena_alloc(&mem, n * sizeof *m.end)};
    m.waiting = arena_alloc(&mem, nlines * sizeof *m.waiting);
    m.rank = arena_alloc(&mem, nlines * sizeof *m.rank);
    if (!mem.oom) {
        memset(m.waiting, 0, nlines * sizeof *m.waiting);
        memset(m.rank, 0, nlines * sizeof *m.rank);
        for (uint32_t i = 0; i < n; i++) {
            m.waiting[r[i].first]++;
            if (!i || r[i].thread != r[i - 1].thread)
                m.head[m.nthreads++] = i;
            m.end[m.nthreads - 1] = i + 1;
        }
        for (uint32_t t = 0; t < m.nthreads; t++)
            settle(&m, t);
        for (uint32_t k = 1; k <= nlines; k++) {
            uint32_t line = next_line(&m);
            m.rank[line] = k;
            for (uint32_t t = 0; t < m.nthreads; t++)
                if (m.head[t] < m.end[t] && r[m.head[t]].first == line)
                    settle(&m, t);
        }
        for (uint32_t i = 0; i < n; i++)
            r[i].first = m.rank[r[i].first];
    }
    bool ok = !mem.oom;
    arena_free(&mem);
    return ok;
}

static int by_place(const void *x, const void *y)
{
    const record *a = x, *b = y;
    if (a->program != b->program)
        return a->program < b->program ? -1 : 1;
    if (a->thread != b->thread)
        return a->thread < b->thread ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

/* loop: see merge; NULL where programs have one thread. */
static bool put_in_order(record *r, uint32_t n, const uint32_t *loop)
{
    qsort(r, n, sizeof *r, by_thread);
    for (uint32_t i = 1; i < n; i++)
        if (r[i].program == r[i - 1].program && r[i].which == r[i - 1].which &&
            r[i].thread == r[i - 1].thread)
            r[i].round = r[i - 1].round + 1;
    qsort(r, n, sizeof *r, by_round);
    for (uint32_t i = 0, line = 0; i < n; i++) {
        bool inside = i && r[i].program == r[i - 1].program,
             same = inside && r[i].which == r[i - 1].which && r[i].round == r[i - 1].round;
        line = !inside ? 0 : same ? line : line + 1;
        r[i].first = loop ? line : same ? r[i - 1].first : r[i].place;
    }
    bool ok = true;
    if (loop)
        qsort(r, n, sizeof *r, by_place);
    for (uint32_t i = 0, k; i < n && loop && ok; i = k) {
        uint32_t nlines = 0;
        for (k = i; k < n && r[k].program == r[i].program; k++)
            nlines = r[k].first + 1 > nlines ? r[k].first + 1 : nlines;
        ok = merge_threads(r + i, k - i, nlines, loop);
    }
    qsort(r, n, sizeof *r, by_line);
    return ok;
}

typedef struct reader {
    const eas_ir *ir;
    const ir_records *rec;
    const uint32_t *words;
    const uint32_t *prints; /* their instructions */
    const uint32_t *loop; /* see merge */
    int naxes;
    int64_t grid[3];
} reader;

static int64_t element(const uint32_t *w, eas_dtype dt)
{
    uint64_t bits = words_of(dt) == 2 ? (uint64_t)w[0] | (uint64_t)w[1] << 32 : w[0];
    return interp_load_element(dt, (const uint8_t *)&bits);
}

/* Values of n records (threads of one group), or the lanes of one that are on (who; NULL: all of them in
 * their shape). */
static bool read_lanes(const reader *q, const record *r, int64_t n, int64_t at, ir_type t, const int64_t *who,
                       int64_t on, arena *mem, lanes *out)
{
    int w = words_of(t.dtype);
    int64_t all = who ? on : n * ir_lanes(t);
    int64_t *bits = arena_alloc(mem, (size_t)all * sizeof *bits);
    for (int64_t k = 0; k < all && bits; k++) {
        const record *from = &r[n > 1 ? k : 0];
        bits[k] = element(q->words + (int64_t)from->place * q->rec->stride + at +
                              (n > 1 ? 0
                               : who ? who[k]
                                     : k) *
                                  w,
                          t.dtype);
    }
    *out = (lanes){.dt = t.dtype, .rank = who ? on > 1 : n > 1 ? 1 : t.rank, .dim = {all}, .bits = bits};
    for (int i = 0; i < t.rank && !who && n == 1; i++)
        out->dim[i] = t.dim[i];
    return bits != NULL;
}

static bool add_line(const reader *q, str *s, const record *r, int64_t n, arena *mem)
{
    const ir_insn *in = &q->ir->insns[q->prints[r->which]];
    const uint32_t *a = ir_args(q->ir, in);
    const char *text = q->ir->strings[in->imm];
    int values = ir_print_values(text);
    ir_type mask = in->nargs > values ? ir_typeof(q->ir, a[values]) : ir_scalar(EAS_BOOL);
    bool thread = q->ir->threads != 0;
    int64_t lanes_all = ir_lanes(mask), on = 0, at = HEAD + (mask.rank ? lanes_all : 0), p = r->program;
    int64_t pid[3] = {p % q->grid[0], p / q->grid[0] % q->grid[1], p / (q->grid[0] * q->grid[1])};
    int64_t *who = arena_alloc(mem, (size_t)(thread ? n : lanes_all) * sizeof *who);
    lanes *v = arena_alloc(mem, (size_t)(values + 1) * sizeof *v);
    if (mem->oom)
        return false;
    for (int64_t k = 0; k < n && thread; k++)
        who[on++] = r[k].thread;
    for (int64_t k = 0; k < lanes_all && mask.rank; k++)
        if (q->words[(int64_t)r->place * q->rec->stride + HEAD + k])
            who[on++] = k;
    add_head(s, pid, q->naxes, thread ? "thread" : "lane", thread || mask.rank ? who : NULL, on);
    for (int k = 0; k < values && !mem->oom; k++) {
        ir_type t = ir_typeof(q->ir, a[k]);
        read_lanes(q, r, n, at, t, mask.rank ? who : NULL, on, mem, &v[k]);
        at += ir_lanes(t) * words_of(t.dtype);
    }
    if (!mem->oom)
        add_text(s, text, v);
    str_add(s, "\n");
    return !mem->oom;
}

static record *read_records(const reader *q, uint32_t n, arena *mem)
{
    record *r = arena_alloc(mem, ((size_t)n + 1) * sizeof *r);
    for (uint32_t i = 0; i < n && r; i++) {
        const uint32_t *w = q->words + (int64_t)i * q->rec->stride;
        r[i] = (record){.program = (int64_t)((uint64_t)w[0] | (uint64_t)w[1] << 32),
                        .which = w[2],
                        .thread = w[3],
                        .place = i};
    }
    return r && put_in_order(r, n, q->ir->threads ? q->loop : NULL) ? r : NULL;
}

/* The instruction of each print, and the outermost loop around it, counted from 1. */
static void find_prints(const eas_ir *ir, uint32_t *prints, uint32_t *loop)
{
    uint32_t np = 0, depth = 0, loops = 0;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        uint16_t op = ir->insns[i].op;
        if (op == IR_LOOP || op == IR_WHILE)
            loops += !depth++;
        else if (op == IR_ENDLOOP || op == IR_ENDWHILE)
            depth--;
        else if (op == IR_PRINT)
            loop[np] = depth ? loops : 0, prints[np++] = i;
    }
}

/* How many records were dropped, counted as lines: those that found no place are thought to be like the
 * others. */
static uint64_t dropped(uint32_t lost, uint32_t n, int64_t found, int64_t shown)
{
    uint64_t each = found ? ((uint64_t)n + (uint64_t)found - 1) / (uint64_t)found : 1;
    return (uint64_t)(found - shown) + (lost + each - 1) / each;
}

bool ir_add_records(str *s, const eas_ir *ir, const ir_records *rec, const uint32_t count[2],
                    const uint32_t *words, const int64_t grid[3])
{
    arena mem = {0};
    uint32_t n = count[0] < rec->cap ? count[0] : (uint32_t)rec->cap,
             *prints = arena_alloc(&mem, (ir->ninsns + 1) * sizeof *prints);
    uint32_t *loop = arena_alloc(&mem, (ir->ninsns + 1) * sizeof *loop);
    if (!mem.oom)
        find_prints(ir, prints, loop);
    reader q = {
        ir, rec, words, mem.oom ? NULL : prints, loop, ir_analyse(ir).naxes, {grid[0], grid[1], grid[2]}};
    for (int a = 1; a < 3; a++)
        q.naxes = grid[a] > 1 && q.naxes <= a ? a + 1 : q.naxes;
    record *r = q.prints ? read_records(&q, n, &mem) : NULL;
    int64_t found = 0, shown = 0;
    bool ok = r != NULL;
    for (uint32_t i = 0, k; i < n && ok; i = k) {
        arena line = {0};
        for (k = i + 1; k < n && r[k].program == r[i].program && r[k].first == r[i].first;)
            k++;
        if (found++ < rec->limit) {
            ok = add_line(&q, s, &r[i], k - i, &line);
            shown++;
        }
        arena_free(&line);
    }
    uint64_t lost = dropped(count[1], n, found, shown);
    if (ok && lost)
        str_add(s, "... dropped %llu record%s\n", (unsigned long long)lost, lost == 1 ? "" : "s");
    arena_free(&mem);
    return ok && !s->oom;
}
