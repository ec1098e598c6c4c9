/* draw.c: drawings of graphs as SVG: boxes in layers from inputs to results, arrows between them.
 *
 * The layout is the usual one for layered graphs. A box lies one layer below the lowest of its inputs; what
 * has no inputs lies just above its first user. An arrow over several layers gets a point in each layer
 * between, which takes room like a box: so it goes around boxes. The order in each layer follows from the
 * mean position of the neighbours, swept down and up a few times; the order with the fewest crossings is
 * kept. Then positions move towards the neighbours' as far as the order and the gaps allow.
 */
#include "exec.h"

enum { PAD = 10, GAP_X = 22, GAP_Y = 40, LINE = 16, TITLE = 18, MARGIN = 16, POINT_W = 8, SWEEPS = 12 };

/* ---- text ---- */

static void add_escaped(str *s, const char *t)
{
    for (; *t; t++)
        switch (*t) {
        case '<': str_add(s, "&lt;"); break;
        case '>': str_add(s, "&gt;"); break;
        case '&': str_add(s, "&amp;"); break;
        case '"': str_add(s, "&quot;"); break;
        default: str_put(s, t, 1);
        }
}

static void svg_text(str *s, int x, int y, const char *cls, const char *t)
{
    str_add(s, "<text x=\"%d\" y=\"%d\" class=\"%s\">", x, y, cls);
    add_escaped(s, t);
    str_add(s, "</text>\n");
}

static int letters(const char *t) /* bytes that begin a character */
{
    int n = 0;
    for (; *t; t++)
        n += (*t & 0xc0) != 0x80;
    return n;
}

/* ---- building ---- */

void draw_free(drawing *d)
{
    for (uint32_t i = 0; i < d->boxes.len; i++) {
        str_free(&d->boxes.at[i].title);
        str_free(&d->boxes.at[i].lines);
        str_free(&d->boxes.at[i].inner);
    }
    vec_free(&d->boxes);
    vec_free(&d->arrows);
}

uint32_t draw_box(drawing *d, const char *cls, const char *title)
{
    draw_node b = {.cls = cls};
    str_add(&b.title, "%s", title);
    b.w = 2 * PAD + (int)(7.8 * letters(title));
    d->oom |= !vec_push(&d->boxes, b) || b.title.oom;
    return d->boxes.len - 1;
}

void draw_line(drawing *d, uint32_t box, const char *text)
{
    draw_node *b = &d->boxes.at[box];
    int w = 2 * PAD + (int)(6.4 * letters(text));
    str_add(&b->lines, "%s\n", text);
    b->nlines++;
    b->w = w > b->w ? w : b->w;
}

/* A drawing inside the box, below its lines; several lie side by side. */
void draw_inside(drawing *d, uint32_t box, drawing *inner, const char *title)
{
    draw_node *b = &d->boxes.at[box];
    draw_layout(inner);
    int top = title && *title ? LINE : 0;
    str_add(&b->inner, "<g transform=\"translate(%d %d)\">\n", b->inner_w + PAD, 0);
    svg_text(&b->inner, 0, 12, "type", title ? title : "");
    str_add(
        &b->inner,
        "<g transform=\"translate(0 %d)\">\n<rect width=\"%d\" height=\"%d\" rx=\"6\" class=\"inside\"/>\n",
        top, inner->w, inner->h);
    draw_boxes(&b->inner, inner);
    str_add(&b->inner, "</g></g>\n");
    b->inner_w += inner->w + PAD;
    b->inner_h = inner->h + top > b->inner_h ? inner->h + top : b->inner_h;
    int w = b->inner_w + PAD;
    b->w = w > b->w ? w : b->w;
}

void draw_arrow(drawing *d, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < d->arrows.len; i++)
        if (d->arrows.at[i].from == from && d->arrows.at[i].to == to)
            return;
    d->oom |= !vec_push(&d->arrows, ((draw_edge){from, to, true}));
}

/* ---- layers ---- */

