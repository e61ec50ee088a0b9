-- Let the next poll go on behind the dispatches that were taken over.
-- params: none
-- rows: none
-- index: dispatches_pkey
UPDATE pgmb.dispatch_state AS st
SET last_dispatch_id = greatest(st.last_dispatch_id::text, (SELECT max(d.id) FROM pgmb.dispatches AS d))
