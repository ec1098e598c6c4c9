/* The stand-in for Metal: what it must complain about, how it counts, and how kernels that misbehave end. */
#include "../../src/dev/metal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

static mtl_id device, queue;
static const char *(*reports)(void);
static void (*clear)(void);
static long (*live)(const char *);
static void *pool;

static const char source[] = "#include <metal_stdlib>\n"
                             "using namespace metal;\n"
                             "kernel void twice(\n"
                             "    device float* x [[buffer(0)]],\n"
                             "    constant uint& n [[buffer(1)]],\n"
                             "    uint3 gid [[thread_position_in_grid]])\n"
                             "{\n"
                             "    if (gid.x < n) x[gid.x] = x[gid.x] * 2.0f;\n"
                             "}\n"
                             "kernel void lanes(\n"
                             "    device uint* x [[buffer(0)]],\n"
                             "    uint3 tid [[thread_position_in_threadgroup]],\n"
                             "    uint lane [[thread_index_in_simdgroup]])\n"
                             "{\n"
                             "    threadgroup uint all[64];\n"
                             "    all[tid.x] = simd_sum(lane) + simd_shuffle_xor(lane, 1);\n"
                             "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
                             "    x[tid.x] = all[63 - tid.x];\n"
                             "}\n"
                             "kernel void parts(\n"
                             "    device uint* x [[buffer(0)]],\n"
                             "    uint3 tid [[thread_position_in_threadgroup]])\n"
                             "{\n"
                             "    if (tid.x < 3) return;\n"
                             "    threadgroup_barrier(mem_flags::mem_threadgroup);\n"
                             "    x[tid.x] = 1;\n"
                             "}\n"
                             "kernel void endless(\n"
                             "    device volatile uint* x [[buffer(0)]])\n"
                             "{\n"
                             "    while (x[0] != 12345u) x[1] = 1;\n"
                             "}\n"
                             "kernel void wild(\n"
                             "    device uint* x [[buffer(0)]],\n"
                             "    constant ulong& far [[buffer(1)]])\n"
                             "{\n"
                             "    x[far] = 1;\n"
                             "}\n"
                             "kernel void overflows(\n"
                             "    device int* x [[buffer(0)]])\n"
                             "{\n"
                             "    x[0] = x[1] + 2147483647;\n"
                             "}\n";

static mtl_id make_pipeline(const char *name, bool indirect)
{
    mtl_id error = NULL, library = SEND(new_library, device, metal_string(source), NULL, &error);
    if (!library)
        fail_msg("%s", metal_text(error));
    mtl_id fn = SEND(new_function, library, metal_string(name));
    mtl_id o = SEND0(alloc, metal_class("MTLComputePipelineDescriptor"));
    o = SEND0(init, o);
    SEND(set_function, o, fn);
    SEND(set_indirect, o, indirect);
    mtl_id p =
        indirect ? SEND(new_described, device, o, 0, NULL, &error) : SEND(new_pipeline, device, fn, &error);
    assert_non_null(p);
    SEND0(release, o);
    SEND0(release, fn);
    SEND0(release, library);
    return p;
}

static mtl_id new_pipeline(const char *name) { return make_pipeline(name, false); }

/* A command buffer with a compute encoder, and what the test does with them; then the rest, and the verdict.
 */
typedef struct run {
    mtl_id commands, encoder, buffer, pipeline;
} run;

static run begin(const char *kernel)
{
    run r = {.commands = SEND0(command_buffer, queue),
             .buffer = SEND(new_buffer, device, 1024, METAL_SHARED)};
    r.encoder = SEND0(compute_encoder, r.commands);
    memset(SEND0(contents, r.buffer), 0, 1024);
    if (kernel) {
        r.pipeline = new_pipeline(kernel);
        SEND(set_pipeline, r.encoder, r.pipeline);
    }
    return r;
}

