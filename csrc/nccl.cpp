#include "nccl.hpp"

#include <dlfcn.h>

#include <algorithm>

#include "library.hpp"

namespace collbench {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

void* open_library(const std::string& path) {
  void* library = path.empty() ? dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD) : dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  if (path.empty()) throw LibraryError("no NCCL is loaded in this process");
  throw LibraryError("NCCL cannot be opened at " + path + ": " + open_failure());
}

std::string file_of(void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

// NCCL's own text, which may end in a line break.
std::string one_line(std::string text) {
  text.erase(text.find_last_not_of('\n') + 1);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string format_version(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Nccl::Nccl(const std::string& path) {
  void* library = open_library(path);
  const std::string name = path.empty() ? kLibrary : path;
  ncclGetVersion = symbol<ncclResult_t (*)(int*)>(library, name.c_str(), "ncclGetVersion");
  ncclGetVersion(&version_);
  // Versions before 2.9 have numbers of another form (2804), which are smaller still.
  if (version_ < kOldestNcclVersion)
    throw LibraryError("NCCL at " + name + " is version " +
                       (version_ >= 10000 ? format_version(version_) : std::to_string(version_)) +
                       ": collbench needs 2.18 or newer, for ncclCommSplit");
#define COLLBENCH_LOAD(function, result, signature) \
  function = symbol<result(*) signature>(library, name.c_str(), #function);
  COLLBENCH_NCCL_FUNCTIONS(COLLBENCH_LOAD)
#undef COLLBENCH_LOAD
#define COLLBENCH_LOAD(function, result, signature) \
  function = reinterpret_cast<result(*) signature>(dlsym(library, #function));
  COLLBENCH_NCCL_NEWER_FUNCTIONS(COLLBENCH_LOAD)
  COLLBENCH_NCCL_BUFFER_FUNCTIONS(COLLBENCH_LOAD)
  COLLBENCH_NCCL_WINDOW_FUNCTIONS(COLLBENCH_LOAD)
#undef COLLBENCH_LOAD
  path_ = file_of(reinterpret_cast<void*>(ncclGetVersion));
}

std::string Nccl::unique_id() const {
  NcclUniqueId id{};
  NCCL_CHECK(*this, ncclGetUniqueId, &id);
  return {id.internal, sizeof id.internal};
}

ncclResult_t Nccl::checked(ncclResult_t result, const char* call, const char* file, int line) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return result;
  const char* detail = ncclGetLastError(nullptr);
  std::string text = std::string(call) + ": " + ncclGetErrorString(result);
  if (detail != nullptr && *detail != '\0') text += " (" + one_line(detail) + ")";
  throw NcclError(result, text + " at " + source_line(file, line));
}

}  // namespace collbench
