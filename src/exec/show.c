/* show.c: what evaluating will do, for people: as text, and as a drawing that needs nothing but a browser
 * (draw.c).
 *
 * Before: a box for each recorded node. After: a box for each kernel that lists what it computes, and arrows
 * for what goes through memory. Numbers stand where they are used. Inputs have the names that users gave them
 * (eas_show_set_namer), results are marked, and what a loop or a branch runs is drawn inside it.
 */
#include "exec.h"

#include <stdio.h>

static _Thread_local struct {
    eas_show_name name;
    void *context;
} namer;

void eas_show_set_namer(eas_show_name name, void *context)
{
    namer.name = name;
    namer.context = context;
}

static const char *name_of(eas_node *n)
{
    return namer.name && n ? namer.name(namer.context, n, n->op == GRAPH_INPUT ? (int)node_words(n)[0] : -1)
                           : NULL;
}

/* A graph as it is shown: the list of what the roots need, its groups, and how to call things. */
typedef struct view {
    const pass_walk *w;
    pgraph g;
    fusion f;
    bool inside;   /* of a loop or branch: inputs are its own, and have no names */
    uint32_t *ids; /* of the roots */
    int nroots;
} view;

static void type_text(str *s, eas_dtype dt, int rank, const eas_dim *shape)
{
    str_add(s, "%s", eas_dtype_name(dt));
    shape_add_text(s, rank, shape);
}

static void number_text(str *s, eas_dtype dt, int64_t bits)
{
    if (dtype_is_float(dt))
        str_add_double(s, ir_bits_to_double(dt, bits), true);
    else if (dt == EAS_BOOL)
        str_add(s, "%s", bits ? "true" : "false");
    else
        str_add(s, dt == EAS_U64 ? "%llu" : "%lld", (long long)bits);
}

/* An operand as it is written in a line: a number, the name of an input, or %number. */
static void operand(str *s, const view *v, uint32_t i)
{
    const pnode *p = pass_at(&v->g, i);
    const char *name = NULL;
    if (p->kind == KIND_LEAF && !v->inside && p->param < v->w->leaves.len)
        name = name_of(v->w->leaves.at[p->param]);
    if (p->kind == KIND_CONST)
        number_text(s, (eas_dtype)p->dtype, p->words[0]);
    else if (name)
        str_add(s, "%s", name);
    else
        str_add(s, "%%%u", i);
}

static void add_node(str *s, const view *v, uint32_t i)
{
    const pnode *p = pass_at(&v->g, i);
    operand(s, v, i);
    str_add(s, " = %s", p->kind == KIND_LEAF ? "input" : graph_rows[p->op].name);
    for (int k = 0; k < p->nin; k++) {
        str_add(s, "%s", k ? ", " : " ");
        operand(s, v, p->in[k]);
    }
    str_add(s, " : ");
    type_text(s, (eas_dtype)p->dtype, p->rank, p->shape);
}

static bool is_root(const view *v, uint32_t i)
{
    for (int k = 0; k < v->nroots; k++)
        if (v->ids[k] == i)
            return true;
    return false;
}

/* ---- what belongs to a group ---- */

static bool own_root(const group *g, uint32_t i)
{
    for (uint32_t k = 0; k < g->roots.len; k++)
        if (g->roots.at[k].node == i)
            return true;
    return false;
}

enum { UNSEEN, MEMBER, READ };
/* Marks what group k computes, also what other groups compute again, and what it reads from memory. */
static bool mark_group(const view *v, uint32_t k, uint8_t *seen)
{
    const group *g = &v->f.groups.at[k];
    VEC_U32 stack = {0};
    bool ok = true;
    memset(seen, UNSEEN, v->g.n.len);
    for (uint32_t r = 0; r < g->roots.len && ok; r++)
        ok = vec_push(&stack, g->roots.at[r].node);
    if (g->core)
        ok = ok && vec_push(&stack, g->core);
    while (ok && stack.len) {
        uint32_t i = stack.at[--stack.len];
        const pnode *p = pass_at(&v->g, i);
        if (seen[i] != UNSEEN || p->kind == KIND_CONST)
            continue;
        bool read = fused_stored(&v->f, i) && !own_root(g, i) && i != g->core;
        seen[i] = read ? READ : MEMBER;
        for (int x = 0; x < p->nin && ok && !read; x++)
            ok = vec_push(&stack, p->in[x]);
    }
    vec_free(&stack);
    return ok;
}

