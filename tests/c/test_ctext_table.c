/* test_ctext_table.c: every instruction on every dtype through the compilers of both languages, and its MSL
 * executed against the reference on special values. */
#include "ctext_words.h"

/* ---- every instruction on every dtype ---- */

typedef struct row {
    const char *name;
    int nargs;
    const char *rule, *classes, *flags;
} row;
#define V (-1)
static const row rows[] = {
#define INSN(NAME, name, nargs, rule, classes, flags, cost, llvm, mk, si, ui, fl) \
    {#name, nargs, #rule, #classes, #flags},
#include "../../src/ir/insn.def"
#undef INSN
};
#undef V

typedef struct elementwise {
    char name[48];
    eas_dtype in, out;
    int nargs, where, elementary;
    char *ir;
} elementwise;
static elementwise *cases;
static int ncases;

static int allows(const row *r, eas_dtype dt)
{
    char kind = eas_dtype_kind(dt);
    return strstr(r->classes, kind == 'b' ? "IR_B" : kind == 'f' ? "IR_F" : "IR_I") != NULL;
}

static int is_elementary(const char *op)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].name, op))
            return strchr(rows[i].flags, 'E') != NULL;
    return 0;
}

static void add_case(const char *op, eas_dtype in, eas_dtype out, int nargs, int where)
{
    cases = realloc(cases, (size_t)(ncases + 1) * sizeof *cases);
    elementwise *c = &cases[ncases++];
    const char *x = eas_dtype_name(in), *y = eas_dtype_name(out);
    *c = (elementwise){.in = in, .out = out, .nargs = nargs, .where = where, .elementary = is_elementary(op)};
    snprintf(c->name, sizeof c->name, "x_%s_%s_%s", op, x, y);
    char operands[64];
    snprintf(operands, sizeof operands,
             where        ? "%%14, %%12, %%13"
             : nargs == 1 ? "%%12"
             : nargs == 2 ? "%%12, %%13"
                          : "%%12, %%13, %%14");
    c->ir = malloc(1024);
    snprintf(c->ir, 1024,
             "kernel %s(buf<%s> a, buf<%s> b, buf<%s> c, buf<%s> o) {\n"
             "  %%5 = program_id 0 : u32\n"
             "  %%6 = const 64 : u32\n"
             "  %%7 = mul %%5, %%6 : u32\n"
             "  %%8 = broadcast %%7 : u32[64]\n"
             "  %%9 = arange 0 : u32[64]\n"
             "  %%10 = add %%8, %%9 : u32[64]\n"
             "  %%11 = reshape %%10 : u32[64]\n"
             "  %%12 = load %%1, %%11 : %s[64]\n"
             "  %%13 = load %%2, %%11 : %s[64]\n"
             "  %%14 = load %%3, %%11 : %s[64]\n"
             "  %%15 = %s %s : %s[64]\n"
             "  store %%4, %%11, %%15\n"
             "}\n",
             c->name, x, x, where ? "bool" : x, y, x, x, where ? "bool" : x, op, operands, y);
}

static void make_cases(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int dt = 0; dt < EAS_NDTYPES; dt++) {
            const row *r = &rows[i];
            if (!allows(r, (eas_dtype)dt))
                continue;
            if (!strcmp(r->rule, "SAME"))
                add_case(r->name, (eas_dtype)dt, (eas_dtype)dt, r->nargs, 0);
            else if (!strcmp(r->rule, "CMP"))
                add_case(r->name, (eas_dtype)dt, EAS_BOOL, r->nargs, 0);
            else if (!strcmp(r->rule, "WHERE"))
                add_case(r->name, (eas_dtype)dt, (eas_dtype)dt, 3, 1);
            else if (!strcmp(r->rule, "CAST"))
                for (int to = 0; to < EAS_NDTYPES; to++)
                    if (!strcmp(r->name, "cast") ||
                        (to != EAS_BOOL && eas_dtype_size((eas_dtype)to) == eas_dtype_size((eas_dtype)dt)))
                        add_case(r->name, (eas_dtype)dt, (eas_dtype)to, 1, 0);
        }
}

static int has_double(const elementwise *c) { return c->in == EAS_F64 || c->out == EAS_F64; }

enum { LANES = 1024, MANY_LANES = 65536 }; /* many: every half, for elementary functions */

