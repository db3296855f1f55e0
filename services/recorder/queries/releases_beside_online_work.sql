-- Releases and holds of offline work, with the online requests and the room that were compared.
SELECT at, model,
    multiIf(kind = 'items-released.v1', 'released', kind = 'job-held.v1', JSONExtractString(json, 'reason'),
        kind = 'job-freed.v1', 'freed', cause) AS what,
    JSONExtractString(json, 'job') AS job,
    if(kind = 'job-freed.v1', JSONExtractInt(json, 'items'), JSONExtractInt(json, 'count')) AS items,
    JSONExtractInt(json, 'room', 'online') AS online,
    JSONExtractInt(json, 'room', 'in_flight') AS in_flight, JSONExtractInt(json, 'room', 'slots_free') AS slots_free,
    JSONExtractInt(json, 'room', 'blocks_free') AS blocks_free
FROM decisions
WHERE kind IN ('items-released.v1', 'release-held.v1', 'job-held.v1', 'job-freed.v1')
ORDER BY at, what
