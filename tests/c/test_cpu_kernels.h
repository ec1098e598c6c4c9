/* test_cpu_kernels.h: kernels for test_cpu.c, one behaviour each, written with the public builder. */
static eas_builder *b;

#define OP(op, x, y) eas_builder_apply(b, IR_##op, x, y, 0)
#define ADD(x, y) OP(ADD, x, y)
#define SUB(x, y) OP(SUB, x, y)
#define MUL(x, y) OP(MUL, x, y)
#define DIV_(x, y) OP(FLOORDIV, x, y)
#define MOD_(x, y) OP(MOD, x, y)
#define LT(x, y) OP(LT, x, y)
#define K(v) eas_builder_const_int(b, v)
#define F(v) eas_builder_const_float(b, v)
#define BUF(name, dt) eas_value name = eas_builder_param_buffer(b, #name, EAS_##dt)
#define SCALAR(name) eas_value name = eas_builder_param_scalar(b, #name, EAS_I64, 1)
#define OFFSETS(B) ADD(MUL(eas_builder_program_id(b, 0), K(B)), eas_builder_arange(b, 0, B))
#define THREADS(B) ADD(MUL(eas_builder_program_id(b, 0), K(B)), eas_builder_tid(b, 0, B))
#define LOAD(buf, off) eas_builder_load(b, buf, off, 0, 0)
#define STORE(buf, off, x) eas_builder_store(b, buf, off, x, 0)

static eas_value column(eas_value x, int64_t n) { return eas_builder_reshape(b, x, 2, (int64_t[]){n, 1}); }
static eas_value row(eas_value x, int64_t n) { return eas_builder_reshape(b, x, 2, (int64_t[]){1, n}); }

static void k_add(void)
{
    BUF(x, F32);
    BUF(y, F32);
    BUF(r, F32);
    SCALAR(N);
    eas_value o = OFFSETS(256), m = LT(o, N);
    eas_builder_store(b, r, o, ADD(eas_builder_load(b, x, o, m, 0), eas_builder_load(b, y, o, m, 0)), m);
}

/* NaN scaled by an infinity is NaN, whatever hardware says of it. */
static void k_scaled_nan(void)
{
    BUF(x, F32);
    BUF(r, F32);
    eas_value o = OFFSETS(64), size = eas_builder_apply(b, IR_ABS, LOAD(x, o), 0, 0),
              nan = eas_builder_apply(b, IR_SQRT, SUB(F(-1), size), 0, 0);
    eas_value inf = eas_builder_apply(b, IR_EXP, ADD(F(1000), OP(MIN, size, F(1))), 0, 0);
    STORE(r, o, OP(LDEXP, nan, inf));
    STORE(r, ADD(o, K(1024)), OP(LDEXP, nan, SUB(F(0), inf)));
}

static void k_strides(void)
{
    BUF(x, F32);
    BUF(r, F32);
    BUF(s, F64);
    BUF(d, I8);
    eas_value o = OFFSETS(50);
    STORE(r, MUL(o, K(3)), ADD(LOAD(x, MUL(o, K(2))), LOAD(x, ADD(MUL(o, K(2)), K(1)))));
    STORE(s, SUB(K(99), o), LOAD(s, SUB(K(99), o)));
    STORE(d, SUB(K(199), MUL(o, K(2))), eas_builder_cast(b, o, EAS_I8));
}

static void k_gather(void)
{
    BUF(x, F32);
    BUF(i, I32);
    BUF(r, F32);
    SCALAR(N);
    eas_value o = OFFSETS(100), m = LT(o, N), j = eas_builder_load(b, i, o, m, 0);
    eas_value odd = OP(AND, m, OP(EQ, MOD_(j, K(2)), K(1)));
    eas_builder_store(b, r, o, eas_builder_load(b, x, eas_builder_cast(b, j, EAS_I64), odd, F(7)), m);
}

static void k_gather_small(void)
{
    BUF(x, U8);
    BUF(i, I32);
    BUF(r, U8);
    BUF(h, F16);
    eas_value o = OFFSETS(100), j = LOAD(i, o);
    STORE(r, o, LOAD(x, j));
    STORE(h, j, eas_builder_cast(b, o, EAS_F16));
}

