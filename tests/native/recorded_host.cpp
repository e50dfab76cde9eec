// Stands in for NCCL to drive the profiler plugin: reads a script on stdin and makes the calls that NCCL's releases
// make (plugin/profiler.cc of 2.23 to 2.30), of the requested ABI. Its structures are written from the headers' text,
// apart from the plugin's own: what they share is the binary interface.
//
//   recorded_host PLUGIN ABI
//     comm ID HASH RANK RANKS NAME          init
//     call COMM FUNC COUNT DTYPE ROOT_OR_PEER CAPTURED
//     (  )                                  ncclGroupStart, ncclGroupEnd
//     repeat N … end     threads N … end    threads: thread i uses communicator COMM + i; in `comm`, also rank RANK + i
//     fork … end                            the block runs in a child, which then leaves by exit()
//     finalize ID   kill   _exit   sleep US   clock (prints the ns a call took, from the clock before)
//     gpu NS CHANNELS MODE                  how the next calls run on the GPU, where kernel events were requested
//     drain   replay                        report what the mode `late` held back; run the captured calls again
//     virtual                               from here on CLOCK_MONOTONIC stands still but for `sleep` and `gpu`
//     mark                                  what collbench.step() writes
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

struct V1 {
  uint8_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      const char* name;
      uint64_t commHash, seqNumber;
      uint8_t func;
      void const* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      uint8_t datatype;
      uint32_t op;
      size_t trafficBytes;
      uint8_t nMaxChannels, nWarps, algo, proto;
      int isCollnet, isNvls;
    } coll;
    struct {
      const char* name;
      uint64_t commHash;
      uint8_t func;
      void* buff;
      uint8_t datatype;
      size_t count;
      int peer;
    } p2p;
  };
};
struct V2 {
  uint8_t type;
  void* parentObj;
  int rank;
  union {
    struct {
      const char* name;
      uint64_t commHash, seqNumber;
      const char* func;
      void const* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      size_t trafficBytes;
      uint8_t nMaxChannels, nWarps;
      const char *algo, *proto;
    } coll;
    struct {
      const char* name;
      uint64_t commHash;
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
    } p2p;
  };
};
template <class Type>
struct Later {
  Type type;
  void* parentObj;
  int rank;
  union {
    struct {
      bool graphCaptured;
      int groupDepth;
    } groupApi;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      int root;
      void* stream;
      bool graphCaptured;
    } collApi;
    struct {
      const char* func;
      size_t count;
      const char* datatype;
      void* stream;
      bool graphCaptured;
    } p2pApi;
    struct {
      uint64_t seqNumber;
      const char* func;
      void const* sendBuff;
      void* recvBuff;
      size_t count;
      int root;
      const char* datatype;
      uint8_t nChannels, nWarps;
      const char *algo, *proto;
      void* parentGroup;
    } coll;
    struct {
      const char* func;
      void* buff;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t nChannels;
      void* parentGroup;
    } p2p;
    struct {
      uint8_t channelId;
      uint64_t pTimer;
    } kernelCh;
  };
};
union StateArgs {
  struct {
    uint64_t pTimer;
  } kernelCh;
  struct {
    void* data;
  } netPlugin;
};
using V4 = Later<uint8_t>;
using V5 = Later<uint64_t>;

struct Plugin {
  const char* name;
  void* init;
  int (*start)(void*, void**, void*);
  int (*stop)(void*);
  int (*state)(void*, int, void*);
  int (*finalize)(void*);
};
struct Comm {
  void* context;
  uint64_t hash;
  int rank;
  std::string name;
};
struct CallLine {
  int comm;
  std::string func, dtype;
  size_t count;
  int root, captured;
};
struct Line {
  std::string word;
  std::vector<std::string> rest;
  CallLine call;
  std::vector<Line> block;
};

static Plugin* plugin;
static int abi;
static bool kernels = false;  // kernel events were requested

