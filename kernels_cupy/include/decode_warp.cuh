// What a warp of decode.cu does with its keys of one step: S = Q K^T, the running softmax, O += P V.
#pragma once

#include "decode_tiles.cuh"
#include "fragments.cuh"
#include "matrix.cuh"

struct WarpRows {
    float scores[kRowTiles][kKeyTiles][4];
    float output[kRowTiles][kAccumulators][4];
    float maximum[kRowTiles][kHalves];  // of raw scores
    float total[kRowTiles][kHalves];    // this lane's share of the row sum
};

// Q as operand of one k16 step. With K in codes, lane c of a row takes elements 16c + 4s … + 3 of each 64 in step s:
// the order of a contraction is free, and so K's codes are read 16 at a time.
__device__ __forceinline__ void fetch_query(unsigned (&a)[4], const char *q_tile, int m, int step) {
    int lane = threadIdx.x % 32;
    if constexpr (kKeyCodes) {
        int column = step / 4 * 64 + lane % 4 * 16 + step % 4 * 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = m * 16 + half * 8 + lane / 4;
            uint2 x = *reinterpret_cast<const uint2 *>(q_tile + QueryRow::offset(row, column / 8) + column % 8 * 2);
            a[half] = x.x, a[2 + half] = x.y;
        }
    } else {
        load_matrices(a, shared_address(q_tile) + m * 16 * DIM * sizeof(T) +
                             QueryRow::offset(lane % 16, 2 * step + lane / 16));
    }
}

using Query = unsigned[kRowTiles][kQueryInRegisters ? kSteps : 1][4];

// scores = Q K^T of this warp's keys.
template <class Key>
__device__ __forceinline__ void multiply_scores(WarpRows &w, Query &query, const char *q_tile, const char *k_tile) {
    int lane = threadIdx.x % 32;
    unsigned keys = shared_address(k_tile);
    clear(w.scores);
    constexpr int kFetched = kKeyCodes ? 4 : 1;  // k16 steps of one fetch
#pragma unroll
    for (int first = 0; first < kSteps; first += kFetched) {
        if constexpr (!kQueryInRegisters && !kKeyCodes) {
#pragma unroll
            for (int m = 0; m < kRowTiles; m++) fetch_query(query[m][0], q_tile, m, first);
        }
        if constexpr (sizeof(Key) == 1) {
#pragma unroll
            for (int n = 0; n < kKeyTiles; n++) {
                const uint4 codes = *reinterpret_cast<const uint4 *>(
                    k_tile + KeyRow::offset(n * 8 + lane / 4, first / 4 * 4 + lane % 4));
                const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    unsigned b[2];
                    widen<T, Key>(words[s], b);
#pragma unroll
                    for (int m = 0; m < kRowTiles; m++) {
                        unsigned a[4];
                        if constexpr (!kQueryInRegisters) fetch_query(a, q_tile, m, first + s);
                        multiply<T>(w.scores[m][n], kQueryInRegisters ? query[m][first + s] : a, b[0], b[1]);
                    }
                }
            }
        } else {
#pragma unroll
            for (int n = 0; n < kKeyTiles / 2; n++) {
                unsigned b[4];
                load_matrices(b, keys + n * 16 * kKeyBytes +
                                     KeyRow::offset(lane % 8 + lane / 16 * 8, 2 * first + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < kRowTiles; m++) {
                    const unsigned(&a)[4] = query[m][kQueryInRegisters ? first : 0];
                    multiply<T>(w.scores[m][2 * n], a, b[0], b[1]);
                    multiply<T>(w.scores[m][2 * n + 1], a, b[2], b[3]);
                }
            }
        }
    }
}

// Columns of Q that meet outliers of K, as operands of k16 steps; 0 past the last one.
using OutlierQuery = unsigned[kRowTiles][kOutlierSteps ? kOutlierSteps : 1][4];

__device__ __forceinline__ void fetch_outlier_query(OutlierQuery &a, const char *q_tile, const int *channels) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < kOutlierSteps; step++)
#pragma unroll
        for (int right = 0; right < 2; right++) {
            int k = step * 16 + right * 8 + lane % 4 * 2;
            int first = k < OUTLIERS ? __ldg(channels + k) : 0, second = k < OUTLIERS ? __ldg(channels + k + 1) : 0;
            auto element = [&](int row, int column) -> unsigned {
                return *reinterpret_cast<const unsigned short *>(q_tile + QueryRow::offset(row, column / 8) + column % 8 * 2);
            };
#pragma unroll
            for (int m = 0; m < kRowTiles; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int row = m * 16 + half * 8 + lane / 4;
                    unsigned pair = element(row, first) | element(row, second) << 16;
                    a[m][step][2 * right + half] = k < OUTLIERS ? pair : 0;
                }
        }
}

