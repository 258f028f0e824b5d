// FlashAttention-2 backward (Dao 2023, arXiv:2307.08691, algorithm 2): gradients of one block of keys and values.
//
//          queries →  TILE_Q  TILE_Q  …              A CTA owns 128 keys of one head, each of its two warpgroups 64.
//          ┌────────┬────────┬────────┐              Scores are computed transposed, so that Pᵀ and dSᵀ come out of the
//  128     │ Sᵀ=KQᵀ │        │        │  Pᵀ, dPᵀ=VdOᵀ  tensor cores as the operands of dV += Pᵀ dO and dK += dSᵀ Q.
//  keys    └────────┴────────┴────────┘  dSᵀ=Pᵀ(dPᵀ−D)  Only dSᵀ passes through shared memory: dQ += dS K, added in L2.
//
// Macros: T, DIM, DIM_V, TILE_Q (128 up to 64 dimensions, else 64), ALIGNED_K, ALIGNED_V (elements of a row that are
// aligned together); and, as 0 or 1, CAUSAL, TOKEN_MAJOR (layout bshd), PARTS (dK and dV per query head, expanded).
#include "cta_record.cuh"
#include "query_blocks.cuh"
#include "softmax.cuh"
#include "warpgroup.cuh"

constexpr int kThreads = 256, kKeys = 128;
constexpr int kDepth = (DIM + 63) / 64 * 64, kDepthV = (DIM_V + 63) / 64 * 64;
constexpr int kQueryTiles = TILE_Q / 8;
constexpr int kKeyBytes = kKeys * kDepth * sizeof(T), kValueBytes = kKeys * kDepthV * sizeof(T);
constexpr int kQueryBytes = TILE_Q * kDepth * sizeof(T), kGradientBytes = TILE_Q * kDepthV * sizeof(T);
constexpr int kScoreBytes = kKeys * TILE_Q * sizeof(T);
static_assert(TILE_Q * kDepth == 64 * 128, "a 64 x 64 piece of dQ for each warpgroup");
using Scores = Panels<kKeys>;  // dS^T: a row per key

// Adds two neighbouring elements in the L2.
__device__ __forceinline__ void add_pair(float *target, float first, float second) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(target), "f"(first), "f"(second) : "memory");
#else
    atomicAdd(target, first);
    atomicAdd(target + 1, second);
#endif
}

