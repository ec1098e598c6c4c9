/* bf16.c: matrix products of bf16 blocks by the instructions made for them: vdpbf16ps (AVX512-BF16) and
 * tdpbf16ps (AMX-BF16).
 *
 * A product's factors arrive cast to f32; here they are taken from before the cast (bf16_factors), and laid
 * out as pairs of neighbours along k in an area at the end of scratch. For vdpbf16ps a pair has the earlier k
 * in its upper half, because that is taken first: so it does one fma a k, k ascending, as everywhere else,
 * and padding -0 * +0 at an odd k changes no sum. The register tiles are those of matmul.c, which see a pair
 * as one step of k.
 *
 * AMX has eight tiles of 16 rows of 64 bytes, all of that size for the whole kernel: 2x2 of sums, two of each
 * factor. Factors are laid out tile by tile, padded by zeros; the left one is read where it lies if it is
 * made of whole tiles. Where the block ends inside a tile, sums go by way of a buffer. tdpbf16ps sums even
 * and odd k of its 32 apart: results are those of another order.
 *
 * Both instructions take subnormal numbers as 0, and give 0 for them.
 */
#include "llvm.h"

enum { LANES = 16, TILE_BYTES = 1024, EDGE = 32 };
enum { SUM_TILE = 0, LEFT_TILE = 4, RIGHT_TILE = 6 }; /* numbers of tiles */

/* ---- which ---- */

typedef enum way { BY_FMA, BY_PAIRS, BY_TILES } way;

static way choose(const gen *g, int64_t m, int64_t n, int64_t k)
{
    if (g->amx && m >= 16 && n >= 16 && k >= 32)
        return BY_TILES;
    return g->bf16 && k >= 2 ? BY_PAIRS : BY_FMA;
}

/* The bf16 value behind a factor, 0 if it is none. */
static uint32_t half_of(const eas_ir *ir, uint32_t v)
{
    const ir_insn *in = ir_def(ir, v);
    return in && in->op == IR_CAST && ir_typeof(ir, ir_args(ir, in)[0]).dtype == EAS_BF16 ? ir_args(ir, in)[0]
                                                                                          : 0;
}

static bool wanted(const gen *g, const ir_insn *in)
{
    if (in->op != IR_MATMUL)
        return false;
    const uint32_t *a = ir_args(g->ir, in);
    const ir_type x = ir_typeof(g->ir, a[0]), y = ir_typeof(g->ir, a[1]);
    return x.dtype == EAS_F32 && half_of(g->ir, a[0]) && half_of(g->ir, a[1]) &&
           choose(g, x.dim[0], y.dim[1], x.dim[1]) != BY_FMA;
}

/* A copy of the IR whose products take bf16 factors as they are. Instructions keep their numbers, faults
 * are told by them: a cast that nothing wants any more is empty. */
static eas_ir *with_halves(gen *g)
{
    const eas_ir *ir = g->ir;
    eas_ir *to = arena_alloc(&g->mem, sizeof *to);
    ir_insn *insns = arena_alloc(&g->mem, sizeof *insns * (ir->ninsns + 1));
    uint32_t *pool = arena_alloc(&g->mem, sizeof *pool * (ir->npool + 1)),
             *uses = arena_alloc(&g->mem, sizeof *uses * (ir->nvals + 1));
    if (!to || !insns || !pool || !uses)
        return NULL;
    memcpy(insns, ir->insns, sizeof *insns * ir->ninsns);
    memcpy(pool, ir->pool, sizeof *pool * ir->npool);
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        for (uint32_t k = 0; k < 2 && wanted(g, &insns[i]); k++)
            pool[insns[i].args + k] = half_of(ir, ir_args(ir, &insns[i])[k]);
        for (int k = 0; k < insns[i].nargs; k++)
            uses[pool[insns[i].args + (uint32_t)k]]++;
    }
    for (uint32_t i = 0; i < ir->ninsns; i++)
        if (insns[i].op == IR_CAST && !uses[insns[i].res])
            insns[i] = (ir_insn){.op = IR_NOP};
    *to = *ir;
    to->insns = insns;
    to->pool = pool;
    return to;
}

