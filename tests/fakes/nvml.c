/* A stand-in for libnvidia-ml.so.1: the calls that bench-runner makes through nvidia-ml-py, answered from a file.
 * See config.h for the file; the keys are those given to NUMBER and in the functions below.  A key that is not set is
 * "not supported", as on real devices that lack a feature. */
#include "config.h"

typedef int status;
typedef void *device;
enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7 };
#define MIG_STRIDE 1000

static int initialised;

static int index_of(device d) { return ((int)(long)d - 1) % MIG_STRIDE; }
static int slice_of(device d) { return ((int)(long)d - 1) / MIG_STRIDE - 1; }
static device handle_of(int index, int slice) { return (device)(long)(1 + index + MIG_STRIDE * (slice + 1)); }

#define ENTER(d)                                                                                                       \
    if (!initialised)                                                                                                  \
        return UNINITIALIZED;                                                                                          \
    do {                                                                                                               \
        int code = enter(d, __func__);                                                                                 \
        if (code)                                                                                                      \
            return code;                                                                                               \
    } while (0)

/* A function of a device whose answer is one number. */
#define NUMBER(function, key, type)                                                                                    \
    status function(device d, type *out)                                                                               \
    {                                                                                                                  \
        long long value;                                                                                               \
        ENTER(index_of(d));                                                                                            \
        if (!number_of(index_of(d), key, &value))                                                                      \
            return NOT_SUPPORTED;                                                                                      \
        *out = (type)value;                                                                                            \
        return OK;                                                                                                     \
    }

/* The same with a selector, which becomes the end of the key: clock.1 is the clock of the SMs. */
#define NUMBER_BY(function, key, type)                                                                                 \
    status function(device d, int which, type *out)                                                                    \
    {                                                                                                                  \
        char name[64];                                                                                                 \
        long long value;                                                                                               \
        ENTER(index_of(d));                                                                                            \
        snprintf(name, sizeof name, "%s.%d", key, which);                                                              \
        if (!number_of(index_of(d), name, &value))                                                                     \
            return NOT_SUPPORTED;                                                                                      \
        *out = (type)value;                                                                                            \
        return OK;                                                                                                     \
    }

NUMBER(nvmlDeviceGetPowerUsage, "power", unsigned)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit", unsigned)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default", unsigned)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle", unsigned long long)
NUMBER(nvmlDeviceGetPersistenceMode, "persistence", unsigned)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", unsigned)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation", unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max", unsigned)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", unsigned)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max", unsigned)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, "energy", unsigned long long)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, "mig_count", unsigned)
NUMBER_BY(nvmlDeviceGetClockInfo, "clock", unsigned)
NUMBER_BY(nvmlDeviceGetMaxClockInfo, "clock_max", unsigned)
NUMBER_BY(nvmlDeviceGetApplicationsClock, "clock_application", unsigned)
NUMBER_BY(nvmlDeviceGetTemperature, "temperature", unsigned)

status nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    int code = enter(ANY, __func__);
    initialised += code == 0;
    return code;
}

status nvmlInit(void) { return nvmlInitWithFlags(0); } /* as torch calls it */
status nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

status nvmlShutdown(void)
{
    ENTER(ANY);
    initialised--;
    return OK;
}

const char *nvmlErrorString(status code)
{
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

static status copy(int index, const char *key, char *out, unsigned size)
{
    return text_of(index, key, out, size) ? OK : NOT_SUPPORTED;
}

status nvmlSystemGetDriverVersion(char *out, unsigned size) { ENTER(ANY); return copy(ANY, "driver", out, size); }
status nvmlDeviceGetName(device d, char *out, unsigned size) { ENTER(index_of(d)); return copy(index_of(d), "name", out, size); }

status nvmlDeviceGetUUID(device d, char *out, unsigned size)
{
    char key[64] = "uuid";
    ENTER(index_of(d));
    if (slice_of(d) >= 0)
        snprintf(key, sizeof key, "mig_uuid.%d", slice_of(d));
    return copy(index_of(d), key, out, size);
}

status nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    long long value;
    ENTER(ANY);
    if (!number_of(ANY, "cuda", &value))
        return NOT_SUPPORTED;
    *out = (int)value;
    return OK;
}

static int device_count(void)
{
    long long value = 0;
    number_of(ANY, "count", &value);
    return (int)value;
}

status nvmlDeviceGetCount_v2(unsigned *out) { ENTER(ANY); *out = device_count(); return OK; }

status nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out)
{
    ENTER((int)index);
    if ((int)index >= device_count())
        return INVALID;
    *out = handle_of((int)index, -1);
    return OK;
}

