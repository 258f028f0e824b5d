// Row softmax in the textbook's order: the maximum, then the sum, then the quotients. One row to GROUP threads, kept in
// registers between the passes. With VARLEN the sequences of the batch are padded to one length, and have lengths of their
// own: padded rows see no key, and no row sees padded keys.

#include "cta_record.cuh"
#include "row_softmax.cuh"
#include "softmax.cuh"

constexpr int ROWS = THREADS / GROUP;
constexpr int WARPS = GROUP / 32;  // per row

// Combines the warps of a group; `parts` holds a float per warp of the CTA.
template <class Combine>
__device__ __forceinline__ float across_warps(float x, float *parts, Combine combine) {
    if constexpr (WARPS == 1) return x;
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    const float *group = parts + threadIdx.x / GROUP * WARPS;
    x = group[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) x = combine(x, group[w]);
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax(const T *s, T *p,
#if VARLEN
            const int *query_lengths, const int *key_lengths,
#endif
            int rows, int keys, int window, int blocks, int heads) {
    CtaRecord record;
    extern __shared__ float parts[];
    int rank = threadIdx.x % GROUP;
    int matrix = blockIdx.x / blocks, number = blockIdx.x % blocks * ROWS + threadIdx.x / GROUP;
#if VARLEN
    int own_rows = query_lengths[matrix / heads], own_keys = key_lengths[matrix / heads];
#else
    int own_rows = rows, own_keys = keys;
#endif
    bool valid = number < rows;
    long long start = (static_cast<long long>(matrix) * rows + (valid ? number : 0)) * keys;
    RegisterRow<T, GROUP, ITEMS> row;
    row.load(s + start, keys, Visible::keys_of(number, own_rows, own_keys, CAUSAL, window), rank);

    float maximum = -CUDART_INF_F;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) maximum = fmaxf(maximum, maximum_of<T>(row.x[i]));
    maximum = across_warps(lane_max(maximum), parts, [](float a, float b) { return fmaxf(a, b); });
    float shift = safe_maximum(maximum) * kLog2E, total = 0.0f;
#pragma unroll
    for (int i = 0; i < ITEMS; i++) for_each<T>(row.x[i], [&](float x) { total += exp2_fast(fmaf(x, kLog2E, -shift)); });
    total = across_warps(lane_sum(total), parts, [](float a, float b) { return a + b; });
    // exp(x - maximum) / total in one exponential; with an empty row, of -inf
    shift = total > 0.0f ? shift + __log2f(total) : CUDART_INF_F;
    if (valid) row.store(p + start, keys, rank, [=](float x) { return exp2_fast(fmaf(x, kLog2E, -shift)); });
}
