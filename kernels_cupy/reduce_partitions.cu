// Merges the partitions of all rows of a head, as vLLM's second kernel: with w_i = sum_i exp(max_i - max),
// O = sum_i w_i O_i / sum_i w_i (traces/algorithms/paged_decode.py).
//
// Macros: T, DIM_V, THREADS, TOKEN_MAJOR (layout bshd of O), VARLEN (sequences of unequal lengths are packed).
#include "cta_record.cuh"
#include "numbers.cuh"
#include "query_blocks.cuh"
#include "softmax.cuh"

constexpr int kWarps = THREADS / 32;
static_assert(DIM_V % 4 == 0, "four columns at a time");

// Partial results are [batch, heads, parts, rows, …]; a warp takes a row at a time.
extern "C" __global__ void __launch_bounds__(THREADS)
    reduce_partitions(const float *__restrict__ o_partial, const float *__restrict__ max_partial,
                      const float *__restrict__ sum_partial, T *__restrict__ o, float *__restrict__ lse,
#if VARLEN
                      const int *query_starts,
#endif
                      int batch, int heads, int rows, int parts) {
    CtaRecord record;
    extern __shared__ float weights[];  // [rows of a head, parts]
    int entry = blockIdx.x / heads, head = blockIdx.x % heads, first = 0, last = rows;
#if VARLEN
    first = query_starts[entry], last = query_starts[entry + 1], entry = 0;
#endif
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    long long matrix = static_cast<long long>(entry) * heads + head;
    for (int row = first + warp; row < last; row += kWarps) {
        const long long partial = matrix * parts * rows + row;
        float *weight = weights + (row - first) * parts;
        float maximum = -CUDART_INF_F, total = 0.0f;
        for (int i = lane; i < parts; i += 32)
            maximum = fmaxf(maximum, max_partial[partial + static_cast<long long>(i) * rows]);
        maximum = lane_max(maximum);
        float safe = safe_maximum(maximum);
        for (int i = lane; i < parts; i += 32) {
            long long at = partial + static_cast<long long>(i) * rows;
            total += weight[i] = sum_partial[at] * exp2_fast((max_partial[at] - safe) * kLog2E);
        }
        total = lane_sum(total);
        __syncwarp();
        float inverse = safe_inverse(total);
        if (lane == 0) lse[matrix * rows + row] = total > 0.0f ? safe + logf(total) : -CUDART_INF_F;
        T *target = head_of<DIM_V, TOKEN_MAJOR>(o, entry, head, heads, rows) +
                    row * pitch_of<DIM_V, TOKEN_MAJOR>(heads);
        for (int column = 4 * lane; column < DIM_V; column += 128) {
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 16
            for (int i = 0; i < parts; i++) {
                float4 part = *reinterpret_cast<const float4 *>(
                    o_partial + (partial + static_cast<long long>(i) * rows) * DIM_V + column);
                sum.x += weight[i] * part.x, sum.y += weight[i] * part.y;
                sum.z += weight[i] * part.z, sum.w += weight[i] * part.w;
            }
            *reinterpret_cast<uint2 *>(target + column) =
                make_uint2(pack<T>(sum.x * inverse, sum.y * inverse), pack<T>(sum.z * inverse, sum.w * inverse));
        }
    }
}
