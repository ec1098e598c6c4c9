/* lower_map.c: groups that are element-wise around reductions.
 *
 * Each dim of the merged space has a role: one index a program, a block of lanes, or a loop. The last dim in
 * memory is always lanes. Rows that fit are whole blocks: what is computed before a reduction is there for
 * what follows it. Longer ones are loops of blocks, once for each reduction and once for the results; columns
 * are loops over rows with a block of columns. Where rows share a factor, a program computes several of them
 * at a time and reads the factor once.
 */
#include "exec.h"

enum { ROLE_PROGRAM, ROLE_BLOCK, ROLE_WHOLE, ROLE_LOOP, ROLE_SEVERAL };
enum { ROW = 65536, CHUNK = 1024, COLUMN = 32768, LONG = 1 << 20, SEVERAL = 4 };
/* Lanes of a program; the tile of a tensor that is read across its rows. The first is usually best. */
static const struct {
    int64_t lanes, along, across;
} sizes[VARIANTS] = {{2048, 64, 64}, {4096, 128, 32}, {1024, 32, 32}, {8192, 256, 64}};

/* ---- roles ---- */

static eas_dim inner_count(const lower *l)
{
    eas_dim n = 1;
    for (int m = 0; m < l->nm; m++)
        if (l->minner[m])
            eas_dim_apply(EAS_DIM_MUL, n, l->msize[m], &n);
    return n;
}

static int inner_dims(const lower *l)
{
    int n = 0;
    for (int m = 0; m < l->nm; m++)
        n += l->minner[m];
    return n;
}

/* Whole if it fits, else a block of at most n lanes. */
static void lanes_of(lowering *w, int m, int64_t n)
{
    eas_dim size = w->l.msize[m];
    bool whole = size > 0 && size <= n; /* a dim of size 0 has an empty grid, and no block */
    w->role[m] = whole ? ROLE_WHOLE : ROLE_BLOCK;
    w->block[m] = whole ? size : n;
}

/* The dim along which some tensor has neighbours in memory, other than the last. */
static int turned_dim(const lowering *w)
{
    const lower *l = &w->l;
    for (uint32_t i = 0; i < w->c->accesses.len; i++)
        for (int m = 0; m + 1 < l->nm; m++)
            if (w->c->accesses.at[i].stride[l->mlast[m]] == 1 && dim_known(l->msize[m]) && l->msize[m] >= 8)
                return m;
    return -1;
}

/* At most n of a dim of that size for each program: as many as divide it where that is not much less, since
 * then no lane needs a mask. */
static int64_t even_share(eas_dim size, int64_t n)
{
    for (int64_t d = n; dim_known(size) && size > n && 2 * d > n; d--)
        if (size % d == 0)
            return d;
    return n;
}

/* Dims from the last on as lanes, until there are enough. */
static void pack_lanes(lowering *w, int from, int64_t want)
{
    lower *l = &w->l;
    int used = 0;
    for (int m = 0; m < l->nm; m++)
        used += w->role[m] == ROLE_WHOLE || w->role[m] == ROLE_BLOCK;
    for (int m = from; m >= 0 && want > 1 && used < MAX_BLOCK; m--) {
        if (w->role[m] != ROLE_PROGRAM || l->minner[m])
            continue;
        lanes_of(w, m, even_share(l->msize[m], want));
        used++;
        if (w->role[m] == ROLE_BLOCK)
            return;
        want /= w->block[m] ? w->block[m] : 1;
    }
}

/* Lanes of a program that goes through memory: of narrow elements more, so that it has as many bytes. */
static int64_t program_lanes(const lowering *w)
{
    size_t widest = 1;
    for (uint32_t i = 0; i < w->use->params.len; i++) {
        const size_t n = eas_dtype_size((eas_dtype)w->use->params.at[i].dtype);
        if (w->use->params.at[i].what == USE_NODE && n > widest)
            widest = n;
    }
    return sizes[w->l.f->variant].lanes * (widest == 1 ? 4 : widest == 2 ? 2 : 1);
}

