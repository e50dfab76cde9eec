// Elements of NCCL's types, by ncclDataType_t, and its reductions, by ncclRedOp_t [nccl.h 2.24].
#pragma once

#include <stdint.h>
#include <string.h>

enum { kFloat16 = 6, kFloat32, kFloat64, kBfloat16, kFloat8e4m3, kFloat8e5m2 };
enum { kSum, kProduct, kMaximum, kMinimum, kAverage, kCopied /* collbench's own: nothing is reduced */ };

inline unsigned number_width(unsigned dtype) { return (const unsigned[]){1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}[dtype]; }
double load_other(const unsigned char* at, unsigned dtype);
inline double load_number(const unsigned char* at, unsigned dtype) {
  float single;
  if (dtype != kFloat32) return load_other(at, dtype);
  memcpy(&single, at, sizeof single);  // here, for nearly all are: a test's message has a million
  return single;
}
void store_other(unsigned char* at, unsigned dtype, double value);
inline void store_number(unsigned char* at, unsigned dtype, double value) {
  const float single = (float)value;
  if (dtype == kFloat32)
    memcpy(at, &single, sizeof single);
  else
    store_other(at, dtype, value);
}
// What NCCL makes of one element of each rank, before it is rounded to the type; whole averages are cut off.
double reduce_numbers(const double* values, int count, unsigned dtype, unsigned reduction);