static void done(void *ctx, mtl_id commands)
{
    (void)commands;
    __atomic_store_n((int *)ctx, 1, __ATOMIC_RELEASE);
}

/* Commits and waits, and gives the error's code, 0 if there was none. */
static long end(run *r)
{
    int over = 0;
    metal_on_completed(r->commands, done, &over);
    SEND0(commit, r->commands);
    for (int i = 0; i < 3000 && !__atomic_load_n(&over, __ATOMIC_ACQUIRE); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    assert_true(over);
    mtl_id error = SEND0(error, r->commands);
    assert_int_equal(SEND0(status, r->commands), error ? 5 : 4);
    long code = error ? SEND0(code, error) : 0;
    SEND0(release, r->buffer);
    if (r->pipeline)
        SEND0(release, r->pipeline);
    return code;
}

static void dispatch(run *r, unsigned long n, unsigned long group)
{
    SEND(dispatch_threads, r->encoder, ((mtl_size){n, 1, 1}), ((mtl_size){group, 1, 1}));
}

static void complains(const char *part)
{
    if (!strstr(reports(), part))
        fail_msg("\"%s\" does not say \"%s\"", reports(), part);
    clear();
}

static void quiet(void)
{
    if (*reports())
        fail_msg("%s", reports());
}

/* ---- what is right ---- */

static void kernels_run(void **state)
{
    (void)state;
    run r = begin("twice");
    float *x = SEND0(contents, r.buffer), seen[100];
    unsigned n = 100;
    for (int i = 0; i < 256; i++)
        x[i] = (float)i;
    SEND(set_buffer, r.encoder, r.buffer, 16, 0);
    SEND(set_bytes, r.encoder, &n, sizeof n, 1);
    dispatch(&r, 100, 32);
    dispatch(&r, 100, 7);
    SEND0(end_encoding, r.encoder);
    SEND0(retain, r.buffer);
    assert_int_equal(end(&r), 0);
    memcpy(seen, x + 4, sizeof seen);
    for (int i = 0; i < 100; i++)
        assert_true(seen[i] == 4 * (float)(i + 4));
    assert_true(x[104] == 104);
    SEND0(release, r.buffer);
    quiet();
}

static void lanes_talk(void **state)
{
    (void)state;
    run r = begin("lanes");
    unsigned *x = SEND0(contents, r.buffer);
    SEND(set_buffer, r.encoder, r.buffer, 0, 0);
    SEND(dispatch_groups, r.encoder, ((mtl_size){1, 1, 1}), ((mtl_size){64, 1, 1}));
    SEND0(end_encoding, r.encoder);
    SEND0(retain, r.buffer);
    assert_int_equal(end(&r), 0);
    for (unsigned i = 0; i < 64; i++)
        assert_int_equal(x[i], 496 + (((63 - i) % 32) ^ 1));
    SEND0(release, r.buffer);
    quiet();
}

/* A buffer over memory of the caller's: whole pages, nothing copied, and the memory stays his. */
static void lent_memory(void **state)
{
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *p = aligned_alloc(page, 2 * page);
    assert_non_null(p);
    memset(p, 0, 2 * page);
    assert_null(SEND(new_lent, device, p + 64, page, METAL_SHARED, NULL));
    complains("whole pages");
    assert_null(SEND(new_lent, device, p, page - 4, METAL_SHARED, NULL));
    complains("whole pages");
    assert_null(SEND(new_lent, device, p, 0, METAL_SHARED, NULL));
    complains("whole pages");
    assert_null(SEND(new_lent, device, p, page, METAL_PRIVATE, NULL));
    complains("shared");
    mtl_id b = SEND(new_lent, device, p, 2 * page, METAL_SHARED, NULL);
    assert_ptr_equal(SEND0(contents, b), p);
    assert_int_equal(SEND0(length, b), 2 * page);
    run r = begin("twice");
    unsigned n = 4;
    float x[4] = {1, 2, 3, 4};
    memcpy(p + page, x, sizeof x);
    SEND(set_buffer, r.encoder, b, page, 0);
    SEND(set_bytes, r.encoder, &n, sizeof n, 1);
    dispatch(&r, 4, 4);
    SEND0(end_encoding, r.encoder);
    assert_int_equal(end(&r), 0);
    SEND0(release, b);
    memcpy(x, p + page, sizeof x);
    assert_true(x[0] == 2 && x[3] == 8);
    free(p);
    quiet();
}

/* ---- what is wrong with the commands ---- */

static void a_buffer_index_that_is_not_there(void **state)
{
    (void)state;
    run r = begin("twice");
    SEND(set_buffer, r.encoder, r.buffer, 0, 31);
    SEND0(end_encoding, r.encoder);
    assert_int_not_equal(end(&r), 0);
    complains("buffer index 31");
}

static void an_argument_that_is_not_bound(void **state)
{
    (void)state;
    run r = begin("twice");
    SEND(set_buffer, r.encoder, r.buffer, 0, 0);
    dispatch(&r, 10, 1);
    SEND0(end_encoding, r.encoder);
    assert_int_not_equal(end(&r), 0);
    complains("nothing is bound to buffer(1), argument n");
}

static void a_scalar_that_is_too_short(void **state)
{
    (void)state;
    run r = begin("twice");
    SEND(set_buffer, r.encoder, r.buffer, 0, 0);
    SEND(set_bytes, r.encoder, "ab", 2, 1);
    dispatch(&r, 10, 1);
    SEND0(end_encoding, r.encoder);
    assert_int_not_equal(end(&r), 0);
    complains("holds 2 bytes, argument n has 4");
}

static void offsets_that_do_not_fit(void **state)
{
    (void)state;
    run r = begin("twice");
    unsigned n = 1;
    SEND(set_bytes, r.encoder, &n, sizeof n, 1);
    SEND(set_buffer, r.encoder, r.buffer, 1024, 0);
    complains("past its length");
    SEND(set_buffer, r.encoder, r.buffer, 2, 0);
    dispatch(&r, 1, 1);
    complains("not aligned");
    SEND0(end_encoding, r.encoder);
    assert_int_not_equal(end(&r), 0);
}

static void a_dispatch_without_a_pipeline(void **state)
{
    (void)state;
    run r = begin(NULL);
    dispatch(&r, 1, 1);
    SEND0(end_encoding, r.encoder);
    assert_int_not_equal(end(&r), 0);
    complains("no pipeline");
}

static void groups_that_are_too_large(void **state)
{
    (void)state;
    run r = begin("endless");
    SEND(set_buffer, r.encoder, r.buffer, 0, 0);
    dispatch(&r, 4000, 1025);
    SEND0(end_encoding, r.encoder);
    assert_int_not_equal(end(&r), 0);
    complains("a group has 1 to 1024");
}

static void an_encoder_that_is_not_ended(void **state)
{
    (void)state;
    run r = begin("twice");
    assert_null(SEND0(blit_encoder, r.commands));
    complains("not ended");
    assert_int_not_equal(end(&r), 0);
    complains("not ended");
}

static void an_encoder_that_was_ended(void **state)
{
    (void)state;
    run r = begin("twice");
    SEND0(end_encoding, r.encoder);
    dispatch(&r, 1, 1);
    complains("was ended");
    assert_int_not_equal(end(&r), 0);
    SEND0(commit, r.commands);
    complains("was committed");
}

static void a_command_buffer_that_is_never_committed(void **state)
{
    (void)state;
    void *inner = metal_pool_push();
    run r = begin("endless");
    SEND(set_buffer, r.encoder, r.buffer, 0, 0);
    dispatch(&r, 1, 1);
    SEND0(end_encoding, r.encoder);
    SEND0(release, r.buffer);
    SEND0(release, r.pipeline);
    metal_pool_pop(inner);
    complains("released without commit");
    inner = metal_pool_push();
    for (int i = 0; i < 64; i++)
        assert_non_null(SEND0(command_buffer, queue));
    assert_null(SEND0(command_buffer, queue));
    complains("never committed");
    metal_pool_pop(inner);
    quiet();
}

static void copies_that_do_not_fit(void **state)
{
    (void)state;
    mtl_id c = SEND0(command_buffer, queue), e = SEND0(blit_encoder, c),
           b = SEND(new_buffer, device, 64, METAL_PRIVATE);
    assert_null(SEND0(contents, b));
    SEND(copy, e, b, 0, b, 48, 32);
    complains("a copy of 32 bytes");
    SEND(copy, e, b, 0, b, 8, 16);
    complains("overlap");
    SEND(copy, e, b, 0, b, 33, 16);
    complains("multiples of 4");
    SEND0(end_encoding, e);
    SEND0(release, b);
}

static void no_buffers_of_no_bytes(void **state)
{
    (void)state;
    assert_null(SEND(new_buffer, device, 0, METAL_SHARED));
    complains("0 bytes");
}

/* Command buffers retain what they use: this takes one release too many. */
static void a_buffer_that_goes_too_early(void **state)
{
    (void)state;
    run r = begin("endless");
    SEND(set_buffer, r.encoder, r.buffer, 0, 0);
    dispatch(&r, 1, 1);
    ((unsigned *)SEND0(contents, r.buffer))[0] = 12345;
    SEND(set_buffer, r.encoder, NULL, 0, 0);
    SEND0(release, r.buffer);
    SEND0(release, r.buffer);
    complains("was released while 1 command buffers");
    SEND0(end_encoding, r.encoder);
    r.buffer = SEND(new_buffer, device, 16, METAL_SHARED);
    assert_int_equal(end(&r), 0);
}

static void selectors_that_nobody_answers(void **state)
{
    (void)state;
    assert_null(SEND0(compute_encoder, device));
    complains("EASDevice does not respond to computeCommandEncoder");
    assert_false(SEND(responds, device, metal_sel[MSG_compute_encoder]));
    assert_true(SEND(responds, device, metal_sel[MSG_name]));
}

static void objects_are_counted(void **state)
{
    (void)state;
    long before = live("buffer");
    mtl_id b = SEND(new_buffer, device, 64, METAL_SHARED);
    assert_int_equal(live("buffer"), before + 1);
    SEND0(retain, b);
    SEND0(release, b);
    assert_int_equal(live("buffer"), before + 1);
    SEND0(release, b);
    assert_int_equal(live("buffer"), before);
    SEND0(release, b);
    complains("release sent to a released object");
}

/* ---- indirect commands ---- */

typedef struct plan {
    mtl_id commands, pipeline, scalar;
} plan;

static mtl_id new_commands(unsigned long n, unsigned long most)
{
    mtl_id o = SEND0(alloc, metal_class("MTLIndirectCommandBufferDescriptor"));
    o = SEND0(init, o);
    SEND(set_types, o, 1 << 6);
    SEND(set_inherit_pipeline, o, 0);
    SEND(set_inherit_buffers, o, 0);
    SEND(set_most_buffers, o, most);
    mtl_id commands = SEND(new_indirect, device, o, n, METAL_SHARED);
    SEND0(release, o);
    return commands;
}

/* n commands, none of which is encoded. */
static plan begin_plan(unsigned long n)
{
    plan p = {.commands = new_commands(n, 2),
              .pipeline = make_pipeline("twice", true),
              .scalar = SEND(new_buffer, device, 256, METAL_SHARED)};
    assert_non_null(p.commands);
    *(unsigned *)SEND0(contents, p.scalar) = 100;
    return p;
}

static mtl_id encode(const plan *p, unsigned long i, mtl_id buffer, bool barrier)
{
    mtl_id c = SEND(command_at, p->commands, i);
    SEND0(reset, c);
    SEND(set_its_pipeline, c, p->pipeline);
    SEND(set_its_buffer, c, buffer, 0, 0);
    SEND(set_its_buffer, c, p->scalar, 0, 1);
    if (barrier)
        SEND0(set_barrier, c);
    SEND(its_threads, c, ((mtl_size){100, 1, 1}), ((mtl_size){32, 1, 1}));
    return c;
}

static void use_all(const plan *p, const run *r)
{
    SEND(use, r->encoder, ((mtl_id[]){p->scalar, r->buffer}), 2, 3);
}

static void end_plan(plan *p)
{
    SEND0(release, p->commands);
    SEND0(release, p->pipeline);
    SEND0(release, p->scalar);
}

static void indirect_commands_run(void **state)
{
    (void)state;
    plan p = begin_plan(3);
    run r = begin(NULL);
    float *x = SEND0(contents, r.buffer);
    x[7] = 1;
    for (unsigned long i = 0; i < 3; i++)
        encode(&p, i, r.buffer, true);
    for (int i = 0; i < 2; i++) {
        use_all(&p, &r);
        SEND(execute, r.encoder, p.commands, ((mtl_range){(unsigned long)i, 2}));
    }
    SEND0(end_encoding, r.encoder);
    SEND0(retain, r.buffer);
    assert_int_equal(end(&r), 0);
    assert_true(x[7] == 16);
    SEND0(release, r.buffer);
    long before = live("indirect");
    end_plan(&p);
    assert_int_equal(live("indirect"), before - 1);
    quiet();
}

/* The first command doubles n elements of x; the second doubles n, which is 1 and, read as a float, so small
 * that twice as much has the bits of
 * 2. Without a barrier the second runs first, and the first then doubles two. */
static void indirect_commands_have_no_order(void **state)
{
    (void)state;
    for (int barrier = 0; barrier < 2; barrier++) {
        plan p = begin_plan(2);
        run r = begin(NULL);
        float *x = SEND0(contents, r.buffer);
        mtl_id one = SEND(new_buffer, device, 256, METAL_SHARED);
        *(unsigned *)SEND0(contents, one) = 1;
        *(unsigned *)SEND0(contents, p.scalar) = 1;
        x[1] = 3;
        encode(&p, 0, r.buffer, false);
        mtl_id c = SEND(command_at, p.commands, 1);
        SEND(set_its_pipeline, c, p.pipeline);
        SEND(set_its_buffer, c, p.scalar, 0, 0);
        SEND(set_its_buffer, c, one, 0, 1);
        if (barrier)
            SEND0(set_barrier, c);
        SEND(its_threads, c, ((mtl_size){1, 1, 1}), ((mtl_size){1, 1, 1}));
        SEND(use, r.encoder, ((mtl_id[]){p.scalar, r.buffer, one}), 3, 3);
        SEND(execute, r.encoder, p.commands, ((mtl_range){0, 2}));
        SEND0(end_encoding, r.encoder);
        SEND0(retain, r.buffer);
        assert_int_equal(end(&r), 0);
        assert_true(x[1] == (barrier ? 3 : 6));
        SEND0(release, r.buffer);
        SEND0(release, one);
        end_plan(&p);
    }
    quiet();
}

static long ends_badly(run *r, const char *says)
{
    SEND0(end_encoding, r->encoder);
    long code = end(r);
    assert_int_not_equal(code, 0);
    complains(says);
    return code;
}

static void indirect_commands_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *says;
    } cases[] = {{"supportIndirectCommandBuffers"},
                 {"buffer index 2; its commands have 2"},
                 {"nothing is bound to buffer(1)"},
                 {"no pipeline"},
                 {"is past its length"},
                 {"a group has 1 to 1024"},
                 {"without reset"},
                 {"not among those"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plan p = begin_plan(1);
        run r = begin(NULL);
        mtl_id c = SEND(command_at, p.commands, 0), plain = new_pipeline("twice");
        if (i != 3)
            SEND(set_its_pipeline, c, i == 0 ? plain : p.pipeline);
        SEND(set_its_buffer, c, r.buffer, i == 4 ? 1024 : 0, i == 1 ? 2 : 0);
        if (i != 2)
            SEND(set_its_buffer, c, p.scalar, 0, 1);
        if (i == 7)
            SEND(its_groups, c, ((mtl_size){1, 1, 1}), ((mtl_size){1, 1, 1}));
        else
            SEND(its_threads, c, ((mtl_size){1, 1, 1}), ((mtl_size){i == 5 ? 2000 : 1, 1, 1}));
        if (i == 6)
            SEND(set_its_buffer, c, r.buffer, 0, 0);
        use_all(&p, &r);
        SEND(execute, r.encoder, p.commands, ((mtl_range){0, 1}));
        ends_badly(&r, cases[i].says);
        SEND0(release, plain);
        end_plan(&p);
    }
}