static void elementwise_roles(lowering *w)
{
    lower *l = &w->l;
    const int64_t lanes = program_lanes(w);
    int v = l->nm - 1, u = turned_dim(w);
    if (v < 0)
        return;
    if (u >= 0) {
        lanes_of(w, v, sizes[l->f->variant].along);
        lanes_of(w, u, sizes[l->f->variant].across);
        return;
    }
    if (l->nm == 1 && !w->c->general && dim_known(l->msize[v])) { /* flat: any length */
        w->role[v] = ROLE_BLOCK;
        /* larger blocks have fewer prologues; there are still enough of them for all threads */
        w->block[v] = l->msize[v] >= LONG ? 4 * lanes : lanes;
        return;
    }
    lanes_of(w, v, dim_known(l->msize[v]) && l->msize[v] <= 2 * lanes ? 2 * lanes : lanes);
    if (w->role[v] == ROLE_WHOLE && !(w->c->indexed && w->block[v] >= 64))
        pack_lanes(w, v - 1, lanes / (w->block[v] ? w->block[v] : 1));
}

/* Lanes of a loop's round: a divisor of the row in whole vectors, if there is one near CHUNK, so that no
 * round needs a mask. */
static int64_t even_chunk(eas_dim size)
{
    enum { VECTORS = 64 };
    for (int64_t n = 2 * CHUNK; dim_known(size) && size >= CHUNK && 2 * n >= CHUNK; n -= VECTORS)
        if (size % n == 0)
            return n;
    return CHUNK;
}

static void loop_roles(lowering *w, bool last_is_lanes)
{
    lower *l = &w->l;
    int last = -1;
    for (int m = 0; m < l->nm; m++)
        if (l->minner[m]) {
            w->role[m] = ROLE_LOOP;
            w->block[m] = 1;
            last = m;
        }
    if (last_is_lanes && last >= 0)
        w->block[last] = even_chunk(l->msize[last]);
}

/* Must a row be one block? It must if results or later reductions read it again. */
static bool looks_again(const lowering *w)
{
    const group *g = w->l.grp;
    int8_t map[MAX_DIMS];
    if (g->folds.len > 1)
        return true;
    for (uint32_t i = 0; i < g->roots.len; i++) {
        const pnode *p = pass_at(w->l.g, g->roots.at[i].value);
        root_map(w->l.f, g, &g->roots.at[i], map);
        for (int k = 0; k < p->rank; k++)
            if (map[k] >= 0 && p->shape[k] != 1 && (g->inner >> map[k] & 1))
                return true;
    }
    return false;
}

static bool shared_along(const lowering *w, int m)
{
    const lower *l = &w->l;
    const int v = l->mlast[l->nm - 1];
    for (uint32_t i = 0; i < w->c->accesses.len; i++)
        if (w->c->accesses.at[i].stride[l->mlast[m]] == 0 && w->c->accesses.at[i].stride[v] == 1)
            return true;
    return false;
}

/* Rows that are multiplied with one vector, or with a few of them: a program that does several at a time
 * reads each once. Which dim has the rows, and which the vectors (-1: there is one). */
static bool rows_share(const lowering *w, int *rows, int *few)
{
    const lower *l = &w->l;
    *rows = l->nm - 2;
    *few = -1;
    if (*rows < 0 || inner_dims(l) != 1 || w->c->general || looks_again(w))
        return false;
    for (int m = 0; m + 1 < l->nm; m++)
        if (!dim_known(l->msize[m]))
            return false;
    if (*rows > 0 && shared_along(w, *rows) && shared_along(w, *rows - 1)) {
        *few = l->msize[*rows] < l->msize[*rows - 1] ? *rows : *rows - 1;
        *rows = 2 * l->nm - 5 - *few;
    }
    return l->msize[*rows] >= 16 * SEVERAL && shared_along(w, *rows) && (*few < 0 || l->msize[*few] > 0);
}