eas_status bf16_factors(gen *g)
{
    bool any = false;
    for (uint32_t i = 0; i < g->ir->ninsns && (g->bf16 || g->amx); i++)
        any = any || wanted(g, &g->ir->insns[i]);
    if (!any)
        return EAS_OK;
    eas_ir *ir = with_halves(g);
    if (!ir)
        return base_fail_oom(sizeof *ir);
    g->ir = g->p.ir = ir;
    return EAS_OK;
}

/* ---- where pairs lie ---- */

static int64_t up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Row r (of pairs for the right factor) and lanes c*16 on are at r/16 * tile + r%16 * row + c * chunk
 * bytes. */
typedef struct area {
    int64_t tile, row, chunk, bytes;
} area;

typedef struct layout {
    area left, right;
    int64_t rows;      /* of pairs, padding included */
    bool upper;        /* the earlier of a pair is its upper half */
    bool stays;        /* the left factor is read where it lies */
    int64_t edge;      /* bytes of the buffer for sums at edges */
} layout;

/* Rows a power of two apart would share a few sets of the cache. */
static int64_t apart(int64_t bytes) { return bytes % 256 ? bytes : bytes + 64; }

static area in_rows(int64_t rows, int64_t lanes)
{
    const int64_t row = apart(up(lanes, LANES) * 4);
    return (area){.tile = LANES * row, .row = row, .chunk = 64, .bytes = rows * row};
}

static layout layout_of(way w, int64_t m, int64_t n, int64_t k)
{
    const int64_t pairs = (k + 1) / 2, deep = up(pairs, LANES) / LANES * TILE_BYTES;
    if (w == BY_PAIRS)
        return (layout){.left = in_rows(m, pairs), .right = in_rows(pairs, n), .rows = pairs, .upper = true};
    const bool stays = m % LANES == 0 && k % (2 * LANES) == 0;
    return (layout){
        .left = {.tile = deep,
                 .row = 64,
                 .chunk = TILE_BYTES,
                 .bytes = stays ? 0 : up(m, LANES) / LANES * deep},
        .right = {.tile = TILE_BYTES, .row = 64, .chunk = deep, .bytes = up(n, LANES) / LANES * deep},
        .rows = up(pairs, LANES),
        .stays = stays,
        .edge = EDGE * EDGE * 4};
}

static bool is_half(const gen *g, const ir_insn *in)
{
    return in->op == IR_MATMUL && ir_typeof(g->ir, ir_args(g->ir, in)[0]).dtype == EAS_BF16;
}

void bf16_reserve(gen *g)
{
    int64_t most = 0;
    for (uint32_t i = 0; i < g->ir->ninsns; i++) {
        const ir_insn *in = &g->ir->insns[i];
        if (!is_half(g, in))
            continue;
        const ir_type x = ir_typeof(g->ir, ir_args(g->ir, in)[0]),
                      y = ir_typeof(g->ir, ir_args(g->ir, in)[1]);
        const way w = choose(g, x.dim[0], y.dim[1], x.dim[1]);
        const layout l = layout_of(w, x.dim[0], y.dim[1], x.dim[1]);
        const int64_t bytes = l.left.bytes + l.right.bytes + l.edge;
        most = bytes > most ? bytes : most;
        g->tiles = g->tiles || w == BY_TILES;
    }
    g->pairs_at = up((int64_t)g->p.scratch, 64);
    if (most)
        g->p.scratch = (uint64_t)(g->pairs_at + most);
}

/* ---- laying out ---- */

static V bytes_on(gen *g, V p, V off) { return LLVMBuildGEP2(g->b, ty_int(g, 8, 0), p, &off, 1, ""); }
static V times(gen *g, V x, int64_t n) { return LLVMBuildMul(g->b, x, k_int(g, n), ""); }

