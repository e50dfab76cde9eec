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

#include "gpus.hpp"

namespace collbench {

// Thrown inside a job where another thread's failure makes going on pointless; DeviceThreads::run catches it.
struct Abandoned {};

// Threads that live as long as this object. Between jobs they spin for 2 ms, so that the next batch starts at once,
// then sleep. One job at a time; the owner calls from one thread at a time. Owned by OwnedThreads (gpus.hpp), which
// leaves threads that are stuck to the end of the process.
class DeviceThreads {
 public:
  using Work = std::function<void(std::size_t)>;
  explicit DeviceThreads(Gpus& gpus);
  DeviceThreads(const DeviceThreads&) = delete;
  DeviceThreads& operator=(const DeviceThreads&) = delete;

  // Runs work(i) on the thread of GPU positions[i], with its context current, for all i at once; returns when all have
  // returned. No position occurs twice. Throws what the first failing thread threw; a DeviceError then has that GPU's
  // position. Threads that have not returned soon after a failure are in a call that waits for the failed one, perhaps
  // for ever: the failure is thrown without waiting for them, and no further job can run.
  void run(const std::vector<int>& positions, const Work& work);
  // The same on every GPU; work(i) runs on the thread of the GPU at position i.
  void run_on_all(const Work& work);

  // Inside a job: waits for all work on the GPU's own stream. Throws CudaError, HangError past the deadline, and
  // Abandoned when another thread of the job has failed, because this stream may wait for that thread's GPU. `check` is
  // called every millisecond meanwhile, and may throw.
  using Check = std::function<void()>;
  void wait(const Gpu& gpu, double deadline_seconds, const Check& check = {}) const;
  void throw_if_failed() const {
    if (failed_) throw Abandoned();
  }
  // Whether threads are still in calls of an abandoned job.
  bool stuck() const { return stuck_; }

 private:
  struct Worker {
    Worker(DeviceThreads& all, Gpu& gpu);
    ~Worker();
    void serve(DeviceThreads& all);

    Gpu& gpu;
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<const Work*> work{nullptr};  // `index` is written before it
    std::atomic<bool> leaving{false};
    std::atomic<Whereabouts> whereabouts{Whereabouts::our_code};
    std::size_t index = 0;
    std::thread thread;  // last: it uses the others
  };
  void fail(int position) noexcept;
  void finish(Worker& worker);
  bool abandon(const std::vector<int>& positions);

  bool stuck_ = false;
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::atomic<std::size_t> unfinished_{0};
  std::vector<std::unique_ptr<Worker>> workers_;  // by position; last: they end before what they use
};

// Where the threads of one job meet once.
class ThreadBarrier {
 public:
  ThreadBarrier(const DeviceThreads& threads, std::size_t count) : threads_(threads), missing_(count) {}
  // Returns once all threads have arrived and the last one has called its `last`. Throws Abandoned when a thread failed
  // before it arrived.
  void arrive(const std::function<void()>& last);

 private:
  const DeviceThreads& threads_;
  std::atomic<std::size_t> missing_;
  std::atomic<bool> released_{false};
};

}  // namespace collbench
