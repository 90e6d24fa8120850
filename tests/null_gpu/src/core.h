/* Null GPU: what every fake library shares. Device memory is host memory, kernels do nothing, every call is counted. */
#ifndef NULLGPU_CORE_H
#define NULLGPU_CORE_H
#include <stddef.h>
#include <stdint.h>

#define NULLGPU_MAX_DEVICES 16
#define NULL_GPU_NAME "Null GPU (nothing is computed)"

/* A counter: one for each kind of event and name ("launch <kernel>", "cudnn cudnnConvolutionForward", ...). */
struct counter {
  const char *kind, *name;
  _Atomic uint64_t calls, bytes;
  struct counter *next;
  _Atomic int linked;
};

void ng_hit(struct counter *counter, uint64_t bytes);
struct counter *ng_counter(const char *kind, const char *name); /* by name, made on its first use */
int ng_tracing(void);
void ng_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));
long ng_setting(const char *name, long otherwise);

/* Counts this call of this function; K is the kind. */
#define COUNT_BYTES(K, N)                            \
  do {                                               \
    static struct counter counter = {K, __func__};   \
    ng_hit(&counter, (N));                           \
  } while (0)
#define COUNT(K) COUNT_BYTES(K, 0)

/* ---- memory: every live allocation is known by its range */
enum memory_kind { MEMORY_DEVICE = 1, MEMORY_HOST = 2, MEMORY_MANAGED = 3 };
struct block {
  uintptr_t start;
  size_t size;
  enum memory_kind kind;
  int device, owned;
  uint64_t id;
};
void *ng_alloc(size_t size, enum memory_kind kind, int device); /* NULL: the device is full */
int ng_adopt(void *start, size_t size, int device);             
int ng_free(void *start);                                       /* 0: unknown */
int ng_find(const void *address, struct block *out);
size_t ng_held(int device);
size_t ng_capacity(void);
int ng_devices(void);
int ng_current_device(void);
extern int ng_capturing; /* whether a step is being captured */
int ng_stream_number(const void *stream); /* 0: the legacy stream; else its memory begins with its number */
#endif
