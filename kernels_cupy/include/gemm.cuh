// One output tile of C = scale * A B by one CTA: cp.async into Stages shared-memory buffers, mma.sync from them.
//
// The warps form a WarpsM x WarpsN grid over the tile. An operand is stored along the summed dimension K (A as [M, K],
// B as [N, K]) or, with AAlongM / BAlongN, across it (A as [K, M], B as [K, N]); ldmatrix transposes then.
#pragma once

#include "cta_record.cuh"
#include "matrix.cuh"
#include "shared.cuh"

template <class Element, int TileM, int TileN, int TileK, int Stages, int WarpsM, int WarpsN, int VectorA, int VectorB,
          int VectorC, bool AAlongM, bool BAlongN>
struct Gemm {
    static constexpr int kThreads = 32 * WarpsM * WarpsN;
    static constexpr int kWarpM = TileM / WarpsM, kWarpN = TileN / WarpsN;
    static constexpr int kBlocksM = kWarpM / 16, kBlocksN = kWarpN / 8;
    static constexpr int kSize = sizeof(Element);
    static constexpr int kABytes = TileM * TileK * kSize, kBBytes = TileN * TileK * kSize;
    static_assert(kSize == 2 && kWarpM % 16 == 0 && kWarpN % 8 == 0 && TileK % 16 == 0, "tiles of whole mma.sync shapes");

    using LayoutA = SharedRows<(AAlongM ? TileM : TileK) * kSize>;
    using LayoutB = SharedRows<(BAlongN ? TileN : TileK) * kSize>;
    using LayoutC = SharedRows<TileN * kSize>;

    // One operand or the result: element (0, 0) of the matrix, distance of its stored rows in elements.
    template <class Pointee>
    struct Matrix {
        Pointee *data;
        long long pitch;
    };

    float sums[kBlocksM][kBlocksN][4] = {};
    int lane = threadIdx.x % 32;
    int warp_m = threadIdx.x / 32 / WarpsN * kWarpM, warp_n = threadIdx.x / 32 % WarpsN * kWarpN;

    // C's tile at (row, col) of a matrix of m x n, summed over k.
    __device__ __forceinline__ void run(char *shared, Matrix<const Element> a, Matrix<const Element> b, Matrix<Element> c, int row, int m,
                                        int col, int n, int k, float scale) {
        int steps = (k + TileK - 1) / TileK;
        auto copy = [&](int step) {
            if (step < steps) {
                char *stage = shared + step % Stages * (kABytes + kBBytes);
                int start = step * TileK;
                if constexpr (AAlongM) {
                    copy_operand<TileK, TileM, VectorA>(stage, a, start, k, row, m);
                } else {
                    copy_operand<TileM, TileK, VectorA>(stage, a, row, m, start, k);
                }
                if constexpr (BAlongN) {
                    copy_operand<TileK, TileN, VectorB>(stage + kABytes, b, start, k, col, n);
                } else {
                    copy_operand<TileN, TileK, VectorB>(stage + kABytes, b, col, n, start, k);
                }
            }
            commit_copies();  // an empty group past the end keeps the count of pending groups the same
        };
#pragma unroll 1
        for (int step = 0; step < Stages - 1; step++) copy(step);
        stamp(kIssued);
        for (int step = 0; step < steps; step++) {
            if constexpr (Stages == 1) {
                __syncthreads();
                copy(step);
                wait_copies<0>();
                __syncthreads();
            } else {
                wait_copies<Stages - 2>();
                __syncthreads();  // the step's tiles are there for all, and the buffer of the step before is free
                copy(step + Stages - 1);
            }
            stamp(kArrived, step);
            const char *stage = shared + step % Stages * (kABytes + kBBytes);
            multiply_stage(shared_address(stage), shared_address(stage + kABytes));
            stamp(kMultiplied, step);
        }
        wait_copies<0>();
        __syncthreads();
        store(shared, c, row, m, col, n, scale);
        stamp(kSent);
    }

  private:
    // Starts the copy of a tile. Rows that all threads can share cost the fewest instructions; others, too many registers.
    template <int Rows, int Cols, int Vector>
    __device__ __forceinline__ void copy_operand(char *tile, Matrix<const Element> x, int row, int rows, int col, int cols) {
        if constexpr (kThreads % SharedRows<Cols * kSize>::kChunks == 0) {
            stream_tile<Element, Rows, Cols, Vector, kThreads>(tile, x.data, x.pitch, row, rows, col, cols);
        } else {
            copy_tile<Element, Rows, Cols, Vector, kThreads>(tile, x.data, x.pitch, row, rows, col, cols);
        }
    }

    __device__ __forceinline__ void multiply_stage(unsigned a, unsigned b) {
#pragma unroll
        for (int k = 0; k < TileK / 16; k++) {
            unsigned x[kBlocksM][4];
#pragma unroll
            for (int i = 0; i < kBlocksM; i++) load_a(x[i], a, warp_m + 16 * i, k);
#pragma unroll
            for (int j = 0; j + 1 < kBlocksN; j += 2) {
                unsigned y[4];
                load_b(y, b, warp_n + 8 * j, k);
#pragma unroll
                for (int i = 0; i < kBlocksM; i++) {
                    multiply<Element>(sums[i][j], x[i], y[0], y[1]);
                    multiply<Element>(sums[i][j + 1], x[i], y[2], y[3]);
                }
            }
            if constexpr (kBlocksN % 2) {
                unsigned y[2];
                load_b(y, b, warp_n + 8 * (kBlocksN - 1), k);
#pragma unroll
                for (int i = 0; i < kBlocksM; i++) multiply<Element>(sums[i][kBlocksN - 1], x[i], y[0], y[1]);
            }
        }
    }

    // Rows m to m+15, K-block k of A.
    __device__ __forceinline__ void load_a(unsigned (&x)[4], unsigned a, int m, int k) {
        if constexpr (AAlongM) {
            load_matrices_transposed(x, a + LayoutA::offset(16 * k + lane / 16 * 8 + lane % 8, m / 8 + lane / 8 % 2));
        } else {
            load_matrices(x, a + LayoutA::offset(m + lane % 16, 2 * k + lane / 16));
        }
    }

    // Columns n to n+15 (n+7 with two registers), K-block k of B.
    template <int Registers>
    __device__ __forceinline__ void load_b(unsigned (&y)[Registers], unsigned b, int n, int k) {
        int l = Registers == 4 ? lane : lane % 16;
        if constexpr (BAlongN) {
            load_matrices_transposed(y, b + LayoutB::offset(16 * k + l % 16, n / 8 + l / 16));
        } else {
            load_matrices(y, b + LayoutB::offset(n + l / 16 * 8 + l % 8, 2 * k + l / 8 % 2));
        }
    }

    // Through shared memory, so that a warp's stores to global memory are whole rows.
    __device__ __forceinline__ void store(char *shared, Matrix<Element> c, int row, int m, int col, int n, float scale) {
        unsigned tile = shared_address(shared);
#pragma unroll
        for (int i = 0; i < kBlocksM; i++) {
#pragma unroll
            for (int j = 0; j < kBlocksN; j++) {
                const float(&x)[4] = sums[i][j];
                unsigned target = tile + LayoutC::offset(warp_m + 16 * i + lane % 16, warp_n / 8 + j);
                store_matrices(target, pack<Element>(scale * x[0], scale * x[1]), pack<Element>(scale * x[2], scale * x[3]));
            }
        }
        __syncthreads();
        stamp(kReady);
        store_tile<Element, TileM, TileN, VectorC, kThreads>(c.data, c.pitch, row, m, col, n, shared);
    }
};
