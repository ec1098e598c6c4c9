/* standin_queue.m: command queues, each with a thread that runs its command buffers in order; encoders,
 * and what they must not be told. */
#include "standin.h"

#include <errno.h>
#include <objc/thr.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EXPORT void *_NSConcreteStackBlock[32], *_NSConcreteGlobalBlock[32];
void *objc_autoreleasePoolPush(void);
void objc_autoreleasePoolPop(void *p);

enum { BLOCK_IS_GLOBAL = 1 << 28, BLOCK_HAS_COPY_DISPOSE = 1 << 25 };

struct command {
    command *next;
    enum { DISPATCH, COPY, SIGNAL, WAIT, EXECUTE } kind;
    EASPipeline *pipeline;
    msl_grid grid;
    standin_binding arg[MSL_MAX_BUFFERS];
    EASIndirectBuffer *indirect;
    NSRange range; /* of indirect */
    NSUInteger size; /* of a copy: arg[0] to arg[1] */
    EASEvent *event;
    uint64_t value;
};

static command *add_command(EASCommandBuffer *b, int kind)
{
    command *c = calloc(1, sizeof *c);
    c->kind = kind;
    if (b->last)
        b->last->next = c;
    else
        b->first = c;
    return b->last = c;
}

static void use_buffer(EASCommandBuffer *b, command *c, int i, EASBuffer *buf, NSUInteger offset)
{
    COUNT(buf->users, 1);
    c->arg[i].buffer = b->unretained ? buf : [buf retain];
    c->arg[i].offset = offset;
}

static void free_commands(EASCommandBuffer *b)
{
    for (command *c = b->first, *next; c; c = next) {
        next = c->next;
        for (int i = 0; i < MSL_MAX_BUFFERS; i++) {
            if (c->arg[i].buffer) {
                COUNT(c->arg[i].buffer->users, -1);
                if (!b->unretained)
                    [c->arg[i].buffer release];
            }
            free(c->arg[i].bytes);
        }
        if (c->indirect)
            COUNT(c->indirect->users, -1);
        [c->indirect release];
        [c->pipeline release];
        [c->event release];
        free(c);
    }
    b->first = b->last = NULL;
    for (NSUInteger i = 0; i < b->nused; i++) {
        COUNT(b->used[i]->users, -1);
        if (!b->unretained)
            [b->used[i] release];
    }
    free(b->used);
    b->used = NULL;
    b->nused = 0;
}

/* ---- running ---- */

static void set_error(EASCommandBuffer *b, NSInteger code, const char *text)
{
    if (!b->error)
        b->error = [[NSError errorWithDomain:"MTLCommandBufferErrorDomain" code:code text:text] retain];
}

static void run_kernel(EASCommandBuffer *b, const msl_kernel *k, const standin_binding *arg, const msl_grid *grid)
{
    static const NSInteger codes[] = {[MSL_FAULT] = MTLCommandBufferErrorPageFault, [MSL_TIMEOUT] = MTLCommandBufferErrorTimeout,
                                      [MSL_DIVERGED] = MTLCommandBufferErrorInternal, [MSL_NO_MEMORY] = MTLCommandBufferErrorOutOfMemory};
    void *args[MSL_MAX_BUFFERS];
    char why[256];
    for (int i = 0; i < MSL_MAX_BUFFERS; i++)
        args[i] = arg[i].buffer ? arg[i].buffer->memory + arg[i].offset : arg[i].bytes;
    msl_result r = msl_run(k, args, grid, standin_limit(), why);
    if (r)
        set_error(b, codes[r], why);
    if (r == MSL_DIVERGED)
        standin_report("%s", why);
}

/* Commands between two barriers have no order: the last one runs first, so that whoever relies on one
 * finds out. */
static void run_indirect(EASCommandBuffer *b, const command *c)
{
    EASIndirectCommand **all = c->indirect->commands + c->range.location;
    for (NSUInteger first = 0, end; first < c->range.length && !b->error; first = end) {
        for (end = first + 1; end < c->range.length && !all[end]->barrier;)
            end++;
        for (NSUInteger i = end; i-- > first && !b->error; COUNT(standin_executed, 1))
            run_kernel(b, all[i]->pipeline->function->kernel, all[i]->bound, &all[i]->grid);
    }
}