static uint32_t group_number(const view *v, uint32_t k) /* kernels are counted from 1, as they run */
{
    uint32_t n = 0;
    for (uint32_t i = v->f.groups.len - 1; i >= k; i--)
        n += v->f.groups.at[i].roots.len && v->f.groups.at[i].kind != GROUP_ALIAS;
    return n;
}

static void group_title(str *s, const view *v, uint32_t k)
{
    const group *g = &v->f.groups.at[k];
    const pnode *core = pass_at(&v->g, g->core);
    if (g->kind == GROUP_CALL && core->kind == KIND_CONTROL)
        str_add(s, "%s", graph_rows[core->op].name);
    else
        str_add(s, "kernel %u: %s", group_number(v, k),
                g->kind == GROUP_MAP && g->inner ? "reduce" : group_name(g->kind));
    if (g->kind == GROUP_CALL)
        return;
    str_add(s, " over ");
    shape_add_text(s, g->rank, g->space);
    for (int d = 0, first = 1; d < g->rank; d++)
        if (g->inner >> d & 1) {
            str_add(s, "%s%d", first ? " along " : ", ", d);
            first = 0;
        }
}

static bool shown(const view *v, uint32_t k)
{
    return v->f.groups.at[k].roots.len && v->f.groups.at[k].kind != GROUP_ALIAS;
}

static void node_line(str *s, const view *v, uint32_t i)
{
    add_node(s, v, i);
    if (is_root(v, i) && !v->inside)
        str_add(s, "  \u2192 result");
    else if (v->f.at[i].stored && pass_at(&v->g, i)->kind != KIND_LEAF)
        str_add(s, "  \u2192 memory");
}

/* ---- the list and its groups ---- */

static eas_status view_open(view *v, const pass_walk *w, int n, eas_node *const *roots, bool inside)
{
    uint32_t *at = malloc(sizeof *at * (w->order.len + 1));
    *v = (view){.w = w, .inside = inside, .nroots = n, .ids = malloc(sizeof *v->ids * (size_t)(n + 1))};
    eas_status st = pass_init(&v->g);
    if (!at || !v->ids)
        st = base_fail_oom(w->order.len);
    if (!st)
        st = pass_flatten(&v->g, w, at);
    for (int i = 0; i < n && !st; i++)
        v->ids[i] = at[roots[i]->mark];
    if (!st)
        st = fuse(&v->f, &v->g, (uint32_t)n, v->ids, 256, NULL);
    free(at);
    return st;
}

static void view_close(view *v)
{
    fuse_free(&v->f);
    pass_free(&v->g);
    free(v->ids);
}

/* ---- text ---- */

static eas_status text_view(str *s, const view *v, int indent);

static eas_status text_fn(str *s, const graph_fn *fn, int indent)
{
    pass_walk w;
    view v;
    eas_status st = pass_walk_from(&w, fn->n, fn->outs);
    if (st)
        return st;
    st = view_open(&v, &w, fn->n, fn->outs, true);
    if (!st)
        st = text_view(s, &v, indent);
    view_close(&v);
    pass_walk_clear(&w);
    return st;
}

static const char *const fn_titles[] = {"a trip", "if not", "if so"};

/* The body of a loop or the sides of a branch, indented. */
static eas_status text_control(str *s, const graph_control *c, int indent)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < (c->branch ? 2 : 1) && !st; i++) {
        str_add(s, "%*s%s:\n", indent, "", fn_titles[c->branch ? 1 + i : 0]);
        st = text_fn(s, &c->fn[i], indent + 4);
    }
    return st;
}