static status by_key(const char *key, const char *wanted, device *out)
{
    char text[256];
    for (int i = 0; i < device_count(); i++) {
        if (text_of(i, key, text, sizeof text) && !strcasecmp(text, wanted)) {
            *out = handle_of(i, -1);
            return OK;
        }
    }
    return NOT_FOUND;
}

status nvmlDeviceGetHandleByUUID(const char *uuid, device *out) { ENTER(ANY); return by_key("uuid", uuid, out); }
status nvmlDeviceGetHandleByPciBusId_v2(const char *id, device *out) { ENTER(ANY); return by_key("pci", id, out); }

status nvmlDeviceGetPciInfo_v3(device d, void *out)
{
    char *bytes = out; /* nvmlPciInfo_t: 16 characters, 5 numbers, 32 characters: the bus id is at 36 */
    ENTER(index_of(d));
    memset(bytes, 0, 68);
    return copy(index_of(d), "pci", bytes + 36, 32);
}

status nvmlDeviceGetMemoryInfo(device d, unsigned long long out[3])
{
    long long total, used, reserved = 0;
    ENTER(index_of(d));
    if (!number_of(index_of(d), "memory_total", &total) || !number_of(index_of(d), "memory_used", &used))
        return NOT_SUPPORTED;
    number_of(index_of(d), "memory_reserved", &reserved);
    out[0] = total;
    out[2] = used + reserved; /* version 1 counts the reserved part as used */
    out[1] = total - used - reserved;
    return OK;
}

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

status nvmlDeviceGetMemoryInfo_v2(device d, struct memory_v2 *out)
{
    long long total, used, reserved = 0;
    ENTER(index_of(d));
    if (!number_of(index_of(d), "memory_total", &total) || !number_of(index_of(d), "memory_used", &used))
        return NOT_SUPPORTED;
    number_of(index_of(d), "memory_reserved", &reserved);
    out->total = total;
    out->used = used;
    out->reserved = reserved;
    out->free = total - used - reserved;
    return OK;
}

status nvmlDeviceGetTotalEccErrors(device d, int type, int counter, unsigned long long *out)
{
    long long value;
    (void)counter;
    ENTER(index_of(d));
    if (!number_of(index_of(d), type ? "ecc_uncorrected" : "ecc_corrected", &value))
        return NOT_SUPPORTED;
    *out = value;
    return OK;
}

status nvmlDeviceGetRemappedRows(device d, unsigned *fixed, unsigned *lost, unsigned *pending, unsigned *failed)
{
    long long value;
    ENTER(index_of(d));
    if (!number_of(index_of(d), "remapping_failed", &value))
        return NOT_SUPPORTED;
    *fixed = *lost = *pending = 0;
    *failed = (unsigned)value;
    return OK;
}

status nvmlDeviceGetNvLinkState(device d, unsigned link, unsigned *out)
{
    char states[256]; /* one character a link: 1 is up, 0 is down */
    ENTER(index_of(d));
    if (!text_of(index_of(d), "nvlinks", states, sizeof states))
        return NOT_SUPPORTED;
    if (link >= strlen(states))
        return INVALID;
    *out = states[link] == '1';
    return OK;
}

status nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *pending)
{
    long long value;
    ENTER(index_of(d));
    if (!number_of(index_of(d), "mig", &value))
        return NOT_SUPPORTED;
    *now = *pending = (unsigned)value;
    return OK;
}

status nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned slice, device *out)
{
    char key[64], text[256];
    ENTER(index_of(d));
    snprintf(key, sizeof key, "mig_uuid.%u", slice);
    if (!text_of(index_of(d), key, text, sizeof text))
        return NOT_FOUND;
    *out = handle_of(index_of(d), (int)slice);
    return OK;
}

status nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor)
{
    long long value; /* 90 is 9.0 */
    ENTER(index_of(d));
    if (!number_of(index_of(d), "capability", &value))
        return NOT_SUPPORTED;
    *major = (int)value / 10;
    *minor = (int)value % 10;
    return OK;
}

status nvmlDeviceGetUtilizationRates(device d, unsigned out[2])
{
    long long value;
    ENTER(index_of(d));
    if (!number_of(index_of(d), "utilisation", &value))
        return NOT_SUPPORTED;
    out[0] = out[1] = (unsigned)value;
    return OK;
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };

status nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *count, struct process *out)
{
    unsigned found = 0, room = *count;
    ENTER(index_of(d));
    for (int i = 0; i < statement_count; i++) {
        struct statement *s = &statements[i];
        if (strcmp(s->kind, "process") || s->device != index_of(d))
            continue;
        if (out && found < room)
            out[found] = (struct process){(unsigned)atol(s->key), (unsigned long long)atoll(s->value), ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}