/* Element i of operand `which`, in its dtype, to p: pairs of special values first, then random bits. */
static void put_value(eas_dtype dt, int which, int i, void *p)
{
    static const uint64_t ints[] = {0,
                                    1,
                                    2,
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
                                    100,
                                    127,
                                    128,
                                    255,
                                    256,
                                    32767,
                                    32768,
                                    65535,
                                    2147483647u,
                                    2147483648u,
                                    (uint64_t)-1,
                                    (uint64_t)-2,
                                    (uint64_t)-3,
                                    (uint64_t)-7,
                                    (uint64_t)-128,
                                    (uint64_t)-129,
                                    INT64_MAX,
                                    (uint64_t)INT64_MIN,
                                    UINT32_MAX};
    static const float floats[] = {
        0.0f,   -0.0f,         1.0f,          -1.0f,          0.5f,          1.5f,      2.5f,     -2.5f,
        3.75f,  -0.5f,         1e-3f,         65504.0f,       65520.0f,      127.5f,    -128.9f,  255.9f,
        256.0f, 32767.5f,      2147483648.0f, -2147483648.0f, 4294967296.0f, 9.3e18f,   -9.3e18f, 1.9e19f,
        1e30f,  3.4028235e38f, 1e-40f,        1.1754944e-38f, INFINITY,      -INFINITY, NAN,      3.0f};
    static const uint16_t halves[] = {0x0000, 0x8000, 0x3c00, 0xbc00, 0x3800, 0x3e00, 0x4100, 0xc100,
                                      0x0001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00,
                                      0x3f80, 0xbf80, 0x4020, 0xc020, 0x42ff, 0x4300, 0x437f, 0x477f,
                                      0x4f00, 0x5f00, 0xdf00, 0x5f80, 0x7f7f, 0x7f80, 0x0080, 0x1400};
    int s = which == 0 ? i % 32 : which == 1 ? i / 32 % 32 : (i * 7 + 5) % 32;
    uint64_t bits = ints[s];
    float f = floats[s];
    size_t size = eas_dtype_size(dt);
    if (dt == EAS_F32)
        memcpy(&bits, &f, 4);
    else if (dt == EAS_F16 || dt == EAS_BF16)
        bits = halves[s];
    if (i >= LANES / 4 * 3)
        bits = random_bits();
    if (dt == EAS_BOOL)
        bits &= 1;
    memcpy(p, &bits, size);
}

/* More operands for elementary functions: every half; floats of all magnitudes, and of the ones where
 * something happens. */
static void put_number(eas_dtype dt, int which, int i, void *p)
{
    uint64_t bits = which ? random_bits() : (uint64_t)i;
    if (dt == EAS_F32) {
        float f = (float)(int)(random_bits() >> 8 & 0xffffff) / 8388608.0f - 1;
        bits = random_bits();
        if (i % 4) {
            f *= i % 4 == 1 ? 110.0f : i % 4 == 2 ? 4.0f : 1e-3f;
            memcpy(&bits, &f, 4);
        }
    }
    memcpy(p, &bits, eas_dtype_size(dt));
}

static void check_case(const elementwise *c)
{
    static char in[3][MANY_LANES * 8], want[MANY_LANES * 8], got[MANY_LANES * 8];
    int n = c->elementary ? MANY_LANES : LANES;
    eas_dtype dt[3] = {c->in, c->in, c->where ? EAS_BOOL : c->in};
    eas_arg args[4];
    void *ptr[4] = {in[0], in[1], in[2], got};
    eas_ir *ir;
    eas_kernel *k;
    eas_device *ref;
    for (int w = 0; w < 3; w++)
        for (int i = 0; i < n; i++)
            (i < LANES ? put_value : put_number)(dt[w], w, i, in[w] + (size_t)i * eas_dtype_size(dt[w]));
    for (int a = 0; a < 4; a++)
        args[a] = (eas_arg){.v.data = a < 3 ? in[a] : want,
                            .count = n,
                            .dtype = (uint8_t)(a < 3 ? dt[a] : c->out),
                            .is_buffer = 1};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {n / 64, 1, 1}};
    ok(eas_device_get("ref", &ref));
    ok(eas_ir_parse(c->ir, strlen(c->ir), &ir));
    ok(eas_kernel_new(ir, &k));
    ok(eas_kernel_launch(k, ref, args, 4, &opts));
    assert_int_equal(msl_batch_run(batch, c->name, ptr, opts.grid, 1), 0);
    same_values(c->name, c->out, want, got, n);
    eas_kernel_release(k);
    eas_ir_release(ir);
}

static void test_every_instruction_runs_as_msl(void **state)
{
    (void)state;
    batch = msl_batch_new();
    for (int i = 0; i < ncases; i++)
        if (!has_double(&cases[i])) {
            char *s = text_of_ir(cases[i].ir, "msl");
            msl_batch_add(batch, s);
            eas_memory_free(s);
        }
    assert_int_equal(msl_batch_compile(batch), 0);
    for (int i = 0; i < ncases; i++)
        if (!has_double(&cases[i]))
            check_case(&cases[i]);
    msl_batch_free(batch);
}

/* OpenCL C of many kernels in one file: their helper functions get a prefix each. */
typedef struct joined {
    char *text;
    size_t n, cap;
    int kernels;
} joined;

static void join_opencl(joined *j, const char *text)
{
    static const char *const helpers[] = {
        "eas_f16_bits",   "eas_f16_value",  "eas_round_f16",   "eas_bf16_bits", "eas_bf16_value",
        "eas_round_bf16", "eas_f64_to_f16", "eas_f64_to_bf16", "eas_odd_u64",   "eas_odd_i64"};
    size_t most = strlen(text) + 4096;
    if (j->n + most > j->cap)
        j->text = realloc(j->text, j->cap = 2 * (j->n + most));
    for (size_t h = 0; h < sizeof helpers / sizeof *helpers; h++)
        j->n += (size_t)snprintf(j->text + j->n, j->cap - j->n, "#undef %s\n#define %s h%d_%s\n", helpers[h],
                                 helpers[h], j->kernels, helpers[h]);
    j->n += (size_t)snprintf(j->text + j->n, j->cap - j->n, "%s\n", text);
    assert_true(j->n < j->cap);
    j->kernels++;
}

