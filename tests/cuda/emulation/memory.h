// Memory as an SM sees it. Stores that other SMs may read wait in the SM's buffer and drain late
// and in any order, but for stores to the same place; the SM's own loads see them at once, and
// fences, releases and atomics on the same place drain them first. Copies by the engine read what
// all SMs see, land late and in any order, and poison their target until then. mbarriers are
// counted here too, because copies complete on them.
#pragma once

#include "schedule.h"

namespace emulator {

constexpr u8 POISON = 0xff;  // a NaN in float, bf16, f16 and e4m3

// ---- stores on their way -----------------------------------------------------------------------
void write_now(u8* at, u64 value, u32 bytes);
void drain_some(StoreBuffer& b);  // each with a chance of a half
void drain_all(StoreBuffer& b);
void drain_at(StoreBuffer& b, const void* pointer, u32 bytes);
void queue_drain(Block& block);

void check_aligned(const void* at, u32 bytes, const char* what);
// Of several devices, that something lies in the memory of the lane's own.
void check_own(const void* at, const char* what);
// What another device stores, in order and out of it, is for loads of system scope.
void check_scope(const void* at);

void store_late(void* to, u64 value, u32 bytes);
// System scope: to another device it goes over the link, late and in any order but for stores to
// the same place.
void store_across(void* to, u64 value, u32 bytes);
u64 observe_word(const void* from, u32 bytes);
void fence();        // everything that this SM has stored is visible before anything after
void fence_links();  // and on other devices

// ---- mbarrier ----------------------------------------------------------------------------------
void init_barrier(u64* at, u32 arrivals);
void arrive(u64* at, u32 bytes = 0);
bool passed(const u64* at, u32 parity);

// ---- copies ------------------------------------------------------------------------------------
void land(const Copy& c);
void check_copy(const void* shared, const void* other, u32 bytes);
void fly(Copy c);
Pending& pending();  // the lane's
void commit();
void retire(Lane& l, size_t keep);

}  // namespace emulator
