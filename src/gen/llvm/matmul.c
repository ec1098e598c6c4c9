/* matmul.c: a matrix product of blocks, by register tiles.
 *
 * A tile of the sum, `rows` by a few vectors of columns, stays in registers (its accumulators) while k runs
 * over the whole inner dim: one element of x is broadcast, a row of y is read, an fma each, k ascending.
 * Blocks are small enough for the caches; copying them from global memory to their slots is the packing.
 * Factors of class C_FACTOR are read in place. bf16 factors come as pairs along k, packed in bf16.c, where
 * the machine multiplies those. Tiles are cut evenly: 61 rows with room for 14 are 13, 12, 12, 12, 12; all of
 * one size where they can be.
 */
#include "llvm.h"

enum { MAX_ROWS = 16, MAX_VECS = 12, MOST_VECS = 8, AHEAD = 8 };

typedef struct tile {
    int rows, nvec;
    int width[MAX_VECS], at[MAX_VECS]; /* lanes and first column of each vector */
    int cols;                          /* that there are: the last vector may reach beyond */
} tile;

static V read_at(gen *g, V p, eas_dtype dt, int n)
{
    V x = LLVMBuildLoad2(g->b, ty_mem(g, dt, n), p, "");
    LLVMSetAlignment(x, (unsigned)eas_dtype_size(dt));
    return x;
}

static int lanes_at(const tile *t, int v)
{
    return t->at[v] + t->width[v] <= t->cols ? t->width[v] : t->cols - t->at[v];
}

static V sums_at(gen *g, const matmul *p, V base, const tile *t, int r, int v)
{
    return mem_element(g, base, p->dt, k_int(g, r * p->n + t->at[v]));
}

/* one step of k: xp at x[row 0][k], yp at y[k][column 0] */
static void step_k(gen *g, const matmul *p, const tile *t, V xp, V yp, V *sum)
{
    V y[MAX_VECS];
    for (int v = 0; v < t->nvec; v++) {
        const int w = t->width[v] == 1 ? 0 : t->width[v];
        y[v] = p->ys ? (w ? splat(g, p->ys, w) : p->ys)
                     : read_at(g, mem_element(g, yp, p->dt, k_int(g, t->at[v])), p->dt, w);
    }
    for (int r = 0; r < t->rows; r++) {
        V x = p->xs ? p->xs : read_at(g, mem_element(g, xp, p->dt, k_int(g, r * p->xrow)), p->dt, 0),
          many = x;
        for (int v = 0; v < t->nvec; v++) {
            V *s = &sum[r * t->nvec + v];
            if (v == 0 || t->width[v] != t->width[v - 1])
                many = t->width[v] == 1 ? x : splat(g, x, t->width[v]);
            *s = !p->words              ? float_fma(g, many, y[v], *s)
               : p->words == WORDS_BF16 ? bf16_step(g, many, y[v], *s)
                                        : bytes_step(g, p, many, y[v], *s);
        }
    }
}

static V read_sums(gen *g, const matmul *p, V acc, const tile *t, int r, int v)
{
    const int w = t->width[v] == 1 ? 0 : t->width[v], n = lanes_at(t, v);
    V at = sums_at(g, p, acc, t, r, v);
    return n < w ? mem_read_first(g, at, p->dt, w, n, NULL) : read_at(g, at, p->dt, w);
}

static void write_sums(gen *g, const matmul *p, V out, const tile *t, int r, int v, V x)
{
    V at = sums_at(g, p, out, t, r, v);
    if (lanes_at(t, v) < t->width[v])
        mem_write_first(g, at, p->dt, lanes_at(t, v), x);
    else
        LLVMSetAlignment(LLVMBuildStore(g->b, x, at), (unsigned)eas_dtype_size(p->dt));
}

static void start_sums(gen *g, const matmul *p, const tile *t, V acc, V bias, V *sum)
{
    for (int r = 0; r < t->rows; r++)
        for (int v = 0; v < t->nvec; v++) {
            const int w = t->width[v] == 1 ? 0 : t->width[v];
            V *s = &sum[r * t->nvec + v];
            *s = p->start ? (w ? splat(g, p->start, w) : p->start) : read_sums(g, p, acc, t, r, v);
            if (bias)
                *s = LLVMBuildAdd(g->b, *s,
                                  read_at(g, mem_element(g, bias, p->dt, k_int(g, t->at[v])), p->dt, w), "");
        }
}

