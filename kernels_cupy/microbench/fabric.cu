// Some SMs read memory while some write, each its own share: of a CTA of 1024 threads per SM the first half reads, the
// second half writes. A row is 8 KiB, an access of 16 bytes by each of 512 threads.
extern "C" __global__ void __launch_bounds__(1024)
    read_and_write(const uint4 *data, uint4 *results, const int *reader_of_sm, const int *writer_of_sm, int readers,
                   int writers, int rows_read, int rows_written, unsigned long long *times, unsigned *sink) {
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    const int half = threadIdx.x / 512, lane = threadIdx.x % 512;
    unsigned long long begin, end;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    if (half == 0 && reader_of_sm[sm] >= 0) {
        unsigned sum = 0;
#pragma unroll 1
        for (int row = reader_of_sm[sm]; row < rows_read; row += 8 * readers) {
            uint4 v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const int at = row + i * readers;
                v[i] = make_uint4(0, 0, 0, 0);
                if (at < rows_read)
                    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                                 : "l"(data + static_cast<size_t>(at) * 512 + lane));
            }
#pragma unroll
            for (int i = 0; i < 8; i++) sum += v[i].x + v[i].y + v[i].z + v[i].w;
        }
        if (sum == 0x12345678u) *sink = sum;
    }
    if (half == 1 && writer_of_sm[sm] >= 0)
#pragma unroll 4
        for (int row = writer_of_sm[sm]; row < rows_written; row += writers)
            results[static_cast<size_t>(row) * 512 + lane] = make_uint4(row, row, row, row);
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(end) : : "memory");
    if (lane == 0) times[(sm * 2 + half) * 2] = begin, times[(sm * 2 + half) * 2 + 1] = end;
}
