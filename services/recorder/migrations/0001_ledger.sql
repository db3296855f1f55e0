-- The ledger as it was recorded, and what is derived from it in the same pass.
--
-- A batch goes into ledger_in first, which keeps nothing: the views on it fill the derived tables.
-- Only then does it go into `ledger`, whose highest offset is the place from which a restart reads
-- on. So a crash between the two is made good by reading the same records again; rows of the same
-- key replace each other.

CREATE TABLE ledger
(
    cell Int32 COMMENT 'Whose ledger: the partition of headway.ledger.',
    offset Int64 COMMENT 'Of the Kafka record that holds the entry.',
    line Int32 COMMENT 'Place of the entry in its record, from 0.',
    seq Int64 COMMENT '0, 1, 2, … in each cell without a gap.',
    epoch Int64 COMMENT 'Of the owner that appended it.',
    at DateTime64(6, 'UTC') COMMENT 'When the owner stamped the fact.',
    fact_kind LowCardinality(String) COMMENT 'Kind and version of the fact.',
    source_topic LowCardinality(String) COMMENT 'Where the fact was read; empty for the owner''s own.',
    source_partition Int32 COMMENT 'Its partition, or -1.',
    source_offset Int64 COMMENT 'Its offset, or -1.',
    policy_version Int32 COMMENT 'Of the policy that decided.',
    policy_digest LowCardinality(String) COMMENT 'Names that policy''s values.',
    chain_holds UInt8 COMMENT '1 when the chain digest follows from the line and the one before.',
    appended_at DateTime64(3, 'UTC') COMMENT 'The broker''s stamp on the record.',
    recorded_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'When it came into this table.',
    raw String CODEC(ZSTD(1)) COMMENT 'The ledger line, byte for byte.',
    INDEX seq_range seq TYPE minmax GRANULARITY 1
)
ENGINE = ReplacingMergeTree
ORDER BY (cell, offset, line)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Every entry that counts, a row each. Read with FINAL.';

CREATE TABLE void_entries
(
    cell Int32 COMMENT 'Whose ledger.',
    offset Int64 COMMENT 'Of the Kafka record.',
    line Int32 COMMENT 'Place in the record.',
    seq Int64 COMMENT 'That the entry claims.',
    epoch Int64 COMMENT 'Of the superseded owner, or of the takeover that lost.',
    recorded_at DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'When it came into this table.',
    raw String CODEC(ZSTD(1)) COMMENT 'The ledger line.'
)
ENGINE = ReplacingMergeTree
ORDER BY (cell, offset, line)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Entries that do not count: of an epoch that a takeover ended. For audit only.';

CREATE TABLE ledger_in
(
    cell Int32,
    seq Int64,
    epoch Int64,
    offset Int64,
    at_us Int64,
    policy_version Int32,
    policy_digest String,
    raw String
)
ENGINE = Null
COMMENT 'The recorder inserts here; the views below derive from it.';

CREATE TABLE decision_rows
(
    cell Int32 COMMENT 'Whose decision.',
    seq Int64 COMMENT 'Of the entry it stands in.',
    `index` Int32 COMMENT 'Its place in the entry; (cell, seq, index) is its id.',
    at DateTime64(6, 'UTC') COMMENT 'When: the stamp of the fact it follows from.',
    kind LowCardinality(String) COMMENT 'Kind and version.',
    request_id String COMMENT 'The request it is about; empty when about none.',
    model LowCardinality(String) COMMENT 'The model; empty when about none.',
    tenant LowCardinality(String) COMMENT 'Who is charged; empty when the decision does not say.',
    tier LowCardinality(String) COMMENT 'Empty when the decision does not say.',
    slot Nullable(Int32) COMMENT 'Replica slot.',
    attempt Nullable(Int32) COMMENT 'Which run of the request.',
    cause LowCardinality(String) COMMENT 'Why: of a block, a loss, a leave, an outcome, an ignored.',
    outcome LowCardinality(String) COMMENT 'Of request-ended; empty otherwise.',
    wait_us Nullable(Int64) COMMENT 'Of a dispatch and of an end: time in which no replica had it.',
    blocks Nullable(Int64) COMMENT 'KV blocks: reserved by a dispatch, of the pool when admitted.',
    request_offset Nullable(Int64) COMMENT 'Where in headway.requests the payload lies.',
    epoch Int64 COMMENT 'Of the owner.',
    policy_version Int32 COMMENT 'Of the policy that decided.',
    policy_digest LowCardinality(String) COMMENT 'Names that policy''s values.',
    json String CODEC(ZSTD(1)) COMMENT 'The decision, whole.',
    INDEX by_request request_id TYPE bloom_filter GRANULARITY 4
)
ENGINE = ReplacingMergeTree
ORDER BY (cell, seq, index)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Storage of `decisions`.';

