/* metal_plan.c: captures that are replayed. The launches of a capture are encoded once, into an indirect
 * command buffer; a replay then sends one message for each run of consecutive launches. Commands of an
 * indirect buffer cannot carry bytes, so scalars lie in a buffer of the plan. When arguments are rebound,
 * only the commands that use them are encoded again.
 *
 * Not encoded in advance: copies; launches that check their accesses, since each replay needs its own place
 * for their faults; and, on devices that do not find a pipeline by themselves, the first launch of each
 * pipeline in an encoder. The queue encodes these at every replay.
 */
#include "metal.h"

enum {
    DISPATCH = 1 << 5,
    DISPATCH_THREADS = 1 << 6, /* MTLIndirectCommandType */
    USE_READ = 1,
    USE_WRITE = 2, /* MTLResourceUsage */
    SCOPE_BUFFERS = 1, /* MTLBarrierScope */
    MOST_COMMANDS = 16384, /* of one range */
    ALIGN = 256, /* of a scalar: the most that a device wants of an offset */
};

typedef struct planned { /* a command */
    metal_call *call; /* as it is encoded; the pipeline is counted */
    size_t scalars; /* where its scalars begin */
} planned;

struct dev_plan {
    mtl_id commands, scalars;
    int32_t *command; /* per step; -1: none */
    planned *at;
    int nsteps, ncommands, nbuffers; /* nbuffers: as many are bound at most */
    mtl_id *used; /* everything that commands name, once each and counted */
    int nused;
};

/* ---- life ---- */

static void drop_used(mtl_id *used, int n)
{
    for (int i = 0; i < n; i++)
        SEND0(release, used[i]);
    free(used);
}

static void drop_call(metal_call *c)
{
    if (c && c->pipeline)
        SEND0(release, c->pipeline);
    free(c);
}

static void free_plan(dev_plan *p)
{
    for (int i = 0; p->at && i < p->ncommands; i++)
        drop_call(p->at[i].call);
    drop_used(p->used, p->nused);
    if (p->scalars)
        SEND0(release, p->scalars);
    if (p->commands)
        SEND0(release, p->commands);
    free(p->at);
    free(p->command);
    free(p);
}

void metal_plan_free(eas_device *d, dev_plan *p)
{
    (void)d;
    if (metal_forked())
        return;
    void *pool = metal_pool_push();
    free_plan(p);
    metal_pool_pop(pool);
}

/* ---- which steps are commands ---- */

typedef struct known { /* pipelines that the encoder has run */
    VEC(mtl_id) all;
} known;

/* Has the encoder run it? From now on it has. */
static bool has_run(known *k, mtl_id pipeline)
{
    for (uint32_t i = 0; i < k->all.len; i++)
        if (k->all.at[i] == pipeline)
            return true;
    vec_push(&k->all, pipeline); /* if it cannot be kept, one more launch is no command */
    return false;
}

static bool choose(dev_plan *p, const dev_step *steps)
{
    known k = {0};
    bool resident;
    metal_indirect(&resident);
    p->command = malloc(((size_t)p->nsteps + 1) * sizeof *p->command);
    for (int i = 0; i < p->nsteps && p->command; i++) {
        const dev_code *c = steps[i].code;
        bool plain = c && !c->checked;
        if (!plain)
            k.all.len = 0; /* it may end the encoder */
        p->command[i] = plain && (resident || has_run(&k, c->pipeline)) ? p->ncommands++ : -1;
    }
    vec_free(&k.all);
    return p->command != NULL;
}

/* ---- calls ---- */

/* Only what is used of it is kept. */
static metal_call *copy_call(const metal_call *c)
{
    size_t n = offsetof(metal_call, bytes) + (size_t)c->nbytes;
    metal_call *copy = malloc(n);
    if (!copy)
        return NULL;
    memcpy(copy, c, n);
    SEND0(retain, copy->pipeline);
    return copy;
}

static bool same_size(mtl_size a, mtl_size b)
{
    return a.width == b.width && a.height == b.height && a.depth == b.depth;
}

static bool same_arg(const metal_arg *a, const metal_arg *b)
{
    return a->buffer == b->buffer && a->offset == b->offset && a->index == b->index && a->at == b->at &&
           a->n == b->n;
}