// The plugin finds this one first.
static std::atomic<int64_t> virtual_ns{0};
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const int64_t ns = virtual_ns;
  if (!ns || clock != CLOCK_MONOTONIC) return static_cast<int>(syscall(SYS_clock_gettime, clock, now));
  now->tv_sec = ns / 1000000000;
  now->tv_nsec = ns % 1000000000;
  return 0;
}

static uint64_t host_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}
// The GPU's clock has another beginning than the host's.
static uint64_t gpu_ns() { return host_ns() + 1700000000123456789u; }

struct Gpu {
  uint64_t took = 20000;
  unsigned channels = 2;
  std::string mode = "fine";
};
static Gpu gpu;
static std::vector<std::function<void()>> held_back;  // by the mode `late`
static std::vector<std::function<void()>> captured;
static std::map<unsigned, std::pair<uint64_t, uint64_t>> ran;  // by channel: what NCCL last reported
static std::mutex listed;                                      // guards these three, and what `comm` writes

template <class V>
static void run_on_gpu(void* context, void* task, Gpu how) {
  if (!kernels || !task || how.mode == "none") return;
  uint64_t begin = gpu_ns();
  const auto spread = [](unsigned channel) { return channel * 160u; };  // a channel begins and ends after the last
  if (virtual_ns) virtual_ns += static_cast<int64_t>(how.took + spread(how.channels));
  while (gpu_ns() < begin + how.took + spread(how.channels)) {
  }
  if (how.mode == "old") begin -= 3600000000000u;
  std::vector<std::function<void()>> starts, stops;
  std::unique_lock<std::mutex> lock(listed);
  auto handles = std::make_shared<std::vector<void*>>(how.channels, nullptr);
  for (unsigned channel = 0; channel < how.channels; ++channel) {
    uint64_t first = begin + spread(channel), last = first + how.took;
    if (how.mode == "stale" && ran.count(channel)) std::tie(first, last) = ran[channel];
    if (how.mode == "backwards") std::swap(first, last);
    if (how.mode == "zero") first = last = 0;
    if (how.mode == "instant") first = last = begin;
    if (how.mode == "long") last = first + 3600000000000u;
    if (how.mode == "endless") last = ~uint64_t{0};
    const bool unreported = how.mode == "late" || (how.mode == "nostart" && channel + 1 == how.channels);
    if (!unreported) ran[channel] = {first, last};
    starts.push_back([=] {
      V event;
      memset(&event, 0, sizeof event);
      event.type = 64;
      event.parentObj = task;
      event.kernelCh.channelId = static_cast<uint8_t>(channel);
      event.kernelCh.pTimer = first;
      plugin->start(context, &(*handles)[channel], &event);
    });
    stops.push_back([=] {
      void* handle = (*handles)[channel];
      if (!handle) return;
      StateArgs args;
      args.kernelCh.pTimer = last;
      plugin->state(handle, 22, &args);
      if (how.mode == "twice") plugin->state(handle, 22, &args);
      plugin->stop(handle);
    });
  }
  if (how.mode == "nostop") stops.pop_back();
  if (how.mode == "nostart") starts.pop_back();
  std::reverse(stops.begin(), stops.end());
  const auto report = [=] {
    for (size_t n = 0; n < starts.size(); ++n) {
      starts[n]();
      if (how.mode == "turn") stops[stops.size() - 1 - n]();
    }
    if (how.mode != "turn")
      for (const auto& stop : stops) stop();
  };
  if (how.mode == "late") {
    held_back.push_back(report);
  } else {
    lock.unlock();
    report();
  }
}
static std::map<int, Comm> comms;
static const std::vector<std::string> NUMBERED = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                                  "AllReduce", "SendRecv", "Send",      "Recv"};
static const std::vector<std::string> TYPES = {"ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",
                                               "ncclInt64",   "ncclUint64",  "ncclFloat16", "ncclFloat32",
                                               "ncclFloat64", "ncclBfloat16"};
