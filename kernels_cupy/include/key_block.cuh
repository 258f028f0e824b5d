// FlashAttention's backward pass over one block of keys, apart from its products: where the block lies, row work on
// transposed scores, and how gradients leave the CTA.
//
// Transposed scores have a row per key and a column per query. As the result of a warpgroup's product a warp holds 16 of
// the keys, of which a lane has `key` and `key + 8`.
#pragma once

#include "matrix.cuh"
#include "query_blocks.cuh"
#include "shared.cuh"
#include "softmax.cuh"

// The keys and the query head of a CTA: grid (key blocks, batch, heads), key blocks fastest.
struct KeyBlock {
    int b, h;      // batch entry and query head
    int first;     // key
    int seq, seq_kv;
    int diagonal;  // query row r sees the block's key j iff j <= r + diagonal
};

template <int Keys>
__device__ __forceinline__ KeyBlock key_block_of(unsigned cta, int batch, int seq, int seq_kv) {
    int blocks = (seq_kv + Keys - 1) / Keys, first = cta % blocks * Keys;
    int b = cta / blocks % batch, h = cta / blocks / batch;
    return {b, h, first, seq, seq_kv, seq_kv - seq - first};
}

// P^T of S^T, for queries from `row0` on, with their LSE. A row without a visible key has LSE = -inf; rows past the end are
// given +inf, and both make P = 0.
template <int Keys, bool Causal, int Tiles>
__device__ __forceinline__ void probabilities(float (&s)[Tiles][4], const float *lse, const KeyBlock &x, int key, int row0,
                                              float scale_log2) {
    int lane = threadIdx.x % 32;
    bool masked = x.first + Keys > x.seq_kv || row0 + Tiles * 8 > x.seq || (Causal && row0 + x.diagonal < Keys - 1);
#pragma unroll
    for (int j = 0; j < Tiles; j++) {
        int column = j * 8 + lane % 4 * 2;
        float2 shift = *reinterpret_cast<const float2 *>(lse + column);
        shift.x *= kLog2E, shift.y *= kLog2E;
        if (shift.x == -CUDART_INF_F) shift.x = CUDART_INF_F;
        if (shift.y == -CUDART_INF_F) shift.y = CUDART_INF_F;
#pragma unroll
        for (int e = 0; e < 4; e++) s[j][e] = exp2_fast(fmaf(s[j][e], scale_log2, -(e % 2 ? shift.y : shift.x)));
        if (masked) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int r = row0 + column + e % 2, local = key + e / 2 * 8;
                if (r >= x.seq || x.first + local >= x.seq_kv || (Causal && local > r + x.diagonal)) s[j][e] = 0.0f;
            }
        }
    }
}

// dS^T = P^T (dP^T - D) in place of dP^T, with D of its queries in `sums`.
template <int Tiles>
__device__ __forceinline__ void score_gradient(float (&dp)[Tiles][4], const float (&p)[Tiles][4], const float *sums) {
#pragma unroll
    for (int j = 0; j < Tiles; j++) {
        float2 sum = *reinterpret_cast<const float2 *>(sums + j * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) dp[j][e] = p[j][e] * (dp[j][e] - (e % 2 ? sum.y : sum.x));
    }
}

// Adds two neighbouring elements in the L2.
__device__ __forceinline__ void add_pair(float *target, float first, float second) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(target), "f"(first), "f"(second) : "memory");
#else
    atomicAdd(target, first);
    atomicAdd(target + 1, second);
#endif
}

// Adds a warpgroup's 64 x 8 Tiles fragments to `rows` x Cols sums, from (`row`, `column`) on, in the L2. Columns are part of
// a panel of 64 that may stick out of the sums.
template <int Cols, int Tiles>
__device__ __forceinline__ void add_rows(float *sums, const float (&d)[Tiles][4], int row, int rows, int column) {
    int lane = threadIdx.x % 32;
    row += threadIdx.x / 32 % 4 * 16 + lane / 4, column += lane % 4 * 2;
    sums += static_cast<long long>(row) * Cols + column;
    asm volatile("" : "+l"(sums));  // one address, from which the others are constants apart, and not one kept for each
#pragma unroll
    for (int j = 0; j < Tiles; j++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (row + half * 8 < rows && (Cols % 64 == 0 || column + j * 8 < Cols))
                add_pair(sums + half * 8 * Cols + j * 8, d[j][2 * half], d[j][2 * half + 1]);
}

// Elements between two rows of dK or dV, which with Parts each query head has its own of, [batch, heads, keys, Cols].
template <int Cols, bool TokenMajor, bool Parts>
__device__ __forceinline__ long long gradient_pitch_of(int heads) {
    return Parts ? Cols : pitch_of<Cols, TokenMajor>(heads);
}

// The block's first row of dK or dV.
template <int Cols, bool TokenMajor, bool Parts, class T>
__device__ __forceinline__ T *gradient_of(T *tensor, const KeyBlock &x, int heads) {
    return head_of<Cols, TokenMajor && !Parts>(tensor, x.b, x.h, heads, x.seq_kv) +
           x.first * gradient_pitch_of<Cols, TokenMajor, Parts>(heads);
}

// Stores a warpgroup's 64 rows of fragments, scaled, from `row` of a matrix of `rows` x Cols, through `tile`
// (64 x Columns) in chunks of 16 bytes.
template <int Cols, int Columns, int Vector, class T>
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
