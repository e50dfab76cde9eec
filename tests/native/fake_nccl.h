// What both halves of the fake libnccl share.
#pragma once

#include "fake_engine.h"

enum { kNcclSuccess = 0, kNcclInvalidArgument = 4, kNcclInvalidUsage = 5, kNcclInProgress = 7 };

typedef struct Comm {
  Clique* clique;
  int rank;
  bool captured;        // once in a graph
  int looks;            // how often ncclCommGetAsyncError returns "in progress", where communicators do not block
  const int* progress;  // and until this is `until`, if it is not NULL
  int until;
} Comm;

// Whether calls return only when they are done (NCCL_COMM_BLOCKING).
bool blocks(void);
// Lets other threads run, for which the caller waits in a loop; `turn` counts its iterations. Called with the lock
// held.
void let_others_run(unsigned turn);
// What a call on the communicator returns that has started without an error: success where calls block.
int begun(Comm* comm);
// Whether the communicator is still busy with its last call, and may not be used.
bool busy(const Comm* comm);

// Keeps the text for ncclGetLastError and returns the code.
int failed(int code, const char* text);
// Whether this thread has opened a group of calls.
bool in_group(void);
// Queues what the thread's group has sent and received, if anything, or forgets it.
int finish_exchange(void);
void drop_exchange(void);
// Notes a collective on registered memory, and whether its ranks have it at the same offsets. Returns whether all of
// it lies in windows.
bool note_registered(Comm* comm, uint64_t send, uint64_t receive);
// Forgets what was registered with an aborted communicator.
void forget_registered(const Comm* comm);

#define CALLED                            \
  take_time(__func__);                    \
  LOCKED;                                 \
  note("%s", __func__);                   \
  const int wanted_ = injected(__func__); \
  if (wanted_ != 0) return failed(wanted_, "the test wants this call to fail")
