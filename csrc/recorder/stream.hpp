// The calls of one rank, folded as they arrive, in a file that is mapped into memory: its content is valid
// whenever the process ends. src/collbench/runfile/streams.py reads this layout.
#pragma once

#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace recorder {

constexpr uint32_t VERSION = 3;
constexpr uint64_t FILE_BYTES = 16u << 20;
constexpr uint64_t GPU_TIMES_BYTES = 8u << 20;  // more, where GPU times are recorded
constexpr uint32_t COMMUNICATORS = 512;
constexpr uint32_t CALLS = 1u << 16;          // distinct ones
constexpr uint32_t PHASES = 4096;             // distinct ones
constexpr uint32_t RUNS = 1u << 17;           // phases in the order in which they came
constexpr uint32_t TAIL = 1u << 15;           // calls not yet folded; half of it is the longest step that is recognised
constexpr uint32_t PENDING = 4096;            // calls of groups whose peers NCCL has not named yet
constexpr uint32_t SEARCH_EVERY = 4096;       // calls: 16 comparisons a call, spread over so many
constexpr uint32_t EVIDENCE = 2048;           // calls that must repeat before a period is believed
constexpr uint32_t RELOCK = 256;              // calls that must repeat a known phase before it goes on
constexpr uint32_t BUCKETS = 192;             // of a histogram: 8 an octave, from 256 ns to 4.3 s
constexpr uint32_t SAMPLED_CALLS = 1u << 15;  // of all samples of one phase
constexpr uint32_t SAMPLES = 32;              // of one phase
constexpr int32_t NONE = -1;
constexpr int GPU_CLOCK_ABI = 4;             // and later ones: their events of kernels have the time of the GPU
constexpr uint32_t CHANNELS = 64;            // of NCCL's communicator [device.h, MAXCHANNELS]
constexpr uint32_t MOST_RUNNING = 1u << 14;  // calls that run at one time, on each of their channels
constexpr uint64_t GPU_UNIT = 16;  // ns: what a call's GPU time is kept in; the GPU's clock ticks each 32 ns or more
constexpr uint64_t CLOCK_WINDOW = 500000000;  // ns in which the GPU's clock is taken to keep step with the host's
// ns by which clocks may disagree: two windows at a drift of 50 ppm, and a launch that is reported after it was made.
constexpr int64_t CLOCK_TOLERANCE = 100000;

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

// Times of one position of a phase over its repetitions, ns.
struct Times {
  uint64_t count;
  uint64_t least;
  uint64_t most;
  double sum;
  uint16_t buckets[BUCKETS];
};
static_assert(sizeof(Times) == 416);

// A sequence of symbols. A symbol is a call's number × 2, + 1 where the call was grouped with the one before it.
struct Phase {
  uint64_t repetitions;
  uint64_t hash;
  uint64_t symbols;      // offset of uint32_t[length]
  uint64_t times;        // offset of Times[length], of the pauses; 0: none
  uint64_t samples;      // offset of `slots` × (uint64_t repetition; uint64_t starts[length])
  uint64_t gpu_times;    // offset of Times[length], of the calls on the GPU; 0: none
  uint64_t gpu_samples;  // offset of `slots` × uint32_t[length], as TailCall.gpu; 0: none
  uint64_t gpu_begins;   // offset of `slots` × Begins and uint64_t[length]; 0: none
  uint32_t length;
  uint32_t slots;
  uint32_t used;
  uint32_t stride;
};
static_assert(sizeof(Phase) == 80);

// Of one sample: when the call before its first one began, and how long that ran, ns; 0: unknown. Behind it stands when
// each of its calls began. All are of the host's clock, by one comparison of the two: their distances are the GPU's.
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
  int64_t ahead;   // what the host's clock is ahead of that one, as closely as was known when it ended
  uint32_t symbol;
  uint32_t gpu;  // how long it ran on the GPU, in GPU_UNIT; 0: unknown
};

struct PendingCall {
  Call call;
  uint64_t start;
  uint64_t group;  // 0: alone
  uint64_t begin;  // these two as TailCall's
  int64_t ahead;
  uint32_t needs;  // Need: what is still to come
  uint32_t gpu;    // as TailCall.gpu
};
static_assert(sizeof(PendingCall) == 64);

enum Need : uint32_t { PEER = 1, GPU_TIME = 2 };

enum class GpuTimes : uint32_t { NONE, RECORDED, TOO_OLD };

