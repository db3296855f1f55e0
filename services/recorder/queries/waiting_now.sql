-- What waits at this moment, by what holds it back: how many of each tenant and tier, and the longest wait in seconds.
SELECT model, tenant, if(of_job = 1, 'offline', tier) AS line, cause, count() AS requests, max(waited_ms) / 1000 AS longest_s
FROM waiting
GROUP BY model, tenant, line, cause
ORDER BY longest_s DESC, model, tenant, line, cause
