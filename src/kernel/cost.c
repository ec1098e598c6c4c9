/* cost.c: an estimate of the time of one program, which decides between the calling thread and the pool, and
 * how the grid is sliced.
 *
 * An instruction counts a nanosecond for about a dozen lanes, a loop the trips that this launch's values
 * allow. An error by a factor of a few does no harm; an estimate that is thousands of times too low would
 * hold a lock for long, so a program whose time cannot be estimated counts as long.
 */
#include "kernel.h"

enum { UNKNOWN_TRIPS = 100000, GUESSED_TRIPS = 8, MAX_DEPTH = 64 };

static double trips(const ir_range *r, const uint32_t *a)
{
    ir_range lo = r[a[0]], hi = r[a[1]], step = r[a[2]];
    if (step.lo <= 0 && step.hi >= 0)
        return UNKNOWN_TRIPS;
    double span = step.lo > 0 ? (double)hi.hi - (double)lo.lo : (double)lo.hi - (double)hi.lo;
    double by = step.lo > 0 ? (double)step.lo : -(double)step.hi;
    return span < by ? 1 : span / by > UNKNOWN_TRIPS ? UNKNOWN_TRIPS : span / by;
}

static double lanes(const eas_ir *ir, const eas_ir_info *info, const ir_insn *in)
{
    uint32_t v = in->res ? in->res : in->nargs > 1 ? ir_args(ir, in)[1] : 0;
    if (in->op == IR_MMA)
        return (double)info->block / IR_SIMD * 512;
    if (!v || ir_typeof(ir, v).kind != IR_VAL)
        return 1;
    return info->mode == EAS_MODE_THREAD ? (double)info->block : (double)ir_lanes(ir_typeof(ir, v));
}

static bool adds(const eas_kernel *k, const ir_insn *in)
{
    return in->op == IR_ATOMIC_ADD && ir_args(k->ir, in)[0] <= (uint32_t)k->nparams &&
           k->params[ir_args(k->ir, in)[0] - 1].added;
}

/* How often the code at hand runs. Where that cannot be told it may be much for the time, and counts as
 * little for additions, which have to be many. */
typedef struct times {
    double most, likely;
} times;

static times in_loop(times t, double trips)
{
    return (times){t.most * trips, t.likely * (trips < UNKNOWN_TRIPS ? trips : GUESSED_TRIPS)};
}

static double cost_of(const ir_insn *in, const eas_ir *ir, const ir_range *r, double n)
{
    double each = 1;
    if (in->op == IR_DOT)
        each = (double)r[ir_args(ir, in)[6]].hi;
    if (in->op == IR_MATMUL)
        each = 0.2 * ir_typeof(ir, ir_args(ir, in)[0]).dim[1]; /* in registers, an fma a lane */
    if (ir_is_atomic(in))
        each = 32;
    return (each < 1 ? 1 : each) * (n > 8 ? n / 8 : 1) * 0.6;
}

kernel_estimate kernel_cost(const eas_kernel *k, const ir_env *env)
{
    arena mem = {0};
    const eas_ir *ir = k->ir;
    eas_ir_info info = ir_analyse(ir);
    const ir_range *r = ir_ranges(ir, env, &mem);
    kernel_estimate e = {.ns = 20};
    times t = {1, 1}, outer[MAX_DEPTH];
    int depth = 0;
    for (uint32_t i = 0; i < ir->ninsns && r; i++) {
        const ir_insn *in = &ir->insns[i];
        if (in->op == IR_LOOP || in->op == IR_WHILE) {
            if (depth < MAX_DEPTH)
                outer[depth++] = t;
            t = in_loop(t, in->op == IR_LOOP ? trips(r, ir_args(ir, in)) : UNKNOWN_TRIPS);
            continue;
        }
        if ((in->op == IR_ENDLOOP || in->op == IR_ENDWHILE) && depth)
            t = outer[--depth];
        const double n = lanes(ir, &info, in);
        e.ns += t.most * cost_of(in, ir, r, n);
        e.adds += adds(k, in) ? t.likely * n : 0;
    }
    arena_free(&mem);
    return e;
}

/* An addition in memory that is shared takes some 5 ns, one of a thread's own 0.3 to 1.5. An element of the
 * buffer takes 1.5 ns at the end, and 0.1 to 0.3 a thread to be filled and added up. */
bool kernel_sums_pay(const eas_kernel *k, const int64_t *count, double adds)
{
    enum { LEAST = 8192, BUDGET = 256 << 20 };
    const double threads = pool_size();
    double elements = 0, bytes = 0;
    for (int i = 0; i < k->nparams; i++)
        if (k->params[i].added) {
            elements += (double)count[i];
            bytes += (double)count[i] * (double)(1 << k->params[i].log2_size);
        }
    return adds >= LEAST && adds >= elements * (1 + threads / 8) && bytes * threads <= BUDGET;
}
