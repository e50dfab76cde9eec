#include "crew.hpp"

#include <chrono>
#include <sstream>

namespace collbench {
namespace {

using Clock = std::chrono::steady_clock;
// Longer than what the host does between two blocks of a step; waking a sleeping thread takes some 50 us.
constexpr std::chrono::milliseconds kSpin{2};
// How long the other threads of a failed job have to come back: those that wait for streams or for each other see the
// failure at once, what they call takes milliseconds.
constexpr std::chrono::seconds kGrace{1};
// Between two looks at what a wait may be in vain for. The first one comes so late, too: most blocks are over by then.
constexpr std::chrono::milliseconds kLook{1};

// Returns once `ready()`: looks again and again for kSpin, then sleeps until `signal`. What makes it ready changes
// under the mutex. Yields: there may be fewer cores than threads.
template <class Ready>
void await(std::mutex& mutex, std::condition_variable& signal, const Ready& ready) {
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

std::string hang_text(const Gpu& gpu, double deadline_seconds) {
  std::ostringstream text;
  text << "GPU " << gpu.ordinal << " did not finish its work in " << deadline_seconds << " s";
  return text.str();
}

}  // namespace

Crew::Crew(Gpus& gpus) {
  for (int position = 0; position < static_cast<int>(gpus.size()); ++position)
    workers_.push_back(std::make_unique<Worker>(*this, gpus[position], position));
}

void Crew::run(const std::vector<int>& positions, const Work& work) {
  if (stuck_) throw HangError("threads are still in calls that were given up: end the process");
  failed_ = false;
  failure_ = nullptr;
  unfinished_ = positions.size();
  for (std::size_t i = 0; i < positions.size(); ++i)
    workers_.at(static_cast<std::size_t>(positions[i]))->give(&work, i);
  const auto all_back = [this] { return unfinished_ == 0; };
  await(mutex_, finished_, [&] { return all_back() || failed_; });
  if (!all_back()) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!finished_.wait_for(lock, kGrace, all_back)) give_up(positions);
  }
  const bool thrown = failed_;
  if (!stuck_) failed_ = false;  // what the owner does next is no part of the failed job
  if (thrown) std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Called with the lock held, which finish_one() takes: who has not finished by now never does.
void Crew::give_up(const std::vector<int>& positions) {
  for (const int position : positions) {
    Worker& worker = *workers_[static_cast<std::size_t>(position)];
    worker.given_up = worker.work != nullptr;
  }
  stuck_ = true;
}

void DisposeCrew::operator()(Crew* crew) const {
  if (!crew->stuck()) delete crew;
}

void Crew::wait(const Gpu& gpu, double deadline_seconds, const Look& look) const {
  const auto begin = Clock::now();
  auto next_look = begin + kLook;
  for (;;) {
    const CUresult result = came_back(driver().cuStreamQuery(gpu.stream.get()));
    if (result == kCudaSuccess) return;
    if (result != kCudaNotReady) throw_cuda(result, "cuStreamQuery(stream)", __FILE__, __LINE__);
    if (failed_) throw Abandoned();
    const auto now = Clock::now();
    if (look && now >= next_look) {
      look();
      next_look = now + kLook;
    }
    if (std::chrono::duration<double>(now - begin).count() > deadline_seconds)
      throw HangError(hang_text(gpu, deadline_seconds));
    std::this_thread::yield();
  }
}

// Called in a catch clause: keeps the first exception of the job.
void Crew::fail(int position) noexcept {
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

void Crew::finish_one(Worker& worker) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    worker.work = nullptr;
    if (!worker.given_up && --unfinished_ == 0) finished_.notify_one();
  }
  stay_if_given_up();
}

Crew::Worker::Worker(Crew& crew, Gpu& gpu, int position)
    : gpu(gpu), position(position), thread([this, &crew] { serve(crew); }) {}

Crew::Worker::~Worker() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    leaving = true;
  }
  wake.notify_one();
  thread.join();
}

void Crew::Worker::give(const Work* job, std::size_t index) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    share = index;
    work = job;
  }
  wake.notify_one();
}

void Crew::Worker::serve(Crew& crew) {
  collbench::given_up = &given_up;
  for (;;) {
    await(mutex, wake, [this] { return called(); });
    if (leaving) return;
    perform(crew);
    stay_if_given_up();
    crew.finish_one(*this);
  }
}

void Crew::Worker::perform(Crew& crew) {
  try {
    gpu.context.make_current();
    (*work)(share);
  } catch (...) {
    stay_if_given_up();
    crew.fail(position);
  }
}

void Meeting::arrive(const std::function<void()>& last) {
  if (--missing_ == 0) {
    last();
    released_ = true;
    return;
  }
  while (!released_) {
    stay_if_given_up();
    if (crew_.failed()) throw Abandoned();
    std::this_thread::yield();
  }
}

}  // namespace collbench
