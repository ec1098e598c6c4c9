/* node.c: nodes of the graph: making, counting, looking.
 *
 * A node lives while somebody counts it: handles of users, nodes recorded from it. Releasing a long chain
 * of nodes frees them in a loop, not by recursion. Data arrives once (node_settle), by exec and under its
 * lock; a reader that sees the buffer sees what was written before.
 */
#include "graph.h"

#include <stdio.h>

#include <pthread.h>

/* ---- memory of nodes ---- */

/* Nodes come and go by the million and are small: each thread keeps some of each size. What it keeps goes
 * back when the thread ends. Sizes are HEAD bytes less than a multiple of STEP: malloc hands out multiples of
 * 16 with a header of 8, and nothing is lost to rounding. */
enum { STEP = 16, HEAD = 8, SIZES = 16, KEPT = 16384, SETTLE = 1024 };
typedef struct store {
    void *at[SIZES]; /* lists, linked through the first word */
    int count[SIZES];
    int64_t live;    /* nodes made less nodes freed, not yet in the common number */
    uint32_t site;   /* where nodes are recorded now */
    unsigned open;   /* branches */
    uint16_t branches; /* the same, as nodes recorded now carry it */
    bool known;      /* to the end of the thread */
    bool constant;   /* nothing recorded now is taped or traced */
} store;
static _Thread_local store own;
static _Atomic int64_t live_nodes;
static pthread_key_t ending;
static pthread_once_t ending_once = PTHREAD_ONCE_INIT;

static void forget_numbers(void);

static void give_back(void *p)
{
    store *s = p;
    forget_numbers();
    for (int i = 0; i < SIZES; i++)
        while (s->at[i]) {
            void *next = *(void **)s->at[i];
            free(s->at[i]);
            s->at[i] = next;
        }
    memset(s->count, 0, sizeof s->count);
    atomic_fetch_add_explicit(&live_nodes, s->live, memory_order_relaxed);
    s->live = 0;
    s->known = false;
}

static void make_key(void) { pthread_key_create(&ending, give_back); }

/* What this thread keeps. Looking it up is a call; the compiler, which thinks it free, is kept from doing it
 * again at every use. */
static inline store *mine(void)
{
    store *s = &own;
    __asm__("" : "+r"(s));
    return s;
}

static void meet_thread(store *s)
{
    pthread_once(&ending_once, make_key);
    s->known = pthread_setspecific(ending, s) == 0;
}

static void count_live(store *s, int by)
{
    s->live += by;
    if (s->live > SETTLE || s->live < -SETTLE) {
        atomic_fetch_add_explicit(&live_nodes, s->live, memory_order_relaxed);
        s->live = 0;
    }
}

static size_t size_class(size_t size) { return (size + HEAD - 1) / STEP; }

static void *node_alloc(store *s, size_t size)
{
    size_t k = size_class(size);
    count_live(s, 1);
    if (k >= SIZES)
        return malloc(size);
    if (!s->known)
        meet_thread(s);
    void *p = s->at[k];
    if (!p)
        return malloc((k + 1) * STEP - HEAD);
    s->at[k] = *(void **)p;
    s->count[k]--;
    return p;
}

static void node_dealloc(store *s, eas_node *n)
{
    count_live(s, -1);
#if !defined(__SANITIZE_ADDRESS__) /* which wants to see every free */
    size_t k = (size_t)n->room - 1;
    if (n->room && s->known && s->count[k] < KEPT) {
        *(void **)n = s->at[k];
        s->at[k] = n;
        s->count[k]++;
        return;
    }
#endif
    free(n);
}
_Thread_local bool node_expanding;
static int (*site_resolve)(uint32_t site, char *file, size_t room, int *line);

uint64_t node_live(void)
{
    return (uint64_t)(atomic_load_explicit(&live_nodes, memory_order_relaxed) + own.live);
}

/* ---- counting ---- */

eas_node *node_ref(eas_node *n)
{
    atomic_fetch_add_explicit(&n->counts, NODE_REF, memory_order_relaxed);
    return n;
}

static void drop_extra(node_extra *e)
{
    if (!e)
        return;
    call_share_release(e->share);
    if (e->drop)
        e->drop(e->object);
    if (e->kernel)
        eas_kernel_release(e->kernel);
    control_release(e->control);
    diff_rule_release(e->rule);
    diff_pullback_drop(e->pullback);
    node_unref(atomic_load_explicit(&e->wider, memory_order_relaxed));
    free(e->outs);
    free(e->numbers);
    free(e->order);
    free(e->begin);
    free(e);
}