/* Lines of a row of what is read or written, and of all of it. */
static int64_t lines_of(gen *g, const prefetch *x, int64_t *per_row, int64_t *line)
{
    const shape sh = prefetch_reach(g, x);
    *line = 64 / (int64_t)eas_dtype_size(
                     (eas_dtype)ir_typeof(g->ir, ir_args(g->ir, &g->ir->insns[x->insn])[0]).dtype);
    *per_row = (sh.dim[1] + *line - 1) / *line;
    return *per_row * sh.dim[0];
}

static int64_t share_of(const matmul *p, int64_t all, int64_t rounds)
{
    return (all + p->tiles * rounds - 1) / (p->tiles * rounds);
}

int64_t matmul_share(gen *g, const matmul *p, int64_t rounds)
{
    int64_t most = 0, per_row, line;
    for (uint32_t j = 0; p->seg && j < p->seg->prefetches.len; j++) {
        const int64_t share = share_of(p, lines_of(g, &p->seg->prefetches.at[j], &per_row, &line), rounds);
        most = share > most ? share : most;
    }
    return most;
}

void matmul_prefetch(gen *g, const matmul *p, V number, V round, int64_t rounds)
{
    V at = LLVMBuildAdd(g->b, LLVMBuildMul(g->b, number, k_int(g, rounds), ""), round, "");
    for (uint32_t j = 0; p->seg && j < p->seg->prefetches.len; j++) {
        const prefetch *x = &p->seg->prefetches.at[j];
        int64_t per_row, line;
        const int64_t all = lines_of(g, x, &per_row, &line), share = share_of(p, all, rounds);
        for (int64_t s = 0; s < share; s++) {
            V n = LLVMBuildAdd(g->b, LLVMBuildMul(g->b, at, k_int(g, share), ""), k_int(g, s), "");
            n = sel(g, LLVMBuildICmp(g->b, LLVMIntSLT, n, k_int(g, all), ""), n, k_int(g, all - 1));
            V col = LLVMBuildMul(g->b, LLVMBuildURem(g->b, n, k_int(g, per_row), ""), k_int(g, line), "");
            prefetch_at(g, x, LLVMBuildUDiv(g->b, n, k_int(g, per_row), ""), col);
        }
    }
}

/* Prefetches what is `AHEAD` steps of k away, `bytes` from p on, a line at a time. */
static void prefetch_near(gen *g, V p, V step, eas_dtype dt, int64_t bytes)
{
    T t = LLVMPointerTypeInContext(g->cx, 0), i32 = ty_int(g, 32, 0);
    V far = mem_element(g, p, dt, LLVMBuildMul(g->b, step, k_int(g, AHEAD), ""));
    for (int64_t at = 0; at < bytes; at += 64) {
        V x[4] = {mem_element(g, far, dt, k_int(g, at / (int64_t)eas_dtype_size(dt))),
                  LLVMConstInt(i32, 0, 0), LLVMConstInt(i32, 3, 0), LLVMConstInt(i32, 1, 0)};
        intrinsic(g, "llvm.prefetch", &t, 1, x, 4);
    }
}

static int64_t tile_bytes(const matmul *p, const tile *t)
{
    return (t->at[t->nvec - 1] + t->width[t->nvec - 1]) * (int64_t)eas_dtype_size(p->dt);
}

/* How many rounds of a loop go by from one prefetch to the next: as many as leave the lines of each as few
 * as they can be. */
static int64_t prefetch_every(gen *g, const matmul *p, int64_t rounds)
{
    int64_t every = 1;
    while (!p->yfar && every < 8 &&
           matmul_share(g, p, (rounds + 2 * every - 1) / (2 * every)) == matmul_share(g, p, rounds))
        every *= 2;
    return every;
}

