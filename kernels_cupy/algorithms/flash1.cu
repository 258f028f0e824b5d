// FlashAttention forward (Dao et al. 2022, arXiv:2205.14135, algorithm 1) on mma.sync tensor cores.
//
//             TILE_KV keys, the warps' 16-key tiles in turn    One CTA owns a head. The outer loop keeps a block of K and V
//            ┌────┬────┬────┬────┬────┬────┬────┬────┐         on chip; every block of 16 query rows comes past it, with
//   16 rows  │ w0 │ w1 │ w2 │ w3 │ w0 │ w1 │ w2 │ w3 │         what memory has of its output: LSE, and O divided by its
//            └────┴────┴────┴────┴────┴────┴────┴────┘         sum, in fp32. Each warp makes P of its keys, and then, with
//            all of P from shared memory, O of its columns, 16 at a time in turn.
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
constexpr int kOwn = (DIM / 16 + WARPS - 1) / WARPS;  // tiles of 16 columns of O, per warp
using Row = SharedRows<kRowBytes>;
using OutputRow = SharedRows<DIM * 4>;
using ScoreRow = SharedRows<TILE_KV * sizeof(T)>;
static_assert(kTiles * 16 * WARPS == TILE_KV && DIM % 16 == 0, "whole mma tiles per warp");

// Where column `column` of row `row` of an output tile is.
__device__ __forceinline__ const float *output_at(const char *tile, int row, int column) {
    return reinterpret_cast<const float *>(tile + OutputRow::offset(row, column / 4)) + column % 4;
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

// Whether this warp has an i-th tile of 16 columns of O, and where that starts.
__device__ __forceinline__ int own_column(int i) { return (i * WARPS + static_cast<int>(threadIdx.x) / 32) * 16; }
__device__ __forceinline__ bool owns(int i) { return DIM / 16 % WARPS == 0 || own_column(i) < DIM; }

// output = P V, of this warp's columns.
__device__ __forceinline__ void multiply_output(float (&output)[2 * kOwn][4], unsigned p_tile, unsigned v_tile) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 2 * kOwn; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) output[n][e] = 0.0f;
#pragma unroll
    for (int step = 0; step < TILE_KV / 16; step++) {
        unsigned a[4];
        load_matrices(a, p_tile + ScoreRow::offset(lane % 16, 2 * step + lane / 16));
#pragma unroll
        for (int i = 0; i < kOwn; i++) {
            if (!owns(i)) continue;
            unsigned b[4];
            load_matrices_transposed(b, v_tile + Row::offset(step * 16 + lane % 16, own_column(i) / 8 + lane / 16));
            multiply<T>(output[2 * i], a, b[0], b[1]);
            multiply<T>(output[2 * i + 1], a, b[2], b[3]);
        }
    }
}

// output = inverse (output + decay tile): with what memory had of these rows, divided by the new sum.
__device__ __forceinline__ void finish(float (&output)[2 * kOwn][4], const char *tile, const float (&decay)[2],
                                       const float (&inverse)[2], bool held) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 2 * kOwn; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float2 before = make_float2(0.0f, 0.0f);
            int column = own_column(n / 2) + n % 2 * 8 + lane % 4 * 2;
            if (held && owns(n / 2))
                before = *reinterpret_cast<const float2 *>(output_at(tile, lane / 4 + half * 8, column));
            float *own = output[n] + 2 * half;
            own[0] = fmaf(decay[half], before.x, own[0]) * inverse[half];
            own[1] = fmaf(decay[half], before.y, own[1]) * inverse[half];
        }
}

// `running` is O of the rows from `finished` on, which see more than one key block.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flash1_forward(const T *__restrict__ q, const T *__restrict__ k, const T *__restrict__ v, T *__restrict__ o, float *lse,
#if RUNNING
                   float *running,
