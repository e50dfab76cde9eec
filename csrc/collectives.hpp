// Times one collective on one or many disjoint communicators at once.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "collective_rank.hpp"
#include "times.hpp"

namespace collbench {

// One rank's single launches, in nanoseconds of the host's steady clock: when its stream came to each, and when it had
// left. `uncertainty` is how far off all of them may be together, `step` the smallest step of the GPU's clock, and
// `cost` what the stamps add to `left - arrived`.
struct RankLaunches {
  std::size_t group;  // in CollectiveRound::groups
  int rank;           // in the group
  std::vector<std::int64_t> arrived;
  std::vector<std::int64_t> left;
  std::int64_t uncertainty;
  std::int64_t step;
  std::int64_t cost;
};

// Seconds per collective, of this process's ranks. `seconds[group][batch]` is device time, the maximum over the ranks:
// launches of a captured graph between events, or plain launches where the round asks for them. `launch_seconds[group]`
// is wall time of a plain launch loop, one thread a GPU, on a communicator that was never captured: the mean over the
// ranks, as in nccl-tests; empty without a loop. A group without ranks here has no batches, and not-a-number for its
// loop. The launch loop's bytes are in no coverage. `waits[group]` are seconds that this process's rank was in the
// barrier before each batch, where there are several processes: the rank that comes last waits least.
struct CollectiveTimes : Times {
  using Times::Times;
  std::vector<std::vector<double>> waits;
  std::vector<double> launch_seconds;
  std::vector<RankLaunches> singles;  // of this process's ranks
};

// One NCCL session on one set of GPUs. Its calls come from any thread, one at a time: `prepare` in the background holds
// up a `time`, but no copies, because it shares no changing state with them.
class Collectives {
 public:
  // Throws std::invalid_argument for a world that this process cannot be part of, or options that NCCL does not have.
  Collectives(Gpus& gpus, const Nccl& nccl, World world, const NcclOptions& options = {})
      : gpus_(gpus),
        nccl_(nccl),
        threads_(gpus.threads()),
        communicators_(gpus, nccl, std::move(world), options),
        registered_(gpus, nccl, communicators_.threads()) {}

  // Makes the groups' communicators, see Communicators::prepare.
  void prepare(const std::vector<Group>& groups);
  // Checks what arrives on the GPU, outside the timed region, and counts it: what every batch leaves in its slots, but
  // in place, where a graph changes its own input, one collective before the batches. Throws DataError, CudaError,
  // NcclError, HangError. After any but a DataError the round's communicators are aborted, and streams or threads may
  // be stuck: end the process.
  CollectiveTimes time(const CollectiveRound& round);
  // Drops graphs, registrations and communicators.
  void close();

 private:
  using Ranks = std::vector<LocalRank>;
  // All that shapes a graph: the group, then operation, dtype, reduction, root, count, in_place, iterations,
  // registration and blocks.
  using GraphKey = std::pair<Group, std::vector<std::uint64_t>>;

  CollectiveTimes time_all(const CollectiveRound& round);
  Ranks local_ranks(const CollectiveRound& round);
  void register_memory(const CollectiveRound& round);
  void capture(const CollectiveRound& round, Ranks& ranks);
  GraphExec capture(const CollectiveRound& round, const LocalRank& rank);
  void wake(const CollectiveRound& round, const Ranks& ranks);
  void check_once(const CollectiveRound& round, const Ranks& ranks, CollectiveTimes& times);
  std::vector<double> time_batch(const CollectiveRound& round, const Ranks& ranks, bool first, CollectiveTimes& times);
  void check_data(const CollectiveRound& round, const Ranks& ranks, const std::vector<Report>& reports);
  void time_launches(const CollectiveRound& round, const Ranks& captured, CollectiveTimes& times);
  void time_singles(const CollectiveRound& round, const Ranks& captured, CollectiveTimes& times);
  void run_blocked(const CollectiveRound& round, const Ranks& ranks, const std::function<void(std::size_t)>& queue);
  Ranks for_launches(const CollectiveRound& round, const Ranks& captured) const;
  double launch_loop(const CollectiveRound& round, const LocalRank& rank, ThreadBarrier& start);
  DeviceThreads::Check check_of(const LocalRank& rank) const;
  void throw_cause(const CollectiveRound& round, const std::exception_ptr& seen) const;
  void abort(const CollectiveRound& round);

  std::mutex mutex_;
  Gpus& gpus_;
  const Nccl& nccl_;
  DeviceThreads& threads_;
  Communicators communicators_;
  RegisteredMemory registered_;
  // Made at the first trial of a data point, kept for all later ones; of groups of other processes their slots alone.
  std::map<GraphKey, CapturedGroup> graphs_;
};

}  // namespace collbench