/* One reference less; a node that nobody counts any more goes on the list of dead ones. The only reference
 * there is needs no atomic step: nobody can take one from it, but for eas_node_revive, which knows nodes by
 * what hangs on them. */
static void drop_count(eas_node *n, uint64_t kind, eas_node **dead)
{
    bool last = !n->extra && atomic_load_explicit(&n->counts, memory_order_acquire) == kind;
    if (!last && atomic_fetch_sub_explicit(&n->counts, kind, memory_order_acq_rel) != kind)
        return;
    eas_node *e = n->expansion;
    n->expansion = *dead;
    *dead = n;
    if (e)
        drop_count(e, NODE_REF, dead);
}
static void let_go(eas_node *n, eas_node **dead) { drop_count(n, NODE_REF, dead); }

static void bury(eas_node *dead)
{
    store *s = dead ? mine() : NULL;
    while (dead) {
        eas_node *n = dead;
        dead = n->expansion;
        for (int i = 0; i < n->nin; i++)
            let_go(node_in(n)[i], &dead);
        eas_buffer *buf = atomic_load_explicit(&n->buf, memory_order_relaxed);
        if (buf)
            eas_buffer_release(buf);
        drop_extra(n->extra);
        node_dealloc(s, n);
    }
}

void node_unref(eas_node *n)
{
    eas_node *dead = NULL;
    if (n)
        let_go(n, &dead);
    bury(dead);
}

eas_node *eas_node_retain(eas_node *n)
{
    NEED(n, NULL);
    atomic_fetch_add_explicit(&n->counts, NODE_HANDLE, memory_order_relaxed);
    return n;
}

void eas_node_release(eas_node *n)
{
    eas_node *dead = NULL;
    if (n)
        drop_count(n, NODE_HANDLE, &dead);
    bury(dead);
}

eas_node *eas_node_revive(eas_node *n)
{
    NEED(n, NULL);
    uint64_t counts = atomic_load_explicit(&n->counts, memory_order_relaxed);
    while (counts)
        if (atomic_compare_exchange_weak_explicit(&n->counts, &counts, counts + NODE_HANDLE,
                                                  memory_order_acq_rel, memory_order_relaxed))
            return n;
    return NULL;
}

int eas_node_is_shared(const eas_node *n)
{
    NEED(n, 0);
    return node_refs(n) > 1;
}

/* ---- making ---- */

static eas_status other_device(uint16_t op, const eas_device *a, const eas_device *b)
{
    return base_fail(EAS_ERR_VALUE,
                     "eager.%s: one tensor is on %s and another on %s; move one with .to(device)",
                     graph_rows[op].name, eas_device_name(a), eas_device_name(b));
}

eas_status node_new(uint16_t op, eas_dtype dt, int batch_dims, int rank, const eas_dim *shape, int nwords,
                    const int64_t *words, int nin, eas_node *const *in, eas_node **out)
{
    *out = NULL;
    if (rank > GRAPH_MAX_RANK)
        return base_fail(EAS_ERR_VALUE,
                         "eager.%s: a result of %d dims; there are at most %d, those of vmap included",
                         graph_rows[op].name, rank, GRAPH_MAX_RANK);
    eas_device *device = NULL;
    uint32_t depth = 0;
    unsigned flags = 0;
    for (int i = 0; i < nin; i++) {
        const eas_node *x = in[i];
        if (x->device && x->device != device) {
            if (device)
                return other_device(op, device, x->device);
            device = x->device;
        }
        flags |= x->flags;
        if (x->depth >= depth && !node_real(x))
            depth = x->depth + 1;
    }
    store *s = mine();
    size_t size = sizeof(eas_node) + sizeof(int64_t) * (size_t)(rank + nwords + nin);
    eas_node *n = node_alloc(s, size);
    if (!n)
        return base_fail_oom(size);
    memset(n, 0, sizeof *n);
    n->room = (uint8_t)(size_class(size) < SIZES ? size_class(size) + 1 : 0);
    atomic_init(&n->counts, NODE_REF);
    n->op = op;
    n->dtype = (uint8_t)dt;
    n->rank = (uint8_t)rank;
    n->batch_dims = (uint8_t)batch_dims;
    n->flags = (uint16_t)((flags & (s->constant ? NODE_SYMBOLIC | NODE_SHARDED
                                                : NODE_KEEPS | NODE_SYMBOLIC | NODE_SHARDED)) |
                          s->branches);
    if (op == GRAPH_SHARD)
        n->flags |= NODE_SHARDED;
    n->nin = (uint16_t)nin;
    n->nwords = (uint16_t)nwords;
    n->site = s->site;
    n->device = device;
    n->depth = depth;
    int64_t *at = n->at;
    bool unknown = false;
    for (int i = 0; i < rank; i++) {
        unknown |= shape[i] < 0;
        *at++ = shape[i];
    }
    if (unknown)
        n->flags |= NODE_SYMBOLIC;
    for (int i = 0; i < nwords; i++)
        *at++ = words[i];
    for (int i = 0; i < nin; i++)
        node_in(n)[i] = node_ref(in[i]);
    *out = n;
    return EAS_OK;
}

