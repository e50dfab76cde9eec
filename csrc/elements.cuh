// What collectives send and must deliver: the last part of kernels.cu.
#pragma once

// Values of ncclDataType_t [nccl.h 2.24] and ncclRedOp_t; kCopied, which NCCL lacks, stands for no reduction.
enum Dtype {
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat8e4m3,
  kFloat8e5m2
};
enum Reduction { kSum, kProd, kMax, kMin, kAvg, kCopied };

// Ranks contribute small whole numbers, so that every sum, product, maximum and minimum of them is exact in every
// dtype, and a result that lacks a rank is wrong wherever that rank counts. Sums stay below 2^7 (int8's positive range,
// and bfloat16's 8 bits), in 8-bit floats at most 8 (float8e5m2 has 8, but not 9); products of factors 1 and 2 are at
// most 2^6. So in a large world only some ranks, different ones at every index, add to a sum or multiply. One rank at
// every index has a number above those of all others for the maximum, and below them for the minimum. An average's
// tolerance must not hide a rank's share: at most 8 ranks add to an average of 16-bit floats, and one rank to one of
// 8-bit floats [method/collectives.md 4]. One rank adds to an average of whole numbers, a multiple of the world, as
// less would be cut off. Whose turn it is depends on the seed, too: in time every rank has its turn in messages of a
// few elements.

// Four bits for each of sixteen ranks: with a hash for each rank these kernels would spend most of their time on it.
__device__ __forceinline__ u64 noise_of(u64 seed, u32 rank, u64 index) { return mix(seed + index * 256 + rank / 16); }

__device__ __forceinline__ u32 turn_of(u64 seed, u64 index) { return (u32)(seed + index); }

__device__ __forceinline__ u32 contribution(u64 noises, u32 rank, u32 turn, u32 reduction, u32 world, u32 dtype) {
  const u32 noise = (u32)(noises >> rank % 16 * 4) & 15;
  const bool eight = dtype >= kFloat8e4m3, average = reduction == kAvg;
  const bool sparse = eight || (average && dtype != kFloat32 && dtype != kFloat64);
  if (reduction == kCopied) return noise & 7;
  if ((reduction == kSum || average) && world <= 16 && !sparse) return noise & 7;
  const u32 place = (turn + rank) % world;  // 0 for the rank that has its turn
  if (average && eight) return place == 0 ? 1u << (noise & 3) : 0;
  if (average && dtype <= kUint64) {
    const u32 most = dtype <= kUint8 ? 127 / world : 8;
    if (most == 0) return place == 0 ? 127 : 0;  // more ranks than a byte counts: every average is zero
    return place == 0 ? world * (1 + noise % most) : 0;
  }
  if (reduction == kSum || average) return place < (sparse ? 8 : 112) ? noise & 1 : 0;
  if (reduction == kProd) return place < 6 ? 1 + (noise & 1) : 1;
  return (place == 0) == (reduction == kMax) ? 4 + (noise & 3) : noise & 3;
}

