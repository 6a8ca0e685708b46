#include "broker/die.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/logger.h"

void broker_die(int code, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    log_error("stopping: %s", text);
    _exit(code);
}
