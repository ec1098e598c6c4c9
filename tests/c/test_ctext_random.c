/* test_ctext_random.c: kernels at random as MSL against the reference: blocks of several shapes that load,
 * store, loop and branch over two buffers. */
#include "ctext_words.h"

enum { NSHAPES = 4, POOL = 24, REGION = 256 };
static const int64_t shapes[NSHAPES][2] = {{32, 0}, {8, 4}, {8, 1}, {1, 4}};

typedef struct pool {
    eas_value at[NSHAPES][POOL];
    int n[NSHAPES];
} pool;
typedef struct maker {
    eas_builder *b;
    eas_value buf[2];
    pool val, off; /* f32 values; offsets within REGION */
} maker;

static int pick(int n) { return (int)(random_bits() >> 5 & 0xffff) % n; }
static int rank_of(int s) { return s ? 2 : 1; }

static void keep(pool *p, int s, eas_value v) { p->at[s][p->n[s] < POOL ? p->n[s]++ : pick(POOL)] = v; }

static eas_value any(const pool *p, int s) { return p->at[s][pick(p->n[s])]; }

static eas_value lanes(maker *m, int s)
{
    int64_t n = shapes[s][0] * (shapes[s][1] ? shapes[s][1] : 1);
    eas_value v = eas_builder_arange(m->b, 0, n);
    return s ? eas_builder_reshape(m->b, v, 2, shapes[s]) : v;
}

static void make_offset(maker *m, int s)
{
    eas_builder *b = m->b;
    eas_value v = lanes(m, s);
    switch (pick(5)) {
    case 0: v = op2(b, "sub", num(b, 40), v); break;
    case 1: v = op2(b, "floordiv", v, num(b, 2)); break;
    case 2: v = op2(b, "mul", v, num(b, 3)); break;
    case 3: v = op2(b, "mod", v, num(b, 5)); break;
    default: break;
    }
    keep(&m->off, s, op2(b, "add", v, num(b, pick(8))));
}

static eas_value make_mask(maker *m, int s)
{
    eas_value x = op2(m->b, "lt", any(&m->off, s), num(m->b, pick(40)));
    if (pick(2))
        return x;
    eas_value y = op2(m->b, "gt", any(&m->val, s), eas_builder_const_float(m->b, 0.5));
    return op2(m->b, pick(2) ? "and" : "or", x, y);
}

static eas_value sum(maker *m, eas_value v, int axis)
{
    return eas_builder_reduce(m->b, eas_op_find("add"), v, axis);
}

/* A fold of what was just loaded, which may wait until its halves are read, with stores around it. */
static void make_fold(maker *m)
{
    eas_builder *b = m->b;
    int axis = pick(2), to = axis ? 2 : 3;
    eas_value mask = pick(2) ? make_mask(m, 1) : 0;
    if (pick(2))
        eas_builder_store(b, m->buf[pick(2)], any(&m->off, 1), any(&m->val, 1), 0);
    eas_value v = eas_builder_load(b, m->buf[pick(2)], any(&m->off, 1), mask, 0);
    if (pick(3) == 0)
        eas_builder_store(b, m->buf[pick(2)], any(&m->off, 0), any(&m->val, 0), 0);
    if (pick(2))
        v = op2(b, "mul", v,
                pick(2) ? any(&m->val, 1) : eas_builder_load(b, m->buf[pick(2)], any(&m->off, 1), 0, 0));
    v = eas_builder_reshape(b, sum(m, v, axis), 2, shapes[to]);
    if (pick(2))
        eas_builder_store(b, m->buf[pick(2)], any(&m->off, to), v, 0);
    keep(&m->val, to, v);
}

/* Slices, transposes, pads (inside joins and scans) and folds between the shapes. */
static void make_move(maker *m)
{
    eas_builder *b = m->b;
    eas_value flat = any(&m->val, 0), wide = any(&m->val, 1);
    switch (pick(11)) {
    case 0: keep(&m->val, 1, eas_builder_reshape(b, eas_builder_trans(b, wide, NULL), 2, shapes[1])); break;
    case 1:
        keep(&m->val, 0,
             eas_builder_reshape(b,
                                 eas_builder_join(b, eas_builder_slice(b, flat, 0, pick(17), 16),
                                                  eas_builder_slice(b, flat, 0, pick(17), 16)),
                                 1, shapes[0]));
        break;
    case 2: keep(&m->val, 2, eas_builder_slice(b, wide, 1, pick(4), 1)); break;
    case 3: keep(&m->val, 3, eas_builder_slice(b, wide, 0, pick(8), 1)); break;
    case 4: keep(&m->val, 2, eas_builder_reshape(b, sum(m, wide, 1), 2, shapes[2])); break;
    case 5: keep(&m->val, 3, eas_builder_reshape(b, sum(m, wide, 0), 2, shapes[3])); break;
    case 6:
    case 7:
    case 8: make_fold(m); break;
    case 9: keep(&m->val, 0, eas_builder_scan(b, eas_op_find("max"), flat, 0)); break;
    default: {
        int s = pick(NSHAPES);
        keep(&m->val, s,
             eas_builder_broadcast(b, pick(2) ? sum(m, flat, 0) : eas_builder_slice(b, flat, 0, pick(32), 1),
                                   rank_of(s), shapes[s]));
    }
    }
}

