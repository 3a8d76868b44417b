/* Whether this process may use the tile unit. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cpu/amx.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum {
  BF16 = 1u << 22, /* of leaf 7, EDX */
  TILE = 1u << 24,
  XCR0_TILES = 3u << 17, /* the states TILECFG and TILEDATA */
  TILES = 8,             /* what the kernels use: 8 tiles of 16 rows of 64 bytes */
  TILE_ROWS_WANTED = 16,
  TILE_ROW_BYTES = 64,
  PERMISSIONS = 0x1022,        /* ARCH_GET_XCOMP_PERM */
  REQUEST_PERMISSION = 0x1023, /* ARCH_REQ_XCOMP_PERM */
  TILE_DATA = 18               /* the number of the state */
};

const char *fhk_amx_lacks(const fhk_amx_readings *r) {
  if (!(r->leaf_7_edx & TILE)) return "the CPU has no AMX tiles (AMX-TILE)";
  if (!(r->leaf_7_edx & BF16)) return "the CPU's AMX has no bf16 products (AMX-BF16)";
  if ((r->xcr0 & XCR0_TILES) != XCR0_TILES) return "the operating system does not save AMX tiles (XCR0 bits 17 and 18)";
  if (r->leaf_1d_eax < 1 || (r->leaf_1d_1_ebx & 0xffff) < TILE_ROW_BYTES || r->leaf_1d_1_ebx >> 16 < TILES ||
      (r->leaf_1d_1_ecx_rows & 0xffff) < TILE_ROWS_WANTED)
    return "the CPU offers no AMX tiles of 16 rows of 64 bytes (palette 1 of CPUID leaf 0x1D)";
  return NULL;
}

const char *fhk_amx_refused(int32_t error) {
  switch (error) {
    case 0: return NULL;
    case EINVAL: return "the kernel knows no permission for AMX tiles (arch_prctl: EINVAL)";
    case EPERM: return "this process may not ask the kernel for AMX tiles (arch_prctl: EPERM)";
    case ENOSYS: return "the kernel has no call to ask for AMX tiles (arch_prctl: ENOSYS)";
    case ENOSPC: return "a thread's alternate signal stack is too small for AMX tiles (arch_prctl: ENOSPC)";
    default: return "the kernel refuses AMX tiles (arch_prctl)";
  }
}

#if defined(__x86_64__)
static fhk_amx_readings read_cpu(void) {
  fhk_amx_readings r = {0, 0, 0, 0, 0};
  uint32_t a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) && c & bit_OSXSAVE) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    r.xcr0 = (uint64_t)high << 32 | low;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) r.leaf_7_edx = d;
  if (r.leaf_7_edx & TILE && __get_cpuid_count(0x1d, 0, &a, &b, &c, &d)) r.leaf_1d_eax = a;
  if (r.leaf_1d_eax >= 1 && __get_cpuid_count(0x1d, 1, &a, &b, &c, &d)) {
    r.leaf_1d_1_ebx = b;
    r.leaf_1d_1_ecx_rows = c;
  }
  return r;
}
#endif

/* What is missing without asking the kernel. */
static const char *cpu_missing(void) {
#if defined(__x86_64__)
  if (!fhk_amx_built()) return "this library was built by a compiler that has no AMX";
  const fhk_amx_readings r = read_cpu();
  return fhk_amx_lacks(&r);
#else
  return "the CPU is no x86-64";
#endif
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic(const char *) answer; /* of the kernel, once it was asked */

#if defined(__x86_64__)
/* The errno of the request; EPERM where it succeeds and nothing is granted, as a filter of system calls may have it. */
static int32_t request(void) {
  uint64_t granted = 0;
  errno = 0;
  if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA)) return errno ? errno : EPERM;
  return syscall(SYS_arch_prctl, PERMISSIONS, &granted) || !(granted >> TILE_DATA & 1) ? EPERM : 0;
}
#endif

static void ask(void) {
  const char *missing = cpu_missing();
#if defined(__x86_64__)
  if (!missing) missing = fhk_amx_refused(request());
#endif
  atomic_store(&answer, missing);
}

const char *fhk_amx_missing(void) {
  pthread_once(&once, ask);
  return atomic_load(&answer);
}

const char *fhk_amx_known_missing(void) {
  const char *asked = atomic_load(&answer);
  return asked ? asked : cpu_missing();
}
