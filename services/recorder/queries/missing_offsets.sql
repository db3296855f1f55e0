-- Offsets of the ledger that no table holds. A transaction's marker leaves one too: see audit for seqs.
SELECT cell, before AS offset_before, offset AS offset_after, offset - before - 1 AS missing
FROM
(
    SELECT cell, offset, lagInFrame(offset, 1, offset - 1) OVER in_order AS before
    FROM
    (
        SELECT cell, offset FROM ledger FINAL
        UNION DISTINCT SELECT cell, offset FROM void_entries
        UNION DISTINCT SELECT source_partition, source_offset FROM dead_letters WHERE source_topic = 'headway.ledger'
    )
    WINDOW in_order AS (PARTITION BY cell ORDER BY offset ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
)
WHERE offset - before > 1
ORDER BY cell, offset