#endif
                   int heads, int group, int seq, int seq_kv, int finished, float scale) {
    CtaRecord record;
    extern __shared__ __align__(128) char shared[];
    char *k_tile = shared + STAGES * kStageBytes, *v_tile = k_tile + TILE_KV * kRowBytes;
    char *p_tile = v_tile + TILE_KV * kRowBytes;
    float *maxima = reinterpret_cast<float *>(p_tile + kRows * TILE_KV * sizeof(T)), *totals = maxima + WARPS * kRows;
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

    int visit = 0;
    for (int step = 0; step < steps; step++) {
        int first_key = step * TILE_KV, first = 0;
        while (first < blocks && !takes_part(first, step)) first++;
        stream_tile<T, TILE_KV, DIM, kChunk, kThreads>(k_tile, k, kv_pitch, first_key, seq_kv, 0, DIM);
        stream_tile<T, TILE_KV, DIM, kChunk, kThreads>(v_tile, v, kv_pitch, first_key, seq_kv, 0, DIM);
        for (int ahead = 0; ahead < STAGES - 1; ahead++) fetch(step, first + ahead);

        for (int block = first; block < blocks; block++, visit++) {
            // This block, K and V are there for all; the block before has been read by all, and its rows are in memory.
            if constexpr (STAGES == 1) {
                __syncthreads();
                fetch(step, block);
                wait_copies<0>();
                __syncthreads();
            } else {
                wait_copies<STAGES - 2>();
                __syncthreads();
                stamp(kArrived, visit);
                fetch(step, block + STAGES - 1);
            }
            stamp(kIssued, visit);
            char *stage = stage_of(block), *o_tile = stage + kQueryBytes;
            const float *before = reinterpret_cast<const float *>(o_tile + kOutputBytes);
            float scores[2 * kTiles][4], output[2 * kOwn][4];
            multiply_scores(scores, shared_address(stage), shared_address(k_tile));
            stamp(kMultiplied, visit);

            // A lane holds rows lane / 4 and + 8, of every 8 keys those at 2 (lane % 4) and + 1.
            int row = block * kRows + lane / 4, key = first_key + warp * 16 + lane % 4 * 2;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int end = CAUSAL ? min(seq_kv, row + half * 8 + diagonal + 1) : seq_kv;
                float maximum = -CUDART_INF_F;
#pragma unroll
                for (int n = 0; n < 2 * kTiles; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &s = scores[n][2 * half + e];
                        if (key + n / 2 * 16 * WARPS + n % 2 * 8 + e >= end) s = -CUDART_INF_F;
                        maximum = fmaxf(maximum, s);
                    }
                maximum = lane_max<4>(maximum);
                if (lane % 4 == 0) maxima[warp * kRows + lane / 4 + half * 8] = maximum;
            }
            __syncthreads();  // all keys' maxima are there, and Q has been read by all

            // What memory has of a row is one key more, of score LSE and value O.
            float decay[2], shift[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = lane / 4 + half * 8;
                float top = step > 0 ? before[r] * kLog2E : -CUDART_INF_F, total = 0.0f;
                decay[half] = top;
#pragma unroll
                for (int w = 0; w < WARPS; w++) top = fmaxf(top, maxima[w * kRows + r] * scale_log2);
                shift[half] = safe_maximum(top);
                decay[half] = exp2_fast(decay[half] - shift[half]);
#pragma unroll
                for (int n = 0; n < 2 * kTiles; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &s = scores[n][2 * half + e];
                        s = exp2_fast(fmaf(s, scale_log2, -shift[half]));
                        total += s;
                    }
                total = lane_sum<4>(total);
                if (lane % 4 == 0) totals[warp * kRows + r] = total;
            }
#pragma unroll
            for (int n = 0; n < 2 * kTiles; n++)
                store_matrices(shared_address(p_tile) + ScoreRow::offset(lane % 16, 2 * (n / 2 * WARPS + warp) + n % 2),
                               pack<T>(scores[n][0], scores[n][1]), pack<T>(scores[n][2], scores[n][3]));
            __syncthreads();  // P and its row sums are there for all
            stamp(kReady, visit);
            multiply_output(output, shared_address(p_tile), shared_address(v_tile));

            float inverse[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float sum = decay[half];
#pragma unroll
                for (int w = 0; w < WARPS; w++) sum += totals[w * kRows + lane / 4 + half * 8];
                inverse[half] = safe_inverse(sum);
                if (warp == 0 && lane % 4 == 0 && row + half * 8 < seq)
                    lse[row + half * 8] = sum > 0.0f ? (shift[half] + log2_fast(sum)) * kLn2 : -CUDART_INF_F;
            }
            finish(output, o_tile, decay, inverse, step > 0);
            bool last = !takes_part(block, step + 1);
#pragma unroll
            for (int i = 0; i < kOwn; i++) {
                if (!owns(i)) continue;
                int column = own_column(i);
                if (last) {  // by way of shared memory, where Q was: a lane has less than a sector of a row in T
                    char *tile = stage + kRows * column * sizeof(T);
#pragma unroll
                    for (int n = 0; n < 2; n++) {
                        const float(&f)[4] = output[2 * i + n];
                        store_matrices(shared_address(tile) + SharedRows<16 * sizeof(T)>::offset(lane % 16, n),
                                       pack<T>(f[0], f[1]), pack<T>(f[2], f[3]));
                    }
                    __syncwarp();
                    store_tile<T, kRows, 16, kChunk, 32>(o, pitch, block * kRows, seq, column, DIM, tile);
                } else {
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int half = 0; half < 2; half++) {
                            const float *f = output[2 * i + n] + 2 * half;
                            if (row + half * 8 < seq)
                                *reinterpret_cast<float2 *>(running + (row + half * 8LL - finished) * DIM + column + n * 8 +
                                                            lane % 4 * 2) = make_float2(f[0], f[1]);
                        }
                }
            }
            stamp(kSent, visit);
        }
        wait_copies<0>();
        __syncthreads();  // the next K and V take the place of these
    }
}
