-- Requests that wait and run at the end of each second, each second between the first and the last.
SELECT model, second, waiting, running
FROM
(
    SELECT model, toDateTime(second, 'UTC') AS second, sum(waiting) AS waiting, sum(running) AS running
    FROM queue_depth
    GROUP BY model, second
)
ORDER BY model, second WITH FILL STEP toIntervalSecond(1) INTERPOLATE (waiting AS waiting, running AS running)
