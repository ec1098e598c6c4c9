/* control.c: the nodes of loops and branches. What runs is cut out of the graph that it was recorded in: a
 * function of placeholders that shares no node with it (control_cut.c; loops: control_loop.c).
 *
 * Of a loop, whatever depends on the loop's own placeholders is inside; the rest is computed once, before,
 * and is an input. Of a branch, what was recorded while the branch was open is inside. Numbers stay what they
 * are: inputs whose value is given at each run.
 */
#include "control.h"

#include <stdio.h>

void control_release(graph_control *c)
{
    if (!c || atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    for (int f = 0; f < 2; f++) {
        for (int i = 0; i < c->fn[f].n && c->fn[f].outs; i++)
            node_unref(c->fn[f].outs[i]);
        free(c->fn[f].outs);
    }
    for (int i = 0; i < c->nnumbers && c->numbers; i++)
        node_unref(c->numbers[i]);
    free(c->numbers);
    free(c);
}

/* A loop or branch has at most this many numbers as inputs; if there are more, all of them become part of its
 * structure. pass/flatten.c has the same limit or a higher one. */
enum { MOST_NUMBERS = 16 };

static eas_status keep_numbers(cutting *c, graph_control *k)
{
    k->nin = c->nin + (int)c->captured.len;
    if (c->numbers.len > MOST_NUMBERS) {
        for (uint32_t i = 0; i < c->numbers.len; i++)
            cut_mix(c, (uint64_t)node_words(c->numbers.at[i])[0]);
        c->numbers.len = c->values.len = 0;
    }
    k->numbers = calloc(c->numbers.len + 1, sizeof *k->numbers);
    if (!k->numbers)
        return base_fail_oom(c->numbers.len);
    for (uint32_t i = 0; i < c->numbers.len; i++)
        k->numbers[k->nnumbers++] = node_ref(c->numbers.at[i]);
    return EAS_OK;
}

static void mix_control(cutting *c, graph_control *k)
{
    cut_mix(c, (uint64_t)k->branch << 2 | (uint64_t)k->reverse << 1 | k->conditional);
    cut_mix(c, (uint64_t)k->ncarried << 40 | (uint64_t)k->nscanned << 20 | (uint64_t)k->nstacked);
    cut_mix(c, (uint64_t)k->length);
    memcpy(k->key, c->key, sizeof k->key);
}

/* first: the inputs before those that were captured. */
eas_status control_record(cutting *c, graph_control *k, uint16_t op, eas_node *const *first, int nouts,
                          const struct node_out *outs, const uint8_t *batch_dims, eas_node **results)
{
    eas_status st = keep_numbers(c, k);
    int n = k->nin + k->nnumbers, at = 0;
    eas_node **in = malloc(sizeof *in * (size_t)(n + 1));
    if (!in)
        st = base_fail_oom((size_t)n);
    if (!st && n > UINT16_MAX)
        st = base_fail(EAS_ERR_VALUE, "eager.%s: %d inputs, captured ones included; there are at most %d",
                       graph_rows[op].name, n, UINT16_MAX);
    for (int i = 0; i < c->nin && !st; i++)
        in[at++] = first[i];
    for (uint32_t i = 0; i < c->captured.len && !st; i++)
        in[at++] = c->captured.at[i];
    for (uint32_t i = 0; i < c->values.len && !st; i++)
        in[at++] = c->values.at[i];
    mix_control(c, k);
    if (!st)
        st = node_control(op, n, in, k, nouts, outs, batch_dims, results);
    free(in);
    return st;
}

const char *control_type_text(const eas_node *n, char *buf, size_t room)
{
    str s = {0};
    str_add(&s, "%s", eas_dtype_name((eas_dtype)n->dtype));
    shape_add_text(&s, n->rank, node_shape(n));
    snprintf(buf, room, "%s", s.at ? s.at : "?");
    str_free(&s);
    return buf;
}

bool control_same_type(const eas_node *a, const eas_node *b)
{
    return a->dtype == b->dtype && a->rank == b->rank && a->batch_dims == b->batch_dims &&
           (!a->rank || !memcmp(node_shape(a), node_shape(b), sizeof(eas_dim) * a->rank));
}

/* ---- branches ---- */

void eas_branch_begin(void) { node_open_branches(1); }
void eas_branch_abort(void) { node_open_branches(-1); }

/* May a branch be replaced by a choice of its two results (where)? Only if computing both sides is cheap and
 * cannot fail: each has at most LITTLE nodes, all of them views or element-wise. */
enum { LITTLE = 64 };
static bool little(const cutting *c)
{
    if (c->made.len > LITTLE)
        return false;
    for (uint32_t i = 0; i < c->made.len; i++)
        switch (node_kind(c->made.at[i])) {
        case KIND_INPUT:
        case KIND_CONST:
        case KIND_MAP:
        case KIND_CAST:
        case KIND_RESHAPE:
        case KIND_PERMUTE:
        case KIND_BROADCAST:
        case KIND_SLICE:
        case KIND_PAD:
        case KIND_CONCAT:
        case KIND_ALIAS:
        case KIND_IOTA: break;
        default: return false;
        }
    return true;
}

static eas_status choose(eas_node *pred, int n, eas_node *const *yes, eas_node *const *no, eas_node **results)
{
    eas_status st = EAS_OK;
    for (int i = 0; i < n && !st; i++) {
        st = graph_apply(GRAPH_WHERE, 3, (eas_node *[]){pred, yes[i], no[i]}, 0, NULL, &results[i]);
        for (int k = i; st && k > 0;)
            node_unref(results[--k]);
    }
    return st;
}

static eas_status check_branches(const eas_node *pred, int n, eas_node *const *yes, eas_node *const *no)
{
    char a[128], b[128];
    if (pred->rank || pred->dtype != EAS_BOOL)
        return base_fail(EAS_ERR_TYPE, "eager.branch: the condition is one bool, and %s is given",
                         control_type_text(pred, a, sizeof a));
    for (int i = 0; i < n; i++)
        if (!control_same_type(yes[i], no[i]))
            return base_fail(EAS_ERR_TYPE, "eager.branch: result %d is %s in one and %s in the other", i,
                             control_type_text(yes[i], a, sizeof a), control_type_text(no[i], b, sizeof b));
    return EAS_OK;
}

static eas_status record_branch(cutting *c, eas_node *pred, int n, eas_node *const *yes, eas_node *const *no,
                                eas_node **results)
{
    graph_control *k = calloc(1, sizeof *k);
    struct node_out *outs = calloc((size_t)n + 1, sizeof *outs);
    uint8_t *bd = calloc((size_t)n + 1, 1);
    eas_status st = k && outs && bd ? EAS_OK : base_fail_oom(sizeof *k);
    if (!st) {
        atomic_init(&k->refs, 1);
        k->branch = true;
        st = cut_fn(c, n, no, &k->fn[0]);
        cut_mix(c, 0xb7e151628aed2a6au);
    }
    if (!st)
        st = cut_fn(c, n, yes, &k->fn[1]);
    for (int i = 0; i < n && !st; i++) {
        outs[i] = (struct node_out){(eas_dtype)yes[i]->dtype, yes[i]->rank, node_shape(yes[i])};
        bd[i] = yes[i]->batch_dims;
    }
    if (!st)
        st = little(c) ? choose(pred, n, yes, no, results)
                       : control_record(c, k, GRAPH_BRANCH, &pred, n, outs, bd, results);
    control_release(k);
    free(outs);
    free(bd);
    return st;
}

eas_status eas_branch_end(eas_node *pred, int n, eas_node *const *yes, eas_node *const *no,
                          eas_node **results)
{
    cutting c = {.branch = node_branches(), .nin = 1, .key = {0xa4093822299f31d0u, 0x082efa98ec4e6c89u}};
    eas_status st = node_branches() ? check_branches(pred, n, yes, no)
                                    : base_fail(EAS_ERR_RUNTIME, "eager.branch: none was begun");
    node_open_branches(-1);
    if (!st)
        st = record_branch(&c, pred, n, yes, no, results);
    for (int i = 0; i < n && !st; i++)
        /* its reference becomes a user's */
        atomic_fetch_add_explicit(&results[i]->counts, NODE_HANDLE - NODE_REF, memory_order_relaxed);
    cut_free(&c);
    return st;
}
