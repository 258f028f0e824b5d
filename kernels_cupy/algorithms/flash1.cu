// FlashAttention forward (Dao et al. 2022, arXiv:2205.14135, algorithm 1) on mma.sync tensor cores.
//
//             TILE_KV keys, the warps' 16-key tiles in turn    One CTA owns a head. The outer loop keeps a block of K and V
//            ┌────┬────┬────┬────┬────┬────┬────┬────┐         on chip; every block of 16 query rows comes past it, with
//   16 rows  │ w0 │ w1 │ w2 │ w3 │ w0 │ w1 │ w2 │ w3 │         what memory has of its output: LSE, and O divided by its
//            └────┴────┴────┴────┴────┴────┴────┴────┘         sum, in fp32. The warps add their parts of O in turn.
//
// Macros: T, DIM, TILE_KV, STAGES (query blocks in shared memory), WARPS; and, as 0 or 1, CAUSAL, RUNNING (there is more
// than one key block, so that O comes back), TOKEN_MAJOR (bshd). Head dimensions are multiples of 16.
#include "cta_record.cuh"
#include "matrix.cuh"
#include "query_blocks.cuh"
#include "shared.cuh"
#include "softmax.cuh"

constexpr int kThreads = 32 * WARPS;
constexpr int kRows = 16;
constexpr int kTiles = TILE_KV / 16 / WARPS;  // of 16 keys, per warp
constexpr int kRowBytes = DIM * sizeof(T);
constexpr int kChunk = 16 / sizeof(T);
constexpr int kQueryBytes = kRows * kRowBytes, kOutputBytes = kRows * DIM * 4;
constexpr int kStageBytes = kQueryBytes + kOutputBytes + kRows * 4;
using Row = SharedRows<kRowBytes>;
using OutputRow = SharedRows<DIM * 4>;
static_assert(kTiles * 16 * WARPS == TILE_KV && DIM % 16 == 0, "whole mma tiles per warp");
static_assert(2 * WARPS * kRows * 4 <= kQueryBytes, "the warps' maxima and sums take the place of Q");

// Where column `column` of row `row` of an output tile is.
__device__ __forceinline__ float *output_at(char *tile, int row, int column) {
    return reinterpret_cast<float *>(tile + OutputRow::offset(row, column / 4)) + column % 4;
}

