// The GPUs of one session: a context, streams, kernels and buffers on each, and the latch of the blocking kernels.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "handles.hpp"

namespace collbench {

// Returns the UUIDs of the GPUs that CUDA_VISIBLE_DEVICES shows, in CUDA's order. Throws LibraryError without a driver.
std::vector<std::string> list_gpus();

constexpr unsigned kThreads = 512;  // of a thread block, where a kernel has work for many
// The kernels of kernels.cu, and the threads in each of their blocks.
#define COLLBENCH_KERNELS(X) \
  X(block_stream, 1)         \
  X(stamp, 1)                \
  X(tell_time, 1)            \
  X(fill, kThreads)          \
  X(verify, kThreads)        \
  X(copy, kThreads)          \
  X(write_ring, kThreads)    \
  X(chase, 1)                \
  X(fill_elements, kThreads) \
  X(verify_elements, kThreads)
#define COLLBENCH_NAME(name, threads) name,
enum class Kernel { COLLBENCH_KERNELS(COLLBENCH_NAME) count };
#undef COLLBENCH_NAME
constexpr std::size_t kKernels = static_cast<std::size_t>(Kernel::count);

// What a kernel found wrong. Mirrors kernels.cu's Report.
struct Report {
  std::uint64_t wrong;
  std::uint64_t first;
  double expected;
  double found;
};

// A stream, the events around what is timed on it, and host memory where a kernel reports what it verified.
struct TimedStream {
  explicit TimedStream(CUcontext context)
      : stream(make_stream(context)),
        arrived(make_event(context)),
        start(make_event(context)),
        end(make_event(context)),
        reported(make_pinned(context, sizeof(Report))) {}
  CUstream get() const { return stream.get(); }
  Report& report() const { return *static_cast<Report*>(reported.get()); }
  // Sets the report to "nothing wrong" and returns its address, which is the same for host and device.
  Report* clear_report() const { return &(report() = Report{0, ~0ull, 0, 0}); }
  Stream stream;
  Event arrived;  // before the barrier that the ranks of several processes start from; behind all covered copies
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
// multiprocessors take turns (kernels.cu, chase). `turns` counts the turns so far.
struct ChaseMemory {
  PinnedMemory host_ring;
  DeviceMemory ring;
  DeviceMemory order;
  std::uint64_t turns = 0;
};

// Where kernels write the time stamps of single launches, and the pinned memory into which they are copied; made on
// first use, and made again where that is too small. It is not freed after each use: freeing waits for the GPU, which
// may itself wait for a rank that has failed.
struct StampMemory {
  DeviceMemory slots;
  PinnedMemory read;
  std::size_t bytes = 0;
};

// Where the messages of a batch lie: `count` places of `bytes` bytes, `stride` apart from `base` on, used in turn, so
// that the L2 cache does not serve one message's bytes to the next. `base` and `stride` are multiples of 256, so the
// kernels find every message aligned.
struct Slots {
  std::uint64_t base;
  std::uint64_t stride;
  std::uint64_t bytes;
  unsigned count;
  std::uint64_t offset(int iteration) const { return base + stride * (static_cast<unsigned>(iteration) % count); }
  // Where several transfers write to one destination, the slots of transfer `index`: behind those of the earlier ones.
  Slots of_sender(unsigned index) const { return {base + stride * count * index, stride, bytes, count}; }
};

// The driver takes kernel arguments by address and converts nothing.
template <class Argument>
constexpr bool kIsKernelArgument =
    std::is_pointer_v<Argument> || std::is_same_v<Argument, double> || std::is_same_v<Argument, std::uint32_t> ||
    std::is_same_v<Argument, std::uint64_t> || std::is_same_v<Argument, CUdeviceptr>;

// One GPU of a session. `source` holds the pattern that is copied, and never changes; `send` is filled again for each
// collective; copies and collectives both write into `target`.
struct Gpu {
  Gpu(int position, int ordinal, PrimaryContext context);

  // The first stream: collectives, the pointer chase, all verification, and the first of the transfers that this GPU
  // issues.
  TimedStream& own() { return streams.front(); }
  CUstream stream() const { return streams.front().get(); }

  // Calls `work()` with this GPU's context current. Errors name the GPU.
  template <class Work>
  void with_context(const Work& work) const {
    naming([&] {
      context.make_current();
      work();
    });
  }
  // Launches a kernel with a grid of (`blocks`, `slots`) blocks. The context is current. The arguments' types are those
  // of the kernel's parameters.
  template <class... Arguments>
  void launch(CUstream on, Kernel kernel, unsigned blocks, unsigned slots, Arguments... arguments) const {
    static_assert((kIsKernelArgument<Arguments> && ...));
    void* addresses[] = {&arguments...};
    launch_with(on, kernel, blocks, slots, addresses);
  }
  // Thread blocks for `work` items, one for each thread: at most what fills all multiprocessors, and for the timed copy
  // four times as many (kernels.cu).
  unsigned grid(Kernel kernel, std::uint64_t work) const;
  // Queues on the own stream the writing of the pattern of `seed` into these slots of `memory`; with `invert` 1 its
  // complement. The context is current.
  void fill(CUdeviceptr memory, const Slots& slots, std::uint64_t seed, std::uint32_t invert) const;

  // Wait for all work on a stream (the own one where none is named), or for an event. Throw HangError past the
  // deadline, CudaError where the GPU has failed, and what `meanwhile` throws, which is called again and again.
  using Meanwhile = std::function<void(std::chrono::steady_clock::time_point now)>;
  void wait(double deadline_seconds) const { wait(stream(), deadline_seconds); }
  void wait(CUstream on, double deadline_seconds, const Meanwhile& meanwhile = [](auto) {}) const;
  void wait(const Event& event, double deadline_seconds) const;

