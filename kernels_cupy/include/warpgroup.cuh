// Matrix products of a warpgroup: 64 rows of D += A B from shared memory, fp32 sums in registers.
//
// On Hopper these are wgmma, which reads shared memory by itself and runs on while the warps do other work; elsewhere
// each warp multiplies its 16 rows by ldmatrix and mma.sync at once. Fragments are the same: d[j] holds columns 8j to
// 8j + 7 of the warp's 16 rows as mma.sync's do.
#pragma once

#include "matrix.cuh"
#include "shared.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define GPUSIM_HAS_WGMMA 1
#include "wgmma.cuh"
#else
#define GPUSIM_HAS_WGMMA 0
#endif

constexpr bool kAsynchronous = GPUSIM_HAS_WGMMA;  // whether results are there only after wait_products

// A tile of Rows rows of 16-bit elements in panels of 64 columns. A row of a panel is 128 bytes, 8 chunks of 16, XORed
// with the row: the layout that wgmma calls 128-byte swizzle. Panels must be aligned to 1024 bytes.
template <int Rows>
struct Panels {
    static constexpr int kPanelBytes = Rows * 128;

    // Byte offset of a chunk of 8 columns.
    static __device__ __forceinline__ unsigned offset(int row, int chunk) {
        return chunk / 8 * kPanelBytes + row * 128 + ((chunk % 8 ^ row % 8) << 4);
    }
};

// Starts copying Rows rows from `row` of a matrix of `rows` x Cols into Panels<Rows>; zeros past its end. Columns beyond
// Cols up to a whole panel are zeros. Vector: elements of a row that are aligned together.
template <class Element, int Rows, int Cols, int Vector, int Threads>
__device__ __forceinline__ void copy_panels(char *tile, const Element *matrix, long long pitch, int row, int rows) {
    constexpr int kPanels = (Cols + 63) / 64, kTogether = kPanels % 4 == 0 ? 4 : kPanels % 2 == 0 ? 2 : 1;
    constexpr int kChunks = 8 * kTogether;  // of a row that neighbouring threads copy: those of some panels
    static_assert(Threads % (8 * kChunks) == 0 && Rows % (Threads / kChunks) == 0, "whole passes");
    constexpr int kPass = Threads / kChunks;
    int r = threadIdx.x / kChunks, chunk = threadIdx.x % kChunks;
    unsigned target = shared_address(tile) + Panels<Rows>::offset(r, chunk);
    const Element *source = matrix + (row + r) * pitch + chunk * 8;
    if (Cols % 64 == 0 && Vector == 8 && row + Rows <= rows) {
#pragma unroll
        for (int panel = 0; panel < kPanels; panel += kTogether)
#pragma unroll
            for (int first = 0; first < Rows; first += kPass)
                copy_chunk(target + panel * Panels<Rows>::kPanelBytes + first * 128, source + panel * 64 + first * pitch);
        return;
    }
#pragma unroll 1
    for (int panel = 0; panel < kPanels; panel += kTogether)
#pragma unroll 1
        for (int first = 0; first < Rows; first += kPass)
#pragma unroll
            for (int e = 0; e < 8; e += Vector) {
                int column = panel * 64 + chunk * 8 + e;
                bool valid = row + first + r < rows && column < Cols;
                unsigned to = target + panel * Panels<Rows>::kPanelBytes + first * 128 + e * sizeof(Element);
                const Element *from = valid ? source + first * pitch + panel * 64 + e : matrix;
                if constexpr (Vector > 1) {
                    copy_async<Vector * sizeof(Element)>(to, from, valid);
                } else {
                    unsigned short bits = valid ? *reinterpret_cast<const unsigned short *>(from) : 0;
                    asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(bits) : "memory");
                }
            }
}

