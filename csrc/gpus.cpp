#include "gpus.hpp"

#include <algorithm>
#include <cstdio>
#include <future>
#include <sstream>
#include <stdexcept>

#include "device_threads.hpp"
#include "polling.hpp"

namespace collbench {
namespace {

struct KernelRow {
  const char* name;
  unsigned threads;
};
#define COLLBENCH_ROW(name, threads) {#name, threads},
constexpr KernelRow kKernelRows[kKernels] = {COLLBENCH_KERNELS(COLLBENCH_ROW)};
#undef COLLBENCH_ROW

constexpr std::uint64_t kSlotAlignment = 256;     // a memory transaction never spans two slots
constexpr std::uint64_t kCopyBlocks = 16;         // thread blocks a multiprocessor, see Gpu::grid
constexpr std::uint64_t kFullMultiprocessor = 4;  // thread blocks: 2048 threads
constexpr std::uint64_t kDisplacementRoom = 16 * kSlotAlignment;
constexpr std::uint64_t kSmallShare = 8;  // batches of up to an eighth of the buffer are spread over all of it
constexpr std::uint64_t kSpare = 256;     // bytes behind all slots, see spare_offset

std::string format_uuid(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += hex;
  }
  return text;
}

CUdevice device_of(int ordinal) {
  CUdevice device = 0;
  CUDA_CHECK(cuDeviceGet, &device, ordinal);
  return device;
}

// Loads every kernel on one GPU, before any timing: loading behind a blocking kernel would deadlock.
void load_kernels(Gpu& gpu, const std::string& ptx) try {
  CUmodule module = nullptr;
  gpu.context.make_current();
  CUDA_CHECK(cuModuleLoadData, &module, ptx.data());
  gpu.module = Module(gpu.context.get(), module);
  for (std::size_t i = 0; i < kKernels; ++i)
    CUDA_CHECK(cuModuleGetFunction, &gpu.kernels[i], module, kKernelRows[i].name);
} catch (const CudaError& error) {
  throw LibraryError("the driver does not load collbench's kernels: " + std::string(error.what()));
}

// Whether kernels on `user`, whose context is current, may address memory of `owner`. Without NVSwitch the driver
// refuses more than eight peers: that link then copies through host memory. Throws CudaError for any other refusal.
bool enable_peer(const Gpu& user, const Gpu& owner) {
  const CUresult result = library_call(driver().cuCtxEnablePeerAccess)(owner.context.get(), 0);
  if (result == kCudaSuccess || result == kCudaPeerAccessAlreadyEnabled) return true;
  if (result == kCudaTooManyPeers) return false;
  const std::string pair =
      "GPU " + std::to_string(user.ordinal) + " for memory of GPU " + std::to_string(owner.ordinal);
  throw_cuda(result, ("cuCtxEnablePeerAccess(" + pair + ")").c_str(), __FILE__, __LINE__);
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::vector<std::string> list_gpus() {
  int count = 0;
  CUDA_CHECK(cuDeviceGetCount, &count);
  std::vector<std::string> uuids;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUuuid uuid{};
    CUDA_CHECK(cuDeviceGetUuid, &uuid, device_of(ordinal));
    uuids.push_back(format_uuid(uuid));
  }
  return uuids;
}

Gpu::Gpu(int position, int ordinal, PrimaryContext opened)
    : position(position),
      ordinal(ordinal),
      context(std::move(opened)),
      poisoned(make_event(context.get(), kEventDisableTiming)),
      // Any constants work if they differ between GPUs.
      seed(0x636f6c6c62656e63ull * (static_cast<std::uint64_t>(ordinal) + 1)) {
  streams.emplace_back(context.get());
  int count = 0;
  CUDA_CHECK(cuDeviceGetAttribute, &count, kAttributeMultiprocessorCount, device_of(ordinal));
  multiprocessors = static_cast<unsigned>(count);
}

void Gpu::launch_with(CUstream on, Kernel kernel, unsigned blocks, unsigned slots, void** arguments) const {
  const auto index = static_cast<std::size_t>(kernel);
  CUDA_CHECK(cuLaunchKernel, kernels[index], blocks, slots, 1u, kKernelRows[index].threads, 1u, 1u, 0u, on, arguments,
             nullptr);
}

unsigned Gpu::grid(Kernel kernel, std::uint64_t work) const {
  const std::uint64_t most = multiprocessors * (kernel == Kernel::copy ? kCopyBlocks : kFullMultiprocessor);
  return static_cast<unsigned>(std::clamp<std::uint64_t>((work + kThreads - 1) / kThreads, 1, most));
}

void Gpu::fill(CUdeviceptr memory, const Slots& slots, std::uint64_t seed, std::uint32_t invert) const {
  launch(stream(), Kernel::fill, grid(Kernel::fill, slots.bytes / 8), slots.count, memory, slots.base, slots.stride,
         slots.bytes, seed, invert);
}

// Waits until `query()`, which errors call `call`, returns success.
template <class Query>
void Gpu::wait_for(const char* call, const Query& query, double deadline_seconds, const Meanwhile& meanwhile) const {
  const auto done = [&] {
    const CUresult result = query();
    if (result != kCudaSuccess && result != kCudaNotReady) throw_cuda(result, call, __FILE__, __LINE__);
    return result == kCudaSuccess;
  };
  naming([&] {
    if (poll(done, deadline_seconds, meanwhile)) return;
    std::ostringstream text;
    text << "GPU " << ordinal << " did not finish its work in " << deadline_seconds << " s";
    throw HangError(text.str());
  });
}

void Gpu::wait(CUstream on, double deadline_seconds, const Meanwhile& meanwhile) const {
  const auto query = [&] { return library_call(driver().cuStreamQuery)(on); };
  wait_for("cuStreamQuery(stream)", query, deadline_seconds, meanwhile);
}

void Gpu::wait(const Event& event, double deadline_seconds) const {
  const auto query = [&] { return library_call(driver().cuEventQuery)(event.get()); };
  wait_for("cuEventQuery(event)", query, deadline_seconds, [](Clock::time_point) {});
}

Gpus::Gpus(const std::vector<int>& ordinals, const std::string& ptx, bool peers) {
  gpus_.reserve(ordinals.size());
  // All contexts at once: each takes 0.1 s.
  std::vector<std::future<PrimaryContext>> contexts;
  for (const int ordinal : ordinals)
    contexts.push_back(std::async(std::launch::async, [ordinal] { return PrimaryContext(device_of(ordinal)); }));
  for (std::size_t i = 0; i < ordinals.size(); ++i)
    gpus_.emplace_back(static_cast<int>(i), ordinals[i], contexts[i].get());
  latch_ = make_pinned(gpus_.at(0).context.get(), 2 * sizeof(std::uint32_t));
  latch()[0] = latch()[1] = 0;
  // Also all at once: the driver compiles the kernels where its cache lacks them.
  std::vector<std::future<void>> loads;
  for (Gpu& gpu : gpus_) loads.push_back(std::async(std::launch::async, [&gpu, &ptx] { load_kernels(gpu, ptx); }));
  for (std::future<void>& load : loads) load.get();
  peer_access_.assign(size(), std::vector<bool>(size(), false));
  if (peers) enable_peers();
  threads_.reset(new DeviceThreads(*this));
}

void Gpus::enable_peers() {
  for (std::size_t i = 0; i < size(); ++i) {
    for (std::size_t j = 0; j < size(); ++j) {
      int possible = 0;
      if (i == j) continue;
      CUDA_CHECK(cuDeviceCanAccessPeer, &possible, device_of(gpus_[i].ordinal), device_of(gpus_[j].ordinal));
      if (!possible) continue;
      gpus_[i].context.make_current();
      try {
        peer_access_[i][j] = enable_peer(gpus_[i], gpus_[j]);
      } catch (const CudaError& error) {  // it costs this link; the others can be measured
        peer_refusals_[{static_cast<int>(i), static_cast<int>(j)}] = error.what();
      }
    }
  }
}

std::vector<int> Gpus::attributes(int attribute) const {
  std::vector<int> all;
  for (const Gpu& gpu : gpus_) {
    int found = 0;
    if (library_call(driver().cuDeviceGetAttribute)(&found, attribute, device_of(gpu.ordinal)) != kCudaSuccess)
      found = 0;
    all.push_back(found);
  }
  return all;
}

std::vector<std::size_t> Gpus::free_bytes() {
  std::vector<std::size_t> all;
  for (Gpu& gpu : gpus_) {
    std::size_t free = 0, total = 0;
    gpu.context.make_current();
    CUDA_CHECK(cuMemGetInfo_v2, &free, &total);
    all.push_back(free);
  }
  return all;
}

void Gpus::allocate(std::size_t bytes, std::size_t host_bytes) {
  const std::size_t rounded = buffer_for(bytes);
  // Captured graphs hold the buffers' addresses, so the buffers must not move.
  if (buffer_bytes_ != 0) throw std::logic_error("the buffers are allocated once a session");
  for (Gpu& gpu : gpus_) {
    gpu.source = make_memory(gpu.context.get(), rounded);
    gpu.send = make_memory(gpu.context.get(), rounded);
    gpu.target = make_memory(gpu.context.get(), rounded);
    gpu.fill(gpu.source.get(), {0, 0, rounded, 1}, gpu.seed, 0);
  }
  for (const Gpu& gpu : gpus_) gpu.wait(kSetupSeconds);
  buffer_bytes_ = rounded;
  host_buffer_bytes_ = buffer_for(std::min(bytes, host_bytes));
}

std::size_t Gpus::buffer_for(std::size_t bytes) { return round_up(bytes, kSlotAlignment) + kDisplacementRoom + kSpare; }

std::uint64_t Gpus::next_displacement() { return displacement_ = (displacement_ + kSlotAlignment) % kDisplacementRoom; }

std::uint64_t Gpus::spare_offset(std::size_t limit) const { return std::min(buffer_bytes_, limit) - kSpare; }

Slots Gpus::next_slots(std::size_t bytes, int iterations, unsigned senders, std::size_t limit) {
  const std::uint64_t reserved = kDisplacementRoom + kSpare, whole = std::min(buffer_bytes_, limit);
  const std::uint64_t stride = round_up(bytes, kSlotAlignment), room = whole < reserved ? 0 : whole - reserved;
  const std::uint64_t fitting = bytes == 0 || bytes > room ? 0 : room / stride / senders;
  if (fitting == 0)
    throw std::invalid_argument((senders > 1 ? std::to_string(senders) + " messages at a time do" : "message does") +
                                std::string(" not fit the buffers: allocate() more first"));
  const auto count = static_cast<unsigned>(std::min<std::uint64_t>(fitting, static_cast<unsigned>(iterations)));
  const std::uint64_t needed = count * stride * senders;
  if (needed <= room / kSmallShare) {
    // Far away from the last batch, because a small message's time depends on its address, and neighbors are alike
    // [docs/method/measuring.md 7]. Steps of the golden ratio cover the buffer evenly.
    fraction_ += 0x9e3779b97f4a7c15ull;
    cursor_ = static_cast<std::uint64_t>(static_cast<double>(fraction_ >> 11) * 0x1p-53 *
                                         static_cast<double>(room - needed)) /
              kSlotAlignment * kSlotAlignment;
  }
  if (cursor_ + needed > room) cursor_ = 0;
  const Slots slots{cursor_, stride, bytes, count};
  cursor_ += needed;
  return slots;
}

}  // namespace collbench
