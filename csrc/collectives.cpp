#include "collectives.hpp"

#include <algorithm>
#include <exception>
#include <future>
#include <limits>
#include <thread>

#include "polling.hpp"

namespace collbench {
namespace {

// Calls that wake links and kernels before a round without untimed batches: an idle link costs the first batch 5 to 10
// % [2 × H200].
constexpr int kWakingCalls = 2;
// Plain launches of a batch that are queued before it may start, as many as single launches [single_launches.cpp]. The
// host then stays ahead of the GPU, and NCCL's queues hold that many without waiting for one to end.
constexpr int kAhead = 10;
// How long to wait for NCCL to abort: it takes milliseconds, or hangs like the call that it aborts.
constexpr std::chrono::seconds kAbort{1};

// In place, the batches' data is not what one collective makes.
bool checks_batches(const CollectiveRound& round) { return round.verify && !round.in_place; }

bool has_result(const LocalRank& rank) { return rank.layout.expected.count > 0; }

Elements all_elements(const LocalRank& rank, unsigned slots) { return {0, rank.layout.expected.count, 0, slots}; }

// Adds the bytes that so many collectives brought to this process's ranks; with `checked`, also those that were
// verified.
void count(const CollectiveRound& round, const std::vector<LocalRank>& ranks, int collectives, bool checked,
           std::vector<Coverage>& coverage) {
  for (const LocalRank& rank : ranks) {
    const std::uint64_t received =
        received_elements(round, rank.communicator.rank, rank.communicator.ranks) * bytes_of(round.dtype);
    const auto messages = static_cast<std::uint64_t>(collectives);
    coverage[rank.group].moved += received * messages;
    if (checked && has_result(rank))
      coverage[rank.group].verified += received * std::min<std::uint64_t>(messages, rank.captured->slots.count);
  }
}

}  // namespace

void Collectives::prepare(const std::vector<Group>& groups) {
  const std::lock_guard<std::mutex> lock(mutex_);
  communicators_.prepare(groups);
}

void Collectives::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  graphs_.clear();  // before the communicators that they use
  registered_.deregister();
  communicators_.close();
  registered_.free();
}

CollectiveTimes Collectives::time(const CollectiveRound& round) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check(round);
  communicators_.prepare(round.groups);
  if (round.launch_iterations > 0 || round.single_launches > 0) communicators_.prepare_launches(round.groups);
  std::exception_ptr seen;
  try {
    return time_all(round);
  } catch (const DeviceError&) {
    seen = std::current_exception();
  }
  try {
    throw_cause(round, seen);
  } catch (const DeviceError&) {
    seen = std::current_exception();
  }
  abort(round);
  std::rethrow_exception(seen);
}

CollectiveTimes Collectives::time_all(const CollectiveRound& round) {
  register_memory(round);
  Ranks ranks = local_ranks(round);
  capture(round, ranks);
  CollectiveTimes times(round.groups.size());
  if (round.verify && round.in_place) check_once(round, ranks, times);
  if (round.warmup == 0) wake(round, ranks);
  for (int batch = -round.warmup; batch < round.batches; ++batch) {
    const std::vector<double> slowest = time_batch(round, ranks, batch == -round.warmup, times);
    if (batch < 0) continue;
    for (const LocalRank& rank : ranks)
      if (times.seconds[rank.group].size() <= static_cast<std::size_t>(batch))
        times.seconds[rank.group].push_back(slowest[rank.group]);
  }
  if (round.launch_iterations > 0) time_launches(round, for_launches(round, ranks), times);
  if (round.single_launches > 0) time_singles(round, for_launches(round, ranks), times);
  communicators_.check(round.groups);
  return times;
}

Collectives::Ranks Collectives::local_ranks(const CollectiveRound& round) {
  Ranks ranks;
  for (std::size_t group = 0; group < round.groups.size(); ++group)
    for (const Communicator& communicator : communicators_[round.groups[group]])
      ranks.push_back({group, &gpus_[communicator.position], communicator,
                       layout_of(round, communicator.rank, communicator.ranks),
                       registered_(round.registration, communicator.position), nullptr});
  return ranks;
}

