/* comm.c: what programs call of a communicator, for all engines: checks, groups, counters, and groups of one
 * rank, which no engine sees. */
#include "reduce.h"

/* ---- names ---- */

static const char *const op_names[] = {
#define COMM_X(name, reduces) #name,
    COMM_OP_TABLE(COMM_X)
#undef COMM_X
};
static const bool op_reduces[] = {
#define COMM_X(name, reduces) reduces,
    COMM_OP_TABLE(COMM_X)
#undef COMM_X
};
static const char *const reduction_names[] = {
#define COMM_X(name) #name,
    COMM_REDUCTION_TABLE(COMM_X)
#undef COMM_X
};

const char *comm_op_name(comm_op op) { return op < COMM_NOPS ? op_names[op] : "unknown"; }
const char *comm_reduction_name(comm_reduction red)
{
    return red < COMM_NREDUCTIONS ? reduction_names[red] : "unknown";
}
bool comm_op_reduces(comm_op op) { return op < COMM_NOPS && op_reduces[op]; }

bool comm_reduction_parse(const char *name, comm_reduction *out)
{
    for (int i = 0; i < COMM_NREDUCTIONS; i++)
        if (!strcmp(name, reduction_names[i]))
            return *out = (comm_reduction)i, true;
    return false;
}

/* ---- groups ---- */

static uint64_t hash_ranks(int n, const int *ranks)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ (uint64_t)n;
    for (int i = 0; i < n; i++) {
        h = (h ^ (uint64_t)(unsigned)ranks[i]) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 29;
    }
    return h;
}

static eas_status check_ranks(const comm *c, int n, const int *ranks, int *me)
{
    *me = -1;
    if (n < 1 || n > c->size)
        return base_fail(EAS_ERR_VALUE, "a group has 1 to %d ranks, not %d", c->size, n);
    for (int i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= c->size)
            return base_fail(EAS_ERR_VALUE, "rank %d in a group: there are ranks 0 to %d", ranks[i],
                             c->size - 1);
        for (int j = 0; j < i; j++)
            if (ranks[j] == ranks[i])
                return base_fail(EAS_ERR_VALUE, "rank %d is twice in a group", ranks[i]);
        if (ranks[i] == c->rank)
            *me = i;
    }
    return *me < 0
             ? base_fail(EAS_ERR_VALUE, "rank %d calls a collective of a group that it is not in", c->rank)
             : EAS_OK;
}

static comm_group *find_group(const comm *c, uint64_t hash, int n, const int *ranks)
{
    for (uint32_t i = 0; i < c->groups.len; i++) {
        comm_group *g = c->groups.at[i];
        if (g->hash == hash && g->n == n && !memcmp(g->ranks, ranks, sizeof *ranks * (size_t)n))
            return g;
    }
    return NULL;
}

eas_status comm_group_get(comm *c, int n, const int *ranks, comm_group **out)
{
    uint64_t hash = hash_ranks(n > 0 ? n : 0, ranks);
    if ((*out = find_group(c, hash, n, ranks)))
        return EAS_OK;
    int me;
    eas_status st = check_ranks(c, n, ranks, &me);
    if (st)
        return st;
    comm_group *g = calloc(1, sizeof *g + sizeof *ranks * (size_t)n);
    if (!g)
        return base_fail_oom(sizeof *g);
    int *copy = (int *)(void *)(g + 1);
    memcpy(copy, ranks, sizeof *ranks * (size_t)n);
    *g = (comm_group){.n = n, .me = me, .ranks = copy, .hash = hash, .id = (int)c->groups.len};
    if (!vec_push(&c->groups, g)) {
        free(g);
        return base_fail_oom(sizeof *g);
    }
    *out = g;
    return EAS_OK;
}

eas_status comm_init(comm *c, const comm_engine *engine, int rank, int size)
{
    c->engine = engine, c->rank = rank, c->size = size;
    int *all = malloc(sizeof *all * (size_t)size);
    if (!all)
        return base_fail_oom(sizeof *all * (size_t)size);
    for (int i = 0; i < size; i++)
        all[i] = i;
    comm_group *g;
    eas_status st = comm_group_get(c, size, all, &g);
    free(all);
    return st;
}

void comm_done(comm *c)
{
    for (uint32_t i = 0; i < c->groups.len; i++)
        free(c->groups.at[i]);
    vec_free(&c->groups);
}

/* ---- calls ---- */

