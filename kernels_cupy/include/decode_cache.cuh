// Where the keys of a warp of decode.cu are in a contiguous or paged cache, and their copies to shared memory.
#pragma once

#include "decode_tiles.cuh"
#include "shared.cuh"

// The keys of one warp, as copies see them.
struct Cache {
    const KEY *k;
    const VALUE *v;
    const float *k_scale, *v_scale;  // where per token: of this head
    const T *k_outliers;             // of this head
    const int *pages;                // of the sequence, where paged
    long long k_pitch, v_pitch;      // elements from one token to the next
    long long page_scales;           // scales, and rows of outliers, from one page of this head to the next

    // Row of the cache of key `key` of the sequence, or -1 past `end`.
    __device__ __forceinline__ int row(int key, int end) const {
        if (key >= end) return -1;
        return PAGE ? __ldg(pages + key / (PAGE ? PAGE : 1)) * PAGE + key % (PAGE ? PAGE : 1) : key;
    }
    __device__ __forceinline__ long long scale_row(int row) const {
        return PAGE ? row / (PAGE ? PAGE : 1) * page_scales + row % (PAGE ? PAGE : 1) : row;
    }
};

// Where a warp's keys of one step are. In runs: the row of the cache of each run's first key, and how many keys there
// are; the other keys of a run have the rows after it. Otherwise each lane holds the row of its key, -1 past the end.
struct Rows {
    int row[RUN > 1 ? kRuns : 1], count;
};

// The rows of a warp's keys, step after step. On pages, what a lane looks up is a run's page in one of the next 32 steps
// (or, without runs, its key's in the next step), so that a block table's latency is waited for once, not every step.
struct StepRows {
    static constexpr bool kSpread = PAGE && RUN > 1;
    static constexpr int kTogether = kSpread ? 32 : 1;  // steps that are looked up at the same time
    const Cache &cache;
    int key, end;  // the first key of step 0, and the end of the part
    Rows held, ahead;

    __device__ __forceinline__ StepRows(const Cache &cache, int key, int end) : cache(cache), key(key), end(end) {
        ahead = look_up(0);
    }

    // Rows of step `position`; asked for in order, 0, 1, 2, …
    __device__ __forceinline__ Rows next(int position) {
        if (position % kTogether == 0) held = ahead, ahead = look_up(position + kTogether);
        Rows rows = held;
        rows.count = min(kKeys, end - key - position * TILE_KV);
        if constexpr (kSpread) {
#pragma unroll
            for (int run = 0; run < kRuns; run++) rows.row[run] = __shfl_sync(~0u, held.row[run], position % 32);
        }
        return rows;
    }

    __device__ __forceinline__ Rows look_up(int position) const {
        Rows rows;
        int lane = threadIdx.x % 32, first = key + (position + (kSpread ? lane : 0)) * TILE_KV;
        if constexpr (RUN > 1) {
#pragma unroll
            for (int run = 0; run < kRuns; run++) rows.row[run] = cache.row(first + run * RUN, end);
        } else {
            rows.row[0] = cache.row(first + lane % kKeys, end);
        }
        return rows;
    }
};

// Row of key `key` of the step, for which all lanes of the warp ask together; -1 past the end.
__device__ __forceinline__ int row_of(const Rows &rows, int key) {
    if constexpr (RUN == 1) return __shfl_sync(~0u, rows.row[0], key);
    int row = rows.row[0];
#pragma unroll
    for (int run = 1; run < kRuns; run++)
        if (key >= run * RUN) row = rows.row[run];
    return key < rows.count ? row + key % RUN : -1;
}

// Starts copying kKeys rows of a cache; zeros past the end.
template <class Layout, int Cols, class Code>
__device__ __forceinline__ void copy_keys(char *tile, const Code *cache, long long pitch, const Rows &rows) {
    constexpr int kPerChunk = 16 / sizeof(Code), kChunks = Cols / kPerChunk;
    constexpr bool kStraight = RUN > 1 && 32 % kChunks == 0;
    int lane = threadIdx.x % 32;
    unsigned target = shared_address(tile);
    if constexpr (kStraight) {
        constexpr int kPass = 32 / kChunks;
        static_assert(RUN % kPass == 0, "a pass is of one run");
        if (rows.count == kKeys) {
            int r = lane / kChunks, chunk = lane % kChunks;
            long long step = kPass * pitch;
#pragma unroll
            for (int run = 0; run < kRuns; run++) {
                const Code *source = cache + (rows.row[run] + r) * pitch + chunk * kPerChunk;
#pragma unroll
                for (int i = run * RUN; i < (run + 1) * RUN; i += kPass, source += step)
                    copy_chunk(target + Layout::offset(i + r, chunk), source);
            }
            return;
        }
    }
    constexpr int kUnroll = kStraight ? 1 : kKeys * kChunks / 32;  // ragged ends are few
#pragma unroll kUnroll
    for (int i = 0; i < kKeys * kChunks / 32; i++) {
        int n = i * 32 + lane, r = n / kChunks, chunk = n % kChunks, row = row_of(rows, r);
        copy_async<16>(target + Layout::offset(r, chunk), cache + max(row, 0) * pitch + chunk * kPerChunk, row >= 0);
    }
}

// Starts copying the scales of the same keys.
__device__ __forceinline__ void copy_scales(float *target, const float *scales, const Cache &cache, const Rows &rows) {
    int lane = threadIdx.x % 32, row = row_of(rows, lane % kKeys);
    if (lane < kKeys) copy_async<4>(shared_address(target + lane), scales + cache.scale_row(max(row, 0)), row >= 0);
}

// Starts copying the outliers of the same keys.
__device__ __forceinline__ void copy_outliers(char *target, const Cache &cache, const Rows &rows) {
    constexpr int kBytes = kOutlierBytes % 16 == 0 ? 16 : kOutlierBytes % 8 == 0 ? 8 : 4;
    constexpr int kPieces = OUTLIERS ? kOutlierBytes / kBytes : 1, kCount = kKeys * kPieces;
#pragma unroll 1
    for (int first = 0; first < kCount; first += 32) {
        int i = first + threadIdx.x % 32, r = min(i / kPieces, kKeys - 1), row = row_of(rows, r);
        const T *source = cache.k_outliers + cache.scale_row(max(row, 0)) * OUTLIERS + i % kPieces * (kBytes / 2);
        if (i < kCount) copy_async<kBytes>(shared_address(target) + i * kBytes, source, row >= 0);
    }
}
