/*
 * The instruction set `amx`: whether this process may use the tile unit, and the kernels that do.
 *
 * A process may use it where four things hold: the CPU has AMX-TILE and AMX-BF16, the operating system saves tile
 * state (XCR0 bits 17 and 18), the CPU offers tile palette 1, and the kernel grants the process the permission for
 * tile data (arch_prctl(ARCH_REQ_XCOMP_PERM, 18)). CPUs and hypervisors exist that have some of these and not the
 * others.
 */
#ifndef FEWHEAD_KERNELS_CPU_AMX_H
#define FEWHEAD_KERNELS_CPU_AMX_H

#include "cpu/back_end.h"

/* What CPUID and XGETBV say, as read; all zero where a leaf is not there. */
typedef struct fhk_amx_readings {
  uint32_t leaf_7_edx;         /* leaf 7.0, EDX: bit 22 AMX-BF16, bit 24 AMX-TILE */
  uint32_t leaf_1d_eax;        /* leaf 0x1D.0, EAX: the highest palette */
  uint32_t leaf_1d_1_ebx;      /* leaf 0x1D.1, EBX: bytes of a tile's row, and in the upper half the number of tiles */
  uint32_t leaf_1d_1_ecx_rows; /* leaf 0x1D.1, ECX: rows of a tile */
  uint64_t xcr0;               /* XGETBV(0); 0 where the operating system does not offer the instruction */
} fhk_amx_readings;

/* What the readings lack, as the end of a sentence: "the CPU has no AMX tiles"; NULL where they lack nothing. A
 * pure function. */
const char *fhk_amx_lacks(const fhk_amx_readings *readings);

/* Why the kernel refused the permission, from the errno of arch_prctl; NULL for 0. A pure function. */
const char *fhk_amx_refused(int32_t error);

/* What this process lacks, NULL where it may use the tile unit. Asks the kernel for the permission when it is
 * called for the first time and the readings lack nothing: at most once a process. A child of fork has what its
 * parent had. */
const char *fhk_amx_missing(void);

/* The same as far as it is known without asking the kernel. */
const char *fhk_amx_known_missing(void);

/* 1 where the compiler that built this library knows AMX. */
int32_t fhk_amx_built(void);

/* 1 where this CPU's tile unit is faster than its multiply-adds, by measurement: about 100 microseconds. Only where
 * nothing is missing. */
int32_t fhk_amx_pays(void);

/* The paths padded and gather, for one query: `rows` heads are computed, of which the first h_q are real. Adds the
 * valid keys to *keys and returns the FLOPs multiplied: those of rows and keys, whatever number of halves the
 * weights are cut into. */
uint64_t fhk_amx_query_bytes(const fh_call *call, int32_t rows);
uint64_t fhk_amx_query(const fh_call *call, int32_t rows, int64_t s, void *memory, int64_t *keys);

/* The path packed, for a group of up to `group` queries over the union of their lists. Returns the FLOPs multiplied. */
uint64_t fhk_amx_group_bytes(const fh_call *call, int32_t group);
uint64_t fhk_amx_group(const fh_call *call, const fhk_group *group, void *memory);

/* The same with at most 8 rows, queries times heads. Sets *keys to the KV rows multiplied. Returns 0, and writes
 * nothing, where a KV row holds NaN or Inf: then the query or group has to be computed with many rows. */
uint64_t fhk_few_bytes(const fh_call *call);
int32_t fhk_few_query(const fh_call *call, int64_t s, void *memory, int64_t *keys);
int32_t fhk_few_group(const fh_call *call, const fhk_group *group, void *memory, int64_t *keys);

#endif
