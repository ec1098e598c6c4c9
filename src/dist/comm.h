/* comm.h: the communicator contract: how the ranks of a sharded program exchange data.
 *
 * A `comm` is one endpoint: one rank among `size`. Engines make endpoints: threads (comm_threads.c: all ranks
 * are threads of one process), MPI (libeas-mpi, a module opened at run
 * time: every rank is a process) and self (one rank). Programs know this header alone.
 *
 * A collective is described by a comm_call, started, and awaited:
 *
 *     comm_request *r;
 *     st = comm_start(c, &call, &r);     early: as soon as the data to send is complete
 *     ...                                compute; comm_poll(c) between launches moves messages on
 *     st = comm_wait(c, r);              late: where the result is first needed; r is gone afterwards, also
 *                                        on failure
 *
 * From start to wait, `send` may not be written and `recv` neither read nor written. Several calls may be
 * pending; they may be awaited in any order, and each must be awaited, after a failure too. comm_start
 * copies the call: `site` and `shape` need to live only until it returns.
 *
 * Every member of a group starts the same calls in the same order. The n-th call of a group meets the n-th
 * call of the other members: calls of different groups are independent. A member
 * whose call differs (op, reduction, dtype, count, root) is found, and all members fail; with
 * EAS_DIST_DEBUG=1 the shape and the source line are compared too, before any data is sent.
 *
 * Failure: comm_start and comm_wait return a status with a message that names the failed rank, the
 * collective, its source line and the last operation of each rank. After the first failure the
 * endpoint is broken: every further call fails at once with the same message. Nothing waits longer than
 * EAS_DIST_TIMEOUT (seconds, 30). comm_abort breaks all endpoints, for a rank that fails
 * by itself. An endpoint of the threads engine must be closed by its thread: that tells the others that it
 * has returned.
 *
 * Layout: blocks are contiguous, of `count` elements of `dtype`, and concatenated in the order of the group
 * (rank-major: member 0's block, member 1's block, …). To gather along a dim other than the
 * first, or to cut one, the caller packs and unpacks. n is the number of members, me this member:
 *
 *     op               send                      recv                      meaning
 *     all_gather       count                     n * count                 recv[k] = member k's send
 *     all_reduce       count                     count                     recv = reduction over members (1)
 *     reduce_scatter   n * count                 count                     recv = reduction of all send[me]
 *     all_to_all       n * count                 n * count                 recv[k] = member k's send[me]
 *     ppermute         count                     count                     recv = send of the member `from`
 * (2) broadcast        count (root)              count                     recv = root's send (1) gather
 * count                     n * count (root)          recv[k] = member k's send (3) scatter          n *
 * count (root)          count                     recv = root's send[me] barrier          - - none leaves
 * before all have come
 *
 * (1) recv may be send, at the root of a broadcast. (2) Zeros if from < 0; the own send goes to the member
 * `to`, and nowhere if to < 0. (3) At the root alone.
 *
 * Except where said, send and recv do not overlap. A pointer may be NULL where nothing is read or written
 * (count 0 included). ppermute: every member passes its own part of one permutation of
 * members: `to` of the member k is j if and only if `from` of j is k; to == from == me copies. An exchange of
 * halos is a ppermute for each direction.
 *
 * Reductions join in one fixed tree over the members' order, whatever the engine and the number of ranks: the
 * members [0, n) are the join of [0, m) and [m, n), m the greatest power of two below n. f16
 * and bf16 are joined in f32 and rounded once, at the end. A call that is `fast` may be joined in another
 * order, by the engine's quickest way: sums and products of floats may then differ in their last bits between
 * engines and between runs (comm_fast.c). Members agree on `fast`. min and max give NaN if any operand is
 * one. sum and prod are not for bool (cast first); and, or are for bool and, bit by bit, for integers.
 */
#ifndef COMM_H
#define COMM_H

#include "../base/base.h"

/* X(name, reduces): what a collective does, see above */
#define COMM_OP_TABLE(X) \
    X(all_gather, false) \
    X(all_reduce, true) \
    X(reduce_scatter, true) \
    X(all_to_all, false) \
    X(ppermute, false) \
    X(broadcast, false) \
    X(gather, false) \
    X(scatter, false) \
    X(barrier, false)

typedef enum comm_op {
#define COMM_X(name, reduces) COMM_##name,
    COMM_OP_TABLE(COMM_X)
#undef COMM_X
        COMM_NOPS
} comm_op;

#define COMM_REDUCTION_TABLE(X) X(sum) X(prod) X(max) X(min) X(and) X(or)

typedef enum comm_reduction {
#define COMM_X(name) COMM_RED_##name,
    COMM_REDUCTION_TABLE(COMM_X)
#undef COMM_X
        COMM_NREDUCTIONS
} comm_reduction;

enum { COMM_MAX_DIMS = 16, COMM_SITE = 160 };

typedef struct comm comm;
typedef struct comm_request comm_request; /* an engine's own */

/* Some ranks in an order: those along one or several axes of a mesh. Interned by the endpoint: equal lists
 * give the same group, and it lives as long as the endpoint. */
typedef struct comm_group {
    int n, me; /* members; this endpoint's place among them */
    const int *ranks;
    uint64_t hash; /* of ranks: the same on every member */
    uint64_t calls; /* started so far; the number of the next call, counted alike by every member */
    int id; /* counts up from 0 (all ranks) at this endpoint; not the same on every member */
    void *engine; /* the engine's own */
} comm_group;