/* The blocks that this member sends and receives: 0, 1 or n. */
static void blocks_of(const comm_call *k, int *sends, int *receives)
{
    const comm_group *g = k->group;
    int n = g->n, at_root = g->me == k->root;
    *sends = *receives = 1;
    switch (k->op) {
    case COMM_all_gather: *receives = n; break;
    case COMM_reduce_scatter: *sends = n; break;
    case COMM_all_to_all: *sends = *receives = n; break;
    case COMM_ppermute: *sends = k->to >= 0; break;
    case COMM_broadcast: *sends = at_root; break;
    case COMM_gather: *receives = at_root ? n : 0; break;
    case COMM_scatter: *sends = at_root ? n : 0; break;
    case COMM_barrier: *sends = *receives = 0; break;
    default: break;
    }
}

static eas_status check_member(const comm_call *k, const char *what, int member, int least)
{
    if (member < least || member >= k->group->n)
        return base_fail(EAS_ERR_VALUE, "%s: %s %d: the group has members 0 to %d", comm_op_name(k->op), what,
                         member, k->group->n - 1);
    return EAS_OK;
}

static eas_status check_call(const comm_call *k)
{
    const char *name = comm_op_name(k->op);
    if (k->op >= COMM_NOPS)
        return base_fail(EAS_ERR_VALUE, "there is no collective with the number %d", (int)k->op);
    if (k->op == COMM_barrier)
        return EAS_OK;
    if (k->dtype >= EAS_NDTYPES)
        return base_fail(EAS_ERR_TYPE, "%s: there is no dtype with the number %d", name, (int)k->dtype);
    int64_t most = INT64_MAX / 8 / k->group->n;
    if (k->count < 0 || k->count > most)
        return base_fail(EAS_ERR_VALUE, "%s: a block of %lld elements", name, (long long)k->count);
    if (op_reduces[k->op] && (k->red >= COMM_NREDUCTIONS || !reduce_fits(k->red, k->dtype)))
        return base_fail(EAS_ERR_TYPE, "%s: \"%s\" is not for %s%s", name, comm_reduction_name(k->red),
                         eas_dtype_name(k->dtype),
                         k->dtype == EAS_BOOL
                             ? ": cast it to an integer, or use \"or\", \"and\", \"max\", \"min\""
                             : ": use integers or bool");
    eas_status st = EAS_OK;
    if (k->op == COMM_ppermute && !(st = check_member(k, "to", k->to, -1)))
        st = check_member(k, "from", k->from, -1);
    if (k->op == COMM_broadcast || k->op == COMM_gather || k->op == COMM_scatter)
        st = check_member(k, "root", k->root, 0);
    if (st)
        return st;
    int sends, receives;
    blocks_of(k, &sends, &receives);
    if (k->count && ((sends && !k->send) || (receives && !k->recv)))
        return base_fail(EAS_ERR_VALUE, "%s: \"%s\" is NULL", name, sends && !k->send ? "send" : "recv");
    return EAS_OK;
}

/* Members of a binomial tree from the root that this member sends to. */
int comm_children(int n, int me, int root)
{
    int place = (me - root + n) % n, count = 0;
    for (int bit = 1; place + bit < n && !(place & bit); bit *= 2)
        count++;
    return count;
}

uint64_t comm_bytes(const comm_call *k)
{
    const comm_group *g = k->group;
    if (!g || g->n == 1)
        return 0;
    uint64_t n = (uint64_t)g->n, size = eas_dtype_size(k->dtype), count = (uint64_t)k->count,
             me = (uint64_t)g->me, b = count * size;
    switch (k->op) {
    case COMM_all_gather:
    case COMM_all_to_all:
    case COMM_reduce_scatter: return (n - 1) * b;
    /* all parts but the own one go out, and the own one, reduced, to all others; two members swap what they
     * have */
    case COMM_all_reduce: {
        if (n == 2 && b <= COMM_SWAP)
            return b;
        uint64_t own = (comm_part(count, me + 1, n) - comm_part(count, me, n)) * size;
        return b - own + (n - 1) * own;
    }
    case COMM_ppermute: return k->to >= 0 && k->to != g->me ? b : 0;
    case COMM_broadcast: return (uint64_t)comm_children(g->n, g->me, k->root) * b;
    case COMM_gather: return g->me == k->root ? 0 : b;
    case COMM_scatter: return g->me == k->root ? (n - 1) * b : 0;
    default: return 0;
    }
}

/* A collective over one member: the operand is copied to the result. */
static void run_alone(const comm_call *k)
{
    size_t bytes = (size_t)k->count * eas_dtype_size(k->dtype);
    if (k->op == COMM_barrier || !bytes)
        return;
    if (k->op == COMM_ppermute && k->from < 0)
        memset(k->recv, 0, bytes);
    else if (k->send != k->recv)
        memcpy(k->recv, k->send, bytes);
}

static char alone; /* the request of a call that is done */

