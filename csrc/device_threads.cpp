#include "device_threads.hpp"

#include "polling.hpp"

namespace collbench {
namespace {

// Longer than what the host does between two batches of a step; waking a sleeping thread takes some 50 us.
constexpr std::chrono::milliseconds kSpin{2};
// How long the other threads of a failed job have to come back: those that wait for streams or for each other see the
// failure at once, what they call takes milliseconds.
constexpr std::chrono::seconds kGrace{1};
// Between two checks of what a wait may be in vain for. The first one comes so late, too: most batches are over by
// then.
constexpr std::chrono::milliseconds kCheckInterval{1};

// Returns once `ready()`: asks again and again for kSpin, then sleeps until `signal`. What makes it ready changes
// under the mutex. Yields: there may be fewer cores than threads.
template <class Ready>
void spin_then_sleep(std::mutex& mutex, std::condition_variable& signal, const Ready& ready) {
  const auto until = Clock::now() + kSpin;
  while (!ready()) {
    if (Clock::now() < until) {
      std::this_thread::yield();
      continue;
    }
    std::unique_lock<std::mutex> lock(mutex);
    signal.wait(lock, ready);
  }
}

}  // namespace

DeviceThreads::DeviceThreads(Gpus& gpus) {
  for (int position = 0; position < static_cast<int>(gpus.size()); ++position)
    workers_.push_back(std::make_unique<Worker>(*this, gpus[position], position));
}

void DeviceThreads::dispose(DeviceThreads* threads) {
  if (!threads->stuck_) delete threads;
}

void DeviceThreads::run(const std::vector<int>& positions, const Work& work) {
  if (stuck_) throw HangError("threads are still in calls that were given up: end the process");
  failed_ = false;
  failure_ = nullptr;
  unfinished_ = positions.size();
  for (std::size_t i = 0; i < positions.size(); ++i) {
    Worker& worker = *workers_.at(static_cast<std::size_t>(positions[i]));
    {
      const std::lock_guard<std::mutex> lock(worker.mutex);
      worker.index = i;
      worker.work = &work;
    }
    worker.wake.notify_one();
  }
  const auto all_back = [this] { return unfinished_ == 0; };
  spin_then_sleep(mutex_, finished_, [&] { return all_back() || failed_; });
  if (!all_back()) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!finished_.wait_for(lock, kGrace, all_back)) {
      // finish() takes the lock: a thread that has not finished by now never does.
      for (const int position : positions) {
        Worker& worker = *workers_[static_cast<std::size_t>(position)];
        worker.abandoned = worker.work != nullptr;
      }
      stuck_ = true;
    }
  }
  const bool thrown = failed_;
  if (!stuck_) failed_ = false;  // what the owner does next is no part of the failed job
  if (thrown) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void DeviceThreads::wait(const Gpu& gpu, double deadline_seconds, const Check& check) const {
  auto next_check = Clock::now() + kCheckInterval;
  const auto meanwhile = [&](Clock::time_point now) {
    throw_if_failed();
    if (!check || now < next_check) return;
    check();
    next_check = now + kCheckInterval;
  };
  const auto query = [&] { return driver().cuStreamQuery(gpu.stream()); };
  poll_gpu(gpu.ordinal, "cuStreamQuery(stream)", query, meanwhile, deadline_seconds);
}

// Called in a catch clause: keeps the first exception of the job.
void DeviceThreads::fail(int position) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (failed_) return;
  try {
    throw;
  } catch (DeviceError& error) {
    if (error.position < 0) error.position = position;
  } catch (...) {
  }
  failure_ = std::current_exception();
  failed_ = true;
  finished_.notify_one();
}

void DeviceThreads::finish(Worker& worker) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    worker.work = nullptr;
    if (!worker.abandoned && --unfinished_ == 0) finished_.notify_one();
  }
  stay_if_abandoned();
}

DeviceThreads::Worker::Worker(DeviceThreads& all, Gpu& gpu, int position)
    : gpu(gpu), position(position), thread([this, &all] { serve(all); }) {}

DeviceThreads::Worker::~Worker() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    leaving = true;
  }
  wake.notify_one();
  thread.join();
}

void DeviceThreads::Worker::serve(DeviceThreads& all) {
  collbench::abandoned = &abandoned;
  for (;;) {
    spin_then_sleep(mutex, wake, [this] { return work != nullptr || leaving; });
    if (leaving) return;
    try {
      gpu.context.make_current();
      (*work)(index);
    } catch (...) {
      stay_if_abandoned();
      all.fail(position);
    }
    stay_if_abandoned();
    all.finish(*this);
  }
}

void ThreadBarrier::arrive(const std::function<void()>& last) {
  if (--missing_ == 0) {
    last();
    released_ = true;
    return;
  }
  while (!released_) {
    stay_if_abandoned();
    threads_.throw_if_failed();
    std::this_thread::yield();
  }
}

}  // namespace collbench
