-- Each replica's lives: when it was admitted, with how large a pool, and when and why it was lost.
SELECT cell, model, slot, at, kind, blocks AS kv_blocks, cause AS why
FROM decisions
WHERE kind IN ('replica-admitted.v1', 'replica-lost.v1', 'replica-turned-away.v1')
ORDER BY cell, model, slot, at
