-- Which policy was activated when, by whom and why, and how many entries name it.
SELECT cell, at, policy_name, activated_version, who, why, entries
FROM
(
    SELECT cell, at,
        JSONExtractString(raw, 'fact', 'policy', 'name') AS policy_name,
        toInt32(JSONExtractInt(raw, 'fact', 'policy', 'version')) AS activated_version,
        JSONExtractString(raw, 'fact', 'who') AS who,
        JSONExtractString(raw, 'fact', 'why') AS why
    FROM ledger FINAL
    WHERE fact_kind = 'policy-activated.v1'
) AS a
LEFT JOIN
(
    SELECT cell, policy_version, count() AS entries FROM ledger FINAL GROUP BY cell, policy_version
) AS e ON a.cell = e.cell AND a.activated_version = e.policy_version
ORDER BY cell, at
