-- The other topics that are recorded: what producers were told, what devices and signals said, and
-- what could not be decoded.

CREATE TABLE results (
    kafka_partition UInt16 COMMENT 'partition of headway.results',
    kafka_offset UInt64 COMMENT 'offset there',
    cell UInt16 COMMENT 'cell that published it',
    seq UInt64 COMMENT 'ledger entry that it follows from',
    `index` UInt32 COMMENT 'decision in that entry',
    published DateTime64(3, 'UTC') COMMENT 'when the broker got it',
    id String COMMENT 'the request',
    model LowCardinality(String) COMMENT 'model asked for',
    tenant LowCardinality(String) COMMENT 'who is charged for it',
    tier LowCardinality(String) COMMENT 'realtime, critical, normal or batch',
    outcome LowCardinality(String) COMMENT 'completed, rejected, expired, failed or cancelled',
    reason LowCardinality(String) COMMENT 'why, as a code',
    detail String COMMENT 'why, in words',
    text Nullable(String) COMMENT 'the output; null: there is none' CODEC(ZSTD(1)),
    prompt_tokens Nullable(UInt64) COMMENT 'as the worker counted them',
    output_tokens Nullable(UInt64) COMMENT 'tokens generated',
    attempts UInt32 COMMENT 'how often it was run',
    replica Nullable(String) COMMENT 'MODEL/SLOT that ran it last',
    wait_us UInt64 COMMENT 'µs in which no replica had it',
    run_us UInt64 COMMENT 'µs in which a replica had it',
    ttft_us Nullable(UInt64) COMMENT 'µs from its arrival to its first token',
    e2e_us UInt64 COMMENT 'µs from its arrival to its outcome',
    policy_version UInt32 COMMENT 'version of the policy in force',
    policy_digest LowCardinality(String) COMMENT 'digest of that policy',
    INDEX by_id id TYPE bloom_filter(0.01) GRANULARITY 4
) ENGINE = ReplacingMergeTree
ORDER BY (kafka_partition, kafka_offset)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'What producers were told: one result for each request';

CREATE TABLE telemetry (
    kafka_partition UInt16 COMMENT 'partition of headway.telemetry',
    kafka_offset UInt64 COMMENT 'offset there',
    node LowCardinality(String) COMMENT 'machine',
    device LowCardinality(String) COMMENT 'device on it',
    at DateTime64(6, 'UTC') COMMENT 'when it was read',
    simulated Bool COMMENT 'the device is not a real one',
    utilisation Nullable(Float64) COMMENT 'share of time busy, 0 to 1; null: not known',
    memory_used_bytes Nullable(UInt64) COMMENT 'bytes in use; null: not known',
    memory_total_bytes Nullable(UInt64) COMMENT 'bytes there are; null: not known',
    power_w Nullable(Float64) COMMENT 'watts drawn; null: not known',
    temperature_c Nullable(Float64) COMMENT 'degrees Celsius; null: not known'
) ENGINE = ReplacingMergeTree
ORDER BY (kafka_partition, kafka_offset)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Raw device samples';

CREATE TABLE signals (
    kafka_partition UInt16 COMMENT 'partition of headway.signals',
    kafka_offset UInt64 COMMENT 'offset there',
    place UInt32 COMMENT 'place of the model in the signal, from 0',
    kind LowCardinality(String) COMMENT 'kind and version of the signal',
    cell UInt16 COMMENT 'cell it speaks of',
    at DateTime64(6, 'UTC') COMMENT 'end of the second it speaks of',
    ledger_seq Int64 COMMENT 'last ledger entry that it rests on',
    known Bool COMMENT 'false: the processor had not read the ledger to its end',
    model LowCardinality(String) COMMENT 'the model; empty: the signal is not known or has none',
    waiting Nullable(UInt64) COMMENT 'requests that wait; null: not known',
    running Nullable(UInt64) COMMENT 'requests that run; null: not known'
) ENGINE = ReplacingMergeTree
ORDER BY (kafka_partition, kafka_offset, place)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Queue depth as the signal processor told it, once a second: a row for each model';

CREATE TABLE dead_letters (
    kafka_partition UInt16 COMMENT 'partition of headway.dead-letter',
    kafka_offset UInt64 COMMENT 'offset there',
    published DateTime64(3, 'UTC') COMMENT 'when the broker got it',
    source_topic LowCardinality(String) COMMENT 'topic of the record that could not be decoded',
    source_partition Int32 COMMENT 'its partition',
    source_offset Int64 COMMENT 'its offset',
    reason String COMMENT 'what was wrong with it',
    body_bytes UInt64 COMMENT 'size of its value',
    body Nullable(String) COMMENT 'its value, cut at 512 KiB; null: it had none' CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree
ORDER BY (kafka_partition, kafka_offset)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Records that could not be decoded, with their bytes and why';
