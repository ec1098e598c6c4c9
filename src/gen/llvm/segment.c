/* segment.c: one segment as loops over chunks.
 *
 *   for outer indices: counts of the prefix masks;
 *     lanes before the first address at which a vector may be streamed, if that is asked for
 *     full chunks: no masks at all (twice, if streaming stores pay: with and without)
 *     the remaining chunks: masks as they are, lanes beyond the block switched off
 */
#include "llvm.h"

enum { SMALL_BODY = 160, STREAM_BODY = 64, SHIFT_CHUNKS = 8, ROUND_BODY = 192 };

static uint32_t body_size(gen *g, const segment *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->items.len; i++) {
        const uint32_t k = s->items.at[i].insn;
        if (k == UINT32_MAX)
            n++;
        else if (!s->items.at[i].rare)
            n += g->p.end[k] > k ? g->p.end[k] - k : 1;
    }
    return n;
}

static int pow2_at_least(int64_t x)
{
    int n = 1;
    while (n < x)
        n *= 2;
    return n;
}

/* Is v computed in the segment only if some lane needs it? */
static bool seldom(gen *g, const segment *s, uint32_t v)
{
    for (uint32_t i = 0; i < s->items.len; i++)
        if (s->items.at[i].rare && g->ir->insns[s->items.at[i].insn].res == v)
            return true;
    return false;
}

/* Does the instruction only move bits of halves, so that they are not converted to f32? */
static bool stays_half(const ir_insn *in)
{
    return in &&
           (in->op == IR_LOAD || in->op == IR_WHERE || in->op == IR_NEG || in->op == IR_ABS || is_move(in));
}

/* Bytes of the widest element of what every chunk computes: a vector holds that many fewer. */
static int widest(gen *g, const segment *s)
{
    int w = 1;
    for (uint32_t v = 1; v < g->ir->nvals; v++) {
        if (g->p.made[v].seg != s->id || g->p.val[v].cls != C_BLOCK ||
            (eas_dtype_size((eas_dtype)ir_typeof(g->ir, v).dtype) > 4 && seldom(g, s, v)))
            continue;
        const eas_dtype dt = (eas_dtype)ir_typeof(g->ir, v).dtype;
        const bool half = dt == EAS_F16 || dt == EAS_BF16;
        const int bytes = half && !stays_half(ir_def(g->ir, v)) ? 4 : (int)eas_dtype_size(dt);
        if (bytes > w)
            w = bytes;
    }
    for (uint32_t i = 0; i < s->items.len; i++) {
        const item *it = &s->items.at[i];
        const ir_insn *in = it->insn == UINT32_MAX ? NULL : &g->ir->insns[it->insn];
        const uint32_t v = !in ? it->dst : in->op == IR_STORE || is_reduce(in) ? ir_args(g->ir, in)[0] : 0;
        const int bytes = v ? (int)eas_dtype_size((eas_dtype)ir_typeof(g->ir, v).dtype) : 1;
        if (bytes > w)
            w = bytes;
    }
    return w;
}

/* Thread mode: lanes that tid // C and tid % C keep together. */
static int split_width(gen *g, int n)
{
    for (uint32_t i = 0; i < g->ir->ninsns && g->p.info.mode == EAS_MODE_THREAD; i++) {
        const ir_insn *in = &g->ir->insns[i];
        int64_t k;
        if (in->op != IR_FLOORDIV && in->op != IR_MOD && in->op != IR_TDIV && in->op != IR_TREM)
            continue;
        if (g->p.val[in->res].cls != C_REMAT || !ir_const_of(g->ir, ir_args(g->ir, in)[1], &k))
            continue;
        if (k >= 4 && k < n && (k & (k - 1)) == 0)
            n = (int)k;
    }
    return n;
}

/* Choices and what they are made by take few registers: those among constants are look-ups (table.c). */
static bool chooses(const gen *g, const ir_insn *in)
{
    return g->avx2 && (in->op == IR_WHERE || in->op == IR_AND || ir_typeof(g->ir, in->res).dtype == EAS_BOOL);
}

/* A loop whose rounds add rows of memory to a block, as sums of columns and products with one row are: only
 * arithmetic and loads of neighbours, without masks. *blocks counts what a chunk computes in a round. */
