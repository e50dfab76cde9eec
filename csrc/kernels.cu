// All device code: the blocking kernel, time stamps, the pattern by which copies are verified, the copy by kernel, the
// pointer chase; and in elements.cuh the numbers by which collectives are verified. Compiled by NVRTC for compute_60
// (see CONTRIBUTING.md), and by any nvcc: it includes no header of CUDA.

typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned char u8;

// What verification found: how many bytes or elements are wrong, and the byte offset of the first. After a check of
// many elements `expected` and `found` are those of any wrong one, so the host checks the first one again, on its own.
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

// splitmix64's finalizer: neighboring inputs give unrelated outputs, so swapped or shifted blocks never match.
__device__ __forceinline__ u64 mix(u64 x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Holds the stream until the host raises the latch to `ticket`; after timeout_ns it ends and sets `expired`.
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
const u32 kClockReads = 4096;  // they take much longer than one step of the clock, which is 32 ns or 1 us

// Holds the stream for hold_ns, by which tests make a rank late, then writes the time of the GPU's own clock.
extern "C" __global__ void stamp(u64* slot, u64 hold_ns) {
  const u64 start = nanoseconds();
  u64 now = start;
  while (now - start < hold_ns) now = nanoseconds();
  *slot = now;
}

// Writes the smallest step by which the GPU's clock was seen to move, then answers `count` questions of the host:
// answer i is the GPU's time once the host has raised `asked` above i. Ends after timeout_ns.
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
// A byte's value depends only on its offset in the buffer and on the seed of the device that it came from; seeds are
// further apart than any buffer is long. gridDim.y counts slots: messages of `bytes` bytes, `stride` apart, the first
// at `base`; both are multiples of 256 (gpus.cpp, next_slots).

__device__ __forceinline__ u64 pattern(u64 seed, u64 word) { return mix(seed + word); }

// Writes the pattern, or with `invert` its complement, by which every byte of a destination is wrong until it arrives.
extern "C" __global__ void fill(u8* buffer, u64 base, u64 stride, u64 bytes, u64 seed, u32 invert) {
  const u64 begin = base + blockIdx.y * stride, end = begin + bytes;
  for (u64 word = begin / 8 + thread_index(); word * 8 < end; word += thread_count()) {
    const u64 value = pattern(seed, word) ^ (invert ? ~0ull : 0ull), at = word * 8;
    if (at + 8 <= end)
      *reinterpret_cast<u64*>(buffer + at) = value;
    else
      for (u32 i = 0; at + i < end; ++i) buffer[at + i] = (u8)(value >> (8 * i));
  }
}

// Packs into `first` the byte's offset, what was expected there and what was found, 8 bits each: the minimum belongs to
// the first wrong byte. Each thread reports once, because atomics on host memory are slow.
extern "C" __global__ void verify(const u8* buffer, u64 base, u64 stride, u64 bytes, u64 seed, Report* report) {
  const u64 begin = base + blockIdx.y * stride, end = begin + bytes;
  u64 wrong = 0, first = ~0ull;
  for (u64 word = begin / 8 + thread_index(); word * 8 < end; word += thread_count()) {
    const u64 value = pattern(seed, word), at = word * 8;
    if (at + 8 <= end && *reinterpret_cast<const u64*>(buffer + at) == value) continue;
    for (u32 i = 0; i < 8 && at + i < end; ++i) {
      const u8 expected = (u8)(value >> (8 * i)), found = buffer[at + i];
      if (found != expected && ++wrong == 1) first = (at + i) << 16 | (u64)expected << 8 | found;
    }
  }
  if (wrong == 0) return;
  atomicAdd(&report->wrong, wrong);
  atomicMin(&report->first, first);
}

// Eight loads in flight a thread. A large message is copied by one block on each multiprocessor (copies.cpp). The
// blocks take its tiles of 64 KiB in turn, so all of the message has crossed the link before any part is read again.
// With more blocks than fit on the GPU, the first ones would copy their part of every message while it lies in the L2
// cache: 64 MiB that are read again and again from one slot seemed to cross a link of 376 GB/s at 3,770 [2 × H200]. On
// that link 512 MiB and 1 GiB are written at 371.1 GB/s (369.6 by sixteen blocks a multiprocessor with four loads,
// 370.0 by nvbandwidth's kernel) and read at 376.1 (376.1, 376.0). For a small message each thread copies one vector.
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

// Copies one message by loads and stores of 16 bytes, and the rest of it, of less than 16, by single bytes.
__device__ __forceinline__ void copy_message(u8* target, const u8* source, u64 bytes) {
  const u64 vectors = bytes / 16;
  move_all(reinterpret_cast<uint4*>(target), reinterpret_cast<const uint4*>(source), vectors);
  for (u64 k = vectors * 16 + thread_index(); k < bytes; k += thread_count()) target[k] = source[k];
}

// Copies `count` messages one after another, by the multiprocessors' own loads and stores. Message i lies in slot i
// modulo `slots`. No thread waits for the others between two messages.
extern "C" __global__ void copy(u8* target, const u8* source, u64 bytes, u64 stride, u32 slots, u32 count) {
  for (u32 message = 0, slot = 0; message < count; ++message) {
    copy_message(target + slot * stride, source + slot * stride, bytes);
    slot = slot + 1 == slots ? 0 : slot + 1;
  }
}

// ---- pointer chase --------------------------------------------------------------------------------------------------
// Writes a ring of lines, 128 bytes apart (pointer_chase.cpp): the first word of each is the address of the next.
extern "C" __global__ void write_ring(u64* lines, u64 count, u64 multiplier, u64 increment) {
  for (u64 i = thread_index(); i < count; i += thread_count())
    lines[i * 16] = (u64)(lines + (i * multiplier + increment) % count * 16);
}

// Follows the ring with blocks of one thread, one on each multiprocessor. They make their shares of the accesses in
// turn, as in nvbandwidth, because a line is read in 800 ns by the nearest multiprocessors and in 860 by the farthest
// [132 of them on an H200]. A block waits for its turn, `walk[0]`, which the block before it sets after writing the
// address where it stopped, `walk[1]`. Turns begin at `first_turn`. Volatile, so that no L1 cache serves an access.
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
