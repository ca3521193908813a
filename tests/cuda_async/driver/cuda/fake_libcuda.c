/* A libcuda without a GPU: the functions this project calls, on host memory, done at once.
 *
 * It is there to run the real cuda.bindings, whose argument conversions a stand-in written in Python cannot
 * check. Streams and events hold nothing but which uploads of graphs they are behind; a launch is recorded for the test to
 * read; fake_fail() makes the next call of one function answer a code; fake_hold_uploads() keeps uploads from ending. The declarations are NVIDIA's, so a wrong signature does not compile.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char fail_name[64];
static CUresult fail_code;
static size_t used, used_high;
static cuuint64_t threshold;
static unsigned long long last_launch[16];

struct event { unsigned flags; int recorded, behind; };
struct function { const char *name; };
struct allocation { size_t size; char padding[256 - sizeof(size_t)]; };

/* Uploads of graphs are numbered; what is in a stream is behind all up to a number. */
static int uploads, uploads_held_from;
static struct { CUstream stream; int behind; } orders[256];

static int *behind(CUstream stream) {
    int i = 0;
    while (i < 255 && orders[i].stream && orders[i].stream != stream) i++;
    orders[i].stream = stream;
    return &orders[i].behind;
}
static int is_uploading(int number) { return uploads_held_from && number >= uploads_held_from; }
void fake_hold_uploads(int hold) { uploads_held_from = hold ? uploads + 1 : 0; }

static struct function the_function = {"scale"};

void fake_fail(const char *name, int code) { snprintf(fail_name, sizeof fail_name, "%s", name); fail_code = code; }
unsigned long long *fake_last_launch(void) { return last_launch; }

static CUresult answer(const char *name) {
    if (fail_code == 0 || strcmp(name, fail_name) != 0) return CUDA_SUCCESS;
    CUresult code = fail_code;
    if (code < 700 || code > 719) fail_code = 0; /* faults are sticky */
    return code;
}
#define CALL do { CUresult code_ = answer(__func__); if (code_ != CUDA_SUCCESS) return code_; } while (0)

CUresult cuInit(unsigned flags) { CALL; return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuDeviceGetCount(int *count) { CALL; *count = 1; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { CALL; *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDeviceGetName(char *name, int length, CUdevice device) { snprintf(name, length, "Fake"); return CUDA_SUCCESS; }
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    for (int i = 0; i < 16; i++) uuid->bytes[i] = (char)(17 * i);
    return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) { *bytes = (size_t)80 << 30; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    default: *value = 1024;
    }
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { CALL; *context = (CUcontext)0x1000; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { CALL; return CUDA_SUCCESS; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)0x1000; return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuCtxSynchronize(void) { CALL; return CUDA_SUCCESS; }
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return CUDA_SUCCESS; }

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
    CALL;
    if (flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *stream = malloc(16);
    return CUDA_SUCCESS;
}
CUresult cuStreamSynchronize(CUstream stream) { CALL; return CUDA_SUCCESS; }
CUresult cuStreamQuery(CUstream stream) { CALL; return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { *status = CU_STREAM_CAPTURE_STATUS_NONE; return CUDA_SUCCESS; }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    CALL;
    int *now = behind(stream), number = ((struct event *)event)->behind;
    if (number > *now) *now = number;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
    CALL;
    struct event *made = calloc(1, sizeof *made);
    made->flags = flags;
    *event = (CUevent)made;
    return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event) { CALL; free(event); return CUDA_SUCCESS; }
CUresult cuEventRecord(CUevent event, CUstream stream) {
    CALL;
    ((struct event *)event)->recorded = 1;
    ((struct event *)event)->behind = *behind(stream);
    return CUDA_SUCCESS;
}
CUresult cuEventQuery(CUevent event) { CALL; return is_uploading(((struct event *)event)->behind) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS; }
CUresult cuEventSynchronize(CUevent event) { CALL; return CUDA_SUCCESS; }
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    struct event *a = (struct event *)start, *b = (struct event *)end;
    if ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING || !a->recorded || !b->recorded) return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = 0.5f;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CALL;
    if (properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        properties->location.id != 0 || properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    *pool = (CUmemoryPool)0x2000;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) { CALL; return CUDA_SUCCESS; }
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes) { CALL; return CUDA_SUCCESS; }
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    CALL;
    if (attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) return CUDA_ERROR_INVALID_VALUE;
    threshold = *(cuuint64_t *)value;
    return CUDA_SUCCESS;
}
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    int high = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH || attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    *(cuuint64_t *)value = high ? used_high : used;
    return CUDA_SUCCESS;
}
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream) {
    CALL;
    if (size > (size_t)1 << 30) return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *made = aligned_alloc(256, sizeof *made + (size + 255) / 256 * 256);
    made->size = size;
    used += size;
    if (used > used_high) used_high = used;
    *address = (CUdeviceptr)(made + 1);
    return CUDA_SUCCESS;
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    CALL;
    struct allocation *made = (struct allocation *)address - 1;
    used -= made->size;
    free(made);
    return CUDA_SUCCESS;
}
CUresult cuMemGetInfo(size_t *free_bytes, size_t *total) { *free_bytes = (size_t)70 << 30; *total = (size_t)80 << 30; return CUDA_SUCCESS; }
CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    CALL;
    if (!(flags & CU_MEMHOSTALLOC_PORTABLE)) return CUDA_ERROR_INVALID_VALUE;
    *address = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    return CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void *address) { free(address); return CUDA_SUCCESS; }

