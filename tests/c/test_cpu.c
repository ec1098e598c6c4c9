/* test_cpu.c: compiled code against the interpreter, bit for bit (any NaN equals any NaN).
 *
 * Walks the instruction table: every element-wise row, every dtype it takes, several block sizes, both modes,
 * random inputs with special values. Then kernels (test_cpu_kernels.h) for what the table cannot say: masks,
 * aliasing, control flow, shapes, dots, matrices, bounds. EAS_LLVM_LIBRARY names the module; EAS_ISA the
 * instruction set to test.
 */
#include "../../src/dev/isa.h"
#include "../../src/gen/gen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

static gen_llvm_compile *compile;

/* ---- random numbers and special values ---- */

static uint64_t seed = 88172645463325252u;

static uint64_t rnd(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    return seed ^= seed << 17;
}

static const double specials[] = {0.0,
                                  -0.0,
                                  1.0,
                                  -1.0,
                                  0.5,
                                  -0.5,
                                  1.5,
                                  2.5,
                                  -2.5,
                                  3.0,
                                  1e-45,
                                  -1e-45,
                                  1e-40,
                                  5e-8,
                                  6e-5,
                                  1e30,
                                  -1e30,
                                  3.4e38,
                                  65504,
                                  65519,
                                  65520,
                                  -65536,
                                  2147483647.0,
                                  2147483648.0,
                                  -2147483648.0,
                                  -2147483649.0,
                                  4294967295.0,
                                  4294967296.0,
                                  9223372036854775808.0,
                                  -9223372036854775808.0,
                                  18446744073709551616.0,
                                  127.5,
                                  128,
                                  -128.5,
                                  255.5,
                                  256,
                                  1e300,
                                  -1e300,
                                  5e-324,
                                  2.2e-308,
                                  1.00048828125,
                                  1.0009765625,
                                  1.00390625,
                                  8388607.5,
                                  8388608.5,
                                  4503599627370495.5,
                                  16777217.0};
static const int64_t special_ints[] = {0,
                                       1,
                                       -1,
                                       2,
                                       -2,
                                       3,
                                       7,
                                       8,
                                       15,
                                       16,
                                       31,
                                       32,
                                       33,
                                       63,
                                       64,
                                       65,
                                       127,
                                       128,
                                       -128,
                                       255,
                                       256,
                                       32767,
                                       32768,
                                       -32768,
                                       65535,
                                       INT32_MAX,
                                       INT32_MIN,
                                       4294967295,
                                       INT64_MAX,
                                       INT64_MIN,
                                       (1ll << 53) + 1,
                                       (1ll << 62) + 1,
                                       -(1ll << 40) - 1,
                                       0x0101010101010101,
                                       0x1000001,
                                       0x101};

static int64_t random_bits(eas_dtype dt)
{
    const uint64_t r = rnd();
    const bool special = r % 4 == 0;
    if (dt == EAS_BOOL)
        return (int64_t)(r >> 8 & 1);
    if (dtype_is_float(dt)) {
        if (special) {
            const size_t k = (r >> 8) % (sizeof specials / sizeof *specials + 3),
                         n = sizeof specials / sizeof *specials;
            return ir_bits_from_double(dt, k < n        ? specials[k]
                                           : k == n     ? (double)__builtin_inff()
                                           : k == n + 1 ? -(double)__builtin_inff()
                                                        : (double)__builtin_nanf(""));
        }
        if (r % 4 == 1)
            return ir_bits_from_double(dt, ((double)(int64_t)(rnd() % 2000001) - 1000000) / 1024);
        const uint64_t b = rnd();
        return dt == EAS_F64 ? (int64_t)b : dt == EAS_F32 ? (int64_t)(uint32_t)b : (int64_t)(uint16_t)b;
    }
    int64_t x = special    ? special_ints[(r >> 8) % (sizeof special_ints / sizeof *special_ints)]
              : r % 4 == 1 ? (int64_t)(rnd() % 41) - 20
                           : (int64_t)rnd();
    int64_t out;
    ir_eval(IR_CAST, EAS_I64, dt, &x, &out);
    return out;
}

