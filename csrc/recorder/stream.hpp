// Records the calls of one rank in a file that is mapped into memory, so that its content is valid whenever the process
// ends. Calls that repeat are folded as they arrive. src/collbench/jobs/streams.py reads this layout.
#pragma once

#include <pthread.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace recorder {

constexpr uint32_t VERSION = 5;
constexpr uint64_t FILE_BYTES = 16u << 20;
constexpr uint64_t GPU_TIMES_BYTES = 8u << 20;  // more, where GPU times are recorded
constexpr uint32_t COMMUNICATORS = 512;
constexpr uint32_t CALLS = 1u << 16;          // distinct ones
constexpr uint32_t PHASES = 4096;             // distinct ones
constexpr uint32_t RUNS = 1u << 17;           // phases in the order in which they came
constexpr uint32_t TAIL = 1u << 15;           // calls not yet folded; half of it is the longest step that is recognized
constexpr uint32_t PENDING = 4096;            // calls that wait for their peer or their GPU time
constexpr uint32_t SEARCH_EVERY = 4096;       // calls between two searches: 16 comparisons a call on average
constexpr uint32_t EVIDENCE = 2048;           // calls that must repeat before a period counts as one
constexpr uint32_t RELOCK = 256;              // calls that must repeat a known phase before it is resumed
constexpr uint32_t SAMPLED_CALLS = 1u << 15;  // of all samples of one phase
constexpr uint32_t SAMPLES = 128;             // of one phase, in blocks of consecutive repetitions
constexpr int32_t NONE = -1;
constexpr int GPU_CLOCK_ABI = 4;             // from this ABI on, events of kernels have the GPU's time
constexpr uint32_t CHANNELS = 64;            // of NCCL's communicator [device.h, MAXCHANNELS]
constexpr uint32_t MOST_RUNNING = 1u << 14;  // channels of calls that run at the same time
constexpr uint64_t GPU_UNIT = 16;  // ns, the unit of a call's GPU time; the GPU's clock has steps of 32 ns or more
constexpr uint64_t CLOCK_WINDOW = 500000000;  // ns in which the GPU's and the host's clock do not drift noticeably
// ns by which the clocks may disagree: the drift of two windows at 50 ppm, and the delay with which NCCL reports.
constexpr int64_t CLOCK_TOLERANCE = 100000;

inline uint64_t nanoseconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

struct Communicator {
  uint64_t hash;
  int32_t rank;
  int32_t ranks;  // 0: unknown (ABI v1 to v3)
  int32_t nodes;
  int32_t reserved;
  char name[104];
};
static_assert(sizeof(Communicator) == 128);

struct Call {
  uint64_t count;
  int32_t root;
  int32_t peer;
  uint16_t communicator;
  uint8_t function;  // Function
  uint8_t datatype;  // NCCL's number
  uint8_t captured;
  uint8_t reduction;  // NCCL's number + 1; 0: unknown
  uint16_t reserved;
};
static_assert(sizeof(Call) == 24);

// A sequence of symbols. A symbol is a call's number × 2, + 1 where the call was grouped with the one before it.
struct Phase {
  uint64_t repetitions;
  uint64_t hash;
  uint64_t symbols;      // offset of uint32_t[length]
  uint64_t samples;      // offset of `slots` × (uint64_t repetition, before; uint64_t starts[length])
  uint64_t gpu_samples;  // offset of `slots` × uint32_t[length], as TailCall.gpu; 0: none
  uint64_t gpu_begins;   // offset of `slots` × Begins and uint64_t[length]; 0: none
  uint32_t length;
  uint32_t slots;
  uint32_t used;
  uint32_t stride;
  uint32_t repeats;  // 0: calls that came once, before or between what repeats
  uint32_t reserved;
};
static_assert(sizeof(Phase) == 72);

// Of one sample, `before` is the start of the call before its first one, 0 if there was none. On the GPU: when the call
// before its first one began, and how long that ran, ns; 0: unknown. It is followed by when each of the sample's calls
// began. GPU times are moved to the host's clock by one offset, so their distances stay exact.
struct Begins {
  uint64_t before;
  uint64_t before_took;
};

struct Run {
  uint32_t phase;
  uint32_t repetitions;
};