static bool adds_rows(gen *g, uint32_t opener, uint32_t *blocks)
{
    for (uint32_t i = opener; i < g->p.end[opener]; i++) {
        const ir_insn *in = &g->ir->insns[i];
        const uint32_t *a = ir_args(g->ir, in);
        const bool load = in->op == IR_LOAD, loop = in->op == IR_LOOP || in->op == IR_ENDLOOP;
        if (in->op == IR_LOOP && !(uniform(g, a[0]) && uniform(g, a[1]) && uniform(g, a[2])))
            return false;
        if (load && !uniform(g, in->res) && (in->nargs != 2 || !plan_neighbours(&g->p, a[1])))
            return false;
        if (!load && !loop && (!(ir_rows[in->op].flags & IR_PURE) || ir_is_fold(in)))
            return false;
        *blocks += in->nres && !loop && g->p.val[in->res].cls == C_BLOCK && !chooses(g, in);
    }
    return true;
}

/* How many vectors a chunk has. Where rounds of a loop add rows to a block, each sum waits for the one before
 * it, and the rows of one vector lie far apart in memory: several vectors are as many independent sums, and
 * whole cache lines are read. */
static int vectors_of_chunk(gen *g, const segment *s, int64_t lanes)
{
    enum { VECTORS = 4, MOST_BLOCKS = 64 };
    uint32_t loops = 0, blocks = 0;
    if (g->p.info.mode == EAS_MODE_THREAD || s->reduces || VECTORS * lanes > MOST_LANES ||
        s->sh.dim[s->sh.rank - 1] % (VECTORS * lanes))
        return 1;
    for (uint32_t i = 0; i < s->items.len; i++) {
        const uint32_t at = s->items.at[i].insn;
        if (at == UINT32_MAX || !(ir_rows[g->ir->insns[at].op].flags & IR_STRUCT))
            continue;
        if (g->ir->insns[at].op != IR_LOOP || !adds_rows(g, at, &blocks))
            return 1;
        loops++;
    }
    return loops == 1 && blocks <= MOST_BLOCKS ? VECTORS : 1;
}

/* Are elementary functions most of the chunk? Instructions of floats depend on each other in one long chain
 * then, and the processor's queues hold too few vectors' chains to keep its units busy: two vectors whose
 * instructions take turns share its constants and wait side by side. */
static bool long_chain(gen *g, const segment *s, int64_t lanes)
{
    enum { LONG = 16 };
    uint32_t floats = 0, all = 0;
    if (!g->avx2 || !g->fma || g->p.info.mode == EAS_MODE_THREAD || s->reduces || 2 * lanes > MOST_LANES ||
        s->sh.dim[s->sh.rank - 1] % (2 * lanes))
        return false;
    for (uint32_t i = 0; i < s->items.len; i++) {
        const item *it = &s->items.at[i];
        const ir_insn *in = it->insn == UINT32_MAX ? NULL : &g->ir->insns[it->insn];
        if (in && ir_rows[in->op].flags & IR_STRUCT)
            return false;
        if (!in || it->rare || in->nres != 1 || g->p.val[in->res].cls != C_BLOCK)
            continue;
        all++;
        floats +=
            dtype_is_float((eas_dtype)ir_typeof(g->ir, in->res).dtype) && in->op != IR_LOAD && !is_move(in);
    }
    return floats >= LONG && all <= SMALL_BODY;
}

/* ---- threads that count for themselves ----
 *
 * A loop whose bounds are a thread's own (a row of a sparse matrix) runs, in a vector, as often as the
 * longest of its lanes wants, and everything that the counter indexes is a gather. Where gathers are most of
 * its body, one thread after the other is quicker, with hardware that gathers as well: plain loads, and no
 * lane waits for another. A chunk is then one lane.
 */
enum { WORK_PER_GATHER = 3 };

static bool counts_alone(gen *g, uint32_t loop)
{
    const uint32_t *a = ir_args(g->ir, &g->ir->insns[loop]);
    uint32_t gathers = 0, work = 0;
    if (g->p.val[a[0]].cls == C_UNI && g->p.val[a[1]].cls == C_UNI)
        return false;
    for (uint32_t i = loop + 1; i < g->p.end[loop]; i++) {
        const ir_insn *in = &g->ir->insns[i];
        const uint8_t cls = in->res ? g->p.val[in->res].cls : C_NONE;
        if (in->op == IR_LOAD && cls == C_BLOCK)
            gathers++;
        else if (cls == C_BLOCK && in->op != IR_BOUNDS)
            work++;
    }
    return gathers && work <= WORK_PER_GATHER * gathers;
}

