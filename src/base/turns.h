/* turns.h: threads that wait for each other and are more than CPUs (turns.c). */
#ifndef TURNS_H
#define TURNS_H

#include <stdbool.h>

void turn_take(void); /* before such a thread computes: waits, not long, until fewer than pool_size() do */
bool turn_give(void); /* before it waits for others, or is done; false: it had none */
void turn_after_fork(void);

#endif
