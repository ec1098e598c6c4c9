/* parts.c: data of a node in parts. The node's buffer is then one without memory, which owns the parts: other
 * folders see a node with data, and only this folder looks inside. */
#include "dist.h"

static void drop(void *ctx)
{
    dist_parts *p = ctx;
    for (int64_t i = 0; i < p->n; i++)
        eas_buffer_release(p->at[i]);
    free(p);
}

dist_parts *parts_of_buffer(const eas_buffer *b) { return b && b->done == drop ? b->ctx : NULL; }

dist_parts *parts_of(const eas_node *n)
{
    return n->flags & NODE_SHARDED
             ? parts_of_buffer(atomic_load_explicit(&((eas_node *)(uintptr_t)n)->buf, memory_order_acquire))
             : NULL;
}

eas_status parts_new(const dist_mesh *m, const eas_spec *s, bool pad, eas_device *d, int64_t first, int64_t n,
                     eas_buffer *const *at, eas_buffer **out)
{
    static char nothing[16];
    dist_parts *p = calloc(1, sizeof *p + sizeof *p->at * (size_t)n);
    if (!p)
        return base_fail_oom(sizeof *p);
    *p = (dist_parts){.mesh = m, .spec = *s, .pad = pad, .first = first};
    for (int i = 0; i < EAS_MAX_RANK; i++)
        p->spec.dims[i].open = 0;
    for (; p->n < n; p->n++)
        p->at[p->n] = eas_buffer_retain(at[p->n]);
    eas_status st = eas_buffer_wrap(d, nothing, 0, drop, p, out);
    if (st)
        drop(p);
    return st;
}

/* Is every part in the memory of this process, and no other process in need of the whole? */
bool parts_all_here(const dist_parts *p)
{
    comm *world;
    return p->n == p->mesh->ndevices && !comm_world(&world) && world->size == 1 &&
           eas_device_has_host_memory(eas_buffer_device(p->at[0]));
}

/* ---- looking ---- */

int eas_node_is_sharded(const eas_node *n)
{
    NEED(n, 0);
    return (n->flags & NODE_SHARDED) != 0;
}

int eas_node_layout(const eas_node *n, int *mesh, eas_spec *spec)
{
    NEED(n, 0);
    const dist_parts *p = parts_of(n);
    if (!p)
        return 0;
    *mesh = p->mesh->id;
    *spec = p->spec;
    return 1;
}

eas_status eas_node_part(const eas_node *n, int64_t device, eas_buffer **out, int64_t *shape)
{
    NEED(n, EAS_ERR_HANDLE);
    const dist_parts *p = parts_of(n);
    if (!p)
        return base_fail(EAS_ERR_VALUE,
                         "eager: the tensor does not lie in parts on a mesh, or has no data yet");
    if (device < p->first || device >= p->first + p->n)
        return base_fail(
            EAS_ERR_VALUE,
            "eager: device %lld of mesh '%s' is not of this process, which has %lld devices from %lld on",
            (long long)device, p->mesh->name, (long long)p->n, (long long)p->first);
    spec_local_shape(p->mesh, &p->spec, node_shape(n), shape);
    *out = p->at[device - p->first];
    return EAS_OK;
}

static eas_status check_part(const dist_mesh *m, const eas_spec *s, eas_dtype dt, int rank,
                             const int64_t *shape, const eas_buffer *b, int64_t i)
{
    eas_dim local[EAS_MAX_RANK], count;
    (void)rank;
    spec_local_shape(m, s, shape, local);
    count = dim_product(s->rank, local);
    if (eas_buffer_size(b) < (size_t)count * eas_dtype_size(dt))
        return base_fail(EAS_ERR_VALUE, "eager: part %lld has %zu bytes, and %lld are wanted", (long long)i,
                         eas_buffer_size(b), (long long)count * (long long)eas_dtype_size(dt));
    return EAS_OK;
}

