/* cost.c: what the program of one device costs, predicted from its graph. Nothing runs and no memory of
 * tensors is needed.
 *
 * The local graph is flattened and fused as for a run (exec), so kernels are those that would run. A kernel
 * takes the longer of: its arithmetic, matrix products and the rest each at its speed, and the bytes that it
 * reads and writes at the speed of memory; and what a launch takes. A collective takes what its algorithm
 * does on links that have a latency and a bandwidth: rings, and for small all_reduces a tree. Steps run in
 * the order that a plan would have (plan_order); kernels one after another, collectives one after another,
 * and beside kernels where the machine does that. Memory is counted as a plan has it: what is made lives
 * until its last reader is done.
 */
#include "cost.h"

#include <math.h>

/* ---- collectives ---- */

static const eas_link *slowest(const dist_mesh *m, const eas_machine *machine, const eas_dim_spec *axes)
{
    const eas_link *worst = &machine->link[axes->n ? axes->axes[0] : 0];
    (void)m;
    for (int i = 1; i < axes->n; i++) {
        const eas_link *l = &machine->link[axes->axes[i]];
        if (l->bandwidth < worst->bandwidth)
            worst = l;
    }
    return worst;
}

/* bytes: what one device gives. */
double cost_collective(const dist_mesh *m, const eas_machine *machine, coll_kind kind,
                       const eas_dim_spec *axes, double bytes, int64_t *sent)
{
    double n = (double)spec_parts(m, axes), steps, most, total = 0;
    const eas_link *l = slowest(m, machine, axes);
    switch (kind) {
    case COLL_GATHER:
        steps = n - 1;
        total = (n - 1) * bytes;
        break;
    case COLL_SCATTER:
    case COLL_EXCHANGE:
        steps = n - 1;
        total = (n - 1) / n * bytes;
        break;
    case COLL_PERMUTE:
        steps = 1;
        total = bytes;
        break;
    default:
        steps = 2 * (n - 1);
        total = 2 * (n - 1) / n * bytes;
        break;
    }
    *sent = (int64_t)(total + 0.5);
    most = steps * l->latency + total / l->bandwidth;
    if (kind == COLL_REDUCE) { /* up and down a tree: fewer messages, more bytes */
        double depth = 2 * ceil(log2(n)), tree = depth * (l->latency + bytes / l->bandwidth);
        most = tree < most ? tree : most;
    }
    return n > 1 ? most : 0;
}

/* ---- kernels ---- */

static double count_of(int rank, const eas_dim *shape)
{
    double c = 1;
    for (int d = 0; d < rank; d++)
        c *= dim_known(shape[d]) ? (double)shape[d] : 64;
    return c;
}

static double bytes_of(const pnode *p)
{
    return count_of(p->rank, p->shape) * (double)eas_dtype_size((eas_dtype)p->dtype);
}

/* Arithmetic operations for one element: elementary functions are polynomials of about a dozen. */
static double weight_of(const pnode *p)
{
    const char *ir = graph_rows[p->op].ir;
    static const char *const dear[] = {"exp",  "exp2", "log",   "log2", "sin",     "cos",
                                       "tan",  "tanh", "erf",   "pow",  "sigmoid", "asin",
                                       "acos", "atan", "atan2", "sinh", "cosh"};
    static const char *const fair[] = {"div", "sqrt", "rsqrt", "rem", "mod"};
    for (size_t i = 0; ir && i < sizeof dear / sizeof *dear; i++)
        if (!strcmp(ir, dear[i]))
            return 12;
    for (size_t i = 0; ir && i < sizeof fair / sizeof *fair; i++)
        if (!strcmp(ir, fair[i]))
            return 4;
    return ir ? 1 : 4;
}

typedef struct work {
    double products[3]; /* flops: f32 and integers, f64, 16 bits */
    double other, read, written;
} work;

static int product_class(const pnode *p)
{
    int bits = dtype_bits((eas_dtype)p->dtype);
    return !dtype_is_float((eas_dtype)p->dtype) ? 0 : bits == 64 ? 1 : bits == 16 ? 2 : 0;
}