static void fill(void *p, eas_dtype dt, size_t n)
{
    const size_t w = eas_dtype_size(dt);
    for (size_t i = 0; i < n; i++) {
        const int64_t b = random_bits(dt);
        memcpy((char *)p + i * w, &b, w);
    }
}

/* ---- running ---- */

typedef struct arg {
    void *data;
    int64_t count;
    int64_t bits;
} arg;
enum { MAX_ARGS = 8 };

static gen_entry *map_image(const gen_image *im, void **map)
{
    *map = mmap(NULL, im->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*map == MAP_FAILED)
        return NULL;
    memcpy(*map, im->bytes, im->size);
    mprotect(*map, im->size, PROT_READ | PROT_EXEC);
    gen_entry *fn;
    void *p = (char *)*map + im->entry;
    memcpy(&fn, &p, sizeof fn);
    return fn;
}

static eas_status run_plain(const eas_ir *ir, const arg *a, const int64_t grid[3], bool alias, uint64_t flags,
                            gen_fault *fault, gen_image *info)
{
    const gen_options opt = {
        .cpu_features = isa_features(), .vector_bytes = isa_vector_bytes(), .alias = alias};
    gen_image im;
    char *error = NULL;
    eas_status st = compile(ir, &opt, &im, NULL, &error);
    if (st) {
        if (st != EAS_ERR_UNAVAILABLE)
            print_error("compile: %s\n", error ? error : "?");
        free(error);
        return st;
    }
    uint64_t slot[MAX_ARGS];
    int64_t count[MAX_ARGS];
    for (int i = 0; i < ir->nparams; i++) {
        slot[i] = a[i].data ? (uint64_t)(uintptr_t)a[i].data : (uint64_t)a[i].bits;
        count[i] = a[i].count;
    }
    void *map, *scratch = aligned_alloc(64, (im.scratch + 64) & ~(uint64_t)63);
    memset(scratch, 0xa5, im.scratch);
    gen_entry *fn = map_image(&im, &map);
    gen_call call = {.slot = slot, .count = count, .grid = {grid[0], grid[1], grid[2]}, .flags = flags};
    fn(&call, 0, grid[0] * grid[1] * grid[2], scratch, fault);
    munmap(map, im.size);
    free(scratch);
    if (info)
        *info = im;
    gen_image_free(&im);
    return EAS_OK;
}

/* What runs has its elementary functions spelled out, as the kernel folder does it. */
static eas_status run_cpu(const eas_ir *ir, const arg *a, const int64_t grid[3], bool alias, uint64_t flags,
                          gen_fault *fault, gen_image *info)
{
    eas_ir *plain;
    eas_status st = ir_expanded(ir, isa_ldexp() ? IR_KEEP_LDEXP : 0, &plain);
    if (st)
        return st;
    st = run_plain(plain, a, grid, alias, flags, fault, info);
    eas_ir_release(plain);
    return st;
}

static eas_status run_ref(const eas_ir *ir, const arg *a, const int64_t grid[3])
{
    uint64_t slot[MAX_ARGS];
    int64_t count[MAX_ARGS];
    for (int i = 0; i < ir->nparams; i++) {
        slot[i] = a[i].data ? (uint64_t)(uintptr_t)a[i].data : (uint64_t)a[i].bits;
        count[i] = a[i].count;
    }
    const ir_call call = {.slot = slot, .count = count, .grid = {grid[0], grid[1], grid[2]}};
    return ir_interp(ir, &call);
}

static bool is_nan_bits(eas_dtype dt, int64_t b)
{
    if (!dtype_is_float(dt))
        return false;
    const double d = ir_bits_to_double(dt, b);
    return d != d;
}

static int differences(const eas_ir *ir, int param, const void *x, const void *y, int64_t n)
{
    const eas_dtype dt = (eas_dtype)ir_typeof(ir, ir->params[param].value).dtype;
    const size_t w = eas_dtype_size(dt);
    int bad = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t p = 0, q = 0;
        memcpy(&p, (const char *)x + (size_t)i * w, w);
        memcpy(&q, (const char *)y + (size_t)i * w, w);
        if (p == q || (is_nan_bits(dt, p) && is_nan_bits(dt, q)))
            continue;
        if (bad++ < 3)
            print_error("  %s[%" PRId64 "]: ref %" PRIx64 " cpu %" PRIx64 "\n", ir->params[param].name, i,
                        (uint64_t)p, (uint64_t)q);
    }
    return bad;
}

