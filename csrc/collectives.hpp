// Times one collective on one or many disjoint communicators at once.
#pragma once

#include <exception>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "collective_rank.hpp"
#include "times.hpp"

namespace collbench {

// One rank's single launches, in nanoseconds of the host's steady clock: when its stream arrived at each, and when the
// stream had left it. All of them may be off together by `uncertainty`. `step` is the smallest step of the GPU's clock,
// and `cost` what the time stamps add to `left - arrived`.
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
// ranks, as in nccl-tests; empty without a loop. A group without ranks in this process has no batches, and
// not-a-number for its loop. Coverage leaves out the launch loop's bytes. Where there are several processes,
// `waits[group]` has, for each batch, the seconds that this process's rank spent in the barrier before it: the rank
// that arrives last waits least.
struct CollectiveTimes : Times {
  using Times::Times;
  std::vector<std::vector<double>> waits;
  std::vector<double> launch_seconds;
  std::vector<RankLaunches> singles;  // of this process's ranks
};

// All that shapes a graph: the group, then operation, dtype, reduction, root, count, in_place, iterations,
// registration, plain and blocks.
using GraphKey = std::tuple<Group, Collective, Dtype, Reduction, int, std::size_t, bool, int, Registration, bool,
                            std::vector<std::uint64_t>>;

// What the rounds of a session share.
struct CollectiveSession {
  CollectiveSession(Gpus& its_gpus, const Nccl& its_nccl, World world)
      : gpus(its_gpus),
        nccl(its_nccl),
        communicators(gpus, nccl, std::move(world)),
        registered(gpus, nccl, communicators.threads()) {}
  // Seeds far from each other, so that their data has nothing in common.
  std::uint64_t next_seed() { return seed += 0x9e3779b97f4a7c15ull; }

  Gpus& gpus;
  const Nccl& nccl;
  Communicators communicators;
  RegisteredMemory registered;
  // Made at the first trial of a data point, kept for all later ones. Groups of other processes have slots only.
  std::map<GraphKey, CapturedGroup> graphs;
  std::uint64_t seed = 0;  // of the data that was sent last; processes that agree on their rounds agree on it
};

// One NCCL session on one set of GPUs. Any thread may call it; one call runs at a time, so `prepare` in the background
// delays `time`. It does not delay copies, because they share no changing state.
class Collectives {
 public:
  // Throws std::invalid_argument for a world that this process cannot be part of.
  Collectives(Gpus& gpus, const Nccl& nccl, World world) : session_(gpus, nccl, std::move(world)) {}

  // Makes the groups' communicators, see Communicators::prepare.
  void prepare(const std::vector<Group>& groups);
  // What arrives is verified on the GPU, outside the timed region: what every batch leaves in its slots, except that of
  // in-place messages that share a slot; where messages share one, also one collective before the batches. Before each
  // verification the ranks get data that they did not send before [docs/method/collectives.md 4]. Throws DataError,
  // CudaError, NcclError, HangError. After any error but DataError the round's communicators are aborted, and streams
  // or threads may be stuck: the process must end. Ranks of several processes call this for the same rounds, in one
  // order.
  CollectiveTimes time(const CollectiveRound& round);
  // Drops graphs, registrations and communicators.
  void close();

 private:
  std::exception_ptr cause_of(const std::exception_ptr& failure, const CollectiveRound& round) const;
  void abort(const CollectiveRound& round);

  std::mutex mutex_;
  CollectiveSession session_;
};

}  // namespace collbench
