"""What the machine can do with two threads: the triad (bandwidth.py), the sum of an array that is only read,
and multiply-adds in registers."""

import ctypes

import numpy as np

from .bandwidth import TRIAD, aligned
from .tools import c_library

N = 1 << 24
THREADS = 2
STEPS = 1 << 20

# 12 chains of multiply-adds hide the latency of one at two a cycle; 16 lanes are one register of AVX-512, two
# of AVX2, four of NEON.
MORE = r"""
#ifdef __AVX512F__
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float vec __attribute__((vector_size(LANES * 4), aligned(LANES * 4)));

static void *sum_part(void *p)
{
    struct job *j = p;
    const vec *a = (const vec *)j->a;
    vec s[8] = {{0}};
    for (size_t i = j->lo; i + 8 <= j->hi; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += a[i + k];
    for (int k = 1; k < 8; k++)
        s[0] += s[k];
    for (int k = 0; k < LANES; k++)
        j->c[k] = s[0][k];
    return NULL;
}

static void *fma_part(void *p)
{
    struct job *j = p;
    vec acc[12], x = {0}, y = {0};
    for (int k = 0; k < 12; k++)
        acc[k] = x + (float)k;
    x += j->a[0];
    y += j->a[1];
    for (size_t i = j->lo; i < j->hi; i++)
        for (int k = 0; k < 12; k++)
            acc[k] = acc[k] * x + y;
    for (int k = 1; k < 12; k++)
        acc[0] += acc[k];
    for (int k = 0; k < LANES; k++)
        j->c[k] = acc[0][k];
    return NULL;
}

static void run(void *(*f)(void *), const float *a, float *out, size_t n, int threads, int whole)
{
    pthread_t t[64];
    struct job j[64];
    for (int i = 0; i < threads; i++) {
        j[i] = (struct job){a, NULL, out + 16 * i, whole ? 0 : n * i / threads, whole ? n : n * (i + 1) / threads};
        if (i) pthread_create(&t[i], NULL, f, &j[i]);
    }
    f(&j[0]);
    for (int i = 1; i < threads; i++) pthread_join(t[i], NULL);
}
/* n is a multiple of 8 * 16 * threads */
void read_sum(const float *a, float *out, size_t n, int threads) { run(sum_part, a, out, n / LANES, threads, 0); }
/* every thread does n steps; gives the operations of one step of one thread */
int fma_steps(const float *a, float *out, size_t n, int threads) { run(fma_part, a, out, n, threads, 1); return 12 * LANES * 2; }
"""


class Limits:
    """Callables to interleave with a case, and from their seconds the least seconds that the case could take.
    """

    def __init__(self):
        self.lib = c_library(TRIAD + MORE)
        self.a, self.b, self.c = (aligned(N) for _ in range(3))
        self.a[:], self.b[:] = 1, 2
        self.out = np.zeros(16 * 64, np.float32)
        self.numbers = np.array([0.5, 0.25], np.float32)
        self.per_step = self.fma() if self.lib else 0

    def pointers(self, *arrays):
        return [ctypes.c_void_p(a.ctypes.data) for a in arrays]

    def triad(self):
        self.lib.triad(*self.pointers(self.a, self.b, self.c), ctypes.c_size_t(N), THREADS)

    def read(self):
        self.lib.read_sum(*self.pointers(self.a, self.out), ctypes.c_size_t(N), THREADS)

    def fma(self):
        return self.lib.fma_steps(*self.pointers(self.numbers, self.out), ctypes.c_size_t(STEPS), THREADS)

    def probe(self, kind):
        """To run beside a case: moves 12 N or 4 N bytes, or does multiply-adds. None without a C compiler."""
        return {"bandwidth": self.triad, "reading": self.read, "peak FMA": self.fma}[kind] if self.lib else None

    def least(self, kind, amount, seconds):
        """Seconds that `amount` bytes or operations take at the speed of a probe that took `seconds`."""
        done = {"bandwidth": 12 * N, "reading": 4 * N, "peak FMA": self.per_step * STEPS * THREADS}[kind]
        return amount / done * seconds
