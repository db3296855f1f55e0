-- What people ask most, over the tables of the ledger. Each view reads the tables as they are.

CREATE VIEW waits (
    cell UInt16 COMMENT 'cell', seq UInt64 COMMENT 'entry of the outcome',
    id String COMMENT 'request', model String COMMENT 'model', tenant String COMMENT 'tenant',
    tier String COMMENT 'tier', ended DateTime64(6, 'UTC') COMMENT 'when its outcome was decided',
    outcome String COMMENT 'outcome', cause String COMMENT 'why it waited',
    wait_us UInt64 COMMENT 'µs for that cause'
) AS
SELECT cell, seq, id, model, tenant, tier, ended, outcome, cause, wait_us
FROM requests
ARRAY JOIN mapKeys(waits) AS cause, mapValues(waits) AS wait_us
COMMENT 'The waits of each request: a row for each cause that held it back';

CREATE VIEW attempts (
    cell UInt16 COMMENT 'cell', model String COMMENT 'model', slot Int32 COMMENT 'slot of the replica',
    id String COMMENT 'request', attempt UInt32 COMMENT 'which run of it',
    blocks UInt64 COMMENT 'KV blocks reserved',
    began DateTime64(6, 'UTC') COMMENT 'when it was dispatched',
    ended Nullable(DateTime64(6, 'UTC')) COMMENT 'when the replica had it no more; null: it still has',
    ended_by String COMMENT 'kind of the decision that ended it; empty: it still runs'
) AS
SELECT cell, model, assumeNotNull(slot) AS slot, request_id AS id,
    assumeNotNull(attempt) AS attempt, assumeNotNull(blocks) AS blocks, at AS began,
    if(next_kind = '', NULL, next_at) AS ended, next_kind AS ended_by
FROM (
    SELECT cell, model, slot, request_id, attempt, blocks, at, kind,
        leadInFrame(toString(kind)) OVER moves AS next_kind, leadInFrame(at) OVER moves AS next_at
    FROM decisions
    WHERE kind IN ('request-queued.v1', 'request-dispatched.v1', 'attempt-lost.v1',
        'request-returned.v1', 'request-ended.v1')
    WINDOW moves AS (
        PARTITION BY cell, request_id ORDER BY seq, index
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    )
)
WHERE kind = 'request-dispatched.v1'
COMMENT 'Each run of a request on a replica';

CREATE VIEW replica_occupancy (
    second DateTime('UTC') COMMENT 'second', cell UInt16 COMMENT 'cell',
    model String COMMENT 'model', slot Int32 COMMENT 'slot of the replica',
    running Int64 COMMENT 'requests that it ran at the end of the second',
    blocks Int64 COMMENT 'KV blocks that were reserved on it then'
) AS
SELECT second, cell, model, slot,
    sum(running_step) OVER upto AS running, sum(blocks_step) OVER upto AS blocks
