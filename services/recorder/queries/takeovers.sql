-- Which process owned each cell from when on, and how many entries of its epoch count and are void.
SELECT cell, at, epoch, owner, entries, void
FROM
(
    SELECT cell, at, epoch, JSONExtractString(raw, 'fact', 'owner') AS owner
    FROM ledger FINAL
    WHERE fact_kind = 'owner-took-over.v1'
) AS t
LEFT JOIN (SELECT cell, epoch, count() AS entries FROM ledger FINAL GROUP BY cell, epoch) AS e USING (cell, epoch)
LEFT JOIN (SELECT cell, epoch, count() AS void FROM void_entries FINAL GROUP BY cell, epoch) AS v USING (cell, epoch)
ORDER BY cell, at
