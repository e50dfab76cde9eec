// Preloaded, it shows C++ streams a machine with other NUMA nodes: files below FAKE_NODES (a folder) instead of
// /sys/devices/system/node, and of the process's mappings under FAKE_ELSEWHERE=1 every second one on node 1, under
// FAKE_BESIDE=1 some pages more there in each.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const char kNodes[] = "/sys/devices/system/node/";
static const char kMappings[] = "/proc/thread-self/numa_maps";

static FILE* really_open(const char* path, const char* mode) {
  FILE* (*next)(const char*, const char*) = (FILE * (*)(const char*, const char*)) dlsym(RTLD_NEXT, "fopen64");
  return next(path, mode);
}

// A stream reads the descriptor, so the file must have one.
static FILE* moved(FILE* mappings) {
  const int file = memfd_create("moved", MFD_CLOEXEC);
  char line[4096];
  for (int number = 0; fgets(line, sizeof line, mappings) != NULL; ++number) {
    char* pages = strstr(line, " N0=");
    if (pages != NULL && getenv("FAKE_ELSEWHERE") != NULL && number % 2 == 1) pages[2] = '1';
    const char* more = pages != NULL && getenv("FAKE_BESIDE") != NULL ? " N1=5" : "";
    const int before = pages == NULL ? 0 : (int)(pages - line);
    if (dprintf(file, "%.*s%s%s", before, line, more, line + before) < 0) abort();
  }
  fclose(mappings);
  lseek(file, 0, SEEK_SET);
  return fdopen(file, "r");
}

__attribute__((visibility("default"))) FILE* fopen64(const char* path, const char* mode) {
  const char* folder = getenv("FAKE_NODES");
  char other[4096];
  if (folder != NULL && strncmp(path, kNodes, strlen(kNodes)) == 0) {
    snprintf(other, sizeof other, "%s/%s", folder, path + strlen(kNodes));
    return really_open(other, mode);
  }
  FILE* opened = really_open(path, mode);
  return opened != NULL && strcmp(path, kMappings) == 0 ? moved(opened) : opened;
}

__attribute__((visibility("default"))) FILE* fopen(const char* path, const char* mode) { return fopen64(path, mode); }
