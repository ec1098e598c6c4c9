/* cut.c: groups whose kernel would take more parameters than the device does.
 *
 * Which tensors a group reads is only known once it is fused, so fusion is done again with nodes that must
 * not be inlined ("cuts"). They are found by going through the group from inputs to results with the set of
 * parameters that each node needs: where a node needs too many, the inputs of it that need most get memory of
 * their own, and count as one parameter from then on. So a sum of 1000 tensors becomes a few kernels that are
 * as wide as the device allows. If every result of the group needs few enough, it is neighbours over one
 * space that were merged: they stay apart.
 */
#include "exec.h"

typedef struct cutting {
    const fusion *f;
    uint32_t grp, most;
    uint8_t *cuts;
    uint8_t *seen;      /* per node: NOT_SEEN, PARAM or MEMBER */
    uint32_t *number;   /* per node that was seen: its bit, as a parameter or once it is cut */
    uint64_t **set;     /* per member */
    uint32_t nbits, words;
    bool any;
} cutting;
enum { NOT_SEEN, PARAM, MEMBER };

static bool own_root(const cutting *c, uint32_t i)
{
    const group *g = &c->f->groups.at[c->grp];
    for (uint32_t k = 0; k < g->roots.len; k++)
        if (g->roots.at[k].node == i)
            return true;
    return false;
}

static bool visit(cutting *c, uint32_t i, VEC_U32 *stack)
{
    const pnode *p = pass_at(c->f->g, i);
    if (c->seen[i] != NOT_SEEN || (p->kind == KIND_CONST && p->fixed))
        return true;
    bool param = p->kind == KIND_CONST || (fused_stored(c->f, i) && !own_root(c, i));
    c->seen[i] = param ? PARAM : MEMBER;
    c->number[i] = c->nbits++;
    return param || vec_push(stack, i);
}

static bool find_members(cutting *c)
{
    VEC_U32 stack = {0};
    const group *g = &c->f->groups.at[c->grp];
    bool ok = true;
    for (uint32_t k = 0; k < g->roots.len && ok; k++)
        ok = visit(c, g->roots.at[k].value, &stack) &&
             (g->roots.at[k].value == g->roots.at[k].node || visit(c, g->roots.at[k].node, &stack));
    while (ok && stack.len) {
        const pnode *p = pass_at(c->f->g, stack.at[--stack.len]);
        for (int k = 0; k < p->nin && ok; k++)
            ok = visit(c, p->in[k], &stack);
    }
    vec_free(&stack);
    return ok;
}

static uint32_t count(const uint64_t *set, uint32_t words)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < words; i++)
        n += (uint32_t)__builtin_popcountll(set[i]);
    return n;
}

static bool is_cut(const cutting *c, uint32_t i) { return (c->cuts[i] & CUT_APART) != 0; }

/* The set of parameters that node i needs, from the sets of its inputs. */
static void gather(const cutting *c, uint32_t i)
{
    const pnode *p = pass_at(c->f->g, i);
    uint64_t *set = c->set[i];
    memset(set, 0, sizeof *set * c->words);
    for (int k = 0; k < p->nin; k++) {
        uint32_t x = p->in[k];
        if (c->seen[x] == MEMBER && !is_cut(c, x))
            for (uint32_t w = 0; w < c->words; w++)
                set[w] |= c->set[x][w];
        else if (c->seen[x] != NOT_SEEN)
            set[c->number[x] / 64] |= (uint64_t)1 << c->number[x] % 64;
    }
}

static uint32_t widest_input(const cutting *c, uint32_t i)
{
    const pnode *p = pass_at(c->f->g, i);
    uint32_t best = 0, wide = 1;
    for (int k = 0; k < p->nin; k++) {
        uint32_t x = p->in[k], n = c->seen[x] == MEMBER && !is_cut(c, x) ? count(c->set[x], c->words) : 0;
        if (n > wide) {
            wide = n;
            best = x;
        }
    }
    return best;
}

static void narrow(cutting *c, uint32_t i)
{
    uint32_t x;
    gather(c, i);
    while (count(c->set[i], c->words) > c->most && (x = widest_input(c, i))) {
        c->cuts[x] |= CUT_APART;
        c->any = true;
        gather(c, i);
    }
}

static void keep_apart(cutting *c)
{
    const group *g = &c->f->groups.at[c->grp];
    for (uint32_t k = 0; k < g->roots.len && g->roots.len > 1; k++) {
        c->any |= !(c->cuts[g->roots.at[k].node] & CUT_ALONE);
        c->cuts[g->roots.at[k].node] |= CUT_ALONE;
    }
}

bool cut_group(const fusion *f, uint32_t grp, uint32_t most, uint8_t *cuts)
{
    uint32_t n = f->g->n.len;
    arena mem = {0};
    cutting c = {.f = f,
                 .grp = grp,
                 .most = most < 2 ? 2 : most,
                 .cuts = cuts,
                 .seen = calloc(n, 1),
                 .number = calloc(n, sizeof *c.number)};
    c.set = calloc(n, sizeof *c.set);
    bool ok = c.seen && c.number && c.set && find_members(&c);
    c.words = c.nbits / 64 + 1;
    for (uint32_t i = 1; i < n && ok; i++) {
        if (c.seen[i] != MEMBER)
            continue;
        c.set[i] = arena_alloc(&mem, sizeof **c.set * c.words);
        ok = !mem.oom;
        if (ok)
            narrow(&c, i);
    }
    if (ok && !c.any)
        keep_apart(&c);
    arena_free(&mem);
    free(c.seen);
    free(c.number);
    free(c.set);
    return ok && c.any;
}
