/* place.c: where values lie: in registers, in a slot of scratch memory, in the output buffer that they are
 * stored to later, or in the argument that they are loaded from.
 *
 * Problem: a value that is read outside its segment, or through an index map, cannot stay in a register.
 *
 * Idea: a load that no store disturbs needs no memory of its own: its readers load it again. The other values
 * get slots. Segments run in the order of their numbers, so the live range of a block goes from the segment
 * that makes it to the last one that reads it; if the block comes into a loop from outside, to the end of the
 * loop. After that its slot takes the next block that fits (best fit), even one that is made in that very
 * segment, if every lane reads only what it overwrites itself. Values that loops carry or branches merge keep
 * their slots.
 *
 * Assumed: segment.c has numbered the segments in the order of execution, and reads of a segment precede its
 * writes lane by lane. A pass that moved instructions between segments after this one would invalidate the
 * live ranges.
 */
#include "plan.h"

/* ---- who needs memory ---- */

static void spill(plan *p, uint32_t v) { p->at[v].where = IN_SLOT; }

/* v is read in a segment (0: at scalar level), lane by lane of that shape. */
static void read_in(plan *p, uint32_t v, uint32_t seg, const shape *sh)
{
    const view w = plan_resolve(p, v, map_identity(sh->rank));
    const uint8_t cls = p->val[w.v].cls;
    const uint32_t from = p->made[w.v].seg;
    if ((cls == C_FRAG || cls == C_UNI) && from != seg && from != 0)
        spill(p, w.v);
    if (cls == C_BLOCK && (from != seg || !plan_identity(p, &w, sh)))
        spill(p, w.v);
}

static void find_uses(plan *p)
{
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        for (int k = 0; k < in->nargs; k++) {
            const uint32_t a = ir_args(p->ir, in)[k];
            if (is_move(in) && k == 0 && p->val[a].cls == C_BLOCK)
                spill(p, a);
            if (in->res && p->val[in->res].cls == C_VIEW && p->val[a].cls != C_UNI)
                continue; /* seen where the view is read */
            const shape sh =
                p->info.mode == EAS_MODE_THREAD ? (shape){1, {(int32_t)p->info.block}} : p->val[a].sh;
            read_in(p, a, p->seg_of[i], &sh);
        }
    }
}

/* Instructions on whole blocks read and write memory, reductions add to it, and copies read what they
 * copy. */
static void spill_segment(plan *p, const segment *s)
{
    for (uint32_t k = 0; k < s->items.len; k++) {
        const item *it = &s->items.at[k];
        if (it->insn == UINT32_MAX) {
            read_in(p, it->src, s->id, &s->sh);
            continue;
        }
        const ir_insn *in = &p->ir->insns[it->insn];
        const uint32_t *a = ir_args(p->ir, in);
        if (s->kind == SEG_WHOLE || (is_reduce(in) && p->val[in->res].cls == C_BLOCK))
            spill(p, in->res);
        for (int j = 0; s->kind == SEG_WHOLE && j < in->nargs; j++)
            if (p->val[a[j]].cls == C_BLOCK)
                spill(p, a[j]);
    }
}

/* What crosses the borders of a region at scalar level. */
static void spill_region(plan *p, uint32_t opener)
{
    const ir_insn *in = &p->ir->insns[opener], *end = &p->ir->insns[p->end[opener]];
    const uint32_t first = in->res + (in->op == IR_LOOP), *next = ir_args(p->ir, end);
    for (uint32_t k = 0; k < end->nres; k++) {
        if (in->op == IR_IF) {
            spill(p, end->res + k);
            continue;
        }
        spill(p, first + k);
        if (p->made[next[k]].into == first + k)
            spill(p, next[k]);
    }
}

static void find_spills(plan *p, const steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len; i++) {
        const step *st = &s->v.at[i];
        if (st->kind == S_SEGMENT)
            spill_segment(p, st->seg);
        if (st->kind != S_REGION)
            continue;
        spill_region(p, st->insn);
        find_spills(p, st->body);
        find_spills(p, st->other);
    }
}