eas_status eas_node_from_parts(int mesh, const eas_spec *spec, int pad, eas_dtype dt, int rank,
                               const int64_t *shape, int64_t n, eas_buffer *const *parts, eas_node **out)
{
    NEED(spec, EAS_ERR_HANDLE);
    NEED(rank <= 0 || shape, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    const dist_mesh *m = dist_mesh_at(mesh);
    int64_t first, count;
    *out = NULL;
    if (!m)
        return base_fail(EAS_ERR_VALUE, "there is no mesh %d", mesh);
    eas_status st = dist_devices(m, &first, &count);
    if (!st && n != count)
        st = base_fail(EAS_ERR_VALUE, "eager: %lld parts for the %lld devices of this process", (long long)n,
                       (long long)count);
    eas_node *node = NULL;
    eas_buffer *b = NULL;
    if (!st)
        st = node_new(GRAPH_LEAF, dt, 0, rank, shape, 0, NULL, 0, NULL, &node);
    if (!st)
        st = spec_check(m, spec, node, pad, "from_local");
    for (int64_t i = 0; i < n && !st; i++)
        st = check_part(m, spec, dt, rank, shape, parts[i], i);
    eas_device *device = !st && n ? eas_buffer_device(parts[0]) : NULL;
    if (!st && !n)
        st = eas_device_get("cpu", &device);
    if (!st)
        st = parts_new(m, spec, pad != 0, device, first, n, parts, &b);
    if (st) {
        node_unref(node);
        return st;
    }
    node->flags |= NODE_SHARDED;
    node->device = eas_buffer_device(b);
    atomic_store_explicit(&node->buf, b, memory_order_release);
    node_hand_out(node);
    *out = node;
    return EAS_OK;
}

/* ---- asking for a layout ---- */

static int shard_words(const dist_mesh *m, const eas_spec *s, bool pad, int64_t *words)
{
    words[SHARD_MESH] = m->id | (pad ? SHARD_PAD : 0);
    words[SHARD_REPLICATED] = s->replicated;
    for (int d = 0; d < s->rank; d++)
        words[SHARD_DIMS + d] = spec_dim_word(&s->dims[d]);
    return SHARD_DIMS + s->rank;
}

eas_status eas_node_shard(eas_node *x, int mesh, const eas_spec *spec, int pad, eas_node **out)
{
    NEED(x, EAS_ERR_HANDLE);
    NEED(spec, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    const dist_mesh *m = dist_mesh_at(mesh);
    int64_t words[SHARD_DIMS + EAS_MAX_RANK];
    *out = NULL;
    if (!m)
        return base_fail(EAS_ERR_VALUE, "there is no mesh %d", mesh);
    eas_status st = spec_check(m, spec, x, pad, "shard");
    if (st)
        return st;
    st = node_new(GRAPH_SHARD, (eas_dtype)x->dtype, x->batch_dims, x->rank, node_shape(x),
                  shard_words(m, spec, pad, words), words, 1, &x, out);
    if (!st)
        node_hand_out(*out);
    return st;
}

eas_status eas_node_input_sharded(int index, eas_dtype dt, int rank, const eas_dim *shape, int batch_dims,
                                  eas_device *d, int mesh, const eas_spec *spec, int pad, eas_node **out)
{
    NEED(spec, EAS_ERR_HANDLE);
    NEED(rank <= 0 || shape, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    const dist_mesh *m = dist_mesh_at(mesh);
    int64_t words[1 + SHARD_DIMS + EAS_MAX_RANK] = {index};
    *out = NULL;
    if (!m)
        return base_fail(EAS_ERR_VALUE, "there is no mesh %d", mesh);
    eas_node *n;
    int nwords = 1 + shard_words(m, spec, pad, words + 1);
    eas_status st = node_new(GRAPH_INPUT, dt, batch_dims, rank, shape, nwords, words, 0, NULL, &n);
    if (st)
        return st;
    n->flags |= NODE_SYMBOLIC | NODE_SHARDED;
    n->device = d;
    st = spec_check(m, spec, n, pad, "shard");
    if (st) {
        node_unref(n);
        return st;
    }
    node_hand_out(n);
    *out = n;
    return EAS_OK;
}

/* ---- putting together ---- */

static void copy_block(const dist_parts *p, const eas_node *n, const eas_dim *local, const int64_t *at, int d,
                       size_t size, const char *from, char *to)
{
    const eas_dim *shape = node_shape(n);
    int64_t start = d < n->rank ? mesh_index(p->mesh, &p->spec.dims[d], at) * local[d] : 0;
    if (d == n->rank) {
        memcpy(to, from, size);
        return;
    }
    size_t inner = size, whole = size;
    bool tail = true; /* nothing after d is cut */
    for (int k = d + 1; k < n->rank; k++) {
        inner *= (size_t)local[k];
        whole *= (size_t)shape[k];
        tail &= p->spec.dims[k].n == 0;
    }
    int64_t count = shape[d] - start < local[d] ? shape[d] - start : local[d];
    if (tail && count > 0) {
        memcpy(to + (size_t)start * whole, from, (size_t)count * inner);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        copy_block(p, n, local, at, d + 1, size, from + (size_t)i * inner, to + (size_t)(start + i) * whole);
}

/* All devices are of this process and their memory is the host's. */
static eas_status assemble(const dist_parts *p, eas_node *n, eas_node **out)
{
    eas_dim local[EAS_MAX_RANK];
    int64_t at[EAS_MESH_AXES];
    eas_device *device = eas_buffer_device(p->at[0]);
    eas_dtype dt = (eas_dtype)n->dtype;
    eas_buffer *b = NULL;
    bool empty = false;
    spec_local_shape(p->mesh, &p->spec, node_shape(n), local);
    for (int d = 0; d < n->rank; d++)
        empty |= node_shape(n)[d] == 0;
    eas_status st =
        eas_buffer_new(device, (size_t)dim_product(n->rank, node_shape(n)) * eas_dtype_size(dt), &b);
    for (int64_t k = 0; k < p->n && !st && !empty; k++) {
        mesh_coordinates(p->mesh, p->first + k, at);
        copy_block(p, n, local, at, 0, eas_dtype_size(dt), eas_buffer_address(p->at[k]),
                   eas_buffer_address(b));
    }
    if (!st)
        st = eas_node_from_buffer(b, dt, n->rank, node_shape(n), 0, NULL, out);
    if (!st)
        (*out)->batch_dims = n->batch_dims;
    if (b)
        eas_buffer_release(b);
    return st;
}

eas_status eas_node_whole(eas_node *n, const eas_launch *hooks, eas_node **out)
{
    NEED(n, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    *out = NULL;
    eas_status st = node_real(n) ? EAS_OK : eas_nodes_realize(1, &n, NULL, hooks);
    const dist_parts *p = st ? NULL : parts_of(n);
    if (st)
        return st;
    if (!p) {
        *out = eas_node_retain(n);
        return EAS_OK;
    }
    if (parts_all_here(p))
        return assemble(p, n, out);
    st = eas_node_shard(n, p->mesh->id, &(eas_spec){.rank = n->rank}, 0, out);
    if (!st)
        st = eas_nodes_realize(1, out, NULL, hooks);
    if (st && *out) {
        eas_node_release(*out);
        *out = NULL;
    }
    return st;
}
