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

// What failed on one GPU. `position` is its place in the session's Gpus, -1 where the caller must know it.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
  int position = -1;
};

// A failed CUDA driver call: "cuMemAlloc(&p, 8): CUDA_ERROR_OUT_OF_MEMORY (out of memory) at handles.hpp:40".
struct CudaError : DeviceError {
  CudaError(int result, const std::string& text) : DeviceError(text), code(result) {}
  int code;
};

// A failed NCCL call, with what ncclGetLastError adds.
struct NcclError : DeviceError {
  NcclError(int result, const std::string& text) : DeviceError(text), code(result) {}
  int code;
};

// The work did not finish within its deadline: the device or a peer is stuck.
struct HangError : DeviceError {
  using DeviceError::DeviceError;
};

// Memory that the kernel does not give where it was asked for.
struct PolicyError : DeviceError {
  using DeviceError::DeviceError;
};

// Data arrived that was not sent. `group` indexes the caller's list of groups or links, `rank` is the member of a
// communicator that holds the wrong data, or the transfer of a group of copies that brought it. `offset` counts bytes
// from the start of the message; `expected` and `found` are bytes for copies and element values for collectives. A
// pointer chase went wrong somewhere on its way to `offset` in the ring: `expected` and `found` are places there.
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
