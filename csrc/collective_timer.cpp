#include "collective_timer.hpp"

#include <algorithm>
#include <limits>

#include "polling.hpp"

namespace collbench {
namespace {

// Calls that wake links and kernels before a round without untimed batches: an idle link costs the first batch 5 to 10
// % [2 × H200].
constexpr int kWakingCalls = 2;
// Plain launches of a batch that are queued before it may start, as many as single launches [single_launches.cpp]. The
// host then stays ahead of the GPU, and NCCL's queues hold that many without waiting for one to end.
constexpr int kAhead = 10;
bool has_result(const LocalRank& rank) { return rank.layout.expected.count > 0; }

Elements all_elements(const LocalRank& rank, unsigned slots) { return {0, rank.layout.expected.count, 0, slots}; }

}  // namespace

CollectiveTimes CollectiveTimer::run() {
  register_memory();
  ranks_ = local_ranks();
  capture();
  if (round_.verify && !own_slots_) check_once();
  if (round_.warmup == 0) wake();
  for (int batch = -round_.warmup; batch < round_.batches; ++batch) time_batch(batch);
  if (round_.launch_iterations > 0) time_launches(launch_ranks());
  if (round_.single_launches > 0) time_singles(launch_ranks());
  session_.communicators.check(round_.groups);
  return std::move(times_);
}

void CollectiveTimer::queue(const LocalRank& rank, int from, int to) const {
  for (int call = from; call < to; ++call) queue_collective(session_.gpus, session_.nccl, round_, rank, call);
}

void CollectiveTimer::queue_barrier_between_processes(const LocalRank& rank) const {
  if (session_.communicators.distributed()) queue_barrier(session_.gpus, session_.nccl, rank, round_.deadline);
}

// Checks the rank's communicator meanwhile: a rank that fails in the background makes the others wait for it.
void CollectiveTimer::wait(const LocalRank& rank) const {
  session_.gpus.threads().wait(*rank.gpu, round_.deadline, [&] { session_.communicators.check(rank.communicator); });
}

// Registers with the communicators of the graphs, then with those of plain launches, in this order on every rank.
void CollectiveTimer::register_memory() {
  std::vector<Communicator> captured, launched;
  for (const Group& group : round_.groups) {
    const std::vector<Communicator>& ours = session_.communicators[group];
    captured.insert(captured.end(), ours.begin(), ours.end());
    if (!round_.launches()) continue;
    const std::vector<Communicator>& loops = session_.communicators.for_launches(group);
    launched.insert(launched.end(), loops.begin(), loops.end());
  }
  session_.registered.prepare(round_.registration, captured, round_.deadline);
  session_.registered.prepare(round_.registration, launched, round_.deadline);
}

CollectiveTimer::Ranks CollectiveTimer::local_ranks() const {
  Ranks ranks;
  for (std::size_t group = 0; group < round_.groups.size(); ++group)
    for (const Communicator& communicator : session_.communicators[round_.groups[group]])
      ranks.push_back({group, &session_.gpus[communicator.position], communicator,
                       layout_of(round_, communicator.rank, communicator.ranks),
                       session_.registered.buffers(round_.registration, communicator.position), nullptr});
  return ranks;
}

// The same ranks, each on its communicator for plain launches.
CollectiveTimer::Ranks CollectiveTimer::launch_ranks() const {
  Ranks ranks = ranks_;
  for (LocalRank& rank : ranks)
    for (const Communicator& communicator : session_.communicators.for_launches(round_.groups[rank.group]))
      if (communicator.position == rank.communicator.position) rank.communicator = communicator;
  return ranks;
}

// Gives every rank its graph. Captures missing graphs on all ranks at once, because NCCL's ranks wait for each other
// when they connect. A capture that fails leaves nothing behind.
void CollectiveTimer::capture() {
  const auto key = [&](std::size_t group) -> GraphKey {
    return {round_.groups[group], round_.operation,       round_.dtype,    reduction_of(round_),
            round_.root,          round_.count,           round_.in_place, round_.iterations,
            round_.registration,  round_.is_plain(group), round_.blocks};
  };
  std::map<GraphKey, CapturedGroup> made;
  Ranks missing;
  // For every group, also those of other processes: then all processes give a group the same slots, as windows need.
  for (std::size_t group = 0; group < round_.groups.size(); ++group) {
    if (session_.graphs.count(key(group)) != 0) continue;
    CapturedGroup& captured = made[key(group)];
    captured.slots = session_.gpus.next_slots(round_.bytes(), round_.iterations);
    captured.graphs.resize(round_.groups[group].size());
  }
  for (LocalRank& rank : ranks_) {
    const auto known = made.find(key(rank.group));
    rank.captured = known == made.end() ? &session_.graphs.at(key(rank.group)) : &known->second;
    if (known != made.end()) missing.push_back(rank);
  }
  if (!missing.empty())
    on_ranks(missing, [&](std::size_t i) {
      const auto rank = static_cast<std::size_t>(missing[i].communicator.rank);
      made.at(key(missing[i].group)).graphs[rank] = capture(missing[i]);
    });
  session_.graphs.merge(made);  // moves nodes, so the ranks' pointers stay valid
  for (std::size_t group = 0; group < round_.groups.size(); ++group)
    own_slots_ = session_.graphs.at(key(group)).slots.count == static_cast<unsigned>(round_.iterations);
}

GraphExec CollectiveTimer::capture(const LocalRank& rank) const {
  const Gpu& gpu = *rank.gpu;
  // Once without a graph: on first use NCCL connects and loads its kernels, which must neither happen behind a blocking
  // kernel nor be captured.
  queue(rank, 0, 1);
  queue_barrier_between_processes(rank);
  wait(rank);
  if (round_.is_plain(rank.group)) return {};
  Capture recording(gpu.context.get(), gpu.stream());
  queue(rank, 0, round_.iterations);
  const Graph graph = recording.end();
  CUgraphExec executable = nullptr;
  CUDA_CHECK(cuGraphInstantiateWithFlags, &executable, graph.get(), 0ull);
  GraphExec owner(gpu.context.get(), executable);
  CUDA_CHECK(cuGraphUpload, executable, gpu.stream());
  session_.gpus.threads().wait(gpu, round_.deadline);
  return owner;
}

// Calls the same collective on messages of at most kLinkWakingBytes, untimed and unverified.
void CollectiveTimer::wake() {
  on_ranks(ranks_, [&](std::size_t i) {
    LocalRank rank = ranks_[i];
    CollectiveRound small = round_;
    const auto all = static_cast<std::uint64_t>(rank.communicator.ranks);  // some collectives need equal blocks
    if (round_.bytes() > kLinkWakingBytes) small.count = kLinkWakingBytes / bytes_of(round_.dtype) / all * all;
    small.blocks = scaled_blocks(round_, small.count);
    rank.layout = layout_of(small, rank.communicator.rank, rank.communicator.ranks);
    for (int call = 0; call < kWakingCalls; ++call) queue_collective(session_.gpus, session_.nccl, small, rank, 0);
    wait(rank);
  });
}

// In place, where messages share a slot, the later ones work on the results of the earlier ones.
bool CollectiveTimer::checks_batches() const { return round_.verify && (own_slots_ || !round_.in_place); }

// Where messages share a slot, the results of the earlier ones are not seen: one collective is checked on its own.
void CollectiveTimer::check_once() {
  std::vector<Report> reports(ranks_.size(), Report{});
  seed_ = session_.next_seed();
  on_ranks(ranks_, [&](std::size_t i) {
    const LocalRank& rank = ranks_[i];
    queue_poison(round_, rank, 1);
    queue_fill(round_, rank, 1, seed_);
    queue(rank, 0, 1);
    if (has_result(rank)) queue_verify(round_, rank, all_elements(rank, 1), seed_);
    wait(rank);
    if (has_result(rank)) reports[i] = rank.gpu->own().report();
  });
  check_data(reports);
  count(1, true);
}

// A group's time is the slowest rank's. Each rank's thread queues all work of its batch, waits for its own stream and
// reads its own result.
void CollectiveTimer::time_batch(int batch) {
  std::vector<double> seconds(ranks_.size(), 0), waits(ranks_.size(), 0);
  std::vector<Report> reports(ranks_.size(), Report{});
  const bool distributed = session_.communicators.distributed();
  // Before every batch: it must not deliver what an earlier one did, and must find the caches as all others do.
  const bool fills = checks_batches() || batch == -round_.warmup;
  if (fills) seed_ = session_.next_seed();
  CommonStart start(session_.gpus, ranks_.size());
  on_ranks(ranks_, [&](std::size_t i) {
    const LocalRank& rank = ranks_[i];
    const unsigned slots = rank.captured->slots.count;
    const bool checked = checks_batches() && has_result(rank);
    const bool plain = round_.is_plain(rank.group);
    const TimedStream& own = rank.gpu->own();
    if (checked) queue_poison(round_, rank, slots);
    if (fills) queue_fill(round_, rank, slots, seed_);
    start.block(rank);
    if (distributed) CUDA_CHECK(cuEventRecord, own.arrived.get(), own.get());
    queue_barrier_between_processes(rank);
    const int ahead = plain ? std::min(kAhead, round_.iterations) : round_.iterations;
    CUDA_CHECK(cuEventRecord, own.start.get(), own.get());
    if (plain) {
      queue(rank, 0, ahead);
    } else {
      const GraphExec& graph = rank.captured->graphs[static_cast<std::size_t>(rank.communicator.rank)];
      CUDA_CHECK(cuGraphLaunch, graph.get(), own.get());
    }
    const bool more = ahead < round_.iterations;
    if (!more) CUDA_CHECK(cuEventRecord, own.end.get(), own.get());
    // A blocked stream may not accept one verification for each peer: these are queued when it runs.
    const bool later = more || !rank.layout.peers.empty();
    if (checked && !later) queue_verify(round_, rank, all_elements(rank, slots), seed_);
    start.queued();
    if (more) {
      queue(rank, ahead, round_.iterations);
      CUDA_CHECK(cuEventRecord, own.end.get(), own.get());
    }
    if (checked && later) queue_verify(round_, rank, all_elements(rank, slots), seed_);
    wait(rank);
    seconds[i] = elapsed_seconds(own.start, own.end) / round_.iterations;
    if (distributed) waits[i] = elapsed_seconds(own.arrived, own.start);
    if (checked) reports[i] = own.report();
  });
  start.check();
  check_data(reports);
  count(round_.iterations, checks_batches());
  std::map<std::size_t, double> slowest;  // by group, of those with ranks here
  for (std::size_t i = 0; i < ranks_.size(); ++i)
    slowest[ranks_[i].group] = std::max(slowest[ranks_[i].group], seconds[i]);
  for (const auto& [group, its_seconds] : slowest)
    if (batch >= 0) times_.seconds[group].push_back(its_seconds);
  if (!distributed) return;
  times_.waits.resize(round_.groups.size());
  for (std::size_t i = 0; i < ranks_.size(); ++i) times_.waits[ranks_[i].group].push_back(waits[i]);
}

void CollectiveTimer::check_data(const std::vector<Report>& reports) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Report& all = reports[i];
    if (all.wrong == 0) continue;
    // Verifies the first wrong element again, on its own, so that `expected` and `found` belong to it.
    const std::uint64_t stride = ranks_[i].captured->slots.stride, offset = all.first % stride;
    const auto slot = static_cast<unsigned>(all.first / stride);
    Gpu& gpu = *ranks_[i].gpu;
    gpu.context.make_current();  // on this thread
    queue_verify(round_, ranks_[i], {offset / bytes_of(round_.dtype), 1, slot, 1}, seed_);
    session_.gpus.threads().wait(gpu, round_.deadline);
    const Report one = gpu.own().report();
    throw DataError(static_cast<int>(ranks_[i].group), ranks_[i].communicator.rank, offset, all.wrong, one.expected,
                    one.found);
  }
}

