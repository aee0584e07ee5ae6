/* The speed of the kernel's own matrix products, warm, on one core: prints GFLOP/s of generation and of learning.

       kernel_gemm WIDTH QKV HEADS MLP VOCABULARY

   Generation multiplies 24 rows with panels of weights; learning 96 rows, and computes the gradients of rows and weights.
   Each product is repeated for its shape; the fastest of nine rounds counts. */

#include "small_llama.c"

#include <stdio.h>
#include <time.h>

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

static double time_product(Left a, Right b, Out c, int64_t rows, int64_t panels, int64_t inner, int add) {
    int64_t repeats = 50000000 / (rows * panels * 16 * inner) + 1;
    double best = 1e9;
    for (int round = 0; round < 9; round++) {
        double started = seconds();
        for (int64_t n = 0; n < repeats; n++) product(a, b, c, rows, panels, inner, add);
        double each = (seconds() - started) / repeats;
        best = each < best ? each : best;
    }
    return best;
}

int main(int count, char **arguments) {
    if (count != 6) return 1;
    int64_t size = 1 << 20, w[5];
    for (int i = 0; i < 5; i++) w[i] = atoll(arguments[1 + i]);
    int64_t shapes[5][2] = {{w[0], w[1]}, {w[2], w[0]}, {w[0], 2 * w[3]}, {w[3], w[0]}, {w[0], 16 * panels_for(w[4])}};
    float *a = aligned_alloc(64, 4 * size), *b = aligned_alloc(64, 4 * size), *c = aligned_alloc(64, 4 * size);
    for (int64_t i = 0; i < size; i++) a[i] = b[i] = c[i] = 1e-3f * (float)(i % 7);
    for (int learns = 0; learns < 2; learns++) {
        int64_t rows = learns ? 96 : 24;
        double total = 0, operations = 0;
        for (int i = 0; i < 5; i++) {
            int64_t in = shapes[i][0], out = shapes[i][1];
            total += time_product(rows_of(a, in), panels_of(b, in), (Out){c, out}, rows, out / 16, in, 0);
            operations += 2.0 * rows * in * out;
            if (!learns) continue;
            total += time_product(rows_of(a, out), plain(b, in), (Out){c, in}, rows, in / 16, out, 0);
            total += time_product(columns_of(a, out), plain(b, in), (Out){c, in}, out, in / 16, rows, 1);
            operations += 4.0 * rows * in * out;
        }
        printf("%.2f\n", operations / total / 1e9);
    }
    return 0;
}
