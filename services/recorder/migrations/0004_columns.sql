-- What every column means, with its unit, also where analysts look first: DESCRIBE TABLE of a view.
--
-- A view takes no comments over from the table that it reads. Those of the tables gain their units.
-- And queue_depth leaves out requests that were never queued, such as those for an unknown model.

CREATE OR REPLACE VIEW queue_depth AS
SELECT
    cell, model, second,
    sum(waiting_change) OVER running_total AS waiting,
    sum(running_change) OVER running_total AS running
FROM
(
    SELECT
        cell, model, toStartOfSecond(at) AS second,
        sum(multiIf(
            kind IN ('request-queued.v1', 'request-returned.v1'), 1,
            kind_before IN ('request-queued.v1', 'request-returned.v1'), -1, 0)) AS waiting_change,
        sum(multiIf(kind = 'request-dispatched.v1', 1, kind_before = 'request-dispatched.v1', -1, 0)) AS running_change
    FROM request_steps
    WHERE NOT (kind = 'request-ended.v1' AND kind_before = '')
    GROUP BY cell, model, second
)
WINDOW running_total AS (PARTITION BY cell, model ORDER BY second)
COMMENT 'Requests that wait and run at the end of each second in which that changed.';

ALTER TABLE dead_letter_rows
    COMMENT COLUMN `body_bytes` 'Its whole size. Unit: bytes.';

ALTER TABLE decision_rows
    COMMENT COLUMN `wait_us` 'Of a dispatch and of an end: time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `blocks` 'KV blocks: reserved by a dispatch, of the pool when admitted. Unit: KV blocks.';

ALTER TABLE request_rows
    COMMENT COLUMN `wait_us` 'All time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `waits` 'That time by cause; adds up to wait_us. Unit: µs.',
    COMMENT COLUMN `run_us` 'All time in which a replica had it. Unit: µs.',
    COMMENT COLUMN `ttft_us` 'Arrival to first token; NULL when there was none. Unit: µs.',
    COMMENT COLUMN `e2e_us` 'Arrival to outcome: wait_us + run_us. Unit: µs.',
    COMMENT COLUMN `prompt_tokens` 'Counted at the edge. Unit: tokens.',
    COMMENT COLUMN `max_output_tokens` 'Its limit. Unit: tokens.',
    COMMENT COLUMN `output_tokens` 'Generated; NULL when it never ran to an end. Unit: tokens.',
    COMMENT COLUMN `queued_us` 'In the worker, before it joined the batch. Unit: µs.',
    COMMENT COLUMN `prefill_us` 'From joining to the first token. Unit: µs.',
    COMMENT COLUMN `decode_us` 'From the first token to the last. Unit: µs.';

ALTER TABLE result_rows
    COMMENT COLUMN `output_tokens` 'Generated; NULL when unknown. Unit: tokens.',
    COMMENT COLUMN `wait_us` 'All time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `ttft_us` 'Arrival to first token. Unit: µs.',
    COMMENT COLUMN `e2e_us` 'Arrival to outcome. Unit: µs.';

ALTER TABLE telemetry_rows
    COMMENT COLUMN `utilisation` 'Part of the time in which it was busy, from 0 to 1; NULL when the device does not say.',
    COMMENT COLUMN `memory_used_bytes` 'Memory in use; NULL when the device does not say. Unit: bytes.',
    COMMENT COLUMN `memory_total_bytes` 'Memory that there is; NULL when the device does not say. Unit: bytes.',
    COMMENT COLUMN `power_w` 'Power drawn; NULL when the device does not say. Unit: W.',
    COMMENT COLUMN `temperature_c` 'Temperature; NULL when the device does not say. Unit: °C.';

