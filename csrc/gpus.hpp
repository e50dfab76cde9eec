// The GPUs of one session: a context, streams, the kernels and the buffers on each, and the latch that they share.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "handles.hpp"

namespace collbench {

// One GPU as the driver names it; `ordinal` is CUDA's own number under the present CUDA_VISIBLE_DEVICES.
struct GpuIdentity {
  int ordinal;
  std::string uuid;
  std::string pci_bus_id;
  std::string name;
  std::size_t memory_bytes;
};

// Returns the visible GPUs in CUDA's order. Throws LibraryError without a driver.
std::vector<GpuIdentity> list_gpus();

enum class Kernel {
  block_stream,
  stamp,
  tell_time,
  fill,
  verify,
  copy,
  write_ring,
  chase,
  fill_elements,
  verify_elements
};
constexpr std::size_t kKernels = 10;

// What a kernel found wrong. Mirrors kernels.cu's Report.
struct Report {
  std::uint64_t wrong;
  std::uint64_t first;
  double expected;
  double found;
};

// A stream, the events around what is timed on it, and host memory where a kernel reports on it.
struct TimedStream {
  explicit TimedStream(CUcontext context)
      : stream(make_stream(context)),
        arrived(make_event(context)),
        start(make_event(context)),
        end(make_event(context)),
        reported(make_pinned(context, sizeof(Report))) {}
  CUstream get() const { return stream.get(); }
  Report& report() const { return *static_cast<Report*>(reported.get()); }
  // The report's address, one for host and device, after setting it to "nothing wrong".
  Report* clear_report() const { return &(report() = Report{0, ~0ull, 0, 0}); }
  Stream stream;
  Event arrived;  // before the barrier that ranks of several processes start from
  Event start;
  Event end;
  PinnedMemory reported;
};

// Pinned host memory that one GPU's copies read and write (host_memory.hpp), made on first use.
struct HostBuffers {
  PinnedMemory source;
  PinnedMemory target;
};

// What the pointer chase needs, made on first use: its rings, in host memory and on the GPU, and two words by which the
// multiprocessors take turns (kernels.cu, chase), `turns` of them so far.
struct ChaseMemory {
  PinnedMemory host_ring;
  DeviceMemory ring;
  DeviceMemory order;
  std::uint64_t turns = 0;
};

// Where stamps of single launches are written, and where the host reads them; made on first use, and larger where that
// is too small. Kept: to free memory waits for the GPU, which may itself wait for a rank that has failed.
struct StampMemory {
  DeviceMemory slots;
  PinnedMemory read;
  std::size_t bytes = 0;
};

// One GPU's share of the session. `source` holds the copies' pattern and never changes; `send` is refilled for each
// collective; `target` receives both.
struct Gpu {
  Gpu(int ordinal, PrimaryContext context);
  // Where collectives, the pointer chase and all verification run, and the first of the copies that this GPU issues.
  TimedStream& own() { return streams.front(); }
  CUstream stream() const { return streams.front().get(); }
  int ordinal;
  PrimaryContext context;
  std::deque<TimedStream> streams;  // the others, for copies at the same time, are made on demand
  Module module;
  std::array<CUfunction, kKernels> kernels{};
  unsigned multiprocessors = 0;
  DeviceMemory source;
  DeviceMemory send;
  DeviceMemory target;
  Event poisoned;                   // follows the poisoning of all that this GPU verifies
  std::map<int, HostBuffers> host;  // by the position that means their NUMA node
  ChaseMemory chase;
  StampMemory stamps;
  std::uint64_t seed;
};

// Whole messages of `bytes` bytes, `stride` apart from `base`, that a batch of iterations uses one after another, so
// that the L2 cache does not serve one message's bytes to the next.
struct Slots {
  std::uint64_t base;
  std::uint64_t stride;
  std::uint64_t bytes;
  unsigned count;
  std::uint64_t offset(int iteration) const { return base + stride * (static_cast<unsigned>(iteration) % count); }
  // Where several transfers write to one destination: the slots of the one at `index`, behind those before it.
  Slots of_sender(unsigned index) const { return {base + stride * count * index, stride, bytes, count}; }
};

class DeviceThreads;
using OwnedThreads = std::unique_ptr<DeviceThreads, void (*)(DeviceThreads*)>;

class Gpus {
 public:
  // Opens the GPUs with CUDA's ordinals, in this order, with the kernels of `ptx`. With `peers`, enables peer access
  // wherever the driver allows it. Without, copies between GPUs go through host memory: then in a process of its own,
  // for peer access belongs to the context that torch and NCCL share, and cuCtxDisablePeerAccess would unmap buffers
  // that live NCCL communicators address.
  Gpus(const std::vector<int>& ordinals, const std::string& ptx, bool peers = true);

