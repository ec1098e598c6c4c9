/* dist.h: sharded tensors: how they lie on a mesh of devices, the program of one device, and its runs.
 *
 *   mesh.c       meshes by number; specs: what they say of sizes, as words and as text
 *   meshes.c     graphs with tensors on several meshes
 *   parts.c      the data of a sharded node: made from parts, read part by part, assembled
 *   partition.c  the recorded graph, which has global shapes, as the graph of one device
 *   assign.c     which axes of the mesh cut which factors of an operation
 *   reshard.c    a tensor that lies one way as it must lie another way: collectives and slices
 *   rules.c      each kind of operation on parts
 *   mix.c        dims merged by a reshape from several dims of which an inner one is cut
 *   halo.c, shift.c, roll.c, place.c   operations that move elements along a cut dim: shift.h
 *   call.c       the user's kernels, and host functions (linalg, fft), on parts
 *   elementwise.c  a proof that a kernel is element-wise
 *   control.c    loops and branches on parts
 *   team.c       the devices of this process: threads and their communicators
 *   make.c, launch.c, run.c, compiled.c   programs over parts: run.h
 *   explain.c    the list of a program's collectives: bytes, reasons, source lines
 *   cost.c, simulate.c, auto.c   predicting programs, and choosing layouts: cost.h
 *
 * All devices run one program (SPMD) that differs in data alone: in the parts and in the numbers of the axes'
 * coordinates. A spec names for each dim the axes of the mesh that cut it, outermost first, and axes along
 * which the parts are still to be summed (partial).
 */
#ifndef DIST_H
#define DIST_H

#include "../exec/exec.h"
#include "comm.h"

/* ---- mesh.c ---- */
typedef struct dist_mesh { /* never freed: a program has few */
    int id;
    char *name, *axis[EAS_MESH_AXES];
    eas_mesh m;
    int64_t ndevices;
} dist_mesh;
const dist_mesh *dist_mesh_at(int id); /* NULL: there is none */
int64_t spec_parts(const dist_mesh *m, const eas_dim_spec *d); /* into how many the dim is cut */
uint32_t spec_cut(const eas_spec *s); /* bits: axes that cut a dim */
bool spec_same(const eas_spec *a, const eas_spec *b); /* the same layout: flags do not count */
bool spec_same_dim(const eas_dim_spec *a, const eas_dim_spec *b);
bool spec_plain(const eas_spec *s); /* nothing is cut and nothing partial */
bool spec_uneven(const dist_mesh *m, const eas_dim_spec *d, eas_dim size);
/* of one part: the last ones may be padded */
eas_dim spec_local(const dist_mesh *m, const eas_dim_spec *d, eas_dim size);
void spec_local_shape(const dist_mesh *m, const eas_spec *s, const eas_dim *shape, eas_dim *out);
int64_t spec_dim_word(const eas_dim_spec *d);
eas_dim_spec spec_dim_of(int64_t word);
void spec_of_words(int rank, const int64_t *words, eas_spec *out); /* of a GRAPH_SHARD */
void spec_add_text(str *s, const dist_mesh *m, const eas_spec *spec); /* P('x', None), partial over 'y' */
void spec_add_axes(str *s, const dist_mesh *m, const eas_dim_spec *d);
/* can it hold? */
eas_status spec_check(const dist_mesh *m, const eas_spec *s, const eas_node *x, bool pad, const char *what);
void mesh_coordinates(const dist_mesh *m, int64_t device, int64_t *at); /* per axis */
/* the place of a device along these axes, the outermost first */
int64_t mesh_index(const dist_mesh *m, const eas_dim_spec *axes, const int64_t *at);
/* the devices along these axes, in order; how many */
int64_t mesh_members(const dist_mesh *m, const eas_dim_spec *axes, int64_t device, int *ranks);

