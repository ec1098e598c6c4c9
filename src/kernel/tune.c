/* tune.c: choosing among configurations of a kernel: timings on disk, and the choice that follows from them.
 */
#include "kernel.h"

int eas_tune_choose(const double *seconds, int n, double band)
{
    NEED(n <= 0 || seconds, 0);
    double least = -1;
    for (int i = 0; i < n; i++)
        if (seconds[i] >= 0 && (least < 0 || seconds[i] < least))
            least = seconds[i];
    for (int i = 0; i < n && least >= 0; i++)
        if (seconds[i] >= 0 && seconds[i] <= least * (1 + band))
            return i;
    return -1;
}

int eas_tune_load(eas_kernel *k, eas_device *d, const char *key, double *seconds)
{
    NEED(k, 0);
    NEED(d, 0);
    NEED(key, 0);
    char hex[65];
    cache_timing_name(k->ir, d, key, hex);
    return cache_timing_load(hex, seconds);
}

void eas_tune_store(eas_kernel *k, eas_device *d, const char *key, double seconds)
{
    NEED_(k);
    NEED_(d);
    NEED_(key);
    char hex[65];
    cache_timing_name(k->ir, d, key, hex);
    cache_timing_store(hex, seconds);
}
