// Fake libcuda.so.1, second half: streams, events, launches, copies and graphs.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"

// A captured graph, also once instantiated: the same list of operations.
typedef struct Graph {
  int gpu;
  Op* first;
} Graph;

EXPORT int cuStreamCreate(Stream** stream, unsigned flags) {
  CALLED_ON_GPU;
  if (flags != 1) return kInvalidValue;  // non-blocking: the default stream's work would join the timed one
  *stream = calloc(1, sizeof **stream);
  (*stream)->gpu = current_gpu();
  add_stream(*stream);
  note("+stream %p", (void*)*stream);
  return kSuccess;
}

static void free_ops(Op* op) {
  while (op != NULL) {
    Op* next = op->next;
    free(op);
    op = next;
  }
}

EXPORT int cuStreamDestroy_v2(Stream* stream) {
  CALLED;
  run_ready();
  if (stream->blocks > 0) fault("GPU %d's stream ends behind a blocking kernel", stream->gpu);
  remove_stream(stream);
  free_ops(stream->first);
  note("-stream %p", (void*)stream);
  free(stream);
  return kSuccess;
}

EXPORT int cuStreamQuery(Stream* stream) {
  LOCKED;  // not logged: how often a caller polls varies
  RETURN_IF(injected(__func__));
  if (stream->capturing) return kCaptureUnsupported;
  run_ready();
  RETURN_IF(sticky_error(stream->gpu));
  return answered(stream->gpu, stream->first == NULL) ? kSuccess : kNotReady;
}

EXPORT int cuStreamWaitEvent(Stream* stream, Event* event, unsigned flags) {
  CALLED_ON_GPU;
  if (flags != 0) return kInvalidValue;
  if (current_gpu() != stream->gpu) return kInvalidHandle;
  queue_op(stream, &(Op){.name = "wait", .event = event, .arguments = {event->recorded}});
  return kSuccess;
}

EXPORT int cuEventCreate(Event** event, unsigned flags) {
  CALLED_ON_GPU;
  if (flags != 0 && flags != 2) return kInvalidValue;  // 2: not for times
  *event = calloc(1, sizeof **event);
  (*event)->gpu = current_gpu();
  (*event)->timed = flags == 0;
  note("+event %p", (void*)*event);
  return kSuccess;
}

EXPORT int cuEventDestroy_v2(Event* event) {
  CALLED;
  run_ready();
  note("-event %p", (void*)event);
  free(event);
  return kSuccess;
}

EXPORT int cuEventRecord(Event* event, Stream* stream) {
  CALLED;
  if (event->gpu != stream->gpu) return kInvalidHandle;
  ++event->recorded;
  queue_op(stream, &(Op){.name = "event", .event = event});
  return kSuccess;
}

EXPORT int cuEventQuery(const Event* event) {
  LOCKED;  // not logged, as cuStreamQuery
  RETURN_IF(injected(__func__));
  run_ready();
  RETURN_IF(sticky_error(event->gpu));
  return answered(event->gpu, event->finished == event->recorded) ? kSuccess : kNotReady;
}

EXPORT int cuEventElapsedTime(float* milliseconds, const Event* start, const Event* end) {
  CALLED;
  run_ready();
  if (!start->timed || !end->timed || start->gpu != end->gpu) return kInvalidHandle;
  if (start->finished != start->recorded || end->finished != end->recorded) return kNotReady;
  *milliseconds = (float)((end->time - start->time) * 1e3);
  return kSuccess;
}

EXPORT int cuLaunchKernel(Function function, unsigned blocks, unsigned slots, unsigned depth, unsigned threads,
                          unsigned threads_y, unsigned threads_z, unsigned shared, Stream* stream, void** arguments,
                          void** extra) {
  CALLED_ON_GPU;
  note("launch %s gpu %d grid %u %u threads %u", *function, stream->gpu, blocks, slots, threads);
  if (blocks == 0 || slots == 0 || slots > 65535 || threads == 0 || threads > 1024 ||
      depth * threads_y * threads_z != 1)
    return kInvalidValue;
  if (shared != 0 || extra != NULL) return kInvalidValue;
  if (current_gpu() != stream->gpu) return kInvalidHandle;
  Op op = {.name = *function, .blocks = blocks, .slots = slots};
  const char* widths = kernel_widths(*function);
  for (int i = 0; widths[i] != '\0'; ++i) memcpy(&op.arguments[i], arguments[i], (size_t)widths[i]);
  queue_op(stream, &op);
  if (strcmp(*function, "block_stream") != 0) count_behind(stream);
  return kSuccess;
}

