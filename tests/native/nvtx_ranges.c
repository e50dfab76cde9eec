// A program with NVTX ranges: begins one of each kind, and prints what its clock said before and after each step.
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static nvtxEventAttributes_t named(const char* name) {
  nvtxEventAttributes_t range = {0};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  return range;
}

static void begin(const char* kind, const char* name) {
  nvtxDomainHandle_t domain = nvtxDomainCreateA("training");
  nvtxEventAttributes_t range = named(name);
  if (!strcmp(kind, "push")) nvtxRangePushA(name), nvtxRangePop();
  if (!strcmp(kind, "push-ex")) nvtxRangePushEx(&range), nvtxRangePop();
  if (!strcmp(kind, "start")) nvtxRangeEnd(nvtxRangeStartA(name));
  if (!strcmp(kind, "start-ex")) nvtxRangeEnd(nvtxRangeStartEx(&range));
  if (!strcmp(kind, "domain-push")) nvtxDomainRangePushEx(domain, &range), nvtxDomainRangePop(domain);
  if (!strcmp(kind, "domain-start")) nvtxDomainRangeEnd(domain, nvtxDomainRangeStartEx(domain, &range));
  if (!strcmp(kind, "registered")) {
    range.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    range.message.registered = nvtxDomainRegisterStringA(domain, name);
    nvtxDomainRangePushEx(domain, &range), nvtxDomainRangePop(domain);
  }
  if (!strcmp(kind, "wide")) nvtxRangePushW(L"step"), nvtxRangePop();
  if (!strcmp(kind, "unnamed")) nvtxRangePushA(NULL), nvtxRangePop();
  // What stays open until its "pop" or "end".
  static nvtxRangeId_t open;
  if (!strcmp(kind, "open-push")) nvtxRangePushA(name);
  if (!strcmp(kind, "open-wide")) nvtxRangePushW(L"wide");
  if (!strcmp(kind, "open-domain-push")) nvtxDomainRangePushEx(domain, &range);
  if (!strcmp(kind, "open-start")) open = nvtxRangeStartA(name);
  if (!strcmp(kind, "open-domain-start")) open = nvtxDomainRangeStartEx(domain, &range);
  if (!strcmp(kind, "pop")) nvtxRangePop();
  if (!strcmp(kind, "domain-pop")) nvtxDomainRangePop(domain);
  if (!strcmp(kind, "end")) nvtxRangeEnd(open);
  if (!strcmp(kind, "domain-end")) nvtxDomainRangeEnd(domain, open);
}

int main(int count, char** words) {
  if (count > 2 && !strcmp(words[1], "fork")) {
    if (fork() == 0) return begin("push", words[2]), 0;
    wait(NULL);
  }
  for (int word = 1; word + 1 < count; word += 2) {
    const long long before = now();
    begin(words[word], words[word + 1]);
    printf("%d %lld %lld\n", getpid(), before, now());
  }
  return 0;
}
