// Fake libnccl.so.2: communicators, and collectives that the fake driver's streams run.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_engine.h"
#include "fake_numbers.h"

enum { kNcclSuccess = 0, kNcclInvalidArgument = 4, kNcclInvalidUsage = 5, kMostSplits = kMostRanks };

typedef struct Comm {
  Clique* clique;
  int rank;
} Comm;

int cuDeviceGet(int* device, int ordinal);  // the driver's

typedef struct Split {
  Comm* parent;
  int color, key;
  Comm** made;
} Split;

static char last_error[160];
static _Thread_local int depth;
static Split splits[kMostSplits];
static int split_count;

#define CALLED                            \
  LOCKED;                                 \
  note("%s", __func__);                   \
  const int wanted_ = injected(__func__); \
  if (wanted_ != 0) return failed(wanted_, "the test wants this call to fail")

static int failed(int code, const char* text) {
  snprintf(last_error, sizeof last_error, "%s", text);
  return code;
}

EXPORT int ncclGetVersion(int* version) {
  *version = (int)by_gpu("FAKE_NCCL", -1, 22809);
  return kNcclSuccess;
}

EXPORT const char* ncclGetErrorString(int code) {
  static const char* const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or network error",
                                      "NCCL operation in progress"};
  return code >= 0 && code < 8 ? texts[code] : "unknown result code";
}

EXPORT const char* ncclGetLastError(const Comm* comm) {
  (void)comm;
  return last_error;
}

static Comm* make_comm(Clique* clique, int rank) {
  Comm* comm = malloc(sizeof *comm);
  *comm = (Comm){clique, rank};
  note("+comm %p", (void*)comm);
  return comm;
}

// Cliques live as long as the process: operations point to them.
static Clique* make_clique(void) { return calloc(1, sizeof(Clique)); }

EXPORT int ncclCommInitAll(Comm** comms, int count, const int* ordinals) {
  Clique* clique = make_clique();
  clique->ranks = count;
  for (int i = 0; i < count; ++i)
    if (cuDeviceGet(&clique->gpus[i], ordinals[i]) != kSuccess) return failed(kNcclInvalidArgument, "no such device");
  CALLED;
  if (blocking(__func__) != kSuccess) return failed(kNcclInvalidUsage, "not while a stream is captured");
  for (int i = 0; i < count; ++i) comms[i] = make_comm(clique, i);
  return kNcclSuccess;
}

EXPORT int ncclCommSplit(Comm* comm, int color, int key, Comm** made, const void* config) {
  CALLED;
  if (depth == 0) return failed(kNcclInvalidUsage, "a split by one thread waits for the other ranks: use a group");
  if (config != NULL || split_count == kMostSplits) return failed(kNcclInvalidArgument, "not simulated");
  splits[split_count++] = (Split){comm, color, key, made};
  *made = NULL;
  return kNcclSuccess;
}

static int by_key(const void* one, const void* other) {
  const Split *a = one, *b = other;
  if (a->color != b->color) return a->color - b->color;
  return a->key != b->key ? a->key - b->key : a->parent->rank - b->parent->rank;
}

static int finish_splits(void) {
  if (split_count == 0) return kNcclSuccess;
  if (split_count != splits[0].parent->clique->ranks) return failed(kNcclInvalidUsage, "not all ranks called split");
  note("split of %d ranks", split_count);
  qsort(splits, (size_t)split_count, sizeof *splits, by_key);
  Clique* clique = NULL;
  for (int i = 0; i < split_count; ++i) {
    if (splits[i].color < 0) continue;
    if (clique == NULL || splits[i].color != splits[i - 1].color) clique = make_clique();
    const int rank = clique->ranks++;
    clique->gpus[rank] = splits[i].parent->clique->gpus[splits[i].parent->rank];
    *splits[i].made = make_comm(clique, rank);
  }
  split_count = 0;
  return kNcclSuccess;
}

EXPORT int ncclGroupStart(void) {
  CALLED;
  ++depth;
  return kNcclSuccess;
}

