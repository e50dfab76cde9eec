#include "copy.hpp"

#include <algorithm>
#include <optional>

#include "crew.hpp"
#include "gate.hpp"
#include "routes.hpp"

namespace collbench {
namespace {

constexpr std::uint64_t kWakingBytes = 16;
// An engine's first copy starts some 7 us late [4 × H200]: let that be one that nobody times. Two, for a copy that the
// destination issues is sent by the source's engine, which the first one still finds asleep [2 × H200].
constexpr int kWakingCopies = 2;
// Before a round, so much crosses each of its links untimed. A link that was idle for 0.1 s sleeps: what comes first
// takes 170 us more, and where it comes in messages of 8 bytes, 1.4 ms; 16 MiB wake it [2 × H200].
constexpr std::uint64_t kLinkWakingBytes = 16 << 20;
// A block of up to so many bytes is queued while the one before it is verified; it then waits behind its gate for the
// slowest group. Larger ones would gain nothing.
// Staged copies above it start without a gate, for the driver might wait for the device while they are queued: the
// sample p2pBandwidthLatencyTest has 5 × 40 MB behind one [4 × H200], more nobody tried.
constexpr std::uint64_t kSmallBlock = 200'000'000;
// A kernel's launch costs 8 to 10 us of ramp and tail. From this size on one launch copies a block's messages in a
// loop, by one thread block on each multiprocessor (kernels.cu), as nvbandwidth does: 64 MiB are read at 365 GB/s by
// loops over 2 (361 by 2 launches), at 374.6 over 16 [4 × H200]. Of smaller messages the latency is what is measured.
constexpr std::uint64_t kLooped = 16 << 20;

CUdeviceptr to_device(Report* report) { return reinterpret_cast<CUdeviceptr>(report); }

// Times the blocks of one round. A block goes through queue, open, end, collect. While it is timed the host queues
// nothing: a block of 8-byte copies with another one queued behind it takes 2.3 us a message instead of 2.5, read ones
// 9 instead of 13 [2 × H200]. The next block is queued while the last is verified.
class CopyTimer {
 public:
  CopyTimer(Gpus& gpus, const CopyRound& round)
      : gpus_(gpus),
        round_(round),
        scopes_(plan_routes(gpus, round)),
        ways_(most_ways(scopes_)),
        limit_(smallest_buffer(gpus, round)),
        times_(round.groups.size()) {
    for (const Scope& scope : scopes_) threads_.push_back(gpus.position(*scope.routes.front().issuer));
  }

  Times run() {
    try {
      run_blocks();
    } catch (const HangError&) {
      throw;  // waiting again would take as long
    } catch (...) {
      settle();
      throw;
    }
    return std::move(times_);
  }

 private:
  struct Block {
    bool timed;
    std::size_t turn;
    Slots slots;
  };

  std::uint64_t block_bytes() const { return round_.bytes * static_cast<std::uint64_t>(round_.iterations) * ways_; }
  void wake_links();
  void run_blocks();
  void queue(const Block& block, Gate& gate);
  void queue(const Scope& scope, const Block& block, Gate& gate);
  void queue_poison(const Gpu& keeper, const Scope& scope, const Block& block);
  void queue_copies(const Route& route, const Block& block, Gate& gate);
  void queue_ends(const Scope& scope, const Block& block);
  void queue_verify(const Gpu& keeper, const Scope& scope, const Block& block);
  void copy_all(const Route& route, const Slots& slots);
  void copy(const Route& route, std::uint64_t offset, std::uint64_t bytes);
  void launch_copy(const Route& route, const Slots& slots, std::uint32_t messages);
  template <class Work>
  void on(const Gpu& gpu, const Work& work);
  void await_end(const Block& block);
  void collect(std::optional<Block>& running);
  void check_data(const Block& block);
  void note_times(const Block& block);
  void settle() noexcept;

