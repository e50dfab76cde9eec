// Fake libnccl.so.2, second half: collectives, which the fake driver's streams run.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_nccl.h"
#include "fake_numbers.h"

enum Collective {
  kAllreduce,
  kBroadcast,
  kReduce,
  kAllgather,
  kReducescatter,
  kAlltoall,
  kGather,
  kScatter,
  kExchange
};

// `sends` and `receives` count blocks of the call's count, kOfAllRanks for one of each rank.
enum { kOfAllRanks = -1 };
typedef struct Kind {
  const char* name;
  int sends, receives;
  bool reduces, rooted;
  bool root_sends, root_receives;  // only the root does
  void (*run)(Op* const ranks[], int count);
} Kind;

// This thread's group: its sends and receives.
static _Thread_local Op exchange;
static _Thread_local Comm* exchange_comm;
static _Thread_local Stream* exchange_stream;

void drop_exchange(void) { exchange = (Op){0}; }

static unsigned char* at(const Op* op, int argument, uint64_t bytes) {
  return (unsigned char*)(uintptr_t)(op->arguments[argument] + bytes);
}

static unsigned size_of(const Op* op) { return number_width((unsigned)op->arguments[kDtype]); }
static uint64_t block_bytes(const Op* op) { return op->arguments[kCount] * size_of(op); }

enum { kSums = 512 };

// One element of the reduction over all ranks, `offset` bytes into what they send.
static double reduce_at(Op* const ranks[], int count, uint64_t offset) {
  const unsigned dtype = (unsigned)ranks[0]->arguments[kDtype];
  double values[kMaxRanks];
  for (int r = 0; r < count; ++r) values[r] = load_number(at(ranks[r], kSend, offset), dtype);
  return reduce_numbers(values, count, dtype, (unsigned)ranks[0]->arguments[kReduction]);
}

// The same for a few sums of float32, the most common case: compilers vectorize these loops.
static void sum_at(Op* const ranks[], int count, uint64_t offset, double* sums, unsigned elements) {
  float values[kSums];
  for (unsigned i = 0; i < elements; ++i) sums[i] = 0;
  for (int r = 0; r < count; ++r) {
    memcpy(values, at(ranks[r], kSend, offset), elements * sizeof *values);
    for (unsigned i = 0; i < elements; ++i) sums[i] += values[i];
  }
}

// Reduces a call's count, `offset` bytes into what all send, to the ranks from `first` up to `last`. Each element is
// read from all before it is written to any.
static void reduce_to(Op* const ranks[], int count, uint64_t offset, int first, int last) {
  const unsigned dtype = (unsigned)ranks[0]->arguments[kDtype], size = size_of(ranks[0]);
  const bool sums = dtype == kFloat32 && ranks[0]->arguments[kReduction] == kSum;
  double results[kSums];
  float singles[kSums];
  const uint64_t all = ranks[0]->arguments[kCount];
  for (uint64_t i = 0, some; i < all; i += some) {
    some = !sums ? 1 : all - i < kSums ? all - i : kSums;
    if (!sums) {
      results[0] = reduce_at(ranks, count, offset + i * size);
      for (int r = first; r < last; ++r) store_number(at(ranks[r], kReceive, i * size), dtype, results[0]);
      continue;
    }
    sum_at(ranks, count, offset + i * size, results, (unsigned)some);
    for (uint64_t j = 0; j < some; ++j) singles[j] = (float)results[j];
    for (int r = first; r < last; ++r) memcpy(at(ranks[r], kReceive, i * size), singles, some * sizeof *singles);
  }
}

static int root_of(Op* const ranks[]) { return (int)ranks[0]->arguments[kRoot]; }

static void run_allreduce(Op* const ranks[], int count) { reduce_to(ranks, count, 0, 0, count); }

static void run_reduce(Op* const ranks[], int count) { reduce_to(ranks, count, 0, root_of(ranks), root_of(ranks) + 1); }

static void run_reducescatter(Op* const ranks[], int count) {
  for (int r = 0; r < count; ++r) reduce_to(ranks, count, (uint64_t)r * block_bytes(ranks[0]), r, r + 1);
}

// Moves block `from_block` of one rank to block `to_block` of another.
static void move_block(const Op* from, int from_block, const Op* to, int to_block) {
  const uint64_t bytes = block_bytes(from);
  memmove(at(to, kReceive, (uint64_t)to_block * bytes), at(from, kSend, (uint64_t)from_block * bytes), bytes);
}

