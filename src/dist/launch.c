/* launch.c: a program's run on every device of this process: arguments, collectives, results.
 *
 * A collective is a step of the plan that starts, and one that waits. Tensors that are sent as one message,
 * or lie on a device whose memory the host cannot read, are copied to memory of their own in between.
 */
#include "run.h"

#include <stdio.h>

typedef struct running {
    const program *g;
    eas_node *const *args; /* per tensor of the run */
    const int64_t *numbers;
    const uint8_t *given; /* per tensor: its memory may be taken; NULL: none's */
    const eas_launch *hooks;
    eas_buffer **outs; /* [device][result of the plan] */
} running;
typedef struct device {
    const running *r;
    comm *c;
    int64_t number;
    int first; /* rank of the mesh's first device */
} device;

static comm_op op_of(coll_kind k)
{
    static const comm_op ops[] = {COMM_all_gather, COMM_all_reduce, COMM_reduce_scatter, COMM_all_to_all,
                                  COMM_ppermute};
    return ops[k];
}

/* The receiver and the sender of this device in a ppermute. */
static void set_pairs(const int64_t *words, comm_call *call)
{
    call->to = call->from = -1;
    for (int64_t i = 0; i < words[COLL_PAIRS]; i++) {
        if (words[COLL_WORDS + 2 * i] == call->group->me)
            call->to = (int)words[COLL_WORDS + 2 * i + 1];
        if (words[COLL_WORDS + 2 * i + 1] == call->group->me)
            call->from = (int)words[COLL_WORDS + 2 * i];
    }
}

/* A collective that was started. Several tensors in one message, and tensors in memory that the host cannot
 * read, are copied to send and recv. */
typedef struct under_way {
    comm_request *request;
    char *send, *recv; /* NULL: the tensors' own */
    int n;
    struct {
        eas_buffer *in, *out; /* borrowed */
    } at[];
} under_way;

/* Copies the tensors to u->send, or (out) u->recv to the tensors. */
static eas_status copy_all(const device *d, const under_way *u, bool out)
{
    eas_device *device = d->r->g->device;
    const bool host = eas_device_has_host_memory(device);
    eas_status st = EAS_OK;
    char *own = out ? u->recv : u->send;
    for (int i = 0; i < u->n && !st; i++) {
        eas_buffer *b = out ? u->at[i].out : u->at[i].in;
        size_t n = eas_buffer_size(b);
        void *data = eas_buffer_address(b), *to = out ? data : own, *from = out ? own : data;
        if (host && n)
            memcpy(to, from, n);
        else if (n)
            st = eas_device_copy(out ? device : NULL, to, out ? NULL : device, from, n, NULL);
        own += n;
    }
    return st;
}

static void under_way_free(under_way *u)
{
    free(u->send);
    free(u->recv);
    free(u);
}

static eas_status start_call(device *d, const int64_t *words, comm_group *group, eas_dtype dt, under_way *u)
{
    bool host = eas_device_has_host_memory(d->r->g->device), own = !host || u->n > 1;
    size_t nin = 0, nout = 0;
    for (int i = 0; i < u->n; i++) {
        nin += eas_buffer_size(u->at[i].in);
        nout += eas_buffer_size(u->at[i].out);
    }
    u->send = own ? malloc(nin + 1) : NULL;
    u->recv = own ? malloc(nout + 1) : NULL;
    if (own && (!u->send || !u->recv))
        return base_fail_oom(nin + nout);
    bool blocks = words[COLL_KIND] == COLL_SCATTER || words[COLL_KIND] == COLL_EXCHANGE;
    comm_call call = {.op = op_of((coll_kind)words[COLL_KIND]),
                      .red = (comm_reduction)words[COLL_JOIN],
                      .dtype = dt,
                      .group = group,
                      .fast = d->r->g->m->m.fast != 0,
                      .count = (int64_t)(nin / eas_dtype_size(dt)) / (blocks ? group->n : 1),
                      .send = own ? u->send : eas_buffer_address(u->at[0].in),
                      .recv = own ? u->recv : eas_buffer_address(u->at[0].out),
                      .site = words[COLL_SITE] < 0 ? NULL : d->r->g->sites.at[words[COLL_SITE]]};
    set_pairs(words, &call);
    if (u->n == 1) { /* for messages */
        call.rank = (int)words[coll_rank_at(words)];
        call.shape = words + coll_rank_at(words) + 1;
    }
    eas_status st = own ? copy_all(d, u, false) : EAS_OK;
    return st ? st : comm_start(d->c, &call, &u->request);
}