static void add_work(const pgraph *g, const pnode *p, work *w)
{
    double n = count_of(p->rank, p->shape);
    const pnode *x = p->nin ? pass_at(g, p->in[0]) : NULL;
    switch (p->kind) {
    case KIND_MATMUL: w->products[product_class(x)] += 2 * n * count_of(1, x->shape + x->rank - 1); break;
    case KIND_MAP: w->other += n * weight_of(p); break;
    case KIND_REDUCE:
    case KIND_ARG:
    case KIND_SCAN: w->other += count_of(x->rank, x->shape); break;
    case KIND_SORT: w->other += 4 * n * log2(count_of(1, p->shape + p->words[0]) + 2); break;
    case KIND_RANDOM: w->other += 40 * n; break;
    case KIND_CAST:
    case KIND_GATHER:
    case KIND_ALONG:
    case KIND_SCATTER:
    case KIND_IOTA:
    case KIND_PAD: w->other += n; break;
    default: break;
    }
}

/* ---- the graph of one device ---- */

typedef struct step {
    uint32_t group;
    double seconds, flops, bytes;
    int kind; /* -1: a kernel; coll_kind; 5: a loop or a branch */
    int64_t sent;
} step;
typedef struct graph {
    const dist_mesh *m;
    const eas_machine *machine;
    cost *total;
    sim_events *events;
    double start; /* of it, in the program */
    int depth;
    pgraph g;
    fusion f;
    uint32_t *slot_of; /* per node; SLOT_NONE */
    VEC(slot) slots;
    VEC(plan_step) steps;
    VEC(step) info;
    uint32_t *stamp, now; /* per node: of the walk over a group */
    VEC(uint32_t) stack;
    eas_status st;
} graph;
enum { MOST_EVENTS = 200000, LOOP = 5 };

static uint32_t new_slot(graph *w, uint32_t leaf, eas_dtype dt, int rank, const eas_dim *shape)
{
    eas_dim n = (eas_dim)count_of(rank, shape);
    slot s = {.leaf = leaf, .dtype = (uint8_t)dt, .count = n, .takes = SLOT_NONE};
    if (!vec_push(&w->slots, s)) {
        w->st = base_fail_oom(sizeof s);
        return SLOT_NONE;
    }
    return w->slots.len - 1;
}

static uint32_t slot_for(graph *w, uint32_t node)
{
    const pnode *p = pass_at(&w->g, node);
    if (w->slot_of[node] == SLOT_NONE)
        w->slot_of[node] =
            new_slot(w, p->kind == KIND_LEAF ? p->param : SLOT_NONE, (eas_dtype)p->dtype, p->rank, p->shape);
    return w->slot_of[node];
}

static double slot_bytes(const slot *s)
{
    return (double)s->count * (double)eas_dtype_size((eas_dtype)s->dtype);
}

/* A step with these slots; the first nouts are written. */
static void add_step(graph *w, step info, int nouts, uint32_t nslots, const uint32_t *slots)
{
    plan_step s = {
        .nargs = (int)nslots, .nouts = nouts, .reuse = SLOT_NONE, .grid = {(eas_dim)w->info.len, 1, 1}};
    s.args = calloc(nslots + 1u, sizeof *s.args);
    for (uint32_t i = 0; s.args && i < nslots; i++)
        s.args[i] = (struct plan_arg){.what = USE_NODE, .index = slots[i]};
    if (!s.args || !vec_push(&w->steps, s) || !vec_push(&w->info, info)) {
        free(s.args);
        w->st = w->st ? w->st : base_fail_oom(sizeof s);
    }
}

static bool computed_here(const graph *w, uint32_t grp, uint32_t x)
{
    return !fused_stored(&w->f, x) ||
           (w->f.at[x].group == grp && !w->f.at[x].many && pass_at(&w->g, x)->kind != KIND_LEAF);
}

static bool selects(const pnode *p)
{
    return p->kind == KIND_SLICE || p->kind == KIND_GATHER || p->kind == KIND_ALONG;
}