static V row_at(gen *g, V base, const area *a, V r)
{
    V hi = LLVMBuildLShr(g->b, r, k_int(g, 4), ""), lo = LLVMBuildAnd(g->b, r, k_int(g, LANES - 1), "");
    return bytes_on(g, base, LLVMBuildAdd(g->b, times(g, hi, a->tile), times(g, lo, a->row), ""));
}

static V read_halves(gen *g, V p, int64_t n, int lanes, int64_t fill)
{
    return mem_read_first(g, p, EAS_BF16, lanes, (int)n, k_like(g, ty_int(g, 16, lanes), fill));
}

static void write_pairs(gen *g, V p, V x) { LLVMSetAlignment(LLVMBuildStore(g->b, x, p), 64); }

/* 16 pairs of a row of the left factor */
static void lay_left_chunk(gen *g, const layout *l, V from, V to, int64_t n)
{
    V x = LLVMBuildBitCast(g->b, read_halves(g, from, n, 2 * LANES, 0x8000), ty_int(g, 32, LANES), "");
    T t = LLVMTypeOf(x);
    V a[3] = {x, x, k_like(g, t, 16)};
    write_pairs(g, to, l->upper ? intrinsic(g, "llvm.fshl", &t, 1, a, 3) : x);
}

static void lay_left(gen *g, const matmul *p, const layout *l, V base)
{
    const area *a = &l->left;
    const int64_t whole = p->k / (2 * LANES), rest = p->k % (2 * LANES);
    loop r = loop_open(g, k_int(g, 0), k_int(g, p->m), 1);
    V from = mem_element(g, p->x, EAS_BF16, LLVMBuildMul(g->b, r.iv, p->xrows, "")),
      to = row_at(g, base, a, r.iv);
    if (whole) {
        loop c = loop_open(g, k_int(g, 0), k_int(g, whole), 1);
        lay_left_chunk(g, l, mem_element(g, from, EAS_BF16, times(g, c.iv, 2 * LANES)),
                       bytes_on(g, to, times(g, c.iv, a->chunk)), 2 * LANES);
        loop_close(g, &c);
    }
    if (rest)
        lay_left_chunk(g, l, mem_element(g, from, EAS_BF16, k_int(g, whole * 2 * LANES)),
                       bytes_on(g, to, k_int(g, whole * a->chunk)), rest);
    loop_close(g, &r);
}

/* 16 columns of two rows of the right factor, or of none: those are 0 */
static void lay_right_chunk(gen *g, const layout *l, const V *rows, V to, V col, int64_t n)
{
    const T t = ty_int(g, 32, LANES);
    V x[2] = {LLVMConstNull(t), LLVMConstNull(t)};
    for (int i = 0; i < 2; i++)
        if (rows[i])
            x[i] = LLVMBuildZExt(g->b, read_halves(g, mem_element(g, rows[i], EAS_BF16, col), n, LANES, 0), t,
                                 "");
    V hi = x[!l->upper], lo = x[l->upper];
    write_pairs(g, to, LLVMBuildOr(g->b, LLVMBuildShl(g->b, hi, k_like(g, t, 16), ""), lo, ""));
}

static void lay_right_row(gen *g, const matmul *p, const layout *l, V first, V second, V to)
{
    const V rows[2] = {first, second};
    const area *a = &l->right;
    const int64_t whole = p->n / LANES, rest = p->n % LANES;
    if (whole) {
        loop c = loop_open(g, k_int(g, 0), k_int(g, whole), 1);
        lay_right_chunk(g, l, rows, bytes_on(g, to, times(g, c.iv, a->chunk)), times(g, c.iv, LANES), LANES);
        loop_close(g, &c);
    }
    if (rest)
        lay_right_chunk(g, l, rows, bytes_on(g, to, k_int(g, whole * a->chunk)), k_int(g, whole * LANES),
                        rest);
}

static V right_row(gen *g, const matmul *p, V row)
{
    return mem_element(g, p->y, EAS_BF16, LLVMBuildMul(g->b, row, p->ystep, ""));
}