static int layers_of(drawing *d)
{
    int most = 0;
    for (bool again = true; again;) { /* arrows mostly come in order, so this takes few rounds */
        again = false;
        for (uint32_t i = 0; i < d->arrows.len; i++) {
            draw_node *a = &d->boxes.at[d->arrows.at[i].from], *b = &d->boxes.at[d->arrows.at[i].to];
            if (b->layer <= a->layer && a->layer < (int)d->boxes.len) {
                b->layer = a->layer + 1;
                again = true;
            }
        }
    }
    for (uint32_t i = 0; i < d->boxes.len; i++) {
        bool source = true;
        int first = INT32_MAX;
        for (uint32_t k = 0; k < d->arrows.len; k++) {
            source &= d->arrows.at[k].to != i;
            if (d->arrows.at[k].from == i && d->boxes.at[d->arrows.at[k].to].layer < first)
                first = d->boxes.at[d->arrows.at[k].to].layer;
        }
        if (source && first != INT32_MAX)
            d->boxes.at[i].layer = first - 1;
        most = d->boxes.at[i].layer > most ? d->boxes.at[i].layer : most;
    }
    return most + 1;
}

/* Points where an arrow passes a layer. */
static void add_points(drawing *d)
{
    uint32_t n = d->arrows.len;
    for (uint32_t i = 0; i < n && !d->oom; i++) {
        draw_edge e = d->arrows.at[i];
        int last = d->boxes.at[e.to].layer;
        uint32_t from = e.from;
        for (int l = d->boxes.at[e.from].layer + 1; l < last && !d->oom; l++) {
            draw_node p = {.w = POINT_W, .layer = l, .point = true};
            if (!vec_push(&d->boxes, p) ||
                !vec_push(&d->arrows, ((draw_edge){from, d->boxes.len - 1, false})))
                d->oom = true;
            from = d->boxes.len - 1;
        }
        d->arrows.at[i].from = from;
    }
}

/* ---- order ---- */

typedef struct rows {
    int n;         /* layers */
    uint32_t **at; /* boxes of each, in order */
    uint32_t *len;
} rows;

static void number(drawing *d, const rows *r)
{
    for (int l = 0; l < r->n; l++)
        for (uint32_t i = 0; i < r->len[l]; i++)
            d->boxes.at[r->at[l][i]].order = (double)i;
}

static int64_t crossings(const drawing *d)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < d->arrows.len; i++)
        for (uint32_t k = i + 1; k < d->arrows.len; k++) {
            const draw_node *a = &d->boxes.at[d->arrows.at[i].from], *b = &d->boxes.at[d->arrows.at[i].to];
            const draw_node *x = &d->boxes.at[d->arrows.at[k].from], *y = &d->boxes.at[d->arrows.at[k].to];
            n += a->layer == x->layer && (a->order - x->order) * (b->order - y->order) < 0;
        }
    return n;
}

/* The mean of f over the neighbours above (or below); the box's own where there are none. */
static double mean_of(const drawing *d, uint32_t box, bool above, double (*f)(const draw_node *))
{
    double sum = 0;
    int n = 0;
    for (uint32_t i = 0; i < d->arrows.len; i++)
        if ((above ? d->arrows.at[i].to : d->arrows.at[i].from) == box) {
            sum += f(&d->boxes.at[above ? d->arrows.at[i].from : d->arrows.at[i].to]);
            n++;
        }
    return n ? sum / n : f(&d->boxes.at[box]);
}
static double order_of(const draw_node *b) { return b->order; }
static double centre_of(const draw_node *b) { return b->x + b->w / 2.0; }

static void sort_row(drawing *d, uint32_t *row, uint32_t n, bool above)
{
    for (uint32_t i = 0; i < n; i++)
        d->boxes.at[row[i]].key = mean_of(d, row[i], above, order_of);
    for (uint32_t i = 1; i < n; i++) /* stable, and nearly in order after the first sweeps */
        for (uint32_t k = i; k > 0 && d->boxes.at[row[k - 1]].key > d->boxes.at[row[k]].key; k--) {
            uint32_t t = row[k];
            row[k] = row[k - 1];
            row[k - 1] = t;
        }
    for (uint32_t i = 0; i < n; i++)
        d->boxes.at[row[i]].order = (double)i;
}

