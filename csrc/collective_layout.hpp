// What one round of collectives is, and what each rank of it sends, receives and must find. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace collbench {

// Ranks of the world, in the group's own rank order.
using Group = std::vector<int>;

enum class Collective {
  allreduce,
  broadcast,
  reduce,
  allgather,
  reducescatter,
  alltoall,
  alltoallv,
  sendrecv,
  gather,
  scatter
};
// Names are torch's; values those of ncclDataType_t [nccl.h 2.24].
enum class Dtype {
  int8,
  uint8,
  int32,
  uint32,
  int64,
  uint64,
  float16,
  float32,
  float64,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2
};
// Values of ncclRedOp_t; `copied` is kernels.cu's, where nothing is reduced.
enum class Reduction { sum, prod, max, min, avg, copied };

// Where a collective's messages lie (registered_memory.hpp): in ordinary memory, in memory of ncclMemAlloc that
// ncclCommRegister knows, or in windows that ncclCommWindowRegister made symmetric.
enum class Registration { none, buffer, window };

std::size_t bytes_of(Dtype dtype);

// A rank of the world that is made late on purpose: its stream is held so long before each single launch.
struct Hold {
  int rank = -1;
  std::uint64_t nanoseconds = 0;
};

struct CollectiveRound {
  std::vector<Group> groups;  // disjoint
  Collective operation;
  Dtype dtype;
  Reduction reduction;    // without meaning where nothing is reduced
  int root;               // rank within each group, where the operation has one
  std::size_t count;      // elements of the whole message: of all ranks' blocks where each rank has its own
  bool in_place;          // receives into the buffer that it sends from, laid out as nccl-tests does
  bool verify;            // checks every element that arrives
  int iterations;         // collectives in a graph, at most 32
  int batches;            // timed launches of the graph
  int warmup;             // untimed launches first
  int launch_iterations;  // collectives in the launch loop, 0 for none
  int launch_warmup;      // untimed calls before it
  double deadline;        // longest wait for one batch, seconds
  int single_launches;    // plain launches that are timed one by one, 0 for none
  Hold hold;              // of these, in tests
  Registration registration;
  // Of an all-to-all-v, elements from each rank of a group to each, by source, then destination: the same in all
  // groups. No rank sends or receives more than `count` in all. Empty for all else.
  std::vector<std::uint64_t> blocks;
  // By group, false where nothing is said: its batches are plain launches, no replays of a graph. For groups between
  // hosts: NCCL puts a callback of the host behind each captured call that needs its proxy, which makes a replay slower
  // than what a job does.
  std::vector<bool> plain;
  bool is_plain(std::size_t group) const { return group < plain.size() && plain[group]; }
  std::size_t bytes() const { return count * bytes_of(dtype); }
};

// Element i of what a rank receives is a value at index `offset + i % block`: of the reduction over all ranks, or,
// where nothing is reduced, of what `sender` contributed.
struct Expected {
  std::uint64_t count;  // elements; 0 where the operation defines nothing here
  std::uint64_t block;
  std::uint64_t offset;
  std::uint32_t sender;
};
constexpr std::uint32_t kEachBlock = 0xffffffff;  // kernels.cu: the sender is i / block

// What a rank of an all-to-all-v sends to a peer and receives from it, in elements, each where it lies in the message.
struct PeerBlocks {
  std::uint64_t sent, send_at;
  std::uint64_t received, receive_at;
  std::uint64_t offset;  // what is received begins at this index of what the peer contributed
};

// One rank's call, in elements; `send_at` and `receive_at` count from the start of the message.
struct Layout {
  std::uint64_t count;  // what NCCL is given
  std::uint64_t sent;   // what the rank contributes: its indices are 0 … sent - 1
  std::uint64_t send_at;
  std::uint64_t receive_at;
  Expected expected;
  std::vector<PeerBlocks> peers = {};  // of an all-to-all-v, by rank; `count` and `block` then say nothing
};

// The round's reduction, or `copied` where its operation reduces nothing.
Reduction reduction_of(const CollectiveRound& round);
Layout layout_of(const CollectiveRound& round, int rank, int ranks);
// The same all-to-all-v with this many elements on the busiest rank, each block scaled.
std::vector<std::uint64_t> scaled_blocks(const CollectiveRound& round, std::uint64_t count);
// Elements that the rank receives, also where their values are undefined.
std::uint64_t received_elements(const CollectiveRound& round, int rank, int ranks);
// How far a floating average over `ranks` ranks may miss; 0 for all that is exact.
double tolerance_of(const CollectiveRound& round, int ranks);
// Throws std::invalid_argument for a round that no communicator can run.
void check(const CollectiveRound& round);

}  // namespace collbench