/* Bytes that are read of x, which is in memory, for p. */
static double read_of(const pnode *p, const pnode *x)
{
    double all = bytes_of(x),
           some = count_of(p->rank, p->shape) * (double)eas_dtype_size((eas_dtype)x->dtype);
    return selects(p) && some < all ? some : all;
}

static void visit(graph *w, uint32_t x)
{
    if (w->stamp[x] == w->now)
        return;
    w->stamp[x] = w->now;
    if (!vec_push(&w->stack, x))
        w->st = base_fail_oom(sizeof x);
}

static void kernel_group(graph *w, uint32_t grp)
{
    const group *g = &w->f.groups.at[grp];
    work k = {0};
    VEC(uint32_t) slots = {0};
    w->now++;
    w->stack.len = 0;
    for (uint32_t i = 0; i < g->roots.len && !w->st; i++) {
        uint32_t s = slot_for(w, g->roots.at[i].node);
        k.written += bytes_of(pass_at(&w->g, g->roots.at[i].node));
        if (!vec_push(&slots, s))
            w->st = base_fail_oom(sizeof s);
        visit(w, g->roots.at[i].node);
        visit(w, g->roots.at[i].value);
    }
    uint32_t nouts = slots.len;
    while (w->stack.len && !w->st) {
        uint32_t at = w->stack.at[--w->stack.len];
        const pnode *p = pass_at(&w->g, at);
        add_work(&w->g, p, &k);
        for (int i = 0; i < p->nin && !w->st; i++) {
            const pnode *x = pass_at(&w->g, p->in[i]);
            if (x->kind == KIND_CONST || w->stamp[p->in[i]] == w->now)
                continue;
            if (computed_here(w, grp, p->in[i])) {
                visit(w, p->in[i]);
                continue;
            }
            w->stamp[p->in[i]] = w->now;
            k.read += read_of(p, x);
            if (!vec_push(&slots, slot_for(w, p->in[i])))
                w->st = base_fail_oom(sizeof at);
        }
    }
    const eas_machine *m = w->machine;
    double share = m->cores > 0 && (double)w->m->ndevices > m->cores ? (double)w->m->ndevices / m->cores : 1;
    double products =
        k.products[0] / m->product_f32 + k.products[1] / m->product_f64 + k.products[2] / m->product_f16;
    double arithmetic = products + k.other / m->elementwise,
           memory = (k.read + k.written) / m->memory_bandwidth;
    double most = memory > arithmetic ? memory : arithmetic;
    step s = {.group = grp,
              .kind = -1,
              .seconds = (m->launch + most) * share,
              .flops = k.products[0] + k.products[1] + k.products[2] + k.other,
              .bytes = k.read + k.written};
    if (!w->st)
        add_step(w, s, (int)nouts, slots.len, slots.at);
    vec_free(&slots);
}

static eas_status graph_cost(graph *around, double start, int n, eas_node *const *outs, const dist_mesh *m,
                             const eas_machine *machine, cost *out, sim_events *events);

/* A trip, as often as there are some; of a branch the dearer side. */
static void control_cost(graph *w, const graph_control *c, step *s)
{
    double trips = c->branch ? 1 : c->length == DIM_NONE || !dim_known(c->length) ? 1 : (double)c->length;
    cost each[2] = {{0}}, *k = &each[0];
    for (int f = 0; f < (c->branch ? 2 : 1) && !w->st; f++)
        w->st = graph_cost(w, 0, c->fn[f].n, c->fn[f].outs, w->m, w->machine, &each[f], NULL);
    if (c->branch && each[1].seconds > each[0].seconds)
        k = &each[1];
    s->seconds = trips * k->seconds;
    s->flops = trips * k->flops;
    s->bytes = (double)(k->memory - k->arguments);
    w->total->compute += trips * k->compute;
    w->total->communication += trips * k->communication;
    w->total->flops += trips * k->flops;
    w->total->kernels += (int64_t)trips * k->kernels;
    for (int i = 0; i < 5; i++) {
        w->total->sent[i] += (int64_t)trips * k->sent[i];
        w->total->calls[i] += (int64_t)trips * k->calls[i];
        w->total->link[i] += trips * k->link[i];
    }
}