CUresult cuMemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t size, CUstream stream) { CALL; memcpy((void *)dst, src, size); return CUDA_SUCCESS; }
CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t size, CUstream stream) { CALL; memcpy(dst, (void *)src, size); return CUDA_SUCCESS; }
CUresult cuMemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) { CALL; memmove((void *)dst, (void *)src, size); return CUDA_SUCCESS; }
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream) {
    CALL;
    if (copy->srcMemoryType != CU_MEMORYTYPE_DEVICE || copy->dstMemoryType != CU_MEMORYTYPE_DEVICE || copy->srcXInBytes ||
        copy->srcY || copy->dstXInBytes || copy->dstY || copy->srcPitch < copy->WidthInBytes || copy->dstPitch < copy->WidthInBytes)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t row = 0; row < copy->Height; row++)
        memcpy((char *)copy->dstDevice + row * copy->dstPitch, (char *)copy->srcDevice + row * copy->srcPitch, copy->WidthInBytes);
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream stream) { CALL; memset((void *)dst, value, count); return CUDA_SUCCESS; }
CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t count, CUstream stream) {
    CALL;
    for (size_t i = 0; i < count; i++) ((unsigned short *)dst)[i] = value;
    return CUDA_SUCCESS;
}
CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count, CUstream stream) {
    CALL;
    for (size_t i = 0; i < count; i++) ((unsigned *)dst)[i] = value;
    return CUDA_SUCCESS;
}

/* Every module has one kernel, scale(u64, u32, f32), and one global variable. */
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    CALL;
    if (strstr(image, "bogus")) {
        for (unsigned i = 0; i < count; i++)
            if (options[i] == CU_JIT_ERROR_LOG_BUFFER) {
                if (options[i + 1] != CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) return CUDA_ERROR_UNKNOWN;
                snprintf(values[i], (size_t)values[i + 1], "ptxas application ptx input, line 3; error   : Parsing error near 'bogus'");
            }
        return CUDA_ERROR_INVALID_PTX;
    }
    *module = malloc(16);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { CALL; return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    struct function *made = malloc(sizeof *made);
    made->name = strdup(name);
    *function = (CUfunction)made;
    return strcmp(name, "missing") ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuModuleGetFunctionCount(unsigned *count, CUmodule module) { *count = 1; return CUDA_SUCCESS; }
CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned count, CUmodule module) {
    for (unsigned i = 0; i < count; i++) functions[i] = (CUfunction)&the_function;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal(CUdeviceptr *address, size_t *size, CUmodule module, const char *name) {
    *address = 0xABC00;
    *size = 64;
    return strcmp(name, "missing") ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuFuncGetName(const char **name, CUfunction function) { *name = ((struct function *)function)->name; return CUDA_SUCCESS; }
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
    static const size_t offsets[] = {0, 8, 12}, sizes[] = {8, 4, 4};
    if (index >= 3) return CUDA_ERROR_INVALID_VALUE;
    *offset = offsets[index];
    *size = sizes[index];
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) { *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? 17 : 512; return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { CALL; return CUDA_SUCCESS; }

static void record(const unsigned *grid_block_shared, void **parameters) {
    for (int i = 0; i < 7; i++) last_launch[i] = grid_block_shared[i];
    last_launch[7] = parameters ? *(unsigned long long *)parameters[0] : 0;
    last_launch[8] = last_launch[9] = 0;
}
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared, CUstream stream, void **parameters, void **extra) {
    CALL;
    unsigned shape[] = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared};
    record(shape, parameters);
    return extra ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    CALL;
    unsigned shape[] = {config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ,
                        config->sharedMemBytes};
    record(shape, parameters);
    for (unsigned i = 0; i < config->numAttrs; i++) {
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            last_launch[8] = 100 * config->attrs[i].value.clusterDim.x + 10 * config->attrs[i].value.clusterDim.y + config->attrs[i].value.clusterDim.z;
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) last_launch[9] = config->attrs[i].value.cooperative;
    }
    return extra ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* Graphs do their nodes in the order in which they were added. A node depends on nodes of its own graph. */
