/* live.c: a builder whose instructions run as they are appended.
 *
 * Each instruction goes through the interpreter's own step, so a value built live has the bits that the
 * interpreter gives. Only the result of a finished instruction is kept: the instruction that makes value v is
 * at insns[v] (one without a result at insns[0]), and its operands are dropped once it ran. The id and the
 * slots of a value are used again when the value is neither kept nor young; a value is young from the moment
 * when it is made, or when its last keeper releases it, to the next sweep.
 *
 * Loops and branches are the caller's own; it tells which threads go on, and the live builder keeps the mask.
 *
 * How many threads a group has is known from the first tid on. Values made before are the same for all
 * threads, and are spread then.
 */
#include "interp.h"

#include <stdio.h>

typedef struct region {
    uint8_t *saved;              /* active threads around it */
    int64_t *iv, *hi, *step;     /* of a loop, per thread; else NULL */
    eas_dtype dt;
} region;

struct ir_live {
    run r;
    ir_call call;
    ir_live_host host;
    uint32_t cap;                /* of the arrays per value */
    uint32_t *holds;             /* how many keepers a value has */
    bool *young;
    VEC(uint32_t) nursery;       /* ids of young values */
    VEC(uint32_t) spare;         /* ids to use again */
    VEC(region) regions;
    bool spmd;                   /* blocks were seen */
    /* an operation was recorded before the number of threads was known, which each thread of a group would
     * have done */
    bool early;
    bool grid_known;
    int naxes;
};

/* ---- storage ---- */

static bool grow(void *arrays, uint32_t *cap, uint32_t need, size_t size)
{
    return vec_grow(arrays, cap, need, size);
}

/* Room for values below n in everything that is indexed by value. */
static bool make_room(ir_live *l, uint32_t n)
{
    uint32_t old = l->cap, cap[5] = {old, old, old, old, old};
    if (n <= old)
        return true;
    if (!grow(&l->r.val, &cap[0], n, sizeof *l->r.val) || !grow(&l->r.frag, &cap[1], n, sizeof *l->r.frag) ||
        !grow(&l->r.tg, &cap[2], n, sizeof *l->r.tg) || !grow(&l->holds, &cap[3], n, sizeof *l->holds) ||
        !grow(&l->young, &cap[4], n, sizeof *l->young))
        return false;
    l->cap = cap[0];
    for (int i = 1; i < 5; i++)
        l->cap = cap[i] < l->cap ? cap[i] : l->cap;
    for (uint32_t v = old; v < l->cap; v++) {
        l->r.val[v] = NULL;
        l->r.frag[v] = NULL;
        l->r.tg[v] = NULL;
        l->holds[v] = 0;
        l->young[v] = false;
    }
    return true;
}

static bool make_slots(ir_live *l, uint32_t v, ir_type t)
{
    size_t n = (size_t)interp_lanes(&l->r, v);
    if (t.kind == IR_VAL)
        return (l->r.val[v] = calloc(n, sizeof(int64_t))) != NULL;
    if (t.kind == IR_FRAG)
        return (l->r.frag[v] = calloc(n, sizeof(float))) != NULL;
    return (l->r.tg[v] = calloc((size_t)t.dim[0], eas_dtype_size(t.dtype))) != NULL;
}

static void drop_slots(ir_live *l, uint32_t v)
{
    free(l->r.val[v]);
    free(l->r.frag[v]);
    free(l->r.tg[v]);
    poison_drop(&l->r, v);
    l->r.val[v] = NULL;
    l->r.frag[v] = NULL;
    l->r.tg[v] = NULL;
}

static void oom(eas_builder *b) { irb_fail(b, EAS_ERR_MEMORY, "out of memory while a kernel is run"); }

static void be_young(eas_builder *b, uint32_t v)
{
    ir_live *l = b->live;
    if (l->young[v])
        return;
    l->young[v] = true;
    if (!vec_push(&l->nursery, v))
        oom(b);
}