static void executions_that_are_wrong(void **state)
{
    static const char *const says[] = {"useResource: was not told of buffer(0)", "1 from 2 of 2",
                                       "command 1 was not encoded", "indirect command 5; there are 2"};
    (void)state;
    for (unsigned long i = 0; i < sizeof says / sizeof *says; i++) {
        plan p = begin_plan(2);
        run r = begin(NULL);
        encode(&p, 0, r.buffer, true);
        if (i == 0)
            SEND(use, r.encoder, &p.scalar, 1, 3);
        else
            use_all(&p, &r);
        if (i == 3)
            assert_null(SEND(command_at, p.commands, 5));
        SEND(execute, r.encoder, p.commands, ((mtl_range){i == 1 ? 2 : 0, i == 2 ? 2 : 1}));
        ends_badly(&r, says[i]);
        end_plan(&p);
    }
    assert_null(new_commands(4, 32));
    complains("4 commands of types 64 with 32 buffers");
}

/* What a command buffer that is not over reads must not change. */
static void commands_that_change_too_early(void **state)
{
    (void)state;
    plan p = begin_plan(1);
    run r = begin(NULL);
    mtl_id c = encode(&p, 0, r.buffer, true);
    use_all(&p, &r);
    SEND(execute, r.encoder, p.commands, ((mtl_range){0, 1}));
    SEND0(reset, c);
    complains("changed while a command buffer");
    SEND0(end_encoding, r.encoder);
    end(&r);
    end_plan(&p);
    clear();
}

