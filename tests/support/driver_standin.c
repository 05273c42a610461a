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
 * cuInit and the first context ask of the system what drivers from 570 on ask of it, and answer a refusal with the same
 * code: 304 if the name of a thread cannot be written to /proc/PID/task/TID/comm, /sys cannot be read or there is no
 * memory file, 100 if
 * /dev/nvidiactl or every /dev/nvidiaN cannot be opened for reading and writing or refuses an ioctl, 999 if that is
 * /dev/nvidia-uvm. /proc/driver/nvidia/params is read and may be missing. In a child after fork, which inherits a driver
 * that it cannot use, everything answers 3. STANDIN_DEV is another folder for /dev.
 *
 * Built without a C library, so that it loads into any image: its functions are those of the process.
 */
extern char *getenv(const char *name);
extern int puts(const char *text);
extern int pause(void);
extern int open(const char *path, int flags, ...);
extern long read(int file, void *to, unsigned long room);
extern long write(int file, const void *from, unsigned long size);
extern int close(int file);
extern int ioctl(int file, unsigned long request, ...);
extern int getpid(void);
extern long syscall(long number, ...);
extern int *__errno_location(void);
/* Weak: without threads in the C library (glibc before 2.34 without libpthread) there is no helper thread. */
extern int pthread_create(unsigned long *, const void *, void *(*)(void *), void *) __attribute__((weak));

enum { FUNCTION_NOT_FOUND = 13, FIRST_SLICE = 1000 };
enum { NO_DEVICE = 100, INVALID_DEVICE = 101, OS_CALL_FAILED = 304, UNKNOWN = 999, NOT_INITIALIZED = 3 };
enum { READ_ONLY = 0, READ_WRITE = 2, NOT_PERMITTED = 1, NO_ACCESS = 13, MOST_NODES = 16 };
#ifdef __aarch64__
enum { GETTID = 178, MEMFD_CREATE = 279 };
#else
enum { GETTID = 186, MEMFD_CREATE = 319 };
#endif

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

static char *append(char *to, const char *text)
{
    while (*text)
        *to++ = *text++;
    *to = 0;
    return to;
}

static char *append_number(char *to, unsigned value)
{
    char digits[12], *at = digits + sizeof digits;
    *--at = 0;
    do
        *--at = '0' + value % 10;
    while (value /= 10);
    return append(to, at);
}

/* Write the name of a thread as pthread_setname_np does, and return 0 or OS_CALL_FAILED. Its name stays the same. */
static int name_thread(int thread)
{
    char path[64], name[16];
    long size;
    int file, written = 0;
    append(append_number(append(append_number(append(path, "/proc/"), getpid()), "/task/"), thread), "/comm");
    file = open(path, READ_WRITE);
    if (file < 0)
        return OS_CALL_FAILED;
    size = read(file, name, sizeof name);
    written = size > 0 && write(file, name, size - 1) == size - 1;
    close(file);
    return written ? 0 : OS_CALL_FAILED;
}

/* Open a node and issue an ioctl. Return whether both are allowed; a node that knows no such request allows it. */
static int usable(const char *name, int number)
{
    char path[256], *end;
    unsigned version[18] = {0};
    const char *folder = getenv("STANDIN_DEV");
    int file;
    end = append(append(append(path, folder ? folder : "/dev"), "/"), name);
    if (number >= 0)
        append_number(end, number);
    file = open(path, READ_WRITE);
    if (file < 0)
        return 0;
    /* NV_ESC_CHECK_VERSION_STR of 72 bytes. The file stays open, as with a driver. */
    if (ioctl(file, 0xC04846D2, version) < 0)
        return *__errno_location() != NOT_PERMITTED && *__errno_location() != NO_ACCESS;
    return 1;
}

static int readable(const char *path)
{
    int file = open(path, READ_ONLY);
    if (file >= 0)
        close(file);
    return file >= 0;
}

static int visible_devices, owner;
static volatile int helper;

/* Return whether this process is a child of the one that started CUDA. */
static int inherited(void)
{
    return owner && owner != getpid();
}

static void *wait_for_ever(void *unused)
{
    helper = syscall(GETTID);
    for (;;)
        pause();
    return unused;
}

int cuInit(unsigned flags)
{
    int number, memory, code = refusal("cuInit", 0);
    if (inherited())
        return NOT_INITIALIZED;
    if (code || visible_devices)
        return code;
    memory = syscall(MEMFD_CREATE, "standin", 1);
    if (memory < 0 || name_thread(syscall(GETTID)))
        return OS_CALL_FAILED;
    readable("/proc/driver/nvidia/params");
    if (!usable("nvidiactl", -1))
        return NO_DEVICE;
    for (number = 0; number < MOST_NODES; number++)
        visible_devices += usable("nvidia", number);
    if (!visible_devices)
        return NO_DEVICE;
    if (!usable("nvidia-uvm", -1))
        code = UNKNOWN;
    else if (!readable("/sys/devices/system/node") || !readable("/sys/bus/pci/devices"))
        code = OS_CALL_FAILED;
    if (code)
        visible_devices = 0;
    else
        owner = getpid();
    return code;
}

int cuDeviceGetCount(int *count)
{
    *count = visible_devices;
    return visible_devices && !inherited() ? 0 : NOT_INITIALIZED;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    unsigned long thread;
    if (!visible_devices || inherited())
        return NOT_INITIALIZED;
    if (device < 0 || device >= visible_devices)
        return INVALID_DEVICE;
    *context = (void *)1;
    if (helper || !pthread_create)
        return 0;
    if (pthread_create(&thread, 0, wait_for_ever, 0))
        return OS_CALL_FAILED;
    while (!helper)
        ;
    return name_thread(helper);
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