static void order_rows(drawing *d, rows *r)
{
    int64_t best = INT64_MAX;
    uint32_t n = d->boxes.len, *kept = malloc(sizeof *kept * (n + 1));
    bool large = d->arrows.len > 2000; /* counting is quadratic */
    number(d, r);
    for (int sweep = 0; sweep <= SWEEPS && kept; sweep++) {
        int64_t now = large ? -sweep : crossings(d);
        if (now < best) {
            best = now;
            uint32_t k = 0;
            for (int l = 0; l < r->n; l++)
                for (uint32_t i = 0; i < r->len[l]; i++)
                    kept[k++] = r->at[l][i];
        }
        for (int i = 1; i < r->n; i++) {
            int l = sweep % 2 ? r->n - 1 - i : i;
            sort_row(d, r->at[l], r->len[l], sweep % 2 == 0);
        }
    }
    uint32_t k = 0;
    for (int l = 0; l < r->n && kept; l++)
        for (uint32_t i = 0; i < r->len[l]; i++)
            r->at[l][i] = kept[k++];
    free(kept);
    number(d, r);
}

/* ---- places ---- */

static int gap(const draw_node *a, const draw_node *b) { return a->point && b->point ? GAP_X / 2 : GAP_X; }

/* Each box of a row moves to where its neighbours are, in order, then as far left as the next one asks for.
 */
static void settle_row(drawing *d, uint32_t *row, uint32_t n, bool above)
{
    for (uint32_t i = 0; i < n; i++) {
        draw_node *b = &d->boxes.at[row[i]];
        b->key = mean_of(d, row[i], above, centre_of) - b->w / 2.0;
    }
    /* runs of boxes that push each other move as one: to the mean of where they want to be */
    for (uint32_t i = 0; i < n; i++)
        d->boxes.at[row[i]].x = d->boxes.at[row[i]].key;
    for (int pass = 0; pass < 16; pass++) {
        bool clash = false;
        for (uint32_t i = 1; i < n; i++) {
            draw_node *a = &d->boxes.at[row[i - 1]], *b = &d->boxes.at[row[i]];
            double over = a->x + a->w + gap(a, b) - b->x;
            if (over > 0.5) {
                a->x -= over / 2;
                b->x += over / 2;
                clash = true;
            }
        }
        if (!clash)
            break;
    }
    for (uint32_t i = 1; i < n; i++) {
        draw_node *a = &d->boxes.at[row[i - 1]], *b = &d->boxes.at[row[i]];
        double least = a->x + a->w + gap(a, b);
        b->x = b->x < least ? least : b->x;
    }
}

static void place_rows(drawing *d, rows *r)
{
    int y = MARGIN;
    for (int l = 0; l < r->n; l++) {
        double x = MARGIN;
        int tall = 0;
        for (uint32_t i = 0; i < r->len[l]; i++) {
            draw_node *b = &d->boxes.at[r->at[l][i]];
            b->x = x;
            b->y = y;
            x += b->w + GAP_X;
            tall = b->h > tall ? b->h : tall;
        }
        for (uint32_t i = 0; i < r->len[l]; i++)
            if (d->boxes.at[r->at[l][i]].point)
                d->boxes.at[r->at[l][i]].h = tall;
        y += tall + GAP_Y;
    }
    d->h = y - GAP_Y + MARGIN;
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int i = 1; i < r->n; i++) {
            int l = sweep % 2 ? r->n - 1 - i : i;
            settle_row(d, r->at[l], r->len[l], sweep % 2 == 0);
        }
    double left = 1e9, right = 0;
    for (uint32_t i = 0; i < d->boxes.len; i++)
        left = d->boxes.at[i].x < left ? d->boxes.at[i].x : left;
    for (uint32_t i = 0; i < d->boxes.len; i++) {
        d->boxes.at[i].x += MARGIN - left;
        right = d->boxes.at[i].x + d->boxes.at[i].w > right ? d->boxes.at[i].x + d->boxes.at[i].w : right;
    }
    d->w = (int)right + MARGIN;
}

