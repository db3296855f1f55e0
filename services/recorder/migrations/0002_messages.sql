-- What the recorder reads besides the ledger. Every message goes into messages_in, which keeps
-- nothing; a view for each topic fills that topic's table, whose highest offset is its position.

CREATE TABLE messages_in
(
    topic String,
    partition Int32,
    offset Int64,
    written_ms Int64,
    message String
)
ENGINE = Null
COMMENT 'The recorder inserts here; the views below derive from it.';

CREATE TABLE result_rows
(
    cell Int32 COMMENT 'That decided it.',
    seq Int64 COMMENT 'Of the ledger entry that says so.',
    id String COMMENT 'Of the request.',
    partition Int32 COMMENT 'Of headway.results.',
    offset Int64 COMMENT 'In that partition; a result that was published again has the later one.',
    published_at DateTime64(3, 'UTC') COMMENT 'The broker''s stamp.',
    model LowCardinality(String) COMMENT 'That was asked.',
    tenant LowCardinality(String) COMMENT 'Who is charged.',
    tier LowCardinality(String) COMMENT 'realtime, critical, normal or batch.',
    outcome LowCardinality(String) COMMENT 'completed, rejected, expired, failed or cancelled.',
    reason LowCardinality(String) COMMENT 'Why that outcome.',
    detail String COMMENT 'The same in a sentence.',
    text Nullable(String) CODEC(ZSTD(1)) COMMENT 'The output; NULL when there is none.',
    output_tokens Nullable(Int64) COMMENT 'Generated; NULL when unknown.',
    attempts Int32 COMMENT 'Runs, lost ones included.',
    replica Nullable(String) COMMENT 'That ran it last.',
    wait_us Int64 COMMENT 'All time in which no replica had it.',
    ttft_us Nullable(Int64) COMMENT 'Arrival to first token.',
    e2e_us Int64 COMMENT 'Arrival to outcome.',
    policy_version Int32 COMMENT 'Of the policy that decided.',
    policy_digest LowCardinality(String) COMMENT 'Names that policy''s values.'
)
ENGINE = ReplacingMergeTree(offset)
ORDER BY (cell, seq, id)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Storage of `results`.';

CREATE MATERIALIZED VIEW messages_to_results TO result_rows AS
SELECT
    m.cell AS cell, m.seq AS seq, m.id AS id, partition, offset,
    fromUnixTimestamp64Milli(written_ms, 'UTC') AS published_at,
    m.model AS model, m.tenant AS tenant, m.tier AS tier, m.outcome AS outcome,
    m.reason AS reason, m.detail AS detail, m.text AS text,
    m.usage.output_tokens AS output_tokens, m.attempts AS attempts, m.replica AS replica,
    m.wait_us AS wait_us, m.ttft_us AS ttft_us, m.e2e_us AS e2e_us,
    m.policy_version AS policy_version, m.policy_digest AS policy_digest
FROM
(
    SELECT
        partition, offset, written_ms,
        JSONExtract(message, 'Tuple(cell Int32, seq Int64, id String, model String, tenant String, tier String, outcome String, reason String, detail String, text Nullable(String), usage Tuple(output_tokens Nullable(Int64)), attempts Int32, replica Nullable(String), wait_us Int64, ttft_us Nullable(Int64), e2e_us Int64, policy_version Int32, policy_digest String)') AS m
    FROM messages_in
    WHERE topic = 'headway.results'
);

CREATE TABLE telemetry_rows
(
    partition Int32 COMMENT 'Of headway.telemetry.',
    offset Int64 COMMENT 'In that partition.',
    at DateTime64(6, 'UTC') COMMENT 'When the agent read the device.',
    node LowCardinality(String) COMMENT 'The machine.',
    device LowCardinality(String) COMMENT 'The device on it.',
    simulated Bool COMMENT 'Whether the reading is made up by a simulated device.',
    utilisation Nullable(Float64) COMMENT '0 to 1; NULL when the device does not say.',
    memory_used_bytes Nullable(Int64) COMMENT 'NULL when the device does not say.',
    memory_total_bytes Nullable(Int64) COMMENT 'NULL when the device does not say.',
    power_w Nullable(Float64) COMMENT 'NULL when the device does not say.',
    temperature_c Nullable(Float64) COMMENT 'NULL when the device does not say.'
)
ENGINE = ReplacingMergeTree
ORDER BY (partition, offset)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Storage of `telemetry`.';