static eas_status start_collective(void *ctx, const int64_t *words, int n, const eas_dtype *dtypes,
                                   eas_buffer *const *in, eas_buffer *const *out, const eas_launch *hooks,
                                   void **request)
{
    device *d = ctx;
    const dist_mesh *m = d->r->g->m;
    eas_dim_spec axes = spec_dim_of(words[COLL_AXES]);
    int few[64], *ranks = m->ndevices <= 64 ? few : malloc(sizeof *ranks * (size_t)m->ndevices);
    under_way *u = calloc(1, sizeof *u + sizeof u->at[0] * (size_t)n);
    comm_group *group = NULL;
    *request = NULL;
    if (!ranks || !u) {
        if (ranks != few)
            free(ranks);
        free(u);
        return base_fail_oom((size_t)m->ndevices);
    }
    u->n = n;
    for (int i = 0; i < n; i++) {
        u->at[i].in = in[i];
        u->at[i].out = out[i];
    }
    int64_t members = mesh_members(m, &axes, d->number, ranks);
    for (int64_t i = 0; i < members; i++)
        ranks[i] += d->first;
    eas_status st = comm_group_get(d->c, (int)members, ranks, &group);
    const bool locks = hooks && hooks->leave && hooks->enter;
    if (locks)
        hooks->leave(hooks->ctx);
    if (!st)
        st = start_call(d, words, group, dtypes[0], u);
    if (locks)
        hooks->enter(hooks->ctx);
    if (ranks != few)
        free(ranks);
    if (st)
        under_way_free(u);
    else
        *request = u;
    return st;
}

static eas_status wait_collective(void *ctx, void *request, const eas_launch *hooks)
{
    device *d = ctx;
    under_way *u = request;
    const bool locks = hooks && hooks->leave && hooks->enter;
    if (locks)
        hooks->leave(hooks->ctx);
    eas_status st = comm_wait(d->c, u->request);
    if (!st && u->recv)
        st = copy_all(d, u, true);
    if (locks)
        hooks->enter(hooks->ctx);
    under_way_free(u);
    return st;
}

static void poll_collectives(void *ctx)
{
    device *d = ctx;
    comm_poll(d->c);
}

static eas_buffer *buffer_of(const eas_node *n, int place)
{
    eas_buffer *b = atomic_load_explicit(&((eas_node *)(uintptr_t)n)->buf, memory_order_acquire);
    const dist_parts *parts = parts_of_buffer(b);
    return parts ? parts->at[place] : b;
}

static bool may_take(const running *r, int which, int place)
{
    const eas_buffer *b = buffer_of(r->args[which], place), *whole = atomic_load(&r->args[which]->buf);
    bool alone = r->given && r->given[which] && b != whole && b->owned &&
                 __atomic_load_n(&b->refs, __ATOMIC_ACQUIRE) == 1 &&
                 __atomic_load_n(&whole->refs, __ATOMIC_ACQUIRE) == 1;
    for (int i = 0; i < r->g->ngiven && alone; i++)
        alone = i == which || buffer_of(r->args[i], place) != b;
    return alone;
}

static eas_status run_device(void *ctx, int64_t number, int place, comm *c)
{
    const running *r = ctx;
    const program *g = r->g;
    device d = {r, c, number, g->ndevices == 1 && c->size > 1 ? g->m->m.first : 0};
    plan_comm with = {start_collective, wait_collective, poll_collectives, &d};
    int64_t *numbers = malloc(sizeof *numbers * (size_t)(g->nnumbers + 1));
    eas_buffer **bufs = malloc(sizeof *bufs * (size_t)(g->nleaves + 1));
    uint8_t *given = calloc((size_t)g->nleaves + 1, 1);
    eas_status st = numbers && bufs && given ? EAS_OK : base_fail_oom((size_t)g->nleaves);
    for (int i = 0; i < g->nnumbers && !st; i++)
        numbers[i] = g->numbers[i].which < 0 ? g->numbers[i].bits : r->numbers[g->numbers[i].which];
    for (int i = 0; i < g->nleaves && !st; i++) {
        const leaf *l = &g->leaves[i];
        bufs[i] = l->which < 0 ? l->place[place] : buffer_of(r->args[l->which], place);
        given[i] = l->which >= 0 && r->given && may_take(r, l->which, place);
    }
    if (!st) {
        plan_run run = {.bufs = bufs,
                        .numbers = numbers,
                        .given = given,
                        .comm = &with,
                        .hooks = g->ndevices > 1 ? NULL : r->hooks};
        st = plan_go(g->p, &run, r->outs + (size_t)place * g->p->nouts);
    }
    free(numbers);
    free(bufs);
    free(given);
    return st;
}

