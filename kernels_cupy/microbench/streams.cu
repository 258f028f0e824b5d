// Streams of reads and writes, 16 bytes a thread, four rows in flight. A row is what a CTA's threads touch with one access
// each; CTA b takes rows b, b + CTAs, b + 2 CTAs, ...

__device__ __forceinline__ uint4 load(const uint4 *pointer) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(pointer));
    return v;
}

__device__ __forceinline__ unsigned read(const uint4 *data, long long rows, int first, int step) {
    unsigned sum = 0;
#pragma unroll 1
    for (long long row = first; row < rows; row += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const long long at = row + i * step;
            v[i] = at < rows ? load(data + at * blockDim.x + threadIdx.x) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) sum += v[i].x + v[i].y + v[i].z + v[i].w;
    }
    return sum;
}

// In pass r CTA b reads the rows of CTA (b + shift * r) mod CTAs.
extern "C" __global__ void __launch_bounds__(1024, 2)
    read_passes(const uint4 *data, long long rows, int passes, int shift, unsigned *sink) {
    unsigned sum = 0;
    for (int pass = 0; pass < passes; ++pass) sum += read(data, rows, (blockIdx.x + shift * pass) % gridDim.x, gridDim.x);
    if (sum == 0x12345678u) *sink = sum;
}

// Every CTA reads the whole buffer once.
extern "C" __global__ void __launch_bounds__(1024, 2) read_all(const uint4 *data, long long rows, unsigned *sink) {
    const unsigned sum = read(data, rows, 0, 1);
    if (sum == 0x12345678u) *sink = sum;
}

// The grid fills the GPU, a CTA per SM; the SMs of rank 0 and more share the rows, the others do nothing.
extern "C" __global__ void __launch_bounds__(1024, 1)
    read_chosen(const uint4 *data, long long rows, const int *rank_of_sm, int readers, unsigned *sink) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (rank_of_sm[sm] < 0) return;
    const unsigned sum = read(data, rows, rank_of_sm[sm], readers);
    if (sum == 0x12345678u) *sink = sum;
}

extern "C" __global__ void __launch_bounds__(1024, 2) write_rows(uint4 *data, long long rows, unsigned value) {
    for (long long row = blockIdx.x; row < rows; row += gridDim.x)
        data[row * blockDim.x + threadIdx.x] = make_uint4(value, value, value, value);
}

extern "C" __global__ void __launch_bounds__(1024, 2) copy_rows(const uint4 *from, uint4 *to, long long rows) {
#pragma unroll 1
    for (long long row = blockIdx.x; row < rows; row += 4 * gridDim.x) {
        uint4 v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const long long at = row + i * gridDim.x;
            if (at < rows) v[i] = load(from + at * blockDim.x + threadIdx.x);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const long long at = row + i * gridDim.x;
            if (at < rows) to[at * blockDim.x + threadIdx.x] = v[i];
        }
    }
}

// One CTA writes the same rows again and again; cycles until the last write has been performed.
extern "C" __global__ void write_again(uint4 *data, int rows, int passes, float *cycles) {
    __syncthreads();
    const long long begin = clock64();
    for (int pass = 0; pass < passes; ++pass)
#pragma unroll 4
        for (int row = 0; row < rows; ++row) {
            uint4 *at = data + row * blockDim.x + threadIdx.x;
            asm volatile("st.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(at), "r"(pass) : "memory");
        }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *cycles = static_cast<float>(clock64() - begin);
}
