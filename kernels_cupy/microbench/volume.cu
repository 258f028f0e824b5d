// Public L2 benchmarks' pattern: CTA b reads the piece b mod `pieces` of 512 KiB, 64 accesses of 8 bytes per thread;
// and a stream: each thread of many small CTAs reads 8 bytes once.

extern "C" __global__ void __launch_bounds__(1024, 2) volume(const double* data, int pieces, int cached, double* sink) {
    const double* piece = data + static_cast<size_t>(blockIdx.x % pieces) * 64 * 1024 + threadIdx.x;
    double sum = 0;
    if (cached) {
#pragma unroll 8
        for (int i = 0; i < 64; ++i) sum += piece[i * 1024];
    } else {
#pragma unroll 8
        for (int i = 0; i < 64; ++i) sum += __ldcg(piece + i * 1024);
    }
    if (sum == 1.25) *sink = sum;
}

extern "C" __global__ void stream_read(const double* data, double* sink) {
    const double value = data[static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x];
    if (value == 1.25) *sink = value;
}
