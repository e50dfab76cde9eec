// Reads the FAKE_* environment variables; linked into each fake library.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

const char* text_setting(const char* setting, const char* fallback) {
  const char* text = getenv(setting);
  return text == NULL || *text == '\0' ? fallback : text;
}

// The value of `key=` in a list, NULL where it is not there.
static const char* entry(const char* list, const char* key) {
  const size_t length = strlen(key);
  for (const char* at = list; at != NULL; at = strchr(at, ','), at = at == NULL ? NULL : at + 1)
    if (strncmp(at, key, length) == 0 && at[length] == '=') return at + length + 1;
  return NULL;
}

static double general(const char* list, double fallback) {
  char* end = NULL;
  const double value = strtod(list, &end);
  return end != list && (*end == '\0' || *end == ',') ? value : fallback;
}

static double listed(const char* setting, const char* keys[], int count, double fallback) {
  const char* list = text_setting(setting, "");
  for (int i = 0; i < count; ++i) {
    const char* found = entry(list, keys[i]);
    if (found != NULL) return strtod(found, NULL);
  }
  return general(list, fallback);
}

double by_gpu(const char* setting, int gpu, double fallback) {
  char key[16];
  snprintf(key, sizeof key, "%d", gpu);
  const char* keys[] = {key};
  return listed(setting, keys, 1, fallback);
}

double by_pair(const char* setting, int from, int to, double fallback) {
  char directed[32], forth[32], back[32];
  snprintf(directed, sizeof directed, "%d>%d", from, to);
  snprintf(forth, sizeof forth, "%d-%d", from, to);
  snprintf(back, sizeof back, "%d-%d", to, from);
  const char* keys[] = {directed, forth, back};
  return listed(setting, keys, 3, fallback);
}

int count_gpus(void) {
  const int count = (int)by_gpu("FAKE_GPUS", -1, 4);
  return count > kMaxGpus ? kMaxGpus : count;
}

uint64_t memory_of(int gpu) { return (uint64_t)by_gpu("FAKE_MEMORY", gpu, 1 << 30); }

uint64_t free_of(int gpu) { return (uint64_t)by_gpu("FAKE_FREE", gpu, (double)memory_of(gpu)); }

bool peers(int from, int to) { return from != to && by_pair("FAKE_NO_PEER", from, to, 0) == 0; }

void uuid_of(int gpu, unsigned char bytes[16]) {
  memset(bytes, 0, 16);
  bytes[0] = 0xfa;
  bytes[1] = 0x4e;
  bytes[2] = bytes[15] = (unsigned char)gpu;  // early, so that a UUID can be shortened
}

void write_uuid(int gpu, char* text, size_t length) {
  unsigned char bytes[16];
  uuid_of(gpu, bytes);
  size_t at = (size_t)snprintf(text, length, "GPU-");
  for (int i = 0; i < 16; ++i)
    at +=
        (size_t)snprintf(text + at, length - at, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", bytes[i]);
}

// False where another process has already had the fault of FAKE_ONCE.
static bool my_turn(void) {
  const char* once = text_setting("FAKE_ONCE", NULL);
  const int file = once == NULL ? -1 : open(once, O_CREAT | O_EXCL, 0600);
  if (file >= 0) close(file);
  return once == NULL || file >= 0;
}

// True at the call of `function` that the setting names.
static bool due(const char* setting, const char* function, int* calls) {
  const char* nth = entry(text_setting(setting, ""), function);
  return nth != NULL && __atomic_add_fetch(calls, 1, __ATOMIC_RELAXED) == atoi(nth) && my_turn();
}

static void interrupt(const char* function) {
  static int calls, stuck;
  if (due("FAKE_INTERRUPT", function, &calls))
    kill(*text_setting("FAKE_SIGNAL_PARENT", "") != '\0' ? getppid() : getpid(),
         atoi(text_setting("FAKE_SIGNAL", "2")));
  if (due("FAKE_STUCK", function, &stuck))
    while (true) pause();
}

// Whether FAKE_LOG shows every call that FAKE_MEET lists.
static bool all_met(const char* list) {
  static char log[1 << 20];
  const int file = open(text_setting("FAKE_LOG", ""), O_RDONLY | O_CLOEXEC);
  const ssize_t length = read(file, log, sizeof log - 1);
  close(file);
  log[length < 0 ? 0 : length] = '\0';
  for (const char* at = list; at != NULL; at = strchr(at, ','), at = at == NULL ? NULL : at + 1) {
    char line[80];
    int met = 0;
    const int name = (int)strcspn(at, "=");
    snprintf(line, sizeof line, "meeting %.*s\n", name, at);
    for (const char* found = log; (found = strstr(found, line)) != NULL; ++found) ++met;
    if (met < atoi(at + name + 1)) return false;
  }
  return true;
}

void take_time(const char* function) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  const char* slow = entry(text_setting("FAKE_SLOW", ""), function);
  if (slow != NULL) usleep((useconds_t)(1e6 * atof(slow)));
  const char* list = text_setting("FAKE_MEET", "");
  if (entry(list, function) == NULL) return;
  note("meeting %s", function);
  for (int waited = 0; waited < 2000; ++waited) {
    pthread_mutex_lock(&mutex);
    const bool met = all_met(list);
    pthread_mutex_unlock(&mutex);
    if (met) return;
    usleep(10000);
  }
  fault("%s waited in vain for the others of %s", function, list);
}

int injected(const char* function) {
  static int calls[8];  // by entry of the list
  const size_t length = strlen(function);
  interrupt(function);
  int entry_index = 0;
  for (const char* at = text_setting("FAKE_FAIL", NULL); at != NULL && entry_index < 8; ++entry_index) {
    int code = 0, nth = 1;
    if (strncmp(at, function, length) == 0 && sscanf(at + length, ":%d:%d", &code, &nth) >= 1 &&
        __atomic_add_fetch(&calls[entry_index], 1, __ATOMIC_RELAXED) == nth && my_turn())
      return code;
    at = strchr(at, ',');
    if (at != NULL) ++at;
  }
  return 0;
}

// FAKE_LOG, opened once; below 0 where there is none.
static int log_file(void) {
  static int opened;  // one more than the descriptor
  int file = __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
  if (file != 0) return file - 1;
  const char* path = text_setting("FAKE_LOG", NULL);
  const int mine = path == NULL ? -2 : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (__atomic_compare_exchange_n(&opened, &file, mine + 1, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) return mine;
  if (mine >= 0) close(mine);  // another thread was here first
  return file - 1;
}

// Lines of several threads and processes stay whole: each is one write.
static void append(char* line, size_t length) {
  line[length] = '\n';
  if (write(log_file(), line, length + 1) < 0) return;  // the test then misses the line
}

static size_t written(char* line, size_t size, const char* format, va_list values) {
  const int length = vsnprintf(line, size, format, values);
  return length < (int)size ? (size_t)length : size - 1;
}

void note(const char* format, ...) {
  if (log_file() < 0) return;
  char line[256];
  va_list values;
  va_start(values, format);
  append(line, written(line, sizeof line, format, values));
  va_end(values);
}

void fault(const char* format, ...) {
  char line[256] = "FAULT: ";
  const size_t start = strlen(line);
  va_list values;
  va_start(values, format);
  const size_t length = start + written(line + start, sizeof line - start, format, values);
  va_end(values);
  fprintf(stderr, "%s\n", line);
  if (log_file() >= 0) append(line, length);
}
