// Merges the splits of a few rows of one head: O = sum of exp(LSE_split - LSE) O_split (traces/combine.py).
//
// Macros: T, DIM_V, ROWS per CTA, THREADS, TOKEN_MAJOR (layout bshd of O), LSE (whether the rows' own is stored).
#include "numbers.cuh"
#include "query_blocks.cuh"
#include "softmax.cuh"

constexpr int kRowThreads = THREADS / ROWS;

extern "C" __global__ void __launch_bounds__(THREADS)
    combine(const float *__restrict__ o_partial, const float *__restrict__ lse_partial, T *__restrict__ o,
            float *__restrict__ lse, int heads, int rows, int splits) {
    extern __shared__ float weights[];  // [ROWS, splits]
    int blocks = (rows + ROWS - 1) / ROWS, matrix = blockIdx.x / blocks, first = blockIdx.x % blocks * ROWS;
    int local = threadIdx.x / kRowThreads, lane = threadIdx.x % kRowThreads, row = first + local;
    float *weight = weights + local * splits;
    long long partial_row = static_cast<long long>(matrix) * splits * rows + row;

    float maximum = -CUDART_INF_F, total = 0.0f;
    if (row < rows) {
        for (int s = lane; s < splits; s += kRowThreads) {
            weight[s] = lse_partial[partial_row + static_cast<long long>(s) * rows];
            maximum = fmaxf(maximum, weight[s]);
        }
    }
    maximum = lane_max<kRowThreads>(maximum);
    float safe = safe_maximum(maximum);
    if (row < rows) {
        for (int s = lane; s < splits; s += kRowThreads) {
            weight[s] = exp2_fast((weight[s] - safe) * kLog2E);
            total += weight[s];
        }
    }
    total = lane_sum<kRowThreads>(total);
    __syncwarp();
    if (row >= rows) return;
    float inverse = safe_inverse(total);
    if (LSE && lane == 0)
        lse[static_cast<long long>(matrix) * rows + row] = total > 0.0f ? safe + logf(total) : -CUDART_INF_F;
    T *target = head_of<DIM_V, TOKEN_MAJOR>(o, matrix / heads, matrix % heads, heads, rows) +
                row * pitch_of<DIM_V, TOKEN_MAJOR>(heads);
    for (int column = lane; column < DIM_V; column += kRowThreads) {
        float sum = 0.0f;
#pragma unroll 4
        for (int s = 0; s < splits; s++)
            sum += weight[s] * o_partial[(partial_row + static_cast<long long>(s) * rows) * DIM_V + column];
        target[column] = from_float<T>(sum * inverse);
    }
}
