// Shared memory: addresses, tiles of swizzled rows, asynchronous copies into them (cp.async, since sm_80).
#pragma once

__device__ __forceinline__ unsigned shared_address(const void *pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// A tile whose rows are RowBytes long (a multiple of 16) without padding, as chunks of 16 bytes.
//
// Eight consecutive rows of one column of chunks lie in eight different groups of four banks, which is what ldmatrix
// reads at once. With C = 2^a * odd chunks in a row, chunk 0 of row r starts at bank group r*C mod 8, which takes only
// 8 / 2^a values; XORing the low a bits of the chunk with the row's bits above them gives the other ones.
template <int RowBytes>
struct SharedRows {
    static_assert(RowBytes % 16 == 0, "a row is a whole number of 16-byte chunks");
    static constexpr int kChunks = RowBytes / 16;
    static constexpr int kBits = kChunks % 8 == 0 ? 3 : kChunks % 4 == 0 ? 2 : kChunks % 2 == 0 ? 1 : 0;

    // What a row's chunks are XORed with; of rows that have no bit in common, XORed themselves.
    static __device__ __forceinline__ constexpr int swizzle(int row) { return (row >> (3 - kBits)) & ((1 << kBits) - 1); }

    // Byte offset of a chunk.
    static __device__ __forceinline__ unsigned offset(int row, int chunk) {
        return row * RowBytes + ((chunk ^ swizzle(row)) << 4);
    }
};

// Starts a copy of Bytes (4, 8 or 16) from global to shared memory; zeros instead if not `valid` (`source` is not read).
template <int Bytes>
__device__ __forceinline__ void copy_async(unsigned target, const void *source, bool valid = true) {
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async moves 4, 8 or 16 bytes");
    int bytes = valid ? Bytes : 0;
    if constexpr (Bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(Bytes), "r"(bytes)
                     : "memory");
    }
}

// Starts a copy of 16 bytes.
__device__ __forceinline__ void copy_chunk(unsigned target, const void *source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}

// Ends a group of copies.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most Pending of this thread's groups are unfinished. Other threads' copies need a barrier besides.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Starts the copy of the Rows x Cols tile at (row, col) of a matrix of `rows` x `cols`; zeros outside the matrix.
//
// Vector is the number of elements that are aligned to their common size throughout: 8, 4, 2, or 1 (then it is an
// ordinary copy, since cp.async has no 2-byte form).
template <class Element, int Rows, int Cols, int Vector, int Threads, int MostUnrolled = 16>
__device__ __forceinline__ void copy_tile(char *tile, const Element *matrix, long long pitch, int row, int rows, int col,
                                          int cols) {
    using Layout = SharedRows<Cols * sizeof(Element)>;
    constexpr int kPerChunk = 16 / sizeof(Element);
    constexpr int kCount = Rows * Layout::kChunks;
    constexpr int kUnroll = Vector == kPerChunk ? MostUnrolled : 1;  // narrow copies are slow anyway, and need registers
#pragma unroll kUnroll
    for (int n = 0; n < (kCount + Threads - 1) / Threads; n++) {
        int i = n * Threads + threadIdx.x;
        if (kCount % Threads != 0 && i >= kCount) break;
        int r = i / Layout::kChunks, chunk = i % Layout::kChunks;
        char *target = tile + Layout::offset(r, chunk);
        bool inside = row + r < rows;
        const Element *source = matrix + (inside ? row + r : 0) * pitch;
#pragma unroll
        for (int e = 0; e < kPerChunk; e += Vector) {
            int c = col + chunk * kPerChunk + e;
            bool valid = inside && c < cols;
            if constexpr (Vector * sizeof(Element) >= 4) {
                copy_async<Vector * sizeof(Element)>(shared_address(target + e * sizeof(Element)), source + (valid ? c : 0), valid);
            } else {
                reinterpret_cast<Element *>(target)[e] = valid ? source[c] : Element(0.0f);
            }
        }
    }
}

