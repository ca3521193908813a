// The work of examples/async_pipeline.py: square roots by Newton's iteration, as many rounds as asked for, so
// that a kernel can be made as long as an example needs. newton_sqrt.ptx beside this file was made by `make ptx`:
//
//   nvcc -ptx -arch=compute_75 -O3 -o examples/simt/newton_sqrt.ptx examples/simt/newton_sqrt.cu

// values[i] becomes its square root, for i < n and values[i] > 0; 0 stays 0. The start, (1 + value) / 2, is never
// below the root, so the iteration falls towards it; about 10 rounds are enough for values from 1e-3 to 1e3.
extern "C" __global__ void newton_sqrt_f32(unsigned int n, unsigned int rounds, float *__restrict__ values) {
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float value = values[i];
  float root = 0.5f * (1.0f + value);
  for (unsigned int r = 0; r < rounds; ++r) root = 0.5f * (root + value / root);
  values[i] = value > 0.0f ? root : 0.0f;
}
