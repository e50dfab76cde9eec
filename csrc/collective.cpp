#include "collective.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <limits>
#include <thread>

namespace collbench {
namespace {

// What wakes links and kernels before a round without untimed blocks: a link that was idle costs what comes first 170
// us, 5 to 10 % of a block [2 × H200].
constexpr std::uint64_t kWakingBytes = 16 << 20;
constexpr int kWakingCalls = 2;

// In place, the blocks' data is not what one collective makes.
bool checks_blocks(const CollectiveRound& round) { return round.verify && !round.in_place; }

// How long to wait for NCCL to abort: it takes milliseconds, or hangs as what it aborts did.
constexpr std::chrono::seconds kAbort{1};

bool defined(const Part& part) { return part.shape.expected.count > 0; }

}  // namespace

CollectiveTimer::Parts CollectiveTimer::parts_of(const CollectiveRound& round) {
  Parts parts;
  for (std::size_t group = 0; group < round.groups.size(); ++group) {
    const int ranks = static_cast<int>(round.groups[group].size());
    for (const Member& member : communicators_[round.groups[group]])
      parts.push_back({group, ranks, member, shape_of(round, member.rank, ranks), nullptr});
  }
  return parts;
}

// The same ranks, each on its communicator that is never captured.
CollectiveTimer::Parts CollectiveTimer::for_launches(const CollectiveRound& round, Parts parts) const {
  for (Part& part : parts)
    for (const Member& member : communicators_.for_launches(round.groups[part.group]))
      if (member.position == part.member.position) part.member = member;
  return parts;
}

void CollectiveTimer::queue_block(const CollectiveRound& round, const Part& part, Gate& gate) {
  Gpu& gpu = gpus_[part.member.position];
  gate.hold(gpu, gpu.stream.get());
  if (communicators_.distributed()) queue_barrier(gpus_, communicators_.nccl(), part, round.deadline);
  const GraphExec& graph = part.chain->graphs[static_cast<std::size_t>(part.member.rank)];
  CUDA_CHECK(cuEventRecord, gpu.start.get(), gpu.stream.get());
  CUDA_CHECK(cuGraphLaunch, graph.get(), gpu.stream.get());
  CUDA_CHECK(cuEventRecord, gpu.end.get(), gpu.stream.get());
}

// Each rank's thread queues all of its block, waits for its own stream and reads its own result.
std::vector<CollectiveTimer::Outcome> CollectiveTimer::time_block(const CollectiveRound& round, const Parts& parts,
                                                                  bool first) {
  std::vector<Outcome> outcomes(parts.size(), Outcome{0, Report{}});
  Gate gate(gpus_);
  Meeting queued(crew_, parts.size());
  crew_.run(positions_of(parts), [&](std::size_t i) {
    const Part& part = parts[i];
    const unsigned slots = part.chain->slots.count;
    const bool checked = checks_blocks(round) && defined(part);
    Gpu& gpu = gpus_[part.member.position];
    if (first) queue_fill(gpus_, round, part, slots);
    if (checked) queue_poison(gpus_, round, part, slots);
    queue_block(round, part, gate);
    if (checked) queue_verify(gpus_, round, part, all_elements(part, slots));
    queued.arrive([&] { gate.open(); });
    crew_.wait(gpu, round.deadline, look_at(part));
    outcomes[i].seconds = elapsed_seconds(gpu.start, gpu.end) / round.iterations;
    if (checked) outcomes[i].report = gpu.read_report();
  });
  gate.check();
  return outcomes;
}

// Calls the same collective on messages of at most kWakingBytes, which nobody times or reads.
void CollectiveTimer::wake(const CollectiveRound& round, const Parts& parts) {
  crew_.run(positions_of(parts), [&](std::size_t i) {
    Part part = parts[i];
    CollectiveRound small = round;
    const auto ranks = static_cast<std::uint64_t>(part.ranks);  // some share the message out
    if (round.bytes() > kWakingBytes) small.count = kWakingBytes / round.width / ranks * ranks;
    part.shape = shape_of(small, part.member.rank, part.ranks);
    for (int call = 0; call < kWakingCalls; ++call)
      queue_collective(gpus_, communicators_.nccl(), small, part, part.chain->slots.base);
    crew_.wait(gpus_[part.member.position], round.deadline, look_at(part));
  });
}

void CollectiveTimer::check_once(const CollectiveRound& round, const Parts& parts) {
  std::vector<Outcome> outcomes(parts.size(), Outcome{0, Report{}});
  crew_.run(positions_of(parts), [&](std::size_t i) {
    const Part& part = parts[i];
    Gpu& gpu = gpus_[part.member.position];
    queue_poison(gpus_, round, part, 1);
    queue_fill(gpus_, round, part, 1);
    queue_collective(gpus_, communicators_.nccl(), round, part, part.chain->slots.base);
    if (defined(part)) queue_verify(gpus_, round, part, all_elements(part, 1));
    crew_.wait(gpu, round.deadline, look_at(part));
    if (defined(part)) outcomes[i].report = gpu.read_report();
  });
  check_data(round, parts, outcomes);
}

void CollectiveTimer::check_data(const CollectiveRound& round, const Parts& parts,
                                 const std::vector<Outcome>& outcomes) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Report& all = outcomes[i].report;
    if (all.wrong == 0) continue;
    // That element alone: expected and found belong to it.
    const std::uint64_t stride = parts[i].chain->slots.stride, offset = all.first % stride;
    const auto slot = static_cast<unsigned>(all.first / stride);
    Gpu& gpu = gpus_[parts[i].member.position];
    gpu.context.make_current();  // not in a job of the crew
    queue_verify(gpus_, round, parts[i], {offset / round.width, 1, slot, 1});
    crew_.wait(gpu, round.deadline);
    const Report one = gpu.read_report();
    throw DataError(static_cast<int>(parts[i].group), parts[i].member.rank, offset, all.wrong, one.expected, one.found);
  }
}

