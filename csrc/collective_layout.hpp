// What one round of collectives is, and what each rank of it sends, receives and must find. Pure arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace collbench {

// Ranks of the world, in the group's own rank order.
using Group = std::vector<int>;

// Name, whether it reduces, and whether its message is the total of equal blocks, one for each rank.
#define COLLBENCH_COLLECTIVES(X) \
  X(allreduce, true, false)      \
  X(broadcast, false, false)     \
  X(reduce, true, false)         \
  X(allgather, false, true)      \
  X(reducescatter, true, true)   \
  X(alltoall, false, true)       \
  X(alltoallv, false, false)     \
  X(sendrecv, false, false)      \
  X(gather, false, true)         \
  X(scatter, false, true)
// Torch's name and bytes; then, 0 for whole numbers, half a unit in the last place of a value in [1, 2), which is the
// largest relative error of one rounding, and the smallest positive number. In the order of ncclDataType_t [nccl.h
// 2.24].
#define COLLBENCH_DTYPES(X)           \
  X(int8, 1, 0, 0)                    \
  X(uint8, 1, 0, 0)                   \
  X(int32, 4, 0, 0)                   \
  X(uint32, 4, 0, 0)                  \
  X(int64, 8, 0, 0)                   \
  X(uint64, 8, 0, 0)                  \
  X(float16, 2, 0x1p-11, 0x1p-24)     \
  X(float32, 4, 0x1p-24, 0x1p-149)    \
  X(float64, 8, 0x1p-53, 0x1p-1074)   \
  X(bfloat16, 2, 0x1p-8, 0x1p-133)    \
  X(float8_e4m3fn, 1, 0x1p-4, 0x1p-9) \
  X(float8_e5m2, 1, 0x1p-3, 0x1p-16)
// In the order of ncclRedOp_t.
#define COLLBENCH_REDUCTIONS(X) X(sum) X(prod) X(max) X(min) X(avg)
// Where a collective's messages lie (registered_memory.hpp): in ordinary memory, in memory of ncclMemAlloc that is
// registered with ncclCommRegister, or in windows that ncclCommWindowRegister made symmetric.
#define COLLBENCH_REGISTRATIONS(X) X(none) X(buffer) X(window)

#define COLLBENCH_ENUMERATOR(name, ...) name,
enum class Collective { COLLBENCH_COLLECTIVES(COLLBENCH_ENUMERATOR) };
enum class Dtype { COLLBENCH_DTYPES(COLLBENCH_ENUMERATOR) };
enum class Reduction {
  COLLBENCH_REDUCTIONS(COLLBENCH_ENUMERATOR) copied  // kernels.cu's: nothing is reduced
};
enum class Registration { COLLBENCH_REGISTRATIONS(COLLBENCH_ENUMERATOR) };
#undef COLLBENCH_ENUMERATOR

std::size_t bytes_of(Dtype dtype);

struct CollectiveRound {
  std::vector<Group> groups;  // disjoint
  Collective operation;
  Dtype dtype;
  Reduction reduction;    // ignored where nothing is reduced
  int root;               // rank in each group, where the operation has one
  std::size_t count;      // elements of the whole message: of all ranks' blocks, where each rank has its own
  bool in_place;          // receives into the buffer that it sends from, laid out as in nccl-tests
  bool verify;            // checks the elements that arrive, see Collectives::time
  int iterations;         // collectives in a graph, at most 32
  int batches;            // timed launches of the graph
  int warmup;             // untimed launches first
  int launch_iterations;  // collectives in the launch loop, 0 for none
  int launch_warmup;      // untimed calls before it
  double deadline;        // longest wait for one batch, seconds
  int single_launches;    // plain launches that are timed one by one, 0 for none
  // For tests: a rank of the world whose stream is held before each single launch, so that the rank is late; -1 for
  // none.
  int hold_rank = -1;
  std::uint64_t hold_nanoseconds;
  Registration registration;
  // Only for an all-to-all-v: elements from each rank of a group to each other, by source, then destination, the same
  // in all groups. No rank sends or receives more than `count` in all.
  std::vector<std::uint64_t> blocks;
  // By group, false for groups beyond its end: batches are plain launches instead of replays of a graph. For groups
  // between hosts, where NCCL adds a host callback to each captured call that needs its proxy, so that a replay would
  // be slower than the launches of a job.
  std::vector<bool> plain;
  bool is_plain(std::size_t group) const { return group < plain.size() && plain[group]; }
  std::size_t bytes() const { return count * bytes_of(dtype); }
  // Whether there are calls outside of graphs, which have communicators of their own.
  bool launches() const { return launch_iterations > 0 || single_launches > 0; }
};

// Element i of what a rank receives is the value at index `offset + i % block` of the reduction over all ranks, or,
// where nothing is reduced, of what `sender` contributed.
struct Expected {
  std::uint64_t count;  // elements; 0 where the operation defines nothing here
  std::uint64_t block;
  std::uint64_t offset;
  std::uint32_t sender;
};
constexpr std::uint32_t kEachBlock = 0xffffffff;  // kernels.cu: the sender is i / block

// What a rank of an all-to-all-v sends to a peer and receives from it, and where in the message, in elements.
struct PeerBlocks {
  std::uint64_t sent, send_at;
  std::uint64_t received, receive_at;
  std::uint64_t offset;  // of the first received element in what the peer contributed
};

// One rank's call, in elements; `send_at` and `receive_at` count from the start of the message.
struct Layout {
  std::uint64_t count;  // the count that NCCL gets
  std::uint64_t sent;   // elements that the rank contributes
  std::uint64_t send_at;
  std::uint64_t receive_at;
  Expected expected;
  std::vector<PeerBlocks> peers = {};  // of an all-to-all-v, by rank; it does not use `count` and `expected.block`
};

// The round's reduction, or `copied` where its operation reduces nothing.
Reduction reduction_of(const CollectiveRound& round);
Layout layout_of(const CollectiveRound& round, int rank, int ranks);
// The blocks of the same all-to-all-v, scaled to this many elements on the busiest rank.
std::vector<std::uint64_t> scaled_blocks(const CollectiveRound& round, std::uint64_t count);
// Elements that the rank receives, including those with undefined values.
std::uint64_t received_elements(const CollectiveRound& round, int rank, int ranks);
// The largest relative error of a correct floating average over `ranks` ranks; 0 for results that must be exact.
double tolerance_of(const CollectiveRound& round, int ranks);
// Throws std::invalid_argument for a round that no communicator can run.
void check(const CollectiveRound& round);

}  // namespace collbench
