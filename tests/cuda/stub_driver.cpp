// A CUDA driver for the tests, declared by hand from the driver's documentation: device memory is
// the host's, a "cubin" is the path of a library that holds emulated kernels, and a launch runs one
// to its end before it returns. So everything above the driver is proven as it is: the bindings,
// our calls of them, the kernels. What is asked wrongly is answered with an error, as a driver
// would.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

enum Status {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_CONTEXT = 201,
  INVALID_IMAGE = 200,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  LAUNCH_FAILED = 719,
  TOO_LARGE = 720,
};

struct Function {
  void* library;
  std::string name;
  int shared = 48 << 10;
};
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
// Those of tests/cuda/emulation.
struct Grid {
  void* kernel;
  const void* params;
  uint32_t blocks, threads, shared, cluster;
  void *memory, *memory_end;
};
struct Schedule {
  uint64_t seed;
  uint32_t sms, host_time, mood, store_count;
  void* stores;
  uint32_t skew, dies;
  uint64_t dies_at;
  float noise;
  uint32_t noise_seed;
  uint64_t ticks, turns, switches;
};

int contexts[2], stream;  // of devices 7 and 8
thread_local bool entered = false;
std::map<uint64_t, size_t> memory, pinned;
std::set<void*> streams;
using Work = std::vector<std::function<int()>>;
Work* capture = nullptr;  // what the launches in `captured` are kept in meanwhile
void* captured = nullptr;
int broken = 0;  // sticky, as after a fault in a kernel
uint64_t launches = 0, decodes = 0;

int setting(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text ? atoi(text) : otherwise;
}
bool holds(const std::map<uint64_t, size_t>& blocks, uint64_t address, size_t bytes) {
  auto after = blocks.upper_bound(address);
  if (after == blocks.begin()) return false;
  --after;
  return address + bytes <= after->first + after->second;
}
// The executor copies from and to pinned memory alone; a probe's copies are waited for at once.
bool host(const void* at, size_t bytes) {
  return setting("STUB_PAGEABLE", 0) || holds(pinned, reinterpret_cast<uint64_t>(at), bytes);
}
// Kernels that are not over, by the number of looks that find them so.
int late() {
  static int looks = setting("STUB_LATE", 0);
  return looks > 0 ? looks-- : 0;
}
// Freeing waits for them.
void await_kernels() {
  if (late() > 1 << 20) fputs("waits for ever\n", stderr), abort();
}
int state() { return broken ? broken : entered ? SUCCESS : INVALID_CONTEXT; }

int emulate(Function& f, const Grid& grid) {
  Schedule schedule{};
  schedule.seed = ++launches;
  schedule.sms = f.name == "monokernel" ? grid.blocks : setting("STUB_SMS", 4);
  schedule.host_time = 1;
  auto run = reinterpret_cast<const char* (*)(const Grid*, uint32_t, Schedule*)>(
      dlsym(f.library, "emulate"));
  decodes += f.name == "monokernel";
  const char* faulty = getenv("STUB_FAULT_IN");
  if (faulty && f.name == faulty) {
    broken = LAUNCH_FAILED;
  } else if (setting("STUB_FAULT_AT", 0) > 0 &&
             decodes == static_cast<uint64_t>(setting("STUB_FAULT_AT", 0))) {
    broken = LAUNCH_FAILED;
  } else if (const char* error = run(&grid, 1, &schedule)) {
    fprintf(stderr, "%s: %s\n", f.name.c_str(), error);
    broken = LAUNCH_FAILED;
  }
  return state();
}

}  // namespace