/* What has run is not read again, and whoever waits for a signal behind it may change it. */
static void let_go_of(command *c)
{
    COUNT(c->indirect->users, -1);
    [c->indirect release];
    c->indirect = nil;
}

static void run_command(EASCommandBuffer *b, command *c)
{
    switch (c->kind) {
    case DISPATCH: run_kernel(b, c->pipeline->function->kernel, c->arg, &c->grid); break;
    case EXECUTE: run_indirect(b, c), let_go_of(c); break;
    case COPY: memmove(c->arg[1].buffer->memory + c->arg[1].offset, c->arg[0].buffer->memory + c->arg[0].offset, c->size); break;
    case SIGNAL: [c->event setSignaledValue:c->value]; break;
    case WAIT:
        if (![c->event waitFor:c->value seconds:standin_limit()])
            set_error(b, MTLCommandBufferErrorTimeout, "an event was not signalled in time");
    }
}

static const struct {
    const char *kind, *text;
    NSInteger code;
} injectable[] = {
    {"command", "injected command buffer error", MTLCommandBufferErrorInternal},
    {"timeout", "Caused GPU Timeout Error (00000002:kIOAccelCommandBufferCallbackErrorTimeout)", MTLCommandBufferErrorTimeout},
    {"pagefault", "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)", MTLCommandBufferErrorPageFault},
};

/* Decided when a buffer is committed, so that the order does not depend on threads: 1 + which of the
 * above, or 0. */
static int choose_fault(void)
{
    for (int i = 0; i < (int)(sizeof injectable / sizeof *injectable); i++)
        if (standin_fault(injectable[i].kind))
            return i + 1;
    return 0;
}

static void run_buffer(EASCommandBuffer *b)
{
    void *p = objc_autoreleasePoolPush();
    b->start = standin_now();
    if (b->wrong)
        set_error(b, MTLCommandBufferErrorInvalidResource, "refused by validation");
    if (b->fault)
        set_error(b, injectable[b->fault - 1].code, injectable[b->fault - 1].text);
    for (command *c = b->first; c && !b->error; c = c->next) /* after an error nothing of the buffer runs, signals included */
        run_command(b, c);
    b->end = standin_now();
    free_commands(b);
    EASQueue *q = b->queue;
    pthread_mutex_lock(&q->lock);
    b->status = b->error ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
    pthread_mutex_unlock(&q->lock);
    for (int i = 0; i < b->nhandlers; i++)
        b->handlers[i]->invoke(b->handlers[i], b);
    pthread_mutex_lock(&q->lock);
    q->pending--;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    objc_autoreleasePoolPop(p);
}

static _Thread_local bool queue_gone; /* its last reference went on its own thread */

static void *queue_thread(void *arg)
{
    EASQueue *q = arg;
    objc_thread_add();
    while (!queue_gone) {
        pthread_mutex_lock(&q->lock);
        while (!q->first && !q->stop)
            pthread_cond_wait(&q->changed, &q->lock);
        EASCommandBuffer *b = q->first;
        if (b) {
            q->first = b->next;
            if (!q->first)
                q->last = nil;
        }
        pthread_mutex_unlock(&q->lock);
        if (!b)
            break;
        run_buffer(b);
        [b release];
    }
    objc_thread_remove();
    return NULL;
}

@implementation EASQueue
- (id)initWithDevice:(EASDevice *)d limit:(NSUInteger)n
{
    device = [d retain];
    limit = n;
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
    started = !pthread_create(&thread, NULL, queue_thread, self);
    if (!started) {
        [self release];
        return nil;
    }
    return self;
}

/* As Metal does, waits when too many command buffers are under way; but if nothing that runs could end the
 * wait, says so. */