EXPORT int cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, Stream* stream) {
  CALLED_ON_GPU;
  queue_op(stream, &(Op){.name = "memset", .arguments = {at, value, bytes}});
  count_behind(stream);
  return kSuccess;
}

EXPORT int cuMemcpyPeerAsync(uint64_t target, const Context* to, uint64_t source, const Context* from, size_t bytes,
                             Stream* stream) {
  CALLED_ON_GPU;
  if (owner_of(target) != to->gpu || owner_of(source) != from->gpu) return kInvalidValue;
  queue_op(stream, &(Op){.name = "memcpy", .arguments = {target, source, bytes}});
  count_behind(stream);
  return kSuccess;
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t bytes, Stream* stream) {
  const uint64_t from = (uint64_t)(uintptr_t)source;
  CALLED_ON_GPU;
  if (owner_of(target) != stream->gpu || owner_of(from) != kHost) return kInvalidValue;
  queue_op(stream, &(Op){.name = "memcpy", .arguments = {target, from, bytes}});
  count_behind(stream);
  return kSuccess;
}

EXPORT int cuMemcpyDtoHAsync_v2(void* target, uint64_t source, size_t bytes, Stream* stream) {
  const uint64_t to = (uint64_t)(uintptr_t)target;
  CALLED_ON_GPU;
  if (owner_of(to) != kHost || owner_of(source) != stream->gpu) return kInvalidValue;
  queue_op(stream, &(Op){.name = "memcpy", .arguments = {to, source, bytes}});
  count_behind(stream);
  return kSuccess;
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, Stream* stream) {
  CALLED_ON_GPU;
  if (owner_of(target) != stream->gpu || owner_of(source) != stream->gpu) return kInvalidValue;
  queue_op(stream, &(Op){.name = "memcpy", .arguments = {target, source, bytes}});
  count_behind(stream);
  return kSuccess;
}

EXPORT int cuStreamBeginCapture_v2(Stream* stream, int mode) {
  CALLED;
  run_ready();
  if (mode != 1 || stream->first != NULL) return kInvalidValue;  // thread-local, on a stream that is idle
  stream->capturing = true;
  stream->capturer = (unsigned long)pthread_self();
  return kSuccess;
}

static Graph* make_graph(int gpu, Op* first, const char* kind) {
  Graph* graph = malloc(sizeof *graph);
  *graph = (Graph){gpu, first};
  note("+%s %p", kind, (void*)graph);
  return graph;
}

static int end_graph(Graph* graph, const char* kind) {
  note("-%s %p", kind, (void*)graph);
  free_ops(graph->first);
  free(graph);
  return kSuccess;
}

EXPORT int cuStreamEndCapture(Stream* stream, Graph** graph) {
  CALLED;
  if (!stream->capturing || stream->capturer != (unsigned long)pthread_self()) return kInvalidValue;
  *graph = make_graph(stream->gpu, stream->first, "graph");
  stream->first = stream->last = NULL;
  stream->capturing = false;
  return kSuccess;
}

EXPORT int cuGraphInstantiateWithFlags(Graph** executable, const Graph* graph, unsigned long long flags) {
  CALLED;
  if (any_capture()) return kCaptureUnsupported;  // seen on H200, driver 580.159.04: this thread still captures
  if (flags != 0) return kInvalidValue;
  Op* first = NULL;
  Op** last = &first;
  for (const Op* op = graph->first; op != NULL; op = op->next, last = &(*last)->next) {
    *last = malloc(sizeof **last);
    **last = *op;
    (*last)->next = NULL;
  }
  *executable = make_graph(graph->gpu, first, "executable");
  return kSuccess;
}

EXPORT int cuGraphUpload(const Graph* executable, const Stream* stream) {
  CALLED;
  return executable->gpu == stream->gpu ? kSuccess : kInvalidHandle;
}

EXPORT int cuGraphLaunch(const Graph* executable, Stream* stream) {
  CALLED;
  if (executable->gpu != stream->gpu) return kInvalidHandle;
  for (const Op* op = executable->first; op != NULL; op = op->next) queue_op(stream, op);
  count_behind(stream);
  return kSuccess;
}

EXPORT int cuGraphExecDestroy(Graph* executable) {
  CALLED;
  run_ready();
  return end_graph(executable, "executable");
}

EXPORT int cuGraphDestroy(Graph* graph) {
  CALLED;
  return end_graph(graph, "graph");
}