static void run_broadcast(Op* const ranks[], int count) {
  for (int r = 0; r < count; ++r) move_block(ranks[root_of(ranks)], 0, ranks[r], 0);
}

static void run_allgather(Op* const ranks[], int count) {
  for (int from = 0; from < count; ++from)
    for (int to = 0; to < count; ++to) move_block(ranks[from], 0, ranks[to], from);
}

static void run_alltoall(Op* const ranks[], int count) {
  for (int from = 0; from < count; ++from)
    for (int to = 0; to < count; ++to) move_block(ranks[from], to, ranks[to], from);
}

static void run_gather(Op* const ranks[], int count) {
  for (int from = 0; from < count; ++from) move_block(ranks[from], 0, ranks[root_of(ranks)], from);
}

static void run_scatter(Op* const ranks[], int count) {
  for (int to = 0; to < count; ++to) move_block(ranks[root_of(ranks)], to, ranks[to], 0);
}

// The `nth` transfer of a rank with this peer in one direction, NULL where there is none.
static const Transfer* nth_transfer(const Op* op, bool sends, int peer, int nth) {
  for (int k = 0; k < op->transfer_count; ++k) {
    const Transfer* transfer = &op->transfers[k];
    if (transfer->sends == sends && transfer->peer == peer && nth-- == 0) return transfer;
  }
  return NULL;
}

// Sends and receives of one group: the first send to a rank matches that rank's first receive from this one, and so on.
static void run_exchange(Op* const ranks[], int count) {
  for (int from = 0; from < count; ++from)
    for (int to = 0; to < count; ++to)
      for (int nth = 0;; ++nth) {
        const Transfer* send = nth_transfer(ranks[from], true, to, nth);
        const Transfer* receive = nth_transfer(ranks[to], false, from, nth);
        if (send == NULL && receive == NULL) break;
        if (send == NULL || receive == NULL || send->bytes != receive->bytes) {
          fault("rank %d and rank %d do not agree on what is sent", from, to);
          break;
        }
        memmove((void*)(uintptr_t)receive->at, (const void*)(uintptr_t)send->at, send->bytes);
      }
}

static const Kind kinds[] = {
    [kAllreduce] = {.name = "allreduce", .sends = 1, .receives = 1, .reduces = true, .run = run_allreduce},
    [kBroadcast] = {.name = "broadcast", .sends = 1, .receives = 1, .rooted = true, .run = run_broadcast},
    [kReduce] = {.name = "reduce",
                 .sends = 1,
                 .receives = 1,
                 .reduces = true,
                 .rooted = true,
                 .root_receives = true,
                 .run = run_reduce},
    [kAllgather] = {.name = "allgather", .sends = 1, .receives = kOfAllRanks, .run = run_allgather},
    [kReducescatter] =
        {.name = "reducescatter", .sends = kOfAllRanks, .receives = 1, .reduces = true, .run = run_reducescatter},
    [kAlltoall] = {.name = "alltoall", .sends = kOfAllRanks, .receives = kOfAllRanks, .run = run_alltoall},
    [kGather] = {.name = "gather",
                 .sends = 1,
                 .receives = kOfAllRanks,
                 .rooted = true,
                 .root_receives = true,
                 .run = run_gather},
    [kScatter] = {.name = "scatter",
                  .sends = kOfAllRanks,
                  .receives = 1,
                  .rooted = true,
                  .root_sends = true,
                  .run = run_scatter},
    [kExchange] = {.name = "sendrecv", .run = run_exchange}};

static void add_transfer(Op* op, bool sends, const void* at, uint64_t elements, int peer) {
  const uint64_t bytes = elements * number_width((unsigned)op->arguments[kDtype]);
  op->transfers[op->transfer_count++] = (Transfer){sends, (uint64_t)(uintptr_t)at, bytes, peer};
}

// NCCL_DEBUG_FILE, to append to it; NULL unless NCCL_DEBUG=INFO.
static FILE* debug_file(void) {
  const char* file_pattern = text_setting("NCCL_DEBUG_FILE", "");
  const char* process = strstr(file_pattern, "%p");
  if (process == NULL || strcmp(text_setting("NCCL_DEBUG", ""), "INFO") != 0) return NULL;
  char path[512];
  snprintf(path, sizeof path, "%.*s%d", (int)(process - file_pattern), file_pattern, getpid());
  return fopen(path, "a");
}