/* ---- parts.c ---- */
typedef struct dist_parts { /* data of a tensor: what the devices of this process hold */
    const dist_mesh *mesh;
    eas_spec spec;
    bool pad;
    int64_t first, n; /* devices of this process */
    eas_buffer *at[]; /* counted */
} dist_parts;
dist_parts *parts_of(const eas_node *n); /* NULL: it has none */
dist_parts *parts_of_buffer(const eas_buffer *b);
bool parts_all_here(const dist_parts *p); /* can they be assembled by this process alone? */
/* The buffers are counted by it. */
eas_status parts_new(const dist_mesh *m, const eas_spec *s, bool pad, eas_device *d, int64_t first, int64_t n,
                     eas_buffer *const *at, eas_buffer **out);

/* ---- partition.c ---- */
typedef struct pvalue { /* the value of a global node on one device */
    eas_node *n; /* of the local graph; NULL: not made yet */
    eas_spec at; /* its layout */
} pvalue;
typedef struct pnote { /* one collective of the program */
    coll_kind kind;
    coll_join join;
    eas_dim_spec axes;
    eas_dtype dtype;
    int64_t count; /* elements that one device gives */
    int64_t pairs; /* of COLL_PERMUTE: messages in one group */
    /* how often it runs: the product of the trip counts of the loops around it; a loop whose count is not
     * known counts as one trip */
    int64_t times;
    bool per_trip; /* such a loop is around it: `times` and the bytes are those of one trip */
    uint16_t op; /* the operation that needs its result */
    uint32_t site; /* the user's source line */
    const char *why; /* a static string, for explain_sharding */
} pnote;
typedef VEC(pnote) pnotes;
typedef struct pin { /* a layout that auto_shard chose for a value inside the graph */
    const eas_node *n;
    eas_spec at;
} pin;
typedef VEC(pin) pins;
typedef struct pentry { /* of a global node */
    eas_node *n;
    pvalue v;
    /* a partial sum that is still to be reduced and added to v (partition_value does both); n NULL: none */
    pvalue rest;
    eas_spec ahead; /* the layout that follows from the inputs alone (forward walk) */
    eas_spec want; /* the layout that its users would have to convert least from (backward walk) */
    bool has_want;
    /* a pad or a slice that is computed together with each of its users: it has no value of its own */
    bool late;
    /* index of another entry with the same value: an alias's input, a composite's expansion; UINT32_MAX: none
     */
    uint32_t same;
    pvalue *results; /* of a call, a loop or a branch; malloc'ed */
    const pin *pinned; /* NULL: no layout was chosen for it */
} pentry;
typedef struct pindex { /* a placeholder for the device's index along these axes */
    eas_dim_spec axes;
    eas_node *n;
} pindex;
typedef struct pmemo { /* a resharding that was done: from -> to */
    eas_node *from;
    eas_spec before, after;
    eas_node *to;
} pmemo;
typedef VEC(char *) VEC_TEXT;
enum { MIX_MOST = 8 };
typedef struct pmix { /* mix.c: what a mixed dim is made of */
    int n, which; /* which of the sizes is cut */
    int64_t size[MIX_MOST];
} pmix;
typedef struct partition {
    const dist_mesh *m;
    gbuild g; /* keeps the local nodes */
    struct partition *around; /* of a body: where the loop is */
    VEC(pentry) at; /* inputs before users */
    uint32_t *table; /* node -> entry */
    uint32_t ntable;
    VEC(eas_node *) opened; /* expansions, counted */
    VEC(pindex) index;
    int next_input; /* number of the next placeholder */
    pnotes *notes;
    VEC(pmemo) memo;
    VEC(pmix) mixes;
    const eas_node *now; /* that is being partitioned */
    int64_t times; /* for pnotes: see there */
    bool per_trip;
    VEC(eas_node *) roots; /* borrowed: the nodes to be evaluated */
    bool any_layout; /* a candidate of auto_shard: results need not become ordinary tensors */
    VEC_TEXT *sites; /* source lines of the collectives, malloc'ed */
} partition;
pentry *partition_find(partition *p, const eas_node *n);
const eas_node *barrier_source(const eas_node *n); /* of a GRAPH_BARRIER: what it waits for */
void spec_like(const eas_node *n, const eas_spec *in, const eas_node *other, const eas_spec *like,
               eas_spec *out); /* of a GRAPH_SHARD with two inputs */