ALTER TABLE attempts
    COMMENT COLUMN `cell` 'Whose decision.',
    COMMENT COLUMN `id` 'Of the request.',
    COMMENT COLUMN `model` 'The model; empty when about none.',
    COMMENT COLUMN `slot` 'Replica slot.',
    COMMENT COLUMN `replica` 'Name of the replica: model and slot.',
    COMMENT COLUMN `attempt` 'Which run of the request, from 1.',
    COMMENT COLUMN `started_at` 'When it was dispatched to the replica.',
    COMMENT COLUMN `ended_at` 'When the replica was rid of it; NULL while it has it.',
    COMMENT COLUMN `ended_by` 'Kind of the decision that ended it; empty while it runs.',
    COMMENT COLUMN `blocks` 'KV blocks reserved for it on the replica. Unit: KV blocks.',
    COMMENT COLUMN `seq` 'Of the ledger entry with the dispatch.';

ALTER TABLE audit
    COMMENT COLUMN `check` 'What is looked for.',
    COMMENT COLUMN `problems` 'How many there are; 0 in a sound record.',
    COMMENT COLUMN `meaning` 'What one problem is.';

ALTER TABLE audit_altered
    COMMENT COLUMN `cell` 'Whose ledger: the partition of headway.ledger.',
    COMMENT COLUMN `seq` '0, 1, 2, … in each cell without a gap.',
    COMMENT COLUMN `offset` 'Of the Kafka record that holds the entry.',
    COMMENT COLUMN `line` 'Place of the entry in its record, from 0.';

ALTER TABLE audit_double_outcomes
    COMMENT COLUMN `cell` 'Where it is decided.',
    COMMENT COLUMN `request_offset` 'Where in headway.requests, partition `cell`, the payload lies.',
    COMMENT COLUMN `id` 'Of the request.',
    COMMENT COLUMN `times` 'How many outcomes it has.',
    COMMENT COLUMN `ends` 'seq, index and outcome of each decision that ended it.';

ALTER TABLE audit_duplicates
    COMMENT COLUMN `cell` 'Whose ledger.',
    COMMENT COLUMN `seq` 'Of the entry.',
    COMMENT COLUMN `times` 'How often it is there.',
    COMMENT COLUMN `offsets` 'Offsets in the ledger''s partition at which it stands.';

ALTER TABLE audit_gaps
    COMMENT COLUMN `cell` 'Whose ledger.',
    COMMENT COLUMN `seq_before` 'The last seq before the gap.',
    COMMENT COLUMN `seq_after` 'The first seq after it.',
    COMMENT COLUMN `missing` 'Entries between the two that are not there.';

ALTER TABLE audit_unexplained_waits
    COMMENT COLUMN `cell` 'Where it is decided.',
    COMMENT COLUMN `request_offset` 'Where in headway.requests, partition `cell`, the payload lies.',
    COMMENT COLUMN `id` 'The producer''s name for it.',
    COMMENT COLUMN `wait_us` 'All time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `explained_us` 'The causes of its wait added up. Unit: µs.';

ALTER TABLE audit_unfinished
    COMMENT COLUMN `cell` 'Where it is decided.',
    COMMENT COLUMN `request_offset` 'Where in headway.requests, partition `cell`, the payload lies.',
    COMMENT COLUMN `id` 'The producer''s name for it.',
    COMMENT COLUMN `model` 'What is asked to answer.',
    COMMENT COLUMN `tenant` 'Who is charged.',
    COMMENT COLUMN `tier` 'realtime, critical, normal or batch.',
    COMMENT COLUMN `arrived_at` 'The broker''s stamp; waits count from it.',
    COMMENT COLUMN `age_s` 'From its arrival to the cell''s newest entry. Unit: s.';

ALTER TABLE dead_letters
    COMMENT COLUMN `partition` 'Of headway.dead-letter.',
    COMMENT COLUMN `offset` 'In that partition.',
    COMMENT COLUMN `written_at` 'The broker''s stamp.',
    COMMENT COLUMN `source_topic` 'Where the record stands that could not be decoded.',
    COMMENT COLUMN `source_partition` 'Its partition.',
    COMMENT COLUMN `source_offset` 'Its offset.',
    COMMENT COLUMN `reason` 'What is wrong with it.',
    COMMENT COLUMN `body_bytes` 'Its whole size. Unit: bytes.',
    COMMENT COLUMN `body_base64` 'Its bytes, perhaps cut; NULL for a null value.';