struct TailCall {
  uint64_t start;  // CLOCK_MONOTONIC, ns
  uint64_t begin;  // when it began on the GPU, ns of the GPU's clock; 0: unknown
  int64_t ahead;   // ns by which the host's clock is ahead of that one, by the best estimate when the call ended
  uint32_t symbol;
  uint32_t gpu;  // how long it ran on the GPU, in GPU_UNIT; 0: unknown
};

struct PendingCall {
  Call call;
  uint64_t start;
  uint64_t group;  // 0: not grouped
  uint64_t begin;  // this and the next as in TailCall
  int64_t ahead;
  uint32_t needs;  // Need: what is still missing
  uint32_t gpu;    // as in TailCall
};
static_assert(sizeof(PendingCall) == 64);

enum Need : uint32_t { PEER = 1, GPU_TIME = 2 };

enum class GpuTimes : uint32_t { NONE, RECORDED, TOO_OLD };

// Why a call has no GPU time.
enum class Lack : uint8_t {
  MISSING,      // NCCL never reported that it ran, or ended
  IMPLAUSIBLE,  // NCCL reported impossible times
  SELF,         // its communicator has sent to its own rank: from then on NCCL reports the times of earlier calls
  CAPTURED,     // it runs when its graph is replayed
  COUNT,
};

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t index;
  uint64_t file_bytes;
  // Offsets and capacities, for readers.
  uint64_t communicators_at, calls_at, phases_at, runs_at, tail_at, pending_at, arena_at;
  uint32_t communicators_max, calls_max, phases_max, runs_max, tail_max, pending_max;
  // Counts.
  uint32_t communicators, calls, phases, runs;
  uint64_t arena_used;
  uint64_t tail;  // index of the first × 2^32 + count: one store changes both
  uint64_t pending_first, pending_next;
  uint64_t kept, dropped;  // their sum is the number of calls that are no longer pending
  uint64_t unplaced;       // calls of communicators for which there was no room
  // Set while calls move from the tail into phases. Where `tail` still equals `moving_tail` after a kill, the runs were
  // as these fields say.
  uint64_t moving_tail;
  uint32_t moving, moving_runs, moving_repetitions, moving_phase;
  uint64_t before_tail;  // start of the call before the tail's first; 0: there was none
  uint64_t moving_before_tail;
  uint32_t open;    // communicators that were not finalized
  uint32_t exited;  // 1: the process left by exit()
  int32_t pid, device, abi, env_rank, env_world, nccl;
  uint64_t monotonic_ns, realtime_ns;  // the same moment
  uint64_t last_group;
  uint64_t gpu_times;                             // GpuTimes
  uint64_t lacks[static_cast<int>(Lack::COUNT)];  // calls without GPU time
  char host[256];
  char environment[32768];  // NCCL_*=value, each ended by 0, then an empty one
};
static_assert(offsetof(Header, host) % 8 == 0);

enum class Function : uint8_t {
  UNKNOWN,
  ALL_REDUCE,
  BROADCAST,
  REDUCE,
  ALL_GATHER,
  REDUCE_SCATTER,
  SEND,
  RECEIVE,
  ALL_TO_ALL,
  GATHER,
  SCATTER,
};

// One rank's stream. All its functions but open() are called with its lock held.
class Stream {
 public:
  // Return 0, or the errno that prevented the file; the stream then records nothing.
  int open(const char* folder, uint32_t index, int device, int abi, int nccl, bool wants_gpu_times);
  void close_at_exit();

  int communicator(uint64_t hash, int rank, int ranks, int nodes, const char* name);
  bool holds_another_rank(uint64_t hash, int rank) const;
  int device() const { return header_->device; }
  void opened() { ++header_->open; }
  void finalized(int communicator);

  // Adds a call that NCCL got. `group` is 0, or a number that the calls of one group share. Returns the call's number.
  uint64_t add(const Call& call, uint64_t start, uint64_t group, bool needs_peer);
  // A call of a communicator that is not in the table is only counted.
  void unplaced();
  // NCCL launches call `number` on this many channels: its peer is known, and all earlier groups have been launched.
  void launched(uint64_t number, int peer, uint32_t channels);
  // A communicator sends to its own rank, in the group of call `number`.
  void sends_to_itself(int communicator, uint64_t number);
  // Call `number` began on a channel of its communicator (NCCL's number × 2, + 1 for receives) at `timer`, ns of the
  // GPU's clock, which was reported at `now`. Returns a number for ended(), 0 if the end is not wanted.
  uint64_t began(uint64_t number, uint32_t channel, uint64_t timer, uint64_t now);
  void ended(uint64_t run, uint64_t timer, uint64_t now);

  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