EXPORT int ncclGroupEnd(void) {
  CALLED;
  if (depth == 0) return failed(kNcclInvalidUsage, "group end without a start");
  if (split_count > 0 && blocking(__func__) != kSuccess) return failed(kNcclInvalidUsage, "not in a capture");
  return --depth == 0 ? finish_splits() : kNcclSuccess;
}

EXPORT int ncclCommAbort(Comm* comm) {
  CALLED;
  note("-comm %p", (void*)comm);
  free(comm);
  return kNcclSuccess;
}

EXPORT int ncclCommGetAsyncError(const Comm* comm, int* state) {
  CALLED;
  *state = (int)by_gpu("FAKE_NCCL_STATE", comm->rank, kNcclSuccess);
  return kNcclSuccess;
}

static unsigned char* bytes_at(uint64_t address, uint64_t offset) {
  return (unsigned char*)(uintptr_t)(address + offset);
}

static void run_allreduce(Op* const ranks[], int count) {
  const uint64_t* shape = ranks[0]->arguments;
  const unsigned dtype = (unsigned)shape[kDtype], size = number_width(dtype);
  double values[kMostRanks];
  for (uint64_t i = 0; i < shape[kCount]; ++i) {
    for (int r = 0; r < count; ++r) values[r] = load_number(bytes_at(ranks[r]->arguments[kSend], i * size), dtype);
    const double result = reduce_numbers(values, count, dtype, (unsigned)shape[kReductionOrRoot]);
    for (int r = 0; r < count; ++r) store_number(bytes_at(ranks[r]->arguments[kReceive], i * size), dtype, result);
  }
}

static void run_broadcast(Op* const ranks[], int count) {
  const uint64_t* root = ranks[ranks[0]->arguments[kReductionOrRoot]]->arguments;
  const uint64_t bytes = root[kCount] * number_width((unsigned)root[kDtype]);
  for (int r = 0; r < count; ++r) memcpy(bytes_at(ranks[r]->arguments[kReceive], 0), bytes_at(root[kSend], 0), bytes);
}

// Queues one rank's part. The first collective of a communicator connects its ranks, which a closed gate or a capture
// would stop.
static int queue(Comm* comm, Stream* stream, Op op) {
  Clique* clique = comm->clique;
  const int gpu = clique->gpus[comm->rank];
  const uint64_t root = op.arguments[kReductionOrRoot];
  if (op.arguments[kDtype] > 9) return failed(kNcclInvalidArgument, "unknown type");
  if (root >= (op.reduce == run_broadcast ? (uint64_t)clique->ranks : 5u))
    return failed(kNcclInvalidArgument, "bad root or op");
  if (stream->gpu != gpu || owner_of(op.arguments[kSend]) != gpu || owner_of(op.arguments[kReceive]) != gpu)
    return failed(kNcclInvalidArgument, "stream or buffer of another device");
  if (!clique->connected[comm->rank]) {
    if (stream->capturing || stream->gates > 0) fault("a communicator connects behind a gate or in a capture");
    clique->connected[comm->rank] = true;
  }
  op.clique = clique;
  op.rank = comm->rank;
  queue_op(stream, &op);
  if (!stream->capturing) count_behind(stream);
  return kNcclSuccess;
}

EXPORT int ncclAllReduce(const void* send, void* receive, size_t count, int dtype, int reduction, Comm* comm,
                         Stream* stream) {
  CALLED;
  const Op op = {.name = "allreduce",
                 .arguments = {(uint64_t)(uintptr_t)send, (uint64_t)(uintptr_t)receive, count, (uint64_t)dtype,
                               (uint64_t)reduction},
                 .reduce = run_allreduce};
  return queue(comm, stream, op);
}

EXPORT int ncclBroadcast(const void* send, void* receive, size_t count, int dtype, int root, Comm* comm,
                         Stream* stream) {
  CALLED;
  const Op op = {
      .name = "broadcast",
      .arguments = {(uint64_t)(uintptr_t)send, (uint64_t)(uintptr_t)receive, count, (uint64_t)dtype, (uint64_t)root},
      .reduce = run_broadcast};
  return queue(comm, stream, op);
}
