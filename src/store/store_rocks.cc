#include "store/store_rocks.h"

#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/iterator.h>
#include <rocksdb/options.h>
#include <rocksdb/sst_file_reader.h>

#include <cstring>
#include <memory>

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

struct rocks_look {
    rocksdb::DB *db;
};

struct rocks_look *rocks_look_open(const char *dir, char **error)
{
    rocksdb::DB *db = nullptr;
    *error = text_of(rocksdb::DB::OpenForReadOnly(quiet_options(), dir, &db));
    return *error == nullptr ? new rocks_look{db} : nullptr;
}

void rocks_look_close(struct rocks_look *l)
{
    delete l->db;
    delete l;
}

char *rocks_look_scan(struct rocks_look *l, const char *from, size_t from_len, const char *to, size_t to_len, rocks_row *row,
                      void *ctx)
{
    rocksdb::ReadOptions o = careful();
    rocksdb::Slice bound(to, to_len);
    if (to_len > 0) o.iterate_upper_bound = &bound;
    std::unique_ptr<rocksdb::Iterator> it(l->db->NewIterator(o));
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
