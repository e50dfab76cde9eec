// All device code: the blocking kernel, time stamps, the pattern that proves what was copied, the copy by kernel, the
// pointer chase; and in elements.cuh the numbers that prove what was reduced. Compiled by NVRTC for compute_60 (tools
// see CONTRIBUTING.md) and by any nvcc; includes nothing of theirs.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;

// What verification found. `first` is the lowest bad byte offset in the buffer; expected and found belong to it only
// when exactly one unit was checked, so the host checks that unit again to read them.
struct Report {
  u64 wrong;
  u64 first;
  double expected;
  double found;
};

__device__ __forceinline__ u64 thread_index() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 thread_count() { return (u64)gridDim.x * blockDim.x; }

__device__ __forceinline__ u64 nanoseconds() {
  u64 time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// splitmix64's finaliser: neighbouring inputs give unrelated outputs, so swapped or shifted blocks never match.
__device__ __forceinline__ u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Holds the stream until the host raises the latch to `ticket`; after timeout_ns it lets go and says so.
extern "C" __global__ void block_stream(const volatile u32* latch, u32 ticket, u64 timeout_ns, volatile u32* expired) {
  const u64 start = nanoseconds();
  while ((int)(*latch - ticket) < 0) {
    if (nanoseconds() - start > timeout_ns) {
      *expired = 1;
      return;
    }
  }
}

// ---- single launches ------------------------------------------------------------------------------------------------
const u32 kClockReads = 4096;  // last much longer than the clock's steps, of 32 ns or 1 us

// Writes when the stream came here, by the GPU's own clock. Holds the stream for hold_ns before that: so tests make a
// rank late on purpose.
extern "C" __global__ void stamp(u64* slot, u64 hold_ns) {
  const u64 start = nanoseconds();
  u64 now = start;
  while (now - start < hold_ns) now = nanoseconds();
  *slot = now;
}

// Tells the host the GPU's time `count` times, each once the host has raised `asked` beyond those before; after
// timeout_ns it stops. Before, it writes the smallest step by which the clock was seen to move.
extern "C" __global__ void tell_time(const volatile u32* asked, volatile u64* answers, u32 count, u64 timeout_ns,
                                     volatile u64* step) {
  const u64 start = nanoseconds();
  u64 last = start, least = ~0ull;
  for (u32 i = 0; i < kClockReads; ++i) {
    const u64 now = nanoseconds();
    if (now > last && now - last < least) least = now - last;
    last = now;
  }
  *step = least;
  for (u32 i = 0; i < count; ++i) {
    while (*asked <= i)
      if (nanoseconds() - start > timeout_ns) return;
    answers[i] = nanoseconds();
  }
}

// ---- bytes ----------------------------------------------------------------------------------------------------------
// A byte's value depends on its place in the buffer and on the seed of the device it came from, nothing else; seeds lie
// further apart than any buffer is long.
// gridDim.y counts slots: messages of `bytes` bytes, `stride` apart, the first at `base`.

__device__ __forceinline__ u64 pattern(u64 seed, u64 word) { return mix(seed + word); }

// Writes the pattern, or with `invert` its complement: a destination where every byte is wrong until it is written.
extern "C" __global__ void fill(u8* buffer, u64 base, u64 stride, u64 bytes, u64 seed, u32 invert) {
  const u64 begin = base + blockIdx.y * stride, end = begin + bytes;
  for (u64 word = begin / 8 + thread_index(); word * 8 < end; word += thread_count()) {
    const u64 value = pattern(seed, word) ^ (invert ? ~0ull : 0ull), at = word * 8;
    if (at >= begin && at + 8 <= end) {
      *reinterpret_cast<u64*>(buffer + at) = value;
      continue;
    }
    for (u32 i = 0; i < 8; ++i)
      if (at + i >= begin && at + i < end) buffer[at + i] = (u8)(value >> (8 * i));
  }
}

// Here `first` holds a byte's offset above what was expected and found there, 8 bits each: the least is the first.
// Each thread reports once, for atomics on host memory are slow.
extern "C" __global__ void verify(const u8* buffer, u64 base, u64 stride, u64 bytes, u64 seed, Report* report) {
  const u64 begin = base + blockIdx.y * stride, end = begin + bytes;
  u64 wrong = 0, first = ~0ull;
  for (u64 word = begin / 8 + thread_index(); word * 8 < end; word += thread_count()) {
    const u64 value = pattern(seed, word), at = word * 8;
    if (at >= begin && at + 8 <= end && *reinterpret_cast<const u64*>(buffer + at) == value) continue;
    for (u32 i = 0; i < 8; ++i) {
      if (at + i < begin || at + i >= end) continue;
      const u8 expected = (u8)(value >> (8 * i)), found = buffer[at + i];
      if (found != expected && ++wrong == 1) first = (at + i) << 16 | (u64)expected << 8 | found;
    }
  }
  if (wrong == 0) return;
  atomicAdd(&report->wrong, wrong);
  atomicMin(&report->first, first);
}

// Eight loads in flight a thread. A large message has one block on each multiprocessor (copy.cpp), which take its tiles
// of 64 KiB in turn: so they walk through it side by side, and all of it has crossed the link before any of it is read
// again. Of more blocks than are resident, the first ones would copy their share of every message while it lies in the
// L2 cache: 64 MiB, again and again from one place, were read at 3,770 GB/s over a link of 376 [2 × H200]. There 512
// MiB and 1 GiB are written at 371.1 GB/s (369.6 by sixteen blocks a multiprocessor with four loads, 370.0 by
// nvbandwidth's kernel) and read at 376.1 (376.1, 376.0). Of a small message each thread copies one vector.
const u32 kInFlight = 8;

template <bool kWhole>
__device__ __forceinline__ void move(uint4* to, const uint4* from, u64 i, u64 vectors) {
  uint4 held[kInFlight];
#pragma unroll
  for (u32 k = 0; k < kInFlight; ++k)
    if (kWhole || i + k * blockDim.x < vectors) held[k] = from[i + k * blockDim.x];
#pragma unroll
  for (u32 k = 0; k < kInFlight; ++k)
    if (kWhole || i + k * blockDim.x < vectors) to[i + k * blockDim.x] = held[k];
}

__device__ __forceinline__ void move_all(uint4* to, const uint4* from, u64 vectors) {
  if (vectors <= thread_count()) {
    if (thread_index() < vectors) to[thread_index()] = from[thread_index()];
    return;
  }
  const u64 tile = kInFlight * blockDim.x;
  for (u64 i = blockIdx.x * tile; i < vectors; i += gridDim.x * tile) {
    if (i + tile <= vectors)
      move<true>(to, from, i + threadIdx.x, vectors);
    else
      move<false>(to, from, i + threadIdx.x, vectors);
  }
}

// One message, by loads and stores of 16 bytes; of bytes where both sides are not aligned alike.
__device__ __forceinline__ void copy_message(u8* target, const u8* source, u64 bytes) {
  const u64 me = thread_index(), all = thread_count();
  u64 head = (16 - (u64)source % 16) % 16;
  if ((u64)source % 16 != (u64)target % 16 || head > bytes) head = bytes;
  const u64 vectors = (bytes - head) / 16;
  move_all(reinterpret_cast<uint4*>(target + head), reinterpret_cast<const uint4*>(source + head), vectors);
  for (u64 k = me; k < head; k += all) target[k] = source[k];
  for (u64 k = head + vectors * 16 + me; k < bytes; k += all) target[k] = source[k];
}

// Copies by the multiprocessors' own loads and stores: `count` messages in turn, each in the next of `slots` slots, and
// after the last in the first again. No thread waits for the others between two messages.
extern "C" __global__ void copy(u8* target, const u8* source, u64 bytes, u64 stride, u32 slots, u32 count) {
  for (u32 message = 0, slot = 0; message < count; ++message) {
    copy_message(target + slot * stride, source + slot * stride, bytes);
    slot = slot + 1 == slots ? 0 : slot + 1;
  }
}

// ---- pointer chase --------------------------------------------------------------------------------------------------
// Writes a ring of lines, 128 bytes apart: the first word of each is the address of the next. See pointer_chase.cpp.
extern "C" __global__ void write_ring(u64* lines, u64 count, u64 multiplier, u64 increment) {
  for (u64 i = thread_index(); i < count; i += thread_count())
    lines[i * 16] = (u64)(lines + (i * multiplier + increment) % count * 16);
}

// Follows the ring, a share of the accesses on each multiprocessor in turn, as nvbandwidth does: from the near ones a
// line is read in 800 ns, from the far ones in 860 [132 of them on an H200]. Blocks of one thread; each waits until the
// one before it has written where it came to, `walk[1]`, and then the next turn, `walk[0]`. Turns begin at
// `first_turn`. Volatile, so that no access is served by an L1 cache.
extern "C" __global__ void chase(const u64* start, u64 accesses, volatile u64* walk, u64 first_turn, u64* end) {
  const u64 share = accesses / gridDim.x + (blockIdx.x < accesses % gridDim.x);
  while (walk[0] != first_turn + blockIdx.x) {
  }
  __threadfence();
  u64 at = blockIdx.x == 0 ? (u64)start : walk[1];
  for (u64 i = 0; i < share; ++i) at = *reinterpret_cast<const volatile u64*>(at);
  walk[1] = at;
  if (blockIdx.x == gridDim.x - 1) *end = at;
  __threadfence();
  walk[0] = first_turn + blockIdx.x + 1;
}

#include "elements.cuh"
