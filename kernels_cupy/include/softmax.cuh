// Pieces of the row softmax: exponentials to base 2, and reductions over lanes.
#pragma once

#include "numbers.cuh"

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// 2^x on the exponential unit; 2^-inf is 0.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// log2(x) on the same unit.
__device__ __forceinline__ float log2_fast(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What to subtract from scores whose maximum is `maximum`: 0 where a row has no visible key, so that -inf - (-inf)
// never happens and every exponential of such a row is 0.
__device__ __forceinline__ float safe_maximum(float maximum) { return maximum == -CUDART_INF_F ? 0.0f : maximum; }

// 1 / total, and 0 for the empty sum of a row with no visible key.
__device__ __forceinline__ float safe_inverse(float total) { return total > 0.0f ? 1.0f / total : 0.0f; }

// Reductions over groups of Lanes (a power of two up to 32) neighbouring lanes; every lane gets the result.
template <int Lanes = 32>
__device__ __forceinline__ float lane_max(float x) {
#pragma unroll
    for (int distance = Lanes / 2; distance; distance /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
    return x;
}

template <int Lanes = 32>
__device__ __forceinline__ float lane_sum(float x) {
#pragma unroll
    for (int distance = Lanes / 2; distance; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
}

// Running maximum and sum of exponentials of a row (Milakov & Gimelshein 2018, arXiv:1805.02867), base 2.
struct RunningSoftmax {
    float maximum = -CUDART_INF_F;
    float total = 0.0f;

    // The state of both parts together; two empty parts make an empty one.
    __device__ __forceinline__ void merge(float other_maximum, float other_total) {
        float both = fmaxf(maximum, other_maximum), safe = safe_maximum(both);
        total = total * exp2_fast(maximum - safe) + other_total * exp2_fast(other_maximum - safe);
        maximum = both;
    }

    // The merged state of Lanes neighbouring lanes, in each of them.
    template <int Lanes = 32>
    __device__ __forceinline__ void merge_lanes() {
#pragma unroll
        for (int distance = Lanes / 2; distance; distance /= 2) {
            float other_maximum = __shfl_xor_sync(~0u, maximum, distance);
            float other_total = __shfl_xor_sync(~0u, total, distance);
            merge(other_maximum, other_total);
        }
    }
};