/* An M1 does not find a pipeline that only indirect commands name. */
static void older_families(void **state)
{
    (void)state;
    setenv("EAS_METAL_FAMILY", "1007", 1);
    assert_true(SEND(supports, device, 1007));
    assert_false(SEND(supports, device, 1009));
    for (int good = 0; good < 2; good++) {
        plan p = begin_plan(1);
        run r = begin(NULL);
        encode(&p, 0, r.buffer, true);
        if (good) {
            SEND(set_pipeline, r.encoder, p.pipeline);
            SEND(set_buffer, r.encoder, r.buffer, 0, 0);
            SEND(set_buffer, r.encoder, p.scalar, 0, 1);
            dispatch(&r, 1, 1);
        }
        use_all(&p, &r);
        SEND(execute, r.encoder, p.commands, ((mtl_range){0, 1}));
        if (good) {
            SEND0(end_encoding, r.encoder);
            assert_int_equal(end(&r), 0);
        } else {
            ends_badly(&r, "needs kernel twice run by the encoder before");
        }
        end_plan(&p);
    }
    setenv("EAS_METAL_FAMILY", "0", 1);
    assert_false(SEND(supports, device, 1003) || SEND(supports, device, 2002));
    assert_null(new_commands(1, 1));
    complains("no indirect commands");
    unsetenv("EAS_METAL_FAMILY");
}

