/* mesh.c: meshes by number, and what a spec says of sizes. A mesh that is registered twice is one; none is
 * ever freed, so that specs in nodes can name it by its number. */
#include "dist.h"

enum { MESHES = 4096 };
static dist_mesh *_Atomic meshes[MESHES];
static _Atomic int nmeshes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const dist_mesh *dist_mesh_at(int id) { return id >= 0 && id < nmeshes ? meshes[id] : NULL; }

static bool same_mesh(const dist_mesh *a, const char *name, const eas_mesh *m, const char *const *axes)
{
    bool same =
        !strcmp(a->name, name) && a->m.naxes == m->naxes && !a->m.fast == !m->fast && a->m.first == m->first;
    for (int i = 0; i < m->naxes && same; i++)
        same = a->m.sizes[i] == m->sizes[i] && !strcmp(a->axis[i], axes[i]);
    return same;
}

static eas_status check_mesh(const char *name, const eas_mesh *m, const char *const *axes)
{
    int64_t n = 1;
    if (m->naxes < 0 || m->naxes > EAS_MESH_AXES)
        return base_fail(EAS_ERR_VALUE, "mesh \"%s\": %d axes; there are at most %d", name, m->naxes,
                         EAS_MESH_AXES);
    for (int i = 0; i < m->naxes; i++) {
        if (m->sizes[i] < 1 || n > (1 << 20) / m->sizes[i])
            return base_fail(EAS_ERR_VALUE, "mesh \"%s\": axis \"%s\" of size %lld", name, axes[i],
                             (long long)m->sizes[i]);
        n *= m->sizes[i];
    }
    return EAS_OK;
}

static dist_mesh *new_mesh(const char *name, const eas_mesh *m, const char *const *axes)
{
    dist_mesh *d = calloc(1, sizeof *d);
    bool ok = d && (d->name = strdup(name));
    for (int i = 0; ok && i < m->naxes; i++)
        ok = (d->axis[i] = strdup(axes[i])) != NULL;
    if (!ok)
        return NULL; /* a few bytes of a process that has no memory left */
    d->m = *m;
    d->ndevices = 1;
    for (int i = 0; i < m->naxes; i++)
        d->ndevices *= m->sizes[i];
    return d;
}

eas_status eas_mesh_register(const char *name, const eas_mesh *m, const char *const *axes, int *id)
{
    NEED(name, EAS_ERR_HANDLE);
    NEED(m, EAS_ERR_HANDLE);
    eas_status st = check_mesh(name, m, axes);
    *id = -1;
    if (st)
        return st;
    dist_begin();
    base_lock(&lock);
    for (int i = 0; i < nmeshes && *id < 0; i++)
        if (same_mesh(meshes[i], name, m, axes))
            *id = i;
    if (*id < 0) {
        dist_mesh *d = nmeshes < MESHES ? new_mesh(name, m, axes) : NULL;
        if (d) {
            d->id = *id = nmeshes;
            meshes[nmeshes] = d;
            nmeshes = nmeshes + 1;
        } else
            st = nmeshes < MESHES ? EAS_ERR_MEMORY : EAS_ERR_VALUE;
    }
    base_unlock(&lock);
    return st == EAS_ERR_VALUE ? base_fail(st, "mesh \"%s\": there are %d meshes already", name, MESHES)
         : st                  ? base_fail_oom(sizeof *m)
                               : EAS_OK;
}

eas_status eas_mesh_get(int id, eas_mesh *out, const char **name, const char *const **axes)
{
    const dist_mesh *m = dist_mesh_at(id);
    if (!m)
        return base_fail(EAS_ERR_VALUE, "there is no mesh %d", id);
    *out = m->m;
    if (name)
        *name = m->name;
    if (axes)
        *axes = (const char *const *)m->axis;
    return EAS_OK;
}

/* ---- devices ---- */

