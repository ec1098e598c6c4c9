/* llvm_matmul.c: a matrix product of blocks in their slots, by register tiles.
 *
 * A tile of the sum, `rows` by a few vectors of columns, stays in registers while k runs over the whole inner dim: one element of x is
 * broadcast, a row of y is read, an fma each, k ascending. Blocks are small enough for the caches, and copying them from global memory to their slots is what
 * other libraries call packing. Tiles are cut evenly: 64 rows with room for 14 are 13, 13, 13, 13, 12.
 */
#include "llvm.h"

enum { MAX_ROWS = 16, MAX_VECS = 12 };

typedef struct product {
    eas_dtype dt;
    V x, y, acc, out;      /* addresses; acc NULL: start is the constant */
    V xs, ys, start;       /* operands of one element: the scalar */
    int64_t row;           /* elements from one row of y to the next */
    int64_t m, n, k;
    const segment *seg;
    int64_t tiles; /* in all, about */
} product;

typedef struct tile {
    int rows, nvec;
    int width[MAX_VECS], at[MAX_VECS]; /* lanes and first column of each vector */
} tile;

static V read_at(gen *g, V p, eas_dtype dt, int n)
{
    V x = LLVMBuildLoad2(g->b, ty_mem(g, dt, n), p, "");
    LLVMSetAlignment(x, (unsigned)eas_dtype_size(dt));
    return x;
}

static V sums_at(gen *g, const product *p, V base, const tile *t, int r, int v) { return mem_element(g, base, p->dt, k_int(g, r * p->n + t->at[v])); }

/* one step of k: xp at x[row 0][k], yp at y[k][column 0] */
static void step_k(gen *g, const product *p, const tile *t, V xp, V yp, V *sum)
{
    V y[MAX_VECS];
    for (int v = 0; v < t->nvec; v++) {
        const int w = t->width[v] == 1 ? 0 : t->width[v];
        y[v] = p->ys ? (w ? splat(g, p->ys, w) : p->ys) : read_at(g, mem_element(g, yp, p->dt, k_int(g, t->at[v])), p->dt, w);
    }
    for (int r = 0; r < t->rows; r++) {
        V x = p->xs ? p->xs : read_at(g, mem_element(g, xp, p->dt, k_int(g, r * p->k)), p->dt, 0);
        for (int v = 0; v < t->nvec; v++) {
            V *s = &sum[r * t->nvec + v];
            *s = float_fma(g, t->width[v] == 1 ? x : splat(g, x, t->width[v]), y[v], *s);
        }
    }
}

static void start_sums(gen *g, const product *p, const tile *t, V acc, V *sum)
{
    for (int r = 0; r < t->rows; r++)
        for (int v = 0; v < t->nvec; v++) {
            const int w = t->width[v] == 1 ? 0 : t->width[v];
            sum[r * t->nvec + v] = p->start ? (w ? splat(g, p->start, w) : p->start) : read_at(g, sums_at(g, p, acc, t, r, v), p->dt, w);
        }
}

/* Round k of tile `number` asks for its share of what the next round of the loop around reads, spread so that it does not keep the tile's own loads waiting. */
static void prefetch_share(gen *g, const product *p, V number, V k, int64_t unroll)
{
    const int64_t rounds = p->k / unroll;
    V at = LLVMBuildAdd(g->b, LLVMBuildMul(g->b, number, k_int(g, rounds), ""), LLVMBuildUDiv(g->b, k, k_int(g, unroll), ""), "");
    for (uint32_t j = 0; p->seg && j < p->seg->ahead.len; j++) {
        const uint32_t i = p->seg->ahead.at[j].insn;
        const shape *sh = &g->p.val[g->ir->insns[i].res].sh;
        const int64_t line = 64 / (int64_t)eas_dtype_size((eas_dtype)ir_typeof(g->ir, g->ir->insns[i].res).dtype);
        const int64_t per_row = (sh->dim[1] + line - 1) / line, all = per_row * sh->dim[0],
                      share = (all + p->tiles * rounds - 1) / (p->tiles * rounds);
        for (int64_t s = 0; s < share; s++) {
            V n = LLVMBuildAdd(g->b, LLVMBuildMul(g->b, at, k_int(g, share), ""), k_int(g, s), "");
            n = sel(g, LLVMBuildICmp(g->b, LLVMIntSLT, n, k_int(g, all), ""), n, k_int(g, all - 1));
            V col = LLVMBuildMul(g->b, LLVMBuildURem(g->b, n, k_int(g, per_row), ""), k_int(g, line), "");
            mem_prefetch_at(g, i, LLVMBuildUDiv(g->b, n, k_int(g, per_row), ""), col);
        }
    }
}