eas_status comm_start(comm *c, const comm_call *call, comm_request **out)
{
    *out = NULL;
    comm_call k = *call;
    if (!k.group)
        k.group = c->groups.at[0];
    eas_status st = check_call(&k);
    if (st)
        return st;
    if (k.op == COMM_barrier)
        k.count = 0, k.dtype = EAS_U8;
    c->stats.calls[k.op]++;
    c->stats.bytes[k.op] += comm_bytes(&k);
    if (k.group->n > 1)
        return c->engine->start(c, &k, out);
    run_alone(&k);
    *out = (comm_request *)(void *)&alone;
    return EAS_OK;
}

eas_status comm_wait(comm *c, comm_request *r)
{
    if (!r || (void *)r == (void *)&alone)
        return EAS_OK;
    return c->engine->wait(c, r);
}

eas_status comm_run(comm *c, const comm_call *call)
{
    comm_request *r;
    eas_status st = comm_start(c, call, &r);
    return st ? st : comm_wait(c, r);
}

eas_status comm_barrier(comm *c, const char *site)
{
    return comm_run(c, &(comm_call){.op = COMM_barrier, .site = site});
}

void comm_poll(comm *c)
{
    if (c->engine->poll)
        c->engine->poll(c);
}

void comm_abort(comm *c, const char *why)
{
    if (c->engine->abort)
        c->engine->abort(c, why ? why : "no reason given");
}

void comm_close(comm *c)
{
    if (c)
        c->engine->close(c);
}

/* ---- what is said of calls ---- */

uint64_t comm_call_hash(const comm_call *k, bool all)
{
    uint64_t parts[] = {k->op, op_reduces[k->op] ? k->red + (k->fast ? 64u : 0) : 0, k->dtype,
                        (uint64_t)k->count, (uint64_t)(k->op >= COMM_broadcast ? k->root : 0)};
    uint64_t h = 0x243f6a8885a308d3u;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        h = (h ^ parts[i]) * 0xbf58476d1ce4e5b9u, h ^= h >> 31;
    if (!all)
        return h;
    for (int i = 0; i < k->rank && k->shape; i++)
        h = (h ^ (uint64_t)k->shape[i]) * 0x94d049bb133111ebu, h ^= h >> 29;
    for (const char *s = k->site; s && *s; s++)
        h = (h ^ (uint64_t)(unsigned char)*s) * 0x100000001b3u;
    return h ^ h >> 32;
}

void comm_record_set(comm_record *r, const comm_call *k, uint64_t number)
{
    r->number = number;
    r->op = k->op, r->red = k->red, r->dtype = k->dtype, r->count = k->count, r->members = k->group->n;
    r->rank = k->shape && k->rank <= COMM_MAX_DIMS ? k->rank : -1;
    if (r->rank > 0)
        memcpy(r->shape, k->shape, sizeof *r->shape * (size_t)r->rank);
    size_t n = k->site ? strnlen(k->site, COMM_SITE - 1) : 0;
    if (n)
        memcpy(r->site, k->site, n);
    r->site[n] = 0;
}

void comm_record_copy(comm_record *to, const comm_record *from)
{
    memcpy(to, from, offsetof(comm_record, shape));
    if (from->rank > 0)
        memcpy(to->shape, from->shape, sizeof *to->shape * (size_t)from->rank);
    memcpy(to->site, from->site, strnlen(from->site, COMM_SITE - 1) + 1);
}

void comm_record_text(const comm_record *r, char *out, size_t size)
{
    str s = {0};
    str_add(&s, "%s #%llu", comm_op_name(r->op), (unsigned long long)r->number);
    if (r->op != COMM_barrier) {
        if (comm_op_reduces(r->op))
            str_add(&s, " (%s)", comm_reduction_name(r->red));
        str_add(&s, " of %s[", eas_dtype_name(r->dtype));
        for (int i = 0; i < r->rank; i++)
            str_add(&s, "%s%lld", i ? ", " : "", (long long)r->shape[i]);
        if (r->rank < 0)
            str_add(&s, "%lld", (long long)r->count);
        str_add(&s, "]");
    }
    str_add(&s, " over %d ranks", r->members);
    if (*r->site)
        str_add(&s, " at %s", r->site);
    size_t n = s.at ? s.len < size ? s.len : size - 1 : 0;
    if (n)
        memcpy(out, s.at, n);
    out[n] = 0;
    str_free(&s);
}

double comm_timeout(void)
{
    const char *e = getenv("EAS_DIST_TIMEOUT");
    double t = e && *e ? strtod(e, NULL) : 0;
    return t > 0 ? t < 1e8 ? t : 1e8 : 30;
}

bool comm_debug(void)
{
    const char *e = getenv("EAS_DIST_DEBUG");
    return e && *e && strcmp(e, "0") != 0;
}