  Gpus& gpus_;
  const CopyRound& round_;
  std::vector<Scope> scopes_;
  std::vector<int> threads_;  // of the crew, by scope: no GPU is in two of them
  unsigned ways_;
  std::size_t limit_;
  Times times_;
};

void CopyTimer::wake_links() {
  const std::uint64_t bytes = std::min<std::uint64_t>(kLinkWakingBytes, gpus_.spare_offset(limit_));
  for (const Scope& scope : scopes_)
    for (const Route& route : scope.routes)
      if (!route.staged) on(*route.issuer, [&] { copy(route, 0, bytes); });
  for (const Scope& scope : scopes_)
    for (const Route& route : scope.routes) gpus_.wait(*route.issuer, route.lane->stream, round_.deadline);
}

void CopyTimer::run_blocks() {
  // This thread asks about events, perhaps without having queued any: such calls may want a context.
  if (!scopes_.empty()) scopes_.front().keepers.front()->context.make_current();
  std::optional<Block> running;
  for (int i = -round_.warmup; i < round_.blocks; ++i) {
    if (block_bytes() > kSmallBlock) collect(running);
    const Slots slots = gpus_.next_slots(round_.bytes, round_.iterations, round_.shift, ways_, limit_);
    if (i == -round_.warmup) wake_links();
    const Block block{i >= 0, static_cast<std::size_t>(i + round_.warmup) % kTurns, slots};
    Gate gate(gpus_);
    queue(block, gate);
    collect(running);
    for (const Scope& scope : scopes_)  // or one transfer would start while another's memory is still poisoned
      for (const Gpu* keeper : scope.keepers) gpus_.wait(*keeper, keeper->poisoned[block.turn], round_.deadline);
    gate.open();
    await_end(block);
    running = block;
  }
  collect(running);
}

// One scope a thread: 18 driver calls a link, one link after another, took longer than a small block's copies (two
// blocks on two links 140 to 250 us [4 × H200]). A scope alone is queued here, without a hand-over.
void CopyTimer::queue(const Block& block, Gate& gate) {
  if (scopes_.size() == 1) return queue(scopes_.front(), block, gate);
  gpus_.crew().run(threads_, [&](std::size_t i) { queue(scopes_[i], block, gate); });
}

void CopyTimer::queue(const Scope& scope, const Block& block, Gate& gate) {
  for (const Gpu* keeper : scope.keepers) on(*keeper, [&] { queue_poison(*keeper, scope, block); });
  for (const Route& route : scope.routes) on(*route.issuer, [&] { queue_copies(route, block, gate); });
  queue_ends(scope, block);
  for (const Gpu* keeper : scope.keepers) on(*keeper, [&] { queue_verify(*keeper, scope, block); });
}

// Does it with the GPU's context current. Errors name the GPU.
template <class Work>
void CopyTimer::on(const Gpu& gpu, const Work& work) try {
  gpu.context.make_current();
  work();
} catch (DeviceError& error) {
  error.position = gpus_.position(gpu);
  throw;
}

// Makes every byte that the block will write wrong.
void CopyTimer::queue_poison(const Gpu& keeper, const Scope& scope, const Block& block) {
  for (const Route& route : scope.routes) {
    if (route.keeper != &keeper) continue;
    Slots slots = block.slots.way(route.way);
    CUdeviceptr target = route.target.buffer;
    std::uint64_t seed = route.seed;
    std::uint32_t invert = 1;
    void* arguments[] = {&target, &slots.base, &slots.stride, &slots.bytes, &seed, &invert};
    Gpus::launch_on(keeper, keeper.stream.get(), Kernel::fill, gpus_.grid(keeper, Kernel::fill, slots.bytes / 8),
                    slots.count, arguments);
  }
  CUDA_CHECK(cuEventRecord, keeper.poisoned[block.turn].get(), keeper.stream.get());
}

void CopyTimer::queue_copies(const Route& route, const Block& block, Gate& gate) {
  const Lane& lane = *route.lane;
  if (lane.stream != route.keeper->stream.get())
    CUDA_CHECK(cuStreamWaitEvent, lane.stream, route.keeper->poisoned[block.turn].get(), 0u);
  if (route.staged) {
    // Before the gate: on its first staged copy the driver makes buffers, for which it may wait for the device.
    copy(route, gpus_.spare_offset(limit_), kWakingBytes);
    if (block_bytes() > kSmallBlock) gate.open();
  }
  gate.hold(*route.issuer, lane.stream);
  for (int i = 0; i < kWakingCopies && !route.staged; ++i) copy(route, gpus_.spare_offset(limit_), kWakingBytes);
  if (route.lane == route.first)
    CUDA_CHECK(cuEventRecord, lane.start[block.turn].get(), lane.stream);
  else
    CUDA_CHECK(cuStreamWaitEvent, lane.stream, route.first->start[block.turn].get(), 0u);
  copy_all(route, block.slots.way(route.way));
}

// A group is timed from one common start to one common end, as nvbandwidth's totals are. By its own two events each of
// three messages that one copy engine sends in turn seems to have a third of the time: the engine's waking copy, and so
// the start, waits there behind the others' messages [1187 GB/s over a port of 450, 4 × H200].
void CopyTimer::queue_ends(const Scope& scope, const Block& block) {
  for (const Route& route : scope.routes) {
    if (route.lane == route.first) continue;
    on(*route.issuer, [&] { CUDA_CHECK(cuEventRecord, route.lane->end[block.turn].get(), route.lane->stream); });
  }
  for (const Route& route : scope.routes) {
    if (route.lane != route.first) continue;
    on(*route.issuer, [&] {
      for (const Route& other : scope.routes)
        if (other.first == route.lane && other.lane != route.lane)
          CUDA_CHECK(cuStreamWaitEvent, route.lane->stream, other.lane->end[block.turn].get(), 0u);
      CUDA_CHECK(cuEventRecord, route.lane->end[block.turn].get(), route.lane->stream);
    });
  }
}

void CopyTimer::copy_all(const Route& route, const Slots& slots) {
  if (round_.engine == Engine::multiprocessors && slots.bytes >= kLooped)
    return launch_copy(route, slots, static_cast<std::uint32_t>(round_.iterations));
  for (int i = 0; i < round_.iterations; ++i) copy(route, slots.offset(i), slots.bytes);
}

void CopyTimer::copy(const Route& route, std::uint64_t offset, std::uint64_t bytes) {
  if (round_.engine == Engine::multiprocessors) return launch_copy(route, {offset, 0, bytes, 1}, 1);
  const CUstream stream = route.lane->stream;
  const CUdeviceptr source = route.source.buffer + offset, target = route.target.buffer + offset;
  if (route.source.context == nullptr) {
    CUDA_CHECK(cuMemcpyHtoDAsync_v2, target, reinterpret_cast<const void*>(source), bytes, stream);
  } else if (route.target.context == nullptr) {
    CUDA_CHECK(cuMemcpyDtoHAsync_v2, reinterpret_cast<void*>(target), source, bytes, stream);
  } else {
    CUDA_CHECK(cuMemcpyPeerAsync, target, route.target.context, source, route.source.context, bytes, stream);
  }
}

void CopyTimer::launch_copy(const Route& route, const Slots& slots, std::uint32_t messages) {
  const Gpu& issuer = *route.issuer;
  const unsigned all =
      slots.bytes >= kLooped ? issuer.multiprocessors : gpus_.grid(issuer, Kernel::copy, slots.bytes / 16);
  const unsigned blocks = std::max(1u, all / route.sharing);
  CUdeviceptr source = route.source.buffer + slots.base, target = route.target.buffer + slots.base;
  std::uint64_t bytes = slots.bytes, stride = slots.stride;
  std::uint32_t count = slots.count;
  void* arguments[] = {&target, &source, &bytes, &stride, &count, &messages};
  Gpus::launch_on(issuer, route.lane->stream, Kernel::copy, blocks, 1, arguments);
}

// Behind all copies of the scope: what verifies early would slow down what is still timed.
void CopyTimer::queue_verify(const Gpu& keeper, const Scope& scope, const Block& block) {
  const CUstream stream = keeper.stream.get();
  for (const Route& route : scope.routes)
    if (route.lane->stream != stream) CUDA_CHECK(cuStreamWaitEvent, stream, route.lane->end[block.turn].get(), 0u);
  for (const Route& route : scope.routes) {
    if (route.keeper != &keeper) continue;
    Slots slots = block.slots.way(route.way);
    CUdeviceptr target = route.target.buffer, report = to_device(route.lane->report(block.turn));
    std::uint64_t seed = route.seed;
    *route.lane->report(block.turn) = Report{0, ~0ull, 0, 0};
    void* arguments[] = {&target, &slots.base, &slots.stride, &slots.bytes, &seed, &report};
    Gpus::launch_on(keeper, stream, Kernel::verify, gpus_.grid(keeper, Kernel::verify, slots.bytes / 8), slots.count,
                    arguments);
  }
  CUDA_CHECK(cuEventRecord, keeper.verified[block.turn].get(), stream);
}

void CopyTimer::await_end(const Block& block) {
  for (const Scope& scope : scopes_)
    // So that an issuer's failure is told as its own: the first lane's end waits for the others'.
    for (auto route = scope.routes.rbegin(); route != scope.routes.rend(); ++route)
      gpus_.wait(*route->issuer, route->lane->end[block.turn], round_.deadline);
  Gate::check(gpus_);
}

// Waits until the block before is verified, if there is one, checks its data and keeps its times.
void CopyTimer::collect(std::optional<Block>& running) {
  if (!running) return;
  const Block block = *running;
  running.reset();
  for (const Scope& scope : scopes_)
    for (const Gpu* keeper : scope.keepers) gpus_.wait(*keeper, keeper->verified[block.turn], round_.deadline);
  check_data(block);
  if (block.timed) note_times(block);
}

void CopyTimer::check_data(const Block& block) {
  for (const Scope& scope : scopes_)
    for (const Route& route : scope.routes) {
      const Report found = *route.lane->report(block.turn);
      if (found.wrong == 0) {
        Coverage& coverage = times_.coverage[static_cast<std::size_t>(route.group)];
        coverage.moved += block.slots.bytes * static_cast<std::uint64_t>(round_.iterations);
        coverage.verified += block.slots.bytes * block.slots.count;
        continue;
      }
      // Packed by kernels.cu's verify: offset in the buffer, expected byte, found byte.
      const std::uint64_t offset = (found.first >> 16) - block.slots.way(route.way).base;
      throw DataError(route.group, route.index, offset % block.slots.stride, found.wrong,
                      static_cast<double>(found.first >> 8 & 0xff), static_cast<double>(found.first & 0xff));
    }
}

void CopyTimer::note_times(const Block& block) {
  for (const Scope& scope : scopes_)
    for (const Route& route : scope.routes)
      if (route.lane == route.first)
        times_.seconds[static_cast<std::size_t>(route.group)].push_back(
            elapsed_seconds(route.lane->start[block.turn], route.lane->end[block.turn]) / round_.iterations);
}

// After a failure: what is still queued must not write into a later round.
void CopyTimer::settle() noexcept {
  try {
    for (const Scope& scope : scopes_)
      for (const Route& route : scope.routes) {
        gpus_.wait(*route.issuer, route.lane->stream, round_.deadline);
        gpus_.wait(*route.keeper, round_.deadline);
      }
  } catch (const DeviceError&) {
    // A GPU that fails here runs nothing any more. The first failure is the one to tell.
  }
}

}  // namespace

Times time_copies(Gpus& gpus, const CopyRound& round) { return CopyTimer(gpus, round).run(); }

}  // namespace collbench