static void call_group(graph *w, uint32_t grp)
{
    uint32_t core = w->f.groups.at[grp].core, first = w->slots.len, nslots = 0;
    const pnode *p = pass_at(&w->g, core);
    const node_extra *e = p->extra;
    uint32_t *slots = malloc(sizeof *slots * (size_t)(e->nouts + p->nin + 1));
    step s = {.group = grp, .kind = -1};
    double given = 0, made = 0;
    if (!slots) {
        w->st = base_fail_oom(sizeof *slots);
        return;
    }
    for (int i = 0; i < e->nouts; i++) {
        slots[nslots++] = new_slot(w, SLOT_NONE, e->outs[i].dtype, e->outs[i].rank, e->outs[i].shape);
        made += w->st ? 0 : slot_bytes(&w->slots.at[slots[nslots - 1]]);
    }
    w->slot_of[core] = first;
    for (int i = 0; i < p->nin && !w->st; i++) {
        if (pass_at(&w->g, p->in[i])->kind == KIND_CONST)
            continue;
        slots[nslots] = slot_for(w, p->in[i]);
        given += w->st ? 0 : slot_bytes(&w->slots.at[slots[nslots]]);
        nslots++;
    }
    if (p->kind == KIND_COLLECTIVE && !w->st) {
        eas_dim_spec axes = spec_dim_of(p->words[COLL_AXES]);
        s.kind = (int)p->words[COLL_KIND];
        s.bytes = given;
        s.seconds = cost_collective(w->m, w->machine, (coll_kind)s.kind, &axes, given, &s.sent);
    } else if (p->kind == KIND_CONTROL && !w->st) {
        s.kind = LOOP;
        control_cost(w, e->control, &s);
    } else {
        s.bytes = given + made;
        s.seconds = w->machine->launch + s.bytes / w->machine->memory_bandwidth;
    }
    if (!w->st)
        add_step(w, s, e->nouts, nslots, slots);
    free(slots);
}

static void add_group(graph *w, uint32_t grp)
{
    const group *g = &w->f.groups.at[grp];
    if (g->roots.len == 0)
        return;
    if (g->kind == GROUP_CALL)
        call_group(w, grp);
    else if (g->kind == GROUP_ALIAS) {
        const pnode *p = pass_at(&w->g, g->core);
        w->slot_of[g->core] = slot_for(w, p->in[0]) + (uint32_t)p->words[0];
    } else
        kernel_group(w, grp);
}

/* ---- in order ---- */

static const char *name_of(const graph *w, const step *s)
{
    const group *g = &w->f.groups.at[s->group];
    uint32_t at = g->kind == GROUP_MAP ? g->roots.at[0].node : g->core;
    static const char *const kinds[] = {"all_gather", "all_reduce", "reduce_scatter", "all_to_all",
                                        "ppermute"};
    if (s->kind >= 0 && s->kind < LOOP)
        return kinds[s->kind];
    return g->kind == GROUP_ATTENTION ? "attention" : graph_rows[pass_at(&w->g, at)->op].name;
}

static uint32_t site_of(const graph *w, const step *s)
{
    const group *g = &w->f.groups.at[s->group];
    return pass_at(&w->g, g->kind == GROUP_MAP ? g->roots.at[0].node : g->core)->site;
}

static void note_event(graph *w, const step *s, double start, double memory)
{
    eas_sim_event e = {.name = name_of(w, s),
                       .site = site_of(w, s),
                       .lane = s->kind >= 0 && s->kind < LOOP ? EAS_SIM_LINKS
                             : s->kind == LOOP                ? EAS_SIM_LOOPS
                                                              : EAS_SIM_KERNELS,
                       .start = w->start + start,
                       .seconds = s->seconds,
                       .flops = s->flops,
                       .bytes = s->kind >= 0 && s->kind < LOOP ? s->sent : (int64_t)s->bytes,
                       .memory = (int64_t)memory};
    if (w->events && w->events->len < MOST_EVENTS && !vec_push(w->events, e))
        w->st = base_fail_oom(sizeof e);
}

