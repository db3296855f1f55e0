-- Every policy that came into force, with who set it and why, so that decisions can be read beside
-- the numbers that they were made under.

CREATE TABLE policy_rows
(
    cell Int32 COMMENT 'Where it came into force.',
    seq Int64 COMMENT 'Of the entry from which on it holds there.',
    at DateTime64(6, 'UTC') COMMENT 'When.',
    version Int32 COMMENT 'As decisions name it in policy_version.',
    digest LowCardinality(String) COMMENT 'Names its values; as decisions name it in policy_digest.',
    name String COMMENT 'For people.',
    based_on Nullable(Int32) COMMENT 'The version that it was made from; NULL for the built-in one.',
    who String COMMENT 'Set it.',
    why String COMMENT 'In their words.',
    `values` Map(String, String) COMMENT 'Every key and its value, as JSON.',
    overrides Array(String) COMMENT 'Values for a model, tier or tenant alone, each as JSON.'
)
ENGINE = ReplacingMergeTree
ORDER BY (cell, seq)
SETTINGS non_replicated_deduplication_window = 1000
COMMENT 'Storage of `policies`.';

CREATE MATERIALIZED VIEW ledger_to_policies TO policy_rows AS
SELECT
    cell,
    seq,
    fromUnixTimestamp64Micro(at_us, 'UTC') AS at,
    policy_version AS version,
    policy_digest AS digest,
    JSONExtractString(policy, 'name') AS name,
    JSONExtract(raw, 'fact', 'based_on', 'Nullable(Int32)') AS based_on,
    JSONExtractString(raw, 'fact', 'who') AS who,
    JSONExtractString(raw, 'fact', 'why') AS why,
    CAST(
        arrayFilter(
            pair -> NOT has(['kind', 'name', 'version', 'overrides'], pair.1),
            JSONExtractKeysAndValuesRaw(policy)
        ),
        'Map(String, String)'
    ) AS `values`,
    JSONExtractArrayRaw(policy, 'overrides') AS overrides
FROM
(
    SELECT cell, seq, at_us, policy_version, policy_digest, raw, JSONExtractRaw(raw, 'fact', 'policy') AS policy
    FROM ledger_in
    WHERE position(raw, '"fact":{"kind":"policy-activated.v1"') > 0
);

CREATE VIEW policies AS
SELECT
    version,
    digest,
    any(name) AS name,
    min(at) AS at,
    count() AS cells,
    any(based_on) AS based_on,
    any(who) AS who,
    any(why) AS why,
    any(`values`) AS `values`,
    any(overrides) AS overrides
FROM policy_rows FINAL
GROUP BY version, digest
COMMENT 'A row for each policy that came into force, in how many cells, who set it and why; decisions name it in policy_version and policy_digest.';