/* How many are done at a time: SEVERAL in all, so that their sums stay in registers. */
static void several_of(lowering *w, int rows, int few)
{
    const eas_dim *size = w->l.msize;
    const int64_t vectors = few < 0 ? 1 : size[few] < SEVERAL ? size[few] : SEVERAL;
    w->role[rows] = ROLE_SEVERAL;
    w->several[rows] = (uint8_t)(SEVERAL / vectors);
    if (few < 0)
        return;
    w->role[few] = ROLE_SEVERAL;
    w->several[few] = (uint8_t)vectors;
}

static void inner_roles(lowering *w)
{
    lower *l = &w->l;
    int v = l->nm - 1;
    eas_dim n = inner_count(l);
    int64_t most = dim_most(n); /* of a size that varies, lanes after the last element are masked */
    bool rows = l->minner[v], fits = most != DIM_ANY && most > 0 && inner_dims(l) < MAX_BLOCK;
    int many, few;
    const bool share = rows && most >= 256 && rows_share(w, &many, &few);
    int64_t room = rows ? (looks_again(w) ? ROW : share ? 16 * CHUNK : 4 * CHUNK) : COLUMN / 16;
    if (fits && most <= room && (rows || looks_again(w))) {
        for (int m = 0; m < l->nm; m++)
            if (l->minner[m]) {
                w->role[m] = ROLE_WHOLE;
                w->block[m] = dim_most(l->msize[m]);
            }
        if (!rows)
            lanes_of(w, v, COLUMN / most > 256 ? 256 : COLUMN / most);
        else if (share && l->f->tile[0].rows) /* without register tiles it would be an array in each thread */
            several_of(w, many, few);
        else if (most < 256)
            pack_lanes(w, v - 1, sizes[l->f->variant].lanes / most);
        return;
    }
    loop_roles(w, rows);
    if (!rows)
        lanes_of(w, v, CHUNK);
    else if (dim_most(l->msize[v]) < CHUNK)
        w->block[v] = dim_most(l->msize[v]) ? dim_most(l->msize[v]) : 1;
}

static void choose_roles(lowering *w)
{
    lower *l = &w->l;
    for (int m = 0; m < l->nm; m++) {
        w->role[m] = ROLE_PROGRAM;
        w->block[m] = 1;
        w->axis[m] = -1;
    }
    if (inner_dims(l))
        inner_roles(w);
    else
        elementwise_roles(w);
    l->nblock = 0;
    for (int m = 0; m < l->nm; m++)
        if (w->role[m] == ROLE_WHOLE || w->role[m] == ROLE_BLOCK ||
            (w->role[m] == ROLE_LOOP && w->block[m] > 1))
            w->axis[m] = (int8_t)l->nblock++;
}

/* ---- indices ---- */

/* Length of a merged dim as code: of a flat kernel it is a parameter. */
static eas_value length(lowering *w, int m)
{
    lower *l = &w->l;
    if (l->ndims && l->dims[l->ndims - 1].d == l->msize[m])
        return l->dims[l->ndims - 1].v;
    return low_dim(l, l->msize[m]);
}

static void set_block(lowering *w, int m, eas_value first)
{
    lower *l = &w->l;
    int64_t n = w->block[m];
    eas_value v = w->axis[m] < 0 ? 0 : low_lanes(l, w->axis[m], n);
    v = !v ? first : first ? low_bin(l, "add", first, v) : v;
    bool exact = (w->role[m] == ROLE_WHOLE && dim_known(l->msize[m])) ||
                 (n == 1 && w->role[m] != ROLE_WHOLE) ||
                 (dim_known(l->msize[m]) && l->msize[m] % n == 0 && !(l->nm == 1 && !l->minner[0]));
    l->at[m] = (lindex){v, exact ? 0 : low_bin(l, "lt", v, length(w, m))};
}

