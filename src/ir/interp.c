/* interp.c: the reference. Runs the IR as it is written, one program at a time, every access checked.
 *
 * All lanes of a block, or all threads of a group, go through each instruction together, so barriers hold by
 * construction. A value is an array of 64-bit words, one per lane (see eval.c); its slot takes another value
 * when its live range ends (slots.c). Control flow keeps a mask of active lanes: threads that do not take
 * part compute garbage but touch no memory and change no carried value.
 */
#include "interp.h"

#include <math.h>
#include <stdio.h>

int64_t interp_lanes(const run *r, uint32_t v)
{
    ir_type t = ir_typeof(r->ir, v);
    return t.kind == IR_FRAG ? r->groups * 64 : t.rank ? ir_lanes(t) : r->threads;
}

/* ---- storage: values whose live ranges do not meet share slots ---- */

/* The live ranges of the operands of an instruction: the condition of a branch is read again at the merge,
 * the bounds of a loop in every round. */
static void read_operands(const run *r, ir_lives *l, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    for (int k = 0; k < in->nargs; k++) {
        const bool until_end = in->op == IR_ELSE || in->op == IR_IF || (in->op == IR_LOOP && k < 3);
        ir_lives_read(l, ir_args(r->ir, in)[k], until_end ? r->end[i] : i);
    }
    for (int k = 0; k < in->nres; k++) {
        const uint32_t v = in->res + (uint32_t)k;
        l->of[v].made = i;
        ir_lives_read(l, v, in->op == IR_LOOP || in->op == IR_WHILE ? r->end[i] : i);
    }
}

static bool find_lives(const run *r, ir_lives *l, arena *mem)
{
    ir_regions regions;
    if (!ir_lives_begin(l, r->ir->nvals, mem) || !ir_find_regions(r->ir, mem, &regions))
        return false;
    for (uint32_t i = 0; i < r->ir->ninsns; i++) {
        const uint16_t op = r->ir->insns[i].op;
        read_operands(r, l, i);
        if (op == IR_ENDLOOP || op == IR_ENDWHILE)
            ir_lives_region(l, regions.opener[i] + 1, i);
    }
    return true;
}

static bool is_over(const void *ctx, const ir_slot *s, uint32_t v)
{
    const ir_lives *l = ctx;
    return l->of[s->holder].last < l->of[v].made;
}

/* The place of the first slot of a value; *total grows if no free slot is large enough. */
static uint64_t place(run *r, ir_slots *slots, const ir_lives *l, uint32_t v, uint64_t *total)
{
    const uint64_t size = (uint64_t)interp_lanes(r, v);
    const ir_slot *s = ir_slot_take(slots, size, v, is_over, l);
    if (s)
        return s->at;
    if (!ir_slot_add(slots, *total, size, v))
        r->mem.oom = true;
    *total += size;
    return *total - size;
}

static void make_array(run *r, uint32_t v)
{
    const ir_type t = ir_typeof(r->ir, v);
    if (t.kind == IR_FRAG)
        r->frag[v] = arena_alloc(&r->mem, (size_t)r->groups * 64 * sizeof(float));
    else
        r->tg[v] = arena_alloc(&r->mem, (size_t)t.dim[0] * eas_dtype_size(t.dtype));
}

static bool plan_storage(run *r)
{
    const eas_ir *ir = r->ir;
    ir_lives l;
    ir_slots slots = {0};
    uint64_t *at = arena_alloc(&r->mem, ir->nvals * sizeof *at), total = 0;
    if (!at || !find_lives(r, &l, &r->mem))
        return false;
    for (uint32_t v = 1; v < ir->nvals && !r->mem.oom; v++) {
        if (v <= (uint32_t)ir->nparams)
            r->val[v] = arena_alloc(&r->mem, (size_t)r->threads * sizeof(int64_t));
        else if (ir_typeof(ir, v).kind == IR_VAL)
            at[v] = place(r, &slots, &l, v, &total);
        else
            make_array(r, v);
    }
    vec_free(&slots);
    int64_t *all = arena_alloc(&r->mem, (size_t)(total + 1) * sizeof *all);
    for (uint32_t v = 1 + (uint32_t)ir->nparams; v < ir->nvals && all; v++)
        if (ir_typeof(ir, v).kind == IR_VAL)
            r->val[v] = all + at[v];
    return !r->mem.oom;
}

/* ---- control ---- */

static bool any_active(const run *r)
{
    for (int64_t k = 0; k < r->threads; k++)
        if (r->active[k])
            return true;
    return false;
}

