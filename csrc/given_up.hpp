// A thread that sits in a library's call cannot be interrupted. Its job may be given up without it: then what the job
// refers to is gone when the call comes back, and the thread must not go on.
#pragma once

#include <unistd.h>

#include <atomic>

namespace collbench {

// This thread's own flag, which outlives its job; null on threads that no job gives up.
inline thread_local const std::atomic<bool>* given_up = nullptr;

// Never returns on a thread whose job was given up.
inline void stay_if_given_up() {
  while (given_up != nullptr && *given_up) pause();
}

// The result of a call that may have taken for ever.
template <class Result>
Result came_back(Result result) {
  stay_if_given_up();
  return result;
}

}  // namespace collbench