extern "C" {
int cuInit(unsigned flags) { return flags ? INVALID_VALUE : setting("STUB_INIT", 0); }
int cuDriverGetVersion(int* version) { return *version = setting("STUB_DRIVER", 13000), 0; }
int cuDeviceGetCount(int* count) { return *count = setting("STUB_GPUS", 1), 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = 7 + ordinal, ordinal > 1 ? 101 : 0; }
int cuDeviceGetName(char* name, int length, int device) {
  return snprintf(name, length, "Stub H200"), device == 7 || device == 8 ? 0 : INVALID_VALUE;
}
int cuDeviceCanAccessPeer(int* can, int device, int peer) {
  return *can = setting("STUB_PEERS", 1), device + peer == 15 ? 0 : INVALID_VALUE;
}
int cuCtxEnablePeerAccess(void* peer, unsigned flags) {
  return flags || peer < contexts || peer > contexts + 1 ? INVALID_VALUE
                                                         : setting("STUB_PEER_ACCESS", 0);
}
int cuStreamWaitEvent(void* s, void* event, unsigned flags) {
  return streams.count(s) && event && !flags ? state() : INVALID_HANDLE;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t{1} << 33, 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 16   ? setting("STUB_SMS", 4)
           : attribute == 17 ? setting("STUB_RUN_LIMIT", 0)
           : attribute == 75 ? setting("STUB_MAJOR", 9)
           : attribute == 76 ? 0
           : attribute == 38 ? 50 << 20
           : attribute == 97 ? 227 << 10
                             : -1;
  return (device == 7 || device == 8) && *value >= 0 ? 0 : INVALID_VALUE;
}
int cuDevicePrimaryCtxRetain(void** out, int device) {
  return *out = contexts + (device - 7), device == 7 || device == 8 ? 0 : INVALID_VALUE;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
  // Told to the test: whatever was not given back.
  fprintf(stderr, "released with %zu allocations, %zu pinned\n", memory.size(), pinned.size());
  return device == 7 || device == 8 ? 0 : INVALID_VALUE;
}
int cuCtxSetCurrent(void* other) {
  entered = other == contexts || other == contexts + 1;
  return entered ? 0 : INVALID_CONTEXT;
}
int cuMemGetInfo_v2(size_t* free, size_t* total) {
  *total = size_t{1} << 33;
  *free = static_cast<size_t>(setting("STUB_FREE_MB", 1 << 13)) << 20;
  return state();
}
int cuGetErrorString(int status, const char** text) {
  return *text = status == LAUNCH_FAILED ? "unspecified launch failure" : "some error", 0;
}
int cuGetErrorName(int, const char** text) { return *text = "SOME_ERROR", 0; }

int cuStreamCreate(void** out, unsigned flags) {
  *out = streams.empty() ? &stream : malloc(1);
  streams.insert(*out);
  return flags == 1 ? state() : INVALID_VALUE;
}
int cuStreamDestroy_v2(void* s) { return streams.erase(s) ? state() : INVALID_HANDLE; }
int cuEventCreate(void** out, unsigned flags) {
  return *out = malloc(8), flags == 2 || flags == 0 ? state() : INVALID_VALUE;
}
int cuEventElapsedTime_v2(float* ms, void* begin, void* end) {
  return *ms = 2.5f, begin && end && begin != end ? state() : INVALID_HANDLE;
}
int cuEventDestroy_v2(void* event) { return free(event), 0; }
int cuEventRecord(void*, void* s) { return streams.count(s) ? state() : INVALID_HANDLE; }
int cuEventQuery(void*) { return state() ? state() : late() ? 600 : 0; }

int cuMemAlloc_v2(uint64_t* out, size_t bytes) {
  if (bytes == 0) return INVALID_VALUE;
  if (bytes > size_t{1} << 30) return OUT_OF_MEMORY;
  void* at = aligned_alloc(256, (bytes + 255) / 256 * 256);
  memset(at, 0xff, bytes);
  *out = reinterpret_cast<uint64_t>(at);
  memory[*out] = bytes;
  return state();
}
int cuMemFree_v2(uint64_t address) {
  await_kernels();
  if (!memory.erase(address)) return INVALID_VALUE;
  return free(reinterpret_cast<void*>(address)), state();
}
int cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  if (flags != 3 || bytes == 0) return INVALID_VALUE;
  *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  memset(*out, 0xff, bytes);
  pinned[reinterpret_cast<uint64_t>(*out)] = bytes;
  return state();
}
int cuMemFreeHost(void* host) {
  await_kernels();
  if (!pinned.erase(reinterpret_cast<uint64_t>(host))) return INVALID_VALUE;
  return free(host), state();
}
int cuMemHostGetDevicePointer_v2(uint64_t* out, void* host, unsigned flags) {
  *out = reinterpret_cast<uint64_t>(host);
  return flags ? INVALID_VALUE : state();
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* s) {
  bool known = holds(memory, to, bytes) && host(from, bytes);
  if (!known || s != &stream) return INVALID_VALUE;
  return memcpy(reinterpret_cast<void*>(to), from, bytes), state();
}
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* s) {
  bool known = holds(memory, from, bytes) && host(to, bytes);
  if (!known || !streams.count(s)) return INVALID_VALUE;  // what looks beside the stream, too
  return memcpy(to, reinterpret_cast<void*>(from), bytes), state();
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* s) {
  if (!holds(memory, to, bytes) || s != &stream) return INVALID_VALUE;
  return memset(reinterpret_cast<void*>(to), value, bytes), state();
}

