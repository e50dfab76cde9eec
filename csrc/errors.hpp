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

// A failure on one GPU. `position` is that GPU's index in the session's Gpus, -1 where only the caller knows it.
struct DeviceError : std::runtime_error {
  using std::runtime_error::runtime_error;
  int position = -1;
};

// A failed CUDA driver call: "cuMemAlloc(&p, 8): CUDA_ERROR_OUT_OF_MEMORY (out of memory) at handles.hpp:40".
struct CudaError : DeviceError {
  using DeviceError::DeviceError;
};

// A failed NCCL call, with the text of ncclGetLastError. `code` is the ncclResult_t.
struct NcclError : DeviceError {
  NcclError(int result, const std::string& text) : DeviceError(text), code(result) {}
  int code;
};

// The work did not finish within its deadline: the device or a peer is stuck.
struct HangError : DeviceError {
  using DeviceError::DeviceError;
};

// The device did not wait any longer for the host to queue work, because a call waited for the device, or because this
// process was stopped or the machine suspended.
struct LateError : HangError {
  using HangError::HangError;
};

// The kernel refuses memory on the NUMA node that was asked for.
struct PolicyError : DeviceError {
  using DeviceError::DeviceError;
};

// Data arrived that was not sent. `group` indexes the caller's list of groups or links. `rank` is the rank in the group
// that holds the wrong data, or the index of the transfer that brought it. `offset` counts bytes from the start of the
// message; `expected` and `found` are bytes for copies and element values for collectives. For a pointer chase that
// ended at the wrong address, all three are byte offsets in the ring.
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

// "handles.hpp:40": the place of a failed call, without the folder.
inline std::string source_line(const char* file, int line) {
  const std::string path(file);
  return path.substr(path.find_last_of('/') + 1) + ":" + std::to_string(line);
}

}  // namespace collbench
