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

// Thrown inside a job where another thread's failure makes going on pointless; DeviceThreads::run never lets it out.
struct Abandoned {};

// Threads that live as long as this object. Between jobs they spin for 2 ms, so that the next batch starts at once,
// then sleep. One job at a time; the owner calls from one thread at a time.
class DeviceThreads {
 public:
  using Work = std::function<void(std::size_t)>;
  explicit DeviceThreads(Gpus& gpus);
  DeviceThreads(const DeviceThreads&) = delete;
  DeviceThreads& operator=(const DeviceThreads&) = delete;
  // Deletes them; threads that are stuck are left to the end of the process.
  static void dispose(DeviceThreads* threads);

  // Runs work(i) on the thread of GPU positions[i], its context current, for all i at once; returns when all are back.
  // Positions differ. Throws what the first failing thread threw, with that GPU's position in a DeviceError. Threads
  // that are not back soon after a failure sit in a call that waits for the failed one, perhaps for ever: the failure
  // is thrown without them, and no other job can follow.
  void run(const std::vector<int>& positions, const Work& work);

  // Waits for all work on the GPU's own stream. Throws CudaError, HangError past the deadline, Abandoned when another
  // thread of the job has failed: what this stream waits for may then never come. `check` is called every millisecond
  // meanwhile, and may throw.
  using Check = std::function<void()>;
  void wait(const Gpu& gpu, double deadline_seconds, const Check& check = {}) const;
  void throw_if_failed() const {
    if (failed_) throw Abandoned();
  }
  // Whether threads are still in calls of an abandoned job.
  bool stuck() const { return stuck_; }

 private:
  struct Worker {
    Worker(DeviceThreads& all, Gpu& gpu, int position);
    ~Worker();
    void serve(DeviceThreads& all);

    Gpu& gpu;
    const int position;
    std::mutex mutex;
    std::condition_variable wake;
    std::atomic<const Work*> work{nullptr};  // `index` is written before it
    std::atomic<bool> leaving{false};
    std::atomic<bool> abandoned{false};  // the job goes on without this thread
    std::size_t index = 0;
    std::thread thread;  // last: it uses the others
  };
  void fail(int position) noexcept;
  void finish(Worker& worker);

  bool stuck_ = false;
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::atomic<std::size_t> unfinished_{0};
  std::vector<std::unique_ptr<Worker>> workers_;  // last: they end before what they use
};

// Where the threads of one job meet once.
class ThreadBarrier {
 public:
  ThreadBarrier(const DeviceThreads& threads, std::size_t count) : threads_(threads), missing_(count) {}
  // Returns in every thread after the last one has come and run its `last`. Throws Abandoned when a thread failed on
  // its way here.
  void arrive(const std::function<void()>& last);

 private:
  const DeviceThreads& threads_;
  std::atomic<std::size_t> missing_;
  std::atomic<bool> released_{false};
};

}  // namespace collbench