CREATE MATERIALIZED VIEW messages_to_telemetry TO telemetry_rows AS
SELECT
    partition, offset, fromUnixTimestamp64Micro(m.at_us, 'UTC') AS at,
    m.node AS node, m.device AS device, m.simulated AS simulated, m.utilisation AS utilisation,
    m.memory_used_bytes AS memory_used_bytes, m.memory_total_bytes AS memory_total_bytes,
    m.power_w AS power_w, m.temperature_c AS temperature_c
FROM
(
    SELECT
        partition, offset,
        JSONExtract(message, 'Tuple(at_us Int64, node String, device String, simulated Bool, utilisation Nullable(Float64), memory_used_bytes Nullable(Int64), memory_total_bytes Nullable(Int64), power_w Nullable(Float64), temperature_c Nullable(Float64))') AS m
    FROM messages_in
    WHERE topic = 'headway.telemetry'
);

CREATE TABLE signal_rows
(
    partition Int32 COMMENT 'Of headway.signals.',
    offset Int64 COMMENT 'In that partition.',
    kind LowCardinality(String) COMMENT 'Kind and version of the signal.',
    cell Nullable(Int32) COMMENT 'That it is about; NULL when about none.',
    at DateTime64(6, 'UTC') COMMENT 'The end of its window.',
    known Nullable(Bool) COMMENT 'False when the processor could not tell: that is never zero.',
    json String CODEC(ZSTD(1)) COMMENT 'The signal, whole.'
)
ENGINE = ReplacingMergeTree
ORDER BY (partition, offset)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Storage of `signals`.';

CREATE MATERIALIZED VIEW messages_to_signals TO signal_rows AS
SELECT
    partition, offset, m.kind AS kind, m.cell AS cell,
    fromUnixTimestamp64Micro(m.at_us, 'UTC') AS at, m.known AS known, json
FROM
(
    SELECT
        partition, offset, message AS json,
        JSONExtract(message, 'Tuple(kind String, cell Nullable(Int32), at_us Int64, known Nullable(Bool))') AS m
    FROM messages_in
    WHERE topic = 'headway.signals'
);

CREATE TABLE dead_letter_rows
(
    partition Int32 COMMENT 'Of headway.dead-letter.',
    offset Int64 COMMENT 'In that partition.',
    written_at DateTime64(3, 'UTC') COMMENT 'The broker''s stamp.',
    source_topic LowCardinality(String) COMMENT 'Where the record stands that could not be decoded.',
    source_partition Int32 COMMENT 'Its partition.',
    source_offset Int64 COMMENT 'Its offset.',
    reason String COMMENT 'What is wrong with it.',
    body_bytes Int64 COMMENT 'Its whole size.',
    body_base64 Nullable(String) CODEC(ZSTD(1)) COMMENT 'Its bytes, perhaps cut; NULL for a null value.'
)
ENGINE = ReplacingMergeTree
ORDER BY (partition, offset)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Storage of `dead_letters`.';

CREATE MATERIALIZED VIEW messages_to_dead_letters TO dead_letter_rows AS
SELECT
    partition, offset, fromUnixTimestamp64Milli(written_ms, 'UTC') AS written_at,
    m.topic AS source_topic, m.partition AS source_partition, m.offset AS source_offset,
    m.reason AS reason, m.body_bytes AS body_bytes, m.body_base64 AS body_base64
FROM
(
    SELECT
        partition, offset, written_ms,
        JSONExtract(message, 'Tuple(topic String, partition Int32, offset Int64, reason String, body_bytes Int64, body_base64 Nullable(String))') AS m
    FROM messages_in
    WHERE topic = 'headway.dead-letter'
);
