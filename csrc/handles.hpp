// Move-only owners of driver objects: each releases what it holds, in its own context, on every exit path.
// Destructors ignore errors: there is no caller to report to, and a sticky CUDA error repeats at every call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "driver.hpp"

namespace collbench {

// Holds one handle and the function that releases it; `Release` is a callable type without state.
template <class Handle, class Release>
class Owner {
 public:
  Owner() = default;
  Owner(CUcontext context, Handle handle) : context_(context), handle_(handle) {}
  Owner(Owner&& other) noexcept
      : context_(std::exchange(other.context_, nullptr)), handle_(std::exchange(other.handle_, Handle{})) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(context_, other.context_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ == Handle{}) return;
    driver().cuCtxSetCurrent(context_);
    Release{}(handle_);
  }
  Handle get() const { return handle_; }

 private:
  CUcontext context_ = nullptr;
  Handle handle_{};
};

#define COLLBENCH_RELEASE(name, Handle, function)                       \
  struct name {                                                         \
    void operator()(Handle handle) const { driver().function(handle); } \
  };
COLLBENCH_RELEASE(ReleaseStream, CUstream, cuStreamDestroy_v2)
COLLBENCH_RELEASE(ReleaseEvent, CUevent, cuEventDestroy_v2)
COLLBENCH_RELEASE(ReleaseMemory, CUdeviceptr, cuMemFree_v2)
COLLBENCH_RELEASE(ReleasePinned, void*, cuMemFreeHost)
COLLBENCH_RELEASE(ReleaseModule, CUmodule, cuModuleUnload)
COLLBENCH_RELEASE(ReleaseGraph, CUgraph, cuGraphDestroy)
COLLBENCH_RELEASE(ReleaseGraphExec, CUgraphExec, cuGraphExecDestroy)
#undef COLLBENCH_RELEASE

using Stream = Owner<CUstream, ReleaseStream>;
using Event = Owner<CUevent, ReleaseEvent>;
using DeviceMemory = Owner<CUdeviceptr, ReleaseMemory>;
using PinnedMemory = Owner<void*, ReleasePinned>;
using Module = Owner<CUmodule, ReleaseModule>;
using Graph = Owner<CUgraph, ReleaseGraph>;
using GraphExec = Owner<CUgraphExec, ReleaseGraphExec>;

// The device's primary context: the one that torch and NCCL use too, so that we time what they will see.
class PrimaryContext {
 public:
  explicit PrimaryContext(CUdevice device) : device_(device) {
    CUDA_CHECK(cuDevicePrimaryCtxRetain, &context_, device);
  }
  PrimaryContext(PrimaryContext&& other) noexcept
      : device_(other.device_), context_(std::exchange(other.context_, nullptr)) {}
  PrimaryContext& operator=(PrimaryContext&&) = delete;
  ~PrimaryContext() {
    if (context_ != nullptr) driver().cuDevicePrimaryCtxRelease_v2(device_);
  }
  CUcontext get() const { return context_; }
  void make_current() const { CUDA_CHECK(cuCtxSetCurrent, context_); }

 private:
  CUdevice device_;
  CUcontext context_ = nullptr;
};

// Each makes its object in `context`, which becomes current.
inline Stream make_stream(CUcontext context) {
  CUstream stream = nullptr;
  CUDA_CHECK(cuCtxSetCurrent, context);
  CUDA_CHECK(cuStreamCreate, &stream, kStreamNonBlocking);
  return {context, stream};
}

inline Event make_event(CUcontext context, unsigned flags = 0) {
  CUevent event = nullptr;
  CUDA_CHECK(cuCtxSetCurrent, context);
  CUDA_CHECK(cuEventCreate, &event, flags);
  return {context, event};
}

inline DeviceMemory make_memory(CUcontext context, std::size_t bytes) {
  CUdeviceptr memory = 0;
  CUDA_CHECK(cuCtxSetCurrent, context);
  CUDA_CHECK(cuMemAlloc_v2, &memory, bytes);
  return {context, memory};
}

// A stream that records what is queued on it instead of running it. Leaving its scope by an exception ends the
// capture and drops the graph, so that the stream can be used again.
class Capture {
 public:
  Capture(CUcontext context, CUstream stream) : context_(context), stream_(stream) {
    CUDA_CHECK(cuCtxSetCurrent, context_);
    CUDA_CHECK(cuStreamBeginCapture_v2, stream_, kCaptureThreadLocal);
  }
  Capture(Capture&& other) noexcept : context_(other.context_), stream_(std::exchange(other.stream_, nullptr)) {}
  Capture& operator=(Capture&&) = delete;
  ~Capture() {
    if (stream_ == nullptr) return;
    CUgraph dropped = nullptr;
    driver().cuCtxSetCurrent(context_);
    driver().cuStreamEndCapture(stream_, &dropped);
    if (dropped != nullptr) driver().cuGraphDestroy(dropped);
  }
  Graph end() {
    CUgraph graph = nullptr;
    CUDA_CHECK(cuCtxSetCurrent, context_);
    const CUstream stream = std::exchange(stream_, nullptr);
    CUDA_CHECK(cuStreamEndCapture, stream, &graph);
    return {context_, graph};
  }

 private:
  CUcontext context_;
  CUstream stream_;
};

// Host memory that every context can address.
inline PinnedMemory make_pinned(CUcontext context, std::size_t bytes) {
  void* memory = nullptr;
  CUDA_CHECK(cuCtxSetCurrent, context);
  CUDA_CHECK(cuMemHostAlloc, &memory, bytes, kHostAllocPortableMapped);
  return {context, memory};
}

// Seconds from `start` to `end`; the driver resolves about half a microsecond.
inline double elapsed_seconds(const Event& start, const Event& end) {
  float milliseconds = 0;
  CUDA_CHECK(cuEventElapsedTime, &milliseconds, start.get(), end.get());
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace collbench
