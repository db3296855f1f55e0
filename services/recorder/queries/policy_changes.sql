-- Which policy came into force when, set by whom and why, and how many entries were decided under it.
SELECT p.at AS at, p.version AS version, p.name AS name, p.digest AS digest, p.based_on AS based_on,
    p.who AS who, p.why AS why, p.cells AS cells, e.entries AS entries
FROM policies AS p
LEFT JOIN
(
    SELECT policy_version, policy_digest, count() AS entries FROM ledger FINAL GROUP BY ALL
) AS e ON p.version = e.policy_version AND p.digest = e.policy_digest
ORDER BY version
