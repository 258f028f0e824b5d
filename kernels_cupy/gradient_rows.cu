// Kernels on rows around a backward pass (traces/gradients.py): D = rowsum(dO O), dQ from its fp32 sum, and the sum of
// the gradients that the query heads of a KV head have written apart. CTAs take ROWS rows of one head.
//
// Macros: T, DIM, DIM_V, ROWS, THREADS, TOKEN_MAJOR (layout bshd). Head dimensions are multiples of 8.
#include "cta_record.cuh"
#include "numbers.cuh"
#include "query_blocks.cuh"
#include "softmax.cuh"

constexpr int kLanes = DIM_V <= 32 ? 4 : DIM_V <= 64 ? 8 : DIM_V <= 128 ? 16 : 32;  // that share a row

// 16 bytes of T as floats.
__device__ __forceinline__ void load_chunk(float (&x)[8], const T *from) {
    uint4 raw = *reinterpret_cast<const uint4 *>(from);
    unsigned pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = unpack<T>(pairs[i]);
        x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
    }
}

__device__ __forceinline__ void store_chunk(T *to, const float (&x)[8]) {
    *reinterpret_cast<uint4 *>(to) =
        make_uint4(pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7]));
}

// Which head and rows this CTA takes: grid (blocks, batch, heads), blocks fastest.
struct Rows {
    int b, h, first, last;
};

__device__ __forceinline__ Rows rows_of(int batch, int rows) {
    int blocks = (rows + ROWS - 1) / ROWS, matrix = blockIdx.x / blocks, first = blockIdx.x % blocks * ROWS;
    return {matrix % batch, matrix / batch, first, min(first + ROWS, rows)};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    row_sums(const T *__restrict__ o, const T *__restrict__ gradient, float *__restrict__ sums, float *__restrict__ dq,
             int batch, int heads, int rows) {
    CtaRecord record;
    Rows x = rows_of(batch, rows);
    long long first_row = (static_cast<long long>(x.b) * heads + x.h) * rows;
    long long pitch = pitch_of<DIM_V, TOKEN_MAJOR>(heads);
    o = head_of<DIM_V, TOKEN_MAJOR>(o, x.b, x.h, heads, rows);
    gradient = head_of<DIM_V, TOKEN_MAJOR>(gradient, x.b, x.h, heads, rows);
    int lane = threadIdx.x % kLanes;
    stamp(kPlaced);
    for (int first = x.first; first < x.last; first += THREADS / kLanes) {
        int row = first + threadIdx.x / kLanes;
        float sum = 0.0f;
        if (row < x.last)
#pragma unroll
            for (int column = lane * 8; column < DIM_V; column += 8 * kLanes) {
                float a[8], g[8];
                load_chunk(a, o + row * pitch + column);
                load_chunk(g, gradient + row * pitch + column);
#pragma unroll
                for (int e = 0; e < 8; e++) sum += a[e] * g[e];
            }
        sum = lane_sum<kLanes>(sum);
        if (row < x.last && lane == 0) sums[first_row + row] = sum;
        stamp(kSent, (first - x.first) * kLanes / THREADS);
    }
    float4 *zeros = reinterpret_cast<float4 *>(dq + (first_row + x.first) * DIM);
    for (int i = threadIdx.x; i < (x.last - x.first) * DIM / 4; i += THREADS) zeros[i] = make_float4(0, 0, 0, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    convert(const float *__restrict__ sums, T *__restrict__ dq, int batch, int heads, int rows, float scale) {
    CtaRecord record;
    Rows x = rows_of(batch, rows);
    sums += (static_cast<long long>(x.b) * heads + x.h) * rows * DIM;
    dq = head_of<DIM, TOKEN_MAJOR>(dq, x.b, x.h, heads, rows);
    long long pitch = pitch_of<DIM, TOKEN_MAJOR>(heads);
    constexpr int kChunks = DIM / 8;
    stamp(kPlaced);
    for (int i = threadIdx.x; i < (x.last - x.first) * kChunks; i += THREADS) {
        int row = x.first + i / kChunks, column = i % kChunks * 8;
        const float4 *from = reinterpret_cast<const float4 *>(sums + static_cast<long long>(row) * DIM + column);
        float4 low = from[0], high = from[1];
        float values[8] = {low.x * scale,  low.y * scale,  low.z * scale,  low.w * scale,
                           high.x * scale, high.y * scale, high.z * scale, high.w * scale};
        store_chunk(dq + row * pitch + column, values);
        stamp(kSent, i / THREADS);
    }
}

// `parts` is [batch, heads, group x rows, DIM], `total` [batch, heads, rows, DIM]; heads are KV heads.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_heads(T *__restrict__ total, const T *__restrict__ parts, int batch, int heads, int group, int rows) {
    CtaRecord record;
    Rows x = rows_of(batch, rows);
    parts += (static_cast<long long>(x.b) * heads + x.h) * group * rows * DIM;
    total = head_of<DIM, TOKEN_MAJOR>(total, x.b, x.h, heads, rows);
    long long pitch = pitch_of<DIM, TOKEN_MAJOR>(heads);
    constexpr int kChunks = DIM / 8;
    stamp(kPlaced);
    for (int i = threadIdx.x; i < (x.last - x.first) * kChunks; i += THREADS) {
        int row = x.first + i / kChunks, column = i % kChunks * 8;
        float values[8] = {};
        for (int head = 0; head < group; head++) {
            float part[8];
            load_chunk(part, parts + (static_cast<long long>(head) * rows + row) * DIM + column);
#pragma unroll
            for (int e = 0; e < 8; e++) values[e] += part[e];
        }
        store_chunk(total + row * pitch + column, values);
        stamp(kSent, i / THREADS);
    }
}