static bool one_by_one(gen *g, const segment *s)
{
    bool any = false;
    if (g->p.info.mode != EAS_MODE_THREAD || s->reduces || s->at_once)
        return false;
    for (uint32_t i = 0; i < s->items.len; i++) {
        const uint32_t k = s->items.at[i].insn;
        for (uint32_t j = k; k != UINT32_MAX && j <= g->p.end[k]; j++) {
            const uint16_t op = g->ir->insns[j].op;
            if (op == IR_LANE_ID || op == IR_SG_ID || op == IR_DOT || is_reduce(&g->ir->insns[j]))
                return false;
            any = any || (op == IR_LOOP && counts_alone(g, j));
        }
    }
    return any;
}

static void pick_lanes(gen *g, const segment *s, chunk *c)
{
    const int64_t inner = s->sh.dim[s->sh.rank - 1];
    int n = g->opt->vector_bytes / widest(g, s);
    c->n = (int)inner;
    if (s->at_once)
        return;
    c->n = 1;
    if (one_by_one(g, s))
        return;
    n = split_width(g, n);
    if (n > pow2_at_least(inner))
        n = pow2_at_least(inner);
    n = n < 4 ? 4 : n;
    c->n = n * vectors_of_chunk(g, s, n);
    c->rows = c->n > n;
    if (!c->rows && long_chain(g, s, n))
        c->n = 2 * n;
}

static V lanes_below(gen *g, V count) /* lanes l < count, count an i64 scalar */
{
    const int n = g->c->n;
    V c = LLVMBuildTrunc(g->b, count, ty_int(g, 32, 0), "");
    return LLVMBuildICmp(g->b, LLVMIntSLT, k_iota(g, ty_int(g, 32, 0), n, 1), splat(g, c, n), "");
}

static V round_down(gen *g, V x, int n) { return LLVMBuildAnd(g->b, x, k_int(g, -(int64_t)n), ""); }

/* last: lanes from there on are off; NULL: none are. stream: see chunk. */
static void run_chunks(gen *g, const segment *s, V lo, V hi, V last, bool full, int stream)
{
    loop l = loop_open(g, lo, hi, g->c->n);
    g->c->idx[s->sh.rank - 1] = l.iv;
    g->c->full = full;
    g->c->stream = stream;
    g->c->exec = last ? lanes_below(g, LLVMBuildSub(g->b, last, l.iv, "")) : NULL;
    chunk_emit(g, s);
    g->c->exec = NULL;
    loop_close(g, &l);
}

/* What is streamed: contiguous stores of whole pieces of 16 bytes. The address of inner index 0, NULL for
 * other instructions. */
static V streamed(gen *g, const ir_insn *in, int *bytes)
{
    const uint32_t *a = ir_args(g->ir, in);
    *bytes = (int)eas_dtype_size((eas_dtype)ir_typeof(g->ir, a[0]).dtype);
    const aff off = affine_of(g, a[1], seg_map(g));
    if (ir_typeof(g->ir, a[0]).kind != IR_BUF || !off.run.ok || !off.run.exact || !off.run.whole ||
        off.run.stride != 1 || g->c->n * *bytes % 16)
        return NULL;
    V at = LLVMBuildPtrToInt(g->b, g->sval[a[0]], ty_int(g, 64, 0), "");
    return LLVMBuildAdd(g->b, at, LLVMBuildMul(g->b, affine_base(g, off), k_int(g, *bytes), ""), "");
}

/* Is a product of blocks summed up in a loop? Then storing the result is little of the work. */
static bool sums_products(const gen *g)
{
    for (uint32_t i = 0; i < g->ir->ninsns; i++)
        for (uint32_t up = g->p.parent[i]; g->ir->insns[i].op == IR_MATMUL && up != UINT32_MAX;
             up = g->p.parent[up])
            if (g->ir->insns[up].op != IR_IF)
                return true;
    return false;
}

/* May chunks begin anywhere? Then nothing may rest on where they begin: reductions join by lane number,
 * slots have whole chunks, and quotients and remainders of lane numbers are simple only within aligned
 * ones. In rows of tiles that is a lot of code, which pays where they are much of the work only. */