/* ---- loads that are repeated ---- A segment that wants what an earlier one loaded loads it again, where
 * that costs no more than reading a slot: it saves writing one. Nothing may have been written in between;
 * what the segment itself writes, it writes after it has read the same lanes, so only equal buffers
 * written at other places are sensitive. */

/* Can any later segment compute it? */
bool plan_stays(const plan *p, uint32_t v)
{
    const ir_insn *in = ir_def(p->ir, v);
    if (p->val[v].cls != C_REMAT || p->made[v].ready)
        return p->val[v].cls == C_UNI && !p->made[v].ready && !p->made[v].inside;
    for (int k = 0; k < in->nargs; k++)
        if (!plan_stays(p, ir_args(p->ir, in)[k]))
            return false;
    return true;
}

static bool cheap_to_repeat(const plan *p, const ir_insn *in)
{
    const uint32_t *a = ir_args(p->ir, in);
    if (!plan_peeks(p->ir, in) || eas_dtype_size((eas_dtype)ir_typeof(p->ir, a[0]).dtype) < 4)
        return false;
    for (int k = 1; k < in->nargs; k++)
        if (!plan_stays(p, a[k]))
            return false;
    return plan_neighbours(p, a[1]);
}

/* Every reader takes it lane by lane, in the region of the load. */
bool plan_plain_reader(const plan *p, uint32_t user, uint32_t def, uint32_t v)
{
    const ir_insn *in = &p->ir->insns[user];
    const shape *sh = &p->val[v].sh;
    if (is_move(in) || plan_whole(p, in) || ir_rows[in->op].flags & IR_STRUCT ||
        p->parent[user] != p->parent[def])
        return false;
    return !in->res || p->val[in->res].cls == C_UNI ||
           (p->val[in->res].cls == C_BLOCK && shape_eq(&p->val[in->res].sh, sh));
}

bool plan_reads(const plan *p, const ir_insn *in, uint32_t v)
{
    for (int k = 0; k < in->nargs; k++)
        if (ir_args(p->ir, in)[k] == v)
            return true;
    return false;
}

static bool can_repeat(plan *p, uint32_t v)
{
    const uint32_t def = p->ir->vals[v].def;
    const ir_insn *load = &p->ir->insns[def];
    bool written = false, elsewhere = false;
    if (!cheap_to_repeat(p, load))
        return false;
    for (uint32_t i = def + 1; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        if (plan_reads(p, in, v) && (written || !plan_plain_reader(p, i, def, v)))
            return false;
        written |= ir_writes(in) || ir_rows[in->op].flags & IR_STRUCT || ir_orders(in);
        if (ir_writes(in) && ir_args(p->ir, in)[0] == ir_args(p->ir, load)[0])
            return false;
        elsewhere |= ir_writes(in) && !(ir_args(p->ir, in)[1] == ir_args(p->ir, load)[1] &&
                                        plan_injective(p, ir_args(p->ir, load)[1]));
    }
    p->alias_sensitive |= elsewhere;
    return true;
}

static void find_repeated(plan *p)
{
    for (uint32_t v = 1; v < p->ir->nvals && p->info.mode == EAS_MODE_SPMD && !p->alias; v++) {
        if (p->val[v].cls == C_BLOCK && p->at[v].where == IN_SLOT && !p->made[v].into && ir_def(p->ir, v) &&
            can_repeat(p, v))
            p->at[v].where = IN_ARGUMENT;
    }
}

static uint64_t slot_bytes(const plan *p, uint32_t v)
{
    const ir_type t = p->ir->vals[v].type;
    if (t.kind == IR_FRAG)
        return (uint64_t)(p->info.block + IR_SIMD - 1) / IR_SIMD * 256;
    if (t.kind == IR_TG)
        return (uint64_t)t.dim[0] * eas_dtype_size((eas_dtype)t.dtype);
    /* whole vectors are stored, also at the end */
    const shape *sh = &p->val[v].sh;
    const int64_t pitch = p->at[v].pitch;
    return ((uint64_t)(pitch ? sh->dim[0] * pitch : shape_lanes(sh)) + 64) *
           eas_dtype_size((eas_dtype)t.dtype);
}