static void make_view(maker *m)
{
    static const int from[] = {0, 1, 2, 3}, to[] = {1, 0, 1, 1};
    int k = pick(4);
    eas_value v = any(&m->val, from[k]);
    v = k < 2 ? eas_builder_reshape(m->b, v, rank_of(to[k]), shapes[to[k]])
              : eas_builder_broadcast(m->b, v, 2, shapes[to[k]]);
    keep(&m->val, to[k], v);
}

/* Scalars between the blocks: they must not overtake stores, nor be overtaken. */
static void make_scalar(maker *m, int s)
{
    eas_value v = eas_builder_load(m->b, m->buf[pick(2)], num(m->b, pick(48)), 0, 0);
    if (pick(2))
        eas_builder_store(m->b, m->buf[pick(2)], num(m->b, pick(48)),
                          op2(m->b, "add", v, eas_builder_const_float(m->b, 0.25)), 0);
    keep(&m->val, s, eas_builder_broadcast(m->b, v, rank_of(s), shapes[s]));
}

static void make_steps(maker *m, int n, int depth);

/* A loop or a branch that changes one value; what it defined goes out of sight with it. */
static void make_region(maker *m, int depth)
{
    int s = pick(NSHAPES), loop = pick(2);
    eas_value init = any(&m->val, s), iv = 0, in = init, out;
    pool val = m->val, off = m->off;
    if (loop)
        eas_builder_loop_begin(m->b, num(m->b, 0), num(m->b, 1 + pick(3)), num(m->b, 1 + pick(2)), 1, &init,
                               &iv, &in);
    else
        eas_builder_if_begin(m->b,
                             op2(m->b, "gt", eas_builder_load(m->b, m->buf[0], num(m->b, pick(64)), 0, 0),
                                 eas_builder_const_float(m->b, 0)));
    keep(&m->val, s, in);
    make_steps(m, 4, depth + 1);
    eas_value next = any(&m->val, s);
    m->val = val;
    m->off = off;
    if (loop) {
        eas_builder_loop_end(m->b, 1, &next, &out);
    } else {
        eas_builder_if_else(m->b, 1, &next);
        make_steps(m, 2, depth + 1);
        next = any(&m->val, s);
        m->val = val;
        m->off = off;
        eas_builder_if_end(m->b, 1, &next, &out);
    }
    keep(&m->val, s, out);
}

static void make_steps(maker *m, int n, int depth)
{
    static const char *const ops[] = {"add", "sub", "mul", "min", "max"};
    for (int i = 0; i < n; i++) {
        int s = pick(NSHAPES), what = pick(depth < 2 ? 16 : 15);
        if (what < 3) {
            eas_value o = any(&m->off, s), mask = pick(2) ? make_mask(m, s) : 0;
            keep(&m->val, s,
                 eas_builder_load(m->b, m->buf[pick(2)], o, mask, mask && pick(2) ? any(&m->val, s) : 0));
        } else if (what < 5) {
            eas_value o = any(&m->off, s), v = any(&m->val, s), mask = pick(2) ? make_mask(m, s) : 0;
            eas_builder_store(m->b, m->buf[pick(2)], o, v, mask);
        } else if (what < 7) {
            eas_value x = any(&m->val, s), y = any(&m->val, s);
            keep(&m->val, s, op2(m->b, ops[pick(5)], x, y));
        } else if (what < 8) {
            make_offset(m, s);
        } else if (what < 10) {
            make_view(m);
        } else if (what < 12) {
            make_scalar(m, s);
        } else if (what < 15) {
            make_move(m);
        } else {
            make_region(m, depth);
        }
    }
}

static eas_kernel *random_kernel(int number)
{
    char name[32];
    snprintf(name, sizeof name, "random_%d", number);
    maker m = {.b = start(name)};
    m.buf[0] = eas_builder_param_buffer(m.b, "x", EAS_F32);
    m.buf[1] = eas_builder_param_buffer(m.b, "y", EAS_F32);
    for (int s = 0; s < NSHAPES; s++) {
        make_offset(&m, s);
        make_offset(&m, s);
        keep(&m.val, s, eas_builder_load(m.b, m.buf[s % 2], any(&m.off, s), 0, 0));
    }
    make_steps(&m, 24, 0);
    for (int s = 0; s < NSHAPES; s++)
        eas_builder_store(m.b, m.buf[0], op2(m.b, "add", lanes(&m, s), num(m.b, REGION + 64 * s)),
                          any(&m.val, s), 0);
    return finish(m.b);
}

static void test_random_kernels_run_as_msl(void **state)
{
    (void)state;
    const char *many = getenv("EAS_RANDOM_KERNELS"), *from = getenv("EAS_RANDOM_SEED");
    int n = many ? atoi(many) : 60;
    whole *all = calloc((size_t)n, sizeof *all);
    seed = from ? strtoull(from, NULL, 10) : 12345;
    for (int i = 0; i < n; i++)
        all[i] = (whole){.k = random_kernel(i), .grid = {1, 1, 1}};
    run_all(all, n);
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_kernels_run_as_msl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
