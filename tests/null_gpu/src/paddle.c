/* Stands in for Paddle 2.6.2's own wrappers of the device (gpu_info.cc, cuda_stream.h, its event and stream pools, its
 * allocators' last calls), which libphi.so and libpaddle.so export and call through their PLT: LD_PRELOAD puts these
 * before them. CUDA's runtime inside Paddle is neither called here nor changed; what Paddle still asks it directly fails
 * as on any machine without a driver. Names are as g++ writes them; types are mirrored below. */
#define _GNU_SOURCE
#include "core.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GPU(NAME) _ZN3phi8backends3gpu##NAME
#define PLATFORM(NAME) _ZN6paddle8platform##NAME

struct place { int8_t device, type; size_t kind; };                                 /* phi::Place */
struct allocation { void *table, *start; size_t size; void *gone; struct place place; }; /* phi::Allocation */
struct cuda_stream { struct place place; uint64_t id; uint8_t owned; };              /* phi::CUDAStream */
struct three { int x, y, z; };                                                       /* std::array<int, 3> */
struct two { int first, second; };                                                   /* std::pair<int, int> */
enum { PLACE_PINNED = 3 };

static __thread int device_now;
int ng_current_device(void) { return device_now; }

#define TEXT(NAME) #NAME
#define NAME_OF(NAME) TEXT(NAME) /* of a macro: the text of what it stands for */

/* A symbol of this name that lies behind ours, for the few that go on to Paddle's own. */
static void *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name), *library;
  if (!found && (library = dlopen("libpaddle.so", RTLD_NOLOAD | RTLD_LAZY))) found = dlsym(library, name);
  if (!found && (library = dlopen("libphi.so", RTLD_NOLOAD | RTLD_LAZY))) found = dlsym(library, name);
  if (!found) fprintf(stderr, "nullgpu: %s is not found\n", name), abort();
  return found;
}

/* ---- what the device is */
int GPU(17GetGPUDeviceCountEv)(void) { return ng_devices(); }
int GPU(18GetCurrentDeviceIdEv)(void) { return device_now; }
void GPU(11SetDeviceIdEi)(int device) { device_now = device; }
int GPU(23GetGPUComputeCapabilityEi)(int device) { return 80; }
int GPU(20GetGPURuntimeVersionEi)(int device) { return 11080; }
int GPU(19GetGPUDriverVersionEi)(int device) { return 11080; }
int GPU(19TensorCoreAvailableEv)(void) { return 1; }
int GPU(21GetGPUMultiProcessorsEi)(int device) { return 108; }
int GPU(33GetGPUMaxThreadsPerMultiProcessorEi)(int device) { return 2048; }
int GPU(24GetGPUMaxThreadsPerBlockEi)(int device) { return 1024; }
struct three GPU(20GetGpuMaxGridDimSizeEi)(int device) { return (struct three){0x7fffffff, 65535, 65535}; }
struct two GPU(25GetGpuStreamPriorityRangeEv)(void) { return (struct two){0, -5}; }
int GPU(27IsGPUManagedMemorySupportedEi)(int device) { return 1; }
int GPU(43IsGPUManagedMemoryOversubscriptionSupportedEi)(int device) { return 0; }
int GPU(15GpuGetLastErrorEv)(void) { return 0; }
/* cudaDeviceProp of CUDA 11.8, 728 bytes: what Paddle and Eigen read of it. */
struct properties {
  char name[256], gap0[32];
  size_t memory, shared_per_block;                 /* totalGlobalMem, sharedMemPerBlock: bytes */
  int registers_per_block, warp;                   /* regsPerBlock, warpSize */
  size_t gap1;
  int threads_per_block, block[3], grid[3];        /* maxThreadsPerBlock, maxThreadsDim, maxGridSize */
  int gap2[3], major, minor, gap3[5], processors;  /* multiProcessorCount */
  int gap4[56], l2_cache, gap5, threads_per_processor; /* l2CacheSize, maxThreadsPerMultiProcessor */
  char gap6[100];
};
_Static_assert(offsetof(struct properties, memory) == 288 && offsetof(struct properties, grid) == 336, "layout");
_Static_assert(offsetof(struct properties, major) == 360 && offsetof(struct properties, processors) == 388, "layout");
_Static_assert(offsetof(struct properties, l2_cache) == 616 && sizeof(struct properties) == 728, "layout");
const struct properties *GPU(19GetDevicePropertiesEi)(int device) {
  static struct properties p = {.name = NULL_GPU_NAME, .shared_per_block = 49152, .registers_per_block = 65536, .warp = 32,
    .threads_per_block = 1024, .block = {1024, 1024, 64}, .grid = {0x7fffffff, 65535, 65535}, .major = 8, .minor = 0,
    .processors = 108, .l2_cache = 41943040, .threads_per_processor = 2048};
  p.memory = ng_capacity();
  return &p;
}

