/* The calls of libnvidia-ml.so.1 and libcuda.so.1 that envkit and its payload use, in one library.
 *
 * There are STANDIN_COUNT GPUs (default 1), which the environment describes: STANDIN_DRIVER, STANDIN_NVML,
 * STANDIN_NAME, STANDIN_UUID (text), STANDIN_CC, STANDIN_GEN, STANDIN_CUDA, STANDIN_MHZ, STANDIN_MEMORY (MiB),
 * STANDIN_MIG (1: on), STANDIN_VIRTUALIZATION, STANDIN_XID (numbers; STANDIN_XID is the driver's only message, 0 for
 * none), STANDIN_SLICES (the names of MIG devices, each followed by ';'). Different values for several GPUs are written
 * "first|second"; the last one applies to all others.
 *
 * STANDIN_REFUSED lists calls that fail: "nvmlInit_v2=18" returns 18, and "nvmlDeviceGetName@1=15" returns 15 for the
 * second GPU only. Instead of a number, "crash" ends the process, "hang" never returns, and "talk" prints a line and
 * succeeds.
 *
 * Built without a C library, so that it loads into any image.
 */
extern char *getenv(const char *name);
extern int puts(const char *text);
extern int pause(void);

enum { FUNCTION_NOT_FOUND = 13, FIRST_SLICE = 1000 };

/* Return the start of a variable's value for one GPU, 0 if it is not set. It ends at a '|' or at the end. */
static const char *value_of(const char *name, unsigned device)
{
    const char *text = getenv(name), *at;
    if (!text)
        return 0;
    for (at = text; device && *at; at++)
        if (*at == '|') {
            text = at + 1;
            device--;
        }
    return text;
}

static int number_of(const char *name, unsigned device, int otherwise)
{
    const char *text = value_of(name, device);
    int value = 0;
    if (!text)
        return otherwise;
    for (; *text >= '0' && *text <= '9'; text++)
        value = 10 * value + *text - '0';
    return value;
}

static int number(const char *name, int otherwise)
{
    return number_of(name, 0, otherwise);
}

static int tell_until(char *to, unsigned room, const char *text, char end)
{
    unsigned at = 0;
    for (; text[at] && text[at] != '|' && text[at] != end && at + 1 < room; at++)
        to[at] = text[at];
    to[at] = 0;
    return 0;
}

static int tell(char *to, unsigned room, const char *name, unsigned device, const char *otherwise)
{
    const char *text = value_of(name, device);
    return tell_until(to, room, text ? text : otherwise, '|');
}

/* Return the number of a device, or of the GPU of a MIG device. */
static unsigned index_of(void *device)
{
    unsigned long known = (unsigned long)device;
    return (known >= FIRST_SLICE ? known / FIRST_SLICE : known) - 1;
}

/* Return the text after a word at its start, 0 if it does not start with the word. */
static const char *after(const char *text, const char *word)
{
    for (; *word; word++, text++)
        if (*text != *word)
            return 0;
    return text;
}

/* Return the error code of a call, 0 if it succeeds. */
static int refusal(const char *call, unsigned device)
{
    const char *at = getenv("STANDIN_REFUSED"), *rest;
    int value = 0;
    for (; at && *at; at++) {
        rest = after(at, call);
        if (rest && *rest == '@')
            rest = (unsigned)(rest[1] - '0') == device ? rest + 2 : 0;
        if (!rest || *rest++ != '=')
            continue;
        if (after(rest, "crash"))
            __builtin_trap();
        if (after(rest, "talk"))
            return puts("WARNING: this is a stub library") < 0;
        while (after(rest, "hang"))
            pause();
        for (; *rest >= '0' && *rest <= '9'; rest++)
            value = 10 * value + *rest - '0';
        return value;
    }
    return 0;
}

int cuDriverGetVersion(int *version)
{
    *version = number("STANDIN_CUDA", 12080);
    return 0;
}

int nvmlInit_v2(void)
{
    return refusal("nvmlInit_v2", 0);
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 13: return "Function Not Found";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetNVMLVersion(char *to, unsigned room)
{
    return tell(to, room, "STANDIN_NVML", 0, "12.570.86.15");
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = number("STANDIN_CUDA", 12080);
    return refusal("nvmlSystemGetCudaDriverVersion_v2", 0);
}

int nvmlSystemGetDriverVersion(char *to, unsigned room)
{
    return tell(to, room, "STANDIN_DRIVER", 0, "570.86.15");
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = number("STANDIN_COUNT", 1);
    return refusal("nvmlDeviceGetCount_v2", 0);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(unsigned long)(index + 1);
    return index < (unsigned)number("STANDIN_COUNT", 1) ? refusal("nvmlDeviceGetHandleByIndex_v2", index) : 2;
}

int nvmlDeviceGetName(void *device, char *to, unsigned room)
{
    unsigned long slice = (unsigned long)device % FIRST_SLICE;
    const char *text = value_of("STANDIN_SLICES", index_of(device));
    if ((unsigned long)device < FIRST_SLICE) {
        tell(to, room, "STANDIN_NAME", index_of(device), "Stand-in");
        return refusal("nvmlDeviceGetName", index_of(device));
    }
    for (; slice; text++)
        slice -= *text == ';';
    return tell_until(to, room, text, ';');
}

int nvmlDeviceGetUUID(void *device, char *to, unsigned room)
{
    tell(to, room, "STANDIN_UUID", 0, "GPU-00000000-0000-0000-0000-000000000000");
    for (unsigned at = 0; at + 1 < room && to[at]; at++)
        if (!to[at + 1])
            to[at] += (unsigned long)device; /* the devices count from 1 */
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    *major = number_of("STANDIN_CC", index_of(device), 90) / 10;
    *minor = number_of("STANDIN_CC", index_of(device), 90) % 10;
    return refusal("nvmlDeviceGetCudaComputeCapability", index_of(device));
}

/* The following exists only if its variable is set, because the payload's tests also need a driver without it. */
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *bytes)
{
    if (!getenv("STANDIN_MEMORY"))
        return FUNCTION_NOT_FOUND;
    bytes[0] = bytes[1] = (unsigned long long)number_of("STANDIN_MEMORY", index_of(device), 0) << 20;
    bytes[2] = 0; /* total, free, used */
    return 0;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    if (!getenv("STANDIN_MIG"))
        return FUNCTION_NOT_FOUND;
    *current = *pending = number_of("STANDIN_MIG", index_of(device), 0);
    return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count)
{
    if (!getenv("STANDIN_SLICES"))
        return FUNCTION_NOT_FOUND;
    *count = 7;
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned number, void **slice)
{
    const char *at = value_of("STANDIN_SLICES", index_of(device));
    unsigned known = 0;
    for (; at && *at && *at != '|'; at++)
        known += *at == ';';
    *slice = (void *)((unsigned long)device * FIRST_SLICE + number);
    return number < known ? 0 : 6;
}

int nvmlDeviceGetVirtualizationMode(void *device, unsigned *mode)
{
    if (!getenv("STANDIN_VIRTUALIZATION"))
        return FUNCTION_NOT_FOUND;
    *mode = number_of("STANDIN_VIRTUALIZATION", index_of(device), 0);
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