ALTER TABLE decisions
    COMMENT COLUMN `cell` 'Whose decision.',
    COMMENT COLUMN `seq` 'Of the entry it stands in.',
    COMMENT COLUMN `index` 'Its place in the entry; (cell, seq, index) is its id.',
    COMMENT COLUMN `at` 'When: the stamp of the fact it follows from.',
    COMMENT COLUMN `kind` 'Kind and version.',
    COMMENT COLUMN `request_id` 'The request it is about; empty when about none.',
    COMMENT COLUMN `model` 'The model; empty when about none.',
    COMMENT COLUMN `tenant` 'Who is charged; empty when the decision does not say.',
    COMMENT COLUMN `tier` 'Empty when the decision does not say.',
    COMMENT COLUMN `slot` 'Replica slot.',
    COMMENT COLUMN `attempt` 'Which run of the request.',
    COMMENT COLUMN `cause` 'Why: of a block, a loss, a leave, an outcome, an ignored.',
    COMMENT COLUMN `outcome` 'Of request-ended; empty otherwise.',
    COMMENT COLUMN `wait_us` 'Of a dispatch and of an end: time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `blocks` 'KV blocks: reserved by a dispatch, of the pool when admitted. Unit: KV blocks.',
    COMMENT COLUMN `request_offset` 'Where in headway.requests the payload lies.',
    COMMENT COLUMN `epoch` 'Of the owner.',
    COMMENT COLUMN `policy_version` 'Of the policy that decided.',
    COMMENT COLUMN `policy_digest` 'Names that policy''s values.',
    COMMENT COLUMN `json` 'The decision, whole.';

ALTER TABLE ledger_in
    COMMENT COLUMN `cell` 'Whose ledger: the partition of headway.ledger.',
    COMMENT COLUMN `seq` '0, 1, 2, … in each cell without a gap.',
    COMMENT COLUMN `epoch` 'Of the owner that appended it.',
    COMMENT COLUMN `offset` 'Of the Kafka record that holds the entry.',
    COMMENT COLUMN `at_us` 'When the owner stamped the fact. Unit: µs since 1970.',
    COMMENT COLUMN `policy_version` 'Of the policy that decided.',
    COMMENT COLUMN `policy_digest` 'Names that policy''s values.',
    COMMENT COLUMN `raw` 'The ledger line, byte for byte.';

ALTER TABLE ledger_to_decisions
    COMMENT COLUMN `cell` 'Whose decision.',
    COMMENT COLUMN `seq` 'Of the entry it stands in.',
    COMMENT COLUMN `index` 'Its place in the entry; (cell, seq, index) is its id.',
    COMMENT COLUMN `at` 'When: the stamp of the fact it follows from.',
    COMMENT COLUMN `kind` 'Kind and version.',
    COMMENT COLUMN `request_id` 'The request it is about; empty when about none.',
    COMMENT COLUMN `model` 'The model; empty when about none.',
    COMMENT COLUMN `tenant` 'Who is charged; empty when the decision does not say.',
    COMMENT COLUMN `tier` 'Empty when the decision does not say.',
    COMMENT COLUMN `slot` 'Replica slot.',
    COMMENT COLUMN `attempt` 'Which run of the request.',
    COMMENT COLUMN `cause` 'Why: of a block, a loss, a leave, an outcome, an ignored.',
    COMMENT COLUMN `outcome` 'Of request-ended; empty otherwise.',
    COMMENT COLUMN `wait_us` 'Of a dispatch and of an end: time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `blocks` 'KV blocks: reserved by a dispatch, of the pool when admitted. Unit: KV blocks.',
    COMMENT COLUMN `request_offset` 'Where in headway.requests the payload lies.',
    COMMENT COLUMN `epoch` 'Of the owner.',
    COMMENT COLUMN `policy_version` 'Of the policy that decided.',
    COMMENT COLUMN `policy_digest` 'Names that policy''s values.',
    COMMENT COLUMN `json` 'The decision, whole.';

