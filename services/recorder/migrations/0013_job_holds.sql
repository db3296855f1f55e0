-- A job that waits for its tenant's quota says so; jobs knows from its report.

CREATE OR REPLACE VIEW jobs AS
SELECT
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
        WHERE kind IN ('job-accepted.v1', 'job-rejected.v1', 'job-items-taken.v1', 'items-released.v1', 'job-held.v1', 'job-freed.v1', 'job-steered.v1', 'job-progressed.v1', 'job-finished.v1')
        GROUP BY cell, job
    )
)
COMMENT 'A row for each offline job, as far as its last report; a job''s items are rows of requests with an id that begins with batch/JOB/.';

ALTER TABLE jobs
    COMMENT COLUMN `cell` 'Where it is decided.',
    COMMENT COLUMN `job` 'The submitter''s name for it.',
    COMMENT COLUMN `model` 'What answers its items.',
    COMMENT COLUMN `tenant` 'Who is charged.',
    COMMENT COLUMN `label` 'What people know it by, a file''s name.',
    COMMENT COLUMN `state` 'receiving, running, paused, cancelling, completed, cancelled or rejected.',
    COMMENT COLUMN `submitted_at` 'When its header was read.',
    COMMENT COLUMN `ended_at` 'When it ended; NULL before.',
    COMMENT COLUMN `items` 'How many it has.',
    COMMENT COLUMN `arrived` 'Items that are in the cell.',
    COMMENT COLUMN `released` 'Items that became requests.',
    COMMENT COLUMN `completed` 'Released items that completed.',
    COMMENT COLUMN `rejected` 'Released items that were rejected.',
    COMMENT COLUMN `expired` 'Released items that expired.',
    COMMENT COLUMN `failed` 'Released items that failed.',
    COMMENT COLUMN `cancelled` 'Released items that were cancelled.',
    COMMENT COLUMN `not_run` 'Items of an ended job that were never released.',
    COMMENT COLUMN `held_us` 'For how long nothing more could be released, by cause. Unit: µs.',
    COMMENT COLUMN `detail` 'Why it was rejected, or what of its tenant''s quota it waits for; else empty.';