void mesh_coordinates(const dist_mesh *m, int64_t device, int64_t *at)
{
    for (int i = m->m.naxes - 1; i >= 0; i--) {
        at[i] = device % m->m.sizes[i];
        device /= m->m.sizes[i];
    }
}

int64_t mesh_index(const dist_mesh *m, const eas_dim_spec *axes, const int64_t *at)
{
    int64_t k = 0;
    for (int i = 0; i < axes->n; i++)
        k = k * m->m.sizes[axes->axes[i]] + at[axes->axes[i]];
    return k;
}

int64_t mesh_members(const dist_mesh *m, const eas_dim_spec *axes, int64_t device, int *ranks)
{
    int64_t n = spec_parts(m, axes), at[EAS_MESH_AXES];
    mesh_coordinates(m, device, at);
    for (int64_t k = 0; k < n; k++) {
        int64_t rest = k, rank = 0;
        for (int i = axes->n - 1; i >= 0; i--) {
            at[axes->axes[i]] = rest % m->m.sizes[axes->axes[i]];
            rest /= m->m.sizes[axes->axes[i]];
        }
        for (int i = 0; i < m->m.naxes; i++)
            rank = rank * m->m.sizes[i] + at[i];
        ranks[k] = (int)rank;
    }
    return n;
}

/* ---- specs ---- */

int64_t spec_parts(const dist_mesh *m, const eas_dim_spec *d)
{
    int64_t n = 1;
    for (int i = 0; i < d->n; i++)
        n *= m->m.sizes[d->axes[i]];
    return n;
}

uint32_t spec_cut(const eas_spec *s)
{
    uint32_t used = 0;
    for (int d = 0; d < s->rank; d++)
        for (int i = 0; i < s->dims[d].n; i++)
            used |= 1u << s->dims[d].axes[i];
    return used;
}

bool spec_same_dim(const eas_dim_spec *a, const eas_dim_spec *b)
{
    return a->n == b->n && !memcmp(a->axes, b->axes, a->n) && (a->n == 0 || a->priority == b->priority);
}

bool spec_same(const eas_spec *a, const eas_spec *b)
{
    bool same = a->rank == b->rank && a->partial == b->partial;
    for (int d = 0; d < a->rank && same; d++)
        same = spec_same_dim(&a->dims[d], &b->dims[d]);
    return same;
}

bool spec_plain(const eas_spec *s) { return !s->partial && !spec_cut(s); }

bool spec_uneven(const dist_mesh *m, const eas_dim_spec *d, eas_dim size)
{
    return d->n && dim_known(size) && size % spec_parts(m, d) != 0;
}

eas_dim spec_local(const dist_mesh *m, const eas_dim_spec *d, eas_dim size)
{
    int64_t n = spec_parts(m, d);
    return n == 1 ? size : (size + n - 1) / n;
}

void spec_local_shape(const dist_mesh *m, const eas_spec *s, const eas_dim *shape, eas_dim *out)
{
    for (int d = 0; d < s->rank; d++)
        out[d] = spec_local(m, &s->dims[d], shape[d]);
}

int64_t spec_dim_word(const eas_dim_spec *d)
{
    int64_t w = d->n | (d->open ? SHARD_OPEN : 0);
    for (int i = 0; i < d->n; i++)
        w |= (int64_t)d->axes[i] << (16 + 4 * i);
    return w;
}

eas_dim_spec spec_dim_of(int64_t word)
{
    eas_dim_spec d = {.n = (uint8_t)(word & 0xff), .open = (word & SHARD_OPEN) != 0};
    for (int i = 0; i < d.n; i++)
        d.axes[i] = (uint8_t)(word >> (16 + 4 * i) & 15);
    return d;
}

void spec_of_words(int rank, const int64_t *words, eas_spec *out)
{
    *out = (eas_spec){.rank = rank, .replicated = (uint32_t)words[SHARD_REPLICATED]};
    for (int d = 0; d < rank; d++)
        out->dims[d] = spec_dim_of(words[SHARD_DIMS + d]);
}