static void k_scatter_duplicates(void)
{
    BUF(i, I32);
    BUF(r, I32);
    eas_value o = OFFSETS(256), j = MOD_(LOAD(i, o), K(16));
    STORE(r, j, eas_builder_cast(b, o, EAS_I32));
    eas_builder_store(b, r, ADD(j, K(16)), eas_builder_cast(b, o, EAS_I32), OP(NE, MOD_(o, K(3)), K(0)));
}

static void k_shift_in_place(void)
{
    BUF(x, F32);
    eas_value o = OFFSETS(256);
    STORE(x, ADD(o, K(1)), LOAD(x, o));
}

static void k_store_then_load(void)
{
    BUF(x, F32);
    BUF(r, F32);
    eas_value o = OFFSETS(128), v = LOAD(x, o);
    STORE(r, o, v);
    eas_value w = LOAD(r, SUB(K(127), eas_builder_arange(b, 0, 128)));
    STORE(r, o, ADD(w, v));
    STORE(x, MUL(MOD_(o, K(2)), K(3)), w);
}

static void k_same_offsets_twice(void)
{
    BUF(x, F32);
    BUF(i, I32);
    eas_value o = LOAD(i, OFFSETS(64)), v = LOAD(x, o);
    STORE(x, o, ADD(v, F(1)));
    STORE(x, o, MUL(LOAD(x, o), F(2)));
}

static void k_loop_carried(void)
{
    BUF(x, F32);
    BUF(r, F32);
    SCALAR(n);
    eas_value o = OFFSETS(100), iv, acc,
              z = eas_builder_broadcast(b, eas_builder_const_typed(b, EAS_F32, 1, 0), 1, (int64_t[]){100});
    eas_builder_loop_begin(b, K(0), n, K(1), 1, &z, &iv, &acc);
    eas_value next = OP(SUB, MUL(acc, F(0.5)), LOAD(x, ADD(MUL(iv, K(100)), o))), fin;
    eas_builder_loop_end(b, 1, &next, &fin);
    STORE(r, o, fin);
}

static void k_loop_unrolled(void)
{
    BUF(x, F32);
    BUF(r, F32);
    eas_value o = OFFSETS(64), iv, acc[2], z[2] = {LOAD(x, o), LOAD(x, ADD(o, K(1)))};
    eas_builder_loop_begin(b, K(2), K(26), K(3), 2, z, &iv, acc);
    eas_value next[2] = {acc[1], ADD(acc[0], LOAD(x, ADD(iv, o)))}, fin[2];
    eas_builder_loop_end(b, 2, next, fin);
    STORE(r, o, SUB(fin[0], fin[1]));
}

static void k_loop_stores(void)
{
    BUF(x, F32);
    SCALAR(n);
    eas_value o = eas_builder_arange(b, 0, 64), iv;
    eas_builder_loop_begin(b, K(0), n, K(1), 0, NULL, &iv, NULL);
    STORE(x, ADD(o, ADD(iv, K(1))), ADD(LOAD(x, ADD(o, iv)), F(1)));
    eas_builder_loop_end(b, 0, NULL, NULL);
}

static void k_loop_swap_outside(void)
{
    BUF(x, F32);
    BUF(r, F32);
    SCALAR(n);
    eas_value o = eas_builder_arange(b, 0, 64), iv, c[3],
              z[3] = {LOAD(x, o), LOAD(x, ADD(o, K(64))), eas_builder_const_typed(b, EAS_I64, 0, 3)};
    eas_builder_loop_begin(b, K(0), n, K(1), 3, z, &iv, c);
    STORE(r, o, c[0]);
    eas_value w = LOAD(r, SUB(K(63), o)), next[3] = {c[1], ADD(c[0], w), ADD(c[2], iv)}, fin[3];
    eas_builder_loop_end(b, 3, next, fin);
    STORE(r, ADD(o, K(64)), ADD(fin[0], eas_builder_cast(b, fin[2], EAS_F32)));
    STORE(r, ADD(o, K(128)), fin[1]);
}

static void k_loop_directions(void)
{
    BUF(r, I64);
    SCALAR(n);
    eas_value iv, c, z = eas_builder_const_typed(b, EAS_I64, 0, 0), next, fin[4];
    eas_value step[4] = {K(-3), K(0), K(7), K(1)}, lo[4] = {n, n, K(0), SUB(K(INT64_MAX), K(3))},
              hi[4] = {K(-5), K(100), n, K(INT64_MAX)};
    for (int k = 0; k < 4; k++) {
        eas_builder_loop_begin(b, lo[k], hi[k], step[k], 1, &z, &iv, &c);
        next = ADD(MUL(c, K(3)), ADD(iv, K(1)));
        eas_builder_loop_end(b, 1, &next, &fin[k]);
        STORE(r, K(k), fin[k]);
    }
}

