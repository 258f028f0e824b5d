// Row softmax with a single pass for maximum and sum together (Milakov & Gimelshein 2018, arXiv:1805.02867,
// algorithm 3): the sum is rescaled whenever the maximum grows. A second pass normalises and writes.
//
// A row is shared by GROUP threads and comes in tiles of TILE scores by cp.async, the next while one is worked on. With
// RESIDENT all tiles stay in shared memory for the second pass; else there are two buffers, and the row is read again.
// A thread works on the chunks of eight scores that it has copied itself, so tiles need no barrier. VARLEN as in naive.cu.

#include "cta_record.cuh"
#include "row_softmax.cuh"
#include "shared.cuh"
#include "softmax.cuh"

constexpr int ROWS = THREADS / GROUP;
constexpr int WARPS = GROUP / 32;  // per row

struct alignas(VECTOR * sizeof(T)) Piece {  // what is aligned wherever a row starts
    T score[VECTOR];
};

struct Row {
    const T *scores;  // in global memory
    T *buffers;       // in shared memory: this row's part
    int keys, steps, rank;
    Visible visible;

    __device__ __forceinline__ T *buffer(int step) const { return buffers + (RESIDENT ? step % steps : step % 2) * TILE; }

    // Starts the copy of a tile if the `step` is before `end`; ends a group of copies in any case.
    __device__ __forceinline__ void copy(int step, int end) const {
        int start = step % steps * TILE, count = step < end ? min(TILE, keys - start) : 0;
        T *target = buffer(step);
        for (int chunk = 8 * rank; chunk < count; chunk += 8 * GROUP) {
#pragma unroll
            for (int i = chunk; i < chunk + 8; i += VECTOR) {
                if (i >= count) break;
                if constexpr (sizeof(Piece) >= 4) {
                    copy_async<sizeof(Piece)>(shared_address(target + i), scores + start + i);
                } else {
                    target[i] = scores[start + i];
                }
            }
        }
        commit_copies();
    }

    // Calls f(first key, eight scores) for this thread's chunks of the tile of `step`, hidden ones being -inf.
    template <class F>
    __device__ __forceinline__ void each_chunk(int step, F f) const {
        int start = step % steps * TILE, count = min(TILE, keys - start);
        for (int chunk = 8 * rank; chunk < count; chunk += 8 * GROUP) {
            unsigned x[4];
            reinterpret_cast<uint4 &>(x) = *reinterpret_cast<const uint4 *>(buffer(step) + chunk);
            if (!visible.all(start + chunk, 8)) hide<T>(x, start + chunk, visible);
            f(start + chunk, x);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    softmax(const T *s, T *p,
#if VARLEN
            const int *query_lengths, const int *key_lengths,
#endif
            int rows, int keys, int window, int blocks, int heads, int columns) {
    CtaRecord record;
    extern __shared__ __align__(16) char shared[];
    T *buffers = reinterpret_cast<T *>(shared);
    float2 *parts = reinterpret_cast<float2 *>(buffers + ROWS * columns);
    int own = threadIdx.x / GROUP;
    int matrix = blockIdx.x / blocks, number = blockIdx.x % blocks * ROWS + own;
#if VARLEN
    int own_rows = query_lengths[matrix / heads], own_keys = key_lengths[matrix / heads];
#else
    int own_rows = rows, own_keys = keys;
#endif
    bool valid = number < rows;
    long long start = (static_cast<long long>(matrix) * rows + (valid ? number : 0)) * keys;
    Visible visible = Visible::keys_of(number, own_rows, own_keys, CAUSAL, window);
    int steps = (keys + TILE - 1) / TILE;
    Row row{s + start, buffers + own * columns, keys, steps, static_cast<int>(threadIdx.x % GROUP), visible};
    int end = RESIDENT ? steps : 2 * steps;  // of the copies

    RunningSoftmax running;
    row.copy(0, end);
    for (int step = 0; step < steps; step++) {
        row.copy(step + 1, end);
        wait_copies<1>();
        row.each_chunk(step, [&](int, const unsigned(&x)[4]) {
            float maximum = fmaxf(running.maximum, maximum_of<T>(x) * kLog2E), shift = safe_maximum(maximum), sum = 0.0f;
            for_each<T>(x, [&](float score) { sum += exp2_fast(fmaf(score, kLog2E, -shift)); });
            running.total = running.total * exp2_fast(running.maximum - shift) + sum;
            running.maximum = maximum;
        });
    }
    running.merge_lanes();
    if constexpr (WARPS > 1) {
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = make_float2(running.maximum, running.total);
        __syncthreads();
        running = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) running.merge(parts[own * WARPS + w].x, parts[own * WARPS + w].y);
    }

    // exp(x - maximum) / total in one exponential; with an empty row, of -inf
    float shift = running.total > 0.0f ? running.maximum + __log2f(running.total) : CUDART_INF_F;
    for (int step = steps; step < 2 * steps; step++) {
        if (!RESIDENT) {
            row.copy(step + 1, end);
            wait_copies<1>();
        }
        row.each_chunk(step, [&](int first, const unsigned(&x)[4]) {
            uint4 y = map<T>(x, [=](float score) { return exp2_fast(fmaf(score, kLog2E, -shift)); });
#pragma unroll
            for (int i = 0; i < 8; i += VECTOR) {
                if (!valid || first + i >= keys) break;
                *reinterpret_cast<Piece *>(p + start + first + i) = reinterpret_cast<const Piece *>(&y)[i / VECTOR];
            }
        });
    }
}
