/* llvm_slots.c: where blocks lie in scratch, and what is worth asking the memory for ahead of time; knows nothing of LLVM.
 *
 * A block has a slot if it is wanted outside its segment or through an index map. Segments run in the order of their numbers, so a block lives from the segment that makes it to the last one that reads
 * it; inside a loop that it comes into from outside, to the last of the loop. Its slot then serves another, even one made in that last segment,
 * if every lane reads only what it overwrites itself. Values that loops carry or branches merge keep theirs.
 */
#include "llvm.h"

/* ---- who needs one ---- */

static void want_slot(plan *p, uint32_t v, uint32_t seg, const shape *sh)
{
    const view w = plan_resolve(p, v, map_identity(sh->rank));
    vinfo *r = &p->val[w.v];
    if (r->cls == C_FRAG || r->cls == C_UNI)
        r->needs_slot |= r->seg != seg && r->seg != 0;
    if (r->cls == C_BLOCK && (r->seg != seg || !plan_identity(p, &w, sh)))
        r->needs_slot = 1;
}

static void find_uses(plan *p, const uint32_t *iseg)
{
    for (uint32_t i = 0; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        for (int k = 0; k < in->nargs; k++) {
            const uint32_t a = ir_args(p->ir, in)[k];
            if (is_move(in) && k == 0 && p->val[a].cls == C_BLOCK)
                p->val[a].needs_slot = 1;
            if (in->res && p->val[in->res].cls == C_VIEW && p->val[a].cls != C_UNI)
                continue; /* seen where the view is read */
            const shape sh = p->info.mode == EAS_MODE_THREAD ? (shape){1, {(int32_t)p->info.block}} : p->val[a].sh;
            want_slot(p, a, iseg[i], &sh);
        }
    }
}

static void find_copy_uses(plan *p, const steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len; i++) {
        const step *st = &s->v.at[i];
        if (st->kind == S_REGION) {
            find_copy_uses(p, st->body);
            find_copy_uses(p, st->other);
        }
        for (uint32_t k = 0; st->kind == S_SEGMENT && k < st->seg->items.len; k++) {
            const item *it = &st->seg->items.at[k];
            if (it->insn == UINT32_MAX)
                want_slot(p, it->src, st->seg->id, &st->seg->sh);
        }
    }
}

/* ---- loads that are done again ----
 * A segment that wants what an earlier one loaded reads the same memory again, where that costs no more than reading a slot: it saves writing one. Nothing may have been written in
 * between; what the segment itself writes, it writes after it has read the same lanes, so only equal buffers written at other places are sensitive. */

/* Can any later segment compute it? */
bool plan_stays(const plan *p, uint32_t v)
{
    const ir_insn *in = ir_def(p->ir, v);
    if (p->val[v].cls != C_REMAT || p->val[v].late)
        return p->val[v].cls == C_UNI && !p->val[v].late && !p->val[v].inseg;
    for (int k = 0; k < in->nargs; k++)
        if (!plan_stays(p, ir_args(p->ir, in)[k]))
            return false;
    return true;
}

static bool cheap_again(const plan *p, const ir_insn *in)
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
    if (is_move(in) || plan_whole(p, in) || ir_rows[in->op].flags & IR_STRUCT || p->parent[user] != p->parent[def])
        return false;
    return !in->res || p->val[in->res].cls == C_UNI || (p->val[in->res].cls == C_BLOCK && shape_eq(&p->val[in->res].sh, sh));
}

bool plan_reads(const plan *p, const ir_insn *in, uint32_t v)
{
    for (int k = 0; k < in->nargs; k++)
        if (ir_args(p->ir, in)[k] == v)
            return true;
    return false;
}

static bool can_again(plan *p, uint32_t v)
{
    const uint32_t def = p->ir->vals[v].def;
    const ir_insn *load = &p->ir->insns[def];
    bool written = false, elsewhere = false;
    if (!cheap_again(p, load))
        return false;
    for (uint32_t i = def + 1; i < p->ir->ninsns; i++) {
        const ir_insn *in = &p->ir->insns[i];
        if (plan_reads(p, in, v) && (written || !plan_plain_reader(p, i, def, v)))
            return false;
        written |= ir_writes(in) || ir_rows[in->op].flags & IR_STRUCT || ir_orders(in);
        if (ir_writes(in) && ir_args(p->ir, in)[0] == ir_args(p->ir, load)[0])
            return false;
        elsewhere |= ir_writes(in) && !(ir_args(p->ir, in)[1] == ir_args(p->ir, load)[1] && plan_injective(p, ir_args(p->ir, load)[1]));
    }
    p->alias_sensitive |= elsewhere;
    return true;
}