static eas_status text_view(str *s, const view *v, int indent)
{
    uint8_t *seen = malloc(v->g.n.len);
    eas_status st = seen ? EAS_OK : base_fail_oom(v->g.n.len);
    for (uint32_t i = 1; i < v->g.n.len && !st; i++)
        if (pass_at(&v->g, i)->kind == KIND_LEAF) {
            str_add(s, "%*s", indent, "");
            node_line(s, v, i);
            str_add(s, "\n");
        }
    for (uint32_t k = v->f.groups.len - 1; k > 0 && !st; k--) {
        const group *g = &v->f.groups.at[k];
        if (!g->roots.len)
            continue;
        if (!mark_group(v, k, seen))
            st = base_fail_oom(v->g.n.len);
        if (shown(v, k)) {
            str_add(s, "%*s", indent, "");
            group_title(s, v, k);
            str_add(s, "\n");
        }
        for (uint32_t i = 1; i < v->g.n.len && !st; i++)
            if (seen[i] == MEMBER) {
                str_add(s, "%*s", indent + 4, "");
                node_line(s, v, i);
                str_add(s, "\n");
            }
        if (!st && g->kind == GROUP_CALL && pass_at(&v->g, g->core)->kind == KIND_CONTROL)
            st = text_control(s, pass_at(&v->g, g->core)->extra->control, indent + 4);
    }
    free(seen);
    return st;
}

/* The most that is there at once above the inputs, if sizes are known. */
static int64_t peak_bytes(const plan *p)
{
    int64_t now = 0, peak = 0;
    uint8_t *live = calloc(p->nslots + 1, 1);
    for (uint32_t i = 0; i < p->nsteps && live; i++) {
        const plan_step *s = &p->steps[i];
        for (int pass = 0; pass < 2; pass++) {
            for (int k = 0; k < s->nargs; k++) {
                uint32_t at = s->args[k].index;
                const slot *q = s->args[k].what == USE_NODE ? &p->slots[at] : NULL;
                if (!q || q->leaf != SLOT_NONE || !dim_known(q->count))
                    continue;
                int64_t bytes = q->count * (int64_t)eas_dtype_size((eas_dtype)q->dtype);
                if (pass == 0 && !live[at]) {
                    live[at] = 1;
                    now += q->takes != SLOT_NONE ? 0 : bytes;
                    if (q->takes != SLOT_NONE)
                        live[q->takes] = 2;
                } else if (pass == 1 && live[at] == 1 && q->last == i && !q->kept) {
                    live[at] = 2;
                    now -= bytes;
                }
            }
            peak = now > peak ? now : peak;
        }
    }
    free(live);
    return peak;
}

static eas_status text(str *s, const pass_walk *w, int n, eas_node *const *roots, eas_device *d)
{
    view v;
    plan *p = NULL;
    eas_status st = view_open(&v, w, n, roots, false);
    if (!st)
        st = text_view(s, &v, 0);
    view_close(&v);
    if (!st)
        st = plan_new(w, (uint32_t)n, roots, d, 0, &p);
    if (!st && !p->symbolic)
        str_add(s, "%u kernel%s, %lld bytes at most above the inputs\n", p->nsteps, p->nsteps == 1 ? "" : "s",
                (long long)peak_bytes(p));
    else if (!st)
        str_add(s, "%u kernel%s\n", p->nsteps, p->nsteps == 1 ? "" : "s");
    plan_release(p);
    return st;
}

/* ---- the graph as it was recorded ---- */

static eas_status draw_before(drawing *d, const pass_walk *w, int n, eas_node *const *roots, bool inside);

static eas_status draw_control(drawing *d, uint32_t box, const graph_control *c, bool after);