// Why a call has no GPU time.
enum class Lack : uint8_t {
  MISSING,      // NCCL never reported that it ran, or ended
  IMPLAUSIBLE,  // NCCL reported impossible times
  SELF,         // its communicator had sent to its own rank: from then on NCCL reports the times of earlier calls
  CAPTURED,     // it runs when its graph is replayed
  COUNT,
};

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t index;
  uint64_t file_bytes;
  // Offsets and capacities, so that a reader need not know them.
  uint64_t communicators_at, calls_at, phases_at, runs_at, tail_at, pending_at, arena_at;
  uint32_t communicators_max, calls_max, phases_max, runs_max, tail_max, pending_max;
  // What is there.
  uint32_t communicators, calls, phases, runs;
  uint64_t arena_used;
  uint64_t tail;  // first place × 2^32 + count: one store moves both
  uint64_t pending_first, pending_next;
  uint64_t kept, dropped;
  // Calls are moved from the tail into phases: where `tail` still is `moving_tail`, the runs are as they were before.
  uint64_t moving_tail;
  uint32_t moving, moving_runs, moving_repetitions, moving_phase;
  uint64_t before_tail;  // start of the call before the tail's first; 0: there was none
  uint64_t moving_before_tail;
  // Who it is.
  uint32_t open;    // communicators that were not finalized
  uint32_t exited;  // 1: the process left by exit()
  int32_t pid, device, abi, env_rank, env_world, nccl;
  uint64_t monotonic_ns, realtime_ns;  // the same moment
  uint64_t last_group;
  uint64_t gpu_times;                             // GpuTimes
  uint64_t lacks[static_cast<int>(Lack::COUNT)];  // calls without one
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

// One rank's stream. All its functions are called with its lock held, but open().
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

  // A call that NCCL got. `group` is 0, or what calls of one group share. Return its number.
  uint64_t add(const Call& call, uint64_t start, uint64_t group, bool needs_peer);
  // NCCL launches call `number` on so many channels: its peer is known, and every earlier group has been launched.
  void launched(uint64_t number, int peer, uint32_t channels);
  // A communicator sends to its own rank, in the group of call `number`.
  void sends_to_itself(int communicator, uint64_t number);
  // Call `number` began on a channel of its communicator (NCCL's × 2, + 1 for receives), as the GPU's clock says in ns;
  // the host hears it at `now`. Return a number for its end, 0 if that is not wanted.
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
  struct Channel {  // what it ran last, times of the GPU: `before` is the end of what it ran before that group
    uint64_t group, end, before;
  };
  struct Running {  // a call on one channel
    uint64_t run, call, begin;
    int64_t ahead;  // the host's clock of the GPU's, when it heard of the beginning
    Channel* channel;
    bool plausible;
  };

  PendingCall& pending(uint64_t number) { return pending_[number % PENDING]; }
  Kernel& kernel(uint64_t number) { return kernels_[number % PENDING]; }
  bool waits(uint64_t number) const { return number >= header_->pending_first && number < header_->pending_next; }
  void without_time(uint64_t number, Lack why);
  void turn(uint64_t now);
  void hear(int64_t ahead, uint64_t now);
  Channel* channel_of(uint16_t communicator, uint32_t channel);
  void release(uint64_t upto);
  void commit(uint64_t number);
  int64_t intern(const Call& call);
  void append(uint32_t symbol, const PendingCall& ended);
  void follow(uint32_t symbol);
  void leave_phase();
  void look(uint32_t symbol);
  bool resume();
  void find_period();
  void make_room();
  bool consume(uint32_t literal, int64_t phase, uint32_t repetitions, bool locks);
  int64_t phase_of(const uint32_t* symbols, uint32_t length, bool repeats);
  bool add_run(uint32_t phase, uint32_t repetitions);
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
  // The process's own: the file can be read without it.
  struct Known {  // a phase that repeated, and the hash of as many of its repetitions as are needed to resume it
    uint32_t phase, last, length, repetitions;
    uint64_t hash;
  };
  std::vector<Known> known_;
  std::vector<uint32_t> table_;     // of calls, by hash: number + 1
  std::vector<uint32_t> symbols_;   // of the tail, from its first place
  std::vector<uint64_t> hashes_;    // of the tail's first n symbols
  std::vector<uint64_t> powers_;    // of the hash's base
  std::vector<uint32_t> borders_;   // of find_period
  uint32_t first_ = 0, count_ = 0;  // the tail
  int64_t phase_ = NONE;            // it repeats
  uint32_t since_ = 0;              // calls since a period was looked for
  uint64_t group_ = 0;              // of the last call
  bool full_ = false;
  // GPU times.
  std::vector<Kernel> kernels_;   // of PENDING calls; empty: they are not recorded
  std::vector<Running> running_;  // the last MOST_RUNNING ones
  uint64_t runs_begun_ = 0;
  std::vector<std::unique_ptr<Channel[]>> channels_;  // of each communicator
  std::vector<bool> sent_to_itself_;                  // communicators
  Begins last_{};                                     // the call before the tail's first
  std::vector<uint64_t> swept_;                // of each communicator: its groups before this call have been launched
  uint64_t window_ = 0;                        // when it began, host's clock
  int64_t least_[2] = {INT64_MAX, INT64_MAX};  // what the host's clock is ahead at most, in this window and the last
};

}  // namespace recorder
