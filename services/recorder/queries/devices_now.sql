-- The last reading of each device.
SELECT node, device, argMax(at, (at, offset)) AS read_at,
    argMax(tuple(utilisation), (at, offset)).1 AS utilisation,
    argMax(tuple(memory_used_bytes), (at, offset)).1 AS memory_used_bytes,
    argMax(tuple(memory_total_bytes), (at, offset)).1 AS memory_total_bytes
FROM telemetry
GROUP BY node, device
ORDER BY node, device