/* The first of the block or of the several that a program does. */
static eas_value first_of(lowering *w, int m, eas_value pid)
{
    lower *l = &w->l;
    const int64_t n = w->role[m] == ROLE_SEVERAL ? w->several[m] : w->block[m];
    eas_value first = n == 1 ? pid : low_bin(l, "mul", pid, low_int(l, n));
    if (w->role[m] == ROLE_SEVERAL &&
        /* the last ones begin early enough for all to be there: some are computed twice, to the same bits */
        l->msize[m] % n)
        first = low_bin(l, "min", first, low_int(l, l->msize[m] - n));
    return first;
}

typedef struct programs {
    int axis;
    eas_value rest;
} programs;

static void program_index(lowering *w, int m, programs *p)
{
    lower *l = &w->l;
    eas_dim *grid = w->use->grid;
    eas_dim count = ceil_dim(l->msize[m], w->role[m] == ROLE_SEVERAL ? w->several[m] : w->block[m]);
    eas_value pid;
    if (p->axis < 2) {
        pid = eas_builder_program_id(l->b, p->axis);
        grid[p->axis++] = count;
    } else {
        p->rest = p->rest ? p->rest : eas_builder_program_id(l->b, 2);
        pid = low_bin(l, "mod", p->rest, low_dim(l, count));
        p->rest = low_bin(l, "floordiv", p->rest, low_dim(l, count));
        eas_dim_apply(EAS_DIM_MUL, grid[2], count, &grid[2]);
    }
    set_block(w, m, first_of(w, m, pid));
}

/* The dim of the vectors that share rows, if a program does only some of them. It becomes the fastest axis of
 * the grid, so that programs that follow each other read the same rows. -1: there is none. */
static int vectors_dim(const lowering *w)
{
    int few = -1;
    for (int m = 0; m < w->l.nm; m++)
        if (w->role[m] == ROLE_SEVERAL && (few < 0 || w->l.msize[m] < w->l.msize[few]))
            few = m;
    return few >= 0 && w->l.msize[few] > w->several[few] ? few : -1;
}

/* Programs: axis 0 for the last dim, 1 for the one before, 2 for all others. */
static void program_indices(lowering *w)
{
    lower *l = &w->l;
    programs p = {0};
    const int few = vectors_dim(w);
    w->use->grid[0] = w->use->grid[1] = w->use->grid[2] = 1;
    if (few >= 0)
        program_index(w, few, &p);
    for (int m = l->nm - 1; m >= 0; m--) {
        if (w->role[m] == ROLE_LOOP || m == few)
            continue;
        if (w->role[m] == ROLE_WHOLE || (w->role[m] == ROLE_SEVERAL && l->msize[m] == w->several[m]))
            set_block(w, m, 0);
        else
            program_index(w, m, &p);
    }
}

/* ---- reductions ---- */

typedef struct fold_state {
    uint32_t id;
    const pnode *p;
    eas_dtype sum; /* that it is joined in */
    int8_t map[MAX_DIMS]; /* of the input */
} fold_state;

static bool half(eas_dtype dt) { return dt == EAS_F16 || dt == EAS_BF16; }

static fold_state fold_of(lowering *w, uint32_t id)
{
    const pnode *p = pass_at(w->l.g, id);
    fold_state f = {.id = id, .p = p};
    eas_dtype dt = (eas_dtype)(p->kind == KIND_ARG ? pass_at(w->l.g, p->in[0])->dtype : p->dtype);
    f.sum = half(dt) ? EAS_F32 : dt;
    fold_input_map(w->l.f, id, f.map);
    return f;
}

static bool wants_max(const pnode *p) { return !strcmp(graph_rows[p->op].ir, "max"); }
static const char *join_of(const pnode *p) { return graph_rows[p->op].ir; }

/* The shape of a block with the inner axes as they are (or 1) and the others as v has them. */
static void block_shape(lowering *w, eas_value v, bool inner, int64_t shape[4])
{
    lower *l = &w->l;
    int64_t have[4];
    int rank = eas_value_shape(l->b, v, have);
    for (int a = 0; a < l->nblock; a++)
        shape[a] = rank == l->nblock ? have[a] : 1;
    for (int m = 0; m < l->nm; m++)
        if (w->axis[m] >= 0 && l->minner[m])
            shape[w->axis[m]] = inner ? w->block[m] : 1;
}