/* ---- how long ---- */

typedef struct reading { /* in the last segment that reads a value */
    uint32_t seg;
    uint32_t reader; /* the last instruction that reads it */
    bool straight; /* it is read through the identity only */
} reading;

typedef struct lives {
    plan *p;
    ir_lives range; /* points are segments */
    reading *of;
    uint32_t now; /* the segment last walked */
} lives;

static void touch(lives *l, uint32_t v, uint32_t seg, uint32_t insn, const shape *sh)
{
    const uint32_t turned = plan_factor_slot(l->p, v);
    const view w = plan_resolve(l->p, turned ? turned : v, map_identity(sh ? sh->rank : 0));
    reading *x = &l->of[w.v];
    if (seg > x->seg)
        *x = (reading){.seg = seg, .straight = true};
    ir_lives_read(&l->range, w.v, seg);
    x->reader = insn > x->reader ? insn : x->reader;
    x->straight = x->straight && sh && plan_identity(l->p, &w, sh);
}

static void touch_insn(lives *l, uint32_t i, uint32_t at, uint32_t seg, const shape *sh)
{
    const ir_insn *in = &l->p->ir->insns[i];
    for (int k = 0; k < in->nargs; k++) {
        const uint32_t a = ir_args(l->p->ir, in)[k];
        if (ir_typeof(l->p->ir, a).kind == IR_VAL)
            touch(l, a, seg, at, is_move(in) || plan_factor_slot(l->p, a) ? NULL : sh);
    }
}

static void walk_segment(lives *l, const segment *s)
{
    plan *p = l->p;
    l->now = s->id;
    for (uint32_t k = 0; k < s->items.len; k++) {
        const item *it = &s->items.at[k];
        if (it->insn == UINT32_MAX) {
            touch(l, it->src, s->id, UINT32_MAX, &s->sh);
            continue;
        }
        const uint32_t end = p->end[it->insn] > it->insn ? p->end[it->insn] : it->insn;
        for (uint32_t i = it->insn; i <= end; i++)
            touch_insn(l, i, end, s->id, s->kind == SEG_CHUNKS ? &s->sh : NULL);
    }
}

static void walk(lives *l, const steps *s);

static void walk_region(lives *l, const step *st)
{
    plan *p = l->p;
    const uint32_t first = l->now + 1;
    const ir_insn *in = &p->ir->insns[st->insn];
    touch_insn(l, st->insn, st->insn, l->now, NULL);
    walk(l, st->body);
    walk(l, st->other);
    if (in->op != IR_IF)
        ir_lives_region(&l->range, first, l->now);
}

static void walk(lives *l, const steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len; i++) {
        const step *st = &s->v.at[i];
        if (st->kind == S_REGION)
            walk_region(l, st);
        else if (st->kind == S_SEGMENT)
            walk_segment(l, st->seg);
        else
            touch_insn(l, st->insn, st->insn, l->now, NULL);
    }
}

/* ---- rows ---- */

/* Rows of a right factor that lie a large power of two apart would share a few sets of the cache: they are
 * kept a cache line further apart, if nothing but products reads the block. */
static void find_pitches(plan *p)
{
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        if (in->op != IR_MATMUL)
            continue;
        const uint32_t y = ir_args(p->ir, in)[1];
        const ir_type t = ir_typeof(p->ir, y);
        const ir_insn *def = ir_def(p->ir, y);
        const int64_t size = (int64_t)eas_dtype_size((eas_dtype)t.dtype);
        if (t.dim[0] > 1 && t.dim[1] * size % 256 == 0 && def && !(ir_rows[def->op].flags & IR_STRUCT) &&
            (def->op == IR_TRANS || !ir_is_fold(def)))
            p->at[y].pitch = t.dim[1] + (int32_t)(64 / size);
    }
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        for (int k = 0; k < in->nargs; k++)
            if (in->op != IR_MATMUL || k != 1)
                p->at[ir_args(p->ir, in)[k]].pitch = 0;
    }
}

