// For wheels, which run with glibc 2.28 and any libstdc++ (CMakeLists.txt, MONOLANE_WHEEL): what
// our objects and the libstdc++ within ask of a newer glibc, from what 2.28 has. The linker brings
// each call of NAME here, by --wrap=NAME. The old versions compute the same numbers: glibc 2.29
// took a check of errors off its mathematics, and 2.34 moved its threads into another file.
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>

#if defined(__x86_64__)
#define MONOLANE_FIRST "GLIBC_2.2.5"
#define MONOLANE_AFFINITY "GLIBC_2.3.4"
#else
#define MONOLANE_FIRST "GLIBC_2.17"  // Arm's first
#define MONOLANE_AFFINITY "GLIBC_2.17"
#endif

// Declares old_NAME as the NAME that glibc gave that version to.
#define MONOLANE_OLD(version, name)                             \
  __asm__(".symver monolane_old_" #name "," #name "@" version); \
  extern "C" decltype(name) monolane_old_##name

extern "C" {
double exp(double);
double exp2(double);
double log(double);
int __pthread_key_create(pthread_key_t*, void (*)(void*));

// libstdc++ counts references without locks while this is not 0: glibc 2.32 has it.
char __libc_single_threaded = 0;
}

MONOLANE_OLD(MONOLANE_FIRST, exp);
MONOLANE_OLD(MONOLANE_FIRST, log);
MONOLANE_OLD(MONOLANE_FIRST, exp2);
MONOLANE_OLD(MONOLANE_FIRST, pthread_create);
MONOLANE_OLD(MONOLANE_FIRST, pthread_join);
MONOLANE_OLD(MONOLANE_FIRST, pthread_once);
MONOLANE_OLD(MONOLANE_FIRST, __pthread_key_create);
MONOLANE_OLD(MONOLANE_AFFINITY, pthread_setaffinity_np);

extern "C" {

double __wrap_exp(double x) { return monolane_old_exp(x); }
double __wrap_exp2(double x) { return monolane_old_exp2(x); }
double __wrap_log(double x) { return monolane_old_log(x); }

// Before 2.33 it was a function of the header alone.
int __wrap_fstat(int file, struct stat* found) {
  return static_cast<int>(syscall(SYS_fstat, file, found));
}

int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                          void* given) {
  return monolane_old_pthread_create(thread, attributes, run, given);
}

int __wrap_pthread_join(pthread_t thread, void** said) {
  return monolane_old_pthread_join(thread, said);
}

int __wrap_pthread_once(pthread_once_t* once, void (*run)()) {
  return monolane_old_pthread_once(once, run);
}

int __wrap___pthread_key_create(pthread_key_t* key, void (*end)(void*)) {
  return monolane_old___pthread_key_create(key, end);
}

int __wrap_pthread_setaffinity_np(pthread_t thread, size_t size, const cpu_set_t* set) {
  return monolane_old_pthread_setaffinity_np(thread, size, set);
}

}  // extern "C"
