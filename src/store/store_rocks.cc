#include "store/store_rocks.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>
#include <rocksdb/version.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace
{

/* RocksDB would write a LOG into the directory otherwise. */
class Silent : public rocksdb::Logger
{
  public:
    using rocksdb::Logger::Logv;
    void Logv(const char *, va_list) override {}
};

rocksdb::Options quiet_options()
{
    rocksdb::Options o;
    o.info_log = std::make_shared<Silent>();
    o.paranoid_checks = true;
    o.max_open_files = 256;
    o.allow_mmap_reads = false;
    return o;
}

rocksdb::ReadOptions careful()
{
    rocksdb::ReadOptions o;
    o.verify_checksums = true;
    o.fill_cache = false;
    return o;
}

char *text_of(const rocksdb::Status &s)
{
    return s.ok() ? nullptr : strdup(s.ToString().c_str());
}

} // namespace

#if ROCKSDB_MAJOR < 8
/* Older ones have no way to flush several families from C. Its objects are a pointer each, the first member, in all versions. */
struct rocksdb_t {
    rocksdb::DB *rep;
};
struct rocksdb_column_family_handle_t {
    rocksdb::ColumnFamilyHandle *rep;
};

char *rocks_flush(rocksdb_t *db, rocksdb_column_family_handle_t **families, int count)
{
    std::vector<rocksdb::ColumnFamilyHandle *> all;
    for (int i = 0; i < count; i++) all.push_back(families[i]->rep);
    return text_of(db->rep->Flush(rocksdb::FlushOptions(), all));
}
#else
char *rocks_flush(rocksdb_t *db, rocksdb_column_family_handle_t **families, int count)
{
    char *text = nullptr;
    rocksdb_flushoptions_t *o = rocksdb_flushoptions_create(); /* waits */
    rocksdb_flush_cfs(db, o, families, count, &text);
    rocksdb_flushoptions_destroy(o);
    return text;
}
#endif

struct rocks_look {
    rocksdb::DB *db;
    std::vector<rocksdb::ColumnFamilyHandle *> families;
};

struct rocks_look *rocks_look_open(const char *dir, char **error)
{
    rocksdb::DB *db = nullptr;
    std::vector<std::string> names;
    std::vector<rocksdb::ColumnFamilyDescriptor> wanted;
    std::vector<rocksdb::ColumnFamilyHandle *> families;
    rocksdb::Options o = quiet_options();
    *error = text_of(rocksdb::DB::ListColumnFamilies(o, dir, &names));
    if (*error != nullptr) return nullptr;
    for (const std::string &name : names) wanted.emplace_back(name, o);
    *error = text_of(rocksdb::DB::OpenForReadOnly(o, dir, wanted, &families, &db));
    return *error == nullptr ? new rocks_look{db, families} : nullptr;
}

void rocks_look_close(struct rocks_look *l)
{
    for (rocksdb::ColumnFamilyHandle *f : l->families) l->db->DestroyColumnFamilyHandle(f);
    delete l->db;
    delete l;
}

char *rocks_look_scan(struct rocks_look *l, const char *family, const char *from, size_t from_len, const char *to,
                      size_t to_len, rocks_row *row, void *ctx)
{
    rocksdb::ColumnFamilyHandle *in = nullptr;
    for (rocksdb::ColumnFamilyHandle *f : l->families)
        if (f->GetName() == family) in = f;
    if (in == nullptr) return nullptr;
    rocksdb::ReadOptions o = careful();
    rocksdb::Slice bound(to, to_len);
    if (to_len > 0) o.iterate_upper_bound = &bound;
    std::unique_ptr<rocksdb::Iterator> it(l->db->NewIterator(o, in));
    for (it->Seek(rocksdb::Slice(from, from_len)); it->Valid(); it->Next()) {
        rocksdb::Slice key = it->key(), value = it->value();
        if (!row(ctx, key.data(), key.size(), value.data(), value.size())) break;
    }
    return text_of(it->status());
}

char *rocks_file_verify(const char *path)
{
    rocksdb::SstFileReader reader(quiet_options());
    rocksdb::Status s = reader.Open(path);
    return text_of(s.ok() ? reader.VerifyChecksum(careful()) : s);
}
