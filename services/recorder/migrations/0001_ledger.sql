-- The ledger as recorded, and what is taken out of it: every decision, and a row for each outcome.
-- A batch is one block, so it is stored whole or not at all; `ledger` is written last.

CREATE TABLE ledger (
    kafka_partition UInt16 COMMENT 'partition of headway.ledger; the number of the cell',
    kafka_offset UInt64 COMMENT 'offset of the ledger record',
    line UInt32 COMMENT 'place of the entry in its record, from 0',
    cell UInt16 COMMENT 'the cell that the ledger belongs to',
    seq UInt64 COMMENT 'number of the entry in its ledger: 0, 1, 2, … without a gap',
    epoch UInt64 COMMENT 'of the owner that appended it',
    at DateTime64(6, 'UTC') COMMENT 'when the owner stamped the fact',
    source_topic LowCardinality(String) COMMENT 'topic that the fact was read from; empty: none',
    source_partition Nullable(Int32) COMMENT 'its partition there',
    source_offset Nullable(Int64) COMMENT 'its offset there',
    fact_kind LowCardinality(String) COMMENT 'kind and version of the fact',
    request_ids Array(String) COMMENT 'requests that the fact or a decision speaks of',
    policy_version UInt32 COMMENT 'version of the policy that the decisions were made under',
    policy_digest LowCardinality(String) COMMENT 'digest of that policy',
    decisions UInt32 COMMENT 'how many decisions followed from the fact',
    raw String COMMENT 'the entry byte for byte, with its chain digest: replay reads it' CODEC(ZSTD(1)),
    INDEX by_request request_ids TYPE bloom_filter(0.01) GRANULARITY 4
) ENGINE = ReplacingMergeTree
ORDER BY (kafka_partition, kafka_offset, line)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'The ledger: a row for each entry that counts, in the order of its cell';

CREATE TABLE ledger_void (
    kafka_partition UInt16 COMMENT 'partition of headway.ledger',
    kafka_offset UInt64 COMMENT 'offset of the ledger record',
    line UInt32 COMMENT 'place in its record, from 0',
    why LowCardinality(String) COMMENT 'superseded: by a takeover, which is no fault; altered: it is damaged or does not follow the entry before it',
    detail String COMMENT 'what was wrong, in words',
    raw String COMMENT 'the line byte for byte' CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree
ORDER BY (kafka_partition, kafka_offset, line)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Ledger lines that do not count, kept for audit';

CREATE TABLE decisions (
    kafka_partition UInt16 COMMENT 'partition of headway.ledger',
    kafka_offset UInt64 COMMENT 'offset of the ledger record',
    line UInt32 COMMENT 'place of the entry in its record',
    `index` UInt32 COMMENT 'place of the decision in its entry; its id is (cell, seq, index)',
    cell UInt16 COMMENT 'the cell that decided',
    seq UInt64 COMMENT 'the entry that the decision stands in',
    epoch UInt64 COMMENT 'of the owner that appended it',
    at DateTime64(6, 'UTC') COMMENT 'when the fact was stamped that it follows from',
    kind LowCardinality(String) COMMENT 'kind and version of the decision',
    request_id String COMMENT 'the request it is about; empty: none',
    model LowCardinality(String) COMMENT 'the model it is about; empty: none',
    tenant LowCardinality(String) COMMENT 'tenant of the request; empty: the decision does not say',
    tier LowCardinality(String) COMMENT 'tier of the request; empty: the decision does not say',
    slot Nullable(Int32) COMMENT 'slot of the replica',
    incarnation String COMMENT 'life of the replica; empty: the decision does not say',
    attempt Nullable(UInt32) COMMENT 'which run of the request',
    cause LowCardinality(String) COMMENT 'blocking cause, or why a replica is to drop an attempt; empty: none',
    outcome LowCardinality(String) COMMENT 'of request-ended; empty: another kind',
    reason String COMMENT 'reason code, or why in words; empty: none',
    wait_us Nullable(UInt64) COMMENT 'µs that the request had waited',
    blocks Nullable(UInt64) COMMENT 'KV blocks that are reserved',
    policy_version UInt32 COMMENT 'version of the policy it was made under',
    policy_digest LowCardinality(String) COMMENT 'digest of that policy',
    body String COMMENT 'the whole decision as JSON, as it stands in the ledger' CODEC(ZSTD(1)),
    INDEX by_request request_id TYPE bloom_filter(0.01) GRANULARITY 4
) ENGINE = ReplacingMergeTree
ORDER BY (kafka_partition, kafka_offset, line, `index`)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Every decision: a row each';

CREATE TABLE requests (
    kafka_partition UInt16 COMMENT 'partition of headway.ledger',
    kafka_offset UInt64 COMMENT 'offset of the ledger record',
    line UInt32 COMMENT 'place of the entry in its record',
    `index` UInt32 COMMENT 'place of the decision in its entry',
    cell UInt16 COMMENT 'the cell that decided the outcome',
    seq UInt64 COMMENT 'the entry that the outcome stands in',
    id String COMMENT 'id that its producer gave it',
    model LowCardinality(String) COMMENT 'model asked for',
    tenant LowCardinality(String) COMMENT 'who is charged for it',
    tier LowCardinality(String) COMMENT 'realtime, critical, normal or batch',
    arrived DateTime64(6, 'UTC') COMMENT 'when the broker got it',
    ended DateTime64(6, 'UTC') COMMENT 'when its outcome was decided',
    outcome LowCardinality(String) COMMENT 'completed, rejected, expired, failed or cancelled',
    reason LowCardinality(String) COMMENT 'why, as a code',
    detail String COMMENT 'why, in words, with the numbers compared',
    wait_us UInt64 COMMENT 'µs in which no replica had it',
    waits Map(LowCardinality(String), UInt64) COMMENT 'µs of that wait by cause; they add up to it',
    run_us UInt64 COMMENT 'µs in which a replica had it, lost attempts included',
    ttft_us Nullable(UInt64) COMMENT 'µs from its arrival to its first token; null: there was none',
    e2e_us UInt64 COMMENT 'µs from its arrival to its outcome',
    attempts UInt32 COMMENT 'how often it was run',
    replica Nullable(String) COMMENT 'MODEL/SLOT that ran it last; null: none did',
    slot Nullable(Int32) COMMENT 'slot of that replica',
    prompt_tokens UInt64 COMMENT 'tokens of its prompt',
    output_tokens Nullable(UInt64) COMMENT 'tokens generated; null: no worker reported usage',
    max_output_tokens UInt64 COMMENT 'limit of its output',
    queued_us Nullable(UInt64) COMMENT 'µs in the worker before it joined the batch',
    prefill_us Nullable(UInt64) COMMENT 'µs in the worker from joining to the first token',
    decode_us Nullable(UInt64) COMMENT 'µs in the worker from the first token to the last',
    blocks UInt64 COMMENT 'KV blocks that were reserved for it',
    policy_version UInt32 COMMENT 'version of the policy in force at its outcome',
    policy_digest LowCardinality(String) COMMENT 'digest of that policy',
    request_offset Int64 COMMENT 'offset of its payload in headway.requests, partition = cell',
    output_offset Int64 COMMENT 'offset of its output in headway.worker.events; -1: none',
    body_digest String COMMENT 'digest of the payload',
    output_digest Nullable(String) COMMENT 'digest of the output text',
    metadata Map(String, String) COMMENT 'what its producer attached',
    INDEX by_id id TYPE bloom_filter(0.01) GRANULARITY 4
) ENGINE = ReplacingMergeTree
ORDER BY (kafka_partition, kafka_offset, line, `index`)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Every request that has an outcome: a row each';
