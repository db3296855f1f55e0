-- Attempts that were lost: of which request, on which replica, why, and how the request ended.
SELECT d.at AS lost_at, d.request_id AS id, concat(d.model, '/', toString(d.slot)) AS replica, d.attempt,
    d.cause AS why, JSONExtractInt(d.json, 'backoff_ms') AS backoff_ms, r.outcome AS outcome
FROM decisions AS d
LEFT JOIN requests AS r ON d.cell = r.cell AND d.request_id = r.id
WHERE d.kind = 'attempt-lost.v1'
ORDER BY lost_at, id