static void push(run *r, uint32_t i)
{
    frame *f = &r->stack[r->depth++];
    f->at = i;
    memcpy(f->saved, r->active, (size_t)r->threads);
}

static void pop(run *r) { memcpy(r->active, r->stack[--r->depth].saved, (size_t)r->threads); }

/* Copies value v to w in the threads that take part (a block counts as one thread: all its lanes are
 * copied). */
static void copy_active(run *r, uint32_t w, uint32_t v, bool all)
{
    if (ir_typeof(r->ir, v).kind == IR_FRAG) {
        if (w != v)
            memcpy(r->frag[w], r->frag[v], (size_t)r->groups * 64 * sizeof(float));
        return;
    }
    int64_t n = interp_lanes(r, v);
    for (int64_t k = 0; k < n; k++)
        if (all || interp_lane_on(r, k))
            r->val[w][k] = r->val[v][k];
}

/* A next value may be the source of another one: all are read before any is written. */
static void carry(run *r, const ir_insn *end, uint32_t body)
{
    const uint32_t *next = ir_args(r->ir, end);
    size_t bytes = 0;
    for (int k = 0; k < end->nargs; k++)
        bytes += (size_t)interp_lanes(r, next[k]) * 8;
    int64_t *tmp = malloc(bytes + 8), *t = tmp;
    if (!tmp) {
        r->st = base_fail_oom(bytes);
        return;
    }
    for (int k = 0; k < end->nargs; k++) {
        size_t n = (size_t)interp_lanes(r, next[k]);
        bool frag = ir_typeof(r->ir, next[k]).kind == IR_FRAG;
        memcpy(t, frag ? (void *)r->frag[next[k]] : (void *)r->val[next[k]], n * (frag ? sizeof(float) : 8));
        t += n;
    }
    t = tmp;
    for (int k = 0; k < end->nargs; k++) {
        uint32_t w = body + (uint32_t)k;
        size_t n = (size_t)interp_lanes(r, next[k]);
        if (ir_typeof(r->ir, w).kind == IR_FRAG)
            memcpy(r->frag[w], t, n * sizeof(float));
        else
            for (size_t e = 0; e < n; e++)
                if (interp_lane_on(r, (int64_t)e))
                    r->val[w][e] = t[e];
        t += n;
    }
    free(tmp);
}

bool interp_in_range(eas_dtype dt, int64_t iv, int64_t hi, int64_t step)
{
    if (!dtype_is_signed(dt))
        return step && (uint64_t)iv < (uint64_t)hi;
    return step > 0 ? iv < hi : step < 0 && iv > hi;
}

bool interp_next_in_range(eas_dtype dt, int64_t iv, int64_t hi, int64_t step)
{
    if (!dtype_is_signed(dt) || step > 0)
        return (uint64_t)hi - (uint64_t)iv > (uint64_t)step;
    return (uint64_t)iv - (uint64_t)hi > 0 - (uint64_t)step;
}

static uint32_t begin_loop(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    const uint32_t *a = ir_args(r->ir, in);
    int head = in->op == IR_LOOP ? 3 : 0;
    push(r, i);
    for (int k = head; k < in->nargs; k++)
        copy_active(r, in->res + (uint32_t)(k - head + (head ? 1 : 0)), a[k], true);
    if (in->op == IR_WHILE)
        return i + 1;
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    for (int64_t k = 0; k < r->threads; k++) {
        r->val[in->res][k] = r->val[a[0]][k];
        r->active[k] = r->active[k] && interp_in_range(dt, r->val[a[0]][k], r->val[a[1]][k], r->val[a[2]][k]);
    }
    return any_active(r) ? i + 1 : r->end[i];
}

static uint32_t leave_loop(run *r, uint32_t end, uint32_t body)
{
    const ir_insn *in = &r->ir->insns[end];
    pop(r);
    for (int k = 0; k < in->nres; k++)
        copy_active(r, in->res + (uint32_t)k, body + (uint32_t)k, true);
    return end + 1;
}

/* Stops the run if it was interrupted; called after every program and every turn of a loop. */
static void ask(run *r)
{
    if (!r->st && r->call->interrupted && r->call->interrupted(r->call->ctx))
        r->st = base_fail(EAS_ERR_INTERRUPTED, "kernel %s was interrupted", r->ir->name);
}

