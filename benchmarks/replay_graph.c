/* Launches an executable graph from C, in the process that made it: the baseline of llm_decode.py.
 *
 * Both functions return 0, or the driver's error code.
 */
#include <cuda.h>
#include <time.h>

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int enter(CUstream stream)
{
    CUcontext context;
    CUresult code = cuStreamGetCtx(stream, &context);
    return code ? code : cuCtxSetCurrent(context);
}

/* cuGraphLaunch and cuStreamSynchronize, `count` times; times_us[i] is what the i-th took. */
int replay_and_wait(void *graph, void *stream, int count, double *times_us)
{
    int code = enter(stream);
    for (int i = 0; i < count && !code; i++) {
        double begin = now_us();
        code = cuGraphLaunch(graph, stream);
        if (!code)
            code = cuStreamSynchronize(stream);
        times_us[i] = now_us() - begin;
    }
    return code;
}

/* `count` launches, then one cuStreamSynchronize; *total_us is what all took. */
int replay_together(void *graph, void *stream, int count, double *total_us)
{
    int code = enter(stream);
    double begin = now_us();
    for (int i = 0; i < count && !code; i++)
        code = cuGraphLaunch(graph, stream);
    if (!code)
        code = cuStreamSynchronize(stream);
    *total_us = now_us() - begin;
    return code;
}