/* In round k / unroll of a tile's loop: prefetches, in a basic block of its own if not every round does. */
static void prefetch_round(gen *g, const matmul *p, V number, V k, int64_t unroll)
{
    const int64_t rounds = p->k / unroll, every = prefetch_every(g, p, rounds);
    if (!matmul_share(g, p, rounds))
        return;
    LLVMBasicBlockRef yes = every > 1 ? new_block(g, "ask") : NULL,
                      done = every > 1 ? new_block(g, "asked") : NULL;
    if (yes) {
        V left = LLVMBuildAnd(g->b, k, k_int(g, every * unroll - 1), "");
        LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntEQ, left, k_int(g, 0), ""), yes, done);
        LLVMPositionBuilderAtEnd(g->b, yes);
    }
    matmul_prefetch(g, p, number, LLVMBuildUDiv(g->b, k, k_int(g, every * unroll), ""),
                    (rounds + every - 1) / every);
    if (yes) {
        branch_to(g, done);
        LLVMPositionBuilderAtEnd(g->b, done);
    }
}

/* The tile whose first row of x is at xp and whose first column of y, acc and out is at yp, acc, out. With
 * 16 or more accumulators the latency of an fma is hidden, so the loop is not unrolled: that would only be
 * more code to compile. It is where y is read in place and prefetched as well. */
static void emit_tile(gen *g, const matmul *p, const tile *t, V number, V xp, V yp, V acc, V bias, V out)
{
    const int count = t->rows * t->nvec;
    const bool more = count < 16 || (p->yfar && p->seg && p->seg->prefetches.len);
    const int64_t unroll = more && p->k % 4 == 0 ? 4 : (more || p->yfar) && p->k % 2 == 0 ? 2 : 1;
    V sum[MAX_ROWS * MAX_VECS], phi[MAX_ROWS * MAX_VECS];
    start_sums(g, p, t, acc, bias, sum);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), loop = new_block(g, "tile"),
                      done = new_block(g, "tiled");
    branch_to(g, loop);
    LLVMPositionBuilderAtEnd(g->b, loop);
    V zero = k_int(g, 0), k = LLVMBuildPhi(g->b, ty_int(g, 64, 0), ""),
      xk = LLVMBuildPhi(g->b, LLVMTypeOf(xp), ""), yk = LLVMBuildPhi(g->b, LLVMTypeOf(yp), "");
    for (int i = 0; i < count; i++) {
        phi[i] = LLVMBuildPhi(g->b, LLVMTypeOf(sum[i]), "");
        LLVMAddIncoming(phi[i], &sum[i], &from, 1);
        sum[i] = phi[i];
    }
    prefetch_round(g, p, number, k, unroll);
    V xn = xk, yn = yk;
    for (int64_t u = 0; u < unroll; u++) {
        if (p->yfar)
            prefetch_near(g, yn, p->ystep, p->dt, tile_bytes(p, t));
        if (p->xfar)
            prefetch_near(g, xn, p->xstep, p->dt, t->rows * (int64_t)eas_dtype_size(p->dt));
        step_k(g, p, t, xn, yn, sum);
        xn = mem_element(g, xn, p->dt, p->xstep);
        yn = mem_element(g, yn, p->dt, p->ystep);
    }
    V next = LLVMBuildAdd(g->b, k, k_int(g, unroll), "");
    LLVMBasicBlockRef back = LLVMGetInsertBlock(g->b);
    LLVMAddIncoming(k, &zero, &from, 1);
    LLVMAddIncoming(k, &next, &back, 1);
    LLVMAddIncoming(xk, &xp, &from, 1);
    LLVMAddIncoming(xk, &xn, &back, 1);
    LLVMAddIncoming(yk, &yp, &from, 1);
    LLVMAddIncoming(yk, &yn, &back, 1);
    for (int i = 0; i < count; i++)
        LLVMAddIncoming(phi[i], &sum[i], &back, 1);
    LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, next, k_int(g, p->k), ""), loop, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (int r = 0; r < t->rows; r++)
        for (int v = 0; v < t->nvec; v++)
            write_sums(g, p, out, t, r, v, sum[r * t->nvec + v]);
}

