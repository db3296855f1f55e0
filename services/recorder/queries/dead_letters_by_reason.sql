-- What could not be decoded, by where it stands and why; each record once.
SELECT source_topic, reason, count() AS records, max(written_at) AS last_at
FROM
(
    SELECT source_topic, source_partition, source_offset, any(reason) AS reason, max(written_at) AS written_at
    FROM dead_letters
    GROUP BY source_topic, source_partition, source_offset
)
GROUP BY source_topic, reason
ORDER BY records DESC, source_topic, reason
