// What the native layer throws. bindings.cpp turns each into a Python exception of the same name.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace collbench {

// A library that cannot be opened, or that lacks a function we call.
struct LibraryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A failed CUDA driver call: "cuMemAlloc(&p, 8): CUDA_ERROR_OUT_OF_MEMORY (out of memory) at handles.hpp:40".
struct CudaError : std::runtime_error {
  CudaError(int result, const std::string& text) : std::runtime_error(text), code(result) {}
  int code;
};

// A failed NCCL call, with what ncclGetLastError adds.
struct NcclError : std::runtime_error {
  NcclError(int result, const std::string& text) : std::runtime_error(text), code(result) {}
  int code;
};

// The work did not finish within its deadline: the device or a peer is stuck.
struct HangError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Data arrived that was not sent. `group` indexes the caller's list of links or communicators, `rank` the member
// that holds the wrong data, `offset` counts bytes from the start of the message; `expected` and `found` are bytes
// for copies and element values for collectives.
struct DataError : std::runtime_error {
  DataError(int group, int rank, std::uint64_t offset, std::uint64_t wrong, double expected, double found)
      : std::runtime_error("wrong data at byte " + std::to_string(offset)),
        group(group),
        rank(rank),
        offset(offset),
        wrong(wrong),
        expected(expected),
        found(found) {}
  int group;
  int rank;
  std::uint64_t offset;
  std::uint64_t wrong;
  double expected;
  double found;
};

}  // namespace collbench
