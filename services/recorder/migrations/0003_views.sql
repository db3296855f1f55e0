-- What analysts query: each view reads its storage with FINAL, so a row is there once.

CREATE VIEW decisions AS SELECT * FROM decision_rows FINAL
COMMENT 'A row for each decision; (cell, seq, index) is its id.';

CREATE VIEW requests AS SELECT * EXCEPT (version) FROM request_rows FINAL
COMMENT 'A row for each request that was accepted or has ended; outcome is NULL while it lives.';

CREATE VIEW results AS SELECT * FROM result_rows FINAL
COMMENT 'What was published to producers: one row for each request that has ended.';

CREATE VIEW telemetry AS SELECT * FROM telemetry_rows FINAL
COMMENT 'Raw readings of devices; NULL is what a device does not say.';

CREATE VIEW signals AS SELECT * FROM signal_rows FINAL
COMMENT 'Windows and slopes that signal processors derived.';

CREATE VIEW dead_letters AS SELECT * FROM dead_letter_rows FINAL
COMMENT 'Records that could not be decoded, with where they stand and why.';

CREATE VIEW waits AS
SELECT cell, request_offset, id, model, tenant, tier, outcome, cause, cause_us
FROM (SELECT * FROM request_rows FINAL)
ARRAY JOIN mapKeys(waits) AS cause, mapValues(waits) AS cause_us
COMMENT 'A row for each cause of each ended request''s wait; they add up to its wait_us.';

CREATE VIEW request_steps AS
SELECT
    cell, seq, index, at, request_id, model, kind, slot, attempt, blocks,
    lagInFrame(kind) OVER steps AS kind_before,
    leadInFrame(kind) OVER steps AS kind_after,
    leadInFrame(at) OVER steps AS at_after
FROM decision_rows FINAL
WHERE kind IN ('request-queued.v1', 'request-dispatched.v1', 'attempt-lost.v1', 'request-returned.v1', 'request-ended.v1')
WINDOW steps AS (PARTITION BY cell, request_id ORDER BY seq, index ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
COMMENT 'The steps of each request in order, each beside the one before and the one after.';

CREATE VIEW attempts AS
SELECT
    cell, request_id AS id, model, slot, concat(model, '/', toString(slot)) AS replica, attempt,
    at AS started_at, if(kind_after = '', NULL, at_after) AS ended_at,
    kind_after AS ended_by, blocks, seq
FROM request_steps
WHERE kind = 'request-dispatched.v1'
COMMENT 'A row for each dispatch: which replica had it, from when, until when, with how many KV blocks.';

CREATE VIEW queue_depth AS
SELECT
    cell, model, second,
    sum(waiting_change) OVER running_total AS waiting,
    sum(running_change) OVER running_total AS running
FROM
(
    SELECT
        cell, model, toStartOfSecond(at) AS second,
        sum(multiIf(
            kind IN ('request-queued.v1', 'request-returned.v1'), 1,
            kind_before IN ('request-queued.v1', 'request-returned.v1'), -1, 0)) AS waiting_change,
        sum(multiIf(kind = 'request-dispatched.v1', 1, kind_before = 'request-dispatched.v1', -1, 0)) AS running_change
    FROM request_steps
    GROUP BY cell, model, second
)
WINDOW running_total AS (PARTITION BY cell, model ORDER BY second)
COMMENT 'Requests that wait and run at the end of each second in which that changed.';

CREATE VIEW replica_occupancy AS
SELECT
    cell, model, slot, replica, second,
    sum(running_change) OVER running_total AS running,
    sum(blocks_change) OVER running_total AS blocks_used
FROM
(
    SELECT
        cell, model, slot, replica, toStartOfSecond(assumeNotNull(change.1)) AS second,
        sum(change.2) AS running_change, sum(change.2 * blocks) AS blocks_change
    FROM
    (
        SELECT *, arrayJoin([(toNullable(started_at), toInt64(1)), (ended_at, toInt64(-1))]) AS change
        FROM attempts
    )
    WHERE isNotNull(change.1)
    GROUP BY cell, model, slot, replica, second
)
WINDOW running_total AS (PARTITION BY cell, model, slot, replica ORDER BY second)
COMMENT 'What each replica runs, and its KV blocks reserved, at the end of each second in which that changed.';

CREATE VIEW audit_gaps AS
SELECT cell, before AS seq_before, seq AS seq_after, seq - before - 1 AS missing
FROM
(
    SELECT cell, seq, lagInFrame(seq, 1, seq - 1) OVER in_order AS before
    FROM (SELECT DISTINCT cell, seq FROM ledger FINAL)
    WINDOW in_order AS (PARTITION BY cell ORDER BY seq ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
)
WHERE seq - before > 1
COMMENT 'Entries that are missing between two that are there.';

CREATE VIEW audit_duplicates AS
SELECT cell, seq, count() AS times, groupArray(offset) AS offsets
FROM ledger FINAL
GROUP BY cell, seq
HAVING times > 1
COMMENT 'Entries that are there more than once, at different offsets.';

CREATE VIEW audit_altered AS
SELECT cell, seq, offset, line FROM ledger FINAL WHERE chain_holds = 0
COMMENT 'Entries that do not match their chain digest.';

CREATE VIEW audit_unfinished AS
SELECT cell, request_offset, id, model, tenant, tier, arrived_at,
    dateDiff('millisecond', arrived_at, newest) / 1000 AS age_s
FROM (SELECT * FROM request_rows FINAL) AS r
INNER JOIN (SELECT cell, max(at) AS newest FROM ledger GROUP BY cell) AS l USING (cell)
WHERE isNull(outcome)
COMMENT 'Accepted requests without an outcome so far; age_s is up to the cell''s newest entry.';

CREATE VIEW audit_double_outcomes AS
SELECT cell, request_offset, request_id AS id, count() AS times, groupArray((seq, index, outcome)) AS ends
FROM decision_rows FINAL
WHERE kind = 'request-ended.v1'
GROUP BY cell, request_offset, id
HAVING times > 1
COMMENT 'Requests that ended more than once.';

CREATE VIEW audit_unexplained_waits AS
SELECT cell, request_offset, id, wait_us, arraySum(mapValues(waits)) AS explained_us
FROM (SELECT * FROM request_rows FINAL)
WHERE wait_us != explained_us
COMMENT 'Ended requests whose causes of waiting do not add up to their wait.';

CREATE VIEW audit AS
SELECT 'ledger gaps' AS check, (SELECT count() FROM audit_gaps) AS problems, 'entries missing between two that are there' AS meaning
UNION ALL SELECT 'ledger duplicates', (SELECT count() FROM audit_duplicates), 'entries there more than once'
UNION ALL SELECT 'ledger altered', (SELECT count() FROM audit_altered), 'entries that do not match their chain digest'
UNION ALL SELECT 'double outcomes', (SELECT count() FROM audit_double_outcomes), 'requests that ended more than once'
UNION ALL SELECT 'unfinished', (SELECT count() FROM audit_unfinished WHERE age_s > 3600), 'accepted over an hour before the newest entry, and without an outcome'
UNION ALL SELECT 'unexplained waits', (SELECT count() FROM audit_unexplained_waits), 'causes that do not add up to the wait'
COMMENT 'Each check and how many problems it finds; all should be 0.';