// Adds the bytes that this process's ranks received in this number of collectives; with `checked`, also those that were
// verified.
void CollectiveTimer::count(int collectives, bool checked) {
  for (const LocalRank& rank : ranks_) {
    const std::uint64_t received =
        received_elements(round_, rank.communicator.rank, rank.communicator.ranks) * bytes_of(round_.dtype);
    const auto messages = static_cast<std::uint64_t>(collectives);
    times_.coverage[rank.group].moved += received * messages;
    if (checked && has_result(rank))
      times_.coverage[rank.group].verified += received * std::min<std::uint64_t>(messages, rank.captured->slots.count);
  }
}

// As nccl-tests' BenchTime with one GPU a thread [2.19.6, common.cu:694]: launches, then polls until all are done.
void CollectiveTimer::time_launches(const Ranks& ranks) {
  std::vector<double> seconds(ranks.size());
  ThreadBarrier start(session_.gpus.threads(), ranks.size());
  on_ranks(ranks, [&](std::size_t i) {
    const LocalRank& rank = ranks[i];
    queue(rank, 0, std::max(round_.launch_warmup, 1));  // a communicator's first call connects its ranks
    queue_barrier_between_processes(rank);
    wait(rank);
    start.arrive([] {});
    const auto begin = Clock::now();
    queue(rank, 0, round_.launch_iterations);
    wait(rank);
    seconds[i] = std::chrono::duration<double>(Clock::now() - begin).count() / round_.launch_iterations;
  });
  std::vector<double> sums(round_.groups.size(), 0), counts(round_.groups.size(), 0);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    sums[ranks[i].group] += seconds[i];
    counts[ranks[i].group] += 1;
  }
  for (std::size_t group = 0; group < sums.size(); ++group)
    times_.launch_seconds.push_back(counts[group] > 0 ? sums[group] / counts[group]
                                                      : std::numeric_limits<double>::quiet_NaN());
}

}  // namespace collbench
