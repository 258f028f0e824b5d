// Chosen SMs stream from the L2, each CTA its own piece again and again, DEPTH loads of 16 bytes per thread in flight;
// one thread of another SM meanwhile follows pointers. How fast do the SMs read, and how long does a load take?

#ifndef DEPTH
#define DEPTH 4
#endif

__device__ __forceinline__ uint4 load(const uint4* pointer) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(pointer));
    return v;
}

__device__ unsigned read_piece(const uint4* piece, int rows, int passes) {
    unsigned sum = 0;
    for (int pass = 0; pass < passes; ++pass) {
#pragma unroll 1
        for (int row = 0; row < rows; row += DEPTH) {
            uint4 v[DEPTH];
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) v[i] = load(piece + (row + i) * blockDim.x + threadIdx.x);
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        }
    }
    return sum;
}

// The grid fills the GPU exactly. `rank_of_sm`: at least 0, an SM that reads; -2, the one that chases; else idle. Of an
// SM's CTAs the first `readers` read. `cycles`: of each CTA by rank; the last element is the mean of a chasing load.
extern "C" __global__ void __launch_bounds__(1024, 2) stream(const uint4* data, int rows, int passes, const int* rank_of_sm, int readers,
                                  unsigned* arrived, unsigned* slots, const unsigned* next, int hops, float* cycles,
                                  unsigned* sink) {
    __shared__ int slot;
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0) slot = atomicAdd(&slots[sm], 1);
    __syncthreads();
    const int rank = rank_of_sm[sm];
    const int cta = rank * readers + slot;
    const bool reads = rank >= 0 && slot < readers, chases = rank == -2 && slot == 0;
    const uint4* piece = data + static_cast<size_t>(cta) * rows * blockDim.x;
    unsigned sum = reads ? read_piece(piece, rows, 1) : 0, at = 0;
    if (chases && threadIdx.x == 0) {
        for (int i = 0; i < 1024; ++i) asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(next + at));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (*reinterpret_cast<volatile unsigned*>(arrived) < gridDim.x) {}
    }
    __syncthreads();
    long long start = clock64();
    if (reads) {
        sum ^= read_piece(piece, rows, passes);
        __syncthreads();
        if (threadIdx.x == 0) cycles[cta] = static_cast<float>(clock64() - start);
    }
    if (chases && threadIdx.x == 0) {
        while (clock64() - start < 4000) {}  // the others are under way
        start = clock64();
        for (int i = 0; i < hops; ++i) asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(next + at));
        sum ^= at;
        if (sum != 0xffffffffu) cycles[gridDim.x] = static_cast<float>(clock64() - start) / hops;
    }
    if (sum == 0x12345678u) *sink = sum;
}

// A grid of as many CTAs as SMs are wanted, wherever they are placed: the rows of a buffer in turns, `passes` times.
extern "C" __global__ void __launch_bounds__(1024, 2) launched(const uint4* data, int rows, int passes, unsigned* sms,
                                                               float* cycles, unsigned* sink) {
    unsigned sm, sum = 0;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    const long long start = clock64();
    for (int pass = 0; pass < passes; ++pass) {
#pragma unroll 1
        for (int row = blockIdx.x; row < rows; row += DEPTH * gridDim.x) {
            uint4 v[DEPTH];
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) {
                const size_t at = min(row + i * gridDim.x, rows - 1);
                v[i] = load(data + at * blockDim.x + threadIdx.x);
            }
#pragma unroll
            for (int i = 0; i < DEPTH; ++i) sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        sms[blockIdx.x] = sm;
        cycles[blockIdx.x] = static_cast<float>(clock64() - start);
    }
    if (sum == 0x12345678u) *sink = sum;
}