static uint32_t end_loop(run *r, uint32_t i)
{
    ask(r);
    uint32_t at = r->stack[r->depth - 1].at;
    const ir_insn *open = &r->ir->insns[at];
    const uint32_t *a = ir_args(r->ir, open);
    if (!any_active(r))
        return leave_loop(r, i, open->res + 1);
    carry(r, &r->ir->insns[i], open->res + 1);
    eas_dtype dt = ir_typeof(r->ir, a[0]).dtype;
    for (int64_t k = 0; k < r->threads; k++) {
        int64_t *iv = &r->val[open->res][k];
        if (!r->active[k])
            continue;
        r->active[k] = interp_next_in_range(dt, *iv, r->val[a[1]][k], r->val[a[2]][k]);
        if (r->active[k])
            *iv = (int64_t)((uint64_t)*iv + (uint64_t)r->val[a[2]][k]);
    }
    return any_active(r) ? at + 1 : leave_loop(r, i, open->res + 1);
}

static uint32_t test_while(run *r, uint32_t i)
{
    uint32_t cond = ir_args(r->ir, &r->ir->insns[i])[0];
    for (int64_t k = 0; k < r->threads; k++)
        r->active[k] = r->active[k] && r->val[cond][k];
    if (any_active(r))
        return i + 1;
    return leave_loop(r, r->end[i], r->ir->insns[r->stack[r->depth - 1].at].res);
}

static uint32_t end_while(run *r, uint32_t i)
{
    ask(r);
    uint32_t at = r->stack[r->depth - 1].at;
    carry(r, &r->ir->insns[i], r->ir->insns[at].res);
    return at + 1;
}

static uint32_t find_else(const run *r, uint32_t i)
{
    for (uint32_t k = i + 1; k < r->end[i]; k++) {
        uint16_t op = r->ir->insns[k].op;
        if (op == IR_ELSE)
            return k;
        if (op == IR_LOOP || op == IR_WHILE || op == IR_IF)
            k = r->end[k];
    }
    return r->end[i];
}

static uint32_t begin_if(run *r, uint32_t i)
{
    uint32_t cond = ir_args(r->ir, &r->ir->insns[i])[0];
    push(r, i);
    for (int64_t k = 0; k < r->threads; k++)
        r->active[k] = r->active[k] && r->val[cond][k];
    return any_active(r) ? i + 1 : find_else(r, i);
}

static uint32_t begin_else(run *r, uint32_t i)
{
    const frame *f = &r->stack[r->depth - 1];
    uint32_t cond = ir_args(r->ir, &r->ir->insns[f->at])[0];
    for (int64_t k = 0; k < r->threads; k++)
        r->active[k] = f->saved[k] && !r->val[cond][k];
    return any_active(r) ? i + 1 : r->end[i];
}

static uint32_t end_if(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    uint32_t at = r->stack[r->depth - 1].at, cond = ir_args(r->ir, &r->ir->insns[at])[0];
    pop(r);
    if (!in->nres)
        return i + 1;
    const uint32_t *yes = ir_args(r->ir, &r->ir->insns[find_else(r, at)]), *no = ir_args(r->ir, in);
    for (int k = 0; k < in->nres; k++) {
        uint32_t w = in->res + (uint32_t)k;
        int64_t n = interp_lanes(r, w);
        if (ir_typeof(r->ir, w).kind == IR_FRAG) {
            memcpy(r->frag[w], r->val[cond][0] ? r->frag[yes[k]] : r->frag[no[k]], (size_t)n * sizeof(float));
            continue;
        }
        for (int64_t e = 0; e < n; e++)
            r->val[w][e] = r->val[cond][r->threads == 1 ? 0 : e] ? r->val[yes[k]][e] : r->val[no[k]][e];
    }
    return i + 1;
}

static void barrier(run *r, uint32_t i)
{
    if (r->watch) {
        r->watch->barrier(r->watch, r, i);
        return;
    }
    interp_all_here(r, i, "barrier");
}

/* The interpreter's dispatch: runs instruction i for all lanes and threads that take part, and returns the
 * next one; the closers of loops go back to their openers. */
