/* fuzz_diff.c: random kernels, run in every way there is, must leave the same bits in memory (any NaN is a
 * NaN).
 *
 *   raw          the interpreter on the IR as built
 *   live         the live builder, instruction by instruction
 *   simplified   the interpreter on what the simplifier makes of it; equal to raw where nothing may be
 *                contracted
 *   ref, cpu     launches, as a user's; cpu in the checked form, too
 *
 * and the text of the IR must come back from the parser. A kernel that fails is made smaller as long as it
 * fails, and printed.
 *
 *   fuzz_diff [KERNELS [SEED [SECONDS]]]      EAS_ISA chooses the instruction set of the cpu
 */
#include "diff.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

typedef struct verdict {
    const char *what; /* NULL: nothing is wrong */
    char text[400];
} verdict;

static verdict fine(void) { return (verdict){.what = NULL}; }

static verdict wrong(const char *what, const char *text)
{
    verdict v = {.what = what};
    snprintf(v.text, sizeof v.text, "%s", text ? text : "");
    return v;
}

/* ---- comparing ---- */

static bool is_nan(eas_dtype dt, int64_t bits)
{
    double d = dtype_is_float(dt) ? ir_bits_to_double(dt, bits) : 0;
    return d != d;
}

/* Which NaN it is stays open, so where buffers overlap, what another buffer has there may differ in a NaN's
 * bytes: does size bytes at `at` touch one of both? */
static bool over_nan(const trial *t, const uint8_t *want, const uint8_t *got, size_t at, size_t size)
{
    for (int b = 0; b < t->nbufs; b++) {
        const size_t each = eas_dtype_size(t->dtype[b]), from = t->offset[b];
        for (int64_t i = at > from ? (int64_t)((at - from) / each) : 0;
             i < t->count[b] && from + (size_t)i * each < at + size; i++) {
            int64_t x = 0, y = 0;
            memcpy(&x, want + from + (size_t)i * each, each);
            memcpy(&y, got + from + (size_t)i * each, each);
            if (is_nan(t->dtype[b], x) && is_nan(t->dtype[b], y))
                return true;
        }
    }
    return false;
}

static verdict compare(const trial *t, const char *what, const uint8_t *want, const uint8_t *got)
{
    char text[200];
    for (int b = 0; b < t->nbufs; b++)
        for (int64_t i = 0; i < t->count[b]; i++) {
            int64_t x = 0, y = 0;
            size_t size = eas_dtype_size(t->dtype[b]), at = t->offset[b] + (size_t)i * size;
            memcpy(&x, want + at, size);
            memcpy(&y, got + at, size);
            if (x == y || over_nan(t, want, got, at, size))
                continue;
            snprintf(text, sizeof text, "%s[%" PRId64 "]: expected %" PRIx64 ", got %" PRIx64,
                     t->ir->params[b].name, i, x, y);
            return wrong(what, text);
        }
    return fine();
}

/* ---- ways to run ---- */

static eas_status run_interp(const trial *t, const eas_ir *ir, uint8_t *memory)
{
    uint64_t slot[MAX_BUFS + 2];
    int64_t count[MAX_BUFS + 2] = {0};
    eas_ir *plain; /* the simplifier may have made a parameter narrower */
    eas_status st = ir_expanded(ir, 0, &plain);
    if (st)
        return st;
    for (int b = 0; b < t->nbufs; b++) {
        slot[b] = (uint64_t)(uintptr_t)(memory + t->offset[b]);
        count[b] = t->count[b];
    }
    slot[t->nbufs] = (uint64_t)t->n;
    slot[t->nbufs + 1] = (uint64_t)ir_bits_from_double(plain->vals[t->nbufs + 2].type.dtype, t->f);
    const ir_call call = {.slot = slot, .count = count, .grid = {t->grid[0], t->grid[1], t->grid[2]}};
    st = ir_interp(plain, &call);
    eas_ir_release(plain);
    return st;
}

