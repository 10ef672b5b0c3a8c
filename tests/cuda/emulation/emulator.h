// The device in host memory: what primitives.cuh includes where MONOLANE_EMULATED is defined. Every
// CUDA thread is a fiber, all blocks of a launch are resident, and a seed draws the order of
// events, so that the kernels' own source runs under as many schedules as one likes, without a GPU.
//
// What it proves, for the schedules that were run:
// - results do not depend on the order of warps, of stores between SMs, of copies;
// - a value that another SM needs is published before it is announced: stores by primitives wait in
//   the SM's buffer, and drain late and out of order unless a fence or a release comes first;
// - nothing is read before it has arrived, or after it was given away: copies poison their target
//   with NaNs while they fly; shared memory begins poisoned, and ends so when its block leaves;
// - where grids are devices: nobody reads or copies from another device's memory, or stores there
// but
//   with system scope; what comes over a link, late and in any order, is read with system scope; a
//   device may start later than others, or stop for ever;
// - nobody waits for ever: deadlocks are reported with who waits where, and a poll that nothing can
//   end lets the clock run, so that the kernel's own watchdog reports it (or, without one, we do);
// - barriers and collectives are met by whole warps; copies have landed, aligned, within the
// block's
//   shared memory, with the bytes expected, before their block leaves; mbarriers are initialised
//   and get no more arrivals than they count.
//
// What it does not prove:
// - plain loads and stores, `*p = x`, reach memory at once and are not seen by the scheduler: a
//   missing fence after a plain store is not found, nor is a stale line of L1 or a missing acquire
//   (loads happen in program order), nor a missing proxy fence;
// - a fence orders the whole SM's stores, not those of one thread;
// - within a warp, lanes run in some order until they meet, poll or lose their turn: not in
//   lockstep, but also not interleaved instruction by instruction;
// - sums of matrix instructions, exp2 and log are rounded as the host does it; nothing about time.
//
// A schedule is a seed: it replays in any process, at any addresses, unless host_time is set.
#pragma once

#include "device.h"
