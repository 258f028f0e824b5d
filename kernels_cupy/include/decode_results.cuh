// Where a decoding CTA stores the results of its rows, from the macros T, DIM_V, RESULT and TOKEN_MAJOR.
#pragma once

#include "decode_parts.cuh"
#include "numbers.cuh"
#include "query_blocks.cuh"

enum Result { kFinal, kPartial, kUnmerged };  // O, LSE; the same of a part in fp32; O, maximum, sum of a part in fp32

// Row of the tile row r among all rows of O and LSE, or of all parts' O and LSE [batch, heads, parts, rows].
__device__ __forceinline__ long long result_row(const DecodePart &x, int heads, int parts, int r) {
    long long matrix = static_cast<long long>(x.batch) * heads + x.head + quotient(r, x.tokens);
    return (RESULT == kFinal ? matrix : matrix * parts + x.part) * x.rows + x.row + remainder(r, x.tokens);
}

// Stores four columns of row r of the tile.
__device__ __forceinline__ void store_columns(void *o, const DecodePart &x, int heads, int parts, int r, int column,
                                              float4 y) {
    if constexpr (RESULT == kFinal) {
        T *o_head = head_of<DIM_V, TOKEN_MAJOR>(static_cast<T *>(o), x.batch, x.head + quotient(r, x.tokens), heads, x.rows);
        T *target = o_head + (x.row + remainder(r, x.tokens)) * pitch_of<DIM_V, TOKEN_MAJOR>(heads) + column;
        *reinterpret_cast<uint2 *>(target) = make_uint2(pack<T>(y.x, y.y), pack<T>(y.z, y.w));
    } else {
        float *target = static_cast<float *>(o) + result_row(x, heads, parts, r) * DIM_V + column;
        *reinterpret_cast<float4 *>(target) = y;
    }
}

// Stores LSE, or the maximum and the sum, of row r: `maximum` of the scaled scores, `total` of their exponentials.
__device__ __forceinline__ void store_row(float *first, float *sums, const DecodePart &x, int heads, int parts, int r,
                                          float maximum, float total) {
    long long target = result_row(x, heads, parts, r);
    if constexpr (RESULT == kUnmerged) {
        first[target] = total > 0.0f ? maximum : -CUDART_INF_F;
        sums[target] = total;
    } else {
        first[target] = total > 0.0f ? maximum + logf(total) : -CUDART_INF_F;
    }
}
