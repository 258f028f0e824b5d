// One thread follows pointers, each load waiting for the one before: through the L2 only, through the L1, in shared memory.

// All SMs together read the buffer, each piece of 16 KiB by one CTA.
extern "C" __global__ void touch(const uint4 *data, long long vectors, int passes, unsigned *sink) {
    unsigned seen = 0;
    for (int pass = 0; pass < passes; ++pass)
        for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < vectors; i += (long long)gridDim.x * blockDim.x) {
            uint4 v;
            asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(data + i));
            seen |= v.x ^ v.y ^ v.z ^ v.w;
        }
    if (seen == 0x12345678u) *sink = seen;
}

#define FOLLOW(load)                                                                 \
    const long long begin = clock64();                                               \
    for (int i = 0; i < hops; ++i) asm volatile(load : "+l"(at)::"memory");          \
    if (at == 1) *sink = 1;                                                          \
    *cycles = static_cast<float>(clock64() - begin) / hops;

// `at`: address of a line, which holds the address of the next one.
extern "C" __global__ void chase_l2(unsigned long long at, int hops, float *cycles, unsigned *sink) {
    FOLLOW("ld.global.cg.u64 %0, [%0];")
}

extern "C" __global__ void chase_l1(unsigned long long at, int hops, float *cycles, unsigned *sink) {
    for (int i = 0; i < 256; ++i) asm volatile("ld.global.ca.u64 %0, [%0];" : "+l"(at)::"memory");
    FOLLOW("ld.global.ca.u64 %0, [%0];")
}

extern "C" __global__ void chase_shared(int hops, float *cycles, unsigned *sink) {
    __shared__ unsigned next[64];
    const unsigned base = static_cast<unsigned>(__cvta_generic_to_shared(next));
    for (int i = 0; i < 64; ++i) next[i] = base + 4 * ((i + 33) % 64);
    unsigned at = base;
    const long long begin = clock64();
    for (int i = 0; i < hops; ++i) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at)::"memory");
    if (at == 1) *sink = 1;
    *cycles = static_cast<float>(clock64() - begin) / hops;
}
