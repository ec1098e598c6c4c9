/* simulate.c: predictions for users: what cost.c counts, as a table and as a trace. */
#include "cost.h"

#include <errno.h>
#include <stdio.h>

static const char *const kinds[] = {"all_gather", "all_reduce", "reduce_scatter", "all_to_all", "ppermute"};

eas_status eas_nodes_simulate(int n, eas_node *const *nodes, int mesh, const eas_machine *machine,
                              eas_simulation **out)
{
    NEED(out, EAS_ERR_HANDLE);
    NEED(machine, EAS_ERR_HANDLE);
    if (n && !nodes)
        return base_null(__func__, "nodes");
    *out = NULL;
    const dist_mesh *m = dist_mesh_at(mesh), *used = NULL;
    if (!m)
        return base_fail(EAS_ERR_VALUE, "there is no mesh %d", mesh);
    if (!cost_machine_ok(machine))
        return base_fail(
            EAS_ERR_VALUE,
            "eas_nodes_simulate: speeds, bandwidths and latencies of the machine must be positive");
    eas_status st = partition_mesh(n, nodes, &used);
    if (!st && used && used != m)
        st = base_fail(EAS_ERR_VALUE,
                       "eas_nodes_simulate: a tensor lies on mesh '%s', and mesh '%s' is to be simulated",
                       used->name, m->name);
    if (st)
        return st;
    sim_events events = {0};
    cost c = {0};
    eas_simulation *s = calloc(1, sizeof *s);
    st = s ? cost_of(m, machine, n, nodes, NULL, NULL, &c, &events) : base_fail_oom(sizeof *s);
    if (st) {
        vec_free(&events);
        free(s);
        return st;
    }
    *s = (eas_simulation){.mesh = mesh,
                          .seconds = c.seconds,
                          .compute = c.compute,
                          .communication = c.communication,
                          .flops = c.flops,
                          .memory = c.memory,
                          .arguments = c.arguments,
                          .results = c.results,
                          .kernels = c.kernels,
                          .nevents = (int)events.len,
                          .events = events.at,
                          .machine = *machine};
    for (int i = 0; i < 5; i++) {
        s->collective[i].name = kinds[i];
        s->collective[i].calls = c.calls[i];
        s->collective[i].bytes = c.sent[i];
        s->collective[i].seconds = c.link[i];
    }
    *out = s;
    return EAS_OK;
}

void eas_simulation_free(eas_simulation *s)
{
    if (s)
        free(s->events);
    free(s);
}

/* ---- for people ---- */

static void add_scaled(str *s, double v, double base, const char *unit)
{
    static const char *const names[] = {"", "k", "M", "G", "T", "P"};
    int k = 0;
    while (v >= base && k < 5) {
        v /= base;
        k++;
    }
    str_add(s, v < 10 && k ? "%.2f %s%s" : v < 100 && k ? "%.1f %s%s" : "%.0f %s%s", v, names[k], unit);
}

static void add_seconds(str *s, double v)
{
    if (v >= 1)
        str_add(s, "%.3f s", v);
    else if (v >= 1e-3)
        str_add(s, "%.2f ms", v * 1e3);
    else
        str_add(s, "%.1f us", v * 1e6);
}

static void add_mesh(str *s, const dist_mesh *m)
{
    str_add(s, "mesh '%s': %lld devices (", m->name, (long long)m->ndevices);
    for (int a = 0; a < m->m.naxes; a++)
        str_add(s, "%s%s %lld", a ? " x " : "", m->axis[a], (long long)m->m.sizes[a]);
    str_add(s, "); of each device:\n");
}

