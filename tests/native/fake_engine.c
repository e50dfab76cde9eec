// Runs queued operations in stream order, on virtual time; blocking kernels and collectives hold their streams back.
#include "fake_engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Stream* streams;
static uint32_t opened_ticket;  // of the blocking kernel that ended last, and when
static double opened_time;
static int copies, copies_tried, collectives;
// By GPU: the latch of the blocking kernel that was queued there last, and how many queries in a row got a "no" since.
static uint64_t latch_of[kMaxGpus];
// When each GPU's copy engines are free again: to other GPUs, from host memory, to host memory. An engine runs one copy
// at a time, whichever stream it comes from.
static double engine_free[kMaxGpus][3];
static int unanswered[kMaxGpus];

void lock_simulation(void) { pthread_mutex_lock(&mutex); }
void unlock_simulation(bool* unused) {
  (void)unused;
  pthread_mutex_unlock(&mutex);
}

void add_stream(Stream* stream) {
  stream->next = streams;
  streams = stream;
}

void remove_stream(Stream* stream) {
  for (Stream** pointer = &streams; *pointer != NULL; pointer = &(*pointer)->next)
    if (*pointer == stream) {
      *pointer = stream->next;
      return;
    }
}

bool any_stream_blocked(void) {
  run_ready();
  const bool apart = text_setting("FAKE_APART", NULL) != NULL;
  for (const Stream* stream = streams; stream != NULL; stream = stream->next)
    if (stream->blocks > 0 && (!apart || stream->gpu == current_gpu())) return true;
  return false;
}

bool any_capture(void) {
  for (const Stream* stream = streams; stream != NULL; stream = stream->next)
    if (stream->capturing && stream->capturer == (unsigned long)pthread_self()) return true;
  return false;
}

int blocking(const char* function) {
  if (any_stream_blocked()) fault("%s waits for a GPU behind a blocking kernel: a deadlock", function);
  return any_capture() ? kCaptureUnsupported : kSuccess;
}

void queue_op(Stream* stream, const Op* op) {
  Op* copy = malloc(sizeof *copy);
  *copy = *op;
  copy->next = NULL;
  if (stream->first == NULL)
    stream->first = copy;
  else
    stream->last->next = copy;
  stream->last = copy;
  if (stream->capturing || strcmp(op->name, "block_stream") != 0) return;
  ++stream->blocks;
  stream->behind = 0;
  latch_of[stream->gpu] = op->arguments[0];
  unanswered[stream->gpu] = 0;
}

void count_behind(Stream* stream) {
  if (stream->blocks > 0 && ++stream->behind == kDeepestQueue + 1)
    fault("more than 32 operations behind a blocking kernel");
}

bool answered(int gpu, bool finished) {
  static int asked;
  if (finished && asked < (int)by_gpu("FAKE_LATE", -1, 0)) {
    ++asked;
    return false;
  }
  unanswered[gpu] = finished ? 0 : unanswered[gpu] + 1;
  return finished;
}

// Whether the threads that should raise the latch query their GPUs instead, which is a deadlock. Other ranks may query
// as often as they like: they wait for a collective, perhaps while the thread that must raise the latch is not
// scheduled.
static bool waited_for(uint64_t latch) {
  for (int gpu = 0; gpu < kMaxGpus; ++gpu)
    if (latch_of[gpu] == latch && unanswered[gpu] >= kMaxUnanswered) return true;
  return false;
}

static void pop(Stream* stream) {
  Op* op = stream->first;
  stream->first = op->next;
  free(op);
}

static int waiting_behind(const Stream* stream) {
  int count = 0;
  for (const Op* op = stream->first->next; op != NULL; op = op->next) ++count;
  return count;
}

// Whether no stream, except those of failed GPUs, has work left before this blocking kernel.
static bool all_blocked(uint32_t ticket) {
  for (const Stream* stream = streams; stream != NULL; stream = stream->next)
    for (const Op* op = sticky_error(stream->gpu) == kSuccess ? stream->first : NULL; op != NULL; op = op->next)
      if (op != stream->first && strcmp(op->name, "block_stream") == 0 && (uint32_t)op->arguments[1] == ticket)
        return false;
  return true;
}