static void lay_right(gen *g, const matmul *p, const layout *l, V base)
{
    const int64_t whole = p->k / 2;
    loop j = loop_open(g, k_int(g, 0), k_int(g, whole), 1);
    V first = right_row(g, p, times(g, j.iv, 2));
    lay_right_row(g, p, l, first, mem_element(g, first, EAS_BF16, p->ystep),
                  row_at(g, base, &l->right, j.iv));
    loop_close(g, &j);
    if (p->k % 2)
        lay_right_row(g, p, l, right_row(g, p, k_int(g, p->k - 1)), NULL,
                      row_at(g, base, &l->right, k_int(g, whole)));
    if ((p->k + 1) / 2 == l->rows)
        return;
    loop z = loop_open(g, k_int(g, (p->k + 1) / 2), k_int(g, l->rows), 1);
    lay_right_row(g, p, l, NULL, NULL, row_at(g, base, &l->right, z.iv));
    loop_close(g, &z);
}

/* ---- vdpbf16ps ---- */

V bf16_step(gen *g, V x, V y, V sum)
{
    const T t = LLVMVectorType(LLVMBFloatTypeInContext(g->cx), 2 * LANES);
    V a[3] = {sum, LLVMBuildBitCast(g->b, y, t, ""), LLVMBuildBitCast(g->b, x, t, "")};
    return intrinsic(g, "llvm.x86.avx512bf16.dpbf16ps.512", NULL, 0, a, 3);
}

/* ---- AMX ---- */

static V tile_number(gen *g, int n) { return LLVMConstInt(ty_int(g, 8, 0), (uint64_t)n, 0); }

static void tile_move(gen *g, const char *name, int tile, V p, V stride)
{
    V a[3] = {tile_number(g, tile), p, stride};
    intrinsic(g, name, NULL, 0, a, 3);
}

static void tile_read(gen *g, int tile, V p, V stride)
{
    tile_move(g, "llvm.x86.tileloadd64", tile, p, stride);
}
static void tile_write(gen *g, int tile, V p, V stride)
{
    tile_move(g, "llvm.x86.tilestored64", tile, p, stride);
}

void bf16_begin(gen *g)
{
    uint8_t config[64] = {1}; /* the palette; then columns in bytes from byte 16 on, rows from byte 48 on */
    if (!g->tiles)
        return;
    for (int i = 0; i < 8; i++) {
        config[16 + 2 * i] = 64;
        config[48 + i] = 16;
    }
    V c = LLVMConstStringInContext(g->cx, (const char *)config, sizeof config, 1);
    V at = LLVMAddGlobal(g->mod, LLVMTypeOf(c), "tiles");
    LLVMSetInitializer(at, c);
    LLVMSetLinkage(at, LLVMPrivateLinkage);
    LLVMSetGlobalConstant(at, 1);
    LLVMSetAlignment(at, 64);
    intrinsic(g, "llvm.x86.ldtilecfg", NULL, 0, &at, 1);
}

void bf16_end(gen *g)
{
    if (g->tiles)
        intrinsic(g, "llvm.x86.tilerelease", NULL, 0, NULL, 0);
}

typedef struct square { /* of sums: one or two tiles by one or two */
    const matmul *p;
    const layout *l;
    V left, right, edge; /* addresses */
    V left_tile, left_row; /* bytes from one tile of rows to the next, and from one row */
    V left_step;         /* from one tile along k to the next */
    V row, col;
    int64_t rows, cols;  /* that there are */
    V number;            /* among all squares */
} square;

static int tiles_of(int64_t n) { return n > LANES ? 2 : 1; }
static bool is_edge(const square *s) { return s->rows % LANES || s->cols % LANES; }
static V sums_at(gen *g, const square *s, V base)
{
    return mem_element(g, base, EAS_F32, LLVMBuildAdd(g->b, times(g, s->row, s->p->n), s->col, ""));
}