/* A new id with its type and slots; nres > 1: the first of so many consecutive ids. 0: no memory. */
static uint32_t new_results(eas_builder *b, int nres, const ir_type *t)
{
    ir_live *l = b->live;
    uint32_t first = nres == 1 && l->spare.len ? l->spare.at[--l->spare.len] : b->ir->nvals;
    for (int k = 0; k < nres; k++) {
        uint32_t v = first + (uint32_t)k;
        if (v == b->ir->nvals && !irb_live_value(b))
            return 0;
        if (!make_room(l, b->ir->nvals))
            return oom(b), 0;
        b->ir->vals[v] = (ir_val){.type = t[k], .def = first};
        if (!make_slots(l, v, t[k]))
            return oom(b), 0;
        be_young(b, v);
    }
    return first;
}

/* ---- the number of threads ---- */

static bool spread(void *array, int64_t n, size_t size)
{
    uint8_t **at = array, *more = *at ? malloc((size_t)n * size) : NULL;
    if (!*at)
        return true;
    for (int64_t k = 0; k < n && more; k++)
        memcpy(more + (size_t)k * size, *at, size);
    free(*at);
    *at = more;
    return more != NULL;
}

static bool spread_regions(ir_live *l, int64_t n)
{
    bool ok = spread(&l->r.active, n, 1);
    for (uint32_t i = 0; i < l->regions.len && ok; i++) {
        region *g = &l->regions.at[i];
        ok =
            spread(&g->saved, n, 1) && spread(&g->iv, n, 8) && spread(&g->hi, n, 8) && spread(&g->step, n, 8);
    }
    return ok;
}

static bool set_threads(eas_builder *b, int64_t n)
{
    ir_live *l = b->live;
    bool ok = spread_regions(l, n);
    for (uint32_t v = 1; v < b->ir->nvals && l->r.poison; v++)
        if (poison_used(&l->r, v))
            return irb_stop(b, l->r.st), false;
    for (uint32_t v = 1; v < b->ir->nvals && ok; v++)
        if (b->ir->vals[v].type.kind == IR_VAL)
            ok = spread(&l->r.val[v], n, sizeof(int64_t));
    b->ir->threads = l->r.threads = n;
    l->r.groups = (n + IR_SIMD - 1) / IR_SIMD;
    if (!ok)
        oom(b);
    return ok;
}

static bool mixed(eas_builder *b, uint16_t op)
{
    irb_fail(b, EAS_ERR_TYPE,
             "%s: kernel %s mixes arange (one program, a block of lanes) with tid (a group of threads); use "
             "one of them",
             ir_rows[op].name, b->ir->name);
    return false;
}

static bool say_threads(eas_builder *b, uint16_t op, int64_t n)
{
    ir_live *l = b->live;
    if (l->spmd)
        return mixed(b, op);
    if (b->ir->threads == n)
        return true;
    if (b->ir->threads)
        irb_fail(b, EAS_ERR_TYPE, "%s: the group has %lld threads elsewhere and %lld here", ir_rows[op].name,
                 (long long)b->ir->threads, (long long)n);
    else if (n < 1 || n > IR_MAX_THREADS)
        irb_fail(b, EAS_ERR_VALUE, "kernel %s: a group of %lld threads; the limit is %d", b->ir->name,
                 (long long)n, (int)IR_MAX_THREADS);
    else if (l->early)
        irb_fail(b, EAS_ERR_VALUE,
                 "%s: to run a kernel as it is written, say how many threads there are before anything that "
                 "each of them does",
                 ir_rows[op].name);
    else
        return set_threads(b, n);
    return false;
}

static bool need_threads(eas_builder *b, uint16_t op)
{
    if (b->live->spmd)
        return mixed(b, op);
    if (!b->ir->threads)
        irb_fail(b, EAS_ERR_TYPE,
                 "%s: the kernel has not said how many threads a group has; call tid(0, BLOCK) before",
                 ir_rows[op].name);
    return b->ir->threads != 0;
}