static bool can_shift(gen *g, const segment *s)
{
    if (s->reduces || g->p.info.mode == EAS_MODE_THREAD || s->sh.dim[s->sh.rank - 1] < SHIFT_CHUNKS * g->c->n)
        return false;
    if (s->sh.rank > 1 && sums_products(g))
        return false;
    for (uint32_t i = 0; i < s->items.len; i++) {
        const ir_insn *in = s->items.at[i].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[i].insn];
        if (!in || ir_rows[in->op].flags & IR_STRUCT || (in->res && plan_in_memory(&g->p, in->res)))
            return false;
        if ((in->op == IR_LOAD || in->op == IR_STORE) && affine_early(g, ir_args(g->ir, in)[1])) {
            const aff off = affine_of(g, ir_args(g->ir, in)[1], seg_map(g));
            if (!off.run.ok || !off.run.whole)
                return false;
        }
    }
    for (uint32_t v = 1; v < g->ir->nvals; v++) {
        const ir_insn *in = ir_def(g->ir, v);
        if (in && g->p.val[v].cls == C_REMAT &&
            (in->op == IR_MOD || in->op == IR_FLOORDIV || in->op == IR_TDIV || in->op == IR_TREM))
            return false;
    }
    return true;
}

/* i1: the call wants streaming stores and addresses allow them; NULL: there is no contiguous store. With
 * head, chunks begin at that index, from which on the stores are aligned vectors; without, they are at
 * multiples of 16 bytes, or, in rows of tiles, of a vector. */
static V can_stream(gen *g, const segment *s, V *head)
{
    V low = NULL;
    for (uint32_t i = 0; i < s->items.len; i++) {
        const ir_insn *in = s->items.at[i].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[i].insn];
        int bytes;
        if (!in || in->op != IR_STORE)
            continue;
        if (!affine_early(g, ir_args(g->ir, in)[1]))
            return NULL;
        V at = streamed(g, in, &bytes);
        if (!at)
            continue;
        /* a block of one dim may end inside a cache line, since the next program soon writes the rest of that
         * line; rows of a tile have no such neighbour */
        V past = k_int(g, (head || s->sh.rank > 1 ? g->c->n * bytes : 16) - 1);
        if (head) {
            if (!low)
                *head = LLVMBuildUDiv(g->b, LLVMBuildAnd(g->b, LLVMBuildNeg(g->b, at, ""), past, ""),
                                      k_int(g, bytes), "");
            at = LLVMBuildAdd(g->b, at, LLVMBuildMul(g->b, *head, k_int(g, bytes), ""), "");
        }
        at = LLVMBuildAnd(g->b, at, past, "");
        low = low ? LLVMBuildOr(g->b, low, at, "") : at;
    }
    if (!low)
        return NULL;
    V fit = LLVMBuildICmp(g->b, LLVMIntEQ, low, k_int(g, 0), "");
    return LLVMBuildAnd(g->b, fit, mem_streams(g), "");
}

static void full_chunks(gen *g, const segment *s, V lo, V end, V stream, int how)
{
    if (!stream) {
        run_chunks(g, s, lo, end, NULL, true, 0);
        return;
    }
    LLVMBasicBlockRef yes = new_block(g, "stream"), no = new_block(g, "cached"),
                      done = new_block(g, "filled");
    LLVMBuildCondBr(g->b, stream, yes, no);
    LLVMPositionBuilderAtEnd(g->b, yes);
    run_chunks(g, s, lo, end, NULL, true, how);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, no);
    run_chunks(g, s, lo, end, NULL, true, 0);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
}

static V lesser(gen *g, V a, V b) { return sel(g, LLVMBuildICmp(g->b, LLVMIntSLT, a, b, ""), a, b); }

static V greater(gen *g, V a, V b) { return sel(g, LLVMBuildICmp(g->b, LLVMIntSGT, a, b, ""), a, b); }

/* Three parts in order: lanes before head under a mask, full chunks up to `full`, and the rest under a
 * mask. The first and the last are one piece of code. */
