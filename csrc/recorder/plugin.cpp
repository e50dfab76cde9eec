// A profiler plugin for NCCL that records which calls a rank makes (docs/record.md). It links only the C and C++
// runtimes, never returns an error to NCCL, and unless the user wants GPU times, asks NCCL for nothing that slows a
// kernel or a graph down.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <type_traits>

#include "nccl_profiler.hpp"
#include "stream.hpp"

namespace recorder {
namespace {

constexpr uint32_t MAX_STREAMS = 64;  // ranks of one process

// The handle of an event that NCCL keeps is a number, not a pointer: NCCL may pass it back late, or twice.
enum Kind : uint64_t { GROUPED = 1, CALLED = 2, LAUNCHED = 3, RUNNING = 4 };

void* handle(Kind kind, uint64_t index, uint64_t number) {
  return reinterpret_cast<void*>(number << 12 | index << 4 | kind);
}
bool is(void* any, Kind kind) { return (reinterpret_cast<uint64_t>(any) & 15) == kind; }
uint64_t number_of(void* any) { return reinterpret_cast<uint64_t>(any) >> 12; }
uint64_t index_of(void* any) { return reinterpret_cast<uint64_t>(any) >> 4 & 255; }

struct Context {
  int index = NONE;  // NONE before the first event of ABI v1 to v3
  int communicator = NONE;
  int device = NONE;
  int rank = NONE;  // in the communicator; NONE where init does not report it
  bool counted = false;
  int process = 0;
};

pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;  // of streams and communicators; taken before a stream's lock
Stream* streams[MAX_STREAMS];
std::atomic<uint32_t> stream_count{0};
std::atomic<uint64_t> groups{0};
int process = getpid();
bool failed = false;

// In a forked child: leaves to the parent its communicators and its streams, which are mapped here too. What the child
// makes itself gets streams of its own.
void forget_parent() {
  opening = PTHREAD_MUTEX_INITIALIZER;  // another thread of the parent may have held it
  for (Stream*& stream : streams) stream = nullptr;
  stream_count = 0;
  process = getpid();
}

uint64_t now() { return nanoseconds(CLOCK_MONOTONIC); }

struct Locked {
  explicit Locked(pthread_mutex_t& held) : mutex(held) { pthread_mutex_lock(&mutex); }
  ~Locked() { pthread_mutex_unlock(&mutex); }
  Locked(const Locked&) = delete;
  pthread_mutex_t& mutex;
};

// The device of this thread, which NCCL sets before it makes a communicator; NONE without CUDA.
int current_device() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  if (!driver) return NONE;
  auto ask = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuCtxGetDevice"));
  int device = NONE;
  if (!ask || ask(&device)) device = NONE;
  dlclose(driver);
  return device;
}

// The version of the NCCL whose code contains the address `caller`; 0 if it cannot be found.
int nccl_version(void* caller) {
  Dl_info found;
  if (!dladdr(caller, &found) || !found.dli_fname) return 0;
  void* nccl = dlopen(found.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  if (!nccl) return 0;
  auto ask = reinterpret_cast<int (*)(int*)>(dlsym(nccl, "ncclGetVersion"));
  int version = 0;
  if (ask && ask(&version)) version = 0;
  dlclose(nccl);
  return version;
}

// Leaves an empty file whose name says why there is no stream.
void leave_note(const char* folder, int error) {
  char host[256] = "host", path[4096];
  gethostname(host, sizeof host - 1);
  if (snprintf(path, sizeof path, "%s/%s-%d.failed-%d", folder, host, getpid(), error) >= static_cast<int>(sizeof path))
    return;
  const int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (file >= 0) close(file);
}

// Whether events of kernels are wanted. Read once, because NCCL's counts would be wrong after a change.
bool wants_gpu_times() {
  static const bool wanted = [] {
    const char* word = getenv("COLLBENCH_RECORD_GPU_TIMES");
    return word && !strcmp(word, "1");
  }();
  return wanted;
}

const char* folder() { return getenv("COLLBENCH_RECORD_FOLDER"); }

// Returns the index of the stream of a communicator's rank: the stream of the same GPU, or where the GPU is unknown the
// first one that holds no other rank of that communicator. The caller holds `opening`.
int index_for(int device, uint64_t hash, int rank, int abi, void* caller) {
  const char* place = folder();
  if (!place || !*place || failed) return NONE;
  const uint32_t count = stream_count;
  for (uint32_t index = 0; index < count; ++index) {
    const bool same = device == NONE || streams[index]->device() == NONE
                          ? !streams[index]->holds_another_rank(hash, rank)
                          : streams[index]->device() == device;
    if (same) return static_cast<int>(index);
  }
  if (count == MAX_STREAMS) return NONE;
  Stream* made = new (std::nothrow) Stream;
  int error = 12;  // ENOMEM
  try {
    if (made) error = made->open(place, count, device, abi, nccl_version(caller), wants_gpu_times());
  } catch (const std::bad_alloc&) {
  }
  if (error) {
    delete made;
    leave_note(place, error);
    failed = true;
    return NONE;
  }
  streams[count] = made;
  stream_count = count + 1;
  return static_cast<int>(count);
}

void attach(Context& context, uint64_t hash, int rank, int ranks, int nodes, const char* name, int abi, void* caller) {
  // Until the stream has the communicator, another rank of it must not look for a stream.
  const Locked alone(opening);
  context.index = index_for(context.device, hash, rank, abi, caller);
  if (context.index == NONE) return;
  Stream& stream = *streams[context.index];
  const Locked held(stream.lock);
  context.communicator = stream.communicator(hash, rank, ranks, nodes, name);
  if (!context.counted) stream.opened();
  context.counted = true;
}

struct ExitMark {
  ExitMark() { pthread_atfork(nullptr, nullptr, forget_parent); }
  ~ExitMark() {
    if (process != getpid()) return;  // a child that no handler saw, of clone() or _Fork()
    for (uint32_t index = 0; index < stream_count; ++index) streams[index]->close_at_exit();
  }
} exit_mark;

// In the order of Function: NCCL's name, whether the call has a root, and whether it reduces.
constexpr struct {
  const char* name;
  bool rooted, reduces;
} FUNCTIONS[] = {{"", false, false},      {"AllReduce", false, true},  {"Broadcast", true, false},
                 {"Reduce", true, true},  {"AllGather", false, false}, {"ReduceScatter", false, true},
                 {"Send", false, false},  {"Recv", false, false},      {"AllToAll", false, false},
                 {"Gather", true, false}, {"Scatter", true, false}};

// Letters may differ in case: NCCL has written AlltoAll and AllToAll.
Function function_of(const char* name) {
  uint8_t number = 0;
  for (const auto& row : FUNCTIONS) {
    if (name && !strcasecmp(name, row.name)) return static_cast<Function>(number);
    ++number;
  }
  return Function::UNKNOWN;
}

Function function_of(uint8_t number) {  // ncclFunc_t of NCCL 2.23
  static constexpr Function NUMBERS[] = {Function::BROADCAST,      Function::REDUCE,     Function::ALL_GATHER,
                                         Function::REDUCE_SCATTER, Function::ALL_REDUCE, Function::UNKNOWN,
                                         Function::SEND,           Function::RECEIVE};
  return number < sizeof NUMBERS ? NUMBERS[number] : Function::UNKNOWN;
}

// ncclDataType_t. ncclDatatypeToString knows all types but ncclUint8, which it calls "Unknown" [2.24 to 2.30].
uint8_t datatype_of(const char* name) {
  static constexpr const char* NAMES[] = {"ncclInt8",    "Unknown",      "ncclInt32",      "ncclUint32",
                                          "ncclInt64",   "ncclUint64",   "ncclFloat16",    "ncclFloat32",
                                          "ncclFloat64", "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  uint8_t number = 0;
  for (const char* one : NAMES) {
    if (name && !strcmp(name, one)) return number;
    ++number;
  }
  return name && !strcmp(name, "ncclUint8") ? 1 : 255;
}
uint8_t datatype_of(uint8_t number) { return number; }

template <class Name, class Type>
Call call_of(const Context& context, Name function, size_t count, Type datatype) {
  Call call{};
  call.count = count;
  call.root = call.peer = NONE;
  call.communicator = static_cast<uint16_t>(context.communicator);
  call.function = static_cast<uint8_t>(function_of(function));
  call.datatype = datatype_of(datatype);
  return call;
}

template <class Collective>
Call collective_of(const Context& context, const Collective& event) {
  Call call = call_of(context, event.function, event.count, event.datatype);
  if (FUNCTIONS[call.function].rooted) call.root = event.root;
  if constexpr (std::is_same_v<Collective, CollectiveV1>) {
    if (FUNCTIONS[call.function].reduces && event.reduction < 5)
      call.reduction = static_cast<uint8_t>(event.reduction + 1);
  }
  return call;
}

// The direction of a message: a channel runs one message of each direction at a time.
template <class Event>
bool receives(const Event& event) {
  return event.type == POINT_TO_POINT && function_of(event.point_to_point.function) == Function::RECEIVE;
}

template <class Event>
void note_launch(Stream& stream, const Context& context, const Event& event, uint64_t number) {
  if (event.type == POINT_TO_POINT) {
    const auto& message = event.point_to_point;
    stream.launched(number, message.peer, message.channels);
    if (message.peer == context.rank) stream.sends_to_itself(context.communicator, number);
  } else {
    stream.launched(number, NONE, event.collective.channels);
  }
}

// A call begins on one channel. The event's parent is the launched call.
template <class Event>
void begin_kernel(void** result, const Event& event) {
  if (!is(event.parent, LAUNCHED) || index_of(event.parent) >= stream_count) return;
  const uint64_t time = now(), number = number_of(event.parent);
  const uint32_t channel = event.kernel_channel.channel * 2u + number % 2;
  Stream& stream = *streams[index_of(event.parent)];
  const Locked held(stream.lock);
  const uint64_t run = stream.began(number / 2, channel, event.kernel_channel.timer, time);
  if (run) *result = handle(RUNNING, index_of(event.parent), run);
}

// ABI v1 to v4, and v5 where a launch has no call of the API: a call is reported when NCCL launches it. The event's
// parent is the group of one launch.
template <int ABI, class Event>
uint64_t record_at_launch(const Context& context, const Event& event) {
  Call call{};
  if (event.type == COLLECTIVE) {
    call = collective_of(context, event.collective);
  } else {
    call = call_of(context, event.point_to_point.function, event.point_to_point.count, event.point_to_point.datatype);
    call.peer = event.point_to_point.peer;
  }
  const uint64_t start = now();
  Stream& stream = *streams[context.index];
  const Locked held(stream.lock);
  const uint64_t number = stream.add(call, start, is(event.parent, GROUPED) ? number_of(event.parent) : 0, false);
  if constexpr (ABI >= GPU_CLOCK_ABI) note_launch(stream, context, event, number);
  return number;
}

template <class Event>
void identify(Context& context, const Event& event, int abi, void* caller) {
  const bool collective = event.type == COLLECTIVE;
  const uint64_t hash = collective ? event.collective.comm_hash : event.point_to_point.comm_hash;
  const char* name = collective ? event.collective.name : event.point_to_point.name;
  attach(context, hash, event.rank, 0, 0, name, abi, caller);
}

// ABI v5 and later: a call of the API is reported before it is launched.
template <class Event>
uint64_t record_at_call(const Context& context, const Event& event) {
  const uint64_t time = now(), group = is(event.parent, GROUPED) ? number_of(event.parent) : 0;
  const bool peered = event.type == POINT_TO_POINT_API;
  Call call{};
  if (peered) {
    const PointToPointApi& api = event.point_to_point_api;
    call = call_of(context, api.function, api.count, api.datatype);
    call.captured = api.captured;
  } else {
    const CollectiveApi& api = event.collective_api;
    call = call_of(context, api.function, api.count, api.datatype);
    if (FUNCTIONS[call.function].rooted) call.root = api.root;
    call.captured = api.captured;
  }
  Stream& stream = *streams[context.index];
  const Locked held(stream.lock);
  return stream.add(call, time, group, peered);
}

bool recorded(const Context& context) { return context.index != NONE && context.communicator != NONE; }

// A call of a communicator for which the stream had no room.
void drop(const Context& context) {
  if (context.index == NONE) return;
  Stream& stream = *streams[context.index];
  const Locked held(stream.lock);
  stream.unplaced();
}

template <int ABI, class Event>
int start(void* any, void** result, Event* event) {
  *result = nullptr;
  auto* context = static_cast<Context*>(any);
  if (!context || !event || context->process != process) return SUCCESS;
  if constexpr (ABI >= 5) {
    if (event->type == GROUP_API) {
      *result = handle(GROUPED, 0, ++groups);
      return SUCCESS;
    }
    if (event->type == COLLECTIVE_API || event->type == POINT_TO_POINT_API) {
      if (recorded(*context)) {
        *result = handle(CALLED, static_cast<uint64_t>(context->index), record_at_call(*context, *event));
      } else {
        drop(*context);
      }
      return SUCCESS;
    }
  }
  if (event->type == GROUP) {
    *result = handle(GROUPED, 0, ++groups);
    return SUCCESS;
  }
  if constexpr (ABI >= GPU_CLOCK_ABI) {
    if (event->type == KERNEL_CHANNEL) begin_kernel(result, *event);
  }
  if (event->type != COLLECTIVE && event->type != POINT_TO_POINT) return SUCCESS;
  if constexpr (ABI <= 3) {
    if (context->index == NONE) identify(*context, *event, ABI, __builtin_return_address(0));
  }
  if (!recorded(*context)) {
    if constexpr (ABI < 5) drop(*context);
    return SUCCESS;
  }
  if constexpr (ABI >= 5) {
    if (is(event->parent, CALLED) && index_of(event->parent) < stream_count) {
      const uint64_t number = number_of(event->parent);
      Stream& stream = *streams[index_of(event->parent)];
      const Locked held(stream.lock);
      note_launch(stream, *context, *event, number);
      *result = handle(LAUNCHED, index_of(event->parent), number * 2 + receives(*event));
      return SUCCESS;
    }
  }
  const uint64_t number = record_at_launch<ABI>(*context, *event);
  *result = handle(LAUNCHED, static_cast<uint64_t>(context->index), number * 2 + receives(*event));
  return SUCCESS;
}

int stop(void*) { return SUCCESS; }

int state(void* any, int state, StateArguments* arguments) {
  if (state != KERNEL_CHANNEL_STOP || !is(any, RUNNING) || !arguments || index_of(any) >= stream_count) return SUCCESS;
  const uint64_t time = now();
  Stream& stream = *streams[index_of(any)];
  const Locked held(stream.lock);
  stream.ended(number_of(any), arguments->kernel_channel.timer, time);
  return SUCCESS;
}

int finalize(void* any) {
  auto* context = static_cast<Context*>(any);
  if (!context) return SUCCESS;
  if (context->counted && context->process == process) {
    Stream& stream = *streams[context->index];
    const Locked held(stream.lock);
    stream.finalized(context->communicator);
  }
  delete context;
  return SUCCESS;
}

Context* new_context(void** any) {
  *any = nullptr;
  if (!folder()) return nullptr;
  Context* made = new (std::nothrow) Context;
  if (!made) return nullptr;
  made->device = current_device();
  made->process = process;
  *any = made;
  return made;
}

// All communicators of the process share one mask: it is set once, and never reduced while another one records.
constexpr int AT_LAUNCH = GROUP | COLLECTIVE | POINT_TO_POINT;
constexpr int AT_CALL = GROUP_API | COLLECTIVE_API | POINT_TO_POINT_API | COLLECTIVE | POINT_TO_POINT;

int init_v1(void** any, int* mask) {
  *mask = new_context(any) ? AT_LAUNCH : 0;
  return SUCCESS;
}

int init_named(void** any, int* mask, const char* name, uint64_t hash, int nodes, int ranks, int rank, int abi,
               void* caller) {
  Context* context = new_context(any);
  if (!context) {
    if (!stream_count) *mask = 0;
    return SUCCESS;
  }
  context->rank = rank;
  attach(*context, hash, rank, ranks, nodes, name, abi, caller);
  if (context->index == NONE) {
    if (!stream_count) *mask = 0;
  } else {
    *mask = (abi >= 5 ? AT_CALL : AT_LAUNCH) | (wants_gpu_times() ? KERNEL_CHANNEL : 0);
  }
  return SUCCESS;
}

int init_v4(void** any, int* mask, const char* name, uint64_t hash, int nodes, int ranks, int rank, void*) {
  return init_named(any, mask, name, hash, nodes, ranks, rank, 4, __builtin_return_address(0));
}

template <int ABI>
int init_v5(void** any, uint64_t hash, int* mask, const char* name, int nodes, int ranks, int rank, void*) {
  return init_named(any, mask, name, hash, nodes, ranks, rank, ABI, __builtin_return_address(0));
}

constexpr const char* NAME = "collbench";

}  // namespace

#define EXPORTED __attribute__((visibility("default")))

extern "C" {
extern const EXPORTED Plugin<InitV1, DescriptorV1> ncclProfiler_v1;
extern const EXPORTED Plugin<InitV1, DescriptorV2> ncclProfiler_v2, ncclProfiler_v3;
extern const EXPORTED Plugin<InitV4, DescriptorV4> ncclProfiler_v4;
extern const EXPORTED Plugin<InitV5, DescriptorV5> ncclProfiler_v5, ncclProfiler_v6;

const Plugin<InitV1, DescriptorV1> ncclProfiler_v1 = {NAME, init_v1, start<1, DescriptorV1>, stop, state, finalize};
const Plugin<InitV1, DescriptorV2> ncclProfiler_v2 = {NAME, init_v1, start<2, DescriptorV2>, stop, state, finalize};
const Plugin<InitV1, DescriptorV2> ncclProfiler_v3 = {NAME, init_v1, start<3, DescriptorV2>, stop, state, finalize};
const Plugin<InitV4, DescriptorV4> ncclProfiler_v4 = {NAME, init_v4, start<4, DescriptorV4>, stop, state, finalize};
const Plugin<InitV5, DescriptorV5> ncclProfiler_v5 = {NAME, init_v5<5>, start<5, DescriptorV5>, stop, state, finalize};
const Plugin<InitV5, DescriptorV5> ncclProfiler_v6 = {NAME, init_v5<6>, start<6, DescriptorV5>, stop, state, finalize};
}

}  // namespace recorder
