// All device code: the gate, the patterns that prove what was copied or reduced, and the copy by loads and stores.
// Compiled by NVRTC for compute_60 (tools see CONTRIBUTING.md) and by any nvcc; includes nothing.

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

// Values of ncclDataType_t and ncclRedOp_t [nccl.h 2.18]; kCopyOfRoot is ours, for broadcast.
enum Dtype { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kFloat16, kFloat32, kFloat64, kBfloat16 };
enum Reduction { kSum, kProd, kMax, kMin, kAvg, kCopyOfRoot };

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
extern "C" __global__ void gate(const volatile u32* latch, u32 ticket, u64 timeout_ns, volatile u32* expired) {
  const u64 start = nanoseconds();
  while ((int)(*latch - ticket) < 0) {
    if (nanoseconds() - start > timeout_ns) {
      *expired = 1;
      return;
    }
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

__device__ void report_wrong(Report* report, u64 offset, double expected, double found) {
  atomicAdd(&report->wrong, 1ull);
  atomicMin(&report->first, offset);
  report->expected = expected;
  report->found = found;
}

extern "C" __global__ void verify(const u8* buffer, u64 base, u64 stride, u64 bytes, u64 seed, Report* report) {
  const u64 begin = base + blockIdx.y * stride, end = begin + bytes;
  for (u64 word = begin / 8 + thread_index(); word * 8 < end; word += thread_count()) {
    const u64 value = pattern(seed, word), at = word * 8;
    if (at >= begin && at + 8 <= end && *reinterpret_cast<const u64*>(buffer + at) == value) continue;
    for (u32 i = 0; i < 8; ++i) {
      const u8 expected = (u8)(value >> (8 * i));
      if (at + i >= begin && at + i < end && buffer[at + i] != expected)
        report_wrong(report, at + i, expected, buffer[at + i]);
    }
  }
}

// Copies by the multiprocessors' own 16-byte loads and stores, eight in flight a thread so that the link's latency is
// covered; bytes where source and destination are not aligned alike.
extern "C" __global__ void copy(u8* target, const u8* source, u64 bytes) {
  const u32 kInFlight = 8;
  const u64 me = thread_index(), all = thread_count();
  u64 head = (16 - (u64)source % 16) % 16;
  if ((u64)source % 16 != (u64)target % 16 || head > bytes) head = bytes;
  const u64 vectors = (bytes - head) / 16;
  const uint4* from = reinterpret_cast<const uint4*>(source + head);
  uint4* to = reinterpret_cast<uint4*>(target + head);
  u64 i = me;
  for (; i + (kInFlight - 1) * all < vectors; i += kInFlight * all) {
    uint4 held[kInFlight];
#pragma unroll
    for (u32 k = 0; k < kInFlight; ++k) held[k] = from[i + k * all];
#pragma unroll
    for (u32 k = 0; k < kInFlight; ++k) to[i + k * all] = held[k];
  }
  for (; i < vectors; i += all) to[i] = from[i];
  for (u64 k = me; k < head; k += all) target[k] = source[k];
  for (u64 k = head + vectors * 16 + me; k < bytes; k += all) target[k] = source[k];
}

// ---- elements -------------------------------------------------------------------------------------------------------
// Small whole numbers, so that every reduction of them is exact in every dtype: sums stay under 2^7 (int8's positive
// range, and bfloat16's 8 bits), and only the first six ranks contribute factors of two to a product.

__device__ __forceinline__ u32 contribution(u64 seed, u32 rank, u64 index, u32 reduction, u32 world) {
  const u32 noise = (u32)(mix(seed + index * 64 + rank) >> 32);
  if (reduction == kProd) return rank < 6 ? 1 + (noise & 1) : 1;
  return noise & (world <= 16 ? 7 : 1);
}

__device__ double reduced(u64 seed, u64 index, u32 reduction, u32 world, u32 root, u32 dtype) {
  if (reduction == kCopyOfRoot) return contribution(seed, root, index, kSum, world);
  u32 value = contribution(seed, 0, index, reduction, world);
  for (u32 rank = 1; rank < world; ++rank) {
    const u32 next = contribution(seed, rank, index, reduction, world);
    if (reduction == kSum || reduction == kAvg) value += next;
    if (reduction == kProd) value *= next;
    if (reduction == kMax) value = value > next ? value : next;
    if (reduction == kMin) value = value < next ? value : next;
  }
  if (reduction != kAvg) return value;
  return dtype <= kUint64 ? (double)(value / world) : (double)value / world;
}

__device__ u32 width(u32 dtype) {
  switch (dtype) {
    case kInt8:
    case kUint8:
      return 1;
    case kFloat16:
    case kBfloat16:
      return 2;
    case kInt64:
    case kUint64:
    case kFloat64:
      return 8;
    default:
      return 4;
  }
}

__device__ void store(u8* at, u32 dtype, double value) {
  unsigned short half;
  switch (dtype) {
    case kFloat16:
      asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"((float)value));
      *(unsigned short*)at = half;
      return;
    case kBfloat16:
      *(unsigned short*)at = (unsigned short)(__float_as_uint((float)value) >> 16);
      return;
    case kFloat32:
      *(float*)at = (float)value;
      return;
    case kFloat64:
      *(double*)at = value;
      return;
  }
  const u64 whole = (u64)value;
  for (u32 i = 0; i < width(dtype); ++i) at[i] = (u8)(whole >> (8 * i));
}

__device__ double load(const u8* at, u32 dtype) {
  float wide;
  switch (dtype) {
    case kFloat16:
      asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(*(const unsigned short*)at));
      return wide;
    case kBfloat16:
      return __uint_as_float((u32)(*(const unsigned short*)at) << 16);
    case kFloat32:
      return *(const float*)at;
    case kFloat64:
      return *(const double*)at;
  }
  u64 whole = 0;
  for (u32 i = 0; i < width(dtype); ++i) whole |= (u64)at[i] << (8 * i);
  return (double)whole;
}

extern "C" __global__ void fill_elements(u8* buffer, u64 stride, u64 count, u32 dtype, u32 reduction, u32 world,
                                         u32 rank, u64 seed) {
  u8* message = buffer + blockIdx.y * stride;
  const u32 bytes = width(dtype), op = reduction == kCopyOfRoot ? kSum : reduction;
  for (u64 i = thread_index(); i < count; i += thread_count())
    store(message + i * bytes, dtype, contribution(seed, rank, i, op, world));
}

// `tolerance` is 0 but for floating averages over a world that is no power of two, which round in each dtype.
extern "C" __global__ void verify_elements(const u8* buffer, u64 stride, u64 first, u64 count, u32 dtype, u32 reduction,
                                           u32 world, u32 root, u64 seed, double tolerance, Report* report) {
  const u8* message = buffer + blockIdx.y * stride;
  const u32 bytes = width(dtype);
  for (u64 i = first + thread_index(); i < first + count; i += thread_count()) {
    const double expected = reduced(seed, i, reduction, world, root, dtype), found = load(message + i * bytes, dtype);
    if (!(fabs(found - expected) <= tolerance)) report_wrong(report, blockIdx.y * stride + i * bytes, expected, found);
  }
}
