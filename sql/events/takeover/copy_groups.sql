-- Take over groups. All of them go on at the same place: what one has not read is dispatched behind it.
-- params: begin_id
-- rows: none
-- index: none
INSERT INTO pgmb.subscription_groups (id, created_at, last_read_event_id)
SELECT
    g.id,
    g.created_at,
    %(begin_id)s
FROM pgmb_original.subscription_groups AS g