// Adds what `collectives` of them brought to this process's ranks; `checked`: and what their slots held was compared.
void CollectiveTimer::count(const CollectiveRound& round, const Parts& parts, int collectives, bool checked,
                            std::vector<Coverage>& coverage) {
  for (const Part& part : parts) {
    const std::uint64_t received = received_elements(round, part.member.rank, part.ranks) * round.width;
    const auto messages = static_cast<std::uint64_t>(collectives);
    coverage[part.group].moved += received * messages;
    if (checked && defined(part))
      coverage[part.group].verified += received * std::min<std::uint64_t>(messages, part.chain->slots.count);
  }
}

// As nccl-tests' BenchTime with one GPU a thread [2.19.6, common.cu:694]: launches, then polls until all are done.
double CollectiveTimer::launch_loop(const CollectiveRound& round, const Part& part, Meeting& start) {
  using Clock = std::chrono::steady_clock;
  const Gpu& gpu = gpus_[part.member.position];
  const Nccl& nccl = communicators_.nccl();
  const Slots& slots = part.chain->slots;
  const Crew::Look look = look_at(part);
  const int untimed = std::max(round.launch_warmup, 1);  // a communicator's first call connects its ranks
  for (int i = 0; i < untimed; ++i) queue_collective(gpus_, nccl, round, part, slots.offset(i));
  if (communicators_.distributed()) queue_barrier(gpus_, nccl, part, round.deadline);
  crew_.wait(gpu, round.deadline, look);
  start.arrive([] {});
  const auto begin = Clock::now();
  for (int i = 0; i < round.launch_iterations; ++i) queue_collective(gpus_, nccl, round, part, slots.offset(i));
  crew_.wait(gpu, round.deadline, look);
  return std::chrono::duration<double>(Clock::now() - begin).count() / round.launch_iterations;
}

