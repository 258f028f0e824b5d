// Constants and layouts of decode_latent.cu, from its macros, and the copies of its latent cache.
#pragma once

#include "numbers.cuh"
#include "shared.cuh"

constexpr int kThreads = 32 * WARPS, kSteps = DIM / 16;
constexpr int kRowTiles = TILE_Q >= 32 ? 2 : 1;             // of 16 rows, of a warp
constexpr int kRowGroups = TILE_Q / (16 * kRowTiles);       // of warps; those of one share their rows
constexpr int kColumnGroups = WARPS / kRowGroups;           // warps of a row group: of S and of O each has some columns
constexpr int kKeys = TILE_KV / kColumnGroups, kKeyTiles = kKeys / 8;
constexpr int kColumns = DIM_V / kColumnGroups, kOutputTiles = kColumns / 8;
constexpr int kRowBytes = DIM * sizeof(T);                  // of Q and of the latents
constexpr int kStageBytes = TILE_KV * kRowBytes;
constexpr int kCopied = TILE_KV / WARPS, kLaneKeys = kCopied / 4;  // keys that a warp copies, and a lane a part of
constexpr int kOutputPitch = DIM_V + 8;                     // of O while it is in shared memory; avoids bank conflicts
static_assert(WARPS % kRowGroups == 0 && TILE_Q % (16 * kRowTiles) == 0, "all warps have as many rows");
static_assert(kKeys % 8 == 0 && kColumns % 16 == 0 && kCopied % 4 == 0 && DIM % 64 == 0, "whole mma tiles and copies");
static_assert(STAGES >= 2, "the next tile is copied while this one is read");
static_assert(TILE_Q * kOutputPitch * 4 <= TILE_Q * kRowBytes + STAGES * kStageBytes, "O fits where Q and KV were");

constexpr unsigned kPage = PAGE ? PAGE : 1;

using LatentRow = SharedRows<kRowBytes>;
using WeightRow = SharedRows<TILE_KV * sizeof(T)>;  // of P

// Pages that a lane's keys of a step are on.
struct LatentPages {
    int number[kLaneKeys];
};

// A sequence's latents. Eight lanes copy a key.
struct LatentCache {
    const T *kv;
    const int *table;  // its pages, where paged
    int first, end;    // keys of the part

    __device__ __forceinline__ int row_in_tile(int i) const {
        return threadIdx.x / 32 * kCopied + 4 * i + threadIdx.x % 32 / 8;
    }

    __device__ __forceinline__ LatentPages look_up(int step) const {
        LatentPages pages;
#pragma unroll
        for (int i = 0; i < kLaneKeys; i++) {
            int key = first + step * TILE_KV + row_in_tile(i);
            pages.number[i] = PAGE && key < end ? __ldg(table + key / kPage) : 0;
        }
        return pages;
    }

    // Starts copying a warp's keys of a step, 128 bytes of four of them at a time; zeros past the end.
    __device__ __forceinline__ void copy(char *stage, int step, const LatentPages &pages) const {
#pragma unroll
        for (int i = 0; i < kLaneKeys; i++) {
            int r = row_in_tile(i), chunk = threadIdx.x % 8, key = first + step * TILE_KV + r;
            unsigned row = key;
            if (PAGE) row = pages.number[i] * kPage + row % kPage;
            unsigned target = shared_address(stage) + LatentRow::offset(r, chunk);
            const T *source = kv + static_cast<size_t>(key < end ? row : 0) * DIM + chunk * 8;
#pragma unroll
            for (int part = 0; part < DIM / 64; part++)  // chunks of all parts are swizzled alike
                copy_async<16>(target + part * 128, source + part * 64, key < end);
        }
    }
};

// Waits for the warps of this row group.
__device__ __forceinline__ void sync_row_group(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(32 * kColumnGroups) : "memory");
}
