// Fake libnccl.so.2, first half: communicators and groups of calls.
#include "fake_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kMaxSplits = kMaxRanks, kMaxWorlds = 16 };

typedef struct Id {
  char bytes[128];
} Id;
// A world whose ranks join one by one.
typedef struct World {
  Id id;
  Clique clique;
  int joined;
} World;

typedef struct Split {
  Comm* parent;
  int color, key;
  Comm** made;
} Split;

static char last_error[160];
static World worlds[kMaxWorlds];
static int world_count;
static Split splits[kMaxSplits];
static int split_count, splits_done;
// This thread's open group.
static _Thread_local int depth, group_error, split_turn;

int failed(int code, const char* text) {
  if (depth > 0) group_error = code;  // the whole group fails at its end, and does nothing
  snprintf(last_error, sizeof last_error, "%s", text);
  return code;
}

__attribute__((constructor)) static void opened(void) { take_time("dlopen"); }

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

bool in_group(void) { return depth > 0; }

static Comm* make_comm(Clique* clique, int rank) {
  Comm* comm = malloc(sizeof *comm);
  *comm = (Comm){.clique = clique, .rank = rank};
  note("+comm %p", (void*)comm);
  return comm;
}

// Cliques live as long as the process: operations point to them.
static Clique* make_clique(void) { return calloc(1, sizeof(Clique)); }

bool blocks(void) { return strcmp(text_setting("NCCL_COMM_BLOCKING", "1"), "0") != 0; }

int begun(Comm* comm) {
  if (blocks()) return kNcclSuccess;
  comm->looks = 3;
  return kNcclInProgress;
}

bool busy(const Comm* comm) {
  return comm->looks > 0 || (comm->progress != NULL && __atomic_load_n(comm->progress, __ATOMIC_RELAXED) < comm->until);
}

void let_others_run(unsigned turn) {
  unlock_simulation(NULL);
  usleep(turn < 100 ? 20 : 1000);  // a rank that is late by then rarely comes at all
  lock_simulation();
}

EXPORT int ncclGetUniqueId(Id* id) {
  CALLED;
  memset(id, 0, sizeof *id);
  snprintf(id->bytes, sizeof id->bytes, "process %d world %d", (int)getpid(), world_count);
  if (world_count == kMaxWorlds) return failed(kNcclInvalidUsage, "not simulated");
  worlds[world_count++].id = *id;
  return kNcclSuccess;
}

static int join(Comm** comm, int count, Id id, int rank) {
  World* world = NULL;
  for (int i = 0; i < world_count; ++i)
    if (memcmp(&worlds[i].id, &id, sizeof id) == 0) world = &worlds[i];
  if (world == NULL || rank < 0 || rank >= count) return failed(kNcclInvalidArgument, "no such id or rank");
  if (any_capture()) return failed(kNcclInvalidUsage, "not while a stream is captured");
  world->clique.ranks = count;
  world->clique.gpus[rank] = current_gpu();
  *comm = make_comm(&world->clique, rank);
  // The same id may serve one world after another.
  const int all = (world->joined / count + 1) * count;
  ++world->joined;
  (*comm)->progress = &world->joined;
  (*comm)->until = all;
  for (unsigned turn = 0; blocks() && world->joined < all; ++turn) let_others_run(turn);
  return begun(*comm);
}

static int by_key(const void* one, const void* other) {
  const Split *a = one, *b = other;
  if (a->color != b->color) return a->color - b->color;
  return a->key != b->key ? a->key - b->key : a->parent->rank - b->parent->rank;
}

EXPORT int ncclCommInitRank(Comm** comm, int count, Id id, int rank) {
  CALLED;
  return join(comm, count, id, rank);
}

// Makes the new communicators once all ranks have called: the last one's thread makes those of all ranks.
static int finish_splits(Comm* parent) {
  const int ranks = splits[0].parent->clique->ranks;
  if (splits_done == split_turn && split_count < ranks) {
    parent->progress = &splits_done;
    parent->until = split_turn + 1;
    for (unsigned turn = 0; blocks() && splits_done == split_turn; ++turn) let_others_run(turn);
    return begun(parent);
  }
  if (splits_done != split_turn) return begun(parent);
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
  ++splits_done;
  return begun(parent);
}

EXPORT int ncclCommSplit(Comm* comm, int color, int key, Comm** made, const void* config) {
  CALLED;
  if (busy(comm)) return failed(kNcclInvalidArgument, "used before the last call was done");
  if (split_count == kMaxSplits) return failed(kNcclInvalidArgument, "not simulated");
  if (config != NULL) return failed(kNcclInvalidArgument, "not simulated: a config");
  if (depth > 0) return failed(kNcclInvalidUsage, "not simulated in a group: a thread for each rank");
  if (any_capture()) return failed(kNcclInvalidUsage, "not in a capture");
  splits[split_count++] = (Split){comm, color, key, made};
  split_turn = splits_done;
  *made = NULL;
  return finish_splits(comm);
}

EXPORT int ncclGroupStart(void) {
  CALLED;
  ++depth;
  return kNcclSuccess;
}

static int drop_group(int code) {
  drop_exchange();
  return code;
}

EXPORT int ncclGroupEnd(void) {
  LOCKED;
  note("%s", __func__);
  const int wanted = injected(__func__);
  if (wanted == 0 && depth > 1) {
    --depth;
    return kNcclSuccess;
  }
  const int opened = depth, error = group_error;
  depth = group_error = 0;
  if (error != 0) return drop_group(error);
  if (wanted != 0) return drop_group(failed(wanted, "the test wants this call to fail"));
  return opened == 0 ? failed(kNcclInvalidUsage, "group end without a start") : finish_exchange();
}

EXPORT int ncclCommAbort(Comm* comm) {
  CALLED;
  note("-comm %p", (void*)comm);
  comm->clique->aborted[comm->rank] = true;
  forget_registered(comm);
  free(comm);
  return kNcclSuccess;
}

EXPORT int ncclCommGetAsyncError(Comm* comm, int* state) {
  CALLED;
  const bool still = busy(comm);
  if (comm->looks > 0) --comm->looks;
  *state = still ? kNcclInProgress : (int)by_gpu("FAKE_NCCL_STATE", comm->rank, comm->clique->states[comm->rank]);
  return kNcclSuccess;
}
