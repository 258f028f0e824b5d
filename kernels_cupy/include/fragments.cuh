// Row work on mma.sync results in registers: one fragment of 4 per 16x8 tile. Lane l holds of `half` 0 the columns
// 2(l%4) and + 1 of row l/4, of `half` 1 those of row l/4 + 8.
#pragma once

#include "softmax.cuh"

template <int RowTiles, int Tiles>
__device__ __forceinline__ void clear(float (&x)[RowTiles][Tiles][4]) {
#pragma unroll
    for (int m = 0; m < RowTiles; m++)
#pragma unroll
        for (int n = 0; n < Tiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[m][n][e] = 0.0f;
}

// Makes a row's columns from `end` on -inf, and with Windowed those before `first`.
template <bool Windowed, int Tiles>
__device__ __forceinline__ void hide_columns(float (&row)[Tiles][4], int half, int first, int end) {
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < Tiles; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int key = column + n * 8 + e;
            if (key >= end || (Windowed && key < first)) row[n][2 * half + e] = -CUDART_INF_F;
        }
}

// The largest of `top` and a row's columns, in each of the four lanes that hold the row.
template <int Tiles>
__device__ __forceinline__ float row_maximum(const float (&row)[Tiles][4], int half, float top) {
#pragma unroll
    for (int n = 0; n < Tiles; n++) top = fmaxf(top, fmaxf(row[n][2 * half], row[n][2 * half + 1]));
    return lane_max<4>(top);
}

// Multiplies every row by its factor.
template <int RowTiles, int Tiles>
__device__ __forceinline__ void scale_rows(float (&x)[RowTiles][Tiles][4], const float (&factor)[RowTiles][2]) {
#pragma unroll
    for (int m = 0; m < RowTiles; m++)
#pragma unroll
        for (int n = 0; n < Tiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[m][n][e] *= factor[m][e / 2];
}