/* "mul(·, 0.5)" where numbers are among the inputs, else the name alone. */
static void title_before(str *s, const eas_node *x, bool inside)
{
    const char *name = inside ? NULL : name_of((eas_node *)x);
    bool data = node_real(x) || x->op == GRAPH_INPUT, numbers = false;
    if (data) {
        str_add(s, "%s", name ? name : x->op == GRAPH_INPUT ? "input" : "data");
        return;
    }
    str_add(s, "%s", graph_rows[x->op].name);
    for (int k = 0; k < x->nin; k++)
        numbers |= node_in(x)[k]->op == GRAPH_CONST;
    for (int k = 0; k < x->nin && numbers; k++) {
        str_add(s, "%s", k ? ", " : "(");
        if (node_in(x)[k]->op == GRAPH_CONST)
            number_text(s, (eas_dtype)node_in(x)[k]->dtype, node_words(node_in(x)[k])[0]);
        else
            str_add(s, "\u00b7");
    }
    str_add(s, "%s", numbers ? ")" : "");
}

static uint32_t box_before(drawing *d, const eas_node *x, bool root, bool inside)
{
    str t = {0};
    bool data = node_real(x) || x->op == GRAPH_INPUT;
    title_before(&t, x, inside);
    if (x->op == GRAPH_CONST)
        number_text(&t, (eas_dtype)x->dtype, node_words(x)[0]);
    const char *name = root && !data && !inside ? name_of((eas_node *)x) : NULL;
    if (root)
        str_add(&t, "  \u2192 %s", name ? name : "result");
    uint32_t box = draw_box(d, root ? "result" : data ? "data" : "node", t.at ? t.at : "");
    t.len = 0;
    type_text(&t, (eas_dtype)x->dtype, x->rank, node_shape(x));
    draw_line(d, box, t.at ? t.at : "");
    str_free(&t);
    return box;
}

static eas_status draw_before(drawing *d, const pass_walk *w, int n, eas_node *const *roots, bool inside)
{
    uint32_t count = w->order.len, *box = malloc(sizeof *box * (count + 1));
    eas_status st = box ? EAS_OK : base_fail_oom(count);
    for (uint32_t i = 0; i < count && !st; i++) {
        const eas_node *x = w->order.at[i];
        bool root = false;
        for (int k = 0; k < n; k++)
            root |= roots[k] == x;
        box[i] = UINT32_MAX;
        if (x->op == GRAPH_CONST && !root)
            continue;
        box[i] = box_before(d, x, root, inside);
        for (int k = 0; k < x->nin && !node_real(x); k++) {
            uint32_t from = box[node_in(x)[k]->mark];
            if (from != UINT32_MAX)
                draw_arrow(d, from, box[i]);
        }
        if (!node_real(x) && node_kind(x) == KIND_CONTROL) {
            uint32_t *marks = malloc(sizeof *marks * (count + 1)); /* walking the body writes marks */
            for (uint32_t k = 0; k < count && marks; k++)
                marks[k] = w->order.at[k]->mark;
            st = marks ? draw_control(d, box[i], x->extra->control, false) : base_fail_oom(count);
            for (uint32_t k = 0; k < count && marks; k++)
                w->order.at[k]->mark = marks[k];
            free(marks);
        }
    }
    free(box);
    return st;
}

/* ---- kernels ---- */