void node_cut(eas_node *n)
{
    eas_node *dead = NULL;
    if (!node_real(n) || n->flags & NODE_KEEPS)
        return;
    for (int i = 0; i < n->nin; i++)
        let_go(node_in(n)[i], &dead);
    n->nin = 0;
    bury(dead);
}

void node_settle(eas_node *n, eas_buffer *buf)
{
    eas_node *dead = NULL;
    atomic_store_explicit(&n->buf, buf, memory_order_release);
    n->depth = 0;
    n->device = eas_buffer_device(buf);
    node_cut(n);
    if (n->extra && n->extra->pullback) {
        eas_pullback *p = n->extra->pullback;
        n->extra->pullback = NULL;
        diff_pullback_drop(p);
    }
    if (n->expansion) {
        eas_node *e = n->expansion;
        n->expansion = NULL;
        let_go(e, &dead);
    }
    bury(dead);
}

eas_status eas_node_from_buffer(eas_buffer *buf, eas_dtype dt, int rank, const int64_t *shape, int64_t offset,
                                const int64_t *strides, eas_node **out)
{
    NEED(buf, EAS_ERR_HANDLE);
    NEED(rank <= 0 || shape, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    int64_t words[GRAPH_MAX_RANK + 1] = {offset}, dense = 1;
    bool plain = offset == 0;
    *out = NULL;
    if (rank < 0 || rank > GRAPH_MAX_RANK)
        return base_fail(EAS_ERR_VALUE, "eager: a tensor of %d dims; there are at most %d", rank,
                         GRAPH_MAX_RANK);
    int64_t low = offset, high = offset, empty = 0;
    for (int i = rank - 1; i >= 0; i--) {
        words[1 + i] = strides ? strides[i] : dense;
        plain &= shape[i] == 1 || words[1 + i] == dense;
        empty |= shape[i] == 0;
        int64_t reach = (shape[i] - 1) * words[1 + i];
        *(reach < 0 ? &low : &high) += reach;
        dense *= shape[i];
    }
    if (!empty && (low < 0 || (uint64_t)(high + 1) * eas_dtype_size(dt) > eas_buffer_size(buf)))
        return base_fail(EAS_ERR_VALUE, "eager: elements %lld to %lld of a buffer of %zu bytes",
                         (long long)low, (long long)high, eas_buffer_size(buf));
    eas_status st =
        node_new(GRAPH_LEAF, dt, 0, rank, shape, plain || empty ? 0 : rank + 1, words, 0, NULL, out);
    if (st)
        return st;
    (*out)->device = eas_buffer_device(buf);
    node_hand_out(*out);
    atomic_store_explicit(&(*out)->buf, eas_buffer_retain(buf), memory_order_release);
    return EAS_OK;
}

void eas_node_mark_constant(eas_node *n)
{
    NEED_(n);
    if (n->op == GRAPH_LEAF && !n->nwords)
        n->op = GRAPH_CONSTANT;
}

eas_status eas_node_input(int index, eas_dtype dt, int rank, const eas_dim *shape, int batch_dims,
                          eas_device *d, eas_node **out)
{
    if (rank && !shape)
        return base_null(__func__, "shape");
    NEED(out, EAS_ERR_HANDLE);
    int64_t word = index;
    eas_status st = node_new(GRAPH_INPUT, dt, batch_dims, rank, shape, 1, &word, 0, NULL, out);
    if (st)
        return st;
    (*out)->flags |= NODE_SYMBOLIC;
    (*out)->device = d;
    node_hand_out(*out);
    return EAS_OK;
}

/* ---- numbers ---- */

/* The last numbers of this thread: Python's literals come back again and again, and one node for equal ones
 * makes their equality visible. */
enum { RECENT = 64 };
typedef struct recent {
    eas_node *node[RECENT];
} recent;
static _Thread_local recent numbers;

static void forget_numbers(void)
{
    for (int i = 0; i < RECENT; i++) {
        node_unref(numbers.node[i]);
        numbers.node[i] = NULL;
    }
}

eas_status node_const(eas_dtype dt, bool weak, int64_t bits, eas_node **out)
{
    uint64_t h = ((uint64_t)bits ^ (uint64_t)bits >> 32 ^ (uint64_t)dt * 2 ^ weak) * 0x9e3779b97f4a7c15u;
    eas_node **slot = &numbers.node[h >> 58];
    if (!node_expanding && *slot && (*slot)->dtype == dt && node_words(*slot)[0] == bits &&
        node_words(*slot)[1] == weak) {
        *out = node_ref(*slot);
        return EAS_OK;
    }
    int64_t words[2] = {bits, weak};
    eas_status st = node_new(GRAPH_CONST, dt, 0, 0, NULL, 2, words, 0, NULL, out);
    if (st)
        return st;
    if (weak)
        (*out)->flags |= NODE_WEAK;
    (*out)->site = 0;
    if (node_expanding) {
        (*out)->flags |= NODE_FIXED;
        return EAS_OK;
    }
    node_unref(*slot);
    *slot = node_ref(*out);
    return EAS_OK;
}

eas_status node_const_double(eas_dtype dt, bool weak, double v, eas_node **out)
{
    if (dtype_is_float(dt))
        return node_const(dt, weak, ir_bits_from_double(dt, v), out);
    return node_const(dt, weak,
                      dt == EAS_BOOL  ? v != 0
                      : dt == EAS_U64 ? (int64_t)(uint64_t)v
                                      : (int64_t)v,
                      out);
}

bool node_const_bits(const eas_node *n, int64_t *bits)
{
    if (n->op != GRAPH_CONST)
        return false;
    *bits = node_words(n)[0];
    return true;
}

static int64_t wrapped(eas_dtype dt, int64_t v)
{
    int bits = dtype_bits(dt);
    if (dt == EAS_BOOL)
        return v != 0;
    if (bits == 64)
        return v;
    uint64_t low = (uint64_t)v << (64 - bits);
    return dtype_is_signed(dt) ? (int64_t)low >> (64 - bits) : (int64_t)(low >> (64 - bits));
}

eas_status eas_node_number(eas_dtype dt, int weak, int64_t i, double f, eas_node **out)
{
    NEED(out, EAS_ERR_HANDLE);
    eas_status st =
        node_const(dt, weak != 0, dtype_is_float(dt) ? ir_bits_from_double(dt, f) : wrapped(dt, i), out);
    if (!st)
        atomic_fetch_add_explicit(&(*out)->counts, NODE_HANDLE - NODE_REF, memory_order_relaxed);
    return st;
}

int eas_node_number_value(const eas_node *n, int64_t *i, double *f)
{
    NEED(n, 0);
    NEED(i, 0);
    NEED(f, 0);
    int64_t bits;
    if (!node_const_bits(n, &bits))
        return 0;
    bool real = dtype_is_float((eas_dtype)n->dtype);
    *f = real                ? ir_bits_to_double((eas_dtype)n->dtype, bits)
       : n->dtype == EAS_U64 ? (double)(uint64_t)bits
                             : (double)bits;
    *i = real ? 0 : bits;
    return 1;
}

/* ---- a number in another dtype: as the cast of the IR does ---- */
static eas_status const_cast(const eas_node *x, eas_dtype dt, eas_node **out)
{
    int64_t from = node_words(x)[0], to;
    if (!ir_eval(IR_CAST, (eas_dtype)x->dtype, dt, &from, &to))
        return base_fail(EAS_ERR_INTERNAL, "eager: a number cannot be cast");
    return node_const(dt, false, to, out);
}

eas_status graph_cast(eas_node *x, eas_dtype dt, eas_node **out)
{
    *out = NULL;
    if (x->dtype == dt && !(x->flags & NODE_WEAK)) {
        *out = node_ref(x);
        return EAS_OK;
    }
    if (x->op == GRAPH_CONST && !node_expanding)
        return const_cast(x, dt, out);
    if (x->dtype == dt) {
        *out = node_ref(x);
        return EAS_OK;
    }
    return node_new(GRAPH_CAST, dt, x->batch_dims, x->rank, node_shape(x), 0, NULL, 1, &x, out);
}

eas_status graph_number_fits(const graph_call *c, const eas_node *x, eas_dtype dt)
{
    int64_t i;
    double f;
    if (!(x->flags & NODE_WEAK) || dt == EAS_BOOL || !eas_node_number_value(x, &i, &f))
        return EAS_OK;
    /* beyond 63 bits */
    const bool real = dtype_is_float((eas_dtype)x->dtype) || (x->dtype == EAS_U64 && i < 0);
    if (eas_dtype_holds(dt, real, i, f) || (dt == EAS_U64 && x->dtype == EAS_U64))
        return EAS_OK;
    char number[40];
    real ? snprintf(number, sizeof number, "%g", f) : snprintf(number, sizeof number, "%lld", (long long)i);
    const char *text =
        "the number %s does not fit %s, the dtype it meets; cast the tensor to a wider one first";
    return c ? node_fail(EAS_ERR_VALUE, c, text, number, eas_dtype_name(dt))
             : base_fail(EAS_ERR_VALUE, text, number, eas_dtype_name(dt));
}

/* Numbers that simplification knows what to do with; bools. */
bool node_fixed(const eas_node *n)
{
    static const double plain[] = {0, 1, -1, 2, -2, 0.5, 3, 4, 10};
    eas_dtype dt = (eas_dtype)n->dtype;
    if (dt == EAS_BOOL || n->flags & NODE_FIXED)
        return true;
    double v = dtype_is_float(dt) ? ir_bits_to_double(dt, node_words(n)[0]) : (double)node_words(n)[0];
    if (v != v || v - v != 0) /* nan and the infinities */
        return true;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (v == plain[i])
            return true;
    return false;
}

/* ---- calls of kernels ---- */

static eas_status results_extra(int nouts, const struct node_out *outs, node_extra **out)
{
    node_extra *e = calloc(1, sizeof *e);
    size_t dims = 0;
    for (int i = 0; i < nouts; i++)
        dims += (size_t)outs[i].rank;
    struct node_out *o = malloc(sizeof *o * (size_t)nouts + sizeof(eas_dim) * dims + 1);
    if (!e || !o) {
        free(e);
        free(o);
        return base_fail_oom(sizeof *e);
    }
    eas_dim *d = (eas_dim *)(o + nouts);
    for (int i = 0; i < nouts; i++) {
        o[i] = (struct node_out){outs[i].dtype, outs[i].rank, d};
        if (outs[i].rank)
            memcpy(d, outs[i].shape, sizeof *d * (size_t)outs[i].rank);
        d += outs[i].rank;
    }
    e->nouts = nouts;
    e->outs = o;
    e->launch.size = sizeof e->launch;
    *out = e;
    return EAS_OK;
}

eas_status node_extra_copy(const node_extra *from, node_extra **out)
{
    eas_status st = results_extra(from->nouts, from->outs, out);
    if (st)
        return st;
    node_extra *e = *out;
    if (from->order && !(e->order = malloc((size_t)from->nargs + 1))) {
        drop_extra(e);
        return base_fail_oom((size_t)from->nargs);
    }
    if (from->order)
        memcpy(e->order, from->order, (size_t)from->nargs);
    if (from->begin && !(e->begin = malloc((size_t)from->nouts + 1))) {
        drop_extra(e);
        return base_fail_oom((size_t)from->nouts);
    }
    if (from->begin)
        memcpy(e->begin, from->begin, (size_t)from->nouts);
    if (from->numbers && !(e->numbers = malloc(sizeof *e->numbers * (size_t)(from->nnumbers + 1)))) {
        drop_extra(e);
        return base_fail_oom((size_t)from->nnumbers);
    }
    if (from->numbers)
        memcpy(e->numbers, from->numbers, sizeof *e->numbers * (size_t)from->nnumbers);
    e->share = call_share_retain(from->share);
    e->native = from->native;
    e->nnumbers = from->nnumbers;
    e->nargs = from->nargs;
    e->launch = from->launch;
    e->kernel = from->kernel ? eas_kernel_retain(from->kernel) : NULL;
    e->control = from->control;
    if (e->control)
        atomic_fetch_add(&e->control->refs, 1);
    return EAS_OK;
}

void node_extra_free(node_extra *e) { drop_extra(e); }

/* Does something in a loop or a branch lie on a mesh? */
static uint16_t holds_shards(const graph_control *c)
{
    unsigned flags = 0;
    for (int k = 0; c && k < (c->branch ? 2 : 1); k++)
        for (int i = 0; i < c->fn[k].n; i++)
            flags |= c->fn[k].outs[i]->flags;
    return (uint16_t)(flags & NODE_SHARDED);
}

/* What belongs to a node that has several results, and the nodes of the results. */
static eas_status with_results(uint16_t op, int nwords, const int64_t *words, int nin, eas_node *const *in,
                               const node_extra *what, const uint8_t *batch_dims, eas_node **results)
{
    eas_node *n = NULL;
    node_extra *e = NULL;
    eas_status st = node_extra_copy(what, &e);
    if (!st)
        st = node_new(op, EAS_I64, 0, 0, NULL, nwords, words, nin, in, &n);
    if (st) {
        drop_extra(e);
        return st;
    }
    n->extra = e;
    n->flags |= holds_shards(e->control);
    for (int i = 0; i < what->nouts && !st; i++) {
        const struct node_out *o = &what->outs[i];
        int64_t word = i;
        st = node_new(GRAPH_RESULT, o->dtype, batch_dims ? batch_dims[i] : 0, o->rank, o->shape, 1, &word, 1,
                      &n, &results[i]);
        for (int k = i; st && k > 0;)
            node_unref(results[--k]);
    }
    node_unref(n);
    return st;
}

eas_status node_control(uint16_t op, int nin, eas_node *const *in, graph_control *c, int nouts,
                        const struct node_out *outs, const uint8_t *batch_dims, eas_node **results)
{
    node_extra e = {.nouts = nouts, .outs = (struct node_out *)(uintptr_t)outs, .control = c};
    return with_results(op, 0, NULL, nin, in, &e, batch_dims, results);
}

eas_status node_collective(int nwords, const int64_t *words, int n, eas_node *const *in, int64_t group,
                           eas_node **results)
{
    struct node_out *outs = calloc((size_t)n + 1, sizeof *outs);
    eas_dim *shapes = malloc(sizeof *shapes * (GRAPH_MAX_RANK + 1) * (size_t)(n + 1));
    eas_status st = outs && shapes ? EAS_OK : base_fail_oom((size_t)n);
    for (int i = 0; i < n && !st; i++) {
        eas_dim *shape = shapes + (GRAPH_MAX_RANK + 1) * i;
        const int more = words[COLL_KIND] == COLL_GATHER, less = words[COLL_KIND] == COLL_SCATTER;
        shape[0] = group;
        memcpy(shape + more, node_shape(in[i]) + less, sizeof *shape * (size_t)(in[i]->rank - less));
        outs[i] = (struct node_out){(eas_dtype)in[i]->dtype, in[i]->rank + more - less, shape};
    }
    node_extra e = {.nouts = n, .outs = outs};
    if (!st)
        st = with_results(GRAPH_COLLECTIVE, nwords, words, n, in, &e, NULL, results);
    free(outs);
    free(shapes);
    return st;
}

uint64_t node_call_key(const node_extra *e)
{
    uint64_t h =
        (uint64_t)(uintptr_t)e->kernel ^ (uint64_t)(uintptr_t)e->native ^ (uint64_t)e->launch.has_grid << 1;
    for (int i = 0; i < e->nnumbers; i++)
        h = (h ^ (uint64_t)e->numbers[i]) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < e->nouts && e->native; i++)
        h = (h ^ (uint64_t)e->outs[i].dtype) * 0x100000001b3u;
    for (int i = 0; i < 3 && e->launch.has_grid; i++)
        h = (h ^ (uint64_t)e->launch.grid[i]) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < e->nargs && e->order; i++)
        h = (h ^ (uint8_t)e->order[i]) * 0x100000001b3u;
    for (int i = 0; i < e->nouts && e->begin; i++)
        h = (h ^ (uint8_t)e->begin[i] ^ 0x100) * 0x100000001b3u;
    if (e->share)
        h = (h ^ e->share->hash) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 31;
}