/* ---- what is wrong with kernels ---- */

static void kernels_that_misbehave(void **state)
{
    static const struct {
        const char *kernel;
        unsigned long threads;
        long code;
        const char *says;
    } cases[] = {{"endless", 1, 2, "time limit"},
                 {"wild", 1, 3, "page fault"},
                 {"overflows", 1, 3, "undefined behaviour"},
                 {"parts", 64, 1, "3 of 64 threads ended"}};
    (void)state;
    setenv("EAS_METAL_TIMEOUT", "0.2", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run r = begin(cases[i].kernel);
        unsigned long far = 1ul << 44;
        ((int *)SEND0(contents, r.buffer))[1] = 1;
        SEND(set_buffer, r.encoder, r.buffer, 0, 0);
        SEND(set_bytes, r.encoder, &far, sizeof far, 1);
        dispatch(&r, cases[i].threads, cases[i].threads);
        SEND0(end_encoding, r.encoder);
        assert_int_equal(end(&r), cases[i].code);
        assert_non_null(strstr(metal_text(SEND0(error, r.commands)), cases[i].says));
        clear();
    }
    unsetenv("EAS_METAL_TIMEOUT");
    kernels_run(state); /* and the next one works */
}

static void complaints_of_the_compiler(void **state)
{
    (void)state;
    mtl_id error = NULL;
    assert_null(SEND(new_library, device,
                     metal_string("#include <metal_stdlib>\nkernel void f(\n)\n{\n    nonsense;\n}\n"), NULL,
                     &error));
    assert_non_null(strstr(metal_text(error), "program_source:5:5: error:"));
}

