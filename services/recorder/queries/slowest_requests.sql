-- The twenty requests that took longest from arrival to outcome, with where the time went.
SELECT id, model, tenant, tier, outcome, e2e_us / 1000 AS e2e_ms, wait_us / 1000 AS wait_ms,
    run_us / 1000 AS run_ms, waits, attempts, replica
FROM requests
WHERE isNotNull(outcome)
ORDER BY e2e_us DESC, id
LIMIT 20
