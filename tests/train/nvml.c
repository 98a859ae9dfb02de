/* NVML as far as holdfast asks it. FAKE_NVML is what it tells: "30,70" of two GPUs, a letter for one that does not
   say, "!" when the driver is not there. */
#include <stdlib.h>
#include <string.h>

static const char *told(void) { const char *text = getenv("FAKE_NVML"); return text ? text : ""; }

static const char *device(unsigned index) {
    const char *at = told();
    while (index-- && at) at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
    return at;
}

int nvmlInit_v2(void) { return told()[0] == '!' ? 9 : 0; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (told()[0] == '?') return 999;
    *count = told()[0] != '\0';
    for (const char *at = told(); *at; at++) *count += *at == ',';
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (device(index)[0] == 'h') return 15;
    *handle = (void *)device(index);
    return 0;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned *rates) {
    const char *text = handle;
    if (text[0] < '0' || text[0] > '9') return 3;
    rates[0] = (unsigned)atoi(text);
    rates[1] = 99;
    return 0;
}