/* Rows of sums between where they belong and the buffer. */
static void copy_sums(gen *g, const square *s, V from, int64_t from_row, V to, int64_t to_row)
{
    loop r = loop_open(g, k_int(g, 0), k_int(g, s->rows), 1);
    V a = mem_element(g, from, EAS_F32, times(g, r.iv, from_row)),
      b = mem_element(g, to, EAS_F32, times(g, r.iv, to_row));
    for (int64_t c = 0; c < s->cols; c += LANES) {
        const int n = (int)(s->cols - c < LANES ? s->cols - c : LANES);
        V x = mem_read_first(g, mem_element(g, a, EAS_F32, k_int(g, c)), EAS_F32, LANES, n, NULL);
        mem_write_first(g, mem_element(g, b, EAS_F32, k_int(g, c)), EAS_F32, n, x);
    }
    loop_close(g, &r);
}

static void fill_buffer(gen *g, const square *s, V x)
{
    loop r = loop_open(g, k_int(g, 0), k_int(g, EDGE * EDGE), LANES);
    mem_write_first(g, mem_element(g, s->edge, EAS_F32, r.iv), EAS_F32, LANES, splat(g, x, LANES));
    loop_close(g, &r);
}

/* One instruction for each tile of sums, which lie in rows of `row` elements from `at` on */
static void all_sums(gen *g, const square *s, void one(gen *, int, V, V), V at, int64_t row)
{
    for (int i = 0; i < tiles_of(s->rows); i++)
        for (int j = 0; j < tiles_of(s->cols); j++)
            one(g, SUM_TILE + 2 * i + j, mem_element(g, at, EAS_F32, k_int(g, i * LANES * row + j * LANES)),
                k_int(g, row * 4));
}

static void tile_zero(gen *g, int tile, V p, V stride)
{
    V a = tile_number(g, tile);
    (void)p;
    (void)stride;
    intrinsic(g, "llvm.x86.tilezero", NULL, 0, &a, 1);
}

static void start_square(gen *g, const square *s)
{
    const matmul *p = s->p;
    const bool zero = p->start && LLVMIsNull(p->start);
    if (!p->start && !is_edge(s)) {
        all_sums(g, s, tile_read, sums_at(g, s, p->acc), p->n);
        return;
    }
    if (!p->start)
        copy_sums(g, s, sums_at(g, s, p->acc), p->n, s->edge, EDGE);
    else if (!zero)
        fill_buffer(g, s, p->start);
    all_sums(g, s, zero ? tile_zero : tile_read, s->edge, EDGE);
}

static void multiply_tiles(gen *g, int i, int j)
{
    V a[3] = {tile_number(g, SUM_TILE + 2 * i + j), tile_number(g, LEFT_TILE + i),
              tile_number(g, RIGHT_TILE + j)};
    intrinsic(g, "llvm.x86.tdpbf16ps", NULL, 0, a, 3);
}

/* Line by line in a loop: addresses of many at once would take all registers. */
static void prefetch_lines(gen *g, const square *s, V round)
{
    const int64_t rounds = s->l->rows / LANES, share = matmul_share(g, s->p, rounds);
    if (!share)
        return;
    loop f = loop_open(g, k_int(g, 0), k_int(g, share), 1);
    matmul_prefetch(g, s->p, s->number, LLVMBuildAdd(g->b, times(g, round, share), f.iv, ""), rounds * share);
    loop_close(g, &f);
}

