// FlashAttention-2 forward (Dao 2023, arXiv:2307.08691, algorithm 1) on mma.sync tensor cores.
//
//            keys →  TILE_KV   TILE_KV  …             One CTA owns TILE_Q query rows of one head, a warp TILE_Q / WARPS
//          ┌────────┬────────┬────────┐               of them. K and V stream past in blocks, through STAGES buffers
//  TILE_Q  │ S = QKᵀ│        │        │  P = exp(S−m) each: V_j is copied under S = QK_jᵀ, K_{j+STAGES} under the
//   rows   └────────┴────────┴────────┘  O += P V     softmax. S, P and O stay in registers.
//
// Macros: T, DIM, DIM_V, TILE_Q, TILE_KV, STAGES, WARPS, KV_ORDER, CTA_ORDER, ALIGNED_K, ALIGNED_V (elements of a row that
// are aligned together); and, as 0 or 1, CAUSAL, WINDOW, VARLEN, SPLIT (write partial results in fp32), TOKEN_MAJOR (bshd).
#include "cta_record.cuh"
#include "fragments.cuh"
#include "matrix.cuh"
#include "query_blocks.cuh"
#include "shared.cuh"

constexpr int kThreads = 32 * WARPS;
constexpr int kRowTiles = TILE_Q / WARPS / 16;
constexpr int kKeyTiles = TILE_KV / 8;
constexpr int kDepth = (DIM + 15) / 16 * 16;  // head dimensions as the tensor cores see them
constexpr int kDepthV = (DIM_V + 15) / 16 * 16;
constexpr int kDepthTiles = kDepthV / 8;
using KeyRow = SharedRows<kDepth * sizeof(T)>;
using ValueRow = SharedRows<kDepthV * sizeof(T)>;
constexpr int kKeyBytes = kDepth * sizeof(T), kValueBytes = kDepthV * sizeof(T);
static_assert(kRowTiles * 16 * WARPS == TILE_Q && TILE_KV % 16 == 0, "whole mma tiles per warp");

#if __CUDA_ARCH__ < 1000
constexpr int kBuffers = 2;  // operand fragments: the next step's are fetched under this step's products
#else
constexpr int kBuffers = 1;  // the compiler does not find the registers for more
#endif

// The rows of this warp, one fragment per 16x8 tile. A lane holds rows l/4 and l/4 + 8 of each 16.
struct WarpRows {
    float scores[kRowTiles][kKeyTiles][4];
    float output[kRowTiles][kDepthTiles][4];
    float maximum[kRowTiles][2];  // of raw scores
    float shift[kRowTiles][2];    // what the exponents subtract: the scaled maximum, or 0 for a row of no visible key
    float total[kRowTiles][2];    // this lane's share of the row sum
};

// scores = Q K^T of one block.
__device__ __forceinline__ void multiply_scores(WarpRows &w, unsigned q_rows, unsigned k_tile) {
    int lane = threadIdx.x % 32, q_row = lane % 16, q_chunk = lane / 16;
    int k_row = lane % 8 + lane / 16 * 8, k_chunk = lane / 8 % 2;
    unsigned a[kBuffers][kRowTiles][4], b[kBuffers][kKeyTiles / 2][4];
    auto fetch = [&](int step) {
#pragma unroll
        for (int m = 0; m < kRowTiles; m++)
            load_matrices(a[step % kBuffers][m], q_rows + m * 16 * kKeyBytes + KeyRow::offset(q_row, 2 * step + q_chunk));
#pragma unroll
        for (int n = 0; n < kKeyTiles / 2; n++)
            load_matrices(b[step % kBuffers][n], k_tile + n * 16 * kKeyBytes + KeyRow::offset(k_row, 2 * step + k_chunk));
    };
    fetch(0);
    clear(w.scores);
#pragma unroll
    for (int step = 0; step < kDepth / 16; step++) {
        if (step + kBuffers - 1 < kDepth / 16 && step + kBuffers > 1) fetch(step + kBuffers - 1);
#pragma unroll
        for (int n = 0; n < kKeyTiles / 2; n++)
#pragma unroll
            for (int m = 0; m < kRowTiles; m++) {
                const unsigned(&pair)[4] = b[step % kBuffers][n];
                multiply<T>(w.scores[m][2 * n], a[step % kBuffers][m], pair[0], pair[1]);
                multiply<T>(w.scores[m][2 * n + 1], a[step % kBuffers][m], pair[2], pair[3]);
            }
    }
}