static bool same_call(const metal_call *a, const metal_call *b)
{
    bool same = a->pipeline == b->pipeline && a->groups == b->groups && same_size(a->grid, b->grid) &&
                same_size(a->group, b->group) && a->nargs == b->nargs && a->nbytes == b->nbytes &&
                !memcmp(a->bytes, b->bytes, (size_t)a->nbytes);
    for (int i = 0; i < a->nargs && same; i++)
        same = same_arg(&a->arg[i], &b->arg[i]);
    return same;
}

static size_t scalar_room(const metal_call *c)
{
    size_t n = 0;
    for (int i = 0; i < c->nargs; i++)
        n += (c->arg[i].n + (size_t)ALIGN - 1) / ALIGN * ALIGN;
    return n;
}

static int buffers_of(const metal_call *c)
{
    int n = 0;
    for (int i = 0; i < c->nargs; i++)
        if (c->arg[i].index >= n)
            n = c->arg[i].index + 1;
    return n;
}

/* ---- commands ---- */

/* A buffer of no elements is bound to the scalars: something must be. */
static void bind(const dev_plan *p, const planned *it, mtl_id command)
{
    char *bytes = SEND0(contents, p->scalars);
    size_t at = it->scalars;
    for (int i = 0; i < it->call->nargs; i++) {
        const metal_arg *a = &it->call->arg[i];
        if (a->buffer) {
            SEND(set_its_buffer, command, a->buffer, a->offset, a->index);
            continue;
        }
        memcpy(bytes + at, it->call->bytes + a->at, a->n);
        SEND(set_its_buffer, command, p->scalars, a->n ? at : 0, a->index);
        at += (a->n + (size_t)ALIGN - 1) / ALIGN * ALIGN;
    }
}

/* Launches run in the order given: each waits for those before. */
static void encode(const dev_plan *p, int i)
{
    const planned *it = &p->at[i];
    mtl_id command = SEND(command_at, p->commands, (unsigned long)i);
    SEND0(reset, command);
    SEND(set_its_pipeline, command, it->call->pipeline);
    bind(p, it, command);
    SEND0(set_barrier, command);
    if (it->call->groups)
        SEND(its_groups, command, it->call->grid, it->call->group);
    else
        SEND(its_threads, command, it->call->grid, it->call->group);
}

static mtl_id new_commands(const dev_plan *p)
{
    mtl_id o = SEND0(alloc, metal_class("MTLIndirectCommandBufferDescriptor"));
    o = SEND0(init, o);
    SEND(set_types, o, DISPATCH | DISPATCH_THREADS);
    SEND(set_inherit_pipeline, o, 0);
    SEND(set_inherit_buffers, o, 0);
    SEND(set_most_buffers, o, (unsigned long)p->nbuffers);
    mtl_id commands = SEND(new_indirect, metal_device(), o, (unsigned long)p->ncommands, METAL_SHARED);
    SEND0(release, o);
    return commands;
}

/* ---- what the commands use ---- */