static void k_uniform_if(void)
{
    BUF(x, F32);
    BUF(r, F32);
    BUF(s, I64);
    SCALAR(n);
    eas_value o = OFFSETS(48), v = LOAD(x, o), c = LT(eas_builder_program_id(b, 0), n), t[2], e[2], m[2];
    eas_builder_if_begin(b, c);
    t[0] = MUL(v, F(2));
    t[1] = ADD(n, K(1));
    eas_builder_if_else(b, 2, t);
    e[0] = eas_builder_apply(b, IR_NEG, v, 0, 0);
    e[1] = MUL(n, n);
    eas_builder_if_end(b, 2, e, m);
    STORE(r, o, m[0]);
    eas_builder_if_begin(b, OP(EQ, eas_builder_program_id(b, 0), K(1)));
    STORE(s, K(0), m[1]);
    eas_builder_if_else(b, 0, NULL);
    STORE(s, K(1), m[1]);
    eas_builder_if_end(b, 0, NULL, NULL);
}

static void k_uniform_while(void)
{
    BUF(x, F32);
    BUF(r, F32);
    eas_value o = OFFSETS(40), c[2], z[2] = {ADD(eas_builder_program_id(b, 0), K(3)), LOAD(x, o)}, fin[2];
    eas_builder_while_begin(b, 2, z, c);
    eas_builder_while_do(b, OP(GT, c[0], K(1)));
    eas_value half = DIV_(c[0], K(2)), odd = ADD(MUL(c[0], K(3)), K(1));
    eas_value next[2] = {eas_builder_apply(b, IR_WHERE, OP(EQ, MOD_(c[0], K(2)), K(0)), half, odd),
                         ADD(c[1], F(1))};
    eas_builder_while_end(b, 2, next, fin);
    STORE(r, o, fin[1]);
}

static void k_thread_if(void)
{
    BUF(x, F32);
    BUF(r, F32);
    SCALAR(N);
    eas_value o = THREADS(100), t, e, m;
    eas_builder_if_begin(b, LT(o, N));
    eas_value v = LOAD(x, o);
    eas_builder_if_begin(b, OP(GT, v, F(0)));
    t = ADD(v, LOAD(x, K(3)));
    eas_builder_if_else(b, 1, &t);
    e = MUL(v, F(3));
    eas_builder_if_end(b, 1, &e, &m);
    STORE(r, o, m);
    eas_builder_if_end(b, 0, NULL, NULL);
}

static void k_thread_loops(void)
{
    BUF(x, F32);
    BUF(r, F32);
    BUF(s, I64);
    eas_value o = THREADS(64), tid = eas_builder_tid(b, 0, 64), iv, c, z = F(0), fin, w[2];
    eas_builder_loop_begin(b, MOD_(tid, K(3)), MOD_(tid, K(11)), ADD(MOD_(tid, K(2)), K(1)), 1,
                           (eas_value[]){eas_builder_cast(b, z, EAS_F32)}, &iv, &c);
    eas_value next = ADD(c, LOAD(x, ADD(o, iv)));
    eas_builder_loop_end(b, 1, &next, &fin);
    STORE(r, o, fin);
    eas_value c2[2], z2[2] = {ADD(o, K(1)), K(0)};
    eas_builder_while_begin(
        b, 2, (eas_value[]){eas_builder_cast(b, z2[0], EAS_I64), eas_builder_const_typed(b, EAS_I64, 0, 0)},
        c2);
    eas_builder_while_do(b, OP(GT, c2[0], K(1)));
    eas_value n2[2] = {eas_builder_apply(b, IR_WHERE, OP(EQ, MOD_(c2[0], K(2)), K(0)), DIV_(c2[0], K(2)),
                                         ADD(MUL(c2[0], K(3)), K(1))),
                       ADD(c2[1], K(1))};
    eas_builder_while_end(b, 2, n2, w);
    STORE(s, o, w[1]);
    eas_builder_loop_begin(b, K(0), MOD_(tid, K(5)), K(1), 0, NULL, &iv, NULL);
    STORE(s, ADD(ADD(K(256), MUL(iv, K(256))), o), iv);
    eas_builder_loop_end(b, 0, NULL, NULL);
}