eas_status eas_simulation_table(const eas_simulation *s, char **out)
{
    NEED(s, EAS_ERR_HANDLE);
    NEED(out, EAS_ERR_HANDLE);
    str t = {0};
    double exposed = s->seconds - s->compute - s->machine.call;
    add_mesh(&t, dist_mesh_at(s->mesh));
    str_add(&t, "  time         ");
    add_seconds(&t, s->seconds);
    str_add(&t, " = kernels ");
    add_seconds(&t, s->compute);
    str_add(&t, " (%lld) + collectives ", (long long)s->kernels);
    add_seconds(&t, exposed > 0 ? exposed : 0);
    if (s->machine.overlap) {
        str_add(&t, " not hidden of ");
        add_seconds(&t, s->communication);
    }
    str_add(&t, "\n  arithmetic   ");
    add_scaled(&t, s->flops, 1000, "FLOP");
    str_add(&t, ", ");
    add_scaled(&t, s->seconds > 0 ? s->flops / s->seconds : 0, 1000, "FLOP/s");
    str_add(&t, "\n  memory       ");
    add_scaled(&t, (double)s->memory, 1024, "B");
    str_add(&t, " at most: arguments ");
    add_scaled(&t, (double)s->arguments, 1024, "B");
    str_add(&t, ", results ");
    add_scaled(&t, (double)s->results, 1024, "B");
    str_add(&t, ", the rest on the way\n");
    if (s->machine.memory > 0 && (double)s->memory > s->machine.memory) {
        str_add(&t, "               more than the device has: ");
        add_scaled(&t, s->machine.memory, 1024, "B");
        str_add(&t, "\n");
    }
    for (int i = 0; i < 5; i++)
        if (s->collective[i].calls) {
            str_add(&t, "  %-14s ", s->collective[i].name);
            add_scaled(&t, (double)s->collective[i].bytes, 1024, "B");
            str_add(&t, " sent in %lld calls, ", (long long)s->collective[i].calls);
            add_seconds(&t, s->collective[i].seconds);
            str_add(&t, "\n");
        }
    return str_take(&t, out);
}

/* ---- for Perfetto ---- */

static void write_event(FILE *f, const eas_sim_event *e)
{
    char place[300] = "";
    int line = 0;
    if (!e->site || !graph_site(e->site, place, sizeof place, &line))
        place[0] = 0;
    for (char *c = place; *c; c++)
        if (*c == '"' || *c == '\\' || (unsigned char)*c < 32)
            *c = '_';
    fprintf(
        f,
        ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"ts\":%.4f,\"dur\":%.4f,\"args\":{\"bytes\":%lld,\"flops\":%.0f,\"line\":\"%s:%d\"}}",
        e->name, e->lane + 1, e->start * 1e6, e->seconds * 1e6, (long long)e->bytes, e->flops, place, line);
    if (e->lane != EAS_SIM_LOOPS)
        fprintf(f, ",\n{\"name\":\"memory\",\"ph\":\"C\",\"pid\":1,\"ts\":%.4f,\"args\":{\"bytes\":%lld}}",
                e->start * 1e6, (long long)e->memory);
}

eas_status eas_simulation_trace(const eas_simulation *s, const char *path)
{
    NEED(s, EAS_ERR_HANDLE);
    NEED(path, EAS_ERR_HANDLE);
    static const char *const lanes[] = {"kernels", "links", "loops"};
    const dist_mesh *m = dist_mesh_at(s->mesh);
    FILE *f = fopen(path, "w");
    if (!f)
        return base_fail(EAS_ERR_VALUE, "cannot write \"%s\": %s", path, strerror(errno));
    fprintf(
        f,
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"each of %lld "
        "devices\"}}",
        (long long)m->ndevices);
    for (int i = 0; i < 3; i++)
        fprintf(f,
                ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                i + 1, lanes[i]);
    for (int i = 0; i < s->nevents; i++)
        write_event(f, &s->events[i]);
    fprintf(f, "\n]}\n");
    bool bad = ferror(f) != 0;
    bad |= fclose(f) != 0;
    return bad ? base_fail(EAS_ERR_VALUE, "cannot write \"%s\": %s", path, strerror(errno)) : EAS_OK;
}
