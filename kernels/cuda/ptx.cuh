/*
 * One wrapper per PTX instruction that CUDA C++ has no word for. The bracket names the section of the PTX ISA manual
 * relied on. A shared-memory address is the 32-bit number that smem_addr() gives.
 */
#ifndef FEWHEAD_KERNELS_CUDA_PTX_CUH
#define FEWHEAD_KERNELS_CUDA_PTX_CUH

#include <stdint.h>

#define FHK_DEV __device__ __forceinline__

namespace fhk {
namespace ptx {

/* ---- Addresses and arithmetic ---- */

/* Generic pointer to 32-bit shared address. [Data Movement: cvta] */
FHK_DEV uint32_t smem_addr(const void *p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/* 2^x; -inf gives 0: a masked score becomes a zero weight. [Floating Point: ex2] */
FHK_DEV float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* The same, kept in order with other volatile instructions: many in a row, so that their latencies overlap. */
FHK_DEV float exp2_here(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* The larger, NaN if one is NaN; fmaxf would give the other. [Floating Point: max] */
FHK_DEV float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/* log2(x). [Floating Point: lg2] */
FHK_DEV float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/* Two floats to a bf16 pair, `lo` in the low half, nearest even. [Data Movement: cvt] */
FHK_DEV uint32_t pack_bf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}

/* ---- mbarriers [Parallel Synchronization: mbarrier] ---- */

FHK_DEV void mbar_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}
/* Makes the inits visible to the asynchronous proxy; once, after the last init. [fence.mbarrier_init] */
FHK_DEV void fence_mbar_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
/* One arrival. It releases the accesses of the arriving thread only: a thread that speaks for its warp does
 * __syncwarp() first. */
FHK_DEV void mbar_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
/* Waits until the phase of this parity is complete. On a fresh barrier parity 1 counts as complete. Below sm_90 no
 * wait sleeps, so the thread tests again. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define FHK_MBAR_WAIT "mbarrier.test_wait.parity.shared::cta.b64"
#else
#define FHK_MBAR_WAIT "mbarrier.try_wait.parity.shared::cta.b64"
#endif
FHK_DEV void mbar_wait(uint32_t bar, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n" FHK_MBAR_WAIT " done, [%0], %1;\n"
               "@!done bra again;\n"
               "}\n" ::"r"(bar),
               "r"(parity)
               : "memory");
}

/* ---- Asynchronous copies [Data Movement: cp.async] ---- */

/* 16 bytes global to shared, past L1; bytes = 0 reads nothing and writes zeros. Both addresses are multiples of 16. */
FHK_DEV void cp_async16(uint32_t dst, const void *src, uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
/* 8 bytes, through L1; both addresses are multiples of 8. */
FHK_DEV void cp_async8(uint32_t dst, const void *src, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
/* Arrive on `bar` once every earlier cp.async of this thread has landed; the arrival is one of those counted at
 * init. */
FHK_DEV void cp_async_arrive(uint32_t bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}
/* Start a 128-byte line towards L2. [Data Movement: prefetch] */
FHK_DEV void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
FHK_DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending>
FHK_DEV void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/* A load of constant memory that starts here, in order with other volatile instructions. [Data Movement:
 * ld.global.nc] */
FHK_DEV uint32_t ld_global(const uint32_t *p) {
  uint32_t v;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

/* Registers to shared memory and back, by 32-bit address. */
FHK_DEV void st_shared4(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
FHK_DEV void st_shared2(uint32_t addr, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(addr), "r"(a), "r"(b) : "memory");
}
FHK_DEV void st_shared_f(uint32_t addr, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(addr), "f"(v) : "memory");
}
FHK_DEV void st_shared_32(uint32_t addr, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(addr), "r"(v) : "memory");
}
FHK_DEV void st_shared_16(uint32_t addr, uint16_t v) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(addr), "h"(v) : "memory");
}
FHK_DEV void st_shared_f4(uint32_t addr, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(addr), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
               : "memory");
}
FHK_DEV uint2 ld_shared2(uint32_t addr) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(addr) : "memory");
  return v;
}
FHK_DEV uint4 ld_shared4(uint32_t addr) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(addr)
               : "memory");
  return v;
}
FHK_DEV uint32_t ld_shared_32(uint32_t addr) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(addr) : "memory");
  return v;
}
FHK_DEV uint32_t ld_shared_u16(uint32_t addr) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(addr) : "memory");
  return v;
}
FHK_DEV float ld_shared_f(uint32_t addr) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(addr) : "memory");
  return v;
}
/* *addr |= bits where `on` holds, atomic for the CTA; a predicate where the compiler would branch. [red] */
FHK_DEV void or_shared(uint32_t addr, uint32_t bits, bool on) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p red.shared.or.b32 [%0], %1;\n}\n" ::"r"(addr), "r"(bits),
               "r"(static_cast<uint32_t>(on))
               : "memory");
}
FHK_DEV float4 ld_shared_f4(uint32_t addr) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(addr)
               : "memory");
  return v;
}

