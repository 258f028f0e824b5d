// FlashAttention-2 backward (Dao 2023, arXiv:2307.08691, algorithm 2) for head dimensions of 129 to 256: gradients of one
// block of keys and values.
//
//        queries →  32   32   32   32  …   A CTA owns 64 keys of one head, all that dK and dV leave registers for. Of each
//               ┌────┬────┬────┬────┐      64 queries its two warpgroups compute 32 columns each of Sᵀ=KQᵀ, dPᵀ=VdOᵀ,
//   64 keys     │ w0 │ w1 │ w0 │ w1 │      Pᵀ and dSᵀ=Pᵀ(dPᵀ−D). Through shared memory Pᵀ and dSᵀ of all 64 become operands:
//               └────┴────┴────┴────┘      of dQ += dS K, added in the L2; then of dV += Pᵀ dO, which is the first
//                                          warpgroup's, and of dK += dSᵀ Q, the second's.
//
// Macros: T, DIM, DIM_V, ALIGNED_K, ALIGNED_V (elements of a row that are aligned together); and, as 0 or 1, CAUSAL,
// TOKEN_MAJOR (layout bshd), PARTS (dK and dV per query head, expanded).
#include "cta_record.cuh"
#include "key_block.cuh"
#include "warpgroup.cuh"

constexpr int kThreads = 256, kKeys = 64, kQueries = 64;
constexpr int kOwnQueries = kQueries / 2, kOwnTiles = kOwnQueries / 8;  // a warpgroup's columns of the scores
constexpr int kDepth = (DIM + 63) / 64 * 64, kDepthV = (DIM_V + 63) / 64 * 64;
constexpr int kWidest = kDepth > kDepthV ? kDepth : kDepthV;
constexpr int kOwnPanels = (kDepth / 64 + 1) / 2;  // of 64 columns of dQ, dealt to the warpgroups in turn
constexpr int kKeyBytes = kKeys * kDepth * sizeof(T), kValueBytes = kKeys * kDepthV * sizeof(T);
constexpr int kQueryBytes = kQueries * kDepth * sizeof(T), kGradientBytes = kQueries * kDepthV * sizeof(T);
constexpr int kScoreBytes = kKeys * kQueries * sizeof(T);
using Scores = Panels<kKeys>;  // P^T or dS^T: a row per key

// Writes 64 x 8 Tiles fragments, rounded to T, to a tile of scores from chunk `chunk` of its rows on.
template <int Tiles>
__device__ __forceinline__ void store_scores(unsigned tile, const float (&d)[Tiles][4], int chunk) {
    int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16;
#pragma unroll
    for (int j = 0; j < Tiles; j++)
        store_matrices(tile + Scores::offset(row, chunk + j), pack<T>(d[j][0], d[j][1]), pack<T>(d[j][2], d[j][3]));
}