static eas_status run_device(const trial *t, eas_kernel *k, const char *device, bool checked, uint8_t *memory)
{
    eas_arg args[MAX_BUFS + 2];
    int n = diff_args(t, memory, args);
    eas_launch opts = {
        .size = sizeof opts, .has_grid = 1, .debug = checked, .grid = {t->grid[0], t->grid[1], t->grid[2]}};
    eas_device *d;
    eas_status st = eas_device_get(device, &d);
    return st ? st : eas_kernel_launch(k, d, args, n, &opts);
}

/* The device that is compared with ref. */
static const char *tested(void)
{
    const char *e = getenv("EAS_FUZZ_DEVICE");
    return e && *e ? e : "cpu";
}

static uint8_t *fresh(const trial *t)
{
    uint8_t *m = malloc(t->bytes + 1);
    return m ? memcpy(m, t->memory, t->bytes) : NULL;
}

/* ---- one kernel ---- */

static verdict check_text(const eas_ir *ir)
{
    char *first = NULL, *again = NULL;
    eas_ir *back = NULL;
    verdict v = fine();
    if (eas_ir_text(ir, 1, &first) || eas_ir_parse(first, strlen(first), &back) ||
        eas_ir_text(back, 1, &again))
        v = wrong("text", eas_error_message());
    else if (strcmp(first, again))
        v = wrong("text", "it changes on its way");
    eas_memory_free(first);
    eas_memory_free(again);
    eas_ir_release(back);
    return v;
}

static verdict check_simplified(const trial *t, const uint8_t *raw)
{
    eas_ir *simple = NULL;
    uint8_t *m = fresh(t);
    eas_status st = eas_ir_simplify(t->ir, &simple);
    if (!st)
        st = run_interp(t, simple, m);
    verdict v = st ? wrong("simplified", eas_error_message()) : compare(t, "simplified", raw, m);
    if (!v.what)
        v = check_text(simple);
    eas_ir_release(simple);
    free(m);
    return v;
}

static verdict check_live(const trial *t, const uint8_t *raw)
{
    uint8_t *m = fresh(t);
    verdict v = diff_live(t, t->ir, m) ? wrong("live", eas_error_message()) : compare(t, "live", raw, m);
    free(m);
    return v;
}

static long launched, refused; /* on the tested device; with ERR_UNAVAILABLE */

static verdict check_devices(const trial *t)
{
    eas_kernel *k = NULL;
    uint8_t *ref = fresh(t), *cpu = fresh(t), *checked = fresh(t);
    verdict v = fine();
    if (eas_kernel_new(t->ir, &k))
        v = wrong("kernel", eas_error_message());
    else if (run_device(t, k, "ref", false, ref))
        v = wrong("ref", eas_error_message());
    eas_status st = v.what ? EAS_OK : run_device(t, k, tested(), false, cpu);
    launched += !v.what;
    refused += st == EAS_ERR_UNAVAILABLE;
    if (st && st != EAS_ERR_UNAVAILABLE)
        v = wrong(tested(), eas_error_message());
    else if (!v.what && !st)
        v = compare(t, tested(), ref, cpu);
    if (!v.what && !st && t->n % 4 == 0)
        v = run_device(t, k, tested(), true, checked) ? wrong("checked", eas_error_message())
                                                      : compare(t, "checked", ref, checked);
    eas_kernel_release(k);
    free(ref);
    free(cpu);
    free(checked);
    return v;
}

static verdict check(const trial *t)
{
    uint8_t *raw = fresh(t);
    verdict v = run_interp(t, t->ir, raw) ? wrong("raw", eas_error_message()) : fine();
    if (!v.what)
        v = check_text(t->ir);
    if (!v.what)
        v = check_live(t, raw);
    if (!v.what && (t->ir->flags & EAS_KERNEL_NO_CONTRACT))
        v = check_simplified(t, raw);
    if (!v.what)
        v = check_devices(t);
    free(raw);
    return v;
}

static verdict check_knobs(const knobs *k)
{
    trial t;
    char why[400];
    if (!diff_make(k, &t, why, sizeof why))
        return wrong("builder", why);
    verdict v = check(&t);
    diff_free(&t);
    return v;
}