 private:
  struct Kernel {  // of a call that waits for its GPU time
    uint64_t begin, end;
    uint32_t channels, ended;
    bool launched;
    Lack lack;
  };
  struct Channel {  // the group that it ran last and when, GPU's clock; `before` is when the group before it ended
    uint64_t group, end, before;
  };
  struct Running {  // a call on one channel
    uint64_t run, call, begin;
    int64_t ahead;  // host's clock minus GPU's clock when the beginning was reported
    Channel* channel;
    bool plausible;
  };

  PendingCall& pending(uint64_t number) { return pending_[number % PENDING]; }
  Kernel& kernel(uint64_t number) { return kernels_[number % PENDING]; }
  bool is_pending(uint64_t number) const { return number >= header_->pending_first && number < header_->pending_next; }
  void give_up_time(uint64_t number, Lack why);
  void forget_old_clocks(uint64_t now);
  void compare_clocks(int64_t ahead, uint64_t now);
  Channel* channel_of(uint16_t communicator, uint32_t channel);
  void release(uint64_t upto);
  void commit(uint64_t number);
  void drop();
  int64_t intern(const Call& call);
  void append(uint32_t symbol, const PendingCall& ended);
  void follow_phase(uint32_t symbol);
  void look_for_phase();
  bool resume();
  void find_period();
  bool consume(uint32_t literal, int64_t phase, uint32_t repetitions, bool locks);
  int64_t phase_of(const uint32_t* symbols, uint32_t length, bool repeats);
  void add_run(uint32_t phase, uint32_t repetitions);
  void repeat(Phase& phase, uint32_t from);
  void sample(Phase& phase, uint32_t from);
  void* allocate(uint64_t bytes, uint64_t* offset);
  TailCall& tail(uint32_t place) { return tail_[(first_ + place) % TAIL]; }
  void set_tail(uint32_t first, uint32_t count);
  void hash_from(uint32_t place);
  uint64_t hash_of(uint32_t from, uint32_t length) const;
  template <class T>
  T* at(uint64_t offset) const {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(header_) + offset);
  }

  Header* header_ = nullptr;
  Communicator* communicators_ = nullptr;
  Call* calls_ = nullptr;
  Phase* phases_ = nullptr;
  Run* runs_ = nullptr;
  TailCall* tail_ = nullptr;
  PendingCall* pending_ = nullptr;
  // Not in the file, which can be read without it.
  struct Known {  // a phase that repeated, and the hash of the repetitions that must be seen before it is resumed
    uint32_t phase, last, length, repetitions;
    uint64_t hash;
  };
  std::vector<Known> known_;
  std::vector<uint32_t> table_;     // hash table of calls: number + 1
  std::vector<uint32_t> symbols_;   // the tail's, in order
  std::vector<uint64_t> hashes_;    // of the tail's first n symbols
  std::vector<uint64_t> powers_;    // of the hash's base
  std::vector<uint32_t> borders_;   // of find_period
  uint32_t first_ = 0, count_ = 0;  // the tail
  int64_t phase_ = NONE;            // the one that repeats now
  uint32_t since_ = 0;              // calls since the last search for a period
  uint64_t group_ = 0;              // of the last call
  bool full_ = false;               // all further calls are dropped
  // GPU times.
  std::vector<Kernel> kernels_;   // of PENDING calls; empty: they are not recorded
  std::vector<Running> running_;  // the last MOST_RUNNING ones
  uint64_t runs_begun_ = 0;
  std::vector<std::unique_ptr<Channel[]>> channels_;  // of each communicator
  std::vector<bool> sent_to_itself_;                  // communicators
  Begins last_{};                                     // the call before the tail's first
  std::vector<uint64_t> launched_before_;      // of each communicator: all groups before this call have been launched
  uint64_t window_ = 0;                        // when it began, host's clock
  int64_t least_[2] = {INT64_MAX, INT64_MAX};  // host's clock minus GPU's at most, ns, in this window and in the last
};

}  // namespace recorder