/* A kernel has one mode, as the verifier requires. */
static bool mode_fits(eas_builder *b, uint16_t op, int64_t imm, int nres, const ir_type *t)
{
    ir_live *l = b->live;
    switch (op) {
    case IR_THREAD_ID:
    case IR_GLOBAL_ID: return say_threads(b, op, imm);
    case IR_LOCAL_ID:
    case IR_LANE_ID:
    case IR_SG_ID:
    case IR_MMA_ZERO:
    case IR_MMA:
    case IR_MMA_STORE: return need_threads(b, op);
    case IR_SIMD_SHUFFLE: return need_threads(b, op);
    default: break;
    }
    bool blocks = nres && t[0].kind == IR_VAL && t[0].rank;
    if (blocks && b->ir->threads)
        return mixed(b, op);
    l->spmd |= blocks;
    l->early |= !b->ir->threads && (ir_rows[op].flags & IR_EFFECT) && op != IR_STORE && op != IR_BARRIER &&
                op != IR_FENCE;
    return true;
}

bool live_inside(const eas_builder *b) { return b->live && b->live->regions.len; }

/* ---- running an instruction ---- */

static bool know_grid(eas_builder *b)
{
    ir_live *l = b->live;
    if (l->grid_known)
        return true;
    eas_status st = l->host.grid(l->host.ctx, b, l->naxes, l->call.grid);
    if (st)
        irb_stop(b, st);
    return l->grid_known = !st;
}

static bool ask_host(eas_builder *b, uint16_t op, int64_t imm, const uint32_t *args, int nargs)
{
    ir_live *l = b->live;
    if ((op == IR_PROGRAM_ID || op == IR_NUM_PROGRAMS) && imm + 1 > l->naxes)
        l->r.info.naxes = l->naxes = (int)imm + 1;
    if (op == IR_NUM_PROGRAMS && !know_grid(b))
        return false;
    if (!nargs || args[0] > (uint32_t)b->ir->nparams || !(ir_rows[op].flags & IR_EFFECT) || op == IR_BOUNDS ||
        op == IR_ATOMIC_LOAD || !l->host.readonly[args[0] - 1])
        return true;
    irb_fail(b, EAS_ERR_VALUE, "kernel %s, argument \"%s\": the kernel writes to it and it is read-only",
             b->ir->name, b->ir->params[args[0] - 1].name);
    return false;
}

/* Runs one instruction as it is appended: it is written into the place of its first result, where the
 * interpreter finds it as it would in a finished kernel, and emptied afterwards, since the caller may drop
 * its operands. */
uint32_t live_insn(eas_builder *b, uint16_t op, const uint32_t *args, int nargs, int64_t imm, int nres,
                   const ir_type *t)
{
    ir_live *l = b->live;
    if (ir_rows[op].flags & IR_STRUCT)
        return irb_fail(b, EAS_ERR_VALUE, "%s: a live builder takes loops and branches by eas_live_*",
                        ir_rows[op].name),
               0;
    if (ir_rows[op].flags & IR_EXPAND)
        return ir_spell(b, op, args[0], nargs > 1 ? args[1] : 0);
    if (!mode_fits(b, op, imm, nres, t) || !ask_host(b, op, imm, args, nargs))
        return 0;
    uint32_t v = nres ? new_results(b, nres, t) : 0;
    if (b->status || !irb_live_operands(b, args, nargs))
        return 0;
    ir_insn *in = &b->ir->insns[v];
    *in = (ir_insn){.op = op,
                    .nargs = (uint16_t)nargs,
                    .nres = (uint16_t)nres,
                    .file = b->file,
                    .line = b->line,
                    .res = v,
                    .imm = imm};
    if (!poison_before(&l->r, in)) {
        interp_step(&l->r, v);
        poison_after(&l->r, in);
    }
    if (nargs) { /* its operands may be dropped at any time */
        in->op = IR_NOP;
        in->nargs = 0;
    }
    if (l->r.st)
        irb_stop(b, l->r.st);
    return b->status ? 0 : v;
}

/* ---- keeping values ---- */

static bool is_live(eas_builder *b, uint32_t v)
{
    return b && b->live && b->ir && v > (uint32_t)b->ir->nparams && v < b->ir->nvals;
}

void eas_live_keep(eas_builder *b, eas_value v)
{
    if (is_live(b, v))
        b->live->holds[v]++;
}

void eas_live_drop(eas_builder *b, eas_value v)
{
    if (is_live(b, v) && b->live->holds[v] && !--b->live->holds[v])
        be_young(b, v);
}

