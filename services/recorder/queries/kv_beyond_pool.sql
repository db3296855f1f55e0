-- Moments at which more KV blocks were reserved on a replica than its pool has; there should be none.
WITH changes AS
(
    SELECT cell, model, slot, change.1 AS at, change.2 AS delta
    FROM (SELECT *, arrayJoin([(toNullable(started_at), blocks), (ended_at, -blocks)]) AS change FROM attempts)
    WHERE isNotNull(change.1)
),
used AS
(
    SELECT cell, model, slot, assumeNotNull(at) AS at,
        sum(sum(delta)) OVER (PARTITION BY cell, model, slot ORDER BY at) AS blocks_used
    FROM changes
    GROUP BY cell, model, slot, at
),
pools AS
(
    SELECT cell, model, slot, at, blocks AS blocks_in_pool FROM decisions WHERE kind = 'replica-admitted.v1'
)
SELECT used.cell, used.model, used.slot, used.at, blocks_used, blocks_in_pool
FROM used
ASOF JOIN pools ON used.cell = pools.cell AND used.model = pools.model AND used.slot = pools.slot AND used.at >= pools.at
WHERE blocks_used > blocks_in_pool
ORDER BY used.at