/* Runs both on copies of the arguments and compares every buffer. */
static int compare(const eas_ir *ir, const arg *a, int64_t g0, int64_t g1, bool alias, uint64_t flags)
{
    const int64_t grid[3] = {g0, g1, 1};
    arg x[MAX_ARGS], y[MAX_ARGS];
    int bad = 0;
    for (int i = 0; i < ir->nparams; i++) {
        const size_t bytes =
            (size_t)a[i].count * eas_dtype_size((eas_dtype)ir_typeof(ir, ir->params[i].value).dtype);
        x[i] = y[i] = a[i];
        if (!a[i].data)
            continue;
        x[i].data = malloc(bytes + 64);
        y[i].data = malloc(bytes + 64);
        memcpy(x[i].data, a[i].data, bytes);
        memcpy(y[i].data, a[i].data, bytes);
        memset((char *)y[i].data + bytes, 0x5a, 64);
    }
    gen_fault fault = {0};
    if (run_ref(ir, x, grid)) {
        print_error("ref: %s\n", eas_error_message());
        bad = 1;
    }
    const eas_status st = run_cpu(ir, y, grid, alias, flags, &fault, NULL);
    if (st == EAS_ERR_UNAVAILABLE)
        bad = -1;
    else if (st)
        bad = 1;
    for (int i = 0; i < ir->nparams; i++) {
        if (!a[i].data)
            continue;
        if (!bad)
            bad += differences(ir, i, x[i].data, y[i].data, a[i].count);
        const unsigned char *tail =
            (unsigned char *)y[i].data +
            (size_t)a[i].count * eas_dtype_size((eas_dtype)ir_typeof(ir, ir->params[i].value).dtype);
        for (int k = 0; k < 64; k++)
            if (tail[k] != 0x5a && bad >= 0)
                bad++;
        free(x[i].data);
        free(y[i].data);
    }
    return bad;
}

static void report(const eas_ir *ir)
{
    str s = {0};
    ir_print(&s, ir, false);
    fprintf(stderr, "%s\n", s.at);
    str_free(&s);
}

/* ---- the table ---- */

static ir_type block(eas_dtype dt, int64_t n, bool thread)
{
    return thread ? ir_scalar(dt) : (ir_type){.dtype = (uint8_t)dt, .rank = 1, .dim = {(int32_t)n}};
}

static uint32_t load_arg(eas_builder *b, uint32_t buf, uint32_t off, uint32_t mask, ir_type t)
{
    const uint32_t a[4] = {buf, off, mask, irb_const(b, t, 0)};
    return irb_insn(b, IR_LOAD, a, 4, 0, 1, &t);
}

