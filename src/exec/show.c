/* show.c: what evaluating will do, for people: as text, and as a drawing that needs nothing but a browser.
 *
 * Before: every recorded node in a layer by its distance from data, with lines to its inputs. After: a panel for each kernel that lists what it computes, and lines
 * for what goes through memory.
 */
#include "exec.h"

/* ---- text ---- */

static void add_node(str *s, const pgraph *g, uint32_t i)
{
    const pnode *p = pass_at(g, i);
    str_add(s, "%%%u = %s", i, graph_rows[p->op].name);
    for (int k = 0; k < p->nin; k++)
        str_add(s, "%s%%%u", k ? ", " : " ", p->in[k]);
    str_add(s, " : %s", eas_dtype_name((eas_dtype)p->dtype));
    shape_add_text(s, p->rank, p->shape);
}

static const char *const kinds[] = {"map", "matmul", "scan", "scatter", "sort", "call", "result", "attention", "concatenate"};

static bool member(const fusion *f, uint32_t i, uint32_t grp)
{
    const place *q = &f->at[i];
    const pnode *p = pass_at(f->g, i);
    return q->group == grp && (q->used || q->stored) && !(q->many && !q->stored) && p->kind != KIND_LEAF && p->kind != KIND_CONST;
}

static void group_title(str *s, const fusion *f, uint32_t k)
{
    const group *g = &f->groups.at[k];
    str_add(s, "kernel %u: %s over ", f->groups.len - k, g->kind == GROUP_MAP && g->inner ? "reduce" : kinds[g->kind]);
    shape_add_text(s, g->rank, g->space);
    for (int d = 0, first = 1; d < g->rank; d++)
        if (g->inner >> d & 1) {
            str_add(s, "%s%d", first ? " along " : ", ", d);
            first = 0;
        }
}

static eas_status text_fn(str *s, const graph_fn *fn, int indent);

/* What a loop or a branch runs, indented. */
static eas_status text_control(str *s, const graph_control *c, int indent)
{
    static const char *const titles[] = {"a trip", "if not", "if so"};
    eas_status st = EAS_OK;
    for (int i = 0; i < (c->branch ? 2 : 1) && !st; i++) {
        str_add(s, "%*s%s:\n", indent, "", titles[c->branch ? 1 + i : 0]);
        st = text_fn(s, &c->fn[i], indent + 4);
    }
    return st;
}

static eas_status text_groups(str *s, const fusion *f, int indent)
{
    eas_status st = EAS_OK;
    for (uint32_t i = 1; i < f->g->n.len; i++)
        if (pass_at(f->g, i)->kind == KIND_LEAF) {
            str_add(s, "%*s", indent, "");
            add_node(s, f->g, i);
            str_add(s, "\n");
        }
    for (uint32_t k = f->groups.len - 1; k > 0 && !st; k--) {
        const group *g = &f->groups.at[k];
        str_add(s, "%*s", indent, "");
        group_title(s, f, k);
        str_add(s, "\n");
        for (uint32_t i = 1; i < f->g->n.len; i++)
            if (member(f, i, k)) {
                str_add(s, "%*s", indent + 4, "");
                add_node(s, f->g, i);
                str_add(s, "%s\n", f->at[i].stored ? "  -> memory" : "");
            }
        if (g->kind == GROUP_CALL && pass_at(f->g, g->core)->kind == KIND_CONTROL)
            st = text_control(s, pass_at(f->g, g->core)->extra->control, indent + 4);
    }
    return st;
}

/* The list of what roots need, and its groups. */
static eas_status fused(pgraph *g, fusion *f, const pass_walk *w, int n, eas_node *const *roots)
{
    uint32_t *at = malloc(sizeof *at * (w->order.len + 1)), *ids = malloc(sizeof *ids * (size_t)(n + 1));
    eas_status st = pass_init(g);
    if (!at || !ids)
        st = base_fail_oom(w->order.len);
    if (!st)
        st = pass_flatten(g, w, at);
    for (int i = 0; i < n && !st; i++)
        ids[i] = at[roots[i]->mark];
    if (!st)
        st = fuse(f, g, (uint32_t)n, ids, 256, NULL);
    free(at);
    free(ids);
    return st;
}