// Registers with the communicators of the graphs, then with those of the launch loop, in this order on every rank.
void Collectives::register_memory(const CollectiveRound& round) {
  std::vector<Communicator> captured, launched;
  for (const Group& group : round.groups) {
    const std::vector<Communicator>& ours = communicators_[group];
    captured.insert(captured.end(), ours.begin(), ours.end());
    if (round.launch_iterations == 0) continue;
    const std::vector<Communicator>& loops = communicators_.for_launches(group);
    launched.insert(launched.end(), loops.begin(), loops.end());
  }
  registered_.prepare(round.registration, captured, round.deadline);
  registered_.prepare(round.registration, launched, round.deadline);
}

// Gives every rank its graph. Captures missing graphs on all ranks at once, because NCCL's ranks wait for each other
// when they connect. A capture that fails leaves nothing behind.
void Collectives::capture(const CollectiveRound& round, Ranks& ranks) {
  const auto key = [&](std::size_t group) -> GraphKey {
    return {round.groups[group], round.operation,  round.dtype,        reduction_of(round),   round.root,  round.count,
            round.in_place,      round.iterations, round.registration, round.is_plain(group), round.blocks};
  };
  std::map<GraphKey, CapturedGroup> made;
  Ranks missing;
  // For every group, also those of other processes: then all processes give a group the same slots, as windows need.
  for (std::size_t group = 0; group < round.groups.size(); ++group) {
    if (graphs_.count(key(group)) != 0) continue;
    CapturedGroup& captured = made[key(group)];
    captured.slots = gpus_.next_slots(round.bytes(), round.iterations, 0);
    captured.graphs.resize(round.groups[group].size());
  }
  for (LocalRank& rank : ranks) {
    const auto known = made.find(key(rank.group));
    rank.captured = known == made.end() ? &graphs_.at(key(rank.group)) : &known->second;
    if (known != made.end()) missing.push_back(rank);
  }
  if (!missing.empty())
    run(missing, [&](std::size_t i) {
      const auto rank = static_cast<std::size_t>(missing[i].communicator.rank);
      made.at(key(missing[i].group)).graphs[rank] = capture(round, missing[i]);
    });
  graphs_.merge(made);  // moves nodes, so the ranks' pointers stay valid
}

GraphExec Collectives::capture(const CollectiveRound& round, const LocalRank& rank) {
  const Gpu& gpu = *rank.gpu;
  // Once without a graph: on first use NCCL connects and loads its kernels, which must neither happen behind a blocking
  // kernel nor be captured.
  queue_collective(gpus_, nccl_, round, rank, 0);
  if (communicators_.distributed()) queue_barrier(gpus_, nccl_, rank, round.deadline);
  wait(rank, round);
  if (round.is_plain(rank.group)) return {};
  Capture recording(gpu.context.get(), gpu.stream());
  for (int i = 0; i < round.iterations; ++i) queue_collective(gpus_, nccl_, round, rank, i);
  const Graph graph = recording.end();
  CUgraphExec executable = nullptr;
  CUDA_CHECK(cuGraphInstantiateWithFlags, &executable, graph.get(), 0ull);
  GraphExec owner(gpu.context.get(), executable);
  CUDA_CHECK(cuGraphUpload, executable, gpu.stream());
  threads_.wait(gpu, round.deadline);
  return owner;
}

// Calls the same collective on messages of at most kLinkWakingBytes, untimed and unverified.
void Collectives::wake(const CollectiveRound& round, const Ranks& ranks) {
  run(ranks, [&](std::size_t i) {
    LocalRank rank = ranks[i];
    CollectiveRound small = round;
    const auto all = static_cast<std::uint64_t>(rank.communicator.ranks);  // some collectives need equal blocks
    if (round.bytes() > kLinkWakingBytes) small.count = kLinkWakingBytes / bytes_of(round.dtype) / all * all;
    small.blocks = scaled_blocks(round, small.count);
    rank.layout = layout_of(small, rank.communicator.rank, rank.communicator.ranks);
    for (int call = 0; call < kWakingCalls; ++call) queue_collective(gpus_, nccl_, small, rank, 0);
    wait(rank, round);
  });
}