/* The tile whose first row of x is at xp and whose first column of y, acc and out is at yp, acc, out. */
static void emit_tile(gen *g, const product *p, const tile *t, V number, V xp, V yp, V acc, V out)
{
    const int count = t->rows * t->nvec;
    const int64_t unroll = p->k % 4 == 0 && count < 16 ? 4 : p->k % 2 == 0 ? 2 : 1; /* a large tile hides the loop by itself */
    V sum[MAX_ROWS * MAX_VECS], phi[MAX_ROWS * MAX_VECS];
    start_sums(g, p, t, acc, sum);
    LLVMBasicBlockRef from = LLVMGetInsertBlock(g->b), loop = new_block(g, "tile"), done = new_block(g, "tiled");
    branch_to(g, loop);
    LLVMPositionBuilderAtEnd(g->b, loop);
    V zero = k_int(g, 0), k = LLVMBuildPhi(g->b, ty_int(g, 64, 0), ""), xk = LLVMBuildPhi(g->b, LLVMTypeOf(xp), ""),
      yk = LLVMBuildPhi(g->b, LLVMTypeOf(yp), "");
    for (int i = 0; i < count; i++) {
        phi[i] = LLVMBuildPhi(g->b, LLVMTypeOf(sum[i]), "");
        LLVMAddIncoming(phi[i], &sum[i], &from, 1);
        sum[i] = phi[i];
    }
    prefetch_share(g, p, number, k, unroll);
    V at = yk;
    for (int64_t u = 0; u < unroll; u++) {
        step_k(g, p, t, mem_element(g, xk, p->dt, k_int(g, u)), at, sum);
        at = mem_element(g, at, p->dt, k_int(g, p->row));
    }
    V next = LLVMBuildAdd(g->b, k, k_int(g, unroll), ""), xn = mem_element(g, xk, p->dt, k_int(g, unroll)), yn = at;
    LLVMAddIncoming(k, &zero, &from, 1);
    LLVMAddIncoming(k, &next, &loop, 1);
    LLVMAddIncoming(xk, &xp, &from, 1);
    LLVMAddIncoming(xk, &xn, &loop, 1);
    LLVMAddIncoming(yk, &yp, &from, 1);
    LLVMAddIncoming(yk, &yn, &loop, 1);
    for (int i = 0; i < count; i++)
        LLVMAddIncoming(phi[i], &sum[i], &loop, 1);
    LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntSLT, next, k_int(g, p->k), ""), loop, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    for (int r = 0; r < t->rows; r++)
        for (int v = 0; v < t->nvec; v++)
            LLVMSetAlignment(LLVMBuildStore(g->b, sum[r * t->nvec + v], sums_at(g, p, out, t, r, v)), (unsigned)eas_dtype_size(p->dt));
}

/* `count` tiles of t->rows rows each, from row `row` on, in the columns from `col` on */
static void emit_rows(gen *g, const product *p, tile *t, int64_t row, int64_t count, V col, V number)
{
    if (!count || !t->rows)
        return;
    loop l = loop_open(g, k_int(g, 0), k_int(g, count), 1);
    V r = LLVMBuildAdd(g->b, LLVMBuildMul(g->b, l.iv, k_int(g, t->rows), ""), k_int(g, row), "");
    V at = LLVMBuildAdd(g->b, LLVMBuildMul(g->b, r, k_int(g, p->n), ""), col, "");
    V xp = p->xs ? p->out : mem_element(g, p->x, p->dt, LLVMBuildMul(g->b, r, k_int(g, p->k), ""));
    V yp = p->ys ? p->out : mem_element(g, p->y, p->dt, col);
    emit_tile(g, p, t, LLVMBuildAdd(g->b, number, l.iv, ""), xp, yp, p->acc ? mem_element(g, p->acc, p->dt, at) : NULL,
              mem_element(g, p->out, p->dt, at));
    loop_close(g, &l);
}

