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

/* Nodes are small and are made and freed by the million, so each thread keeps freed ones in lists by size
 * and gives them back when it ends. Sizes are HEAD bytes less than a multiple of STEP: malloc hands out
 * multiples of 16 bytes with a header of 8, so nothing is lost to rounding. */
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

static void give_back(void *p)
{
    store *s = p;
    node_forget_numbers();
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

/* This thread's store. Finding a thread-local variable is a function call in a shared library, but the
 * compiler takes it for free and would repeat it at every use; the empty asm hides where s came from. */
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

void node_extra_free(node_extra *e)
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

/* Drops one reference; a node without references goes on the list `dead`. If this is the only reference, no
 * atomic subtraction is needed, since no other thread can add one. The exception is eas_node_revive, which
 * reaches nodes through their `extra`; hence the test for it. */
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
        node_extra_free(n->extra);
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
    int64_t words[GRAPH_MAX_RANK + 1], dense = 1;
    bool plain = offset == 0;
    *out = NULL;
    words[0] = offset;
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
