#include "device_threads.hpp"

#include <numeric>

#include "polling.hpp"

namespace collbench {
namespace {

// Longer than what the host does between two batches of a step; waking a sleeping thread takes some 50 us.
constexpr double kSpinSeconds = 2e-3;
// How long the other threads of a failed job have to return: those that wait for streams or for each other see the
// failure at once, and their other calls take milliseconds.
constexpr std::chrono::seconds kGrace{1};
// Time from the start of a wait to its first check, and from one check to the next. Most batches end before the first.
constexpr std::chrono::milliseconds kCheckInterval{1};

// Returns once `ready()`: polls it for a while, then sleeps until `signal`. Whoever makes it ready holds the mutex.
template <class Ready>
void spin_then_sleep(std::mutex& mutex, std::condition_variable& signal, const Ready& ready) {
  if (poll(ready, kSpinSeconds)) return;
  std::unique_lock<std::mutex> lock(mutex);
  signal.wait(lock, ready);
}

}  // namespace

void DeleteUnlessStuck::operator()(DeviceThreads* threads) const {
  if (!threads->stuck()) delete threads;
}

DeviceThreads::DeviceThreads(Gpus& gpus) {
  for (int position = 0; position < static_cast<int>(gpus.size()); ++position)
    workers_.push_back(std::make_unique<Worker>(*this, gpus[position]));
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
  const auto all_returned = [this] { return unfinished_ == 0; };
  spin_then_sleep(mutex_, finished_, [&] { return all_returned() || failed_; });
  if (!all_returned()) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!finished_.wait_for(lock, kGrace, all_returned)) {
      lock.unlock();
      stuck_ = abandon(positions);
    }
  }
  const bool thrown = failed_;
  if (!stuck_) failed_ = false;  // or the owner's next waits would throw Abandoned
  if (thrown) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Abandons the threads that are in library calls, and waits for all others to return or to enter one: they may use what
// the job refers to until then. Returns whether it abandoned any.
bool DeviceThreads::abandon(const std::vector<int>& positions) {
  std::size_t abandoned = 0;
  poll([&] {
    for (const int position : positions) {
      auto expected = Whereabouts::library_call;
      std::atomic<Whereabouts>& whereabouts = workers_[static_cast<std::size_t>(position)]->whereabouts;
      if (whereabouts.compare_exchange_strong(expected, Whereabouts::abandoned)) ++abandoned;
    }
    return unfinished_ <= abandoned;
  });
  return abandoned > 0;
}

void DeviceThreads::run_on_all(const Work& work) {
  std::vector<int> positions(workers_.size());
  std::iota(positions.begin(), positions.end(), 0);
  run(positions, work);
}

void DeviceThreads::wait(const Gpu& gpu, double deadline_seconds, const Check& check) const {
  auto next_check = Clock::now() + kCheckInterval;
  const auto meanwhile = [&](Clock::time_point now) {
    throw_if_failed();
    if (!check || now < next_check) return;
    check();
    next_check = now + kCheckInterval;
  };
  gpu.wait(gpu.stream(), deadline_seconds, meanwhile);
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
  const std::lock_guard<std::mutex> lock(mutex_);
  worker.work = nullptr;
  if (--unfinished_ == 0) finished_.notify_one();
}

DeviceThreads::Worker::Worker(DeviceThreads& all, Gpu& gpu) : gpu(gpu), thread([this, &all] { serve(all); }) {}

DeviceThreads::Worker::~Worker() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    leaving = true;
  }
  wake.notify_one();
  thread.join();
}

void DeviceThreads::Worker::serve(DeviceThreads& all) {
  collbench::whereabouts = &whereabouts;
  for (;;) {
    spin_then_sleep(mutex, wake, [this] { return work != nullptr || leaving; });
    if (leaving) return;
    try {
      gpu.context.make_current();
      (*work)(index);
    } catch (...) {
      all.fail(gpu.position);
    }
    all.finish(*this);
  }
}

void ThreadBarrier::arrive(const std::function<void()>& last) {
  if (--missing_ == 0) {
    last();
    released_ = true;
    return;
  }
  poll([&] { return released_.load(); }, kNoDeadline, [&](Clock::time_point) { threads_.throw_if_failed(); });
}

}  // namespace collbench
