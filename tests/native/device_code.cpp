// kernels.cu as one thread of the CPU runs it: test_device_code.py compiles it with these conversions instead of its
// own two in PTX, and calls its kernels.
#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline

struct Place {
  unsigned x, y;
};
static const Place threadIdx{0, 0}, blockDim{1, 1}, gridDim{1, 1};
static Place blockIdx{0, 0};
struct uint4 {
  unsigned x, y, z, w;
};

template <class To, class From>
static To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
static unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
static float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
static double __longlong_as_double(long long bits) { return same_bits<double>(bits); }
static int __double2hiint(double value) { return static_cast<int>(same_bits<std::uint64_t>(value) >> 32); }
static void atomicAdd(unsigned long long* at, unsigned long long value) { *at += value; }
static void atomicMin(unsigned long long* at, unsigned long long value) { *at = value < *at ? value : *at; }
using std::fabs;
static void __threadfence() {}

// Written again in fake_numbers.c, by arithmetic.
extern "C" void store_number(unsigned char* at, unsigned dtype, double value);
extern "C" double load_number(const unsigned char* at, unsigned dtype);
static void to_half(unsigned short& half, float value) {
  store_number(reinterpret_cast<unsigned char*>(&half), 6, static_cast<double>(value));
}
static void from_half(float& value, unsigned short half) {
  value = static_cast<float>(load_number(reinterpret_cast<unsigned char*>(&half), 6));
}

#include "collective_layout.hpp"
#include "device_code.inc"

extern "C" void use_slot(unsigned slot) { blockIdx.y = slot; }

extern "C" double allowed_error(unsigned dtype, unsigned reduction, int ranks) {
  collbench::CollectiveRound round{};
  round.operation = collbench::Collective::allreduce;
  round.dtype = static_cast<collbench::Dtype>(dtype);
  round.reduction = static_cast<collbench::Reduction>(reduction);
  return collbench::tolerance_of(round, ranks);
}

extern "C" void load_numbers(const unsigned char* from, unsigned dtype, unsigned count, double* values) {
  for (unsigned i = 0; i < count; ++i) values[i] = load_number(from + i * width(dtype), dtype);
}

extern "C" void store_numbers(unsigned char* to, unsigned dtype, unsigned count, const double* values) {
  for (unsigned i = 0; i < count; ++i) store_number(to + i * width(dtype), dtype, values[i]);
}
