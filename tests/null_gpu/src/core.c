/* Counters, the trace, the table of allocations, and the report that a process leaves. */
#define _GNU_SOURCE
#include "core.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct counter *_Atomic counters;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
int ng_capturing;

long ng_setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text && *text ? strtol(text, NULL, 0) : otherwise;
}

int ng_stream_number(const void *stream) { return (uintptr_t)stream <= 2 ? 0 : *(const int *)stream; }

/* ---- counters */
void ng_hit(struct counter *counter, uint64_t bytes) {
  if (!counter->linked) {
    pthread_mutex_lock(&lock);
    if (!counter->linked) {
      counter->next = counters;
      counters = counter;
      counter->linked = 1;
    }
    pthread_mutex_unlock(&lock);
  }
  counter->calls++;
  counter->bytes += bytes;
}

struct counter *ng_counter(const char *kind, const char *name) {
  pthread_mutex_lock(&lock);
  struct counter *found = counters;
  while (found && (strcmp(found->kind, kind) || strcmp(found->name, name))) found = found->next;
  if (!found) {
    found = calloc(1, sizeof *found);
    found->kind = strdup(kind);
    found->name = strdup(name);
    found->next = counters;
    counters = found;
    found->linked = 1;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

/* ---- the trace: NULLGPU_OUT=<folder> NULLGPU_TRACE=1, a line an event */
static FILE *trace;
static int tracing = -1;

static FILE *open_out(const char *what) {
  const char *folder = getenv("NULLGPU_OUT");
  if (!folder || !*folder) return NULL;
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.%d", folder, what, (int)getpid());
  return fopen(path, "a");
}

int ng_tracing(void) {
  if (tracing < 0) {
    pthread_mutex_lock(&lock);
    if (tracing < 0) {
      trace = ng_setting("NULLGPU_TRACE", 0) ? open_out("trace") : NULL;
      tracing = trace != NULL;
    }
    pthread_mutex_unlock(&lock);
  }
  return tracing;
}

void ng_trace(const char *format, ...) {
  if (!ng_tracing()) return;
  va_list arguments;
  va_start(arguments, format);
  flockfile(trace);
  vfprintf(trace, format, arguments);
  putc_unlocked('\n', trace);
  if (ng_setting("NULLGPU_TRACE", 0) > 1) fflush_unlocked(trace);
  funlockfile(trace);
  va_end(arguments);
}

/* ---- allocations */
static struct block *blocks; /* sorted by start */
static size_t block_count, block_room;
static size_t held[NULLGPU_MAX_DEVICES], peak[NULLGPU_MAX_DEVICES], host_held, host_peak;
static pthread_mutex_t memory_lock = PTHREAD_MUTEX_INITIALIZER;

int ng_devices(void) {
  long n = ng_setting("NULLGPU_DEVICES", 8);
  return n < 0 ? 0 : n > NULLGPU_MAX_DEVICES ? NULLGPU_MAX_DEVICES : (int)n;
}
size_t ng_capacity(void) { return (size_t)ng_setting("NULLGPU_MEMORY_MIB", 40960) << 20; }
size_t ng_held(int device) { return held[device]; }

static size_t above(uintptr_t address) { /* number of blocks that start at or below address */
  size_t low = 0, high = block_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (blocks[middle].start <= address) low = middle + 1;
    else high = middle;
  }
  return low;
}

static void insert(struct block block) {
  static uint64_t ids;
  if (block_count == block_room) blocks = realloc(blocks, (block_room = block_room * 2 + 256) * sizeof *blocks);
  size_t at = above(block.start);
  memmove(blocks + at + 1, blocks + at, (block_count - at) * sizeof *blocks);
  block.id = ++ids;
  blocks[at] = block;
  block_count++;
  size_t *now = block.kind == MEMORY_HOST ? &host_held : &held[block.device];
  size_t *most = block.kind == MEMORY_HOST ? &host_peak : &peak[block.device];
  *now += block.size;
  if (*now > *most) *most = *now;
}

void *ng_alloc(size_t size, enum memory_kind kind, int device) {
  pthread_mutex_lock(&memory_lock);
  void *start = NULL;
  if (kind == MEMORY_HOST || held[device] + size <= ng_capacity()) {
    size_t whole = ((size ? size : 1) + 511) & ~(size_t)511;
    if (whole < 1 << 20) {
      start = aligned_alloc(512, whole);
      if (start) memset(start, 0, whole);
    } else { /* pages that nobody writes cost nothing */
      whole = (whole + 4095) & ~(size_t)4095;
      start = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (start == MAP_FAILED) start = NULL;
    }
    if (start) insert((struct block){(uintptr_t)start, size, kind, device, 1, 0});
  }
  pthread_mutex_unlock(&memory_lock);
  return start;
}

int ng_adopt(void *start, size_t size, int device) {
  pthread_mutex_lock(&memory_lock);
  insert((struct block){(uintptr_t)start, size, MEMORY_HOST, device, 0, 0});
  pthread_mutex_unlock(&memory_lock);
  return 1;
}

int ng_free(void *start) {
  pthread_mutex_lock(&memory_lock);
  size_t at = above((uintptr_t)start);
  int found = at && blocks[at - 1].start == (uintptr_t)start;
  if (found) {
    struct block block = blocks[--at];
    memmove(blocks + at, blocks + at + 1, (--block_count - at) * sizeof *blocks);
    *(block.kind == MEMORY_HOST ? &host_held : &held[block.device]) -= block.size;
    size_t whole = ((block.size ? block.size : 1) + 511) & ~(size_t)511;
    if (block.owned && whole < 1 << 20) free(start);
    else if (block.owned) munmap(start, (whole + 4095) & ~(size_t)4095);
  }
  pthread_mutex_unlock(&memory_lock);
  return found;
}

int ng_find(const void *address, struct block *out) {
  pthread_mutex_lock(&memory_lock);
  size_t at = above((uintptr_t)address);
  int found = at && (uintptr_t)address - blocks[at - 1].start < (blocks[at - 1].size ? blocks[at - 1].size : 1);
  if (found && out) *out = blocks[at - 1];
  pthread_mutex_unlock(&memory_lock);
  return found;
}

/* ---- the report: tab-separated, one section a mark. Python: ctypes.CDLL("libcuda.so.1").nullgpu_mark(b"step 3") */
static void write_report(FILE *out, const char *label) {
  fprintf(out, "mark\t%s\n", label);
  for (struct counter *c = counters; c; c = c->next)
    if (c->calls) fprintf(out, "count\t%s\t%s\t%lu\t%lu\n", c->kind, c->name, c->calls, c->bytes);
  for (int d = 0; d < NULLGPU_MAX_DEVICES; d++)
    if (peak[d]) fprintf(out, "memory\tdevice %d\theld and peak bytes\t%zu\t%zu\n", d, held[d], peak[d]);
  fprintf(out, "memory\thost\theld and peak bytes\t%zu\t%zu\n", host_held, host_peak);
}

void nullgpu_mark(const char *label) { /* the sums so far; the difference of two marks is what lies between */
  FILE *out = open_out("counts");
  if (!out) return;
  write_report(out, label);
  fclose(out);
  ng_trace("mark\t%s", label);
  if (trace) fflush(trace);
}

__attribute__((destructor)) static void leave(void) {
  if (counters) nullgpu_mark("exit");
}
