/* test_bf16.c: products of bf16 blocks by vdpbf16ps and by tiles of AMX, against the interpreter.
 *
 * Kernels are compiled for both, whatever machine this is, and run: instructions that it lacks are emulated
 * (emulate.c). What is allowed:
 *   whole numbers       nothing: every sum is exact in any order
 *   vdpbf16ps           nothing: one fma a k, k ascending; but subnormal factors count as 0 and subnormal
 *                       sums become 0
 *   AMX                 the order of the sum is another, so rounding may differ, within the bound for any
 *                       order; a zero may have another sign; subnormals as above
 * Arrays end where their page does, and the next page cannot be touched.
 */
#include "../../src/dev/isa.h"
#include "../../src/gen/gen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>

void eas_emulate(void);
extern _Atomic uint64_t eas_emulated_pairs, eas_emulated_tiles, eas_emulated_roundings;

static gen_llvm_compile *compile;
static bool can_run; /* AVX-512: without it there is nothing to emulate on */

enum { PAIRS, TILES, WAYS };
static const char *const way_names[WAYS] = {"avx512bf16", "amx"};

/* The machine's, and of those in question one. */
static const char *features(int way)
{
    static _Thread_local char text[600];
    const char *all = isa_features(), *bf16 = strstr(all, ",+avx512bf16"), *amx = strstr(all, ",+amx");
    const size_t n = bf16 ? (size_t)(bf16 - all) : amx ? (size_t)(amx - all) : strlen(all);
    snprintf(text, sizeof text, "%.*s%s", (int)n, all,
             way == PAIRS ? ",+avx512bf16" : ",+amx-tile,+amx-bf16");
    return text;
}

/* ---- numbers ---- */

static uint64_t seed = 88172645463325252u;

static uint64_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static bool is_subnormal(uint16_t h) { return !(h & 0x7f80) && h & 0x7f; }

static uint16_t whole(void) { return f32_to_bf16((float)((int64_t)(rnd() % 17) - 8)); }
static uint16_t plain(void)
{
    return (uint16_t)((rnd() & 0x8000) | (uint16_t)((120 + rnd() % 12) << 7) | (rnd() & 0x7f));
}

static uint16_t special(void)
{
    static const uint16_t some[] = {0x7f80, 0xff80, 0x7fc0, 0xffc1, 0, 0x8000};
    return rnd() % 40 ? plain() : some[rnd() % 6];
}

static uint16_t tiny(void) { return rnd() % 3 ? whole() : (uint16_t)((rnd() & 0x8000) | (1 + rnd() % 127)); }

/* ---- arrays with a guard ---- */

typedef struct room {
    char *map;
    size_t mapped;
    void *at;
} room;