static int by_address(const void *a, const void *b)
{
    const mtl_id *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static eas_status list_used(dev_plan *p)
{
    size_t n = 0, kept = 0, most = 1;
    for (int i = 0; i < p->ncommands; i++)
        most += (size_t)p->at[i].call->nargs;
    mtl_id *used = malloc(most * sizeof *used);
    if (!used)
        return base_fail_oom(most * sizeof *used);
    for (int i = 0; i < p->ncommands; i++)
        for (int j = 0; j < p->at[i].call->nargs; j++)
            if (p->at[i].call->arg[j].buffer)
                used[n++] = p->at[i].call->arg[j].buffer;
    qsort(used, n, sizeof *used, by_address);
    for (size_t i = 0; i < n; i++)
        if (!i || used[i] != used[i - 1])
            used[kept++] = used[i];
    used[kept++] = p->scalars;
    for (size_t i = 0; i < kept; i++)
        SEND0(retain, used[i]);
    drop_used(p->used, p->nused);
    p->used = used;
    p->nused = (int)kept;
    return EAS_OK;
}

/* ---- making and changing ---- */

static eas_status keep_calls(dev_plan *p, const dev_step *steps, size_t *room)
{
    metal_call call;
    if (!(p->at = calloc((size_t)p->ncommands + 1, sizeof *p->at)))
        return base_fail_oom(sizeof *p->at);
    for (int i = 0; i < p->nsteps; i++) {
        if (p->command[i] < 0)
            continue;
        planned *it = &p->at[p->command[i]];
        eas_status st = metal_call_of(steps[i].code, &steps[i].l, &call);
        if (!st && !(it->call = copy_call(&call)))
            st = base_fail_oom(sizeof call);
        if (st)
            return st;
        it->scalars = *room;
        *room += scalar_room(&call);
        if (buffers_of(&call) > p->nbuffers)
            p->nbuffers = buffers_of(&call);
    }
    return EAS_OK;
}

static eas_status fill(dev_plan *p, const dev_step *steps)
{
    size_t room = 0;
    if (!choose(p, steps))
        return base_fail_oom(sizeof *p->command);
    if (!p->ncommands)
        return EAS_OK;
    eas_status st = keep_calls(p, steps, &room);
    if (st)
        return st;
    p->scalars = SEND(new_buffer, metal_device(), room ? room : ALIGN, METAL_SHARED);
    p->commands = p->scalars ? new_commands(p) : NULL;
    if (!p->commands)
        return base_fail(EAS_ERR_MEMORY, "device \"mps\": no memory to encode the %d launches of a graph",
                         p->ncommands);
    for (int i = 0; i < p->ncommands; i++)
        encode(p, i);
    return list_used(p);
}

static eas_status make(const dev_step *steps, int n, dev_plan **out)
{
    dev_plan *p = calloc(1, sizeof *p);
    if (!p)
        return base_fail_oom(sizeof *p);
    p->nsteps = n;
    eas_status st = fill(p, steps);
    if (st)
        free_plan(p);
    *out = st ? NULL : p;
    return st;
}

/* Are the same steps commands, of the same pipelines? */
static bool alike(const dev_plan *p, const dev_step *steps, int n)
{
    dev_plan again = {.nsteps = n};
    bool same = p->nsteps == n && choose(&again, steps) &&
                !memcmp(again.command, p->command, (size_t)n * sizeof *p->command);
    for (int i = 0; i < n && same; i++)
        same = p->command[i] < 0 || steps[i].code->pipeline == p->at[p->command[i]].call->pipeline;
    free(again.command);
    return same;
}

/* The layout of scalars is the pipeline's: it stays. */
static eas_status change(dev_plan *p, const dev_step *steps)
{
    metal_call call;
    bool any = false;
    for (int i = 0; i < p->nsteps; i++) {
        int32_t c = p->command[i];
        eas_status st = c < 0 ? EAS_OK : metal_call_of(steps[i].code, &steps[i].l, &call);
        if (st)
            return st;
        if (c < 0 || same_call(&call, p->at[c].call))
            continue;
        metal_call *copy = copy_call(&call);
        if (!copy)
            return base_fail_oom(sizeof call);
        drop_call(p->at[c].call);
        p->at[c].call = copy;
        encode(p, c);
        any = true;
    }
    return any ? list_used(p) : EAS_OK;
}

eas_status metal_plan(eas_device *d, const dev_step *steps, int n, dev_plan **plan)
{
    (void)d;
    bool resident;
    eas_status st = metal_ready();
    if (st || !metal_indirect(&resident))
        return st;
    void *pool = metal_pool_push();
    if (*plan && !alike(*plan, steps, n)) {
        free_plan(*plan);
        *plan = NULL;
    }
    st = *plan ? change(*plan, steps) : make(steps, n, plan);
    metal_pool_pop(pool);
    return st;
}

/* ---- replaying ---- */

int metal_plan_run(const dev_plan *p, int step)
{
    int n = 0;
    while (p && step + n < p->nsteps && p->command[step + n] >= 0)
        n++;
    return n;
}

/* Barriers: what the encoder has been told before is done first, what it is told later waits. */
void metal_plan_execute(const dev_plan *p, mtl_id compute, int step, int n)
{
    unsigned long first = (unsigned long)p->command[step], left = (unsigned long)n;
    SEND(use, compute, p->used, (unsigned long)p->nused, USE_READ | USE_WRITE);
    SEND(barrier, compute, SCOPE_BUFFERS);
    for (unsigned long part; left; first += part, left -= part) {
        part = left < MOST_COMMANDS ? left : MOST_COMMANDS;
        SEND(execute, compute, p->commands, ((mtl_range){first, part}));
    }
    SEND(barrier, compute, SCOPE_BUFFERS);
}