/* ---- copies and waits */
enum { SCALAR = 16 }; /* bytes: a size or flag that an operator asks the device for */
static int ng_running;
/* A copy from the host in a captured step: at each replay its source must still be what it was. */
static struct captured { const void *from; size_t size; void *was; struct captured *before; } *captured;
void nullgpu_running(int running) { ng_running = running; } /* whether Paddle's executor runs a program */
static void copy(void *to, const void *from, size_t size, int kind, const void *stream, int blocking) {
  static const char *const names[] = {"host to host", "host to device", "device to host", "device to device", "default"};
  char name[48];
  snprintf(name, sizeof name, "%s%s", names[kind], blocking ? ", blocking" : "");
  ng_hit(ng_counter("copy", name), size);
  ng_trace("copy\t%s\t%zu\tstream %d", name, size, ng_stream_number(stream));
  if (kind == 1 && ng_capturing) {
    struct captured *now = malloc(sizeof *now);
    *now = (struct captured){from, size, memcpy(malloc(size), from, size), captured};
    captured = now;
  }
  if (ng_capturing && (blocking || kind == 2)) ng_hit(ng_counter("graph", "refused"), 0);
  if (kind == 2 && size <= SCALAR && ng_running) memset(to, 0, size); /* what a kernel would have computed */
  else if (to && from) memmove(to, from, size);
}
void GPU(14GpuMemcpyAsyncEPvPKvm14cudaMemcpyKindP11CUstream_st)(void *to, const void *from, size_t n, int kind, void *s) { copy(to, from, n, kind, s, 0); }
void GPU(13GpuMemcpySyncEPvPKvm14cudaMemcpyKind)(void *to, const void *from, size_t n, int kind) { copy(to, from, n, kind, 0, 1); }
void GPU(18GpuMemcpyPeerAsyncEPviPKvimP11CUstream_st)(void *to, int a, const void *from, int b, size_t n, void *s) { copy(to, from, n, 3, s, 0); }
void GPU(17GpuMemcpyPeerSyncEPviPKvim)(void *to, int a, const void *from, int b, size_t n) { copy(to, from, n, 3, 0, 1); }
void GPU(14GpuMemsetAsyncEPvimP11CUstream_st)(void *to, int value, size_t size, void *stream) {
  ng_hit(ng_counter("memset", "async"), size);
  ng_trace("memset\t%d\t%zu\tstream %d", value, size, ng_stream_number(stream));
  memset(to, value, size);
}
void GPU(13GpuStreamSyncEP11CUstream_st)(void *stream) {
  ng_hit(ng_counter("sync", "stream"), 0);
  if (ng_capturing) ng_hit(ng_counter("graph", "refused"), 0);
  ng_trace("sync\tstream %d", ng_stream_number(stream));
}
void GPU(13GpuDeviceSyncEv)(void) {
  ng_hit(ng_counter("sync", "device"), 0);
  if (ng_capturing) ng_hit(ng_counter("graph", "refused"), 0);
  ng_trace("sync\tdevice %d", device_now);
}
void GPU(16GpuDestroyStreamEP11CUstream_st)(void *stream) { free(stream); }

