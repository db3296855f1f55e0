-- How requests ended under each policy: outcomes, median and 95th percentile of the wait in ms.
SELECT p.version AS version, p.name AS name, p.who AS who, p.why AS why, d.outcome AS outcome,
    count() AS requests,
    round(quantileExact(0.5)(d.wait_us) / 1000, 1) AS wait_p50_ms,
    round(quantileExact(0.95)(d.wait_us) / 1000, 1) AS wait_p95_ms
FROM decisions AS d
INNER JOIN policies AS p ON d.policy_version = p.version AND d.policy_digest = p.digest
WHERE d.kind = 'request-ended.v1'
GROUP BY ALL
ORDER BY version, outcome
