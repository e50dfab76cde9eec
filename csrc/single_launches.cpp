// Plain launches of a collective, each timed on its own: when every rank came to it, and when it left.
//
// They run back to back in short bursts. A training job's host runs ahead of its GPUs, so a launch waits in the queue
// until the GPU comes to it; here a blocking kernel lets the host run ahead, so that a rank's times show its GPU
// and its links. What the host costs is the launch loop's to show. The first collective of each burst is not timed: it
// brings the ranks together, also those of other processes, and wakes what slept meanwhile.
#include <algorithm>

#include "blocking_kernel.hpp"
#include "clock_reading.hpp"
#include "collectives.hpp"

namespace collbench {
namespace {

// Ten launches with a stamp on either side, and the first collective, are 31 entries of a queue that stays shallow
// [docs/method.md 3.1].
constexpr int kBurst = 10;
// What a stamp adds to the stream is the median over kChains chains of kChain stamps each.
constexpr int kChain = 30, kChains = 5;

// Queues the writing of the GPU's time into the slot at `index`.
void queue_stamp(const Gpu& gpu, int index, std::uint64_t hold) {
  CUdeviceptr slot = gpu.stamps.slots.get() + static_cast<std::uint64_t>(index) * sizeof(std::uint64_t);
  void* arguments[] = {&slot, &hold};
  Gpus::launch(gpu, gpu.stream(), Kernel::stamp, 1, 1, arguments);
}

// Makes room for so many bytes of stamps, on the GPU's own thread, while it is idle.
void reserve_stamps(Gpu& gpu, std::size_t bytes) {
  if (gpu.stamps.bytes >= bytes) return;
  gpu.stamps = {make_memory(gpu.context.get(), bytes), make_pinned(gpu.context.get(), bytes), bytes};
}

const std::uint64_t* stamps_of(const Gpu& gpu) { return static_cast<const std::uint64_t*>(gpu.stamps.read.get()); }

// The readings of a rank's clock before and after, how long it is held, and what its stamps cost.
struct Stamped {
  ClockReading before, after;
  std::uint64_t hold = 0;
  std::int64_t cost = 0;
};

// Nanoseconds from one stamp to the next: the median of the chains' means.
std::int64_t cost_of(const std::uint64_t* chains) {
  std::vector<std::int64_t> means;
  for (int chain = 0; chain < kChains; ++chain) {
    const std::uint64_t* first = chains + chain * kChain;
    means.push_back(static_cast<std::int64_t>(first[kChain - 1] - first[0]) / (kChain - 1));
  }
  std::nth_element(means.begin(), means.begin() + kChains / 2, means.end());
  return means[kChains / 2];
}

}  // namespace

void Collectives::time_singles(const CollectiveRound& round, const Ranks& captured, CollectiveTimes& times) {
  const Ranks ranks = for_launches(round, captured);
  std::vector<Stamped> all(ranks.size());
  const auto gpu_of = [&](std::size_t i) -> Gpu& { return gpus_[ranks[i].communicator.position]; };
  const int stamps = 2 * round.single_launches;
  const auto copied_back = [&](std::size_t i, int count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::uint64_t);
    const StampMemory& memory = gpu_of(i).stamps;
    CUDA_CHECK(cuMemcpyDtoHAsync_v2, memory.read.get(), memory.slots.get(), bytes, gpu_of(i).stream());
    threads_.wait(gpu_of(i), round.deadline, check_of(ranks[i]));
  };
  // One GPU after another: hosts with few cores answer several more slowly, each by another time.
  const auto reading = [&](std::size_t i) {
    ClockReading read;
    threads_.run({ranks[i].communicator.position},
                 [&](std::size_t) { read = read_clock(gpus_, gpu_of(i), round.deadline); });
    return read;
  };
  threads_.run(positions_of(ranks), [&](std::size_t i) {
    const std::size_t bytes = static_cast<std::size_t>(std::max(stamps, kChain * kChains)) * sizeof(std::uint64_t);
    reserve_stamps(gpu_of(i), bytes);
    const Group& group = round.groups[ranks[i].group];
    if (group[static_cast<std::size_t>(ranks[i].communicator.rank)] == round.hold.rank)
      all[i].hold = round.hold.nanoseconds;
    // A communicator's first call connects its ranks, which must not happen behind a blocking kernel.
    for (int call = 0; call < std::max(round.launch_warmup, 1); ++call)
      queue_collective(gpus_, nccl_, round, ranks[i], ranks[i].captured->slots.offset(call));
    threads_.wait(gpu_of(i), round.deadline, check_of(ranks[i]));
  });
  for (std::size_t i = 0; i < ranks.size(); ++i) all[i].before = reading(i);
  for (int chain = 0; chain < kChains; ++chain)
    run_blocked(round, ranks, [&](std::size_t i) {
      for (int k = 0; k < kChain; ++k) queue_stamp(gpu_of(i), chain * kChain + k, 0);
    });
  threads_.run(positions_of(ranks), [&](std::size_t i) {
    copied_back(i, kChain * kChains);
    all[i].cost = cost_of(stamps_of(gpu_of(i)));
  });
  for (int first = 0; first < round.single_launches; first += kBurst)
    run_blocked(round, ranks, [&](std::size_t i) {
      const Slots& slots = ranks[i].captured->slots;
      queue_collective(gpus_, nccl_, round, ranks[i], slots.offset(first));
      for (int launch = first; launch < std::min(first + kBurst, round.single_launches); ++launch) {
        queue_stamp(gpu_of(i), 2 * launch, all[i].hold);
        queue_collective(gpus_, nccl_, round, ranks[i], slots.offset(launch));
        queue_stamp(gpu_of(i), 2 * launch + 1, 0);
      }
    });
  threads_.run(positions_of(ranks), [&](std::size_t i) { copied_back(i, stamps); });
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Stamped& one = all[i];
    one.after = reading(i);
    RankLaunches found{ranks[i].group, ranks[i].communicator.rank, {}, {}, 0, 0, one.cost};
    for (int launch = 0; launch < round.single_launches; ++launch) {
      const std::uint64_t* pair = stamps_of(gpu_of(i)) + 2 * launch;
      found.arrived.push_back(on_host(one.before, one.after, static_cast<std::int64_t>(pair[0])));
      found.left.push_back(on_host(one.before, one.after, static_cast<std::int64_t>(pair[1])));
    }
    found.uncertainty = std::max(one.before.uncertainty, one.after.uncertainty);
    found.step = std::min(one.before.step, one.after.step);
    times.singles.push_back(std::move(found));
  }
}

// Queues each rank's work behind one blocking kernel, lets all go at once, and waits for them.
void Collectives::run_blocked(const CollectiveRound& round, const Ranks& ranks,
                              const std::function<void(std::size_t)>& queue) {
  BlockingKernel blocking(gpus_);
  ThreadBarrier queued(threads_, ranks.size());
  threads_.run(positions_of(ranks), [&](std::size_t i) {
    const Gpu& gpu = gpus_[ranks[i].communicator.position];
    blocking.block(gpu, gpu.stream());
    queue(i);
    queued.arrive([&] { blocking.unblock(); });
    threads_.wait(gpu, round.deadline, check_of(ranks[i]));
  });
  BlockingKernel::check_timeout(gpus_);
}

}  // namespace collbench