/* r[i] = op(x[i], y[i], z[i]) for i < N, blocks of n */
static eas_ir *table_kernel(uint16_t op, eas_dtype dt, eas_dtype to, int64_t n, bool thread)
{
    eas_builder *b;
    eas_ir *ir = NULL;
    eas_builder_new("t", 0, &b);
    const int na = ir_rows[op].nargs, first_bool = op == IR_WHERE;
    uint32_t buf[4], arg[3] = {0};
    static const char *const names[] = {"x", "y", "z"};
    const ir_rule rule = (ir_rule)ir_rows[op].rule;
    const eas_dtype out = rule == IR_RULE_CMP ? EAS_BOOL : rule == IR_RULE_CAST ? to : dt;
    for (int i = 0; i < na; i++)
        buf[i] = irb_param(
            b, names[i], (ir_type){.dtype = (uint8_t)(first_bool && i == 0 ? EAS_BOOL : dt), .kind = IR_BUF},
            false);
    buf[3] = irb_param(b, "r", (ir_type){.dtype = (uint8_t)out, .kind = IR_BUF}, false);
    const uint32_t N = irb_param(b, "N", ir_scalar(EAS_I64), false);
    const ir_type i64 = block(EAS_I64, n, thread);
    uint32_t lane = irb_typed(b, thread ? IR_THREAD_ID : IR_ARANGE, i64, thread ? n : 0);
    uint32_t base = irb_op(b, IR_MUL, irb_typed(b, IR_PROGRAM_ID, ir_scalar(EAS_I64), 0),
                           irb_const(b, ir_scalar(EAS_I64), n), 0);
    uint32_t off = irb_op(b, IR_ADD, irb_to(b, IR_BROADCAST, i64, base), lane, 0);
    uint32_t mask = irb_op(b, IR_LT, off, irb_to(b, IR_BROADCAST, i64, N), 0);
    for (int i = 0; i < na; i++)
        arg[i] = load_arg(b, buf[i], off, mask, block(first_bool && i == 0 ? EAS_BOOL : dt, n, thread));
    uint32_t r = rule == IR_RULE_CAST ? irb_to(b, op, block(to, n, thread), arg[0])
                                      : irb_op(b, op, arg[0], arg[1], arg[2]);
    const uint32_t st[4] = {buf[3], off, r, mask};
    irb_insn(b, IR_STORE, st, 4, 0, 0, NULL);
    if (irb_finish(b, &ir))
        print_error("%s %s: %s\n", ir_rows[op].name, eas_dtype_name(dt), eas_error_message());
    eas_builder_free(b);
    return ir;
}

static int walk_one(uint16_t op, eas_dtype dt, eas_dtype to, int64_t n, bool thread)
{
    eas_ir *ir = table_kernel(op, dt, to, n, thread);
    if (!ir)
        return 1;
    const int64_t N = 3 * n - n / 3;
    arg a[MAX_ARGS] = {{0}};
    for (int i = 0; i < ir->nparams; i++) {
        const ir_type t = ir_typeof(ir, ir->params[i].value);
        if (t.kind != IR_BUF) {
            a[i].bits = N;
            continue;
        }
        a[i].data = malloc((size_t)N * 8);
        a[i].count = N;
        fill(a[i].data, (eas_dtype)t.dtype, (size_t)N);
    }
    const int bad = compare(ir, a, 3, 1, false, 0);
    if (bad > 0) {
        print_error("%s %s -> %s, block %" PRId64 ", %s: %d wrong\n", ir_rows[op].name, eas_dtype_name(dt),
                    eas_dtype_name(to), n, thread ? "thread" : "spmd", bad);
        if (getenv("EAS_TEST_VERBOSE"))
            report(ir);
    }
    for (int i = 0; i < ir->nparams; i++)
        free(a[i].data);
    eas_ir_release(ir);
    return bad > 0;
}

static bool takes(uint16_t op, eas_dtype dt)
{
    return ir_rows[op].classes & (dt == EAS_BOOL ? IR_B : dtype_is_float(dt) ? IR_F : IR_I);
}

static int walk_sizes(uint16_t op, eas_dtype dt, eas_dtype to)
{
    static const int64_t sizes[] = {1, 7, 16, 100, 256};
    int bad = 0;
    if (ir_rows[op].flags & IR_EXPAND)
        /* long code, made of what is tested elsewhere */
        return walk_one(op, dt, to, 100, false) + walk_one(op, dt, to, 16, true);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        for (int thread = 0; thread < 2; thread++)
            bad += walk_one(op, dt, to, sizes[k], thread);
    return bad;
}

static void every_instruction(void **state)
{
    (void)state;
    int bad = 0;
    for (uint16_t op = 1; op < IR_NOPS; op++) {
        const ir_rule rule = (ir_rule)ir_rows[op].rule;
        if (rule != IR_RULE_SAME && rule != IR_RULE_CMP && rule != IR_RULE_WHERE)
            continue;
        for (int dt = 0; dt < EAS_NDTYPES; dt++)
            if (takes(op, (eas_dtype)dt))
                bad += walk_sizes(op, (eas_dtype)dt, (eas_dtype)dt);
    }
    assert_int_equal(bad, 0);
}

