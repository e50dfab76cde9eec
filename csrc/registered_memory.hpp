// Memory that NCCL has allocated and that is registered with its communicators: what registered collectives send from
// and receive into. Copies and all other collectives use the buffers of Gpus, which are never registered.
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

// Like communicators, this memory is released on closing; a process that ends leaves it to the driver.
class RegisteredMemory {
 public:
  // `threads` are those of the communicators, because ranks wait for each other in these calls too.
  RegisteredMemory(Gpus& gpus, const Nccl& nccl, DeviceThreads& threads)
      : gpus_(gpus), nccl_(nccl), threads_(threads) {}
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;

  // Returns where the GPU's messages lie: the buffers of Gpus where nothing is registered.
  Buffers buffers(Registration registration, int position);
  // Registers two buffers of each GPU with these communicators, where that has not been done. The buffers are allocated
  // once for each kind of registration, as large as those of Gpus. A window must be registered by all ranks of a
  // communicator at the same time, in the same order and with the same sizes; NCCL makes them wait for each other.
  // Throws NcclError, also where NCCL registered nothing; LibraryError where it is too old.
  void prepare(Registration registration, const std::vector<Communicator>& communicators, double deadline_seconds);
  // Forgets communicators that the caller aborts: NCCL drops their registrations with them.
  void forget(const std::vector<ncclComm_t>& aborted);
  // Deregisters everything. Errors are ignored, because the communicators are aborted next, which drops the rest.
  void deregister();
  // Frees the memory, once no communicator has it registered.
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
