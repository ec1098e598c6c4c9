/* standin_indirect.m: command buffers that are filled once and executed many times, and what their
 * commands must not be told. */
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

long standin_executed;
static long encoded_so_far;

void eas_standin_indirect(long *encoded, long *executed)
{
    *encoded = COUNT(encoded_so_far, 0);
    *executed = COUNT(standin_executed, 0);
}

@implementation MTLIndirectCommandBufferDescriptor
- (id)init
{
    inherit_pipeline = inherit_buffers = YES; /* who wants otherwise says so */
    return self;
}
- (void)setCommandTypes:(NSUInteger)t
{
    types = t;
}
- (void)setInheritPipelineState:(BOOL)on
{
    inherit_pipeline = on;
}
- (void)setInheritBuffers:(BOOL)on
{
    inherit_buffers = on;
}
- (void)setMaxKernelBufferBindCount:(NSUInteger)n
{
    most = n;
}
@end

@implementation EASIndirectCommand
- (void)wrong:(const char *)what
{
    standin_report("an indirect command: %s", what);
    owner->wrong = YES;
}

/* What a device is about to read stays as it is; and what is encoded is reset before it is encoded again. */
- (BOOL)mayChange:(BOOL)resets
{
    if (owner->users)
        [self wrong:"changed while a command buffer that executes it is not over"];
    else if (encoded && !resets)
        [self wrong:"encoded again without reset"];
    else
        return YES;
    return NO;
}

- (void)reset
{
    if (![self mayChange:YES])
        return;
    [pipeline release];
    pipeline = nil;
    memset(bound, 0, sizeof bound);
    barrier = encoded = NO;
}

- (void)setComputePipelineState:(EASPipeline *)p
{
    if (![self mayChange:NO])
        return;
    if (!p || !p->indirect) {
        [self wrong:"its pipeline was not made with supportIndirectCommandBuffers"];
        return;
    }
    [p retain];
    [pipeline release];
    pipeline = p;
}

- (void)setKernelBuffer:(EASBuffer *)b offset:(NSUInteger)o atIndex:(NSUInteger)i
{
    char text[128];
    if (![self mayChange:NO])
        return;
    if (i >= owner->most) {
        snprintf(text, sizeof text, "buffer index %lu; its commands have %lu", (unsigned long)i, (unsigned long)owner->most);
        [self wrong:text];
        return;
    }
    if (!b || o >= b->size) {
        snprintf(text, sizeof text, "offset %lu of buffer %lu is past its length", (unsigned long)o, (unsigned long)i);
        [self wrong:text];
        return;
    }
    bound[i] = (standin_binding){.buffer = b, .offset = o, .length = b->size - o};
}

- (void)setBarrier
{
    if ([self mayChange:NO])
        barrier = YES;
}
- (void)clearBarrier
{
    if ([self mayChange:NO])
        barrier = NO;
}

- (void)dispatch:(MTLSize)n threads:(MTLSize)threads group:(MTLSize)g type:(NSUInteger)type
{
    char why[256] = "its type is not among those of its buffer";
    if (![self mayChange:NO])
        return;
    if (!pipeline)
        [self wrong:"a dispatch with no pipeline set"];
    else if (!(owner->types & type) || !standin_fits(pipeline->function->kernel, bound, n, g, why))
        [self wrong:why];
    else {
        grid = standin_grid(threads, g);
        encoded = YES;
        COUNT(encoded_so_far, 1);
    }
}
- (void)concurrentDispatchThreadgroups:(MTLSize)n threadsPerThreadgroup:(MTLSize)g
{
    [self dispatch:n threads:(MTLSize){n.width * g.width, n.height * g.height, n.depth * g.depth} group:g type:MTLIndirectDispatch];
}
- (void)concurrentDispatchThreads:(MTLSize)n threadsPerThreadgroup:(MTLSize)g
{
    [self dispatch:n threads:n group:g type:MTLIndirectDispatchThreads];
}

- (void)dealloc
{
    [pipeline release];
    [super dealloc];
}
@end

@implementation EASIndirectBuffer
- (id)initWith:(MTLIndirectCommandBufferDescriptor *)d count:(NSUInteger)n
{
    size = n;
    types = d->types;
    most = d->most;
    commands = calloc(n, sizeof *commands);
    for (NSUInteger i = 0; i < n; i++) {
        commands[i] = [EASIndirectCommand alloc];
        commands[i]->owner = self;
    }
    return self;
}
- (NSUInteger)size
{
    return size;
}
- (id)indirectComputeCommandAtIndex:(NSUInteger)i
{
    if (i < size)
        return commands[i];
    standin_report("indirect command %lu; there are %lu", (unsigned long)i, (unsigned long)size);
    wrong = YES;
    return nil;
}
- (void)dealloc
{
    if (users)
        standin_report("an indirect command buffer was released while %d command buffers execute it", users);
    for (NSUInteger i = 0; i < size; i++)
        [commands[i] release];
    free(commands);
    [super dealloc];
}
@end
