// The one wait loop. It polls, because a call that blocks could not be given up at a deadline.
#pragma once

#include <chrono>
#include <sstream>
#include <thread>

#include "driver.hpp"

namespace collbench {

using Clock = std::chrono::steady_clock;

// Returns once `done()`. Between two polls it calls `meanwhile(now)`, which may throw, and yields, because there may be
// fewer cores than threads. Throws `late()` past the deadline.
template <class Done, class Meanwhile, class Late>
void poll(const Done& done, const Meanwhile& meanwhile, double deadline_seconds, const Late& late) {
  const auto begin = Clock::now();
  while (!done()) {
    const auto now = Clock::now();
    meanwhile(now);
    if (std::chrono::duration<double>(now - begin).count() > deadline_seconds) throw late();
    std::this_thread::yield();
  }
}

// Waits for a GPU's work: until `query()`, a library_call that errors call `call`, returns success. Throws CudaError,
// HangError.
template <class Query, class Meanwhile>
void poll_gpu(int ordinal, const char* call, const Query& query, const Meanwhile& meanwhile, double deadline_seconds) {
  const auto done = [&] {
    const CUresult result = query();
    if (result != kCudaSuccess && result != kCudaNotReady) throw_cuda(result, call, __FILE__, __LINE__);
    return result == kCudaSuccess;
  };
  poll(done, meanwhile, deadline_seconds, [&] {
    std::ostringstream text;
    text << "GPU " << ordinal << " did not finish its work in " << deadline_seconds << " s";
    return HangError(text.str());
  });
}

}  // namespace collbench
