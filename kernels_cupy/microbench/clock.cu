// The SM clock: cycles of this SM, and nanoseconds of the GPU's timer, over the same stretch.
extern "C" __global__ void sm_clock(long long cycles, long long *found) {
    unsigned long long begin_ns, end_ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin_ns));
    const long long begin = clock64();
    while (clock64() - begin < cycles) {}
    const long long end = clock64();
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end_ns));
    found[0] = end - begin;
    found[1] = static_cast<long long>(end_ns - begin_ns);
}