void eas_live_sweep(eas_builder *b)
{
    NEED_(b);
    if (!b->live)
        return;
    ir_live *l = b->live;
    for (uint32_t i = 0; i < l->nursery.len; i++) {
        uint32_t v = l->nursery.at[i];
        l->young[v] = false;
        if (l->holds[v])
            continue;
        drop_slots(l, v);
        /* the id may have been used for a frag or a threadgroup array */
        b->ir->vals[v].type = ir_scalar(EAS_BOOL);
        if (!vec_push(&l->spare, v))
            oom(b);
    }
    l->nursery.len = 0;
}

int64_t eas_live_values(const eas_builder *b)
{
    NEED(b, 0);
    return b->live ? (int64_t)b->ir->nvals - 1 - b->ir->nparams - b->live->spare.len : 0;
}

/* ---- control ---- */

static bool any_active(const ir_live *l) { return memchr(l->r.active, 1, (size_t)l->r.threads) != NULL; }

static void free_region(region *g)
{
    free(g->saved);
    free(g->iv);
    free(g->hi);
    free(g->step);
}

static void *copied(const void *from, size_t n)
{
    void *p = malloc(n);
    return p ? memcpy(p, from, n) : NULL;
}

static bool open_region(eas_builder *b)
{
    ir_live *l = b->live;
    if (b->status || !l)
        return irb_fail(b, EAS_ERR_VALUE, "not a live builder"), false;
    region g = {.saved = copied(l->r.active, (size_t)l->r.threads)};
    if (g.saved && vec_push(&l->regions, g))
        return true;
    free(g.saved);
    return oom(b), false;
}

void eas_live_end(eas_builder *b)
{
    NEED_(b);
    ir_live *l = b->live;
    if (b->status || !l || !l->regions.len) {
        irb_fail(b, EAS_ERR_VALUE, "no loop or branch is open");
        return;
    }
    region *g = &l->regions.at[--l->regions.len];
    memcpy(l->r.active, g->saved, (size_t)l->r.threads);
    free_region(g);
}

static void narrow(eas_builder *b, uint32_t cond, bool want)
{
    ir_live *l = b->live;
    if (poison_used(&l->r, cond)) {
        irb_stop(b, l->r.st);
        return;
    }
    for (int64_t k = 0; k < l->r.threads; k++)
        l->r.active[k] = l->r.active[k] && (l->r.val[cond][k] != 0) == want;
}

static void branch(eas_builder *b, uint32_t cond, bool want)
{
    if (irb_condition(b, "if_", &cond) && open_region(b))
        narrow(b, cond, want);
}

void eas_live_if(eas_builder *b, eas_value cond)
{
    NEED_(b);
    branch(b, cond, true);
}
void eas_live_else(eas_builder *b, eas_value cond)
{
    NEED_(b);
    branch(b, cond, false);
}
void eas_live_while(eas_builder *b)
{
    NEED_(b);
    open_region(b);
}

int eas_live_test(eas_builder *b, eas_value cond)
{
    NEED(b, 0);
    if (!irb_condition(b, "while_", &cond) || !b->live || !b->live->regions.len)
        return 0;
    narrow(b, cond, true);
    if (b->status)
        return 0;
    if (any_active(b->live))
        return 1;
    eas_live_end(b);
    return 0;
}

/* The counter as a new value, since the caller may have kept the one of the last round. */
static eas_value counter(eas_builder *b)
{
    ir_live *l = b->live;
    region *g = &l->regions.at[l->regions.len - 1];
    ir_type t = ir_scalar(g->dt);
    uint32_t v = new_results(b, 1, &t);
    if (!v)
        return 0;
    b->ir->insns[v] = (ir_insn){.op = IR_NOP, .nres = 1, .res = v};
    memcpy(l->r.val[v], g->iv, (size_t)l->r.threads * sizeof *g->iv);
    return v;
}

static int go_on(eas_builder *b, eas_value *iv)
{
    if (!any_active(b->live)) {
        eas_live_end(b);
        return 0;
    }
    *iv = counter(b);
    return *iv != 0;
}

