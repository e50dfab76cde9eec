// Holds streams back until the host has queued all their work, so that launch time stays out of the measurement.
#pragma once

#include "gpus.hpp"

namespace collbench {

// Longest time that a kernel waits for the host: a host that stops in between would otherwise hang its GPU. Queueing 32
// operations takes about 0.1 ms.
constexpr std::uint64_t kHostTimeoutNanoseconds = 4'000'000'000;

// One blocking kernel (as in nvbench) on any number of streams. It ends at unblock(), and on destruction if anything
// throws before that.
class BlockingKernel {
 public:
  explicit BlockingKernel(Gpus& gpus) : gpus_(gpus), ticket_(gpus.next_ticket()) {}
  BlockingKernel(const BlockingKernel&) = delete;
  BlockingKernel& operator=(const BlockingKernel&) = delete;
  ~BlockingKernel() { unblock(); }

  // Queues it on a stream of the GPU, whose context is current. What is queued after it waits.
  void block(const Gpu& gpu, CUstream stream) {
    volatile std::uint32_t* latch = gpus_.latch();  // the same address on host and device
    gpu.launch(stream, Kernel::block_stream, 1, 1, latch, ticket_, kHostTimeoutNanoseconds, latch + 1);
  }
  void unblock() { gpus_.latch()[0] = ticket_; }
  // Throws LateError when one timed out before unblock(): the batch's time then contains launch time.
  static void check_timeout(Gpus& gpus) {
    if (gpus.latch()[1] == 0) return;
    gpus.latch()[1] = 0;
    throw LateError(
        "the work behind a blocking kernel took more than 4 s to queue: the driver waits for the device, or this "
        "process was stopped");
  }

 private:
  Gpus& gpus_;
  std::uint32_t ticket_;
};

}  // namespace collbench