/* The operand of a reduction as a block with all inner lanes; lanes without an element hold the identity
 * element. */
static eas_value fold_input(lowering *w, const fold_state *f)
{
    lower *l = &w->l;
    int64_t shape[4];
    eas_value v = low_value(l, f->p->in[0], NULL, f->map), ok = 0;
    v = eas_builder_cast(l->b, v, f->sum);
    block_shape(w, v, true, shape);
    if (l->nblock)
        v = eas_builder_broadcast(l->b, v, l->nblock, shape);
    for (int m = 0; m < l->nm; m++)
        if (l->minner[m])
            ok = low_and(l, ok, l->at[m].ok);
    return ok ? eas_builder_apply(l->b, eas_op_find("where"), ok, v, low_neutral(l, join_of(f->p), f->sum))
              : v;
}

/* Along the inner block axes, which stay with size 1. */
static eas_value fold_lanes(lowering *w, const fold_state *f, eas_value v)
{
    lower *l = &w->l;
    int64_t shape[4];
    block_shape(w, v, false, shape);
    bool any = false;
    for (int m = l->nm - 1; m >= 0; m--)
        if (l->minner[m] && w->axis[m] >= 0) {
            v = eas_builder_reduce(l->b, eas_op_find(join_of(f->p)), v, w->axis[m]);
            any = true;
        }
    return any ? eas_builder_reshape(l->b, v, l->nblock, shape) : v;
}

static int arg_dim(const lower *l)
{
    int m = 0;
    while (!l->minner[m])
        m++;
    return m;
}

/* Which index of the axis has the best value of a block. */
static eas_value arg_where(lowering *w, const fold_state *f, eas_value v)
{
    lower *l = &w->l;
    const int m = arg_dim(l);
    int64_t shape[4];
    if (w->axis[m] < 0)
        return l->at[m].v;
    block_shape(w, v, false, shape);
    eas_value i = eas_builder_reshape(l->b, eas_builder_arg_reduce(l->b, wants_max(f->p), v, w->axis[m]),
                                      l->nblock, shape);
    return w->role[m] == ROLE_LOOP ? low_bin(l, "add", i, l->at[m].v ? w->first : 0) : i;
}

static eas_value finished(lowering *w, const fold_state *f, eas_value v)
{
    return f->p->kind == KIND_ARG ? v : eas_builder_cast(w->l.b, v, (eas_dtype)f->p->dtype);
}

/* Everything is there: no loop. */
static void fold_whole(lowering *w, const fold_state *f)
{
    eas_value v = fold_input(w, f);
    w->l.fold[f->id] = f->p->kind == KIND_ARG ? arg_where(w, f, v) : finished(w, f, fold_lanes(w, f, v));
}

/* ---- loops ---- */

enum { MAX_FOLDS = 8 };
typedef struct batch {
    fold_state f[MAX_FOLDS];
    int n;
    bool roots; /* the body stores results */
} batch;

static int carried_count(const batch *b)
{
    int n = 0;
    for (int i = 0; i < b->n; i++)
        n += b->f[i].p->kind == KIND_ARG ? 2 : 1;
    return n;
}

/* All values are computed before any is stored: the first result may take the memory of an input that the
 * others read. */
static void store_roots(lowering *w, bool late)
{
    lower *l = &w->l;
    int8_t map[MAX_DIMS];
    for (uint32_t i = 0; i < l->grp->roots.len; i++)
        if (w->late[i] == late) {
            root_map(l->f, l->grp, &l->grp->roots.at[i], map);
            low_value(l, l->grp->roots.at[i].value, NULL, map);
        }
    for (uint32_t i = 0; i < l->grp->roots.len; i++)
        if (w->late[i] == late)
            low_store(w, i);
}

