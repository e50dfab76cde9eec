// A faulty NCCL for tests: NCCL as it is, but once a receive buffer got STALE_AFTER results, each call delivers the
// result of the call before it, as a flag that overtakes its data does. Linked with the real library, which has all
// other functions; REAL_NCCL is its path.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

typedef int Result;
typedef void* Comm;
typedef void* Stream;

// deliver(received, kept, bytes, calls, right): puts `kept` in place of what was received, unless there were fewer than
// `right` calls, keeps what was received, and counts the call. Compiled by csrc/ptx.py.
static const char kernel[] =
    ".version 7.8\n.target sm_60\n.address_size 64\n"
    ".visible .entry deliver(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3, .param .u64 p4) {\n"
    ".reg .pred %p<5>; .reg .b16 %rs<3>; .reg .b32 %r<4>; .reg .b64 %rd<19>;\n"
    "ld.param.u64 %rd11, [p0]; ld.param.u64 %rd12, [p1]; ld.param.u64 %rd13, [p2];\n"
    "ld.param.u64 %rd15, [p3]; ld.param.u64 %rd14, [p4];\n"
    "cvta.to.global.u64 %rd1, %rd15; ld.volatile.global.u64 %rd2, [%rd1]; bar.sync 0;\n"
    "mov.u32 %r1, %tid.x; cvt.u64.u32 %rd3, %r1; setp.ge.u64 %p1, %rd3, %rd13; @%p1 bra ENDED;\n"
    "mov.u32 %r2, %ntid.x; cvt.u64.u32 %rd4, %r2;\n"
    "cvta.to.global.u64 %rd5, %rd11; cvta.to.global.u64 %rd6, %rd12; mov.u64 %rd18, %rd3;\n"
    "NEXT: add.s64 %rd8, %rd5, %rd18; ld.global.u8 %rs1, [%rd8]; add.s64 %rd9, %rd6, %rd18;\n"
    "setp.lt.u64 %p2, %rd2, %rd14; @%p2 bra KEEP;\n"
    "ld.global.u8 %rs2, [%rd9]; st.global.u8 [%rd8], %rs2;\n"
    "KEEP: st.global.u8 [%rd9], %rs1; add.s64 %rd18, %rd18, %rd4; setp.lt.u64 %p3, %rd18, %rd13; @%p3 bra NEXT;\n"
    "ENDED: setp.ne.u32 %p4, %r1, 0; @%p4 bra DONE;\n"
    "ld.volatile.global.u64 %rd16, [%rd1]; add.s64 %rd17, %rd16, 1; st.volatile.global.u64 [%rd1], %rd17;\n"
    "DONE: ret; }\n";

enum { kMostGpus = 16, kMostBuffers = 4096, kMostReceives = 64 };
static const size_t kRoom = 256 << 20;  // for all results that are kept on a GPU

typedef struct Gpu {
  void* context;
  void* deliver;
  uint64_t next, end;  // of its room
} Gpu;
// A receive buffer; `kept` has a count of calls in its first 256 bytes.
typedef struct Buffer {
  void* context;
  uint64_t at, bytes, kept;
} Buffer;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Gpu gpus[kMostGpus];
static Buffer buffers[kMostBuffers];
static _Thread_local int inside, depth, receives;  // calls of NCCL's own code; open groups; what they receive
static _Thread_local struct {
  uint64_t at, bytes;
  Stream stream;
} received[kMostReceives];