static eas_status draw_after(drawing *d, const view *v)
{
    uint32_t nn = v->g.n.len, ng = v->f.groups.len;
    /* counted from 1 */
    uint32_t *box_of = calloc(nn + 1, sizeof *box_of), *group_box = calloc(ng + 1, sizeof *group_box);
    uint8_t *seen = malloc(nn + 1);
    eas_status st = box_of && group_box && seen ? EAS_OK : base_fail_oom(nn);
    for (uint32_t i = 1; i < nn && !st; i++) {
        const pnode *x = pass_at(&v->g, i);
        if (x->kind != KIND_LEAF)
            continue;
        str t = {0};
        eas_node *n = v->w->leaves.at[x->param];
        const char *name = v->inside ? NULL : name_of(n);
        str_add(&t, "%s%s",
                name                   ? name
                : n->op == GRAPH_INPUT ? "input"
                                       : "data",
                is_root(v, i) ? "  \u2192 result" : "");
        if (!name)
            str_add(&t, " %%%u", i);
        uint32_t b = draw_box(d, is_root(v, i) ? "result" : "data", t.at ? t.at : "");
        t.len = 0;
        type_text(&t, (eas_dtype)x->dtype, x->rank, x->shape);
        draw_line(d, b, t.at ? t.at : "");
        str_free(&t);
        box_of[i] = b + 1;
    }
    for (uint32_t k = ng - 1; k > 0 && !st; k--) {
        const group *g = &v->f.groups.at[k];
        if (!g->roots.len)
            continue;
        str t = {0};
        bool result = false;
        if (!mark_group(v, k, seen))
            st = base_fail_oom(nn);
        for (uint32_t i = 1; i < nn; i++)
            result |= seen[i] == MEMBER && is_root(v, i);
        uint32_t b;
        /* a result of a loop or a call: in its box */
        if (g->kind == GROUP_ALIAS && box_of[pass_at(&v->g, g->core)->in[0]]) {
            b = box_of[pass_at(&v->g, g->core)->in[0]] - 1;
            if (result && !v->inside)
                d->boxes.at[b].cls = "result";
        } else {
            group_title(&t, v, k);
            b = draw_box(d, result && !v->inside ? "result" : "kernel", t.at ? t.at : "");
        }
        for (uint32_t i = 1; i < nn && !st; i++) {
            if (seen[i] == READ && box_of[i] && box_of[i] - 1 != b)
                draw_arrow(d, box_of[i] - 1, b);
            if (seen[i] != MEMBER)
                continue;
            t.len = 0;
            node_line(&t, v, i);
            draw_line(d, b, t.at ? t.at : "");
        }
        for (uint32_t r = 0; r < g->roots.len; r++)
            box_of[g->roots.at[r].node] = b + 1;
        if (!st && g->kind == GROUP_CALL && pass_at(&v->g, g->core)->kind == KIND_CONTROL)
            st = draw_control(d, b, pass_at(&v->g, g->core)->extra->control, true);
        str_free(&t);
    }
    free(box_of);
    free(group_box);
    free(seen);
    return st;
}

static eas_status draw_fn(drawing *d, const graph_fn *fn, bool after)
{
    pass_walk w;
    view v;
    eas_status st = pass_walk_from(&w, fn->n, fn->outs);
    if (st)
        return st;
    if (after) {
        st = view_open(&v, &w, fn->n, fn->outs, true);
        if (!st)
            st = draw_after(d, &v);
        view_close(&v);
    } else {
        st = draw_before(d, &w, fn->n, fn->outs, true);
    }
    pass_walk_clear(&w);
    return st;
}

static eas_status draw_control(drawing *d, uint32_t box, const graph_control *c, bool after)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < (c->branch ? 2 : 1) && !st; i++) {
        drawing inner = {0};
        st = draw_fn(&inner, &c->fn[i], after);
        if (!st)
            draw_inside(d, box, &inner, fn_titles[c->branch ? 1 + i : 0]);
        draw_free(&inner);
    }
    return st;
}

/* ---- the front ---- */

eas_status show_walk(const pass_walk *w, int n, eas_node *const *roots, eas_device *device, const char *form,
                     char **out)
{
    str s = {0};
    drawing d = {0};
    eas_status st;
    if (!strcmp(form, "text"))
        st = text(&s, w, n, roots, device);
    else if (!strcmp(form, "svg-before"))
        st = draw_before(&d, w, n, roots, false);
    else if (!strcmp(form, "svg-after")) {
        view v;
        st = view_open(&v, w, n, roots, false);
        if (!st)
            st = draw_after(&d, &v);
        view_close(&v);
    } else
        return base_fail(EAS_ERR_VALUE,
                         "eager: \"%s\" is no form to show; there are text, svg-before and svg-after", form);
    if (!st && strcmp(form, "text"))
        st = draw_svg(&d, &s);
    draw_free(&d);
    if (st) {
        str_free(&s);
        return st;
    }
    return str_take(&s, out);
}