static room room_new(size_t bytes)
{
    const size_t page = 4096, size = (bytes + page - 1) / page * page;
    room r = {.mapped = size + page};
    r.map = mmap(NULL, r.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(r.map != MAP_FAILED);
    assert_int_equal(mprotect(r.map + size, page, PROT_NONE), 0);
    r.at = r.map + size - bytes;
    return r;
}

static void room_free(room *r) { munmap(r->map, r->mapped); }

/* ---- kernels ---- */

typedef enum form {
    NEAR,      /* rows follow each other: both factors are read where they lie */
    APART,     /* rows are further apart, by a number that only the launch knows */
    MASKED,    /* the last row and column of each factor are masked off and 0 */
    TURNED,    /* both factors lie transposed */
    ROUNDED,   /* computed in f32 and rounded */
    AGAIN,     /* the left factor is wanted as f32, too */
    FORMS
} form;
typedef enum start { ZERO, BLOCK, MINUS, ONE, STARTS } start;

typedef struct job {
    int64_t m, n, k, rounds; /* the loop goes over `rounds` blocks of k */
    form form;
    start start;
} job;

typedef struct made {
    eas_builder *b;
    const job *j;
    eas_value ldx, ldy;
} made;

static eas_value op(made *g, const char *name, eas_value x, eas_value y)
{
    return eas_builder_apply(g->b, eas_op_find(name), x, y, 0);
}
static eas_value num(made *g, int64_t v) { return eas_builder_const_int(g->b, v); }

static eas_value across(made *g, int64_t rows, int64_t n, int axis) /* 0, 1, ... along an axis of (rows, n) */
{
    const int64_t one[2] = {axis ? 1 : rows, axis ? n : 1}, both[2] = {rows, n};
    return eas_builder_broadcast(
        g->b, eas_builder_reshape(g->b, eas_builder_arange(g->b, 0, axis ? n : rows), 2, one), 2, both);
}

/* (rows, n) of a matrix whose rows are ld apart, from row r0 and column c0 on */
static eas_value factor(made *g, eas_value buf, eas_value ld, int64_t rows, int64_t n, eas_value r0,
                        eas_value c0)
{
    const bool turned = g->j->form == TURNED;
    const int64_t h = turned ? n : rows, w = turned ? rows : n;
    if (turned) {
        const eas_value t = r0;
        r0 = c0;
        c0 = t;
    }
    eas_value r = op(g, "add", across(g, h, w, 0), r0), c = op(g, "add", across(g, h, w, 1), c0), mask = 0,
              other = 0;
    if (g->j->form == MASKED) {
        mask = op(g, "and", op(g, "lt", across(g, h, w, 0), num(g, h - 1)),
                  op(g, "lt", across(g, h, w, 1), num(g, w - 1)));
        other = eas_builder_const_typed(g->b, EAS_BF16, 0, 0);
    }
    eas_value v = eas_builder_load(g->b, buf, op(g, "add", op(g, "mul", r, ld), c), mask, other);
    if (g->j->form == ROUNDED)
        v = eas_builder_cast(
            g->b, op(g, "mul", eas_builder_cast(g->b, v, EAS_F32), eas_builder_const_float(g->b, 2.0)),
            EAS_BF16);
    return turned ? eas_builder_trans(g->b, v, NULL) : v;
}

static eas_ir *kernel(const job *j)
{
    made g = {.j = j};
    eas_ir *ir = NULL, *spelled = NULL;
    assert_int_equal(eas_builder_new("bf16", 0, &g.b), EAS_OK);
    eas_builder *b = g.b;
    eas_value x = eas_builder_param_buffer(b, "x", EAS_BF16), y = eas_builder_param_buffer(b, "y", EAS_BF16),
              acc = eas_builder_param_buffer(b, "acc", EAS_F32),
              out = eas_builder_param_buffer(b, "out", EAS_F32),
              wide = eas_builder_param_buffer(b, "wide", EAS_F32),
              ldx = eas_builder_param_scalar(b, "ldx", EAS_I64, 0),
              ldy = eas_builder_param_scalar(b, "ldy", EAS_I64, 0);
    const bool apart = j->form == APART, turned = j->form == TURNED;
    g.ldx = apart ? ldx : num(&g, turned ? j->m : j->k * j->rounds);
    g.ldy = apart ? ldy : num(&g, turned ? j->k * j->rounds : j->n);
    const int64_t shape[2] = {j->m, j->n};
    eas_value at =
        op(&g, "add", op(&g, "mul", across(&g, j->m, j->n, 0), num(&g, j->n)), across(&g, j->m, j->n, 1));
    static const double starts[STARTS] = {0.0, 0.0, -0.0, 1.0};
    eas_value sum =
        j->start == BLOCK
            ? eas_builder_load(b, acc, at, 0, 0)
            : eas_builder_broadcast(b, eas_builder_const_typed(b, EAS_F32, starts[j->start], 0), 2, shape);
    eas_value k0 = num(&g, 0), now = sum;
    if (j->rounds > 1)
        eas_builder_loop_begin(b, num(&g, 0), num(&g, j->k * j->rounds), num(&g, j->k), 1, &sum, &k0, &now);
    eas_value p = factor(&g, x, g.ldx, j->m, j->k, num(&g, 0), k0),
              q = factor(&g, y, g.ldy, j->k, j->n, k0, num(&g, 0));
    eas_value next = eas_builder_matmul(b, p, q, now);
    if (j->form == AGAIN) {
        eas_value to =
            op(&g, "add", op(&g, "mul", across(&g, j->m, j->k, 0), num(&g, j->k)), across(&g, j->m, j->k, 1));
        eas_builder_store(b, wide, to,
                          op(&g, "add", eas_builder_cast(b, p, EAS_F32), eas_builder_const_float(b, 1.0)), 0);
    }
    if (j->rounds > 1)
        eas_builder_loop_end(b, 1, &next, &next);
    eas_builder_store(b, out, at, next, 0);
    if (eas_builder_finish(b, &ir) || ir_expanded(ir, isa_ldexp() ? IR_KEEP_LDEXP : 0, &spelled))
        fail_msg("%s", eas_error_message());
    eas_builder_free(b);
    eas_ir_release(ir);
    return spelled;
}

/* ---- running ---- */

typedef struct data {
    room x, y, acc, out, wide;
    int64_t nx, ny, nout, nwide, ldx, ldy;
} data;

static data data_new(const job *j, uint16_t value(void))
{
    const bool apart = j->form == APART, turned = j->form == TURNED;
    const int64_t deep = j->k * j->rounds, hx = turned ? deep : j->m, wx = turned ? j->m : deep,
                  hy = turned ? j->n : deep, wy = turned ? deep : j->n;
    data d = {.ldx = wx + 5 * apart, .ldy = wy + 3 * apart, .nout = j->m * j->n, .nwide = j->m * j->k};
    d.nx = (hx - 1) * d.ldx + wx;
    d.ny = (hy - 1) * d.ldy + wy;
    d.x = room_new((size_t)d.nx * 2);
    d.y = room_new((size_t)d.ny * 2);
    d.acc = room_new((size_t)d.nout * 4);
    d.out = room_new((size_t)d.nout * 4);
    d.wide = room_new((size_t)d.nwide * 4);
    for (int64_t i = 0; i < d.nx; i++)
        ((uint16_t *)d.x.at)[i] = value();
    for (int64_t i = 0; i < d.ny; i++)
        ((uint16_t *)d.y.at)[i] = value();
    for (int64_t i = 0; i < d.nout; i++)
        ((float *)d.acc.at)[i] =
            value == whole || value == tiny ? bf16_to_f32(whole()) : bf16_to_f32(plain());
    return d;
}

static void data_free(data *d)
{
    room *r[] = {&d->x, &d->y, &d->acc, &d->out, &d->wide};
    for (int i = 0; i < 5; i++)
        room_free(r[i]);
}

typedef struct launch {
    uint64_t slot[7];
    int64_t count[7];
} launch;

static launch launch_of(const data *d)
{
    return (launch){{(uint64_t)(uintptr_t)d->x.at, (uint64_t)(uintptr_t)d->y.at,
                     (uint64_t)(uintptr_t)d->acc.at, (uint64_t)(uintptr_t)d->out.at,
                     (uint64_t)(uintptr_t)d->wide.at, (uint64_t)d->ldx, (uint64_t)d->ldy},
                    {d->nx, d->ny, d->nout, d->nout, d->nwide, 0, 0}};
}

static void run_ref(const eas_ir *ir, const data *d)
{
    const launch l = launch_of(d);
    const ir_call call = {.slot = l.slot, .count = l.count, .grid = {1, 1, 1}};
    if (ir_interp(ir, &call))
        fail_msg("ref: %s", eas_error_message());
}

static void run_code(const eas_ir *ir, const char *cpu_features, const data *d)
{
    const gen_options opt = {.cpu_features = cpu_features, .vector_bytes = isa_vector_bytes()};
    gen_image im;
    gen_entry *fn;
    char *error = NULL;
    if (compile(ir, &opt, &im, NULL, &error))
        fail_msg("compile: %s", error);
    char *map = mmap(NULL, im.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(map, im.bytes, im.size);
    mprotect(map, im.size, PROT_READ | PROT_EXEC);
    void *entry = map + im.entry, *scratch = aligned_alloc(64, (im.scratch + 64) & ~(uint64_t)63);
    memcpy(&fn, &entry, sizeof fn);
    memset(scratch, 0xff, im.scratch); /* NaNs, wherever something is read that was not written */
    const launch l = launch_of(d);
    gen_call call = {.slot = l.slot, .count = l.count, .grid = {1, 1, 1}};
    gen_fault fault = {0};
    eas_emulate();
    fn(&call, 0, 1, scratch, &fault);
    munmap(map, im.size);
    free(scratch);
    gen_image_free(&im);
}

/* ---- comparing ---- */

static uint16_t factor_at(const job *j, const data *d, bool right, int64_t r, int64_t c)
{
    const int64_t ld = right ? d->ldy : d->ldx;
    return ((uint16_t *)(right ? d->y.at : d->x.at))[j->form == TURNED ? c * ld + r : r * ld + c];
}

/* The most that sums of these terms in two orders, or products with and without what is flushed, can be
 * apart. */
static double bound(const job *j, const data *d, int64_t r, int64_t c)
{
    const int64_t deep = j->k * j->rounds;
    double sum = j->start == BLOCK ? fabs((double)((float *)d->acc.at)[r * j->n + c]) : 1;
    const double by = j->form == ROUNDED ? 4 : 1;
    for (int64_t i = 0; i < deep; i++)
        sum += by * fabs((double)bf16_to_f32(factor_at(j, d, false, r, i)) *
                         (double)bf16_to_f32(factor_at(j, d, true, i, c)));
    return 2 * (double)(deep + 3) * 0x1p-24 * sum + (double)(deep + 3) * 0x1p-126;
}

static bool same_bits(float a, float b) { return memcmp(&a, &b, 4) == 0 || (a != a && b != b); }

static bool agrees(const job *j, const data *d, int64_t i, float want, float got, bool exact, bool zeros)
{
    if (same_bits(want, got) || (zeros && want == 0 && got == 0))
        return true;
    return !exact && isfinite(want) && isfinite(got) &&
           fabs((double)want - (double)got) <= bound(j, d, i / j->n, i % j->n);
}

static void compare(const job *j, int way, uint16_t value(void))
{
    const bool tiles = way == TILES, exact = !tiles || value == whole || value == tiny;
    eas_ir *ir = kernel(j);
    data d = data_new(j, value);
    float *want = malloc((size_t)d.nout * 4), *got = d.out.at;
    uint16_t *kept = malloc((size_t)(d.nx + d.ny) * 2);
    memcpy(kept, d.x.at, (size_t)d.nx * 2);
    memcpy(kept + d.nx, d.y.at, (size_t)d.ny * 2);
    for (int64_t i = 0; value == tiny && i < d.nx + d.ny; i++) { /* the instructions see 0 there */
        uint16_t *h = i < d.nx ? (uint16_t *)d.x.at + i : (uint16_t *)d.y.at + (i - d.nx);
        *h = is_subnormal(*h) ? *h & 0x8000 : *h;
    }
    run_ref(ir, &d);
    memcpy(want, got, (size_t)d.nout * 4);
    memset(got, 0xa5, (size_t)d.nout * 4);
    memcpy(d.x.at, kept, (size_t)d.nx * 2);
    memcpy(d.y.at, kept + d.nx, (size_t)d.ny * 2);
    run_code(ir, features(way), &d);
    for (int64_t i = 0; i < d.nout; i++)
        if (!agrees(j, &d, i, want[i], got[i], exact, tiles))
            fail_msg(
                "%s %lld x %lld x %lld, %lld rounds, form %d, start %d: element %lld is %a, should be %a",
                way_names[way], (long long)j->m, (long long)j->n, (long long)j->k, (long long)j->rounds,
                (int)j->form, (int)j->start, (long long)i, (double)got[i], (double)want[i]);
    free(want);
    free(kept);
    data_free(&d);
    eas_ir_release(ir);
}

/* ---- tests ---- */

static const int64_t sizes[] = {1, 2, 3, 5, 7, 8, 15, 16, 17, 23, 31, 32, 33, 47, 48, 49, 63, 64, 65, 70};
enum { SIZES = sizeof sizes / sizeof *sizes };

static job any_job(void)
{
    return (job){.m = sizes[rnd() % SIZES],
                 .n = sizes[rnd() % SIZES],
                 .k = sizes[rnd() % SIZES],
                 .rounds = rnd() % 3 ? 1 : 1 + (int64_t)(rnd() % 3),
                 .form = rnd() % FORMS,
                 .start = rnd() % STARTS};
}

static void shapes_and_forms(void **state)
{
    (void)state;
    for (int i = 0; can_run && i < 240; i++) {
        const job j = any_job();
        compare(&j, i % WAYS, i % 3 ? plain : whole);
    }
}

/* Every place where a tile or a vector may end, on both ways. */
static void every_tail(void **state)
{
    (void)state;
    for (int64_t s = 16; can_run && s <= 49; s += 3)
        for (int way = 0; way < WAYS; way++) {
            compare(&(job){.m = s, .n = 32, .k = 32, .rounds = 1, .start = BLOCK}, way, plain);
            compare(&(job){.m = 32, .n = s, .k = 32, .rounds = 2, .start = BLOCK}, way, plain);
            compare(&(job){.m = 32, .n = 32, .k = s + 16, .rounds = 1, .start = BLOCK}, way, plain);
        }
}

static void infinities_and_nan(void **state)
{
    (void)state;
    for (int i = 0; can_run && i < 60; i++) {
        job j = any_job();
        j.form = j.form == ROUNDED ? NEAR : j.form;
        compare(&j, i % WAYS, special);
    }
}

/* An odd k, and k that do not fill a tile, are padded: that may not turn -0 into 0 where one fma follows the
 * other. */
static uint16_t nothing(void) { return rnd() % 2 ? 0x8000 : 0; }

static void zeros_keep_their_signs(void **state)
{
    (void)state;
    for (int i = 0; can_run && i < 40; i++) {
        job j = any_job();
        j.start = i % 2 ? MINUS : ZERO;
        compare(&j, i / 2 % WAYS, nothing);
    }
}

static void subnormal_factors_count_as_zero(void **state)
{
    (void)state;
    for (int i = 0; can_run && i < 40; i++) {
        job j = any_job();
        j.form = i % 5; /* rounding what was doubled would make numbers of some */
        j.form = j.form == ROUNDED ? AGAIN : j.form;
        j.k = j.k < 2 ? 2 : j.k; /* of one k nothing is made of pairs */
        if (i % WAYS == TILES) {
            j.m += 15;
            j.n += 15;
            j.k += 31;
        }
        compare(&j, i % WAYS, tiny);
    }
}

static uint16_t small(void) { return f32_to_bf16(0x1p-70f); }

static void subnormal_sums_become_zero(void **state)
{
    (void)state;
    for (int way = 0; can_run && way < WAYS; way++) {
        const job j = {.m = 32, .n = 32, .k = 32, .rounds = 1};
        eas_ir *ir = kernel(&j);
        data d = data_new(&j, small);
        run_ref(ir, &d);
        assert_true(*(float *)d.out.at == 0x1p-135f);
        run_code(ir, features(way), &d);
        for (int64_t i = 0; i < d.nout; i++)
            assert_true(((float *)d.out.at)[i] == 0);
        data_free(&d);
        eas_ir_release(ir);
    }
}

/* ---- what is generated ---- */

static char *text_of(const eas_ir *ir, const char *cpu_features)
{
    const gen_options opt = {.cpu_features = cpu_features, .vector_bytes = 64, .text = "asm"};
    gen_image im;
    char *text = NULL, *error = NULL;
    if (compile(ir, &opt, &im, &text, &error))
        fail_msg("compile: %s", error);
    return text;
}

static const char base[] =
    "+sse3,+ssse3,+cx16,+sse4.1,+sse4.2,+popcnt,+avx,+f16c,+fma,+bmi,+avx2,+bmi2,+lzcnt,+avx512f,+avx512dq,+avx512cd,+avx512bw,+avx512vl";

static bool has(const job *j, const char *more, const char *insn)
{
    char all[400];
    snprintf(all, sizeof all, "%s%s", base, more);
    eas_ir *ir = kernel(j);
    char *text = text_of(ir, all);
    const bool yes = strstr(text, insn);
    free(text);
    eas_ir_release(ir);
    return yes;
}

static void the_shape_decides(void **state)
{
    (void)state;
    const job large = {.m = 64, .n = 64, .k = 64, .rounds = 2},
              small_one = {.m = 8, .n = 64, .k = 64, .rounds = 1},
              column = {.m = 64, .n = 64, .k = 1, .rounds = 1};
    const char *both = ",+avx512bf16,+amx-tile,+amx-bf16", *amx = ",+amx-tile,+amx-bf16",
               *pairs = ",+avx512bf16";
    assert_true(has(&large, both, "tdpbf16ps") && !has(&large, both, "vdpbf16ps"));
    assert_true(has(&large, both, "ldtilecfg") && has(&large, both, "tilerelease"));
    assert_true(has(&small_one, both, "vdpbf16ps") && !has(&small_one, both, "tilecfg"));
    assert_true(has(&small_one, amx, "vfmadd") && !has(&small_one, amx, "bf16ps"));
    assert_true(has(&large, pairs, "vdpbf16ps") && !has(&large, pairs, "tile"));
    assert_true(has(&column, both, "vfmadd") && !has(&column, both, "bf16ps"));
    assert_true(has(&large, "", "vfmadd") && !has(&large, "", "bf16ps"));
}

/* 2x2 tiles of sums, eight tiles in all, and no vector or tile of the inner loops on the stack. */
static void inner_loops_keep_to_registers(void **state)
{
    (void)state;
    const job j = {.m = 128, .n = 128, .k = 128, .rounds = 2, .start = BLOCK};
    eas_ir *ir = kernel(&j);
    char all[400];
    snprintf(all, sizeof all, "%s,+amx-tile,+amx-bf16", base);
    char *text = text_of(ir, all);
    const char *p = strstr(text, "tdpbf16ps");
    int n = 0;
    for (; p; n++)
        p = strstr(p + 1, "tdpbf16ps");
    assert_int_equal(n, 4);
    free(text);
    snprintf(all, sizeof all, "%s,+avx512bf16", base);
    text = text_of(ir, all);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        assert_false(strstr(line, "zmm") && strstr(line, "rsp"));
    free(text);
    eas_ir_release(ir);
}

/* ---- the emulator itself ---- */

#if defined(__x86_64__)
/* The instruction in some of its forms, first as the processor has it (or the emulator, if it has not), then
 * emulated for sure. */
#define STEP(prefix, form, to) \
    __asm__ volatile("vmovups (%0), %%" to "\n vmovups (%1), %%zmm20\n vmovups (%2), %%zmm31\n" prefix form \
                     ", %%zmm20, %%" to "\n vmovups %%" to ", (%3)" ::"r"(sum), \
                     "r"(x), "r"(y), "r"(out), "r"((int64_t)3) \
                     : "memory", "zmm3", "zmm20", "zmm25", "zmm31")
#define BOTH(n, form, to) \
    case n: \
        if (emulated) \
            STEP(".byte 0x0f, 0x0b\n", form, to); \
        else \
            STEP("", form, to); \
        break;
enum { STEPS = 7 };

__attribute__((target("avx512f"))) static void one_step(int form, bool emulated, const float *sum,
                                                        const uint16_t *x, const uint16_t *y, float *out)
{
    switch (form) {
        BOTH(0, "vdpbf16ps (%2)", "zmm3")
        BOTH(1, "vdpbf16ps 12(%2)%{1to16%}", "zmm3")
        BOTH(2, "vdpbf16ps -64(%2)", "zmm25")
        BOTH(3, "vdpbf16ps 60(%2,%4)%{1to16%}", "zmm25")
        BOTH(4, "vdpbf16ps -61(%2,%4,4)", "zmm3")
        BOTH(5, "vdpbf16ps %%zmm31", "zmm25")
        BOTH(6, "vdpbf16ps %%zmm3", "zmm3")
    }
}

static void the_emulator_does_as_the_processor(void **state)
{
    (void)state;
    eas_emulate();
    for (int i = 0; can_run && i < 4000; i++) {
        uint16_t x[32], around[128], *y = around + 32;
        float sum[16], want[16], got[16];
        for (int k = 0; k < 32; k++)
            x[k] = i % 2 ? special() : (uint16_t)rnd();
        for (int k = 0; k < 128; k++)
            around[k] = i % 2 ? special() : (uint16_t)rnd();
        for (int k = 0; k < 16; k++)
            sum[k] = bf16_to_f32(i % 2 ? special() : (uint16_t)rnd());
        one_step(i % STEPS, false, sum, x, y, want);
        one_step(i % STEPS, true, sum, x, y, got);
        for (int k = 0; k < 16; k++)
            if (!same_bits(want[k], got[k]))
                fail_msg("form %d: %a, the processor says %a", i % STEPS, (double)got[k], (double)want[k]);
    }
}

#define ROUND(prefix, form, to, all) \
    __asm__ volatile("vmovups (%0), %%zmm3\n vmovups (%0), %%zmm20\n " prefix "vcvtneps2bf16 " form \
                     ", %%" to "\n vmovups %%" all ", (%1)" ::"r"(x), \
                     "r"(out) \
                     : "memory", "zmm3", "zmm20", "zmm31")
#define ROUNDED(n, form, to, all) \
    case n: \
        if (emulated) \
            ROUND(".byte 0x0f, 0x0b\n ", form, to, all); \
        else \
            ROUND("", form, to, all); \
        break;
enum { ROUNDINGS = 5 };

__attribute__((target("avx512f,avx512vl"))) static void one_rounding(int form, bool emulated, const float *x,
                                                                     uint16_t *out)
{
    switch (form) {
        ROUNDED(0, "%%zmm20", "ymm3", "ymm3")
        ROUNDED(1, "%%zmm3", "ymm31", "ymm31")
        ROUNDED(2, "(%0)", "ymm31", "ymm31")
        ROUNDED(3, "-64(%0)", "ymm3", "ymm3")
        ROUNDED(4, "%%ymm20", "xmm31", "ymm31")
    }
}

static void the_emulator_rounds_as_the_processor(void **state)
{
    (void)state;
    eas_emulate();
    for (int i = 0; can_run && i < 4000; i++) {
        float around[48];
        uint16_t want[16] = {0}, got[16] = {0};
        for (int k = 0; k < 48; k++) {
            const uint32_t u = (uint32_t)(i % 2   ? special()
                                          : i % 4 ? tiny()
                                                  : (uint16_t)rnd())
                                << 16 |
                               (i % 3 ? (uint32_t)rnd() & 0xffff : 0x8000);
            memcpy(&around[k], &u, 4);
        }
        one_rounding(i % ROUNDINGS, false, around + 16, want);
        one_rounding(i % ROUNDINGS, true, around + 16, got);
        for (int k = 0; k < 16; k++)
            if (want[k] != got[k])
                fail_msg("form %d: %x, the processor says %x", i % ROUNDINGS, got[k], want[k]);
    }
}

static void the_emulator_was_used(void **state)
{
    (void)state;
    assert_true(!can_run || atomic_load(&eas_emulated_pairs) >= 4000);
    assert_true(!can_run || atomic_load(&eas_emulated_roundings) >= 4000);
    print_message("emulated: %llu vdpbf16ps, %llu tdpbf16ps, %llu vcvtneps2bf16\n",
                  (unsigned long long)atomic_load(&eas_emulated_pairs),
                  (unsigned long long)atomic_load(&eas_emulated_tiles),
                  (unsigned long long)atomic_load(&eas_emulated_roundings));
}
#endif

/* Tiles are a thread's own. */
static void *one_thread(void *p)
{
    run_code(((void **)p)[0], features(TILES), ((void **)p)[1]);
    return NULL;
}

static void threads_give_the_same_bits(void **state)
{
    (void)state;
    const job j = {.m = 64, .n = 80, .k = 96, .rounds = 2, .start = BLOCK};
    if (!can_run)
        return;
    eas_ir *ir = kernel(&j);
    data d[4];
    pthread_t t[4];
    void *args[4][2];
    for (int i = 0; i < 4; i++) {
        seed = 12345;
        d[i] = data_new(&j, plain);
        args[i][0] = ir;
        args[i][1] = &d[i];
        pthread_create(&t[i], NULL, one_thread, args[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int i = 1; i < 4; i++)
        assert_memory_equal(d[i].out.at, d[0].out.at, (size_t)d[0].nout * 4);
    for (int i = 0; i < 4; i++)
        data_free(&d[i]);
    eas_ir_release(ir);
}

int main(void)
{
    const char *path = getenv("EAS_LLVM_LIBRARY");
    void *lib = dlopen(path ? path : "libeas-llvm.so", RTLD_NOW | RTLD_LOCAL),
         *sym = lib ? dlsym(lib, "eas_llvm_compile") : NULL;
    if (!sym) {
        fprintf(stderr, "EAS_LLVM_LIBRARY: %s\n", dlerror());
        return 1;
    }
    memcpy(&compile, &sym, sizeof sym);
    can_run = isa_vector_bytes() == 64;
    if (!can_run)
        print_message("no AVX-512 here: bf16 products are compiled and looked at, but not run\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_and_forms),
        cmocka_unit_test(every_tail),
        cmocka_unit_test(infinities_and_nan),
        cmocka_unit_test(zeros_keep_their_signs),
        cmocka_unit_test(subnormal_factors_count_as_zero),
        cmocka_unit_test(subnormal_sums_become_zero),
        cmocka_unit_test(the_shape_decides),
        cmocka_unit_test(inner_loops_keep_to_registers),
        cmocka_unit_test(threads_give_the_same_bits),
#if defined(__x86_64__)
        cmocka_unit_test(the_emulator_does_as_the_processor),
        cmocka_unit_test(the_emulator_rounds_as_the_processor),
        cmocka_unit_test(the_emulator_was_used),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