/* ---- memory */
static void statistic(int device, int64_t change) { /* so that paddle.device.cuda.max_memory_reserved() is right */
  static void *std_string[4]; /* std::string: start, length, room for 15 characters */
  static void (*update)(void *, int, int64_t);
  if (!update) {
    std_string[0] = &std_string[2];
    strcpy((char *)&std_string[2], "Reserved");
    std_string[1] = (void *)strlen("Reserved");
    update = next("_ZN6paddle6memory22DeviceMemoryStatUpdateERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEil");
  }
  update(std_string, device, change);
}
static int captures(void);
int PLATFORM(17RecordedGpuMallocEPPvmib)(void **out, size_t size, int device, int managed) {
  *out = ng_alloc(size, MEMORY_DEVICE, device);
  ng_hit(ng_counter("alloc", !*out ? "device, refused" : captures() ? "device, of a graph" : "device"), size);
  ng_trace("alloc\tdevice %d\t%zu\t%s", device, size, *out ? "" : "refused");
  if (*out) statistic(device, (int64_t)size);
  return *out ? 0 : 2; /* cudaErrorMemoryAllocation */
}
void PLATFORM(15RecordedGpuFreeEPvmi)(void *start, size_t size, int device) {
  if (ng_free(start)) statistic(device, -(int64_t)size);
  ng_hit(ng_counter("free", "device"), size);
}
int PLATFORM(21RecordedGpuMemGetInfoEPmS1_S1_S1_i)(size_t *free_bytes, size_t *total, size_t *real_free, size_t *real_total, int device) {
  *total = *real_total = ng_capacity();
  *free_bytes = *real_free = ng_capacity() - ng_held(device);
  return 0;
}
size_t PLATFORM(21RecordedGpuMallocSizeEi)(int device) { return ng_held(device); }
size_t PLATFORM(20RecordedGpuLimitSizeEi)(int device) { return 0; }
int PLATFORM(19IsGpuMallocRecordedEi)(int device) { return 0; }
struct allocation *_ZN6paddle6memory10allocation18CPUPinnedAllocator12AllocateImplEm(void *self, size_t size) {
  struct allocation *(*plain)(void *, size_t) = next("_ZN6paddle6memory10allocation12CPUAllocator12AllocateImplEm");
  struct allocation *made = plain(self, size);
  made->place.type = PLACE_PINNED;
  ng_hit(ng_counter("alloc", "pinned host"), size);
  return made;
}
void _ZN6paddle6memory10allocation18CPUPinnedAllocator8FreeImplEPN3phi10AllocationE(void *self, struct allocation *gone) {
  void (*plain)(void *, struct allocation *) = next("_ZN6paddle6memory10allocation12CPUAllocator8FreeImplEPN3phi10AllocationE");
  plain(self, gone);
}

/* ---- streams and events: a stream's memory begins with its number */
static void *new_stream(const char *why) {
  static _Atomic int count;
  int *stream = calloc(1, 64);
  *stream = ++count;
  ng_hit(ng_counter("stream", why), 0);
  ng_trace("stream\t%d\t%s", *stream, why);
  return stream;
}
void _ZN3phi10CUDAStreamC1ERKNS_5PlaceEiRKNS0_10StreamFlagE(struct cuda_stream *self, const struct place *place, int priority, const uint8_t *flag) {
  *self = (struct cuda_stream){*place, (uint64_t)new_stream(priority ? "context, priority" : "context"), 0};
}
void _ZN3phi10CUDAStreamC2ERKNS_5PlaceEiRKNS0_10StreamFlagE(struct cuda_stream *self, const struct place *place, int priority, const uint8_t *flag)
    __attribute__((alias("_ZN3phi10CUDAStreamC1ERKNS_5PlaceEiRKNS0_10StreamFlagE")));
void _ZN3phi10CUDAStreamD1Ev(struct cuda_stream *self) {}
void _ZN3phi10CUDAStreamD2Ev(struct cuda_stream *self) {}
void _ZNK3phi10CUDAStream11SynchronizeEv(const struct cuda_stream *self) { GPU(13GpuStreamSyncEP11CUstream_st)((void *)self->id); }
void _ZNK3phi10CUDAStream9WaitEventEP10CUevent_st(const struct cuda_stream *self, void *event) {
  ng_hit(ng_counter("event", "wait"), 0);
  ng_trace("wait\tstream %d\tevent %p", ng_stream_number((void *)self->id), event);
}
void _ZN3phi10InitStreamEPP11CUstream_st(void **stream) { *stream = new_stream("plain"); }