/* All rows of the columns that t describes, which are strip number `strip` of so many, cut evenly into tiles of at most `most` rows. */
static void emit_columns(gen *g, product *p, tile *t, V col, int64_t strips, V strip, int64_t most)
{
    const int64_t tiles = (p->m + most - 1) / most, small = p->m / tiles, larger = p->m % tiles;
    V number = LLVMBuildMul(g->b, strip, k_int(g, tiles), "");
    p->tiles = strips * tiles;
    t->rows = (int)small + 1;
    emit_rows(g, p, t, 0, larger, col, number);
    t->rows = (int)small;
    emit_rows(g, p, t, larger * (small + 1), tiles - larger, col, LLVMBuildAdd(g->b, number, k_int(g, larger), ""));
}

static void add_vector(tile *t, int *at, int width)
{
    t->width[t->nvec] = width;
    t->at[t->nvec++] = *at;
    *at += width;
}

static void emit_product(gen *g, product *p)
{
    const int lanes = g->opt->vector_bytes / (int)eas_dtype_size(p->dt), room = g->avx512 || !g->x86 ? 28 : 12; /* registers for sums */
    int nvec = p->m >= room / 2 ? 2 : room / (int)p->m;
    nvec = nvec > 8 ? 8 : nvec;
    const int64_t step = (int64_t)nvec * lanes, full = p->n / step * step;
    if (full) {
        tile t = {0};
        for (int at = 0; at < step;)
            add_vector(&t, &at, lanes);
        loop l = loop_open(g, k_int(g, 0), k_int(g, full), step);
        emit_columns(g, p, &t, l.iv, full / step, LLVMBuildUDiv(g->b, l.iv, k_int(g, step), ""), room / nvec < MAX_ROWS ? room / nvec : MAX_ROWS);
        loop_close(g, &l);
    }
    if (full == p->n)
        return;
    tile t = {0};
    int at = 0, rest = (int)(p->n - full);
    for (int w = lanes; at < rest; w /= 2)
        while (at + w <= rest)
            add_vector(&t, &at, w);
    const int most = room / t.nvec > 0 ? room / t.nvec : 1;
    if (full)
        p->seg = NULL;
    emit_columns(g, p, &t, k_int(g, full), 1, k_int(g, 0), most < MAX_ROWS ? most : MAX_ROWS);
}

static V slot_or_null(gen *g, uint32_t v) { return g->p.val[v].cls == C_UNI ? NULL : mem_slot(g, g->p.val[v].slot); }

void matmul_insn(gen *g, const segment *s)
{
    const ir_insn *in = &g->ir->insns[s->items.at[0].insn];
    const uint32_t *a = ir_args(g->ir, in);
    const ir_type x = ir_typeof(g->ir, a[0]), y = ir_typeof(g->ir, a[1]);
    product p = {.dt = (eas_dtype)x.dtype, .m = x.dim[0], .k = x.dim[1], .n = y.dim[1], .seg = s};
    int64_t bits;
    p.out = mem_slot(g, g->p.val[in->res].slot);
    p.x = slot_or_null(g, a[0]);
    p.y = slot_or_null(g, a[1]);
    p.row = g->p.val[a[1]].pitch ? g->p.val[a[1]].pitch : p.n;
    p.xs = p.x ? NULL : g->sval[a[0]];
    p.ys = p.y ? NULL : g->sval[a[1]];
    if (g->p.val[a[2]].cls == C_UNI)
        p.start = g->sval[a[2]];
    else if (ir_const_of(g->ir, a[2], &bits))
        p.start = k_bits(g, p.dt, 0, bits);
    else
        p.acc = mem_slot(g, g->p.val[a[2]].slot);
    emit_product(g, &p);
}
