// Fake libnvidia-ml.so.1: the same GPUs as the fake driver's, as a 4×H200 machine's NVML had them
// [method/verdicts.md 1]. What that machine did not support is not supported here; what is missing, the binding reports
// as missing.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

enum { kSuccess = 0, kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7 };
enum { kUnsignedInt = 1, kUnsignedLongLong = 3, kLinkUp = 1, kToGpu = 0, kToSwitch = 2 };
enum { kFieldCommonSpeed = 90, kFieldLinkCount = 91, kFieldReplay = 161, kFieldCrc = 163, kFieldSpeed = 164 };

typedef struct Gpu* Handle;  // the number + 1

typedef struct Pci {
  char legacy[16];
  unsigned domain, bus, device, id, subsystem;
  char text[32];
} Pci;

typedef struct FieldValue {
  uint32_t field, scope;
  int64_t timestamp, latency;
  int type, result;
  union {
    unsigned number;
    unsigned long long wide;
  } value;
} FieldValue;

typedef struct Process {
  unsigned pid;
  unsigned long long bytes;
  unsigned instance, compute_instance;
} Process;

static int gpu_of(Handle handle) { return (int)(uintptr_t)handle - 1; }

// Readings of each GPU's temperature so far: every look at its health asks for it once, and first.
static int looks[kMaxGpus];

// A setting of the GPU from the look FAKE_ILL_FROM on, `healthy` before.
static double ill(const char* setting, int gpu, double healthy) {
  const int from = (int)by_gpu("FAKE_ILL_FROM", gpu, 0);
  return __atomic_load_n(&looks[gpu], __ATOMIC_RELAXED) < from ? healthy : by_gpu(setting, gpu, healthy);
}

#define CALLED                              \
  take_time(__func__);                      \
  note("%s", __func__);                     \
  const int injected_ = injected(__func__); \
  if (injected_ != kSuccess) return injected_

// A function that answers with one number.
#define ANSWER(name, type, value)                \
  EXPORT int name(Handle handle, type* answer) { \
    (void)handle;                                \
    CALLED;                                      \
    *answer = (type)(value);                     \
    return kSuccess;                             \
  }

EXPORT int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  CALLED;
  return kSuccess;
}

EXPORT int nvmlShutdown(void) { return kSuccess; }

EXPORT const char* nvmlErrorString(int code) { return code == kNotSupported ? "Not Supported" : "Unknown Error"; }

EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned length) {
  CALLED;
  snprintf(text, length, "%s", text_setting("FAKE_DRIVER", "580.159.04"));
  return kSuccess;
}

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  CALLED;
  *version = (int)by_gpu("FAKE_CUDA", -1, 13000);
  return kSuccess;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  CALLED;
  *count = (unsigned)count_gpus();
  return kSuccess;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, Handle* handle) {
  CALLED;
  if ((int)index >= count_gpus()) return kInvalidArgument;
  *handle = (Handle)(uintptr_t)(index + 1);
  return kSuccess;
}

EXPORT int nvmlDeviceGetUUID(Handle handle, char* text, unsigned length) {
  CALLED;
  write_uuid(gpu_of(handle), text, length);
  return kSuccess;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, Handle* handle) {
  CALLED;
  for (int gpu = 0; gpu < count_gpus(); ++gpu) {
    char text[64];
    write_uuid(gpu, text, sizeof text);
    if (strcmp(text, uuid) != 0) continue;
    *handle = (Handle)(uintptr_t)(gpu + 1);
    return kSuccess;
  }
  return kNotFound;
}

EXPORT int nvmlDeviceGetName(Handle handle, char* text, unsigned length) {
  (void)handle;
  CALLED;
  snprintf(text, length, "%s", text_setting("FAKE_NAME", "Fake GPU (sim)"));
  return kSuccess;
}

static void write_pci(int gpu, Pci* pci) {
  memset(pci, 0, sizeof *pci);
  pci->bus = (unsigned)gpu + 1;
  snprintf(pci->legacy, sizeof pci->legacy, "0000:%02X:00.0", pci->bus & 0xff);
  snprintf(pci->text, sizeof pci->text, "00000000:%02X:00.0", pci->bus & 0xff);
}