- (id)newBuffer:(BOOL)unretained
{
    pthread_mutex_lock(&lock);
    while (open + pending >= limit && pending)
        pthread_cond_wait(&changed, &lock);
    BOOL stuck = open >= limit;
    if (!stuck)
        open++;
    pthread_mutex_unlock(&lock);
    if (stuck) {
        standin_report("%lu command buffers of one queue were never committed", (unsigned long)limit);
        return nil;
    }
    EASCommandBuffer *b = [EASCommandBuffer alloc];
    b->queue = [self retain];
    b->unretained = unretained;
    return [b autorelease];
}
- (id)commandBuffer
{
    return [self newBuffer:NO];
}
- (id)commandBufferWithUnretainedReferences
{
    return [self newBuffer:YES];
}

/* The last reference may go on the queue's own thread, at the end of its last command buffer. */
- (void)dealloc
{
    if (started) {
        pthread_mutex_lock(&lock);
        stop = YES;
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        queue_gone = pthread_equal(pthread_self(), thread);
        if (queue_gone)
            pthread_detach(thread);
        else
            pthread_join(thread, NULL);
    }
    [device release];
    [super dealloc];
}
@end

@implementation EASCommandBuffer
- (BOOL)mayEncode:(const char *)what
{
    if (status != MTLCommandBufferStatusNotEnqueued)
        standin_report("%s on a command buffer that was committed", what);
    else if (encoder)
        standin_report("%s while another encoder of the command buffer is not ended", what);
    else
        return YES;
    wrong = YES;
    return NO;
}
- (id)newEncoder:(Class)c
{
    if (![self mayEncode:class_getName(c)])
        return nil;
    EASEncoder *e = [c alloc];
    e->buffer = [self retain];
    if (c == objc_getClass("EASComputeEncoder"))
        ((EASComputeEncoder *)e)->first_used = nused;
    encoder = e;
    return [e autorelease];
}
- (id)computeCommandEncoder
{
    return [self newEncoder:objc_getClass("EASComputeEncoder")];
}
- (id)blitCommandEncoder
{
    return [self newEncoder:objc_getClass("EASBlitEncoder")];
}
- (void)event:(EASEvent *)e value:(uint64_t)v kind:(int)kind
{
    if (![self mayEncode:"an event"])
        return;
    command *c = add_command(self, kind);
    c->event = [e retain];
    c->value = v;
}
- (void)encodeSignalEvent:(EASEvent *)e value:(uint64_t)v
{
    [self event:e value:v kind:SIGNAL];
}
- (void)encodeWaitForEvent:(EASEvent *)e value:(uint64_t)v
{
    [self event:e value:v kind:WAIT];
}

- (void)addCompletedHandler:(standin_block *)b
{
    if (status >= MTLCommandBufferStatusCommitted) {
        standin_report("addCompletedHandler: after commit");
        return;
    }
    if (b->flags & BLOCK_HAS_COPY_DISPOSE || (b->isa != (void *)_NSConcreteStackBlock && b->isa != (void *)_NSConcreteGlobalBlock)) {
        standin_report("addCompletedHandler: got something that is no block");
        return;
    }
    standin_block *copy = malloc(b->info->size);
    memcpy(copy, b, b->info->size);
    handlers = realloc(handlers, (size_t)(nhandlers + 1) * sizeof *handlers);
    handlers[nhandlers++] = copy;
}

- (void)commit
{
    if (status >= MTLCommandBufferStatusCommitted) {
        standin_report("commit of a command buffer that was committed");
        return;
    }
    if (encoder) {
        standin_report("commit of a command buffer with an encoder that is not ended");
        wrong = YES;
        ((EASEncoder *)encoder)->ended = YES;
        encoder = nil;
    }
    [self retain];
    fault = choose_fault();
    pthread_mutex_lock(&queue->lock);
    status = MTLCommandBufferStatusCommitted;
    queue->open--;
    queue->pending++;
    if (queue->last)
        ((EASCommandBuffer *)queue->last)->next = self;
    else
        queue->first = self;
    queue->last = self;
    pthread_cond_broadcast(&queue->changed);
    pthread_mutex_unlock(&queue->lock);
}