static void every_cast(void **state)
{
    (void)state;
    int bad = 0;
    for (int from = 0; from < EAS_NDTYPES; from++)
        for (int to = 0; to < EAS_NDTYPES; to++) {
            if (from == to)
                continue;
            bad += walk_one(IR_CAST, (eas_dtype)from, (eas_dtype)to, 100, false) +
                   walk_one(IR_CAST, (eas_dtype)from, (eas_dtype)to, 256, true);
            if (from && to && eas_dtype_size((eas_dtype)from) == eas_dtype_size((eas_dtype)to))
                bad += walk_one(IR_BITCAST, (eas_dtype)from, (eas_dtype)to, 100, false);
        }
    assert_int_equal(bad, 0);
}

/* ---- kernels of one behaviour each ---- */

#include "test_cpu_kernels.h"

static eas_ir *build(const kernel_case *k, bool simplify)
{
    eas_ir *ir = NULL;
    eas_builder_new(k->name, 0, &b);
    k->build();
    if (simplify ? eas_builder_finish(b, &ir) : irb_finish(b, &ir))
        print_error("%s: %s\n", k->name, eas_error_message());
    eas_builder_free(b);
    return ir;
}

static int run_case(const kernel_case *k, bool simplify, bool alias, uint64_t flags)
{
    eas_ir *ir = build(k, simplify);
    if (!ir)
        return 1;
    arg a[MAX_ARGS] = {{0}};
    for (int i = 0; i < ir->nparams; i++) {
        const ir_type t = ir_typeof(ir, ir->params[i].value);
        a[i].count = k->size[i];
        if (t.kind != IR_BUF) {
            a[i].bits = k->size[i];
            continue;
        }
        a[i].data = malloc((size_t)k->size[i] * 8);
        if (dtype_is_int((eas_dtype)t.dtype) && k->index_below) /* indices for gathers */
            for (int64_t e = 0; e < k->size[i]; e++) {
                const int64_t v = (int64_t)(rnd() % (uint64_t)k->index_below);
                memcpy((char *)a[i].data + (size_t)e * eas_dtype_size((eas_dtype)t.dtype), &v,
                       eas_dtype_size((eas_dtype)t.dtype));
            }
        else
            fill(a[i].data, (eas_dtype)t.dtype, (size_t)k->size[i]);
    }
    const int bad = compare(ir, a, k->grid[0], k->grid[1], alias, flags);
    if (bad > 0) {
        print_error("%s (simplified %d, alias %d, flags %d): %d wrong\n", k->name, simplify, alias,
                    (int)flags, bad);
        if (getenv("EAS_TEST_VERBOSE"))
            report(ir);
    }
    for (int i = 0; i < ir->nparams; i++)
        free(a[i].data);
    eas_ir_release(ir);
    return bad > 0;
}

static void every_kernel(void **state)
{
    (void)state;
    int bad = 0;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        for (int v = 0; v < 8; v++)
            bad += run_case(&kernels[i], v & 1, v & 2, v & 4 ? GEN_STREAM : 0);
    assert_int_equal(bad, 0);
}

/* ---- random kernels: control flow, segments and slots in combinations nobody thinks of ---- */

typedef struct maker {
    bool thread;
    int64_t block;
    eas_value x, y, i, r, s, off, N;
    eas_value f[64], n[64], u[16]; /* float blocks, integer blocks, uniform integers */
    int nf, nn, nu, depth, budget;
} maker;

static uint32_t pick(uint32_t n) { return (uint32_t)(rnd() % n); }
static eas_value some_f(maker *m) { return m->f[pick((uint32_t)m->nf)]; }
static eas_value some_n(maker *m) { return m->n[pick((uint32_t)m->nn)]; }
static eas_value some_u(maker *m) { return m->u[pick((uint32_t)m->nu)]; }
static void add_f(maker *m, eas_value v)
{
    if (m->nf < 64)
        m->f[m->nf++] = v;
}
static void add_n(maker *m, eas_value v)
{
    if (m->nn < 64)
        m->n[m->nn++] = v;
}
static void add_u(maker *m, eas_value v)
{
    if (m->nu < 16)
        m->u[m->nu++] = v;
}

enum { RANDOM_SIZE = 1024 };