// Sets what the file of NCCL_CONF_FILE names and is not set, not even to "" [NCCL 2.30.7, src/misc/param.cc].
static void read_conf_file(void) {
  FILE* file = fopen(text_setting("NCCL_CONF_FILE", "/"), "r");
  char line[256];
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    char* value = strchr(line, '=');
    line[strcspn(line, "\n")] = '\0';
    if (value == NULL) continue;
    *value = '\0';
    setenv(line, value + 1, 0);
  }
  if (file != NULL) fclose(file);
}

// What NCCL 2.30 writes there when it connects each two ranks.
static void log_transports(const Clique* clique) {
  FILE* file = debug_file();
  if (file == NULL) return;
  read_conf_file();
  for (int i = 0; i < clique->ranks; ++i)
    for (int j = 0; j < clique->ranks; ++j) {
      if (i == j) continue;
      const bool direct = peers(clique->gpus[i], clique->gpus[j]) && by_pair("FAKE_NCCL_P2P", i, j, 1) != 0 &&
                          strcmp(text_setting("NCCL_P2P_DISABLE", "0"), "1") != 0;
      const bool shared = strcmp(text_setting("NCCL_SHM_DISABLE", "0"), "1") != 0;
      fprintf(file, "vm:%d:%d [%d] NCCL INFO Channel 00%s : %d[%d] -> %d[%d]%s via %s\n", getpid(), getpid(), i,
              direct || !shared ? "/1" : "", i, i, j, j, direct || shared ? "" : " [send]",
              direct   ? "P2P/direct pointer/read"
              : shared ? "SHM/direct/direct"
                       : "NET/Socket/0");
    }
  fclose(file);
}

// Queues one rank's part. The first use of an operation connects the communicator's ranks, which wait for each other in
// the call (in an exchange, for the peers that it names); behind a blocking kernel or in a capture that would never
// end.
static int queue(Comm* comm, Stream* stream, int kind, Op* op) {
  Clique* clique = comm->clique;
  const int gpu = clique->gpus[comm->rank];
  bool own = stream->gpu == gpu;
  for (int i = 0; i < op->transfer_count; ++i) own = own && owner_of(op->transfers[i].at) == gpu;
  if (!own) return failed(kNcclInvalidArgument, "stream or buffer of another device");
  if (!(clique->connected[comm->rank] >> kind & 1)) {
    if (stream->capturing || stream->blocks > 0)
      fault("a communicator connects behind a blocking kernel or in a capture");
    if (comm->rank == 0) log_transports(clique);
    clique->connected[comm->rank] |= 1u << kind;
    for (int i = 0; i < clique->ranks; ++i)
      for (unsigned turn = 0;
           blocks() && (kind != kExchange || names_peer(op, i)) && !(clique->connected[i] >> kind & 1); ++turn)
        let_others_run(turn);
  }
  // NCCL makes every plain launch slower on a communicator that was once captured.
  if (comm->captured && !stream->capturing) note("plain %s on a captured communicator", kinds[kind].name);
  comm->captured = comm->captured || stream->capturing;
  op->clique = clique;
  op->rank = comm->rank;
  op->name = kinds[kind].name;
  op->reduce = kinds[kind].run;
  queue_op(stream, op);
  if (!stream->capturing) count_behind(stream);
  return begun(comm);
}

static int refused(int dtype) {
  if (dtype < 0 || dtype > 11) return failed(kNcclInvalidArgument, "unknown type");
  if (dtype >= 10 && by_gpu("FAKE_NCCL", -1, 22809) < 22400) return failed(kNcclInvalidArgument, "no 8-bit floats\n");
  return kNcclSuccess;
}

