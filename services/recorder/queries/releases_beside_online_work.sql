-- Releases and holds of offline work, with the online requests and the room that were compared.
SELECT at, model, if(kind = 'items-released.v1', 'released', cause) AS what, JSONExtractString(json, 'job') AS job,
    JSONExtractInt(json, 'count') AS items, JSONExtractInt(json, 'room', 'online') AS online,
    JSONExtractInt(json, 'room', 'in_flight') AS in_flight, JSONExtractInt(json, 'room', 'slots_free') AS slots_free,
    JSONExtractInt(json, 'room', 'blocks_free') AS blocks_free
FROM decisions
WHERE kind IN ('items-released.v1', 'release-held.v1')
ORDER BY at, what
