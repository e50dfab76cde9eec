// One thread for each GPU: ranks queue their work at the same time, as the processes of a training job do, and so do
// the links of a round of copies.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "given_up.hpp"
#include "gpus.hpp"

namespace collbench {

// Thrown inside a job where another thread's failure makes going on pointless; Crew::run never lets it out.
struct Abandoned {};

// Threads that live as long as the crew. Between jobs they spin for kSpin, so that the next block starts at once, then
// sleep. One job at a time; the owner calls from one thread at a time.
class Crew {
 public:
  using Work = std::function<void(std::size_t)>;
  explicit Crew(Gpus& gpus);
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Runs work(i) on the thread of GPU positions[i], its context current, for all i at once; returns when all are back.
  // Positions differ. Throws what the first failing thread threw, with that GPU's position in a DeviceError. Threads
  // that are not back soon after a failure sit in a call that waits for the failed one, perhaps for ever: the failure
  // is thrown without them, and no other job can follow.
  void run(const std::vector<int>& positions, const Work& work);

  // Waits for all work on the GPU's stream. Throws HangError past the deadline, Abandoned when another thread of the
  // job has failed: what this stream waits for may then never come. `look` is called again and again meanwhile, every
  // kLook, and may throw.
  using Look = std::function<void()>;
  void wait(const Gpu& gpu, double deadline_seconds, const Look& look = {}) const;
  bool failed() const { return failed_; }
  // Whether threads are still in calls of a job that was given up: DisposeCrew then leaves the crew to the process's
  // end.
  bool stuck() const { return stuck_; }

 private:
  struct Worker {
    Worker(Crew& crew, Gpu& gpu, int position);
    ~Worker();
    void give(const Work* job, std::size_t index);
    void serve(Crew& crew);
    void perform(Crew& crew);
    bool called() const { return work != nullptr || leaving; }

    Gpu& gpu;
    const int position;
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<const Work*> work{nullptr};  // `share` is written before it
    std::atomic<bool> leaving{false};
    std::atomic<bool> given_up{false};  // the job goes on without this thread
    std::size_t share = 0;
    std::thread thread;  // last: it uses the others
  };
  void fail(int position) noexcept;
  void finish_one(Worker& worker);
  void give_up(const std::vector<int>& positions);

  bool stuck_ = false;
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::atomic<std::size_t> unfinished_{0};
  std::vector<std::unique_ptr<Worker>> workers_;  // last: they end before what they use
};

// Where the threads of one job come together once.
class Meeting {
 public:
  Meeting(const Crew& crew, std::size_t members) : crew_(crew), missing_(members) {}
  // Returns in every thread after the last one has come and run its `last`. Throws Abandoned when a thread failed on
  // its way here.
  void arrive(const std::function<void()>& last);

 private:
  const Crew& crew_;
  std::atomic<std::size_t> missing_;
  std::atomic<bool> released_{false};
};

}  // namespace collbench