eas_status eas_node_call(eas_kernel *k, int nin, eas_node *const *in, int nouts, const eas_node_type *outs,
                         int nparams, const int8_t *order, const int64_t grid[3], eas_node **results)
{
    NEED(nin <= 0 || in, EAS_ERR_HANDLE);
    NEED(nouts <= 0 || outs, EAS_ERR_HANDLE);
    NEED(nparams <= 0 || order, EAS_ERR_HANDLE);
    NEED(nouts <= 0 || results, EAS_ERR_HANDLE);
    return eas_node_call_begun(k, nin, in, nouts, outs, NULL, nparams, order, grid, results);
}

static eas_status check_begin(const eas_kernel *k, int nin, eas_node *const *in, int nouts,
                              const eas_node_type *outs, const int8_t *begin)
{
    for (int i = 0; begin && i < nouts; i++)
        if (begin[i] >= nin || (begin[i] >= 0 && in[begin[i]]->dtype != outs[i].dtype))
            return base_fail(EAS_ERR_VALUE,
                             "eager.call: output %d of kernel %s is to begin as input %d, which %s", i,
                             eas_ir_name(eas_kernel_ir(k)), begin[i],
                             begin[i] >= nin ? "is not there" : "has another dtype");
    return EAS_OK;
}

eas_status eas_node_call_begun(eas_kernel *k, int nin, eas_node *const *in, int nouts,
                               const eas_node_type *outs, const int8_t *begin, int nparams,
                               const int8_t *order, const int64_t grid[3], eas_node **results)
{
    NEED(k, EAS_ERR_HANDLE);
    NEED(nin <= 0 || in, EAS_ERR_HANDLE);
    NEED(nouts <= 0 || outs, EAS_ERR_HANDLE);
    NEED(nparams <= 0 || order, EAS_ERR_HANDLE);
    NEED(nouts <= 0 || results, EAS_ERR_HANDLE);
    if (nparams != eas_ir_param_count(eas_kernel_ir(k)))
        return base_fail(EAS_ERR_VALUE, "eager.call: kernel %s has %d parameters, %d are given",
                         eas_ir_name(eas_kernel_ir(k)), eas_ir_param_count(eas_kernel_ir(k)), nparams);
    eas_status bad = check_begin(k, nin, in, nouts, outs, begin);
    struct node_out *o = bad ? NULL : malloc(sizeof *o * (size_t)(nouts + 1));
    if (!o)
        return bad ? bad : base_fail_oom((size_t)nouts);
    for (int i = 0; i < nouts; i++)
        o[i] = (struct node_out){outs[i].dtype, outs[i].rank, outs[i].shape};
    node_extra e = {.kernel = k,
                    .nouts = nouts,
                    .nargs = nparams,
                    .outs = o,
                    .order = (int8_t *)(uintptr_t)order,
                    .begin = (int8_t *)(uintptr_t)begin};
    e.launch.size = sizeof e.launch;
    e.launch.has_grid = grid != NULL;
    if (grid)
        memcpy(e.launch.grid, grid, sizeof e.launch.grid);
    eas_status st = with_results(GRAPH_CALL, 0, NULL, nin, in, &e, NULL, results);
    for (int i = 0; i < nouts && !st; i++)
        node_hand_out(results[i]);
    free(o);
    return st;
}