/* an offset inside every buffer */
static eas_value random_offset(maker *m)
{
    switch (pick(6)) {
    case 0: return m->off;
    case 1: return MOD_(ADD(m->off, some_u(m)), K(RANDOM_SIZE));
    case 2: return MOD_(some_n(m), K(RANDOM_SIZE));
    case 3: return MOD_(MUL(m->off, K(1 + pick(4))), K(RANDOM_SIZE));
    case 4: return MOD_(DIV_(m->off, K(1 << pick(6))), K(RANDOM_SIZE));
    default: return SUB(K(RANDOM_SIZE - 1), m->off);
    }
}

static eas_value random_mask(maker *m)
{
    switch (pick(5)) {
    case 0: return LT(m->off, m->N);
    case 1: return OP(GT, some_f(m), F(0));
    case 2: return LT(MOD_(m->off, K(3 + pick(20))), some_u(m));
    case 3: return OP(AND, LT(m->off, m->N), OP(NE, MOD_(some_n(m), K(2)), K(0)));
    default: return OP(LE, some_u(m), m->off);
    }
}

static void random_arith(maker *m)
{
    static const uint16_t fops[] = {IR_ADD, IR_SUB, IR_MUL, IR_MIN, IR_MAX, IR_DIV},
                          nops[] = {IR_ADD, IR_SUB, IR_MUL, IR_MIN, IR_XOR, IR_FLOORDIV, IR_MOD};
    switch (pick(6)) {
    case 0: add_n(m, eas_builder_apply(b, nops[pick(7)], some_n(m), some_n(m), 0)); break;
    case 1: add_u(m, eas_builder_apply(b, nops[pick(4)], some_u(m), some_u(m), 0)); break;
    case 2: add_f(m, eas_builder_cast(b, some_n(m), EAS_F32)); break;
    case 3: add_f(m, eas_builder_apply(b, IR_WHERE, random_mask(m), some_f(m), some_f(m))); break;
    default: add_f(m, eas_builder_apply(b, fops[pick(6)], some_f(m), some_f(m), 0)); break;
    }
}

static void random_body(maker *m, int n);

static void random_store(maker *m)
{
    /* threads only write what is theirs; in SPMD order is defined, so anything goes */
    eas_value off = m->thread ? m->off : random_offset(m);
    const bool own = pick(2);
    eas_builder_store(b, own ? m->r : m->s, off, own ? some_f(m) : some_n(m), pick(2) ? random_mask(m) : 0);
}

static void random_load(maker *m)
{
    const uint32_t k = pick(m->thread ? 3 : 5); /* what threads write they read at their own place only */
    if (k < 2)
        add_f(m, eas_builder_load(b, k ? m->x : m->y, random_offset(m), pick(2) ? random_mask(m) : 0, 0));
    else if (k == 2)
        add_n(m, LOAD(m->i, random_offset(m)));
    else if (k == 3)
        add_f(m, LOAD(m->r, random_offset(m)));
    else
        add_n(m, LOAD(m->s, random_offset(m)));
}

static eas_value random_scalar(maker *m)
{
    return m->thread && pick(2) ? MOD_(some_n(m), K(5)) : MOD_(some_u(m), K(5));
}

static void random_loop(maker *m)
{
    const maker saved = *m;
    eas_value iv, c[3], init[3] = {some_f(m), some_n(m), some_u(m)}, next[3], fin[3];
    eas_builder_loop_begin(b, K(0), random_scalar(m), K(1 + pick(2)), 3, init, &iv, c);
    m->depth++;
    add_f(m, c[0]);
    add_n(m, c[1]);
    if (m->thread)
        add_n(m, ADD(iv, c[2]));
    else
        add_u(m, iv), add_u(m, c[2]);
    random_body(m, 4);
    next[0] = some_f(m);
    next[1] = some_n(m);
    next[2] = m->thread ? c[2] : some_u(m);
    const int budget = m->budget;
    *m = saved;
    m->budget = budget;
    eas_builder_loop_end(b, 3, next, fin);
    add_f(m, fin[0]);
    add_n(m, fin[1]);
    add_u(m, fin[2]);
}