ALTER TABLE ledger_to_requests
    COMMENT COLUMN `cell` 'Where it is decided.',
    COMMENT COLUMN `request_offset` 'Where in headway.requests, partition `cell`, the payload lies.',
    COMMENT COLUMN `id` 'The producer''s name for it.',
    COMMENT COLUMN `model` 'What is asked to answer.',
    COMMENT COLUMN `tenant` 'Who is charged.',
    COMMENT COLUMN `tier` 'realtime, critical, normal or batch.',
    COMMENT COLUMN `arrived_at` 'The broker''s stamp; waits count from it.',
    COMMENT COLUMN `ended_at` 'When its outcome was decided; NULL before.',
    COMMENT COLUMN `outcome` 'completed, rejected, expired, failed, cancelled; NULL before.',
    COMMENT COLUMN `reason` 'Why that outcome.',
    COMMENT COLUMN `detail` 'The same in a sentence with the numbers compared.',
    COMMENT COLUMN `attempts` 'Runs, lost ones included.',
    COMMENT COLUMN `slot` 'Of the replica that ran it last.',
    COMMENT COLUMN `replica` 'That replica''s name.',
    COMMENT COLUMN `wait_us` 'All time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `waits` 'That time by cause; adds up to wait_us. Unit: µs.',
    COMMENT COLUMN `run_us` 'All time in which a replica had it. Unit: µs.',
    COMMENT COLUMN `ttft_us` 'Arrival to first token; NULL when there was none. Unit: µs.',
    COMMENT COLUMN `e2e_us` 'Arrival to outcome: wait_us + run_us. Unit: µs.',
    COMMENT COLUMN `prompt_tokens` 'Counted at the edge. Unit: tokens.',
    COMMENT COLUMN `max_output_tokens` 'Its limit. Unit: tokens.',
    COMMENT COLUMN `output_tokens` 'Generated; NULL when it never ran to an end. Unit: tokens.',
    COMMENT COLUMN `queued_us` 'In the worker, before it joined the batch. Unit: µs.',
    COMMENT COLUMN `prefill_us` 'From joining to the first token. Unit: µs.',
    COMMENT COLUMN `decode_us` 'From the first token to the last. Unit: µs.',
    COMMENT COLUMN `metadata` 'The producer''s own labels.',
    COMMENT COLUMN `policy_version` 'Under which the last decision on it was made.',
    COMMENT COLUMN `policy_digest` 'Names that policy''s values.',
    COMMENT COLUMN `seq` 'Of the entry with that decision.',
    COMMENT COLUMN `version` 'seq and index in one number.';

ALTER TABLE messages_in
    COMMENT COLUMN `topic` 'Where the message was read.',
    COMMENT COLUMN `partition` 'Its partition.',
    COMMENT COLUMN `offset` 'Its offset.',
    COMMENT COLUMN `written_ms` 'The broker''s stamp. Unit: ms since 1970.',
    COMMENT COLUMN `message` 'The message, as JSON.';

ALTER TABLE messages_to_dead_letters
    COMMENT COLUMN `partition` 'Of headway.dead-letter.',
    COMMENT COLUMN `offset` 'In that partition.',
    COMMENT COLUMN `written_at` 'The broker''s stamp.',
    COMMENT COLUMN `source_topic` 'Where the record stands that could not be decoded.',
    COMMENT COLUMN `source_partition` 'Its partition.',
    COMMENT COLUMN `source_offset` 'Its offset.',
    COMMENT COLUMN `reason` 'What is wrong with it.',
    COMMENT COLUMN `body_bytes` 'Its whole size. Unit: bytes.',
    COMMENT COLUMN `body_base64` 'Its bytes, perhaps cut; NULL for a null value.';