// scores += the products with this warp's outliers, which lie key by key.
__device__ __forceinline__ void multiply_outliers(WarpRows &w, const OutlierQuery &query, const char *tile) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kKeyTiles; n++)
#pragma unroll
        for (int step = 0; step < kOutlierSteps; step++) {
            unsigned b[2];
#pragma unroll
            for (int right = 0; right < 2; right++) {
                int k = step * 16 + right * 8 + lane % 4 * 2;
                const char *place = tile + (n * 8 + lane / 4) * kOutlierBytes + k * 2;
                b[right] = k < OUTLIERS ? *reinterpret_cast<const unsigned *>(place) : 0;
            }
#pragma unroll
            for (int m = 0; m < kRowTiles; m++) multiply<T>(w.scores[m][n], query[m][step], b[0], b[1]);
        }
}

// output += P V of this warp's keys, P rounded to T. Codes of V come as [2c][2g], [2c][2g+1], [2c+1][2g], [2c+1][2g+1]
// (row, column) in one word: even columns make one operand and odd columns the next, see `output_column`.
// Up to eight rows are multiplied as V^T P^T: P's fragment is the same, and V's of two tiles is one of 16 columns.
template <class Value>
__device__ __forceinline__ void multiply_output(WarpRows &w, const char *v_tile) {
    int lane = threadIdx.x % 32;
    unsigned values = shared_address(v_tile);
#pragma unroll
    for (int step = 0; step < kKeys / 16; step++) {
        unsigned a[kRowTiles][4];
#pragma unroll
        for (int m = 0; m < kRowTiles; m++) {
            as_operand<T>(a[m], w.scores[m], step);
            if constexpr (kHalves == 1 && !kTransposed) a[m][1] = a[m][3] = 0;
        }
#pragma unroll
        for (int n = 0; n < kValueBytes / 32; n++) {  // two chunks of columns at a time
            unsigned b[4];
            unsigned tile = values + step * 16 * kValueBytes;
            load_matrices_transposed(b, tile + ValueRow::offset(lane % 16, 2 * n + lane / 16));
            if constexpr (sizeof(Value) == 1) {
#pragma unroll
                for (int chunk = 0; chunk < 2; chunk++) {
                    unsigned low[2], high[2];  // of keys, [even columns, odd columns]
                    widen_alternate<T, Value>(b[2 * chunk], low), widen_alternate<T, Value>(b[2 * chunk + 1], high);
                    if constexpr (kTransposed) {
                        const unsigned columns[4] = {low[0], low[1], high[0], high[1]};
                        multiply<T>(w.output[0][2 * n + chunk], columns, a[0][0], a[0][2]);
                    } else {
#pragma unroll
                        for (int m = 0; m < kRowTiles; m++)
#pragma unroll
                            for (int odd = 0; odd < 2; odd++)
                                multiply<T>(w.output[m][4 * n + 2 * chunk + odd], a[m], low[odd], high[odd]);
                    }
                }
            } else if constexpr (kTransposed) {
                const unsigned columns[4] = {b[0], b[2], b[1], b[3]};
                multiply<T>(w.output[0][n], columns, a[0][0], a[0][2]);
            } else {
#pragma unroll
                for (int m = 0; m < kRowTiles; m++) {
                    multiply<T>(w.output[m][2 * n], a[m], b[0], b[1]);
                    multiply<T>(w.output[m][2 * n + 1], a[m], b[2], b[3]);
                }
            }
        }
    }
}

// Column of O that element `e` (0 or 1) of output tile n is; not transposed.
__device__ __forceinline__ int output_column(int n, int e) {
    int lane = threadIdx.x % 4;
    return kValueCodes ? n / 2 * 16 + lane * 4 + 2 * e + n % 2 : n * 8 + lane * 2 + e;
}