- (void)waitUntilCompleted
{
    if (status < MTLCommandBufferStatusCommitted) {
        standin_report("waitUntilCompleted on a command buffer that was not committed");
        return;
    }
    pthread_mutex_lock(&queue->lock);
    while (status < MTLCommandBufferStatusCompleted)
        pthread_cond_wait(&queue->changed, &queue->lock);
    pthread_mutex_unlock(&queue->lock);
}

- (NSUInteger)status
{
    pthread_mutex_lock(&queue->lock);
    NSUInteger s = status;
    pthread_mutex_unlock(&queue->lock);
    return s;
}
- (NSError *)error
{
    return error;
}
- (double)GPUStartTime
{
    return start;
}
- (double)GPUEndTime
{
    return end;
}
- (void)dealloc
{
    if (status < MTLCommandBufferStatusCommitted) {
        if (first)
            standin_report("a command buffer with commands was released without commit");
        pthread_mutex_lock(&queue->lock);
        queue->open--;
        pthread_cond_broadcast(&queue->changed);
        pthread_mutex_unlock(&queue->lock);
    }
    free_commands(self);
    for (int i = 0; i < nhandlers; i++)
        free(handlers[i]);
    free(handlers);
    [error release];
    [queue release];
    [super dealloc];
}
@end

/* ---- encoders ---- */

@implementation EASEncoder
- (void)wrong:(const char *)what
{
    standin_report("%s", what);
    buffer->wrong = YES;
}
- (BOOL)isOpen:(const char *)what
{
    char text[128];
    if (!ended)
        return YES;
    snprintf(text, sizeof text, "%s on an encoder that was ended", what);
    [self wrong:text];
    return NO;
}
- (void)endEncoding
{
    if (![self isOpen:"endEncoding"])
        return;
    ended = YES;
    if (buffer->encoder == self)
        buffer->encoder = nil;
}
- (void)dealloc
{
    if (!ended) {
        [self wrong:"an encoder was released without endEncoding"];
        if (buffer->encoder == self)
            buffer->encoder = nil;
    }
    [buffer release];
    [super dealloc];
}
@end

static bool argument_fits(const msl_arg *a, const char *kernel, const standin_binding *bound, char why[256])
{
    int i = a->index;
    if (i < 0 || i >= MSL_MAX_BUFFERS || (!bound[i].buffer && !bound[i].bytes))
        snprintf(why, 256, "kernel %s: nothing is bound to buffer(%d), argument %s", kernel, i, a->name);
    else if (a->reference && bound[i].length < a->size)
        snprintf(why, 256, "kernel %s: buffer(%d) holds %lu bytes, argument %s has %lu", kernel, i, (unsigned long)bound[i].length, a->name,
                 (unsigned long)a->size);
    else if (bound[i].buffer && bound[i].offset % (a->size > 16 ? 16 : a->size))
        snprintf(why, 256, "kernel %s: offset %lu of buffer(%d) is not aligned to the %lu bytes of an element", kernel,
                 (unsigned long)bound[i].offset, i, (unsigned long)a->size);
    else
        return true;
    return false;
}

bool standin_fits(const msl_kernel *k, const standin_binding *bound, MTLSize n, MTLSize g, char why[256])
{
    NSUInteger volume = g.width * g.height * g.depth;
    bool good = n.width && n.height && n.depth && volume && volume <= MSL_MAX_THREADS;
    if (!good)
        snprintf(why, 256, "kernel %s: %lu x %lu x %lu of groups of %lu x %lu x %lu threads; a group has 1 to %d", k->name, n.width, n.height, n.depth,
                 g.width, g.height, g.depth, (int)MSL_MAX_THREADS);
    for (int i = 0; i < k->nargs && good; i++)
        good = argument_fits(&k->args[i], k->name, bound, why);
    return good;
}

msl_grid standin_grid(MTLSize threads, MTLSize g)
{
    return (msl_grid){.threads = {threads.width, threads.height, threads.depth},
                      .group = {(uint32_t)g.width, (uint32_t)g.height, (uint32_t)g.depth}};
}

