// Fake libcuda.so.1, first half: devices, contexts, memory and modules.
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static Context contexts[kMaxGpus];
static _Thread_local Context* current;
static int started;  // by cuInit

Context* current_context(void) { return current; }
int current_gpu(void) { return current == NULL ? kHost : current->gpu; }

// The one GPU whose UUID begins with these characters, -1 where there is none or more than one.
static int by_uuid(const char* start, size_t length) {
  int found = -1;
  for (int gpu = 0; gpu < count_gpus(); ++gpu) {
    char uuid[64];
    write_uuid(gpu, uuid, sizeof uuid);
    if (strncmp(uuid, start, length) != 0) continue;
    if (found != -1) return -1;
    found = gpu;
  }
  return found;
}

// Fills `gpus` with what CUDA_VISIBLE_DEVICES (numbers, UUIDs or their beginnings) leaves, in its order; returns how
// many. As in CUDA, the list ends at the first entry that names no GPU.
static int visible(int gpus[kMaxGpus]) {
  const char* at = getenv("CUDA_VISIBLE_DEVICES");
  int count = 0;
  for (int gpu = 0; at == NULL && gpu < count_gpus(); ++gpu) gpus[count++] = gpu;
  while (at != NULL && *at != '\0' && count < kMaxGpus) {
    const size_t length = strcspn(at, ",");
    char* end = NULL;
    int gpu = (int)strtol(at, &end, 10);
    if (strncmp(at, "GPU-", 4) == 0)
      gpu = by_uuid(at, length);
    else if (end != at + length)
      gpu = -1;
    if (gpu < 0 || gpu >= count_gpus()) break;
    gpus[count++] = gpu;
    at = at[length] == ',' ? at + length + 1 : NULL;
  }
  return count;
}

EXPORT int cuInit(unsigned flags) {
  (void)flags;
  CALLED;
  started = 1;
  return kSuccess;
}