/* Is best better than had? A NaN is, unless there was one. */
static eas_value arg_better(lower *l, const fold_state *f, eas_value best, eas_value had)
{
    eas_value better = low_bin(l, wants_max(f->p) ? "gt" : "lt", best, had);
    if (!dtype_is_float(f->sum))
        return better;
    eas_value nan = eas_builder_apply(l->b, eas_op_find("isnan"), best, 0, 0),
              was = eas_builder_apply(l->b, eas_op_find("isnan"), had, 0, 0);
    return low_bin(l, "or", better, low_and(l, nan, eas_builder_apply(l->b, eas_op_find("not"), was, 0, 0)));
}

/* The best value so far and where it is, after one more block. Of a single row the block is searched only if
 * it has something better, which is rare. */
static void arg_round(lowering *w, const fold_state *f, eas_value v, const eas_value now[2],
                      eas_value next[2])
{
    lower *l = &w->l;
    int64_t shape[4], lanes = 1;
    eas_value best = w->axis[arg_dim(l)] < 0 ? v : fold_lanes(w, f, v),
              better = arg_better(l, f, best, now[0]);
    for (int a = eas_value_shape(l->b, better, shape) - 1; a >= 0; a--)
        lanes *= shape[a];
    next[0] = eas_builder_apply(l->b, eas_op_find("where"), better, best, now[0]);
    if (lanes > 1 || w->axis[arg_dim(l)] < 0) {
        next[1] = eas_builder_apply(l->b, eas_op_find("where"), better, arg_where(w, f, v), now[1]);
        return;
    }
    const uint32_t mark = low_mark(l);
    eas_builder_if_begin(l->b, eas_builder_reshape(l->b, better, 0, NULL));
    eas_value where = arg_where(w, f, v);
    eas_builder_if_else(l->b, 1, &where);
    eas_builder_if_end(l->b, 1, &now[1], &next[1]);
    low_forget(l, mark);
}

static void body(lowering *w, const batch *b, const eas_value *now, eas_value *next)
{
    lower *l = &w->l;
    int c = 0;
    for (int i = 0; i < b->n; i++) {
        const fold_state *f = &b->f[i];
        eas_value v = fold_input(w, f);
        if (f->p->kind != KIND_ARG) {
            next[c] = low_bin(l, join_of(f->p), now[c], v);
            c++;
            continue;
        }
        arg_round(w, f, v, &now[c], &next[c]);
        c += 2;
    }
    if (b->roots)
        store_roots(w, true);
}

/* One loop for each inner dim that is one, the last inside. */
static void loops(lowering *w, const batch *b, int m, const eas_value *now, eas_value *next)
{
    lower *l = &w->l;
    while (m < l->nm && w->role[m] != ROLE_LOOP)
        m++;
    if (m == l->nm) {
        body(w, b, now, next);
        return;
    }
    eas_value iv, inside[2 * MAX_FOLDS], out[2 * MAX_FOLDS];
    int n = carried_count(b);
    uint32_t mark = low_mark(l);
    eas_builder_loop_begin(l->b, low_int(l, 0), length(w, m), low_int(l, w->block[m]), n, now, &iv, inside);
    w->first = iv;
    set_block(w, m, iv);
    loops(w, b, m + 1, inside, out);
    eas_builder_loop_end(l->b, n, out, next);
    low_forget(l, mark);
    l->at[m] = (lindex){0, 0};
}

static void initial(lowering *w, const batch *b, eas_value *now)
{
    lower *l = &w->l;
    int c = 0;
    for (int i = 0; i < b->n; i++) {
        const fold_state *f = &b->f[i];
        int64_t shape[4] = {1, 1, 1, 1};
        bool arg = f->p->kind == KIND_ARG;
        for (int m = 0; m < l->nm; m++)
            if (w->axis[m] >= 0 && (l->minner[m] ? !arg : w->role[m] != ROLE_LOOP))
                shape[w->axis[m]] =
                    l->minner[m] || fold_varies(l->g, l->f, f->id, l->mlast[m]) ? w->block[m] : 1;
        eas_value v = low_neutral(l, join_of(f->p), f->sum), zero = low_int(l, 0);
        now[c++] = l->nblock ? eas_builder_broadcast(l->b, v, l->nblock, shape) : v;
        if (arg)
            now[c++] = l->nblock ? eas_builder_broadcast(l->b, zero, l->nblock, shape) : zero;
    }
}

