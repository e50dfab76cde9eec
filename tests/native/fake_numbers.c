#include "fake_numbers.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

// Here, where they are not inlined.
extern inline unsigned number_width(unsigned dtype);
extern inline double load_number(const unsigned char* at, unsigned dtype);
extern inline void store_number(unsigned char* at, unsigned dtype, double value);

// Short floats: their bits, the significant ones of these (the first one implied), and the exponent's bias.
typedef struct Format {
  int bits, digits, bias;
} Format;

static const Format* format_of(unsigned dtype) {
  static const Format half = {16, 11, 15}, brain = {16, 8, 127}, e4m3 = {8, 4, 7}, e5m2 = {8, 3, 15};
  if (dtype == kFloat8e4m3) return &e4m3;
  if (dtype == kFloat8e5m2) return &e5m2;
  return dtype == kFloat16 ? &half : dtype == kBfloat16 ? &brain : NULL;
}

// By arithmetic; values are never negative here.
static uint16_t pack(double value, const Format* format) {
  const int digits = format->digits;
  int exponent = 0;
  if (value < ldexp(1, 1 - format->bias)) return (uint16_t)rint(ldexp(value, format->bias + digits - 2));  // subnormal
  double whole = rint(ldexp(frexp(value, &exponent), digits));
  if (whole == ldexp(1, digits)) whole /= 2, ++exponent;
  return (uint16_t)(((exponent - 1 + format->bias) << (digits - 1)) + ((int)whole - (1 << (digits - 1))));
}

static double unpack(uint16_t bits, const Format* format) {
  const int digits = format->digits, sign = 1 << (format->bits - 1);
  const int exponent = (bits & (sign - 1)) >> (digits - 1), fraction = bits & ((1 << (digits - 1)) - 1);
  const int whole = exponent == 0 ? fraction : fraction + (1 << (digits - 1));
  const double size = ldexp(whole, (exponent == 0 ? 1 : exponent) - format->bias - digits + 1);
  return bits & sign ? -size : size;
}

double load_other(const unsigned char* at, unsigned dtype) {
  uint16_t bits = 0;
  uint64_t whole = 0;
  double wide = 0;
  const Format* format = format_of(dtype);
  if (format != NULL) {
    memcpy(&bits, at, number_width(dtype));  // little-endian
    return unpack(bits, format);
  }
  if (dtype == kFloat64) {
    memcpy(&wide, at, sizeof wide);
    return wide;
  }
  memcpy(&whole, at, number_width(dtype));
  return (double)whole;
}

void store_other(unsigned char* at, unsigned dtype, double value) {
  const uint64_t whole = (uint64_t)value;
  const Format* format = format_of(dtype);
  const uint16_t bits = format == NULL ? 0 : pack(value, format);
  const void* from = dtype == kFloat64 ? (const void*)&value : &whole;
  memcpy(at, format == NULL ? from : &bits, number_width(dtype));
}

double reduce_numbers(const double* values, int count, unsigned dtype, unsigned reduction) {
  double result = values[0];
  for (int i = 1; reduction == kSum && i < count; ++i) result += values[i];
  if (reduction == kSum) return result;
  for (int i = 1; i < count; ++i) {
    if (reduction == kAverage) result += values[i];
    if (reduction == kProduct) result *= values[i];
    if (reduction == kMaximum) result = fmax(result, values[i]);
    if (reduction == kMinimum) result = fmin(result, values[i]);
  }
  if (reduction != kAverage) return result;
  return dtype < kFloat16 ? floor(result / count) : result / count;
}