CREATE MATERIALIZED VIEW ledger_to_decisions TO decision_rows AS
SELECT
    cell,
    seq,
    index,
    fromUnixTimestamp64Micro(at_us, 'UTC') AS at,
    d.kind AS kind,
    d.id AS request_id,
    d.model AS model,
    d.tenant AS tenant,
    d.tier AS tier,
    d.slot AS slot,
    coalesce(d.attempt, d.attempts) AS attempt,
    multiIf(d.cause != '', d.cause, d.reason != '', d.reason, d.why) AS cause,
    d.outcome AS outcome,
    d.wait_us AS wait_us,
    coalesce(d.blocks, d.kv_blocks) AS blocks,
    coalesce(d.request_offset, if(d.kind = 'request-dispatched.v1', d.offset, NULL)) AS request_offset,
    epoch,
    policy_version,
    policy_digest,
    json
FROM
(
    SELECT
        cell, seq, epoch, at_us, policy_version, policy_digest,
        tupleElement(item, 1) AS json,
        toInt32(tupleElement(item, 2)) - 1 AS index,
        JSONExtract(json, 'Tuple(kind String, id String, model String, tenant String, tier String, slot Nullable(Int32), attempt Nullable(Int32), attempts Nullable(Int32), cause String, reason String, why String, outcome String, wait_us Nullable(Int64), blocks Nullable(Int64), kv_blocks Nullable(Int64), request_offset Nullable(Int64), offset Nullable(Int64))') AS d
    FROM
    (
        SELECT cell, seq, epoch, at_us, policy_version, policy_digest, item
        FROM
        (
            SELECT
                cell, seq, epoch, at_us, policy_version, policy_digest,
                JSONExtractArrayRaw(raw, 'decisions') AS decisions,
                arrayZip(decisions, arrayEnumerate(decisions)) AS items
            FROM ledger_in
        )
        ARRAY JOIN items AS item
    )
);

CREATE TABLE request_rows
(
    cell Int32 COMMENT 'Where it is decided.',
    request_offset Int64 COMMENT 'Where in headway.requests, partition `cell`, the payload lies.',
    id String COMMENT 'The producer''s name for it.',
    model LowCardinality(String) COMMENT 'What is asked to answer.',
    tenant LowCardinality(String) COMMENT 'Who is charged.',
    tier LowCardinality(String) COMMENT 'realtime, critical, normal or batch.',
    arrived_at DateTime64(6, 'UTC') COMMENT 'The broker''s stamp; waits count from it.',
    ended_at Nullable(DateTime64(6, 'UTC')) COMMENT 'When its outcome was decided; NULL before.',
    outcome LowCardinality(Nullable(String)) COMMENT 'completed, rejected, expired, failed, cancelled; NULL before.',
    reason LowCardinality(Nullable(String)) COMMENT 'Why that outcome.',
    detail Nullable(String) COMMENT 'The same in a sentence with the numbers compared.',
    attempts Nullable(Int32) COMMENT 'Runs, lost ones included.',
    slot Nullable(Int32) COMMENT 'Of the replica that ran it last.',
    replica Nullable(String) COMMENT 'That replica''s name.',
    wait_us Nullable(Int64) COMMENT 'All time in which no replica had it.',
    waits Map(LowCardinality(String), Int64) COMMENT 'That time by cause; adds up to wait_us.',
    run_us Nullable(Int64) COMMENT 'All time in which a replica had it.',
    ttft_us Nullable(Int64) COMMENT 'Arrival to first token; NULL when there was none.',
    e2e_us Nullable(Int64) COMMENT 'Arrival to outcome: wait_us + run_us.',
    prompt_tokens Int64 COMMENT 'Counted at the edge.',
    max_output_tokens Int64 COMMENT 'Its limit.',
    output_tokens Nullable(Int64) COMMENT 'Generated; NULL when it never ran to an end.',
    queued_us Nullable(Int64) COMMENT 'In the worker, before it joined the batch.',
    prefill_us Nullable(Int64) COMMENT 'From joining to the first token.',
    decode_us Nullable(Int64) COMMENT 'From the first token to the last.',
    metadata Map(String, String) COMMENT 'The producer''s own labels.',
    policy_version Int32 COMMENT 'Under which the last decision on it was made.',
    policy_digest LowCardinality(String) COMMENT 'Names that policy''s values.',
    seq Int64 COMMENT 'Of the entry with that decision.',
    version UInt64 COMMENT 'seq and index in one number: of two rows the higher counts.',
    INDEX by_id id TYPE bloom_filter GRANULARITY 4
)
ENGINE = ReplacingMergeTree(version)
ORDER BY (cell, request_offset, id)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Storage of `requests`.';