static void k_barrier_reverse(void)
{
    BUF(x, F32);
    BUF(r, F32);
    eas_value o = THREADS(96), tid = eas_builder_tid(b, 0, 96), tg = eas_builder_alloc_tg(b, 96, EAS_F32),
              v = LOAD(x, o);
    STORE(tg, tid, v);
    eas_builder_barrier(b);
    STORE(r, o, ADD(v, LOAD(tg, SUB(K(95), tid))));
}

static void k_barrier_sum(void)
{
    BUF(x, F32);
    BUF(r, F32);
    eas_value o = THREADS(128), tid = eas_builder_tid(b, 0, 128), tg = eas_builder_alloc_tg(b, 128, EAS_F32),
              c, z = eas_builder_const_typed(b, EAS_I64, 0, 64), fin;
    STORE(tg, tid, LOAD(x, o));
    eas_builder_barrier(b);
    eas_builder_while_begin(b, 1, &z, &c);
    eas_builder_while_do(b, OP(GT, c, K(0)));
    eas_builder_if_begin(b, LT(tid, c));
    STORE(tg, tid, ADD(LOAD(tg, tid), LOAD(tg, ADD(tid, c))));
    eas_builder_if_end(b, 0, NULL, NULL);
    eas_builder_barrier(b);
    eas_value next = DIV_(c, K(2));
    eas_builder_while_end(b, 1, &next, &fin);
    eas_builder_if_begin(b, OP(EQ, tid, K(0)));
    STORE(r, eas_builder_program_id(b, 0), LOAD(tg, K(0)));
    eas_builder_if_end(b, 0, NULL, NULL);
}

/* a uniform load decides how often a loop with barriers runs */
static void k_barrier_bound(void)
{
    BUF(x, F32);
    BUF(i, I32);
    BUF(r, F32);
    eas_value o = THREADS(64), tid = eas_builder_tid(b, 0, 64), tg = eas_builder_alloc_tg(b, 64, EAS_F32),
              n = LOAD(i, K(0)), iv, c, z = LOAD(x, o), fin;
    eas_builder_loop_begin(b, K(0), eas_builder_cast(b, n, EAS_I64), K(1), 1, &z, &iv, &c);
    STORE(tg, tid, c);
    eas_builder_barrier(b);
    eas_value next = ADD(LOAD(tg, MOD_(ADD(tid, K(1)), K(64))), eas_builder_cast(b, n, EAS_F32));
    eas_builder_barrier(b);
    eas_builder_loop_end(b, 1, &next, &fin);
    STORE(r, o, fin);
}

static void matmul(int TM, int TN, int BK, int n, bool unroll)
{
    BUF(a, F32);
    BUF(w, F32);
    BUF(c, F32);
    const int BM = 16 * TM, BN = 16 * TN, na = TM * TN;
    eas_value tid = eas_builder_tid(b, 0, 256), tx = MOD_(tid, K(16)), ty = DIV_(tid, K(16)), acc[64],
              acc2[64], fin[64], iv, kk;
    eas_value r0 = MUL(eas_builder_program_id(b, 1), K(BM)), c0 = MUL(eas_builder_program_id(b, 0), K(BN)),
              sa = eas_builder_alloc_tg(b, BM * BK, EAS_F32), sb = eas_builder_alloc_tg(b, BK * BN, EAS_F32);
    for (int i = 0; i < na; i++)
        acc[i] = eas_builder_const_typed(b, EAS_F32, 0, 0);
    eas_builder_loop_begin(b, K(0), K(n), K(BK), na, acc, &iv, acc2);
    for (int i = 0; i < BM * BK / 256; i++) {
        eas_value e = ADD(tid, K(i * 256));
        STORE(sa, e, LOAD(a, ADD(ADD(MUL(ADD(r0, DIV_(e, K(BK))), K(n)), iv), MOD_(e, K(BK)))));
    }
    for (int i = 0; i < BK * BN / 256; i++) {
        eas_value e = ADD(tid, K(i * 256));
        STORE(sb, e, LOAD(w, ADD(ADD(MUL(ADD(iv, DIV_(e, K(BN))), K(n)), c0), MOD_(e, K(BN)))));
    }
    eas_builder_barrier(b);
    if (!unroll) {
        memcpy(acc, acc2, sizeof acc);
        eas_builder_loop_begin(b, K(0), K(BK), K(1), na, acc, &kk, acc2);
    }
    for (int k = 0; k < (unroll ? BK : 1); k++) {
        eas_value av[8], bv[8], kv = unroll ? K(k) : kk;
        for (int i = 0; i < TM; i++)
            av[i] = LOAD(sa, ADD(MUL(ADD(MUL(ty, K(TM)), K(i)), K(BK)), kv));
        for (int j = 0; j < TN; j++)
            bv[j] = LOAD(sb, ADD(ADD(tx, K(j * 16)), MUL(kv, K(BN))));
        for (int i = 0; i < na; i++)
            acc2[i] = eas_builder_apply(b, IR_FMA, av[i / TN], bv[i % TN], acc2[i]);
    }
    if (!unroll) {
        eas_builder_loop_end(b, na, acc2, acc);
        memcpy(acc2, acc, sizeof acc);
    }
    eas_builder_barrier(b);
    eas_builder_loop_end(b, na, acc2, fin);
    for (int i = 0; i < na; i++)
        STORE(c, ADD(MUL(ADD(ADD(r0, MUL(ty, K(TM))), K(i / TN)), K(n)), ADD(ADD(c0, tx), K(i % TN * 16))),
              fin[i]);
}
static void k_matmul_loop(void) { matmul(2, 2, 16, 64, false); }
static void k_matmul_unrolled(void) { matmul(2, 2, 8, 64, true); }

