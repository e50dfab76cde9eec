// What NCCL passes to a profiler plugin, ABI v1 (NCCL 2.23) to v6 (2.29): our own declarations, with the fields that
// the plugin reads at the same offsets. tests/native/recorded_host.cpp fills such structures as NCCL does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace recorder {

constexpr int SUCCESS = 0;  // ncclSuccess

// Kinds of events, which are also the bits of the activation mask [profiler.h].
enum Event : int {
  GROUP = 1 << 0,
  COLLECTIVE = 1 << 1,
  POINT_TO_POINT = 1 << 2,
  KERNEL_CHANNEL = 1 << 6,
  GROUP_API = 1 << 8,
  COLLECTIVE_API = 1 << 9,
  POINT_TO_POINT_API = 1 << 10,
};

constexpr int KERNEL_CHANNEL_STOP = 22;  // ncclProfilerKernelChStop

// v1 knows functions, types and reductions by number.
struct CollectiveV1 {
  const char* name;
  uint64_t comm_hash;
  uint64_t sequence;
  uint8_t function;
  const void* send;
  void* receive;
  size_t count;
  int root;
  uint8_t datatype;
  uint32_t reduction;
};

struct PointToPointV1 {
  const char* name;
  uint64_t comm_hash;
  uint8_t function;
  void* buffer;
  uint8_t datatype;
  size_t count;
  int peer;
};

// v2 and v3.
struct CollectiveV2 {
  const char* name;
  uint64_t comm_hash;
  uint64_t sequence;
  const char* function;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
};

struct PointToPointV2 {
  const char* name;
  uint64_t comm_hash;
  const char* function;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
};

// v4 to v6: the communicator was reported at init.
struct CollectiveV4 {
  uint64_t sequence;
  const char* function;
  const void* send;
  void* receive;
  size_t count;
  int root;
  const char* datatype;
  uint8_t channels;
};

struct PointToPointV4 {
  const char* function;
  void* buffer;
  const char* datatype;
  size_t count;
  int peer;
  uint8_t channels;
};

struct KernelChannel {
  uint8_t channel;
  uint64_t timer;  // the GPU's globaltimer, ns
};

// v5 and v6.
struct CollectiveApi {
  const char* function;
  size_t count;
  const char* datatype;
  int root;
  void* stream;
  bool captured;
};

struct PointToPointApi {
  const char* function;
  size_t count;
  const char* datatype;
  void* stream;
  bool captured;
};

template <class Type, class Collective, class PointToPoint>
struct Descriptor {
  Type type;
  void* parent;
  int rank;
  union {
    Collective collective;
    PointToPoint point_to_point;
    KernelChannel kernel_channel;
    CollectiveApi collective_api;
    PointToPointApi point_to_point_api;
  };
};

using DescriptorV1 = Descriptor<uint8_t, CollectiveV1, PointToPointV1>;
using DescriptorV2 = Descriptor<uint8_t, CollectiveV2, PointToPointV2>;
using DescriptorV4 = Descriptor<uint8_t, CollectiveV4, PointToPointV4>;
using DescriptorV5 = Descriptor<uint64_t, CollectiveV4, PointToPointV4>;

union StateArguments {
  struct {
    uint64_t timer;
  } kernel_channel;
};

template <class Init, class Event>
struct Plugin {
  const char* name;
  Init init;
  int (*start)(void* context, void** handle, Event* event);
  int (*stop)(void* handle);
  int (*state)(void* handle, int state, StateArguments* arguments);
  int (*finalize)(void* context);
};

using InitV1 = int (*)(void** context, int* mask);
using InitV4 = int (*)(void** context, int* mask, const char* name, uint64_t hash, int nodes, int ranks, int rank,
                       void* log);
using InitV5 = int (*)(void** context, uint64_t hash, int* mask, const char* name, int nodes, int ranks, int rank,
                       void* log);

}  // namespace recorder
