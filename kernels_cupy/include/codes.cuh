// Codes of a quantised KV cache, int8 and fp8 (E4M3), to pairs of 16-bit numbers; four codes to a 32-bit word.
#pragma once

#include "numbers.cuh"

struct Int8Code {
    unsigned char bits;
};
struct Fp8Code {
    unsigned char bits;
};

template <class T>
__device__ __forceinline__ unsigned from_half_pair(unsigned pair) {
    float2 x = unpack<__half>(pair);
    return pack<T>(x.x, x.y);
}

template <>
__device__ __forceinline__ unsigned from_half_pair<__half>(unsigned pair) {
    return pair;
}

// Codes of bytes I and J of `word` as two fp16 numbers, which all int8 and E4M3 numbers are.
template <int I, int J>
__device__ __forceinline__ unsigned int8_half_pair(unsigned word) {
    // As mantissas of 1024 they are 1024 + (code + 128) once the sign bit is flipped.
    unsigned pair = __byte_perm(word ^ 0x80808080u, 0x64646464u, 0x4040 | J << 8 | I);
    __half2 x = __hsub2(reinterpret_cast<__half2 &>(pair), __half2half2(__ushort_as_half(0x6480)));
    return reinterpret_cast<unsigned &>(x);
}

template <int I, int J>
__device__ __forceinline__ unsigned fp8_half_pair(unsigned word) {
#if __CUDA_ARCH__ >= 890
    unsigned pair;
    unsigned short codes = static_cast<unsigned short>(I == 0 && J == 1 ? word : I == 2 && J == 3 ? word >> 16
                                                                                  : __byte_perm(word, 0, J << 4 | I));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(codes));
    return pair;
#else
    // Exponent and mantissa one place down are those of an fp16 number 2^8 times smaller. NaN, which no cache holds,
    // becomes 480.
    unsigned high = __byte_perm(word, 0, J << 12 | 4 << 8 | I << 4 | 4);
    unsigned pair = (high & 0x80008000u) | (high & 0x7f007f00u) >> 1;
    __half2 x = __hmul2(reinterpret_cast<__half2 &>(pair), __half2half2(__ushort_as_half(0x5c00)));
    return reinterpret_cast<unsigned &>(x);
#endif
}

// Codes of bytes I and J of `word` as a pair of T, exactly.
template <class T, int I, int J>
__device__ __forceinline__ unsigned widen(Int8Code, unsigned word) {
    return from_half_pair<T>(int8_half_pair<I, J>(word));
}

template <class T, int I, int J>
__device__ __forceinline__ unsigned widen(Fp8Code, unsigned word) {
    return from_half_pair<T>(fp8_half_pair<I, J>(word));
}
