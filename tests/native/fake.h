// Simulated hardware for tests without a GPU: what the fake libcuda, libnccl and libnvidia-ml share.
//
// Settings are environment variables; a list such as "100,0-1=50,2>3=40" is a default and exceptions, by GPU ("2"),
// by pair ("0-1", both ways) or by direction ("0>1"). GPUs are numbered as NVML does. Times are virtual: each stream
// has a clock that every operation moves by a duration from the tables below, so that all results are exact.
//   FAKE_GPUS=4                 FAKE_MEMORY=1073741824 (bytes, by GPU)   FAKE_FREE (bytes, by GPU)
//   FAKE_RATE=100 (GB/s, by pair)   FAKE_SM_SHARE=0.9 (of it that kernels reach)   FAKE_STAGED=10 (GB/s, no peer
//   access) FAKE_LATENCY=1e-6 (s a copy, by pair)   FAKE_COLLECTIVE_LATENCY=5e-6 (s)   FAKE_LAG=0 (s a collective, by
//   GPU) FAKE_NO_PEER=0 (1: no peer access, by pair)   FAKE_REFUSE_PEER=0 (error of enabling it
//   where it is possible, by user>owner)   FAKE_CUDA=13000   FAKE_NCCL=22809   FAKE_DRIVER=580.159.04
//   FAKE_NVLINKS=18 (to a switch)   FAKE_DIRECT=0 (NVLinks of a pair, without a switch)   FAKE_ANCESTOR=30 (by pair)
//   FAKE_PROCESS=0 (pid of a process that holds what is not free, by GPU)   FAKE_NCCL_STATE=0 (async error, by rank)
//   FAKE_ILL_FROM=0 (looks at a GPU's health until these begin, by GPU): FAKE_THROTTLE=0 (bits of nvml.h)
//   FAKE_TEMPERATURE=30 (°C)   FAKE_VISITOR=0 (pid of one more process)   FAKE_ECC=0   FAKE_NVLINK_ERRORS=0
//   FAKE_WORKER=0 (pid of our own process as a container's host numbers it)
//   FAKE_FAIL=function:code:nth,…   FAKE_HANG=operation (its name; copy:0>1 between two GPUs)
//   FAKE_BLOCK_EXPIRES=nth (blocking kernel; 0: each)
//   FAKE_LOG=file FAKE_INTERRUPT=function=nth (that call sends FAKE_SIGNAL=2, SIGINT, to its process, or to its parent
//   under FAKE_SIGNAL_PARENT=1)   FAKE_STUCK=function=nth (that call never returns)   FAKE_ONCE=file (fail, interrupt
//   or stick in one process of all that share the file)
//   FAKE_CORRUPT_COPY=nth:byte or nth:byte:from>to (nth 0: every copy)   FAKE_LOSE_COPY=nth   FAKE_HOST_RATE=50 (GB/s,
//   by GPU) FAKE_TO_HOST_RATE (GB/s, by GPU; that of FAKE_HOST_RATE)   FAKE_LOCAL_RATE=2000 (GB/s, by GPU)
//   FAKE_TOUCH=1 (pinned memory is used when it is made, as the driver does)
//   FAKE_HOP=7e-7 (s an access, by reader>owner)   FAKE_LOSE_HOP=nth (that chase makes one access less)
//   FAKE_CLOCK_AHEAD=0 (s that a GPU's own clock is ahead of the host's, by GPU)   FAKE_CLOCK_DRIFT=0 (how much
//   faster it runs, a ratio, by GPU)   FAKE_CLOCK_STEP=32 (ns)   FAKE_STAMP=1e-6 (s a stamp, by GPU)
//   FAKE_MEET=function=count,… (each call of these waits until all of them have been called so often, in any process)
//   FAKE_SLOW=function=seconds,… (how long each call of these takes besides, in real time; "dlopen" is that of NCCL,
//   "pinned buffer" a cuMemHostAlloc from 64 KiB on)
//   FAKE_LATE=0 (so many queries find work unfinished that is finished)
//   FAKE_COPIES_LAST=1 (a copy takes its virtual time in real time, too)
//   FAKE_MULTICAST=0 (by GPU; below 0: the driver does not know the attribute)
//   FAKE_SYMMETRIC=1 (0: communicators without windows)   FAKE_NCCL_P2P=1 (0: NCCL's log names no P2P, by pair)
//   FAKE_CORRUPT_COLLECTIVE=nth:element:rank   FAKE_APART=1 (each GPU's threads are a process of their own: its calls
//   wait for no other GPU's blocking kernel)
//   FAKE_STALE_COPY=first or previous (likewise)   FAKE_STALE=first or previous or nth (every collective delivers what
//   the first one, or the one before, delivered to the same buffer; with a number, only that collective does, what the
//   one before delivered) FAKE_BREAK=nth:rank:code:others (at that collective the rank fails in the background, and it
//   never ends; `others` is what the other ranks' communicators then say, 0 unless given)   NCCL_COMM_BLOCKING=0 obeyed
//   as NCCL does
//   FAKE_NAME (of all GPUs)   FAKE_PEER_STATUS (nvmlGpuP2PStatus_t of reading and writing, by pair)
//   FAKE_BAR1 (bytes, by GPU)   FAKE_PCIE_WIDTH=16, FAKE_PCIE_GENERATION=5 (now, by GPU)
// A symbol is left out of a library by renaming it at compile time: -DcuGraphUpload=absent.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
enum { kMaxGpus = 16 };

int count_gpus(void);
double by_gpu(const char* setting, int gpu, double fallback);
double by_pair(const char* setting, int from, int to, double fallback);
const char* text_setting(const char* setting, const char* fallback);
uint64_t memory_of(int gpu);
uint64_t free_of(int gpu);
bool peers(int from, int to);
void uuid_of(int gpu, unsigned char bytes[16]);
void write_uuid(int gpu, char* text, size_t length);

// Waits as FAKE_SLOW and FAKE_MEET say.
void take_time(const char* function);
// The code that FAKE_FAIL asks for at this call of `function`, else 0. Sends FAKE_INTERRUPT's signal.
int injected(const char* function);
// A line in FAKE_LOG.
void note(const char* format, ...) __attribute__((format(printf, 1, 2)));
// A use that real hardware punishes (a deadlock, say): a line on stderr, which fails the test.
void fault(const char* format, ...) __attribute__((format(printf, 1, 2)));
