// Merges the splits of a few rows: O = sum of exp(LSE_split - LSE) O_split (traces/combine.py). The rows of a CTA are
// of one head, or all rows of several.
//
// Macros: T, DIM_V, ROWS per CTA, THREADS, TOKEN_MAJOR (layout bshd of O), LSE (whether the rows' own is stored).
#include "cta_record.cuh"
#include "numbers.cuh"
#include "query_blocks.cuh"
#include "softmax.cuh"

constexpr int kRowThreads = THREADS / ROWS;
constexpr int kUnroll = DIM_V > 4 * kRowThreads ? 8 : 16;  // several columns a thread take more registers
static_assert(DIM_V % 4 == 0, "four columns at a time");

extern "C" __global__ void __launch_bounds__(THREADS)
    combine(const float *__restrict__ o_partial, const float *__restrict__ lse_partial, T *__restrict__ o,
            float *__restrict__ lse, int batch, int heads, int rows, int splits) {
    CtaRecord record;
    extern __shared__ float weights[];  // [ROWS, splits]
    int blocks = (rows + ROWS - 1) / ROWS, together = max(1, ROWS / rows);
    int local = threadIdx.x / kRowThreads, lane = threadIdx.x % kRowThreads;
    int matrix = blockIdx.x / blocks * together, row = blockIdx.x % blocks * ROWS + local;
    if (together > 1) matrix += local / rows, row = local % rows;
    bool inside = row < rows && matrix < batch * heads && (together == 1 || local < together * rows);
    float *weight = weights + local * splits;
    long long partial_row = static_cast<long long>(matrix) * splits * rows + row;

    float maximum = -CUDART_INF_F, total = 0.0f;
    stamp(kPlaced);
    if (inside) {
        for (int s = lane; s < splits; s += kRowThreads) {
            weight[s] = lse_partial[partial_row + static_cast<long long>(s) * rows];
            maximum = fmaxf(maximum, weight[s]);
        }
    }
    stamp(kArrived);
    maximum = lane_max<kRowThreads>(maximum);
    float safe = safe_maximum(maximum);
    if (inside) {
        for (int s = lane; s < splits; s += kRowThreads) {
            weight[s] = exp2_fast((weight[s] - safe) * kLog2E);
            total += weight[s];
        }
    }
    total = lane_sum<kRowThreads>(total);
    __syncwarp();
    stamp(kIssued);
    if (!inside) return;
    float inverse = safe_inverse(total);
    if (LSE && lane == 0)
        lse[static_cast<long long>(matrix) * rows + row] = total > 0.0f ? safe + logf(total) : -CUDART_INF_F;
    T *target = head_of<DIM_V, TOKEN_MAJOR>(o, matrix / heads, matrix % heads, heads, rows) +
                row * pitch_of<DIM_V, TOKEN_MAJOR>(heads);
    for (int column = 4 * lane; column < DIM_V; column += 4 * kRowThreads) {
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll kUnroll
        for (int s = 0; s < splits; s++) {
            float4 part = *reinterpret_cast<const float4 *>(
                o_partial + (partial_row + static_cast<long long>(s) * rows) * DIM_V + column);
            float share = weight[s];
            sum.x += share * part.x, sum.y += share * part.y, sum.z += share * part.z, sum.w += share * part.w;
        }
        stamp(kReady);
        *reinterpret_cast<uint2 *>(target + column) =
            make_uint2(pack<T>(sum.x * inverse, sum.y * inverse), pack<T>(sum.z * inverse, sum.w * inverse));
    }
    stamp(kSent);
}
