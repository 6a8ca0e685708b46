#include "store/store_inner.h"

enum {
    WRITE_BUFFER_BYTES = 16 << 20,
    WRITE_BUFFERS_MAX = 3,
    BLOCK_CACHE_BYTES = 8 << 20,
    OPEN_FILES_MAX = 256,
    BACKGROUND_JOBS_MAX = 2,
    FILE_BYTES = 16 << 20,
    LEVEL_BASE_BYTES = 64 << 20,
    BYTES_PER_SYNC = 1 << 20,
    INFO_LOG_BYTES = 1 << 20,
    INFO_LOG_FILES = 2,
    MANIFEST_BYTES = 16 << 20,
    INFO_LOG_WARN = 2,
};

/* Options that have no setter. After a failed write RocksDB may not carry on by itself: the process stops. */
static const char WITHOUT_SETTER[] = "max_bgerror_resume_count=0;";

static void table_set(rocksdb_options_t *options, rocksdb_cache_t *cache)
{
    rocksdb_block_based_table_options_t *table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(table, cache);
    /* Index and filter blocks count against the cache, so that memory does not grow with the data. */
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(table, 1);
    rocksdb_block_based_options_set_pin_l0_filter_and_index_blocks_in_cache(table, 1);
    rocksdb_block_based_options_set_block_size(table, 8 << 10);
    rocksdb_block_based_options_set_format_version(table, 5);
    rocksdb_block_based_options_set_filter_policy(table, rocksdb_filterpolicy_create_bloom_full(10));
    rocksdb_options_set_block_based_table_factory(options, table);
    rocksdb_block_based_options_destroy(table);
}

static void quiet_set(rocksdb_options_t *options)
{
    /* An idle node does nothing: no statistics, no periodic dumps. */
    rocksdb_options_set_stats_dump_period_sec(options, 0);
    rocksdb_options_set_stats_persist_period_sec(options, 0);
    rocksdb_options_set_info_log_level(options, INFO_LOG_WARN);
    rocksdb_options_set_max_log_file_size(options, INFO_LOG_BYTES);
    rocksdb_options_set_keep_log_file_num(options, INFO_LOG_FILES);
}

rocksdb_options_t *options_new(const struct store_options *o, rocksdb_cache_t **cache, char **error)
{
    *cache = rocksdb_cache_create_lru(o->block_cache_bytes == 0 ? BLOCK_CACHE_BYTES : o->block_cache_bytes);
    rocksdb_options_t *options = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(options, 1);
    rocksdb_options_set_paranoid_checks(options, 1);
    rocksdb_options_set_allow_mmap_reads(options, 0);
    rocksdb_options_set_allow_mmap_writes(options, 0);
    rocksdb_options_set_write_buffer_size(options, o->write_buffer_bytes == 0 ? WRITE_BUFFER_BYTES : o->write_buffer_bytes);
    rocksdb_options_set_max_write_buffer_number(options, WRITE_BUFFERS_MAX);
    rocksdb_options_set_max_open_files(options, OPEN_FILES_MAX);
    rocksdb_options_set_max_file_opening_threads(options, 1);
    rocksdb_options_set_max_background_jobs(options, BACKGROUND_JOBS_MAX);
    rocksdb_options_set_bytes_per_sync(options, BYTES_PER_SYNC);
    rocksdb_options_set_target_file_size_base(options, FILE_BYTES);
    rocksdb_options_set_max_bytes_for_level_base(options, LEVEL_BASE_BYTES);
    rocksdb_options_set_level_compaction_dynamic_level_bytes(options, 1);
    rocksdb_options_set_max_manifest_file_size(options, MANIFEST_BYTES);
    rocksdb_options_set_skip_stats_update_on_db_open(options, 1);
    rocksdb_options_set_compression(options, rocksdb_lz4_compression);
    quiet_set(options);
    table_set(options, *cache);
    rocksdb_options_t *whole = rocksdb_options_create();
    rocksdb_get_options_from_string(options, WITHOUT_SETTER, whole, error);
    rocksdb_options_destroy(options);
    if (*error == NULL) return whole;
    rocksdb_options_destroy(whole);
    rocksdb_cache_destroy(*cache);
    *cache = NULL;
    return NULL;
}
