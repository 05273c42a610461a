/* Start CUDA as any program does: cuInit, the number of devices, and the first context on the first of them.
 *
 * Prints one line, and exits with 1 if a call fails. It is linked with the stand-in's libcuda.so.1, and needs no newer
 * glibc than 2.2.5 (2.17 on arm64), so that it runs in any image with glibc.
 */
extern int printf(const char *format, ...);
extern int fflush(void *file);
extern void _exit(int code);
extern int cuInit(unsigned flags);
extern int cuDeviceGetCount(int *count);
extern int cuDevicePrimaryCtxRetain(void **context, int device);

#ifdef __x86_64__
__attribute__((force_align_arg_pointer)) /* _start is entered, not called */
#endif
void _start(void)
{
    void *context = 0;
    int count = 0, initialized = cuInit(0), retained = -1;
    if (!initialized && !cuDeviceGetCount(&count))
        retained = cuDevicePrimaryCtxRetain(&context, 0);
    printf("cuInit %d, devices %d, context %d\n", initialized, count, retained);
    fflush(0);
    _exit(initialized || retained);
}