EXPORT int nvmlDeviceGetPciInfo_v3(Handle handle, Pci* pci) {
  CALLED;
  write_pci(gpu_of(handle), pci);
  return kSuccess;
}

EXPORT int nvmlDeviceGetMemoryInfo(Handle handle, unsigned long long memory[3]) {
  CALLED;
  const int gpu = gpu_of(handle);
  memory[0] = memory_of(gpu);
  memory[1] = free_of(gpu);
  memory[2] = memory[0] - memory[1];
  return kSuccess;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(Handle handle, unsigned long long memory[3]) {
  CALLED;
  memory[0] = (unsigned long long)by_gpu("FAKE_BAR1", gpu_of(handle), (double)memory_of(gpu_of(handle)));
  memory[1] = memory[0];
  memory[2] = 0;
  return kSuccess;
}

EXPORT int nvmlDeviceGetCurrPcieLinkGeneration(Handle handle, unsigned* generation) {
  CALLED;
  *generation = (unsigned)by_gpu("FAKE_PCIE_GENERATION", gpu_of(handle), 5);
  return kSuccess;
}

EXPORT int nvmlDeviceGetCurrPcieLinkWidth(Handle handle, unsigned* lanes) {
  CALLED;
  *lanes = (unsigned)by_gpu("FAKE_PCIE_WIDTH", gpu_of(handle), 16);
  return kSuccess;
}

static int set_mask(unsigned long long* mask, unsigned words, unsigned bits) {
  for (unsigned i = 0; i < words; ++i)
    mask[i] = i * 64 + 64 <= bits ? ~0ull : i * 64 < bits ? (1ull << bits % 64) - 1 : 0;
  return kSuccess;
}

EXPORT int nvmlDeviceGetCpuAffinity(Handle handle, unsigned words, unsigned long long* mask) {
  (void)handle;
  CALLED;
  return set_mask(mask, words, 64);
}

EXPORT int nvmlDeviceGetMemoryAffinity(Handle handle, unsigned words, unsigned long long* mask, unsigned scope) {
  (void)handle, (void)scope;
  CALLED;
  return set_mask(mask, words, 1);
}

// Where a GPU's link ends: another GPU, -1 for the switch, -2 for no such link.
static int far_end(int gpu, unsigned link) {
  unsigned direct = 0;
  for (int other = 0; other < count_gpus(); ++other) {
    if (other != gpu) direct += (unsigned)by_pair("FAKE_DIRECT", gpu, other, 0);
    if (link < direct) return other;
  }
  return direct == 0 && link < (unsigned)by_gpu("FAKE_NVLINKS", gpu, 18) ? -1 : -2;
}

static unsigned count_links(int gpu) {
  unsigned count = 0;
  while (far_end(gpu, count) != -2) ++count;
  return count;
}

EXPORT int nvmlDeviceGetNvLinkState(Handle handle, unsigned link, unsigned* state) {
  CALLED;
  if (far_end(gpu_of(handle), link) == -2) return kInvalidArgument;
  *state = kLinkUp;
  return kSuccess;
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle handle, unsigned link, Pci* pci) {
  CALLED;
  const int end = far_end(gpu_of(handle), link);
  if (end == -2) return kInvalidArgument;
  write_pci(end, pci);
  if (end == -1) snprintf(pci->text, sizeof pci->text, "FFFFFFFF:FF:FF.0");
  return kSuccess;
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Handle handle, unsigned link, int* type) {
  CALLED;
  const int end = far_end(gpu_of(handle), link);
  if (end == -2) return kInvalidArgument;
  *type = end == -1 ? kToSwitch : kToGpu;
  return kSuccess;
}

static void answer_field(int gpu, FieldValue* value) {
  value->result = kSuccess;
  value->type = kUnsignedInt;
  value->value.wide = 0;
  if (value->field == kFieldLinkCount)
    value->value.number = count_links(gpu);
  else if (value->field == kFieldSpeed)
    value->value.number = 26562;  // MB/s
  else if (value->field >= kFieldReplay && value->field <= kFieldCrc) {
    value->type = kUnsignedLongLong;
    const bool counts = value->field == kFieldCrc && value->scope == 0;
    value->value.wide = counts ? (unsigned long long)ill("FAKE_NVLINK_ERRORS", gpu, 0) : 0;
  } else
    value->result = kNotSupported;  // kFieldCommonSpeed among them
}

EXPORT int nvmlDeviceGetFieldValues(Handle handle, int count, FieldValue* values) {
  CALLED;
  bool counts_errors = false;
  for (int i = 0; i < count; ++i) {
    counts_errors = counts_errors || (values[i].field >= kFieldReplay && values[i].field <= kFieldCrc);
    answer_field(gpu_of(handle), &values[i]);
  }
  // As r580's does of these fields, somewhere behind the last entry.
  if (counts_errors) memset(&values[count], 0xA5, 8 * sizeof *values);
  return kSuccess;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(Handle one, Handle other, int* level) {
  CALLED;
  *level = (int)by_pair("FAKE_ANCESTOR", gpu_of(one), gpu_of(other), 30);
  return kSuccess;
}

EXPORT int nvmlDeviceGetP2PStatus(Handle one, Handle other, int index, int* status) {
  CALLED;
  const int plain = peers(gpu_of(one), gpu_of(other)) ? 0 : 3;  // OK, or TNS: not supported by the topology
  *status = index > 1 ? plain : (int)by_pair("FAKE_PEER_STATUS", gpu_of(one), gpu_of(other), plain);
  return kSuccess;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(Handle handle, unsigned* count, Process* processes) {
  CALLED;
  const int gpu = gpu_of(handle);
  const unsigned pids[] = {(unsigned)by_gpu("FAKE_PROCESS", gpu, 0), (unsigned)ill("FAKE_VISITOR", gpu, 0),
                           (unsigned)ill("FAKE_WORKER", gpu, 0)};
  const unsigned room = *count;
  *count = 0;
  for (int i = 0; i < 3; ++i) {
    if (pids[i] == 0) continue;
    if (*count < room && processes != NULL)
      processes[*count] = (Process){pids[i], memory_of(gpu) - free_of(gpu), ~0u, ~0u};
    ++*count;
  }
  return *count > 0 && (*count > room || processes == NULL) ? kInsufficientSize : kSuccess;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(Handle handle, int* major, int* minor) {
  (void)handle;
  CALLED;
  *major = 9;
  *minor = 0;
  return kSuccess;
}

EXPORT int nvmlDeviceGetClockInfo(Handle handle, int type, unsigned* mhz) {
  (void)handle;
  CALLED;
  *mhz = type == 2 ? 3201 : 1980;
  return kSuccess;
}

EXPORT int nvmlDeviceGetTemperature(Handle handle, int sensor, unsigned* celsius) {
  (void)sensor;
  CALLED;
  __atomic_add_fetch(&looks[gpu_of(handle)], 1, __ATOMIC_RELAXED);
  *celsius = (unsigned)ill("FAKE_TEMPERATURE", gpu_of(handle), 30);
  return kSuccess;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Handle handle, unsigned long long* reasons) {
  CALLED;
  *reasons = 1 | (unsigned long long)ill("FAKE_THROTTLE", gpu_of(handle), 0);  // idle, and those of nvml.h
  return kSuccess;
}

EXPORT int nvmlDeviceGetUtilizationRates(Handle handle, unsigned percent[2]) {
  CALLED;
  percent[0] = percent[1] = by_gpu("FAKE_PROCESS", gpu_of(handle), 0) != 0 ? 90 : 0;
  return kSuccess;
}

EXPORT int nvmlDeviceGetTotalEccErrors(Handle handle, int kind, int counter, unsigned long long* errors) {
  (void)kind, (void)counter;
  CALLED;
  *errors = (unsigned long long)ill("FAKE_ECC", gpu_of(handle), 0);
  return kSuccess;
}

ANSWER(nvmlDeviceGetVirtualizationMode, unsigned, 1)  // pass-through
ANSWER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
ANSWER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
ANSWER(nvmlDeviceGetPowerUsage, unsigned, 75000)  // mW