eas_status node_native(const struct eas_native *fn, int nin, eas_node *const *in, int nouts,
                       const eas_node_type *outs, int nnumbers, const eas_dim *numbers, eas_node **results)
{
    struct node_out *o = malloc(sizeof *o * (size_t)(nouts + 1));
    if (!o)
        return base_fail_oom((size_t)nouts);
    for (int i = 0; i < nouts; i++)
        o[i] = (struct node_out){outs[i].dtype, outs[i].rank, outs[i].shape};
    node_extra e = {.native = fn,
                    .nnumbers = nnumbers,
                    .numbers = (eas_dim *)(uintptr_t)numbers,
                    .nouts = nouts,
                    .outs = o};
    e.launch.size = sizeof e.launch;
    eas_status st = with_results(GRAPH_CALL, 0, NULL, nin, in, &e, NULL, results);
    for (int i = 0; i < nouts && !st; i++)
        node_hand_out(results[i]);
    free(o);
    return st;
}

/* ---- looking ---- */

eas_dtype eas_node_dtype(const eas_node *n)
{
    NEED(n, 0);
    return (eas_dtype)n->dtype;
}
int eas_node_rank(const eas_node *n)
{
    NEED(n, 0);
    return n->rank;
}
const eas_dim *eas_node_shape(const eas_node *n) { return node_shape(n); }
int eas_node_batch_dims(const eas_node *n)
{
    NEED(n, 0);
    return n->batch_dims;
}
eas_device *eas_node_device(const eas_node *n)
{
    NEED(n, NULL);
    return n->device;
}
eas_tensor_op eas_node_op(const eas_node *n)
{
    NEED(n, 0);
    return n->op;
}
int eas_node_is_real(const eas_node *n)
{
    NEED(n, 0);
    return node_real(n);
}
uint32_t eas_node_depth(const eas_node *n)
{
    NEED(n, 0);
    return n->depth;
}
int eas_node_is_weak(const eas_node *n)
{
    NEED(n, 0);
    return (n->flags & NODE_WEAK) != 0;
}
int eas_node_is_symbolic(const eas_node *n)
{
    NEED(n, 0);
    return (n->flags & NODE_SYMBOLIC) != 0;
}
int eas_node_is_traced(const eas_node *n)
{
    NEED(n, 0);
    return (n->flags & NODE_TRACED) != 0;
}
void *eas_node_user(const eas_node *n)
{
    NEED(n, NULL);
    return n->user;
}
void eas_node_set_user(eas_node *n, void *user)
{
    NEED_(n);
    n->user = user;
}
void *eas_node_object(const eas_node *n)
{
    NEED(n, NULL);
    return n->extra ? n->extra->object : NULL;
}
uint32_t eas_node_site(const eas_node *n)
{
    NEED(n, 0);
    return n->site;
}
void eas_site_set(uint32_t site) { own.site = site; }
int eas_grad_set_enabled(int on)
{
    int before = !own.constant;
    own.constant = !on;
    return before;
}
unsigned node_branches(void) { return own.branches / NODE_BRANCH; }