/* The events of a loop's trips, inside the loop. */
static void open_loop(graph *w, const step *s, double start)
{
    const graph_control *c = pass_at(&w->g, w->f.groups.at[s->group].core)->extra->control;
    int64_t trips = c->branch || c->length == DIM_NONE || !dim_known(c->length) ? 1 : c->length;
    cost k = {0};
    if (!w->events || !trips)
        return;
    uint32_t first = w->events->len, n;
    w->st = graph_cost(w, w->start + start, c->fn[0].n, c->fn[0].outs, w->m, w->machine, &k, w->events);
    n = w->events->len - first;
    for (int64_t t = 1; t < trips && !w->st && w->events->len + n < MOST_EVENTS; t++)
        for (uint32_t i = 0; i < n && !w->st; i++) {
            eas_sim_event e = w->events->at[first + i];
            e.start += (double)t * k.seconds;
            if (!vec_push(w->events, e))
                w->st = base_fail_oom(sizeof e);
        }
}

typedef struct clocks {
    double kernels, links; /* when each is free again */
    double *ready;         /* per slot */
    uint32_t *last;        /* per slot: the last step that needs it */
    double now, most;      /* bytes */
} clocks;

static void run_step(graph *w, clocks *c, uint32_t i)
{
    const plan_step *p = &w->steps.at[i];
    const step *s = &w->info.at[p->grid[0]];
    bool link = s->kind >= 0 && s->kind < LOOP;
    double start = w->machine->overlap && link ? c->links : c->kernels;
    if (!w->machine->overlap && c->links > start)
        start = c->links;
    for (int k = p->nouts; k < p->nargs; k++)
        start = c->ready[p->args[k].index] > start ? c->ready[p->args[k].index] : start;
    for (int k = 0; k < p->nouts; k++) {
        c->ready[p->args[k].index] = start + s->seconds;
        c->now += slot_bytes(&w->slots.at[p->args[k].index]);
    }
    double inside = s->kind == LOOP ? s->bytes : 0;
    c->most = c->now + inside > c->most ? c->now + inside : c->most;
    note_event(w, s, start, c->now);
    if (s->kind == LOOP)
        open_loop(w, s, start);
    *(link ? &c->links : &c->kernels) = start + s->seconds;
    for (int k = 0; k < p->nargs; k++) {
        const slot *x = &w->slots.at[p->args[k].index];
        if (c->last[p->args[k].index] == i && x->leaf == SLOT_NONE && !x->kept)
            c->now -= slot_bytes(x);
    }
    if (link) {
        w->total->communication += s->seconds;
        w->total->sent[s->kind] += s->sent;
        w->total->calls[s->kind]++;
        w->total->link[s->kind] += s->seconds;
    } else if (s->kind != LOOP) {
        w->total->compute += s->seconds;
        w->total->flops += s->flops;
        w->total->kernels++;
    }
}

static void run_all(graph *w)
{
    clocks c = {.ready = calloc(w->slots.len + 1u, sizeof *c.ready),
                .last = calloc(w->slots.len + 1u, sizeof *c.last)};
    if (!c.ready || !c.last)
        w->st = base_fail_oom(w->slots.len);
    for (uint32_t i = 0; i < w->steps.len && !w->st; i++)
        for (int k = 0; k < w->steps.at[i].nargs; k++)
            c.last[w->steps.at[i].args[k].index] = i;
    for (uint32_t i = 0; i < w->steps.len && !w->st; i++)
        run_step(w, &c, i);
    w->total->seconds = c.kernels > c.links ? c.kernels : c.links;
    w->total->memory = w->total->arguments + (int64_t)c.most;
    free(c.ready);
    free(c.last);
}

/* Bytes of the tensors that a run is given, and of the results that are made. */
static void count_ends(graph *w, const pass_walk *walk, uint32_t n, const uint32_t *roots)
{
    for (uint32_t i = 0; i < walk->leaves.len; i++)
        w->total->arguments += (int64_t)(count_of(walk->leaves.at[i]->rank, node_shape(walk->leaves.at[i])) *
                                         (double)eas_dtype_size((eas_dtype)walk->leaves.at[i]->dtype));
    for (uint32_t i = 0; i < n; i++)
        w->total->results += (int64_t)bytes_of(pass_at(&w->g, roots[i]));
}

