-- Time from arrival to outcome by model and tier, in ms; completed requests.
SELECT model, tier, count() AS requests,
    quantileExact(0.5)(e2e_us) / 1000 AS p50_ms,
    quantileExact(0.95)(e2e_us) / 1000 AS p95_ms,
    quantileExact(0.99)(e2e_us) / 1000 AS p99_ms
FROM requests
WHERE outcome = 'completed'
GROUP BY model, tier
ORDER BY model, tier