@implementation EASComputeEncoder
- (void)setComputePipelineState:(EASPipeline *)p
{
    if (![self isOpen:"setComputePipelineState:"])
        return;
    if (!p)
        [self wrong:"setComputePipelineState: nil"];
    [p retain];
    [pipeline release];
    pipeline = p;
}

- (BOOL)mayBind:(NSUInteger)i
{
    char text[96];
    if (![self isOpen:"binding"])
        return NO;
    if (i < MSL_MAX_BUFFERS)
        return YES;
    snprintf(text, sizeof text, "buffer index %lu; there are %d", (unsigned long)i, (int)MSL_MAX_BUFFERS);
    [self wrong:text];
    return NO;
}

- (void)unbind:(NSUInteger)i
{
    [bound[i].buffer release];
    free(bound[i].bytes);
    bound[i].buffer = nil;
    bound[i].bytes = NULL;
}

- (void)setBuffer:(EASBuffer *)b offset:(NSUInteger)o atIndex:(NSUInteger)i
{
    char text[128];
    if (![self mayBind:i])
        return;
    if (b && o >= b->size) {
        snprintf(text, sizeof text, "offset %lu of buffer %lu is past its length of %lu", (unsigned long)o, (unsigned long)i, (unsigned long)b->size);
        [self wrong:text];
        return;
    }
    [b retain];
    [self unbind:i];
    bound[i].buffer = b;
    bound[i].offset = o;
    bound[i].length = b ? b->size - o : 0;
}

- (void)setBytes:(const void *)p length:(NSUInteger)n atIndex:(NSUInteger)i
{
    if (![self mayBind:i])
        return;
    if (!n || n > 4096) {
        [self wrong:"setBytes: takes 1 to 4096 bytes"];
        return;
    }
    [self unbind:i];
    bound[i].bytes = malloc(n);
    memcpy(bound[i].bytes, p, n);
    bound[i].length = n;
}

- (BOOL)checkDispatch:(MTLSize)n group:(MTLSize)g
{
    char why[256];
    if (![self isOpen:"a dispatch"])
        return NO;
    if (!pipeline)
        [self wrong:"a dispatch with no pipeline set"];
    else if (!standin_fits(pipeline->function->kernel, bound, n, g, why))
        [self wrong:why];
    else
        return YES;
    return NO;
}

- (void)encode:(MTLSize)threads group:(MTLSize)g
{
    command *c = add_command(buffer, DISPATCH);
    c->pipeline = [pipeline retain];
    c->grid = standin_grid(threads, g);
    for (int i = 0; i < MSL_MAX_BUFFERS; i++) {
        if (bound[i].buffer) {
            use_buffer(buffer, c, i, bound[i].buffer, bound[i].offset);
        } else if (bound[i].bytes) {
            c->arg[i].bytes = malloc(bound[i].length);
            memcpy(c->arg[i].bytes, bound[i].bytes, bound[i].length);
        }
    }
    ran = realloc(ran, (nran + 1) * sizeof *ran);
    ran[nran++] = pipeline; /* the command counts it */
}

- (void)dispatchThreadgroups:(MTLSize)n threadsPerThreadgroup:(MTLSize)g
{
    if ([self checkDispatch:n group:g])
        [self encode:(MTLSize){n.width * g.width, n.height * g.height, n.depth * g.depth} group:g];
}
- (void)dispatchThreads:(MTLSize)n threadsPerThreadgroup:(MTLSize)g
{
    if ([self checkDispatch:n group:g])
        [self encode:n group:g];
}

- (void)useResources:(EASBuffer *const *)all count:(NSUInteger)n usage:(NSUInteger)u
{
    if (![self isOpen:"useResources:"])
        return;
    if (!n || !u || u & ~(NSUInteger)3) {
        [self wrong:"useResources: of nothing, or for no use that there is"];
        return;
    }
    buffer->used = realloc(buffer->used, (buffer->nused + n) * sizeof *buffer->used);
    for (NSUInteger i = 0; i < n; i++) {
        COUNT(all[i]->users, 1);
        buffer->used[buffer->nused++] = buffer->unretained ? all[i] : [all[i] retain];
    }
}

