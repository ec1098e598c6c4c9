/* Nanoseconds of an allocation and its release, of one size: bench/devices.py compiles and runs it. */
#include "eas.h"

#include <stdio.h>
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(void)
{
    enum { ROUNDS = 20, TIMES = 100000 };
    eas_device *d;
    eas_buffer *b;
    double best = 1;
    if (eas_device_get("cpu", &d))
        return 1;
    for (int r = 0; r < ROUNDS; r++) {
        double start = seconds();
        for (int i = 0; i < TIMES; i++) {
            if (eas_buffer_new(d, 1 << 20, &b))
                return 1;
            eas_buffer_release(b);
        }
        double each = (seconds() - start) / TIMES;
        best = each < best ? each : best;
    }
    printf("%.3g\n", best);
    return 0;
}