static int collective(const char* function, int kind, const void* send, void* receive, size_t count, int dtype,
                      int reduction, int root, Comm* comm, Stream* stream) {
  LOCKED;
  note("%s", function);
  const int error = injected(function), ranks = comm->clique->ranks;
  const Kind* which = &kinds[kind];
  if (error != 0) return failed(error, "the test wants this call to fail");
  if (in_group()) return failed(kNcclInvalidUsage, "not simulated in a group");
  if (busy(comm)) return failed(kNcclInvalidArgument, "used before the last call was done");
  if (refused(dtype)) return kNcclInvalidArgument;
  if (reduction < 0 || reduction > 4 || root < 0 || root >= ranks)
    return failed(kNcclInvalidArgument, "bad root or op");
  Op op = {.arguments = {(uint64_t)(uintptr_t)send, (uint64_t)(uintptr_t)receive, count, (uint64_t)dtype,
                         (uint64_t)reduction, (uint64_t)root}};
  const uint64_t sends = count * (uint64_t)(which->sends == kOfAllRanks ? ranks : which->sends);
  const uint64_t receives = count * (uint64_t)(which->receives == kOfAllRanks ? ranks : which->receives);
  if (!which->root_sends || comm->rank == root) add_transfer(&op, true, send, sends, -1);
  if (!which->root_receives || comm->rank == root) add_transfer(&op, false, receive, receives, -1);
  note_registered(comm, (uint64_t)(uintptr_t)send, (uint64_t)(uintptr_t)receive);
  return queue(comm, stream, kind, &op);
}

EXPORT int ncclAllReduce(const void* send, void* receive, size_t count, int dtype, int reduction, Comm* comm,
                         Stream* stream) {
  return collective(__func__, kAllreduce, send, receive, count, dtype, reduction, 0, comm, stream);
}

EXPORT int ncclBroadcast(const void* send, void* receive, size_t count, int dtype, int root, Comm* comm,
                         Stream* stream) {
  return collective(__func__, kBroadcast, send, receive, count, dtype, 0, root, comm, stream);
}

EXPORT int ncclReduce(const void* send, void* receive, size_t count, int dtype, int reduction, int root, Comm* comm,
                      Stream* stream) {
  return collective(__func__, kReduce, send, receive, count, dtype, reduction, root, comm, stream);
}

EXPORT int ncclAllGather(const void* send, void* receive, size_t count, int dtype, Comm* comm, Stream* stream) {
  return collective(__func__, kAllgather, send, receive, count, dtype, 0, 0, comm, stream);
}

EXPORT int ncclReduceScatter(const void* send, void* receive, size_t count, int dtype, int reduction, Comm* comm,
                             Stream* stream) {
  return collective(__func__, kReducescatter, send, receive, count, dtype, reduction, 0, comm, stream);
}

EXPORT int ncclAlltoAll(const void* send, void* receive, size_t count, int dtype, Comm* comm, Stream* stream) {
  return collective(__func__, kAlltoall, send, receive, count, dtype, 0, 0, comm, stream);
}

EXPORT int ncclGather(const void* send, void* receive, size_t count, int dtype, int root, Comm* comm, Stream* stream) {
  return collective(__func__, kGather, send, receive, count, dtype, 0, root, comm, stream);
}

EXPORT int ncclScatter(const void* send, void* receive, size_t count, int dtype, int root, Comm* comm, Stream* stream) {
  return collective(__func__, kScatter, send, receive, count, dtype, 0, root, comm, stream);
}

int finish_exchange(void) {
  if (exchange.transfer_count == 0) return kNcclSuccess;
  Op op = exchange;
  exchange = (Op){0};
  return queue(exchange_comm, exchange_stream, kExchange, &op);
}

static int exchange_part(bool sends, const void* at, size_t count, int dtype, int peer, Comm* comm, Stream* stream) {
  if (!in_group()) return failed(kNcclInvalidUsage, "a send waits for its receive: use a group");
  if (busy(comm)) return failed(kNcclInvalidArgument, "used before the last call was done");
  if (refused(dtype)) return kNcclInvalidArgument;
  if (peer < 0 || peer >= comm->clique->ranks || exchange.transfer_count == kMaxTransfers)
    return failed(kNcclInvalidArgument, "bad peer");
  exchange.arguments[kDtype] = (uint64_t)dtype;
  exchange_comm = comm;
  note_registered(comm, (uint64_t)(uintptr_t)at, (uint64_t)(uintptr_t)at);
  exchange_stream = stream;
  add_transfer(&exchange, sends, at, count, peer);
  return kNcclSuccess;
}

EXPORT int ncclSend(const void* send, size_t count, int dtype, int peer, Comm* comm, Stream* stream) {
  CALLED;
  return exchange_part(true, send, count, dtype, peer, comm, stream);
}

EXPORT int ncclRecv(void* receive, size_t count, int dtype, int peer, Comm* comm, Stream* stream) {
  CALLED;
  return exchange_part(false, receive, count, dtype, peer, comm, stream);
}
