-- A preempted request waits again: its leaving ends an attempt, as the loss of one does.

CREATE OR REPLACE VIEW request_steps AS
SELECT
    cell, seq, index, at, request_id, model, kind, slot, attempt, blocks,
    lagInFrame(kind) OVER steps AS kind_before,
    leadInFrame(kind) OVER steps AS kind_after,
    leadInFrame(at) OVER steps AS at_after
FROM decision_rows FINAL
WHERE kind IN ('request-queued.v1', 'request-dispatched.v1', 'attempt-lost.v1', 'request-returned.v1', 'request-preempted.v1', 'request-ended.v1')
WINDOW steps AS (PARTITION BY cell, request_id ORDER BY seq, index ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
COMMENT 'The steps of each request in order, each beside the one before and the one after.';

CREATE OR REPLACE VIEW queue_depth AS
SELECT
    cell, model, second,
    sum(waiting_change) OVER running_total AS waiting,
    sum(running_change) OVER running_total AS running
FROM
(
    SELECT
        cell, model, toStartOfSecond(at) AS second,
        sum(multiIf(
            kind IN ('request-queued.v1', 'request-returned.v1', 'request-preempted.v1'), 1,
            kind_before IN ('request-queued.v1', 'request-returned.v1', 'request-preempted.v1'), -1, 0)) AS waiting_change,
        sum(multiIf(kind = 'request-dispatched.v1', 1, kind_before = 'request-dispatched.v1', -1, 0)) AS running_change
    FROM request_steps
    WHERE NOT (kind = 'request-ended.v1' AND kind_before = '')
    GROUP BY cell, model, second
)
WINDOW running_total AS (PARTITION BY cell, model ORDER BY second)
COMMENT 'Requests that wait and run at the end of each second in which that changed.';

ALTER TABLE request_steps
    COMMENT COLUMN `cell` 'Whose decision.',
    COMMENT COLUMN `seq` 'Of the entry it stands in.',
    COMMENT COLUMN `index` 'Its place in the entry; (cell, seq, index) is its id.',
    COMMENT COLUMN `at` 'When: the stamp of the fact it follows from.',
    COMMENT COLUMN `request_id` 'The request it is about; empty when about none.',
    COMMENT COLUMN `model` 'The model; empty when about none.',
    COMMENT COLUMN `kind` 'Kind and version.',
    COMMENT COLUMN `slot` 'Replica slot.',
    COMMENT COLUMN `attempt` 'Which run of the request.',
    COMMENT COLUMN `blocks` 'KV blocks: reserved by a dispatch, of the pool when admitted. Unit: KV blocks.',
    COMMENT COLUMN `kind_before` 'Kind of the request''s step before; empty at the first.',
    COMMENT COLUMN `kind_after` 'Kind of the request''s step after; empty at the last.',
    COMMENT COLUMN `at_after` 'When that one was; the epoch, 1970, when there is none.';

ALTER TABLE queue_depth
    COMMENT COLUMN `cell` 'Whose decisions.',
    COMMENT COLUMN `model` 'Whose queue.',
    COMMENT COLUMN `second` 'The second, by its beginning.',
    COMMENT COLUMN `waiting` 'Requests that wait in the queue at its end.',
    COMMENT COLUMN `running` 'Requests that a replica has at its end.';
