/* diff_live.c: the way of `_interpret=True` without Python: each instruction of finished IR goes through a
 * live builder, and the loops and branches of the IR are loops and branches here. */
#include "diff.h"

typedef struct replay {
    const eas_ir *ir;
    eas_builder *b;
    uint32_t *map; /* values of ir -> values of b */
    uint32_t *end; /* region ends */
} replay;

static void run_range(replay *r, uint32_t i, uint32_t end);

static void set_all(replay *r, uint32_t first, int n, const uint32_t *v)
{
    for (int k = 0; k < n; k++)
        r->map[first + (uint32_t)k] = v[k];
}

static void get_all(const replay *r, const ir_insn *in, int skip, uint32_t *v)
{
    for (int k = skip; k < in->nargs; k++)
        v[k - skip] = r->map[ir_args(r->ir, in)[k]];
}

/* What the threads that take part have computed becomes what is carried. */
static void carry(replay *r, const ir_insn *end, uint32_t *v)
{
    uint32_t next[64];
    get_all(r, end, 0, next);
    for (int k = 0; k < end->nargs; k++)
        v[k] = eas_live_merge(r->b, v[k], next[k]);
}

static void run_loop(replay *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i], *end = &r->ir->insns[r->end[i]];
    const uint32_t *a = ir_args(r->ir, in);
    uint32_t v[64];
    eas_value iv;
    get_all(r, in, 3, v);
    int more = eas_live_loop(r->b, r->map[a[0]], r->map[a[1]], r->map[a[2]], &iv);
    for (; more && !eas_builder_status(r->b); more = eas_live_again(r->b, &iv)) {
        r->map[in->res] = iv;
        set_all(r, in->res + 1, in->nargs - 3, v);
        run_range(r, i + 1, r->end[i]);
        carry(r, end, v);
    }
    set_all(r, end->res, end->nres, v);
}

static uint32_t find_part(const replay *r, uint32_t i, uint16_t op)
{
    uint32_t k = i + 1;
    for (; k < r->end[i] && r->ir->insns[k].op != op; k++)
        if (r->ir->insns[k].op == IR_LOOP || r->ir->insns[k].op == IR_WHILE || r->ir->insns[k].op == IR_IF)
            k = r->end[k];
    return k;
}

static void run_while(replay *r, uint32_t i)
{
    const ir_insn *in = &r->ir->insns[i], *end = &r->ir->insns[r->end[i]];
    uint32_t v[64], test = find_part(r, i, IR_DO);
    get_all(r, in, 0, v);
    eas_live_while(r->b);
    while (!eas_builder_status(r->b)) {
        set_all(r, in->res, in->nargs, v);
        run_range(r, i + 1, test);
        if (!eas_live_test(r->b, r->map[ir_args(r->ir, &r->ir->insns[test])[0]]))
            break;
        run_range(r, test + 1, r->end[i]);
        carry(r, end, v);
    }
    set_all(r, end->res, end->nres, v);
}

/* One of two by a condition that is the same for a whole program, or per thread. */
static uint32_t choose(replay *r, uint32_t cond, uint32_t yes, uint32_t no)
{
    uint8_t c[IR_MAX_THREADS] = {0};
    ir_type t = ir_typeof(r->b->ir, yes);
    if (t.kind == IR_VAL && !t.rank)
        return irb_op(r->b, IR_WHERE, cond, yes, no);
    eas_live_read(r->b, cond, c);
    return c[0] ? yes : no;
}

static void run_if(replay *r, uint32_t i)
{
    const ir_insn *end = &r->ir->insns[r->end[i]];
    uint32_t cond = r->map[ir_args(r->ir, &r->ir->insns[i])[0]], yes[64], no[64],
             half = find_part(r, i, IR_ELSE);
    eas_live_if(r->b, cond);
    run_range(r, i + 1, half);
    if (half < r->end[i])
        get_all(r, &r->ir->insns[half], 0, yes);
    eas_live_end(r->b);
    eas_live_else(r->b, cond);
    if (half < r->end[i])
        run_range(r, half + 1, r->end[i]);
    get_all(r, end, 0, no);
    eas_live_end(r->b);
    for (int k = 0; k < end->nres && !eas_builder_status(r->b); k++)
        r->map[end->res + (uint32_t)k] = choose(r, cond, yes[k], no[k]);
}

static void run_range(replay *r, uint32_t i, uint32_t end)
{
    for (; i < end && !eas_builder_status(r->b); i++)
        switch (r->ir->insns[i].op) {
        case IR_LOOP: run_loop(r, i), i = r->end[i]; break;
        case IR_WHILE: run_while(r, i), i = r->end[i]; break;
        case IR_IF: run_if(r, i), i = r->end[i]; break;
        default: irb_copy(r->b, r->ir, i, r->map);
        }
}

static eas_status run_programs(replay *r, const trial *t, uint8_t *memory)
{
    eas_arg args[MAX_BUFS + 2];
    int n = diff_args(t, memory, args), more;
    eas_launch opts = {.size = sizeof opts, .has_grid = 1, .grid = {t->grid[0], t->grid[1], t->grid[2]}};
    eas_status st = eas_live_begin(r->b, args, n, &opts);
    if (st)
        return st;
    while ((more = eas_live_next(r->b)) == 1) {
        for (int p = 1; p <= r->ir->nparams; p++)
            r->map[p] = (uint32_t)p;
        run_range(r, 0, r->ir->ninsns);
    }
    return more < 0 ? (eas_status)more : eas_builder_status(r->b);
}

eas_status diff_live(const trial *t, const eas_ir *ir, uint8_t *memory)
{
    arena mem = {0};
    replay r = {
        .ir = ir, .map = arena_alloc(&mem, ir->nvals * sizeof(uint32_t)), .end = ir_region_ends(ir, &mem)};
    eas_status st = irb_like(ir, &r.b);
    if (!st) {
        r.b->ir->threads = 0; /* the kernel says it itself */
        st = run_programs(&r, t, memory);
    }
    eas_builder_free(r.b);
    arena_free(&mem);
    return st;
}