static void run_batch(lowering *w, const batch *b)
{
    eas_value now[2 * MAX_FOLDS], next[2 * MAX_FOLDS];
    int c = 0;
    initial(w, b, now);
    loops(w, b, 0, now, next);
    for (int i = 0; i < b->n; i++) {
        const fold_state *f = &b->f[i];
        if (f->p->kind == KIND_ARG) {
            w->l.fold[f->id] = next[c + 1];
            c += 2;
        } else {
            w->l.fold[f->id] = finished(w, f, fold_lanes(w, f, next[c++]));
        }
    }
}

/* ---- the kernel ---- */

/* Does node need a reduction of the batch? Each node is looked at once. */
static bool depends(const lowering *w, uint32_t node, const batch *b)
{
    scratch *t = w->l.f->scratch;
    const pnode *p = pass_at(w->l.g, node);
    for (int i = 0; i < b->n; i++)
        if (b->f[i].id == node)
            return true;
    if (t->stamp[node] == t->now || w->l.fold[node] || w->l.param[node])
        return false;
    t->stamp[node] = t->now;
    for (int k = 0; k < p->nin; k++)
        if (depends(w, p->in[k], b))
            return true;
    return false;
}

static bool has_loops(const lowering *w)
{
    for (int m = 0; m < w->l.nm; m++)
        if (w->role[m] == ROLE_LOOP)
            return true;
    return false;
}

static void all_folds(lowering *w)
{
    const group *g = w->l.grp;
    bool looping = has_loops(w);
    batch b = {.n = 0};
    for (uint32_t i = 0; i < g->folds.len; i++) {
        fold_state f = fold_of(w, g->folds.at[i]);
        if (!looping) {
            fold_whole(w, &f);
            continue;
        }
        w->l.f->scratch->now++;
        if (b.n == MAX_FOLDS || (b.n && depends(w, f.p->in[0], &b))) {
            run_batch(w, &b);
            b.n = 0;
        }
        b.f[b.n++] = f;
    }
    if (b.n)
        run_batch(w, &b);
}

static bool sees_loop(const lowering *w, uint32_t i)
{
    const lower *l = &w->l;
    const pnode *p = pass_at(l->g, l->grp->roots.at[i].value);
    int8_t map[MAX_DIMS];
    root_map(l->f, l->grp, &l->grp->roots.at[i], map);
    for (int k = 0; k < p->rank; k++)
        if (map[k] >= 0 && p->shape[k] != 1 && w->role[l->mdim[map[k]]] == ROLE_LOOP)
            return true;
    return false;
}

static eas_value further(lower *l, eas_value first, int i)
{
    return !i ? first : first ? low_bin(l, "add", first, low_int(l, i)) : low_int(l, i);
}

/* The i-th of what a program does several of. */
static void stand_at(lowering *w, int i, const eas_value *first)
{
    for (int m = 0; m < w->l.nm; m++)
        if (w->role[m] == ROLE_SEVERAL) {
            w->l.at[m].v = further(&w->l, first[m], i % w->several[m]);
            i /= w->several[m];
        }
}

/* All sums are computed before the first store, so that no load must wait for a store. */
static void several_rows(lowering *w)
{
    lower *l = &w->l;
    const uint32_t fold = l->grp->folds.at[0], mark = low_mark(l);
    eas_value first[MAX_DIMS], sum[SEVERAL];
    int n = 1;
    for (int m = 0; m < l->nm; m++) {
        first[m] = l->at[m].v;
        n *= w->role[m] == ROLE_SEVERAL ? w->several[m] : 1;
    }
    for (int i = 0; i < n; i++) {
        stand_at(w, i, first);
        all_folds(w);
        sum[i] = l->fold[fold];
        low_forget(l, mark);
        l->fold[fold] = 0;
    }
    for (int i = 0; i < n; i++) {
        stand_at(w, i, first);
        l->fold[fold] = sum[i];
        store_roots(w, false);
        low_forget(l, mark);
    }
}

