// Elements of NCCL's ten types, by ncclDataType_t, and its reductions, by ncclRedOp_t [nccl.h 2.18].
#pragma once

#include <stdint.h>

enum { kSum, kProduct, kMaximum, kMinimum, kAverage, kCopyOfRoot /* collbench's own, for broadcast */ };

unsigned number_width(unsigned dtype);
double load_number(const unsigned char* at, unsigned dtype);
void store_number(unsigned char* at, unsigned dtype, double value);
// What NCCL makes of one element of each rank, before it is rounded to the type; whole averages are cut off.
double reduce_numbers(const double* values, int count, unsigned dtype, unsigned reduction);
