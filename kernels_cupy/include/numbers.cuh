// Names in these headers: CamelCase template parameters and kConstants, so that a kernel's UPPER_CASE macros are its own.
//
// 16-bit number formats: pairs of elements in one 32-bit register, to and from fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math_constants.h>

// CUDA's type of two elements.
template <class Element>
struct PairOf;

template <>
struct PairOf<__half> {
    using type = __half2;
};

template <>
struct PairOf<__nv_bfloat16> {
    using type = __nv_bfloat162;
};

// Two elements, the first in the low half.
template <class Element>
__device__ __forceinline__ unsigned pack(float first, float second);

template <class Element>
__device__ __forceinline__ float2 unpack(unsigned pair);

template <>
__device__ __forceinline__ unsigned pack<__half>(float first, float second) {
    __half2 pair = __floats2half2_rn(first, second);
    return reinterpret_cast<unsigned &>(pair);
}

template <>
__device__ __forceinline__ float2 unpack<__half>(unsigned pair) {
    return __half22float2(reinterpret_cast<__half2 &>(pair));
}

template <>
__device__ __forceinline__ unsigned pack<__nv_bfloat16>(float first, float second) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(first, second);
    return reinterpret_cast<unsigned &>(pair);
}

template <>
__device__ __forceinline__ float2 unpack<__nv_bfloat16>(unsigned pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

template <class Element>
__device__ __forceinline__ Element from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
    return value;
}

template <>
__device__ __forceinline__ __half from_float<__half>(float value) {
    return __float2half_rn(value);
}

template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float value) {
    return __float2bfloat16_rn(value);
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
