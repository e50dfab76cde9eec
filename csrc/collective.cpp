#include "collective.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

namespace collbench {
namespace {

// In place, the blocks' data is not what one collective makes.
bool checks_blocks(const CollectiveRound& round) { return round.verify && !round.in_place; }

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

void CollectiveTimer::queue_block(const Part& part, Gate& gate) {
  Gpu& gpu = gpus_[part.member.position];
  gate.hold(gpu, gpu.stream.get());
  if (communicators_.distributed()) queue_barrier(gpus_, communicators_.nccl(), part);
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
    queue_block(part, gate);
    if (checked) queue_verify(gpus_, round, part, all_elements(part, slots));
    queued.arrive([&] { gate.open(); });
    crew_.wait(gpu, round.deadline);
    outcomes[i].seconds = elapsed_seconds(gpu.start, gpu.end) / round.iterations;
    if (checked) outcomes[i].report = gpu.read_report();
  });
  gate.check();
  return outcomes;
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
    crew_.wait(gpu, round.deadline);
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

// As nccl-tests' BenchTime with one GPU a thread [2.19.6, common.cu:694]: launches, then polls until all are done.
double CollectiveTimer::launch_loop(const CollectiveRound& round, const Part& part, Meeting& start) {
  using Clock = std::chrono::steady_clock;
  const Gpu& gpu = gpus_[part.member.position];
  const Nccl& nccl = communicators_.nccl();
  const Slots& slots = part.chain->slots;
  for (int i = 0; i < round.launch_warmup; ++i) queue_collective(gpus_, nccl, round, part, slots.offset(i));
  if (communicators_.distributed()) queue_barrier(gpus_, nccl, part);
  crew_.wait(gpu, round.deadline);
  start.arrive([] {});
  const auto begin = Clock::now();
  for (int i = 0; i < round.launch_iterations; ++i) queue_collective(gpus_, nccl, round, part, slots.offset(i));
  crew_.wait(gpu, round.deadline);
  return std::chrono::duration<double>(Clock::now() - begin).count() / round.launch_iterations;
}

void CollectiveTimer::time_launches(const CollectiveRound& round, const Parts& parts, CollectiveTimes& times) {
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

CollectiveTimes CollectiveTimer::time(const CollectiveRound& round) {
  check(round);
  communicators_.prepare(round.groups);
  Parts parts = parts_of(round);
  chains_.attach(round, parts);
  CollectiveTimes times;
  times.seconds.resize(round.groups.size());
  if (round.verify && round.in_place) check_once(round, parts);
  for (int block = -round.warmup; block < round.blocks; ++block) {
    const std::vector<Outcome> outcomes = time_block(round, parts, block == -round.warmup);
    check_data(round, parts, outcomes);
    if (block < 0) continue;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      std::vector<double>& seconds = times.seconds[parts[i].group];
      if (seconds.size() <= static_cast<std::size_t>(block)) seconds.push_back(0);
      seconds.back() = std::max(seconds.back(), outcomes[i].seconds);
    }
  }
  if (round.launch_iterations > 0) time_launches(round, parts, times);
  for (const Group& group : round.groups) communicators_.check(group);
  return times;
}

}  // namespace collbench