int eas_live_loop(eas_builder *b, eas_value lo, eas_value hi, eas_value step, eas_value *iv)
{
    NEED(b, 0);
    NEED(iv, 0);
    uint32_t head[3] = {lo, hi, step};
    *iv = 0;
    if (!irb_bounds(b, head) || !open_region(b))
        return 0;
    ir_live *l = b->live;
    for (int i = 0; i < 3; i++)
        if (poison_used(&l->r, head[i]))
            return irb_stop(b, l->r.st), 0;
    region *g = &l->regions.at[l->regions.len - 1];
    size_t bytes = (size_t)l->r.threads * sizeof(int64_t);
    g->dt = ir_typeof(b->ir, head[0]).dtype;
    g->iv = copied(l->r.val[head[0]], bytes);
    g->hi = copied(l->r.val[head[1]], bytes);
    g->step = copied(l->r.val[head[2]], bytes);
    if (!g->iv || !g->hi || !g->step)
        return oom(b), 0;
    for (int64_t k = 0; k < l->r.threads; k++)
        l->r.active[k] = l->r.active[k] && interp_in_range(g->dt, g->iv[k], g->hi[k], g->step[k]);
    return go_on(b, iv);
}

int eas_live_again(eas_builder *b, eas_value *iv)
{
    NEED(b, 0);
    NEED(iv, 0);
    ir_live *l = b->live;
    *iv = 0;
    if (b->status || !l || !l->regions.len || !l->regions.at[l->regions.len - 1].iv) {
        irb_fail(b, EAS_ERR_VALUE, "no loop is open");
        return 0;
    }
    region *g = &l->regions.at[l->regions.len - 1];
    for (int64_t k = 0; k < l->r.threads; k++) {
        if (!l->r.active[k])
            continue;
        l->r.active[k] = interp_next_in_range(g->dt, g->iv[k], g->hi[k], g->step[k]);
        if (l->r.active[k])
            g->iv[k] = (int64_t)((uint64_t)g->iv[k] + (uint64_t)g->step[k]);
    }
    return go_on(b, iv);
}

int eas_live_depth(const eas_builder *b)
{
    NEED(b, 0);
    return b->live ? (int)b->live->regions.len : 0;
}

eas_value eas_live_merge(eas_builder *b, eas_value old, eas_value next)
{
    NEED(b, 0);
    ir_live *l = b->live;
    if (b->status || !l)
        return 0;
    if (!memchr(l->r.active, 0, (size_t)l->r.threads))
        return next;
    ir_type t = ir_typeof(b->ir, old);
    if (!ir_type_eq(t, ir_typeof(b->ir, next)))
        return irb_fail(b, EAS_ERR_TYPE, "a variable cannot change its type inside a loop or branch"), 0;
    if (l->r.threads == 1)
        return old;
    if (t.kind == IR_FRAG) /* simdgroups take part as a whole or not at all, so the first thread decides */
        return l->r.active[0] ? next : old;
    uint32_t v = new_results(b, 1, &t);
    if (v && (poison_used(&l->r, next) || poison_used(&l->r, old)))
        return irb_stop(b, l->r.st), 0;
    for (int64_t k = 0; v && k < l->r.threads; k++)
        l->r.val[v][k] = l->r.val[l->r.active[k] ? next : old][k];
    if (v)
        b->ir->insns[v] = (ir_insn){.op = IR_NOP, .nres = 1, .res = v};
    return v;
}

/* ---- reading values ---- */

static int64_t count_of(const ir_live *l, const eas_builder *b, uint32_t v)
{
    ir_type t = ir_typeof(b->ir, v);
    return t.kind == IR_BUF ? l->call.count[v - 1] : t.kind == IR_TG ? t.dim[0] : interp_lanes(&l->r, v);
}

int64_t eas_live_threads(const eas_builder *b)
{
    NEED(b, 0);
    return b->live ? b->ir->threads : 0;
}
int64_t eas_live_block(const eas_builder *b)
{
    NEED(b, 0);
    return !b->ir ? 0 : b->ir->threads ? b->ir->threads : b->ir->spmd_block ? b->ir->spmd_block : 1;
}
int eas_live_axes(const eas_builder *b)
{
    NEED(b, 0);
    return b->live ? b->live->naxes : 1;
}
int64_t eas_live_count(const eas_builder *b, eas_value v)
{
    NEED(b, 0);
    return b->live && b->ir && v && v < b->ir->nvals ? count_of(b->live, b, v) : 0;
}

