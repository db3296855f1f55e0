-- What the columns of `policies` mean, where analysts look first; see 0004_columns.sql.

ALTER TABLE ledger_to_policies
    COMMENT COLUMN `cell` 'Where it came into force.',
    COMMENT COLUMN `seq` 'Of the entry from which on it holds there.',
    COMMENT COLUMN `at` 'When.',
    COMMENT COLUMN `version` 'As decisions name it in policy_version.',
    COMMENT COLUMN `digest` 'Names its values; as decisions name it in policy_digest.',
    COMMENT COLUMN `name` 'For people.',
    COMMENT COLUMN `based_on` 'The version that it was made from; NULL for the built-in one.',
    COMMENT COLUMN `who` 'Set it.',
    COMMENT COLUMN `why` 'In their words.',
    COMMENT COLUMN `values` 'Every key and its value, as JSON; `headway config show` tells the units.',
    COMMENT COLUMN `overrides` 'Values for a model, tier or tenant alone, each as JSON.';

ALTER TABLE policies
    COMMENT COLUMN `version` 'As decisions name it in policy_version.',
    COMMENT COLUMN `digest` 'Names its values; as decisions name it in policy_digest.',
    COMMENT COLUMN `name` 'For people.',
    COMMENT COLUMN `at` 'When it came into force first.',
    COMMENT COLUMN `cells` 'In how many cells it came into force.',
    COMMENT COLUMN `based_on` 'The version that it was made from; NULL for the built-in one.',
    COMMENT COLUMN `who` 'Set it.',
    COMMENT COLUMN `why` 'In their words.',
    COMMENT COLUMN `values` 'Every key and its value, as JSON; `headway config show` tells the units.',
    COMMENT COLUMN `overrides` 'Values for a model, tier or tenant alone, each as JSON.';