void node_open_branches(int by)
{
    own.open = by < 0 && own.open == 0 ? 0 : own.open + (unsigned)by;
    own.branches = (uint16_t)((own.open < BRANCH_MOST ? own.open : BRANCH_MOST) * NODE_BRANCH);
}

void eas_site_set_resolver(int (*resolve)(uint32_t, char *, size_t, int *)) { site_resolve = resolve; }

bool graph_site(uint32_t site, char *file, size_t room, int *line)
{
    return site && site_resolve && site_resolve(site, file, room, line);
}
bool node_place(const eas_node *n, char *file, size_t room, int *line)
{
    return n->site && site_resolve && site_resolve(n->site, file, room, line);
}

void eas_node_set_traced(eas_node *n, int traced)
{
    NEED_(n);
    n->flags = (uint16_t)(traced ? n->flags | NODE_TRACED : n->flags & ~NODE_TRACED);
}

void eas_node_set_batch_dims(eas_node *n, int batch_dims)
{
    NEED_(n);
    if (batch_dims >= 0 && batch_dims <= n->rank)
        n->batch_dims = (uint8_t)batch_dims;
}

eas_status eas_node_set_object(eas_node *n, void *object, void (*drop)(void *))
{
    NEED(n, EAS_ERR_HANDLE);
    if (!n->extra) {
        n->extra = calloc(1, sizeof *n->extra);
        if (!n->extra)
            return base_fail_oom(sizeof *n->extra);
    }
    if (n->extra->drop)
        n->extra->drop(n->extra->object);
    n->extra->object = object;
    n->extra->drop = drop;
    return EAS_OK;
}

int eas_node_inputs(const eas_node *n, eas_node *const **in)
{
    NEED(n, 0);
    NEED(in, 0);
    *in = node_in(n);
    return n->nin;
}

int eas_node_words(const eas_node *n, const int64_t **words)
{
    NEED(n, 0);
    NEED(words, 0);
    *words = node_words(n);
    return n->nwords;
}

eas_buffer *eas_node_buffer(const eas_node *n, int64_t *offset, int64_t *strides)
{
    NEED(n, NULL);
    eas_buffer *buf = atomic_load_explicit(&n->buf, memory_order_acquire);
    if (!buf)
        return NULL;
    const int64_t *words = n->op == GRAPH_LEAF && n->nwords ? node_words(n) : NULL;
    int64_t dense = 1;
    *offset = words ? words[0] : 0;
    for (int i = n->rank - 1; i >= 0; i--) {
        strides[i] = words ? words[1 + i] : dense;
        dense *= node_shape(n)[i];
    }
    return buf;
}
