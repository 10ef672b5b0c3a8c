// A CUDA driver for the tests: memory is the host's, kernels do nothing, and launches are written
// to a log as the driver would see them. Declared by hand from the driver's documentation, so that
// a mistake in the ctypes layer meets real C calling conventions.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct Attribute {
  int id;
  char pad[4];
  union {
    char bytes[64];
    unsigned words[16];
  } value;
};
struct Config {
  unsigned grid[3], block[3], shared;
  void* stream;
  Attribute* attributes;
  unsigned count;
};

static char text[1 << 16];
static int pending = 0;
template <typename... T>
static void note(const char* format, T... values) {
  size_t used = strlen(text);
  snprintf(text + used, sizeof(text) - used, format, values...);
}

extern "C" {
const char* stub_log() { return text; }
void stub_clear() { text[0] = 0; }
void stub_pending(int polls) { pending = polls; }

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { return *context = &pending, 0; }
int cuCtxSetCurrent(void* context) { return context == &pending ? 0 : 201; }
int cuDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 16 ? 132 : attribute == 75 ? 9 : attribute == 97 ? 232448 : 0;
  return 0;
}
int cuDeviceGetName(char* name, int length, int) { return snprintf(name, length, "Stub"), 0; }
int cuDriverGetVersion(int* version) { return *version = 13010, 0; }
int cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = 5, *total = 6000000000, 0; }
int cuGetErrorString(int status, const char** out) {
  return *out = status == 2 ? "out of memory" : "some error", 0;
}
int cuModuleLoadData(void** module, const void* image) {
  if (memcmp(image, "cub\0in", 6) != 0) return 200;
  return *module = text, 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (module != text) return 400;
  return *function = reinterpret_cast<void*>(0x7f0000001000 + strlen(name)), 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  return note("attribute %p %d=%d\n", function, attribute, value), 0;
}
int cuOccupancyMaxActiveClusters(int* count, void*, const Config* c) {
  return *count = 132 / c->attributes[0].value.words[0], 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void*, int threads, size_t shared) {
  return *count = shared > 200000 ? 1 : 2048 / threads, 0;
}
int cuLaunchKernelEx(const Config* c, void* function, void** params, void** extra) {
  note("launch %p grid %u,%u,%u block %u,%u,%u shared %u stream %p param %llx extra %p", function,
       c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
       c->stream, *static_cast<unsigned long long*>(params[0]), static_cast<void*>(extra));
  for (unsigned i = 0; i < c->count; ++i) {
    const Attribute& a = c->attributes[i];
    note(" [%d: %u %u %u]", a.id, a.value.words[0], a.value.words[1], a.value.words[2]);
  }
  return note("\n"), 0;
}
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  if (bytes > 1u << 30) return 2;
  return *address = reinterpret_cast<uint64_t>(malloc(bytes)), 0;
}
int cuMemFree_v2(uint64_t address) { return free(reinterpret_cast<void*>(address)), 0; }
int cuMemHostAlloc(void** host, size_t bytes, unsigned flags) {
  return *host = malloc(bytes), flags == 3 ? 0 : 1;
}
int cuMemHostGetDevicePointer_v2(uint64_t* address, void* host, unsigned flags) {
  return *address = reinterpret_cast<uint64_t>(host), flags == 0 ? 0 : 1;
}
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  return memcpy(reinterpret_cast<void*>(to), from, bytes), 0;
}
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  return memcpy(to, reinterpret_cast<void*>(from), bytes), 0;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  return memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), stream ? 1 : 0;
}
int cuMemsetD32_v2(uint64_t to, unsigned word, size_t count) {
  for (size_t i = 0; i < count; ++i) reinterpret_cast<unsigned*>(to)[i] = word;
  return 0;
}
int cuEventCreate(void** event, unsigned) { return *event = malloc(8), 0; }
int cuEventDestroy_v2(void* event) { return free(event), 0; }
int cuEventRecord(void* event, void* stream) {
  return note("record %d %p\n", event != nullptr, stream), 0;
}
int cuEventQuery(void*) { return pending-- > 0 ? 600 : 0; }
int cuEventElapsedTime_v2(float* ms, void*, void*) { return *ms = 2.5f, 0; }
int cuStreamCreate(void** stream, unsigned flags) {
  return *stream = reinterpret_cast<void*>(0x7f00deadbeef), flags == 0 ? 0 : 1;
}
int cuStreamBeginCapture_v2(void* stream, int mode) {
  return note("capture %p %d\n", stream, mode), 0;
}
int cuStreamEndCapture(void* stream, void** graph) { return *graph = stream, 0; }
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return *executable = graph, flags == 0 ? 0 : 1;
}
int cuGraphLaunch(void* executable, void* stream) {
  return note("graph %p %p\n", executable, stream), 0;
}
}
