/* turns.h: threads that wait for each other and are more than CPUs (turns.c). */
#ifndef TURNS_H
#define TURNS_H

#include <stdbool.h>

int turn_count(void); /* the CPUs of this process, whatever EAS_NUM_THREADS says of kernels */
void turn_take(void); /* before such a thread computes: waits, not long, until fewer than turn_count() do */
bool turn_give(void); /* before it waits for others, or is done; false: it had none */
void turn_after_fork(void);

#endif