// Whether FAKE_BLOCK_EXPIRES says so of this blocking kernel.
static bool expires(uint32_t ticket) {
  const char* wish = text_setting("FAKE_BLOCK_EXPIRES", NULL);
  return wish != NULL && (atoi(wish) == 0 || (uint32_t)atoi(wish) == ticket);
}

// True once the host has raised the latch. All streams are unblocked at the same moment, that of the latest stream.
static bool pass_block(Stream* stream) {
  const uint64_t* arguments = stream->first->arguments;
  const uint32_t ticket = (uint32_t)arguments[1];
  const volatile uint32_t* latch = (const volatile uint32_t*)touch(arguments[0], 4, stream->gpu);
  volatile uint32_t* expired = (volatile uint32_t*)touch(arguments[3], 4, stream->gpu);
  if (latch == NULL || expired == NULL) return true;
  const bool open = (int32_t)(*latch - ticket) >= 0;
  if (!open && !waited_for(arguments[0])) return false;
  if (!open) fault("GPU %d is waited for behind a blocking kernel", stream->gpu);
  if (!open || expires(ticket)) *expired = 1;
  if (opened_ticket != ticket && !all_blocked(ticket)) return false;
  if (opened_ticket != ticket)
    for (const Stream* other = streams; other != NULL; other = other->next)
      if (other->now > opened_time) opened_time = other->now;
  opened_ticket = ticket;
  if (stream->now < opened_time) stream->now = opened_time;
  --stream->blocks;
  note("unblock %u gpu %d behind %d", ticket, stream->gpu, waiting_behind(stream));
  return true;
}

static double rate(int user, int from, int to) {
  const double direct = by_pair("FAKE_RATE", from, to, 100) * 1e9;
  const double staged = by_pair("FAKE_STAGED", from, to, 10) * 1e9;
  return peers(user, user == from ? to : from) ? direct : staged;
}

// The copy engine needs no peer access: the driver stages then. `user` is one of both.
static double copy_rate(int user, int from, int to) {
  if (to == kHost && text_setting("FAKE_TO_HOST_RATE", NULL) != NULL)
    return by_gpu("FAKE_TO_HOST_RATE", user, 50) * 1e9;
  if (from == kHost || to == kHost) return by_gpu("FAKE_HOST_RATE", user, 50) * 1e9;
  if (from == to) return by_gpu("FAKE_LOCAL_RATE", user, 2000) * 1e9;
  return peer_enabled(user, user == from ? to : from) ? by_pair("FAKE_RATE", from, to, 100) * 1e9
                                                      : by_pair("FAKE_STAGED", from, to, 10) * 1e9;
}

// Flips one byte where FAKE_CORRUPT_COPY says so.
static void corrupt_copy(unsigned char* target, int from, int to) {
  int nth = 0, byte = 0, only_from = from, only_to = to;
  const char* wish = text_setting("FAKE_CORRUPT_COPY", NULL);
  if (wish == NULL || sscanf(wish, "%d:%d:%d>%d", &nth, &byte, &only_from, &only_to) < 2) return;
  if (from == only_from && to == only_to && (++copies == nth || nth == 0)) target[byte] ^= 0xff;
}

// The data that a copy or a collective delivered to some memory.
typedef struct Delivery {
  struct Delivery* next;
  uint64_t at, bytes;
  unsigned char data[];
} Delivery;

static Delivery* deliveries;

// Puts what the memory got before in place of what it has just received, and keeps that; with `first` always the same.
static void deliver_earlier(unsigned char* at, uint64_t bytes, bool first, bool stale) {
  Delivery* known = deliveries;
  while (known != NULL && (known->at != (uintptr_t)at || known->bytes != bytes)) known = known->next;
  if (known == NULL) {
    known = malloc(sizeof *known + bytes);
    *known = (Delivery){deliveries, (uintptr_t)at, bytes};
    deliveries = known;
  } else if (first) {
    memcpy(at, known->data, bytes);
  } else if (stale) {
    for (uint64_t i = 0; i < bytes; ++i) {
      const unsigned char fresh = at[i];
      at[i] = known->data[i];
      known->data[i] = fresh;
    }
    return;
  }
  memcpy(known->data, at, bytes);
}

