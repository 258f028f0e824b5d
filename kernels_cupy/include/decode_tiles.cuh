// Constants and layouts of decode.cu, from its macros.
#pragma once

#include "codes.cuh"
#include "shared.cuh"

enum Scale { kNone, kPerToken, kPerChannel, kPerHead };

constexpr int kThreads = 32 * WARPS, kKeys = TILE_KV / WARPS;
constexpr int kRowTiles = TILE_Q / 16, kKeyTiles = kKeys / 8, kOutputTiles = DIM_V / 8, kSteps = DIM / 16;
constexpr int kHalves = ROWS <= 8 ? 1 : 2;  // of the 16 rows of a tile, those with any of the ROWS that are used
constexpr bool kTransposed = TILE_Q == 16 && kHalves == 1;  // whether O is accumulated as V^T P^T, with no unused rows
constexpr int kAccumulators = kTransposed ? kOutputTiles / 2 : kOutputTiles;
constexpr bool kKeyCodes = sizeof(KEY) == 1, kValueCodes = sizeof(VALUE) == 1;
constexpr int kKeyBytes = DIM * sizeof(KEY), kValueBytes = DIM_V * sizeof(VALUE);
constexpr int kTokenScales = (KEY_SCALE == kPerToken) + (VALUE_SCALE == kPerToken);
constexpr int kOutlierBytes = OUTLIERS * sizeof(T), kOutlierSteps = (OUTLIERS + 15) / 16;  // of a key; k16 steps of them
constexpr int kStageBytes = TILE_KV * (kKeyBytes + kValueBytes + 4 * kTokenScales + kOutlierBytes);
constexpr int kRuns = kKeys / RUN;  // in which a warp's keys of a step follow each other in the cache
constexpr int kOutputPitch = DIM_V + 8;  // of the warps' outputs while they are merged; bank conflicts are avoided
static_assert(TILE_Q % 16 == 0 && kKeys % 16 == 0 && kKeys <= 32, "whole mma tiles, a lane for every key of a warp");
static_assert(DIM % (kKeyCodes ? 64 : 16) == 0 && DIM_V % (kValueCodes ? 32 : 16) == 0, "whole operands");
static_assert(OUTLIERS % 2 == 0, "outliers are read in pairs");
constexpr bool kQueryInRegisters = kRowTiles * DIM <= 128;

using QueryRow = SharedRows<DIM * sizeof(T)>;
using ValueRow = SharedRows<kValueBytes>;

// Rows of K. Codes are read 16 bytes a lane, four lanes to a row: two rows of them must lie in all eight bank groups.
struct KeyRow {
    static __device__ __forceinline__ unsigned offset(int row, int chunk) {
        if constexpr (!kKeyCodes) return SharedRows<kKeyBytes>::offset(row, chunk);
        return row * kKeyBytes + ((kKeyBytes % 128 ? chunk : chunk ^ (row & 1) << 2) << 4);
    }
};