static void random_if(maker *m)
{
    const maker saved = *m;
    eas_value t[2], e[2], r[2];
    eas_builder_if_begin(b, m->thread && pick(2) ? OP(GT, some_f(m), F(0)) : OP(GT, random_scalar(m), K(1)));
    m->depth++;
    random_body(m, 3);
    t[0] = some_f(m), t[1] = some_n(m);
    int budget = m->budget;
    *m = saved;
    m->budget = budget;
    eas_builder_if_else(b, 2, t);
    m->depth++;
    random_body(m, 3);
    e[0] = some_f(m), e[1] = some_n(m);
    budget = m->budget;
    *m = saved;
    m->budget = budget;
    eas_builder_if_end(b, 2, e, r);
    add_f(m, r[0]);
    add_n(m, r[1]);
}

static void random_body(maker *m, int n)
{
    for (int k = 0; k < n && m->budget-- > 0; k++)
        switch (pick(10)) {
        case 0:
        case 1:
        case 2: random_load(m); break;
        case 3: random_store(m); break;
        case 4:
            if (m->depth < 3)
                random_loop(m);
            break;
        case 5:
            if (m->depth < 3)
                random_if(m);
            break;
        case 6:
            if (m->thread && m->depth == 0) {
                eas_builder_barrier(b);
                break;
            } /* fall through */
        default: random_arith(m); break;
        }
}

static eas_ir *random_kernel(bool thread, bool simplify)
{
    static const int64_t blocks[] = {1, 5, 16, 33, 64, 100, 128};
    eas_ir *ir = NULL;
    maker m = {.thread = thread, .block = blocks[pick(7)], .budget = 30};
    eas_builder_new("random", 0, &b);
    m.x = eas_builder_param_buffer(b, "x", EAS_F32), m.y = eas_builder_param_buffer(b, "y", EAS_F32),
    m.i = eas_builder_param_buffer(b, "i", EAS_I64);
    m.r = eas_builder_param_buffer(b, "r", EAS_F32), m.s = eas_builder_param_buffer(b, "s", EAS_I64),
    m.N = eas_builder_param_scalar(b, "N", EAS_I64, 1);
    m.off = thread ? THREADS(m.block) : OFFSETS(m.block);
    add_n(&m, m.off);
    add_f(&m, LOAD(m.x, m.off));
    add_n(&m, LOAD(m.i, m.off));
    add_u(&m, eas_builder_program_id(b, 0));
    add_u(&m, eas_builder_const_typed(b, EAS_I64, 0, 3 + pick(40)));
    add_u(&m, m.N);
    random_body(&m, 12);
    STORE(m.r, m.off, some_f(&m));
    STORE(m.s, m.off, some_n(&m));
    if (simplify ? eas_builder_finish(b, &ir) : irb_finish(b, &ir))
        print_error("random: %s\n", eas_error_message());
    eas_builder_free(b);
    return ir;
}

static int random_one(uint64_t start)
{
    seed = start;
    const bool thread = pick(2), simplify = pick(2), alias = pick(2);
    eas_ir *ir = random_kernel(thread, simplify);
    if (!ir)
        return 1;
    arg a[MAX_ARGS] = {{0}};
    for (int k = 0; k < 5; k++) {
        a[k].data = malloc(RANDOM_SIZE * 8);
        a[k].count = RANDOM_SIZE;
        fill(a[k].data, (eas_dtype)ir_typeof(ir, ir->params[k].value).dtype, RANDOM_SIZE);
    }
    a[5].bits = (int64_t)pick(300);
    const int bad = compare(ir, a, 1 + pick(6), 1, alias, pick(2));
    if (bad > 0) {
        print_error("random kernel %" PRIu64 " (thread %d, simplified %d, alias %d): %d wrong\n", start,
                    thread, simplify, alias, bad);
        if (getenv("EAS_TEST_VERBOSE"))
            report(ir);
    }
    for (int k = 0; k < 5; k++)
        free(a[k].data);
    eas_ir_release(ir);
    return bad > 0;
}

static void random_kernels(void **state)
{
    (void)state;
    const char *n = getenv("EAS_TEST_RANDOM"), *from = getenv("EAS_TEST_SEED");
    int bad = 0;
    for (uint64_t k = 0; k < (uint64_t)(n ? atoi(n) : 200); k++)
        bad += random_one((from ? strtoull(from, NULL, 10) : 1000) + k * 7919 + 1);
    assert_int_equal(bad, 0);
}

