/* The functions of cuDNN, cuBLAS, NCCL and NVML that answer something or tell what they work on; names.py makes counters
 * of all others. Handles are addresses and enumerations are ints. Of a function that only tells something the leading
 * arguments are declared: by the ABI of x86-64 the caller clears the rest away. */
#define _GNU_SOURCE
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef const void *in;
typedef void *out;

#define MAKE(KIND, NAME)   \
  int NAME(void **made) {  \
    COUNT(KIND);           \
    *made = calloc(1, 256); \
    return 0;              \
  }

/* ---- cuDNN: a descriptor remembers its type and layout */
enum { FLOAT, DOUBLE, HALF };                    /* cudnnDataType_t */
enum { NCHW, NHWC };                             /* cudnnTensorFormat_t */
struct descriptor { int type, format, dims, dim[8], stride[8]; };
MAKE("cudnn", cudnnCreate)
MAKE("cudnn", cudnnCreateTensorDescriptor)
MAKE("cudnn", cudnnCreateFilterDescriptor)
MAKE("cudnn", cudnnCreateConvolutionDescriptor)
MAKE("cudnn", cudnnCreatePoolingDescriptor)
MAKE("cudnn", cudnnCreateActivationDescriptor)
MAKE("cudnn", cudnnCreateDropoutDescriptor)
MAKE("cudnn", cudnnCreateOpTensorDescriptor)
MAKE("cudnn", cudnnCreateReduceTensorDescriptor)

size_t cudnnGetVersion(void) { return 8600; }
const char *cudnnGetErrorString(int status) { return "an error of the null cuDNN"; }

static const char *type_name(int type) {
  static const char *const names[] = {"float", "double", "half", "int8", "int32"};
  return type >= 0 && type < 5 ? names[type] : "other";
}
static void describe(char *text, size_t room, const struct descriptor *d) {
  size_t used = snprintf(text, room, "%s", type_name(d->type));
  if (d->dims > 2) used += snprintf(text + used, room - used, d->format == NHWC || d->stride[d->dims - 1] > 1 ? " NHWC" : " NCHW");
  for (int i = 0; i < d->dims && used < room; i++) used += snprintf(text + used, room - used, "%c%d", i ? 'x' : ' ', d->dim[i]);
}
int cudnnSetTensorNdDescriptor(struct descriptor *d, int type, int dims, const int dim[], const int stride[]) {
  COUNT("cudnn");
  d->type = type, d->dims = dims, d->format = NCHW;
  memcpy(d->dim, dim, dims * sizeof *dim), memcpy(d->stride, stride, dims * sizeof *stride);
  return 0;
}
int cudnnSetTensorNdDescriptorEx(struct descriptor *d, int format, int type, int dims, const int dim[]) {
  COUNT("cudnn");
  d->type = type, d->dims = dims, d->format = format;
  memset(d->stride, 0, sizeof d->stride);
  memcpy(d->dim, dim, dims * sizeof *dim);
  return 0;
}
int cudnnSetTensor4dDescriptor(struct descriptor *d, int format, int type, int n, int c, int h, int w) {
  return cudnnSetTensorNdDescriptorEx(d, format, type, 4, (int[]){n, c, h, w});
}
int cudnnSetFilterNdDescriptor(struct descriptor *d, int type, int format, int dims, const int dim[]) {
  return cudnnSetTensorNdDescriptorEx(d, format, type, dims, dim);
}
int cudnnSetFilter4dDescriptor(struct descriptor *d, int type, int format, int k, int c, int h, int w) {
  return cudnnSetTensorNdDescriptorEx(d, format, type, 4, (int[]){k, c, h, w});
}
int cudnnDeriveBNTensorDescriptor(struct descriptor *d, const struct descriptor *x, int mode) {
  return cudnnSetTensor4dDescriptor(d, NCHW, x->type == DOUBLE ? DOUBLE : FLOAT, 1, x->dim[1], 1, 1);
}

int cudnnSetStream(in handle, in stream) {
  COUNT("cudnn");
  ng_trace("computes\tstream %d", ng_stream_number(stream));
  return 0;
}

