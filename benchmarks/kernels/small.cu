// Kernels for the overhead benchmarks. small.ptx beside this file is committed; it was made by
//
//   nvcc -ptx -arch=compute_75 -O3 -o benchmarks/kernels/small.ptx benchmarks/kernels/small.cu

// y[i] += a * x[i]: four arguments, and work of about 2 us, less than its launch costs the host.
extern "C" __global__ void axpy_f32(unsigned int n, float a, const float *__restrict__ x, float *__restrict__ y) {
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}

// Keep each thread busy for `rounds` dependent multiply-adds: a kernel of a chosen length.
extern "C" __global__ void busy_f32(unsigned int rounds, float *__restrict__ y) {
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  float value = y[i];
  for (unsigned int r = 0; r < rounds; ++r) value = value * 0.999f + 0.001f;
  y[i] = value;
}
