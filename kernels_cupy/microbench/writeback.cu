// Written data and what becomes of it, and CTAs that read the same tiles at nearly the same time.

// CTA b reads the rows of piece (b + shift) mod CTAs, one contiguous piece each; a row is one access per thread.
extern "C" __global__ void read_piece(const uint4 *data, long long rows, int shift, unsigned *sink) {
    const long long piece = (blockIdx.x + shift) % gridDim.x;
    const long long first = piece * rows / gridDim.x, last = (piece + 1) * rows / gridDim.x;
    unsigned sum = 0;
#pragma unroll 4
    for (long long row = first; row < last; ++row) {
        uint4 v;
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(data + row * blockDim.x + threadIdx.x));
        sum += v.x + v.y + v.z + v.w;
    }
    if (sum == 0x12345678u) *sink = sum;
}

extern "C" __global__ void write_piece(uint4 *data, long long rows, unsigned value) {
    const long long first = blockIdx.x * rows / gridDim.x, last = (blockIdx.x + 1) * rows / gridDim.x;
#pragma unroll 4
    for (long long row = first; row < last; ++row)
        data[row * blockDim.x + threadIdx.x] = make_uint4(value, value, value, value);
}

// Every CTA reads the same tiles of 64 KiB, one access per thread in flight; CTA b starts b * skew cycles late.
extern "C" __global__ void lockstep(const uint4 *data, int rows, int skew, unsigned *arrived, unsigned *sink) {
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (*reinterpret_cast<volatile unsigned *>(arrived) < gridDim.x) {}
        const long long begin = clock64();
        while (clock64() - begin < static_cast<long long>(blockIdx.x) * skew) {}
    }
    __syncthreads();
    unsigned sum = 0;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
        uint4 v;
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(data + row * static_cast<long long>(blockDim.x) + threadIdx.x));
        sum += v.x + v.y + v.z + v.w;
    }
    if (sum == 0x12345678u) *sink = sum;
}
