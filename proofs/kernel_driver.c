/* Trains a small model with the kernel alone, for CPUs on which Python does not run here: reads the input that
   `kernel_bits.py` writes, repeats sampling, log-probabilities, gradients and AdamW, and writes the samples of each step
   and the last weights.

       driver INPUT OUTPUT */

#include "small_llama.c"

#include <stdio.h>

static void *allocate(int64_t bytes) {
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!memory) exit(1);
    return memory;
}

static void *read_array(FILE *file, int64_t bytes) {
    void *memory = allocate(bytes);
    if (fread(memory, 1, bytes, file) != (size_t)bytes) exit(1);
    return memory;
}

/* A prompt and its samples, of which the last tokens are no rows. */
static Unit make_unit(const int64_t *prompt, int64_t length, const int64_t *tokens, const int64_t *lengths,
                      int64_t samples, int64_t limit) {
    int64_t most = length + samples * limit, *ends = allocate(8 * (samples + 1)), *rows = allocate(8 * most);
    int64_t *positions = allocate(8 * most), *targets = allocate(8 * most), *outputs = allocate(8 * most), n = 0, k = 0;
    for (; n < length; n++) rows[n] = prompt[n], positions[n] = n;
    for (int64_t s = 0; s < samples; s++) {
        ends[s] = n;
        for (int64_t t = 0; t < lengths[s]; t++, k++) {
            targets[k] = tokens[s * limit + t];
            outputs[k] = t ? n - length : 0;
            if (t + 1 < lengths[s]) rows[n] = targets[k], positions[n] = length + t, n++;
        }
    }
    ends[samples] = n;
    return (Unit){length, samples, k, ends, rows, positions, targets, outputs};
}

int main(int count, char **arguments) {
    FILE *in = count == 3 ? fopen(arguments[1], "rb") : NULL, *out = in ? fopen(arguments[2], "wb") : NULL;
    if (!out) return 1;
    int64_t *sizes = read_array(in, 8 * 16);
    int64_t groups = sizes[11], common = sizes[12], samples = sizes[13], limit = sizes[14], steps = sizes[15];
    Model m = {.layers = sizes[0], .D = sizes[1], .H = sizes[2], .J = sizes[3], .d = sizes[4], .M = sizes[5],
               .V = sizes[6], .tied = sizes[7], .has_bias = sizes[8], .has_qk_norm = sizes[9],
               .padding_token = sizes[10], .eps = 1e-6f, .temperature = 1};
    int64_t parameters = parameter_count(&m), rows = groups * samples, half = m.d / 2;
    float *frequencies = read_array(in, 4 * half), *weights = read_array(in, 4 * parameters);
    int64_t *ends = read_array(in, 8 * (groups + 1)), *prompts = read_array(in, 8 * ends[groups]);
    float *noise = read_array(in, 4 * steps * rows * limit);
    uint8_t *is_end = read_array(in, m.V);
    int64_t longest = limit;
    for (int64_t g = 0; g < groups; g++)
        if (ends[g + 1] - ends[g] + limit > longest) longest = ends[g + 1] - ends[g] + limit;
    float *cosines = allocate(4 * longest * half), *sines = allocate(4 * longest * half);
    float *panels = allocate(4 * panel_count(&m)), *grads = allocate(4 * parameters), *sum = allocate(4 * parameters);
    float *mean = calloc(parameters, 4), *square = calloc(parameters, 4);
    int64_t *tokens = calloc(rows * limit, 8), *lengths = calloc(rows, 8), *starts = allocate(8 * (groups + 1));
    float *logprob = calloc(rows * limit, 4);
    rotary_tables(longest, half, frequencies, cosines, sines);
    memset(panels, 0, 4 * panel_count(&m));
    m.cos = cosines, m.sin = sines, m.weights = weights, m.panels = panels;
    int64_t *rest = allocate(8 * ends[groups]), n = 0;
    for (int64_t g = 0; g <= groups; g++) starts[g] = g * samples;
    /* the prompts as a unit: what all of them begin with, then the rest of each */
    int64_t *rest_ends = allocate(8 * (groups + 1)), *rest_positions = allocate(8 * ends[groups]);
    for (; n < common; n++) rest[n] = prompts[n], rest_positions[n] = n;
    for (int64_t g = 0; g < groups; g++) {
        rest_ends[g] = n;
        for (int64_t t = ends[g] + common; t < ends[g + 1]; t++, n++)
            rest[n] = prompts[t], rest_positions[n] = t - ends[g];
    }
    rest_ends[groups] = n;
    Unit shared = {common, groups, 0, rest_ends, rest, rest_positions, NULL, NULL};
    for (int64_t step = 0; step < steps; step++) {
        Requests requests = {groups, limit, rows < 24 ? rows : 24, starts, noise + step * rows * limit, is_end};
        pack_weights(&m, panels);
        memset(tokens, 0, 8 * rows * limit);
        generate(&m, &shared, &requests, tokens, logprob, lengths);
        memset(sum, 0, 4 * parameters);
        for (int64_t g = 0; g < groups; g++) {
            int64_t *own = lengths + g * samples;
            Unit u = make_unit(prompts + ends[g], ends[g + 1] - ends[g], tokens + g * samples * limit, own, samples,
                               limit);
            float *tape = allocate(4 * tape_size(&m, &u)), *result = allocate(4 * u.targets), *of = allocate(4 * u.targets);
            logprobs(&m, &u, tape, result);
            for (int64_t s = 0, k = 0; s < samples; s++) /* every second sample is made less likely */
                for (int64_t t = 0; t < own[s]; t++, k++) of[k] = (s % 2 ? 0.01f : -0.01f) * (float)(1 + t % 3);
            backward(&m, &u, of, tape, grads);
            for (int64_t i = 0; i < parameters; i++) sum[i] += grads[i];
            fwrite(result, 4, u.targets, out);
            free(tape), free(result), free(of);
        }
        double squares = sum_squares(parameters, sum);
        AdamW options = {1 - 1e-5f, .9f, .999f, .1f, .001f, 3e-4f, 1, 1e-8f};
        adamw(parameters, &options, sum, weights, mean, square);
        fwrite(tokens, 8, rows * limit, out);
        fwrite(lengths, 8, rows, out);
        fwrite(&squares, 8, 1, out);
    }
    fwrite(weights, 4, parameters, out);
    return fclose(out) != 0;
}