static void deliver_stale_copy(unsigned char* target, uint64_t bytes) {
  const char* wish = text_setting("FAKE_STALE_COPY", NULL);
  if (wish != NULL) deliver_earlier(target, bytes, strcmp(wish, "first") == 0, true);
}

static double run_copy(const Op* op, int user) {
  const uint64_t bytes = op->arguments[kBytes];
  const int from = owner_of(op->arguments[kSource]), to = owner_of(op->arguments[kTarget]);
  const bool kernel = strcmp(op->name, "copy") == 0;
  unsigned char* target = touch(op->arguments[kTarget], bytes, kernel || to == kHost ? user : to);
  const unsigned char* source = touch(op->arguments[kSource], bytes, kernel || from == kHost ? user : from);
  if (target == NULL || source == NULL) return 0;
  if (++copies_tried != (int)by_gpu("FAKE_LOSE_COPY", -1, 0)) memcpy(target, source, bytes);
  deliver_stale_copy(target, bytes);
  corrupt_copy(target, from, to);
  note("copy %s by %d from %d to %d bytes %llu align %d %d", op->name, user, from, to, (unsigned long long)bytes,
       (int)(op->arguments[kSource] % 16), (int)(op->arguments[kTarget] % 16));
  const double share = kernel ? by_pair("FAKE_SM_SHARE", from, to, 0.9) : 1;
  return (double)bytes / (copy_rate(user, from, to) * share);
}

// A kernel copies its messages one after another, after one start.
static double run_copies(const Op* op, int user) {
  const uint64_t* a = op->arguments;
  const bool kernel = strcmp(op->name, "copy") == 0;
  double seconds = by_pair("FAKE_LATENCY", owner_of(a[kSource]), owner_of(a[kTarget]), 1e-6);
  Op message = *op;
  for (uint64_t i = 0; i < (kernel ? a[kMessages] : 1); ++i) {
    const uint64_t at = kernel ? i % a[kSlots] * a[kStride] : 0;
    message.arguments[kTarget] = a[kTarget] + at;
    message.arguments[kSource] = a[kSource] + at;
    seconds += run_copy(&message, user);
  }
  return seconds;
}

// A copy engine starts a copy when it is free; a kernel starts at once.
static void queue_on_engine(Stream* stream, const Op* op) {
  const double seconds = run_copies(op, stream->gpu);
  if (text_setting("FAKE_COPIES_LAST", NULL) != NULL) usleep((useconds_t)(1e6 * seconds));
  if (strcmp(op->name, "copy") == 0) {
    stream->now += seconds;
    return;
  }
  const bool from_host = owner_of(op->arguments[kSource]) == kHost, to_host = owner_of(op->arguments[kTarget]) == kHost;
  double* free_at = &engine_free[stream->gpu][from_host ? 1 : to_host ? 2 : 0];
  const double begin = stream->now > *free_at ? stream->now : *free_at;
  stream->now = *free_at = begin + seconds;
}

// Seconds of a ring over the ranks in order: the slowest link decides.
static double ring_time(const Op* op, uint64_t bytes) {
  const Clique* clique = op->clique;
  double slowest = 1e30;
  for (int i = 0; i < clique->ranks; ++i) {
    const double link = rate(clique->gpus[i], clique->gpus[i], clique->gpus[(i + 1) % clique->ranks]);
    if (link < slowest) slowest = link;
  }
  // The share of the message that crosses each link [nccl-tests doc/PERFORMANCE.md].
  const double others = (double)(clique->ranks - 1) / clique->ranks;
  const bool whole =
      strcmp(op->name, "broadcast") == 0 || strcmp(op->name, "reduce") == 0 || strcmp(op->name, "sendrecv") == 0;
  const double traffic = strcmp(op->name, "allreduce") == 0 ? 2 * others : whole ? 1 : others;
  return by_gpu("FAKE_COLLECTIVE_LATENCY", -1, 5e-6) + traffic * (double)bytes / slowest;
}

static int width(uint64_t dtype) { return (int[]){1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}[dtype]; }