// Hides keys from `keys` on, and under a mask those outside each row's diagonal and window. Keys count from the block's
// first, `row` is the lane's first row.
__device__ __forceinline__ void mask(WarpRows &w, int keys, int row, int diagonal, int window) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int end = row + m * 16 + half * 8 + diagonal + 1, first = end - window;
            end = CAUSAL ? min(end, keys) : keys;
            hide_columns<WINDOW>(w.scores[m], half, first, end);
        }
}

// Raises the running maxima to this block's, and rescales what was summed before where that changes it.
__device__ __forceinline__ void raise_maximum(WarpRows &w, float scale_log2) {
    float decay[kRowTiles][2];
    bool rose = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = row_maximum(w.scores[m], half, w.maximum[m][half]);
            w.shift[m][half] = safe_maximum(top) * scale_log2;
            decay[m][half] = exp2_fast(w.maximum[m][half] * scale_log2 - w.shift[m][half]);
            rose |= top != w.maximum[m][half];
            w.maximum[m][half] = top;
            w.total[m][half] *= decay[m][half];
        }
    if (!__any_sync(~0u, rose)) return;
    scale_rows(w.output, decay);
}

// Turns the i-th score of key tiles 2 * step and 2 * step + 1 into P, and adds it to the row sum. Volatile, so that it
// stays between the products it is written between.
__device__ __forceinline__ void exponential(WarpRows &w, float scale_log2, int step, int i) {
    int m = i / 8, e = i % 4;
    float &s = w.scores[m][2 * step + i / 4 % 2][e];
    asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(fmaf(s, scale_log2, -w.shift[m][e / 2])));
    w.total[m][e / 2] += s;
}

// output += P V of one block, P rounded to T. The exponential unit works on the next 16 keys while the tensor cores
// multiply these.
__device__ __forceinline__ void multiply_output(WarpRows &w, float scale_log2, unsigned v_tile) {
    constexpr int kScores = kRowTiles * 8, kPairs = kDepthTiles / 2, kSteps = TILE_KV / 16;
    int lane = threadIdx.x % 32, v_row = lane % 16, v_chunk = lane / 16;
    unsigned b[kBuffers][kPairs][4];
    auto fetch = [&](int step) {
#pragma unroll
        for (int n = 0; n < kPairs; n++)
            load_matrices_transposed(b[step % kBuffers][n],
                                     v_tile + step * 16 * kValueBytes + ValueRow::offset(v_row, 2 * n + v_chunk));
    };
    fetch(0);
#pragma unroll
    for (int i = 0; i < kScores; i++) exponential(w, scale_log2, 0, i);
#pragma unroll
    for (int step = 0; step < kSteps; step++) {
        unsigned a[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; m++) as_operand<T>(a[m], w.scores[m], step);
        if (step + kBuffers - 1 < kSteps && step + kBuffers > 1) fetch(step + kBuffers - 1);
#pragma unroll
        for (int n = 0; n < kPairs; n++) {
#pragma unroll
            for (int m = 0; m < kRowTiles; m++) {
                const unsigned(&pair)[4] = b[step % kBuffers][n];
                multiply<T>(w.output[m][2 * n], a[m], pair[0], pair[1]);
                multiply<T>(w.output[m][2 * n + 1], a[m], pair[2], pair[3]);
            }
            if (step + 1 < kSteps)
#pragma unroll
                for (int i = n * kScores / kPairs; i < (n + 1) * kScores / kPairs; i++)
                    exponential(w, scale_log2, step + 1, i);
        }
    }
}

// Normalises the output; returns nothing, but leaves each row's log-sum-exp in `shift`.
__device__ __forceinline__ void finish(WarpRows &w, float scale) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = lane_sum<4>(w.total[m][half]), inverse = safe_inverse(total);
            w.shift[m][half] = total > 0.0f ? w.maximum[m][half] * scale + logf(total) : -CUDART_INF_F;
