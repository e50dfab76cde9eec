// Move-only owners of driver objects: each releases what it holds, in its own context, on every exit path.
// Destructors ignore errors, because they cannot throw; the next call reports a sticky CUDA error again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "driver.hpp"

namespace collbench {

// Holds one handle; `release` is the driver function that gives it back.
template <class Handle, CUresult (*Driver::*release)(Handle)>
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
    library_call(driver().cuCtxSetCurrent)(context_);
    library_call(driver().*release)(handle_);
  }
  Handle get() const { return handle_; }

 private:
  CUcontext context_ = nullptr;
  Handle handle_{};
};

using Stream = Owner<CUstream, &Driver::cuStreamDestroy_v2>;
using Event = Owner<CUevent, &Driver::cuEventDestroy_v2>;
using DeviceMemory = Owner<CUdeviceptr, &Driver::cuMemFree_v2>;
using PinnedMemory = Owner<void*, &Driver::cuMemFreeHost>;
using Module = Owner<CUmodule, &Driver::cuModuleUnload>;
using Graph = Owner<CUgraph, &Driver::cuGraphDestroy>;
using GraphExec = Owner<CUgraphExec, &Driver::cuGraphExecDestroy>;

// The device's primary context: torch and NCCL use it too, so our copies run under the same conditions as theirs.
class PrimaryContext {
 public:
  explicit PrimaryContext(CUdevice device) : device_(device) {
    CUDA_CHECK(cuDevicePrimaryCtxRetain, &context_, device);
  }
  PrimaryContext(PrimaryContext&& other) noexcept
      : device_(other.device_), context_(std::exchange(other.context_, nullptr)) {}
  PrimaryContext& operator=(PrimaryContext&&) = delete;
  ~PrimaryContext() {
    if (context_ != nullptr) library_call(driver().cuDevicePrimaryCtxRelease_v2)(device_);
  }
  CUcontext get() const { return context_; }
  void make_current() const { CUDA_CHECK(cuCtxSetCurrent, context_); }

 private:
  CUdevice device_;
  CUcontext context_ = nullptr;
};

// Each of these makes its object in `context`, and leaves that context current.
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

// Host memory that every context can address.
inline PinnedMemory make_pinned(CUcontext context, std::size_t bytes) {
  void* memory = nullptr;
  CUDA_CHECK(cuCtxSetCurrent, context);
  CUDA_CHECK(cuMemHostAlloc, &memory, bytes, kHostAllocPortableMapped);
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
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    if (stream_ == nullptr) return;
    CUgraph dropped = nullptr;
    library_call(driver().cuCtxSetCurrent)(context_);
    library_call(driver().cuStreamEndCapture)(stream_, &dropped);
    if (dropped != nullptr) library_call(driver().cuGraphDestroy)(dropped);
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

// Seconds from `start` to `end`; the driver resolves about half a microsecond.
inline double elapsed_seconds(const Event& start, const Event& end) {
  float milliseconds = 0;
  CUDA_CHECK(cuEventElapsedTime, &milliseconds, start.get(), end.get());
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace collbench