void eas_live_active(const eas_builder *b, uint8_t *out)
{
    NEED_(b);
    if (b->live)
        memcpy(out, b->live->r.active, (size_t)b->live->r.threads);
}

eas_status eas_live_read(const eas_builder *b, eas_value v, void *out)
{
    NEED(b, EAS_ERR_HANDLE);
    const ir_live *l = b->live;
    if (!l || !b->ir || !v || v >= b->ir->nvals)
        return base_fail(EAS_ERR_VALUE, "not a value of a live kernel");
    ir_type t = ir_typeof(b->ir, v);
    size_t size = eas_dtype_size(t.dtype);
    int64_t n = count_of(l, b, v);
    const void *from = t.kind == IR_BUF ? (const void *)(uintptr_t)l->call.slot[v - 1]
                     : t.kind == IR_TG  ? (const void *)l->r.tg[v]
                                        : (const void *)l->r.frag[v];
    if (t.kind != IR_VAL) {
        if (n)
            memcpy(out, from, (size_t)n * size);
        return EAS_OK;
    }
    /* of a block, lanes that were loaded out of bounds are shown as 0 */
    if (n == 1 && poison_used((run *)&l->r, v))
        return l->r.st;
    for (int64_t k = 0; k < n; k++)
        interp_store_element(t.dtype, (uint8_t *)out + (size_t)k * size, l->r.val[v][k]);
    return EAS_OK;
}

/* ---- programs ---- */

eas_status live_begin(eas_builder *b, const ir_live_host *host)
{
    if (b->status || !b->ir || b->live || b->ir->ninsns)
        return irb_fail(b, EAS_ERR_VALUE,
                        "a builder becomes live once, after its parameters and before its first instruction");
    ir_live *l = b->live = calloc(1, sizeof *l);
    if (!l)
        return oom(b), b->status;
    l->host = *host;
    l->call = (ir_call){
        .slot = host->slot, .count = host->count, .print = host->print, .print_ctx = host->print_ctx};
    l->naxes = 1;
    l->r =
        (run){.ir = b->ir, .call = &l->call, .threads = 1, .groups = 1, .active = malloc(1), .lenient = true};
    if (!make_room(l, b->ir->nvals) || !irb_live_room(b) || !l->r.active)
        return oom(b), b->status;
    for (uint32_t v = 1; v <= (uint32_t)b->ir->nparams; v++) {
        if (b->ir->vals[v].type.kind != IR_VAL)
            continue;
        if (!(l->r.val[v] = malloc(sizeof(int64_t))))
            return oom(b), b->status;
        l->r.val[v][0] = interp_scalar_lane(b->ir->vals[v].type.dtype, host->slot[v - 1]);
    }
    return EAS_OK;
}

eas_status live_program(eas_builder *b, const int64_t pid[3])
{
    ir_live *l = b->live;
    if (!b->status && l->regions.len)
        irb_fail(b, EAS_ERR_VALUE, "a loop or branch was left open");
    eas_live_sweep(b);
    memcpy(l->r.pid, pid, sizeof l->r.pid);
    memset(l->r.active, 1, (size_t)l->r.threads);
    return b->status;
}

eas_status live_grid(eas_builder *b, int64_t grid[3])
{
    if (b->status || !know_grid(b))
        return b->status;
    memcpy(grid, b->live->call.grid, sizeof b->live->call.grid);
    return EAS_OK;
}

ir_live_host *live_host(eas_builder *b) { return b->live ? &b->live->host : NULL; }

void live_free(eas_builder *b)
{
    ir_live *l = b->live;
    if (!l)
        return;
    for (uint32_t v = 0; v < l->cap; v++)
        drop_slots(l, v);
    for (uint32_t i = 0; i < l->regions.len; i++)
        free_region(&l->regions.at[i]);
    vec_free(&l->regions);
    vec_free(&l->nursery);
    vec_free(&l->spare);
    poison_free(&l->r);
    free(l->r.val);
    free(l->r.frag);
    free(l->r.tg);
    free(l->r.active);
    free(l->holds);
    free(l->young);
    if (l->host.done)
        l->host.done(l->host.ctx);
    free(l);
    b->live = NULL;
}