static const char* const errors[][3] = {{"1", "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
                                        {"2", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
                                        {"100", "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
                                        {"200", "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
                                        {"201", "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
                                        {"400", "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
                                        {"500", "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
                                        {"700", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access"},
                                        {"719", "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
                                        {"900", "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not while capturing"}};

static int describe(int error, const char** text, int column) {
  *text = NULL;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i)
    if (atoi(errors[i][0]) == error) *text = errors[i][column];
  return *text == NULL ? kInvalidValue : kSuccess;
}

EXPORT int cuGetErrorName(int error, const char** text) { return describe(error, text, 1); }

EXPORT int cuGetErrorString(int error, const char** text) { return describe(error, text, 2); }

EXPORT int cuDeviceGetCount(int* count) {
  CALLED;
  if (!started) return kNotInitialized;
  int gpus[kMaxGpus];
  *count = visible(gpus);
  return kSuccess;
}

EXPORT int cuDeviceGet(int* device, int ordinal) {
  CALLED;
  int gpus[kMaxGpus];
  if (ordinal < 0 || ordinal >= visible(gpus)) return kInvalidValue;
  *device = gpus[ordinal];
  return kSuccess;
}

EXPORT int cuDeviceGetUuid(unsigned char uuid[16], int device) {
  CALLED;
  uuid_of(device, uuid);
  return kSuccess;
}

EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  CALLED;
  if (attribute == 16)  // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    *value = 132;
  else if (attribute == 38)  // CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    *value = (int)by_gpu("FAKE_L2", device, 0);
  else if (attribute == 132 && by_gpu("FAKE_MULTICAST", device, 0) >= 0)  // …_MULTICAST_SUPPORTED, of newer drivers
    *value = (int)by_gpu("FAKE_MULTICAST", device, 0);
  else
    return kInvalidValue;
  return kSuccess;
}

EXPORT int cuDeviceCanAccessPeer(int* possible, int device, int peer) {
  CALLED;
  *possible = peers(device, peer);
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRetain(Context** context, int device) {
  CALLED;
  *context = &contexts[device];
  (*context)->gpu = device;
  ++(*context)->uses;
  note("+context %d", device);
  return kSuccess;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  CALLED;
  if (--contexts[device].uses < 0) fault("context of GPU %d is released too often", device);
  note("-context %d", device);
  return kSuccess;
}

EXPORT int cuCtxSetCurrent(Context* context) {
  LOCKED;  // not logged: it comes before almost every other call
  RETURN_IF(injected(__func__));
  current = context;
  return kSuccess;
}

EXPORT int cuCtxEnablePeerAccess(Context* peer, unsigned flags) {
  (void)flags;
  CALLED_ON_GPU;
  if (!peers(current->gpu, peer->gpu)) return kNoPeerSupport;
  RETURN_IF((int)by_pair("FAKE_REFUSE_PEER", current->gpu, peer->gpu, 0));
  enable_peer(current->gpu, peer->gpu);
  return kSuccess;
}

EXPORT int cuMemGetInfo_v2(size_t* free, size_t* total) {
  CALLED_ON_GPU;
  *free = free_of(current->gpu) - memory_in_use(current->gpu);
  *total = memory_of(current->gpu);
  return kSuccess;
}

enum { kPage = 4096, kView = 1 << 22 };  // bytes

static size_t mapped_bytes(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage + kPage; }

// Memory starts out dirty, as on a real GPU: it is many private views of one dirty file, so that memory which is never
// used costs no time. The page behind it may not be touched.
static void* map_memory(size_t bytes) {
  static int file = -1;
  if (file < 0) {
    file = memfd_create("dirty", MFD_CLOEXEC);
    void* whole = ftruncate(file, kView) == 0 ? mmap(NULL, kView, PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (whole == MAP_FAILED) return NULL;
    memset(whole, 0x5a, kView);
    munmap(whole, kView);
  }
  char* at = mmap(NULL, mapped_bytes(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return NULL;
  for (size_t begin = 0; begin < bytes; begin += kView) {
    const size_t length = bytes - begin < kView ? bytes - begin : kView;
    if (mmap(at + begin, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, file, 0) ==
        MAP_FAILED)
      return NULL;
  }
  return at;
}

static int make_memory(void** at, size_t bytes, int gpu, const char* kind) {
  *at = map_memory(bytes);
  if (*at == NULL) return kOutOfMemory;
  add_memory(*at, bytes, gpu);
  note("+%s %p", kind, *at);
  return kSuccess;
}

static int release_memory(void* at, const char* kind) {
  size_t bytes = 0;
  run_ready();  // the driver waits for the device before it frees
  if (!remove_memory(at, &bytes)) return kInvalidValue;
  note("-%s %p", kind, at);
  munmap(at, mapped_bytes(bytes));
  return kSuccess;
}

EXPORT int cuMemAlloc_v2(uint64_t* at, size_t bytes) {
  CALLED_ON_GPU;
  RETURN_IF(blocking(__func__));
  if (bytes + memory_in_use(current->gpu) > free_of(current->gpu)) return kOutOfMemory;
  void* memory = NULL;
  RETURN_IF(make_memory(&memory, bytes, current->gpu, "memory"));
  *at = (uint64_t)(uintptr_t)memory;
  return kSuccess;
}

EXPORT int cuMemFree_v2(uint64_t at) {
  CALLED_ON_GPU;
  return release_memory((void*)(uintptr_t)at, "memory");
}

static cpu_set_t cpus;  // of the process when it loads the driver
__attribute__((constructor)) static void note_cpus(void) { sched_getaffinity(0, sizeof cpus, &cpus); }

// Lines for what decides the real kernel's choice of a node: this thread's memory policy where it is not the default,
// and its CPUs where they are not all that the process had.
static void note_placement(void) {
  int mode = 0;
  unsigned long nodes[16] = {0};
  if (syscall(SYS_get_mempolicy, &mode, nodes, 8 * sizeof nodes, NULL, 0) == 0 && mode != 0)
    note("policy %d nodes %lx", mode, nodes[0]);
  cpu_set_t now;
  sched_getaffinity(0, sizeof now, &now);
  for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_EQUAL(&now, &cpus); ++cpu)
    if (CPU_ISSET(cpu, &now)) note("cpu %d", cpu);
}

EXPORT int cuMemHostAlloc(void** at, size_t bytes, unsigned flags) {
  if (bytes >= 1 << 16) take_time("pinned buffer");
  CALLED_ON_GPU;
  RETURN_IF(blocking(__func__));
  if (flags != 3) return kInvalidValue;  // portable and mapped: the only kind that every GPU may write
  note_placement();
  const int error = make_memory(at, bytes, kHost, "pinned");
  if (error == kSuccess && text_setting("FAKE_TOUCH", NULL) != NULL) memset(*at, 0, bytes);
  return error;
}

EXPORT int cuMemFreeHost(void* at) {
  CALLED_ON_GPU;
  return release_memory(at, "pinned");
}

// Takes only PTX, which is text that names its kernels.
EXPORT int cuModuleLoadData(Module** module, const char* image) {
  CALLED_ON_GPU;
  RETURN_IF(blocking(__func__));
  if (strstr(image, ".version") == NULL) return kInvalidImage;
  *module = malloc(sizeof **module);
  **module = (Module){current->gpu, strdup(image)};
  note("+module %p", (void*)*module);
  return kSuccess;
}

EXPORT int cuModuleUnload(Module* module) {
  CALLED_ON_GPU;
  note("-module %p", (void*)module);
  free(module->image);
  free(module);
  return kSuccess;
}

EXPORT int cuModuleGetFunction(Function* function, Module* module, const char* name) {
  static const char* const names[] = {"block_stream", "stamp",      "tell_time", "fill",          "verify",
                                      "copy",         "write_ring", "chase",     "fill_elements", "verify_elements"};
  char entry[64];
  CALLED_ON_GPU;
  RETURN_IF(blocking(__func__));
  snprintf(entry, sizeof entry, ".entry %s(", name);
  if (strstr(module->image, entry) == NULL) return kNotFound;
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
    if (strcmp(names[i], name) == 0) *function = &names[i];
  return kernel_widths(name) == NULL ? kNotFound : kSuccess;
}