static void mma(eas_dtype dt)
{
    eas_value a = eas_builder_param_buffer(b, "a", dt), w = eas_builder_param_buffer(b, "w", dt),
              c = eas_builder_param_buffer(b, "c", dt);
    BUF(x, F32);
    eas_value tid = eas_builder_tid(b, 0, 64), sg = DIV_(tid, K(32)),
              tg = eas_builder_alloc_tg(b, 64, EAS_F32), iv, acc, z = eas_builder_mma_zero(b), fin, next;
    STORE(tg, tid, LOAD(x, tid));
    eas_builder_barrier(b);
    eas_builder_loop_begin(b, K(0), K(32), K(8), 1, &z, &iv, &acc);
    next = eas_builder_mma(b, a, ADD(MUL(sg, K(8 * 32)), iv), K(32), w, MUL(iv, K(32)), K(32), acc);
    eas_builder_loop_end(b, 1, &next, &fin);
    eas_builder_loop_begin(b, K(0), K(2), K(1), 1, &fin, &iv, &acc);
    eas_builder_barrier(b);
    next = eas_builder_mma(b, a, K(0), K(32), tg, K(0), K(8), acc);
    eas_builder_barrier(b);
    eas_builder_loop_end(b, 1, &next, &fin);
    eas_builder_mma_store(b, c, MUL(sg, K(64)), K(8), fin);
}
static void k_mma_f32(void) { mma(EAS_F32); }
static void k_mma_f16(void) { mma(EAS_F16); }

static void dots(eas_dtype x, eas_dtype y)
{
    eas_value a = eas_builder_param_buffer(b, "a", x), w = eas_builder_param_buffer(b, "w", y);
    eas_value r = eas_builder_param_buffer(b, "r", x == EAS_F64 || y == EAS_F64 ? EAS_F64 : EAS_F32);
    SCALAR(n);
    eas_value o = OFFSETS(50);
    STORE(r, o, eas_builder_dot(b, a, MUL(o, K(7)), K(1), w, o, K(100), n));
    STORE(r, ADD(o, K(100)),
          eas_builder_dot(b, a, o, MOD_(o, K(3)), w, MUL(MOD_(o, K(7)), K(2)), K(3), MOD_(o, K(9))));
    STORE(r, ADD(eas_builder_program_id(b, 0), K(200)), eas_builder_dot(b, a, K(0), K(1), w, K(5), K(2), n));
}
static void k_dot_f32(void) { dots(EAS_F32, EAS_F32); }
static void k_dot_f16(void) { dots(EAS_F16, EAS_BF16); }
static void k_dot_f64(void) { dots(EAS_F64, EAS_F32); }