static void check_joined(joined *j)
{
    assert_int_equal(opencl_syntax(j->text), 0);
    free(j->text);
}

static void test_every_instruction_compiles_as_opencl(void **state)
{
    (void)state;
    joined all = {0};
    for (int i = 0; i < ncases; i++) {
        char *s = text_of_ir(cases[i].ir, "opencl");
        join_opencl(&all, s);
        eas_memory_free(s);
    }
    check_joined(&all);
}

/* ---- fast math: the language's own functions ---- */

static char *fast_text(const elementwise *c, const char *form)
{
    char ir[1200];
    const char *brace = strchr(c->ir, '{');
    snprintf(ir, sizeof ir, "%.*sfastmath %s", (int)(brace - c->ir), c->ir, brace);
    return text_of_ir(ir, form);
}

static float as_number(eas_dtype dt, const char *p)
{
    uint32_t u = 0;
    float f;
    memcpy(&u, p, eas_dtype_size(dt));
    if (dt == EAS_F16) /* normal numbers only */
        u = (u & 0x8000) << 16 | (u & 0x7fff ? (u & 0x7fff) * 8192 + (112u << 23) : 0);
    else if (dt == EAS_BF16)
        u <<= 16;
    memcpy(&f, &u, 4);
    return f;
}

/* Close to the reference, on operands from 1/4 to 4. */
static void check_fast(const elementwise *c)
{
    enum { N = 64 };
    static char in[2][N * 4], want[N * 4], got[N * 4];
    size_t size = eas_dtype_size(c->in);
    eas_ir *ir;
    eas_kernel *k;
    eas_device *ref;
    for (int i = 0; i < 2 * N; i++) {
        uint32_t top = c->in == EAS_F16 ? 0x3400 : c->in == EAS_BF16 ? 0x3e80 : 0x3e800000;
        uint32_t bits = top + (uint32_t)(random_bits() >> 11 & (c->in == EAS_F16    ? 0xfff
                                                                : c->in == EAS_BF16 ? 0x1ff
                                                                                    : 0x1ffffff));
        memcpy(in[i / N] + (size_t)(i % N) * size, &bits, size);
    }
    eas_arg args[4];
    void *ptr[4] = {in[0], in[1], in[1], got};
    for (int a = 0; a < 4; a++)
        args[a] =
            (eas_arg){.v.data = a == 3 ? want : ptr[a], .count = N, .dtype = (uint8_t)c->in, .is_buffer = 1};
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {1, 1, 1}};
    ok(eas_device_get("ref", &ref));
    ok(eas_ir_parse(c->ir, strlen(c->ir), &ir));
    ok(eas_kernel_new(ir, &k));
    ok(eas_kernel_launch(k, ref, args, 4, &opts));
    assert_int_equal(msl_batch_run(batch, c->name, ptr, opts.grid, 1), 0);
    for (int i = 0; i < N; i++) {
        float x = as_number(c->in, want + (size_t)i * size), y = as_number(c->in, got + (size_t)i * size);
        if (fabsf(x - y) > (c->in == EAS_F32 ? 1e-4f : 2e-2f) * (1 + fabsf(x)))
            fail_msg("%s: element %d is %g, the reference says %g", c->name, i, (double)y, (double)x);
    }
    eas_kernel_release(k);
    eas_ir_release(ir);
}

static void test_fast_math_uses_the_languages_functions(void **state)
{
    (void)state;
    joined all = {0};
    batch = msl_batch_new();
    for (int i = 0; i < ncases; i++) {
        if (!cases[i].elementary)
            continue;
        char *s = fast_text(&cases[i], "opencl");
        join_opencl(&all, s);
        eas_memory_free(s);
        if (has_double(&cases[i]))
            continue;
        s = fast_text(&cases[i], "msl");
        if (strstr(cases[i].name, "x_exp_"))
            has_like(s, cases[i].in == EAS_F16    ? "(half)(exp((float)#))"
                        : cases[i].in == EAS_BF16 ? "(bfloat)(exp((float)#))"
                                                  : "exp(#)");
        msl_batch_add(batch, s);
        eas_memory_free(s);
    }
    check_joined(&all);
    assert_int_equal(msl_batch_compile(batch), 0);
    for (int i = 0; i < ncases; i++)
        if (cases[i].elementary && !has_double(&cases[i]))
            check_fast(&cases[i]);
    msl_batch_free(batch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_instruction_compiles_as_opencl),
        cmocka_unit_test(test_every_instruction_runs_as_msl),
        cmocka_unit_test(test_fast_math_uses_the_languages_functions),
    };
    make_cases();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < ncases; i++)
        free(cases[i].ir);
    free(cases);
    return rc;
}
