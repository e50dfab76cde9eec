// NCCL, opened at run time from the path that the caller names: the library that the training job will load.
// Prototypes and values as nccl.h 2.18.1 declares them, the first with ncclCommSplit; only what collbench calls.
#pragma once

#include <cstddef>
#include <string>

#include "driver.hpp"
#include "errors.hpp"

namespace collbench {

using ncclComm_t = struct ncclComm*;
using ncclResult_t = int;
// Each with its name in nccl.h, which tests/native/test_headers.py compares.
constexpr ncclResult_t kNcclSuccess = 0;       // ncclSuccess
constexpr ncclResult_t kNcclInvalidUsage = 5;  // ncclInvalidUsage
constexpr ncclResult_t kNcclRemoteError = 6;   // ncclRemoteError
constexpr ncclResult_t kNcclInProgress = 7;    // ncclInProgress
// ncclUniqueId: NCCL_UNIQUE_ID_BYTES bytes, passed by value.
struct NcclUniqueId {
  char internal[128];
};
constexpr int kSplitNoColor = -1;    // NCCL_SPLIT_NOCOLOR
constexpr int kWindowSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
constexpr int kOldestNcclVersion = 21800;

#define COLLBENCH_NCCL_FUNCTIONS(X)                                                                     \
  X(ncclGetVersion, ncclResult_t, (int*))                                                               \
  X(ncclGetErrorString, const char*, (ncclResult_t))                                                    \
  X(ncclGetLastError, const char*, (ncclComm_t))                                                        \
  X(ncclGetUniqueId, ncclResult_t, (NcclUniqueId*))                                                     \
  X(ncclCommInitRank, ncclResult_t, (ncclComm_t*, int, NcclUniqueId, int))                              \
  X(ncclCommSplit, ncclResult_t, (ncclComm_t, int, int, ncclComm_t*, void*))                            \
  X(ncclCommAbort, ncclResult_t, (ncclComm_t))                                                          \
  X(ncclCommGetAsyncError, ncclResult_t, (ncclComm_t, ncclResult_t*))                                   \
  X(ncclAllReduce, ncclResult_t, (const void*, void*, std::size_t, int, int, ncclComm_t, CUstream))     \
  X(ncclBroadcast, ncclResult_t, (const void*, void*, std::size_t, int, int, ncclComm_t, CUstream))     \
  X(ncclReduce, ncclResult_t, (const void*, void*, std::size_t, int, int, int, ncclComm_t, CUstream))   \
  X(ncclAllGather, ncclResult_t, (const void*, void*, std::size_t, int, ncclComm_t, CUstream))          \
  X(ncclReduceScatter, ncclResult_t, (const void*, void*, std::size_t, int, int, ncclComm_t, CUstream)) \
  X(ncclSend, ncclResult_t, (const void*, std::size_t, int, int, ncclComm_t, CUstream))                 \
  X(ncclRecv, ncclResult_t, (void*, std::size_t, int, int, ncclComm_t, CUstream))                       \
  X(ncclGroupStart, ncclResult_t, ())                                                                   \
  X(ncclGroupEnd, ncclResult_t, ())

// Null before NCCL 2.28 [nccl.h 2.28.3]; nccl-tests and collbench then send and receive in a group.
#define COLLBENCH_NCCL_NEWER_FUNCTIONS(X)                                                        \
  X(ncclAlltoAll, ncclResult_t, (const void*, void*, std::size_t, int, ncclComm_t, CUstream))    \
  X(ncclGather, ncclResult_t, (const void*, void*, std::size_t, int, int, ncclComm_t, CUstream)) \
  X(ncclScatter, ncclResult_t, (const void*, void*, std::size_t, int, int, ncclComm_t, CUstream))

// Null before NCCL 2.19 [nccl.h 2.19.1] and 2.27 [nccl.h 2.27.3]: registered_memory.hpp refuses what needs them.
#define COLLBENCH_NCCL_BUFFER_FUNCTIONS(X)                                          \
  X(ncclMemAlloc, ncclResult_t, (void**, std::size_t))                              \
  X(ncclMemFree, ncclResult_t, (void*))                                             \
  X(ncclCommRegister, ncclResult_t, (const ncclComm_t, void*, std::size_t, void**)) \
  X(ncclCommDeregister, ncclResult_t, (const ncclComm_t, void*))
#define COLLBENCH_NCCL_WINDOW_FUNCTIONS(X)                                              \
  X(ncclCommWindowRegister, ncclResult_t, (ncclComm_t, void*, std::size_t, void*, int)) \
  X(ncclCommWindowDeregister, ncclResult_t, (ncclComm_t, void*))

// One opened libnccl.so.2; it stays open for the life of the process, because its threads do.
class Nccl {
 public:
  // Opens the library at `path`; an empty path takes the one already in the process. Throws LibraryError, also for a
  // version older than 2.18.
  explicit Nccl(const std::string& path);

#define COLLBENCH_DECLARE(name, result, signature) result(*name) signature = nullptr;
  COLLBENCH_NCCL_FUNCTIONS(COLLBENCH_DECLARE)
  COLLBENCH_NCCL_NEWER_FUNCTIONS(COLLBENCH_DECLARE)
  COLLBENCH_NCCL_BUFFER_FUNCTIONS(COLLBENCH_DECLARE)
  COLLBENCH_NCCL_WINDOW_FUNCTIONS(COLLBENCH_DECLARE)
#undef COLLBENCH_DECLARE

  // As NCCL numbers it: 2.28.9 is 22809.
  int version() const { return version_; }
  // The file that the functions come from.
  const std::string& path() const { return path_; }
  // The 128 bytes by which ranks in several processes find each other: one rank makes them and gives them to the
  // others.
  std::string unique_id() const;
  // Returns `result` where it is ncclSuccess or ncclInProgress, which calls return on a communicator that does not
  // block (NCCL_COMM_BLOCKING=0). Throws NcclError for all others.
  ncclResult_t checked(ncclResult_t result, const char* call, const char* file, int line) const;

 private:
  std::string path_;
  int version_ = 0;
};

}  // namespace collbench

// Calls an NCCL function of `nccl` and turns failure into an NcclError that names the call and its line.
#define NCCL_CHECK(nccl, function, ...)                                                                             \
  (nccl).checked(::collbench::library_call((nccl).function)(__VA_ARGS__), #function "(" #__VA_ARGS__ ")", __FILE__, \
                 __LINE__)

namespace collbench {

// An open group of NCCL calls. An exception closes it, so that the thread can use NCCL again.
class NcclGroup {
 public:
  explicit NcclGroup(const Nccl& nccl) : nccl_(nccl) { NCCL_CHECK(nccl_, ncclGroupStart); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() {
    if (open_) library_call(nccl_.ncclGroupEnd)();
  }
  ncclResult_t end() {
    open_ = false;
    return NCCL_CHECK(nccl_, ncclGroupEnd);
  }

 private:
  const Nccl& nccl_;
  bool open_ = true;
};

}  // namespace collbench