/* ---- who shares ---- */

/* Made by one instruction, and by no copy. */
static bool movable(const plan *p, uint32_t v)
{
    const ir_insn *in = ir_def(p->ir, v);
    return p->val[v].cls == C_BLOCK && in && !(ir_rows[in->op].flags & IR_STRUCT) && !p->made[v].into;
}

/* May v, made in the segment that reads `old` last, be written where that lies? */
static bool in_place(const plan *p, const lives *l, uint32_t old, uint32_t v)
{
    const uint32_t def = p->ir->vals[v].def;
    const ir_insn *in = &p->ir->insns[def];
    const bool same = shape_eq(&p->val[old].sh, &p->val[v].sh) && p->at[old].pitch == p->at[v].pitch &&
                      eas_dtype_size((eas_dtype)ir_typeof(p->ir, old).dtype) ==
                          eas_dtype_size((eas_dtype)ir_typeof(p->ir, v).dtype);
    return same && l->of[old].straight && !l->range.of[old].region && l->of[old].reader <= def &&
           !is_reduce(in) && !plan_whole(p, in) && p->parent[def] == p->parent[p->ir->vals[old].def];
}

/* Has the slot's holder been read for the last time when v is made, or lane by lane as v is written over
 * it? */
static bool is_free(const void *ctx, const ir_slot *s, uint32_t v)
{
    const lives *l = ctx;
    const plan *p = l->p;
    const uint32_t from = p->made[v].seg, made = p->made[s->holder].seg, read = l->range.of[s->holder].last,
                   last = read > made ? read : made;
    return last < from || (last == from && in_place(p, l, s->holder, v));
}

static void assign_slots(plan *p, const lives *l)
{
    ir_slots slots = {0};
    for (uint32_t v = 1; v < p->ir->nvals; v++) {
        if (p->made[v].into || !plan_in_memory(p, v))
            continue;
        const uint64_t bytes = (slot_bytes(p, v) + 63) & ~(uint64_t)63;
        const ir_slot *shared = movable(p, v) ? ir_slot_take(&slots, bytes, v, is_free, l) : NULL;
        p->at[v].slot = (int64_t)(shared ? shared->at : p->scratch);
        if (shared)
            continue;
        if (movable(p, v) && !ir_slot_add(&slots, p->scratch, bytes, v))
            p->mem->oom = true;
        p->scratch += bytes;
    }
    for (uint32_t v = 1; v < p->ir->nvals; v++)
        for (uint32_t s = p->made[v].into; s; s = p->made[s].into)
            p->at[v].slot = p->at[s].slot;
    vec_free(&slots);
}

void plan_place(plan *p)
{
    lives l = {.p = p, .of = arena_alloc(p->mem, ((size_t)p->ir->nvals + 1) * sizeof *l.of)};
    p->at = arena_alloc(p->mem, ((size_t)p->ir->nvals + 1) * sizeof *p->at);
    if (!l.of || !p->at || !ir_lives_begin(&l.range, p->ir->nvals, p->mem))
        return;
    for (uint32_t v = 0; v < p->ir->nvals; v++) {
        p->at[v].slot = -1;
        l.range.of[v].made = p->made[v].seg;
    }
    for (uint32_t i = 0; i < p->ir->ninsns; i++)
        if (p->ir->insns[i].op == IR_ALLOC_TG)
            spill(p, p->ir->insns[i].res);
    find_pitches(p);
    find_uses(p);
    find_spills(p, p->top);
    plan_place_factors(p);
    find_repeated(p);
    plan_outputs(p);
    walk(&l, p->top);
    assign_slots(p, &l);
}
