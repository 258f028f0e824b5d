// Latency of an atomic from one SM to each of many addresses. An atomic executes at the home slice of its line, so the
// latency tells whether the line's home is in the SM's own L2 partition or in the other.

extern "C" __global__ void atomic_latency(unsigned* data, int addresses, int stride_words, int sm, int repeats,
                                          unsigned short* best_cycles) {
    unsigned here;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(here));
    if (here != sm || threadIdx.x != 0) return;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        for (int i = 0; i < addresses; ++i) {
            unsigned* address = data + static_cast<size_t>(i) * stride_words;
            unsigned value;
            const long long start = clock64();
            asm volatile("atom.global.add.u32 %0, [%1], 0;" : "=r"(value) : "l"(address) : "memory");
            // The clock may only be read again once the value is there.
            if (value == 0xffffffffu) __trap();
            const unsigned short cycles = static_cast<unsigned short>(clock64() - start);
            if (repeat == 0 || cycles < best_cycles[i]) best_cycles[i] = cycles;
        }
    }
}
