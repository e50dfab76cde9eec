// Elements of NCCL's types, by ncclDataType_t, and its reductions, by ncclRedOp_t [nccl.h 2.24].
#pragma once

#include <stdint.h>

enum { kSum, kProduct, kMaximum, kMinimum, kAverage, kCopied /* collbench's own: nothing is reduced */ };

unsigned number_width(unsigned dtype);
double load_number(const unsigned char* at, unsigned dtype);
void store_number(unsigned char* at, unsigned dtype, double value);
// What NCCL makes of one element of each rank, before it is rounded to the type; whole averages are cut off.
double reduce_numbers(const double* values, int count, unsigned dtype, unsigned reduction);
