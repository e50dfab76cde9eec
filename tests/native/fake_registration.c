// Fake libnccl.so.2, third part: memory that NCCL allocates, its registrations, and the communicators' config.
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "fake_nccl.h"

int cuMemAlloc_v2(uint64_t* at, size_t bytes);  // the driver's
int cuMemFree_v2(uint64_t at);

enum { kMaxRegistered = 256, kSymmetric = 1 };

// One registration of a buffer with a communicator; its address is the handle.
typedef struct Registered {
  Comm* comm;
  uint64_t at, bytes;
  bool window;
} Registered;

static Registered registered[kMaxRegistered];

static Registered* find_registered(const Comm* comm, uint64_t at) {
  for (int i = 0; i < kMaxRegistered; ++i) {
    Registered* one = &registered[i];
    if (one->comm == comm && at >= one->at && at < one->at + one->bytes) return one;
  }
  return NULL;
}

// How many windows the communicator has.
static int count_windows(const Comm* comm) {
  int count = 0;
  for (int i = 0; i < kMaxRegistered; ++i) count += registered[i].comm == comm && registered[i].window;
  return count;
}

EXPORT int ncclMemAlloc(void** at, size_t bytes) {
  {
    CALLED;
  }
  uint64_t memory = 0;
  if (cuMemAlloc_v2(&memory, bytes) != kSuccess) return failed(1, "out of memory");
  *at = (void*)(uintptr_t)memory;
  LOCKED;
  note("+ncclmemory %p", *at);
  return kNcclSuccess;
}

EXPORT int ncclMemFree(void* at) {
  {
    CALLED;
    note("-ncclmemory %p", at);
    for (int i = 0; i < kMaxRegistered; ++i)
      if (registered[i].comm != NULL && registered[i].at == (uint64_t)(uintptr_t)at)
        fault("memory is freed that a communicator still knows");
  }
  return cuMemFree_v2((uint64_t)(uintptr_t)at) == kSuccess ? kNcclSuccess : failed(1, "not ours");
}

static int keep(Comm* comm, void* at, size_t bytes, bool window, void** handle) {
  if (busy(comm)) return failed(kNcclInvalidArgument, "used before the last call was done");
  if (any_capture()) return failed(kNcclInvalidUsage, "not in a capture");
  if (owner_of((uint64_t)(uintptr_t)at) != comm->clique->gpus[comm->rank])
    return failed(kNcclInvalidArgument, "memory of another device");
  if (find_registered(comm, (uint64_t)(uintptr_t)at) != NULL) fault("memory is registered twice");
  for (int i = 0; i < kMaxRegistered; ++i) {
    if (registered[i].comm != NULL) continue;
    registered[i] = (Registered){comm, (uint64_t)(uintptr_t)at, bytes, window};
    note("+%s %p comm %p", window ? "window" : "registered", at, (void*)comm);
    *handle = &registered[i];
    return kNcclSuccess;
  }
  return failed(kNcclInvalidUsage, "not simulated");
}

static int drop(Comm* comm, Registered* one, bool window) {
  if (one == NULL) return kNcclSuccess;
  if (one->comm != comm || one->window != window) {
    fault("a handle is given back that is not this communicator's");
    return kNcclInvalidUsage;
  }
  note("-%s %p comm %p", window ? "window" : "registered", (void*)(uintptr_t)one->at, (void*)comm);
  *one = (Registered){0};
  return kNcclSuccess;
}

static bool registers(void) { return strcmp(text_setting("NCCL_LOCAL_REGISTER", "1"), "0") != 0; }

static bool symmetric(void) { return by_gpu("FAKE_SYMMETRIC", -1, 1) != 0; }

EXPORT int ncclCommRegister(Comm* comm, void* at, size_t bytes, void** handle) {
  CALLED;
  *handle = NULL;
  return registers() ? keep(comm, at, bytes, false, handle) : kNcclSuccess;
}

EXPORT int ncclCommDeregister(Comm* comm, void* handle) {
  CALLED;
  return drop(comm, handle, false);
}

// All ranks wait for each other, and must register the same windows in the same order.
EXPORT int ncclCommWindowRegister(Comm* comm, void* at, size_t bytes, void** window, int flags) {
  CALLED;
  if (flags != kSymmetric) return failed(kNcclInvalidArgument, "not simulated");
  *window = NULL;
  if (!symmetric()) {  // since 2.29 nothing; before, the buffer is registered
    const bool falls_back = by_gpu("FAKE_NCCL", -1, 22809) < 22900 && registers();
    return falls_back ? keep(comm, at, bytes, false, window) : kNcclSuccess;
  }
  const int result = keep(comm, at, bytes, true, window);
  if (result != kNcclSuccess) return result;
  Clique* clique = comm->clique;
  const int nth = count_windows(comm);
  clique->window_bytes[comm->rank][nth % kMaxWindows] = bytes;
  clique->windows[comm->rank] = nth;
  for (int i = 0; i < clique->ranks; ++i) {
    for (unsigned turn = 0; blocks() && clique->windows[i] < nth; ++turn) let_others_run(turn);
    if (clique->windows[i] >= nth && clique->window_bytes[i][nth % kMaxWindows] != bytes)
      fault("window %d of ranks %d and %d has other bytes", nth, comm->rank, i);
  }
  return begun(comm);
}

EXPORT int ncclCommWindowDeregister(Comm* comm, void* window) {
  CALLED;
  return drop(comm, window, symmetric());
}

void forget_registered(const Comm* comm) {
  for (int i = 0; i < kMaxRegistered; ++i)
    if (registered[i].comm == comm) drop((Comm*)comm, &registered[i], registered[i].window);
}

static const Registered* window_of(const Comm* comm, uint64_t at) {
  const Registered* one = find_registered(comm, at);
  return one != NULL && one->window ? one : NULL;
}

bool note_registered(Comm* comm, uint64_t send, uint64_t receive) {
  const Registered* from = find_registered(comm, send);
  const Registered* to = find_registered(comm, receive);
  if (from == NULL && to == NULL) return false;
  if (from == NULL || to == NULL || from->window != to->window) fault("half of a collective's memory is registered");
  note("%s collective", to != NULL && to->window ? "window" : "registered");
  if (window_of(comm, send) == NULL || window_of(comm, receive) == NULL) return false;
  // The nth collective on windows must have the same offsets on each rank.
  Clique* clique = comm->clique;
  const int nth = clique->calls[comm->rank]++ % kMaxCalls;
  const uint64_t offsets[2] = {send - from->at, receive - to->at};
  if (clique->calls[comm->rank] > clique->most_calls) {
    clique->most_calls = clique->calls[comm->rank];
    memcpy(clique->offsets[nth], offsets, sizeof offsets);
  } else if (memcmp(clique->offsets[nth], offsets, sizeof offsets) != 0) {
    note("offsets differ");
  }
  return true;
}
