/* cover.c: does a grid that was inferred from N cover what the kernel writes?
 *
 * Problem: without _grid a launch has ceil(N / block) programs, which is right if each program owns a block
 * of N elements. In a kernel whose program_id(0) numbers rows, and whose lanes are a whole row of N, that is
 * far too few: the rest of the output would silently stay as it was.
 *
 * Idea: look at the program after the last one. With a right grid it has nothing left to write: all its
 * stores are masked off or outside the arguments. With a wrong grid it would write the next row. Whether it
 * writes is decided by intervals (ranges.c), as bounds are, for that one program.
 *
 * The question is asked only of kernels that do not multiply program_id(0) by their block (by_blocks). A
 * kernel that does owns blocks: if its arguments are longer than N the next program would write as well,
 * although the grid is right.
 */
#include "kernel.h"

/* Does each program own a block of elements? Then some value that depends on program_id(0) is multiplied by a
 * multiple of the block. With a block of 1, programs are elements, unless each of them has N
 * of its own. */
static bool by_blocks(const eas_ir *ir, int64_t block, int size_n, const bool *pid)
{
    bool rows = false;
    for (uint32_t i = 0; i < ir->ninsns; i++) {
        const ir_insn *in = &ir->insns[i];
        const uint32_t *a = ir_args(ir, in);
        int64_t c;
        if (in->op == IR_GLOBAL_ID)
            return true;
        for (int side = 0; in->op == IR_MUL && side < 2; side++) {
            if (!pid[a[side]])
                continue;
            if (block > 1 && ir_const_of(ir, a[1 - side], &c) && c > 0 && c % block == 0)
                return true;
            rows |= a[1 - side] == (uint32_t)size_n + 1;
        }
    }
    return block == 1 && !rows;
}

bool cover_doubtful(const eas_kernel *k)
{
    arena mem = {0};
    bool doubt = false;
    const bool *pid = k->size_n < 0 || k->info.naxes != 1 ? NULL : ir_depends(k->ir, IR_PROGRAM_ID, 0, &mem);
    if (pid)
        doubt = !by_blocks(k->ir, k->info.block, k->size_n, pid);
    for (uint32_t i = 0; doubt && i < k->ir->ninsns; i++)
        if (k->ir->insns[i].op == IR_NUM_PROGRAMS) /* the kernel works with any number of programs */
            doubt = false;
    arena_free(&mem);
    return doubt;
}

bool cover_asks(const eas_kernel *k, const packed *p)
{
    if (k->doubtful)
        return true;
    for (int i = 0; i < k->nparams; i++) /* as many blocks as N says: N may count rows of one block each */
        if (k->params[i].written && k->info.block > 1 &&
            (uint64_t)p->count[i] == (uint64_t)p->key[3 + k->size_n] * (uint64_t)k->info.block)
            return true;
    return false;
}

eas_status cover_check(const eas_kernel *k, const packed *p)
{
    ir_range scalar[IR_MAX_PARAMS];
    for (int i = 0; i < k->nparams; i++)
        scalar[i] = (ir_range){p->key[3 + i], p->key[3 + i]};
    const ir_env next = {
        .scalar = scalar, .grid = {p->grid[0] + 1, 1, 1}, .count = p->count, .first = p->grid[0]};
    const uint32_t at = ir_writes_inside(k->ir, &next);
    if (at == UINT32_MAX)
        return EAS_OK;
    const ir_insn *in = &k->ir->insns[at];
    const char *out = k->ir->params[ir_args(k->ir, in)[0] - 1].name;
    str where = {0};
    if (in->file)
        str_add(&where, "%s:%u: ", k->ir->files[in->file], (unsigned)in->line);
    eas_status st = base_fail(
        EAS_ERR_VALUE,
        "%skernel %s: how many programs there are follows from N = %lld and the block of %lld: %lld. But program %lld would "
        "still write to \"%s\", which "
        "has %lld elements, so these do not cover it: program_id(0) seems to number something else than blocks of N, such as "
        "rows. Say how many programs are "
        "meant: _grid=(rows,)",
        where.at ? where.at : "", k->ir->name, (long long)p->key[3 + k->size_n], (long long)k->info.block,
        (long long)p->grid[0], (long long)p->grid[0], out, (long long)p->count[ir_args(k->ir, in)[0] - 1]);
    str_free(&where);
    return st;
}