/* `count` tiles of t->rows rows each, from row `row` on, in the columns from `col` on */
static void emit_rows(gen *g, const matmul *p, tile *t, int64_t row, int64_t count, V col, V number)
{
    if (!count || !t->rows)
        return;
    loop l = loop_open(g, k_int(g, 0), k_int(g, count), 1);
    V r = LLVMBuildAdd(g->b, LLVMBuildMul(g->b, l.iv, k_int(g, t->rows), ""), k_int(g, row), "");
    V at = LLVMBuildAdd(g->b, LLVMBuildMul(g->b, r, k_int(g, p->n), ""), col, "");
    V xp = p->xs ? p->out : mem_element(g, p->x, p->dt, LLVMBuildMul(g->b, r, k_int(g, p->xrow), ""));
    V yp = p->ys ? p->out : mem_element(g, p->y, p->dt, col);
    emit_tile(g, p, t, LLVMBuildAdd(g->b, number, l.iv, ""), xp, yp,
              p->acc ? mem_element(g, p->acc, p->dt, at) : NULL,
              p->bias ? mem_element(g, p->bias, p->dt, col) : NULL, mem_element(g, p->out, p->dt, at));
    loop_close(g, &l);
}

/* How many tiles of at most `most` rows. They all have the same number of rows if that leaves enough
 * accumulators to hide the latency of an fma, since tiles of a second size would double the code to compile.
 * Not if y is read from beyond the nearest cache: larger tiles read it less often. */
static int64_t count_tiles(const matmul *p, const tile *t, int64_t most)
{
    for (int64_t rows = most; !p->yfar && rows * t->nvec >= 16; rows--)
        if (p->m % rows == 0)
            return p->m / rows;
    return (p->m + most - 1) / most;
}

/* All rows of the columns that t describes, which are strip number `strip` of so many, cut evenly into
 * tiles of at most `most` rows. */
static void emit_columns(gen *g, matmul *p, tile *t, V col, int64_t strips, V strip, int64_t most)
{
    const int64_t tiles = count_tiles(p, t, most), small = p->m / tiles, larger = p->m % tiles;
    V number = LLVMBuildMul(g->b, strip, k_int(g, tiles), "");
    p->tiles = strips * tiles;
    t->rows = (int)small + 1;
    emit_rows(g, p, t, 0, larger, col, number);
    t->rows = (int)small;
    emit_rows(g, p, t, larger * (small + 1), tiles - larger, col,
              LLVMBuildAdd(g->b, number, k_int(g, larger), ""));
}

static void add_vector(tile *t, int *at, int width)
{
    t->width[t->nvec] = width;
    t->at[t->nvec++] = *at;
    t->cols = *at += width;
}

/* How many rows fit beside `nvec` vectors; 0: none. */
static int64_t rows_for(const gen *g, int nvec)
{
    const int rows = gen_tile_rows((g->avx512 || !g->x86 ? 32 : 16) - !g->fma, nvec);
    return rows < MAX_ROWS ? rows : MAX_ROWS;
}

/* Few rows leave room for more vectors side by side; four instead of three where that leaves no narrow
 * strip. */
static int vectors_for(const gen *g, int64_t m, int64_t n, int lanes)
{
    int nvec = gen_tile_vectors(g->avx512 || !g->x86 ? 32 : 16);
    if (nvec == 3 && n % (3 * lanes) && n % (4 * lanes) == 0)
        nvec = 4;
    while (nvec < MOST_VECS && rows_for(g, nvec + 1) >= m)
        nvec++;
    return nvec;
}

static void emit_product(gen *g, matmul *p)
{
    const int lanes = g->opt->vector_bytes / (int)eas_dtype_size(p->dt),
              nvec = vectors_for(g, p->m, p->n, lanes);
    const int64_t step = (int64_t)nvec * lanes, full = p->n / step * step;
    if (full) {
        tile t = {0};
        for (int at = 0; at < step;)
            add_vector(&t, &at, lanes);
        loop l = loop_open(g, k_int(g, 0), k_int(g, full), step);
        emit_columns(g, p, &t, l.iv, full / step, LLVMBuildUDiv(g->b, l.iv, k_int(g, step), ""),
                     rows_for(g, nvec));
        loop_close(g, &l);
    }
    if (full == p->n)
        return;
    tile t = {0};
    int at = 0, rest = (int)(p->n - full);
    for (int w = lanes; at < rest; w /= p->words ? 1 : 2)
        while (p->words ? at < rest : at + w <= rest)
            add_vector(&t, &at, w);
    t.cols = rest;
    if (full)
        p->seg = NULL;
    emit_columns(g, p, &t, k_int(g, full), 1, k_int(g, 0), rows_for(g, t.nvec) ? rows_for(g, t.nvec) : 1);
}