ALTER TABLE messages_to_results
    COMMENT COLUMN `cell` 'That decided it.',
    COMMENT COLUMN `seq` 'Of the ledger entry that says so.',
    COMMENT COLUMN `id` 'Of the request.',
    COMMENT COLUMN `partition` 'Of headway.results.',
    COMMENT COLUMN `offset` 'In that partition; a result that was published again has the later one.',
    COMMENT COLUMN `published_at` 'The broker''s stamp.',
    COMMENT COLUMN `model` 'That was asked.',
    COMMENT COLUMN `tenant` 'Who is charged.',
    COMMENT COLUMN `tier` 'realtime, critical, normal or batch.',
    COMMENT COLUMN `outcome` 'completed, rejected, expired, failed or cancelled.',
    COMMENT COLUMN `reason` 'Why that outcome.',
    COMMENT COLUMN `detail` 'The same in a sentence.',
    COMMENT COLUMN `text` 'The output; NULL when there is none.',
    COMMENT COLUMN `output_tokens` 'Generated; NULL when unknown. Unit: tokens.',
    COMMENT COLUMN `attempts` 'Runs, lost ones included.',
    COMMENT COLUMN `replica` 'That ran it last.',
    COMMENT COLUMN `wait_us` 'All time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `ttft_us` 'Arrival to first token. Unit: µs.',
    COMMENT COLUMN `e2e_us` 'Arrival to outcome. Unit: µs.',
    COMMENT COLUMN `policy_version` 'Of the policy that decided.',
    COMMENT COLUMN `policy_digest` 'Names that policy''s values.';

ALTER TABLE messages_to_signals
    COMMENT COLUMN `partition` 'Of headway.signals.',
    COMMENT COLUMN `offset` 'In that partition.',
    COMMENT COLUMN `kind` 'Kind and version of the signal.',
    COMMENT COLUMN `cell` 'That it is about; NULL when about none.',
    COMMENT COLUMN `at` 'The end of its window.',
    COMMENT COLUMN `known` 'False when the processor could not tell: that is never zero.',
    COMMENT COLUMN `json` 'The signal, whole.';

ALTER TABLE messages_to_telemetry
    COMMENT COLUMN `partition` 'Of headway.telemetry.',
    COMMENT COLUMN `offset` 'In that partition.',
    COMMENT COLUMN `at` 'When the agent read the device.',
    COMMENT COLUMN `node` 'The machine.',
    COMMENT COLUMN `device` 'The device on it.',
    COMMENT COLUMN `simulated` 'Whether the reading is made up by a simulated device.',
    COMMENT COLUMN `utilisation` 'Part of the time in which it was busy, from 0 to 1; NULL when the device does not say.',
    COMMENT COLUMN `memory_used_bytes` 'Memory in use; NULL when the device does not say. Unit: bytes.',
    COMMENT COLUMN `memory_total_bytes` 'Memory that there is; NULL when the device does not say. Unit: bytes.',
    COMMENT COLUMN `power_w` 'Power drawn; NULL when the device does not say. Unit: W.',
    COMMENT COLUMN `temperature_c` 'Temperature; NULL when the device does not say. Unit: °C.';

ALTER TABLE queue_depth
    COMMENT COLUMN `cell` 'Whose decisions.',
    COMMENT COLUMN `model` 'Whose queue.',
    COMMENT COLUMN `second` 'The second, by its beginning.',
    COMMENT COLUMN `waiting` 'Requests that wait in the queue at its end.',
    COMMENT COLUMN `running` 'Requests that a replica has at its end.';

ALTER TABLE replica_occupancy
    COMMENT COLUMN `cell` 'Whose decisions.',
    COMMENT COLUMN `model` 'What the replica serves.',
    COMMENT COLUMN `slot` 'Replica slot.',
    COMMENT COLUMN `replica` 'Name of the replica: model and slot.',
    COMMENT COLUMN `second` 'The second, by its beginning.',
    COMMENT COLUMN `running` 'Requests that it has at its end.',
    COMMENT COLUMN `blocks_used` 'KV blocks reserved on it at its end. Unit: KV blocks.';