typedef struct comm_call {
    comm_op op;
    comm_reduction red; /* of ops that reduce */
    eas_dtype dtype;
    comm_group *group; /* NULL: all ranks */
    int64_t count; /* elements of a block */
    const void *send;
    void *recv;
    int root; /* a member, by its place in the group */
    int to, from; /* ppermute: likewise, -1 is nobody */
    bool fast; /* of ops that reduce: in any order */
    const char *site; /* the user's source line, such as "train.py:12"; NULL: unknown */
    int rank; /* of the tensor as the user sees it, for messages; 0 with shape NULL: not given */
    const int64_t *shape;
} comm_call;

/* Bytes that left this rank, and calls, by op. Of a call with n members and blocks of b bytes:
 *     all_gather, all_to_all, reduce_scatter  (n - 1) b
 *     all_reduce                              2 (n - 1) / n b; what does not divide makes members differ by a
 *                                             few elements
 *     ppermute                                b if `to` is another member
 *     broadcast                               b for each child in a binomial tree from the root
 *     gather, scatter                         b for each member that sends, or is sent, something
 * comm_bytes gives the same without running anything. */
typedef struct comm_stats {
    uint64_t bytes[COMM_NOPS], calls[COMM_NOPS];
} comm_stats;

typedef struct comm_engine {
    const char *name; /* "threads", "mpi", "self" */
    /* the call is valid: see comm_start */
    eas_status (*start)(comm *c, const comm_call *call, comm_request **out);
    eas_status (*wait)(comm *c, comm_request *r);
    void (*poll)(comm *c); /* may be NULL */
    void (*abort)(comm *c, const char *why);
    void (*close)(comm *c); /* frees what the engine holds; the endpoint itself included */
} comm_engine;

struct comm {
    const comm_engine *engine;
    int rank, size;
    comm_stats stats;
    VEC(comm_group *) groups; /* the first has all ranks */
};

/* ---- comm.c: what programs call, for all engines ---- */
/* Checks the call (a mistake is ERR_VALUE or ERR_TYPE and breaks nothing) and starts it. */
eas_status comm_start(comm *c, const comm_call *call, comm_request **out);
eas_status comm_wait(comm *c, comm_request *r);
eas_status comm_run(comm *c, const comm_call *call); /* start and wait */
void comm_poll(comm *c);
void comm_abort(comm *c, const char *why);
/* NULL is accepted. A thread closes its endpoint when it is done, whether it failed or not. */
void comm_close(comm *c);
eas_status comm_barrier(comm *c, const char *site); /* of all ranks */
/* The group of these ranks, in this order; this endpoint's rank must be among them, and none twice. */
eas_status comm_group_get(comm *c, int n, const int *ranks, comm_group **out);
const char *comm_op_name(comm_op op);
const char *comm_reduction_name(comm_reduction red);
bool comm_reduction_parse(
    const char *name,
    comm_reduction *out); /* "sum", "prod", "max", "min", "and", "or", and "mean" never: divide afterwards */
uint64_t comm_bytes(const comm_call *call); /* that leave this rank */
eas_status comm_self(comm **out); /* the endpoint of a program of one rank */

/* For engines. */
/* two members exchange all_reduce operands of up to this size whole: one message less, and the bytes are the
 * same */
enum { COMM_SWAP = 64 << 10 };
/* with the group of all ranks */
eas_status comm_init(comm *c, const comm_engine *engine, int rank, int size);
void comm_done(comm *c); /* what comm_init and comm_group_get made */
bool comm_op_reduces(comm_op op);
int comm_children(int n, int me, int root); /* of a member in a broadcast's tree */
/* equal for calls that fit each other; all: shape and site included */
uint64_t comm_call_hash(const comm_call *k, bool all);
/* A call as it is remembered for messages: without pointers to what is the caller's. */
typedef struct comm_record {
    uint64_t number;
    comm_op op;
    comm_reduction red;
    eas_dtype dtype;
    int members, rank; /* rank -1: the shape is not known */
    int64_t count, shape[COMM_MAX_DIMS];
    char site[COMM_SITE];
} comm_record;
void comm_record_set(comm_record *r, const comm_call *k, uint64_t number);
/* what counts of it: sizes of dims that it has, the site to its end */
void comm_record_copy(comm_record *to, const comm_record *from);
void comm_record_text(const comm_record *r, char *out,
                      size_t size); /* "all_reduce #3 (sum) of f32[4, 8] over 2 ranks at train.py:12" */
double comm_timeout(void); /* EAS_DIST_TIMEOUT, seconds */
bool comm_debug(void); /* EAS_DIST_DEBUG */
/* Where part k of n begins when count elements are cut as evenly as possible. */
static inline uint64_t comm_part(uint64_t count, uint64_t k, uint64_t n)
{
    return count / n * k + count % n * k / n;
}

/* ---- comm_threads.c ---- */
/* n endpoints, one for each thread that takes part. All must be closed; the last one frees what they share.
 */
eas_status comm_threads_new(int n, comm **endpoints);

/* ---- comm_world.c: the endpoint of this process among the processes of its job ---- */
/* Opens it if it is not yet: MPI under mpirun or with EAS_DIST=mpi, otherwise self. The same endpoint each
 * time; not to be closed. */
eas_status comm_world(comm **out);
bool comm_world_is_job(void); /* would opening it open MPI? */
comm *comm_world_open(void); /* NULL: not opened yet, or closed */
eas_status comm_world_close(void); /* waits until all ranks do */

#endif
