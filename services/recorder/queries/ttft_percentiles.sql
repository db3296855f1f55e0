-- Time from arrival to first token by model and tier, in ms; requests that had a first token.
SELECT model, tier, count() AS requests,
    quantileExact(0.5)(ttft_us) / 1000 AS p50_ms,
    quantileExact(0.95)(ttft_us) / 1000 AS p95_ms,
    quantileExact(0.99)(ttft_us) / 1000 AS p99_ms
FROM requests
WHERE isNotNull(ttft_us)
GROUP BY model, tier
ORDER BY model, tier