static const size_t WIDTHS[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

static uint8_t index_of(const std::vector<std::string>& names, const std::string& name) {
  for (size_t n = 0; n < names.size(); ++n)
    if (names[n] == name) return static_cast<uint8_t>(n);
  abort();
}
static bool p2p(const CallLine& call) { return call.func == "Send" || call.func == "Recv"; }

// NCCL has no proxy operation for it, and so no event of a kernel.
static bool to_itself(const CallLine& call, const Comm& comm) { return p2p(call) && call.root == comm.rank; }

// What the launch reports of a collective: all-gather and broadcast are bytes by then.
static void launched(const CallLine& call, size_t* count, uint8_t* type) {
  *type = index_of(TYPES, call.dtype);
  *count = call.count;
  if (call.func == "AllGather" || call.func == "Broadcast") *count *= WIDTHS[*type], *type = 0;
}
static const char* type_name(uint8_t type) { return type == 1 ? "Unknown" : TYPES[type].c_str(); }

template <class V>
static void begin(Comm& comm, V& event, void** handle) {
  *handle = nullptr;
  if (comm.context || abi <= 3) plugin->start(comm.context, handle, &event);
}

template <class V>
static void describe(V& event, const CallLine& call, Comm& comm, void* parent) {
  memset(&event, 0, sizeof event);
  event.rank = comm.rank;
  event.parentObj = parent;
  size_t count;
  uint8_t type;
  launched(call, &count, &type);
  event.type = p2p(call) ? 4 : 2;
  if constexpr (std::is_same_v<V, V1>) {
    if (p2p(call)) {
      event.p2p.name = comm.name.c_str(), event.p2p.commHash = comm.hash,
      event.p2p.func = index_of(NUMBERED, call.func);
      event.p2p.datatype = type, event.p2p.count = count, event.p2p.peer = call.root;
    } else {
      event.coll.name = comm.name.c_str(), event.coll.commHash = comm.hash;
      event.coll.func = index_of(NUMBERED, call.func), event.coll.count = count, event.coll.root = call.root;
      event.coll.datatype = type, event.coll.op = 2;
    }
  } else if (p2p(call)) {
    if constexpr (std::is_same_v<V, V2>) event.p2p.name = comm.name.c_str(), event.p2p.commHash = comm.hash;
    event.p2p.func = call.func.c_str(), event.p2p.datatype = type_name(type), event.p2p.count = count;
    event.p2p.peer = call.root;
    if constexpr (!std::is_same_v<V, V2>) event.p2p.nChannels = static_cast<uint8_t>(gpu.channels);
  } else {
    if constexpr (!std::is_same_v<V, V2>) event.coll.nChannels = static_cast<uint8_t>(gpu.channels);
    if constexpr (std::is_same_v<V, V2>) event.coll.name = comm.name.c_str(), event.coll.commHash = comm.hash;
    event.coll.func = call.func.c_str(), event.coll.datatype = type_name(type), event.coll.count = count;
    event.coll.root = call.root;
  }
}

// Releases before 2.28: a group event for each launch, which is of one communicator.
template <class V>
static void launch_only(const std::vector<CallLine>& calls, int shift) {
  for (size_t from = 0; from < calls.size();) {
    Comm& comm = comms.at(calls[from].comm + shift);
    V event;
    memset(&event, 0, sizeof event);
    event.type = 1;
    void* group;
    begin(comm, event, &group);
    std::vector<void*> handles;
    std::vector<size_t> tasks;
    for (; from < calls.size() && &comms.at(calls[from].comm + shift) == &comm; ++from) {
      describe(event, calls[from], comm, group);
      void* handle;
      begin(comm, event, &handle);
      handles.push_back(handle);
      tasks.push_back(from);
    }
    for (void* handle : handles)
      if (handle) plugin->stop(handle);
    if (group) plugin->stop(group);
    if constexpr (std::is_same_v<V, V4>) {
      for (size_t n = 0; n < handles.size(); ++n)
        if (!to_itself(calls[tasks[n]], comm)) run_on_gpu<V>(comm.context, handles[n], gpu);
    }
  }
}

static void call_and_launch(const std::vector<CallLine>& calls, int shift, bool backwards) {
  void* group = nullptr;
  std::vector<void*> apis;
  V5 event;
  for (const CallLine& call : calls) {
    Comm& comm = comms.at(call.comm + shift);
    if (!group) {
      memset(&event, 0, sizeof event);
      event.type = 256;
      begin(comm, event, &group);
      if (group) plugin->state(group, 23, nullptr);
    }
    memset(&event, 0, sizeof event);
    event.type = p2p(call) ? 1024 : 512;
    event.parentObj = group;
    if (p2p(call)) {
      event.p2pApi = {call.func.c_str(), call.count, type_name(index_of(TYPES, call.dtype)), nullptr,
                      call.captured != 0};
    } else {
      event.collApi = {call.func.c_str(), call.count, type_name(index_of(TYPES, call.dtype)),
                       call.root,         nullptr,    call.captured != 0};
    }
    void* api;
    begin(comm, event, &api);
    apis.push_back(api);
    if (api) plugin->stop(api);
  }
  if (group) plugin->state(group, 24, nullptr);
  std::vector<void*> handles;
  const auto launch = [shift](const CallLine& call, void* api) {
    Comm& comm = comms.at(call.comm + shift);
    V5 task;
    describe(task, call, comm, api);
    void* handle;
    begin(comm, task, &handle);
    return handle;
  };
  const auto one = [&](size_t n) { return backwards ? calls.size() - 1 - n : n; };  // NCCL has an order of its own
  for (size_t n = 0; n < calls.size(); ++n) handles.push_back(launch(calls[one(n)], apis[one(n)]));
  for (void* handle : handles)
    if (handle) plugin->stop(handle);
  if (group) plugin->stop(group);
  for (size_t n = 0; n < calls.size(); ++n) {
    const CallLine call = calls[one(n)];
    const Comm& comm = comms.at(call.comm + shift);
    if (to_itself(call, comm)) continue;
    if (!call.captured) {
      run_on_gpu<V5>(comm.context, handles[n], gpu);
    } else if (kernels) {
      const std::lock_guard<std::mutex> lock(listed);
      captured.push_back([=, api = apis[one(n)], how = gpu] {
        void* task = launch(call, api);
        run_on_gpu<V5>(comm.context, task, how);
        if (task) plugin->stop(task);
      });
    }
  }
}

static void send(const std::vector<CallLine>& calls, int shift) {
  if (abi == 1) launch_only<V1>(calls, shift);
  if (abi == 2 || abi == 3) launch_only<V2>(calls, shift);
  if (abi == 4) launch_only<V4>(calls, shift);
  if (abi >= 5) call_and_launch(calls, shift, true);
}

static std::vector<Line> parse(std::istream& in) {
  std::vector<Line> lines;
  for (std::string text; std::getline(in, text);) {
    std::istringstream words(text);
    Line line;
    words >> line.word;
    if (line.word == "end") break;
    for (std::string word; words >> word;) line.rest.push_back(word);
    if (line.word == "call") {
      const auto& r = line.rest;
      line.call = {atoi(r[0].c_str()), r[1], r[3], strtoull(r[2].c_str(), nullptr, 10), atoi(r[4].c_str()),
                   atoi(r[5].c_str())};
    }
    if (line.word == "repeat" || line.word == "threads" || line.word == "fork") line.block = parse(in);
    lines.push_back(line);
  }
  return lines;
}

static double clock_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e9 + now.tv_nsec;
}
static double last = clock_ns();
static long sent;