static int set_up(void **state)
{
    (void)state;
    pool = metal_pool_push();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    metal_pool_pop(pool);
    clear();
    return 0;
}

static void find(void *lib, const char *name, void *out)
{
    void *p = dlsym(lib, name);
    memcpy(out, &p, sizeof p);
}

static int open_standin(void **state)
{
    (void)state;
    void *lib = dlopen(getenv("EAS_METAL_LIBRARY"), RTLD_NOW);
    if (!lib || metal_open(&device))
        return -1;
    find(lib, "eas_standin_reports", &reports);
    find(lib, "eas_standin_clear", &clear);
    find(lib, "eas_standin_live", &live);
    queue = SEND0(new_queue, device);
    return queue ? 0 : -1;
}

/* GNU's runtime keeps tables of its own to the end; objects are counted by the stand-in. */
const char *__lsan_default_suppressions(void);
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void)
{
    return "leak:objc_malloc\n";
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(kernels_run),
        TEST(lanes_talk),
        TEST(lent_memory),
        TEST(a_buffer_index_that_is_not_there),
        TEST(an_argument_that_is_not_bound),
        TEST(a_scalar_that_is_too_short),
        TEST(offsets_that_do_not_fit),
        TEST(a_dispatch_without_a_pipeline),
        TEST(groups_that_are_too_large),
        TEST(an_encoder_that_is_not_ended),
        TEST(an_encoder_that_was_ended),
        TEST(a_command_buffer_that_is_never_committed),
        TEST(copies_that_do_not_fit),
        TEST(no_buffers_of_no_bytes),
        TEST(a_buffer_that_goes_too_early),
        TEST(selectors_that_nobody_answers),
        TEST(objects_are_counted),
        TEST(indirect_commands_run),
        TEST(indirect_commands_have_no_order),
        TEST(indirect_commands_that_are_wrong),
        TEST(executions_that_are_wrong),
        TEST(commands_that_change_too_early),
        TEST(older_families),
        TEST(kernels_that_misbehave),
        TEST(complaints_of_the_compiler),
    };
    if (!getenv("EAS_METAL_LIBRARY")) {
        fprintf(stderr, "EAS_METAL_LIBRARY must name the stand-in\n");
        return 1;
    }
    return cmocka_run_group_tests_name("standin", tests, open_standin, NULL);
}
