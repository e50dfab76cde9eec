// Times one round of collectives on communicators that exist.
#pragma once

#include "blocking_kernel.hpp"
#include "collectives.hpp"

namespace collbench {

// One round of one session, timed once. Its functions queue and wait on all ranks of this process at once, each on the
// thread of its GPU.
class CollectiveTimer {
 public:
  CollectiveTimer(CollectiveSession& session, const CollectiveRound& round)
      : session_(session), round_(round), times_(round.groups.size()) {}
  CollectiveTimes run();

 private:
  using Ranks = std::vector<LocalRank>;

  // Calls work(i) for rank i of `ranks`, on the thread of its GPU.
  template <class Work>
  void on_ranks(const Ranks& ranks, const Work& work) {
    std::vector<int> positions;
    for (const LocalRank& rank : ranks) positions.push_back(rank.communicator.position);
    session_.gpus.threads().run(positions, work);
  }
  // On the rank's thread: queues iterations [from, to) of the collective, or the barrier from which ranks of several
  // processes start; waits for all work on the rank's stream.
  void queue(const LocalRank& rank, int from, int to) const;
  void queue_barrier_between_processes(const LocalRank& rank) const;
  void wait(const LocalRank& rank) const;

  void register_memory();
  Ranks local_ranks() const;
  Ranks launch_ranks() const;
  void capture();
  GraphExec capture(const LocalRank& rank) const;
  void wake();
  bool checks_batches() const;
  void check_once();
  void time_batch(int batch);
  void check_data(const std::vector<Report>& reports);
  void count(int collectives, bool checked);
  void time_launches(const Ranks& ranks);
  void time_singles(const Ranks& ranks);

  CollectiveSession& session_;
  const CollectiveRound& round_;
  Ranks ranks_;  // of this process
  // Every message of a batch has a slot of its own; the same for all groups.
  bool own_slots_ = true;
  std::uint64_t seed_ = 0;  // of what the slots were filled with last
  CollectiveTimes times_;
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
  // After the job: throws LateError where a stream went on too early.
  void check() const { BlockingKernel::check_timeout(gpus_); }

 private:
  Gpus& gpus_;
  BlockingKernel blocking_;
  ThreadBarrier queued_;
};

}  // namespace collbench