/* ---- making it smaller ---- */

/* What stands for a result of an instruction that is left out. */
static uint32_t stand_in(eas_builder *b, const eas_ir *ir, const uint32_t *map, const ir_insn *in, int k)
{
    ir_type t = ir_typeof(ir, in->res + (uint32_t)k);
    if (in->op == IR_MOD) /* an index, or how far a loop goes */
        return irb_const(b, t, 0);
    for (int a = 0; a < in->nargs; a++)
        if (ir_type_eq(ir_typeof(ir, ir_args(ir, in)[a]), t))
            return map[ir_args(ir, in)[a]];
    return t.kind == IR_FRAG ? irb_typed(b, IR_MMA_ZERO, t, 0) : t.kind == IR_VAL ? irb_const(b, t, 0) : 0;
}

/* Marks what others need, given that instruction `out` goes. */
static void mark_needed(const eas_ir *ir, uint32_t out, bool *needed)
{
    for (uint32_t i = ir->ninsns; i-- > 0;) {
        const ir_insn *in = &ir->insns[i];
        bool keep = i == out || ir_rows[in->op].flags & (IR_EFFECT | IR_STRUCT);
        for (int k = 0; k < in->nres; k++)
            keep |= needed[in->res + (uint32_t)k];
        for (int k = 0; k < in->nargs && keep; k++)
            needed[ir_args(ir, in)[k]] = true;
        for (int k = 0; k < in->nres && keep; k++)
            needed[in->res + (uint32_t)k] = true;
    }
}

/* A copy of ir without instruction `out` (a region: without all of it); NULL if that is no kernel. */
static eas_ir *without(const eas_ir *ir, uint32_t out)
{
    arena mem = {0};
    uint32_t *map = arena_alloc(&mem, ir->nvals * sizeof *map), *end = ir_region_ends(ir, &mem);
    bool *needed = arena_alloc(&mem, ir->nvals);
    eas_builder *b = NULL;
    eas_ir *made = NULL;
    mark_needed(ir, out, needed);
    if (!irb_like(ir, &b)) {
        for (int p = 1; p <= ir->nparams; p++)
            map[p] = (uint32_t)p;
        for (uint32_t i = 0; i < ir->ninsns; i++) {
            const ir_insn *in = &ir->insns[i];
            bool region = in->op == IR_LOOP || in->op == IR_WHILE || in->op == IR_IF;
            if (i != out) {
                if (!in->nres || needed[in->res])
                    irb_copy(b, ir, i, map);
                continue;
            }
            if (region)
                i = end[i];
            const ir_insn *last = &ir->insns[i];
            for (int k = 0; k < last->nres; k++)
                map[last->res + (uint32_t)k] = !region ? stand_in(b, ir, map, in, k)
                                             : in->op == IR_IF
                                                 ? irb_const(b, ir_typeof(ir, last->res + (uint32_t)k), 0)
                                                 : map[ir_args(ir, in)[k + (in->op == IR_LOOP ? 3 : 0)]];
        }
        if (irb_finish(b, &made))
            made = NULL;
    }
    eas_builder_free(b);
    arena_free(&mem);
    return made;
}

/* Dividers and ends go with their regions; a while loop must go on counting. */
static bool may_go(const eas_ir *ir, uint32_t i)
{
    uint16_t op = ir->insns[i].op;
    for (uint32_t k = i + 1; k < ir->ninsns; k++)
        if (ir->insns[k].op == IR_ENDWHILE && ir->insns[k].nargs &&
            ir_args(ir, &ir->insns[k])[0] == ir->insns[i].res)
            return false;
    return op != IR_ENDLOOP && op != IR_ENDWHILE && op != IR_ENDIF && op != IR_ELSE && op != IR_DO;
}