struct node { int kind; CUDA_KERNEL_NODE_PARAMS kernel; unsigned long long first; CUDA_MEMCPY3D copy; CUDA_MEMSET_NODE_PARAMS fill;
              struct graph *child; CUgraphConditionalHandle handle; unsigned dependencies; };
struct graph { int count; struct node *nodes[64]; };
static struct graph *capturing;
static int live_graphs;

CUresult cuGraphCreate(CUgraph *graph, unsigned flags) { CALL; live_graphs++; *graph = calloc(1, sizeof(struct graph)); return CUDA_SUCCESS; }
CUresult cuGraphDestroy(CUgraph graph) { CALL; live_graphs--; return CUDA_SUCCESS; }
int fake_live_graphs(void) { return live_graphs; }
int fake_node_kind(CUgraph graph, int i) { return ((struct graph *)graph)->nodes[i]->kind * 10 + ((struct graph *)graph)->nodes[i]->dependencies; }

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, struct node made) {
    struct graph *into = (struct graph *)graph;
    for (size_t i = 0; i < count; i++) {
        int found = 0;
        for (int j = 0; j < into->count; j++) found |= into->nodes[j] == (struct node *)dependencies[i];
        for (size_t j = 0; j < i; j++) if (dependencies[j] == dependencies[i]) found = 0;
        if (!found) return CUDA_ERROR_INVALID_VALUE;
    }
    made.dependencies = (unsigned)count;
    into->nodes[into->count] = malloc(sizeof made);
    *into->nodes[into->count] = made;
    *node = (CUgraphNode)into->nodes[into->count++];
    return CUDA_SUCCESS;
}
static void keep_kernel(struct node *node, const CUDA_KERNEL_NODE_PARAMS *parameters) {
    node->kernel = *parameters;
    node->first = parameters->kernelParams ? *(unsigned long long *)parameters->kernelParams[0] : 0;
}
CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *d, size_t n, const CUDA_KERNEL_NODE_PARAMS *parameters) {
    CALL;
    struct node made = {1};
    keep_kernel(&made, parameters);
    return parameters->func && !parameters->extra ? add(node, graph, d, n, made) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *d, size_t n, const CUDA_MEMCPY3D *copy, CUcontext context) {
    CALL;
    struct node made = {2};
    made.copy = *copy;
    return context == (CUcontext)0x1000 ? add(node, graph, d, n, made) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *d, size_t n, const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context) {
    CALL;
    struct node made = {3};
    made.fill = *fill;
    return context == (CUcontext)0x1000 ? add(node, graph, d, n, made) : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *d, size_t n) { CALL; struct node made = {4}; return add(node, graph, d, n, made); }
CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *d, size_t n, CUgraph child) {
    CALL;
    struct node made = {5};
    made.child = (struct graph *)child;
    return add(node, graph, d, n, made);
}
CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle, CUgraph graph, CUcontext context, unsigned value, unsigned flags) {
    CALL;
    *handle = 0xC0FFEE;
    return context == (CUcontext)0x1000 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *d, const CUgraphEdgeData *data, size_t n, CUgraphNodeParams *parameters) {
    CALL;
    static CUgraph bodies[2];
    struct node made = {6};
    if (parameters->type != CU_GRAPH_NODE_TYPE_CONDITIONAL || data || parameters->conditional.handle != 0xC0FFEE ||
        parameters->conditional.ctx != (CUcontext)0x1000)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < parameters->conditional.size; i++) bodies[i] = calloc(1, sizeof(struct graph));
    parameters->conditional.phGraph_out = bodies;
    made.child = (struct graph *)bodies[0];
    return add(node, graph, d, n, made);
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *data, size_t count) {
    CALL;
    if (count != 1 || data->from_port != CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC || data->to_port || data->type != CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (((struct node *)from[0])->kind != 1 || ((struct node *)to[0])->kind != 1 || ((struct node *)to[0])->dependencies) return CUDA_ERROR_INVALID_VALUE;
    ((struct node *)to[0])->dependencies = 9;
    return CUDA_SUCCESS;
}
/* An upload is not ordered with launches in other streams, nor with the end of the graph. `number` is 0 once launched. */
struct executable { struct graph *graph; int number; };
CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
    CALL;
    struct executable *made = calloc(1, sizeof *made);
    made->graph = (struct graph *)graph;
    *executable = (CUgraphExec)made;
    return CUDA_SUCCESS;
}
CUresult cuGraphUpload(CUgraphExec executable, CUstream stream) {
    CALL;
    ((struct executable *)executable)->number = *behind(stream) = ++uploads;
    return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec executable) {
    CALL;
    if (is_uploading(((struct executable *)executable)->number)) return CUDA_ERROR_UNKNOWN;
    free(executable);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *parameters) { CALL; keep_kernel((struct node *)node, parameters); return CUDA_SUCCESS; }
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext context) { CALL; ((struct node *)node)->copy = *copy; return CUDA_SUCCESS; }
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context) { CALL; ((struct node *)node)->fill = *fill; return CUDA_SUCCESS; }
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id, const CUkernelNodeAttrValue *value) {
    CALL;
    if (id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) last_launch[8] = 100 * value->clusterDim.x + 10 * value->clusterDim.y + value->clusterDim.z;
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) last_launch[9] = value->cooperative;
    return CUDA_SUCCESS;
}
static CUresult run(struct graph *graph) {
    for (int i = 0; i < graph->count; i++) {
        struct node *node = graph->nodes[i];
        const CUDA_KERNEL_NODE_PARAMS *k = &node->kernel;
        const CUDA_MEMCPY3D *c = &node->copy;
        if (node->kind == 1) {
            unsigned shape[] = {k->gridDimX, k->gridDimY, k->gridDimZ, k->blockDimX, k->blockDimY, k->blockDimZ, k->sharedMemBytes};
            for (int j = 0; j < 7; j++) last_launch[j] = shape[j];
            last_launch[7] = node->first;
        } else if (node->kind == 2) {
            char *dst = (char *)c->dstDevice, *src = c->srcMemoryType == CU_MEMORYTYPE_HOST ? (char *)c->srcHost : (char *)c->srcDevice;
            if (c->dstMemoryType != CU_MEMORYTYPE_DEVICE || c->Depth != 1) return CUDA_ERROR_INVALID_VALUE;
            for (size_t row = 0; row < c->Height; row++) memmove(dst + row * c->dstPitch, src + row * c->srcPitch, c->WidthInBytes);
        } else if (node->kind == 3) {
            for (size_t j = 0; j < node->fill.width * node->fill.height; j++)
                memcpy((char *)node->fill.dst + j * node->fill.elementSize, &node->fill.value, node->fill.elementSize);
        } else if (node->kind == 5) {
            CUresult code = run(node->child);
            if (code != CUDA_SUCCESS) return code;
        }
    }
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream) {
    CALL;
    struct executable *launched = (struct executable *)executable;
    if (launched->number > *behind(stream)) return CUDA_ERROR_UNKNOWN;
    launched->number = 0;
    return run(launched->graph);
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) { *count = ((struct graph *)graph)->count; return CUDA_SUCCESS; }
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    CALL;
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
    capturing = calloc(1, sizeof *capturing);
    return CUDA_SUCCESS;
}
void fake_enqueue(CUdeviceptr dst, int value) {
    CUgraphNode node;
    struct node made = {3};
    made.fill = (CUDA_MEMSET_NODE_PARAMS){.dst = dst, .value = value, .elementSize = 1, .width = 16, .height = 1};
    add(&node, (CUgraph)capturing, NULL, 0, made);
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) { CALL; live_graphs++; *graph = (CUgraph)capturing; capturing = NULL; return CUDA_SUCCESS; }

CUresult cuGetErrorName(CUresult code, const char **text) { *text = code == CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER"; return CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult code, const char **text) { *text = "as the fake says"; return CUDA_SUCCESS; }

/* What cuda.bindings looks functions up with: the newest version of a symbol that is defined here. */
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status) {
    static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
    Dl_info own;
    dladdr((void *)&fake_fail, &own);
    void *self = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    char name[256];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
        *function = dlsym(self, name);
        if (*function) {
            if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
            return CUDA_SUCCESS;
        }
    }
    if (status) *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}