void Collectives::check_once(const CollectiveRound& round, const Ranks& ranks, CollectiveTimes& times) {
  std::vector<Report> reports(ranks.size(), Report{});
  run(ranks, [&](std::size_t i) {
    const LocalRank& rank = ranks[i];
    queue_poison(round, rank, 1);
    queue_fill(round, rank, 1);
    queue_collective(gpus_, nccl_, round, rank, 0);
    if (has_result(rank)) queue_verify(round, rank, all_elements(rank, 1));
    wait(rank, round);
    if (has_result(rank)) reports[i] = rank.gpu->own().report();
  });
  check_data(round, ranks, reports);
  count(round, ranks, 1, true, times.coverage);
}

// Returns the slowest rank's seconds per collective, by group. Each rank's thread queues all work of its batch, waits
// for its own stream and reads its own result.
std::vector<double> Collectives::time_batch(const CollectiveRound& round, const Ranks& ranks, bool first,
                                            CollectiveTimes& times) {
  std::vector<double> seconds(ranks.size(), 0), waits(ranks.size(), 0);
  std::vector<Report> reports(ranks.size(), Report{});
  CommonStart start(gpus_, ranks.size());
  run(ranks, [&](std::size_t i) {
    const LocalRank& rank = ranks[i];
    const unsigned slots = rank.captured->slots.count;
    const bool checked = checks_batches(round) && has_result(rank);
    const bool plain = round.is_plain(rank.group);
    const TimedStream& own = rank.gpu->own();
    const auto launch = [&](int from, int to) {
      for (int call = from; call < to; ++call) queue_collective(gpus_, nccl_, round, rank, call);
    };
    if (first) queue_fill(round, rank, slots);
    if (checked) queue_poison(round, rank, slots);
    start.block(rank);
    if (communicators_.distributed()) {
      CUDA_CHECK(cuEventRecord, own.arrived.get(), own.get());
      queue_barrier(gpus_, nccl_, rank, round.deadline);
    }
    const int ahead = plain ? std::min(kAhead, round.iterations) : round.iterations;
    CUDA_CHECK(cuEventRecord, own.start.get(), own.get());
    if (plain) {
      launch(0, ahead);
    } else {
      const GraphExec& graph = rank.captured->graphs[static_cast<std::size_t>(rank.communicator.rank)];
      CUDA_CHECK(cuGraphLaunch, graph.get(), own.get());
    }
    const bool more = ahead < round.iterations;
    if (!more) CUDA_CHECK(cuEventRecord, own.end.get(), own.get());
    // A blocked stream may not accept one verification for each peer: these are queued when it runs.
    const bool later = more || !rank.layout.peers.empty();
    if (checked && !later) queue_verify(round, rank, all_elements(rank, slots));
    start.queued();
    if (more) {
      launch(ahead, round.iterations);
      CUDA_CHECK(cuEventRecord, own.end.get(), own.get());
    }
    if (checked && later) queue_verify(round, rank, all_elements(rank, slots));
    wait(rank, round);
    seconds[i] = elapsed_seconds(own.start, own.end) / round.iterations;
    if (communicators_.distributed()) waits[i] = elapsed_seconds(own.arrived, own.start);
    if (checked) reports[i] = own.report();
  });
  start.check();
  check_data(round, ranks, reports);
  count(round, ranks, round.iterations, checks_batches(round), times.coverage);
  std::vector<double> slowest(round.groups.size(), 0);
  for (std::size_t i = 0; i < ranks.size(); ++i)
    slowest[ranks[i].group] = std::max(slowest[ranks[i].group], seconds[i]);
  if (communicators_.distributed()) {
    times.waits.resize(round.groups.size());
    for (std::size_t i = 0; i < ranks.size(); ++i) times.waits[ranks[i].group].push_back(waits[i]);
  }
  return slowest;
}