static void run(const std::vector<Line>& lines, int shift) {
  std::vector<CallLine> grouped;
  bool open = false;
  for (const Line& line : lines) {
    const auto& r = line.rest;
    if (line.word == "comm") {
      std::unique_lock<std::mutex> lock(listed);
      Comm& comm = comms[atoi(r[0].c_str()) + shift];
      lock.unlock();
      comm = {nullptr, strtoull(r[1].c_str(), nullptr, 10), atoi(r[2].c_str()) + shift, r.size() > 4 ? r[4] : ""};
      int mask = 0;
      const int ranks = atoi(r[3].c_str());
      const char* name = comm.name.empty() ? nullptr : comm.name.c_str();
      if (abi <= 3) {
        reinterpret_cast<int (*)(void**, int*)>(plugin->init)(&comm.context, &mask);
      } else if (abi == 4) {
        reinterpret_cast<int (*)(void**, int*, const char*, uint64_t, int, int, int, void*)>(plugin->init)(
            &comm.context, &mask, name, comm.hash, 1, ranks, comm.rank, nullptr);
      } else {
        reinterpret_cast<int (*)(void**, uint64_t, int*, const char*, int, int, int, void*)>(plugin->init)(
            &comm.context, comm.hash, &mask, name, 1, ranks, comm.rank, nullptr);
      }
      lock.lock();
      kernels = mask & 64;
      if (kernels) printf("asks for kernel events\n");
    } else if (line.word == "call") {
      __atomic_add_fetch(&sent, 1, __ATOMIC_RELAXED);
      if (open) {
        grouped.push_back(line.call);
      } else {
        send({line.call}, shift);
      }
    } else if (line.word == "(") {
      open = true;
    } else if (line.word == ")") {
      send(grouped, shift);
      grouped.clear();
      open = false;
    } else if (line.word == "repeat") {
      for (long n = atol(r[0].c_str()); n > 0; --n) run(line.block, shift);
    } else if (line.word == "threads") {
      std::vector<std::thread> threads;
      for (int n = 0; n < atoi(r[0].c_str()); ++n) threads.emplace_back([&line, n] { run(line.block, n); });
      for (auto& thread : threads) thread.join();
    } else if (line.word == "fork") {
      const pid_t child = fork();
      if (!child) {
        run(line.block, shift);
        exit(0);
      }
      waitpid(child, nullptr, 0);
    } else if (line.word == "finalize") {
      Comm& comm = comms.at(atoi(r[0].c_str()));
      if (comm.context) plugin->finalize(comm.context);
    } else if (line.word == "gpu") {
      gpu = {strtoull(r[0].c_str(), nullptr, 10), static_cast<unsigned>(atoi(r[1].c_str())), r[2]};
    } else if (line.word == "drain") {
      for (const auto& report : held_back) report();
      held_back.clear();
    } else if (line.word == "replay") {
      for (const auto& again : captured) again();
    } else if (line.word == "sleep") {
      if (virtual_ns) {
        virtual_ns += static_cast<int64_t>(atof(r[0].c_str()) * 1000);
      } else {
        usleep(static_cast<unsigned>(atoi(r[0].c_str())));
      }
    } else if (line.word == "virtual") {
      virtual_ns = static_cast<int64_t>(host_ns());
    } else if (line.word == "mark") {
      char host[256];
      gethostname(host, sizeof host);
      const std::string name =
          std::string(getenv("COLLBENCH_RECORD_FOLDER")) + "/" + host + "-" + std::to_string(getpid()) + "-0.marks";
      const uint64_t now = host_ns();
      FILE* file = fopen(name.c_str(), "ab");
      fwrite(&now, sizeof now, 1, file);
      fclose(file);
    } else if (line.word == "clock") {
      printf("%ld calls, %.0f ns each\n", sent, (clock_ns() - last) / (sent ? sent : 1));
      last = clock_ns();
      sent = 0;
      fflush(stdout);
    } else if (line.word == "_exit") {
      _exit(0);
    } else if (line.word == "kill") {
      fflush(stdout);
      kill(getpid(), SIGKILL);
    }
  }
}

int main(int, char** argv) {
  abi = atoi(argv[2]);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
  plugin = static_cast<Plugin*>(dlsym(library, ("ncclProfiler_v" + std::string(argv[2])).c_str()));
  if (!plugin) return 3;
  run(parse(std::cin), 0);
  return 0;
}
