#include "driver.hpp"

#include <dlfcn.h>

#include "library.hpp"

namespace collbench {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

// The library stays open for the life of the process: the driver does not survive being unloaded.
Driver open_driver() {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw LibraryError("no NVIDIA driver: " + open_failure());
  Driver table;
#define COLLBENCH_LOAD(name, signature) table.name = symbol<CUresult(*) signature>(library, kLibrary, #name);
  COLLBENCH_DRIVER_FUNCTIONS(COLLBENCH_LOAD)
#undef COLLBENCH_LOAD
  return table;
}

std::string describe(const Driver& table, CUresult result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (table.cuGetErrorName(result, &name) != kCudaSuccess || name == nullptr) name = "unknown error";
  if (table.cuGetErrorString(result, &text) != kCudaSuccess || text == nullptr) text = "no description";
  return std::string(name) + " (" + text + ")";
}

Driver initialise() {
  const Driver table = open_driver();
  const CUresult result = table.cuInit(0);
  if (result != kCudaSuccess)
    throw CudaError("the NVIDIA driver does not start: cuInit(0): " + describe(table, result));
  return table;
}

}  // namespace

const Driver& driver() {
  // A failed attempt throws, and the next call tries again.
  static const Driver table = initialise();
  return table;
}

void throw_cuda(CUresult result, const char* call, const char* file, int line) {
  throw CudaError(std::string(call) + ": " + describe(driver(), result) + " at " + source_line(file, line));
}

}  // namespace collbench