ALTER TABLE request_steps
    COMMENT COLUMN `cell` 'Whose decision.',
    COMMENT COLUMN `seq` 'Of the entry it stands in.',
    COMMENT COLUMN `index` 'Its place in the entry; (cell, seq, index) is its id.',
    COMMENT COLUMN `at` 'When: the stamp of the fact it follows from.',
    COMMENT COLUMN `request_id` 'The request it is about; empty when about none.',
    COMMENT COLUMN `model` 'The model; empty when about none.',
    COMMENT COLUMN `kind` 'Kind and version.',
    COMMENT COLUMN `slot` 'Replica slot.',
    COMMENT COLUMN `attempt` 'Which run of the request.',
    COMMENT COLUMN `blocks` 'KV blocks: reserved by a dispatch, of the pool when admitted. Unit: KV blocks.',
    COMMENT COLUMN `kind_before` 'Kind of the request''s step before; empty at the first.',
    COMMENT COLUMN `kind_after` 'Kind of the request''s step after; empty at the last.',
    COMMENT COLUMN `at_after` 'When that one was; the epoch, 1970, when there is none.';

ALTER TABLE requests
    COMMENT COLUMN `cell` 'Where it is decided.',
    COMMENT COLUMN `request_offset` 'Where in headway.requests, partition `cell`, the payload lies.',
    COMMENT COLUMN `id` 'The producer''s name for it.',
    COMMENT COLUMN `model` 'What is asked to answer.',
    COMMENT COLUMN `tenant` 'Who is charged.',
    COMMENT COLUMN `tier` 'realtime, critical, normal or batch.',
    COMMENT COLUMN `arrived_at` 'The broker''s stamp; waits count from it.',
    COMMENT COLUMN `ended_at` 'When its outcome was decided; NULL before.',
    COMMENT COLUMN `outcome` 'completed, rejected, expired, failed, cancelled; NULL before.',
    COMMENT COLUMN `reason` 'Why that outcome.',
    COMMENT COLUMN `detail` 'The same in a sentence with the numbers compared.',
    COMMENT COLUMN `attempts` 'Runs, lost ones included.',
    COMMENT COLUMN `slot` 'Of the replica that ran it last.',
    COMMENT COLUMN `replica` 'That replica''s name.',
    COMMENT COLUMN `wait_us` 'All time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `waits` 'That time by cause; adds up to wait_us. Unit: µs.',
    COMMENT COLUMN `run_us` 'All time in which a replica had it. Unit: µs.',
    COMMENT COLUMN `ttft_us` 'Arrival to first token; NULL when there was none. Unit: µs.',
    COMMENT COLUMN `e2e_us` 'Arrival to outcome: wait_us + run_us. Unit: µs.',
    COMMENT COLUMN `prompt_tokens` 'Counted at the edge. Unit: tokens.',
    COMMENT COLUMN `max_output_tokens` 'Its limit. Unit: tokens.',
    COMMENT COLUMN `output_tokens` 'Generated; NULL when it never ran to an end. Unit: tokens.',
    COMMENT COLUMN `queued_us` 'In the worker, before it joined the batch. Unit: µs.',
    COMMENT COLUMN `prefill_us` 'From joining to the first token. Unit: µs.',
    COMMENT COLUMN `decode_us` 'From the first token to the last. Unit: µs.',
    COMMENT COLUMN `metadata` 'The producer''s own labels.',
    COMMENT COLUMN `policy_version` 'Under which the last decision on it was made.',
    COMMENT COLUMN `policy_digest` 'Names that policy''s values.',
    COMMENT COLUMN `seq` 'Of the entry with that decision.';

