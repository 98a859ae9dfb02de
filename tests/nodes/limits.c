/* Reads the limits of a process from /proc where the kernel refuses them.

   CRIU asks for the limits of a process of another user, which takes CAP_SYS_RESOURCE. A build machine may be without
   it even for root. What /proc tells is the same. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As the lines of /proc/PID/limits begin, by number of the limit. */
static const char *const names[] = {
    "Max cpu time",        "Max file size",       "Max data size",        "Max stack size",
    "Max core file size",  "Max resident set",    "Max processes",        "Max open files",
    "Max locked memory",   "Max address space",   "Max file locks",       "Max pending signals",
    "Max msgqueue size",   "Max nice priority",   "Max realtime priority", "Max realtime timeout",
};

static unsigned long value(const char *text)
{
    return strcmp(text, "unlimited") == 0 ? RLIM64_INFINITY : strtoul(text, NULL, 10);
}

static int read_limit(pid_t pid, int resource, struct rlimit64 *limit)
{
    char path[64], line[256], soft[32], hard[32];
    int found = -1;
    FILE *file;

    snprintf(path, sizeof path, "/proc/%d/limits", pid);
    file = fopen(path, "re");
    while (file && found && fgets(line, sizeof line, file)) {
        size_t length = strlen(names[resource]);
        if (strncmp(line, names[resource], length) == 0 && sscanf(line + length, "%31s %31s", soft, hard) == 2) {
            limit->rlim_cur = value(soft);
            limit->rlim_max = value(hard);
            found = 0;
        }
    }
    if (file)
        fclose(file);
    return found;
}

/* CRIU calls the kernel through this function. */
long syscall(long number, ...)
{
    static long (*kernel)(long, ...);
    long argument[6], answer;
    va_list rest;

    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        argument[i] = va_arg(rest, long);
    va_end(rest);
    if (!kernel)
        *(void **)&kernel = dlsym(RTLD_NEXT, "syscall");
    answer = kernel(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
    if (number == SYS_prlimit64 && answer == -1 && errno == EPERM && !argument[2] && argument[3]
        && (size_t)argument[1] < sizeof names / sizeof *names)
        return read_limit(argument[0], argument[1], (struct rlimit64 *)argument[3]);
    return answer;
}
