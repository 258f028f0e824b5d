// Where the keys of a warp of decode.cu are in a contiguous or paged cache, and their copies to shared memory.
#pragma once

#include "decode_tiles.cuh"
#include "shared.cuh"

// The keys of one warp, as copies see them.
struct Cache {
    const KEY *k;
    const VALUE *v;
    const float *k_scale, *v_scale;  // where per token: of this head
    const int *pages;                // of the sequence, where paged
    long long k_pitch, v_pitch;      // elements from one token to the next
    long long page_scales;           // scales from one page of this head to the next

    // Row of the cache of key `key` of the sequence, or -1 past `end`.
    __device__ __forceinline__ int row(int key, int end) const {
        if (key >= end) return -1;
        return PAGE ? __ldg(pages + key / (PAGE ? PAGE : 1)) * PAGE + key % (PAGE ? PAGE : 1) : key;
    }
    __device__ __forceinline__ long long scale_row(int row) const {
        return PAGE ? row / (PAGE ? PAGE : 1) * page_scales + row % (PAGE ? PAGE : 1) : row;
    }
};

// Where a warp's keys of one step are: each lane holds the row of its key, -1 past the end; where they follow each
// other, the first `count` keys are rows `row`, `row` + 1, … in all lanes.
struct Rows {
    int row, count;
};

// Starts copying kKeys rows of a cache; zeros past the end.
template <class Layout, int Cols, class Code>
__device__ __forceinline__ void copy_keys(char *tile, const Code *cache, long long pitch, Rows rows) {
    constexpr int kPerChunk = 16 / sizeof(Code), kChunks = Cols / kPerChunk;
    int lane = threadIdx.x % 32;
    unsigned target = shared_address(tile);
    if constexpr (kTogether && 32 % kChunks == 0) {
        constexpr int kPass = 32 / kChunks;
        int r = lane / kChunks, chunk = lane % kChunks;
        const Code *source = cache + (rows.row + r) * pitch + chunk * kPerChunk;
        long long step = kPass * pitch;
        if (rows.count == kKeys) {
#pragma unroll
            for (int i = 0; i < kKeys; i += kPass, source += step)
                copy_chunk(target + Layout::offset(i + r, chunk), source);
            return;
        }
    }
    constexpr int kUnroll = kTogether && 32 % kChunks == 0 ? 1 : kKeys * kChunks / 32;  // ragged ends are few
#pragma unroll kUnroll
    for (int i = 0; i < kKeys * kChunks / 32; i++) {
        int n = i * 32 + lane, r = n / kChunks, chunk = n % kChunks;
        int row = kTogether ? rows.row + r : __shfl_sync(~0u, rows.row, r);
        bool valid = kTogether ? r < rows.count : row >= 0;
        copy_async<16>(target + Layout::offset(r, chunk), cache + (valid ? row * pitch : 0) + chunk * kPerChunk, valid);
    }
}

// Starts copying the scales of the same keys.
__device__ __forceinline__ void copy_scales(float *target, const float *scales, const Cache &cache, Rows rows) {
    int lane = threadIdx.x % 32, row = kTogether ? rows.row + lane : rows.row;
    bool valid = kTogether ? lane < rows.count : row >= 0;
    if (lane < kKeys) copy_async<4>(shared_address(target + lane), scales + (valid ? cache.scale_row(row) : 0), valid);
}
