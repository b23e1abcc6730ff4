/* The configuration both fake libraries read: the file named by FAKE_GPU_CONFIG, one statement a line.
 *
 *   set DEVICE KEY VALUE        a field; DEVICE is an index or * for all and for the system.  VALUE may be a list
 *                               a|b|c: each reading takes the next one, the last one stays
 *   error DEVICE FUNCTION CODE  the function answers CODE
 *   delay FUNCTION MICROSECONDS the call takes that long (hang: 100000000)
 *   vanish DEVICE CALLS         after that many calls in all, every call on the device answers 15, "GPU is lost"
 *   process DEVICE PID BYTES    a process with a context on the device; BYTES -1: the driver does not tell
 */
#ifndef FAKE_CONFIG_H
#define FAKE_CONFIG_H
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_STATEMENTS 4096
#define ANY (-1)

struct statement {
    char kind[12];
    int device;
    char key[64];
    char value[256];
    int readings;
};

static struct statement statements[MOST_STATEMENTS];
static int statement_count;
static long calls;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    const char *path = getenv("FAKE_GPU_CONFIG");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512], device[16];
    while (file && fgets(line, sizeof line, file) && statement_count < MOST_STATEMENTS) {
        struct statement *s = &statements[statement_count];
        line[strcspn(line, "\n")] = 0;
        memset(s, 0, sizeof *s);
        s->device = ANY;
        if (sscanf(line, "delay %63s %255s", s->key, s->value) == 2) {
            strcpy(s->kind, "delay");
        } else if (sscanf(line, "vanish %15s %255s", device, s->value) == 2) {
            strcpy(s->kind, "vanish");
            s->device = atoi(device);
        } else if (sscanf(line, "%11s %15s %63s %255[^\n]", s->kind, device, s->key, s->value) == 4) {
            s->device = device[0] == '*' ? ANY : atoi(device);
        } else {
            continue;
        }
        statement_count++;
    }
    if (file)
        fclose(file);
}

/* The statement for this device, else the one for all; NULL for none. */
static struct statement *find(const char *kind, int device, const char *key)
{
    struct statement *general = NULL;
    pthread_once(&once, load);
    for (int i = 0; i < statement_count; i++) {
        struct statement *s = &statements[i];
        if (strcmp(s->kind, kind) || strcmp(s->key, key))
            continue;
        if (s->device == device)
            return s;
        if (s->device == ANY && !general)
            general = s;
    }
    return general;
}

/* The value of a key as text in `out`; 0 when it is not set. */
static int text_of(int device, const char *key, char *out, size_t size)
{
    struct statement *s = find("set", device, key);
    if (!s)
        return 0;
    const char *start = s->value;
    for (int skip = s->readings; skip > 0 && strchr(start, '|'); skip--)
        start = strchr(start, '|') + 1;
    s->readings++;
    snprintf(out, size, "%.*s", (int)strcspn(start, "|"), start);
    return 1;
}

static int number_of(int device, const char *key, long long *out)
{
    char text[256];
    if (!text_of(device, key, text, sizeof text))
        return 0;
    *out = strtoll(text, NULL, 0);
    return 1;
}

/* Counts the call, sleeps where told to, and gives the error code that the configuration wants; 0 for none. */
static int enter(int device, const char *function)
{
    long now = __sync_add_and_fetch(&calls, 1);
    struct statement *s = find("delay", ANY, function);
    if (s)
        usleep((useconds_t)atol(s->value));
    s = device == ANY ? NULL : find("vanish", device, "");
    if (s && s->device == device && now > atol(s->value))
        return 15;
    s = find("error", device, function);
    return s ? atoi(s->value) : 0;
}
#endif