/* ---- Barriers and registers ---- */

/* Named barrier `id` of `threads` threads. [bar.sync] */
FHK_DEV void bar_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
/* Arrive without waiting. [bar.arrive] */
FHK_DEV void bar_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
/* Move registers between warpgroups; every warp of the warpgroup runs it. [setmaxnreg] */
template <int kRegs>
FHK_DEV void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegs));
}
template <int kRegs>
FHK_DEV void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegs));
}
/* Generic-proxy writes of this thread (st, stmatrix, landed cp.async) before later async-proxy reads (wgmma).
 * [fence.proxy.async] */
FHK_DEV void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- Grids [griddepcontrol] ---- */

/* If the launch let this grid start before the grid in front has ended: waits for its end, and makes its writes
 * visible. */
FHK_DEV void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The grid behind this one may start, where its launch allows that, as soon as all CTAs here have said so or have
 * ended. */
FHK_DEV void let_grid_behind_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* ---- Clusters [barrier.cluster; mapa; Distributed Shared Memory] ---- */

/* All threads of the cluster meet; shared-memory writes before it are visible after it. */
FHK_DEV void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/* The same shared address in another CTA of the cluster. */
FHK_DEV uint32_t map_to_rank(uint32_t addr, uint32_t rank) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(addr), "r"(rank));
  return r;
}
FHK_DEV float2 ld_cluster_f2(uint32_t addr) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(addr) : "memory");
  return v;
}

/* ---- Matrices by warp [Warp-level Matrix Instructions] ---- */

