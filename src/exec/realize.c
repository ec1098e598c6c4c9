/* realize.c: the front: what is asked for is walked, its structure is looked up or planned, and the plan is
 * run.
 *
 * One lock for all of it: the walk marks nodes, and results settle before anybody else looks. Plans are kept
 * by key, the ones used least recently go first.
 *
 * The owner of this lock may wait for kernels to end and for the lock of the host program (Python's GIL). So
 * no thread waits for this lock while it holds the host's. A fork must find the data of this file whole: it
 * waits while the owner changes it (fork_hold), which is always but while a plan runs. A running plan changes
 * only memory of its own, so a fork does not wait for its end: the child releases the lock, whose owner is a
 * thread that it does not have, and computes nodes anew that were being computed.
 */
#include "exec.h"

#include <pthread.h>

enum { PLANS = 256, WAYS = 8 }; /* kept: PLANS sets of WAYS; a plan with a kernel of its own is some 50 KB */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
typedef struct kept {
    uint64_t key[2];
    plan *p;
} kept;
static kept (*plans)[WAYS];
static uint64_t clock_now, plans_made, plans_found;

static _Atomic bool owned;
static pthread_t owner; /* if owned */

static void in_child(void)
{
    if (owned && pthread_equal(owner, pthread_self()))
        return;
    pthread_mutex_init(&lock, NULL);
    owned = false;
}
static void hook_fork(void) { pthread_atfork(NULL, NULL, in_child); }

static struct {
    void *(*_Atomic leave)(void);
    void (*_Atomic enter)(void *);
} host;

void eas_host_set_lock(void *(*leave)(void), void (*enter)(void *left))
{
    host.leave = leave;
    host.enter = enter;
}

/* Without the caller's lock: whoever has this one may need that one. */
static void wait_for_lock(const eas_launch *hooks)
{
    const bool own = hooks && hooks->leave && hooks->enter, common = !own && host.leave && host.enter;
    void *left = common ? host.leave() : NULL;
    if (own)
        hooks->leave(hooks->ctx);
    pthread_mutex_lock(&lock);
    if (own)
        hooks->enter(hooks->ctx);
    if (left)
        host.enter(left);
}

static void enter(const eas_launch *hooks)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, hook_fork);
    if (pthread_mutex_trylock(&lock))
        wait_for_lock(hooks);
    owner = pthread_self();
    owned = true;
    fork_hold();
}

static void let(void)
{
    fork_release();
    owned = false;
    pthread_mutex_unlock(&lock);
}

const exec_shards *_Atomic exec_sharded;
void exec_enter(const eas_launch *hooks) { enter(hooks); }
void exec_leave(void) { let(); }

bool exec_any_sharded(int n, eas_node *const *nodes)
{
    unsigned flags = 0;
    for (int i = 0; i < n; i++)
        flags |= nodes[i]->flags;
    return flags & NODE_SHARDED;
}

static plan *find(const uint64_t key[2], kept **place)
{
    if (!plans) {
        plans = calloc(PLANS, sizeof *plans);
        if (!plans)
            return NULL;
    }
    kept *set = plans[key[0] % PLANS];
    *place = &set[0];
    for (int i = 0; i < WAYS; i++) {
        if (set[i].p && set[i].key[0] == key[0] && set[i].key[1] == key[1]) {
            set[i].p->used = ++clock_now;
            return set[i].p;
        }
        if ((*place)->p && (!set[i].p || set[i].p->used < (*place)->p->used))
            *place = &set[i];
    }
    return NULL;
}

static eas_status planned(const pass_walk *w, int n, eas_node *const *roots, eas_device *d, plan **out)
{
    kept *place = NULL;
    uint64_t key[2] = {w->key[0] ^ (uint64_t)(uintptr_t)d, w->key[1]};
    *out = find(key, &place);
    if (*out) {
        plans_found++;
        return EAS_OK;
    }
    eas_status st = plan_new(w, (uint32_t)n, roots, d, 0, out);
    if (st || !place)
        return st;
    plans_made++;
    plan_release(place->p);
    *place = (kept){{key[0], key[1]}, *out};
    (*out)->used = ++clock_now;
    return EAS_OK;
}

static eas_status run(plan *p, const pass_walk *w, const eas_launch *hooks)
{
    int64_t numbers[64];
    eas_buffer **outs = malloc(sizeof *outs * (p->nouts + 1));
    if (!outs)
        return base_fail_oom(p->nouts);
    for (uint32_t i = 0; i < w->numbers.len; i++)
        numbers[i] = node_words(w->numbers.at[i])[0];
    /* settling one lets go of its inputs, which may be others of them */
    for (uint32_t i = 0; i < p->nouts; i++)
        node_ref(w->order.at[p->outs[i].position]);
    plan_run r = {.leaves = w->leaves.at, .numbers = numbers, .hooks = hooks};
    fork_release();
    eas_status st = plan_go(p, &r, outs);
    fork_hold();
    for (uint32_t i = 0; i < p->nouts && !st; i++) {
        eas_node *n = w->order.at[p->outs[i].position];
        if (node_real(n))
            eas_buffer_release(outs[i]);
        else
            node_settle(n, outs[i]);
    }
    for (uint32_t i = 0; i < p->nouts; i++)
        node_unref(w->order.at[p->outs[i].position]);
    free(outs);
    return st;
}

eas_device *exec_device(const pass_walk *w, eas_device *d)
{
    for (uint32_t i = 0; i < w->leaves.len; i++)
        if (w->leaves.at[i]->device)
            return w->leaves.at[i]->device;
    if (!d)
        eas_device_get("cpu", &d);
    return d;
}

