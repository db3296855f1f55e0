-- Offline jobs, from the decisions about them: each carries the job's report as it stood then.

CREATE VIEW jobs
(
    cell Int32 COMMENT 'Where it is decided.',
    job String COMMENT 'The submitter''s name for it.',
    model LowCardinality(String) COMMENT 'What answers its items.',
    tenant String COMMENT 'Who is charged.',
    label String COMMENT 'What people know it by, a file''s name.',
    state String COMMENT 'receiving, running, paused, cancelling, completed, cancelled or rejected.',
    submitted_at DateTime64(6, 'UTC') COMMENT 'When its header was read.',
    ended_at Nullable(DateTime64(6, 'UTC')) COMMENT 'When it ended; NULL before.',
    items Int64 COMMENT 'How many it has.',
    arrived Int64 COMMENT 'Items that are in the cell.',
    released Int64 COMMENT 'Items that became requests.',
    completed Int64 COMMENT 'Released items that completed.',
    rejected Int64 COMMENT 'Released items that were rejected.',
    expired Int64 COMMENT 'Released items that expired.',
    failed Int64 COMMENT 'Released items that failed.',
    cancelled Int64 COMMENT 'Released items that were cancelled.',
    not_run Int64 COMMENT 'Items of an ended job that were never released.',
    held_us Map(String, Int64) COMMENT 'For how long nothing more could be released, by cause. Unit: µs.',
    detail String COMMENT 'Why it was rejected; else empty.'
)
AS SELECT
    cell, job, model, r.tenant AS tenant, r.label AS label, r.state AS state,
    fromUnixTimestamp64Micro(r.submitted_us, 'UTC') AS submitted_at,
    if(isNull(r.ended_us), NULL, fromUnixTimestamp64Micro(assumeNotNull(r.ended_us), 'UTC')) AS ended_at,
    r.items AS items, r.arrived AS arrived, r.released AS released, r.completed AS completed,
    r.rejected AS rejected, r.expired AS expired, r.failed AS failed, r.cancelled AS cancelled,
    r.not_run AS not_run, CAST(r.held, 'Map(String, Int64)') AS held_us, r.detail AS detail
FROM
(
    SELECT cell, job, model,
        JSONExtract(report, 'Tuple(tenant String, label String, state String, submitted_us Int64, ended_us Nullable(Int64), items Int64, arrived Int64, released Int64, completed Int64, rejected Int64, expired Int64, failed Int64, cancelled Int64, not_run Int64, held Array(Tuple(String, Int64)), detail String)') AS r
    FROM
    (
        SELECT cell, JSONExtractString(json, 'job') AS job, any(model) AS model,
            argMax(JSONExtractRaw(json, 'report'), (seq, index)) AS report
        FROM decision_rows FINAL
        WHERE kind IN ('job-accepted.v1', 'job-rejected.v1', 'job-items-taken.v1', 'items-released.v1', 'job-steered.v1', 'job-progressed.v1', 'job-finished.v1')
        GROUP BY cell, job
    )
)
COMMENT 'A row for each offline job, as far as its last report; a job''s items are rows of requests with an id that begins with batch/JOB/.';