pentry *partition_add(partition *p, eas_node *n); /* a new entry */
/* Entries of all that roots need; leaves are there already. */
eas_status partition_collect(partition *p, int n, eas_node *const *roots);
/* before partition_run; nodes that are not in the graph are ignored */
void partition_pin(partition *p, const pins *chosen);
eas_status partition_run(partition *p); /* local nodes of all entries */
pvalue *partition_value(partition *p, const eas_node *n); /* after partition_run, or of what comes before */
/* a placeholder with the next number */
eas_node *partition_input(partition *p, eas_dtype dt, int rank, const eas_dim *shape);
/* a new constant with n's value; fixed: never an argument of a run */
eas_node *partition_number(partition *p, const eas_node *n, bool fixed);
/* The mesh on which anything that these nodes are computed from lies; *m stays as it was if nothing is
 * sharded. ERR_VALUE: there are two. */
eas_status partition_mesh(int n, eas_node *const *nodes, const dist_mesh **m);
/* The mesh of a node's own data, or of the layout that was asked for (GRAPH_SHARD, a sharded placeholder).
 * NULL: it has neither, and is on a mesh only through its inputs. */
const dist_mesh *node_own_mesh(const eas_node *n);
/* the device's index along these axes, the outermost first: i64 of rank 0 */
eas_node *partition_index(partition *p, const eas_dim_spec *axes);
eas_node *partition_keep(partition *p, eas_status st, eas_node *n); /* takes the node over */
void partition_free(partition *p);

/* ---- meshes.c ---- */
extern _Thread_local bool dist_several; /* the graph that is evaluated has tensors on several meshes */
const dist_mesh *dist_mesh_of(eas_node *n); /* its own mesh, or the one that its inputs lie on; NULL: none */
bool dist_foreign(const eas_node *n, int i); /* of a GRAPH_SHARD: is input i on another mesh? */
typedef eas_status (*dist_evaluate)(const dist_mesh *m, int n, eas_node *const *nodes, eas_device *device,
                                    const eas_launch *hooks);
eas_status dist_stage(int n, eas_node *const *nodes, dist_evaluate evaluate, eas_device *device,
                      const eas_launch *hooks);

/* ---- assign.c ---- */
typedef struct assigned {
    eas_shard_rule *r;
    int nout; /* results, behind the inputs among the rule's tensors */
    eas_dim_spec *of; /* per factor: the axes that cut it */
    uint32_t carried; /* axes of sums that stay partial */
} assigned;
/* By a rule that is given, which it takes over. */
eas_status assign_by(partition *p, eas_node *n, eas_shard_rule *r, int nout, const eas_spec *const *in,
                     const eas_spec *want, assigned *out);
eas_status assign_factors(partition *p, eas_node *n, const eas_spec *const *in, const eas_spec *want,
                          assigned *out);
/* dims of an input or (r->nin) of the result */
void assign_spec(const assigned *a, int tensor, eas_spec *out);
void assign_free(assigned *a);
uint32_t assign_carried(const eas_node *n, const uint32_t *partial); /* see shard.c */

/* ---- reshard.c ---- */
eas_node *reshard(partition *p, const pvalue *x, const eas_spec *to, int rank, const eas_dim *shape,
                  const char *why);
eas_node *coll_reduce(partition *p, eas_node *x, const eas_dim_spec *axes, coll_join join, const char *why);
/* of parts, along a dim */
eas_node *coll_gather(partition *p, eas_node *x, const eas_dim_spec *axes, int dim, const char *why);
eas_node *coll_permute(partition *p, eas_node *x, const eas_dim_spec *axes, int n, const int64_t *pairs,
                       const char *why);