  int position;  // in Gpus
  int ordinal;
  PrimaryContext context;
  std::deque<TimedStream> streams;  // more are made on demand, for transfers at the same time
  Module module;
  std::array<CUfunction, kKernels> kernels{};
  unsigned multiprocessors = 0;
  DeviceMemory source;
  DeviceMemory send;
  DeviceMemory target;
  Event poisoned;                   // recorded after the poisoning of all that this GPU verifies
  std::map<int, HostBuffers> host;  // by position of host memory (host_memory.hpp)
  ChaseMemory chase;
  StampMemory stamps;
  std::uint64_t seed;

 private:
  template <class Work>
  void naming(const Work& work) const try {
    work();
  } catch (DeviceError& error) {
    error.position = position;
    throw;
  }
  template <class Query>
  void wait_for(const char* call, const Query& query, double deadline_seconds, const Meanwhile& meanwhile) const;
  void launch_with(CUstream on, Kernel kernel, unsigned blocks, unsigned slots, void** arguments) const;
};

class DeviceThreads;
struct DeleteUnlessStuck {
  void operator()(DeviceThreads* threads) const;
};
using OwnedThreads = std::unique_ptr<DeviceThreads, DeleteUnlessStuck>;

class Gpus {
 public:
  static constexpr std::size_t kNoLimit = ~std::size_t{0};
  // Opens the GPUs with CUDA's ordinals, in this order, with the kernels of `ptx`. With `peers`, enables peer access
  // wherever the driver allows it; a refusal costs that link's copies, see time_copies. Without, copies between GPUs go
  // through host memory. That needs a process of its own: peer access belongs to the context, which torch and NCCL
  // share, and cuCtxDisablePeerAccess would unmap buffers that live NCCL communicators address.
  Gpus(const std::vector<int>& ordinals, const std::string& ptx, bool peers = true);

  std::size_t size() const { return gpus_.size(); }
  Gpu& operator[](int position) { return gpus_.at(static_cast<std::size_t>(position)); }
  // Free device memory in bytes, per GPU.
  std::vector<std::size_t> free_bytes();
  // Gives each GPU its three buffers of `bytes` bytes (rounded up) and fills the source; host memory, made on first
  // use, will have `host_bytes` of them, because pinning takes seconds. Throws CudaError when full.
  void allocate(std::size_t bytes, std::size_t host_bytes = kNoLimit);
  std::size_t buffer_bytes() const { return buffer_bytes_; }
  std::size_t host_buffer_bytes() const { return host_buffer_bytes_; }
  // Bytes of a buffer for messages of up to `bytes` bytes.
  static std::size_t buffer_for(std::size_t bytes);
  // peer_access()[i][j]: kernels on i may address memory of j.
  const std::vector<std::vector<bool>>& peer_access() const { return peer_access_; }
  // The driver's errors where it refused access that it had called possible, by user and owner of the memory.
  const std::map<std::pair<int, int>, std::string>& peer_refusals() const { return peer_refusals_; }
  // Each GPU's L2 cache in bytes, 0 where the driver does not report it.
  std::vector<int> cache_bytes() const { return attributes(kAttributeL2CacheSize); }
  // Which GPUs offer NVLink multicast, which NCCL's NVLS needs (0 before driver 12.1); collbench never uses it itself.
  std::vector<int> multicast_supported() const { return attributes(kAttributeMulticastSupported); }

  // Offset of 256 bytes behind all slots in every buffer, for what is copied but not measured. `limit` is the size of
  // the smallest buffer in use, where that is not a GPU's.
  std::uint64_t spare_offset(std::size_t limit = kNoLimit) const;
  // Chooses slots for `iterations` messages; small batches lie elsewhere in the buffer at every call. Each of `senders`
  // transfers to one destination gets the same number of slots, see Slots::of_sender.
  Slots next_slots(std::size_t bytes, int iterations, unsigned senders = 1, std::size_t limit = kNoLimit);

  // How far behind its slots a batch of copies begins to read in the source, in bytes: 16 consecutive batches have
  // different distances, so none of them writes what an earlier one has written to the same place.
  std::uint64_t next_displacement();

  // Two words that every GPU and the host see: the highest ticket that was released, and whether a blocking kernel
  // timed out.
  volatile std::uint32_t* latch() { return static_cast<volatile std::uint32_t*>(latch_.get()); }
  std::uint32_t next_ticket() { return ++ticket_; }

  // The threads that queue copies and collectives.
  DeviceThreads& threads() { return *threads_; }

 private:
  void enable_peers();
  std::vector<int> attributes(int attribute) const;

  std::vector<Gpu> gpus_;
  PinnedMemory latch_;
  std::vector<std::vector<bool>> peer_access_;
  std::map<std::pair<int, int>, std::string> peer_refusals_;
  std::size_t buffer_bytes_ = 0, host_buffer_bytes_ = 0;
  std::uint64_t cursor_ = 0;
  std::uint64_t displacement_ = 0;
  std::uint64_t fraction_ = 0;  // of the buffer, in units of 2^-64: where the last small batch began
  std::uint32_t ticket_ = 0;
  OwnedThreads threads_;  // last: they end before what they use
};

// Before a round, this many bytes cross each of its links untimed, because a link that was idle for 0.1 s sleeps
// [docs/method/measuring.md 7]: the first messages then take 170 us longer, those of 8 bytes 1.4 ms [2 × H200].
constexpr std::uint64_t kLinkWakingBytes = 16 << 20;
// Longest wait for what prepares a measurement: filling a host buffer of 1 GiB at 3 GB/s takes 0.4 s.
constexpr double kSetupSeconds = 30.0;

}  // namespace collbench
