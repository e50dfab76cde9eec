#include "registered_memory.hpp"

#include "device_threads.hpp"

namespace collbench {
namespace {

// From this version on NCCL no longer registers a buffer where it cannot make a window [2.29.2, dev_runtime.cc].
constexpr int kOnlyWindows = 22900;

// Why NCCL registered nothing: the call succeeds and returns no handle [NCCL 2.28.9, register.cc, ncclCommRegister;
// 2.28.9 and 2.29.7, dev_runtime.cc, ncclCommWindowRegister; 2.29.7, init.cc, symmetricSupport]. Ranks of other
// processes may be on other hosts.
std::string nothing(bool window, int version, bool other_processes) {
  if (!window || version < kOnlyWindows)
    return std::string(window ? "ncclCommWindowRegister" : "ncclCommRegister") +
           " registered nothing: NCCL_LOCAL_REGISTER=0, NCCL_CUMEM_ENABLE=0, NCCL_WIN_ENABLE=0 or "
           "NCCL_P2P_USE_CUDA_MEMCPY=1 switches it off";
  return std::string(
             "ncclCommWindowRegister made no window: NCCL has no symmetric memory here, because not all of "
             "these GPUs have P2P (check NCCL_P2P_DISABLE and NCCL_P2P_LEVEL)") +
         (other_processes ? ", hosts are connected without GIN (NCCL's GPU-initiated networking)" : "") +
         ", or NCCL_WIN_ENABLE=0 or NCCL_CUMEM_ENABLE=0 switches it off";
}

void* pointer(CUdeviceptr memory) { return reinterpret_cast<void*>(memory); }

}  // namespace

Buffers RegisteredMemory::buffers(Registration registration, int position) {
  if (registration != Registration::none) return memory_.at(registration).at(static_cast<std::size_t>(position));
  const Gpu& gpu = gpus_[position];
  return {gpu.send.get(), gpu.target.get()};
}

void RegisteredMemory::allocate(Registration registration) {
  std::vector<Buffers>& memory = memory_[registration];  // after a failure the next round uses what was allocated
  memory.resize(gpus_.size(), Buffers{0, 0});
  threads_.run_on_all([&](std::size_t i) {
    for (CUdeviceptr* buffer : {&memory[i].send, &memory[i].target}) {
      void* made = nullptr;
      if (*buffer != 0) continue;
      NCCL_CHECK(nccl_, ncclMemAlloc, &made, gpus_.buffer_bytes());
      *buffer = reinterpret_cast<CUdeviceptr>(made);
    }
  });
}

void RegisteredMemory::prepare(Registration registration, const std::vector<Communicator>& communicators,
                               double deadline_seconds) {
  if (registration == Registration::none) return;
  const bool window = registration == Registration::window;
  if (window ? nccl_.ncclCommWindowRegister == nullptr : nccl_.ncclCommRegister == nullptr)
    throw LibraryError(std::string("NCCL at ") + nccl_.path() + " is too old: it has no function " +
                       (window ? "ncclCommWindowRegister" : "ncclCommRegister"));
  std::vector<Communicator> missing;
  for (const Communicator& communicator : communicators)
    if (handles_.try_emplace({communicator.handle, registration}).second) missing.push_back(communicator);
  if (missing.empty()) return;
  allocate(registration);
  std::vector<int> positions;
  for (const Communicator& communicator : missing) positions.push_back(communicator.position);
  threads_.run(positions, [&](std::size_t i) {
    const Communicator& one = missing[i];
    const Buffers buffers = memory_.at(registration)[static_cast<std::size_t>(one.position)];
    Handles& handles = handles_.at({one.handle, registration});
    const std::array<CUdeviceptr, 2> both = {buffers.send, buffers.target};
    for (std::size_t which = 0; which < both.size(); ++which) {
      void*& handle = handles[which];  // not on the stack: NCCL may write it in the background
      const ncclResult_t result =
          window ? NCCL_CHECK(nccl_, ncclCommWindowRegister, one.handle, pointer(both[which]), gpus_.buffer_bytes(),
                              &handle, kWindowSymmetric)
                 : NCCL_CHECK(nccl_, ncclCommRegister, one.handle, pointer(both[which]), gpus_.buffer_bytes(), &handle);
      finish(nccl_, one.handle, result, threads_, deadline_seconds);
      if (handle == nullptr)
        throw NcclError(kNcclInvalidUsage,
                        nothing(window, nccl_.version(), one.ranks > static_cast<int>(gpus_.size())));
    }
  });
}

void RegisteredMemory::forget(const std::vector<ncclComm_t>& aborted) {
  for (const ncclComm_t communicator : aborted)
    for (const Registration registration : {Registration::buffer, Registration::window})
      handles_.erase({communicator, registration});
}

void RegisteredMemory::deregister() {
  if (threads_.stuck() || gpus_.threads().stuck()) return;  // a thread may still use a registration
  for (const auto& [key, handles] : handles_)
    for (void* handle : handles) {
      if (handle == nullptr) continue;
      if (key.second == Registration::window)
        library_call(nccl_.ncclCommWindowDeregister)(key.first, handle);
      else
        library_call(nccl_.ncclCommDeregister)(key.first, handle);
    }
  handles_.clear();
}

void RegisteredMemory::free() {
  if (threads_.stuck() || gpus_.threads().stuck()) return;
  for (const auto& [registration, memory] : memory_)
    for (std::size_t i = 0; i < memory.size(); ++i) {
      library_call(driver().cuCtxSetCurrent)(gpus_[static_cast<int>(i)].context.get());
      for (const CUdeviceptr buffer : {memory[i].send, memory[i].target})
        if (buffer != 0) library_call(nccl_.ncclMemFree)(pointer(buffer));
    }
  memory_.clear();
}

}  // namespace collbench
