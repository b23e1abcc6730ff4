/* A stand-in for libcuda.so.1, enough for asking the driver's version and whether it initialises: cuInit,
 * cuDriverGetVersion, cuDeviceGetCount.  Far too little for torch itself.  See config.h for the file it reads. */
#include "config.h"

int cuInit(unsigned flags)
{
    (void)flags;
    return enter(ANY, __func__);
}

int cuDriverGetVersion(int *out)
{
    long long value = 0;
    int code = enter(ANY, __func__);
    number_of(ANY, "cuda", &value);
    *out = (int)value;
    return code;
}

int cuDeviceGetCount(int *out)
{
    long long value = 0;
    int code = enter(ANY, __func__);
    number_of(ANY, "count", &value);
    *out = (int)value;
    return code;
}