/* the device's own part of what is whole along dim */
eas_node *local_block(partition *p, eas_node *x, const eas_dim_spec *axes, int dim);

/* ---- rules.c ---- */
void partition_node(partition *p, pentry *e);
void partition_keep_pin(partition *p, pentry *e); /* its value, as the layout that was chosen for it says */
bool rules_is_permutation(const eas_node *n); /* of a shuffle: is no element wanted twice? */
eas_status dist_shard_rule(eas_node *n, eas_shard_rule **out); /* with what this folder can cut besides */

/* ---- mix.c: `priority` of a dim's spec is the number of its mix; 0: none ---- */
bool partition_reshape(partition *p, pentry *e); /* false: nothing is mixed, before or after */
bool mix_passes(const eas_node *n);
eas_spec mix_none(const eas_spec *s); /* mixed dims whole */
eas_node *mix_gathered(partition *p, eas_node *x, int d, const eas_dim_spec *at, const char *why);
eas_node *mix_block(partition *p, eas_node *x, int d, const eas_dim_spec *to);

/* ---- shift.c, roll.c ---- */
bool shift_is(const eas_node *n); /* a slice, pad or window of known sizes */
bool shift_is_roll(const eas_node *n);
eas_status shift_roll_rule(const eas_node *n, eas_shard_rule **out);
eas_node *shift_rolled(partition *p, const eas_node *n, const eas_spec *at, eas_node *x);
void shift_ahead(partition *p, pentry *e);
void shift_mark(partition *p, int nroots, eas_node *const *roots);
bool partition_shift(partition *p, pentry *e); /* false: nothing moves along a cut dim */

/* ---- place.c ---- */
/* how the result will lie; false: no concatenation or update along a cut dim */
bool place_ahead(partition *p, pentry *e);
bool partition_place(partition *p, pentry *e); /* false: likewise */

/* ---- call.c ---- */
void partition_call(partition *p, pentry *e);
void call_ahead(partition *p, pentry *e); /* how its results would lie, into e->results */
/* Of a result of a call, as far as it is known without a partition: NULL, or a rule for the call's inputs and
 * that result. */
eas_status call_result_rule(eas_node *result, eas_shard_rule **out);

/* ---- control.c ---- */
void partition_control(partition *p, pentry *e);

/* ---- team.c ---- */
typedef struct team team; /* the devices of a mesh that live in this process */
/* place: among the devices of this process */
typedef eas_status (*team_work)(void *ctx, int64_t device, int place, comm *c);
eas_status team_get(const dist_mesh *m, team **out);
int64_t team_first(const team *t);
int64_t team_size(const team *t);
/* the first error is this call's */
eas_status team_run(team *t, team_work work, void *ctx, const eas_launch *hooks);
eas_status dist_devices(const dist_mesh *m, int64_t *first, int64_t *n); /* those of this process */
/* sent by the devices of this process so far */
extern _Atomic uint64_t dist_bytes[COMM_NOPS], dist_calls[COMM_NOPS];

/* ---- run.c ---- */
void dist_begin(void); /* installs the hooks of this folder in exec; before the first sharded node */
void dist_notes_of(int n, eas_node *const *nodes, pnotes *out, eas_status *st);
typedef eas_status (*dist_look)(void *ctx, int n, eas_node *const *locals);
/* The graph of one device that these nodes become, shown to `look`; specs: NULL, or how each tensor that is
 * given lies, in the order of dist_leaves; chosen: NULL, or layouts inside. */
eas_status dist_local(const dist_mesh *m, int n, eas_node *const *nodes, const eas_spec *specs,
                      const pins *chosen, dist_look look, void *ctx);
/* The tensors that these nodes are made of (borrowed), and how they lie. Both arrays are malloc'ed. */
eas_status dist_leaves(int n, eas_node *const *nodes, int *count, eas_node ***leaves, eas_spec **specs);

#endif