static void three_parts(gen *g, const segment *s, V head, V full, V end, V stream, int how)
{
    V room = LLVMBuildSub(g->b, full, lesser(g, head, full), ""),
      mid = LLVMBuildAdd(g->b, lesser(g, head, full), round_down(g, room, g->c->n), "");
    loop part = loop_open(g, k_int(g, 0), k_int(g, 3), 1);
    LLVMBasicBlockRef middle = new_block(g, "middle"), edge = new_block(g, "edge"),
                      done = new_block(g, "part");
    LLVMBuildCondBr(g->b, LLVMBuildICmp(g->b, LLVMIntEQ, part.iv, k_int(g, 1), ""), middle, edge);
    LLVMPositionBuilderAtEnd(g->b, middle);
    full_chunks(g, s, lesser(g, head, full), mid, stream, how);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, edge);
    V first = LLVMBuildICmp(g->b, LLVMIntEQ, part.iv, k_int(g, 0), ""),
      hi = sel(g, first, lesser(g, head, full), end);
    run_chunks(g, s, sel(g, first, k_int(g, 0), mid), hi, hi, false, 0);
    branch_to(g, done);
    LLVMPositionBuilderAtEnd(g->b, done);
    loop_close(g, &part);
}

/* at, or the first index of a chunk after it from which on masks hold that begin at lead (NULL: at 0). */
static V behind(gen *g, V at, V lead)
{
    if (!lead)
        return at;
    V far = LLVMBuildSub(g->b, greater(g, lead, at), at, "");
    return LLVMBuildAdd(g->b, at, round_down(g, LLVMBuildAdd(g->b, far, k_int(g, g->c->n - 1), ""), g->c->n),
                        "");
}

/* With chunks that begin at head where stores are streamed. */
static void shifted_chunks(gen *g, const segment *s, V full, V end, V stream, V head, V lead)
{
    const uint32_t align = g->c->align;
    g->c->align = 1;
    three_parts(g, s, behind(g, sel(g, stream, head, k_int(g, 0)), lead), full, end, stream, STREAM_WHOLE);
    g->c->align = align;
}

static void full_chunk_at(gen *g, const segment *s, V at)
{
    g->c->idx[s->sh.rank - 1] = at;
    g->c->full = true;
    g->c->stream = 0;
    g->c->exec = NULL;
    chunk_emit(g, s);
}

/* Full chunks, reductions in rounds first. */
static void full_range(gen *g, const segment *s, V full, V end, V stream)
{
    const int64_t size = s->sh.dim[s->sh.rank - 1], w = stream ? 0 : fold_round(g, s);
    if (!w || size < 2 * w || body_size(g, s) * (uint32_t)(w / g->c->n) > ROUND_BODY) {
        /* as can_stream has checked */
        full_chunks(g, s, k_int(g, 0), end, stream, s->sh.rank > 1 ? STREAM_WHOLE : STREAM_PIECES);
        return;
    }
    V rounds = round_down(g, full, (int)w);
    fold_rounds(g, s, rounds, w, full_chunk_at);
    if (g->c->npre || size % w >= g->c->n)
        full_chunks(g, s, rounds, end, NULL, 0);
}

/* The uniform value that an operand is, or is spread from; 0 for others, for constants and for what is
 * made in the segment. */
static uint32_t source_uniform(gen *g, uint32_t v)
{
    int64_t k;
    const ir_insn *in = ir_def(g->ir, v);
    while (in && g->p.val[v].cls != C_UNI && (in->op == IR_BROADCAST || in->op == IR_RESHAPE)) {
        v = ir_args(g->ir, in)[0];
        in = ir_def(g->ir, v);
    }
    return g->p.val[v].cls == C_UNI && seg_available(g, v) && !ir_const_of(g->ir, v, &k) ? v : 0;
}

/* Broadcasts uniform operands to vectors before the loops over chunks: no pass of LLVM that runs here would
 * move the broadcasts out of the loops. */
static void spread_uniforms(gen *g, const segment *s)
{
    for (uint32_t i = 0; i < s->items.len; i++) {
        const ir_insn *in = s->items.at[i].insn == UINT32_MAX ? NULL : &g->ir->insns[s->items.at[i].insn];
        if (!in || !(ir_rows[in->op].flags & IR_PURE) || is_move(in) || !in->res ||
            g->p.val[in->res].cls != C_BLOCK)
            continue;
        for (int k = 0; k < in->nargs; k++) {
            const uint32_t v = source_uniform(g, ir_args(g->ir, in)[k]);
            if (v && !chunk_find(g->c, v, 0))
                chunk_remember(g, g->c, v, 0, splat(g, g->sval[v], g->c->n), NULL);
        }
    }
}

