"""Small Llama models on a CPU, in C: `small_llama.c` computes, `build` compiles it, `small_llama` calls it."""