/* Four 8x8 b16 matrices, shared to registers; lane i gives the address of row i % 8 of matrix i / 8. */
FHK_DEV void ldmatrix4(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}
FHK_DEV void ldmatrix4_trans(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}
FHK_DEV void stmatrix4(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}
FHK_DEV void stmatrix2_trans(uint32_t addr, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(addr), "r"(a), "r"(b) : "memory");
}
FHK_DEV void stmatrix4_trans(uint32_t addr, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
FHK_DEV uint32_t movmatrix_trans(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
/* d[16x8] += a[16x16] b[16x8], bf16 in, fp32 out. */
FHK_DEV void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, "
               "%1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* ---- Matrices by warpgroup [Asynchronous Warpgroup Level Matrix: wgmma], sm_90a ---- */

FHK_DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FHK_DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
FHK_DEV void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/* No instruction: tells the compiler that an accumulator changes here, so that it neither reads nor moves it while a
 * wgmma owns it. */
template <int kCount>
FHK_DEV void keep(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+f"(r[i])::"memory");
}

/*
 * Matrix descriptors, 128-byte swizzle: a tile is made of atoms of 8 rows x 128 bytes, 1024-byte aligned, in which
 * 16-byte unit u of row r lies at unit u ^ (r % 8). `atom_stride` is the distance of atoms along the strided direction,
 * in bytes. The address field counts 16-byte units, so a step inside the tile is an addition to the descriptor. [Matrix
 * Descriptor Format, Canonical Layouts]
 */
FHK_DEV uint64_t desc_sw128(uint32_t addr, uint32_t leading_bytes, uint32_t stride_bytes) {
  return static_cast<uint64_t>((addr & 0x3FFFF) >> 4) | (static_cast<uint64_t>(leading_bytes >> 4) << 16) |
         (static_cast<uint64_t>(stride_bytes >> 4) << 32) | (1ull << 62);
}
/* K-major operand: a row holds 64 contiguous k values; atoms of 8 rows follow each other. Next k16 step: + 2. */
FHK_DEV uint64_t desc_k_major(uint32_t addr) { return desc_sw128(addr, 16, 1024); }
/* MN-major operand: a row is one k value with 64 contiguous m (or n) values; atoms of 8 k values follow each other,
 * the next 64 m (n) values lie `slice_bytes` further. Next k16 step (16 rows of 128 bytes): + 128. */
FHK_DEV uint64_t desc_mn_major(uint32_t addr, uint32_t slice_bytes) { return desc_sw128(addr, slice_bytes, 1024); }

#define FHK_REGS_4 "%0, %1, %2, %3"
#define FHK_REGS_8 FHK_REGS_4 ", %4, %5, %6, %7"
#define FHK_REGS_16 FHK_REGS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FHK_REGS_32 FHK_REGS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FHK_REGS_64                                                                                \
  FHK_REGS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
              "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FHK_ACC_4(d, i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define FHK_ACC_8(d, i) FHK_ACC_4(d, i), FHK_ACC_4(d, (i) + 4)
#define FHK_ACC_16(d, i) FHK_ACC_8(d, i), FHK_ACC_8(d, (i) + 8)
#define FHK_ACC_32(d, i) FHK_ACC_16(d, i), FHK_ACC_16(d, (i) + 16)
#define FHK_ACC_64(d, i) FHK_ACC_32(d, i), FHK_ACC_32(d, (i) + 32)

/*
 * d[64 x N] (+)= a[64x16] b[16xN], bf16 in, fp32 out, both operands in shared memory; accumulate = 0 overwrites d.
 * kTransA, kTransB: 0 = K-major, 1 = MN-major. A warp w of the warpgroup holds rows 16 w .. 16 w + 15: lane l rows l /
 * 4 and l / 4 + 8, and of each 8 columns j the pair 8 j + 2 (l % 4) + {0, 1} as d[4 j], d[4 j + 1] (first row), d[4 j +
 * 2], d[4 j + 3] (second row).
 */
#define FHK_WGMMA_SS(N, COUNT, A, B, P, TA, TB)                                                \
  template <int kTransA, int kTransB>                                                          \
  FHK_DEV void wgmma_ss(float(&d)[COUNT], uint64_t a, uint64_t b, int accumulate) {            \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                              \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" FHK_REGS_##COUNT \
                 "}, %" #A ", %" #B ", p, 1, 1, %" #TA ", %" #TB ";\n}\n"                      \
                 : FHK_ACC_##COUNT(d, 0)                                                       \
                 : "l"(a), "l"(b), "r"(accumulate), "n"(kTransA), "n"(kTransB));               \
  }
FHK_WGMMA_SS(8, 4, 4, 5, 6, 7, 8)
FHK_WGMMA_SS(16, 8, 8, 9, 10, 11, 12)
FHK_WGMMA_SS(32, 16, 16, 17, 18, 19, 20)
FHK_WGMMA_SS(64, 32, 32, 33, 34, 35, 36)
FHK_WGMMA_SS(128, 64, 64, 65, 66, 67, 68)
#undef FHK_WGMMA_SS

/* The same with a in registers (the layout of d's fragments, k in place of columns); b K-major (kTransB = 0) or
 * MN-major. */
#define FHK_WGMMA_RS(N, COUNT, A0, A1, A2, A3, B, P, TB)                                               \
  template <int kTransB>                                                                               \
  FHK_DEV void wgmma_rs(float(&d)[COUNT], const uint32_t(&a)[4], uint64_t b, int accumulate) {         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" FHK_REGS_##COUNT         \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, %" #TB ";\n}\n"       \
                 : FHK_ACC_##COUNT(d, 0)                                                               \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(kTransB)); \
  }
FHK_WGMMA_RS(64, 32, 32, 33, 34, 35, 36, 37, 38)
FHK_WGMMA_RS(128, 64, 64, 65, 66, 67, 68, 69, 70)
#undef FHK_WGMMA_RS

}  // namespace ptx
}  // namespace fhk

#endif