void Collectives::check_data(const CollectiveRound& round, const Ranks& ranks, const std::vector<Report>& reports) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Report& all = reports[i];
    if (all.wrong == 0) continue;
    // Verifies the first wrong element again, on its own: only then do `expected` and `found` belong to it.
    const std::uint64_t stride = ranks[i].captured->slots.stride, offset = all.first % stride;
    const auto slot = static_cast<unsigned>(all.first / stride);
    Gpu& gpu = *ranks[i].gpu;
    gpu.context.make_current();  // on this thread
    queue_verify(round, ranks[i], {offset / bytes_of(round.dtype), 1, slot, 1});
    threads_.wait(gpu, round.deadline);
    const Report one = gpu.own().report();
    throw DataError(static_cast<int>(ranks[i].group), ranks[i].communicator.rank, offset, all.wrong, one.expected,
                    one.found);
  }
}

// The same ranks, each on its communicator for plain launches.
Collectives::Ranks Collectives::for_launches(const CollectiveRound& round, const Ranks& captured) const {
  Ranks ranks = captured;
  for (LocalRank& rank : ranks)
    for (const Communicator& communicator : communicators_.for_launches(round.groups[rank.group]))
      if (communicator.position == rank.communicator.position) rank.communicator = communicator;
  return ranks;
}

// As nccl-tests' BenchTime with one GPU a thread [2.19.6, common.cu:694]: launches, then polls until all are done.
void Collectives::time_launches(const CollectiveRound& round, const Ranks& ranks, CollectiveTimes& times) {
  std::vector<double> seconds(ranks.size());
  ThreadBarrier start(threads_, ranks.size());
  run(ranks, [&](std::size_t i) {
    const LocalRank& rank = ranks[i];
    const int untimed = std::max(round.launch_warmup, 1);  // a communicator's first call connects its ranks
    for (int call = 0; call < untimed; ++call) queue_collective(gpus_, nccl_, round, rank, call);
    if (communicators_.distributed()) queue_barrier(gpus_, nccl_, rank, round.deadline);
    wait(rank, round);
    start.arrive([] {});
    const auto begin = Clock::now();
    for (int call = 0; call < round.launch_iterations; ++call) queue_collective(gpus_, nccl_, round, rank, call);
    wait(rank, round);
    seconds[i] = std::chrono::duration<double>(Clock::now() - begin).count() / round.launch_iterations;
  });
  std::vector<double> sums(round.groups.size(), 0), counts(round.groups.size(), 0);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    sums[ranks[i].group] += seconds[i];
    counts[ranks[i].group] += 1;
  }
  for (std::size_t group = 0; group < sums.size(); ++group)
    times.launch_seconds.push_back(counts[group] > 0 ? sums[group] / counts[group]
                                                     : std::numeric_limits<double>::quiet_NaN());
}

// Checks the rank's communicator meanwhile: a rank that fails in the background makes the others wait for it.
void Collectives::wait(const LocalRank& rank, const CollectiveRound& round) const {
  threads_.wait(*rank.gpu, round.deadline, [&] { communicators_.check(rank.communicator); });
}

// Throws `seen`. Where that is only a consequence of another rank's failure (nothing arrived, or the other rank has
// exited), throws what that rank's communicator reports.
void Collectives::throw_cause(const CollectiveRound& round, const std::exception_ptr& seen) const {
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
// may hang while it aborts; then only the end of the process helps. Communicators that a stuck thread may use stay as
// they are.
void Collectives::abort(const CollectiveRound& round) {
  if (threads_.stuck() || communicators_.threads().stuck()) return;
  const std::vector<ncclComm_t> released = communicators_.release(round.groups);
  registered_.forget(released);
  auto aborts = [graphs = std::exchange(graphs_, {}), handles = released, end = nccl_.ncclCommAbort]() mutable {
    graphs.clear();
    for (const ncclComm_t handle : handles) end(handle);
  };
  std::packaged_task<void()> task(std::move(aborts));
  const std::future<void> ended = task.get_future();
  std::thread(std::move(task)).detach();
  ended.wait_for(kAbort);
}

}  // namespace collbench