static void emit_square(gen *g, const square *s)
{
    const layout *l = s->l;
    const int down = tiles_of(s->rows), across = tiles_of(s->cols);
    V down16 = LLVMBuildLShr(g->b, s->row, k_int(g, 4), ""),
      right16 = LLVMBuildLShr(g->b, s->col, k_int(g, 4), "");
    V left = bytes_on(g, s->left, LLVMBuildMul(g->b, down16, s->left_tile, "")),
      right = bytes_on(g, s->right, times(g, right16, l->right.chunk));
    start_square(g, s);
    loop k = loop_open(g, k_int(g, 0), k_int(g, l->rows / LANES), 1);
    V x = bytes_on(g, left, LLVMBuildMul(g->b, k.iv, s->left_step, "")),
      y = bytes_on(g, right, times(g, k.iv, TILE_BYTES));
    for (int j = 0; j < across; j++)
        tile_read(g, RIGHT_TILE + j, bytes_on(g, y, k_int(g, j * l->right.chunk)), k_int(g, 64));
    for (int i = 0; i < down; i++) {
        tile_read(g, LEFT_TILE + i, i ? bytes_on(g, x, s->left_tile) : x, s->left_row);
        for (int j = 0; j < across; j++)
            multiply_tiles(g, i, j);
    }
    prefetch_lines(g, s, k.iv);
    loop_close(g, &k);
    if (!is_edge(s)) {
        all_sums(g, s, tile_write, sums_at(g, s, s->p->out), s->p->n);
        return;
    }
    all_sums(g, s, tile_write, s->edge, EDGE);
    copy_sums(g, s, s->edge, EDGE, sums_at(g, s, s->p->out), s->p->n);
}

/* All squares of some columns. */
static void emit_column(gen *g, square *s, V strip)
{
    const int64_t m = s->p->m, full = m / EDGE;
    V first = times(g, strip, (m + EDGE - 1) / EDGE);
    if (full) {
        loop r = loop_open(g, k_int(g, 0), k_int(g, full), 1);
        s->row = times(g, r.iv, EDGE);
        s->rows = EDGE;
        s->number = LLVMBuildAdd(g->b, first, r.iv, "");
        emit_square(g, s);
        loop_close(g, &r);
    }
    s->row = k_int(g, full * EDGE);
    s->rows = m - full * EDGE;
    s->number = LLVMBuildAdd(g->b, first, k_int(g, full), "");
    if (s->rows)
        emit_square(g, s);
}

static void emit_tiles(gen *g, square *s)
{
    const int64_t n = s->p->n, full = n / EDGE;
    if (full) {
        loop c = loop_open(g, k_int(g, 0), k_int(g, full), 1);
        s->col = times(g, c.iv, EDGE);
        s->cols = EDGE;
        emit_column(g, s, c.iv);
        loop_close(g, &c);
    }
    s->col = k_int(g, full * EDGE);
    s->cols = n - full * EDGE;
    if (s->cols)
        emit_column(g, s, k_int(g, full));
}

static void by_tiles(gen *g, matmul *p, const layout *l, V left, V right)
{
    square s = {
        .p = p, .l = l, .left = left, .right = right, .edge = bytes_on(g, right, k_int(g, l->right.bytes))};
    s.left_tile = k_int(g, l->left.tile);
    s.left_row = k_int(g, l->left.row);
    s.left_step = k_int(g, l->left.chunk);
    if (l->stays) {
        s.left = p->x;
        s.left_row = times(g, p->xrows, 2);
        s.left_tile = times(g, p->xrows, 2 * LANES);
        s.left_step = k_int(g, 64);
    }
    p->tiles = ((p->m + EDGE - 1) / EDGE) * ((p->n + EDGE - 1) / EDGE);
    emit_tiles(g, &s);
}

bool bf16_product(gen *g, matmul *p)
{
    const way w = choose(g, p->m, p->n, p->k);
    const layout l = layout_of(w, p->m, p->n, p->k);
    V left = mem_slot(g, g->pairs_at), right = mem_slot(g, g->pairs_at + l.left.bytes);
    if (!l.stays)
        lay_left(g, p, &l, left);
    lay_right(g, p, &l, right);
    if (w == BY_TILES) {
        by_tiles(g, p, &l, left, right);
        return true;
    }
    p->words = WORDS_BF16;
    p->x = left;
    p->y = right;
    p->xrow = l.left.row / 4;
    p->xstep = k_int(g, 1);
    p->ystep = k_int(g, l.right.row / 4);
    p->xfar = p->yfar = false;
    p->k = l.rows;
    return false;
}
