/* A driver's libraries as far as the payload asks them: libnvidia-ml.so.1 and libcuda.so.1 in one.
 *
 * There are STANDIN_COUNT GPUs (1), and the environment says what they are like: STANDIN_DRIVER (text), STANDIN_CC, STANDIN_GEN,
 * STANDIN_CUDA, STANDIN_MHZ, STANDIN_XID (numbers; the last is the one message that the driver has, 0 for none). Built without a C library of its own, so that it loads into any image.
 */
extern char *getenv(const char *name);

static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);
    int value = 0;
    if (!text)
        return otherwise;
    for (; *text >= '0' && *text <= '9'; text++)
        value = 10 * value + *text - '0';
    return value;
}

static int tell(char *to, unsigned room, const char *name, const char *otherwise)
{
    const char *text = getenv(name);
    unsigned at = 0;
    if (!text)
        text = otherwise;
    for (; text[at] && at + 1 < room; at++)
        to[at] = text[at];
    to[at] = 0;
    return 0;
}

int cuDriverGetVersion(int *version)
{
    *version = number("STANDIN_CUDA", 12080);
    return 0;
}

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlSystemGetDriverVersion(char *to, unsigned room)
{
    return tell(to, room, "STANDIN_DRIVER", "570.86.15");
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = number("STANDIN_COUNT", 1);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(unsigned long)(index + 1);
    return index < (unsigned)number("STANDIN_COUNT", 1) ? 0 : 2;
}

int nvmlDeviceGetName(void *device, char *to, unsigned room)
{
    return tell(to, room, "STANDIN_NAME", "Stand-in");
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned room)
{
    tell(to, room, "STANDIN_UUID", "GPU-00000000-0000-0000-0000-000000000000");
    for (unsigned at = 0; at + 1 < room && to[at]; at++)
        if (!to[at + 1])
            to[at] += (unsigned long)device; /* the devices count from 1 */
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    *major = number("STANDIN_CC", 90) / 10;
    *minor = number("STANDIN_CC", 90) % 10;
    return 0;
}

int nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *value)
{
    *value = number("STANDIN_GEN", 4);
    return 0;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *value)
{
    *value = 4;
    return 0;
}

int nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *value)
{
    *value = 16;
    return 0;
}

int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *value)
{
    *value = 16;
    return 0;
}

int nvmlDeviceGetPerformanceState(void *device, unsigned *state)
{
    *state = 0;
    return 0;
}

int nvmlDeviceGetClockInfo(void *device, unsigned kind, unsigned *mhz)
{
    *mhz = number("STANDIN_MHZ", 1500);
    return kind == 1 ? 0 : 2;
}

int nvmlDeviceGetMaxClockInfo(void *device, unsigned kind, unsigned *mhz)
{
    *mhz = kind == 1 ? 1500 : 2000;
    return kind == 1 || kind == 2 ? 0 : 2;
}

int nvmlDeviceGetMemoryBusWidth(void *device, unsigned *bits)
{
    *bits = 64;
    return 0;
}

int nvmlEventSetCreate(void **events)
{
    *events = (void *)2;
    return 0;
}

int nvmlEventSetFree(void *events)
{
    return 0;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *events)
{
    return kinds == 8 ? 0 : 2;
}

/* As nvmlEventData_t of nvml.h. */
struct message {
    void *device;
    unsigned long long kind, data;
    unsigned gpu_instance, compute_instance;
};

int nvmlEventSetWait_v2(void *events, struct message *message, unsigned milliseconds)
{
    static int told;
    if (told || !number("STANDIN_XID", 0))
        return 10;
    told = 1;
    message->kind = 8;
    message->data = number("STANDIN_XID", 0);
    return 0;
}