static void corrupt_collective(Op* const ranks[]) {
  int nth = 0, element = 0, rank = 0;
  const char* wish = text_setting("FAKE_CORRUPT_COLLECTIVE", NULL);
  if (wish == NULL || sscanf(wish, "%d:%d:%d", &nth, &element, &rank) != 3 || ++collectives != nth) return;
  const uint64_t dtype = ranks[rank]->arguments[kDtype];
  const Transfer* receive = ranks[rank]->transfers;
  const Transfer* end = receive + ranks[rank]->transfer_count;
  while (receive < end && receive->sends) ++receive;
  if (receive == end) return;
  // The lowest byte of a whole number, the sign and exponent of a floating one: wrong by more than any tolerance.
  const int size = width(dtype), byte = dtype < 6 ? 0 : size - 1;
  ((unsigned char*)(uintptr_t)receive->at)[element * size + byte] ^= 0x40;
}

// As FAKE_STALE says.
static void deliver_stale(Op* const ranks[], int count) {
  static int nth;
  const char* wish = text_setting("FAKE_STALE", NULL);
  if (wish == NULL) return;
  const bool first = strcmp(wish, "first") == 0, stale = strcmp(wish, "previous") == 0 || ++nth == atoi(wish);
  for (int r = 0; r < count; ++r)
    for (int k = 0; k < ranks[r]->transfer_count; ++k) {
      const Transfer* transfer = &ranks[r]->transfers[k];
      if (transfer->sends || transfer->bytes == 0) continue;
      deliver_earlier((unsigned char*)(uintptr_t)transfer->at, transfer->bytes, first, stale);
    }
}

static bool agree(const Op* one, const Op* other) {
  return strcmp(one->name, other->name) == 0 && one->arguments[kCount] == other->arguments[kCount] &&
         one->arguments[kDtype] == other->arguments[kDtype] &&
         one->arguments[kReduction] == other->arguments[kReduction] && one->arguments[kRoot] == other->arguments[kRoot];
}

// Bytes of the message: what the busiest rank sends or receives. 0 where a rank uses memory of another GPU.
static uint64_t message_bytes(Op* const ranks[], const Clique* clique) {
  uint64_t most = 0;
  for (int i = 0; i < clique->ranks; ++i) {
    uint64_t bytes[2] = {0, 0};
    for (int k = 0; k < ranks[i]->transfer_count; ++k) {
      const Transfer* transfer = &ranks[i]->transfers[k];
      if (touch(transfer->at, transfer->bytes, clique->gpus[i]) == NULL) return 0;
      bytes[transfer->sends] += transfer->bytes;
    }
    most = bytes[0] > most ? bytes[0] : most;
    most = bytes[1] > most ? bytes[1] : most;
  }
  return most;
}

// Fails one rank where FAKE_BREAK says so: its own state, and that of all others.
static bool breaks(Clique* clique) {
  static int nth;
  int wanted = 0, rank = 0, code = 0, others = 0;
  const char* wish = text_setting("FAKE_BREAK", NULL);
  if (wish == NULL || sscanf(wish, "%d:%d:%d:%d", &wanted, &rank, &code, &others) < 3 || ++nth != wanted) return false;
  for (int i = 0; i < clique->ranks; ++i) clique->states[i] = i == rank ? code : others;
  return clique->broken = true;
}

static bool exchanges(const Op* op) { return op != NULL && strcmp(op->name, "sendrecv") == 0; }

EXPORT bool names_peer(const Op* op, int peer) {
  for (int k = 0; k < op->transfer_count; ++k)
    if (op->transfers[k].peer == peer) return true;
  return false;
}

// Adds an empty operation for each rank that an exchange does not need: NCCL waits only for the peers that are named,
// and a rank with nothing to send or receive queues nothing. Returns false where a rank is needed that has not arrived.
static bool without_idle(Stream* members[], Op* ranks[], int count) {
  static Op idle;
  const Op* one = NULL;
  for (int i = 0; i < count; ++i)
    if (exchanges(ranks[i])) one = ranks[i];
  for (int i = 0; i < count; ++i) {
    if (one == NULL ? ranks[i] != NULL : exchanges(ranks[i])) continue;
    if (one == NULL) return false;
    for (int other = 0; other < count; ++other)
      if (exchanges(ranks[other]) && names_peer(ranks[other], i)) return false;
    members[i] = NULL;
  }
  if (one == NULL) return true;
  idle = *one;
  idle.transfer_count = 0;
  for (int i = 0; i < count; ++i)
    if (members[i] == NULL) ranks[i] = &idle;
  return true;
}

