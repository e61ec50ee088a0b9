-- Read serialise_record_for_event where somebody has replaced it, as PGMB invites them to.
-- params: none
-- rows: one or none: (command that creates it in our schema)
-- index: pg_proc_proname_args_nsp_index
SELECT
    replace(
        pg_get_functiondef(p.oid),
        'FUNCTION pgmb_original.serialise_record_for_event(', 'FUNCTION pgmb.serialise_record_for_event('
    ) AS make_it
FROM pg_proc AS p
WHERE
    p.pronamespace = to_regnamespace('pgmb_original')
    AND p.proname = 'serialise_record_for_event'
    AND lower(regexp_replace(p.prosrc, '\W', '', 'g')) <> 'beginserialisedto_jsonbrecordemittruereturnend'