/* A result from its parts. */
static eas_status result_buffer(const running *r, int i, const team *t, eas_buffer **out)
{
    const program *g = r->g;
    int64_t n = team_size(t);
    uint32_t at = g->outs[i].at;
    if (spec_plain(&g->outs[i].spec) && n) {
        *out = eas_buffer_retain(r->outs[at]);
        return EAS_OK;
    }
    if (spec_plain(&g->outs[i].spec)) /* comes from the mesh's first rank */
        return eas_buffer_new(g->device, g->outs[i].bytes, out);
    eas_buffer **parts = malloc(sizeof *parts * (size_t)(n + 1));
    eas_status st = parts ? EAS_OK : base_fail_oom((size_t)n);
    for (int64_t k = 0; k < n && !st; k++)
        parts[k] = r->outs[(size_t)k * g->p->nouts + at];
    if (!st)
        st = parts_new(g->m, &g->outs[i].spec, true, g->device, team_first(t), n, parts, out);
    free(parts);
    return st;
}

/* Devices of one process may share a queue of the device that they compute on: where launches are not
 * awaited, several of them leave a failure there, which the next one to wait would be told of. */
static eas_status clear_failures(const program *g, eas_status st)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", eas_error_message());
    for (int64_t i = 0; i < g->ndevices && eas_device_synchronize(g->device, NULL); i++)
        ;
    return base_fail(st, "%s", text);
}

/* A mesh may have fewer devices than the job has ranks. The ranks that are not of it compute nothing and have
 * no parts; results that are whole go to them from the mesh's first rank. These bytes are no collective of
 * the program, and are not counted as such. */
static eas_status tell_others(const program *g, eas_buffer **results, const eas_launch *hooks)
{
    comm *world;
    eas_status st = comm_world(&world);
    if (st || world->size == 1 || g->m->ndevices == world->size)
        return st;
    const bool locks = hooks && hooks->leave && hooks->enter, host = eas_device_has_host_memory(g->device);
    comm_stats counted = world->stats;
    if (locks)
        hooks->leave(hooks->ctx);
    for (int i = 0; i < g->nouts && !st; i++) {
        size_t n = g->outs[i].bytes;
        if (!spec_plain(&g->outs[i].spec) || !n)
            continue;
        void *data = eas_buffer_address(results[i]), *at = host ? data : malloc(n);
        bool here = world->rank == g->m->m.first;
        st = at ? EAS_OK : base_fail_oom(n);
        if (!st && !host && here)
            st = eas_device_copy(NULL, at, g->device, data, n, NULL);
        if (!st)
            st = comm_run(world, &(comm_call){.op = COMM_broadcast,
                                              .dtype = EAS_U8,
                                              .count = (int64_t)n,
                                              .root = g->m->m.first,
                                              .send = at,
                                              .recv = at,
                                              .site = "a result for the ranks outside of its mesh"});
        if (!st && !host && !here)
            st = eas_device_copy(g->device, data, NULL, at, n, NULL);
        if (!host)
            free(at);
    }
    if (locks)
        hooks->enter(hooks->ctx);
    world->stats = counted;
    return st;
}

eas_status program_go(const program *g, eas_node *const *args, const int64_t *numbers, const uint8_t *given,
                      const eas_launch *hooks, eas_buffer **results)
{
    team *t = NULL;
    eas_status st = team_get(g->m, &t);
    if (st)
        return st;
    size_t n = (size_t)team_size(t) * g->p->nouts;
    running r = {g, args, numbers, given, hooks, calloc(n + 1, sizeof *r.outs)};
    int done = 0;
    if (!r.outs)
        return base_fail_oom(n);
    st = team_run(t, run_device, &r, hooks);
    if (st && !eas_device_has_host_memory(g->device))
        st = clear_failures(g, st);
    for (; done < g->nouts && !st; done++)
        st = result_buffer(&r, done, t, &results[done]);
    const bool failed_there = st != EAS_OK; /* results[done - 1] was not made */
    if (!st)
        st = tell_others(g, results, hooks);
    for (int i = 0; st && i + failed_there < done; i++)
        eas_buffer_release(results[i]);
    for (size_t i = 0; i < n; i++)
        if (r.outs[i])
            eas_buffer_release(r.outs[i]);
    free(r.outs);
    return st;
}
