-- What each replica ran at most, and the KV blocks that were reserved on it at most, by minute.
SELECT replica, toStartOfMinute(second) AS minute, max(running) AS running_max, max(blocks_used) AS blocks_used_max
FROM replica_occupancy
GROUP BY replica, minute
ORDER BY replica, minute