ALTER TABLE results
    COMMENT COLUMN `cell` 'That decided it.',
    COMMENT COLUMN `seq` 'Of the ledger entry that says so.',
    COMMENT COLUMN `id` 'Of the request.',
    COMMENT COLUMN `partition` 'Of headway.results.',
    COMMENT COLUMN `offset` 'In that partition; a result that was published again has the later one.',
    COMMENT COLUMN `published_at` 'The broker''s stamp.',
    COMMENT COLUMN `model` 'That was asked.',
    COMMENT COLUMN `tenant` 'Who is charged.',
    COMMENT COLUMN `tier` 'realtime, critical, normal or batch.',
    COMMENT COLUMN `outcome` 'completed, rejected, expired, failed or cancelled.',
    COMMENT COLUMN `reason` 'Why that outcome.',
    COMMENT COLUMN `detail` 'The same in a sentence.',
    COMMENT COLUMN `text` 'The output; NULL when there is none.',
    COMMENT COLUMN `output_tokens` 'Generated; NULL when unknown. Unit: tokens.',
    COMMENT COLUMN `attempts` 'Runs, lost ones included.',
    COMMENT COLUMN `replica` 'That ran it last.',
    COMMENT COLUMN `wait_us` 'All time in which no replica had it. Unit: µs.',
    COMMENT COLUMN `ttft_us` 'Arrival to first token. Unit: µs.',
    COMMENT COLUMN `e2e_us` 'Arrival to outcome. Unit: µs.',
    COMMENT COLUMN `policy_version` 'Of the policy that decided.',
    COMMENT COLUMN `policy_digest` 'Names that policy''s values.';

ALTER TABLE signals
    COMMENT COLUMN `partition` 'Of headway.signals.',
    COMMENT COLUMN `offset` 'In that partition.',
    COMMENT COLUMN `kind` 'Kind and version of the signal.',
    COMMENT COLUMN `cell` 'That it is about; NULL when about none.',
    COMMENT COLUMN `at` 'The end of its window.',
    COMMENT COLUMN `known` 'False when the processor could not tell: that is never zero.',
    COMMENT COLUMN `json` 'The signal, whole.';

ALTER TABLE telemetry
    COMMENT COLUMN `partition` 'Of headway.telemetry.',
    COMMENT COLUMN `offset` 'In that partition.',
    COMMENT COLUMN `at` 'When the agent read the device.',
    COMMENT COLUMN `node` 'The machine.',
    COMMENT COLUMN `device` 'The device on it.',
    COMMENT COLUMN `simulated` 'Whether the reading is made up by a simulated device.',
    COMMENT COLUMN `utilisation` 'Part of the time in which it was busy, from 0 to 1; NULL when the device does not say.',
    COMMENT COLUMN `memory_used_bytes` 'Memory in use; NULL when the device does not say. Unit: bytes.',
    COMMENT COLUMN `memory_total_bytes` 'Memory that there is; NULL when the device does not say. Unit: bytes.',
    COMMENT COLUMN `power_w` 'Power drawn; NULL when the device does not say. Unit: W.',
    COMMENT COLUMN `temperature_c` 'Temperature; NULL when the device does not say. Unit: °C.';

ALTER TABLE waits
    COMMENT COLUMN `cell` 'Where it is decided.',
    COMMENT COLUMN `request_offset` 'Where in headway.requests, partition `cell`, the payload lies.',
    COMMENT COLUMN `id` 'The producer''s name for it.',
    COMMENT COLUMN `model` 'What is asked to answer.',
    COMMENT COLUMN `tenant` 'Who is charged.',
    COMMENT COLUMN `tier` 'realtime, critical, normal or batch.',
    COMMENT COLUMN `outcome` 'completed, rejected, expired, failed, cancelled; NULL before.',
    COMMENT COLUMN `cause` 'Why it waited: transit, kv, slots, no-replica, cold-start, backoff, …',
    COMMENT COLUMN `cause_us` 'Time waited for that cause. Unit: µs.';