/* A call that computes, with the tensor that it reads first and the one that it is about. */
static int work(const char *call, const void *x, const void *y) {
  char first[96] = "", second[96] = "";
  if (x) describe(first, sizeof first, x);
  if (y) describe(second, sizeof second, y);
  ng_hit(ng_counter("cudnn work", call), 0);
  ng_trace("cudnn\t%s\t%s\t%s", call, first, second);
  return 0;
}

/* Algorithms: of each kind one, on tensor cores, without a workspace. */
struct performance { int algorithm, status; float time_ms; size_t memory; int determinism, math, reserved[3]; };
static int one_algorithm(const char *call, int algorithm, int wanted, int *found, struct performance *answer) {
  ng_hit(ng_counter("cudnn", call), 0);
  memset(answer, 0, sizeof *answer);
  answer->algorithm = algorithm, answer->math = 1 /* tensor cores */, answer->time_ms = 1;
  *found = wanted > 0;
  return 0;
}
#define GET(NAME, ALGORITHM) \
  int NAME(in h, in a, in b, in c, in d, int wanted, int *found, struct performance *answer) { \
    return one_algorithm(#NAME, ALGORITHM, wanted, found, answer);                                  \
  }
#define FIND(NAME, ALGORITHM) \
  int NAME(in h, in a, in pa, in b, in pb, in c, in d, out pd, int wanted, int *found, struct performance *answer) { \
    return one_algorithm(#NAME, ALGORITHM, wanted, found, answer);                                                        \
  }
GET(cudnnGetConvolutionForwardAlgorithm_v7, 1)
GET(cudnnGetConvolutionBackwardDataAlgorithm_v7, 1)
GET(cudnnGetConvolutionBackwardFilterAlgorithm_v7, 1)
FIND(cudnnFindConvolutionForwardAlgorithmEx, 1)
FIND(cudnnFindConvolutionBackwardDataAlgorithmEx, 1)
FIND(cudnnFindConvolutionBackwardFilterAlgorithmEx, 1)

/* Sizes of workspaces and reserves: none. */
#define NO_BYTES(NAME, ...) int NAME(__VA_ARGS__, size_t *size) { COUNT("cudnn"); *size = 0; return 0; }
NO_BYTES(cudnnGetConvolutionForwardWorkspaceSize, in h, in x, in w, in c, in y, int algorithm)
NO_BYTES(cudnnGetConvolutionBackwardDataWorkspaceSize, in h, in w, in dy, in c, in dx, int algorithm)
NO_BYTES(cudnnGetConvolutionBackwardFilterWorkspaceSize, in h, in x, in dy, in c, in dw, int algorithm)
NO_BYTES(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize, in h, int mode, int ops, in x, in z, in y, in s, in a)
NO_BYTES(cudnnGetBatchNormalizationBackwardExWorkspaceSize, in h, int mode, int ops, in x, in y, in dy, in dz, in dx, in s, in a)
NO_BYTES(cudnnGetBatchNormalizationTrainingExReserveSpaceSize, in h, int mode, int ops, in a, in x)

int cudnnConvolutionForward(in h, in alpha, in x, in px, in w) { return work(__func__, x, w); }
int cudnnConvolutionBackwardData(in h, in alpha, in w, in pw, in dy) { return work(__func__, dy, w); }
int cudnnConvolutionBackwardFilter(in h, in alpha, in x, in px, in dy, in pdy, in conv, int algorithm, in space, size_t bytes, in beta, in dw) {
  return work(__func__, x, dw);
}
int cudnnPoolingForward(in h, in pooling, in alpha, in x, in px, in beta, in y) { return work(__func__, x, y); }
int cudnnPoolingBackward(in h, in pooling, in alpha, in y, in py, in dy, in pdy, in x) { return work(__func__, x, dy); }
int cudnnBatchNormalizationForwardInference(in h, int mode, in alpha, in beta, in x) { return work(__func__, x, NULL); }
int cudnnBatchNormalizationForwardTraining(in h, int mode, in alpha, in beta, in x) { return work(__func__, x, NULL); }
int cudnnBatchNormalizationBackward(in h, int mode, in a, in b, in c, in d, in x) { return work(__func__, x, NULL); }
static const char *const OPERATIONS[] = {"", "Relu", "AddRelu"}; /* cudnnBatchNormOps_t */
static int fused(const char *call, int operations, in x) {
  char name[96];
  snprintf(name, sizeof name, "%s%s", call, OPERATIONS[operations]);
  return work(name, x, NULL);
}
int cudnnBatchNormalizationForwardTrainingEx(in h, int mode, int ops, in alpha, in beta, in x) { return fused(__func__, ops, x); }
int cudnnBatchNormalizationBackwardEx(in h, int mode, int ops, in a, in b, in c, in d, in x) { return fused(__func__, ops, x); }

/* Fused operations: a plan remembers its kind and what its constants say of the images. */
static const char *const FUSED[] = {"Convolution", "Wgrad", "Statistics", "Inference", "ConvolutionAct", "Normalize", "Backward"};
struct fused_pack { int kind; struct descriptor x; };
struct fused_plan { const struct fused_pack *constants; };
enum { XDESC }; /* cudnnFusedOpsConstParamLabel_t */
int cudnnCreateFusedOpsConstParamPack(struct fused_pack **made, int kind) {
  COUNT("cudnn");
  *made = calloc(1, sizeof **made), (*made)->kind = kind;
  return 0;
}
int cudnnSetFusedOpsConstParamPackAttribute(struct fused_pack *pack, int label, const void *value) {
  COUNT("cudnn");
  if (label == XDESC) pack->x = *(const struct descriptor *)value;
  return 0;
}
MAKE("cudnn", cudnnCreateFusedOpsVariantParamPack)
MAKE("cudnn", cudnnCreateFusedOpsPlan)
int cudnnMakeFusedOpsPlan(in h, struct fused_plan *plan, const struct fused_pack *constants, size_t *workspace) {
  COUNT("cudnn");
  plan->constants = constants, *workspace = 0;
  return 0;
}
int cudnnFusedOpsExecute(in h, const struct fused_plan *plan) {
  char name[64];
  snprintf(name, sizeof name, "cudnnFused%s", FUSED[plan->constants->kind]);
  return work(name, plan->constants->x.dims ? &plan->constants->x : NULL, NULL);
}

/* ---- cuBLAS */
MAKE("cublas", cublasCreate_v2)
MAKE("cublas", cublasLtCreate)
int cublasGetVersion_v2(in handle, int *version) { return *version = 111103, 0; }
int cublasGetMathMode(in handle, int *mode) { return *mode = 0, 0; }
static int product(const char *call, int m, int n, int k, int type) { /* cudaDataType: 0 float, 2 half */
  ng_hit(ng_counter("cublas work", call), 0);
  ng_trace("cublas\t%s\t%s\t%dx%dx%d", call, type == 0 ? "float" : type == 2 ? "half" : "other", m, n, k);
  return 0;
}
int cublasGemmEx(in h, int ta, int tb, int m, int n, int k, in alpha, in a, int type) { return product(__func__, m, n, k, type); }
int cublasSgemmEx(in h, int ta, int tb, int m, int n, int k, in alpha, in a, int type) { return product(__func__, m, n, k, type); }
int cublasSgemm_v2(in h, int ta, int tb, int m, int n, int k) { return product(__func__, m, n, k, 0); }
int cublasHgemm(in h, int ta, int tb, int m, int n, int k) { return product(__func__, m, n, k, 2); }

/* ---- cuSOLVER */
MAKE("cusolver", cusolverDnCreate)

/* ---- NCCL: nothing is exchanged */
struct communicator { int rank, ranks, device, number; };
struct id { char bytes[128]; };
int ncclGetVersion(int *version) { return *version = 22105, 0; }
const char *ncclGetErrorString(int result) { return "an error of the null NCCL"; }
int ncclGetUniqueId(struct id *id) {
  COUNT("nccl");
  memset(id, 7, sizeof *id);
  return 0;
}
int ncclCommInitRank(struct communicator **made, int ranks, struct id id, int rank) {
  static int count;
  COUNT("nccl");
  *made = calloc(1, 4096);
  **made = (struct communicator){rank, ranks, ng_current_device(), ++count};
  ng_trace("communicator\t%d\trank %d of %d", count, rank, ranks);
  return 0;
}
int ncclCommCount(const struct communicator *c, int *count) { return *count = c->ranks, 0; }
int ncclCommUserRank(const struct communicator *c, int *rank) { return *rank = c->rank, 0; }
int ncclCommCuDevice(const struct communicator *c, int *device) { return *device = c->device, 0; }
int ncclCommGetAsyncError(const struct communicator *c, int *error) { return *error = 0, 0; }
static int collective(const char *name, void *to, const void *from, size_t count, int type, const struct communicator *c, const void *stream) {
  static const struct { const char *name; size_t bytes; } types[] = {{"int8", 1}, {"uint8", 1}, {"int32", 4}, {"uint32", 4}, {"int64", 8}, {"uint64", 8}, {"half", 2}, {"float", 4}, {"double", 8}, {"bfloat16", 2}};
  size_t bytes = count * types[type].bytes;
  ng_hit(ng_counter("nccl work", name), bytes);
  ng_trace("nccl\t%s\t%zu\t%s\tcommunicator %d\tstream %d%s", name, count, types[type].name, c->number, ng_stream_number(stream), to == from ? "\tin place" : "");
  if (to != from && from) memmove(to, from, bytes);
  return 0;
}
int ncclAllReduce(in from, out to, size_t n, int type, int op, in c, in stream) { return collective("AllReduce", to, from, n, type, c, stream); }
int ncclBroadcast(in from, out to, size_t n, int type, int root, in c, in stream) { return collective("Broadcast", to, from, n, type, c, stream); }
int ncclBcast(out to, size_t n, int type, int root, in c, in stream) { return collective("Broadcast", to, to, n, type, c, stream); }
int ncclReduce(in from, out to, size_t n, int type, int op, int root, in c, in stream) { return collective("Reduce", to, from, n, type, c, stream); }
int ncclAllGather(in from, out to, size_t n, int type, in c, in stream) { return collective("AllGather", to, from, n, type, c, stream); }
int ncclReduceScatter(in from, out to, size_t n, int type, int op, in c, in stream) { return collective("ReduceScatter", to, from, n, type, c, stream); }

/* ---- NVML: what identifies a GPU; a function that is not here is one that the driver does not have */
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int status) { return "an error of the null NVML"; }
int nvmlDeviceGetCount_v2(unsigned *count) { return *count = ng_devices(), 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { return *handle = (void *)(uintptr_t)(index + 1), 0; }
int nvmlDeviceGetIndex(void *handle, unsigned *index) { return *index = (unsigned)(uintptr_t)handle - 1, 0; }
int nvmlDeviceGetName(void *handle, char *text, unsigned room) { return snprintf(text, room, NULL_GPU_NAME), 0; }
int nvmlDeviceGetUUID(void *handle, char *text, unsigned room) { return snprintf(text, room, "GPU-00000000-0000-0000-0000-%012lx", (uintptr_t)handle), 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned room) { return snprintf(text, room, "520.61.05"), 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { return *major = 8, *minor = 0, 0; }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *answer) { /* total, free, used */
  answer[0] = ng_capacity(), answer[2] = ng_held((int)(uintptr_t)handle - 1), answer[1] = answer[0] - answer[2];
  return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, unsigned long long *answer) { /* version, total, reserved, free, used */
  answer[1] = ng_capacity(), answer[2] = 0, answer[4] = ng_held((int)(uintptr_t)handle - 1), answer[3] = answer[1] - answer[4];
  return 0;
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatt) { return *milliwatt = 0, 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, void *answer) { return *count = 0, 0; }