- (void)memoryBarrierWithScope:(NSUInteger)scope
{
    if ([self isOpen:"memoryBarrierWithScope:"] && scope != 1)
        [self wrong:"a barrier of a scope other than buffers"];
}

- (BOOL)uses:(const EASBuffer *)b
{
    for (NSUInteger i = first_used; i < buffer->nused; i++)
        if (buffer->used[i] == b)
            return YES;
    return NO;
}
- (BOOL)hasRun:(const EASPipeline *)p
{
    for (NSUInteger i = 0; i < nran; i++)
        if (ran[i] == p)
            return YES;
    return NO;
}

/* Before Apple 9 the GPU does not find a pipeline that only indirect commands name. */
- (BOOL)checkIndirect:(const EASIndirectCommand *)c number:(NSUInteger)number
{
    char text[256] = "";
    const msl_kernel *k = c->encoded ? c->pipeline->function->kernel : NULL;
    if (!k)
        snprintf(text, sizeof text, "indirect command %lu was not encoded", (unsigned long)number);
    else if (standin_family() < MTLFamilyApple9 && ![self hasRun:c->pipeline])
        snprintf(text, sizeof text, "indirect command %lu: this family needs kernel %s run by the encoder before", (unsigned long)number, k->name);
    for (int i = 0; k && i < k->nargs && !*text; i++)
        if (![self uses:c->bound[k->args[i].index].buffer])
            snprintf(text, sizeof text, "indirect command %lu: kernel %s: useResource: was not told of buffer(%d)", (unsigned long)number, k->name,
                     (int)k->args[i].index);
    if (*text)
        [self wrong:text];
    return !*text;
}

- (void)executeCommandsInBuffer:(EASIndirectBuffer *)b withRange:(NSRange)r
{
    char text[128];
    BOOL good = [self isOpen:"executeCommandsInBuffer:"];
    if (good && (!b || b->wrong || !r.length || r.length > 16384 || r.location + r.length > b->size)) {
        snprintf(text, sizeof text, "executeCommandsInBuffer: %lu from %lu of %lu%s", (unsigned long)r.length, (unsigned long)r.location,
                 (unsigned long)(b ? b->size : 0), b && b->wrong ? ", some of which were refused" : "");
        [self wrong:text];
        good = NO;
    }
    for (NSUInteger i = 0; good && i < r.length; i++)
        good = [self checkIndirect:b->commands[r.location + i] number:r.location + i];
    if (!good)
        return;
    command *c = add_command(buffer, EXECUTE);
    c->indirect = [b retain];
    COUNT(b->users, 1);
    c->range = r;
}

- (void)dealloc
{
    for (NSUInteger i = 0; i < MSL_MAX_BUFFERS; i++)
        [self unbind:i];
    free(ran);
    [pipeline release];
    [super dealloc];
}
@end

@implementation EASBlitEncoder
- (void)copyFromBuffer:(EASBuffer *)a
          sourceOffset:(NSUInteger)ao
              toBuffer:(EASBuffer *)b
     destinationOffset:(NSUInteger)bo
                  size:(NSUInteger)n
{
    char text[192];
    if (![self isOpen:"a copy"])
        return;
    if (!a || !b || !n || ao + n > a->size || bo + n > b->size || ao + n < n || bo + n < n) {
        snprintf(text, sizeof text, "a copy of %lu bytes from %lu of %lu to %lu of %lu", (unsigned long)n, (unsigned long)ao,
                 (unsigned long)(a ? a->size : 0), (unsigned long)bo, (unsigned long)(b ? b->size : 0));
        [self wrong:text];
        return;
    }
    if ((ao | bo | n) % 4) {
        [self wrong:"a copy whose offsets or size are no multiples of 4"];
        return;
    }
    if (a == b && ao < bo + n && bo < ao + n) {
        [self wrong:"a copy within a buffer whose source and destination overlap"];
        return;
    }
    command *c = add_command(buffer, COPY);
    use_buffer(buffer, c, 0, a, ao);
    use_buffer(buffer, c, 1, b, bo);
    c->size = n;
}
@end