eas_status exec_realize(int n, eas_node *const *nodes, eas_device *device, const eas_launch *hooks)
{
    pass_walk w;
    plan *p = NULL;
    eas_status st = pass_walk_from(&w, n, nodes);
    if (st)
        return st;
    st = planned(&w, n, nodes, exec_device(&w, device), &p);
    if (!st) {
        atomic_fetch_add(&p->refs, 1);
        st = run(p, &w, hooks);
        plan_release(p);
    }
    pass_walk_clear(&w);
    return st;
}

static eas_status no_value(const eas_node *n)
{
    return base_fail(
        EAS_ERR_VALUE,
        "eager: a tensor of shape %s cannot be computed by itself: its symbolic sizes have no value; they get one "
        "from the arguments of a compiled function (dynamic_dims)",
        shape_text((char[128]){0}, 128, n->rank, node_shape(n)));
}

/* The error of a symbolic tensor without data. It depends on an argument that was donated, on a placeholder,
 * or on a symbol that has no value. */
static eas_status no_data(const eas_node *n)
{
    const eas_node *top = n;
    for (bool more = true; more && n->op != GRAPH_INPUT;) {
        more = false;
        for (int i = 0; i < n->nin && !more; i++)
            if (node_in(n)[i]->flags & NODE_SYMBOLIC) {
                n = node_in(n)[i];
                more = true;
            }
    }
    if (n->op != GRAPH_INPUT)
        return no_value(n);
    if (node_words(n)[0] == EAS_INPUT_DONATED)
        return base_fail(
            EAS_ERR_RUNTIME,
            "eager: this tensor %s given to a compiled function with donate=, which may have written its result over it; "
            "use the function's result, or do not donate this argument",
            top == n ? "was" : "is made of one that was");
    return base_fail(
        EAS_ERR_RUNTIME,
        "eager: this tensor has no data: it was made while a function was traced (by compile, a loop or a branch), and "
        "leaked out of it; return it from the function instead of keeping it elsewhere");
}

/* Roots, and what pullbacks of results among them will want. */
static eas_status realize_with(int count, eas_node **todo, eas_device *device, const eas_launch *hooks)
{
    diff_nodes more = {0};
    eas_status st = diff_residuals(count, todo, &more);
    uint32_t kept = more.len;
    for (int i = 0; i < count && kept && !st; i++)
        if (!vec_push(&more, todo[i]))
            st = base_fail_oom(sizeof *todo);
    if (!st) {
        int all = kept ? (int)more.len : count;
        eas_node **roots = kept ? more.at : todo;
        enter(hooks);
        st = exec_any_sharded(all, roots) ? exec_sharded->realize(all, roots, device, hooks)
                                          : exec_realize(all, roots, device, hooks);
        let();
    }
    for (uint32_t i = 0; i < kept; i++)
        eas_node_release(more.at[i]);
    vec_free(&more);
    return st;
}

eas_status eas_nodes_realize(int n, eas_node *const *nodes, eas_device *device, const eas_launch *hooks)
{
    NEED(n <= 0 || nodes, EAS_ERR_HANDLE);
    enum { FEW = 16 };
    eas_node *few[FEW], **todo = n <= FEW ? few : malloc(sizeof *todo * (size_t)n);
    int count = 0;
    if (!todo)
        return base_fail_oom((size_t)n);
    for (int i = 0; i < n; i++) {
        if (nodes[i]->flags & NODE_SYMBOLIC) {
            if (todo != few)
                free(todo);
            return no_data(nodes[i]);
        }
        if (!node_real(nodes[i]))
            todo[count++] = nodes[i];
    }
    eas_status st = count ? realize_with(count, todo, device, hooks) : EAS_OK;
    if (st == EAS_ERR_INDEX)
        blame_index(count, todo, device, 0, NULL, NULL);
    if (todo != few)
        free(todo);
    return st;
}

/* ---- recording ---- */

/* A chain of so many recorded operations is computed even if no result was asked for, so that pending nodes
 * take bounded memory. */
enum { LONGEST = 1 << 17 };

eas_status eas_node_apply(eas_tensor_op op, int nin, eas_node *const *in, int nattr, const int64_t *attr,
                          eas_node **out)
{
    if (nin && !in)
        return base_null(__func__, "in");
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    if (op >= GRAPH_NOPS)
        return base_fail(EAS_ERR_VALUE, "eager: there is no operation %d", op);
    eas_status st = graph_apply(op, nin, in, nattr, attr, out);
    if (st)
        return st;
    eas_node *n = *out;
    if (atomic_load_explicit(&n->counts, memory_order_relaxed) == NODE_REF)
        node_hand_out(n);
    else /* an input of the operation, given back */
        atomic_fetch_add_explicit(&n->counts, NODE_HANDLE - NODE_REF, memory_order_relaxed);
    if (n->depth > LONGEST && !(n->flags & NODE_SYMBOLIC))
        st = eas_nodes_realize(1, &n, NULL, NULL);
    if (st) {
        eas_node_release(n);
        *out = NULL;
    }
    return st;
}

eas_lazy_stats eas_lazy_stats_get(void)
{
    const dev_pack_stats packs = dev_packs_stats();
    return (eas_lazy_stats){plans_made,  plans_found, lower_kernels(), plan_steps_done,
                            node_live(), packs.bytes, packs.hits};
}

/* ---- looking ---- */

eas_status eas_nodes_show(int n, eas_node *const *nodes, const char *form, char **out)
{
    if (n && !nodes)
        return base_null(__func__, "nodes");
    NEED(form, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    pass_walk w;
    *out = NULL;
    enter(NULL);
    eas_status st = pass_walk_from(&w, n, nodes);
    if (!st) {
        st = show_walk(&w, n, nodes, exec_device(&w, NULL), form, out);
        pass_walk_clear(&w);
    }
    let();
    return st;
}