/* The offset of the first element in row `row` of a load of two dims. */
static V row_offset(gen *g, const ir_insn *load, int64_t row)
{
    chunk c;
    if (!chunk_at(g, g->p.val[load->res].sh, k_int(g, row), k_int(g, 0), &c))
        return k_int(g, 0);
    const aff a = affine_at(g, &c, ir_args(g->ir, load)[1], map_identity(c.sh.rank));
    if (!a.run.ok)
        gen_fail(g, EAS_ERR_INTERNAL, "the offset of a factor that is read in place is not affine");
    V off = a.run.ok ? affine_base(g, a) : k_int(g, 0);
    vec_free(&c.log);
    return off;
}

/* Where the load behind v begins, and how far apart its rows are. */
static V in_place_at(gen *g, uint32_t v, V *step)
{
    const ir_insn *load = ir_def(g->ir, plan_factor_load(&g->p, v));
    const uint32_t *a = ir_args(g->ir, load);
    const int64_t known = g->p.at[load->res].step;
    V first = row_offset(g, load, 0);
    *step = known ? k_int(g, known) : LLVMBuildSub(g->b, row_offset(g, load, 1), first, "");
    return mem_element(g, g->sval[a[0]], (eas_dtype)ir_typeof(g->ir, a[0]).dtype, first);
}

static V slot_or_null(gen *g, uint32_t v)
{
    return g->p.val[v].cls == C_UNI ? NULL : mem_slot(g, g->p.at[v].slot);
}

/* Fills in where a product's operands lie, and has it emitted. A factor is in its slot (rows pitch apart),
 * in the global memory that it is loaded from (`far`), the transpose of a block in its slot (`turned`), or
 * one number for all elements; the sum begins with a number or a block. */
void matmul_insn(gen *g, const segment *s)
{
    const ir_insn *in = &g->ir->insns[s->items.at[0].insn];
    const uint32_t *a = ir_args(g->ir, in);
    const ir_type x = ir_typeof(g->ir, a[0]), y = ir_typeof(g->ir, a[1]);
    matmul p = {.dt = (eas_dtype)ir_typeof(g->ir, in->res).dtype,
                .m = x.dim[0],
                .k = x.dim[1],
                .n = y.dim[1],
                .seg = s};
    int64_t bits;
    p.out = mem_slot(g, g->p.at[in->res].slot);
    const uint32_t turned = plan_factor_slot(&g->p, a[0]);
    p.xfar = g->p.val[a[0]].cls == C_FACTOR && !turned;
    p.yfar = g->p.val[a[1]].cls == C_FACTOR;
    p.xstep = k_int(g, 1);
    p.ystep = k_int(g, g->p.at[a[1]].pitch ? g->p.at[a[1]].pitch : p.n);
    p.x = p.xfar ? in_place_at(g, a[0], &p.xstep) : slot_or_null(g, turned ? turned : a[0]);
    p.y = p.yfar ? in_place_at(g, a[1], &p.ystep) : slot_or_null(g, a[1]);
    p.xrow = !p.xfar ? p.k : 1;
    p.xrows = p.xfar ? p.xstep : k_int(g, p.k);
    if (p.xfar && plan_factor_load(&g->p, a[0]) == a[0]) { /* its rows are the product's */
        p.xrow = g->p.at[a[0]].step;
        p.xstep = k_int(g, 1);
        p.xfar = false; /* the hardware's prefetcher follows these streams */
    }
    if (turned) {
        p.xrow = 1;
        p.xstep = k_int(g, p.m);
    }
    p.xs = p.x ? NULL : g->sval[a[0]];
    p.ys = p.y ? NULL : g->sval[a[1]];
    if (ir_typeof(g->ir, a[2]).dtype != p.dt) /* bytes.c: the zero of a product that was one of floats */
        p.start = k_bits(g, p.dt, 0, 0);
    else if (g->p.val[a[2]].cls == C_UNI)
        p.start = g->sval[a[2]];
    else if (ir_const_of(g->ir, a[2], &bits))
        p.start = k_bits(g, p.dt, 0, bits);
    else
        p.acc = mem_slot(g, g->p.at[a[2]].slot);
    if (x.dtype == EAS_BF16 && bf16_product(g, &p))
        return;
    if (x.dtype == EAS_I8 || x.dtype == EAS_U8)
        bytes_product(g, &p, x, y);
    emit_product(g, &p);
}