int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void* s) {
  if (!holds(memory, to, 4 * count) || s != &stream) return INVALID_VALUE;
  for (size_t i = 0; i < count; ++i) reinterpret_cast<unsigned*>(to)[i] = value;
  return state();
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* s) {
  if (!holds(memory, to, bytes) || !holds(memory, from, bytes) || s != &stream) {
    return INVALID_VALUE;
  }
  return memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes), state();
}

int cuModuleLoadData(void** out, const void* image) {
  *out = dlopen(static_cast<const char*>(image), RTLD_NOW | RTLD_LOCAL);
  return *out ? state() : INVALID_IMAGE;
}
int cuModuleUnload(void* module) { return dlclose(module) ? INVALID_HANDLE : state(); }
int cuModuleGetFunction(void** out, void* module, const char* name) {
  if (!dlsym(module, name)) return NOT_FOUND;
  *out = new Function{module, name};
  return state();
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  if (attribute == 14) return value == 1 ? 0 : INVALID_VALUE;  // clusters of more than 8
  if (attribute != 8 || value > 227 << 10) return INVALID_VALUE;
  static_cast<Function*>(function)->shared = value;
  return state();
}
int cuLaunchKernelEx(const Config* c, void* handle, void** params, void** extra) {
  Function& f = *static_cast<Function*>(handle);
  if (!streams.count(c->stream) || extra || static_cast<int>(c->shared) > f.shared) {
    return INVALID_VALUE;
  }
  bool cooperative = false;
  uint32_t cluster = 1;
  for (unsigned i = 0; i < c->count; ++i) {
    const unsigned* words = c->attributes[i].value.words;
    int id = c->attributes[i].id;
    if (id == 2) {
      cooperative = words[0] == 1;
    } else if (id == 4 && words[1] == 1 && words[2] == 1) {
      cluster = words[0];
    } else if (id != 6 || words[0] != 1) {
      return INVALID_VALUE;
    }
  }
  if (c->grid[0] % cluster) return INVALID_VALUE;
  if (f.name == "monokernel" && !cooperative) return INVALID_VALUE;
  if (cooperative && static_cast<int>(c->grid[0]) > setting("STUB_PLACES", 4)) return TOO_LARGE;
  if (state()) return state();
  auto number = [&](const char* what) {
    return reinterpret_cast<uint32_t (*)()>(dlsym(f.library, (f.name + what).c_str()))();
  };
  if (c->block[0] > number("_max_threads")) return INVALID_VALUE;
  // The driver copies the parameters, at their alignment.
  uint32_t bytes = number("_params_size");
  void* copy = aligned_alloc(64, (bytes + 63) / 64 * 64);
  memcpy(copy, params[0], bytes);
  Grid grid{dlsym(f.library, f.name.c_str()),
            copy,
            c->grid[0],
            c->block[0],
            c->shared,
            cluster,
            nullptr,
            nullptr};
  if (capture && c->stream == captured) {
    capture->push_back([grid, &f] { return emulate(f, grid); });
    return 0;
  }
  emulate(f, grid);
  free(copy);
  return 0;  // what goes wrong in a kernel shows later
}

int cuStreamBeginCapture_v2(void* s, int mode) {
  if (!streams.count(s) || mode != 2) return INVALID_VALUE;
  return captured = s, capture = new Work, 0;
}
int cuStreamEndCapture(void* s, void** graph) {
  if (s != captured) return INVALID_VALUE;
  return *graph = capture, capture = nullptr, 0;
}
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) {
  return *executable = graph, flags ? INVALID_VALUE : 0;
}
int cuGraphLaunch(void* executable, void* s) {
  if (!streams.count(s)) return INVALID_VALUE;
  for (auto& launch : *static_cast<Work*>(executable)) launch();
  return state();
}
int cuOccupancyMaxActiveClusters(int* count, void*, const Config* c) {
  bool asked = c->count == 1 && c->attributes[0].id == 4;
  return *count = asked ? 4 / c->attributes[0].value.words[0] : 0, asked ? 0 : INVALID_VALUE;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* count, void*, int threads, size_t shared) {
  return *count = threads <= 1024 && shared <= 227 << 10, 0;
}

// How cuda.bindings finds all of the above: the newest version of a name.
int cuGetProcAddress_v2(const char* name, void** out, int, uint64_t, int* found) {
  for (const char* version : {"_v2", ""}) {
    *out = dlsym(RTLD_DEFAULT, (std::string(name) + version).c_str());
    if (*out) break;
  }
  static void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  for (const char* version : {"_v2", ""}) {
    if (!*out && self) *out = dlsym(self, (std::string(name) + version).c_str());
  }
  if (found) *found = *out ? 0 : 1;
  return *out ? SUCCESS : NOT_FOUND;
}
int cuGetProcAddress(const char* name, void** out, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, nullptr);
}
}
