-- Requests completed and tokens generated per model in each minute.
SELECT model, toStartOfMinute(assumeNotNull(ended_at)) AS minute, count() AS completed,
    sum(r.output_tokens) AS tokens, tokens / 60 AS tokens_per_s
FROM requests AS r
WHERE outcome = 'completed'
GROUP BY model, minute
ORDER BY model, minute
