#include "cli/json_scan.h"

#include <simdjson.h>

#include <string_view>

using namespace simdjson;

namespace
{

struct view_span span_of(const padded_string &copy, std::string_view part)
{
    return view_span{static_cast<size_t>(part.data() - copy.data()), part.size(), true};
}

/* The raw text of a value; it is skipped on the way. */
bool raw_of(ondemand::value value, std::string_view *out)
{
    return to_json_string(value).get(*out) == SUCCESS;
}

} // namespace

extern "C" bool view_scan_whole(const char *text, size_t len)
{
    /* The document-object model checks everything, which on-demand reading does not. */
    static dom::parser parser;
    dom::element root;
    return len > 0 && parser.parse(text, len, true).get(root) == SUCCESS;
}

extern "C" bool view_scan_members(const char *text, size_t len, const char *const *names, struct view_span *values,
                                  size_t count)
{
    static ondemand::parser parser;
    padded_string copy(text, len);
    ondemand::document document;
    ondemand::object object;
    for (size_t i = 0; i < count; i++) values[i] = view_span{0, 0, false};
    if (parser.iterate(copy).get(document) != SUCCESS || document.get_object().get(object) != SUCCESS) return false;
    for (auto field : object) {
        std::string_view key, raw;
        if (field.unescaped_key().get(key) != SUCCESS) return false;
        size_t i = 0;
        while (i < count && key != names[i]) i++;
        if (i == count) continue;
        ondemand::value value;
        if (field.value().get(value) != SUCCESS || !raw_of(value, &raw)) return false;
        values[i] = span_of(copy, raw);
    }
    return true;
}

extern "C" bool view_scan_elements(const char *text, size_t len, bool (*each)(void *arg, struct view_span element), void *arg)
{
    static ondemand::parser parser;
    padded_string copy(text, len);
    ondemand::document document;
    ondemand::array elements;
    if (parser.iterate(copy).get(document) != SUCCESS || document.get_array().get(elements) != SUCCESS) return false;
    for (auto element : elements) {
        ondemand::value value;
        std::string_view raw;
        if (element.get(value) != SUCCESS || !raw_of(value, &raw)) return false;
        if (!each(arg, span_of(copy, raw))) return false;
    }
    return true;
}
