#include "cli/columns.h"

#include <stdarg.h>
#include <stdio.h>

void columns_cell(struct columns *t, struct slice value)
{
    must(t->across > 0 && t->across <= COLUMNS_MAX);
    if (t->count == COLUMNS_CELLS_MAX) return;
    for (size_t i = 0; i < value.len; i++) {
        unsigned char c = (unsigned char)value.at[i];
        bool upper = c == 0xc2 && i + 1 < value.len && (unsigned char)value.at[i + 1] < 0xa0; /* U+0080 to U+009F */
        if (upper) i++;
        buf_byte(&t->text, c < 0x20 || c == 0x7f || upper ? '?' : (char)c);
    }
    t->end[t->count++] = (uint32_t)t->text.len;
}

void columns_cellf(struct columns *t, const char *format, ...)
{
    char text[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    columns_cell(t, slice_of(text));
}

static struct slice cell_at(const struct columns *t, uint32_t i)
{
    uint32_t begin = i == 0 ? 0 : t->end[i - 1];
    return slice_make(buf_view(&t->text).at + begin, t->end[i] - begin);
}

/* Characters, not bytes: what continues a UTF-8 character takes no place. */
static uint32_t cell_width(struct slice cell)
{
    uint32_t width = 0;
    for (size_t i = 0; i < cell.len; i++) width += ((unsigned char)cell.at[i] & 0xc0) != 0x80;
    return width;
}

static void blanks(uint32_t count)
{
    printf("%*s", (int)count, "");
}

static void row_print(const struct columns *t, uint32_t row, const uint32_t *widths)
{
    for (uint32_t column = 0; column < t->across; column++) {
        struct slice cell = cell_at(t, row * t->across + column);
        uint32_t pad = widths[column] - cell_width(cell);
        bool right = (t->right >> column & 1) != 0;
        if (column > 0) blanks(2);
        if (right) blanks(pad);
        fwrite(cell.at, 1, cell.len, stdout);
        if (!right && column + 1 < t->across) blanks(pad);
    }
    putchar('\n');
}

void columns_print(struct columns *t)
{
    uint32_t widths[COLUMNS_MAX] = {0};
    uint32_t rows = t->across == 0 ? 0 : t->count / t->across;
    for (uint32_t i = 0; i < rows * t->across; i++) {
        uint32_t width = cell_width(cell_at(t, i));
        if (width > widths[i % t->across]) widths[i % t->across] = width;
    }
    for (uint32_t row = 0; row < rows; row++) row_print(t, row, widths);
    buf_clear(&t->text);
    t->count = 0;
}

void columns_free(struct columns *t)
{
    buf_free(&t->text);
}