FROM (
    SELECT second, cell, model, slot, sum(step) AS running_step,
        sum(step * toInt64(reserved)) AS blocks_step
    FROM (
        SELECT toStartOfSecond(began) AS second, cell, model, slot, 1 AS step, blocks AS reserved
        FROM attempts
        UNION ALL
        SELECT toStartOfSecond(assumeNotNull(ended)), cell, model, slot, -1, blocks
        FROM attempts WHERE ended IS NOT NULL
    )
    GROUP BY second, cell, model, slot
)
WINDOW upto AS (PARTITION BY cell, model, slot ORDER BY second
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
COMMENT 'Running requests and reserved KV of each replica: a row for each second that changed it, which holds until the next';

CREATE VIEW queue_depth (
    second DateTime('UTC') COMMENT 'second', cell UInt16 COMMENT 'cell',
    model String COMMENT 'model',
    waiting Int64 COMMENT 'requests that waited at the end of the second',
    running Int64 COMMENT 'requests that ran then'
) AS
SELECT second, cell, model,
    sum(waiting_step) OVER upto AS waiting, sum(running_step) OVER upto AS running
FROM (
    SELECT toStartOfSecond(at) AS second, cell, model,
        sum(toInt64(waits) - toInt64(waited)) AS waiting_step,
        sum(toInt64(runs) - toInt64(ran)) AS running_step
    FROM (
        SELECT cell, model, at,
            kind IN ('request-queued.v1', 'request-returned.v1') AS waits,
            kind = 'request-dispatched.v1' AS runs,
            lagInFrame(waits) OVER moves AS waited, lagInFrame(runs) OVER moves AS ran
        FROM decisions
        WHERE kind IN ('request-queued.v1', 'request-dispatched.v1', 'attempt-lost.v1',
            'request-returned.v1', 'request-ended.v1')
        WINDOW moves AS (
            PARTITION BY cell, request_id ORDER BY seq, index
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        )
    )
    GROUP BY second, cell, model
)
WINDOW upto AS (PARTITION BY cell, model ORDER BY second
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
COMMENT 'Waiting and running requests of each model: a row for each second that changed them, which holds until the next';

CREATE VIEW audit_gaps (
    cell UInt16 COMMENT 'cell', first_missing Int64 COMMENT 'first seq that is not there',
    last_missing Int64 COMMENT 'last seq that is not there',
    missing Int64 COMMENT 'how many'
) AS
SELECT cell, before + 1 AS first_missing, seq - 1 AS last_missing, seq - before - 1 AS missing
FROM (
    SELECT kafka_partition, cell, toInt64(seq) AS seq,
        lagInFrame(toInt64(seq), 1, toInt64(-1)) OVER (
            PARTITION BY kafka_partition ORDER BY kafka_offset, line
            ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
        ) AS before
    FROM ledger
)
WHERE seq > before + 1
COMMENT 'Entries that are missing in the ledger of a cell';

CREATE VIEW audit_duplicates (
    source String COMMENT 'table', cell UInt64 COMMENT 'cell, or partition of the topic',
    seq UInt64 COMMENT 'entry, or offset in the topic', `index` UInt64 COMMENT 'decision in it',
    copies UInt64 COMMENT 'how often it is there'
) AS
SELECT * FROM (
    SELECT 'ledger' AS source, toUInt64(cell) AS cell, seq, toUInt64(0) AS index, count() AS copies
    FROM ledger GROUP BY cell, seq HAVING copies > 1
    UNION ALL
    SELECT 'decisions', toUInt64(cell), seq, toUInt64(index), count() AS copies
    FROM decisions GROUP BY cell, seq, index HAVING copies > 1
    UNION ALL
    SELECT 'requests', toUInt64(cell), seq, toUInt64(index), count() AS copies
    FROM requests GROUP BY cell, seq, index HAVING copies > 1
    UNION ALL
    SELECT 'results', toUInt64(cell), seq, toUInt64(index), count() AS copies
    FROM results GROUP BY cell, seq, index HAVING copies > 1
    UNION ALL
    SELECT 'telemetry', toUInt64(kafka_partition), kafka_offset, toUInt64(0), count() AS copies
    FROM telemetry GROUP BY kafka_partition, kafka_offset HAVING copies > 1
    UNION ALL
    SELECT 'signals', toUInt64(kafka_partition), kafka_offset, toUInt64(place), count() AS copies
    FROM signals GROUP BY kafka_partition, kafka_offset, place HAVING copies > 1
    UNION ALL
    SELECT 'dead_letters', toUInt64(kafka_partition), kafka_offset, toUInt64(0), count() AS copies
    FROM dead_letters GROUP BY kafka_partition, kafka_offset HAVING copies > 1
)
COMMENT 'Rows that are there more than once';

CREATE VIEW audit_unfinished (
    cell UInt16 COMMENT 'cell', id String COMMENT 'request', model String COMMENT 'model',
    accepted DateTime64(6, 'UTC') COMMENT 'when it was accepted'
) AS
SELECT cell, request_id AS id, any(model) AS model, max(at) AS accepted
FROM decisions
WHERE kind IN ('request-queued.v1', 'request-ended.v1')
GROUP BY cell, request_id
HAVING argMax(kind, (seq, index)) = 'request-queued.v1'
COMMENT 'Accepted requests that have no outcome yet; once traffic is over there must be none';

CREATE VIEW audit_double_outcomes (
    cell UInt16 COMMENT 'cell', id String COMMENT 'request',
    request_offset Int64 COMMENT 'offset of its payload', outcomes UInt64 COMMENT 'how many'
) AS
SELECT cell, id, request_offset, count() AS outcomes
FROM requests GROUP BY cell, id, request_offset HAVING outcomes > 1
COMMENT 'Requests with more than one outcome';

CREATE VIEW audit_results (
    cell UInt16 COMMENT 'cell', seq UInt64 COMMENT 'entry of the outcome',
    `index` UInt32 COMMENT 'decision in it',
    outcomes UInt64 COMMENT 'in the ledger', results UInt64 COMMENT 'on headway.results'
) AS
SELECT cell, seq, index, sum(outcome) AS outcomes, sum(result) AS results
FROM (
    SELECT cell, seq, index, 1 AS outcome, 0 AS result FROM requests
    UNION ALL
    SELECT cell, seq, index, 0, 1 FROM results
)
GROUP BY cell, seq, index HAVING outcomes != results
COMMENT 'Outcomes without exactly one result, and results without an outcome';

CREATE VIEW audit_waits (
    cell UInt16 COMMENT 'cell', seq UInt64 COMMENT 'entry of the outcome', id String COMMENT 'request',
    wait_us UInt64 COMMENT 'µs that it waited', causes_us UInt64 COMMENT 'µs that have a cause',
    e2e_us UInt64 COMMENT 'µs from arrival to outcome', run_us UInt64 COMMENT 'µs that it ran'
) AS
SELECT cell, seq, id, wait_us, arraySum(mapValues(waits)) AS causes_us, e2e_us, run_us
FROM requests WHERE causes_us != wait_us OR wait_us + run_us != e2e_us
COMMENT 'Requests whose causes do not add up to their wait, or wait and run not to the whole';

CREATE VIEW audit (
    check String COMMENT 'what is checked', found UInt64 COMMENT 'how many: 0 is right',
    see String COMMENT 'the view or table that names them'
) AS
SELECT * FROM (
    SELECT 'entries missing in a ledger' AS check, toUInt64(sum(missing)) AS found, 'audit_gaps' AS see FROM audit_gaps
    UNION ALL SELECT 'rows stored more than once', count(), 'audit_duplicates' FROM audit_duplicates
    UNION ALL SELECT 'accepted requests without outcome', count(), 'audit_unfinished' FROM audit_unfinished
    UNION ALL SELECT 'requests with several outcomes', count(), 'audit_double_outcomes' FROM audit_double_outcomes
    UNION ALL SELECT 'outcomes and results that do not match', count(), 'audit_results' FROM audit_results
    UNION ALL SELECT 'waits that do not add up', count(), 'audit_waits' FROM audit_waits
    UNION ALL SELECT 'altered ledger lines', count(), 'ledger_void' FROM ledger_void WHERE why = 'altered'
)
COMMENT 'Every check with what it found: all are 0 when traffic is over and nothing is wrong';
