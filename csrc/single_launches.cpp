// Plain launches of a collective, each timed on its own: when every rank's stream arrived at it, and when it left.
//
// They run back to back in short bursts. In a training job the host runs ahead of its GPUs, so a launch waits in the
// queue until the GPU reaches it. Here a blocking kernel lets the host run ahead, so that a rank's times show its GPU
// and its links; the launch loop shows what the host costs. The first collective of each burst is not timed: it brings
// the ranks together, also those of other processes, and wakes links that were idle.
//
// Times of different GPUs can be compared because each GPU's own clock (%globaltimer) is related to the host's.
#include <algorithm>

#include "collective_timer.hpp"
#include "polling.hpp"

namespace collbench {
namespace {

// With a stamp on either side of each and the first collective, 31 entries of a queue that must stay shallow
// [docs/method/measuring.md 6].
constexpr int kBurst = 10;
// What a stamp adds to the stream is the median over kChains chains of kChain stamps each.
constexpr int kChain = 30, kChains = 5;
constexpr std::uint32_t kReadings = 300;

// A GPU's clock when the host's steady clock read `host`, within `uncertainty`; `step` is the smallest step by which
// the GPU's clock was seen to move. Nanoseconds.
struct ClockReading {
  std::int64_t gpu = 0;
  std::int64_t host = 0;
  std::int64_t uncertainty = 0;
  std::int64_t step = 0;
};

// Host memory through which the host asks a GPU for the time (kernels.cu, tell_time).
struct Mailbox {
  std::uint32_t asked;
  std::uint64_t step;
  std::uint64_t answers[kReadings];  // 0: none yet
};

// Lets the kernel end at once, also where an exception ends the questions.
struct AllAsked {
  volatile Mailbox* box;
  ~AllAsked() { box->asked = kReadings; }
};

std::int64_t nanoseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// Asks the GPU for the time kReadings times, on its own stream, and returns the answer that took least time: the GPU
// read its clock at some moment between the host's question and the answer's arrival. Called on the GPU's own thread.
// Throws CudaError, HangError past the deadline.
ClockReading read_clock(const DeviceThreads& threads, const Gpu& gpu, double deadline_seconds) {
  const PinnedMemory memory = make_pinned(gpu.context.get(), sizeof(Mailbox));
  auto* box = static_cast<volatile Mailbox*>(memory.get());
  box->asked = 0;
  for (std::uint32_t i = 0; i < kReadings; ++i) box->answers[i] = 0;
  gpu.launch(gpu.stream(), Kernel::tell_time, 1, 1, &box->asked, &box->answers[0], kReadings, kHostTimeoutNanoseconds,
             &box->step);
  const AllAsked released{box};
  ClockReading best;
  for (std::uint32_t i = 0; i < kReadings; ++i) {
    const auto begin = Clock::now();
    box->asked = i + 1;
    const auto answered = [&] { return box->answers[i] != 0; };
    // An answer takes 2 us, before the first of these calls, which would slow it down.
    const auto meanwhile = [&](Clock::time_point) {
      threads.throw_if_failed();
      const CUresult result = library_call(driver().cuStreamQuery)(gpu.stream());
      if (result == kCudaSuccess && !answered())
        throw LateError("GPU " + std::to_string(gpu.ordinal) + " gave up before the host had asked it for the time");
      if (result != kCudaSuccess && result != kCudaNotReady)
        throw_cuda(result, "cuStreamQuery(stream)", __FILE__, __LINE__);
    };
    if (!poll(answered, deadline_seconds, meanwhile))
      throw HangError("GPU " + std::to_string(gpu.ordinal) + " did not report its time in " +
                      std::to_string(deadline_seconds) + " s");
    const std::int64_t sent = nanoseconds(begin), come = nanoseconds(Clock::now());
    const std::int64_t uncertainty = (come - sent + 1) / 2;
    if (i == 0 || uncertainty < best.uncertainty)
      best = {static_cast<std::int64_t>(box->answers[i]), sent + (come - sent) / 2, uncertainty, 0};
  }
  threads.wait(gpu, deadline_seconds);
  best.step = static_cast<std::int64_t>(box->step);
  return best;
}

// The host's time at the GPU's time `gpu`, between two readings, for clocks that drift apart evenly.
std::int64_t on_host(const ClockReading& before, const ClockReading& after, std::int64_t gpu) {
  const auto passed = static_cast<double>(gpu - before.gpu);
  const auto between = static_cast<double>(after.gpu - before.gpu);
  const auto drift = static_cast<double>((after.host - before.host) - (after.gpu - before.gpu));
  const double share = between > 0 ? passed / between : 0;
  return before.host + (gpu - before.gpu) + static_cast<std::int64_t>(drift * share);
}

// Queues the writing of the GPU's time into the stamp at `index`, after holding the stream for `hold` nanoseconds.
void queue_stamp(const Gpu& gpu, int index, std::uint64_t hold) {
  gpu.launch(gpu.stream(), Kernel::stamp, 1, 1,
             gpu.stamps.slots.get() + static_cast<std::uint64_t>(index) * sizeof(std::uint64_t), hold);
}

// Makes room for this many bytes of stamps. Called on the GPU's own thread, while the GPU is idle.
void reserve_stamps(Gpu& gpu, std::size_t bytes) {
  if (gpu.stamps.bytes >= bytes) return;
  gpu.stamps = {make_memory(gpu.context.get(), bytes), make_pinned(gpu.context.get(), bytes), bytes};
}

const std::uint64_t* stamps_of(const Gpu& gpu) { return static_cast<const std::uint64_t*>(gpu.stamps.read.get()); }

// A rank's clock before and after its launches, how long its stream is held, and what its stamps cost, in nanoseconds.
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

void CollectiveTimer::time_singles(const Ranks& ranks) {
  std::vector<Stamped> all(ranks.size());
  const int stamps = 2 * round_.single_launches;
  const auto copy_back = [&](std::size_t i, int count) {
    const Gpu& gpu = *ranks[i].gpu;
    const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(std::uint64_t);
    CUDA_CHECK(cuMemcpyDtoHAsync_v2, gpu.stamps.read.get(), gpu.stamps.slots.get(), bytes, gpu.stream());
    wait(ranks[i]);
  };
  // One GPU after another: hosts with few cores answer several GPUs more slowly, each by a different time.
  const auto read = [&](std::size_t i) {
    ClockReading reading;
    on_ranks({ranks[i]},
             [&](std::size_t) { reading = read_clock(session_.gpus.threads(), *ranks[i].gpu, round_.deadline); });
    return reading;
  };
  // Queues work for each rank, lets all start at once, and waits for them.
  const auto burst = [&](const auto& queue_burst) {
    CommonStart start(session_.gpus, ranks.size());
    on_ranks(ranks, [&](std::size_t i) {
      start.block(ranks[i]);
      queue_burst(i);
      start.queued();
      wait(ranks[i]);
    });
    start.check();
  };
  on_ranks(ranks, [&](std::size_t i) {
    const std::size_t bytes = static_cast<std::size_t>(std::max(stamps, kChain * kChains)) * sizeof(std::uint64_t);
    reserve_stamps(*ranks[i].gpu, bytes);
    const Group& group = round_.groups[ranks[i].group];
    if (group[static_cast<std::size_t>(ranks[i].communicator.rank)] == round_.hold_rank)
      all[i].hold = round_.hold_nanoseconds;
    // A communicator's first call connects its ranks, which must not happen behind a blocking kernel.
    queue(ranks[i], 0, std::max(round_.launch_warmup, 1));
    wait(ranks[i]);
  });
  for (std::size_t i = 0; i < ranks.size(); ++i) all[i].before = read(i);
  for (int chain = 0; chain < kChains; ++chain)
    burst([&](std::size_t i) {
      for (int stamp = 0; stamp < kChain; ++stamp) queue_stamp(*ranks[i].gpu, chain * kChain + stamp, 0);
    });
  on_ranks(ranks, [&](std::size_t i) {
    copy_back(i, kChain * kChains);
    all[i].cost = cost_of(stamps_of(*ranks[i].gpu));
  });
  for (int first = 0; first < round_.single_launches; first += kBurst)
    burst([&](std::size_t i) {
      queue(ranks[i], first, first + 1);
      for (int launch = first; launch < std::min(first + kBurst, round_.single_launches); ++launch) {
        queue_stamp(*ranks[i].gpu, 2 * launch, all[i].hold);
        queue(ranks[i], launch, launch + 1);
        queue_stamp(*ranks[i].gpu, 2 * launch + 1, 0);
      }
    });
  on_ranks(ranks, [&](std::size_t i) { copy_back(i, stamps); });
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    Stamped& one = all[i];
    one.after = read(i);
    RankLaunches found{ranks[i].group, ranks[i].communicator.rank, {}, {}, 0, 0, one.cost};
    for (int launch = 0; launch < round_.single_launches; ++launch) {
      const std::uint64_t* pair = stamps_of(*ranks[i].gpu) + 2 * launch;
      found.arrived.push_back(on_host(one.before, one.after, static_cast<std::int64_t>(pair[0])));
      found.left.push_back(on_host(one.before, one.after, static_cast<std::int64_t>(pair[1])));
    }
    found.uncertainty = std::max(one.before.uncertainty, one.after.uncertainty);
    found.step = std::min(one.before.step, one.after.step);
    times_.singles.push_back(std::move(found));
  }
}

}  // namespace collbench
