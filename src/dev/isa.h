/* isa.h: what the CPU we run on can do, found without LLVM. Everything is decided once per process and never
 * changes. */
#ifndef DEV_ISA_H
#define DEV_ISA_H

#include <stdbool.h>

/* "sse2", "avx2", "avx512", "avx512bf16", "amx", "neon": for people, file names and cache keys next to
 * isa_features(). */
const char *isa_name(void);
/* LLVM's feature string, "+avx2,+fma,...", always in one order.
 * EAS_ISA=sse2|avx2|avx512|avx512bf16|amx|native lowers it, for tests. */
const char *isa_features(void);
/* Native vector width: 16, 32 or 64. */
int isa_vector_bytes(void);
/* Vector registers: 16 or 32. */
int isa_registers(void);
bool isa_bf16(void); /* products of bf16 blocks have instructions of their own */
bool isa_exchange_16(void); /* 16 bytes are compared and exchanged in one step */
bool isa_ldexp(void); /* scales floats by powers of two in one instruction */

#endif
