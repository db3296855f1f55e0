-- How one-shot models batch, by what closed each window: batches, texts, padding, and the waits of
-- their members.
WITH formed AS
(
    SELECT
        cell, seq, model, cause AS closed_by,
        JSONExtractInt(json, 'batch') AS batch,
        JSONExtractInt(json, 'texts') AS texts,
        JSONExtractInt(json, 'padding_pct') AS padding_pct
    FROM decisions
    WHERE kind = 'batch-formed.v1'
),
members AS
(
    SELECT cell, model, JSONExtractInt(json, 'batch', 'batch') AS batch, seq, wait_us
    FROM decisions
    WHERE kind = 'request-dispatched.v1' AND JSONExtractRaw(json, 'batch') NOT IN ('', 'null')
)
SELECT
    f.model AS model,
    f.closed_by AS closed_by,
    uniqExact(f.cell, f.seq, f.batch) AS batches,
    count() AS requests,
    round(avg(f.texts), 1) AS texts_mean,
    round(avg(f.padding_pct), 1) AS padding_pct_mean,
    round(quantileExact(0.5)(m.wait_us) / 1000, 1) AS wait_p50_ms,
    round(quantileExact(0.95)(m.wait_us) / 1000, 1) AS wait_p95_ms
FROM formed AS f
INNER JOIN members AS m ON m.cell = f.cell AND m.model = f.model AND m.batch = f.batch AND m.seq = f.seq
GROUP BY model, closed_by
ORDER BY model, closed_by