  std::size_t size() const { return gpus_.size(); }
  Gpu& operator[](int position) { return gpus_.at(static_cast<std::size_t>(position)); }
  int position(const Gpu& gpu) const { return static_cast<int>(&gpu - gpus_.data()); }
  // Free device memory in bytes, per GPU.
  std::vector<std::size_t> free_bytes();
  // Gives each GPU its three buffers of `bytes` bytes (rounded up) and fills the source. Throws CudaError when full.
  void allocate(std::size_t bytes);
  std::size_t buffer_bytes() const { return buffer_bytes_; }
  // Bytes of a buffer for messages of up to `bytes` bytes.
  static std::size_t buffer_for(std::size_t bytes);
  // Writes the pattern of `seed` from `memory` on, whole words. Does not wait.
  void fill(Gpu& gpu, CUdeviceptr memory, std::uint64_t bytes, std::uint64_t seed);
  // peer_access()[i][j]: kernels on i may address memory of j.
  const std::vector<std::vector<bool>>& peer_access() const { return peer_access_; }
  // Each GPU's L2 cache in bytes, 0 where the driver does not report it.
  std::vector<int> cache_bytes() const { return attributes(kAttributeL2CacheSize); }
  // Which GPUs offer NVLink multicast, which NCCL's NVLS needs (0 before driver 12.1); collbench never uses it itself.
  std::vector<int> multicast_supported() const { return attributes(kAttributeMulticastSupported); }

  // 256 bytes behind all slots in every buffer, for what is copied but not measured. `limit` is the size of the
  // smallest buffer in use where that is not a GPU's.
  std::uint64_t spare_offset(std::size_t limit = kNoLimit) const;
  // Chooses slots for `iterations` messages, elsewhere in the buffer from call to call. `shift` misaligns them. Each of
  // `senders` transfers to one destination gets as many, see Slots::of_sender.
  Slots next_slots(std::size_t bytes, int iterations, std::uint64_t shift, unsigned senders = 1,
                   std::size_t limit = kNoLimit);

  // On a stream of the GPU, whose context is current. gridDim is (`blocks`, `slots`).
  static void launch(const Gpu& gpu, CUstream stream, Kernel kernel, unsigned blocks, unsigned slots, void** arguments);
  // Thread blocks that cover `work` items of one thread each: full multiprocessors for filling and verifying, and for
  // the timed copy four times as many (kernels.cu).
  static unsigned grid(const Gpu& gpu, Kernel kernel, std::uint64_t work);
  // Wait for all work on a stream of the GPU (its own where none is named), or for an event. Throw HangError past the
  // deadline, CudaError where the GPU has failed.
  void wait(const Gpu& gpu, double deadline_seconds) const { wait(gpu, gpu.stream(), deadline_seconds); }
  void wait(const Gpu& gpu, CUstream stream, double deadline_seconds) const;
  void wait(const Gpu& gpu, const Event& event, double deadline_seconds) const;
  // Calls `work()` with the GPU's context current. Errors name the GPU.
  template <class Work>
  void on(const Gpu& gpu, const Work& work) const try {
    gpu.context.make_current();
    work();
  } catch (DeviceError& error) {
    error.position = position(gpu);
    throw;
  }

  // Two words that every GPU and the host see: the highest ticket let through, and whether a blocking kernel timed out.
  volatile std::uint32_t* latch() { return static_cast<volatile std::uint32_t*>(latch_.get()); }
  std::uint32_t next_ticket() { return ++ticket_; }

  // The threads that queue copies and collectives.
  DeviceThreads& threads() { return *threads_; }

 private:
  static constexpr std::size_t kNoLimit = ~std::size_t{0};
  void enable_peers();
  std::vector<int> attributes(int attribute) const;

  std::vector<Gpu> gpus_;
  PinnedMemory latch_;
  std::vector<std::vector<bool>> peer_access_;
  std::size_t buffer_bytes_ = 0;
  std::uint64_t cursor_ = 0;
  std::uint64_t fraction_ = 0;  // of the buffer, where the last small batch began, in 2^-64
  std::uint32_t ticket_ = 0;
  OwnedThreads threads_;  // last: they end before what they use
};

// Before a round, so many bytes cross each of its links untimed, because a link that was idle for 0.1 s sleeps
// [docs/method.md 3.2]: what comes first takes 170 us more, in messages of 8 bytes 1.4 ms [2 × H200].
constexpr std::uint64_t kLinkWakingBytes = 16 << 20;
// Longest wait for what prepares a measurement: filling a host buffer of 1 GiB at 3 GB/s takes 0.4 s.
constexpr double kSetupSeconds = 30.0;

}  // namespace collbench
