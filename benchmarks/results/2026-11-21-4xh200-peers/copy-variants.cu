#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <vector>
#include <cuda_runtime.h>
#define C(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { printf("%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1);} } while (0)
__global__ void gate(volatile int* f) { while (*f == 0); }
template <int F> __global__ void copyS(uint4* to, const uint4* from, size_t vectors, int loops) {
  size_t me = blockIdx.x * (size_t)blockDim.x + threadIdx.x, all = (size_t)gridDim.x * blockDim.x;
  for (int l = 0; l < loops; ++l) {
    size_t i = me;
    for (; i + (F - 1) * all < vectors; i += F * all) {
      uint4 h[F];
#pragma unroll
      for (int k = 0; k < F; ++k) h[k] = from[i + k * all];
#pragma unroll
      for (int k = 0; k < F; ++k) to[i + k * all] = h[k];
    }
    for (; i < vectors; i += all) to[i] = from[i];
  }
}
// each block a contiguous piece of F * 512 vectors
template <int F> __global__ void copyB(uint4* to, const uint4* from, size_t vectors) {
  size_t i = blockIdx.x * (size_t)blockDim.x * F + threadIdx.x;
  uint4 h[F];
#pragma unroll
  for (int k = 0; k < F; ++k) if (i + k * blockDim.x < vectors) h[k] = from[i + k * blockDim.x];
#pragma unroll
  for (int k = 0; k < F; ++k) if (i + k * blockDim.x < vectors) to[i + k * blockDim.x] = h[k];
}
volatile int* flag; int sms;
cudaStream_t st[2]; cudaEvent_t a[2], b[2]; char* mem[2];
int main() {
  C(cudaHostAlloc((void**)&flag, 4, cudaHostAllocMapped | cudaHostAllocPortable));
  for (int d = 0; d < 2; ++d) { C(cudaSetDevice(d)); C(cudaDeviceEnablePeerAccess(1 - d, 0)); C(cudaStreamCreateWithFlags(&st[d], cudaStreamNonBlocking)); C(cudaEventCreate(&a[d])); C(cudaEventCreate(&b[d])); C(cudaMalloc(&mem[d], 2ull << 30)); C(cudaMemset(mem[d], d + 1, 2ull << 30)); C(cudaDeviceSynchronize()); }
  C(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  auto time = [&](int by, auto wake, auto work) {
    std::vector<float> t;
    for (int r = 0; r < 7; ++r) {
      *flag = 0; C(cudaSetDevice(by));
      gate<<<1, 1, 0, st[by]>>>(flag);
      wake(); C(cudaEventRecord(a[by], st[by])); work(); C(cudaEventRecord(b[by], st[by]));
      *flag = 1; C(cudaStreamSynchronize(st[by]));
      float ms; C(cudaEventElapsedTime(&ms, a[by], b[by])); t.push_back(ms * 1e3f);
    }
    std::sort(t.begin(), t.end()); return t[t.size() / 2];
  };
  size_t sizes[] = {8, 1 << 16, 1 << 20, 16 << 20, 64 << 20, 128 << 20, 512 << 20, 1 << 30};
  // transfers 0 -> 1: write issued by 0, read issued by 1
  for (size_t S : sizes) for (int pull = 0; pull < 2; ++pull) {
    int by = pull;
    for (size_t wake : {(size_t)0, (size_t)16, (size_t)(1 << 20), (size_t)(8 << 20)}) {
      printf("ce %s %11zu wake %8zu:", pull ? "read " : "write", S, wake);
      for (int n : {1, 2, 4, 8, 16}) {
        if (n * S > (17ull << 30) || (n > 4 && S > (128u << 20))) continue;
        float us = time(by, [&] { if (wake) C(cudaMemcpyAsync(mem[1] + (1ull << 30), mem[0] + (1ull << 30), wake, cudaMemcpyDefault, st[by])); },
                        [&] { for (int i = 0; i < n; ++i) C(cudaMemcpyAsync(mem[1], mem[0], S, cudaMemcpyDefault, st[by])); });
        printf("  n=%d %.2f us %.1f", n, us / n, S * n / us / 1e3);
      }
      printf("\n");
    }
  }
  for (size_t S : sizes) if (S >= (1 << 20)) for (int pull = 0; pull < 2; ++pull) {
    int by = pull; size_t v = S / 16; uint4 *to = (uint4*)mem[1], *from = (uint4*)mem[0];
    auto wake = [&] { C(cudaMemcpyAsync(mem[1] + (1ull << 30), mem[0] + (1ull << 30), 16, cudaMemcpyDefault, st[by])); };
    auto wakek = [&] { copyS<8><<<1, 32, 0, st[by]>>>(to, from, 32, 1); };
    auto show = [&](const char* name, int n, float us) { printf("sm %s %11zu %-14s n=%d %.2f us %.2f\n", pull ? "read " : "write", S, name, n, us / n, S * n / us / 1e3); };
    for (int n : {1, 2, 4}) {
      show("S8x1/ce", n, time(by, wake, [&] { for (int i = 0; i < n; ++i) copyS<8><<<sms, 512, 0, st[by]>>>(to, from, v, 1); }));
      show("S8x1/k", n, time(by, wakek, [&] { for (int i = 0; i < n; ++i) copyS<8><<<sms, 512, 0, st[by]>>>(to, from, v, 1); }));
      show("S8x1loop", n, time(by, wakek, [&] { copyS<8><<<sms, 512, 0, st[by]>>>(to, from, v, n); }));
      show("S4x1", n, time(by, wakek, [&] { for (int i = 0; i < n; ++i) copyS<4><<<sms, 512, 0, st[by]>>>(to, from, v, 1); }));
      show("S8x2", n, time(by, wakek, [&] { for (int i = 0; i < n; ++i) copyS<8><<<2 * sms, 512, 0, st[by]>>>(to, from, v, 1); }));
      show("S4x4", n, time(by, wakek, [&] { for (int i = 0; i < n; ++i) copyS<4><<<4 * sms, 512, 0, st[by]>>>(to, from, v, 1); }));
      show("S4x16", n, time(by, wakek, [&] { for (int i = 0; i < n; ++i) copyS<4><<<16 * sms, 512, 0, st[by]>>>(to, from, v, 1); }));
      show("B1", n, time(by, wakek, [&] { for (int i = 0; i < n; ++i) copyB<1><<<(v + 511) / 512, 512, 0, st[by]>>>(to, from, v); }));
      show("B4", n, time(by, wakek, [&] { for (int i = 0; i < n; ++i) copyB<4><<<(v + 2047) / 2048, 512, 0, st[by]>>>(to, from, v); }));
      show("B8", n, time(by, wakek, [&] { for (int i = 0; i < n; ++i) copyB<8><<<(v + 4095) / 4096, 512, 0, st[by]>>>(to, from, v); }));
    }
    show("S8x1loop16", 16, S > (128u << 20) ? 0 : time(by, wakek, [&] { copyS<8><<<sms, 512, 0, st[by]>>>(to, from, v, 16); }));
  }
}