void draw_layout(drawing *d)
{
    for (uint32_t i = 0; i < d->boxes.len; i++) {
        draw_node *b = &d->boxes.at[i];
        b->h = PAD + TITLE + LINE * b->nlines + (b->inner_h ? b->inner_h + PAD : 0);
    }
    rows r = {.n = layers_of(d)};
    add_points(d);
    arena mem = {0};
    r.at = arena_alloc(&mem, sizeof *r.at * (size_t)r.n);
    r.len = arena_alloc(&mem, sizeof *r.len * (size_t)r.n);
    for (int l = 0; l < r.n && !mem.oom; l++) {
        r.at[l] = arena_alloc(&mem, sizeof **r.at * (d->boxes.len + 1));
        r.len[l] = 0;
        for (uint32_t i = 0; i < d->boxes.len && !mem.oom; i++)
            if (d->boxes.at[i].layer == l)
                r.at[l][r.len[l]++] = i;
    }
    d->oom |= mem.oom;
    if (!d->oom) {
        order_rows(d, &r);
        place_rows(d, &r);
    }
    arena_free(&mem);
}

/* ---- SVG ---- */

static void svg_arrow(str *s, const draw_node *a, const draw_node *b, bool head)
{
    int x0 = (int)(a->x + a->w / 2.0), y0 = a->y + a->h, x1 = (int)(b->x + b->w / 2.0), y1 = b->y,
        mid = (y0 + y1) / 2;
    if (a->point)
        str_add(s, "<path d=\"M%d %dV%d\" class=\"edge\"/>\n", x0, a->y, y0);
    str_add(s, "<path d=\"M%d %dC%d %d %d %d %d %d\" class=\"edge\"%s/>\n", x0, y0, x0, mid, x1, mid, x1,
            head ? y1 - 2 : y1, head ? " marker-end=\"url(#arrow)\"" : "");
}

void draw_boxes(str *s, const drawing *d)
{
    for (uint32_t i = 0; i < d->arrows.len; i++)
        svg_arrow(s, &d->boxes.at[d->arrows.at[i].from], &d->boxes.at[d->arrows.at[i].to],
                  d->arrows.at[i].head);
    for (uint32_t i = 0; i < d->boxes.len; i++) {
        const draw_node *b = &d->boxes.at[i];
        int x = (int)b->x, y = b->y + TITLE;
        if (b->point)
            continue;
        str_add(s, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\" class=\"%s\"/>\n", x, b->y,
                b->w, b->h, b->cls);
        svg_text(s, x + PAD, y, "name", b->title.at ? b->title.at : "");
        for (char *t = b->lines.at; t && *t; y += LINE) {
            char *end = strchr(t, '\n');
            *end = 0;
            svg_text(s, x + PAD, y + LINE, "type", t);
            *end = '\n';
            t = end + 1;
        }
        if (b->inner.len) {
            str_add(s, "<g transform=\"translate(%d %d)\">\n", x, y + PAD / 2 + 2);
            str_put(s, b->inner.at, b->inner.len);
            str_add(s, "</g>\n");
        }
    }
}

eas_status draw_svg(drawing *d, str *s)
{
    draw_layout(d);
    if (d->oom)
        return base_fail_oom(d->boxes.len);
    str_add(
        s,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"ui-sans-serif, Helvetica, Arial, "
        "sans-serif\" font-size=\"12\">\n"
        "<style>.data{fill:#e8f1fb;stroke:#5b8fc7}.node{fill:#fff;stroke:#8a8f98}.result{fill:#e9f7ec;stroke:#4f9d62;stroke-width:2}"
        ".kernel{fill:#fafafa;stroke:#444b57}.inside{fill:#fff;stroke:#c5cad3;stroke-dasharray:4 3}"
        ".edge{fill:none;stroke:#7d8590}.name{font-weight:600;fill:#20242b}.type{fill:#4d5460;font-size:11px}</style>\n"
        "<defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\">"
        "<path d=\"M0 0L8 4L0 8z\" fill=\"#7d8590\"/></marker></defs>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
        d->w, d->h, d->w, d->h);
    draw_boxes(s, d);
    str_add(s, "</svg>\n");
    return EAS_OK;
}