// The first Tiles of more fragments.
template <int Tiles, int All>
__device__ __forceinline__ float (&first_of(float (&d)[All][4]))[Tiles][4] {
    static_assert(Tiles <= All, "a part");
    return reinterpret_cast<float(&)[Tiles][4]>(d);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    flash2_backward(const T *__restrict__ q, const T *__restrict__ gradient, const float *__restrict__ lse,
                    const float *__restrict__ row_sums, float *__restrict__ dq, const T *__restrict__ k,
                    const T *__restrict__ v, T *__restrict__ dk, T *__restrict__ dv, int batch, int heads, int group,
                    int seq, int seq_kv, float scale) {
    CtaRecord record;
    extern __shared__ __align__(1024) char shared[];
    char *k_tile = shared, *v_tile = k_tile + kKeyBytes, *q_tiles = v_tile + kValueBytes;
    char *gradient_tiles = q_tiles + 2 * kQueryBytes, *p_tile = gradient_tiles + 2 * kGradientBytes;
    float *rows_of = reinterpret_cast<float *>(p_tile + 2 * kScoreBytes);  // [2][LSE, D][kQueries]

    KeyBlock x = key_block_of<kKeys>(blockIdx.x, batch, seq, seq_kv);
    int kv_heads = heads / group;
    long long q_pitch = pitch_of<DIM, TOKEN_MAJOR>(heads), v_pitch = pitch_of<DIM_V, TOKEN_MAJOR>(kv_heads);
    long long k_pitch = pitch_of<DIM, TOKEN_MAJOR>(kv_heads), gradient_pitch = pitch_of<DIM_V, TOKEN_MAJOR>(heads);
    q = head_of<DIM, TOKEN_MAJOR>(q, x.b, x.h, heads, seq);
    gradient = head_of<DIM_V, TOKEN_MAJOR>(gradient, x.b, x.h, heads, seq);
    long long first_row = (static_cast<long long>(x.b) * heads + x.h) * seq;
    dq += first_row * DIM, lse += first_row, row_sums += first_row;

    // The query blocks that see any key, from the last one down.
    int first = CAUSAL ? max(0, -x.diagonal) / kQueries : 0, last = (seq + kQueries - 1) / kQueries - 1;
    auto copy_queries = [&](int block, int stage) {
        if (block >= first) {
            copy_panels<T, kQueries, DIM, ALIGNED_K, kThreads>(q_tiles + stage * kQueryBytes, q, q_pitch, block * kQueries, seq);
            copy_panels<T, kQueries, DIM_V, ALIGNED_V, kThreads>(gradient_tiles + stage * kGradientBytes, gradient,
                                                                 gradient_pitch, block * kQueries, seq);
            int row = block * kQueries + threadIdx.x % kQueries;
            if (threadIdx.x < 2 * kQueries)
                copy_async<4>(shared_address(rows_of + stage * 2 * kQueries + threadIdx.x),
                              (threadIdx.x < kQueries ? lse : row_sums) + (row < seq ? row : 0), row < seq);
        }
        commit_copies();
    };
    copy_panels<T, kKeys, DIM, ALIGNED_K, kThreads>(
        k_tile, head_of<DIM, TOKEN_MAJOR>(k, x.b, x.h / group, kv_heads, seq_kv), k_pitch, x.first, seq_kv);
    copy_panels<T, kKeys, DIM_V, ALIGNED_V, kThreads>(
        v_tile, head_of<DIM_V, TOKEN_MAJOR>(v, x.b, x.h / group, kv_heads, seq_kv), v_pitch, x.first, seq_kv);
    copy_queries(last, last % 2);

    int warpgroup = __shfl_sync(~0u, threadIdx.x / 128, 0);  // one value to a warp, as wgmma in a branch needs
    int key = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;  // of the block; this lane has key and key + 8
    unsigned k_address = shared_address(k_tile), v_address = shared_address(v_tile);
    unsigned p_address = shared_address(p_tile), ds_address = p_address + kScoreBytes;
    float sum[kWidest / 8][4] = {};  // of dV, or of dK
    float scale_log2 = scale * kLog2E;

    for (int block = last; block >= first; block--) {
        int stage = block % 2, row0 = block * kQueries;
        wait_copies<0>();
        publish_to_wgmma();
        __syncthreads();  // this block's rows are there for all, and the other buffers have been read by all
        copy_queries(block - 1, stage ^ 1);

        unsigned q_tile = shared_address(q_tiles + stage * kQueryBytes);
        unsigned gradient_tile = shared_address(gradient_tiles + stage * kGradientBytes);
        float p[kOwnTiles][4] = {}, ds[kOwnTiles][4] = {};
        int own = warpgroup * kOwnQueries;
        pin(p), pin(ds);
        begin_products();
        multiply_rows<T, kDepth, kKeys, kQueries>(p, k_address, 0, q_tile + own * 128);
        commit_products();
        multiply_rows<T, kDepthV, kKeys, kQueries>(ds, v_address, 0, gradient_tile + own * 128);
        commit_products();
        wait_products<1>();
        pin(p);
        const float *lse_tile = rows_of + stage * 2 * kQueries + own;
        probabilities<kKeys, CAUSAL>(p, lse_tile, x, key, row0 + own, scale_log2);
        store_scores(p_address, p, own / 8);
        wait_products<0>();
        pin(ds);
        score_gradient(ds, p, lse_tile + kQueries);
        store_scores(ds_address, ds, own / 8);
        publish_to_wgmma();
        __syncthreads();  // P^T and dS^T are there for both warpgroups

        float part[kOwnPanels][8][4] = {};
        auto is_panel = [&](int n) { return 2 * n + 1 < kDepth / 64 || warpgroup == 0; };  // of an odd number
        auto add_panel = [&](int n) {
            if (is_panel(n)) add_rows<DIM>(dq, part[n], row0, seq, (warpgroup + 2 * n) * 64);
        };
#pragma unroll
        for (int n = 0; n < kOwnPanels; n++) pin(part[n]);
        pin(sum);
        begin_products();
#pragma unroll
        for (int n = 0; n < kOwnPanels; n++) {
            if (is_panel(n)) multiply_columns<T, kKeys>(part[n], ds_address, 0, k_address, warpgroup + 2 * n);
            if (!kAsynchronous) add_panel(n);
        }
        commit_products();
        if constexpr (kDepth == kDepthV) {
            multiply_tiles<T, kQueries>(sum, p_address + warpgroup * kScoreBytes, warpgroup ? q_tile : gradient_tile);
        } else if (warpgroup == 0) {
            multiply_tiles<T, kQueries>(first_of<kDepthV / 8>(sum), p_address, gradient_tile);
        } else {
            multiply_tiles<T, kQueries>(first_of<kDepth / 8>(sum), ds_address, q_tile);
        }
        commit_products();
        wait_products<1>();
#pragma unroll
        for (int n = 0; n < kOwnPanels; n++) {
            pin(part[n]);
            if (kAsynchronous) add_panel(n);
        }
        wait_products<0>();
        pin(sum);
    }
    wait_copies<0>();
    __syncthreads();  // K and V have been read; the results pass through their place

    int rows = min(kKeys, seq_kv - x.first);
    if (warpgroup == 0) {
        store_rows<DIM_V, kDepthV, ALIGNED_V>(gradient_of<DIM_V, TOKEN_MAJOR, PARTS>(dv, x, heads),
                                              gradient_pitch_of<DIM_V, TOKEN_MAJOR, PARTS>(heads), 0, rows,
                                              first_of<kDepthV / 8>(sum), 1.0f, v_tile);
    } else {
        store_rows<DIM, kDepth, ALIGNED_K>(gradient_of<DIM, TOKEN_MAJOR, PARTS>(dk, x, heads),
                                           gradient_pitch_of<DIM, TOKEN_MAJOR, PARTS>(heads), 0, rows,
                                           first_of<kDepth / 8>(sum), scale, k_tile);
    }
}
