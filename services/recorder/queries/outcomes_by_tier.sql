-- How the requests of each tier ended, and why.
SELECT tier, outcome, reason, count() AS requests
FROM requests
WHERE isNotNull(outcome)
GROUP BY tier, outcome, reason
ORDER BY tier, requests DESC, outcome, reason
