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

// The low and the high two codes of `word` as fp16 numbers.
__device__ __forceinline__ void half_pairs(Int8Code, unsigned word, unsigned (&pairs)[2]) {
    // As mantissas of 1024 they are 1024 + (code + 128) once the sign bit is flipped.
    word ^= 0x80808080u;
    pairs[0] = __byte_perm(word, 0x64646464u, 0x4140), pairs[1] = __byte_perm(word, 0x64646464u, 0x4342);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        __half2 x = __hsub2(reinterpret_cast<__half2 &>(pairs[i]), __half2half2(__ushort_as_half(0x6480)));
        pairs[i] = reinterpret_cast<unsigned &>(x);
    }
}

__device__ __forceinline__ void half_pairs(Fp8Code, unsigned word, unsigned (&pairs)[2]) {
#if __CUDA_ARCH__ >= 890
    asm("{.reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(word));
#else
    // Exponent and mantissa one place down are those of an fp16 number 2^8 times smaller. NaN, which no cache holds,
    // becomes 480.
    pairs[0] = __byte_perm(word, 0, 0x1404), pairs[1] = __byte_perm(word, 0, 0x3424);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        pairs[i] = (pairs[i] & 0x80008000u) | (pairs[i] & 0x7f007f00u) >> 1;
        __half2 x = __hmul2(reinterpret_cast<__half2 &>(pairs[i]), __half2half2(__ushort_as_half(0x5c00)));
        pairs[i] = reinterpret_cast<unsigned &>(x);
    }
#endif
}

// The four codes of `word` as two pairs of T, exactly: the low and the high two.
template <class T, class Code>
__device__ __forceinline__ void widen(unsigned word, unsigned (&pairs)[2]) {
    half_pairs(Code{}, word, pairs);
#pragma unroll
    for (int i = 0; i < 2; i++) pairs[i] = from_half_pair<T>(pairs[i]);
}

// The same: those of even, and those of odd bytes.
template <class T, class Code>
__device__ __forceinline__ void widen_alternate(unsigned word, unsigned (&pairs)[2]) {
    widen<T, Code>(__byte_perm(word, 0, 0x3120), pairs);
}
