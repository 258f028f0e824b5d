// When and where each CTA of a launch starts. `spin_cycles` keeps CTAs resident until all have started.

extern "C" __global__ void cta_start(unsigned long long* start_ns, unsigned* sm, int spin_cycles) {
    extern __shared__ char shared[];
    unsigned long long now;
    unsigned here;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(here));
    if (threadIdx.x == 0) {
        start_ns[blockIdx.x] = now;
        sm[blockIdx.x] = here;
    }
    const long long begin = clock64();
    while (clock64() - begin < spin_cycles) {}
}
