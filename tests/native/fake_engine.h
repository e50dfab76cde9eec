// The simulated GPU: streams are queues of operations that run when somebody asks whether they are done.
// Lives in the fake libcuda; the fake libnccl adds collectives to its streams through what is EXPORTed.
#pragma once

#include "fake.h"

enum {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoPeerSupport = 217,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kPeerAlreadyEnabled = 704,
  kCaptureUnsupported = 900
};
enum { kMaxRanks = kMaxGpus, kMaxArguments = 13, kDeepestQueue = 32, kMaxUnanswered = 10000 };
enum { kMaxWindows = 8, kMaxCalls = 4096 };

typedef struct Event {
  int gpu;
  bool timed;
  uint64_t recorded, finished;  // how often it was queued, and passed
  double time;                  // when it was passed last
} Event;

// One communicator's members, shared by all its ranks.
typedef struct Clique {
  int ranks;
  int gpus[kMaxRanks];
  unsigned connected[kMaxRanks];  // a bit for each operation
  int states[kMaxRanks];          // ncclResult_t, which ncclCommGetAsyncError reports
  bool broken;                    // a rank has failed: nothing runs any more
  bool aborted[kMaxRanks];        // a rank's own operations end at once
  // Windows of each rank and their bytes; and the offsets of collectives on them, as the first rank had them.
  int windows[kMaxRanks], calls[kMaxRanks], most_calls;
  uint64_t window_bytes[kMaxRanks][kMaxWindows], offsets[kMaxCalls][2];
} Clique;

// Memory that one rank reads for a peer (-1: for all of them) or writes for one, in a collective.
typedef struct Transfer {
  bool sends;
  uint64_t at, bytes;
  int peer;
} Transfer;
enum { kMaxTransfers = 2 * kMaxRanks };

typedef struct Op Op;
struct Op {
  Op* next;
  const char* name;  // a kernel's name, or memcpy, memset, event, wait, or a collective's
  uint64_t arguments[kMaxArguments];
  unsigned blocks, slots;  // gridDim.x, gridDim.y
  Event* event;
  Clique* clique;
  int rank;
  Transfer transfers[kMaxTransfers];
  int transfer_count;
  // Collectives: moves the data of all ranks, whose operations it gets in rank order.
  void (*reduce)(Op* const ranks[], int count);
};
// Where memcpy, copy and the collectives keep their arguments.
enum { kTarget, kSource, kBytes, kStride, kSlots, kMessages };
enum { kSend, kReceive, kCount, kDtype, kReduction, kRoot };

typedef struct Stream {
  struct Stream* next;
  int gpu;
  double now;  // seconds
  Op *first, *last;
  bool capturing;
  unsigned long capturer;  // the thread
  int blocks;              // in the queue
  int behind;              // operations since the last blocking kernel, events aside
} Stream;

// The GPU of this thread's context, kHost where none is current.
EXPORT int current_gpu(void);

EXPORT void lock_simulation(void);
EXPORT void unlock_simulation(bool* unused);
// Holds the simulation's one lock until the end of the block.
#define LOCKED __attribute__((cleanup(unlock_simulation), unused)) bool locked_ = (lock_simulation(), true)

EXPORT void queue_op(Stream* stream, const Op* op);
// Called for each operation (a whole graph is one) that is queued while a stream may be blocked.
EXPORT void count_behind(Stream* stream);
void run_ready(void);
EXPORT bool names_peer(const Op* op, int peer);
// Notes the answer of a query about the GPU's work, and returns it. kMaxUnanswered times "no" in a row are a deadlock
// where the blocking kernel that was queued last on the GPU, or one with the same latch, has not ended.
bool answered(int gpu, bool finished);
void add_stream(Stream* stream);
void remove_stream(Stream* stream);
bool any_stream_blocked(void);
// Whether this thread captures a stream: a capture is thread-local.
EXPORT bool any_capture(void);
// For calls that wait for the device, or would: deadlocks behind a blocking kernel, forbidden while the thread captures
// a stream.
EXPORT int blocking(const char* function);

// Memory on a GPU (or on the host, kHost), which kernels on `user` may touch; NULL where they may not.
enum { kHost = -1 };
void add_memory(void* at, uint64_t bytes, int gpu);
bool remove_memory(const void* at, size_t* bytes);
uint64_t memory_in_use(int gpu);
EXPORT int owner_of(uint64_t at);
void* touch(uint64_t at, uint64_t bytes, int user);
void enable_peer(int user, int owner);
bool peer_enabled(int user, int owner);

// The error that a GPU repeats at every query from now on.
int sticky_error(int gpu);
void set_error(int gpu, int error);

const char* kernel_widths(const char* name);  // bytes of each argument as characters, NULL for an unknown kernel
void run_kernel(const Op* op, int gpu);
// Writes a stamp at a moment of virtual time; returns the seconds that this takes.
double run_stamp(const Op* op, int gpu, double now);
// Answers the host's questions for the time; false while it has not asked all of them. Virtual time follows the host's.
bool run_tell_time(const Op* op, int gpu, double* now);
// Follows the pointer chase; returns the seconds that this takes.
double run_chase(const Op* op, int gpu);