// Makes this thread's writes to shared memory visible to wgmma; a barrier must follow.
__device__ __forceinline__ void publish_to_wgmma() {
#if GPUSIM_HAS_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Before the first product that uses registers which other instructions have written.
__device__ __forceinline__ void begin_products() {
#if GPUSIM_HAS_WGMMA
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

// Ends a group of products.
__device__ __forceinline__ void commit_products() {
#if GPUSIM_HAS_WGMMA
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

// Waits until at most Pending groups of products are unfinished.
template <int Pending>
__device__ __forceinline__ void wait_products() {
#if GPUSIM_HAS_WGMMA
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
#endif
}

// Keeps the compiler from moving accesses to the sums across this point.
template <int Tiles>
__device__ __forceinline__ void pin(float (&d)[Tiles][4]) {
#if GPUSIM_HAS_WGMMA
#pragma unroll
    for (int j = 0; j < Tiles; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[j][e])::"memory");
#endif
}

#if GPUSIM_HAS_WGMMA
// Where an operand starts: its address, the distance of panels (where rows or columns lie next to each other), and that of
// groups of 8 rows, all in units of 16 bytes; 128-byte swizzle (PTX ISA, matrix descriptor).
__device__ __forceinline__ unsigned long long descriptor(unsigned address, int panel_bytes) {
    constexpr unsigned long long kSwizzle128 = 1ull << 62, kGroups = 1024ull >> 4;
    return kSwizzle128 | kGroups << 32 | static_cast<unsigned long long>(panel_bytes >> 4) << 16 |
           (address & 0x3ffff) >> 4;
}
#endif

// D[64, 8 Tiles] += A B^T over Depth: A is 64 rows of Panels<RowsA> from row `a_row`, B the first 8 Tiles rows of Panels<RowsB>.
template <class Element, int Depth, int RowsA, int RowsB, int Tiles>
__device__ __forceinline__ void multiply_rows(float (&d)[Tiles][4], unsigned a, int a_row, unsigned b) {
#pragma unroll
    for (int k = 0; k < Depth / 16; k++) {
#if GPUSIM_HAS_WGMMA
        unsigned inside = k % 4 * 32;
        wgmma<0, 0>(d, descriptor(a + k / 4 * Panels<RowsA>::kPanelBytes + a_row * 128 + inside, 16),
                    descriptor(b + k / 4 * Panels<RowsB>::kPanelBytes + inside, 16), Element());
#else
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        unsigned x[4], y[4];
        load_matrices(x, a + Panels<RowsA>::offset(a_row + warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int j = 0; j < Tiles / 2; j++) {
            load_matrices(y, b + Panels<RowsB>::offset(j * 16 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            multiply<Element>(d[2 * j], x, y[0], y[1]);
            multiply<Element>(d[2 * j + 1], x, y[2], y[3]);
        }
#endif
    }
}

// D[64, 8 Tiles] += A B over 16 Steps: A in registers, a fragment per 16 columns; B the first rows of Panels<RowsB>.
template <class Element, int RowsB, int Steps, int Tiles>
__device__ __forceinline__ void multiply_registers(float (&d)[Tiles][4], const unsigned (&a)[Steps][4], unsigned b) {
#pragma unroll
    for (int k = 0; k < Steps; k++) {
#if GPUSIM_HAS_WGMMA
        wgmma<1>(d, a[k], descriptor(b + k * 16 * 128, Panels<RowsB>::kPanelBytes), Element());
#else
        int lane = threadIdx.x % 32;
        unsigned y[4];
#pragma unroll
        for (int j = 0; j < Tiles / 2; j++) {
            load_matrices_transposed(y, b + Panels<RowsB>::offset(k * 16 + lane % 16, 2 * j + lane / 16));
            multiply<Element>(d[2 * j], a[k], y[0], y[1]);
            multiply<Element>(d[2 * j + 1], a[k], y[2], y[3]);
        }
#endif
    }
}

// D[64, 8 Tiles] += A B over RowsB: A is 64 rows of Panels<64>, B the first columns of Panels<RowsB>.
template <class Element, int RowsB, int Tiles>
__device__ __forceinline__ void multiply_tiles(float (&d)[Tiles][4], unsigned a, unsigned b) {
#pragma unroll
    for (int k = 0; k < RowsB / 16; k++) {
#if GPUSIM_HAS_WGMMA
        wgmma<0, 1>(d, descriptor(a + k / 4 * Panels<64>::kPanelBytes + k % 4 * 32, 16),
                    descriptor(b + k * 16 * 128, Panels<RowsB>::kPanelBytes), Element());
#else
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        unsigned x[4], y[4];
        load_matrices(x, a + Panels<64>::offset(warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int j = 0; j < Tiles / 2; j++) {
            load_matrices_transposed(y, b + Panels<RowsB>::offset(k * 16 + lane % 16, 2 * j + lane / 16));
            multiply<Element>(d[2 * j], x, y[0], y[1]);
            multiply<Element>(d[2 * j + 1], x, y[2], y[3]);
        }
#endif
    }
}

// D[64, 8 Tiles] += A^T B over Depth: A is panel `a_panel` (64 columns) of Panels<Depth>, B the columns of Panels<Depth>
// from panel `b_panel` on.
template <class Element, int Depth, int Tiles>
__device__ __forceinline__ void multiply_columns(float (&d)[Tiles][4], unsigned a, int a_panel, unsigned b, int b_panel) {
    a += a_panel * Panels<Depth>::kPanelBytes, b += b_panel * Panels<Depth>::kPanelBytes;
#pragma unroll
    for (int k = 0; k < Depth / 16; k++) {
#if GPUSIM_HAS_WGMMA
        wgmma<1, 1>(d, descriptor(a + k * 16 * 128, 16), descriptor(b + k * 16 * 128, Panels<Depth>::kPanelBytes), Element());
#else
        int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        unsigned x[4], y[4];
        load_matrices_transposed(x, a + Panels<Depth>::offset(k * 16 + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2));
#pragma unroll
        for (int j = 0; j < Tiles / 2; j++) {
            load_matrices_transposed(y, b + Panels<Depth>::offset(k * 16 + lane % 16, 2 * j + lane / 16));
            multiply<Element>(d[2 * j], x, y[0], y[1]);
            multiply<Element>(d[2 * j + 1], x, y[2], y[3]);
        }
#endif
    }
}

// Fragments of a product's result as the A operand of the next, two tiles to 16 columns, rounded to Element.
template <class Element, int Steps>
__device__ __forceinline__ void pack_rows(unsigned (&a)[Steps][4], const float (&d)[2 * Steps][4]) {
#pragma unroll
    for (int k = 0; k < Steps; k++) as_operand<Element>(a[k], d, k);
}