static void blocks2(int64_t m, int64_t n)
{
    BUF(x, F32);
    BUF(v, F32);
    BUF(r, F32);
    SCALAR(M);
    SCALAR(N);
    eas_value i = column(eas_builder_arange(b, 0, m), m), j = row(eas_builder_arange(b, 0, n), n),
              o = ADD(MUL(i, N), j), mask = OP(AND, LT(i, M), LT(j, N));
    eas_value bias = LOAD(v, eas_builder_arange(b, 0, n)), scale = LOAD(v, eas_builder_arange(b, 5, m));
    eas_value y = ADD(MUL(eas_builder_load(b, x, o, mask, F(2)), column(scale, m)), row(bias, n));
    eas_builder_store(b, r, o, y, mask);
}
static void k_2d_small(void) { blocks2(5, 7); }
static void k_2d_square(void) { blocks2(16, 16); }
static void k_2d_long(void) { blocks2(3, 100); }
static void k_2d_tall(void) { blocks2(33, 2); }

static void k_reshapes(void)
{
    BUF(x, F32);
    BUF(r, F32);
    eas_value o = eas_builder_arange(b, 0, 24), v = LOAD(x, o),
              q = eas_builder_reshape(b, v, 2, (int64_t[]){4, 6});
    eas_value t = eas_builder_reshape(b, ADD(q, q), 2, (int64_t[]){6, 4}),
              w = row(LOAD(x, eas_builder_arange(b, 3, 4)), 4);
    eas_value u = ADD(t, w), cube = eas_builder_reshape(b, u, 3, (int64_t[]){2, 3, 4}),
              face = eas_builder_reshape(b, LOAD(x, eas_builder_arange(b, 1, 3)), 3, (int64_t[]){1, 3, 1});
    STORE(r, eas_builder_reshape(b, o, 3, (int64_t[]){2, 3, 4}), MUL(cube, face));
    STORE(r, ADD(K(24), o), ADD(eas_builder_reshape(b, MUL(cube, face), 1, (int64_t[]){24}), v));
    eas_value four = eas_builder_reshape(b, o, 4, (int64_t[]){2, 3, 2, 2});
    STORE(r, ADD(K(48), four), eas_builder_reshape(b, v, 4, (int64_t[]){2, 3, 2, 2}));
}

static void k_2d_loop(void) /* rows times columns, k outside: broadcasts of loaded vectors */
{
    BUF(x, F32);
    BUF(y, F32);
    BUF(r, F32);
    eas_value i = eas_builder_arange(b, 0, 6), j = eas_builder_arange(b, 0, 20), iv, acc,
              z = eas_builder_broadcast(b, eas_builder_const_typed(b, EAS_F32, 0, 0), 2, (int64_t[]){6, 20}),
              fin;
    eas_builder_loop_begin(b, K(0), K(5), K(1), 1, &z, &iv, &acc);
    eas_value next =
        ADD(acc, MUL(column(LOAD(x, ADD(MUL(i, K(5)), iv)), 6), row(LOAD(y, ADD(MUL(iv, K(20)), j)), 20)));
    eas_builder_loop_end(b, 1, &next, &fin);
    STORE(r, ADD(MUL(column(i, 6), K(20)), row(j, 20)), fin);
}

static void k_narrow_offsets(void) /* 32-bit index arithmetic that wraps, and 8-bit lanes */
{
    BUF(x, F32);
    BUF(r, F32);
    BUF(s, I8);
    eas_value o = eas_builder_arange(b, 0, 64), u = eas_builder_cast(b, o, EAS_U32);
    eas_value w = ADD(u, eas_builder_const_typed(b, EAS_U32, 0, 0xfffffff0)),
              far = OP(GE, w, eas_builder_const_typed(b, EAS_U32, 0, 64));
    STORE(r, o,
          eas_builder_load(b, x, eas_builder_cast(b, w, EAS_I64), eas_builder_apply(b, IR_NOT, far, 0, 0),
                           F(-1)));
    STORE(r, ADD(o, K(64)), LOAD(x, eas_builder_cast(b, eas_builder_cast(b, MUL(o, K(9)), EAS_U8), EAS_I64)));
    STORE(s, o, eas_builder_cast(b, MUL(o, K(9)), EAS_I8));
    STORE(r,
          eas_builder_cast(
              b, ADD(eas_builder_cast(b, o, EAS_I32), eas_builder_const_typed(b, EAS_I32, 0, 128)), EAS_I64),
          F(2));
}