static void* in(const char* library, const char* name) {
  void* found = dlsym(dlopen(library, RTLD_NOW), name);
  if (found == NULL) abort();
  return found;
}
#define REAL(name) ((Result (*)())in(REAL_NCCL, #name))
#define CUDA(name, ...) \
  if (((Result (*)())in("libcuda.so.1", #name))(__VA_ARGS__) != 0) abort()

static Gpu* this_gpu(void) {
  void* context = NULL;
  CUDA(cuCtxGetCurrent, &context);
  for (Gpu* gpu = gpus; gpu < gpus + kMostGpus; ++gpu) {
    if (gpu->context == context) return gpu;
    if (gpu->context != NULL) continue;
    // At the first call, which connects the ranks: later ones may be captured.
    void* module = NULL;
    CUDA(cuModuleLoadData, &module, kernel);
    CUDA(cuModuleGetFunction, &gpu->deliver, module, "deliver");
    CUDA(cuMemAlloc_v2, &gpu->next, kRoom);
    CUDA(cuMemsetD8_v2, gpu->next, 0, kRoom);
    gpu->end = gpu->next + kRoom;
    gpu->context = context;
    return gpu;
  }
  abort();
}

static uint64_t kept(Gpu* gpu, uint64_t at, uint64_t bytes) {
  for (Buffer* one = buffers; one < buffers + kMostBuffers; ++one) {
    if (one->at == at && one->bytes == bytes && one->context == gpu->context) return one->kept;
    if (one->at != 0) continue;
    *one = (Buffer){gpu->context, at, bytes, gpu->next};
    gpu->next += (bytes + 511) / 256 * 256;
    if (gpu->next > gpu->end) abort();
    return one->kept;
  }
  abort();
}

static void deliver(uint64_t at, uint64_t bytes, Stream stream) {
  if (bytes == 0) return;
  pthread_mutex_lock(&mutex);
  Gpu* gpu = this_gpu();
  uint64_t calls = kept(gpu, at, bytes), data = calls + 256, right = strtoull(getenv("STALE_AFTER"), NULL, 10);
  void* arguments[] = {&at, &data, &bytes, &calls, &right};
  CUDA(cuLaunchKernel, gpu->deliver, 1u, 1u, 1u, 1024u, 1u, 1u, 0u, stream, arguments, NULL);
  pthread_mutex_unlock(&mutex);
}

static uint64_t width(int dtype) { return (const uint64_t[]){1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}[dtype]; }

static uint64_t ranks_of(Comm comm) {
  int count = 0;
  REAL(ncclCommCount)(comm, &count);
  return (uint64_t)count;
}

static uint64_t at_root(Comm comm, int root) {
  int rank = -1;
  REAL(ncclCommUserRank)(comm, &rank);
  return rank == root;
}

// Calls the real function, then delivers `blocks` blocks of the call's count.
#define FAULTY(name, blocks, ...)                                                                               \
  ++inside;                                                                                                     \
  const Result result = REAL(name)(__VA_ARGS__);                                                                \
  --inside;                                                                                                     \
  if (inside == 0 && result == 0) deliver((uint64_t)receive, count* width(dtype) * (uint64_t)(blocks), stream); \
  return result

Result ncclAllReduce(const void* send, void* receive, size_t count, int dtype, int op, Comm comm, Stream stream) {
  FAULTY(ncclAllReduce, 1, send, receive, count, dtype, op, comm, stream);
}

Result ncclBroadcast(const void* send, void* receive, size_t count, int dtype, int root, Comm comm, Stream stream) {
  FAULTY(ncclBroadcast, 1, send, receive, count, dtype, root, comm, stream);
}

Result ncclReduce(const void* send, void* receive, size_t count, int dtype, int op, int root, Comm comm,
                  Stream stream) {
  FAULTY(ncclReduce, at_root(comm, root), send, receive, count, dtype, op, root, comm, stream);
}

Result ncclAllGather(const void* send, void* receive, size_t count, int dtype, Comm comm, Stream stream) {
  FAULTY(ncclAllGather, ranks_of(comm), send, receive, count, dtype, comm, stream);
}

Result ncclReduceScatter(const void* send, void* receive, size_t count, int dtype, int op, Comm comm, Stream stream) {
  FAULTY(ncclReduceScatter, 1, send, receive, count, dtype, op, comm, stream);
}

#ifdef HAS_ALLTOALL  // NCCL 2.28
Result ncclAlltoAll(const void* send, void* receive, size_t count, int dtype, Comm comm, Stream stream) {
  FAULTY(ncclAlltoAll, ranks_of(comm), send, receive, count, dtype, comm, stream);
}

Result ncclGather(const void* send, void* receive, size_t count, int dtype, int root, Comm comm, Stream stream) {
  FAULTY(ncclGather, at_root(comm, root) * ranks_of(comm), send, receive, count, dtype, root, comm, stream);
}

Result ncclScatter(const void* send, void* receive, size_t count, int dtype, int root, Comm comm, Stream stream) {
  FAULTY(ncclScatter, 1, send, receive, count, dtype, root, comm, stream);
}
#endif

Result ncclRecv(void* receive, size_t count, int dtype, int peer, Comm comm, Stream stream) {
  if (inside == 0 && depth > 0 && receives < kMostReceives) {
    received[receives].at = (uint64_t)receive;
    received[receives].bytes = count * width(dtype);
    received[receives++].stream = stream;
  }
  return REAL(ncclRecv)(receive, count, dtype, peer, comm, stream);
}

Result ncclGroupStart(void) {
  if (inside == 0) ++depth;
  return REAL(ncclGroupStart)();
}

Result ncclGroupEnd(void) {
  if (inside > 0) return REAL(ncclGroupEnd)();
  ++inside;
  const Result result = REAL(ncclGroupEnd)();
  --inside;
  if (--depth > 0) return result;
  for (int i = 0; i < receives; ++i) deliver(received[i].at, received[i].bytes, received[i].stream);
  receives = 0;
  return result;
}