/* the innermost dim, at the outer indices that stand in c->idx */
static void emit_inner(gen *g, segment *s)
{
    chunk *c = g->c;
    const int d = s->sh.rank - 1;
    const int64_t size = s->sh.dim[d];
    const uint32_t mark = c->log.len;
    const bool small = body_size(g, s) <= SMALL_BODY;
    c->idx[d] = k_int(g, 0);
    c->npre = 0;
    c->pre = NULL;
    offset_lines(g, s);
    V limit = affine_prefixes(g, s), full = k_int(g, size);
    output_choose(g, s);
    V head = NULL, stream = NULL, lead = NULL;
    if (g->x86 && small && !s->at_once && s->items.len <= STREAM_BODY)
        stream = can_stream(g, s, can_shift(g, s) ? &head : NULL);
    for (int i = 0; i < c->npre; i++)
        full = lesser(g, full, c->pre[i].count);
    for (int i = 0; i < c->npre; i++)
        if (c->pre[i].first)
            lead = lead ? greater(g, lead, c->pre[i].first) : c->pre[i].first;
    chunk_forget(g->c, mark);
    spread_uniforms(g, s);
    V end = limit ? limit : k_int(g, size), from = round_down(g, full, c->n);
    if (stream && head) {
        shifted_chunks(g, s, full, end, stream, head, lead);
    } else if (lead && small && size >= c->n) {
        three_parts(g, s, behind(g, k_int(g, 0), lead), full, end, stream,
                    s->sh.rank > 1 ? STREAM_WHOLE : STREAM_PIECES);
    } else {
        if (size < c->n || (!small && c->npre))
            from = k_int(g, 0);
        else
            full_range(g, s, full, from, stream);
        if (c->npre || size % c->n)
            run_chunks(g, s, from, end, size % c->n ? k_int(g, size) : NULL, false, 0);
    }
    chunk_forget(g->c, mark);
}

static void emit_outer(gen *g, segment *s, int d)
{
    if (d == s->sh.rank - 1) {
        emit_inner(g, s);
        fold_finish(g, s);
        return;
    }
    loop l = loop_open(g, k_int(g, 0), k_int(g, s->sh.dim[d]), 1);
    g->c->idx[d] = l.iv;
    emit_outer(g, s, d + 1);
    loop_close(g, &l);
}

static void emit_simdgroups(gen *g, segment *s)
{
    loop l = loop_open(g, k_int(g, 0), k_int(g, g->p.info.block), IR_SIMD);
    g->c->idx[0] = l.iv;
    chunk_emit(g, s);
    loop_close(g, &l);
}

static void reload_uniform(gen *g, const segment *s)
{
    for (uint32_t v = 1; v < g->ir->nvals; v++) {
        if (g->p.made[v].seg == s->id && g->p.val[v].cls == C_UNI && plan_in_memory(&g->p, v))
            g->sval[v] = mem_load_scalar(g, mem_slot(g, g->p.at[v].slot),
                                         (eas_dtype)ir_typeof(g->ir, v).dtype, k_int(g, 0));
    }
}

void seg_emit(gen *g, segment *s)
{
    if (s->kind == SEG_WHOLE) {
        g->seg = s;
        next_values(g, s);
        whole_insn(g, s);
        g->seg = NULL;
        return;
    }
    const bool mma = s->kind == SEG_SIMDGROUPS;
    chunk c = {.sval = g->sval, .sh = s->sh, .n = 8};
    if (!mma)
        pick_lanes(g, s, &c);
    c.align = mma ? IR_SIMD : (uint32_t)c.n;
    c.cache = arena_alloc(&g->mem, sizeof *c.cache * (g->ir->nvals + 1));
    if (!c.cache) {
        gen_fail(g, EAS_ERR_MEMORY, "out of memory");
        return;
    }
    g->c = &c;
    g->seg = s;
    next_values(g, s);
    if (mma)
        emit_simdgroups(g, s);
    else
        emit_outer(g, s, 0);
    vec_free(&c.log);
    vec_free(&c.lines);
    g->c = NULL;
    g->seg = NULL;
    reload_uniform(g, s);
}