// scores = Q K^T of this warp's keys.
__device__ __forceinline__ void multiply_scores(float (&scores)[2 * kTiles][4], unsigned q_tile, unsigned k_tile) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 2 * kTiles; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) scores[n][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        unsigned a[4];
        load_matrices(a, q_tile + Row::offset(lane % 16, 2 * step + lane / 16));
#pragma unroll
        for (int n = 0; n < kTiles; n++) {
            unsigned b[4];
            int key = (n * WARPS + warp) * 16 + lane % 8 + lane / 16 * 8;
            load_matrices(b, k_tile + Row::offset(key, 2 * step + lane / 8 % 2));
            multiply<T>(scores[2 * n], a, b[0], b[1]);
            multiply<T>(scores[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// output = P V of this warp's keys, P rounded to T.
__device__ __forceinline__ void multiply_output(float (&output)[DIM / 8][4], const float (&p)[2 * kTiles][4],
                                                unsigned v_tile) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) output[n][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < kTiles; step++) {
        unsigned a[4];
        as_operand<T>(a, p, step);
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            unsigned b[4];
            load_matrices_transposed(b, v_tile + Row::offset((step * WARPS + warp) * 16 + lane % 16, 2 * n + lane / 16));
            multiply<T>(output[2 * n], a, b[0], b[1]);
            multiply<T>(output[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// The two numbers of the output tile that are this lane's in 8 columns from 8 n on, of the upper or the lower 8 rows.
__device__ __forceinline__ float2 *own_pair(char *tile, int n, int half) {
    int lane = threadIdx.x % 32;
    return reinterpret_cast<float2 *>(output_at(tile, lane / 4 + half * 8, n * 8 + lane % 4 * 2));
}

// tile = output + weight * tile, or just output. As many numbers are read before any is written as registers hold: the
// compiler cannot tell that the addresses differ, and would wait for each number in turn.
__device__ __forceinline__ void add_to(char *tile, const float (&output)[DIM / 8][4], const float (&weight)[2], bool held) {
    constexpr int kTogether = DIM / 8 % 8 == 0 ? 8 : DIM / 8 % 4 == 0 ? 4 : 2;
#pragma unroll
    for (int first = 0; first < DIM / 8; first += kTogether) {
        float2 sums[kTogether][2];
#pragma unroll
        for (int n = 0; n < kTogether; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                sums[n][half] = held ? *own_pair(tile, first + n, half) : make_float2(0.0f, 0.0f);
#pragma unroll
        for (int n = 0; n < kTogether; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float *own = output[first + n] + 2 * half;
                float2 sum = sums[n][half];
                *own_pair(tile, first + n, half) =
                    make_float2(fmaf(weight[half], sum.x, own[0]), fmaf(weight[half], sum.y, own[1]));
            }
    }
}

// `running` is O of the rows from `finished` on, which see more than one key block.
extern "C" __global__ void __launch_bounds__(kThreads)
    flash1_forward(const T *__restrict__ q, const T *__restrict__ k, const T *__restrict__ v, T *__restrict__ o, float *lse,
#if RUNNING
                   float *running,
#endif
                   int heads, int group, int seq, int seq_kv, int finished, float scale) {
    CtaRecord record;
    extern __shared__ __align__(128) char shared[];
    char *k_tile = shared + STAGES * kStageBytes, *v_tile = k_tile + TILE_KV * kRowBytes;
    int b = blockIdx.x / heads, h = blockIdx.x % heads, kv_heads = heads / group;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, diagonal = seq_kv - seq;
    long long pitch = pitch_of<DIM, TOKEN_MAJOR>(heads), kv_pitch = pitch_of<DIM, TOKEN_MAJOR>(kv_heads);
    q = head_of<DIM, TOKEN_MAJOR>(q, b, h, heads, seq);
    o = head_of<DIM, TOKEN_MAJOR>(o, b, h, heads, seq);
    k = head_of<DIM, TOKEN_MAJOR>(k, b, h / group, kv_heads, seq_kv);
    v = head_of<DIM, TOKEN_MAJOR>(v, b, h / group, kv_heads, seq_kv);
    lse += static_cast<long long>(blockIdx.x) * seq;
#if RUNNING
    running += static_cast<long long>(blockIdx.x) * (seq - finished) * DIM;
#else
    float *running = nullptr;
#endif
    int blocks = (seq + kRows - 1) / kRows, steps = (seq_kv + TILE_KV - 1) / TILE_KV;
    float scale_log2 = scale * kLog2E;

    // Whether a query block takes part in an outer step: every one in the first, where O is born.
    auto takes_part = [&](int block, int step) {
        return step == 0 || (step < steps && (!CAUSAL || min((block + 1) * kRows, seq) + diagonal > step * TILE_KV));
    };
    auto stage_of = [&](int block) { return shared + block % STAGES * kStageBytes; };

    // Every query block's copy is a group of its own; past the end the groups are empty.
    auto fetch = [&](int step, int block) {
        if (block < blocks) {
            char *stage = stage_of(block);
            int row = block * kRows;
            stream_tile<T, kRows, DIM, kChunk, kThreads>(stage, q, pitch, row, seq, 0, DIM);
            if (step > 0) {
                stream_tile<float, kRows, DIM, 4, kThreads>(stage + kQueryBytes, running, DIM, row - finished,
                                                          seq - finished, 0, DIM);
                if (threadIdx.x < kRows)
                    copy_async<4>(shared_address(stage + kQueryBytes + kOutputBytes) + 4 * threadIdx.x,
                                  lse + min(row + static_cast<int>(threadIdx.x), seq - 1));
            }
        }
        commit_copies();
    };

    for (int step = 0; step < steps; step++) {
        int first_key = step * TILE_KV, first = 0;
        while (first < blocks && !takes_part(first, step)) first++;
        stream_tile<T, TILE_KV, DIM, kChunk, kThreads>(k_tile, k, kv_pitch, first_key, seq_kv, 0, DIM);
        stream_tile<T, TILE_KV, DIM, kChunk, kThreads>(v_tile, v, kv_pitch, first_key, seq_kv, 0, DIM);
        for (int ahead = 0; ahead < STAGES - 1; ahead++) fetch(step, first + ahead);

        for (int block = first; block < blocks; block++) {
            fetch(step, block + STAGES - 1);
            wait_copies<STAGES - 1>();
            __syncthreads();  // this block, K and V are there for all
            char *stage = stage_of(block), *o_tile = stage + kQueryBytes;
            float *maxima = reinterpret_cast<float *>(stage), *totals = maxima + WARPS * kRows;
            const float *before = reinterpret_cast<const float *>(o_tile + kOutputBytes);
            float scores[2 * kTiles][4], output[DIM / 8][4];
            multiply_scores(scores, shared_address(stage), shared_address(k_tile));

            // A lane holds rows lane / 4 and + 8, of every 8 keys those at 2 (lane % 4) and + 1.
            int row = block * kRows + lane / 4, key = first_key + warp * 16 + lane % 4 * 2;
            float maximum[2], total[2], decay[2], shift[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int end = CAUSAL ? min(seq_kv, row + half * 8 + diagonal + 1) : seq_kv;
                maximum[half] = -CUDART_INF_F;
#pragma unroll
                for (int n = 0; n < 2 * kTiles; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &s = scores[n][2 * half + e];
                        if (key + n / 2 * 16 * WARPS + n % 2 * 8 + e >= end) s = -CUDART_INF_F;
                        maximum[half] = fmaxf(maximum[half], s);
                    }
                maximum[half] = lane_max<4>(maximum[half]);
            }
            __syncthreads();  // Q has been read by all
            if (lane % 4 == 0)
#pragma unroll
                for (int half = 0; half < 2; half++) maxima[warp * kRows + lane / 4 + half * 8] = maximum[half];
            __syncthreads();

            // What memory has of a row is one key more, of score LSE and value O.
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = lane / 4 + half * 8;
                float top = step > 0 ? before[r] * kLog2E : -CUDART_INF_F;
                decay[half] = top;
#pragma unroll
                for (int w = 0; w < WARPS; w++) top = fmaxf(top, maxima[w * kRows + r] * scale_log2);
                shift[half] = safe_maximum(top);
                decay[half] = exp2_fast(decay[half] - shift[half]);
                total[half] = 0.0f;
#pragma unroll
                for (int n = 0; n < 2 * kTiles; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &s = scores[n][2 * half + e];
                        s = exp2_fast(fmaf(s, scale_log2, -shift[half]));
                        total[half] += s;
                    }
                total[half] = lane_sum<4>(total[half]);
                if (lane % 4 == 0) totals[warp * kRows + r] = total[half];
            }
            multiply_output(output, scores, shared_address(v_tile));

            for (int turn = 0; turn < WARPS; turn++) {
                if (warp == turn) {
                    const float weight[2] = {turn > 0 ? 1.0f : decay[0], turn > 0 ? 1.0f : decay[1]};
                    add_to(o_tile, output, weight, turn > 0 || step > 0);
                }
                __syncthreads();
            }

            // Each row's sum, and LSE; `inverse` goes where the row's maximum of warp 0 was.
            if (warp == 0 && lane % 4 == 0)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int r = lane / 4 + half * 8;
                    float sum = decay[half];
#pragma unroll
                    for (int w = 0; w < WARPS; w++) sum += totals[w * kRows + r];
                    maxima[r] = safe_inverse(sum);
                    if (row + half * 8 < seq)
                        lse[row + half * 8] = sum > 0.0f ? shift[half] * kLn2 + logf(sum) : -CUDART_INF_F;
                }
            __syncthreads();
            bool last = !takes_part(block, step + 1);
#pragma unroll 1
            for (int i = threadIdx.x; i < kRows * DIM / 8; i += kThreads) {
                int r = i / (DIM / 8), column = i % (DIM / 8) * 8;
                long long at = block * kRows + r;
                if (at >= seq) continue;
                float4 left = *reinterpret_cast<float4 *>(output_at(o_tile, r, column));
                float4 right = *reinterpret_cast<float4 *>(output_at(o_tile, r, column + 4));
                float f = maxima[r];
                left = make_float4(left.x * f, left.y * f, left.z * f, left.w * f);
                right = make_float4(right.x * f, right.y * f, right.z * f, right.w * f);
                if (last) {
                    *reinterpret_cast<uint4 *>(o + at * pitch + column) =
                        make_uint4(pack<T>(left.x, left.y), pack<T>(left.z, left.w), pack<T>(right.x, right.y),
                                   pack<T>(right.z, right.w));
                } else {
                    float4 *target = reinterpret_cast<float4 *>(running + (at - finished) * DIM + column);
                    target[0] = left, target[1] = right;
                }
            }
            __syncthreads();  // this block's buffer has been read by all, and its rows are in memory
        }
        wait_copies<0>();
        __syncthreads();  // the next K and V take the place of these
    }
}