#pragma unroll
            for (int n = 0; n < kDepthTiles; n++) {
                w.output[m][n][2 * half] *= inverse;
                w.output[m][n][2 * half + 1] *= inverse;
            }
        }
}

// `o` and `lse` are O and LSE, or their partial results of one split: [batch, heads, splits, rows, DIM_V] in fp32.
extern "C" __global__ void __launch_bounds__(kThreads)
    flash2_forward(const T *__restrict__ q, const T *__restrict__ k, const T *__restrict__ v, void *__restrict__ o,
                   float *__restrict__ lse,
#if VARLEN
                   const int *query_starts, const int *key_starts,
#endif
                   int batch, int heads, int group, int seq, int seq_kv, int splits, int section, int window, float scale) {
    CtaRecord record;
    extern __shared__ __align__(128) char shared[];
    char *q_tile = shared, *k_tiles = q_tile + TILE_Q * kKeyBytes, *v_tiles = k_tiles + STAGES * TILE_KV * kKeyBytes;

    auto block = [&](int cta) {
        Grid grid{batch, heads, group, seq, seq_kv, SPLIT ? splits : 1, section};
#if VARLEN
        Starts starts{query_starts, key_starts};
#else
        Starts starts{nullptr, nullptr};
#endif
        return block_of<TILE_Q, TILE_KV, static_cast<CtaOrder>(CTA_ORDER), CAUSAL>(cta, grid, starts,
                                                                                   WINDOW ? window : 0);
    };
    Block x = block(blockIdx.x);
    if (x.rows <= 0) return;
    int kv_heads = heads / group, keys = x.last - x.first, blocks = (keys + TILE_KV - 1) / TILE_KV;
    bool backward = KV_ORDER == kBackward || (KV_ORDER == kSawtooth && x.number % 2);
    long long pitch = pitch_of<DIM, TOKEN_MAJOR>(heads), k_pitch = pitch_of<DIM, TOKEN_MAJOR>(kv_heads);
    long long v_pitch = pitch_of<DIM_V, TOKEN_MAJOR>(kv_heads);
    q = head_of<DIM, TOKEN_MAJOR>(q, x.b, x.h, heads, x.q_rows) + (x.q_row + x.row) * pitch;
    k = head_of<DIM, TOKEN_MAJOR>(k, x.b, x.h / group, kv_heads, x.k_rows) + (x.k_row + x.first) * k_pitch;
    v = head_of<DIM_V, TOKEN_MAJOR>(v, x.b, x.h / group, kv_heads, x.k_rows) + (x.k_row + x.first) * v_pitch;

    auto first_key = [&](int position) { return (backward ? blocks - 1 - position : position) * TILE_KV; };
    // Every copy is a group of its own, in the order K0 V0 K1 V1 …; past the end the groups are empty.
    auto copy_keys = [&](int position) {
        char *tile = k_tiles + position % STAGES * TILE_KV * kKeyBytes;
        if (position < blocks)
            stream_tile<T, TILE_KV, kDepth, ALIGNED_K, kThreads>(tile, k, k_pitch, first_key(position), keys, 0, DIM);
        commit_copies();
    };
    auto copy_values = [&](int position) {
        char *tile = v_tiles + position % STAGES * TILE_KV * kValueBytes;
        if (position < blocks)
            stream_tile<T, TILE_KV, kDepthV, ALIGNED_V, kThreads>(tile, v, v_pitch, first_key(position), keys, 0, DIM_V);
        commit_copies();
    };

    stamp(kPlaced);
    if (blocks) stream_tile<T, TILE_Q, kDepth, ALIGNED_K, kThreads>(q_tile, q, pitch, 0, x.rows, 0, DIM);
    copy_keys(0);
#pragma unroll
    for (int position = 0; position < STAGES - 1; position++) {
        copy_values(position);
        copy_keys(position + 1);
    }
    stamp(kIssued);

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp * kRowTiles * 16;
    unsigned q_rows = shared_address(q_tile) + warp_row * kKeyBytes;
    WarpRows w;
#pragma unroll
    for (int m = 0; m < kRowTiles; m++) {
        w.maximum[m][0] = w.maximum[m][1] = -CUDART_INF_F;
        w.total[m][0] = w.total[m][1] = 0.0f;
#pragma unroll
        for (int n = 0; n < kDepthTiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) w.output[m][n][e] = 0.0f;
    }

    float scale_log2 = scale * kLog2E;
    for (int position = 0; position < blocks; position++) {
        int key = first_key(position), stage = position % STAGES;
        wait_copies<2 * (STAGES - 1)>();
        __syncthreads();  // K_j is there for all, and V's next buffer has been read by all
        stamp(kArrived, position);
        copy_values(position + STAGES - 1);
        multiply_scores(w, q_rows, shared_address(k_tiles) + stage * TILE_KV * kKeyBytes);
        wait_copies<2 * (STAGES - 1)>();
        __syncthreads();  // V_j is there for all, and K's buffer has been read by all
        copy_keys(position + STAGES);
        int end = key + TILE_KV, last_row = warp_row + kRowTiles * 16 - 1;
        if (end > keys || (CAUSAL && (end > warp_row + x.diagonal + 1 || (WINDOW && key <= last_row + x.diagonal - window))))
            mask(w, keys - key, warp_row + lane / 4, x.diagonal - key, window);
        raise_maximum(w, scale_log2);
        multiply_output(w, scale_log2, shared_address(v_tiles) + stage * TILE_KV * kValueBytes);
        stamp(kMultiplied, position);
    }
    wait_copies<0>();
    __syncthreads();

    finish(w, scale);
    stamp(kReady);
    int cta = blockIdx.x;
    asm volatile("" : "+r"(cta));  // compute the block anew: there are no registers to keep it in the loop
    x = block(cta);
    long long lse_row = ((static_cast<long long>(x.b) * heads + x.h) * (SPLIT ? splits : 1) + x.split) * x.q_rows +
                        x.q_row + x.row;
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int r = warp_row + lane / 4 + m * 16 + half * 8;
            if (lane % 4 == 0 && r < x.rows) lse[lse_row + r] = w.shift[m][half];
        }
    if constexpr (SPLIT) {
        float *partial = static_cast<float *>(o) + lse_row * DIM_V;
#pragma unroll
        for (int m = 0; m < kRowTiles; m++)
#pragma unroll
            for (int n = 0; n < kDepthTiles; n++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int r = warp_row + lane / 4 + m * 16 + half * 8, column = n * 8 + lane % 4 * 2;
                    float first = w.output[m][n][2 * half], second = w.output[m][n][2 * half + 1];
                    if (r < x.rows && column < DIM_V) partial[static_cast<long long>(r) * DIM_V + column] = first;
                    if (r < x.rows && column + 1 < DIM_V) partial[static_cast<long long>(r) * DIM_V + column + 1] = second;
                }
    } else {
        // Through shared memory, over Q and K, which nobody reads any more, to global memory in chunks of 16 bytes.
        unsigned o_rows = shared_address(shared) + warp_row * kValueBytes;
#pragma unroll
        for (int m = 0; m < kRowTiles; m++)
#pragma unroll
            for (int n = 0; n < kDepthTiles; n++) {
                const float(&f)[4] = w.output[m][n];
                store_matrices(o_rows + m * 16 * kValueBytes + ValueRow::offset(lane % 16, n), pack<T>(f[0], f[1]),
                               pack<T>(f[2], f[3]));
            }
        __syncwarp();
        long long o_pitch = pitch_of<DIM_V, TOKEN_MAJOR>(heads);
        T *o_block = head_of<DIM_V, TOKEN_MAJOR>(static_cast<T *>(o), x.b, x.h, heads, x.q_rows) +
                     (x.q_row + x.row) * o_pitch;
        store_tile<T, 16 * kRowTiles, kDepthV, ALIGNED_V, 32>(o_block, o_pitch, warp_row, x.rows, 0, DIM_V,
                                                              shared + warp_row * kValueBytes);
    }
}