__device__ double reduced(u64 seed, u64 index, u32 reduction, u32 world, u32 dtype) {
  const u32 turn = turn_of(seed, index);
  u64 noises = noise_of(seed, 0, index);
  u32 value = contribution(noises, 0, turn, reduction, world, dtype);
#pragma unroll 1
  for (u32 rank = 1; rank < world; ++rank) {
    if (rank % 16 == 0) noises = noise_of(seed, rank, index);
    const u32 next = contribution(noises, rank, turn, reduction, world, dtype);
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
    case kFloat8e4m3:
    case kFloat8e5m2:
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

// Without the hardware's conversions of 8-bit floats, which begin with sm_89. A sign, four bits of exponent with a bias
// of 7, three of fraction; 0x7f is not a number. Packing is exact for contributions, which are never negative or tiny.
__device__ u8 pack_e4m3(float value) {
  return value == 0 ? 0 : (u8)((__float_as_uint(value) >> 20) - ((127 - 7) << 3));
}

__device__ float unpack_e4m3(u8 bits) {
  const u32 size = bits & 0x7f, sign = (u32)(bits >> 7) << 31;
  const float small = size * 0x1p-9f;  // subnormal: a multiple of the smallest positive number
  const u32 value = size < 8 ? __float_as_uint(small) : size == 0x7f ? 0x7fc00000 : (size << 20) + ((127 - 7) << 23);
  return __uint_as_float(value | sign);
}

__device__ unsigned short pack_half(float value) {
  unsigned short half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

__device__ float unpack_half(unsigned short half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}

__device__ void store(u8* at, u32 dtype, double value) {
  switch (dtype) {
    case kFloat8e4m3:
      *at = pack_e4m3((float)value);
      return;
    case kFloat8e5m2:  // the upper half of a float16
      *at = (u8)(pack_half((float)value) >> 8);
      return;
    case kFloat16:
      *(unsigned short*)at = pack_half((float)value);
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

// An element's bits. Fetching is separate from decoding, so that several loads are in flight before the first is
// decoded.
struct Bits {
  u32 low, high;
};

__device__ __forceinline__ Bits fetch(const u8* at, u32 bytes) {
  if (bytes == 4) return {*(const u32*)at, 0};
  if (bytes == 2) return {*(const unsigned short*)at, 0};
  if (bytes == 1) return {*at, 0};
  return {*(const u32*)at, *(const u32*)(at + 4)};
}

__device__ double decode(Bits bits, u32 dtype) {
  const u64 whole = (u64)bits.high << 32 | bits.low;
  switch (dtype) {
    case kFloat8e4m3:
      return unpack_e4m3((u8)bits.low);
    case kFloat8e5m2:
      return unpack_half((unsigned short)(bits.low << 8));
    case kFloat16:
      return unpack_half((unsigned short)bits.low);
    case kBfloat16:
      return __uint_as_float(bits.low << 16);
    case kFloat32:
      return __uint_as_float(bits.low);
    case kFloat64:
      return __longlong_as_double((long long)whole);
  }
  return (double)whole;
}

// The seed of a slot, given that of the first; collective_rank.cpp has the same. Any large odd number works, except the
// step from one batch's seed to the next.
__device__ __forceinline__ u64 seed_of(u64 seed, u32 slot) { return seed + slot * 0xd1342543de82ef95ull; }

extern "C" __global__ void fill_elements(u8* buffer, u64 stride, u64 count, u32 dtype, u32 reduction, u32 world,
                                         u32 rank, u64 seed) {
  u8* message = buffer + blockIdx.y * stride;
  const u32 bytes = width(dtype);
  const u64 own = seed_of(seed, blockIdx.y);
  for (u64 i = thread_index(); i < count; i += thread_count()) {
    const u32 value = contribution(noise_of(own, rank, i), rank, turn_of(own, i), reduction, world, dtype);
    if (dtype == kFloat32)
      ((float*)message)[i] = value;
    else
      store(message + i * bytes, dtype, value);
  }
}

// The common case, float32 sums of at most sixteen ranks, in a few instructions: adds even and odd nibbles, each below
// 8, into bytes, then all bytes into the highest one.
__device__ __forceinline__ float plain_sum(u64 seed, u64 index, u32 world) {
  const u64 ranks = noise_of(seed, 0, index) & 0x7777777777777777ull >> (16 - world) * 4;
  const u64 pairs = (ranks & 0x0f0f0f0f0f0f0f0full) + (ranks >> 4 & 0x0f0f0f0f0f0f0f0full);
  return (float)(u32)(pairs * 0x0101010101010101ull >> 56);
}

// What a rank must find: element i is the value at index `offset + i % block` of the reduction over all ranks or, where
// nothing is reduced, of what rank `sender` sent; with sender ~0, of what rank i / block sent.
struct Rule {
  u64 block, offset, seed;
  u32 dtype, reduction, sender, world;
  double tolerance;
};

__device__ __forceinline__ bool is_plain(const Rule& rule) {
  const bool sum = rule.reduction == kSum && rule.world <= 16, copied = rule.reduction == kCopied;
  return rule.dtype == kFloat32 && (sum || copied);
}

__device__ __forceinline__ double expected_element(const Rule& rule, u64 index, u64 from) {
  if (rule.reduction != kCopied) return reduced(rule.seed, rule.offset + index, rule.reduction, rule.world, rule.dtype);
  const u32 rank = rule.sender == ~0u ? (u32)from : rule.sender;
  const u64 noises = noise_of(rule.seed, rank, rule.offset + index);
  return contribution(noises, rank, 0, kCopied, rule.world, rule.dtype);
}

// Nothing that is sent is negative, so no reduction is either, and a set sign is wrong even for zero.
__device__ __forceinline__ bool is_right(const Rule& rule, bool plain, u64 index, u64 from, Bits bits) {
  if (plain && rule.reduction == kSum)
    return bits.low == __float_as_uint(plain_sum(rule.seed, rule.offset + index, rule.world));
  if (plain) {
    const u32 rank = rule.sender == ~0u ? (u32)from : rule.sender;
    const u32 noise = (u32)(noise_of(rule.seed, rank, rule.offset + index) >> rank % 16 * 4) & 7;
    return bits.low == __float_as_uint((float)noise);
  }
  const double found = decode(bits, rule.dtype);
  if (__double2hiint(found) < 0) return false;
  const double expected = expected_element(rule, index, from);
  return fabs(found - expected) <= rule.tolerance * expected;
}

// `tolerance`, a share of what is expected, is 0 except for averages that are rounded. Each thread
// reports once: for a gigabyte of wrong elements, atomics on host memory would otherwise take minutes.
extern "C" __global__ void verify_elements(const u8* buffer, u64 stride, u64 first, u64 count, u64 block, u64 offset,
                                           u32 dtype, u32 reduction, u32 sender, u32 world, u64 seed, double tolerance,
                                           Report* report) {
  const Rule rule = {block, offset, seed_of(seed, blockIdx.y), dtype, reduction, sender, world, tolerance};
  const bool plain = is_plain(rule);
  const u8* message = buffer + blockIdx.y * stride;
  const u32 kAtOnce = 4, bytes = width(dtype);
  const u64 all = thread_count(), end = first + count;
  // Counted up, because a division for every element would cost as much as everything else.
  u64 index = (first + thread_index()) % block, from = (first + thread_index()) / block;
  const u64 step = all % block, steps = all / block;
  u64 wrong = 0, at = 0, wrong_index = 0, wrong_from = 0;
  Bits wrong_bits = {0, 0};
  for (u64 i = first + thread_index(); i < end; i += kAtOnce * all) {
    Bits held[kAtOnce];
#pragma unroll
    for (u32 k = 0; k < kAtOnce; ++k)
      if (i + k * all < end) held[k] = fetch(message + (i + k * all) * bytes, bytes);
#pragma unroll
    for (u32 k = 0; k < kAtOnce; ++k) {
      if (i + k * all < end && !is_right(rule, plain, index, from, held[k]) && ++wrong == 1) {
        at = blockIdx.y * stride + (i + k * all) * bytes;
        wrong_index = index, wrong_from = from, wrong_bits = held[k];
      }
      index += step;
      from += steps;
      if (index >= block) index -= block, ++from;
    }
  }
  if (wrong == 0) return;
  atomicAdd(&report->wrong, wrong);
  atomicMin(&report->first, at);
  report->expected = expected_element(rule, wrong_index, wrong_from);
  report->found = decode(wrong_bits, dtype);
}