/* ---- random numbers ----
 *
 * A counter of Philox has four numbers (two of 64 bits), which are those of elements DRAW_LANES apart. A
 * kernel that is flat makes them all at once: lanes are counters, in rows of DRAW_LANES, and what is stored
 * is computed four times, once for each stretch of DRAW_LANES elements. Others choose lane by lane (index.c).
 */
enum { DRAWN = 4 * DRAW_LANES };

static bool draws_flat(const lowering *w)
{
    const lower *l = &w->l;
    bool flat = w->c->draws.len && l->nm == 1 && !l->minner[0] && !w->c->general && dim_known(l->msize[0]) &&
                l->msize[0] >= DRAWN;
    for (uint32_t i = 0; flat && i < w->c->draws.len; i++)
        flat = w->c->draws.at[i].stride[l->mlast[0]] == 1;
    return flat;
}

static void stand_at_turn(lowering *w, int turn)
{
    lower *l = &w->l;
    eas_value first = low_bin(l, "mul", l->draw.unit, low_int(l, DRAWN));
    first = low_bin(l, "add", first, low_int(l, turn * DRAW_LANES));
    eas_value v = low_bin(l, "add", first, l->draw.lane);
    l->at[0] = (lindex){v, low_bin(l, "lt", v, length(w, 0))};
    l->draw.turn = turn;
}

/* All values first: a store in between would hide that the turns share their keys and counters. */
static void lower_draws(lowering *w)
{
    lower *l = &w->l;
    const int64_t most = sizes[l->f->variant].lanes / DRAWN, all = ceil_dim(l->msize[0], DRAWN),
                  rows = all < most ? all : most;
    const uint32_t mark = low_mark(l), n = l->grp->roots.len;
    const group_root *roots = l->grp->roots.at;
    eas_value *v = arena_alloc(l->mem, 4 * n * sizeof *v);
    int8_t map[MAX_DIMS];
    if (!v)
        return;
    l->nblock = 2;
    w->use->grid[0] = ceil_dim(all, rows);
    w->use->grid[1] = w->use->grid[2] = 1;
    eas_value pid = eas_builder_program_id(l->b, 0);
    l->draw.unit = low_bin(l, "add", low_bin(l, "mul", pid, low_int(l, rows)), low_lanes(l, 0, rows));
    l->draw.lane = low_lanes(l, 1, DRAW_LANES);
    for (int turn = 0; turn < 4; turn++) {
        stand_at_turn(w, turn);
        for (uint32_t i = 0; i < n; i++) {
            root_map(l->f, l->grp, &roots[i], map);
            v[4 * i + (uint32_t)turn] = low_value(l, roots[i].value, NULL, map);
        }
        low_forget(l, mark);
    }
    for (int turn = 0; turn < 4; turn++) {
        stand_at_turn(w, turn);
        for (uint32_t i = 0; i < n; i++) {
            l->fold[roots[i].value] = v[4 * i + (uint32_t)turn];
            low_store(w, i);
            l->fold[roots[i].value] = 0;
        }
    }
}

void lower_map(lowering *w)
{
    lower *l = &w->l;
    bool any = false;
    if (draws_flat(w)) {
        lower_draws(w);
        return;
    }
    choose_roles(w);
    program_indices(w);
    w->late = arena_alloc(l->mem, l->grp->roots.len + 1);
    for (int m = 0; m < l->nm && w->late; m++)
        if (w->role[m] == ROLE_SEVERAL) {
            several_rows(w);
            return;
        }
    all_folds(w);
    for (uint32_t i = 0; i < l->grp->roots.len && w->late; i++) {
        w->late[i] = sees_loop(w, i);
        any |= w->late[i];
    }
    if (w->late)
        store_roots(w, false);
    if (any) {
        batch b = {.roots = true};
        loops(w, &b, 0, NULL, NULL);
    }
}