static void find_again(plan *p)
{
    for (uint32_t v = 1; v < p->ir->nvals && p->info.mode == EAS_MODE_SPMD && !p->alias; v++) {
        vinfo *x = &p->val[v];
        if (x->cls != C_BLOCK || !x->needs_slot || x->same_slot || !ir_def(p->ir, v) || !can_again(p, v))
            continue;
        x->again = 1;
        x->needs_slot = 0;
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
    const vinfo *x = &p->val[v];
    return ((uint64_t)(x->pitch ? (int64_t)x->sh.dim[0] * x->pitch : shape_lanes(&x->sh)) + 64) * eas_dtype_size((eas_dtype)t.dtype);
}

/* ---- how long ---- */

typedef struct life {
    uint32_t last;    /* segment */
    uint32_t reader;  /* in that segment: the last instruction that reads it */
    bool straight;    /* there it is read through the identity only */
} life;

typedef struct lives {
    plan *p;
    life *of;
    uint32_t now; /* the segment last walked */
} lives;

static void touch(lives *l, uint32_t v, uint32_t seg, uint32_t insn, const shape *sh)
{
    const uint32_t turned = plan_turned(l->p, v);
    const view w = plan_resolve(l->p, turned ? turned : v, map_identity(sh ? sh->rank : 0));
    life *x = &l->of[w.v];
    if (seg > x->last)
        *x = (life){.last = seg, .straight = true};
    x->reader = insn > x->reader ? insn : x->reader;
    x->straight = x->straight && sh && plan_identity(l->p, &w, sh);
}

static void touch_insn(lives *l, uint32_t i, uint32_t at, uint32_t seg, const shape *sh)
{
    const ir_insn *in = &l->p->ir->insns[i];
    for (int k = 0; k < in->nargs; k++) {
        const uint32_t a = ir_args(l->p->ir, in)[k];
        if (ir_typeof(l->p->ir, a).kind == IR_VAL)
            touch(l, a, seg, at, is_move(in) || plan_turned(l->p, a) ? NULL : sh);
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
    if (in->op == IR_IF)
        return;
    for (uint32_t v = 1; v < p->ir->nvals; v++) /* what comes from before the loop is read again in the next round */
        if (p->val[v].seg < first && l->of[v].last >= first)
            l->of[v] = (life){.last = l->now};
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

/* ---- who shares ---- */

/* Made by one instruction, and by no copy. */
static bool movable(const plan *p, uint32_t v)
{
    const ir_insn *in = ir_def(p->ir, v);
    return p->val[v].cls == C_BLOCK && in && !(ir_rows[in->op].flags & IR_STRUCT) && !p->val[v].same_slot;
}

/* May v, made in the segment that reads `old` last, be written where that lies? */
static bool in_place(const plan *p, const lives *l, uint32_t old, uint32_t v)
{
    const uint32_t def = p->ir->vals[v].def;
    const ir_insn *in = &p->ir->insns[def];
    const bool same = shape_eq(&p->val[old].sh, &p->val[v].sh) && p->val[old].pitch == p->val[v].pitch &&
                      eas_dtype_size((eas_dtype)ir_typeof(p->ir, old).dtype) == eas_dtype_size((eas_dtype)ir_typeof(p->ir, v).dtype);
    return same && l->of[old].straight && l->of[old].reader <= def && !is_reduce(in) && !plan_whole(p, in) &&
           p->parent[def] == p->parent[p->ir->vals[old].def];
}

typedef struct room {
    uint64_t at, bytes;
    uint32_t holder;
} room;

static void assign_slots(plan *p, const lives *l)
{
    VEC(room) rooms = {0};
    for (uint32_t v = 1; v < p->ir->nvals; v++) {
        vinfo *x = &p->val[v];
        if (x->same_slot || !x->needs_slot)
            continue;
        const uint64_t bytes = (slot_bytes(p, v) + 63) & ~(uint64_t)63;
        room *best = NULL;
        for (uint32_t k = 0; k < rooms.len && movable(p, v); k++) {
            room *r = &rooms.at[k];
            const uint32_t last = l->of[r->holder].last > p->val[r->holder].seg ? l->of[r->holder].last : p->val[r->holder].seg;
            const bool free = last < x->seg || (last == x->seg && in_place(p, l, r->holder, v));
            if (free && r->bytes >= bytes && (!best || r->bytes < best->bytes))
                best = r;
        }
        if (best) {
            best->holder = v;
            x->slot = (int64_t)best->at;
            continue;
        }
        x->slot = (int64_t)p->scratch;
        if (movable(p, v) && !vec_push(&rooms, ((room){p->scratch, bytes, v})))
            p->mem->oom = true;
        p->scratch += bytes;
    }
    for (uint32_t v = 1; v < p->ir->nvals; v++)
        for (uint32_t s = p->val[v].same_slot; s; s = p->val[s].same_slot)
            p->val[v].slot = p->val[s].slot;
    vec_free(&rooms);
}

void plan_slots(plan *p, const uint32_t *iseg)
{
    lives l = {.p = p, .of = arena_alloc(p->mem, ((size_t)p->ir->nvals + 1) * sizeof *l.of)};
    find_uses(p, iseg);
    find_copy_uses(p, p->top);
    find_again(p);
    plan_homes(p, iseg);
    if (!l.of)
        return;
    walk(&l, p->top);
    assign_slots(p, &l);
}

/* ---- what to ask for ahead ----
 * A program that goes over its block several times waits for the memory in one of its segments and not in the others. Each load of a segment is prefetched in another one of the same shape:
 * in the one before it, or for the first in the largest of the others, for the next program. That one also asks for the lines that the last one writes. Tiles that a loop multiplies are prefetched in the product. Rows whose numbers are data come in
 * no order that hardware could guess: each asks for its successor, and so do rows that are only summed up. */

static uint32_t weight(const segment *s) { return s->items.len; }

static void ask(plan *p, segment *in, uint32_t insn, bool next)
{
    if (!vec_push(&in->ahead, ((ahead){insn, next, 0})))
        p->mem->oom = true;
}

static void add_loads(plan *p, const segment *from, segment *to, bool next)
{
    for (uint32_t k = 0; k < from->items.len; k++) {
        const uint32_t i = from->items.at[k].insn;
        if (i == UINT32_MAX || !plan_peeks(p->ir, &p->ir->insns[i]))
            continue;
        p->hosted[i] = true;
        ask(p, to, i, next);
    }
}

/* Where blocks wait in the output, the segment that makes them and the last one have the memory to themselves equally: each asks for half of the next row. */
static void add_halves(plan *p, const segment *from, segment *first, segment *second)
{
    const uint32_t had[2] = {first->ahead.len, second->ahead.len};
    add_loads(p, from, first, true);
    add_loads(p, from, second, true);
    for (uint32_t k = had[0]; k < first->ahead.len; k++)
        first->ahead.at[k].half = 1;
    for (uint32_t k = had[1]; k < second->ahead.len; k++)
        second->ahead.at[k].half = 2;
}

/* Not for lines that a block waits in already. */
static void add_stores(plan *p, const segment *from, segment *to)
{
    for (uint32_t k = 0; k < from->items.len; k++) {
        const uint32_t i = from->items.at[k].insn;
        const ir_insn *in = i == UINT32_MAX ? NULL : &p->ir->insns[i];
        if (!in || in->op != IR_STORE || ir_typeof(p->ir, ir_args(p->ir, in)[0]).kind != IR_BUF || !plan_stays(p, ir_args(p->ir, in)[1]))
            continue;
        if (!plan_home(p, i))
            ask(p, to, i, false);
    }
}

static int64_t flops(const plan *p, const segment *s)
{
    const ir_insn *in = &p->ir->insns[s->items.at[0].insn];
    return s->kind == SEG_WHOLE && in->op == IR_MATMUL ? shape_lanes(&p->val[in->res].sh) * ir_typeof(p->ir, ir_args(p->ir, in)[0]).dim[1] : 0;
}

enum { FEW_ROWS = 16, LARGE_BYTES = 96 << 10, LONGEST_ROW = 8192 };

static const segment *next_segment(const steps *s, uint32_t i)
{
    do
        i++;
    while (i < s->v.len && s->v.at[i].kind == S_SCALAR);
    return i < s->v.len && s->v.at[i].kind == S_SEGMENT ? s->v.at[i].seg : NULL;
}

static int64_t bytes(const plan *p, uint32_t v) { return shape_lanes(&p->val[v].sh) * (int64_t)eas_dtype_size((eas_dtype)ir_typeof(p->ir, v).dtype); }

/* A product that reads its large factor in place has time to fetch the next one, and the lines that its result will go to. */
static void prefetch_in_product(plan *p, segment *s, const segment *after)
{
    const ir_insn *in = &p->ir->insns[s->items.at[0].insn];
    const uint32_t y = flops(p, s) ? ir_args(p->ir, in)[1] : 0;
    if (!y || p->val[y].cls != C_LENT || ir_typeof(p->ir, y).dtype == EAS_BF16 || ir_typeof(p->ir, in->res).dim[0] <= FEW_ROWS ||
        bytes(p, y) < LARGE_BYTES)
        return;
    ask(p, s, p->ir->vals[y].def, true);
    if (after && shape_eq(&after->sh, &p->val[in->res].sh))
        add_stores(p, after, s);
}

/* Factors that are read where they lie, once, before the product begins. */
static void add_lent_halves(plan *p, segment *host)
{
    const uint32_t *a = ir_args(p->ir, &p->ir->insns[host->items.at[0].insn]);
    for (int k = 0; k < 2; k++)
        if (p->val[a[k]].cls == C_LENT && ir_typeof(p->ir, a[k]).dtype == EAS_BF16)
            ask(p, host, p->ir->vals[a[k]].def, true);
}

/* A loop that multiplies matrices has time to fetch the tiles of its next round while it does. */
static void prefetch_in_loop(plan *p, const steps *body)
{
    segment *host = NULL;
    for (uint32_t i = 0; i < body->v.len; i++) {
        segment *s = body->v.at[i].kind == S_SEGMENT ? body->v.at[i].seg : NULL;
        if (s && s->items.len && flops(p, s) > (host ? flops(p, host) : 0))
            host = s;
    }
    if (host)
        add_lent_halves(p, host);
    for (uint32_t i = 0; host && i < body->v.len; i++) {
        const segment *s = body->v.at[i].kind == S_SEGMENT ? body->v.at[i].seg : NULL;
        if (s && s->kind == SEG_CHUNKS && s->sh.rank == 2)
            add_loads(p, s, host, true);
    }
    if (host)
        prefetch_in_product(p, host, NULL);
}

static void prefetch_in_loops(plan *p, const steps *s)
{
    for (uint32_t i = 0; s && i < s->v.len; i++) {
        const step *st = &s->v.at[i];
        if (st->kind != S_REGION)
            continue;
        if (p->ir->insns[st->insn].op == IR_LOOP)
            prefetch_in_loop(p, st->body);
        prefetch_in_loops(p, st->body);
        prefetch_in_loops(p, st->other);
    }
}

enum { MAX_PATH = 6, LONG_ROW = 256 };

bool plan_peeks(const eas_ir *ir, const ir_insn *in) { return in->op == IR_LOAD && ir_typeof(ir, ir_args(ir, in)[0]).kind == IR_BUF; }

/* Does a uniform value that was loaded decide where v points? */
static bool is_data(const plan *p, uint32_t v, int depth)
{
    const ir_insn *in = ir_def(p->ir, v);
    if (!in || depth > MAX_PATH)
        return false;
    if (plan_peeks(p->ir, in))
        return p->val[v].cls == C_UNI && !p->val[v].inseg;
    bool yes = false;
    for (int k = 0; k < in->nargs && ir_rows[in->op].flags & IR_PURE; k++)
        yes = yes || is_data(p, ir_args(p->ir, in)[k], depth + 1);
    return yes;
}

static void prefetch_rows(plan *p, segment *s)
{
    for (uint32_t k = 0; k < s->items.len; k++) {
        const uint32_t i = s->items.at[k].insn;
        if (i == UINT32_MAX || p->hosted[i] || !plan_peeks(p->ir, &p->ir->insns[i]) || !is_data(p, ir_args(p->ir, &p->ir->insns[i])[1], 0))
            continue;
        p->hosted[i] = true;
        ask(p, s, i, true);
    }
}

/* A program that only sums up one row: where rows end, hardware stops looking ahead, and each begins with a wait. */
static bool sums_row(const segment *s) { return s->reduces && s->sh.rank == 1 && s->sh.dim[0] >= LONG_ROW; }

void plan_prefetch(plan *p)
{
    segment *first = NULL, *before = NULL, *host = NULL;
    p->hosted = arena_alloc(p->mem, (size_t)p->ir->ninsns + 1);
    if (p->info.mode == EAS_MODE_THREAD || !p->hosted)
        return;
    prefetch_in_loops(p, p->top);
    for (uint32_t i = 0; i < p->top->v.len; i++) {
        segment *s = p->top->v.at[i].kind == S_SEGMENT ? p->top->v.at[i].seg : NULL;
        if (!s || s->kind != SEG_CHUNKS || (first && !shape_eq(&first->sh, &s->sh)))
            continue;
        if (before)
            add_loads(p, s, before, false);
        if (first && (!host || weight(s) > weight(host)))
            host = s;
        first = first ? first : s;
        before = s;
    }
    if (!host && first && sums_row(first))
        host = first;
    if (host && host != before && p->homes.len)
        add_halves(p, first, host, before);
    else if (host) /* a long row has the memory busy in one segment, which then is the last: the heaviest asks for the lines that are written */
        add_loads(p, first, shape_lanes(&first->sh) >= LONGEST_ROW ? before : host, true);
    if (host && before != host)
        add_stores(p, before, host);
    for (uint32_t i = 0; i < p->top->v.len; i++) {
        segment *s = p->top->v.at[i].kind == S_SEGMENT ? p->top->v.at[i].seg : NULL;
        if (s && s->kind == SEG_CHUNKS)
            prefetch_rows(p, s);
        if (s && s->kind == SEG_WHOLE && s->items.len)
            prefetch_in_product(p, s, next_segment(p->top, i));
    }
}
