/* turns.h: threads that wait for each other and are more than CPUs (turns.c). */
#ifndef TURNS_H
#define TURNS_H

#include <pthread.h>
#include <stdbool.h>

int turn_count(void); /* the CPUs of this process, whatever EAS_NUM_THREADS says about kernels */
/* called before such a thread computes: waits for a limited time until fewer than turn_count() threads
 * compute */
void turn_take(void);
bool turn_give(void); /* called before it waits for others, or is done; false: it had no turn */
/* pthread_create; the thread may run wherever the process may, even if its creator has a turn */
int turn_create_thread(pthread_t *t, void *(*f)(void *), void *arg);
void turn_after_fork(void);

#endif