static void k_identities(void)
{
    BUF(r, I8);
    BUF(s, I64);
    BUF(t, U32);
    eas_value o = THREADS(100);
    STORE(r, o, eas_builder_cast(b, ADD(eas_builder_lane_id(b), MUL(eas_builder_sg_id(b), K(3))), EAS_I8));
    STORE(s, o,
          ADD(ADD(eas_builder_local_id(b, 0), MUL(eas_builder_local_id(b, 1), K(7))),
              eas_builder_num_programs(b, 0)));
    STORE(t, o, eas_builder_cast(b, DIV_(MUL(o, K(3)), K(7)), EAS_U32));
}

static void k_prefixes(void)
{
    BUF(x, F32);
    BUF(r, F32);
    SCALAR(N);
    SCALAR(M);
    eas_value o = OFFSETS(64),
              m = OP(AND, OP(GE, N, o), OP(AND, LT(eas_builder_program_id(b, 0), M), OP(LE, o, K(150))));
    eas_builder_store(b, r, o, eas_builder_load(b, x, o, m, F(1)), m);
    eas_builder_store(b, r, ADD(o, K(300)), eas_builder_load(b, x, o, OP(GT, o, K(70)), F(3)),
                      LT(ADD(o, K(5)), N));
}

static void k_periodic(void) /* lane % C is a line inside a chunk only */
{
    BUF(x, F32);
    BUF(r, F32);
    SCALAR(n);
    eas_value o = THREADS(128), t = eas_builder_tid(b, 0, 128);
    eas_builder_store(b, r, o, eas_builder_load(b, x, o, LT(MOD_(t, K(16)), n), F(5)),
                      LT(MOD_(t, K(32)), ADD(n, K(20))));
    eas_builder_store(b, r, ADD(o, K(256)), F(1), LT(eas_builder_lane_id(b), n));
    eas_builder_store(b, r, ADD(MOD_(o, K(64)), K(512)), LOAD(x, MOD_(t, K(64))), LT(DIV_(t, K(64)), K(1)));
}

static void k_2d_grid(void)
{
    BUF(x, F32);
    BUF(r, F32);
    SCALAR(W);
    eas_value c = ADD(MUL(eas_builder_program_id(b, 0), K(16)), eas_builder_arange(b, 0, 16)),
              y = eas_builder_program_id(b, 1), m = LT(c, W), o = ADD(MUL(y, W), c);
    eas_builder_store(b, r, o,
                      ADD(eas_builder_load(b, x, o, m, 0),
                          eas_builder_cast(b, ADD(y, MUL(eas_builder_num_programs(b, 1), K(10))), EAS_F32)),
                      m);
}

static void k_scalars(void)
{
    BUF(x, F32);
    BUF(r, F32);
    SCALAR(n);
    eas_value p = eas_builder_program_id(b, 0), v = eas_builder_load(b, x, p, LT(p, n), F(9));
    STORE(r, p, ADD(v, LOAD(x, K(0))));
    STORE(r, ADD(K(8), eas_builder_arange(b, 0, 8)), ADD(LOAD(r, eas_builder_arange(b, 0, 8)), v));
    eas_builder_store(b, x, p, F(4), OP(EQ, p, K(2)));
}

static void k_bools(void)
{
    BUF(x, BOOL);
    BUF(y, F16);
    BUF(r, BOOL);
    BUF(s, F16);
    SCALAR(N);
    eas_value o = OFFSETS(77), m = LT(o, N), v = eas_builder_load(b, x, o, m, 0),
              h = eas_builder_load(b, y, o, m, 0);
    eas_builder_store(b, r, o, OP(XOR, v, OP(LT, h, F(0))), m);
    eas_builder_store(b, s, o, eas_builder_apply(b, IR_WHERE, v, MUL(h, h), h), OP(AND, m, v));
}

typedef struct kernel_case {
    const char *name;
    void (*build)(void);
    int64_t size[8], grid[2]; /* elements of a buffer or the value of a scalar */
    int64_t index_below;      /* integer buffers hold indices below this */
} kernel_case;

