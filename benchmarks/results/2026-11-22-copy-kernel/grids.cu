// Which shape of a copy kernel reaches most over a link: blocks, loads in flight, order, slots. 2 GPUs.
#include <cstdio>
#include <cstdint>
#include <algorithm>
#include <vector>
#include <string>
#include <cuda_runtime.h>
#define CK(x) do { cudaError_t e = (x); if (e != cudaSuccess) { printf("%s: %s line %d\n", #x, cudaGetErrorString(e), __LINE__); exit(1);} } while (0)
typedef unsigned long long u64; typedef unsigned u32; typedef unsigned char u8;
template <int N, bool W> __device__ __forceinline__ void move(uint4* to, const uint4* from, u64 i, u64 all, u64 v) {
  uint4 h[N];
#pragma unroll
  for (u32 k = 0; k < N; ++k) if (W || i + k * all < v) h[k] = from[i + k * all];
#pragma unroll
  for (u32 k = 0; k < N; ++k) if (W || i + k * all < v) to[i + k * all] = h[k];
}
template <int N> __device__ __forceinline__ void one(u8* t, const u8* s, u64 bytes) {
  const u64 me = blockIdx.x * (u64)blockDim.x + threadIdx.x, all = (u64)gridDim.x * blockDim.x, v = bytes / 16;
  const uint4* from = (const uint4*)s; uint4* to = (uint4*)t;
  u64 i = me;
  for (; i + (N - 1) * all < v; i += N * all) move<N, true>(to, from, i, all, v);
  if (i < v) move<N, false>(to, from, i, all, v);
}
template <int N> __global__ void strided(u8* t, const u8* s, u64 bytes, u64 stride, u32 slots, u32 count) {
  for (u32 m = 0, slot = 0; m < count; ++m) { one<N>(t + slot * stride, s + slot * stride, bytes); slot = slot + 1 == slots ? 0 : slot + 1; }
}
// blocks take tiles in order (a wave walks the message together)
template <int N> __global__ void tiled(u8* t, const u8* s, u64 bytes, u64 stride, u32 slots, u32 count) {
  const u64 tile = (u64)blockDim.x * N, v = bytes / 16, tiles = (v + tile - 1) / tile;
  for (u32 m = 0, slot = 0; m < count; ++m) {
    const uint4* from = (const uint4*)(s + slot * stride); uint4* to = (uint4*)(t + slot * stride);
    for (u64 b = blockIdx.x; b < tiles; b += gridDim.x) move<N, false>(to, from, b * tile + threadIdx.x, blockDim.x, v);
    slot = slot + 1 == slots ? 0 : slot + 1;
  }
}
__global__ void nvb(u32 total, u64 loops, uint4* dst, uint4* src, u64 chunk) {  // as nvbandwidth's striding kernel
  u64 from = (u64)blockDim.x * blockIdx.x + threadIdx.x, big = chunk / 12;
  dst += from; src += from;
  uint4 *bigEnd = dst + big * 12 * total, *end = dst + chunk * total;
  for (u32 i = 0; i < loops; i++) {
    uint4 *d = dst, *c = src;
    while (d < bigEnd) {
      uint4 p[12];
#pragma unroll
      for (int k = 0; k < 12; ++k) { p[k] = *c; c += total; }
#pragma unroll
      for (int k = 0; k < 12; ++k) { *d = p[k]; d += total; }
    }
    while (d < end) { *d = *c; d += total; c += total; }
  }
}
typedef void (*K)(u8*, const u8*, u64, u64, u32, u32);
struct V { const char* name; K k; int per_sm; };
int main() {
  const u64 G = 1ull << 30; u8* buf[2]; cudaStream_t st[2]; cudaEvent_t a[2], b[2];
  for (int d = 0; d < 2; ++d) { CK(cudaSetDevice(d)); CK(cudaDeviceEnablePeerAccess(1 - d, 0)); CK(cudaMalloc(&buf[d], G + 4096)); CK(cudaMemset(buf[d], d + 1, G)); CK(cudaStreamCreate(&st[d])); CK(cudaEventCreate(&a[d])); CK(cudaEventCreate(&b[d])); }
  int sms; CK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  V vs[] = {{"ours 4x16", strided<4>, 16}, {"4x3", strided<4>, 3}, {"4x4", strided<4>, 4}, {"4x6", strided<4>, 6}, {"8x16", strided<8>, 16}, {"8x2", strided<8>, 2}, {"8x1", strided<8>, 1}, {"12x1", strided<12>, 1}, {"2x16", strided<2>, 16}, {"tiled 4x3", tiled<4>, 3}, {"tiled 8x2", tiled<8>, 2}, {"tiled 4x16", tiled<4>, 16}, {"nvbandwidth", nullptr, 1}};
  struct S { u64 bytes; u32 slots, count; } sizes[] = {{512ull << 20, 1, 16}, {512ull << 20, 2, 16}, {G, 1, 16}, {64ull << 20, 1, 20}, {64ull << 20, 16, 20}, {64ull << 20, 1, 1}, {16ull << 20, 1, 1}};
  for (auto& z : sizes) for (int dir = 0; dir < 2; ++dir) for (int issuer = 0; issuer < 1; ++issuer) {
    const int n = sizeof vs / sizeof *vs; std::vector<std::vector<float>> t(n);
    CK(cudaSetDevice(issuer));
    u8* src = dir ? buf[1 - issuer] : buf[issuer]; u8* dst = dir ? buf[issuer] : buf[1 - issuer];
    for (int rep = 0; rep < 8; ++rep) for (int q = 0; q < n; ++q) {
      int i = (q * 5 + rep) % n; V& v = vs[i];
      auto go = [&](u64 bytes, u32 count) {
        if (v.k) v.k<<<std::min<u64>(v.per_sm * sms, (bytes / 16 + 511) / 512), 512, 0, st[issuer]>>>(dst, src, bytes, z.bytes, z.slots, count);
        else { u32 total = 512 * sms; u64 chunk = bytes / 16 / total; nvb<<<sms, 512, 0, st[issuer]>>>(total, count, (uint4*)dst, (uint4*)src, chunk); }
      };
      go(16 << 20, 2); CK(cudaEventRecord(a[issuer], st[issuer])); go(z.bytes, z.count); CK(cudaEventRecord(b[issuer], st[issuer])); CK(cudaStreamSynchronize(st[issuer])); CK(cudaGetLastError());
      float ms; CK(cudaEventElapsedTime(&ms, a[issuer], b[issuer])); u64 moved = v.k ? z.bytes : z.bytes / 16 / (512 * sms) * (512 * sms) * 16;
      if (rep) t[i].push_back(moved * (double)z.count / ms / 1e6);
    }
    printf("%s %4llu MiB x %2u in %u slots:", dir ? "read " : "write", z.bytes >> 20, z.count, z.slots);
    for (int i = 0; i < n; ++i) { auto w = t[i]; std::sort(w.begin(), w.end()); printf("  %s %.2f (%.2f-%.2f)", vs[i].name, w[w.size() / 2], w[0], w.back()); }
    puts(""); fflush(stdout);
  }
}
