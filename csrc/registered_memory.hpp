// Memory that NCCL has allocated and that its communicators know: what registered collectives send from and receive
// into. Copies and ordinary collectives have buffers of their own (Gpus), which no communicator ever hears of.
#pragma once

#include <array>
#include <map>
#include <utility>
#include <vector>

#include "collective_layout.hpp"
#include "communicators.hpp"

namespace collbench {

// Where one rank's messages lie.
struct Buffers {
  CUdeviceptr send;
  CUdeviceptr target;
};

// As communicators: what is here is released where all is closed, and a process that ends leaves it to the driver.
class RegisteredMemory {
 public:
  // `threads` are those of the communicators: ranks wait for each other here as when these are made.
  RegisteredMemory(Gpus& gpus, const Nccl& nccl, DeviceThreads& threads)
      : gpus_(gpus), nccl_(nccl), threads_(threads) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  // Returns where the GPU's messages lie; the ordinary buffers where nothing is registered.
  Buffers operator()(Registration registration, int position);
  // Allocates, on each GPU and once for each kind of registration, two buffers as large as the ordinary ones, and
  // registers them with these communicators of ours, where that is missing. All ranks of a communicator do so at the
  // same time, in the same order and with the same sizes, as a window wants it; NCCL lets them wait for each other.
  // Throws NcclError, also where NCCL registered nothing; LibraryError where it is too old.
  void prepare(Registration registration, const std::vector<Communicator>& communicators, double deadline_seconds);
  // Forgets communicators that are aborted: NCCL drops their registrations with them.
  void forget(const std::vector<ncclComm_t>& aborted);
  // Deregisters everything. Errors are ignored: aborting the communicators, which follows, drops the rest.
  void deregister();
  // Frees the memory, which no communicator may know any more.
  void free();

 private:
  using Handles = std::array<void*, 2>;  // of send and target
  void allocate(Registration registration);

  Gpus& gpus_;
  const Nccl& nccl_;
  DeviceThreads& threads_;
  std::map<Registration, std::vector<Buffers>> memory_;  // by position
  std::map<std::pair<ncclComm_t, Registration>, Handles> handles_;
};

}  // namespace collbench
