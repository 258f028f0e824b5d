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
#include "key_block.cuh"
#include "warpgroup.cuh"

constexpr int kThreads = 256, kKeys = 128;
constexpr int kDepth = (DIM + 63) / 64 * 64, kDepthV = (DIM_V + 63) / 64 * 64;
constexpr int kQueryTiles = TILE_Q / 8;
constexpr int kKeyBytes = kKeys * kDepth * sizeof(T), kValueBytes = kKeys * kDepthV * sizeof(T);
constexpr int kQueryBytes = TILE_Q * kDepth * sizeof(T), kGradientBytes = TILE_Q * kDepthV * sizeof(T);
constexpr int kScoreBytes = kKeys * TILE_Q * sizeof(T);
static_assert(TILE_Q * kDepth == 64 * 128, "a 64 x 64 piece of dQ for each warpgroup");
using Scores = Panels<kKeys>;  // dS^T: a row per key

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

    KeyBlock x = key_block_of<kKeys>(blockIdx.x, batch, seq, seq_kv);
    int kv_heads = heads / group;
    long long q_pitch = pitch_of<DIM, TOKEN_MAJOR>(heads), v_pitch = pitch_of<DIM_V, TOKEN_MAJOR>(kv_heads);
    long long k_pitch = pitch_of<DIM, TOKEN_MAJOR>(kv_heads), gradient_pitch = pitch_of<DIM_V, TOKEN_MAJOR>(heads);
    q = head_of<DIM, TOKEN_MAJOR>(q, x.b, x.h, heads, seq);
    gradient = head_of<DIM_V, TOKEN_MAJOR>(gradient, x.b, x.h, heads, seq);
    long long first_row = (static_cast<long long>(x.b) * heads + x.h) * seq;
    dq += first_row * DIM, lse += first_row, row_sums += first_row;

    // The query blocks that see any key, from the last one down.
    int first = CAUSAL ? max(0, -x.diagonal) / TILE_Q : 0, last = (seq + TILE_Q - 1) / TILE_Q - 1;
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
    stamp(kPlaced);
    copy_panels<T, kKeys, DIM, ALIGNED_K, kThreads>(
        k_tile, head_of<DIM, TOKEN_MAJOR>(k, x.b, x.h / group, kv_heads, seq_kv), k_pitch, x.first, seq_kv);
    copy_panels<T, kKeys, DIM_V, ALIGNED_V, kThreads>(
        v_tile, head_of<DIM_V, TOKEN_MAJOR>(v, x.b, x.h / group, kv_heads, seq_kv), v_pitch, x.first, seq_kv);
    copy_queries(last, last % 2);
    stamp(kIssued);

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
        stamp(kArrived, last - block);
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

        const float *lse_tile = rows_of + stage * 2 * TILE_Q;
        probabilities<kKeys, CAUSAL>(s, lse_tile, x, key, row0, scale_log2);
        unsigned p[kQueryTiles / 2][4], ds[kQueryTiles / 2][4];
        pack_rows<T>(p, s);
        wait_products<0>();
        pin(dp);
        pin(dv_sum);
        begin_products();
        multiply_registers<T, TILE_Q>(dv_sum, p, gradient_tile);
        commit_products();

        // dS^T, to registers for dK and to shared memory for dQ.
        score_gradient(dp, s, lse_tile + TILE_Q);
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
        stamp(kMultiplied, last - block);
        add_rows<DIM>(dq, part, row0 + row_panel * 64, seq, column_panel * 64);
        stamp(kSent, last - block);
    }
    wait_copies<0>();
    __syncthreads();  // K and V have been read; the results pass through their place
    stamp(kReady);

    int rows = min(kKeys, seq_kv - x.first);
    store_rows<DIM, kDepth, ALIGNED_K>(gradient_of<DIM, TOKEN_MAJOR, PARTS>(dk, x, heads),
                                       gradient_pitch_of<DIM, TOKEN_MAJOR, PARTS>(heads), warpgroup * 64, rows, dk_sum,
                                       scale, k_tile + warpgroup * kKeyBytes / 2);
    store_rows<DIM_V, kDepthV, ALIGNED_V>(gradient_of<DIM_V, TOKEN_MAJOR, PARTS>(dv, x, heads),
                                          gradient_pitch_of<DIM_V, TOKEN_MAJOR, PARTS>(heads), warpgroup * 64, rows,
                                          dv_sum, 1.0f, v_tile + warpgroup * kValueBytes / 2);
}
