// Times one collective on one or many disjoint communicators at once.
#pragma once

#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "blocking_kernel.hpp"
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

// One NCCL session on one set of GPUs. Any thread may call it; one call runs at a time, so `prepare` in the background
// delays `time`. It does not delay copies, because they share no changing state.
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
  // What arrives is verified on the GPU, outside the timed region: what every batch leaves in its slots, but in place,
  // where a graph changes its own input, one collective before the batches. Throws DataError, CudaError, NcclError,
  // HangError. After any but a DataError the round's communicators are aborted, and streams or threads may be stuck:
  // the process has to end.
  CollectiveTimes time(const CollectiveRound& round);
  // Drops graphs, registrations and communicators.
  void close();

 private:
  using Ranks = std::vector<LocalRank>;
  // All that shapes a graph: the group, then operation, dtype, reduction, root, count, in_place, iterations,
  // registration, plain and blocks.
  using GraphKey = std::tuple<Group, Collective, Dtype, Reduction, int, std::size_t, bool, int, Registration, bool,
                              std::vector<std::uint64_t>>;

  // Calls work(i) for rank i of `ranks`, each on the thread of its GPU.
  template <class Work>
  void run(const Ranks& ranks, const Work& work) {
    std::vector<int> positions;
    for (const LocalRank& rank : ranks) positions.push_back(rank.communicator.position);
    threads_.run(positions, work);
  }
  // On the rank's thread: waits for all work on its stream.
  void wait(const LocalRank& rank, const CollectiveRound& round) const;

  CollectiveTimes time_all(const CollectiveRound& round);
  Ranks local_ranks(const CollectiveRound& round);
  void register_memory(const CollectiveRound& round);
  void capture(const CollectiveRound& round, Ranks& ranks);
  GraphExec capture(const CollectiveRound& round, const LocalRank& rank);
  void wake(const CollectiveRound& round, const Ranks& ranks);
  void check_once(const CollectiveRound& round, const Ranks& ranks, CollectiveTimes& times);
  std::vector<double> time_batch(const CollectiveRound& round, const Ranks& ranks, bool first, CollectiveTimes& times);
  void check_data(const CollectiveRound& round, const Ranks& ranks, const std::vector<Report>& reports);
  Ranks for_launches(const CollectiveRound& round, const Ranks& captured) const;
  void time_launches(const CollectiveRound& round, const Ranks& ranks, CollectiveTimes& times);
  void time_singles(const CollectiveRound& round, const Ranks& ranks, CollectiveTimes& times);
  void throw_cause(const CollectiveRound& round, const std::exception_ptr& seen) const;
  void abort(const CollectiveRound& round);

  std::mutex mutex_;
  Gpus& gpus_;
  const Nccl& nccl_;
  DeviceThreads& threads_;
  Communicators communicators_;
  RegisteredMemory registered_;
  // Made at the first trial of a data point, kept for all later ones. Groups of other processes have slots only.
  std::map<GraphKey, CapturedGroup> graphs_;
};

// Starts the work of all ranks at once: the thread of each blocks its stream and queues work behind that; when the last
// one has queued, all streams go on.
class CommonStart {
 public:
  CommonStart(Gpus& gpus, std::size_t ranks) : gpus_(gpus), blocking_(gpus), queued_(gpus.threads(), ranks) {}
  void block(const LocalRank& rank) { blocking_.block(*rank.gpu, rank.gpu->stream()); }
  void queued() {
    queued_.arrive([&] { blocking_.unblock(); });
  }
  // After the job: throws HangError where a stream went on too early.
  void check() const { BlockingKernel::check_timeout(gpus_); }

 private:
  Gpus& gpus_;
  BlockingKernel blocking_;
  ThreadBarrier queued_;
};

}  // namespace collbench
