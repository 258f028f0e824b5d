// Where and when each CTA of a launch ran. `CtaRecord record;`, the first line of a kernel, is an empty object and no code
// unless RECORD_CTAS is 1. Then it lives as long as the CTA, and fills the CTA's line of `cta_records`.
//
// A CTA starts when its first thread gets to that line, and ends when the last of its warps leaves the kernel (the warp's
// first thread), early returns included; its stores may still be on their way. The start is stored at once, and each warp
// raises the end by two reductions in the L2, which nobody waits for. Nothing stays in registers meanwhile: who this is is
// read anew, out of the compiler's sight. Grids and CTAs are one-dimensional.
#pragma once

#ifndef RECORD_CTAS
#define RECORD_CTAS 0
#endif

#if RECORD_CTAS

// Nanoseconds are of the GPU's one timer, cycles of the SM's own clock.
struct CtaTimes {
    unsigned long long sm, start_ns, start_clock, end_ns, end_clock;
};

// One for each CTA of the launch, of zeros; the host sets the pointer. In constant memory, so that only the first CTA of
// an SM waits to know where it is.
__constant__ CtaTimes *cta_records;

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
        CtaTimes &times = cta_records[cta];
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
        CtaTimes &times = cta_records[cta];
        atomicMax(&times.end_ns, ns);
        atomicMax(&times.end_clock, clock);
    }
};

#undef GPUSIM_SPECIAL_REGISTER_32
#undef GPUSIM_SPECIAL_REGISTER_64

#else

struct CtaRecord {
    __device__ __forceinline__ CtaRecord() {}  // written out, so that the compiler does not report an unused object
};

#endif