void CollectiveTimer::time_launches(const CollectiveRound& round, const Parts& captured, CollectiveTimes& times) {
  const Parts parts = for_launches(round, captured);
  std::vector<double> seconds(parts.size());
  Meeting start(crew_, parts.size());
  crew_.run(positions_of(parts), [&](std::size_t i) { seconds[i] = launch_loop(round, parts[i], start); });
  std::vector<double> sums(round.groups.size(), 0), members(round.groups.size(), 0);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    sums[parts[i].group] += seconds[i];
    members[parts[i].group] += 1;
  }
  for (std::size_t group = 0; group < sums.size(); ++group)
    times.launch_seconds.push_back(members[group] > 0 ? sums[group] / members[group]
                                                      : std::numeric_limits<double>::quiet_NaN());
}

// A rank that fails in the background leaves the others to wait for it.
Crew::Look CollectiveTimer::look_at(const Part& part) const {
  return [this, &part] { communicators_.check(part.member); };
}

// Throws what a rank's communicator says instead of `seen`, where that is only what this failure looks like from
// outside: that nothing came, or that another rank is gone.
void CollectiveTimer::tell_cause(const CollectiveRound& round, const std::exception_ptr& seen) const {
  try {
    std::rethrow_exception(seen);
  } catch (const CudaError&) {
    throw;
  } catch (const NcclError& error) {
    if (error.code == kNcclRemoteError) communicators_.check(round.groups);
    throw;
  } catch (const DeviceError&) {
    communicators_.check(round.groups);
    throw;
  }
}

// Aborts the round's communicators, so that ranks which wait for a failed one end, here and in other processes. NCCL
// may wait in there itself: then the process's end must do. A communicator in which a thread still sits is left alone.
void CollectiveTimer::abandon(const CollectiveRound& round) {
  if (crew_.stuck()) return;
  auto abort = [chains = chains_.release(), communicators = communicators_.release(round.groups),
                end = communicators_.nccl().ncclCommAbort]() mutable {
    chains.clear();
    for (const ncclComm_t communicator : communicators) end(communicator);
  };
  std::packaged_task<void()> task(std::move(abort));
  const std::future<void> ended = task.get_future();
  std::thread(std::move(task)).detach();
  ended.wait_for(kAbort);
}

CollectiveTimes CollectiveTimer::time(const CollectiveRound& round) {
  check(round);
  communicators_.prepare(round.groups);
  if (round.launch_iterations > 0) communicators_.prepare_launches(round.groups);
  std::exception_ptr seen;
  try {
    return time_all(round);
  } catch (const DeviceError&) {
    seen = std::current_exception();
  }
  try {
    tell_cause(round, seen);
  } catch (const DeviceError&) {
    seen = std::current_exception();
  }
  abandon(round);
  std::rethrow_exception(seen);
}

CollectiveTimes CollectiveTimer::time_all(const CollectiveRound& round) {
  Parts parts = parts_of(round);
  chains_.attach(round, parts);
  CollectiveTimes times(round.groups.size());
  if (round.verify && round.in_place) {
    check_once(round, parts);
    count(round, parts, 1, true, times.coverage);
  }
  if (round.warmup == 0) wake(round, parts);
  for (int block = -round.warmup; block < round.blocks; ++block) {
    const std::vector<Outcome> outcomes = time_block(round, parts, block == -round.warmup);
    check_data(round, parts, outcomes);
    count(round, parts, round.iterations, checks_blocks(round), times.coverage);
    if (block < 0) continue;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::vector<double>& seconds = times.seconds[parts[i].group];
      if (seconds.size() <= static_cast<std::size_t>(block)) seconds.push_back(0);
      seconds.back() = std::max(seconds.back(), outcomes[i].seconds);
    }
  }
  if (round.launch_iterations > 0) time_launches(round, parts, times);
  communicators_.check(round.groups);
  return times;
}

}  // namespace collbench
