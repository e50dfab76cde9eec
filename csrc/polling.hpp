// The one wait loop. It polls, because a call that blocks could not be given up at a deadline.
#pragma once

#include <chrono>
#include <limits>
#include <thread>

namespace collbench {

using Clock = std::chrono::steady_clock;

// Time at the start of a wait in which it only asks whether it is over, so that short waits end at once.
constexpr std::chrono::microseconds kUnyielding{20};
constexpr double kNoDeadline = std::numeric_limits<double>::infinity();

// Waits until `done()`, and returns true; false past the deadline. Between two polls it calls `meanwhile(now)`, which
// may throw, and yields, because there may be fewer cores than threads.
template <class Done, class Meanwhile>
bool poll(const Done& done, double deadline_seconds, const Meanwhile& meanwhile) {
  const auto begin = Clock::now();
  while (!done()) {
    const auto now = Clock::now();
    if (now - begin < kUnyielding) continue;
    meanwhile(now);
    if (std::chrono::duration<double>(now - begin).count() > deadline_seconds) return false;
    std::this_thread::yield();
  }
  return true;
}

template <class Done>
bool poll(const Done& done, double deadline_seconds = kNoDeadline) {
  return poll(done, deadline_seconds, [](Clock::time_point) {});
}

}  // namespace collbench
