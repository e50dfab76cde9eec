// The one wait loop. It polls, because a call that blocks could not be given up at a deadline.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

namespace collbench {

using Clock = std::chrono::steady_clock;

// How long a wait polls before it first yields, so that short waits end at once.
constexpr std::chrono::microseconds kUnyielding{20};
constexpr double kNoDeadline = std::numeric_limits<double>::infinity();
// The most seconds that count from one poll to the next: a process that was stopped or waited for a core, or whose
// machine was suspended, could not see what it waits for.
constexpr double kMaxBetweenPolls = 0.25;

// Waits until `done()`, and returns true; false past the deadline. Between two polls it calls `meanwhile(now)`, which
// may throw, and yields, because there may be fewer cores than threads.
template <class Done, class Meanwhile>
bool poll(const Done& done, double deadline_seconds, const Meanwhile& meanwhile) {
  const auto begin = Clock::now();
  auto last = begin;
  for (double waited = 0; !done();) {
    const auto now = Clock::now();
    if (now - begin < kUnyielding) continue;
    meanwhile(now);
    waited += std::min(std::chrono::duration<double>(now - last).count(), kMaxBetweenPolls);
    last = now;
    if (waited > deadline_seconds) return false;
    std::this_thread::yield();
  }
  return true;
}

template <class Done>
bool poll(const Done& done, double deadline_seconds = kNoDeadline) {
  return poll(done, deadline_seconds, [](Clock::time_point) {});
}

}  // namespace collbench