static const char bounds_text[] =
    "kernel k(buf<f32> x, buf<f32> r, i64 N) {\n"
    "  %4 = program_id 0 : i64\n  %5 = const 64 : i64\n  %6 = mul %4, %5 : i64\n  %7 = arange 0 : i64[64]\n  %8 = broadcast %6 : i64[64]\n"
    "  %9 = add %8, %7 : i64[64]\n  %10 = broadcast %3 : i64[64]\n  %11 = lt %9, %10 : bool[64]\n  %12 = bounds %1, %9, %11 : bool[64]\n"
    "  %13 = const 0.0 : f32\n  %14 = broadcast %13 : f32[64]\n  %15 = load %1, %9, %12, %14 : f32[64]\n"
    "  %16 = bounds %2, %9, %12 : bool[64]\n  store %2, %9, %15, %16\n}\n";

static void bounds_report(void **state)
{
    (void)state;
    eas_ir *ir = NULL;
    assert_int_equal(eas_ir_parse(bounds_text, strlen(bounds_text), &ir), EAS_OK);
    float x[256], r[256];
    for (int i = 0; i < 256; i++)
        x[i] = (float)i, r[i] = -1;
    arg a[3] = {{x, 150, 0}, {r, 256, 0}, {NULL, 0, 200}};
    const int64_t grid[3] = {4, 1, 1};
    gen_fault f = {0};
    assert_int_equal(run_cpu(ir, a, grid, false, 0, &f, NULL), EAS_OK);
    assert_int_equal(f.set, 1);
    assert_int_equal(f.insn, 8);
    assert_int_equal(f.index, 150);
    assert_int_equal(f.program, 2);
    for (int i = 0; i < 256; i++)
        assert_true(r[i] == (i < 150 ? (float)i : -1));
    a[0].count = 200;
    f = (gen_fault){0};
    assert_int_equal(run_cpu(ir, a, grid, false, 0, &f, NULL), EAS_OK);
    assert_int_equal(f.set, 0);
    eas_ir_release(ir);
}

static void texts_and_determinism(void **state)
{
    (void)state;
    eas_ir *ir = NULL;
    assert_non_null(ir = build(&kernels[0], true));
    static const char *const forms[] = {"llvm", "asm"};
    for (int i = 0; i < 2; i++) {
        const gen_options opt = {
            .cpu_features = isa_features(), .vector_bytes = isa_vector_bytes(), .text = forms[i]};
        char *text = NULL, *error = NULL;
        gen_image none;
        assert_int_equal(compile(ir, &opt, &none, &text, &error), EAS_OK);
        assert_non_null(strstr(text, "kernel"));
        free(text);
    }
    const gen_options opt = {.cpu_features = isa_features(), .vector_bytes = isa_vector_bytes()};
    gen_image a, b;
    assert_int_equal(compile(ir, &opt, &a, NULL, NULL), EAS_OK);
    assert_int_equal(compile(ir, &opt, &b, NULL, NULL), EAS_OK);
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.bytes, b.bytes, a.size);
    gen_image_free(&a);
    gen_image_free(&b);
    eas_ir_release(ir);
}

int main(void)
{
    const char *path = getenv("EAS_LLVM_LIBRARY");
    void *lib = dlopen(path ? path : "libeas-llvm.so", RTLD_NOW | RTLD_LOCAL),
         *sym = lib ? dlsym(lib, "eas_llvm_compile") : NULL;
    if (!sym) {
        printf("skipped: %s\n", dlerror());
        return 77;
    }
    memcpy(&compile, &sym, sizeof sym);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_instruction), cmocka_unit_test(every_cast),
        cmocka_unit_test(every_kernel),      cmocka_unit_test(random_kernels),
        cmocka_unit_test(bounds_report),     cmocka_unit_test(texts_and_determinism),
    };
    if (getenv("EAS_TEST_ONLY"))
        cmocka_set_test_filter(getenv("EAS_TEST_ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