// Runs a collective once it is the next operation of every rank's stream.
static bool run_collective(Clique* clique) {
  if (clique->broken) return false;
  Stream* members[kMaxRanks] = {NULL};
  Op* ranks[kMaxRanks] = {NULL};
  double begin = 0;
  for (Stream* stream = streams; stream != NULL; stream = stream->next) {
    Op* op = stream->first;
    if (op == NULL || stream->capturing || op->clique != clique) continue;
    members[op->rank] = stream;
    ranks[op->rank] = op;
    if (stream->now > begin) begin = stream->now;
  }
  if (!without_idle(members, ranks, clique->ranks)) return false;
  for (int i = 1; i < clique->ranks; ++i)
    if (!agree(ranks[0], ranks[i])) fault("rank %d calls another collective than rank 0", i);
  const uint64_t bytes = message_bytes(ranks, clique);
  if (bytes == 0) return true;
  if (breaks(clique)) return false;
  ranks[0]->reduce(ranks, clique->ranks);
  deliver_stale(ranks, clique->ranks);
  corrupt_collective(ranks);
  const double end = begin + ring_time(ranks[0], bytes);
  note("collective %s ranks %d bytes %llu", ranks[0]->name, clique->ranks, (unsigned long long)bytes);
  for (int i = 0; i < clique->ranks; ++i) {
    if (members[i] == NULL) continue;
    members[i]->now = end + by_gpu("FAKE_LAG", members[i]->gpu, 0);
    pop(members[i]);
  }
  return true;
}

// Whether FAKE_HANG names the operation, and of copies the direction.
static bool hangs(const Op* op) {
  const char* wish = text_setting("FAKE_HANG", "");
  const size_t length = strcspn(wish, ":");
  int from = 0, to = 0;
  if (strlen(op->name) != length || strncmp(op->name, wish, length) != 0) return false;
  return sscanf(wish + length, ":%d>%d", &from, &to) < 2 ||
         (owner_of(op->arguments[kSource]) == from && owner_of(op->arguments[kTarget]) == to);
}

// Runs a stream's next operation; false where it has to wait.
static bool step(Stream* stream) {
  const Op* op = stream->first;
  if (op == NULL || stream->capturing || sticky_error(stream->gpu) != kSuccess) return false;
  if (op->clique != NULL && op->clique->aborted[op->rank]) {
    pop(stream);
    return true;
  }
  if (hangs(op)) return false;
  if (op->clique != NULL) return run_collective(op->clique) && sticky_error(stream->gpu) == kSuccess;
  if (strcmp(op->name, "block_stream") == 0) {
    if (!pass_block(stream)) return false;
  } else if (strcmp(op->name, "memcpy") == 0 || strcmp(op->name, "copy") == 0) {
    queue_on_engine(stream, op);
  } else if (strcmp(op->name, "stamp") == 0) {
    stream->now += run_stamp(op, stream->gpu, stream->now);
  } else if (strcmp(op->name, "tell_time") == 0) {
    if (!run_tell_time(op, stream->gpu, &stream->now)) return false;
  } else if (strcmp(op->name, "chase") == 0) {
    stream->now += run_chase(op, stream->gpu);
  } else if (strcmp(op->name, "wait") == 0) {
    if (op->event->finished < op->arguments[0]) return false;
    const double seen = op->event->gpu == stream->gpu ? 0 : by_gpu("FAKE_EVENT_LATENCY", stream->gpu, 0);
    if (stream->now < op->event->time + seen) stream->now = op->event->time + seen;
  } else if (op->event != NULL) {
    op->event->time = stream->now;
    ++op->event->finished;
  } else {
    run_kernel(op, stream->gpu);
    stream->now += 1e-6;  // verification and filling are not measured: any time will do
  }
  pop(stream);
  return true;
}

void run_ready(void) {
  for (bool moved = true; moved;) {
    moved = false;
    for (Stream* stream = streams; stream != NULL; stream = stream->next)
      while (step(stream)) moved = true;
  }
}