static const kernel_case kernels[] = {
    {"add", k_add, {1000, 1000, 1000, 1000}, {4, 1}, 0},
    {"scaled_nan", k_scaled_nan, {128, 1152}, {2, 1}, 0},
    {"strides", k_strides, {200, 300, 100, 200}, {2, 1}, 0},
    {"gather", k_gather, {500, 300, 300, 250}, {3, 1}, 500},
    {"gather_small", k_gather_small, {500, 300, 300, 500}, {3, 1}, 500},
    {"scatter_duplicates", k_scatter_duplicates, {256, 32}, {1, 1}, 500},
    {"shift_in_place", k_shift_in_place, {600}, {2, 1}, 0},
    {"store_then_load", k_store_then_load, {256, 256}, {2, 1}, 0},
    {"same_offsets_twice", k_same_offsets_twice, {40, 128}, {2, 1}, 40},
    {"loop_carried", k_loop_carried, {900, 300, 5}, {3, 1}, 0},
    {"loop_none", k_loop_carried, {900, 300, -1}, {3, 1}, 0},
    {"loop_unrolled", k_loop_unrolled, {160, 128}, {2, 1}, 0},
    {"loop_stores", k_loop_stores, {200, 70}, {1, 1}, 0},
    {"loop_swap_outside", k_loop_swap_outside, {128, 192, 4}, {1, 1}, 0},
    {"loop_directions", k_loop_directions, {4, 33}, {1, 1}, 0},
    {"uniform_if", k_uniform_if, {144, 144, 2, 1}, {3, 1}, 0},
    {"uniform_while", k_uniform_while, {160, 160}, {4, 1}, 0},
    {"thread_if", k_thread_if, {250, 300, 250}, {3, 1}, 0},
    {"thread_loops", k_thread_loops, {300, 256, 1600}, {4, 1}, 0},
    {"barrier_reverse", k_barrier_reverse, {288, 288}, {3, 1}, 0},
    {"barrier_sum", k_barrier_sum, {384, 3}, {3, 1}, 0},
    {"barrier_bound", k_barrier_bound, {192, 4, 192}, {3, 1}, 9},
    {"matmul_loop", k_matmul_loop, {4096, 4096, 4096}, {2, 2}, 0},
    {"matmul_unrolled", k_matmul_unrolled, {4096, 4096, 4096}, {2, 2}, 0},
    {"mma_f32", k_mma_f32, {1024, 1024, 128, 64}, {1, 1}, 0},
    {"mma_f16", k_mma_f16, {1024, 1024, 128, 64}, {1, 1}, 0},
    {"dot_f32", k_dot_f32, {1100, 1300, 210, 11}, {2, 1}, 0},
    {"dot_f16", k_dot_f16, {1100, 1300, 210, 11}, {2, 1}, 0},
    {"dot_f64", k_dot_f64, {1100, 1300, 210, 11}, {2, 1}, 0},
    {"two_d_small", k_2d_small, {35, 20, 35, 5, 7}, {1, 1}, 0},
    {"two_d_small_masked", k_2d_small, {35, 20, 35, 4, 6}, {1, 1}, 0},
    {"two_d_square", k_2d_square, {256, 40, 256, 16, 16}, {1, 1}, 0},
    {"two_d_square_masked", k_2d_square, {256, 40, 256, 9, 13}, {1, 1}, 0},
    {"two_d_long", k_2d_long, {300, 100, 300, 3, 90}, {1, 1}, 0},
    {"two_d_tall", k_2d_tall, {66, 40, 66, 31, 2}, {1, 1}, 0},
    {"two_d_loop", k_2d_loop, {30, 100, 120}, {1, 1}, 0},
    {"reshapes", k_reshapes, {24, 72}, {1, 1}, 0},
    {"narrow_offsets", k_narrow_offsets, {256, 192, 64}, {1, 1}, 0},
    {"identities", k_identities, {300, 300, 300}, {3, 1}, 0},
    {"prefixes", k_prefixes, {256, 600, 200, 3}, {4, 1}, 0},
    {"prefixes_none", k_prefixes, {256, 600, INT64_MIN, 3}, {4, 1}, 0},
    {"prefixes_few", k_prefixes, {256, 600, 20, 1}, {4, 1}, 0},
    {"periodic", k_periodic, {256, 600, 7}, {2, 1}, 0},
    {"two_d_grid", k_2d_grid, {210, 210, 42}, {3, 5}, 0},
    {"scalars", k_scalars, {8, 16, 3}, {4, 1}, 0},
    {"bools", k_bools, {200, 200, 200, 200, 190}, {3, 1}, 0},
};