static eas_status text_fn(str *s, const graph_fn *fn, int indent)
{
    pass_walk w;
    pgraph g;
    fusion f = {0};
    eas_status st = pass_walk_from(&w, fn->n, fn->outs);
    if (st)
        return st;
    st = fused(&g, &f, &w, fn->n, fn->outs);
    if (!st)
        st = text_groups(s, &f, indent);
    fuse_free(&f);
    pass_free(&g);
    pass_walk_clear(&w);
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

/* ---- drawing ---- */

enum { BOX_W = 190, BOX_H = 34, GAP_X = 24, GAP_Y = 42, LINE = 17, CHARS = 26 };

static void add_escaped(str *s, const char *t)
{
    for (; *t; t++)
        switch (*t) {
        case '<': str_add(s, "&lt;"); break;
        case '>': str_add(s, "&gt;"); break;
        case '&': str_add(s, "&amp;"); break;
        default: str_put(s, t, 1);
        }
}

static void svg_text(str *s, int x, int y, const char *cls, const char *t)
{
    str_add(s, "<text x=\"%d\" y=\"%d\" class=\"%s\">", x, y, cls);
    add_escaped(s, t);
    str_add(s, "</text>\n");
}

static void svg_box(str *s, int x, int y, int w, int h, const char *cls)
{
    str_add(s, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" class=\"%s\"/>\n", x, y, w, h, cls);
}

static void svg_line(str *s, int x0, int y0, int x1, int y1)
{
    int mid = (y0 + y1) / 2;
    str_add(s, "<path d=\"M%d %dC%d %d %d %d %d %d\" class=\"edge\"/>\n", x0, y0, x0, mid, x1, mid, x1, y1);
}

static void svg_begin(str *s, int w, int h)
{
    str_add(s,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"ui-sans-serif, sans-serif\" "
            "font-size=\"12\">\n"
            "<style>.data{fill:#e8f1fb;stroke:#5b8fc7}.node{fill:#fff;stroke:#8a8f98}.result{fill:#e9f7ec;stroke:#4f9d62}.kernel{fill:#fafafa;stroke:"
            "#444b57}"
            ".edge{fill:none;stroke:#9aa1ab}.name{font-weight:600;fill:#20242b}.type{fill:#5d6470;font-size:11px}</style>\n"
            "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
            w, h, w, h);
}

static void type_text(str *s, eas_dtype dt, int rank, const eas_dim *shape)
{
    str_add(s, "%s", eas_dtype_name(dt));
    shape_add_text(s, rank, shape);
}

typedef struct spot {
    int layer, column, x, y, w, h;
} spot;

/* Layers from the top: columns in the order of arrival. Returns the drawing's size. */
static void arrange(spot *at, int n, int *w, int *h)
{
    int layers = 0;
    for (int i = 0; i < n; i++)
        layers = at[i].layer + 1 > layers ? at[i].layer + 1 : layers;
    int y = GAP_X;
    *w = 2 * GAP_X + BOX_W;
    for (int l = 0; l < layers; l++) {
        int x = GAP_X, tall = 0;
        for (int i = 0; i < n; i++)
            if (at[i].layer == l && at[i].w) {
                at[i].x = x;
                at[i].y = y;
                x += at[i].w + GAP_X;
                tall = at[i].h > tall ? at[i].h : tall;
            }
        *w = x > *w ? x : *w;
        y += tall ? tall + GAP_Y : 0;
    }
    *h = y;
}

static void svg_before(str *s, const pass_walk *w, int nroots, eas_node *const *roots)
{
    int n = (int)w->order.len, width, height;
    spot *at = calloc((size_t)n + 1, sizeof *at);
    for (int i = 0; i < n && at; i++) {
        const eas_node *x = w->order.at[i];
        at[i].w = BOX_W;
        at[i].h = BOX_H + 6;
        for (int k = 0; k < x->nin && !node_real(x); k++)
            if (at[node_in(x)[k]->mark].layer >= at[i].layer)
                at[i].layer = at[node_in(x)[k]->mark].layer + 1;
    }
    if (!at)
        return;
    arrange(at, n, &width, &height);
    svg_begin(s, width, height);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < w->order.at[i]->nin && !node_real(w->order.at[i]); k++) {
            const spot *from = &at[node_in(w->order.at[i])[k]->mark];
            svg_line(s, from->x + from->w / 2, from->y + from->h, at[i].x + at[i].w / 2, at[i].y);
        }
    for (int i = 0; i < n; i++) {
        const eas_node *x = w->order.at[i];
        bool data = node_real(x) || x->op == GRAPH_INPUT || x->op == GRAPH_CONST, root = false;
        for (int k = 0; k < nroots; k++)
            root |= roots[k] == x;
        str t = {0};
        svg_box(s, at[i].x, at[i].y, at[i].w, at[i].h, root ? "result" : data ? "data" : "node");
        int64_t iv;
        double fv;
        if (eas_node_number_value(x, &iv, &fv)) {
            str_add_double(&t, fv, true);
            svg_text(s, at[i].x + 10, at[i].y + 16, "name", t.at ? t.at : "");
        } else {
            svg_text(s, at[i].x + 10, at[i].y + 16, "name", node_real(x) ? "data" : graph_rows[x->op].name);
        }
        t.len = 0;
        type_text(&t, (eas_dtype)x->dtype, x->rank, node_shape(x));
        svg_text(s, at[i].x + 10, at[i].y + 32, "type", t.at ? t.at : "");
        str_free(&t);
    }
    str_add(s, "</svg>\n");
    free(at);
}

static int group_lines(const fusion *f, uint32_t k)
{
    int n = 0;
    for (uint32_t i = 1; i < f->g->n.len; i++)
        n += member(f, i, k);
    return n;
}