// Stores 64 rows of fragments, scaled, through `tile` (64 x Columns) in chunks of 16 bytes.
template <int Cols, int Columns, int Vector>
__device__ __forceinline__ void store_rows(T *matrix, long long pitch, int row, int rows, const float (&d)[Columns / 8][4],
                                           float scale, char *tile) {
    using Layout = SharedRows<Columns * sizeof(T)>;
    int lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 % 4 * 16;
    char *own = tile + warp_row * Columns * sizeof(T);
#pragma unroll
    for (int j = 0; j < Columns / 8; j++)
        store_matrices(shared_address(own) + Layout::offset(lane % 16, j), pack<T>(d[j][0] * scale, d[j][1] * scale),
                       pack<T>(d[j][2] * scale, d[j][3] * scale));
    __syncwarp();
    store_tile<T, 16, Columns, Vector, 32>(matrix, pitch, row + warp_row, rows, 0, Cols, own);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flash2_backward(const T *__restrict__ q, const T *__restrict__ gradient, const float *__restrict__ lse,
                    const float *__restrict__ row_sums, float *__restrict__ dq, const T *__restrict__ k,
                    const T *__restrict__ v, T *__restrict__ dk, T *__restrict__ dv, int batch, int heads, int group,
                    int seq, int seq_kv, float scale) {
    CtaRecord record;
    extern __shared__ __align__(1024) char shared[];
    char *k_tile = shared, *v_tile = k_tile + kKeyBytes, *q_tiles = v_tile + kValueBytes;
    char *gradient_tiles = q_tiles + 2 * kQueryBytes, *score_tile = gradient_tiles + 2 * kGradientBytes;
    float *rows_of = reinterpret_cast<float *>(score_tile + kScoreBytes);  // [2][LSE, D][TILE_Q]

    int key_blocks = (seq_kv + kKeys - 1) / kKeys, key0 = blockIdx.x % key_blocks * kKeys;
    int b = blockIdx.x / key_blocks % batch, h = blockIdx.x / key_blocks / batch, kv_heads = heads / group;
    int diagonal = seq_kv - seq - key0;  // query row r sees the block's key j iff j <= r + diagonal
    long long q_pitch = pitch_of<DIM, TOKEN_MAJOR>(heads), v_pitch = pitch_of<DIM_V, TOKEN_MAJOR>(kv_heads);
    long long k_pitch = pitch_of<DIM, TOKEN_MAJOR>(kv_heads), gradient_pitch = pitch_of<DIM_V, TOKEN_MAJOR>(heads);
    q = head_of<DIM, TOKEN_MAJOR>(q, b, h, heads, seq);
    gradient = head_of<DIM_V, TOKEN_MAJOR>(gradient, b, h, heads, seq);
    long long first_row = (static_cast<long long>(b) * heads + h) * seq;
    dq += first_row * DIM, lse += first_row, row_sums += first_row;

    // The query blocks that see any key, from the last one down.
    int first = CAUSAL ? max(0, -diagonal) / TILE_Q : 0, last = (seq + TILE_Q - 1) / TILE_Q - 1;
    auto copy_queries = [&](int block, int stage) {
        if (block >= first) {
            copy_panels<T, TILE_Q, DIM, ALIGNED_K, kThreads>(q_tiles + stage * kQueryBytes, q, q_pitch, block * TILE_Q, seq);
            copy_panels<T, TILE_Q, DIM_V, ALIGNED_V, kThreads>(gradient_tiles + stage * kGradientBytes, gradient,
                                                               gradient_pitch, block * TILE_Q, seq);
            int row = block * TILE_Q + threadIdx.x % TILE_Q;
            if (threadIdx.x < 2 * TILE_Q)
                copy_async<4>(shared_address(rows_of + stage * 2 * TILE_Q + threadIdx.x),
                              (threadIdx.x < TILE_Q ? lse : row_sums) + (row < seq ? row : 0), row < seq);
        }
        commit_copies();
    };
    copy_panels<T, kKeys, DIM, ALIGNED_K, kThreads>(
        k_tile, head_of<DIM, TOKEN_MAJOR>(k, b, h / group, kv_heads, seq_kv), k_pitch, key0, seq_kv);
    copy_panels<T, kKeys, DIM_V, ALIGNED_V, kThreads>(
        v_tile, head_of<DIM_V, TOKEN_MAJOR>(v, b, h / group, kv_heads, seq_kv), v_pitch, key0, seq_kv);
    copy_queries(last, last % 2);

    int warpgroup = threadIdx.x / 128, lane = threadIdx.x % 32;
    int key = warpgroup * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;  // of the block; this lane has key and key + 8
    unsigned k_address = shared_address(k_tile), v_address = shared_address(v_tile);
    unsigned scores_address = shared_address(score_tile);
    float dk_sum[kDepth / 8][4] = {}, dv_sum[kDepthV / 8][4] = {};
    float scale_log2 = scale * kLog2E;

    for (int block = last; block >= first; block--) {
        int stage = block % 2, row0 = block * TILE_Q;
        wait_copies<0>();
        publish_to_wgmma();
        __syncthreads();  // this block's rows are there for all, and the other buffers have been read by all
        copy_queries(block - 1, stage ^ 1);

        unsigned q_tile = shared_address(q_tiles + stage * kQueryBytes);
        unsigned gradient_tile = shared_address(gradient_tiles + stage * kGradientBytes);
        float s[kQueryTiles][4] = {}, dp[kQueryTiles][4] = {};
        pin(s), pin(dp);
        begin_products();
        multiply_rows<T, kDepth, kKeys, TILE_Q>(s, k_address, warpgroup * 64, q_tile);
        commit_products();
        multiply_rows<T, kDepthV, kKeys, TILE_Q>(dp, v_address, warpgroup * 64, gradient_tile);
        commit_products();
        wait_products<1>();
        pin(s);

        // P^T. A row without a visible key has LSE = -inf; rows past the end are given +inf, and both make P = 0.
        const float *lse_tile = rows_of + stage * 2 * TILE_Q, *sum_tile = lse_tile + TILE_Q;
        bool masked = key0 + kKeys > seq_kv || row0 + TILE_Q > seq || (CAUSAL && row0 + diagonal < kKeys - 1);
#pragma unroll
        for (int j = 0; j < kQueryTiles; j++) {
            int column = j * 8 + lane % 4 * 2;
            float2 shift = *reinterpret_cast<const float2 *>(lse_tile + column);
            shift.x *= kLog2E, shift.y *= kLog2E;
            if (shift.x == -CUDART_INF_F) shift.x = CUDART_INF_F;
            if (shift.y == -CUDART_INF_F) shift.y = CUDART_INF_F;
#pragma unroll
            for (int e = 0; e < 4; e++) s[j][e] = exp2_fast(fmaf(s[j][e], scale_log2, -(e % 2 ? shift.y : shift.x)));
            if (masked) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int r = row0 + column + e % 2, local = key + e / 2 * 8;
                    if (r >= seq || key0 + local >= seq_kv || (CAUSAL && local > r + diagonal)) s[j][e] = 0.0f;
                }
            }
        }
        unsigned p[kQueryTiles / 2][4], ds[kQueryTiles / 2][4];
        pack_rows<T>(p, s);
        wait_products<0>();
        pin(dp);
        pin(dv_sum);
        begin_products();
        multiply_registers<T, TILE_Q>(dv_sum, p, gradient_tile);
        commit_products();

        // dS^T, to registers for dK and to shared memory for dQ.
#pragma unroll
        for (int j = 0; j < kQueryTiles; j++) {
            float2 sum = *reinterpret_cast<const float2 *>(sum_tile + j * 8 + lane % 4 * 2);
#pragma unroll
            for (int e = 0; e < 4; e++) dp[j][e] = s[j][e] * (dp[j][e] - (e % 2 ? sum.y : sum.x));
        }
        pack_rows<T>(ds, dp);
#pragma unroll
        for (int j = 0; j < kQueryTiles; j++)
            store_matrices(scores_address + Scores::offset(key - lane / 4 + lane % 16, j), ds[j / 2][j % 2 * 2],
                           ds[j / 2][j % 2 * 2 + 1]);
        pin(dk_sum);
        begin_products();
        multiply_registers<T, TILE_Q>(dk_sum, ds, q_tile);
        commit_products();
        publish_to_wgmma();
        __syncthreads();  // dS^T is there for both warpgroups

        // This warpgroup's 64 x 64 piece of dQ: half of the columns, or half of the rows.
        float part[8][4] = {};
        int row_panel = TILE_Q == 128 ? warpgroup : 0, column_panel = TILE_Q == 128 ? 0 : warpgroup;
        pin(part);
        begin_products();
        multiply_columns<T, kKeys>(part, scores_address, row_panel, k_address, column_panel);
        commit_products();
        wait_products<0>();
        pin(part), pin(dk_sum), pin(dv_sum);
        int row = row0 + row_panel * 64 + threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int r = row + half * 8, column = column_panel * 64 + j * 8 + lane % 4 * 2;
                if (r < seq && column < DIM)
                    add_pair(dq + static_cast<long long>(r) * DIM + column, part[j][2 * half], part[j][2 * half + 1]);
            }
    }
    wait_copies<0>();
    __syncthreads();  // K and V have been read; the results pass through their place

    int rows = min(kKeys, seq_kv - key0);
    T *dk_head, *dv_head;
    long long dk_pitch = k_pitch, dv_pitch = v_pitch;
    if constexpr (PARTS) {
        long long part_row = ((static_cast<long long>(b) * kv_heads + h / group) * group + h % group) * seq_kv + key0;
        dk_head = dk + part_row * DIM, dv_head = dv + part_row * DIM_V;
        dk_pitch = DIM, dv_pitch = DIM_V;
    } else {
        dk_head = head_of<DIM, TOKEN_MAJOR>(dk, b, h, heads, seq_kv) + key0 * k_pitch;
        dv_head = head_of<DIM_V, TOKEN_MAJOR>(dv, b, h, heads, seq_kv) + key0 * v_pitch;
    }
    store_rows<DIM, kDepth, ALIGNED_K>(dk_head, dk_pitch, warpgroup * 64, rows, dk_sum, scale,
                                       k_tile + warpgroup * kKeyBytes / 2);
    store_rows<DIM_V, kDepthV, ALIGNED_V>(dv_head, dv_pitch, warpgroup * 64, rows, dv_sum, 1.0f,
                                          v_tile + warpgroup * kValueBytes / 2);
}
