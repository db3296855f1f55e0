-- Everything that the ledger says of one request, in order. Give its id as the parameter `id`.
SELECT * FROM
(
    SELECT at, cell, seq, 'fact' AS what, fact_kind AS kind, JSONExtractRaw(raw, 'fact') AS json
    FROM ledger FINAL
    WHERE position(raw, concat('"id":', toJSONString({id:String}))) > 0
    UNION ALL
    SELECT at, cell, seq, 'decision', kind, json
    FROM decisions
    WHERE request_id = {id:String}
)
ORDER BY at, cell, seq, what DESC
