// The GPUs of one session: a context, a stream, the kernels and the buffers on each, and the latch that they share.
#pragma once

#include <array>
#include <cstdint>
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

enum class Kernel { gate, fill, verify, copy, fill_elements, verify_elements };
constexpr std::size_t kKernels = 6;

// Mirrors kernels.cu's Report.
struct Report {
  std::uint64_t wrong;
  std::uint64_t first;
  double expected;
  double found;
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
};

class Gpus {
 public:
  // Opens the GPUs with CUDA's ordinals, in this order, with the first of `images` (fatbin or PTX) that loads
  // everywhere, and enables peer access wherever the driver allows it.
  Gpus(const std::vector<int>& ordinals, const std::vector<std::string>& images);

  std::size_t size() const { return gpus_.size(); }
  Gpu& operator[](int position) { return gpus_.at(static_cast<std::size_t>(position)); }
  // Free device memory in bytes, per GPU.
  std::vector<std::size_t> free_bytes();
  // Gives each GPU its three buffers of `bytes` bytes (rounded up) and fills the source. Throws CudaError when full.
  void allocate(std::size_t bytes);
  std::size_t buffer_bytes() const { return buffer_bytes_; }
  // The image that was loaded, as an index into the constructor's list.
  int image() const { return image_; }
  // peer_access()[i][j]: kernels on i may address memory of j.
  const std::vector<std::vector<bool>>& peer_access() const { return peer_access_; }

  // A place behind all slots, of 256 bytes in every buffer: for what is copied but not measured.
  std::uint64_t spare_offset() const;
  // Chooses slots for `iterations` messages, moving on through the buffer from call to call. `shift` misaligns them.
  Slots next_slots(std::size_t bytes, int iterations, std::uint64_t shift);

  void launch(Gpu& gpu, Kernel kernel, unsigned blocks, unsigned slots, void** arguments);
  // A grid that covers `work` items of one thread each: at most one block a multiprocessor for the timed copy, as
  // nvbandwidth has it, and full multiprocessors for filling and verifying.
  unsigned grid(const Gpu& gpu, Kernel kernel, std::uint64_t work) const;
  // Waits for all work on the GPU's stream. Throws HangError past the deadline.
  void wait(Gpu& gpu, double deadline_seconds);

  // Two words that every GPU and the host see: the highest opened ticket, and whether a gate gave up waiting.
  volatile std::uint32_t* latch() { return static_cast<volatile std::uint32_t*>(latch_.get()); }
  std::uint32_t next_ticket() { return ++ticket_; }

 private:
  void load(const std::vector<std::string>& images);
  void enable_peers();

  std::vector<Gpu> gpus_;
  PinnedMemory latch_;
  std::vector<std::vector<bool>> peer_access_;
  std::size_t buffer_bytes_ = 0;
  std::uint64_t cursor_ = 0;
  std::uint32_t ticket_ = 0;
  int image_ = -1;
};

constexpr unsigned kThreads = 512;
// Longest wait for a block of work: the slowest link that we know (staged PCIe gen 3, 3 GB/s) moves 32 × 1 GiB in 12 s.
constexpr double kDeadlineSeconds = 30.0;

}  // namespace collbench
