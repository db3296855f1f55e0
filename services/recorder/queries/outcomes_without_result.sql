-- Requests whose outcome is on the ledger and was not published; those of the last second may be under way.
SELECT r.cell, r.id, r.outcome, r.ended_at
FROM requests AS r
LEFT ANTI JOIN results AS p ON r.cell = p.cell AND r.id = p.id
WHERE isNotNull(r.outcome)
ORDER BY r.ended_at, r.id