// The largest power of two up to n; 0 for n = 0.
__device__ __forceinline__ constexpr int power_of_two(int n) { return n < 2 ? n : 2 * power_of_two(n / 2); }

// The same for streams of tiles of which all but a few are whole: such a tile costs hardly more instructions than its
// copies, and the others are not unrolled, to save registers.
template <class Element, int Rows, int Cols, int Vector, int Threads>
__device__ __forceinline__ void stream_tile(char *tile, const Element *matrix, long long pitch, int row, int rows,
                                            int col, int cols) {
    using Layout = SharedRows<Cols * sizeof(Element)>;
    constexpr int kPerChunk = 16 / sizeof(Element);
    constexpr int kPass = power_of_two(Threads / Layout::kChunks);
    if constexpr (Vector == kPerChunk && kPass > 0) {
        // A thread copies the same chunk of every kPass-th row. Where these lie is a constant away from the first, but for
        // a constant that is XORed: a whole tile costs hardly more instructions than its copies.
        if (row + Rows <= rows && col + Cols <= cols) {
            int r = threadIdx.x / Layout::kChunks, chunk = threadIdx.x % Layout::kChunks;
            unsigned target = shared_address(tile), offset = Layout::offset(r, chunk);
            const Element *source = matrix + (row + r) * pitch + col + chunk * kPerChunk;
            if (Threads > kPass * Layout::kChunks && r >= kPass) return;
#pragma unroll
            for (int first = 0; first < Rows; first += kPass)
                if (first + kPass <= Rows || first + r < Rows)
                    copy_chunk(target + first * Cols * sizeof(Element) + (offset ^ (Layout::swizzle(first) << 4)),
                               source + first * pitch);
            return;
        }
    }
    copy_tile<Element, Rows, Cols, Vector, Threads, 1>(tile, matrix, pitch, row, rows, col, cols);
}

// Stores the Rows x Cols tile to (row, col) of a matrix of `rows` x `cols`, the inverse of copy_tile; what lies outside
// the matrix is left out. Threads neighbouring threads take part.
template <class Element, int Rows, int Cols, int Vector, int Threads>
__device__ __forceinline__ void store_tile(Element *matrix, long long pitch, int row, int rows, int col, int cols,
                                           const char *tile) {
    using Layout = SharedRows<Cols * sizeof(Element)>;
    constexpr int kPerChunk = 16 / sizeof(Element);
    constexpr int kPass = power_of_two(Threads / Layout::kChunks);
    if constexpr (Vector == kPerChunk && kPass > 0) {  // as in stream_tile
        if (row + Rows <= rows && col + Cols <= cols) {
            int r = threadIdx.x % Threads / Layout::kChunks, chunk = threadIdx.x % Threads % Layout::kChunks;
            unsigned offset = Layout::offset(r, chunk);
            Element *target = matrix + (row + r) * pitch + col + chunk * kPerChunk;
            if (Threads > kPass * Layout::kChunks && r >= kPass) return;
#pragma unroll
            for (int first = 0; first < Rows; first += kPass)
                if (first + kPass <= Rows || first + r < Rows)
                    *reinterpret_cast<uint4 *>(target + first * pitch) = *reinterpret_cast<const uint4 *>(
                        tile + first * Cols * sizeof(Element) + (offset ^ (Layout::swizzle(first) << 4)));
            return;
        }
    }
    struct alignas(Vector * sizeof(Element)) Piece {
        Element x[Vector];
    };
#pragma unroll 1
    for (int i = threadIdx.x % Threads; i < Rows * Layout::kChunks; i += Threads) {
        int r = i / Layout::kChunks, chunk = i % Layout::kChunks;
        if (row + r >= rows) continue;
        const Piece *source = reinterpret_cast<const Piece *>(tile + Layout::offset(r, chunk));
        Element *target = matrix + (row + r) * pitch + col + chunk * kPerChunk;
#pragma unroll
        for (int e = 0; e < kPerChunk; e += Vector)
            if (col + chunk * kPerChunk + e < cols) *reinterpret_cast<Piece *>(target + e) = source[e / Vector];
    }
}
