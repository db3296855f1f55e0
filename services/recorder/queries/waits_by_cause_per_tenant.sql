-- What each tenant's requests waited for: seconds by cause, largest first.
SELECT tenant, cause, count() AS requests, sum(cause_us) / 1e6 AS waited_s
FROM waits
GROUP BY tenant, cause
ORDER BY tenant, waited_s DESC, cause
