/* explain.c: what a program over parts sends: each collective, how many bytes leave devices because of it,
 * which operation wanted it and why. */
#include "dist.h"

#include <stdio.h>

static const comm_op ops[] = {COMM_all_gather, COMM_all_reduce, COMM_reduce_scatter, COMM_all_to_all,
                              COMM_ppermute};

/* Over all devices, once. */
static int64_t bytes_of(const dist_mesh *m, const pnote *n)
{
    int64_t members = spec_parts(m, &n->axes), groups = m->ndevices / members, all = 0;
    bool blocks = n->kind == COLL_SCATTER || n->kind == COLL_EXCHANGE;
    comm_group group = {.n = (int)members};
    comm_call call = {.op = ops[n->kind],
                      .dtype = n->dtype,
                      .group = &group,
                      .count = blocks ? n->count / members : n->count};
    if (n->kind == COLL_PERMUTE)
        return groups * n->pairs * n->count * (int64_t)eas_dtype_size(n->dtype);
    for (group.me = 0; group.me < members; group.me++)
        all += (int64_t)comm_bytes(&call);
    return all * groups;
}

static eas_collective public_note(const dist_mesh *m, const pnote *n)
{
    eas_collective c = {.name = comm_op_name(ops[n->kind]),
                        .operation = graph_rows[n->op].name,
                        .why = n->why,
                        .site = n->site,
                        .axes = n->axes,
                        .dtype = n->dtype,
                        .count = n->count,
                        .times = n->times,
                        .per_trip = n->per_trip,
                        .bytes = bytes_of(m, n) * n->times};
    return c;
}

eas_status eas_nodes_collectives(int n, eas_node *const *nodes, int *mesh, eas_collective **out, int *count)
{
    if (n && !nodes)
        return base_null(__func__, "nodes");
    NEED(mesh, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    NEED(count, EAS_ERR_HANDLE);
    const dist_mesh *m = NULL;
    pnotes notes = {0};
    eas_status st;
    *mesh = -1;
    *out = NULL;
    *count = 0;
    st = partition_mesh(n, nodes, &m);
    if (st || !m)
        return st;
    dist_notes_of(n, nodes, &notes, &st);
    eas_collective *all = st ? NULL : calloc(notes.len + 1, sizeof *all);
    if (!st && !all)
        st = base_fail_oom(notes.len);
    for (uint32_t i = 0; i < notes.len && !st; i++)
        all[i] = public_note(m, &notes.at[i]);
    if (!st) {
        *mesh = m->id;
        *out = all;
        *count = (int)notes.len;
    }
    vec_free(&notes);
    return st;
}

static void add_bytes(str *s, int64_t n)
{
    if (n >= 10 << 20)
        str_add(s, "%.1f MB", (double)n / (1 << 20));
    else if (n >= 10 << 10)
        str_add(s, "%.1f KB", (double)n / (1 << 10));
    else
        str_add(s, "%lld B", (long long)n);
}

eas_status eas_nodes_explain(int n, eas_node *const *nodes, char **out)
{
    NEED(out, EAS_ERR_HANDLE);
    int id = -1, count = 0;
    eas_collective *all = NULL;
    *out = NULL;
    eas_status st = eas_nodes_collectives(n, nodes, &id, &all, &count);
    if (!st)
        st = eas_collectives_text(id, all, count, out);
    free(all);
    return st;
}

eas_status eas_collectives_text(int id, const eas_collective *all, int count, char **out)
{
    NEED(out, EAS_ERR_HANDLE);
    NEED(all || !count, EAS_ERR_HANDLE);
    int64_t total = 0;
    bool any_loop = false;
    str s = {0};
    *out = NULL;
    const dist_mesh *m = id < 0 ? NULL : dist_mesh_at(id);
    if (!m)
        str_add(&s, "nothing lies on a mesh\n");
    else
        str_add(&s, "mesh '%s': %lld devices, %d collectives\n", m->name, (long long)m->ndevices, count);
    for (int i = 0; i < count; i++) {
        char place[300] = "";
        int line;
        if (all[i].site && graph_site(all[i].site, place, sizeof place - 16, &line))
            snprintf(place + strlen(place), 16, ":%d", line);
        str_add(&s, "  %-14s over ", all[i].name);
        spec_add_axes(&s, m, &all[i].axes);
        str_add(&s, "  ");
        add_bytes(&s, all[i].bytes);
        if (all[i].times > 1)
            str_add(&s, " in %lld trips", (long long)all[i].times);
        if (all[i].per_trip)
            str_add(&s, " per trip");
        any_loop |= all[i].per_trip != 0;
        str_add(&s, "  for %s: %s%s%s\n", all[i].operation, all[i].why, *place ? "  at " : "", place);
        total += all[i].bytes;
    }
    if (m) {
        str_add(&s, "  total ");
        add_bytes(&s, total);
        str_add(&s, " (%lld bytes) leave devices%s\n", (long long)total,
                any_loop ? ", with one trip of each loop whose trips are not known" : "");
    }
    return str_take(&s, out);
}

eas_comm_stats eas_comm_stats_get(void)
{
    eas_comm_stats s = {0};
    for (int i = 0; i < COMM_NOPS; i++) {
        s.bytes += dist_bytes[i];
        s.calls += dist_calls[i];
    }
    s.all_gather = dist_bytes[COMM_all_gather];
    s.all_reduce = dist_bytes[COMM_all_reduce];
    s.reduce_scatter = dist_bytes[COMM_reduce_scatter];
    s.all_to_all = dist_bytes[COMM_all_to_all];
    s.ppermute = dist_bytes[COMM_ppermute];
    return s;
}