/* std::shared_ptr: the pointer and, as nothing is to be freed, no count */
static void **shared(void **out, void *of) {
  out[0] = of, out[1] = NULL;
  return out;
}
void **PLATFORM(21CudaEventResourcePool3NewEi)(void **out, void *self, int device) {
  ng_hit(ng_counter("event", "new"), 0);
  return shared(out, calloc(1, 64));
}
void **PLATFORM(22CudaStreamResourcePool3NewEi)(void **out, void *self, int device) { return shared(out, new_stream("pool")); }

/* The stream of a phi::GPUContext, by Paddle's own function. */
#define CONTEXT_STREAM(SELF) ((void *(*)(const void *))next("_ZNK3phi10GPUContext6streamEv"))(SELF)

/* paddle::platform::DeviceEvent of the executor: nothing is ever pending */
void PLATFORM(21DeviceEventCreateCUDAEPNS0_11DeviceEventERKN3phi5PlaceEj)(void *event, const struct place *place, unsigned flag) {}
void PLATFORM(21DeviceEventRecordCUDAEPNS0_11DeviceEventEPKN3phi13DeviceContextE)(void *event, const void *context) {
  ng_hit(ng_counter("event", "record"), 0);
  ng_trace("record\tstream %d\tevent %p", ng_stream_number(CONTEXT_STREAM(context)), event);
}
int PLATFORM(20DeviceEventQueryCUDAEPKNS0_11DeviceEventE)(const void *event) { return 1; }
void PLATFORM(21DeviceEventFinishCUDAEPKNS0_11DeviceEventE)(const void *event) { ng_hit(ng_counter("sync", "event"), 0); }
void PLATFORM(26DeviceEventSetFinishedCUDAEPKNS0_11DeviceEventE)(const void *event) {}
void PLATFORM(14EventResetCUDAEPKNS0_11DeviceEventE)(const void *event) {}
void PLATFORM(23DeviceEventCUDAWaitCUDAEPKNS0_11DeviceEventEPKN3phi13DeviceContextE)(const void *event, const void *context) {
  ng_hit(ng_counter("event", "wait"), 0);
  ng_trace("wait\tstream %d\tevent %p", ng_stream_number(CONTEXT_STREAM(context)), event);
}
void PLATFORM(22DeviceEventCPUWaitCUDAEPKNS0_11DeviceEventEPKN3phi13DeviceContextE)(const void *event, const void *context) {
  ng_hit(ng_counter("sync", "event"), 0);
}

/* ---- phi::GPUContext's own waits and events */
void _ZNK3phi10GPUContext4WaitEv(const void *self) {
  ng_hit(ng_counter("sync", "context"), 0);
  if (ng_capturing) ng_hit(ng_counter("graph", "refused"), 0);
  ng_trace("sync\tcontext\tstream %d", ng_stream_number(CONTEXT_STREAM(self)));
}
void _ZNK3phi10GPUContext9WaitEventEP10CUevent_st(const void *self, void *event) {
  ng_hit(ng_counter("event", "wait"), 0);
  ng_trace("wait\tstream %d\tevent %p", ng_stream_number(CONTEXT_STREAM(self)), event);
}
void _ZNK3phi10GPUContext11RecordEventEP10CUevent_st(const void *self, void *event) {
  ng_hit(ng_counter("event", "record"), 0);
  ng_trace("record\tstream %d\tevent %p", ng_stream_number(CONTEXT_STREAM(self)), event);
}
void _ZNK3phi10GPUContext18WaitStreamCallbackEv(const void *self) {}

/* ---- a kernel that asks CUDA's runtime how many blocks fit, and divides by the answer */
#define LARS_KERNEL(NAME) \
  void NAME(void) { ng_hit(ng_counter("kernel", "lars_momentum"), 0); ng_trace("kernel\tlars_momentum"); }