void spec_add_axes(str *s, const dist_mesh *m, const eas_dim_spec *d)
{
    if (d->n == 0)
        str_add(s, "None");
    else if (d->n == 1)
        str_add(s, "'%s'", m->axis[d->axes[0]]);
    for (int i = 0; d->n > 1 && i < d->n; i++)
        str_add(s, "%s'%s'%s", i ? ", " : "(", m->axis[d->axes[i]], i + 1 < d->n ? "" : ")");
}

void spec_add_text(str *s, const dist_mesh *m, const eas_spec *spec)
{
    str_add(s, "P(");
    for (int d = 0; d < spec->rank; d++) {
        if (d)
            str_add(s, ", ");
        spec_add_axes(s, m, &spec->dims[d]);
    }
    str_add(s, ")");
    for (int a = 0, first = 1; a < m->m.naxes; a++)
        if (spec->partial >> a & 1) {
            str_add(s, "%s'%s'", first ? ", partial over " : ", ", m->axis[a]);
            first = 0;
        }
}

static eas_status check_dim(const dist_mesh *m, const eas_spec *s, const eas_node *x, int d, bool pad,
                            uint32_t *used, const char *what)
{
    const eas_dim_spec *dim = &s->dims[d];
    const int axis = d - x->batch_dims; /* as the user counts */
    if (dim->n > SHARD_AXES)
        return base_fail(EAS_ERR_VALUE,
                         "eager.%s: axis %d is cut along %d axes of the mesh; at most %d are possible", what,
                         axis, dim->n, SHARD_AXES);
    for (int i = 0; i < dim->n; i++) {
        int a = dim->axes[i];
        if (a >= m->m.naxes)
            return base_fail(EAS_ERR_VALUE, "eager.%s: mesh \"%s\" has %d axes, and axis %d is named", what,
                             m->name, m->m.naxes, a);
        if (*used >> a & 1)
            return base_fail(EAS_ERR_VALUE, "eager.%s: mesh axis '%s' is used twice", what, m->axis[a]);
        *used |= 1u << a;
    }
    if (dim->n && !dim_known(node_shape(x)[d]))
        return base_fail(
            EAS_ERR_VALUE,
            "eager.%s: axis %d has a symbolic size, and such axes cannot be cut; leave it whole or compile for a known size",
            what, axis);
    int64_t parts = spec_parts(m, dim);
    if (dim->n && !pad && node_shape(x)[d] % parts)
        return base_fail(
            EAS_ERR_VALUE,
            "eager.%s: axis %d of size %lld cannot be cut into %lld equal parts; pass pad=True to have the last parts padded, or choose another axis",
            what, axis, (long long)node_shape(x)[d], (long long)parts);
    return EAS_OK;
}

eas_status spec_check(const dist_mesh *m, const eas_spec *s, const eas_node *x, bool pad, const char *what)
{
    eas_status st = EAS_OK;
    uint32_t used = s->replicated;
    if (s->rank != x->rank)
        return base_fail(EAS_ERR_VALUE, "eager.%s: a sharding of %d dims for a tensor of %d", what,
                         s->rank - x->batch_dims, x->rank - x->batch_dims);
    if (s->partial)
        return base_fail(
            EAS_ERR_VALUE,
            "eager.%s: a tensor cannot be asked to be partial; partial sums follow from products and sums",
            what);
    for (int d = 0; d < s->rank && !st; d++)
        st = check_dim(m, s, x, d, pad, &used, what);
    return st;
}

eas_status eas_mesh_devices(int mesh, int64_t *first, int64_t *count)
{
    const dist_mesh *m = dist_mesh_at(mesh);
    return m ? dist_devices(m, first, count) : base_fail(EAS_ERR_VALUE, "there is no mesh %d", mesh);
}
