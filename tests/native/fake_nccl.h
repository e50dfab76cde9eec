// What both halves of the fake libnccl share.
#pragma once

#include "fake_engine.h"

enum { kNcclSuccess = 0, kNcclInvalidArgument = 4, kNcclInvalidUsage = 5 };

typedef struct Comm {
  Clique* clique;
  int rank;
} Comm;

// Keeps the text for ncclGetLastError and returns the code.
int failed(int code, const char* text);
// Whether this thread has opened a group of calls.
bool in_group(void);
// Queues what the thread's group has sent and received, if anything, or forgets it.
int finish_exchange(void);
void drop_exchange(void);

#define CALLED                            \
  LOCKED;                                 \
  note("%s", __func__);                   \
  const int wanted_ = injected(__func__); \
  if (wanted_ != 0) return failed(wanted_, "the test wants this call to fail")