/* Leaves out what can go while the same check fails. */
static verdict drop_instructions(trial *t, verdict v)
{
    for (bool again = true; again;) {
        again = false;
        for (uint32_t i = t->ir->ninsns; i-- > 0;) {
            if (i >= t->ir->ninsns || !may_go(t->ir, i))
                continue;
            trial less = *t;
            verdict now = fine();
            if ((less.ir = without(t->ir, i)))
                now = check(&less);
            if (less.ir && less.ir->ninsns < t->ir->ninsns && now.what && !strcmp(now.what, v.what)) {
                eas_ir_release(t->ir);
                t->ir = less.ir;
                v = now;
                again = true;
            } else {
                eas_ir_release(less.ir);
            }
        }
    }
    return v;
}

/* The smallest limits with which the same check fails. */
static verdict lower_knobs(knobs *k, verdict v)
{
    int *limits[] = {&k->max_lanes, &k->max_grid, &k->max_steps, &k->max_depth};
    for (size_t n = 0; n < sizeof limits / sizeof *limits; n++)
        for (int was = *limits[n], try = n == 3 ? 0 : 1; try < was; try = try ? 2 * try : 1) {
            *limits[n] = try;
            verdict now = check_knobs(k);
            if (now.what && !strcmp(now.what, v.what)) {
                v = now;
                break;
            }
            *limits[n] = was;
        }
    return v;
}

static void report(knobs k, verdict v)
{
    trial t;
    char why[400], *text = NULL;
    printf("seed %" PRIu64 ": %s: %s\n", k.seed, v.what, v.text);
    fflush(stdout);
    v = lower_knobs(&k, v);
    if (!diff_make(&k, &t, why, sizeof why))
        return;
    v = drop_instructions(&t, v);
    if (!eas_ir_text(t.ir, 0, &text))
        printf("%s: %s\ngrid %d x %d, limits %d %d %d %d, N = %" PRId64 ", F = %g\n%s\n", v.what, v.text,
               (int)t.grid[0], (int)t.grid[1], k.max_lanes, k.max_grid, k.max_steps, k.max_depth, t.n, t.f,
               text);
    fflush(stdout);
    eas_memory_free(text);
    diff_free(&t);
}

static double now(void)
{
    struct timespec s;
    clock_gettime(CLOCK_MONOTONIC, &s);
    return (double)s.tv_sec + (double)s.tv_nsec * 1e-9;
}

/* Is the tested device absent, although nobody has promised it (EAS_EXPECT_DEVICES)? Then there is nothing to
 * test, and run_ctests.py is told so. */
enum { SKIPPED = 77 };
static bool may_skip(void)
{
    const char *expected = getenv("EAS_EXPECT_DEVICES");
    for (int i = 0; i < eas_device_count(); i++) {
        const eas_device *d = eas_device_at(i);
        const char *why = strcmp(eas_device_name(d), tested()) ? NULL : eas_device_unavailable(d);
        if (!why)
            continue;
        printf("%s: %s\n", tested(), why);
        return !expected || !strstr(expected, tested());
    }
    return false;
}

/* What OpenCL's compiler keeps, which is C++. Nothing of ours is. */
const char *__lsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void)
{
    return "leak:operator new\n";
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? strtol(argv[1], NULL, 10) : 300, done = 0, failed = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    double limit = argc > 3 ? strtod(argv[3], NULL) : 1e9, start = now();
    setenv("EAS_CACHE_DIR", "off", 1);
    if (may_skip())
        return SKIPPED;
    for (; done < n && failed < 10 && now() - start < limit; done++) {
        knobs k = {
            .seed = seed + (uint64_t)done, .max_lanes = 300, .max_grid = 5, .max_steps = 14, .max_depth = 2};
        verdict v = check_knobs(&k);
        if (!v.what)
            continue;
        report(k, v);
        failed++;
    }
    /* A device that refuses much is not tested: at most one kernel in ten, and a few more where there are
     * few. */
    const bool lazy = refused > launched / 10 + 3;
    printf("%ld kernels from seed %" PRIu64 ", %ld failed, %ld of %ld launches refused%s, %.0f s\n", done,
           seed, failed, refused, launched, lazy ? ": too many" : "", now() - start);
    return failed != 0 || lazy;
}
