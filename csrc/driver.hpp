// The CUDA driver API, opened at run time so that the extension builds and imports without CUDA.
// Types and constants as cuda.h 12.0 declares them; only what collbench calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "errors.hpp"
#include "library.hpp"

namespace collbench {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUgraph = struct CUgraph_st*;
using CUgraphExec = struct CUgraphExec_st*;
struct CUuuid {
  unsigned char bytes[16];
};

// Each with its name in cuda.h, which tests/native/test_headers.py compares.
constexpr CUresult kCudaSuccess = 0;                     // CUDA_SUCCESS
constexpr CUresult kCudaNotReady = 600;                  // CUDA_ERROR_NOT_READY
constexpr CUresult kCudaPeerAccessAlreadyEnabled = 704;  // CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
constexpr CUresult kCudaTooManyPeers = 711;              // CUDA_ERROR_TOO_MANY_PEERS
constexpr unsigned kStreamNonBlocking = 1;               // CU_STREAM_NON_BLOCKING
constexpr unsigned kEventDisableTiming = 2;              // CU_EVENT_DISABLE_TIMING
constexpr unsigned kHostAllocPortableMapped = 3;         // CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
constexpr int kCaptureThreadLocal = 1;                   // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr int kAttributeMultiprocessorCount = 16;        // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr int kAttributeL2CacheSize = 38;                // CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
constexpr int kAttributeMulticastSupported = 132;        // CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED

// Name of the exported symbol, and parameters. cuda.h maps the plain name to the one with _v2.
#define COLLBENCH_DRIVER_FUNCTIONS(X)                                                                             \
  X(cuInit, (unsigned))                                                                                           \
  X(cuGetErrorName, (CUresult, const char**))                                                                     \
  X(cuGetErrorString, (CUresult, const char**))                                                                   \
  X(cuDeviceGetCount, (int*))                                                                                     \
  X(cuDeviceGet, (CUdevice*, int))                                                                                \
  X(cuDeviceGetUuid, (CUuuid*, CUdevice))                                                                         \
  X(cuDeviceGetAttribute, (int*, int, CUdevice))                                                                  \
  X(cuDeviceCanAccessPeer, (int*, CUdevice, CUdevice))                                                            \
  X(cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))                                                             \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                     \
  X(cuCtxSetCurrent, (CUcontext))                                                                                 \
  X(cuCtxEnablePeerAccess, (CUcontext, unsigned))                                                                 \
  X(cuMemGetInfo_v2, (std::size_t*, std::size_t*))                                                                \
  X(cuMemAlloc_v2, (CUdeviceptr*, std::size_t))                                                                   \
  X(cuMemFree_v2, (CUdeviceptr))                                                                                  \
  X(cuMemHostAlloc, (void**, std::size_t, unsigned))                                                              \
  X(cuMemFreeHost, (void*))                                                                                       \
  X(cuMemsetD8Async, (CUdeviceptr, unsigned char, std::size_t, CUstream))                                         \
  X(cuMemcpyPeerAsync, (CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t, CUstream))                   \
  X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void*, std::size_t, CUstream))                                      \
  X(cuMemcpyDtoHAsync_v2, (void*, CUdeviceptr, std::size_t, CUstream))                                            \
  X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, std::size_t, CUstream))                                      \
  X(cuStreamCreate, (CUstream*, unsigned))                                                                        \
  X(cuStreamDestroy_v2, (CUstream))                                                                               \
  X(cuStreamQuery, (CUstream))                                                                                    \
  X(cuStreamWaitEvent, (CUstream, CUevent, unsigned))                                                             \
  X(cuEventCreate, (CUevent*, unsigned))                                                                          \
  X(cuEventDestroy_v2, (CUevent))                                                                                 \
  X(cuEventRecord, (CUevent, CUstream))                                                                           \
  X(cuEventQuery, (CUevent))                                                                                      \
  X(cuEventElapsedTime, (float*, CUevent, CUevent))                                                               \
  X(cuModuleLoadData, (CUmodule*, const void*))                                                                   \
  X(cuModuleUnload, (CUmodule))                                                                                   \
  X(cuModuleGetFunction, (CUfunction*, CUmodule, const char*))                                                    \
  X(cuLaunchKernel,                                                                                               \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void**, void**)) \
  X(cuStreamBeginCapture_v2, (CUstream, int))                                                                     \
  X(cuStreamEndCapture, (CUstream, CUgraph*))                                                                     \
  X(cuGraphInstantiateWithFlags, (CUgraphExec*, CUgraph, unsigned long long))                                     \
  X(cuGraphUpload, (CUgraphExec, CUstream))                                                                       \
  X(cuGraphLaunch, (CUgraphExec, CUstream))                                                                       \
  X(cuGraphExecDestroy, (CUgraphExec))                                                                            \
  X(cuGraphDestroy, (CUgraph))

// The function table of one opened libcuda.so.1.
struct Driver {
#define COLLBENCH_DECLARE(name, signature) CUresult(*name) signature = nullptr;
  COLLBENCH_DRIVER_FUNCTIONS(COLLBENCH_DECLARE)
#undef COLLBENCH_DECLARE
};

// Returns the process's driver, opened and initialised on the first call. Throws LibraryError where there is none.
const Driver& driver();

[[noreturn]] void throw_cuda(CUresult result, const char* call, const char* file, int line);

}  // namespace collbench

// Calls a driver function and turns anything but success into a CudaError that names the call and its line.
#define CUDA_CHECK(function, ...)                                                                                 \
  do {                                                                                                            \
    const ::collbench::CUresult result_ = ::collbench::library_call(::collbench::driver().function)(__VA_ARGS__); \
    if (result_ != ::collbench::kCudaSuccess)                                                                     \
      ::collbench::throw_cuda(result_, #function "(" #__VA_ARGS__ ")", __FILE__, __LINE__);                       \
  } while (0)
