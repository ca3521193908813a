// out[i] = a * x[i] + y[i] for i < n: one thread per element on the x axis. `out` overlaps neither input.
// saxpy.ptx beside this file was made by `make ptx`:
//
//   nvcc -ptx -arch=compute_75 -O3 -o examples/simt/saxpy.ptx examples/simt/saxpy.cu
extern "C" __global__ void saxpy_f32(unsigned int n, float a, const float *__restrict__ x,
                                     const float *__restrict__ y, float *__restrict__ out) {
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
}
