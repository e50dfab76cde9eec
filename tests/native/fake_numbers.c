#include "fake_numbers.h"

#include <math.h>
#include <string.h>

enum { kFloat16 = 6, kFloat32, kFloat64, kBfloat16 };

unsigned number_width(unsigned dtype) { return (const unsigned[]){1, 1, 4, 4, 8, 8, 2, 4, 8, 2}[dtype]; }

// Sixteen-bit floats by arithmetic: `digits` significant bits, the first one implied; never negative or tiny here.
static uint16_t pack(double value, int digits, int bias) {
  int exponent = 0;
  if (value == 0) return 0;
  double whole = rint(ldexp(frexp(value, &exponent), digits));
  if (whole == ldexp(1, digits)) whole /= 2, ++exponent;
  return (uint16_t)(((exponent - 1 + bias) << (digits - 1)) + ((int)whole - (1 << (digits - 1))));
}

static double unpack(uint16_t bits, int digits, int bias) {
  const int exponent = (bits & 0x7fff) >> (digits - 1), fraction = bits & ((1 << (digits - 1)) - 1);
  const double size = exponent == 0 ? 0 : ldexp(fraction + (1 << (digits - 1)), exponent - bias - digits + 1);
  return bits >> 15 ? -size : size;
}

double load_number(const unsigned char* at, unsigned dtype) {
  uint16_t bits = 0;
  uint64_t whole = 0;
  float single = 0;
  double wide = 0;
  switch (dtype) {
    case kFloat16:
    case kBfloat16:
      memcpy(&bits, at, sizeof bits);
      return dtype == kFloat16 ? unpack(bits, 11, 15) : unpack(bits, 8, 127);
    case kFloat32:
      memcpy(&single, at, sizeof single);
      return single;
    case kFloat64:
      memcpy(&wide, at, sizeof wide);
      return wide;
  }
  memcpy(&whole, at, number_width(dtype));  // little-endian
  return (double)whole;
}

void store_number(unsigned char* at, unsigned dtype, double value) {
  const uint64_t whole = (uint64_t)value;
  const float single = (float)value;
  const uint16_t bits = dtype == kFloat16 ? pack(value, 11, 15) : pack(value, 8, 127);
  const void* from = dtype == kFloat32 ? (const void*)&single : dtype == kFloat64 ? (const void*)&value : &whole;
  memcpy(at, dtype == kFloat16 || dtype == kBfloat16 ? &bits : from, number_width(dtype));
}

double reduce_numbers(const double* values, int count, unsigned dtype, unsigned reduction) {
  double result = values[0];
  for (int i = 1; i < count; ++i) {
    if (reduction == kSum || reduction == kAverage) result += values[i];
    if (reduction == kProduct) result *= values[i];
    if (reduction == kMaximum) result = fmax(result, values[i]);
    if (reduction == kMinimum) result = fmin(result, values[i]);
  }
  if (reduction != kAverage) return result;
  return dtype < kFloat16 ? floor(result / count) : result / count;
}