// Puts this warp's output into shared memory, row r times share(r); rows from `rows` on are left out.
template <class Share>
__device__ __forceinline__ void put_output(float *target, const WarpRows &w, int rows, const Share &share) {
    int lane = threadIdx.x % 32;
    if constexpr (kTransposed) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int r = lane % 4 * 2 + e;
            if (r >= rows) continue;
            float factor = share(r), *row = target + r * kOutputPitch;
#pragma unroll
            for (int n = 0; n < kAccumulators; n++) {
                float2 x = {w.output[0][n][e] * factor, w.output[0][n][2 + e] * factor};
                if constexpr (kValueCodes) {
                    *reinterpret_cast<float2 *>(row + n * 16 + lane / 4 * 2) = x;
                } else {
                    row[n * 16 + lane / 4] = x.x, row[n * 16 + 8 + lane / 4] = x.y;
                }
            }
        }
    } else {
#pragma unroll
        for (int m = 0; m < kRowTiles; m++)
#pragma unroll
            for (int half = 0; half < kHalves; half++) {
                int r = m * 16 + half * 8 + lane / 4;
                if (r >= rows) continue;
                float factor = share(r), *row = target + r * kOutputPitch;
#pragma unroll
                for (int n = 0; n < kAccumulators; n += 2) {
                    const float(&a)[4] = w.output[m][n], (&b)[4] = w.output[m][n + 1];
                    float2 first = {a[2 * half] * factor, a[2 * half + 1] * factor};
                    float2 second = {b[2 * half] * factor, b[2 * half + 1] * factor};
                    if constexpr (kValueCodes) {
                        *reinterpret_cast<float4 *>(row + output_column(n, 0)) =
                            make_float4(first.x, second.x, first.y, second.y);
                    } else {
                        *reinterpret_cast<float2 *>(row + output_column(n, 0)) = first;
                        *reinterpret_cast<float2 *>(row + output_column(n + 1, 0)) = second;
                    }
                }
            }
    }
}

// Hides keys from `keys` on, and under a mask those outside each row's diagonal and window. Keys count from the warp's
// first; `token` are those of the lane's rows.
__device__ __forceinline__ void mask(WarpRows &w, const int (&token)[kRowTiles][kHalves], int keys, int diagonal,
                                     int window) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < kHalves; half++) {
            int end = token[m][half] + diagonal + 1, first = end - window;
            end = CAUSAL ? min(end, keys) : keys;
            hide_columns<WINDOW>(w.scores[m], half, first, end);
        }
}

// Multiplies column j of the scores by scale[j].
__device__ __forceinline__ void scale_columns(WarpRows &w, const float *scale) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; n++) {
        float2 s = *reinterpret_cast<const float2 *>(scale + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int m = 0; m < kRowTiles; m++)
#pragma unroll
            for (int e = 0; e < 2 * kHalves; e++) w.scores[m][n][e] *= e % 2 ? s.y : s.x;
    }
}

__device__ __forceinline__ void scale_all(WarpRows &w, float scale) {
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int n = 0; n < kKeyTiles; n++)
#pragma unroll
            for (int e = 0; e < 2 * kHalves; e++) w.scores[m][n][e] *= scale;
}

// Raises the running maxima, rescales what was summed before where that changes it, and turns scores into P.
__device__ __forceinline__ void online_softmax(WarpRows &w, float scale_log2) {
    float decay[kRowTiles][kHalves];
    bool rose = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; m++)
#pragma unroll
        for (int half = 0; half < kHalves; half++) {
            float top = row_maximum(w.scores[m], half, w.maximum[m][half]);
            float shift = safe_maximum(top) * scale_log2;
            decay[m][half] = exp2_fast(w.maximum[m][half] * scale_log2 - shift);
            rose |= top != w.maximum[m][half];
            w.maximum[m][half] = top;
            float total = w.total[m][half] * decay[m][half];
#pragma unroll
            for (int n = 0; n < kKeyTiles; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &s = w.scores[m][n][2 * half + e];
                    s = exp2_fast(fmaf(s, scale_log2, -shift));
                    total += s;
                }
            w.total[m][half] = total;
        }
    if (!__any_sync(~0u, rose)) return;
    if constexpr (kTransposed) {
        int lane = threadIdx.x % 4 * 8;  // the first with this lane's even row
        const float of_row[2] = {__shfl_sync(~0u, decay[0][0], lane), __shfl_sync(~0u, decay[0][0], lane + 4)};
#pragma unroll
        for (int n = 0; n < kAccumulators; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) w.output[0][n][e] *= of_row[e % 2];
    } else {
#pragma unroll
        for (int m = 0; m < kRowTiles; m++)
#pragma unroll
            for (int n = 0; n < kAccumulators; n++)
#pragma unroll
                for (int e = 0; e < 2 * kHalves; e++) w.output[m][n][e] *= decay[m][e / 2];
    }
}