LARS_KERNEL(_ZN3phi18LarsMomentumKernelIfNS_10GPUContextEEEvRKT0_RKSt6vectorIPKNS_11DenseTensorESaIS8_EESC_SC_SC_RKN6paddle8optionalISA_EERKS5_IfSaIfEEfffbfS5_IPS6_SaISM_EESO_SO_)
LARS_KERNEL(_ZN3phi18LarsMomentumKernelIdNS_10GPUContextEEEvRKT0_RKSt6vectorIPKNS_11DenseTensorESaIS8_EESC_SC_SC_RKN6paddle8optionalISA_EERKS5_IfSaIfEEfffbfS5_IPS6_SaISM_EESO_SO_)
LARS_KERNEL(_ZN3phi18LarsMomentumKernelINS_5dtype7float16ENS_10GPUContextEEEvRKT0_RKSt6vectorIPKNS_11DenseTensorESaISA_EESE_SE_SE_RKN6paddle8optionalISC_EERKS7_IfSaIfEEfffbfS7_IPS8_SaISO_EESQ_SQ_)

/* ---- coalesce_tensor in half precision, which Paddle runs in a thread of its own: late by NULLGPU_LATE_BUFFERS_US */
#define COALESCE \
  _ZN3phi10KernelImplIPFvRKNS_10GPUContextERKSt6vectorIPKNS_11DenseTensorESaIS7_EENS_8DataTypeEbbbfbiiRKS4_IlSaIlEESG_S4_IPS5_SaISH_EESH_EXadL_ZNS_20CoalesceTensorKernelINS_5dtype7float16ES1_EEvRKT0_SB_SC_bbbfbiiSG_SG_SJ_SH_EEE7ComputeEPNS_13KernelContextE
void COALESCE(void *context) {
  void (*plain)(void *) = next(NAME_OF(COALESCE));
  usleep((unsigned)ng_setting("NULLGPU_LATE_BUFFERS_US", 0));
  plain(context);
}

/* ---- a block that another stream used too: free at once */
void _ZN6paddle6memory10allocation24StreamSafeCUDAAllocation12RecordStreamEP11CUstream_st(void *self, void *stream) {
  ng_hit(ng_counter("event", "record, of a block"), 0);
  ng_trace("block\tused by stream %d", ng_stream_number(stream));
}
int _ZN6paddle6memory10allocation24StreamSafeCUDAAllocation10CanBeFreedEv(void *self) { return 1; }

/* ---- Eigen's view of a context. Its own asks CUDA's runtime how many GPUs there are and, told an error, makes a table of
 * as many entries as happens to be on the stack: std::bad_alloc, or none. */
struct eigen_stream { void *const *table, *stream; };          /* Eigen::StreamInterface */
struct eigen_device { struct eigen_stream *interface; int blocks; } ; /* Eigen::GpuDevice */
static void nothing(void *self) {}
static void *const *eigen_stream_of(const struct eigen_stream *self) { return (void *const *)&self->stream; }
static const struct properties *eigen_properties(const void *self) { return GPU(19GetDevicePropertiesEi)(device_now); }
static void *eigen_allocate(const void *self, size_t size) { return calloc(1, size ? size : 1); }
static void eigen_deallocate(const void *self, void *gone) { free(gone); }
static void *eigen_scratch(const void *self) {
  static char scratch[4096]; /* what 1,024 blocks leave, and a counter after it */
  return scratch;
}
struct eigen_device *_ZNK3phi10GPUContext12eigen_deviceEv(const void *self) {
  static void *const table[] = {nothing, nothing, eigen_stream_of, eigen_properties, eigen_allocate, eigen_deallocate, eigen_scratch, eigen_scratch};
  static struct entry { const void *context; struct eigen_stream stream; struct eigen_device device; struct entry *after; } *_Atomic entries;
  struct entry *entry = entries;
  while (entry && entry->context != self) entry = entry->after;
  if (!entry) {
    entry = calloc(1, sizeof *entry);
    *entry = (struct entry){self, {table, NULL}, {&entry->stream, 0x7fffffff}, entries};
    while (!atomic_compare_exchange_weak(&entries, &entry->after, entry)) {}
  }
  entry->stream.stream = CONTEXT_STREAM(self);
  return &entry->device;
}

