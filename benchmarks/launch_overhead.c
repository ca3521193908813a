/* What launching costs a C program: the baseline of launch_overhead.py, await_latency.py.
 *
 *   launch_overhead PTX_FILE LAUNCHES REPETITIONS
 *
 * Prints one JSON object: for each measurement the median, the 10th and the 90th percentile, in
 * microseconds, over REPETITIONS rounds after a warm-up of a tenth as many.
 *
 *   chain_sync   LAUNCHES launches of axpy_f32, the scalar changing, then cuStreamSynchronize
 *   chain_event  the same, then cuEventRecord and polling cuEventQuery
 *   chain_queue  the launches alone (the stream is emptied outside the timed region)
 *   one_sync     one launch, then cuStreamSynchronize
 *   one_event    one launch, then cuEventRecord and polling cuEventQuery
 *   graph_sync   a graph of LAUNCHES kernels: cuGraphLaunch, then cuStreamSynchronize
 *
 * Built by the Python scripts with gcc -O2 against the CUDA driver API.
 */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define ELEMENTS 128u
#define CHECK(call)                                                                         \
  do {                                                                                      \
    CUresult result_ = (call);                                                              \
    if (result_ != CUDA_SUCCESS) {                                                          \
      const char *name_ = "?";                                                              \
      cuGetErrorName(result_, &name_);                                                      \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, name_);                 \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

static CUfunction axpy;
static CUstream stream;
static CUevent event;
static CUgraphExec graph;
static CUdeviceptr x, y;

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static void launch_many(int launches) {
  unsigned int n = ELEMENTS;
  float a = 0.0f;
  void *arguments[] = {&n, &a, &x, &y};
  for (int i = 0; i < launches; ++i) {
    a = (float)i;
    CHECK(cuLaunchKernel(axpy, 1, 1, 1, ELEMENTS, 1, 1, 0, stream, arguments, NULL));
  }
}

static void wait_event(void) {
  CHECK(cuEventRecord(event, stream));
  CUresult state;
  while ((state = cuEventQuery(event)) == CUDA_ERROR_NOT_READY) {
  }
  CHECK(state);
}

static double chain_sync(int launches) {
  double begin = now_us();
  launch_many(launches);
  CHECK(cuStreamSynchronize(stream));
  return now_us() - begin;
}

static double chain_event(int launches) {
  double begin = now_us();
  launch_many(launches);
  wait_event();
  return now_us() - begin;
}

static double chain_queue(int launches) {
  double begin = now_us();
  launch_many(launches);
  double end = now_us();
  CHECK(cuStreamSynchronize(stream));
  return end - begin;
}

static double one_sync(int launches) {
  (void)launches;
  return chain_sync(1);
}

static double one_event(int launches) {
  (void)launches;
  return chain_event(1);
}

static double graph_sync(int launches) {
  (void)launches;
  double begin = now_us();
  CHECK(cuGraphLaunch(graph, stream));
  CHECK(cuStreamSynchronize(stream));
  return now_us() - begin;
}

static int ascending(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static void measure(const char *name, double (*round)(int), int launches, int repetitions, int last) {
  double *times = malloc(sizeof(double) * (size_t)repetitions);
  if (times == NULL) exit(1);
  for (int i = 0; i < repetitions / 10 + 1; ++i) round(launches);
  for (int i = 0; i < repetitions; ++i) times[i] = round(launches);
  qsort(times, (size_t)repetitions, sizeof(double), ascending);
  printf("\"%s\": {\"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f}%s", name, times[repetitions / 2],
         times[repetitions / 10], times[repetitions * 9 / 10], last ? "" : ", ");
  free(times);
}

static char *read_text(const char *path) {
  FILE *file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
    perror(path);
    exit(1);
  }
  long size = ftell(file);
  rewind(file);
  char *text = calloc((size_t)size + 1, 1);
  if (text == NULL || fread(text, 1, (size_t)size, file) != (size_t)size) {
    perror(path);
    exit(1);
  }
  fclose(file);
  return text;
}

int main(int argc, char **argv) {
  if (argc != 4 || atoi(argv[2]) < 1 || atoi(argv[3]) < 1) {
    fprintf(stderr, "usage: %s PTX_FILE LAUNCHES REPETITIONS\n", argv[0]);
    return 2;
  }
  int launches = atoi(argv[2]), repetitions = atoi(argv[3]);
  CUdevice device;
  CUcontext context;
  CUmodule module;
  CHECK(cuInit(0));
  CHECK(cuDeviceGet(&device, 0));
  CHECK(cuDevicePrimaryCtxRetain(&context, device));
  CHECK(cuCtxSetCurrent(context));
  CHECK(cuModuleLoadData(&module, read_text(argv[1])));
  CHECK(cuModuleGetFunction(&axpy, module, "axpy_f32"));
  CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CHECK(cuMemAlloc(&x, ELEMENTS * sizeof(float)));
  CHECK(cuMemAlloc(&y, ELEMENTS * sizeof(float)));
  CHECK(cuMemsetD32(x, 0, ELEMENTS));
  CHECK(cuMemsetD32(y, 0, ELEMENTS));
  CHECK(cuCtxSynchronize());

  CUgraph captured;
  CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  launch_many(launches);
  CHECK(cuStreamEndCapture(stream, &captured));
  CHECK(cuGraphInstantiate(&graph, captured, 0));

  printf("{");
  measure("chain_sync", chain_sync, launches, repetitions, 0);
  measure("chain_event", chain_event, launches, repetitions, 0);
  measure("chain_queue", chain_queue, launches, repetitions, 0);
  measure("one_sync", one_sync, launches, repetitions, 0);
  measure("one_event", one_event, launches, repetitions, 0);
  measure("graph_sync", graph_sync, launches, repetitions, 1);
  printf("}\n");
  return 0;
}
