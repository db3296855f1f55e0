-- What each waiting request waits for at the newest entry of its cell: its turn and its quota too.
--
-- A request below a higher tier that waits for the same room waits for its turn; one whose tenant has
-- as many running as its quota allows waits for that. The rest wait for what holds the queue back.

CREATE VIEW waiting AS
WITH
    steps AS
    (
        SELECT cell, request_id, seq, index, at, kind, kind_before FROM request_steps
    ),
    last_steps AS
    (
        SELECT cell, request_id AS id, argMax(kind, (seq, index)) AS step, argMax(at, (seq, index)) AS since
        FROM steps
        GROUP BY cell, id
        HAVING step IN ('request-queued.v1', 'request-returned.v1', 'request-preempted.v1', 'attempt-lost.v1')
    ),
    jobs_known AS
    (
        SELECT cell, job FROM jobs
    ),
    queued AS
    (
        SELECT
            s.cell AS cell, s.id AS id, q.model AS model, q.tenant AS tenant, q.tier AS tier, s.step AS step, s.since AS since,
            (cell, extract(id, '^batch/(.+)/[0-9]+$')) IN (SELECT cell, job FROM jobs_known) AS offline,
            if(offline, 5, indexOf(['realtime', 'critical', 'normal', 'batch'], tier)) AS rank
        FROM last_steps AS s
        INNER JOIN
        (
            SELECT cell, request_id AS id, argMax(model, (seq, index)) AS model,
                argMax(tenant, (seq, index)) AS tenant, argMax(tier, (seq, index)) AS tier
            FROM decision_rows FINAL
            WHERE kind = 'request-queued.v1'
            GROUP BY cell, id
        ) AS q ON q.cell = s.cell AND q.id = s.id
    ),
    freed AS
    (
        SELECT s.cell AS cell, q.model AS model, q.tenant AS tenant, max((s.seq, s.index)) AS last
        FROM steps AS s
        INNER JOIN (SELECT DISTINCT cell, request_id, model, tenant FROM decision_rows FINAL WHERE kind = 'request-queued.v1') AS q
            ON q.cell = s.cell AND q.request_id = s.request_id
        WHERE s.kind_before = 'request-dispatched.v1' AND s.kind != 'request-dispatched.v1'
        GROUP BY cell, model, tenant
    ),
    policies_set AS
    (
        SELECT cell, max((seq, toInt32(-1))) AS last FROM ledger FINAL WHERE fact_kind = 'policy-activated.v1' GROUP BY cell
    ),
    held AS
    (
        SELECT h.cell AS cell, h.model AS model, h.tenant AS tenant
        FROM
        (
            SELECT cell, model, tenant, max((seq, index)) AS last
            FROM decision_rows FINAL
            WHERE kind = 'tenant-held.v1'
            GROUP BY cell, model, tenant
        ) AS h
        LEFT JOIN freed AS f ON f.cell = h.cell AND f.model = h.model AND f.tenant = h.tenant
        LEFT JOIN policies_set AS p ON p.cell = h.cell
        WHERE h.last > f.last AND h.last > p.last
    ),
    blocked AS
    (
        SELECT cell, model, argMax(cause, (seq, index)) AS cause, argMax(json, (seq, index)) AS json
        FROM decision_rows FINAL
        WHERE kind = 'queue-blocked.v1'
        GROUP BY cell, model
    ),
    highest AS
    (
        SELECT cell, model, min(rank) AS rank
        FROM queued
        WHERE step != 'attempt-lost.v1' AND (cell, model, tenant) NOT IN (SELECT cell, model, tenant FROM held)
        GROUP BY cell, model
    )
SELECT
    q.cell AS cell, q.id AS id, q.model AS model, q.tenant AS tenant, q.tier AS tier, q.offline AS of_job, q.since AS waits_since,
    multiIf(
        q.step = 'attempt-lost.v1', 'backoff',
        (q.cell, q.model, q.tenant) IN (SELECT cell, model, tenant FROM held), 'quota',
        b.cause IN ('kv', 'slots') AND h.rank > 0 AND h.rank < q.rank, 'turn',
        b.cause = '', 'turn',
        b.cause) AS cause,
    if(cause = b.cause, b.json, '') AS numbers,
    dateDiff('millisecond', q.since, l.newest) AS waited_ms
FROM queued AS q
LEFT JOIN blocked AS b ON b.cell = q.cell AND b.model = q.model
LEFT JOIN highest AS h ON h.cell = q.cell AND h.model = q.model
INNER JOIN (SELECT cell, max(at) AS newest FROM ledger GROUP BY cell) AS l ON l.cell = q.cell
COMMENT 'A row for each request that waits at the newest entry of its cell, and what holds this one back.';

ALTER TABLE waiting
    COMMENT COLUMN `cell` 'Where it waits.',
    COMMENT COLUMN `id` 'The producer''s id.',
    COMMENT COLUMN `model` 'Whose queue.',
    COMMENT COLUMN `tenant` 'Who is charged.',
    COMMENT COLUMN `tier` 'Its urgency.',
    COMMENT COLUMN `of_job` '1 when it is an item of an offline job, which stands below every tier.',
    COMMENT COLUMN `waits_since` 'When this wait began.',
    COMMENT COLUMN `cause` 'What holds it back: turn, quota or backoff, or what holds its model''s queue back.',
    COMMENT COLUMN `numbers` 'The decision queue-blocked with the numbers compared, as JSON; empty where another cause holds it.',
    COMMENT COLUMN `waited_ms` 'How long this wait is, up to the newest entry. Unit: ms.';