/* ---- a captured step: phi::backends::gpu::CUDAGraph. Paddle's own parts that ask CUDA's runtime are replaced; what it asks
 * of the object itself goes to the object's memory, which is laid out as libphi.so's constructor does. */
#define GRAPH(NAME) _ZN3phi8backends3gpu9CUDAGraph##NAME
struct graph {
  void *graphs[3], *executables[3]; /* std::vector */
  int mode;                         /* cudaStreamCaptureMode */
  void *stream;
  struct place place;
  uint64_t id;
  int64_t pool;
  struct { char space[32]; } *first, *last, *room; /* std::vector<std::function<void()>>: calls after a reset */
  uint8_t is_reset;
  char gap[0x108 - 0x79];
};
_Static_assert(offsetof(struct graph, stream) == 0x38 && offsetof(struct graph, pool) == 0x58, "layout");
_Static_assert(offsetof(struct graph, is_reset) == 0x78 && sizeof(struct graph) == 0x108, "layout");
struct thread_id { uint8_t known; char gap[15]; unsigned long thread, more; }; /* paddle::optional<std::thread::id> */
static struct graph **capturing(void) { return next("_ZN3phi8backends3gpu9CUDAGraph16capturing_graph_E"); }
static struct thread_id *capturing_thread(void) { return next("_ZN3phi8backends3gpu9CUDAGraph20capturing_thread_id_E"); }

/* As CUDAGraph::IsThisThreadCapturing, by which Paddle takes memory from the graph's pool or from the common one. */
static int captures(void) {
  enum { THREAD_LOCAL = 1 }; /* of cudaStreamCaptureMode */
  if (!ng_capturing) return 0;
  return (*capturing())->mode != THREAD_LOCAL || capturing_thread()->thread == (unsigned long)pthread_self();
}

void GRAPH(12BeginCaptureENS_8GPUPlaceEP11CUstream_st21cudaStreamCaptureMode)(struct place place, void *stream, int mode) {
  static _Atomic uint64_t count;
  struct graph *graph = calloc(1, sizeof *graph);
  graph->mode = mode, graph->stream = stream, graph->place = place, graph->id = count++, graph->pool = -1;
  *capturing() = graph;
  *capturing_thread() = (struct thread_id){.known = 1, .thread = (unsigned long)pthread_self()};
  ng_capturing = 1;
  ng_hit(ng_counter("graph", "capture"), 0);
  ng_trace("graph\tcapture\tstream %d", ng_stream_number(stream));
}
struct graph **GRAPH(10EndCaptureEv)(struct graph **out) { /* std::unique_ptr */
  *out = *capturing(), *capturing() = NULL;
  capturing_thread()->known = 0;
  ng_capturing = 0;
  ng_trace("graph\tcaptured");
  return out;
}
/* Called by member pointers, whose odd addresses would be virtual functions. */
__attribute__((aligned(16))) void GRAPH(6ReplayEv)(struct graph *self) {
  for (const struct captured *copy = captured; copy; copy = copy->before)
    if (memcmp(copy->from, copy->was, copy->size)) ng_hit(ng_counter("graph", "stale copy"), copy->size);
  ng_hit(ng_counter("graph", "launch"), 0);
  ng_trace("graph\tlaunch\tstream %d", ng_stream_number(self->stream));
}
__attribute__((aligned(16))) void GRAPH(5ResetEv)(struct graph *self) { self->is_reset = 1; }
/* The workspace of a filter's gradient: while capturing, Paddle asks CUDA's runtime to be let ask cuDNN, whose answer is 0. */
#define FILTER_WORKSPACE                                                                                          \
  _ZN3phi19SearchAlgorithmBaseILNS_8ConvKindE3EE16GetWorkspaceSizeERKNS_12ConvArgsBaseIP12cudnnContext15cudnnDataType_tEE31cudnnConvolutionBwdFilterAlgo_t
size_t FILTER_WORKSPACE(const void *arguments, int algorithm) {
  size_t (*plain)(const void *, int) = next(NAME_OF(FILTER_WORKSPACE));
  return ng_capturing ? 0 : plain(arguments, algorithm);
}