/* Does group k read node i, which has memory and is not its own? */
static bool reads(const fusion *f, uint32_t k, uint32_t i)
{
    for (uint32_t j = i + 1; j < f->g->n.len; j++) {
        const pnode *p = pass_at(f->g, j);
        const place *q = &f->at[j];
        if ((q->group != k && !q->many) || !(q->used || q->stored))
            continue;
        for (int d = 0; d < p->nin; d++)
            if (p->in[d] == i && q->group == k)
                return true;
    }
    return false;
}

static void svg_after(str *s, const fusion *f)
{
    int ng = (int)f->groups.len, width, height;
    uint32_t nn = f->g->n.len;
    spot *at = calloc((size_t)ng + nn, sizeof *at); /* groups, then leaves by node */
    if (!at)
        return;
    for (uint32_t i = 1; i < nn; i++)
        if (pass_at(f->g, i)->kind == KIND_LEAF) {
            at[(uint32_t)ng + i].w = BOX_W;
            at[(uint32_t)ng + i].h = BOX_H + 6;
        }
    for (int k = ng - 1; k > 0; k--) {
        at[k].w = BOX_W * 2;
        at[k].h = BOX_H + LINE * group_lines(f, (uint32_t)k);
        at[k].layer = 1;
        for (uint32_t i = 1; i < nn; i++) {
            const place *q = &f->at[i];
            if (q->stored && q->group && q->group != (uint32_t)k && pass_at(f->g, i)->kind != KIND_LEAF && reads(f, (uint32_t)k, i) &&
                at[q->group].layer >= at[k].layer)
                at[k].layer = at[q->group].layer + 1;
        }
    }
    arrange(at, ng + (int)nn, &width, &height);
    svg_begin(s, width, height);
    for (int k = ng - 1; k > 0; k--)
        for (uint32_t i = 1; i < nn; i++) {
            bool leaf = pass_at(f->g, i)->kind == KIND_LEAF;
            if (!(leaf || f->at[i].stored) || (!leaf && f->at[i].group == (uint32_t)k) || !reads(f, (uint32_t)k, i))
                continue;
            const spot *from = leaf ? &at[(uint32_t)ng + i] : &at[f->at[i].group];
            svg_line(s, from->x + from->w / 2, from->y + from->h, at[k].x + at[k].w / 2, at[k].y);
        }
    for (uint32_t i = 1; i < nn; i++) {
        const spot *p = &at[(uint32_t)ng + i];
        const pnode *x = pass_at(f->g, i);
        if (!p->w)
            continue;
        str t = {0};
        type_text(&t, (eas_dtype)x->dtype, x->rank, x->shape);
        svg_box(s, p->x, p->y, p->w, p->h, "data");
        svg_text(s, p->x + 10, p->y + 16, "name", "data");
        svg_text(s, p->x + 10, p->y + 32, "type", t.at ? t.at : "");
        str_free(&t);
    }
    for (int k = ng - 1; k > 0; k--) {
        str t = {0};
        int y = at[k].y + 18;
        group_title(&t, f, (uint32_t)k);
        svg_box(s, at[k].x, at[k].y, at[k].w, at[k].h, "kernel");
        svg_text(s, at[k].x + 10, y, "name", t.at ? t.at : "");
        for (uint32_t i = 1; i < nn; i++)
            if (member(f, i, (uint32_t)k)) {
                t.len = 0;
                add_node(&t, f->g, i);
                str_add(&t, "%s", f->at[i].stored ? "  \u2192 memory" : "");
                svg_text(s, at[k].x + 14, y += LINE, "type", t.at ? t.at : "");
            }
        str_free(&t);
    }
    str_add(s, "</svg>\n");
    free(at);
}

/* ---- the front ---- */

eas_status show_walk(const pass_walk *w, int n, eas_node *const *roots, eas_device *d, const char *form, char **out)
{
    str s = {0};
    pgraph g;
    fusion f = {0};
    bool text = !strcmp(form, "text"), after = !strcmp(form, "svg-after");
    if (!text && !after && strcmp(form, "svg-before"))
        return base_fail(EAS_ERR_VALUE, "eager: \"%s\" is no form to show; there are text, svg-before and svg-after", form);
    if (!text && !after) {
        svg_before(&s, w, n, roots);
        return str_take(&s, out);
    }
    plan *p = NULL;
    eas_status st = fused(&g, &f, w, n, roots);
    if (!st && text) {
        st = text_groups(&s, &f, 0);
        if (!st)
            st = plan_new(w, (uint32_t)n, roots, d, 0, &p);
        if (!st && !p->symbolic)
            str_add(&s, "%u kernel%s, %lld bytes at most above the inputs\n", p->nsteps, p->nsteps == 1 ? "" : "s", (long long)peak_bytes(p));
        else if (!st)
            str_add(&s, "%u kernel%s\n", p->nsteps, p->nsteps == 1 ? "" : "s");
        plan_release(p);
    } else if (!st) {
        svg_after(&s, &f);
    }
    fuse_free(&f);
    pass_free(&g);
    if (st) {
        str_free(&s);
        return st;
    }
    return str_take(&s, out);
}