uint32_t interp_step(run *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i];
    switch (in->op) {
    case IR_LOOP:
    case IR_WHILE: return begin_loop(r, i);
    case IR_ENDLOOP: return end_loop(r, i);
    case IR_DO: return test_while(r, i);
    case IR_ENDWHILE: return end_while(r, i);
    case IR_IF: return begin_if(r, i);
    case IR_ELSE: return begin_else(r, i);
    case IR_ENDIF: return end_if(r, i);
    case IR_LOAD: interp_load(r, i); break;
    case IR_STORE: interp_store(r, i); break;
    case IR_BOUNDS: interp_bounds(r, i); break;
    case IR_ASSERT: interp_assert(r, i); break;
    case IR_PRINT: interp_print(r, i); break;
    case IR_ALLOC_TG:
        memset(r->tg[in->res], 0, (size_t)in->imm * eas_dtype_size(ir_typeof(r->ir, in->res).dtype));
        break;
    case IR_BARRIER: barrier(r, i); break;
    /* programs run one after the other, and accesses happen in the order in which they stand */
    case IR_FENCE:
        if (r->watch)
            r->watch->fence(r->watch, r, i);
        break;
    case IR_DOT: interp_dot(r, i); break;
    case IR_MMA_ZERO: memset(r->frag[in->res], 0, (size_t)r->groups * 64 * sizeof(float)); break;
    case IR_MMA: interp_mma(r, i); break;
    case IR_MMA_STORE: interp_mma_store(r, i); break;
    case IR_BROADCAST:
    case IR_RESHAPE:
    case IR_SLICE:
    case IR_PAD:
    case IR_TRANS: interp_shape(r, in); break;
    case IR_MATMUL: interp_matmul(r, in); break;
    case IR_SIMD_SHUFFLE: interp_shuffle(r, i); break;
    default:
        if (ir_is_atomic(in))
            interp_atomic(r, i);
        else if (ir_rows[in->op].rule == IR_RULE_REDUCE)
            interp_reduce(r, in);
        else if (ir_rows[in->op].rule == IR_RULE_SCAN)
            interp_scan(r, in);
        else if (in->nargs)
            interp_elementwise(r, in);
        else
            interp_identity(r, in);
    }
    return i + 1;
}

static void run_program(run *r)
{
    memset(r->active, 1, (size_t)r->threads);
    r->depth = 0;
    if (r->watch)
        r->watch->program(r->watch, r);
    for (uint32_t i = 0; i < r->ir->ninsns && !r->st;)
        i = interp_step(r, i);
}

static bool prepare(run *r)
{
    const eas_ir *ir = r->ir;
    uint32_t regions = 0;
    r->info = ir_analyse(ir);
    r->threads = r->info.mode == EAS_MODE_THREAD ? r->info.block : 1;
    r->groups = (r->threads + IR_SIMD - 1) / IR_SIMD;
    r->val = arena_alloc(&r->mem, ir->nvals * sizeof *r->val);
    r->frag = arena_alloc(&r->mem, ir->nvals * sizeof *r->frag);
    r->tg = arena_alloc(&r->mem, ir->nvals * sizeof *r->tg);
    r->active = arena_alloc(&r->mem, (size_t)r->threads);
    r->end = ir_region_ends(ir, &r->mem);
    for (uint32_t i = 0; i < ir->ninsns; i++)
        regions += ir->insns[i].op == IR_LOOP || ir->insns[i].op == IR_WHILE || ir->insns[i].op == IR_IF;
    r->stack = arena_alloc(&r->mem, (regions + 1) * sizeof *r->stack);
    for (uint32_t i = 0; i <= regions && r->stack; i++)
        r->stack[i].saved = arena_alloc(&r->mem, (size_t)r->threads);
    return !r->mem.oom && plan_storage(r);
}

int64_t interp_scalar_lane(eas_dtype dt, uint64_t slot)
{
    uint8_t b[8];
    memcpy(b, &slot, 8);
    return interp_load_element(dt, b);
}

eas_status interp_watched(const eas_ir *ir, const ir_call *call, watch *w)
{
    run r = {.ir = ir, .call = call, .watch = w};
    if (!prepare(&r)) {
        arena_free(&r.mem);
        return base_fail(EAS_ERR_MEMORY, "out of memory: kernel %s needs more than there is for its values",
                         ir->name);
    }
    for (int p = 0; p < ir->nparams; p++)
        if (ir->vals[p + 1].type.kind == IR_VAL)
            for (int64_t k = 0; k < r.threads; k++)
                r.val[p + 1][k] = interp_scalar_lane(ir->vals[p + 1].type.dtype, call->slot[p]);
    for (r.pid[2] = 0; r.pid[2] < call->grid[2] && !r.st; r.pid[2]++)
        for (r.pid[1] = 0; r.pid[1] < call->grid[1] && !r.st; r.pid[1]++)
            for (r.pid[0] = 0; r.pid[0] < call->grid[0] && !r.st; r.pid[0]++) {
                run_program(&r);
                ask(&r);
            }
    arena_free(&r.mem);
    return r.st;
}

eas_status ir_interp(const eas_ir *ir, const ir_call *call)
{
    eas_ir *plain;
    eas_status st = ir_expanded(ir, 0, &plain);
    if (st)
        return st;
    st = interp_watched(plain, call, NULL);
    eas_ir_release(plain);
    return st;
}