static void all_groups(graph *w, uint32_t n, const uint32_t *roots)
{
    w->slot_of = malloc(sizeof *w->slot_of * (w->g.n.len + 1u));
    w->stamp = calloc(w->g.n.len + 1u, sizeof *w->stamp);
    if (!w->slot_of || !w->stamp) {
        w->st = base_fail_oom(w->g.n.len);
        return;
    }
    for (uint32_t i = 0; i < w->g.n.len; i++)
        w->slot_of[i] = SLOT_NONE;
    for (uint32_t i = w->f.groups.len; i-- > 1 && !w->st;)
        add_group(w, i);
    for (uint32_t i = 0; i < n && !w->st; i++) {
        uint32_t s = slot_for(w, roots[i]);
        if (!w->st)
            w->slots.at[s].kept = true;
    }
    if (!w->st)
        w->st = plan_order(w->steps.len, w->steps.at, w->slots.len, w->slots.at);
    if (!w->st)
        run_all(w);
}

static void clear(graph *w)
{
    for (uint32_t i = 0; i < w->steps.len; i++)
        free(w->steps.at[i].args);
    vec_free(&w->steps);
    vec_free(&w->info);
    vec_free(&w->slots);
    vec_free(&w->stack);
    free(w->slot_of);
    free(w->stamp);
}

static eas_status graph_cost(graph *around, double start, int n, eas_node *const *outs, const dist_mesh *m,
                             const eas_machine *machine, cost *out, sim_events *events)
{
    graph w = {.m = m,
               .machine = machine,
               .total = out,
               .events = events,
               .start = start,
               .depth = around ? around->depth + 1 : 0};
    pass_walk walk;
    uint32_t *at = NULL, *roots = malloc(sizeof *roots * ((size_t)n + 1));
    *out = (cost){0};
    w.st = roots ? pass_walk_from(&walk, n, outs) : base_fail_oom((size_t)n);
    if (w.st) {
        free(roots);
        return w.st;
    }
    at = malloc(sizeof *at * (walk.order.len + 1u));
    w.st = pass_init(&w.g);
    if (!w.st)
        w.st = at ? pass_flatten(&w.g, &walk, at) : base_fail_oom(walk.order.len);
    for (int i = 0; i < n && !w.st; i++)
        roots[i] = at[outs[i]->mark];
    if (!w.st)
        count_ends(&w, &walk, (uint32_t)n, roots);
    pass_walk_clear(&walk);
    if (!w.st) {
        w.st = fuse(&w.f, &w.g, (uint32_t)n, roots, 256, NULL);
        if (!w.st)
            all_groups(&w, (uint32_t)n, roots);
        fuse_free(&w.f);
    }
    clear(&w);
    pass_free(&w.g);
    free(at);
    free(roots);
    return w.st;
}

/* ---- all of it ---- */

typedef struct asking {
    const dist_mesh *m;
    const eas_machine *machine;
    cost *out;
    sim_events *events;
} asking;

static eas_status look(void *ctx, int n, eas_node *const *locals)
{
    const asking *a = ctx;
    eas_status st = graph_cost(NULL, a->machine->call, n, locals, a->m, a->machine, a->out, a->events);
    a->out->seconds += a->machine->call;
    return st;
}

eas_status cost_of(const dist_mesh *m, const eas_machine *machine, int n, eas_node *const *outs,
                   const eas_spec *specs, const pins *chosen, cost *out, sim_events *events)
{
    asking a = {m, machine, out, events};
    return dist_local(m, n, outs, specs, chosen, look, &a);
}

bool cost_machine_ok(const eas_machine *m)
{
    bool ok = m->product_f32 > 0 && m->product_f64 > 0 && m->product_f16 > 0 && m->elementwise > 0 &&
              m->memory_bandwidth > 0 && m->launch >= 0 && m->call >= 0 && m->memory >= 0 && m->cores >= 0;
    for (int i = 0; i < EAS_MESH_AXES && ok; i++)
        ok = m->link[i].bandwidth > 0 && m->link[i].latency >= 0;
    return ok;
}
