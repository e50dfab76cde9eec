// The GPUs of one session: a context, a stream, the kernels and the buffers on each, and the latch that they share.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "handles.hpp"
#include "lanes.hpp"

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

enum class Kernel { gate, fill, verify, copy, chain, chase, fill_elements, verify_elements };
constexpr std::size_t kKernels = 8;

// Pinned memory beside one GPU; host_memory.hpp and chase.hpp make it on first use. `buffers` go by the position that
// says where they lie.
struct HostBuffers {
  PinnedMemory source;
  PinnedMemory target;
};
struct HostMemory {
  std::map<int, HostBuffers> buffers;
  PinnedMemory ring;
};

// One GPU's share of the session. `source` holds the copy pattern and never changes; `send` is refilled for each
// collective; `target` receives both. `report` is host memory that the kernels write.
struct Gpu {
  Gpu(int ordinal, PrimaryContext context);
  // The report's address, one for host and device, after setting it to "nothing wrong".
  Report* clear_report() { return &(*static_cast<Report*>(report.get()) = Report{0, ~0ull, 0, 0}); }
  Report read_report() const { return *static_cast<const Report*>(report.get()); }
  int ordinal;
  PrimaryContext context;
  Stream stream;
  Event start;
  Event end;
  Module module;
  std::array<CUfunction, kKernels> kernels{};
  unsigned multiprocessors = 0;
  DeviceMemory source;
  DeviceMemory send;
  DeviceMemory target;
  PinnedMemory report;
  std::vector<Lane> lanes;  // made on demand, the first of them on `stream`
  EventTurns poisoned;      // for all transfers that this GPU verifies together
  EventTurns verified;
  HostMemory host;
  DeviceMemory ring;  // of the pointer chase, made on first use, as is what follows
  DeviceMemory turns;
  std::uint64_t turns_taken = 0;
  std::uint64_t seed;
};

// Whole messages of `bytes` bytes, `stride` apart from `base`: the places that a block of iterations touches in turn,
// so that the L2 cache does not serve one message's bytes to the next.
struct Slots {
  std::uint64_t base;
  std::uint64_t stride;
  std::uint64_t bytes;
  unsigned count;
  std::uint64_t offset(int iteration) const { return base + stride * (static_cast<unsigned>(iteration) % count); }
  // Of several messages at a time, which follow one another in memory: the slots of the one at `index`.
  Slots way(unsigned index) const { return {base + stride * count * index, stride, bytes, count}; }
};

class Crew;
struct DisposeCrew {
  void operator()(Crew* crew) const;  // crew.hpp
};

class Gpus {
 public:
  // Opens the GPUs with CUDA's ordinals, in this order, with the first of `images` (fatbin or PTX) that loads
  // everywhere. With `peers`, enables peer access wherever the driver allows it. Without, copies between GPUs go
  // through host memory: then in a process of its own, for peer access belongs to the context that torch and NCCL
  // share, and cuCtxDisablePeerAccess would unmap buffers that live NCCL communicators address.
  Gpus(const std::vector<int>& ordinals, const std::vector<std::string>& images, bool peers = true);
  ~Gpus();

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
  // The image that was loaded, as an index into the constructor's list.
  int image() const { return image_; }
  // peer_access()[i][j]: kernels on i may address memory of j.
  const std::vector<std::vector<bool>>& peer_access() const { return peer_access_; }
  // Each GPU's L2 cache in bytes, 0 where the driver does not tell.
  std::vector<int> cache_bytes() const;
  // Which GPUs offer NVLink multicast, which NCCL's NVLS needs; collbench never uses it itself.
  std::vector<bool> multicast_supported() const;

  // A place behind all slots, of 256 bytes in every buffer: for what is copied but not measured. `limit` is the size of
  // the smallest buffer in use where that is not a GPU's.
  std::uint64_t spare_offset(std::size_t limit = kNoLimit) const;
  // Chooses slots for `iterations` messages, elsewhere in the buffer from call to call. `shift` misaligns them.
  // Of `ways` messages at a time each gets as many slots, see Slots::way.
  Slots next_slots(std::size_t bytes, int iterations, std::uint64_t shift, unsigned ways = 1,
                   std::size_t limit = kNoLimit);

  void launch(Gpu& gpu, Kernel kernel, unsigned blocks, unsigned slots, void** arguments);
  // The same on any stream of the GPU, whose context is current: making it so costs as much as some calls.
  static void launch_on(const Gpu& gpu, CUstream stream, Kernel kernel, unsigned blocks, unsigned slots,
                        void** arguments);
  // A grid that covers `work` items of one thread each: full multiprocessors for filling and verifying, and for
  // the timed copy four times as many (kernels.cu).
  unsigned grid(const Gpu& gpu, Kernel kernel, std::uint64_t work) const;
  // Wait for all work on a stream of the GPU (its own where none is named), or for an event. Throw HangError past the
  // deadline, CudaError where the GPU has failed.
  void wait(const Gpu& gpu, double deadline_seconds) const { wait(gpu, gpu.stream.get(), deadline_seconds); }
  void wait(const Gpu& gpu, CUstream stream, double deadline_seconds) const;
  void wait(const Gpu& gpu, const Event& event, double deadline_seconds) const;

  // Two words that every GPU and the host see: the highest opened ticket, and whether a gate gave up waiting.
  volatile std::uint32_t* latch() { return static_cast<volatile std::uint32_t*>(latch_.get()); }
  std::uint32_t next_ticket() { return ++ticket_; }

  // The threads that queue copies and collectives.
  Crew& crew() { return *crew_; }

 private:
  static constexpr std::size_t kNoLimit = ~std::size_t{0};
  void load(const std::vector<std::string>& images);
  void enable_peers();

  std::vector<Gpu> gpus_;
  PinnedMemory latch_;
  std::vector<std::vector<bool>> peer_access_;
  std::size_t buffer_bytes_ = 0;
  std::uint64_t cursor_ = 0;
  std::uint64_t place_ = 0;  // of the last small block, as a fraction of 2^64
  std::uint32_t ticket_ = 0;
  int image_ = -1;
  std::unique_ptr<Crew, DisposeCrew> crew_;  // last: its threads end before what they use
};

constexpr unsigned kThreads = 512;
// Longest wait for what prepares a measurement: filling a host buffer of 1 GiB at 3 GB/s takes 0.4 s.
constexpr double kSetupSeconds = 30.0;

}  // namespace collbench
