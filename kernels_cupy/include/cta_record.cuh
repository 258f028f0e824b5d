// Where and when each CTA of a launch ran. `CtaRecord record;`, the first line of a kernel, is an empty object and no code
// unless RECORD_CTAS is 1. Then it lives as long as the CTA, and fills the CTA's line of `cta_records`.
//
// A CTA starts when its first thread gets to that line, and ends when the last of its warps leaves the kernel (the warp's
// first thread), early returns included; its stores may still be on their way. The start is stored at once, and each warp
// raises the end by two reductions in the L2, which nobody waits for. Nothing stays in registers meanwhile: who this is is
// read anew, out of the compiler's sight. Grids and CTAs are one-dimensional.
//
// `stamp(moment, step)` on the way notes when the CTA's first thread got there, if STAMPED_STEPS > 0 says that there is
// room for so many steps of a loop. It is no code otherwise.
#pragma once

#ifndef RECORD_CTAS
#define RECORD_CTAS 0
#endif
#ifndef STAMPED_STEPS
#define STAMPED_STEPS 0
#endif

// What a CTA has come to: its place is found, the copies of a step are under way, their data is there, it is multiplied,
// results are ready to be sent, and sent.
enum Moment { kPlaced, kIssued, kArrived, kMultiplied, kReady, kSent, kMoments };

#if RECORD_CTAS

// Nanoseconds are of the GPU's one timer, cycles of the SM's own clock.
struct CtaTimes {
    unsigned long long sm, start_ns, start_clock, end_ns, end_clock;
};

// The host sets the pointers: to a record of zeros for each CTA of the launch, and to its stamps, clocks [step][moment]
// of 32 bits, zeros too. In constant memory, so that only the first CTA of an SM waits to know where they are.
__constant__ struct {
    CtaTimes *times;
    unsigned (*stamps)[STAMPED_STEPS > 0 ? STAMPED_STEPS : 1][kMoments];
} cta_records;

// A special register of PTX (`name`) of 32 or 64 bits, read where this is written, and each time.
#define GPUSIM_SPECIAL_REGISTER_32(value, name) asm volatile("mov.u32 %0, %%" name ";" : "=r"(value)::"memory")
#define GPUSIM_SPECIAL_REGISTER_64(value, name) asm volatile("mov.u64 %0, %%" name ";" : "=l"(value)::"memory")

struct CtaRecord {
    __device__ __forceinline__ CtaRecord() {
        unsigned thread, cta, sm;
        unsigned long long clock, ns;
        GPUSIM_SPECIAL_REGISTER_32(thread, "tid.x");
        if (thread != 0) return;
        GPUSIM_SPECIAL_REGISTER_64(clock, "clock64");
        GPUSIM_SPECIAL_REGISTER_64(ns, "globaltimer");
        GPUSIM_SPECIAL_REGISTER_32(sm, "smid");
        GPUSIM_SPECIAL_REGISTER_32(cta, "ctaid.x");
        CtaTimes &times = cta_records.times[cta];
        times.sm = sm, times.start_ns = ns, times.start_clock = clock;
    }

    __device__ __forceinline__ ~CtaRecord() {
        unsigned lane, cta;
        unsigned long long clock, ns;
        GPUSIM_SPECIAL_REGISTER_32(lane, "laneid");
        if (lane != 0) return;
        GPUSIM_SPECIAL_REGISTER_64(clock, "clock64");
        GPUSIM_SPECIAL_REGISTER_64(ns, "globaltimer");
        GPUSIM_SPECIAL_REGISTER_32(cta, "ctaid.x");
        CtaTimes &times = cta_records.times[cta];
        atomicMax(&times.end_ns, ns);
        atomicMax(&times.end_clock, clock);
    }
};

__device__ __forceinline__ void stamp(Moment moment, int step = 0) {
    if constexpr (STAMPED_STEPS == 0) return;
    unsigned thread, cta, clock;
    GPUSIM_SPECIAL_REGISTER_32(thread, "tid.x");
    if (thread != 0 || step >= STAMPED_STEPS) return;
    GPUSIM_SPECIAL_REGISTER_32(clock, "clock");
    GPUSIM_SPECIAL_REGISTER_32(cta, "ctaid.x");
    cta_records.stamps[cta][step][moment] = clock;
}

#undef GPUSIM_SPECIAL_REGISTER_32
#undef GPUSIM_SPECIAL_REGISTER_64

#else

struct CtaRecord {
    __device__ __forceinline__ CtaRecord() {}  // written out, so that the compiler does not report an unused object
};

__device__ __forceinline__ void stamp(Moment, int = 0) {}

#endif