CREATE MATERIALIZED VIEW ledger_to_requests TO request_rows AS
SELECT
    cell,
    if(ended, d.request_offset, fact_offset) AS request_offset,
    d.id AS id,
    d.model AS model,
    d.tenant AS tenant,
    d.tier AS tier,
    fromUnixTimestamp64Micro(if(ended, d.arrived_us, fact_arrived_us), 'UTC') AS arrived_at,
    if(ended, fromUnixTimestamp64Micro(at_us, 'UTC'), NULL) AS ended_at,
    if(ended, d.outcome, NULL) AS outcome,
    if(ended, d.reason, NULL) AS reason,
    if(ended, d.detail, NULL) AS detail,
    d.attempts AS attempts,
    d.slot AS slot,
    if(isNull(d.slot), NULL, concat(d.model, '/', toString(d.slot))) AS replica,
    d.wait_us AS wait_us,
    mapFromArrays(arrayMap(w -> w.1, d.waits), arrayMap(w -> w.2, d.waits)) AS waits,
    d.run_us AS run_us,
    d.ttft_us AS ttft_us,
    d.e2e_us AS e2e_us,
    d.prompt_tokens AS prompt_tokens,
    d.max_output_tokens AS max_output_tokens,
    d.usage.output_tokens AS output_tokens,
    d.usage.queued_us AS queued_us,
    d.usage.prefill_us AS prefill_us,
    d.usage.decode_us AS decode_us,
    mapFromArrays(arrayMap(m -> m.1, d.metadata), arrayMap(m -> m.2, d.metadata)) AS metadata,
    policy_version,
    policy_digest,
    seq,
    toUInt64(seq) * 65536 + index AS version
FROM
(
    SELECT
        cell, seq, at_us, policy_version, policy_digest, fact_offset, fact_arrived_us,
        tupleElement(item, 1) AS json,
        tupleElement(item, 2) - 1 AS index,
        startsWith(json, '{"kind":"request-ended.v1"') AS ended,
        JSONExtract(json, 'Tuple(id String, model String, tenant String, tier String, request_offset Int64, arrived_us Int64, outcome String, reason String, detail String, attempts Nullable(Int32), slot Nullable(Int32), wait_us Nullable(Int64), waits Array(Tuple(String, Int64)), run_us Nullable(Int64), ttft_us Nullable(Int64), e2e_us Nullable(Int64), prompt_tokens Int64, max_output_tokens Int64, usage Tuple(output_tokens Nullable(Int64), queued_us Nullable(Int64), prefill_us Nullable(Int64), decode_us Nullable(Int64)), metadata Array(Tuple(String, String)))') AS d
    FROM
    (
        SELECT cell, seq, at_us, policy_version, policy_digest, fact_offset, fact_arrived_us, item
        FROM
        (
            SELECT
                cell, seq, at_us, policy_version, policy_digest,
                JSONExtractInt(raw, 'fact', 'offset') AS fact_offset,
                JSONExtractInt(raw, 'fact', 'arrived_us') AS fact_arrived_us,
                JSONExtractArrayRaw(raw, 'decisions') AS decisions,
                arrayFilter(
                    i -> startsWith(i.1, '{"kind":"request-ended.v1"') OR startsWith(i.1, '{"kind":"request-queued.v1"'),
                    arrayZip(decisions, arrayEnumerate(decisions))) AS items
            FROM ledger_in
        )
        ARRAY JOIN items AS item
    )
);
