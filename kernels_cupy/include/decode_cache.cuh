// Where the keys of a warp of decode.cu are in a contiguous or paged cache, and their copies to shared memory.
#pragma once

#include "decode_tiles.cuh"
#include "shared.cuh"

constexpr unsigned kPage = PAGE ? PAGE : 1;

// The keys of one warp, as copies see them.
struct Cache {
    const KEY *k;
    const VALUE *v;
    const float *k_scale, *v_scale;  // where per token: of this head
    const T *k_outliers;             // of this head
    const int *pages;                // of the sequence, where paged
    unsigned k_pitch, v_pitch;       // elements from one token to the next
    unsigned page_scales;            // scales, and rows of outliers, from one page of this head to the next

    // Which of the head's scales, and of its rows of outliers, belongs to a row of the cache.
    __device__ __forceinline__ size_t scale_row(unsigned row) const {
        return PAGE ? static_cast<size_t>(row / kPage) * page_scales + row % kPage : row;
    }
};

// Where a warp's keys of one step are. In runs: the row of the cache of each run's first key, and how many keys there
// are; the other keys of a run have the rows after it. Otherwise each lane holds the row of its key, -1 past the end.
struct Rows {
    int row[RUN > 1 ? kRuns : 1], count;
};

// The rows of a warp's keys, step after step. What a lane looks up in the block table is a run's page in one of the next
// 32 steps (or, without runs, its key's in the next step), so that a look-up's latency is waited for once, not every step.
struct StepRows {
    static constexpr int kPages = RUN > 1 ? kRuns : 1;
    struct Pages {
        int number[kPages];
    };
    const int *table;
    int key, end;  // the first key of step 0, and the end of the part
    Pages held, ahead;

    __device__ __forceinline__ StepRows(const int *table, int key, int end) : table(table), key(key), end(end) {
        if constexpr (PAGE > 0) ahead = look_up(0);
    }

    // The first key of a run of a step, or the lane's.
    __device__ __forceinline__ int key_of(int position, int run) const {
        return key + position * TILE_KV + (RUN > 1 ? run * RUN : threadIdx.x % 32 % kKeys);
    }

    __device__ __forceinline__ Pages look_up(int position) const {
        Pages pages;
#pragma unroll
        for (int run = 0; run < kPages; run++) {
            int k = key_of(position + (RUN > 1 ? threadIdx.x % 32 : 0), run);
            pages.number[run] = k < end ? __ldg(table + k / kPage) : 0;
        }
        return pages;
    }

    // Rows of step `position`; asked for in order, 0, 1, 2, …
    __device__ __forceinline__ Rows next(int position) {
        constexpr int kTogether = RUN > 1 ? 32 : 1;
        if constexpr (PAGE > 0) {
            if (position % kTogether == 0) held = ahead, ahead = look_up(position + kTogether);
        }
        Rows rows;
        rows.count = min(kKeys, end - key - position * TILE_KV);
#pragma unroll
        for (int run = 0; run < kPages; run++) {
            unsigned k = key_of(position, run);
            rows.row[run] = k;
            if constexpr (PAGE > 0) {
                int page = RUN > 1 ? __shfl_sync(~0u, held.number[run], position % 32) : held.number[run];
                rows.row[run] = page * kPage + k % kPage;
            }
            if (RUN == 1 && static_cast<int>(k) >= end) rows.row[run] = -1;
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

// First element of a row of the cache: one multiplication, of 32-bit numbers.
__device__ __forceinline__ size_t row_start(unsigned row, unsigned pitch) { return static_cast<size_t>(row) * pitch; }

// Starts copying kKeys rows of a cache; zeros past the end.
template <class Layout, int Cols, class Code>
__device__ __forceinline__ void copy_keys(char *tile, const Code *cache, unsigned pitch, const Rows &rows) {
    constexpr int kPerChunk = 16 / sizeof(Code), kChunks = Cols / kPerChunk;
    constexpr bool kStraight = RUN > 1 && 32 % kChunks == 0;
    int lane = threadIdx.x % 32;
    unsigned target = shared_address(tile);
    if constexpr (kStraight) {
        constexpr int kPass = 32 / kChunks;
        static_assert(RUN % kPass == 0, "a pass is of one run");
        if (rows.count == kKeys) {
            int r = lane / kChunks, chunk = lane % kChunks;
            size_t step = static_cast<size_t>(kPass) * pitch;
#pragma unroll
            for (int run = 0; run < kRuns; run++) {
                const Code *source = cache + row_start(rows.row[run] + r, pitch) + chunk * kPerChunk;
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
        copy_async<16>(target + Layout::offset(r, chunk), cache + row_start(max(row, 0), pitch) + chunk * kPerChunk, row >= 0);
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
