// The SIMT half of examples/tile_simt_interop.py: keep what reaches a threshold, scaled; zero the rest.
//
// threshold_scale.ptx beside this file is committed, so that no one needs nvcc to run the example.
// It was made by `make ptx` with nvcc 13.0, which runs, in the repository's root:
//
//   nvcc -ptx -arch=compute_75 -O3 -o examples/simt/threshold_scale.ptx examples/simt/threshold_scale.cu
//
// compute_75 is the oldest target of CUDA 13, so every GPU that CUDA 13 supports takes the PTX; its
// version, 9.0, needs a driver of CUDA 13.0 (r580) or newer.

// One thread for each of in[0] .. in[n - 1]: launch at least n threads on the x axis; threads past n do
// nothing. The arrays do not overlap.
//
// NaN compares false with everything, so a NaN element, or a NaN threshold, gives 0.
extern "C" __global__ void threshold_scale_f32(unsigned int n, float threshold, float scale,
                                               const float *__restrict__ in, float *__restrict__ out) {
  unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {
    float value = in[i];
    out[i] = value >= threshold ? value * scale : 0.0f;
  }
}
