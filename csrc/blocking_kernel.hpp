// Holds streams back until the host has queued all their work, so that launch time stays out of the measurement.
#pragma once

#include "gpus.hpp"

namespace collbench {

// One blocking kernel (as in nvbench) on any number of streams. It ends in unblock() and, if anything throws, on
// destruction: one that never ends would hang its device until the timeout.
class BlockingKernel {
 public:
  explicit BlockingKernel(Gpus& gpus) : gpus_(gpus), ticket_(gpus.next_ticket()) {}
  BlockingKernel(const BlockingKernel&) = delete;
  BlockingKernel& operator=(const BlockingKernel&) = delete;
  ~BlockingKernel() { unblock(); }

  // Queues it on a stream of the GPU, whose context is current: what is queued after it waits.
  void block(const Gpu& gpu, CUstream stream) {
    volatile std::uint32_t* latch = gpus_.latch();  // one address on host and device, by unified addressing
    volatile std::uint32_t* expired = latch + 1;
    std::uint64_t timeout = kTimeoutNanoseconds;
    void* arguments[] = {&latch, &ticket_, &timeout, &expired};
    Gpus::launch(gpu, stream, Kernel::block_stream, 1, 1, arguments);
  }
  void unblock() { gpus_.latch()[0] = ticket_; }
  // Throws HangError when one timed out before unblock(): the batch's time then contains launch time.
  static void check_timeout(Gpus& gpus) {
    if (gpus.latch()[1] == 0) return;
    gpus.latch()[1] = 0;
    throw HangError("the work behind a blocking kernel took more than 4 s to queue: the driver waits for the device");
  }

 private:
  // Queueing 32 operations takes about 0.1 ms; a driver that blocks in the middle would otherwise never return.
  static constexpr std::uint64_t kTimeoutNanoseconds = 4'000'000'000;
  Gpus& gpus_;
  std::uint32_t ticket_;
};

}  // namespace collbench
